"""Turn a blank cell into what recipes of the row's software do on its chips, and say so.

A habit is what published recipes of an engine state wherever they state it; where they do not agree there is none, and
the plan's own default stands. In a row that is complete by its own account (`x_complete` = full) a blank switch is a
switch that was not used: habits are for rows that leave things out.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType

from ridgeline.calibrate.truth.csv_cells import RowCells
from ridgeline.core.documents import JsonObject
from ridgeline.hardware.chip import Chip

# (engine, family of chips) -> the dispatcher its recipes for experts name (Megatron-Bridge: 57 of 58 rows on Blackwell)
DISPATCHERS: Mapping[tuple[str, str], str] = MappingProxyType(
    {
        ("megatron-bridge", "blackwell"): "hybridep",
        ("megatron-bridge", "hopper"): "deepep",
        ("nemo-automodel", "hopper"): "deepep",
        ("hai-llm", "hopper"): "deepep",
    }
)
# engines that interleave stages of a single layer and leave one each to the embedding and the head: Llama 3, whose 126
# layers are 8 x 16 less two ("the first chunk has only the embedding, the last only the output projection")
LAYER_STAGES = frozenset({"meta-internal"})
# engines that train weights as they were loaded, in bf16 and without a master copy
PURE_BF16 = frozenset({"nemo-automodel"})
UNFUSED_UNTIL = 2023  # years of Paxml's GPU recipes without flash attention
# sources whose recompute and vocabulary come from a simulator; the runs contradict them (decisions/calibration.md)
SIMULATED = frozenset({"vtrain_single"})
SUBMITTERS = ("mlperf-nvidia", "nemo", "rocm-mlperf", "llmboost")  # engines of MLPerf entries on GPUs


def of_simulator(cells: RowCells) -> bool:
    """Whether a row's recompute and vocabulary are a simulator's inputs that its measured times rule out."""
    return cells.row.source in SIMULATED


def engine_habits(cells: RowCells) -> JsonObject:
    """Habits of the engine that differ in a row, as the [engine] table of a scenario.

    A simulator's row on one tensor rank leaves the vocabulary as it is: there is nothing to split it by, and of a step
    the part that does not grow with layers takes as long as logits of 50257 columns do, which are unaligned.
    """
    if not of_simulator(cells) or (cells.count("tp") or 1) > 1:
        return {}
    cells.note("vocabulary: not padded on one tensor rank, by how steps grow with layers")
    return {"engine": {"vocab_multiple": 1}}


def of_mlperf(cells: RowCells) -> bool:
    """Whether a row is an MLPerf entry."""
    return cells.row.source == "mlperf" or "mlperf" in cells.text("source").lower()


def usual_precision(cells: RowCells, engine: str, chip: Chip) -> str:
    """Of a row that states none: MLPerf entries on chips with fp8 run it, everything else bf16."""
    if engine in SUBMITTERS and of_mlperf(cells) and "fp8" in chip.peak:
        cells.note("precision = fp8: blank in the table; what MLPerf entries on such chips run")
        return "fp8"
    wide = "bf16" if "bf16" in chip.peak else "fp16"
    cells.note(f"precision = {wide}: blank in the table")
    return wide


def dispatches(cells: RowCells) -> bool:
    """Whether tokens are sent to experts: by the columns on experts, or by ranks for them where a name alone tells."""
    return bool(cells.size("experts")) or (cells.count("ep") or 1) > 1


def usual_overlap(cells: RowCells, engine: str) -> bool | None:
    """Tensor-parallel overlap of rows that NeMo ran and that count as Megatron-Core: its recipes set
    `ub_tp_comm_overlap` wherever sequences are split; None elsewhere."""
    of_nemo = re.match("nemo", cells.text("framework").lower()) and engine == "megatron-core"
    if not of_nemo or not cells.flag("sp") or (cells.count("tp") or 1) == 1 or cells.text("x_complete") == "full":
        return None
    cells.note("overlap.tp = true: blank in the table; what recipes of NeMo set")
    return True


def usual_dispatch(cells: RowCells, engine: str, chip: Chip) -> str | None:
    """The expert dispatcher of an engine's recipes; None where they have no habit or nothing is dispatched."""
    has_dispatch = (cells.count("ep") or 1) > 1 and cells.text("x_complete") != "full"
    dispatcher = DISPATCHERS.get((engine, chip.family)) if has_dispatch else None
    if dispatcher:
        cells.note(f"moe_dispatch = {dispatcher}: blank in the table; what recipes of {engine} on {chip.family} use")
    return dispatcher


def usual_attention(cells: RowCells, engine: str, chip: Chip) -> str | None:
    """Unfused in Paxml on GPUs until 2023, whose recipes took up cuDNN's flash attention then; None elsewhere."""
    year = cells.count("year")
    if engine != "paxml" or chip.vendor != "NVIDIA" or year is None or year > UNFUSED_UNTIL:
        return None
    cells.note(
        f"attention = unfused: blank in the table, and of {year}; {engine} on GPUs had no flash attention before"
    )
    return "unfused"


def usual_graph(cells: RowCells, engine: str, chip: Chip) -> str | None:
    """How much is replayed from graphs; None where recipes have no habit.

    On Blackwell, MLPerf entries that state it capture layers (17 of 25 rows), and so do Megatron-Bridge's recipes for
    experts (54 of 71, some of them whole iterations).
    """
    if chip.family != "blackwell" or cells.text("x_complete") == "full":
        return None
    entry = engine in SUBMITTERS and of_mlperf(cells)
    if entry or (engine == "megatron-bridge" and cells.size("experts")):
        cells.note(f"graph = partial: blank in the table; what recipes of {engine} on {chip.family} do")
        return "partial"
    return None


def usual_stages(cells: RowCells, engine: str, pp: int) -> JsonObject:
    """The schedule and placement of an engine that interleaves single layers; nothing where a row states its chunks."""
    layers = cells.count("layers") or 0
    if engine not in LAYER_STAGES or pp == 1 or cells.count("vpp") is not None or (layers + 2) % pp:
        return {}
    cells.note(f"schedule = interleaved: blank in the table; {engine} interleaves single layers, none at the two ends")
    chunks = (layers + 2) // pp
    return {"schedule": {"name": "interleaved", "chunks": chunks}, "placement": [0, *[1] * layers, 0]}


def usual_optimizer(cells: RowCells, engine: str) -> JsonObject:
    """The formats of optimizer states of an engine that holds no master copy; nothing for the others."""
    if engine not in PURE_BF16:
        return {}
    cells.note(f"optimizer: moments in bf16 and no master copy; {engine} trains weights as loaded")
    return {"optimizer": {"name": "adamw", "states": "bf16", "master": "none"}}


def usual_exchange(cells: RowCells, engine: str, mesh: Mapping[str, int]) -> str | None:
    """How MLPerf entries with NVIDIA's software exchange over context ranks: heads for sequence where the key-value
    heads go round, since a ring would cut their sequences into kernels of a few hundred tokens; None elsewhere."""
    heads = cells.count("kv_heads") or cells.count("heads") or 1
    ranks = mesh["tp"] * mesh["cp"]
    if mesh["cp"] == 1 or heads % ranks or engine not in SUBMITTERS[:2] or not of_mlperf(cells):
        return None
    cells.note("cp_kind = all-to-all: no column holds it; heads divide, and a ring would have too small kernels")
    return "all-to-all"
