"""Turn a recording of a real scheduler's decisions into a case to replay and the steps to compare with.

Two forms are read, plain or gzip: the JSON object that drives vLLM's own Scheduler without a model (`config`,
`requests`, `steps`; the same of SGLang), and the JSON lines of a live vLLM engine. Input is hostile: sizes and types
are checked before anything is built from them.
"""

from __future__ import annotations

import json
from pathlib import Path

from ridgeline.core.errors import InputError, Problem
from ridgeline.core.units import BINARY
from ridgeline.serving.recorded_fields import Fields
from ridgeline.serving.sglang_recording import SglangRecording, sglang_harness
from ridgeline.serving.vllm_recording import VllmRecording, vllm_harness, vllm_live
from ridgeline.trace.read.source import Source

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
