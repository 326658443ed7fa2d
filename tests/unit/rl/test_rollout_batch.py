"""The closed batch of one replica beside the engine that `serving` simulates step by step."""

from __future__ import annotations

import math

import numpy as np
import pytest

from ridgeline.plan.serving_plan import VllmKnobs
from ridgeline.rl.lengths import Samples
from ridgeline.rl.rollout_batch import EngineLimits, run_batch
from ridgeline.serving import LinearStepCost, Request
from ridgeline.serving.engine.vllm import VllmScheduler, VllmSettings
from ridgeline.serving.fleet import simulate
from ridgeline.serving.request import Piece

COST = LinearStepCost(step_s=4e-3, decode_s=5e-5, kv_token_s=2e-8, prefill_token_s=3e-5, attention_pair_s=1e-10)


def made(answers: list[int], prompt: int = 256, group: int = 8) -> Samples:
    many = len(answers)
    return Samples(
        prompt=np.full(many, prompt), answer=np.array(answers), group=np.arange(many) // group,
        turns=np.ones(many, dtype=np.int64), tool_s=np.zeros((many, 0)),
        tool_tokens=np.zeros((many, 0), dtype=np.int64),
    )  # fmt: skip


def engine(answers: list[int], limits: EngineLimits, prompt: int = 256, group: int = 8) -> tuple[float, float, int]:
    """Makespan, mean end and preemptions of the same samples, step by step."""
    requests = [
        Request(
            id=f"r{index}", arrival_s=0.0, prompt=(Piece(seed=2 * (index // group), tokens=prompt),),
            output_tokens=answer, max_new_tokens=100_000, output_seed=2 * index + 1,
        )
        for index, answer in enumerate(answers)
    ]  # fmt: skip
    settings = VllmSettings(
        num_blocks=limits.tokens // 16 + 1, max_num_seqs=limits.seqs, max_num_batched_tokens=limits.step_tokens,
        max_model_len=100_000, async_scheduling=False,
    )  # fmt: skip
    served = simulate(requests, VllmScheduler(settings), COST)
    return float(served.e2e_s.max()), float(served.e2e_s.mean()), int(served.preemptions.sum())


def drawn(many: int, seed: int = 0) -> list[int]:
    dice = np.random.default_rng(seed)
    return np.minimum(np.exp(dice.normal(math.log(600), 0.9, many)), 6000).astype(int).tolist()


@pytest.mark.parametrize(("many", "seqs"), [(16, 256), (128, 256), (128, 48)])
def test_it_is_the_engine_where_the_cache_is_large(many: int, seqs: int) -> None:
    limits = EngineLimits(tokens=1_000_000, seqs=seqs, step_tokens=8192)
    answers = drawn(many)
    run = run_batch(made(answers), COST, limits)
    seconds, mean, _ = engine(answers, limits)
    assert run.seconds == pytest.approx(seconds, rel=0.01)
    assert float(run.ended_s.mean()) == pytest.approx(mean, rel=0.02)
    assert run.tokens == sum(answers)


@pytest.mark.parametrize("tokens", [30_000, 40_000])
def test_a_full_cache_preempts_as_the_engine_does(tokens: int) -> None:
    limits = EngineLimits(tokens=tokens, seqs=256, step_tokens=8192)
    answers = drawn(160)
    run = run_batch(made(answers), COST, limits)
    seconds, mean, preempted = engine(answers, limits)
    assert preempted > 0
    assert run.preemptions == pytest.approx(preempted, rel=0.35)
    assert run.seconds == pytest.approx(seconds, rel=0.06)
    assert float(run.ended_s.mean()) == pytest.approx(mean, rel=0.08)
    assert run.tokens == sum(answers)
    assert run.most_tokens <= tokens


def test_a_prompt_is_read_once_for_all_its_samples() -> None:
    limits = EngineLimits(tokens=1_000_000, seqs=256, step_tokens=8192)
    together = run_batch(made([50] * 16, prompt=1024, group=16), COST, limits)
    apart = run_batch(made([50] * 16, prompt=1024, group=1), COST, limits)
    assert together.prefilled < apart.prefilled / 8
    assert together.seconds < apart.seconds


def tools(answers: list[int], tool_s: float, waiting: str) -> float:
    many = len(answers)
    samples = Samples(
        prompt=np.full(many, 256), answer=np.array(answers), group=np.arange(many), turns=np.full(many, 3),
        tool_s=np.full((many, 2), tool_s), tool_tokens=np.full((many, 2), 100),
    )  # fmt: skip
    limits = EngineLimits(tokens=200_000, seqs=64, step_tokens=8192, frees_waiting=waiting == "free")
    return run_batch(samples, COST, limits).seconds


def test_tools_lengthen_a_sample_and_freeing_its_cache_costs_reading() -> None:
    answers = [300] * 8
    quick, slow = tools(answers, 0.0, "keep"), tools(answers, 5.0, "keep")
    assert slow == pytest.approx(quick + 10.0, rel=0.02)
    assert tools(answers, 5.0, "free") > slow


def test_a_sample_that_no_cache_holds_is_refused() -> None:
    with pytest.raises(ValueError, match="longer than the cache"):
        run_batch(made([10], prompt=5000), COST, EngineLimits(tokens=1000, seqs=8, step_tokens=8192))


def test_knobs_of_vllm_are_what_the_engine_reads() -> None:
    assert {"max_num_seqs", "max_num_batched_tokens"} <= set(VllmKnobs.__slots__)
