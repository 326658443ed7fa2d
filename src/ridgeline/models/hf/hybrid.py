"""Turn configs of models with recurrent layers, alone or among attention, into ModelSpecs.

mamba2, bamba, granitemoehybrid, nemotron_h, zamba2, falcon_h1     Mamba 2, in falcon_h1 beside attention
qwen3_next, qwen3_5            the gated delta rule, attention among it
mamba, falcon_mamba, jamba     the selective scan of Mamba 1
lfm2, lfm2_moe                 short convolutions between two gates
minimax                        lightning attention, softmax attention among it
kimi_linear                    Kimi delta attention, latent attention among it
rwkv, xlstm                    weighed means of RWKV 4; matrix memories of xLSTM

Zamba 2 has Mamba 2 on every layer and before some of them a transformer that they share. It reads the hidden state and
the token's row side by side, so that its products are twice as wide as the model; each use has low-rank adapters and an
output matrix of its own. What it does is recorded product by product; its parameters stand with the first layers that
use it, and tensor ranks do not split it.
"""

from __future__ import annotations

from dataclasses import replace
from math import ceil

from ridgeline.core.documents import JsonObject
from ridgeline.models.hf.config import MOST_LAYERS, Config, read_toml
from ridgeline.models.hf.latent import latent
from ridgeline.models.hf.parts import (
    FULL,
    LAYER,
    bias_traits,
    dense_first,
    divide,
    expert_layers,
    experts,
    heads,
    hidden_size,
    kinds,
    mlp,
    model,
    predictor,
)
from ridgeline.models.spec import (
    Attention,
    Block,
    Captured,
    Embedding,
    Ffn,
    GatedDeltaNet,
    LatentAttention,
    Mamba2,
    Mlp,
    ModelSpec,
    Moe,
    Norm,
    Product,
    Recurrence,
)

LINEAR = "linear_attention"
MAMBA_CHUNK = 256  # tokens of a chunk where a file says nothing: the default of mamba_ssm
LETTERS = {"M": LINEAR, "*": FULL, "E": "moe", "-": "mlp"}


def _delta(cfg: Config) -> GatedDeltaNet:
    cfg.only("output_gate_type", "silu", "swish")  # two names of the gate that this layer has
    return GatedDeltaNet(
        key_heads=cfg.count("linear_num_key_heads"),
        value_heads=cfg.count("linear_num_value_heads"),
        key_dim=cfg.count("linear_key_head_dim"),
        value_dim=cfg.count("linear_value_head_dim"),
        conv=cfg.count("linear_conv_kernel_dim"),
    )


def _gated_heads(cfg: Config) -> Attention:
    cfg.understand("gated_heads")
    return heads(cfg, hidden_size(cfg), qk_norm="head", gate=True, **bias_traits(cfg))


def _shared(cfg: Config) -> Moe:
    return experts(cfg, shared_hidden=cfg.size("shared_expert_intermediate_size"), shared_gate=True)


def _alternating(cfg: Config, ffns: list[Ffn]) -> ModelSpec:
    """Delta-rule layers with an attention layer after every few of them."""
    attention, delta = _gated_heads(cfg), _delta(cfg)
    interval = cfg.count("full_attention_interval", 4)
    layer_kinds = kinds(cfg, len(ffns), lambda index: (index + 1) % interval != 0, other=LINEAR)
    blocks = [Block(mixer=attention if k == FULL else delta, ffn=ffn) for k, ffn in zip(layer_kinds, ffns, strict=True)]
    cfg.only("mtp_use_dedicated_embeddings", False)
    depth = cfg.size("mtp_num_hidden_layers", 0)
    return model(cfg, blocks, mtp=predictor(depth, Block(mixer=attention, ffn=ffns[-1])))


def qwen3_next(cfg: Config) -> ModelSpec:
    """Qwen3-Next: three delta-rule layers, then gated attention; experts beside a gated shared one."""
    moe, dense = _shared(cfg), mlp(cfg)
    return _alternating(cfg, [moe if e else dense for e in expert_layers(cfg, cfg.layers())])


