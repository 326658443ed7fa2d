"""Turn what a target's writers say about decisions into options and an account of every decision: none is dropped.

A writer is a small function that yields, for a scenario,

    Say("tensor-model-parallel-size", 8, "plan.tp")      this option carries these decisions
    Fixed("plan.attention", "flash", "always flash")     the target does so by itself; another value is lost
    Lose("model.vision*", "text models only")            the target cannot express these decisions
    Like("model.mtp.block", "model.blocks.0")            what is below the first fares as what is below the second

Paths may hold `*`, which also spans dots. Where several speak of one decision, `Lose` wins over `Say` and `Say` over
`Fixed`. A decision nobody speaks of is lost, with `UNSPOKEN` as the reason; a test asserts that this never happens.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import lru_cache
from types import MappingProxyType
from typing import Any

from ridgeline.core.documents import JsonMapping, JsonObject
from ridgeline.core.encode import plain
from ridgeline.core.units import format_gib as gib
from ridgeline.plan.mesh import ORDERS
from ridgeline.targets.options import DocumentedOptions, options
from ridgeline.targets.tables import tables
from ridgeline.targets.target import Export, ExportCheck, Figures, Files, Lost

UNSPOKEN = "the exporter does not know this decision"
# what a sequence holds beside text
MEDIA = ("images", "videos", "frames", "height", "width", "image_tokens", "audio_s")
NO_CACHE = "a training step keeps no key-value cache"
FILE = "LEDGER.md"
SYSTEM = re.compile(r"^(\W{0,4})system: .*$", re.MULTILINE)
MOST = 6  # decisions named for one reason
LONGEST = 400  # characters of a line


@dataclass(frozen=True, slots=True)
class Say:
    """An option, its value (True for one that stands alone) and the decisions it carries."""

    option: str
    value: Any
    paths: tuple[str, ...]

    def __init__(self, option: str, value: Any, *paths: str) -> None:
        object.__setattr__(self, "option", option)
        object.__setattr__(self, "value", value)
        object.__setattr__(self, "paths", paths)


@dataclass(frozen=True, slots=True)
class Fixed:
    """What the target does without being asked."""

    path: str
    value: Any
    why: str


@dataclass(frozen=True, slots=True)
class Lose:
    """What the target cannot express, whatever its value; `yours`: the user's own script decides it."""

    path: str
    why: str
    yours: bool = False


@dataclass(frozen=True, slots=True)
class Like:
    """Decisions below `path` that go wherever those below `other` went: copies of a layer."""

    path: str
    other: str


Piece = Say | Fixed | Lose | Like


def lose(why: str, *paths: str, yours: bool = False) -> Iterator[Lose]:
    """Several decisions that are lost for one reason."""
    return (Lose(path, why, yours) for path in paths)


def fix(value: object, why: str, *paths: str) -> Iterator[Fixed]:
    """Several decisions of which the target does the same by itself."""
    return (Fixed(path, value, why) for path in paths)


# what holds for every software that trains
EVERYWHERE: tuple[Piece, ...] = (
    Fixed("plan.moe_imbalance", 1.0, "how evenly tokens spread is a matter of the data and the router's training"),
    Fixed("plan.order", ORDERS[0], "ranks are numbered so unless told otherwise"),
    Fixed("plan.recompute.rest", "none", "the layers beyond those named keep everything"),
    *(Fixed(f"workload.{name}", None, "text only") for name in MEDIA if name != "images"),
    Fixed("workload.towers", "trained", "encoders are trained with the rest"),
)


def habits(dialect: str, section: str) -> Iterator[Fixed | Lose]:
    """What a dialect does by itself, and what it lacks, by the rows of its table: path = [value, why], or = why.

    >>> next(habits("torchtitan", "switches"))
    Fixed(path='plan.engine', value='torchtitan', why='what runs it is torchtitan')
    """
    for path, row in tables(dialect)["habits"][section].items():
        yield Lose(path, row) if isinstance(row, str) else Fixed(path, row[0] if len(row) > 1 else None, row[-1])


