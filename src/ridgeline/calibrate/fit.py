"""Turn measured rows into a calibration: robust least squares on the logarithm of predicted over measured.

    minimise   sum_i w_i rho((log t_i(x) - log T_i) / noise)  +  sum_j (x_j / spread_j)^2

t = predicted and T = measured seconds, x = offsets of the parameters, rho grows linearly for outliers, w weighs a group
of repeated configurations as its square root. The second sum keeps every parameter near its default unless runs say
otherwise. Nothing is drawn at random: the same rows give the same calibration.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
from scipy.optimize import least_squares

from ridgeline.calibrate.dataset import Dataset
from ridgeline.calibrate.dominance import never_slower
from ridgeline.calibrate.truth.rows import Row
from ridgeline.core.arrays import Array, Index, Mask
from ridgeline.cost.calibration import APART, PARAMETERS, Calibration, known_share, owners
from ridgeline.cost.machine import ParameterColumns

FOLDS = 5
NOISE = 0.04  # what the same configuration differs by when measured by somebody else
SECONDARY = 0.5  # weight of the single-node table, whose many rows are near each other
STEP = 1e-3  # of a numerical derivative, in offsets


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Where each offset stands in the vector that is fitted, and how rows read it."""

    names: tuple[str, ...]
    spread: Array
    common: Mapping[str, int]
    own: Mapping[str, tuple[Index, ...]]  # by parameter: index of each row's own offset, by each owner
    known: Mapping[str, Array]  # by parameter: what its value is multiplied with, by row

    def rates(self, offsets: Array) -> ParameterColumns:
        """Values of all parameters by row."""
        values = {}
        for name, item in PARAMETERS.items():
            x = offsets[self.common[name]]
            for places in self.own.get(name, ()):
                x = x + offsets[places]
            values[name] = np.broadcast_to(item.value(x), self.rows) * self.known[name]
        return ParameterColumns(values=values)

    @property
    def rows(self) -> tuple[int, ...]:
        """Shape of a column."""
        return next(iter(self.own.values()))[0].shape


def layout_of(table: Dataset, without: frozenset[str] = frozenset()) -> Layout:
    """The offsets to fit: one per parameter, one more per chip or engine it may differ by; not those `without`."""
    names: list[str] = []
    spread: list[float] = []
    common: dict[str, int] = {}
    own: dict[str, list[Index]] = {}
    each = [owners(scenario.system.chip, scenario.engine) for scenario in table.scenarios]
    for name, item in PARAMETERS.items():
        fixed = item.group in without
        common[name] = len(names)
        names.append(name)
        spread.append(1e-6 if fixed else item.spread)
        for owner in item.per:
            column = [own_names.of(owner) or "?" for own_names in each]
            places = {member: len(names) + index for index, member in enumerate(sorted(set(column)))}
            names += [f"{name}/{member}" for member in sorted(set(column))]
            spread += [1e-6 if fixed else APART[owner]] * len(places)
            own.setdefault(name, []).append(np.array([places[member] for member in column], dtype=np.int64))
    known = {name: np.array([known_share(name, own) for own in each]) for name in PARAMETERS}
    return Layout(
        names=tuple(names),
        spread=np.array(spread),
        common=MappingProxyType(common),
        own=MappingProxyType({name: tuple(places) for name, places in own.items()}),
        known=MappingProxyType(known),
    )


def weights(rows: Sequence[Row]) -> Array:
    """How much each row counts: groups of one configuration as their square root, the single-node table less."""
    groups = Counter(row.group for row in rows)
    return np.array([groups[row.group] ** -0.5 * (SECONDARY if "single_node" in row.table else 1.0) for row in rows])


def fit(
    table: Dataset, chosen: Mask, *, start: Array | None = None, without: frozenset[str] = frozenset(),
    progress: Callable[[float], None] = lambda _: None, rounds: int = 12,
) -> tuple[Layout, Array]:  # fmt: skip
    """Offsets that fit the chosen rows best."""
    layout = layout_of(table, without)
    target, weight = np.log(table.measured_s), weights(table.rows) / NOISE

    def off(offsets: Array) -> Array:
        return (np.log(table.steps(layout.rates(offsets)).step_s) - target) * weight

    def residuals(offsets: Array) -> Array:
        return np.concatenate([off(offsets)[chosen], offsets / layout.spread])

    def slopes(offsets: Array) -> Array:
        """A chip's or an engine's own offset moves its rows as the common one does, so that one slope serves both."""
        here, many = off(offsets), int(chosen.sum())
        progress(float(here @ here))
        columns = np.zeros((many + len(offsets), len(offsets)))
        columns[many:] = np.diag(1 / layout.spread)
        for name, index in layout.common.items():
            moved = offsets.copy()
            moved[index] += STEP
            slope = ((off(moved) - here) / STEP)[chosen]
            columns[:many, index] = slope
            for places in layout.own.get(name, ()):
                columns[np.arange(many), places[chosen]] = slope
        return columns

    first = np.zeros(len(layout.names)) if start is None else start
    found = least_squares(residuals, first, jac=slopes, loss="soft_l1", max_nfev=rounds, x_scale=layout.spread)
    return layout, np.asarray(found.x, dtype=np.float64)


def calibration_of(layout: Layout, offsets: Array, source: str) -> Calibration:
    """The offsets under their names, rounded so that a file of them is stable; no chip slower than one it surpasses."""
    named = {name: round(float(x), 4) for name, x in zip(layout.names, offsets, strict=True) if abs(x) >= 5e-5}
    return never_slower(Calibration(offsets=MappingProxyType(named), source=source))


def fold_of(group: str) -> int:
    """The fold a group belongs to: fixed by its name, so that a row never moves to another fold."""
    return int.from_bytes(hashlib.sha256(group.encode()).digest()[:4], "big") % FOLDS
