"""Turn configs of Zamba 2 into ModelSpecs: Mamba 2 on every layer, before some of them a transformer that they share.

The shared transformer reads the hidden state and the token's row side by side, so that its products are twice as wide
as the model; each use has low-rank adapters and an output matrix of its own. What it does is recorded product by
product; its parameters stand with the first layers that use it, and tensor ranks do not split it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from ridgeline.models.hf.config import Config, Keys
from ridgeline.models.hf.hybrid import LINEAR, ignore_steps, state_space
from ridgeline.models.hf.parts import divide, hidden_size, model
from ridgeline.models.spec import Attention, Block, Captured, ModelSpec, Product

HYBRID = "hybrid"
NAMES: Mapping[str, Keys] = MappingProxyType(
    {
        "state": "mamba_d_state", "groups": "mamba_ngroups", "conv": "mamba_d_conv", "conv_bias": "use_conv_bias",
        "proj_bias": "add_bias_linear", "chunk": "chunk_size",
    }
)  # fmt: skip


def zamba2(cfg: Config) -> ModelSpec:
    """Zamba 2: a transformer, or two in turn, shared by the layers that are called hybrid."""
    ignore_steps(cfg)
    cfg.ignore("mamba_headdim", "attention_hidden_size", "attention_head_dim", "kv_channels", "num_query_groups")
    cfg.ignore("hybrid_layer_ids", "use_mem_rope", "use_long_context", "hidden_act")
    hidden, layers = hidden_size(cfg), cfg.layers()
    count = cfg.count("n_mamba_heads")
    inner = int(cfg.number("mamba_expand") * hidden)
    scan = state_space(cfg, count, divide(cfg, "n_mamba_heads", inner, count), NAMES)
    plain = Block(mixer=scan, ffn=None, norms=1)
    shared, own = _transformer(cfg, hidden)
    listed = cfg.words("layers_block_type", layers, (LINEAR, HYBRID)) or _usual(layers)
    blocks, used, several = [], 0, cfg.count("num_mem_blocks")
    for kind in listed:
        part = replace(own, params=own.params + (shared if used < several else 0)) if kind == HYBRID else None
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
    adapted = cfg.flag("use_shared_attention_adapter")
    qkv = (heads + 2 * few) * size
    adapters = [
        Product(label="mlp adapter down", inputs=hidden, outputs=rank),
        Product(label="mlp adapter up", inputs=rank, outputs=2 * ffn),
    ]
    if adapted:
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
    shared = sum(one.inputs * one.outputs for one in products) + wide + hidden + (2 * ffn + hidden) * bias
    own = hidden * hidden + rank * (hidden + 2 * ffn) + adapted * 6 * wide * rank
    attention = Attention(heads=heads, kv_heads=few, head_dim=size)
    return shared, Captured(
        products=(*products, *adapters, out),
        scores=(attention,),
        streams=float(6 * wide + 3 * ffn + qkv),
        kernels=14.0,
        params=own,
        saved=float(3 * wide + qkv + heads * size + 3 * ffn + 2 * hidden),
        cached=2 * few * size,
        mixes=True,
    )


def _usual(layers: int) -> tuple[str, ...]:
    """What transformers assumes: one in six layers from the seventh on, closer together at the end."""
    spelled = [LINEAR, *[*[LINEAR] * 5, HYBRID] * 7, *[LINEAR] * 4, HYBRID, *[LINEAR] * 3, HYBRID, LINEAR, LINEAR]
    return tuple((spelled + [LINEAR] * layers)[:layers])
