"""A kernel: which op one call runs, in which number format, on which sizes. The one home of its flops and bytes.

    product            2 m n k groups                       both operands and the result once
    rows of experts    2 rows n k                           rows of all experts, which are sorted by expert
    attention          2 B H Sq Sk (D + Dv)                 queries, keys, values and outputs once; a backward twice
                       half of it when causal; 2.5 times that backward, 3.5 for both passes
    decode             as attention, of one query           keys and values once
    rows               none counted                         passes over rows x columns elements
    optimizer          none counted                         weights, gradients and moments
    copies             none counted                         what is read and what is written

B batch, H heads, S sequence, D width of a key, Dv of a value. `probe` measures kernels, `trace` and `bringup` recognise
them in ops with operands, `capture` and lowering count them, `calibrate` reads published ones, `cost` prices them.
Sizes are numbers, or arrays over kernels of one op. Only the standard library is needed, because the probe runs alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from types import MappingProxyType
from typing import TYPE_CHECKING, TypeVar

from ridgeline.core.dtype import element_bytes

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Size = TypeVar("Size", float, NDArray[np.float64], float | NDArray[np.float64])

FLASH_BACKWARD = 2.5  # products of a flash backward against its forward: five for two, one the recomputed scores
ADAM_PASSES = 7.0  # weight, gradient and both moments read; weight and moments written
LATENT_ROPE = 64  # of a latent head's width, what values lack
LEAST_OUTPUT = 2.0  # bytes of an element that a product writes at least, however narrow its operands are
_ATTENTION_OPS = ("attention_forward", "attention_backward", "attention_decode")
_ROW_OPS = ("rmsnorm", "layernorm", "add_rmsnorm", "swiglu", "rope", "softmax", "cross_entropy", "embedding", "add")
OPS = (
    *("gemm", "grouped_gemm", *_ATTENTION_OPS, *_ROW_OPS),
    *("adamw", "copy", "read", "write", "h2d", "d2h", "launch", "graph"),
    *("send_recv", "all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "overlap", "sustained"),
)
"""Ops of profiles, in the order their rows are written."""
DIMS = (
    *("groups", "m", "n", "k", "batch", "heads", "kv_heads", "query", "key", "head_dim", "causal"),
    *("rows", "columns", "parameters", "bytes", "ranks", "nodes", "pinned"),
)
"""Names of the sizes in a profile, in the order they are written."""
_ATTENTION_SIZES = ("batch", "heads", "kv_heads", "query", "key", "head_dim")
NECESSARY_DIMS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {"gemm": ("m", "n", "k"), "grouped_gemm": ("groups", "m", "n", "k"), "overlap": ("m", "n", "k", "bytes")}
    | {"adamw": ("parameters",)}
    | dict.fromkeys(_ATTENTION_OPS, _ATTENTION_SIZES)
    | dict.fromkeys(_ROW_OPS, ("rows", "columns"))
    | dict.fromkeys(("copy", "read", "write", "h2d", "d2h"), ("bytes",))
    | dict.fromkeys(("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast"), ("bytes", "ranks"))
)
"""Sizes without which a measured op says nothing."""
WORDS = ("kind", "backend", "beside")
"""What a profile says of a kernel in words: kind of call, backend of a collective, what ran at the same time."""
ATTENTION_PASSES: Mapping[str, float] = MappingProxyType(
    {
        "attention_forward": 1.0, "attention_backward": FLASH_BACKWARD, "attention_both": 1.0 + FLASH_BACKWARD,
        "attention_decode": 1.0, "attention_latent": 1.0,
    }
)  # fmt: skip
"""Flops of an op of attention against those of a forward."""
ROW_PASSES: Mapping[str, float] = MappingProxyType(
    {
        "rmsnorm": 2.0, "layernorm": 2.0, "add_rmsnorm": 4.0, "swiglu": 3.0, "rope": 2.0, "softmax": 2.0,
        "cross_entropy": 1.0, "embedding": 2.0, "add": 3.0,
    }
)  # fmt: skip
"""Passes over rows x columns elements: read and written."""
PRODUCTS = ("gemm", "grouped_gemm")
FLASH_PASSES: Mapping[str, tuple[bool, ...]] = MappingProxyType(
    {"attention_forward": (False,), "attention_backward": (True,), "attention_both": (False, True)}
)
"""Ops of flash kernels, and whether each of their passes is a backward one."""
COPY_PASSES: Mapping[str, float] = MappingProxyType({"copy": 2.0, "read": 1.0, "write": 1.0})
PRODUCT_OPERANDS: Mapping[str, tuple[int, int]] = MappingProxyType(
    {
        "mm": (0, 1), "bmm": (0, 1), "matmul": (0, 1), "addmm": (1, 2), "addmm_": (1, 2), "_addmm_activation": (1, 2),
        "baddbmm": (1, 2), "_scaled_mm": (0, 1), "_int_mm": (0, 1),
    }
)  # fmt: skip
"""Which arguments of a product of ATen are its operands."""
_NO_WORDS: Mapping[str, str] = MappingProxyType({})


def product_flops(m: Size, n: Size, k: Size, groups: Size | float = 1) -> Size:
    """Flops of `groups` products of (m x k) by (k x n): two for each multiply-add."""
    return 2 * m * n * k * groups


def product_bytes(
    sides: tuple[Size, Size, Size],
    groups: Size | float,
    in_bytes: Size | float,
    out_bytes: Size | float,
    weight_bytes: Size | float = 1.0,
) -> Size:
    """Bytes of `groups` products with both operands read and the result written once.

        ((m k + k n w) a + m n o) groups        a, o = bytes of an element of the first operand and of the result

    weight_bytes   w: bytes of an element of the second operand, in those of the first
    """
    m, n, k = sides
    return ((m * k + k * n * weight_bytes) * in_bytes + m * n * out_bytes) * groups


def kernel_flops(op: str, dims: Mapping[str, Size]) -> Size:
    """Flops of a product or of attention, as publications count them."""
    if "flops" in dims:
        return dims["flops"]
    if "m" in dims:
        return product_flops(dims["m"], dims["n"], dims["k"], dims.get("groups", 1))
    if "n" in dims:
        return product_flops(dims["rows"], dims["n"], dims["k"])
    width = dims["head_dim"]
    values = dims.get("value_dim", width - LATENT_ROPE if op == "attention_latent" else width)
    visible = 1.0 - 0.5 * dims.get("causal", 0)
    return 2 * _pairs(dims) * (width + values) * visible * ATTENTION_PASSES[op]


def _pairs(dims: Mapping[str, Size]) -> Size:
    """Query-key pairs of all heads and sequences, masked ones among them."""
    if "pairs" in dims:
        return dims["pairs"]
    return dims.get("batch", 1) * dims["heads"] * dims["query"] * dims["key"]


def kernel_bytes(op: str, dims: Mapping[str, Size], element: float) -> Size:
    """Bytes a kernel must move, each operand read once and each result written once; elements of `element` bytes."""
    if "m" in dims:
        sides = dims["m"], dims["n"], dims["k"]
        return product_bytes(sides, dims.get("groups", 1), element, max(element, LEAST_OUTPUT))
    if op in ("attention_decode", "attention_latent"):
        cache_bytes = 2 * dims["batch"] * dims["kv_heads"] * dims["key"] * dims["head_dim"] * element
        return cache_bytes / 2 if op == "attention_latent" else cache_bytes  # latent keys and values are one
    if op in ATTENTION_PASSES:
        tokens = 2 * dims["heads"] * dims["query"] + 2 * dims["kv_heads"] * dims["key"]
        once = dims["batch"] * dims["head_dim"] * tokens * element
        return once * 2 if op == "attention_backward" else once
    if "rows" in dims:
        return ROW_PASSES.get(op, 2.0) * dims["rows"] * dims["columns"] * element
    if "parameters" in dims:
        return ADAM_PASSES * dims["parameters"] * element
    return COPY_PASSES.get(op, 1.0) * dims["bytes"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """One kernel, copy or collective.

    op       what runs: one of `OPS` where it was measured, else what an op with operands was recognised as
    dtype    the format it computes in
    dims     sizes by name, whole numbers (`causal` and `pinned` are 0 or 1); `flops` where only those are known
    impl     whose kernel it is: a library, or a way of calling it
    words    what else tells it from others: kind of call, backend of a collective, what runs at the same time
    moved    bytes it moves where its operands say, such as products of two formats; None: by its sizes and format
    """

    op: str
    dtype: str = ""
    dims: Mapping[str, float]
    impl: str = ""
    words: Mapping[str, str] = field(default_factory=lambda: _NO_WORDS)
    moved: float | None = None

    def __hash__(self) -> int:
        return hash((self.op, self.dtype, tuple(self.dims.items()), self.impl, tuple(self.words.items()), self.moved))

    @property
    def flops(self) -> float:
        """Flops of one call, as publications count them; 0 where the matrix unit has nothing to do.

        >>> Kernel(op="gemm", dtype="bf16", dims={"m": 128, "n": 32, "k": 64}).flops
        524288
        >>> square = {"batch": 1, "heads": 8, "kv_heads": 8, "query": 512, "key": 512, "head_dim": 64, "causal": 1}
        >>> Kernel(op="attention_forward", dtype="bf16", dims=square).flops == 4 * 8 * 512**2 * 64 / 2
        True
        """
        has_formula = self.op in ATTENTION_PASSES or not {"flops", "n"}.isdisjoint(self.dims)
        return kernel_flops(self.op, self.dims) if has_formula else 0.0

    @property
    def bytes(self) -> float:
        """Bytes one call must move.

        >>> Kernel(op="gemm", dtype="bf16", dims={"m": 128, "n": 32, "k": 64}).bytes
        28672.0
        >>> Kernel(op="rmsnorm", dtype="bf16", dims={"rows": 8, "columns": 256}).bytes
        8192.0
        """
        if self.moved is not None:
            return self.moved
        return kernel_bytes(self.op, self.dims, element_bytes(self.dtype)) if self.dims else 0.0

    @property
    def elements(self) -> float:
        """The product of its sizes, by which kernels of one op are ordered."""
        return prod(self.dims.values())

    def roof(self, flops_per_s: float | None, bytes_per_s: float | None) -> tuple[float, str] | None:
        """Seconds at these rates, compute and memory side by side, and which of the two bounds it.

        None where the kernel has flops and their rate is unknown, or where no rate is known.

        >>> Kernel(op="copy", dims={"bytes": 4e9}).roof(None, 4e12)
        (0.002, 'memory')
        """
        flops = self.flops
        if (flops and not flops_per_s) or not (flops or bytes_per_s):
            return None
        compute = flops / flops_per_s if flops_per_s else 0.0
        memory = self.bytes / bytes_per_s if bytes_per_s else 0.0
        return (compute, "compute") if compute > memory else (memory, "memory")

    def __str__(self) -> str:
        """
        >>> str(Kernel(op="gemm", impl="torch", dtype="bf16", dims={"m": 128, "n": 32, "k": 64}))
        'gemm torch bf16 m=128 n=32 k=64'
        """
        sizes = [f"{key}={self.dims[key]}" for key in DIMS if key in self.dims]
        words = [f"{key}={self.words[key]}" for key in WORDS if key in self.words]
        return " ".join(part for part in (self.op, self.impl, self.dtype, *sizes, *words) if part)


def product_kernel(left: Sequence[int], right: Sequence[int], dtype: str, moved: float) -> Kernel | None:
    """The product of [.., m, k] by [.., k, n]; None where the shapes do not fit."""
    if len(left) < 2 or len(right) < 2 or right[-2] != left[-1]:
        return None
    *batch, m, k = left
    return Kernel(op="gemm", dtype=dtype, dims={"groups": prod(batch), "m": m, "n": right[-1], "k": k}, moved=moved)


def attention_kernel(
    batch_heads: int, lengths: tuple[int, int], widths: tuple[int, int], dtype: str, *, causal: bool, backward: bool,
    moved: float,
) -> Kernel:  # fmt: skip
    """Attention of all heads of all sequences: lengths of queries and keys, widths of a key and of a value."""
    dims = {"heads": batch_heads, "query": lengths[0], "key": lengths[1], "head_dim": widths[0], "value_dim": widths[1]}
    op = "attention_backward" if backward else "attention_forward"
    return Kernel(op=op, dtype=dtype, dims={**dims, "causal": int(causal)}, moved=moved)


def stream_kernel(moved: float, dtype: str = "") -> Kernel:
    """Work bound by memory traffic, known by its bytes alone."""
    return Kernel(op="stream", dtype=dtype, dims={}, moved=moved)
