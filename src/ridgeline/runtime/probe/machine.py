"""The machine around the kernels: bandwidths by size, what the host pays, overlap of two streams, and sustained rates.

copy        `bytes` are read and as many written, by a kernel (`copy_` in a graph was slower at 1 GiB)
read        a sum over `bytes`                           write       a fill of `bytes`
h2d, d2h    `bytes` between host and device, the host's side pinned or pageable
cold        False: the same buffer again and again, so that a small one stays in the cache

launch kinds   kernel    enqueue of a small elementwise kernel        matmul     of a small product
               linear    of nn.Linear with its bias                   copy       of a small device copy
               view      a view and nothing on the device             empty      a small allocation
               autograd  forward and backward of y = x * w, per call  event      recording an event
               sync      waiting for an idle device                   roundtrip  small kernel, then wait
               eager     per kernel over a long queue of them, the end waited for
graph kinds    node      one node of a long graph of small kernels    launch     enqueue of a one-node graph

overlap     a product beside `beside`: slowdown and beside_slowdown are seconds together over seconds alone
sustained   impl burst: the first calls of a chip that has rested; steady: after seconds of the same work, with
            power, clock and the energy of one call where the device tells them
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from ridgeline.core.documents import JsonObject
from ridgeline.runtime.probe.backend import Backend
from ridgeline.runtime.probe.case import KernelCase
from ridgeline.runtime.probe.kernels import gemm
from ridgeline.runtime.probe.timing import (
    DTYPES,
    Bench,
    Call,
    Lacking,
    Prepared,
    event_seconds,
    host_seconds,
    is_cold,
    measure,
    random,
    sets_for,
    summary,
    summary_row,
    time_calls,
)

SUM_ERROR = 1e-2  # of a sum of normal numbers, over the root of their count


def traffic(case: KernelCase, bench: Bench) -> JsonObject:
    size = case["bytes"] // 4
    per_set = case["bytes"] * (2 if case.kernel.op == "copy" else 1)
    count = sets_for(bench, per_set) if case["cold"] else 1
    sources = [torch.randn(size, device=bench.backend.name) for _ in range(count)]
    calls: list[Callable[[], Tensor]]
    if case.kernel.op == "copy":
        targets = [torch.full_like(source, float("nan")) for source in sources]
        calls = [partial(torch.mul, source, 1.0, out=out) for source, out in zip(sources, targets, strict=True)]
        calls[0]()
        right = bool(torch.equal(sources[0], targets[0]))
    elif case.kernel.op == "read":
        calls = [source.sum for source in sources]
        wanted_sum = float(sources[0].double().sum()) if bench.backend.type != "mps" else float(sources[0].sum())
        right = abs(float(calls[0]()) - wanted_sum) < SUM_ERROR * max(size**0.5, 1.0)
    else:
        calls = [partial(source.fill_, 1.5) for source in sources]
        right = bool((calls[0]() == 1.5).all())
    error = 0.0 if right else float("inf")
    preparation = Prepared(calls=calls, set_bytes=per_set, check=lambda: error, tolerance=0.0)
    row = measure(preparation, bench)
    row.pop("cold", None)
    if case["cold"] and not is_cold(bench, preparation):
        row["ok"], row["why"] = False, "too small to keep out of the cache by taking turns"
    return row


def host_copy(case: KernelCase, bench: Bench) -> JsonObject:
    if bench.backend.type == "cpu":
        raise Lacking("host and device share their memory")
    size, is_pinned = case["bytes"], case["pinned"]
    host = torch.randint(0, 255, (size,), dtype=torch.uint8)
    host = host.pin_memory() if is_pinned else host
    device = torch.randint(0, 255, (size,), dtype=torch.uint8, device=bench.backend.name)
    source, target = (host, device) if case.kernel.op == "h2d" else (device, host)
    target.copy_(source)
    bench.backend.synchronize()
    if not torch.equal(host, device.cpu()):
        return {"ok": False, "error": 1.0, "why": "wrong result: the copy differs from its source"}
    if is_pinned:
        calls = [lambda: target.copy_(source, non_blocking=True)]
        row = time_calls(calls, bench.backend, seconds=bench.seconds, graph=False).row()
        return {**row, "ok": True, "error": 0.0, "cold": True}
    samples: list[float] = []
    until = time.perf_counter() + bench.seconds
    while len(samples) < 5 or (time.perf_counter() < until and len(samples) < 40):
        samples.append(host_seconds(lambda: target.copy_(source), bench.backend))
    return {**summary_row(samples), "error": 0.0, "cold": True}


INNER, RUNS = 500, 15
EAGER_CALLS = 10000
NODES = 500


def launch(case: KernelCase, bench: Bench) -> JsonObject:
    kind = case["kind"]
    if kind == "eager":
        x = torch.randn(1024, device=bench.backend.name)
        return summary_row([host_seconds(lambda: x.add_(1.0), bench.backend, EAGER_CALLS) for _ in range(6)][1:])
    calls = _calls(bench)
    if kind not in calls:
        raise Lacking(f"{bench.backend.name} has no call of kind {kind!r}")
    return summary_row(_enqueue_seconds(calls[kind], bench, 1 if kind in ("roundtrip", "sync") else INNER))


def _calls(bench: Bench) -> dict[str, Callable[[], object]]:
    device = bench.backend.name
    x, y = torch.randn(1024, device=device), torch.randn(1024, device=device)
    a = torch.randn(64, 64, device=device)
    linear = torch.nn.Linear(64, 64, device=device)
    w = torch.randn(1024, device=device, requires_grad=True)

    def roundtrip() -> None:
        x.add_(1.0)
        bench.backend.synchronize()

    calls: dict[str, Call] = {
        "kernel": lambda: x.add_(1.0),
        "matmul": lambda: torch.mm(a, a),
        "linear": lambda: linear(a),
        "copy": lambda: x.copy_(y),
        "view": lambda: x.view(32, 32),
        "empty": lambda: torch.empty(1024, device=device),
        "autograd": lambda: (x * w).backward(y),
        "roundtrip": roundtrip,
    }
    if bench.backend.type != "cpu":
        calls["sync"] = bench.backend.synchronize
    if bench.backend.event is not None:
        calls["event"] = bench.backend.event().record
    return calls


def _enqueue_seconds(call: Call, bench: Bench, inner: int) -> list[float]:
    """Samples of host time a call, the device idle before each so that no queue is full."""
    samples = [host_seconds(call, bench.backend, inner, wait=False) for _ in range(RUNS + 2)][2:]
    bench.backend.synchronize()
    return samples


def graph_cost(case: KernelCase, bench: Bench) -> JsonObject:
    """Seconds of a graph's node on the device, or of the host that enqueues a graph."""
    if bench.backend.graph is None:
        raise Lacking(f"{bench.backend.name} has no graphs")
    x = torch.randn(1024, device=bench.backend.name)
    for _ in range(3):
        x.add_(1.0)
    bench.backend.synchronize()
    graph_ = bench.backend.graph()
    count = NODES if case["kind"] == "node" else 1
    with bench.backend.module.graph(graph_, stream=bench.backend.stream):
        for _ in range(count):
            x.add_(1.0)
    graph_.replay()
    bench.backend.synchronize()
    if case["kind"] == "launch":
        return summary_row(_enqueue_seconds(graph_.replay, bench, 50))
    return summary_row([event_seconds(graph_.replay, bench.backend) / count for _ in range(RUNS)])


