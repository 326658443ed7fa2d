"""A fleet answers every request once, whatever happens to it, and moves no more cache than prompts have."""

from __future__ import annotations

import gc
import random
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from ridgeline.plan.serving_plan import Autoscale, Failure
from ridgeline.plan.workload import Objective, Sessions
from ridgeline.serving.engine.sglang import SglangScheduler
from ridgeline.serving.engine.sglang_prefill import SglangSettings
from ridgeline.serving.engine.vllm import VllmScheduler, VllmSettings
from ridgeline.serving.fleet import (
    CacheTransfer,
    Fleet,
    FleetRun,
    LeastLoaded,
    PrefixAware,
    ReplicaPool,
    RequestRouter,
    RoundRobin,
    _Scaler,
    simulate,
    simulate_fleet,
)
from ridgeline.serving.load import at_times, closed_loop, gamma_times, sessions
from ridgeline.serving.replica import Lockstep, Ranks, Replica, SloBudget, SloMissed
from ridgeline.serving.request import Request
from ridgeline.serving.served import PARTS
from ridgeline.serving.step_cost import LinearStepCost

COST = LinearStepCost(step_s=0.007, decode_s=1e-5, kv_token_s=3e-8, prefill_token_s=2.5e-5)
LINK = CacheTransfer(bytes_per_token=131072.0, bytes_per_s=50e9, latency_s=1e-3)
ROUTERS: tuple[Callable[[], RequestRouter], ...] = (RoundRobin, LeastLoaded, lambda: PrefixAware(100_000))


def vllm(blocks: int = 4000, **knobs: object) -> Replica:
    return Replica(VllmScheduler(VllmSettings(num_blocks=blocks, **knobs)), COST)  # type: ignore[arg-type]


def sglang() -> Replica:
    return Replica(SglangScheduler(SglangSettings(max_total_tokens=60_000)), COST)


def pool(count: int, **more: object) -> ReplicaPool:
    return ReplicaPool(**({"make": vllm, "count": count, "chips": 1} | more))  # type: ignore[arg-type]


def load(count: int = 300, rate: float = 30.0, seed: int = 0) -> list[Request]:
    dice = random.Random(seed)
    lengths = [(dice.randrange(1, 1500), dice.randrange(1, 200)) for _ in range(count)]
    return at_times(gamma_times(count, rate, seed=seed), lengths)


def conserved(run: FleetRun, asked: list[Request]) -> None:
    """Every request is answered once and in full, its parts sum to its time, and none is negative."""
    served = run.served
    assert sorted(served.ids) == sorted(request.id for request in asked)
    want = {request.id: request.output_tokens for request in asked}
    assert [want[name] for name in served.ids] == served.output_tokens.tolist()
    parts = [getattr(served, f"{part}_s") for part in PARTS]
    np.testing.assert_allclose(sum(parts), served.e2e_s, atol=1e-9)
    assert min(float(part.min()) for part in parts) > -1e-9
    assert (served.first_token_s <= served.finished_s + 1e-12).all()


@pytest.mark.parametrize("router", ROUTERS)
@pytest.mark.parametrize("make", [vllm, sglang])
def test_everybody_is_answered_once(router: Callable[[], RequestRouter], make: Callable[[], Replica]) -> None:
    asked = load()
    run = simulate_fleet(asked, Fleet(pools=[pool(3, make=make)], router=router))
    conserved(run, asked)
    assert set(run.served.replica.tolist()) == {0, 1, 2}


def test_one_replica_is_the_engine_alone() -> None:
    asked = load()
    alone = simulate(asked, vllm().policy, COST)
    fleet = simulate_fleet(asked, Fleet(pools=[pool(1)], router=LeastLoaded)).served
    assert fleet.ids == alone.ids
    np.testing.assert_array_equal(fleet.finished_s, alone.finished_s)


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_closed_loop_through_the_event_queue_is_the_one_inside_the_engine(asynchronous: bool) -> None:
    asked = closed_loop(200, [(300, 40), (900, 10)], users=16, think_s=0.05)
    made = [vllm(async_scheduling=asynchronous) for _ in range(2)]
    alone = simulate(asked, made[0].policy, COST)
    run = simulate_fleet(asked, Fleet(pools=[pool(1, make=lambda: made[1])], router=RoundRobin))
    conserved(run, asked)
    np.testing.assert_allclose(np.sort(run.served.finished_s), np.sort(alone.finished_s), atol=1e-9)


def test_conversations_wait_for_their_answers_across_replicas() -> None:
    asked = sessions(gamma_times(12, 4.0), Sessions(rate=4.0, system_tokens=64, turns=4), 100, 30)
    run = simulate_fleet(asked, Fleet(pools=[pool(3)], router=RoundRobin))
    conserved(run, asked)
    end = dict(zip(run.served.ids, run.served.finished_s.tolist(), strict=True))
    sent = dict(zip(run.served.ids, run.served.sent_s.tolist(), strict=True))
    assert all(sent[one.id] >= end[one.after] - 1e-9 for one in asked if one.after)


