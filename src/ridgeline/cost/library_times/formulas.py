"""Turn columns of questions and the fitted numbers into seconds.

    T(W, L) = L + W + 2 s sqrt(W L)      bytes W cut into slices that cost L each (docs/concepts/collectives.md)
    Simple    the same and (k - 1) L, where NCCL leaves LL and LL128: it starts later

W = seconds of the bytes on the slowest link, P = size, R = ranks, r = inside a domain, n = domains, E = exits of a
domain, c = the rate at which a rank moves its own bytes:

    ring           W = max(f P / link + P / c, f P / (E port)),  f = (R-1)/R; all-reduce: twice
    tree           2 P, up and down, the way through the tree in L; between domains t P / (E port): a double binary
                   tree sends t = 2 through a domain inside it, 1 where there are but two
    in-switch      P (1 + 1/r) at the switches' rate, between domains as a tree
    racks          domains of more than eight: all-reduce as a ring inside and a tree between
    all-to-all     f P / min(link, peers x channels of one peer)
    one-shot       P (R-1) / link, every rank to every other (TensorRT-LLM)
    MSCCL++        in-switch without slices; between domains packets, twice the bytes, one exchange
    DeepEP         a token goes once to every rank that has an expert of it: N (1 - (1-1/N)^k) of N ranks that it may
                   reach; between domains once to every domain, then over links inside, both at once. Between domains
                   few cores forward all bytes: their time if that is longer. Version 2: the same with cores to spare
    low latency    every copy travels by itself, out of the domain through its own port: max of the two

What stays on a rank itself is not sent; DeepEP's own GB/s count it (`counted_bytes`). NCCL's protocol is the one that
its tuner's costs choose, not the one that takes least time: near the crossing a library may be slower than it could be.

    ring        launch + steps hop + size steps / (R rate)    LL at half of a link's rate, LL128 at 0.92 of it, Simple
                at all of it; steps = R-1, twice for an all-reduce (`comm.libraries.nccl.toml`)
    exchange    LL up to 16 KiB for a peer (NCCL_P2P_LL_THRESHOLD), Simple beyond
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import MappingProxyType

import numpy as np

from ridgeline.comm.closed_form import TREE, exchange_bytes, in_switch_bytes, ring_bytes
from ridgeline.comm.libraries import PCI_SHARE, constants
from ridgeline.core.arrays import Array, Mask
from ridgeline.core.records import dataclass
from ridgeline.core.units import BINARY, DECIMAL
from ridgeline.cost.collectives import ALL_TO_ALL, bare_links, collective_seconds
from ridgeline.cost.collectives import KINDS as CLOSED_KINDS
from ridgeline.cost.library_times.question import (
    FAMILIES,
    HARNESSES,
    KINDS,
    NETWORKS,
    SOFTWARE,
    CollectiveQuestion,
    QuestionColumns,
    QuestionKind,
    describes,
    question_columns,
)
from ridgeline.cost.machine import Machines

SHIPPED_LIBRARY_TIMES = Path(__file__).parent / "parameters.json"  # as `ridgeline fit --collectives` wrote it
MICRO, GIGA = DECIMAL["u"], DECIMAL["G"]
Values = Mapping[str, float]
TREE_LOW = 3.8  # times the bytes' time that a tree takes with LL, by NCCL's tuner
MOST_FOR_SWITCH = 8  # ranks of a domain that meet in switches before a tree: racks of 72 are measured as rings
LEAST_FOR_SWITCH = 6  # ranks: NCCL takes a ring for five B200 and switches for six
PEER_LOW = 16 * BINARY["Ki"]  # bytes to a peer: NCCL_P2P_LL_THRESHOLD
LL_SHARE, LL128_SHARE = 0.5, 0.92  # of a ring's rate, as the tuner has them
UNKNOWN = "ampere"  # generation whose constants the tuner takes for chips that it does not know
WIDE = 4  # domains a token goes to, which DeepEP's normal kernels are made for
SHARP = 4.0  # of the corner between a launch's time and a collective's


@dataclass(frozen=True, slots=True, kw_only=True)
class LibraryPrior:
    """What is believed of a number before any row: its value, and by which factor (as a logarithm) it may be off."""

    value: float
    spread: float
    unit: str
    what: str


def _priors(kind: str) -> Mapping[str, LibraryPrior]:
    rows = json.loads((Path(__file__).parent / "priors.json").read_text(encoding="utf-8"))[kind]
    return MappingProxyType({name: LibraryPrior(**row) for name, row in rows.items()})


# one number for all families, and one for each that was measured, drawn to it by the spread
BY_FAMILY, PRIORS = _priors("by_family"), _priors("all")
MEASURED_FAMILIES = ("ampere", "hopper", "blackwell", "pcie")


@dataclass(frozen=True, slots=True, kw_only=True)
class LibraryParameters:
    """The numbers by name, in the units of their priors; and by system those of a fit that has not seen it."""

    values: Mapping[str, float]
    folds: Mapping[str, Mapping[str, float]]


def prior_values() -> dict[str, float]:
    """Every number that is fitted as it is believed before any row: of all families, of each family, and the rest."""
    families = {f"{name}.{family}": prior for name, prior in BY_FAMILY.items() for family in MEASURED_FAMILIES}
    return {name: prior.value for name, prior in {**BY_FAMILY, **families, **PRIORS}.items()}


@cache
def shipped_parameters() -> LibraryParameters:
    """What comes with Ridgeline."""
    data = json.loads(SHIPPED_LIBRARY_TIMES.read_text(encoding="utf-8"))
    folds = {system: MappingProxyType(values) for system, values in data["without"].items()}
    return LibraryParameters(values=MappingProxyType(data["all"]), folds=MappingProxyType(folds))


def library_seconds(columns: QuestionColumns, values: Values) -> Array:
    """Seconds of every question under some numbers."""
    link = LinkParams(columns, values)
    is_software = {name: columns.software == index for index, name in enumerate(SOFTWARE)}
    seconds = _nccl(columns, link)
    seconds = np.where(is_software["mscclpp"], _planned_seconds(columns, link), seconds)
    seconds = np.where(is_software["trtllm"], np.minimum(_one_shot(columns, link), seconds), seconds)
    if (columns.tokens > 0).any():
        seconds = np.where(columns.tokens > 0, expert_seconds(columns, values), seconds)
    floor = harness_floor(columns, values)
    return np.where(floor > 0, (seconds**SHARP + floor**SHARP) ** (1 / SHARP), seconds)


class LinkParams:
    """Numbers by row: those of its family, in seconds and bytes per second."""

    def __init__(self, columns: QuestionColumns, values: Values) -> None:
        start, rate, copy = (self._by_family(columns, values, name) for name in BY_FAMILY)
        pcie = columns.family == FAMILIES.index("pcie")
        share = _by_host(columns, values, "many", values["many"])
        share = np.where(columns.ranks > 2, share, 1.0) * values["pcie_rate"]
        self.start = start * MICRO * np.where(columns.old, values["old"], 1.0)
        self.up = columns.link * np.where(pcie, share, rate)
        self.copy = np.where(pcie, np.inf, columns.link * copy)
        total = _by_host(columns, values, "path", np.inf) * GIGA
        self.up = np.where(columns.ranks > 2, np.minimum(self.up, total / columns.ranks), self.up)
        efa = columns.network == NETWORKS.index("efa")
        self.out = columns.out * np.where(efa, values["efa_rate"], values["out_rate"])
        self.hop = values["hop"] * MICRO
        self.out_hop = (values["out_hop"] + np.where(efa, values["efa_hop"], 0.0)) * MICRO
        self.values = values

    @staticmethod
    def _by_family(columns: QuestionColumns, values: Values, name: str) -> Array:
        family_values = [values[f"{name}.{family}" if family in MEASURED_FAMILIES else name] for family in FAMILIES]
        return np.array(family_values)[columns.family]

    def sliced_seconds(self, wire: Array, each: Array) -> Array:
        """T(W, L)."""
        total: Array = each + wire + 2 * self.values["slices"] * np.sqrt(wire * each)
        return total

    def by_protocol(self, wire: Array, simple: Mask, later: float) -> Array:
        """T(W, L), and where protocol Simple is taken what that starts later, in times of a start."""
        total: Array = self.sliced_seconds(wire, self.start) + np.where(simple, (later - 1) * self.start, 0.0)
        return total


def _by_host(columns: QuestionColumns, values: Values, name: str, blank: float) -> Array:
    """A number of the host that joins a row's PCIe slots."""
    host_values = {host: values.get(f"{name}.{host}", blank) for host in set(columns.path)}
    return np.array([host_values[host] for host in columns.path])


