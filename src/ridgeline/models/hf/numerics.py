"""Turn a config.json into its Numerics: what costs no step anything and has to be right for the model to train.

Values are taken as they are written, where they are what they should be; anything else counts as not known, for a
config that describes a shape well may hold anything beside it. `unread` names keys that multiply something and that the
code of the model's type is not known to read: whoever computes the model refuses them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from typing import get_args, get_type_hints

from ridgeline.core.documents import JsonMapping
from ridgeline.core.table import BIGGEST
from ridgeline.models.hf.config import MOST_LAYERS, read_toml
from ridgeline.models.spec import Numerics, RotaryScaling, Router

EPSILON = ("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "layernorm_epsilon", "norm_epsilon", "norm_eps")
KINDS: tuple[str, ...] = get_args(get_type_hints(RotaryScaling)["kind"])
BALANCED = ("router_aux_loss_coef", "aux_loss_alpha", "moe_aux_loss_coeff")
SHARES = ("partial_rotary_factor", "rotary_pct", "rope_pct")
SILENT = {"rope_theta": 1e4, "norm_eps": 1e-6}  # of a compared type whose table says nothing else
OFF = (None, False, 0, 1)  # values of a key that multiplies nothing


def compared_types() -> Mapping[str, JsonMapping]:
    """The model_types whose forward was compared with transformers', each with what its code multiplies."""
    types: Mapping[str, JsonMapping] = read_toml("numerics.toml")["types"]
    return types


def numerics_from(data: JsonMapping) -> Numerics:
    """What a config says of them; of a multimodal model, what its text part says.

    >>> found = numerics_from({"rope_theta": 500000.0, "rms_norm_eps": 1e-05, "rope_scaling": {"rope_type": "llama3",
    ...     "factor": 8.0, "original_max_position_embeddings": 8192}})
    >>> found.rotary_base, found.norm_eps, found.rotary_scaling.kind
    (500000.0, 1e-05, 'llama3')
    >>> numerics_from({"model_type": "llama", "logits_scaling": 8.0}).unread
    ('logits_scaling',)
    """
    inner = data.get("text_config")
    text = {**data, **inner} if isinstance(inner, Mapping) else data
    family = str(text.get("model_type", "")).removesuffix("_text")
    code = compared_types().get(family, {})
    silent = {**SILENT, **_table(code.get("silent"))} if family in compared_types() else {}
    rotary = _table(text.get("rope_parameters")) or _table(text.get("rope_scaling"))
    per_kind = _table(rotary.get("full_attention"))
    scaling, multiplies = _scaling(per_kind or rotary, text), code.get("multipliers") is True
    share = _first(text, SHARES) or _number(rotary.get("partial_rotary_factor"))
    return Numerics(
        family=family,
        rotary_base=_number(text.get("rope_theta"))
        or _number((per_kind or rotary).get("rope_theta"))
        or _number(silent.get("rope_theta")),
        local_rotary_base=_number(text.get("rope_local_base_freq"))
        or _number(_table(rotary.get("sliding_attention")).get("rope_theta")),
        rotary_scaling=scaling,
        rotary_share=_share(share or _number(silent.get("partial_rotary_factor"))),
        rotary_interleaved=False if text.get("rope_interleave") is False else code.get("interleaved"),
        norm_eps=code.get("norm_eps") or _first(text, EPSILON) or _first(silent, EPSILON),
        norm_offset=code.get("norm_offset"),
        norms_after=code.get("norms_after"),
        score_softcap=_number(text.get("attn_logit_softcapping")),
        logit_softcap=_number(text.get("final_logit_softcapping")),
        score_scale=_number(text.get("query_pre_attn_scalar")),
        score_multiplier=_number(text.get("attention_multiplier")) if multiplies else None,
        embedding_scale=_embedding_scale(text, code),
        residual_scale=_number(text.get("residual_multiplier")) if multiplies else None,
        logit_scale=_inverse(_number(text.get("logits_scaling"))) if multiplies else None,
        router=_router({**silent, **text}, family),
        unread=tuple(_unread(text, rotary, scaling, code)),
    )


def _table(value: object) -> JsonMapping:
    return value if isinstance(value, Mapping) else {}


def _number(value: object) -> float | None:
    """A positive number of ordinary size."""
    if isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value <= BIGGEST:
        return float(value)
    return None


