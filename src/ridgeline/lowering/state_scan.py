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

from typing import assert_never

from ridgeline.ir.ops import Attend, Num
from ridgeline.lowering.attention_core import Passes
from ridgeline.lowering.context import LoweringContext
from ridgeline.models.recurrent_parts import recurrence_parts as recurrent_parts
from ridgeline.models.spec import GatedDeltaNet, Mamba2, Recurrence

DELTA_CHUNK = 64  # of flash-linear-attention's gated delta rule
MASK_TILE = 64  # rows of a tile: of a masked square of L x L, (L + tile) / 2 columns a row are worked on
STATE, WIDE = 4.0, 4.0  # bytes of a state while it is summed up, and of products that several heads share


def ssd_scan(ctx: LoweringContext, mixer: Mamba2) -> Passes:
    """Kernels of a Mamba2 scan, forward and backward, on one rank.

        chunk state       2 T d n            flops    x and B in, states out
        state passing     -                           states in fp32 in, in the stored format out
        chunk products    2 T g L n                   B and C in, L scores a token and group out
        chunk scan        2 T d (n + l)               x, C, scores and states in, y out

    T = tokens, d = inner width, n = state, g = groups, L = chunk, l = (L + 64) / 2 of a masked row. States are T / L of
    d n. The backward makes states and products again, then the gradients of states, x, B, C, the products and the
    decay: four products over the state and three over the chunk, twice the chunk products.
    """
    tp, size = ctx.degrees.tp, ctx.precision.activations.bytes_per_element
    tokens, inner, shared = ctx.tokens, mixer.inner / tp, mixer.groups * mixer.state / tp
    stream, both = tokens * inner, tokens * shared
    chunk = mixer.chunk
    states, scored = stream * mixer.state / chunk, tokens * mixer.groups / tp * chunk
    over_state, over_chunk = 2 * stream * mixer.state, stream * (chunk + MASK_TILE)
    products = 2 * both * chunk

    def kernel(label: str, flops: Num, moved: Num, kernels: int = 1, backward: bool = False) -> Attend:
        return Attend(
            label=label, flops=flops, stream_bytes=moved, head_dim=mixer.head_dim, backward=backward, scan=True,
            kernels=kernels,
        )  # fmt: skip

    again = [
        kernel("chunk state", over_state, (stream + both) * size + states * STATE, 2),
        kernel("state passing", 0.0, states * (STATE + size)),
        kernel("chunk products", products, 2 * both * size + scored * WIDE),
    ]
    scan = kernel(
        "chunk scan", over_state + over_chunk, (2 * stream + both + states) * size + scored * WIDE
    )  # fmt: skip
    gradients = [
        kernel("state dX", over_state, (stream + both) * size + states * STATE, backward=True),
        kernel("state passing dX", 0.0, states * (STATE + 3 * size), backward=True),
        kernel("chunk scan dX", over_state + over_chunk, (3 * stream + both + states) * size + scored * WIDE, 2, True),
        kernel("keys and queries dX", 2 * over_state, (2 * stream + 2 * states + 2 * both) * size, 2, True),
        kernel("chunk products dX", over_chunk, 2 * stream * size + scored * WIDE, backward=True),
        kernel("chunk products dB, dC", 2 * products, (4 * both) * size + 2 * scored * WIDE, 2, True),
        kernel("decay dX", over_chunk, 2 * stream * size + scored * WIDE, 2, True),
    ]
    return [*again, scan], [*again, *gradients]


