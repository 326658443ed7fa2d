"""A closed batch is served by the steps that its limits leave, whatever they take."""

from __future__ import annotations

import numpy as np
import pytest

from ridgeline.serving.batch_steps import ClosedBatch, Limits, closed_batch
from ridgeline.serving.engine.vllm import VllmScheduler, VllmSettings
from ridgeline.serving.fleet import simulate
from ridgeline.serving.load import at_times
from ridgeline.serving.step_cost import LinearStepCost

COST = LinearStepCost(step_s=5e-3, decode_s=2e-5, kv_token_s=2e-8, prefill_token_s=3e-5)


def seconds(batch: ClosedBatch) -> np.ndarray:
    steps = batch.steps
    return (
        COST.step_s
        + COST.decode_s * steps.decodes
        + COST.kv_token_s * steps.kv_tokens
        + (COST.prefill_token_s * steps.prefill_tokens)
    )


@pytest.mark.parametrize(("isl", "osl", "places"), [(100, 50, 16), (1000, 20, 8), (3000, 40, 4), (128, 200, 64)])
def test_it_takes_what_the_request_simulator_takes(isl: int, osl: int, places: int) -> None:
    """The same requests at once, the same budget: vLLM's scheduler step by step against compositions alone."""
    many = 3 * places + 5
    run = closed_batch([(many, isl, osl)], Limits(batch=places, tokens=2048))
    settings = VllmSettings(
        num_blocks=200_000, max_num_seqs=places, max_num_batched_tokens=2048, enable_prefix_caching=False
    )
    load = at_times([0.0] * many, [(isl, osl)])
    found = simulate(load, VllmScheduler(settings), COST)
    assert run.shares() @ seconds(run) == pytest.approx(found.duration_s, rel=0.02)


def test_every_token_is_counted() -> None:
    run = closed_batch([(37, 300, 20)], Limits(batch=8, tokens=1000))
    assert (run.outputs, run.prompts, run.requests.sum()) == (37 * 20, 37 * 300, 37)
    share = run.shares()
    assert share @ run.steps.prefill_tokens == pytest.approx(37 * 300)
    assert share @ run.steps.decodes == pytest.approx(37 * 19)


def test_one_request_has_its_prompt_and_its_decodes() -> None:
    run = closed_batch([(1, 100, 11)], Limits(batch=4, tokens=64))
    each = np.ones(len(run.steps))
    assert (run.shares() @ each, run.ttft_shares() @ each, run.tpot_shares() @ each) == (12.0, 2.0, pytest.approx(1.0))


def test_prompts_alone_stall_decodes() -> None:
    mixed = closed_batch([(64, 500, 50)], Limits(batch=16, tokens=1000))
    alone = closed_batch([(64, 500, 50)], Limits(batch=16, tokens=1000, alone=True))
    assert (alone.steps.decodes[alone.steps.prefill_tokens > 0] == 0).all()
    assert alone.shares().sum() > mixed.shares().sum()


def test_a_whole_prompt_waits_for_a_step_that_holds_it() -> None:
    run = closed_batch([(9, 600, 30)], Limits(batch=9, tokens=1000, chunked=False))
    assert run.steps.prefill_tokens.max() == 600


def test_compiled_contexts_cut_runs_where_a_bucket_is_full() -> None:
    """128 to 1,152 tokens in buckets of powers of two: the middle step reads the bucket of 1,024."""
    run = closed_batch([(1, 128, 1025)], Limits(batch=1, tokens=128, buckets=True))
    decodes = run.steps.prefill_tokens == 0
    assert run.shares()[decodes].tolist() == [128.0, 256.0, 512.0, 128.0]
    assert run.steps.kv_tokens[run.median_step() > 0].tolist() == [512 + 511 / 2 + 1 - 1]