def test_a_prefix_aware_router_keeps_conversations_where_their_cache_is() -> None:
    asked = sessions(gamma_times(30, 6.0), Sessions(rate=6.0, turns=5), 400, 50)
    share = {}
    for name, router in (("turn", RoundRobin), ("prefix", lambda: PrefixAware(100_000))):
        served = simulate_fleet(asked, Fleet(pools=[pool(4)], router=router)).served
        share[name] = served.hit_tokens.sum() / served.prompt_tokens.sum()
    assert share["prefix"] > 1.5 * share["turn"]


@pytest.mark.parametrize("make", [vllm, sglang])
def test_disaggregation_moves_the_cache_of_every_prompt_once(make: Callable[[], Replica]) -> None:
    asked = load(120)
    pools = [pool(2, make=make, role="prefill", transfer=LINK), pool(2, make=make, role="decode")]
    run = simulate_fleet(asked, Fleet(pools=pools, router=LeastLoaded))
    conserved(run, asked)
    several = [one for one in asked if one.output_tokens > 1]
    assert run.transfer_bytes == sum(one.prompt_tokens for one in several) * 131072
    moved = {one.id: LINK.latency_s + one.prompt_tokens * 131072 / 50e9 for one in several}
    took = dict(zip(run.served.ids, run.served.transfer_s.tolist(), strict=True))
    assert all(took[name] >= seconds - 1e-12 for name, seconds in moved.items())  # more where the link is busy
    assert all(place >= 2 for name, place in zip(run.served.ids, run.served.replica, strict=True) if name in moved)


def test_a_decoding_engine_computes_one_token_of_a_prompt_that_was_sent() -> None:
    engine = vllm()
    engine.add(Request(**_fields(load(1)[0], 1000), remote_tokens=999), 0.0)
    engine.advance()
    assert engine.done[0].first_token_s == pytest.approx(COST.mixed_step_seconds([(1, 999)], 0, 0))


def _fields(request: Request, tokens: int) -> dict[str, object]:
    piece = replace(request.prompt[0], tokens=tokens)
    return {"id": "r", "arrival_s": 0.0, "prompt": (piece,), "output_tokens": 4, "max_new_tokens": 4}


def test_more_replicas_are_not_slower() -> None:
    asked = load(400, rate=60.0)
    p99 = [
        float(np.percentile(simulate_fleet(asked, Fleet(pools=[pool(many)], router=LeastLoaded)).served.ttft_s, 99))
        for many in (1, 2, 4, 8)
    ]
    assert all(more <= fewer * 1.05 for fewer, more in pairwise(p99))


def test_what_a_failed_replica_held_is_sent_again() -> None:
    asked = load()
    failures = (Failure(at=3.0, replica=1, down=2.0), Failure(at=4.0, replica=0, down=1.0))
    run = simulate_fleet(asked, Fleet(pools=[pool(2)], router=LeastLoaded, failures=failures))
    conserved(run, asked)
    assert run.retried > 0
    assert [count for _, count in run.replicas] == [2, 1, 0, 1, 2]
    calm = simulate_fleet(asked, Fleet(pools=[pool(2)], router=LeastLoaded))
    assert run.served.e2e_s.mean() > calm.served.e2e_s.mean()


def test_nobody_is_lost_while_every_replica_is_down() -> None:
    asked = load(60)
    run = simulate_fleet(asked, Fleet(pools=[pool(1)], router=RoundRobin, failures=(Failure(at=0.5, down=5.0),)))
    conserved(run, asked)
    assert run.served.ttft_s.max() > 3.0


def test_an_autoscaler_starts_replicas_late_and_stops_them() -> None:
    asked = load(400, rate=40.0)
    rule = Autoscale(max_replicas=4, target_ongoing_requests=8, upscale_delay=1.0, downscale_delay=2.0, startup=3.0)
    run = simulate_fleet(asked, Fleet(pools=[pool(4)], router=LeastLoaded, autoscale=rule))
    conserved(run, asked)
    counts = [count for _, count in run.replicas]
    assert counts[0] == 1
    assert max(counts) > 1
    assert min(at for at, count in run.replicas if count > 1) >= 4.0  # a delay and a start
    assert run.chip_seconds < 4 * run.served.duration_s


