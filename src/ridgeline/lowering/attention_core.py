"""Turn the part of softmax attention between its projections into ops: scores, rotation, exchange of context ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import ceil
from types import MappingProxyType
from typing import Any

from ridgeline.ir.ops import FLASH_BACKWARD, FLASH_EXTRA, Attend, Collective, Num, Op, Stream
from ridgeline.lowering.context import LoweringContext, stream
from ridgeline.models.facts import mean_visible
from ridgeline.models.spec import Attention

# reads and writes of a score matrix, forward and backward, with a fused masked softmax and a dropout of its own
SCORE_PASSES = (6.0, 9.0)
# the same from a compiler that joins pointwise chains and reductions: written by one product, through softmax and
# dropout at once, read by the other
COMPILED_SCORE_PASSES = (4.0, 7.0)
LOOSE_SCORE_PASSES = (11.0, 14.0)  # the same, scale, mask, softmax and dropout each on their own
# head sizes that kernels of a library are built for; a head between two runs as the wider one. On an H200 cuDNN takes
# as long for 72 to 112 as for 128 and for 136 and 160 as for 192, forward and backward; FlashAttention-2 has 96, too.
# Triton's blocks are powers of two, and a TPU's matrix unit is 128 wide
HEAD_SIZES: Mapping[str, tuple[int, ...]] = MappingProxyType(
    {
        "cudnn": (64, 128, 192, 256),
        "flash-2": (32, 64, 96, 128, 192, 256),
        "triton": (16, 32, 64, 128, 256),
        "xla": (128, 256),
        "other": (64, 128, 192, 256),
    }
)
MASKED = 64.0  # of those, the masked half of the tile on the diagonal; the rest starts and ends a row of tiles
# of its queries and of the keys that arrive, what a step of a balanced (zig-zag) ring works on, the first apart: all
# queries with half of the keys, or half of the queries with all of them
RING_STEP = 0.75
# beside attention in each step: log-sum-exp, correction of the sum so far, copy of keys and values
RING_KERNELS = 3.0
# queries and keys of a block of splash attention on TPUs, forward and backward, as MaxText's recipes for v7x set
# them (sa_block_q, sa_block_q_dkv); a head narrower than the array leaves rows of it idle
SPLASH_BLOCKS = (1024.0, 2048.0)
SYSTOLIC_DEPTH = 128
HOST_BLOCKS = (
    (768, 256),
    (192, 64),
    (0, 32),
)  # queries of a sequence, and of a block (ATen's FlashAttentionKernel.cpp)
Passes = tuple[Sequence[Op], Sequence[Op]]
"""Ops of the forward, and of the input gradient."""


def kernel_head_dim(library: str, head_dim: int) -> int:
    """The head size that a library's flash kernel runs a head as; beyond its largest one whole multiples of 64.

    >>> [kernel_head_dim("cudnn", size) for size in (64, 80, 128, 160, 320)], kernel_head_dim("flash-2", 80)
    ([64, 128, 128, 192, 320], 96)
    """
    sizes = HEAD_SIZES[library]
    return next((size for size in sizes if size >= head_dim), -(-head_dim // 64) * 64)


def both_ways(ctx: LoweringContext, mixer: Attention) -> LoweringContext:
    """The context of an attention that may see what comes behind a query."""
    return ctx if mixer.causal else replace(ctx, causal=False)


def scores(ctx: LoweringContext, heads: int, qk: int, value: int, seen: tuple[int, bool] = (0, False)) -> Passes:
    """Forward and backward of the score part. Flash executes what is visible; unfused all of it, through memory.

    A head runs as the next size that the library has a kernel for (`kernel_head_dim`).
    Documents that fill a sequence together do not see each other: `ctx.span` tokens are all there is to see.
    """
    if not ctx.flash:
        return _unfused_scores(ctx, heads, qk, value)
    tokens, tp = ctx.tokens, ctx.degrees.tp
    visible = mean_visible(ctx.span, seen[0], seen[1], ctx.causal, ctx.queries)
    wide, deep = (size if ctx.host else kernel_head_dim(ctx.engine.kernel, size) for size in (qk, value))
    each = 2 * tokens * heads / tp * (wide + deep)
    size = ctx.precision.activations.bytes_per_element
    operands = tokens * heads / tp * (2 * qk + 2 * value) * size
    steps = ring_steps(ctx)
    again = RING_STEP * (steps - 1)
    if ctx.systolic:
        each = each * max(1.0, SYSTOLIC_DEPTH / wide)
        forward, backward = (each * _in_blocks(ctx, visible, seen, block) for block in SPLASH_BLOCKS)
    elif ctx.host:
        forward = backward = each * min(visible + host_block(ctx.queries) / 2, float(ctx.span))
    else:
        forward, backward = (
            each * (visible + _beyond(ctx, seen, extra) + again * (extra - MASKED)) for extra in FLASH_EXTRA
        )
    backward *= FLASH_BACKWARD
    once = 1 + again  # times that operands are read: by every step of a ring
    shape: dict[str, Any] = {"sizes": kernel_sizes(ctx, heads, qk, value), "steps": steps, "head_dim": wide}
    return (
        [Attend(label="attention", flops=forward, stream_bytes=once * operands, kernels=steps, **shape)],
        [
            Attend(
                label="attention dX", flops=backward, stream_bytes=3 * once * operands, backward=True,
                kernels=2 * steps, **shape,
            )
        ],
    )  # fmt: skip


def host_block(queries: int) -> int:
    """Queries that torch's flash attention for CPUs takes at once; causal ones are multiplied with keys up to the last
    of them, half a block more than is visible. Heads are as wide as they are.

    >>> host_block(128), host_block(512), host_block(4096)
    (32, 64, 256)
    """
    return next(size for least, size in HOST_BLOCKS if queries >= least)


def kernel_sizes(ctx: LoweringContext, heads: int, qk: int, value: int) -> tuple[Num, Num, Num, int, int]:
    """Heads of all sequences, queries and keys of one kernel: a step of a ring has the tokens of a rank on both sides,
    heads traded for sequence leave fewer heads with all tokens."""
    cp, rows = ctx.degrees.cp, ctx.degrees.microbatch * heads / ctx.degrees.tp
    if ctx.resolved.cp_kind == "ring":
        keys = ctx.keys / cp if not ctx.resolved.keys_gathered else ctx.keys
        return rows, ctx.queries / cp, keys, qk, value
    return rows / cp, ctx.queries, ctx.keys, qk, value


def _in_blocks(ctx: LoweringContext, visible: float, seen: tuple[int, bool], block: float) -> float:
    """Keys a query is worked on with where whole blocks of b queries and b keys are, masked or not (splash attention).

    causal   visible + b / 2        sliding window w   b (1 + ceil((w - 1) / b)), at most as if there were none
    """
    window, chunked = seen
    if not ctx.causal:
        return visible
    wide = min(block, ctx.span)
    if not 0 < window < ctx.span:
        return visible + wide / 2
    if chunked:
        return visible + min(block, window) / 2
    return min(wide * (1 + ceil((window - 1) / wide)), ctx.span / 2 + wide / 2)


def ring_steps(ctx: LoweringContext) -> Num:
    """Attention kernels that one becomes under context parallelism: one a rank of a ring, whose keys arrive in turn.

    Keys that are gathered at once, or heads traded for sequence (Ulysses), leave one kernel of the same work.
    """
    return ctx.degrees.cp if ctx.resolved.cp_kind == "ring" and not ctx.resolved.keys_gathered else 1


def _unfused_scores(ctx: LoweringContext, heads: int, qk: int, value: int) -> Passes:
    tokens, tp, size = ctx.tokens, ctx.degrees.tp, ctx.precision.activations.bytes_per_element
    forward = 2 * tokens * heads / tp * (qk + value) * float(ctx.keys)
    sizes = kernel_sizes(ctx, heads, qk, value)
    operands = tokens * heads / tp * (2 * qk + 2 * value) * size
    passes, kernels = _score_passes(ctx.fuses)
    matrix = tokens * ctx.keys * heads / tp * size
    return (
        [
            Attend(
                label="attention", flops=forward, stream_bytes=operands + passes[0] * matrix,
                head_dim=qk, flash=False, kernels=kernels, sizes=sizes,
            )
        ],
        [
            Attend(
                label="attention dX", flops=2 * forward, stream_bytes=2 * operands + passes[1] * matrix,
                head_dim=qk, backward=True, flash=False, kernels=kernels + 6, sizes=sizes,
            )
        ],
    )  # fmt: skip


def _score_passes(fuses: frozenset[str]) -> tuple[tuple[float, float], int]:
    """Passes over the scores, forward and backward, and kernels, transposes and dropout among them."""
    if "elementwise" in fuses:
        return COMPILED_SCORE_PASSES, 8
    return (SCORE_PASSES, 10) if "masked-softmax" in fuses else (LOOSE_SCORE_PASSES, 14)


def _beyond(ctx: LoweringContext, seen: tuple[int, bool], extra: float) -> float:
    """Keys' worth of work beyond what is visible: `extra` for every edge that cuts through tiles, a query's own place
    and where a sliding window begins, which the first queries do not reach: 2 - w / s. Chunks and documents begin where
    tiles do. Where a query sees both ways no tile is masked in half."""
    window, chunked = seen
    if not ctx.causal:
        return extra - MASKED
    slides = 0 < window < ctx.span and not chunked
    return extra * (2 - window / ctx.span if slides else 1.0)


def softcapped(ctx: LoweringContext, mixer: Attention) -> Passes:
    """A tanh of every score before the softmax: an exponential and a division of the special-function unit each, and
    again in the backward; no bytes where a flash kernel does it, two passes over the score matrix where none does."""
    if not mixer.softcap:
        return [], []
    visible = mean_visible(ctx.span, mixer.window, mixer.chunked, ctx.causal, ctx.queries) if ctx.flash else ctx.keys
    each = ctx.tokens * mixer.heads / ctx.degrees.tp * visible
    moved = 0.0 if ctx.flash else 2 * each * ctx.precision.activations.bytes_per_element
    forward = Stream(label="softcap", stream_bytes=moved, exponentials=2 * each, kernels=0.0 if ctx.flash else 3.0)
    return [forward], [replace(forward, label="softcap dX", stream_bytes=2 * moved)]


def rotary(ctx: LoweringContext, elements: Num, mixer: Attention) -> list[Op]:
    """Rotation and norm of queries and keys, where the model has them; the same bytes forward and backward."""
    ops: list[Op] = []
    if mixer.positions == "rope":
        fused = "rotary" in ctx.fuses or "elementwise" in ctx.fuses
        ops.append(stream(ctx, "rotary", elements, 2.0 if fused else 7.0, 1.0 if fused else 6.0))
    if mixer.qk_norm != "none":
        ops.append(stream(ctx, "query-key norm", elements, 2.0, 2.0))
    return ops


def output_gate(ctx: LoweringContext, elements: Num) -> Passes:
    """A sigmoid of the gate times attention's output: two read and one written; backward three read, two written.
    Where nothing fuses them the sigmoid is written and read once more."""
    fused = "elementwise" in ctx.fuses
    passes, back, kernels = (3.0, 5.0, 1.0) if fused else (5.0, 8.0, 2.0)
    return (
        [stream(ctx, "output gate", elements, passes, kernels)],
        [stream(ctx, "output gate dX", elements, back, kernels)],
    )


def _merges(ctx: LoweringContext, kv: Num, heads: Num) -> Passes:
    """Merging what the steps of a ring make, each but the first.

        forward    o <- o e^(l - l') + o_i e^(l_i - l'): o_i read, the sum so far in 32 bits read and written
        backward   gradients of queries, keys and values read and added to those before

    l, l_i, l' = log-sum-exp of the scores so far, of this step, and of both.
    """
    steps = ring_steps(ctx)
    if isinstance(steps, int) and steps == 1:
        return [], []
    each, kernels = RING_STEP * (steps - 1) * ctx.tokens / ctx.degrees.tp, RING_KERNELS * (steps - 1)
    out = heads / 2  # of queries and outputs, half of `heads` is either
    return (
        [stream(ctx, "merge ring steps", each * out, 5.0, kernels)],
        [stream(ctx, "merge ring steps dX", each * (out + kv), 3.0, kernels)],
    )


def context_exchange(ctx: LoweringContext, kv: Num, heads: Num) -> Passes:
    """Context parallelism, forward and backward: keys and values travel round the ring, or heads are exchanged for
    sequence. Backward, keys and values go round again with the gradients they gather."""
    cp, size = ctx.degrees.cp, ctx.precision.activations.bytes_per_element
    if isinstance(cp, int) and cp == 1:
        return [], []
    tokens, tp = ctx.tokens, ctx.degrees.tp
    if ctx.resolved.cp_kind == "ring":
        label, payload = "context ring", tokens * cp * kv / tp * size
        once = Collective(label=label, kind="all-gather", axis="cp", payload_bytes=payload, ranks=cp, stride=tp)
        merged = _merges(ctx, kv, heads)
        back = replace(once, label=f"{label} dX", payload_bytes=2 * payload)
        return [once, *merged[0]], [back, *merged[1]]
    payload = tokens * (heads + kv) / tp * size
    swap = Collective(
        label="context exchange", kind="all-to-all", axis="cp", payload_bytes=payload, ranks=cp, stride=tp,
        parts=tuple(width / (heads + kv) for width in (heads / 2, heads / 2, kv / 2, kv / 2)),
    )  # fmt: skip
    return [swap], [swap]


def heads_for_sequence(ctx: LoweringContext, into: Num, out: Num) -> Passes:
    """Context parallelism of a recurrence, whose heads need all tokens: ranks trade heads for sequence before the scan
    (`into` elements a token) and back behind it (`out`), whatever attention does (Megatron-Core's Mamba layers)."""
    cp, tp = ctx.degrees.cp, ctx.degrees.tp
    if isinstance(cp, int) and cp == 1:
        return [], []
    payload = ctx.tokens * (into + out) / tp * ctx.precision.activations.bytes_per_element
    swap = Collective(
        label="heads for sequence", kind="all-to-all", axis="cp", payload_bytes=payload, ranks=cp, stride=tp,
        parts=(into / (into + out), out / (into + out)),
    )  # fmt: skip
    return [swap], [swap]
