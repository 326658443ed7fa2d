"""Turn a chunked linear scan into its kernels: matrix work inside a chunk, and states that travel through memory.

A state-space or delta-rule mixer is cut into chunks of tokens. Inside a chunk it is a small masked attention; between
chunks a state of every head is handed on. Software runs that as several kernels one after the other, each with its own
flops and bytes, so that some are bound by the matrix unit and some by memory:

    Mamba2 (SSD)         chunk state, state passing, chunk products (C B^T), chunk scan
    gated delta rule     keys against keys, triangular solve, w and u, states chunk after chunk, output
    linear attention     masked attention inside a chunk, states, what queries read of them
    selective scan       channel by channel in one kernel, which makes its state again in the backward

Not counted: cumulated decays and the softplus of the step size, a hundredth of the bytes.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import assert_never

from ridgeline.ir.ops import Attend, Num, Op, Stream
from ridgeline.lowering.context import ForwardWork, LoweringContext
from ridgeline.lowering.op_builders import (
    CoreOps,
    Passes,
    product,
    saved_bytes,
    steps_of,
    stream,
    tensor_collective,
    where_any,
)
from ridgeline.lowering.softmax_core import heads_for_sequence
from ridgeline.models.parts import ChannelScan, DeltaScan, LinearScan, MixerParts, Recurrent, Scan
from ridgeline.models.spec import Mamba2

DELTA_CHUNK = 64  # of flash-linear-attention's gated delta rule
MASK_TILE = 64  # rows of a tile: of a masked square of L x L, (L + tile) / 2 columns a row are worked on
STATE, WIDE = 4.0, 4.0  # bytes of a state while it is summed up, and of products that several heads share


def scan_ops(ctx: LoweringContext, parts: MixerParts, recurrent: Recurrent) -> CoreOps:
    """A mixer with a state: a convolution, the scan, and a norm of what a gate leaves. An engine step scans its prompts
    and reads and writes the state of every decode.

    Convolution in one kernel: read and written; backward its input, its gradient and a new one. Gated norm: output and
    gate read, one written; backward three read and two written.
    """
    tp, tokens = ctx.degrees.tp, ctx.tokens
    conv_elements, gate_elements = tokens * recurrent.convolved / tp, tokens * recurrent.gated / tp
    scan = parts.core
    assert scan is None or isinstance(scan, Scan)
    swap = heads_for_sequence(ctx, parts.into[0].outputs, parts.inner) if parts.splits.traded else ([], [])
    sums = _sums_over_ranks(ctx, parts)
    return CoreOps(
        into=[product(ctx, part) for part in parts.into],
        out=[product(ctx, part) for part in parts.out],
        before=(
            [stream(ctx, "convolution", conv_elements, 2.0)],
            [stream(ctx, "convolution dX", conv_elements, 3.0, 2.0)],
        ),
        core=_sequence(ctx, scan) if ctx.forward is None else _step(ctx, scan, recurrent),
        behind=(
            [stream(ctx, "gated norm", gate_elements, 3.0)],
            [stream(ctx, "gated norm dX", gate_elements, 5.0, 2.0)],
        ),
        exchange=([*swap[0], *sums], [*swap[1], *sums]),
        saved=saved_bytes(ctx, parts),
    )


def _sums_over_ranks(ctx: LoweringContext, parts: MixerParts) -> list[Op]:
    """What tensor ranks sum up before the scan: steps that all channels make together; the backward sums gradients."""
    if isinstance(ctx.degrees.tp, int) and ctx.degrees.tp == 1:
        return []
    rows = [part for part in parts.into if part.split == "inputs"]
    return [tensor_collective(ctx, f"sum of {part.label}", "all-reduce", ctx.tokens * part.outputs) for part in rows]


def _step(ctx: LoweringContext, scan: Scan | None, recurrent: Recurrent) -> Passes:
    """The scan of a step's prompts, and the state of every decode read and written."""
    steps = steps_of(ctx)
    assert ctx.forward is not None
    work = ForwardWork(steps=steps, tokens=steps.prefill_tokens, dp=ctx.forward.dp)
    prompts = where_any(steps.prefill_tokens)
    update = Stream(
        label="state update",
        stream_bytes=2 * STATE * (recurrent.state / ctx.degrees.tp) * steps.decodes * steps.decode_tokens,
        kernels=where_any(steps.decodes),
    )
    ops = _sequence(replace(ctx, forward=work), scan)[0]
    return [*(replace(op, kernels=op.kernels * prompts) if isinstance(op, Attend) else op for op in ops), update], []


