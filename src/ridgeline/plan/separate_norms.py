"""Turn a model into how many of its norms stand alone where software fuses the rest into the product that follows.

Transformer Engine's layers compute a norm inside the product that reads it. It stands alone where something else reads
it too: a router and experts, or the two down-projections of latent attention. Only such a norm can be recomputed.
"""

from __future__ import annotations

from ridgeline.models.spec import LatentAttention, ModelSpec, Moe

NEARLY_ALL = 0.9


def separate_norms(model: ModelSpec) -> float:
    """The share of the layers' norms that stand alone: 0 for dense attention models, nearly 1 for DeepSeek's.

    >>> from ridgeline.models.load import MODELS
    >>> [round(separate_norms(MODELS[id]), 2) for id in ("llama3-70b", "qwen3-30b-a3b", "deepseek-v3")]
    [0.0, 0.5, 0.98]
    """
    layers = [model.blocks[kind] for kind in model.order]
    apart = sum(isinstance(block.mixer, LatentAttention) + isinstance(block.ffn, Moe) for block in layers)
    return apart / max(1, sum((block.mixer is not None) + (block.ffn is not None) for block in layers))
