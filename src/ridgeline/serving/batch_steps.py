"""Turn a closed batch of requests and an engine's limits into the steps that serve it, without a clock.

Where requests always wait (a benchmark at infinite rate) or a fixed number is in flight (a closed loop), what a step
computes does not depend on how long steps take: the sequence of compositions is a fact of lengths and limits alone. It
is worked out once, and any price of steps turns it into times.

    in-flight   prompts and decodes share a step within its tokens (TensorRT-LLM's in-flight batching, vLLM)
    alone       a step of prompts holds nothing else (SGLang)

Every request reserves its whole length when it is admitted (TensorRT-LLM's GUARANTEED_NO_EVICT), so none is preempted.
"""

from __future__ import annotations

from heapq import heappop, heappush

import numpy as np

from ridgeline.core.arrays import Array, Index
from ridgeline.core.records import dataclass
from ridgeline.ir.forward_steps import ForwardSteps, forward_steps

GROUPS = 10  # compositions that are priced for steps with prompts, and for steps without


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What bounds the steps of one scheduler.

    batch     requests at once
    tokens    of one step
    chunked   a prompt may be cut where a step's tokens end; else it waits for a step that holds it whole
    alone     prompts run in steps of their own
    buckets   steps are compiled for contexts of a power of two: their time changes where one is full
    """

    batch: int
    tokens: int
    chunked: bool = True
    alone: bool = False
    buckets: bool = False


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ClosedBatch:
    """Steps of a closed batch.

    steps     compositions to price, few of them, each a mean of steps that are alike
    runs      consecutive steps of one composition: which composition, and how many
    arrived   run before which a request was there, its first token, and its end; by group of requests
    requests  of each group
    prompts, outputs   tokens in all
    """

    steps: ForwardSteps
    composition: Index
    repeats: Array
    arrived: Index
    first: Index
    ended: Index
    requests: Array
    tokens_out: Array
    prompts: float
    outputs: float

    def shares(self) -> Array:
        """How often each composition runs: with its seconds, the time from the first request to the last token."""
        return np.asarray(np.bincount(self.composition, self.repeats, len(self.steps)), dtype=np.float64)

    def ttft_shares(self) -> Array:
        """How often each composition runs before a request's first token, on average."""
        return self._between(self.arrived, self.first + 1, self.requests / self.requests.sum())

    def tpot_shares(self) -> Array:
        """How often each composition runs for an output token after the first, on average over requests."""
        mine = self.tokens_out > 1
        weight = np.where(mine, self.requests / np.maximum(self.tokens_out - 1, 1), 0.0)
        many = float(self.requests[mine].sum())
        return self._between(self.first + 1, self.ended + 1, weight / max(many, 1.0))

    def median_step(self) -> Array:
        """The composition in the middle of all decode steps, in the order of the context that they read: once."""
        decodes = np.where((self.steps.prefill_tokens == 0) & (self.steps.decodes > 0), self.shares(), 0.0)
        order = np.argsort(self.steps.kv_tokens / np.maximum(self.steps.decodes, 1.0), kind="stable")
        reached = np.cumsum(decodes[order])
        found = np.zeros(len(self.steps))
        found[order[int(np.searchsorted(reached, reached[-1] / 2))]] = 1.0
        return found

    def _between(self, start: Index, end: Index, weight: Array) -> Array:
        """How often each composition runs from one run to another, by group of requests, weighed."""
        edges = np.zeros(len(self.composition) + 1)
        np.add.at(edges, start, weight)
        np.add.at(edges, end, -weight)
        often = np.cumsum(edges)[:-1] * self.repeats
        return np.asarray(np.bincount(self.composition, often, len(self.steps)), dtype=np.float64)


@dataclass(slots=True)
class _Group:
    """Requests of one length that were admitted together."""

    many: int
    isl: int
    osl: int
    arrived: int
    first: int = -1
    ended: int = -1


def closed_batch(lengths: list[tuple[int, int, int]], limits: Limits) -> ClosedBatch:
    """The steps of requests that are all there at once, or follow each other in `limits.batch` places.

    lengths   how many requests, prompt tokens, output tokens; in order

    >>> run = closed_batch([(8, 100, 10)], Limits(batch=4, tokens=1000))
    >>> run.outputs, float(run.repeats.sum()), float(run.shares().sum())
    (80.0, 20.0, 20.0)
    """
    play = _Play(limits, [_Group(many, isl, osl, 0) for many, isl, osl in lengths])
    while play.head < len(play.queue) or play.ends:
        if not play.run_prompts():
            play.run_decodes()
    return play.result()


