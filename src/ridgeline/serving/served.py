"""What became of requests: when each was sent, started, answered, and where its time went, as columns."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from ridgeline.core.arrays import Array
from ridgeline.core.records import dataclass
from ridgeline.serving.step import RequestState


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """Requests in the order they finished, one column per fact; times in seconds since the start.

    The parts of a request's time sum to its E2E:

        queue       sent until its first step begins
        prefill     first step until the first token
        decode      first token until the last, less the two below
        stalled     what prefill chunks of others added to the steps it decoded in
        preempted   dropped for lack of blocks, until its tokens are computed again
        transfer    its cache on the way from the engine that prefilled to the one that decodes

    `replica` is the place of the engine that answered. `gaps` holds every pause between two tokens of one request with
    how often it occurred.
    """

    ids: tuple[str, ...]
    sent_s: Array
    first_token_s: Array
    finished_s: Array
    queue_s: Array
    prefill_s: Array
    decode_s: Array
    stalled_s: Array
    preempted_s: Array
    transfer_s: Array
    prompt_tokens: Array
    output_tokens: Array
    hit_tokens: Array
    preemptions: Array
    replica: Array
    gaps: tuple[Array, Array]
    steps: int
    events: int

    @property
    def ttft_s(self) -> Array:
        return self.first_token_s - self.sent_s

    @property
    def e2e_s(self) -> Array:
        return self.finished_s - self.sent_s

    @property
    def duration_s(self) -> float:
        """Start to the last completion."""
        return float(self.finished_s.max()) if len(self.ids) else 0.0


class TokenGaps:
    """Pauses between tokens, gathered as single ones and as runs that grow by the same amount each step."""

    __slots__ = ("_runs", "_single")

    def __init__(self) -> None:
        self._single: list[tuple[float, int]] = []
        self._runs: list[tuple[float, float, int, int]] = []

    def add(self, seconds: float, times: int) -> None:
        self._single.append((seconds, times))

    def add_run(self, first_s: float, growth_s: float, steps: int, times: int) -> None:
        """`steps` pauses, the first of `first_s`, each `growth_s` longer than the one before."""
        self._runs.append((first_s, growth_s, steps, times))

    @staticmethod
    def joined(several: Iterable[TokenGaps]) -> TokenGaps:
        """The pauses of all of them."""
        made = TokenGaps()
        for one in several:
            made._single += one._single
            made._runs += one._runs
        return made

    def columns(self) -> tuple[Array, Array]:
        """(seconds, how often), shortest first."""
        single = np.array(self._single, dtype=float).reshape(-1, 2)
        runs = np.array(self._runs, dtype=float).reshape(-1, 4)
        lengths = runs[:, 2].astype(int)
        place = np.arange(int(lengths.sum())) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        seconds = np.concatenate(
            [single[:, 0], np.repeat(runs[:, 0], lengths) + place * np.repeat(runs[:, 1], lengths)]
        )
        times = np.concatenate([single[:, 1], np.repeat(runs[:, 3], lengths)])
        order = np.argsort(seconds, kind="stable")
        return seconds[order], times[order]


PARTS = ("queue", "prefill", "decode", "stalled", "preempted", "transfer")
"""Where the time of a request goes: columns of `Served` without their unit."""


def served_columns(
    states: Sequence[RequestState],
    finished_s: Sequence[float],
    gaps: TokenGaps,
    *,
    steps: int,
    events: int,
    replica: Sequence[int] = (),
) -> Served:
    """The columns of requests that are answered; without `replica` all by the first engine."""
    count = len(states)

    def column(values: list[float]) -> Array:
        return np.array(values, dtype=float)

    sent = column([state.sent_s for state in states])
    first = column([state.first_token_s for state in states])
    started = column([state.first_scheduled_s for state in states])
    stalled = column([state.stalled_s for state in states])
    preempted = column([state.preempted_s for state in states])
    prefilled = column([state.prefilled_s for state in states])
    transfer = column([state.transfer_s for state in states])
    finished = column(list(finished_s))
    prompt = np.array([state.prompt_tokens for state in states], dtype=int).reshape(count)
    return Served(
        ids=tuple(state.request.id for state in states),
        sent_s=sent,
        first_token_s=first,
        finished_s=finished,
        queue_s=started - sent - prefilled - transfer,
        prefill_s=first - started + prefilled,
        decode_s=finished - first - stalled - preempted,
        stalled_s=stalled,
        preempted_s=preempted,
        transfer_s=transfer,
        prompt_tokens=prompt,
        output_tokens=np.array([state.target for state in states], dtype=int).reshape(count) + 1 - prompt,
        hit_tokens=np.array([state.first_hit_tokens for state in states], dtype=int).reshape(count),
        preemptions=np.array([state.preemptions for state in states], dtype=int).reshape(count),
        replica=np.array(replica, dtype=int) if len(replica) else np.zeros(count, dtype=int),
        gaps=gaps.columns(),
        steps=steps,
        events=events,
    )
