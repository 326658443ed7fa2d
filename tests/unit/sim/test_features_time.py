"""Switching one feature changes the seconds of one part of a step by an amount derived by hand.

Rates are those of the data sheet times the defaults of the parameters. The chip is given one core, so that products
are not rounded up to waves of tiles: a product of sizes that tiles divide takes 2 m n (k + 192) flops.
"""

from __future__ import annotations

from math import hypot, sqrt
from typing import Any

import pytest

from ridgeline import predict, scenario
from ridgeline.cost.calibration import PARAMETERS, Calibration
from ridgeline.sim.prediction import Prediction

TOKENS, HIDDEN, WIDE, HEADS, KV, DIM, LAYERS, VOCAB = 8192, 4096, 16384, 32, 8, 128, 8, 32768
QKV = (HEADS + 2 * KV) * DIM
RATE, MEMORY, LINK, HOST = 989e12 * 0.72, 3.35e12 * 0.82, 450e9 * 0.8, 63e9
BESIDE = 0.6 - 0.1 * 0.6  # hidden of what runs beside products, less what it slows them
KERNEL, ISSUE, TRAFFIC, START, HOP, MEET = 2e-6, 30e-6, 1.25, 3.7e-6, 1.05e-6, 10e-6
MODEL: dict[str, Any] = {
    "hidden": HIDDEN,
    "layers": LAYERS,
    "vocab": VOCAB,
    "attention": {"heads": HEADS, "kv_heads": KV},
    "mlp": {"hidden": WIDE},
}
MOE = {**{key: part for key, part in MODEL.items() if key != "mlp"}, "moe": {"experts": 8, "topk": 2, "hidden": 4096}}
TRAINED = LAYERS * (HIDDEN * (QKV + HIDDEN + 3 * WIDE) + 2 * HIDDEN) + 2 * VOCAB * HIDDEN
DEFAULTS = Calibration(offsets={})


def parts(
    *settings: str,
    chips: int = 1,
    model: dict[str, Any] | None = None,
    calibration: Calibration = DEFAULTS,
    **plan: Any,
) -> dict[str, float]:
    """Seconds by part of a step of one sequence on every data-parallel rank, absent ones zero."""
    table = {
        "model": model or MODEL,
        "system": f"{chips}xh100-sxm",
        "workload": {"seq": TOKENS, "global_batch": plan.pop("batch", plan.get("dp", 1))},
        "plan": {"engine": "megatron-core", **plan},
    }
    made = predict(scenario(table, ["chip.cores=1", *settings]), calibration)
    assert isinstance(made, Prediction), made
    found = dict.fromkeys(("tp", "cp", "ep", "pp", "dp", "shard", "host", "bubble"), 0.0)
    return found | {part.name: part.seconds for part in made.breakdown}


def change(name: str, before: dict[str, float], after: dict[str, float]) -> float:
    return after[name] - before[name]


def flops(m: float, n: float, k: float) -> float:
    return 2 * m * n * (k + 192)


def trained(n: float, k: float, m: float = TOKENS) -> float:
    """Flops of a product forward, of its input gradient and of its weight gradient."""
    return flops(m, n, k) + flops(m, k, n) + flops(k, n, m)


def streamed(size: float) -> float:
    """Seconds of memory-bound work on so many elements of two bytes, each pass counted."""
    return 2 * size * TRAFFIC / MEMORY


def over(wire: float, hops: float, ranks_log2: float = 1.0) -> float:
    """A collective inside a domain: bytes and slices, hops, and ranks that do not arrive together."""
    return wire + START + 2 * sqrt(wire * START) + hops * HOP + ranks_log2 * MEET


def gathered(payload: float) -> float:
    """All-gather or reduce-scatter of two ranks: half of the payload crosses."""
    return over(payload / 2 / LINK, 1)


def reduced(payload: float) -> float:
    """All-reduce of two ranks on a ring: half of the payload there, half of it back."""
    return over(payload / LINK, 2)


def exchanged(payload: float) -> float:
    """All-to-all of two ranks: half of what a rank holds goes to the other, after 3.5 hops to start."""
    return over(payload / 2 / LINK, 3.5)


def flash(extra: float, backward: bool, wide: float = 2 * DIM) -> float:
    """Matrix and exponential unit side by side, 0.68 of each; half of the keys are visible, and some masked."""
    work = 2 * TOKENS * HEADS * wide * (TOKENS / 2 + extra) * (2.5 if backward else 1)
    scores = work / DIM / (7 if backward else 4)
    share = 0.68 * (0.8 if backward else 1)
    return hypot(work / (989e12 * share), scores / (67e12 / 16 * share))


