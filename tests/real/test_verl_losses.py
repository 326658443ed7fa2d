"""Losses and advantages against verl's own, on random batches with gaps and padding, to 1e-6.

RIDGELINE_VERL names a Python that imports torch, Ridgeline's requirements and verl (`make test-rl`).
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

import ridgeline

CHECK = Path(__file__).parent / "verl_losses.py"
EXPECTED = {
    *("grpo", "dr-grpo", "rloo", "reinforce++", "reinforce++ returns", "reinforce++-baseline", "gae", "returns"),
    *("overlong", "penalised", "policy token-mean", "policy seq-mean-token-mean", "policy seq-mean-token-sum"),
    *("policy seq-mean-token-sum-norm", "policy gradient", "clipped", "kl", "k1", "abs", "k2", "k3", "value"),
    *("entropy", "forward-kl"),
}


@pytest.mark.real
def test_every_formula_equals_verls() -> None:
    program = os.environ.get("RIDGELINE_VERL", "")
    if not Path(program).exists() or not program:
        pytest.skip("RIDGELINE_VERL names no Python with verl: run `make test-rl`")
    setting = {"PYTHONPATH": str(Path(ridgeline.__file__).parents[1])}
    done = subprocess.run(
        [program, str(CHECK)], capture_output=True, text=True, timeout=300, env={**os.environ, **setting}
    )
    assert done.returncode == 0, done.stderr[-3000:]
    distances = json.loads(done.stdout.strip().splitlines()[-1])
    assert set(distances) == EXPECTED
    assert {name: value for name, value in distances.items() if not value < 1e-6} == {}
