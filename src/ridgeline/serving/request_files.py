"""Turn a trace file, or a log of measured requests, into requests; recognised by its content, plain or gzip.

    Azure            CSV: TIMESTAMP, ContextTokens, GeneratedTokens
    lengths          CSV: two columns of tokens (ShareGPT-like), with or without a time
    Mooncake         JSON lines: timestamp (ms), input_length, output_length, hash_ids (blocks of 512 tokens)
    vllm bench       the JSON result of `vllm bench serve --save-detailed`: input_lens, output_lens, start_times
    log              JSON lines: request_id, input_toks, output_toks, queued_ts, first_token_ts, last_token_ts (seconds
                     of one clock); the engine's knobs stand beside it in NAME.meta.json (vllm_version, engine_kwargs)

A column or key `priority` is what the scheduler is told of a request: vLLM serves small numbers first, SGLang large.
Input is hostile: times that go back, are negative or no numbers, lengths of nothing or of millions, and files without
requests are refused with the row they stand in. Times are seconds since the first request.
"""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from io import StringIO
from pathlib import Path

import numpy as np

from ridgeline.core.arrays import Array
from ridgeline.core.documents import JsonMapping, JsonValue
from ridgeline.core.errors import InputError, Problem
from ridgeline.core.records import dataclass
from ridgeline.core.units import BINARY
from ridgeline.serving.request import Piece, Request, plain_request
from ridgeline.trace import TraceSource

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
NEEDED = ("input_toks", "output_toks", "queued_ts", "first_token_ts", "last_token_ts")
FIRST_LINE = int(64 * BINARY["Ki"])
TRACE = "a trace of requests: Azure or length CSV, Mooncake lines, or a detailed `vllm bench serve` result"
LOG = f"JSON lines with {', '.join(NEEDED)}"


def read_content(
    path: Path, most: int, expected: str, todo: str = "", *, too_large: tuple[str, str] = ("", "")
) -> bytes:
    """All bytes of a file, inflated; `too_large` is what to expect and do where there are more than `most`."""
    source = TraceSource(path)
    content = source.read_all(most, too_large[0] or expected, too_large[1] or todo)
    if source.damage:
        raise refuse_file(path, source.damage, expected, todo)
    return content


def json_documents(
    path: Path, expected: str, todo: str = "", parse: Callable[[str], JsonValue] = json.loads
) -> list[JsonValue]:
    """The JSON value of a file, or of each of its lines."""
    content = read_content(path, BIGGEST, expected, todo)
    try:
        text = content.decode("utf-8")
        try:
            return [parse(text)]
        except json.JSONDecodeError:
            return [parse(line) for line in text.splitlines() if line.strip()]
    except (ValueError, RecursionError) as wrong:
        raise refuse_file(path, f"text that is not JSON ({str(wrong)[:80]})", expected, todo) from None


def refuse_file(path: Path, given: str, expected: str, todo: str = "") -> InputError:
    """The error of a file that cannot be used."""
    return InputError(Problem(path="", given=given, expected=expected, todo=todo, where=str(path)))


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
    smaller = ("a smaller trace", "cut it, or sample its requests")
    try:
        text = read_content(path, BIGGEST, TRACE, too_large=smaller).decode("utf-8-sig")
    except UnicodeDecodeError:
        raise _refuse(path, "bytes that are not UTF-8 text") from None
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
    arrival_s = 0.0 if at is None else at - first
    request = plain_request(index=index, arrival_s=arrival_s, prompt_tokens=prompt, output_tokens=output)
    if not hashes and not priority:
        return request
    return replace(request, prompt=_mooncake(prompt, hashes) if hashes else request.prompt, priority=priority)


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


def _csv_rows(path: Path, text: str) -> Iterator[Row]:
    try:
        table = csv.DictReader(StringIO(text), strict=True)
        names = [name.strip() for name in table.fieldnames or ()]
        table.fieldnames = names
        prompt, output, time = (
            next((name for name in known if name in names), "")
            for known in (PROMPT_COLUMNS, OUTPUT_COLUMNS, TIME_COLUMNS)
        )
        if not prompt or not output:
            raise _refuse(path, f"the columns {', '.join(names)[:120]}")
        for number, row in enumerate(table, start=1):
            _count(path, number)
            at = None if not time else _time(path, number, row[time])
            tokens = _tokens(path, number, row[prompt], prompt), _tokens(path, number, row[output], output)
            yield at, *tokens, (), _priority(path, number, row.get(PRIORITY))
    except csv.Error as wrong:
        raise _refuse(path, f"a table that cannot be read ({wrong})") from None


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


