"""The loop of a beginner on a CPU: what is missing is said, and a profile of that CPU closes it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

import ridgeline
from ridgeline.calibrate.explain import Explanation
from ridgeline.calibrate.gap_verdict import NO_CPU, NO_LINK, NO_SHAPES, missing_roof, verdict
from ridgeline.cost import read_profile
from ridgeline.sim import Prediction
from ridgeline.trace import analyze

TINY = Path("examples/tiny-2xcpu.toml")
PROFILE = {
    "ridgeline_profile": 1,
    "chip": None,
    "device": {"type": "cpu", "name": "a laptop", "count": 1},
    "host": {"cpu": "a laptop", "cores": 8},
    "software": {"torch": "2.13.0", "threads": 1},
    "timer": "host",
    "cache_bytes": 1,
    "taken": "2026-11-18",
    "minutes": 1.0,
    "seed": 0,
    "rows": [
        {"op": "gemm", "impl": "torch", "dtype": "fp32", "m": 1024, "n": 1024, "k": 1024, "s": 0.02, "spread": 0.0,
         "runs": 5, "ok": True, "error": 0.0},
        {"op": "copy", "impl": "torch", "dtype": "uint8", "bytes": 1 << 30, "s": 0.1, "spread": 0.0, "runs": 5,
         "ok": True, "error": 0.0},
    ],
}  # fmt: skip


@pytest.fixture
def profile(tmp_path: Path) -> Path:
    path = tmp_path / "cpu.json"
    path.write_text(json.dumps(PROFILE), encoding="utf-8")
    return path


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """Two steps of a rank whose ops are products of 512 x 384 by 384 x 128 inside a linear layer, 1 ms each."""
    events = []
    for place in range(40):
        at = 1000.0 + place * 1100.0
        common = {"ph": "X", "pid": 1, "tid": 1, "cat": "cpu_op"}
        shapes = {"Input Dims": [[512, 384], [384, 128]], "Input type": ["float", "float"]}
        events.append({**common, "name": "aten::linear", "ts": at, "dur": 1050.0, "args": shapes})
        events.append({**common, "name": "aten::mm", "ts": at + 10, "dur": 1000.0, "args": shapes})
    for step in range(2):
        mark = {"ph": "X", "pid": 1, "tid": 1, "cat": "user_annotation", "name": f"ProfilerStep#{step}"}
        events.append({**mark, "ts": 999.0 + step * 22_000, "dur": 21_999.0})
    path = tmp_path / "rank.json"
    about = {"schemaVersion": 1, "deviceProperties": [], "record_shapes": 1}
    path.write_text(json.dumps({**about, "traceEvents": events}), encoding="utf-8")
    return path


def explained(trace: Path, profile: Path | None = None) -> Explanation:
    settings = ["system=1xcpu", "plan.dp=1"]
    found = ridgeline.explain(TINY, trace, settings=settings, profile=profile, force=True)
    assert isinstance(found, Explanation)
    return found


def test_a_host_op_counts_once_and_has_a_rate(trace: Path) -> None:
    """The product inside the layer, not both; 50 MFLOP a millisecond."""
    (rate,) = analyze(trace, chip="cpu").rates
    assert (rate.op, rate.calls, rate.total_ns) == ("aten::mm", 40, 40_000_000)
    assert rate.flops_per_s == pytest.approx(2 * 512 * 384 * 128 / 1e-3)


def test_without_a_profile_it_says_that_this_cpu_was_not_measured(trace: Path) -> None:
    found = explained(trace)
    slower = [part for part in found.parts if part.class_ == "matmul" and part.gap_ns > 0]
    assert slower or found.gap_ns
    for part in found.parts:
        assert "shapes" not in part.why
        if part.change == "unclear":
            assert part.why == NO_CPU.why
            assert "ridgeline characterize --device cpu" in part.action
            assert "--profile" in part.action


def test_with_a_profile_products_are_held_against_its_best_rate(trace: Path, profile: Path) -> None:
    """107 GFLOP/s at best, of which 50 are reached."""
    found = explained(trace, profile)
    rates = {part.class_: part.efficiency for part in found.parts}
    best = 2 * 1024**3 / 0.02
    assert rates["matmul"] == pytest.approx(2 * 512 * 384 * 128 / 1e-3 / best, rel=1e-6)
    assert found.predicted_ns != explained(trace).predicted_ns


def test_a_prediction_for_a_cpu_says_whose_speeds_it_has(profile: Path) -> None:
    built = ridgeline.read_scenario(TINY)
    plain, own = ridgeline.predict(built), ridgeline.predict(built, profile=profile)
    none = ridgeline.predict(built, profile="none")
    accelerator = ridgeline.predict(ridgeline.read_scenario("examples/llama3-70b-64xh100.toml"))
    assert all(isinstance(one, Prediction) for one in (plain, own, none, accelerator))
    assert "nothing measured of this CPU is known" in plain.caution
    assert "ridgeline characterize --device cpu -o cpu.json" in plain.caution
    assert own.caution == accelerator.caution == ""
    described = ridgeline.read_scenario(TINY, ['chip.peak.fp32="120 GFLOP/s"'])
    assert ridgeline.predict(described).caution == ""


def test_what_is_missing_is_named_class_by_class(trace: Path) -> None:
    found = analyze(trace, chip="cpu")
    assert missing_roof("communication", found, unmeasured_host=False) == NO_LINK
    assert missing_roof("matmul", found, unmeasured_host=True) == NO_CPU
    shapeless = replace(found, timeline=replace(found.timeline, detail=type(found.timeline.detail)()))
    assert missing_roof("matmul", shapeless, unmeasured_host=False) == NO_SHAPES
    assert verdict("matmul", (1.0, 9.0), None, 9.0, NO_CPU) == ("unclear", NO_CPU.why)


def test_the_profile_of_the_test_is_one(profile: Path) -> None:
    assert len(read_profile(profile).rows) == 2
