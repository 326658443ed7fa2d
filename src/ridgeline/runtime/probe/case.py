"""What is measured, in which order: a case is a kernel to time; a coarse grid over all groups first, then finer ones.

    tier 0   every group and format once or twice: a profile of a minute
    tier 1   the grid that prices are interpolated in
    tier 2   shapes between its points, drawn log-uniformly, and other layouts and formats
    tier 3   what is rarely asked, or slow to prepare

Inside a tier the groups take turns, each at a pace that ends them together, so that a time box that ends early has cut
all of them alike.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from ridgeline.core.documents import JsonObject
from ridgeline.ir.kernel import Kernel

SCORE_BYTES = 12  # that attention without a fused kernel holds for a query and a key
LOSS_BUFFERS = 6.0  # times its operands that a cross entropy holds


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelCase:
    """One measurement to take.

    kernel        what runs
    group, tier   what `--only` names; lower tiers are taken first
    limit_s       seconds after which the process that runs it is given up
    """

    kernel: Kernel
    group: str
    tier: int = 0
    limit_s: float = 60.0

    def __getitem__(self, name: str) -> Any:
        return self.kernel.dims[name] if name in self.kernel.dims else self.kernel.words[name]

    def identity(self) -> JsonObject:
        kernel = self.kernel
        return {"op": kernel.op, "impl": kernel.impl, "dtype": kernel.dtype, **kernel.dims, **kernel.words}

    def key(self) -> str:
        """The identity as text, the same for equal cases."""
        return json.dumps(self.identity(), sort_keys=True)

    def message(self) -> JsonObject:
        """The case as plain values, which another process turns back with `read_case`."""
        return {"identity": self.identity(), "group": self.group, "tier": self.tier, "limit_s": self.limit_s}


def make_case(
    *,
    op: str,
    impl: str,
    dtype: str,
    dims: Iterable[tuple[str, int | str]],
    group: str,
    tier: int = 0,
    limit_s: float = 60.0,
) -> KernelCase:
    """A case from its sizes and words in the order they are written."""
    dims_by_name = dict(dims)
    words = {name: value for name, value in dims_by_name.items() if isinstance(value, str)}
    sizes = {name: value for name, value in dims_by_name.items() if not isinstance(value, str)}
    kernel = Kernel(op=op, impl=impl, dtype=dtype, dims=sizes, words=words)
    return KernelCase(kernel=kernel, group=group, tier=tier, limit_s=limit_s)


def read_case(message: JsonObject) -> KernelCase:
    op, impl, dtype, *dims = message["identity"].items()
    options = {name: message[name] for name in ("group", "tier", "limit_s")}
    return make_case(op=op[1], impl=impl[1], dtype=dtype[1], dims=dims, **options)


def buffer_bytes_of(case: KernelCase) -> float:
    """Memory a case holds while it runs, references of its check not counted."""
    kernel = case.kernel
    if kernel.impl == "math" and kernel.op.startswith("attention"):
        scores = case["batch"] * case["heads"] * case["query"] * case["key"]
        return float(SCORE_BYTES * scores) + kernel.bytes
    return kernel.bytes * (LOSS_BUFFERS if kernel.op == "cross_entropy" else 1.0)


KINDS = ("kernel", "matmul", "linear", "copy", "view", "empty", "autograd", "event", "sync", "roundtrip", "eager")
MOST_SETS = 48


def _device_case(op: str, group: str, tier: int, impl: str = "torch", dtype: str = "", **dims: int | str) -> KernelCase:
    return make_case(op=op, impl=impl, dtype=dtype, dims=tuple(dims.items()), group=group, tier=tier)


def _memory(cache_bytes: int) -> Iterator[KernelCase]:
    large, sizes = 1 << 30, [1 << power for power in range(16, 34)]
    for op in ("copy", "read", "write"):
        yield _device_case(op, "memory", 0, dtype="fp32", bytes=large, cold=True)
        yield _device_case(op, "memory", 0, dtype="fp32", bytes=1 << 20, cold=False)
    for op, is_pinned in product(("h2d", "d2h"), (True, False)):
        yield _device_case(op, "memory", 0, bytes=1 << 26, pinned=is_pinned)
        for power in (16, 20, 22, 24, 28, 30, 12):
            yield _device_case(op, "memory", 1 if power in (16, 20, 28) else 2, bytes=1 << power, pinned=is_pinned)
    for size, op in product(sizes, ("copy", "read", "write")):
        tier = 1 if size.bit_length() % 2 else 2
        per_set = size * (2 if op == "copy" else 1)
        if per_set <= 2 * cache_bytes:
            yield _device_case(op, "memory", tier, dtype="fp32", bytes=size, cold=False)
        if per_set * MOST_SETS >= 2 * cache_bytes:
            yield _device_case(op, "memory", tier, dtype="fp32", bytes=size, cold=True)


def _host() -> Iterator[KernelCase]:
    for kind in KINDS:
        yield _device_case("launch", "host", 0, kind=kind)
    for kind in ("node", "launch"):
        yield _device_case("graph", "host", 0, kind=kind)


def _overlap() -> Iterator[KernelCase]:
    for at, ((m, n, k), partner) in enumerate(
        product(((8192, 8192, 8192), (2048, 8192, 8192)), ("copy", "h2d", "d2h"))
    ):
        size = 1 << 28 if partner == "copy" else 1 << 26
        yield _device_case(
            "overlap", "overlap", 1 if at < 3 else 2, dtype="bf16", m=m, n=n, k=k, beside=partner, bytes=size
        )
    yield _device_case("overlap", "overlap", 2, dtype="bf16", m=64, n=8192, k=8192, beside="copy", bytes=1 << 28)


def _sustained_cases() -> Iterator[KernelCase]:
    big = {"m": 8192, "n": 8192, "k": 8192}
    for impl in ("burst", "steady"):
        yield _device_case("sustained", "sustained", 1, impl, "bf16", **big)
        yield _device_case("sustained", "sustained", 1, impl, "fp32", bytes=1 << 32)
    for dtype in ("fp8", "fp16", "tf32", "fp32"):
        yield _device_case("sustained", "sustained", 2, "steady", dtype, **big)
    yield _device_case("sustained", "sustained", 2, "burst", "fp8", **big)
    yield _device_case("sustained", "sustained", 2, "steady", "bf16", m=4096, n=4096, k=4096)
    yield _device_case("sustained", "sustained", 2, "steady", "bf16", m=16384, n=16384, k=8192)
    small = {"m": 1024, "n": 1024, "k": 1024}
    for impl, dtype in product(("burst", "steady"), ("fp32", "bf16")):
        yield _device_case("sustained", "sustained", 3, impl, dtype, **small)


COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast")
SIZES = (1 << 20, 1 << 26, 1 << 13, 1 << 23, 1 << 28, 1 << 16, 1 << 10, 1 << 18, 1 << 30)


def link_cases(ranks: int, nodes: int, backend: str) -> list[KernelCase]:
    """Payloads in bytes as nccl-tests counts them: of the whole tensor that is reduced, gathered or exchanged."""
    cases = []
    for at, (size, op) in enumerate(product(SIZES, ("send_recv", *COLLECTIVES))):
        tier = 0 if at < 12 else 1
        if op == "send_recv":
            spans = [count for count in (1, 2) if (count == 1 and ranks > nodes) or (count == 2 and nodes > 1)]
            cases += [_link_case(op, tier, bytes=size, ranks=2, nodes=span, backend=backend) for span in spans]
        else:
            cases.append(_link_case(op, tier, bytes=size, ranks=ranks, nodes=nodes, backend=backend))
    for partner in COLLECTIVES[:4]:
        dims: JsonObject = {"m": 4096, "n": 8192, "k": 8192, "beside": partner, "bytes": 1 << 28, "ranks": ranks}
        dims |= {"nodes": nodes, "backend": backend}
        cases.append(_link_case("overlap", 2, "bf16", **dims))
    return cases


def _link_case(op: str, tier: int, dtype: str = "bf16", **dims: int | str) -> KernelCase:
    return make_case(op=op, impl="torch", dtype=dtype, dims=tuple(dims.items()), group="interconnect", tier=tier)


GROUPS = ("gemm", "grouped", "attention", "rows", "optimizer", "memory", "host", "overlap", "sustained", "interconnect")
MOST_FLOPS = 1.2e13  # of a product: beyond, nothing new is learnt
SEED = 20251115
IMPLS = {"fp8": "scaled_mm", "int8": "int_mm"}
COMPILE_LIMIT_S = 180.0


def cases(cache_bytes: int, only: Sequence[str] = (), kind: str = "") -> list[KernelCase]:
    """Every case in the order in which they are taken; `only` keeps some groups, `kind` is the type of the device."""
    grid = list(_host_gemms()) if kind == "cpu" else []
    grid += [case for case in _gemms() if case.kernel.flops <= MOST_FLOPS]
    grid += [*_grouped_gemms(), *_attention(), *_decode(), *_rows(), *_optimizer()]
    grid += [*_memory(cache_bytes), *_host(), *_overlap(), *_sustained_cases()]
    case_by_key: dict[str, KernelCase] = {}
    for case in grid:
        late = kind == "cpu" and case.kernel.impl == "compiled"  # half a minute each
        if not only or case.group in only:
            case_by_key.setdefault(case.key(), replace(case, tier=3) if late else case)
    return _in_turns(case_by_key.values())


def _host_gemms() -> Iterator[KernelCase]:
    """Products that a CPU finishes in milliseconds, in the formats it is used with."""
    for side, m, dtype in product((512, 1024, 2048), (1, 16, 64, 256, 1024), ("fp32", "bf16")):
        yield _gemm(dtype, m, side, side, 0 if m in (1, 256) else 1)
    for (n, k), m, dtype in product(((4096, 1024), (1024, 4096), (8192, 2048)), (1, 32, 128, 512), ("fp32", "bf16")):
        yield _gemm(dtype, m, n, k, 1)


def _in_turns(made: Iterable[KernelCase]) -> list[KernelCase]:
    """Tiers one after the other; inside one, every group at its own pace."""
    of_group: dict[tuple[int, str], list[KernelCase]] = {}
    for case in made:
        of_group.setdefault((case.tier, case.group), []).append(case)
    ordered_cases = []
    for (tier, group), group_cases in of_group.items():
        order = GROUPS.index(group)
        ordered_cases += [(tier, (at + 0.5) / len(group_cases), order, case) for at, case in enumerate(group_cases)]
    return [case for *_, case in sorted(ordered_cases, key=lambda one: one[:3])]


def _gemm(dtype: str, m: int, n: int, k: int, tier: int, impl: str = "", **state: bool) -> KernelCase:
    dims = (("m", m), ("n", n), ("k", k), *state.items())
    return make_case(op="gemm", impl=impl or IMPLS.get(dtype, "torch"), dtype=dtype, dims=dims, group="gemm", tier=tier)


def _gemms() -> Iterator[KernelCase]:
    weights = ((4096, 4096), (2048, 2048), (8192, 8192), (14336, 4096), (4096, 14336), (28672, 8192), (8192, 28672))
    for (n, k), m in product(weights, (4096, 16, 256, 1024, 1, 16384, 64)):
        yield _gemm("bf16", m, n, k, 0)
    for dtype in ("fp32", "fp16", "tf32", "fp8", "int8"):
        yield from (_gemm(dtype, m, n, n, 0) for n, m in ((1024, 1024), (4096, 4096), (8192, 8192)))
    for m, n, k in ((4096, 4095, 4096), (4096, 4096, 4095), (4095, 4096, 4096), (4096, 4100, 4100)):
        yield _gemm("bf16", m, n, k, 0)
    sides = (1024, 2048, 4096, 8192, 16384, 28672)
    for m in (8192, 128, 2048, 512, 4096, 256, 1024, 64, 16384, 1, 16):
        yield from (_gemm("bf16", m, n, k, 1) for n, k in product(sides, sides))
    yield from (_gemm("fp8", m, n, k, 1) for m, n, k in product((128, 4096, 1024, 16384, 32), sides[1:5], sides[1:5]))
    yield from _vocabulary()
    yield from _from_cache()
    draw = random.Random(SEED)
    for at in range(420):
        m, n, k = _drawn(draw)
        yield _gemm("bf16", m, n, k, 2)
        if at % 3 == 0:
            yield _gemm("bf16", max(64, m), n, k, 2, "torch_nn" if at % 2 else "torch_nt")
        if at % 4 == 0:
            yield _gemm("fp8", -(-m // 16) * 16, n, k, 2)
        if at % 8 == 0:
            yield _gemm("fp32", m, n, k, 2)
            yield _gemm("fp16", m, n, k, 2)
            yield _gemm("int8", max(32, m), n, k, 2)
            yield _gemm("bf16", m, n + draw.choice((1, 2, 4, 24)), k + draw.choice((0, 2, 8)), 2)
        if at % 8 == 4:
            yield _gemm("tf32", m, n, k, 2)
    for dtype, sizes in (("fp16", (4096, 64)), ("tf32", (4096, 128))):
        yield from (_gemm(dtype, m, n, k, 3) for m, n, k in product(sizes, sides[1:5], sides[1:5]))
    for _ in range(600):
        yield _gemm("bf16", *_drawn(draw), 3)


def _drawn(draw: random.Random) -> tuple[int, int, int]:
    """A product a transformer may have: sides in multiples of 64, mostly of 128; rows of any batch."""
    n, k = (_multiple(2 ** draw.uniform(9, 15), draw.choice((64, 128, 128, 256))) for _ in range(2))
    rows = 2 ** draw.uniform(0, 14.2)
    return (max(1, round(rows)) if rows < 64 else _multiple(rows, draw.choice((8, 64, 128)))), n, k


def _multiple(value: float, of: int) -> int:
    return max(of, round(value / of) * of)


def _from_cache() -> Iterator[KernelCase]:
    """Products small enough to stay in a cache of tens of megabytes, on the same buffers again and again."""
    weights = [(2048, 2048), (4096, 4096), (2048, 8192), (7168, 2048)]
    weights += [(1024, 4096), (2048, 7168), (5120, 5120), (1024, 1024)]
    for (n, k), m in product(weights, (64, 256, 1, 128, 1024, 16, 512, 2048)):
        yield _gemm("bf16", m, n, k, 1, cold=False)
        if m in (128, 1024):
            yield _gemm("fp8", m, n, 2 * k, 1, cold=False)


def _vocabulary() -> Iterator[KernelCase]:
    """Products of the head: forward, and the gradient that sums over the words."""
    for n, k in ((128256, 4096), (32000, 4096), (152064, 8192), (50304, 2048), (129280, 7168), (50257, 1024)):
        for m in (4096, 64, 1024, 8192, 1):
            yield _gemm("bf16", m, n, k, 1)
        yield _gemm("bf16", 4096, k, n, 2, "torch_nn")
        yield _gemm("bf16", n, k, 4096, 2, "torch_nt")


def _grouped_gemms() -> Iterator[KernelCase]:
    experts = [(8, 14336, 4096), (32, 2048, 7168), (32, 7168, 2048)]
    experts += [(16, 1536, 2048), (64, 1408, 2048), (8, 4096, 14336)]
    for at, (groups, n, k) in enumerate(experts):
        for m, impl in product((512, 64, 2048, 128, 8, 1024, 256, 16, 4096), ("grouped_mm", "loop")):
            if 2.0 * groups * m * n * k <= MOST_FLOPS and (impl == "grouped_mm" or m in (64, 512, 2048)):
                tier = 0 if at < 2 and m in (512, 64) else 1 if m in (64, 128, 512, 2048) else 2
                dims = (("groups", groups), ("m", m), ("n", n), ("k", k))
                yield make_case(op="grouped_gemm", impl=impl, dtype="bf16", dims=dims, group="grouped", tier=tier)


def _attend(
    op: str, impl: str, batch: int, layout: Sequence[int], query: int, key: int, causal: bool, tier: int
) -> KernelCase:
    heads, kv_heads, head_dim = layout
    dims = (("batch", batch), ("heads", heads), ("kv_heads", kv_heads), ("query", query), ("key", key),
            ("head_dim", head_dim), ("causal", causal))  # fmt: skip
    limit = COMPILE_LIMIT_S if impl == "flex" else 60.0
    return make_case(op=op, impl=impl, dtype="bf16", dims=dims, group="attention", tier=tier, limit_s=limit)


LAYOUTS = ((32, 8, 128), (32, 32, 128), (64, 8, 128), (16, 16, 64), (16, 16, 256), (24, 24, 192), (64, 8, 64))
"""Heads, key-value heads, head dim."""


def _attention() -> Iterator[KernelCase]:
    directions = ("attention_forward", "attention_backward")
    for op, impl in product(directions, ("cudnn", "flash", "efficient", "math")):
        yield from (_attend(op, impl, 1, (8, 8, 64), seq, seq, True, 0) for seq in (512, 1024))
    for op, impl, seq in product(directions, ("cudnn", "flash"), (4096, 1024)):
        yield _attend(op, impl, 8192 // seq, LAYOUTS[0], seq, seq, True, 0)
    for seq, layout, op, impl in product(
        (2048, 8192, 512, 4096, 16384, 1024, 32768), LAYOUTS, directions, ("cudnn", "flash")
    ):
        late = layout in LAYOUTS[5:] or (seq == 32768 and op == directions[1])
        yield _attend(op, impl, max(1, 8192 // seq), layout, seq, seq, True, 2 if late else 1)
    for seq, layout, op in product((1024, 4096, 16384), (LAYOUTS[1], LAYOUTS[3]), directions):
        yield _attend(op, "efficient", max(1, 8192 // seq), layout, seq, seq, True, 1)
        yield from (_attend(op, impl, max(1, 8192 // seq), layout, seq, seq, False, 2) for impl in ("cudnn", "flash"))
    for seq, op, impl in product((2048, 4096, 512), directions, ("cudnn", "flash")):
        yield _attend(op, impl, 1, LAYOUTS[0], seq, seq, True, 2)
        yield _attend(op, impl, 4, LAYOUTS[0], seq, seq, True, 2)
        yield _attend(op, impl, 32768 // seq, LAYOUTS[0], seq, seq, True, 2)
        yield _attend(op, impl, 2, (8, 1, 128), seq, seq, True, 2)
    for seq, layout, op in product((4096, 1024, 16384), LAYOUTS[:3], directions):
        for impl in ("cudnn_bhsd", "flash_bhsd"):
            yield _attend(op, impl, max(1, 8192 // seq), layout, seq, seq, True, 1)
    for seq, op in product((1024, 2048), directions):
        yield _attend(op, "math", 4, LAYOUTS[1], seq, seq, True, 2)
    for seq, op in product((2048, 8192), directions):
        yield _attend(op, "flex", 8192 // seq, LAYOUTS[0], seq, seq, True, 3)


def _decode() -> Iterator[KernelCase]:
    op = "attention_decode"
    for impl in ("cudnn", "flash", "math"):
        yield _attend(op, impl, 32, LAYOUTS[0], 1, 2048, False, 0)
    keys, batches = (4096, 1024, 16384, 2048, 65536), (64, 8, 1, 128, 32, 256)
    for key, batch, layout, impl in product(keys, batches, LAYOUTS[:4], ("cudnn", "flash")):
        if batch * key * layout[1] * layout[2] * 4 <= 12e9:
            yield _attend(op, impl, batch, layout, 1, key, False, 1 if batch in (64, 8) else 2)


def _row(op: str, impl: str, rows: int, columns: int, tier: int, dtype: str = "bf16") -> KernelCase:
    dims = (("rows", rows), ("columns", columns))
    limit = COMPILE_LIMIT_S if impl == "compiled" else 60.0
    return make_case(op=op, impl=impl, dtype=dtype, dims=dims, group="rows", tier=tier, limit_s=limit)


def _rows() -> Iterator[KernelCase]:
    plain = ("rmsnorm", "add_rmsnorm", "swiglu", "rope", "layernorm", "softmax", "add", "embedding")
    for op in plain:
        yield _row(op, "torch", 4096, 4096, 0)
    yield _row("cross_entropy", "torch", 1024, 32000, 0)
    for op in ("rmsnorm", "swiglu"):
        yield _row(op, "compiled", 4096, 4096, 1)
    for (rows, columns), op in product(((512, 4096), (16384, 4096), (8192, 2048), (8192, 8192), (64, 8192)), plain):
        yield _row(op, "torch", rows, columns, 1)
    for op, (rows, columns) in product(plain[:6], ((8192, 8192), (512, 4096), (16384, 2048), (32, 4096))):
        yield _row(op, "compiled", rows, columns, 2)
    for rows, columns in product((512, 4096), (128256, 50304)):
        yield _row("cross_entropy", "torch", rows, columns, 1)
        yield _row("cross_entropy", "compiled", rows, columns, 2)
    for (rows, columns), op in product(((2048, 16384), (32768, 8192), (1024, 1024), (8, 4096), (2048, 5120)), plain):
        yield _row(op, "torch", rows, columns, 2)
        yield _row(op, "torch", rows, columns, 3, "fp32")
    for op in ("rmsnorm", "swiglu", "add_rmsnorm"):
        yield from (
            _row(op, "compiled", rows, columns, 3) for rows, columns in ((2048, 16384), (32768, 4096), (8, 8192))
        )


def _optimizer() -> Iterator[KernelCase]:
    sizes = (1 << 22, 1 << 26, 1 << 29, 1 << 24, 1 << 30)
    for at, parameters in enumerate(sizes):
        for impl, dtype in (("fused", "fp32"), ("foreach", "fp32"), ("fused", "bf16")):
            dims = (("parameters", parameters),)
            tier = 0 if at == 0 and dtype == "fp32" else 1 if impl == "fused" else 2
            yield make_case(op="adamw", impl=impl, dtype=dtype, dims=dims, group="optimizer", tier=tier)
