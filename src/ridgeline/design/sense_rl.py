"""Turn a scenario of post-training into what limits its step: central differences of whole predictions.

A step of post-training is rollouts, passes and a transfer of weights, some beside each other. Every number of its chips
and links is moved by half a per cent, and the step predicted again with the same draws of lengths.

    elasticity = (ln t(x e^h) - ln t(x e^-h)) / (2 h)          h = 0.005

Latencies of software are not moved one by one: what the sum over rates leaves of -1 is theirs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import exp, log

from ridgeline.core.errors import InputError, Problem, not_among
from ridgeline.core.evidence import Quoted
from ridgeline.core.units import HOUR
from ridgeline.cost import Calibration
from ridgeline.design.machine_parameters import scaled_system
from ridgeline.design.sensitivity import Elasticity, Group, MoneyBasis, SensitivityAnswer
from ridgeline.hardware.load import rated_power
from ridgeline.plan.scenario import Scenario
from ridgeline.rl import RlPrediction, predict_rl

MOVE = 0.005
METRICS = ("step_time_s", "cost_usd")


def sense_rl(
    scenario: Scenario, *, metric: str = "", curve: str = "", calibration: Calibration | None = None
) -> SensitivityAnswer:
    """Elasticities of a step of post-training to every number of its chips and links."""
    if metric and metric not in METRICS:
        raise InputError(not_among("--metric", metric, METRICS))
    if curve:
        expectation = "train, prefill, decode or serve"
        raise InputError(Problem(path="--curve", given="a scenario of post-training", expected=expectation))
    today = _prediction(scenario, calibration)
    basis = _basis(scenario, today.step_time_s)
    scale = (basis.usd_per_unit or 0.0) / today.step_time_s if metric == "cost_usd" else 1.0
    entries = sorted(
        _entries(scenario, calibration, basis), key=lambda entry: (-abs(entry.elasticity), entry.parameter)
    )
    longest = max(today.phases, key=lambda phase: phase.exposed_s)
    return SensitivityAnswer(
        scenario=scenario,
        metric=metric or METRICS[0],
        unit="USD" if metric == "cost_usd" else "s",
        value=today.step_time_s * scale,
        low=today.interval.low * scale,
        high=today.interval.high * scale,
        limiter=f"{longest.name}: {longest.exposed_s / today.step_time_s:.0%}",
        rate_sum=sum(entry.elasticity if entry.kind == "rate" else -entry.elasticity for entry in entries),
        machine=tuple(entries),
        model=(),
        money=(),
        basis=basis,
        notes=(
            "central differences of whole predictions: kinks show as their mean",
            "what the sum leaves of -1 are latencies of software, verifiers and tools, which no number here moves",
        ),
    )


def _prediction(scenario: Scenario, calibration: Calibration | None) -> RlPrediction:
    prediction = predict_rl(scenario, calibration)
    if not isinstance(prediction, RlPrediction):
        raise InputError(prediction.reasons)
    return prediction


def _basis(scenario: Scenario, seconds: float) -> MoneyBasis:
    price, chips = scenario.system.chip.price, scenario.system.chips
    if price is None:
        return MoneyBasis(usd_per_hour=None, unit="step", usd_per_unit=None, source="no price of the chip is published")
    hour = price.value * chips
    source = f"{price.value:g} USD/h a chip ({price.evidence.label}, {price.source}) x {chips} chips"
    return MoneyBasis(usd_per_hour=hour, unit="step", usd_per_unit=hour / HOUR * seconds, source=source)


def _numbers(scenario: Scenario) -> Iterator[tuple[str, str, Group, str, Quoted]]:
    """Numbers of chips and links that can be moved: place, title, whose, unit."""
    chip = scenario.system.chip
    for key, peak in chip.peak.items():
        yield f"chip.peak.{key}", f"{key} compute", "chip", "FLOP/s", peak
    if chip.vector is not None:
        yield "chip.vector", "vector units (softmax)", "chip", "FLOP/s", chip.vector
    yield "chip.hbm.bandwidth", "memory bandwidth", "chip", "B/s", chip.need("hbm.bandwidth")
    power = rated_power(chip)
    if power is not None:
        yield "chip.tdp", "rated power (what clocks under load may draw)", "chip", "W", power
    if chip.host.bandwidth is not None:
        yield "chip.host.bandwidth", "link to the host", "chip", "B/s", chip.host.bandwidth
    for tier in scenario.system.tiers:
        path = f"system.tier.{tier.name}"
        yield f"{path}.bandwidth", f"{tier.name} links, one way a chip", "network", "B/s", tier.need_bandwidth()
        if tier.latency is not None:
            yield f"{path}.latency", f"latency of {tier.name}", "network", "s", tier.latency


def _entries(scenario: Scenario, calibration: Calibration | None, basis: MoneyBasis) -> Iterator[Elasticity]:
    for path, title, group, unit, number in _numbers(scenario):
        logs = [log(_moved_seconds(scenario, calibration, path, exp(side * MOVE))) for side in (1, -1)]
        slope = (logs[0] - logs[1]) / (2 * MOVE)
        kind = "time" if unit == "s" else "rate"
        worth = slope if kind == "time" else -slope
        yield Elasticity(
            parameter=path,
            title=title,
            kind="time" if unit == "s" else "rate",
            group=group,
            unit=unit,
            value=number.value,
            below=slope,
            above=slope,
            step=MOVE,
            usd_per_hour_per_percent=None if basis.usd_per_hour is None else worth * basis.usd_per_hour / 100,
            usd_per_unit_per_percent=None if basis.usd_per_unit is None else worth * basis.usd_per_unit / 100,
            evidence=number.evidence.label,
            source=number.source,
        )


def _moved_seconds(scenario: Scenario, calibration: Calibration | None, path: str, factor: float) -> float:
    moved_scenario = replace(scenario, system=scaled_system(scenario.system, path, factor))
    return _prediction(moved_scenario, calibration).step_time_s
