"""Turn a sequence mixer into its exact number of parameters."""

from __future__ import annotations

from typing import assert_never

from ridgeline.models.compressed import compressed_vectors, compressed_weights
from ridgeline.models.recurrent import recurrent_parts
from ridgeline.models.spec import (
    Attention,
    CompressedAttention,
    GatedDeltaNet,
    Indexer,
    LatentAttention,
    Mamba2,
    Mixer,
    Recurrence,
)


def mixer_params(mixer: Mixer, hidden: int) -> int:
    """Parameters of one sequence mixer, its inner norms included."""
    match mixer:
        case Attention():
            return _attention_params(mixer, hidden)
        case LatentAttention():
            return _latent_params(mixer, hidden)
        case Mamba2():
            return _mamba2_params(mixer, hidden)
        case GatedDeltaNet():
            return _delta_params(mixer, hidden)
        case Recurrence():
            return recurrent_parts(mixer, hidden).params
        case CompressedAttention():
            return compressed_weights(mixer, hidden) + compressed_vectors(mixer)
        case _:
            assert_never(mixer)


def _attention_params(mixer: Attention, hidden: int) -> int:
    """Parameters of softmax attention.

        weights   h*(H*d*(1 + gate) + G*(d + v)) + H*v*h
        biases    qkv_bias*(H*d*(1 + gate) + G*(d + v)) + out_bias*h
        qk_norm   head: 2*d      full: (H + G)*d
        sinks     H

    h = hidden, H = heads, G = kv_heads, d = head_dim, v = value head_dim; G*d instead of G*(d + v) with keys_as_values,
    nothing for keys and values with kv_shared, whose head norm is of queries alone; G*v in biases without key_bias.

    >>> _attention_params(Attention(heads=32, kv_heads=8, head_dim=128), 4096)
    41943040
    """
    queries = mixer.heads * mixer.head_dim * (2 if mixer.gate else 1)
    projected = queries + mixer.projected_kv
    norms = normed_vectors(mixer) * mixer.head_dim
    biases = (projected - unbiased(mixer)) * mixer.qkv_bias + hidden * mixer.out_bias
    return hidden * projected + mixer.heads * mixer.value_dim * hidden + biases + norms + mixer.heads * mixer.sinks


def normed_vectors(mixer: Attention) -> int:
    """Vectors of a head's size that norms of queries and keys hold; keys of another layer are normed there."""
    own = 0 if mixer.kv_shared else 1
    return {"none": 0, "head": 1 + own, "full": mixer.heads + own * mixer.kv_heads}[mixer.qk_norm]


def unbiased(mixer: Attention) -> int:
    """Projected elements that have no bias though queries have one: keys, where `key_bias` says so."""
    return 0 if mixer.key_bias else mixer.kv_heads * mixer.head_dim


def _latent_params(mixer: LatentAttention, hidden: int) -> int:
    """Parameters of latent attention, its two latent norms and its indexer.

        queries    h*q + q + q*H*(n + r)        without a query latent: h*H*(n + r)
        keys       h*(c + r) + c + c*H*(n + v)
        output     H*v*h
        biases     q + (c + r) + h
        indexer    q*I*i + h*i + 2*i + h*I

    h = hidden, H = heads, q = q_rank, c = kv_rank, n = nope_dim, r = rope_dim, v = v_dim, I = indexer heads of size i.

    >>> _latent_params(LatentAttention(heads=128, q_rank=1536, kv_rank=512, nope_dim=128, rope_dim=64, v_dim=128), 7168)
    187107328
    """
    wide = mixer.heads * (mixer.nope_dim + mixer.rope_dim)
    rank, cached = mixer.q_rank, mixer.kv_rank + mixer.rope_dim
    queries = hidden * rank + rank + rank * wide if rank else hidden * wide
    keys = hidden * cached + mixer.kv_rank + mixer.kv_rank * mixer.heads * (mixer.nope_dim + mixer.v_dim)
    biases = rank + cached + hidden if mixer.bias else 0
    return queries + keys + mixer.heads * mixer.v_dim * hidden + biases + indexer_params(mixer.indexer, rank, hidden)


def indexer_params(indexer: Indexer | None, rank: int, hidden: int) -> int:
    """Parameters of the scorer of sparse attention: q*I*i + h*i + 2*i + h*I, as in `_latent_params`."""
    if indexer is None or indexer.shared:
        return 0
    dim = indexer.head_dim
    return (rank or hidden) * indexer.heads * dim + hidden * dim + 2 * dim + hidden * indexer.heads


def _mamba2_params(mixer: Mamba2, hidden: int) -> int:
    """Parameters of a state-space mixer.

        in      h*(2*e + 2*g*s + H)  + proj_bias*(2*e + 2*g*s + H)
        conv    (e + 2*g*s) * (k + conv_bias)
        heads   3*H                             decay, step bias and skip
        norm    e, if any
        out     e*h + proj_bias*h

    h = hidden, H = heads, e = H * head_dim, g = groups, s = state, k = conv.

    >>> _mamba2_params(Mamba2(heads=128, head_dim=64, state=128, groups=8), 4096)
    109635968
    """
    inner, states = mixer.inner, 2 * mixer.groups * mixer.state
    wide = 2 * inner + states + mixer.heads
    conv = (inner + states) * (mixer.conv + mixer.conv_bias)
    biases = (wide + hidden) * mixer.proj_bias
    return hidden * wide + conv + 3 * mixer.heads + inner * mixer.gated_norm + inner * hidden + biases


def _delta_params(mixer: GatedDeltaNet, hidden: int) -> int:
    """Parameters of a gated delta-rule mixer.

        in      h*(2*K + 2*V + 2*Hv)            queries, keys, values, output gate; step size and decay per value head
        conv    (2*K + V) * k
        heads   2*Hv                            decay and step bias
        norm    value_dim
        out     V*h

    h = hidden, K = key_heads * key_dim, V = value_heads * value_dim, Hv = value_heads, k = conv.

    >>> _delta_params(GatedDeltaNet(key_heads=16, value_heads=32, key_dim=128, value_dim=128), 2048)
    33718464
    """
    keys, values = mixer.key_heads * mixer.key_dim, mixer.value_heads * mixer.value_dim
    projected = 2 * keys + 2 * values + 2 * mixer.value_heads
    conv = (2 * keys + values) * mixer.conv
    return hidden * projected + conv + 2 * mixer.value_heads + mixer.value_dim + values * hidden
