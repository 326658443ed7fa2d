"""`ridgeline run` under Slurm itself: two nodes on loopback, a batch script it wrote, a step asked to stop."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

import ridgeline
from ridgeline.runtime.train.checkpoint import newest_sound, steps

HERE = Path(__file__).parent
TINY = {
    "model": {"hidden": 32, "layers": 2, "vocab": 256, "attention": {"heads": 4}, "mlp": {"hidden": 64}},
    "system": "2xcpu",
    "workload": {"seq": 32, "global_batch": 8},
    "plan": {"dp": 2, "shard": "zero3", "precision": "fp32"},
}


@pytest.mark.slurm
def test_two_slurm_nodes_train_one_plan_and_stop_in_order(tmp_path: Path) -> None:
    wanted = ("slurmctld", "slurmd", "munged", "sbatch", "unshare")
    if absent := [name for name in wanted if shutil.which(name) is None]:
        pytest.skip(f"no {', '.join(absent)}: apt-get install slurm-wlm munge")
    if os.geteuid() != 0:
        pytest.skip("daemons of a cluster in its own namespaces want root")
    scenario = tmp_path / "tiny.json"
    scenario.write_text(json.dumps(TINY))
    bin_folder = tmp_path / "bin"
    bin_folder.mkdir()
    program = bin_folder / "ridgeline"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m ridgeline "$@"\n')
    program.chmod(0o755)
    space = ["unshare", "--net", "--mount", "--uts", "--pid", "--fork", "--mount-proc", "--kill-child"]
    command = [*space, "bash", str(HERE / "slurm_cluster.sh"), str(tmp_path / "cluster")]
    command += ["bash", str(HERE / "slurm_case.sh"), str(scenario), str(tmp_path)]
    source = str(Path(ridgeline.__file__).parents[1])
    setting = {**os.environ, "PATH": f"{bin_folder}:{os.environ['PATH']}", "PYTHONPATH": source, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=400, env=setting)
    batch, stopped = ((tmp_path / f"{name}.out").read_text() for name in ("batch", "stopped"))
    assert (tmp_path / "told").read_text().split("\n")[0] == "batch ended with 0", (done.stderr, batch)
    assert "done at step 4: 2 rank(s) on cpu" in batch
    assert batch.count("done at step") == 1  # rank 0 speaks for all
    rows = [json.loads(line) for line in (tmp_path / "batch" / "metrics.jsonl").read_text().splitlines()]
    expected = ridgeline.run(ridgeline.scenario({**TINY, "system": "1xcpu", "plan": {"precision": "fp32"}}))
    assert [row["loss"] for row in rows] == pytest.approx([row.loss for row in expected.rows[:4]], rel=1e-5)
    assert steps(tmp_path / "batch" / "checkpoints") == [4, 2]
    assert "stopped at step" in stopped
    assert newest_sound(tmp_path / "stopped" / "checkpoints")[0] is not None
