"""Turn configs of dense language models with rotary positions into ModelSpecs: one small reader per family."""

from __future__ import annotations

from dataclasses import replace

from ridgeline.models.hf.config import Config
from ridgeline.models.hf.parts import (
    LAYER,
    SLIDING,
    bias_traits,
    divide,
    exaone_windows,
    heads,
    hidden_size,
    kinds,
    mlp,
    model,
    qwen_windows,
    rotary_layers,
    windows,
    without_rotary,
)
from ridgeline.models.spec import Attention, Block, Embedding, Mlp, ModelSpec, Norm


def llama(cfg: Config) -> ModelSpec:
    """Llama 1 to 3, Granite: pre-norm, gated, biases by switch."""
    attention = heads(cfg, hidden_size(cfg), **bias_traits(cfg))
    block = Block(mixer=attention, ffn=mlp(cfg, bias=cfg.flag("mlp_bias")))
    return model(cfg, [block] * cfg.layers())


def mistral(cfg: Config) -> ModelSpec:
    """Mistral, Ministral 3: Llama's block without biases, one window for all layers unless they are listed."""
    layers = cfg.layers()
    attention, ffn = heads(cfg, hidden_size(cfg)), mlp(cfg)
    spans = windows(cfg, layers)
    return model(cfg, [Block(mixer=replace(attention, window=window), ffn=ffn) for window in spans])


def phi3(cfg: Config) -> ModelSpec:
    """Phi 3 and 4: Mistral's layers; the switches of its relatives must be off."""
    for key in ("attention_bias", "mlp_bias", "lm_head_bias"):
        cfg.only(key, False)
    cfg.only("full_attn_mod", 1)
    cfg.ignore("interpolate_factor")
    return mistral(cfg)


def qwen2(cfg: Config) -> ModelSpec:
    """Qwen 2 and 2.5: biases on queries, keys and values only."""
    attention, ffn = heads(cfg, hidden_size(cfg), qkv_bias=True), mlp(cfg)
    spans = qwen_windows(cfg, cfg.layers())
    return model(cfg, [Block(mixer=replace(attention, window=window), ffn=ffn) for window in spans])


def qwen3(cfg: Config) -> ModelSpec:
    """Qwen 3: a norm of each query and key head."""
    attention, ffn = heads(cfg, hidden_size(cfg), qk_norm="head", **bias_traits(cfg)), mlp(cfg)
    spans = qwen_windows(cfg, cfg.layers())
    return model(cfg, [Block(mixer=replace(attention, window=window), ffn=ffn) for window in spans])


def gemma(cfg: Config) -> ModelSpec:
    """Gemma 1: heads wider than hidden / heads. Its files name the activation twice; both mean the tanh gelu."""
    cfg.ignore("hidden_activation")
    block = Block(mixer=heads(cfg, hidden_size(cfg), causal=_causal(cfg), **bias_traits(cfg)), ffn=mlp(cfg))
    return model(cfg, [block] * cfg.layers())


def gemma2(cfg: Config) -> ModelSpec:
    """Gemma 2: norms before and after each part, every other layer slides."""
    return _gemma(cfg, every=2)


def gemma3(cfg: Config) -> ModelSpec:
    """Gemma 3 text: Gemma 2 with head norms; five sliding layers, then a full one."""
    return _gemma(cfg, every=cfg.count(("sliding_window_pattern", "_sliding_window_pattern"), 6), qk_norm="head")


def _gemma(cfg: Config, every: int, qk_norm: str = "none") -> ModelSpec:
    cfg.ignore("hidden_act")
    attention = heads(cfg, hidden_size(cfg), qk_norm=qk_norm, causal=_causal(cfg), **bias_traits(cfg))
    ffn = mlp(cfg, act="hidden_activation")
    spans = windows(cfg, cfg.layers(), lambda index: (index + 1) % every != 0)
    return model(cfg, [Block(mixer=replace(attention, window=window), ffn=ffn, norms=4) for window in spans])


def _causal(cfg: Config) -> bool:
    """Whether layers see what comes before alone; EmbeddingGemma's see both ways."""
    return not cfg.flag("use_bidirectional_attention", False)


