"""Turn columns of questions and the fitted numbers into seconds.

    T(W, L) = L + W + 2 s sqrt(W L)      bytes W cut into slices that cost L each (docs/concepts/collectives.md)
    Simple    the same and (k - 1) L, where NCCL leaves LL and LL128 (`protocols`): it starts later

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
    DeepEP         see `experts`
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ridgeline.core.arrays import Array, Mask
from ridgeline.core.units import DECIMAL
from ridgeline.cost.collectives.algorithms import TREE
from ridgeline.cost.library_times.experts import expert_seconds
from ridgeline.cost.library_times.parameters import BY_FAMILY, MEASURED_FAMILIES
from ridgeline.cost.library_times.protocols import exchange_is_simple, ring_is_simple
from ridgeline.cost.library_times.question import FAMILIES, HARNESSES, KINDS, NETWORKS, SOFTWARE, Columns

MICRO, GIGA = DECIMAL["u"], DECIMAL["G"]
Values = Mapping[str, float]
TREE_LOW = 3.8  # times the bytes' time that a tree takes with LL, by NCCL's tuner
MOST_FOR_SWITCH = 8  # ranks of a domain that meet in switches before a tree: racks of 72 are measured as rings
LEAST_FOR_SWITCH = 6  # ranks: NCCL takes a ring for five B200 and switches for six
SHARP = 4.0  # of the corner between a launch's time and a collective's


def library_seconds(columns: Columns, values: Values) -> Array:
    """Seconds of every question under some numbers."""
    link = Linked(columns, values)
    is_software = {name: columns.software == index for index, name in enumerate(SOFTWARE)}
    found = _nccl(columns, link)
    found = np.where(is_software["mscclpp"], _planned(columns, link), found)
    found = np.where(is_software["trtllm"], np.minimum(_one_shot(columns, link), found), found)
    if (columns.tokens > 0).any():
        found = np.where(columns.tokens > 0, expert_seconds(columns, values), found)
    floor = _floor(columns, values)
    return np.where(floor > 0, (found**SHARP + floor**SHARP) ** (1 / SHARP), found)


def harness_floor(columns: Columns, values: Values) -> Array:
    """Seconds below which what measured a row sees itself."""
    return _floor(columns, values)


class Linked:
    """Numbers by row: those of its family, in seconds and bytes per second."""

    def __init__(self, columns: Columns, values: Values) -> None:
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
    def _by_family(columns: Columns, values: Values, name: str) -> Array:
        known = [values[f"{name}.{family}" if family in MEASURED_FAMILIES else name] for family in FAMILIES]
        return np.array(known)[columns.family]

    def sliced(self, wire: Array, each: Array) -> Array:
        """T(W, L)."""
        total: Array = each + wire + 2 * self.values["slices"] * np.sqrt(wire * each)
        return total

    def by_protocol(self, wire: Array, simple: Mask, later: float) -> Array:
        """T(W, L), and where protocol Simple is taken what that starts later, in times of a start."""
        total: Array = self.sliced(wire, self.start) + np.where(simple, (later - 1) * self.start, 0.0)
        return total


def _by_host(columns: Columns, values: Values, name: str, blank: float) -> Array:
    """A number of the host that joins a row's PCIe slots."""
    known = {host: values.get(f"{name}.{host}", blank) for host in set(columns.path)}
    return np.array([known[host] for host in columns.path])


def _nccl(columns: Columns, link: Linked) -> Array:
    reduces = columns.kind == KINDS.index("all-reduce")
    found = _ring(columns, link, np.where(reduces, 2.0, 1.0))
    across = reduces & (columns.domains > 1)
    if across.any():
        found = np.where(across, np.minimum(found, _tree(columns, link)), found)
    switched = reduces & columns.in_switch & (columns.inside >= LEAST_FOR_SWITCH)
    switched &= (columns.domains == 1) | (columns.inside <= MOST_FOR_SWITCH)
    found = np.where(switched, np.minimum(found, _in_switch(columns, link)), found)
    return np.where(columns.kind == KINDS.index("all-to-all"), _exchange(columns, link), found)


