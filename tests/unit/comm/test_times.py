"""Bounds are those of the literature, no algorithm beats them, and times follow alpha-beta where nothing is shared."""

from __future__ import annotations

import numpy as np
import pytest

from ridgeline.comm.algorithm import reduce_then_gather, reversed_algorithm
from ridgeline.comm.bounds import chunked_bound, lower_bound
from ridgeline.comm.contract import Collective
from ridgeline.comm.graph import Graph, without
from ridgeline.comm.library.algorithms import (
    allgather_over,
    alltoallv,
    moe_dispatch,
    ring_allgather,
)
from ridgeline.comm.library.candidates import ring_order
from ridgeline.comm.routes import shortest_routes
from ridgeline.comm.select import candidates, fastest
from ridgeline.comm.timing import time_algorithm
from ridgeline.comm.topologies import graph_of_system, topology
from ridgeline.comm.verify import verify_algorithm
from ridgeline.core.errors import InputError
from ridgeline.hardware.load import system

GRAPHS = ("mesh:4x4", "mesh:2x3", "torus:4x4", "torus:2x3x4", "ring:8", "switch:6", "full:5", "domains:4x4",
          "dragonfly:3x2x2", "16xh100-sxm", "8xh100-sxm", "tpu-v5e:4x4", "8xmi300x")  # fmt: skip
COLLECTIVES: tuple[Collective, ...] = ("allreduce", "allgather", "reducescatter", "broadcast", "reduce", "alltoall")


def graph_named(name: str, rate: float = 50e9, latency: float = 5e-7) -> Graph:
    plain = name.split(":")[0] in ("mesh", "torus", "ring", "switch", "full", "domains", "dragonfly")
    return topology(name, rate, latency) if plain else graph_of_system(system(name))


@pytest.mark.parametrize("collective", COLLECTIVES)
@pytest.mark.parametrize("name", GRAPHS)
def test_the_library_is_right_and_never_beats_the_bound(name: str, collective: Collective) -> None:
    graph = graph_named(name)
    for size in (1e3, 1e9):
        bound = lower_bound(graph, collective, size)
        for one in candidates(collective, graph):
            made = one.make()
            assert len(made.steps) <= one.steps
            assert time_algorithm(made, graph, size).seconds >= bound.seconds * (1 - 1e-9), one.name
            assert size > 1e3 or verify_algorithm(made).ok, one.name


@pytest.mark.parametrize(
    ("name", "collective", "expected"),
    [
        ("switch:8", "allgather", 7 / 8), ("switch:8", "allreduce", 2 * 7 / 8), ("switch:8", "alltoall", 7 / 8),
        ("switch:8", "broadcast", 1.0), ("ring:8", "allgather", 7 / 16), ("ring:8", "allreduce", 7 / 8),
        ("ring:8", "alltoall", 1.0), ("ring:8", "broadcast", 0.5), ("torus:4x4", "allgather", 15 / 64),
        ("torus:4x4x4", "allreduce", 63 / 64 / 3), ("torus:6x4", "alltoall", 6 / 8), ("torus:4x4", "broadcast", 0.25),
        ("mesh:4x4", "allgather", 0.46875), ("mesh:6x6", "allgather", 0.48611), ("mesh:8x8", "allgather", 0.49219),
        ("mesh:8x8", "allreduce", 9 / 16), ("mesh:4x4x4", "allreduce", 63 / 144), ("mesh:4x4", "alltoall", 1.0),
        ("mesh:4x4x4", "broadcast", 1 / 3),
    ],
)  # fmt: skip
def test_bounds_are_the_published_ones(name: str, collective: Collective, expected: float) -> None:
    found = lower_bound(topology(name, 50e9), collective, 50e9)
    assert found.bandwidth_s == pytest.approx(expected, rel=1e-4)


def test_latency_of_a_rooted_collective_is_its_roots() -> None:
    """From the middle of a line of five the farthest rank is two hops away, from its end four."""
    line = topology("mesh:1x5", 50e9, 1e-6)
    for collective in ("broadcast", "reduce"):
        assert lower_bound(line, collective, 1.0, root=2).seconds == pytest.approx(2e-6)
        assert lower_bound(line, collective, 1.0).seconds == pytest.approx(4e-6)
    assert lower_bound(line, "allgather", 1.0).latency_s == 4e-6


def test_bounds_of_two_levels() -> None:
    """n nodes of g: max((p-1)/p M/(Bi+Bn), (n-1)/n M/(g Bn)); 2 A100 nodes of 8, T/M of ForestColl."""
    graph = topology("domains:2x8", 300.0, 0.0, 25.0)
    assert lower_bound(graph, "allgather", 1.0).seconds == pytest.approx(0.002885, rel=1e-3)
    assert lower_bound(topology("domains:8x8", 300.0, 0.0, 25.0), "allgather", 1.0).seconds == pytest.approx(0.004375)


def test_in_switch_sums_halve_the_bound_of_all_reduce() -> None:
    graph = graph_named("8xh100-sxm")
    assert graph.reducing == 8
    assert lower_bound(graph, "allreduce", 450e9).bandwidth_s == pytest.approx(1.0)
    assert fastest("allreduce", graph, 1e9)[0].name == "in-switch"


def test_alpha_beta_where_nothing_is_shared() -> None:
    n, size, alpha, rate = 8, 8e6, 1e-6, 50e9
    ring = time_algorithm(
        reduce_then_gather(allgather_over(np.arange(n), "ring")), topology("ring:8", rate, alpha), size
    )
    assert ring.seconds == pytest.approx(2 * (n - 1) * (alpha + size / n / rate))
    assert ring.crowding == 1
    nhr = time_algorithm(
        reduce_then_gather(allgather_over(np.arange(6), "nhr")), topology("switch:6", rate, alpha), size
    )
    assert nhr.seconds == pytest.approx(2 * 3 * alpha + 2 * 5 / 6 * size / rate)