def phi(cfg: Config) -> ModelSpec:
    """Phi 1 to 2: attention and mlp side by side after one layer norm, biases everywhere, the head included."""
    hidden = hidden_size(cfg)
    has_qk_norm = cfg.flag("qk_layernorm")
    attention = heads(cfg, hidden, qkv_bias=True, out_bias=True, qk_norm="head" if has_qk_norm else "none")
    extra = 2 * attention.head_dim if has_qk_norm else 0  # the biases of its two head norms
    ffn = mlp(cfg, gated=False, bias=True)
    block = Block(mixer=attention, ffn=ffn, norm=LAYER, norms=1, parallel=True, extra=extra)
    embedding = Embedding(tied=cfg.flag("tie_word_embeddings"), head_bias=True)
    return model(cfg, [block] * cfg.layers(), norm=LAYER, embedding=embedding)


def starcoder2(cfg: Config) -> ModelSpec:
    """StarCoder 2: layer norms, a plain mlp and biases by one switch."""
    cfg.only("mlp_type", "default")
    cfg.only("norm_type", "layer_norm")
    cfg.ignore("activation_function", "scale_attention_softmax_in_fp32")
    layers, bias = cfg.layers(), cfg.flag("use_bias")
    attention = heads(cfg, hidden_size(cfg), qkv_bias=bias, out_bias=bias)
    ffn = mlp(cfg, gated=False, bias=bias)
    spans = windows(cfg, layers)
    blocks = [Block(mixer=replace(attention, window=window), ffn=ffn, norm=LAYER) for window in spans]
    return model(cfg, blocks, norm=LAYER)


def cohere(cfg: Config) -> ModelSpec:
    """Command R: attention and mlp side by side after one layer norm without bias."""
    norm = Norm(kind="layer")
    full = "full" if cfg.flag("use_qk_norm", False) else "none"
    attention = heads(cfg, hidden_size(cfg), qk_norm=full, **bias_traits(cfg))
    block = Block(mixer=attention, ffn=mlp(cfg), norm=norm, norms=1, parallel=True)
    return model(cfg, [block] * cfg.layers(), norm=norm)


def stablelm(cfg: Config) -> ModelSpec:
    """StableLM: layer norms around gated mlps; side by side after one norm when its switch says so."""
    together = cfg.flag("use_parallel_residual")
    full = "full" if cfg.flag("qk_layernorm") else "none"
    attention = heads(cfg, hidden_size(cfg), qkv_bias=cfg.flag("use_qkv_bias"), qk_norm=full)
    block = Block(mixer=attention, ffn=mlp(cfg), norm=LAYER, norms=1 if together else 2, parallel=together)
    return model(cfg, [block] * cfg.layers(), norm=LAYER)


def olmo2(cfg: Config) -> ModelSpec:
    """OLMo 2: norms after each part and over all query and key heads together."""
    attention = heads(cfg, hidden_size(cfg), qk_norm="full", **bias_traits(cfg))
    return model(cfg, [Block(mixer=attention, ffn=mlp(cfg))] * cfg.layers())


def nemotron(cfg: Config) -> ModelSpec:
    """Nemotron 4, Minitron: layer norms and a plain mlp with squared relu."""
    attention = heads(cfg, hidden_size(cfg), **bias_traits(cfg))
    ffn = mlp(cfg, gated=False, bias=cfg.flag("mlp_bias"))
    return model(cfg, [Block(mixer=attention, ffn=ffn, norm=LAYER)] * cfg.layers(), norm=LAYER)


def glm4(cfg: Config) -> ModelSpec:
    """GLM 4: norms before and after each part, biases on queries, keys and values."""
    attention = heads(cfg, hidden_size(cfg), qkv_bias=cfg.flag("attention_bias", True))
    return model(cfg, [Block(mixer=attention, ffn=mlp(cfg), norms=4)] * cfg.layers())


def glm(cfg: Config) -> ModelSpec:
    """GLM 4 of 2024: Llama's block, biases on queries, keys and values by switch."""
    attention = heads(cfg, hidden_size(cfg), qkv_bias=cfg.flag("attention_bias"))
    return model(cfg, [Block(mixer=attention, ffn=mlp(cfg))] * cfg.layers())


def helium(cfg: Config) -> ModelSpec:
    """Helium: GLM's attention, biases in the mlp by switch."""
    hidden = hidden_size(cfg)
    attention = heads(cfg, hidden, qkv_bias=cfg.flag("attention_bias"))
    if attention.heads * attention.head_dim != hidden:
        cfg.clash("head_dim", attention.head_dim, f"hidden_size / num_attention_heads, {hidden / attention.heads:g}")
    return model(cfg, [Block(mixer=attention, ffn=mlp(cfg, bias=cfg.flag("mlp_bias")))] * cfg.layers())


