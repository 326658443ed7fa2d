"""Turn the fits that each left out a fifth of the bundled rows into parameters by group, and back into a file.

A bundled row took part in the fit of the shipped parameters, so holding them against it proves little. It is predicted
with the parameters of the fold that never saw its group; `folds.json` keeps those parameters and who was left out.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

from ridgeline.calibrate.frozen import is_frozen
from ridgeline.calibrate.truth.rows import Row, read_rows
from ridgeline.cost.calibration import Calibration
from ridgeline.cost.profile import shipped_profiles

SHIPPED_FOLDS = Path(__file__).parent / "folds.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Folds:
    """A calibration for each fold, and for each group the fold whose fit left it out.

    >>> folds = Folds(calibrations=(Calibration(offsets={}, source="fold 0"),), left_out={"a": 0})
    >>> folds.without("a").source, folds.without("never fitted")
    ('fold 0', None)
    """

    calibrations: tuple[Calibration, ...] = ()
    left_out: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))

    def without(self, group: str) -> Calibration | None:
        """The calibration that never saw a group; None for a group that took no part in any fit."""
        fold = self.left_out.get(group)
        return None if fold is None else self.calibrations[fold]

    def to_table(self) -> dict[str, Any]:
        """As `folds.json` holds it: the groups of each fold, and each offset under every fold."""
        names = sorted({name for item in self.calibrations for name in item.offsets})
        count = len(self.calibrations)
        return {
            "left_out": [sorted(g for g, at in self.left_out.items() if at == fold) for fold in range(count)],
            "offsets": {name: [item.offsets.get(name, 0.0) for item in self.calibrations] for name in names},
        }


def folds_from(table: Mapping[str, Any]) -> Folds:
    """What `to_table` wrote."""
    groups: Sequence[Sequence[str]] = table["left_out"]
    return Folds(
        calibrations=tuple(
            Calibration(
                offsets=MappingProxyType({name: values[fold] for name, values in table["offsets"].items()}),
                source=f"bundled rows without fold {fold}",
                profiles=shipped_profiles(),
            )
            for fold in range(len(groups))
        ),
        left_out=MappingProxyType({group: fold for fold, members in enumerate(groups) for group in members}),
    )


@cache
def shipped_folds() -> Folds:
    """The folds that come with Ridgeline, fitted by `ridgeline fit`."""
    return folds_from(json.loads(SHIPPED_FOLDS.read_text(encoding="utf-8")))


def takes_part(row: Row) -> bool:
    """Whether a row is fitted: pretraining, not flagged as a regression, not of a frozen source.

    What is less sure or less complete counts less (`fit.weights`) instead of not at all.
    """
    return row["x_task"] == "pretrain" and "KNOWN_REGRESSION" not in row["x_flag"] and not is_frozen(row)


@cache
def bundled() -> Mapping[str, Row]:
    """The rows that ship with Ridgeline, by id."""
    return MappingProxyType({row.id: row for row in read_rows()})


def is_bundled(row: Row) -> bool:
    """Whether a row is one of Ridgeline's own, cell by cell; a column that one side lacks counts as blank.

    >>> row = bundled()["h200-003"]
    >>> is_bundled(row), is_bundled(Row(id=row.id, table="mine.csv", cells={**row.cells, "gpus": "2"}))
    (True, False)
    """
    known = bundled().get(row.id)
    if known is None or known is row:
        return known is row
    return all(known[column] == row[column] for column in known.cells.keys() | row.cells.keys())
