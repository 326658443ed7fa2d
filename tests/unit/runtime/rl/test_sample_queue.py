"""Laws of the queue between those that generate and those that train."""

from __future__ import annotations

import random
from math import ceil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ridgeline.runtime.rl.sample_queue import SampleQueue


def play(batch: int, bound: float, seed: int, steps: int = 30, lose: float = 0.0) -> list[list[int]]:
    """The lag of each step's prompts, finished in a random order by replicas that learn of new weights late."""
    draw = random.Random(seed)
    queue, lags, version = SampleQueue(batch=batch, bound=bound), [], 0
    replicas = [0, 0]
    for _ in range(40 * steps * batch):
        groups = queue.take(version)
        if groups is not None:
            lags.append([version - group.version for group in groups])
            version += 1
        which = draw.randrange(2)
        if draw.random() < 0.5:
            replicas[which] = version
        queue.begin(replicas[which], draw.randint(0, batch))
        if queue.running and draw.random() < lose:
            queue.give_back([draw.choice(list(queue.running))])
        if queue.running and draw.random() < 0.8:
            queue.finish(draw.choice(list(queue.running)), [])
        if version == steps:
            return lags
    raise AssertionError(f"stuck at version {version}")


@given(batch=st.integers(1, 5), bound=st.sampled_from([0.0, 0.5, 1.0, 2.0, 3.0]), seed=st.integers(0, 10_000))
def test_no_sample_is_older_than_the_bound_and_nobody_waits_for_ever(batch: int, bound: float, seed: int) -> None:
    lags = play(batch, bound, seed, steps=8)
    assert all(len(step) == batch and max(step) <= ceil(bound) for step in lags)


@given(seed=st.integers(0, 10_000))
def test_lost_prompts_are_begun_again(seed: int) -> None:
    assert max(max(step) for step in play(3, 2.0, seed, steps=8, lose=0.2)) <= 2


def test_without_lag_every_step_waits_for_its_own_prompts() -> None:
    queue = SampleQueue(batch=2, bound=0.0)
    assert queue.begin(0, 10) == [0, 1]
    assert queue.begin(0, 10) == []
    queue.finish(1, [])
    assert queue.take(0) is None
    queue.finish(0, [])
    assert [group.number for group in queue.take(0) or ()] == [0, 1]
    assert queue.begin(1, 10) == [2, 3]


def test_a_bound_lets_so_many_more_begin_and_finished_ones_go_first() -> None:
    queue = SampleQueue(batch=2, bound=1.0)
    assert queue.begin(0, 10) == [0, 1, 2, 3]
    for number in (2, 3):
        queue.finish(number, [])
    assert [group.number for group in queue.take(0) or ()] == [2, 3]
    queue.begin(1, 10)
    for number in (4, 5):
        queue.finish(number, [])
    assert queue.take(1) is None  # 0 and 1 would be too old for the next step
    for number in (0, 1):
        queue.finish(number, [])
    assert [group.number for group in queue.take(1) or ()] == [0, 1]


@pytest.mark.parametrize(("bound", "count"), [(0.0, 4), (0.5, 6), (2.0, 12)])
def test_half_a_version_is_half_a_batch(bound: float, count: int) -> None:
    assert len(SampleQueue(batch=4, bound=bound).begin(0, 100)) == count
