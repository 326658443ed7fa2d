"""A recommendation is what the verb prints; whoever watches may stop it and still gets what was found."""

from __future__ import annotations

import ast
import json
import sys
from pathlib import Path

import pytest

import ridgeline
from ridgeline.cli.main import main
from ridgeline.core.encode import answer_json
from ridgeline.core.errors import InputError
from ridgeline.plan.scenario_file import read_scenario
from ridgeline.search.progress import Progress
from ridgeline.search.recommendation import SearchTime
from ridgeline.search.training.recommendation import Recommendation, recommend
from ridgeline.search.training.request import PlanOptions, PlanRequest
from ridgeline.sim.predict_step import predict
from ridgeline.sim.prediction import Prediction

SOURCE = Path(ridgeline.__file__).parent / "search"
TIMED = ("seconds", "cpu_seconds", "explain_seconds")
SMALL: PlanOptions = {
    "on": "8xh100-sxm",
    "seq": 4096,
    "global_batch": 64,
    "settings": ("plan.tp=1,2", "plan.pp=1,2", "plan.cp=1", "plan.microbatch=1,2"),
}
OPTIONS = (
    "--on", "8xh100-sxm", "--seq", "4096", "--global-batch", "64", "--set", "plan.tp=1,2", "--set", "plan.pp=1,2",
    "--set", "plan.cp=1", "--set", "plan.microbatch=1,2",
)  # fmt: skip


@pytest.fixture(scope="module")
def found() -> Recommendation:
    return recommend(PlanRequest.from_options("llama3-8b", **SMALL))


