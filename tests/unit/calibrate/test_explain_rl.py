"""The gap between a predicted step of post-training and the phases that a run wrote."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from command import run

import ridgeline
from ridgeline.calibrate.explain_rl import RlExplanation
from ridgeline.core.errors import InputError
from ridgeline.trace import Timeline, write_chrome
from ridgeline.trace.timeline import Span

EXAMPLE = Path(__file__).parents[3] / "examples" / "grpo-2xcpu.toml"
SPLIT = ("plan.rl.placement=split", "plan.rl.train_chips=1", "plan.dp=1")


def written(path: Path, processes: dict[str, dict[str, tuple[float, float]]], steps: int = 3) -> Path:
    """A trace file of some steps of ten seconds: of each process its phases, from second to second."""
    spans = [
        Span(
            process=process, stream="train", name=phase, kind=phase, start_ns=round((10 * step + begin) * 1e9),
            duration_ns=round((end - begin) * 1e9),
        )
        for process, phases in processes.items()
        for step in range(steps)
        for phase, (begin, end) in phases.items()
    ]  # fmt: skip
    write_chrome(Timeline.of(spans), path)
    return path


def explained(path: Path, *settings: str) -> RlExplanation:
    found = ridgeline.explain(EXAMPLE, path, settings=settings)
    assert isinstance(found, RlExplanation)
    return found


def test_the_gaps_of_the_phases_sum_to_that_of_the_step(tmp_path: Path) -> None:
    phases = {"rollout": (0.0, 4.0), "reward": (4.0, 4.5), "log-probs": (5.0, 6.0), "train": (6.0, 9.0)}
    found = explained(written(tmp_path / "t.json", {"worker 0": phases, "worker 1": phases}))
    measured = {row.phase: row.measured_s for row in found.phases}
    assert (found.steps, found.measured_s) == (2, pytest.approx(10.0))
    assert measured["generate"] == pytest.approx(4.0)
    assert measured["update"] == pytest.approx(3.0)
    assert measured["other"] == pytest.approx(1.5)  # nobody works
    gaps = sum(row.gap_s for row in found.phases)
    assert gaps == pytest.approx(found.measured_s - found.predicted_s)
    assert [(pool.pool, pool.processes) for pool in found.pools] == [("all", 2)]
    assert found.pools[0].measured_s == pytest.approx(8.5)


def test_what_generation_hides_of_itself_is_not_counted_where_it_has_chips_of_its_own(tmp_path: Path) -> None:
    trainer = {"log-probs": (3.0, 4.0), "train": (4.0, 8.0)}
    trace = written(tmp_path / "t.json", {"train 0": trainer, "rollout 0": {"rollout": (0.0, 6.0)}})
    found = explained(trace, *SPLIT)
    measured = {row.phase: row.measured_s for row in found.phases}
    assert measured["generate"] == pytest.approx(5.0)  # the trainer waits for five of ten seconds
    assert sum(row.gap_s for row in found.phases) == pytest.approx(found.measured_s - found.predicted_s)
    assert {pool.pool: pool.measured_s for pool in found.pools} == {
        "train": pytest.approx(5.0), "rollout": pytest.approx(6.0),
    }  # fmt: skip


def test_a_critic_a_reference_and_a_teacher_are_held_against_their_own_phases(tmp_path: Path) -> None:
    phases = {
        "rollout": (0.0, 3.0), "log-probs": (3.0, 4.0), "critic": (4.0, 4.5), "critic update": (5.0, 7.0),
        "train": (7.0, 9.0), "held out": (9.0, 9.25),
    }  # fmt: skip
    trace = written(tmp_path / "ppo.json", {"worker 0": phases})
    found = explained(trace, "workload.algorithm=ppo", "workload.roles.critic=true")
    rows = {row.phase: row for row in found.phases}
    assert rows["critic"].measured_s == pytest.approx(0.5)
    assert rows["critic update"].measured_s == pytest.approx(2.0)
    assert min(rows["critic"].predicted_s, rows["critic update"].predicted_s) > 0
    assert rows["held out"].measured_s == pytest.approx(0.25)
    assert sum(row.gap_s for row in found.phases) == pytest.approx(found.measured_s - found.predicted_s)
    pairs = {"train 0": {"reference": (0.0, 1.0), "train": (1.0, 4.0)}}
    settings = ("workload.algorithm=dpo", "workload.roles.reference=true", "workload.samples=1")
    found = explained(written(tmp_path / "dpo.json", pairs), *settings)
    assert {row.phase for row in found.phases} == {"reference", "update", "other"}
    assert [(pool.pool, pool.processes, pool.measured_s) for pool in found.pools] == [("all", 1, pytest.approx(4.0))]


@pytest.mark.parametrize("phases", [{"forward": (0.0, 1.0)}, {}])
def test_a_trace_of_something_else_is_refused(tmp_path: Path, phases: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        explained(written(tmp_path / "t.json", {"worker 0": phases or {"x": (0.0, 1.0)}}))


def test_one_step_is_too_few(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="one step"):
        explained(written(tmp_path / "t.json", {"worker 0": {"train": (0.0, 1.0)}}, steps=1))


def test_the_command_line_prints_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    trace = written(tmp_path / "t.json", {"worker 0": {"train": (0.0, 1.0)}})
    code, out, _ = run(capsys, monkeypatch, "explain", str(EXAMPLE), str(trace), "--json")
    found = json.loads(out)
    assert (code, found["kind"]) == (0, "rl_explanation")
    assert set(found["phases"][0]) == {"phase", "predicted_s", "measured_s", "gap_s"}
    assert "generate" in run(capsys, monkeypatch, "explain", str(EXAMPLE), str(trace))[1]
