"""The peer of the benchmarks: llm-analysis, from the package index, in an environment of its own.

    python -m venv peer && peer/bin/pip install llm-analysis
    python benchmarks/plan.py --peer peer/bin/python

This file is both sides. Run by the peer's Python it prices GPT-3 175B plans one by one through llm-analysis' own
classes for some seconds and prints what that cost; imported, it starts that and reads the answer. llm-analysis gives a
step time and memory from flops, tensor-parallel traffic and bytes; it knows no pipeline bubble, schedule or gradient
exchange.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass

SECONDS = 4.0
CHIPS, SEQUENCES, SEQ = 1024, 3072, 2048


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """What the peer did: distinct plans priced in CPU seconds of one core, the best of several rounds."""

    name: str
    plans: int
    per_core_s: float


def measured(python: str | None) -> Peer | None:
    """The peer's figures, or nothing and a message when there is no peer to ask."""
    if python is None:
        print("peer: skipped; give --peer PYTHON, one that has llm-analysis", file=sys.stderr)
        return None
    done = subprocess.run([python, __file__], capture_output=True, text=True, check=False)
    if done.returncode:
        told = done.stderr.strip().splitlines()[-1:] or ["no message"]
        print(f"peer: {python} failed: {told[0]}", file=sys.stderr)
        return None
    found = json.loads(done.stdout.splitlines()[-1])
    return Peer(name=found["name"], plans=found["plans"], per_core_s=found["per_core_s"])


def main() -> None:
    """The peer's side: every tp, pp, dp and microbatch that divides, over and over."""
    import logging
    import time
    from importlib.metadata import version

    from llm_analysis.analysis import ActivationRecomputation, DSZeRO, LLMAnalysis  # type: ignore[import-not-found]
    from llm_analysis.config import (  # type: ignore[import-not-found]
        ModelConfig,
        ParallelismConfig,
        get_dtype_config_by_name,
        get_gpu_config_by_name,
    )

    logging.disable(logging.CRITICAL)
    shape = {"num_layers": 96, "n_head": 96, "hidden_dim": 12288, "vocab_size": 51200, "max_seq_len": SEQ}
    model = ModelConfig(name="gpt3-175b", **shape)
    chip, formats = get_gpu_config_by_name("a100-sxm-80gb"), get_dtype_config_by_name("w16a16e16")

    def price(tp: int, pp: int, microbatch: int) -> float:
        dp = CHIPS // (tp * pp)
        split = ParallelismConfig(tp_size=tp, pp_size=pp, dp_size=dp)
        made = LLMAnalysis(model, chip, formats, split, flops_efficiency=0.5).training(
            batch_size_per_gpu=microbatch,
            gradient_accumulation_steps=SEQUENCES // (dp * microbatch),
            global_batch_size=SEQUENCES,
            seq_len=SEQ,
            total_num_tokens=SEQ * SEQUENCES,
            activation_recomputation=ActivationRecomputation.FULL,
            ds_zero=DSZeRO.STAGE_1,
        )
        return float(made["latency_per_iter"])

    plans: list[tuple[int, int, int]] = []
    for tp in (1, 2, 4, 8):
        for pp in (1, 2, 4, 8, 16, 32):
            for microbatch in (1, 2, 3, 4, 6, 8):
                if SEQUENCES % (CHIPS // (tp * pp) * microbatch):
                    continue
                try:
                    price(tp, pp, microbatch)
                except AssertionError:  # it refuses what it takes not to fit
                    continue
                plans.append((tp, pp, microbatch))
    best, start = 0.0, time.process_time()
    while time.process_time() - start < SECONDS:
        begun = time.process_time()
        for plan in plans:
            price(*plan)
        best = max(best, len(plans) / (time.process_time() - begun))
    print(json.dumps({"name": f"llm-analysis {version('llm-analysis')}", "plans": len(plans), "per_core_s": best}))


if __name__ == "__main__":
    main()
