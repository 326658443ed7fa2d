"""Runs of one user correct that user's predictions, parameter by parameter, and narrow their interval."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import ridgeline
from ridgeline.calibrate.anchor import anchor_calibration, anchored_by, condition_on, write_residuals
from ridgeline.calibrate.explain import explain
from ridgeline.calibrate.folds import Dataset, dataset_of
from ridgeline.calibrate.truth.rows import Row
from ridgeline.cli.main import command_line
from ridgeline.core.errors import InputError
from ridgeline.cost.anchored import Components
from ridgeline.cost.anchoring import pace_of
from ridgeline.cost.calibration import PARAMETERS, Calibration, default_calibration
from ridgeline.plan.scenario import Scenario
from ridgeline.plan.scenario_file import read_scenario, scenario
from ridgeline.sim import Prediction, predict, simulate, timeline
from ridgeline.trace import Timeline, write_chrome

MEASURED = "examples/llama3-8b-8xh100-measured.toml"
OTHER = "examples/llama3-70b-64xh100.toml"


def table(layers: int = 4, hidden: int = 1024, batch: int = 4, seq: int = 512, **plan: Any) -> dict[str, Any]:
    """A small model that an eager engine runs on one chip: the host issues slower than the chip executes."""
    return {
        "model": {"base": "llama3.2-1b", "layers": layers, "hidden": hidden, "tied": False},
        "system": "1xh100-sxm",
        "workload": {"seq": seq, "global_batch": batch},
        "plan": {"microbatch": batch, "engine": "torch-eager", **plan},
    }


HOST_BOUND = [table(layers=layers, batch=batch) for layers in (4, 8, 16) for batch in (1, 2)]
CHIP_BOUND = [table(layers=layers, batch=8, seq=4096, hidden=2048) for layers in (4, 8, 16)]


def runs(tables: Sequence[dict[str, Any]], truth: Calibration) -> Dataset:
    """Rows that measured what another calibration says."""
    rows = []
    for index, own in enumerate(tables):
        found = predict(scenario(own), truth)
        assert isinstance(found, Prediction)
        cells = {
            "measured_metric": "step_time_s", "measured_value": repr(found.step_time_s), "x_scenario": json.dumps(own),
            "x_complete": "full", "x_task": "pretrain", "x_trust": "A",
        }  # fmt: skip
        rows.append(Row(id=f"own-{index}", table="own.csv", cells=cells))
    return dataset_of(rows)


def usual() -> Calibration:
    """The shipped parameters with hosts at their default: fitted ones stand near the end of their range."""
    kept = {name: x for name, x in default_calibration().offsets.items() if name.partition("/")[0] != "host"}
    return replace(default_calibration(), offsets=kept)


def slower_host(factor: float) -> Calibration:
    """A truth in which one engine takes longer to issue kernels, and all else is as usual."""
    item, start = PARAMETERS["host"], usual()
    at = start.offsets.get("host", 0.0) + sum(start.offsets.get(f"host/{of}", 0.0) for of in ("torch*", "torch-eager"))
    wanted = item.value(at) * factor
    moved = next(x for x in np.arange(0, 6, 0.01) if item.value(at + float(x)) >= wanted)
    own = start.offsets.get("host/torch-eager", 0.0) + float(moved)
    return replace(start, offsets={**start.offsets, "host/torch-eager": own})


def step(own: dict[str, Any], calibration: Calibration) -> float:
    found = predict(scenario(own), calibration)
    assert isinstance(found, Prediction)
    return found.step_time_s


def test_a_slower_host_is_recovered_from_runs_of_several_shapes() -> None:
    truth = slower_host(1.12)
    chip, engine = (built := scenario(HOST_BOUND[0])).system.chip, built.engine
    true, before = (each.value("host", chip, engine) for each in (truth, usual()))
    assert true == pytest.approx(1.12 * before, rel=0.02)
    surer = replace(usual(), components=Components(owners=0.6, shared=0.02, same=0.02, near=0.02, noise=0.02))
    found = anchored_by(surer, runs([*HOST_BOUND[:5], *CHIP_BOUND], truth))
    after = found.value("host", chip, engine)
    assert abs(after / true - 1) < 0.06 < abs(before / true - 1)
    memory = [each.value("memory", chip, engine) for each in (found, truth)]
    assert memory[0] == pytest.approx(memory[1], rel=0.03)  # what was right stays
    left = HOST_BOUND[5]
    assert abs(step(left, found) / step(left, truth) - 1) < 0.02 < abs(step(left, usual()) / step(left, truth) - 1)


def test_one_run_corrects_a_run_like_it_some_of_the_way() -> None:
    truth = slower_host(1.12)
    found = anchored_by(usual(), runs(HOST_BOUND[:1], truth))
    off = [step(HOST_BOUND[0], each) / step(HOST_BOUND[0], truth) - 1 for each in (usual(), found)]
    assert abs(off[1]) < 0.75 * abs(off[0])  # runs of one source differ nearly as much as sources do
    assert off[0] < off[1] < 0


def test_the_anchored_interval_is_narrower_and_covers() -> None:
    truth = slower_host(1.12)
    found = anchored_by(usual(), runs(HOST_BOUND[:3], truth))
    for own in HOST_BOUND[3:]:
        before, after = (predict(scenario(own), each) for each in (usual(), found))
        assert isinstance(before, Prediction)
        assert isinstance(after, Prediction)
        assert after.interval.low < step(own, truth) < after.interval.high
        assert after.interval.high / after.interval.low < before.interval.high / before.interval.low
        assert after.anchor is not None
        assert after.anchor.factor == pytest.approx(after.step_time_s / before.step_time_s)


def test_more_runs_narrow_further_and_noise_remains() -> None:
    truth, widths = slower_host(1.12), []
    for count in (1, 2, 5):
        found = predict(scenario(HOST_BOUND[5]), anchored_by(usual(), runs(HOST_BOUND[:count], truth)))
        assert isinstance(found, Prediction)
        assert found.anchor is not None
        widths.append(found.anchor.narrowed)
    assert 1 > widths[0] > widths[1] > widths[2] > 0.3


def test_other_software_on_another_machine_is_moved_weakly() -> None:
    found = anchor_calibration(None, MEASURED)
    own, other = predict(read_scenario(MEASURED), found), predict(read_scenario(OTHER), found)
    assert isinstance(own, Prediction)
    assert isinstance(other, Prediction)
    assert own.anchor is not None
    assert other.anchor is not None
    assert own.anchor.factor - 1 > 4 * (other.anchor.factor - 1) > 0
    assert own.anchor.narrowed < other.anchor.narrowed - 0.02


def test_a_run_that_contradicts_the_others_counts_less() -> None:
    among = np.full((4, 4), 0.01)
    weight, noise = condition_on(among, np.array([0.1, 0.1, 0.1, 1.5]), 0.05)
    alike, _ = condition_on(among, np.full(4, 0.1), 0.05)
    assert noise[3] > 2 * noise[0]
    assert 0.1 < 0.01 * weight.sum() < 0.2
    assert 0.01 * alike.sum() == pytest.approx(0.1, rel=0.1)


def test_every_part_and_every_event_goes_at_the_pace() -> None:
    built, found = read_scenario(MEASURED), anchor_calibration(None, MEASURED)
    pace = pace_of(found, built)
    assert pace > 1.02
    plain = predict(built, replace(found, anchored=None))
    paced = predict(built, found)
    assert isinstance(plain, Prediction)
    assert isinstance(paced, Prediction)
    for before, after in zip(plain.breakdown, paced.breakdown, strict=True):
        assert after.seconds == pytest.approx(before.seconds * pace)
    events: list[Any] = [simulate(built, each) for each in (replace(found, anchored=None), found)]
    assert events[1].step_s == pytest.approx(events[0].step_s * pace)


def test_anchors_stand_upon_a_calibration(tmp_path: Path) -> None:
    """--calibration is the prior; a further --anchor counts with the runs that anchored it before."""
    truth = slower_host(1.12)
    both, first = (anchored_by(usual(), runs(HOST_BOUND[:count], truth)) for count in (2, 1))
    later = replace(runs(HOST_BOUND[:2], truth))
    rest = dataset_of(later.rows[1:])
    again = anchored_by(first, rest)
    assert [run.id for run in again.anchored.runs] == ["own-0", "own-1"]  # type: ignore[union-attr]
    assert step(HOST_BOUND[4], again) == pytest.approx(step(HOST_BOUND[4], both), rel=0.01)
    back = again.before_anchors()
    assert {name: back.offsets.get(name, 0.0) for name in usual().offsets} == pytest.approx(dict(usual().offsets))
    own = tmp_path / "prior.json"
    own.write_text(json.dumps({"source": "mine", "offsets": {"memory": 0.5}}), encoding="utf-8")
    told = ridgeline.predict(read_scenario(MEASURED), own, anchor=MEASURED)
    same = predict(read_scenario(MEASURED), anchor_calibration(Calibration.read(own), MEASURED))
    assert told == same
    assert told != ridgeline.predict(read_scenario(MEASURED), anchor=MEASURED)


def cli(*words: str) -> dict[str, Any]:
    done = CliRunner().invoke(command_line(), [*words, "--json"])
    assert done.exit_code == 0, done.output
    return dict(json.loads(done.stdout))


def test_fit_with_writes_what_anchor_predicts_with(tmp_path: Path) -> None:
    out = str(tmp_path / "mine.json")
    fitted = cli("fit", "--with", MEASURED, "-o", out)
    assert fitted["mape"]["after_s"] < fitted["mape"]["before_s"] == fitted["mape"]["held_out_s"]
    by_file, by_run = cli("predict", OTHER, "--calibration", out), cli("predict", OTHER, "--anchor", MEASURED)
    assert by_file == by_run
    assert by_run["anchor"]["runs"] == ["own-llama3-8b-8xh100-measured"]
    assert by_run["assumptions"][0].startswith("anchored on own-llama3-8b-8xh100-measured: step x")
    assert "anchor" not in cli("predict", OTHER)


def test_a_plan_is_searched_under_the_anchored_calibration() -> None:
    words = ("plan", "llama3-8b", "--on", "8xh100-sxm", "--global-batch", "64", "--set", "plan.engine=torchtitan")
    pinned = (*words, "--set", "plan.pp=1", "--set", "plan.tp=1", "--set", "plan.cp=1", "--no-refine")
    before, after = cli(*pinned), cli(*pinned, "--anchor", MEASURED)
    assert after["plans"][0]["step_time_s"] > 1.02 * before["plans"][0]["step_time_s"]
    assert any(note.startswith("anchored on") for note in after["assumptions"])
    asked = ridgeline.PlanRequest.from_options(
        "llama3-8b",
        on="8xh100-sxm",
        global_batch=64,
        settings=["plan.engine=torchtitan", "plan.pp=1", "plan.tp=1", "plan.cp=1"],
        refine=False,
    )
    found = ridgeline.recommend(asked, anchor=MEASURED)
    assert found.reasons is not None
    assert found.reasons.plans[0].step_time_s == pytest.approx(after["plans"][0]["step_time_s"])
    assert "measured" not in found.scenario_text


def measured(folder: Path, text: str) -> str:
    path = folder / "own.toml"
    whole = Path(MEASURED).read_text(encoding="utf-8").partition("[measured]")[0]
    path.write_text(whole + text, encoding="utf-8")
    return str(path)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", r"measured: got nothing, expected a table"),
        ("[measured]\n", "one of step_time_s and tokens_per_s_per_chip"),
        ("[measured]\nstep_time_s = 0\n", "seconds of a step, above 0"),
        ('[measured]\nstep_time_s = "9 s"\n', "seconds of a step, above 0"),
        ("[measured]\nstep_time_s = nan\n", "seconds of a step, above 0"),
        ("[measured]\nstep_time_s = 1\ntokens_per_s_per_chip = 1\n", "expected one of"),
        ("[measured]\nstep_times = 1\n", "step_time_s"),
    ],
)
def test_what_a_scenario_says_was_measured_is_checked(tmp_path: Path, text: str, told: str) -> None:
    with pytest.raises(InputError, match=told):
        anchor_calibration(None, measured(tmp_path, text))


def test_tokens_per_second_say_the_same_as_seconds(tmp_path: Path) -> None:
    tokens = 64 * 8192 / 11.2 / 8
    one = anchor_calibration(None, measured(tmp_path, f"[measured]\ntokens_per_s_per_chip = {tokens!r}\n"))
    assert step_of(one) == pytest.approx(step_of(anchor_calibration(None, MEASURED)))


def step_of(calibration: Calibration) -> float:
    found = predict(read_scenario(MEASURED), calibration)
    assert isinstance(found, Prediction)
    return found.step_time_s


@pytest.mark.parametrize(
    ("run", "told"),
    [
        ("none.csv", "no such file"),
        ("none.toml", "no such file"),
        ("run.parquet", "TRACE@SCENARIO"),
        ("none.json@" + MEASURED, "both there"),
        ("README.md@none.toml", "no such file"),
        ("src/ridgeline/calibrate/truth/training.csv", "runs of your own"),
        ("src/ridgeline/calibrate/truth/collectives.csv", "expected a table of training runs"),
    ],
)
def test_anchors_that_are_none_are_refused(run: str, told: str) -> None:
    with pytest.raises(InputError, match=told):
        ridgeline.predict(read_scenario(MEASURED), anchor=run)


@pytest.mark.parametrize(
    "broken",
    [
        {"anchored": []},
        {"anchored": {"runs": [], "moved": {}, "components": {}}},
        {"anchored": {"runs": [{}], "moved": {}}},
        {"components": {"owners": "much"}},
        {"components": {"owners": -1}},
    ],
)
def test_a_calibration_with_broken_anchors_is_refused(tmp_path: Path, broken: dict[str, Any]) -> None:
    path = tmp_path / "c.json"
    path.write_text(json.dumps({"source": "x", "offsets": {}, **broken}), encoding="utf-8")
    with pytest.raises(InputError, match="anchored"):
        Calibration.read(path)


def test_a_scenario_with_a_measurement_predicts_as_without(tmp_path: Path) -> None:
    bare: Scenario = read_scenario(measured(tmp_path, ""))
    assert step_of(default_calibration()) == getattr(predict(bare), "step_time_s")  # noqa: B009


def test_a_trace_with_its_scenario_anchors_as_its_residuals(tmp_path: Path) -> None:
    own, trace = "examples/llama3.2-1b-1xh200.toml", tmp_path / "run.json"
    built = read_scenario(own)
    slower = replace(default_calibration(), offsets={**default_calibration().offsets, "slack": 2.0})
    line = timeline(built, slower)
    assert isinstance(line, Timeline)
    write_chrome(line, trace)
    write_residuals(explain(own, trace), tmp_path / "residuals.csv")
    by_trace, by_table = (anchor_calibration(None, run) for run in (f"{trace}@{own}", str(tmp_path / "residuals.csv")))
    calibrations = (default_calibration(), by_trace, by_table, slower)
    steps = [getattr(predict(built, calibration), "step_time_s") for calibration in calibrations]  # noqa: B009
    assert steps[0] * 1.005 < steps[1] < steps[3]
    assert steps[1] == pytest.approx(steps[2], rel=1e-6)
    assert by_trace.anchored is not None
    assert by_trace.anchored.runs[0].measured_s == pytest.approx(steps[3], rel=1e-3)
