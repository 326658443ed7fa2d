"""verl's GRPO on Ray with vLLM on this machine: every phase that it times beside its prediction from pieces.

RIDGELINE_VERL_RUN names a Python with verl 0.9, Ray and the CPU build of vLLM (`make test-rl`). Pieces and steps are
measured in turn, as a machine that others use changes its pace: of each the least counts.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from verl_phases import VerlRun, least_pieces, predict_phases

HERE = Path(__file__).parent
TURNS, STEPS = 2, 8
WITHIN = 0.25
PHASES = ("gen", "reward", "old_log_prob", "adv", "update_actor", "update_weights", "step")
RUN = VerlRun(prompts=8, samples=4, prompt=24, answer=96, microbatch=8, seqs=64)
MODEL_BYTES, TENSORS = 52_317_696, 57


def measured_case(folder: Path) -> None:
    """Pieces and steps in turn, in a network namespace: Ray listens on all interfaces."""
    program = os.environ.get("RIDGELINE_VERL_RUN", "")
    if not Path(program).exists() or not program:
        pytest.skip("RIDGELINE_VERL_RUN names no Python with verl and vLLM: run `make test-rl`")
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        pytest.skip("a network namespace wants root and unshare")
    space = ["unshare", "--net", "--pid", "--fork", "--mount-proc", "--kill-child"]
    command = [*space, "bash", str(HERE / "verl_case.sh"), str(folder), str(TURNS), str(STEPS)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=5400, env={**os.environ, "VERL": program})
    assert done.returncode == 0, done.stderr[-3000:]


def least_steps(folder: Path) -> dict[str, float]:
    """The least seconds of every phase over all steps but the first of each run, which builds what the others use."""
    rows: list[dict[str, Any]] = []
    for path in sorted(folder.glob("metrics-*.jsonl")):
        rows += [json.loads(text)["data"] for text in path.read_text().splitlines()][1:]
    assert len(rows) == TURNS * (STEPS - 1)
    return {name: min(float(row[f"timing_s/{name}"]) for row in rows) for name in PHASES}


@pytest.mark.real
def test_every_phase_of_verl_is_predicted_within_a_quarter(tmp_path: Path) -> None:
    folder = Path(os.environ.get("RIDGELINE_VERL_FOLDER", "") or tmp_path)
    if not list(folder.glob("metrics-*.jsonl")):
        measured_case(folder)
    turns = [json.loads(path.read_text().splitlines()[-1]) for path in sorted(folder.glob("pieces-*.json"))]
    predicted = predict_phases(least_pieces(turns), RUN, MODEL_BYTES, TENSORS)
    measured = least_steps(folder)
    ratios = {name: predicted[name] / measured[name] for name in PHASES}
    load = (folder / "load").read_text().split()
    for name in PHASES:
        print(f"{name:16} measured {measured[name]:9.5f} s  predicted {predicted[name]:9.5f} s  {ratios[name]:.2f}")
    print("load average at the end of every turn:", *load)
    assert {name: ratio for name, ratio in ratios.items() if abs(ratio - 1) > WITHIN} == {}, (ratios, load)
