"""The model that is named is the model that is trained: loss and gradients of every type against transformers' own."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

os.environ["HF_HUB_OFFLINE"] = "1"
torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from ridgeline.core.dtype import dtype  # noqa: E402
from ridgeline.core.errors import InputError  # noqa: E402
from ridgeline.models.hf import from_config  # noqa: E402
from ridgeline.models.hf.numerics import compared_types, numerics_from  # noqa: E402
from ridgeline.models.load import MODELS  # noqa: E402
from ridgeline.plan.plan import Plan, Precision  # noqa: E402
from ridgeline.runtime.train.assemble import Assembly, Blueprint, assemble  # noqa: E402
from ridgeline.runtime.train.hf_weights import load_weights, save_weights  # noqa: E402
from ridgeline.runtime.train.layout import Layout  # noqa: E402
from ridgeline.runtime.train.refuse import numerics_refusals  # noqa: E402
from ridgeline.runtime.train.request import assumed_constants, forward_constants  # noqa: E402

transformers.logging.set_verbosity_error()
VOCAB, TOKENS = 128, 24
# keys that types call their sizes by; each takes those that it has
SIZES = {
    "vocab_size": VOCAB, "hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2,
    "head_dim": 16, "intermediate_size": 96, "max_position_embeddings": 64, "num_experts": 8, "num_local_experts": 8,
    "n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "moe_num_experts": 8, "moe_k": 2,
    "shared_expert_intermediate_size": 32, "n_shared_experts": 1, "first_k_dense_replace": 1, "n_group": 4,
    "topk_group": 2, "q_lora_rank": 24, "kv_lora_rank": 16, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8,
    "v_head_dim": 16, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
LATENT = {"num_key_value_heads": 4, "head_dim": 8}
MORE: dict[str, dict[str, Any]] = {
    "deepseek_v2": LATENT | {"topk_method": "greedy", "n_group": 1, "topk_group": 1},
    "deepseek_v3": LATENT,
    "granite": {
        "embedding_multiplier": 3.0, "residual_multiplier": 0.4, "attention_multiplier": 0.2, "logits_scaling": 4.0,
    },
}  # fmt: skip
CONTEXT = {"original_max_position_embeddings": 16}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0, **CONTEXT}
LONG = {"short_factor": [1.0 + 0.1 * pair for pair in range(8)], "long_factor": [2.0 + pair for pair in range(8)]}
ROTARY: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "llama with a base": ("llama", {"rope_type": "default", "rope_theta": 500000.0}, {}),
    "llama3": ("llama", LLAMA3 | {"rope_theta": 500000.0}, {}),
    "linear": ("llama", {"rope_type": "linear", "factor": 4.0, "rope_theta": 1e4}, {}),
    "dynamic": ("llama", {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 1e4}, {"max_position_embeddings": 16}),
    "yarn": ("qwen3", {"rope_type": "yarn", "factor": 4.0, "rope_theta": 1e6, **CONTEXT}, {}),
    "yarn of latent attention": (
        "deepseek_v3",
        {"rope_type": "yarn", "factor": 40.0, "mscale": 1.0, "mscale_all_dim": 0.7, "rope_theta": 1e4, **CONTEXT},
        LATENT,
    ),
    "longrope": ("phi3", {"rope_type": "longrope", "rope_theta": 1e4, **LONG, **CONTEXT}, CONTEXT),
}


TEXT_OF = {"gemma3": "gemma3_text"}  # types whose name alone means a model that sees, too


def reference(kind: str, **more: Any) -> Any:
    """A small model of transformers whose weights, biases and buffers are no fixed point of anything."""
    default = transformers.AutoConfig.for_model(TEXT_OF.get(kind, kind))
    stated = default.to_dict()
    sizes = {key: value for key, value in SIZES.items() if key in stated}
    config = type(default)(**sizes | MORE.get(kind, {}) | more)
    torch.manual_seed(3)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").float().eval()
    with torch.no_grad():
        for name, value in model.state_dict().items():
            value.add_(torch.randn_like(value.float()) * (0.02 if "bias" in name else 0.1))
    return model


def built_like(model: Any, folder: Path) -> Assembly:
    """The same model here, described by its config and filled from its files."""
    model.save_pretrained(folder)
    spec = replace(from_config(model.config.to_dict()), mtp=None)  # transformers leaves multi-token prediction out
    assert not list(numerics_refusals(forward_constants(spec).numerics))
    wide = dtype("fp32")
    plan = Plan(precision=Precision(compute=wide, weights=wide, activations=wide, kv=wide), engine="ridgeline")
    blueprint = Blueprint(
        model=spec, constants=forward_constants(spec), plan=plan, placement=(spec.layers,), gradients=wide, seed=1
    )
    assembly = assemble(blueprint, Layout())
    load_weights(assembly, folder)
    return assembly


def compare(model: Any, folder: Path) -> None:
    """Loss and gradients of one batch equal to 1e-5; the weights return as they were."""
    assembly = built_like(model, folder / "theirs")
    stage = assembly.stages[0]
    tokens = torch.randint(3, VOCAB, (2, TOKENS + 1), generator=torch.Generator().manual_seed(5))
    inputs, targets = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
    expected = torch.nn.functional.cross_entropy(model(inputs).logits.flatten(0, 1), targets.flatten())
    expected.backward()
    loss = stage(inputs, targets, 1 / targets.numel())
    loss.backward()
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
    theirs = sum(float(p.grad.square().sum()) for p in model.parameters() if p.grad is not None)
    ours = sum(float(p.grad.square().sum()) for p in stage.parameters() if p.grad is not None)
    assert ours == pytest.approx(theirs, rel=2e-5)
    for name, gradient in gradients_of(model).items():
        mine = gradients_of(stage, assembly).get(name)
        if mine is not None:
            distance = float((mine - gradient).norm())
            assert distance <= 1e-5 * max(float(gradient.norm()), theirs**0.5 * 1e-3), name
    save_weights(assembly, folder / "ours", folder / "theirs" / "config.json")
    returned = type(model).from_pretrained(folder / "ours").state_dict()
    assert all(torch.equal(returned[name], value) for name, value in model.state_dict().items())


def gradients_of(module: Any, assembly: Assembly | None = None) -> dict[str, Any]:
    """Gradients by the name of the tensor in transformers' modules; here those that are one tensor in both."""
    named = {name: p.grad for name, p in module.named_parameters() if p.grad is not None}
    if assembly is None:
        return named
    from ridgeline.runtime.train.hf_weights import hf_names

    names = hf_names(assembly.blueprint.model, assembly.blueprint.constants.numerics.family)
    return {str(names[name]): gradient for name, gradient in named.items() if isinstance(names.get(name), str)}


