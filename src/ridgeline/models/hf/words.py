"""Turn the catalog's words among a config's keys (`layers = 8`, from --set) into the keys that its reader knows.

layers  ->  num_hidden_layers, n_layer, ...        whichever the file has; lists with a word for each layer are cut
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from ridgeline.core.errors import InputError, Problem
from ridgeline.models.hf.parts import defaults

WORDS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "layers": ("num_hidden_layers", "n_layer", "n_layers", "num_layers"),
        "hidden": ("hidden_size", "n_embd", "d_model", "n_embed"),
        "vocab": ("vocab_size",),
        "context": ("max_position_embeddings", "n_positions", "max_seq_len"),
        "heads": ("num_attention_heads", "n_head", "n_heads", "num_heads"),
        "kv_heads": ("num_key_value_heads", "num_kv_heads", "n_head_kv"),
        "head_dim": ("head_dim",),
        "experts": ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"),
        "topk": ("num_experts_per_tok", "experts_per_token", "moe_k", "moe_topk"),
        "tied": ("tie_word_embeddings",),
    }
)


def in_its_keys(data: Mapping[str, Any]) -> dict[str, Any]:
    """The config with each of the catalog's words under the name that this file, or its type, uses.

    >>> in_its_keys({"model_type": "gpt2", "n_layer": 12, "layers": 2})
    {'model_type': 'gpt2', 'n_layer': 2}
    >>> in_its_keys({"model_type": "gpt_oss", "num_hidden_layers": 3, "layer_types": ["a", "b", "a"], "layers": 2})
    {'model_type': 'gpt_oss', 'num_hidden_layers': 2, 'layer_types': ['a', 'b']}
    """
    said = {word: data[word] for word in WORDS if word in data and word not in WORDS[word]}
    rest = {key: value for key, value in data.items() if key not in said}
    if not said:
        return rest
    nested = rest.get("text_config")
    table = dict(nested) if isinstance(nested, Mapping) else rest
    usual = defaults(str(table.get("model_type", rest.get("model_type", ""))))
    for word, value in said.items():
        names = WORDS[word]
        name = next(
            (name for name in names if name in table), next((name for name in names if name in usual), names[0])
        )
        if word == "layers":
            _cut(table, table.get(name, usual.get(name)), value)
        table[name] = value
    return {**rest, "text_config": table} if isinstance(nested, Mapping) else table


def _cut(table: dict[str, Any], before: object, after: object) -> None:
    """Lists with a word for each layer, cut to the layers that are left."""
    if not isinstance(before, int) or not isinstance(after, int) or before == after:
        return
    for key, value in table.items():
        if not isinstance(value, list) or len(value) != before:
            continue
        if after > before:
            expected = f"at most {before}, the layers that {key} lists"
            raise InputError(Problem(path="layers", given=str(after)[:20], expected=expected, todo=f"set {key} too"))
        table[key] = value[:after]
