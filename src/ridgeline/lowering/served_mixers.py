"""Turn a sequence mixer into the ops of an engine step: prompt chunks by the tile, decodes against their cache.

    attention   prefill: flash, over the pairs of its chunks      decode: flash decoding, every cached key once
    latent      prefill: keys and values expanded                 decode: absorbed, over the latents themselves
    state       prefill: a scan in chunks                         decode: the state of every request read and written

Projections see all tokens of a step together, so that what they cost is shared by prompts and decodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import assert_never

import numpy as np

from ridgeline.ir.forward_steps import ForwardSteps
from ridgeline.ir.ops import FLASH_EXTRA, Attend, MatMul, Num, Op, Stream
from ridgeline.lowering.attention_core import kernel_head_dim, output_gate, rotary
from ridgeline.lowering.casts import casts
from ridgeline.lowering.compressed_attention import compressed_output, compressed_products, pooling
from ridgeline.lowering.context import ForwardWork, LoweringContext, matmul, stream
from ridgeline.lowering.mixer_parts import held_params
from ridgeline.lowering.recurrences import projected, summed_over_ranks
from ridgeline.lowering.state_scan import delta_scan, recurrence_scan, ssd_scan
from ridgeline.lowering.sublayer import SublayerOps
from ridgeline.lowering.tensor_boundary import BOTH, Sides, tensor_boundary
from ridgeline.models.recurrent_parts import recurrence_parts as recurrent_parts
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
from ridgeline.plan.serving_settings import BARE

DECODE_KERNELS = 2.0  # parts of a cache side by side, then their sum
VECTOR_ATTENTION = "decode attention on vector units"
SMALLEST_BUCKET = 128.0  # tokens of the shortest context that a program is compiled for
STATE_BYTES = 4.0  # a state is kept in 32 bits
INDEX_BYTES = 1.0  # an indexer's keys and scores are 8 bits wide


def lower_served_mixer(ctx: LoweringContext, mixer: Mixer, sides: Sides = BOTH) -> SublayerOps:
    """Projections, attention or state, and the sum over tensor ranks; no gradients."""
    match mixer:
        case Attention():
            into, core, out_of = _attention(ctx, mixer)
        case LatentAttention():
            into, core, out_of = _latent(ctx, mixer)
        case Mamba2():
            into, core, out_of = _mamba2(ctx, mixer)
        case GatedDeltaNet():
            into, core, out_of = _delta(ctx, mixer)
        case Recurrence():
            into, core, out_of = _recurrence(ctx, mixer)
        case CompressedAttention():
            into, core, out_of = _compressed(ctx, mixer)
        case _:
            assert_never(mixer)
    border = tensor_boundary(ctx, sides)
    cast = (*casts(ctx, into[:1], "norm" in ctx.fuses), *casts(ctx, [*into[1:], *out_of]))
    return SublayerOps(
        forward=(*cast, *border.entry, *into, *core, *out_of, *border.exit), params=held_params(ctx, mixer)
    )


Parts = tuple[Sequence[MatMul], Sequence[Op], Sequence[MatMul]]
"""Products before the core, the core, products behind it."""


def steps_of(ctx: LoweringContext) -> ForwardSteps:
    """The steps of a context that has them."""
    assert ctx.forward is not None
    return ctx.forward.steps


def windowed(tokens: Num, pairs: Num, window: int, chunked: bool = False) -> Num:
    """Pairs that are left where a query sees the last `window` tokens: of t tokens with p pairs, which look like a
    sequence of s = 2 p / t,

        sliding   t (w - w^2 / (2 s))        chunked   t w / 2        where w < s

    >>> windowed(8192, 8192 * 4096, 4096), windowed(1024, 1024 * 512, 4096)
    (25165824.0, 524288.0)
    """
    if not window:
        return pairs
    seen = np.maximum(2 * pairs / np.maximum(tokens, 1.0), 1.0)
    kept = tokens * (window / 2 if chunked else window - window**2 / (2 * seen))
    found = np.where(window < seen, np.minimum(kept, pairs), pairs)
    return found if found.ndim else float(found)


def held_heads(mixer: Attention, tp: Num, cores: int) -> tuple[Num, Num]:
    """Query heads of all ranks together, and how often every cached head is held.

    Where tensor ranks are cores of a chip, query heads are padded to a multiple of them, and a cached head of its own
    stands on each core.

    >>> mixer = Attention(heads=32, kv_heads=8, head_dim=128)
    >>> [tuple(float(x) for x in held_heads(mixer, tp, cores)) for tp, cores in ((4, 1), (16, 1), (12, 2))]
    [(32.0, 1.0), (32.0, 2.0), (48.0, 3.0)]
    """
    ranks = tp * cores
    if cores == 1:
        return mixer.heads, np.maximum(1.0, ranks / mixer.kv_heads)
    return np.ceil(mixer.heads / ranks) * ranks, np.ceil(mixer.kv_heads / ranks) * ranks / mixer.kv_heads


def bucket(tokens: Num) -> Num:
    """The compiled context that so many tokens run in: the next power of two, 128 at least.

    >>> [float(bucket(one)) for one in (1.0, 129.0, 4096.0, 4097.0)]
    [128.0, 256.0, 4096.0, 8192.0]
    """
    return 2.0 ** np.ceil(np.log2(np.maximum(tokens, SMALLEST_BUCKET)))


def cached_read(ctx: LoweringContext, window: int) -> Num:
    """Cached tokens that decodes read: all, or at most a window of each request's; the whole bucket where programs are
    compiled for one."""
    steps = steps_of(ctx)
    read: Num = steps.kv_tokens
    if (ctx.engine.serves or BARE).static_shapes:
        each = steps.kv_tokens / np.maximum(steps.decodes, 1.0)
        read = np.where(steps.decodes > 0, steps.decodes * bucket(each), 0.0)
    return np.minimum(read, steps.decodes * window) if window else read


def _attention(ctx: LoweringContext, mixer: Attention) -> Parts:
    tp, tokens, hidden = ctx.degrees.tp, ctx.tokens, ctx.model.hidden
    heads, copies = held_heads(mixer, tp, (ctx.engine.serves or BARE).rank_cores)
    wide, values = heads * mixer.head_dim, heads * mixer.value_dim
    projected = mixer.projected_kv
    qkv = matmul(ctx, "qkv", tokens, (wide * (1 + mixer.gate) + projected * copies) / tp, hidden)
    out = matmul(ctx, "attention out", tokens, hidden, values / tp)
    turned = 0 if mixer.kv_shared else mixer.kv_heads * copies * mixer.head_dim
    turn = rotary(ctx, tokens * (wide + turned) / tp, mixer)
    core = [*turn, *served_scores(ctx, mixer)]
    if mixer.softcap:  # a tanh of every score: an exponential and a division
        steps = steps_of(ctx)
        pairs = windowed(steps.prefill_tokens, steps.prefill_pairs, mixer.window, mixer.chunked)
        seen = pairs + cached_read(ctx, mixer.window) * steps.decode_tokens
        core.append(Stream(label="softcap", stream_bytes=0.0, exponentials=2 * seen * heads / tp, kernels=0.0))
    return [qkv], [*core, *(output_gate(ctx, tokens * values / tp)[0] if mixer.gate else [])], [out]


def served_scores(ctx: LoweringContext, mixer: Attention) -> list[Op]:
    """What attention does between its projections: its cache written, prompts by the tile, decodes against it. Nothing
    is cached for queries that see what comes behind them."""
    tp, seen = ctx.degrees.tp, (mixer.window, mixer.chunked)
    heads, copies = held_heads(mixer, tp, (ctx.engine.serves or BARE).rank_cores)
    kept = mixer.kv_heads * copies * (mixer.head_dim + mixer.value_dim) / tp
    if not mixer.causal:
        return [_prefill_scores(ctx, heads, mixer.head_dim, mixer.value_dim, seen, causal=False)]
    return [
        *([] if mixer.kv_shared else [cache_write(ctx, ctx.tokens * kept)]),
        _prefill_scores(ctx, heads, mixer.head_dim, mixer.value_dim, seen),
        _decode_scores(ctx, mixer, heads, kept),
    ]


def cache_write(ctx: LoweringContext, elements: Num) -> Stream:
    """New keys and values, read as they are computed and written into their blocks of the cache."""
    size = ctx.precision.activations.bytes_per_element + ctx.precision.kv.bytes_per_element
    return Stream(label="cache write", stream_bytes=elements * size, kernels=1.0)


def _prefill_scores(
    ctx: LoweringContext, heads: Num, qk: int, value: int, seen: tuple[int, bool] = (0, False), causal: bool = True
) -> Attend:  # fmt: skip
    """Flash attention of the step's prompt chunks: flops of visible pairs, and of the masked parts of tiles. Where
    queries see both ways, sequences are read whole and every pair counts: twice those of a chunk."""
    steps, tp = steps_of(ctx), ctx.degrees.tp
    tokens, pairs = steps.prefill_tokens, windowed(steps.prefill_tokens, steps.prefill_pairs, *seen)
    if not causal:
        whole = 2 * steps.prefill_pairs
        pairs = np.minimum(whole, tokens * seen[0]) if seen[0] else whole
    wide, deep = (kernel_head_dim(ctx.engine.kernel, size) for size in (qk, value))
    size = ctx.precision.activations.bytes_per_element
    return Attend(
        label="prefill attention",
        flops=2 * heads / tp * (wide + deep) * (pairs + FLASH_EXTRA[0] * tokens),
        stream_bytes=tokens * heads / tp * (2 * qk + 2 * value) * size,
        head_dim=wide,
        kernels=_active(tokens),
    )


def _decode_scores(ctx: LoweringContext, mixer: Attention, heads: Num, kept: Num) -> Attend:
    """Flash decoding: every cached key and value of a decode is read once by all query heads that share it. Where the
    engine's kernels for such groups do not use matrix units, every query head works through all of it."""
    steps, tp = steps_of(ctx), ctx.degrees.tp
    read, size = cached_read(ctx, mixer.window), ctx.precision.activations.bytes_per_element
    both, queries = mixer.head_dim + mixer.value_dim, steps.decodes * steps.decode_tokens
    local = max(1.0, mixer.kv_heads / float(np.max(tp)))
    group, made_for = max(1.0, mixer.heads / float(np.max(tp)) / local), (ctx.engine.serves or BARE).shared_groups
    return Attend(
        label="decode attention" if made_for is None or group in made_for else VECTOR_ATTENTION,
        flops=2 * read * steps.decode_tokens * heads / tp * both,
        stream_bytes=read * kept * ctx.precision.kv.bytes_per_element + queries * heads / tp * both * size,
        head_dim=mixer.head_dim,
        kernels=DECODE_KERNELS * _active(steps.decodes),
        caches=steps.decodes * local,
        sharing=group,
    )


