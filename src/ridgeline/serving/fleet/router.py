"""Who gets a request: the routers of a fleet.

round-robin    in turn
least-loaded   where 4 x waiting + running is least, as vLLM's front end scores engines
prefix-aware   where the largest part of the prompt should be cached, as SGLang's router guesses it from what it sent
               there; the least loaded where little is cached, or where loads differ too much
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from ridgeline.serving.engine.radix_cache import RadixCache
from ridgeline.serving.fleet.lockstep import load_score
from ridgeline.serving.fleet.replica import Replica
from ridgeline.serving.request import Request

ENOUGH_CACHED = 0.3  # share of a prompt that must match for the cache to decide
APART = 64  # requests between the busiest and the idlest replica beyond which load decides
TIMES = 1.5  # and by which factor


class Router(Protocol):
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
    """Least 4 x waiting + running; ties in turn."""

    looks_at_load = True

    def __init__(self) -> None:
        self._last = -1

    def choose(self, _request: Request, replicas: Sequence[tuple[int, Replica]]) -> int:
        last = self._last
        self._last = min([(outstanding(one), place <= last, place) for place, one in replicas])[2]
        return self._last


class PrefixAware:
    """Most cached prompt, unless loads differ too much."""

    looks_at_load = True

    def __init__(self, capacity_tokens: int) -> None:
        self._capacity = capacity_tokens
        self._trees: dict[int, RadixCache] = {}
        self._least = LeastLoaded()

    def choose(self, request: Request, replicas: Sequence[tuple[int, Replica]]) -> int:
        text = tuple((piece.seed, piece.start, piece.tokens) for piece in request.prompt if piece.tokens)
        loads = [sum(one.policy.load()) + one.waiting_to_arrive for _, one in replicas]
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


def outstanding(replica: Replica) -> int:
    """How busy a replica is; what is on its way to it waits."""
    waiting, running = replica.policy.load()
    return load_score(waiting + replica.waiting_to_arrive, running)
