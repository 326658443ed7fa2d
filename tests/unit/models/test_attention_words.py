"""Words for attention mean the tables they stand for: the same parameters, cache and flops; what lacks is named."""

from __future__ import annotations

from pathlib import Path

import pytest

import ridgeline
from ridgeline.core.documents import JsonObject
from ridgeline.core.dtype import dtype
from ridgeline.core.errors import InputError
from ridgeline.models.attention_words import COMMON, KINDS, WORDS
from ridgeline.models.facts import kv_cache_bytes_per_token, training_flops_per_token
from ridgeline.models.load import model
from ridgeline.models.params import count
from ridgeline.models.spec import ModelSpec

OWN: JsonObject = {"hidden": 256, "layers": 2, "vocab": 512, "mlp": {"hidden": 512}}
LATENT: JsonObject = {"heads": 8, "q_rank": 64, "kv_rank": 32, "nope_dim": 16, "rope_dim": 8, "v_dim": 16}
DELTA: JsonObject = {"key_heads": 2, "value_heads": 4, "key_dim": 16, "value_dim": 16}
LONG: dict[str, tuple[JsonObject, JsonObject]] = {
    "gqa": ({"heads": 8, "kv_heads": 2}, {"kind": "attention", "heads": 8, "kv_heads": 2, "head_dim": 32}),
    "mha": ({"heads": 8}, {"kind": "attention", "heads": 8, "kv_heads": 8, "head_dim": 32}),
    "mqa": ({"heads": 8}, {"kind": "attention", "heads": 8, "kv_heads": 1, "head_dim": 32}),
    "full": ({"heads": 8}, {"kind": "attention", "heads": 8, "kv_heads": 8, "head_dim": 32}),
    "sliding": (
        {"heads": 8, "kv_heads": 2, "window": 64},
        {"kind": "attention", "heads": 8, "kv_heads": 2, "head_dim": 32, "window": 64},
    ),
    "chunked": (
        {"heads": 8, "window": 64},
        {"kind": "attention", "heads": 8, "kv_heads": 8, "head_dim": 32, "window": 64, "chunked": True},
    ),
    "mla": (LATENT, {"kind": "mla", **LATENT}),
    "mamba2": ({"heads": 8, "head_dim": 32, "state": 16}, {"kind": "mamba2", "heads": 8, "head_dim": 32, "state": 16}),
    "gdn": (DELTA, {"kind": "gated-delta", **DELTA}),
    "kda": (
        {"heads": 4, "key_dim": 16, "value_dim": 16},
        {"kind": "recurrence", "form": "kda", "heads": 4, "key_dim": 16, "value_dim": 16},
    ),
}


def facts(spec: ModelSpec) -> tuple[float, float, float]:
    cache = kv_cache_bytes_per_token(spec, dtype("bf16"))
    return count(spec).total, cache, training_flops_per_token(spec, 256).total


@pytest.mark.parametrize("word", LONG)
def test_a_word_has_the_facts_of_its_long_form(word: str) -> None:
    short, long = LONG[word]
    spelled, written = model({**OWN, "attention": {"kind": word, **short}}), model({**OWN, "attention": long})
    assert spelled.blocks == written.blocks
    assert facts(spelled) == facts(written)


@pytest.mark.parametrize("spelling", ["GQA", "grouped_query", "grouped-query-attention", " gqa "])
def test_spellings_of_a_word(spelling: str) -> None:
    expected = model({**OWN, "attention": {"heads": 8, "kv_heads": 2}})
    assert model({**OWN, "attention": {"kind": spelling, "heads": 8, "kv_heads": 2}}).blocks == expected.blocks


