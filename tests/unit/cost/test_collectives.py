"""Seconds of collectives, each algorithm against a time worked out by hand."""

from __future__ import annotations

from dataclasses import replace
from math import log2, sqrt
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ridgeline.comm.closed_form.links import IN_SWITCH_STEP, SCALE_OUT_STEP, SCALE_UP_STEP, START, Links
from ridgeline.comm.closed_form.terms import IN_SWITCH, TREE, Routing
from ridgeline.core.errors import MissingNumber
from ridgeline.cost.collectives import (
    ALL_GATHER,
    ALL_REDUCE,
    ALL_TO_ALL,
    CLOSED_FORMS,
    SEND,
    bare_links,
    collective_seconds,
    explain_collective,
)
from ridgeline.cost.machine import Machines
from ridgeline.hardware.load import system

GB = 1e9


def links(*names: str | dict[str, Any]) -> Links:
    """Links at the full rate of the data sheet, ranks arriving together."""
    machines = Machines.of([system(name) for name in names])
    return replace(bare_links(machines), scale_up=machines.scale_up, scale_out=machines.scale_out)


def took(wire: float, slice_s: float, once: float = 0.0) -> float:
    """wire + slice + 2 sqrt(wire slice) + once, as the module says."""
    return wire + slice_s + 2 * sqrt(wire * slice_s) + once


def options(kind: int, payload: float, ranks: int, on: Links, stride: int = 1, spread: float = 0.0) -> dict[str, float]:
    return {
        item.algorithm: item.seconds
        for item in explain_collective(kind, payload, ranks, stride, on, Routing(copies=spread))
    }


def one(kind: int, payload: float, ranks: int, on: Links, stride: int = 1) -> float:
    columns = (np.array([float(value)]) for value in (payload, ranks, stride))
    return float(collective_seconds(kind, *columns, on)[0])


