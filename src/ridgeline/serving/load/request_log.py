"""Turn a log of measured requests into requests and the times they took.

A log is JSON lines, plain or gzip, one object a request: `request_id`, `input_toks`, `output_toks`, `queued_ts`,
`first_token_ts`, `last_token_ts` (seconds of one clock). The engine's knobs stand beside it in NAME.meta.json
(`vllm_version`, `engine_kwargs`), where there is one.
"""

from __future__ import annotations

import gzip
import json
import math
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from ridgeline.core.arrays import Array
from ridgeline.core.documents import JsonMapping
from ridgeline.core.errors import InputError, Problem
from ridgeline.core.records import dataclass
from ridgeline.core.units import BINARY
from ridgeline.serving.load.trace_files import MOST_REQUESTS, MOST_TOKENS
from ridgeline.serving.request import Request, plain_request
from ridgeline.trace import Source

NEEDED = ("input_toks", "output_toks", "queued_ts", "first_token_ts", "last_token_ts")
BIGGEST = int(256 * BINARY["Mi"])  # bytes of text
FIRST_LINE = int(64 * BINARY["Ki"])


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
        with path.open("rb") as file:
            head = file.read(FIRST_LINE)
        if head[:2] == b"\x1f\x8b":
            with gzip.open(path) as file:
                head = file.read(FIRST_LINE)
        line = json.loads(head.split(b"\n", 1)[0])
    except (OSError, ValueError, EOFError, RecursionError):
        return False
    return isinstance(line, Mapping) and set(NEEDED) <= line.keys()


def read_request_log(path: Path) -> RequestLog:
    """The requests of a log, with the knobs that stand beside it."""
    rows = [_row(path, number, line) for number, line in enumerate(_lines(path), start=1)]
    if not rows:
        raise _refuse(path, "a log without requests")
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


def _lines(path: Path) -> list[str]:
    source, chunks, size = Source(path), [], 0
    for chunk in source.chunks():
        size += len(chunk)
        if size > BIGGEST:
            raise _refuse(path, f"more than {BIGGEST:,} bytes")
        chunks.append(chunk)
    if source.damage:
        raise _refuse(path, source.damage)
    lines = [line for line in b"".join(chunks).decode("utf-8", "replace").splitlines() if line.strip()]
    if len(lines) > MOST_REQUESTS:
        raise _refuse(path, f"more than {MOST_REQUESTS:,} requests")
    return lines


def _row(path: Path, number: int, line: str) -> dict[str, float]:
    try:
        row = json.loads(line)
        found = {key: float(row[key]) for key in NEEDED}
    except (ValueError, TypeError, KeyError, RecursionError):
        raise _refuse(path, f"line {number} that is no measured request") from None
    finite = all(map(math.isfinite, found.values()))
    tokens = all(1 <= found[key] <= MOST_TOKENS for key in ("input_toks", "output_toks"))
    if not finite or not tokens or not found["queued_ts"] < found["first_token_ts"] <= found["last_token_ts"]:
        raise _refuse(path, f"line {number} with tokens below 1 or times that go back")
    return found


def _meta(path: Path) -> tuple[str, JsonMapping]:
    """Version and knobs from the file beside the log."""
    stem = path.name.removesuffix(".gz").removesuffix(".jsonl")
    for name in (f"{stem}.meta.json.gz", f"{stem}.meta.json"):
        beside = path.with_name(name)
        if beside.exists() and beside.stat().st_size < FIRST_LINE:
            text = b"".join(Source(beside).chunks())
            try:
                told = json.loads(text)
            except (ValueError, RecursionError):
                raise _refuse(beside, "text that is not JSON") from None
            if isinstance(told, Mapping) and isinstance(told.get("engine_kwargs"), Mapping):
                return str(told.get("vllm_version", ""))[:40], told["engine_kwargs"]
    return "", {}


def _int_knob(knobs: JsonMapping, name: str, usual: int) -> int:
    value = knobs.get(name)
    return value if type(value) is int and 1 <= value <= MOST_TOKENS else usual


def _refuse(path: Path, given: str) -> InputError:
    expected = f"JSON lines with {', '.join(NEEDED)}"
    return InputError(Problem(path="", given=given, expected=expected, where=str(path)))
