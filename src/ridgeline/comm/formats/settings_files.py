"""Turn a library's choice into the settings that make it take that choice: NCCL's tuner file, HCCL_ALGO.

Turn what NCCL should take at which size into its tuner's CSV file, and such a file into rules that are checked.

    collective_type,min_bytes,max_bytes,algorithm,protocol,channels,nNodes,nRanks[,numPipeOps[,regBuff]]

-1 stands for any, `#` begins a comment, the first rule that fits is taken. Pairs that NCCL's model never enables (a
tree for anything but all-reduce, NVLS with LL) are read with a warning, since NCCL passes them by in silence: its own
example file has some. None is ever written.

Turn HCCL's choice between servers into its environment variable, and such a setting into levels that are checked.

    HCCL_ALGO="level0:NA;level1:<algorithm>[;level2:<algorithm>]"      or of one operator: allreduce=level0:NA;...

In quotes, since a shell takes a semicolon for the end of a command; files without them are read too. Level 0, inside a
server, is HCCL's own choice: NA.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ridgeline.comm.formats.program import Wrong, whole_number
from ridgeline.comm.graph import refusal
from ridgeline.comm.libraries.choice import LibraryChoice, Range
from ridgeline.core.files import write_text

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
            collective=collective, min_bytes=0 if index == 0 else size_range.min_bytes,
            max_bytes=LARGEST if index == len(ranges) - 1 else size_range.max_bytes, algorithm=size_range.algorithm,
            protocol=size_range.protocol.lower(), nodes=nodes, ranks=ranks,
        )
        for index, size_range in enumerate(ranges)
    )  # fmt: skip


def tuner_text(rules: Sequence[Rule]) -> str:
    """The file's text, of rules that NCCL takes."""
    rows = [
        f"{rule.collective},{rule.min_bytes},{rule.max_bytes},{rule.algorithm},{rule.protocol},{rule.channels},"
        f"{rule.nodes},{rule.ranks},-1,-1"
        for rule in rules
        if not rule.without_effect
    ]
    return "\n".join([HEAD, *rows]) + "\n"


def read_tuner(path: Path, text: str) -> tuple[Rule, ...]:
    """The rules of a tuner's file, or an `InputError` with the line that breaks one."""
    wrong = Wrong(str(path))
    rules: list[Rule] = []
    for number, line in enumerate(text.splitlines(), 1):
        bare = line.partition("#")[0].strip()
        if bare and not bare.lower().startswith("collective_type"):
            rules.append(_rule(wrong, f"line {number}", [cell.strip() for cell in bare.split(",")]))
        if len(rules) > MOST_RULES:
            raise wrong(f"line {number}", "more rules", f"at most {MOST_RULES}")
    if not rules:
        raise wrong("", "no rule", "collective_type,min_bytes,max_bytes,algorithm,protocol,channels,nNodes,nRanks")
    return tuple(rules)


def _rule(wrong: Wrong, at: str, cells: list[str]) -> Rule:
    if not 8 <= len(cells) <= 10:
        raise wrong(at, f"{len(cells)} cells", "8 to 10 cells")
    for cell, known_words, what in (
        (cells[0], COLLECTIVES, "collective_type"), (cells[3], ALGORITHMS, "algorithm"),
        (cells[4], PROTOCOLS, "protocol"),
    ):  # fmt: skip
        if cell not in known_words:
            raise wrong(f"{at}: {what}", repr(cell[:40]), f"one of {', '.join(known_words)}")
    low, high = (
        whole_number(wrong, f"{at}: {name}", cell, 0, 2**64 - 1)
        for name, cell in (("min_bytes", cells[1]), ("max_bytes", cells[2]))
    )
    if low > high:
        raise wrong(at, f"min_bytes {low} above max_bytes {high}", "a range")
    channels, nodes, ranks = (
        whole_number(wrong, f"{at}: {name}", cell, -1, 2**20)
        for name, cell in (("channels", cells[5]), ("nNodes", cells[6]), ("nRanks", cells[7]))
    )
    for name, cell in zip(("numPipeOps", "regBuff"), cells[8:], strict=False):
        whole_number(wrong, f"{at}: {name}", cell, -1, 2**20)
    if 0 <= ranks < nodes:
        raise wrong(at, f"{ranks} ranks on {nodes} nodes", "at least one a node")
    collective, algorithm, protocol = cells[0], cells[3], cells[4]
    without_effect = ""
    if collective not in FOR.get(algorithm, COLLECTIVES):
        served_text = " or ".join(FOR[algorithm])
        without_effect = (
            f"{at}: {algorithm} for {collective}, which NCCL has for {served_text} only: it passes this rule by"
        )
    elif algorithm in SIMPLE_ONLY and protocol != "simple":
        without_effect = f"{at}: {algorithm} with {protocol}, which NCCL has with simple only: it passes this rule by"
    return Rule(
        collective=collective, min_bytes=low, max_bytes=high, algorithm=algorithm, protocol=protocol,
        channels=channels, nodes=nodes, ranks=ranks, without_effect=without_effect,
    )  # fmt: skip


