"""Two small kernels in Triton, whose compiled forms `compiler_programs` stores."""

# ruff: noqa: N803  names of sizes as kernels have them
from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def rmsnorm(x, w, y, n, eps, B: tl.constexpr):
    row = tl.program_id(0)
    columns = tl.arange(0, B)
    inside = columns < n
    values = tl.load(x + row * n + columns, mask=inside, other=0.0).to(tl.float32)
    scale = tl.rsqrt(tl.sum(values * values, 0) / n + eps)
    weights = tl.load(w + columns, mask=inside, other=0.0)
    tl.store(y + row * n + columns, (values * scale * weights).to(tl.bfloat16), mask=inside)


@triton.jit
def matmul(a, b, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    columns = tl.program_id(1) * BN + tl.arange(0, BN)
    inner = tl.arange(0, BK)
    total = tl.zeros((BM, BN), tl.float32)
    for k in range(0, K, BK):
        left = tl.load(a + rows[:, None] * K + (k + inner)[None, :])
        right = tl.load(b + (k + inner)[:, None] * N + columns[None, :])
        total = tl.dot(left, right, total)
    tl.store(c + rows[:, None] * N + columns[None, :], total.to(tl.bfloat16))
