"""Measure what fixing a cause gains on one GPU, and record what the profiler shows before and after the fix.

    python benchmarks/judgement_h200.py FOLDER [--only tf32,items]        on a machine with a GPU

Each case is a step with one cause that limits it, and the same step with the cause mended. A step is timed without a
profiler (wall clock of 20 steps between two synchronisations, the median of three), then three steps are recorded with
shapes into FOLDER/CASE-before.json.gz and CASE-after.json.gz. FOLDER/measured.json has the times, which
`python -m tools docs judgement` puts beside what `ridgeline analyze` promised.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as fn
from torch import Tensor, nn

Step = Callable[[], Any]
STEPS, ROUNDS, WARM, RECORDED = 20, 3, 5, 3
GPU = "cuda"


def wide(layers: int, width: int, dtype: torch.dtype) -> nn.Sequential:
    """Products and activations in a row."""
    parts: list[nn.Module] = []
    for _ in range(layers):
        parts += [nn.Linear(width, width), nn.GELU()]
    return nn.Sequential(*parts).to(GPU, dtype)


def train(model: nn.Module, inputs: Tensor, optimizer: torch.optim.Optimizer | None = None) -> Step:
    """Forward, backward and, if there is one, the optimizer."""

    def step() -> None:
        model(inputs).float().square().mean().backward()
        if optimizer is not None:
            optimizer.step()
        model.zero_grad(set_to_none=True)

    return step


# -- the cases: each yields the step before and the step after ---------------------------------------------------------


def items() -> Iterator[Step]:
    """A check of every layer's output reads a number back; mended: none is read."""
    model, inputs = wide(24, 2048, torch.bfloat16), torch.randn(4096, 2048, device=GPU, dtype=torch.bfloat16)

    def forward(check: bool) -> Step:
        def step() -> None:
            x = inputs
            for layer in model:
                x = layer(x)
                if check and isinstance(layer, nn.Linear) and not torch.isfinite(x).all().item():
                    raise SystemExit("not finite")
            x.float().square().mean().backward()
            model.zero_grad(set_to_none=True)

        return step

    yield forward(True)
    yield forward(False)


def tf32() -> Iterator[Step]:
    """fp32 products without the matrix unit; mended: TF32."""
    model, inputs = wide(12, 4096, torch.float32), torch.randn(4096, 4096, device=GPU)
    torch.set_float32_matmul_precision("highest")
    yield train(model, inputs)
    torch.set_float32_matmul_precision("high")
    yield train(model, inputs)
    torch.set_float32_matmul_precision("highest")


