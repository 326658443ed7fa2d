"""Turn the `model` of NeMo 1's YAML, which NxD Training took over, into options in Megatron's words.

NeMo has Megatron's options under names of its own: what its files leave out has NeMo's default, not Megatron's.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

# keys whose value is Megatron's option of that name
SAME = (
    "num_layers", "hidden_size", "ffn_hidden_size", "num_attention_heads", "kv_channels", "max_position_embeddings",
    "moe_router_topk", "override_vocab_size", "qk_layernorm", "moe_ffn_hidden_size",
)  # fmt: skip
NORMS = {"layernorm": "LayerNorm", "layernorm1p": "LayerNorm", "low_precision_layernorm": "LayerNorm"}
NORMS |= {"rmsnorm": "RMSNorm"}
ACTIVATIONS: Mapping[str, dict[str, Any]] = {
    "gelu": {},
    "approx-gelu": {},
    "openai-gelu": {},
    "swiglu": {"swiglu": True},
    "fast-swiglu": {"swiglu": True},
    "silu": {"swiglu": True},
    "geglu": {"geglu": True},
    "fast-geglu": {"geglu": True},
    "reglu": {"glu-activation": "reglu"},
    "squared-relu": {"squared-relu": True},
    "squared_relu": {"squared-relu": True},
}
POSITIONS = {"rope": "rope", "learned_absolute": "learned_absolute", "none": "none", "alibi": "none"}
TOKENIZERS = {"sentencepiece": "SentencePieceTokenizer", "gpt2bpetokenizer": "GPT2BPETokenizer"}


def model_words(model: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Options of Megatron's command line that the dimensions of a NeMo model mean.

    >>> dict(model_words({"num_layers": 2, "activation": "swiglu", "bias": False, "num_query_groups": 2}))["swiglu"]
    True
    """
    for key in SAME:
        if model.get(key) is not None:
            yield key.replace("_", "-").replace("override-vocab-size", "padded-vocab-size"), model[key]
    groups = model.get("num_query_groups", model.get("num_kv_heads"))
    if groups is not None and groups != model.get("num_attention_heads"):
        yield "group-query-attention", True
        yield "num-query-groups", groups
    yield "normalization", NORMS.get(str(model.get("normalization", "layernorm")).lower(), model.get("normalization"))
    yield from ACTIVATIONS.get(str(model.get("activation", "gelu")).lower(), {}).items()
    if model.get("bias", model.get("has_bias", True)) is False:
        yield "disable-bias-linear", True
    if model.get("share_embeddings_and_output_weights", True) is False:
        yield "untie-embeddings-and-output-weights", True
    kind = str(model.get("position_embedding_type", "learned_absolute"))
    yield "position-embedding-type", POSITIONS.get(kind, kind)
    yield from _experts(model)
    window = model.get("window_size") or model.get("sliding_window_size")
    if isinstance(window, (list, int)) and not isinstance(window, bool):
        yield "window-size", window if isinstance(window, list) else f"{window},0"


def _experts(model: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    inner = model.get("moe")
    count = model.get("num_moe_experts") or (inner.get("num_experts") if isinstance(inner, Mapping) else None)
    if not count:
        return
    yield "num-experts", count
    if isinstance(inner, Mapping):
        yield "moe-router-topk", inner.get("top_k", 1)
        if inner.get("frequency", 1) not in (1, None):
            yield "moe-layer-freq", inner["frequency"]


def tokenizer_words(tokenizer: object) -> Iterator[tuple[str, Any]]:
    """What a table of the tokenizer says of the vocabulary."""
    table = tokenizer if isinstance(tokenizer, Mapping) else {}
    library, kind = str(table.get("library", "")).lower(), str(table.get("type", ""))
    sized = re.search(r"(\d{2,3})k\b", str(table.get("model") or "")[:200].rpartition("/")[2].lower())
    if sized is not None:  # a tokenizer that is named after how many words it has
        yield "vocab-size", int(sized.group(1)) * 1000
    if library == "megatron" or kind.lower() in TOKENIZERS:
        yield "tokenizer-type", TOKENIZERS.get(kind.lower(), kind)
    elif library == "huggingface" or "/" in kind:
        yield "tokenizer-model", kind
    elif library in TOKENIZERS:
        yield "tokenizer-type", TOKENIZERS[library]


def filled(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options with references to others filled in, relative ones (`${.seq}`) and products (`${multiply:2,4}`) too.

    >>> filled({"m.a": 8, "m.b": "${.a}", "m.c": "${multiply:4, ${m.a}}", "d": "${divide_floor:${m.c},2}"})
    {'m.a': 8, 'm.b': 8, 'm.c': 32, 'd': 16}
    """
    found = dict(options)
    for _ in range(6):  # references to references
        for name, value in found.items():
            if isinstance(value, str) and "${" in value:
                found[name] = _reduced(value, name, found)
    return found


_INNER = re.compile(r"\$\{(\.{0,4})([\w.]{1,120})\}")
_PRODUCT = re.compile(r"\$\{(multiply|divide_ceil|divide_floor):\s*(-?\d{1,15})\s*,\s*(-?\d{1,15})\s*\}")


def _reduced(text: str, name: str, known: Mapping[str, Any]) -> Any:
    """A value with its innermost references replaced by what they refer to."""

    def meant(found: re.Match[str]) -> str:
        dots, key = found.groups()
        above = name.split(".")[: -len(dots)] if dots else []
        value = known.get(".".join((*above, key)))
        plain = isinstance(value, (int, float, str)) and not isinstance(value, bool)
        return str(value) if plain and len(str(value)) <= 200 else found.group(0)

    done = _INNER.sub(meant, text)
    product = _PRODUCT.fullmatch(done)
    if product is not None:
        kind, one, other = product.group(1), int(product.group(2)), int(product.group(3))
        if kind == "multiply":
            return one * other
        return done if other == 0 else one // other if kind == "divide_floor" else -(-one // other)
    return int(done) if re.fullmatch(r"-?\d{1,15}", done) else done
