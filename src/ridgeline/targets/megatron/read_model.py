"""Turn Megatron's words about a model into a table of dimensions, or the catalog entry that has them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ridgeline.core.errors import InputError, Problem
from ridgeline.targets.catalog_match import known_as
from ridgeline.targets.megatron.layout import flags_of
from ridgeline.targets.megatron.names import POSITIONS
from ridgeline.targets.option_reader import OptionReader


def read_model(reader: OptionReader, hint: str = "") -> str | Mapping[str, Any]:
    """The model; what the options leave open is filled in from a catalog entry that agrees in everything else."""
    layers, hidden = _need(reader, "num-layers"), _need(reader, "hidden-size")
    vocab = reader.count("vocab-size", "padded-vocab-size")
    reader.take("padded-vocab-size")
    table: dict[str, Any] = {"hidden": hidden, "layers": layers, "vocab": vocab or 1}
    longest = reader.count("max-position-embeddings") or 0
    table |= {"context": longest} if longest else {}
    if not reader.switch("untie-embeddings-and-output-weights", default=False):
        table["tied"] = True
    parts = list(_layers(reader, layers, hidden))
    if any(part["attention"].get("positions") == "learned" for part in parts):
        table["positions"] = longest
    kind = reader.word("normalization", among={"LayerNorm": "layer", "RMSNorm": "rms"}, default="layer")
    if kind == "layer":
        table["norm"] = "layer"
    table |= _blocks(parts)
    ahead = reader.count("mtp-num-layers")
    table |= {"mtp": ahead} if ahead else {}
    return _named(reader, table, vocab, hint)


def _named(reader: OptionReader, table: dict[str, Any], vocab: int | None, hint: str) -> str | Mapping[str, Any]:
    found = known_as(table, unsure=() if vocab else ("vocab",), prefer=hint)
    if vocab is not None:
        return found
    if not isinstance(found, str):
        found = {key: value for key, value in found.items() if key != "vocab"}
    if isinstance(found, str) or "base" in found:
        name = found if isinstance(found, str) else found["base"]
        reader.assumptions.append(f"vocab: that of {name}, whose other dimensions are these")
    else:
        reader.assumptions.append("vocab: not stated; add model.vocab to the scenario")
    return found


def _need(reader: OptionReader, name: str) -> int:
    value = reader.count(name)
    if value is None:
        expected, todo = "a number of the model", "is this the right script? only what it says itself is read"
        raise InputError(Problem(path=f"--{name}", given="nothing", expected=expected, todo=todo))
    return value


def _layers(reader: OptionReader, layers: int, hidden: int) -> Iterator[dict[str, Any]]:
    """The parts of every layer, in order."""
    biased = not reader.switch("disable-bias-linear", default=False)
    mixer = _mixer(reader, hidden, biased)
    act = _activation(reader)
    gated = reader.options.get("swiglu") is True  # two thirds of four times the width, in steps of 64
    ffn = reader.count("ffn-hidden-size") or (8 * hidden // 3 // 64 * 64 if gated else 4 * hidden)
    dense = {"hidden": ffn, **act, **({"bias": True} if biased else {})}
    experts = _experts(reader, ffn, act, biased)
    sparse = flags_of(str(reader.take("moe-layer-freq", default="1")), layers) if experts else (False,) * layers
    size, windows = _windows(reader, layers)
    skips = reader.take("no-rope-freq")
    bare = _skipped(str(skips), layers) if skips is not None else (False,) * layers
    for is_sparse, is_local, is_bare in zip(sparse, windows, bare, strict=True):
        own = {**mixer, **({"window": size} if is_local else {}), **({"positions": "none"} if is_bare else {})}
        yield {"attention": own, **({"moe": experts} if is_sparse else {"mlp": dense})}


def _skipped(text: str, layers: int) -> tuple[bool, ...]:
    """N skips every N-th layer, a list says which."""
    if text.isdigit() and int(text):
        return tuple((layer + 1) % int(text) == 0 for layer in range(layers))
    return flags_of(text, layers)


def _windows(reader: OptionReader, layers: int) -> tuple[int, tuple[bool, ...]]:
    span = reader.take("window-size")
    skip = reader.take("window-attn-skip-freq")
    if span is None:
        return 0, (False,) * layers
    first = str(span[0] if isinstance(span, (list, tuple)) else span).strip("()[] ").split(",")[0]
    size = int(first) if first.isdigit() else 0
    if skip is None or not size:
        return size, (bool(size),) * layers
    if str(skip).isdigit() and int(str(skip)):  # N: one full layer after N - 1 local ones
        return size, tuple((layer + 1) % int(str(skip)) != 0 for layer in range(layers))
    return size, flags_of(str(skip), layers)


def _mixer(reader: OptionReader, hidden: int, biased: bool) -> dict[str, Any]:
    heads = _need(reader, "num-attention-heads")
    rotary = reader.switch("use-rotary-position-embeddings", default=False)
    default = "rope" if rotary else "learned"
    words = {word: kind for kind, word in POSITIONS.items()}
    positions = reader.word("position-embedding-type", among=words, default=default)
    positions = "rope" if rotary and positions == "learned" else positions
    if reader.switch("multi-latent-attention", default=False):
        reader.take("qk-layernorm"), reader.take("kv-channels")
        sizes = {"kv_rank": ("kv-lora-rank", 32), "nope_dim": ("qk-head-dim", 128)}
        sizes |= {"rope_dim": ("qk-pos-emb-head-dim", 64), "v_dim": ("v-head-dim", 128)}
        found = {key: reader.count(name, default=value) for key, (name, value) in sizes.items()}
        return {"kind": "mla", "heads": heads, "q_rank": reader.count("q-lora-rank") or 0, **found}
    grouped = reader.switch("group-query-attention", default=False)
    groups = reader.count("num-query-groups", default=1)
    mixer: dict[str, Any] = {"heads": heads, "kv_heads": groups if grouped else heads}
    mixer["head_dim"] = reader.count("kv-channels") or hidden // heads
    qkv = reader.switch("add-qkv-bias", default=False) or biased
    flags = {"qkv_bias": qkv, "out_bias": biased}
    flags["sinks"] = reader.take("softmax-type") == "learnable"
    mixer |= {name: True for name, there in flags.items() if there}
    if reader.switch("qk-layernorm", default=False):
        mixer["qk_norm"] = "head"
    return mixer | ({} if positions == "rope" else {"positions": positions})


def _activation(reader: OptionReader) -> dict[str, Any]:
    if reader.switch("swiglu", default=False):
        return {}
    if reader.switch("quick-geglu", default=False):
        return {"activation": "quick_gelu"}
    squared = reader.switch("squared-relu", default=False)
    return {"gated": False, "activation": "relu2" if squared else "gelu"}


def _experts(reader: OptionReader, ffn: int, act: Mapping[str, Any], biased: bool) -> dict[str, Any]:
    count = reader.count("num-experts")
    if count is None:
        return {}
    reader.take("moe-grouped-gemm")
    found: dict[str, Any] = {"experts": count, "topk": reader.count("moe-router-topk", default=2)}
    found["hidden"] = reader.count("moe-ffn-hidden-size") or ffn
    for key, name in (
        ("shared_hidden", "moe-shared-expert-intermediate-size"),
        ("groups", "moe-router-num-groups"),
        ("group_topk", "moe-router-group-topk"),
        ("latent", "moe-latent-size"),
    ):
        value = reader.count(name)
        found |= {key: value} if value else {}
    return {**found, **act, **({"bias": True} if biased else {})}


def _blocks(parts: list[dict[str, Any]]) -> dict[str, Any]:
    """One kind of layer at the top level; several as named blocks in a pattern."""
    kinds: list[dict[str, Any]] = []
    order = []
    for part in parts:
        if part not in kinds:
            kinds.append(part)
        order.append(kinds.index(part))
    if len(kinds) == 1:
        return dict(kinds[0])
    return {"pattern": list(runs(order)), "block": {f"b{index}": kind for index, kind in enumerate(kinds)}}


def runs(order: Sequence[int]) -> Iterator[str]:
    """Block names with how often each stands in a row.

    >>> list(runs([0, 0, 0, 1]))
    ['b0*3', 'b1']
    """
    start = 0
    for index in range(1, len(order) + 1):
        if index == len(order) or order[index] != order[start]:
            count = index - start
            yield f"b{order[start]}*{count}" if count > 1 else f"b{order[start]}"
            start = index
