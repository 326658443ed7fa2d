"""Counts by part: they add up, and known totals come out."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ridgeline.models.mixer_parts import mixer_parts
from ridgeline.models.params import (
    ParamCount,
    block_params,
    block_parts,
    count,
    ffn_params,
    moe_params,
    mtp_params,
    tower_params,
)
from ridgeline.models.spec import (
    Attention,
    Block,
    Embedding,
    GatedDeltaNet,
    Indexer,
    LatentAttention,
    Mamba2,
    Mixer,
    Mlp,
    ModelSpec,
    Moe,
    Mtp,
    Norm,
    Vision,
)

LATENT = LatentAttention(heads=128, q_rank=1536, kv_rank=512, nope_dim=128, rope_dim=64, v_dim=128)
V3 = Moe(experts=256, topk=8, hidden=2048, shared_hidden=2048)
LAYER = Norm(kind="layer", bias=True)


def spec(*layers: Block, hidden: int = 8, **more: object) -> ModelSpec:
    order = tuple(range(len(layers)))
    base = ModelSpec(id="m", name="m", hidden=hidden, vocab=10, embedding=Embedding(), blocks=layers, order=order)
    return replace(base, **more)  # type: ignore[arg-type]


def test_deepseek_v3_has_671_billion_and_37_active() -> None:
    dense, sparse = Block(mixer=LATENT, ffn=Mlp(hidden=18432)), Block(mixer=LATENT, ffn=V3)
    model = ModelSpec(
        id="v3",
        name="V3",
        hidden=7168,
        vocab=129280,
        embedding=Embedding(),
        blocks=(dense, sparse),
        order=(0,) * 3 + (1,) * 58,
        mtp=Mtp(depth=1, block=sparse),
    )
    parts = count(model)
    assert parts.total == 671_026_404_352
    assert parts.active == parts.total - 58 * (256 - 8) * 3 * 7168 * 2048
    assert parts.mtp == block_params(sparse, 7168) + 2 * 7168**2 + 3 * 7168
    assert parts.total_with_mtp == parts.total + parts.mtp
    assert parts.head == 129280 * 7168


@pytest.mark.parametrize(
    ("mixer", "hidden", "expected"),
    [
        (Attention(heads=2, kv_heads=1, head_dim=4), 8, 8 * (8 + 4 + 4) + 64),
        (Attention(heads=2, kv_heads=1, head_dim=4, qkv_bias=True, out_bias=True), 8, 192 + 16 + 8),
        (Attention(heads=2, kv_heads=1, head_dim=4, gate=True), 8, 192 + 64),
        (Attention(heads=2, kv_heads=1, head_dim=4, qk_norm="head"), 8, 192 + 8),
        (Attention(heads=2, kv_heads=1, head_dim=4, qk_norm="full", sinks=True), 8, 192 + 12 + 2),
        (Attention(heads=2, kv_heads=1, head_dim=4, v_head_dim=2), 8, 8 * (8 + 4 + 2) + 32),
        (Attention(heads=2, kv_heads=1, head_dim=4, keys_as_values=True), 8, 192 - 32),
        (replace(LATENT, q_rank=0), 7168, 7168 * 128 * 192 + 7168 * 576 + 512 + 512 * 128 * 256 + 128 * 128 * 7168),
        (replace(LATENT, bias=True), 7168, mixer_parts(LATENT, 7168).params + 1536 + 576 + 7168),
        (Mamba2(heads=2, head_dim=4, state=3), 8, 8 * (16 + 6 + 2) + 14 * 5 + 6 + 8 + 64),
        (Mamba2(heads=2, head_dim=4, state=3, conv_bias=False, proj_bias=True), 8, 192 + 14 * 4 + 6 + 8 + 64 + 32),
        (GatedDeltaNet(key_heads=1, value_heads=2, key_dim=4, value_dim=4), 8, 8 * 28 + 64 + 4 + 4 + 64),
    ],
)
def test_mixers(mixer: Mixer, hidden: int, expected: int) -> None:
    assert mixer_parts(mixer, hidden).params == expected


def test_an_indexer_counts_only_where_it_is() -> None:
    indexer = Indexer(heads=64, head_dim=128, topk=2048)
    own = mixer_parts(replace(LATENT, indexer=indexer), 7168).params - mixer_parts(LATENT, 7168).params
    assert own == 1536 * 64 * 128 + 7168 * 128 + 256 + 7168 * 64
    shared = replace(LATENT, indexer=replace(indexer, shared=True))
    assert mixer_parts(shared, 7168).params == mixer_parts(LATENT, 7168).params


def test_feed_forward_parts() -> None:
    assert ffn_params(Mlp(hidden=16, gated=False, bias=True), 8) == 2 * 8 * 16 + 16 + 8
    moe = Moe(experts=4, topk=1, hidden=6, bias=True, router_bias=True, shared_hidden=5, shared_gate=True, latent=2)
    parts = moe_params(moe, 8)
    assert parts.experts == 4 * (3 * 2 * 6 + 12 + 2) == 4 * parts.visited
    assert parts.shared_experts == 3 * 8 * 5
    assert parts.router == 8 * 4 + 4 + 8 + 2 * 8 * 2
    assert ffn_params(moe, 8) == parts.total


def test_embedding_head_and_final_norm() -> None:
    bare = spec(Block(mixer=None, ffn=Mlp(hidden=4)), norm=None)
    assert count(bare).embedding == count(bare).head == 80
    tied = replace(bare, embedding=Embedding(tied=True, positions=5, norm=LAYER, head_bias=True))
    assert (count(tied).embedding, count(tied).head) == (80 + 40 + 16, 10)
    narrow = replace(bare, embedding=Embedding(tied=True, width=4))
    assert (count(narrow).embedding, count(narrow).head) == (40 + 32, 32)
    assert count(replace(bare, norm=LAYER)).norms - count(bare).norms == 16


def test_vision_and_prediction_are_their_own_parts() -> None:
    block = Block(mixer=None, ffn=Mlp(hidden=4), norm=LAYER, extra=3)
    vision = Vision(hidden=8, block=block, layers=2, patch=2, image=4, tokens=4, projector_params=5, other_params=7)
    assert tower_params(vision) == 2 * (3 * 8 * 4 + 2 * 16 + 3) + 12
    model = spec(block, vision=vision, mtp=Mtp(depth=2, block=block))
    assert count(model).vision == tower_params(vision)
    assert count(model).extra == 3
    assert count(model).mtp == mtp_params(Mtp(depth=2, block=block), 8)
    assert count(model).total == count(replace(model, mtp=None)).total


@given(st.integers(1, 64), st.integers(1, 64), st.integers(1, 4), st.booleans())
def test_parts_sum_and_repeat(experts: int, hidden: int, layers: int, tied: bool) -> None:
    moe = Moe(experts=experts, topk=1, hidden=hidden, shared_hidden=3, router_bias=True)
    block = Block(mixer=Attention(heads=2, kv_heads=1, head_dim=4), ffn=moe)
    parts = count(spec(*[block] * layers, embedding=Embedding(tied=tied)))
    named = sum(getattr(parts, field.name) for field in fields(ParamCount) if field.name != "visited")
    assert parts.total == parts.total_with_mtp == named
    assert parts.active == parts.total - (experts - 1) * parts.visited
    assert parts.experts == layers * block_parts(block, 8).experts
    assert (parts.head == 0) == tied