def _nccl(columns: QuestionColumns, link: LinkParams) -> Array:
    """The fastest of what NCCL has, by the names of the algorithm table."""
    best: Array | None = None
    for form, offer in NCCL_FORMS.values():
        rows = offer(columns)
        if rows.any():
            seconds = np.where(rows, form(columns, link), np.inf)
            best = seconds if best is None else np.minimum(best, seconds)
    assert best is not None
    return best


def _double_tree(columns: QuestionColumns, link: LinkParams) -> Array:
    """Seconds of the bytes that the busiest domain of a double binary tree sends.

    Half of P goes through each tree. A domain is a leaf of one (P/2 up) and inside the other (P/2 up, P/2 down to each
    of two children): 2 P. Of two domains each is a leaf once and a root with one child once: P.
    """
    times = np.where(columns.domains > 2, 2.0, np.where(columns.domains > 1, 1.0, 0.0))
    seconds: Array = times * columns.size / (columns.exits * link.out)
    return seconds


def _ring(columns: QuestionColumns, link: LinkParams) -> Array:
    times = np.where(columns.kind == KINDS.index("all-reduce"), 2.0, 1.0)
    share = times * ring_bytes(columns.size, columns.ranks)
    inner = share / link.up + columns.size / link.copy
    outer = np.where(columns.domains > 1, share / (columns.exits * link.out), 0.0)
    racks = (columns.inside > MOST_FOR_SWITCH) & (columns.kind == KINDS.index("all-reduce"))
    outer = np.where(racks, _double_tree(columns, link), outer)
    wire = np.maximum(np.where(columns.inside > 1, inner, 0.0), outer)
    hops = (columns.ranks - columns.domains) * link.hop + (columns.domains - 1) * link.out_hop
    simple = ring_is_simple(columns, times)
    return link.by_protocol(wire, simple, link.values["simple_start"]) + times * hops


