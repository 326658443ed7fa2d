"""Rooflines: shares that sum, ridges that are ratios, and files that open."""

from __future__ import annotations

import json
import zlib
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest
from jsonschema import validate

import ridgeline
from ridgeline.core.encode import answer_json
from ridgeline.core.errors import InputError
from ridgeline.cost.profile import Measurement, Profile
from ridgeline.cost.profile_compare import diff_profiles, profile_report
from ridgeline.ir.kernel import Kernel
from ridgeline.report.results import verb_schema
from ridgeline.report.roofline_html import roofline_page, write_chart
from ridgeline.sim.roofline import Roofline

ROWS = (
    Measurement(
        kernel=Kernel(op="gemm", impl="torch", dtype="bf16", dims={"m": 4096, "n": 4096, "k": 4096}), seconds=200e-6
    ),
    Measurement(kernel=Kernel(op="copy", impl="torch", dtype="", dims={"bytes": 2**30}), seconds=2**31 / 4.2e12),
)
OWN = Profile(rows=ROWS, chip="h200-sxm", device={"name": "H200"}, taken="2025-01-01")


def roofline(phase: str, batch: int = 1) -> Roofline:
    return ridgeline.roofline("llama3-8b", "h200-sxm", phase=phase, batch=batch, profile=OWN)


@pytest.mark.parametrize("phase", ["train", "prefill", "decode"])
def test_shares_and_ridges(phase: str) -> None:
    made = answer_json(roofline(phase, 4))
    validate(made, verb_schema("roofline"))
    assert sum(op["share"] for op in made["ops"]) == pytest.approx(1.0)
    assert sum(made["bounds"].values()) == pytest.approx(1.0)
    ridge = next(one for one in made["ridges"] if one["level"] == "hbm")
    assert ridge["intensity"] == pytest.approx(989e12 / 4.8e12)
    assert ridge["measured"] == pytest.approx(2 * 4096**3 / 200e-6 / 4.2e12)
    assert all(0 < op["roof"] <= 1.0 + 1e-9 for op in made["ops"])


def test_what_limits_each_phase() -> None:
    assert max(roofline("prefill").bounds.items(), key=lambda item: item[1])[0] == "bf16"
    assert roofline("decode", 8).bounds["memory"] > 0.95
    assert not [op for op in roofline("prefill").ops if op.label == "loss"]


def test_files(tmp_path: Path) -> None:
    made = roofline("train")
    for name in ("a.svg", "a.png", "a.html"):
        write_chart(made, tmp_path / name)
    drawn = ElementTree.parse(tmp_path / "a.svg").getroot()
    assert drawn.tag.endswith("svg")
    data = (tmp_path / "a.png").read_bytes()
    assert data[:4] == b"\x89PNG"
    assert zlib.decompress(data[data.index(b"IDAT") + 4 : data.index(b"IEND") - 8])
    text = (tmp_path / "a.html").read_text(encoding="utf-8")
    assert "Content-Security-Policy" in text
    assert "measured" in text
    with pytest.raises(InputError, match=r"\.svg, \.png or \.html"):
        write_chart(made, tmp_path / "a.pdf")


def test_text_of_strangers_is_escaped() -> None:
    made = replace(roofline("train"), notes=("<script>alert(1)</script>",))
    assert "<script>alert" not in roofline_page(made)


def test_phases_and_chips_are_checked() -> None:
    with pytest.raises(InputError, match="train or prefill or decode"):
        ridgeline.roofline("llama3-8b", "h200-sxm", phase="dream")
    with pytest.raises(InputError, match="h100-sxm"):
        ridgeline.roofline("llama3-8b", "h100-sxm", profile=OWN)


def test_profiles_hold_against_their_schemas() -> None:
    made = answer_json(profile_report(OWN))
    validate(made, verb_schema("profile"))
    json.dumps(made, allow_nan=False)
    validate(answer_json(diff_profiles(OWN, OWN)), verb_schema("diff"))
