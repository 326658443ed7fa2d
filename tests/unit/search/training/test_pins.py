"""Pins: what is written under plan. or [space] becomes choices along the axes, with a scenario file's own messages."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ridgeline.core.errors import InputError, Problem
from ridgeline.plan.plan import Offload, Schedule
from ridgeline.plan.scenario import Scenario
from ridgeline.plan.scenario_file import assemble, scenario
from ridgeline.search.training.pins import join_pins, pin_settings, pins_of, settings_table
from ridgeline.search.training.plan_search import find_plan
from ridgeline.search.training.space import NO_PINS, Pins, space_of
from ridgeline.sim.predict_step import predict
from ridgeline.sim.prediction import Prediction

TABLE = {"model": "llama3-70b", "system": "64xh100-sxm", "workload": {"seq": 8192, "global_batch": 512}}


@pytest.fixture(scope="module")
def base() -> Scenario:
    built, _ = assemble(TABLE)
    assert built is not None
    return built


def pinned(base: Scenario, *settings: str) -> tuple[Pins, list[Problem]]:
    problems: list[Problem] = []
    table, rest = settings_table([f"plan.{setting}" for setting in settings], problems)
    assert not rest
    written = pin_settings(table, "--set", problems)
    return (NO_PINS if problems else pins_of(written, base, problems)), problems


@pytest.mark.parametrize(
    ("setting", "axis", "choices"),
    [
        ("tp=8", "tp", (8,)),
        ("tp=[4,8]", "tp", (4, 8)),
        ("tp=8,4", "tp", (8, 4)),
        ("tp=2..8", "tp", (2, 4, 8)),
        ("pp=3..8", "pp", (4, 8)),  # the divisors of 64 chips in that range
        ("microbatch=2", "microbatch", (2,)),
        ("shard=zero1,zero2", "shard", ("zero1", "zero2")),
        ("shard_degree=all", "shard_degree", (0,)),
        ("shard_degree=8", "shard_degree", (8,)),
        ("dp=4,8", "dp", (4, 8)),
        ("schedule=interleaved", "schedule", tuple(Schedule(name="interleaved", chunks=n) for n in range(2, 9))),
        ("schedule=zbv", "schedule", (Schedule(name="zbv", chunks=2),)),  # not megatron-core's own, but asked for
        ("schedule={name='interleaved',chunks=4}", "schedule", (Schedule(name="interleaved", chunks=4),)),
        ("schedule.chunks=1..3", "schedule", (Schedule(), *(Schedule(name="interleaved", chunks=n) for n in (2, 3)))),
        ("offload=optimizer", "offload", (Offload(optimizer=1.0),)),
        ("offload=[['optimizer','activations'],'none']", "offload", (Offload(optimizer=1, activations=1), Offload())),
        ("offload.optimizer=0.5", "offload", (Offload(optimizer=0.5),)),
    ],
)
def test_choices(base: Scenario, setting: str, axis: str, choices: tuple[Any, ...]) -> None:
    pins, problems = pinned(base, setting)
    assert not problems
    assert pins == Pins(**{axis: choices})


def test_formats_and_recompute(base: Scenario) -> None:
    pins, _ = pinned(base, "precision=bf16,fp8", "recompute=selective")
    assert [one.compute.peak for one in pins.precision or ()] == ["bf16", "fp8"]
    assert [one.weights.id for one in pins.precision or ()] == ["bf16", "bf16"]  # as a scenario file's "fp8" means
    assert [one.parts for one in pins.recompute or ()] == [("attention",), ("mlp",)]


def test_switches_multiply(base: Scenario) -> None:
    free = space_of(base).switches
    assert {(one.sequence_parallel, one.cp_kind) for one in free} == {
        (order, kind) for order in (None, False) for kind in ("ring", "all-to-all")
    }
    pins, _ = pinned(base, "sequence_parallel=true", "overlap.tp=[true,false]", "graph=full")
    made = {(one.sequence_parallel, one.cp_kind, one.overlap["tp"], one.graph) for one in pins.switches or ()}
    assert made == {(True, kind, on, "full") for kind in ("ring", "all-to-all") for on in (True, False)}
    assert len(pins.switches or ()) == 4


@pytest.mark.parametrize(
    ("setting", "path"),
    [
        ("tp=x", "plan.tp"),
        ("tp=-1", "plan.tp"),
        ("tp=0", "plan.tp"),
        ("tp=1.5", "plan.tp"),
        ("shard=zero9", "plan.shard"),
        ("precision=fp9", "plan.precision.compute"),
        ("cp_kind=rings", "plan.cp_kind"),
        ("overlap.tpp=true", "plan.overlap.tpp"),
        ("moe_imbalance=0.5", "plan.moe_imbalance"),
        ("offload.optimizer=2", "plan.offload.optimizer"),
    ],
)
def test_messages_are_those_of_a_scenario_file(base: Scenario, setting: str, path: str) -> None:
    _, problems = pinned(base, setting)
    assert [problem.path for problem in problems] == [path]
    with pytest.raises(InputError) as caught:
        scenario(TABLE, [f"plan.{setting}"])
    same = [one for one in caught.value.problems if one.path == path]
    assert (problems[0].given, problems[0].expected, problems[0].todo) == (
        same[0].given, same[0].expected, same[0].todo,
    )  # fmt: skip
    assert problems[0].where == "--set"


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("tpp=8", "did you mean 'tp'?"),
        ("schedule=zvb", "did you mean 'zbv'?"),
        ("engine=megatro", "did you mean 'megatron-core'?"),
        ("placement=[1]", "layers of each virtual stage that sum to the 80 of llama3-70b"),
        ("placement=even", "an array"),
        ("recompute.parts=norms", "norm"),
        ("tp=33..63", "a range with a choice in it"),
        ("tp=[]", "1 to 64 choices"),
        ("schedule.chunk=2", "did you mean 'chunks'?"),
        ("a.b.c=1", "plan.key=value"),
    ],
)
def test_what_is_no_choice_is_told(base: Scenario, setting: str, said: str) -> None:
    _, problems = pinned(base, setting)
    assert len(problems) == 1
    assert said in str(problems[0])


def test_settings_win_over_a_file_and_others_pass() -> None:
    problems: list[Problem] = []
    table, rest = settings_table(["plan.tp=8", "workload.seq=4096", "plan.schedule.chunks=2"], problems)
    assert (rest, problems) == (["workload.seq=4096"], [])
    both = join_pins(pin_settings({"tp": 4, "pp": 2, "schedule": {"name": "zbv"}}, "space.toml"), pin_settings(table))
    assert dict(both.values) == {"tp": (8,), "pp": (2,), "schedule.name": ("zbv",), "schedule.chunks": (2,)}
    assert both.source["pp"] == "space.toml"
    whole = join_pins(pin_settings({"schedule": {"chunks": 2}}), pin_settings({"schedule": "1f1b"}))
    assert dict(whole.values) == {"schedule": ("1f1b",)}


def test_parts_of_recompute_are_pinned_together(base: Scenario) -> None:
    pins, problems = pinned(base, "recompute.parts=norm+mlp,attention")
    assert not problems
    assert [(one.kind, one.parts) for one in pins.recompute or ()] == [
        ("selective", ("norm", "mlp")),
        ("selective", ("attention",)),
    ]


def test_some_layers_are_of_what_recomputes(base: Scenario) -> None:
    pins, _ = pinned(base, "recompute.layers=2")
    assert {one.kind for one in pins.recompute or ()} == {"selective", "full"}


def test_a_placement_is_one_choice(base: Scenario) -> None:
    pins, problems = pinned(base, "placement=[21, 21, 21, 17]")
    assert (pins.placement, problems) == (((21, 21, 21, 17),), [])
    found = find_plan(base, pins)
    plans = [one.plan for one in found.swept.best]
    assert {plan.placement for plan in plans} == {(21, 21, 21, 17)}
    assert {plan.virtual_stages for plan in plans} == {4}
    assert {plan.mesh.pp for plan in plans} == {2, 4}, "four ranks, or two of two chunks"
    for one in found.swept.best[:3]:
        made = predict(replace(base, plan=one.plan))
        assert isinstance(made, Prediction)
        assert made.step_time_s == pytest.approx(one.step_s, rel=1e-9)


def test_pins_of_a_table_are_checked() -> None:
    given = Pins.of({"tp": [4, 8], "pp": 2, "shard": "zero1", "schedule": (Schedule(),)})
    assert given == Pins(tp=(4, 8), pp=(2,), shard=("zero1",), schedule=(Schedule(),))
    assert given.pinned == ("tp", "pp", "schedule", "shard")
    assert given.without("tp").pinned == ("pp", "schedule", "shard")
    assert Pins.of(given) is given
    with pytest.raises(InputError) as caught:
        Pins.of({"tpp": (8,), "pp": ("two",), "tp": (True,), "schedule": ("zbv",)})
    assert [problem.path for problem in caught.value.problems] == ["tpp", "pp", "tp", "schedule"]
    assert "did you mean 'tp'?" in str(caught.value.problems[0])
    assert "choices of type int" in str(caught.value.problems[1])


def test_a_misspelt_axis_is_not_searched_past(base: Scenario) -> None:
    with pytest.raises(InputError, match="microbach"):
        find_plan(base, {"microbach": (1,)})
