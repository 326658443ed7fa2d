"""Plans of small spaces, each case a way in which a sweep could differ from single predictions."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest

from ridgeline.core.dtype import dtype
from ridgeline.cost.calibration import Calibration
from ridgeline.plan.plan import Offload, Plan, Precision, Recompute, Schedule, Switches
from ridgeline.plan.scenario import Scenario
from ridgeline.plan.scenario_file import assemble
from ridgeline.search.training.plan_search import find_plan
from ridgeline.search.training.space import Space
from ridgeline.search.training.sweep import chunks_of, priced_grids
from ridgeline.sim.predict_step import predict
from ridgeline.sim.prediction import Prediction

DEFAULTS = Calibration(offsets={})
ONE = Space(
    tp=(1,), cp=(1,), pp=(1,), ep=(1,), etp=(1,), microbatch=(1,), schedule=(Schedule(),), shard=("none",),
    shard_degree=(0,), recompute=(Recompute(),), offload=(Offload(),), precision=(Precision(),), switches=(Switches(),),
)  # fmt: skip


def built(model: str = "llama3-8b", system: str = "16xh100-sxm", engine: str = "megatron-core") -> Scenario:
    table = {
        "model": model,
        "system": system,
        "workload": {"seq": 4096, "global_batch": 48},
        "plan": {"engine": engine},
    }
    made, _ = assemble(table)
    assert made is not None
    return made


def plans(scenario: Scenario, **choices: Any) -> list[tuple[Plan, float, float]]:
    """Every plan of a space of one choice but for these axes, with what the sweep says of it."""
    space = replace(ONE, **choices)
    return [
        (chunk.plan(place), float(chunk.step_s[place]), float(chunk.peak_bytes[place]))
        for chunk in chunks_of(priced_grids(scenario, space, DEFAULTS), space)
        for place in range(len(chunk.step_s))
    ]


def agree(scenario: Scenario, found: list[tuple[Plan, float, float]]) -> None:
    for plan, step_s, peak in found:
        single = predict(replace(scenario, plan=plan), DEFAULTS)
        assert isinstance(single, Prediction), single
        assert step_s == pytest.approx(single.step_time_s, rel=1e-9), plan
        assert peak == pytest.approx(single.memory.peak_bytes, rel=1e-9), plan


def test_a_space_of_one_plan() -> None:
    found = plans(built())
    assert [plan.mesh.dp for plan, _, _ in found] == [16]
    agree(built(), found)


def test_layers_recomputed_differ_between_structures() -> None:
    some = [Recompute(kind="full", layers=layers) for layers in (1, 3)]
    found = plans(built(), recompute=(Recompute(), *some), pp=(2, 4))
    assert len(found) == 6
    assert len({step_s for _, step_s, _ in found}) == 6
    agree(built(), found)


def test_graphs_differ_between_structures() -> None:
    found = plans(built(engine="torchtitan"), switches=(Switches(), Switches(graph="full"), Switches(graph="partial")))
    eager, full, partial = (step_s for _, step_s, _ in found)
    assert full < partial < eager
    agree(built(engine="torchtitan"), found)


def test_formats_a_chip_does_not_have_are_left_out() -> None:
    formats = (Precision(), Precision(compute=dtype("fp8")))
    assert len(plans(built(), precision=formats)) == 2
    assert [plan.precision for plan, _, _ in plans(built(system="16xa100-80-sxm"), precision=formats)] == [Precision()]


def test_recompute_names_blocks_the_model_has() -> None:
    named = Recompute(kind="full", blocks={"7": "none"})
    assert plans(built(), recompute=(named,)) == []


@pytest.mark.parametrize("shard", ["zero1", "zero2", "zero3"])
def test_a_pinned_shard_degree_may_be_all_replicas(shard: str) -> None:
    found = plans(built(), shard=(shard,), shard_degree=(16, 8, 5))
    assert [plan.shard_degree for plan, _, _ in found] == [16, 8]
    agree(built(), found)
    both = plans(built(), shard=(shard,), shard_degree=(0, 16, 8))
    assert [plan.shard_degree for plan, _, _ in both] == [16, 8]  # all of them is one plan, by either name


def test_no_chunk_is_empty() -> None:
    assert plans(built(), shard=("zero1",), shard_degree=(5,)) == []
    space = replace(ONE, shard=("zero1",), shard_degree=(5,))
    assert list(chunks_of(priced_grids(built(), space, DEFAULTS), space)) == []


def test_without_a_pipeline_all_schedules_are_one() -> None:
    several = (Schedule(name="zbv", chunks=2), Schedule(name="gpipe"), Schedule())
    assert [plan.schedule for plan, _, _ in plans(built(), schedule=several)] == [Schedule()]
    assert [plan.schedule for plan, _, _ in plans(built(), schedule=several[:2])] == [Schedule(name="gpipe")]
    assert plans(built(), schedule=several[:1]) == []


@pytest.mark.parametrize("model", ["gpt3-125m", "deepseek-v2-lite", "deepseek-v3"])
def test_a_rank_with_both_ends_sums_no_embedding(model: str) -> None:
    """Tied embeddings and prediction blocks: v-shaped schedules give both copies to one rank."""
    schedules = (
        Schedule(name="interleaved", chunks=2),
        Schedule(name="zbv", chunks=2),
        Schedule(name="dualpipe-v", chunks=2),
    )
    scenario = built(model)
    found = plans(scenario, pp=(2, 4), schedule=schedules, shard=("none", "zero1", "zero3"))
    assert {plan.schedule.name for plan, _, _ in found} == {"interleaved", "zbv", "dualpipe-v"}
    agree(scenario, found)


def test_idle_switches_are_not_counted_twice() -> None:
    switches = (Switches(), Switches(sequence_parallel=False), Switches(cp_kind="all-to-all"))
    assert len(plans(built(), switches=switches)) == 1
    assert len(plans(built(), switches=switches, tp=(2,))) == 2
    assert len(plans(built(), switches=switches, cp=(2,))) == 2


def test_a_busy_first_rank_is_not_charged_for_sends_it_hides() -> None:
    """A picture tower makes the first rank the busiest: its work and the schedule run side by side, sends included."""
    work = {"seq": 2048, "global_batch": 32, "images": 1.0, "task": "lora"}
    table = {"model": "gemma3-4b", "system": "16xa100-80-sxm", "workload": work, "plan": {"engine": "torchtitan"}}
    scenario, _ = assemble(table)
    assert scenario is not None
    found = plans(scenario, tp=(4,), pp=(4,), shard=("zero3",), offload=(Offload(activations=0.5),))
    assert len(found) == 1
    agree(scenario, found)


THREADS = """
from ridgeline.plan.scenario_file import assemble
from ridgeline.search.training.plan_search import find_plan
table = {"model": "mixtral-8x7b", "system": "64xh100-sxm", "workload": {"seq": 4096, "global_batch": 128}}
found = find_plan(assemble(table)[0], {"microbatch": (1, 2), "cp": (1,)})
print(found.swept.considered, found.swept.feasible)
for entry in (*found.swept.best, *found.swept.frontier):
    print(entry.plan, entry.step_s.hex(), entry.peak_bytes.hex())
"""


def test_threads_decide_nothing() -> None:
    said = [
        subprocess.run(
            [sys.executable, "-c", THREADS],
            env={**os.environ, "OPENBLAS_NUM_THREADS": count, "OMP_NUM_THREADS": count},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for count in ("1", "4")
    ]
    assert said[0] == said[1]
    assert int(said[0].split()[1]) > 64


@pytest.mark.parametrize(
    ("model", "engine"),
    [("llama3-8b", "megatron-core"), ("qwen3-30b-a3b", "megatron-core"), ("llama3-8b", "torch-eager")],
)
def test_a_search_for_the_best_alone_finds_the_best(model: str, engine: str) -> None:
    """Bounds leave out plans, never the fastest one that fits."""
    scenario = built(model, engine=engine)
    everything, bounded = find_plan(scenario), find_plan(scenario, most=1, below_s=1e9)
    assert bounded.swept.considered < everything.swept.considered
    assert bounded.plans[0] == everything.plans[0]
    too_fast = find_plan(scenario, most=1, below_s=everything.plans[0].step_time_s * 0.5)
    assert not too_fast.plans
