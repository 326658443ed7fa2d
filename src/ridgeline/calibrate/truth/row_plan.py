"""Turn a row's columns into the `plan` and `workload` tables of a scenario file."""

from __future__ import annotations

import re
from types import MappingProxyType
from typing import Any

from ridgeline.calibrate.truth.csv_cells import RowCells, Unusable
from ridgeline.calibrate.truth.row_habits import (
    dispatches,
    usual_attention,
    usual_dispatch,
    usual_exchange,
    usual_graph,
    usual_optimizer,
    usual_overlap,
    usual_precision,
    usual_stages,
)
from ridgeline.calibrate.truth.row_recompute import memory_table
from ridgeline.hardware.chip import Chip
from ridgeline.plan.engine import ENGINES

PRECISIONS = {name: name for name in ("bf16", "fp16", "fp32", "tf32", "fp8", "mxfp8", "nvfp4", "mxfp4", "int8", "int4")}
SHARDS = {name: name for name in ("none", "zero1", "zero2", "zero3")}
TASKS = MappingProxyType({"pretrain": "pretrain", "sft": "finetune", "finetune": "finetune", "lora": "lora"})
GRAPHS = {name: name for name in ("none", "partial", "full")}
DISPATCHES = MappingProxyType(
    {"alltoall": "all-to-all", "all-to-all": "all-to-all", "deepep": "deepep", "hybridep": "hybridep"}
)
OVERLAPS = MappingProxyType({"x_tp_overlap": "tp", "x_grad_overlap": "grad-reduce", "x_moe_overlap": "moe"})
HABANA = "habana|gaudi|optimum-hpu"
# words of the free-text framework column, first match wins
FRAMEWORKS: tuple[tuple[str, str], ...] = (
    (HABANA, "habana-megatron-deepspeed"),
    ("bridge", "megatron-bridge"),
    ("automodel", "nemo-automodel"),
    ("mindspeed|modellink", "mindspeed"),
    ("maxtext", "maxtext"),
    ("paxml|^pax$", "paxml"),
    ("levanter", "levanter"),
    ("foundry|composer|mosaic", "llm-foundry"),
    ("torchtitan", "torchtitan"),
    ("fms", "fms-fsdp"),
    ("primus", "primus"),
    ("llmboost", "llmboost"),
    ("megascale", "megascale"),
    ("megatron-deepspeed|neox", "megatron-deepspeed"),
    ("paddle", "paddlenlp"),
    ("hai-llm", "hai-llm"),
    ("t5x|pathways", "t5x"),
    ("deepspeed", "deepspeed"),
    ("megatron", "megatron-core"),
    ("nemo", "nemo"),
    ("rocm", "rocm-mlperf"),
    ("nvidia release|ngc|mxnet", "mlperf-nvidia"),
    ("jax|xla", "maxtext"),
    ("compile", "torch-compile"),
    ("eager", "torch-eager"),
)
GENERIC = "generic"
ROUNDED = 0.005  # a global batch this close to a possible one is a rounded figure
SHARD_WORDS: tuple[tuple[str, str], ...] = (
    (r"zero-?3|full_shard|fsdp", "zero3"),
    (r"zero-?2|shard_grad_op|hybrid_shard", "zero2"),
    (r"zero-?1|distributed optimizer", "zero1"),
    (r"none|n/a|ddp", "none"),
)


SCALINGS = MappingProxyType(
    {"tensorwise": "tensor", "current": "tensor", "delayed": "tensor", "rowwise": "row", "blockwise": "block"}
)


