"""Run plain PyTorch training steps on one GPU and write them as measured rows: a witness that no fit has seen.

    python benchmarks/witness.py rows.csv --chip h200-sxm [--only qwen3-4b] [--trace FOLDER]     on a machine with a GPU
    ridgeline validate rows.csv                                                                  anywhere

Models are those of the catalog; weights, gradients and Adam moments are in bf16; attention is torch's own; a compiled
run compiles each block, and the head with its loss. A step is the median of ten after five that warm up, from its first
CUDA event to that of the next. Rows already in the file are kept and not measured again.
"""

from __future__ import annotations

import argparse
import csv
import gc
import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import ridgeline
from ridgeline.models.spec import Attention, Block, Mlp, ModelSpec, Moe, Norm

WARM, TIMED = 5, 10
GIB = 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    model: str
    seq: int
    batch: int
    layers: int = 0  # 0: all of the model's
    vocab: int = 0  # 0: the model's own
    compiled: bool = True
    recompute: bool = False

    @property
    def id(self) -> str:
        parts = [self.model, f"{self.layers}l" if self.layers else "", f"{self.vocab}v" if self.vocab else ""]
        parts.append(f"{self.batch}x{self.seq}")
        parts += ["compiled" if self.compiled else "eager", "full" if self.recompute else ""]
        return "-".join(part for part in parts if part)

    @property
    def spec(self) -> ModelSpec:
        model = ridgeline.model(self.model)
        return replace(model, vocab=self.vocab) if self.vocab else model


CASES = (
    Case(model="gpt3-125m", seq=1024, batch=4, compiled=False),
    Case(model="gpt3-350m", seq=2048, batch=16, compiled=False),
    Case(model="gpt3-350m", seq=2048, batch=16, compiled=False, vocab=50264),
    Case(model="gpt3-350m", seq=2048, batch=16),
    Case(model="gpt3-2.7b", seq=2048, batch=4),
    Case(model="qwen3-0.6b", seq=4096, batch=4, compiled=False),
    Case(model="qwen3-0.6b", seq=4096, batch=4),
    Case(model="qwen3-1.7b", seq=2048, batch=8),
    Case(model="qwen3-4b", seq=4096, batch=2),
    Case(model="qwen3-4b", seq=4096, batch=2, recompute=True),
    Case(model="phi3-mini", seq=4096, batch=2),
    Case(model="llama3.2-3b", seq=8192, batch=1),
    Case(model="llama3.2-1b", seq=32768, batch=1, recompute=True),
    Case(model="mistral-7b", seq=4096, batch=1, compiled=False),
    Case(model="llama3-8b", seq=4096, batch=1),
    Case(model="llama3-8b", seq=8192, batch=1),
    Case(model="llama3-70b", seq=4096, batch=2, layers=4),
    Case(model="qwen3-30b-a3b", seq=4096, batch=2, layers=8, compiled=False),
    Case(model="qwen3-30b-a3b", seq=4096, batch=2, layers=8),
    Case(model="mixtral-8x7b", seq=4096, batch=2, layers=4),
)


class Mixer(nn.Module):
    """Attention with grouped keys, rotary positions where the model has them, and norms of queries and keys."""

    def __init__(self, width: int, spec: Attention) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.dim = spec.heads, spec.kv_heads, spec.head_dim
        self.rotary = spec.positions == "rope"
        self.qkv = nn.Linear(width, (self.heads + 2 * self.kv_heads) * self.dim, bias=spec.qkv_bias)
        self.out = nn.Linear(self.heads * self.dim, width, bias=spec.out_bias)
        self.norms = nn.ModuleList([nn.RMSNorm(self.dim) for _ in range(2)] if spec.qk_norm == "head" else [])

    def forward(self, x: Tensor, turn: Tensor) -> Tensor:
        batch, seq, _ = x.shape
        split = [self.heads * self.dim, self.kv_heads * self.dim, self.kv_heads * self.dim]
        q, k, v = (t.view(batch, seq, -1, self.dim).transpose(1, 2) for t in self.qkv(x).split(split, dim=-1))
        if len(self.norms):
            q, k = self.norms[0](q), self.norms[1](k)
        if self.rotary:
            q, k = turned(q, turn), turned(k, turn)
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=self.heads != self.kv_heads)
        out: Tensor = self.out(mixed.transpose(1, 2).reshape(batch, seq, -1))
        return out


def turned(x: Tensor, turn: Tensor) -> Tensor:
    left, right = x.chunk(2, dim=-1)
    cos, sin = turn[0].to(x.dtype), turn[1].to(x.dtype)
    return torch.cat((left * cos - right * sin, right * cos + left * sin), dim=-1)


class Dense(nn.Module):
    def __init__(self, width: int, spec: Mlp) -> None:
        super().__init__()
        self.gated = spec.gated
        self.up = nn.Linear(width, spec.hidden * (2 if spec.gated else 1), bias=spec.bias)
        self.down = nn.Linear(spec.hidden, width, bias=spec.bias)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down(activated(self.up(x), self.gated))
        return out


