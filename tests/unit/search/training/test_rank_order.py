"""Rank order: how far apart axes lie, who can be told, what the search makes of it."""

from __future__ import annotations

import pytest

import ridgeline
from ridgeline.plan.capability import unsupported_decisions
from ridgeline.plan.mesh import DP_LAST, ORDERS, Mesh
from ridgeline.plan.plan import plan_words
from ridgeline.plan.scenario import Scenario
from ridgeline.plan.scenario_file import assemble
from ridgeline.search.training.plan_search import find_plan
from ridgeline.sim import Impossible, Prediction, predict

DENSE = {"model": "llama3-70b", "system": "64xh100-sxm", "workload": {"seq": 4096, "global_batch": 128}}
MIXTURE = {"model": "mixtral-8x7b", "system": "64xh100-sxm", "workload": {"seq": 4096, "global_batch": 128}}
LORA = {"task": "lora", "lora": {"rank": 16}, "seq": 2048, "global_batch": 64}
ADAPTED = {"model": "llama3-70b", "system": "32xh100-sxm", "workload": LORA}  # hardly a gradient to reduce


def built(table: dict[str, object], **plan: object) -> Scenario:
    return assemble({**table, "plan": {"tp": 2, "pp": 4, "recompute": "full", **plan}})[0]


def parts(scenario: Scenario) -> dict[str, float]:
    found = predict(scenario)
    assert isinstance(found, Prediction)
    return {part.name: part.seconds for part in found.breakdown}


def test_strides_and_ranks() -> None:
    usual, other = Mesh(tp=2, cp=2, dp=3, pp=4), Mesh(tp=2, cp=2, dp=3, pp=4, order=DP_LAST)
    assert [usual.stride(axis) for axis in ("tp", "cp", "dp", "pp")] == [1, 2, 4, 12]
    assert [other.stride(axis) for axis in ("tp", "cp", "dp", "pp")] == [1, 2, 16, 4]
    for mesh in (usual, other):
        everyone = [mesh.rank(stage, place) for stage in range(4) for place in range(12)]
        assert sorted(everyone) == list(range(48))
        for groups in (mesh.groups(6, 2), mesh.groups(4, 1, stages=True)):
            assert sorted(rank for group in groups for rank in group) == list(range(48))
    assert other.rank(1, 0) == other.stride("pp")
    assert other.rank(0, 4) == other.stride("dp")


def test_the_closed_form_prices_what_crosses_nodes() -> None:
    """Stages in a node send faster, their replicas reduce over the network."""
    usual, other = parts(built(DENSE)), parts(built(DENSE, order=DP_LAST))
    assert other["pp"] < usual["pp"] / 3
    assert other["dp"] > usual["dp"]
    assert other["tp"] == usual["tp"]


def test_nothing_changes_where_one_axis_is_one() -> None:
    assert parts(built(DENSE, tp=8, pp=8)) == parts(built(DENSE, tp=8, pp=8, order=DP_LAST))


def test_experts_keep_to_a_stage() -> None:
    wrong = predict(built(MIXTURE, order=DP_LAST, ep=8))
    assert isinstance(wrong, Impossible)
    assert "ep x etp = tp x cp (2)" in str(wrong.reasons[0])
    assert isinstance(predict(built(MIXTURE, order=DP_LAST, ep=2)), Prediction)


def test_who_can_be_told() -> None:
    assert not unsupported_decisions(built(DENSE, order=DP_LAST, shard="zero1"))
    assert any("rank order" in note for note in unsupported_decisions(built(DENSE, order=DP_LAST, engine="torchtitan")))
    refused = assemble({**DENSE, "plan": {"order": "dp-tp"}})[1]
    assert [problem.path for problem in refused] == ["plan.order"]


@pytest.mark.parametrize("target", ["megatron", "megatron-bridge"])
def test_megatron_is_told_and_read_back(target: str) -> None:
    scenario = built(DENSE, order=DP_LAST, shard="zero1")
    made = ridgeline.export(scenario, to=target)
    assert "tp-pp-dp-mapping" in " ".join(made.files.values()).replace("_", "-")
    assert made.expressed["plan.order"]
    assert any(lost.path == "plan.order" for lost in ridgeline.export(scenario, to="torchtitan").lost)
    assert "plan.order" in ridgeline.export(built(DENSE), to=target).implied


class TestSearch:
    def test_the_best_plans_are_tried_in_other_orders(self) -> None:
        found = find_plan(assemble(ADAPTED)[0], {"tp": 2, "pp": 4, "microbatch": 1, "cp": 1})
        best = found.plans[0]
        assert best.scenario.plan.mesh.order == DP_LAST
        assert f"order {DP_LAST}" in plan_words(best.scenario.plan)
        held = find_plan(assemble(ADAPTED)[0], {"tp": 2, "pp": 4, "microbatch": 1, "cp": 1, "order": ORDERS[0]})
        assert {one.scenario.plan.mesh.order for one in held.plans} == {ORDERS[0]}
        assert held.plans[0].step_time_s > best.step_time_s

    def test_a_pinned_order_is_what_the_space_is_priced_in(self) -> None:
        pinned = {"tp": 2, "pp": 4, "microbatch": 1, "cp": 1, "order": DP_LAST}
        found = find_plan(assemble(DENSE)[0], pinned)
        assert {one.scenario.plan.mesh.order for one in found.plans} == {DP_LAST}
        best = min(found.swept.best, key=lambda one: one.step_s)
        assert best.step_s == pytest.approx(found.plans[0].step_time_s, rel=1e-6)

    def test_experts_outside_a_stage_are_not_in_the_space(self) -> None:
        found = find_plan(assemble(MIXTURE)[0], {"pp": 4, "microbatch": 1, "cp": 1, "order": DP_LAST})
        meshes = [one.scenario.plan.mesh for one in found.plans]
        assert meshes
        assert all(mesh.ep * mesh.etp == mesh.tp or mesh.dp == 1 for mesh in meshes)
