"""Turn a scenario's rows of machines into elasticities, the regimes beside today's, and the curve of one parameter.

    elasticity    (-25/12 f0 + 4 f1 - 3 f2 + 4/3 f3 - 1/4 f4) / h        f = ln metric, at 0, h, ... 4 h of ln parameter

on each side of today's value: the fourth-order one-sided difference, whose error at h = 1e-3 is below 1e-11. Where both
sides disagree, the kink is looked at again at a hundredth of the step, so that two values mean a kink at today's value.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ridgeline.core.arrays import Array
from ridgeline.core.records import dataclass
from ridgeline.cost.step_part import StepPart
from ridgeline.design.machine_parameters import MachineParameter, factor_rows
from ridgeline.design.sensitivity import ParameterPoint, RegimeChange, SaturationCurve
from ridgeline.sim.batches import MachineRows, RowTimes
from ridgeline.sim.forward_work import PHASE_PARTS

STEP, FINE = 1e-3, 1e-5  # of the logarithm of a parameter
WEIGHTS = np.array([-25 / 12, 4.0, -3.0, 4 / 3, -1 / 4])
SMOOTH = 1e-8  # difference of two sides that is none
FURTHEST, GRID = 16.0, 12  # how far regimes are looked for, times and over; points on each side
LEAST = 0.05  # change of an elasticity that counts as another regime
UNLIMITED = 1e9
CURVE_SPAN, CURVE_POINTS = 8.0, 49


@dataclass(frozen=True, slots=True, kw_only=True)
class Slopes:
    """One-sided elasticities of every parameter, in the order they were given."""

    below: Array
    above: Array


def slopes(rows: MachineRows, parameters: Sequence[MachineParameter]) -> Slopes:
    """Elasticities of all parameters below and above today's values."""
    sides = _sides(rows, parameters, STEP)
    kink_places = [place for place, gap in enumerate(abs(sides.below - sides.above)) if gap > SMOOTH]
    if not kink_places:
        return sides
    fine = _sides(rows, [parameters[place] for place in kink_places], FINE)
    below, above = sides.below.copy(), sides.above.copy()
    below[kink_places], above[kink_places] = fine.below, fine.above
    return Slopes(below=below, above=above)


def _sides(rows: MachineRows, parameters: Sequence[MachineParameter], step: float) -> Slopes:
    many = len(parameters)
    offsets = step * np.concatenate([np.arange(5), -np.arange(5)])
    values = np.ones((many, len(offsets), many))
    for place in range(many):
        values[place, :, place] = np.exp(offsets)
    seconds = _times(rows, parameters, values.reshape(-1, many)).seconds.reshape(many, 2, 5)
    logs = np.log(seconds / seconds[:, :, :1])  # relative to today, so that digits go into the difference
    slope_pair = logs @ WEIGHTS / step + 0.0  # no negative zeros
    return Slopes(below=0.0 - slope_pair[:, 1], above=slope_pair[:, 0])


def _times(rows: MachineRows, parameters: Sequence[MachineParameter], values: Array) -> RowTimes:
    return rows.times(factor_rows(tuple(parameters), values), len(values))


def limiters(times: RowTimes) -> tuple[Array, list[str]]:
    """The largest part of each row as its place in a list of names: products count by what bounds most of them."""
    parts = {f"{name} ({part_bound(name)})": column for name, column in times.parts.items() if name not in PRODUCTS}
    for name in PRODUCTS:
        column = times.parts.get(name)
        if column is not None:
            of_memory = times.memory_bound > 0.5
            parts[f"{name} (memory)"] = np.where(of_memory, column, 0.0)
            parts[f"{name} (compute)"] = np.where(of_memory, 0.0, column)
    table = np.stack([np.broadcast_to(column, times.seconds.shape) for column in parts.values()])
    return table.argmax(0), list(parts)


PRODUCTS = ("matmul", "experts")


