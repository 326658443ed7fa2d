"""Turn measured rows into a calibration: robust least squares on the logarithm of predicted over measured.

    minimise   sum_i rho(w_i (log t_i(x) + u_l - log T_i) / noise)  +  sum_k rho(r_k(x))  +  sum_j (x_j / spread_j)^2

t = predicted and T = measured seconds, x = offsets of the parameters, rho grows linearly for outliers, w weighs a row
by trust and completeness and a group of repeated configurations as its square root, u = what all runs of a laboratory
are off together: fitted beside x and used by no prediction. r = how far a rate lies outside what a kernel was measured
at:

    r = log(rate / high) / above   where a calibration promises more than was measured
        log(rate / low) / below    where it promises clearly less: a step loses some of what a bare kernel reaches
        0                          between

The last sum keeps every parameter near its default unless runs say otherwise. Whole steps cannot tell a product that is
too slow from traffic that is too fast; kernels measured by themselves can, and a chip without runs is known by them
alone. Nothing is drawn at random: the same rows give the same calibration.
"""

from __future__ import annotations

import hashlib
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Literal

import numpy as np

from ridgeline.calibrate.folds import Dataset
from ridgeline.calibrate.truth.laboratories import laboratory_of
from ridgeline.calibrate.truth.rows import Row
from ridgeline.core.arrays import Array, Index, Mask
from ridgeline.core.documents import JsonObject
from ridgeline.core.dtype import PEAKS
from ridgeline.core.errors import InputError, MissingNumber
from ridgeline.core.units import DECIMAL
from ridgeline.cost import PARAMETERS, Calibration, Owners, owners, shipped_profiles
from ridgeline.cost.anchoring import APART
from ridgeline.cost.fitting import flash_seconds, measured_updates, padded_flops, product_parameter
from ridgeline.cost.pricing import Machines, ParameterColumns, SustainedRates, measured_memory
from ridgeline.hardware.load import CHIPS, system
from ridgeline.hardware.topology import Topology
from ridgeline.ir.kernel import product_flops
from ridgeline.plan.engine import ENGINES

