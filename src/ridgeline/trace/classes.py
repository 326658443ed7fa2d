"""Turn spans into classes by an open table of patterns (`classes.toml`), and a policy into the rows that count as work.

    copies, predictions    by their kind
    communication          by the kernel's name
    other kernels          by the innermost op around their launch that a class knows (`aten::cudnn_convolution`), where
                           there is one; else by their own name; else by an op around the launch that does many things

What no pattern matches is `unknown`, counts as compute and is listed by name, never hidden. A user's patterns of names
go before all of this. There is no number without a policy:

    all       every kernel, memcpy and memset
    linked    only those whose launch is in the trace, so that a window has no work from before it began
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

from ridgeline.core.arrays import Mask
from ridgeline.core.errors import InputError, Problem, not_among
from ridgeline.core.files import Table, read_table
from ridgeline.core.table import Doc, decode
from ridgeline.trace.timeline import HOST, KERNEL, NOT_WORK, RUNTIME, Bytes, Classes, Codes, Longs, Rows, Timeline


def parents(line: Timeline, *kinds: str) -> Codes:
    """For every row of these kinds, the row of the innermost enclosing one of them on its thread; -1 for none.

    Without kinds: host ops and calls of the runtime, so that a launch has the op that made it. Spans that cross
    another's end without being inside it count as enclosed by whatever encloses both.
    """
    rows = np.flatnonzero(line.of_kind(*(kinds or (HOST, RUNTIME))))
    parent = np.full(len(line), -1, np.int32)
    if not len(rows):
        return parent
    track = line.tracks(rows)
    start, end = line.start_ns[rows], line.end_ns[rows]
    order = np.lexsort((-end, start, track))  # of two that start together the longer is outside
    rows, track, end = rows[order], track[order], end[order]
    above = _previous_reaching(track, end)
    parent[rows] = np.where(above >= 0, rows[above], -1)
    return parent


def _previous_reaching(track: Longs, end: Longs) -> Longs:
    """For each entry the nearest earlier one of its track that ends no earlier: jumps double, so few rounds are needed.

    >>> _previous_reaching(np.zeros(4, np.int64), np.array([10, 4, 3, 9])).tolist()
    [-1, 0, 1, 0]
    """
    above = np.arange(len(end), dtype=np.int64) - 1
    first = np.concatenate([[True], track[1:] != track[:-1]])
    above[first] = -1
    short = np.flatnonzero((above >= 0) & (end[np.maximum(above, 0)] < end))
    while len(short):
        above[short] = above[above[short]]
        still = (above[short] >= 0) & (end[np.maximum(above[short], 0)] < end[short])
        short = short[still]
    return above


def launching_ops(line: Timeline, work: Rows, above: Codes | None = None) -> Codes:
    """For each row of work the host op whose call launched it: the innermost one around the call; -1 when unknown."""
    above = parents(line) if above is None else above
    call = line.launch[work]
    return np.where(call >= 0, above[np.maximum(call, 0)], -1).astype(np.int32)


ALL, LINKED = POLICIES = ("all", "linked")


@dataclass(frozen=True, slots=True, kw_only=True)
class CountingPolicy:
    """Which spans a number counts, said beside the number."""

    name: str
    counted: int
    of: int
    statement: str


def counted_rows(line: Timeline, policy: str = ALL) -> Mask:
    """Which rows a policy counts. A trace without any device counts the host ops that ran instead."""
    if policy not in POLICIES:
        raise InputError(not_among("policy", policy, POLICIES))
    work = line.is_work
    if not work.any():
        return _busiest(line)
    return work & (line.launch >= 0) if policy == LINKED and (line.launch >= 0).any() else work


def _busiest(line: Timeline) -> Mask:
    """Host ops of the process of each rank that has most of them, in time."""
    ops = line.of_kind(HOST)
    ranks = np.array(line.tables.ranks or (0,))
    time = np.bincount(line.process[ops], weights=line.durations_ns(np.flatnonzero(ops)), minlength=len(ranks))
    of_rank = [np.flatnonzero(ranks == rank) for rank in np.unique(ranks)]
    chosen = [int(candidates[np.argmax(time[candidates])]) for candidates in of_rank]
    return np.asarray(ops & np.isin(line.process, chosen))


def policy_of(line: Timeline, name: str) -> CountingPolicy:
    """The policy with what it came to on this timeline."""
    rows = counted_rows(line, name)
    all_rows = counted_rows(line, ALL)
    counted_spans, of = int(rows.sum()), int(all_rows.sum())
    if not line.is_work.any():
        text = "no device in the trace: host ops of the busiest process count as the work, nested ones once"
    elif name == LINKED and not (line.launch >= 0).any():
        text = "every span of work: the timeline has no launches to link to"
    elif name == LINKED:
        text = f"kernels, memcpy and memset whose launch is in the trace: {counted_spans:,} of {of:,}"
    else:
        stray = int((all_rows & (line.launch < 0)).sum()) if (line.launch >= 0).any() else 0
        text = f"every kernel, memcpy and memset of the trace: {of:,}" + (
            f", of which {stray:,} were launched outside the trace" if stray else ""
        )
    return CountingPolicy(
        name=name, counted=counted_spans, of=of, statement=f"{text}; all steps and what lies between them"
    )


COMPUTE, COMMUNICATION, COPY, WAITING = GROUPS = ("compute", "communication", "copy", "waiting")
UNKNOWN = "unknown"
BUILT_IN = Path(__file__).parent / "classes.toml"
_SPECIAL = re.compile(r"[^\w: -]")
LONGEST = 400  # characters of a name that patterns see: names of templates run to tens of thousands
UP = 10  # spans looked at above a launch until one is an op that a class knows
GRAPH = re.compile(r"graph_?launch", re.IGNORECASE)
"""Calls that launch a captured graph: what is around them launched all of it, and says nothing about one kernel."""
_SCOPED = re.compile(r"(?:^|/)([^/]+?)-op\d+(?:_\d+)*$")
"""MindSpore's names: the scopes of a kernel, then its op and its number."""
_EXCHANGES = re.compile(
    r"(all_?reduce|all_?gather|reduce_?scatter|broadcast|all_?to_?all|all_?swap|neighbor_?exchange|send|receive)"
)
_INDUCTOR = re.compile(r"^triton_(poi|red|per|for|spl)_")
_NEIGHBOURS = re.compile(
    r"_(addmm|baddbmm|b?mm|linear|convolution|scaled_mm|matmul|(aiter_)?fmha_v\d_(fwd|bwd)|(_?scaled_dot_product_)?"
    r"(flash|efficient|cudnn|fused)?_?attn?(ention)?|flash_attn|moe_forward)(_(forward|backward|func|default))*(?=_|$)"
)
"""Ops whose results a kernel of TorchInductor takes up: they stand in its name, and run in kernels of their own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpClass:
    """One class of spans and how to tell it."""

    id: str
    group: Annotated[str, Doc("compute, communication, copy or waiting")] = COMPUTE
    what: str = ""
    names: Annotated[tuple[str, ...], Doc("regular expressions searched in the name")] = ()
    kinds: Annotated[tuple[str, ...], Doc("span kinds it is limited to")] = ()
    streams: Annotated[tuple[str, ...], Doc("streams it is limited to")] = ()
    shapes: bool = False
    ops: Annotated[tuple[str, ...], Doc("regular expressions of the innermost op around the launch")] = ()
    around: Annotated[tuple[str, ...], Doc("the same, asked where the name says nothing")] = ()

    def problems(self) -> Iterable[Problem]:
        if self.group not in GROUPS:
            yield not_among("group", self.group, GROUPS)
        if not (self.names or self.kinds or self.streams or self.ops or self.around):
            yield Problem(path="names", given="no pattern", expected="at least one of names, kinds, streams, ops")
        for name, patterns in (("names", self.names), ("ops", self.ops), ("around", self.around)):
            for place, pattern in enumerate(patterns):
                try:
                    re.compile(pattern)
                except re.error as wrong:
                    given_text = f"{pattern!r} ({wrong})"
                    yield Problem(path=f"{name}[{place}]", given=given_text, expected="a regular expression")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """All classes, in the order they are tried."""

    classes: tuple[OpClass, ...]
    own: int = 0
    """How many of them, from the first, are the user's."""

    def group_of(self, id: str) -> str:
        """The group of a class; unknown work counts as compute."""
        return next((entry.group for entry in self.classes if entry.id == id), COMPUTE)

    def groups(self, line: Timeline) -> Bytes:
        """Group of every row of a timeline, into `GROUPS`."""
        return np.array([GROUPS.index(self.group_of(id)) for id in line.classes], np.int8)[line.class_]

    def in_group(self, line: Timeline, *groups: str) -> Mask:
        """Which rows of a timeline are of one of these groups."""
        return np.array([self.group_of(id) in groups for id in line.classes], np.bool_)[line.class_]

    def what(self, id: str) -> str:
        """What a class is, in words."""
        return next((entry.what for entry in self.classes if entry.id == id and entry.what), "")

    @classmethod
    def read(cls, path: Path | None = None) -> Rules:
        """The built-in classes, behind those of a user's file when there is one."""
        if path is None:
            return built_in()
        table = read_table(path)
        try:
            own_classes = _entries(table)
            return cls(classes=own_classes + built_in().classes, own=len(own_classes))
        except InputError as wrong:
            raise InputError([table.locate(problem) for problem in wrong.problems] or str(wrong)) from None


