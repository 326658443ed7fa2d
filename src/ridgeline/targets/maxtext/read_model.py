"""Turn MaxText's words about a model (a name, dimensions, a scale of parameters) into a table or a catalog entry."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ridgeline.models.load import MODELS
from ridgeline.targets.catalog_match import known_as
from ridgeline.targets.maxtext.names import ALSO_NAMED, MODELS_NAMED
from ridgeline.targets.option_reader import OptionReader
from ridgeline.targets.target import Unread

PLAIN_BLOCKS = ("llama2", "mistral", "mixtral", "default", "qwen2", "qwen3", "qwen3_moe", "gpt3")
# options of a model file beside its dimensions
DESCRIBES = frozenset(
    {
        "head_dim", "mlp_activations", "vocab_size", "enable_dropout", "logits_via_embedding",
        "normalization_layer_epsilon",
        "decoder_block", "rope_max_timescale", "num_experts", "num_experts_per_tok", "attention_type", "q_lora_rank",
        "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "shared_experts",
        "first_num_dense_layers",
        "use_qk_norm", "attention_bias", "sliding_window_size", "mtp_num_layers",
    }
)  # fmt: skip
PAIRED = ("longcat-flash", "gemma2-")  # models of which MaxText counts two layers as one


def read_model(reader: OptionReader, named: str | None) -> Any:
    """The model that the options name or spell; that of MaxText's defaults where nobody names one."""
    name = str(reader.take("model_name", default="default"))
    if name == "default" and "base_emb_dim" in reader:
        name = _file_named(reader)
    if name != "default":
        id = next((id for id, word in MODELS_NAMED.items() if word == name), ALSO_NAMED.get(name))
        if id is None:
            reader.notes.append(Unread(option="model_name", value=name[:60], why="no catalog entry is it"))
        return _ahead(reader, _changed(reader, id))
    scale = reader.degree("global_parameter_scale")
    if scale != 1:
        if f"maxtext-{scale}b" in MODELS and "base_emb_dim" not in reader:
            return f"maxtext-{scale}b"
        reader.bad("global_parameter_scale", scale, "a scale whose model the catalog has, or dimensions", None)
    if "base_emb_dim" not in reader:
        if named is not None or {"student_overrides", "teacher_overrides"} & set(reader.table.data):
            return None
        reader.assumptions.append("model: the 1.1 billion parameters of MaxText's own defaults, as no model is named")
    block = reader.word("decoder_block", among={name: name for name in PLAIN_BLOCKS}, default="default")
    normed = reader.switch("use_qk_norm", default=str(block).startswith("qwen3"))
    biased = reader.switch("attention_bias", default=block == "qwen2")
    heads = reader.count("base_num_query_heads", default=16)
    inner = reader.count("base_mlp_dim", default=7168)
    experts = reader.degree("num_experts")
    mlp: dict[str, Any] = {"mlp": {"hidden": inner}}
    moe_dim = None if reader.options.get("base_moe_mlp_dim") == -1 else reader.count("base_moe_mlp_dim")
    if experts > 1:
        topk = reader.degree("num_experts_per_tok")
        mlp = {"moe": {"experts": experts, "topk": topk, "hidden": moe_dim or inner}}
    table: dict[str, Any] = {
        "hidden": reader.count("base_emb_dim", default=2048),
        "layers": reader.count("base_num_decoder_layers", default=16),
        "vocab": reader.count("vocab_size", default=32000),
        "tied": reader.switch("logits_via_embedding", default=False),
        "attention": {
            "heads": heads,
            "kv_heads": reader.count("base_num_kv_heads", default=16),
            "head_dim": reader.count("head_dim", default=128),
            **({"qk_norm": "head"} if normed else {}),
            **({"qkv_bias": True} if biased else {}),
        },
        **mlp,
    }
    if block == "gpt3":
        table |= {"norm": "layer", "positions": reader.count("trainable_position_size", default=2048)}
        table["attention"] |= {"positions": "learned", "qkv_bias": True, "out_bias": True}
        table["mlp"] |= {"gated": False, "activation": "gelu", "bias": True}
    return known_as(table, ("context",))


def _changed(reader: OptionReader, id: str | None) -> Any:
    """A model of the catalog with the number of layers that the options give it; other dims that differ are told."""
    if id is None:
        return None
    spec = MODELS[id]
    asked = reader.count("base_num_decoder_layers")
    if reader.options.get("base_emb_dim") not in (None, spec.hidden):
        why = f"not the width of {id}, whose dims are taken"
        value = str(reader.options["base_emb_dim"])[:20]
        reader.notes.append(Unread(option="base_emb_dim", value=value, why=why, matters=True))
    heads = {"base_num_query_heads": "heads", "base_num_kv_heads": "kv_heads"}
    for option, name in heads.items() if "base_emb_dim" in reader else ():
        held = {getattr(block.mixer, name, None) for block in spec.blocks} - {None}
        asked_for = reader.options.get(option)
        if type(asked_for) is int and held and asked_for not in held:
            reader.bad(option, asked_for, f"the {name} of {id}, which model_name says it is", None)
    each = 2 if id.startswith(PAIRED) else 1
    return {"base": id, "layers": asked * each} if asked is not None and asked * each != spec.layers else id


def _ahead(reader: OptionReader, model: Any) -> Any:
    """The model with as many layers of multi-token prediction as asked for: none, where nobody asks."""
    depth = reader.size("mtp_num_layers") or 0
    base = MODELS[model["base"] if isinstance(model, dict) else model] if model is not None else None
    if base is None or depth == (base.mtp.depth if base.mtp else 0):
        return model
    return {**(model if isinstance(model, dict) else {"base": model}), "mtp": depth}


def _file_named(reader: OptionReader) -> str:
    """The model that a file of MaxText's own model folder is named after."""
    stem = Path(reader.table.source).stem
    known = stem in ALSO_NAMED or stem in MODELS_NAMED.values()
    if known:
        for option in list(reader.options):
            if option.startswith("base_") or option in DESCRIBES:
                reader.take(option)
    return stem if known else "default"
