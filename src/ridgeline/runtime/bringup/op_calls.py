"""One call of an op with inputs of the host; calls that move, make or cast numbers, of optimizers, long or in 8 bits.

In 8 bits (fp8) products have a scale for each tensor, or for each row and column, and tails of 16. The second operand
is column-major, as cuBLAS wants it in 8 bits. A device without such products lacks a format, which the inventory says,
and is not wrong.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload, OpOverloadPacket

from ridgeline.runtime.bringup.arithmetic import Args, Kwargs

A = torch.ops.aten
HERE = torch.device("meta", 7)  # stands for the device that is probed, in a call's arguments


@dataclass(frozen=True, slots=True, kw_only=True)
class OpCall:
    """One op with arguments on the host; `why` says what its input is there for.

    optional    not every device has it: one that raises lacks it, and is not wrong
    """

    op: OpOverload
    args: Args
    kwargs: Kwargs = field(default_factory=dict)
    why: str = "ordinary"
    phase: str = "forward"
    optional: bool = False


Samples = dict[tuple[object, ...], OpCall]  # calls that hard variants are made of, by op and formats


def call(
    op: OpOverload | OpOverloadPacket, /, *args: object, why: str = "ordinary", phase: str = "", **kwargs: Any
) -> OpCall:
    """A call of an op, or of a packet's `default`; one that has `backward` in its name is of that phase."""
    phase = phase or ("backward" if "backward" in str(op) else "forward")
    return OpCall(op=getattr(op, "default", op), args=args, kwargs=kwargs, why=why, phase=phase)


class Numbers:
    """Inputs of one format from one seed."""

    def __init__(self, dtype: torch.dtype, seed: int = 0, device: str = "cpu") -> None:
        self.dtype, self.source = dtype, torch.Generator().manual_seed(seed)
        # what a norm's forward keeps for its backward: the host's kernels in the format, others in 32 bits
        self.statistics = dtype if device.partition(":")[0] in ("cpu", "ridge") else torch.float32

    def normal(self, *shape: int, size: float = 1.0, at: float = 0.0) -> Tensor:
        """Gaussian, in the format."""
        return (torch.randn(shape, generator=self.source) * size + at).to(self.dtype)

    def places(self, *shape: int, below: int) -> Tensor:
        """Indices, many of them twice."""
        return torch.randint(0, below, shape, generator=self.source)

    def strided_matrix(self, rows: int, columns: int) -> Tensor:
        """A transposed view that begins inside its memory."""
        return self.normal(columns + 3, rows + 5)[2 : 2 + columns, 4 : 4 + rows].mT


def vary_layout(x: Tensor, before: int = 2, width: int = 0) -> Tensor:
    """The same numbers in memory with gaps: rows as wide as `width`, which they begin inside of."""
    size = x.shape[-1]
    wide = torch.zeros((*x.shape[:-1], width or size + 3), dtype=x.dtype)
    wide[..., before : before + size] = x
    return wide[..., before : before + size]


VOCABULARY = 70_003


def long_products(n: Numbers) -> Iterator[OpCall]:
    """Many terms, many columns, many rows."""
    for m, k, w in ((5, 16384, 24), (3, 40, 40_003), (4099, 24, 16)):
        yield call(A.mm, n.normal(m, k), n.normal(k, w, size=k**-0.5), why=f"{m} x {k} x {w}")
    yield call(A.bmm, n.normal(2, 515, 16), n.normal(2, 16, 520), why="scores of 515 tokens")
    yield call(A.addmm, n.normal(8200), n.normal(9, 33), n.normal(33, 8200), why="many columns")


