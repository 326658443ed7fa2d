"""Simulated flows share links fairly, agree with alpha-beta where nothing is shared, and collide as packets do."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import ridgeline
from ridgeline.comm.algorithm import Algorithm, reduce_then_gather
from ridgeline.comm.graph import Graph, without
from ridgeline.comm.library.algorithms import allgather_over, pairwise, ring_allgather, sends
from ridgeline.comm.routes import merge_switches
from ridgeline.comm.select import candidates
from ridgeline.comm.simulation.conditions import FRAMING, SPRAYED, Conditions, parse_conditions
from ridgeline.comm.simulation.fluid_windows import max_min
from ridgeline.comm.simulation.messages import Job
from ridgeline.comm.simulation.simulate import SimulatedCollective, contend, over_seeds, simulate, simulated_graph
from ridgeline.comm.timing import time_algorithm
from ridgeline.comm.topologies import graph_of_system, topology
from ridgeline.core.errors import InputError
from ridgeline.hardware.load import system

RATE, ALPHA = 50e9, 5e-7
SHORTEST = Conditions(paths="shortest")


def fat_tree() -> tuple[Graph, int]:
    """1024 nodes at 100 Gbit/s, as the packet simulations of the anchors."""
    return topology("fattree:16", 12.5e9, 0.0), 1024


def permutation(ranks: int, seed: int = 1) -> Job:
    """Every rank sends 2 MB to another one, none to itself."""
    order = np.random.default_rng(seed).permutation(ranks)
    target = np.empty(ranks, np.int64)
    target[order] = np.roll(order, 1)
    return Job(algorithm=sends(ranks, np.arange(ranks), target), size_bytes=2e6)


@pytest.mark.parametrize("name", ["ring:8", "torus:4x4", "mesh:2x4", "switch:6", "full:5"])
def test_alpha_beta_where_nothing_is_shared(name: str) -> None:
    graph, checked = topology(name, RATE, ALPHA), 0
    for collective in ("allreduce", "allgather", "reducescatter", "broadcast"):
        for one in candidates(collective, graph):
            made = one.make()
            for size in (1e3, 1e8):
                closed = time_algorithm(made, graph, size)
                if closed.crowding == 1:
                    found = simulate([Job(algorithm=made, size_bytes=size)], graph, SHORTEST)
                    assert found.seconds == pytest.approx(closed.seconds, rel=1e-6), one.name
                    assert found.link_bytes == pytest.approx(closed.link_bytes)
                    checked += 1
    assert checked >= 4


@pytest.mark.parametrize(
    "name", ["rails:16x4x16", "rails:8x4x2", "leafspine:8x4x4", "leafspine:4x8x4", "fattree:4", "domains:4x4"]
)
def test_closed_forms_use_the_ways_of_a_fabric_alike(name: str) -> None:
    """As sprayed packets do: a ring that goes 0, 1, 2, ... changes rails between domains, and no spine is crowded."""
    graph = topology(name, RATE, ALPHA)
    n, order = graph.ranks, np.random.default_rng(0).permutation(graph.ranks)
    cases = {
        "ring": reduce_then_gather(ring_allgather(n)),
        "random order": reduce_then_gather(allgather_over(order, "ring")),
        "halving-doubling": reduce_then_gather(allgather_over(np.arange(n), "halving-doubling")),
    }
    for what, made in cases.items():
        closed = time_algorithm(made, graph, 1e8)
        sprayed = simulate([Job(algorithm=made, size_bytes=1e8)], graph, Conditions(paths="spray"))
        assert closed.seconds == pytest.approx(sprayed.seconds, rel=0.01), what
        assert closed.link_bytes == pytest.approx(sprayed.link_bytes), what
    closed = time_algorithm(pairwise(n), graph, 1e8)
    assert (
        closed.seconds
        < 1.01 * simulate([Job(algorithm=pairwise(n), size_bytes=1e8)], graph, Conditions(paths="spray")).seconds
    )


def test_a_fabric_with_a_lost_link_keeps_its_switches() -> None:
    whole = topology("leafspine:4x4x4", RATE, ALPHA)
    broken = without(whole, ["link:16-20"])
    assert merge_switches(whole).graph.nodes == 16 + 4 + 1
    assert merge_switches(broken).link is None
    assert merge_switches(topology("planes:8x3", RATE, ALPHA)).link is None


def test_unequal_links_and_unequal_starts_are_exact() -> None:
    ring = topology("ring:6", RATE, ALPHA)
    slow = replace(ring, bytes_per_s=np.where(ring.tail == 2, RATE / 3, RATE))
    made, size = ring_allgather(6), 6e6
    found = simulate([Job(algorithm=made, size_bytes=size)], slow, SHORTEST)
    assert found.seconds == pytest.approx(time_algorithm(made, slow, size).seconds, rel=1e-9)
    late = simulate([Job(algorithm=made, size_bytes=size)], ring, replace(SHORTEST, late={3: 1e-3}))
    assert late.seconds == pytest.approx(1e-3 + 5 * (1e6 / RATE + ALPHA), rel=1e-9)


def test_fair_rates_leave_every_flow_a_full_link() -> None:
    random = np.random.default_rng(0)
    for _ in range(50):
        links, flows = int(random.integers(2, 12)), int(random.integers(1, 30))
        over = random.integers(0, links + 1, (flows, 3))
        over[:, 0] = random.integers(0, links, flows)
        over.sort(axis=1)
        over[:, 1:] = np.where(over[:, 1:] == over[:, :-1], links, over[:, 1:])
        rates = np.append(random.random(links) + 0.1, np.inf)
        found = max_min(over.T, None, rates)
        load = np.bincount(over.ravel(), np.repeat(found, 3), links + 1)
        assert (load[:-1] <= rates[:-1] * (1 + 1e-9)).all()
        full = np.append(load[:-1] >= rates[:-1] * (1 - 1e-9), False)
        for flow, row in zip(found, over, strict=True):  # a full link on which nobody has more
            assert any(full[link] and flow >= found[(over == link).any(axis=1)].max() * (1 - 1e-9) for link in row)


def test_hashed_paths_collide_as_packets_do() -> None:
    """htsim RoCE: mean 499 to 536 us, slowest 962 to 1134; fluid 423 to 437 and 960 to 1120 (3 seeds)."""
    graph, ranks = fat_tree()
    runs = list(over_seeds([permutation(ranks)], graph, Conditions(), range(20)))
    mean = np.array([one.arrived_s.mean() for one in runs]) * 1e6
    slowest = np.array([one.seconds for one in runs]) * 1e6
    assert 405 < mean.min() < mean.max() < 450
    assert slowest.min() >= 640
    assert 960 <= slowest.max() <= 1280
    assert len(set(slowest.round().tolist())) > 1


def test_sprayed_paths_do_not_collide() -> None:
    graph, ranks = fat_tree()
    job = permutation(ranks)
    assert simulate([job], graph, Conditions(paths="spray")).seconds == pytest.approx(160e-6, rel=1e-9)
    packets = simulate([job], graph, Conditions(paths="spray", framing=FRAMING, sprayed=SPRAYED))
    assert packets.arrived_s.mean() == pytest.approx(186.9e-6, rel=0.1)
    rail = simulate([job], graph, Conditions(paths="rail")).arrived_s.mean()
    assert 160e-6 < rail < simulate([job], graph, Conditions()).arrived_s.mean()


@pytest.mark.parametrize(("senders", "packets"), [(15, 2467e-6), (127, 20899e-6)])
def test_incast(senders: int, packets: float) -> None:
    graph, ranks = fat_tree()
    job = Job(algorithm=sends(ranks, np.arange(1, senders + 1), np.zeros(senders, np.int64)), size_bytes=2e6)
    assert simulate([job], graph, Conditions()).seconds == pytest.approx(senders * 160e-6, rel=1e-9)
    assert simulate([job], graph, Conditions(framing=FRAMING)).seconds == pytest.approx(packets, rel=0.05)


def test_a_wide_window_is_near_a_narrow_one() -> None:
    """Rings to 2 %; two exchanges at once are chaotic, so that only means over seeds can agree."""
    graph = topology("leafspine:4x2x1", RATE, ALPHA)
    for algorithm, near in ((reduce_then_gather(ring_allgather(8)), 0.02), (pairwise(8), 0.05)):
        jobs = [Job(algorithm=algorithm, size_bytes=1e7), Job(algorithm=pairwise(8), size_bytes=3e6)]
        slow = Conditions(slower={3: 1.7})
        fine, coarse = (
            np.mean([one.seconds for one in over_seeds(jobs, graph, slow, range(4), window)]) for window in (1e-6, 0.05)
        )
        assert coarse == pytest.approx(fine, rel=near)


def test_no_link_carries_more_than_its_rate() -> None:
    for name in ("leafspine:4x4x2", "rails:4x4x2", "planes:8x3", "dragonfly:3x2x2", "domains:4x4", "fattree:4"):
        graph = topology(name, RATE, ALPHA)
        for paths in ("shortest", "ecmp", "spray", "rail"):
            job = Job(algorithm=pairwise(graph.ranks, at_once=True), size_bytes=1e8)
            found = simulate([job], graph, Conditions(paths=paths), 1e-6)
            busy = float((found.link_bytes / found.link_rates).max())
            assert busy <= found.seconds * (1 + 1e-6), (name, paths)
            assert found.link_bytes.sum() >= graph.ranks * (graph.ranks - 1) / graph.ranks * 1e8


def test_collectives_at_once_slow_each_other() -> None:
    graph = simulated_graph(graph_of_system(system("32xh100-sxm")))
    jobs = [Job(algorithm=pairwise(32), size_bytes=64e6), Job(algorithm=pairwise(32), size_bytes=64e6)]
    found = contend(jobs, graph, Conditions(paths="spray"), alpha_beta_s=1.0)
    one = found.alone_s[0]
    assert 1.8 * one < found.seconds < 2.5 * one  # out of step they meet at receivers too
    after = [jobs[0], replace(jobs[1], start_s=2 * one)]
    later = contend(after, graph, Conditions(paths="spray"), alpha_beta_s=1.0).simulated
    assert later.job_s[1] == pytest.approx(one, rel=0.02)


def test_groups_on_their_own_ranks_do_not_meet() -> None:
    graph = topology("switch:16", RATE, ALPHA)
    ring = reduce_then_gather(ring_allgather(8))
    halves = [Job(algorithm=ring, size_bytes=8e6, ranks=np.arange(8) * 2 + half) for half in (0, 1)]
    both = simulate(halves, graph, Conditions())
    assert both.job_s[0] == pytest.approx(14 * (1e6 / RATE + ALPHA), rel=1e-6)
    assert both.job_s[1] == pytest.approx(both.job_s[0])


def test_what_slows_a_collective() -> None:
    graph = topology("leafspine:4x4x4", RATE, ALPHA)
    job = Job(algorithm=pairwise(16), size_bytes=16e6)

    def seconds(**asked: Any) -> float:
        return simulate([job], graph, parse_conditions(graph, paths="spray", **asked)).seconds

    plain = seconds()
    assert seconds(straggler=["3:2"]) > 1.5 * plain
    assert seconds(straggler=["3:1 ms"]) >= 1e-3 + plain * 0.5
    assert seconds(background=["50%"]) > 1.2 * plain
    assert seconds(background=["0-4:40 GB/s"]) > plain
    assert seconds(injection="25 GB/s") == pytest.approx(2 * plain, rel=0.1)
    assert seconds(message="10 us") == pytest.approx(plain + 15 * 10e-6, rel=0.02)


def test_rails_keep_rings_off_the_spines() -> None:
    found = ridgeline.collective("allreduce", on="64xh100-sxm", algorithm="rings", simulate=True)
    assert found.contention is not None
    assert found.contention.graph.nodes > found.graph.nodes
    assert found.contention.seconds == pytest.approx(found.seconds, rel=1e-6)
    crossing = ridgeline.collective("alltoall", on="64xh100-sxm", size="64 MB", simulate=True, seeds=4)
    assert crossing.contention is not None
    assert len(crossing.contention.by_seed) == 4
    assert crossing.contention.seconds > crossing.seconds


@pytest.mark.parametrize(
    "asked",
    [
        {"paths": "ecpm"}, {"straggler": ["99:2"]}, {"straggler": ["3"]}, {"straggler": ["3:0.5"]},
        {"straggler": ["3:soon"]}, {"background": ["120%"]}, {"background": ["0-0:1 GB/s"]}, {"background": ["0-1"]},
        {"background": ["0-99:1 GB/s"]}, {"injection": "0 B/s"}, {"beside": ["alltoall"]}, {"beside": ["dance:1 MB"]},
        {"slow": ["link:0-1"]}, {"slow": ["link:0-2:0.5"]}, {"slow": ["node:0:0"]}, {"message": "-1 s"},
    ],
)  # fmt: skip
def test_wrong_conditions(asked: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        ridgeline.collective("allreduce", topology="ring:4", size="1 MB", simulate=True, **asked)


def test_links_of_another_rate() -> None:
    whole = ridgeline.collective("allgather", topology="ring:8", size="8 MB", algorithm="ring")
    slow = ridgeline.collective("allgather", topology="ring:8", size="8 MB", algorithm="ring", slow=["link:3-4:0.5"])
    assert slow.seconds == pytest.approx(whole.seconds + 7 * 1e6 / RATE)
    assert slow.graph.shape == ()


class TestByRounds:
    """Many messages that share links are timed by the bytes of a round on a link."""

    graph = topology("leafspine:4x4x4", RATE, ALPHA)

    def both_ways(self, algorithm: Algorithm, **conditions: Any) -> tuple[SimulatedCollective, SimulatedCollective]:
        job = Job(algorithm=algorithm, size_bytes=2.0**26)
        by_round, exact = (
            simulate([job], self.graph, Conditions(sharing=sharing, **conditions)) for sharing in ("rounds", "max-min")
        )
        return by_round, exact

    def test_equal_messages_at_once_end_when_max_min_rates_end_them(self) -> None:
        for seed in range(4):
            found, exact = self.both_ways(pairwise(16, at_once=True), seed=seed)
            assert found.seconds == pytest.approx(exact.seconds, rel=1e-9)
            assert found.moments == 1
            assert (found.arrived_s >= exact.arrived_s * (1 - 1e-9)).all()

    def test_rings_and_exchanges_are_near(self) -> None:
        ring = allgather_over(np.random.default_rng(0).permutation(16), "ring")
        for algorithm in (ring, allgather_over(np.arange(16), "nhr"), pairwise(16)):
            pairs = [self.both_ways(algorithm, seed=seed) for seed in range(4)]
            ratios = [one.seconds / other.seconds for one, other in pairs]
            assert min(ratios) > 0.85
            assert max(ratios) < 1.25
            assert np.mean(ratios) == pytest.approx(1.0, abs=0.15)

    def test_unshared_links_spray_stragglers_and_late_ranks(self) -> None:
        ring = allgather_over(np.arange(16), "ring")
        for asked in ({"paths": "spray"}, {"slower": {3: 2.0}}, {"late": {3: 1e-3}}):
            found, exact = self.both_ways(ring, **asked)
            assert found.seconds == pytest.approx(exact.seconds, rel=0.25)

    def test_jobs_of_other_lengths_keep_their_moments(self) -> None:
        jobs = [Job(algorithm=pairwise(16, at_once=True), size_bytes=size) for size in (2.0**20, 2.0**26)]
        exact = simulate(jobs, self.graph, Conditions(sharing="max-min"))
        assert simulate(jobs, self.graph, Conditions(sharing="rounds")).job_s == exact.job_s
        with pytest.raises(InputError, match="sharing"):
            parse_conditions(self.graph, sharing="fair")
