"""A torch module captured from one forward: known parts where it has them, a rest elsewhere, nothing left out."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ridgeline import predict, scenario
from ridgeline.core.encode import toml_text
from ridgeline.core.errors import InputError, UnknownId
from ridgeline.models.dimensions import dimensions_of
from ridgeline.models.facts import captured_flops, forward_flops_per_token
from ridgeline.models.hf import from_config, generic
from ridgeline.models.load import MODELS, model
from ridgeline.models.params import count
from ridgeline.models.spec import Attention, GatedDeltaNet, LatentAttention, Mamba2, Mlp, ModelSpec, Moe
from ridgeline.plan.check import check
from ridgeline.sim.prediction import Prediction

torch = pytest.importorskip("torch")
nn = torch.nn
WIDTH, HEADS, LAYERS, VOCAB, TOKENS = 64, 4, 3, 97, 24
SMALL: dict[str, Any] = {
    "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
    "intermediate_size": 96, "vocab_size": 128, "max_position_embeddings": 256, "pad_token_id": None,
}  # fmt: skip


class Layer(nn.Module):
    """Attention and a feed-forward; `odd` mixes tokens by a cumulative mean instead."""

    def __init__(self, odd: bool) -> None:
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.other, self.up, self.down = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 256), nn.Linear(256, WIDTH)
        self.mix = nn.Linear(WIDTH, WIDTH) if odd else None

    def forward(self, x: Any) -> Any:
        batch, tokens, width = x.shape
        if self.mix is not None:
            lower = torch.tril(torch.ones(tokens, tokens, device=x.device, dtype=x.dtype))
            x = x + self.mix(lower @ self.norm(x))
        else:
            parts = self.qkv(self.norm(x)).view(batch, tokens, 3, HEADS, width // HEADS).permute(2, 0, 3, 1, 4)
            mixed = nn.functional.scaled_dot_product_attention(*parts, is_causal=True)
            x = x + self.out(mixed.transpose(1, 2).reshape(batch, tokens, width))
        return x + self.down(nn.functional.gelu(self.up(self.other(x))))


class Decoder(nn.Module):
    """A small language model; the last layer may be odd."""

    def __init__(self, odd: bool = False) -> None:
        super().__init__()
        self.rows, self.places = nn.Embedding(VOCAB, WIDTH), nn.Embedding(128, WIDTH)
        self.layers = nn.ModuleList(Layer(odd and place == LAYERS - 1) for place in range(LAYERS))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCAB, bias=False)

    def forward(self, ids: Any) -> Any:
        x = self.rows(ids) + self.places(torch.arange(ids.shape[1], device=ids.device))
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


def made(odd: bool = False) -> tuple[Any, Any]:
    """A module with its inputs, as `module:function` returns them."""
    return Decoder(odd), torch.zeros((1, TOKENS), dtype=torch.long)


def captured(odd: bool = False) -> tuple[ModelSpec, Any]:
    from ridgeline import capture

    module, inputs = made(odd)
    return capture(module, inputs), module


def test_known_parts_are_found_with_every_parameter() -> None:
    spec, module = captured()
    block = spec.blocks[0]
    assert spec.order == (0,) * LAYERS
    assert spec.vocab == VOCAB
    assert not spec.embedding.tied
    assert block.mixer == Attention(
        heads=HEADS, kv_heads=HEADS, head_dim=16, positions="learned", qkv_bias=True, out_bias=True
    )  # fmt: skip
    assert block.ffn == Mlp(hidden=256, gated=False, activation="gelu", bias=True)
    assert block.norms == 2
    assert block.norm.bias
    assert block.captured is None
    assert spec.embedding.positions == 128
    assert count(spec).total == sum(weight.numel() for weight in module.parameters())
    assert spec.capture is not None
    assert spec.capture.tokens == (TOKENS,)
    assert spec.capture.untold == ()
    assert next(module.parameters()).device.type == "cpu", "the module stays as it is"


def test_what_no_part_describes_is_captured_op_by_op_and_refused_where_ranks_would_split_it() -> None:
    spec, module = captured(odd=True)
    last = spec.layer(LAYERS - 1)
    assert last.mixer is None
    assert last.ffn is not None
    assert last.captured is not None
    assert {one.label for one in last.captured.products} >= {"mix"}
    assert count(spec).total == sum(weight.numel() for weight in module.parameters())
    assert forward_flops_per_token(spec, TOKENS).captured == captured_flops(last.captured, TOKENS) > 2 * WIDTH**2
    work = {"seq": 64, "global_batch": 8}
    base = scenario({"model": "llama3-8b", "system": "8xh100-sxm", "workload": work, "plan": {"dp": 4, "tp": 2}})
    told = " ".join(str(problem) for problem in check(replace(base, model=spec)))
    assert ("captured" in told) is last.captured.mixes
    for plan in ({"dp": 8, "shard": "zero3"}, {"dp": 4, "pp": 2, "placement": [2, 1]}):
        split = scenario({"model": "llama3-8b", "system": "8xh100-sxm", "workload": work, "plan": {"dp": 8}})
        asked = scenario(
            {"model": dimensions_of(spec), "system": "8xh100-sxm", "workload": work, "plan": plan}
        )  # fmt: skip
        found = predict(asked)
        assert isinstance(found, Prediction)
        assert found.step_time_s > 0
        assert split is not None
        assert any("captured by torch" in line for line in found.assumptions)


def test_a_model_file_reads_back_as_the_same_model(tmp_path: Path) -> None:
    for spec in (captured()[0], captured(odd=True)[0], MODELS["deepseek-v3"], MODELS["llava-1.5-7b"]):
        file = tmp_path / f"{spec.id.lower()}.toml"
        file.write_text(toml_text(dimensions_of(spec)), encoding="utf-8")
        assert replace(model(file), id=spec.id) == spec


def test_a_forward_that_fails_is_told_without_a_traceback() -> None:
    from ridgeline import capture

    with pytest.raises(InputError, match=r"Linear.*expected a forward that runs without values"):
        capture(nn.Linear(4, 4), torch.zeros((1, 8)))
    with pytest.raises(InputError, match="multiplies its inputs"):
        capture(nn.Identity(), torch.zeros((1, 8)))


def test_a_type_without_a_reader_names_the_nearest_and_the_way_to_capture_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generic, "NEEDED", ("torch", "no_such_module"))
    with pytest.raises(UnknownId, match=r"(?s)llama.*pip install .ridgeline\[transformers\]"):
        from_config({"model_type": "lama"})
    monkeypatch.undo()
    with pytest.raises(UnknownId, match=r"(?s)transformers does not know it either.*capture"):
        from_config({"model_type": "lama"})


CASES: dict[str, tuple[dict[str, Any], type, type]] = {
    "qwen3_moe": (
        {"num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 32, "decoder_sparse_step": 1},
        Attention,
        Moe,
    ),
    "deepseek_v3": (
        {
            "q_lora_rank": 24, "kv_lora_rank": 16, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 16,
            "n_routed_experts": 8, "num_experts_per_tok": 2, "n_group": 2, "topk_group": 1, "first_k_dense_replace": 0,
            "moe_intermediate_size": 32, "num_key_value_heads": 4, "n_shared_experts": 1, "head_dim": 8,
        },
        LatentAttention,
        Moe,
    ),
    "qwen3_next": (
        {
            "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "decoder_sparse_step": 1,
            "shared_expert_intermediate_size": 32, "linear_num_key_heads": 2, "linear_num_value_heads": 4,
            "linear_key_head_dim": 16, "linear_value_head_dim": 16, "layer_types": ["linear_attention"] * 2,
        },
        GatedDeltaNet,
        Moe,
    ),
    "bamba": (
        {
            "mamba_n_heads": 8, "mamba_d_head": 16, "mamba_d_state": 16, "mamba_n_groups": 1, "attn_layer_indices": [],
        },
        Mamba2,
        Mlp,
    ),
    "gemma2": ({"sliding_window": 32, "query_pre_attn_scalar": 16}, Attention, Mlp),
}  # fmt: skip


@pytest.mark.parametrize("kind", CASES)
def test_a_captured_config_is_what_its_reader_reads(kind: str) -> None:
    pytest.importorskip("transformers")
    from ridgeline.runtime.capture import capture_config

    more, mixer, ffn = CASES[kind]
    data = json.loads(json.dumps({"model_type": kind, **SMALL, **more}))
    read, found = from_config(data), capture_config(data)
    assert isinstance(found.blocks[0].mixer, mixer)
    assert isinstance(found.blocks[0].ffn, ffn)
    assert count(found).total == count(read).total
    assert count(found).active == count(read).active
    assert forward_flops_per_token(found, 512).total == pytest.approx(forward_flops_per_token(read, 512).total)
