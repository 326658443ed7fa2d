"""Predicting a further token costs what its entry, its layer and its loss cost, in seconds and bytes derived by hand.

Rates and sizes are those of test_features_time and test_features_memory: one core, so that a product of sizes that
tiles divide takes 2 m n (k + 192) flops.
"""

from __future__ import annotations

from math import hypot, sqrt
from typing import Any

import pytest

from ridgeline import predict, scenario
from ridgeline.cost.calibration import Calibration
from ridgeline.ir.ops import Collective, MatMul
from ridgeline.lowering.program import lower
from ridgeline.models.facts import training_flops_per_token
from ridgeline.models.load import model
from ridgeline.models.params import count
from ridgeline.sim.memory.peak import StageMemory, peak_memory
from ridgeline.sim.prediction import Prediction

TOKENS, HIDDEN, WIDE, HEADS, KV, DIM, LAYERS, VOCAB = 8192, 4096, 16384, 32, 8, 128, 8, 32768
QKV = (HEADS + 2 * KV) * DIM
LAYER = HIDDEN * (QKV + HIDDEN + 3 * WIDE) + 2 * HIDDEN
AHEAD = LAYER + 2 * HIDDEN * HIDDEN + 3 * HIDDEN  # a layer, its entry, norms of the row, of the state and of the end
KEPT = 2 * TOKENS * (4 * HIDDEN + (2 * HEADS + 2 * KV) * DIM + 3 * WIDE)  # of a layer, as test_memory derives it
RATE, MEMORY, LINK, KERNEL, TRAFFIC = 989e12 * 0.72, 3.35e12 * 0.82, 450e9 * 0.8, 2e-6, 1.25
START, HOP, MEET = 3.7e-6, 1.05e-6, 10e-6
MODEL: dict[str, Any] = {
    "hidden": HIDDEN,
    "layers": LAYERS,
    "vocab": VOCAB,
    "attention": {"heads": HEADS, "kv_heads": KV},
    "mlp": {"hidden": WIDE},
}


def table(chips: int = 1, **plan: Any) -> dict[str, Any]:
    return {
        "model": MODEL,
        "system": f"{chips}xh100-sxm",
        "workload": {"seq": TOKENS, "global_batch": plan.pop("batch", 1)},
        "plan": {"engine": "megatron-core", **plan},
    }


def parts(*settings: str, **plan: Any) -> dict[str, float]:
    made = predict(scenario(table(**plan), ["chip.cores=1", *settings]), Calibration(offsets={}))
    assert isinstance(made, Prediction), made
    return dict.fromkeys(("tp", "dp", "shard"), 0.0) | {part.name: part.seconds for part in made.breakdown}


def stage(*settings: str, rank: int = 0, **plan: Any) -> StageMemory:
    built = scenario(table(**plan), settings)
    return peak_memory(built, lower(built)).stages[rank]


def params(before: StageMemory, after: StageMemory) -> list[float]:
    sizes = (("weights", 2), ("gradients", 4), ("optimizer", 12))
    return [(after.state[kind] - before.state[kind]) / size for kind, size in sizes]


def more(kind: str, before: StageMemory, after: StageMemory) -> float:
    return after.bytes_by_kind[kind] - before.bytes_by_kind[kind]


def flops(m: float, n: float, k: float) -> float:
    return 2 * m * n * (k + 192)


def trained(n: float, k: float) -> float:
    return flops(TOKENS, n, k) + flops(TOKENS, k, n) + flops(k, n, TOKENS)


def gathered(payload: float) -> float:
    wire = payload / 2 / LINK
    return wire + START + 2 * sqrt(wire * START) + HOP + MEET


def flash(extra: float, backward: bool) -> float:
    work = 2 * TOKENS * HEADS * 2 * DIM * (TOKENS / 2 + extra) * (2.5 if backward else 1)
    share = 0.68 * (0.8 if backward else 1)
    return hypot(work / (989e12 * share), work / DIM / (7 if backward else 4) / (67e12 / 16 * share))


def test_time() -> None:
    """A layer, a projection of twice the width, logits; 58 kernels.

    Passes over the residual stream: those of a layer 24, a row looked up 2 and added to 4, two norms 2 x (2 + 4), two
    halves joined and parted 2 x (2 + 2), the last norm 2. The loss passes 26 times over its logits.
    Kernels: layer 29, row 2 + 3, entry 2 + 1 + 1 and 1 + 1 + 4 + 1, loss 13.
    """
    base, ahead = parts(), parts("model.mtp=1")
    change = {name: ahead[name] - base[name] for name in ahead}
    layer = trained(QKV, HIDDEN) + trained(HIDDEN, HIDDEN) + trained(2 * WIDE, HIDDEN) + trained(HIDDEN, WIDE)
    assert change["matmul"] == pytest.approx((layer + trained(HIDDEN, 2 * HIDDEN) + trained(VOCAB, HIDDEN)) / RATE)
    assert change["attention"] == pytest.approx(flash(160, False) + flash(320, True))
    moved = (24 + 6 + 12 + 8 + 2) * HIDDEN + 4 * (HEADS + KV) * DIM + 8 * WIDE + 26 * VOCAB
    assert change["memory"] == pytest.approx(2 * TOKENS * moved * TRAFFIC / MEMORY)
    assert change["kernel"] == pytest.approx(58 * KERNEL, rel=1e-3)
    assert change["optimizer"] == pytest.approx(38 * AHEAD / MEMORY)  # the output matrix is updated once


