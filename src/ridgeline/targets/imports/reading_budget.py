"""Bound what following one configuration may cost: work and bytes, spent before a value is made, never given back.

    work   about 0.1 us each: characters and items looked at, and so many for a statement or an expression
    bytes  of all values that the reading makes, whether it keeps them or not

One budget goes through everything that is followed for one import: the script, what it sources, substitutions that
fail, recipes and the modules that they import. A spent budget refuses every later step, so that nobody who passes over
an `InputError` goes on with half of what a file says.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ridgeline.core.errors import InputError, Problem

MOST_WORK = 15_000_000
MOST_BYTES = 160_000_000
CHARACTER_BYTES = 4  # at most, in a text of CPython
ITEM_BYTES = 64  # an item of a list with the object that it is


@dataclass(slots=True, kw_only=True)
class ReadingBudget:
    """What is left of a reading's work and bytes, and the line of the file that is being followed (0: not known)."""

    work: int = MOST_WORK
    bytes_left: int = MOST_BYTES
    line: int = 0

    def require_rest(self, *names: str) -> None:
        """Refuse the files of these names where something was refused while they were followed."""
        if self.work < 0 or self.bytes_left < 0:
            raise self.refusal(*names) from None

    def spend(self, work: int) -> None:
        """Pay for work; an `InputError` where none is left."""
        self.work -= work
        if self.work < 0 or self.bytes_left < 0:
            raise self.refusal()

    def spend_text(self, characters: int, times: int = 1) -> None:
        """Pay for a text of so many characters, each looked at so many times."""
        self.bytes_left -= CHARACTER_BYTES * characters
        self.spend(times * characters)

    def spend_items(self, count: int, times: int = 1) -> None:
        """Pay for a list or a table of so many items, each looked at so many times."""
        self.bytes_left -= ITEM_BYTES * count
        self.spend(times * count)

    def spend_texts(self, texts: Iterable[str]) -> None:
        """Pay for the text that these become when they are joined."""
        self.spend_text(sum(len(text) + 1 for text in texts))

    def refusal(self, *names: str) -> InputError:
        """The refusal of what was to be done next, at the file of that name."""
        most = f"{MOST_WORK:,} steps of work" if self.work < 0 else f"{MOST_BYTES:,} bytes"
        line = f"line {self.line}" if self.line else ""
        source = ", ".join(names)[:200]
        where = f"{source}:{self.line}" if len(names) == 1 and line else source or line
        cost = f"a file that takes more than {most} to follow"
        todo = "shorten its loops and the values that they make, or import a file that states the values"
        return InputError(Problem(path="", given=cost, expected="a run's configuration", todo=todo, where=where))


def replaced_length(text: str, old: str, new: str, count: int = -1) -> int:
    """The characters of a text with one piece put in the place of another.

    >>> replaced_length("abab", "a", "xyz"), len("abab".replace("a", "xyz")), replaced_length("ab", "", "xy")
    (8, 8, 8)
    """
    times = text.count(old) if count < 0 else min(count, text.count(old))
    return len(text) + times * (len(new) - len(old))
