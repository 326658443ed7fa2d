"""Draw the steps of an inference engine: a line or two of the page of an analysis."""

from __future__ import annotations

from rich.console import RenderableType
from rich.text import Text

from ridgeline.report.cells import time
from ridgeline.trace.analysis.inference import DECODE, MIXED, PREFILL, Inference

LISTED = 1000


def inference_lines(inference: Inference | None, model: str | None) -> list[RenderableType]:
    """The engine's steps in words; nothing for a trace without."""
    lines: list[RenderableType] = []
    if inference is not None:
        counts = ((inference.prefill_steps, PREFILL), (inference.decode_steps, DECODE), (inference.mixed_steps, MIXED))
        parts = [f"{count:,} {kind}" for count, kind in counts if count]
        tokens = sum(step.tokens for step in inference.steps)
        parts.append(f"{tokens:,} tokens")
        parts.append(f"graph replayed in {inference.graph_hits:,} of {len(inference.steps):,}")
        if inference.mean_decode_batch:
            parts.append(f"{inference.mean_decode_batch:.1f} requests a decode step")
        if inference.tpot_ns:
            parts.append(f"{time(inference.tpot_ns)} a token and request (TPOT)")
        if inference.prefill_ns:
            parts.append(f"prefill {time(inference.prefill_ns)}")
        lines.append(Text.assemble(("engine steps ", "dim"), ", ".join(parts)))
    if model is not None:
        lines.append(Text(f"kernels without recorded operands are priced by the sizes of {model}", style="dim"))
    return lines
