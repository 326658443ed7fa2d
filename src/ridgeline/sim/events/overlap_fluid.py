"""Turn one pass of one section into a pattern: what runs when on which stream, alone or beside other traffic.

Small enough to be simulated event by event, and simulated once however often the section is repeated. In order:

    shard, host   the share of their traffic that is always waited for
    memory        compute; the hidden shares of tp, ep, shard and host begin beside it
    attention     the hidden share of cp runs beside it, and the rest is waited for behind it
    matmul, kernel
    ep, tp        what of them is waited for
    end           when everything that ran beside has ended, too

Traffic that uses the same tier at the same time shares its bandwidth: where the loads of a tier add up to more than
one, all that use it go slower by that sum. A tier may carry a background from outside the pattern, which takes part in
the sum; how fast that background gets on meanwhile is part of the answer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ridgeline.core.records import dataclass
from ridgeline.sim.events.stream_work import Comm, Loads, PassWork

NOTHING: Loads = (0.0, 0.0)
ORDER = ("memory", "attention", "matmul", "kernel")


class Segment(NamedTuple):
    """Something on a stream: its name, whether compute waits for it, and from when to when."""

    stream: str
    name: str
    kind: str
    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PassTimeline:
    """What a pass does beside a background: how long it takes, and how fast the background moves meanwhile, by tier."""

    seconds: float
    segments: tuple[Segment, ...]
    pace: Loads


class Task(NamedTuple):
    """Work for the fluid simulation: seconds alone, loads by tier, and the tasks that must have ended before."""

    stream: str
    name: str
    kind: str
    seconds: float
    loads: Loads = NOTHING
    after: tuple[int, ...] = ()


def slowdown(loads: Loads, totals: Sequence[float]) -> float:
    """How much slower traffic with these loads is where the loads of all add up to these totals.

    >>> slowdown((1.0, 0.0), (2.0, 3.0)), slowdown((0.0, 0.0), (2.0, 3.0)), slowdown((0.5, 0.5), (0.9, 1.5))
    (2.0, 1.0, 1.5)
    """
    near, far = loads
    return max(1.0, totals[0] if near > 0 else 1.0, totals[1] if far > 0 else 1.0)


def flow(tasks: Sequence[Task], background: Loads = NOTHING) -> PassTimeline:
    """Run the tasks: each starts when those before it on its stream and those it names have ended.

    Two equal collectives on one tier take twice as long, on two tiers they do not:

    >>> near, far = (1.0, 0.0), (0.0, 1.0)
    >>> flow([Task("tp", "a", "", 1.0, near), Task("ep", "b", "", 1.0, near)]).seconds
    2.0
    >>> flow([Task("tp", "a", "", 1.0, near), Task("dp", "b", "", 1.0, far)]).seconds
    1.0
    """
    before = [_before(tasks, place) for place in range(len(tasks))]
    left = [task.seconds for task in tasks]
    starts: dict[int, float] = {}
    ends: dict[int, float] = {}
    now, moved = 0.0, [0.0, 0.0]
    while len(ends) < len(tasks):
        for place in range(len(tasks)):
            if place not in starts and all(other in ends for other in before[place]):
                starts[place] = now
        active = [place for place in starts if place not in ends]
        totals = [base + sum(tasks[place].loads[tier] for place in active) for tier, base in enumerate(background)]
        rates = {place: 1 / slowdown(tasks[place].loads, totals) for place in active}
        step = min(left[place] / rates[place] for place in active)
        for tier in range(2):
            moved[tier] += step / max(1.0, totals[tier])
        now += step
        for place in active:
            left[place] -= step * rates[place]
            if left[place] <= 1e-12 * tasks[place].seconds:
                ends[place] = now
    segments = (
        Segment(task.stream, task.name, task.kind, starts[place], ends[place])
        for place, task in enumerate(tasks)
        if ends[place] > starts[place]
    )
    pace = (moved[0] / now, moved[1] / now) if now > 0 else (1.0, 1.0)
    return PassTimeline(seconds=now, segments=tuple(sorted(segments, key=lambda item: item.start_s)), pace=pace)


def _before(tasks: Sequence[Task], place: int) -> tuple[int, ...]:
    same = [other for other in range(place) if tasks[other].stream == tasks[place].stream]
    return (*tasks[place].after, *same[-1:])


def tasks_of(item: PassWork) -> list[Task]:
    """The tasks of a pass, in the order of this module's head."""
    made: list[Task] = []
    comms = {comm.stream: comm for comm in item.comms}

    def add(comm: Comm | None, hidden: bool, after: tuple[int, ...]) -> tuple[int, ...]:
        if comm is None or comm.seconds <= 0:
            return after
        share = comm.hidden if hidden else 1 - comm.hidden
        kind = "overlapped" if hidden else "exposed"
        made.append(Task(comm.stream, comm.stream, kind, comm.seconds * share, comm.loads, after))
        return after if hidden else (len(made) - 1,)

    last: tuple[int, ...] = ()
    for stream in ("shard", "host"):
        last = add(comms.get(stream), False, last)
    for stream in ("tp", "ep", "shard", "host"):
        add(comms.get(stream), True, last)
    for name in ORDER:
        if name == "attention":
            add(comms.get("cp"), True, last)
        kind = "per-kernel" if name == "kernel" else name  # a timeline's kernels are measured ones
        made.append(Task("compute", name, kind, item.compute[name], NOTHING, last))
        last = (len(made) - 1,)
        if name == "attention":
            last = add(comms.get("cp"), False, last)
    for stream in ("ep", "tp"):
        last = add(comms.get(stream), False, last)
    return made


