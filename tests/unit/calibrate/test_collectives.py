"""Measured collectives: read as their sources count, priced in one batch, skipped with a reason, reported."""

from __future__ import annotations

import csv
import doctest
import itertools
import json
from pathlib import Path

import numpy as np
import pytest

from ridgeline.calibrate import collectives as module
from ridgeline.calibrate.collectives import (
    MeasuredCollective,
    _fit_values,
    _without,
    bundled_collectives,
    collective_cases,
    measured_of,
    predictions,
)
from ridgeline.calibrate.truth.rows import Row, Skipped
from ridgeline.calibrate.validate import validate
from ridgeline.calibrate.validation import Validation, ValidationReport, errors_by_set
from ridgeline.comm.libraries.tuners import communicator, nccl_options
from ridgeline.core.encode import to_json
from ridgeline.cost.library_times.formulas import library_seconds, ring_is_simple, shipped_parameters
from ridgeline.cost.library_times.question import CollectiveQuestion, describes, question_columns
from ridgeline.hardware.load import system
from ridgeline.report.validate import worst
from ridgeline.report.validate_html import validation_page

CELLS = {
    "id": "mine-1", "source": "", "system": "8x H100", "ranks": "8", "nodes": "1", "collective": "all_reduce",
    "size_bytes": "1073741824", "algbw_GBps": "", "busbw_GBps": "", "latency_us": "4000", "notes": "",
    "x_chip": "h100-sxm",
}  # fmt: skip


def read(**changes: str) -> MeasuredCollective | Skipped:
    cells = {**CELLS, **changes}
    return measured_of(Row(id=cells["id"], table="mine.csv", cells=cells))


def usable(**changes: str) -> MeasuredCollective:
    found = read(**changes)
    assert isinstance(found, MeasuredCollective)
    return found


@pytest.fixture(scope="module")
def bundled() -> Validation:
    return validate("collectives")


def test_doctests() -> None:
    assert doctest.testmod(module).failed == 0


class TestSeconds:
    def test_latency_then_plain_then_bus(self) -> None:
        assert usable(algbw_GBps="1").seconds == pytest.approx(4e-3)
        assert usable(latency_us="", algbw_GBps="100").seconds == pytest.approx(1073741824 / 100e9)
        bus = usable(latency_us="", busbw_GBps="100").seconds
        assert bus == pytest.approx(1073741824 * 2 * 7 / 8 / 100e9)
        gathered = usable(latency_us="", busbw_GBps="100", collective="all_gather").seconds
        assert gathered == pytest.approx(bus / 2)


