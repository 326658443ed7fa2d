"""Turn a blank cell into what recipes of the row's software do on its chips, and say so.

A habit is what published recipes of an engine state wherever they state it; where they do not agree there is none, and
the plan's own default stands. In a row that is complete by its own account (`x_complete` = full) a blank switch is a
switch that was not used: habits are for rows that leave things out.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from ridgeline.calibrate.truth.csv_cells import RowCells
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
SUBMITTERS = ("mlperf-nvidia", "nemo", "rocm-mlperf", "llmboost")  # engines of MLPerf entries on GPUs


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


def usual_dispatch(cells: RowCells, engine: str, chip: Chip) -> str | None:
    """The expert dispatcher of an engine's recipes; None where they have no habit or nothing is dispatched."""
    dispatched = cells.size("experts") and (cells.count("ep") or 1) > 1 and cells.text("x_complete") != "full"
    found = DISPATCHERS.get((engine, chip.family)) if dispatched else None
    if found:
        cells.note(f"moe_dispatch = {found}: blank in the table; what recipes of {engine} on {chip.family} use")
    return found


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
