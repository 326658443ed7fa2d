"""Runs of post-training: the same seed, every placement, checkpoints, lost workers, refusals, what is told."""

from __future__ import annotations

import json
import os
import random
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import command

import ridgeline
from ridgeline.core.errors import InputError
from ridgeline.runtime.rl import RlOutcome, RlStepRow
from ridgeline.runtime.rl.crew import LocalCrew, LocalProcess, Worker
from ridgeline.runtime.rl.request import RlRunRequest, Seat
from ridgeline.runtime.rl.run_rl import run_post_training
from ridgeline.runtime.train.request import RunOptions, WorkerLost
from ridgeline.runtime.train.run_folder import steps
from ridgeline.trace import read_timeline

EXAMPLE = Path(__file__).parents[4] / "examples" / "grpo-2xcpu.toml"
TINY: dict[str, Any] = {
    "model": {
        "hidden": 32, "layers": 2, "vocab": 48, "tied": True, "attention": {"heads": 4, "kv_heads": 2},
        "mlp": {"hidden": 64},
    },
    "system": "1xcpu",
    "workload": {
        "kind": "rl", "algorithm": "grpo", "prompts": 8, "samples": 4, "prompt_tokens": 4, "response_tokens": 5,
        "mini_batch": 4, "learning": {"task": "arithmetic", "rate": 1e-2, "warm_up": 25},
    },
    "plan": {"precision": "fp32", "microbatch": 8, "engine": "ridgeline"},
}  # fmt: skip
SPLIT = {"placement": "split", "train_chips": 1}
PLACEMENTS: dict[str, dict[str, Any]] = {
    "split": SPLIT,
    "one-step-off": {"placement": "one-step-off", "train_chips": 1},
    "async": {"placement": "async", "train_chips": 1, "staleness": 2},
    "partial": {"placement": "async", "train_chips": 1, "staleness": 2, "partial_rollouts": True},
}


def tiny(*settings: str, system: str = "1xcpu", rl: dict[str, Any] | None = None, **learning: Any) -> Any:
    """The scenario above, changed."""
    table = json.loads(json.dumps(TINY))
    table["system"] = system
    table["workload"]["learning"] |= learning
    table["plan"]["rl"] = rl or {}
    return ridgeline.scenario(table, settings)


def run(scenario: Any, **options: Any) -> RlOutcome:
    return run_post_training(scenario, RunOptions(**{"steps": 3, **options}))


def rewards(outcome: RlOutcome) -> list[float]:
    return [row.reward for row in outcome.rows]


def test_the_same_seed_gives_the_same_run_and_another_one_another() -> None:
    first, again, other = run(tiny()), run(tiny()), run(tiny("workload.seed=1"))
    assert max(rewards(first)) > 0
    assert first.rows[-1].gradient_norm > 0
    assert [(row.reward, row.loss, row.gradient_norm) for row in first.rows] == [
        (row.reward, row.loss, row.gradient_norm) for row in again.rows
    ]
    assert [row.gradient_norm for row in other.rows] != [row.gradient_norm for row in first.rows]


def test_trainer_and_sampler_agree_on_every_token_they_share() -> None:
    for row in run(tiny(temperature=0.8)).rows:
        assert row.mismatch.mean is not None
        assert row.mismatch.largest is not None
        assert row.mismatch.largest < 1e-5
        assert row.staleness.largest == 0


def test_every_algorithm_and_the_tool_task_run() -> None:
    cases: tuple[tuple[tuple[str, ...], dict[str, Any]], ...] = (
        (("workload.algorithm=dapo", "workload.oversampling=1.5"), {"overlong": 2}),
        (("workload.algorithm=rloo", "workload.epochs=2"), {}),
        (("workload.algorithm=reinforce++",), {"average": "seq-mean-token-sum"}),
        (("workload.algorithm=reinforce++", "workload.samples=1"), {}),
        (("workload.roles.reference=true",), {"kl": 0.1}),
        (("workload.response_tokens=12",), {"task": "calculator"}),
        ((), {"task": "rewrite"}),
        (("plan.precision=bf16",), {}),
    )
    for settings, learning in cases:
        found = run(tiny(*settings, **{"warm_up": 2, **learning}), steps=2)
        assert len(found.rows) == 2, settings
        assert all(row.gradient_norm >= 0 and row.response_tokens >= 1 for row in found.rows), settings


def test_dapo_samples_more_prompts_than_it_trains_on() -> None:
    found = run(tiny("workload.algorithm=dapo", "workload.oversampling=1.5"))
    assert {row.samples for row in found.rows} == {12 * 4}


def test_a_reference_pulls_the_policy_back_once_it_has_moved() -> None:
    free = run(tiny(), steps=3)
    near = run(tiny("workload.roles.reference=true", kl=5.0), steps=3)
    assert near.rows[0].reward == free.rows[0].reward
    assert near.rows[-1].loss > free.rows[-1].loss
    assert "reference" in near.rows[0].phases
    assert "reference" not in free.rows[0].phases


