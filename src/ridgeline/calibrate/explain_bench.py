"""Turn a serve scenario and what a load generator measured of it into the causes of the gap between the two.

Every run is predicted under its own load: the times its requests were sent and their lengths. Runs of one rate are
repeats of a load, of which medians are compared. An anchor is one more run, not compared, from which the five numbers
of a step are fitted (`calibrate.request_log`): the prices of decode steps and of steps with prompts are then replaced
one after the other, so that

    measured - predicted = decode steps + prompt steps + rest

rest is what the anchored prediction leaves: noise, drift between the runs, and whatever five numbers cannot say.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from math import inf, isfinite
from statistics import median
from types import MappingProxyType

import numpy as np

from ridgeline.calibrate.request_log import LogErrors, fit_request_log, scheduled_by
from ridgeline.core.errors import InputError, Problem
from ridgeline.plan.scenario import Scenario, serving
from ridgeline.plan.workload import Serve
from ridgeline.serving import (
    FRONT_END_S,
    BenchRun,
    Instance,
    LinearStepCost,
    Priced,
    Request,
    RequestLog,
    StepCost,
    closed_loop,
    instances_of,
    load_of,
    plain_request,
    served_by,
    unservable,
)

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
        return (
            {} if self.cost is None else {name.removesuffix("_s"): number for name, number in asdict(self.cost).items()}
        )


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
    scenario: Scenario, runs: Sequence[BenchRun], priced: Priced | None = None, anchor: BenchRun | None = None
) -> BenchExplanation:
    """What was measured beside what is predicted, by load."""
    if not isinstance(scenario.workload, Serve):
        given_text, todo = f"a {scenario.workload.kind} scenario", 'set workload.kind = "serve"'
        raise InputError(
            Problem(path="workload.kind", given=given_text, expected="one that serves requests", todo=todo)
        )
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
    return tuple(
        plain_request(index=index, arrival_s=float(sent), prompt_tokens=prompt, output_tokens=output)
        for index, (sent, (prompt, output)) in enumerate(zip(run.sent_s, lengths, strict=True))
    )


def _log(run: BenchRun, instance: Instance) -> RequestLog:
    """A run as a log of the engine's own clock, the front end taken off."""
    if run.sent_s is None:
        expected_text = "a result that tells when requests were sent: `vllm bench serve --save-detailed`"
        raise InputError(Problem(path="--anchor", given=run.source, expected=expected_text))
    lengths = zip(run.sent_s.tolist(), run.prompt_tokens.tolist(), run.output_tokens.tolist(), strict=True)
    log = RequestLog(
        name=run.source,
        requests=tuple(
            plain_request(index=index, arrival_s=sent, prompt_tokens=prompt, output_tokens=output)
            for index, (sent, prompt, output) in enumerate(lengths)
        ),
        ttft_s=np.maximum(run.ttft_s - FRONT_END_S, 1e-4),
        e2e_s=np.maximum(run.e2e_s - FRONT_END_S, 2e-4),
        version="",
        knobs={},
    )
    return scheduled_by(log, instance.settings)


def _load(
    scenario: Scenario, instances: tuple[Instance, ...], runs: Sequence[BenchRun], cost: LinearStepCost | None
) -> BenchLoad:
    run_figures = [_run_figures(run) for run in runs]
    steps = [
        _middle([_predict_figures(scenario, chosen, requests_of(run, scenario)) for run in runs])
        for chosen in _ladder(instances, cost)
    ]
    middle = _middle(run_figures)
    names = ("decode steps", "prompt steps") if cost is not None else ()
    causes = {name: _less(steps[at + 1], steps[at]) for at, name in enumerate(names)}
    causes["rest"] = _less(middle, steps[-1])
    return BenchLoad(
        request_rate=runs[0].request_rate,
        max_concurrency=runs[0].max_concurrency,
        repeats=len(runs),
        requests=sum(run.requests for run in runs),
        measured=middle,
        cold=steps[0],
        predicted=steps[-1],
        causes=MappingProxyType(causes),
        spread=MappingProxyType(
            {name: _relative_range([figures[name] for figures in run_figures]) for name in METRICS}
        ),
    )


def _ladder(instances: tuple[Instance, ...], cost: LinearStepCost | None) -> list[tuple[Instance, ...]]:
    """The deployment as priced; with the anchor's decode steps; with its steps of prompts too."""
    if cost is None:
        return [instances]
    half = tuple(replace(instance, cost=_Mixed(decode=cost, prompt=instance.cost)) for instance in instances)
    return [instances, half, tuple(replace(instance, cost=cost) for instance in instances)]


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


def _relative_range(values: Sequence[float]) -> float:
    middle = median(values)
    return (max(values) - min(values)) / middle if middle else 0.0
