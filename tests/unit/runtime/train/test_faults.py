"""What breaks while a run writes and reads its files: full disks, damaged checkpoints, kill -9 at any moment."""

from __future__ import annotations

import json
import os
import random
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
sys.path.insert(0, str(Path(__file__).parent))

from test_elastic import TINY, rows, worker

import ridgeline
from ridgeline.core.errors import InputError
from ridgeline.runtime.train.checkpoint import checkpoint_folder, damage, newest_sound, steps
from ridgeline.runtime.train.request import RunOptions, RunOutcome, StepRow

ONE = {**TINY, "system": "1xcpu", "plan": {"precision": "fp32"}}
FULL = 200_000  # bytes that a tiny checkpoint's file does not fit in


def spoil(folder: Path, step: int) -> None:
    """Turn a bit of a checkpoint."""
    file = next(path for path in checkpoint_folder(folder, step).iterdir() if path.suffix == ".distcp")
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


@pytest.mark.slow
@pytest.mark.parametrize("plan", [{"precision": "fp32"}, {"dp": 2, "shard": "zero3", "precision": "fp32"}])
def test_a_disk_that_is_full_for_a_while_costs_one_checkpoint(tmp_path: Path, plan: dict[str, Any]) -> None:
    """The last rank may write no file of more than some bytes, from step 3 to step 5; the run goes on."""
    ranks, notes = plan.get("dp", 1), list[str]()

    def fill(row: StepRow) -> None:
        limits = {3: (FULL, -1), 5: (-1, -1)}
        if row.step in limits:
            resource.prlimit(worker(ranks - 1), resource.RLIMIT_FSIZE, limits[row.step])

    built = ridgeline.scenario({**TINY, "system": f"{ranks}xcpu", "plan": plan})
    found = ridgeline.run(built, RunOptions(steps=6, folder=str(tmp_path), every=2), tell=fill, note=notes.append)
    assert isinstance(found, RunOutcome)
    assert [row.step for row in found.rows] == [1, 2, 3, 4, 5, 6]
    assert len(notes) == 1, notes
    assert "checkpoint of step 4 was not written" in notes[0]
    assert "that of step 2 counts" in notes[0]
    assert not found.unsaved
    assert steps(tmp_path / "checkpoints") == [6, 2]
    assert damage(checkpoint_folder(tmp_path / "checkpoints", 6)) is None


@pytest.mark.slow
def test_a_full_file_system_leaves_the_checkpoint_before_it_and_exit_code_2(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    if os.geteuid() != 0 or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(disk)]).returncode:
        pytest.skip("no right to mount a small file system")
    scenario = tmp_path / "one.json"
    scenario.write_text(json.dumps(ONE))
    command = [sys.executable, "-m", "ridgeline", "run", str(scenario), "--steps", "8", "--every", "2", "-o", str(disk)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=400)
        kept = newest_sound(disk / "checkpoints")
        left = [path.name for path in (disk / "checkpoints").iterdir()]
    finally:
        subprocess.run(["umount", str(disk)], check=True)
    assert done.returncode == 2, done.stderr
    assert "was not written: " in done.stderr
    assert "No space left on device" in done.stderr
    assert "done at step 8" in done.stdout
    assert kept[0] is not None
    assert not [name for name in left if name.endswith(".part")]


@pytest.mark.slow
def test_damaged_checkpoints_are_passed_over_and_a_run_without_a_sound_one_is_refused(tmp_path: Path) -> None:
    checkpoints = tmp_path / "checkpoints"
    ridgeline.run(ridgeline.scenario(ONE), RunOptions(steps=4, folder=str(tmp_path), every=2))
    spoil(checkpoints, 4)
    again = ridgeline.run(ridgeline.scenario(ONE), RunOptions(steps=4, folder=str(tmp_path), resume=True, seed=1))
    assert isinstance(again, RunOutcome)
    assert again.resumed == 2
    assert "step 4 is damaged" in again.notes[0]
    assert "seed was 0 up to step 2 and is 1" in again.notes[1]
    for step in steps(checkpoints):
        spoil(checkpoints, step)
    with pytest.raises(InputError) as refused:
        ridgeline.run(ridgeline.scenario(ONE), RunOptions(steps=6, folder=str(tmp_path), resume=True))
    assert refused.value.problems[0].path == "--resume"
    assert "damaged" in refused.value.problems[0].given


@pytest.mark.slow
def test_all_processes_killed_at_random_moments_lose_no_bit(tmp_path: Path) -> None:
    """kill -9 of the run and every worker, three times, also while checkpoints are written: the same losses."""
    scenario, dice = tmp_path / "tiny.json", random.Random(15)
    scenario.write_text(json.dumps(TINY))

    def command(folder: Path) -> list[str]:
        told = ["--steps", "60", "--every", "3", "--rate", "1e-2", "-o", str(folder), "--resume"]
        return [sys.executable, "-m", "ridgeline", "run", str(scenario), *told]

    whole_run, broken = tmp_path / "whole", tmp_path / "broken"
    subprocess.run(command(whole_run), check=True, capture_output=True, timeout=400)
    for _ in range(3):
        before = len(rows(broken))
        with subprocess.Popen(command(broken), stdout=subprocess.PIPE, start_new_session=True) as running:
            while len(rows(broken)) == before and running.poll() is None:
                time.sleep(0.01)
            time.sleep(dice.uniform(0.0, 0.5))
            os.killpg(running.pid, signal.SIGKILL)
    subprocess.run(command(broken), check=True, capture_output=True, timeout=400)
    expected = {row["step"]: (row["loss"], row["gradient_norm"]) for row in rows(whole_run)}
    found = rows(broken)
    assert {row["step"] for row in found} == set(expected)
    assert all((row["loss"], row["gradient_norm"]) == expected[row["step"]] for row in found)
