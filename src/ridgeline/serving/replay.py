"""Files that a recorded scheduler wrote, and what the simulated one does otherwise, step by step.

Two forms are read, plain or gzip: the JSON object that drives vLLM's own Scheduler without a model (`config`,
`requests`, `steps`; the same of SGLang), and the JSON lines of a live vLLM engine. Input is hostile: sizes and types
are checked before anything is built from them, and what is absurd is refused with the place it stands at.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path

from ridgeline.core.documents import JsonMapping, JsonObject, JsonValue
from ridgeline.core.errors import InputError, Problem
from ridgeline.core.files import finite_json
from ridgeline.core.records import dataclass
from ridgeline.core.units import BINARY
from ridgeline.serving.engine.sglang import SglangScheduler, sglang_scheduler
from ridgeline.serving.engine.sglang_prefill import SglangSettings
from ridgeline.serving.engine.step import RequestState, Step
from ridgeline.serving.engine.vllm import VllmScheduler, VllmSettings, vllm_rules
from ridgeline.serving.request import Piece, Request
from ridgeline.serving.request_files import json_documents
from ridgeline.trace import TraceSource

MOST_REQUESTS = 1_000_000
MOST_BLOCKS = int(16 * BINARY["Mi"])  # of a pool, and of all prompts together
MOST_TOKENS = int(1 * BINARY["Gi"])  # of one number in a recording
OUTPUT_SEEDS = 10_000  # the k-th sampled token of request n is token (prompt + k) of text 10000 + n
IDLE = "IDLE"
EXPECTED = "a recording of a scheduler: an object with config, requests and steps, or lines of a live engine"
TODO = "record one with the scripts that docs/concepts/serving.md names"

Record = dict[str, object]
"""One step of a recording: its keys are those that the recorder of the real scheduler writes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerRecording:
    """What was asked of a real scheduler, and what it did step by step.

    arrival_steps   of each request, the step before which it arrived
    idle_lines      SGLang's recorder wrote a line (mode IDLE) where the loop ran nothing: once for every result that
                    it waited for, once for a pause of any length
    """

    version: str
    settings: VllmSettings | SglangSettings
    requests: tuple[Request, ...]
    arrival_steps: tuple[int, ...]
    steps: tuple[JsonObject, ...]
    idle_lines: bool = False

    def arrivals(self) -> deque[tuple[int, Request]]:
        """(step, request) in the order they came."""
        order = sorted(range(len(self.requests)), key=lambda place: (self.arrival_steps[place], place))
        return deque((self.arrival_steps[place], self.requests[place]) for place in order)


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """The first decision that is not the recorded one."""

    step: int
    """Its place in the recording, counted from 0."""
    field: str
    recorded: object
    simulated: object


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """How a simulated scheduler stands against a recording."""

    engine: str
    version: str
    requests: int
    steps: int
    differing_steps: int
    first_difference: Difference | None

    JSON = "kind='replay' *"

    @classmethod
    def of(cls, path: Path) -> Replay:
        """A recording, read and replayed."""
        return replay(read_recording(path))


def is_recording(path: Path) -> bool:
    """Whether a file looks like JSON, as recordings do and tables of measurements do not."""
    return path.is_file() and TraceSource(path).head(512).lstrip().startswith(b"{")


def replay(recording: SchedulerRecording) -> Replay:
    """Hold the simulated decisions against the recorded ones, step by step."""
    if isinstance(recording.settings, VllmSettings):
        engine, simulated = "vllm", vllm_records(recording, VllmScheduler(recording.settings))
    else:
        engine, simulated = "sglang", sglang_records(recording, sglang_scheduler(recording.settings))
    differing, first = compare(recording.steps, islice(simulated, len(recording.steps)))
    return Replay(
        engine=engine,
        version=recording.version,
        requests=len(recording.requests),
        steps=len(recording.steps),
        differing_steps=differing,
        first_difference=first,
    )


