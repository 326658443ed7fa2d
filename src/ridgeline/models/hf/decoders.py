"""Turn configs of decoders with softmax attention, dense or with experts, into ModelSpecs.

Most families differ in names and switches alone: `families.toml` describes them and `read_family` reads them all. What
a family has beyond that is a function here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache, partial
from types import MappingProxyType
from typing import Literal

from ridgeline.core.records import dataclass
from ridgeline.core.table import decode
from ridgeline.models.hf.config import Config, read_toml
from ridgeline.models.hf.parts import (
    EXPERTS,
    FULL,
    LAYER,
    RMS,
    SLIDING,
    TOPK,
    Reader,
    bias_traits,
    dense_first,
    divide,
    exaone_windows,
    expert_layers,
    experts,
    heads,
    hidden_size,
    kinds,
    mlp,
    model,
    predictor,
    qwen_windows,
    rotary_layers,
    windows,
    without_rotary,
)
from ridgeline.models.spec import Attention, Block, Captured, Embedding, Mlp, ModelSpec, Moe, Norm, Product

NORMS: Mapping[str, Norm] = MappingProxyType(
    {
        "rms": RMS, "layer": LAYER, "layer without bias": Norm(kind="layer"), "bare": Norm(weight=False),
        "bare layer": Norm(kind="layer", weight=False),
    }
)  # fmt: skip
Switch = bool | str
"""A value, or the key that says it: `key?` is off and `key+` on where it is null."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertKeys:
    """Experts of a family: keys of their sizes.

    number, topk   keys of how many there are and how many a token visits        width   key of the width inside one
    grouped        routing picks groups first, by DeepSeek's keys
    shared_count   key of the number of shared experts of the same width; `shared_copies` where it is fixed
    shared_width   key of the width of the shared expert; `key?` is none where it is null
    routed         which layers have experts: all, every n-th (`step`), or all after the first (`after-dense`)
    dense_layers   how many come first where no key says it
    """

    number: tuple[str, ...] = EXPERTS
    topk: tuple[str, ...] = TOPK
    width: str = "moe_intermediate_size"
    grouped: bool = False
    shared_count: str = ""
    shared_copies: int = 0
    shared_width: str = ""
    shared_gate: bool = False
    bias: bool = False
    router_bias: bool = False
    routed: Literal["all", "step", "after-dense"] = "all"
    dense_layers: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderFamily:
    """A family of decoders as `families.toml` describes it.

    both_ways      tokens see what comes behind them, too       has_qk_norm   whether `qk_norm` is there
    qk_norm_bias   norms of queries and keys have biases        rotary_in_windows   full layers do not rotate
    windows        rule of the layers that slide, one of `WINDOWS`; `every`, or the first of `every_keys`, is its period
    post_norms     norms after each part too                    predicts      keys of the depth of predicted tokens
    """

    both_ways: Switch = False
    qk_norm: Literal["none", "head", "full"] = "none"
    has_qk_norm: Switch = True
    qk_norm_bias: bool = False
    qkv_bias: Switch = False
    out_bias: Switch = False
    sinks: bool = False
    act: str = "hidden_act"
    gated: bool = True
    mlp_bias: Switch = False
    windows: str = ""
    every: int = 1
    every_keys: tuple[str, ...] = ()
    rotary_in_windows: bool = False
    norm: str = "rms"
    post_norms: Switch = False
    parallel: Switch = False
    tied: str = "tie_word_embeddings?"
    head_bias: bool = False
    experts: ExpertKeys | None = None
    predicts: tuple[str, ...] = ()


Windows = Callable[[Config, int, DecoderFamily], tuple[int, ...]]


def _period(slides: Callable[[int, int], bool]) -> Windows:
    """Layers that slide by their place and the period of the family."""

    def rule(cfg: Config, layers: int, family: DecoderFamily) -> tuple[int, ...]:
        every = cfg.count(family.every_keys, family.every) if family.every_keys else family.every
        return windows(cfg, layers, lambda index: slides(index, every))

    return rule


def _last(cfg: Config, layers: int, _: DecoderFamily) -> tuple[int, ...]:
    first = cfg.size("max_window_layers", layers)
    return windows(cfg, layers, lambda index: cfg.has("sliding_window") and index >= first)


def _switched(cfg: Config, layers: int, _: DecoderFamily) -> tuple[int, ...]:
    window, uses_window = cfg.size("sliding_window", 0), cfg.flag("use_sliding_window", False)
    return (window if uses_window else 0,) * layers


