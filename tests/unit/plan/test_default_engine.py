"""One default engine per machine, whichever verb asks."""

from __future__ import annotations

import pytest

from ridgeline.hardware.load import CHIPS
from ridgeline.hardware.load import system as load_system
from ridgeline.plan.engine import default_engine, default_engine_note
from ridgeline.plan.scenario_file import scenario
from ridgeline.search.training.request import PlanRequest, cases

WORK = {"seq": 2048, "global_batch": 64}


@pytest.mark.parametrize(
    ("chip", "engine"),
    [("tpu-v5p", "maxtext"), ("ascend-910b2", "mindspeed"), ("h100-sxm", "megatron-core"), ("mi300x", "megatron-core")],
)
def test_a_scenario_takes_the_engine_of_its_chips(chip: str, engine: str) -> None:
    made = scenario({"model": "llama3-8b", "system": f"8x{chip}", "workload": WORK})
    assert made.engine.id == made.plan.engine == engine
    assert default_engine_note(made.system) in made.assumptions


def test_the_note_says_why() -> None:
    assert (
        default_engine_note(load_system("8xtpu-v5p")) == "engine = maxtext: not given; the default for Google's chips"
    )
    assert default_engine_note(load_system("8xh100-sxm")) == "engine = megatron-core: not given; the default"


@pytest.mark.parametrize("vendor", sorted({CHIPS[id].vendor for id in CHIPS}))
def test_predict_and_plan_take_the_same(vendor: str) -> None:
    chip = next(id for id in CHIPS if CHIPS[id].vendor == vendor and {"bf16", "fp16"} & set(CHIPS[id].peak))
    precision = "bf16" if "bf16" in CHIPS[chip].peak else "fp16"
    table = {"model": "llama3-8b", "system": f"1x{chip}", "workload": WORK, "plan": {"precision": precision}}
    asked = PlanRequest(table=table)
    (case,) = cases(asked, [])
    assert case.scenario.engine.id == scenario(table).engine.id == default_engine(case.scenario.system)