def _climb(columns: QuestionColumns, link: LinkParams) -> Array:
    return 2 * np.log2(columns.domains) * link.out_hop


def _tree(columns: QuestionColumns, link: LinkParams) -> Array:
    """The quicker of two protocols: short hops at a share of the rate (LL), or long hops at nearly all of it."""
    inner = np.where(columns.inside > 1, 2 * columns.size / link.up, 0.0)
    wire = np.maximum(inner, _double_tree(columns, link)) / TREE
    chain, climb = 2 * (columns.inside - 1), _climb(columns, link)
    low = link.sliced_seconds(wire * TREE_LOW, link.start + chain * link.hop + climb)
    simple = link.sliced_seconds(wire, link.start + chain * link.values["tree_hop"] * MICRO + climb)
    return np.minimum(low, simple)


def _in_switch(columns: QuestionColumns, link: LinkParams) -> Array:
    inner = in_switch_bytes(columns.size, columns.inside) / (link.up * link.values["switch_rate"])
    wire = np.maximum(inner, _double_tree(columns, link))
    return link.sliced_seconds(wire, link.start + _climb(columns, link)) + link.values["switch_start"] * MICRO


def _exchange(columns: QuestionColumns, link: LinkParams) -> Array:
    peers = np.maximum(columns.inside - 1, 1.0)
    up = np.minimum(link.up, peers * link.values["peer"] * GIGA)
    inner = exchange_bytes(columns.size, columns.inside, columns.ranks) / up + columns.size / link.copy
    wire = np.maximum(inner, columns.size * (1 - 1 / columns.domains) / link.out)
    beyond = np.where(columns.domains > 1, link.out_hop + (columns.ranks - columns.inside) * link.hop, 0.0)
    simple: Mask = columns.size / columns.ranks > PEER_LOW  # messages too long for LL
    seconds = link.by_protocol(wire, simple, link.values["peer_start"])
    return seconds + link.values["exchange"] * MICRO + beyond


