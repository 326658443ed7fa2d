"""Dependencies, critical paths and what-ifs of traces small enough to work out by hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from spans import Sketch
from traces import Recipe, make, straggling, write

from ridgeline.core.encode import to_json
from ridgeline.trace.analysis.critical_path import critical_path
from ridgeline.trace.analysis.what_if import answer_questions
from ridgeline.trace.analyze_traces import analyze
from ridgeline.trace.classes import built_in, classify
from ridgeline.trace.graph import dependency_graph
from ridgeline.trace.graph.dependency_graph import (
    DependencyGraph,
    deviation_ns,
    forward_order,
    graph_of,
    one_by_one,
    ranks_in,
)
from ridgeline.trace.read.readers import read_timeline
from ridgeline.trace.timeline import Timeline


def graph(line: Timeline) -> DependencyGraph:
    return graph_of(line, built_in())


def after(line: Timeline, *questions: str) -> float:
    """Span in microseconds with the last answer's change made."""
    return answer_questions(graph(line), built_in(), questions)[-1].after_ns / 1000


def edges(line: Timeline) -> dict[str, int]:
    return {one.kind: one.edges for one in graph(line).counts}


def parts(line: Timeline) -> dict[str, float]:
    found = critical_path(graph(line))
    assert found is not None
    assert sum(part.ns for part in found.whole.parts) == found.whole.length_ns
    return {part.id: part.ns / 1000 for part in found.whole.parts}


class TestReplay:
    @pytest.mark.parametrize(
        "recipe",
        [
            Recipe(),
            Recipe(cause="sync", gap_us=40.0),
            Recipe(cause="data", gap_us=50.0),
            Recipe(graph=True, gap_us=1.5),
            Recipe(unlinked=3, gap_us=0.0),
            Recipe(reduce_us=0.0, hidden_us=0.0),
        ],
        ids=["host", "sync", "data", "graph", "unlinked", "no network"],
    )
    def test_without_a_change_it_is_what_was_measured(self, recipe: Recipe, tmp_path: Path) -> None:
        line = classify(read_timeline(write(make(recipe), tmp_path / "t.json")))
        assert deviation_ns(graph(line)) == 0

    def test_ranks_too(self, tmp_path: Path) -> None:
        for recipe in straggling(4, 40.0, Recipe()):
            write(make(recipe), tmp_path / f"rank{recipe.rank}.json")
        line = classify(read_timeline(tmp_path))
        found = graph(line)
        assert deviation_ns(found) == 0
        assert len(found.matched) == 8

    def test_random_traces(self, tmp_path: Path) -> None:
        rng = np.random.default_rng(5)
        for _ in range(20):
            sketch = Sketch()
            at, ends = 0.0, {7: 0.0, 20: 0.0, 21: 0.0}
            for _ in range(60):
                at += float(rng.integers(1, 30))
                stream = int(rng.choice([7, 20, 21]))
                start = max(ends[stream], at + 4) + float(rng.integers(0, 3))
                length = float(rng.integers(0, 60))
                sketch.launched(
                    str(rng.choice(["gemm", "elementwise_kernel", "ncclAllReduce"])), at, start, length, stream
                )
                ends[stream] = start + length
                at += 2
                if rng.random() < 0.1:
                    wait = max(ends.values())
                    sketch.call("cudaDeviceSynchronize", at, max(3.0, wait + 3 - at))
                    at = max(at + 3, wait + 3)
            line = sketch.read(tmp_path)
            assert deviation_ns(graph(line)) == 0
            assert after(line, "matmul x1") == pytest.approx(graph_span(line), abs=1e-3)

    def test_an_empty_device_replays_host_ops(self, tmp_path: Path) -> None:
        sketch = Sketch().add("cpu_op", "aten::mm", (900, 900), 0, 10).add("cpu_op", "aten::add", (900, 900), 15, 5)
        line = sketch.read(tmp_path)
        assert after(line, "matmul x2") == 15.0  # 5 + 5 between + 5


def graph_span(line: Timeline) -> float:
    work = line.is_work
    return float(line.end_ns[work].max() - line.start_ns[work].min()) / 1000


