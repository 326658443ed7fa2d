"""Turn compressed attention (DeepSeek-V4) into its parameters: matrices, and vectors beside them."""

from __future__ import annotations

from ridgeline.models.blocks import CompressedAttention, Indexer


def compressed_weights(mixer: CompressedAttention, hidden: int) -> int:
    """Elements of the matrices of compressed attention, its pooling and its indexer.

        queries    h*q + q*H*d        keys    h*d        output    H*d*o + g*o*h
        pooling    2*h*p                                                   values and gates
        indexer    2*h*P + q*I*i + h*I

    h = hidden, q = q_rank, H = heads of size d, g = o_groups of o = o_rank, p = d or 2*d where entries overlap
    (P = i or 2*i alike), I = indexer heads of size i.

    >>> flash = CompressedAttention(heads=64, head_dim=512, q_rank=1024, window=128, rate=128, o_groups=8, o_rank=1024)
    >>> compressed_weights(flash, 4096)
    111149056
    """
    wide, low = mixer.heads * mixer.head_dim, mixer.o_groups * mixer.o_rank
    attention = mixer.q_rank * (hidden + wide) + hidden * mixer.head_dim + wide * mixer.o_rank + low * hidden
    indexer = mixer.indexer
    if indexer is None or indexer.shared:
        return attention + 2 * hidden * mixer.pooled
    own = index_pooled(mixer, indexer)
    index = 2 * hidden * own + mixer.q_rank * indexer.heads * indexer.head_dim + hidden * indexer.heads
    return attention + 2 * hidden * mixer.pooled + index


def index_pooled(mixer: CompressedAttention, indexer: Indexer) -> int:
    """Elements of a token that an indexer pools into its own entries."""
    return (2 if mixer.overlap else 1) * indexer.head_dim


def compressed_vectors(mixer: CompressedAttention) -> int:
    """Norms of the query latent, the key and the entries, a sink of every head, biases of places inside an entry."""
    vectors = mixer.q_rank + mixer.head_dim + mixer.heads
    if not mixer.rate:
        return vectors
    vectors += mixer.rate * mixer.pooled + mixer.head_dim
    indexer = mixer.indexer
    if indexer is None or indexer.shared:
        return vectors
    return vectors + mixer.rate * index_pooled(mixer, indexer) + indexer.head_dim


def compressed_alike(mixer: CompressedAttention, hidden: int) -> int:
    """Parameters that every tensor rank holds: all but the heads of queries, the output and the sinks."""
    wide = mixer.heads * mixer.head_dim
    split = mixer.q_rank * wide + wide * mixer.o_rank + mixer.o_groups * mixer.o_rank * hidden + mixer.heads
    return compressed_weights(mixer, hidden) + compressed_vectors(mixer) - split
