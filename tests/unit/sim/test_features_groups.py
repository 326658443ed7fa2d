"""Groups of more than two ranks take the tiers their placement gives them; seconds by hand, as in test_features_time.

Ranks count tp first, then cp, then dp; experts lie over neighbours. Eight chips share NVLink, beyond it every chip has
a way out of its own: 0.93 of 50 GB/s.
"""

from __future__ import annotations

from math import hypot, log2, sqrt
from typing import Any

import pytest

from ridgeline import predict, scenario
from ridgeline.cost.calibration import Calibration
from ridgeline.lowering.program import lower
from ridgeline.sim.memory.peak import StageMemory, peak_memory
from ridgeline.sim.prediction import Prediction

TOKENS, HIDDEN, WIDE, HEADS, KV, DIM, LAYERS, VOCAB = 8192, 4096, 16384, 32, 8, 128, 8, 32768
QKV = (HEADS + 2 * KV) * DIM
NEAR, FAR = 450e9 * 0.8, 50e9 * 0.93
START, HOP, FAR_HOP, MEET = 3.7e-6, 1.05e-6, 9e-6, 10e-6
MODEL: dict[str, Any] = {
    "hidden": HIDDEN,
    "layers": LAYERS,
    "vocab": VOCAB,
    "attention": {"heads": HEADS, "kv_heads": KV},
    "mlp": {"hidden": WIDE},
}
MOE = {**{key: part for key, part in MODEL.items() if key != "mlp"}, "moe": {"experts": 16, "topk": 2, "hidden": 2048}}
LAYER = HIDDEN * (QKV + HIDDEN + 3 * WIDE)


def table(chips: int, model: dict[str, Any], plan: dict[str, Any]) -> dict[str, Any]:
    return {
        "model": model,
        "system": f"{chips}xh100-sxm",
        "workload": {"seq": TOKENS, "global_batch": plan.get("dp", 1)},
        "plan": {"engine": "megatron-core", **plan},
    }


def parts(chips: int, *settings: str, model: dict[str, Any] | None = None, **plan: Any) -> dict[str, float]:
    made = predict(scenario(table(chips, model or MODEL, plan), ["chip.cores=1", *settings]), Calibration(offsets={}))
    assert isinstance(made, Prediction), made
    found = dict.fromkeys(("tp", "cp", "ep", "dp", "shard"), 0.0)
    return found | {part.name: part.seconds for part in made.breakdown}


def stage(chips: int, *settings: str, model: dict[str, Any] | None = None, **plan: Any) -> StageMemory:
    built = scenario(table(chips, model or MODEL, plan), settings)
    return peak_memory(built, lower(built)).stages[0]


def spent(wire: float, once: float, ranks: int) -> float:
    """Bytes in slices, what is paid once, and ranks that do not arrive together."""
    return wire + START + 2 * sqrt(wire * START) + once + log2(ranks) * MEET


def ring(payload: float, inside: int, domains: int = 1) -> float:
    """All-gather: (R - 1)/R of the payload on links inside, half of it out of two domains by as many as are there."""
    ranks = inside * domains
    near = payload * (1 - 1 / ranks) / NEAR if inside > 1 else 0.0
    far = payload * (1 - 1 / domains) / (inside * FAR)
    return spent(max(near, far), (ranks - domains) * HOP + (domains - 1) * FAR_HOP, ranks)


def flash(backward: bool, steps: int = 1) -> float:
    """Attention of all heads over all tokens, as test_features_time derives it; the steps of a ring start once more."""
    extra = 320 if backward else 160
    extra += 0.75 * (steps - 1) * (extra - 64)
    work = 2 * TOKENS * HEADS * 2 * DIM * (TOKENS / 2 + extra) * (2.5 if backward else 1)
    share = 0.68 * (0.85 if backward else 1)
    return hypot(work / (989e12 * share), work / DIM / (7 if backward else 4) / (67e12 / 16 * share))


def test_four_tensor_ranks() -> None:
    """Three quarters of the tokens arrive in three hops, ten times a layer: four among ranks that have just met, four
    beside products, which hide 0.54 of them."""
    each = ring(2 * TOKENS * HIDDEN, 4)
    assert parts(4, tp=4)["tp"] == pytest.approx(LAYERS * ((10 - 4 * 0.54) * each - 4 * 2 * MEET))


