"""Turn a scenario into its best few plans on its own machine: the list among which every design of a study chooses."""

from __future__ import annotations

from ridgeline.core.errors import InputError, Problem
from ridgeline.plan.scenario import Scenario, is_training
from ridgeline.search import best_plans

MOST = 6  # plans of a list: each is priced on every design


def searched_plans(scenario: Scenario) -> tuple[Scenario, ...]:
    """The scenario as it is, then the best plans that a search finds on its system."""
    if not is_training(scenario):
        expectation = "a training scenario; write the plans of prefill and decode as a list"
        raise InputError(Problem(path="workload.plans", given="search", expected=expectation))
    result = best_plans(scenario, most=MOST)
    return (scenario, *(prediction.scenario for prediction in result.plans))
