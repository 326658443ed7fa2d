"""Algorithms made for a graph are right, near the chunked bound, and never slower than the library."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ridgeline.comm.answer import collective as answered
from ridgeline.comm.bounds import chunked_bound, lower_bound, sequence_bound
from ridgeline.comm.contract import Collective
from ridgeline.comm.graph import Graph, graph_of, slow_links, without
from ridgeline.comm.library.candidates import bucket_seconds
from ridgeline.comm.select import candidates, fastest
from ridgeline.comm.synthesis.matching import (
    cycle_allgather,
    has_cycle,
    matched_allgather,
    symmetric_allgather,
    torus_ports,
)
from ridgeline.comm.synthesis.packing import packed_trees, scheduled_allreduce
from ridgeline.comm.synthesis.synthesize import synthesize
from ridgeline.comm.timing import time_algorithm
from ridgeline.comm.topologies import graph_of_system, topology
from ridgeline.comm.verify import verify_algorithm
from ridgeline.core.errors import InputError
from ridgeline.hardware.load import system

RATE, ALPHA = 50e9, 5e-7


def random_graph(ranks: int, degree: int, seed: int, spread: float = 0.0) -> Graph:
    """Rings in random orders laid over each other, so that every rank has about `degree` links."""
    random = np.random.default_rng(seed)
    links = []
    for _ in range(degree // 2):
        order = random.permutation(ranks)
        pairs = {tuple(sorted(pair)) for pair in zip(order.tolist(), np.roll(order, 1).tolist(), strict=True)}
        a, b = (np.array(one) for one in zip(*sorted(pairs), strict=True))
        links.append((a, b, RATE * (1 + spread * random.random()), ALPHA))
    return graph_of(f"random {ranks}", ranks, ranks, links)


@pytest.mark.parametrize(
    "name", ["ring:2", "ring:7", "torus:4x4", "torus:2x3", "torus:5x3", "torus:4x4x4", "torus:16x16"]
)
def test_a_torus_is_gathered_in_the_fewest_rounds(name: str) -> None:
    graph = topology(name, RATE, ALPHA)
    made = symmetric_allgather(graph)
    assert made.rounds == -(-(graph.ranks - 1) // len(torus_ports(graph.shape)))
    assert verify_algorithm(made).ok
    assert time_algorithm(made, graph, 1e9).crowding == 1


@pytest.mark.parametrize("name", ["mesh:2x2", "mesh:5x2", "mesh:9x8", "mesh:8x9"])
def test_an_even_mesh_is_gathered_along_a_cycle_in_the_fewest_rounds(name: str) -> None:
    graph = topology(name, RATE, ALPHA)
    assert has_cycle(graph)
    made = cycle_allgather(graph)
    assert made.rounds == -(-(graph.ranks - 1) // 2)
    assert verify_algorithm(made).ok
    assert time_algorithm(made, graph, 1e9).crowding == 1
    for other in ("mesh:3x3", "mesh:8", "torus:4x4", "mesh:2x2x2"):
        assert not has_cycle(topology(other, RATE, ALPHA))
    assert not has_cycle(without(graph, ["link:0-1"]))
    assert not has_cycle(slow_links(graph, ["link:0-1:0.5"]))


@pytest.mark.parametrize("collective", ["allgather", "reducescatter", "allreduce"])
@pytest.mark.parametrize("name", ["mesh:3x5", "mesh:6x6", "mesh:3x3x3", "torus:8x8", "torus:16x16"])
def test_meshes_and_tori_within_three_percent(name: str, collective: Collective) -> None:
    graph = topology(name, RATE, ALPHA)
    made = synthesize(collective, graph, 1e9)
    timed = time_algorithm(made, graph, 1e9)
    assert verify_algorithm(made).ok
    assert timed.seconds >= lower_bound(graph, collective, 1e9).seconds * (1 - 1e-9)
    chunks = 4 * graph.ranks if graph.ranks <= 64 else graph.ranks
    sequence = sequence_bound(graph, 1e9, chunks)
    best = sequence if collective == "allreduce" else sequence / 2
    assert timed.seconds <= 1.03 * best


@pytest.mark.parametrize("seed", range(4))
def test_random_and_degraded_graphs_within_ten_percent(seed: int) -> None:
    random = np.random.default_rng(seed)
    whole = topology("torus:6x6", RATE, ALPHA)
    row = int(random.integers(whole.links))
    cut = without(whole, [f"link:{whole.tail[row]}-{whole.head[row]}", f"node:{random.integers(36)}"])
    even = [
        replace(one, bytes_per_s=np.full(one.links, RATE))
        for one in (random_graph(48, 4, seed), random_graph(40, 6, seed))
    ]
    for graph in (*even, cut):
        made = synthesize("allgather", graph, 1e9)
        timed = time_algorithm(made, graph, 1e9)
        assert verify_algorithm(made).ok
        assert timed.seconds <= 1.10 * chunked_bound(graph, "allgather", 1e9, made.contract.chunks)


def test_large_random_graphs() -> None:
    """Two random cycles over 600 ranks that share a link, twice as fast: any chunk takes 1.65 of the bound."""
    graph = random_graph(600, 4, 0)
    assert not graph.uniform
    made = synthesize("allgather", graph, 1e9)
    assert verify_algorithm(made).ok
    assert time_algorithm(made, graph, 1e9).seconds <= 1.05 * chunked_bound(graph, "allgather", 1e9, 600)
    small = random_graph(60, 4, 0)
    one, two = (matched_allgather(small, 1, 1e9, 3).steps.chunk for _ in range(2))
    assert np.array_equal(one, two)


def test_links_of_unequal_rates() -> None:
    for seed in range(3):
        graph = random_graph(24, 4, seed, spread=3.0)
        assert not graph.uniform
        made = synthesize("allgather", graph, 1e9)
        timed = time_algorithm(made, graph, 1e9)
        assert verify_algorithm(made).ok
        bound = chunked_bound(graph, "allgather", 1e9, made.contract.chunks)
        assert bound * (1 - 1e-9) <= timed.seconds <= 1.25 * bound


def test_the_same_seed_gives_the_same_algorithm() -> None:
    graph = random_graph(30, 4, 1)
    one, two, other = (matched_allgather(graph, 1, 1e9, seed).steps for seed in (3, 3, 4))
    assert np.array_equal(one.chunk, two.chunk)
    assert not np.array_equal(one.chunk, other.chunk)


def test_packed_trees_load_a_mesh_evenly_and_beat_the_sequence() -> None:
    graph, size = topology("mesh:8x8", RATE, ALPHA), 2.0**30
    trees = packed_trees(graph, 32)
    load = np.zeros((64, 64))
    for parent in trees:
        child = np.flatnonzero(parent >= 0)
        assert len(child) == 63
        np.add.at(load, (child, parent[child]), 1)
    assert (load + load.T).max() == 18  # 9/16 of 32
    made = synthesize("allreduce", graph, size)
    timed = time_algorithm(made, graph, size)
    assert made.name == "tree-packing"
    assert verify_algorithm(made).ok
    assert timed.seconds <= 0.62 * size / RATE


def test_trees_of_unequal_links_avoid_the_slow_ones() -> None:
    ring = topology("ring:6", RATE, ALPHA)
    slow = replace(ring, bytes_per_s=np.where((ring.tail + ring.head == 1), RATE / 100, RATE))
    made = scheduled_allreduce(packed_trees(slow, 8), 2)
    assert verify_algorithm(made).ok
    used = (np.minimum(made.steps.source, made.steps.target) == 0) & (
        np.maximum(made.steps.source, made.steps.target) == 1
    )
    assert not used.any()


EVERY: tuple[Collective, ...] = ("allreduce", "allgather", "reducescatter", "broadcast", "reduce", "alltoall")
NAMES = ("mesh:4x3", "torus:3x4", "ring:7", "full:6", "domains:2x4", "switch:5", "leafspine:2x3x2", "planes:6x2",
         "rails:2x4x2", "dragonfly:3x2x2")  # fmt: skip


@pytest.mark.parametrize(
    "seed", [seed if seed in (1, 4, 7, 11) else pytest.param(seed, marks=pytest.mark.slow) for seed in range(14)]
)
def test_never_slower_than_any_of_the_library(seed: int) -> None:
    """Random topologies, of equal links or not, and sizes from 1 byte to 100 GB; every candidate is timed."""
    random = np.random.default_rng(seed)
    named = seed < len(NAMES)
    graph = topology(NAMES[seed], RATE, ALPHA) if named else random_graph(12, 4, seed, spread=float(seed % 2))
    if seed % 3 == 1:
        row = int(random.integers(graph.links))
        graph = slow_links(graph, [f"link:{graph.tail[row]}-{graph.head[row]}:0.3"])
    for collective in EVERY:
        size = float(10 ** random.uniform(0, 11))
        made = synthesize(collective, graph, size)
        mine = time_algorithm(made, graph, size).seconds
        assert verify_algorithm(made).ok
        assert mine >= lower_bound(graph, collective, size).seconds * (1 - 1e-9)
        for one in candidates(collective, graph):
            known = time_algorithm(one.make(), graph, size).seconds
            assert one.floor(size) <= known * (1 + 1e-9), one.name
            assert mine <= known * (1 + 1e-12), (one.name, size)


def test_never_slower_above_many_steps() -> None:
    """Ranks for which the library's algorithms have a million steps: floors decide what is made at all."""
    graph, size = topology("torus:24x24", RATE, ALPHA), 1e4
    made = synthesize("allgather", graph, size)
    mine = time_algorithm(made, graph, size).seconds
    for name in ("bucket", "nhr", "swing", "ring"):
        if name in {one.name for one in candidates("allgather", graph)}:
            assert mine <= fastest("allgather", graph, size, name=name)[1].seconds * (1 + 1e-12)


