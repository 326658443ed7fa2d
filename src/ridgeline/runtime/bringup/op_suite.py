"""The op suite: ops of transformers, forward and backward, fused and decomposed, on inputs that are hard.

    SUITE       builders of calls: an op, its arguments on the host, and what is hard about them

Every run probes all of them on the device, whether the model dispatches them or not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from ridgeline.runtime.bringup.op_calls import (
    A,
    Numbers,
    OpCall,
    call,
    casts,
    copies,
    factories,
    fused_optimizers,
    in_place,
    lists,
    long_products,
    long_rows,
    long_tables,
    rearrangements,
    scaled_products,
    vary_layout,
)


def products(n: Numbers) -> Iterator[OpCall]:
    """Products: tails of every dim, one row, long sums, sums that cancel, strided operands, a bias."""
    for m, k, w in ((64, 256, 96), (1, 129, 33), (17, 1, 5), (33, 2048, 48), (128, 64, 128)):
        yield call(A.mm, n.normal(m, k), n.normal(k, w, size=k**-0.5), why=f"{m} x {k} x {w}")
    yield call(A.mm, n.strided_matrix(48, 64), n.strided_matrix(64, 40), why="strided")
    half = n.normal(32, 512)
    yield call(A.mm, torch.cat((half, half), 1), torch.cat((x := n.normal(512, 40), -x)), why="cancels")
    yield call(A.mm, n.normal(32, 256, size=200.0), n.normal(256, 64, size=200.0), why="large")
    yield call(A.bmm, n.normal(6, 40, 64), n.normal(6, 64, 72))
    yield call(A.bmm, n.normal(40, 6, 64).transpose(0, 1), n.normal(6, 72, 64).mT, why="strided")
    yield call(A.addmm, n.normal(96), n.normal(64, 256), n.normal(256, 96))
    yield call(A.addmm, n.normal(96, size=300.0), n.normal(64, 256), n.normal(256, 96), why="large bias")
    yield call(A.addmm, n.normal(33), n.normal(19, 40), n.normal(40, 33), why="scaled", beta=0.5, alpha=2.0)
    yield call(A.baddbmm, n.normal(5, 17, 24), n.normal(5, 17, 31), n.normal(5, 31, 24))
    scaled = n.normal(5, 17, 24), n.normal(5, 17, 31), n.normal(5, 31, 24)
    yield call(A.baddbmm, *scaled, why="scaled", beta=0.5, alpha=2.0)
    odd = n.normal(24, 40)
    odd[3, 5], odd[7, 0], odd[11, 39] = torch.inf, torch.nan, -torch.inf
    zeros = n.normal(40, 24)
    zeros[5], zeros[:, 3] = 0.0, 0.0
    yield call(A.mm, odd, zeros, why="zero times infinity")
    odd = odd.nan_to_num(nan=1.0, posinf=torch.inf, neginf=-torch.inf)
    yield call(A.mm, odd, zeros, why="zero times infinity, no NaN")
    yield call(A.bmm, odd[None], zeros[None], why="zero times infinity, no NaN")
    yield call(A.mm, vary_layout(n.normal(13, 37)), vary_layout(n.normal(37, 21)), why="rows apart")
    yield call(A.bmm, n.normal(3, 29, 19), n.normal(3, 19, 23), why="tails")
    yield call(A.mv, n.normal(33, 65), n.normal(65))
    yield call(A.dot, n.normal(129), n.normal(129))


def pointwise(n: Numbers) -> Iterator[OpCall]:
    """Functions of one number and their backward: ordinary, large, tiny, denormal, strided, special values."""
    special = [0.0, -0.0, torch.inf, -torch.inf, torch.nan, 1e-38, -1e-38, 3e38, 1.0, -1.0]
    inputs = {
        "ordinary": n.normal(64, 160, size=2.0),
        "large": n.normal(32, 64, size=60.0),
        "tiny": n.normal(32, 64, size=1e-5),
        "one row": n.normal(1, 77),
        "tails": n.normal(19, 53, size=2.0),
        "strided": n.strided_matrix(40, 56),
        "special": torch.tensor(special).to(n.dtype),
    }
    unary = (A.silu, A.gelu, A.sigmoid, A.tanh, A.exp, A.relu, A.sin, A.cos, A.neg)
    for why, x in inputs.items():
        for op in unary:
            if not (why in ("large", "special") and op in (A.sin, A.cos, A.gelu)):
                yield call(op, x, why=why)
        g = n.normal(*x.shape)
        if why != "special":
            for back in (A.silu_backward, A.gelu_backward):
                yield call(back, g, x, why=why)
            for two in (A.add.Tensor, A.sub.Tensor, A.mul.Tensor):
                yield call(two, x, g, why=why)
            yield call(A.mul.Tensor, x, g[:1], why=f"{why}, one row for all")
            yield call(A.rsqrt, x.abs() + 1e-3, why=why)
            yield call(A.div.Tensor, x, g.abs() + 0.1, why=why)
            yield call(A.pow.Tensor_Scalar, x, 2, why=why)
            yield call(A.sqrt, x.abs(), why=why)
        if why in ("ordinary", "strided", "tails"):
            yield from _seldom(n, why, x, g)
    angles = (torch.arange(0, 65536, 61).float()[:, None] * torch.tensor([1.0, 0.1, 0.01])).to(n.dtype)
    if n.dtype == torch.float32:
        yield call(A.cos, angles, why="long positions")
        yield call(A.sin, angles, why="long positions")


def _seldom(n: Numbers, why: str, x: Tensor, g: Tensor) -> Iterator[OpCall]:
    """Functions that few models use, and those of a number and a constant."""
    for op in (A.log, A.log2, A.reciprocal, A.log1p):
        yield call(op, x.abs() + 0.05, why=why)
    if n.dtype == torch.float32:  # the host's own kernels of these round on the way
        yield call(A.erf, x, why=why)
        yield call(A.pow.Tensor_Scalar, x, 3, why=f"{why}, cubes")
        yield call(A.pow.Tensor_Scalar, x.abs() + 0.1, -0.5, why=f"{why}, roots")
        yield call(A.logsumexp, x, [-1], why=why)
    for op in (A.exp2, A.softplus, A.abs, A.expm1, A.mish, A.leaky_relu, A.hardtanh, A.elu, A.log_sigmoid_forward):
        yield call(op, x, why=why)
    yield call(A.gelu, x, approximate="tanh", why=f"{why}, tanh")
    yield call(A.gelu_backward, g, x, approximate="tanh", why=f"{why}, tanh")
    y = x.double()
    yield call(A.sigmoid_backward, g, y.sigmoid().to(n.dtype), why=why)
    yield call(A.tanh_backward, g, y.tanh().to(n.dtype), why=why)
    yield call(A.threshold_backward, g, x, 0, why=why)
    for op, operand in ((A.add.Tensor, 2), (A.rsub.Scalar, 1.0), (A.mul.Tensor, 0.1), (A.div.Tensor, 3.0)):
        yield call(op, x, operand, why=f"{why}, a constant")
    for op in (A.add.Scalar, A.mul.Scalar, A.div.Scalar, A.sub.Scalar):
        yield call(op, x, 0.7, why=f"{why}, a constant")
    yield call(A.pow.Scalar, 10000.0, (x / 4).clamp(-1, 1), why=f"{why}, a constant to powers")
    yield call(A.pow.Tensor_Tensor, x.abs() + 0.1, g.clamp(-2, 2), why=why)
    yield call(A.add.Tensor, x, g, alpha=0.3, why=f"{why}, scaled")
    yield call(A.sub.Tensor, x, g[:, :1], why=f"{why}, one column for all")
    yield call(A.div.Tensor, x, g[:, :1].abs() + 0.5, why=f"{why}, one column for all")
    for op in (A.maximum, A.minimum):
        yield call(op, x, g, why=why)
    yield call(A.clamp, x, -0.5, 0.75, why=why)
    yield call(A.eq.Tensor, x.round(), g.round(), why=why)
    yield call(A.gt.Scalar, x, 0.25, why=why)
    yield call(A.var.correction, x, [-1], correction=1, why=why)
    yield call(A.linalg_vector_norm, x, why=why)
    yield call(A.amax, x, [-1], why=why)
    yield call(A.sum, x, why=f"{why}, all")
    yield call(A.mean, x, why=f"{why}, all")


def rows(n: Numbers) -> Iterator[OpCall]:
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
        yield call(A._softmax, x, -1, False, why=why)
        if why != "masked" and n.dtype == torch.float32:
            yield call(A._log_softmax, x, -1, False, why=why)
            logs = torch.log_softmax(x.double(), -1).to(n.dtype)
            yield call(A._log_softmax_backward_data, g, logs, -1, n.dtype, why=why)
        if why != "masked":
            p = torch.softmax(x.double(), -1).to(n.dtype)
            yield call(A._softmax_backward_data, g, p, -1, n.dtype, why=why)
            yield call(A.sum.dim_IntList, x, [-1], True, why=why)
            yield call(A.mean.dim, x, [-1], True, why=why)
            yield call(A.sum.dim_IntList, x, [0], why=why)
    masked_row = masked_scores.clone().index_fill_(0, torch.tensor([5]), -torch.inf)
    yield call(A._safe_softmax, masked_row, -1, why="masked row")
    yield from norms(n)


def norms(n: Numbers) -> Iterator[OpCall]:
    """Layer norm and its backward, RMS norm."""
    for why, size, at in (("ordinary", 1.0, 0.0), ("large mean", 1.0, 8.0), ("small", 1e-3, 0.0), ("large", 50.0, 0.0)):
        x, w, b, g = n.normal(40, 160, size=size, at=at), n.normal(160, at=1.0), n.normal(160), n.normal(40, 160)
        yield call(A.native_layer_norm, x, [160], w, b, 1e-5, why=why)
        mean, var = x.double().mean(-1, keepdim=True), x.double().var(-1, keepdim=True, correction=0)
        statistics = mean.to(n.statistics), (var + 1e-5).rsqrt().to(n.statistics)
        yield call(A.native_layer_norm_backward, g, x, [160], *statistics, w, b, [True, True, True], why=why)
        yield call(A._fused_rms_norm, x, [160], w, 1e-5, why=why)
        rstd = (x.double().square().mean(-1, keepdim=True) + 1e-5).rsqrt().to(n.statistics)
        yield call(A._fused_rms_norm_backward, g, x, [160], rstd, w, [True, True], why=why)
    x = n.normal(6, 5, 67)
    yield call(A.native_layer_norm, x, [67], None, None, 1e-5, why="no weight, a tail")
    yield call(A._fused_rms_norm, x, [67], None, 1e-6, why="no weight, a tail")
    x = n.normal(2, 24, 15)
    yield call(A.native_group_norm, x, n.normal(24), n.normal(24), 2, 24, 15, 4, 1e-5, why="groups")


def fused_attention(n: Numbers) -> Iterator[OpCall]:
    """Fused attention and its backward: causal, tails, unequal lengths, logits far below zero, large scores."""
    forward = A._scaled_dot_product_flash_attention_for_cpu
    backward = A._scaled_dot_product_flash_attention_for_cpu_backward
    for why, lengths, causal, size in (
        ("causal", (48, 48), True, 1.0),
        ("tail", (37, 53), False, 1.0),
        ("one query", (1, 65), False, 1.0),
        ("large scores", (32, 32), False, 6.0),
        ("long", (16, 600), False, 1.0),
    ):
        q, k = (n.normal(2, 3, length, 32, size=size) for length in lengths)
        v = n.normal(2, 3, lengths[1], 32)
        yield call(forward, q, k, v, 0.0, causal, why=why)
        out, lse = _attend_exactly(q, k, v, causal)
        yield call(backward, n.normal(*q.shape), q, k, v, out, lse, 0.0, causal, why=why)
    for why, at in (("logits far below zero", 2.0), ("logits below -50,000", 100.0)):
        q, k = n.normal(1, 2, 32, 32, at=at), n.normal(1, 2, 32, 32, at=-at)
        yield call(forward, q, k, n.normal(1, 2, 32, 32), 0.0, False, why=why)
    q, k, v = n.normal(2, 2, 24, 16), n.normal(2, 2, 40, 16), n.normal(2, 2, 40, 16)
    for why, queries, keys in (("causal, more keys", 24, 40), ("causal, more queries", 40, 24)):
        heads = n.normal(2, 2, queries, 16), n.normal(2, 2, keys, 16), n.normal(2, 2, keys, 16)
        yield call(forward, *heads, 0.0, True, why=why)
    mask = torch.zeros(2, 1, 24, 40, dtype=n.dtype).masked_fill(n.normal(2, 1, 24, 40) > 0, -torch.inf)
    mask[:, :, :, 7] = 0.0  # rows without any key have no backward that all agree on
    for why, mask_ in (("masked", mask), ("a bias", n.normal(2, 1, 24, 40))):
        yield call(forward, q, k, v, 0.0, False, why=why, attn_mask=mask_)
        out, lse = _attend_exactly(q, k, v, False, mask_)
        yield call(backward, n.normal(*q.shape), q, k, v, out, lse, 0.0, False, why=why, attn_mask=mask_)
    empty_row = mask.clone().index_fill_(2, torch.tensor([3]), -torch.inf)
    yield call(forward, q, k, v, 0.0, False, why="a row without any key", attn_mask=empty_row)
    q, k, v, g = (n.normal(2, 33, 3, 24).transpose(1, 2) for _ in range(4))
    out, lse = _attend_exactly(q, k, v, True)
    yield call(forward, q, k, v, 0.0, True, why="strided")
    yield call(backward, g, q, k, v, out, lse, 0.0, True, why="strided")
    yield call(forward, q, k, v, 0.0, True, scale=0.3, why="a scale of its own")


def _attend_exactly(q: Tensor, k: Tensor, v: Tensor, causal: bool, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
    scores = q.double() @ k.double().mT * q.shape[-1] ** -0.5
    if causal:
        scores = scores.masked_fill(torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1), -torch.inf)
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else scores + mask.double()
    return (scores.softmax(-1).nan_to_num() @ v.double()).to(q.dtype), torch.logsumexp(scores, -1).float()


def lookups(n: Numbers) -> Iterator[OpCall]:
    """Rows by index: embedding and its backward, gather, scatter, top-k with ties; every index twice or more."""
    table, where = n.normal(50, 48), n.places(96, below=50)
    yield call(A.embedding, table, where)
    yield call(A.embedding_dense_backward, n.normal(96, 48), where, 50, -1, False)
    yield call(A.embedding_dense_backward, n.normal(96, 48), where, 50, int(where[0]), False, why="padding row")
    yield call(A.index_add, n.normal(50, 48), 0, where, n.normal(96, 48), why="duplicates")
    yield call(A.gather, table, 1, n.places(50, 7, below=48))
    places = n.places(96, 48, below=50)
    yield call(A.scatter_add, n.normal(50, 48), 0, places, n.normal(96, 48), why="duplicates")
    tied = n.normal(32, 40).round()
    yield call(A.topk, tied, 4, why="ties")
    yield call(A.topk, n.normal(32, 64), 8)
    yield call(A.cat, [n.normal(8, 30), n.strided_matrix(8, 12)], 1, why="strided")
    yield call(A.where.self, n.normal(16, 40) > 0, n.normal(16, 40), n.normal(1, 40))
    yield call(A.clone, n.strided_matrix(24, 40), why="strided")
    yield call(A.masked_fill.Scalar, n.normal(16, 40), n.normal(16, 40) > 0, -1e4)
    yield call(A.cumsum, n.normal(8, 64), 1)
    yield call(A.cumsum, n.normal(37, 6), 0, why="along columns")
    row_places = n.places(40, below=50)
    yield call(A.index_put, n.normal(50, 48), [row_places], n.normal(40, 48), True, why="duplicates")
    once = torch.randperm(50, generator=n.source)[:20]
    yield call(A.index_put, n.normal(50, 48), [once], n.normal(20, 48), False, why="replaces")
    yield call(A.scatter.src, n.normal(50, 48), 0, once[:, None].expand(20, 48), n.normal(20, 48))
    yield call(A.index_copy, n.normal(50, 48), 0, once, n.normal(20, 48))
    yield call(A.scatter.value, n.normal(7, 40), 1, n.places(7, 2, below=40), 1.0, why="one hot")
    yield call(A.sort, n.normal(16, 70), -1, True)
    yield call(A.sort.stable, tied, stable=True, dim=-1, why="ties, stable")
    yield call(A.argmax, tied, -1, why="ties")
    yield call(A.max.dim, tied, -1, why="ties")
    yield call(A.topk, torch.softmax(n.normal(64, 128) * 0.02, -1), 8, why="near ties, experts")
    edge = torch.tensor([0, 49, 49, 0, 25, 48, 1])
    yield call(A.embedding, table, edge, why="first and last row")
    yield call(A.embedding, vary_layout(n.normal(21, 16)), edge % 21, why="rows apart")
    same = torch.full((40,), 7)
    yield call(A.embedding_dense_backward, n.normal(40, 16), same, 21, -1, False, why="all to one row")
    yield call(A.embedding_dense_backward, n.normal(3, 5, 16), n.places(3, 5, below=21), 21, -1, False, why="batched")
    yield call(A.index_add, n.normal(6, 20), 1, n.places(31, below=20), n.normal(6, 31), why="columns that meet")


def losses(n: Numbers) -> Iterator[OpCall]:
    """Negative log-likelihood with rows to ignore, and its backward."""
    if n.dtype != torch.float32:
        return
    logs, target = torch.log_softmax(n.normal(64, 120, size=3.0), -1), n.places(64, below=120)
    target[5:9] = -100
    for why, reduction in (("mean", 1), ("sum", 2)):
        yield call(A.nll_loss_forward, logs, target, None, reduction, -100, why=f"{why}, rows to ignore")
        args = (torch.tensor(0.7), logs, target, None, reduction, -100, torch.tensor(60.0))
        yield call(A.nll_loss_backward, *args, why=f"{why}, rows to ignore")


SUITE: tuple[Callable[[Numbers], Iterator[OpCall]], ...] = (
    *(products, pointwise, rows, fused_attention, lookups, losses),
    *(copies, rearrangements, factories, casts, in_place, lists, fused_optimizers),
    *(long_products, long_rows, long_tables, scaled_products),
)


def suite_calls(seed: int = 0, device: str = "cpu") -> Iterator[OpCall]:
    """Every call of the suite, in fp32 and bf16; products in 8 bits."""
    for dtype in (torch.float32, torch.bfloat16):
        for build in SUITE:
            yield from build(Numbers(dtype, seed, device))
