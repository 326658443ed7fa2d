"""Laws of the search: it prices a plan as `predict` does, misses none that can run and offers none that cannot.

The oracle is slow and simple: every combination of choices, `check` on each, `predict` on what passes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, replace
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, event, given, settings
from hypothesis import strategies as st

from ridgeline.core.dtype import dtype
from ridgeline.cost.calibration import Calibration
from ridgeline.models.spec import Moe
from ridgeline.plan.check import check
from ridgeline.plan.mesh import ORDERS, Mesh
from ridgeline.plan.plan import Offload, Plan, Precision, Recompute, Schedule, Sharding, Switches
from ridgeline.plan.scenario import Scenario
from ridgeline.plan.scenario_file import assemble
from ridgeline.search.training import sweep
from ridgeline.search.training.plan_search import SweepResult, find_plan, swept
from ridgeline.search.training.space import Space
from ridgeline.search.training.sweep import chunks_of, priced_grids
from ridgeline.sim.memory.peak import capacity_of
from ridgeline.sim.predict_step import not_predictable, predict
from ridgeline.sim.prediction import Prediction

DEFAULTS = Calibration(offsets={})
FEW = settings(max_examples=25, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])
SAME = 1e-9

# dense, tied, windows, experts, latent attention, state space, delta rule, prediction blocks, pictures
MODELS = (
    "llama3-8b", "gpt3-125m", "gemma3-4b", "mixtral-8x7b", "gpt-oss-20b", "deepseek-v2-lite", "nemotron-h-8b",
    "nemotron3-nano-30b-a3b", "qwen3.5-35b-a3b", "deepseek-v3",
)  # fmt: skip
SYSTEMS = ("8xh100-sxm", "16xa100-80-sxm", "32xh100-sxm", "16xmi300x", "tpu-v5p:2x2x4", "16xgb200-nvl72", "12xh100-sxm")
ENGINES = ("megatron-core", "torchtitan", "torch-eager", "maxtext", "deepspeed", "mlperf-nvidia")
FP8 = Precision(compute=dtype("fp8"))
FULL = Recompute(kind="full")
CHOICES: dict[str, tuple[Any, ...]] = {
    "tp": (1, 2, 4, 8),
    "cp": (1, 2, 4),
    "pp": (1, 2, 3, 4, 8),
    "ep": (1, 2, 4, 8),
    "etp": (1, 2),
    "microbatch": (1, 2, 3, 4),
    "schedule": (
        Schedule(), Schedule(name="gpipe"), Schedule(name="interleaved", chunks=2), Schedule(name="zbv", chunks=2),
        Schedule(name="interleaved", chunks=3), Schedule(name="zero-bubble-h1"), Schedule(name="dualpipe-v", chunks=2),
    ),
    "shard": ("none", "zero1", "zero2", "zero3"),
    "shard_degree": (0, 2, 4, 8),
    "recompute": (
        Recompute(), Recompute(kind="selective"), FULL, replace(FULL, layers=1), replace(FULL, layers=2),
        Recompute(kind="selective", parts=("attention", "activation")), Recompute(kind="full", blocks={"0": "none"}),
    ),
    "offload": (Offload(), Offload(activations=0.5), Offload(optimizer=1.0), Offload(activations=1.0, optimizer=0.5)),
    "precision": (
        Precision(), FP8, Precision(gradients=dtype("bf16")), Precision(weights=dtype("fp32")),
        Precision(compute=dtype("fp32"), weights=dtype("fp32"), activations=dtype("fp32")),
    ),
    "switches": (
        Switches(), Switches(sequence_parallel=False), Switches(cp_kind="all-to-all"), Switches(graph="full"),
        Switches(overlap={"tp": True, "grad-reduce": False}), Switches(attention="unfused"), Switches(compiled=True),
        Switches(moe_dispatch="deepep", moe_imbalance=1.3), Switches(launch_blocking=True),
    ),
}  # fmt: skip
DEGREES = ("tp", "cp", "pp", "ep", "etp", "microbatch")  # small where they are not varied, so that most draws can run
WORK = st.fixed_dictionaries(
    {"seq": st.sampled_from([512, 2048, 3072]), "global_batch": st.sampled_from([12, 24, 32, 48])},
    optional={
        "task": st.just("lora"),
        "optimizer": st.sampled_from(["adamw", "muon"]),
        "images": st.just(1.0),
    },
)


@st.composite
def problems(draw: st.DrawFn) -> tuple[Scenario, Space]:
    """A scenario and a small space of plans for it, its choices in any order."""
    table = {
        "model": draw(st.sampled_from(MODELS)),
        "system": draw(st.sampled_from(SYSTEMS)),
        "workload": draw(WORK),
        "plan": {"engine": draw(st.sampled_from(ENGINES))},
    }
    scenario, _ = assemble(table)
    assert scenario is not None
    dense = not any(isinstance(block.ffn, Moe) for block in scenario.model.blocks)
    opened = draw(st.sets(st.sampled_from(list(CHOICES)), min_size=1, max_size=4))
    axes: dict[str, tuple[Any, ...]] = {}
    for axis, known in CHOICES.items():
        if dense and axis in ("ep", "etp"):
            axes[axis] = (1,)
        elif axis in opened:
            axes[axis] = tuple(draw(st.lists(st.sampled_from(known), min_size=2, max_size=4, unique_by=str)))
        else:
            axes[axis] = (draw(st.sampled_from(known[:2] if axis in DEGREES else known)),)
    return scenario, Space(**axes)


def combinations(scenario: Scenario, space: Space) -> Iterator[Plan]:
    """Every combination of choices that can run, without asking the search."""
    chips, base = scenario.system.chips, scenario.plan
    names = [item.name for item in fields(Space)]
    for values in product(*(getattr(space, name) for name in names)):
        at = dict(zip(names, values, strict=True))
        inner = at["tp"] * at["cp"] * at["pp"]
        if chips % inner:
            continue
        mesh = Mesh(pp=at["pp"], dp=chips // inner, cp=at["cp"], tp=at["tp"], ep=at["ep"], etp=at["etp"])
        degree = at["shard_degree"] or None
        plan = replace(
            base,
            mesh=mesh,
            microbatch=at["microbatch"],
            schedule=at["schedule"],
            sharding=Sharding(shard=at["shard"], shard_degree=None if at["shard"] == "none" else degree),
            recompute=at["recompute"],
            offload=at["offload"],
            precision=at["precision"],
            switches=at["switches"],
        )
        made = replace(scenario, plan=plan)
        if not check(made) and not any(not_predictable(made)):
            yield plan


def plainly(plan: Plan) -> Plan:
    """The plan without choices that decide nothing: switches, schedules and degrees for ranks that are not there."""
    mesh, switches, sharding = plan.mesh, plan.switches, plan.sharding
    if mesh.tp == 1:
        switches = replace(switches, sequence_parallel=None)
    if mesh.cp == 1:
        switches = replace(switches, cp_kind="ring")
    if plan.shard_degree == mesh.dp * mesh.cp:
        sharding = replace(sharding, shard_degree=None)
    schedule = plan.schedule if mesh.pp > 1 else Schedule()
    return replace(plan, switches=switches, sharding=sharding, schedule=schedule)


def priced(scenario: Scenario, space: Space) -> dict[str, tuple[Plan, float, float]]:
    """Every plan of the sweep by its name, with step time and peak memory."""
    found: dict[str, tuple[Plan, float, float]] = {}
    for chunk in chunks_of(priced_grids(scenario, space, DEFAULTS), space):
        for place in range(len(chunk.step_s)):
            plan = chunk.plan(place)
            name = str(plan)
            assert name not in found, f"priced twice: {name}"
            found[name] = (plan, float(chunk.step_s[place]), float(chunk.peak_bytes[place]))
    return found


def predicted(scenario: Scenario, plan: Plan) -> Prediction:
    found = predict(replace(scenario, plan=plan), DEFAULTS)
    assert isinstance(found, Prediction), found
    return found


def all_of(scenario: Scenario, space: Space) -> SweepResult:
    return swept(chunks_of(priced_grids(scenario, space, DEFAULTS), space), capacity_of(scenario))


@FEW
@given(problems())
def test_a_sweep_is_brute_force(problem: tuple[Scenario, Space]) -> None:
    scenario, space = problem
    oracle = {str(plainly(plan)): plan for plan in combinations(scenario, space)}
    assume(oracle)
    found: dict[str, list[tuple[Plan, float, float]]] = {}
    for entry in priced(scenario, space).values():
        found.setdefault(str(plainly(entry[0])), []).append(entry)
    assert found.keys() == oracle.keys()
    event(scenario.plan.engine)
    best, fitting = float("inf"), 0
    for name, plan in oracle.items():
        truth = predicted(scenario, plan)
        for own, step_s, peak in found[name]:
            assert not check(replace(scenario, plan=own))
            assert step_s == pytest.approx(truth.step_time_s, rel=SAME), name
            if np.isinf(peak):  # the host does not hold what is offloaded
                assert not truth.fits, name
                continue
            assert peak == pytest.approx(truth.memory.peak_bytes, rel=SAME), name
        if truth.fits:
            best, fitting = min(best, truth.step_time_s), fitting + len(found[name])
    answer = all_of(scenario, space)
    assert (answer.considered, answer.feasible) == (sum(map(len, found.values())), fitting)
    event("some plans fit" if fitting else "no plan fits")
    if fitting:
        assert answer.best[0].step_s == pytest.approx(best, rel=SAME)
        assert predicted(scenario, answer.best[0].plan).fits


@FEW
@given(problems(), st.sampled_from([1, 7]))
def test_chunks_decide_nothing(problem: tuple[Scenario, Space], size: int) -> None:
    scenario, space = problem
    whole = priced(scenario, space)
    assume(whole)
    answer = all_of(scenario, space)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sweep, "CHUNK", size)
        cut = priced(scenario, space)
        again = all_of(scenario, space)
    assert cut.keys() == whole.keys()
    for name, (_, step_s, peak) in whole.items():
        assert cut[name][1:] == pytest.approx((step_s, peak), rel=1e-12)
    _equal(answer, again)


@FEW
@given(problems(), st.randoms(use_true_random=False))
def test_the_order_of_choices_decides_nothing(problem: tuple[Scenario, Space], random: Any) -> None:
    scenario, space = problem
    moved = Space(
        **{
            item.name: tuple(random.sample(own, len(own)))
            for item in fields(Space)
            if (own := getattr(space, item.name))
        }
    )
    whole = priced(scenario, space)
    assume(whole)
    again = priced(scenario, moved)
    assert again.keys() == whole.keys()
    for name, (_, step_s, peak) in whole.items():
        assert again[name][1:] == pytest.approx((step_s, peak), rel=1e-12)
    _equal(all_of(scenario, space), all_of(scenario, moved))


def _equal(one: SweepResult, other: SweepResult) -> None:
    """The same answer to the last digits, which may differ where plans stand elsewhere in a column."""
    assert (one.considered, one.feasible, one.complete) == (other.considered, other.feasible, other.complete)
    for mine, its in ((one.best, other.best), (one.frontier, other.frontier)):
        assert len(mine) == len(its)
        figures = [np.array([(entry.step_s, entry.peak_bytes) for entry in side]) for side in (mine, its)]
        np.testing.assert_allclose(figures[0], figures[1], rtol=1e-12)


@FEW
@given(problems())
def test_the_answer_fits_and_is_predicted_as_it_was_priced(problem: tuple[Scenario, Space]) -> None:
    scenario, space = problem
    pins = {item.name: getattr(space, item.name) for item in fields(Space)}
    found = find_plan(scenario, pins, most=3, calibration=DEFAULTS)
    assume(found.swept.considered > 0)
    steps = [prediction.step_time_s for prediction in found.plans]
    assert steps == sorted(steps)
    assert all(prediction.fits for prediction in found.plans)
    swept = [entry.step_s for entry in found.swept.best[:3]]
    usual = [one.step_time_s for one in found.plans if one.scenario.plan.mesh.order == ORDERS[0]]
    every = [entry.step_s for entry in found.swept.best]
    assert all(any(step == pytest.approx(priced, rel=SAME) for priced in every) for step in usual)
    assert all(step <= priced * (1 + SAME) for step, priced in zip(steps, swept, strict=True))  # another order gains
    if not found.swept.feasible:
        assert found.swept.nearest is not None
        assert found.swept.nearest.peak_bytes > found.capacity_bytes  # less what must stay free
