"""Cases of the machine around the kernels: memory by size, the host, overlap, and sustained work."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

from ridgeline.runtime.probe.case import Case, make_case

KINDS = ("kernel", "matmul", "linear", "copy", "view", "empty", "autograd", "event", "sync", "roundtrip", "eager")
MOST_SETS = 48


def device_cases(cache_bytes: int) -> list[Case]:
    """All of them, coarse ones in tier 0."""
    return [*_memory(cache_bytes), *_host(), *_overlap(), *_sustained_cases()]


def _device_case(op: str, group: str, tier: int, impl: str = "torch", dtype: str = "", **dims: Any) -> Case:
    return make_case(op=op, impl=impl, dtype=dtype, dims=tuple(dims.items()), group=group, tier=tier)


def _memory(cache_bytes: int) -> Iterator[Case]:
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


def _host() -> Iterator[Case]:
    for kind in KINDS:
        yield _device_case("launch", "host", 0, kind=kind)
    for kind in ("node", "launch"):
        yield _device_case("graph", "host", 0, kind=kind)


def _overlap() -> Iterator[Case]:
    for at, ((m, n, k), partner) in enumerate(
        product(((8192, 8192, 8192), (2048, 8192, 8192)), ("copy", "h2d", "d2h"))
    ):
        size = 1 << 28 if partner == "copy" else 1 << 26
        yield _device_case(
            "overlap", "overlap", 1 if at < 3 else 2, dtype="bf16", m=m, n=n, k=k, beside=partner, bytes=size
        )
    yield _device_case("overlap", "overlap", 2, dtype="bf16", m=64, n=8192, k=8192, beside="copy", bytes=1 << 28)


def _sustained_cases() -> Iterator[Case]:
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