def compare(recorded: Iterable[Record], simulated: Iterator[Record]) -> tuple[int, Difference | None]:
    """Steps that differ in anything both sides write down, and the first difference; order counts everywhere."""
    differing, first = 0, None
    for place, theirs in enumerate(recorded):
        ours = next(simulated, None)
        both = {"step": (place, None)} if ours is None else {
            field: (theirs[field], value) for field, value in ours.items() if field in theirs
        }  # fmt: skip
        fields = [field for field, values in both.items() if not _same(*values)]
        if fields:
            differing += 1
            if first is None:
                recorded_value, simulated_value = both[fields[0]]
                first = Difference(step=place, field=fields[0], recorded=recorded_value, simulated=simulated_value)
    return differing, first


def _same(left: object, right: object) -> bool:
    if isinstance(left, Mapping) and isinstance(right, Mapping):
        return list(left.items()) == list(right.items())
    return left == right and type(left) is type(right)


# ---- the simulated schedulers write what the recorders do


def vllm_records(recording: SchedulerRecording, engine: VllmScheduler) -> Iterator[Record]:
    """The steps of the simulated scheduler, as the recorder writes them."""
    todo = recording.arrivals()
    pending: deque[tuple[Step, Record]] = deque()
    at, flush = 0, False
    while todo or engine.has_unfinished or flush or pending:
        busy = engine.has_unfinished or flush
        if todo and not busy and not pending:
            at = max(at, todo[0][0])
        arrivals = []
        while todo and todo[0][0] <= at:
            arrivals.append(todo.popleft()[1])
            engine.add(arrivals[-1])
        if busy or arrivals:
            step = engine.schedule()
            flush = False
            pending.append((step, _vllm_record(engine, step, at, arrivals)))
            at += 1
            if len(pending) < engine.depth and (not step.empty or engine.has_unfinished):
                continue
        step, record = pending.popleft()
        finished = engine.update(step)
        flush = flush or bool(finished)
        record["finished"] = _ids(finished)
        record["free_blocks_after"] = engine.pool.free_blocks
        yield record


