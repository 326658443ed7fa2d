"""Post-training on a Ray cluster of two nodes, in a network namespace: Ray listens on all interfaces.

RIDGELINE_RAY names the `bin` folder of a Python that has Ray, torch and Ridgeline's requirements (`make test-ray`).
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

import ridgeline

HERE = Path(__file__).parent


def outcome_of(case: str, folder: Path) -> Any:
    """What `rl_ray_case.py` found."""
    programs = os.environ.get("RIDGELINE_RAY", "")
    if not (Path(programs) / "ray").exists():
        pytest.skip("RIDGELINE_RAY names no folder with `ray`: run `make test-ray`")
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        pytest.skip("a network namespace wants root and unshare")
    space = ["unshare", "--net", "--pid", "--fork", "--mount-proc", "--kill-child"]
    setting = {"PYTHONPATH": str(Path(ridgeline.__file__).parents[1]), "RAY": programs, "OMP_NUM_THREADS": "1"}
    command = [*space, "bash", str(HERE / "rl_ray_case.sh"), str(folder), case]
    done = subprocess.run(command, capture_output=True, text=True, timeout=590, env={**os.environ, **setting})
    said = (folder / "case.out").read_text()[-3000:] if (folder / "case.out").exists() else ""
    assert (folder / "found.json").exists(), (done.stderr, said)
    return json.loads((folder / "found.json").read_text())


@pytest.mark.ray
def test_every_placement_runs_on_two_nodes(tmp_path: Path) -> None:
    found = outcome_of("placements", tmp_path)
    assert found["colocated"]["replicas"] == 2
    assert found["split"]["replicas"] == 1
    assert found["split"]["rewards"][:2] == found["colocated"]["rewards"][:2]
    for name in ("colocated", "split"):
        assert max(found[name]["lags"]) == 0
        assert max(found[name]["mismatches"]) < 1e-5
    assert max(found["one-step-off"]["lags"]) == 1
    assert max(found["async"]["lags"]) <= 2


@pytest.mark.ray
def test_critics_pairs_and_teachers_run_on_two_nodes(tmp_path: Path) -> None:
    found = outcome_of("algorithms", tmp_path)
    assert set(found) == {"ppo", "dpo", "distill-on-policy"}
    for figures in found.values():
        assert figures["ranks"] == 2
        assert len(figures["losses"]) == 4
    assert found["dpo"]["losses"][-1] < found["dpo"]["losses"][0]


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.parametrize(
    ("placement", "kinds", "bound"),
    [("colocated", {"worker"}, 0), ("split", {"train", "rollout"}, 0), ("async", {"train", "rollout"}, 2)],
)
def test_random_kills_of_actors_cost_unfinished_samples_alone(
    tmp_path: Path, placement: str, kinds: set[str], bound: int
) -> None:
    """Twenty-one kills over three placements: a step may be trained once more, and none is left out."""
    found = outcome_of(f"kills {placement}", tmp_path)
    assert len(found["hits"]) == 7
    assert {name.partition(" ")[0] for name in found["hits"]} == kinds
    assert found["restarts"] >= 4
    assert sorted(set(found["told"])) == list(range(1, 61))
    assert len(found["told"]) <= 60 + 2 * 7
    assert found["samples"] == [32]
    assert found["lags"] <= bound
