"""Turn configs of the first generation, from GPT-2 to Falcon, into ModelSpecs: layer norms, plain mlps, biases."""

from __future__ import annotations

from dataclasses import replace

from ridgeline.models.hf.config import MOST_LAYERS, Config
from ridgeline.models.hf.parts import LAYER, divide, hidden_size, mlp, model
from ridgeline.models.spec import Attention, Block, Embedding, Mlp, ModelSpec, Norm


def _all_heads(cfg: Config, hidden: int, key: str, **traits: object) -> Attention:
    """Multi-head attention: as many key-value heads as heads, which split the hidden width."""
    count = cfg.count(("num_attention_heads", key))
    part = divide(cfg, key, hidden, count)
    return replace(Attention(heads=count, kv_heads=count, head_dim=part), **traits)  # type: ignore[arg-type]


def _ignore_summary(cfg: Config) -> None:
    kinds = ("type", "use_proj", "activation", "proj_to_labels", "first_dropout")
    cfg.ignore(*(f"summary_{kind}" for kind in kinds), "n_ctx", "rotary")


def gpt2(cfg: Config) -> ModelSpec:
    """GPT-2: learned positions, a tied head."""
    _ignore_summary(cfg)
    hidden = hidden_size(cfg)
    positions = cfg.count(("n_positions", "max_position_embeddings"))
    attention = _all_heads(cfg, hidden, "n_head", positions="learned", qkv_bias=True, out_bias=True)
    ffn = mlp(cfg, "n_inner", "activation_function", 4 * hidden, gated=False, bias=True)
    block = Block(mixer=attention, ffn=ffn, norm=LAYER)
    embedding = Embedding(tied=cfg.flag("tie_word_embeddings"), positions=positions)
    return model(cfg, [block] * cfg.layers(("n_layer", "num_hidden_layers")), norm=LAYER, embedding=embedding)


def gptj(cfg: Config) -> ModelSpec:
    """GPT-J, CodeGen: attention and mlp side by side after one norm; biases in the mlp and the head only."""
    _ignore_summary(cfg)
    hidden = hidden_size(cfg)
    ffn = mlp(cfg, "n_inner", "activation_function", 4 * hidden, gated=False, bias=True)
    block = Block(mixer=_all_heads(cfg, hidden, "n_head"), ffn=ffn, norm=LAYER, norms=1, parallel=True)
    embedding = Embedding(tied=cfg.flag("tie_word_embeddings"), head_bias=True)
    return model(cfg, [block] * cfg.layers(("n_layer", "num_hidden_layers")), norm=LAYER, embedding=embedding)


def gpt_neo(cfg: Config) -> ModelSpec:
    """GPT-Neo: learned positions; global and local layers in turn."""
    _ignore_summary(cfg)
    hidden, layers = hidden_size(cfg), cfg.layers(("num_layers", "num_hidden_layers"))
    positions = cfg.count("max_position_embeddings")
    attention = _all_heads(cfg, hidden, "num_heads", positions="learned", out_bias=True)
    inner = cfg.count("intermediate_size", 4 * hidden)
    ffn = Mlp(hidden=inner, gated=False, bias=True, activation=cfg.word("activation_function"))
    window = cfg.count("window_size")
    usual_kinds = _kinds_of_pairs(cfg, layers)
    layer_kinds = cfg.words("attention_layers", layers, ("global", "local")) or usual_kinds
    spans = [window if kind == "local" else 0 for kind in layer_kinds]
    blocks = [Block(mixer=replace(attention, window=span), ffn=ffn, norm=LAYER) for span in spans]
    embedding = Embedding(tied=cfg.flag("tie_word_embeddings"), positions=positions)
    return model(cfg, blocks, norm=LAYER, embedding=embedding)


