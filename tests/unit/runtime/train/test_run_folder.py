"""One run at a time writes into a folder, and none deletes what another one wrote."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ridgeline.core.errors import InputError
from ridgeline.runtime.train.run_folder import METRICS, checkpoint_folder, own_folder, steps

EXAMPLE = Path(__file__).parents[4] / "examples" / "tiny-2xcpu.toml"


def ridgeline(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "ridgeline", "run", str(EXAMPLE), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=300)


def test_a_folder_with_a_run_is_entered_by_resume_alone(tmp_path: Path) -> None:
    with own_folder(tmp_path / "run", resume=False):
        (tmp_path / "run" / METRICS).write_text("{}\n", encoding="utf-8")
    with pytest.raises(InputError, match="--resume"), own_folder(tmp_path / "run", resume=False):
        pass
    with own_folder(tmp_path / "run", resume=True):
        checkpoint_folder(tmp_path / "run" / "checkpoints", 7).mkdir(parents=True)
    with pytest.raises(InputError, match="checkpoint of step 7"), own_folder(tmp_path / "run", resume=False):
        pass
    assert steps(tmp_path / "run" / "checkpoints") == [7]


def test_two_runs_at_once_are_refused_and_the_lock_ends_with_its_run(tmp_path: Path) -> None:
    pytest.importorskip("fcntl")
    second = own_folder(tmp_path, resume=True)
    with own_folder(tmp_path, resume=False), pytest.raises(InputError, match="into which process"), second:
        pass
    with own_folder(tmp_path, resume=True):
        pass


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    with (
        pytest.raises(InputError, match="a folder that can be made"),
        own_folder(tmp_path / "file" / "x", resume=False),
    ):
        pass


def test_backends_that_run_does_not_know_are_named() -> None:
    pytest.importorskip("torch")
    refusal = ridgeline("--backend", "mpi")
    assert refusal.returncode == 2
    assert "one of gloo, nccl, hccl, ridge_shm" in refusal.stderr


@pytest.mark.slow
def test_termination_saves_and_another_model_does_not_resume(tmp_path: Path) -> None:
    """SIGTERM, with which schedulers of containers end a process, ends the run behind its step with a checkpoint."""
    folder = tmp_path / "run"
    command = [sys.executable, "-m", "ridgeline", "run", str(EXAMPLE), "--steps", "5000", "-o", str(folder)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    metrics = folder / METRICS
    until = time.monotonic() + 200
    while time.monotonic() < until and not (metrics.exists() and metrics.read_text(encoding="utf-8").count("\n") >= 2):
        time.sleep(0.2)
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=120) == 130, process.stdout.read() if process.stdout else ""
    saved = steps(folder / "checkpoints")
    assert saved
    lines = [json.loads(line) for line in metrics.read_text(encoding="utf-8").splitlines()]
    assert lines[-1]["step"] == saved[0]
    more = ("--steps", str(saved[0] + 1), "-o", str(folder), "--resume")
    other = ridgeline(*more, "--set", "model.layers=2")
    assert other.returncode == 2
    assert "a checkpoint of 4 layers" in other.stderr
    assert "Traceback" not in other.stderr
    assert ridgeline(*more).returncode == 0