def long_rows(n: Numbers) -> Iterator[OpCall]:
    """Rows as wide as a vocabulary, running sums and norms of many terms."""
    x = n.normal(2, 32_771, size=3.0)
    yield call(A._softmax, x, -1, False, why="wide")
    yield call(A.sum.dim_IntList, x, [-1], why="wide")
    yield call(A.sum.dim_IntList, n.normal(5000, 9), [0], why="many rows")
    yield call(A.mean.dim, x, [-1], why="wide")
    yield call(A.cumsum, n.normal(2, 5000), 1, why="long")
    yield call(A.topk, n.normal(2, VOCABULARY), 50, why="a vocabulary")
    yield call(A.argmax, n.normal(2, VOCABULARY), -1, why="a vocabulary")
    w = n.normal(8192, at=1.0)
    yield call(A.native_layer_norm, n.normal(3, 8192), [8192], w, w, 1e-5, why="wide")
    yield call(A._fused_rms_norm, n.normal(3, 8192), [8192], w, 1e-6, why="wide")
    if n.dtype == torch.float32:
        yield call(A._log_softmax, x, -1, False, why="wide")
        logs = torch.log_softmax(n.normal(3, VOCABULARY).double(), -1).float()
        target = torch.tensor([VOCABULARY - 1, 66_000, -100])
        yield call(A.nll_loss_forward, logs, target, None, 1, -100, why="a vocabulary")
        args = (torch.tensor(1.0), logs, target, None, 1, -100, torch.tensor(2.0))
        yield call(A.nll_loss_backward, *args, why="a vocabulary")
    yield call(A.sum, n.normal(300, 1000), why="300,000 terms")


def long_tables(n: Numbers) -> Iterator[OpCall]:
    """Tables of many rows, and tensors of many elements."""
    where = torch.tensor([0, 65_535, 65_536, 66_001, VOCABULARY - 1, 65_537, 5])
    yield call(A.embedding, n.normal(VOCABULARY, 3), where, why="a vocabulary")
    yield call(A.embedding_dense_backward, n.normal(7, 3), where, VOCABULARY, -1, False, why="a vocabulary")
    yield call(A.index_select, n.normal(VOCABULARY, 2), 0, where, why="a vocabulary")
    big = n.normal(263, 1025)
    yield call(A.add.Tensor, big, big.flip(0), why="many elements")
    yield call(A.mul.Tensor, big, big[:1], why="many elements, one row for all")
    yield call(A.silu, big, why="many elements")
    yield call(A.clone, big.mT, memory_format=torch.contiguous_format, why="many elements")
    yield call(A.cat, [big, big[:, :7]], 1, why="many elements")


VALUES, GRADIENTS = torch.float8_e4m3fn, torch.float8_e5m2
PAIRS = {"e4m3 x e4m3": (VALUES, VALUES), "e4m3 x e5m2": (VALUES, GRADIENTS), "e5m2 x e4m3": (GRADIENTS, VALUES)}
SHAPES = ((64, 256, 96), (48, 272, 80), (16, 16, 16), (17, 144, 48), (32, 2064, 64))  # m, k, n

Cast = tuple[Tensor, Tensor]


def scaled_products(n: Numbers) -> Iterator[OpCall]:
    """Dynamic scaling, as training in fp8 has it: the largest value of a tensor becomes the format's largest."""
    if n.dtype != torch.bfloat16:
        return
    for pair, (first, second) in PAIRS.items():
        for m, k, w in SHAPES:
            left_operand, right_operand = cast(n.normal(m, k), first), cast(n.normal(w, k, size=0.02), second)
            yield _scaled_call(left_operand, right_operand, f"{pair}, {m} x {k} x {w}")
    left_operand, right_operand = cast(n.normal(32, 256), VALUES), cast(n.normal(64, 256), VALUES)
    yield _scaled_call(left_operand, right_operand, "fast accumulation", use_fast_accum=True)
    yield _scaled_call(left_operand, right_operand, "a bias", bias=n.normal(64, size=8.0))
    half, x = n.normal(32, 128), n.normal(48, 128)
    yield _scaled_call(cast(torch.cat((half, half), 1), VALUES), cast(torch.cat((x, -x), 1), VALUES), "cancels")
    wide_operand = n.normal(32, 256)
    wide_operand[5] *= 1000  # the rest of the tensor is denormal in its scale
    yield _scaled_call(cast(wide_operand, VALUES), right_operand, "one large row")
    yield _scaled_call(
        cast(wide_operand, VALUES, rows=True), cast(n.normal(64, 256), VALUES, rows=True), "a scale for each row"
    )
    left_operand, right_operand = cast(n.normal(17, 144), VALUES, rows=True), cast(n.normal(48, 144), VALUES, rows=True)
    yield _scaled_call(left_operand, right_operand, "a scale for each row, 17 x 144 x 48")