def engine_of(cells: RowCells) -> str:
    """The engine's id: `x_engine`, or what the framework's name suggests; `generic` for software nobody described.

    A stranger's software is never taken for the best-tuned one: that made unknown sources a fifth too fast.
    """
    stated, framework = cells.text("x_engine"), cells.text("framework")
    if stated and stated in ENGINES and not (ENGINES[stated].id == "megatron-deepspeed" and _for_gaudi(framework)):
        return ENGINES[stated].id
    for pattern, id in FRAMEWORKS:
        if re.search(pattern, f"{stated} {framework}".lower()):
            unknown = (
                f"; x_engine {stated[:40]!r} is not an engine Ridgeline knows"
                if stated and stated not in ENGINES
                else ""
            )
            cells.note(f"engine = {id}: from framework {(stated or framework)[:40]!r}{unknown}")
            return id
    told = f"{(stated or framework)[:40]!r} is not in the catalog" if stated or framework else "not stated"
    cells.note(f"engine = {GENERIC}: {told}; write an engine file for what it fuses and overlaps")
    return GENERIC


def _for_gaudi(framework: str) -> bool:
    """Whether a framework's text names a port to Gaudi, whose graph compiler makes another software of it."""
    return re.search(HABANA, framework.lower()) is not None


def plan_table(cells: RowCells, engine: str, chip: Chip) -> dict[str, Any]:
    """Every decision of the run; what the row leaves open stays out, and what had to be assumed is noted."""
    mesh = _mesh(cells)
    plan: dict[str, Any] = {"engine": engine, **mesh, "microbatch": _microbatch(cells, mesh["dp"])}
    plan |= usual_stages(cells, engine, plan["pp"])
    chunks = cells.assume("vpp", 1) if plan["pp"] > 1 and "schedule" not in plan else 1
    if chunks > 1:
        plan["schedule"] = {"name": "interleaved", "chunks": chunks}
    precision: Any = cells.word("precision", PRECISIONS)
    if precision is None:
        precision = usual_precision(cells, engine, chip)
    scaling = cells.hint("x_fp8_recipe", SCALINGS)
    if scaling is not None:
        precision = {"name": precision, "scaling": scaling}
    plan |= {"precision": precision, **memory_table(cells, engine), **_sharding(cells, plan["dp"] * plan["cp"])}
    exchange = usual_exchange(cells, engine, mesh)
    return plan | _switches(cells, engine, chip) | ({"cp_kind": exchange} if exchange else {})


