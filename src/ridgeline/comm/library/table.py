"""Table of collective algorithms: each row has the names, the steps as data and the closed form of one algorithm.

Whoever adds an algorithm adds a row. Everything that asks for algorithms walks over the rows:

    steps          `ridgeline collective` times, proves, simulates, writes and runs the fastest of them (`comm.select`)
    closed_forms   a training or serving step pays the fastest of them (`cost.collectives`)
    aliases        what libraries and papers call it: options, files and tuners are read by these names

What a benchmark measures is fitted for the algorithms that a library has (`cost.library_times`), by the names of this
table. The tuners' own costs stand with the libraries (`comm.libraries`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal

from ridgeline.comm.closed_form import terms
from ridgeline.comm.closed_form.terms import ClosedForm
from ridgeline.comm.contract import Collective

PricedKind = Literal["all-reduce", "all-gather", "all-to-all", "send"]
"""Collectives that have closed forms; a reduce-scatter costs what an all-gather costs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AlgorithmRow:
    """One collective algorithm.

    aliases        other names that it goes by, where the collective has none of that very name
    needs          what a graph must have for it, in words
    serves         collectives that its steps do
    steps          builder of its candidates, by its name in `library.candidates`; blank where it has a closed form only
    in_halves      whether its all-reduce is a reduce-scatter and then an all-gather
    closed_forms   its seconds as terms, and where it is on offer, by kind of collective
    """

    name: str
    aliases: tuple[str, ...] = ()
    needs: str = ""
    serves: tuple[Collective, ...] = ()
    steps: str = ""
    in_halves: bool = True
    closed_forms: Mapping[PricedKind, ClosedForm] = field(default_factory=dict)


GATHERS: tuple[Collective, ...] = ("allgather", "reducescatter", "allreduce")
BROADCASTS: tuple[Collective, ...] = ("broadcast", "reduce")
POWER_OF_TWO = "it needs a power of two of ranks"
DOMAINS = "it needs domains of equal size, as domains:4x8"

ROWS = (
    AlgorithmRow(
        name="ring",
        serves=GATHERS,
        steps="line_gather",
        closed_forms={"all-gather": terms.RING, "all-reduce": terms.RING_TWICE},
    ),
    AlgorithmRow(name="nhr", serves=GATHERS, steps="line_gather"),
    AlgorithmRow(name="nb", aliases=("bruck",), serves=GATHERS, steps="line_gather"),
    AlgorithmRow(
        name="halving-doubling",
        aliases=("recursive-halving-doubling", "rhd", "h-d_r"),
        needs=POWER_OF_TWO,
        serves=GATHERS,
        steps="line_gather",
    ),
    AlgorithmRow(name="swing", needs=POWER_OF_TWO, serves=GATHERS, steps="line_gather"),
    AlgorithmRow(
        name="all-pairs",
        aliases=("mesh",),
        serves=(*GATHERS, "alltoall"),
        steps="all_pairs",
        closed_forms={"all-to-all": terms.DIRECT},
    ),
    AlgorithmRow(
        name="two-way-ring", needs="it needs ranks that are linked directly", serves=GATHERS, steps="two_way_rings"
    ),
    AlgorithmRow(
        name="bucket",
        needs="it needs a whole mesh or torus of two axes or more, and all-gather, reduce-scatter or all-reduce",
        serves=GATHERS,
        steps="bucket",
    ),
    AlgorithmRow(
        name="split-rail",
        aliases=("blueconnect",),
        needs=DOMAINS,
        serves=GATHERS,
        steps="split_rail",
        closed_forms={"all-gather": terms.LEVELS, "all-reduce": terms.LEVELS_TWICE},
    ),
    AlgorithmRow(name="rings", needs=DOMAINS, serves=GATHERS, steps="rings"),
    AlgorithmRow(
        name="in-switch",
        aliases=("nvls", "sharp"),
        needs="it needs a switch that adds up, as sharp:8 or 8xh100-sxm",
        serves=GATHERS,
        steps="in_switch",
        in_halves=False,
        closed_forms={"all-gather": terms.SWITCH_COPY, "all-reduce": terms.SWITCH_SUM},
    ),
    AlgorithmRow(name="in-fabric", closed_forms={"all-reduce": terms.FABRIC_SUM}),
    AlgorithmRow(name="chain", serves=BROADCASTS, steps="broadcast_tree"),
    AlgorithmRow(name="tree", serves=BROADCASTS, steps="broadcast_tree"),
    AlgorithmRow(
        name="double-tree",
        aliases=("tree",),
        serves=("allreduce", *BROADCASTS),
        steps="double_trees",
        in_halves=False,
        closed_forms={"all-reduce": terms.TREES},
    ),
    AlgorithmRow(
        name="unequal-groups",
        aliases=("ahc", "unequal"),
        needs="it needs --groups 2+3 or domains that lost ranks, and all-reduce",
        serves=("allreduce",),
        steps="unequal_groups",
        in_halves=False,
    ),
    AlgorithmRow(
        name="two-level",
        aliases=("hierarchical",),
        needs=f"{DOMAINS}, and all-reduce",
        serves=("allreduce",),
        steps="two_level",
        in_halves=False,
    ),
    AlgorithmRow(name="pairwise", serves=("alltoall",), steps="pairwise"),
    AlgorithmRow(
        name="forwarded",
        needs=f"{DOMAINS}, and all-to-all, dispatch or combine",
        serves=("alltoall",),
        steps="forwarded_exchange",
        closed_forms={"all-to-all": terms.FORWARDED},
    ),
    AlgorithmRow(name="bruck", serves=("alltoall",), steps="bruck"),
    AlgorithmRow(name="neighbour", closed_forms={"send": terms.NEIGHBOUR}),
)
ALGORITHMS: Mapping[str, AlgorithmRow] = MappingProxyType({row.name: row for row in ROWS})


def row_of_alias(name: str) -> AlgorithmRow | None:
    """The algorithm that goes by this other name.

    >>> row_of_alias("nvls").name, row_of_alias("ring")
    ('in-switch', None)
    """
    return next((row for row in ROWS if name in row.aliases), None)


def closed_forms(kind: PricedKind) -> tuple[tuple[str, ClosedForm], ...]:
    """Name and closed form of every algorithm that prices this kind of collective.

    >>> [name for name, form in closed_forms("all-gather")]
    ['ring', 'split-rail', 'in-switch']
    """
    return tuple((row.name, row.closed_forms[kind]) for row in ROWS if kind in row.closed_forms)
