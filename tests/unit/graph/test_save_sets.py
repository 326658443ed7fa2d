"""What a layer saves: sets against brute force, plans against an exact program, and laws of budgets."""

from __future__ import annotations

from itertools import pairwise, product

import numpy as np
import pytest
from scipy.optimize import Bounds, LinearConstraint, milp

from ridgeline.core.errors import InputError
from ridgeline.graph.save_sets import (
    LayerFront,
    SaveSet,
    layer_fronts,
    plan_saves,
    plan_stage_saves,
    recompute_within,
    save_front,
)
from ridgeline.ir.op_graph import GraphOp, GraphTensor, OpGraph


def random_front(seed: int, sets: int, count: int) -> LayerFront:
    """A front of random sets."""
    draw = np.random.default_rng(seed)
    sizes = np.cumsum(draw.uniform(1, 50, sets))
    seconds = np.cumsum(draw.uniform(0.1, 9, sets))[::-1]
    chosen = [SaveSet(saved=(str(place),), bytes=float(size), seconds=float(time))
              for place, (size, time) in enumerate(zip(sizes, seconds - seconds[-1], strict=True))]  # fmt: skip
    return LayerFront(path=f"layers.{seed}", count=count, sets=tuple(chosen))


def exact_seconds(fronts: list[LayerFront], budget: float) -> float:
    """The optimum of the integer program."""
    seconds = np.array([item.seconds for front in fronts for item in front.sets])
    sizes = np.array([item.bytes for front in fronts for item in front.sets])
    kinds = np.repeat(np.arange(len(fronts)), [len(front.sets) for front in fronts])
    rows = np.vstack([*(kinds == kind for kind in range(len(fronts))), sizes / budget]).astype(float)
    counts = [float(front.count) for front in fronts]
    constraint = LinearConstraint(rows, [*counts, -np.inf], [*counts, 1.0])
    answer = milp(
        seconds, constraints=constraint, integrality=np.ones(len(seconds)), bounds=Bounds(0, np.inf),
        options={"mip_rel_gap": 1e-6, "time_limit": 10},
    )  # fmt: skip
    return float(answer.fun)


@pytest.mark.parametrize("share", [0.05, 0.3, 0.5, 0.77, 0.95])
@pytest.mark.parametrize("kinds", [((1, 40, 126),), ((2, 30, 58), (3, 12, 3)), ((4, 20, 30), (5, 20, 30), (6, 9, 2))])
def test_a_plan_is_within_a_thousandth_of_the_exact_one(kinds: tuple[tuple[int, int, int], ...], share: float) -> None:
    fronts = [random_front(*kind) for kind in kinds]
    least, most = (sum(front.sets[end].bytes * front.count for front in fronts) for end in (0, -1))
    budget = least + (most - least) * share
    plan = plan_saves(fronts, budget)
    assert plan is not None
    assert plan.bytes <= budget * (1 + 1e-9)
    assert plan.bound_s <= exact_seconds(fronts, budget) * (1 + 1e-6)
    assert plan.seconds <= exact_seconds(fronts, budget) * 1.001
    assert {path: sum(table.values()) for path, table in plan.counts.items()} == {f.path: f.count for f in fronts}


def test_few_layers_are_as_brute_force_has_them() -> None:
    front = random_front(9, 5, 6)
    budget = 6 * front.sets[2].bytes
    best = min(
        sum(item.seconds for item in chosen)
        for chosen in product(front.sets, repeat=6)
        if sum(item.bytes for item in chosen) <= budget
    )
    plan = plan_saves([front], budget)
    assert plan is not None
    assert plan.seconds == pytest.approx(best)


def test_more_memory_is_never_slower() -> None:
    fronts = [random_front(7, 25, 32)]
    budgets = np.linspace(fronts[0].sets[0].bytes * 32, fronts[0].sets[-1].bytes * 32, 40)
    seconds = [plan.seconds for budget in budgets if (plan := plan_saves(fronts, float(budget))) is not None]
    assert all(later <= earlier * (1 + 1e-3) for earlier, later in pairwise(seconds))
    assert seconds[-1] == pytest.approx(0)


def test_stages_are_planned_within_their_own_memory() -> None:
    first, last = random_front(1, 8, 4), random_front(2, 8, 4)
    plans = plan_stage_saves([[first], [last]], [4 * first.sets[3].bytes, last.sets[0].bytes])
    assert plans[0] is not None
    assert plans[1] is None  # its memory does not hold four of the smallest sets


def chain() -> OpGraph:
    """x -> a -> b -> c -> out: a and c are cheap, b is not; the backward reads a, b and c."""
    sizes = {"x": 10, "a": 40, "b": 30, "c": 20, "out": 10}
    tensors = tuple(
        GraphTensor(id=place, shape=(size,), dtype="fp32", name="x" if name == "x" else "", saved=name in "abc",
                    role="input" if name == "x" else "activation")
        for place, (name, size) in enumerate(sizes.items())
    )  # fmt: skip
    forward = tuple(
        GraphOp(
            id=place, name=f"aten.{name}", kind="pointwise", inputs=(place,), outputs=(place + 1,), module="layers.0"
        )
        for place, name in enumerate(("a", "b", "c", "out"))
    )
    back = GraphOp(id=4, name="aten.back", kind="pointwise", inputs=(1, 2, 3), outputs=(), phase="backward")
    return OpGraph(name="chain", source="by hand", tensors=tensors, ops=(*forward, back))


def test_what_is_not_saved_is_computed_with_its_ancestors() -> None:
    front = save_front(chain(), "layers.0", {0: 1.0, 1: 10.0, 2: 2.0, 3: 5.0})
    table = {tuple(word.rpartition(" ")[2] for word in item.saved): (item.bytes, item.seconds) for item in front}
    assert table[("a", "b", "c")] == (4 * 90, 0.0)
    assert table[("b", "c")] == (4 * 50, 1.0)  # a from x
    assert table[("b",)] == (4 * 30, 3.0)  # a from x, c from b
    assert table[()] == (0.0, 13.0)
    assert ("a",) not in table  # more bytes than b alone, and slower


def test_whole_layers_have_settings_that_run_executes() -> None:
    fronts = layer_fronts(chain(), {0: 1.0, 1: 10.0, 2: 2.0})
    answer = recompute_within([LayerFront(path="", count=4, sets=fronts[0].sets)], 4 * 90 * 2)
    assert answer.settings == ("plan.recompute.kind=full", "plan.recompute.layers=2")
    assert answer.plan.seconds < answer.whole_plan.seconds
    with pytest.raises(InputError, match="--budget"):
        recompute_within([LayerFront(path="", count=4, sets=fronts[0].sets)], -1.0)
