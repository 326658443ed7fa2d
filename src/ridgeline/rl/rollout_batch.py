"""Turn samples and the cost of an engine's step into the closed batch of one replica.

The engine that `serving` simulates goes through every step that schedules something. Here time jumps from one end of a
sample to the next: between two, a run of decode steps is a line in the tokens that it reads.

    seconds of n steps = n f + s (n K + d n (n - 1) / 2)      d samples, K cached tokens, a step costs f + s K

Samples are admitted in order while their tokens find room. Where the cache is full, the sample that was admitted last
gives its blocks back and is read again later, as vLLM does. A sample that waits for its tool keeps or frees its cache.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Iterable
from heapq import heappop, heappush

import numpy as np

from ridgeline.core.arrays import Array, Index
from ridgeline.core.records import dataclass
from ridgeline.rl.lengths import Samples
from ridgeline.serving import StepCost


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineLimits:
    """What bounds a replica.

    tokens         that its cache holds
    seqs           samples at once
    step_tokens    of one step
    block          tokens of a block of cache
    shares_prefix  whether samples of a prompt share the cache of it
    frees_waiting  whether a sample that waits for its tool gives its cache back
    """

    tokens: int
    seqs: int
    step_tokens: int
    block: int = 16
    shares_prefix: bool = True
    frees_waiting: bool = False


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BatchRun:
    """What became of a replica's samples.

    ended_s      when each sample ended, in their order
    seconds      of all of them
    preemptions  times a sample lost its cache
    prefilled    tokens read, those read again among them
    points       (seconds, samples decoding, tokens written so far) whenever something changed
    fed_s        when the last sample was first admitted: until then nobody waited for work
    most_tokens  that the cache held at once
    steps        of the engine
    """

    ended_s: Array
    started_s: Array
    seconds: float
    preemptions: int
    prefilled: float
    points: Array
    fed_s: float
    most_tokens: float
    steps: int

    @property
    def tokens(self) -> float:
        """Tokens written."""
        return float(self.points[-1, 2]) if len(self.points) else 0.0


class _ReplicaBatch:
    """One replica at work."""

    def __init__(self, samples: Samples, cost: StepCost, limits: EngineLimits) -> None:
        self.samples, self.cost, self.limits = samples, cost, limits
        many = len(samples)
        self.prompt = samples.prompt.tolist()
        self.answer = samples.answer.tolist()
        self.group = samples.group.tolist()
        self.turns = samples.turns.tolist()
        self.waiting = deque(range(many))
        self.written = [0] * many  # tokens of an answer so far
        self.turn = [0] * many
        self.context = [0] * many  # tokens that a sample has to have in the cache before it decodes
        for place in range(many):
            self.context[place] = self.prompt[place]
        self.resident = [0] * many  # of those, tokens that are still there
        self.begun_at = [0] * many  # clock at which a sample joined
        self.stamp = [0] * many  # of its entry among the ends: an older one is void
        self.seen_groups: set[int] = set()
        self.users = dict.fromkeys(self.group, 0)
        group_sizes = Counter(self.group)
        block = limits.block
        self.prefix = [
            (tokens - 1) // block * block if limits.shares_prefix and group_sizes[group] > 1 else 0
            for tokens, group in zip(self.prompt, self.group, strict=True)
        ]
        self.ends: list[tuple[int, int, int, int]] = []
        self.order: list[int] = []  # samples that decode, by admission
        self.back: list[tuple[float, int]] = []
        self.now = self.prefilled = 0.0
        self.clock = self.running = self.cached = self.kept = self.serial = self.preemptions = 0
        self.shared = 0  # tokens of prompts that several samples share: once in the cache, many times read
        self.total = 0.0
        self.most = 0
        self.ended = np.zeros(many)
        self.started = np.full(many, -1.0)
        self.points: list[tuple[float, int, float]] = [(0.0, 0, 0.0)]

    # -- one thing after the other

    def run(self) -> BatchRun:
        while True:
            self._return_from_tools()
            if self.waiting and self.running < self.limits.seqs and self._read_prompts():
                continue
            if self.running:
                self._decode()
                continue
            if self.back:
                self.now = max(self.now, self.back[0][0])
                self._note()
                continue
            if not self.waiting:
                break
            raise ValueError("a sample is longer than the cache")
        return BatchRun(
            ended_s=self.ended,
            started_s=self.started,
            seconds=float(self.ended.max()) if len(self.ended) else 0.0,
            preemptions=self.preemptions,
            prefilled=self.prefilled,
            points=np.array(self.points),
            fed_s=float(self.started.max()) if len(self.started) else 0.0,
            most_tokens=float(self.most),
            steps=self.clock,
        )

    def _return_from_tools(self) -> None:
        while self.back and self.back[0][0] <= self.now:
            _, place = heappop(self.back)
            self.waiting.appendleft(place)

    def _room(self) -> float:
        """Tokens that the cache has room for; half a block of every sample is lost."""
        lost = self.running * self.limits.block / 2
        return self.limits.tokens - self.cached - self.kept - lost

    def _read_prompts(self) -> bool:
        """One step in which waiting samples are read; False where none finds room."""
        limits = self.limits
        fresh: list[tuple[int, int]] = []
        budget = limits.step_tokens - self.running
        room, tokens, pairs = self._room(), 0.0, 0.0
        while self.waiting and budget > 0 and self.running + len(fresh) < limits.seqs:
            place = self.waiting[0]
            group, prefix, there = self.group[place], self.prefix[place], self.resident[place]
            own = self.context[place] - prefix
            taken_tokens = own - there + (0 if self.users[group] else prefix)
            if own + prefix > limits.tokens:
                raise ValueError("a sample is longer than the cache")
            if taken_tokens > room and (self.running or fresh or self.kept > there):
                break
            new = max(own - there + (0 if group in self.seen_groups else prefix), 1)
            if new > budget and tokens:
                break
            self.waiting.popleft()
            self.seen_groups.add(group)
            self.kept -= there
            if not there:
                self._use_prefix(group, prefix)
            tokens += new
            pairs += new * (self.context[place] - new / 2)
            budget -= new
            room -= taken_tokens + 1
            fresh.append((place, own))
        if not fresh:
            return False
        self._step(tokens, pairs)
        for place, own in fresh:
            self._join(place, own)
        self._note()
        self._end_turns()
        return True

    def _use_prefix(self, group: int, prefix: int) -> None:
        """One more sample reads the shared part of its prompt: it is in the cache once."""
        if self.users[group]:
            self.shared += prefix
        else:
            self.cached += prefix
        self.users[group] += 1

    def _drop_prefix(self, group: int, prefix: int) -> None:
        self.users[group] -= 1
        if self.users[group]:
            self.shared -= prefix
        else:
            self.cached -= prefix

    def _step(self, tokens: float, pairs: float) -> None:
        """Steps with prompts: several where they exceed the tokens of one; decodes run beside them."""
        steps = max(1, math.ceil(tokens / max(self.limits.step_tokens - self.running, 1)))
        part, context = tokens / steps, pairs / tokens - tokens / steps / 2
        for _ in range(steps):
            self.now += self.cost.mixed_step_seconds([(int(part), int(context))], self.running, self._read_tokens())
            self.clock += 1
            self.cached += self.running
            self.total += self.running
        self.prefilled += tokens

    def _read_tokens(self) -> int:
        """Cached tokens that a step of everybody reads: a shared prompt is read by each."""
        return self.cached + self.shared

    def _join(self, place: int, own: int) -> None:
        """A sample has been read, and its next token written."""
        if self.started[place] < 0:
            self.started[place] = self.now
        self.cached += own
        self.running += 1
        self.total += 1
        self.resident[place] = own
        self.begun_at[place] = self.clock
        self.serial += 1
        self.stamp[place] = self.serial
        self.order.append(place)
        heappush(self.ends, (self.clock + self._tokens_left(place) - 1, self.serial, place, self.serial))
        self.most = max(self.most, self.cached + self.kept)

    def _tokens_left(self, place: int) -> int:
        """Tokens until this turn of a sample ends."""
        upto = int(self.answer[place]) * (self.turn[place] + 1) // int(self.turns[place])
        return max(upto - self.written[place], 1)

    def _decode(self) -> None:
        """Decode steps until a turn ends, the cache is full or a tool answers."""
        while self.ends and self.stamp[self.ends[0][2]] != self.ends[0][3]:
            heappop(self.ends)
        steps = self.ends[0][0] - self.clock
        room = self._room()
        if room < self.running * min(steps, 1):
            if self.running > 1:
                self._preempt()
                return
            room = float(steps)
        fixed, slope = self.cost.decode_line(self.running)
        first = fixed + slope * self._read_tokens()
        growth = slope * self.running
        many = max(min(steps, int(room // self.running)), 1) if steps else 0
        if self.back and self.running < self.limits.seqs:
            many = min(many, _steps_within(self.back[0][0] - self.now, first, growth))
        self.now += many * first + growth * many * (many - 1) / 2
        self.clock += many
        self.cached += many * self.running
        self.total += many * self.running
        self.most = max(self.most, self.cached + self.kept)
        self._note()
        self._end_turns()

    def _grown(self, place: int) -> int:
        """Tokens that a decoding sample has written since it joined."""
        return self.clock - self.begun_at[place]

    def _leave(self, place: int) -> int:
        """Take a sample out of the batch; its own tokens in the cache."""
        grown = self._grown(place)
        self.written[place] += grown + 1
        self.context[place] += grown + 1
        self.running -= 1
        self.stamp[place] = 0
        own = self.resident[place] + grown
        self.cached -= own
        return own

    def _preempt(self) -> None:
        """The sample admitted last gives its blocks back."""
        while self.stamp[self.order[-1]] == 0:
            self.order.pop()
        place = self.order.pop()
        self._leave(place)
        self._forget(place)
        self.waiting.appendleft(place)
        self.preemptions += 1
        self._decode_without_admission()

    def _decode_without_admission(self) -> None:
        """Go on until a turn ends: who was preempted finds no room before."""
        while self.ends and self.stamp[self.ends[0][2]] != self.ends[0][3]:
            heappop(self.ends)
        if self.running and self._room() >= self.running:
            self._decode()

    def _forget(self, place: int) -> None:
        """Nothing of a sample stays in the cache."""
        self.resident[place] = 0
        self._drop_prefix(self.group[place], self.prefix[place])

    def _end_turns(self) -> None:
        while self.ends and self.ends[0][0] <= self.clock:
            _, _, place, stamp = heappop(self.ends)
            if self.stamp[place] != stamp:
                continue
            held = self._leave(place)
            if self.turn[place] + 1 < self.turns[place]:
                self._call_tool(place, held)
            else:
                self.ended[place] = self.now
                self._forget(place)
        while self.order and self.stamp[self.order[-1]] == 0:
            self.order.pop()

    def _call_tool(self, place: int, held: int) -> None:
        turn = self.turn[place]
        self.turn[place] += 1
        self.context[place] += int(self.samples.tool_tokens[place, turn])
        self.resident[place] = held
        if self.limits.frees_waiting:
            self._forget(place)
        self.kept += self.resident[place]
        heappush(self.back, (self.now + float(self.samples.tool_s[place, turn]), place))

    def _note(self) -> None:
        self.points.append((self.now, self.running, self.total))


def _steps_within(seconds: float, first: float, growth: float) -> int:
    """Steps until so many seconds have passed, at least one: the first takes `first`, each `growth` longer."""
    if growth <= 0:
        return max(math.ceil(seconds / first), 1)
    lead = first - growth / 2
    return max(math.ceil((-lead + math.sqrt(lead * lead + 2 * growth * max(seconds, 0.0))) / growth), 1)


def run_batch(samples: Samples, cost: StepCost, limits: EngineLimits) -> BatchRun:
    """The closed batch of one replica: all samples are there at once.

    >>> from ridgeline.serving import LinearStepCost
    >>> one = Samples(prompt=np.array([100]), answer=np.array([10]), group=np.array([0]), turns=np.array([1]),
    ...     tool_s=np.zeros((1, 0)), tool_tokens=np.zeros((1, 0), dtype=np.int64))
    >>> run = run_batch(one, LinearStepCost(step_s=0.01), EngineLimits(tokens=1000, seqs=8, step_tokens=512))
    >>> round(run.seconds, 6), run.tokens
    (0.1, 10.0)
    """
    return _ReplicaBatch(samples, cost, limits).run()


def deal(samples: Samples, replicas: int) -> Iterable[Index]:
    """Samples of each replica: prompts are dealt in turn, all samples of a prompt to one."""
    groups = samples.group % replicas
    return (np.flatnonzero(groups == replica) for replica in range(replicas))