def _kinds_of_pairs(cfg: Config, layers: int) -> list[str]:
    """`attention_types` spelled out: pairs of a list of kinds and how often it repeats."""
    cfg.ignore("attention_types")
    pairs = cfg.data.get("attention_types") or [[["global", "local"], layers // 2]]
    layer_kinds: list[str] = []
    for pair in pairs if isinstance(pairs, list) else ():
        is_pair = isinstance(pair, list) and len(pair) == 2 and isinstance(pair[0], list) and type(pair[1]) is int
        if is_pair and 0 <= pair[1] <= MOST_LAYERS and len(pair[0]) <= MOST_LAYERS:
            layer_kinds.extend(pair[0] * min(pair[1], layers))
    if len(layer_kinds) != layers or any(kind not in ("global", "local") for kind in layer_kinds):
        cfg.bad("attention_types", pairs, f"pairs that spell {layers} layers as global or local")
        return ["global"] * layers
    return layer_kinds


def gpt_neox(cfg: Config) -> ModelSpec:
    """GPT-NeoX, Pythia: two norms even when attention and mlp stand side by side."""
    hidden, bias = hidden_size(cfg), cfg.flag("attention_bias")
    attention = _all_heads(cfg, hidden, "num_attention_heads", qkv_bias=bias, out_bias=bias)
    ffn = mlp(cfg, gated=False, bias=True)
    block = Block(mixer=attention, ffn=ffn, norm=LAYER, parallel=cfg.flag("use_parallel_residual"))
    return model(cfg, [block] * cfg.layers(), norm=LAYER)


def opt(cfg: Config) -> ModelSpec:
    """OPT: learned positions with two spare rows; its 350M model norms after each part and has narrower token rows."""
    hidden, bias = hidden_size(cfg), cfg.flag("enable_bias")
    cfg.ignore("output_projection")
    affine = cfg.flag("layer_norm_elementwise_affine")
    norm = Norm(kind="layer", weight=affine, bias=affine)
    attention = _all_heads(cfg, hidden, "num_attention_heads", positions="learned", qkv_bias=bias, out_bias=bias)
    ffn = mlp(cfg, "ffn_dim", "activation_function", gated=False, bias=bias)
    width = cfg.count("word_embed_proj_dim", hidden)
    embedding = Embedding(
        tied=cfg.flag("tie_word_embeddings"),
        positions=cfg.count("max_position_embeddings") + 2,
        width=0 if width == hidden else width,
    )
    first, bare = cfg.flag("do_layer_norm_before"), cfg.flag("_remove_final_layer_norm")
    ends = first and not bare
    block = Block(mixer=attention, ffn=ffn, norm=norm)
    return model(cfg, [block] * cfg.layers(), norm=norm if ends else None, embedding=embedding)


def bloom(cfg: Config) -> ModelSpec:
    """BLOOM: alibi positions, a norm after the embedding, a tied head."""
    cfg.understand("bloom")
    hidden = hidden_size(cfg)
    attention = _all_heads(cfg, hidden, "n_head", positions="alibi", qkv_bias=True, out_bias=True)
    ffn = Mlp(hidden=4 * hidden, gated=False, bias=True, activation="gelu")
    embedding = Embedding(tied=cfg.flag("tie_word_embeddings"), norm=LAYER)
    layers = cfg.layers(("n_layer", "num_hidden_layers"))
    return model(cfg, [Block(mixer=attention, ffn=ffn, norm=LAYER)] * layers, norm=LAYER, embedding=embedding)


def mpt(cfg: Config) -> ModelSpec:
    """MPT: alibi positions and no biases, not even in the norms."""
    cfg.understand("mpt")
    inner = cfg.child("attn_config")
    if inner is not None:
        inner.only("attn_type", "multihead_attention")
        inner.only("alibi", True)
        for key in ("qk_ln", "prefix_lm", "attn_uses_sequence_id"):
            inner.only(key, False)
        inner.ignore("attn_impl")
    hidden, norm = hidden_size(cfg), Norm(kind="layer")
    ffn = Mlp(hidden=4 * hidden, gated=False, activation="gelu")
    block = Block(mixer=_all_heads(cfg, hidden, "n_heads", positions="alibi"), ffn=ffn, norm=norm)
    return model(cfg, [block] * cfg.layers(("n_layers", "num_hidden_layers")), norm=norm)


def falcon(cfg: Config) -> ModelSpec:
    """Falcon: one key-value head (7B) or a few (40B, 180B); attention and mlp side by side after one norm or two."""
    cfg.understand("falcon")
    hidden = hidden_size(cfg)
    count = cfg.count(("num_attention_heads", "n_head"))
    newer, bias = cfg.flag("new_decoder_architecture", False), cfg.flag("bias", False)
    single, together = cfg.flag("multi_query", False), cfg.flag("parallel_attn", False)
    several = cfg.count(("num_kv_heads", "n_head_kv"), count)
    attention = Attention(
        heads=count,
        kv_heads=several if newer else 1 if single else count,
        head_dim=divide(cfg, "num_attention_heads", hidden, count),
        positions="alibi" if cfg.flag("alibi", False) else "rope",
        qkv_bias=bias,
        out_bias=bias,
    )
    inner = cfg.count("ffn_hidden_size", 4 * hidden)
    ffn = Mlp(hidden=inner, gated=False, bias=bias, activation=cfg.word("activation", "gelu"))
    norms = cfg.count("num_ln_in_parallel_attn", 2 if newer else 1)
    block = Block(
        mixer=attention, ffn=ffn, norm=LAYER, norms=norms if newer or together else 2, parallel=newer or together
    )
    return model(cfg, [block] * cfg.layers(("num_hidden_layers", "n_layer")), norm=LAYER)


def gpt_bigcode(cfg: Config) -> ModelSpec:
    """StarCoder 1, SantaCoder: GPT-2 with one key-value head."""
    _ignore_summary(cfg)
    cfg.ignore("num_key_value_heads", "scale_attention_softmax_in_fp32", "pre_allocate_kv_cache", "inference_runner")
    spec = gpt2(cfg)
    if not cfg.flag("multi_query"):
        return spec
    mixers = [block.mixer for block in spec.blocks if isinstance(block.mixer, Attention)]
    single = [replace(mixer, kv_heads=1) for mixer in mixers]
    return replace(spec, blocks=tuple(replace(b, mixer=m) for b, m in zip(spec.blocks, single, strict=True)))


def openai_gpt(cfg: Config) -> ModelSpec:
    """GPT of 2018: norms after each part and none at the end."""
    _ignore_summary(cfg)
    hidden = hidden_size(cfg)
    attention = _all_heads(cfg, hidden, "n_head", positions="learned", qkv_bias=True, out_bias=True)
    ffn = Mlp(hidden=4 * hidden, gated=False, bias=True, activation=cfg.word("afn"))
    embedding = Embedding(tied=cfg.flag("tie_word_embeddings"), positions=cfg.count(("n_positions",)))
    layers = cfg.layers(("n_layer", "num_hidden_layers"))
    return model(cfg, [Block(mixer=attention, ffn=ffn, norm=LAYER)] * layers, norm=None, embedding=embedding)


def xglm(cfg: Config) -> ModelSpec:
    """XGLM: GPT-2's block with positions that are computed."""
    hidden = hidden_size(cfg)
    attention = _all_heads(cfg, hidden, "attention_heads", positions="none", qkv_bias=True, out_bias=True)
    ffn = mlp(cfg, "ffn_dim", "activation_function", gated=False, bias=True)
    block = Block(mixer=attention, ffn=ffn, norm=LAYER)
    return model(cfg, [block] * cfg.layers(("num_layers", "num_hidden_layers")), norm=LAYER)


def biogpt(cfg: Config) -> ModelSpec:
    """BioGPT: OPT's block, learned positions with two spare rows."""
    hidden = hidden_size(cfg)
    attention = _all_heads(cfg, hidden, "num_attention_heads", positions="learned", qkv_bias=True, out_bias=True)
    embedding = Embedding(tied=cfg.flag("tie_word_embeddings"), positions=cfg.count("max_position_embeddings") + 2)
    block = Block(mixer=attention, ffn=mlp(cfg, gated=False, bias=True), norm=LAYER)
    return model(cfg, [block] * cfg.layers(), norm=LAYER, embedding=embedding)


def gpt_neox_japanese(cfg: Config) -> ModelSpec:
    """GPT-NeoX for Japanese: no biases but that of the last layer's output projection."""
    hidden, layers = hidden_size(cfg), cfg.layers()
    attention = _all_heads(cfg, hidden, "num_attention_heads")
    inner = cfg.count("intermediate_multiple_size") * hidden
    ffn = Mlp(hidden=inner, gated=False, activation=cfg.word("hidden_act"))
    block = Block(mixer=attention, ffn=ffn, norm=LAYER)
    last = replace(block, mixer=replace(attention, out_bias=True))
    return model(cfg, [*[block] * (layers - 1), last], norm=LAYER)
