"""Turn configs of mixture-of-experts language models with softmax attention into ModelSpecs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ridgeline.models.hf.config import Config
from ridgeline.models.hf.parts import (
    FULL,
    LAYER,
    bias_traits,
    dense_first,
    exaone_windows,
    expert_layers,
    heads,
    hidden_size,
    kinds,
    mlp,
    model,
    predictor,
    rotary_layers,
    windows,
    without_rotary,
)
from ridgeline.models.spec import Block, Embedding, ModelSpec, Moe, Norm

EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")


def experts(cfg: Config, width: str = "moe_intermediate_size", **traits: Any) -> Moe:
    """Routed experts from their number, how many a token visits and their width."""
    topk = cfg.count(("num_experts_per_tok", "experts_per_token"))
    act = cfg.word("hidden_act")
    return Moe(experts=cfg.count(EXPERTS), topk=topk, hidden=cfg.count(width), activation=act, **traits)


def grouped_experts(cfg: Config, **traits: Any) -> Moe:
    """DeepSeek's experts: chosen inside the best groups, beside shared experts of the same width."""
    shared = cfg.size("n_shared_experts", 0)
    groups, best = cfg.count("n_group", 1), cfg.count("topk_group", 1)
    moe = experts(cfg, groups=groups, group_topk=best, **traits)
    return replace(moe, shared_hidden=shared * moe.hidden)


def mixtral(cfg: Config) -> ModelSpec:
    """Mixtral: every layer has experts; one window for all layers, if any."""
    attention = heads(cfg, hidden_size(cfg))
    moe = experts(cfg, "intermediate_size")
    spans = windows(cfg, cfg.layers())
    return model(cfg, [Block(mixer=replace(attention, window=window), ffn=moe) for window in spans])


def qwen2_moe(cfg: Config) -> ModelSpec:
    """Qwen 1.5 and 2 with experts: a gated shared expert; every other layer slides when sliding is on."""
    layers = cfg.layers()
    attention = heads(cfg, hidden_size(cfg), qkv_bias=cfg.flag("qkv_bias"))
    shared = cfg.size("shared_expert_intermediate_size")
    moe, dense = experts(cfg, shared_hidden=shared, shared_gate=True), mlp(cfg)
    uses_window, last = cfg.flag("use_sliding_window", False), cfg.size("max_window_layers", layers)
    spans = windows(cfg, layers, lambda index: uses_window and index % 2 == 0 and index < last)
    if not uses_window:
        spans = (0,) * layers
    chosen = zip(spans, expert_layers(cfg, layers), strict=True)
    return model(cfg, [Block(mixer=replace(attention, window=w), ffn=moe if e else dense) for w, e in chosen])


def qwen3_moe(cfg: Config) -> ModelSpec:
    """Qwen 3 with experts: head norms, no shared expert; one window for all layers when sliding is on.

    The coder models say in Qwen 2's words what Qwen 3 always is; anything else those words could say is refused.
    """
    cfg.only("qkv_bias", False)
    cfg.only("shared_expert_intermediate_size", 0)
    cfg.only("use_qk_norm", True)
    layers = cfg.layers()
    attention = heads(cfg, hidden_size(cfg), qk_norm="head", **bias_traits(cfg))
    moe, dense = experts(cfg), mlp(cfg)
    cfg.ignore("max_window_layers")
    window, uses_window = cfg.size("sliding_window", 0), cfg.flag("use_sliding_window", False)
    attention = replace(attention, window=window if uses_window else 0)
    return model(cfg, [Block(mixer=attention, ffn=moe if e else dense) for e in expert_layers(cfg, layers)])


def gpt_oss(cfg: Config) -> ModelSpec:
    """gpt-oss: learned sinks, biases in attention, router and experts; every other layer slides."""
    cfg.ignore("initial_context_length")
    attention = heads(cfg, hidden_size(cfg), sinks=True, **bias_traits(cfg))
    moe = experts(cfg, "intermediate_size", bias=True, router_bias=True)
    spans = windows(cfg, cfg.layers(), lambda index: index % 2 == 0)
    return model(cfg, [Block(mixer=replace(attention, window=window), ffn=moe) for window in spans])


def glm4_moe(cfg: Config) -> ModelSpec:
    """GLM 4.5 to 4.7: dense layers first, head norms and biases by switch, one layer of multi-token prediction."""
    has_qk_norm = "head" if cfg.flag("use_qk_norm", False) else "none"
    attention = heads(cfg, hidden_size(cfg), qk_norm=has_qk_norm, qkv_bias=cfg.flag("attention_bias"))
    moe, dense = grouped_experts(cfg), mlp(cfg)
    blocks = [Block(mixer=attention, ffn=moe if e else dense) for e in dense_first(cfg, cfg.layers())]
    depth = cfg.size(("num_nextn_predict_layers", "num_mtp_layers"), 0)
    return model(cfg, blocks, mtp=predictor(depth, Block(mixer=attention, ffn=moe)))