def _qwen_experts(cfg: Config, layers: int, _: DecoderFamily) -> tuple[int, ...]:
    uses_window, last = cfg.flag("use_sliding_window", False), cfg.size("max_window_layers", layers)
    spans = windows(cfg, layers, lambda index: uses_window and index % 2 == 0 and index < last)
    return spans if uses_window else (0,) * layers


WINDOWS: Mapping[str, Windows] = MappingProxyType(
    {
        "": lambda _cfg, layers, _family: (0,) * layers,
        "all": _period(lambda _index, _every: True),
        "listed": _period(lambda _index, _every: False),
        "before-full": _period(lambda index, every: (index + 1) % every != 0),
        "behind-full": _period(lambda index, every: index % every != 0),
        "flint": _period(lambda index, _every: index > 0 and (index - 1) % 4 != 0),
        "mimo": _period(lambda index, _every: index > 0 and (index + 1) % 6 != 0),
        "qwen": lambda cfg, layers, _family: qwen_windows(cfg, layers),
        "exaone": lambda cfg, layers, _family: exaone_windows(cfg, layers),
        "last": _last,
        "switched": _switched,
        "qwen-experts": _qwen_experts,
    }
)
"""Rules by which layers of a family slide, where no list says it."""


@cache
def family_named(name: str) -> DecoderFamily:
    """The family of that name."""
    table = read_toml("families.toml")[name]
    traits = {key: value for key, value in table.items() if key not in ("types", "ignore", "only")}
    return decode(DecoderFamily, traits, name)


def _switch(cfg: Config, switch: Switch) -> bool:
    if isinstance(switch, bool):
        return switch
    return cfg.flag(switch.rstrip("?+"), {"?": False, "+": True}.get(switch[-1]))


def read_family(cfg: Config, name: str) -> ModelSpec:
    """The model of a family's config."""
    cfg.understand(name)
    family, hidden, layers = family_named(name), hidden_size(cfg), cfg.layers()
    attention, norm = _family_attention(cfg, family, hidden), NORMS[family.norm]
    extra = 2 * attention.head_dim if family.qk_norm_bias and attention.qk_norm != "none" else 0
    parallel = _switch(cfg, family.parallel)
    norms = (1 if parallel else 2) * (2 if _switch(cfg, family.post_norms) else 1)
    block = Block(mixer=attention, ffn=None, norm=norm, norms=norms, parallel=parallel, extra=extra)
    parts, ahead = _family_parts(cfg, family, block, layers)
    spans = WINDOWS[family.windows](cfg, layers, family)
    mixers = [
        without_rotary(attention, w, spans) if family.rotary_in_windows else replace(attention, window=w) for w in spans
    ]
    blocks = [replace(part, mixer=mixer) for part, mixer in zip(parts, mixers, strict=True)]
    embedding = Embedding(tied=_switch(cfg, family.tied), head_bias=family.head_bias)
    depth = cfg.size(family.predicts, 0) if family.predicts else 0
    return model(cfg, blocks, norm=norm, embedding=embedding, mtp=predictor(depth, ahead))


def _family_attention(cfg: Config, family: DecoderFamily, hidden: int) -> Attention:
    has_qk_norm = _switch(cfg, family.has_qk_norm)
    return heads(
        cfg,
        hidden,
        qk_norm=family.qk_norm if has_qk_norm else "none",
        qkv_bias=_switch(cfg, family.qkv_bias),
        out_bias=_switch(cfg, family.out_bias),
        sinks=family.sinks,
        causal=not _switch(cfg, family.both_ways),
    )


def _family_parts(cfg: Config, family: DecoderFamily, block: Block, layers: int) -> tuple[list[Block], Block]:
    """The layers with their feed-forward part, and one that predicts further tokens. Biases of the mlp are those of
    shared experts, too."""
    keys = family.experts
    moe = _family_experts(cfg, keys) if keys else None
    if moe and keys and keys.routed == "all":
        routed = replace(block, ffn=moe)
        return [routed] * layers, routed
    dense = mlp(cfg, act=family.act, gated=family.gated, bias=_switch(cfg, family.mlp_bias))
    plain = replace(block, ffn=dense)
    if moe is None or keys is None:
        return [plain] * layers, plain
    is_routed = expert_layers(cfg, layers) if keys.routed == "step" else dense_first(cfg, layers, keys.dense_layers)
    routed = replace(block, ffn=moe, extra=block.extra + (_shared_biases(cfg, moe) if dense.bias else 0))
    return [routed if e else plain for e in is_routed], routed