def cast(x: Tensor, format: torch.dtype, *, rows: bool = False) -> Cast:
    """[m, k] in 8 bits with what it was divided by: one number, or one a row."""
    top, wide = torch.finfo(format).max, x.float()
    largest = wide.abs().amax(-1, keepdim=True) if rows else wide.abs().amax()
    return (wide / (largest / top)).clamp(-top, top).to(format), largest / top


def _scaled_call(one: Cast, other: Cast, why: str, **options: Any) -> OpCall:
    """[m, k] times [n, k]^T, to bf16."""
    (a, a_scale), (b, b_scale) = one, other
    scales = a_scale, b_scale if b_scale.dim() == 0 else b_scale.t()
    product = call(A._scaled_mm, a, b.t(), *scales, why=why, out_dtype=torch.bfloat16, **options)
    return replace(product, optional=True)


def copies(n: Numbers) -> Iterator[OpCall]:
    """Copies of every layout, also to the device and back."""
    layouts = {
        "contiguous": n.normal(24, 40),
        "strided": n.strided_matrix(24, 40),
        "rows apart": vary_layout(n.normal(13, 37)),
        "one column for all": n.normal(24, 1).expand(24, 17),
        "backwards in four dims": n.normal(3, 5, 4, 7).permute(3, 1, 0, 2),
    }
    for why, x in layouts.items():
        yield call(A.clone, x, why=why)
        yield call(A.clone, x, memory_format=torch.contiguous_format, why=f"{why}, packed")
        yield call(A.copy_, torch.zeros(x.shape, dtype=n.dtype), x, why=why)
        yield call(A._to_copy, x, dtype=torch.float64, why=f"{why}, to fp64")
    yield call(A.copy_, n.strided_matrix(24, 40), n.normal(24, 40), why="into strides")
    yield call(A.copy_, n.normal(24, 40), n.normal(40), why="one row for all")
    other_dtype = torch.bfloat16 if n.dtype == torch.float32 else torch.float32
    yield call(A.copy_, torch.zeros(24, 40, dtype=other_dtype), n.strided_matrix(24, 40), why="casts")


