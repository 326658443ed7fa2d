"""Turn a system and a size into the times by which NCCL, RCCL and HCCL choose algorithm, protocol and channels.

NCCL (2.30, `nccl.toml`; us, GB/s; RCCL's are its formulas of 2022 with AMD's tables, `rccl.toml`, gfx94x):

    seconds = latency + size / algbw

    ring        launch + (steps - between) hop + between net hop;  all-reduce: 2 (N-1) steps, 2 (n-1) between nodes
    tree        launch + 2 ((ppn - 1) hop + log2(n) net hop);      0.92 of a ring, less at medium sizes
    NVLS        25 us, switches at 0.85 (Hopper) or 0.74 (Blackwell) of the links, twice that for all-reduce
    NVLS tree   25 us + 2 log2(n) net hops
    LL          half of a ring's rate, 1/3.8 of a tree's, capped        LL128   0.92 of it, capped by channel

N = ranks, n = nodes, ppn = ranks of a node. What the tuner finds in the machine and is assumed here: rings at NCCL's
rate of a link (RCCL: over all links of a full mesh, one port a chip), channels, the host's processor; nodes are the
system's innermost domains.

HCCL between servers: a = latency of a step, b = seconds a byte, n = bytes, p = ranks, all-reduce (all-gather and
reduce-scatter: half):

    Mesh        2 a + 2/p n b                           inside a server: p - 1 links at once, HCCL's own choice
    Ring        2 (p-1) a + 2 (p-1)/p n b
    NHR, NB     2 ceil(log2 p) a + 2 (p-1)/p n b        any p
    H-D_R       2 log2 p a + 2 (p-1)/p n b              power of two; else (2 floor(log2 p) + 2) a + (2 (q-1)/q + 2) n b
    pipeline    max(inside, between) (p-1) + inside     each phase: both levels at once

q = the power of two below p. Between servers every chip works on its share of the bytes. Steps of 1 us inside and 5 us
between are assumed where the catalog has no latency.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from math import ceil, floor, log2
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from ridgeline.comm.graph import refusal
from ridgeline.core.documents import JsonObject
from ridgeline.core.units import DECIMAL
from ridgeline.hardware.system import System
from ridgeline.hardware.topology import FullMesh, Switched

GIGA, MICRO = DECIMAL["G"], DECIMAL["u"]
EXITS = 8  # ports of a node that rings leave by
CHANNELS, CHANNELS_BETWEEN, CHANNELS_NVLS = 24, 16, 16  # assumed: as logs of eight-chip nodes print them
AMD_HOSTS = ("dgx-a100",)
PCI_SHARE = 0.762  # of a slot's rate, as NCCL counts it


@cache
def constants(library: str = "nccl") -> JsonObject:
    """The constants of a tuner with their source."""
    return tomllib.loads((Path(__file__).parent / f"{library}.toml").read_text(encoding="utf-8"))


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedOption:
    """One algorithm with one protocol, as a library prices it for itself.

    protocol      LL, LL128 or Simple; blank where the library has none
    latency_s     launch and hops, paid whatever the size
    bytes_s       the rest: bytes over rate
    bytes_per_s   algbw without latency: size over the time of its bytes
    channels      rings, trees or thread blocks at once; 0 where the library does not choose them here
    """

    JSON = "algorithm protocol seconds latency_s bytes_s algbw busbw channels"
    algorithm: str
    protocol: str
    latency_s: float
    bytes_per_s: float
    size_bytes: float
    channels: int = 0
    bus_factor: float = 1.0

    @property
    def bytes_s(self) -> float:
        return self.size_bytes / self.bytes_per_s

    @property
    def seconds(self) -> float:
        return self.latency_s + self.bytes_s

    @property
    def algbw(self) -> float:
        return self.size_bytes / self.seconds

    @property
    def busbw(self) -> float:
        return self.algbw * self.bus_factor

    @property
    def name(self) -> str:
        return f"{self.algorithm}/{self.protocol}" if self.protocol else self.algorithm


@dataclass(frozen=True, slots=True, kw_only=True)
class NotOffered:
    """An algorithm that the library does not consider here, and why."""

    algorithm: str
    reason: str


class LibraryModel(NamedTuple):
    """A library's cost model of one collective on one system: options by size, and what is left out or assumed."""

    price: Callable[[float], tuple[ComparedOption, ...]]
    not_offered: tuple[NotOffered, ...]
    version: str
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Communicator:
    """What a tuner knows of the ranks: GB/s of one rank's links and of all ports of a node, as it counts them."""

    ranks: int
    nodes: int
    link: float
    ports: float
    generation: str = ""
    nvlink: bool = True
    switches: bool = False
    host: str = ""

    @property
    def ppn(self) -> int:
        return self.ranks // self.nodes

    @property
    def rate(self) -> float:
        """GB/s at which a ring goes round: a link's, or what all ports of a node share."""
        return self.link if self.nodes == 1 else min(self.link, self.ports)

    @property
    def channels(self) -> int:
        return CHANNELS if self.nodes == 1 else CHANNELS_BETWEEN

    def by_nodes(self, values: list[float]) -> float:
        """Of a list for one node, two, more."""
        return float(values[min(self.nodes, 3) - 1])


