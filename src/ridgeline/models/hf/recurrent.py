"""Turn configs of models whose recurrence is neither SSD nor the gated delta rule into ModelSpecs.

mamba, falcon_mamba, jamba     the selective scan of Mamba 1
falcon_h1                      Mamba 2 beside attention in every layer
lfm2, lfm2_moe                 short convolutions between two gates
minimax                        lightning attention, softmax attention among it
kimi_linear                    Kimi delta attention, latent attention among it
rwkv, xlstm                    weighed means of RWKV 4; matrix memories of xLSTM
"""

from __future__ import annotations

from dataclasses import replace
from math import ceil

from ridgeline.models.hf.config import Config
from ridgeline.models.hf.hybrid import LINEAR, bamba_mixer
from ridgeline.models.hf.latent import latent
from ridgeline.models.hf.parts import (
    FULL,
    LAYER,
    bias_traits,
    dense_first,
    divide,
    experts,
    heads,
    hidden_size,
    kinds,
    mlp,
    model,
)
from ridgeline.models.spec import (
    Block,
    Captured,
    Embedding,
    Ffn,
    LatentAttention,
    Mlp,
    ModelSpec,
    Moe,
    Norm,
    Product,
    Recurrence,
)

CONV = "conv"
RWKV_CHANNEL_STREAMS = 6.0  # of hidden elements a token: two mixes with the token before, a sigmoid, a product


def _selective(cfg: Config, inner: int, names: tuple[str, str, str, str], rank: str, norms: bool) -> Recurrence:
    """Mamba 1 by the names that a family has for state, convolution, its bias, biases and the rank of steps."""
    state, conv, conv_bias, bias = names
    rank_value = cfg.data.get(rank, "auto")
    cfg.ignore(rank)
    return Recurrence(
        form="selective",
        heads=inner,
        key_dim=cfg.count(state),
        rank=ceil(hidden_size(cfg) / 16) if rank_value == "auto" else cfg.count(rank),
        conv=cfg.count(conv),
        conv_bias=cfg.flag(conv_bias),
        bias=cfg.flag(bias),
        inner_norms=norms,
    )


def _ignore(cfg: Config) -> None:
    cfg.ignore("time_step_init_scheme", "time_step_scale", "use_associative_scan", "use_mambapy", "mixer_rms_eps")
    cfg.ignore(*(f"time_step_{part}" for part in ("min", "max", "floor")), "use_falcon_mambapy", "hidden_act")


def mamba(cfg: Config) -> ModelSpec:
    """Mamba, Falcon Mamba: nothing but selective scans."""
    _ignore(cfg)
    cfg.ignore("intermediate_size")
    names = ("state_size", "conv_kernel", "use_conv_bias", "use_bias")
    mixer = _selective(cfg, cfg.count("expand") * hidden_size(cfg), names, "time_step_rank", norms=False)
    return model(cfg, [Block(mixer=mixer, ffn=None, norms=1)] * cfg.layers())


def jamba(cfg: Config) -> ModelSpec:
    """Jamba: selective scans, attention without positions on every eighth layer, experts on every second."""
    _ignore(cfg)
    cfg.ignore("num_logits_to_keep", "hidden_act")
    hidden, layers = hidden_size(cfg), cfg.layers()
    names = ("mamba_d_state", "mamba_d_conv", "mamba_conv_bias", "mamba_proj_bias")
    scan = _selective(cfg, cfg.count("mamba_expand") * hidden, names, "mamba_dt_rank", norms=True)
    attention, dense = heads(cfg, hidden, positions="none"), mlp(cfg)
    routes = experts(cfg, "intermediate_size")
    moe = routes if routes.experts > 1 else None
    attention_layers = cfg.count("attn_layer_period"), cfg.size("attn_layer_offset")
    expert_layers = cfg.count("expert_layer_period"), cfg.size("expert_layer_offset")
    blocks = []
    for index in range(layers):
        ffn = moe if moe and index % expert_layers[0] == expert_layers[1] else dense
        blocks.append(Block(mixer=attention if index % attention_layers[0] == attention_layers[1] else scan, ffn=ffn))
    return model(cfg, blocks)


