"""Turn an algorithm into a proof that it keeps its contract, or the first steps that break it.

Algorithms that first add and then copy are proved by the shape of their steps, in a few passes over all of them. A
place is a chunk's memory on one node:

    adding      every place is sent at most once, and after all that is added to it: what a rank contributes moves on
                along one path and ends in one place. A chunk that has one such end holds every contribution once there
    copying     every place is written at most once, from such an end or from a place that was written before

Library and synthesis make nothing else. Everything else is replayed and followed symbolically: a contribution is a
random element of the field of 2**61 - 1, a sum is the sum of elements, so an output is right when it equals the sum of
its contributions, each once. A wrong set of contributions passes with probability 2**-61 (Schwartz-Zippel); elements
are drawn from a hash of the steps themselves, so that no file can be written around them. For a wrong output the set
itself is worked out and named.

Also checked: every step sends something that is there; no place is written twice in a round unless both add, nor read
in the round in which it is written (a buffer race). No rank waits for ever where one worker sends and one receives on
each channel, both in the order of the steps (isend and irecv, or a threadblock each): a send waits for a free slot of
its connection and a receive for its chunk, so always for an earlier step or for the send of the same one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import blake2b
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from ridgeline.comm.algorithm import COPY, REDUCE, Algorithm
from ridgeline.core.arrays import Index, Mask
from ridgeline.core.errors import Problem

MOST_PLACES = 1 << 27
BLOCK = 1 << 18  # steps that are looked at together, to stay in a cache
NEVER = np.iinfo(np.int32).max

Rounds = NDArray[np.int32]


def is_proved(algorithm: Algorithm) -> bool:
    """Whether the steps' shape proves that every output holds every contribution exactly once, without races.

    False says only that this proof does not hold. Numbers of steps must be inside their ranges.
    """
    steps, contract = algorithm.steps, algorithm.contract
    places = algorithm.nodes * contract.chunks
    first_copy = int(np.count_nonzero(steps.op == REDUCE))
    if places > MOST_PLACES or (steps.op[:first_copy] != REDUCE).any():
        return False
    if 0 < first_copy < len(steps) and steps.round[first_copy - 1] == steps.round[first_copy]:
        return False
    roots = _sum_ends(algorithm, first_copy, places)
    if roots is None:
        return False
    many = roots.reshape(algorithm.nodes, -1).sum(axis=0) != 1
    if many.any() and many[contract.end_places() % contract.chunks].any():
        return False
    is_complete = _copied_places(algorithm, first_copy, roots)
    return is_complete is not None and bool(is_complete[contract.end_places()].all())


def _sum_ends(algorithm: Algorithm, stop: int, places: int) -> Mask | None:
    """Where contributions end: places that hold something and are not sent while sums are made."""
    begins = algorithm.contract.begin_places()
    since = np.full(places, NEVER, np.int32)  # the last round that added to a place, -1 of what it begins with
    since[begins] = -1
    if np.count_nonzero(since == -1) != len(begins):
        return None
    for _, write, round in _blocks(algorithm, 0, stop):
        since[write] = round
    sent = np.zeros(places, np.bool_)
    for read, _, round in _blocks(algorithm, 0, stop):
        if not (since[read] < round).all():
            return None
        sent[read] = True
    return None if np.count_nonzero(sent) != stop else (since != NEVER) & ~sent


def _copied_places(algorithm: Algorithm, start: int, roots: Mask) -> Mask | None:
    """The places that hold whole chunks in the end."""
    since = np.where(roots, np.int32(-1), np.int32(NEVER))
    for _, write, round in _blocks(algorithm, start, len(algorithm.steps)):
        since[write] = round
    is_complete: Mask = since != NEVER
    if np.count_nonzero(is_complete) != np.count_nonzero(roots) + len(algorithm.steps) - start:
        return None
    for read, _, round in _blocks(algorithm, start, len(algorithm.steps)):
        if not (since[read] < round).all():
            return None
    return is_complete


def _blocks(algorithm: Algorithm, start: int, stop: int) -> Iterator[tuple[Index, Index, Rounds]]:
    """Places that steps read and write, and their rounds, some steps at a time."""
    steps, chunks = algorithm.steps, np.int64(algorithm.contract.chunks)
    for low in range(start, stop, BLOCK):
        rows = slice(low, min(low + BLOCK, stop))
        chunk = steps.chunk[rows]
        yield steps.source[rows] * chunks + chunk, steps.target[rows] * chunks + chunk, steps.round[rows]


FIELD = np.uint64((1 << 61) - 1)
DENSE = 1 << 27  # places that are kept as one array; beyond, only those that steps touch
MOST = 8  # problems that are named

Elements = NDArray[np.uint64]


@dataclass(frozen=True, slots=True, kw_only=True)
class AlgorithmVerification:
    """Whether the algorithm keeps its contract, and what is wrong where it does not."""

    ok: bool
    steps: int
    problems: tuple[Problem, ...]


def verify_algorithm(algorithm: Algorithm) -> AlgorithmVerification:
    """Whether every output holds every contribution exactly once, without races.

    >>> from ridgeline.comm.library.algorithms import ring_allgather
    >>> verify_algorithm(ring_allgather(8)).ok
    True
    """
    problems = _malformed_steps(algorithm)
    if not problems and not is_proved(algorithm):
        problems = _Replay(algorithm).problems()
    return AlgorithmVerification(ok=not problems, steps=len(algorithm.steps), problems=tuple(problems[:MOST]))


def _malformed_steps(algorithm: Algorithm) -> list[Problem]:
    """Numbers outside their range: the replay may trust them afterwards."""
    steps, contract = algorithm.steps, algorithm.contract
    if not len(steps):
        return []
    wrong: list[Problem] = []
    limits = (("source", algorithm.nodes), ("target", algorithm.nodes), ("chunk", contract.chunks))
    for name, limit in limits:
        column = getattr(steps, name)
        bad = np.flatnonzero((column < 0) | (column >= limit))
        if len(bad):
            expected_text = f"0 to {limit - 1}"
            wrong.append(Problem(path=f"step {bad[0]}: {name}", given=str(column[bad[0]]), expected=expected_text))
    loops = np.flatnonzero(steps.source == steps.target)
    if len(loops):
        place = f"step {loops[0]}, rank {steps.source[loops[0]]}"
        wrong.append(Problem(path=place, given="a send to itself", expected="another rank"))
    odd = np.flatnonzero((steps.op != COPY) & (steps.op != REDUCE))
    if len(odd):
        wrong.append(Problem(path=f"step {odd[0]}: op", given=str(steps.op[odd[0]]), expected="copy or reduce"))
    if steps.round[0] < 0 or np.any(steps.round[1:] < steps.round[:-1]):
        wrong.append(Problem(path="round", given="rounds out of order", expected="rounds that do not fall"))
    return wrong


class _Replay:
    """One pass over the rounds with an element for each place (node, chunk)."""

    def __init__(self, algorithm: Algorithm) -> None:
        self.algorithm, self.contract, self.steps = algorithm, algorithm.contract, algorithm.steps
        chunks = np.int64(self.contract.chunks)
        self.read = self.steps.source * chunks + self.steps.chunk
        self.write = self.steps.target * chunks + self.steps.chunk
        self.begins, self.ends = self.contract.begin_places(), self.contract.end_places()
        self.places = algorithm.nodes * self.contract.chunks
        self.begin_chunks, self.end_chunks = self.begins % chunks, self.ends % chunks
        if self.places > DENSE:  # number only the places that occur
            parts = (self.read, self.write, self.begins, self.ends)
            distinct_places, inverse = np.unique(np.concatenate(parts), return_inverse=True)
            cuts = np.cumsum([len(part) for part in parts])[:-1]
            self.read, self.write, self.begins, self.ends = np.split(inverse.astype(np.int64), cuts)
            self.places = len(distinct_places)

    def problems(self) -> list[Problem]:
        problems = self._run()
        return problems or self._outputs()

    def _run(self) -> list[Problem]:
        """Replay every round; the first round with a race or with nothing to send ends it."""
        digest = blake2b(digest_size=16)  # random elements, not zero, from a hash of all columns
        for name in ("round", "source", "target", "chunk", "op"):
            digest.update(np.ascontiguousarray(getattr(self.steps, name)).data)
        seed = int.from_bytes(digest.digest(), "little")
        drawn = np.random.default_rng(seed).integers(1, int(FIELD), size=len(self.begins), dtype=np.uint64)
        value = np.zeros(self.places, np.uint64)
        value[self.begins] = drawn
        self.whole = _sum_by(drawn, self.begin_chunks, self.contract.chunks)
        is_held = np.zeros(self.places, np.bool_)
        is_held[self.begins] = True
        stamp = np.full(self.places, -1, np.int32)
        starts = self.steps.starts()
        adds = self.steps.op == REDUCE
        for low, high in pairwise(starts):
            read, write, add = self.read[low:high], self.write[low:high], adds[low:high]
            rows = np.arange(low, high, dtype=np.int32)
            stamp[write] = rows
            twice = stamp[write] != rows
            if not is_held[read].all():
                row = int(low + np.flatnonzero(~is_held[read])[0])
                given_text = f"chunk {self.steps.chunk[row]} sent before it is there"
                return [Problem(path=self._where(row), given=given_text, expected="a chunk its rank holds")]
            if (stamp[read] >= low).any():
                return [self._race(int(low + np.flatnonzero(stamp[read] >= low)[0]), "sends", read=True)]
            carried_values = value[read]
            if twice.any():
                bad = twice & ~(add & add[stamp[write] - low])
                if bad.any() or len(np.intersect1d(write[add], write[~add])):
                    return [self._race(int(low + np.flatnonzero(twice)[0]), "overwrites", read=False)]
                value[write[~add]] = 0
                places, index = np.unique(write, return_inverse=True)
                value[places] = (value[places] + _sum_by(carried_values, index, len(places))) % FIELD
            else:
                total = np.where(add, value[write], np.uint64(0)) + carried_values
                value[write] = np.where(total >= FIELD, total - FIELD, total)
            is_held[write] = True
        self.value, self.held = value, is_held
        return []

    def _outputs(self) -> list[Problem]:
        """Every place that must hold a whole chunk and does not, with the contributions it has instead."""
        chunk = self.end_chunks
        wrong = np.flatnonzero(~self.held[self.ends] | (self.value[self.ends] != self.whole[chunk]))
        ranks = self.contract.ends[:, 0] if self.contract.ends is not None else None
        problems = []
        for index in wrong[:MOST]:
            rank = int(ranks[index]) if ranks is not None else int(index // self.contract.chunks)
            problems.append(_output_problem(self.algorithm, rank, int(chunk[index])))
        return problems

    def _where(self, row: int) -> str:
        steps = self.steps
        return f"step {row} (round {steps.round[row]}, rank {steps.source[row]} to {steps.target[row]})"

    def _race(self, row: int, verb: str, *, read: bool) -> Problem:
        rank = self.steps.source[row] if read else self.steps.target[row]
        given_text = f"{verb} chunk {self.steps.chunk[row]} of rank {rank} while another step of the round writes it"
        return Problem(path=self._where(row), given=given_text, expected="a round between them", todo="no buffer race")


def _sum_by(values: Elements, index: Index, size: int) -> Elements:
    """Sums of field elements by index, exact: high and low halves apart, 2**61 being 1 in the field."""
    high = np.bincount(index, (values >> np.uint64(32)).astype(np.float64), size).astype(np.uint64)
    low = np.bincount(index, (values & np.uint64(0xFFFFFFFF)).astype(np.float64), size).astype(np.uint64)
    folded_high = (high >> np.uint64(29)) + ((high & np.uint64((1 << 29) - 1)) << np.uint64(32))
    return (folded_high + low) % FIELD


def _output_problem(algorithm: Algorithm, rank: int, chunk: int) -> Problem:
    """What one output holds, exactly: how often it counts each rank's contribution."""
    contract, steps = algorithm.contract, algorithm.steps
    begins = contract.begins
    owners = np.arange(contract.ranks) if begins is None else begins[begins[:, 1] == chunk, 0]
    counts = np.zeros((algorithm.nodes, contract.ranks), object)
    counts[owners, owners] = 1
    chunk_steps = steps.take(np.flatnonzero(steps.chunk == chunk))
    starts = chunk_steps.starts()
    for low, high in pairwise(starts):
        before = counts.copy()
        for row in range(low, high):
            previous = counts[chunk_steps.target[row]] if chunk_steps.op[row] == REDUCE else 0
            counts[chunk_steps.target[row]] = previous + before[chunk_steps.source[row]]
    missing = [int(owner) for owner in owners if counts[rank, owner] == 0]
    many = [int(owner) for owner in owners if counts[rank, owner] > 1]
    faults = [f"without that of rank {_few(missing)}"] if missing else []
    faults += [f"with that of rank {_few(many)} more than once"] if many else []
    given_text = f"chunk {chunk} {' and '.join(faults) or 'wrong'}"
    return Problem(path=f"rank {rank}", given=given_text, expected="every contribution exactly once")


def _few(ranks: list[int]) -> str:
    return ", ".join(map(str, ranks[:4])) + (f" and {len(ranks) - 4} more" if len(ranks) > 4 else "")
