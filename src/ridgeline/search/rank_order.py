"""Turn the best plans of a search into the same plans in the rank order that suits the topology.

The space is swept in one order. Its best few plans are priced again in each other order that is pinned, or that their
engine can be told: which axes stay inside a domain and which cross it is another question than how the work is split.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from ridgeline.cost import Calibration
from ridgeline.plan.check import check
from ridgeline.plan.mesh import ORDERS
from ridgeline.plan.scenario import Scenario
from ridgeline.plan.supported import tellable_orders
from ridgeline.search.space import Pins
from ridgeline.search.target import ExportTarget
from ridgeline.sim import Prediction, predict

GAINS = 0.001  # of a step: less than this is not worth another order than usual


def reorder_ranks(
    plans: Iterable[Prediction], pins: Pins, calibration: Calibration | None, target: ExportTarget | None = None
) -> tuple[Prediction, ...]:
    """The plans, each in its fastest rank order, fastest first; as they were where one order is left."""
    fastest = tuple(_fastest(plan, pins, calibration, target) for plan in plans)
    return tuple(sorted(fastest, key=lambda one: one.step_time_s))


def other_orders(scenario: Scenario, pins: Pins) -> Iterator[Scenario]:
    """The scenario in every other order that is pinned, or that its engine can be told, and that can run."""
    plan = scenario.plan
    if plan.mesh.pp == 1 or plan.mesh.dp == 1:
        return
    for order in pins.order or tuple(order for order in ORDERS if order in tellable_orders(scenario)):
        alternative = replace(scenario, plan=replace(plan, mesh=replace(plan.mesh, order=order)))
        if order != plan.mesh.order and not check(alternative):
            yield alternative


def _fastest(plan: Prediction, pins: Pins, calibration: Calibration | None, target: ExportTarget | None) -> Prediction:
    best = plan
    for alternative in other_orders(plan.scenario, pins):
        if target is not None and target.unsupported_decisions(alternative):
            continue
        prediction = predict(alternative, calibration)
        if isinstance(prediction, Prediction) and prediction.step_time_s < best.step_time_s * (1 - GAINS):
            best = prediction
    return best
