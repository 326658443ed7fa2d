"""Turn designs of a space into points of an answer: what was chosen, what it costs, what each workload does on it."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import numpy as np

from ridgeline.core.arrays import Array, Index
from ridgeline.core.units import HOUR, MILLION
from ridgeline.design.design_answer import DesignPoint, WorkloadResult
from ridgeline.design.elasticities import limiters
from ridgeline.design.space import DesignCosts, DesignSpace
from ridgeline.plan.plan import plan_words
from ridgeline.plan.scenario import Scenario
from ridgeline.plan.workload import Decode, Prefill

METRICS = {"train": "step_time_s", "prefill": "ttft_s", "decode": "tpot_s"}


def design_points(space: DesignSpace, values: Mapping[str, Array], ids: list[str]) -> list[DesignPoint]:
    """Points of designs with these values, in their order."""
    count = len(ids)
    costs = space.costs(values, count)
    prices = space.price(values, costs)
    time = space.relative(prices.seconds)
    hour = costs.usd_per_hour / float(space.costs({}, 1).usd_per_hour[0])
    return [
        DesignPoint(
            id=ids[row],
            choices=MappingProxyType({name: float(column[row]) for name, column in values.items()}),
            area_mm2=float(costs.area_mm2[row]),
            power_w=float(costs.power_w[row]),
            price_usd=float(costs.price_usd[row]),
            usd_per_hour=float(costs.usd_per_hour[row]),
            relative_time=float(time[row]),
            relative_cost=float(time[row] * hour[row]),
            workloads=tuple(_results(space, values, costs, (prices.seconds[:, row], prices.plan[:, row]), row)),
        )
        for row in range(count)
    ]


def _results(
    space: DesignSpace, values: Mapping[str, Array], costs: DesignCosts, best: tuple[Array, Index], row: int
) -> list[WorkloadResult]:
    own_values = {name: column[[row]] for name, column in values.items()}
    factors = space.factors(own_values, costs.power_w[[row]])
    domain = float(own_values["scaleup.domain"][0]) if "scaleup.domain" in own_values else None
    results = []
    for place, workload in enumerate(space.workloads):
        plan, seconds = int(best[1][place]), float(best[0][place])
        scenario = space.scenario(place, plan)
        if not np.isfinite(seconds):
            continue
        largest, names = limiters(space.detail(place, plan, domain, factors))
        chips, tokens = scenario.system.chips, tokens_of(scenario)
        results.append(
            WorkloadResult(
                workload=workload.name,
                metric=METRICS[scenario.workload.kind],
                seconds=seconds,
                tokens_per_s_per_chip=tokens / seconds / chips,
                usd_per_million_tokens=usd_per_million(float(costs.usd_per_hour[row]), scenario, seconds),
                plan=plan_words(scenario.plan),
                index=plan,
                limiter=names[int(largest[0])],
            )
        )
    return results


def tokens_of(scenario: Scenario) -> float:
    """Tokens of a step, a prompt batch or a decode step over the whole system."""
    work = scenario.workload
    if isinstance(work, Decode):
        drafts = scenario.plan.speculation
        return work.batch * (drafts.tokens_per_step if drafts else 1.0)
    if isinstance(work, Prefill):
        return float(work.batch * (work.seq - work.cached))
    return float(work.tokens)


def usd_per_million(usd_per_hour: float, scenario: Scenario, seconds: float) -> float:
    """Dollars of a million tokens on all chips of a scenario's system."""
    return usd_per_hour * scenario.system.chips / HOUR * seconds / tokens_of(scenario) * MILLION
