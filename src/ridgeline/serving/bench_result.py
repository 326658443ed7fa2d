"""Turn the detailed result of a load generator into what each request measured, recognised by its keys.

    vllm bench serve --save-result --save-detailed    one JSON object: input_lens, output_lens, ttfts, itls, start_times
    sglang.bench_serving --output-details             JSON lines, one object for each run, without start_times

Input is hostile: lists of unequal length, negative or endless times and absurd lengths are refused with the request
they belong to. A request that failed (an error, or no token) is counted and left out.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np

from ridgeline.core.arrays import Array
from ridgeline.core.errors import InputError, Problem
from ridgeline.core.records import dataclass
from ridgeline.core.units import BINARY
from ridgeline.trace.read.source import Source

BIGGEST = int(512 * BINARY["Mi"])  # bytes of JSON
MOST_REQUESTS = 1_000_000
MOST_TOKENS = int(16 * BINARY["Mi"])  # of one prompt or answer
MOST_RUNS = 64  # in one file
LONGEST_S = 1e7
KEYS = ("ttfts", "itls", "output_lens")
HEAD = 4 * int(BINARY["Ki"])


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchRun:
    """One run of a load generator, by request in the order sent; seconds.

    sent_s        since the first request was sent; None where the file does not tell
    pauses        between the chunks of an answer, by request
    request_rate  asked for, per second; infinite: all at once
    max_concurrency  the client's own limit; None: none
    """

    source: str
    tool: str
    model: str
    request_rate: float
    max_concurrency: int | None
    failed: int
    duration_s: float
    sent_s: Array | None
    ttft_s: Array
    e2e_s: Array
    prompt_tokens: Array
    output_tokens: Array
    pauses: tuple[Array, ...]

    @property
    def finite_rate(self) -> float | None:
        """Requests a second that were asked for; None where all were sent at once."""
        return self.request_rate if isfinite(self.request_rate) else None

    @property
    def requests(self) -> int:
        """Requests that were answered."""
        return len(self.ttft_s)

    @property
    def tpot_s(self) -> Array:
        """(E2E - TTFT) / (output tokens - 1) of each request with more than one token."""
        several = self.output_tokens > 1
        return (self.e2e_s - self.ttft_s)[several] / (self.output_tokens[several] - 1)


def is_bench_result(path: Path) -> bool:
    """Whether a file looks like a load generator's detailed result: an object that names its metrics early on."""
    if not path.is_file():
        return False
    head = Source(path).head(HEAD).lstrip()
    known = (b'"request_throughput"', b'"input_lens"', b'"total_input_tokens"', b'"request_rate"')
    return head.startswith(b"{") and any(key in head for key in known)


def read_bench_runs(path: Path) -> tuple[BenchRun, ...]:
    """Every run that a file holds."""
    documents = _documents(path)
    if not 1 <= len(documents) <= MOST_RUNS:
        raise _refuse(path, f"{len(documents)} runs", f"1 to {MOST_RUNS} runs")
    several = len(documents) > 1
    return tuple(
        _run(path, document, f"{path.name}:{number}" if several else path.name)
        for number, document in enumerate(documents, start=1)
    )


def _documents(path: Path) -> list[Any]:
    source, size, chunks = Source(path), 0, []
    for chunk in source.chunks():
        size += len(chunk)
        if size > BIGGEST:
            raise _refuse(path, f"more than {BIGGEST:,} bytes")
        chunks.append(chunk)
    if source.damage:
        raise _refuse(path, source.damage)
    try:
        text = b"".join(chunks).decode("utf-8")
        try:
            return [json.loads(text)]
        except json.JSONDecodeError:
            return [json.loads(line) for line in text.splitlines() if line.strip()]
    except (ValueError, RecursionError) as wrong:
        raise _refuse(path, f"text that is not JSON ({str(wrong)[:80]})") from None