def test_an_autoscaler_looks_only_where_something_may_change(monkeypatch: pytest.MonkeyPatch) -> None:
    def serve(rate: float, delay: float) -> FleetRun:
        asked = sessions(gamma_times(40, rate, seed=3), Sessions(rate=rate, turns=3, think=40.0), 300, 200)
        rule = Autoscale(
            max_replicas=4, target_ongoing_requests=0.7, upscale_delay=1.5, downscale_delay=delay, startup=3.2
        )
        return simulate_fleet(asked, Fleet(pools=[pool(4)], router=LeastLoaded, autoscale=rule))

    jumps = [serve(rate, delay) for rate in (2.0, 0.01) for delay in (2.5, 90.0)]
    assert len(serve(1e-6, 1e9).served.ids) == 120  # a year of seconds, one look each, would not end
    monkeypatch.setattr(_Scaler, "_next_look", lambda _self, at, **_: at + 1.0)
    looks = [serve(rate, delay) for rate in (2.0, 0.01) for delay in (2.5, 90.0)]
    for quick, slow in zip(jumps, looks, strict=True):
        assert quick.replicas == slow.replicas
        assert quick.chip_seconds == slow.chip_seconds
        assert (quick.served.finished_s == slow.served.finished_s).all()


def test_a_prompt_waits_for_a_replica_that_decodes_without_asking_every_second() -> None:
    asked = load(20)
    pools = [pool(1, role="prefill", transfer=LINK), pool(1, role="decode")]
    run = simulate_fleet(asked, Fleet(pools=pools, router=RoundRobin, failures=(Failure(at=0.0, replica=1, down=1e9),)))
    conserved(run, asked)
    assert run.served.finished_s.min() > 1e9
    prompts = sum(request.prompt_tokens for request in asked if request.output_tokens > 1)
    assert run.transfer_bytes == pytest.approx(prompts * LINK.bytes_per_token)


@pytest.mark.parametrize("collapse", [True, False])
def test_ranks_that_step_together_step_as_the_busiest(collapse: bool) -> None:
    asked = load(80, rate=200.0)
    ranks = Ranks([VllmScheduler(VllmSettings(num_blocks=4000)) for _ in range(2)])
    engine = Lockstep(ranks, COST, collapse=collapse)
    for request in asked:
        engine.add(request, request.arrival_s)
    engine.advance()
    assert len(engine.done) == len(asked)
    alone = vllm()
    for request in asked:
        alone.add(request, request.arrival_s)
    alone.advance()
    assert engine.steps < alone.steps * 1.2
    assert max(engine.done_s) < max(alone.done_s)  # two caches and two budgets


def test_steps_of_ranks_as_runs_and_one_by_one_agree() -> None:
    asked = load(60, rate=100.0, seed=3)
    ends = []
    for collapse in (True, False):
        engine = Lockstep(
            Ranks([VllmScheduler(VllmSettings(num_blocks=2000)) for _ in range(3)]), COST, collapse=collapse
        )
        for request in asked:
            engine.add(request, request.arrival_s)
        engine.advance()
        ends.append(dict(zip((one.request.id for one in engine.done), engine.done_s, strict=True)))
    assert all(ends[0][name] == pytest.approx(ends[1][name], abs=1e-9) for name in ends[0])


@pytest.mark.parametrize("rate", [6.0, 40.0, 200.0])
def test_a_run_is_given_up_just_where_its_percentile_is_missed(rate: float) -> None:
    """Of n times the one at place floor(p / 100 (n - 1)) decides: above it the run ends early, below it does not."""
    asked = at_times(gamma_times(300, rate, seed=3), [(400, 60), (900, 1), (50, 20)])
    fleet = Fleet(pools=[pool(2)], router=RoundRobin)
    whole = simulate_fleet(asked, fleet).served
    several = whole.output_tokens > 1
    after = ((whole.finished_s - whole.first_token_s) / np.maximum(whole.output_tokens - 1, 1))[several]
    for name, times in (("ttft", whole.ttft_s), ("tpot", after), ("e2e", whole.e2e_s)):
        decides = float(np.sort(times)[int(0.95 * (len(times) - 1))])
        assert decides <= np.percentile(times, 95.0)
        simulate_fleet(asked, fleet, misses=SloBudget(Objective(percentile=95.0, **{name: decides * 1.0001}), asked))
        with pytest.raises(SloMissed) as missed:
            simulate_fleet(
                asked, fleet, misses=SloBudget(Objective(percentile=95.0, **{name: decides * 0.9999}), asked)
            )
        assert missed.value.limit == name


@pytest.mark.parametrize("make", [vllm, sglang])
def test_a_run_leaves_nothing_that_must_be_looked_for(make: Callable[[], Replica]) -> None:
    """What a run held is free when it ends: no cycle of caches, events or finishes, given up or not."""
    asked = load(120)
    fleets = (
        (Fleet(pools=[pool(2, make=make)], router=LeastLoaded), None),
        (Fleet(pools=[pool(1, make=make)], router=RoundRobin), SloBudget(Objective(ttft=0.02), asked)),
        (Fleet(pools=[pool(1, make=make, role="prefill", transfer=LINK), pool(1, make=make, role="decode")],
               router=RoundRobin), None),
    )  # fmt: skip
    for fleet, misses in fleets:
        gc.collect()
        try:
            simulate_fleet(asked, fleet, misses=misses)
        except SloMissed:
            assert misses is not None
        assert gc.collect() < 20