def rearrangements(n: Numbers) -> Iterator[OpCall]:
    """Joined, cut, turned, repeated, masked."""
    x, s = n.normal(16, 40), n.strided_matrix(16, 40)
    for why, parts, dim in (
        ("halves of a rotation", [n.normal(2, 3, 9, 16), n.normal(2, 3, 9, 16)], -1),
        ("tails", [x, n.normal(16, 13), s], 1),
        ("rows", [x, n.normal(3, 40)], 0),
    ):
        yield call(A.cat, parts, dim, why=why)
    yield call(A.stack, [x, s, n.normal(16, 40)], 1, why="strided")
    for why, t in (("contiguous", x), ("strided", s)):
        yield from _shape_changes(n, t, why)
    yield call(A.where.self, n.normal(16, 1) > 0, s, n.normal(40), why="one row and column for all")
    yield call(A.masked_fill.Scalar, x, n.normal(40) > 0, -torch.inf, why="one row for all")
    yield call(A.masked_fill_.Scalar, n.normal(9, 21), n.normal(9, 21) > 0, 0.0)
    for k in (-3, -1, 0, 1, 2):
        yield call(A.tril, n.normal(2, 19, 23), k, why=f"diagonal {k}")
        yield call(A.triu, n.normal(2, 19, 23), k, why=f"diagonal {k}")
    yield call(A.tril, torch.ones(17, 17, dtype=torch.bool), why="a mask")
    yield call(A.repeat, n.normal(3, 7), [2, 1, 3])
    yield call(A.constant_pad_nd, n.normal(5, 9), [2, 3, 0, 1], 0.5)
    yield call(A.slice_backward, n.normal(5, 9), [5, 20], 1, 4, 13, 1)
    yield call(A.select_backward, n.normal(9), [5, 9], 0, 2)
    yield call(A.index_select, s, 1, n.places(50, below=40), why="columns")
    yield call(A.index.Tensor, x, [n.places(33, below=16)], why="rows")
    yield call(A.index.Tensor, x, [n.places(33, below=16), n.places(33, below=40)], why="pairs")
    yield call(A.index.Tensor, x, [n.normal(16) > 0], why="a mask")
    yield call(A.gather, s, 1, n.places(16, 7, below=40), why="strided")
    yield call(A.gather, n.normal(9, 21), 0, n.places(4, 21, below=9), why="along rows")
    yield call(A.flip, x, [1])
    yield call(A.roll, x, [3], [1])


def _shape_changes(n: Numbers, t: Tensor, why: str) -> Iterator[OpCall]:
    """Views, each of which must show the numbers that it names."""
    yield call(A.t, t, why=why)
    yield call(A.transpose.int, t, 0, 1, why=why)
    yield call(A.transpose.int, n.normal(2, 9, 3, 8), 1, 2, why=why)
    yield call(A.permute, n.normal(2, 9, 3, 8), [2, 0, 3, 1], why=why)
    for dim, *cut in ((1, 3, 31), (1, 0, 39, 3), (0, -5, 9223372036854775807)):
        yield call(A.slice.Tensor, t, dim, *cut, why=why)
    yield call(A.select.int, t, 0, 5, why=why)
    yield call(A.select.int, t, 1, -1, why=why)
    yield call(A.expand, n.normal(1, 40), [9, 40], why=why)
    yield call(A.expand, t[:, None], [16, 5, 40], why=why)
    yield call(A.unsqueeze, t, 1, why=why)
    yield call(A.squeeze.dim, t[:, None], 1, why=why)
    yield call(A.view, n.normal(16, 40), [16, 5, 8], why=why)
    yield call(A._unsafe_view, n.normal(16, 40), [2, 8, 4, 10], why=why)
    yield call(A.split.Tensor, t, 13, 1, why=why)
    yield call(A.split_with_sizes, t, [7, 30, 3], 1, why=why)
    yield call(A.unbind.int, t, 0, why=why)
    yield call(A.as_strided, n.normal(16, 40), [5, 7], [40, 2], 11, why=why)
    for op in (A.diagonal, A.detach, A.alias):
        yield call(op, t, why=why)


