"""Turn a trace file into requests, recognised by its content, plain or gzip.

    Azure            CSV: TIMESTAMP, ContextTokens, GeneratedTokens
    lengths          CSV: two columns of tokens (ShareGPT-like), with or without a time
    Mooncake         JSON lines: timestamp (ms), input_length, output_length, hash_ids (blocks of 512 tokens)
    vllm bench       the JSON result of `vllm bench serve --save-detailed`: input_lens, output_lens, start_times

A column or key `priority` is what the scheduler is told of a request: vLLM serves small numbers first, SGLang large.
Input is hostile: times that go back, are negative or no numbers, lengths of nothing or of millions, and files without
requests are refused with the row they stand in. Times are seconds since the first request.
"""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from io import StringIO
from pathlib import Path
from typing import Any

from ridgeline.core.documents import JsonMapping
from ridgeline.core.errors import InputError, Problem
from ridgeline.core.records import dataclass
from ridgeline.core.units import BINARY
from ridgeline.serving.request import Piece, Request
from ridgeline.trace import Source

BIGGEST = int(512 * BINARY["Mi"])  # bytes of text
MOST_REQUESTS = 2_000_000
MOST_TOKENS = int(16 * BINARY["Mi"])  # of one prompt or answer
MOONCAKE_BLOCK = 512  # tokens that one hash id stands for
MILLI = 1e-3

PROMPT_COLUMNS = ("ContextTokens", "num_prefill_tokens", "input_length", "prompt_len", "prompt_tokens", "isl")
OUTPUT_COLUMNS = ("GeneratedTokens", "num_decode_tokens", "output_length", "output_len", "output_tokens", "osl")
TIME_COLUMNS = ("TIMESTAMP", "arrived_at", "arrival_s", "timestamp_s", "timestamp")
PRIORITY = "priority"
MOST_PRIORITY = int(1 * BINARY["Gi"])


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestTrace:
    """Requests of a file; where it holds lengths alone, `timed` is false and all arrive at 0."""

    requests: tuple[Request, ...]
    timed: bool

    @property
    def lengths(self) -> list[tuple[int, int]]:
        """(prompt tokens, output tokens) of each."""
        return [(request.prompt_tokens, request.output_tokens) for request in self.requests]


Row = tuple[float | None, int, int, Sequence[int], int]
"""Seconds or None, prompt tokens, output tokens, hash ids, priority."""


def read_request_trace(path: Path) -> RequestTrace:
    """The requests in a trace file."""
    text = _text(path)
    begin = text.lstrip()[:1]
    if begin == "{":
        rows = list(_json_rows(path, text))
    elif begin:
        rows = list(_csv_rows(path, text))
    else:
        raise _refuse(path, "an empty file")
    if not rows:
        raise _refuse(path, "a trace without requests")
    timed = rows[0][0] is not None
    if timed:
        _check_order(path, rows)
    first = rows[0][0] or 0.0
    return RequestTrace(requests=tuple(_request(index, row, first) for index, row in enumerate(rows)), timed=timed)


def _request(index: int, row: Row, first: float) -> Request:
    at, prompt, output, hashes, priority = row
    return Request(
        id=f"r{index}",
        arrival_s=0.0 if at is None else at - first,
        prompt=_mooncake(prompt, hashes) if hashes else (Piece(seed=2 * index, tokens=prompt),),
        output_tokens=output,
        max_new_tokens=output,
        priority=priority,
        output_seed=2 * index + 1,
    )


def _mooncake(tokens: int, hashes: Sequence[int]) -> tuple[Piece, ...]:
    """One piece per hash id: equal ids after equal ids are equal text. Seeds below 0 keep clear of answers."""
    pieces = []
    for place, number in enumerate(hashes):
        left = tokens - place * MOONCAKE_BLOCK
        if left > 0:
            pieces.append(Piece(seed=-number - 1, tokens=min(left, MOONCAKE_BLOCK)))
    missing = tokens - len(hashes) * MOONCAKE_BLOCK
    if missing > 0:
        pieces[-1] = Piece(seed=pieces[-1].seed, tokens=pieces[-1].tokens + missing)
    return tuple(pieces)


def _check_order(path: Path, rows: Sequence[Row]) -> None:
    before = -math.inf
    for number, (at, *_) in enumerate(rows, start=1):
        if at is None or at < before:
            given = "no time" if at is None else f"a time {before - at:g} s before that of the row before it"
            raise _refuse(path, f"request {number} with {given}", "times that never go back", "sort the file by time")
        before = at


# ---- text


def _text(path: Path) -> str:
    source, chunks, size = Source(path), [], 0
    for chunk in source.chunks():
        size += len(chunk)
        if size > BIGGEST:
            raise _refuse(path, f"more than {BIGGEST:,} bytes", "a smaller trace", "cut it, or sample its requests")
        chunks.append(chunk)
    if source.damage:
        raise _refuse(path, source.damage)
    try:
        return b"".join(chunks).decode("utf-8-sig")
    except UnicodeDecodeError:
        raise _refuse(path, "bytes that are not UTF-8 text") from None


