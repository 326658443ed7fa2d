"""Turn a ModelSpec into what a sequence leaves behind for tokens to come: keys and values of its tokens, or a state."""

from __future__ import annotations

from ridgeline.core.dtype import DType
from ridgeline.models.mixer_parts import mixer_parts
from ridgeline.models.parts import CacheRow
from ridgeline.models.spec import Block, ModelSpec


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
    elements = sum(layers * cached_elements(block, spec.hidden) for block, layers in spec.counts())
    return elements * dtype.bytes_per_element


def kv_cache_bytes(spec: ModelSpec, tokens: int, dtype: DType) -> float:
    """Bytes the cache of one sequence of `tokens` holds; a layer with a window keeps no more than its window.

    >>> from ridgeline.core.dtype import dtype
    >>> from ridgeline.models.load import model
    >>> gib = kv_cache_bytes(model("gpt-oss-120b"), 131072, dtype("bf16")) / 2**30
    >>> round(gib, 3)  # 18 of 36 layers keep 128 tokens
    4.504
    """
    elements = sum(layers * resident_elements(block, spec.hidden, tokens) for block, layers in spec.counts())
    return elements * dtype.bytes_per_element


def state_bytes(spec: ModelSpec, dtype: DType) -> float:
    """Bytes of recurrent state one sequence holds, whatever its length.

        mamba2        H*p*s + (k - 1) * (H*p + 2*g*s)
        gated delta   Hv*dk*dv + (k - 1) * (2*Hk*dk + Hv*dv)
        others        `ridgeline.models.recurrent_parts`

    H, p, s, g = heads, their size, state, groups; Hk, Hv, dk, dv = key and value heads and their sizes; k = conv.

    >>> from ridgeline.core.dtype import dtype
    >>> from ridgeline.models.load import model
    >>> round(state_bytes(model("mamba2-2.7b"), dtype("fp32")) / 2**20, 1)
    163.9
    """
    elements = sum(
        layers * sum(mixer_parts(mixer, spec.hidden).state for mixer in block.mixers) for block, layers in spec.counts()
    )
    return elements * dtype.bytes_per_element


def cached_elements(block: Block, hidden: int) -> float:
    """Elements one more token leaves in the caches of a layer that is still inside its window."""
    return sum(row.elements / row.rate for row in _written(block, hidden)) + _recorded(block)


def resident_elements(block: Block, hidden: int, tokens: int) -> float:
    """Elements that the caches of a layer hold of a sequence of `tokens`."""
    return sum(row.elements * row.tokens(tokens) for row in _written(block, hidden)) + _recorded(block) * tokens


def read_elements(block: Block, hidden: int, context: int) -> float:
    """Cache elements one decode step of one sequence reads in a layer; of shared keys and values another's."""
    rows = _rows(block, hidden)
    return sum(row.elements * row.tokens(context, read=True) for row in rows) + _recorded(block) * context


def _rows(block: Block, hidden: int) -> list[CacheRow]:
    return [row for mixer in block.mixers for row in mixer_parts(mixer, hidden).cache]


def _written(block: Block, hidden: int) -> list[CacheRow]:
    return [row for row in _rows(block, hidden) if row.written]


def _recorded(block: Block) -> int:
    """Elements a token leaves behind in what was captured of a layer."""
    return block.captured.cached if block.captured else 0
