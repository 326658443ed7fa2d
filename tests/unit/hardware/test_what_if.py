"""A chip with changed numbers has its own title, no price and a wider interval."""

from __future__ import annotations

import pytest

from ridgeline.api import predict
from ridgeline.hardware.load import CHIPS, chip, system
from ridgeline.hardware.what_if import chip_changes, chip_title, system_title, what_if_distance
from ridgeline.plan.scenario_file import scenario

FASTER = {"hbm": {"bandwidth": "6.7 TB/s"}}


def table(**chip_table: object) -> dict[str, object]:
    work = {"seq": 4096, "global_batch": 64}
    return {"model": "llama3-8b", "system": "8xh100-sxm", "workload": work, "plan": {"tp": 8}, "chip": chip_table}


@pytest.mark.parametrize(
    ("changed", "is_sold"),
    [(FASTER, False), ({"tdp": "800 W"}, True), ({**FASTER, "price": "9 USD/h"}, True), ({}, True)],
)
def test_price_is_of_the_chip_that_is_sold(changed: dict[str, object], is_sold: bool) -> None:
    assert CHIPS["h100-sxm"].price is not None
    assert (chip({"base": "h100-sxm", **changed}).price is not None) == is_sold


def test_catalog_chip_has_no_changes() -> None:
    for id in ("h100-sxm", "ascend-910b", "tpu-v5p"):
        assert chip_changes(CHIPS[id]) == ()
        assert what_if_distance(CHIPS[id]) == (0.0, "")
        assert chip_title(CHIPS[id]) == CHIPS[id].id


def test_title_names_two_changes_and_counts_the_rest() -> None:
    many = FASTER | {"tdp": "1400 W", "cores": 264, "peak": {"bf16": "2 PFLOP/s"}}
    assert system_title(system("8xh100-sxm", many)).endswith("and 2 more")
    assert system_title(system("8xh100-sxm", {**many, "name": "Next"})) == "8 x Next, from 8xh100-sxm"


def test_more_memory_widens_nothing_and_more_bandwidth_widens_the_interval() -> None:
    base, larger, faster, fastest = (
        predict(scenario(table(**changed))).interval  # type: ignore[union-attr]
        for changed in (
            {}, {"hbm": {"capacity": "160 GB"}}, FASTER, {"hbm": {"bandwidth": "13.4 TB/s"}},
        )
    )  # fmt: skip
    assert (larger.low, larger.high) == (base.low, base.high)
    assert base.high / base.low < faster.high / faster.low < fastest.high / fastest.low
    assert "hbm.bandwidth x 2" in faster.basis
