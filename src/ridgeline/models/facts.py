"""Turn a ModelSpec into what it asks of any machine: flops per token, cache bytes, and flops per byte.

Closed forms, no run and no chip in them. `flops` holds those counts, which are imported from here; below are what a
sequence leaves behind for tokens to come (keys and values, or a state) and what a pass moves at the least.
"""

from __future__ import annotations

from ridgeline.core.dtype import DType
from ridgeline.core.records import dataclass
from ridgeline.models.flops import (
    FlopCount,
    block_flops,
    captured_flops,
    forward_flops_per_token,
    head_flops,
    mean_visible,
    training_flops_per_token,
)
from ridgeline.models.mixer_parts import mixer_parts
from ridgeline.models.params import count, moe_params
from ridgeline.models.parts import CacheRow, MixerParts
from ridgeline.models.spec import Block, ModelSpec, Moe


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
    return sum(row.elements / row.rate for row in _written(block, hidden)) + _captured_cache(block)


def resident_elements(block: Block, hidden: int, tokens: int) -> float:
    """Elements that the caches of a layer hold of a sequence of `tokens`."""
    return sum(row.elements * row.tokens(tokens) for row in _written(block, hidden)) + _captured_cache(block) * tokens


def read_elements(block: Block, hidden: int, context: int) -> float:
    """Cache elements one decode step of one sequence reads in a layer; of shared keys and values another's."""
    rows = _rows(block, hidden)
    return sum(row.elements * row.tokens(context, read=True) for row in rows) + _captured_cache(block) * context


def _rows(block: Block, hidden: int) -> list[CacheRow]:
    return [row for mixer in block.mixers for row in mixer_parts(mixer, hidden).cache]


def _written(block: Block, hidden: int) -> list[CacheRow]:
    return [row for row in _rows(block, hidden) if row.written]


def _captured_cache(block: Block) -> int:
    """Elements a token leaves behind in what was captured of a layer."""
    return block.captured.cached if block.captured else 0


__all__ = [
    "FlopCount",
    "Intensity",
    "arithmetic_intensity_decode",
    "arithmetic_intensity_prefill",
    "block_flops",
    "captured_flops",
    "experts_touched",
    "forward_flops_per_token",
    "kv_cache_bytes",
    "kv_cache_bytes_per_token",
    "mean_visible",
    "state_bytes",
    "training_flops_per_token",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Intensity:
    """Flops of a pass and the bytes it moves at the least: weights once, cache as far as it is read or written."""

    flops: float
    weight_bytes: float
    cache_bytes: float

    @property
    def flops_per_byte(self) -> float:
        """Arithmetic intensity; a chip whose ridge lies above it is bound by memory."""
        return self.flops / (self.weight_bytes + self.cache_bytes)


def experts_touched(experts: int, topk: int, tokens: float) -> float:
    """Distinct experts that `tokens` visit on average when each picks `topk` at random: E * (1 - (1 - k/E)**B).

    >>> round(experts_touched(256, 8, 1), 6), round(experts_touched(256, 8, 64), 1)
    (8.0, 222.4)
    """
    return float(experts * (1 - (1 - topk / experts) ** tokens))


def arithmetic_intensity_prefill(spec: ModelSpec, tokens: int, dtype: DType) -> Intensity:
    """Prefill of one sequence: every layer on all tokens, the head on the last one, weights once, cache written once.

        flops / bytes = (tokens * (forward - head) + head) / (touched weights + kv_cache_bytes(tokens) + state_bytes)

    >>> from ridgeline.core.dtype import dtype
    >>> from ridgeline.models.load import model
    >>> round(arithmetic_intensity_prefill(model("llama3-8b"), 2048, dtype("bf16")).flops_per_byte)
    1943
    """
    forward = forward_flops_per_token(spec, tokens)
    return Intensity(
        flops=tokens * (forward.total - forward.head) + forward.head,
        weight_bytes=_touched_weights(spec, tokens) * dtype.bytes_per_element,
        cache_bytes=kv_cache_bytes(spec, tokens, dtype) + state_bytes(spec, dtype),
    )


def arithmetic_intensity_decode(spec: ModelSpec, batch: int, context: int, dtype: DType) -> Intensity:
    """One decode step of `batch` sequences that hold `context` tokens each.

        flops / bytes = batch * flops a token / (touched weights + batch * (cache read + one token + 2 * state))

    Latent attention is in its absorbed form (scores in the latent, 2*n*H*(2*c + r)) and sparse attention reads the
    tokens it picked and every indexer key. State is in `dtype` too.

    >>> from ridgeline.core.dtype import dtype
    >>> from ridgeline.models.load import model
    >>> steps = [arithmetic_intensity_decode(model("llama3-8b"), batch, 2048, dtype("bf16")) for batch in (1, 64)]
    >>> [round(step.flops_per_byte, 1) for step in steps]
    [1.1, 32.0]
    """
    flops, read = head_flops(spec) + 2.0 * spec.embedding.further_weights, 0.0
    for block, layers in spec.counts():
        layer = block_flops(block, spec.hidden, 0, causal=False).total
        parts = [mixer_parts(mixer, spec.hidden) for mixer in block.mixers]
        flops += layers * (layer + sum(_decode_scores(mixer, context) for mixer in parts))
        read += layers * read_elements(block, spec.hidden, context)
    cache = read * dtype.bytes_per_element + kv_cache_bytes_per_token(spec, dtype) + 2 * state_bytes(spec, dtype)
    weights = _touched_weights(spec, batch) * dtype.bytes_per_element
    return Intensity(flops=batch * flops, weight_bytes=weights, cache_bytes=batch * cache)


def _decode_scores(parts: MixerParts, context: int) -> float:
    """Score flops of one new token that sees a cache of `context` tokens."""
    flops = 0.0
    for scores in parts.attended:
        entries = sum((min(context, span.window) if span.window else context) / span.rate for span in scores.spans)
        flops += 2.0 * entries * scores.heads * scores.decode_width
    return flops


def _touched_weights(spec: ModelSpec, tokens: int) -> float:
    """Parameters a pass over `tokens` reads: all but images, experts nobody picked, and embedding rows looked up."""
    parts = count(spec)
    weights = float(parts.total - parts.experts - parts.vision - parts.encoder - spec.embedding.further_rows)
    weights -= parts.audio + parts.companions
    if not spec.embedding.tied:
        weights -= parts.embedding - spec.embedding.further_rows - spec.embedding.further_weights
    for block, layers in spec.counts():
        if isinstance(block.ffn, Moe):
            expert = moe_params(block.ffn, spec.hidden).experts / block.ffn.experts
            weights += layers * expert * experts_touched(block.ffn.experts, block.ffn.topk, tokens)
    return weights