def test_two_tokens_ahead_cost_twice() -> None:
    none, one, two = (parts(f"model.mtp={depth}") for depth in (0, 1, 2))
    for name in ("matmul", "attention", "memory", "optimizer"):
        assert two[name] - none[name] == pytest.approx(2 * (one[name] - none[name]))


def test_tensor_parallel() -> None:
    """Ten exchanges of a layer's tokens; the entry gathers both halves and what it projected, and backward the
    gradient, both halves once more, and scatters theirs."""
    base, ahead = parts(chips=2, tp=2), parts("model.mtp=1", chips=2, tp=2)
    size = 2 * TOKENS * HIDDEN
    assert ahead["tp"] - base["tp"] == pytest.approx(
        (12 - 4 * 0.54) * gathered(size) - 4 * MEET + 3 * gathered(2 * size)  # of a layer four beside products
    )


def test_full_recompute_runs_entry_and_layer_again_and_the_loss_once() -> None:
    plain, again = (parts("model.mtp=1", recompute=kind)["matmul"] for kind in ("none", "full"))
    layers, full = (parts(recompute=kind)["matmul"] for kind in ("none", "full"))
    one = (full - layers) / LAYERS
    assert again - plain - (full - layers) == pytest.approx(one + flops(TOKENS, HIDDEN, 2 * HIDDEN) / RATE)


def test_memory() -> None:
    """A layer and its entry, held once; a row, both halves, and what the last norm made; probabilities that wait."""
    base, ahead = stage(), stage("model.mtp=1")
    assert params(base, ahead) == [AHEAD] * 3
    assert more("activations", base, ahead) == KEPT + 2 * TOKENS * (3 + 1) * HIDDEN
    assert base.moment == ahead.moment == "loss"
    assert more("logits", base, ahead) == 4 * TOKENS * VOCAB


def test_memory_of_full_recompute() -> None:
    """The row, and the input of the logits."""
    base, ahead = (stage(f"model.mtp={depth}", recompute="full") for depth in (0, 1))
    assert more("activations", base, ahead) == 2 * TOKENS * 2 * HIDDEN


def test_the_last_stage_holds_a_copy_of_the_embedding() -> None:
    """It looks rows up for itself. A tied output matrix is that copy already."""
    shape: dict[str, Any] = {"chips": 2, "pp": 2, "batch": 8, "placement": [4, 4]}
    first, last = ([stage(f"model.mtp={depth}", rank=rank, **shape) for depth in (0, 1)] for rank in (0, 1))
    assert params(*first) == [0] * 3
    assert params(*last) == [AHEAD + VOCAB * HIDDEN] * 3
    tied = [stage(f"model.mtp={depth}", "model.tied=true", rank=1, **shape) for depth in (0, 1)]
    assert params(*tied) == [AHEAD] * 3


def test_a_pipeline_in_a_v_needs_no_copy() -> None:
    shape: dict[str, Any] = {"chips": 2, "pp": 2, "batch": 8, "schedule": "zbv", "placement": [2, 2, 2, 2]}
    assert params(*(stage(f"model.mtp={depth}", **shape) for depth in (0, 1))) == [AHEAD] * 3


def test_sharded_weights_are_gathered_without_the_output_matrix() -> None:
    """Gathered for both passes in two bytes, scattered in four; 0.28 of it shows."""
    base, ahead = (parts(f"model.mtp={depth}", chips=2, dp=2, batch=2, shard="zero3") for depth in (0, 1))
    spent = 2 * gathered(2 * AHEAD) + gathered(4 * AHEAD)
    assert ahead["shard"] - base["shard"] == pytest.approx(0.28 * spent, rel=0.02)


def test_deepseek_v3() -> None:
    """What lowering holds is what the model counts: 11.6 B beside 671 B, and its flops are those that are counted."""
    spec = model("deepseek-v3")
    assert spec.mtp is not None
    built = scenario(
        {
            "model": "deepseek-v3",
            "system": "8xh100-sxm",
            "workload": {"seq": 4096, "global_batch": 8},
            "plan": {"dp": 8, "engine": "megatron-core"},
        }
    )
    ahead = lower(built).sections[-1]
    assert ahead.params + ahead.expert_params == count(spec).mtp
    assert round(count(spec).mtp / 1e9, 1) == 11.6
    products = sum(float(op.flops) for op in ahead.forward if isinstance(op, MatMul))
    seen = training_flops_per_token(spec, 4096).mtp / 3 * 4096
    scores = 2 * 4096 * 2048 * 128 * (192 + 128)
    assert products == pytest.approx(seen - scores)
    assert not [op for op in ahead.forward if isinstance(op, Collective)]