class Attend(nn.Module):
    """Self-attention with or without a fused kernel between equal projections."""

    def __init__(self, fused: bool, width: int = 2048, heads: int = 16) -> None:
        super().__init__()
        self.heads, self.fused = heads, fused
        self.into, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        many, length, width = x.shape
        q, k, v = self.into(x).view(many, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        if self.fused:
            y = fn.scaled_dot_product_attention(q, k, v)
        else:
            scores = torch.matmul(q, k.transpose(-1, -2)) / (width // self.heads) ** 0.5
            y = torch.matmul(torch.softmax(scores, dim=-1), v)
        return x + self.out(y.transpose(1, 2).reshape(many, length, width))


def attention() -> Iterator[Step]:
    """Scores, softmax and values as kernels of their own; mended: scaled_dot_product_attention."""
    inputs = torch.randn(2, 4096, 2048, device=GPU, dtype=torch.bfloat16)
    for fused in (False, True):
        yield train(nn.Sequential(*(Attend(fused) for _ in range(6))).to(GPU, torch.bfloat16), inputs)


def copies() -> Iterator[Step]:
    """Every batch copied from pageable memory; mended: pinned, one batch ahead, on a stream of its own."""
    model, host = wide(6, 4096, torch.bfloat16), torch.randn(8192, 4096, dtype=torch.bfloat16)

    def blocking() -> None:
        model(host.to(GPU)).float().square().mean().backward()
        model.zero_grad(set_to_none=True)

    yield blocking
    pinned, side = host.pin_memory(), torch.cuda.Stream()
    held = [torch.empty_like(host, device=GPU) for _ in range(2)]
    turn = 0

    def ahead() -> None:
        nonlocal turn
        here, there = held[turn], held[1 - turn]
        turn = 1 - turn
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            there.copy_(pinned, non_blocking=True)
        model(here).float().square().mean().backward()
        model.zero_grad(set_to_none=True)
        torch.cuda.current_stream().wait_stream(side)

    yield ahead


def rotated(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """A norm, a gate and a residual written out op by op."""
    for _ in range(8):
        y = x - x.mean(-1, keepdim=True)
        y = y * torch.rsqrt((y * y).mean(-1, keepdim=True) + 1e-6) * weight + bias
        x = x + y * torch.sigmoid(1.702 * y) * 0.5
    return x


def elementwise() -> Iterator[Step]:
    """Chains of kernels bound by memory; mended: torch.compile."""
    x = torch.randn(16384, 4096, device=GPU, dtype=torch.bfloat16)
    weight, bias = torch.ones(4096, device=GPU, dtype=x.dtype), torch.zeros(4096, device=GPU, dtype=x.dtype)
    fused = torch.compile(rotated)
    with torch.no_grad():
        yield lambda: rotated(x, weight, bias)
        yield lambda: fused(x, weight, bias)


def optimizer() -> Iterator[Step]:
    """AdamW parameter by parameter; mended: fused."""
    inputs = torch.randn(1024, 1024, device=GPU, dtype=torch.bfloat16)
    for choice in ({"foreach": False, "fused": False}, {"fused": True}):
        model = wide(96, 1024, torch.bfloat16)
        yield train(model, inputs, torch.optim.AdamW(model.parameters(), lr=1e-4, **choice))


class Block(nn.Module):
    """Two convolutions with norms around a residual."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(channels, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels), nn.ReLU(),
            nn.Conv2d(channels, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        return fn.relu(x + self.body(x))


def layout() -> Iterator[Step]:
    """Half-precision convolutions over NCHW; mended: channels_last."""
    torch.backends.cudnn.benchmark = True
    for form in (torch.contiguous_format, torch.channels_last):
        model = nn.Sequential(*(Block(256) for _ in range(8))).to(GPU, torch.float16, memory_format=form)
        inputs = torch.randn(64, 256, 56, 56, device=GPU, dtype=torch.float16).to(memory_format=form)
        yield train(model, inputs)


def launches() -> Iterator[Step]:
    """Small kernels that the host cannot launch as fast as they run; mended: a replayed graph."""
    model = wide(48, 512, torch.bfloat16)
    x = torch.randn(16, 512, device=GPU, dtype=torch.bfloat16)
    with torch.no_grad():

        def many() -> None:
            for _ in range(4):
                model(x)

        yield many
        for _ in range(3):
            many()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            many()
        yield graph.replay


class Images(torch.utils.data.Dataset[Tensor]):
    """Pictures that cost the host a while each."""

    def __len__(self) -> int:
        return 100_000

    def __getitem__(self, index: int) -> Tensor:
        made = torch.Generator().manual_seed(index)
        picture = torch.randn(3, 224, 224, generator=made)
        return fn.avg_pool2d(picture[None], 3, stride=1, padding=1)[0].half()


def loader() -> Iterator[Step]:
    """A loader without workers; mended: twelve of them, pinned."""
    model = nn.Sequential(nn.Conv2d(3, 64, 7, 4), nn.ReLU(), *(Block(64) for _ in range(6))).to(GPU, torch.float16)
    for workers in (0, 12):
        feed = torch.utils.data.DataLoader(
            Images(), batch_size=64, num_workers=workers, pin_memory=workers > 0, persistent_workers=workers > 0,
            prefetch_factor=4 if workers else None,
        )  # fmt: skip
        batches = iter(feed)

        def step(batches: Iterator[Tensor] = batches) -> None:
            model(next(batches).to(GPU, non_blocking=True)).float().square().mean().backward()
            model.zero_grad(set_to_none=True)

        yield step


def padding() -> Iterator[Step]:
    """An output product over 50,257 columns; mended: 50,304."""
    inputs = torch.randn(8192, 1024, device=GPU, dtype=torch.bfloat16)
    for columns in (50_257, 50_304):
        yield train(nn.Linear(1024, columns, bias=False).to(GPU, torch.bfloat16), inputs)


def retries() -> Iterator[Step]:
    """The allocator's memory given back every step; mended: kept."""
    model, inputs = wide(16, 2048, torch.bfloat16), torch.randn(16384, 2048, device=GPU, dtype=torch.bfloat16)
    plain = train(model, inputs)

    def emptied() -> None:
        plain()
        torch.cuda.empty_cache()

    yield emptied
    yield plain


ALL = (items, tf32, attention, copies, elementwise, optimizer, layout, launches, loader, padding, retries)
CASES: dict[str, Callable[[], Iterator[Step]]] = {one.__name__: one for one in ALL}


# -- measuring ---------------------------------------------------------------------------------------------------------


def timed(step: Step) -> float:
    """Seconds of a step without a profiler."""
    for _ in range(WARM):
        step()
    torch.cuda.synchronize()
    rounds = []
    for _ in range(ROUNDS):
        begin = time.perf_counter()
        for _ in range(STEPS):
            step()
        torch.cuda.synchronize()
        rounds.append((time.perf_counter() - begin) / STEPS)
    return statistics.median(rounds)


def recorded(step: Step, path: Path) -> None:
    """Three steps with shapes, as the documentation says to record them."""
    once = torch.profiler.schedule(wait=1, warmup=2, active=RECORDED, repeat=1)
    with torch.profiler.profile(record_shapes=True, schedule=once) as profiler:
        for _ in range(3 + RECORDED):
            step()
            profiler.step()
    torch.cuda.synchronize()
    profiler.export_chrome_trace(str(path))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", default=",".join(CASES))
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    found: dict[str, Any] = {"chip": torch.cuda.get_device_name(), "torch": torch.__version__, "cases": {}}
    for name in given.only.split(","):
        torch.manual_seed(0)
        times: dict[str, Any] = {"what": CASES[name].__doc__}
        try:
            for side, step in zip(("before", "after"), CASES[name](), strict=True):
                times[f"{side}_s"] = timed(step)
                recorded(step, given.folder / f"{name}-{side}.json.gz")
            print(f"{name:12} {times['before_s'] * 1e3:8.2f} ms  {times['after_s'] * 1e3:8.2f} ms  "
                  f"gain {1 - times['after_s'] / times['before_s']:.1%}", flush=True)  # fmt: skip
        except Exception as wrong:  # one case that fails leaves the others
            traceback.print_exc()
            times["failed"] = str(wrong)[:300]
        found["cases"][name] = times
        gc.collect()
        torch.cuda.empty_cache()
        (given.folder / "measured.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