def test_context_ranks_beside_tensor_ranks() -> None:
    """tp 4, cp 2: ranks 0 and 4 of a node. tp 8, cp 2: the same chip of two nodes, too slow to hide behind attention.

    0.85 can hide: a tenth of that slows compute, or what is longer than attention shows.
    """
    for tp, inside, domains in ((4, 2, 1), (8, 1, 2)):
        size = TOKENS * 2 * KV * DIM * 2 / tp  # keys and values of the whole sequence, of the heads of a rank
        late = 0.0
        for passes in (1, 2):
            once, beside = ring(passes * size, inside, domains), flash(passes == 2, steps=2) / 2 / tp
            assert (0.85 * once > beside) == (tp == 8 and passes == 1)
            late += 0.15 * once + max(0.085 * once, 0.85 * once - beside)
        assert parts(2 * tp, tp=tp, cp=2)["cp"] == pytest.approx(LAYERS * late)


def test_replicas_over_nodes() -> None:
    """tp 4, cp 2, dp 2: the four replicas of a weight are ranks 0, 4, 8 and 12, two in each node."""
    made = parts(16, tp=4, cp=2, dp=2, shard="zero1", overlap={"grad-reduce": False, "param-gather": False})
    weights = (LAYERS * LAYER + 2 * VOCAB * HIDDEN) / 4 + LAYERS * 2 * HIDDEN  # norms are whole on every rank
    assert made["dp"] == pytest.approx(ring(4 * weights, 2, 2) + ring(2 * weights, 2, 2), rel=1e-6)


def test_shards_within_a_node_and_sums_across() -> None:
    """Shards of 8 among 16: gathered inside the node; an eighth of the gradients is summed with the other node."""
    made = parts(16, dp=16, shard="zero3", shard_degree=8, overlap={"grad-reduce": False})
    weights = LAYERS * (LAYER + 2 * HIDDEN) + 2 * VOCAB * HIDDEN
    eighth = 4 * weights / 8
    wire = 2 * eighth / 2 / FAR  # half there, half back
    assert made["dp"] == pytest.approx(spent(wire, 2 * FAR_HOP, 2))


def test_experts_over_eight_ranks_of_a_node() -> None:
    """cp 2 and tp 2 lie inside ep 8: tokens are split over both, seven eighths of two copies leave, four times."""
    made = parts(8, model=MOE, tp=2, cp=2, dp=2, ep=8)
    copies = 2 * TOKENS / 4 * HIDDEN * 2
    assert made["ep"] == pytest.approx(4 * LAYERS * spent(copies * 7 / 8 / NEAR, 3.5 * HOP, 8))


def across(copies: float, share: float) -> float:
    """All-to-all of sixteen ranks in two nodes, handed on inside: half of the copies leave, or a share of that."""
    far = copies / 2 * share / FAR
    near = copies * 7 / 8 / NEAR
    return spent(max(near, far), 3.5 * HOP + FAR_HOP + HOP, 16)


def test_experts_over_two_nodes() -> None:
    """Directly, half of the copies leave each chip in eight messages; handed on inside in one: a little sooner."""
    made = parts(16, model=MOE, dp=16, ep=16)
    copies = 2 * TOKENS * HIDDEN * 2
    direct = spent(copies / 2 / FAR, 3.5 * HOP + FAR_HOP + 8 * HOP, 16)
    assert across(copies, 1.0) < direct
    assert made["ep"] == pytest.approx(4 * LAYERS * across(copies, 1.0))


def test_dispatcher_that_sends_a_node_one_copy() -> None:
    """Two experts of a token lie in the same of two nodes half of the time: 2 (1 - 1/4) / 2 of the copies leave.

    It writes them in place: one pass over the copies for four, four times a layer.
    """
    plain, once = (parts(16, model=MOE, dp=16, ep=16, moe_dispatch=kind) for kind in ("all-to-all", "deepep"))
    copies = 2 * TOKENS * HIDDEN * 2
    assert once["ep"] == pytest.approx(4 * LAYERS * across(copies, 0.75))
    passes = 4 * LAYERS * 3 * copies * 1.25 / (3.35e12 * 0.82)
    assert plain["memory"] - once["memory"] == pytest.approx(passes)
    assert plain["matmul"] == once["matmul"]


