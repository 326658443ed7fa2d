"""Replicas of a deployment behind a router, and their requests from arrival to the last token.

Replicas go their own ways between events, so each is advanced only when something looks at it: a router that asks for
its load, a failure, the end. Where one replica's finish makes another's arrival (conversations, closed loops, prefill
handed over to decode), the replica that could finish first goes first, and nobody runs past the next event.
"""

from __future__ import annotations

import gc
import heapq
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import field, replace
from functools import partial
from itertools import pairwise
from typing import Literal, Protocol

from ridgeline.core.records import dataclass
from ridgeline.plan.serving_plan import Autoscale, Failure
from ridgeline.serving.engine.sglang_prefill import RadixCache
from ridgeline.serving.engine.step import Policy, RequestState
from ridgeline.serving.replica import NEVER, Replica, Sample, SloBudget, load_score, refuse
from ridgeline.serving.request import Request
from ridgeline.serving.served import Served, TokenGaps, served_columns
from ridgeline.serving.step_cost import StepCost

Role = Literal["both", "prefill", "decode"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheTransfer:
    """How the cache of a prompt moves: bytes of a token, and the links of one replica.

        seconds = latency + tokens x bytes_per_token / bytes_per_s

    A replica sends one cache after the other.
    """

    bytes_per_token: float
    bytes_per_s: float
    latency_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaPool:
    """So many engines of one kind; `make` starts a fresh one."""

    make: Callable[[], Replica]
    count: int
    chips: int
    role: Role = "both"
    transfer: CacheTransfer | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """Pools, who deals requests to them, and what happens to them."""

    pools: Sequence[ReplicaPool]
    router: Callable[[], RequestRouter]
    autoscale: Autoscale | None = None
    failures: Sequence[Failure] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetRun:
    """What became of requests, and what the fleet did.

    chip_seconds     chips times the time they were there
    transfer_bytes   cache moved between replicas
    retried          requests sent again after a failure
    replicas         (seconds, replicas that take requests) whenever that changed
    samples          by replica: seconds, waiting, running, share of its cache held
    """

    served: Served
    chips: int
    chip_seconds: float
    transfer_bytes: float
    retried: int
    replicas: tuple[tuple[float, int], ...]
    samples: tuple[tuple[Sample, ...], ...]


TICK_S = 1.0  # how often an autoscaler looks
FEED = 1000  # requests between two reports of progress
Progress = Callable[[int, int], object]
"""Told how many requests of how many have been sent."""


def simulate_fleet(
    requests: Iterable[Request],
    fleet: Fleet,
    *,
    sample: bool = False,
    progress: Progress | None = None,
    misses: SloBudget | None = None,
) -> FleetRun:
    """Serve requests on a fleet; `misses` ends the run (`SloMissed`) where every replica does all of a request."""
    with collector_paused():
        run = _FleetLoop(requests, fleet, sample=sample, progress=progress)
        if misses is not None and not run.disaggregated and not fleet.failures:
            for member in run.members:
                member.engine.watch_misses(misses)
        try:
            return run.run()
        finally:
            run.close()


@dataclass(slots=True)
class _Member:
    """A replica of the fleet at its place."""

    engine: Replica
    pool: ReplicaPool
    active: bool = True
    held: dict[str, Request] = field(default_factory=dict)  # sent to it and not answered
    link_free: float = 0.0
    bound: float = 0.0
    since: float = 0.0


class _FleetLoop:
    """One run: members, events, and what was noted."""

    def __init__(self, requests: Iterable[Request], fleet: Fleet, *, sample: bool, progress: Progress | None) -> None:
        self.fleet, self.sample, self.progress = fleet, sample, progress
        self.members = [_Member(engine=pool.make(), pool=pool) for pool in fleet.pools for _ in range(pool.count)]
        self.disaggregated = any(pool.role == "prefill" for pool in fleet.pools)
        self.routers = {role: fleet.router() for role in ("both", "prefill", "decode")}
        self.able: dict[Role, list[tuple[int, Replica]]] = {}  # who takes requests, until that changes
        self.events: list[tuple[float, int, Callable[[float], None]]] = []
        self.order = 0
        self.followers: dict[str, list[Request]] = defaultdict(list)
        self.asked: dict[str, Request] = {}
        self.first_sent: dict[str, float] = {}
        self.prefix_hits: dict[str, int] = {}
        self.parked: list[Callable[[float], None]] = []  # what waits for a replica to be back
        self.states: list[tuple[RequestState, float, int]] = []
        self.gaps: list[TokenGaps] = []
        self.samples: list[list[Sample]] = [[] for _ in self.members]
        self.steps = self.event_count = self.retried = 0
        self.transfer_bytes = self.chip_seconds = 0.0
        self.changes: list[tuple[float, int]] = []
        opening = []
        for request in requests:
            if request.after is None:
                opening.append(request)
            else:
                self.followers[request.after].append(request)
        self.opening = sorted(opening, key=lambda request: request.arrival_s)
        self.coupled = bool(self.followers) or self.disaggregated
        self.tracked = self.coupled or bool(fleet.failures)
        for place in range(len(self.members)):
            self._equip(place)

    def _equip(self, place: int) -> None:
        member = self.members[place]
        member.engine.finish = partial(self._finished, place) if self.tracked else None
        member.engine.samples = self.samples[place] if self.sample else None
        member.held = {}
        member.bound = NEVER

    # ---- the loop

    def run(self) -> FleetRun:
        self._open()
        while True:
            if self.coupled:
                self._catch_up()
            if not self.events:
                break
            at, _, action = heapq.heappop(self.events)
            action(at)
        for member in self.members:
            member.engine.advance()
        return self._result()

    def _open(self) -> None:
        fleet = self.fleet
        if fleet.autoscale is not None:
            for place, member in enumerate(self.members):
                member.active = place < fleet.autoscale.min_replicas
            self._at(0.0, _Scaler(self, fleet.autoscale).look)
        for failure in fleet.failures:
            if failure.replica < len(self.members):
                self._at(failure.at, partial(self._fail, failure))
        self.changes.append((0.0, self._active_count()))
        self._feed(0, 0.0)

    def _feed(self, begin: int, _at: float) -> None:
        """The next requests of an open load, a thousand at a time."""
        part = self.opening[begin : begin + FEED]
        for request in part:
            self._at(request.arrival_s, partial(self._send, request))
        if begin + FEED < len(self.opening):
            self._at(self.opening[begin + FEED].arrival_s, partial(self._feed, begin + FEED))
        if self.progress is not None:
            self.progress(min(begin, len(self.opening)), len(self.opening))
        if not self.coupled and part and not self.tracked:
            for member in self.members:
                member.engine.advance(part[0].arrival_s)

    def _at(self, when: float, action: Callable[[float], None]) -> None:
        heapq.heappush(self.events, (when, self.order, action))
        self.order += 1

    def _catch_up(self) -> None:
        """Run whoever could finish before the next event, the earliest first."""
        while True:
            until = self.events[0][0] if self.events else NEVER
            member = min(self.members, key=lambda one: one.bound)
            if member.bound >= until:
                return
            member.engine.advance_once(until)
            member.bound = member.engine.next_finish()

    def _active_count(self) -> int:
        return sum(member.active for member in self.members)

    # ---- requests

    def _send(self, request: Request, at: float) -> None:
        role: Role = "prefill" if self.disaggregated else "both"
        if self.tracked:
            self.asked[request.id] = request
            self.first_sent.setdefault(request.id, at)
        place = self._choose(request, role, at)
        if place is None:
            self.parked.append(partial(self._send, request))
            return
        part = replace(request, output_tokens=1, max_new_tokens=1) if role == "prefill" else request
        sent = self.first_sent.get(request.id, at)
        self._give(place, part, at, (sent, 0.0, 0.0) if sent < at else None)

    def _choose(self, request: Request, role: Role, at: float) -> int | None:
        able = self.able.get(role)
        if able is None:
            able = self.able[role] = [
                (place, member.engine)
                for place, member in enumerate(self.members)
                if member.active and member.pool.role == role
            ]
        if not able:
            return None
        if len(able) == 1:
            return able[0][0]
        router = self.routers[role]
        if router.looks_at_load:
            for place, engine in able:
                engine.advance(at)
                if self.coupled:
                    self.members[place].bound = engine.next_finish()
        return router.choose(request, able)

    def _give(self, place: int, request: Request, at: float, before: tuple[float, float, float] | None) -> None:
        member = self.members[place]
        if self.tracked:
            member.held[request.id] = request
        if before is not None:
            member.engine.carried[request.id] = before
        member.engine.add(request, at)
        if self.coupled:
            member.bound = member.engine.next_finish()

    def _finished(self, place: int, state: RequestState, end: float) -> None:
        member = self.members[place]
        name = state.request.id
        member.held.pop(name, None)
        if member.pool.role == "prefill" and self.asked[name].output_tokens > 1:
            self.prefix_hits[name] = state.first_hit_tokens
            self._at(end, partial(self._hand_over, place, state))
            return
        for request in self.followers.pop(name, ()):
            self._at(end + request.arrival_s, partial(self._send, request))

    def _hand_over(self, place: int, state: RequestState, at: float) -> None:
        """A prompt is computed: its cache goes to a replica that decodes."""
        member, request = self.members[place], self.asked[state.request.id]
        target = self._choose(request, "decode", at)
        if target is None:
            self.parked.append(partial(self._hand_over, place, state))
            return
        link = member.pool.transfer or CacheTransfer(bytes_per_token=0.0, bytes_per_s=math.inf)
        size = request.prompt_tokens * link.bytes_per_token
        self.transfer_bytes += size
        member.link_free = max(member.link_free, at) + size / link.bytes_per_s
        arrives = member.link_free + link.latency_s
        prefilled = state.first_token_s - state.first_scheduled_s + state.prefilled_s
        ready = replace(request, remote_tokens=request.prompt_tokens - 1)
        self._give(target, ready, arrives, (state.sent_s, prefilled, arrives - at))

    # ---- the fleet changes

    def _fail(self, failure: Failure, at: float) -> None:
        """A replica is gone with its cache; what it held is sent again. A step under way still ends."""
        member = self.members[failure.replica]
        if not member.active:
            return
        member.engine.advance(at)
        lost = list(member.held.values())
        self._retire(failure.replica)
        member.engine = member.pool.make()
        self._equip(failure.replica)
        self._switch(failure.replica, active=False, at=at)
        self.retried += len(lost)
        for request in lost:
            self._at(at, partial(self._send, self.asked[request.id]))
        self._at(at + failure.down, partial(self._back, failure.replica))

    def _back(self, place: int, at: float) -> None:
        self._switch(place, active=True, at=at)
        parked, self.parked = self.parked, []
        for action in parked:
            action(at)

    def _switch(self, place: int, *, active: bool, at: float) -> None:
        self.members[place].active = active
        self.able.clear()
        self.changes.append((at, self._active_count()))

    # ---- the end

    def close(self) -> None:
        """Part what refers to itself in a circle: events, who is told of finishes, caches."""
        self.events.clear()
        for member in self.members:
            member.engine.finish = None
            member.engine.policy.close()

    def _retire(self, place: int) -> None:
        """Keep what an engine noted."""
        member = self.members[place]
        engine = member.engine
        self.steps += engine.steps
        self.event_count += engine.events
        self.gaps.append(engine.gaps)
        for state, end in zip(engine.done, engine.done_s, strict=True):
            if member.pool.role == "prefill" and self.asked[state.request.id].output_tokens > 1:
                continue
            state.first_hit_tokens = self.prefix_hits.get(state.request.id, state.first_hit_tokens)
            self.states.append((state, end, place))

    def _result(self) -> FleetRun:
        if self.followers:
            name = next(iter(self.followers))
            refuse(f"a request after {name!r}, which is not among the requests or never ends")
        for place in range(len(self.members)):
            self._retire(place)
        if len(self.members) > 1 or self.fleet.failures:
            self.states.sort(key=lambda one: one[1])
        gaps = self.gaps[0] if len(self.gaps) == 1 else TokenGaps.join(self.gaps)
        served = served_columns(self.states, gaps, steps=self.steps, events=self.event_count)
        chips = sum(member.pool.chips for member in self.members)
        return FleetRun(
            served=served,
            chips=chips,
            chip_seconds=self._chip_seconds(chips, served.duration_s),
            transfer_bytes=self.transfer_bytes,
            retried=self.retried,
            replicas=tuple(self.changes),
            samples=tuple(tuple(one) for one in self.samples),
        )

    def _chip_seconds(self, chips: int, until: float) -> float:
        """Chips that were paid for: all of them, or those of replicas that an autoscaler had started."""
        if self.fleet.autoscale is None:
            return until * chips
        each = self.members[0].pool.chips
        times = [*self.changes, (until, 0)]
        return sum(each * count * max(min(end, until) - at, 0.0) for (at, count), (end, _) in pairwise(times))


class _Scaler:
    """Ongoing requests over the target, rounded up, once that has been asked for long enough."""

    def __init__(self, run: _FleetLoop, rule: Autoscale) -> None:
        self.run, self.rule = run, rule
        self.up_since = self.down_since = math.inf
        self.starting = 0

    def look(self, at: float) -> None:
        run, rule = self.run, self.rule
        for member in run.members:
            member.engine.advance(at)
            member.bound = NEVER if not run.coupled else member.engine.next_finish()
        ongoing = sum(sum(member.engine.load()) for member in run.members)
        have = run._active_count() + self.starting
        want = min(max(math.ceil(ongoing / rule.target_ongoing_requests), rule.min_replicas), rule.max_replicas)
        self.up_since = min(self.up_since, at) if want > have else math.inf
        self.down_since = min(self.down_since, at) if want < have else math.inf
        if want > have and at - self.up_since >= rule.upscale_delay:
            for _ in range(want - have):
                self.starting += 1
                run._at(at + rule.startup, self._started)
        elif want < have and at - self.down_since >= rule.downscale_delay and run._active_count() > rule.min_replicas:
            last = max(place for place, member in enumerate(run.members) if member.active)
            run._switch(last, active=False, at=at)
        idle = all(member.engine.idle for member in run.members)
        if run.events or not idle:
            run._at(self._next_look(at, may_start=want > have) if idle else at + TICK_S, self.look)

    def _next_look(self, at: float, *, may_start: bool) -> float:
        """The next look at which idle replicas may see a change: an event has come, or one of them may stop.

        Looks in between would find what this one found, so they are left out and the answer stays the same.
        """
        if may_start:
            return at + TICK_S
        change = self.run.events[0][0]
        if self.run._active_count() > self.rule.min_replicas:
            change = min(change, self.down_since + self.rule.downscale_delay)
        return max(math.ceil(change / TICK_S) * TICK_S, at + TICK_S)

    def _started(self, at: float) -> None:
        self.starting -= 1
        idle = [place for place, member in enumerate(self.run.members) if not member.active]
        if idle:
            self.run._switch(idle[0], active=True, at=at)


ENOUGH_CACHED = 0.3  # share of a prompt that must match for the cache to decide
APART = 64  # requests between the busiest and the idlest replica beyond which load decides
TIMES = 1.5  # and by which factor


class RequestRouter(Protocol):
    """Chooses among replicas that take requests."""

    looks_at_load: bool
    """Whether replicas must be brought up to the present before it chooses."""

    def choose(self, _request: Request, replicas: Sequence[tuple[int, Replica]], /) -> int: ...


class RoundRobin:
    """In turn."""

    looks_at_load = False

    def __init__(self) -> None:
        self._next = 0

    def choose(self, _request: Request, replicas: Sequence[tuple[int, Replica]]) -> int:
        place = self._next % len(replicas)
        self._next += 1
        return replicas[place][0]


class LeastLoaded:
    """Least 4 x waiting + running, as vLLM's front end scores engines; ties in turn."""

    looks_at_load = True

    def __init__(self) -> None:
        self._last = -1

    def choose(self, _request: Request, replicas: Sequence[tuple[int, Replica]]) -> int:
        last = self._last
        self._last = min([(load_score(*one.load()), place <= last, place) for place, one in replicas])[2]
        return self._last


class PrefixAware:
    """Where the largest part of the prompt should be cached, as SGLang's router guesses it from what it sent there;
    the least loaded where little is cached, or where loads differ too much."""

    looks_at_load = True

    def __init__(self, capacity_tokens: int) -> None:
        self._capacity = capacity_tokens
        self._trees: dict[int, RadixCache] = {}
        self._least = LeastLoaded()

    def choose(self, request: Request, replicas: Sequence[tuple[int, Replica]]) -> int:
        text = tuple((piece.seed, piece.start, piece.tokens) for piece in request.prompt if piece.tokens)
        loads = [sum(one.load()) for _, one in replicas]
        chosen = -1
        if max(loads) - min(loads) <= APART or max(loads) <= TIMES * min(loads):
            matched = [(self._tree(number).match(text)[0], -load, -number) for (number, _), load in
                       zip(replicas, loads, strict=True)]  # fmt: skip
            best = max(matched)
            if best[0] > ENOUGH_CACHED * request.prompt_tokens:
                chosen = -best[2]
        if chosen < 0:
            chosen = self._least.choose(request, replicas)
        tree = self._tree(chosen)
        tree.insert(text)
        if tree.evictable > self._capacity:
            tree.evict(tree.evictable - self._capacity)
        return chosen

    def _tree(self, number: int) -> RadixCache:
        return self._trees.setdefault(number, RadixCache(1))


def simulate(requests: Iterable[Request], policy: Policy, cost: StepCost, *, collapse: bool = True) -> Served:
    """Serve requests on one engine.

    `collapse` off schedules every single step: slower, and the same to within rounding of the clock.
    """
    alone = ReplicaPool(make=lambda: Replica(policy, cost, collapse=collapse), count=1, chips=1)
    return simulate_fleet(requests, Fleet(pools=[alone], router=RoundRobin)).served


@contextmanager
def collector_paused() -> Iterator[None]:
    """No cycle of references dies during a run: looking for them costs a fifth of its time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@contextmanager
def settled_heap() -> Iterator[None]:
    """Many runs one after the other: what is there before them is not looked through for cycles after each."""
    if gc.get_freeze_count():
        yield
        return
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
