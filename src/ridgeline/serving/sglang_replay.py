"""Drive the simulated SGLang scheduler through a recorded case, written down as the recorder of a live engine does."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from ridgeline.core.records import dataclass
from ridgeline.serving.request import Request
from ridgeline.serving.sglang_overlap import sglang_scheduler
from ridgeline.serving.sglang_scheduler import SglangScheduler
from ridgeline.serving.sglang_settings import SglangSettings
from ridgeline.serving.step import Step

Record = dict[str, object]
IDLE = "IDLE"


@dataclass(frozen=True, slots=True, kw_only=True)
class SglangCase:
    """What was asked of a recorded engine: the knobs, and requests with the step before which they arrived.

    `idle_lines` says that the recorder wrote a line (mode IDLE) where the loop ran nothing: once for every result that
    it waited for, once for a pause of any length.
    """

    settings: SglangSettings
    requests: tuple[Request, ...]
    arrival_steps: tuple[int, ...]
    idle_lines: bool = False


def sglang_records(case: SglangCase) -> Iterator[Record]:
    """The steps of the simulated scheduler, as the recorder writes them; ends when nothing can be scheduled."""
    engine = sglang_scheduler(case.settings)
    todo = deque(sorted(range(len(case.requests)), key=lambda index: (case.arrival_steps[index], index)))
    at = 0
    late: Step | None = None  # with overlap: the step whose result comes after the next is decided
    while todo or engine.unfinished or late is not None:
        if not engine.unfinished and late is None and (not case.idle_lines or case.arrival_steps[todo[0]] > at):
            engine.rest()
            if case.idle_lines and at:
                yield _record(engine, Step())
                at += 1
            at = max(at, case.arrival_steps[todo[0]])
        while todo and case.arrival_steps[todo[0]] <= at:
            engine.add(case.requests[todo.popleft()])
        step = engine.schedule()
        if step.empty and late is None:
            return
        if case.idle_lines or not step.empty:
            yield _record(engine, step)
            at += 1
        if engine.depth == 1:
            engine.update(step)
            continue
        if late is not None:
            engine.update(late)
        late = None if step.empty else step


def _record(engine: SglangScheduler, step: Step) -> Record:
    if step.chunks:
        batch = [(chunk.state, chunk.tokens, chunk.context) for chunk in step.chunks]
    else:
        batch = [(state, 1, engine.computed(state) - 1) for state in step.decoded or ()]
    return {
        "mode": "EXTEND" if step.chunks else "DECODE" if batch else IDLE,
        "reqs": [state.request.id for state, _, _ in batch],
        "tokens": [tokens for _, tokens, _ in batch],
        "prefix": [before for _, _, before in batch],
        "waiting": [state.request.id for state in engine.waiting],
        "chunked": None if engine.chunked is None else engine.chunked.request.id,
        "free_tokens": engine.free_tokens,
        "evictable": engine.tree.evictable,
        "retracted": [state.request.id for state in step.preempted],
        "new_token_ratio": engine.ratio.current,
    }