def communicator(system: System) -> Communicator:
    """All chips of a system as one communicator; refused where NCCL does not run."""
    chip = system.chip
    if chip.vendor != "NVIDIA":
        raise refusal(
            "--library",
            f"nccl on {chip.id}",
            "NVIDIA chips",
            todo={"AMD": "--library rccl", "Huawei": "--library hccl"}.get(chip.vendor, "leave --library out"),
        )
    first = system.tiers[0] if system.tiers else None
    if first is None or system.chips < 2 or system.chips % first.chips:
        raise refusal("--on", f"{system.chips} chips", "two or more, in full domains")
    if isinstance(first.topology, FullMesh):
        raise refusal(
            "--on", f"{system.name}, whose chips are bridged", "chips behind switches", todo="leave --library out"
        )
    pci = first.name == "pcie" or "pcie" in chip.scaleup.kind.lower()
    generations = constants()["generation"]
    generation = (
        chip.family if chip.family in generations else ("blackwell" if "blackwell" in chip.family else "ampere")
    )
    nodes = system.chips // first.chips
    share = PCI_SHARE if pci else generations[generation]["link_share"]
    ports = min(tier.need_bandwidth().value for tier in system.tiers[1:]) if nodes > 1 else 0.0
    return Communicator(
        ranks=system.chips,
        nodes=nodes,
        generation=generation,
        link=first.need_bandwidth().value * share / GIGA,
        ports=ports * min(first.chips, EXITS) / GIGA,
        nvlink=not pci,
        switches=isinstance(first.topology, Switched) and first.topology.reduces,
        host="amd" if system.template in AMD_HOSTS else "intel",
    )


def nccl_model(system: System, collective: str) -> LibraryModel:
    """NCCL's tuner."""
    comm = communicator(system)
    notes = (
        f"{comm.nodes} node(s) of {comm.ppn}, {comm.channels} channels, a host of {comm.host.title()}: assumed",
        "times are the tuner's own estimates, made to choose by; benchmarks differ, see `measured`",
    )
    not_offered = _nccl_not_offered(comm, collective)
    return LibraryModel(
        lambda size: tuple(nccl_options(comm, collective, size)), not_offered, constants()["version"], notes
    )


def nccl_options(comm: Communicator, collective: str, size: float) -> Iterator[ComparedOption]:
    """Every algorithm and protocol that the tuner compares for this size."""
    for algorithm in ("tree", "ring", "nvls", "nvls_tree", "pat"):
        if _refusal_reason(comm, collective, algorithm):
            continue
        for index, protocol in enumerate(constants()["protocols"]):
            if algorithm in ("nvls", "nvls_tree", "pat") and protocol != "Simple":
                continue
            if protocol == "LL128" and not comm.nvlink:
                continue
            rate = _algbw(comm, collective, algorithm, index, size)
            if rate > 0:
                yield ComparedOption(
                    algorithm=algorithm,
                    protocol=protocol,
                    latency_s=_latency(comm, collective, algorithm, index, size) * MICRO,
                    bytes_per_s=rate * GIGA,
                    size_bytes=size,
                    channels=_channels(comm, algorithm, index, size),
                )