def falcon_h1(cfg: Config) -> ModelSpec:
    """Falcon H1: attention and Mamba 2 read the same input in every layer, then a gated mlp."""
    factors = ("attention_in", "attention_out", "key", "lm_head", "ssm_in", "ssm_out", "embedding")
    cfg.ignore(*(f"{part}_multiplier" for part in factors), "mlp_multipliers", "ssm_multipliers", "time_step_limit")
    cfg.ignore("mamba_norm_before_gate", "mamba_use_mlp", "attn_layer_indices", "mamba_expand", "time_step_rank")
    hidden = hidden_size(cfg)
    inner = cfg.count("mamba_d_ssm", cfg.count("mamba_expand", 2) * hidden)
    scan = bamba_mixer(cfg, inner, gated_norm=cfg.flag("mamba_rms_norm"))
    into, out = scan.proj_bias, cfg.flag("projectors_bias")
    wide = 2 * scan.inner + 2 * scan.groups * scan.state + scan.heads
    extra = (wide * into + hidden * out) * (into != out)  # a bias of one side alone
    attention, ffn = heads(cfg, hidden, **bias_traits(cfg)), mlp(cfg, bias=cfg.flag("mlp_bias"))
    state_mixer = replace(scan, proj_bias=into and out)
    return model(cfg, [Block(mixer=attention, beside=state_mixer, ffn=ffn, extra=extra)] * cfg.layers())


def _short(cfg: Config, hidden: int) -> Recurrence:
    bias = cfg.flag("conv_bias")
    return Recurrence(form="short-conv", heads=hidden, conv=cfg.count("conv_L_cache"), conv_bias=bias, bias=bias)


def lfm2(cfg: Config) -> ModelSpec:
    """LFM 2: short convolutions between two gates, attention on the layers that are listed."""
    cfg.understand("lfm2")
    hidden, layers = hidden_size(cfg), cfg.layers()
    wide = cfg.count(("intermediate_size", "block_ff_dim"))
    if cfg.flag("block_auto_adjust_ff_dim"):
        multiple = cfg.count("block_multiple_of")
        wide = int(cfg.number("block_ffn_dim_multiplier") * int(2 * wide / 3))
        wide = multiple * ceil(wide / multiple)
    else:
        cfg.ignore("block_multiple_of", "block_ffn_dim_multiplier")
    layer_kinds = cfg.words("layer_types", layers, (FULL, CONV))
    full = set(cfg.counts("full_attn_idxs")) if cfg.has("full_attn_idxs") else set(range(layers))
    kind_words = layer_kinds or tuple(FULL if index in full else CONV for index in range(layers))
    attention, short, ffn = heads(cfg, hidden, qk_norm="head"), _short(cfg, hidden), Mlp(hidden=max(1, wide))
    return model(cfg, [Block(mixer=attention if kind == FULL else short, ffn=ffn) for kind in kind_words])


def lfm2_moe(cfg: Config) -> ModelSpec:
    """LFM 2 with experts behind the first dense layers."""
    cfg.ignore("use_expert_bias")
    hidden, layers, dense = hidden_size(cfg), cfg.layers(), cfg.size("num_dense_layers")
    kind_words = cfg.words("layer_types", layers, (FULL, CONV))
    if kind_words is None:
        cfg.bad("layer_types", None, f"a list of {layers} words, full_attention or conv")
        kind_words = (FULL,) * layers
    attention, short = heads(cfg, hidden, qk_norm="head"), _short(cfg, hidden)
    plain = Mlp(hidden=cfg.count("intermediate_size"))
    moe = Moe(
        experts=cfg.count("num_experts"), topk=cfg.count("num_experts_per_tok"),
        hidden=cfg.count("moe_intermediate_size"),
    )  # fmt: skip
    ffns: list[Ffn] = [plain if index < dense else moe for index in range(layers)]
    chosen = zip(kind_words, ffns, strict=True)
    return model(cfg, [Block(mixer=attention if kind == FULL else short, ffn=ffn) for kind, ffn in chosen])


def minimax(cfg: Config) -> ModelSpec:
    """MiniMax-Text-01, M1: lightning attention, softmax attention where a list says so, experts on every layer."""
    for part in ("full_attn", "linear_attn", "mlp"):
        cfg.ignore(f"{part}_alpha_factor", f"{part}_beta_factor")
    for part in ("full_attention", "linear_attention", "mlp"):
        cfg.ignore(f"layernorm_{part}_alpha", f"layernorm_{part}_beta")
    cfg.understand("minimax")
    hidden, layers = hidden_size(cfg), cfg.layers()
    attention, moe = heads(cfg, hidden), experts(cfg, "intermediate_size")
    size = attention.head_dim
    lightning = Recurrence(
        form="lightning", heads=attention.heads, key_dim=size, value_dim=size, chunk=cfg.count("block_size", 256)
    )
    attention_types = cfg.counts("attn_type_list")
    if attention_types and len(attention_types) != layers:
        cfg.bad(
            "attn_type_list", attention_types, f"a list of {layers} numbers: 1 for softmax attention, 0 for lightning"
        )
        attention_types = ()
    usual = [bool(item) for item in attention_types] or [index % 2 == 0 for index in range(layers)]
    layer_kinds = kinds(cfg, layers, lambda index: not usual[index], other=LINEAR)
    window = cfg.size("sliding_window", 0)
    full_attention = replace(attention, window=window)
    return model(cfg, [Block(mixer=full_attention if kind == FULL else lightning, ffn=moe) for kind in layer_kinds])


