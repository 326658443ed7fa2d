"""Run vLLM's own scheduler, without a model, through cases and write down each decision.

    python drive_vllm.py MODEL_FOLDER < cases.json > recordings.json      (the Python of an environment with vLLM)

Nothing of Ridgeline is imported: this is the other side of the comparison. MODEL_FOLDER needs a config.json alone.
"""

from __future__ import annotations

import json
import sys
from collections import deque
from typing import Any

import torch
import vllm
from vllm.config import CacheConfig, ModelConfig, SchedulerConfig, VllmConfig
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import get_hash_fn_by_name
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import EMPTY_MODEL_RUNNER_OUTPUT, ModelRunnerOutput
from vllm.v1.request import Request
from vllm.v1.structured_output import StructuredOutputManager

TEXT = 1 << 24  # tokens of one text before the next begins
STOP = -1  # the token that ends an answer before its max_tokens


def scheduler(config: dict[str, Any], folder: str) -> Scheduler:
    """The real scheduler with these knobs; what the CPU platform resets is set again."""
    late = config["async_depth"] > 1
    model = ModelConfig(
        model=folder, dtype="float32", seed=0, max_model_len=config["max_model_len"], skip_tokenizer_init=True
    )
    knobs = ("max_model_len", "max_num_seqs", "policy", "max_num_batched_tokens", "enable_chunked_prefill")
    knobs += ("long_prefill_token_threshold", "watermark", "scheduler_reserve_full_isl")
    rules = SchedulerConfig(is_encoder_decoder=False, async_scheduling=late, **{knob: config[knob] for knob in knobs})
    cache = CacheConfig(block_size=config["block_size"], enable_prefix_caching=config["enable_prefix_caching"])
    cache.num_gpu_blocks = config["num_blocks"]
    whole = VllmConfig(model_config=model, scheduler_config=rules, cache_config=cache)
    rules.async_scheduling, cache.block_size = late, config["block_size"]
    rules.max_num_batched_tokens, rules.max_num_seqs = config["max_num_batched_tokens"], config["max_num_seqs"]
    layer = FullAttentionSpec(block_size=config["block_size"], num_kv_heads=1, head_size=1, dtype=torch.float32)
    blocks = KVCacheConfig(
        num_blocks=config["num_blocks"], kv_cache_tensors=[], kv_cache_groups=[KVCacheGroupSpec(["layer"], layer)]
    )
    return (AsyncScheduler if late else Scheduler)(
        vllm_config=whole,
        kv_cache_config=blocks,
        structured_output_manager=StructuredOutputManager(whole),
        block_size=config["block_size"],
        log_stats=True,
    )


def asked(row: dict[str, Any], number: int, hasher: Any) -> Request:
    """A request of the case as vLLM's own."""
    tokens = [seed * TEXT + at for seed, count in row["prompt"] for at in range(count)]
    how = SamplingParams(max_tokens=row["max_tokens"], ignore_eos=True, stop_token_ids=[STOP])
    return Request(
        row["id"], tokens, how, None,
        arrival_time=row["arrival_step"] + number * 1e-6, priority=row["priority"], block_hasher=hasher,
    )  # fmt: skip


def decided(real: Scheduler, out: Any, preempted: list[str], seen: set[str]) -> dict[str, Any]:
    """What a step decided, by the names of a recording."""
    tokens = dict(out.num_scheduled_tokens)
    before = {name: real.requests[name].num_computed_tokens - count for name, count in tokens.items()}
    first = {one.req_id for one in out.scheduled_new_reqs} | set(out.scheduled_cached_reqs.resumed_req_ids)
    admitted = [name for name in tokens if name in first]
    found = {
        "scheduled": tokens,
        "computed_before": before,
        "admitted": admitted,
        "resumed": [name for name in admitted if name in seen],
        "prefix_hit_tokens": {name: before[name] for name in admitted},
        "preempted": preempted,
        "running": [one.request_id for one in real.running],
        "waiting": [one.request_id for one in real.waiting],
        "free_blocks": real.kv_cache_manager.block_pool.get_num_free_blocks(),
        "block_ids": {name: list(real.kv_cache_manager.get_block_ids(name)[0]) for name in tokens},
    }
    seen.update(first)
    return found


def run(case: dict[str, Any], folder: str) -> dict[str, Any]:
    """A recording of the case."""
    config, rows = case["config"], case["requests"]
    real = scheduler(config, folder)
    digest = get_hash_fn_by_name("sha256")
    init_none_hash(digest)
    hasher = get_request_block_hasher(config["block_size"], digest) if config["enable_prefix_caching"] else None
    lengths = {row["id"]: row.get("output_tokens", row["max_tokens"]) for row in rows}
    dropped: list[str] = []
    drop = real._preempt_request
    real._preempt_request = lambda one, *more, **named: (dropped.append(one.request_id), drop(one, *more, **named))[1]
    todo = deque(sorted(enumerate(rows), key=lambda row: (row[1]["arrival_step"], row[0])))
    steps: list[dict[str, Any]] = []
    flying: deque[tuple[Any, ModelRunnerOutput, dict[str, Any]]] = deque()
    seen: set[str] = set()
    at = fresh = 0
    while todo or real.has_requests() or flying:
        if todo and not real.has_requests() and not flying:
            at = max(at, todo[0][1]["arrival_step"])
        arrived = []
        while todo and todo[0][1]["arrival_step"] <= at:
            number, row = todo.popleft()
            arrived.append(row["id"])
            real.add_request(asked(row, number, hasher))
        if real.has_requests():
            dropped.clear()
            out = real.schedule()
            record = {"step": at, "arrived": arrived, **decided(real, out, list(dropped), seen)}
            steps.append(record)
            names = list(out.num_scheduled_tokens)
            sampled: list[list[int]] = []
            for name in names:
                fresh += 1  # no answer ever repeats a token
                one = real.requests[name]
                place = one.num_output_tokens + (one.num_output_placeholders if config["async_depth"] > 1 else 1)
                token = STOP if place >= lengths[name] else STOP - fresh
                sampled.append([] if one.is_prefill_chunk else [token])
            places = {name: place for place, name in enumerate(names)}
            flying.append(
                (out, ModelRunnerOutput(names, places, sampled) if names else EMPTY_MODEL_RUNNER_OUTPUT, record)
            )
            at += 1
            if len(flying) < config["async_depth"] and (names or real.has_requests()):
                continue
        out, result, record = flying.popleft()
        told = real.update_from_output(out, result)
        ends = [one.request_id for group in told.values() for one in group.outputs if one.finish_reason is not None]
        record["finished"] = ends
        record["free_blocks_after"] = real.kv_cache_manager.block_pool.get_num_free_blocks()
    return {"vllm": vllm.__version__, "config": config, "requests": rows, "steps": steps}


if __name__ == "__main__":
    json.dump([run(case, sys.argv[1]) for case in json.load(sys.stdin)], sys.stdout)