NAME = "HCCL_ALGO"
HCCL_ALGORITHMS = ("ring", "H-D_R", "NHR", "NB", "AHC", "pipeline", "pairwise")
OPERATORS = ("allreduce", "allgather", "reducescatter", "broadcast", "reduce", "alltoall")
_LINE = re.compile(rf"(?:export\s+)?{NAME}=(\"?)([^\"\n]{{1,400}})\1\s*")


@dataclass(frozen=True, slots=True, kw_only=True)
class HcclSetting:
    """Algorithms by level, for all operators or for one."""

    operator: str
    levels: tuple[tuple[int, str], ...]

    def __str__(self) -> str:
        levels = ", ".join(f"level {level} {algorithm}" for level, algorithm in self.levels)
        return f"{self.operator or 'every operator'}: {levels}"


def read_hccl(path: Path, text: str) -> tuple[HcclSetting, ...]:
    """The settings of a file, or an `InputError` that says what is wrong."""
    wrong = Wrong(str(path))
    settings = []
    for number, line in enumerate(text.splitlines(), 1):
        bare = line.strip()
        if not bare or bare.startswith("#"):
            continue
        match = _LINE.fullmatch(bare)
        if match is None:
            raise wrong(f"line {number}", repr(bare[:60]), f"{NAME}=level0:NA;level1:<algorithm>")
        settings += [_setting(wrong, f"line {number}", part) for part in match.group(2).split("/")]
    if not settings:
        raise wrong("", "no setting", f"{NAME}=level0:NA;level1:<algorithm>")
    return tuple(settings)


def _setting(wrong: Wrong, at: str, text: str) -> HcclSetting:
    operator, equals, levels_text = text.partition("=")
    if not equals:
        operator, levels_text = "", text
    elif operator not in OPERATORS:
        raise wrong(at, repr(operator[:40]), f"an operator: {', '.join(OPERATORS)}")
    levels = []
    for index, part in enumerate(levels_text.split(";")):
        level, _, algorithm = part.partition(":")
        if level != f"level{index}" or index > 2:
            raise wrong(at, repr(part[:40]), f"level{min(index, 2)}:<algorithm>")
        algorithm_names = ("NA",) if index == 0 else ("NA", *HCCL_ALGORITHMS)
        if algorithm not in algorithm_names:
            raise wrong(f"{at}: level{index}", repr(algorithm[:40]), f"one of {', '.join(algorithm_names)}")
        levels.append((index, algorithm))
    return HcclSetting(operator=operator, levels=tuple(levels))


TARGET_OF = {"nccl": "nccl-tuner", "hccl": "hccl"}


def write_choice(found: LibraryChoice, path: Path, target: str = "") -> None:
    """Write the settings, read back first, at once or not at all."""
    write_text(path, choice_text(found, target))


def choice_text(found: LibraryChoice, target: str = "") -> str:
    """The settings as text."""
    usual = TARGET_OF.get(found.library)
    if usual is None or target not in ("", usual):
        raise refusal(
            "--to",
            f"{target or 'a file'} of {found.library}",
            " or ".join(f"{name} with --library {library}" for library, name in TARGET_OF.items()),
        )
    if usual == "hccl":
        chosen = found.chosen.algorithm  # `mesh` and one server leave all to HCCL
        text = f'{NAME}="level0:NA;level1:{chosen if chosen in HCCL_ALGORITHMS else "NA"}"\n'
        read_hccl(Path("<hccl>"), text)
        return text
    system = found.system
    one_host_domain = (
        system.tiers[0].chips == system.node
    )  # a domain of several hosts: NCCL counts hosts, so leave it open
    nodes = system.chips // system.node if one_host_domain else -1
    text = tuner_text(rules_of(found.collective, found.ranges, nodes, system.chips))
    read_tuner(Path("<nccl-tuner>"), text)
    return text