class TestMachine:
    def test_full_racks(self) -> None:
        found = usable(x_chip="gb200-nvl72", ranks="144", nodes="36")
        assert [tier.chips for tier in found.system.tiers] == [72, 144]

    def test_one_rank_on_each_node(self) -> None:
        assert usable(ranks="2", nodes="2").question.stride == 8
        assert usable(ranks="16", nodes="2").question.stride == 1

    def test_a_site_with_slower_ports(self) -> None:
        found = usable(x_chip="gb200-nvl72", ranks="144", nodes="36", system="GB200 NVL72 2 racks (CoreWeave)")
        assert found.system.tiers[1].need_bandwidth().value == pytest.approx(50e9)
        assert "400 Gbit/s" in found.notes[0]

    def test_eight_bridged_chips_are_read_as_a_switched_board(self) -> None:
        found = usable(x_chip="h200-nvl", system="H200 x8 NVLink4", ranks="6")
        assert found.system.chip.id == "h200-sxm"
        assert "h200-sxm" in found.notes[0]

    def test_switches_told_not_to_add_up(self) -> None:
        plain, without = usable(), usable(notes="NCCL_NVLS_ENABLE=0 (ring)")
        fast, slow = predictions([plain, without])[0]
        assert slow > 1.1 * fast
        assert fast == pytest.approx(predictions([plain])[0][0])


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"ranks": ""}, "ranks"),
        ({"ranks": "1"}, "ranks"),
        ({"ranks": "9", "nodes": "2"}, "equally"),
        ({"ranks": "1e30"}, "ranks"),
        ({"size_bytes": "nan"}, "size_bytes"),
        ({"size_bytes": ""}, "size_bytes"),
        ({"size_bytes": "1e300"}, "size_bytes"),
        ({"latency_us": "-1"}, "latency_us"),
        ({"latency_us": ""}, "all blank"),
        ({"latency_us": "1e30"}, "not believable"),
        ({"x_chip": "h100-sxn"}, "h100-sxm"),
        ({"x_chip": ""}, "x_chip"),
        ({"collective": "gossip"}, "collective"),
        ({"collective": "all_reduce(custom vLLM)"}, "fused kernel"),
        ({"collective": "moe_dispatch", "latency_us": ""}, "all blank"),
        ({"notes": "SPEC up to 4800 Gb/s"}, "not a measurement"),
        ({"notes": "operator rule-of-thumb range"}, "rule of thumb"),
        ({"x_chip": "a100-40-pcie", "ranks": "16", "nodes": "2"}, "bandwidth"),
    ],
)
def test_skipped_with_a_reason(changes: dict[str, str], reason: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.csv"
    with path.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, list(CELLS))
        writer.writeheader()
        writer.writerow({**CELLS, **changes})
    found = validate(path)
    assert found.cases == ()
    assert reason in found.skipped[0].reason


def mine(**changes: str) -> MeasuredCollective:
    return usable(**{"id": f"mine-{sorted(changes.items())}", **changes})


class TestExperts:
    NOTES = "DeepEP LL tokens/rank=128 hidden 7168 top8 E256"

    def test_text_of_a_row(self) -> None:
        found = mine(collective="moe_combine", notes="normal kernels; 4096 tok/batch, hidden 7168, top-4 groups top-8")
        experts = found.question.experts
        assert experts is not None
        assert (experts.tokens, experts.top_k, experts.nodes, experts.token_bytes) == (4096, 8, 4, 2 * 7168)
        quick = mine(collective="moe_dispatch_ll", notes=self.NOTES).question
        assert quick.software == "deepep-ll"
        assert quick.size == pytest.approx(128 * 8 * 7168 * (1 + 4 / 128))
        again = mine(collective="moe_dispatch", notes="DeepEP V2 NCCL-Gin; 8K tok/batch, hidden 7168, top-8").question
        assert again.software == "deepep-v2"
        assert again.experts is not None
        assert again.experts.tokens == 8192

    def test_a_rate_counts_each_domain_once_and_the_own_one_too(self) -> None:
        """64 ranks, four nodes at most: 4 (1 - (3/4)^8) copies of a token, at 50 GB/s."""
        notes = "4096 tok/batch, hidden 7168, top-4 groups top-8"
        found = mine(collective="moe_combine", ranks="64", nodes="8", latency_us="", algbw_GBps="50", notes=notes)
        copies = 4 * (1 - 0.75**8)
        assert found.seconds == pytest.approx(4096 * 2 * 7168 * copies / 50e9)

    def test_low_latency_is_bound_by_ports(self) -> None:
        """Seven of eight copies leave the node: 14.7 MB through a port of 50 GB/s in about 0.3 ms."""
        wide = mine(collective="moe_combine_ll", ranks="64", nodes="8", notes=self.NOTES)
        seconds = predictions([wide])[0][0]
        assert 128 * 8 * 2 * 7168 * 7 / 8 / 50e9 < seconds < 380e-6

    def test_fewer_nodes_are_never_slower(self) -> None:
        free, limited = (
            mine(collective="moe_combine", ranks="32", nodes="4", notes=f"4096 tok/batch, hidden 7168,{groups} top-8")
            for groups in ("", " top-2 groups")
        )
        slow, fast = predictions([free, limited])[0]
        assert fast < slow


