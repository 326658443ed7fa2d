"""Turn collectives that libraries ran, each on its system, into columns that the formulas take.

A family is a kind of link whose numbers are fitted together: NVLink of Ampere, Hopper and Blackwell, and PCIe.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import Literal, get_args

import numpy as np

from ridgeline.comm.closed_form import EXITS, leaving
from ridgeline.core.arrays import Array, Index, Mask
from ridgeline.core.errors import MissingNumber
from ridgeline.core.records import dataclass
from ridgeline.hardware.system import System
from ridgeline.hardware.topology import FullMesh, Ring, Switched, Torus

QuestionKind = Literal["all-reduce", "all-gather", "reduce-scatter", "all-to-all", "dispatch", "combine"]
Software = Literal["nccl", "mscclpp", "trtllm", "deepep", "deepep-v2", "deepep-ll"]
KINDS: tuple[QuestionKind, ...] = get_args(QuestionKind)
SOFTWARE: tuple[Software, ...] = get_args(Software)
FAMILIES = ("ampere", "hopper", "blackwell", "pcie", "other")
NETWORKS = ("", "efa")  # scale-out networks with a hop of their own; "" is InfiniBand or RoCE
HARNESSES = ("", "one-process", "profiler")


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertExchange:
    """What MoE dispatch or combine moves: tokens of each rank to the ranks of their experts.

    token_bytes   of one token: hidden times the bytes of an element, scales included
    top_k         experts of a token
    nodes         domains that a token may go to (node-limited routing); 0: any
    cores         of a chip that move tokens
    """

    tokens: float
    token_bytes: float
    top_k: float
    nodes: float = 0.0
    cores: float = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveQuestion:
    """One collective of one library.

    size        bytes as nccl-tests counts them: the whole tensor
    stride      chips from one rank to the next
    share       of a chip's links that a rank has: 1, or 1/2 where ranks are dies
    in_switch   whether switches may add up (NVLS)
    old         a library from before NCCL 2.23, whose protocols start later
    network     scale-out network where it has a hop of its own
    harness     what measured it, where its launches take longer than short collectives
    """

    kind: QuestionKind
    software: Software = "nccl"
    size: float
    ranks: int
    stride: int = 1
    share: float = 1.0
    system: System
    in_switch: bool = True
    old: bool = False
    network: str = ""
    harness: str = ""
    experts: ExpertExchange | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class QuestionColumns:
    """Questions as columns.

    inside, domains    ranks in one domain, domains; `exits` of a domain carry a collective's bytes out of it
    link, out          bytes/s of one rank inside its domain and out of it, as data sheets have them
    path               index of the system whose host joins PCIe slots, -1 elsewhere
    """

    kind: Index
    software: Index
    family: Index
    size: Array
    ranks: Array
    inside: Array
    domains: Array
    exits: Array
    link: Array
    out: Array
    in_switch: Mask
    old: Mask
    network: Index
    harness: Index
    path: tuple[str, ...]
    tokens: Array
    token_bytes: Array
    top_k: Array
    reach: Array
    cores: Array

    def __len__(self) -> int:
        return len(self.size)


COLUMN_TYPES: dict[str, type] = {
    **dict.fromkeys(("kind", "software", "family", "network", "harness"), np.int64),
    **dict.fromkeys(("size", "ranks", "inside", "domains", "exits", "link", "out"), np.float64),
    **dict.fromkeys(("in_switch", "old"), np.bool_),
    **dict.fromkeys(("tokens", "token_bytes", "top_k", "reach", "cores"), np.float64),
}


def family_of(system: System) -> str:
    """The kind of link that joins a system's chips, as fitted together."""
    first = system.tiers[0].name if system.tiers else ""
    if first == "pcie" or "pcie" in system.chip.scaleup.kind.lower():
        return "pcie"
    if system.chip.vendor == "NVIDIA" and system.chip.family in FAMILIES:
        return system.chip.family
    return "other"


def describes(system: System) -> bool:
    """Whether these formulas hold for a system: chips behind switches, of a library that goes flat."""
    flat = system.chip.collectives == "flat" or family_of(system) == "other"
    return flat and not any(isinstance(tier.topology, (FullMesh, Torus, Ring)) for tier in system.tiers)


def question_columns(questions: Sequence[CollectiveQuestion]) -> QuestionColumns:
    """The columns of some questions; a rate that nobody published is a `MissingNumber`."""
    rows = [_question_row(question) for question in questions]
    columns: dict[str, np.ndarray] = {
        name: np.array([row[name] for row in rows], dtype) for name, dtype in COLUMN_TYPES.items()
    }
    return QuestionColumns(**columns, path=tuple(str(row["path"]) for row in rows))


def _question_row(question: CollectiveQuestion) -> dict[str, object]:
    system, ranks = question.system, float(question.ranks)
    domain = float(system.tiers[0].chips) / question.share if system.tiers else 1.0
    inside = min(ranks, max(1.0, float(domain // question.stride)))
    domains = ranks / inside
    family = family_of(system)
    first = system.tiers[0] if system.tiers else None
    switch = first is not None and isinstance(first.topology, Switched) and first.topology.reduces
    experts = question.experts or ExpertExchange(tokens=0.0, token_bytes=1.0, top_k=1.0)
    return {
        "kind": KINDS.index(question.kind),
        "software": SOFTWARE.index(question.software),
        "family": FAMILIES.index(family),
        "size": question.size,
        "ranks": ranks,
        "inside": inside,
        "domains": domains,
        "exits": min(inside, EXITS),
        "link": first.need_bandwidth().value * question.share if first is not None else inf,
        "out": _out(system) * question.share if domains > 1 else inf,
        "in_switch": question.in_switch and switch,
        "old": question.old,
        "network": NETWORKS.index(question.network),
        "harness": HARNESSES.index(question.harness),
        "path": system.template if family == "pcie" else "",
        "tokens": experts.tokens,
        "token_bytes": experts.token_bytes,
        "top_k": experts.top_k,
        "reach": min(domains, experts.nodes or domains),
        "cores": experts.cores,
    }


def _out(system: System) -> float:
    """Bytes/s of one chip through the slowest tier beyond its domain."""
    if len(system.tiers) < 2:
        raise MissingNumber(f"system {system.name}", "system.tier", "GB/s")
    return min(leaving(tier) for tier in system.tiers[1:])