def _latent(ctx: LoweringContext, mixer: LatentAttention) -> Parts:
    """Latent attention: prompts with keys and values expanded for every head, decodes absorbed.

        decode   2 n H (2 c + r) flops and n (c + r) cached numbers        n = cached tokens read

    H = heads of a rank, c = kv_rank, r = rope_dim. Every tensor rank holds the whole latents. An indexer scores all
    cached tokens of a decode and leaves its topk of them.
    """
    steps, tp, tokens, hidden = steps_of(ctx), ctx.degrees.tp, ctx.tokens, ctx.model.hidden
    rank, rope, heads = mixer.kv_rank, mixer.rope_dim, mixer.heads / tp
    qk, down = mixer.nope_dim + rope, rank + rope + mixer.q_rank
    decoded = steps.decodes * steps.decode_tokens
    into = [
        matmul(ctx, "latent down", tokens, down, hidden),
        matmul(ctx, "query up", tokens, heads * qk, mixer.q_rank or hidden),
        _some(matmul(ctx, "key-value up", steps.prefill_tokens, heads * (mixer.nope_dim + mixer.v_dim), rank)),
        _some(matmul(ctx, "query into latent", decoded, rank, mixer.nope_dim, heads)),
    ]
    out_of = [
        _some(matmul(ctx, "value up", decoded, mixer.v_dim, rank, heads)),
        matmul(ctx, "attention out", tokens, hidden, heads * mixer.v_dim),
    ]
    read = cached_read(ctx, mixer.indexer.topk if mixer.indexer else 0)
    size = ctx.precision.activations.bytes_per_element
    core: list[Op] = [
        stream(ctx, "latent norms", tokens * down, 4.0, 2.0),
        stream(ctx, "rotary", tokens * (heads + 1) * rope, 2.0, 1.0),
        cache_write(ctx, tokens * (rank + rope)),
        _prefill_scores(ctx, mixer.heads, qk, mixer.v_dim, (mixer.indexer.topk if mixer.indexer else 0, False)),
        Attend(
            label="decode attention",
            flops=2 * read * steps.decode_tokens * heads * (2 * rank + rope),
            stream_bytes=read * (rank + rope) * ctx.precision.kv.bytes_per_element
            + decoded * heads * (2 * rank + rope) * size,
            head_dim=rank + rope,
            kernels=DECODE_KERNELS * _active(steps.decodes),
            caches=steps.decodes,
            sharing=float(np.max(heads)),
        ),
    ]
    return into, [*core, *_indexer(ctx, mixer)], out_of