class TestSwitched:
    """Eight A100 at 300 GB/s; nodes of eight at 25 GB/s a chip; H100 at 450 and 50 GB/s, whose switches add up."""

    START_A, START_H = 7.7e-6, 3.7e-6

    def test_ring_in_a_node(self) -> None:
        """7/8 of 8 GB at 300 GB/s are 23.33 ms; seven hops."""
        found = options(ALL_GATHER, 8 * GB, 8, links("8xa100-80-sxm"))
        assert found == {"ring": pytest.approx(took(7 / 300, self.START_A, 7 * SCALE_UP_STEP))}

    def test_all_reduce_is_twice_a_ring_started_once(self) -> None:
        found = options(ALL_REDUCE, 8 * GB, 8, links("8xa100-80-sxm"))
        assert found == {"ring": pytest.approx(took(14 / 300, self.START_A, 14 * SCALE_UP_STEP))}

    def test_ring_between_nodes_uses_every_port(self) -> None:
        """16 ranks: half of the bytes leave a node of eight ports of 25 GB/s; 14 hops inside, one between."""
        found = options(ALL_GATHER, 8 * GB, 16, links("16xa100-80-sxm"))
        wire = max(8 * 15 / 16 / 300, 4 / 200)
        assert found["ring"] == pytest.approx(took(wire, self.START_A, 14 * SCALE_UP_STEP + SCALE_OUT_STEP))

    def test_tree(self) -> None:
        """64 ranks in 8 nodes: 2 P at 0.92 of the rate inside; three levels of tree, a chain of eight in each node."""
        found = options(ALL_REDUCE, 1 * GB, 64, links("64xa100-80-sxm"))
        wire = max(2 / 300, 2 * 7 / 8 / 200) / TREE
        assert found["double-tree"] == pytest.approx(
            took(wire, self.START_A + 2 * (7 * SCALE_UP_STEP + log2(8) * SCALE_OUT_STEP))
        )

    def test_tree_of_pairs(self) -> None:
        """Ranks four apart stand in pairs; with a fabric faster than NVLink, 2 P inside the pair is what takes time."""
        on = links({"base": "64xa100-80-sxm", "tier": {"infiniband": {"bandwidth": "10 TB/s"}}})
        found = options(ALL_REDUCE, 1 * GB, 16, on, stride=4)
        slice_s = self.START_A + 2 * (SCALE_UP_STEP + log2(8) * SCALE_OUT_STEP)
        assert found["double-tree"] == pytest.approx(took(2 / 300 / TREE, slice_s))

    @pytest.mark.parametrize("stride", [8, 16])
    def test_one_rank_a_node_leaves_by_one_port(self, stride: int) -> None:
        """Four ranks a node or more apart: 3/4 of 8 GB through one port of 25 GB/s, no hop inside."""
        found = options(ALL_GATHER, 8 * GB, 4, links("64xa100-80-sxm"), stride=stride)
        assert found["ring"] == pytest.approx(took(6 / 25, self.START_A, 3 * SCALE_OUT_STEP))

    def test_in_switch(self) -> None:
        """Every H100 sends P + P/8, instead of 14/8 P on a ring."""
        found = options(ALL_REDUCE, 8 * GB, 8, links("8xh100-sxm"))
        assert found["in-switch"] == pytest.approx(took(9 / 450 / IN_SWITCH, self.START_H, IN_SWITCH_STEP))
        assert found["in-switch"] < found["ring"]

    def test_switches_copy_for_an_all_gather(self) -> None:
        """7/8 of 8 GB reach every H100 of a node, at the rate that switches give."""
        found = options(ALL_GATHER, 8 * GB, 8, links("8xh100-sxm"))
        assert found["in-switch"] == pytest.approx(took(7 / 450 / IN_SWITCH, self.START_H, IN_SWITCH_STEP))

    def test_in_switch_beats_the_link(self) -> None:
        """nccl-tests' bus rate of an in-switch all-reduce exceeds 450 GB/s, as measured (479)."""
        seconds = one(ALL_REDUCE, 8 * GB, 8, bare_links(Machines.of([system("8xh100-sxm")])))
        assert 14 / seconds == pytest.approx(479, rel=0.06)

    def test_ampere_switches_do_not_add_up(self) -> None:
        assert set(options(ALL_REDUCE, GB, 8, links("8xa100-80-sxm"))) == {"ring"}

    def test_in_fabric_sends_once(self) -> None:
        """With SHARP all of P leaves each of 8 nodes once, instead of 7/4 P."""
        table = {"base": "64xa100-80-sxm", "tier": {"infiniband": {"topology": {"kind": "fat-tree", "reduces": True}}}}
        found = options(ALL_REDUCE, 8 * GB, 64, links(table))
        slice_s = self.START_A + 2 * (7 * SCALE_UP_STEP + SCALE_OUT_STEP)
        assert found["in-fabric"] == pytest.approx(took(max(14 / 300, 8 / 200), slice_s))

    def test_eight_exits_of_a_large_domain(self) -> None:
        """Two racks of 72: half of the bytes leave through eight ports of 100 GB/s, not through 72."""
        found = options(ALL_GATHER, 16 * GB, 144, links({"base": "144xgb200-nvl72", "domain": 72}))
        assert found["ring"] == pytest.approx(
            took(max(16 * 143 / 144 / 900, 8 / 800), 7.3e-6, 142 * SCALE_UP_STEP + SCALE_OUT_STEP)
        )

    def test_two_racks_as_measured(self) -> None:
        """17.2 GB over two NVL72 racks with 400 Gbit/s a chip took 42.07 ms."""
        table = {"base": "144xgb200-nvl72", "domain": 72, "tier": {"infiniband": {"bandwidth": "400 Gbit/s"}}}
        seconds = one(ALL_REDUCE, 2**34, 144, bare_links(Machines.of([system(table)])))
        assert seconds == pytest.approx(42.07e-3, rel=0.15)

    def test_all_to_all_inside(self) -> None:
        found = options(ALL_TO_ALL, GB, 8, links("8xa100-80-sxm"))
        assert found == {"all-pairs": pytest.approx(took(7 / 8 / 300, self.START_A, 3.5 * SCALE_UP_STEP))}

    def test_all_to_all_beyond(self) -> None:
        """Of 16 ranks 8 are elsewhere: half of the bytes through one port each; eight messages or one."""
        found = options(ALL_TO_ALL, GB, 16, links("16xa100-80-sxm"))
        far = 0.5 / 25
        assert found["all-pairs"] == pytest.approx(took(far, self.START_A, (3.5 + 8) * SCALE_UP_STEP + SCALE_OUT_STEP))
        assert found["forwarded"] == pytest.approx(took(far, self.START_A, (3.5 + 1) * SCALE_UP_STEP + SCALE_OUT_STEP))

    def test_tokens_for_several_experts_of_a_domain_travel_once(self) -> None:
        """8 copies over 2 domains: 2 (1 - 1/2^8) / 8 of the bytes are sent."""
        found = options(ALL_TO_ALL, GB, 16, links("16xa100-80-sxm"), spread=8.0)
        wire = max(7 / 8 / 300, 0.5 / 25 * 2 * (1 - 0.5**8) / 8)
        assert found["forwarded"] == pytest.approx(took(wire, self.START_A, 4.5 * SCALE_UP_STEP + SCALE_OUT_STEP))

    def test_a_token_reaches_a_rank_once(self) -> None:
        """8 copies over 8 ranks of one node: 8 (1 - (7/8)^8) / 8 = 0.656 of the bytes are sent."""
        found = options(ALL_TO_ALL, GB, 8, links("8xa100-80-sxm"), spread=8.0)
        wire = 7 / 8 / 300 * (1 - (7 / 8) ** 8)
        assert found["all-pairs"] == pytest.approx(took(wire, self.START_A, 3.5 * SCALE_UP_STEP))

    def test_send(self) -> None:
        on = links("16xa100-80-sxm")
        assert one(SEND, GB, 2, on) == pytest.approx(took(1 / 300, self.START_A, SCALE_UP_STEP))
        assert one(SEND, GB, 2, on, stride=8) == pytest.approx(took(1 / 25, self.START_A, SCALE_OUT_STEP))

    def test_oversubscribed_switches(self) -> None:
        table = {
            "base": "16xa100-80-sxm",
            "tier": {"infiniband": {"topology": {"kind": "fat-tree", "oversubscription": 4.0}}},
        }
        found = options(ALL_GATHER, 8 * GB, 16, links(table))
        assert found["ring"] == pytest.approx(took(4 / 50, self.START_A, 14 * SCALE_UP_STEP + SCALE_OUT_STEP))

    def test_waiting_for_each_other(self) -> None:
        on = links("8xa100-80-sxm")
        late = replace(on, skew=np.array([10e-6]))
        assert one(ALL_GATHER, GB, 8, late) - one(ALL_GATHER, GB, 8, on) == pytest.approx(30e-6)