def test_the_verb_prints_the_function(
    found: Recommendation, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    target = tmp_path / "found.toml"
    monkeypatch.setattr(sys, "argv", ["ridgeline", "plan", "llama3-8b", *OPTIONS, "--json", "-o", str(target)])
    with pytest.raises(SystemExit):
        main()
    printed = json.loads(capsys.readouterr().out)
    sheet = json.loads(json.dumps(answer_json(found.report(SearchTime(seconds=0, cpu_seconds=0, explain_seconds=0)))))
    assert all(printed[key] > 0 for key in TIMED)
    assert {**printed, **dict.fromkeys(TIMED, 0)} == sheet
    assert target.read_text(encoding="utf-8") == found.scenario_text


def test_what_is_recommended_is_what_the_file_says(found: Recommendation, tmp_path: Path) -> None:
    target = tmp_path / "found.toml"
    target.write_text(found.scenario_text, encoding="utf-8")
    again = predict(read_scenario(target))
    assert isinstance(again, Prediction)
    assert found.reasons is not None
    assert again.step_time_s == pytest.approx(found.reasons.recommended.step_time_s, rel=1e-12)
    assert again.scenario.plan == found.reasons.recommended.scenario.plan


def test_nothing_left_out_is_told_as_incomplete(found: Recommendation) -> None:
    assert found.reasons is not None
    assert (found.complete, found.reasons.complete, found.problems) == (True, True, ())
    assert len(found.reasons.simulated_s) == len(found.reasons.plans) == 5
    assert found.considered > found.feasible > 0
    assert found.frontier_axes == ("time", "memory")


def test_both_phases_are_told() -> None:
    told: list[Progress] = []
    found = recommend(PlanRequest.from_options("llama3-8b", **SMALL), told.append)
    phases = [one.phase for one in told]
    assert phases == sorted(phases, key=("search", "explain").index)
    searched = [one for one in told if one.phase == "search"]
    assert (searched[-1].what, searched[-1].priced) == ("8xh100-sxm", found.considered)
    assert found.chosen is not None
    assert found.chosen.best is not None
    assert searched[-1].best_s == pytest.approx(found.chosen.best.step_time_s, rel=1e-9)


def test_a_stopped_search_recommends_the_best_so_far(found: Recommendation) -> None:
    asked: list[Progress] = []

    def watch(progress: Progress) -> bool:
        asked.append(progress)
        return progress.best_s == float("inf")  # until there is a plan

    made = recommend(PlanRequest.from_options("llama3-8b", **SMALL), watch)
    assert not made.complete
    assert 0 < made.considered < found.considered
    assert made.reasons is not None
    assert made.reasons.plans
    assert (made.reasons.complete, made.reasons.what_if, made.reasons.simulated_s) == (False, (), ())
    assert made.reasons.refinement is None
    assert made.reasons.why.losses, "alternatives that were priced already are told"
    assert [one.phase for one in asked].count("explain") == 1


def test_other_systems_are_not_searched_after_a_stop() -> None:
    options: PlanOptions = {**SMALL, "on": "8xh100-sxm,16xh100-sxm"}
    made = recommend(PlanRequest.from_options("llama3-8b", **options), lambda progress: progress.priced == 0)
    assert [one.scenario.system.chips for one in made.outcomes] == [8]


@pytest.mark.parametrize("pieces", [0, 3, 8])
def test_a_stop_of_the_reasons_keeps_the_plan_and_what_was_tried(found: Recommendation, pieces: int) -> None:
    left = pieces

    def watch(progress: Progress) -> bool:
        nonlocal left
        left -= progress.phase == "explain"
        return left >= 0

    made = recommend(PlanRequest.from_options("llama3-8b", **SMALL), watch)
    assert made.complete
    assert made.reasons is not None
    assert found.reasons is not None
    assert not made.reasons.complete
    assert made.reasons.plans == found.reasons.plans
    assert all(one in found.reasons.what_if for one in made.reasons.what_if)
    assert made.reasons.recommended == found.reasons.plans[0]


def test_once_stopped_it_stays_stopped() -> None:
    answers: list[bool] = []

    def watch(progress: Progress) -> bool:
        answers.append(progress.phase == "search" or len(answers) % 2 == 0)
        return answers[-1]

    made = recommend(PlanRequest.from_options("llama3-8b", **SMALL), watch)
    assert made.reasons is not None
    assert not made.reasons.complete


def test_why_there_is_none_is_a_value() -> None:
    made = recommend(PlanRequest.from_options("llama3-70b", on="8xa100-40-sxm"))
    assert (made.chosen, made.reasons, made.scenario_text) == (None, None, "")
    assert [problem.path for problem in made.problems] == ["memory"]
    stopped = recommend(PlanRequest.from_options("llama3-70b", on="8xa100-40-sxm"), lambda _: False)
    assert (stopped.complete, stopped.chosen, stopped.problems) == (False, None, ())


def test_what_helps_is_tried_until_it_is_stopped() -> None:
    asked: list[str] = []

    def watch(progress: Progress) -> bool:
        asked.append(progress.what) if progress.phase == "explain" else None
        return progress.phase == "search"

    made = recommend(PlanRequest.from_options("llama3-70b", on="8xa100-40-sxm"), watch)
    assert made.complete
    (problem,) = made.problems
    assert "GiB too much" in problem.expected
    assert problem.todo == "what helps: a smaller model"
    assert len(asked) == 2, "the phase, and the first thing to try"


def test_refinement_can_be_left_out(found: Recommendation) -> None:
    assert found.reasons is not None
    assert found.reasons.refinement is not None
    options: PlanOptions = {**SMALL, "refine": False}
    made = recommend(PlanRequest.from_options("llama3-8b", **options))
    assert made.reasons is not None
    assert made.reasons.refinement is None
    assert made.reasons.complete
    assert made.reasons.recommended == made.reasons.plans[0]


def test_a_goal_that_cannot_be_met_is_refused() -> None:
    with pytest.raises(InputError, match="--tokens"):
        recommend(PlanRequest.from_options("llama3-8b", on="8xh100-sxm", days=3))


def names(tree: ast.AST) -> set[str]:
    """What a file imports, what it raises, and what it catches."""
    found: set[str] = set()
    for node in ast.walk(tree):
        match node:
            case ast.Import():
                found |= {alias.name for alias in node.names}
            case ast.ImportFrom():
                found |= {node.module or "", *(alias.name for alias in node.names)}
            case ast.Name(id="KeyboardInterrupt"):
                found.add(node.id)
            case _:
                pass
    return found


@pytest.mark.parametrize("path", sorted(SOURCE.rglob("*.py")), ids=lambda path: str(path.relative_to(SOURCE)))
def test_search_reads_no_clock_and_catches_no_signal(path: Path) -> None:
    used = names(ast.parse(path.read_text(encoding="utf-8")))
    assert not used & {"time", "datetime", "signal", "threading", "KeyboardInterrupt"}
