"""A topology as a graph: nodes joined by directed links of a rate and a latency; links and nodes can be taken away.

Ranks are nodes 0 to ranks - 1, row-major on a grid; nodes after them are switches. A full-duplex link is two directed
ones. A rank that was taken away is no node any more: the others close ranks, and `labels` keeps their old numbers.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ridgeline.core.arrays import Array, Index, Mask
from ridgeline.core.errors import InputError, Problem
from ridgeline.core.units import parse_quantity

if TYPE_CHECKING:
    from scipy.sparse import csr_array

DENSE_PAIRS = 1 << 24  # pairs of nodes up to which their links are kept as a table
DENSE_KEYS = 1 << 26  # keys up to which they are numbered by a table, not by sorting
QUANTITY_LIMITS = {"B": (0.0, 1e18), "B/s": (1.0, 1e18), "s": (0.0, 1e6)}  # of sizes, rates and latencies
_SLOW = re.compile(r"(?:link:(\d{1,8})-(\d{1,8})|node:(\d{1,8})):(\d{1,4}(?:\.\d{1,9})?)")
_WITHOUT = re.compile(r"(?:link:(\d{1,8})-(\d{1,8})|node:(\d{1,8}))")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Graph:
    """Directed links as columns; what is known of the shape, for algorithms that use it.

    shape, wraps   of a mesh or torus that is whole: its sides, and which of them close
    domain         ranks of one scale-up domain where there are several (0: one flat network)
    groups         sizes of groups of consecutive ranks that differ: domains that lost some of their ranks
    reducing       a switch that all ranks reach and that adds up what passes (NVLS, SHARP); -1: none
    labels         the rank's number before others were taken away
    """

    name: str
    ranks: int
    nodes: int
    tail: Index
    head: Index
    bytes_per_s: Array
    latency_s: Array
    shape: tuple[int, ...] = ()
    wraps: tuple[bool, ...] = ()
    domain: int = 0
    groups: tuple[int, ...] = ()
    reducing: int = -1
    labels: tuple[int, ...] = ()

    @property
    def links(self) -> int:
        """Directed links."""
        return len(self.tail)

    @property
    def direct(self) -> bool:
        """Whether ranks are linked to each other without switches."""
        return self.nodes == self.ranks

    @property
    def uniform(self) -> bool:
        """Whether all links are of one rate and one latency."""
        return bool(np.ptp(self.bytes_per_s) == 0 and np.ptp(self.latency_s) == 0) if self.links else True

    def out_bytes_per_s(self) -> Array:
        """Bytes per second that leave each node."""
        return sums_by(self.tail, self.bytes_per_s, self.nodes)

    def in_bytes_per_s(self) -> Array:
        """Bytes per second that reach each node."""
        return sums_by(self.head, self.bytes_per_s, self.nodes)


def sums_by(index: Index, values: Array, size: int) -> Array:
    """Sums of values by an index."""
    return np.bincount(index, values, size).astype(np.float64)


def link_matrix(graph: Graph, length: Array | None = None, *, turned: bool = False) -> csr_array:
    """The graph as a matrix of the lengths of its links, 1 each where none are given; `turned`: from head to tail."""
    from scipy.sparse import coo_array

    ends = (graph.head, graph.tail) if turned else (graph.tail, graph.head)
    lengths = np.ones(graph.links) if length is None else length
    return coo_array((lengths, ends), shape=(graph.nodes, graph.nodes)).tocsr()


@lru_cache(maxsize=2)
def link_table(graph: Graph) -> NDArray[np.int32]:
    """By tail * nodes + head the number of the link there, -1 where there is none; nothing of very large graphs."""
    table = np.full(graph.nodes**2 if graph.nodes**2 <= DENSE_PAIRS else 0, -1, np.int32)
    if len(table):
        table[graph.tail * graph.nodes + graph.head] = np.arange(graph.links)
    return table


def links_between(graph: Graph, tail: Index, head: Index) -> Index:
    """The link from each node to another, -1 where there is none."""
    table, key = link_table(graph), tail * graph.nodes + head
    if len(table):
        links: Index = table[key].astype(np.int64)
        return links
    keys = graph.tail * graph.nodes + graph.head
    order = np.argsort(keys)
    at = order[np.minimum(np.searchsorted(keys, key, sorter=order), graph.links - 1)]
    return np.where(keys[at] == key, at, -1)


def number_keys(keys: Index, limit: int) -> tuple[Index, NDArray[np.int32]]:
    """The distinct keys in order, and the number of each entry's; by a table where keys are below a small limit."""
    if limit > DENSE_KEYS or not len(keys):
        distinct_keys, number = np.unique(keys, return_inverse=True)
        return distinct_keys.astype(np.int64), number.astype(np.int32)
    is_used = np.zeros(limit, np.bool_)
    is_used[keys] = True
    distinct_keys = np.flatnonzero(is_used)
    table = np.zeros(limit, np.int32)
    table[distinct_keys] = np.arange(len(distinct_keys), dtype=np.int32)
    return distinct_keys, table[keys]


