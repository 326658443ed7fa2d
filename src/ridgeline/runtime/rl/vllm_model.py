"""The model of a run as vLLM reads it: its config.json, and what of a model vLLM is not asked to run.

model                                               model_type
rotary attention, RMS norms, gated SiLU             llama
and biases of queries, keys and values              qwen2
and norms of each head's queries and keys           qwen3
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields

from ridgeline.core.documents import JsonObject
from ridgeline.core.errors import Problem
from ridgeline.models.numerics import Numerics
from ridgeline.models.rotary import USUAL_BASE
from ridgeline.models.spec import Attention, Block, Embedding, Mlp, ModelSpec, Norm
from ridgeline.runtime.train.request import ForwardConstants

CLASSES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}
"""model_type -> the class that vLLM builds."""
CPU_HEADS = (32, 64, 80, 96, 112, 128, 160, 192, 224, 256, 512)
"""Sizes of a head that vLLM 0.32 computes on a CPU (vllm/v1/attention/backends/cpu_attn.py)."""
WRITTEN = ("models", "family", "rotary_base", "norm_eps")
"""What of Numerics the config.json says, or changes nothing."""


def vllm_type(model: ModelSpec) -> str | None:
    """The model_type that a model is an instance of; None where it is of none."""
    block = model.blocks[0]
    mixer, ffn = block.mixer, block.ffn
    if len(model.blocks) > 1 or not isinstance(mixer, Attention) or not isinstance(ffn, Mlp):
        return None
    attention = Attention(
        heads=mixer.heads, kv_heads=mixer.kv_heads, head_dim=mixer.head_dim, qkv_bias=mixer.qkv_bias,
        qk_norm=mixer.qk_norm,
    )  # fmt: skip
    is_plain = block == Block(mixer=attention, ffn=Mlp(hidden=ffn.hidden)) and model.norm == Norm()
    if not is_plain or model.embedding != Embedding(tied=model.embedding.tied):
        return None
    if mixer.qkv_bias:
        return "qwen2" if mixer.qk_norm == "none" and mixer.heads * mixer.head_dim == model.hidden else None
    return {"none": "llama", "head": "qwen3"}.get(mixer.qk_norm)


def vllm_config(model: ModelSpec, constants: ForwardConstants, context: int) -> JsonObject:
    """The config.json of a model that `vllm_refusals` has nothing against, for sequences of so many tokens."""
    model_type, mixer, ffn = vllm_type(model), model.blocks[0].mixer, model.blocks[0].ffn
    assert model_type is not None
    assert isinstance(mixer, Attention)
    assert isinstance(ffn, Mlp)
    return {
        "architectures": [CLASSES[model_type]], "model_type": model_type, "hidden_size": model.hidden,
        "num_hidden_layers": model.layers, "num_attention_heads": mixer.heads, "num_key_value_heads": mixer.kv_heads,
        "head_dim": mixer.head_dim, "intermediate_size": ffn.hidden, "vocab_size": model.vocab, "hidden_act": "silu",
        "tie_word_embeddings": model.embedding.tied, "rms_norm_eps": constants.epsilon,
        "rope_theta": constants.numerics.rotary_base or USUAL_BASE, "max_position_embeddings": context,
        "bos_token_id": None, "eos_token_id": None,
    }  # fmt: skip


def vllm_refusals(model: ModelSpec, numerics: Numerics, device: str) -> Iterator[Problem]:
    """What of a model cannot be handed to vLLM, or was not compared with it."""
    mixer, todo = model.blocks[0].mixer, "leave --rollout out: the run's own sampler has it"
    if vllm_type(model) is None:
        expected = "rotary attention, RMS norms and a gated SiLU in every layer, as Llama, Qwen2 or Qwen3 have"
        yield Problem(path="model", given="other layers, with --rollout vllm", expected=expected, todo=todo)
    elif isinstance(mixer, Attention) and device == "cpu" and mixer.head_dim not in CPU_HEADS:
        expected = f"one of {', '.join(map(str, CPU_HEADS))}, which vLLM computes on a CPU"
        yield Problem(path="model.attention.head_dim", given=str(mixer.head_dim), expected=expected)
    if numerics.family and numerics.family not in CLASSES:
        yield Problem(path="model.model_type", given=numerics.family, expected=", ".join(CLASSES), todo=todo)
    for item in fields(numerics):
        value = getattr(numerics, item.name)
        if item.name not in WRITTEN and value not in (None, False, ()) and (item.name, value) != ("rotary_share", 1):
            yield Problem(path=f"model.{item.name}", given=str(value)[:60], expected="none, with vLLM", todo=todo)