def seed_oss(cfg: Config) -> ModelSpec:
    """Seed-OSS: Llama's block with a switch of its own for the bias of the output projection."""
    biases = {"qkv_bias": cfg.flag("attention_bias"), "out_bias": cfg.flag("attention_out_bias")}
    ffn = mlp(cfg, bias=cfg.flag("mlp_bias"))
    return model(cfg, [Block(mixer=heads(cfg, hidden_size(cfg), **biases), ffn=ffn)] * cfg.layers())


def ernie4_5(cfg: Config) -> ModelSpec:
    """Ernie 4.5, dense: one switch for every bias."""
    bias = cfg.flag("use_bias")
    attention = heads(cfg, hidden_size(cfg), qkv_bias=bias, out_bias=bias)
    return model(cfg, [Block(mixer=attention, ffn=mlp(cfg, bias=bias))] * cfg.layers())


def hyperclovax(cfg: Config) -> ModelSpec:
    """HyperCLOVA X: Llama's block with a norm after each part too, by switch."""
    attention = heads(cfg, hidden_size(cfg), **bias_traits(cfg))
    norms = 4 if cfg.flag("use_post_norm") else 2
    return model(cfg, [Block(mixer=attention, ffn=mlp(cfg, bias=cfg.flag("mlp_bias")), norms=norms)] * cfg.layers())


def arcee(cfg: Config) -> ModelSpec:
    """Arcee: Llama's attention, a plain mlp with squared relu."""
    ffn = mlp(cfg, gated=False, bias=cfg.flag("mlp_bias"))
    return model(cfg, [Block(mixer=heads(cfg, hidden_size(cfg), **bias_traits(cfg)), ffn=ffn)] * cfg.layers())


def apertus(cfg: Config) -> ModelSpec:
    """Apertus: head norms and a plain mlp, whose xIELU activation has two numbers to learn."""
    attention = heads(cfg, hidden_size(cfg), qk_norm="head", **bias_traits(cfg))
    ffn = mlp(cfg, gated=False)
    return model(cfg, [Block(mixer=attention, ffn=ffn, extra=2 if ffn.activation == "xielu" else 0)] * cfg.layers())


def bitnet(cfg: Config) -> ModelSpec:
    """BitNet b1.58: Llama's block with a norm before each of the two output projections."""
    attention, ffn = heads(cfg, hidden_size(cfg), **bias_traits(cfg)), mlp(cfg)
    extra = hidden_size(cfg) + ffn.hidden
    return model(cfg, [Block(mixer=attention, ffn=ffn, extra=extra)] * cfg.layers())


def jais2(cfg: Config) -> ModelSpec:
    """Jais 2: layer norms, a plain mlp, biases by two switches."""
    attention = heads(cfg, hidden_size(cfg), **bias_traits(cfg))
    ffn = mlp(cfg, gated=False, bias=cfg.flag("mlp_bias"))
    return model(cfg, [Block(mixer=attention, ffn=ffn, norm=LAYER)] * cfg.layers(), norm=LAYER)


def nanochat(cfg: Config) -> ModelSpec:
    """nanochat: norms without parameters, of queries and keys too; a plain mlp with squared relu."""
    bare = Norm(weight=False)
    attention = heads(cfg, hidden_size(cfg), **bias_traits(cfg))
    return model(cfg, [Block(mixer=attention, ffn=mlp(cfg, gated=False), norm=bare)] * cfg.layers(), norm=bare)


def olmo(cfg: Config) -> ModelSpec:
    """OLMo 1: Llama's block with layer norms that have no parameters."""
    bare = Norm(kind="layer", weight=False)
    attention = heads(cfg, hidden_size(cfg), **bias_traits(cfg))
    return model(cfg, [Block(mixer=attention, ffn=mlp(cfg), norm=bare)] * cfg.layers(), norm=bare)


def olmo3(cfg: Config) -> ModelSpec:
    """OLMo 3: OLMo 2 with three sliding layers before each full one."""
    attention, ffn = heads(cfg, hidden_size(cfg), qk_norm="full", **bias_traits(cfg)), mlp(cfg)
    return _slid(cfg, attention, ffn, every=4)


def cwm(cfg: Config) -> ModelSpec:
    """Code World Model: Llama's block; each full layer is followed by three that slide."""
    ffn = mlp(cfg, bias=cfg.flag("mlp_bias", False))
    return _slid(cfg, heads(cfg, hidden_size(cfg)), ffn, every=4, first=0)


def granite_swa(cfg: Config) -> ModelSpec:
    """Granite with sliding windows: learned sinks; each full layer is followed by three that slide."""
    cfg.ignore("layer_rope_theta")
    attention = heads(cfg, hidden_size(cfg), sinks=True, **bias_traits(cfg))
    return _slid(cfg, attention, mlp(cfg, bias=cfg.flag("mlp_bias")), every=4, first=0)