@pytest.mark.parametrize("kind", compared_types())
def test_every_compared_type_computes_as_transformers_does(kind: str, tmp_path: Path) -> None:
    compare(reference(kind), tmp_path)


@pytest.mark.parametrize("name", ROTARY)
def test_rotary_positions_are_scaled_as_transformers_does(name: str, tmp_path: Path) -> None:
    kind, rotary, more = ROTARY[name]
    compare(reference(kind, rope_parameters=rotary, **more), tmp_path)


def test_what_multiplies_and_is_not_understood_is_refused() -> None:
    strange = numerics_from({"model_type": "llama", "logits_scaling": 8.0, "rms_norm_eps": 1e-5})
    assert [problem.path for problem in numerics_refusals(strange)] == ["model.logits_scaling"]
    scaled = {"rope_type": "yarn", "factor": 4.0, "llama_4_scaling_beta": 0.1, **CONTEXT}
    beta = numerics_from({"model_type": "ministral3", "rope_parameters": scaled})
    assert beta.unread == ("rope_parameters.llama_4_scaling_beta",)
    unheard = numerics_from({"model_type": "llama", "rope_scaling": {"type": "su", "factor": 4.0}})
    assert unheard.unread == ("rope_parameters.rope_type",)


def test_a_type_that_nobody_compared_is_refused_by_name() -> None:
    problems = list(numerics_refusals(numerics_from({"model_type": "gptj"})))
    assert problems[0].given == "gptj"
    assert "llama" in problems[0].expected


def test_a_key_of_its_neutral_value_is_no_reason() -> None:
    plain = {"model_type": "llama", "logits_scaling": 1.0, "attention_multiplier": None, "clip_qkv": False}
    assert numerics_from(plain).unread == ()


def test_constants_of_published_models_are_theirs_and_what_is_assumed_is_named() -> None:
    llama = forward_constants(MODELS["llama3.1-8b"])
    assert (llama.numerics.rotary_base, llama.epsilon) == (500000.0, 1e-5)
    assert llama.numerics.rotary_scaling is not None
    deepseek = forward_constants(MODELS["deepseek-v3"])
    assert (deepseek.router.score, deepseek.router.scale, deepseek.router.bias) == ("sigmoid", 2.5, True)
    assert assumed_constants(MODELS["gpt3-175b"]) == "assumed of gpt3-175b: norm epsilon 1e-06"
    assert assumed_constants(replace(MODELS["gpt3-175b"], id="mine")) == ""


def test_files_of_another_family_are_refused(tmp_path: Path) -> None:
    assembly = built_like(reference("llama"), tmp_path / "llama")
    reference("starcoder2").save_pretrained(tmp_path / "other")
    with pytest.raises(InputError, match="does not contain tensor"):
        load_weights(assembly, tmp_path / "other")
