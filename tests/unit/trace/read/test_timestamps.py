"""Times in the wrong unit are doubted, and read right when the user says which it is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from traces import Recipe, known, make, write

from ridgeline.core.errors import InputError
from ridgeline.trace.analysis.breakdown import breakdown
from ridgeline.trace.read.readers import read_timeline

FACTORS = {"s": 1e-6, "ms": 1e-3, "us": 1.0, "ns": 1e3}


def scaled(unit: str, recipe: Recipe) -> dict[str, Any]:
    """A generated trace with its times written in another unit."""
    trace = make(recipe)
    for event in trace["traceEvents"]:
        for key in ("ts", "dur"):
            if key in event:
                event[key] = round(event[key] * FACTORS[unit], 9)
    return trace


@pytest.mark.parametrize("unit", ["s", "ms", "ns"])
def test_doubted_and_then_right(unit: str, tmp_path: Path) -> None:
    recipe = Recipe(layers=6)
    path = write(scaled(unit, recipe), tmp_path / "t.json")
    (doubt,) = read_timeline(path).about.warnings
    assert f"--unit {unit}" in doubt
    line = read_timeline(path, unit=unit)
    assert breakdown(line).total.span_ns == pytest.approx(known(recipe).span_us * 1000)
    assert "as asked" in line.about.warnings[0]


@pytest.mark.parametrize("unit", ["s", "ms"])
def test_kernels_alone_give_it_away(unit: str, tmp_path: Path) -> None:
    trace = scaled(unit, Recipe(layers=6))
    trace["traceEvents"] = [event for event in trace["traceEvents"] if event.get("cat") in (None, "kernel")]
    (doubt,) = read_timeline(write(trace, tmp_path / "t.json")).about.warnings
    assert f"--unit {unit}" in doubt


def test_right_units_are_not_doubted(tmp_path: Path) -> None:
    for recipe in (
        Recipe(),
        Recipe(matmul_us=40_000.0),
        Recipe(matmul_us=2.0, element_us=1.5, reduce_us=3.0, hidden_us=1.0),
    ):
        assert read_timeline(write(make(recipe), tmp_path / "t.json")).about.warnings == ()


def test_seconds_since_1970_keep_their_nanoseconds(tmp_path: Path) -> None:
    text = json.dumps({"traceEvents": [
        {"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": 0, "dur": 0.000_000_123},
    ]}).replace('"ts": 0', '"ts": 1704161511.420306491')  # fmt: skip
    (tmp_path / "t.json").write_text(text)
    line = read_timeline(tmp_path / "t.json", unit="s")
    assert line.about.origin_ns == 1704161511420306491
    assert line.end_ns.tolist() == [123]


def test_an_unknown_unit(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="unit"):
        read_timeline(write(make(Recipe()), tmp_path / "t.json"), unit="minutes")


def test_formats_with_a_fixed_unit_say_so(tmp_path: Path) -> None:
    from exports import nsys

    assert "nanoseconds only" in read_timeline(nsys(tmp_path / "a.sqlite"), unit="ms").about.warnings[-1]
