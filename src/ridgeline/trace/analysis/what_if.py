"""Turn a question about a measured timeline into the time it would have taken, by replaying its dependencies.

    matmul x2               everything of that class takes half as long; also a group (compute, communication, copy) or
                            a kernel name with * (`*flash*bwd* x1.5`)
    overlap nccl            these spans run on streams of their own and no other work of their step waits for them,
                            except the optimizer's; what they wait for stays
    no launch gaps          calls and host work take no time; what waits for the device still waits
    fuse elementwise        spans of the class that follow each other on a stream become one: one launch, one span that
                            takes as long as their bytes need at full bandwidth, or as they took where bytes are unknown
    fuse a+b to longest     the same over two classes, as long as the longest of each chain: nothing in between is moved

The new time comes from replaying every dependency (`graph.dependency_graph`), not from subtracting durations: time that
was hidden behind what is removed appears. What the trace does not show (a dependency nobody recorded, contention)
is not replayed. Of a single rank, communication includes the waiting for other ranks, and a speed-up shortens both.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

import numpy as np

from ridgeline.core.arrays import Array, Mask
from ridgeline.core.errors import InputError, Problem, near, not_among
from ridgeline.trace.analysis.critical_path import step_ends
from ridgeline.trace.classes import GROUPS, Rules
from ridgeline.trace.graph import edges
from ridgeline.trace.graph.dependency_graph import NEVER, DependencyGraph, replay
from ridgeline.trace.timeline import Longs, Rows, Timeline

PASSES = {"reduction": 2, "norm": 1, "softmax": 1, "loss": 1}  # times of its own that another one of a chain adds
Sizes = Callable[[Rows], Longs]
"""Nanoseconds the bytes of spans need at full bandwidth, 0 where they are not known."""


def unknown_sizes(rows: Rows) -> Longs:
    """No span's bytes are known."""
    return np.zeros(len(rows), np.int64)


Passes = Callable[[Timeline, Rows, Longs], Longs]
"""Nanoseconds of the passes over memory that spans of so long a time make inside a fused kernel."""


def no_passes(_: Timeline, rows: Rows, __: Longs) -> Longs:
    """A fused kernel goes over its operands once."""
    return np.zeros(len(rows), np.int64)


def reduction_passes(line: Timeline, rows: Rows, took: Longs) -> Longs:
    """What another reduction in a chain costs: what follows needs its result, so rows are written and read again.

    a reduction       2 t        it read the tensor once in t
    norm, softmax     t          it read and wrote
    """
    weight = np.array([PASSES.get(id, 0) for id in line.classes], np.int64)
    return np.asarray(weight[line.class_[rows]] * took)


def further_passes(chain: Longs, pass_ns: Longs, chains: int) -> Longs:
    """Of each chain the passes but its longest: rows stay on the chip for one reduction."""
    total, largest = np.zeros(chains, np.int64), np.zeros(chains, np.int64)
    np.add.at(total, chain, pass_ns)
    np.maximum.at(largest, chain, pass_ns)
    return total - largest


def chains(graph: DependencyGraph, rows: Rows, longest: bool, sizes: Sizes, passes: Passes) -> tuple[Rows, Rows, Longs]:
    """First spans of chains of at least two, the others of them, and how long each chain takes as one kernel.

    by bytes      what the bytes of its spans need together
    to longest    as long as its longest span: nothing in between is moved, and rows stay on the chip
    passes        and what further reductions add: rows are written and read again around each of them
    """
    points = graph.points
    ordered_work = points.in_order(graph.at)
    small = np.isin(ordered_work, rows)
    track = points.line.tracks(ordered_work)
    continues = (
        small[1:]
        & small[:-1]
        & (track[1:] == track[:-1])
        & (graph.line.step[ordered_work[1:]] == graph.line.step[ordered_work[:-1]])
    )
    chain = np.concatenate([[0], np.cumsum(~continues)]) if len(ordered_work) else np.zeros(0, np.int64)
    count = np.bincount(chain)
    many = count[chain] > 1
    chain, ordered_work, joined_to = chain[many], ordered_work[many], np.concatenate([[False], continues])[many]
    took = graph.at[points.end(ordered_work)] - graph.at[points.start(ordered_work)]
    sizes_ = sizes(ordered_work)
    took = took if longest else np.where(sizes_ > 0, np.minimum(sizes_, took), took)
    total = np.zeros(len(count), np.int64)
    (np.maximum if longest else np.add).at(total, chain, took)
    total += further_passes(chain, passes(graph.line, ordered_work, took), len(count))
    first = ordered_work[~joined_to]
    return first, ordered_work[joined_to], total[chain[~joined_to]]


