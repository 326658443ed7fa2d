"""Turn an op on real tensors into a row: warm-up, buffers in turn, a replayed graph if there is one, medians, errors.

s        median over runs of (elapsed of a run / calls in it), of the later half of the runs
spread   interquartile range / median
burst_s  the same of the first quarter, where it differs by more than 3 %: before the power limit lowers the clock
timer    graph: device events around replays, no host in between; events: around enqueued calls; host: its clock
left_out on a CPU: runs that are no part of the median, because a thread waited for a core that others had
waited   on a CPU: share of the runs in the median in which one did all the same, taken off their seconds

A kernel of two threads ends when the later one does. Where other work has the second core, the first spins until the
scheduler's slice is over: a product of 20 us then takes 4, 8 or 16 ms, in every run alike, and no median finds out.
"""

from __future__ import annotations

import contextlib
import math
import os
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ridgeline.core.documents import JsonObject
from ridgeline.runtime.probe.backend import Backend, Meter

NS = 1e-9


class RunDelay:
    """A clock of waiting; it stands still where the system keeps no account, and for work on another device."""

    def __init__(self, backend: Backend) -> None:
        self._files: list[int] = []
        if backend.type == "cpu":
            with contextlib.suppress(OSError):
                for thread in os.listdir("/proc/self/task"):
                    with contextlib.suppress(OSError):  # a thread may have ended since it was listed
                        self._files.append(os.open(f"/proc/self/task/{thread}/schedstat", os.O_RDONLY))

    def read(self) -> list[float]:
        return [self._of(file) for file in self._files]

    @staticmethod
    def _of(file: int) -> float:
        try:
            return int(os.pread(file, 64, 0).split()[1]) * NS
        except (OSError, IndexError, ValueError):
            return 0.0

    def close(self) -> None:
        for file in self._files:
            os.close(file)
        self._files = []


def longest_wait(before: list[float], after: list[float]) -> float:
    """Seconds that the thread which waited most did so between two readings.

    >>> longest_wait([1.0, 2.0], [1.5, 2.125])
    0.5
    """
    return max((b - a for a, b in zip(before, after, strict=True)), default=0.0)


Call = Callable[[], object]
GRAPH_S = 2e-3  # seconds a graph should last, so that the edges of a replay do not show
MOST_NODES = 1024
CALLS = 250  # calls of a measurement, as far as its shortest and longest time allow
SHORTEST_S, LONGEST_S = 0.03, 0.25
FEWEST_RUNS, MOST_RUNS = 6, 125
BURST = 0.03
DISTURBED = 0.03  # share of a run in which a thread waited for a core, beyond which the run is left out
PATIENCE = 4.0  # times the usual window that is spent to find runs which nobody disturbed


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelTiming:
    """What timing found; `clock_mhz` is read while the device is busy, 0 where nobody tells."""

    s: float
    spread: float
    runs: int
    timer: str
    clock_mhz: int = 0
    burst_s: float = 0.0
    left_out: int = 0
    waited: float = 0.0

    def row(self) -> JsonObject:
        burst_differs = abs(self.burst_s - self.s) > BURST * self.s
        more = {"clock_mhz": self.clock_mhz, "burst_s": float(f"{self.burst_s:.5g}") if burst_differs else 0}
        row = {"s": float(f"{self.s:.5g}"), "spread": round(self.spread, 4), "runs": self.runs}
        row |= {name: value for name, value in {**more, "left_out": self.left_out}.items() if value}
        return row | ({"waited": round(self.waited, 3)} if self.waited else {})


def summary(samples: Sequence[float]) -> tuple[float, float]:
    """Median and interquartile range over it.

    >>> summary([1.0, 2.0, 3.0, 4.0, 5.0])
    (3.0, 0.6666666666666666)
    """
    middle = statistics.median(samples)
    if len(samples) < 4 or middle <= 0:
        return middle, (max(samples) - min(samples)) / middle if middle > 0 else 0.0
    low, _, high = statistics.quantiles(samples, n=4, method="inclusive")
    return middle, (high - low) / middle


def summary_row(samples: Sequence[float]) -> JsonObject:
    """The keys of a row that is right, from seconds of one call, run by run."""
    middle, relative_spread = summary(samples)
    return {"s": float(f"{middle:.5g}"), "spread": round(relative_spread, 4), "runs": len(samples), "ok": True}


def host_seconds(call: Call, backend: Backend, inner: int = 1, *, wait: bool = True) -> float:
    """Seconds of one of `inner` calls by the host's clock, on a device that is idle before; and behind, with `wait`."""
    backend.synchronize()
    began = time.perf_counter()
    for _ in range(inner):
        call()
    if wait:
        backend.synchronize()
    return (time.perf_counter() - began) / inner


def event_seconds(call: Call, backend: Backend, inner: int = 1) -> float:
    """Seconds of one of `inner` calls between two events of the device."""
    assert backend.event is not None
    first, last = backend.event(), backend.event()
    first.record()
    for _ in range(inner):
        call()
    last.record()
    backend.synchronize()
    return float(first.elapsed_time(last)) * 1e-3 / inner