def test_a_run_writes_its_steps_and_phases_and_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    whole = run(tiny(), steps=5)
    folder = tmp_path / "run"
    told: list[RlStepRow] = []
    first = run_post_training(tiny(), RunOptions(steps=3, folder=str(folder), every=1), tell=told.append)
    again = run(tiny(), steps=5, folder=str(folder), resume=True)
    assert [row.step for row in told] == [1, 2, 3]
    assert again.resumed == 3
    assert [row.loss for row in (*first.rows, *again.rows)] == [row.loss for row in whole.rows]
    assert steps(folder / "checkpoints")[0] == 5
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 2, 3, 4, 5]
    assert set(lines[0]) >= {"reward", "loss", "mismatch", "staleness", "phases", "seconds"}
    timeline = read_timeline(folder / "timeline.json")
    assert set(timeline.names) == {"rollout", "reward", "log-probs", "train", "sync"}
    assert timeline.processes == ("worker 0",)


REFUSALS: tuple[tuple[tuple[str, ...], dict[str, Any], str], ...] = (
    (("workload.roles.critic=true",), {}, "workload.roles.critic"),
    (("workload.roles.reward_model=true",), {}, "workload.roles.reward_model"),
    (("workload.algorithm=distill-on-policy", "workload.roles.teacher=qwen2.5-7b"), {}, "workload.roles.teacher.model"),
    (("workload.algorithm=sft", "workload.samples=1", "workload.learning.kl=0.1"), {}, "workload.learning.kl"),
    (
        ("workload.algorithm=continual", "workload.samples=1", "workload.replay={share=0.2}"),
        {},
        "workload.sources",
    ),
    (("plan.tp=2", "plan.dp=1"), {}, "plan.tp"),
    (("model.vocab=20",), {}, "model.vocab"),
    (("workload.samples=3", "plan.dp=2"), {}, "workload.samples"),
    (("plan.rl.sync_every=2",), {}, "plan.rl.sync_every"),
    (("plan.precision=fp16",), {}, "plan.precision"),
    (("workload.roles.reference=true",), {}, "workload.learning.kl"),
    (("workload.learning.kl=0.1",), {}, "workload.learning.kl"),
    (('workload.response_tokens={kind="lognormal", mean=4}',), {}, "workload.response_tokens"),
    (("workload.drift={growth=2, steps=4}",), {}, "workload.drift"),
    ((), {"verify": True}, "--verify"),
    ((), {"weights": "somewhere"}, "--weights"),
    ((), {"rate": 1e-2}, "--rate"),
    ((), {"restarts": 2}, "-o"),
    ((), {"steps": 0}, "--steps"),
)


@pytest.mark.parametrize(("settings", "options", "path"), REFUSALS)
def test_what_a_run_does_not_do_is_refused_by_name(
    settings: tuple[str, ...], options: dict[str, Any], path: str
) -> None:
    table = json.loads(json.dumps(TINY)) | {"system": "2xcpu"}
    table["workload"] |= {"mini_batch": 1} if path == "workload.samples" else {}
    with pytest.raises(InputError) as caught:
        run(ridgeline.scenario(table, settings), **options)
    assert path in [problem.path for problem in caught.value.problems], caught.value


def test_a_task_has_to_be_named() -> None:
    table = json.loads(json.dumps(TINY))
    del table["workload"]["learning"]["task"]
    with pytest.raises(InputError, match=r"workload\.learning\.task"):
        run(ridgeline.scenario(table))


def test_an_interrupt_ends_the_run_behind_its_step_with_a_checkpoint(tmp_path: Path) -> None:
    def interrupt(row: RlStepRow) -> None:
        if row.step == 2:
            os.kill(os.getpid(), signal.SIGINT)

    options = RunOptions(steps=50, folder=str(tmp_path / "run"))
    found = run_post_training(tiny(warm_up=1), options, tell=interrupt)
    assert found.stopped
    assert 2 <= len(found.rows) <= 3
    assert steps(tmp_path / "run" / "checkpoints")[0] == len(found.rows)


def test_the_command_line_runs_refuses_and_prints_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "tiny.json"
    file.write_text(json.dumps(TINY))
    code, out, _ = command.run(capsys, monkeypatch, "run", str(file), "--steps", "2")
    assert code == 0
    assert "step 1/2  reward" in out
    assert "done at step 2: grpo, colocated: 1 rank(s) train, 1 replica(s) generate" in out
    code, out, _ = command.run(capsys, monkeypatch, "run", str(file), "--steps", "2", "--json")
    assert json.loads(out)["kind"] == "rl_run"
    code, _, err = command.run(capsys, monkeypatch, "run", str(file), "--set", "workload.samples=1")
    assert code == 2
    assert "workload.samples" in err


# -- processes of this host -------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("name", PLACEMENTS)
def test_every_placement_keeps_its_bound(name: str) -> None:
    rl = PLACEMENTS[name]
    found = run(tiny(system="3xcpu", rl=rl), steps=6)
    assert (found.train_ranks, found.replicas) == (1, 2)
    most = {"split": 0, "one-step-off": 1}.get(name, 2)
    assert max(row.staleness.largest for row in found.rows) <= most
    if name != "split":
        assert max(row.staleness.largest for row in found.rows) > 0


