"""Turn a question (which collective, on what, how large) into an answer: algorithm, time, bound, verification."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Unpack, cast

import numpy as np

from ridgeline.comm.algorithm import Algorithm, Candidate
from ridgeline.comm.bounds import TimeBound, chunked_bound, lower_bound, sequence_bound, time_bound
from ridgeline.comm.comparisons import AlgorithmList, SizeRange, crossings, list_algorithms
from ridgeline.comm.contract import PLAIN_COLLECTIVES, Collective, bus_factor
from ridgeline.comm.formats.files import CollectiveFile, read_collective
from ridgeline.comm.graph import Graph, LinkLoad, bytes_of, group_ranks, link_load, parsed_quantity, refusal, slow_links
from ridgeline.comm.graph import without as degraded
from ridgeline.comm.library.table import ALGORITHMS
from ridgeline.comm.select import EXCHANGES, ExchangeOptions, beaten, candidates_named, exchange_candidates, fastest
from ridgeline.comm.simulation.conditions import NetworkOptions, parse_conditions
from ridgeline.comm.simulation.messages import Job
from ridgeline.comm.simulation.simulate import SEEDS, Contention, contend, simulated_graph
from ridgeline.comm.synthesis.synthesize import synthesize as build
from ridgeline.comm.synthesis.synthesize import synthesize_exchange
from ridgeline.comm.timing import CollectiveTiming, time_algorithm
from ridgeline.comm.topologies import graph_of_system
from ridgeline.comm.topologies import topology as graph_named
from ridgeline.comm.verify import AlgorithmVerification, verify_algorithm
from ridgeline.core.errors import InputError, not_among
from ridgeline.hardware.load import system

NAMES = (*PLAIN_COLLECTIVES, *EXCHANGES)
BUSIEST_LINKS = 8  # that an answer lists
SEQUENCE: tuple[Collective, ...] = ("reducescatter", "allgather")


class TrafficOptions(NetworkOptions, ExchangeOptions, total=False):
    """What simulations and exchanges ask for besides."""


class CollectiveOptions(TrafficOptions, total=False):
    """What is asked of a collective besides its name and the system it runs on; see `collective`."""

    topology: str
    link: str | float
    latency: str | float
    size: str | float
    algorithm: str
    synthesize: bool
    chunks: int | None
    root: int
    outer: str | float | None
    by_size: bool
    simulate: bool
    seeds: int
    beside: Iterable[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerPrice:
    """What a collective takes by one layer of its model.

    seconds     null where the layer knows nothing of it; `reason` says why
    algorithm   what the layer takes, by its own name; blank where it does not choose
    adds        what it counts that the layer before leaves out
    source      where its numbers come from
    """

    seconds: float | None = None
    algorithm: str = ""
    adds: str = ""
    source: str = ""
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectivePrices:
    """The same collective by four layers, each of which counts more than the one before.

    ideal       the algorithm's steps on links as the catalog has them: `seconds` of the answer
    library     what the library's own tuner expects of what it takes (NCCL, RCCL, HCCL)
    benchmark   what nccl-tests would measure
    step        what a training or serving step pays
    """

    ideal: LayerPrice
    library: LayerPrice
    benchmark: LayerPrice
    step: LayerPrice


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CollectiveTime:
    """A collective on a graph: the algorithm, its time beside what no algorithm beats, and whether it is proven right.

    size_bytes              M, as docs/concepts/collectives.md defines it
    seconds                 on ideal links: of the catalog's or the given rate and latency, ranks arriving together
    algbw, busbw            size over time; times what a rank sends per byte of size, as nccl-tests counts
    bound_seconds           no algorithm is faster, with chunks as fine as one likes
    bound_by                whether bandwidth or latency sets it
    chunked_bound_seconds   for chunks of this size, one at a time on a link, both halves of an all-reduce; else null
    ratio_to_bound          seconds over the chunked bound, or over the bound where that is null
    rounds, steps           of the algorithm; a step is one chunk from one node to another
    synthesis_seconds       what building the algorithm took; null for one of the library
    verified                every output holds every contribution exactly once, without buffer races
    busiest                 the links with the most bytes for their rate
    simulation              the same under contention; null without --simulate
    prices                  the same by ideal links, library, benchmark and step; null for the algorithm of a file
    by_size                 with --by-size: who is fastest from 1 kB to 10 GB, with the sizes where they cross

    Where chunks share links the chunked bound is the sum of the bounds of both halves.
    """

    JSON = """
        kind='collective' possible=true collective topology=graph.name ranks=graph.ranks links=graph.links size_bytes
        algorithm=algorithm.name seconds algbw busbw bound_seconds=bound.seconds bound_by=bound.by chunked_bound_seconds
        ratio_to_bound rounds=algorithm.rounds steps=algorithm.step_count chunks=algorithm.contract.chunks
        synthesis_seconds verified=verification.ok busiest simulation=contention prices by_size?
    """

    collective: Collective
    graph: Graph
    size_bytes: float
    algorithm: Algorithm
    timing: CollectiveTiming
    bound: TimeBound
    chunked_bound_seconds: float | None
    verification: AlgorithmVerification
    synthesis_seconds: float | None
    contention: Contention | None = None
    by_size: tuple[SizeRange, ...] | None = None
    prices: CollectivePrices | None = None

    @property
    def seconds(self) -> float:
        return self.timing.seconds

    @property
    def algbw(self) -> float:
        """Bytes per second: size over time."""
        return self.size_bytes / self.seconds if self.seconds else 0.0

    @property
    def busbw(self) -> float:
        """algbw times what each rank sends per byte of size, comparable with a link's rate (nccl-tests)."""
        return self.algbw * bus_factor(self.collective, self.graph.ranks)

    @property
    def ratio_to_bound(self) -> float:
        """Seconds over the chunked bound where it applies, else over the bound; 1 is optimal."""
        best = self.chunked_bound_seconds or self.bound.seconds
        return self.seconds / best if best else 1.0

    @property
    def busiest(self) -> tuple[LinkLoad, ...]:
        """The links with the most bytes for their rate."""
        graph, carried_bytes = self.graph, self.timing.link_bytes
        if not graph.links or not self.seconds:
            return ()
        busy = carried_bytes / graph.bytes_per_s / self.seconds
        busiest = np.argsort(-busy, kind="stable")[:BUSIEST_LINKS]
        return tuple(link_load(graph, link, float(carried_bytes[link]), float(busy[link])) for link in busiest)


