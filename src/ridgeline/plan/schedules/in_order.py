"""Run in-order workers that wait for each other's events until none can move, and say who is left waiting for what."""

from collections import deque
from collections.abc import Hashable, Iterator, Sequence
from typing import TypeVar

Event = TypeVar("Event", bound=Hashable)


def drive(workers: Sequence[Iterator[Event]], happened: list[Event]) -> dict[int, Event]:
    """Resume each worker until it yields an event that it must wait for; resume it again once that event has happened.

    A worker appends what it brings about to ``happened`` and never yields something that already happened. The result
    maps each worker that never finished to the event it still waits for; empty means all finished. Every event wakes
    only those who wait for it, so the cost is linear in the number of events.
    """
    waiting: dict[Event, list[int]] = {}
    ready = deque(range(len(workers)))
    while ready:
        worker = ready.popleft()
        wanted_token = next(workers[worker], None)
        if wanted_token is not None:
            waiting.setdefault(wanted_token, []).append(worker)
        while happened:
            ready.extend(waiting.pop(happened.pop(), ()))
    return {worker: event for event, stuck in waiting.items() for worker in stuck}