FASTER = re.compile(r"^(?P<what>.+?)\s*[x×*]\s*(?P<factor>\d+(?:\.\d+)?|\.\d+)$")
FORMS = ("CLASS xN", "overlap CLASS", "no launch gaps", "fuse CLASS")
LEAST, MOST = 1e-3, 1e6  # factors that make sense
PAUSE_NS = 20_000  # no launch makes a kernel this late


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """One what-if, understood. ``what`` is a class, a group, or a pattern of names; several are joined by +."""

    text: str
    form: str
    what: tuple[str, ...] = ()
    factor: float = 1.0
    longest: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayedStep:
    """Nanoseconds of one step, measured and replayed."""

    step: int
    before_ns: int
    after_ns: int

    JSON = "step measured_us=before_ns us=after_ns"


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIfAnswer:
    """What a replay gave, in nanoseconds; mean over chips as everywhere."""

    question: str
    meaning: str
    spans: int
    """Spans of work it changes."""
    before_ns: int
    after_ns: int
    steps: tuple[ReplayedStep, ...]
    """Every step, over all ranks."""

    JSON = "what_if=question meaning spans span_us=after_ns measured_span_us=before_ns gain steps"

    @property
    def gain(self) -> float:
        """Part of the span that goes; negative when it gets longer."""
        return 1 - self.after_ns / self.before_ns if self.before_ns else 0.0


def parse(text: str) -> Question:
    """A question from its words.

    >>> parse("matmul x2")
    Question(text='matmul x2', form='faster', what=('matmul',), factor=2.0, longest=False)
    >>> parse("fuse elementwise+norm to longest").what
    ('elementwise', 'norm')
    """
    words = " ".join(text.split())
    if words.lower() in ("no launch gaps", "no launch gap", "no gaps"):
        return Question(text=words, form="no launch gaps")
    verb, _, object_text = words.partition(" ")
    if verb.lower() in ("overlap", "fuse") and object_text:
        longest = verb.lower() == "fuse" and object_text.lower().endswith(" to longest")
        object_text = object_text[: -len(" to longest")] if longest else object_text
        return Question(text=words, form=verb.lower(), what=_names(object_text), longest=longest)
    faster = FASTER.match(words)
    if faster:
        factor = float(faster["factor"])
        if not LEAST <= factor <= MOST:
            expectation = f"a factor from {LEAST:g} to {MOST:g}"
            raise InputError(Problem(path="--what-if", given=repr(text), expected=expectation))
        return Question(text=words, form="faster", what=_names(faster["what"]), factor=factor)
    what = object_text or words
    close = near(words, ["no launch gaps", f"overlap {what}", f"fuse {what}", f"{words} x2"], 1)
    todo = f"did you mean {close[0]!r}?" if close else ""
    raise InputError(Problem(path="--what-if", given=repr(text), expected="one of " + ", ".join(FORMS), todo=todo))


def _names(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split("+") if part.strip())


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class GraphChange:
    """A graph with other lags and delays: what a replay needs."""

    graph: DependencyGraph
    lag: Longs
    delay: Longs

    @classmethod
    def none(cls, graph: DependencyGraph) -> GraphChange:
        return cls(graph=graph, lag=graph.lag, delay=graph.delay)


def answer_questions(
    graph: DependencyGraph, rules: Rules, questions: Sequence[str], sizes: Sizes = unknown_sizes
) -> tuple[WhatIfAnswer, ...]:
    """Answers to questions, each alone; behind several, all together."""
    parsed_questions = [parse(text) for text in questions]
    answers = [answer(graph, rules, [question], sizes) for question in parsed_questions]
    if len(parsed_questions) > 1:
        answers.append(answer(graph, rules, parsed_questions, sizes))
    return tuple(answers)


def answer(
    graph: DependencyGraph, rules: Rules, asked: Sequence[Question], sizes: Sizes = unknown_sizes
) -> WhatIfAnswer:
    """The time with all of these changes made."""
    change, touched_rows = GraphChange.none(graph), np.zeros(len(graph.line), np.bool_)
    for question in asked:
        rows = chosen_rows(graph, rules, question)
        touched_rows[rows] = True
        change = apply(change, question, rows, sizes)
    return answer_of(
        graph, change, touched_rows, " and ".join(question.text for question in asked), "; ".join(map(_meaning, asked))
    )


def answer_of(
    graph: DependencyGraph, change: GraphChange, touched: Mask, question: str, meaning: str = ""
) -> WhatIfAnswer:
    """What replaying a change gives."""
    after = replay(change.graph, change.lag, change.delay)
    return WhatIfAnswer(
        question=question,
        meaning=meaning,
        spans=int(touched.sum()),
        before_ns=span_ns(graph, graph.at),
        after_ns=span_ns(graph, after),
        steps=tuple(_steps(graph, after)),
    )