def _indexer(ctx: LoweringContext, mixer: LatentAttention) -> list[Op]:
    """Scoring all cached tokens with an indexer's small heads: its keys are read once a decode."""
    indexer, steps = mixer.indexer, steps_of(ctx)
    if indexer is None or indexer.shared:
        return []
    pairs = steps.kv_tokens * steps.decode_tokens + steps.prefill_pairs
    return [
        matmul(ctx, "index queries", ctx.tokens, indexer.heads * indexer.head_dim, mixer.q_rank or ctx.model.hidden),
        Attend(
            label="index scores",
            flops=2 * pairs * indexer.heads * indexer.head_dim,
            stream_bytes=steps.kv_tokens * indexer.head_dim * INDEX_BYTES + pairs * STATE_BYTES,
            head_dim=indexer.head_dim,
            kernels=3.0,
        ),
    ]


def _mamba2(ctx: LoweringContext, mixer: Mamba2) -> Parts:
    tp, tokens, hidden = ctx.degrees.tp, ctx.tokens, ctx.model.hidden
    conv = mixer.inner + 2 * mixer.groups * mixer.state
    project = matmul(ctx, "state in", tokens, (mixer.inner + conv + mixer.heads) / tp, hidden)
    out = matmul(ctx, "state out", tokens, hidden, mixer.inner / tp)
    state = mixer.inner * mixer.state / tp
    return [project], _recurrent(ctx, ssd_scan(_prompts(ctx), mixer)[0], conv / tp, mixer.inner / tp, state), [out]