def collective(
    name: str,
    *,
    on: str = "",
    topology: str = "",
    link: str | float = "50 GB/s",
    latency: str | float = "0.5 us",
    size: str | float = "1 GB",
    algorithm: str = "",
    synthesize: bool = False,
    without: Iterable[str] = (),
    chunks: int | None = None,
    root: int = 0,
    outer: str | float | None = None,
    slow: Iterable[str] = (),
    groups: str = "",
    by_size: bool = False,
    simulate: bool = False,
    seeds: int = SEEDS,
    beside: Iterable[str] = (),
    **asked: Unpack[TrafficOptions],
) -> CollectiveTime:
    """How long a collective takes on a system or topology, by which algorithm, and how near the bound that is.

    name            allreduce, allgather, reducescatter, alltoall, broadcast, reduce; sendrecv, alltoallv, and MoE's
                    dispatch and combine, which take pairs, matrix, experts, top_k, tokens (see `exchange_options`)
    on, topology    a system of the catalog (64xh100-sxm), or mesh:AxB, torus:AxB, ring:N, switch:N, ... of equal links
    size            M: all-reduce vector, all-gather output, reduce-scatter input, what a rank sends in all-to-all
    algorithm       one of the library; absent: its fastest for this size
    synthesize      build one for the very graph, links taken away or not, and take the library's where that is faster
    without         links and ranks that are broken: link:3-4, node:5
    chunks          synthesis: chunks a rank's part is cut into
    outer, slow     rate of links between domains; links of another rate: link:3-4:0.5, node:5:0.25
    groups          sizes of groups of consecutive ranks, 2+3: all-reduce by unequal groups
    by_size         who is fastest from 1 kB to 10 GB besides, and the sizes where they cross
    simulate        run it too as flows that share links, with hashed paths for so many `seeds`; how, says the rest:
                    paths, seed, background, straggler, injection, message (see `simulation.conditions.NetworkOptions`)
    beside          another collective of all ranks at the same time, alltoall:256MB

    >>> found = collective("allgather", topology="torus:4x4", link="50 GB/s", latency=0.0, size="1 GB")
    >>> found.verification.ok, found.algorithm.name, round(found.ratio_to_bound, 3)
    (True, 'bucket', 1.0)
    """
    kind = _kind(name, NAMES)
    _refuse_both(algorithm, synthesize, chunks)
    graph = asked_graph(on, topology, link, latency, outer, without, slow, groups)
    size_bytes = bytes_of(size)
    if not 0 <= root < graph.ranks:
        raise refusal("root", str(root), f"0 to {graph.ranks - 1}")
    options = {key: asked.pop(key) for key in ExchangeOptions.__annotations__ if key in asked}  # type: ignore[misc]
    spent: float | None = None
    exchanges: list[Candidate] = []
    if kind in EXCHANGES:
        exchanges = exchange_candidates(kind, graph.ranks, cast(ExchangeOptions, options), graph.domain)
    if synthesize:
        begun = time.perf_counter()
        if exchanges:
            algorithm_made = synthesize_exchange(exchanges, graph, size_bytes)
        else:
            algorithm_made = build(kind, graph, size_bytes, chunks=chunks, root=root)
        spent = time.perf_counter() - begun
        timing = time_algorithm(algorithm_made, graph, size_bytes)
    elif exchanges:
        best = beaten(candidates_named(exchanges, algorithm), graph, size_bytes, float("inf"))
        assert best is not None
        algorithm_made, timing = best
    else:
        algorithm_made, timing = fastest(kind, graph, size_bytes, name=algorithm, root=root)
    answer_ = answer(kind, graph, size_bytes, algorithm_made, timing, spent)
    if by_size:
        answer_ = replace(answer_, by_size=crossings(kind, graph, root, synthesized=synthesize))
    if not simulate:
        return answer_
    jobs = [Job(algorithm=algorithm_made, size_bytes=size_bytes)]
    jobs += [_concurrent_job(text, graph, root) for text in beside]
    wide = simulated_graph(graph)
    conditions = parse_conditions(wide, **cast(NetworkOptions, asked))
    shared = contend(jobs, wide, conditions, seeds, alpha_beta_s=timing.seconds)
    return replace(answer_, contention=shared)