def _first(table: JsonMapping, keys: tuple[str, ...]) -> float | None:
    return next((value for key in keys if (value := _number(table.get(key))) is not None), None)


def _inverse(value: float | None) -> float | None:
    return None if value is None else 1 / value


def _share(value: float | None) -> float | None:
    return value if value is not None and value < 1 else None


def _numbers(value: object) -> tuple[float, ...]:
    """A list of positive numbers; empty where it is anything else."""
    if not isinstance(value, list) or len(value) > MOST_LAYERS:
        return ()
    numbers = [_number(item) for item in value]
    return tuple(number for number in numbers if number is not None) if None not in numbers else ()


def _embedding_scale(text: JsonMapping, code: JsonMapping) -> float | None:
    if code.get("multipliers") is True:
        return _number(text.get("embedding_multiplier"))
    hidden = _number(text.get("hidden_size"))
    return hidden**0.5 if code.get("embedding") == "root" and hidden else None


@cache
def _keys(kind: str) -> frozenset[str]:
    return frozenset(str(read_toml("numerics.toml")["keys"][kind]).split())


SOFTCAPS = frozenset({"attn_logit_softcapping", "final_logit_softcapping"})
MULTIPLIERS = frozenset({"embedding_multiplier", "residual_multiplier", "attention_multiplier", "logits_scaling"})


def _unread(
    text: JsonMapping, whole_rotary: JsonMapping, scaling: RotaryScaling | None, code: JsonMapping
) -> Iterator[str]:
    """Keys that multiply something and that nobody reads, those of the rotary table behind its name."""
    rotary = _table(whole_rotary.get("full_attention")) or whole_rotary
    read_keys = MULTIPLIERS if code.get("multipliers") is True else SOFTCAPS if code.get("softcaps") is True else ()
    for key in sorted(_keys("multiplying") - frozenset(read_keys)):
        value = text.get(key)
        if not (value is None or value is False or value in OFF):
            yield key
    for key in sorted(set(rotary) - _keys("rotary")):
        if rotary[key] not in (None, False):
            yield f"rope_parameters.{key}"
    if rotary.get("rope_type", rotary.get("type", "default")) != "default" and scaling is None:
        yield "rope_parameters.rope_type"
    if scaling is not None and (
        scaling.kind == "proportional" or (scaling.kind == "longrope" and not scaling.short_factors)
    ):
        yield f"rope_parameters of {scaling.kind}"


def _scaling(table: JsonMapping, text: JsonMapping) -> RotaryScaling | None:
    kind = table.get("rope_type", table.get("type", ""))
    stated_context = _number(table.get("original_max_position_embeddings"))
    longest = _number(text.get("max_position_embeddings"))
    context = stated_context or _number(text.get("original_max_position_embeddings")) or longest
    factor = _number(table.get("factor")) or (longest / context if longest and context else None)
    if kind not in KINDS or factor is None or context is None:
        return None
    if kind == "dynamic":
        context = longest or context
    high = {"llama3": ("high_freq_factor", "low_freq_factor"), "yarn": ("beta_fast", "beta_slow")}.get(kind, ("", ""))
    return RotaryScaling(
        kind=kind,
        factor=factor,
        first_context=int(context),
        fast=_number(table.get(high[0])),
        slow=_number(table.get(high[1])),
        truncate=table.get("truncate") is not False,
        mscale=_number(table.get("mscale")),
        mscale_all=_number(table.get("mscale_all_dim")),
        attention_factor=_number(table.get("attention_factor")),
        short_factors=_numbers(table.get("short_factor")),
        long_factors=_numbers(table.get("long_factor")),
    )


def _router(text: JsonMapping, family: str) -> Router | None:
    """How experts are picked: as the config says, else as models of its type do; None of a type that is not known."""
    score_name = text.get("scoring_func")
    routers = read_toml("numerics.toml")["routers"]
    if family not in routers and score_name not in ("softmax", "sigmoid"):
        return None
    score, bias, normalized = routers.get(family, (score_name, text.get("topk_method") == "noaux_tc", True))
    norm_topk = text.get("norm_topk_prob")
    return Router(
        score=score_name if score_name in ("softmax", "sigmoid") else score,
        bias=bias,
        scale=_number(text.get("routed_scaling_factor")) or 1.0,
        normalized=norm_topk if isinstance(norm_topk, bool) else normalized,
        aux_loss=None if bias else _first(text, BALANCED),
    )