@pytest.mark.parametrize("name", ["16xh100-sxm", "16xascend-910b", "16xmi300x", "planes:24x3", "rails:4x4x2"])
def test_through_switches_near_the_bound_and_faster_than_the_library(name: str) -> None:
    graph = topology(name, RATE, ALPHA) if ":" in name else graph_of_system(system(name))
    made = synthesize("allgather", graph, 1e9)
    seconds = time_algorithm(made, graph, 1e9).seconds
    assert verify_algorithm(made).ok
    assert seconds <= 1.15 * lower_bound(graph, "allgather", 1e9).seconds
    assert seconds < fastest("allgather", graph, 1e9)[1].seconds
    spread = synthesize("broadcast", graph, 1e9, root=3)
    assert verify_algorithm(spread).ok
    assert time_algorithm(spread, graph, 1e9).seconds < 0.5 * fastest("broadcast", graph, 1e9, root=3)[1].seconds


@pytest.mark.parametrize(
    ("name", "slow"), [("switch:16", ["node:3:0.25"]), ("leafspine:4x4x4", ["node:3:0.25", "node:9:0.5"])]
)
def test_a_slow_rank_behind_a_switch_is_a_leaf_of_every_tree(name: str, slow: list[str]) -> None:
    """Reduce-scatter and all-gather pay its port twice, (p - 1) / p M each; a leaf sends and gets M at once."""
    graph = slow_links(topology(name, RATE, ALPHA), slow)
    made = synthesize("allreduce", graph, 1e9)
    assert made.name == "tree-packing"
    assert verify_algorithm(made).ok
    spent, least = time_algorithm(made, graph, 1e9).seconds, lower_bound(graph, "allreduce", 1e9).seconds
    assert least <= spent < 1.12 * least < fastest("allreduce", graph, 1e9)[1].seconds / 1.5


