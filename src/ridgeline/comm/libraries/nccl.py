"""Turn a communicator and a size into the times by which NCCL's tuner chooses algorithm, protocol and channels.

    seconds = latency + size / algbw                             (us, GB/s; NCCL 2.30, `nccl.toml`)

    ring        launch + (steps - between) hop + between net hop;  all-reduce: 2 (N-1) steps, 2 (n-1) between nodes
    tree        launch + 2 ((ppn - 1) hop + log2(n) net hop);      0.92 of a ring, less at medium sizes
    NVLS        25 us, switches at 0.85 (Hopper) or 0.74 (Blackwell) of the links, twice that for all-reduce
    NVLS tree   25 us + 2 log2(n) net hops
    LL          half of a ring's rate, 1/3.8 of a tree's, capped        LL128   0.92 of it, capped by channel

N = ranks, n = nodes, ppn = ranks of a node. What the tuner finds in the machine and is assumed here: rings at NCCL's
rate of a link, channels, the host's processor; nodes are the system's innermost domains.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from math import log2
from pathlib import Path

from ridgeline.comm.libraries.options import NotOffered, Option
from ridgeline.core.documents import JsonObject
from ridgeline.core.errors import InputError, Problem
from ridgeline.core.units import DECIMAL
from ridgeline.hardware.system import System
from ridgeline.hardware.topology import FullMesh, Switched

GIGA, MICRO = DECIMAL["G"], DECIMAL["u"]
COLLECTIVES = ("allreduce", "allgather", "reducescatter", "broadcast", "reduce")
EXITS = 8  # ports of a node that rings leave by
CHANNELS, CHANNELS_BETWEEN, CHANNELS_NVLS = 24, 16, 16  # assumed: as logs of eight-chip nodes print them
AMD_HOSTS = ("dgx-a100",)
PCI_SHARE = 0.762  # of a slot's rate, as NCCL counts it


@cache
def constants() -> JsonObject:
    """The tuner's constants with their source."""
    return tomllib.loads((Path(__file__).parent / "nccl.toml").read_text(encoding="utf-8"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Communicator:
    """What NCCL knows of the ranks: rates in GB/s of one rank's links and of all ports of a node, as it counts them."""

    ranks: int
    nodes: int
    generation: str
    link: float
    ports: float
    nvlink: bool
    switches: bool
    host: str

    @property
    def ppn(self) -> int:
        return self.ranks // self.nodes

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
        todo = {"AMD": "--library rccl", "Huawei": "--library hccl"}.get(chip.vendor, "leave --library out")
        raise InputError(Problem(path="--library", given=f"nccl on {chip.id}", expected="NVIDIA chips", todo=todo))
    first = system.tiers[0] if system.tiers else None
    if first is None or system.chips < 2 or system.chips % first.chips:
        expected_text = "two or more, in full domains"
        raise InputError(Problem(path="--on", given=f"{system.chips} chips", expected=expected_text))
    if isinstance(first.topology, FullMesh):
        given_text, todo = f"{system.name}, whose chips are bridged", "leave --library out"
        raise InputError(Problem(path="--on", given=given_text, expected="chips behind switches", todo=todo))
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


def nccl_options(comm: Communicator, collective: str, size: float) -> tuple[Option, ...]:
    """Every algorithm and protocol that the tuner compares for this size."""
    return tuple(_options(comm, collective, size))


def _options(comm: Communicator, collective: str, size: float) -> Iterator[Option]:
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
                yield Option(
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


def not_offered(comm: Communicator, collective: str) -> tuple[NotOffered, ...]:
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


def _ll_cap(comm: Communicator) -> float:
    tables = constants()
    if comm.nodes == 1:
        return float(tables["generation"][comm.generation]["ll_one_node"])
    return float(tables["ll_nodes"][comm.host][min(comm.nodes, 3) - 2])


def _algbw(comm: Communicator, collective: str, algorithm: str, protocol: int, size: float) -> float:
    """GB/s of payload without latency, as the tuner has them."""
    generation = constants()["generation"][comm.generation]
    rate = comm.link if comm.nodes == 1 else min(comm.link, comm.ports)
    channels = comm.channels
    if algorithm == "ring":
        bus = (min(_ll_cap(comm), rate * 0.5), min(rate * 0.92, channels * generation["ring_ll128"][0]), rate)[protocol]
    elif algorithm == "tree":
        bus = min(rate * 0.92, channels * comm.by_nodes(generation["tree"]))
        wide = 7 / 9 if comm.nodes == 1 else 120 / 128
        bus = (min(bus / 3.8, _ll_cap(comm)), min(bus * wide, channels * comm.by_nodes(generation["tree_ll128"])), bus)[
            protocol
        ]
        bus *= _tree_correction(protocol, size)
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


def _tree_correction(protocol: int, size: float) -> float:
    table = constants()["tree_correction"][protocol]
    power = int(log2(size / 64)) if size >= 64 else -1
    return float(table[power]) if 0 <= power < len(table) - 1 else 1.0


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
