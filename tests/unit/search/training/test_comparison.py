"""Systems beside each other: chances, and what a missing number would have to be."""

from __future__ import annotations

import pytest

from ridgeline.search import PlanReport, PlanRequest, Progress, SearchTime, recommend
from ridgeline.search.training.comparison import break_even, chance_better
from ridgeline.search.training.recommendation import Recommendation

PINS = ["plan.tp=1", "plan.pp=1", "plan.cp=1"]


def until_explained(progress: Progress) -> bool:
    return progress.phase == "search" or "why" in progress.what


def search(on: str, objective: str = "time", *settings: str) -> Recommendation:
    request = PlanRequest.from_options(
        "llama3-8b", on=on, seq=4096, global_batch=64, objective=objective, settings=[*PINS, *settings]
    )
    return recommend(request, until_explained)


def report_of(found: Recommendation) -> PlanReport:
    report = found.report(SearchTime(seconds=1.0, cpu_seconds=1.0, explain_seconds=0.0))
    assert isinstance(report, PlanReport)
    return report


@pytest.mark.parametrize("objective", ["time", "cost", "energy"])
def test_the_chance_is_that_of_the_ratio(objective: str) -> None:
    near, far = (search(f"8xh100-sxm,8x{other}", objective) for other in ("h200-sxm", "b200-sxm"))
    for found in (near, far):
        best = found.chosen
        assert best is not None
        assert chance_better(best, best, objective) is None
        other = next(outcome for outcome in found.outcomes if outcome is not best)
        forward, back = chance_better(other, best, objective), chance_better(best, other, objective)
        assert forward is not None
        assert back is not None
        assert 0 < forward < 0.5 < back < 1
        assert forward + back == pytest.approx(1)
    compared = report_of(near).search.comparison
    assert compared is not None
    assert (compared.objective, len(compared.alike_systems)) == (objective, 1)
    assert all(0 < chance < 0.5 for chance in compared.chance_better.values())


def test_an_objective_without_intervals_says_nothing() -> None:
    assert report_of(search("8xh100-sxm,8xh200-sxm", "memory")).search.comparison is None
    assert report_of(search("8xh100-sxm")).search.comparison is None
    sizes = report_of(search("8xh100-sxm,16xh100-sxm")).search
    assert sizes.comparison is None
    assert [row.standing and row.standing.chance_better for row in sizes.compared] == [None, None]


def test_a_price_at_the_break_even_costs_as_much() -> None:
    report = report_of(search("8xh100-sxm,tpu-v7x:2x2x2"))
    priced, unpriced = report.search.compared
    assert priced.plan
    assert unpriced.plan
    assert unpriced.standing
    assert [item.number for item in unpriced.standing.missing] == ["price", "power"]
    price, power = (item.below for item in unpriced.standing.missing)
    assert price
    assert power
    again = report_of(search("tpu-v7x:2x2x2", "time", f"chip.price={price} USD/h")).search.compared[0]
    assert again.plan
    assert again.plan.usd_per_million_tokens == pytest.approx(priced.plan.usd_per_million_tokens, rel=1e-6)
    joules = power / unpriced.plan.best.tokens_per_s_per_chip
    assert joules == pytest.approx(priced.plan.joules_per_token)


def test_without_any_price_none_is_told() -> None:
    found = search("tpu-v7x:2x2x2")
    best = found.outcomes[0].best
    assert best is not None
    assert [(item.number, item.below) for item in break_even(best, [])] == [("price", None), ("power", None)]
