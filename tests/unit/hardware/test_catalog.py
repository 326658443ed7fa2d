"""Every chip and system of the catalog, against the published table they were taken from."""

from __future__ import annotations

import csv
import tomllib
from pathlib import Path

import pytest

from ridgeline.core.dtype import dtype
from ridgeline.core.errors import InputError, MissingNumber, UnknownId
from ridgeline.core.evidence import Evidence
from ridgeline.hardware.chip import Chip, link_bytes_per_flop, ridge_points
from ridgeline.hardware.load import CHIPS, FOLDER, SYSTEMS, chip, sources, system
from ridgeline.report.catalog import chip_numbers

TRUTH = Path(__file__).parents[4] / "shared" / "truth" / "hardware.csv"
# where the catalog deliberately says something else than the table, and why
OTHER = {
    ("mi300x", "l2_mb"): "the last-level cache is the 256 MiB Infinity Cache",
    ("mi325x", "l2_mb"): "the last-level cache is the 256 MiB Infinity Cache",
    ("mi350x", "l2_mb"): "the last-level cache is the 256 MiB Infinity Cache",
    ("mi355x", "l2_mb"): "the last-level cache is the 256 MiB Infinity Cache",
}


@pytest.mark.parametrize("id", list(CHIPS))
def test_chip_is_quoted(id: str) -> None:
    item = CHIPS[id]
    assert item.system in SYSTEMS
    assert SYSTEMS[item.system].chip == id
    assert item.peak
    for path, _, number in chip_numbers(item):
        if number is not None:
            assert number.value > 0, path
            assert number.source in sources(), path
            for other in number.conflicts:
                assert other.source in sources(), path
                assert other.value > 0


def test_sources_are_all_used() -> None:
    text = "".join(path.read_text() for path in FOLDER.glob("*/*.toml"))
    unused = [id for id in sources() if f'"{id}"' not in text]
    assert not unused


@pytest.mark.parametrize("id", list(SYSTEMS))
def test_system_builds_at_its_own_size(id: str) -> None:
    built = system(id)
    assert built.chips >= 1
    assert built.tiers[-1].chips == built.chips if built.chips > 1 else not built.tiers
    for inner, outer in zip(built.tiers, built.tiers[1:], strict=False):
        assert outer.chips % inner.chips == 0


def columns() -> dict[str, tuple[str, float]]:
    """Column of the published table -> path in the catalog and factor to base units."""
    peaks = {f"{key}_tflops": (f"peak.{key}", 1e12) for key in ("fp32", "tf32", "fp16", "bf16", "fp8", "fp4")}
    return peaks | {
        "int8_tops": ("peak.int8", 1e12),
        "hbm_gb": ("hbm.capacity", 1e9),
        "hbm_gbps": ("hbm.bandwidth", 1e9),
        "l2_mb": ("cache.capacity", 1e6),
        "sm_count": ("cores", 1),
        "scaleup_gbps_uni": ("scaleup.bandwidth", 1e9),
        "scaleup_domain": ("scaleup.domain", 1),
        "scaleout_gbps_per_device": ("scaleout.bandwidth", 1e9 / 8),
        "tdp_w": ("tdp", 1),
        "price_usd_per_hour": ("price", 1),
    }


@pytest.mark.skipif(not TRUTH.exists(), reason="the published table is not beside this checkout")
def test_catalog_equals_the_published_table() -> None:
    with TRUTH.open() as stream:
        rows = list(csv.DictReader(stream))
    assert {row["id"] for row in rows} <= set(CHIPS)
    for row in rows:
        numbers = {path: number for path, _, number in chip_numbers(CHIPS[row["id"]])}
        for column, (path, factor) in columns().items():
            if row[column] and (row["id"], column) not in OTHER:
                number = numbers[path]
                assert number is not None, (row["id"], path)
                tolerance = 0.05 if column == "l2_mb" else 1e-6  # some sources print MiB
                assert number.value == pytest.approx(float(row[column]) * factor, rel=tolerance), (row["id"], path)


def test_known_conflicts_are_recorded() -> None:
    memory = CHIPS["gb200-nvl72"].hbm.capacity
    assert memory is not None
    assert {189e9, 192e9} <= {other.value for other in memory.conflicts}
    peak = CHIPS["b300-sxm"].peak["fp4"]
    assert {12.6e15, 14e15, 15e15} <= {other.value for other in peak.conflicts}


def test_missing_number_is_named() -> None:
    with pytest.raises(MissingNumber, match=r"h20-141.*chip\.hbm\.bandwidth"):
        Chip(id="h20-141", name="", vendor="", system="", peak={}).need("hbm.bandwidth")
    with pytest.raises(MissingNumber, match=r"a100-80-sxm has no published chip\.peak\.fp8"):
        CHIPS["a100-80-sxm"].peak_flops_per_s(dtype("fp8"))
    assert CHIPS["h100-sxm"].need("hbm.bandwidth").value == 3.35e12


def test_ratios_by_hand() -> None:
    h100 = CHIPS["h100-sxm"]
    assert ridge_points(h100)["bf16"].value == pytest.approx(989 / 3.35)
    links = link_bytes_per_flop(h100, "fp8")
    assert links["scaleout"].value == pytest.approx(50e9 / 1979e12)
    assert links["host"].evidence == Evidence.ANALYTIC  # the weaker of data sheet and lane arithmetic
    assert ridge_points(Chip(id="x", name="", vendor="", system="", peak={})) == {}


def test_unknown_chip_suggests() -> None:
    with pytest.raises(UnknownId, match="h100-sxm"):
        chip("h100-smx")
    assert "h100" in CHIPS
    assert CHIPS["H100"].id == "h100-sxm"
    assert CHIPS.get("nothing") is None


def test_override_keeps_the_rest_and_is_marked() -> None:
    changed = chip({"base": "h100-sxm", "hbm": {"bandwidth": "8 TB/s"}})
    assert changed.hbm.bandwidth is not None
    assert (changed.hbm.bandwidth.value, changed.hbm.bandwidth.evidence) == (8e12, Evidence.ASSUMED)
    assert changed.hbm.capacity == CHIPS["h100-sxm"].hbm.capacity
    with pytest.raises(InputError, match=r"chip\.hbm\.bandwith.*did you mean 'bandwidth'"):
        chip({"base": "h100-sxm", "hbm": {"bandwith": "8 TB/s"}})


def test_own_chip_file(tmp_path: Path) -> None:
    text = 'name = "X1"\nvendor = "me"\nsystem = "dgx-h100"\n[peak]\nbf16 = "2 PFLOP/s"\n[hbm]\ncapacity = "200 GB"\n'
    (tmp_path / "x1.toml").write_text(text)
    own = chip(tmp_path / "x1.toml")
    assert (own.id, own.peak["bf16"].value) == ("x1", 2e15)
    assert tomllib.loads(text)["name"] == own.name