class TestMeshAndLevels:
    def test_a_pair_in_a_full_mesh_has_one_link(self) -> None:
        """Of an MI300X's 448 GB/s two chips share one of seven links."""
        on = links("8xmi300x")
        assert one(ALL_GATHER, GB, 2, on) == pytest.approx(took(0.5 / 64, START, SCALE_UP_STEP))
        assert one(ALL_GATHER, GB, 8, on) == pytest.approx(took(7 / 8 / 448, START, 7 * SCALE_UP_STEP))

    def test_level_by_level(self) -> None:
        """Gaudi2, two nodes: 7/8 inside, then each chip its eighth across, one after the other."""
        on = links("16xgaudi2")
        found = options(ALL_GATHER, 8 * GB, 16, on)
        wire = 7 * GB / float(on.scale_up[0]) + 8 * GB / 2 / 8 / float(on.scale_out[0])
        assert found["split-rail"] == pytest.approx(took(wire, START, 7 * SCALE_UP_STEP + SCALE_OUT_STEP))
        assert "double-tree" not in options(ALL_REDUCE, 8 * GB, 16, on)

    def test_the_third_tier_counts(self) -> None:
        """Eight H200 NVL in bridges of four over PCIe, then a fabric of 10 GB/s: half leaves each node."""
        slow = {"base": "16xh200-nvl", "tier": {"fabric": {"bandwidth": "10 GB/s"}}}
        found = options(ALL_GATHER, 8 * GB, 16, links(slow))
        assert found["ring"] == pytest.approx(took(4 / (4 * 10), START, 12 * SCALE_UP_STEP + 3 * SCALE_OUT_STEP))
        fast = {"base": "16xh200-nvl", "tier": {"fabric": {"bandwidth": "100 GB/s"}}}
        found = options(ALL_GATHER, 8 * GB, 16, links(fast))
        assert found["ring"] == pytest.approx(took(6 / (4 * 63), START, 12 * SCALE_UP_STEP + 3 * SCALE_OUT_STEP))

    def test_a_missing_outer_rate_is_named(self) -> None:
        with pytest.raises(MissingNumber, match="fabric"):
            links("16xh200-nvl")


