"""What the tests of explanations share: a small scenario whose trace the generator makes."""

from __future__ import annotations

from pathlib import Path

import pytest

SCENARIO = """
name = "one block"
model = { base = "llama3.2-1b", layers = 4 }
system = "1xh100-sxm"
workload = { kind = "train", seq = 2048, global_batch = 1 }
plan = { microbatch = 1, precision = "bf16", engine = "torch-eager" }
"""


@pytest.fixture
def scenario(tmp_path: Path) -> Path:
    path = tmp_path / "scenario.toml"
    path.write_text(SCENARIO, encoding="utf-8")
    return path
