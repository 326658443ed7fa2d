"""What the host pays: seconds to enqueue by kind of call, to wait, and to replay a graph.

launch kinds   kernel    enqueue of a small elementwise kernel        matmul     of a small product
               linear    of nn.Linear with its bias                   copy       of a small device copy
               view      a view and nothing on the device             empty      a small allocation
               autograd  forward and backward of y = x * w, per call  event      recording an event
               sync      waiting for an idle device                   roundtrip  small kernel, then wait
               eager     per kernel over a long queue of them, the end waited for
graph kinds    node      one node of a long graph of small kernels    launch     enqueue of a one-node graph
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch

from ridgeline.runtime.probe.case import Case
from ridgeline.runtime.probe.kernel import Bench, Lacking
from ridgeline.runtime.probe.timing import summary

INNER, RUNS = 500, 15
EAGER_CALLS = 10000
NODES = 500


def launch(case: Case, bench: Bench) -> dict[str, Any]:
    """Host seconds of one call of a kind."""
    kind = case["kind"]
    if kind == "eager":
        return _eager(bench)
    calls = _calls(bench)
    if kind not in calls:
        raise Lacking(f"{bench.backend.name} has no call of kind {kind!r}")
    wait_each = kind in ("roundtrip", "sync")
    return _row(_host_seconds(calls[kind], bench, 1 if wait_each else INNER))


def _calls(bench: Bench) -> dict[str, Callable[[], Any]]:
    device = bench.backend.name
    x, y = torch.randn(1024, device=device), torch.randn(1024, device=device)
    a = torch.randn(64, 64, device=device)
    linear = torch.nn.Linear(64, 64, device=device)
    w = torch.randn(1024, device=device, requires_grad=True)

    def roundtrip() -> None:
        x.add_(1.0)
        bench.backend.synchronize()

    def autograd() -> None:
        (x * w).backward(y)

    calls: dict[str, Callable[[], Any]] = {
        "kernel": lambda: x.add_(1.0),
        "matmul": lambda: torch.mm(a, a),
        "linear": lambda: linear(a),
        "copy": lambda: x.copy_(y),
        "view": lambda: x.view(32, 32),
        "empty": lambda: torch.empty(1024, device=device),
        "autograd": autograd,
        "roundtrip": roundtrip,
    }
    if bench.backend.type != "cpu":
        calls["sync"] = bench.backend.synchronize
    if bench.backend.event is not None:
        mark = bench.backend.event()
        calls["event"] = mark.record
    return calls


def _host_seconds(call: Callable[[], Any], bench: Bench, inner: int) -> list[float]:
    """Samples of host time a call, the device idle before each so that no queue is full."""
    samples = []
    for run in range(RUNS + 2):
        bench.backend.synchronize()
        began = time.perf_counter()
        for _ in range(inner):
            call()
        run_seconds = time.perf_counter() - began
        if run >= 2:
            samples.append(run_seconds / inner)
    bench.backend.synchronize()
    return samples


def _eager(bench: Bench) -> dict[str, Any]:
    x = torch.randn(1024, device=bench.backend.name)
    samples = []
    for run in range(6):
        bench.backend.synchronize()
        began = time.perf_counter()
        for _ in range(EAGER_CALLS):
            x.add_(1.0)
        bench.backend.synchronize()
        if run:
            samples.append((time.perf_counter() - began) / EAGER_CALLS)
    return _row(samples)


def graph(case: Case, bench: Bench) -> dict[str, Any]:
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
        return _row(_host_seconds(graph_.replay, bench, 50))
    assert bench.backend.event is not None
    samples = []
    for _ in range(RUNS):
        first, last = bench.backend.event(), bench.backend.event()
        first.record()
        graph_.replay()
        last.record()
        bench.backend.synchronize()
        samples.append(first.elapsed_time(last) * 1e-3 / count)
    return _row(samples)


def _row(samples: list[float]) -> dict[str, Any]:
    middle, relative_spread = summary(samples)
    return {"s": float(f"{middle:.5g}"), "spread": round(relative_spread, 4), "runs": len(samples), "ok": True}