class TestTorus:
    """TPU v5p: 100 GB/s a link and direction, six links."""

    def test_three_closed_axes(self) -> None:
        """512 chips use all six links; half an axis of eight is 3.5 hops."""
        found = one(ALL_GATHER, 600 * GB, 512, links("tpu-v5p:8x8x8"))
        assert found == pytest.approx(took(511 / 512, START, 3 * 3.5 * SCALE_UP_STEP))

    def test_one_closed_axis(self) -> None:
        assert one(ALL_GATHER, 8 * GB, 8, links("tpu-v5p:8x8x8")) == pytest.approx(
            took(7 / 200, START, 3.5 * SCALE_UP_STEP)
        )

    def test_an_outer_axis(self) -> None:
        """Ranks 64 apart lie along the third axis."""
        on = links("tpu-v5p:8x8x8")
        assert one(ALL_GATHER, 8 * GB, 8, on, stride=64) == pytest.approx(one(ALL_GATHER, 8 * GB, 8, on))

    def test_open_axes(self) -> None:
        """4x4 chips of a v6e do not wrap: one link of 90 GB/s for each of two axes, three hops each."""
        assert one(ALL_GATHER, 16 * GB, 16, links("tpu-v6e:4x4")) == pytest.approx(
            took(15 / 180, START, 6 * SCALE_UP_STEP)
        )

    def test_a_small_group_is_a_square(self) -> None:
        """Four of 16x16: two axes of two, a link each."""
        on = links("tpu-v6e:16x16")
        assert one(ALL_GATHER, 4 * GB, 4, on) == pytest.approx(took(3 / 180, START, 2 * SCALE_UP_STEP))
        assert one(ALL_TO_ALL, 4 * GB, 4, on) == pytest.approx(took(4 * 2 / 4 / 90, START, 3.5 * SCALE_UP_STEP))

    def test_all_to_all_by_bisection(self) -> None:
        """Half of what 512 chips send crosses 64 rows of two links: 8 / (4 * 2 * 100 GB/s) for each byte."""
        found = one(ALL_TO_ALL, GB, 512, links("tpu-v5p:8x8x8"))
        assert found == pytest.approx(took(8 / 800, START, 3.5 * SCALE_UP_STEP))

    def test_a_fourth_axis_is_part_of_the_third(self) -> None:
        rule = {"kind": "torus", "dims": 4, "max": [4, 4, 4, 4], "wrap": "always"}
        four = {"base": "tpu-v5p:4x4x4x4", "tier": {"ici": {"topology": rule, "link": "75 GB/s"}}}
        assert one(ALL_GATHER, 8 * GB, 4, links(four)) == pytest.approx(took(6 / 150, START, 1.5 * SCALE_UP_STEP))

    def test_send_has_one_link(self) -> None:
        assert one(SEND, GB, 8, links("tpu-v5p:8x8x8")) == pytest.approx(took(1 / 100, START, SCALE_UP_STEP))