def _sequence(ctx: LoweringContext, scan: Scan | None) -> Passes:
    """Kernels of a scan over all tokens, forward and backward, on one rank."""
    match scan:
        case Mamba2():
            return ssd_scan(ctx, scan)
        case DeltaScan():
            return delta_scan(ctx, scan)
        case LinearScan():
            return linear_scan(ctx, scan)
        case ChannelScan():
            return channel_scan(ctx, scan)
        case None:
            return [], []
        case _:
            assert_never(scan)


def _kernel(head_dim: int, label: str, flops: Num, moved: Num, kernels: int = 1, backward: bool = False) -> Attend:
    return Attend(
        label=label, flops=flops, stream_bytes=moved, head_dim=head_dim, backward=backward, scan=True, kernels=kernels
    )


def ssd_scan(ctx: LoweringContext, scan: Mamba2) -> Passes:
    """Kernels of a Mamba2 scan, forward and backward, on one rank.

        chunk state       2 T d n            flops    x and B in, states out
        state passing     -                           states in fp32 in, in the stored format out
        chunk products    2 T g L n                   B and C in, L scores a token and group out
        chunk scan        2 T d (n + l)               x, C, scores and states in, y out

    T = tokens, d = inner width, n = state, g = groups, L = chunk, l = (L + 64) / 2 of a masked row. States are T / L of
    d n. The backward makes states and products again, then the gradients of states, x, B, C, the products and the
    decay: four products over the state and three over the chunk, twice the chunk products.
    """
    tp, size = ctx.degrees.tp, ctx.element_bytes
    tokens, inner, shared = ctx.tokens, scan.inner / tp, scan.groups * scan.state / tp
    inputs, keys = tokens * inner, tokens * shared
    chunk = scan.chunk
    states, score_elements = inputs * scan.state / chunk, tokens * scan.groups / tp * chunk
    over_state, over_chunk = 2 * inputs * scan.state, inputs * (chunk + MASK_TILE)
    products = 2 * keys * chunk

    kernel = partial(_kernel, scan.head_dim)
    states_ops = [
        kernel("chunk state", over_state, (inputs + keys) * size + states * STATE, 2),
        kernel("state passing", 0.0, states * (STATE + size)),
        kernel("chunk products", products, 2 * keys * size + score_elements * WIDE),
    ]
    output = kernel("chunk scan", over_state + over_chunk, (2 * inputs + keys + states) * size + score_elements * WIDE)
    gradients = [
        kernel("state dX", over_state, (inputs + keys) * size + states * STATE, backward=True),
        kernel("state passing dX", 0.0, states * (STATE + 3 * size), backward=True),
        kernel(
            "chunk scan dX",
            over_state + over_chunk,
            (3 * inputs + keys + states) * size + score_elements * WIDE,
            2,
            True,
        ),
        kernel("keys and queries dX", 2 * over_state, (2 * inputs + 2 * states + 2 * keys) * size, 2, True),
        kernel("chunk products dX", over_chunk, 2 * inputs * size + score_elements * WIDE, backward=True),
        kernel("chunk products dB, dC", 2 * products, (4 * keys) * size + 2 * score_elements * WIDE, 2, True),
        kernel("decay dX", over_chunk, 2 * inputs * size + score_elements * WIDE, 2, True),
    ]
    return [*states_ops, output], [*states_ops, *gradients]


