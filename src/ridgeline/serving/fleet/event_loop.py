"""Turn requests, a scheduler and the cost of a step into what became of every request: one engine, one clock."""

from __future__ import annotations

import gc
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from ridgeline.serving.engine.step import Policy, RequestState
from ridgeline.serving.fleet.replica import Replica, refuse
from ridgeline.serving.request import Request
from ridgeline.serving.served import Served, served_columns
from ridgeline.serving.step_cost import StepCost


def simulate(requests: Iterable[Request], policy: Policy, cost: StepCost, *, collapse: bool = True) -> Served:
    """Serve requests on one engine.

    `collapse` off schedules every single step: slower, and the same to within rounding of the clock.
    """
    followers: dict[str, list[Request]] = defaultdict(list)
    engine = Replica(policy, cost, collapse=collapse)
    for request in requests:
        if request.after is None:
            engine.add(request, request.arrival_s)
        else:
            followers[request.after].append(request)

    def finish(state: RequestState, end: float) -> None:
        for request in followers.pop(state.request.id, ()):
            engine.add(request, end + request.arrival_s)

    if followers:
        engine.finish = finish
    with collector_paused():
        engine.advance()
    refuse_unsent(followers)
    policy.close()
    return served_columns(engine.done, engine.done_s, engine.gaps, steps=engine.steps, events=engine.events)


def refuse_unsent(followers: dict[str, list[Request]]) -> None:
    """Nobody may wait for an answer that never comes."""
    if followers:
        name = next(iter(followers))
        refuse(f"a request after {name!r}, which is not among the requests or never ends")


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
