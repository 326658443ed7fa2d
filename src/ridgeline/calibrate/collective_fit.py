"""Turn the bundled collectives into the numbers of library times: one fit of all, and one without each system.

    minimise  sum over rows of rho((log predicted - log measured) / 0.15)  +  sum of ((log x - log prior) / spread)^2

rho is soft-l1, so that single rows that tell of something else do not bend the rest. A family's number is drawn to that
of all families. A measurement that two systems report alike is left out with either.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ridgeline.calibrate.collectives import Measured, bundled_collectives
from ridgeline.core.arrays import Array
from ridgeline.core.files import write_text
from ridgeline.core.units import DECIMAL
from ridgeline.cost.library_times.formulas import library_seconds
from ridgeline.cost.library_times.parameters import (
    BY_FAMILY,
    MEASURED_FAMILIES,
    PRIORS,
    SHIPPED,
    Parameters,
    names,
    prior_values,
)
from ridgeline.cost.library_times.question import QuestionColumns, columns_of, describes

LARGE = DECIMAL["M"]  # bytes
SCATTER = 0.15  # of a row, as a logarithm
LOOSE = 1.0  # of what all families share
DIGITS = 5

Progress = Callable[[str, int, int], None]


def fit_collectives(progress: Progress | None = None) -> Parameters:
    """The numbers fitted to all bundled rows, and those fitted without each system."""
    rows = [item for item in bundled_collectives() if describes(item.system)]
    systems = sorted({item.row["system"] for item in rows})
    tell = progress or (lambda *_: None)
    tell("all systems", 0, len(systems) + 1)
    whole = _fitted(rows, prior_values())
    folds = {}
    for index, system in enumerate(systems):
        tell(f"without {system}", index + 1, len(systems) + 1)
        folds[system] = _fitted(_without(rows, system), whole)
    return Parameters(values=whole, folds=folds)


def write_collectives(found: Parameters, path: Path = SHIPPED) -> None:
    """Write the numbers with their units and meaning."""
    about = {
        name: {"prior": prior.value, "spread": prior.spread, "unit": prior.unit, "what": prior.what}
        for name, prior in {**BY_FAMILY, **PRIORS}.items()
    }
    source = "truth/collectives.csv, by `ridgeline fit --collectives`"
    data = {"source": source, "mape": in_sample(found), "about": about, "all": found.values, "without": found.folds}
    write_text(path, json.dumps(data, indent=1) + "\n")


def in_sample(found: Parameters) -> dict[str, float]:
    """Mean |residual| of the rows that were fitted: what is left where a system is known."""
    rows = [item for item in bundled_collectives() if describes(item.system)]
    predicted = library_seconds(columns_of([item.question for item in rows]), found.values)
    off = np.abs(predicted / np.array([item.seconds for item in rows]) - 1)
    large = np.array([item.size > LARGE for item in rows])
    return {"known, above 1 MB": float(off[large].mean()), "known, to 1 MB": float(off[~large].mean())}


def _without(rows: Sequence[Measured], system: str) -> list[Measured]:
    told = {_figure(item) for item in rows if item.row["system"] == system}
    return [item for item in rows if item.row["system"] != system and _figure(item) not in told]


def _figure(item: Measured) -> tuple[object, ...]:
    question = item.question
    return (question.kind, question.software, question.ranks, question.size, item.seconds)


def _fitted(rows: Sequence[Measured], start: Mapping[str, float]) -> dict[str, float]:
    from scipy.optimize import least_squares

    columns = columns_of([item.question for item in rows])
    measured = np.log([item.seconds for item in rows])
    known = names()
    prior = _Pulled(known)

    def residuals(x: Array) -> Array:
        return np.concatenate([_off(columns, known, x) / SCATTER - measured / SCATTER, prior(x)])

    begin = np.log([start[name] for name in known])
    found = least_squares(residuals, begin, loss="soft_l1", f_scale=1.0, max_nfev=60)
    return {name: float(f"{value:.{DIGITS}g}") for name, value in zip(known, np.exp(found.x), strict=True)}


def _off(columns: QuestionColumns, known: Sequence[str], x: Array) -> NDArray[np.float64]:
    values = dict(zip(known, np.exp(x).tolist(), strict=True))
    found: NDArray[np.float64] = np.log(library_seconds(columns, values))
    return found


class _Pulled:
    """How far each number is from what is believed of it, in spreads."""

    def __init__(self, known: Sequence[str]) -> None:
        at = {name: index for index, name in enumerate(known)}
        self.shared = np.array([at[name] for name in BY_FAMILY])
        self.shared_means = np.log([prior.value for prior in BY_FAMILY.values()])
        pairs = [(at[f"{name}.{family}"], at[name], prior.spread) for name, prior in BY_FAMILY.items()
                 for family in MEASURED_FAMILIES]  # fmt: skip
        self.own, self.of, self.spreads = (np.array(part) for part in zip(*pairs, strict=True))
        self.rest = np.array([at[name] for name in PRIORS])
        self.rest_means = np.log([prior.value for prior in PRIORS.values()])
        self.rest_spreads = np.array([prior.spread for prior in PRIORS.values()])

    def __call__(self, x: Array) -> Array:
        return np.concatenate(
            [
                (x[self.shared] - self.shared_means) / LOOSE,
                (x[self.own] - x[self.of]) / self.spreads,
                (x[self.rest] - self.rest_means) / self.rest_spreads,
            ]
        )
