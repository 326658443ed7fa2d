"""Logits of `runtime.train` against transformers: tiny models of its own config classes, with the same weights."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from ridgeline.core.dtype import dtype  # noqa: E402
from ridgeline.models.hf import from_config  # noqa: E402
from ridgeline.plan.plan import Plan, Precision  # noqa: E402
from ridgeline.runtime.train.assemble import Assembly, Blueprint, assemble  # noqa: E402
from ridgeline.runtime.train.hf_weights import load_weights, save_weights  # noqa: E402
from ridgeline.runtime.train.layout import Layout  # noqa: E402
from ridgeline.runtime.train.request import forward_constants  # noqa: E402

SMALL = {"vocab_size": 128, "hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4}
CONFIGS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {"num_key_value_heads": 2, "intermediate_size": 96, "rope_theta": 500000.0}),
    "llama-tied": ("Llama", {"num_key_value_heads": 4, "intermediate_size": 96, "tie_word_embeddings": True}),
    "qwen3-moe": (
        "Qwen3Moe",
        {
            "num_key_value_heads": 2, "head_dim": 16, "intermediate_size": 96, "moe_intermediate_size": 32,
            "num_experts": 8, "num_experts_per_tok": 2, "norm_topk_prob": True, "mlp_only_layers": [1],
        },
    ),
    "deepseek-v3": (
        "DeepseekV3",
        {
            "num_key_value_heads": 4, "intermediate_size": 96, "moe_intermediate_size": 32, "n_routed_experts": 8,
            "num_experts_per_tok": 2, "n_shared_experts": 1, "n_group": 4, "topk_group": 2, "first_k_dense_replace": 1,
            "q_lora_rank": 24, "kv_lora_rank": 16, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 16,
            "rope_scaling": None,
        },
    ),
}  # fmt: skip


def reference(name: str) -> Any:
    """A model of transformers with weights that are no fixed point of anything."""
    family, more = CONFIGS[name]
    config = getattr(transformers, f"{family}Config")(**SMALL, **more)
    torch.manual_seed(3)
    model = getattr(transformers, f"{family}ForCausalLM")(config).eval()
    with torch.no_grad():
        for key, value in model.state_dict().items():
            value.add_(torch.randn_like(value.float()).to(value.dtype) * (0.02 if "bias" in key else 0.1))
    return model


def ours(model: Any) -> Assembly:
    """The same architecture here, as its config describes it."""
    config = model.config.to_dict()
    spec = replace(from_config(config), mtp=None)  # transformers leaves multi-token prediction out
    wide = dtype("fp32")
    plan = Plan(precision=Precision(compute=wide, weights=wide, activations=wide, kv=wide), engine="ridgeline")
    blueprint = Blueprint(
        model=spec, constants=forward_constants(spec), plan=plan, placement=(spec.layers,), gradients=wide, seed=1
    )
    return assemble(blueprint, Layout())


@pytest.mark.parametrize("name", CONFIGS)
def test_logits_equal_those_of_transformers_and_weights_return(name: str, tmp_path: Path) -> None:
    model = reference(name)
    model.save_pretrained(tmp_path / "theirs")
    built = ours(model)
    tokens = torch.randint(128, (2, 24), generator=torch.Generator().manual_seed(5))
    before = built.stages[0](tokens)
    load_weights(built, tmp_path / "theirs")
    logits = built.stages[0](tokens)
    expected = model(tokens).logits
    assert not torch.allclose(before, expected, atol=1e-2)
    torch.testing.assert_close(logits, expected, rtol=2e-5, atol=2e-5)

    save_weights(built, tmp_path / "ours")
    model.config.save_pretrained(tmp_path / "ours")
    again = type(model).from_pretrained(tmp_path / "ours").eval()
    torch.testing.assert_close(again(tokens).logits, expected, rtol=1e-6, atol=1e-6)
