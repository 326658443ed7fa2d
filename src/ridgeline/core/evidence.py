"""Turn a number into a quoted one: its value, how good it is, who says so, and who disagrees."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import field, replace
from enum import IntEnum

from ridgeline.core.records import dataclass


class Evidence(IntEnum):
    """How a number is known, weakest first, so that `min` of several is the evidence of what follows from them.

    >>> min(Evidence.MEASURED, Evidence.ASSUMED).label
    'assumed'
    """

    ASSUMED = 0
    ANALYTIC = 1
    DATASHEET = 2
    FITTED = 3
    MEASURED = 4

    @property
    def label(self) -> str:
        """The lower-case word used in files and on screen."""
        return self.name.lower()

    @classmethod
    def of(cls, label: str) -> Evidence:
        """The grade a file's word means; `KeyError` when it is none."""
        return cls[label.upper()]


def weakest(grades: Iterable[Evidence]) -> Evidence:
    """Evidence of a result that rests on all of these; of nothing at all, it is analytic."""
    return min(grades, default=Evidence.ANALYTIC)


@dataclass(frozen=True, slots=True, kw_only=True)
class Dissent:
    """What another source says of the same number."""

    value: float
    source: str
    note: str = ""

    JSON = "value source note?"


@dataclass(frozen=True, slots=True, kw_only=True)
class Quoted:
    """A number with its evidence and source. Values are in base units (`core.units`)."""

    value: float
    evidence: Evidence
    source: str
    note: str = ""
    conflicts: tuple[Dissent, ...] = field(default=())

    JSON = "value evidence source note? conflicts?"

    def scale_by(self, factor: float, note: str) -> Quoted:
        """The same quotation times a factor, downgraded to analytic at best, saying how it was derived."""
        return replace(
            self, value=self.value * factor, evidence=min(self.evidence, Evidence.ANALYTIC), note=note, conflicts=()
        )