TRUTH = Path(__file__).parent / "truth"
# read from publications and own runs; derived from aiconfigurator's tables by `python -m tools figures anchors`
SERVING_ANCHORS = TRUTH / "anchors_kernels.toml"
SHIPPED_ANCHORS = (TRUTH / "anchors.toml", SERVING_ANCHORS)
ABOVE, BELOW = 0.03, 0.10  # how far, in logarithms, a rate may lie outside what was measured
Kind = Literal["product", "attention", "memory", "link"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Anchor:
    """One measured rate of one chip: between `low` and `high`, in flops/s, bytes/s, or as a share of its link.

    shape       m, n, k of a product
    direction   of attention
    head_dim    of attention
    engine      whose attention library it is
    rows        where it was measured
    serving     of a serving library, which training libraries may surpass or miss
    """

    kind: Kind
    chip: str
    engine: str
    low: float
    high: float
    rows: str
    precision: str = "bf16"
    shape: tuple[int, int, int] = (8192, 8192, 8192)
    direction: Literal["forward", "backward"] = "forward"
    head_dim: int = 128
    serving: bool = False

    @property
    def owners(self) -> Owners:
        """What its parameters are known by."""
        return owners(system(f"1x{self.chip}").chip, ENGINES[self.engine])


def _read(table: JsonObject) -> Anchor:
    unit = 1.0 if table["kind"] == "link" else DECIMAL["T"]
    sizes = {"shape": tuple(table["shape"])} if "shape" in table else {}
    entry = {"engine": "generic"} | table | sizes | {"low": table["low"] * unit, "high": table["high"] * unit}
    return Anchor(**entry)


@cache
def anchors() -> tuple[Anchor, ...]:
    """The anchors that ship with Ridgeline."""
    read = [(path, tomllib.loads(path.read_text(encoding="utf-8"))["anchor"]) for path in SHIPPED_ANCHORS]
    return tuple(_read(table | {"serving": path == SERVING_ANCHORS}) for path, tables in read for table in tables)


def promised_rates(known: Sequence[Anchor], parameters: ParameterColumns) -> Array:
    """The rate that parameters promise for each anchor, one entry of every column for each."""
    machines = _machines(tuple(anchor.chip for anchor in known))
    rates = SustainedRates.bare(machines, parameters, np.full(len(known), float(PEAKS.index("bf16"))))
    return np.array([_rate(anchor, rates, row) for row, anchor in enumerate(known)])


@cache
def _machines(chips: tuple[str, ...]) -> Machines:
    """The chips of anchors, by row: the same in every round of a fit."""
    return Machines.of([system(f"8x{chip}") for chip in chips])


@cache
def _useful(shape: tuple[int, int, int], cores: float) -> float:
    """The share of a product's padded flops that it asked for."""
    m, n, k = (np.array([float(side)]) for side in shape)
    return float(product_flops(m, n, k)[0] / padded_flops(m, n, k, np.ones(1), np.array([cores]))[0])


def _rate(anchor: Anchor, rates: SustainedRates, row: int) -> float:
    machines = rates.machines
    match anchor.kind:
        case "product":
            useful = _useful(anchor.shape, float(machines.cores[row]))
            return float(rates.peak[row, PEAKS.index(anchor.precision)]) * useful
        case "attention":
            back = anchor.direction == "backward"
            share = (rates.attention_back if back else rates.attention)[row]
            sizes = (np.array([value]) for value in (1.0, float(anchor.head_dim), float(back)))
            units = (rates.attention_peak[row] * share, machines.exponentials[row] * share)
            return float(1.0 / flash_seconds(*sizes, *(np.array([unit]) for unit in units))[0])
        case "memory":
            return float(rates.memory[row])
        case "link":
            return float(rates.links.scale_up[row] / machines.scale_up[row])


def anchor_residuals(known: Sequence[Anchor], parameters: ParameterColumns) -> Array:
    """How far outside its measured range each promised rate lies, in units of what is tolerated."""
    rate = np.log(promised_rates(known, parameters))
    low, high = (np.log([getattr(anchor, end) for anchor in known]) for end in ("low", "high"))
    outside: Array = np.maximum(rate - high, 0.0) / ABOVE + np.minimum(rate - low, 0.0) / BELOW
    return outside


SIZES = (64, 8)  # chips of the systems in which two are compared: some have no network beyond their node
RATES = ("matmul_wide", "matmul_8", "matmul_4", "attention", "memory", "near", "far")


@dataclass(frozen=True, slots=True, kw_only=True)
class ChipSheet:
    """The numbers a chip is priced by in a system of so many, and how that is wired."""

    machine: Machines
    wired: tuple[tuple[int, Topology], ...]


@cache
def sheet_of(chip: str, chips: int) -> ChipSheet | None:
    """What is known of a chip; None where a number is missing that every step on so many of them needs."""
    try:
        built_system = system(f"{chips}x{chip}")
        return ChipSheet(
            machine=Machines.of([built_system]), wired=tuple((tier.chips, tier.topology) for tier in built_system.tiers)
        )
    except (MissingNumber, InputError):
        return None


def surpasses(one: str, other: str) -> bool:
    """Whether a chip is as good as another of its family in every number that prices it, wired alike.

    As many cores, too: the waves in which tiles fill them are whole, so that more of them are no better for every size.

    >>> surpasses("h200-sxm", "h100-sxm"), surpasses("h100-sxm", "h200-sxm"), surpasses("h200-sxm", "a100-80-sxm")
    (True, False, False)
    """
    first, second = CHIPS[one], CHIPS[other]
    if one == other or not first.family or first.family != second.family:
        return False
    sheets = ((sheet_of(one, chips), sheet_of(other, chips)) for chips in SIZES)
    return any(_as_good(better, theirs) for better, theirs in sheets if better is not None and theirs is not None)


def _as_good(one: ChipSheet, other: ChipSheet) -> bool:
    better, theirs = one.machine, other.machine
    if one.wired != other.wired or better.cores[0] != theirs.cores[0]:
        return False
    has_peak = better.peak > 0  # a format without a peak is not slower: it is not there
    peaks = (better.peak >= theirs.peak) & (better.peak / better.density >= theirs.peak / theirs.density)
    columns = ("memory", "scale_up", "scale_out", "host", "exponentials")
    return bool(peaks[has_peak].all()) and all(
        (getattr(better, name) >= getattr(theirs, name)).all() for name in columns
    )


def measured_pairs(offsets: frozenset[str]) -> Iterator[tuple[str, str]]:
    """Chips with offsets of their own and those that they surpass, lesser ones first."""
    chips = [id for id in CHIPS if any(key.endswith(f"/{id}") for key in offsets)]
    pairs = [(better, lesser) for better in chips for lesser in chips if surpasses(better, lesser)]
    return iter(sorted(pairs, key=lambda pair: sum(first == pair[0] for first, _ in pairs)))


def never_slower(calibration: Calibration) -> Calibration:
    """The calibration with offsets of chips raised to those of the chips they surpass, where their rates ask for it.

    Runs of an H200 and an H100 are of different software and sizes, so that each chip's own offsets carry some of that:
    a fit may end with the better chip at a share of its peak a hair below the lesser one's.
    """
    offsets = dict(calibration.offsets)
    for better, lesser in measured_pairs(frozenset(offsets)):
        for name in RATES:
            keys = [f"{name}/{_owner(name, chip)}" for chip in (better, lesser)]
            own_offset, theirs = (offsets.get(key, 0.0) for key in keys)
            if own_offset < theirs and _slower(name, better, lesser, Calibration(offsets=offsets)):
                offsets[keys[0]] = theirs
    return Calibration(offsets=MappingProxyType(offsets), source=calibration.source)


def _owner(name: str, chip: str) -> str:
    """Under whose id a parameter of a chip is fitted: what cores sustain under that of its die."""
    catalog_chip = CHIPS[chip]
    return catalog_chip.fitted_die if "die" in PARAMETERS[name].per else catalog_chip.fitted_id


def _slower(name: str, one: str, other: str, calibration: Calibration) -> bool:
    """Whether the chip that surpasses the other sustains less of anything that a parameter is a share of."""
    power = calibration.value("power", CHIPS[one], ENGINES["megatron-core"])
    better_rate, theirs = (_bare(name, chip, power) for chip in (one, other))
    train = [engine for engine in ENGINES.values() if engine.serves is None]
    shares = [[calibration.value(name, CHIPS[chip], engine) for engine in train] for chip in (one, other)]
    return any(bool((a * better_rate < b * theirs)[better_rate > 0].any()) for a, b in zip(*shares, strict=True))


def _bare(name: str, chip: str, power: float) -> Array:
    """What a parameter is a share of."""
    machine = next(sheet for chips in SIZES if (sheet := sheet_of(chip, chips)) is not None).machine
    if name.startswith("matmul"):
        peaks = [place for place, key in enumerate(PEAKS) if product_parameter(key) == name]
        return np.asarray((machine.peak * machine.density**-power)[0, peaks])
    if name == "attention":
        return np.asarray(machine.peak[0])
    return np.asarray(getattr(machine, {"memory": "memory", "near": "scale_up", "far": "scale_out"}[name]))


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
class OffsetPrior:
    """How strongly a fit is held.

    Four stand at their defaults. `serving` was set with left-out sources in view: held strictly (1), nvfp4 training on
    GB300 comes out 11 % too slow, its products being faster than any serving library's; loosely (0.1), families of
    chips left out are a little further off. `choose_prior` says what the choice is worth where it is made in folds.

    common   factor on how far common values may move
    apart    factor on how far chips and engines may differ
    source   exponent by which a row of a large source counts less
    anchors  factor on how strictly kernels are held to
    serving  the same for those of serving libraries, against the others
    habit    how far, in logarithms, all runs of a laboratory may be off together for reasons of its own, and those of
             one software on one family of its chips: effects that are fitted and that no prediction uses
    """

    common: float = 1.0
    apart: float = 1.0
    source: float = 0.0
    anchors: float = 1.0
    serving: float = 0.3
    habit: float = 0.0


SHIPPED_PRIOR = OffsetPrior()


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetColumns:
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
class OffsetLayout:
    """Where each offset stands in the vector that is fitted, and how rows and anchors read it."""

    names: tuple[str, ...]
    spread: Array
    rows: OffsetColumns
    anchored: OffsetColumns

    def rates(self, offsets: Array) -> ParameterColumns:
        """Values of all parameters by row."""
        return self.rows.rates(offsets)


def layout_of(
    table: Dataset, prior: OffsetPrior = SHIPPED_PRIOR, without: frozenset[str] = frozenset()
) -> OffsetLayout:
    """The offsets to fit: one per parameter, one more per chip or engine it may differ by; not those `without`.

    What a chip or an engine is not known by (no family, no library) has an offset that stays zero.
    """
    runs = [owners(scenario.system.chip, scenario.engine) for scenario in table.scenarios]
    kernels = [anchor.owners for anchor in anchors()]
    at: dict[str, int] = {}
    spreads: list[float] = []
    for name, item in PARAMETERS.items():
        free = item.group not in without
        at[name] = len(at)
        spreads.append(item.spread * prior.common if free else FIXED)
        for owner in item.per:
            for member in sorted({owner_names.of(owner) for owner_names in (*runs, *kernels)}):
                at[f"{name}/{member or NOBODY}"] = len(at)
                spreads.append(APART[owner] * prior.apart if free and member else FIXED)
    unknown = np.full(len(table.scenarios), np.nan)
    copies, updates = (
        measure(table.scenarios, shipped_profiles(), unknown) for measure in (measured_memory, measured_updates)
    )
    rows = replace(_columns(at, runs), measured=MappingProxyType({"memory": copies, "update": updates}))
    return OffsetLayout(names=tuple(at), spread=np.array(spreads), rows=rows, anchored=_columns(at, kernels))


def _columns(at: Mapping[str, int], each: Sequence[Owners]) -> OffsetColumns:
    """How rows of these owners read a vector whose names stand at these places."""
    offset_rows = {
        name: tuple(
            np.array([at[f"{name}/{row.of(owner) or NOBODY}"] for row in each], dtype=np.int64) for owner in item.per
        )
        for name, item in PARAMETERS.items()
    }
    return OffsetColumns(
        common=MappingProxyType({name: at[name] for name in PARAMETERS}),
        own=MappingProxyType(offset_rows),
        known=MappingProxyType({name: np.array([row.known_share(name) for row in each]) for name in PARAMETERS}),
        measured=MappingProxyType({}),
    )


def weights(rows: Sequence[Row], prior: OffsetPrior = SHIPPED_PRIOR) -> Array:
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
    prior: OffsetPrior = SHIPPED_PRIOR, rounds: int = 4,
) -> tuple[OffsetLayout, Array]:  # fmt: skip
    """Offsets that fit the chosen rows, and the anchors, best."""
    problem = _FitProblem.of(table, chosen, prior, without)
    vector = np.zeros(len(problem.spread))
    size = len(problem.layout.names)
    vector[:size] = 0.0 if start is None else start
    return problem.layout, descend(problem, vector, rounds)[:size]


