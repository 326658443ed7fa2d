"""Turn the idle time of a chip into causes: launch-bound, synchronising, waiting, by the work that ended each gap.

The gap before a span is judged by when that span was launched and by what the host did until then:

    launched after the chip went idle     the host was late, unless most of a long gap came after the launch:
        start-up          most of the wait was loading code or allocating memory
        data loading      most of it was inside a data loader
        synchronisation   a call that waits for the device ended in it, or a silence that was a wait: the host had let
                          the queue run empty; not where it then did something else for a millisecond and over half;
                          the gaps behind such a wait are its own as well until the queue is filled again: those of the
                          next 16 launches while none of them is early; a host that is late then is too slow by itself
        host              otherwise: launches came too slowly
    launched before                       the span was held back:
        between kernels   at most 10 us: one span follows another
        communication     longer, and the last thing that ran was communication
        copy              longer, and the last thing that ran was a copy
        dependency        longer, for something the trace does not show
    no launch in the trace                unlinked

Causes of a chip add up to its idle time.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from ridgeline.core.arrays import Mask
from ridgeline.trace.classes import COMMUNICATION, COPY, GRAPH, GROUPS, Rules
from ridgeline.trace.graph.edges import WAITS, host_waits
from ridgeline.trace.intervals import Cover, cover, covered_ns, gaps, union
from ridgeline.trace.timeline import ANNOTATION, HOST, PYTHON, RUNTIME, Codes, Longs, Rows, Timeline

CAUSES = (
    "host", "synchronisation", "data loading", "start-up", "communication", "copy", "between kernels", "dependency",
    "unlinked",
)  # fmt: skip
HOST_LATE, SYNC, DATA, START_UP, AFTER_COMMUNICATION, AFTER_COPY, BETWEEN, DEPENDENCY, UNLINKED = range(len(CAUSES))
MEANING = {
    "host": "the next kernel was not launched yet: the host is too slow",
    "synchronisation": "the host had waited for the device and the queue had run empty",
    "data loading": "the host was in a data loader",
    "start-up": "code was being loaded or memory allocated",
    "communication": "work that was launched waited for communication to end",
    "copy": "work that was launched waited for a copy to end",
    "between kernels": "from one kernel to the next that was already launched",
    "dependency": "work that was launched waited for something the trace does not show",
    "unlinked": "the launch of the next kernel is not in the trace",
}
LOADS = re.compile(
    r"dataloader|_next_data|data_?load|prefetch_batch|get_batch|next\(.*loader|utils/data/|collate", re.IGNORECASE
)
BEGINS = re.compile(
    r"Module(Load|GetFunction|Unload)|LibraryLoad|FuncGetAttributes|cudaMalloc$|hipMalloc$|HostAlloc|MallocHost|MemCreate|"
    r"MemAddressReserve|cudaMallocAsync|DeviceGetP2PAttribute|inductor.*compile(?!d)|_compile\b|lazyInit|"
    r"GraphInstantiate|^(cuda|hip)Free$|compile_inner|compile_fx(?!\w*d\b)|backend_compile",
    re.IGNORECASE,
)
COMPILES = re.compile(
    r"triton[/\\](compiler|runtime)[/\\]\w+\.py\(\d+\): (compile|_do_compile)$|: autotune_to_one_config$|"
    r"_inductor[/\\]\w+\.py\(\d+\): (compile_fx\w*|codegen_and_compile)$|"
    r"_dynamo[/\\]convert_frame\.py\(\d+\): _compile$"
)
"""Functions of Python that compile or try configurations."""
PAUSE_NS = 1_000_000  # behind a wait: the host did something else
REFILL = 16  # launches in which a host that does not wait gets ahead of the chip
CLOSE_NS = 10_000  # a gap that one kernel leaves before the next without any cause
LARGEST = 3  # gaps of a cause that are named


@dataclass(frozen=True, slots=True, kw_only=True)
class IdleCause:
    """Idle time with one cause on one chip, or on all together."""

    cause: str
    idle_ns: int
    gaps: int
    longest_ns: int
    rows: tuple[int, ...]
    """The spans that ended the longest gaps."""

    @property
    def meaning(self) -> str:
        return MEANING[self.cause]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Gaps:
    """Every gap of every chip: length, code of its cause in `CAUSES`, and the row that ended it."""

    length: Longs
    cause: Longs
    ended: Rows

    def total_ns(self, places: Rows) -> int:
        """Length of some gaps together."""
        return int(self.length[places].sum())

    def of(self, cause: str) -> Rows:
        """Places of the gaps with a cause, longest first."""
        places = np.flatnonzero(self.cause == CAUSES.index(cause))
        return places[np.argsort(-self.length[places], kind="stable")]


def gaps_of(line: Timeline, rules: Rules, counted: Mask) -> Gaps:
    """The gaps of all chips."""
    chips = np.unique(line.process[counted]).tolist()
    gaps_by_chip = [gaps_of_chip(line, rules, np.flatnonzero(counted & (line.process == chip))) for chip in chips]
    empty = (np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0, np.intp))
    length, cause, end_rows = (np.concatenate(parts) for parts in zip(*(gaps_by_chip or [empty]), strict=True))
    return Gaps(length=length, cause=cause, ended=end_rows)


def idle_causes(found: Gaps) -> tuple[IdleCause, ...]:
    """Why chips were idle, longest cause first, all chips together."""
    of_cause = {CAUSES[code]: found.of(CAUSES[code]) for code in np.unique(found.cause).tolist()}
    causes = [
        IdleCause(
            cause=cause,
            idle_ns=found.total_ns(places),
            gaps=len(places),
            longest_ns=int(found.length[places[0]]),
            rows=tuple(found.ended[places[:LARGEST]].tolist()),
        )
        for cause, places in of_cause.items()
    ]
    return tuple(sorted(causes, key=lambda one: -one.idle_ns))


def gaps_of_chip(line: Timeline, rules: Rules, rows: Rows) -> tuple[Longs, Longs, Rows]:
    """Length and cause of every gap of a chip, and the row that ended it."""
    start, end = line.start_ns[rows], line.end_ns[rows]
    between = gaps(cover(start, end))
    if not len(between):
        empty = np.zeros(0, np.int64)
        return empty, empty, np.zeros(0, np.intp)
    end_rows = rows[np.searchsorted(start, between.end)]  # rows are in order of their starts
    by_end = np.argsort(end, kind="stable")
    before = rows[by_end[np.searchsorted(end[by_end], between.start)]]
    groups = np.array(GROUPS)[rules.groups(line)[before]]
    length = between.end - between.start
    held_by = np.where(groups == COMMUNICATION, AFTER_COMMUNICATION, np.where(groups == COPY, AFTER_COPY, DEPENDENCY))
    held_by = np.where(length <= CLOSE_NS, BETWEEN, held_by)
    call = line.launch[end_rows]
    launch_end = np.where(call >= 0, line.end_ns[np.maximum(call, 0)], 0)
    after = between.end - launch_end  # from the launch to the span: more than a launch takes is another's fault
    late = (launch_end > between.start) & ((after <= CLOSE_NS) | (after * 2 <= length))
    cause = np.where(call < 0, UNLINKED, np.where(late, _why_late(line, between, end_rows), held_by))
    return length, cause.astype(np.int64), end_rows


def _why_late(line: Timeline, between: Cover, ended: Rows) -> Longs:
    call = np.maximum(line.launch[ended], 0)
    until = np.maximum(line.start_ns[call], between.start)
    wait_ns = np.maximum(until - between.start, 1)
    rank = line.rank == line.rank[ended[0]]
    threads = np.isin(line.tracks(), np.unique(line.tracks(call[line.launch[ended] >= 0]))) & rank
    loading = _cover_of_names(line, LOADS, rank & line.of_kind(HOST, ANNOTATION, PYTHON))
    beginning = union(
        _cover_of_names(line, BEGINS, threads & line.of_kind(RUNTIME, HOST)),
        _cover_of_names(line, COMPILES, threads & line.of_kind(PYTHON)),
    )
    waiting = _cover_of_names(line, WAITS, threads & line.of_kind(RUNTIME))
    polls = host_waits(line, np.flatnonzero(rank & line.is_work))
    silent = np.isin(polls.track, np.unique(line.tracks(call)))
    waiting = union(waiting, cover(polls.start_ns[silent], polls.end_ns[silent]))
    in_wait = covered_ns(waiting, between.start - 1, until)
    other_ns = wait_ns - in_wait
    is_pause = (other_ns >= PAUSE_NS) & (other_ns * 2 > wait_ns)
    behind = _refilling(line, waiting, call, np.flatnonzero(rank & line.is_work & (line.launch >= 0)))
    cause = np.where(((in_wait > 0) | behind) & ~is_pause, SYNC, HOST_LATE)
    cause = np.where(covered_ns(loading, between.start, until) * 2 > wait_ns, DATA, cause)
    return np.where(covered_ns(beginning, between.start, until) * 2 > wait_ns, START_UP, cause).astype(np.int64)


def _refilling(line: Timeline, waiting: Cover, call: Codes, work: Rows) -> Mask:
    """Which launches come shortly behind a wait, before any of this work has stood in a queue again."""
    begun = line.start_ns[line.launch[work]]
    order = np.argsort(begun, kind="stable")
    begun, launch_ends = begun[order], line.end_ns[line.launch[work]][order]
    queue_number = np.concatenate([[0], np.cumsum(line.start_ns[work][order] - launch_ends > CLOSE_NS)])
    last = np.searchsorted(waiting.end, line.start_ns[call], side="right") - 1
    if not len(waiting):
        return np.zeros(len(call), np.bool_)
    first = np.searchsorted(begun, waiting.end[np.maximum(last, 0)])
    here = np.searchsorted(begun, line.start_ns[call])
    return np.asarray((last >= 0) & (here - first < REFILL) & (queue_number[here] == queue_number[first]))


def _cover_of_names(line: Timeline, pattern: re.Pattern[str], chosen: Mask) -> Cover:
    rows = np.flatnonzero(chosen)
    rows = rows[line.match_names(pattern, rows)]
    return cover(line.start_ns[rows], line.end_ns[rows])


NOT_TELLING = re.compile(
    r"^(ProfilerStep|Iteration|step|PyTorch Profiler|ThreadPool)\b|^(ProfilerStep)#", re.IGNORECASE
)
LAUNCHES = re.compile(r"launch", re.IGNORECASE)
LONGEST = 70  # characters of a name
LOOKED_AT = 24  # of the longest times, each of which costs a pass over the timeline
NAMES = 60  # annotations compared


def host_activity(line: Timeline, start: Longs, end: Longs, rank: int) -> dict[str, int]:
    """Nanoseconds by what the host of a rank did in the longest of these times, most first; "" where nothing tells."""
    kinds = line.of_kind(HOST, RUNTIME, PYTHON, ANNOTATION) & (line.rank == rank)
    rows = np.flatnonzero(kinds)
    begin, until = line.start_ns[rows], line.end_ns[rows]
    total: dict[str, int] = {}
    for place in np.argsort(start - end, kind="stable")[:LOOKED_AT].tolist():
        low, high = int(start[place]), int(end[place])
        inside = np.minimum(until, high) - np.maximum(begin, low)
        inside_rows = rows[inside * 2 >= high - low]
        order = inside_rows[np.argsort(line.durations_ns(inside_rows), kind="stable")]
        names = (line.names[int(line.name[row])] for row in order.tolist())
        telling = (name for name in names if not NOT_TELLING.search(name) and not LAUNCHES.search(name))
        name = next(map(short, telling), "")
        total[name] = total.get(name, 0) + high - low
    return dict(sorted(total.items(), key=lambda entry: -entry[1]))


def short(name: str) -> str:
    """A name without what differs from call to call, and not too long.

    >>> short("autograd::engine::evaluate_function: MulBackward0"), short("broadcast#17")
    ('autograd::engine::evaluate_function: MulBackward0', 'broadcast')
    """
    plain = re.sub(r"#\d+\b.*$", "", " ".join(name.split()))
    return plain if len(plain) <= LONGEST else f"{plain[: LONGEST - 1]}…"


def scopes(line: Timeline, start: Longs, end: Longs) -> dict[str, int]:
    """Nanoseconds of these times under each annotation of the host, most first; annotations may nest."""
    rows = np.flatnonzero(line.of_kind(ANNOTATION))
    scope_ns: dict[str, int] = {}
    names, place = np.unique(line.name[rows], return_inverse=True)
    time = np.bincount(place, weights=line.durations_ns(rows), minlength=len(names))
    for code in np.argsort(-time, kind="stable")[:NAMES].tolist():
        name = line.names[int(names[code])]
        scope_rows = rows[place == code]
        if not NOT_TELLING.search(name):
            under = covered_ns(cover(line.start_ns[scope_rows], line.end_ns[scope_rows]), start, end)
            scope_ns[short(name)] = scope_ns.get(short(name), 0) + int(under.sum())
    return dict(sorted(scope_ns.items(), key=lambda entry: -entry[1]))


SHORT_NS = 10_000  # a span shorter than this costs about as much to launch as to run


@dataclass(frozen=True, slots=True, kw_only=True)
class Launches:
    """Launches of one chip, in nanoseconds.

    delay_ns       from the start of a call to the start of the first span it launched
    queue depth    spans launched but not started at the moment one starts, itself not counted: 0 = the chip was waiting
    graph replay   a call that launched a captured graph: many spans, one launch
    """

    process: str
    rank: int
    spans: int
    calls: int
    unlinked: int
    """Spans whose launch is not in the trace."""
    call_ns: int
    """Median time of a launching call on the host."""
    calls_total_ns: int
    delay_ns: int
    """Median."""
    delay_p99_ns: int
    queue_depth: float
    """Mean over the linked spans."""
    empty_queue: float
    """Share of linked spans that started when nothing else was queued."""
    graph_replays: int
    graph_spans: int
    short_spans: int
    short_ns: int
    """Spans shorter than 10 us, and their time together."""

    JSON = "* -empty_queue empty_queue_share=empty_queue"


def launches(line: Timeline, counted: Mask) -> tuple[Launches, ...]:
    """Statistics of every chip that has work; chips of a prediction have no launches and are left out."""
    processes = np.unique(line.process[counted & (line.launch >= 0)]).tolist()
    return tuple(_of_chip(line, process, np.flatnonzero(counted & (line.process == process))) for process in processes)


def _of_chip(line: Timeline, process: int, rows: Rows) -> Launches:
    launched_rows = rows[line.launch[rows] >= 0]
    calls, first = np.unique(line.launch[launched_rows], return_index=True)
    start_ns, end_ns = line.start_ns, line.end_ns
    cost = (end_ns - start_ns)[calls]
    delay = np.maximum(start_ns[launched_rows[first]] - start_ns[calls], 0)
    depth = queue_depth(start_ns[line.launch[launched_rows]], start_ns[launched_rows])
    replays, launching = line.match_names(GRAPH, calls), line.launch[launched_rows]
    length = (end_ns - start_ns)[rows]
    return Launches(
        process=line.processes[process],
        rank=line.tables.ranks[process],
        spans=len(rows),
        calls=len(calls),
        unlinked=len(rows) - len(launched_rows),
        call_ns=int(np.median(cost)),
        calls_total_ns=int(cost.sum()),
        delay_ns=int(np.median(delay)),
        delay_p99_ns=int(np.quantile(delay, 0.99)),
        queue_depth=float(depth.mean()),
        empty_queue=float((depth == 0).mean()),
        graph_replays=int(replays.sum()),
        graph_spans=int(line.match_names(GRAPH, launching).sum()),
        short_spans=int((length < SHORT_NS).sum()),
        short_ns=int(length[length < SHORT_NS].sum()),
    )


def queue_depth(launched: Longs, started: Longs) -> Longs:
    """How many others were launched and not started at each start.

    >>> queue_depth(np.array([0, 1, 2]), np.array([5, 6, 7])).tolist()
    [2, 1, 0]
    """
    before = np.searchsorted(np.sort(launched), started, side="right")
    begun = np.searchsorted(np.sort(started), started, side="right")
    return np.asarray(np.maximum(before - begun, 0))
