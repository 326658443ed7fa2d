"""`ridgeline run --launcher ray` on a Ray cluster of two nodes, in a network namespace: Ray listens on all interfaces.

RIDGELINE_RAY names the `bin` folder of a Python that has Ray, torch and Ridgeline's requirements (`make test-ray`).
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

pytest.importorskip("torch")

import ridgeline
from ridgeline.runtime.train.checkpoint import steps
from ridgeline.runtime.train.request import RunOutcome

HERE = Path(__file__).parent
TINY = {
    "model": {"hidden": 32, "layers": 2, "vocab": 256, "attention": {"heads": 4}, "mlp": {"hidden": 64}},
    "system": "2xcpu",
    "workload": {"seq": 32, "global_batch": 8},
    "plan": {"dp": 2, "shard": "zero3", "precision": "fp32"},
}


@pytest.mark.ray
def test_two_ray_nodes_train_one_plan_and_one_goes_on_when_the_other_is_lost(tmp_path: Path) -> None:
    programs = os.environ.get("RIDGELINE_RAY", "")
    if not (Path(programs) / "ray").exists():
        pytest.skip("RIDGELINE_RAY names no folder with `ray`: run `make test-ray`")
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        pytest.skip("a network namespace wants root and unshare")
    scenario = tmp_path / "tiny.json"
    scenario.write_text(json.dumps(TINY))
    space = ["unshare", "--net", "--pid", "--fork", "--mount-proc", "--kill-child"]
    command = [*space, "bash", str(HERE / "ray_case.sh"), str(scenario), str(tmp_path)]
    setting = {"PYTHONPATH": str(Path(ridgeline.__file__).parents[1]), "RAY": programs, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=590, env={**os.environ, **setting})
    first, second = ((tmp_path / f"{name}.out").read_text() for name in ("run", "lost"))
    assert (tmp_path / "told").read_text().split() == ["0", "0"], (done.stderr, first, second)
    assert "done at step 4: 2 rank(s) on cpu" in first
    whole = ridgeline.run(ridgeline.scenario({**TINY, "system": "1xcpu", "plan": {"precision": "fp32"}}))
    assert isinstance(whole, RunOutcome)
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [row["loss"] for row in rows] == pytest.approx([row.loss for row in whole.rows[:4]], rel=1e-5)
    assert steps(tmp_path / "run" / "checkpoints") == [4, 2]
    assert "went on with no parallelism on 1 rank(s)" in second
    assert "done at step 400" in second