def qwen3_5(cfg: Config) -> ModelSpec:
    """Qwen 3.5 text, dense: Qwen3-Next's layers with a plain gated mlp, so no layer needs to be listed as one."""
    cfg.only("mlp_only_layers", [])
    return _alternating(cfg, [mlp(cfg)] * cfg.layers())


def qwen3_5_moe(cfg: Config) -> ModelSpec:
    """Qwen 3.5 text with experts on every layer."""
    cfg.understand("qwen3_5_moe")
    return _alternating(cfg, [_shared(cfg)] * cfg.layers())


def ignore_steps(cfg: Config) -> None:
    """How the recurrence is discretised and computed changes no shape."""
    cfg.ignore(*(f"time_step_{part}" for part in ("rank", "min", "max", "floor", "limit")))
    cfg.understand("ignore_steps")


def state_space(cfg: Config, heads: int, head_dim: int, family: str, gated_norm: bool = True) -> Mamba2:
    """Mamba 2 by the names that a family has for its sizes and switches."""
    names = {key: tuple(spellings) for key, spellings in read_toml("keys.toml")["state_space"][family].items()}
    traits: JsonObject = {size: cfg.count(names[size]) for size in ("state", "groups", "conv")}
    traits |= {switch: cfg.flag(names[switch]) for switch in ("conv_bias", "proj_bias")}
    chunk = cfg.count(names["chunk"], MAMBA_CHUNK)
    return Mamba2(heads=heads, head_dim=head_dim, **traits, chunk=chunk, gated_norm=gated_norm)


def mamba2(cfg: Config) -> ModelSpec:
    """Mamba 2: nothing but state-space layers."""
    ignore_steps(cfg)
    cfg.understand("mamba2")
    mixer = state_space(cfg, cfg.count("num_heads"), cfg.count("head_dim"), "mamba2")
    if cfg.count("expand") * hidden_size(cfg) != mixer.inner:
        cfg.clash("num_heads", mixer.heads, f"num_heads * head_dim = expand * hidden_size, not {mixer.inner}")
    return model(cfg, [Block(mixer=mixer, ffn=None, norms=1)] * cfg.layers())


def bamba_mixer(cfg: Config, inner: int, gated_norm: bool = True) -> Mamba2:
    """The state-space part of that width by Bamba's names."""
    ignore_steps(cfg)
    count = cfg.count("mamba_n_heads")
    size = cfg.count("mamba_d_head") if cfg.data.get("mamba_d_head", "auto") != "auto" else 0
    cfg.ignore("mamba_d_head")
    return state_space(cfg, count, size or divide(cfg, "mamba_n_heads", inner, count), "bamba", gated_norm)


def bamba(cfg: Config) -> ModelSpec:
    """Bamba: state-space layers with a gated mlp each, a few of them attention instead."""
    hidden, layers = hidden_size(cfg), cfg.layers()
    mixer = bamba_mixer(cfg, cfg.count("mamba_expand") * hidden)
    attention = heads(cfg, hidden, **bias_traits(cfg))
    ffn = mlp(cfg, bias=cfg.flag("mlp_bias"))
    spots = set(cfg.counts("attn_layer_indices"))
    layer_kinds = kinds(cfg, layers, lambda index: index not in spots, other=LINEAR)
    return model(cfg, [Block(mixer=attention if kind == FULL else mixer, ffn=ffn) for kind in layer_kinds])


def granitemoehybrid(cfg: Config) -> ModelSpec:
    """Granite 4: state-space layers, a few of them attention; experts beside a shared mlp, or that mlp alone."""
    hidden, layers = hidden_size(cfg), cfg.layers()
    mixer, shared = bamba_mixer(cfg, cfg.count("mamba_expand") * hidden), cfg.count("shared_intermediate_size")
    positions = "rope" if cfg.word("position_embedding_type", "rope") == "rope" else "none"
    attention = heads(cfg, hidden, positions=positions, **bias_traits(cfg))
    ffn: Ffn = Mlp(hidden=shared, activation=cfg.word("hidden_act"))
    if cfg.size("num_local_experts", 0):
        ffn = experts(cfg, "intermediate_size", shared_hidden=shared)
    else:
        cfg.ignore("num_experts_per_tok", "intermediate_size")
    layer_kinds = kinds(cfg, layers, lambda _: True, other=LINEAR)
    return model(cfg, [Block(mixer=attention if kind == FULL else mixer, ffn=ffn) for kind in layer_kinds])


