"""Exported recipes through Megatron-Bridge itself: built, prepared for a run and validated on a CPU.

Not part of the test extra. Unpack the wheels of megatron-bridge 0.6 and megatron-core 0.19 onto PYTHONPATH beside

    torch triton packaging transformers==5.12.* hydra-core omegaconf einops tensorboard peft diffusers accelerate
    datasets

Transformer Engine, Energon and ModelOpt, which it imports but which only a GPU runs, are stand-ins. The test runs in a
process of its own: stand-ins stay out of the others.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ABSENT = [name for name in ("torch", "triton", "transformers", "omegaconf") if importlib.util.find_spec(name) is None]


def installed() -> str:
    """Why the check cannot run; empty where it can."""
    if importlib.util.find_spec("megatron") is None or importlib.util.find_spec("megatron.bridge") is None:
        return "megatron-bridge is not installed"
    return f"{', '.join(ABSENT)} not installed" if ABSENT else ""


@pytest.fixture(scope="module")
def outcomes() -> dict[str, str]:
    """What became of every case: "ok", or what went wrong."""
    environment = {**os.environ, "ONEDNN_MAX_CPU_ISA": "AVX512_CORE_FP16", "OPENBLAS_NUM_THREADS": "1"}
    command = [sys.executable, "-W", "ignore", str(HERE / "bridge_check.py")]
    run = subprocess.run(command, capture_output=True, text=True, env=environment, check=False, timeout=1800)
    assert run.returncode == 0, run.stderr[-2000:]
    found: dict[str, str] = json.loads(run.stdout.splitlines()[-1])
    return found


@pytest.mark.skipif(bool(installed()), reason=installed())
def test_its_own_recipes_are_read_as_it_makes_them() -> None:
    command = [sys.executable, "-W", "ignore", str(HERE / "import_check.py"), "bridge"]
    run = subprocess.run(command, capture_output=True, text=True, check=False, timeout=1800)
    assert run.returncode == 0, (run.stdout + run.stderr)[-2000:]
    tally = json.loads(run.stdout.splitlines()[-1])
    assert tally["same"] > 600
    assert tally["refused"] < 60


@pytest.mark.skipif(bool(installed()), reason=installed())
def test_megatron_bridge_accepts_every_recipe(outcomes: dict[str, str]) -> None:
    wrong = {case: said for case, said in outcomes.items() if said != "ok"}
    assert len(outcomes) > 60
    assert not wrong
