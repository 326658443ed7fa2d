"""Write the traces that cases analyse into a folder: small, the same every time, or copies of stored real ones."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import exports
import page_traces
import traces

REAL = Path(__file__).parents[1] / "data" / "h200"
SMALL = replace(traces.EAGER, layers=4, steps=2)


def eager(folder: Path) -> None:
    """A launch-bound rank, and the same with its steps as graphs."""
    traces.write(traces.make(SMALL), folder / "eager.json.gz")
    traces.write(traces.make(replace(SMALL, graph=True, gap_us=1.5)), folder / "graphs.json.gz")


def straggler(folder: Path) -> None:
    """Four ranks of which the last is late."""
    for recipe in traces.straggling(4, 40.0, traces.Recipe(gap_us=1.5, layers=4, graph=True, k=2048)):
        traces.write(traces.make(recipe), folder / "ranks" / f"rank{recipe.rank}.json")


def pipeline(folder: Path) -> None:
    """Three pipeline stages, a rank each, clocks apart."""
    for rank, trace in enumerate(traces.Pipeline(stages=3, microbatches=4, ahead_us=7.0).traces()):
        traces.write(trace, folder / "stages" / f"rank{rank}.json")


def transformer(folder: Path) -> None:
    """Two ranks that train a transformer for a step."""
    page_traces.ranks(folder / "transformer", 2400, 2)


def others(folder: Path) -> None:
    """What Nsight Systems, Chakra, Ascend and XLA write."""
    exports.nsys(folder / "nsys.sqlite")
    (folder / "chakra.et").write_bytes(exports.chakra(*exports.NODES))
    ascend = folder / "ascend" / "ASCEND_PROFILER_OUTPUT"
    ascend.mkdir(parents=True)
    (ascend / "trace_view.json").write_text(json.dumps(exports.ascend_trace()), encoding="utf-8")
    (ascend / "kernel_details.csv").write_text(exports.DETAILS, encoding="utf-8")
    (folder / "xla.trace.json").write_text(json.dumps(exports.xla_trace()), encoding="utf-8")
    (folder / "ncu.csv").write_text(exports.RAW, encoding="utf-8")


def real(folder: Path) -> None:
    """Profiles of one H200."""
    for path in REAL.glob("*.gz"):
        shutil.copy(path, folder)


INPUTS: Mapping[str, Callable[[Path], None]] = {
    one.__name__: one for one in (eager, straggler, pipeline, transformer, others, real)
}
