"""A silent host that wakes when its last launch ends was waiting for it; one that computes was not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from traces import write

from ridgeline.trace.analyze_traces import analyze
from ridgeline.trace.graph.dependency_graph import deviation_ns, graph_of
from ridgeline.trace.graph.edges import host_waits
from ridgeline.trace.read.readers import read_timeline


def polling(wake: float, *, rounds: int = 4, busy: bool = False) -> dict[str, Any]:
    """Rounds of a product of 3 ms and a dispatch of 2 ms whose end the host polls for; ``wake`` us behind it the next
    round is launched. ``busy``: the host runs an op every 200 us instead of waiting."""
    events: list[dict[str, Any]] = []

    def span(cat: str, name: str, pid: int, tid: int, at: float, length: float, **args: Any) -> None:
        events.append(
            {"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": tid, "ts": at, "dur": length, "args": args}
        )

    at, link = 10_000.0, 0
    for _ in range(rounds):
        begun = at
        for name, length in (("gemm", 3000.0), ("notify_dispatch", 2000.0)):
            link += 1
            span("cuda_runtime", "cudaLaunchKernelExC", 9, 1, begun + link % 2 * 5, 4, correlation=link)
            span("kernel", name, 0, 7, at + 10, length, correlation=link, stream=7, device=0)
            at += length
        for place in range(20 if busy else 0):
            span("cpu_op", "aten::add", 9, 1, begun + 100 + place * 240, 200)
        at += 10 + wake
        span("cuda_runtime", "cudaEventQuery", 9, 1, at - 5, 1)
    return {"traceEvents": events}


def test_the_path_follows_the_chip(tmp_path: Path) -> None:
    path = write(polling(60), tmp_path / "t.json")
    line = read_timeline(path)
    waits = host_waits(line, np.flatnonzero(line.is_work))
    assert [line.names[line.name[row]] for row in waits.awaited] == ["notify_dispatch"] * 3
    found = analyze(path, what_if=["matmul x2"])
    assert found.critical is not None
    parts = {part.id: part.share for part in found.critical.whole.parts}
    assert parts["matmul"] + parts["expert-exchange"] > 0.95
    assert found.what_if[0].gain > 0.25  # half of 3 of 5 ms; as host work it would be nothing
    assert found.idle[0].cause == "synchronisation"


def test_a_host_that_works_or_wakes_late_does_not_wait(tmp_path: Path) -> None:
    for name, trace in (("busy", polling(60, busy=True)), ("late", polling(2500))):
        line = read_timeline(write(trace, tmp_path / f"{name}.json"))
        assert not len(host_waits(line, np.flatnonzero(line.is_work)))


def test_a_replay_still_gives_every_time_back(tmp_path: Path) -> None:
    found = analyze(write(polling(60), tmp_path / "t.json"))
    assert deviation_ns(graph_of(found.timeline, found.rules)) == 0