def delta_scan(ctx: LoweringContext, mixer: GatedDeltaNet) -> Passes:
    """Kernels of a gated delta rule, forward and backward, on one rank.

        inside chunks     2 T H L (k + k + v)      flops     keys against keys, solved, then w and u
        states            4 T H k v                          one chunk after another, states out
        output            2 T H (k v + L (k + v) / 2)        states and queries in, output out

    T = tokens, H = value heads, k, v = size of a key and a value, L = chunk. The backward runs the first two again and
    takes twice all three.
    """
    tp, size = ctx.degrees.tp, ctx.precision.activations.bytes_per_element
    heads, key, value, chunk = mixer.value_heads / tp, mixer.key_dim, mixer.value_dim, DELTA_CHUNK
    each = ctx.tokens * heads
    states = each * key * value / chunk

    def kernel(label: str, flops: Num, moved: Num, kernels: int, backward: bool = False) -> Attend:
        return Attend(
            label=label, flops=flops, stream_bytes=moved * size, head_dim=key, backward=backward, scan=True,
            kernels=kernels,
        )  # fmt: skip

    inside = 2 * each * chunk * (2 * key + value), each * (3 * key + 2 * value + 4 * chunk)
    passing = 4 * each * key * value, each * (2 * key + 2 * value) + states
    output = each * (2 * key * value + chunk * (key + value)), each * (2 * key + 2 * value) + states
    again = [kernel("delta chunks", *inside, 4), kernel("delta states", *passing, 1)]
    gradients = [
        kernel("delta output dX", 2 * output[0], 2 * output[1], 2, True),
        kernel("delta states dX", 2 * passing[0], 2 * passing[1], 1, True),
        kernel("delta chunks dX", 2 * inside[0], 2 * inside[1], 5, True),
    ]
    return [*again, kernel("delta output", *output, 1)], [*again, *gradients]


def recurrence_scan(ctx: LoweringContext, mixer: Recurrence) -> Passes:
    """The scan of any other recurrence, forward and backward, on one rank."""
    match mixer.form:
        case "kda":
            heads, key, value = mixer.heads, mixer.key_dim, mixer.value_dim
            return delta_scan(
                ctx, GatedDeltaNet(key_heads=heads, value_heads=heads, key_dim=key, value_dim=value, conv=1)
            )
        case "lightning" | "mlstm":
            return linear_scan(ctx, mixer)
        case "selective" | "wkv":
            return channel_scan(ctx, mixer)
        case "short-conv":
            return [], []
        case _:
            assert_never(mixer.form)


def linear_scan(ctx: LoweringContext, mixer: Recurrence) -> Passes:
    """Linear attention with a decay in chunks of L tokens (lightning attention, mLSTM).

        inside chunks     2 T H l (k + v)      flops     l = (L + 64) / 2 of a masked row
        states            2 T H k v                      states of T / L chunks out
        output            2 T H k v                      states and queries in

    T = tokens, H = heads, k, v = size of a key and a value. The backward takes states again and twice all of it.
    """
    tp, size = ctx.degrees.tp, ctx.precision.activations.bytes_per_element
    each, key, value, chunk = ctx.tokens * mixer.heads / tp, mixer.key_dim, mixer.value_dim, mixer.chunk or DELTA_CHUNK
    states = each * key * value / chunk
    over_state, over_chunk = 2 * each * key * value, each * (chunk + MASK_TILE) * (key + value)

    def kernel(label: str, flops: Num, moved: Num, kernels: int = 1, backward: bool = False) -> Attend:
        return Attend(
            label=label, flops=flops, stream_bytes=moved, head_dim=key, backward=backward, scan=True, kernels=kernels
        )

    stated = kernel("chunk state", over_state, each * (key + value) * size + states * STATE, 2)
    moved = each * (2 * key + 2 * value) * size + states * size
    out = kernel("chunk scan", over_state + over_chunk, moved)
    back = [
        kernel("state dX", 2 * over_state, 2 * each * (key + value) * size + 2 * states * STATE, 2, True),
        kernel("chunk scan dX", 2 * (over_state + over_chunk), 2 * moved, 2, True),
    ]
    return [stated, out], [stated, *back]


def channel_scan(ctx: LoweringContext, mixer: Recurrence) -> Passes:
    """A recurrence of every channel by itself, token after token in one kernel (selective scan, wkv): four numbers of a
    channel come and go, and what all channels share; the backward runs the recurrence again and reads twice as much."""
    tp, size = ctx.degrees.tp, ctx.precision.activations.bytes_per_element
    parts = recurrent_parts(mixer, ctx.model.hidden)
    assert parts.recurrent is not None
    conv = 2.0 * mixer.conv * parts.recurrent.convolved if mixer.conv else 0.0
    flops = ctx.tokens * (parts.recurrent.flops - conv) / tp
    moved = ctx.tokens * (4 * mixer.inner / tp + 2 * mixer.key_dim) * size
    scan = Attend(label="channel scan", flops=flops, stream_bytes=moved, head_dim=MASK_TILE, scan=True)
    back = Attend(
        label="channel scan dX", flops=3 * flops, stream_bytes=2 * moved, head_dim=MASK_TILE, backward=True, scan=True
    )
    return [scan], [back]