def _refuse_both(algorithm: str, synthesize: bool, chunks: int | None) -> None:
    """An `InputError` where what is asked for would be left out."""
    if algorithm and synthesize:
        raise refusal(
            "algorithm",
            f"{algorithm} with --synthesize",
            "one of the two",
            todo="leave one out: what is made is never slower than the library's",
        )
    if chunks is not None and not synthesize:
        raise refusal(
            "chunks", f"{chunks} without --synthesize", "--synthesize with it: the library's algorithms have theirs"
        )


def _kind(name: str, names: tuple[str, ...], path: str = "collective") -> Collective:
    """The collective of a name; all-reduce, all_reduce and AllReduce are allreduce."""
    plain = name.replace("-", "").replace("_", "").lower()
    if plain not in names:
        raise InputError(not_among(path, name, names, "write e.g. alltoall:256MB" if path == "beside" else ""))
    return cast(Collective, plain)


def _concurrent_job(text: str, graph: Graph, root: int) -> Job:
    """Another collective of all ranks, by the library's fastest algorithm."""
    name, _, size = text.partition(":")
    kind = _kind(name, PLAIN_COLLECTIVES, "beside")
    size_bytes = parsed_quantity(size or "nothing", "B", "beside")
    return Job(algorithm=fastest(kind, graph, size_bytes, root=root)[0], size_bytes=size_bytes)


