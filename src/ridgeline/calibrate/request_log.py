"""Turn a log of measured requests into the five numbers of a step that explain it, and how well they do.

The scheduler is simulated on the very arrivals and lengths; step, decode, cached token, prompt token and attention
pair are the only unknowns (`LinearStepCost`). Least squares on every request's E2E and on percentiles of TTFT, from
the proportions of an accelerator; where that leaves too much, from what the log itself shows of a prompt token.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import numpy as np

from ridgeline.core.arrays import Array, Mask
from ridgeline.core.errors import MissingNumber
from ridgeline.plan.check import check
from ridgeline.plan.scenario import Scenario
from ridgeline.serving import (
    LinearStepCost,
    Priced,
    RequestLog,
    Settings,
    VllmScheduler,
    VllmSettings,
    collector_paused,
    instances_of,
    replica_of,
    vllm_rules,
)

NUMBERS = ("step_s", "decode_s", "kv_token_s", "prefill_token_s", "attention_pair_s")
START = np.array([0.36, 1.5e-3, 2.4e-6, 1.5e-3, 1.5e-8])  # of the numbers, in units of the log's median TPOT
PERCENTILES = (50.0, 90.0, 99.0)
FITTED = (50.0, 99.0)  # of TTFT
OF_FEW = (25.0, 50.0, 75.0, 90.0)  # the same where no request is slower than the 99th
POOR = 0.05  # mean |residual| of E2E from which another start is tried
TTFT_WEIGHT = 12.0  # of a percentile of TTFT beside one request's E2E
PRIOR_WEIGHT = 0.003  # of a number's distance from where it starts, in logarithms
EVALUATIONS = 30
BLOCK = 16
SCHEDULED_BY = ("max_num_seqs", "max_num_batched_tokens", "async_scheduling")


@dataclass(frozen=True, slots=True, kw_only=True)
class LogErrors:
    """How far a simulated run is off a measured one.

    e2e_mape   mean |residual| of E2E over requests
    e2e_mean   residual of the mean E2E
    ttft       residuals of the mean and of percentiles of TTFT
    """

    requests: int
    e2e_mape: float
    e2e_mean: float
    ttft: MappingProxyType[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class LogFit:
    """Five numbers of a log, and what they are worth.

    errors     with the numbers fitted on all requests
    held_out   of the requests that ended last, with numbers from those that ended first (half and half)
    """

    log: RequestLog
    cost: LinearStepCost
    errors: LogErrors
    held_out: LogErrors | None
    own: bool = True

    JSON = "kind='request log' log=log.name version=log.version ranks=log.ranks own numbers=cost errors held_out"


def fit_request_log(log: RequestLog) -> LogFit:
    """The numbers that explain a log best, and their errors on it and on its second half."""
    everybody = np.ones(len(log.requests), dtype=bool)
    cost = _fit_step_cost(log, everybody)
    ends = np.array([request.arrival_s for request in log.requests]) + log.e2e_s
    early = ends <= np.median(ends)
    held_out = None
    if early.sum() >= 20:
        held_out = log_errors(log, _fit_step_cost(log, early), ~early)
    return LogFit(log=log, cost=cost, errors=log_errors(log, cost, everybody), held_out=held_out)


def scheduled_by(log: RequestLog, settings: Settings) -> RequestLog:
    """The log of an engine with these settings, where nobody wrote down its own."""
    if not isinstance(settings, VllmSettings):
        return log
    return replace(log, knobs={name: getattr(settings, name) for name in SCHEDULED_BY} | dict(log.knobs))


def served_as(log: RequestLog, scenario: Scenario) -> RequestLog:
    """The log of a scenario's deployment, where nobody wrote down the engine's own settings."""
    if any(check(scenario)):
        return log  # its prediction tells why there is none
    try:
        instance = instances_of(scenario, Priced(cost=LinearStepCost(step_s=1.0)))[0]
    except MissingNumber:
        return log
    return scheduled_by(log, instance.settings)


def apply_request_log(log: RequestLog, other: LogFit) -> LogFit:
    """A log under the numbers of another one."""
    everybody = np.ones(len(log.requests), dtype=bool)
    return LogFit(log=log, cost=other.cost, errors=log_errors(log, other.cost, everybody), held_out=None, own=False)


def simulate_log(log: RequestLog, cost: LinearStepCost) -> tuple[Array, Array]:
    """(TTFT, E2E) of every request of a log under a step cost, in seconds."""
    longest = max(request.prompt_tokens + request.output_tokens for request in log.requests)
    settings = VllmSettings(
        num_blocks=log.max_num_seqs * (longest // BLOCK + 1) + 1,  # a log does not tell its pool: enough for all
        max_num_seqs=log.max_num_seqs,
        max_num_batched_tokens=log.max_num_batched_tokens,
        enable_prefix_caching=False,
        async_scheduling=log.knobs.get("async_scheduling") is True,
        rules=vllm_rules(log.version),
    )
    schedulers = [VllmScheduler(settings) for _ in range(log.ranks)]
    engine = replica_of(schedulers, cost)
    for request in log.requests:
        engine.add(request, request.arrival_s)
    with collector_paused():
        engine.advance()
    place = {request.id: index for index, request in enumerate(log.requests)}
    ttft, e2e = np.zeros(len(place)), np.zeros(len(place))
    for state, end in zip(engine.done, engine.done_s, strict=True):
        index = place[state.request.id]
        ttft[index], e2e[index] = state.first_token_s - state.sent_s, end - state.sent_s
    return ttft, e2e


def log_errors(log: RequestLog, cost: LinearStepCost, of: Mask) -> LogErrors:
    """Residuals of some of a log's requests under a step cost."""
    ttft, e2e = simulate_log(log, cost)
    residual = e2e[of] / log.e2e_s[of] - 1
    firsts = {"mean": float(ttft[of].mean() / log.ttft_s[of].mean() - 1)}
    for percentile in PERCENTILES:
        firsts[f"p{percentile:g}"] = float(
            np.percentile(ttft[of], percentile) / np.percentile(log.ttft_s[of], percentile) - 1
        )
    return LogErrors(
        requests=int(of.sum()),
        e2e_mape=float(np.abs(residual).mean()),
        e2e_mean=float(e2e[of].mean() / log.e2e_s[of].mean() - 1),
        ttft=MappingProxyType(firsts),
    )