@pytest.mark.slow
def test_all_to_all_of_many_ranks() -> None:
    graph = without(topology("torus:16x16", RATE, ALPHA), ["link:0-1", "link:17-18"])
    made = synthesize("alltoall", graph, 1e9)
    assert verify_algorithm(made).ok
    assert time_algorithm(made, graph, 1e9).seconds <= 1.25 * lower_bound(graph, "alltoall", 1e9).seconds


def test_all_to_all_on_broken_and_unequal_graphs() -> None:
    torus = without(topology("torus:6x6", RATE, ALPHA), ["link:3-4", "node:9"])
    mesh = slow_links(topology("mesh:4x8", RATE, ALPHA), ["link:3-4:0.25", "node:9:0.5"])
    for graph in (torus, mesh, random_graph(32, 4, 1, spread=2.0)):
        made = synthesize("alltoall", graph, 1e9)
        seconds = time_algorithm(made, graph, 1e9).seconds
        assert verify_algorithm(made).ok
        assert seconds <= 1.3 * lower_bound(graph, "alltoall", 1e9).seconds
        assert seconds < 0.8 * fastest("alltoall", graph, 1e9)[1].seconds


def test_large_graphs_are_chosen_for_by_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ridgeline.comm.synthesis.synthesize.MANY_STEPS", 100)
    graph = topology("torus:6x6", RATE, ALPHA)
    for size in (1e3, 1e9):
        mine = time_algorithm(synthesize("allreduce", graph, size), graph, size)
        assert mine.seconds <= fastest("allreduce", graph, size)[1].seconds * (1 + 1e-12)


