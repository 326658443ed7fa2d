"""Turn measured rows into a calibration: robust least squares on the logarithm of predicted over measured.

    minimise   sum_i w_i rho((log t_i(x) - log T_i) / noise)  +  sum_k rho(r_k(x))  +  sum_j (x_j / spread_j)^2

t = predicted and T = measured seconds, x = offsets of the parameters, rho grows linearly for outliers, w weighs a row
by trust and completeness and a group of repeated configurations as its square root, r = how far a rate lies outside
what a kernel was measured at. The last sum keeps every parameter near its default unless runs say otherwise. Nothing
is drawn at random: the same rows give the same calibration.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

import numpy as np
from scipy.optimize import least_squares

from ridgeline.calibrate.anchors import anchor_residuals, anchors
from ridgeline.calibrate.dataset import Dataset
from ridgeline.calibrate.dominance import never_slower
from ridgeline.calibrate.truth.rows import Row
from ridgeline.core.arrays import Array, Index, Mask
from ridgeline.cost.calibration import APART, PARAMETERS, Calibration, Owners, known_share, owners
from ridgeline.cost.machine import ParameterColumns, measured_memory, measured_updates
from ridgeline.cost.profile import shipped_profiles

FOLDS = 5
NOISE = 0.04  # what the same configuration differs by when measured by somebody else
SECONDARY = 0.5  # weight of the single-node table, whose many rows are near each other
STEP = 1e-3  # of a numerical derivative, in offsets
FIXED = 1e-6  # spread of an offset that may not move
NOBODY = "?"  # stands for a family or library that a chip or an engine does not have
TRUST: Mapping[str, float] = MappingProxyType({"A": 1.0, "B": 1.0, "B-": 0.7, "C": 0.4})
COMPLETE: Mapping[str, float] = MappingProxyType({"full": 1.0, "core": 0.7, "partial": 0.4})
LEAST = 0.4  # of a row whose trust or completeness is not stated
TYPICAL = 50  # rows of a source that is weighed neither up nor down


@dataclass(frozen=True, slots=True, kw_only=True)
class Prior:
    """How strongly a fit is held.

    Four stand at their defaults. `serving` was set with left-out sources in view: held strictly (1), nvfp4 training on
    GB300 comes out 11 % too slow, its products being faster than any serving library's; loosely (0.1), families of
    chips left out are a little further off. `choose_prior` says what the choice is worth where it is made in folds.

    common   factor on how far common values may move
    apart    factor on how far chips and engines may differ
    source   exponent by which a row of a large source counts less
    anchors  factor on how strictly kernels are held to
    serving  the same for those of serving libraries, against the others
    """

    common: float = 1.0
    apart: float = 1.0
    source: float = 0.0
    anchors: float = 1.0
    serving: float = 0.3


SHIPPED_PRIOR = Prior()


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """How some rows read the vector that is fitted."""

    common: Mapping[str, int]
    own: Mapping[str, tuple[Index, ...]]  # by parameter: index of each row's own offset, by each owner
    known: Mapping[str, Array]  # by parameter: what its value is multiplied with, by row
    measured: Mapping[str, Array]  # by parameter: what a profile of the row's chip says instead; nan where none does

    def rates(self, offsets: Array) -> ParameterColumns:
        """Values of all parameters by row."""
        values = {}
        for name, item in PARAMETERS.items():
            x = offsets[self.common[name]]
            for places in self.own.get(name, ()):
                x = x + offsets[places]
            values[name] = item.value(np.broadcast_to(x, self.known[name].shape)) * self.known[name]
        for name, column in self.measured.items():
            values[name] = np.where(np.isnan(column), values.get(name, values["memory"]), column)
        return ParameterColumns(values=values)


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Where each offset stands in the vector that is fitted, and how rows and anchors read it."""

    names: tuple[str, ...]
    spread: Array
    rows: Columns
    anchored: Columns

    def rates(self, offsets: Array) -> ParameterColumns:
        """Values of all parameters by row."""
        return self.rows.rates(offsets)


def layout_of(table: Dataset, prior: Prior = SHIPPED_PRIOR, without: frozenset[str] = frozenset()) -> Layout:
    """The offsets to fit: one per parameter, one more per chip or engine it may differ by; not those `without`.

    What a chip or an engine is not known by (no family, no library) has an offset that stays zero.
    """
    runs = [owners(scenario.system.chip, scenario.engine) for scenario in table.scenarios]
    kernels = [anchor.owners for anchor in anchors()]
    at: dict[str, int] = {}
    spread: list[float] = []
    for name, item in PARAMETERS.items():
        free = item.group not in without
        at[name] = len(at)
        spread.append(item.spread * prior.common if free else FIXED)
        for owner in item.per:
            for member in sorted({each.of(owner) for each in (*runs, *kernels)}):
                at[f"{name}/{member or NOBODY}"] = len(at)
                spread.append(APART[owner] * prior.apart if free and member else FIXED)
    unknown = np.full(len(table.scenarios), np.nan)
    copies, updates = (
        found(table.scenarios, shipped_profiles(), unknown) for found in (measured_memory, measured_updates)
    )
    rows = replace(_columns(at, runs), measured=MappingProxyType({"memory": copies, "update": updates}))
    return Layout(names=tuple(at), spread=np.array(spread), rows=rows, anchored=_columns(at, kernels))


