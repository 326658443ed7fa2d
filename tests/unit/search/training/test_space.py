"""Choices along each axis follow from the engine, the system, the model and the workload, unless they are pinned."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest

from ridgeline.plan.capability import unsupported_decisions
from ridgeline.plan.engine import ENGINES
from ridgeline.plan.plan import Offload, Precision, Recompute, Schedule
from ridgeline.plan.scenario import Scenario
from ridgeline.plan.scenario_file import assemble
from ridgeline.search.choices import divisors, powers_of_two
from ridgeline.search.training.plan_search import find_plan, supported_chunks
from ridgeline.search.training.space import Pins, Space, parts_of, space_of
from ridgeline.search.training.sweep import priced_grids
from ridgeline.sim import Prediction, default_calibration, predict


def built(model: str, system: str, *, seq: int = 8192, **plan: Any) -> Scenario:
    made, _ = assemble({"model": model, "system": system, "workload": {"seq": seq, "global_batch": 64}, "plan": plan})
    assert made is not None
    return made


def test_a_dense_model_on_two_nodes() -> None:
    space = space_of(built("llama3-8b", "16xh100-sxm", engine="megatron-core"))
    assert space.tp == (1, 2, 4, 8)  # as far as a node's links go
    assert space.cp == (1, 2, 4)  # no rank with less than 2048 tokens
    assert space.pp == (1, 2, 4, 8, 16)
    assert (space.ep, space.etp) == ((1,), (1,))  # there are no experts
    assert space.microbatch == (1, 2, 4, 8, 16)
    assert space.shard == ("none", "zero1", "zero2", "zero3")
    assert [recompute.kind for recompute in space.recompute] == ["none", "selective", "selective", "full"]
    assert (space.offload, space.precision, space.shard_degree) == ((Offload(),), (Precision(),), (0,))


def test_pipelines_of_chips_that_are_no_power_of_two() -> None:
    assert space_of(built("llama3-8b", "24xh100-sxm")).pp == (1, 2, 3, 4, 6, 8, 12, 24)


def test_experts_are_split_by_divisors() -> None:
    space = space_of(built("deepseek-v3", "2048xh100-sxm"))
    assert space.ep == (1, 2, 4, 8, 16, 32, 64, 128, 256)
    assert space.etp == (1, 2, 4, 8)


def test_short_sequences_are_not_cut() -> None:
    assert space_of(built("llama3-8b", "16xh100-sxm", seq=2048)).cp == (1,)


@pytest.mark.parametrize("engine", list(ENGINES))
def test_nothing_an_engine_does_not_know(engine: str) -> None:
    able = ENGINES[engine].supports
    space = space_of(built("mixtral-8x7b", "16xh100-sxm", engine=engine))
    for axis in ("tp", "cp", "pp", "ep", "etp"):
        assert (getattr(space, axis) == (1,)) == (axis not in able.axes), axis
    assert {schedule.name for schedule in space.schedule} <= {"1f1b", *able.schedules}
    assert space.schedule[0] == Schedule()
    assert set(space.shard) == set(able.shard)
    assert {recompute.kind for recompute in space.recompute} <= {"none", *able.recompute}


def test_pins_take_the_place_of_choices() -> None:
    free = space_of(built("llama3-8b", "16xh100-sxm"))
    pinned = space_of(built("llama3-8b", "16xh100-sxm"), {"tp": (4,), "recompute": (Recompute(kind="full"),)})
    assert (pinned.tp, pinned.recompute) == ((4,), (Recompute(kind="full"),))
    for item in fields(Space):
        if item.name not in ("tp", "recompute"):
            assert getattr(pinned, item.name) == getattr(free, item.name)


def test_structures_are_products() -> None:
    space = space_of(built("mixtral-8x7b", "16xh100-sxm"))
    structures = space.structures
    assert len(structures) == len(space.recompute) * len(space.precision) * len(space.switches)
    assert len({str(structure) for structure in structures}) == len(structures)


def test_lists_of_sizes() -> None:
    assert powers_of_two(1) == [1]
    assert powers_of_two(64)[-1] == 64
    assert powers_of_two(63)[-1] == 32
    assert divisors(36, 100) == [1, 2, 3, 4, 6, 9, 12, 18, 36]
    assert divisors(36, 5) == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("engine", "shards"),
    [
        ("megatron-core", ("none", "zero1")),  # Megatron-FSDP goes without stages
        ("deepspeed", ("none", "zero1")),  # its pipeline engine refuses more
        ("torchtitan", ("none", "zero2", "zero3")),
    ],
)
def test_stages_leave_the_sharding_that_goes_with_them(engine: str, shards: tuple[str, ...]) -> None:
    scenario = built("llama3-8b", "16xh100-sxm", engine=engine)
    space = space_of(scenario)
    flat, staged = parts_of(scenario, space)
    assert (flat.pp, flat.shard) == ((1,), ENGINES[engine].supports.shard)
    assert (set(flat.pp) | set(staged.pp), staged.shard) == (set(space.pp), shards)
    pins = Pins(shard=("zero3",))
    assert parts_of(scenario, space_of(scenario, pins), pins)[1].shard == ("zero3",), "a pin is a wish"


@pytest.mark.parametrize(
    ("model", "engine", "parts"),
    [
        ("llama3-8b", "megatron-core", [("attention",), ("mlp",)]),  # moe_act is of experts, norms run inside products
        ("mixtral-8x7b", "megatron-core", [("attention",), ("activation",)]),  # half of its norms
        ("deepseek-v3", "megatron-core", [("attention",), ("norm", "activation")]),
        ("llama3-8b", "torchtitan", [("alternate",)]),
        ("llama3-8b", "maxtext", [("norm", "activation"), ("norm", "mlp")]),
    ],
)
def test_selective_recompute_is_what_the_engine_can_be_told(model: str, engine: str, parts: list[Any]) -> None:
    space = space_of(built(model, "16xh100-sxm", engine=engine))
    assert [one.parts for one in space.recompute if one.kind == "selective"] == parts


def test_parts_that_a_plan_names_are_tried_too() -> None:
    own = {"kind": "selective", "parts": ["attention", "activation"]}
    space = space_of(built("llama3-8b", "16xh100-sxm", engine="megatron-core", recompute=own))
    assert Recompute(kind="selective", parts=("attention", "activation")) in space.recompute


def test_a_space_with_stages_alone_has_one_part() -> None:
    scenario = built("llama3-8b", "16xh100-sxm", engine="megatron-core")
    assert [part.pp for part in parts_of(scenario, space_of(scenario, {"pp": (4, 8)}))] == [(4, 8)]


def test_tensor_ranks_of_a_domain_that_is_no_power_of_two() -> None:
    slice_ = space_of(built("llama3-8b", "2xtpu-v4:12x16x16", engine="maxtext"))
    assert {3, 6, 12, 24, 48} <= set(slice_.tp)
    assert {3, 6, 12} <= set(space_of(built("llama3-8b", "144xgb200-nvl72")).tp)
    assert space_of(built("llama3-8b", "96xh100-sxm")).tp == (1, 2, 4, 8)


def test_experts_are_dispatched_as_well_as_the_engine_can() -> None:
    def told(system: str, engine: str) -> set[tuple[str | None, bool | None]]:
        space = space_of(built("mixtral-8x7b", system, engine=engine))
        return {(one.moe_dispatch, one.overlap.get("moe")) for one in space.switches}

    assert told("16xh100-sxm", "megatron-core") == {("deepep", None), ("deepep", True)}
    assert told("72xgb200-nvl72", "megatron-bridge") == {("hybridep", None), ("hybridep", True)}
    assert told("16xmi300x", "megatron-core") == {(None, None), (None, True)}
    assert told("16xh100-sxm", "hai-llm") == {("deepep", None)}
    assert told("16xh100-sxm", "paddlenlp") == {(None, None)}
    assert {one.moe_dispatch for one in space_of(built("llama3-8b", "16xh100-sxm")).switches} == {None}


def test_dispatch_overlaps_only_where_the_engine_does_that() -> None:
    scenario = built("mixtral-8x7b", "64xh100-sxm", engine="megatron-core")
    space = space_of(scenario, {"pp": (2,), "ep": (8,), "tp": (1,), "cp": (1,), "etp": (1,), "microbatch": (1,)})
    used = default_calibration()
    for chunk in supported_chunks(priced_grids(scenario, space, used), scenario, space):
        for index in range(len(chunk.dp)):
            plan = chunk.plan(index)
            if plan.switches.overlap.get("moe"):
                assert plan.schedule.name == "interleaved"
                assert plan.recompute.kind != "full"
                assert not any(
                    "expert dispatch" in note for note in unsupported_decisions(replace(scenario, plan=plan))
                )


def test_an_overlap_that_a_plan_states_keeps_to_its_schedules_too() -> None:
    told = built("mixtral-8x7b", "64xh100-sxm", engine="megatron-core", overlap={"moe": True})
    few = {"pp": 4, "ep": 8, "tp": 1, "cp": 1, "etp": 1, "microbatch": 1}
    assert find_plan(told, few, most=1).plans[0].scenario.plan.schedule.name == "interleaved"
    asked = find_plan(told, {**few, "schedule": Schedule()}, most=1).plans[0].scenario
    assert asked.plan.schedule.name == "1f1b"
    assert (
        "engine megatron-core is not known to support overlap of expert dispatch in this plan"
        in unsupported_decisions(asked)
    )


def test_a_plan_of_ones_own_is_in_the_space() -> None:
    own = built("llama3-8b", "24xh100-sxm", tp=2, dp=4, pp=3, microbatch=8, shard="zero1", shard_degree=2)
    own = replace(own, workload=replace(own.workload, global_batch=96))
    own = replace(own, plan=replace(own.plan, microbatch=12))
    assert 12 not in find_plan(own, most=1).space.microbatch
    found = find_plan(own, most=1, given=True)
    assert 12 in found.space.microbatch
    assert 2 in found.space.shard_degree
    made = predict(own)
    assert isinstance(made, Prediction)
    assert found.plans[0].step_time_s <= made.step_time_s
    assert find_plan(own, {"microbatch": 1}, most=1, given=True).space.microbatch == (1,)
