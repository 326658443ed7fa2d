"""Turn the account of an Export into text inside its files: losses and figures at their heads, all of it in LEDGER.md.

Files that begin with Ridgeline's own comment say what they cannot say and what was predicted of them; a format without
comments (JSON) has the file beside it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ridgeline.core.encode import plain
from ridgeline.core.units import format_gib as gib
from ridgeline.targets.target import Check, Export, Figures, Lost

FILE = "LEDGER.md"
SYSTEM = re.compile(r"^(\W{0,4})system: .*$", re.MULTILINE)
MOST = 6  # decisions named for one reason
LONGEST = 400  # characters of a line


def annotated(made: Export) -> Export:
    """The export with its account inside the files."""
    lines = tuple(_short(made))
    files = {name: _with_lines(text, lines) for name, text in made.files.items()}
    return replace(made, files={**files, FILE: ledger_text(made)})


def _with_lines(text: str, lines: Iterable[str]) -> str:
    """The text with comment lines below the one that names the system; as it is where none does."""
    found = SYSTEM.search(text)
    if found is None or "Written by Ridgeline" not in text[: found.start()]:
        return text
    told = "".join(f"\n{found.group(1)}{line}" for line in lines)
    return text[: found.end()] + told + text[found.end() :]


def _short(made: Export) -> Iterator[str]:
    if made.check is not None:
        yield from check_lines(made.check)
    for why, parts in by_reason(made.lost).items():
        told = "yours" if parts[0].yours else "lost"
        yield one_line(f"{told}: {named(parts)}: {why}")


def check_lines(check: Check) -> Iterator[str]:
    """Both predictions, a line each; why there is none where there is none."""
    if check.planned is not None:
        yield f"planned: {figures(check.planned)}"
    if check.written is not None:
        same = " (the same)" if check.verdict == "same" else ""
        yield f"these files read again: {figures(check.written)}{same}"
    if check.why:
        yield one_line(f"these files read again: {check.why}")


def figures(found: Figures) -> str:
    """One step in words.

    >>> figures(Figures(step_time_s=1.5, peak_memory_bytes=64 * 2**30, capacity_bytes=60 * 2**30, fits=False))
    'step 1.5 s, 64.0 GiB of 60.0 GiB: does not fit'
    """
    memory = f"{gib(found.peak_memory_bytes)} of {gib(found.capacity_bytes)}"
    return f"step {found.step_time_s:.4g} s, {memory}" + ("" if found.fits else ": does not fit")


def by_reason(lost: Iterable[Lost]) -> dict[str, list[Lost]]:
    """Lost decisions gathered by why."""
    reasons: dict[str, list[Lost]] = {}
    for part in lost:
        reasons.setdefault(part.why, []).append(part)
    return reasons


def named(parts: list[Lost]) -> str:
    """Decisions with their values, the first few of them.

    >>> named([Lost(path="plan.shard", value="zero3", why="")])
    'plan.shard = zero3'
    """
    rest = f", and {len(parts) - MOST} more" if len(parts) > MOST else ""
    return ", ".join(f"{part.path} = {plain(part.value)}" for part in parts[:MOST]) + rest


def ledger_text(made: Export) -> str:
    """LEDGER.md: every decision of the scenario, and where it went."""
    lost = [(part.path, _cell(part.value), _cell(part.why)) for part in made.lost if not part.yours]
    yours = [(part.path, _cell(part.value), _cell(part.why)) for part in made.lost if part.yours]
    parts = [
        f"# Decisions of the plan in {made.target} {made.version}\n",
        "".join(f"- {line}\n" for line in check_lines(made.check)) if made.check else "",
        _table("Lost: the target cannot express these", ("decision", "value", "why"), lost),
        _table("Yours: your own script decides these", ("decision", "value", "why"), yours),
        _table("Expressed", ("decision", "written as"), _rows(made.expressed)),
        _table("Implied: nothing has to be written", ("decision", "why"), _rows(made.implied)),
    ]
    if made.check and made.check.differs:
        rows = [(one.path, _cell(one.planned), _cell(one.written)) for one in made.check.differs]
        parts.append(_table("Read again, these differ", ("decision", "planned", "written"), rows))
    return "\n".join(part for part in parts if part)


def _table(title: str, head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    if not rows:
        return ""
    lines = [head, tuple("---" for _ in head), *rows]
    return f"## {title}\n\n" + "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _rows(found: Mapping[str, str]) -> list[tuple[str, ...]]:
    return [(path, _cell(told)) for path, told in found.items()]


def _cell(value: Any) -> str:
    return one_line(str(plain(value))).replace("|", "\\|")


def one_line(text: str) -> str:
    """Text that stays inside its comment line."""
    return "".join(char if char.isprintable() and char.isascii() else " " for char in text)[:LONGEST]
