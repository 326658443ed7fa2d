"""Run live vLLM engines, model and all, through cases and write down each decision of the scheduler inside them.

    python drive_vllm_live.py MODEL_FOLDER < cases.json > recordings.json      (the Python of an environment with vLLM)

Nothing of Ridgeline is imported. MODEL_FOLDER needs a config.json alone: weights are random. Engines run in this
process, so that requests arrive at known steps; answers are sampled, so that no two are alike.
"""

from __future__ import annotations

import json
import os
import sys
from collections import deque
from typing import Any

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"

import vllm
from drive_vllm import decided
from vllm import EngineArgs, SamplingParams
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.engine.llm_engine import LLMEngine

VOCABULARY = 30_000
KNOBS = (
    "block_size", "max_model_len", "max_num_seqs", "max_num_batched_tokens", "enable_prefix_caching",
    "enable_chunked_prefill", "long_prefill_token_threshold", "scheduler_reserve_full_isl",
)  # fmt: skip


class Recording(Scheduler):
    """The engine's own scheduler, which writes down what it decides."""

    latest: Recording

    def __init__(self, *words: Any, **named: Any) -> None:
        super().__init__(*words, **named)
        self.steps: list[dict[str, Any]] = []
        self.dropped: list[str] = []
        self.seen: set[str] = set()
        Recording.latest = self

    def _preempt_request(self, request: Any, *words: Any, **named: Any) -> Any:
        self.dropped.append(request.request_id)
        return super()._preempt_request(request, *words, **named)

    def schedule(self, *words: Any, **named: Any) -> Any:
        self.dropped = []
        out = super().schedule(*words, **named)
        self.steps.append(decided(self, out, self.dropped, self.seen))
        return out

    def update_from_output(self, out: Any, result: Any) -> Any:
        told = super().update_from_output(out, result)
        ends = [one.request_id for group in told.values() for one in group.outputs if one.finish_reason is not None]
        self.steps[-1]["finished"] = ends
        self.steps[-1]["free_blocks_after"] = self.kv_cache_manager.block_pool.get_num_free_blocks()
        return told


def tokens(prompt: list[list[int]]) -> list[int]:
    """A prompt of known text: pieces of equal seeds are equal, others differ somewhere in every block."""
    return [4 + (seed * 1_000_003 + at * 7_919) % VOCABULARY for seed, count in prompt for at in range(count)]


def run(case: dict[str, Any], folder: str) -> dict[str, Any]:
    """A recording of the case, made by an engine of its own."""
    config, rows = case["config"], case["requests"]
    engine = LLMEngine.from_engine_args(
        EngineArgs(
            model=folder, load_format="dummy", enforce_eager=True, skip_tokenizer_init=True, dtype="float32", seed=0,
            scheduler_cls=Recording, scheduling_policy=config["policy"],
            num_gpu_blocks_override=config["num_blocks"], **{knob: config[knob] for knob in KNOBS},
        )
    )  # fmt: skip
    real = Recording.latest
    todo = deque(sorted(enumerate(rows), key=lambda row: (row[1]["arrival_step"], row[0])))
    at = 0
    names: dict[str, str] = {}
    by_name = {row["id"]: row for row in rows}
    while todo or real.has_requests():
        if todo and not real.has_requests():
            at = max(at, todo[0][1]["arrival_step"])
        arrived = []
        while todo and todo[0][1]["arrival_step"] <= at:
            number, row = todo.popleft()
            arrived.append(row["id"])
            how = SamplingParams(max_tokens=row["max_tokens"], ignore_eos=True, temperature=1.0)
            how.detokenize = False
            if row.get("stops"):
                how.stop_token_ids = list(range(row["stops"]))
            given = {"prompt_token_ids": tokens(row["prompt"])}
            before = set(real.requests)
            engine.add_request(row["id"], given, how, arrival_time=float(number), priority=row["priority"])
            names |= dict.fromkeys(set(real.requests) - before, row["id"])
        for told in engine.step():
            if told.finished and by_name[told.request_id].get("stops"):
                by_name[told.request_id]["output_tokens"] = len(told.outputs[0].token_ids)
        if real.steps:
            real.steps[-1] |= {"step": at, "arrived": arrived}
        at += 1
    engine.engine_core.shutdown()
    known = {
        **config,
        "num_blocks": real.kv_cache_manager.block_pool.num_gpu_blocks,
        "block_size": real.block_size,
        "async_depth": 1,
    }
    return {"vllm": vllm.__version__, "config": known, "requests": rows, "steps": renamed(real.steps, names)}


def renamed(part: Any, names: dict[str, str]) -> Any:
    """Engines may lengthen the ids they are given; a recording has those of the case."""
    if isinstance(part, dict):
        return {names.get(key, key): renamed(value, names) for key, value in part.items()}
    if isinstance(part, list):
        return [renamed(value, names) for value in part]
    return names.get(part, part) if isinstance(part, str) else part


if __name__ == "__main__":
    made = [run(case, sys.argv[1]) for case in json.load(sys.stdin)]
    print("RECORDINGS" + json.dumps(made))
