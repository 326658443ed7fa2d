"""What of a model changes no step's cost and has to be right for it to train, as frozen values."""

from __future__ import annotations

from typing import Literal

from ridgeline.core.records import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class RotaryScaling:
    """How rotary positions are scaled beyond the context they were first trained on (rope_scaling).

    fast, slow   of YaRN: rotations beyond which a frequency stays as it is, and below which it is scaled whole (beta);
                 of Llama 3: the factors of the high and low frequencies
    mscale, mscale_all   of YaRN in latent attention: how scores are scaled with it
    """

    kind: Literal["llama3", "yarn", "linear", "dynamic", "longrope", "proportional"]
    factor: float
    first_context: int
    fast: float | None = None
    slow: float | None = None
    mscale: float | None = None
    mscale_all: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Router:
    """How experts are scored and picked.

    bias        a learned bias picks experts, in place of an auxiliary loss
    scale       what the weights of the picked experts are multiplied with
    normalized  these weights are made to add up to one (norm_topk_prob)
    aux_loss    weight of the loss that balances experts (router_aux_loss_coef)
    """

    score: Literal["softmax", "sigmoid"]
    bias: bool = False
    scale: float = 1.0
    normalized: bool | None = None
    aux_loss: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Numerics:
    """Rotary base (rope_theta) and scaling, norm epsilon, router; None where it is not known or there is none.

    local_rotary_base   of layers with a window, where it is another
    rotary_share        part of a head that is rotated (partial_rotary_factor)
    score_softcap, logit_softcap   where a tanh caps scores of attention, and logits
    score_scale         what scores are divided by the root of, where it is not the size of a head
    """

    models: tuple[str, ...] = ()
    rotary_base: float | None = None
    local_rotary_base: float | None = None
    rotary_scaling: RotaryScaling | None = None
    rotary_share: float | None = None
    norm_eps: float | None = None
    score_softcap: float | None = None
    logit_softcap: float | None = None
    score_scale: float | None = None
    router: Router | None = None