def _family_experts(cfg: Config, keys: ExpertKeys) -> Moe:
    moe = experts(cfg, keys.width, keys.number, keys.topk, shared_gate=keys.shared_gate, bias=keys.bias)
    shared = keys.shared_copies * moe.hidden
    if keys.shared_count:
        shared = cfg.size(keys.shared_count, 0) * moe.hidden
    elif keys.shared_width:
        shared = cfg.size(keys.shared_width.rstrip("?"), 0 if keys.shared_width.endswith("?") else None)
    groups, best = (cfg.count("n_group", 1), cfg.count("topk_group", 1)) if keys.grouped else (1, 1)
    return replace(moe, shared_hidden=shared, router_bias=keys.router_bias, groups=groups, group_topk=best)


def _shared_biases(cfg: Config, moe: Moe) -> int:
    """Biases of the shared experts' three matrices, in models whose routed experts have none."""
    return 2 * moe.shared_hidden + hidden_size(cfg) if moe.shared_hidden else 0


def _with_extra(spec: ModelSpec, extra: int) -> ModelSpec:
    return replace(spec, blocks=tuple(replace(block, extra=extra) for block in spec.blocks))


def helium(cfg: Config) -> ModelSpec:
    """Helium: heads of no other width than hidden / heads."""
    hidden = hidden_size(cfg)
    attention = heads(cfg, hidden)
    if attention.heads * attention.head_dim != hidden:
        cfg.clash("head_dim", attention.head_dim, f"hidden_size / num_attention_heads, {hidden / attention.heads:g}")
    return read_family(cfg, "helium")


def apertus(cfg: Config) -> ModelSpec:
    """Apertus: two numbers to learn in an xIELU."""
    return _with_extra(read_family(cfg, "apertus"), 2 if cfg.word("hidden_act") == "xielu" else 0)


def bitnet(cfg: Config) -> ModelSpec:
    """BitNet b1.58: norms before the two output projections."""
    return _with_extra(read_family(cfg, "bitnet"), hidden_size(cfg) + cfg.count("intermediate_size"))


def minimax_m2(cfg: Config) -> ModelSpec:
    """MiniMax M2: a list that may say nothing new, and modules of multi-token prediction."""
    cfg.only("attn_type_list", [1] * cfg.layers())
    spec, modules = read_family(cfg, "minimax_m2"), cfg.size("num_mtp_modules", 0)
    return replace(spec, mtp=predictor(modules if cfg.flag("use_mtp", True) else 0, spec.blocks[0]))


def mimo_v2_flash(cfg: Config) -> ModelSpec:
    """MiMo-V2-Flash: sliding layers have sinks and twice the key-value heads."""
    spec, values = read_family(cfg, "mimo_v2_flash"), cfg.count("v_head_dim")
    blocks = []
    for block in map(spec.layer, range(spec.layers)):
        assert isinstance(block.mixer, Attention)
        far = replace(block.mixer, v_head_dim=values)
        near = replace(far, kv_heads=2 * far.kv_heads, sinks=True)
        blocks.append(replace(block, mixer=near if far.window else far))
    return model(cfg, blocks)


def laguna(cfg: Config) -> ModelSpec:
    """Laguna: heads counted layer by layer, each weighed by a gate."""
    spec = read_family(cfg, "laguna")
    usual, layers = (cfg.count("num_attention_heads"),) * spec.layers, spec.layers
    counts = cfg.counts("num_attention_heads_per_layer") or usual
    if len(counts) != layers:
        cfg.bad("num_attention_heads_per_layer", counts, f"a list of {layers} numbers, one for each layer")
        counts = usual
    blocks = []
    for number, block in zip(counts, map(spec.layer, range(layers)), strict=True):
        assert isinstance(block.mixer, Attention)
        blocks.append(replace(block, mixer=replace(block.mixer, heads=number), extra=number * spec.hidden))
    return model(cfg, blocks)


def smollm3(cfg: Config) -> ModelSpec:
    """SmolLM 3: Llama's block; every fourth layer does not rotate."""
    layers = cfg.layers()
    attention, ffn = heads(cfg, hidden_size(cfg), **bias_traits(cfg)), mlp(cfg, bias=cfg.flag("mlp_bias"))
    uses_window, window = cfg.flag("use_sliding_window", False), cfg.size("sliding_window", 0)
    rotary = rotary_layers(cfg, layers)
    layer_kinds = kinds(cfg, layers, lambda index: uses_window and window > 0 and not rotary[index])
    blocks = []
    for kind, is_rotary in zip(layer_kinds, rotary, strict=True):
        span = window if kind == SLIDING else 0
        mixer = replace(attention, window=span, positions="rope" if is_rotary else "none")
        blocks.append(Block(mixer=mixer, ffn=ffn))
    return model(cfg, blocks)