def _meaning(asked: Question) -> str:
    what = " and ".join(asked.what)
    if asked.form == "faster":
        return f"{what} takes {1 / asked.factor:.3g} of its time"
    if asked.form == "overlap":
        return f"no other work of the step but the optimizer waits for {what}"
    if asked.form == "fuse":
        how = "the longest of each" if asked.longest else "their bytes need, or they took where bytes are unknown"
        return f"chains of {what} are one kernel and one launch each, as long as {how}"
    return "calls and host work take no time; streams run beside each other where no wait in the trace orders them"


def chosen_rows(graph: DependencyGraph, rules: Rules, asked: Question) -> Rows:
    """The spans of work a question is about: by class, by group, or by name when there is a * in it."""
    line = graph.line
    work = graph.points.counted_rows
    if asked.form == "no launch gaps":
        return work
    present = sorted({line.classes[code] or "host" for code in np.unique(line.class_[work]).tolist()})
    chosen = np.zeros(len(work), np.bool_)
    for what in asked.what:
        if what in GROUPS:
            chosen |= rules.in_group(line, what)[work]
        elif "*" in what or "?" in what:
            names = np.array([fnmatchcase(name.lower(), what.lower()) for name in line.names], np.bool_)
            chosen |= names[line.name[work]]
        elif what in present:
            chosen |= line.of_class(what)[work]
        else:
            raise InputError(not_among("--what-if", what, [*present, *GROUPS[:3]], "or a kernel name with * in it"))
    return work[chosen]


# -- the changes -------------------------------------------------------------------------------------------------------


def apply(change: GraphChange, asked: Question, rows: Rows, sizes: Sizes) -> GraphChange:
    """A change with one more question's made."""
    if asked.form == "faster":
        return faster(change, rows, asked.factor)
    if asked.form == "overlap":
        return overlap_rows(change, rows)
    if asked.form == "fuse":
        return fuse_chains(change, rows, asked.longest, sizes)
    return no_launch_gaps(change)


def faster(change: GraphChange, rows: Rows, factor: float) -> GraphChange:
    """Bodies of these spans take 1/factor; of a matched collective, the transfer behind the last arrival does."""
    return scale_rows(change, rows, np.full(len(rows), 1 / factor))


def scale_rows(change: GraphChange, rows: Rows, kept: Array) -> GraphChange:
    """The same with a share of its time for each span."""
    graph = change.graph
    share = np.ones(len(graph.line))
    share[rows] = kept
    row = graph.row_of(graph.dst)
    body = graph.is_body if len(graph.points.work) else graph.kind == edges.CALL
    chosen = body & (row >= 0) & (share[np.maximum(row, 0)] != 1) & (change.lag > 0)
    lag = np.where(chosen, np.rint(change.lag * share[np.maximum(row, 0)]).astype(np.int64), change.lag)
    return replace(change, lag=lag)


def no_launch_gaps(change: GraphChange, ranks: Sequence[int] = ()) -> GraphChange:
    """Calls and host work take no time, nothing that a launch held back is late any more; of some ranks if named."""
    graph = change.graph
    host = graph.is_host
    if ranks:
        row = graph.row_of(graph.dst)
        host &= (row >= 0) & np.isin(graph.line.rank[np.maximum(row, 0)], ranks)
    lag = np.where(host, np.minimum(change.lag, 0), change.lag)
    reach = graph.at[graph.src] + graph.lag
    last = np.full(len(graph.at), NEVER, np.int64)
    np.maximum.at(last, graph.dst, reach)
    by_host = np.full(len(graph.at), NEVER, np.int64)
    np.maximum.at(by_host, graph.dst[host], reach[host])
    is_root = last == NEVER
    return replace(change, lag=lag, delay=np.where(~is_root & (by_host >= last), 0, change.delay))


def no_waits(change: GraphChange) -> GraphChange:
    """No call waits for the device any more, and those that did take no time; the host is no faster than it was."""
    graph = change.graph
    waits = np.isin(graph.kind, (edges.DEVICE_SYNC, edges.SYNC, edges.POLLING))
    in_wait = np.zeros(len(graph.at), np.bool_)
    in_wait[graph.dst[waits]] = True
    lag = np.where(in_wait[graph.dst] & (graph.kind == edges.CALL), 0, np.where(waits, NEVER, change.lag))
    return replace(change, lag=lag, delay=np.where(in_wait, 0, change.delay))