class PassMix:
    """Passes that a step runs one after the other, each so many times, as one: its length beside any background.

    Filled as backgrounds appear; there are few.
    """

    __slots__ = ("_found", "_parts", "_patterns", "alone_s", "uses")

    def __init__(self, parts: Mapping[int, float], tasks: Sequence[Sequence[Task]], patterns: PassTimelines) -> None:
        self._parts = dict(parts)
        self._patterns = patterns
        self._found: dict[Loads, tuple[float, Loads]] = {}
        self.uses = tuple(
            any(task.loads[tier] > 0 and task.seconds > 0 for place in parts for task in tasks[place])
            for tier in range(2)
        )
        self.alone_s = self._length(NOTHING)[0]

    def beside(self, background: Loads) -> tuple[float, Loads]:
        """How much longer it takes beside a background, and how fast that moves meanwhile, by tier."""
        if background not in self._found:
            seen: Loads = (
                background[0] if self.uses[0] else 0.0,
                background[1] if self.uses[1] else 0.0,
            )
            seconds, pace = self._length(seen)
            longer = seconds / self.alone_s if self.alone_s > 0 else 1.0
            clear = tuple(1 / max(1.0, load) for load in background)
            mixed = (pace[0] if seen[0] else clear[0], pace[1] if seen[1] else clear[1])
            self._found[background] = longer, mixed
        return self._found[background]

    def __add__(self, other: PassMix) -> PassMix:
        parts = dict(self._parts)
        for place, count in other._parts.items():
            parts[place] = parts.get(place, 0.0) + count
        return PassMix(parts, self._patterns.tasks, self._patterns)

    def _length(self, background: Loads) -> tuple[float, Loads]:
        total, near, far = 0.0, 0.0, 0.0
        for place, count in self._parts.items():
            pattern = self._patterns.at(place, background)
            total += count * pattern.seconds
            near += count * pattern.seconds * pattern.pace[0]
            far += count * pattern.seconds * pattern.pace[1]
        return total, (near / total, far / total) if total > 0 else (1.0, 1.0)


class PassTimelines:
    """Patterns of all passes, by background, each made once."""

    def __init__(self, passes: Sequence[PassWork]) -> None:
        self.tasks = [tasks_of(item) for item in passes]
        self._made: dict[tuple[int, Loads], PassTimeline] = {}

    def at(self, place: int, background: Loads = NOTHING) -> PassTimeline:
        """The pattern of one pass beside a background."""
        key = place, background
        if key not in self._made:
            self._made[key] = flow(self.tasks[place], background)
        return self._made[key]

    def mix(self, parts: Mapping[int, float]) -> PassMix:
        """Passes run one after the other, each so many times."""
        return PassMix(parts, self.tasks, self)
