"""The prefix cache of SGLang: a radix tree over token sequences, least recently used leaves evicted first.

A sequence is a tuple of runs (seed, start, tokens), so an edge of thousands of tokens is a few numbers. Locked nodes
(on the path of a running request) stay; the others count as evictable. Recency is a count of lookups, no clock.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence

Run = tuple[int, int, int]
Runs = tuple[Run, ...]


def length(runs: Iterable[Run]) -> int:
    """Tokens in a sequence."""
    return sum(run[2] for run in runs)


def cut(runs: Sequence[Run], tokens: int) -> tuple[Runs, Runs]:
    """The first `tokens` of a sequence, and the rest.

    >>> cut(((7, 0, 10), (8, 0, 5)), 12)
    (((7, 0, 10), (8, 0, 2)), ((8, 2, 3),))
    """
    head: list[Run] = []
    for place, (seed, start, count) in enumerate(runs):
        if tokens < count:
            if tokens:
                head.append((seed, start, tokens))
            return tuple(head), ((seed, start + tokens, count - tokens), *runs[place + 1 :])
        head.append((seed, start, count))
        tokens -= count
    return tuple(head), ()


def common(left: Runs, right: Runs) -> int:
    """How many tokens two sequences begin with alike."""
    same, i, j, a, b = 0, 0, 0, 0, 0
    while i < len(left) and j < len(right):
        one, two = left[i], right[j]
        if one[0] != two[0] or one[1] + a != two[1] + b:
            break
        step = min(one[2] - a, two[2] - b)
        same, a, b = same + step, a + step, b + step
        if a == one[2]:
            i, a = i + 1, 0
        if b == two[2]:
            j, b = j + 1, 0
    return same


class Node:
    """An edge of the tree and what hangs below it."""

    __slots__ = ("children", "key", "locks", "parent", "seen", "tokens")

    def __init__(self, key: Runs, parent: Node | None) -> None:
        self.key = key
        self.tokens = length(key)
        self.parent = parent
        self.children: dict[Runs, Node] = {}
        self.locks = 0
        self.seen = 0


class RadixCache:
    """Match, insert, lock, evict; `evictable` tokens are cached and held by nobody."""

    def __init__(self, page_size: int = 1) -> None:
        self.page = page_size
        self.root = Node((), None)
        self.root.locks = 1
        self.evictable = 0
        self._lookups = 0
        self._leaves: set[Node] = set()  # those that nobody holds
        self._oldest: list[tuple[int, int, Node]] = []  # heap of leaves by recency; entries may be out of date
        self._entries = 0

    def close(self) -> None:
        """Nodes and their parents refer to each other: part them, so that all are freed at once."""
        below = [self.root]
        while below:
            node = below.pop()
            below += node.children.values()
            node.children.clear()

    def _aligned(self, key: Runs) -> Runs:
        tokens = length(key)
        return key if tokens % self.page == 0 else cut(key, tokens // self.page * self.page)[0]

    def _first(self, key: Runs) -> Runs:
        """The first page of a key: what tells the children of a node apart."""
        return cut(key, self.page)[0]

    def _common(self, left: Runs, right: Runs) -> int:
        return common(left, right) // self.page * self.page

    def match(self, key: Runs) -> tuple[int, Node]:
        """(tokens, node) of the longest cached prefix in whole pages; splits the node that the match ends inside."""
        self._lookups += 1
        node, matched = self.root, 0
        key = self._aligned(key)
        node.seen = self._lookups
        while key and (child := node.children.get(self._first(key))) is not None:
            child.seen = self._lookups
            same = self._common(child.key, key)
            matched += same
            if same < child.tokens:
                return matched, self._split(child, same)
            node, key = child, cut(key, same)[1]
        return matched, node

    def insert(self, key: Runs) -> tuple[int, Node]:
        """(tokens that were there, last node) after a sequence is entered in whole pages."""
        self._lookups += 1
        node, present = self.root, 0
        key = self._aligned(key)
        node.seen = self._lookups
        while key and (child := node.children.get(self._first(key))) is not None:
            child.seen = self._lookups
            same = self._common(child.key, key)
            present += same
            key = cut(key, same)[1]
            node = self._split(child, same) if same < child.tokens else child
        if key:
            new = Node(key, node)
            new.seen = self._lookups
            node.children[self._first(key)] = new
            self.evictable += new.tokens
            self._leaves.discard(node)
            self._offer(new)
            node = new
        return present, node

    def _split(self, child: Node, tokens: int) -> Node:
        assert child.parent is not None
        head, rest = cut(child.key, tokens)
        new = Node(head, child.parent)
        new.locks, new.seen = child.locks, child.seen
        new.parent.children[self._first(child.key)] = new  # type: ignore[union-attr]
        child.key, child.tokens, child.parent = rest, child.tokens - tokens, new
        new.children[self._first(rest)] = child
        return new

    def lock(self, node: Node) -> None:
        """Hold the path to a node."""
        while node.parent is not None:
            if node.locks == 0:
                self.evictable -= node.tokens
                self._leaves.discard(node)
            node.locks += 1
            node = node.parent

    def unlock(self, node: Node) -> None:
        """Let go of it."""
        while node.parent is not None:
            node.locks -= 1
            if node.locks == 0:
                self.evictable += node.tokens
                if not node.children:
                    self._offer(node)
            node = node.parent

    def _offer(self, leaf: Node) -> None:
        """A leaf that nobody holds can be evicted."""
        self._leaves.add(leaf)
        self._entries += 1
        heapq.heappush(self._oldest, (leaf.seen, self._entries, leaf))

    def evict(self, tokens: int) -> int:
        """Drop whole leaves, least recently used first, until that many tokens are free; how many became free."""
        freed = 0
        while freed < tokens and self._oldest:
            seen, _, leaf = heapq.heappop(self._oldest)
            if leaf not in self._leaves:
                continue
            if seen != leaf.seen:  # used since it was offered
                self._offer(leaf)
                continue
            parent = leaf.parent
            assert parent is not None
            freed += leaf.tokens
            self.evictable -= leaf.tokens
            self._leaves.discard(leaf)
            del parent.children[self._first(leaf.key)]
            if not parent.children and parent.locks == 0:
                self._offer(parent)
        return freed