def _slid(cfg: Config, attention: Attention, ffn: Mlp, every: int, first: int | None = None) -> ModelSpec:
    """Layers that slide unless they are the first or, without one said, the last of `every`."""
    full = every - 1 if first is None else first
    spans = windows(cfg, cfg.layers(), lambda index: index % every != full)
    return model(cfg, [Block(mixer=replace(attention, window=window), ffn=ffn) for window in spans])


def exaone4(cfg: Config) -> ModelSpec:
    """EXAONE 4: norms after each part and of each head; where layers slide, the full ones do not rotate."""
    attention, ffn = heads(cfg, hidden_size(cfg), qk_norm="head"), mlp(cfg)
    spans = exaone_windows(cfg, cfg.layers())
    return model(cfg, [Block(mixer=without_rotary(attention, window, spans), ffn=ffn) for window in spans])


def cohere2(cfg: Config) -> ModelSpec:
    """Command R7B, Command A: Command R with three sliding layers before each full one, which does not rotate."""
    norm = Norm(kind="layer")
    attention, ffn = heads(cfg, hidden_size(cfg), **bias_traits(cfg)), mlp(cfg)
    interval = cfg.count("sliding_window_pattern", 4)
    spans = windows(cfg, cfg.layers(), lambda index: (index + 1) % interval != 0)
    mixers = [without_rotary(attention, window, spans) for window in spans]
    return model(cfg, [Block(mixer=m, ffn=ffn, norm=norm, norms=1, parallel=True) for m in mixers], norm=norm)


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


def vaultgemma(cfg: Config) -> ModelSpec:
    """VaultGemma: Gemma 2 with norms before each part only."""
    cfg.ignore("hidden_act")
    attention, ffn = heads(cfg, hidden_size(cfg), **bias_traits(cfg)), mlp(cfg, act="hidden_activation")
    spans = windows(cfg, cfg.layers(), lambda index: (index + 1) % 2 != 0)
    return model(cfg, [Block(mixer=replace(attention, window=window), ffn=ffn) for window in spans])


def persimmon(cfg: Config) -> ModelSpec:
    """Persimmon: layer norms, of each head too; biases everywhere but in the head."""
    hidden, has_qk_norm = hidden_size(cfg), cfg.flag("qk_layernorm")
    attention = heads(cfg, hidden, qkv_bias=True, out_bias=True, qk_norm="head" if has_qk_norm else "none")
    extra = 2 * attention.head_dim if has_qk_norm else 0  # the biases of its two head norms
    block = Block(mixer=attention, ffn=mlp(cfg, gated=False, bias=True), norm=LAYER, extra=extra)
    return model(cfg, [block] * cfg.layers(), norm=LAYER)


def hunyuan(cfg: Config) -> ModelSpec:
    """Hunyuan 1, dense: Llama's block with a norm of each head."""
    attention = heads(cfg, hidden_size(cfg), qk_norm="head", **bias_traits(cfg))
    return model(cfg, [Block(mixer=attention, ffn=mlp(cfg))] * cfg.layers())


def dream(cfg: Config) -> ModelSpec:
    """Dream, a diffusion language model: Qwen 2.5 whose tokens see each other both ways. By its published config."""
    cfg.ignore("mask_token_id")
    spec = qwen2(cfg)
    return replace(spec, blocks=tuple(replace(block, mixer=_seeing_both_ways(block)) for block in spec.blocks))


def _seeing_both_ways(block: Block) -> Attention | None:
    return replace(block.mixer, causal=False) if isinstance(block.mixer, Attention) else None


def llada(cfg: Config) -> ModelSpec:
    """LLaDA, a diffusion language model: Llama's block by OLMo's names, both ways. By its published config."""
    cfg.ignore("mask_token_id", "mlp_ratio", "init_fn", "init_cutoff_factor", "alibi_bias_max", "rope_full_precision")
    cfg.ignore("scale_logits", "flash_attention", "precision", "attention_layer_norm_with_affine", "block_group_size")
    for key in ("alibi", "attention_layer_norm", "bias_for_layer_norm", "include_bias", "input_emb_norm"):
        cfg.only(key, False)
    cfg.only("block_type", "llama")
    cfg.only("layer_norm_type", "rms")
    cfg.only("layer_norm_with_affine", True)
    cfg.only("rope", True)
    cfg.only("multi_query_attention", False)
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