def nemotron_h(cfg: Config) -> ModelSpec:
    """Nemotron-H, Nemotron 3: a layer is one part alone: state space, attention without positions, mlp or experts."""
    ignore_steps(cfg)
    cfg.understand("nemotron_h")
    layer_kinds = _layer_words(cfg, ("layers_block_type", "layer_types"), "hybrid_override_pattern")
    if cfg.has("num_hidden_layers") and cfg.layers() != len(layer_kinds):
        cfg.clash("num_hidden_layers", cfg.layers(), f"the number of layers spelled, {len(layer_kinds)}")
    parts = _nemotron_parts(cfg)
    blocks = [parts[kind] for kind in layer_kinds]
    depth = cfg.size("num_nextn_predict_layers", 0)
    ahead = _layer_words(cfg, ("mtp_layers_block_type",), "mtp_hybrid_override_pattern", usual=(FULL, "moe"))
    if depth and ahead != (FULL, "moe"):
        cfg.bad("mtp_layers_block_type", ahead, "attention, then experts", "other predictions are not described yet")
    return model(cfg, blocks, mtp=predictor(depth, Block(mixer=parts[FULL].mixer, ffn=parts["moe"].ffn)))


def _layer_words(cfg: Config, keys: tuple[str, ...], letters: str, usual: tuple[str, ...] = ()) -> tuple[str, ...]:
    """The kind of every layer, from a list of words or a string of letters."""
    layer_kinds = next((cfg.data[key] for key in keys if cfg.data.get(key) is not None), None)
    cfg.ignore(*keys, letters)
    if isinstance(layer_kinds, list) and 0 < len(layer_kinds) <= MOST_LAYERS:
        return cfg.words(keys, len(layer_kinds), tuple(LETTERS.values())) or (FULL,)
    text = cfg.data.get(letters)
    if layer_kinds is None and isinstance(text, str) and 0 < len(text) <= MOST_LAYERS and set(text) <= set(LETTERS):
        return tuple(LETTERS[letter] for letter in text)
    if layer_kinds is None and text is None and usual:
        return usual
    words = text if layer_kinds is None else layer_kinds
    cfg.bad(letters if layer_kinds is None else keys[0], words, f"one of {' '.join(LETTERS)} for each layer")
    return (FULL,)


def _nemotron_parts(cfg: Config) -> dict[str, Block]:
    """One block for each kind of layer."""
    mixer = state_space(cfg, cfg.count("mamba_num_heads"), cfg.count("mamba_head_dim"), "nemotron_h")
    attention = heads(cfg, hidden_size(cfg), positions="none", window=cfg.size("sliding_window", 0))
    dense = mlp(cfg, act="mlp_hidden_act", gated=False)
    return {
        LINEAR: Block(mixer=mixer, ffn=None, norms=1),
        FULL: Block(mixer=attention, ffn=None, norms=1),
        "mlp": Block(mixer=None, ffn=dense, norms=1),
        "moe": Block(mixer=None, ffn=_nemotron_moe(cfg, dense.activation), norms=1),
    }


def _nemotron_moe(cfg: Config, activation: str) -> Moe:
    cfg.only("n_shared_experts", 1)
    return Moe(
        experts=cfg.count(("n_routed_experts", "num_local_experts")),
        topk=cfg.count("num_experts_per_tok"),
        hidden=cfg.count("moe_intermediate_size"),
        shared_hidden=cfg.size("moe_shared_expert_intermediate_size"),
        gated=False,
        activation=activation,
        groups=cfg.count("n_group", 1),
        group_topk=cfg.count("topk_group", 1),
        latent=cfg.size("moe_latent_size", 0),
    )


