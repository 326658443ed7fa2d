"""Turn a ModelSpec into what a sequence leaves behind for tokens to come: keys and values of its tokens, or a state."""

from __future__ import annotations

from typing import assert_never

from ridgeline.core.dtype import DType
from ridgeline.models.recurrent import recurrent_parts
from ridgeline.models.spec import (
    Attention,
    Block,
    CompressedAttention,
    GatedDeltaNet,
    LatentAttention,
    Mamba2,
    Mixer,
    ModelSpec,
    Recurrence,
)


def kv_cache_bytes_per_token(spec: ModelSpec, dtype: DType) -> float:
    """Bytes one more token adds to the cache of a sequence that is still inside every window.

        sum over layers of  G*(d + v)  or  c + r (+ i)  or  d + (d + i) / m      times bytes of an element

    G = kv_heads, d, v = size of a key and a value; c = kv_rank, r = rope_dim, i = an indexer's key, m = tokens of a
    pooled entry. Values are kept even where they come from the key projection, since keys are rotated. Layers that use
    another's keys and values and recurrent ones (see `state_bytes`) add nothing; multi-token prediction is not counted.

    >>> from ridgeline.core.dtype import dtype
    >>> from ridgeline.models.load import model
    >>> kv_cache_bytes_per_token(model("deepseek-v3"), dtype("bf16"))  # 61 * (512 + 64) * 2
    70272.0
    """
    elements = sum(layers * cached_elements(block) for block, layers in spec.counts())
    return elements * dtype.bytes_per_element


def kv_cache_bytes(spec: ModelSpec, tokens: int, dtype: DType) -> float:
    """Bytes the cache of one sequence of `tokens` holds; a layer with a window keeps no more than its window.

    >>> from ridgeline.core.dtype import dtype
    >>> from ridgeline.models.load import model
    >>> gib = kv_cache_bytes(model("gpt-oss-120b"), 131072, dtype("bf16")) / 2**30
    >>> round(gib, 3)  # 18 of 36 layers keep 128 tokens
    4.504
    """
    elements = sum(layers * held_elements(block, tokens) for block, layers in spec.counts())
    return elements * dtype.bytes_per_element


def state_bytes(spec: ModelSpec, dtype: DType) -> float:
    """Bytes of recurrent state one sequence holds, whatever its length.

        mamba2        H*p*s + (k - 1) * (H*p + 2*g*s)
        gated delta   Hv*dk*dv + (k - 1) * (2*Hk*dk + Hv*dv)
        others        `ridgeline.models.recurrent`

    H, p, s, g = heads, their size, state, groups; Hk, Hv, dk, dv = key and value heads and their sizes; k = conv.

    >>> from ridgeline.core.dtype import dtype
    >>> from ridgeline.models.load import model
    >>> round(state_bytes(model("mamba2-2.7b"), dtype("fp32")) / 2**20, 1)
    163.9
    """
    elements = sum(
        layers * sum(state_elements(mixer, spec.hidden) for mixer in block.mixers) for block, layers in spec.counts()
    )
    return elements * dtype.bytes_per_element


def cached_elements(block: Block) -> float:
    """Elements one more token leaves in the caches of a layer that is still inside its window."""
    return sum(_cached(mixer) for mixer in block.mixers) + (block.captured.cached if block.captured else 0)


def held_elements(block: Block, tokens: int) -> float:
    """Elements that the caches of a layer hold of a sequence of `tokens`."""
    return (
        sum(_held(mixer, tokens) for mixer in block.mixers) + (block.captured.cached if block.captured else 0) * tokens
    )


def read_elements(block: Block, context: int) -> float:
    """Cache elements one decode step of one sequence reads in a layer; of shared keys and values another's."""
    recorded = block.captured.cached * context if block.captured else 0
    return sum(_read(mixer, context) for mixer in block.mixers) + recorded


def kept_tokens(mixer: Attention | CompressedAttention, tokens: int) -> int:
    """Tokens a layer's cache keeps of a sequence as they are."""
    return min(tokens, mixer.window) if mixer.window else tokens


def entry_elements(mixer: CompressedAttention) -> float:
    """Elements a token that compressed attention keeps of it beyond its window: its share of an entry, and of an
    indexer's key."""
    if not mixer.rate:
        return 0.0
    index = mixer.indexer.head_dim if mixer.indexer and not mixer.indexer.shared else 0
    return (mixer.head_dim + index) / mixer.rate


def state_elements(mixer: Mixer, hidden: int) -> int:
    """Elements of recurrent state that one sequence holds in a layer."""
    match mixer:
        case Mamba2():
            mixed = mixer.inner + 2 * mixer.groups * mixer.state
            return mixer.inner * mixer.state + (mixer.conv - 1) * mixed
        case GatedDeltaNet():
            mixed = 2 * mixer.key_heads * mixer.key_dim + mixer.value_heads * mixer.value_dim
            return mixer.value_heads * mixer.value_dim * mixer.key_dim + (mixer.conv - 1) * mixed
        case Recurrence():
            return recurrent_parts(mixer, hidden).state
        case Attention() | LatentAttention() | CompressedAttention():
            return 0
        case _:
            assert_never(mixer)


def _cached(mixer: Mixer) -> float:
    match mixer:
        case Attention():
            return mixer.cached_kv
        case LatentAttention():
            return mixer.kv_rank + mixer.rope_dim + _index_key(mixer)
        case CompressedAttention():
            return mixer.head_dim + entry_elements(mixer)
        case Mamba2() | GatedDeltaNet() | Recurrence():
            return 0
        case _:
            assert_never(mixer)


def _held(mixer: Mixer, tokens: int) -> float:
    if isinstance(mixer, CompressedAttention):
        return mixer.head_dim * kept_tokens(mixer, tokens) + entry_elements(mixer) * tokens
    return _cached(mixer) * (kept_tokens(mixer, tokens) if isinstance(mixer, Attention) else tokens)


def _index_key(mixer: LatentAttention) -> int:
    return mixer.indexer.head_dim if mixer.indexer and not mixer.indexer.shared else 0


def _read(mixer: Mixer, context: int) -> float:
    if isinstance(mixer, LatentAttention) and mixer.indexer:
        picked = min(context, mixer.indexer.topk)
        return float(picked * (mixer.kv_rank + mixer.rope_dim) + context * _index_key(mixer))
    if isinstance(mixer, CompressedAttention) and mixer.rate:
        entries = context / mixer.rate
        seen = min(entries, mixer.indexer.topk) if mixer.indexer else entries
        index = entry_elements(mixer) * context - mixer.head_dim * entries
        return mixer.head_dim * (kept_tokens(mixer, context) + seen) + index
    if isinstance(mixer, Attention) and mixer.causal:
        return float(mixer.kv_heads * (mixer.head_dim + mixer.value_dim) * kept_tokens(mixer, context))
    return float(_held(mixer, context))
