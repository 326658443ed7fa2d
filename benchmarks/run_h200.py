"""Measure what `ridgeline run` reaches on one GPU, each fusion on and off, beside plain PyTorch in the same run.

    python benchmarks/run_h200.py rows.json [--only 8b] [--trace FOLDER]     on a machine with a GPU
    python -m tools figures run                                               the tables of docs/concepts/running.md

A case is a scenario of engine `ridgeline` with other words in its `fuses`, or another plan: what is measured is what is
predicted. `plain` is benchmarks/witness.py's model: torch.compile for each block and for the head with its loss, fused
AdamW, no norm of gradients, no clipping. A step is the median of eight from one step's first CUDA event to the next
one's, behind four that warm up; memory is the allocator's peak from the third step on. Rows already in the file stay.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import sys
import time
import traceback
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

import ridgeline
from ridgeline.runtime.train.assemble import assemble
from ridgeline.runtime.train.data import batch_of, open_source
from ridgeline.runtime.train.layout import make_layout
from ridgeline.runtime.train.loop import blueprint_of
from ridgeline.runtime.train.refuse import refusals
from ridgeline.runtime.train.request import RunOptions, make_request
from ridgeline.runtime.train.step import SETTLED, Stepper, WholeStep
from ridgeline.runtime.train.update import Update

sys.path.insert(0, str(Path(__file__).parent))

from run_cases import CASES, MODELS, Case

WARM, TIMED = 4, 8


def measure(case: Case, trace: Path | None) -> dict[str, Any]:
    """One case on the first GPU."""
    scenario = case.scenario
    found = refusals(scenario)
    assert not found, found
    request = make_request(scenario, RunOptions(device="cuda:0"))
    layout = make_layout(scenario.plan, experts=False, device="cuda:0")
    source = open_source("synthetic", scenario.model.vocab, 0)
    assembly = assemble(blueprint_of(request), layout)
    step = WholeStep(
        Stepper(assembly=assembly, microbatches=1), Update(assembly, request.train.optimizer, 3e-4),
        graph=scenario.plan.switches.graph == "full",
    )  # fmt: skip
    work = request.train
    batches = [batch_of(source, index, work.sequences, work.seq, layout) for index in range(WARM + TIMED + 1)]
    began = time.monotonic()
    losses = [float(step(batch)[0]) for batch in batches[:SETTLED]]
    torch.cuda.reset_peak_memory_stats()  # behind compilers, before a graph is captured
    losses += [float(step(batch)[0]) for batch in batches[SETTLED:WARM]]
    warm = time.monotonic() - began
    events = []
    for batch in batches[WARM:]:
        events.append(torch.cuda.Event(enable_timing=True))  # type: ignore[no-untyped-call]
        events[-1].record()
        loss, norm = step(batch)
    torch.cuda.synchronize()
    taken = [one.elapsed_time(two) / 1e3 for one, two in pairwise(events)]
    last_loss, last_norm, most = float(loss), float(norm), torch.cuda.max_memory_allocated()
    predicted, peak = ridgeline.predict(scenario), scenario.plan.precision.compute.peak
    if trace is not None:
        _profile(step, batches[0], trace / f"{case.id.replace(' ', '-').replace(',', '')}.json.gz")
    return {
        "id": case.id, "step_s": statistics.median(taken), "fastest_s": min(taken), "slowest_s": max(taken),
        "peak_bytes": most, "predicted_s": predicted.step_time_s,
        "flops": predicted.utilization.mfu * predicted.step_time_s * scenario.system.chip.peak[peak].value,
        "first_loss": losses[0], "last_loss": last_loss, "gradient_norm": last_norm, "warm_s": warm,
        "predicted_bytes": predicted.memory.peak_bytes,
    }  # fmt: skip


def _profile(step: WholeStep, batch: Any, path: Path) -> None:
    kinds = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=kinds, record_shapes=True) as profiler:
        for index in range(2):
            with torch.profiler.record_function(f"ProfilerStep#{index}"):
                step(batch)
            torch.cuda.synchronize()
    path.parent.mkdir(parents=True, exist_ok=True)
    profiler.export_chrome_trace(str(path))


def plain(model: str) -> dict[str, Any]:
    """The same model as plain PyTorch trains it."""
    import witness

    name, seq, sequences = MODELS[model]
    assert isinstance(name, str)
    found = witness.measure(witness.Case(model=name, seq=seq, batch=sequences), None)
    return {"id": f"{model} plain", "step_s": found.step, "peak_bytes": found.peak}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument("rows", type=Path)
    parser.add_argument("--only", default="", help="only cases whose id holds one of these, split by semicolons")
    parser.add_argument("--trace", type=Path, help="also write a trace of two steps of each case here")
    options = parser.parse_args()
    rows = json.loads(options.rows.read_text())["rows"] if options.rows.exists() else []
    for id, run in _wanted(options.only.split(";"), {row["id"] for row in rows}, options.trace):
        try:
            rows.append(run())
        except Exception as wrong:
            traceback.print_exc()
            rows.append({"id": id, "failed": f"{type(wrong).__name__}: {str(wrong).splitlines()[0][:200]}"})
        torch._dynamo.reset()
        gc.collect()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        told = {"chip": torch.cuda.get_device_name(), "torch": torch.__version__, "rows": rows}
        options.rows.write_text(json.dumps(told, indent=1) + "\n")
        print({k: round(v, 4) if isinstance(v, float) and v < 1e6 else v for k, v in rows[-1].items()}, flush=True)


def _wanted(only: list[str], done: set[str], trace: Path | None) -> Iterator[tuple[str, Any]]:
    for model in ("8b", "3b"):
        if f"{model} plain" not in done and any(word in f"{model} plain" for word in only):
            yield f"{model} plain", lambda model=model: plain(model)
    for case in CASES:
        if case.id not in done and any(word in case.id for word in only):
            yield case.id, lambda case=case: measure(case, trace)


if __name__ == "__main__":
    main()
