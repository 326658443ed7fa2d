"""In which order SGLang's waiting requests are looked at: fcfs, lpm, lof; priority on top of the first and the last."""

from __future__ import annotations

from collections.abc import Callable

from ridgeline.serving.radix_cache import RadixCache, Runs
from ridgeline.serving.sglang_settings import SglangSettings
from ridgeline.serving.step import RequestState

MOST_MATCHED = 128  # waiting requests beyond which lpm acts as fcfs
FEW_CACHED = 32  # cached tokens up to which a request may wait for another that shares more
MANY_SHARED = 32

Text = Callable[[RequestState, int], Runs]
"""The first tokens of a request's prompt and answer."""


def order_queue(waiting: list[RequestState], settings: SglangSettings, tree: RadixCache, text: Text) -> None:
    """Sort the waiting requests in place; equal ones keep the order they entered the queue in."""
    if goes_by_cache(waiting, settings):
        _longest_prefix(waiting, settings, tree, text)
    elif settings.schedule_policy == "lof":
        sign = -1 if settings.enable_priority_scheduling else 0
        waiting.sort(key=lambda state: (sign * state.priority, -state.request.max_new_tokens))
    elif settings.schedule_policy == "fcfs" and settings.enable_priority_scheduling:
        waiting.sort(key=lambda state: -state.priority)


def goes_by_cache(waiting: list[RequestState], settings: SglangSettings) -> bool:
    """Whether the order looks at the tree now."""
    return settings.schedule_policy == "lpm" and not settings.disable_radix_cache and len(waiting) <= MOST_MATCHED


def _longest_prefix(waiting: list[RequestState], settings: SglangSettings, tree: RadixCache, text: Text) -> None:
    """Longest cached prefix first; who shares a prefix with an earlier waiting request lets that one fill the cache."""
    queue = RadixCache(settings.page_size)
    place: dict[int, float] = {}
    for state in waiting:
        key = text(state, state.known)
        cached = tree.match(key)[0]
        place[id(state)] = -cached
        if cached <= FEW_CACHED:
            if queue.match(key)[0] >= MANY_SHARED:
                place[id(state)] = float("inf")
            else:
                queue.insert(key)
    waiting.sort(key=lambda state: place[id(state)])