def llada(cfg: Config) -> ModelSpec:
    """LLaDA, a diffusion language model: Llama's block by OLMo's names, both ways. By its published config."""
    cfg.understand("llada")
    hidden, count = cfg.count("d_model"), cfg.count("n_heads")
    attention = Attention(
        heads=count, kv_heads=cfg.count("n_kv_heads", count), head_dim=divide(cfg, "n_heads", hidden, count),
        causal=False, qkv_bias=cfg.flag("include_qkv_bias", False),
    )  # fmt: skip
    ffn = Mlp(hidden=cfg.count("mlp_hidden_size"), activation=cfg.word("activation_type", "silu"))
    embedding = Embedding(tied=cfg.flag("weight_tying", False))
    spec = model(cfg, [Block(mixer=attention, ffn=ffn)] * cfg.layers("n_layers"), embedding=embedding)
    rows = cfg.count("embedding_size", spec.vocab)  # padded, where it says more
    return replace(spec, vocab=rows, context=cfg.size("max_sequence_length", 0))


def llama4(cfg: Config) -> ModelSpec:
    """Llama 4 text: chunked layers with rotary positions, full ones without; experts on every n-th layer.

    Its norm of queries and keys has no parameters and is not recorded.
    """
    cfg.ignore("use_qk_norm", "for_llm_compressor")
    hidden, layers = hidden_size(cfg), cfg.layers()
    chunk = cfg.size("attention_chunk_size", 0)
    far = heads(cfg, hidden, **bias_traits(cfg))
    near = replace(far, window=chunk, chunked=chunk > 0)
    moe = experts(cfg, "intermediate_size")
    moe = replace(moe, shared_hidden=moe.hidden)
    dense = mlp(cfg, "intermediate_size_mlp")
    spots = cfg.counts("moe_layers")
    step = cfg.count("interleave_moe_layer_step")
    routed_layers = set(spots) if cfg.has("moe_layers") else set(range(step - 1, layers, step))
    rotary = rotary_layers(cfg, layers)
    layer_kinds = kinds(cfg, layers, lambda index: rotary[index], other="chunked_attention")
    blocks = []
    for index, (kind, is_rotary) in enumerate(zip(layer_kinds, rotary, strict=True)):
        mixer = replace(far if kind == FULL else near, positions="rope" if is_rotary else "none")
        blocks.append(Block(mixer=mixer, ffn=moe if index in routed_layers else dense))
    return model(cfg, blocks)


def afmoe(cfg: Config) -> ModelSpec:
    """Arcee Trinity: gated attention, which rotates where it slides; norms before and after each part."""
    cfg.ignore("mup_enabled", "route_scale", "route_norm", "score_func", "load_balance_coeff")
    layers, interval = cfg.layers(), cfg.count("global_attn_every_n_layers")
    attention = heads(cfg, hidden_size(cfg), qk_norm="head", gate=True, qkv_bias=cfg.flag("attention_bias"))
    moe, dense = _family_experts(cfg, ExpertKeys(shared_count="num_shared_experts")), mlp(cfg)
    first, spans = cfg.size("num_dense_layers"), windows(cfg, layers, lambda index: (index + 1) % interval != 0)
    mixers = [replace(attention, window=w, positions="rope" if w else "none") for w in spans]
    return model(cfg, [Block(mixer=m, ffn=moe if i >= first else dense, norms=4) for i, m in enumerate(mixers)])


def ernie4_5_moe(cfg: Config) -> ModelSpec:
    """Ernie 4.5 with experts on every n-th layer of a range, beside shared ones."""
    layers, bias = cfg.layers(), cfg.flag("use_bias")
    cfg.understand("ernie4_5_moe")
    attention = heads(cfg, hidden_size(cfg), qkv_bias=bias, out_bias=bias)
    dense = mlp(cfg, bias=bias)
    keys = ExpertKeys(number=("moe_num_experts",), topk=("moe_k",), shared_count="moe_num_shared_experts")
    moe = _family_experts(cfg, keys)
    first, last = cfg.size("moe_layer_start_index"), cfg.data.get("moe_layer_end_index", layers - 1)
    last = layers - 1 if last in (-1, None) else cfg.size("moe_layer_end_index")
    interval = cfg.count("moe_layer_interval")
    plain = Block(mixer=attention, ffn=dense)
    routed_block = Block(mixer=attention, ffn=moe, extra=_shared_biases(cfg, moe) if bias else 0)
    spots = [(index + 1) % interval == 0 and first <= index <= last for index in range(layers)]
    embedding = Embedding(tied=cfg.flag("tie_word_embeddings"), head_bias=bias)
    return model(cfg, [routed_block if e else plain for e in spots], embedding=embedding)


