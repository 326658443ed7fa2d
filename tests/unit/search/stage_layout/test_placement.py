"""Placements by dynamic programming against every placement of a small model."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ridgeline.plan.scenario_file import scenario
from ridgeline.search.stage_layout.layouts import Index, Layouts, LayoutTable, layout_table
from ridgeline.search.stage_layout.placement import RecomputeRules, bound, placements
from ridgeline.sim.predict_step import default_calibration


def made(model: str, layers: int, **plan: Any) -> LayoutTable:
    pp = plan["pp"]
    table = {
        "model": {"base": model, "layers": layers},
        "system": f"{16 * pp}xh100-sxm",
        "workload": {"seq": 8192, "global_batch": 16 * pp},
        "plan": {"tp": 8, "dp": 2, "engine": "torchtitan", "microbatch": 2, **plan},
    }
    return layout_table(scenario(table), default_calibration())


def every(table: LayoutTable) -> Index:
    """Every placement."""
    layers, stages = len(table.model.blocks.order), table.virtual_stages
    grid = np.indices((layers + 1,) * (stages - 1)).reshape(stages - 1, -1).T
    placed = np.column_stack([grid, layers - grid.sum(1)])
    return placed[(placed >= table.fewest).all(1)]


CASES = {
    "alike": ("llama3-8b", 8, {"pp": 3}),
    "alternating blocks": ("nemotron-h-8b", 9, {"pp": 3}),
    "dense layers first": ("deepseek-v3", 7, {"pp": 4, "microbatch": 1}),
    "chunks": ("llama3-8b", 7, {"pp": 2, "schedule": {"name": "interleaved", "chunks": 2}}),
}


@pytest.mark.parametrize("share", [0.1, 0.4, 2.0])
@pytest.mark.parametrize("name", CASES)
def test_the_least_bottleneck_is_found(name: str, share: float) -> None:
    """Of every policy and every number of layers of the last stage, as all placements say."""
    model, layers, plan = CASES[name]
    table = made(model, layers, **plan)
    placed = every(table)
    none = np.zeros(1, dtype=np.int64)
    loose, tight = (
        table.peaks(Layouts(layers=placed, recomputed=some, policy=np.repeat(len(table.policies) - 1, len(placed))))
        .max(0)
        .min()
        for some in (np.zeros_like(placed), placed)
    )
    budget = tight + share * (loose - tight)
    policies = np.arange(len(table.policies))
    rules = RecomputeRules(policy=policies, each=np.full(len(policies), -1))
    within = bound(table, policies, budget, Layouts(layers=placed[:0], recomputed=placed[:0], policy=none[:0]))
    found, rule = placements(table, rules, budget, within)
    for policy in policies:
        assert bottleneck(table, found[rule == policy], policy, budget) == pytest.approx(
            bottleneck(table, placed, policy, budget), rel=1e-9
        )


def bottleneck(table: LayoutTable, placed: Index, policy: int, budget: float) -> float:
    """The busiest rank of the placement where it is least busy; infinite where none fits."""
    if not len(placed):
        return float("inf")
    least = table.least_recompute(placed, np.repeat(policy, len(placed)), budget)
    able = np.flatnonzero(table.peaks(least).max(0) <= budget)
    return float(table.busy_s(least.at(able)).max(0).min()) if len(able) else float("inf")
