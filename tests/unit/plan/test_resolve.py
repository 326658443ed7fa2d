"""A plan's open switches are settled once; prices, memory and exports read the same value."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest

import ridgeline
from ridgeline.core.dtype import dtype
from ridgeline.core.errors import InputError
from ridgeline.hardware.load import CHIPS
from ridgeline.lowering.plan_columns import plan_columns
from ridgeline.plan.engine import ENGINES, OVERLAPS
from ridgeline.plan.resolve import resolve
from ridgeline.plan.scenario import Scenario
from ridgeline.plan.schedules import SCHEDULES
from ridgeline.targets.decisions import decisions_of

ENGINES_WITH_STAGES = ("megatron-core", "nemo", "megatron-bridge", "mindspeed", "torchtitan")


def made(plan: dict[str, Any] | None = None, **tables: Any) -> Scenario:
    base = {"model": "llama3-8b", "system": "16xh100-sxm", "workload": {"seq": 4096, "global_batch": 64}}
    return ridgeline.scenario({**base, "plan": {"tp": 2, "pp": 4, "dp": 2, **(plan or {})}, **tables})


def step_s(scenario: Scenario) -> float:
    found = ridgeline.predict(scenario)
    assert isinstance(found, ridgeline.Prediction), found
    return found.step_time_s


@pytest.mark.parametrize(("engine", "schedule"), list(product(ENGINES_WITH_STAGES, SCHEDULES)))
def test_what_is_priced_is_what_is_exported(engine: str, schedule: str) -> None:
    scenario = made({"engine": engine, "schedule": schedule})
    priced, told = plan_columns([scenario]), decisions_of(scenario)
    overlap = resolve(scenario).overlap
    columns = {
        "tp": priced.overlap_tp,
        "pp": priced.overlap_pp,
        "grad-reduce": priced.overlap_grad,
        "param-gather": priced.overlap_gather,
        "moe": priced.overlap_moe,
    }
    for word, column in columns.items():
        assert bool(column[0]) == overlap[word]
        assert told.get(f"plan.overlap.{word}", overlap[word]) == overlap[word]


@pytest.mark.parametrize("word", OVERLAPS)
def test_a_plan_has_the_last_word_on_overlap(word: str) -> None:
    for said in (True, False):
        assert resolve(made({"overlap": {word: said}})).overlap[word] is said


def test_formats_and_fusions() -> None:
    assert resolve(made()).gradients == ENGINES["megatron-core"].gradients
    assert resolve(made({"precision": {"name": "bf16", "gradients": "bf16"}})).gradients == dtype("bf16")
    scalings = {name: resolve(made({"precision": name})).precision.scaling for name in ("bf16", "fp8", "mxfp8")}
    assert scalings == {"bf16": None, "fp8": "tensor", "mxfp8": "block"}
    eager, compiled = ({"pp": 1, "dp": 8, "engine": "torch-eager", "compiled": on} for on in (False, True))
    assert resolve(made(compiled)).fuses - resolve(made(eager)).fuses == {"elementwise"}


class TestChipAsValue:
    def table(self, **more: Any) -> dict[str, Any]:
        """The shipped H100, written out in a user's own system."""
        own = {**CHIPS.table("h100-sxm"), **more}
        own.pop("aliases")
        return {"base": "16xh100-sxm", "chip": {"id": "my-chip", **own}}

    def test_a_copy_is_predicted_to_the_last_digit(self) -> None:
        copy = made(system=self.table())
        assert copy.system.chip.id == "my-chip"
        assert step_s(copy) == step_s(made())

    def test_a_copy_without_its_runs_is_a_chip_of_its_family(self) -> None:
        stranger = made(system=self.table(calibrated_as="", family="hopper"))
        orphan = made(system=self.table(calibrated_as="", family=""))
        found = ridgeline.predict(stranger)
        assert isinstance(found, ridgeline.Prediction)
        assert any("no measured run of chip my-chip" in line for line in found.assumptions)
        assert len({step_s(made()), step_s(stranger), step_s(orphan)}) == 3


class TestEngineAsValue:
    def test_a_copy_is_predicted_to_the_last_digit(self) -> None:
        own = {**ENGINES.table("megatron-core"), "id": "our-fork"}
        own.pop("aliases")
        copy = made(engine=own)
        assert (copy.engine.id, copy.plan.engine) == ("our-fork", "our-fork")
        assert step_s(copy) == step_s(made())

    def test_habits_that_differ_are_priced_and_said(self) -> None:
        other = made(engine={"overlaps": ["tp"]})
        assert other.plan.engine == "megatron-core"
        assert any(line.startswith("engine.overlaps") for line in other.assumptions)
        assert step_s(other) != step_s(made())

    def test_an_engine_from_nothing(self) -> None:
        own = {
            "id": "ours",
            "name": "ours",
            "source": "me",
            "evidence": "assumed",
            "launch": {"mode": "eager"},
            "supports": {"axes": ["tp", "pp", "dp"], "schedules": ["1f1b"]},
        }
        found = ridgeline.predict(made(engine=own))
        assert isinstance(found, ridgeline.Prediction)
        assert any("no measured run of engine ours" in line for line in found.assumptions)

    def test_an_alias_means_the_same(self) -> None:
        assert made({"engine": "mcore"}).plan.engine == "megatron-core"

    @pytest.mark.parametrize(
        ("tables", "said"),
        [
            ({"engine": {"base": "nem"}}, "did you mean 'nemo'"),
            ({"engine": {"base": "nemo"}, "plan": {"engine": "megatron-core"}}, "name the engine that [engine]"),
            ({"engine": {"overlap": ["tp"]}}, "did you mean 'overlaps'"),
            ({"engine": {"overlaps": ["everything"]}}, "engine.overlaps"),
            ({"engine": "nemo"}, "a table; a plan names its engine"),
            ({"plan": {"engine": "megatrn"}}, "did you mean 'megatron-core'"),
        ],
    )
    def test_refusals(self, tables: dict[str, Any], said: str) -> None:
        with pytest.raises(InputError) as wrong:
            made(**tables) if "plan" not in tables else made(
                tables["plan"], **{key: value for key, value in tables.items() if key != "plan"}
            )
        assert said in str(wrong.value)
        assert str(wrong.value).count("plan.engine") <= 1