def _double_tree(columns: Columns, link: Linked) -> Array:
    """Seconds of the bytes that the busiest domain of a double binary tree sends.

    Half of P goes through each tree. A domain is a leaf of one (P/2 up) and inside the other (P/2 up, P/2 down to each
    of two children): 2 P. Of two domains each is a leaf once and a root with one child once: P.
    """
    times = np.where(columns.domains > 2, 2.0, np.where(columns.domains > 1, 1.0, 0.0))
    seconds: Array = times * columns.size / (columns.exits * link.out)
    return seconds


def _ring(columns: Columns, link: Linked, times: Array) -> Array:
    share = times * columns.size * (1 - 1 / columns.ranks)
    inner = share / link.up + columns.size / link.copy
    outer = np.where(columns.domains > 1, share / (columns.exits * link.out), 0.0)
    racks = (columns.inside > MOST_FOR_SWITCH) & (columns.kind == KINDS.index("all-reduce"))
    outer = np.where(racks, _double_tree(columns, link), outer)
    wire = np.maximum(np.where(columns.inside > 1, inner, 0.0), outer)
    hops = (columns.ranks - columns.domains) * link.hop + (columns.domains - 1) * link.out_hop
    simple = ring_is_simple(columns, times)
    return link.by_protocol(wire, simple, link.values["simple_start"]) + times * hops


def _climb(columns: Columns, link: Linked) -> Array:
    return 2 * np.log2(columns.domains) * link.out_hop


def _tree(columns: Columns, link: Linked) -> Array:
    """The quicker of two protocols: short hops at a share of the rate (LL), or long hops at nearly all of it."""
    inner = np.where(columns.inside > 1, 2 * columns.size / link.up, 0.0)
    wire = np.maximum(inner, _double_tree(columns, link)) / TREE
    chain, climb = 2 * (columns.inside - 1), _climb(columns, link)
    low = link.sliced(wire * TREE_LOW, link.start + chain * link.hop + climb)
    simple = link.sliced(wire, link.start + chain * link.values["tree_hop"] * MICRO + climb)
    return np.minimum(low, simple)


def _in_switch(columns: Columns, link: Linked) -> Array:
    inner = columns.size * (1 + 1 / columns.inside) / (link.up * link.values["switch_rate"])
    wire = np.maximum(inner, _double_tree(columns, link))
    return link.sliced(wire, link.start + _climb(columns, link)) + link.values["switch_start"] * MICRO


def _exchange(columns: Columns, link: Linked) -> Array:
    peers = np.maximum(columns.inside - 1, 1.0)
    up = np.minimum(link.up, peers * link.values["peer"] * GIGA)
    inner = columns.size * (columns.inside - 1) / columns.ranks / up + columns.size / link.copy
    wire = np.maximum(inner, columns.size * (1 - 1 / columns.domains) / link.out)
    beyond = np.where(columns.domains > 1, link.out_hop + (columns.ranks - columns.inside) * link.hop, 0.0)
    taken = link.by_protocol(wire, exchange_is_simple(columns), link.values["peer_start"])
    return taken + link.values["exchange"] * MICRO + beyond


def _planned(columns: Columns, link: Linked) -> Array:
    """MSCCL++: kernels that were written for the machine."""
    one = columns.size * (1 + 1 / columns.inside) / (link.up * link.values["switch_rate"])
    inner = 4 * columns.size * (1 - 1 / columns.inside) / link.up  # reduce-scatter, all-gather; packets carry half data
    outer = 2 * columns.size / columns.inside * (columns.domains - 1) / link.out
    wire = np.where(columns.domains > 1, inner + outer + link.out_hop, one)
    return link.values["plan_start"] * MICRO + wire


def _one_shot(columns: Columns, link: Linked) -> Array:
    values = link.values
    wire = columns.size * (columns.ranks - 1) / (columns.link * values["one_shot"])
    total: Array = values["one_shot_start"] * link.start + wire
    return total


def _floor(columns: Columns, values: Values) -> Array:
    by_harness = [0.0 * columns.ranks, values["launch"] * columns.ranks, values["profiler"] + 0.0 * columns.ranks]
    assert len(by_harness) == len(HARNESSES)
    return np.choose(columns.harness, by_harness) * MICRO
