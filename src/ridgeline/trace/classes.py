"""Turn names into classes by an open table of patterns (`classes.toml`), each distinct name once.

A class has a group: compute, communication, copy or waiting. What no pattern matches is `unknown`, counts as compute
and is listed by name, never hidden.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Annotated

import numpy as np

from ridgeline.core.errors import InputError, Problem, not_among
from ridgeline.core.files import Table, read_table
from ridgeline.core.table import Doc, decode
from ridgeline.trace.timeline import HOST, NOT_WORK, Timeline

COMPUTE, COMMUNICATION, COPY, WAITING = GROUPS = ("compute", "communication", "copy", "waiting")
UNKNOWN = "unknown"
BUILT_IN = Path(__file__).parent / "classes.toml"
_SPECIAL = re.compile(r"[^\w: -]")
LONGEST = 400  # characters of a name that patterns see: names of templates run to tens of thousands


@dataclass(frozen=True, slots=True, kw_only=True)
class Class:
    """One class of spans and how to tell it."""

    id: str
    group: Annotated[str, Doc("compute, communication, copy or waiting")] = COMPUTE
    what: str = ""
    names: Annotated[tuple[str, ...], Doc("regular expressions searched in the name")] = ()
    kinds: Annotated[tuple[str, ...], Doc("span kinds it is limited to")] = ()
    streams: Annotated[tuple[str, ...], Doc("streams it is limited to")] = ()
    shapes: bool = False

    def problems(self) -> Iterable[Problem]:
        if self.group not in GROUPS:
            yield not_among("group", self.group, GROUPS)
        if not (self.names or self.kinds or self.streams):
            yield Problem(path="names", given="no pattern", expected="at least one of names, kinds, streams")
        for place, pattern in enumerate(self.names):
            try:
                re.compile(pattern)
            except re.error as wrong:
                yield Problem(path=f"names[{place}]", given=f"{pattern!r} ({wrong})", expected="a regular expression")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """All classes, in the order they are tried."""

    classes: tuple[Class, ...]

    def group_of(self, id: str) -> str:
        """The group of a class; unknown work counts as compute."""
        return next((entry.group for entry in self.classes if entry.id == id), COMPUTE)

    def what(self, id: str) -> str:
        """What a class is, in words."""
        return next((entry.what for entry in self.classes if entry.id == id and entry.what), "")


@cache
def built_in() -> Rules:
    """The classes that come with Ridgeline."""
    return Rules(classes=_entries(read_table(BUILT_IN)))


def read_rules(path: Path | None = None) -> Rules:
    """The built-in classes, behind those of a user's file when there is one."""
    if path is None:
        return built_in()
    table = read_table(path)
    try:
        return Rules(classes=_entries(table) + built_in().classes)
    except InputError as wrong:
        raise InputError([table.locate(problem) for problem in wrong.problems] or str(wrong)) from None


def _entries(table: Table) -> tuple[Class, ...]:
    entries = table.data.get("class")
    if not isinstance(entries, list) or set(table.data) != {"class"}:
        given = ", ".join(map(str, table.data)) or "an empty file"
        raise InputError(Problem(path="", given=given, expected="tables named [[class]]", where=table.source))
    return tuple(_entry(entry, f"class[{place}]") for place, entry in enumerate(entries))


def _entry(entry: object, path: str) -> Class:
    if not isinstance(entry, Mapping):
        raise InputError(Problem(path=path, given=repr(entry), expected="a table with id and patterns"))
    return decode(Class, dict(entry), path)


def classify(timeline: Timeline, rules: Rules | None = None) -> Timeline:
    """The timeline with a class for every span of work; what the host does has the class "".

    In a trace without a device the host's ops are the work.

    >>> from ridgeline.trace.timeline import Span
    >>> spans = [Span(process="chip 0", stream="7", name="nvjet_tst_128x256", kind="kernel", start_ns=0, duration_ns=1)]
    >>> line = classify(Timeline.of(spans))
    >>> line.classes[line.class_[0]]
    'matmul'
    """
    rules = rules or built_in()
    ids = ("", *dict.fromkeys(entry.id for entry in rules.classes), UNKNOWN)
    code = {id: place for place, id in enumerate(ids)}
    count = max(1, len(timeline.kinds)), max(1, len(timeline.streams))
    keys = (timeline.name.astype(np.int64) * count[0] + timeline.kind) * count[1] + timeline.stream
    if not _streams_matter(timeline, rules):
        keys = keys // count[1] * count[1]  # far fewer keys
    distinct, place = np.unique(keys, return_inverse=True)
    matcher = _Matcher(rules, NOT_WORK if timeline.is_work.any() else tuple(set(NOT_WORK) - {HOST}))
    found = np.zeros(len(distinct), np.int16)
    for row, key in enumerate(distinct.tolist()):
        rest, stream = divmod(key, count[1])
        name, kind = divmod(rest, count[0])
        found[row] = code[matcher(timeline.names[name], timeline.kinds[kind], timeline.streams[stream])]
    return timeline.with_classes(found[place], ids)


def _streams_matter(timeline: Timeline, rules: Rules) -> bool:
    """Whether a class that is limited to streams can be that of any span here."""
    limited = [entry for entry in rules.classes if not set(entry.streams).isdisjoint(timeline.streams)]
    return any(_of_kind(entry, kind) for entry in limited for kind in timeline.kinds)


def _of_kind(entry: Class, kind: str) -> bool:
    return not entry.kinds or any(fnmatchcase(kind, pattern) for pattern in entry.kinds)


class _Matcher:
    """The patterns of every class, compiled once: plain text is looked for as text, which is far faster."""

    def __init__(self, rules: Rules, passed_over: tuple[str, ...] = NOT_WORK) -> None:
        self._passed_over = passed_over
        self._classes = [(entry, *_compiled(entry.names)) for entry in rules.classes]

    def __call__(self, name: str, kind: str, stream: str) -> str:
        if kind in self._passed_over:
            return ""
        text = name[:LONGEST].lower()
        for entry, words, patterns in self._classes:
            if not _of_kind(entry, kind):
                continue
            if entry.streams and stream not in entry.streams:
                continue
            if not entry.names or any(map(text.__contains__, words)) or any(found(text) for found in patterns):
                return entry.id
        return UNKNOWN


def _compiled(patterns: Iterable[str]) -> tuple[tuple[str, ...], tuple[Callable[[str], object], ...]]:
    plain = tuple(pattern.lower() for pattern in patterns if not _SPECIAL.search(pattern))
    rest = tuple(re.compile(pattern, re.IGNORECASE).search for pattern in patterns if _SPECIAL.search(pattern))
    return plain, rest
