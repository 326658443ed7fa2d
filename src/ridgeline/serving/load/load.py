"""Turn a serve workload into its requests: read or generated, with lengths, shared prefixes and what clients allow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from ridgeline.core.errors import InputError, Problem
from ridgeline.plan.serve import (
    USUAL_REQUESTS,
    ClosedLoop,
    Constant,
    Gamma,
    OnOff,
    Poisson,
    Serve,
    Sessions,
    TraceFile,
)
from ridgeline.serving.load.arrivals import (
    Conversation,
    Lengths,
    at_times,
    closed_loop,
    gamma_times,
    on_off_times,
    sessions,
)
from ridgeline.serving.load.trace_files import read_request_trace
from ridgeline.serving.request import Piece, Request

SHARED_SEED = -(1 << 40)  # the text that prompts of a load begin with


def load_of(work: Serve) -> tuple[Request, ...]:
    """The requests of a workload; the same seed gives the same ones."""
    made = _trace_requests(work, work.arrivals) if isinstance(work.arrivals, TraceFile) else _generate_requests(work)
    if work.prefix:
        made = [_share_prefix(request, work.prefix) for request in made]
    if work.max_new_tokens is not None:
        allowed = work.max_new_tokens
        made = [replace(request, max_new_tokens=max(allowed, request.output_tokens)) for request in made]
    return tuple(made)


def _trace_requests(work: Serve, source: TraceFile) -> list[Request]:
    trace = read_request_trace(Path(source.file))
    kept = list(trace.requests[: work.requests])
    if not trace.timed:
        if source.rate is None:
            given = f"{source.file}, which holds lengths without times"
            todo = 'set arrivals.rate, or use lengths = FILE with arrivals = { kind = "poisson", ... }'
            raise InputError(Problem(path="workload.arrivals", given=given, expected="a rate too", todo=todo))
        times = gamma_times(len(kept), source.rate, seed=work.seed)
        return [replace(request, arrival_s=at) for request, at in zip(kept, times, strict=True)]
    if source.rate is None or len(kept) < 2 or kept[-1].arrival_s <= 0:
        return kept
    stretch = (len(kept) - 1) / source.rate / kept[-1].arrival_s
    return [replace(request, arrival_s=request.arrival_s * stretch) for request in kept]


def _generate_requests(work: Serve) -> list[Request]:
    count = work.requests or USUAL_REQUESTS
    lengths = _lengths(work, count)
    match work.arrivals:
        case Poisson(rate=rate):
            return at_times(gamma_times(count, rate, seed=work.seed), lengths)
        case Gamma(rate=rate, burstiness=burstiness):
            return at_times(gamma_times(count, rate, burstiness=burstiness, seed=work.seed), lengths)
        case Constant(rate=rate):
            return at_times([place / rate for place in range(count)], lengths)
        case OnOff(rate=rate, on=on, off=off):
            return at_times(on_off_times(count, rate, on_s=on, off_s=off, seed=work.seed), lengths)
        case ClosedLoop(concurrency=users, think=think):
            return closed_loop(count, lengths, users=users, think_s=think, seed=work.seed)
        case Sessions():
            return _conversations(work.arrivals, count, lengths, work.seed)
        case TraceFile():
            raise AssertionError("a trace is read")


def _conversations(asked: Sessions, count: int, lengths: Lengths, seed: int) -> list[Request]:
    question, answer = lengths[0]
    talk = Conversation(
        system_tokens=asked.system_tokens,
        turns=asked.turns,
        question_tokens=question,
        answer_tokens=answer,
        think_s=asked.think,
    )
    times = gamma_times(-(-count // asked.turns), asked.rate, seed=seed)
    return sessions(times, talk)[:count]


def _lengths(work: Serve, count: int) -> Sequence[tuple[int, int]]:
    if work.lengths:
        return read_request_trace(Path(work.lengths)).lengths
    assert work.isl is not None  # the workload's own check
    assert work.osl is not None
    if not work.range_ratio:
        return [(work.isl, work.osl)]
    dice = np.random.default_rng((work.seed, 1))
    columns = []
    for middle in (work.isl, work.osl):
        low, high = max(round(middle * (1 - work.range_ratio)), 1), round(middle * (1 + work.range_ratio))
        columns.append(dice.integers(low, high, endpoint=True, size=count).tolist())
    return list(zip(*columns, strict=True))


def _share_prefix(request: Request, tokens: int) -> Request:
    """The prompt with its first tokens those of everybody; at least one token stays its own."""
    first, *rest = request.prompt
    shared = min(tokens, request.prompt_tokens - 1)
    own: list[Piece] = []
    left = shared
    for piece in (first, *rest):
        cut = min(left, piece.tokens)
        left -= cut
        if piece.tokens > cut:
            own.append(Piece(seed=piece.seed, tokens=piece.tokens - cut, start=piece.start + cut))
    return replace(request, prompt=(Piece(seed=SHARED_SEED, tokens=shared), *own)) if shared else request
