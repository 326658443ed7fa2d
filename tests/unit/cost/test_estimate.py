"""Each op of a prediction has a price, and the prices of all ops are the step's own parts."""

from __future__ import annotations

import math

import pytest

import ridgeline
from ridgeline.core.errors import InputError
from ridgeline.core.evidence import Evidence
from ridgeline.cost.kernels import padded_flops
from ridgeline.ir.ops import MatMul, Stream
from ridgeline.plan.scenario import Scenario

WORK = {"seq": 4096, "global_batch": 1}


def alone(*settings: str, model: object = "llama3-8b") -> Scenario:
    """One layer's worth of everything on one chip: nothing is overlapped and nobody waits."""
    table = {"model": model, "system": "1xh100-sxm", "workload": WORK, "plan": {}}
    return ridgeline.scenario(table, settings)


def test_ops_sum_to_the_parts_of_the_step() -> None:
    scenario = alone()
    found = ridgeline.predict(scenario)
    assert isinstance(found, ridgeline.Prediction)
    often = {"embedding": 1, "head": 1, "block 0": 32}
    seconds = {"matmul": 0.0, "memory": 0.0}
    for one in ridgeline.estimate(scenario):
        part = {MatMul: "matmul", Stream: "memory"}.get(type(one.op))
        if part:
            seconds[part] += often[one.section] * one.estimate.seconds
    parts = {part.name: part.seconds for part in found.breakdown}
    assert seconds["matmul"] == pytest.approx(parts["matmul"], rel=1e-9)
    assert seconds["memory"] == pytest.approx(parts["memory"], rel=1e-9)


def test_a_product_is_bound_by_what_takes_longer() -> None:
    """A thin product moves its weights once for few flops; a thick one does not notice them."""
    thin = {one.op.label: one for one in ridgeline.estimate(alone("workload.seq=16")) if one.phase == "forward"}
    thick = {one.op.label: one for one in ridgeline.estimate(alone()) if one.phase == "forward"}
    assert (thin["down"].estimate.bound, thick["down"].estimate.bound) == ("memory", "compute")
    assert thick["norm"].estimate.bound == "memory"


def test_evidence_says_what_the_price_rests_on() -> None:
    known = ridgeline.estimate(alone())[0].estimate.evidence
    stranger = ridgeline.estimate(alone("chip.peak.bf16=900 TFLOP/s"))[0].estimate.evidence
    assert known is Evidence.DATASHEET
    assert stranger is Evidence.ASSUMED


def test_an_impossible_scenario_has_no_prices() -> None:
    table = {"model": "llama3-8b", "system": "8xh100-sxm", "workload": WORK, "plan": {"tp": 3}}
    from ridgeline.plan.scenario_file import assemble

    built, _ = assemble(table)
    assert built is not None
    with pytest.raises(InputError, match="attention heads"):
        ridgeline.estimate(built)


def test_padding_is_never_less_than_the_flops() -> None:
    import numpy as np

    side = np.array([100.0, 4096.0])
    assert (padded_flops(side, side, side, np.ones(2), np.full(2, 132.0)) >= 2 * side**3).all()
    assert math.isfinite(float(padded_flops(side, side, side, np.ones(2), np.full(2, 132.0))[0]))