def test_too_many_chunks_are_refused() -> None:
    with pytest.raises(InputError, match="chunks"):
        synthesize("allgather", topology("mesh:32x32", RATE), 1e9, chunks=1000)


@pytest.mark.parametrize("name", ["torus:4x4", "mesh:3x3x3"])
def test_broadcasts_fill_all_links_of_the_root(name: str) -> None:
    graph, size = topology(name, RATE, ALPHA), 1e9
    for collective in ("broadcast", "reduce"):
        made = synthesize(collective, graph, size, root=3, chunks=128)
        timed = time_algorithm(made, graph, size).seconds
        assert verify_algorithm(made).ok
        assert lower_bound(graph, collective, size, 3).seconds * (1 - 1e-9) <= timed
        assert timed <= 1.25 * lower_bound(graph, collective, size, 3).seconds
        assert timed < fastest(collective, graph, size, root=3)[1].seconds


def test_a_large_torus_is_not_slower_than_its_bucket_algorithm() -> None:
    graph = topology("torus:18x18", RATE, ALPHA)
    mine = time_algorithm(synthesize("allgather", graph, 1e9), graph, 1e9)
    assert mine.seconds <= fastest("allgather", graph, 1e9, name="bucket")[1].seconds * (1 + 1e-12)


def test_the_bucket_algorithm_block_by_block() -> None:
    for name in ("mesh:3x5", "torus:3x5", "mesh:2x3x4", "mesh:4x4"):
        graph = topology(name, RATE, ALPHA)
        for collective in ("allgather", "reducescatter", "allreduce"):
            (one,) = (one for one in candidates(collective, graph) if one.name == "bucket")
            for size in (1e4, 1e9):
                assert one.floor(size) == pytest.approx(time_algorithm(one.make(), graph, size).seconds, rel=1e-9)


def test_the_bucket_algorithm_in_closed_form() -> None:
    graph = topology("torus:5x5", RATE, ALPHA)
    for collective, passes in (("allgather", 1), ("allreduce", 2)):
        _, timed = fastest(collective, graph, 1e8, name="bucket")
        assert bucket_seconds(graph, 1e8, passes) == pytest.approx(timed.seconds, rel=1e-9)


@pytest.mark.parametrize("name", ["ring:8", "torus:4x4", "random:12x4"])
def test_a_pair_uses_every_way_and_unequal_exchanges_go_round_each_other(name: str) -> None:
    """A pair's bound is the maximum flow between the two: all links of a rank of a torus."""
    asked: dict[str, Any] = {"topology": name, "link": "50 GB/s", "size": "1 GB"}
    known, made = (answered("sendrecv", **asked, synthesize=on) for on in (False, True))
    links = int((known.graph.tail == 0).sum())
    assert known.bound.bandwidth_s == pytest.approx(1e9 / 50e9 / links, rel=0.01)
    assert known.seconds == pytest.approx(links * known.bound.bandwidth_s, rel=0.01)
    assert made.verification.ok
    assert made.bound.seconds <= made.seconds <= 1.25 * made.bound.seconds
    skewed = (np.random.default_rng(0).random((known.graph.ranks,) * 2) ** 4).tolist()
    known, made = (answered("alltoallv", **asked, matrix=skewed, synthesize=on) for on in (False, True))
    assert made.verification.ok
    assert made.bound.seconds <= made.seconds < 0.95 * known.seconds


def test_bounds_of_exchanges_and_of_bridged_graphs() -> None:
    for name in ("torus:4x4", "mesh:3x4", "leafspine:2x4x2"):
        whole, parts = (answered(one, topology=name, size="1 GB").bound.seconds for one in ("alltoall", "alltoallv"))
        assert parts == pytest.approx(whole, rel=0.1)  # equal sizes are an all-to-all
    bridged = without(topology("mesh:8x8", RATE), [f"link:{3 + 8 * row}-{4 + 8 * row}" for row in range(7)])
    assert lower_bound(bridged, "allgather", 1e9).seconds == pytest.approx(1e9 / 2 / RATE)
    assert lower_bound(bridged, "alltoall", 1e9).seconds == pytest.approx(1e9 * 32 / 2 / RATE)
    assert lower_bound(bridged, "broadcast", 1e9).seconds == pytest.approx(1e9 / RATE)