def _is_kind(columns: QuestionColumns, kind: QuestionKind) -> Mask:
    mask: Mask = columns.kind == KINDS.index(kind)
    return mask


def _has_switch(columns: QuestionColumns) -> Mask:
    meets: Mask = (columns.domains == 1) | (columns.inside <= MOST_FOR_SWITCH)
    large: Mask = columns.inside >= LEAST_FOR_SWITCH
    return _is_kind(columns, "all-reduce") & columns.in_switch & large & meets


LibraryForm = Callable[[QuestionColumns, LinkParams], Array]
NCCL_FORMS: Mapping[str, tuple[LibraryForm, Callable[[QuestionColumns], Mask]]] = MappingProxyType(
    {
        "ring": (_ring, lambda columns: ~_is_kind(columns, "all-to-all")),
        "double-tree": (_tree, lambda columns: _is_kind(columns, "all-reduce") & (columns.domains > 1)),
        "in-switch": (_in_switch, _has_switch),
        "all-pairs": (_exchange, lambda columns: _is_kind(columns, "all-to-all")),
    }
)
"""Name in the algorithm table -> fitted seconds, and the rows that NCCL takes it for."""


def _planned_seconds(columns: QuestionColumns, link: LinkParams) -> Array:
    """MSCCL++: kernels that were written for the machine."""
    one_switch = in_switch_bytes(columns.size, columns.inside) / (link.up * link.values["switch_rate"])
    inner = (
        4 * ring_bytes(columns.size, columns.inside) / link.up
    )  # reduce-scatter, all-gather; packets carry half data
    outer = 2 * columns.size / columns.inside * (columns.domains - 1) / link.out
    wire = np.where(columns.domains > 1, inner + outer + link.out_hop, one_switch)
    return link.values["plan_start"] * MICRO + wire


def _one_shot(columns: QuestionColumns, link: LinkParams) -> Array:
    values = link.values
    wire = columns.size * (columns.ranks - 1) / (columns.link * values["one_shot"])
    total: Array = values["one_shot_start"] * link.start + wire
    return total


def benchmark_seconds(questions: Sequence[CollectiveQuestion]) -> Array:
    """Seconds that a benchmark of each question measures, by the shipped numbers.

    Meshes, tori and libraries that go level by level take the closed forms of steps, the chips to themselves.
    """
    seconds = np.zeros(len(questions))
    is_described = np.array([describes(question.system) for question in questions], np.bool_)
    described = [question for question, is_known in zip(questions, is_described, strict=True) if is_known]
    other = [question for question, is_known in zip(questions, is_described, strict=True) if not is_known]
    if described:
        seconds[is_described] = library_seconds(question_columns(described), shipped_parameters().values)
    seconds[~is_described] = bare_link_seconds(other)
    return seconds


def bare_link_seconds(questions: Sequence[CollectiveQuestion]) -> Array:
    """Seconds of each question by the closed forms that steps are priced with, the chips to themselves."""
    if not questions:
        return np.zeros(0)
    links = bare_links(Machines.of([question.system for question in questions]))
    topology = links.topology
    if topology.in_switch is not None:
        able = topology.in_switch * np.array([question.in_switch for question in questions])
        links = replace(links, topology=replace(topology, in_switch=able))
    columns = [[getattr(question, name) for question in questions] for name in ("size", "ranks", "stride")]
    size, ranks, stride = (np.array(column, dtype=np.float64) for column in columns)
    kinds = np.array([CLOSED_KINDS.get(question.kind, ALL_TO_ALL) for question in questions], dtype=np.int64)
    return collective_seconds(kinds, size, ranks, stride, links)


def harness_floor(columns: QuestionColumns, values: Values) -> Array:
    """Seconds below which what measured a row sees itself."""
    by_harness = [0.0 * columns.ranks, values["launch"] * columns.ranks, values["profiler"] + 0.0 * columns.ranks]
    assert len(by_harness) == len(HARNESSES)
    return np.choose(columns.harness, by_harness) * MICRO