class TestLaw:
    def test_more_bytes_and_slower_links_never_take_less(self) -> None:
        for kind in ("all_reduce", "all_gather", "alltoall"):
            sizes = [mine(collective=kind, size_bytes=str(2**power)) for power in range(10, 34)]
            seconds = predictions(sizes)[0]
            assert (seconds[1:] >= seconds[:-1]).all()
            old, new = predictions([mine(collective=kind, x_chip=chip) for chip in ("a100-80-sxm", "b200-sxm")])[0]
            assert new < old

    def test_meshes_and_tori_take_the_formulas_of_links(self) -> None:
        (found,), _ = collective_cases([mine(x_chip="mi300x")])
        assert 0 < found.low_s < found.predicted_s < found.high_s
        assert not found.cross_validated

    def test_two_chips_of_a_full_mesh_share_one_link(self) -> None:
        """Seven links of a MI300X carry 448 GB/s, the one between two chips 64."""
        two, eight = predictions([mine(x_chip="mi300x", ranks=ranks) for ranks in ("2", "8")])[0]
        assert two > 3 * eight

    def test_a_run_that_warms_up_is_refused_by_name(self) -> None:
        cold, warm = mine(size_bytes="65536", latency_us="9000"), mine(size_bytes="1048576", latency_us="50")
        timed, refused = collective_cases([cold, warm])
        assert [case.row.id for case in timed] == [warm.row.id]
        assert "9000 us, and 50 us for 16 times the bytes" in refused[0].reason

    def test_a_profiler_that_sees_its_own_launches(self) -> None:
        _, refused = collective_cases([mine(source="microsoft/vidur data", size_bytes="2048", latency_us="38")])
        assert "profiler" in refused[0].reason


class TestProtocols:
    """NCCL's own tuner decides which protocol a ring takes; a threshold decides for an all-to-all."""

    def test_rings_are_simple_where_the_tuner_says_so(self) -> None:
        for name, kind in itertools.product(
            ("4xb200-sxm", "8xh100-sxm", "2xa100-80-sxm", "4xl40s"),
            ("all-gather", "all-reduce"),
        ):
            made = system(name)
            questions = [
                CollectiveQuestion(kind=kind, size=2.0**power, ranks=made.chips, system=made) for power in range(10, 32)
            ]
            columns = question_columns(questions)
            taken = ring_is_simple(columns, np.full(len(questions), 2.0 if kind == "all-reduce" else 1.0))
            comm = communicator(made)
            for question, simple in zip(questions, taken, strict=True):
                options = nccl_options(comm, kind.replace("-", ""), question.size)
                best = min(
                    (option for option in options if option.algorithm == "ring"), key=lambda option: option.seconds
                )
                assert simple == (best.protocol == "Simple"), (name, kind, question.size)

    def test_a_longer_start_with_simple(self) -> None:
        """One byte more than 16 KiB a peer leaves LL: an all-to-all begins later."""
        made = system("8xh100-sxm")
        short, long = (
            CollectiveQuestion(kind="all-to-all", size=size, ranks=8, system=made)
            for size in (8 * 16384.0, 8 * 16384.0 + 8)
        )
        values = shipped_parameters().values
        before, after = library_seconds(question_columns([short, long]), values)
        begin = (values["peer_start"] - 1) * values["start.hopper"] * 1e-6
        assert after - before == pytest.approx(begin, rel=1e-3)

    def test_a_hop_over_efa_is_that_of_others_and_what_its_plug_in_reports(self) -> None:
        made = system("32xb200-sxm")
        plain, efa = (
            CollectiveQuestion(kind="all-reduce", size=1e6, ranks=32, system=made, network=network)
            for network in ("", "efa")
        )
        values = {**shipped_parameters().values, "efa_rate": shipped_parameters().values["out_rate"]}
        without, with_it = library_seconds(question_columns([plain, efa]), values)
        same = library_seconds(question_columns([efa]), {**values, "efa_hop": 1e-9})[0]
        assert same == pytest.approx(without, rel=1e-6)
        assert with_it > without


