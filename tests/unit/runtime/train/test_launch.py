"""Who starts ranks, how often, and who is told: without starting any."""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[3]))

from command import run as command

import ridgeline
from ridgeline.core.errors import InputError
from ridgeline.runtime.train import launch, run_scenario
from ridgeline.runtime.train.launch import Starter, run_with_restarts
from ridgeline.runtime.train.request import (
    Listener,
    RunOptions,
    RunOutcome,
    RunRequest,
    StepRow,
    WorkerLost,
    make_request,
)
from ridgeline.runtime.train.run_scenario import Metrics

ROW = StepRow(step=1, loss=2.0, gradient_norm=1.0, seconds=0.5, tokens=100, memory=1 << 20)
TABLE: dict[str, Any] = {
    "model": {"hidden": 32, "layers": 2, "vocab": 256, "attention": {"heads": 4}, "mlp": {"hidden": 64}},
    "system": "4xcpu",
    "workload": {"seq": 32, "global_batch": 8},
    "plan": {"dp": 4, "precision": "fp32"},
}


def request(**options: Any) -> RunRequest:
    return make_request(ridgeline.scenario(TABLE), RunOptions(**{"folder": "run", **options}))


def on(ranks: int) -> ridgeline.Scenario:
    return ridgeline.scenario({**TABLE, "system": f"{ranks}xcpu", "plan": {"dp": ranks, "precision": "fp32"}})


class Scripted(Starter):
    """Attempts that end as they are told; remembers what was asked."""

    def __init__(self, *ends: WorkerLost | RunOutcome) -> None:
        self.ends, self.asked, self.room = list(ends), list[tuple[int, bool]](), 4

    def attempt(self, request: RunRequest, listener: Listener) -> Any:
        self.asked.append((request.ranks, request.options.resume))
        end = self.ends.pop(0)
        if isinstance(end, WorkerLost):
            raise end
        return end

    def left_without(self, gone: tuple[int, ...]) -> int:
        self.room -= len(gone)
        return self.room


DONE = RunOutcome(rows=(ROW,), ranks=1, device="cpu")


def test_lost_workers_come_back_as_often_as_allowed_and_then_the_run_shrinks() -> None:
    killed, notes = WorkerLost(1, "ended by signal 9 (SIGKILL)", gone=(1,)), list[str]()
    starter = Scripted(killed, killed, killed, DONE)
    asked = request(restarts=1, elastic=True)
    left = {3: on(2), 2: on(2)}
    found = run_with_restarts(asked, Listener(note=notes.append), left.get, starter)
    assert starter.asked == [(4, False), (4, True), (2, True), (2, True)]  # a restart, then 3 and 2 chips are left
    assert (found.restarts, len(found.notes)) == (3, 2)
    assert notes == list(found.notes)
    assert notes[0] == "rank 1: ended by signal 9 (SIGKILL); went on with dp 2 on 2 rank(s)"


def test_what_another_start_would_not_mend_ends_the_run() -> None:
    own = WorkerLost(0, "ValueError: wrong", "stack")
    killed = WorkerLost(1, "ended by signal 9 (SIGKILL)", gone=(1,))
    with pytest.raises(WorkerLost, match="ValueError"):
        run_with_restarts(request(elastic=True), Listener(), lambda ranks: on(2), Scripted(own))
    with pytest.raises(WorkerLost, match="SIGKILL"):
        run_with_restarts(request(), Listener(), lambda ranks: on(2), Scripted(killed))
    with pytest.raises(InputError, match="3 ranks left"):
        run_with_restarts(request(elastic=True), Listener(), lambda ranks: None, Scripted(killed))