def time_calls(
    calls: Sequence[Call], backend: Backend, *, seconds: float, graph: bool = True, clock: Callable[[], int] = int
) -> KernelTiming:
    """Seconds of one call; `calls` are the same op on different buffers, taken in turn."""
    once = _warm_up(calls, backend, seconds)
    if backend.event is None:
        return _by_host(calls, backend, seconds, once)
    if graph and backend.graph is not None:
        replay, nodes = _capture(calls, backend, once)
        if replay is not None:
            return _by_events([replay], backend, once * nodes, nodes, "graph", clock)
    return _by_events(calls, backend, once, 1, "events", clock)


def _warm_up(calls: Sequence[Call], backend: Backend, seconds: float) -> float:
    """Run every call once and then a share of the time box; seconds of one call, roughly."""
    backend.synchronize()
    for call in calls[: 1 if backend.event is None else len(calls)]:
        call()
    first = host_seconds(calls[0], backend)
    if backend.event is None and first > seconds:
        return max(first, 1e-9)
    count = max(1, min(500, int(0.3 * seconds / max(first, 1e-6))))
    began = time.perf_counter()
    for at in range(count):
        calls[at % len(calls)]()
    backend.synchronize()
    return max((time.perf_counter() - began) / count, 1e-9)


def _capture(calls: Sequence[Call], backend: Backend, once: float) -> tuple[Call | None, int]:
    """A graph that holds every call at least once, as a call of its own."""
    nodes = max(len(calls), min(MOST_NODES // 4, math.ceil(GRAPH_S / once)))
    nodes = min(MOST_NODES, math.ceil(nodes / len(calls)) * len(calls))
    assert backend.graph is not None
    try:
        graph = backend.graph()
        with backend.module.graph(graph, stream=backend.stream):
            for at in range(nodes):
                calls[at % len(calls)]()
        graph.replay()
        backend.synchronize()
    except Exception:  # not every op may be captured; it is timed by events then
        backend.synchronize()
        return None, 0
    return graph.replay, nodes


def _by_events(
    calls: Sequence[Call], backend: Backend, once: float, nodes: int, timer: str, clock: Callable[[], int]
) -> KernelTiming:
    """Runs one after the other without a pause, the clock read while the later half of them is under way."""
    assert backend.event is not None
    marks = backend.event
    once = min(once, max(event_seconds(calls[0], backend), 1e-7))
    window = min(LONGEST_S, max(SHORTEST_S, CALLS * once / nodes))
    inner = 1 if timer == "graph" else max(1, min(50, int(GRAPH_S / once)))
    runs = max(FEWEST_RUNS, min(MOST_RUNS, int(window / (once * inner))))
    pairs = []
    for _ in range(runs):
        first, last = marks(), marks()
        first.record()
        for at in range(inner):
            calls[at % len(calls)]()
        last.record()
        pairs.append((first, last))
    pairs[runs * 3 // 4][0].synchronize()
    mhz = clock()
    backend.synchronize()
    samples = [a.elapsed_time(b) * 1e-3 / (nodes * inner) for a, b in pairs]
    middle, spread = summary(samples[runs // 2 :])
    burst, _ = summary(samples[: max(1, runs // 4)])
    return KernelTiming(s=middle, spread=spread, runs=runs - runs // 2, timer=timer, clock_mhz=mhz, burst_s=burst)


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedRun:
    """Seconds of a call in one run, and the share of the run in which a thread waited for a core."""

    s: float
    waited: float


def _by_host(calls: Sequence[Call], backend: Backend, seconds: float, once: float) -> KernelTiming:
    """Runs by the host's clock; on a busy machine more of them, until enough had their cores to themselves."""
    inner = max(1, min(1000, int(2e-3 / once)))
    wanted_runs = max(3, min(MOST_RUNS, int(seconds / (once * inner))))
    delay = RunDelay(backend)
    until = time.perf_counter() + PATIENCE * max(seconds, wanted_runs * once * inner)
    runs: list[TimedRun] = []
    quiet = turn = 0
    while len(runs) < wanted_runs or (quiet < wanted_runs and time.perf_counter() < until):
        before, began = delay.read(), time.perf_counter()
        for _ in range(inner):
            calls[turn % len(calls)]()
            turn += 1
        backend.synchronize()
        run_seconds = time.perf_counter() - began
        wait_seconds = longest_wait(before, delay.read())
        runs.append(TimedRun(s=max(run_seconds - wait_seconds, 0.0) / inner, waited=wait_seconds / run_seconds))
        quiet += wait_seconds <= DISTURBED * run_seconds
    delay.close()
    quiet_runs = undisturbed_runs(runs)
    middle, spread = summary([run.s for run in quiet_runs])
    still = sum(run.waited > DISTURBED for run in quiet_runs) / len(quiet_runs)
    left_out = len(runs) - len(quiet_runs)
    return KernelTiming(s=middle, spread=spread, runs=len(quiet_runs), timer="host", left_out=left_out, waited=still)


def undisturbed_runs(runs: Sequence[TimedRun]) -> Sequence[TimedRun]:
    """The runs whose threads had their cores; where hardly any had, those that waited least."""
    quiet = [run for run in runs if run.waited <= DISTURBED]
    few = max(3, len(runs) // 4)
    return quiet if len(quiet) >= few else sorted(runs, key=lambda run: run.waited)[:few]


DTYPES: JsonObject = {"fp64": torch.float64, "fp32": torch.float32, "tf32": torch.float32, "bf16": torch.bfloat16}
DTYPES |= {"fp16": torch.float16, "fp8": getattr(torch, "float8_e4m3fn", None), "int8": torch.int8}
TOLERANCE = {"fp64": 1e-10, "fp32": 2e-4, "tf32": 3e-3, "bf16": 2e-2, "fp16": 4e-3, "fp8": 2e-2, "int8": 0.0}
UNTRUE = 0.5  # share of disturbed runs in a median of several threads, which wait for each other, that is no time
DRAWN = 65_537  # normal numbers a CPU draws for one tensor: a prime, so that rows begin at different ones
MOST_SETS = 48  # buffer sets that are taken in turn so that the cache holds none of them


class Lacking(Exception):
    """The backend has no such kernel: reported, not an error of the run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """Where kernels are measured: device, meter, seconds a measurement may take, and the seed of its inputs."""

    backend: Backend
    meter: Meter
    seconds: float
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """An op ready to run.

    calls      the same op on different buffers
    set_bytes  bytes one of them touches
    check      relative error of one call against a reference in higher precision
    graph      False when a graph may not hold it
    """

    calls: Sequence[Call]
    set_bytes: float
    check: Callable[[], float]
    tolerance: float
    graph: bool = True


def sets_for(bench: Bench, set_bytes: float) -> int:
    """Buffer sets that together exceed the cache three times, as far as memory and patience allow."""
    wanted_sets = math.ceil(3 * bench.backend.cache_bytes / max(set_bytes, 1))
    fits = int(0.5 * bench.backend.free_bytes() / max(set_bytes, 1))
    return max(1, min(wanted_sets, MOST_SETS, fits))


def is_cold(bench: Bench, prepared: Prepared) -> bool:
    """Whether a call finds its inputs in main memory, not in the cache."""
    return len(prepared.calls) * prepared.set_bytes >= 2 * bench.backend.cache_bytes


def measure(prepared: Prepared, bench: Bench) -> JsonObject:
    """The results of a row: seconds first, then whether the kernel computes the right thing."""
    error = prepared.check()
    if not error <= prepared.tolerance:
        return {"ok": False, "why": f"wrong result: relative error {error:.3g}"}
    timing = time_calls(
        prepared.calls, bench.backend, seconds=bench.seconds, graph=prepared.graph, clock=bench.meter.clock_mhz
    )
    if timing.waited > UNTRUE and torch.get_num_threads() > 1:
        return {"ok": False, "why": "threads waited for a core in most runs: other work has it"}
    row = {**timing.row(), "ok": True, "error": float(f"{error:.2g}"), "cold": is_cold(bench, prepared)}
    default = "graph" if bench.backend.graph is not None else "events" if bench.backend.event else "host"
    if timing.timer != default:
        row["timer"] = timing.timer
    return row


def relative_error(found: Tensor, reference: Tensor) -> float:
    """Norm of the difference over the norm of the reference, in fp64; infinite for NaN."""
    found, reference = found.double(), reference.double()
    if not bool(torch.isfinite(found).all()):
        return math.inf
    scale = float(reference.norm())
    return float((found - reference).norm()) / scale if scale > 0 else float(found.norm())


def random(bench: Bench, *shape: int, dtype: torch.dtype, scale: float = 1.0) -> Tensor:
    """Fresh normal numbers: zeros would hide unwritten outputs and draw less power.

    A CPU draws slowly: beyond `DRAWN` numbers it repeats them, and no two rows of a product are alike all the same.
    """
    drawn = torch.float32 if dtype.itemsize < 2 else dtype
    count = math.prod(shape)
    if bench.backend.type == "cpu" and count > DRAWN:
        values = torch.randn(DRAWN, dtype=drawn).repeat(-(-count // DRAWN))[:count].view(shape)
    else:
        values = torch.randn(shape, device=bench.backend.name, dtype=drawn)
    if scale != 1.0:
        values *= scale
    return values.to(dtype)


def some(size: int, count: int) -> Tensor:
    """A few indices below size, the last one among them: tails are where kernels go wrong."""
    places = torch.randperm(size)[:count] if size <= 1 << 20 else torch.randint(size, (count,))
    places[0] = size - 1
    return places


def tolerance_of(dtype: str) -> float:
    return TOLERANCE.get(dtype, 2e-2)
