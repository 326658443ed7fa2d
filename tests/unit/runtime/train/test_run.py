"""`ridgeline run` from the command line and from Python: steps, metrics, checkpoints, lost workers, refusals."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import ridgeline
from ridgeline.core.errors import InputError
from ridgeline.models.spec import Embedding
from ridgeline.runtime.train.checkpoint import checkpoint_folder, damage, newest_sound, steps
from ridgeline.runtime.train.request import RunOptions, RunOutcome, StepRow, WorkerLost

TINY: dict[str, Any] = {
    "model": {
        "hidden": 32, "layers": 2, "vocab": 256, "tied": True, "attention": {"heads": 4, "kv_heads": 2},
        "mlp": {"hidden": 64},
    },
    "system": "2xcpu",
    "workload": {"seq": 32, "global_batch": 8},
    "plan": {"dp": 2, "shard": "zero3", "precision": "fp32"},
}  # fmt: skip


def tiny(system: str = "2xcpu", **plan: Any) -> ridgeline.Scenario:
    """The scenario above with another plan."""
    return ridgeline.scenario({**TINY, "system": system, "plan": {"precision": "fp32", **plan}})


def trained(scenario: ridgeline.Scenario, **options: Any) -> RunOutcome:
    """The outcome of a run."""
    found = ridgeline.run(scenario, RunOptions(**options))
    assert isinstance(found, RunOutcome)
    return found


def losses(outcome: RunOutcome) -> list[float]:
    """One a step."""
    return [row.loss for row in outcome.rows]


def test_the_loss_of_a_text_falls_and_every_step_is_told(tmp_path: Path) -> None:
    told: list[StepRow] = []
    options = RunOptions(steps=12, data="text", rate=3e-3, folder=str(tmp_path / "run"))
    found = ridgeline.run(tiny("1xcpu"), options, tell=told.append)
    assert isinstance(found, RunOutcome)
    assert losses(found)[-1] < losses(found)[0] - 0.5
    assert [row.step for row in told] == list(range(1, 13))
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [row["loss"] for row in rows] == losses(found)
    assert all(row["memory"] > 0 and row["seconds"] > 0 and row["gradient_norm"] > 0 for row in rows)


@pytest.mark.slow
def test_a_killed_worker_is_started_again_and_a_damaged_checkpoint_passed_over(tmp_path: Path) -> None:
    """The steps that are trained again have the same loss, bit for bit; another mesh resumes from the same files."""
    killed: list[int] = []
    told: dict[int, list[float]] = {}

    def kill(row: StepRow) -> None:
        told.setdefault(row.step, []).append(row.loss)
        if row.step == 5 and not killed:
            killed.append(_a_worker())
            os.kill(killed[0], signal.SIGKILL)

    options = RunOptions(steps=6, rate=1e-2, folder=str(tmp_path), every=2, restarts=1, timeout=20)
    found = ridgeline.run(tiny(dp=2, shard="zero3"), options, tell=kill)
    assert isinstance(found, RunOutcome)
    assert killed
    assert found.restarts == 1
    assert found.resumed in (2, 4)  # the checkpoint of step 4 may have been half written
    assert len(told[5]) == 2
    assert all(len(set(found)) == 1 for found in told.values())

    checkpoints = tmp_path / "checkpoints"
    assert steps(checkpoints) == [6, 4]
    file = next(path for path in checkpoint_folder(checkpoints, 6).iterdir() if path.suffix == ".distcp")
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    assert damage(checkpoint_folder(checkpoints, 6)) is not None
    other = trained(tiny(pp=2, schedule="zbv"), steps=6, rate=1e-2, folder=str(tmp_path), resume=True)
    assert other.resumed == 4
    assert "step 6 is damaged" in other.notes[0]
    assert losses(other) == pytest.approx([told[5][0], told[6][0]], rel=1e-6)


def _a_worker() -> int:
    import multiprocessing

    named = {child.name: child.pid for child in multiprocessing.active_children()}
    found = named["ridgeline rank 1"]
    assert found is not None
    return found


@pytest.mark.slow
def test_a_hung_collective_is_reported_with_rank_operation_and_stack() -> None:
    stopped: list[int] = []

    def stop(row: StepRow) -> None:
        if row.step == 2:
            stopped.append(_a_worker())
            os.kill(stopped[0], signal.SIGSTOP)

    began = time.monotonic()
    with pytest.raises(WorkerLost) as lost:
        ridgeline.run(tiny(dp=2), RunOptions(steps=1000, timeout=5), tell=stop)
    assert time.monotonic() - began < 60
    assert lost.value.rank == 0
    assert "imed out" in str(lost.value)
    assert "all_reduce" in lost.value.stack or "reduce_scatter" in lost.value.stack
    assert "step.py" in lost.value.stack or "loop.py" in lost.value.stack


@pytest.mark.slow
def test_an_interrupt_ends_the_run_behind_a_step_with_a_checkpoint(tmp_path: Path) -> None:
    scenario = tmp_path / "tiny.json"
    scenario.write_text(json.dumps(TINY))
    command = [
        sys.executable,
        "-m",
        "ridgeline",
        "run",
        str(scenario),
        "--steps",
        "100000",
        "-o",
        str(tmp_path / "run"),
    ]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as running:
        metrics = tmp_path / "run" / "metrics.jsonl"
        while not metrics.exists() or not metrics.read_text():
            time.sleep(0.2)
            assert running.poll() is None
        os.killpg(running.pid, signal.SIGINT)
        out, err = running.communicate(timeout=60)
    assert running.returncode == 130, err
    assert "stopped at step" in out
    assert newest_sound(tmp_path / "run" / "checkpoints")[0] is not None


@pytest.mark.slow
def test_torchrun_starts_it_too(tmp_path: Path) -> None:
    scenario = tmp_path / "tiny.json"
    scenario.write_text(json.dumps(TINY))
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
        "-m",
        "ridgeline",
    ]
    done = subprocess.run(
        [*command, "run", str(scenario), "--verify", "--json"], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["equal"] is True  # one answer, of rank 0


@pytest.mark.slow
def test_weights_go_to_a_folder_and_come_back_on_another_mesh(tmp_path: Path) -> None:
    """A run that begins from saved weights has the loss of the step behind them, with a pipeline and without."""
    pytest.importorskip("safetensors")
    folder = tmp_path / "weights"
    first = trained(tiny(pp=2, schedule="1f1b"), steps=2, rate=1e-2, save_weights=str(folder))
    assert sorted(path.name for path in folder.glob("*.safetensors")) == [
        "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors",
    ]  # fmt: skip
    one = trained(tiny("1xcpu"), steps=1, weights=str(folder), save_weights=str(tmp_path / "again"))
    two = trained(tiny(dp=2, shard="zero3"), steps=1, weights=str(tmp_path / "again"))
    assert losses(one)[0] < losses(first)[0]  # not where it began
    assert losses(two)[0] < losses(one)[0] + 1e-3
    (tmp_path / "again" / "model.safetensors").unlink()
    with pytest.raises(InputError) as refused:
        ridgeline.run(tiny("1xcpu"), RunOptions(weights=str(tmp_path / "again")))
    assert refused.value.problems[0].path == "--weights"


def test_what_cannot_run_is_refused_before_anything_starts() -> None:
    base = tiny("1xcpu")
    ahead = ridgeline.scenario(
        {
            **TINY,
            "model": {**TINY["model"], "mtp": 1},
            "plan": {"pp": 2, "schedule": "zero-bubble-h1", "precision": "fp32"},
        }
    )
    cases: list[tuple[ridgeline.Scenario, RunOptions, str]] = [
        (ahead, RunOptions(), "plan.schedule"),
        (replace(ahead, model=replace(ahead.model, embedding=Embedding(positions=32))), RunOptions(), "model.mtp"),
        (tiny("1xcpu", recompute={"kind": "selective", "parts": ["norm"]}), RunOptions(), "plan.recompute.parts"),
        (base, RunOptions(steps=0), "--steps"),
        (base, RunOptions(resume=True), "-o"),
        (replace(base, plan=replace(base.plan, mesh=tiny(dp=2).plan.mesh)), RunOptions(), "plan.dp"),
    ]
    for scenario, options, path in cases:
        with pytest.raises(InputError) as refused:
            ridgeline.run(scenario, options)
        assert path in {problem.path for problem in refused.value.problems}


def test_a_plan_that_does_not_fit_is_refused_with_the_nearest_that_does(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By memory, by what the engine cannot do, by what nobody can; and nothing is started for any of them."""
    sys.path.insert(0, str(Path(__file__).parents[3]))
    from command import run

    file = tmp_path / "tiny.json"
    file.write_text(json.dumps(TINY))
    wide = ("model.layers=8", "model.hidden=2048", "model.mlp.hidden=8192", "workload.seq=2048", "plan.shard=none")
    for settings, reason, nearest in (
        ((*wide, "plan.microbatch=4"), "memory: ", "on 2 rank(s)"),
        (("plan.shard=zero2", "plan.pp=2", "plan.dp=1"), "plan.shard: ", "on 2 rank(s)"),
        (("plan.microbatch=3",), "a divisor of the global batch", "use a global batch of"),
    ):
        more = [word for setting in settings for word in ("--set", setting)]
        code, out, err = run(capsys, monkeypatch, "run", str(file), "--steps", "1", *more)
        assert code == 2, (settings, out)
        assert reason in err
        assert nearest in err


def test_a_device_that_is_not_here_is_refused_by_the_workers() -> None:
    with pytest.raises(InputError) as refused:
        ridgeline.run(tiny("1xcpu"), RunOptions(device="cuda:7"))
    assert refused.value.problems[0].path == "--device"
