"""Turn a load that somebody describes into requests: when they come, how long they are, what they share. Seeded.

gamma_times      open loop: Gamma gaps as `vllm bench serve` sends; burstiness 1 is Poisson, less is burstier
on_off_times     open loop: Poisson while on, silent while off
at_times         times and lengths -> requests that share nothing
closed_loop      so many users, each sends its next request a think time after its last answer
sessions         conversations: every prompt repeats all that was said before
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle, islice

import numpy as np

from ridgeline.core.errors import InputError, Problem
from ridgeline.core.records import dataclass
from ridgeline.serving.request import Piece, Request, plain_request

Lengths = Sequence[tuple[int, int]]
"""(prompt tokens, output tokens) of requests; used again from the first when there are more requests."""


def gamma_times(count: int, rate: float, *, burstiness: float = 1.0, seed: int = 0) -> list[float]:
    """Arrival times with Gamma gaps of shape `burstiness`, rescaled so that they take count / rate seconds in all."""
    _positive(count=count, rate=rate, burstiness=burstiness)
    gaps = np.random.default_rng(seed).gamma(burstiness, 1.0 / (rate * burstiness), count)
    times = np.cumsum(gaps)
    return list(map(float, times * (count / rate / times[-1])))


def on_off_times(count: int, rate: float, *, on_s: float, off_s: float, seed: int = 0) -> list[float]:
    """Poisson arrivals of `rate` during windows of `on_s`, none in the `off_s` between them."""
    _positive(count=count, rate=rate, on_s=on_s)
    if not 0 <= off_s < float("inf"):
        raise _refuse_value("off_s", off_s, "seconds, 0 or more")
    busy = np.cumsum(np.random.default_rng(seed).exponential(1.0 / rate, count))
    return list(map(float, busy + np.floor(busy / on_s) * off_s))


def at_times(times: Sequence[float], lengths: Lengths) -> list[Request]:
    """Requests that share no token, at these times."""
    _usable(lengths)
    return [
        plain_request(index=index, arrival_s=at, prompt_tokens=prompt, output_tokens=output)
        for index, (at, (prompt, output)) in enumerate(zip(times, cycle(lengths), strict=False))
    ]


def closed_loop(count: int, lengths: Lengths, *, users: int, think_s: float = 0.0, seed: int = 0) -> list[Request]:
    """`count` requests of `users` who each wait for their answer, then think (exponential, mean `think_s`)."""
    _positive(count=count, users=users)
    _usable(lengths)
    if not 0 <= think_s < float("inf"):
        raise _refuse_value("think_s", think_s, "seconds, 0 or more")
    thoughts = np.random.default_rng(seed).exponential(think_s, count) if think_s else np.zeros(count)
    made = []
    for index, (prompt, output) in enumerate(islice(cycle(lengths), count)):
        made.append(
            Request(
                id=f"r{index}",
                arrival_s=0.0 if index < users else float(thoughts[index]),
                prompt=(Piece(seed=2 * index, tokens=prompt),),
                output_tokens=output,
                max_new_tokens=output,
                output_seed=2 * index + 1,
                after=None if index < users else f"r{index - users}",
            )
        )
    return made


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """How a session goes: a system prompt that all share, then turns of a question and an answer."""

    system_tokens: int
    turns: int
    question_tokens: int
    answer_tokens: int
    think_s: float = 0.0


def sessions(times: Sequence[float], talk: Conversation) -> list[Request]:
    """One conversation from each of these times on; a turn's prompt holds the system prompt and all turns before."""
    _positive(turns=talk.turns, question_tokens=talk.question_tokens, answer_tokens=talk.answer_tokens)
    made: list[Request] = []
    for number, at in enumerate(times):
        said: tuple[Piece, ...] = (Piece(seed=0, tokens=talk.system_tokens),)
        for turn in range(talk.turns):
            seed = 2 * (number * talk.turns + turn) + 1
            prompt = (*said, Piece(seed=seed, tokens=talk.question_tokens))
            request = Request(
                id=f"s{number}t{turn}",
                arrival_s=talk.think_s if turn else at,
                prompt=prompt,
                output_tokens=talk.answer_tokens,
                max_new_tokens=talk.answer_tokens,
                output_seed=seed + 1,
                after=f"s{number}t{turn - 1}" if turn else None,
            )
            said = (*prompt, request.answer)
            made.append(request)
    return made


def _positive(**values: float) -> None:
    for name, value in values.items():
        if not 0 < value < float("inf"):
            raise _refuse_value(name, value, "a number above 0")


def _usable(lengths: Lengths) -> None:
    if not lengths:
        raise _refuse_value("lengths", "none", "at least one pair of prompt and output tokens")
    for prompt, output in lengths:
        if prompt < 1 or output < 1:
            raise _refuse_value("lengths", f"{prompt} and {output} tokens", "at least one token each")


def _refuse_value(name: str, given: object, expected: str) -> InputError:
    return InputError(Problem(path=name, given=str(given), expected=expected))