def _refusal_reason(comm: Communicator, collective: str, algorithm: str) -> str:
    """Why the tuner does not consider an algorithm; blank where it does."""
    if algorithm == "ring":
        return ""
    if collective in ("broadcast", "reduce"):
        return f"{collective} has rings only"
    gathers = collective in ("allgather", "reducescatter")
    if algorithm == "tree":
        return "trees serve all-reduce only" if gathers else ""
    if algorithm == "pat":
        if not gathers:
            return "PAT serves all-gather and reduce-scatter"
        return "" if comm.ppn == 1 and comm.nodes > 1 else f"PAT wants one rank a node, here are {comm.ppn}"
    if not comm.switches or constants()["generation"][comm.generation]["nvls"] == 0:
        return "no switches that add up (NVLS)"
    if comm.ppn < 3:
        return f"{comm.ppn} ranks of a node do not meet in a switch"
    if algorithm == "nvls":
        return "" if comm.nodes == 1 else "NVLS between nodes wants CollNet (SHARP) switched on"
    if gathers:
        return "NVLS trees serve all-reduce only"
    return "" if comm.nodes > 1 else "one node needs no tree"


def _nccl_not_offered(comm: Communicator, collective: str) -> tuple[NotOffered, ...]:
    """The algorithms that are left out, each with why."""
    reasons = [
        NotOffered(algorithm=name, reason=reason)
        for name in ("tree", "nvls", "nvls_tree", "pat")
        if (reason := _refusal_reason(comm, collective, name))
    ]
    if not comm.nvlink:
        reasons.append(NotOffered(algorithm="LL128", reason="wants NVLink inside a node"))
    collnet = "wants CollNet (SHARP), off unless NCCL_COLLNET_ENABLE=1"
    return (*reasons, NotOffered(algorithm="collnet_direct", reason=collnet))


def _steps(comm: Communicator, collective: str) -> int:
    n = comm.ranks
    return {"allreduce": 2 * (n - 1), "allgather": n - 1, "reducescatter": n - 1}.get(collective, n)


def _algbw(comm: Communicator, collective: str, algorithm: str, protocol: int, size: float) -> float:
    """GB/s of payload without latency, as the tuner has them."""
    generation = constants()["generation"][comm.generation]
    rate, channels = comm.rate, comm.channels
    ll_cap = generation["ll_one_node"]
    if comm.nodes > 1:
        ll_cap = constants()["ll_nodes"][comm.host][min(comm.nodes, 3) - 2]
    if algorithm == "ring":
        bus = (min(ll_cap, rate * 0.5), min(rate * 0.92, channels * generation["ring_ll128"][0]), rate)[protocol]
    elif algorithm == "tree":
        bus = min(rate * 0.92, channels * comm.by_nodes(generation["tree"]))
        wide = 7 / 9 if comm.nodes == 1 else 120 / 128
        bus = (min(bus / 3.8, ll_cap), min(bus * wide, channels * comm.by_nodes(generation["tree_ll128"])), bus)[
            protocol
        ]
        corrections = constants()["tree_correction"][protocol]
        power = int(log2(size / 64)) if size >= 64 else -1
        bus *= corrections[power] if 0 <= power < len(corrections) - 1 else 1.0
    elif algorithm == "pat":
        bus = rate * 0.75
    else:
        bus = _in_switch(comm, collective, algorithm, generation)
    if algorithm in ("nvls", "pat") and collective != "allreduce":
        return bus
    ratio = 0.5 if algorithm == "tree" else comm.ranks / _steps(comm, collective)
    return bus * ratio


def _in_switch(comm: Communicator, collective: str, algorithm: str, own: JsonObject) -> float:
    channels = CHANNELS_NVLS
    inside = comm.link * own["nvls"] * (channels - 1) / channels
    inside *= 2 if collective == "allreduce" else (comm.ppn - 1) / comm.ppn
    if algorithm == "nvls":
        return float(inside)
    between = comm.ports * (2 if comm.nodes == 2 else 1)
    return float(min(inside, between, channels * comm.by_nodes(own["nvls_tree"])))