def _csv_rows(path: Path, text: str) -> Iterator[Row]:
    try:
        table = csv.DictReader(StringIO(text), strict=True)
        names = [name.strip() for name in table.fieldnames or ()]
        table.fieldnames = names
        prompt, output = _column(names, PROMPT_COLUMNS), _column(names, OUTPUT_COLUMNS)
        if not prompt or not output:
            raise _refuse(path, f"the columns {', '.join(names)[:120]}")
        time = _column(names, TIME_COLUMNS)
        for number, row in enumerate(table, start=1):
            _count(path, number)
            at = None if not time else _time(path, number, row[time])
            tokens = _tokens(path, number, row[prompt], prompt), _tokens(path, number, row[output], output)
            yield at, *tokens, (), _priority(path, number, row.get(PRIORITY))
    except csv.Error as wrong:
        raise _refuse(path, f"a table that cannot be read ({wrong})") from None


def _column(names: Sequence[str], known: Sequence[str]) -> str:
    return next((name for name in known if name in names), "")


def _json_rows(path: Path, text: str) -> Iterator[Row]:
    try:
        head, _, rest = text.lstrip().partition("\n")
        first = json.loads(text) if not rest.strip() or not head.rstrip().endswith("}") else None
        if isinstance(first, dict) and "input_lens" in first:
            yield from _bench_rows(path, first)
            return
        for number, line in enumerate((line for line in text.splitlines() if line.strip()), start=1):
            _count(path, number)
            yield _mooncake_row(path, number, json.loads(line))
    except (ValueError, RecursionError) as wrong:
        raise _refuse(path, f"text that is not JSON ({str(wrong)[:80]})") from None


def _mooncake_row(path: Path, number: int, row: Any) -> Row:
    if not isinstance(row, Mapping) or not {"timestamp", "input_length", "output_length"} <= row.keys():
        raise _refuse(path, f"request {number} without timestamp, input_length and output_length")
    hashes = row.get("hash_ids") or ()
    if not isinstance(hashes, list | tuple) or not all(type(one) is int and one >= 0 for one in hashes):
        raise _refuse(path, f"request {number} with hash_ids that are not whole numbers")
    at = _time(path, number, row["timestamp"]) * MILLI
    prompt = _tokens(path, number, row["input_length"], "input_length")
    output = _tokens(path, number, row["output_length"], "output_length")
    return at, prompt, output, hashes, _priority(path, number, row.get(PRIORITY))


def _bench_rows(path: Path, result: JsonMapping) -> Iterator[Row]:
    prompts, outputs, starts = (result.get(name) for name in ("input_lens", "output_lens", "start_times"))
    if not isinstance(prompts, list) or not isinstance(outputs, list) or len(prompts) != len(outputs):
        raise _refuse(path, "a vllm bench result without input_lens and output_lens", todo="use --save-detailed")
    if starts is not None and (not isinstance(starts, list) or len(starts) != len(prompts)):
        raise _refuse(path, "start_times that do not match input_lens")
    _count(path, len(prompts))
    begins = [_time(path, number, one) for number, one in enumerate(starts, start=1)] if starts else None
    order = sorted(range(len(prompts)), key=begins.__getitem__) if begins else range(len(prompts))
    for at in order:
        if outputs[at] == 0:
            continue  # a request that failed
        prompt = _tokens(path, at + 1, prompts[at], "input_lens")
        yield begins[at] if begins else None, prompt, _tokens(path, at + 1, outputs[at], "output_lens"), (), 0


# ---- checked values


def _count(path: Path, number: int) -> None:
    if number > MOST_REQUESTS:
        raise _refuse(
            path, f"more than {MOST_REQUESTS:,} requests", "a smaller trace", "cut it, or sample its requests"
        )


def _tokens(path: Path, number: int, value: object, name: str) -> int:
    try:
        tokens = int(value) if isinstance(value, str | int) and not isinstance(value, bool) else -1
    except ValueError:
        tokens = -1
    if not 1 <= tokens <= MOST_TOKENS:
        given = f"request {number} with {name} {str(value)[:40]!r}"
        raise _refuse(path, given, f"a whole number from 1 to {MOST_TOKENS:,}", "leave such requests out")
    return tokens


def _priority(path: Path, number: int, value: object) -> int:
    try:
        found = int(value or 0) if isinstance(value, str | int | None) else MOST_PRIORITY + 1
    except ValueError:
        found = MOST_PRIORITY + 1
    if not -MOST_PRIORITY <= found <= MOST_PRIORITY:
        raise _refuse(path, f"request {number} with the priority {str(value)[:40]!r}", "a whole number")
    return found


def _time(path: Path, number: int, value: object) -> float:
    at = math.nan
    try:
        at = float(value) if isinstance(value, int | float | str) and not isinstance(value, bool) else math.nan
    except OverflowError:
        at = math.inf
    except ValueError:
        with suppress(ValueError):
            when = datetime.fromisoformat(str(value).strip())
            at = (when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp()
    if not 0 <= at < math.inf:
        given = f"request {number} with the time {str(value)[:40]!r}"
        raise _refuse(path, given, "seconds from 0 on, or a date and time")
    return at


def _refuse(path: Path, given: str, expected: str = "", todo: str = "") -> InputError:
    known = "a trace of requests: Azure or length CSV, Mooncake lines, or a detailed `vllm bench serve` result"
    return InputError(Problem(path="", given=given, expected=expected or known, todo=todo, where=str(path)))