@pytest.mark.slow
def test_ranks_that_share_the_work_learn_what_one_learns() -> None:
    alone, colocated, split = (
        run(tiny(), steps=4),
        run(tiny("plan.shard=zero3", system="2xcpu"), steps=4),
        run(tiny("plan.shard=zero1", system="3xcpu", rl={**SPLIT, "train_chips": 2}), steps=4),
    )
    for shared in (colocated, split):
        assert [row.loss for row in shared.rows[:2]] == pytest.approx([row.loss for row in alone.rows[:2]], abs=1e-5)
        assert rewards(shared)[:2] == rewards(alone)[:2]


class DoomedCrew(LocalCrew):
    """Local processes that somebody can kill."""

    def __init__(self) -> None:
        self.workers: list[Worker] = []
        self.lock = threading.Lock()

    def start(self, request: RlRunRequest, seats: tuple[Seat, ...]) -> list[Worker]:
        started = super().start(request, seats)
        with self.lock:
            self.workers = [one for one in self.workers if one.seat not in seats] + started
        return started

    def kill(self, draw: random.Random) -> Seat:
        with self.lock:
            worker = draw.choice(self.workers)
        assert isinstance(worker, LocalProcess)
        if worker.process.pid is not None and worker.process.is_alive():
            os.kill(worker.process.pid, signal.SIGKILL)
        return worker.seat


@pytest.mark.slow
@pytest.mark.parametrize("rl", [{}, SPLIT, PLACEMENTS["partial"]], ids=["colocated", "split", "async"])
def test_random_kills_cost_unfinished_samples_alone(tmp_path: Path, rl: dict[str, Any]) -> None:
    """Twenty kills over three placements: every step is trained once more at most, and none is left out."""
    kills, draw, crew = 7, random.Random(len(rl)), DoomedCrew()
    told: list[RlStepRow] = []
    hits: list[str] = []
    ended = threading.Event()

    def hunt() -> None:
        while len(hits) < kills and not ended.is_set():
            seen = len(told)
            while len(told) < seen + 2 and not ended.is_set():
                time.sleep(0.02)
            time.sleep(draw.random() * 0.3)
            if not ended.is_set():
                hits.append(crew.kill(draw).name)

    scenario = tiny(system="2xcpu", rl=rl)
    options = RunOptions(steps=60, folder=str(tmp_path / "run"), every=1, restarts=100)
    hunter = threading.Thread(target=hunt)
    hunter.start()
    try:
        found = run_post_training(scenario, options, tell=told.append, crew=crew)
    finally:
        ended.set()
        hunter.join()
    assert len(hits) == kills
    assert found.restarts >= 1
    assert sorted({row.step for row in told}) == list(range(1, 61))
    assert len(told) <= 60 + 2 * kills
    assert {row.samples for row in told} == {32}
    assert max(row.staleness.largest for row in told) <= rl.get("staleness", 0)
    assert steps(tmp_path / "run" / "checkpoints")[0] == 60


@pytest.mark.slow
def test_a_trainer_that_is_lost_while_it_waits_trains_nothing_twice(tmp_path: Path) -> None:
    crew, told = DoomedCrew(), list[RlStepRow]()

    def strike(row: RlStepRow) -> None:
        is_first = row.step not in [one.step for one in told]
        told.append(row)
        if row.step in (3, 6) and is_first:
            worker = next(one for one in crew.workers if one.seat.rank is not None)
            assert isinstance(worker, LocalProcess)
            worker.process.kill()

    options = RunOptions(steps=8, folder=str(tmp_path / "run"), every=1, restarts=9)
    run_post_training(tiny(system="2xcpu", rl=SPLIT), options, tell=strike, crew=crew)
    whole = run(tiny(system="2xcpu", rl=SPLIT), steps=8)
    last = {row.step: row.reward for row in told}
    assert [last[step] for step in range(1, 9)] == rewards(whole)
    assert max(row.staleness.largest for row in told) == 0


@pytest.mark.slow
def test_without_leave_to_restart_a_lost_worker_ends_the_run(tmp_path: Path) -> None:
    crew = DoomedCrew()

    def strike(_: RlStepRow) -> None:
        crew.kill(random.Random(0))

    with pytest.raises(WorkerLost, match="SIGKILL"):
        run_post_training(tiny(system="2xcpu", rl=SPLIT), RunOptions(steps=20), tell=strike, crew=crew)


@pytest.mark.slow
def test_the_example_learns_to_answer_and_does_so_twice_alike() -> None:
    scenario = ridgeline.read_scenario(EXAMPLE)
    found = run(scenario, steps=40)
    assert found.rows[0].reward < 0.2
    assert found.last_reward > 0.8
    assert rewards(run(scenario, steps=6)) == rewards(found)[:6]
