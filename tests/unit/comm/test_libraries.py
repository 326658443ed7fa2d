"""What libraries would do: NCCL's tuner by its published constants, formulas of HCCL and RCCL, reasons and borders."""

from __future__ import annotations

import doctest
import json

import pytest

import ridgeline
from ridgeline.comm.libraries import choice as module
from ridgeline.comm.libraries.choice import ComparedOption, LibraryChoice, library_choice
from ridgeline.core.encode import to_json
from ridgeline.core.errors import InputError


def option(found: LibraryChoice, name: str) -> ComparedOption:
    return next(one for one in found.options if one.name == name)


def test_doctests() -> None:
    assert doctest.testmod(module).failed == 0


class TestNccl:
    """us: launch plus hops of NCCL 2.30; GB/s: 20.6 a link of Hopper, 18 links."""

    @pytest.mark.parametrize(
        ("name", "latency_us"),
        [("ring/LL", 6.6 + 14 * 0.6), ("ring/LL128", 14 + 14 * 1.9), ("ring/Simple", 8.4 + 14 * 3.4),
         ("tree/LL", 6.8 + 14 * 0.6), ("tree/Simple", 8.4 + 14 * 4.0), ("nvls/Simple", 25.0)],
    )  # fmt: skip
    def test_latency_of_one_node(self, name: str, latency_us: float) -> None:
        found = option(library_choice("allreduce", on="8xh100-sxm", size=1e6), name)
        assert found.latency_s * 1e6 == pytest.approx(latency_us)

    def test_rates_of_one_node(self) -> None:
        found = library_choice("allreduce", on="8xh100-sxm", size=1e9)
        link = 18 * 20.6
        assert option(found, "ring/Simple").bytes_per_s / 1e9 == pytest.approx(link * 8 / 14, rel=1e-3)
        assert option(found, "ring/LL").bytes_per_s / 1e9 == pytest.approx(141 * 8 / 14)
        assert option(found, "nvls/Simple").bytes_per_s / 1e9 == pytest.approx(
            link * 0.85 * 15 / 16 * 2 * 8 / 14, rel=1e-3
        )
        assert option(found, "tree/Simple").bytes_per_s / 1e9 == pytest.approx(link * 0.92 / 2, rel=1e-3)

    def test_between_nodes(self) -> None:
        """Eight nodes: three levels of a tree up and down; rings pay every node, and 1.4 of it for large payloads."""
        found = library_choice("allreduce", on="64xh100-sxm", size=1e9)
        assert option(found, "tree/LL").latency_s * 1e6 == pytest.approx(6.8 + 2 * (7 * 0.6 + 3 * 5.0))
        ring = (126 - 14) * 3.4 + 14 * 14 + 8.4
        assert option(found, "ring/Simple").latency_s * 1e6 == pytest.approx(1.4 * ring)
        assert option(found, "nvls_tree/Simple").latency_s * 1e6 == pytest.approx(25 + 6 * 20.9)

    def test_trees_are_corrected_at_medium_sizes(self) -> None:
        medium, large = (
            option(library_choice("allreduce", on="16xa100-80-sxm", size=size), "tree/Simple").bytes_per_s
            for size in (2**18, 2**30)
        )
        assert medium == pytest.approx(0.5 * large)

    def test_small_payloads_give_up_channels(self) -> None:
        found = [library_choice("allgather", on="8xh100-sxm", size=2**power).chosen for power in (12, 16, 30)]
        assert [one.channels for one in found] == [1, 2, 24]
        assert found[0].name == "ring/LL"

    def test_why_and_what_is_left_out(self) -> None:
        found = library_choice("allreduce", on="16xa100-80-sxm", size=1e9)
        assert found.chosen.name == "ring/Simple"
        assert found.why[0].startswith("ring/Simple and not tree/Simple")
        assert "bytes" in found.why[0]
        assert "nvls" in {one.algorithm for one in found.not_offered}
        small = library_choice("allreduce", on="16xa100-80-sxm", size=1e4)
        assert "latency" in next(line for line in small.why if "ring" in line)

    def test_ranges_meet_and_hold(self) -> None:
        found = library_choice("allreduce", on="64xh100-sxm")
        for one, other in zip(found.ranges[:-1], found.ranges[1:], strict=True):
            assert other.min_bytes == one.max_bytes + 1
            for size, there in ((one.max_bytes, one), (other.min_bytes, other)):
                chosen = library_choice("allreduce", on="64xh100-sxm", size=size).chosen
                assert (chosen.algorithm, chosen.protocol) == (there.algorithm, there.protocol)

    def test_busbw_of_nccl_tests(self) -> None:
        found = library_choice("allreduce", on="8xb200-sxm", size=1e9)
        assert found.busbw == pytest.approx(found.algbw * 2 * 7 / 8)


class TestHccl:
    def test_published_formulas(self) -> None:
        """Eight servers of eight: a ring takes 14 steps, NHR six; bytes between are a chip's eighth."""
        found = library_choice("allreduce", on="64xascend-910b2", size=1e9, library="hccl")
        ring, nhr = option(found, "ring"), option(found, "NHR")
        assert (ring.latency_s - nhr.latency_s) * 1e6 == pytest.approx((14 - 6) * 5.0)
        assert ring.bytes_s == pytest.approx(nhr.bytes_s)

    def test_halving_doubling_of_other_than_powers_of_two(self) -> None:
        found = library_choice("allreduce", on="24xascend-910b2", size=1e9, library="hccl")
        assert option(found, "H-D_R").bytes_s > 1.5 * option(found, "NHR").bytes_s

    def test_one_server_is_a_mesh(self) -> None:
        found = library_choice("allreduce", on="8xascend-910b2", library="hccl")
        assert [one.name for one in found.options] == ["mesh"]


def test_rccl_takes_rings_for_large_payloads() -> None:
    found = library_choice("allreduce", on="8xmi300x", size=1e9, library="rccl")
    assert found.chosen.name == "ring/Simple"
    assert all("LL128" not in one.name for one in found.options)


@pytest.mark.parametrize(
    ("name", "on", "library", "told"),
    [
        ("allreduce", "8xh100-sxm", "mccl", "nccl"),
        ("alltoall", "8xh100-sxm", "nccl", "grouped sends"),
        ("allreduce", "8xmi300x", "nccl", "--library rccl"),
        ("allreduce", "8xh100-sxm", "hccl", "Ascend"),
        ("allreduce", "8xh100-sxm", "rccl", "AMD"),
        ("gossip", "8xh100-sxm", "nccl", "allreduce"),
    ],
)
def test_refused(name: str, on: str, library: str, told: str) -> None:
    with pytest.raises(InputError, match=told):
        library_choice(name, on=on, library=library)


def test_sheet_beside_what_benchmarks_measure() -> None:
    """8 H100 add up 1 GiB at 480 GB/s of bus rate; the tuner believes in 590."""
    sheet = to_json(ridgeline.library_choice("allreduce", on="8xh100-sxm", size=2**30))
    assert sheet["measured"]["low"] < sheet["measured"]["seconds"] < sheet["measured"]["high"]
    assert 420e9 < sheet["measured"]["busbw"] < 500e9
    assert sheet["options"][0]["seconds"] == sheet["seconds"] == min(one["seconds"] for one in sheet["options"])
    json.dumps(sheet, allow_nan=False)