MACHINES = (
    "64xh100-sxm",
    "144xgb200-nvl72",
    "64xa100-80-sxm",
    "64xmi300x",
    "32xgaudi2",
    "tpu-v5p:4x4x8",
    "tpu-v6e:8x8",
)
sizes = st.floats(1.0, 1e11)
degrees = st.sampled_from([1, 2, 3, 4, 8, 16, 32, 64])
kinds = st.sampled_from([ALL_REDUCE, ALL_GATHER, ALL_TO_ALL, SEND])
places = st.integers(0, len(MACHINES) - 1)
ALL = links(*MACHINES)


@given(kinds, places, sizes, st.floats(1.0, 50.0), degrees, st.sampled_from([1, 2, 8]))
def test_more_payload_is_never_faster(kind: int, at: int, size: float, more: float, ranks: int, stride: int) -> None:
    on = ALL.at(np.array([at]))
    assert one(kind, size, ranks, on, stride) <= one(kind, size * more, ranks, on, stride) * (1 + 1e-12)


@given(kinds, places, sizes, st.floats(1.0, 10.0), st.floats(1.0, 10.0), degrees)
def test_more_bandwidth_is_never_slower(kind: int, at: int, size: float, near: float, far: float, ranks: int) -> None:
    on = ALL.at(np.array([at]))
    faster = replace(on, scale_up=on.scale_up * near, scale_out=on.scale_out * far)
    assert one(kind, size, ranks, faster) <= one(kind, size, ranks, on) * (1 + 1e-12)


@given(kinds, places, sizes, degrees, st.sampled_from([1, 8]))
def test_the_fastest_on_offer_is_priced(kind: int, at: int, size: float, ranks: int, stride: int) -> None:
    on = ALL.at(np.array([at]))
    found = options(kind, size, ranks, on, stride)
    if ranks == 1:
        assert found == {}
        assert one(kind, size, ranks, on, stride) == 0.0
    else:
        assert one(kind, size, ranks, on, stride) == pytest.approx(min(found.values()))
        assert set(found) <= {name for name, _ in CLOSED_FORMS[kind]}


def test_a_batch_is_its_singles() -> None:
    random = np.random.default_rng(3)
    count = 500
    kind, at = random.integers(0, 4, count), random.integers(0, len(MACHINES), count)
    payload = 10 ** random.uniform(2, 10, count)
    ranks, stride = 2.0 ** random.integers(0, 7, count), 2.0 ** random.integers(0, 4, count)
    spread = np.where(random.random(count) < 0.3, 8.0, 0.0)
    together = collective_seconds(kind, payload, ranks, stride, ALL.at(at), Routing(copies=spread))
    for index in range(count):
        single = collective_seconds(
            int(kind[index]), payload[index : index + 1], ranks[index : index + 1], stride[index : index + 1],
            links(MACHINES[at[index]]) if index < 60 else ALL.at(at[index : index + 1]),
            Routing(copies=spread[index : index + 1]),
        )  # fmt: skip
        assert single[0] == pytest.approx(together[index], rel=1e-12)
    assert np.isfinite(together).all()


def test_one_row_of_links_serves_all() -> None:
    """Columns of one entry are the same for every collective."""
    for name in MACHINES:
        on = links(name)
        payload, ranks = np.array([1e3, 1e6, 1e9]), np.array([8.0])
        kind = np.array([ALL_REDUCE, ALL_GATHER, ALL_TO_ALL])
        mixed = collective_seconds(kind, payload, np.full(3, 8.0), np.ones(3), on.at(np.zeros(3, dtype=np.int64)))
        for index, each in enumerate(kind):
            together = collective_seconds(int(each), payload, ranks, np.array([1.0]), on)
            assert together[index] == pytest.approx(mixed[index])
            assert together[index] == pytest.approx(one(int(each), payload[index], 8, on))


def test_explanation_adds_up() -> None:
    for item in explain_collective(ALL_REDUCE, GB, 64, 1, links("64xh100-sxm")):
        assert item.seconds == pytest.approx(max(item.near_s, item.far_s) + item.wait_s)
        assert min(item.near_s, item.far_s, item.wait_s) > 0
