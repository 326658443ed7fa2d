"""Turn StableHLO bytecode into text through `jax`, where it is installed: MLIR's bytecode has no reader of its own."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

from ridgeline.compilers.program_text import MOST_TEXT, refuse_program

MAGIC = b"ML\xefR"


def is_bytecode(path: Path) -> bool:
    """Whether a file begins as MLIR's bytecode does."""
    if not path.is_file():
        return False
    with path.open("rb") as stream:
        return stream.read(4) == MAGIC


def bytecode_text(path: Path) -> str:
    """The text of a bytecode file."""
    if path.stat().st_size > MOST_TEXT:
        raise refuse_program(
            path, f"{path.stat().st_size:,} bytes", f"at most {MOST_TEXT:,}", "is this the right file?"
        )
    try:
        ir = import_module("jaxlib.mlir.ir")
        stablehlo = import_module("jaxlib.mlir.dialects.stablehlo")
    except ImportError:
        todo = "pip install 'ridgeline[jax]', or write the text: lowered.as_text()"
        raise refuse_program(path, "StableHLO bytecode", "text, or jax beside Ridgeline", todo) from None
    try:
        with ir.Context() as context:
            stablehlo.register_dialect(context)
            return str(stablehlo.deserialize_portable_artifact(context, path.read_bytes()))
    except Exception as wrong:  # whatever MLIR raises on damaged bytes
        raise refuse_program(path, f"bytecode that jax refuses ({str(wrong)[:80]})", "a portable artifact") from None