def ranges(low: Index, count: Index) -> Index:
    """low[0], low[0] + 1, ... count[0] of them, then those of the next."""
    if (count == 1).all():
        return low
    ends = np.cumsum(count)
    total = int(ends[-1]) if len(ends) else 0
    return np.repeat(low - (ends - count), count) + np.arange(total)


def graph_of(name: str, ranks: int, nodes: int, links: Iterable[tuple[Index, Index, float, float]]) -> Graph:
    """A graph of full-duplex links as groups (ends, other ends, bytes/s a direction, seconds); equal ones add up."""
    parts = [(np.ravel(a), np.ravel(b), rate, latency) for a, b, rate, latency in links]
    ones = np.concatenate([a for a, *_ in parts] + [b for _, b, *_ in parts]).astype(np.int64)
    heads = np.concatenate([b for _, b, *_ in parts] + [a for a, *_ in parts]).astype(np.int64)
    rate = np.concatenate([np.full(len(a), rate) for a, _, rate, _ in parts] * 2)
    latency = np.concatenate([np.full(len(a), latency) for a, *_, latency in parts] * 2)
    key, index = np.unique(ones * nodes + heads, return_inverse=True)
    fastest_rate = np.zeros(len(key))
    np.maximum.at(fastest_rate, index, latency)
    return Graph(
        name=name,
        ranks=ranks,
        nodes=nodes,
        tail=key // nodes,
        head=key % nodes,
        bytes_per_s=sums_by(index, rate, len(key)),
        latency_s=fastest_rate,
    )


def without(graph: Graph, removed: Iterable[str]) -> Graph:
    """The graph less some links and ranks: `link:3-4` (both directions), `node:5`; refused where it falls apart."""
    gone = list(removed)
    if not gone:
        return graph
    keep, alive = np.ones(graph.links, np.bool_), np.ones(graph.nodes, np.bool_)
    for text in gone:
        match = _WITHOUT.fullmatch(text)
        if match is None:
            raise wrong_graph(repr(text), "link:A-B or node:A with ranks or switches by number")
        a, b, node = match.groups()
        if node is not None:
            alive[_known_node(graph, int(node))] = False
        else:
            keep &= ~_links_between(graph, text, [int(a), int(b)])
    keep &= alive[graph.tail] & alive[graph.head]
    remaining = _renumber(graph, keep, alive, " ".join(["without", *gone]))
    refuse_disconnected(remaining)
    return remaining


def slow_links(graph: Graph, parts: Iterable[str]) -> Graph:
    """The graph with some links of another rate: `link:3-4:0.5` (both directions), `node:5:0.25` (all its links)."""
    part_texts = list(parts)
    if not part_texts:
        return graph
    rate = graph.bytes_per_s.copy()
    for text in part_texts:
        match = _SLOW.fullmatch(text)
        factor = float(match.group(4)) if match else 0.0
        if match is None or not 0 < factor <= 1000:
            raise wrong_graph(repr(text), "link:A-B:FACTOR or node:A:FACTOR with a factor above 0 of its rate")
        rate[_links_between(graph, text, [int(end) for end in match.groups()[:3] if end is not None])] *= factor
    slower_graph = replace(graph, name=" ".join([graph.name, "with", *part_texts]), bytes_per_s=rate)
    return slower_graph if slower_graph.uniform else replace(slower_graph, shape=(), wraps=())


def _links_between(graph: Graph, text: str, ends: list[int]) -> Mask:
    """The links between two nodes, or all of one; refused where there is none."""
    nodes = [_known_node(graph, end) for end in ends]
    tail, head = np.isin(graph.tail, nodes), np.isin(graph.head, nodes)
    hit: Mask = tail & head if len(ends) > 1 else tail | head
    if not hit.any():
        linked = ", ".join(map(str, graph.head[graph.tail == ends[0]][:8]))
        given_text, todo = f"{text}, which {graph.name} does not have", f"node {ends[0]} is linked to {linked}"
        raise wrong_graph(given_text, "a link of it", todo)
    return hit


def _known_node(graph: Graph, node: int) -> int:
    if node >= graph.nodes:
        raise wrong_graph(f"node {node}", f"0 to {graph.nodes - 1} in {graph.name}")
    return node


