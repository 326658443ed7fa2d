"""Plans of a kind share mesh, sharding and recompute; the best of another kind is the best of all that differ."""

from __future__ import annotations

from ridgeline.plan.scenario_file import assemble
from ridgeline.search.training.plan_search import find_plan, kind_of, kind_words, kinds, supported_chunks
from ridgeline.search.training.shortlist import entry
from ridgeline.search.training.space import space_of
from ridgeline.search.training.sweep import priced_grids
from ridgeline.sim.predict_step import default_calibration

TABLE = {"model": "llama3-8b", "system": "16xh100-sxm", "workload": {"seq": 8192, "global_batch": 64}}


def test_the_best_of_another_kind_is_the_best_of_all_that_differ() -> None:
    base, _ = assemble(TABLE)
    assert base is not None
    found = find_plan(base)
    first, second = kinds(found.swept, 2)
    assert first == found.swept.best[0]
    space = space_of(base)
    others = [
        one.step_s
        for chunk in supported_chunks(priced_grids(base, space, default_calibration()), base, space)
        for one in (entry(chunk, place) for place in range(len(chunk.step_s)))
        if one.peak_bytes <= found.capacity_bytes and kind_of(one.plan) != kind_of(first.plan)
    ]
    assert second.step_s == min(others)


def test_no_two_are_of_one_kind() -> None:
    base, _ = assemble(TABLE)
    assert base is not None
    found = kinds(find_plan(base).swept, 8)
    words = [kind_words(one.plan) for one in found]
    assert len(set(words)) == len(words) == 8
    assert [one.step_s for one in found] == sorted(one.step_s for one in found)