def _vllm_record(engine: VllmScheduler, step: Step, at: int, arrivals: list[Request]) -> Record:
    scheduled = list(_scheduled_chunks(engine, step))
    admitted = {id(state) for state in step.admitted}
    started = [(state, before) for state, _, before in scheduled if id(state) in admitted]
    return {
        "step": at,
        "arrived": [request.id for request in arrivals],
        "scheduled": {state.request.id: tokens for state, tokens, _ in scheduled},
        "computed_before": {state.request.id: before for state, _, before in scheduled},
        "admitted": [state.request.id for state, _ in started],
        "resumed": [state.request.id for state, _ in started if state.preemptions],
        "prefix_hit_tokens": {state.request.id: before for state, before in started},
        "preempted": _ids(step.preempted),
        "running": _ids(engine.running.values()),
        "waiting": _ids(engine.waiting()),
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


def sglang_records(recording: SchedulerRecording, engine: SglangScheduler) -> Iterator[Record]:
    """The steps of the simulated scheduler, as the recorder writes them; ends when nothing can be scheduled."""
    todo = recording.arrivals()
    at = 0
    late: Step | None = None  # with overlap: the step whose result comes after the next is decided
    while todo or engine.has_unfinished or late is not None:
        if not engine.has_unfinished and late is None and (not recording.idle_lines or todo[0][0] > at):
            engine.become_idle()
            if recording.idle_lines and at:
                yield _sglang_record(engine, Step())
                at += 1
            at = max(at, todo[0][0])
        while todo and todo[0][0] <= at:
            engine.add(todo.popleft()[1])
        step = engine.schedule()
        if step.empty and late is None:
            return
        if recording.idle_lines or not step.empty:
            yield _sglang_record(engine, step)
            at += 1
        if engine.depth == 1:
            engine.update(step)
            continue
        if late is not None:
            engine.update(late)
        late = None if step.empty else step


def _sglang_record(engine: SglangScheduler, step: Step) -> Record:
    if step.chunks:
        batch = [(chunk.state, chunk.tokens, chunk.context) for chunk in step.chunks]
    else:
        batch = [(state, 1, engine.computed_tokens(state) - 1) for state in step.decoded or ()]
    return {
        "mode": "EXTEND" if step.chunks else "DECODE" if batch else IDLE,
        "reqs": [state.request.id for state, _, _ in batch],
        "tokens": [tokens for _, tokens, _ in batch],
        "prefix": [before for _, _, before in batch],
        "waiting": _ids(engine.waiting),
        "chunked": None if engine.chunked is None else engine.chunked.request.id,
        "free_tokens": engine.free_tokens,
        "evictable": engine.tree.evictable,
        "retracted": _ids(step.preempted),
        "new_token_ratio": engine.ratio.current,
    }


def _ids(states: Iterable[RequestState]) -> list[str]:
    return [state.request.id for state in states]


# ---- files


def read_recording(path: Path) -> SchedulerRecording:
    """The recording in a file, recognised by its content."""
    documents = json_documents(path, EXPECTED, TODO, finite_json)
    try:
        if not all(isinstance(document, dict) for document in documents):
            raise wrong("", "text that is not JSON (something else than an object)", EXPECTED, TODO)
        first = documents[0] if documents else {}
        if len(documents) > 1 and {"config", "requests"} <= first.keys() and "steps" not in first:
            first = {**first, "steps": documents[1:]}
        if {"config", "requests", "steps"} <= first.keys():
            return _harness(first)
        if isinstance(first.get("config"), dict) and any("scheduled" in line for line in documents[1:]):
            return _vllm_live(documents)
        if {"mode", "reqs", "new_token_ratio"} <= first.keys():
            raise wrong("", "the log of a live SGLang engine, which does not hold the prompts", EXPECTED, TODO)
        keys = ", ".join(sorted(map(str, first)))[:120] or "none"
        raise wrong("", f"JSON with the keys {keys}", EXPECTED, TODO)
    except InputError as refused:
        raise InputError([replace(problem, where=str(path)) for problem in refused.problems]) from None


def _harness(document: JsonObject) -> SchedulerRecording:
    """What a harness around the real scheduler writes: everything in one object."""
    config = document["config"]
    of_sglang = "sglang" in document or (isinstance(config, dict) and "max_total_tokens" in config)
    version = str(document.get("sglang" if of_sglang else "vllm", ""))
    config = table(config, "config")
    settings = _sglang_settings(config) if of_sglang else _vllm_settings(config, version)
    block_size = settings.page_size if isinstance(settings, SglangSettings) else settings.block_size
    requests = _requests(document["requests"], block_size)
    arrivals = tuple(int_field(entry, "arrival_step", default=0, where="requests") for entry in document["requests"])
    steps = tuple(table(step, f"steps[{place}]") for place, step in enumerate(list_field(document["steps"], "steps")))
    if not steps:
        raise wrong("steps", "no steps", "at least one recorded step")
    return SchedulerRecording(
        version=version,
        settings=settings,
        requests=_as_logged(requests, arrivals, steps) if of_sglang else requests,
        arrival_steps=arrivals,
        steps=steps,
        idle_lines=any(step.get("mode") == IDLE for step in steps),
    )


def _vllm_live(lines: Sequence[JsonObject]) -> SchedulerRecording:
    """What a recording scheduler inside a live engine writes: one line per arrival and per step."""
    settings = _vllm_settings(table(lines[0]["config"], "config"), "")
    if settings.enable_prefix_caching:
        raise wrong(
            "config.enable_prefix_caching",
            "a log of a live engine with prefix caching, which does not hold the prompts",
            "prefix caching off, or a recording with the prompts (config, requests, steps)",
        )
    added = [line for line in lines[1:] if "add" in line]
    if not added or len(added) > MOST_REQUESTS:
        raise wrong("add", f"{len(added)} requests", f"1 to {MOST_REQUESTS:,}")
    return SchedulerRecording(
        version="",
        settings=settings,
        requests=tuple(
            Request(
                id=check_name(line["add"], "add"),
                arrival_s=0.0,
                prompt=(Piece(seed=number, tokens=int_field(line, "prompt_len", least=1, where="add")),),
                output_tokens=(tokens := int_field(line, "max_tokens", least=1, where="add")),
                max_new_tokens=tokens,
                priority=int_field(line, "priority", default=0, least=-MOST_TOKENS, where="add"),
            )
            for number, line in enumerate(added)
        ),
        arrival_steps=tuple(int_field(line, "step", where="add") for line in added),
        steps=tuple(line for line in lines if "scheduled" in line),
    )


def _as_logged(
    requests: tuple[Request, ...], arrivals: tuple[int, ...], steps: Sequence[JsonMapping]
) -> tuple[Request, ...]:
    """The requests by the ids of the log: an engine that is given none makes up its own, in the order they came."""
    logged: dict[str, None] = {}
    for step in steps:
        for field in ("reqs", "waiting"):
            names = step.get(field)
            logged |= dict.fromkeys(one for one in names if isinstance(one, str)) if isinstance(names, list) else {}
    if len(logged) != len(requests) or any(request.id in logged for request in requests):
        return requests
    order = sorted(range(len(requests)), key=lambda place: (arrivals[place], place))
    ids = dict(zip(order, logged, strict=True))
    return tuple(replace(request, id=ids[place]) for place, request in enumerate(requests))


def _vllm_settings(config: JsonObject, version: str) -> VllmSettings:
    counts = {"num_blocks": (None, 2, MOST_BLOCKS), "max_model_len": (None, 2)}
    counts |= dict.fromkeys(("block_size", "max_num_seqs", "max_num_batched_tokens"), (None, 1))
    counts |= {"long_prefill_token_threshold": (0,)}
    flags = dict.fromkeys(("enable_prefix_caching", "enable_chunked_prefill", "scheduler_reserve_full_isl"), True)
    policy = choice(config, "policy", ("fcfs", "priority"), "fcfs or priority")
    watermark = config.get("watermark", 0.0)
    if not isinstance(watermark, int | float) or not 0 <= watermark < 1:
        raise wrong("config.watermark", repr(watermark)[:60], "a fraction from 0 up to 1")
    return VllmSettings(
        **config_values(config, counts, flags),
        scheduling_policy=policy,
        watermark=float(watermark),
        async_scheduling=int_field(config, "async_depth", default=1, least=1, most=2, where="config") > 1,
        rules=vllm_rules(version),
    )


def _sglang_settings(config: JsonObject) -> SglangSettings:
    counts = {
        "max_total_tokens": (None, 1, MOST_BLOCKS),
        "max_running_requests": (None, 1),
        "chunked_prefill_size": (8192,),
        "max_prefill_tokens": (16384, 1),
        "page_size": (1, 1, 4096),
        "priority_scheduling_preemption_threshold": (10,),
    }
    flags = dict.fromkeys(("disable_radix_cache", "ignore_eos", "enable_priority_scheduling"), False)
    flags |= {"disable_priority_preemption": False, "disable_overlap_schedule": True}
    policy = choice(config, "schedule_policy", ("fcfs", "lpm", "lof"), "one of fcfs, lpm, lof")
    conservativeness = config.get("schedule_conservativeness", 1.0)
    if not isinstance(conservativeness, int | float) or not 0 < conservativeness < 100:
        raise wrong("config.schedule_conservativeness", repr(conservativeness)[:60], "a number above 0, below 100")
    return SglangSettings(
        **config_values(config, counts, flags),
        schedule_conservativeness=float(conservativeness),
        schedule_policy=policy,
    )


# ---- checked values


def _requests(entries: object, block_size: int) -> tuple[Request, ...]:
    """The requests of a recording: id, prompt as [seed, length] pieces, max_tokens, priority; output_tokens of an
    answer that stopped before its max_tokens."""
    rows = list_field(entries, "requests")
    if not rows or len(rows) > MOST_REQUESTS:
        raise wrong("requests", f"{len(rows)} requests", f"1 to {MOST_REQUESTS:,}")
    requests = tuple(_request(row, number) for number, row in enumerate(rows))
    if len({request.id for request in requests}) < len(requests):
        raise wrong("requests", "an id twice", "ids that differ")
    blocks = sum(request.prompt_tokens // block_size + 1 for request in requests)
    if blocks > MOST_BLOCKS:
        raise wrong("requests", f"prompts of {blocks:,} blocks", f"at most {MOST_BLOCKS:,}")
    return requests


def _request(entry: object, number: int) -> Request:
    where = f"requests[{number}]"
    fields = table(entry, where)
    pieces = []
    for piece in list_field(fields.get("prompt"), f"{where}.prompt"):
        if not isinstance(piece, list) or len(piece) != 2:
            raise wrong(f"{where}.prompt", repr(piece)[:60], "pieces of [seed, length]")
        seed = check_int(piece[0], f"{where}.prompt", -MOST_TOKENS)
        pieces.append(Piece(seed=seed, tokens=check_int(piece[1], f"{where}.prompt", 0)))
    tokens = int_field(fields, "max_tokens", least=1, where=where)
    stopped = int_field(fields, "output_tokens", default=tokens, least=1, most=tokens, where=where)
    request = Request(
        id=check_name(fields.get("id"), f"{where}.id"),
        arrival_s=0.0,
        prompt=tuple(pieces),
        output_tokens=stopped,
        max_new_tokens=tokens,
        priority=int_field(fields, "priority", default=0, least=-MOST_TOKENS, where=where),
        output_seed=OUTPUT_SEEDS + number,
    )
    if not request.prompt_tokens:
        raise wrong(f"{where}.prompt", "no tokens", "a prompt of at least one token")
    return request


def config_values(
    config: JsonObject, counts: Mapping[str, tuple[int | None, ...]], flags: Mapping[str, bool]
) -> JsonObject:
    """Whole numbers by (default, least, most) and flags by default, each by its name."""
    values: JsonObject = {}
    for name, (default, *bounds) in counts.items():
        values[name] = check_int(config.get(name, default), f"config.{name}", *(bounds or (0,)))
    for name, usual in flags.items():
        values[name] = config.get(name, usual)
        if not isinstance(values[name], bool):
            raise wrong(f"config.{name}", repr(values[name])[:60], "true or false")
    return values


def choice(config: JsonObject, name: str, names: tuple[str, ...], expected: str) -> JsonValue:
    """One of these names; the first where none is given."""
    given = config.get(name, names[0])
    if given not in names:
        raise wrong(f"config.{name}", repr(given)[:60], expected)
    return given


def wrong(path: str, given: str, expected: str, todo: str = "") -> InputError:
    return InputError(Problem(path=path, given=given, expected=expected, todo=todo))


def table(value: object, path: str) -> JsonObject:
    if not isinstance(value, dict):
        raise wrong(path, repr(value)[:60], "an object")
    return value


def list_field(value: object, path: str) -> list[JsonValue]:
    if not isinstance(value, list):
        raise wrong(path, repr(value)[:60], "a list")
    return value


def check_name(value: object, path: str) -> str:
    if not isinstance(value, str) or not value or len(value) > 200:
        raise wrong(path, repr(value)[:60], "a name of at most 200 characters")
    return value


def int_field(
    fields: JsonObject, name: str, *, where: str, default: int | None = None, least: int = 0, most: int = MOST_TOKENS
) -> int:
    return check_int(fields.get(name, default), f"{where}.{name}", least, most)


def check_int(value: object, path: str, least: int, most: int = MOST_TOKENS) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise wrong(path, repr(value)[:60], f"a whole number from {least:,} to {most:,}")
    return value