HYBRID = "hybrid"


def zamba2(cfg: Config) -> ModelSpec:
    """Zamba 2: a transformer, or two in turn, shared by the layers that are called hybrid."""
    ignore_steps(cfg)
    cfg.understand("zamba2")
    hidden, layers = hidden_size(cfg), cfg.layers()
    count = cfg.count("n_mamba_heads")
    inner = int(cfg.number("mamba_expand") * hidden)
    scan = state_space(cfg, count, divide(cfg, "n_mamba_heads", inner, count), "zamba2")
    plain = Block(mixer=scan, ffn=None, norms=1)
    shared, first_use = _transformer(cfg, hidden)
    layer_kinds = cfg.words("layers_block_type", layers, (LINEAR, HYBRID)) or _usual(layers)
    blocks, used, several = [], 0, cfg.count("num_mem_blocks")
    for kind in layer_kinds:
        part = (
            replace(first_use, params=first_use.params + (shared if used < several else 0)) if kind == HYBRID else None
        )
        used += kind == HYBRID
        blocks.append(replace(plain, captured=part))
    return model(cfg, blocks)


def _transformer(cfg: Config, hidden: int) -> tuple[int, Captured]:
    """Parameters of one shared transformer, and what a layer that uses it does, with the parameters of its own.

        shared   2h*(H + 2*G)*d + H*d*h + 3*h*f + 3*h        own   h*r + 2*r*f + 3*(2h*r + r*2h) + h*h

    h = hidden, H, G = heads, key-value heads, d = 2h / H, f = width of its mlp, r = rank of adapters.
    """
    wide, heads = 2 * hidden, cfg.count("num_attention_heads")
    few, rank = cfg.count("num_key_value_heads", heads), cfg.count("adapter_rank")
    size, ffn = divide(cfg, "num_attention_heads", wide, heads), cfg.count("intermediate_size", 4 * hidden)
    bias = cfg.flag("add_bias_linear")
    has_adapter = cfg.flag("use_shared_attention_adapter")
    qkv = (heads + 2 * few) * size
    adapters = [
        Product(label="mlp adapter down", inputs=hidden, outputs=rank),
        Product(label="mlp adapter up", inputs=rank, outputs=2 * ffn),
    ]
    if has_adapter:
        adapters += [
            Product(label="attention adapters down", inputs=wide, outputs=3 * rank),
            Product(label="attention adapters up", inputs=rank, outputs=wide, rows=3.0),
        ]
    out = Product(label="shared out", inputs=hidden, outputs=hidden)
    products = (
        Product(label="shared qkv", inputs=wide, outputs=qkv),
        Product(label="shared attention out", inputs=heads * size, outputs=hidden),
        Product(label="shared up", inputs=hidden, outputs=2 * ffn),
        Product(label="shared down", inputs=ffn, outputs=hidden),
    )
    shared = sum(product.inputs * product.outputs for product in products) + wide + hidden + (2 * ffn + hidden) * bias
    use_params = hidden * hidden + rank * (hidden + 2 * ffn) + has_adapter * 6 * wide * rank
    attention = Attention(heads=heads, kv_heads=few, head_dim=size)
    return shared, Captured(
        products=(*products, *adapters, out),
        scores=(attention,),
        streams=float(6 * wide + 3 * ffn + qkv),
        kernels=14.0,
        params=use_params,
        saved=float(3 * wide + qkv + heads * size + 3 * ffn + 2 * hidden),
        cached=2 * few * size,
        mixes=True,
    )


def _usual(layers: int) -> tuple[str, ...]:
    """What transformers assumes: one in six layers from the seventh on, closer together at the end."""
    usual = [LINEAR, *[*[LINEAR] * 5, HYBRID] * 7, *[LINEAR] * 4, HYBRID, *[LINEAR] * 3, HYBRID, LINEAR, LINEAR]
    return tuple((usual + [LINEAR] * layers)[:layers])


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
