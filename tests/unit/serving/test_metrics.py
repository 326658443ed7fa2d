"""Metrics are those of `vllm bench serve`: held against numpy on a run small enough to write out."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from ridgeline.core.errors import InputError
from ridgeline.serving.engine.sglang import SglangScheduler, sglang_scheduler
from ridgeline.serving.engine.sglang_prefill import SglangSettings
from ridgeline.serving.engine.step import Policy, StaticBatcher
from ridgeline.serving.engine.vllm import VllmScheduler, VllmSettings
from ridgeline.serving.fleet import simulate
from ridgeline.serving.load import at_times
from ridgeline.serving.request import Piece, Request
from ridgeline.serving.served import Objective, serving_metrics
from ridgeline.serving.step_cost import LinearStepCost

COST = LinearStepCost(step_s=0.01, prefill_token_s=1e-4)


def test_one_request_alone() -> None:
    found = simulate(at_times([1.0], [(100, 5)]), VllmScheduler(VllmSettings(num_blocks=100)), COST)
    told = serving_metrics(found, Objective(ttft=0.02, tpot=0.01), percentiles=(50.0, 99.0))
    assert told.ttft.mean == pytest.approx(0.02)  # a step of 10 ms and 100 tokens of 0.1 ms
    assert [told.tpot.mean, told.itl.median] == pytest.approx([0.01, 0.01])
    assert told.e2e.percentiles[99.0] == pytest.approx(0.06)
    assert told.duration_s == pytest.approx(1.06)
    assert told.output_tokens_per_s == pytest.approx(5 / 1.06)


def test_a_decode_is_stalled_by_the_chunk_of_another() -> None:
    found = simulate(at_times([0.0, 0.055], [(100, 10), (200, 2)]), VllmScheduler(VllmSettings(num_blocks=100)), COST)
    first = found.ids.index("r0")
    assert found.stalled_s[first] == pytest.approx(0.02)  # 200 tokens of 0.1 ms beside it
    assert found.decode_s[first] == pytest.approx(0.09)
    assert found.queue_s[found.ids.index("r1")] == pytest.approx(0.005)  # until the step under way ends


def test_sglang_prefills_alone_while_decodes_wait() -> None:
    engine = SglangScheduler(SglangSettings(max_total_tokens=4000))
    found = simulate(at_times([0.0, 0.055], [(100, 10), (200, 2)]), engine, COST)
    first = found.ids.index("r0")
    assert found.stalled_s[first] == pytest.approx(0.03)  # the whole prefill step of the other
    assert found.decode_s[first] == pytest.approx(0.09)


def test_async_scheduling_starts_an_arrival_one_step_later() -> None:
    asked = at_times([0.0, 0.055], [(100, 10), (200, 2)])
    starts = []
    for ahead in (False, True):
        found = simulate(asked, VllmScheduler(VllmSettings(num_blocks=100, async_scheduling=ahead)), COST)
        starts.append(float(found.queue_s[found.ids.index("r1")]))
    assert starts[1] == pytest.approx(starts[0] + 0.01)


def test_percentiles_of_pauses_are_those_of_all_pauses() -> None:
    dice = np.random.default_rng(5)
    asked = at_times(np.cumsum(dice.exponential(0.05, 80)).tolist(), [(300, 40), (900, 3), (20, 1)])
    found = simulate(asked, VllmScheduler(VllmSettings(num_blocks=400)), LinearStepCost(step_s=0.01, kv_token_s=1e-6))
    every = np.repeat(found.gaps[0], found.gaps[1].astype(int))
    told = serving_metrics(found, percentiles=(1.0, 50.0, 90.0, 99.0)).itl
    assert told.mean == pytest.approx(every.mean())
    assert told.std == pytest.approx(every.std())
    for share, value in told.percentiles.items():
        assert value == pytest.approx(np.percentile(every, share))


def test_goodput_counts_one_token_answers_as_fast() -> None:
    found = simulate(at_times([0.0, 5.0], [(10, 1), (10, 3)]), VllmScheduler(VllmSettings(num_blocks=50)), COST)
    assert serving_metrics(found, Objective(tpot=0.001)).goodput == pytest.approx(1 / found.duration_s)
    assert serving_metrics(found).goodput is None


@pytest.mark.parametrize(
    "policy",
    [
        lambda: SglangScheduler(SglangSettings(max_total_tokens=3000, max_running_requests=16)),
        lambda: SglangScheduler(SglangSettings(max_total_tokens=1600, schedule_conservativeness=0.05, page_size=16)),
        lambda: SglangScheduler(SglangSettings(max_total_tokens=4000, disable_radix_cache=True, schedule_policy="lof")),
        lambda: SglangScheduler(SglangSettings(max_total_tokens=1500, disable_radix_cache=True, ignore_eos=True)),
        lambda: SglangScheduler(SglangSettings(max_total_tokens=1500, schedule_policy="lpm", chunked_prefill_size=64)),
        lambda: StaticBatcher(8),
    ],
)
def test_other_policies_serve_everybody_and_runs_are_their_steps(policy: type[Policy]) -> None:
    dice = np.random.default_rng(7)
    times = np.cumsum(dice.exponential(0.1, 50)).tolist()
    asked = [
        Request(
            id=f"r{index}", arrival_s=at, prompt=(Piece(seed=index % 3, tokens=48), Piece(seed=50 + index, tokens=90)),
            output_tokens=10 + 7 * (index % 9), max_new_tokens=90, output_seed=1000 + index,
        )
        for index, at in enumerate(times)
    ]  # fmt: skip
    cost = LinearStepCost(step_s=0.01, kv_token_s=1e-7, prefill_token_s=1e-5)
    runs, each = (simulate(asked, policy(), cost, collapse=collapse) for collapse in (True, False))
    assert set(runs.ids) == {request.id for request in asked}
    assert runs.ids == each.ids
    assert runs.steps == each.steps
    np.testing.assert_allclose(runs.finished_s, each.finished_s)
    np.testing.assert_allclose(
        runs.queue_s + runs.prefill_s + runs.decode_s + runs.stalled_s + runs.preempted_s, runs.e2e_s
    )
    assert runs.gaps[1].sum() == (runs.output_tokens - 1).sum()


def test_a_request_that_never_fits_is_refused() -> None:
    with pytest.raises(InputError, match="never fits"):
        simulate(at_times([0.0], [(1000, 5)]), VllmScheduler(VllmSettings(num_blocks=20)), COST)


@pytest.mark.parametrize("ahead", [False, True])
def test_it_is_refused_while_others_still_come(ahead: bool) -> None:
    engine = VllmScheduler(VllmSettings(num_blocks=20, async_scheduling=ahead))
    with pytest.raises(InputError, match="never fits"):
        simulate(at_times([0.0, 0.01, 0.5], [(50, 5), (1000, 5), (50, 5)]), engine, COST)


@pytest.mark.parametrize("seed", range(4))
def test_sglang_overlap_decides_before_results_and_loses_nothing(seed: int) -> None:
    """One step late: everybody is served and all cache comes back, step by step or in runs; a request that arrives in
    the middle of decoding waits a step more for its first token."""
    dice = np.random.default_rng(seed)
    lengths = [(int(a), int(b)) for a, b in dice.integers(1, 120, (30, 2))]
    load = at_times(sorted(dice.uniform(0, 2, 30).tolist()), lengths)
    load = [replace(one, max_new_tokens=one.output_tokens + 40 * (place % 2)) for place, one in enumerate(load)]
    told = SglangSettings(
        max_total_tokens=900, max_running_requests=16, chunked_prefill_size=64, disable_overlap_schedule=False
    )
    found = []
    for collapse in (True, False):
        engine = sglang_scheduler(told)
        served = simulate(load, engine, COST, collapse=collapse)
        assert engine.free_tokens + engine.tree.evictable == 900
        found.append((served.steps, int(served.preemptions.sum()), served.duration_s))
    assert found[0] == pytest.approx(found[1])
    lone, first = at_times([0.0, 0.3], [(10, 200), (10, 1)]), []
    for one in (True, False):
        served = simulate(lone, sglang_scheduler(replace(told, disable_overlap_schedule=not one)), COST)
        first.append(float(served.ttft_s[served.ids.index("r1")]))
    assert first[0] > first[1] + 0.5 * COST.step_s
