"""Turn configs of Gemma 3n and 4 into ModelSpecs: rows of every layer, keys of earlier layers, several streams."""

from __future__ import annotations

from dataclasses import replace

from ridgeline.models.hf.config import Config
from ridgeline.models.hf.parts import FULL, SLIDING, bias_traits, heads, hidden_size, kinds, mlp, model, windows
from ridgeline.models.spec import Block, Captured, Embedding, Mlp, ModelSpec, Moe, Product

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