def _columns(at: Mapping[str, int], each: Sequence[Owners]) -> Columns:
    """How rows of these owners read a vector whose names stand at these places."""
    own = {
        name: tuple(
            np.array([at[f"{name}/{row.of(owner) or NOBODY}"] for row in each], dtype=np.int64) for owner in item.per
        )
        for name, item in PARAMETERS.items()
    }
    return Columns(
        common=MappingProxyType({name: at[name] for name in PARAMETERS}),
        own=MappingProxyType(own),
        known=MappingProxyType({name: np.array([known_share(name, row) for row in each]) for name in PARAMETERS}),
        measured=MappingProxyType({}),
    )


def weights(rows: Sequence[Row], prior: Prior = SHIPPED_PRIOR) -> Array:
    """How much each row counts: by trust and completeness; groups of one configuration, and sources, less than their
    number; the single-node table less again.
    """
    groups, sources = Counter(row.group for row in rows), Counter(row.source for row in rows)
    return np.array(
        [
            TRUST.get(row["x_trust"], LEAST)
            * COMPLETE.get(row["x_complete"], LEAST)
            * groups[row.group] ** -0.5
            * (sources[row.source] / TYPICAL) ** -prior.source
            * (SECONDARY if "single_node" in row.table else 1.0)
            for row in rows
        ]
    )


def fit(
    table: Dataset, chosen: Mask, *, start: Array | None = None, without: frozenset[str] = frozenset(),
    prior: Prior = SHIPPED_PRIOR, rounds: int = 12,
) -> tuple[Layout, Array]:  # fmt: skip
    """Offsets that fit the chosen rows, and the anchors, best."""
    layout = layout_of(table, prior, without)
    target, weight, known = np.log(table.measured_s), weights(table.rows, prior) / NOISE, anchors()
    strict = np.array([prior.anchors * (prior.serving if anchor.serving else 1.0) for anchor in known])

    def runs(offsets: Array) -> Array:
        return ((np.log(table.steps(layout.rows.rates(offsets)).step_s) - target) * weight)[chosen]

    def kernels(offsets: Array) -> Array:
        outside: Array = anchor_residuals(known, layout.anchored.rates(offsets)) * strict
        return outside

    def residuals(offsets: Array) -> Array:
        return np.concatenate([runs(offsets), kernels(offsets), offsets / layout.spread])

    def slopes(offsets: Array) -> Array:
        """A chip's or an engine's own offset moves its rows as the common one does, so that one slope serves both."""
        parts = ((runs, layout.rows, chosen), (kernels, layout.anchored, np.ones(len(known), np.bool_)))
        blocks = [_slopes(part, columns, mask, offsets) for part, columns, mask in parts]
        return np.concatenate([*blocks, np.diag(1 / layout.spread)])

    first = np.zeros(len(layout.names)) if start is None else start
    found = least_squares(residuals, first, jac=slopes, loss="soft_l1", max_nfev=rounds, x_scale=layout.spread)
    return layout, np.asarray(found.x, dtype=np.float64)


def _slopes(part: Callable[[Array], Array], columns: Columns, chosen: Mask, offsets: Array) -> Array:
    """Derivatives of some residuals with respect to every offset."""
    here, places = part(offsets), np.arange(int(chosen.sum()))
    found = np.zeros((len(here), len(offsets)))
    for name, index in columns.common.items():
        moved = offsets.copy()
        moved[index] += STEP
        slope = (part(moved) - here) / STEP
        found[:, index] = slope
        for own in columns.own[name]:
            found[places, own[chosen]] = slope
    return found


def calibration_of(layout: Layout, offsets: Array, source: str) -> Calibration:
    """The offsets under their names, rounded so that a file of them is stable; no chip slower than one it surpasses."""
    named = {name: round(float(x), 4) for name, x in zip(layout.names, offsets, strict=True) if abs(x) >= 5e-5}
    return never_slower(Calibration(offsets=MappingProxyType(named), source=source))


def fold_of(group: str) -> int:
    """The fold a group belongs to: fixed by its name, so that a row never moves to another fold."""
    return int.from_bytes(hashlib.sha256(group.encode()).digest()[:4], "big") % FOLDS
