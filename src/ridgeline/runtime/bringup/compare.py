"""Two reports of bring-up, as `ridgeline bringup --json` writes them, and what differs: drivers, torch versions, chips.

    read_report(path)           the report of a file; an `InputError` where it is none
    diff_reports(a, b)          findings, ops, fingerprint and times that changed
    print_changes(a, b)         the same of two fingerprints alone

Input is hostile: a report is text of a stranger until each part has the type it should have. No torch is needed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from ridgeline.core.documents import JsonMapping, JsonObject
from ridgeline.core.errors import InputError, Problem
from ridgeline.core.files import finite_json, read_text

K = TypeVar("K")
BIGGEST_REPORT = 64 * 1024 * 1024  # bytes
HEAD = 200  # characters in which a report says what it is
LEAST = 0.10  # of a time: less is nobody's difference
LACKS = ("missing", "fallback", "decomposed", "synchronising")


MOST_CHANGES = 200  # ops a report of the difference lists


@dataclass(frozen=True, slots=True, kw_only=True)
class OpChange:
    """A signature whose time changed by more than the spread of both reports."""

    op: str
    dtype: str
    shapes: tuple[tuple[int, ...], ...]
    before_s: float
    after_s: float

    JSON = "* ratio"

    @property
    def ratio(self) -> float:
        """after / before."""
        return self.after_s / self.before_s


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportDiff:
    """What differs between two reports of bring-up: two drivers, two versions of torch.

    environment   what differs of device and software: A, B
    new, gone     findings of B alone, of A alone
    lacks         by missing, fallback, decomposed and synchronising: ops of B alone
    regained      the same of A alone
    ops           ops that the step of B alone dispatches
    no_longer     ops that the step of A alone dispatches
    fingerprint   what differs of the arithmetic unit: A, B
    step_ratio    seconds of all timed ops that both have, B over A; null where either has none
    """

    models: tuple[str, str]
    devices: tuple[str, str]
    verdicts: tuple[str, str]
    environment: Mapping[str, tuple[str, str]]
    new: tuple[JsonMapping, ...]
    gone: tuple[JsonMapping, ...]
    lacks: Mapping[str, tuple[str, ...]]
    regained: Mapping[str, tuple[str, ...]]
    ops: tuple[str, ...]
    no_longer: tuple[str, ...]
    fingerprint: Mapping[str, tuple[str, str]]
    step_ratio: float | None
    changed: tuple[OpChange, ...]

    JSON = """
        kind='bringup diff' worse models devices verdicts environment new gone lacks regained ops no_longer
        fingerprint step_ratio slower faster
    """

    @property
    def slower(self) -> tuple[OpChange, ...]:
        """Ops that take longer, beyond their spread."""
        return tuple(change for change in self.changed if change.ratio > 1)[:MOST_CHANGES]

    @property
    def faster(self) -> tuple[OpChange, ...]:
        """Ops that take shorter, beyond their spread."""
        return tuple(change for change in self.changed if change.ratio < 1)[:MOST_CHANGES]

    @property
    def worse(self) -> bool:
        """Whether B is wrong, or lacks an op, where A did not."""
        return bool(self.new) or bool(self.lacks.get("missing"))


def is_report(path: Path) -> bool:
    """Whether a file looks like a report of bring-up."""
    try:
        with path.open(encoding="utf-8") as file:
            return '"kind":"bringup"' in "".join(file.read(HEAD).split())
    except (OSError, UnicodeDecodeError):
        return False


def read_report(path: Path) -> JsonObject:
    """A report; an `InputError` where the file is none."""
    try:
        report = finite_json(read_text(path, BIGGEST_REPORT))
    except (ValueError, RecursionError) as error:
        raise _refuse_report(path, f"a file that is no JSON ({type(error).__name__})") from error
    if not isinstance(report, dict) or report.get("kind") != "bringup":
        raise _refuse_report(path, "something else")
    for key, kind in (("findings", list), ("inventory", dict)):
        if not isinstance(report.get(key), kind):
            raise _refuse_report(path, f"a report without {key}")
    return report


def _refuse_report(path: Path, given: str) -> InputError:
    expected_text = "a report of `ridgeline bringup MODEL --device DEVICE -o FILE`"
    return InputError(Problem(path=path.name, given=given, expected=expected_text, todo="write it again"))


def diff_reports(before: JsonMapping, after: JsonMapping) -> ReportDiff:
    """What differs between two reports."""
    sides = (before, after)
    findings = [{_key(table): table for table in _tables(side["findings"])} for side in sides]
    inventories = [_table(side.get("inventory")) for side in sides]
    lists = {
        name: [[str(table.get("op")) for table in _tables(side.get(name))] for side in inventories] for name in LACKS
    }
    ops = [[str(op) for op in _table(side.get("ops"))] for side in inventories]
    ratio, speed_changes = _speeds(_table(before.get("speed")), _table(after.get("speed")))
    return ReportDiff(
        models=_pair(sides, "model"), devices=_pair(sides, "device"), verdicts=_pair(sides, "verdict"),
        environment=_changes(*(_flat(side.get("environment")) for side in sides)),
        new=_only(findings[1], findings[0]), gone=_only(findings[0], findings[1]),
        lacks={name: _less(sides[1], sides[0]) for name, sides in lists.items()},
        regained={name: _less(sides[0], sides[1]) for name, sides in lists.items()},
        ops=_less(ops[1], ops[0]), no_longer=_less(ops[0], ops[1]),
        fingerprint=print_changes(*(side.get("fingerprint") for side in sides)),
        step_ratio=ratio, changed=speed_changes,
    )  # fmt: skip


def _pair(both: tuple[JsonMapping, JsonMapping], key: str) -> tuple[str, str]:
    return str(both[0].get(key, "")), str(both[1].get(key, ""))


def _table(value: object) -> JsonMapping:
    return value if isinstance(value, Mapping) else {}


def _tables(value: object) -> list[JsonMapping]:
    return [entry for entry in value if isinstance(entry, Mapping)] if isinstance(value, list) else []


def _key(one: JsonMapping) -> tuple[str, str, str]:
    """A finding is the same where op, format and phase are; its module and figures may differ."""
    return str(one.get("op")), str(one.get("dtype")), str(one.get("phase"))


def _only(ours: Mapping[K, JsonMapping], theirs: Mapping[K, JsonMapping]) -> tuple[JsonMapping, ...]:
    return tuple(entry for key, entry in ours.items() if key not in theirs)


def _less(ours: Iterable[str], theirs: Iterable[str]) -> tuple[str, ...]:
    their_keys = set(theirs)
    return tuple(dict.fromkeys(op for op in ours if op not in their_keys))


def _flat(value: object, path: str = "", depth: int = 4) -> dict[str, str]:
    """A nest of tables as dotted keys."""
    if isinstance(value, Mapping) and depth:
        pairs = (_flat(part, f"{path}.{key}" if path else str(key), depth - 1) for key, part in value.items())
        return {key: text for pair in pairs for key, text in pair.items()}
    return {path: f"{value:.6g}" if isinstance(value, float) else str(value)} if path else {}


def _changes(before: Mapping[str, str], after: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    keys = dict.fromkeys((*before, *after))
    return {key: (before.get(key, "–"), after.get(key, "–")) for key in keys if before.get(key) != after.get(key)}


def print_changes(before: object, after: object) -> dict[str, tuple[str, str]]:
    """What differs of a fingerprint: measured figures by more than a tenth, and by more than a fiftieth at all."""
    return {
        key: pair
        for key, pair in _changes(_flat(before), _flat(after)).items()
        if not _close(*pair) and key.partition(".")[0] not in ("allowed", "notes", "judged_by", "changed")
    }


def _close(one: str, other: str) -> bool:
    try:
        a, b = float(one), float(other)
    except ValueError:
        return False
    are_integers = a.is_integer() and b.is_integer()
    return not are_integers and abs(a - b) <= max(0.02, 0.1 * max(abs(a), abs(b)))


def _speeds(before: JsonMapping, after: JsonMapping) -> tuple[float | None, tuple[OpChange, ...]]:
    """Seconds of all ops that both timed, B over A, and those that changed beyond their spread, the most first."""
    sides = [{key: row for row in _tables(side.get("ops")) if (key := _timing_key(row))} for side in (before, after)]
    common_keys = [key for key in sides[0] if key in sides[1]]
    if not common_keys:
        return None, ()
    totals = [
        sum(_number(side[key], "seconds") * max(_number(side[key], "calls"), 1) for key in common_keys)
        for side in sides
    ]
    changes = []
    for key in common_keys:
        before_row, after_row = sides[0][key], sides[1][key]
        noise = max(LEAST, _number(before_row, "spread") + _number(after_row, "spread"))
        seconds = _number(before_row, "seconds"), _number(after_row, "seconds")
        if abs(math.log(seconds[1] / seconds[0])) > noise and "launch" not in (
            before_row.get("bound"),
            after_row.get("bound"),
        ):
            changes.append(OpChange(op=key[0], dtype=key[1], shapes=key[2], before_s=seconds[0], after_s=seconds[1]))
    changes.sort(key=lambda one: -abs(math.log(one.ratio)))
    return totals[1] / totals[0], tuple(changes)


def _timing_key(row: JsonMapping) -> tuple[str, str, tuple[tuple[int, ...], ...]] | None:
    """What tells one signature from another; None where the row has no time."""
    shapes = row.get("shapes")
    if _number(row, "seconds") <= 0 or not isinstance(shapes, list):
        return None
    sizes = tuple(tuple(n for n in shape if isinstance(n, int)) for shape in shapes if isinstance(shape, list))
    return str(row.get("op")), str(row.get("dtype")), sizes


def _number(row: JsonMapping, key: str) -> float:
    value = row.get(key)
    usable = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return min(max(float(value), 0.0), 1e9) if usable else 0.0  # type: ignore[arg-type]
