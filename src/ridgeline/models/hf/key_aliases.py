"""Turn the catalog's words among a config's keys (`layers = 8`, from --set) into the keys that its reader knows.

layers  ->  num_hidden_layers, n_layer, ...        whichever the file has; lists with a word for each layer are cut
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from ridgeline.core.documents import JsonMapping, JsonObject
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


STACKS = ("decoder_layers", "encoder_layers")  # models of two stacks size each; `layers` means both
THINKING = ("qwen2_5_omni", "qwen3_omni_moe")


def in_its_keys(data: JsonMapping, known: JsonMapping = MappingProxyType({})) -> JsonObject:
    """The config with each of the catalog's words under the name that this file, or its type, uses; `known`: keys that
    its reader knows, where no type says.

    >>> in_its_keys({"model_type": "gpt2", "n_layer": 12, "layers": 2})
    {'model_type': 'gpt2', 'n_layer': 2}
    >>> in_its_keys({"model_type": "qwen2_5_omni", "layers": 2})
    {'model_type': 'qwen2_5_omni', 'thinker_config': {'text_config': {'num_hidden_layers': 2}}}
    >>> in_its_keys({"model_type": "gpt_oss", "num_hidden_layers": 3, "layer_types": ["a", "b", "a"], "layers": 2})
    {'model_type': 'gpt_oss', 'num_hidden_layers': 2, 'layer_types': ['a', 'b']}
    """
    catalog_words = {word: data[word] for word in WORDS if word in data and word not in WORDS[word]}
    config_keys = {key: value for key, value in data.items() if key not in catalog_words}
    if not catalog_words:
        return config_keys
    home = _home(config_keys)
    table = dict(_inside(config_keys, home))
    kind = str(config_keys.get("model_type", ""))
    usual = defaults(str(table.get("model_type", kind)) if home else kind) or defaults(f"{_family(kind)}_text") or known
    for word, value in catalog_words.items():
        names = WORDS[word]
        name = next(
            (name for name in names if name in table), next((name for name in names if name in usual), names[0])
        )
        if word == "layers":
            _cut(table, table.get(name, usual.get(name)), value)
            stacks = [stack for stack in STACKS if stack in table or stack in usual]
            table |= dict.fromkeys(stacks, value)
            name = stacks[0] if stacks else name
        table[name] = value
    return _with(config_keys, home, table)


def _family(kind: str) -> str:
    return kind.removesuffix("_thinker")


def _home(data: JsonMapping) -> tuple[str, ...]:
    """Where a config keeps the keys of its language model: an omni model's thinker has a text of its own."""
    kind = str(data.get("model_type", ""))
    if isinstance(data.get("text_config"), Mapping):
        return ("text_config",)
    if kind in THINKING:
        return ("thinker_config", "text_config")
    flat = any(name in data for name in WORDS["hidden"]) or defaults(kind)
    return ("text_config",) if not flat and defaults(f"{_family(kind)}_text") else ()


def _inside(data: JsonMapping, path: tuple[str, ...]) -> JsonMapping:
    for key in path:
        below = data.get(key)
        data = below if isinstance(below, Mapping) else {}
    return data


def _with(data: JsonMapping, path: tuple[str, ...], table: JsonObject) -> JsonObject:
    if not path:
        return table
    below = data.get(path[0])
    inner = below if isinstance(below, Mapping) else {}
    return {**data, path[0]: _with(inner, path[1:], table)}


def _cut(table: JsonObject, before: object, after: object) -> None:
    """Lists with a word for each layer, cut to the layers that are left."""
    if not isinstance(before, int) or not isinstance(after, int) or before == after:
        return
    for key, value in table.items():
        if not isinstance(value, list) or len(value) != before:
            continue
        if after > before:
            expectation = f"at most {before}, the layers that {key} lists"
            raise InputError(Problem(path="layers", given=str(after)[:20], expected=expectation, todo=f"set {key} too"))
        table[key] = value[:after]