def test_shared_links_take_longer() -> None:
    switch, size = topology("switch:8", 50e9), 8e6
    assert time_algorithm(allgather_over(np.arange(8), "all-pairs"), switch, size).crowding == 7
    sizes = np.ones((4, 4)) + 3 * np.eye(4)[[1, 2, 3, 0]]
    uneven = time_algorithm(alltoallv(sizes), topology("switch:4", 1.0), 7.0)
    assert uneven.seconds == pytest.approx(6.0)  # 4 to one peer, 1 to each other


def test_moe_exchanges_take_the_time_of_their_busiest_rank() -> None:
    experts = np.zeros((8, 1), np.int64)  # every token to expert 0, on rank 0
    made = moe_dispatch(experts, 4, 1)
    seconds = time_algorithm(made, topology("switch:4", 1.0), 2.0).seconds
    assert seconds == pytest.approx(6.0)
    assert time_algorithm(reversed_algorithm(made), topology("switch:4", 1.0), 2.0).seconds == pytest.approx(6.0)


def test_small_messages_take_few_rounds_and_large_ones_all_links() -> None:
    torus = topology("torus:4x4", 50e9, 5e-6)
    assert fastest("allreduce", torus, 1e9)[0].name == "bucket"
    assert fastest("allreduce", torus, 16)[0].rounds < 20
    order = ring_order(topology("mesh:4x4", 1.0)).tolist()
    assert order[:8] == [0, 1, 2, 3, 7, 6, 5, 4]


def test_ways_are_direct_or_shortest() -> None:
    mesh = topology("mesh:3x3", 1.0)
    ways = shortest_routes(mesh, np.array([0, 0, 4]), np.array([1, 8, 4 - 3]))
    assert (ways >= 0).sum(axis=1).tolist() == [1, 4, 1]
    domains = topology("domains:2x2", 1.0)
    assert (shortest_routes(domains, np.array([0]), np.array([3])) >= 0).sum() in (
        3,
        4,
    )  # over rails, not through a rank
    through = domains.head[shortest_routes(domains, np.array([0]), np.array([3]))[0]]
    assert (through[:-1] >= domains.ranks).all()


@pytest.mark.parametrize("name", ["torus:4x4", "torus:4x4x4", "mesh:4x4", "ring:8", "torus:6x4", "mesh:2x3x4"])
def test_all_to_all_on_a_grid_loads_links_evenly(name: str) -> None:
    graph = topology(name, 50e9)
    _, timed = fastest("alltoall", graph, 50e9)
    assert timed.seconds <= 1.12 * lower_bound(graph, "alltoall", 50e9).bandwidth_s


def test_broken_links_and_ranks() -> None:
    whole = topology("mesh:4x4", 50e9)
    cut = without(whole, ["link:0-1"])
    assert (cut.links, cut.ranks, cut.shape) == (whole.links - 2, 16, ())
    assert lower_bound(cut, "allgather", 50e9).bandwidth_s == pytest.approx(15 / 16)
    less = without(whole, ["node:5"])
    assert (less.ranks, less.links, less.labels[5]) == (15, whole.links - 8, 6)
    for wrong in ("link:0-5", "link:0-0", "node:16", "chip:3", "link:3"):
        with pytest.raises(InputError):
            without(whole, [wrong])
    with pytest.raises(InputError, match="no path joins"):
        without(topology("mesh:4x1", 1.0), ["link:1-2"])


@pytest.mark.parametrize(
    "text", ["mesh", "mesh:0x4", "cube:3", "ring:3x3", "mesh:999999x99", "switch:2x2", "dragonfly:3"]
)
def test_wrong_names_are_refused(text: str) -> None:
    with pytest.raises(InputError):
        topology(text, 50e9)


def test_chunked_bound_of_unequal_links() -> None:
    """A rank with links of 1 and 3 seconds a chunk gets 4 chunks in 3 seconds: 3 over the fast one, 1 over the slow."""
    from dataclasses import replace

    ring = topology("ring:5", 1.0)
    slow = replace(ring, bytes_per_s=np.where((ring.head - ring.tail) % 5 == 1, 1.0, 1 / 3))
    assert chunked_bound(slow, "allgather", 5.0, 5) == pytest.approx(3.0)
    assert chunked_bound(ring, "allgather", 5.0, 5) == pytest.approx(2.0)


def test_ways_enter_a_domain_by_another_rank_only_where_nothing_else_does() -> None:
    """Domains whose ranks are linked to each other, and a chip whose port into the rails is broken."""
    mesh = graph_of_system(system("64xmi300x"))
    way = shortest_routes(mesh, np.array([1]), np.array([8]))[0]
    assert (mesh.head[way[way >= 0]][:-1] >= mesh.ranks).all()  # through switches all the way
    whole = graph_of_system(system("64xh100-sxm"))
    leaf = int(whole.head[(whole.tail == 3) & (whole.head >= 72)][0])
    broken = without(whole, [f"link:3-{leaf}"])
    into = shortest_routes(broken, np.array([11]), np.array([3]))[0]
    between = broken.head[into[into >= 0]][:-1]
    assert (between < broken.ranks).sum() == 1
    assert time_algorithm(ring_allgather(64), broken, 1e9).seconds > 0
