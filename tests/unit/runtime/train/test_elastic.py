"""Two torchrun nodes on loopback; one is lost for good, and the run goes on with the best plan for the other."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import torch

import ridgeline
from ridgeline.run_api import plan_for_ranks
from ridgeline.runtime.probe.ranks import World
from ridgeline.runtime.train.checkpoint import steps
from ridgeline.runtime.train.launch import work
from ridgeline.runtime.train.request import Listener, RunOptions, RunOutcome, StepRow, make_request

TINY: dict[str, Any] = {
    "model": {
        "hidden": 32, "layers": 2, "vocab": 256, "tied": True, "attention": {"heads": 4, "kv_heads": 2},
        "mlp": {"hidden": 64},
    },
    "system": "2xcpu",
    "workload": {"seq": 32, "global_batch": 8},
    "plan": {"dp": 2, "shard": "zero3", "precision": "fp32"},
}  # fmt: skip
STEPS, LOST_AT = 40, 5


def rows(folder: Path) -> list[dict[str, Any]]:
    """Every step that was told, in order; those trained again stand twice."""
    path = folder / "metrics.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def kill_tree(root: int) -> None:
    """End a process and all that descend from it, at once: what a host does that loses its power."""
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
    doomed = [root]
    for pid in doomed:
        doomed += [child for child, parent in parents.items() if parent == pid]
    for pid in doomed:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def alone(steps: int) -> list[float]:
    """The losses of the same run in one process, never interrupted."""
    one = ridgeline.scenario({**TINY, "system": "1xcpu", "plan": {"precision": "fp32"}})
    request = make_request(one, RunOptions(steps=steps, rate=1e-3))
    threads = torch.get_num_threads()
    try:  # in this process, which has torch already
        found = work(request, World(), Listener(), lambda: False, time.monotonic())
    finally:
        torch.set_num_threads(threads)
    return [row.loss for row in found.rows]


def continues(told: list[dict[str, Any]]) -> None:
    """Every step once at least, and each with the loss of the uninterrupted run."""
    expected = alone(STEPS)
    assert {row["step"] for row in told} == set(range(1, STEPS + 1))
    for row in told:
        assert row["loss"] == pytest.approx(expected[row["step"] - 1], rel=1e-4), row


def test_a_lost_node_of_torchrun_leaves_the_best_plan_for_the_other(tmp_path: Path) -> None:
    scenario, folder = tmp_path / "tiny.json", tmp_path / "run"
    scenario.write_text(json.dumps(TINY))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    agent = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "1:2", "--nproc-per-node", "1"]
    agent += ["--max-restarts", "2", "--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{port}"]
    agent += [
        "--rdzv-id",
        "two",
        "--monitor-interval",
        "0.1",
        "--local-addr",
        "127.0.0.1",
        "-m",
        "ridgeline",
        "run",
        str(scenario),
        "--elastic",
        "--every",
        "2",
    ]
    agent += ["--steps", str(STEPS), "--rate", "1e-3", "-o", str(folder)]
    told: dict[str, Any] = {"start_new_session": True, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    told |= {"text": True, "env": {**os.environ, "OMP_NUM_THREADS": "1"}}
    first, second = (
        subprocess.Popen([*agent[:3], "--rdzv-conf", f"last_call_timeout=2,is_host={host}", *agent[3:]], **told)
        for host in (1, 0)  # the node that is lost must not be the one where all meet
    )
    try:
        until = time.monotonic() + 120
        while len(rows(folder)) < LOST_AT and time.monotonic() < until and first.poll() is None:
            time.sleep(0.01)
        kill_tree(second.pid)
        out, _ = first.communicate(timeout=120)
    finally:
        for one in (first, second):
            kill_tree(one.pid)
            one.communicate()
    assert first.returncode == 0, out
    assert "1 of 2 ranks are here; went on with no parallelism on 1 rank(s)" in out
    assert steps(folder / "checkpoints")[0] == STEPS
    continues(rows(folder))


@pytest.mark.slow
def test_a_worker_lost_for_good_leaves_the_best_plan_for_the_others(tmp_path: Path) -> None:
    """Killed, and then hanging: a stopped process of a tensor-parallel pair is found by the time-out of the other."""
    for how, plan in ((signal.SIGKILL, {"dp": 2, "shard": "zero3"}), (signal.SIGSTOP, {"tp": 2})):
        folder, seen, notes = tmp_path / how.name, list[int](), list[str]()

        def lose(row: StepRow, how: signal.Signals = how, seen: list[int] = seen) -> None:
            if row.step == LOST_AT and not seen:
                seen.append(row.step)
                os.kill(worker(1), how)

        built = ridgeline.scenario({**TINY, "plan": {**plan, "precision": "fp32"}})
        options = RunOptions(steps=STEPS, rate=1e-3, folder=str(folder), every=2, elastic=True, timeout=5)
        found = ridgeline.run(built, options, tell=lose, note=notes.append, replan=partial(plan_for_ranks, built))
        assert isinstance(found, RunOutcome)
        assert (found.ranks, found.restarts) == (1, 1)
        assert 0 < found.resumed <= LOST_AT
        assert notes == list(found.notes)
        assert "went on with no parallelism on 1 rank(s)" in notes[0]
        assert how == signal.SIGKILL or "rank 1 did not answer" in notes[0]
        continues(rows(folder))


def worker(rank: int) -> int:
    """The process of a rank that this one started."""
    (found,) = (one.pid for one in multiprocessing.active_children() if one.name == f"ridgeline rank {rank}")
    assert found is not None
    return found