def part_bound(name: str) -> str:
    """What bounds a part of a step, training or serving."""
    if name in PHASE_PARTS:
        return PHASE_PARTS[name][0]
    return next(part.bound for part in StepPart if part.value == name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ladder:
    """One parameter at many values: elasticity and limiter at each, `factors` rising."""

    factors: Array
    seconds: Array
    slope: Array
    limiter: tuple[str, ...]


def ladders(
    rows: MachineRows, parameters: Sequence[MachineParameter], factors: Callable[[MachineParameter], Array]
) -> tuple[Ladder, ...]:
    """Every parameter at its factors, all priced in one pass; slopes are those of a tenth of a per cent upwards."""
    many, grids = len(parameters), [factors(parameter) for parameter in parameters]
    lengths = [2 * len(grid) for grid in grids]
    values = np.ones((sum(lengths), many))
    start = 0
    for place, grid in enumerate(grids):
        values[start : start + lengths[place], place] = np.concatenate([grid, grid * np.exp(STEP)])
        start += lengths[place]
    times = _times(rows, parameters, values)
    largest, names = limiters(times)
    ladders_made, start = [], 0
    for grid, length in zip(grids, lengths, strict=True):
        half = length // 2
        seconds, moved_s = times.seconds[start : start + half], times.seconds[start + half : start + length]
        slope = np.log(moved_s / seconds) / STEP
        words = tuple(names[place] for place in largest[start : start + half].tolist())
        ladders_made.append(Ladder(factors=grid, seconds=seconds, slope=slope, limiter=words))
        start += length
    return tuple(ladders_made)


def regime_changes(
    rows: MachineRows, parameters: Sequence[MachineParameter], today: Slopes
) -> list[tuple[RegimeChange | None, RegimeChange | None]]:
    """The nearest regime change below and above today's value of every parameter, to two per cent of the value.

    A regime changes where another part becomes the largest, or where the elasticity has moved_s by half, at least 0.05.
    """
    up = np.geomspace(1.0, FURTHEST, GRID + 1)
    grid = np.concatenate([1 / up[:0:-1], up])
    rough = ladders(rows, parameters, lambda _: grid)
    spans = [
        (_bracket(ladder, slope, GRID, -1), _bracket(ladder, slope, GRID, 1))
        for ladder, slope in zip(rough, today.above.tolist(), strict=True)
    ]
    finer = {parameter.parameter: _finer(span) for parameter, span in zip(parameters, spans, strict=True)}
    exact = ladders(rows, parameters, lambda parameter: finer[parameter.parameter])
    return [
        (_change(parameter, ladder, slope, -1), _change(parameter, ladder, slope, 1))
        for parameter, ladder, slope in zip(parameters, exact, today.above.tolist(), strict=True)
    ]


def _is_other(ladder: Ladder, place: int, slope: float, base: int) -> bool:
    moved_s = abs(float(ladder.slope[place]) - slope)
    return ladder.limiter[place] != ladder.limiter[base] or moved_s >= max(abs(slope) / 2, LEAST)


def _bracket(ladder: Ladder, slope: float, base: int, side: int) -> tuple[float, float] | None:
    """The neighbouring grid points between which the first change on a side lies."""
    place = base
    while 0 <= place + side < len(ladder.factors):
        place += side
        if _is_other(ladder, place, slope, base):
            return float(ladder.factors[place - side]), float(ladder.factors[place])
    return None


def _finer(spans: tuple[tuple[float, float] | None, tuple[float, float] | None]) -> Array:
    below, above = (np.geomspace(*span, 13) if span else np.zeros(0) for span in spans)
    return np.concatenate([below[::-1], [1.0], above])


def _change(parameter: MachineParameter, ladder: Ladder, slope: float, side: int) -> RegimeChange | None:
    base = int(np.flatnonzero(ladder.factors == 1.0)[0 if side > 0 else -1])
    base = int(np.argmin(abs(ladder.factors - 1.0))) if not len(ladder.factors) else base
    place = base
    while 0 <= place + side < len(ladder.factors):
        place += side
        if _is_other(ladder, place, slope, base):
            factor = float(ladder.factors[place])
            return RegimeChange(
                factor=factor,
                value=factor * parameter.value,
                elasticity=float(ladder.slope[place]),
                limiter=ladder.limiter[place],
            )
    return None


def saturation_curve(
    rows: MachineRows, parameter: MachineParameter, metric: str, scale: float = 1.0
) -> SaturationCurve:
    """The metric from an eighth to eight times a parameter, where its worth ends, and what limits then.

    The knee is the first value upwards (of a time: downwards) at which one more per cent gives less than half of what
    it gives where it gives most.
    """
    better = 1 if parameter.kind == "rate" else -1
    grid = np.geomspace(1 / CURVE_SPAN, CURVE_SPAN, CURVE_POINTS)
    ladder = ladders(rows, [parameter], lambda _: grid)[0]
    worth = -better * ladder.slope
    order = np.arange(len(grid))[::better]
    steepest = int(order[worth[order].argmax()])
    after = [place for place in order.tolist() if (place - steepest) * better >= 0 and worth[place] < worth.max() / 2]
    knee = after[0] if after else int(order[-1])
    middle = CURVE_POINTS // 2
    unlimited_value = np.array([[UNLIMITED**better]])
    floor = float(_times(rows, [parameter], unlimited_value).seconds[0])
    points = tuple(
        ParameterPoint(
            factor=float(grid[place]),
            value=float(grid[place]) * parameter.value,
            metric=float(ladder.seconds[place]) * scale,
            elasticity=float(ladder.slope[place]),
            limiter=ladder.limiter[place],
        )
        for place in range(len(grid))
    )
    return SaturationCurve(
        parameter=parameter.parameter,
        title=parameter.title,
        unit=parameter.unit,
        metric=metric,
        knee_factor=float(grid[knee]),
        knee_value=float(grid[knee]) * parameter.value,
        gain_at_knee=float(ladder.seconds[middle] / ladder.seconds[knee]),
        floor=floor * scale,
        next_limiter=ladder.limiter[knee],
        points=points,
    )