def _mooncake_row(path: Path, number: int, row: object) -> Row:
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


def _refuse(path: Path, given: str, expected: str = TRACE, todo: str = "") -> InputError:
    return refuse_file(path, given, expected, todo)


# ---- logs of measured requests


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestLog:
    """Measured requests in the order they were queued; times in seconds since the first.

    knobs   arguments of the engine by their own names; empty where nobody wrote them down
    """

    name: str
    requests: tuple[Request, ...]
    ttft_s: Array
    e2e_s: Array
    version: str
    knobs: JsonMapping

    @property
    def ranks(self) -> int:
        """Data-parallel ranks, which step together where experts are shared."""
        return _int_knob(self.knobs, "data_parallel_size", 1)

    @property
    def max_num_seqs(self) -> int:
        return _int_knob(self.knobs, "max_num_seqs", 128)

    @property
    def max_num_batched_tokens(self) -> int:
        return _int_knob(self.knobs, "max_num_batched_tokens", 2048)


def is_request_log(path: Path) -> bool:
    """Whether the first line of a file is a measured request."""
    try:
        line = json.loads(TraceSource(path).head(FIRST_LINE).split(b"\n", 1)[0])
    except (InputError, ValueError, RecursionError):
        return False
    return isinstance(line, Mapping) and set(NEEDED) <= line.keys()


def read_request_log(path: Path) -> RequestLog:
    """The requests of a log, with the knobs that stand beside it."""
    text = read_content(path, BIGGEST // 2, LOG).decode("utf-8", "replace")
    lines = [line for line in text.splitlines() if line.strip()]
    if len(lines) > MOST_REQUESTS:
        raise refuse_file(path, f"more than {MOST_REQUESTS:,} requests", LOG)
    rows = [_row(path, number, line) for number, line in enumerate(lines, start=1)]
    if not rows:
        raise refuse_file(path, "a log without requests", LOG)
    rows.sort(key=lambda row: row["queued_ts"])
    begin = rows[0]["queued_ts"]
    version, knobs = _meta(path)
    return RequestLog(
        name=path.name,
        requests=tuple(
            plain_request(
                index=index,
                arrival_s=row["queued_ts"] - begin,
                prompt_tokens=int(row["input_toks"]),
                output_tokens=int(row["output_toks"]),
            )
            for index, row in enumerate(rows)
        ),
        ttft_s=np.array([row["first_token_ts"] - row["queued_ts"] for row in rows]),
        e2e_s=np.array([row["last_token_ts"] - row["queued_ts"] for row in rows]),
        version=version,
        knobs=knobs,
    )


def _row(path: Path, number: int, line: str) -> dict[str, float]:
    try:
        row = json.loads(line)
        found = {key: float(row[key]) for key in NEEDED}
    except (ValueError, TypeError, KeyError, RecursionError):
        raise refuse_file(path, f"line {number} that is no measured request", LOG) from None
    finite = all(map(math.isfinite, found.values()))
    tokens = all(1 <= found[key] <= MOST_TOKENS for key in ("input_toks", "output_toks"))
    if not finite or not tokens or not found["queued_ts"] < found["first_token_ts"] <= found["last_token_ts"]:
        raise refuse_file(path, f"line {number} with tokens below 1 or times that go back", LOG)
    return found


def _meta(path: Path) -> tuple[str, JsonMapping]:
    """Version and knobs from the file beside the log."""
    stem = path.name.removesuffix(".gz").removesuffix(".jsonl")
    for name in (f"{stem}.meta.json.gz", f"{stem}.meta.json"):
        beside = path.with_name(name)
        if beside.exists() and beside.stat().st_size < FIRST_LINE:
            text = b"".join(TraceSource(beside).chunks())
            try:
                told = json.loads(text)
            except (ValueError, RecursionError):
                raise refuse_file(beside, "text that is not JSON", LOG) from None
            if isinstance(told, Mapping) and isinstance(told.get("engine_kwargs"), Mapping):
                return str(told.get("vllm_version", ""))[:40], told["engine_kwargs"]
    return "", {}


def _int_knob(knobs: JsonMapping, name: str, usual: int) -> int:
    value = knobs.get(name)
    return value if type(value) is int and 1 <= value <= MOST_TOKENS else usual
