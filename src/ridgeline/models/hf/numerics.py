"""Turn a config.json into its Numerics: what costs no step anything and has to be right for the model to train.

Values are taken as they are written, where they are what they should be; anything else counts as not known, for a
config that describes a shape well may hold anything beside it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import get_args, get_type_hints

from ridgeline.core.documents import JsonMapping
from ridgeline.core.table import BIGGEST
from ridgeline.models.hf.config import read_toml
from ridgeline.models.spec import Numerics, RotaryScaling, Router

EPSILON = ("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "layernorm_epsilon", "norm_epsilon", "norm_eps")
KINDS: tuple[str, ...] = get_args(get_type_hints(RotaryScaling)["kind"])
BALANCED = ("router_aux_loss_coef", "aux_loss_alpha", "moe_aux_loss_coeff")


def numerics_from(data: JsonMapping) -> Numerics:
    """What a config says of them; of a multimodal model, what its text part says.

    >>> found = numerics_from({"rope_theta": 500000.0, "rms_norm_eps": 1e-05, "rope_scaling": {"rope_type": "llama3",
    ...     "factor": 8.0, "original_max_position_embeddings": 8192}})
    >>> found.rotary_base, found.norm_eps, found.rotary_scaling.kind
    (500000.0, 1e-05, 'llama3')
    """
    inner = data.get("text_config")
    text = {**data, **inner} if isinstance(inner, Mapping) else data
    rotary = _table(text.get("rope_parameters")) or _table(text.get("rope_scaling"))
    per_kind = _table(rotary.get("full_attention"))
    return Numerics(
        rotary_base=_number(text.get("rope_theta")) or _number((per_kind or rotary).get("rope_theta")),
        local_rotary_base=_number(text.get("rope_local_base_freq"))
        or _number(_table(rotary.get("sliding_attention")).get("rope_theta")),
        rotary_scaling=_scaling(per_kind or rotary, text),
        rotary_share=_share(_number(text.get("partial_rotary_factor")) or _number(rotary.get("partial_rotary_factor"))),
        norm_eps=next((value for key in EPSILON if (value := _number(text.get(key))) is not None), None),
        score_softcap=_number(text.get("attn_logit_softcapping")),
        logit_softcap=_number(text.get("final_logit_softcapping")),
        score_scale=_number(text.get("query_pre_attn_scalar")),
        router=_router(text),
    )


def _table(value: object) -> JsonMapping:
    return value if isinstance(value, Mapping) else {}


def _number(value: object) -> float | None:
    """A positive number of ordinary size."""
    if isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value <= BIGGEST:
        return float(value)
    return None


def _share(value: float | None) -> float | None:
    return value if value is not None and value < 1 else None


def _scaling(table: JsonMapping, text: JsonMapping) -> RotaryScaling | None:
    kind, factor = table.get("rope_type", table.get("type", "")), _number(table.get("factor"))
    first = _number(table.get("original_max_position_embeddings"))
    first = (
        first or _number(text.get("original_max_position_embeddings")) or _number(text.get("max_position_embeddings"))
    )
    if kind not in KINDS or factor is None or first is None:
        return None
    high = {"llama3": ("high_freq_factor", "low_freq_factor"), "yarn": ("beta_fast", "beta_slow")}.get(kind, ("", ""))
    return RotaryScaling(
        kind=kind,
        factor=factor,
        first_context=int(first),
        fast=_number(table.get(high[0])),
        slow=_number(table.get(high[1])),
        mscale=_number(table.get("mscale")),
        mscale_all=_number(table.get("mscale_all_dim")),
    )


def _router(text: JsonMapping) -> Router | None:
    """How experts are picked: as the config says, else as models of its type do; None of a type that is not known."""
    kind = str(text.get("model_type", "")).removesuffix("_text")
    score_name = text.get("scoring_func")
    routers = read_toml("keys.toml")["routers"]
    if kind not in routers and score_name not in ("softmax", "sigmoid"):
        return None
    score, bias, normalized = routers.get(kind, (score_name, text.get("topk_method") == "noaux_tc", True))
    norm_topk = text.get("norm_topk_prob")
    weight = next((value for key in BALANCED if (value := _number(text.get(key))) is not None), None)
    return Router(
        score=score_name if score_name in ("softmax", "sigmoid") else score,
        bias=bias,
        scale=_number(text.get("routed_scaling_factor")) or 1.0,
        normalized=norm_topk if isinstance(norm_topk, bool) else normalized,
        aux_loss=None if bias else weight,
    )