def _latency(comm: Communicator, collective: str, algorithm: str, protocol: int, size: float) -> float:
    """Microseconds that are paid whatever the size."""
    tables = constants()
    launch = tables["launch_us"][algorithm][protocol]
    hop = tables["hop_us"]["nvlink" if comm.nvlink else "pci"][algorithm][protocol]
    net = tables["hop_us"]["net"]["tree" if comm.ppn == 1 else algorithm][protocol]
    nodes = comm.nodes
    climb = int(log2(nodes)) * net
    match algorithm:
        case "ring":
            return float(launch + _ring_hops(comm, collective, protocol, size, launch, (hop, net)))
        case "tree":
            return float(launch + 2 * ((comm.ppn - 1) * hop + climb))
        case "nvls":
            return float(hop)
        case "nvls_tree":
            return float(launch + hop + 2 * climb)
        case _:
            return float(launch + climb / 3.5 + comm.ranks * 2.8)


def _ring_hops(
    comm: Communicator, collective: str, protocol: int, size: float, launch: float, hops: tuple[float, float]
) -> float:
    hop, net = hops
    steps, simple = _steps(comm, collective), protocol == 2
    if collective in ("broadcast", "reduce"):
        return net if comm.nodes > 1 else hop
    between = 0 if comm.nodes == 1 else (2 if collective == "allreduce" else 1) * (comm.nodes - 1)
    if comm.nodes > 1:
        hop = max(hop, constants()["net_overhead_us"][comm.host] * (3 if simple else 1))
    hops_us = (steps - between) * hop + between * net
    if simple and comm.nodes > 1 and collective == "allreduce" and size / (comm.channels * comm.ranks) >= 64:
        hops_us += 0.4 * (launch + hops_us)  # the plateau of rings between nodes
    return hops_us


