"""Time of recording op graphs and of planning what to save: `python benchmarks/graph.py`.

Each model is recorded once to load what it imports, then three times; the least counts. The check and the page come
after it. Ratios are against the recording of the smallest model, so that machines can be compared.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import TypeVar

import ridgeline
from ridgeline.graph import GraphReport, check_lowering
from ridgeline.graph.save_sets import layer_fronts, plan_saves
from ridgeline.hardware.load import chip
from ridgeline.runtime.capture import graph_of_model

MODELS = ("llama3-8b", "llama3.1-405b", "qwen3-30b-a3b", "deepseek-v3")
SEQ, RUNS = 4096, 3
Answer = TypeVar("Answer")


def least_seconds(work: Callable[[], Answer]) -> tuple[float, Answer]:
    """The least of a few runs, and what the last of them answered."""
    spans = []
    for _ in range(RUNS):
        begin = time.perf_counter()
        answer = work()
        spans.append(time.perf_counter() - begin)
    return min(spans), answer


def main() -> None:
    """Print a line for each model."""
    begin = time.perf_counter()
    graph_of_model(ridgeline.model(MODELS[0]), seq=SEQ, batch=1)
    print(f"first recording, with torch and what it imports: {time.perf_counter() - begin:.2f} s")
    base = 0.0
    for name in sys.argv[1:] or MODELS:
        model = ridgeline.model(name)
        recording_s, graph = least_seconds(lambda model=model: graph_of_model(model, seq=SEQ, batch=1))  # type: ignore[misc]
        base = base or recording_s
        check_s, check = least_seconds(lambda graph=graph, model=model: check_lowering(graph, model, seq=SEQ, batch=1))  # type: ignore[misc]
        fronts = layer_fronts(graph, GraphReport(graph=graph, chip=chip("h100-sxm")).op_seconds)
        least, most = (sum(front.sets[end].bytes * front.count for front in fronts) for end in (0, -1))
        plan_s, plan = least_seconds(lambda fronts=fronts, half=(least + most) / 2: plan_saves(fronts, half))  # type: ignore[misc]
        gap = f"{plan.gap:.3%}" if plan else "none"
        print(
            f"{name:16} {recording_s:6.3f} s ({recording_s / base:4.1f}x) {len(graph.ops):6,} ops, flops "
            f"{check.share:+.4%} of lowering in {check_s:.3f} s, save plan {plan_s:.3f} s within {gap}"
        )


if __name__ == "__main__":
    main()
