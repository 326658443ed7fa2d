"""Which reader reads a compiler's file. A format is a module with `recognises` and `read`, and a row of `READERS`."""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from pathlib import Path

from ridgeline.compilers import exported_program, hlo, mlir_programs, ptx, relax, stablehlo, triton_ir
from ridgeline.compilers.bytecode import bytecode_text, is_bytecode
from ridgeline.compilers.cubin import is_cubin
from ridgeline.compilers.program_text import HEAD, MOST_TEXT, ProgramSource, archive_members, refuse_program
from ridgeline.core.files import read_text
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
    ProgramReader(name="Triton IR", recognises=triton_ir.recognises, read=triton_ir.read),
    ProgramReader(name="torch.export", recognises=exported_program.recognises, read=exported_program.read),
    ProgramReader(name="PTX", recognises=ptx.recognises, read=ptx.read),
    ProgramReader(name="HLO", recognises=hlo.recognises, read=hlo.read),
    ProgramReader(name="StableHLO", recognises=stablehlo.recognises, read=stablehlo.read),
    ProgramReader(name="linalg, TOSA or torch in MLIR", recognises=mlir_programs.recognises, read=mlir_programs.read),
)


def program_source(path: Path) -> ProgramSource:
    """The source of a file: its text, what bytecode says as text, or the names of an archive's members."""
    if path.is_file() and zipfile.is_zipfile(path):
        return ProgramSource(path=path, text="", head="\n".join(archive_members(path)))
    if is_cubin(path):
        raise refuse_program(path, "a cubin", "a program as text", "read the PTX or the Triton IR of the kernel")
    text = bytecode_text(path) if is_bytecode(path) else read_text(path, MOST_TEXT)
    return ProgramSource(path=path, text=text, head=text[:HEAD])


def program_format(path: Path) -> str:
    """The name of the format of a file; empty where no reader knows it."""
    source = program_source(path)
    return next((reader.name for reader in READERS if reader.recognises(source)), "")


def read_program(path: Path) -> OpGraph:
    """The op graph of a compiler's file."""
    source = program_source(path)
    for reader in READERS:
        if reader.recognises(source):
            return reader.read(source)
    names = ", ".join(reader.name for reader in READERS)
    raise refuse_program(
        path, "a text of no known compiler", f"one of {names}", "see docs/how-to/what-did-the-compiler-fuse.md"
    )