def factories(n: Numbers) -> Iterator[OpCall]:
    """Numbers that the device makes: positions, constants, random ones."""
    at = {"device": HERE, "dtype": n.dtype}
    x = n.normal(9, 21)
    if n.dtype == torch.float32:
        yield call(A.arange, 5000, device=HERE, why="positions")
        yield call(A.arange.start, 3, 4099, device=HERE, why="positions from three")
        yield call(A.arange.start_step, 0, 128, 2, why="every other", **at)
        yield call(A.tril_indices, 9, 9, device=HERE)
        yield call(A.eye, 17, **at)
        yield call(A.randperm, 500, device=HERE)
        yield call(A.cumsum, n.places(7, 300, below=9), 1, why="integers")
        yield call(A.add.Tensor, n.places(40, below=9), n.places(40, below=9), why="integers")
        yield call(A.sum.dim_IntList, n.places(7, 300, below=9), [1], why="integers")
        yield call(A.bitwise_and.Tensor, x > 0, x < 1, why="masks")
        yield call(A.logical_not, x > 0, why="masks")
        yield call(A.any.dim, x > 1.5, -1, why="masks")
        yield call(A.nonzero, x > 0.5, why="masks")
        yield call(A.one_hot if hasattr(A.one_hot, "default") else A.eq.Scalar, n.places(20, below=9), 9)
    for op in (A.zeros, A.ones):
        yield call(op, [7, 33], **at)
    yield call(A.full, [7, 33], -0.3, **at)
    yield call(A.scalar_tensor, 0.3, **at)
    for op in (A.randn, A.rand):
        yield call(op, [64, 65], **at)
    fills = (A.zeros_like,), (A.ones_like,), (A.full_like, 2.5), (A.randn_like,), (A.rand_like,), (A.zero_,)
    draws = (A.normal_, 1.0, 0.5), (A.uniform_, -1.0, 1.0), (A.bernoulli_.float, 0.3)
    for op, *more in (*fills, (A.fill_.Scalar, 0.1), (A.new_zeros, [3, 5]), (A.new_ones, [3, 5]), *draws):
        yield call(op, n.normal(48, 65), *more)
    yield call(A.native_dropout, n.normal(64, 65), 0.1, True)
    yield call(A.native_dropout_backward, n.normal(64, 65), n.normal(64, 65) > -1, 1 / 0.9)


def casts(n: Numbers) -> Iterator[OpCall]:
    """From one format to another: ties, overflow, denormals, 8 bits, strides."""
    if n.dtype != torch.float32:
        x = n.normal(37, 41, size=40.0)
        for dtype in (torch.float32, torch.float16, torch.int64):
            yield call(A._to_copy, x, dtype=dtype, why=f"to {dtype}".replace("torch.", ""))
        return
    ties = 1 + torch.arange(257) * 2.0**-9
    ends = [1e-40, 3e38, 65520.0, 448.0, 464.0, 1 + 2.0**-8, 1 + 3 * 2.0**-8, torch.inf, -torch.inf, torch.nan]
    ordinary, large = n.normal(4000, size=3.0).float(), n.normal(500, size=150.0).clamp(-440, 440)
    x = torch.cat((ordinary, large, ties, -ties * 4, torch.tensor(ends)))
    narrow = torch.float8_e4m3fn, torch.float8_e5m2, torch.int64, torch.bool
    for dtype in (torch.bfloat16, torch.float16, torch.float32, torch.float64, *narrow):
        values = x.clamp(-448, 448).nan_to_num() if dtype in narrow else x
        yield call(A._to_copy, values, dtype=dtype, why=f"to {dtype}, ties".replace("torch.", ""))
    yield call(A._to_copy, n.strided_matrix(24, 41), dtype=torch.bfloat16, why="strided")
    yield call(A._to_copy, n.places(50, below=5000), dtype=torch.float32, why="integers")