@pytest.mark.parametrize(
    ("word", "long"),
    [
        ("mqa", {"kv_heads": 1}),
        ("mha", {"kv_heads": 32}),
        ("gqa", {}),
        ({"kind": "gqa", "kv_heads": 4}, {"kv_heads": 4}),
        ({"kind": "sliding", "window": 4096}, {"window": 4096}),
        (
            {"kind": "mla", "q_rank": 0, "kv_rank": 512, "nope_dim": 128, "rope_dim": 64, "v_dim": 128},
            {"kind": "mla", "heads": 32, "q_rank": 0, "kv_rank": 512, "nope_dim": 128, "rope_dim": 64, "v_dim": 128},
        ),
    ],
)
def test_upon_a_model_a_word_keeps_what_it_leaves_open(word: object, long: JsonObject) -> None:
    found = model({"base": "llama3-8b", "attention": word})
    assert found.blocks == model({"base": "llama3-8b", "attention": long}).blocks
    assert "attention=" in found.id


def test_latent_attention_becomes_grouped() -> None:
    """DeepSeek-V3 with GQA: 128 heads stay, its cache grows from 576 numbers a layer to 2 x 8 x 128."""
    grouped = model({"base": "deepseek-v3", "attention": {"kind": "gqa", "kv_heads": 8, "head_dim": 128}})
    latent = model("deepseek-v3")
    ratio = kv_cache_bytes_per_token(grouped, dtype("bf16")) / kv_cache_bytes_per_token(latent, dtype("bf16"))
    assert ratio == pytest.approx(2 * 8 * 128 / (512 + 64))


def test_blocks_and_layers_between_them() -> None:
    mixed = model({**OWN, "attention": {"kind": "mha", "heads": 8}, "pattern": ["near", "far"],
                   "block": {"near": {"attention": {"kind": "swa", "window": 16}}, "far": {}}})  # fmt: skip
    assert [block.mixer.window for block in mixed.blocks] == [16, 0]
    assert [block.mixer.kv_heads for block in mixed.blocks] == [8, 8]


def test_a_setting_is_a_word_or_goes_below_it(tmp_path: Path) -> None:
    file = "examples/llama3-70b-decode-4xh100.toml"
    word = ridgeline.read_scenario(file, ["model.attention=mqa"])
    below = ridgeline.read_scenario(file, ["model.attention=mqa", "model.attention.head_dim=64"])
    assert word.model.blocks == ridgeline.read_scenario(file, ["model.attention.kv_heads=1"]).model.blocks
    assert (below.model.blocks[0].mixer.kv_heads, below.model.blocks[0].mixer.head_dim) == (1, 64)


@pytest.mark.parametrize(
    ("table", "words"),
    [
        (
            {"base": "llama3-8b", "attention": "mla"},
            ("q_rank, kv_rank, nope_dim, rope_dim, v_dim with", "heads = 1"),
        ),
        ({"base": "llama3-8b", "attention": "sliding"}, ("window with it", "window = 4096")),
        ({"base": "llama2-7b", "attention": "gqa"}, ("kv_heads with it", "kv_heads = 8")),
        ({**OWN, "attention": "gqa"}, ("heads, kv_heads with it",)),
        ({"base": "llama3-8b", "attention": "flash"}, ("one of gqa, mha",)),
        ({"base": "llama3-8b", "attention": {"kind": "slidng"}}, ("did you mean 'sliding'?",)),
        ({"base": "llama3-8b", "attention": {"kind": "mqa", "kv_heads": 4}}, ("kv_heads = 1, which mqa means",)),
        ({"base": "kimi-linear-48b-a3b", "attention": "mqa"}, ("block.delta.attention or block.latent.attention",)),
        ({**OWN, "attention": 3}, ("a table",)),
    ],
)
def test_what_lacks_or_contradicts_is_named(table: JsonObject, words: tuple[str, ...]) -> None:
    with pytest.raises(InputError) as refused:
        model(table)
    assert all(word in str(refused.value) for word in words), str(refused.value)


def test_every_word_has_an_example_that_is_one() -> None:
    import tomllib

    assert set(COMMON) <= set(WORDS)
    for word in WORDS.values():
        assert word.kind in KINDS
        table = tomllib.loads(f"attention = {{ {word.example} }}")
        assert model({**OWN, "hidden": 8192, **table}).blocks[0].mixer.kind == word.kind
