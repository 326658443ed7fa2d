"""Describe every kind of sequence mixer as its parts (`ridgeline.models.parts`): a new kind is one more entry here.

Letters of the formulas: h = hidden, H = heads, G = key-value heads, d, v = size of a key and a value.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Literal, assert_never

from ridgeline.models.blocks import (
    Attention,
    CompressedAttention,
    GatedDeltaNet,
    Indexer,
    LatentAttention,
    Mamba2,
    Mixer,
    Recurrence,
)
from ridgeline.models.parts import (
    Attended,
    AttendedSpan,
    CacheRow,
    Columns,
    CrossCore,
    HeadCount,
    LatentCore,
    MixerParts,
    PooledCore,
    Projection,
    RankSplits,
    Saved,
    Weight,
)
from ridgeline.models.recurrent_parts import delta_parts, recurrence_parts, ssd_parts


@lru_cache(maxsize=1024)
def mixer_parts(mixer: Mixer, hidden: int) -> MixerParts:
    """The parts of a sequence mixer in a model of width `hidden`.

    >>> mixer_parts(Attention(heads=32, kv_heads=8, head_dim=128), 4096).params
    41943040
    >>> mixer_parts(Mamba2(heads=128, head_dim=64, state=128, groups=8), 4096).params
    109635968
    """
    match mixer:
        case Attention():
            return attention_parts(mixer, hidden)
        case LatentAttention():
            return _latent_parts(mixer, hidden)
        case CompressedAttention():
            return _compressed_parts(mixer, hidden)
        case Mamba2():
            return ssd_parts(mixer, hidden)
        case GatedDeltaNet():
            return delta_parts(mixer, hidden)
        case Recurrence():
            return recurrence_parts(mixer, hidden)
        case _:
            assert_never(mixer)


def attention_parts(mixer: Attention, hidden: int, name: str = "attention") -> MixerParts:
    """Softmax attention.

        weights   h*(H*d*(1 + gate) + G*(d + v)) + H*v*h
        biases    qkv_bias*(H*d*(1 + gate) + G*(d + v)) + out_bias*h
        qk_norm   head: 2*d      full: (H + G)*d
        sinks     H

    G*d instead of G*(d + v) with keys_as_values, nothing for keys and values with kv_shared, whose head norm is of
    queries alone; G*v in biases without key_bias.
    """
    queries, values = mixer.heads * mixer.head_dim, mixer.heads * mixer.value_dim
    qkv_columns = (
        Columns(name=f"{name}.query.weight", outputs=queries * (1 + mixer.gate), heads=mixer.heads),
        Columns(name=f"{name}.key_value.weight", outputs=mixer.projected_kv, shared_heads=mixer.kv_heads),
    )
    keys = 0 if mixer.kv_shared else mixer.kv_heads
    qkv = Projection(
        label="qkv", inputs=hidden, columns=qkv_columns, biased=mixer.qkv_bias,
        joins=(queries, keys * mixer.head_dim, keys * mixer.value_dim),
    )  # fmt: skip
    row = CacheRow(elements=mixer.kv, window=mixer.window, heads=mixer.kv_heads, written=not mixer.kv_shared)
    span = AttendedSpan(window=mixer.window, chunked=mixer.chunked, causal=mixer.causal)
    width = mixer.head_dim + mixer.value_dim
    heads = (
        HeadCount(count=mixer.heads, name="attention heads"),
        HeadCount(count=mixer.kv_heads, name="key-value heads", shared=True),
    )
    return MixerParts(
        name=name,
        title=_attention_title(mixer),
        into=(qkv,),
        out=(_attention_out(mixer, hidden, name, "attention out"),),
        core=mixer,
        splits=RankSplits(tensor=heads, context=mixer.heads),
        vectors=_attention_vectors(mixer, hidden, name),
        attended=(Attended(heads=mixer.heads, width=width, decode_width=width, spans=(span,)),),
        cache=(row,) if mixer.causal else (),
        saved=Saved(split=queries + values + 2 * queries * mixer.gate, kv=0 if mixer.kv_shared else mixer.kv),
        output=values,
        widest=2 * queries,
    )


def cross_parts(mixer: Attention, hidden: int, source: int, source_width: int) -> MixerParts:
    """Cross attention over `source` positions of an encoder's output; queries of the layer's own tokens."""
    plain = attention_parts(mixer, hidden, "cross")
    (qkv,) = plain.into
    query, key_value = (
        Projection(label=f"cross {label}", inputs=width, columns=(part,), biased=mixer.qkv_bias)
        for label, width, part in zip(("query", "key-value"), (hidden, source_width), qkv.columns, strict=True)
    )
    return MixerParts(
        name="cross",
        title=plain.title,
        into=(query, key_value),
        out=(_attention_out(mixer, hidden, "cross", "cross out"),),
        core=CrossCore(attention=mixer, source=source),
        splits=plain.splits,
        vectors=plain.vectors,
        saved=Saved(split=mixer.width),
        output=plain.output,
    )


def _attention_title(mixer: Attention) -> str:
    kind = "MHA" if mixer.kv_heads == mixer.heads else "MQA" if mixer.kv_heads == 1 else "GQA"
    window = f", window {mixer.window}" if mixer.window else ""
    causal = "" if mixer.causal else ", both ways"
    shared = ", keys of another layer" if mixer.kv_shared else ""
    return f"{kind} {mixer.heads}/{mixer.kv_heads}{window}{causal}{shared}"


def _attention_out(mixer: Attention, hidden: int, name: str, label: str) -> Projection:
    return Projection(
        label=label, inputs=mixer.heads * mixer.value_dim, split="inputs", heads=mixer.heads, biased=mixer.out_bias,
        columns=(Columns(name=f"{name}.out.weight", outputs=hidden),),
    )  # fmt: skip


def _attention_vectors(mixer: Attention, hidden: int, name: str) -> tuple[Weight, ...]:
    """Biases, norms of queries and keys, sinks."""
    heads, dim, keys = mixer.kv_heads, mixer.head_dim, mixer.projected_kv
    queries, vectors = mixer.heads * dim, []
    if mixer.qkv_bias:
        vectors.append(Weight(name=f"{name}.query.bias", dims=(queries * (1 + mixer.gate),), splits=((0, "tp"),)))
        keys_without_bias = 0 if mixer.key_bias else heads * dim
        vectors.append(
            Weight(name=f"{name}.key_value.bias", dims=(keys - keys_without_bias,), splits=((0, "tp"),), units=heads)
        )
    if mixer.qk_norm == "head":
        vectors.append(Weight(name=f"{name}.qk_norm.weight", dims=(1 if mixer.kv_shared else 2, dim)))
    elif mixer.qk_norm == "full":
        vectors.append(Weight(name=f"{name}.query_norm.weight", dims=(queries,), splits=((0, "tp"),)))
        if not mixer.kv_shared:
            vectors.append(
                Weight(name=f"{name}.key_norm.weight", dims=(heads * dim,), splits=((0, "tp"),), units=heads)
            )
    if mixer.sinks:
        vectors.append(Weight(name=f"{name}.sinks", dims=(mixer.heads,), splits=((0, "tp"),)))
    if mixer.out_bias:
        vectors.append(Weight(name=f"{name}.out.bias", dims=(hidden,)))
    return tuple(vectors)


def _latent_parts(mixer: LatentAttention, hidden: int) -> MixerParts:
    """Latent attention, its two latent norms and its indexer.

        queries    h*q + q + q*H*(n + r)        without a query latent: h*H*(n + r)
        keys       h*(c + r) + c + c*H*(n + v)
        output     H*v*h
        biases     q + (c + r) + h
        indexer    q*I*i + h*i + 2*i + h*I

    q = q_rank, c = kv_rank, n = nope_dim, r = rope_dim, v = v_dim, I = indexer heads of size i.

    >>> mla = LatentAttention(heads=128, q_rank=1536, kv_rank=512, nope_dim=128, rope_dim=64, v_dim=128)
    >>> mixer_parts(mla, 7168).params
    187107328
    """
    key, rank, cache_width = mixer.nope_dim + mixer.rope_dim, mixer.q_rank, mixer.kv_rank + mixer.rope_dim
    expanded_width, values = mixer.heads * (mixer.nope_dim + mixer.v_dim), mixer.heads * mixer.v_dim
    indexer = mixer.indexer if mixer.indexer and not mixer.indexer.shared else None
    index_width = indexer.head_dim + indexer.heads if indexer else 0
    latents = CacheRow(elements=cache_width, picked=mixer.indexer.topk if mixer.indexer else 0)
    return MixerParts(
        name="attention",
        title=f"MLA {mixer.heads} heads, latent {mixer.kv_rank}+{mixer.rope_dim}"
        + (f", top {mixer.indexer.topk} tokens" if mixer.indexer else ""),
        into=(
            Projection(
                label="latent down", inputs=hidden, split="none", dealt=True, joins=(rank, cache_width) if rank else (),
                columns=(Columns(name="attention.latent.weight", outputs=rank + cache_width),),
            ),
            _project("query up", "attention.query_up.weight", rank or hidden, mixer.heads * key),
            _project("key-value up", "attention.key_value_up.weight", mixer.kv_rank, expanded_width),
        ),
        out=(_project("attention out", "attention.out.weight", values, hidden, "inputs"),),
        core=LatentCore(
            heads=mixer.heads, q_rank=rank, kv_rank=mixer.kv_rank, nope_dim=mixer.nope_dim, rope_dim=mixer.rope_dim,
            value_dim=mixer.v_dim, indexer=mixer.indexer,
        ),
        splits=RankSplits(tensor=(HeadCount(count=mixer.heads, name="attention heads"),), context=mixer.heads),
        index=_index_products(indexer, rank or hidden, hidden, indexer.head_dim, True) if indexer else (),
        vectors=_latent_vectors(mixer, hidden, indexer),
        attended=_latent_scores(mixer, indexer),
        cache=(latents, CacheRow(elements=indexer.head_dim, narrow=True)) if indexer else (latents,),
        saved=Saved(latents=rank + cache_width, split=mixer.heads * (2 * key + 2 * mixer.v_dim)),
        entering=cache_width + (rank or hidden) + index_width,
        output=values,
        widest=3 * mixer.heads * key,
    )  # fmt: skip


def _project(
    label: str, name: str, inputs: int, outputs: int, split: Literal["outputs", "inputs", "none"] = "outputs"
) -> Projection:
    return Projection(label=label, inputs=inputs, columns=(Columns(name=name, outputs=outputs),), split=split)


def _index_products(indexer: Indexer, width: int, hidden: int, keys: int, dealt: bool) -> tuple[Projection, ...]:
    """An indexer's queries, its keys and the weights of its heads; every tensor rank scores with all of them, as the
    choice must be the same on each."""
    key = Columns(name="indexer.key.weight", outputs=keys)
    heads = Columns(name="indexer.head_weights", outputs=indexer.heads)
    return (
        _project("index query", "indexer.query.weight", width, indexer.heads * indexer.head_dim, "none"),
        Projection(label="index key and weights", inputs=hidden, columns=(key, heads), split="none", dealt=dealt),
    )


def _latent_vectors(mixer: LatentAttention, hidden: int, indexer: Indexer | None) -> tuple[Weight, ...]:
    rank, cache_width = mixer.q_rank, mixer.kv_rank + mixer.rope_dim
    vectors = [Weight(name="attention.key_value_norm.weight", dims=(mixer.kv_rank,))]
    if rank:
        vectors.append(Weight(name="attention.query_norm.weight", dims=(rank,)))
    if indexer:
        vectors.append(Weight(name="indexer.key_norm", dims=(2, indexer.head_dim)))
    if mixer.bias:
        vectors.append(Weight(name="attention.latent.bias", dims=(rank + cache_width,)))
        vectors.append(Weight(name="attention.out.bias", dims=(hidden,)))
    return tuple(vectors)


def _latent_scores(mixer: LatentAttention, indexer: Indexer | None) -> tuple[Attended, ...]:
    """Expanded: n + r + v a score; a decode in the latent: 2 c + r. An indexer scores all tokens."""
    picked_span = AttendedSpan(window=mixer.indexer.topk if mixer.indexer else 0)
    scores = Attended(
        heads=mixer.heads, width=mixer.nope_dim + mixer.rope_dim + mixer.v_dim,
        decode_width=2 * mixer.kv_rank + mixer.rope_dim, spans=(picked_span,),
    )  # fmt: skip
    return (scores, _index_scores(indexer)) if indexer else (scores,)


def _index_scores(indexer: Indexer, rate: int = 1) -> Attended:
    dim = indexer.head_dim
    return Attended(heads=indexer.heads, width=dim, decode_width=dim, spans=(AttendedSpan(rate=rate),))


def _compressed_parts(mixer: CompressedAttention, hidden: int) -> MixerParts:
    """Compressed attention, its pooling and its indexer.

        queries    h*q + q*H*d        keys    h*d        output    H*d*o + g*o*h
        pooling    2*h*p                                                   values and gates
        indexer    2*h*P + q*I*i + h*I

    q = q_rank, g = o_groups of o = o_rank, p = d or 2*d where entries overlap (P = i or 2*i alike), I = indexer heads
    of size i. Tensor ranks split heads of queries, sinks and groups of the output.

    >>> flash = CompressedAttention(heads=64, head_dim=512, q_rank=1024, window=128, rate=128, o_groups=8, o_rank=1024)
    >>> mixer_parts(flash, 4096).matrix_elements
    111149056
    """
    heads, dim, wide = mixer.heads, mixer.head_dim, mixer.heads * mixer.head_dim
    indexer = mixer.indexer if mixer.indexer and not mixer.indexer.shared else None
    index_pooled = (2 if mixer.overlap else 1) * indexer.head_dim if indexer else 0
    down = mixer.q_rank + dim + 2 * mixer.pooled
    out_down = Columns(name="attention.out_down.weight", outputs=mixer.o_rank)
    return MixerParts(
        name="attention",
        title=_compressed_title(mixer),
        into=(
            _project("latent down", "attention.latent.weight", hidden, down, "none"),
            _project("query up", "attention.query_up.weight", mixer.q_rank, wide),
        ),
        index=_index_products(indexer, mixer.q_rank, hidden, 2 * index_pooled, False) if indexer else (),
        out=(
            Projection(
                label="output down", inputs=wide // mixer.o_groups, columns=(out_down,), split="groups",
                groups=mixer.o_groups,
            ),
            _project("attention out", "attention.out.weight", mixer.o_groups * mixer.o_rank, hidden, "inputs"),
        ),
        core=PooledCore(
            heads=heads, head_dim=dim, q_rank=mixer.q_rank, window=mixer.window, rate=mixer.rate, pooled=mixer.pooled,
            index_pooled=index_pooled, indexer=mixer.indexer,
        ),
        splits=RankSplits(
            tensor=(HeadCount(count=mixer.o_groups, name="groups of the output projection"),), context=heads
        ),
        vectors=_compressed_vectors(mixer, indexer, index_pooled),
        attended=_compressed_scores(mixer, indexer),
        cache=_compressed_cache(mixer, indexer),
        saved=Saved(
            whole=mixer.q_rank + 2 * dim + 2 * mixer.pooled, split=3 * wide + mixer.o_groups * mixer.o_rank
        ),
    )  # fmt: skip


def _compressed_title(mixer: CompressedAttention) -> str:
    pooled_words = f", {mixer.rate} tokens an entry" if mixer.rate else ""
    picked_words = f", top {mixer.indexer.topk} entries" if mixer.indexer else ""
    return f"compressed {mixer.heads}/1, window {mixer.window}{pooled_words}{picked_words}"


def _compressed_vectors(mixer: CompressedAttention, indexer: Indexer | None, index_pooled: int) -> tuple[Weight, ...]:
    """Norms of the query latent, the key and the entries, a sink of every head, biases of places inside an entry."""
    vectors = [
        Weight(name="attention.sinks", dims=(mixer.heads,), splits=((0, "tp"),)),
        Weight(name="attention.query_norm.weight", dims=(mixer.q_rank,)),
        Weight(name="attention.key_norm.weight", dims=(mixer.head_dim,)),
    ]
    if mixer.rate:
        vectors.append(Weight(name="attention.places", dims=(mixer.rate, mixer.pooled)))
        vectors.append(Weight(name="attention.entry_norm.weight", dims=(mixer.head_dim,)))
    if indexer:
        vectors.append(Weight(name="indexer.places", dims=(mixer.rate, index_pooled)))
        vectors.append(Weight(name="indexer.key_norm", dims=(indexer.head_dim,)))
    return tuple(vectors)


def _compressed_scores(mixer: CompressedAttention, indexer: Indexer | None) -> tuple[Attended, ...]:
    """Near tokens as they are and pooled entries, all of them or those an indexer picks."""
    picked_tokens = mixer.indexer.topk * mixer.rate if mixer.indexer else 0
    near, pooled_span = AttendedSpan(window=mixer.window), AttendedSpan(window=picked_tokens, rate=mixer.rate or 1)
    scores = Attended(
        heads=mixer.heads, width=2 * mixer.head_dim, decode_width=2 * mixer.head_dim,
        spans=(near, pooled_span) if mixer.rate else (near,),
    )  # fmt: skip
    return (scores, _index_scores(indexer, mixer.rate)) if indexer else (scores,)


def _compressed_cache(mixer: CompressedAttention, indexer: Indexer | None) -> tuple[CacheRow, ...]:
    near = CacheRow(elements=mixer.head_dim, window=mixer.window, rolling=True)
    if not mixer.rate:
        return (near,)
    picked_tokens = mixer.indexer.topk * mixer.rate if mixer.indexer else 0
    entry = CacheRow(elements=mixer.head_dim, picked=picked_tokens, rate=mixer.rate)
    return (near, entry, CacheRow(elements=indexer.head_dim, rate=mixer.rate)) if indexer else (near, entry)