def _mesh(cells: RowCells) -> dict[str, int]:
    gpus = cells.need("gpus")
    mesh = {"tp": cells.need("tp"), "pp": cells.need("pp"), "cp": cells.assume("cp", 1)}
    experts = cells.size("experts")
    if experts and cells.count("ep") is None:
        raise Unusable("ep", f"blank, with {experts} experts to place")
    mesh["ep"] = cells.count("ep") or 1
    inner = mesh["tp"] * mesh["pp"] * mesh["cp"]
    stated = cells.count("dp")
    if stated is None:
        if gpus % inner:
            raise Unusable("dp", f"blank, and tp x pp x cp = {inner} does not divide gpus ({gpus})")
        cells.note(f"dp = {gpus // inner}: blank in the table; the chips that tp, pp and cp leave")
        return mesh | {"dp": gpus // inner}
    if stated * inner != gpus:
        raise Unusable("dp", f"tp x pp x cp x dp = {stated * inner}, expected gpus ({gpus})")
    return mesh | {"dp": stated}


def _microbatch(cells: RowCells, dp: int) -> int:
    """Sequences a data-parallel rank handles at a time.

    A blank is certain where each rank has one sequence, and most likely one in a pipeline, which more and smaller ones
    fill; without stages `infer_recompute` makes it the largest that fits.
    """
    stated = cells.count("micro_batch")
    if stated is not None:
        return stated
    if cells.need("global_batch") != dp:
        cells.note("micro_batch = 1: blank in the table; what most large runs use")
    return 1


def _sharding(cells: RowCells, ranks: int) -> dict[str, Any]:
    shard = cells.hint("x_shard", SHARDS)
    text = cells.text("zero_or_fsdp").lower()
    if shard is None:
        shard = next((kind for words, kind in SHARD_WORDS if re.search(words, text)), "none")
        cells.note(f"shard = {shard}: " + (f"from {text[:40]!r}" if text else "blank in the table"))
    degree = cells.count("x_shard_degree")
    if degree == 2 * ranks and cells.text("x_chip").startswith("tpu"):
        cells.note(f"shard_degree = {ranks}: {degree} counts the two JAX devices of a chip")
        degree = ranks
    if shard == "none" or degree is None or degree == ranks:
        return {"shard": shard}
    return {"shard": shard, "shard_degree": degree}


def _switches(cells: RowCells, engine: str, chip: Chip) -> dict[str, Any]:
    overlap = {key: cells.flag(column) for column, key in OVERLAPS.items()}
    if overlap["tp"] is None:
        overlap["tp"] = usual_overlap(cells, engine)
    switches: dict[str, Any] = {
        "sequence_parallel": cells.flag("sp"),
        "attention": _attention(cells) or usual_attention(cells, engine, chip),
        "graph": cells.hint("x_cuda_graph", GRAPHS) or usual_graph(cells, engine, chip),
        "moe_dispatch": _dispatch(cells) or usual_dispatch(cells, engine, chip),
        "overlap": {key: value for key, value in overlap.items() if value is not None} or None,
        "compiled": cells.flag("x_compile"),
        "launch_blocking": cells.flag("x_launch_blocking"),
    }
    return {key: value for key, value in switches.items() if value is not None}


def _dispatch(cells: RowCells) -> str | None:
    """The expert dispatcher: its own column, or one that the columns on kernels and overlap name."""
    stated = cells.hint("x_moe_dispatch", DISPATCHES)
    if stated is not None or not dispatches(cells):
        return stated
    named = re.search(r"\b(deepep|hybridep)\b", f"{cells.text('attention_impl')} {cells.text('overlap_notes')}".lower())
    if named:
        cells.note(f"moe_dispatch = {named[1]}: named beside the kernels")
    return named[1] if named else None


def _attention(cells: RowCells) -> str | None:
    stated = cells.hint("x_attention", {"flash": "flash", "unfused": "unfused"})
    if stated is not None:
        return stated
    text = cells.text("attention_impl").lower()
    if "unfused" in text:
        return "unfused"
    return "flash" if re.search(r"flash|fused|splash|sdpa|\bte\b", text) else None


def workload_table(cells: RowCells, engine: str) -> dict[str, Any]:
    """The training step a row measured."""
    table: dict[str, Any] = {"kind": "train", "seq": cells.need("seq_len"), "global_batch": _sequences(cells)}
    task = cells.word("x_task", TASKS)
    if task is None:
        task = "pretrain"
        cells.note("task = pretrain: blank in the table")
    table["task"] = task
    if task == "lora":
        cells.note("lora: rank 16 on the attention's projections, as MLPerf asks; no column holds it")
    table |= _optimizer(cells) or usual_optimizer(cells, engine)
    return table


def _optimizer(cells: RowCells) -> dict[str, Any]:
    """The formats of the optimizer's moments and master copy, where columns say them."""
    if "own" in (cells.text("source_url_or_repo_path"), cells.text("source").partition(" ")[0]):
        cells.note("optimizer: moments in bf16 and no master copy, as in all own measurements")
        return {"optimizer": {"name": "adamw", "states": "bf16", "master": "none"}}
    said = {key: cells.text(f"x_optimizer_{key}") for key in ("states", "master")}
    said = {key: value for key, value in said.items() if value}
    return {"optimizer": {"name": "adamw"} | said} if said else {}


def _sequences(cells: RowCells) -> int:
    """The global batch; one that is a hair off what ranks and microbatches divide is the rounded figure of a text."""
    stated, dp, microbatch = cells.need("global_batch"), cells.count("dp"), cells.count("micro_batch")
    each = (dp or 1) * (microbatch or 1)
    near = max(1, round(stated / each)) * each
    if near != stated and abs(near - stated) < ROUNDED * stated:
        cells.note(f"global_batch = {near}: {stated} cannot be dealt to dp {dp} x micro_batch {microbatch}")
        return near
    return stated
