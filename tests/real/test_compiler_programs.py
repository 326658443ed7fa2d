"""The compilers themselves write the examples again: what is read of them is what is read of the stored ones.

RIDGELINE_COMPILERS=PYTHON pytest -m real tests/real/test_compiler_programs.py       (`make test-compilers`)
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from ridgeline.compilers import normal_form, read_program

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples" / "compilers"
PYTHON = os.environ.get("RIDGELINE_COMPILERS", "")

pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(
        not PYTHON, reason="RIDGELINE_COMPILERS names no Python with the compilers: make test-compilers"
    ),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the compilers write today."""
    path = tmp_path_factory.mktemp("programs")
    program = Path(__file__).parent / "compiler_programs.py"
    subprocess.run([str(Path(PYTHON).absolute()), str(program), str(path)], check=True, timeout=900)
    return path


@pytest.mark.parametrize("name", sorted(path.name for path in EXAMPLES.iterdir()))
def test_a_program_is_written_and_read_as_it_was(name: str, folder: Path) -> None:
    stored, today = read_program(EXAMPLES / name), read_program(folder / name)
    assert today.flops == stored.flops
    assert normal_form(today).bytes == normal_form(stored).bytes
    assert len(today.fusions) == len(stored.fusions)
    assert today.notes == stored.notes


def test_bytecode_is_read_as_its_text(folder: Path) -> None:
    """In the environment of the compilers, because it needs jax."""
    code = """
import sys
from pathlib import Path
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo
from ridgeline.compilers import read_program
text = Path(sys.argv[1])
target = stablehlo.get_minimum_version()
Path(sys.argv[2]).write_bytes(stablehlo.serialize_portable_artifact_str(text.read_text(), target))
one, other = (read_program(Path(path)) for path in sys.argv[1:3])
assert one.flops == other.flops > 0 and len(one.ops) == len(other.ops)
"""
    files = [str(folder / "mlp.stablehlo.mlir"), str(folder / "mlp.bytecode")]
    settings = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    subprocess.run([str(Path(PYTHON).absolute()), "-c", code, *files], check=True, env=settings, timeout=300)