def minimax_m2(cfg: Config) -> ModelSpec:
    """MiniMax M2: norms over all query and key heads together; every layer full, every layer with experts."""
    layers = cfg.layers()
    cfg.only("use_qk_norm", True)
    cfg.only("qk_norm_type", "per_layer")
    cfg.only("attention_bias", False)
    cfg.only("shared_intermediate_size", 0)
    cfg.only("mtp_transformer_layers", 1)
    cfg.only("attn_type_list", [1] * layers)
    cfg.ignore("use_routing_bias", "shared_moe_mode", "layer_types", "sliding_window")
    for part in ("full_attention", "linear_attention", "mlp"):
        cfg.ignore(f"layernorm_{part}_alpha", f"layernorm_{part}_beta")
    attention = heads(cfg, hidden_size(cfg), qk_norm="full")
    block = Block(mixer=attention, ffn=experts(cfg, "intermediate_size"))
    modules = cfg.size("num_mtp_modules", 0)
    return model(cfg, [block] * layers, mtp=predictor(modules if cfg.flag("use_mtp", True) else 0, block))


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


def olmoe(cfg: Config) -> ModelSpec:
    """OLMoE, FlexOlmo: norms over all query and key heads together, experts on every layer."""
    attention = heads(cfg, hidden_size(cfg), qk_norm="full", **bias_traits(cfg))
    return model(cfg, [Block(mixer=attention, ffn=experts(cfg, "intermediate_size"))] * cfg.layers())


def granitemoe(cfg: Config) -> ModelSpec:
    """Granite 3 with experts, beside a shared one of its own width where one is given."""
    attention = heads(cfg, hidden_size(cfg), **bias_traits(cfg))
    moe = experts(cfg, "intermediate_size", shared_hidden=cfg.size("shared_intermediate_size", 0))
    return model(cfg, [Block(mixer=attention, ffn=moe)] * cfg.layers())


def granitemoe_swa(cfg: Config) -> ModelSpec:
    """Granite with experts, sinks and windows; each full layer is followed by three that slide."""
    cfg.ignore("layer_rope_theta")
    attention = heads(cfg, hidden_size(cfg), sinks=True, **bias_traits(cfg))
    moe = experts(cfg, "intermediate_size", shared_hidden=cfg.size("shared_intermediate_size", 0))
    spans = windows(cfg, cfg.layers(), lambda index: index % 4 != 0)
    return model(cfg, [Block(mixer=replace(attention, window=window), ffn=moe) for window in spans])


def phimoe(cfg: Config) -> ModelSpec:
    """Phi 3.5 with experts: layer norms, biases in attention and head by switch."""
    cfg.ignore("input_jitter_noise")
    cfg.only("lm_head_bias", False)
    attention = heads(cfg, hidden_size(cfg), **bias_traits(cfg))
    moe, spans = experts(cfg, "intermediate_size"), windows(cfg, cfg.layers())
    blocks = [Block(mixer=replace(attention, window=window), ffn=moe, norm=LAYER) for window in spans]
    return model(cfg, blocks, norm=LAYER)


def dots1(cfg: Config) -> ModelSpec:
    """dots.llm1: dense layers first, then grouped experts; a norm of each head; layers from one on may slide."""
    layers = cfg.layers()
    attention = heads(cfg, hidden_size(cfg), qk_norm="head", **bias_traits(cfg))
    moe, dense = grouped_experts(cfg), mlp(cfg)
    first = cfg.size("max_window_layers", layers)
    spans = windows(cfg, layers, lambda index: cfg.has("sliding_window") and index >= first)
    chosen = zip(spans, dense_first(cfg, layers), strict=True)
    return model(cfg, [Block(mixer=replace(attention, window=w), ffn=moe if e else dense) for w, e in chosen])


def solar_open(cfg: Config) -> ModelSpec:
    """Solar Open: grouped experts beside a shared one on every layer."""
    cfg.ignore("intermediate_size", "first_k_dense_replace", "use_qk_norm")
    attention = heads(cfg, hidden_size(cfg), qkv_bias=cfg.flag("attention_bias"))
    return model(cfg, [Block(mixer=attention, ffn=grouped_experts(cfg))] * cfg.layers())


def hy_v3(cfg: Config) -> ModelSpec:
    """Hunyuan 3: a dense layer first, then experts beside shared ones; a norm of each head."""
    cfg.ignore(
        "router_scaling_factor", "enable_moe_fp32_combine", "enable_attention_fp32_softmax", "enable_lm_head_fp32"
    )
    attention = heads(cfg, hidden_size(cfg), qk_norm="head", **bias_traits(cfg))
    moe = _with_shared(cfg, experts(cfg))
    dense = mlp(cfg, bias=cfg.flag("mlp_bias", False))
    routed_block = Block(mixer=attention, ffn=moe, extra=_shared_biases(cfg, moe) if dense.bias else 0)
    plain = Block(mixer=attention, ffn=dense)
    return model(cfg, [routed_block if e else plain for e in dense_first(cfg, cfg.layers(), 1)])


