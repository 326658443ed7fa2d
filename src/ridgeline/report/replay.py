"""Draw a replayed recording of a scheduler."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from ridgeline.report.cells import clean
from ridgeline.serving.replay.recording import Replay


def draw_replay(found: Replay, console: Console) -> None:
    """Print the verdict, and the first difference where there is one."""
    version = f" {clean(found.version)}" if found.version else ""
    console.print(Text(f"{found.engine}{version}: {found.requests:,} requests, {found.steps:,} recorded steps"))
    if found.first_difference is None:
        console.print(Text("every decision is the recorded one", "green"))
        return
    first = found.first_difference
    console.print(Text(f"{found.differing_steps:,} steps differ; first step {first.step}, {clean(first.field)}"))
    console.print(Text(f"  recorded   {clean(repr(first.recorded)[:200])}"))
    console.print(Text(f"  simulated  {clean(repr(first.simulated)[:200])}"))
