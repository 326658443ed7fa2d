"""Turn a log of measured requests into the five numbers of a step that explain it, and how well they do.

The scheduler is simulated on the very arrivals and lengths; step, decode, cached token, prompt token and attention
pair are the only unknowns (`LinearStepCost`). Least squares on every request's E2E and on percentiles of TTFT, from
the proportions of an accelerator; where that leaves too much, from what the log itself shows of a prompt token.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from math import inf, isfinite
from statistics import median
from types import MappingProxyType

import numpy as np

from ridgeline.core.arrays import Array, Mask
from ridgeline.core.errors import InputError, MissingNumber, Problem
from ridgeline.plan.check import check
from ridgeline.plan.scenario import Scenario, serving
from ridgeline.plan.workload import Serve
from ridgeline.serving import (
    FRONT_END_S,
    Instance,
    LinearStepCost,
    Request,
    Settings,
    StepCost,
    StepPricing,
    instances_of,
    load_of,
    served_by,
    unservable,
)
from ridgeline.serving.measured import BenchRun, RequestLog
from ridgeline.serving.simulation import (
    VllmScheduler,
    VllmSettings,
    closed_loop,
    collector_paused,
    plain_request,
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
    held_out = log_errors(log, _fit_step_cost(log, early), ~early) if early.sum() >= 20 else None
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
        instance = instances_of(scenario, StepPricing(cost=LinearStepCost(step_s=1.0)))[0]
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
    for q in PERCENTILES:
        firsts[f"p{q:g}"] = float(np.percentile(ttft[of], q) / np.percentile(log.ttft_s[of], q) - 1)
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

    solution = least_squares(
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


METRICS = ("ttft", "tpot", "e2e")
Figures = Mapping[str, float]
"""Seconds by metric."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchLoad:
    """One load: medians over its repeats of the median TTFT, TPOT and E2E of requests, in seconds.

    cold        predicted without the anchor; the same as predicted where there is none
    predicted   with it
    causes      by cause, what it adds to cold; they sum to measured - cold
    spread      (largest - smallest) / median of what the repeats measured
    """

    request_rate: float
    max_concurrency: int | None
    repeats: int
    requests: int
    measured: Figures
    cold: Figures
    predicted: Figures
    causes: Mapping[str, Figures]
    spread: Figures

    JSON = """
        request_rate=finite_rate max_concurrency repeats requests measured_s=measured cold_s=cold
        predicted_s=predicted residual=residuals causes_s=causes spread
    """

    @property
    def finite_rate(self) -> float | None:
        """Requests a second that were asked for; None where all were sent at once."""
        return self.request_rate if isfinite(self.request_rate) else None

    @property
    def residuals(self) -> dict[str, float]:
        """Predicted over measured, less one, by metric."""
        return {name: self.residual(name) for name in METRICS}

    def residual(self, metric: str) -> float:
        """predicted / measured - 1."""
        return self.predicted[metric] / self.measured[metric] - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchExplanation:
    """Every load of the runs; the five numbers of the anchor and how well they explain it, where there is one."""

    scenario: Scenario
    loads: tuple[BenchLoad, ...]
    cost: LinearStepCost | None
    anchored: LogErrors | None
    anchor: str
    notes: tuple[str, ...]

    JSON = """
        kind='explain-bench' scenario=scenario.name anchor anchor_e2e=anchored.e2e_mape step_s=step_numbers loads
        notes
    """

    @property
    def step_numbers(self) -> dict[str, float]:
        """Seconds of a step that the anchor was fitted with, by name."""
        numbers = {} if self.cost is None else asdict(self.cost)
        return {name.removesuffix("_s"): number for name, number in numbers.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Mixed:
    """A step cost with the decode steps of one and the steps with prompts of another."""

    decode: StepCost
    prompt: StepCost

    def decode_line(self, decodes: int) -> tuple[float, float]:
        return self.decode.decode_line(decodes)

    def mixed_step_seconds(self, chunks: Sequence[tuple[int, int]], decodes: int, kv_tokens: int) -> float:
        return self.prompt.mixed_step_seconds(chunks, decodes, kv_tokens)


def explain_bench(
    scenario: Scenario, runs: Sequence[BenchRun], priced: StepPricing | None = None, anchor: BenchRun | None = None
) -> BenchExplanation:
    """What was measured beside what is predicted, by load.

    Every run is predicted under its own load: the times its requests were sent and their lengths. Runs of one rate are
    repeats of a load, of which medians are compared. An anchor is one more run, not compared, from which the five
    numbers of a step are fitted: the prices of decode steps and of steps with prompts are then replaced one after the
    other, so that

        measured - predicted = decode steps + prompt steps + rest

    rest is what the anchored prediction leaves: noise, drift between the runs, and whatever five numbers cannot say.
    """
    if not isinstance(scenario.workload, Serve):
        given_text, todo = f"a {scenario.workload.kind} scenario", 'set workload.kind = "serve"'
        expected_text = "one that serves requests"
        raise InputError(Problem(path="workload.kind", given=given_text, expected=expected_text, todo=todo))
    instances = instances_of(scenario, priced)
    fit = fit_request_log(_log(anchor, instances[0])) if anchor is not None else None
    groups: dict[tuple[float, int | None], list[BenchRun]] = {}
    for run in runs:
        groups.setdefault((run.request_rate, run.max_concurrency), []).append(run)
    order = sorted(groups, key=lambda load: (load[0], load[1] or inf))
    notes = [] if all(run.sent_s is not None for run in runs) else ["a result does not tell when requests were sent"]
    return BenchExplanation(
        scenario=scenario,
        loads=tuple(_load(scenario, instances, groups[load], fit.cost if fit else None) for load in order),
        cost=fit.cost if fit else None,
        anchored=fit.errors if fit else None,
        anchor=anchor.source if anchor else "",
        notes=tuple(notes),
    )


def requests_of(run: BenchRun, scenario: Scenario) -> tuple[Request, ...]:
    """The load of a run: as sent; as many users as the client's limit; or the scenario's own where it does not tell."""
    lengths = list(zip(run.prompt_tokens.tolist(), run.output_tokens.tolist(), strict=True))
    if run.max_concurrency is not None and not isfinite(run.request_rate):
        return tuple(closed_loop(run.requests, lengths, users=run.max_concurrency, seed=0))
    if run.sent_s is None:
        return load_of(serving(scenario).workload)
    return _sent_requests(run, run.sent_s)


def _sent_requests(run: BenchRun, sent_s: Array) -> tuple[Request, ...]:
    columns = zip(sent_s.tolist(), run.prompt_tokens.tolist(), run.output_tokens.tolist(), strict=True)
    return tuple(
        plain_request(index=index, arrival_s=sent, prompt_tokens=prompt, output_tokens=output)
        for index, (sent, prompt, output) in enumerate(columns)
    )


def _log(run: BenchRun, instance: Instance) -> RequestLog:
    """A run as a log of the engine's own clock, the front end taken off."""
    if run.sent_s is None:
        expected_text = "a result that tells when requests were sent: `vllm bench serve --save-detailed`"
        raise InputError(Problem(path="--anchor", given=run.source, expected=expected_text))
    log = RequestLog(
        name=run.source,
        requests=_sent_requests(run, run.sent_s),
        ttft_s=np.maximum(run.ttft_s - FRONT_END_S, 1e-4),
        e2e_s=np.maximum(run.e2e_s - FRONT_END_S, 2e-4),
        version="",
        knobs={},
    )
    return scheduled_by(log, instance.settings)


def _load(
    scenario: Scenario, instances: tuple[Instance, ...], runs: Sequence[BenchRun], cost: LinearStepCost | None
) -> BenchLoad:
    """One load: the deployment as priced; with the anchor's decode steps; with its steps of prompts too."""
    ladder, names = [instances], list[str]()
    if cost is not None:
        half = tuple(replace(instance, cost=_Mixed(decode=cost, prompt=instance.cost)) for instance in instances)
        ladder += [half, tuple(replace(instance, cost=cost) for instance in instances)]
        names += ["decode steps", "prompt steps"]
    run_figures = [_run_figures(run) for run in runs]
    steps = [
        _middle([_predict_figures(scenario, chosen, requests_of(run, scenario)) for run in runs]) for chosen in ladder
    ]
    middle = _middle(run_figures)
    causes = {name: _less(steps[at + 1], steps[at]) for at, name in enumerate(names)}
    causes["rest"] = _less(middle, steps[-1])
    ranges = {name: max(run[name] for run in run_figures) - min(run[name] for run in run_figures) for name in METRICS}
    return BenchLoad(
        request_rate=runs[0].request_rate,
        max_concurrency=runs[0].max_concurrency,
        repeats=len(runs),
        requests=sum(run.requests for run in runs),
        measured=middle,
        cold=steps[0],
        predicted=steps[-1],
        causes=MappingProxyType(causes),
        spread=MappingProxyType({name: ranges[name] / middle[name] if middle[name] else 0.0 for name in METRICS}),
    )


def _predict_figures(scenario: Scenario, instances: tuple[Instance, ...], requests: tuple[Request, ...]) -> Figures:
    problems = list(unservable(instances, requests))
    if problems:
        raise InputError(problems)
    metrics = served_by(scenario, instances, requests).metrics
    return {name: getattr(metrics, name).median for name in METRICS}


def _run_figures(run: BenchRun) -> Figures:
    columns = {"ttft": run.ttft_s, "tpot": run.tpot_s, "e2e": run.e2e_s}
    return {name: float(np.median(column)) if column.size else 0.0 for name, column in columns.items()}


def _middle(figures: Sequence[Figures]) -> Figures:
    return MappingProxyType({name: median(run[name] for run in figures) for name in METRICS})


def _less(left: Figures, right: Figures) -> Figures:
    return MappingProxyType({name: left[name] - right[name] for name in METRICS})