@dataclass(frozen=True, slots=True, kw_only=True)
class _FitProblem:
    """What is minimised: logarithms of predicted over measured of the chosen rows, rates of anchors, and the prior.

    The vector is the offsets of `layout`, then one effect of each laboratory and of each of its kinds of run.
    """

    table: Dataset
    chosen: Mask
    layout: OffsetLayout
    effects: Index
    spread: Array
    weight: Array
    strict: Array

    @classmethod
    def of(cls, table: Dataset, chosen: Mask, prior: OffsetPrior, without: frozenset[str]) -> _FitProblem:
        """The problem of some rows of a table."""
        layout, effects = layout_of(table, prior, without), habit_columns(table)
        return cls(
            table=table,
            chosen=chosen,
            layout=layout,
            effects=effects,
            spread=np.concatenate([layout.spread, np.full(int(effects.max(initial=-1)) + 1, prior.habit or FIXED)]),
            weight=weights(table.rows, prior) / NOISE,
            strict=np.array([prior.anchors * (prior.serving if anchor.serving else 1.0) for anchor in anchors()]),
        )

    def rows(self, vector: Array) -> Array:
        """How far off the chosen rows are, in units of their noise."""
        size = len(self.layout.names)
        step_s = self.table.steps(self.layout.rows.rates(vector[:size])).step_s
        own = vector[size:][self.effects].sum(1)
        return np.asarray(((np.log(step_s) + own - np.log(self.table.measured_s)) * self.weight)[self.chosen])

    def kernels(self, vector: Array) -> Array:
        """How far outside their range the anchors are."""
        rates = self.layout.anchored.rates(vector[: len(self.layout.names)])
        return np.asarray(anchor_residuals(anchors(), rates) * self.strict)

    def residuals(self, vector: Array) -> Array:
        """Both."""
        return np.concatenate([self.rows(vector), self.kernels(vector)])

    def slopes(self, vector: Array) -> Array:
        """Their derivatives. A chip's or an engine's own offset moves its rows as the common one does, so that one
        slope serves both."""
        everything = np.ones(len(anchors()), np.bool_)
        parts = ((self.rows, self.layout.rows, self.chosen), (self.kernels, self.layout.anchored, everything))
        blocks = [_slopes(part, columns, mask, vector) for part, columns, mask in parts]
        places, size = np.arange(int(self.chosen.sum())), len(self.layout.names)
        for column in self.effects[self.chosen].T:
            blocks[0][places, size + column] = self.weight[self.chosen]
        return np.concatenate(blocks)

    def cost(self, residuals: Array, vector: Array) -> float:
        """What is minimised: residuals count linearly once they are large, offsets as squares of their spreads."""
        return float((2 * (np.sqrt(1 + residuals**2) - 1)).sum() + ((vector / self.spread) ** 2).sum())


