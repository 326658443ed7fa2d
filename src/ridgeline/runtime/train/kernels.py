# ruff: noqa: N803  constants of a Triton kernel are upper-case
"""Ridgeline's own Triton kernels: loss and its gradient in place, rotary positions, gated activation, AdamW.

    cross_entropy   a row of logits -> log sum exp - logit of the target; the row becomes its gradient
    rotate          pairs of a head turned by the angle of their place; the other way round on the way back
    gated           silu(gate) up, and both gradients from the same two inputs
    sums_of_squares of all gradients, for their norm
    adamw           weight, master and both moments of one tensor, each in its own format, in one pass

Each reads its inputs once and computes in 32 bits. `fused` calls them where the device has Triton, and the same
formulas in torch where it has not.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from ridgeline.core.documents import JsonObject

WIDE = 4096  # values of a row that a program of cross_entropy holds at a time
FLAT = 2048  # values of a flat tensor that a program works on
SQUARED = 16  # blocks of a flat tensor that a program adds up
MOST_HEADS = 16  # that a program of rotate turns


@triton.jit  # type: ignore[untyped-decorator]
def _cross_entropy(logits, targets, losses, scale, stride, columns: tl.constexpr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    row = tl.program_id(0).to(tl.int64)
    logits += row * stride
    target = tl.load(targets + row)
    place = tl.arange(0, BLOCK)
    top = tl.full((), float("-inf"), tl.float32)
    total = tl.full((), 0.0, tl.float32)
    for first in range(0, columns, BLOCK):
        here = first + place < columns
        value = tl.load(logits + first + place, mask=here, other=float("-inf")).to(tl.float32)
        more = tl.maximum(top, tl.max(value, 0))
        total = total * tl.exp(top - more) + tl.sum(tl.exp(value - more), 0)
        top = more
    target_logit = tl.load(logits + target).to(tl.float32)
    tl.store(losses + row, tl.log(total) + top - target_logit)
    tl.debug_barrier()
    for first in range(0, columns, BLOCK):
        here = first + place < columns
        value = tl.load(logits + first + place, mask=here, other=float("-inf")).to(tl.float32)
        slope = tl.exp(value - top) / total - tl.where(first + place == target, 1.0, 0.0)
        tl.store(logits + first + place, (slope * scale).to(logits.dtype.element_ty), mask=here)


def cross_entropy(logits: Tensor, targets: Tensor, scale: float) -> Tensor:
    """Losses of [tokens, vocabulary] in 32 bits; the logits become `scale` times their gradient."""
    losses = torch.empty(logits.shape[0], dtype=torch.float32, device=logits.device)
    grid = (logits.shape[0],)
    _cross_entropy[grid](
        logits, targets, losses, scale, logits.stride(0), columns=logits.shape[1], BLOCK=WIDE, num_warps=8
    )
    return losses


@triton.jit  # type: ignore[untyped-decorator]
def _rotate(x, out, cos, sin, tokens, heads, half, sign, HEADS: tl.constexpr, HALF: tl.constexpr):  # type: ignore[no-untyped-def]
    row = tl.program_id(0).to(tl.int64)  # of batch x tokens
    head = tl.program_id(1) * HEADS + tl.arange(0, HEADS)
    pair = tl.arange(0, HALF)
    angle = (row % tokens) * half + pair
    inside = pair < half
    c = tl.load(cos + angle, mask=inside, other=0.0)[None, :]
    s = tl.load(sin + angle, mask=inside, other=0.0)[None, :] * sign
    at = (row * heads + head[:, None]) * (2 * half) + pair[None, :]
    here = (head[:, None] < heads) & inside[None, :]
    first = tl.load(x + at, mask=here).to(tl.float32)
    second = tl.load(x + at + half, mask=here).to(tl.float32)
    kind = out.dtype.element_ty
    tl.store(out + at, (first * c - second * s).to(kind), mask=here)
    tl.store(out + at + half, (second * c + first * s).to(kind), mask=here)


def rotate(x: Tensor, cos: Tensor, sin: Tensor, sign: float) -> Tensor:
    """[batch, tokens, heads, width] turned by `sign` times angles [tokens, width / 2]; pairs are halves of a head."""
    x = x.contiguous()
    batch, tokens, heads, width = x.shape
    out = torch.empty_like(x)
    many, half = min(MOST_HEADS, triton.next_power_of_2(heads)), width // 2
    grid = (batch * tokens, triton.cdiv(heads, many))
    _rotate[grid](
        x, out, cos, sin, tokens, heads, half, sign, HEADS=many, HALF=triton.next_power_of_2(half), num_warps=4
    )
    return out


@triton.jit  # type: ignore[untyped-decorator]
def _gated_activation(gate, up, out, size, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    here = at < size
    g = tl.load(gate + at, mask=here).to(tl.float32)
    u = tl.load(up + at, mask=here).to(tl.float32)
    tl.store(out + at, (g / (1.0 + tl.exp(-g)) * u).to(out.dtype.element_ty), mask=here)


@triton.jit  # type: ignore[untyped-decorator]
def _gated_back(gate, up, d_out, d_gate, d_up, size, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    here = at < size
    g = tl.load(gate + at, mask=here).to(tl.float32)
    u = tl.load(up + at, mask=here).to(tl.float32)
    d = tl.load(d_out + at, mask=here).to(tl.float32)
    share = 1.0 / (1.0 + tl.exp(-g))
    kind = d_gate.dtype.element_ty
    tl.store(d_up + at, (d * g * share).to(kind), mask=here)
    tl.store(d_gate + at, (d * u * share * (1.0 + g * (1.0 - share))).to(kind), mask=here)


def gated_activation(gate: Tensor, up: Tensor) -> Tensor:
    gate, up = gate.contiguous(), up.contiguous()
    out = torch.empty_like(gate)
    _gated_activation[(triton.cdiv(gate.numel(), FLAT),)](gate, up, out, gate.numel(), BLOCK=FLAT, num_warps=8)
    return out


def gated_back(gate: Tensor, up: Tensor, d_out: Tensor) -> tuple[Tensor, Tensor]:
    gate, up, d_out = gate.contiguous(), up.contiguous(), d_out.contiguous()
    d_gate, d_up = torch.empty_like(gate), torch.empty_like(up)
    grid = (triton.cdiv(gate.numel(), FLAT),)
    _gated_back[grid](gate, up, d_out, d_gate, d_up, gate.numel(), BLOCK=FLAT, num_warps=8)
    return d_gate, d_up


@triton.jit  # type: ignore[untyped-decorator]
def _squares(x, out, size, BLOCK: tl.constexpr, MANY: tl.constexpr):  # type: ignore[no-untyped-def]
    first = tl.program_id(0).to(tl.int64) * BLOCK * MANY
    place = tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.float32)
    for index in range(MANY):
        at = first + index * BLOCK + place
        value = tl.load(x + at, mask=at < size, other=0.0).to(tl.float32)
        total += value * value
    tl.store(out + tl.program_id(0), tl.sum(total, 0))


def sums_of_squares(tensors: list[Tensor]) -> Tensor:
    """Of many tensors together, in 32 bits; partial sums are added in one order, so that a run repeats to the bit."""
    program_elements = FLAT * SQUARED
    programs = [triton.cdiv(tensor.numel(), program_elements) for tensor in tensors]
    parts = torch.empty(sum(programs), dtype=torch.float32, device=tensors[0].device)
    for tensor, many, out in zip(tensors, programs, parts.split(programs), strict=True):
        _squares[(many,)](tensor, out, tensor.numel(), BLOCK=FLAT, MANY=SQUARED, num_warps=8)
    return parts.sum()


@triton.jit  # type: ignore[untyped-decorator]
def _adamw(  # type: ignore[no-untyped-def]
    weight, master, gradient, first, second, scale, steps, size, rate, decay, beta1, beta2, epsilon,
    APART: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    here = at < size
    count = tl.load(steps)
    g = tl.load(gradient + at, mask=here).to(tl.float32) * tl.load(scale)
    m = tl.load(first + at, mask=here).to(tl.float32)
    v = tl.load(second + at, mask=here).to(tl.float32)
    w = tl.load(master + at, mask=here).to(tl.float32)
    m = beta1 * m + (1.0 - beta1) * g
    v = beta2 * v + (1.0 - beta2) * g * g
    whole1 = 1.0 - tl.exp2(count * tl.log2(beta1))
    whole2 = 1.0 - tl.exp2(count * tl.log2(beta2))
    w = w * (1.0 - rate * decay) - rate * (m / whole1) / (tl.sqrt(v / whole2) + epsilon)
    tl.store(first + at, m.to(first.dtype.element_ty), mask=here)
    tl.store(second + at, v.to(second.dtype.element_ty), mask=here)
    tl.store(master + at, w.to(master.dtype.element_ty), mask=here)
    if APART:
        tl.store(weight + at, w.to(weight.dtype.element_ty), mask=here)


def adamw(
    weight: Tensor, master: Tensor, gradient: Tensor, moments: tuple[Tensor, Tensor], device: tuple[Tensor, Tensor],
    options: JsonObject,
) -> None:  # fmt: skip
    """One tensor's update; `device` holds the factor on gradients and the count of steps, both on the chip.

    A weight that is its own master is written once.
    """
    size = master.numel()
    _adamw[(triton.cdiv(size, FLAT),)](
        weight, master, gradient, *moments, *device, size, options["rate"], options["decay"], *options["betas"],
        options["epsilon"], APART=master.data_ptr() != weight.data_ptr(), BLOCK=FLAT, num_warps=8,
    )  # fmt: skip