def media_of_the_data() -> Iterator[Piece]:
    """For software that trains models which see and hear: how much of it a sequence holds is said by the data."""
    for name in MEDIA:
        yield Lose(f"workload.{name}", "what a sequence holds beside text is a matter of the data", yours=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    """Options by name, and where each decision went."""

    options: JsonMapping
    expressed: Mapping[str, str]
    implied: Mapping[str, str]
    lost: tuple[Lost, ...]


def gather(decisions: JsonMapping, pieces: Iterable[Piece]) -> Ledger:
    """The account of all decisions; an option said twice with different values is a `ValueError`."""
    options: JsonObject = {}
    stated_options: dict[str, str] = {}
    losing: dict[str, Lose] = {}
    fixed: dict[str, Fixed] = {}
    copies: list[Like] = []
    for piece in (*EVERYWHERE, *pieces):
        match piece:
            case Say():
                if options.setdefault(piece.option, piece.value) != piece.value:
                    raise ValueError(f"{piece.option} said twice: {options[piece.option]!r} and {piece.value!r}")
                for pattern in piece.paths:
                    stated_options |= {
                        path: piece.option for path in matching(decisions, pattern) if path not in stated_options
                    }
            case Lose():
                losing |= dict.fromkeys(matching(decisions, piece.path), piece)
            case Fixed():
                fixed |= dict.fromkeys(matching(decisions, piece.path), piece)
            case Like():
                copies.append(piece)
    for like in copies:
        for path in matching(decisions, f"{like.path}.*"):
            twin_path = like.other + path.removeprefix(like.path)
            stated_options |= {path: stated_options[twin_path]} if twin_path in stated_options else {}
            losing |= {path: losing[twin_path]} if twin_path in losing else {}
            fixed |= {path: fixed[twin_path]} if twin_path in fixed else {}
    return _account(decisions, options, stated_options, losing, fixed)


def _account(
    decisions: JsonMapping,
    options: JsonMapping,
    said: Mapping[str, str],
    losing: Mapping[str, Lose],
    fixed: Mapping[str, Fixed],
) -> Ledger:
    """Each decision in one place: lost, expressed, implied, or lost for want of anyone who speaks of it."""
    options_by_path: dict[str, str] = {}
    reasons_by_path: dict[str, str] = {}
    lost: list[Lost] = []
    for path, value in decisions.items():
        if path in losing:
            lost.append(Lost(path=path, value=value, why=losing[path].why, yours=losing[path].yours))
        elif path in said:
            options_by_path[path] = said[path]
        elif path == "plan.precision.kv":
            reasons_by_path[path] = NO_CACHE
        elif path in fixed and fixed[path].value == value:
            reasons_by_path[path] = fixed[path].why
        else:
            why = f"always {_word(fixed[path].value)}: {fixed[path].why}" if path in fixed else UNSPOKEN
            lost.append(Lost(path=path, value=value, why=why))
    return Ledger(
        options=MappingProxyType(options),
        expressed=MappingProxyType(options_by_path),
        implied=MappingProxyType(reasons_by_path),
        lost=tuple(lost),
    )


def admit_options(found: Iterable[Piece], known: DocumentedOptions) -> Iterator[Piece]:
    """The pieces whose options the target documents; what it does not take becomes a loss that says so."""
    for piece in found:
        if not isinstance(piece, Say) or not piece.option.startswith("--"):
            yield piece
            continue
        values = piece.value if isinstance(piece.value, tuple) else (piece.value,)
        wrong = next((problem for value in values if (problem := known.problem(piece.option, value))), None)
        if wrong is None:
            yield piece
        else:
            unknown = piece.value is True or wrong.expected.startswith("an option of")
            why = f"no {piece.option}" if unknown else f"{piece.option} is {wrong.expected}"
            for path in piece.paths:
                yield Lose(path, why)


def export_of(target: str, files: Files, found: Ledger) -> Export:
    """The files of a target with the account of every decision."""
    return Export(
        target=target,
        version=options(target).version,
        files=files,
        expressed=found.expressed,
        implied=found.implied,
        lost=found.lost,
    )


def matching(decisions: JsonMapping, pattern: str) -> list[str]:
    """The decisions a pattern names.

    >>> matching({"plan.tp": 8, "plan.overlap.tp": True}, "plan.*tp")
    ['plan.tp', 'plan.overlap.tp']
    """
    if "*" not in pattern:
        return [pattern] if pattern in decisions else []
    return list(_matching_paths(tuple(decisions), pattern))


@lru_cache(maxsize=4096)
def _matching_paths(paths: tuple[str, ...], pattern: str) -> tuple[str, ...]:
    """Those of the paths that a pattern names; plans of one search have the same, and a target asks for the same."""
    return tuple(path for path in paths if fnmatchcase(path, pattern))


def same(decisions: JsonMapping, pattern: str) -> Any:
    """The one value of all decisions a pattern names; None where there are none or they differ."""
    values = [decisions[path] for path in matching(decisions, pattern)]
    return values[0] if values and all(value == values[0] for value in values) else None


def _word(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return "absent" if value is None else str(value)


def annotate_files(made: Export) -> Export:
    """The export with its account inside the files."""
    lines = list(check_lines(made.check)) if made.check is not None else []
    for why, parts in by_reason(made.lost).items():
        lines.append(one_line(f"{'yours' if parts[0].yours else 'lost'}: {describe_losses(parts)}: {why}"))
    files = {name: _with_lines(text, lines) for name, text in made.files.items()}
    return replace(made, files={**files, FILE: ledger_text(made)})


def _with_lines(text: str, lines: Iterable[str]) -> str:
    """The text with comment lines below the one that names the system; as it is where none does."""
    match = SYSTEM.search(text)
    if match is None or "Written by Ridgeline" not in text[: match.start()]:
        return text
    message = "".join(f"\n{match.group(1)}{line}" for line in lines)
    return text[: match.end()] + message + text[match.end() :]


def check_lines(check: ExportCheck) -> Iterator[str]:
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


def describe_losses(parts: list[Lost]) -> str:
    """Decisions with their values, the first few of them.

    >>> describe_losses([Lost(path="plan.shard", value="zero3", why="")])
    'plan.shard = zero3'
    """
    more_text = f", and {len(parts) - MOST} more" if len(parts) > MOST else ""
    return ", ".join(f"{part.path} = {plain(part.value)}" for part in parts[:MOST]) + more_text


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
        rows = [
            (difference.path, _cell(difference.planned), _cell(difference.written)) for difference in made.check.differs
        ]
        parts.append(_table("Read again, these differ", ("decision", "planned", "written"), rows))
    return "\n".join(part for part in parts if part)


def _table(title: str, head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    if not rows:
        return ""
    lines = [head, tuple("---" for _ in head), *rows]
    return f"## {title}\n\n" + "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _rows(found: Mapping[str, str]) -> list[tuple[str, ...]]:
    return [(path, _cell(reason)) for path, reason in found.items()]


def _cell(value: Any) -> str:
    return one_line(str(plain(value))).replace("|", "\\|")


def one_line(text: str) -> str:
    """Text that stays inside its comment line."""
    return "".join(char if char.isprintable() and char.isascii() else " " for char in text)[:LONGEST]