def ring_is_simple(columns: QuestionColumns, times: Array) -> Mask:
    """Whether the tuner takes protocol Simple for a ring inside one domain; `times` its steps are 2 or 1 times R-1.

    Between domains rings are priced by their ports and hops alone: False.
    """
    low, wide, simple = _tuner_costs(columns, times)
    is_simple: Mask = (simple < np.minimum(low, wide)) & (columns.domains == 1)
    return is_simple


def _tuner_costs(columns: QuestionColumns, times: Array) -> tuple[Array, Array, Array]:
    """What the tuner expects of LL, LL128 and Simple, in seconds."""
    launch = constants()["launch_us"]["ring"]
    steps = times * (columns.ranks - 1)
    share, cap, hops = (table[columns.family] for table in _by_family())
    rate = columns.link * share
    rates = (np.minimum(cap, rate * LL_SHARE), rate * LL128_SHARE, rate)
    low, wide, simple = (
        (launch[index] + steps * hops[:, index]) * MICRO + columns.size * steps / (columns.ranks * rates[index])
        for index in range(3)
    )
    return low, np.where(columns.family == FAMILIES.index("pcie"), np.inf, wide), simple


@cache
def _by_family() -> tuple[Array, Array, Array]:
    """Of each family: NCCL's rate of a link over the data sheet's, the most that LL reaches, hops by protocol."""
    family_constants = constants()
    generations = [
        family_constants["generation"][name if name in family_constants["generation"] else UNKNOWN] for name in FAMILIES
    ]
    pci = np.array([name == "pcie" for name in FAMILIES])
    shares = np.where(pci, PCI_SHARE, [generation["link_share"] for generation in generations])
    caps = np.array([generation["ll_one_node"] for generation in generations]) * GIGA
    hops = np.array([family_constants["hop_us"]["pci" if is_pci else "nvlink"]["ring"] for is_pci in pci])
    return shares, caps, hops


def distinct(places: Array, copies: Array) -> Array:
    """Different places that so many copies of a token reach, each place being as likely.

    >>> round(float(distinct(np.array(8.0), np.array(8.0))), 2)
    5.25
    """
    expected_places: Array = places * (1 - (1 - 1 / places) ** copies)
    return expected_places


def counted_bytes(columns: QuestionColumns) -> Array:
    """Bytes that DeepEP's own GB/s count for one rank, what stays on it or in its domain included."""
    rank_bytes = columns.tokens * columns.token_bytes
    quick = columns.software == SOFTWARE.index("deepep-ll")
    once = np.where(columns.domains > 1, distinct(columns.reach, columns.top_k), _ranks_reached(columns))
    return rank_bytes * np.where(quick, columns.top_k, once)


def _ranks_reached(columns: QuestionColumns) -> Array:
    return distinct(columns.reach * columns.inside, columns.top_k)


def expert_seconds(columns: QuestionColumns, values: Mapping[str, float]) -> Array:
    """Seconds of dispatch or combine."""
    rank_bytes = columns.tokens * columns.token_bytes
    up = rank_bytes * _ranks_reached(columns) * (1 - 1 / columns.inside)
    out = rank_bytes * distinct(columns.reach, columns.top_k) * (1 - 1 / columns.domains)
    wide = np.where(columns.reach > WIDE, values["expert_wide"], 1.0)
    up_s, out_s = up / (columns.link * values["expert_rate"]), out * wide / (columns.out * values["expert_out"])
    start = values["expert_start"] * MICRO
    second = start + np.maximum(up_s, out_s)
    cores_s = np.where(columns.domains > 1, (up + out) / (columns.cores * values["expert_core"] * GIGA), 0.0)
    normal = np.maximum(second, start + cores_s)
    return np.choose(
        np.clip(columns.software - SOFTWARE.index("deepep"), 0, 2), [normal, second, _quick(columns, values)]
    )


def _quick(columns: QuestionColumns, values: Mapping[str, float]) -> Array:
    copied_bytes = columns.tokens * columns.token_bytes * columns.top_k
    up_s = copied_bytes * (columns.inside - 1) / columns.ranks / (columns.link * values["quick_rate"])
    out_s = copied_bytes * (1 - columns.inside / columns.ranks) / (columns.out * values["expert_out"])
    start = values["quick_start"] + np.where(columns.domains > 1, values["quick_hop"], 0.0)
    return start * MICRO + np.maximum(up_s, out_s)