def _shared_biases(cfg: Config, moe: Moe) -> int:
    """Biases of the shared experts' three matrices, in models whose routed experts have none."""
    return 2 * moe.shared_hidden + hidden_size(cfg) if moe.shared_hidden else 0


def _with_shared(cfg: Config, moe: Moe, key: str = "num_shared_experts") -> Moe:
    """The same beside shared experts of its own width."""
    return replace(moe, shared_hidden=cfg.size(key, 0) * moe.hidden)


def exaone_moe(cfg: Config) -> ModelSpec:
    """EXAONE with experts: EXAONE 4's windows, grouped experts beside shared ones after the first layers."""
    layers = cfg.layers()
    attention, dense = heads(cfg, hidden_size(cfg), qk_norm="head"), mlp(cfg)
    groups, best = cfg.count("n_group", 1), cfg.count("topk_group", 1)
    moe = _with_shared(cfg, experts(cfg, groups=groups, group_topk=best))
    spans = exaone_windows(cfg, layers)
    chosen = zip(spans, dense_first(cfg, layers), strict=True)
    return model(cfg, [Block(mixer=without_rotary(attention, w, spans), ffn=moe if e else dense) for w, e in chosen])


def afmoe(cfg: Config) -> ModelSpec:
    """Arcee Trinity: gated attention, which rotates where it slides; norms before and after each part."""
    cfg.ignore("mup_enabled", "route_scale", "route_norm", "score_func", "load_balance_coeff")
    layers, interval = cfg.layers(), cfg.count("global_attn_every_n_layers")
    attention = heads(cfg, hidden_size(cfg), qk_norm="head", gate=True, qkv_bias=cfg.flag("attention_bias"))
    moe, dense, first = _with_shared(cfg, experts(cfg)), mlp(cfg), cfg.size("num_dense_layers")
    spans = windows(cfg, layers, lambda index: (index + 1) % interval != 0)
    mixers = [replace(attention, window=w, positions="rope" if w else "none") for w in spans]
    return model(cfg, [Block(mixer=m, ffn=moe if i >= first else dense, norms=4) for i, m in enumerate(mixers)])


def ernie4_5_moe(cfg: Config) -> ModelSpec:
    """Ernie 4.5 with experts on every n-th layer of a range, beside shared ones."""
    layers, bias = cfg.layers(), cfg.flag("use_bias")
    cfg.ignore("moe_norm_min")
    attention = heads(cfg, hidden_size(cfg), qkv_bias=bias, out_bias=bias)
    dense = mlp(cfg, bias=bias)
    moe = Moe(
        experts=cfg.count("moe_num_experts"), topk=cfg.count("moe_k"), hidden=cfg.count("moe_intermediate_size"),
        activation=dense.activation, bias=False,
    )  # fmt: skip
    moe = _with_shared(cfg, moe, "moe_num_shared_experts")
    first, last = cfg.size("moe_layer_start_index"), cfg.data.get("moe_layer_end_index", layers - 1)
    last = layers - 1 if last in (-1, None) else cfg.size("moe_layer_end_index")
    cfg.ignore("moe_layer_end_index")
    interval = cfg.count("moe_layer_interval")
    plain = Block(mixer=attention, ffn=dense)
    routed_block = Block(mixer=attention, ffn=moe, extra=_shared_biases(cfg, moe) if bias else 0)
    spots = [(index + 1) % interval == 0 and first <= index <= last for index in range(layers)]
    embedding = Embedding(tied=cfg.flag("tie_word_embeddings"), head_bias=bias)
    return model(cfg, [routed_block if e else plain for e in spots], embedding=embedding)


def mellum(cfg: Config) -> ModelSpec:
    """Mellum: Qwen 3's attention, windows and experts layer by layer as listed."""
    layers = cfg.layers()
    attention = heads(cfg, hidden_size(cfg), qk_norm="head", **bias_traits(cfg))
    moe, dense = experts(cfg), mlp(cfg)
    spans = windows(cfg, layers, lambda _: False)
    chosen = zip(spans, dense_first(cfg, layers), strict=True)
    return model(cfg, [Block(mixer=replace(attention, window=w), ffn=moe if e else dense) for w, e in chosen])


