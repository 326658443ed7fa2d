"""An export started for real: DeepSpeed's launch.sh of a plan for two ranks of a host, on gloo, with a tiny model.

    RIDGELINE_DEEPSPEED=/path/to/python python -m pytest -m real tests/real/test_target_started.py

That Python has torch, transformers and deepspeed 0.19.8; `make test-targets` runs it in the environment of its parsers.
What runs is the exported folder as it is, through torchrun and deepspeed.initialize, from another folder.
"""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from page import free_port

import ridgeline

PYTHON = os.environ.get("RIDGELINE_DEEPSPEED", sys.executable if importlib.util.find_spec("deepspeed") else "")
STEPS = 10


@pytest.mark.real
@pytest.mark.skipif(not PYTHON, reason="RIDGELINE_DEEPSPEED names no Python with DeepSpeed")
@pytest.mark.parametrize("shard", ["zero2", "zero3"])
def test_deepspeed_starts_and_its_loss_falls(tmp_path: Path, shard: str) -> None:
    model = {"hidden": 64, "layers": 2, "vocab": 256, "mlp": {"hidden": 128}}
    model |= {"attention": {"heads": 4, "kv_heads": 2, "head_dim": 16}}
    plan = {"dp": 2, "shard": shard, "microbatch": 2, "recompute": "full", "engine": "deepspeed"}
    work = {"seq": 64, "global_batch": 8}
    made = ridgeline.export(
        ridgeline.scenario({"model": model, "system": "2xcpu", "workload": work, "plan": plan}), to="deepspeed"
    )
    run = tmp_path / "run"
    run.mkdir()
    for name, text in made.files.items():
        (run / name).write_text(text)
    torchrun = tmp_path / "torchrun"
    torchrun.write_text(f'#!/bin/bash\nexec {PYTHON} -m torch.distributed.run "$@"\n')
    torchrun.chmod(0o755)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment |= {"PATH": f"{tmp_path}:{Path(PYTHON).parent}:{os.environ['PATH']}", "STEPS": str(STEPS)}
    environment |= {"MASTER_PORT": str(free_port()), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        ["bash", str(run / "launch.sh")], cwd="/", env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-3000:]
    losses = [float(found) for found in re.findall(r"^step \d+ loss ([\d.]+)$", done.stdout, re.MULTILINE)]
    assert len(losses) == STEPS, done.stdout[-2000:]
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < 0.9 * losses[0]
