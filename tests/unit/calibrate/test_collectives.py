"""Measured collectives: read as their sources count, priced in one batch, skipped with a reason, reported."""

from __future__ import annotations

import csv
import doctest
import json
from pathlib import Path

import pytest

from ridgeline.calibrate import collectives as module
from ridgeline.calibrate.collectives import Measured, measured_of, predicted_s
from ridgeline.calibrate.truth.csv_cells import Skipped
from ridgeline.calibrate.truth.rows import Row
from ridgeline.calibrate.validate import Validation, errors_of, validate
from ridgeline.report.validate import validation_sheet, worst
from ridgeline.report.validate_html import page

CELLS = {
    "id": "mine-1", "source": "", "system": "8x H100", "ranks": "8", "nodes": "1", "collective": "all_reduce",
    "size_bytes": "1073741824", "algbw_GBps": "", "busbw_GBps": "", "latency_us": "4000", "notes": "",
    "x_chip": "h100-sxm",
}  # fmt: skip


def read(**changes: str) -> Measured | Skipped:
    cells = {**CELLS, **changes}
    return measured_of(Row(id=cells["id"], table="mine.csv", cells=cells))


def usable(**changes: str) -> Measured:
    found = read(**changes)
    assert isinstance(found, Measured)
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
        assert usable(ranks="2", nodes="2").stride == 8
        assert usable(ranks="16", nodes="2").stride == 1

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
        fast, slow = predicted_s([plain, without])
        assert slow > 1.1 * fast
        assert fast == pytest.approx(predicted_s([plain])[0])


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
        ({"collective": "moe_dispatch"}, "not bytes over time"),
        ({"notes": "SPEC up to 4800 Gb/s"}, "not a measurement"),
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


class TestBundled:
    def test_everything_bundled_is_predicted(self, bundled: Validation) -> None:
        assert (bundled.kind, len(bundled.cases), bundled.skipped) == ("collectives", 602, ())

    def test_errors_are_as_documented(self, bundled: Validation) -> None:
        """Switched systems: half of the rows within 10 %, large payloads within 10 % on average."""
        switched = [case for case in bundled.cases if case.chip not in ("l40s", "rtxpro6000")]
        errors = errors_of(switched)
        assert errors.median_ape is not None
        assert errors.median_ape < 0.1
        large = errors_of([case for case in switched if float(case.row["size_bytes"]) >= 2**28])
        assert large.mape is not None
        assert large.mape < 0.1

    def test_sheet_and_page(self, bundled: Validation) -> None:
        sheet = validation_sheet(bundled)
        assert sheet["kind"] == "collectives"
        assert set(sheet["groups"]) == {"accelerator", "source", "collective", "size"}
        for groups in sheet["groups"].values():
            assert sum(group["n"] for group in groups.values()) == sheet["predicted"]
        assert all(0 < case["low"] < case["high"] for case in sheet["cases"])
        json.dumps(sheet, allow_nan=False)
        assert page(bundled, "collectives").count("<circle") == 5 * 602
        assert len(worst(bundled)) == 10

    def test_filters(self) -> None:
        found = validate("collectives", ["source=coreweave"])
        assert {case.chip for case in found.cases} == {"gb200-nvl72"}
