"""Turn the text of one cell into a number, a yes or no, or a word, or say which column cannot be read."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from ridgeline.calibrate.truth.rows import Row

MOST = 10_000_000  # of anything that has no entry below
LARGEST: Mapping[str, int] = MappingProxyType(
    {
        "gpus": 1_000_000,
        "layers": 10_000,
        "hidden": 1_000_000,
        "heads": 100_000,
        "kv_heads": 100_000,
        "x_head_dim": 100_000,
        "experts": 100_000,
        "seq_len": 1_000_000_000,
        "global_batch": 1_000_000_000,
    }
)
YES, NO = ("1", "1.0", "true", "yes", "on"), ("0", "0.0", "false", "no", "off")


@dataclass(frozen=True, slots=True, kw_only=True)
class Skipped:
    """A row that no scenario or no step time can be made from, and why; the reason begins with the column."""

    id: str
    reason: str


class Unusable(Exception):
    """Inside this floor only: a column's content ends the reading of a row. It leaves as a `Skipped`."""

    def __init__(self, column: str, why: str) -> None:
        super().__init__(f"{column}: {why}")


@dataclass(frozen=True, slots=True, kw_only=True)
class RowCells:
    """A row being read, with the assumptions made on the way."""

    row: Row
    notes: list[str] = field(default_factory=list)

    def text(self, column: str) -> str:
        """The cell as written."""
        return self.row[column]

    def note(self, assumption: str) -> None:
        """Remember what had to be assumed."""
        self.notes.append(assumption)

    def number(self, column: str) -> float | None:
        """A finite number above zero; None for a blank cell."""
        text = self.row[column].replace(",", "")
        if not text:
            return None
        try:
            value = float(text)
        except ValueError:
            raise Unusable(column, f"got {self._short(column)}, expected a number") from None
        if not math.isfinite(value) or value <= 0:
            raise Unusable(column, f"got {self._short(column)}, expected a number above 0")
        return value

    def size(self, column: str) -> int | None:
        """A whole number from 0; None for a blank cell."""
        if self.row[column] in NO:
            return 0
        value = self.number(column)
        largest = LARGEST.get(column, MOST)
        if value is None:
            return None
        if value != int(value) or value > largest:
            raise Unusable(column, f"got {self._short(column)}, expected a whole number up to {largest:,}")
        return int(value)

    def count(self, column: str) -> int | None:
        """A whole number from 1; None for a blank cell."""
        value = self.size(column)
        if value == 0:
            raise Unusable(column, "got 0, expected at least 1")
        return value

    def need(self, column: str) -> int:
        """A whole number from 1 that cannot be assumed."""
        value = self.count(column)
        if value is None:
            raise Unusable(column, "blank, and it cannot be guessed; fill the column in")
        return value

    def assume(self, column: str, default: int) -> int:
        """A whole number from 1; a blank is noted and becomes the default."""
        value = self.count(column)
        if value is None:
            self.note(f"{column} = {default}: blank in the table")
            return default
        return value

    def flag(self, column: str) -> bool | None:
        """Yes or no; None for a blank cell."""
        text = self.row[column].lower()
        if text in YES or text in NO:
            return text in YES
        if text:
            raise Unusable(column, f"got {self._short(column)}, expected 1 or 0")
        return None

    def word(self, column: str, known: Mapping[str, str]) -> str | None:
        """The word that the cell means by `known`; None for a blank cell."""
        text = self.row[column].lower()
        if not text:
            return None
        if text not in known:
            raise Unusable(column, f"got {self._short(column)}, expected one of {', '.join(known)}")
        return known[text]

    def hint(self, column: str, known: Mapping[str, str]) -> str | None:
        """As `word`; a word nobody knows is noted and read as blank."""
        text = self.row[column].lower()
        if text and text not in known:
            self.note(f"{column} = {text[:40]!r} is not known; read as blank")
        return known.get(text)

    def _short(self, column: str) -> str:
        return repr(self.row[column][:40])
