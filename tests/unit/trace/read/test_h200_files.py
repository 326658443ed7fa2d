"""Real profiles of one H200: what is read from them equals what a few plain lines of Python find in the same files."""

from __future__ import annotations

import csv
import gzip
import io
import json
from pathlib import Path
from typing import Any

import pytest

from ridgeline.trace.analyze_traces import analyze
from ridgeline.trace.read.kernel_counters import read_counters

DATA = Path(__file__).parents[3] / "data" / "h200"


def events(name: str) -> list[dict[str, Any]]:
    with gzip.open(DATA / name, "rt", encoding="utf-8") as file:
        return [event for event in json.load(file)["traceEvents"] if event.get("ph") == "X"]


def union(spans: list[dict[str, Any]]) -> float:
    """Microseconds covered by at least one span."""
    covered, until = 0.0, float("-inf")
    for start, end in sorted((span["ts"], span["ts"] + span["dur"]) for span in spans):
        covered += max(0.0, end - max(start, until))
        until = max(until, end)
    return covered


def table(name: str) -> list[list[str]]:
    with gzip.open(DATA / name, "rt", encoding="utf-8") as file:
        rows = list(csv.reader(io.StringIO(file.read())))
    return rows[next(place for place, row in enumerate(rows) if "Kernel Name" in row) :]


TORCH = [e for e in events("graphs.json.gz") if e.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")]


class TestTorch:
    def test_time(self) -> None:
        whole = analyze(DATA / "graphs.json.gz").breakdown.total
        kernels = [e for e in TORCH if e["cat"] == "kernel"]
        span = max(e["ts"] + e["dur"] for e in TORCH) - min(e["ts"] for e in TORCH)
        assert whole.span_ns / 1e3 == pytest.approx(span, abs=0.01)
        assert whole.idle_ns / 1e3 == pytest.approx(span - union(TORCH), abs=0.2)
        assert whole.compute_ns / 1e3 == pytest.approx(union(kernels), abs=0.2)

    def test_replays(self) -> None:
        """Every step replays the graph twice; a replay is one call for all its spans."""
        (found,) = analyze(DATA / "graphs.json.gz").launches
        calls = {e["args"]["correlation"] for e in events("graphs.json.gz") if e["name"] == "cudaGraphLaunch"}
        assert found.graph_replays == len(calls) == 6
        assert found.graph_spans == sum(e["args"]["correlation"] in calls for e in TORCH)
        assert found.unlinked == 0


JAX = [e for e in events("jax.trace.json.gz") if e["pid"] == 1]


class TestJax:
    def test_time(self) -> None:
        whole = analyze(DATA / "jax.trace.json.gz").breakdown.total
        span = max(e["ts"] + e["dur"] for e in JAX) - min(e["ts"] for e in JAX)
        assert whole.span_ns / 1e3 == pytest.approx(span, abs=0.01)
        assert whole.idle_ns / 1e3 == pytest.approx(span - union(JAX), abs=0.2)

    def test_steps_are_those_of_the_annotation(self) -> None:
        found = analyze(DATA / "jax.trace.json.gz")
        told = {int(e["args"]["step_num"]) for e in events("jax.trace.json.gz") if "step_num" in e.get("args", {})}
        assert {step.step for step in found.breakdown.steps} == told == {0, 1, 2}

    def test_every_kernel_has_its_replay(self) -> None:
        (found,) = analyze(DATA / "jax.trace.json.gz").launches
        assert (found.spans, found.unlinked, found.graph_replays) == (len(JAX), 0, 3)


class TestCounters:
    """One launch measured by hand in both pages: the matrix product's share of the compute roof."""

    def test_raw(self) -> None:
        header, _, *rows = table("ncu-raw.csv.gz")
        name, share = header.index("Kernel Name"), header.index("sm__throughput.avg.pct_of_peak_sustained_elapsed")
        shares = [float(row[share]) for row in rows if row[name].startswith("nvjet")]
        found = next(one for one in read_counters(DATA / "ncu-raw.csv.gz") if one.name.startswith("nvjet"))
        assert found.launches == len(shares) == 2
        assert found.compute == pytest.approx(sum(shares) / 200, rel=0.002)

    def test_details(self) -> None:
        """Rows of metrics are shorter than the header, which names columns about advice behind them."""
        header, *rows = table("ncu-details.csv.gz")
        assert min(len(row) for row in rows) < len(header)
        at = {column: header.index(column) for column in ("Kernel Name", "Metric Name", "Metric Value")}
        shares = [
            float(row[at["Metric Value"]])
            for row in rows
            if row[at["Kernel Name"]].startswith("nvjet") and row[at["Metric Name"]] == "Compute (SM) Throughput"
        ]
        found = next(one for one in read_counters(DATA / "ncu-details.csv.gz") if one.name.startswith("nvjet"))
        assert found.compute == pytest.approx(sum(shares) / 200, rel=0.002)

    def test_each_kernel_of_the_trace_meets_its_own_counters(self) -> None:
        """Two elementwise kernels are one function with other arguments, and unnamed namespaces are spelled apart."""
        joined = analyze(DATA / "graphs.json.gz", counters=DATA / "ncu-raw.csv.gz").measured
        kernels = {e["name"] for e in TORCH if e["cat"] == "kernel"}
        assert {name for one in joined.kernels for name in one.names} == kernels
        assert sum(one.spans for one in joined.kernels) == sum(e["cat"] == "kernel" for e in TORCH)
        assert ["distribution" in one.name for one in joined.absent] == [True]  # random input, made before the trace
        for word in ("GeluCUDAKernelImpl", "CUDAFunctor_add"):
            (own,) = [one for one in joined.kernels if word in one.counters.name]
            assert all(word in name for name in own.names)