def kimi_linear(cfg: Config) -> ModelSpec:
    """Kimi Linear: three layers of Kimi delta attention before each of latent attention, which has no positions;
    grouped experts beside a shared one behind the first layers."""
    cfg.understand("kimi_linear")
    layers = cfg.layers()
    inner = cfg.child("linear_attn_config")
    linear_config = inner or cfg
    names = ("num_heads", "head_dim", "short_conv_kernel_size")
    if inner is None:
        names = ("linear_num_heads", "linear_head_dim", "linear_conv_kernel_dim")
    size = linear_config.count(names[1], 128)
    delta = Recurrence(
        form="kda",
        heads=linear_config.count(names[0], 32),
        key_dim=size,
        value_dim=size,
        rank=size,
        conv=linear_config.count(names[2], 4),
    )
    full = {index for index in range(layers) if index and index % 4 == 0}
    if inner is not None:
        spots = inner.counts("full_attn_layers")
        inner.ignore("kda_layers")
        full = {place - 1 for place in spots} if spots else full
    layer_kinds = kinds(cfg, layers, lambda index: index not in full, other=LINEAR)
    attention, moe, dense = latent(cfg), _kimi_experts(cfg), mlp(cfg)
    mixers: list[LatentAttention | Recurrence] = [attention if kind == FULL else delta for kind in layer_kinds]
    chosen = zip(mixers, dense_first(cfg, layers, 1), strict=True)
    return model(cfg, [Block(mixer=mixer, ffn=moe if is_routed else dense) for mixer, is_routed in chosen])


def _kimi_experts(cfg: Config) -> Moe:
    number = ("num_local_experts", "num_experts", "n_routed_experts")
    moe = experts(cfg, number=number, topk=("num_experts_per_tok", "num_experts_per_token"))
    groups, best = cfg.count(("n_group", "num_expert_group"), 1), cfg.count("topk_group", 1)
    shared = cfg.size(("n_shared_experts", "num_shared_experts"), 0) * moe.hidden
    return replace(moe, groups=groups, group_topk=best, shared_hidden=shared)


def rwkv(cfg: Config) -> ModelSpec:
    """RWKV 4: weighed means of what came before, then a plain mlp whose output a receptance of its own gates."""
    cfg.ignore("rescale_every")
    hidden = hidden_size(cfg)
    mixer = Recurrence(form="wkv", heads=cfg.count("attention_hidden_size", hidden))
    ffn = Mlp(hidden=cfg.count("intermediate_size", 4 * hidden), gated=False, activation="relu2")
    gate = Captured(
        products=(Product(label="receptance", inputs=hidden, outputs=hidden),),
        streams=RWKV_CHANNEL_STREAMS * hidden,
        kernels=5.0,
        params=hidden * hidden + 2 * hidden,
        saved=4.0 * hidden,
    )
    block = Block(mixer=mixer, ffn=ffn, norm=LAYER, captured=gate)
    layers = cfg.layers()
    context = cfg.size("context_length", 0)
    return replace(model(cfg, [replace(block, norms=3), *[block] * (layers - 1)], norm=LAYER), context=context)


def xlstm(cfg: Config) -> ModelSpec:
    """xLSTM 7B: matrix memories before a gated mlp, norms before each, all by one switch for biases."""
    cfg.understand("xlstm")
    hidden = cfg.count(("hidden_size", "embedding_dim"))
    count, bias = cfg.count("num_heads"), cfg.flag("use_bias")
    keys, values = (int(hidden * cfg.number(f"{part}_dim_factor")) for part in ("qk", "v"))
    mixer = Recurrence(
        form="mlstm",
        heads=count,
        key_dim=divide(cfg, "num_heads", keys, count),
        value_dim=divide(cfg, "num_heads", values, count),
        bias=bias,
        chunk=cfg.count("chunk_size"),
    )
    multiple = cfg.count("ffn_round_up_to_multiple_of")
    ffn = Mlp(
        hidden=int((hidden * cfg.number("ffn_proj_factor") + multiple - 1) // multiple * multiple) or 1, bias=bias
    )
    block = Block(mixer=mixer, ffn=ffn, norm=Norm(bias=bias))
    embedding = Embedding(tied=cfg.flag("tie_word_embeddings", False))
    layers = cfg.layers(("num_hidden_layers", "num_blocks"))
    spec = model(cfg, [block] * layers, embedding=embedding, hidden=hidden)
    return replace(spec, embedding=replace(embedding, softcap=bool(cfg.number("output_logit_soft_cap"))))
