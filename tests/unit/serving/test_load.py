"""Loads are what they say, and the same seed gives the same load."""

from __future__ import annotations

import numpy as np
import pytest

from ridgeline.core.errors import InputError
from ridgeline.plan.workload import Sessions
from ridgeline.serving.engine.vllm import VllmScheduler, VllmSettings
from ridgeline.serving.fleet import simulate
from ridgeline.serving.load import at_times, closed_loop, gamma_times, on_off_times, sessions
from ridgeline.serving.step_cost import LinearStepCost

COST = LinearStepCost(step_s=0.01, prefill_token_s=1e-5)


@pytest.mark.parametrize(("burstiness", "variation"), [(1.0, 1.0), (0.25, 2.0), (4.0, 0.5)])
def test_gamma_gaps(burstiness: float, variation: float) -> None:
    times = gamma_times(20_000, 12.0, burstiness=burstiness, seed=3)
    gaps = np.diff(times)
    assert times[-1] == pytest.approx(20_000 / 12.0)
    assert gaps.std() / gaps.mean() == pytest.approx(variation, rel=0.05)
    assert times == gamma_times(20_000, 12.0, burstiness=burstiness, seed=3)
    assert times != gamma_times(20_000, 12.0, burstiness=burstiness, seed=4)


def test_nobody_comes_while_off() -> None:
    times = np.array(on_off_times(2000, 50.0, on_s=2.0, off_s=8.0, seed=1))
    assert (times % 10.0 < 2.0).all()
    assert (np.diff(times) >= 0).all()


def test_a_closed_loop_never_has_more_than_its_users() -> None:
    found = simulate(
        closed_loop(60, [(100, 20)], users=4, think_s=0.05, seed=2), VllmScheduler(VllmSettings(num_blocks=500)), COST
    )
    assert len(found.ids) == 60
    events = sorted([(at, 1) for at in found.sent_s] + [(at, -1) for at in found.finished_s])
    assert max(np.cumsum([change for _, change in events])) == 4


def test_sessions_hit_what_was_said_before() -> None:
    talk = Sessions(rate=1.0, system_tokens=64, turns=4, think=1.0)
    found = simulate(sessions([0.0, 0.1], talk, 32, 32), VllmScheduler(VllmSettings(num_blocks=500)), COST)
    hits = dict(zip(found.ids, found.hit_tokens, strict=True))
    assert hits["s0t0"] == 0
    assert hits["s1t0"] == 64
    assert [hits[f"s0t{turn}"] for turn in (1, 2, 3)] == [112, 176, 240]  # all before, less the block of the last token


@pytest.mark.parametrize("bad", [0, -1, float("nan"), float("inf")])
def test_impossible_loads_are_refused(bad: float) -> None:
    with pytest.raises(InputError, match="rate"):
        gamma_times(10, bad)


def test_empty_lengths_are_refused() -> None:
    with pytest.raises(InputError, match="lengths"):
        at_times([0.0], [])
    with pytest.raises(InputError, match="tokens"):
        at_times([0.0], [(0, 5)])