FUNCTIONS: Mapping[str, Reader] = MappingProxyType(
    {
        "afmoe": afmoe, "apertus": apertus, "bitnet": bitnet, "ernie4_5_moe": ernie4_5_moe, "helium": helium,
        "laguna": laguna, "llada": llada, "llama4_text": llama4, "mimo_v2_flash": mimo_v2_flash,
        "minimax_m2": minimax_m2, "smollm3": smollm3,
    }
)  # fmt: skip


def decoder_readers() -> dict[str, Reader]:
    """The reader of each model_type here."""
    tables = read_toml("families.toml").items()
    described = {kind: partial(read_family, name=name) for name, table in tables for kind in table.get("types", [name])}
    return {**described, **FUNCTIONS}


ALTUP_STREAMS = 4.0  # elements of a residual stream that alternating updates write in a layer: predicted, corrected


def per_layer_rows(cfg: Config, hidden: int, layers: int) -> tuple[Embedding, Captured | None]:
    """Per-layer embeddings: rows that a token looks up for every layer, beside what its own row is projected to; and
    what each layer does with its part: a gate down to that width, and back up.

    parameters   rows * L*p  +  h * L*p  +  p        a layer 2 * h*p        L = layers, p = width, h = hidden
    """
    width = cfg.size("hidden_size_per_layer_input", 0)
    if not width:
        cfg.ignore("vocab_size_per_layer_input")
        return Embedding(), None
    rows, wide = cfg.count("vocab_size_per_layer_input"), layers * width
    layer = Captured(
        products=(
            Product(label="per-layer gate", inputs=hidden, outputs=width),
            Product(label="per-layer projection", inputs=width, outputs=hidden),
        ),
        streams=4.0 * width + 2.0 * hidden,
        kernels=4.0,
        params=2 * hidden * width,
        saved=float(3 * width + 2 * hidden),
    )
    return Embedding(further_rows=rows * wide + width, further_weights=hidden * wide), layer


def gemma4(cfg: Config) -> ModelSpec:
    """Gemma 4 text: full layers have wider heads, whose keys may serve as values; experts may join the dense mlp.

    In its smallest models every layer reads rows of its own, and the last layers use the keys of earlier ones.
    """
    cfg.understand("gemma4")
    hidden, layers = hidden_size(cfg), cfg.layers()
    near = heads(cfg, hidden, qk_norm="head", window=cfg.count("sliding_window"), **bias_traits(cfg))
    same = cfg.flag("attention_k_eq_v", False)
    wide, few = _gemma4_full(cfg, near.head_dim, near.kv_heads, same)
    far = replace(near, window=0, head_dim=wide, kv_heads=few, keys_as_values=same)
    layer_kinds = list(kinds(cfg, layers, lambda index: (index + 1) % 6 != 0))
    layer_kinds[-1] = FULL
    ffn, norms, extra = _gemma4_ffn(cfg, hidden)
    further, layer = per_layer_rows(cfg, hidden, layers)
    block = Block(mixer=far, ffn=ffn, norms=norms + bool(layer), extra=extra, captured=layer)
    own_layers = layers - cfg.size("num_kv_shared_layers", 0)
    wider = cfg.flag("use_double_wide_mlp", False)
    blocks = []
    for index, kind in enumerate(layer_kinds):
        mixer = replace(near if kind == SLIDING else far, kv_shared=index >= own_layers)
        double_width = wider and index >= own_layers > 0 and isinstance(ffn, Mlp)
        blocks.append(replace(block, mixer=mixer, ffn=replace(ffn, hidden=2 * ffn.hidden) if double_width else ffn))
    return model(cfg, blocks, embedding=replace(further, tied=cfg.flag("tie_word_embeddings", False)))


