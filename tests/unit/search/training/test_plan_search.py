"""What a search keeps of a sweep, and what it says when nothing fits, nothing can run or somebody stops it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from ridgeline.plan.scenario import Scenario
from ridgeline.plan.scenario_file import assemble
from ridgeline.search.training.plan_search import SHORTLIST, PricedEntry, SweepResult, find_plan, swept
from ridgeline.search.training.space import space_of
from ridgeline.search.training.sweep import PlanChunk, chunks_of, priced_grids
from ridgeline.sim.memory.peak import capacity_of
from ridgeline.sim.predict_step import default_calibration


def built(model: str = "llama3-8b", system: str = "16xh100-sxm", **work: Any) -> Scenario:
    workload = {"seq": 8192, "global_batch": 64, **work}
    made, _ = assemble({"model": model, "system": system, "workload": workload})
    assert made is not None
    return made


@cache
def chunks() -> tuple[PlanChunk, ...]:
    scenario = built()
    space = space_of(scenario, {"microbatch": (1, 2), "cp": (1, 2)})
    return tuple(chunks_of(priced_grids(scenario, space, default_calibration()), space))


@cache
def answer() -> SweepResult:
    return swept(iter(chunks()), capacity_of(built()))


def everything() -> list[tuple[float, float]]:
    """Step and peak of every plan that fits, fastest first."""
    pairs = [pair for chunk in chunks() for pair in zip(chunk.step_s.tolist(), chunk.peak_bytes.tolist(), strict=True)]
    return sorted(pair for pair in pairs if pair[1] <= capacity_of(built()))


def figures(entries: tuple[PricedEntry, ...]) -> list[tuple[float, float]]:
    return [(entry.step_s, entry.peak_bytes) for entry in entries]


def test_the_shortlist_is_the_head_of_a_full_sort() -> None:
    found = everything()
    assert answer().feasible == len(found) > 8 * SHORTLIST  # so that the list was cut on the way
    assert answer().considered == sum(len(chunk.step_s) for chunk in chunks())
    assert [entry.step_s for entry in answer().best] == [step_s for step_s, _ in found[:SHORTLIST]]
    edge = found[SHORTLIST - 1][0]  # of plans as fast as the last of the list any may be on it
    sure = [pair for pair in found if pair[0] < edge]
    assert figures(answer().best)[: len(sure)] == sure


def test_nothing_beats_the_frontier_in_both() -> None:
    front, found = figures(answer().frontier), everything()
    least = float("inf")
    expected = [pair for pair in found if pair[1] < least and (least := pair[1])]
    assert front == expected


def test_faster_plans_are_counted() -> None:
    found = everything()
    than = found[100][0]
    assert swept(iter(chunks()), capacity_of(built()), than_s=than).faster == sum(step < than for step, _ in found)


def test_a_smaller_chip_never_has_a_faster_answer() -> None:
    best = [swept(iter(chunks()), capacity_of(built()) * share).best for share in (1.0, 0.5, 0.25)]
    steps = [entries[0].step_s for entries in best if entries]
    assert len(steps) > 1
    assert steps == sorted(steps)


def test_where_nothing_fits_the_nearest_is_named() -> None:
    none = swept(iter(chunks()), 1.0)
    assert (none.feasible, none.best, none.frontier) == (0, (), ())
    assert none.nearest is not None
    assert none.nearest.peak_bytes == min(float(chunk.peak_bytes.min()) for chunk in chunks())
    assert answer().nearest is None


def test_a_stopped_sweep_keeps_what_was_found() -> None:
    third = sum(len(chunk.step_s) for chunk in chunks()[:3])
    found = swept(iter(chunks()), capacity_of(built()), progress=lambda priced, _: priced < third)
    assert not found.complete
    assert found.considered == third
    assert swept(iter(chunks()[:3]), capacity_of(built())).best == found.best
    assert answer().complete


def test_an_interrupt_is_nobodys_answer() -> None:
    def interrupted() -> Iterator[PlanChunk]:
        yield from chunks()[:3]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        swept(interrupted(), capacity_of(built()))


def test_progress_is_told() -> None:
    told: list[tuple[int, float]] = []
    found = find_plan(built(), progress=lambda priced, best_s: told.append((priced, best_s)))
    counts, bests = zip(*told, strict=True)
    assert list(counts) == sorted(counts)
    assert list(bests) == sorted(bests, reverse=True)
    assert told[-1] == (found.swept.considered, found.swept.best[0].step_s)


def test_a_workload_that_is_not_predicted_has_reasons_and_no_plans() -> None:
    made, _ = assemble({"model": "llama3-8b", "system": "8xh100-sxm", "workload": {"kind": "prefill", "seq": 4096}})
    assert made is not None
    found = find_plan(made)
    assert [problem.path for problem in found.problems] == ["workload.kind"]
    assert (found.plans, found.swept.considered) == ((), 0)


def test_the_plan_it_starts_from_decides_nothing_but_engine_and_precision() -> None:
    one = built()
    other = replace(one, plan=replace(one.plan, mesh=replace(one.plan.mesh, tp=8, dp=2), microbatch=4))
    answers = [find_plan(scenario, {"cp": (1,)}, most=1).plans[0] for scenario in (one, other)]
    assert answers[0].scenario.plan == answers[1].scenario.plan


@pytest.mark.parametrize("most", [0, 1, 3])
def test_as_many_plans_as_asked(most: int) -> None:
    assert len(find_plan(built(), {"cp": (1,), "microbatch": (1,)}, most=most).plans) == most