CHORDS = 3  # steps that are taken along the same slopes, of which many thousand prices are made


def descend(problem: _FitProblem, vector: Array, rounds: int) -> Array:
    """The vector after so many rounds of Gauss and Newton with Marquardt's damping and slopes that serve some steps.

        (J' W J + (1 + d) / spread^2) step = -(J' W r + x / spread^2)         W = 1 / sqrt(1 + r^2)

    d grows until a step lowers what is minimised, so that none is ever taken that raises it.
    """
    damping, residuals = 0.0, problem.residuals(vector)
    lowest = problem.cost(residuals, vector)
    precision = 1 / problem.spread**2
    for _ in range(rounds):
        slopes = problem.slopes(vector)
        for _ in range(CHORDS):
            robust = slopes / np.sqrt(1 + residuals**2)[:, None]
            gradient, curvature = robust.T @ residuals + vector * precision, robust.T @ slopes
            curvature[np.diag_indices_from(curvature)] += precision * (1 + damping)
            proposal = vector - np.linalg.solve(curvature, gradient)
            proposed_residuals = problem.residuals(proposal)
            cost = problem.cost(proposed_residuals, proposal)
            if not cost < lowest:
                damping = max(1.0, damping * 10)
                continue
            damping, vector, residuals, lowest = damping / 5, proposal, proposed_residuals, cost
    return vector