def _delta(ctx: LoweringContext, mixer: GatedDeltaNet) -> Parts:
    tp, tokens, hidden = ctx.degrees.tp, ctx.tokens, ctx.model.hidden
    key, value = mixer.key_heads * mixer.key_dim, mixer.value_heads * mixer.value_dim
    project = matmul(ctx, "delta in", tokens, (2 * key + 2 * value + 2 * mixer.value_heads) / tp, hidden)
    out = matmul(ctx, "delta out", tokens, hidden, value / tp)
    state = mixer.value_heads * mixer.key_dim * mixer.value_dim / tp
    core = _recurrent(ctx, delta_scan(_prompts(ctx), mixer)[0], (2 * key + value) / tp, value / tp, state)
    return [project], core, [out]


def _recurrence(ctx: LoweringContext, mixer: Recurrence) -> Parts:
    parts, tp = recurrent_parts(mixer, ctx.model.hidden), ctx.degrees.tp
    assert parts.recurrent is not None
    scan = recurrence_scan(_prompts(ctx), mixer)[0]
    core = _recurrent(ctx, scan, parts.recurrent.convolved / tp, parts.recurrent.gated / tp, parts.recurrent.state / tp)
    into = [projected(ctx, one) for one in parts.into]
    return into, [*summed_over_ranks(ctx, parts), *core], [projected(ctx, parts.out[0])]


