"""Turn a recording of a real scheduler's decisions into a case to replay and the steps to compare with.

Two forms are read, plain or gzip: the JSON object that drives vLLM's own Scheduler without a model (`config`,
`requests`, `steps`), and the JSON lines of a live engine. Input is hostile: sizes and types are checked before anything is built from
them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ridgeline.core.errors import InputError, Problem
from ridgeline.core.units import BINARY
from ridgeline.serving.request import Piece, Request
from ridgeline.serving.vllm_replay import Record, VllmCase
from ridgeline.serving.vllm_settings import VllmSettings, vllm_rules
from ridgeline.trace.read.source import Source

BIGGEST = int(512 * BINARY["Mi"])  # bytes of JSON
MOST_REQUESTS = 1_000_000
MOST_BLOCKS = int(16 * BINARY["Mi"])  # of a pool, and of all prompts together
MOST_TOKENS = int(1 * BINARY["Gi"])  # of one number in a recording
OUTPUT_SEEDS = 10_000  # the k-th sampled token of request n is token (prompt + k) of text 10000 + n

Fields = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmRecording:
    """Decisions of a real vLLM scheduler: what was asked, and what it did step by step."""

    version: str
    case: VllmCase
    steps: tuple[Record, ...]


def is_recording(path: Path) -> bool:
    """Whether a file looks like JSON, as recordings do and tables of measurements do not."""
    return path.is_file() and Source(path).head(512).lstrip().startswith(b"{")


def read_recording(path: Path) -> VllmRecording:
    """The recording in a file, recognised by its content."""
    try:
        documents = _documents(path)
    except (ValueError, RecursionError) as wrong:
        raise _refuse(path, f"text that is not JSON ({str(wrong)[:80]})") from None
    first = documents[0] if documents else {}
    try:
        if len(documents) == 1 and {"config", "requests", "steps"} <= first.keys():
            return _harness(first)
        if isinstance(first.get("config"), dict) and any("scheduled" in line for line in documents[1:]):
            return _live(documents)
    except InputError as wrong:
        raise InputError([_at(path, problem) for problem in wrong.problems]) from None
    raise _refuse(path, f"JSON with the keys {', '.join(sorted(map(str, first)))[:120] or 'none'}")


def _refuse(path: Path, given: str) -> InputError:
    return InputError(
        Problem(
            path="",
            given=given,
            expected="a recording of a scheduler: an object with config, requests and steps, or JSON lines of a live engine",
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


# ---- the harness: everything in one object


def _harness(document: Fields) -> VllmRecording:
    config = _table(document["config"], "config")
    entries = _list(document["requests"], "requests")
    if not entries or len(entries) > MOST_REQUESTS:
        raise _wrong("requests", f"{len(entries)} requests", f"1 to {MOST_REQUESTS:,}")
    requests = tuple(_request(entry, number) for number, entry in enumerate(entries))
    version = str(document.get("vllm", ""))
    settings = _settings(config, version)
    _check_size(requests, settings)
    names = {request.id for request in requests}
    if len(names) < len(requests):
        raise _wrong("requests", "an id twice", "ids that differ")
    steps = tuple(_table(step, f"steps[{number}]") for number, step in enumerate(_list(document["steps"], "steps")))
    if not steps:
        raise _wrong("steps", "no steps", "at least one recorded step")
    arrivals = tuple(_whole(_table(entry, "requests"), "arrival_step", default=0) for entry in entries)
    return VllmRecording(
        version=version, case=VllmCase(settings=settings, requests=requests, arrival_steps=arrivals), steps=steps
    )


def _request(entry: object, number: int) -> Request:
    where = f"requests[{number}]"
    fields = _table(entry, where)
    pieces = []
    for piece in _list(fields.get("prompt"), f"{where}.prompt"):
        if not isinstance(piece, list) or len(piece) != 2:
            raise _wrong(f"{where}.prompt", repr(piece)[:60], "pieces of [seed, length]")
        pieces.append(
            Piece(seed=_checked(piece[0], f"{where}.prompt"), tokens=_checked(piece[1], f"{where}.prompt", least=0))
        )
    tokens = _whole(fields, "max_tokens", least=1, where=where)
    request = Request(
        id=_name(fields.get("id"), f"{where}.id"),
        arrival_s=0.0,
        prompt=tuple(pieces),
        output_tokens=tokens,
        max_new_tokens=tokens,
        priority=_whole(fields, "priority", default=0, least=-MOST_TOKENS, where=where),
        output_seed=OUTPUT_SEEDS + number,
    )
    if not request.prompt_tokens:
        raise _wrong(f"{where}.prompt", "no tokens", "a prompt of at least one token")
    return request


def _check_size(requests: Sequence[Request], settings: VllmSettings) -> None:
    blocks = sum(request.prompt_tokens // settings.block_size + 1 for request in requests)
    if blocks > MOST_BLOCKS:
        raise _wrong("requests", f"prompts of {blocks:,} blocks", f"at most {MOST_BLOCKS:,}")


def _settings(config: Fields, version: str) -> VllmSettings:
    policy: Literal["fcfs", "priority"] = "priority" if config.get("policy") == "priority" else "fcfs"
    if config.get("policy", "fcfs") != policy:
        raise _wrong("config.policy", repr(config["policy"])[:60], "fcfs or priority")
    watermark = config.get("watermark", 0.0)
    if not isinstance(watermark, int | float) or not 0 <= watermark < 1:
        raise _wrong("config.watermark", repr(watermark)[:60], "a fraction from 0 up to 1")
    return VllmSettings(
        num_blocks=_whole(config, "num_blocks", least=2, most=MOST_BLOCKS, where="config"),
        block_size=_whole(config, "block_size", least=1, where="config"),
        max_num_seqs=_whole(config, "max_num_seqs", least=1, where="config"),
        max_num_batched_tokens=_whole(config, "max_num_batched_tokens", least=1, where="config"),
        max_model_len=_whole(config, "max_model_len", least=2, where="config"),
        prefix_caching=_flag(config, "enable_prefix_caching", default=True),
        chunked_prefill=_flag(config, "enable_chunked_prefill", default=True),
        policy=policy,
        long_prefill_token_threshold=_whole(config, "long_prefill_token_threshold", default=0, where="config"),
        scheduler_reserve_full_isl=_flag(config, "scheduler_reserve_full_isl", default=True),
        watermark=float(watermark),
        async_scheduling=_whole(config, "async_depth", default=1, least=1, most=2, where="config") > 1,
        rules=vllm_rules(version),
    )


# ---- a live engine: one line per arrival and per step


def _live(lines: Sequence[Fields]) -> VllmRecording:
    settings = _settings(_table(lines[0]["config"], "config"), "")
    if settings.prefix_caching:
        raise _wrong(
            "config.enable_prefix_caching",
            "a log of a live engine with prefix caching, which does not hold the prompts",
            "prefix caching off, or a recording with the prompts (config, requests, steps)",
        )
    added = [line for line in lines[1:] if "add" in line]
    if not added or len(added) > MOST_REQUESTS:
        raise _wrong("add", f"{len(added)} requests", f"1 to {MOST_REQUESTS:,}")
    requests = tuple(_live_requests(added))
    arrivals = tuple(_whole(line, "step", where="add") for line in added)
    case = VllmCase(settings=settings, requests=requests, arrival_steps=arrivals)
    return VllmRecording(version="", case=case, steps=tuple(line for line in lines if "scheduled" in line))


def _live_requests(added: Sequence[Fields]) -> Iterator[Request]:
    for number, line in enumerate(added):
        tokens = _whole(line, "max_tokens", least=1, where="add")
        yield Request(
            id=_name(line["add"], "add"),
            arrival_s=0.0,
            prompt=(Piece(seed=number, tokens=_whole(line, "prompt_len", least=1, where="add")),),
            output_tokens=tokens,
            max_new_tokens=tokens,
            priority=_whole(line, "priority", default=0, least=-MOST_TOKENS, where="add"),
        )


# ---- checked values


def _wrong(path: str, given: str, expected: str) -> InputError:
    return InputError(Problem(path=path, given=given, expected=expected))


def _table(value: object, path: str) -> Fields:
    if not isinstance(value, dict):
        raise _wrong(path, repr(value)[:60], "an object")
    return value


def _list(value: object, path: str) -> list[Any]:
    if not isinstance(value, list):
        raise _wrong(path, repr(value)[:60], "a list")
    return value


def _name(value: object, path: str) -> str:
    if not isinstance(value, str) or not value or len(value) > 200:
        raise _wrong(path, repr(value)[:60], "a name of at most 200 characters")
    return value


def _flag(fields: Fields, name: str, *, default: bool) -> bool:
    value = fields.get(name, default)
    if not isinstance(value, bool):
        raise _wrong(f"config.{name}", repr(value)[:60], "true or false")
    return value


def _whole(
    fields: Fields, name: str, *, default: int | None = None, least: int = 0, most: int = MOST_TOKENS, where: str = ""
) -> int:
    value = fields.get(name, default)
    return _checked(value, f"{where}.{name}" if where else name, least=least, most=most)


def _checked(value: object, path: str, *, least: int = -MOST_TOKENS, most: int = MOST_TOKENS) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise _wrong(path, repr(value)[:60], f"a whole number from {least:,} to {most:,}")
    return value