class _Play:
    """The steps one after the other: a queue, places, and what runs in them."""

    def __init__(self, limits: Limits, queue: list[_Group]) -> None:
        self.limits, self.queue = limits, queue
        self.head = 0
        self.part = 0  # tokens of the queue's head that earlier chunks have computed
        self.running = self.kv = self.clock = self.started = 0
        self.ends: list[tuple[int, int, _Group]] = []
        self.done: list[_Group] = []
        self.rows: list[tuple[float, float, float, float, float, float]] = []
        self.places = [0] * limits.batch  # the run after which each free place was left

    def run_prompts(self) -> bool:
        """One step with prompts, if there can be one."""
        limits = self.limits
        budget = limits.tokens - (0 if limits.alone else self.running)
        tokens = pairs = chunks = 0.0
        fresh: list[_Group] = []
        slots = limits.batch - self.running
        while self.head < len(self.queue) and slots > 0 and budget > 0:
            group = self.queue[self.head]
            rest = group.isl - self.part
            if rest > budget and (not limits.chunked and tokens + self.running > 0 and group.isl <= limits.tokens):
                break
            take = min(rest, budget)
            whole = take == rest
            many = 1 if self.part or not whole else max(1, min(group.many, slots, int(budget // max(group.isl, 1))))
            tokens += take * many
            pairs += many * take * (self.part + take / 2)
            chunks += many
            budget -= take * many
            if not whole:
                self.part += take
                break
            self.part = 0
            slots -= many
            fresh.append(self._admit(group, many))
        if not tokens:
            return False
        decodes = 0 if limits.alone else self.running
        self.rows.append((tokens, pairs, decodes, self.kv if decodes else 0.0, chunks, 1.0))
        if decodes:
            self.clock += 1
            self.kv += self.running
        for group in fresh:
            group.first = len(self.rows) - 1
            self.running += group.many
            self.kv += group.many * group.isl
            self.started += 1
            heappush(self.ends, (self.clock + group.osl - 1, self.started, group))
        self._finish()
        return True

    def _admit(self, group: _Group, many: int) -> _Group:
        """Take some of the queue's head: each has the place that was free first."""
        taken = _Group(many, group.isl, group.osl, max(self.places[:many]) if self.places else 0)
        del self.places[:many]
        group.many -= many
        if group.many == 0:
            self.head += 1
        return taken

    def run_decodes(self) -> None:
        """Steps of decodes alone, until a request ends, or the next bucket begins."""
        until = self.ends[0][0]
        if self.limits.buckets:
            each = self.kv // self.running + 1
            until = min(until, self.clock + (1 << (each - 1).bit_length()) - each + 1)
        many = until - self.clock
        if many > 0:
            self.rows.append((0.0, 0.0, self.running, self.kv + self.running * (many - 1) / 2, 0.0, many))
            self.kv += self.running * many
            self.clock = until
        self._finish()

    def _finish(self) -> None:
        while self.ends and self.ends[0][0] <= self.clock:
            _, _, group = heappop(self.ends)
            group.ended = len(self.rows) - 1
            self.running -= group.many
            self.kv -= group.many * (group.isl + group.osl - 1)
            self.places.extend([len(self.rows)] * group.many)
            self.done.append(group)

    def result(self) -> ClosedBatch:
        """The rows, gathered into few compositions."""
        rows = np.array(self.rows, dtype=np.float64)
        place, means = _equal_rows(rows)
        columns = {name: [getattr(group, name) for group in self.done] for name in ("arrived", "first", "ended")}
        many, isl, osl = np.array([(group.many, group.isl, group.osl) for group in self.done], dtype=np.float64).T
        return ClosedBatch(
            steps=forward_steps(
                prefill_tokens=means[:, 0], prefill_pairs=means[:, 1], decodes=means[:, 2], kv_tokens=means[:, 3],
                prefills=means[:, 4],
            ),
            composition=place,
            repeats=rows[:, 5],
            **{name: np.array(column, dtype=np.int64) for name, column in columns.items()},
            requests=many,
            tokens_out=osl,
            prompts=float(many @ isl),
            outputs=float(many @ osl),
        )  # fmt: skip


def _equal_rows(rows: Array) -> tuple[Index, Array]:
    """Which of few compositions each row is taken for, and those: rows sorted by decodes and prompts, cut evenly in
    steps, and averaged by how often they run."""
    place = np.zeros(len(rows), dtype=np.int64)
    means: list[Array] = []
    for mixed in (False, True):
        mine = np.flatnonzero((rows[:, 0] > 0) == mixed)
        if not len(mine):
            continue
        order = mine[np.lexsort((rows[mine, 3], rows[mine, 2] + rows[mine, 0]))]
        share = np.cumsum(rows[order, 5])
        bins = np.minimum((share - rows[order, 5] / 2) / share[-1] * GROUPS, GROUPS - 1).astype(np.int64)
        for one in np.unique(bins):
            own = order[bins == one]
            place[own] = len(means)
            means.append(np.average(rows[own], axis=0, weights=rows[own, 5]))
    return place, np.stack(means)
