"""What a plan's ranks execute, traced without them, is what lowering expects: op by op, for a grid of plans."""

from __future__ import annotations

import json
import sys
from math import prod
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
sys.path.insert(0, str(Path(__file__).parents[3]))

from command import run
from run_worlds import MODELS, Case

import ridgeline
from ridgeline.ir.rank_ops import ComparedOp, DryRun, attention_size, collective_size, product_size, size_text

SCHEDULES = ("gpipe", "1f1b", "interleaved", "zero-bubble-h1", "zbv", "dualpipe-v")
SMALL: list[tuple[str, dict[str, Any]]] = [
    ("dense", {"dp": 2, "shard": "zero1", "sequences": 4}),
    ("dense", {"dp": 4, "tp": 2, "shard": "zero3", "shard_degree": 2, "recompute": "full"}),
    ("window", {"cp": 2, "tp": 2}),
    ("dense", {"cp": 2, "cp_kind": "all-to-all", "shard": "zero2"}),
    (
        "moe",
        {"dp": 2, "tp": 2, "ep": 2, "etp": 2, "pp": 2, "schedule": "dualpipe-v", "shard": "zero1", "sequences": 8},
    ),
    ("mla", {"tp": 2, "dp": 2, "ep": 4, "shard": "zero3"}),
    ("window", {"pp": 2, "dp": 2, "shard": "zero3", "placement": [0, 2]}),
    ("mtp-tied", {"dp": 2, "tp": 2, "shard": "zero3", "recompute": "full"}),
    ("mtp", {"pp": 2, "dp": 2, "shard": "zero1"}),
]
LARGE: list[Case] = [
    *(("dense", {"dp": 2, "shard": name}) for name in ("none", "zero2", "zero3")),
    *((name, {"tp": 2, "sequence_parallel": split}) for name in ("dense", "gpt", "moe", "mla") for split in (0, 1)),
    *(("dense", {"pp": 2, "schedule": name}) for name in SCHEDULES),
    *(("moe", {"pp": 2, "tp": 2, "dp": 2, "ep": 4, "shard": name}) for name in ("none", "zero1", "zero3")),
    ("deep", {"pp": 4, "tp": 2, "cp": 2, "sequence_parallel": False}),
    ("dense", {"tp": 2, "recompute": {"kind": "selective", "parts": ["attention", "mlp"]}}),
    ("moe", {"tp": 2, "recompute": {"kind": "selective", "parts": ["mixer", "moe"]}}),
    ("mla", {"dp": 2, "tp": 2, "etp": 2, "shard": "zero2", "recompute": "full"}),
    ("mla", {"cp": 2, "pp": 2}),
    ("moe", {"cp": 4, "ep": 4, "shard": "zero3"}),
    ("dense", {"dp": 3, "shard": "zero3", "sequences": 6}),  # rows of weights do not divide by three
    ("dense", {"dp": 2, "shard": "zero3", "precision": "bf16"}),
    ("mtp", {}),
    ("mtp", {"tp": 2, "sequence_parallel": False}),
    ("mtp-tied", {"pp": 2, "tp": 2}),
    ("mtp-tied", {"cp": 2, "tp": 2}),
    ("mla-mtp", {"pp": 2, "tp": 2, "dp": 2, "ep": 2, "etp": 2, "schedule": "dualpipe-v", "shard": "zero1"}),
]


def traced(name: str, table: dict[str, Any], sequences: int = 0) -> DryRun:
    """The dry run of a tiny model under a plan."""
    plan = {"precision": "fp32", **table, **({} if "sequence_parallel" not in table else
            {"sequence_parallel": bool(table["sequence_parallel"])})}  # fmt: skip
    sequences = plan.pop("sequences", sequences) or plan.get("dp", 1) * (4 if plan.get("pp", 1) > 1 else 1)
    ranks = prod(plan.get(axis, 1) for axis in ("pp", "dp", "cp", "tp"))
    work = {"seq": 32, "global_batch": sequences}
    return ridgeline.dry_run(
        ridgeline.scenario({"model": MODELS[name], "system": f"{ranks}xcpu", "workload": work, "plan": plan})
    )


def wrong(cases: list[Case]) -> list[str]:
    """What differs in any of the cases."""
    return [
        f"{name} {plan}: pipeline rank {rank}: {op.label} {size_text(op.kernel)}: {op.expected} expected, "
        f"{op.traced} traced"
        for name, plan in cases
        for rank, op in traced(name, dict(plan)).differences
    ]


def test_a_small_grid_of_plans_and_architectures() -> None:
    assert not wrong(SMALL)


@pytest.mark.slow
def test_a_larger_grid() -> None:
    assert not wrong(LARGE)


@pytest.mark.slow
def test_two_layers_of_an_8b_on_1024_ranks() -> None:
    found = ridgeline.dry_run(
        ridgeline.scenario(
            {
                "model": {"base": "llama3-8b", "layers": 2},
                "system": "1024xh100-sxm",
                "workload": {"seq": 8192, "global_batch": 1024},
                "plan": {"tp": 8, "dp": 128, "shard": "zero3", "precision": "bf16"},
            }
        )
    )
    assert found.ranks == 1024
    assert not found.differences
    sizes = {op.kernel for stage in found.stages for op in stage.ops}
    # 8192 tokens through a quarter of 14336 gate columns, halved by tp 8; a layer's tokens over eight tensor ranks
    assert product_size(1, 8192, 14336 // 8, 4096) in sizes
    assert collective_size("all-gather", 8, 1, 8192 * 4096 * 2) in sizes
    assert attention_size(32 // 8, (8192, 8192), (128, 128), backward=False) in sizes


def test_a_runtime_that_does_otherwise_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights that are gathered once too often, and a gather that nobody needs: both are named with their sizes."""
    from ridgeline.runtime.train import stage

    enter = stage.enter
    monkeypatch.setattr(stage, "enter", lambda x, layout: enter(x, layout) + 0 * enter(x, layout))
    found = traced("dense", {"tp": 2}, sequences=1)
    differences: dict[str, ComparedOp] = {size_text(op.kernel): op for _, op in found.differences}
    more = differences["all-gather 2 ranks, stride 1, 8,192 B"]
    assert more.traced == more.expected + 1
    assert "gather tokens" in more.label
    assert len(differences) == 2  # and the scatter of its gradient


def test_the_command_lists_ops_and_fails_on_a_difference(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from ridgeline.lowering import rank_ops

    file = tmp_path / "tiny.json"
    work = {"seq": 32, "global_batch": 2}
    plan = {"dp": 2, "precision": "fp32"}
    file.write_text(json.dumps({"model": MODELS["dense"], "system": "2xcpu", "workload": work, "plan": plan}))
    code, out, _ = run(capsys, monkeypatch, "run", str(file), "--dry", "--json")
    assert code == 0
    sheet = json.loads(out)
    ops = sheet["stages"][0]["ops"]
    assert sheet["equal"]
    assert {"qkv", "attention", "reduce gradients"} <= {name for op in ops for name in op["op"].split(", ")}
    monkeypatch.setattr(rank_ops, "BY_HEAD_OR_TOKEN", ())
    monkeypatch.setattr(rank_ops, "_n", lambda size, real=rank_ops._n: real(size) + (real(size) == 96))
    code, out, _ = run(capsys, monkeypatch, "run", str(file), "--dry")
    assert code == 1
    assert "differ" in out.splitlines()[-1]
    assert "97" in out