@cache
def built_in() -> Rules:
    """The classes that come with Ridgeline."""
    return Rules(classes=_entries(read_table(BUILT_IN)))


def _entries(table: Table) -> tuple[OpClass, ...]:
    entries = table.data.get("class")
    if not isinstance(entries, list) or set(table.data) != {"class"}:
        given_text = ", ".join(map(str, table.data)) or "an empty file"
        raise InputError(Problem(path="", given=given_text, expected="tables named [[class]]", where=table.source))
    for place, entry in enumerate(entries):
        if not isinstance(entry, Mapping):
            given_text = repr(entry)
            raise InputError(Problem(path=f"class[{place}]", given=given_text, expected="a table with id and patterns"))
    return tuple(decode(OpClass, dict(entry), f"class[{place}]") for place, entry in enumerate(entries))


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
    by_stream = [entry for entry in rules.classes if not set(entry.streams).isdisjoint(timeline.streams)]
    if not any(_of_kind(entry, kind) for entry in by_stream for kind in timeline.kinds):
        keys = keys // count[1] * count[1]  # far fewer keys
    distinct, place = np.unique(keys, return_inverse=True)
    matcher = _Matcher(rules, NOT_WORK if timeline.is_work.any() else tuple(set(NOT_WORK) - {HOST}))
    class_codes, is_settled = np.zeros(len(distinct), np.int16), np.zeros(len(distinct), np.bool_)
    for row, key in enumerate(distinct.tolist()):
        name_key, stream = divmod(key, count[1])
        name, kind = divmod(name_key, count[0])
        id, is_settled[row] = matcher(timeline.names[name], timeline.kinds[kind], timeline.streams[stream])
        class_codes[row] = code[id]
    open_ = np.flatnonzero(~is_settled[place] & (timeline.launch >= 0) & timeline.of_kind(KERNEL))
    open_ = open_[~timeline.match_names(GRAPH, timeline.launch[open_])]
    class_ = class_codes[place]
    if len(open_):
        _by_ops(timeline, rules, code, (open_, class_))
    return timeline.with_classes(class_, ids)