class TestBetweenDomains:
    """What the busiest domain sends: a ring 2 (R-1)/R of the size, a double binary tree twice the size, once of two."""

    @staticmethod
    def seconds(ranks: int, **changes: float) -> float:
        asked = CollectiveQuestion(kind="all-reduce", size=2.0**36, ranks=ranks, system=system(f"{ranks}xb200-sxm"))
        values = {**shipped_parameters().values, "switch_rate": 100.0, **changes}
        return float(library_seconds(question_columns([asked]), values)[0])

    def test_a_ring_saturates_every_port(self) -> None:
        port = system("32xb200-sxm").tiers[1].need_bandwidth().value
        bus = 2 * 31 / 32 * 2.0**36 / self.seconds(32, out_rate=1.0)
        assert bus == pytest.approx(8 * port, rel=0.02)

    def test_two_domains_send_half_of_what_many_do(self) -> None:
        assert self.seconds(32) / self.seconds(16) == pytest.approx(2 * 31 / 32, rel=0.03)


class TestBundled:
    def test_every_row_is_predicted_or_refused_with_a_reason(self, bundled: Validation) -> None:
        assert bundled.kind == "collectives"
        assert len(bundled.cases) + len(bundled.skipped) == 791
        assert len(bundled.cases) >= 740
        assert all(": " in item.reason for item in bundled.skipped)

    def test_errors_are_as_documented(self, bundled: Validation) -> None:
        """Each system predicted without itself: under 10 % above 1 MB, 12 % below; nine of ten intervals hold."""
        sets = errors_by_set(bundled)
        large, small = sets["left out, above 1 MB"], sets["left out, to 1 MB"]
        assert large.mape is not None
        assert small.mape is not None
        assert large.coverage90 is not None
        assert large.n > 400
        assert large.mape < 0.095
        assert small.mape < 0.115
        assert large.coverage90 > 0.85

    def test_rows_that_only_their_own_host_tells_count_too(self, bundled: Validation) -> None:
        """Over all predicted rows, left out or not: under 10 % above 1 MB, 20 % below."""
        for large, most in ((True, 0.1), (False, 0.2)):
            off = [
                abs(case.residual) for case in bundled.cases if (float(case.row["size_bytes"] or 1e9) > 1e6) == large
            ]
            assert sum(off) / len(off) < most

    def test_a_system_is_predicted_by_a_fit_without_it(self, bundled: Validation) -> None:
        """What only a host itself can tell is told apart; nothing else is."""
        own = {(case.row["system"], int(case.row["ranks"]) > 2) for case in bundled.cases if not case.cross_validated}
        assert own == {("l40s", True), ("rtx_pro_6000_server", True)}

    def test_sheet_and_page(self, bundled: Validation) -> None:
        sheet = to_json(ValidationReport(validation=bundled))
        assert sheet["kind"] == "collectives"
        assert set(sheet["groups"]) == {"accelerator", "source", "collective", "library", "size"}
        for groups in sheet["groups"].values():
            assert sum(group["n"] for group in groups.values()) == sheet["predicted"]
        assert all(0 < case["low"] < case["high"] for case in sheet["cases"])
        json.dumps(sheet, allow_nan=False)
        assert validation_page(bundled, "collectives").count("<circle") >= 5 * sheet["predicted"]
        assert len(worst(bundled)) == 10

    def test_filters(self) -> None:
        found = validate("collectives", ["source=coreweave"])
        assert {case.chip for case in found.cases} == {"gb200-nvl72"}


def test_numbers_are_those_of_the_fit() -> None:
    """A fit without one system from where the shipped one stands does not move away from it."""
    shipped_fit = shipped_parameters()
    rows = [item for item in bundled_collectives() if describes(item.system)]
    some = _without(rows, "h100_sxm")
    again = _fit_values(some, shipped_fit.folds["h100_sxm"])
    for name, value in shipped_fit.folds["h100_sxm"].items():
        assert again[name] == pytest.approx(value, rel=0.02), name
