"""Files that a recorded scheduler wrote, and what the simulated one does otherwise.

Two forms are read, plain or gzip: the JSON object that drives vLLM's own Scheduler without a model (`config`,
`requests`, `steps`; the same of SGLang), and the JSON lines of a live vLLM engine. Input is hostile: sizes and types
are checked before anything is built from them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from itertools import islice
from pathlib import Path

from ridgeline.core.errors import InputError, Problem
from ridgeline.core.records import dataclass
from ridgeline.core.units import BINARY
from ridgeline.serving.replay.recorded_fields import Fields
from ridgeline.serving.replay.sglang import SglangRecording, sglang_harness, sglang_records
from ridgeline.serving.replay.vllm import Record, VllmRecording, vllm_harness, vllm_live, vllm_records
from ridgeline.trace import Source

BIGGEST = int(512 * BINARY["Mi"])  # bytes of JSON


def is_recording(path: Path) -> bool:
    """Whether a file looks like JSON, as recordings do and tables of measurements do not."""
    return path.is_file() and Source(path).head(512).lstrip().startswith(b"{")


def read_recording(path: Path) -> VllmRecording | SglangRecording:
    """The recording in a file, recognised by its content."""
    try:
        documents = _documents(path)
    except (ValueError, RecursionError) as wrong:
        raise _refuse(path, f"text that is not JSON ({str(wrong)[:80]})") from None
    first = documents[0] if documents else {}
    try:
        if len(documents) > 1 and {"config", "requests"} <= first.keys() and "steps" not in first:
            first = {**first, "steps": documents[1:]}
        if {"config", "requests", "steps"} <= first.keys():
            return sglang_harness(first) if _of_sglang(first) else vllm_harness(first)
        if isinstance(first.get("config"), dict) and any("scheduled" in line for line in documents[1:]):
            return vllm_live(documents)
        if {"mode", "reqs", "new_token_ratio"} <= first.keys():
            raise _refuse(path, "the log of a live SGLang engine, which does not hold the prompts")
    except InputError as wrong:
        raise InputError([_at(path, problem) for problem in wrong.problems]) from None
    raise _refuse(path, f"JSON with the keys {', '.join(sorted(map(str, first)))[:120] or 'none'}")


def _of_sglang(document: Fields) -> bool:
    config = document["config"]
    return "sglang" in document or (isinstance(config, dict) and "max_total_tokens" in config)


def _refuse(path: Path, given: str) -> InputError:
    return InputError(
        Problem(
            path="",
            given=given,
            expected="a recording of a scheduler: an object with config, requests and steps, or lines of a live engine",
            todo="record one with the scripts that docs/concepts/serving.md names",
            where=str(path),
        )
    )


def _at(path: Path, problem: Problem) -> Problem:
    return Problem(
        path=problem.path, given=problem.given, expected=problem.expected, todo=problem.todo, where=str(path)
    )


def _documents(path: Path) -> list[Fields]:
    source, size, chunks = Source(path), 0, []
    for chunk in source.chunks():
        size += len(chunk)
        if size > BIGGEST:
            raise _refuse(path, f"more than {BIGGEST:,} bytes")
        chunks.append(chunk)
    if source.damage:
        raise _refuse(path, source.damage)
    text = b"".join(chunks).decode("utf-8")
    try:
        documents = [json.loads(text)]
    except json.JSONDecodeError:
        documents = [json.loads(line) for line in text.splitlines() if line.strip()]
    if not all(isinstance(document, dict) for document in documents):
        raise ValueError("something else than an object")
    return documents


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


def replay_recording(path: Path) -> Replay:
    """Read a recording and replay it."""
    return replay(read_recording(path))


def replay(recording: VllmRecording | SglangRecording) -> Replay:
    """Hold the simulated decisions against the recorded ones, step by step."""
    if isinstance(recording, VllmRecording):
        engine, simulated = "vllm", vllm_records(recording.case)
    else:
        engine, simulated = "sglang", sglang_records(recording.case)
    differing, first = compare(recording.steps, islice(simulated, len(recording.steps)))
    return Replay(
        engine=engine,
        version=recording.version,
        requests=len(recording.case.requests),
        steps=len(recording.steps),
        differing_steps=differing,
        first_difference=first,
    )


def compare(recorded: Iterable[Record], simulated: Iterable[Record]) -> tuple[int, Difference | None]:
    """Steps that differ in anything both sides write down, and the first difference; order counts everywhere."""
    mine = iter(simulated)
    differing, first = 0, None
    for place, theirs in enumerate(recorded):
        ours = next(mine, None)
        found = [("step", place, None)] if ours is None else list(_differences(theirs, ours))
        if found:
            differing += 1
            if first is None:
                field, recorded_value, simulated_value = found[0]
                first = Difference(step=place, field=field, recorded=recorded_value, simulated=simulated_value)
    return differing, first


def _differences(theirs: Record, ours: Record) -> Iterable[tuple[str, object, object]]:
    for field, simulated in ours.items():
        if field in theirs and not _same(theirs[field], simulated):
            yield field, theirs[field], simulated


def _same(left: object, right: object) -> bool:
    if isinstance(left, Mapping) and isinstance(right, Mapping):
        return list(left.items()) == list(right.items())
    return left == right and type(left) is type(right)
