"""Turn the requests of a workload into what a search asks of them: lengths, a rate, and a part of them at any rate.

A replica of n behind a router sees every n-th request. Of a trace a part is therefore thinned first and then stretched
in time to the rate that is asked for, from where it is busiest; of a generated load the first requests do.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np

from ridgeline.core.arrays import Array
from ridgeline.core.errors import InputError, Problem
from ridgeline.core.records import dataclass
from ridgeline.plan.serve import Serve, TraceFile
from ridgeline.serving.load.load import load_of
from ridgeline.serving.request import Request


@dataclass(frozen=True, kw_only=True)
class Load:
    """Requests in the order they are sent, and their mean rate over the whole time.

    traced   whether a file says when they come: bursts are then its own
    """

    requests: tuple[Request, ...]
    rate: float
    traced: bool

    @cached_property
    def prompts(self) -> Array:
        return np.array([request.prompt_tokens for request in self.requests], dtype=float)

    @cached_property
    def outputs(self) -> Array:
        return np.array([request.output_tokens for request in self.requests], dtype=float)

    @cached_property
    def hit_share(self) -> float:
        """Prompt tokens that an unlimited cache would hold, of all."""
        seen: set[tuple[int, int, int]] = set()
        hits = 0
        for request in self.requests:
            catalog_entry = True
            for piece in request.prompt:
                key = (piece.seed, piece.start, piece.tokens)
                catalog_entry = catalog_entry and key in seen
                hits += piece.tokens * catalog_entry
                seen.add(key)
            seen.add((request.output_seed, request.prompt_tokens, request.output_tokens))
        return hits / float(self.prompts.sum())

    def part(self, rate: float, most: int) -> tuple[Request, ...]:
        """At most so many requests as a replica sees them that gets this mean rate of the whole load."""
        roots, times = self._roots
        thinned = max(round(self.rate / rate), 1) if self.traced else 1
        thinned = max(min(thinned, len(roots) // most), 1)
        begin = self._busiest(times[::thinned], most) if self.traced else 0
        selection = roots[begin * thinned : (begin + most) * thinned : thinned]
        stretch = float(self.rate / thinned / rate)  # a clock of numpy scalars is a slow one
        start = selection[0].arrival_s
        moved = [item.sent_at((item.arrival_s - start) * stretch) for item in selection]
        return (*moved, *self._followers(selection)) if len(roots) < len(self.requests) else tuple(moved)

    def at(self, rate: float) -> tuple[Request, ...]:
        """All requests, stretched in time to a mean rate."""
        stretch = float(self.rate / rate)
        if stretch == 1.0:
            return self.requests
        return tuple(item.sent_at(item.arrival_s * stretch) if item.after is None else item for item in self.requests)

    @cached_property
    def _roots(self) -> tuple[tuple[Request, ...], Array]:
        """The requests that follow no answer, and when they are sent."""
        roots = tuple(request for request in self.requests if request.after is None)
        return roots, np.array([root.arrival_s for root in roots])

    @staticmethod
    def _busiest(times: Array, most: int) -> int:
        """Where the shortest time begins in which so many requests come."""
        if len(times) <= most:
            return 0
        return int(np.argmin(times[most - 1 :] - times[: len(times) - most + 1]))

    def _followers(self, kept: Sequence[Request]) -> list[Request]:
        """The requests of sessions that these begin."""
        names = {item.id for item in kept}
        result = []
        for request in self.requests:
            if request.after is not None and request.after in names:
                names.add(request.id)
                result.append(request)
        return result


def searched_load(work: Serve) -> Load:
    """The requests of a workload; a closed loop has no rate to search and is refused."""
    requests = load_of(work)
    last = max((request.arrival_s for request in requests if request.after is None), default=0.0)
    if len(requests) < 2 or last <= 0:
        got = f"{len(requests)} request(s) within {last:g} s"
        expectation = "at least two requests that come at different times, whether or not others are answered"
        raise InputError(Problem(path="workload.arrivals", given=got, expected=expectation, todo="add --rate"))
    return Load(requests=requests, rate=len(requests) / last, traced=isinstance(work.arrivals, TraceFile))
