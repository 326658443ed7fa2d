"""Replay a recording: the simulated scheduler gets what the real one got, and every decision is compared."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import islice
from pathlib import Path

from ridgeline.core.records import dataclass
from ridgeline.serving.recording import read_recording
from ridgeline.serving.sglang_recording import SglangRecording
from ridgeline.serving.sglang_replay import sglang_records
from ridgeline.serving.vllm_recording import VllmRecording
from ridgeline.serving.vllm_replay import Record, vllm_records


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
