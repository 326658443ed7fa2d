"""Collectives by type and size: bus bandwidth, the bound of the link, waiting and who came last."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from planted import ranks
from planted_machine import LINK, Collective, Program, Rank
from spans import Sketch
from traces import Recipe, make, straggling, write

import ridgeline
from ridgeline.comm.bounds import lower_bound
from ridgeline.comm.topologies import topology
from ridgeline.hardware.load import chip as from_catalog
from ridgeline.trace.analysis.collectives import CollectiveSize, RankReport, link_of, rank_report, wire_bytes
from ridgeline.trace.analyze_traces import Analysis
from ridgeline.trace.classes import built_in, classify, counted_rows
from ridgeline.trace.read.readers import read_timeline
from ridgeline.trace.timeline import Span, Timeline

SIZE = 64e6


def run(folder: Path, program: Callable[[Rank], Program], world: int = 4) -> Analysis:
    for place, one in enumerate(ranks(world, program)):
        write(one, folder / f"rank{place}.json")
    return ridgeline.analyze(folder)


def one(found: Analysis, name: str) -> CollectiveSize:
    (size,) = (one for one in found.collectives if one.name == name)
    return size


@pytest.mark.parametrize("name", ["allreduce", "allgather", "reducescatter", "alltoall"])
def test_the_bound_is_that_of_a_switch(name: Any) -> None:
    """Every rank behind one link of a switch without sums: no algorithm beats wire bytes over the link."""
    bound = lower_bound(topology("switch:8", LINK), name, SIZE)
    assert bound.bandwidth_s == pytest.approx(wire_bytes(name, SIZE, 8) / LINK)


def test_bus_bandwidth_counts_from_the_last_arrival(tmp_path: Path) -> None:
    def program(rank: Rank) -> Program:
        for _ in range(3):
            with rank.step():
                rank.mm(4096, 4096, 4096 * (2 if rank.rank == 1 else 1))
                rank.joins((yield Collective(name="all_reduce", size_bytes=SIZE, rate=200e9, latency_us=0.0)))

    found = one(run(tmp_path, program), "allreduce")
    assert (found.calls, found.group_size, found.payload_bytes, found.matched) == (12, 4, 64_000_000, True)
    assert found.busbw == pytest.approx(200e9, rel=0.001)
    assert found.share_of_link == pytest.approx(200 / 450, rel=0.001)
    assert found.bound_ns == pytest.approx(1.5 * SIZE / LINK * 1e9)
    assert found.last == {1: 3}
    assert found.wait_ns > 0


def test_an_all_to_all_is_no_pipeline(tmp_path: Path) -> None:
    """Kernels named SendRecv, with the span around their launch, or with nothing but their ends."""

    def program(rank: Rank) -> Program:
        for _ in range(3):
            with rank.step():
                rank.mm(4096, 4096, 4096 + 512 * rank.rank)
                rank.joins((yield Collective(name="all_to_all", size_bytes=SIZE, record=False)))

    found = run(tmp_path / "named", program)
    assert one(found, "alltoall").matched
    bare = ranks(4, program)
    for place, trace in enumerate(bare):
        trace["traceEvents"] = [event for event in trace["traceEvents"] if "all" not in event["name"]]
        write(trace, tmp_path / "bare" / f"rank{place}.json")
    for every in (found, ridgeline.analyze(tmp_path / "bare")):
        assert not any(finding.rule == "pipeline_bubble" for finding in every.findings)
        assert every.ranks.collectives == 3


def test_a_group_beyond_a_domain_has_no_link() -> None:
    chip = from_catalog("h100-sxm")
    assert (link_of(chip, 8), link_of(chip, 16), link_of(None, 8)) == (LINK, None, None)


def report(line: Timeline) -> RankReport:
    return rank_report(line, built_in(), counted_rows(line))


class TestStragglers:
    def test_the_late_rank_comes_first(self, tmp_path: Path) -> None:
        for recipe in straggling(4, 40.0, Recipe(steps=2, layers=5)):
            write(make(recipe), tmp_path / f"rank{recipe.rank}.json")
        found = report(classify(read_timeline(tmp_path)))
        assert found.collectives == 10
        assert {one.skew_ns for one in found.arrivals} == {40_000}
        worst = found.stragglers[0]
        assert (worst.rank, worst.last, worst.caused_ns, worst.waited_ns) == (3, 10, 10 * 3 * 40_000, 0)
        assert [one.waited_ns for one in found.stragglers[1:]] == [400_000] * 3

    def test_transfer_is_what_follows_the_last_arrival(self, tmp_path: Path) -> None:
        for recipe in straggling(2, 25.0, Recipe(reduce_us=80.0)):
            write(make(recipe), tmp_path / f"rank{recipe.rank}.json")
        (times, *_) = report(classify(read_timeline(tmp_path))).arrivals
        assert (times.transfer_ns, sorted(times.waits_ns)) == (80_000, [0, 25_000])

    def test_clocks_that_differ_are_put_right(self, tmp_path: Path) -> None:
        """Rank 1's clock is 5 ms ahead: its parts still end with rank 0's, and nobody is late."""
        for rank in (0, 1):
            recipe = Recipe(rank=rank, world=2, start_us=1_000_000.0 + 5_000 * rank)
            write(make(recipe), tmp_path / f"rank{rank}.json")
        found = report(classify(read_timeline(tmp_path)))
        assert {one.rank: one.clock_ns for one in found.stragglers} == {0: 0, 1: 5_000_000}
        assert {one.skew_ns for one in found.arrivals} == {0}

    def test_groups_of_different_counts_are_not_matched(self, tmp_path: Path) -> None:
        Sketch(rank=0, world=2).launched("ncclAllReduce", -4, 0, 10).launched("ncclAllReduce", 16, 20, 10).write(
            tmp_path
        )
        Sketch(rank=1, world=2).launched("ncclAllReduce", -4, 0, 10).write(tmp_path)
        found = report(classify(read_timeline(tmp_path)))
        assert (found.collectives, found.unmatched) == (0, 3)


class TestBubble:
    def test_two_stages_one_microbatch(self, tmp_path: Path) -> None:
        """Stage 0 forward 0-10, backward 30-50; stage 1 forward 10-20, backward 20-30, all in a window of 50."""
        rows = [
            ("stage 0", "compute", "F0", 0, 10),
            ("stage 0", "compute", "B0", 30, 20),
            ("stage 1", "compute", "F0", 10, 10),
            ("stage 1", "compute", "B0", 20, 10),
            ("stage 0", "pp", "F0 to stage 1", 10, 1),
        ]
        spans = [
            Span(
                process=process, stream=stream, name=name, start_ns=1000 * start, duration_ns=1000 * length,
                kind="send" if stream == "pp" else "forward",
            )
            for process, stream, name, start, length in rows
        ]  # fmt: skip
        found = report(classify(Timeline.of(spans, predicted=True)))
        assert [(one.rank, one.bubble_ns, one.warm_up_ns, one.cool_down_ns) for one in found.bubbles] == [
            (0, 20_000, 0, 0), (1, 30_000, 10_000, 20_000),
        ]  # fmt: skip

    def test_without_sends_there_is_none(self, tmp_path: Path) -> None:
        write(make(Recipe()), tmp_path / "t.json")
        assert report(classify(read_timeline(tmp_path / "t.json"))).bubbles == ()