def _run(path: Path, document: Any, source: str) -> BenchRun:
    if not isinstance(document, Mapping) or not all(isinstance(document.get(key), list) for key in KEYS):
        todo = "measure with --save-result --save-detailed (vLLM) or --output-details (SGLang)"
        raise _refuse(path, "a result without the times of its requests", todo=todo)
    columns = {key: document[key] for key in (*KEYS, "input_lens") if isinstance(document.get(key), list)}
    count = len(columns["ttfts"])
    if count > MOST_REQUESTS or any(len(column) != count for column in columns.values()):
        raise _refuse(path, "lists of different lengths", f"the same number of requests in {', '.join(columns)}")
    errors = _optional(path, document, "errors", count)
    starts = _optional(path, document, "start_times", count)
    kept = [at for at in range(count) if not (errors and errors[at]) and _positive(columns["output_lens"][at])]
    if not kept:
        raise _refuse(path, "a run in which no request was answered")
    if starts is not None:
        starts = [_seconds(path, at, "start_times", value) for at, value in enumerate(starts)]
        kept.sort(key=lambda at: starts[at])
    return _columns(path, document, columns, kept, starts, source)


def _columns(
    path: Path, document: Mapping[str, Any], columns: Mapping[str, list[Any]], kept: Sequence[int],
    starts: list[float] | None, source: str,
) -> BenchRun:  # fmt: skip
    pauses = tuple(_pauses(path, at, columns["itls"][at]) for at in kept)
    ttft = np.array([_seconds(path, at, "ttfts", columns["ttfts"][at]) for at in kept])
    latencies = _optional(path, document, "latencies", len(columns["ttfts"]))
    if latencies is None:
        e2e = ttft + np.array([float(part.sum()) for part in pauses])
    else:
        e2e = np.array([_seconds(path, at, "latencies", latencies[at]) for at in kept])
    sent = None if starts is None else np.array([starts[at] for at in kept])
    sent = None if sent is None else sent - sent[0]
    prompts = columns.get("input_lens") or [1] * len(columns["ttfts"])
    return BenchRun(
        source=source,
        tool="vllm bench serve" if "endpoint_type" in document else "sglang.bench_serving",
        model=str(document.get("model_id") or _server(document).get("model_path") or "")[:200],
        request_rate=_rate(document.get("request_rate")),
        max_concurrency=_count(document.get("max_concurrency")),
        failed=len(columns["ttfts"]) - len(kept),
        duration_s=_seconds(path, -1, "duration", document.get("duration", 0.0)),
        sent_s=sent,
        ttft_s=ttft,
        e2e_s=np.maximum(e2e, ttft),
        prompt_tokens=np.array([_tokens(path, at, "input_lens", prompts[at]) for at in kept]),
        output_tokens=np.array([_tokens(path, at, "output_lens", columns["output_lens"][at]) for at in kept]),
        pauses=pauses,
    )


def _server(document: Mapping[str, Any]) -> Mapping[str, Any]:
    found = document.get("server_info")
    return found if isinstance(found, Mapping) else {}


def _optional(path: Path, document: Mapping[str, Any], key: str, count: int) -> list[Any] | None:
    found = document.get(key)
    if found is None:
        return None
    if not isinstance(found, list) or len(found) != count:
        raise _refuse(path, f"{key} of another length", f"{count} requests in {key}")
    return found


def _positive(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _tokens(path: Path, at: int, key: str, value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= MOST_TOKENS:
        raise _refuse(path, f"{key}[{at}] {str(value)[:40]!r}", f"a whole number from 1 to {MOST_TOKENS:,}")
    return value


def _seconds(path: Path, at: int, key: str, value: object) -> float:
    known = isinstance(value, int | float) and not isinstance(value, bool)
    number = float(value) if known else math.nan  # type: ignore[arg-type]
    if not 0 <= number < LONGEST_S:
        raise _refuse(path, f"{key}[{at}] {str(value)[:40]!r}" if at >= 0 else f"{key} {str(value)[:40]!r}", "seconds")
    return number


def _pauses(path: Path, at: int, values: object) -> Array:
    if not isinstance(values, list) or len(values) > MOST_TOKENS:
        raise _refuse(path, f"itls[{at}] {str(values)[:40]!r}", "a list of seconds")
    try:
        found = np.array(values, dtype=float).reshape(-1)
    except (TypeError, ValueError):
        found = np.array([math.nan])
    if not (np.isfinite(found).all() and (found >= 0).all()):
        raise _refuse(path, f"itls[{at}] with something else than seconds", "a list of seconds")
    return found


def _rate(value: object) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool) and value > 0:
        return float(value)
    return math.inf


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def _refuse(path: Path, given: str, expected: str = "", todo: str = "") -> InputError:
    known = "a detailed result of `vllm bench serve` or `sglang.bench_serving`"
    return InputError(Problem(path="", given=given, expected=expected or known, todo=todo, where=str(path)))