def _compressed(ctx: LoweringContext, mixer: CompressedAttention) -> Parts:
    """Compressed attention: prompts over what they see, decodes over their window and the entries that are picked.

        decode   4 n H d flops and n d cached numbers        n = window and picked entries of the cached tokens

    H = heads of a rank of size d. Every tensor rank holds the whole cache.
    """
    steps, heads, dim = steps_of(ctx), mixer.heads / ctx.degrees.tp, mixer.head_dim
    into, index = compressed_products(ctx, mixer)
    entries = steps.kv_tokens / mixer.rate if mixer.rate else 0.0
    picked = np.minimum(entries, steps.decodes * mixer.indexer.topk) if mixer.indexer else entries
    read = cached_read(ctx, mixer.window) + picked
    decoded = steps.decodes * steps.decode_tokens
    pairs = windowed(steps.prefill_tokens, steps.prefill_pairs, mixer.window)
    if mixer.rate:
        span = mixer.indexer.topk * mixer.rate if mixer.indexer else 0
        pairs = pairs + windowed(steps.prefill_tokens, steps.prefill_pairs, span) / mixer.rate
    size = ctx.precision.activations.bytes_per_element
    core: list[Op] = [
        stream(ctx, "latent norms", ctx.tokens * (mixer.q_rank + dim), 4.0, 2.0),
        stream(ctx, "query norm and rotary", ctx.tokens * heads * dim, 2.0, 2.0),
        *pooling(ctx, mixer),
        cache_write(ctx, ctx.tokens * (dim + entry_elements(mixer))),
        Attend(
            label="prefill attention", flops=4 * pairs * heads * dim,
            stream_bytes=3 * steps.prefill_tokens * heads * dim * size, head_dim=dim,
            kernels=_active(steps.prefill_tokens),
        ),
        Attend(
            label="decode attention", flops=4 * read * steps.decode_tokens * heads * dim,
            stream_bytes=read * dim * ctx.precision.kv.bytes_per_element + 3 * decoded * heads * dim * size,
            head_dim=dim, kernels=DECODE_KERNELS * _active(steps.decodes), caches=steps.decodes,
            sharing=float(np.max(heads)),
        ),
    ]  # fmt: skip
    scored = _entry_scores(ctx, mixer.indexer, mixer.rate) if index and mixer.indexer else []
    return [*into, *index], [*scored, *core], compressed_output(ctx, mixer)


def _entry_scores(ctx: LoweringContext, indexer: Indexer, rate: int) -> list[Op]:
    """Scoring the entries of all cached tokens with an indexer's small heads."""
    steps = steps_of(ctx)
    pairs = (steps.kv_tokens * steps.decode_tokens + steps.prefill_pairs) / rate
    moved = steps.kv_tokens / rate * indexer.head_dim * INDEX_BYTES + pairs * STATE_BYTES
    work = 2 * pairs * indexer.heads * indexer.head_dim
    return [Attend(label="index scores", flops=work, stream_bytes=moved, head_dim=indexer.head_dim, kernels=3.0)]


def _recurrent(ctx: LoweringContext, scan: Sequence[Op], convolved: Num, gated: Num, state: Num) -> list[Op]:
    """Convolution, the scan of prompts, the state of every decode read and written, and the gated norm."""
    steps, prompts = steps_of(ctx), _active(steps_of(ctx).prefill_tokens)
    update = Stream(
        label="state update",
        stream_bytes=2 * STATE_BYTES * state * steps.decodes * steps.decode_tokens,
        kernels=_active(steps.decodes),
    )
    scanned = [replace(op, kernels=op.kernels * prompts) if isinstance(op, Attend) else op for op in scan]
    around = [
        stream(ctx, "convolution", ctx.tokens * convolved, 2.0), stream(ctx, "gated norm", ctx.tokens * gated, 3.0)
    ]  # fmt: skip
    return [around[0], *scanned, update, around[1]]


def _prompts(ctx: LoweringContext) -> LoweringContext:
    """The context of a step's prompt tokens alone."""
    assert ctx.forward is not None
    own = ForwardWork(steps=ctx.forward.steps, tokens=ctx.forward.steps.prefill_tokens, dp=ctx.forward.dp)
    return replace(ctx, forward=own)


def entry_elements(mixer: CompressedAttention) -> float:
    """Elements a token that compressed attention keeps of it beyond its window."""
    if not mixer.rate:
        return 0.0
    index = mixer.indexer.head_dim if mixer.indexer and not mixer.indexer.shared else 0
    return (mixer.head_dim + index) / mixer.rate


def _active(size: Num) -> Num:
    """1 where there is something to do, else 0."""
    return np.where(np.asarray(size) > 0, 1.0, 0.0)


def _some(product: MatMul) -> MatMul:
    """A product that steps without rows do not run."""
    there = _active(product.m)
    groups, rows = product.groups * there, np.maximum(product.m, 1.0)
    return replace(product, m=rows, groups=groups, launches=product.launches * there)
