"""Generate with a stage of the reference engine: prefill fills a cache of keys and values, decode adds to it.

logits, cache = prefill(stage, tokens)
logits, cache = decode(stage, token, cache)
token = sampled(logits, source)
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from ridgeline.runtime.train.layer import MultiHeadLatentAttention, SoftmaxAttention

TOP_K, TEMPERATURE = 20, 0.8
Within = Callable[[str], AbstractContextManager[None]]  # told which module is at work


def nowhere(path: str) -> AbstractContextManager[None]:  # noqa: ARG001
    """Nobody asks which module is at work."""
    return nullcontext()


@dataclass(slots=True)
class Cache:
    """What every layer keeps of the tokens so far: keys and values, or latents and their rotary keys."""

    layers: list[tuple[Tensor, Tensor] | None] = field(default_factory=list)
    tokens: int = 0


def prefill(stage: nn.Module, tokens: Tensor, within: Within = nowhere) -> tuple[Tensor, Cache]:
    """Logits of every token of a prompt, and the cache behind it."""
    return _advance(stage, tokens, Cache(layers=[None] * len(stage.layers)), within)


def decode(stage: nn.Module, token: Tensor, cache: Cache, within: Within = nowhere) -> tuple[Tensor, Cache]:
    """Logits of one more token of each sequence, [batch, 1]."""
    return _advance(stage, token, cache, within)


def sample_token(logits: Tensor, source: torch.Generator | None = None) -> Tensor:
    """One token of each sequence by temperature and top-k; drawn on the host, so that devices can be compared."""
    best = (logits[:, -1].float() / TEMPERATURE).topk(min(TOP_K, logits.shape[-1]), -1)
    chance = best.values.softmax(-1)
    drawn = torch.multinomial(chance.cpu(), 1, generator=source)
    return best.indices.gather(-1, drawn.to(chance.device))


def _advance(stage: nn.Module, tokens: Tensor, cache: Cache, within: Within) -> tuple[Tensor, Cache]:
    with within("embedding"):
        x = _embed_tokens(stage.embedding, tokens, cache.tokens)
    layers = []
    for (name, layer), layer_cache in zip(stage.layers.items(), cache.layers, strict=True):
        with within(f"layers.{name}"):
            new_cache = layer_cache
            if layer.has[0]:
                normal_input = layer.mixer_norm(x)
                with within(f"layers.{name}.mixer"):
                    mixer_output, new_cache = _mix_tokens(layer.mixer, normal_input, layer_cache, cache.tokens)
                x = x + mixer_output
            if layer.has[1]:
                x = x + layer.ffn(layer.ffn_norm(x))
            layers.append(new_cache)
    x = x if stage.norm is None else stage.norm(x)
    return stage.head(x), Cache(layers=layers, tokens=cache.tokens + tokens.shape[1])


def _embed_tokens(embedding: Any, tokens: Tensor, before: int) -> Tensor:
    if embedding.positions is None:
        return embedding(tokens)
    places = torch.arange(before, before + tokens.shape[1], device=tokens.device)
    x = functional.embedding(tokens, embedding.weight) + functional.embedding(places, embedding.positions)
    return x if embedding.norm is None else embedding.norm(x)


def _mix_tokens(mixer: Any, x: Tensor, held: tuple[Tensor, Tensor] | None, before: int) -> tuple[Tensor, Any]:
    if isinstance(mixer, SoftmaxAttention):
        return _attention(mixer, x, held, before)
    assert isinstance(mixer, MultiHeadLatentAttention)
    return _latent_attention(mixer, x, held, before)


def _attention(mixer: Any, x: Tensor, held: tuple[Tensor, Tensor] | None, before: int) -> tuple[Tensor, Any]:
    width, values = mixer.attention.head_dim, mixer.attention.value_dim
    q, k = mixer.query(x).unflatten(-1, (-1, width)), mixer.key(x).unflatten(-1, (-1, width))
    if mixer.query_norm is not None:
        q, k = mixer.query_norm(q), mixer.key_norm(k)
    v = mixer.value(x).unflatten(-1, (-1, values))
    if mixer.rotary is not None:
        q, k = _apply_rotary(mixer.rotary, q, before), _apply_rotary(mixer.rotary, k, before)
    if held is not None:
        k, v = torch.cat((held[0], k), 1), torch.cat((held[1], v), 1)
    context = _attend(q, k, v, mixer.attention.window)
    return mixer.out.after(mixer.out(context)), (k, v)


def _latent_attention(mixer: Any, x: Tensor, held: tuple[Tensor, Tensor] | None, before: int) -> tuple[Tensor, Any]:
    mla = mixer.mla
    queries = mixer.query_norm(mixer.query_down(x)) if mla.q_rank else x
    latent, latent_key = mixer.latent(x).split((mla.kv_rank, mla.rope_dim), -1)
    latent, rotary_key = mixer.latent_norm(latent), _apply_rotary(mixer.rotary, latent_key.unsqueeze(2), before)
    if held is not None:
        latent, rotary_key = torch.cat((held[0], latent), 1), torch.cat((held[1], rotary_key), 1)
    q = mixer.query(queries).unflatten(-1, (-1, mla.nope_dim + mla.rope_dim))
    up = mixer.key_value(latent).unflatten(-1, (-1, mla.nope_dim + mla.v_dim))
    k, v = up.split((mla.nope_dim, mla.v_dim), -1)
    q = torch.cat((q[..., : mla.nope_dim], _apply_rotary(mixer.rotary, q[..., mla.nope_dim :], before)), -1)
    k = torch.cat((k, rotary_key.expand(-1, -1, k.shape[2], -1)), -1)
    return mixer.out.after(mixer.out(_attend(q, k, v, 0))), (latent, rotary_key)


def _apply_rotary(rotary: Any, x: Tensor, before: int) -> Tensor:
    """Rotary positions of tokens behind so many others."""
    tokens = x.shape[1]
    cos, sin = rotary.angles(before + tokens, x.device)
    known_angles = rotary.known.get((rotary.width, tokens))
    rotary.known[rotary.width, tokens] = cos[before:], sin[before:]
    try:
        return rotary(x)
    finally:
        if known_angles is None:
            del rotary.known[rotary.width, tokens]
        else:
            rotary.known[rotary.width, tokens] = known_angles


def _attend(q: Tensor, k: Tensor, v: Tensor, window: int) -> Tensor:
    """[batch, tokens, heads, width]; the queries are the last tokens of the keys."""
    tokens, keys, shared = q.shape[1], k.shape[1], q.shape[2] != k.shape[2]
    q, k, v = (part.transpose(1, 2) for part in (q, k, v))
    mask = None
    if (tokens > 1 and tokens != keys) or (window and window < keys):
        ahead = torch.arange(keys - tokens, keys, device=q.device)[:, None] - torch.arange(keys, device=q.device)
        mask = (ahead >= 0) & (ahead < window) if window else ahead >= 0
    causal = mask is None and tokens > 1
    out = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=causal, enable_gqa=shared)
    return out.transpose(1, 2).flatten(2)
