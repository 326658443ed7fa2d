"""The constants of an architecture that multiply and do not reshape, from a Hugging Face config or as usual.

A `ModelSpec` says how large everything is. What a norm adds under its root, how fast rotary angles turn and how a
router scores its experts is here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from ridgeline.core.errors import InputError, Problem
from ridgeline.models.spec import Block, ModelSpec, Moe


@dataclass(frozen=True, slots=True, kw_only=True)
class Numerics:
    """What a forward pass multiplies by.

    epsilon           added to the mean square (or variance) of a norm
    rope_theta        base of the rotary angles
    rope_interleaved  rotary pairs are neighbours (DeepSeek) rather than halves of a head (Llama)
    scoring           of experts: softmax over all, or a sigmoid each
    topk_normalised   weights of the chosen experts sum to one
    routed_scale      factor on the routed experts' sum
    mtp_weight        of the losses of multi-token prediction, averaged over depths (DeepSeek-V3: 0.3, later 0.1)
    """

    epsilon: float = 1e-6
    rope_theta: float = 10_000.0
    rope_interleaved: bool = False
    scoring: Literal["softmax", "sigmoid"] = "softmax"
    topk_normalised: bool = True
    routed_scale: float = 1.0
    mtp_weight: float = 0.3


def all_blocks(model: ModelSpec) -> tuple[Block, ...]:
    """Distinct blocks of the layers, and the one of multi-token prediction."""
    return (*model.blocks, *((model.mtp.block,) if model.mtp else ()))


def usual_numerics(model: ModelSpec) -> Numerics:
    """What is assumed of a model without a config: a sigmoid router where experts are chosen inside groups."""
    has_groups = any(isinstance(block.ffn, Moe) and block.ffn.groups > 1 for block in all_blocks(model))
    return Numerics(scoring="sigmoid" if has_groups else "softmax")


def config_numerics(config: Mapping[str, Any]) -> Numerics:
    """The constants of a Hugging Face config; an `InputError` where it asks for what is not implemented.

    >>> config_numerics({"model_type": "llama", "rms_norm_eps": 1e-5, "rope_theta": 500000.0}).rope_theta
    500000.0
    """
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind != "default":
        todo = "remove the scaling, or train at the original context"
        raise InputError(Problem(path="rope_parameters.rope_type", given=repr(kind), expected="default", todo=todo))
    deepseek = str(config.get("model_type", "")).startswith("deepseek")
    return Numerics(
        epsilon=float(config.get("rms_norm_eps", config.get("layer_norm_epsilon", 1e-6))),
        rope_theta=float(rope.get("rope_theta", config.get("rope_theta", 10_000.0))),
        rope_interleaved=deepseek and bool(config.get("rope_interleave", True)),
        scoring="sigmoid" if deepseek else "softmax",
        topk_normalised=bool(config.get("norm_topk_prob", config.get("model_type") == "mixtral")),
        routed_scale=float(config.get("routed_scaling_factor") or 1.0) if deepseek else 1.0,
    )
