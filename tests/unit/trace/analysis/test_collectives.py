"""Collectives by type and size: bus bandwidth, the bound of the link, waiting and who came last."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from planted import ranks
from planted_machine import LINK, Collective, Program, Rank
from traces import write

import ridgeline
from ridgeline.comm.bounds import lower_bound
from ridgeline.comm.topologies import topology
from ridgeline.hardware.load import chip as from_catalog
from ridgeline.trace.analysis.collectives import CollectiveSize, link_of, wire_bytes
from ridgeline.trace.analyze_traces import Analysis

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