def _channels(comm: Communicator, algorithm: str, protocol: int, size: float) -> int:
    """Channels that are left after those with too few bytes for their threads are given up."""
    if algorithm in ("nvls", "nvls_tree"):
        return CHANNELS_NVLS
    tables = constants()
    least = tables["bytes_a_thread"][protocol] * (comm.ranks if algorithm == "ring" and protocol == 0 else 1)
    return max(1, min(comm.channels, int(size // (tables["threads"][protocol] * least))))


def rccl_model(system: System, collective: str) -> LibraryModel:
    """RCCL's tuner; refused where it does not run."""
    if system.chip.vendor != "AMD" or not system.tiers:
        raise refusal("--library", f"rccl on {system.chip.id}", "AMD chips")
    first = system.tiers[0]
    nodes = max(1, system.chips // first.chips)
    ports = min(tier.need_bandwidth().value for tier in system.tiers[1:]) * first.chips if nodes > 1 else 0.0
    link = first.need_bandwidth().value
    comm = Communicator(ranks=system.chips, nodes=nodes, link=link / GIGA, ports=ports / GIGA)
    not_offered = [NotOffered(algorithm="LL128", reason="off on gfx94x in this table")]
    if collective != "allreduce":
        not_offered.append(NotOffered(algorithm="tree", reason="trees serve all-reduce only"))
    notes = ("tables of gfx94x at that commit, rings over all links of a chip: assumed",)
    return LibraryModel(
        lambda size: tuple(_rccl_options(comm, collective, size)),
        tuple(not_offered),
        constants("rccl")["version"],
        notes,
    )


def _rccl_options(comm: Communicator, collective: str, size: float) -> Iterator[ComparedOption]:
    tables = constants("rccl")
    n = comm.ranks
    steps = (2 if collective == "allreduce" else 1) * (n - 1)
    power = int(log2(size / 64)) if size >= 64 else 0
    for algorithm in ("tree", "ring") if collective == "allreduce" else ("ring",):
        for index, protocol in enumerate(tables["protocols"]):
            share = tables["share"][algorithm][0 if comm.nodes <= 2 else 1][index]
            corrections = tables["correction"][algorithm][index]
            bus = comm.rate * share * corrections[min(power, len(corrections) - 1)]
            if bus <= 0:
                continue
            yield ComparedOption(
                algorithm=algorithm,
                protocol=protocol,
                latency_s=_rccl_latency(comm, algorithm, index, steps) * MICRO,
                bytes_per_s=bus * (0.5 if algorithm == "tree" else n / steps) * GIGA,
                size_bytes=size,
            )


def _rccl_latency(comm: Communicator, algorithm: str, protocol: int, steps: int) -> float:
    tables = constants("rccl")
    launch, hop = tables["launch_us"][algorithm][protocol], tables["hop_us"][algorithm][protocol]
    net = tables["net_us"][algorithm][protocol]
    if algorithm == "tree":
        return float(launch + 2 * ((comm.ppn - 1) * hop + int(log2(comm.nodes)) * net))
    between = 0 if comm.nodes == 1 else 2 * comm.nodes if steps >= 2 * (comm.ranks - 1) else comm.nodes - 1
    return float(launch + (steps - between) * hop + between * net)


STEP_S = (1e-6, 5e-6)  # inside a server, between servers
LEVEL1 = ("ring", "H-D_R", "NHR", "NB", "pipeline")


@dataclass(frozen=True, slots=True, kw_only=True)
class Servers:
    """Chips inside a server and servers, with bytes/s of one chip on each level."""

    inside: int
    servers: int
    mesh: bool
    up: float
    out: float


def hccl_model(system: System, collective: str) -> LibraryModel:
    """HCCL's algorithms between servers, each with what the level inside takes; refused for chips of others."""
    if system.chip.vendor != "Huawei" or not system.tiers:
        raise refusal("--library", f"hccl on {system.chip.id}", "Ascend chips")
    first = system.tiers[0]
    count = max(1, system.chips // first.chips)
    out = min(tier.need_bandwidth().value for tier in system.tiers[1:]) if count > 1 else 0.0
    mesh = isinstance(first.topology, FullMesh)
    servers = Servers(inside=first.chips, servers=count, mesh=mesh, up=first.need_bandwidth().value, out=out)
    not_offered = [
        NotOffered(algorithm="AHC", reason="for groups of unequal size; these are equal"),
        NotOffered(algorithm="pairwise", reason="serves all-to-all"),
        *(NotOffered(algorithm=name, reason="between servers; there is one") for name in LEVEL1 if count == 1),
    ]
    step = f"steps of {STEP_S[0] * 1e6:.0f} us inside and {STEP_S[1] * 1e6:.0f} us between servers: assumed"
    return LibraryModel(
        lambda size: tuple(_hccl_options(servers, collective, size)), tuple(not_offered), "09300b7", (step,)
    )


def _hccl_options(servers: Servers, collective: str, size: float) -> Iterator[ComparedOption]:
    times = 2 if collective == "allreduce" else 1
    p, q = servers.inside, servers.servers
    alpha, beta = times * STEP_S[0], times * (p - 1) / p / servers.up if p > 1 else 0.0
    if not servers.mesh and p > 1:
        alpha = times * ceil(log2(p)) * STEP_S[0]
    if q == 1:
        yield _option("mesh" if servers.mesh else "NHR", alpha, beta, size)
        return
    for name in LEVEL1:
        a, b = _between(name, q, times)
        a, b = a * STEP_S[1], b / p / servers.out
        if name == "pipeline":
            inside, between = beta / times / q, b / times / (q - 1)
            b = times * (max(inside, between) * (q - 1) + inside)
            yield _option(name, a + alpha, b, size)
        else:
            yield _option(name, alpha + a, beta + b, size)


def _between(name: str, q: int, times: int) -> tuple[float, float]:
    """Steps and bytes (of a chip's share) of one algorithm over q servers."""
    wire = times * (q - 1) / q
    if name in ("ring", "pipeline"):
        return times * (q - 1), wire
    if name == "H-D_R" and q & (q - 1):
        below = 2 ** floor(log2(q))
        return times * floor(log2(q)) + 2, times * (below - 1) / below + 2
    return times * ceil(log2(q)), wire


def _option(name: str, latency: float, beta: float, size: float) -> ComparedOption:
    rate = 1 / beta if beta else float("inf")
    return ComparedOption(algorithm=name, protocol="", latency_s=latency, bytes_per_s=rate, size_bytes=size)


MODELS: Mapping[str, tuple[Callable[[System, str], LibraryModel], tuple[str, ...]]] = MappingProxyType(
    {
        "nccl": (nccl_model, ("allreduce", "allgather", "reducescatter", "broadcast", "reduce")),
        "rccl": (rccl_model, ("allreduce", "allgather", "reducescatter")),
        "hccl": (hccl_model, ("allreduce", "allgather", "reducescatter")),
    }
)
"""By library its cost model, and the collectives that it has algorithms for."""