def delta_scan(ctx: LoweringContext, scan: DeltaScan) -> Passes:
    """Kernels of a gated delta rule, forward and backward, on one rank.

        inside chunks     2 T H L (k + k + v)      flops     keys against keys, solved, then w and u
        states            4 T H k v                          one chunk after another, states out
        output            2 T H (k v + L (k + v) / 2)        states and queries in, output out

    T = tokens, H = value heads, k, v = size of a key and a value, L = chunk. The backward runs the first two again and
    takes twice all three.
    """
    tp, size = ctx.degrees.tp, ctx.element_bytes
    heads, key, value, chunk = scan.heads / tp, scan.key_dim, scan.value_dim, DELTA_CHUNK
    head_tokens = ctx.tokens * heads
    states = head_tokens * key * value / chunk

    def kernel(label: str, flops: Num, moved: Num, kernels: int, backward: bool = False) -> Attend:
        return _kernel(key, label, flops, moved * size, kernels, backward)

    inside = 2 * head_tokens * chunk * (2 * key + value), head_tokens * (3 * key + 2 * value + 4 * chunk)
    passing = 4 * head_tokens * key * value, head_tokens * (2 * key + 2 * value) + states
    output = head_tokens * (2 * key * value + chunk * (key + value)), head_tokens * (2 * key + 2 * value) + states
    states_ops = [kernel("delta chunks", *inside, 4), kernel("delta states", *passing, 1)]
    gradients = [
        kernel("delta output dX", 2 * output[0], 2 * output[1], 2, True),
        kernel("delta states dX", 2 * passing[0], 2 * passing[1], 1, True),
        kernel("delta chunks dX", 2 * inside[0], 2 * inside[1], 5, True),
    ]
    return [*states_ops, kernel("delta output", *output, 1)], [*states_ops, *gradients]


def linear_scan(ctx: LoweringContext, scan: LinearScan) -> Passes:
    """Linear attention with a decay in chunks of L tokens (lightning attention, mLSTM).

        inside chunks     2 T H l (k + v)      flops     l = (L + 64) / 2 of a masked row
        states            2 T H k v                      states of T / L chunks out
        output            2 T H k v                      states and queries in

    T = tokens, H = heads, k, v = size of a key and a value. The backward takes states again and twice all of it.
    """
    tp, size = ctx.degrees.tp, ctx.element_bytes
    head_tokens, chunk = ctx.tokens * scan.heads / tp, scan.chunk or DELTA_CHUNK
    key, value = scan.key_dim, scan.value_dim
    states = head_tokens * key * value / chunk
    over_state, over_chunk = 2 * head_tokens * key * value, head_tokens * (chunk + MASK_TILE) * (key + value)

    kernel = partial(_kernel, key)
    states_op = kernel("chunk state", over_state, head_tokens * (key + value) * size + states * STATE, 2)
    output_bytes = head_tokens * (2 * key + 2 * value) * size + states * size
    out = kernel("chunk scan", over_state + over_chunk, output_bytes)
    back = [
        kernel("state dX", 2 * over_state, 2 * head_tokens * (key + value) * size + 2 * states * STATE, 2, True),
        kernel("chunk scan dX", 2 * (over_state + over_chunk), 2 * output_bytes, 2, True),
    ]
    return [states_op, out], [states_op, *back]


def channel_scan(ctx: LoweringContext, scan: ChannelScan) -> Passes:
    """A recurrence of every channel by itself, token after token in one kernel (selective scan, wkv): four numbers of a
    channel come and go, and what all channels share; the backward runs the recurrence again and reads twice as much."""
    tp, size = ctx.degrees.tp, ctx.element_bytes
    flops = ctx.tokens * scan.flops / tp
    channel_bytes = ctx.tokens * (4 * scan.channels / tp + 2 * scan.shared) * size
    forward = _kernel(MASK_TILE, "channel scan", flops, channel_bytes)
    return [forward], [_kernel(MASK_TILE, "channel scan dX", 3 * flops, 2 * channel_bytes, backward=True)]
