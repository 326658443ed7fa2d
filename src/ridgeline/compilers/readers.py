"""Which reader reads a file of a compiler. A format is one module with `recognises` and `read`, and a row of `READERS`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ridgeline.compilers import exported_program, hlo, mlir_programs, relax, stablehlo
from ridgeline.compilers.program_source import ProgramSource, refuse_program
from ridgeline.core.records import dataclass
from ridgeline.ir.op_graph import OpGraph


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramReader:
    """A format by what people call it."""

    name: str
    recognises: Callable[[ProgramSource], bool]
    read: Callable[[ProgramSource], OpGraph]


READERS: tuple[ProgramReader, ...] = (
    ProgramReader(name="TVM script", recognises=relax.recognises, read=relax.read),
    ProgramReader(name="torch.export", recognises=exported_program.recognises, read=exported_program.read),
    ProgramReader(name="HLO", recognises=hlo.recognises, read=hlo.read),
    ProgramReader(name="StableHLO", recognises=stablehlo.recognises, read=stablehlo.read),
    ProgramReader(name="linalg, TOSA or torch in MLIR", recognises=mlir_programs.recognises, read=mlir_programs.read),
)


def program_format(path: Path) -> str:
    """The name of the format of a file; empty where no reader knows it."""
    source = ProgramSource.of(path)
    return next((reader.name for reader in READERS if reader.recognises(source)), "")


def read_program(path: Path) -> OpGraph:
    """The op graph of a compiler's file."""
    source = ProgramSource.of(path)
    for reader in READERS:
        if reader.recognises(source):
            return reader.read(source)
    names = ", ".join(reader.name for reader in READERS)
    raise refuse_program(path, "a text of no known compiler", f"one of {names}", "see docs/how-to/what-did-the-compiler-fuse.md")
