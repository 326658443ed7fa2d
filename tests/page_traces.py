"""Make Kineto traces that look like training a transformer, for the page: many ranks, many spans, every kind of work.

A host that issues ops at a steady pace, two streams, kernels that start when their stream is free and their launch has
come, gradients reduced while the backward pass goes on, a slow rank, a copy of the batch and an optimizer at the end.

    python tests/page_traces.py FOLDER [SPANS]
"""

from __future__ import annotations

import random
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from traces import COMPUTE, HOST, LEAD, NETWORK, Maker, Recipe, write

TOKENS, HIDDEN, WIDE = 4096, 4096, 14336
PACE = 11.0  # microseconds the host needs for an op
SPANS_A_LAYER = 3 * 24 + 4  # op, call and kernel of 24 kernels, and notes
MATMUL, ATTEND = "nvjet_sm90_tst_256x128_64x4_2x1_v_bz_coopA", "flash_fwd_kernel<Flash_fwd_kernel_traits<128, 128>>"
NORM, ROPE = "rms_norm_kernel<c10::BFloat16>", "rotary_embedding_kernel"
GATE = "void at::native::vectorized_elementwise_kernel<4, at::native::silu_kernel, std::array<char*, 2>>"
ADD = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<c10::BFloat16>>"
ADAM = "void at::native::multi_tensor_apply_kernel<FusedAdamMathFunctor<float, 4>>"


def flat(operands: int) -> dict[str, Any]:
    """Operands of hidden states."""
    return {"dims": [[TOKENS, HIDDEN]] * operands, "types": ["c10::BFloat16"] * operands}


class Transformer(Maker):
    """One rank of a data-parallel run."""

    def __init__(self, recipe: Recipe, seed: int = 0) -> None:
        super().__init__(recipe)
        self.random = random.Random(1000 * seed + recipe.rank)
        self.free = {COMPUTE: 0.0, NETWORK: 0.0}
        self.host = recipe.start_us
        self.slow = 1.09 if recipe.world > 1 and recipe.rank == recipe.world - 1 else 1.0

    def issue(self, op: str, kernel: str, us: float, stream: int = COMPUTE, **more: Any) -> None:
        at = self.host
        start = round(max(self.free[stream], at + LEAD + 2, more.pop("after", 0.0)), 3)
        length = round(us * self.random.uniform(0.97, 1.06) * (self.slow if stream == COMPUTE else 1.0), 3)
        self.op(op, at, kernel, stream, start, length, 0, **more)
        self.free[stream] = round(start + length, 3)
        self.host = round(at + PACE * self.random.uniform(0.8, 1.5), 3)

    def product(self, rows: int, inner: int, columns: int, rate: float) -> None:
        kinds = ["c10::BFloat16"] * 2
        us = 2 * rows * inner * columns / (rate * 989e12) * 1e6
        self.issue("aten::mm", MATMUL, us, dims=[[rows, inner], [inner, columns]], types=kinds)

    def step(self, step: int, at: float) -> float:
        begin = self.host = max(self.host, at)
        self.span("gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", self.recipe.rank, COMPUTE, begin + 5, 38.0,
                  {"device": self.recipe.rank, "stream": COMPUTE, "correlation": 0, "bytes": 2**21})  # fmt: skip
        self.free[COMPUTE] = begin + 43.0
        self.phase("forward", lambda: [self.forward(layer) for layer in range(self.recipe.layers)])
        self.phase("backward", lambda: [self.backward(layer) for layer in reversed(range(self.recipe.layers))])
        self.call("cudaDeviceSynchronize", self.host, max(20.0, max(self.free.values()) - self.host), self.next())
        self.host = max(self.host, *self.free.values()) + 30
        self.phase(
            "Optimizer.step#AdamW.step", lambda: [self.issue("aten::_fused_adamw_", ADAM, 95.0) for _ in range(8)]
        )
        done = max(self.host, *self.free.values()) + 60
        self.span("user_annotation", f"ProfilerStep#{step}", HOST, HOST, begin - 6, done - begin)
        return done

    def phase(self, name: str, work: Any) -> None:
        begin = self.host
        self.host += 1
        work()
        self.span("user_annotation", name, HOST, HOST, begin, self.host - begin)
        self.host += 1

    def forward(self, layer: int) -> None:
        begin = self.host
        self.host += 1
        self.issue("aten::rms_norm", NORM, 24.0)
        self.product(TOKENS, HIDDEN, 6144, 0.66)
        self.issue("custom::rope", ROPE, 19.0)
        heads = [[1, TOKENS, 32, 128]] * 3
        self.issue("flash_attn::_flash_attn_forward", ATTEND, 640.0, dims=heads, types=["c10::BFloat16"] * 3)
        self.product(TOKENS, HIDDEN, HIDDEN, 0.62)
        self.issue("aten::add", ADD, 38.0, **flat(2))
        self.issue("aten::rms_norm", NORM, 24.0)
        self.product(TOKENS, HIDDEN, WIDE, 0.71)
        self.issue("aten::silu", GATE, 89.0, dims=[[TOKENS, WIDE]], types=["c10::BFloat16"])
        self.product(TOKENS, WIDE, HIDDEN, 0.69)
        self.span("user_annotation", f"layer {layer}", HOST, HOST, begin, self.host - begin)
        self.host += 1

    def backward(self, layer: int) -> None:
        for inner, columns in ((WIDE, HIDDEN), (HIDDEN, WIDE), (HIDDEN, HIDDEN), (HIDDEN, 6144)):
            self.product(TOKENS, inner, columns, 0.67)
            self.product(inner, TOKENS, columns, 0.58)
        self.issue("aten::_flash_attention_backward", ATTEND.replace("fwd", "bwd"), 420.0)
        self.issue("aten::silu_backward", GATE.replace("silu", "silu_backward"), 60.0)
        for _ in range(3):
            self.issue("aten::add_", ADD, 39.0, **flat(2))
        reduce = "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
        us = 3450.0 if layer else 5200.0
        told = {"moved": 18 * TOKENS * HIDDEN // 1024, "collective": "_reduce_scatter_base"}  # gradients of a layer
        self.issue("c10d::_reduce_scatter_base_", reduce, us, NETWORK, after=self.free[COMPUTE], **told)


def ranks(folder: Path, spans: int = 30_000, world: int = 4) -> Path:
    """A folder of ranks with about so many spans together."""
    layers = 16
    steps = max(1, round(spans / world / layers / SPANS_A_LAYER))
    for rank in range(world):
        recipe = replace(Recipe(), rank=rank, world=world, layers=layers, steps=steps)
        write(Transformer(recipe).trace(), folder / f"rank{rank}.json.gz")
    return folder


if __name__ == "__main__":
    print(ranks(Path(sys.argv[1]), *(int(word) for word in sys.argv[2:])))