def _by_ops(timeline: Timeline, rules: Rules, code: Mapping[str, int], given: tuple[Rows, Classes]) -> None:
    """Put kernels into the class of the op that launched them; ``given`` are their rows, and the classes of all."""
    rows, class_ = given
    above = parents(timeline)
    for patterns, chosen in (
        ([(entry.id, entry.ops) for entry in rules.classes], rows),
        ([(entry.id, entry.around) for entry in rules.classes], rows[class_[rows] == code[UNKNOWN]]),
    ):
        verdict = np.full(len(timeline.names) + 1, -1, np.int16)
        searches = [(code[id], [re.compile(pattern).search for pattern in many]) for id, many in patterns if many]
        at = above[timeline.launch[chosen]]
        for _ in range(UP):
            chosen, at = chosen[at >= 0], at[at >= 0]
            if not len(chosen):
                break
            for name in np.unique(timeline.name[at]).tolist():
                if verdict[name] < 0:
                    text = timeline.names[name][:LONGEST]
                    verdict[name] = next((id for id, tests in searches if any(test(text) for test in tests)), 0)
            by_name = verdict[timeline.name[at]]
            class_[chosen[by_name > 0]] = by_name[by_name > 0]
            chosen, at = chosen[by_name == 0], above[at[by_name == 0]]


def _of_kind(entry: OpClass, kind: str) -> bool:
    return not entry.kinds or any(fnmatchcase(kind, pattern) for pattern in entry.kinds)


class _Matcher:
    """The patterns of every class, compiled once: plain text is looked for as text, which is far faster."""

    def __init__(self, rules: Rules, passed_over: tuple[str, ...] = NOT_WORK) -> None:
        self._passed_over, self._own = passed_over, rules.own
        self._classes = [(entry, *_compile_patterns(entry.names)) for entry in rules.classes]

    def __call__(self, name: str, kind: str, stream: str) -> tuple[str, bool]:
        """Its class, and whether no op has a say in it."""
        if kind in self._passed_over:
            return "", True
        text = _telling(name)
        for place, (entry, words, patterns) in enumerate(self._classes):
            if not _of_kind(entry, kind):
                continue
            if entry.streams and stream not in entry.streams:
                continue
            by_kind = bool(entry.kinds or entry.streams) and not entry.names
            if by_kind or any(map(text.__contains__, words)) or any(pattern(text) for pattern in patterns):
                return entry.id, bool(entry.kinds) or entry.group == COMMUNICATION or place < self._own
        return UNKNOWN, False


def _telling(name: str) -> str:
    """The part of a name that says what runs, in lower case.

    >>> _telling("Default/network-Net/conv1-Conv2d/Cast-op239"), _telling("wrapped_convert.kd")
    ('cast', 'wrapped_convert')
    """
    text = name[:LONGEST].lower().removesuffix(".kd")
    if _INDUCTOR.match(text):
        return _NEIGHBOURS.sub("", text)
    scope_match = _SCOPED.search(text)
    if scope_match:
        return f"hccl_{scope_match[1]}" if _EXCHANGES.match(scope_match[1]) else scope_match[1]
    return text


def _compile_patterns(patterns: Iterable[str]) -> tuple[tuple[str, ...], tuple[Callable[[str], object], ...]]:
    plain = tuple(pattern.lower() for pattern in patterns if not _SPECIAL.search(pattern))
    regular = tuple(re.compile(pattern, re.IGNORECASE).search for pattern in patterns if _SPECIAL.search(pattern))
    return plain, regular
