"""Flops, cache bytes and intensity against numbers derived by hand."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ridgeline.core.dtype import dtype
from ridgeline.models.facts import (
    FlopCount,
    arithmetic_intensity_decode,
    arithmetic_intensity_prefill,
    experts_touched,
    forward_flops_per_token,
    image_flops,
    kv_cache_bytes,
    kv_cache_bytes_per_token,
    mean_visible,
    state_bytes,
    training_flops_per_token,
)
from ridgeline.models.load import MODELS, model
from ridgeline.models.params import count
from ridgeline.models.spec import Attention

BF16, FP8, FP32 = dtype("bf16"), dtype("fp8"), dtype("fp32")
SOME = ("gpt3-175b", "llama3-8b", "gpt-oss-120b", "deepseek-v3", "deepseek-v3.2", "qwen3-next-80b-a3b", "llama4-scout")


def test_llama3_8b_is_twice_its_matrices_and_its_scores() -> None:
    """Every matrix element is one multiply-add; norms (65 vectors of 4096) and the embedding are none."""
    parts = count(MODELS["llama3-8b"])
    matrices = parts.total - parts.embedding - 65 * 4096
    assert matrices == 8_030_261_248 - 128256 * 4096 - 266_240
    scores = 32 * 2 * (8192 / 2) * 32 * (128 + 128)
    assert forward_flops_per_token(MODELS["llama3-8b"], 8192).total == 2 * matrices + scores


def test_gpt3_is_the_megatron_formula() -> None:
    """Narayanan et al. count 96 B s l h^2 (1 + s/6h + V/16lh), of which one forward of the layers is recomputed.

    Without that forward it is 72 B s l h^2 (1 + s/6h + V/12lh); attention is counted in full.
    """
    spec, s = model({"base": "gpt3-175b", "vocab": 51200}), 2048
    l, h, V = 96, 12288, 51200  # noqa: E741
    per_token = 72 * l * h**2 * (1 + s / (6 * h) + V / (12 * l * h))
    assert training_flops_per_token(spec, s, causal=False).total == pytest.approx(per_token, rel=1e-12)
    recomputed = 24 * l * h**2 * (1 + s / (6 * h))
    with_recompute = 96 * l * h**2 * (1 + s / (6 * h) + V / (16 * l * h))
    assert per_token + recomputed == pytest.approx(with_recompute, rel=1e-12)


def test_mixture_counts_the_experts_visited() -> None:
    parts, flops = count(MODELS["mixtral-8x7b"]), forward_flops_per_token(MODELS["mixtral-8x7b"], 4096)
    assert flops.experts == 2 * parts.visited
    assert flops.router == 2 * parts.router
    assert flops.head == 2 * parts.head
    assert flops.scores == 32 * 2 * 2048 * 32 * 256


def test_latent_experts_and_shared_gate() -> None:
    super_ = MODELS["nemotron3-super-120b-a12b"]
    parts, flops = count(super_), forward_flops_per_token(super_, 4096)
    assert flops.experts == 2 * (parts.visited + parts.shared_experts)
    assert flops.router == 2 * parts.router
    following = MODELS["qwen3-next-80b-a3b"]
    assert forward_flops_per_token(following, 4096).router == 2 * count(following).router


def test_deepseek_v3_expanded_attention() -> None:
    """Matrices of latent attention are its parameters less two latent norms; scores are 192 + 128 wide per head."""
    flops = forward_flops_per_token(MODELS["deepseek-v3"], 4096)
    assert flops.projections == 2 * 61 * (187_107_328 - 1536 - 512)
    assert flops.scores == 61 * 2 * 2048 * 128 * (192 + 128)


def test_deepseek_v3_training_with_mtp() -> None:
    spec = MODELS["deepseek-v3"]
    assert spec.mtp is not None
    step, plain = training_flops_per_token(spec, 4096), training_flops_per_token(replace(spec, mtp=None), 4096)
    assert plain.total == pytest.approx(3 * forward_flops_per_token(spec, 4096).total, rel=1e-12)
    layer = 2 * (187_105_280 + 9 * 3 * 7168 * 2048 + 256 * 7168) + 2 * 2048 * 128 * 320
    assert step.mtp == pytest.approx(3 * (layer + 4 * 7168**2 + 2 * 7168 * 129280), rel=1e-12)


@pytest.mark.parametrize(("id", "gigaflops"), [("deepseek-v2", 155), ("deepseek-v3", 250)])
def test_published_training_flops(id: str, gigaflops: float) -> None:
    """Insights into DeepSeek-V3 (arXiv 2505.09343) table 2: 4096 tokens, causal, without multi-token prediction."""
    spec = replace(MODELS[id], mtp=None)
    assert training_flops_per_token(spec, 4096).total == pytest.approx(gigaflops * 1e9, rel=0.004)


def test_sparse_attention_scores_all_tokens_with_the_indexer_only() -> None:
    dense, sparse = (forward_flops_per_token(MODELS[id], 131072) for id in ("deepseek-v3", "deepseek-v3.2"))
    assert sparse.scores < dense.scores / 3
    seen = 2048 - 2048**2 / (2 * 131072)
    assert sparse.scores == pytest.approx(61 * 2 * (seen * 128 * 320 + 65536 * 64 * 128), rel=1e-12)


def test_mamba2_and_delta_rule() -> None:
    flops = forward_flops_per_token(MODELS["mamba2-2.7b"], 2048)
    e, s, h = 5120, 128, 2560
    assert flops.state == 64 * (2 * (h * (3 * e + 2 * s + 80) + 4 * (e + 2 * s)) + 5 * e * s)
    assert flops.scores == flops.projections == 0
    assert forward_flops_per_token(MODELS["mamba2-2.7b"], 65536) == flops
    K, V = 16 * 128, 32 * 128
    delta = 2 * (2048 * (2 * K + 3 * V + 64) + 4 * (2 * K + V)) + 7 * V * 128
    assert forward_flops_per_token(MODELS["qwen3-next-80b-a3b"], 2048).state == 36 * delta


def brute_force(context: int, window: int, chunked: bool, causal: bool) -> float:
    """Visible tokens counted one query at a time, the diagonal as half a token when causal."""
    total = 0.0
    for query in range(context):
        first = query - query % window if chunked else query - window + 1
        past = query - max(0, first if window else 0)
        total += past + 0.5 if causal else (min(window - query % window, context - query) + past if chunked else 0)
    return total / context


@given(st.integers(1, 200), st.integers(1, 200))
def test_mean_visible_against_a_count(context: int, window: int) -> None:
    assert mean_visible(context, window, chunked=True) == pytest.approx(brute_force(context, window, True, True))
    full = mean_visible(context, window, chunked=True, causal=False)
    assert full == pytest.approx(brute_force(context, window, True, False))
    # a sliding window: each query's band is w wide; the closed form puts both edges at half a token
    sliding = brute_force(context, window, False, True)
    assert mean_visible(context, window) == pytest.approx(sliding, abs=0.5 + 1e-9)
    assert mean_visible(context) == context / 2


@given(st.sampled_from(SOME), st.integers(1, 200_000), st.integers(1, 200_000), st.booleans())
def test_flops_never_fall_with_context(id: str, one: int, other: int, causal: bool) -> None:
    short, long = sorted((one, other))
    spec = MODELS[id]
    low, high = forward_flops_per_token(spec, short, causal), forward_flops_per_token(spec, long, causal)
    assert low.total <= high.total * (1 + 1e-12)
    assert (low.projections, low.mlp, low.experts, low.head) == (high.projections, high.mlp, high.experts, high.head)
    assert forward_flops_per_token(spec, short).total <= forward_flops_per_token(spec, short, causal=False).total


@pytest.mark.parametrize("id", MODELS)
def test_parts_sum_for_every_model(id: str) -> None:
    flops, parts = training_flops_per_token(MODELS[id], 4096), count(MODELS[id])
    assert flops.total == pytest.approx(sum(getattr(flops, field.name) for field in fields(FlopCount)))
    matrices = parts.active - parts.vision - (0 if MODELS[id].embedding.tied else parts.embedding)
    forward = forward_flops_per_token(MODELS[id], 1)
    assert forward.total == pytest.approx(2 * matrices, rel=0.05)  # context 1: matrices alone, and some recurrence


def test_cache_of_known_models() -> None:
    """The first three are table 1 of arXiv 2505.09343."""
    assert kv_cache_bytes_per_token(MODELS["deepseek-v3"], BF16) == 61 * (512 + 64) * 2 == 70_272
    assert kv_cache_bytes_per_token(MODELS["qwen2.5-72b"], BF16) == 327_680
    assert kv_cache_bytes_per_token(MODELS["llama3.1-405b"], BF16) == 516_096
    assert kv_cache_bytes_per_token(MODELS["llama3-8b"], BF16) == 32 * 2 * 8 * 128 * 2 == 131_072
    assert kv_cache_bytes_per_token(MODELS["gpt3-175b"], BF16) == 96 * 2 * 12288 * 2
    assert kv_cache_bytes_per_token(MODELS["falcon-7b"], BF16) == 32 * 2 * 64 * 2
    assert kv_cache_bytes_per_token(MODELS["deepseek-v3.2"], FP8) == 61 * (512 + 64 + 128)
    assert kv_cache_bytes_per_token(MODELS["mamba2-2.7b"], BF16) == 0


def test_windows_cap_the_cache() -> None:
    per_layer = 2 * 8 * 64 * 2
    full, near = 18 * 10_000 * per_layer, 18 * 128 * per_layer
    assert kv_cache_bytes(MODELS["gpt-oss-120b"], 10_000, BF16) == full + near
    assert kv_cache_bytes(MODELS["llama3-8b"], 100, BF16) == 100 * 131_072


def test_state_of_a_sequence() -> None:
    mamba = 64 * (5120 * 128 + 3 * (5120 + 256))
    assert state_bytes(MODELS["mamba2-2.7b"], FP32) == 4 * mamba
    delta = 36 * (32 * 128 * 128 + 3 * (2 * 2048 + 4096))
    assert state_bytes(MODELS["qwen3-next-80b-a3b"], BF16) == 2 * delta
    assert state_bytes(MODELS["llama3-8b"], FP32) == 0


@given(st.sampled_from(SOME), st.integers(0, 100_000), st.integers(0, 100_000))
def test_cache_grows_and_never_faster_than_per_token(id: str, one: int, other: int) -> None:
    low, high = sorted((one, other))
    spec = MODELS[id]
    assert kv_cache_bytes(spec, low, BF16) <= kv_cache_bytes(spec, high, BF16)
    assert kv_cache_bytes(spec, high, BF16) <= high * kv_cache_bytes_per_token(spec, BF16)


def test_experts_touched() -> None:
    assert experts_touched(8, 2, 1) == 2
    assert experts_touched(8, 8, 5) == 8
    assert experts_touched(256, 8, 10**6) == pytest.approx(256)
    assert experts_touched(4, 1, 2) == pytest.approx(4 * (1 - 9 / 16))


def test_decode_of_a_dense_model_by_hand() -> None:
    """llama3-8b, batch B, context C in bf16: weights without the embedding once, C + 1 tokens of cache each."""
    spec, batch, context = MODELS["llama3-8b"], 16, 4096
    step = arithmetic_intensity_decode(spec, batch, context, BF16)
    weights = 8_030_261_248 - 128256 * 4096
    assert step.weight_bytes == 2 * weights
    assert step.cache_bytes == batch * (context + 1) * 131_072
    assert step.flops == batch * (2 * (weights - 266_240) + 32 * 2 * context * 32 * 256)
    assert step.flops_per_byte == step.flops / (step.weight_bytes + step.cache_bytes)


def test_decode_of_a_mixture_reads_the_experts_its_tokens_pick() -> None:
    parts = count(MODELS["mixtral-8x7b"])
    rest = parts.total - parts.experts - parts.embedding
    one, many = (arithmetic_intensity_decode(MODELS["mixtral-8x7b"], batch, 1, BF16) for batch in (1, 4))
    assert one.weight_bytes == pytest.approx(2 * (rest + parts.visited))
    assert many.weight_bytes == pytest.approx(2 * (rest + parts.experts * (1 - 0.75**4)))


def test_latent_attention_decodes_in_the_latent() -> None:
    """Absorbed scores are 512 + 64 and 512 wide per head: 2 * 128 * 1088 flops for 576 * 2 bytes of cache."""
    spec = MODELS["deepseek-v3"]
    near, far = (arithmetic_intensity_decode(spec, 1, context, BF16) for context in (1000, 2000))
    assert far.flops - near.flops == pytest.approx(61 * 1000 * 2 * 128 * 1088)
    assert far.cache_bytes - near.cache_bytes == 1000 * 70_272


@given(st.sampled_from(SOME), st.integers(1, 512), st.integers(1, 32_768))
def test_prefill_is_denser_than_decode_and_batch_helps(id: str, batch: int, context: int) -> None:
    spec = MODELS[id]
    one, many = (arithmetic_intensity_decode(spec, size, context, BF16) for size in (batch, batch + 1))
    if not any(hasattr(block.ffn, "experts") for block in spec.blocks):
        assert one.flops_per_byte <= many.flops_per_byte * (1 + 1e-9)
    if context >= 512:
        single = arithmetic_intensity_decode(spec, 1, context, BF16)
        assert arithmetic_intensity_prefill(spec, context, BF16).flops_per_byte > single.flops_per_byte


def test_halving_the_bytes_doubles_the_intensity() -> None:
    two, one = (arithmetic_intensity_prefill(MODELS["llama3-8b"], 2048, kind) for kind in (BF16, FP8))
    assert one.flops_per_byte == pytest.approx(2 * two.flops_per_byte)


def test_image_of_llava_by_hand() -> None:
    patches = 576
    layer = 2 * (4 * 1024**2 + 2 * 1024 * 4096) + 4 * patches * 1024
    projector = 4096 * 1024 + 4096 + 4096 * 4096 + 4096
    expected = patches * (6 * 14**2 * 1024 + 24 * layer) + 2 * 576 * projector
    assert image_flops(MODELS["llava-1.5-7b"]) == expected
    assert image_flops(MODELS["llama3-8b"]) == 0


def test_windowed_image_layers_cost_less() -> None:
    spec = MODELS["llava-1.5-7b"]
    assert spec.vision is not None
    mixer = spec.vision.block.mixer
    assert isinstance(mixer, Attention)
    block = replace(spec.vision.block, mixer=replace(mixer, window=64, chunked=True))
    windowed = replace(spec, vision=replace(spec.vision, block=block, windowed=20))
    saved = image_flops(spec) - image_flops(windowed)
    assert saved == pytest.approx(20 * 4 * 576 * (576 - 64) * 1024)
