"""Peak memory against torch's own trackers, and against what one H200 allocated.

torch runs a small Llama-like model on fake tensors: nothing is computed, every allocation is counted by kind. Its norm
is a layer norm without bias, because the CPU has no fused rms norm and would keep the steps of one; parameters and kept
tensors are as many as those of a fused rms norm, which accelerators have.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

import pytest

os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")
torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
import torch.nn.functional as F  # noqa: E402, N812
from torch import nn  # noqa: E402
from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402
from torch.distributed._tools.fsdp2_mem_tracker import FSDPMemTracker  # noqa: E402
from torch.distributed._tools.mem_tracker import MemTracker  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

from ridgeline.calibrate.truth.row_scenario import to_scenario  # noqa: E402
from ridgeline.calibrate.truth.rows import (  # noqa: E402
    Skipped,
    headline,
    read_rows,
)
from ridgeline.core.units import BINARY  # noqa: E402
from ridgeline.lowering.program import lower  # noqa: E402
from ridgeline.plan.scenario import Scenario  # noqa: E402
from ridgeline.plan.scenario_file import scenario  # noqa: E402
from ridgeline.sim.memory.peak import peak_memory  # noqa: E402

SIZES = {
    "grouped": {"layers": 4, "hidden": 512, "heads": 8, "kv_heads": 2, "wide": 1536, "vocab": 4000},
    "plain": {"layers": 2, "hidden": 768, "heads": 12, "kv_heads": 12, "wide": 2048, "vocab": 1000},
    "deep": {"layers": 3, "hidden": 256, "heads": 4, "kv_heads": 1, "wide": 1024, "vocab": 8000},
}
SEQ, SEQUENCES = 1024, 2
BF16 = 2


class Layer(nn.Module):
    def __init__(self, hidden: int, heads: int, kv_heads: int, wide: int) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.dim = heads, kv_heads, hidden // heads
        self.norms = nn.ModuleList(nn.LayerNorm(hidden, bias=False) for _ in range(2))
        self.q, self.out = (nn.Linear(hidden, hidden, bias=False) for _ in range(2))
        self.k, self.v = (nn.Linear(hidden, kv_heads * self.dim, bias=False) for _ in range(2))
        self.gate, self.up = (nn.Linear(hidden, wide, bias=False) for _ in range(2))
        self.down = nn.Linear(wide, hidden, bias=False)

    def rotate(self, x: torch.Tensor, turn: torch.Tensor) -> torch.Tensor:
        a, b = x.chunk(2, -1)
        return torch.cat([a * turn - b * turn, a * turn + b * turn], -1)

    def forward(self, x: torch.Tensor, turn: torch.Tensor) -> torch.Tensor:
        batch, tokens, hidden = x.shape
        y = self.norms[0](x)
        q = self.rotate(self.q(y).view(batch, tokens, self.heads, self.dim), turn).transpose(1, 2)
        k = self.rotate(self.k(y).view(batch, tokens, self.kv_heads, self.dim), turn).transpose(1, 2)
        v = self.v(y).view(batch, tokens, self.kv_heads, self.dim).transpose(1, 2)
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=self.heads != self.kv_heads)
        x = x + self.out(seen.transpose(1, 2).reshape(batch, tokens, hidden))
        y = self.norms[1](x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Model(nn.Module):
    def __init__(self, size: dict[str, int], recompute: bool) -> None:
        super().__init__()
        hidden, vocab, self.recompute = size["hidden"], size["vocab"], recompute
        self.embed = nn.Embedding(vocab, hidden)
        shape = (hidden, size["heads"], size["kv_heads"], size["wide"])
        self.layers = nn.ModuleList(Layer(*shape) for _ in range(size["layers"]))
        self.norm, self.head = nn.LayerNorm(hidden, bias=False), nn.Linear(hidden, vocab, bias=False)

    def forward(self, tokens: torch.Tensor, turn: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        for layer in self.layers:
            x = checkpoint(layer, x, turn, use_reentrant=False) if self.recompute else layer(x, turn)
        return self.head(self.norm(x))


@pytest.fixture
def bf16() -> Iterator[None]:
    torch.set_default_dtype(torch.bfloat16)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.fixture
def four_ranks() -> Iterator[None]:
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", rank=0, world_size=4, store=FakeStore())
    yield
    dist.destroy_process_group()


def tracked(size: dict[str, int], *, recompute: bool = False, shard: bool = False) -> tuple[dict[str, int], ...]:
    """Bytes by kind at the peak and after the backward of a second step, when optimizer states exist."""
    mesh = dist.device_mesh.init_device_mesh("cpu", (4,)) if shard else None
    with FakeTensorMode():
        model = Model(size, recompute)
        if shard:
            from torch.distributed.fsdp import fully_shard

            for part in (*model.layers, model):
                fully_shard(part, mesh=mesh)
        optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
        tokens = torch.zeros(SEQUENCES, SEQ, dtype=torch.long)
        turn = torch.ones(SEQ, 1, size["hidden"] // size["heads"] // 2)
        tracker = FSDPMemTracker(model, optimizer) if shard else MemTracker()
        if shard:
            tracker.track_inputs((tokens,))
        else:
            tracker.track_external(model, optimizer, tokens)
        with tracker:
            for _ in range(2):
                tracker.reset_mod_stats()
                logits = model(tokens, turn).float()
                loss = F.cross_entropy(logits.view(-1, size["vocab"]), tokens.view(-1))
                del logits
                loss.backward()
                after = kinds(tracker.get_tracker_snapshot("current"))
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)
            return kinds(tracker.get_tracker_snapshot("peak")), after


def kinds(snapshot: dict[torch.device, dict[object, int]]) -> dict[str, int]:
    """Bytes by kind without the enum's own name, all devices together."""
    found: dict[str, int] = {}
    for parts in snapshot.values():
        for kind, size in parts.items():
            name = str(kind).rpartition(".")[2]
            found[name] = found.get(name, 0) + size
    return found