REST_S, BURST_S, STEADY_S, COUNTED_S = 1.0, 0.02, 4.5, 3.0
TOGETHER_S = 0.05
REPEATS = 5


def overlap(
    case: KernelCase, bench: Bench, partner: Call | None = None, agree: Callable[[float], float] = float
) -> JsonObject:
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

    def product() -> Tensor:
        return torch.mm(x, w, out=out)

    product_s, partner_s = (agree(_single_seconds(call, backend)) for call in (product, partner))
    first = [_seconds_of_both(product, product_s, partner, partner_s, side_stream, backend) for _ in range(REPEATS)]
    second = [_seconds_of_both(partner, partner_s, product, product_s, side_stream, backend) for _ in range(REPEATS)]
    slowdowns = {"slowdown": round(summary(first)[0] / product_s, 4)}
    return {**summary_row(first), **slowdowns, "beside_slowdown": round(summary(second)[0] / partner_s, 4)}


def _copy(case: KernelCase, bench: Bench) -> Call:
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


def _single_seconds(call: Call, backend: Backend) -> float:
    for _ in range(3):
        call()
    backend.synchronize()
    return summary([event_seconds(call, backend, 5) for _ in range(REPEATS)])[0]


def _seconds_of_both(
    timed: Call, timed_s: float, other: Call, other_s: float, stream: torch.Stream, backend: Backend
) -> float:
    """Seconds of a call of `timed` while `other` keeps a second stream busy from before to after."""
    count = max(3, int(TOGETHER_S / timed_s))
    partner_calls = max(4, int(2.5 * count * timed_s / other_s) + 2)
    backend.synchronize()
    with backend.module.stream(stream):
        for _ in range(min(partner_calls, 400)):
            other()
    return event_seconds(timed, backend, count)


def sustained_rate(case: KernelCase, bench: Bench) -> JsonObject:
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
        return summary_row(samples)
    _loop(calls, bench, STEADY_S - COUNTED_S)
    samples, joules, seconds, count, mhz = _loop(calls, bench, COUNTED_S)
    row = summary_row(samples)
    if joules > 0:
        row |= {"power_w": round(joules / seconds, 1), "energy_j": float(f"{joules / count:.4g}")}
    elif meter.power_w() > 0:
        row["power_w"] = round(meter.power_w(), 1)
    if mhz:
        row["clock_mhz"] = mhz
    return row


def _long_calls(case: KernelCase, bench: Bench) -> list[Call]:
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