class TestEdges:
    def test_one_stream_in_time(self, tmp_path: Path) -> None:
        line = Sketch().launched("gemm", -20, 0, 100).launched("gemm", -10, 101, 50).read(tmp_path)
        assert edges(line) == {"body": 2, "stream": 1, "launch": 2, "call": 2, "host order": 1}
        assert parts(line) == {"matmul": 150.0, "between kernels": 1.0}
        assert after(line, "matmul x2") == 76.0

    def test_a_late_host_hides_a_speed_up(self, tmp_path: Path) -> None:
        """The second launch comes at 200: however fast the first product is, the second starts 4 us later."""
        line = Sketch().launched("gemm", -4, 0, 100).launched("gemm", 200, 204, 100).read(tmp_path)
        assert after(line, "matmul x2") == 254.0
        assert after(line, "no launch gaps") == 200.0
        assert parts(line)["host work"] == 200.0  # its call ended before the first work began

    def test_streams_that_wait_for_each_other(self, tmp_path: Path) -> None:
        """A reduction launched long before starts 2 us after the product of the other stream ends."""
        sketch = Sketch().launched("gemm", -60, 0, 100).launched("ncclAllReduce", -50, 102, 40, stream=20)
        line = sketch.read(tmp_path)
        assert edges(line)["streams"] == 1
        assert after(line, "matmul x2") == 92.0
        assert after(line, "nccl x2") == 122.0

    def test_a_wait_call_orders_streams_even_where_it_cost_nothing(self, tmp_path: Path) -> None:
        """The product waits for a reduction that ended 60 us before; with a slow reduction it would start later."""
        sketch = Sketch().launched("ncclAllReduce", -50, 0, 40, stream=20).call("cudaStreamWaitEvent", -30, 1)
        line = sketch.launched("gemm", 96, 100, 50).read(tmp_path)
        assert edges(line)["event"] == 1
        assert after(line, "nccl x0.25") == 210.0  # reduction until 160, then the product
        assert after(line, "overlap nccl", "nccl x0.25") == 160.0

    def test_a_synchronising_call_ends_with_the_work(self, tmp_path: Path) -> None:
        """Work 0 to 100, the host waits until 103, launches at 110, work starts at 114."""
        sketch = Sketch().launched("gemm", -4, 0, 100).call("cudaDeviceSynchronize", 5, 98)
        line = sketch.launched("gemm", 110, 114, 100).read(tmp_path)
        assert edges(line)["device sync"] == 1
        assert after(line, "matmul x2") == 114.0  # 50 + 3 + 7 + 4 + 50
        assert after(line, "no launch gaps") == pytest.approx(203.0, abs=1.1)  # the wait stays, the host does not

    def test_threads_hand_over(self, tmp_path: Path) -> None:
        """The autograd thread starts where the main thread fell silent, and back."""
        sketch = Sketch().launched("gemm", 0, 4, 10)
        sketch.call("cudaLaunchKernel", 10, 2, 50, thread=901).kernel("gemm", 20, 10, 50)
        sketch.call("cudaLaunchKernel", 400, 2, 51, thread=901).kernel("gemm", 410, 10, 51)
        line = sketch.call("cudaLaunchKernel", 410, 2, 52).kernel("gemm", 430, 10, 52).read(tmp_path)
        assert edges(line)["hand-over"] == 1

    def test_launches_into_a_full_queue_wait_for_the_chip(self, tmp_path: Path) -> None:
        sketch = Sketch()
        for place in range(1000):
            sketch.launched("gemm", place * 3, 4 + place * 20, 20)
        sketch.call("cudaLaunchKernel", 3000, 1000, 9999).kernel("gemm", 4 + 20_000, 20, 9999)
        assert "queue full" not in edges(sketch.read(tmp_path))  # 800 queued at the call's end: not full
        deep = Sketch()
        for place in range(1100):
            deep.launched("gemm", place * 3, 4 + place * 20, 20)
        deep.call("cudaLaunchKernel", 3300, 30, 9999).kernel("gemm", 4 + 22_000, 20, 9999)
        assert edges(deep.read(tmp_path))["queue full"] == 1


class TestCollectives:
    def ranks(self, folder: Path, late: float) -> Timeline:
        for rank, length in ((0, 100.0), (1, 100.0 + late)):
            sketch = Sketch(rank=rank, world=2).launched("gemm", -60, 0, length)
            sketch.launched("ncclAllReduce", -50, length + 2, 30 + (late if rank == 0 else 0), stream=20)
            sketch.write(folder)
        return classify(read_timeline(folder))

    def test_transfer_begins_with_the_last_arrival(self, tmp_path: Path) -> None:
        line = self.ranks(tmp_path, 40.0)
        assert edges(line)["collective"] == 4
        # rank 1: 70 + 2 + 30; rank 0 arrives at 52 and waits for 72: both end at 102
        assert after(line, "matmul x2") == 102.0
        # transfer of 30 halves, the waiting of rank 0 does not
        assert after(line, "nccl x2") == 157.0

    def test_the_path_goes_through_the_late_rank(self, tmp_path: Path) -> None:
        line = self.ranks(tmp_path, 40.0)
        found = critical_path(graph(line))
        assert found is not None
        on_it = {
            line.processes[line.process[span.row]]
            for span in found.whole.spans
            if line.names[line.name[span.row]] == "gemm"
        }
        assert on_it == {"rank 1 chip 1"}
        assert {part.id: part.ns for part in found.whole.parts} == {
            "matmul": 140_000,
            "between streams": 2_000,
            "nccl": 30_000,
        }