FLASH = flash(160, False), flash(320, True)


def test_a_whole_layer() -> None:
    """One layer more: its products three times, attention both ways, streams, and 29 kernels.

    Passes over the residual stream: norms 2 x (2 + 4), residuals 2 x (3 + 3); rotary 2 + 2; activation 3 + 5.
    Kernels: 11 forward, 18 backward.
    """
    base, more = parts(), parts("model.layers=9")
    products = trained(QKV, HIDDEN) + trained(HIDDEN, HIDDEN) + trained(2 * WIDE, HIDDEN) + trained(HIDDEN, WIDE)
    assert change("matmul", base, more) == pytest.approx(products / RATE)
    assert change("attention", base, more) == pytest.approx(sum(FLASH))
    moved = 24 * HIDDEN + 4 * (HEADS + KV) * DIM + 8 * WIDE
    assert change("memory", base, more) == pytest.approx(streamed(TOKENS * moved))
    assert change("kernel", base, more) == pytest.approx(29 * KERNEL, rel=1e-6)


def test_key_value_heads() -> None:
    """Keys and values of 24 heads more: their products, and their share of rotary passes, two each way."""
    base, full = parts(), parts("model.attention.kv_heads=32")
    more = 2 * 24 * DIM
    products = flops(TOKENS, more, HIDDEN) + 2 * TOKENS * HIDDEN * more + flops(HIDDEN, more, TOKENS)
    assert change("matmul", base, full) == pytest.approx(LAYERS * products / RATE)
    assert change("memory", base, full) == pytest.approx(LAYERS * streamed(4 * TOKENS * 24 * DIM))
    assert change("attention", base, full) == 0


def test_latent_attention() -> None:
    """Queries of 128 + 128 a head, keys and values out of a latent of 512, with 128 of position beside it."""
    latent = {"kind": "mla", "heads": 32, "q_rank": 0, "kv_rank": 512, "nope_dim": 128, "rope_dim": 128, "v_dim": 128}
    plain, mla = parts("model.attention.kv_heads=32"), parts(model={**MODEL, "attention": latent})
    products = trained(640, HIDDEN) + trained(32 * 256, HIDDEN) + trained(32 * 256, 512) - trained(3 * HIDDEN, HIDDEN)
    assert change("matmul", plain, mla) == pytest.approx(LAYERS * products / RATE)
    # latent norms 4 passes, position and concatenation 2, both ways; instead of rotary on queries and keys
    moved = 8 * 640 + 4 * 32 * 256 - 4 * 2 * HIDDEN
    assert change("memory", plain, mla) == pytest.approx(LAYERS * streamed(TOKENS * moved))


def test_unfused_attention() -> None:
    """All scores at half the products' rate, then operands (1 + 2 times) and score matrices (6 + 9 passes)."""
    base, loose = parts(), parts(attention="unfused")
    work = 3 * 2 * TOKENS * HEADS * 2 * DIM * TOKENS / (RATE / 2)
    moved = streamed(3 * TOKENS * HEADS * 4 * DIM + 15 * TOKENS * TOKENS * HEADS)
    assert base["attention"] == pytest.approx(LAYERS * sum(FLASH))
    assert loose["attention"] == pytest.approx(LAYERS * (work + moved))


def experts(rows: float, groups: int, width: float = 4096, share: float = 0.93) -> float:
    """Seconds of grouped products of gated experts, three passes, at their share of a single product's rate."""
    return groups * (trained(2 * width, HIDDEN, rows) + trained(HIDDEN, width, rows)) / (RATE * share)


def router(tokens: float = TOKENS) -> float:
    """Eight columns: three passes bound by reading or writing the tokens, the gradient added in 32 bits."""
    small = tokens * 8 + HIDDEN * 8
    return (3 * 2 * (tokens * HIDDEN + small) - 2 * HIDDEN * 8 + 8 * HIDDEN * 8) / MEMORY


def test_first_layers_dense() -> None:
    """A dense layer for one of eight experts: 2 of 8 each get 2048 rows, and no router."""
    model = {**MOE, "mlp": {"hidden": WIDE}}
    sparse, mixed = parts(model=MOE), parts(model={**model, "first_dense": 2})
    dense = (trained(2 * WIDE, HIDDEN) + trained(HIDDEN, WIDE)) / RATE
    assert change("matmul", sparse, mixed) == pytest.approx(2 * (dense - experts(2048, 8) - router()))


