"""Turn a shell pattern (`*`, `?`, `[a-z]`, `[!a]`) into where it matches a text, in one pass over the text."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ridgeline.targets.imports.reading_budget import ReadingBudget

_PART = re.compile(r"\*+|\[!?\]?[^\]]*\]|.", re.DOTALL)


def matches_pattern(budget: ReadingBudget, text: str, pattern: str) -> bool:
    """Whether a pattern matches all of a text.

    >>> [matches_pattern(ReadingBudget(), "llama-7b", pattern) for pattern in ("*-[0-9]b", "llama", "l?ama*", "[!l]*")]
    [True, False, True, False]
    """
    return any(end == len(text) for end in match_ends(budget, text, pattern))


def match_ends(budget: ReadingBudget, text: str, pattern: str, backwards: bool = False) -> Iterator[int]:
    """The lengths of beginnings (backwards: of ends) of a text that a pattern matches, the shortest first.

    >>> list(match_ends(ReadingBudget(), "a/b/c", "*/")), list(match_ends(ReadingBudget(), "a/b/c", "/*", True))
    ([2, 4], [2, 4])
    """
    budget.spend_items(len(pattern), 10)
    parts = _PART.findall(pattern)
    ordered_parts, characters = (parts[::-1], text[::-1]) if backwards else (parts, text)
    atoms = [part for part in ordered_parts if part[0] != "*"]
    distinct = set(text)
    budget.spend(4 * len(text) * (1 + len(atoms) // 60) + 4 * len(pattern) * len(distinct))
    loops = at = 0  # one bit for each number of atoms matched so far; those behind which anything may follow
    for part in ordered_parts:
        loops |= (1 << at) if part[0] == "*" else 0
        at += part[0] != "*"
    steps = {char: sum(1 << bit for bit, atom in enumerate(atoms) if _fits(atom, char)) for char in distinct}
    state, full = 1, 1 << len(atoms)
    if state & full:
        yield 0
    for end, char in enumerate(characters, 1):
        state = ((state & steps[char]) << 1) | (state & loops)
        if state & full:
            yield end
        if not state:
            return


def _fits(atom: str, char: str) -> bool:
    """Whether one character is what `?`, `[...]` or a plain character stands for."""
    if len(atom) < 3:
        return atom in ("?", char)
    members = atom[1:-1]
    is_negated = members[0] == "!" and len(members) > 1
    ranges = re.findall(r"(.)-(.)|(.)", members[is_negated:], re.DOTALL)
    return any(low <= char <= high if low else char == plain for low, high, plain in ranges) is not is_negated