def _renumber(graph: Graph, keep: np.ndarray, alive: np.ndarray, note: str) -> Graph:
    number = np.cumsum(alive) - 1
    labels = graph.labels or tuple(range(graph.ranks))
    return replace(
        graph,
        name=f"{graph.name} {note}",
        ranks=int(alive[: graph.ranks].sum()),
        nodes=int(alive.sum()),
        tail=number[graph.tail[keep]],
        head=number[graph.head[keep]],
        bytes_per_s=graph.bytes_per_s[keep],
        latency_s=graph.latency_s[keep],
        shape=(),
        wraps=(),
        domain=graph.domain if alive[: graph.ranks].all() else 0,
        groups=_remaining_groups(graph, alive) if not alive[: graph.ranks].all() else graph.groups,
        reducing=int(number[graph.reducing]) if graph.reducing >= 0 and alive[graph.reducing] else -1,
        labels=tuple(label for label, lives in zip(labels, alive, strict=False) if lives),
    )


def _remaining_groups(graph: Graph, alive: np.ndarray) -> tuple[int, ...]:
    """How many ranks each domain or group has left."""
    sizes = graph.groups or (graph.domain,) * (graph.ranks // graph.domain if graph.domain else 0)
    if sum(sizes) != graph.ranks:
        return ()
    ends = np.cumsum(sizes)
    sizes_left = (int(alive[end - size : end].sum()) for size, end in zip(sizes, ends, strict=True))
    return tuple(size for size in sizes_left if size)


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkLoad:
    """A directed link and what it carries.

    source, target   node numbers; ranks first, then switches
    busy             its bytes over its rate, as a share of the collective's time
    """

    source: int
    target: int
    bytes: float
    busy: float


def link_load(graph: Graph, link: int, carried_bytes: float, busy: float) -> LinkLoad:
    """A link by its number, and what it carries."""
    return LinkLoad(source=int(graph.tail[link]), target=int(graph.head[link]), bytes=carried_bytes, busy=busy)


def group_ranks(graph: Graph, text: str) -> Graph:
    """The graph with its ranks in groups of the sizes given, as 2+3."""
    match = re.fullmatch(r"\d{1,6}(\+\d{1,6})+", text)
    sizes = tuple(int(part) for part in text.split("+")) if match else ()
    if not sizes or min(sizes) < 1 or sum(sizes) != graph.ranks:
        given_text = f"groups {text!r:.60}" + (f", together {sum(sizes)}" if sizes else "")
        raise wrong_graph(given_text, f"sizes that make {graph.ranks} ranks, as 2+3")
    return replace(graph, groups=sizes)


def refuse_disconnected(graph: Graph) -> None:
    """An `InputError` that names two ranks without a path between them, where there are such."""
    from scipy.sparse.csgraph import connected_components

    if graph.ranks < 1:
        raise wrong_graph(f"{graph.name}: no rank left", "at least one rank")
    _, label = connected_components(link_matrix(graph), directed=True, connection="strong")
    ranks_apart = np.flatnonzero(label[: graph.ranks] != label[0])
    if len(ranks_apart):
        labels = graph.labels or tuple(range(graph.ranks))
        given_text = f"{graph.name}, where no path joins ranks {labels[0]} and {labels[int(ranks_apart[0])]}"
        raise wrong_graph(given_text, "a connected graph", "take fewer links away")


def wrong_graph(given: str, expected: str, todo: str = "") -> InputError:
    """The refusal of a topology."""
    return refusal("topology", given, expected, todo=todo)


def refusal(path: str, given: str, expected: str, *, todo: str = "", where: str = "") -> InputError:
    """One problem of an input: where, what was given, what was expected, what to do."""
    return InputError(Problem(path=path, given=given, expected=expected, todo=todo, where=where))


def bytes_of(size: str | float) -> float:
    """A size in bytes, above 0; a number without a unit is one of bytes, as nccl-tests has it."""
    plain = isinstance(size, str) and size.strip().isdecimal() and len(size) < 20
    size_bytes = float(size) if plain else parsed_quantity(size, "B", "size")
    if not size_bytes > 0:
        raise refusal("size", str(size), "more than 0 bytes")
    return size_bytes


def parsed_quantity(value: str | float, unit: str, path: str) -> float:
    """A number, or what a user wrote of one; 0, or within what any network could have."""
    try:
        number = parse_quantity(value.replace("KB", "kB"), unit) if isinstance(value, str) else float(value)
    except InputError as wrong:  # "KB" is what nccl-tests' users write
        raise InputError([replace(problem, path=path) for problem in wrong.problems]) from None
    least, most = QUANTITY_LIMITS[unit]
    if number and not least <= number <= most:
        raise refusal(path, str(value)[:40], f"from {least:g} to {most:g} {unit}")
    return number
