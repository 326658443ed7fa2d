"""Runs of post-training whose answers an installed vLLM writes, in a network namespace of their own.

RIDGELINE_VLLM names a Python with vLLM and Ridgeline's requirements (`make test-rl`).
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import ridgeline

VLLM = os.environ.get("RIDGELINE_VLLM", "")
EXAMPLE = Path(__file__).parents[2] / "examples" / "grpo-2xcpu.toml"
SMALL = (
    "system=1xcpu", "plan.dp=1", "plan.microbatch=8", "model.attention.heads=2", "model.attention.kv_heads=2",
    "workload.prompts=8", "workload.samples=4", "workload.mini_batch=4", "workload.learning.task=arithmetic",
    "workload.learning.temperature=0.8", "workload.learning.rate=1e-2",
)  # fmt: skip
TWO_CHIPS = ("--set", "system=2xcpu", "--set")
SPLIT = (*TWO_CHIPS, 'plan.rl={placement="split", train_chips=1}', "--set", "workload.learning.task=calculator")
ASYNC = (*TWO_CHIPS, 'plan.rl={placement="async", train_chips=1, staleness=2, partial_rollouts=true}')


def steps(folder: Path, *words: str) -> list[dict[str, Any]]:
    """The steps of a run."""
    if not VLLM:
        pytest.skip("RIDGELINE_VLLM names no Python with vLLM: run `make test-rl`")
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        pytest.skip("a network namespace wants root and unshare")
    changes = [word for setting in SMALL for word in ("--set", setting)]
    setting = {"PYTHONPATH": str(Path(ridgeline.__file__).parents[1]), "OMP_NUM_THREADS": "1"}
    program = [VLLM, "-m", "ridgeline", "run", str(EXAMPLE), *changes, "--rollout", "vllm", "-o", str(folder)]
    space = ["unshare", "--net", "--pid", "--fork", "--kill-child"]
    space += ["sh", "-c", 'ip link set lo up; exec "$@"', "sh"]
    command = [*space, *program, *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env={**os.environ, **setting})
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.real
@pytest.mark.slow
def test_weights_move_each_step_and_a_resumed_run_goes_on_as_it_would_have(tmp_path: Path) -> None:
    """Of a vLLM with the weights of the step before, the largest distance is 0.3."""
    whole = steps(tmp_path / "whole", "--steps", "5")
    for row in whole:
        assert row["mismatch"]["largest"] < 1e-4
        assert row["staleness"].get("largest", 0) == 0
    assert sum(row["gradient_norm"] > 0 for row in whole) >= 3
    assert any(first["reward"] != second["reward"] for first, second in pairwise(whole))
    steps(tmp_path / "parts", "--steps", "3", "--every", "1")
    resumed = steps(tmp_path / "parts", "--steps", "5", "--every", "1", "--resume")
    assert [row["reward"] for row in resumed] == [row["reward"] for row in whole]
    assert [row["loss"] for row in resumed] == pytest.approx([row["loss"] for row in whole], abs=1e-4)


@pytest.mark.real
@pytest.mark.slow
def test_tools_speak_and_new_weights_interrupt(tmp_path: Path) -> None:
    for row in steps(tmp_path / "split", "--steps", "3", "--set", "workload.response_tokens=12", *SPLIT):
        assert row["mismatch"]["largest"] < 1e-4
    rows = steps(tmp_path / "async", "--steps", "6", "--set", "workload.response_tokens=40", *ASYNC)
    assert max(row["staleness"].get("largest", 0) for row in rows) in (1, 2)
    assert max(row["mismatch"].get("largest") or 0 for row in rows) < 1e-4
