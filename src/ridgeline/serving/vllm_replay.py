"""Drive the simulated vLLM scheduler through a recorded case, and tell step by step where the two differ."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from ridgeline.core.records import dataclass
from ridgeline.serving.request import Request
from ridgeline.serving.step import RequestState, Step
from ridgeline.serving.vllm_scheduler import VllmScheduler
from ridgeline.serving.vllm_settings import VllmSettings

Record = dict[str, object]
"""One step of a recording: its keys are those that the recorder of the real scheduler writes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmCase:
    """What was asked of a recorded scheduler: the knobs, and requests with the step they arrive at."""

    settings: VllmSettings
    requests: tuple[Request, ...]
    arrival_steps: tuple[int, ...]


def vllm_records(case: VllmCase) -> Iterator[Record]:
    """The steps of the simulated scheduler, as the recorder writes them."""
    engine = VllmScheduler(case.settings)
    todo = deque(sorted(range(len(case.requests)), key=lambda index: (case.arrival_steps[index], index)))
    pending: deque[tuple[Step, Record]] = deque()
    at, flush = 0, False
    while todo or engine.unfinished or flush or pending:
        busy = engine.unfinished or flush
        if todo and not busy and not pending:
            at = max(at, case.arrival_steps[todo[0]])
        arrived = []
        while todo and case.arrival_steps[todo[0]] <= at:
            arrived.append(case.requests[todo.popleft()])
            engine.add(arrived[-1])
        if busy or arrived:
            step = engine.schedule()
            flush = False
            pending.append((step, _record(engine, step, at, arrived)))
            at += 1
            if len(pending) < engine.depth and (not step.empty or engine.unfinished):
                continue
        step, record = pending.popleft()
        finished = engine.update(step)
        flush = flush or bool(finished)
        record["finished"] = [state.request.id for state in finished]
        record["free_blocks_after"] = engine.pool.free_blocks
        yield record


def _record(engine: VllmScheduler, step: Step, at: int, arrived: list[Request]) -> Record:
    scheduled = list(_scheduled(engine, step))
    first = {id(state) for state in step.admitted}
    return {
        "step": at,
        "arrived": [request.id for request in arrived],
        "scheduled": {state.request.id: tokens for state, tokens, _ in scheduled},
        "computed_before": {state.request.id: before for state, _, before in scheduled},
        "admitted": [state.request.id for state, _, _ in scheduled if id(state) in first],
        "resumed": [state.request.id for state, _, _ in scheduled if id(state) in first and state.preemptions],
        "prefix_hit_tokens": {state.request.id: before for state, _, before in scheduled if id(state) in first},
        "preempted": [state.request.id for state in step.preempted],
        "running": [state.request.id for state in engine.running.values()],
        "waiting": [state.request.id for state in engine.waiting()],
        "free_blocks": engine.pool.free_blocks,
        "block_ids": {state.request.id: list(state.blocks) for state, _, _ in scheduled},
    }


def _scheduled(engine: VllmScheduler, step: Step) -> Iterator[tuple[RequestState, int, int]]:
    """(request, tokens, computed before) in the scheduler's order."""
    chunks = {id(chunk.state): chunk for chunk in step.chunks}
    finishing = {id(state) for state in step.finishing}
    walked = None if step.decoded is None else {id(state) for state in step.decoded}
    for state in engine.running.values():
        if (chunk := chunks.get(id(state))) is not None:
            yield state, chunk.tokens, chunk.context
        elif id(state) in walked if walked is not None else state.decoding or id(state) in finishing:
            yield state, 1, engine.computed(state) - 1
