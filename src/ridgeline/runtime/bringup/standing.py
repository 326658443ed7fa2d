"""The standing set: ops of transformers, forward and backward, fused and decomposed, on inputs that are hard.

    STANDING    builders of calls: an op, its arguments on the host, and what is hard about them

Every run probes all of them on the device, whether the model dispatches them or not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from ridgeline.runtime.bringup.calls import Call, Numbers
from ridgeline.runtime.bringup.standing_long import LONG
from ridgeline.runtime.bringup.standing_moves import MOVES
from ridgeline.runtime.bringup.standing_narrow import NARROW
from ridgeline.runtime.bringup.standing_training import TRAINING

A = torch.ops.aten


def products(n: Numbers) -> Iterator[Call]:
    """Products: tails of every dim, one row, long sums, sums that cancel, strided operands, a bias."""
    for m, k, w in ((64, 256, 96), (1, 129, 33), (17, 1, 5), (33, 2048, 48), (128, 64, 128)):
        yield Call(op=A.mm.default, args=(n.normal(m, k), n.normal(k, w, size=k**-0.5)), why=f"{m} x {k} x {w}")
    yield Call(op=A.mm.default, args=(n.strided_matrix(48, 64), n.strided_matrix(64, 40)), why="strided")
    half = n.normal(32, 512)
    yield Call(
        op=A.mm.default, args=(torch.cat((half, half), 1), torch.cat((x := n.normal(512, 40), -x))), why="cancels"
    )
    yield Call(op=A.mm.default, args=(n.normal(32, 256, size=200.0), n.normal(256, 64, size=200.0)), why="large")
    yield Call(op=A.bmm.default, args=(n.normal(6, 40, 64), n.normal(6, 64, 72)))
    yield Call(op=A.bmm.default, args=(n.normal(40, 6, 64).transpose(0, 1), n.normal(6, 72, 64).mT), why="strided")
    yield Call(op=A.addmm.default, args=(n.normal(96), n.normal(64, 256), n.normal(256, 96)))
    yield Call(
        op=A.addmm.default, args=(n.normal(96, size=300.0), n.normal(64, 256), n.normal(256, 96)), why="large bias"
    )
    scales = {"beta": 0.5, "alpha": 2.0}
    yield Call(op=A.addmm.default, args=(n.normal(33), n.normal(19, 40), n.normal(40, 33)), kwargs=scales, why="scaled")
    for why, options in (("ordinary", {}), ("scaled", scales)):
        args = n.normal(5, 17, 24), n.normal(5, 17, 31), n.normal(5, 31, 24)
        yield Call(op=A.baddbmm.default, args=args, kwargs=options, why=why)
    odd = n.normal(24, 40)
    odd[3, 5], odd[7, 0], odd[11, 39] = torch.inf, torch.nan, -torch.inf
    zeros = n.normal(40, 24)
    zeros[5], zeros[:, 3] = 0.0, 0.0
    yield Call(op=A.mm.default, args=(odd, zeros), why="zero times infinity")
    odd = odd.nan_to_num(nan=1.0, posinf=torch.inf, neginf=-torch.inf)
    yield Call(op=A.mm.default, args=(odd, zeros), why="zero times infinity, no NaN")
    yield Call(op=A.bmm.default, args=(odd[None], zeros[None]), why="zero times infinity, no NaN")
    yield Call(
        op=A.mm.default, args=(n.vary_layout(n.normal(13, 37)), n.vary_layout(n.normal(37, 21))), why="rows apart"
    )
    yield Call(op=A.bmm.default, args=(n.normal(3, 29, 19), n.normal(3, 19, 23)), why="tails")
    yield Call(op=A.mv.default, args=(n.normal(33, 65), n.normal(65)))
    yield Call(op=A.dot.default, args=(n.normal(129), n.normal(129)))


def pointwise(n: Numbers) -> Iterator[Call]:
    """Functions of one number and their backward: ordinary, large, tiny, denormal, strided, special values."""
    inputs = {
        "ordinary": n.normal(64, 160, size=2.0),
        "large": n.normal(32, 64, size=60.0),
        "tiny": n.normal(32, 64, size=1e-5),
        "one row": n.normal(1, 77),
        "tails": n.normal(19, 53, size=2.0),
        "strided": n.strided_matrix(40, 56),
        "special": torch.tensor([0.0, -0.0, torch.inf, -torch.inf, torch.nan, 1e-38, -1e-38, 3e38, 1.0, -1.0]).to(
            n.dtype
        ),
    }
    unary = (A.silu, A.gelu, A.sigmoid, A.tanh, A.exp, A.relu, A.sin, A.cos, A.neg)
    for why, x in inputs.items():
        for op in unary:
            if not (why in ("large", "special") and op in (A.sin, A.cos, A.gelu)):
                yield Call(op=op.default, args=(x,), why=why)
        g = n.normal(*x.shape)
        if why != "special":
            for back in (A.silu_backward, A.gelu_backward):
                yield Call(op=back.default, args=(g, x), why=why, phase="backward")
            for two in (A.add.Tensor, A.sub.Tensor, A.mul.Tensor):
                yield Call(op=two, args=(x, g), why=why)
            yield Call(op=A.mul.Tensor, args=(x, g[:1]), why=f"{why}, one row for all")
            yield Call(op=A.rsqrt.default, args=(x.abs() + 1e-3,), why=why)
            yield Call(op=A.div.Tensor, args=(x, g.abs() + 0.1), why=why)
            yield Call(op=A.pow.Tensor_Scalar, args=(x, 2), why=why)
            yield Call(op=A.sqrt.default, args=(x.abs(),), why=why)
        if why in ("ordinary", "strided", "tails"):
            yield from _seldom(n, why, x, g)
    angles = (torch.arange(0, 65536, 61).float()[:, None] * torch.tensor([1.0, 0.1, 0.01])).to(n.dtype)
    if n.dtype == torch.float32:
        yield Call(op=A.cos.default, args=(angles,), why="long positions")
        yield Call(op=A.sin.default, args=(angles,), why="long positions")


def _seldom(n: Numbers, why: str, x: Tensor, g: Tensor) -> Iterator[Call]:
    """Functions that few models use, and those of a number and a constant."""
    for op in (A.log, A.log2, A.reciprocal, A.log1p):
        yield Call(op=op.default, args=(x.abs() + 0.05,), why=why)
    if n.dtype == torch.float32:  # the host's own kernels of these round on the way
        yield Call(op=A.erf.default, args=(x,), why=why)
        yield Call(op=A.pow.Tensor_Scalar, args=(x, 3), why=f"{why}, cubes")
        yield Call(op=A.pow.Tensor_Scalar, args=(x.abs() + 0.1, -0.5), why=f"{why}, roots")
        yield Call(op=A.logsumexp.default, args=(x, [-1]), why=why)
    for op in (A.exp2, A.softplus, A.abs, A.expm1, A.mish, A.leaky_relu, A.hardtanh, A.elu, A.log_sigmoid_forward):
        yield Call(op=op.default, args=(x,), why=why)
    yield Call(op=A.gelu.default, args=(x,), kwargs={"approximate": "tanh"}, why=f"{why}, tanh")
    yield Call(
        op=A.gelu_backward.default, args=(g, x), kwargs={"approximate": "tanh"}, why=f"{why}, tanh", phase="backward"
    )
    y = x.double()
    yield Call(op=A.sigmoid_backward.default, args=(g, y.sigmoid().to(n.dtype)), why=why, phase="backward")
    yield Call(op=A.tanh_backward.default, args=(g, y.tanh().to(n.dtype)), why=why, phase="backward")
    yield Call(op=A.threshold_backward.default, args=(g, x, 0), why=why, phase="backward")
    for op, operand in ((A.add.Tensor, 2), (A.rsub.Scalar, 1.0), (A.mul.Tensor, 0.1), (A.div.Tensor, 3.0)):
        yield Call(op=op, args=(x, operand), why=f"{why}, a constant")
    for op in (A.add.Scalar, A.mul.Scalar, A.div.Scalar, A.sub.Scalar):
        yield Call(op=op, args=(x, 0.7), why=f"{why}, a constant")
    yield Call(op=A.pow.Scalar, args=(10000.0, (x / 4).clamp(-1, 1)), why=f"{why}, a constant to powers")
    yield Call(op=A.pow.Tensor_Tensor, args=(x.abs() + 0.1, g.clamp(-2, 2)), why=why)
    yield Call(op=A.add.Tensor, args=(x, g), kwargs={"alpha": 0.3}, why=f"{why}, scaled")
    yield Call(op=A.sub.Tensor, args=(x, g[:, :1]), why=f"{why}, one column for all")
    yield Call(op=A.div.Tensor, args=(x, g[:, :1].abs() + 0.5), why=f"{why}, one column for all")
    for op in (A.maximum, A.minimum):
        yield Call(op=op.default, args=(x, g), why=why)
    yield Call(op=A.clamp.default, args=(x, -0.5, 0.75), why=why)
    yield Call(op=A.eq.Tensor, args=(x.round(), g.round()), why=why)
    yield Call(op=A.gt.Scalar, args=(x, 0.25), why=why)
    yield Call(op=A.var.correction, args=(x, [-1]), kwargs={"correction": 1}, why=why)
    yield Call(op=A.linalg_vector_norm.default, args=(x,), why=why)
    yield Call(op=A.amax.default, args=(x, [-1]), why=why)
    yield Call(op=A.sum.default, args=(x,), why=f"{why}, all")
    yield Call(op=A.mean.default, args=(x,), why=f"{why}, all")


def rows(n: Numbers) -> Iterator[Call]:
    """Softmax, norms, sums: logits far below zero, masked rows, equal rows, a large mean, small activations."""
    masked_scores = n.normal(24, 80)
    masked_scores[3, 1:] = -torch.inf
    inputs = {
        "ordinary": n.normal(48, 192, size=3.0),
        "far below zero": n.normal(24, 80, size=2.0, at=-5000.0 if n.dtype == torch.float32 else -300.0),
        "masked": masked_scores,
        "equal": torch.full((8, 65), 3.0, dtype=n.dtype),
        "one column": n.normal(9, 1),
        "strided": n.strided_matrix(24, 48),
        "large": n.normal(16, 129, size=100.0),
    }
    for why, x in inputs.items():
        g = n.normal(*x.shape)
        yield Call(op=A._softmax.default, args=(x, -1, False), why=why)
        if why != "masked" and n.dtype == torch.float32:
            yield Call(op=A._log_softmax.default, args=(x, -1, False), why=why)
            back = (g, torch.log_softmax(x.double(), -1).to(n.dtype), -1, n.dtype)
            yield Call(op=A._log_softmax_backward_data.default, args=back, why=why, phase="backward")
        if why != "masked":
            p = torch.softmax(x.double(), -1).to(n.dtype)
            yield Call(op=A._softmax_backward_data.default, args=(g, p, -1, n.dtype), why=why, phase="backward")
            yield Call(op=A.sum.dim_IntList, args=(x, [-1], True), why=why)
            yield Call(op=A.mean.dim, args=(x, [-1], True), why=why)
            yield Call(op=A.sum.dim_IntList, args=(x, [0]), why=why)
    yield Call(
        op=A._safe_softmax.default,
        args=(masked_scores.clone().index_fill_(0, torch.tensor([5]), -torch.inf), -1),
        why="masked row",
    )
    yield from norms(n)


def norms(n: Numbers) -> Iterator[Call]:
    """Layer norm and its backward, RMS norm."""
    for why, size, at in (("ordinary", 1.0, 0.0), ("large mean", 1.0, 8.0), ("small", 1e-3, 0.0), ("large", 50.0, 0.0)):
        x, w, b, g = n.normal(40, 160, size=size, at=at), n.normal(160, at=1.0), n.normal(160), n.normal(40, 160)
        yield Call(op=A.native_layer_norm.default, args=(x, [160], w, b, 1e-5), why=why)
        mean, var = x.double().mean(-1, keepdim=True), x.double().var(-1, keepdim=True, correction=0)
        statistics = mean.to(n.statistics), (var + 1e-5).rsqrt().to(n.statistics)
        args = (g, x, [160], *statistics, w, b, [True, True, True])
        yield Call(op=A.native_layer_norm_backward.default, args=args, why=why, phase="backward")
        yield Call(op=A._fused_rms_norm.default, args=(x, [160], w, 1e-5), why=why)
        rstd = (x.double().square().mean(-1, keepdim=True) + 1e-5).rsqrt().to(n.statistics)
        arguments = (g, x, [160], rstd, w, [True, True])
        yield Call(op=A._fused_rms_norm_backward.default, args=arguments, why=why, phase="backward")
    x = n.normal(6, 5, 67)
    yield Call(op=A.native_layer_norm.default, args=(x, [67], None, None, 1e-5), why="no weight, a tail")
    yield Call(op=A._fused_rms_norm.default, args=(x, [67], None, 1e-6), why="no weight, a tail")
    x = n.normal(2, 24, 15)
    yield Call(op=A.native_group_norm.default, args=(x, n.normal(24), n.normal(24), 2, 24, 15, 4, 1e-5), why="groups")


def fused_attention(n: Numbers) -> Iterator[Call]:
    """Fused attention and its backward: causal, tails, unequal lengths, logits far below zero, large scores."""
    forward = A._scaled_dot_product_flash_attention_for_cpu.default
    backward = A._scaled_dot_product_flash_attention_for_cpu_backward.default
    for why, lengths, causal, size in (
        ("causal", (48, 48), True, 1.0),
        ("tail", (37, 53), False, 1.0),
        ("one query", (1, 65), False, 1.0),
        ("large scores", (32, 32), False, 6.0),
        ("long", (16, 600), False, 1.0),
    ):
        q, k, v = (
            n.normal(2, 3, t, 32, size=s) for t, s in ((lengths[0], size), (lengths[1], size), (lengths[1], 1.0))
        )
        yield Call(op=forward, args=(q, k, v, 0.0, causal), why=why)
        out, lse = _attend(q, k, v, causal)
        yield Call(op=backward, args=(n.normal(*q.shape), q, k, v, out, lse, 0.0, causal), why=why, phase="backward")
    for why, at in (("logits far below zero", 2.0), ("logits below -50,000", 100.0)):
        q, k = n.normal(1, 2, 32, 32, at=at), n.normal(1, 2, 32, 32, at=-at)
        yield Call(op=forward, args=(q, k, n.normal(1, 2, 32, 32), 0.0, False), why=why)
    q, k, v = n.normal(2, 2, 24, 16), n.normal(2, 2, 40, 16), n.normal(2, 2, 40, 16)
    for why, queries, keys in (("causal, more keys", 24, 40), ("causal, more queries", 40, 24)):
        heads = n.normal(2, 2, queries, 16), n.normal(2, 2, keys, 16), n.normal(2, 2, keys, 16)
        yield Call(op=forward, args=(*heads, 0.0, True), why=why)
    mask = torch.zeros(2, 1, 24, 40, dtype=n.dtype).masked_fill(n.normal(2, 1, 24, 40) > 0, -torch.inf)
    mask[:, :, :, 7] = 0.0  # rows without any key have no backward that all agree on
    for why, mask_ in (("masked", mask), ("a bias", n.normal(2, 1, 24, 40))):
        options = {"attn_mask": mask_}
        yield Call(op=forward, args=(q, k, v, 0.0, False), kwargs=options, why=why)
        out, lse = _attend(q, k, v, False, mask_)
        args = n.normal(*q.shape), q, k, v, out, lse, 0.0, False
        yield Call(op=backward, args=args, kwargs=options, why=why, phase="backward")
    options = {"attn_mask": mask.clone().index_fill_(2, torch.tensor([3]), -torch.inf)}
    yield Call(op=forward, args=(q, k, v, 0.0, False), kwargs=options, why="a row without any key")
    q, k, v, g = (n.normal(2, 33, 3, 24).transpose(1, 2) for _ in range(4))
    out, lse = _attend(q, k, v, True)
    yield Call(op=forward, args=(q, k, v, 0.0, True), why="strided")
    yield Call(op=backward, args=(g, q, k, v, out, lse, 0.0, True), why="strided", phase="backward")
    yield Call(op=forward, args=(q, k, v, 0.0, True), kwargs={"scale": 0.3}, why="a scale of its own")


def _attend(q: Tensor, k: Tensor, v: Tensor, causal: bool, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
    scores = q.double() @ k.double().mT * q.shape[-1] ** -0.5
    if causal:
        scores = scores.masked_fill(torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1), -torch.inf)
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else scores + mask.double()
    return (scores.softmax(-1).nan_to_num() @ v.double()).to(q.dtype), torch.logsumexp(scores, -1).float()


def lookups(n: Numbers) -> Iterator[Call]:
    """Rows by index: embedding and its backward, gather, scatter, top-k with ties; every index twice or more."""
    table, where = n.normal(50, 48), n.places(96, below=50)
    yield Call(op=A.embedding.default, args=(table, where))
    yield Call(op=A.embedding_dense_backward.default, args=(n.normal(96, 48), where, 50, -1, False), phase="backward")
    args = (n.normal(96, 48), where, 50, int(where[0]), False)
    yield Call(op=A.embedding_dense_backward.default, args=args, why="padding row", phase="backward")
    yield Call(op=A.index_add.default, args=(n.normal(50, 48), 0, where, n.normal(96, 48)), why="duplicates")
    yield Call(op=A.gather.default, args=(table, 1, n.places(50, 7, below=48)))
    places = n.places(96, 48, below=50)
    yield Call(op=A.scatter_add.default, args=(n.normal(50, 48), 0, places, n.normal(96, 48)), why="duplicates")
    tied = n.normal(32, 40).round()
    yield Call(op=A.topk.default, args=(tied, 4), why="ties")
    yield Call(op=A.topk.default, args=(n.normal(32, 64), 8))
    yield Call(op=A.cat.default, args=([n.normal(8, 30), n.strided_matrix(8, 12)], 1), why="strided")
    yield Call(op=A.where.self, args=(n.normal(16, 40) > 0, n.normal(16, 40), n.normal(1, 40)))
    yield Call(op=A.clone.default, args=(n.strided_matrix(24, 40),), why="strided")
    yield Call(op=A.masked_fill.Scalar, args=(n.normal(16, 40), n.normal(16, 40) > 0, -1e4))
    yield Call(op=A.cumsum.default, args=(n.normal(8, 64), 1))
    yield Call(op=A.cumsum.default, args=(n.normal(37, 6), 0), why="along columns")
    row_places = n.places(40, below=50)
    yield Call(op=A.index_put.default, args=(n.normal(50, 48), [row_places], n.normal(40, 48), True), why="duplicates")
    once = torch.randperm(50, generator=n.source)[:20]
    yield Call(op=A.index_put.default, args=(n.normal(50, 48), [once], n.normal(20, 48), False), why="replaces")
    yield Call(op=A.scatter.src, args=(n.normal(50, 48), 0, once[:, None].expand(20, 48), n.normal(20, 48)))
    yield Call(op=A.index_copy.default, args=(n.normal(50, 48), 0, once, n.normal(20, 48)))
    yield Call(op=A.scatter.value, args=(n.normal(7, 40), 1, n.places(7, 2, below=40), 1.0), why="one hot")
    yield Call(op=A.sort.default, args=(n.normal(16, 70), -1, True))
    yield Call(op=A.sort.stable, args=(tied,), kwargs={"stable": True, "dim": -1}, why="ties, stable")
    yield Call(op=A.argmax.default, args=(tied, -1), why="ties")
    yield Call(op=A.max.dim, args=(tied, -1), why="ties")
    yield Call(op=A.topk.default, args=(torch.softmax(n.normal(64, 128) * 0.02, -1), 8), why="near ties, experts")
    edge = torch.tensor([0, 49, 49, 0, 25, 48, 1])
    yield Call(op=A.embedding.default, args=(table, edge), why="first and last row")
    yield Call(op=A.embedding.default, args=(n.vary_layout(n.normal(21, 16)), edge % 21), why="rows apart")
    same = torch.full((40,), 7)
    yield Call(
        op=A.embedding_dense_backward.default,
        args=(n.normal(40, 16), same, 21, -1, False),
        why="all to one row",
        phase="backward",
    )
    yield Call(
        op=A.embedding_dense_backward.default,
        args=(n.normal(3, 5, 16), n.places(3, 5, below=21), 21, -1, False),
        why="batched",
        phase="backward",
    )
    yield Call(
        op=A.index_add.default,
        args=(n.normal(6, 20), 1, n.places(31, below=20), n.normal(6, 31)),
        why="columns that meet",
    )


def losses(n: Numbers) -> Iterator[Call]:
    """Negative log-likelihood with rows to ignore, and its backward."""
    if n.dtype != torch.float32:
        return
    logs, target = torch.log_softmax(n.normal(64, 120, size=3.0), -1), n.places(64, below=120)
    target[5:9] = -100
    for why, reduction in (("mean", 1), ("sum", 2)):
        yield Call(
            op=A.nll_loss_forward.default, args=(logs, target, None, reduction, -100), why=f"{why}, rows to ignore"
        )
        args = (torch.tensor(0.7), logs, target, None, reduction, -100, torch.tensor(60.0))
        yield Call(op=A.nll_loss_backward.default, args=args, why=f"{why}, rows to ignore", phase="backward")


STANDING: tuple[Callable[[Numbers], Iterator[Call]], ...] = (
    products,
    pointwise,
    rows,
    fused_attention,
    lookups,
    losses,
    *MOVES,
    *TRAINING,
    *LONG,
    *NARROW,
)


def standing_calls(seed: int = 0, device: str = "cpu") -> Iterator[Call]:
    """Every call of the standing set, in fp32 and bf16; products in 8 bits."""
    for dtype in (torch.float32, torch.bfloat16):
        for build in STANDING:
            yield from build(Numbers(dtype, seed, device))
