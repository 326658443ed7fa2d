"""What several tests of the runtime start: ranks under torchrun."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.fixture
def torchrun(tmp_path: Path) -> Callable[..., str]:
    """Run `ridgeline ARGUMENTS` in a folder of its own as two ranks of torchrun; what they wrote to standard output."""
    pytest.importorskip("torch")
    start = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "ridgeline"]
    own = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}

    def run(*arguments: str) -> str:
        done = subprocess.run([*start, *arguments], capture_output=True, text=True, env=own, cwd=tmp_path, timeout=200)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run
