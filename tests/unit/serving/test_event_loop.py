"""Runs of pure decode as one event tell the same story as every step by itself."""

from __future__ import annotations

import random

import numpy as np
import pytest

from ridgeline.serving.engine.vllm import VllmScheduler, VllmSettings
from ridgeline.serving.fleet import simulate
from ridgeline.serving.request import Piece, Request
from ridgeline.serving.step_cost import LinearStepCost

COST = LinearStepCost(step_s=0.007, decode_s=1e-5, kv_token_s=3e-8, prefill_token_s=2.5e-5, attention_pair_s=1e-9)


def requests(dice: random.Random, count: int = 60) -> list[Request]:
    at, rate, made = 0.0, dice.choice([5, 50]), []
    for index in range(count):
        at += dice.expovariate(rate)
        output = dice.randrange(1, 200)
        prompt = (Piece(seed=dice.randrange(3), tokens=64), Piece(seed=100 + index, tokens=dice.randrange(1, 600)))
        made.append(
            Request(
                id=f"r{index}",
                arrival_s=at,
                prompt=prompt,
                output_tokens=output,
                priority=dice.randrange(3),
                max_new_tokens=output + dice.choice([0, 0, 5]),
                output_seed=1000 + index,
            )
        )
    return made


def settings(dice: random.Random) -> VllmSettings:
    return VllmSettings(
        num_blocks=dice.choice([80, 300, 2000]), max_num_seqs=dice.choice([4, 16, 64]),
        max_num_batched_tokens=dice.choice([64, 512, 2048]), async_scheduling=dice.random() < 0.5,
        scheduling_policy=dice.choice(["fcfs", "priority"]),
    )  # fmt: skip


@pytest.mark.parametrize("seed", range(8))
def test_a_run_is_its_steps(seed: int) -> None:
    dice = random.Random(seed)
    asked, knobs = requests(dice), settings(dice)
    runs = simulate(asked, VllmScheduler(knobs), COST)
    each = simulate(asked, VllmScheduler(knobs), COST, collapse=False)
    assert runs.ids == each.ids
    assert runs.steps == each.steps
    assert runs.events < each.events
    for name in ("first_token_s", "finished_s", "stalled_s", "preempted_s", "hit_tokens", "preemptions"):
        np.testing.assert_allclose(getattr(runs, name), getattr(each, name), atol=1e-9)
    np.testing.assert_allclose((runs.gaps[0] * runs.gaps[1]).sum(), (each.gaps[0] * each.gaps[1]).sum())


@pytest.mark.parametrize("seed", range(8, 14))
def test_parts_sum_to_the_whole(seed: int) -> None:
    dice = random.Random(seed)
    found = simulate(requests(dice), VllmScheduler(settings(dice)), COST)
    parts = (found.queue_s, found.prefill_s, found.decode_s, found.stalled_s, found.preempted_s)
    np.testing.assert_allclose(sum(parts), found.e2e_s)
    assert min(part.min() for part in parts) > -1e-9
    assert found.gaps[1].sum() == (found.output_tokens - 1).sum()  # every token but the first ends a pause
    np.testing.assert_allclose((found.gaps[0] * found.gaps[1]).sum(), (found.finished_s - found.first_token_s).sum())
