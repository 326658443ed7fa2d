"""Turn a system of AMD chips and a size into the times by which RCCL's tuner chooses, as far as its model is known.

The formulas are NCCL's of 2022 with tables of AMD's own: shares of a ring's rate, and corrections by size of both rings
and trees (`rccl.toml`, gfx94x). Assumed: rings over all links of a full mesh, one port a chip.
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

GIGA, MICRO = DECIMAL["G"], DECIMAL["u"]
COLLECTIVES = ("allreduce", "allgather", "reducescatter")
SIMPLE = 2


@cache
def constants() -> JsonObject:
    """The tuner's constants with their source."""
    return tomllib.loads((Path(__file__).parent / "rccl.toml").read_text(encoding="utf-8"))


@dataclass(frozen=True, slots=True, kw_only=True)
class RocmCommunicator:
    """What RCCL knows of the ranks: GB/s of a chip's links, and of all ports of a node."""

    ranks: int
    nodes: int
    link: float
    ports: float


def rocm_communicator(system: System) -> RocmCommunicator:
    """All chips of a system as one communicator; refused where RCCL does not run."""
    if system.chip.vendor != "AMD" or not system.tiers:
        raise InputError(Problem(path="--library", given=f"rccl on {system.chip.id}", expected="AMD chips"))
    first = system.tiers[0]
    nodes = max(1, system.chips // first.chips)
    ports = min(tier.need_bandwidth().value for tier in system.tiers[1:]) * first.chips if nodes > 1 else 0.0
    link = first.need_bandwidth().value
    return RocmCommunicator(ranks=system.chips, nodes=nodes, link=link / GIGA, ports=ports / GIGA)


def rccl_options(comm: RocmCommunicator, collective: str, size: float) -> tuple[Option, ...]:
    """Every algorithm and protocol that the tuner compares for this size."""
    return tuple(_options(comm, collective, size))


def _options(comm: RocmCommunicator, collective: str, size: float) -> Iterator[Option]:
    tables = constants()
    n = comm.ranks
    steps = (2 if collective == "allreduce" else 1) * (n - 1)
    rate = comm.link if comm.nodes == 1 else min(comm.link, comm.ports)
    for algorithm in ("tree", "ring"):
        if algorithm == "tree" and collective != "allreduce":
            continue
        for index, protocol in enumerate(tables["protocols"]):
            share = tables["share"][algorithm][0 if comm.nodes <= 2 else 1][index]
            bus = rate * share * _correction(algorithm, index, size)
            if bus <= 0:
                continue
            yield Option(
                algorithm=algorithm,
                protocol=protocol,
                latency_s=_latency(comm, algorithm, index, steps) * MICRO,
                bytes_per_s=bus * (0.5 if algorithm == "tree" else n / steps) * GIGA,
                size_bytes=size,
            )


def _correction(algorithm: str, protocol: int, size: float) -> float:
    table = constants()["correction"][algorithm][protocol]
    power = int(log2(size / 64)) if size >= 64 else 0
    return float(table[min(power, len(table) - 1)])


def _latency(comm: RocmCommunicator, algorithm: str, protocol: int, steps: int) -> float:
    tables = constants()
    launch, hop = tables["launch_us"][algorithm][protocol], tables["hop_us"][algorithm][protocol]
    net = tables["net_us"][algorithm][protocol]
    if algorithm == "tree":
        inside = comm.ranks // comm.nodes - 1
        return float(launch + 2 * (inside * hop + int(log2(comm.nodes)) * net))
    between = 0 if comm.nodes == 1 else 2 * comm.nodes if steps >= 2 * (comm.ranks - 1) else comm.nodes - 1
    return float(launch + (steps - between) * hop + between * net)


def rccl_not_offered(collective: str) -> tuple[NotOffered, ...]:
    """What gfx94x never takes."""
    reasons = [NotOffered(algorithm="LL128", reason="off on gfx94x in this table")]
    if collective != "allreduce":
        reasons.append(NotOffered(algorithm="tree", reason="trees serve all-reduce only"))
    return tuple(reasons)