def test_dispatcher_inside_a_node_sends_a_rank_one_copy() -> None:
    """Two experts of a token lie on the same of eight chips once in eight times: 8 (1 - (7/8)^2) / 2 of the copies."""
    once = parts(8, model=MOE, dp=8, ep=8, moe_dispatch="deepep")
    wire = 2 * TOKENS * HIDDEN * 2 * 7 / 8 / NEAR * 8 * (1 - (7 / 8) ** 2) / 2
    assert once["ep"] == pytest.approx(4 * LAYERS * spent(wire, 3.5 * HOP, 8))


def test_more_tensor_ranks_than_key_value_heads() -> None:
    """Four heads on eight ranks: every rank holds a whole one, so that a rank has twice its share of the projection."""
    few = {**MODEL, "attention": {"heads": HEADS, "kv_heads": 4}}
    keys = HIDDEN * 2 * 4 * DIM  # both matrices, whole
    rest = LAYER - HIDDEN * 2 * KV * DIM
    one = stage(8, model=few, tp=8)
    layer = (rest + 2 * keys) / 8 + 2 * HIDDEN
    assert one.state["weights"] == 2 * (LAYERS * layer + 2 * VOCAB * HIDDEN / 8 + HIDDEN)
    assert one.state["optimizer"] == 6 * one.state["weights"]
    made = parts(16, model=few, tp=8, dp=2, overlap={"grad-reduce": False})
    gradients = 4 * (LAYERS * layer + 2 * VOCAB * HIDDEN / 8)
    assert made["dp"] == pytest.approx(spent(2 * gradients / 2 / FAR, 2 * FAR_HOP, 2), rel=1e-3)


def test_latents_are_whole_on_every_tensor_rank() -> None:
    """Latents of 512 + 128 keys and 1024 queries, and norms of both: not split over two ranks, the rest halved."""
    latent = {"kind": "mla", "heads": 32, "q_rank": 1024, "kv_rank": 512, "nope_dim": 128, "rope_dim": 128}
    mla = {**MODEL, "attention": {**latent, "v_dim": 128}}
    one, two = stage(1, model=mla), stage(2, model=mla, tp=2)
    whole = LAYERS * (HIDDEN * (640 + 1024) + 512 + 1024 + 2 * HIDDEN) + HIDDEN
    total = one.state["weights"] / 2
    assert two.state["weights"] == 2 * ((total - whole) / 2 + whole)


@pytest.mark.parametrize("rank", [1024, 0])
def test_latents_cross_tensor_ranks_instead_of_tokens(rank: int) -> None:
    """Two ranks: every one makes latents of its own half of the tokens, and these are gathered; queries without a
    latent are made of tokens, which are gathered then. Both ways the way out and the other part are as ever."""
    latent = {"kind": "mla", "heads": 32, "q_rank": rank, "kv_rank": 512, "nope_dim": 128, "rope_dim": 128}
    model = {**MODEL, "attention": {**latent, "v_dim": 128}}
    made = parts(2, model=model, tp=2)
    wide = 512 + 128 + (rank or HIDDEN)
    size = 2 * TOKENS
    latents, tokens = ring(size * wide, 2), ring(size * HIDDEN, 2)  # two of each beside products
    assert made["tp"] == pytest.approx(LAYERS * ((3 - 2 * 0.54) * latents + (7 - 2 * 0.54) * tokens - 4 * MEET))
    down = 512 + 128 + rank
    kept = [stage(2, model=model, tp=2, sequence_parallel=flag).bytes_by_kind["activations"] for flag in (True, False)]
    # a layer keeps four times the residual stream and its latents of half as many tokens; the ends a row and a number
    assert kept[1] - kept[0] == TOKENS / 2 * (LAYERS * 2 * (4 * HIDDEN + down) + 2 * HIDDEN + 8)