def test_a_rank_of_torchrun_takes_part_leaves_or_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    worked: list[tuple[int, int, int]] = []

    def work(request: RunRequest, world: Any, *rest: Any) -> RunOutcome:
        worked.append((world.rank, world.ranks, request.ranks))
        return DONE

    monkeypatch.setattr(launch, "work", work)
    for name in ("LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.setenv(name, "1")
    for name, value in {"RANK": "0", "WORLD_SIZE": "3", launch.AGENT: "x"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(InputError, match=r"start 4 processes$"):
        launch.execute(request(), Listener())
    found = launch.execute(request(elastic=True), Listener(), lambda ranks: on(2))
    assert worked == [(0, 2, 2)]
    assert os.environ["WORLD_SIZE"] == "2"
    assert found.notes == ("3 of 4 ranks are here; went on with dp 2 on 2 rank(s)",)
    monkeypatch.setenv("WORLD_SIZE", "3")
    monkeypatch.setenv("RANK", "2")
    assert launch.execute(request(elastic=True), Listener(), lambda ranks: on(2)) is None  # to spare
    monkeypatch.setenv("RANK", "1")
    assert launch.execute(request(elastic=True), Listener(), lambda ranks: on(2)) is None  # rank 0 speaks for all
    assert worked == [(0, 2, 2), (1, 2, 2)]
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    assert launch.started_again()


def test_a_full_disk_costs_lines_and_not_the_run(tmp_path: Path) -> None:
    told: list[str] = []
    (tmp_path / "metrics.jsonl").symlink_to("/dev/full")
    with Metrics(tmp_path, Listener(note=told.append), append=True) as listener:
        listener.step(ROW)
        listener.step(ROW)
    assert len(told) == 1
    assert "No space left on device; steps are not written" in told[0]
    with Metrics(tmp_path / "sound", Listener(), append=False) as listener:
        listener.step(ROW)
    (line,) = (tmp_path / "sound" / "metrics.jsonl").read_text().splitlines()
    assert json.loads(line) == {
        "step": 1, "loss": 2.0, "gradient_norm": 1.0, "seconds": 0.5, "tokens": 100, "memory": 1 << 20,
        "loss_scale": 1.0, "held": {},
    }  # fmt: skip


def test_tensorboard_reads_the_scalars_of_every_step(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    with run_scenario.EventFile(tmp_path, Listener()) as listener:
        for step in (1, 2, 3):
            listener.step(replace(ROW, step=step, loss=2.0 / step))
    read = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert [one.step for one in read.Scalars("train/loss")] == [1, 2, 3]
    assert [one.value for one in read.Scalars("train/loss")] == pytest.approx([2.0, 1.0, 2 / 3])
    assert set(read.Tags()["scalars"]) == {f"train/{name}" for name in run_scenario.SCALARS}


def test_extras_that_are_absent_are_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    there = importlib.util.find_spec
    hidden = {"tensorboard", "ray"}
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name in hidden else there(name, *rest))
    for options, path, todo in (
        ({"tensorboard": True}, "--tensorboard", "ridgeline[tensorboard]"),
        ({"launcher": "ray"}, "--launcher", "ridgeline[ray]"),
        ({"launcher": "rai"}, "--launcher", "ray"),
    ):
        with pytest.raises(InputError) as refused:
            ridgeline.run(on(2), RunOptions(folder=str(tmp_path), **options))
        assert refused.value.problems[0].path == path
        assert todo in str(refused.value)


def test_the_batch_script_of_slurm_runs_the_same_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    scenario, script = tmp_path / "a b.json", tmp_path / "run.sbatch"
    scenario.write_text(json.dumps(TABLE))
    told = ("--steps", "50", "-o", "out", "--every", "5", "--elastic", "--set", "plan.microbatch=2")
    code, out, _ = command(capsys, monkeypatch, "run", str(scenario), *told, "--sbatch", str(script), "--json")
    assert (code, json.loads(out)) == (0, {"schema_version": 1, "kind": "sbatch", "output": str(script)})
    text = script.read_text()
    assert "#SBATCH --nodes=1\n#SBATCH --ntasks-per-node=4\n#SBATCH --cpus-per-task=1\n" in text
    assert "#SBATCH --requeue\n" in text
    assert "#SBATCH --signal=TERM@120\n" in text
    words = "--steps 50 --output out --every 5 --elastic --set plan.microbatch=2"
    assert text.endswith(f"srun --kill-on-bad-exit=1 ridgeline run '{scenario}' {words}\n")
    code, _, err = command(capsys, monkeypatch, "run", str(scenario), "--set", "plan.dp=3", "--sbatch", str(script))
    assert code == 2
    assert "plan.dp" in err