def kolibri(cfg: Config) -> ModelSpec:
    """Kolibri: norms before and after each part and of each head; four sliding layers, then a full one."""
    attention = heads(cfg, hidden_size(cfg), qk_norm="head")
    moe = experts(cfg, shared_hidden=cfg.size("shared_expert_intermediate_size", 0))
    spans = windows(cfg, cfg.layers(), lambda index: (index + 1) % 5 != 0)
    return model(cfg, [Block(mixer=replace(attention, window=window), ffn=moe, norms=4) for window in spans])


def flint(cfg: Config) -> ModelSpec:
    """Flint: sinks, a norm of each head, a shared expert; dense layers by list."""
    layers = cfg.layers()
    attention = heads(cfg, hidden_size(cfg), qk_norm="head", sinks=True, **bias_traits(cfg))
    moe, dense = experts(cfg, shared_hidden=cfg.size("shared_expert_intermediate_size", 0)), mlp(cfg)
    spans = windows(cfg, layers, lambda index: index > 0 and (index - 1) % 4 != 0)
    chosen = zip(spans, expert_layers(cfg, layers), strict=True)
    return model(cfg, [Block(mixer=replace(attention, window=w), ffn=moe if e else dense) for w, e in chosen])


def cohere2_moe(cfg: Config) -> ModelSpec:
    """Command A with experts: attention and experts side by side after one layer norm."""
    layers, norm = cfg.layers(), Norm(kind="layer")
    cfg.ignore("expert_selection_fn", "shared_expert_combination_strategy", "prefix_dense_sliding_window_pattern")
    attention = heads(cfg, hidden_size(cfg), **bias_traits(cfg))
    moe, dense = _with_shared(cfg, experts(cfg, "intermediate_size")), mlp(cfg)
    interval = cfg.count("sliding_window_pattern", 4)
    spans = windows(cfg, layers, lambda index: (index + 1) % interval != 0)
    blocks = [
        Block(mixer=without_rotary(attention, w, spans), ffn=moe if e else dense, norm=norm, norms=1, parallel=True)
        for w, e in zip(spans, dense_first(cfg, layers), strict=True)
    ]
    return model(cfg, blocks, norm=norm)


def hunyuan_moe(cfg: Config) -> ModelSpec:
    """Hunyuan 1 with experts: a norm of each head, shared experts beside the routed ones on every layer."""
    attention = heads(cfg, hidden_size(cfg), qk_norm="head", **bias_traits(cfg))
    moe = Moe(
        experts=cfg.count("num_experts"), topk=cfg.count("moe_topk"), hidden=cfg.count("intermediate_size"),
        activation=cfg.word("hidden_act"),
    )  # fmt: skip
    moe = replace(moe, shared_hidden=moe.hidden)
    return model(cfg, [Block(mixer=attention, ffn=moe)] * cfg.layers())


def mimo_v2_flash(cfg: Config) -> ModelSpec:
    """MiMo-V2-Flash: narrow values; sliding layers have sinks and twice the key-value heads, every sixth is full."""
    layers = cfg.layers()
    cfg.ignore("attention_value_scale", "sliding_window_size")
    far = heads(cfg, hidden_size(cfg), v_head_dim=cfg.count("v_head_dim"), qkv_bias=cfg.flag("attention_bias"))
    near = replace(far, kv_heads=2 * far.kv_heads, sinks=True)
    moe, dense = grouped_experts(cfg), mlp(cfg)
    spans = windows(cfg, layers, lambda index: index > 0 and (index + 1) % 6 != 0)
    mixers = [replace(near, window=window) if window else far for window in spans]
    chosen = zip(mixers, dense_first(cfg, layers, 1), strict=True)
    return model(cfg, [Block(mixer=mixer, ffn=moe if e else dense) for mixer, e in chosen])


def laguna(cfg: Config) -> ModelSpec:
    """Laguna: heads counted layer by layer, each weighed by a gate; a shared expert beside the routed ones."""
    hidden, layers = hidden_size(cfg), cfg.layers()
    cfg.ignore("moe_apply_router_weight_on_input", "moe_routed_scaling_factor", "moe_router_logit_softcapping")
    cfg.only("gating", True, "per-head")
    attention = heads(cfg, hidden, qk_norm="head", **bias_traits(cfg))
    counts = cfg.counts("num_attention_heads_per_layer") or (attention.heads,) * layers
    if len(counts) != layers:
        cfg.bad("num_attention_heads_per_layer", counts, f"a list of {layers} numbers, one for each layer")
        counts = (attention.heads,) * layers
    moe, dense = experts(cfg, shared_hidden=cfg.size("shared_expert_intermediate_size", 0)), mlp(cfg)
    spans = windows(cfg, layers, lambda _: False)
    blocks = []
    for number, window, is_routed in zip(counts, spans, dense_first(cfg, layers, 1), strict=True):
        mixer = replace(attention, heads=number, window=window)
        blocks.append(Block(mixer=mixer, ffn=moe if is_routed else dense, extra=number * hidden))
    return model(cfg, blocks)