def described(size: dict[str, int], **plan: object) -> Scenario:
    chips = plan.get("dp", 1)
    return scenario(
        {
            "model": {
                "layers": size["layers"],
                "hidden": size["hidden"],
                "vocab": size["vocab"],
                "attention": {"heads": size["heads"], "kv_heads": size["kv_heads"]},
                "mlp": {"hidden": size["wide"]},
            },
            "system": f"{chips}xh200-sxm",
            "workload": {
                "seq": SEQ,
                "global_batch": SEQUENCES * chips,  # type: ignore[operator]
                "optimizer": {"name": "adamw", "states": "bf16", "master": "none"},
            },
            "plan": {"engine": "torch-eager", "microbatch": SEQUENCES, "recompute": "none", **plan},
        }
    )


def counters(tracked_optimizer: int, states: float) -> bool:
    """AdamW also keeps a step counter of four bytes for each tensor, which nobody needs to plan for."""
    return 0 <= tracked_optimizer - states < 4 * 100


@pytest.mark.parametrize("name", SIZES)
@pytest.mark.parametrize("recompute", ["none", "full"])
def test_one_chip(name: str, recompute: str, bf16: None) -> None:
    size = SIZES[name]
    peak, after = tracked(size, recompute=recompute == "full")
    made = described(size, recompute=recompute)
    program = lower(made)
    memory = peak_memory(made, program)
    state = memory.stages[0].state
    assert state["weights"] == peak["PARAM"]
    assert state["gradients"] == after["GRAD"]
    assert counters(peak["OPT"], state["optimizer"])
    held = memory.fullest.bytes_by_kind
    moving = held["activations"] + held["logits"] + held["workspace"] + held["gradients"]
    measured = peak["ACT"] + peak["TEMP"] + peak["GRAD"]
    assert moving == pytest.approx(measured, rel=0.08)


def test_sharded_over_four(bf16: None, four_ranks: None) -> None:
    size = SIZES["grouped"]
    peak, after = tracked(size, shard=True)
    made = described(size, dp=4, shard="zero3")
    program = lower(made)
    memory = peak_memory(made, program)
    state = memory.stages[0].state
    assert state["weights"] == peak["SHARDED_PARAM"]
    assert state["gradients"] == after["SHARDED_GRAD"]
    assert counters(peak["OPT"], state["optimizer"])
    assert memory.allocated_bytes == pytest.approx(peak["Total"], rel=0.08)


def test_allocated_on_one_h200() -> None:
    for row in read_rows():
        noted = re.search(r"peak allocated ([\d.]+) GiB", row["notes"])
        if noted is None:
            continue
        made = to_scenario(row)
        assert isinstance(made, Scenario)
        predicted = peak_memory(made, lower(made)).allocated_bytes
        assert predicted == pytest.approx(float(noted[1]) * BINARY["Gi"], rel=0.08), row.id


def test_what_ran_is_predicted_to_fit() -> None:
    fitted = []
    for row in headline(read_rows()):
        made = to_scenario(row)
        if not isinstance(made, Skipped):
            fitted.append(peak_memory(made, lower(made)).headroom_bytes >= 0)
    assert len(fitted) > 400
    assert sum(fitted) / len(fitted) >= 0.97
