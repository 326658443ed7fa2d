"""A chip with some numbers changed: what differs from the catalog's, what to call it, and how far it is from any run.

`[chip]` in a scenario and `--set chip.…` start from a chip of the catalog. Its runs, rates and price are of the chip
that exists, so what is said of the other one carries its changes by name and a wider interval.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from math import hypot, log

from ridgeline.core.evidence import Quoted
from ridgeline.hardware.chip import Chip
from ridgeline.hardware.load import CHIPS
from ridgeline.hardware.system import System

OF_A_CHANGE = 0.3  # of a changed rate's logarithm: how far the share of it that is reached may be off; assumed
IN_A_TITLE = 2  # changes that are named; the rest is counted
NO_RATES = ("tdp", "price", "hbm.capacity", "hbm.usable")  # decide what fits and what it costs, not how fast it is


@dataclass(frozen=True, slots=True, kw_only=True)
class ChipChange:
    """A number of a chip that is not the catalog's; `before` is None where the catalog has none."""

    path: str
    before: float | None
    value: float | None

    @property
    def ratio(self) -> float | None:
        """How many times the catalog's number it is; None where there is none to compare with."""
        return self.value / self.before if self.value and self.before else None

    def __str__(self) -> str:
        if self.value is None:
            return f"no {self.path}"
        return f"{self.path} x {self.ratio:.3g}" if self.ratio else f"{self.path} of its own"


def chip_changes(chip: Chip) -> tuple[ChipChange, ...]:
    """The numbers in which a chip differs from the catalog's chip of its id; none for a chip of its own.

    >>> from ridgeline.hardware.load import chip
    >>> [str(change) for change in chip_changes(chip({"base": "h100-sxm", "hbm": {"bandwidth": "6.7 TB/s"}}))]
    ['hbm.bandwidth x 2']
    """
    if chip.id not in CHIPS or (known := CHIPS[chip.id]) is chip:
        return ()
    before, after = dict(_numbers(known)), dict(_numbers(chip))
    changed = (path for path in (before | after) if path != "price" and before.get(path) != after.get(path))
    return tuple(ChipChange(path=path, before=before.get(path), value=after.get(path)) for path in changed)


def _numbers(part: object, path: str = "") -> Iterator[tuple[str, float]]:
    """Every quoted number of a chip with its dotted path."""
    if isinstance(part, Quoted):
        yield path, part.value
    elif isinstance(part, Mapping):
        for key, value in part.items():
            yield from _numbers(value, f"{path}.{key}".lstrip("."))
    elif is_dataclass(part):
        for entry in fields(part):
            yield from _numbers(getattr(part, entry.name), f"{path}.{entry.name}".lstrip("."))


def chip_title(chip: Chip) -> str:
    """What a page or a terminal calls a chip: its id, and what it has that the catalog's has not."""
    changes = chip_changes(chip)
    if chip.id in CHIPS and chip.name != CHIPS[chip.id].name:
        return f"{chip.name}, from {chip.id}"
    return f"{chip.id}{_words(changes)}"


def _words(changes: tuple[ChipChange, ...]) -> str:
    if not changes:
        return ""
    more = f" and {len(changes) - IN_A_TITLE} more" if len(changes) > IN_A_TITLE else ""
    return f" with {', '.join(map(str, changes[:IN_A_TITLE]))}{more}"


def system_title(system: System) -> str:
    """What a page or a terminal calls a system: its name, and what its chip has that the catalog's has not.

    >>> from ridgeline.hardware.load import system
    >>> system_title(system("8xh100-sxm")), system_title(system("8xh100-sxm", {"hbm": {"bandwidth": "6.7 TB/s"}}))
    ('8xh100-sxm', '8xh100-sxm with hbm.bandwidth x 2')
    """
    chip = system.chip
    if chip.id in CHIPS and chip.name != CHIPS[chip.id].name:
        return f"{system.chips} x {chip.name}, from {system.name}"
    return f"{system.name}{_words(chip_changes(chip))}"


def what_if_distance(chip: Chip) -> tuple[float, str]:
    """How much further than a measured chip's a prediction may be off, in logarithms, and what it is far from.

        width = 0.3 hypot over changed rates of log(value / catalog's)         a rate without one counts as doubled

    >>> from ridgeline.hardware.load import chip
    >>> width, reason = what_if_distance(chip({"base": "h100-sxm", "hbm": {"bandwidth": "6.7 TB/s"}}))
    >>> round(width, 3), reason
    (0.208, 'hbm.bandwidth x 2, which nobody measured')
    """
    rates = [change for change in chip_changes(chip) if change.path not in NO_RATES]
    width = OF_A_CHANGE * hypot(*(log(change.ratio or 2.0) for change in rates))
    return width, f"{', '.join(map(str, rates))}, which nobody measured" if rates else ""
