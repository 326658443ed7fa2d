"""Turn the keys that diffusion transformers share into parts of a ModelSpec: attention both ways, mlps, the whole.

A token is a patch of latents; what an autoencoder's latent stands for in pixels and frames is not in a transformer's
file: `SCALE` and `VIDEO_FRAMES` are what most autoencoders that are published with them have.
"""

from __future__ import annotations

from typing import Any

from ridgeline.models.hf.config import Config
from ridgeline.models.spec import Attention, Block, Embedding, Head, LatentSpace, Mlp, ModelSpec, Norm, from_layers

BARE = Norm(kind="layer", weight=False)
SCALE = 8  # pixels a side of one latent
VIDEO_FRAMES = 4  # frames of one latent frame
TIME = 256  # sines and cosines that a timestep becomes
TEXT = 512  # tokens that FLUX's, Qwen-Image's and Wan's pipelines take of a text at most


def linear(inputs: int, outputs: int) -> int:
    """Parameters of a linear layer with its bias."""
    return inputs * outputs + outputs


def attention_of(cfg: Config, **traits: Any) -> Attention:
    """Attention both ways, every head with keys and values of its own, biases everywhere."""
    heads, size = cfg.count("num_attention_heads"), cfg.count("attention_head_dim")
    usual: dict[str, Any] = {"qkv_bias": True, "out_bias": True, "positions": "rope", "causal": False}
    return Attention(heads=heads, kv_heads=heads, head_dim=size, **{**usual, **traits})


def plain_mlp(hidden: int) -> Mlp:
    """Two matrices with biases and a gelu."""
    return Mlp(hidden=hidden, gated=False, bias=True, activation="gelu_pytorch_tanh")


def diffuser(hidden: int, layers: list[Block], head: Head, space: LatentSpace) -> ModelSpec:
    """Layers between an embedding of latents and scores of every token."""
    blocks, order = from_layers(layers)
    return ModelSpec(
        id="", name="", hidden=hidden, vocab=0, embedding=Embedding(), blocks=blocks, order=order, norm=BARE,
        head=head, latent_space=space,
    )  # fmt: skip


def modulated_once(hidden: int) -> tuple[int, int]:
    """Six vectors that all layers share, made of the timestep (adaLN-single): multiply-adds, and parameters."""
    products = TIME * hidden + hidden**2 + 6 * hidden**2
    return products, products + 8 * hidden