def activated(x: Tensor, gated: bool) -> Tensor:
    if not gated:
        return functional.gelu(x, approximate="tanh")
    gate, up = x.chunk(2, dim=-1)
    return functional.silu(gate) * up


class Experts(nn.Module):
    """Dropless experts: tokens sorted by expert, one grouped product up and one down."""

    def __init__(self, width: int, spec: Moe) -> None:
        super().__init__()
        self.topk, self.experts, self.gated = spec.topk, spec.experts, spec.gated
        self.router = nn.Linear(width, spec.experts, bias=False)
        self.up = nn.Parameter(torch.empty(spec.experts, width, spec.hidden * (2 if spec.gated else 1)))
        self.down = nn.Parameter(torch.empty(spec.experts, spec.hidden, width))
        for weight in (self.up, self.down):
            nn.init.normal_(weight, std=0.02)

    def forward(self, x: Tensor) -> Tensor:
        flat = x.reshape(-1, x.shape[-1])
        share, chosen = self.router(flat).float().softmax(-1).topk(self.topk, dim=-1)
        order = chosen.reshape(-1).argsort()
        ends = torch.bincount(chosen.reshape(-1), minlength=self.experts).cumsum(0).to(torch.int32)
        rows = flat[order // self.topk]
        inner = activated(functional.grouped_mm(rows, self.up, offs=ends), self.gated)
        outer = functional.grouped_mm(inner, self.down, offs=ends) * share.reshape(-1, 1)[order].to(x.dtype)
        return torch.zeros_like(flat).index_add(0, order // self.topk, outer).view_as(x)


def normed(width: int, norm: Norm) -> nn.Module:
    return nn.RMSNorm(width) if norm.kind == "rms" else nn.LayerNorm(width)


class Layer(nn.Module):
    def __init__(self, model: ModelSpec, index: int) -> None:
        super().__init__()
        block = model.blocks[model.order[index]]
        assert isinstance(block.mixer, Attention)
        self.before, self.between = normed(model.hidden, block.norm), normed(model.hidden, block.norm)
        self.mixer = Mixer(model.hidden, block.mixer)
        self.ffn = Experts(model.hidden, block.ffn) if isinstance(block.ffn, Moe) else Dense(model.hidden, dense(block))

    def forward(self, x: Tensor, turn: Tensor) -> Tensor:
        x = x + self.mixer(self.before(x), turn)
        out: Tensor = x + self.ffn(self.between(x))
        return out


def dense(block: Block) -> Mlp:
    assert isinstance(block.ffn, Mlp), "a layer without experts has an MLP"
    return block.ffn


class Model(nn.Module):
    def __init__(self, spec: ModelSpec, case: Case) -> None:
        super().__init__()
        mixer = spec.blocks[0].mixer
        assert isinstance(mixer, Attention)
        self.case = case
        self.embed = nn.Embedding(spec.vocab, spec.hidden)
        self.positions = nn.Embedding(case.seq, spec.hidden) if mixer.positions == "learned" else None
        self.layers = nn.ModuleList(Layer(spec, i) for i in range(case.layers or len(spec.order)))
        self.norm = normed(spec.hidden, spec.norm or spec.blocks[0].norm)
        self.head = nn.Linear(spec.hidden, spec.vocab, bias=False)
        nn.init.normal_(self.embed.weight, std=0.02)
        if spec.embedding.tied:
            self.head.weight = self.embed.weight
        angles = torch.outer(
            torch.arange(case.seq).float(), 1e4 ** -(torch.arange(0, mixer.head_dim, 2).float() / mixer.head_dim)
        )
        self.register_buffer("turn", torch.stack((angles.cos(), angles.sin())), persistent=False)
        self.loss = torch.compile(self._loss) if case.compiled else self._loss
        if case.compiled:
            for layer in self.layers:
                layer.compile()

    def _loss(self, x: Tensor, targets: Tensor) -> Tensor:
        logits = self.head(self.norm(x))
        return functional.cross_entropy(logits.float().view(-1, logits.shape[-1]), targets.view(-1))

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        x = self.embed(tokens)
        if self.positions is not None:
            x = x + self.positions.weight[: tokens.shape[1]]
        for layer in self.layers:
            x = checkpoint(layer, x, self.turn, use_reentrant=False) if self.case.recompute else layer(x, self.turn)
        loss: Tensor = self.loss(x, targets)
        return loss


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    step: float  # seconds, as are the parts
    forward: float
    backward: float
    optimizer: float
    peak: int  # bytes allocated at most
    parameters: int


def measure(case: Case, trace: Path | None) -> Measured:
    """One case on the first GPU."""
    spec = case.spec
    torch.manual_seed(0)
    with torch.device("cuda"):
        torch.set_default_dtype(torch.bfloat16)
        model = Model(spec, case)
        torch.set_default_dtype(torch.float32)
        tokens = torch.randint(spec.vocab, (case.batch, case.seq + 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    inputs, targets = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()

    def step() -> list[torch.cuda.Event]:
        events = [torch.cuda.Event(enable_timing=True) for _ in range(4)]  # type: ignore[no-untyped-call]
        events[0].record()
        loss = model(inputs, targets)
        events[1].record()
        loss.backward()
        events[2].record()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        events[3].record()
        return events

    for _ in range(WARM):
        step()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    taken = [step() for _ in range(TIMED)]
    torch.cuda.synchronize()
    # from one step's first event to the next one's, so that nothing between steps is left out
    whole = [a[0].elapsed_time(b[0]) for a, b in pairwise(taken)]
    parts = [statistics.median(e[i].elapsed_time(e[i + 1]) for e in taken) / 1e3 for i in range(3)]
    if trace:
        _profile(step, trace / f"{case.id}.json")
    return Measured(
        step=statistics.median(whole) / 1e3,
        forward=parts[0],
        backward=parts[1],
        optimizer=parts[2],
        peak=torch.cuda.max_memory_allocated(),
        parameters=sum(p.numel() for p in model.parameters()),
    )


def _profile(step: Callable[[], Any], path: Path) -> None:
    kinds = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=kinds, record_shapes=True, profile_memory=True) as profiler:
        for i in range(2):
            with torch.profiler.record_function(f"ProfilerStep#{i}"):
                step()
            torch.cuda.synchronize()
    profiler.export_chrome_trace(str(path))


def row(case: Case, chip: str, it: Measured) -> dict[str, object]:
    """The case as a row of the measured table (docs/concepts/truth.md)."""
    spec = case.spec
    block = spec.blocks[0]
    mixer, ffn = block.mixer, block.ffn
    assert isinstance(mixer, Attention)
    moe = ffn if isinstance(ffn, Moe) else None
    dense = ffn if isinstance(ffn, Mlp) else None
    how = "torch.compile per block" if case.compiled else "eager"
    parts = ", ".join(f"{part} {getattr(it, part) * 1e3:.2f} ms" for part in ("forward", "backward", "optimizer"))
    return {
        "id": case.id,
        "source": f"benchmarks/witness.py, torch {torch.__version__.split('+')[0]}, {torch.cuda.get_device_name()}",
        "gpus": 1,
        "nodes_gpus_per_node": "1x1",
        "framework": f"PyTorch {how}",
        "model_name": case.model,
        "params_b": round(it.parameters / 1e9, 4),
        "layers": case.layers or len(spec.order),
        "hidden": spec.hidden,
        "heads": mixer.heads,
        "kv_heads": mixer.kv_heads,
        "ffn_hidden": dense.hidden if dense else "",
        "vocab": spec.vocab,
        "gated_mlp": int(ffn.gated) if ffn else "",
        "experts": moe.experts if moe else "",
        "topk": moe.topk if moe else "",
        "expert_ffn": moe.hidden if moe else "",
        "seq_len": case.seq,
        "global_batch": case.batch,
        "micro_batch": case.batch,
        **dict.fromkeys(("tp", "pp", "vpp", "cp", "ep", "dp"), 1),
        "precision": "bf16",
        "recompute": "full" if case.recompute else "none",
        "measured_metric": "step_time_s",
        "measured_value": f"{it.step:.6g}",
        "notes": f"{parts}; the loss is compiled with the head" if case.compiled else parts,
        "x_complete": "full",
        "x_task": "pretrain",
        "x_trust": "A",
        "x_config_group": case.id,
        "x_chip": chip,
        "x_engine": "torch-compile" if case.compiled else "torch-eager",
        "x_shard": "none",
        "x_attention": "flash",
        "x_step_time_s": f"{it.step:.6g}",
        "x_head_dim": mixer.head_dim,
        "x_tied": int(spec.embedding.tied),
        "x_compile": int(case.compiled),
        "x_optimizer_states": "bf16",
        "x_optimizer_master": "none",
        "x_peak_bytes": it.peak,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument("rows", type=Path)
    parser.add_argument("--chip", required=True, help="id of the chip, as `ridgeline show chips` lists it")
    parser.add_argument("--only", default="", help="only cases whose id holds this")
    parser.add_argument("--trace", type=Path, help="also write a profiler trace of two steps of each case here")
    options = parser.parse_args()
    ridgeline.chip(options.chip)
    done = {r["id"] for r in _rows(options.rows)}
    for case in CASES:
        if options.only not in case.id or case.id in done:
            continue
        try:
            it = measure(case, options.trace)
        except (torch.OutOfMemoryError, RuntimeError) as error:
            print(f"{case.id}: left out, {str(error).splitlines()[0]}", flush=True)
            continue
        finally:
            torch._dynamo.reset()
            gc.collect()  # a compiled loss and its model hold each other
            torch.cuda.empty_cache()
        print(f"{case.id}: {it.step * 1e3:.2f} ms, {it.peak / GIB:.2f} GiB", flush=True)
        _append(options.rows, row(case, options.chip, it))


def _rows(path: Path) -> Iterator[dict[str, str]]:
    if path.exists():
        with path.open(newline="") as file:
            yield from csv.DictReader(file)


def _append(path: Path, cells: dict[str, object]) -> None:
    new = not path.exists()
    with path.open("a", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(cells))
        if new:
            writer.writeheader()
        writer.writerow(cells)


if __name__ == "__main__":
    main()
