"""Turn configs of models whose recurrences no mixer of a ModelSpec describes into ModelSpecs, product by product.

    mamba, falcon_mamba, jamba     the selective scan of Mamba 1
    falcon_h1                      Mamba 2 beside attention in every layer
    lfm2                           short convolutions between two gates

Their recurrent part is a `Captured`: exact parameters and products, one scan, split over no tensor ranks.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from ridgeline.models.hf.config import Config
from ridgeline.models.hf.moe import experts
from ridgeline.models.hf.parts import FULL, biased, divide, heads, hidden_size, mlp, model
from ridgeline.models.params import mixer_params
from ridgeline.models.spec import Block, Captured, Mamba2, Mlp, ModelSpec, Product

SCAN = 7.0  # flops of a state element of a selective scan: decay, input, update and output
CONV = "conv"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Selective:
    """Sizes of a Mamba 1 layer."""

    inner: int
    state: int
    rank: int
    conv: int
    conv_bias: bool
    bias: bool
    norms: bool = False


def _selective(sizes: _Selective, hidden: int) -> Captured:
    """Mamba 1: into two streams, a convolution, steps and matrices of every token, a scan by channel, out.

        h*2*e + e*(k + bias) + e*(r + 2*n) + r*e + e + e*n + e + e*h        parameters, biases of projections apart

    e = inner width, n = state, r = rank of the step size, k = convolution.
    """
    wide, state, rank = sizes.inner, sizes.state, sizes.rank
    products = (
        Product(label="state in", inputs=hidden, outputs=2 * wide),
        Product(label="state steps", inputs=wide, outputs=rank + 2 * state),
        Product(label="state step up", inputs=rank, outputs=wide),
        Product(label="state out", inputs=wide, outputs=hidden),
    )
    own = wide * (sizes.conv + sizes.conv_bias) + wide + wide * state + wide
    own += (2 * wide + hidden) * sizes.bias + (rank + 2 * state) * sizes.norms
    return Captured(
        products=products,
        scan_flops=SCAN * wide * state + 2.0 * sizes.conv * wide,
        streams=5.0 * wide,
        kernels=6.0,
        params=sum(one.inputs * one.outputs for one in products) + own,
        saved=6.0 * wide + rank + 2 * state,
        mixes=True,
    )


def _ignore(cfg: Config) -> None:
    cfg.ignore("time_step_init_scheme", "time_step_scale", "use_associative_scan", "use_mambapy", "mixer_rms_eps")
    cfg.ignore(*(f"time_step_{part}" for part in ("min", "max", "floor")), "use_falcon_mambapy", "hidden_act")


def mamba(cfg: Config) -> ModelSpec:
    """Mamba, Falcon Mamba: nothing but selective scans."""
    _ignore(cfg)
    cfg.ignore("intermediate_size")
    hidden = hidden_size(cfg)
    rank = cfg.data.get("time_step_rank", "auto")
    cfg.ignore("time_step_rank")
    sizes = _Selective(
        inner=cfg.count("expand") * hidden,
        state=cfg.count("state_size"),
        rank=ceil(hidden / 16) if rank == "auto" else cfg.count("time_step_rank"),
        conv=cfg.count("conv_kernel"),
        conv_bias=cfg.flag("use_conv_bias"),
        bias=cfg.flag("use_bias"),
    )
    block = Block(mixer=None, ffn=None, norms=1, captured=_selective(sizes, hidden))
    return model(cfg, [block] * cfg.layers())


def jamba(cfg: Config) -> ModelSpec:
    """Jamba: selective scans, attention without positions on every eighth layer, experts on every second."""
    _ignore(cfg)
    cfg.ignore("num_logits_to_keep", "hidden_act")
    hidden, layers = hidden_size(cfg), cfg.layers()
    rank = cfg.data.get("mamba_dt_rank", "auto")
    cfg.ignore("mamba_dt_rank")
    sizes = _Selective(
        inner=cfg.count("mamba_expand") * hidden,
        state=cfg.count("mamba_d_state"),
        rank=ceil(hidden / 16) if rank == "auto" else cfg.count("mamba_dt_rank"),
        conv=cfg.count("mamba_d_conv"),
        conv_bias=cfg.flag("mamba_conv_bias"),
        bias=cfg.flag("mamba_proj_bias"),
        norms=True,
    )
    scan, attention = _selective(sizes, hidden), heads(cfg, hidden, positions="none")
    dense = mlp(cfg)
    routes = experts(cfg, "intermediate_size")
    moe = routes if routes.experts > 1 else None
    seen = cfg.count("attn_layer_period"), cfg.size("attn_layer_offset")
    routed = cfg.count("expert_layer_period"), cfg.size("expert_layer_offset")
    blocks = []
    for index in range(layers):
        ffn = moe if moe and index % routed[0] == routed[1] else dense
        here = index % seen[0] == seen[1]
        blocks.append(Block(mixer=attention if here else None, ffn=ffn, captured=None if here else scan))
    return model(cfg, blocks)


def falcon_h1(cfg: Config) -> ModelSpec:
    """Falcon H1: attention and Mamba 2 read the same input in every layer, then a gated mlp."""
    factors = ("attention_in", "attention_out", "key", "lm_head", "ssm_in", "ssm_out", "embedding")
    cfg.ignore(*(f"{part}_multiplier" for part in factors), "mlp_multipliers", "ssm_multipliers", "time_step_limit")
    cfg.ignore("mamba_norm_before_gate", "mamba_use_mlp", "attn_layer_indices", "mamba_expand", "time_step_rank")
    hidden = hidden_size(cfg)
    inner, count = cfg.count("mamba_d_ssm", cfg.count("mamba_expand", 2) * hidden), cfg.count("mamba_n_heads")
    scan = Mamba2(
        heads=count,
        head_dim=divide(cfg, "mamba_n_heads", inner, count),
        state=cfg.count("mamba_d_state"),
        groups=cfg.count("mamba_n_groups"),
        conv=cfg.count("mamba_d_conv"),
        conv_bias=cfg.flag("mamba_conv_bias"),
        proj_bias=False,
        chunk=cfg.count("mamba_chunk_size", 256),
    )
    cfg.only("mamba_d_head", scan.head_dim, "auto")
    wide = 2 * scan.inner + 2 * scan.groups * scan.state + scan.heads
    biases = wide * cfg.flag("mamba_proj_bias") + hidden * cfg.flag("projectors_bias")
    normed = 0 if cfg.flag("mamba_rms_norm") else scan.inner  # the mixer counts its norm
    beside = Captured(
        products=(
            Product(label="state in", inputs=hidden, outputs=wide),
            Product(label="state out", inputs=scan.inner, outputs=hidden),
        ),
        scan_flops=5.0 * scan.inner * scan.state + float(scan.inner * scan.chunk),
        streams=3.0 * scan.inner + wide,
        kernels=6.0,
        params=mixer_params(scan, hidden) - normed + biases,
        saved=float(2 * wide),
        mixes=True,
    )
    attention = heads(cfg, hidden, **biased(cfg))
    ffn = mlp(cfg, bias=cfg.flag("mlp_bias"))
    return model(cfg, [Block(mixer=attention, ffn=ffn, captured=beside)] * cfg.layers())


def lfm2(cfg: Config) -> ModelSpec:
    """LFM 2: short convolutions between two gates, attention on the layers that are listed."""
    cfg.ignore("conv_dim", "conv_dim_out", "conv_use_xavier_init", "block_dim", "block_use_swiglu", "block_norm_eps")
    cfg.ignore("block_use_xavier_init", "use_pos_enc", "block_mlp_init_scale", "block_out_init_scale", "num_heads")
    hidden, layers, bias = hidden_size(cfg), cfg.layers(), cfg.flag("conv_bias")
    wide = cfg.count(("intermediate_size", "block_ff_dim"))
    if cfg.flag("block_auto_adjust_ff_dim"):
        each = cfg.count("block_multiple_of")
        wide = int(cfg.number("block_ffn_dim_multiplier") * int(2 * wide / 3))
        wide = each * ceil(wide / each)
    else:
        cfg.ignore("block_multiple_of", "block_ffn_dim_multiplier")
    length = cfg.count("conv_L_cache")
    products = (
        Product(label="gates in", inputs=hidden, outputs=3 * hidden),
        Product(label="gates out", inputs=hidden, outputs=hidden),
    )
    own = hidden * (length + bias) + 4 * hidden * bias
    short = Captured(
        products=products, streams=4.0 * hidden, kernels=4.0, saved=5.0 * hidden, mixes=True,
        params=4 * hidden**2 + own, scan_flops=2.0 * length * hidden,
    )  # fmt: skip
    listed = cfg.words("layer_types", layers, (FULL, CONV))
    full = set(cfg.counts("full_attn_idxs")) if cfg.has("full_attn_idxs") else set(range(layers))
    kinds = listed or tuple(FULL if index in full else CONV for index in range(layers))
    attention, ffn = heads(cfg, hidden, qk_norm="head"), Mlp(hidden=max(1, wide))
    seen = Block(mixer=attention, ffn=ffn)
    return model(cfg, [seen if kind == FULL else Block(mixer=None, ffn=ffn, captured=short) for kind in kinds])
