"""Turn what was measured of this machine into the phases of verl's step: `verl_pieces.py`'s JSON to seconds by phase.

gen              Ridgeline's closed batch with a step cost of three numbers, fitted on batches of the engine alone
old_log_prob     microbatches x (a + b tokens + c pairs), fitted on microbatches of other shapes, and one call
update_actor     the same with a backward pass, the optimizer, and one call
update_weights   bytes over a rate and software for each tensor, fitted on parts of the model, and four calls
adv, reward      verl's functions, a line in the rows of a batch
step             their sum
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.optimize import nnls

from ridgeline.rl.lengths import Samples
from ridgeline.rl.rollout_batch import EngineLimits, run_batch
from ridgeline.serving import LinearStepCost

CALLS = {"old_log_prob": 1, "update_actor": 1, "update_weights": 4}
"""Calls of Ray actors in a phase; generation has two for each sample: the engine's, and the reward's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VerlRun:
    """The shape of a step."""

    prompts: int
    samples: int
    prompt: int
    answer: int
    microbatch: int
    seqs: int

    @property
    def rows(self) -> int:
        return self.prompts * self.samples


def fitted(rows: Sequence[Sequence[float]], seconds: Sequence[float]) -> np.ndarray:
    """Coefficients not below 0 that explain seconds best, relative to each."""
    weights = 1 / np.array(seconds)
    return np.asarray(nnls(np.array(rows) * weights[:, None], np.ones(len(weights)))[0])


def batch(samples: int, prompt: int, answer: int) -> Samples:
    """Samples of one length, each with a prompt of its own."""
    return Samples(
        prompt=np.full(samples, prompt), answer=np.full(samples, answer), group=np.arange(samples),
        turns=np.ones(samples, dtype=np.int64), tool_s=np.zeros((samples, 0)),
        tool_tokens=np.zeros((samples, 0), dtype=np.int64),
    )  # fmt: skip


def engine_cost(pieces: Sequence[Sequence[float]], prompt: int) -> LinearStepCost:
    """A step of the engine: steps, tokens decoded and prompt tokens of every batch that was measured."""
    rows = [(answer, samples * answer, samples * prompt) for samples, answer, _ in pieces]
    step, decode, prefill = fitted(rows, [seconds for _, _, seconds in pieces])
    return LinearStepCost(step_s=float(step), decode_s=float(decode), prefill_token_s=float(prefill))


def microbatch_seconds(pieces: Sequence[Sequence[float]], sequences: int, tokens: int) -> float:
    """A microbatch of another shape: a constant, tokens, and pairs of tokens that attend to each other."""
    rows = [(1.0, many * length, many * length**2) for many, length, _ in pieces]
    values = fitted(rows, [seconds for _, _, seconds in pieces])
    return float(values @ (1.0, sequences * tokens, sequences * tokens**2))


def line(pieces: Sequence[Sequence[float]], place: float) -> float:
    """A constant and a slope through measured points (place, seconds)."""
    values = fitted([(1.0, point[0]) for point in pieces], [point[-1] for point in pieces])
    return float(values @ (1.0, place))


def predict_phases(pieces: Mapping[str, Any], run: VerlRun, size: float, tensors: int) -> dict[str, float]:
    """Seconds of every phase that verl prints; `size` in bytes and `tensors` of the model."""
    calls, trainer = pieces["calls"], pieces["trainer"]
    cost = engine_cost(pieces["engine"], run.prompt)
    limits = EngineLimits(tokens=1_000_000, seqs=run.seqs, step_tokens=2048, block=32)
    rollout = run_batch(batch(run.rows, run.prompt, run.answer), cost, limits)
    many, tokens = run.rows // run.microbatch, run.prompt + run.answer
    moved = fitted([(part, count) for part, count, _ in pieces["transfer"]], [row[-1] for row in pieces["transfer"]])
    phases = {
        "gen": rollout.seconds + 2 * run.rows * calls["call"],
        "reward": pieces["driver"]["rewards"],
        "old_log_prob": many * microbatch_seconds(trainer["forward"], run.microbatch, tokens) + calls["batch_call"],
        "adv": line(pieces["driver"]["advantages"], run.rows),
        "update_actor": many * microbatch_seconds(trainer["update"], run.microbatch, tokens) + trainer["optimizer"],
        "update_weights": float(moved @ (size, tensors)) + CALLS["update_weights"] * calls["call"],
    }
    phases["update_actor"] += calls["batch_call"]
    return phases | {"step": sum(phases.values())}


def least_pieces(turns: Sequence[Any]) -> Any:
    """Of the same pieces measured several times the least seconds of each: the last number of a row is seconds."""
    first = turns[0]
    if isinstance(first, Mapping):
        return {key: least_pieces([turn[key] for turn in turns]) for key in first}
    if isinstance(first, list) and first and isinstance(first[0], list):
        return [[*row[:-1], min(turn[place][-1] for turn in turns)] for place, row in enumerate(first)]
    return min(turns)
