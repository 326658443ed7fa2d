"""Turn options of MindSpeed-LLM whose file of layers builds others than Megatron's words spell into that model.

LongCat: every layer holds two attentions, two dense MLPs and experts beside the first MLP, which is written as two
layers. Experts that do nothing (zero experts) are further choices of the router.
DeepSeek-V4: compressed attention by `--compress-ratios` (0 the window alone, 4 pooled and picked by an indexer, 128
pooled), hyper-connections around both parts of a layer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ridgeline.core.errors import InputError, Problem
from ridgeline.models.load import model as load_model
from ridgeline.targets.catalog_match import known_as

LONGCAT = ("moe-with-double-attention", "enable-mla-scale-q-lora", "enable-mla-scale-kv-lora", "num-zero-experts")
DEEPSEEK4 = {
    "hidden_size": "hidden-size",
    "num_hidden_layers": "num-layers",
    "num_attention_heads": "num-attention-heads",
    "head_dim": "qk-head-dim",
    "q_lora_rank": "q-lora-rank",
    "sliding_window": "sliding-window-size",
    "o_groups": "o-groups",
    "o_lora_rank": "o-lora-rank",
    "index_n_heads": "index-n-heads",
    "index_head_dim": "index-head-dim",
    "index_topk": "index-topk",
    "n_routed_experts": "num-experts",
    "num_experts_per_tok": "moe-router-topk",
    "moe_intermediate_size": "moe-ffn-hidden-size",
    "hc_mult": "hc-mult",
}
NOTED = (
    *("n-hash-layers", "enable-mhc", "hc-mult", "kv-compress", "o-groups", "o-lora-rank", "sliding-window-size"),
    *("compress-ratios", "enable-dsa-indexer", "index-n-heads", "index-head-dim", "index-topk", "spec", "mtp-spec"),
)
RATIOS = (0, 4, 128)


def of_longcat(said: dict[str, Any]) -> str | Mapping[str, Any]:
    """The model of a LongCat run; what was read is taken out of the options."""
    zero, picks = _number(said, "num-zero-experts", 0), _number(said, "moe-router-topk")
    experts, width = _number(said, "num-experts"), _number(said, "ffn-hidden-size")
    attention = {"kind": "mla", "heads": _number(said, "num-attention-heads")}
    attention |= {"q_rank": _number(said, "q-lora-rank", 0), "kv_rank": _number(said, "kv-lora-rank", 512)}
    attention |= {"nope_dim": _own(said, "qk-nope-head-dim", "qk-head-dim", 128)}
    attention |= {"rope_dim": _own(said, "qk-rope-head-dim", "qk-pos-emb-head-dim", 64)}
    attention |= {"v_dim": _number(said, "v-head-dim", 128)}
    moe: dict[str, Any] = {"experts": experts, "topk": max(1, round(picks * experts / (experts + zero)))}
    moe |= {"hidden": _number(said, "moe-ffn-hidden-size"), "shared_hidden": width}
    table: dict[str, Any] = {
        "hidden": _number(said, "hidden-size"),
        "layers": 2 * _number(said, "num-layers"),
        "vocab": _own(said, "padded-vocab-size", "vocab-size", 131072),
        "context": _own(said, "max-position-embeddings", "seq-length", 131072),
        "pattern": ["shortcut", "dense"],
        "attention": attention,
        "mlp": {"hidden": width},
        "moe": moe | ({"idle": zero} if zero else {}),
        "block": {"shortcut": {}, "dense": {"moe": False}},
    }
    for name in (*LONGCAT, "spec"):
        said.pop(name, None)
    return known_as(table, prefer="longcat-flash")


def of_deepseek4(said: dict[str, Any]) -> str | Mapping[str, Any]:
    """The model of a DeepSeek-V4 run; what was read is taken out of the options."""
    layers, given = _number(said, "num-layers"), said.get("compress-ratios")
    listed = given if isinstance(given, list) else [given]
    ratios = [_number({"ratio": one}, "ratio") for one in listed if one not in RATIOS] or listed
    if len(listed) < layers or not set(ratios) <= set(RATIOS):
        expected = f"{layers} numbers, each 0, 4 or 128"
        raise InputError(Problem(path="--compress-ratios", given=str(given)[:60], expected=expected))
    config: dict[str, Any] = {key: _number(said, name) for key, name in DEEPSEEK4.items()}
    config |= {"model_type": "deepseek_v4", "num_key_value_heads": 1, "n_shared_experts": 1}
    config |= {"compress_ratios": listed, "num_nextn_predict_layers": _number(said, "mtp-num-layers", 0)}
    config |= {"vocab_size": _own(said, "padded-vocab-size", "vocab-size", 129280)}
    config |= {"max_position_embeddings": _own(said, "max-position-embeddings", "seq-length", 163840)}
    config |= {"tie_word_embeddings": not said.get("untie-embeddings-and-output-weights", False)}
    load_model(config)  # what is wrong is said in the words of the configuration
    for name in NOTED:
        said.pop(name, None)
    return known_as(config, prefer="deepseek-v4-flash")


def _own(said: Mapping[str, Any], name: str, other: str, default: int) -> int:
    """A number under MindSpeed's own name or under Megatron's."""
    return _number(said, name if name in said else other, default)


def _number(said: Mapping[str, Any], name: str, default: int | None = None) -> int:
    value = said.get(name, default)
    if type(value) is not int or not 0 <= value <= 10_000_000:
        given = "nothing" if value is None else repr(value)[:60]
        raise InputError(Problem(path=f"--{name}", given=given, expected="a whole number of the model"))
    return value
