"""Two things at once, and one thing for long: overlap of a product with a copy or collective, and sustained rates.

overlap     a product beside `beside`: slowdown and beside_slowdown are seconds together over seconds alone
sustained   impl burst: the first calls of a chip that has rested; steady: after seconds of the same work, with
            power, clock and the energy of one call where the device tells them
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from ridgeline.runtime.probe.case import Case
from ridgeline.runtime.probe.kernel import DTYPES, Bench, Lacking, random
from ridgeline.runtime.probe.matmul import gemm
from ridgeline.runtime.probe.timing import summary

Call = Callable[[], Any]
REST_S, BURST_S, STEADY_S, COUNTED_S = 1.0, 0.02, 4.5, 3.0
TOGETHER_S = 0.05
REPEATS = 5


def as_measured(value: float) -> float:
    """Seconds as this rank measured them."""
    return value


def overlap(
    case: Case, bench: Bench, partner: Call | None = None, agree: Callable[[float], float] = as_measured
) -> dict[str, Any]:
    """What a product and its partner lose to each other; `partner` enqueues on the current stream.

    agree   seconds of this rank -> seconds that all ranks count calls by, where the partner is a collective
    """
    backend = bench.backend
    if backend.stream is None or backend.event is None:
        raise Lacking(f"{backend.name} has no streams that run side by side")
    m, n, k, dtype = case["m"], case["n"], case["k"], DTYPES[case.kernel.dtype]
    x, w = random(bench, m, k, dtype=dtype), random(bench, k, n, dtype=dtype)
    out = torch.empty(m, n, device=backend.name, dtype=dtype)
    partner = partner or _copy(case, bench)
    side_stream = backend.module.Stream()

    def product() -> Any:
        return torch.mm(x, w, out=out)

    product_s, partner_s = (agree(_single_seconds(call, backend)) for call in (product, partner))
    first = [_seconds_of_both(product, product_s, partner, partner_s, side_stream, backend) for _ in range(REPEATS)]
    second = [_seconds_of_both(partner, partner_s, product, product_s, side_stream, backend) for _ in range(REPEATS)]
    middle, relative_spread = summary(first)
    return {
        "s": float(f"{middle:.5g}"),
        "spread": round(relative_spread, 4),
        "runs": REPEATS,
        "ok": True,
        "slowdown": round(middle / product_s, 4),
        "beside_slowdown": round(summary(second)[0] / partner_s, 4),
    }


def _copy(case: Case, bench: Bench) -> Call:
    size, device = case["bytes"], bench.backend.name
    source = torch.randint(0, 255, (size,), dtype=torch.uint8, device=device)
    if case["beside"] == "copy":
        target = torch.empty_like(source)
        return lambda: target.copy_(source)
    pinned_buffer = torch.randint(0, 255, (size,), dtype=torch.uint8).pin_memory()
    if case["beside"] == "h2d":
        return lambda: source.copy_(pinned_buffer, non_blocking=True)
    if case["beside"] == "d2h":
        return lambda: pinned_buffer.copy_(source, non_blocking=True)
    raise Lacking(f"{case['beside']} needs a process group")


def _single_seconds(call: Call, backend: Any) -> float:
    for _ in range(3):
        call()
    backend.synchronize()
    samples = []
    for _ in range(REPEATS):
        first, last = backend.event(), backend.event()
        first.record()
        for _ in range(5):
            call()
        last.record()
        backend.synchronize()
        samples.append(first.elapsed_time(last) * 1e-3 / 5)
    return summary(samples)[0]


def _seconds_of_both(timed: Call, timed_s: float, other: Call, other_s: float, stream: Any, backend: Any) -> float:
    """Seconds of a call of `timed` while `other` keeps a second stream busy from before to after."""
    count = max(3, int(TOGETHER_S / timed_s))
    partner_calls = max(4, int(2.5 * count * timed_s / other_s) + 2)
    backend.synchronize()
    first, last = backend.event(), backend.event()
    with backend.module.stream(stream):
        for _ in range(min(partner_calls, 400)):
            other()
    first.record()
    for _ in range(count):
        timed()
    last.record()
    backend.synchronize()
    return float(first.elapsed_time(last)) * 1e-3 / count


def sustained_rate(case: Case, bench: Bench) -> dict[str, Any]:
    """A product or a copy from rest, or for seconds on end."""
    calls = _long_calls(case, bench)
    backend, meter = bench.backend, bench.meter
    for call in calls:
        call()
    backend.synchronize()
    if case.kernel.impl == "burst":
        samples = []
        for _ in range(3):
            time.sleep(REST_S)
            samples += _loop(calls, bench, BURST_S)[0]
        middle, relative_spread = summary(samples)
        return {"s": float(f"{middle:.5g}"), "spread": round(relative_spread, 4), "runs": len(samples), "ok": True}
    _loop(calls, bench, STEADY_S - COUNTED_S)
    samples, joules, seconds, count, mhz = _loop(calls, bench, COUNTED_S)
    middle, relative_spread = summary(samples)
    row = {"s": float(f"{middle:.5g}"), "spread": round(relative_spread, 4), "runs": len(samples), "ok": True}
    if joules > 0:
        row |= {"power_w": round(joules / seconds, 1), "energy_j": float(f"{joules / count:.4g}")}
    elif meter.power_w() > 0:
        row["power_w"] = round(meter.power_w(), 1)
    if mhz:
        row["clock_mhz"] = mhz
    return row


def _long_calls(case: Case, bench: Bench) -> list[Call]:
    if "bytes" in case.kernel.dims:
        source = torch.randn(case["bytes"] // 4, device=bench.backend.name)
        target = torch.empty_like(source)
        return [lambda: torch.mul(source, 1.0, out=target)]
    impl = {"fp8": "scaled_mm", "int8": "int_mm"}.get(case.kernel.dtype, "torch")
    product = replace(case, kernel=replace(case.kernel, op="gemm", impl=impl))
    preparation = gemm(product, bench)
    if not preparation.check() <= preparation.tolerance:
        raise Lacking("wrong result of the product")
    assert product.kernel.bytes > 0
    return list(preparation.calls[:2])


def _loop(calls: list[Call], bench: Bench, seconds: float) -> tuple[list[float], float, float, int, int]:
    """Run for so long: samples of one call, joules and seconds of the whole, calls in it, the clock in its middle."""
    backend, meter = bench.backend, bench.meter
    samples: list[float] = []
    count, mhz = 0, 0
    joules, began = meter.energy_j(), time.perf_counter()
    inner = 1
    while time.perf_counter() - began < seconds:
        spent = time.perf_counter()
        for at in range(inner):
            calls[at % len(calls)]()
        mhz = meter.clock_mhz() or mhz
        backend.synchronize()
        call_seconds = (time.perf_counter() - spent) / inner
        samples.append(call_seconds)
        count += inner
        inner = max(1, min(1000, int(min(0.02, seconds / 4) / call_seconds)))
    total_seconds = time.perf_counter() - began
    return samples, meter.energy_j() - joules, total_seconds, count, mhz