def in_place(n: Numbers) -> Iterator[OpCall]:
    """Arithmetic that writes its argument, also in memory with gaps."""
    layouts = {"ordinary": (33, 40), "strided": (24, 17)}
    for why, shape in layouts.items():

        def fresh(*, size: float = 1.0, shape: tuple[int, int] = shape, strided: bool = why == "strided") -> Tensor:
            x = n.normal(*shape, size=size)
            return x.mT.contiguous().mT if strided else x

        positive = fresh().abs() + 1e-3
        for op in (A.add_.Tensor, A.mul_.Tensor, A.sub_.Tensor):
            yield call(op, fresh(), fresh(), why=why)
        yield call(A.div_.Tensor, fresh(), positive, why=why)
        yield call(A.mul_.Tensor, fresh(), 0.99999, why=f"{why}, decay")
        yield call(A.mul_.Tensor, fresh(), 0.9, why=f"{why}, a constant")
        yield call(A.add_.Tensor, positive.clone(), 1e-8, why=f"{why}, epsilon")
        yield call(A.add_.Tensor, fresh(), fresh(), alpha=-0.01, why=f"{why}, scaled")
        for lerp in (A.lerp_.Scalar, A.lerp.Scalar):
            yield call(lerp, fresh(), fresh(), 0.1, why=f"{why}, momentum", phase="optimizer")
        for mul in (A.addcmul_, A.addcmul):
            args = positive.clone(), (g := fresh()), g
            yield call(mul, *args, value=0.001, why=f"{why}, second moment", phase="optimizer")
        for div in (A.addcdiv_, A.addcdiv):
            args = fresh(size=0.02), fresh(), positive.clone()
            yield call(div, *args, value=-1e-3, why=f"{why}, update", phase="optimizer")
        yield call(A.sqrt_, positive.clone(), why=why)
        yield call(A.sqrt, fresh(size=1e-4).square(), why=f"{why}, small squares")
        yield call(A.clamp_, fresh(), -0.5, 0.5, why=why)
        yield call(A.neg_, fresh(), why=why)


def lists(n: Numbers) -> Iterator[OpCall]:
    """The optimizer's ops on lists of tensors."""

    def many(size: float = 1.0) -> list[Tensor]:
        return [n.normal(*shape, size=size) for shape in ((17, 24), (17, 24), (9,), (3, 5, 7))]

    positive = [x.abs() + 1e-3 for x in many()]
    for op, *args in (
        (A._foreach_mul_.Scalar, many(), 0.99999),
        (A._foreach_mul_.Scalar, many(), 0.9),
        (A._foreach_add_.List, many(), many()),
        (A._foreach_add_.Scalar, positive, 1e-8),
        (A._foreach_lerp_.Scalar, many(), many(), 0.1),
        (A._foreach_sqrt, positive),
        (A._foreach_addcmul_.Scalar, positive, g := many(), g, 0.001),
        (A._foreach_div_.ScalarList, many(), [0.5, 0.9, 0.7, 3.0]),
        (A._foreach_addcdiv_.Scalar, many(0.02), many(), positive, -1e-3),
        (A._foreach_mul.Scalar, many(), 1.7),
        (A._foreach_addcdiv_.ScalarList, many(0.02), many(), positive, [-1e-3, -1e-3, -2e-3, -1e-2]),
        (A._foreach_norm.Scalar, many(), 2),
        (A._foreach_mul_.Tensor, many(), torch.tensor(0.3)),
        (A._foreach_div_.List, many(), positive),
        (A._foreach_sub_.List, many(), many()),
        (A._foreach_neg, many()),
        (A._foreach_reciprocal_, positive),
        (A._foreach_zero_, many()),
        (A._foreach_copy_, many(), many()),
    ):
        yield call(op, *args, why="a list", phase="optimizer")


def fused_optimizers(n: Numbers) -> Iterator[OpCall]:
    """AdamW in one op, at its first step and later."""
    for why, step, decay in (("first step", 0.0, 0.01), ("later", 7.0, 0.1)):
        shapes = (17, 24), (9,), (3, 5, 7)
        params, gradients, moments = ([n.normal(*s, size=z) for s in shapes] for z in (0.02, 1.0, 0.3))
        squares = [n.normal(*s, size=0.3).square() for s in shapes]
        steps = [torch.tensor(step + 1.0) for _ in shapes]
        rates = {"lr": 1e-3, "beta1": 0.9, "beta2": 0.95, "weight_decay": decay, "eps": 1e-8}
        options = {**rates, "amsgrad": False, "maximize": False}
        for op in (A._fused_adamw_, A._fused_adam_):
            fresh = [[x.clone() for x in part] for part in (params, gradients, moments, squares)]
            yield call(op, *fresh, [], steps, why=why, phase="optimizer", **options)