def _fit_step_cost(log: RequestLog, of: Mask) -> LinearStepCost:
    """The numbers that explain some requests of a log."""
    cost, loss = _descend(log, of, np.log(START * _pace(log)))
    if log_errors(log, cost, of).e2e_mape <= POOR:
        return cost
    other_cost, less = _descend(log, of, np.log(_first_guess(log, of)))
    return other_cost if less < loss else cost


def _descend(log: RequestLog, of: Mask, start: Array) -> tuple[LinearStepCost, float]:
    """Least squares from a start, in logarithms of the numbers: where it ends, and what is left there."""
    from scipy.optimize import least_squares

    percentiles = FITTED if of.sum() * (1 - FITTED[1] / 100) >= 1 else OF_FEW
    wanted_s = np.percentile(log.ttft_s[of], percentiles)

    def residuals(logs: Array) -> Array:
        ttft, e2e = simulate_log(log, _cost(logs))
        firsts = np.percentile(ttft[of], percentiles) / wanted_s - 1
        return np.concatenate([e2e[of] / log.e2e_s[of] - 1, TTFT_WEIGHT * firsts, PRIOR_WEIGHT * (logs - start)])

    solution: Any = least_squares(
        residuals, start, diff_step=[0.02] * len(NUMBERS), max_nfev=EVALUATIONS, loss="soft_l1", f_scale=0.05
    )
    return _cost(solution.x), float(solution.cost)


def _first_guess(log: RequestLog, of: Mask) -> Array:
    """The numbers as requests that met few others show them: the fast half of TPOT, and of TTFT a prompt token."""
    prompts = np.array([request.prompt_tokens for request in log.requests])[of]
    pace = _pace(log)
    token = float(np.percentile(np.maximum(log.ttft_s[of] - pace, 0.1 * pace) / prompts, 25))
    return np.array([0.8 * pace, 0.02 * pace, START[2] * pace, token, 0.1 * token / float(prompts.mean())])


def _pace(log: RequestLog) -> float:
    """The median TPOT of a log, in seconds."""
    outputs = np.array([request.output_tokens for request in log.requests])
    several = outputs > 1
    if not several.any():
        return float(np.median(log.ttft_s))
    return float(np.median((log.e2e_s - log.ttft_s)[several] / (outputs[several] - 1)))


def _cost(logs: Array) -> LinearStepCost:
    values = np.exp(np.clip(logs, -40.0, 10.0))
    return LinearStepCost(**{name: float(value) for name, value in zip(NUMBERS, values, strict=True)})
