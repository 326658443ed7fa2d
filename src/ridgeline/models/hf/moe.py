"""Turn configs of mixture-of-experts language models with softmax attention into ModelSpecs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ridgeline.models.hf.config import Config
from ridgeline.models.hf.parts import (
    FULL,
    biased,
    dense_first,
    expert_layers,
    heads,
    hidden_size,
    kinds,
    mlp,
    model,
    predicted,
    windows,
)
from ridgeline.models.spec import Block, ModelSpec, Moe

EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")


def experts(cfg: Config, width: str = "moe_intermediate_size", **traits: Any) -> Moe:
    """Routed experts from their number, how many a token visits and their width."""
    topk = cfg.count(("num_experts_per_tok", "experts_per_token"))
    act = cfg.word("hidden_act")
    return Moe(experts=cfg.count(EXPERTS), topk=topk, hidden=cfg.count(width), activation=act, **traits)


def grouped(cfg: Config, **traits: Any) -> Moe:
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
    switched, last = cfg.flag("use_sliding_window", False), cfg.size("max_window_layers", layers)
    spans = windows(cfg, layers, lambda index: switched and index % 2 == 0 and index < last)
    if not switched:
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
    attention = heads(cfg, hidden_size(cfg), qk_norm="head", **biased(cfg))
    moe, dense = experts(cfg), mlp(cfg)
    cfg.ignore("max_window_layers")
    window, switched = cfg.size("sliding_window", 0), cfg.flag("use_sliding_window", False)
    attention = replace(attention, window=window if switched else 0)
    return model(cfg, [Block(mixer=attention, ffn=moe if e else dense) for e in expert_layers(cfg, layers)])


def gpt_oss(cfg: Config) -> ModelSpec:
    """gpt-oss: learned sinks, biases in attention, router and experts; every other layer slides."""
    cfg.ignore("initial_context_length")
    attention = heads(cfg, hidden_size(cfg), sinks=True, **biased(cfg))
    moe = experts(cfg, "intermediate_size", bias=True, router_bias=True)
    spans = windows(cfg, cfg.layers(), lambda index: index % 2 == 0)
    return model(cfg, [Block(mixer=replace(attention, window=window), ffn=moe) for window in spans])


def glm4_moe(cfg: Config) -> ModelSpec:
    """GLM 4.5 to 4.7: dense layers first, head norms and biases by switch, one layer of multi-token prediction."""
    normed = "head" if cfg.flag("use_qk_norm", False) else "none"
    attention = heads(cfg, hidden_size(cfg), qk_norm=normed, qkv_bias=cfg.flag("attention_bias"))
    moe, dense = grouped(cfg), mlp(cfg)
    blocks = [Block(mixer=attention, ffn=moe if e else dense) for e in dense_first(cfg, cfg.layers())]
    depth = cfg.size(("num_nextn_predict_layers", "num_mtp_layers"), 0)
    return model(cfg, blocks, mtp=predicted(depth, Block(mixer=attention, ffn=moe)))


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
    return model(cfg, [block] * layers, mtp=predicted(modules if cfg.flag("use_mtp", True) else 0, block))


def llama4(cfg: Config) -> ModelSpec:
    """Llama 4 text: chunked layers with rotary positions, full ones without; experts on every n-th layer.

    Its norm of queries and keys has no parameters and is not recorded.
    """
    cfg.ignore("use_qk_norm", "for_llm_compressor")
    hidden, layers = hidden_size(cfg), cfg.layers()
    chunk = cfg.size("attention_chunk_size", 0)
    far = heads(cfg, hidden, **biased(cfg))
    near = replace(far, window=chunk, chunked=chunk > 0)
    moe = experts(cfg, "intermediate_size")
    moe = replace(moe, shared_hidden=moe.hidden)
    dense = mlp(cfg, "intermediate_size_mlp")
    spots = cfg.counts("moe_layers")
    step = cfg.count("interleave_moe_layer_step")
    routed = set(spots) if cfg.has("moe_layers") else set(range(step - 1, layers, step))
    rotary = _rotary_layers(cfg, layers)
    listed = kinds(cfg, layers, lambda index: rotary[index], other="chunked_attention")
    blocks = []
    for index, (kind, turned) in enumerate(zip(listed, rotary, strict=True)):
        mixer = replace(far if kind == FULL else near, positions="rope" if turned else "none")
        blocks.append(Block(mixer=mixer, ffn=moe if index in routed else dense))
    return model(cfg, blocks)


def _rotary_layers(cfg: Config, layers: int) -> tuple[bool, ...]:
    """Which layers rotate: `no_rope_layers` holds a 1 for each that does; otherwise all but every n-th."""
    every = cfg.count("no_rope_layer_interval")
    listed = cfg.counts("no_rope_layers")
    if listed and len(listed) != layers:
        cfg.bad("no_rope_layers", listed, f"a list of {layers} numbers, one for each layer")
        listed = ()
    return tuple(bool(item) for item in listed) or tuple((index + 1) % every != 0 for index in range(layers))
