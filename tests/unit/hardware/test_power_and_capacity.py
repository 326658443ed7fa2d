"""What stands in for a number: a family's rated power, and usable memory beside another capacity."""

from __future__ import annotations

import pytest

from ridgeline.core.evidence import Evidence
from ridgeline.hardware.load import CHIPS, WITH_CAPACITY, chip, rated_power
from ridgeline.plan.scenario_file import scenario
from ridgeline.sim import Impossible, Prediction, predict

WORK = {"seq": 4096, "global_batch": 64}


def test_a_published_tdp_is_taken() -> None:
    assert rated_power(CHIPS["h100-sxm"]) == CHIPS["h100-sxm"].tdp
    assert rated_power(CHIPS["h20-141"]).value == 500  # type: ignore[union-attr]


def test_a_missing_tdp_is_the_highest_of_the_family_and_assumed() -> None:
    found = rated_power(CHIPS["h800-sxm"])
    assert found is not None
    assert found.value == max(
        item.tdp.value for item in map(CHIPS.__getitem__, CHIPS) if item.family == "hopper" and item.tdp
    )
    assert found.evidence is Evidence.ASSUMED


def test_without_a_family_that_states_one_there_is_none() -> None:
    assert rated_power(CHIPS["tpu-v5p"]) is None
    assert rated_power(chip({"base": "h800-sxm", "family": ""})) is None


def test_an_assumed_tdp_is_named_and_weakens_the_evidence() -> None:
    found = predict(scenario({"model": "llama3-8b", "system": "8xh800-sxm", "workload": WORK}))
    assert isinstance(found, Prediction)
    assert found.evidence is Evidence.ASSUMED
    assert "rated power 700 W: the highest of the hopper family: not published for h800-sxm" in found.assumptions
    assert found.bill.energy_j is not None


@pytest.mark.parametrize("capacity", ["40 GB", "160 GB"])
def test_usable_memory_follows_a_capacity_that_is_set(capacity: str) -> None:
    base, made = CHIPS["h100-sxm"], chip({"base": "h100-sxm", "hbm": {"capacity": capacity}})
    assert base.hbm.usable is not None
    assert base.hbm.capacity is not None
    assert made.hbm.usable is not None
    assert made.hbm.capacity is not None
    share = base.hbm.usable.value / base.hbm.capacity.value
    assert made.hbm.usable.value == pytest.approx(made.hbm.capacity.value * share)
    assert made.hbm.usable.evidence is Evidence.ANALYTIC


def test_usable_memory_that_is_set_stays() -> None:
    made = chip({"base": "h100-sxm", "hbm": {"capacity": "160 GB", "usable": "100 GB"}})
    assert made.hbm.usable is not None
    assert made.hbm.usable.value == 100e9


def test_a_prediction_says_what_it_made_of_the_capacity() -> None:
    table = {"model": "llama3-8b", "system": "8xh100-sxm", "chip": {"hbm": {"capacity": "160 GB"}}, "workload": WORK}
    small, large = (predict(scenario(one)) for one in ({**table, "chip": {}}, table))
    assert isinstance(small, Prediction)
    assert isinstance(large, Prediction)
    assert large.memory.capacity_bytes == pytest.approx(2 * small.memory.capacity_bytes)
    assert any(WITH_CAPACITY in note for note in large.assumptions)
    assert not any(WITH_CAPACITY in note for note in small.assumptions)


def test_offload_over_a_link_nobody_states_is_refused() -> None:
    table = {"model": "llama3-8b", "system": "8xtrn2", "workload": WORK, "plan": {"offload": ["optimizer"]}}
    found = predict(scenario(table))
    assert isinstance(found, Impossible)
    assert [reason.path for reason in found.reasons] == ["chip.host.bandwidth"]
    table["chip"] = {"host": {"bandwidth": "32 GB/s"}}
    assert isinstance(predict(scenario(table)), Prediction)
