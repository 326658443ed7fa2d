"""TensorRT-LLM's in-flight batching: who may start, what a step holds, and that it takes what the closed form takes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import ridgeline
from ridgeline.serving.batch_steps import Limits, closed_batch
from ridgeline.serving.deployment import instances_of
from ridgeline.serving.engine.tensorrt_llm import TensorrtLlmScheduler, TensorrtLlmSettings
from ridgeline.serving.fleet import simulate
from ridgeline.serving.load import at_times
from ridgeline.serving.request import Request
from ridgeline.serving.step_cost import LinearStepCost

COST = LinearStepCost(step_s=7e-3, decode_s=1e-5, kv_token_s=3e-8, prefill_token_s=2.5e-5)
SMALL = TensorrtLlmSettings(
    blocks=40, tokens_per_block=32, max_num_tokens=256, enable_block_reuse=False, disable_overlap_scheduler=True
)


def requests(many: int, isl: int, osl: int, allowed: int = 0) -> list[Request]:
    load = at_times([0.0] * many, [(isl, osl)])
    return [replace(one, max_new_tokens=allowed or osl) for one in load]


def test_no_evict_starts_whom_the_cache_holds_to_the_last_possible_token() -> None:
    """96 + 64 tokens are 5 blocks: 8 of them in 40. Allowed 224 tokens, they are 10 blocks, and 4 run."""
    for allowed, most in ((64, 8), (224, 4)):
        engine = TensorrtLlmScheduler(SMALL)
        for one in requests(12, 96, 64, allowed):
            engine.add(one)
        seen = 0
        while engine.has_unfinished:
            step = engine.schedule()
            seen = max(seen, len(engine.running))
            assert engine.promised <= engine.pool.free_blocks
            assert not step.preempted
            engine.update(step)
        assert seen == most
        assert engine.pool.free_blocks == engine._spare == 40


def test_max_utilization_starts_more_and_pauses_the_last() -> None:
    found = {}
    for policy in ("GUARANTEED_NO_EVICT", "MAX_UTILIZATION"):
        engine = TensorrtLlmScheduler(replace(SMALL, capacity_scheduler_policy=policy))
        served = simulate(requests(24, 96, 128, 512), engine, COST)
        found[policy] = (int(served.preemptions.sum()), served.steps)
    assert found["GUARANTEED_NO_EVICT"][0] == 0 < found["MAX_UTILIZATION"][0]
    assert found["MAX_UTILIZATION"][1] < found["GUARANTEED_NO_EVICT"][1]


def test_a_prompt_waits_whole_or_is_cut_to_whole_blocks() -> None:
    """Of 256 tokens 160 are taken: the second prompt of 160 waits, or gets 96, and of 250 the rest of 90 gives 64."""
    for chunked, isl, first in ((False, 160, [160]), (True, 160, [160, 96]), (True, 166, [166, 64])):
        engine = TensorrtLlmScheduler(replace(SMALL, enable_chunked_prefill=chunked))
        for one in requests(3, isl, 8):
            engine.add(one)
        assert [chunk.tokens for chunk in engine.schedule().chunks] == first


@pytest.mark.parametrize(("isl", "osl"), [(128, 128), (500, 100), (64, 512)])
def test_it_takes_what_the_closed_form_takes(isl: int, osl: int) -> None:
    """At infinite rate, in memory for 50 requests, no more than 2 % apart."""
    blocks = 50 * -(-(isl + osl) // 32)
    told = replace(SMALL, blocks=blocks, max_num_tokens=2048)
    served = simulate(requests(400, isl, osl), TensorrtLlmScheduler(told), COST)
    run = closed_batch([(400, isl, osl)], Limits(batch=50, tokens=2048, chunked=False))
    steps = run.steps
    seconds = np.array(
        [
            COST.step_s + COST.decode_s * d + COST.kv_token_s * (kv + d) + COST.prefill_token_s * tokens
            for tokens, d, kv in zip(steps.prefill_tokens, steps.decodes, steps.kv_tokens, strict=True)
        ]
    )
    assert served.duration_s == pytest.approx(run.shares() @ seconds, rel=0.02)


def test_a_scenario_serves_with_its_knobs() -> None:
    made = ridgeline.scenario(
        {
            "model": "llama3-8b", "system": "1xh100-sxm",
            "plan": {"engine": "tensorrt-llm", "serving": {"tensorrt_llm": {"max_batch_size": 16}}},
            "workload": {"kind": "serve", "arrivals": {"kind": "poisson", "rate": 4}, "isl": 512, "osl": 64,
                         "requests": 40},
        }
    )  # fmt: skip
    (one,) = instances_of(made)
    assert isinstance(one.settings, TensorrtLlmSettings)
    assert (one.settings.max_batch_size, one.settings.tokens_per_block) == (16, 32)
    assert isinstance(one.scheduler(), TensorrtLlmScheduler)
    assert ridgeline.predict(made).metrics.requests == 40