def _gemma4_full(cfg: Config, head_dim: int, kv_heads: int, same: bool) -> tuple[int, int]:
    """Head size and key-value heads of the full layers, from two keys or from overrides written layer by layer."""
    wide = cfg.count("global_head_dim", 512)
    few = cfg.count("num_global_key_value_heads", kv_heads)
    table = cfg.child("per_layer_config")
    if table is None:
        return wide, few if same else kv_heads
    heads_of_full = set()
    for index in table.data:
        layer = table.child(index)
        if layer is not None:
            heads_of_full.add((layer.count("head_dim", head_dim), layer.count("num_key_value_heads", kv_heads)))
    if len(heads_of_full) > 1:
        cfg.bad("per_layer_config", sorted(heads_of_full), "the same override on every full layer")
    return heads_of_full.pop() if heads_of_full else (head_dim, kv_heads)


def _gemma4_ffn(cfg: Config, hidden: int) -> tuple[Mlp | Moe, int, int]:
    """Feed-forward, number of norms, further vectors: with experts, the dense mlp is their shared part."""
    dense = mlp(cfg, act="hidden_activation")
    if not cfg.flag("enable_moe_block", False):
        cfg.ignore("num_experts", "top_k_experts", "moe_intermediate_size")
        return dense, 4, 0
    moe = Moe(
        experts=cfg.count("num_experts"),
        topk=cfg.count("top_k_experts"),
        hidden=cfg.count("moe_intermediate_size"),
        shared_hidden=dense.hidden,
        activation=dense.activation,
    )
    return moe, 7, hidden + moe.experts


def gemma3n(cfg: Config) -> ModelSpec:
    """Gemma 3n text: several residual streams of which one is worked on (AltUp), a low-rank way around attention
    (LAuReL), rows of every layer, keys of earlier layers in the last ones; four sliding layers, then a full one.

    Its sparse activations are not counted: engines multiply all of them.
    """
    cfg.understand("gemma3n")
    hidden, layers = hidden_size(cfg), cfg.layers()
    attention = heads(cfg, hidden, qk_norm="head", **bias_traits(cfg))
    spans = windows(cfg, layers, lambda index: (index + 1) % 5 != 0)
    streams, rank = cfg.count("altup_num_inputs"), cfg.count("laurel_rank")
    further, rows = per_layer_rows(cfg, hidden, layers)
    own_layers = layers - cfg.size("num_kv_shared_layers", 0)
    block = Block(mixer=attention, ffn=None, norms=7, captured=_altup(rows or Captured(), hidden, streams, rank))
    blocks = []
    for index, (window, wide) in enumerate(zip(spans, _widths(cfg, layers), strict=True)):
        mixer = replace(attention, window=window, kv_shared=index >= own_layers > 0)
        blocks.append(replace(block, mixer=mixer, ffn=Mlp(hidden=wide, activation=cfg.word("hidden_activation"))))
    ends = 2 * (streams - 1) * hidden * hidden  # the other streams are made of a token's row, and added up at the end
    embedding = replace(
        further, tied=cfg.flag("tie_word_embeddings", False), further_weights=further.further_weights + ends
    )
    return model(cfg, blocks, embedding=embedding)


def _altup(rows: Captured, hidden: int, streams: int, rank: int) -> Captured:
    """What a layer does beside attention and mlp: a router of the streams, asked twice, coefficients that predict and
    correct them, and a low-rank way around attention. A router's norm and LAuReL's are among the layer's norms."""
    products = (
        *rows.products,
        Product(label="stream router", inputs=hidden, outputs=streams, rows=2.0),
        Product(label="stream coefficients", inputs=streams, outputs=streams * (streams + 1)),
        Product(label="laurel down", inputs=hidden, outputs=rank),
        Product(label="laurel up", inputs=rank, outputs=hidden),
    )
    stream_params = hidden * streams + streams * streams * (streams + 1) + 2 * hidden * rank + hidden
    return replace(
        rows,
        products=products,
        streams=rows.streams + ALTUP_STREAMS * streams * hidden,
        kernels=rows.kernels + 12.0,
        params=rows.params + stream_params,
        saved=rows.saved + float(streams * hidden + rank + hidden),
    )


def _widths(cfg: Config, layers: int) -> tuple[int, ...]:
    """Width of the mlp of each layer: one number, or a list of them."""
    value = cfg.data.get("intermediate_size")
    if not isinstance(value, (list, tuple)):
        return (cfg.count("intermediate_size"),) * layers
    widths = cfg.counts("intermediate_size")
    if len(widths) != layers or not all(widths):
        cfg.bad("intermediate_size", value, f"a number, or a list of {layers} of them")
        return (1,) * layers
    return widths
