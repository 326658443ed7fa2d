"""Turn what NCCL should take at which size into its tuner's CSV file, and such a file into rules that are checked.

    collective_type,min_bytes,max_bytes,algorithm,protocol,channels,nNodes,nRanks[,numPipeOps[,regBuff]]

-1 stands for any, `#` begins a comment, the first rule that fits is taken. Pairs that NCCL's model never enables (a
tree for anything but all-reduce, NVLS with LL) are read with a warning, since NCCL passes them by in silence: its own
example file has some. None is ever written.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ridgeline.comm.formats.program import Wrong, whole
from ridgeline.comm.libraries.options import Range

COLLECTIVES = ("broadcast", "reduce", "allgather", "reducescatter", "allreduce")
ALGORITHMS = ("tree", "ring", "collnet_direct", "collnet_chain", "nvls", "nvls_tree", "pat")
PROTOCOLS = ("ll", "ll128", "simple")
HEAD = "# collective_type,min_bytes,max_bytes,algorithm,protocol,channels,nNodes,nRanks,numPipeOps,regBuff"
LARGEST = 2**63 - 1
MOST_RULES = 10_000
SIMPLE_ONLY = ("nvls", "nvls_tree", "collnet_direct", "collnet_chain", "pat")
FOR: dict[str, tuple[str, ...]] = {
    "tree": ("allreduce",),
    "nvls_tree": ("allreduce",),
    "collnet_chain": ("allreduce",),
    "collnet_direct": ("allreduce", "allgather", "reducescatter"),
    "nvls": ("allreduce", "allgather", "reducescatter"),
    "pat": ("allgather", "reducescatter"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """Sizes and communicators for which NCCL is to take one algorithm and protocol; -1: any.

    without_effect   why NCCL passes the rule by; empty where it does not
    """

    collective: str
    min_bytes: int
    max_bytes: int
    algorithm: str
    protocol: str
    channels: int = -1
    nodes: int = -1
    ranks: int = -1
    without_effect: str = ""

    def __str__(self) -> str:
        communicator = ((self.nodes, "nodes"), (self.ranks, "ranks"))
        where = ", ".join(f"{value} {name}" for value, name in communicator if value >= 0)
        sizes = f"{self.min_bytes} to {self.max_bytes} B{' on ' + where if where else ''}"
        return f"{self.collective} of {sizes}: {self.algorithm}/{self.protocol}"

    def fits(self, collective: str, size: float, ranks: int) -> bool:
        """Whether a collective of that size is the rule's."""
        there = self.collective == collective and self.min_bytes <= size <= self.max_bytes
        return there and self.ranks in (-1, ranks) and not self.without_effect


def rules_of(collective: str, ranges: Sequence[Range], nodes: int, ranks: int) -> tuple[Rule, ...]:
    """A library's choice by size as rules for this communicator; channels, which are assumed here, stay NCCL's."""
    return tuple(
        Rule(
            collective=collective, min_bytes=0 if index == 0 else one.min_bytes,
            max_bytes=LARGEST if index == len(ranges) - 1 else one.max_bytes, algorithm=one.algorithm,
            protocol=one.protocol.lower(), nodes=nodes, ranks=ranks,
        )
        for index, one in enumerate(ranges)
    )  # fmt: skip


def tuner_text(rules: Sequence[Rule]) -> str:
    """The file's text, of rules that NCCL takes."""
    rows = [
        f"{one.collective},{one.min_bytes},{one.max_bytes},{one.algorithm},{one.protocol},{one.channels},"
        f"{one.nodes},{one.ranks},-1,-1"
        for one in rules
        if not one.without_effect
    ]
    return "\n".join([HEAD, *rows]) + "\n"


def read_tuner(path: Path, text: str) -> tuple[Rule, ...]:
    """The rules of a tuner's file, or an `InputError` with the line that breaks one."""
    wrong = Wrong(str(path))
    found: list[Rule] = []
    for number, line in enumerate(text.splitlines(), 1):
        bare = line.partition("#")[0].strip()
        if bare and not bare.lower().startswith("collective_type"):
            found.append(_rule(wrong, f"line {number}", [cell.strip() for cell in bare.split(",")]))
        if len(found) > MOST_RULES:
            raise wrong(f"line {number}", "more rules", f"at most {MOST_RULES}")
    if not found:
        raise wrong("", "no rule", "collective_type,min_bytes,max_bytes,algorithm,protocol,channels,nNodes,nRanks")
    return tuple(found)


def _rule(wrong: Wrong, at: str, cells: list[str]) -> Rule:
    if not 8 <= len(cells) <= 10:
        raise wrong(at, f"{len(cells)} cells", "8 to 10 cells")
    for cell, known, what in (
        (cells[0], COLLECTIVES, "collective_type"), (cells[3], ALGORITHMS, "algorithm"),
        (cells[4], PROTOCOLS, "protocol"),
    ):  # fmt: skip
        if cell not in known:
            raise wrong(f"{at}: {what}", repr(cell[:40]), f"one of {', '.join(known)}")
    low, high = (
        whole(wrong, f"{at}: {name}", cell, 0, 2**64 - 1)
        for name, cell in (("min_bytes", cells[1]), ("max_bytes", cells[2]))
    )
    if low > high:
        raise wrong(at, f"min_bytes {low} above max_bytes {high}", "a range")
    channels, nodes, ranks = (
        whole(wrong, f"{at}: {name}", cell, -1, 2**20)
        for name, cell in (("channels", cells[5]), ("nNodes", cells[6]), ("nRanks", cells[7]))
    )
    for name, cell in zip(("numPipeOps", "regBuff"), cells[8:], strict=False):
        whole(wrong, f"{at}: {name}", cell, -1, 2**20)
    if 0 <= ranks < nodes:
        raise wrong(at, f"{ranks} ranks on {nodes} nodes", "at least one a node")
    collective, algorithm, protocol = cells[0], cells[3], cells[4]
    without_effect = ""
    if collective not in FOR.get(algorithm, COLLECTIVES):
        taken = " or ".join(FOR[algorithm])
        without_effect = f"{at}: {algorithm} for {collective}, which NCCL has for {taken} only: it passes this rule by"
    elif algorithm in SIMPLE_ONLY and protocol != "simple":
        without_effect = f"{at}: {algorithm} with {protocol}, which NCCL has with simple only: it passes this rule by"
    return Rule(
        collective=collective, min_bytes=low, max_bytes=high, algorithm=algorithm, protocol=protocol,
        channels=channels, nodes=nodes, ranks=ranks, without_effect=without_effect,
    )  # fmt: skip