def answer(
    kind: Collective,
    graph: Graph,
    size: float,
    made: Algorithm,
    timed: CollectiveTiming,
    spent: float | None,
) -> CollectiveTime:
    """An algorithm and its time beside bounds and verification."""
    chunked_s, total = 0.0, made.contract.chunks
    row = ALGORITHMS.get(made.name)
    in_halves = row.in_halves if row else made.name != "tree-packing"  # a reduce-scatter and then an all-gather
    sequence = kind == "allreduce" and total % graph.ranks == 0 and in_halves
    if timed.crowding > 1 and sequence and graph.direct:
        chunked_s = sum(lower_bound(graph, half, size).seconds for half in SEQUENCE)
    elif timed.crowding == 1:
        chunked_s = sequence_bound(graph, size, total) if sequence else chunked_bound(graph, kind, size, total)
    least = time_bound(graph, made.contract, size)
    return CollectiveTime(
        collective=kind,
        graph=graph,
        size_bytes=size,
        algorithm=made,
        timing=timed,
        bound=least,
        chunked_bound_seconds=max(chunked_s, least.seconds) if chunked_s else None,
        verification=verify_algorithm(made),
        synthesis_seconds=spent,
    )


def timed_file(found: CollectiveFile, graph: Graph, size: str | float) -> CollectiveTime:
    """A file's algorithm on a graph: its time beside bounds, with the verification of the file."""
    assert found.algorithm is not None
    assert found.verification is not None
    algorithm, size_bytes = found.algorithm, bytes_of(size)
    if algorithm.nodes > graph.nodes or algorithm.ranks != graph.ranks:
        raise refusal(
            "--on, --topology", f"{graph.name} of {graph.ranks} ranks", f"{algorithm.ranks} ranks, as in the file"
        )
    timing = time_algorithm(algorithm, graph, size_bytes)
    time_ = answer(algorithm.contract.collective, graph, size_bytes, algorithm, timing, None)
    return replace(time_, verification=found.verification)


def collective_list(
    *, on: str = "", topology: str = "", link: str | float = "50 GB/s", latency: str | float = "0.5 us",
    size: str | float = "1 GB", outer: str | float | None = None, without: Iterable[str] = (), groups: str = "",
) -> AlgorithmList:  # fmt: skip
    """Every algorithm of the library, for each collective it can do on a network: a torus of 4 x 4 unless one is given.

    >>> any(entry.algorithm == "ring" for entry in collective_list(topology="ring:4").algorithms)
    True
    """
    shape = topology if on or topology else "torus:4x4"
    return list_algorithms(asked_graph(on, shape, link, latency, outer, without, (), groups), size)


def collective_verify(
    file: Path, *, on: str = "", topology: str = "", link: str | float = "50 GB/s", latency: str | float = "0.5 us",
    size: str | float = "1 GB", profile: str = "", timed: bool = False,
) -> CollectiveFile | CollectiveTime:  # fmt: skip
    """What a file of a collective holds, checked; with the time of its algorithm where a network is given.

    profile   msccl or rccl: whose limits an XML file is held against
    timed     time it without a network too, on a switch of equal links
    """
    if profile not in ("", "msccl", "rccl"):
        expectation = "--to rccl or msccl: whose limits an XML file is held against"
        raise refusal("--to", f"verify --to {profile}", expectation)
    content = read_collective(file, profile)
    if content.algorithm is None or not (on or topology or timed):
        return content
    shape = topology if on or topology else f"switch:{content.algorithm.ranks}"
    return timed_file(content, asked_graph(on, shape, link, latency), size)


def asked_graph(
    on: str, topology: str, link: str | float, latency: str | float, outer: str | float | None = None,
    without: Iterable[str] = (), slow: Iterable[str] = (), groups: str = "",
) -> Graph:  # fmt: skip
    """The graph of a system of the catalog or a topology of equal links; less what is broken, with what is slow."""
    if bool(on) == bool(topology):
        raise refusal(
            "on", "both" if on else "neither a system nor a topology", "--on 64xh100-sxm or --topology mesh:8x8"
        )
    if on:
        graph = graph_of_system(system(on))
    else:
        between = None if outer is None else parsed_quantity(outer, "B/s", "outer")
        latency_s = parsed_quantity(latency, "s", "latency")
        if not 0 <= latency_s < float("inf"):
            raise refusal("latency", str(latency), "0 seconds or more")
        graph = graph_named(topology, parsed_quantity(link, "B/s", "link"), latency_s, between)
    graph = slow_links(degraded(graph, without), slow)
    return group_ranks(graph, groups) if groups else graph
