"""Causal attention with a sink: one more score for each head, of no key, so that a token may attend to nothing.

    share(i, j) = exp(score(i, j)) / (exp(sink) + sum over visible k of exp(score(i, k)))

`composed` is how frameworks run it op by op; `joined` gives the sink to a fused kernel as a key whose value is zero;
`sink_attention` is the Triton kernel: online softmax that begins with the sink instead of with nothing.

    python examples/operators/sink_attention.py        # a CPU's seconds of `composed` and `joined`, beside their bytes
"""

from __future__ import annotations

import math
import time

import torch

try:
    import triton
    import triton.language as tl
except ImportError:  # the other two need torch alone
    triton = None

# ruff: noqa: N803  names of sizes as kernels have them
QUERIES = KEYS = 32


def composed(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, sink: torch.Tensor) -> torch.Tensor:
    """Op by op: scores and shares of every pair go through memory."""
    batch, heads, tokens, width = q.shape
    k, v = (x.repeat_interleave(heads // x.shape[1], 1) for x in (k, v))
    scores = (q @ k.transpose(-1, -2)).float() / math.sqrt(width)
    scores = scores.masked_fill(torch.ones(tokens, tokens, dtype=torch.bool).triu(1), -math.inf)
    scores = torch.cat([scores, sink.float().view(1, heads, 1, 1).expand(batch, heads, tokens, 1)], -1)
    return scores.softmax(-1)[..., :-1].to(v.dtype) @ v


def joined(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, sink: torch.Tensor) -> torch.Tensor:
    """Through a fused kernel and the sum of its rows: shares without a sink, times the part that it leaves of them.

    With s the logarithm of a row's sum of exponentials: 1 / (1 + exp(sink - s)).
    """
    heads, width = q.shape[1], q.shape[-1]
    k, v = (x.repeat_interleave(heads // x.shape[1], 1) for x in (k, v))
    scale = 1 / math.sqrt(width)
    out, row_sums = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, True, scale=scale)
    left_over = torch.sigmoid(row_sums - sink.float().view(1, heads, 1))
    return out * left_over[..., None].to(out.dtype)


if triton is not None:

    @triton.jit
    def sink_kernel(
        q, k, v, sink, o, heads, kv_heads, tokens, scale, D: tl.constexpr, BQ: tl.constexpr, BK: tl.constexpr
    ):
        """One block of queries of one head: keys by the block up to the last that its queries see."""
        block, head = tl.program_id(0), tl.program_id(1)
        batch, own = head // heads, head % heads
        rows = block * BQ + tl.arange(0, BQ)
        width = tl.arange(0, D)
        at = (head * tokens + rows[:, None]) * D + width[None, :]
        queries = tl.load(q + at, mask=rows[:, None] < tokens, other=0.0).to(tl.float32) * scale
        shared = (batch * kv_heads + own * kv_heads // heads) * tokens
        most = tl.zeros((BQ,), tl.float32) + tl.load(sink + own).to(tl.float32)
        total = tl.zeros((BQ,), tl.float32) + 1.0
        mixed = tl.zeros((BQ, D), tl.float32)
        for first in range(0, (block + 1) * BQ, BK):
            columns = first + tl.arange(0, BK)
            there = (shared + columns[:, None]) * D + width[None, :]
            keys = tl.load(k + there, mask=columns[:, None] < tokens, other=0.0).to(tl.float32)
            values = tl.load(v + there, mask=columns[:, None] < tokens, other=0.0).to(tl.float32)
            scores = tl.dot(queries, tl.trans(keys))
            scores = tl.where((columns[None, :] <= rows[:, None]) & (columns[None, :] < tokens), scores, -float("inf"))
            highest = tl.maximum(most, tl.max(scores, 1))
            shares = tl.exp(scores - highest[:, None])
            kept = tl.exp(most - highest)
            mixed = mixed * kept[:, None] + tl.dot(shares, values)
            total = total * kept + tl.sum(shares, 1)
            most = highest
        tl.store(o + at, (mixed / total[:, None]).to(o.dtype.element_ty), mask=rows[:, None] < tokens)


def sink_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, sink: torch.Tensor) -> torch.Tensor:
    """The Triton kernel; with `TRITON_INTERPRET=1` it runs on a CPU."""
    batch, heads, tokens, width = q.shape
    out = torch.empty_like(q)
    grid = (triton.cdiv(tokens, QUERIES), batch * heads)
    scale = 1 / math.sqrt(width)
    sink_kernel[grid](
        q, k, v, sink, out, heads, k.shape[1], tokens, scale, D=width, BQ=QUERIES, BK=KEYS
    )  # fmt: skip
    return out


def main() -> None:
    """Seconds on this CPU of both that torch alone runs, the best of five."""
    torch.manual_seed(0)
    batch, heads, kv_heads, tokens, width = 1, 8, 2, 2048, 64
    q = torch.randn(batch, heads, tokens, width)
    k, v = (torch.randn(batch, kv_heads, tokens, width) for _ in range(2))
    sink = torch.randn(heads)
    for run in (composed, joined):
        seconds = []
        for _ in range(5):
            begun = time.perf_counter()
            run(q, k, v, sink)
            seconds.append(time.perf_counter() - begun)
        print(f"{run.__name__:9} {min(seconds) * 1e3:7.1f} ms")


if __name__ == "__main__":
    main()
