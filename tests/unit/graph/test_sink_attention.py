"""The worked example of a declared operator: three forms of it compute the same, the kernel in Triton's interpreter."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
EXAMPLE = Path(__file__).parents[3] / "examples" / "operators" / "sink_attention.py"
CHECK = """
import runpy, sys, torch
torch.manual_seed(0)
names = runpy.run_path(sys.argv[1])
q = torch.randn(1, 4, 70, 32)
k, v = (torch.randn(1, 2, 70, 32) for _ in range(2))
sink = torch.randn(4)
expected = names["composed"](q, k, v, sink)
forms = ["joined", *(["sink_attention"] if names["triton"] is not None else [])]
print(max((names[form](q, k, v, sink) - expected).abs().max().item() for form in forms))
"""


def test_all_forms_compute_the_same() -> None:
    settings = {**os.environ, "TRITON_INTERPRET": "1"}
    answer = subprocess.run(
        [sys.executable, "-c", CHECK, str(EXAMPLE)], capture_output=True, text=True, check=True, env=settings
    )
    assert float(answer.stdout) < 2e-6


def test_the_kernel_is_among_them_where_triton_is() -> None:
    if find_spec("triton") is None:
        pytest.skip("triton is not installed: the kernel was not interpreted")