def test_shared_expert() -> None:
    """Every token passes a gated part of 4096 more: products, and 3 + 5 passes of its activation."""
    base, shared = parts(model=MOE), parts("model.moe.shared_hidden=4096", model=MOE)
    assert change("matmul", base, shared) == pytest.approx(
        LAYERS * (trained(2 * 4096, HIDDEN) + trained(HIDDEN, 4096)) / RATE
    )
    assert change("memory", base, shared) == pytest.approx(LAYERS * streamed(8 * TOKENS * 4096))


def test_expert_parallel_dispatch() -> None:
    """Two copies of every token to half of the experts and back, forward and backward: four times a layer."""
    alone, split = parts(model=MOE, chips=2, dp=2), parts(model=MOE, chips=2, dp=2, ep=2)
    assert alone["ep"] == 0
    assert split["ep"] == pytest.approx(4 * LAYERS * exchanged(2 * TOKENS * HIDDEN * 2))
    assert change("matmul", alone, split) == pytest.approx(LAYERS * (experts(4096, 4) - experts(2048, 8)))


def test_imbalance() -> None:
    """The busiest rank gets half as much again: rows of its experts, and bytes it exchanges."""
    even, uneven = (parts(model=MOE, chips=2, dp=2, ep=2, moe_imbalance=much) for much in (1.0, 1.5))
    assert uneven["ep"] == pytest.approx(4 * LAYERS * exchanged(1.5 * 2 * TOKENS * HIDDEN * 2))
    assert change("matmul", even, uneven) == pytest.approx(LAYERS * (experts(6144, 4) - experts(4096, 4)))


