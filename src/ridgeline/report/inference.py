"""Turn the steps of an inference engine into a sheet, and the sheet into a line or two of a page."""

from __future__ import annotations

from rich.console import RenderableType
from rich.text import Text

from ridgeline.report.cells import time
from ridgeline.report.sheets.inference import InferenceSheet
from ridgeline.trace.analysis.inference import DECODE, MIXED, PREFILL, Inference

LISTED = 1000


def inference_sheet(found: Inference | None) -> InferenceSheet | None:
    """What the engine's steps come to; None where there are none."""
    if found is None:
        return None
    batches = [step.generation.requests for step in found.of(DECODE)]
    tpot, prefill = found.tpot_ns, found.prefill_ns
    return {
        "steps": [
            {
                "rank": step.rank,
                "step_kind": step.kind,
                "requests": step.requests,
                "tokens": step.tokens,
                "start_us": step.start_ns / 1000,
                "wall_us": (step.end_ns - step.begin_ns) / 1000,
                "busy_us": step.busy_ns / 1000,
                "spans": step.spans,
                "graph": step.graph,
                "span_id": step.row,
            }
            for step in found.steps[:LISTED]
        ],
        "prefill_steps": len(found.of(PREFILL)),
        "decode_steps": len(found.of(DECODE)),
        "mixed_steps": len(found.of(MIXED)),
        "graph_hits": found.graph_hits,
        "mean_decode_batch": sum(batches) / len(batches) if batches else None,
        "tpot_us": None if tpot is None else tpot / 1000,
        "prefill_us": None if prefill is None else prefill / 1000,
        "tokens_per_s": found.tokens_per_s,
    }


def inference_lines(sheet: InferenceSheet | None, model: str | None) -> list[RenderableType]:
    """The engine's steps in words; nothing for a trace without."""
    lines: list[RenderableType] = []
    if sheet is not None:
        counts = ((sheet["prefill_steps"], PREFILL), (sheet["decode_steps"], DECODE), (sheet["mixed_steps"], MIXED))
        parts = [f"{count:,} {kind}" for count, kind in counts if count]
        tokens = sum(step["tokens"] for step in sheet["steps"])
        parts.append(f"{tokens:,} tokens")
        parts.append(f"graph replayed in {sheet['graph_hits']:,} of {len(sheet['steps']):,}")
        if sheet["mean_decode_batch"]:
            parts.append(f"{sheet['mean_decode_batch']:.1f} requests a decode step")
        if sheet["tpot_us"]:
            parts.append(f"{time(sheet['tpot_us'])} a token and request (TPOT)")
        if sheet["prefill_us"]:
            parts.append(f"prefill {time(sheet['prefill_us'])}")
        lines.append(Text.assemble(("engine steps ", "dim"), ", ".join(parts)))
    if model is not None:
        lines.append(Text(f"kernels without recorded operands are priced by the sizes of {model}", style="dim"))
    return lines