def effective_parameters(table: Dataset, offsets: Array, prior: OffsetPrior = SHIPPED_PRIOR) -> float:
    """How many parameters the rows and anchors determine, of all that have a place in the vector.

        trace((H + 1 / spread^2)^-1 H)          H = J' W J

    An offset that nothing measures counts 0, one that the data alone decide counts 1, as for ridge regression.
    """
    problem = _FitProblem.of(table, np.ones(len(table.rows), dtype=np.bool_), prior, frozenset())
    vector = np.zeros(len(problem.spread))
    vector[: len(offsets)] = offsets
    slopes = problem.slopes(vector)
    curvature = (slopes / np.sqrt(1 + problem.residuals(vector) ** 2)[:, None]).T @ slopes
    return float(np.trace(np.linalg.solve(curvature + np.diag(1 / problem.spread**2), curvature)))


def habit_columns(table: Dataset) -> Index:
    """Which effects of laboratories each row has: that of its own, and that of its software and chips there."""
    labs = [laboratory_of(row) for row in table.rows]
    families = [scenario.system.chip.family for scenario in table.scenarios]
    cells = [f"{lab}/{engine}/{family}" for lab, engine, family in zip(labs, table.engines, families, strict=True)]
    places = {name: place for place, name in enumerate(dict.fromkeys([*labs, *cells]))}
    return np.array([[places[lab], places[cell]] for lab, cell in zip(labs, cells, strict=True)], dtype=np.int64)


def _slopes(part: Callable[[Array], Array], columns: OffsetColumns, chosen: Mask, offsets: Array) -> Array:
    """Derivatives of some residuals with respect to every offset."""
    here, places = part(offsets), np.arange(int(chosen.sum()))
    jacobian = np.zeros((len(here), len(offsets)))
    for name, index in columns.common.items():
        shifted_offsets = offsets.copy()
        shifted_offsets[index] += STEP
        slope = (part(shifted_offsets) - here) / STEP
        jacobian[:, index] = slope
        for offset_rows in columns.own[name]:
            jacobian[places, offset_rows[chosen]] = slope
    return jacobian


def calibration_of(layout: OffsetLayout, offsets: Array, source: str) -> Calibration:
    """The offsets under their names, rounded so that a file of them is stable; no chip slower than one it surpasses."""
    named_offsets = {name: round(float(x), 4) for name, x in zip(layout.names, offsets, strict=True) if abs(x) >= 5e-5}
    return never_slower(Calibration(offsets=MappingProxyType(named_offsets), source=source))


def fold_of(group: str) -> int:
    """The fold a group belongs to: fixed by its name, so that a row never moves to another fold."""
    return int.from_bytes(hashlib.sha256(group.encode()).digest()[:4], "big") % FOLDS
