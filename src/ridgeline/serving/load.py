"""Turn a serve workload into its requests: read or generated, with lengths, shared prefixes and what clients allow.

Who describes a load generates: when requests come, how long they are, what they share. All of it is seeded.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import cycle
from pathlib import Path

import numpy as np

from ridgeline.core.errors import InputError, Problem
from ridgeline.core.units import YEAR
from ridgeline.plan.workload import (
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
from ridgeline.serving.request import Piece, Request, plain_request
from ridgeline.serving.request_files import read_request_trace

SHARED_SEED = -(1 << 40)  # the text that prompts of a load begin with


def load_of(work: Serve) -> tuple[Request, ...]:
    """The requests of a workload; the same seed gives the same ones."""
    with np.errstate(all="ignore"):  # times that overflow are refused right below
        made = (
            _trace_requests(work, work.arrivals) if isinstance(work.arrivals, TraceFile) else _generate_requests(work)
        )
    _refuse_long_span(work, max((request.arrival_s for request in made), key=lambda at: (at != at, at), default=0.0))
    if work.prefix:
        made = [_share_prefix(request, work.prefix) for request in made]
    if work.max_new_tokens is not None:
        allowed = work.max_new_tokens
        made = [replace(request, max_new_tokens=max(allowed, request.output_tokens)) for request in made]
    return tuple(made)


def _refuse_long_span(work: Serve, last_s: float) -> None:
    """Refuse requests of which the last comes (or a user thinks) beyond a year of simulated time."""
    if last_s <= YEAR:
        return
    rate = None if isinstance(work.arrivals, ClosedLoop) else work.arrivals.rate
    years = f"{last_s / YEAR:.3g} years" if math.isfinite(last_s) else "more years than a clock counts"
    span = f"{'a think time' if rate is None else f'{rate:g} requests/s'}, which spans {years}"
    todo = "raise the rate, shorten the silence, or ask for fewer requests"
    raise InputError(
        Problem(path="workload.arrivals", given=span, expected="a year of simulated time at most", todo=todo)
    )


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
            times = gamma_times(-(-count // work.arrivals.turns), work.arrivals.rate, seed=work.seed)
            return sessions(times, work.arrivals, *lengths[0])[:count]
        case TraceFile():
            raise AssertionError("a trace is read")


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
    shared = min(tokens, request.prompt_tokens - 1)
    own: list[Piece] = []
    left = shared
    for piece in request.prompt:
        cut = min(left, piece.tokens)
        left -= cut
        if piece.tokens > cut:
            own.append(Piece(seed=piece.seed, tokens=piece.tokens - cut, start=piece.start + cut))
    return replace(request, prompt=(Piece(seed=SHARED_SEED, tokens=shared), *own)) if shared else request


Lengths = Sequence[tuple[int, int]]
"""(prompt tokens, output tokens) of requests; used again from the first when there are more requests."""


def gamma_times(count: int, rate: float, *, burstiness: float = 1.0, seed: int = 0) -> list[float]:
    """Arrival times with Gamma gaps of shape `burstiness`, rescaled so that they take count / rate seconds in all:
    an open loop as `vllm bench serve` sends; burstiness 1 is Poisson, less is burstier."""
    _positive(count=count, rate=rate, burstiness=burstiness)
    gaps = np.random.default_rng(seed).gamma(burstiness, 1.0 / (rate * burstiness), count)
    times = np.cumsum(gaps)
    return list(map(float, times * (count / rate / times[-1])))


def on_off_times(count: int, rate: float, *, on_s: float, off_s: float, seed: int = 0) -> list[float]:
    """Poisson arrivals of `rate` during windows of `on_s`, none in the `off_s` between them."""
    _positive(count=count, rate=rate, on_s=on_s)
    _not_negative(off_s=off_s)
    busy = np.cumsum(np.random.default_rng(seed).exponential(1.0 / rate, count))
    return list(map(float, busy + np.floor(busy / on_s) * off_s))


def at_times(times: Sequence[float], lengths: Lengths) -> list[Request]:
    """Requests that share no token, at these times."""
    if not lengths:
        raise _refuse_value("lengths", "none", "at least one pair of prompt and output tokens")
    for prompt, output in lengths:
        if prompt < 1 or output < 1:
            raise _refuse_value("lengths", f"{prompt} and {output} tokens", "at least one token each")
    return [
        plain_request(index=index, arrival_s=at, prompt_tokens=prompt, output_tokens=output)
        for index, (at, (prompt, output)) in enumerate(zip(times, cycle(lengths), strict=False))
    ]


def closed_loop(count: int, lengths: Lengths, *, users: int, think_s: float = 0.0, seed: int = 0) -> list[Request]:
    """`count` requests of `users` who each wait for their answer, then think (exponential, mean `think_s`)."""
    _positive(count=count, users=users)
    _not_negative(think_s=think_s)
    thoughts = np.random.default_rng(seed).exponential(think_s, count) if think_s else np.zeros(count)
    requests = at_times([0.0] * users + list(map(float, thoughts[users:])), lengths)
    return [
        replace(request, after=f"r{index - users}") if index >= users else request
        for index, request in enumerate(requests[:count])
    ]


def sessions(times: Sequence[float], talk: Sessions, question_tokens: int, answer_tokens: int) -> list[Request]:
    """One conversation from each of these times on; a turn's prompt holds the system prompt and all turns before."""
    _positive(turns=talk.turns, question_tokens=question_tokens, answer_tokens=answer_tokens)
    requests: list[Request] = []
    for number, at in enumerate(times):
        history: tuple[Piece, ...] = (Piece(seed=0, tokens=talk.system_tokens),)
        for turn in range(talk.turns):
            seed = 2 * (number * talk.turns + turn) + 1
            prompt = (*history, Piece(seed=seed, tokens=question_tokens))
            request = Request(
                id=f"s{number}t{turn}",
                arrival_s=talk.think if turn else at,
                prompt=prompt,
                output_tokens=answer_tokens,
                max_new_tokens=answer_tokens,
                output_seed=seed + 1,
                after=f"s{number}t{turn - 1}" if turn else None,
            )
            history = (*prompt, request.answer)
            requests.append(request)
    return requests


def _positive(**values: float) -> None:
    for name, value in values.items():
        if not 0 < value < float("inf"):
            raise _refuse_value(name, value, "a number above 0")


def _not_negative(**values: float) -> None:
    for name, value in values.items():
        if not 0 <= value < float("inf"):
            raise _refuse_value(name, value, "seconds, 0 or more")


def _refuse_value(name: str, given: object, expected: str) -> InputError:
    return InputError(Problem(path=name, given=str(given), expected=expected))
