"""Turn a system of Ascend chips and a size into the times of HCCL's algorithms between servers, by its own formulas.

a = latency of a step, b = seconds a byte, n = bytes, p = ranks, all-reduce (all-gather and reduce-scatter: half):

    Mesh        2 a + 2/p n b                           inside a server: p - 1 links at once, HCCL's own choice
    Ring        2 (p-1) a + 2 (p-1)/p n b
    NHR, NB     2 ceil(log2 p) a + 2 (p-1)/p n b        any p
    H-D_R       2 log2 p a + 2 (p-1)/p n b              power of two; else (2 floor(log2 p) + 2) a + (2 (q-1)/q + 2) n b
    pipeline    max(inside, between) (p-1) + inside     each phase: both levels at once

q = the power of two below p. Between servers every chip works on its share of the bytes. Steps of 1 us inside and 5 us
between are assumed where the catalog has no latency.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil, floor, log2

from ridgeline.comm.libraries.options import NotOffered, Option
from ridgeline.core.errors import InputError, Problem
from ridgeline.hardware.system import System
from ridgeline.hardware.topology import FullMesh

COLLECTIVES = ("allreduce", "allgather", "reducescatter")
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


def servers_of(system: System) -> Servers:
    """A system as HCCL sees it; refused for chips that are not Huawei's."""
    if system.chip.vendor != "Huawei" or not system.tiers:
        raise InputError(Problem(path="--library", given=f"hccl on {system.chip.id}", expected="Ascend chips"))
    first = system.tiers[0]
    count = max(1, system.chips // first.chips)
    out = min(tier.need_bandwidth().value for tier in system.tiers[1:]) if count > 1 else 0.0
    mesh = isinstance(first.topology, FullMesh)
    return Servers(inside=first.chips, servers=count, mesh=mesh, up=first.need_bandwidth().value, out=out)


def hccl_options(servers: Servers, collective: str, size: float) -> tuple[Option, ...]:
    """HCCL's algorithms between servers, each with what the level inside takes."""
    return tuple(_options(servers, collective, size))


def _options(servers: Servers, collective: str, size: float) -> Iterator[Option]:
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


def _option(name: str, latency: float, beta: float, size: float) -> Option:
    rate = 1 / beta if beta else float("inf")
    return Option(algorithm=name, protocol="", latency_s=latency, bytes_per_s=rate, size_bytes=size)


def hccl_not_offered(servers: Servers) -> tuple[NotOffered, ...]:
    """What is left out, with why."""
    reasons = [
        NotOffered(algorithm="AHC", reason="for groups of unequal size; these are equal"),
        NotOffered(algorithm="pairwise", reason="serves all-to-all"),
    ]
    if servers.servers == 1:
        reasons += [NotOffered(algorithm=name, reason="between servers; there is one") for name in LEVEL1]
    return tuple(reasons)
