"""Turn a compiled cubin into the registers and the shared memory of its kernels, by the tables of its ELF sections.

Registers stand in a record of `.nv.info` (a symbol and a number), in older files in the header of `.text.KERNEL` too.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ridgeline.compilers.multiprocessor import KernelResources
from ridgeline.compilers.program_text import refuse_program
from ridgeline.core.units import BINARY

MOST_BYTES = int(64 * BINARY["Mi"])
MOST_SECTIONS = 4096
_MAGIC = b"\x7fELF"
_REGISTERS, _SIZED = 0x2F, 4  # the record that states registers; the form of records with a size of their own


@dataclass(frozen=True, slots=True)
class _Section:
    """One section: its name, where its bytes are, which section it refers to, and its info word."""

    name: str
    start: int
    size: int
    link: int
    info: int
    stored_results: bool


def is_cubin(path: Path) -> bool:
    """Whether a file begins as an ELF file does."""
    if not path.is_file():
        return False
    with path.open("rb") as stream:
        return stream.read(4) == _MAGIC


def read_cubin(path: Path) -> tuple[KernelResources, ...]:
    """The kernels of a cubin; a damaged one is refused."""
    with path.open("rb") as stream:
        data = stream.read(MOST_BYTES + 1)
    if len(data) > MOST_BYTES or len(data) < 64 or data[:4] != _MAGIC or data[4] != 2:
        raise refuse_program(path, "no 64-bit ELF file of a sensible size", "a cubin", "write it with ptxas")
    sections = _sections(path, data)
    registers = {section.name[6:]: section.info >> 24 for section in sections if section.name.startswith(".text.")}
    registers |= dict(_stated_registers(data, sections))
    shared = {part.name[11:]: part.size for part in sections if part.name.startswith(".nv.shared.")}
    return tuple(
        KernelResources(
            name=name[:200], registers=number, registers_low=number, registers_high=number,
            shared_bytes=min(shared.get(name, 0), 2**31), source="cubin",
        )
        for name, number in registers.items()
        if 0 < number <= 256
    )  # fmt: skip


def _sections(path: Path, data: bytes) -> list[_Section]:
    (table,) = struct.unpack_from("<Q", data, 40)
    size, count, names_at = struct.unpack_from("<HHH", data, 58)
    if size != 64 or count > MOST_SECTIONS or table + size * count > len(data) or names_at >= count:
        raise refuse_program(path, "a damaged table of sections", "a whole cubin", "write it again")
    rows = [struct.unpack_from("<IIQQQQIIQQ", data, table + size * place) for place in range(count)]
    names = data[rows[names_at][4] : rows[names_at][4] + rows[names_at][5]]
    return [
        _Section(_text(names, row[0]), row[4], row[5], row[6], row[7], row[1] != 8 and row[4] + row[5] <= len(data))
        for row in rows
    ]


def _text(names: bytes, at: int) -> str:
    end = names.find(b"\0", at)
    return names[at : end if end >= 0 else None].decode("ascii", "replace") if at < len(names) else ""


def _stated_registers(data: bytes, sections: list[_Section]) -> Iterator[tuple[str, int]]:
    """Kernels and their registers, from the records of `.nv.info`."""
    for section in sections:
        if section.name != ".nv.info" or not section.stored_results or section.link >= len(sections):
            continue
        symbols = sections[section.link]
        if not symbols.stored_results or symbols.link >= len(sections):
            continue
        strings = sections[symbols.link]
        names = data[strings.start : strings.start + strings.size]
        at, end = section.start, section.start + section.size
        while at + 4 <= end:
            form, attribute, size = struct.unpack_from("<BBH", data, at)
            body, at = at + 4, at + 4 + (size if form == _SIZED else 0)
            if form == _SIZED and attribute == _REGISTERS and size >= 8 and body + 8 <= end:
                symbol, number = struct.unpack_from("<II", data, body)
                place = symbols.start + 24 * symbol
                if place + 4 <= min(symbols.start + symbols.size, len(data)):
                    yield _text(names, struct.unpack_from("<I", data, place)[0]), number & 0xFFFF