def test_expert_tensor_parallel() -> None:
    """Four ranks hold two experts each, or halves of four: as many tokens arrive, products are half as wide."""
    whole, halves = (parts(model=MOE, chips=4, dp=4, ep=ep, etp=4 // ep) for ep in (4, 2))
    assert change("ep", whole, halves) == 0
    assert change("matmul", whole, halves) == pytest.approx(LAYERS * (experts(8192, 4, 2048) - experts(8192, 2)))


def test_overlap_of_dispatch() -> None:
    """0.6 of it hides, and a tenth of that slows compute: 0.4 + 0.06 stay."""
    off, on = (parts(model=MOE, chips=2, dp=2, ep=2, overlap={"moe": flag}) for flag in (False, True))
    assert on["ep"] == pytest.approx(0.46 * off["ep"])


def test_vocabulary() -> None:
    """Twice the rows: logits three times, 26 passes of the loss over them, two matrices more to update."""
    base, large = parts(), parts(f"model.vocab={2 * VOCAB}")
    assert change("matmul", base, large) == pytest.approx(
        (flops(TOKENS, VOCAB, HIDDEN) + 2 * TOKENS * HIDDEN * VOCAB + flops(HIDDEN, VOCAB, TOKENS)) / RATE
    )
    assert change("memory", base, large) == pytest.approx(streamed(26 * TOKENS * VOCAB))
    assert change("optimizer", base, large) == pytest.approx(38 * 2 * VOCAB * HIDDEN / MEMORY)


def test_tied_output() -> None:
    """The same products; one matrix less to update."""
    base, tied = parts(), parts("model.tied=true")
    assert change("matmul", base, tied) == 0
    assert change("optimizer", base, tied) == pytest.approx(-38 * VOCAB * HIDDEN / MEMORY)


@pytest.mark.parametrize(
    ("settings", "each"),
    [
        ("{name = 'adamw'}", 16 + 8 + 4 + 2 + 8),  # moments, master, gradient, weight, norm and clearing of gradients
        ("{name = 'lion'}", 8 + 8 + 4 + 2 + 8),
        ("{name = 'sgd'}", 0 + 8 + 4 + 2 + 8),
        ("{states = 'bf16'}", 8 + 8 + 4 + 2 + 8),
        ("{master = 'none'}", 16 + 0 + 4 + 4 + 8),  # weights are read and written
    ],
)
def test_optimizer_traffic(settings: str, each: float) -> None:
    """Bytes read and written for a parameter, clipping among them, at memory's sustained rate."""
    made = parts(f"workload.optimizer={settings}")
    assert made["optimizer"] == pytest.approx(TRAINED * each / MEMORY)


def test_narrow_gradients_clip_cheaper() -> None:
    """Gradients are read by the update and by the norm, and cleared: three passes of two bytes less."""
    made = change("optimizer", parts(), parts(precision={"gradients": "bf16"}))
    assert made == pytest.approx(-3 * 2 * TRAINED / MEMORY)


def test_what_is_not_compiled() -> None:
    """Two residuals 2 passes more both ways, rotary 5 both ways, activation 2 and 3, loss 8."""
    fused, loose = (parts(engine="torchtitan", compiled=flag) for flag in (True, False))
    layer = 2 * 2 * 2 * HIDDEN + 2 * 5 * (HEADS + KV) * DIM + 5 * WIDE
    assert change("memory", fused, loose) == pytest.approx(streamed(TOKENS * (LAYERS * layer + 8 * VOCAB)))


def test_adapters() -> None:
    """Rank 128 on query, key and value: small products come, mostly bound by bytes; other weight gradients go."""
    full, lora = parts(), parts("workload.task=lora", 'workload.lora={rank = 128, targets = ["qkv"]}')
    sizes = ((QKV, HIDDEN), (HIDDEN, HIDDEN), (2 * WIDE, HIDDEN), (HIDDEN, WIDE))
    gone = LAYERS * sum(flops(k, n, TOKENS) for n, k in sizes) + flops(HIDDEN, VOCAB, TOKENS)
    new = 0.0
    for n, k in ((128, HIDDEN), (QKV, 128)):
        for a, b, c, out in ((TOKENS, n, k, 2), (TOKENS, k, n, 2), (k, n, TOKENS, 8)):
            new += max(flops(a, b, c) / RATE, (2 * (a * c + c * b) + out * a * b) / MEMORY)
    assert change("matmul", full, lora) == pytest.approx(LAYERS * new - gone / RATE)
    assert lora["optimizer"] == pytest.approx(38 * LAYERS * 128 * (HIDDEN + QKV) / MEMORY)


def test_waiting_for_launches() -> None:
    """29 kernels a layer and 18 at the ends: each idles 2.5 us, and when it is waited for the host's 30 us show,
    and a quarter of them more until it knows."""
    free, blocked = parts(), parts(launch_blocking=True)
    assert free["kernel"] == pytest.approx((29 * LAYERS + 18) * KERNEL, rel=1e-3)
    assert blocked["kernel"] == pytest.approx((29 * LAYERS + 18) * (KERNEL + 1.25 * ISSUE))


def test_ranks_share_the_cores_of_their_host() -> None:
    """Eight ranks on four cores issue half as fast; on eight, as fast as each alone."""
    shape: dict[str, Any] = {"chips": 8, "dp": 8, "launch_blocking": True}
    alone, enough, few = (
        parts(*settings, **shape) for settings in ((), ("system.host_cores=8",), ("system.host_cores=4",))
    )
    assert enough["kernel"] == pytest.approx(alone["kernel"])
    assert change("kernel", alone, few) == pytest.approx((29 * LAYERS + 18) * 1.25 * ISSUE)


def test_small_models_wait_for_the_host() -> None:
    """128 tokens: issuing 250 kernels takes 7.5 ms, running them less; the longer of the two shows."""
    small = parts("workload.seq=128", "model.vocab=128", "model.mlp.hidden=1024")
    rest = sum(small[name] for name in ("matmul", "attention", "memory"))
    assert rest < 3e-3
    assert rest + small["kernel"] == pytest.approx((29 * LAYERS + 18) * ISSUE, rel=1e-3)


def test_graph() -> None:
    """A replayed graph leaves 0.3 of the gaps between kernels."""
    assert parts(graph="full")["kernel"] == pytest.approx(0.3 * (29 * LAYERS + 18) * KERNEL, rel=1e-3)


def test_gradient_reduction() -> None:
    """Gradients of 32 bits are summed over two ranks; 0.8 hides, of which a tenth slows compute."""
    assert parts()["dp"] == 0
    shown, hidden = (parts(chips=2, dp=2, overlap={"grad-reduce": flag})["dp"] for flag in (False, True))
    assert shown == pytest.approx(reduced(4 * TRAINED))
    assert hidden == pytest.approx(0.28 * reduced(4 * TRAINED))


@pytest.mark.parametrize("offset", [-1.0, 1.0])
def test_contention(offset: float) -> None:
    """What compute loses beside a collective: 1 - 0.8 + 0.8 c of the reduction shows."""
    share = PARAMETERS["contention"].value(offset)
    made = parts(chips=2, dp=2, calibration=Calibration(offsets={"contention": offset}))
    assert made["dp"] == pytest.approx((0.2 + 0.8 * share) * reduced(4 * TRAINED))


def test_sharded_states() -> None:
    """Gradients are scattered in four bytes, weights gathered in two; each rank updates a half."""
    none, one, two = (parts(chips=2, dp=2, shard=shard) for shard in ("none", "zero1", "zero2"))
    assert one["dp"] == two["dp"] == pytest.approx(0.28 * (gathered(4 * TRAINED) + gathered(2 * TRAINED)))
    assert one["optimizer"] == pytest.approx(none["optimizer"] / 2)
    late = parts(chips=2, dp=2, shard="zero1", overlap={"param-gather": False})
    assert late["dp"] == pytest.approx(0.28 * gathered(4 * TRAINED) + gathered(2 * TRAINED))


def test_sharded_weights() -> None:
    """A layer more: weights gathered for both passes, gradients scattered; 0.28 of it shows."""
    base, more = parts(chips=2, dp=2, shard="zero3"), parts("model.layers=9", chips=2, dp=2, shard="zero3")
    layer = HIDDEN * (QKV + HIDDEN + 3 * WIDE) + 2 * HIDDEN
    assert base["dp"] == 0
    spent = 2 * gathered(2 * layer) + gathered(4 * layer)
    assert change("shard", base, more) == pytest.approx(0.28 * spent, rel=0.02)


def test_hybrid_shards() -> None:
    """Shards of two among four: states halved, and half of the gradients summed with the other pair."""
    whole, hybrid = (parts(chips=4, dp=4, shard="zero3", shard_degree=degree) for degree in (4, 2))
    assert hybrid["optimizer"] == pytest.approx(2 * whole["optimizer"])
    assert whole["dp"] == 0
    assert hybrid["dp"] == pytest.approx(0.28 * reduced(4 * TRAINED / 2))


def test_tensor_parallel() -> None:
    """With sequence parallelism ten gathers and scatters a layer, without it four sums; norms then run twice.

    Four of the gathers follow a scatter, and nobody is late; four of the ten, and two of the four, run beside products.
    """
    split, plain = (parts(chips=2, tp=2, sequence_parallel=flag) for flag in (True, False))
    size = 2 * TOKENS * HIDDEN
    assert split["tp"] == pytest.approx(LAYERS * ((10 - 4 * BESIDE) * gathered(size) - 4 * MEET))
    assert plain["tp"] == pytest.approx(LAYERS * (4 - 2 * BESIDE) * reduced(size))
    # passes of a layer over the residual stream 24; at the ends embedding 2 + 4 and final norm 2
    assert change("memory", split, plain) == pytest.approx(streamed(TOKENS / 2 * HIDDEN * (24 * LAYERS + 8)))


def test_overlap_of_tensor_parallel() -> None:
    """0.6 hides, of which a tenth slows compute."""
    on = parts(chips=2, tp=2, overlap={"tp": True})
    whole = LAYERS * (10 * gathered(2 * TOKENS * HIDDEN) - 4 * MEET)
    assert on["tp"] == pytest.approx((1 - BESIDE) * whole)


def test_context_ring() -> None:
    """Keys and values of the whole sequence, twice that backward; 0.85 hides, of which a tenth slows compute."""
    made = parts(chips=2, cp=2)
    size = TOKENS * 2 * KV * DIM * 2
    assert made["cp"] == pytest.approx(LAYERS * 0.235 * (gathered(size) + gathered(2 * size)))
    ring = flash(160 + 0.75 * 96, False) + flash(320 + 0.75 * 256, True)  # two steps: one more start of their rows
    assert made["attention"] == pytest.approx(LAYERS * ring / 2)


def test_context_exchange() -> None:
    """Queries, output, keys and values of half the tokens change places, both ways; attention waits for them."""
    made = parts(chips=2, cp=2, cp_kind="all-to-all")
    size = TOKENS / 2 * (2 * HEADS + 2 * KV) * DIM * 2
    assert made["cp"] == pytest.approx(LAYERS * 2 * exchanged(size))


def work_of(found: dict[str, float]) -> float:
    """Seconds a rank works in a step."""
    return sum(found[name] for name in ("matmul", "attention", "memory", "kernel"))


def weight_gradients(layers: float) -> float:
    sizes = ((QKV, HIDDEN), (HIDDEN, HIDDEN), (2 * WIDE, HIDDEN), (HIDDEN, WIDE))
    return layers * (sum(flops(k, n, TOKENS) for n, k in sizes) / RATE + 4 * KERNEL)


def test_bubbles() -> None:
    """Two equal stages and eight microbatches, work w each: w, w / 2 with two chunks, w - 2 W with split gradients."""
    shape: dict[str, Any] = {"chips": 2, "pp": 2, "batch": 8}
    made = {
        name: parts("model.vocab=128", schedule=name, **shape) for name in ("1f1b", "interleaved", "zero-bubble-h1")
    }
    each = work_of(made["1f1b"]) / 8
    assert made["1f1b"]["bubble"] == pytest.approx(each, rel=0.01)
    assert made["interleaved"]["bubble"] == pytest.approx(each / 2, rel=0.01)
    split = each - 2 * weight_gradients(LAYERS / 2)
    assert made["zero-bubble-h1"]["bubble"] == pytest.approx(split, rel=0.03)


def chunk(layers: float) -> tuple[float, float, float]:
    """Forward, input gradient and weight gradient of so many layers: products, attention, streams, 11 + 14 + 4 kernels.

    Forward the residual stream is passed 10 times and backward 14, rotary 2 and 2, the activation 3 and 5.
    """
    sizes = ((QKV, HIDDEN), (HIDDEN, HIDDEN), (2 * WIDE, HIDDEN), (HIDDEN, WIDE))
    moved = [TOKENS * (a * HIDDEN + 2 * (HEADS + KV) * DIM + b * WIDE) for a, b in ((10, 3), (14, 5))]
    forward = sum(flops(TOKENS, n, k) for n, k in sizes) / RATE + FLASH[0] + streamed(moved[0]) + 11 * KERNEL
    inputs = sum(flops(TOKENS, k, n) for n, k in sizes) / RATE + FLASH[1] + streamed(moved[1]) + 14 * KERNEL
    return layers * forward, layers * inputs, weight_gradients(layers)


@pytest.mark.parametrize("schedule", ["zbv", "dualpipe-v"])
def test_bubbles_of_a_v(schedule: str) -> None:
    """Two ranks, four chunks of 32 layers, beside which the ends are small; eight microbatches, W < F < I < 2 F.

    zbv          rank 1 begins F late and waits I - F for the first gradient to come back; at the end each of the last
                 two gradients is late at rank 0 by I - W:                                    max(I, 2 (I - W))
    dualpipe-v   rank 0 waits F for the first pair of rank 1, F for the last one, and for the last gradient to pass
                 rank 1, I behind its own while a W runs:                                     2 F + I - W
    """
    made = parts("model.vocab=128", "model.layers=128", chips=2, pp=2, batch=8, schedule=schedule)
    forward, inputs, weights = chunk(32)
    assert weights < forward < inputs < 2 * forward
    bubble = {"zbv": max(inputs, 2 * (inputs - weights)), "dualpipe-v": 2 * forward + inputs - weights}[schedule]
    assert made["bubble"] == pytest.approx(bubble, rel=0.02)
    assert work_of(made) == pytest.approx(8 * 2 * (forward + inputs + weights), rel=0.01)


def test_uneven_stages() -> None:
    """Five layers and three: the first rank paces with five layers' products, eight times."""
    even, uneven = (parts("model.vocab=128", chips=2, pp=2, batch=8, placement=at) for at in ([4, 4], [5, 3]))
    products = trained(QKV, HIDDEN) + trained(HIDDEN, HIDDEN) + trained(2 * WIDE, HIDDEN) + trained(HIDDEN, WIDE)
    assert change("attention", even, uneven) == pytest.approx(8 * sum(FLASH))
    assert change("matmul", even, uneven) == pytest.approx(8 * products / RATE, rel=0.01)


def test_overlap_of_sends() -> None:
    """Waited for: the first rank sends eight times and waits for the last gradient. Beside compute: there and back, and
    a twentieth of each of the 2 (8 + 2 - 1) sends on the way round."""
    shape: dict[str, Any] = {"chips": 2, "pp": 2, "batch": 8}
    send = over(2 * TOKENS * HIDDEN / LINK, 1)
    assert parts("model.vocab=128", schedule="1f1b", **shape)["pp"] == pytest.approx(9 * send)
    beside = parts("model.vocab=128", schedule="gpipe", overlap={"pp": True}, **shape)
    assert beside["pp"] == pytest.approx((2 + 18 * 0.05) * send)


@pytest.mark.parametrize("chunks", [2, 4])
def test_deep_interleaving_sends_more_often(chunks: int) -> None:
    """Every pass of every chunk ends in a send, 2 (8 v + 2 - 1) of them, and more of each shown costs as much more."""
    send = over(2 * TOKENS * HIDDEN / LINK, 1)
    shape: dict[str, Any] = {"schedule": {"name": "interleaved", "chunks": chunks}, "chips": 2, "pp": 2, "batch": 8}
    offset, item = -4.0, PARAMETERS["hidden_pp"]
    well, badly = parts(**shape), parts(calibration=Calibration(offsets={"hidden_pp": offset}), **shape)
    shown = item.default - item.value(offset)
    assert shown > 0.3
    assert change("pp", well, badly) == pytest.approx(2 * (8 * chunks + 1) * shown * send)


@pytest.mark.parametrize(
    ("recompute", "layers"), [("full", LAYERS), ({"kind": "full", "layers": 3}, 3), ({"blocks": {"0": "full"}}, LAYERS)]
)
def test_full_recompute(recompute: Any, layers: int) -> None:
    """The forward of so many layers runs again: products, attention and streams."""
    base, again = parts(), parts(recompute=recompute)
    sizes = ((QKV, HIDDEN), (HIDDEN, HIDDEN), (2 * WIDE, HIDDEN), (HIDDEN, WIDE))
    products = sum(flops(TOKENS, n, k) for n, k in sizes)
    assert change("matmul", base, again) == pytest.approx(layers * products / RATE)
    assert change("attention", base, again) == pytest.approx(layers * FLASH[0])
    moved = 10 * HIDDEN + 2 * (HEADS + KV) * DIM + 3 * WIDE
    assert change("memory", base, again) == pytest.approx(layers * streamed(TOKENS * moved))


def test_recompute_of_the_rest() -> None:
    """Three layers run again as a whole, of the other five the scores."""
    base, again = parts(), parts(recompute={"kind": "full", "layers": 3, "rest": "selective"})
    sizes = ((QKV, HIDDEN), (HIDDEN, HIDDEN), (2 * WIDE, HIDDEN), (HIDDEN, WIDE))
    assert change("matmul", base, again) == pytest.approx(3 * sum(flops(TOKENS, n, k) for n, k in sizes) / RATE)
    assert change("attention", base, again) == pytest.approx(LAYERS * FLASH[0])
    moved = 10 * HIDDEN + 2 * (HEADS + KV) * DIM + 3 * WIDE
    assert change("memory", base, again) == pytest.approx(3 * streamed(TOKENS * moved))


def test_selective_recompute() -> None:
    """Scores run again, nothing else."""
    base, again = parts(), parts(recompute="selective")
    assert change("attention", base, again) == pytest.approx(LAYERS * FLASH[0])
    assert change("matmul", base, again) == change("memory", base, again) == 0


def test_offloaded_optimizer() -> None:
    """Half of the states (two moments and a master copy: 12 bytes) cross the host's link there and back: before and
    after the update, or both ways at once beside it."""
    base, away = parts(), parts(offload={"optimizer": 0.5}, overlap={"offload": False})
    assert away["optimizer"] == pytest.approx(base["optimizer"] + 2 * 6 * TRAINED / HOST)
    assert parts(offload={"optimizer": 0.5})["optimizer"] == pytest.approx(6 * TRAINED / HOST)


def test_offloaded_activations() -> None:
    """A hundredth of a layer's kept bytes, out and back; all but a twentieth hides."""
    base, more = (parts(f"model.layers={many}", offload={"activations": 0.01}) for many in (8, 9))
    kept = 2 * TOKENS * (4 * HIDDEN + (2 * HEADS + 2 * KV) * DIM + 3 * WIDE)
    assert change("host", base, more) == pytest.approx(0.05 * 2 * 0.01 * kept / HOST)


PRODUCTS = ((QKV, HIDDEN), (HIDDEN, HIDDEN), (2 * WIDE, HIDDEN), (HIDDEN, WIDE))


def test_eight_bits() -> None:
    """Products of layers at 0.62 of the 8-bit peak; the head stays wide."""
    wide, narrow = parts(), parts(precision="fp8")
    products = LAYERS * sum(trained(n, k) for n, k in PRODUCTS)
    assert change("matmul", wide, narrow) == pytest.approx(products / (1979e12 * 0.62) - products / RATE)
    # inputs are written narrow twice, read once more where no norm writes them; gradients are read and written twice
    moved = 1 * 2 * HIDDEN + 2 * (HIDDEN + WIDE) + 2 * (QKV + HIDDEN + 2 * WIDE + HIDDEN)
    assert change("memory", wide, narrow) == pytest.approx(LAYERS * streamed(TOKENS * moved))


def test_eight_bits_by_row() -> None:
    """Kernels that scale rows reach three quarters of the rate; finding a row's scale reads what is cast once more."""
    by_tensor, by_row = parts(precision="fp8"), parts(precision={"name": "fp8", "scaling": "row"})
    fast = LAYERS * sum(trained(n, k) for n, k in PRODUCTS) / (1979e12 * 0.62)
    assert change("matmul", by_tensor, by_row) == pytest.approx(fast / 0.75 - fast)
    moved = (HIDDEN + WIDE) + (QKV + HIDDEN + 2 * WIDE + HIDDEN)
    assert change("memory", by_tensor, by_row) == pytest.approx(LAYERS * streamed(TOKENS * moved))


def test_bias_gradients() -> None:
    """The gradient at a biased product is read once more and summed over tokens; XLA sums where it makes it."""
    biased = {**MODEL, "attention": MODEL["attention"] | {"qkv_bias": True}, "mlp": {"hidden": WIDE, "bias": True}}
    read = TOKENS * (QKV + 2 * WIDE + HIDDEN)
    assert change("memory", parts(), parts(model=biased)) == pytest.approx(LAYERS * streamed(read))
    plain, summed = (parts(model=model, engine="maxtext") for model in (MODEL, biased))
    assert change("memory", plain, summed) == pytest.approx(0.0, abs=1e-5)


def test_gelu_is_bound_by_special_functions_where_memory_is_fast() -> None:
    """5.8 and 7.4 values of the special-function unit, one for 16 flops, against five passes of fast memory."""
    fast = "chip.hbm.bandwidth=33.5 TB/s"
    plain, gelu = (
        parts(fast, model={**MODEL, "mlp": {"hidden": WIDE, "gated": False, "activation": name}}, compiled=True)
        for name in ("relu", "gelu")
    )
    values = TOKENS * WIDE
    special = (5.8 + 7.4) * values / (67e12 / 16)
    assert change("memory", plain, gelu) == pytest.approx(LAYERS * (special - streamed(5 * values) / 10))


def test_compiled_softmax() -> None:
    """Scores are written and read 4 + 7 times by a compiled program, 6 + 9 with a fused masked softmax."""
    fused, compiled = (
        change("attention", parts(**own), parts(attention="unfused", **own)) for own in ({}, {"compiled": True})
    )
    scores = TOKENS * TOKENS * HEADS
    assert fused - compiled == pytest.approx(LAYERS * streamed(4 * scores), rel=1e-3)


def test_state_space_layer() -> None:
    """64 heads of 64 with a state of 128 in chunks of 128: each kernel is bound by its flops or its bytes.

    States of 64 x 128 a head and chunk are 32-bit while they are summed up and 16-bit once they are handed on; scores
    of a chunk are 32-bit; of a masked chunk 96 of 128 columns a row are worked on.
    """
    mixer = {"kind": "mamba2", "heads": 64, "head_dim": 64, "state": 128}
    wide, key, states, square = TOKENS * 4096, TOKENS * 128, TOKENS * 4096, TOKENS * 128

    def kernel(products: float, moved: float) -> float:
        return max(2 * products / (989e12 * 0.12), moved / MEMORY)

    state, chunk = wide * 128, wide * 96
    again = [
        kernel(state, 2 * (wide + key) + 4 * states),
        kernel(0, (4 + 2) * states),
        kernel(key * 128, 2 * 2 * key + 4 * square),
    ]
    forward = [*again, kernel(state + chunk, 2 * (2 * wide + key + states) + 4 * square)]
    backward = [
        *again,
        kernel(state, 2 * (wide + key) + 4 * states),
        kernel(0, (4 + 6) * states),
        kernel(state + chunk, 2 * (3 * wide + key + states) + 4 * square),
        kernel(2 * state, 2 * (2 * wide + 2 * states + 2 * key)),
        kernel(chunk, 2 * 2 * wide + 4 * square),
        kernel(2 * key * 128, 2 * 4 * key + 2 * 4 * square),
        kernel(chunk, 2 * 2 * wide + 4 * square),
    ]
    base = parts()
    made = parts(model={**MODEL, "pattern": ["a*7", "s"], "block": {"a": {}, "s": {"attention": mixer}}})
    assert change("attention", base, made) == pytest.approx(sum(forward) + sum(backward) - sum(FLASH))


def test_images() -> None:
    """One image more: 576 patches in 24 layers of 16 heads of 64; norms 2 x 6, residuals 2 x 6, activation 2 + 3."""
    one, two = (
        predict(
            scenario(
                {
                    "model": "llava-1.5-7b",
                    "system": "1xh100-sxm",
                    "workload": {"seq": 4096, "global_batch": 1, "images": images},
                    "plan": {"engine": "megatron-core"},
                }
            ),
            DEFAULTS,
        )
        for images in (1, 2)
    )
    assert isinstance(one, Prediction)
    assert isinstance(two, Prediction)
    memory = [next(part.seconds for part in made.breakdown if part.name == "memory") for made in (one, two)]
    joined = 2 * 3 * 1024  # gradients of queries, keys and values, put together: no rotation does it
    biases = 5 * 1024 + 4096  # gradients of queries, keys, values, output, up and down, summed
    assert memory[1] - memory[0] == pytest.approx(24 * streamed(576 * (24 * 1024 + 5 * 4096 + biases + joined)))