@pytest.mark.parametrize("seed", range(30))
def test_every_edge_goes_forward(seed: int) -> None:
    """Random graphs without circles: few instants, so that many points are tied, and a fifth of the edges go back."""
    rng = np.random.default_rng(seed)
    count = int(rng.integers(2, 60))
    hidden = rng.permutation(count)
    one, other = rng.integers(0, count, (2, 4 * count))
    kept = hidden[one] < hidden[other]
    src, dst = one[kept], other[kept]
    at = hidden // 4 + np.where(rng.random(count) < 0.2, rng.integers(-5, 5, count), 0)
    order = forward_order(at.astype(np.int64), src, dst)
    assert order is not None
    assert sorted(order.tolist()) == list(range(count))
    rank = ranks_in(order)
    assert (rank[src] < rank[dst]).all()


def test_circles_are_found() -> None:
    at, src, dst = np.zeros(3, np.int64), np.array([0, 1, 2]), np.array([1, 2, 0])
    assert forward_order(at, src, dst) is None
    assert one_by_one(3, src, dst) is None


def test_a_long_chain_of_one_instant() -> None:
    """Longer than rounds are made: the edges are followed one by one."""
    count = 500
    order = forward_order(np.zeros(count, np.int64), np.arange(count - 1)[::-1] + 1, np.arange(count - 1)[::-1])
    assert order is not None
    assert order.tolist() == list(range(count))[::-1]


def brute_slack(found: DependencyGraph) -> np.ndarray:
    """Slack of every point by its definition: how much later it can be before the last end of work moves."""
    last = found.at[found.points.end(found.points.work)].max()
    slack = np.zeros(len(found.at), np.int64)
    order = found.order.tolist()
    into: dict[int, list[int]] = {}
    for edge, target in enumerate(found.dst.tolist()):
        into.setdefault(target, []).append(edge)
    for place, point in enumerate(order):
        low, high = 0, 10**9
        while low < high:  # the largest delay of this point that leaves the last end where it is
            middle = (low + high + 1) // 2
            time = found.at.copy()
            time[point] += middle
            for later in order[place + 1 :]:
                edges = into.get(later, [])
                if edges:
                    time[later] = max(time[found.src[e]] + found.lag[e] for e in edges) + found.delay[later]
            moved = time[found.points.end(found.points.work)].max() > last
            low, high = (low, middle - 1) if moved else (middle, high)
        slack[point] = low
    return slack


def test_slack_is_what_its_definition_says(tmp_path: Path) -> None:
    line = classify(read_timeline(write(make(Recipe(steps=1, layers=1)), tmp_path / "t.json")))
    found = graph_of(line, built_in())
    path = critical_path(found)
    assert path is not None
    ends = found.points.end(found.points.work)
    assert path.slack_ns.tolist() == brute_slack(found)[ends].tolist()


def test_what_is_too_large_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """24 kernels in 2 steps; with room for 20 the second step is followed, and the output says so."""
    path = write(make(Recipe(steps=2, layers=4)), tmp_path / "t.json")
    whole = to_json(analyze(path))
    assert whole["warnings"] == []
    monkeypatch.setattr(dependency_graph, "FOLLOWED", 20)
    monkeypatch.setattr("ridgeline.trace.analyze_traces.LARGEST", 10)
    sheet = to_json(analyze(path))
    (step,) = sheet["critical_path"]["steps"]
    assert (step["step"], step["length_us"]) == (1, 4 * 155.0 - 15.0)  # from its own first work, without the gap before
    assert "the last 12 of 24 spans of work, steps 1 to 1" in sheet["warnings"][0]
    assert "upper bounds" in sheet["warnings"][1]
    assert {key: sheet[key] for key in ("span_us", "idle_us", "compute_us")} == {
        key: whole[key] for key in ("span_us", "idle_us", "compute_us")
    }
