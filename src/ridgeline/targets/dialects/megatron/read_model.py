"""Turn options in Megatron's words into the model that they spell, or the catalog entry that it is."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ridgeline.core.documents import JsonMapping, JsonObject
from ridgeline.core.errors import InputError
from ridgeline.models.dimensions import MOST_LAYERS
from ridgeline.models.load import MODELS, find_name
from ridgeline.targets.dialects.megatron.names import ID, POSITIONS, flags_of, layout_of
from ridgeline.targets.imports.model_names import known_as
from ridgeline.targets.imports.option_reader import OptionReader
from ridgeline.targets.option_table import option_rows, read_options
from ridgeline.targets.tables import sizes as table_sizes
from ridgeline.targets.target import refusal

# Megatron's and its dialects' kinds of tokenizer that have one vocabulary
TOKENIZERS = table_sizes("megatron", "tokenizers")
GUESSED = {"SentencePieceTokenizer": 32000, "GPTSentencePieceTokenizer": 32000, "TikTokenizer": 131072}
USUAL = 50257
PATCHED = "patch-tokenizer-type"  # of Pai-Megatron-Patch, which loads it from the model's folder
NAMED_BY = ("tokenizer-model", "tokenizer-name-or-path", "hf-tokenizer-name-or-path", "tokenizer-path")
# families of models that share a tokenizer, by what stands in its name
FAMILIES = table_sizes("megatron", "families")
LONGEST = 2000
LAYERS = frozenset("MG*D+-E")
CORE = "megatron.core."  # modules whose layers the symbols stand for
ROTARY = ("rotary", "mrope", "yarn", "dynamic", "llama3")  # words of dialects for kinds of rotary embedding
UNITS = {"swiglu": "silu", "geglu": "gelu", "liglu": "identity", "reglu": "relu"}


def named_by_tokenizer(reader: OptionReader) -> str | None:
    """The catalog model whose tokenizer a run names."""
    for option in NAMED_BY:
        value = reader.options.get(option)
        if not isinstance(value, str) or len(value) > 300:
            continue
        for name in (value, *reversed(value.strip("/").split("/"))):
            entry = find_name(name) if name and "$" not in name else None
            if entry is not None:
                return entry[0]
    return None


def named_by_path(path: str) -> str:
    """The catalog model whose id stands in the name of a file or its folder; nothing where none does.

    >>> named_by_path("llama2/pretrain_llama2_70b_128k.sh")
    'llama2-70b'
    """
    plain = re.sub(r"[^a-z0-9]", "", path[:200].lower())
    ids_found = [id for id in MODELS if re.sub(r"[^a-z0-9]", "", id) in plain]
    return max(ids_found, key=len, default="")


def vocabulary_of(reader: OptionReader) -> int | None:
    """Rows of the embedding where the options say them, by number or by a tokenizer that has one size."""
    stated_values = reader.count("padded-vocab-size", "pad-vocab-size-to") or reader.count("vocab-size")
    reader.skip("pad-vocab-size-to", "vocab-size")
    if stated_values is not None:
        return stated_values
    model = named_by_tokenizer(reader)
    if model is not None:
        reader.assumptions.append(f"vocab = {MODELS[model].vocab}: the tokenizer is that of {model}")
        return MODELS[model].vocab
    name = " ".join(str(reader.options.get(option, ""))[:300] for option in NAMED_BY).lower()
    shared = next((words for pattern, words in FAMILIES.items() if re.search(pattern, name)), None)
    if shared is not None:
        reader.assumptions.append(f"vocab = {shared}: that of the family which the tokenizer names")
        return shared
    kind = str(reader.options.get("tokenizer-type", ""))
    if is_patched(reader):
        return None
    file = str(reader.options.get("vocab-file", ""))
    if kind not in TOKENIZERS and (re.search(r"gpt2|bpe", file) or (file and "merge-file" in reader)):
        kind = "GPT2BPETokenizer"
    if kind in TOKENIZERS:
        reader.assumptions.append(f"vocab = {TOKENIZERS[kind]}: that of {kind}")
    return TOKENIZERS.get(kind)


def is_patched(reader: OptionReader) -> bool:
    """Whether the tokenizer is of a family whose models pad its words differently."""
    return str(reader.options.get(PATCHED, "")) in TOKENIZERS


def guessed_vocabulary(reader: OptionReader) -> tuple[int, str] | None:
    """The size that a kind of tokenizer usually has, where its own file would tell, and that kind."""
    for option, sizes in ((PATCHED, TOKENIZERS), ("tokenizer-type", GUESSED)):
        kind = str(reader.options.get(option, ""))
        if kind == "LLamaTokenizer" and "qwen" in reader.table.source.lower():  # it loads whatever the folder holds
            kind = "QwenTokenizer"
        if kind in sizes:
            return sizes[kind], kind
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class HybridPattern:
    """Layers by symbol, how many each pipeline segment holds, and the layers that predict further tokens."""

    layers: str
    segments: tuple[int, ...]
    ahead: tuple[str, ...]


def hybrid_pattern(reader: OptionReader) -> HybridPattern | None:
    """The pattern that the options give; None for a model without one.

    >>> from ridgeline.core.files import Table
    >>> found = hybrid_pattern(OptionReader(Table(data={"hybrid-layer-pattern": "M-|M*/*E"}, source="")))
    >>> found.layers, found.segments, found.ahead
    ('M-M*', (2, 2), ('*E',))
    """
    model_given = reader.take("hybrid-layer-pattern", "hybrid-override-pattern")
    state_space = reader.switch("is-hybrid-model")
    shares = [reader.share(f"hybrid-{part}-ratio", default=0.0) for part in ("attention", "mlp")]
    if model_given is None and (state_space or any(shares)):
        model_given = spread_pattern(reader.count("num-layers") or 0, *shares)
    if model_given is None:
        return None
    _refuse_own_layers(reader)
    text = str(model_given).replace(" ", "")
    main, *ahead = text.split("/")
    parts = main.split("|")
    if len(text) > LONGEST or not main or set("".join((*parts, *ahead))) - LAYERS:
        raise refusal(repr(text[:60]), "layers spelled by M, G, *, D, +, - and E", path="--hybrid-layer-pattern")
    return HybridPattern(layers="".join(parts), segments=tuple(len(part) for part in parts), ahead=tuple(ahead))


def _refuse_own_layers(reader: OptionReader) -> None:
    """An `InputError` where a module outside of Megatron-Core builds the layers that the symbols stand for."""
    module = reader.options.get("spec")
    name = str(module[0] if isinstance(module, (list, tuple)) and module else module or "").split(" ")[0]
    if name.startswith(CORE) or not name or name.endswith("mamba_layer_specs"):
        reader.skip("spec")
        return
    given_text, expected_text = f"layers that {name[:80]} builds", "layers that the options spell"
    raise refusal(given_text, expected_text, path="--spec", todo="name the model with --model")


def spread_pattern(layers: int, attention: float, mlp: float) -> str | None:
    """The pattern of so many layers with shares of attention and of mlp, the rest Mamba, as Megatron-Core deals them.

    Attention stands between stretches of Mamba of equal length; every stretch of Mamba layers between two mlps is as
    long as the next.

    >>> spread_pattern(8, 0.25, 0.0), spread_pattern(8, 0.125, 0.5)
    ('MM*MM*MM', 'M-M-*-M-')
    """
    if not 0 < layers <= LONGEST:
        return None
    symbols = ["M"] * layers
    attends, dense = round(layers * attention), round(layers * mlp)
    mamba_left = length = (layers - attends) / (attends + 1)
    for at in range(layers):
        symbols[at], mamba_left = ("*", mamba_left + length) if mamba_left < 0.5 else ("M", mamba_left - 1)
    if dense:
        mamba_left = length = (layers - attends - dense) / dense
        for at in (at for at in range(layers) if symbols[at] == "M"):
            symbols[at], mamba_left = ("-", mamba_left + length) if mamba_left < 0.5 else ("M", mamba_left - 1)
    return "".join(symbols)


def mamba(reader: OptionReader, hidden: int) -> JsonObject:
    """The state-space mixer, by Megatron-Core's defaults where the options are silent."""
    sizes_read = read_options(ID, "mamba", reader)
    heads = sizes_read.get("heads", max(1, 2 * hidden // sizes_read["head_dim"]))
    chunk = reader.count("mamba-chunk-size")
    return {"kind": "mamba2", "heads": heads, **sizes_read, **({"chunk": chunk} if chunk else {})}


def linear(reader: OptionReader) -> JsonObject:
    """The gated delta net."""
    sizes_read = read_options(ID, "linear", reader)
    conv = sizes_read.pop("conv")
    return {"kind": "gated-delta", **sizes_read, **({"conv": conv} if conv != 4 else {})}


def pattern_parts(pattern: str, kinds: Mapping[str, JsonObject]) -> Iterator[JsonObject]:
    """The parts of every layer that a pattern spells."""
    for symbol in pattern:
        if not kinds[symbol]:
            raise refusal(
                f"a layer {symbol}", "a pattern whose layers the options describe", path="--hybrid-layer-pattern"
            )
        yield kinds[symbol]


def read_model(reader: OptionReader, hint: str = "") -> str | JsonMapping:
    """The model; what the options leave open is filled in from a catalog entry that agrees in everything else."""
    pattern = hybrid_pattern(reader)
    layers = len(pattern.layers) if pattern else _need(reader, "num-layers")
    if layers > MOST_LAYERS:  # before they are spelled out
        raise refusal(f"{layers}", f"at most {MOST_LAYERS}", path="--num-layers", todo="is a digit too many?")
    if pattern:
        reader.skip("num-layers")
    hidden = _need(reader, "hidden-size")
    hint = hint or named_by_tokenizer(reader) or ""
    vocab = vocabulary_of(reader)
    table: JsonObject = {"hidden": hidden, "layers": layers, "vocab": vocab or 1}
    longest = reader.count("max-position-embeddings") or reader.count("seq-length") or 0
    table |= {"context": longest} if longest else {}
    if not reader.switch("untie-embeddings-and-output-weights"):
        table["tied"] = True
    if pattern:
        kinds = _parts_of(reader, pattern, hidden)
        if len(pattern.segments) > 1:  # pipeline stages are spelled by the pattern
            reader.options["pipeline-model-parallel-layout"] = layout_of(pattern.segments)
        parts = list(pattern_parts(pattern.layers, kinds))
    else:
        parts = list(_layers(reader, layers, hidden))
    if any(part.get("attention", {}).get("positions") == "learned" for part in parts):
        table["positions"] = longest
    if reader.word("normalization", among={"LayerNorm": "layer", "RMSNorm": "rms"}, default="layer") == "layer":
        table["norm"] = "layer"
    if reader.switch("embed-layernorm"):
        table["embedding_norm"] = "layer"
    table |= _blocks(parts)
    table |= _ahead(reader, table, pattern)
    return _match_catalog(reader, table, vocab, hint)


def _parts_of(reader: OptionReader, pattern: HybridPattern, hidden: int) -> dict[str, JsonObject]:
    used = set(pattern.layers + "".join(pattern.ahead))
    attends = bool(used & set("*D+"))
    full_layer = next(_layers(reader, 1, hidden)) if attends or used & set("-E") else {}
    mixer = {"attention": full_layer["attention"]} if attends else {}
    has_bias = not reader.switch("disable-bias-linear")
    act = _activation(reader)
    ffn = _ffn(reader, hidden)
    experts = _experts(reader, ffn, act, has_bias)
    dense = {"hidden": ffn, **act, **({"bias": True} if has_bias else {})}
    kinds = {"M": {"attention": mamba(reader, hidden)} if "M" in used else {}}
    kinds |= {"G": {"attention": linear(reader)} if "G" in used else {}, "*": mixer, "D": mixer, "+": mixer}
    if experts and "E" not in used:
        given_text = f"{experts['experts']} experts, and no layer E in the pattern"
        expected_text, todo = "a pattern whose layers the options describe", "name the model with --model"
        raise refusal(given_text, expected_text, path="--hybrid-layer-pattern", todo=todo)
    kinds |= {"-": {"mlp": dense}, "E": {"moe": experts} if experts else {}}
    return {symbol: {**parts, "norms": 1} if parts else {} for symbol, parts in kinds.items()}


def _ahead(reader: OptionReader, table: JsonObject, pattern: HybridPattern | None) -> JsonObject:
    depth = reader.size("mtp-num-layers") or 0
    if pattern is None or not pattern.ahead:
        return {"mtp": depth} if depth else {}
    kinds = _parts_of(reader, pattern, table["hidden"])
    block: JsonObject = {}
    for part in pattern_parts(pattern.ahead[0], kinds):
        block |= part
    block["norms"] = len(pattern.ahead[0])
    if "block" not in table:
        return {"mtp": len(pattern.ahead)}
    table["block"]["ahead"] = block
    return {"mtp": len(pattern.ahead), "mtp_block": "ahead"}


def _match_catalog(reader: OptionReader, table: JsonObject, vocab: int | None, hint: str) -> str | JsonMapping:
    guessed_vocab = guessed_vocabulary(reader) if vocab is None else None
    catalog_model = known_as(table, unsure=() if vocab else ("vocab",), prefer=hint)
    is_known = isinstance(catalog_model, str) or "base" in catalog_model
    if guessed_vocab is not None and is_patched(reader) and hint in MODELS and not is_known:
        guessed_vocab = MODELS[hint].vocab, hint
    if guessed_vocab is not None and not (is_known and (is_patched(reader) or catalog_model == hint)):
        size, kind = guessed_vocab
        reader.assumptions.append(f"vocab = {size}: usual for {kind}; --set model.vocab changes it")
        return known_as({**table, "vocab": guessed_vocab[0]}, prefer=hint)
    if vocab is not None:
        return catalog_model
    if isinstance(catalog_model, str) or "base" in catalog_model:
        name = catalog_model if isinstance(catalog_model, str) else catalog_model["base"]
        reader.assumptions.append(f"vocab: that of {name}, whose other dimensions are these")
        return catalog_model
    usual = MODELS[hint].vocab if hint in MODELS else USUAL  # that of the model which the file is named after
    reader.assumptions.append(f"vocab = {usual}: the files do not say it; --set model.vocab changes it")
    return {**catalog_model, "vocab": usual}


def _need(reader: OptionReader, name: str) -> int:
    value = reader.count(name)
    if value is None and reader.problems:
        raise InputError(reader.problems)
    if value is None:
        expected_text, todo = "a number of the model", "is this the right script? only what it says itself is read"
        raise refusal("nothing", expected_text, path=f"--{name}", todo=todo)
    return value


def _layers(reader: OptionReader, layers: int, hidden: int) -> Iterator[JsonObject]:
    has_bias = not reader.switch("disable-bias-linear")
    mixer = _mixer(reader, hidden, has_bias)
    act = _activation(reader)
    ffn = _ffn(reader, hidden)
    dense = {"hidden": ffn, **act, **({"bias": True} if has_bias else {})}
    experts = _experts(reader, ffn, act, has_bias)
    sparse = flags_of(str(reader.take("moe-layer-freq", default="1")), layers) if experts else (False,) * layers
    counts = iter(_counts(reader, sum(sparse)))
    size, windows = _windows(reader, layers)
    skips = reader.take("no-rope-freq")
    bare = _layers_by_interval(skips, layers, last=True) if skips is not None else (False,) * layers
    recurrent = _linear_layers(reader, layers)
    state = linear(reader) if any(recurrent) else {}
    norms = {"norms": 4} if reader.switch("post-norm") else {}  # also behind each part
    reuses_indexer = _reuses_indexer(reader, layers) if "indexer" in mixer else (False,) * layers
    flags = zip(sparse, windows, bare, recurrent, reuses_indexer, strict=True)
    for is_sparse, is_local, is_bare, is_linear, is_reused in flags:
        layer_mixer = {**mixer, **({"window": size} if is_local else {}), **({"positions": "none"} if is_bare else {})}
        layer_mixer |= {"indexer": {**mixer["indexer"], "shared": True}} if is_reused else {}
        ffn_part = {"moe": experts | {"experts": next(counts)}} if is_sparse else {"mlp": dense}
        yield {"attention": state if is_linear else layer_mixer, **ffn_part, **norms}


def _ffn(reader: OptionReader, hidden: int) -> int:
    """Width of the feed-forward part: two thirds of four times the model's, in steps of 64, where it is gated."""
    is_gated = reader.options.get("swiglu") is True
    return reader.count("ffn-hidden-size") or (8 * hidden // 3 // 64 * 64 if is_gated else 4 * hidden)


def _linear_layers(reader: OptionReader, layers: int) -> tuple[bool, ...]:
    """Which layers have linear attention: N is all but every N-th, a list says which."""
    variant = str(reader.options.get("experimental-attention-variant", ""))
    interval = reader.take("linear-attention-freq")
    if interval is None or variant not in ("gated_delta_net", "gdn", ""):
        return (False,) * layers
    reader.skip("experimental-attention-variant")
    return _layers_by_interval(interval, layers, last=False)


def _reuses_indexer(reader: OptionReader, layers: int) -> tuple[bool, ...]:
    """Which layers take the keys that an earlier one's indexer chose: all but every N-th behind the first."""
    interval, first = reader.count("index-topk-freq", default=1) or 1, reader.size("index-skip-topk-offset")
    begins = 2 if first is None else first
    return tuple(max(layer + 1 - begins, 0) % interval != 0 for layer in range(layers))


def _layers_by_interval(interval: object, layers: int, *, last: bool) -> tuple[bool, ...]:
    """Which layers a frequency names: N every N-th one (all others where it is not the `last`), a list says which."""
    text = str(interval)
    if text.isdigit() and int(text):
        return tuple(((layer + 1) % int(text) == 0) == last for layer in range(layers))
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
    return size, _layers_by_interval(skip, layers, last=False)  # N: one full layer after N - 1 local ones


def _mixer(reader: OptionReader, hidden: int, biased: bool) -> JsonObject:
    heads = _need(reader, "num-attention-heads")
    rotary = reader.switch("use-rotary-position-embeddings")
    bare = reader.switch("no-position-embedding")
    default = "rope" if rotary else "none" if bare else "learned"
    words = {word: kind for kind, word in POSITIONS.items()} | dict.fromkeys(ROTARY, "rope") | {"relative": "none"}
    positions = reader.word("position-embedding-type", among=words, default=default)
    positions = "rope" if rotary and positions == "learned" else positions
    if reader.switch("multi-latent-attention"):
        reader.skip("qk-layernorm", "kv-channels")
        sizes_read = read_options(ID, "latent", reader)
        sparse = _indexer(reader)
        return {"kind": "mla", "heads": heads, "q_rank": reader.size("q-lora-rank") or 0, **sizes_read, **sparse}
    has_groups = reader.switch("group-query-attention")
    groups = reader.count("num-query-groups", default=1)
    if reader.word("attention-head-type", among={"multihead": 0, "multiquery": 1}, default=0):
        has_groups, groups = True, 1
    mixer: JsonObject = {"heads": heads, "kv_heads": groups if has_groups else heads}
    mixer["head_dim"] = reader.count("kv-channels") or hidden // heads
    qkv = reader.switch("add-qkv-bias") or biased
    flags = {"qkv_bias": qkv, "out_bias": reader.switch("add-dense-bias") or biased}
    flags["sinks"] = reader.take("softmax-type") == "learnable"
    flags["gate"] = reader.switch("attention-output-gate")
    mixer |= {name: True for name, there in flags.items() if there}
    if reader.switch("qk-layernorm"):
        mixer["qk_norm"] = "head"
    return mixer | ({} if positions == "rope" else {"positions": positions})


def _indexer(reader: OptionReader) -> JsonObject:
    stated_values = any(row.option.removeprefix("--") in reader for row in option_rows(ID, "indexer"))
    if reader.options.get("experimental-attention-variant") != "dsa" and not stated_values:
        return {}
    reader.skip("experimental-attention-variant")
    return {"indexer": read_options(ID, "indexer", reader)}


def _activation(reader: OptionReader) -> JsonObject:
    if reader.switch("swiglu"):
        return {}
    if reader.switch("quick-geglu"):
        return {"activation": "quick_gelu"}
    unit = reader.word("glu-activation", among=UNITS, default=None)
    if unit is not None or reader.switch("geglu"):
        return {"activation": unit or "gelu"}
    if reader.switch("squared-relu"):
        return {"gated": False, "activation": "relu2"}
    reader.skip("openai-gelu", "onnx-safe")
    return {"gated": False, "activation": "gelu"}


def _counts(reader: OptionReader, sparse: int) -> list[int]:
    """Experts of each layer that has some: one number for all, or (Megatron-DeepSpeed's pyramid) one for each."""
    expert_counts = reader.options.get("num-experts")
    listed_values = expert_counts if isinstance(expert_counts, list) else [expert_counts] * sparse
    counts = [count for count in listed_values if isinstance(count, int) and count > 1]
    if not len(counts) == len(listed_values) == sparse:
        raise refusal(" ".join(map(str, listed_values))[:60], f"one number, or {sparse} of them", path="--num-experts")
    return counts


def _experts(reader: OptionReader, ffn: int, act: JsonMapping, biased: bool) -> JsonObject:
    expert_counts = reader.options.get("num-experts")
    count = reader.size("num-experts") if not isinstance(expert_counts, list) else reader.take("num-experts")[0]
    if not count or count == 1:
        return {}
    reader.skip("moe-grouped-gemm")
    count_read: JsonObject = {"experts": count, "topk": reader.count("moe-router-topk", default=2)}
    if "moe-router-topk" not in reader:
        reader.assumptions.append("moe.topk = 2: Megatron-Core's default, where the files do not say it")
    count_read["hidden"] = reader.count("moe-ffn-hidden-size") or ffn
    count_read |= {key: value for key, value in read_options(ID, "more_experts", reader).items() if value}
    if reader.word("mlp-type", among={"standard": False, "residual": True}, default=False):
        count_read["shared_hidden"] = ffn  # beside the experts of every layer
    if "shared_hidden" in count_read and reader.switch("moe-shared-expert-gate", "shared-expert-gate"):
        count_read["shared_gate"] = True
    return {**count_read, **act, **({"bias": True} if biased else {})}


def _blocks(parts: list[JsonObject]) -> JsonObject:
    """One kind of layer at the top level; several as named blocks in a pattern."""
    kinds: list[JsonObject] = []
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
