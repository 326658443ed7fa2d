"""A plan written as a table or a file reads back as the same plan."""

from __future__ import annotations

import tomllib

import pytest

from ridgeline.core.dtype import dtype
from ridgeline.core.table import decode
from ridgeline.plan.mesh import Mesh
from ridgeline.plan.plan import (
    Offload,
    Plan,
    Precision,
    Recompute,
    Schedule,
    Sharding,
    Switches,
    plan_table,
    plan_words,
    scenario_text,
)

PLANS = [
    Plan(),
    Plan(mesh=Mesh(tp=8, pp=2, dp=4), schedule=Schedule(name="interleaved", chunks=5), microbatch=2),
    Plan(recompute=Recompute(kind="selective", parts=("attention", "activation"), layers=2)),
    Plan(recompute=Recompute(kind="full", blocks={"0": "none"}), offload=Offload(optimizer=0.5)),
    Plan(precision=decode(Plan, {"precision": "fp8"}).precision, sharding=Sharding(shard="zero3", shard_degree=8)),
    Plan(precision=Precision(compute=dtype("mxfp8"), gradients=dtype("bf16"), scaling="block"), engine="torchtitan"),
    Plan(precision=decode(Plan, {"precision": "fp32"}).precision),
    Plan(switches=Switches(sequence_parallel=False, cp_kind="all-to-all", overlap={"tp": True}, moe_imbalance=1.25)),
    Plan(placement=(3, 4, 4, 3), mesh=Mesh(pp=4, ep=8, etp=2, cp=2)),
]


@pytest.mark.parametrize("plan", PLANS, ids=plan_words)
def test_round_trip(plan: Plan) -> None:
    assert decode(Plan, plan_table(plan)) == plan
    assert decode(Plan, plan_table(plan, spoken=True)) == plan
    text = scenario_text({"model": "llama3-8b"}, plan, "two\nlines")
    assert text.startswith("# two\n# lines\n")
    assert decode(Plan, tomllib.loads(text)["plan"]) == plan


def test_only_what_differs_is_written() -> None:
    assert plan_table(Plan()) == {}
    assert plan_table(PLANS[4]) == {"shard": "zero3", "shard_degree": 8, "precision": "fp8-e4m3"}
    assert plan_table(Plan(), spoken=True) == {
        "dp": 1, "microbatch": 1, "recompute": "none", "precision": "bf16", "engine": "megatron-core",
    }  # fmt: skip


def test_words() -> None:
    assert plan_words(Plan()) == "one rank, microbatch 1, bf16"
    assert plan_words(PLANS[1]) == "pp=2 dp=4 tp=8, microbatch 2, interleaved x5, bf16"
    assert "zero3/8" in plan_words(PLANS[4])
    assert "50% of optimizer" in plan_words(PLANS[3])
