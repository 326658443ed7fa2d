"""Recordings of vLLM's scheduler, and the same requests through the simulated one, step by step."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Literal

from ridgeline.core.records import dataclass
from ridgeline.serving.engine.step import RequestState, Step
from ridgeline.serving.engine.vllm import VllmScheduler, VllmSettings, vllm_rules
from ridgeline.serving.replay.recorded_fields import (
    MOST_BLOCKS,
    MOST_REQUESTS,
    MOST_TOKENS,
    Fields,
    flag,
    int_field,
    name,
    requests,
    steps,
    table,
    wrong,
)
from ridgeline.serving.request import Piece, Request

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
    while todo or engine.has_unfinished or flush or pending:
        busy = engine.has_unfinished or flush
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
            if len(pending) < engine.depth and (not step.empty or engine.has_unfinished):
                continue
        step, record = pending.popleft()
        finished = engine.update(step)
        flush = flush or bool(finished)
        record["finished"] = [state.request.id for state in finished]
        record["free_blocks_after"] = engine.pool.free_blocks
        yield record


def _record(engine: VllmScheduler, step: Step, at: int, arrived: list[Request]) -> Record:
    scheduled = list(_scheduled_chunks(engine, step))
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


def _scheduled_chunks(engine: VllmScheduler, step: Step) -> Iterator[tuple[RequestState, int, int]]:
    """(request, tokens, computed before) in the scheduler's order."""
    chunks = {id(chunk.state): chunk for chunk in step.chunks}
    finishing = {id(state) for state in step.finishing}
    walked = None if step.decoded is None else {id(state) for state in step.decoded}
    for state in engine.running.values():
        if (chunk := chunks.get(id(state))) is not None:
            yield state, chunk.tokens, chunk.context
        elif id(state) in walked if walked is not None else state.decoding or id(state) in finishing:
            yield state, 1, engine.computed_tokens(state) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmRecording:
    """Decisions of a real vLLM scheduler: what was asked, and what it did step by step."""

    version: str
    case: VllmCase
    steps: tuple[Record, ...]


def vllm_harness(document: Fields) -> VllmRecording:
    """What a harness around the real scheduler writes: everything in one object."""
    version = str(document.get("vllm", ""))
    settings = _settings(table(document["config"], "config"), version)
    asked = requests(document["requests"], settings.block_size)
    arrivals = tuple(int_field(entry, "arrival_step", default=0, where="requests") for entry in document["requests"])
    case = VllmCase(settings=settings, requests=asked, arrival_steps=arrivals)
    return VllmRecording(version=version, case=case, steps=steps(document["steps"]))


def _settings(config: Fields, version: str) -> VllmSettings:
    policy: Literal["fcfs", "priority"] = "priority" if config.get("policy") == "priority" else "fcfs"
    if config.get("policy", "fcfs") != policy:
        raise wrong("config.policy", repr(config["policy"])[:60], "fcfs or priority")
    watermark = config.get("watermark", 0.0)
    if not isinstance(watermark, int | float) or not 0 <= watermark < 1:
        raise wrong("config.watermark", repr(watermark)[:60], "a fraction from 0 up to 1")
    return VllmSettings(
        num_blocks=int_field(config, "num_blocks", least=2, most=MOST_BLOCKS, where="config"),
        block_size=int_field(config, "block_size", least=1, where="config"),
        max_num_seqs=int_field(config, "max_num_seqs", least=1, where="config"),
        max_num_batched_tokens=int_field(config, "max_num_batched_tokens", least=1, where="config"),
        max_model_len=int_field(config, "max_model_len", least=2, where="config"),
        enable_prefix_caching=flag(config, "enable_prefix_caching", default=True),
        enable_chunked_prefill=flag(config, "enable_chunked_prefill", default=True),
        scheduling_policy=policy,
        long_prefill_token_threshold=int_field(config, "long_prefill_token_threshold", default=0, where="config"),
        scheduler_reserve_full_isl=flag(config, "scheduler_reserve_full_isl", default=True),
        watermark=float(watermark),
        async_scheduling=int_field(config, "async_depth", default=1, least=1, most=2, where="config") > 1,
        rules=vllm_rules(version),
    )


def vllm_live(lines: Sequence[Fields]) -> VllmRecording:
    """What a recording scheduler inside a live engine writes: one line per arrival and per step."""
    settings = _settings(table(lines[0]["config"], "config"), "")
    if settings.enable_prefix_caching:
        raise wrong(
            "config.enable_prefix_caching",
            "a log of a live engine with prefix caching, which does not hold the prompts",
            "prefix caching off, or a recording with the prompts (config, requests, steps)",
        )
    added = [line for line in lines[1:] if "add" in line]
    if not added or len(added) > MOST_REQUESTS:
        raise wrong("add", f"{len(added)} requests", f"1 to {MOST_REQUESTS:,}")
    asked = tuple(_live_requests(added))
    arrivals = tuple(int_field(line, "step", where="add") for line in added)
    case = VllmCase(settings=settings, requests=asked, arrival_steps=arrivals)
    return VllmRecording(version="", case=case, steps=tuple(line for line in lines if "scheduled" in line))


def _live_requests(added: Sequence[Fields]) -> Iterator[Request]:
    for number, line in enumerate(added):
        tokens = int_field(line, "max_tokens", least=1, where="add")
        yield Request(
            id=name(line["add"], "add"),
            arrival_s=0.0,
            prompt=(Piece(seed=number, tokens=int_field(line, "prompt_len", least=1, where="add")),),
            output_tokens=tokens,
            max_new_tokens=tokens,
            priority=int_field(line, "priority", default=0, least=-MOST_TOKENS, where="add"),
        )