def overlap_rows(change: GraphChange, rows: Rows) -> GraphChange:
    """These spans leave their stream to the others, and only the optimizer or another step waits for them."""
    graph = change.graph
    line = graph.line
    own_rows = line.mask(rows)
    source, target = graph.row_of(graph.src), graph.row_of(graph.dst)
    between = np.isin(graph.kind, (edges.STREAM, edges.CROSS, edges.EVENT)) & (source >= 0) & (target >= 0)
    late = line.of_class("optimizer")[target] | (line.step[target] != line.step[source])
    waits = between & own_rows[source] & ~own_rows[target]
    lag = np.where(waits & ~late, NEVER, change.lag)
    bridges = _bridges(graph, own_rows, np.unique(target[waits]))
    bridged = replace(graph, lag=lag).with_edges(bridges)  # lags follow their edges
    return replace(change, graph=bridged, lag=bridged.lag)


def _bridges(graph: DependencyGraph, own: Mask, after: Longs) -> edges.Edges:
    """For each span that followed a chosen one on its stream: the last before it there that was not chosen."""
    points = graph.points
    rows = points.in_order(graph.at)
    place = np.where(own[rows], -1, np.arange(len(rows)))
    last = np.maximum.accumulate(place) if len(place) else place
    places = np.flatnonzero(np.isin(rows, after))
    before = np.where(places > 0, last[np.maximum(places - 1, 0)], -1)
    good = before >= 0
    good[good] = points.line.tracks(rows[before[good]]) == points.line.tracks(rows[places[good]])
    src, dst = points.end(rows[before[good]]), points.start(rows[places[good]])
    gap = np.minimum(graph.at[dst] - graph.at[src], graph.gap_ns)
    return edges.Edges(src=src, dst=dst, lag=gap, kind=edges.STREAM)


def fuse_chains(
    change: GraphChange, rows: Rows, longest: bool, sizes: Sizes, passes: Passes = no_passes
) -> GraphChange:
    """Chains of these spans on a stream become their first, and the rest takes no time and no launch.

    ``passes`` are what each span adds to a chain that has a longer such span (`reduction_passes`).
    """
    graph = change.graph
    line, points = graph.line, graph.points
    first, followers, length = chains(graph, rows, longest, sizes, passes)
    into = np.zeros(len(line), np.int64)
    into[first] = length
    gone, begins = line.mask(followers), line.mask(first)
    row = graph.row_of(graph.dst)
    safe_row = np.maximum(row, 0)
    body = (graph.kind == edges.BODY) & (row >= 0)
    lag = np.where(body & begins[safe_row], into[safe_row], change.lag)
    lag = np.where(body & gone[safe_row], 0, lag)
    lag = np.where((graph.kind == edges.STREAM) & gone[safe_row] & (row >= 0), np.minimum(lag, 0), lag)
    lag = np.where((graph.kind == edges.LAUNCH) & gone[safe_row] & (row >= 0), NEVER, lag)
    calls = line.launch[followers]
    lone_calls = np.setdiff1d(calls[calls >= 0], line.launch[np.setdiff1d(points.work, followers)])
    saved_calls = line.mask(lone_calls)
    for kind in (
        edges.CALL,
        edges.ORDER,
    ):  # a launch less saves what a launch usually takes, not a pause that happened before it
        of_kind = graph.kind == kind
        usual = int(np.median(graph.lag[of_kind])) if of_kind.any() else 0
        lag = np.where(of_kind & (row >= 0) & saved_calls[safe_row], np.maximum(lag - usual, np.minimum(lag, 0)), lag)
    delay = change.delay.copy()
    begins_at = points.start(followers)  # what a kernel was late by goes, a pause before it does not
    delay[begins_at] = np.where(delay[begins_at] < PAUSE_NS, 0, delay[begins_at])
    return replace(change, lag=lag, delay=delay)


# -- times -------------------------------------------------------------------------------------------------------------


def span_ns(graph: DependencyGraph, at: Longs) -> int:
    """From the first start to the last end of counted work, mean over chips."""
    points, process = graph.points, graph.line.process[graph.points.counted_rows]
    chips = [points.counted_rows[process == chip] for chip in np.unique(process).tolist()]
    spans = [int(at[points.end(rows)].max()) - int(at[points.start(rows)].min()) for rows in chips]
    return round(float(np.mean(spans or [0])))


def _steps(graph: DependencyGraph, after: Longs) -> Iterable[ReplayedStep]:
    work = graph.points.work
    times = []
    for at in (graph.at, after):
        last = int(at[graph.points.start(work)].min()) if len(work) else 0
        steps = []
        for number, end in step_ends(graph, at):
            steps.append((number, max(0, end - last)))
            last = max(last, end)
        times.append(steps)
    for (number, before), (_, behind) in zip(*times, strict=True):
        yield ReplayedStep(step=number, before_ns=before, after_ns=behind)
