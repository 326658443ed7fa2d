"""Recordings of SGLang's scheduler, and the same requests through the simulated one, step by step."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Literal

from ridgeline.core.records import dataclass
from ridgeline.serving.engine.sglang import SglangScheduler, sglang_scheduler
from ridgeline.serving.engine.sglang_prefill import SglangSettings
from ridgeline.serving.engine.step import Step
from ridgeline.serving.replay.recorded_fields import MOST_BLOCKS, Fields, flag, int_field, requests, steps, table, wrong
from ridgeline.serving.request import Request

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
    while todo or engine.has_unfinished or late is not None:
        if not engine.has_unfinished and late is None and (not case.idle_lines or case.arrival_steps[todo[0]] > at):
            engine.become_idle()
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
        batch = [(state, 1, engine.computed_tokens(state) - 1) for state in step.decoded or ()]
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


POLICIES: tuple[Literal["fcfs", "lpm", "lof"], ...] = ("fcfs", "lpm", "lof")


@dataclass(frozen=True, slots=True, kw_only=True)
class SglangRecording:
    """Decisions of a real SGLang scheduler: what was asked, and what it did step by step."""

    version: str
    case: SglangCase
    steps: tuple[Record, ...]


def sglang_harness(document: Fields) -> SglangRecording:
    """Settings, requests in the order they came, and the steps that the recorder in a live engine wrote."""
    settings = _settings(table(document["config"], "config"))
    asked = requests(document["requests"], settings.page_size)
    arrivals = tuple(int_field(entry, "arrival_step", default=0, where="requests") for entry in document["requests"])
    found = steps(document["steps"])
    case = SglangCase(
        settings=settings,
        requests=_as_logged(asked, arrivals, found),
        arrival_steps=arrivals,
        idle_lines=any(step.get("mode") == IDLE for step in found),
    )
    return SglangRecording(version=str(document.get("sglang", "")), case=case, steps=found)


def _as_logged(asked: tuple[Request, ...], arrivals: tuple[int, ...], found: Sequence[Record]) -> tuple[Request, ...]:
    """The requests by the ids of the log: an engine that is given none makes up its own, in the order they came."""
    logged: dict[str, None] = {}
    for step in found:
        for field in ("reqs", "waiting"):
            names = step.get(field)
            logged |= dict.fromkeys(one for one in names if isinstance(one, str)) if isinstance(names, list) else {}
    if len(logged) != len(asked) or any(request.id in logged for request in asked):
        return asked
    order = sorted(range(len(asked)), key=lambda place: (arrivals[place], place))
    names = dict(zip(order, logged, strict=True))
    return tuple(replace(request, id=names[place]) for place, request in enumerate(asked))


def _settings(config: Fields) -> SglangSettings:
    given = config.get("schedule_policy", "fcfs")
    policy = next((one for one in POLICIES if one == given), None)
    if policy is None:
        raise wrong("config.schedule_policy", repr(given)[:60], f"one of {', '.join(POLICIES)}")
    conservativeness = config.get("schedule_conservativeness", 1.0)
    if not isinstance(conservativeness, int | float) or not 0 < conservativeness < 100:
        raise wrong("config.schedule_conservativeness", repr(conservativeness)[:60], "a number above 0, below 100")
    return SglangSettings(
        max_total_tokens=int_field(config, "max_total_tokens", least=1, most=MOST_BLOCKS, where="config"),
        max_running_requests=int_field(config, "max_running_requests", least=1, where="config"),
        chunked_prefill_size=int_field(config, "chunked_prefill_size", default=8192, where="config"),
        max_prefill_tokens=int_field(config, "max_prefill_tokens", default=16384, least=1, where="config"),
        page_size=int_field(config, "page_size", default=1, least=1, most=4096, where="config"),
        disable_radix_cache=flag(config, "disable_radix_cache", default=False),
        ignore_eos=flag(config, "ignore_eos", default=False),
        disable_overlap_schedule=flag(config, "disable_overlap_schedule", default=True),
        schedule_conservativeness=float(conservativeness),
        schedule_policy=policy,
        enable_priority_scheduling=flag(config, "enable_priority_scheduling", default=False),
        disable_priority_preemption=flag(config, "disable_priority_preemption", default=False),
        priority_scheduling_preemption_threshold=int_field(
            config, "priority_scheduling_preemption_threshold", default=10, where="config"
        ),
    )
