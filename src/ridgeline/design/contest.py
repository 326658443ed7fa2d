"""Turn two machines into which is better for a mix, and how sure: draws of what is uncertain, priced on both.

Uncertain are the numbers of each machine by their evidence, what the calibration says is reached of them, and the
price. The chance that a measurement changes the decision is the value of knowing a number: how much surer the better
choice becomes, on average, once that number is known.

    value(x) = E over x of max(p(x), 1 - p(x)) - max(p, 1 - p)          p = share of draws in which the first is better
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import log

import numpy as np

from ridgeline.core.arrays import Array, Mask
from ridgeline.core.errors import InputError, Problem
from ridgeline.core.evidence import Evidence, Quoted
from ridgeline.core.records import dataclass
from ridgeline.design.chip_sketch import sizes_of
from ridgeline.design.design_answer import Contest, DesignPoint
from ridgeline.design.space import DesignSpace
from ridgeline.design.technology import chip_cost
from ridgeline.hardware.load import CHIPS, resize_name
from ridgeline.hardware.load import system as system_of
from ridgeline.hardware.system import System
from ridgeline.sim.batches import MachineRows

DRAWS, BINS, SEED = 2048, 8, 20251101
SPREADS: Mapping[Evidence, float] = {
    Evidence.MEASURED: 0.02,
    Evidence.FITTED: 0.05,
    Evidence.DATASHEET: 0.03,
    Evidence.ANALYTIC: 0.08,
    Evidence.ASSUMED: 0.15,
}
"""Standard deviation of the logarithm of a number by its evidence, assumed."""
REACHED = {"peak": 0.08, "memory": 0.05, "scale_up": 0.10, "scale_out": 0.08}  # of what chips reach of a data sheet
PRICE = 0.20
MEASUREMENTS = {
    "compute": "a large matrix product in the format of the workload, sustained for a minute",
    "memory": "a copy of several GB, and a decode's attention over a full cache",
    "scale_up": "an all-reduce of 1 GB inside the domain",
    "scale_out": "an all-reduce of 1 GB between domains",
    "price": "a quotation for the hour of a chip, all in",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Contestant:
    """One machine: for each workload its rows by plan, dollars an hour, and how uncertain its numbers are."""

    name: str
    rows: tuple[tuple[MachineRows, ...], ...]
    factors: Mapping[str, float]
    usd_per_hour: float
    spreads: Mapping[str, float]


def find_contest(
    space: DesignSpace, names: Sequence[str], points: Mapping[str, DesignPoint], objective: str
) -> Contest:
    """Which of two machines takes less of the objective, over draws."""
    if len(names) != 2:
        expectation = "two machines, A,B: points of the frontier, today, or chips of the catalog"
        raise InputError(Problem(path="--versus", given=",".join(names)[:60], expected=expectation))
    first, second = (_contestant(space, name.strip(), points) for name in names)
    generator = np.random.default_rng(SEED)
    drawn = [
        {name: generator.normal(0.0, deviation, DRAWS) for name, deviation in contestant.spreads.items()}
        for contestant in (first, second)
    ]
    if first.name == second.name:
        drawn[1] = drawn[0]
    logs = _log_objective(space, first, drawn[0], objective) - _log_objective(space, second, drawn[1], objective)
    wins = logs < 0
    drawn_columns = {
        f"{contestant.name} {name}": values
        for contestant, drawn_numbers in zip((first, second), drawn, strict=True)
        for name, values in drawn_numbers.items()
    }
    values = sorted(
        ((name, _worth(column, wins)) for name, column in drawn_columns.items()),
        key=lambda entry: (-entry[1], entry[0]),
    )
    low, middle, high = (float(np.exp(value)) for value in np.quantile(logs, (0.05, 0.5, 0.95)))
    decisive = values[0][0]
    return Contest(
        first=first.name,
        second=second.name,
        objective=objective,
        probability=float(wins.mean()),
        ratio=middle,
        ratio_low=low,
        ratio_high=high,
        draws=DRAWS,
        decisive=tuple(values[:3]),
        flips_at=_flip(drawn_columns[decisive], logs),
        measurement=f"{MEASUREMENTS[decisive.rsplit(' ', 1)[1]]}, on {decisive.rsplit(' ', 1)[0]}",
    )


def _log_objective(space: DesignSpace, contestant: Contestant, drawn: Mapping[str, Array], objective: str) -> Array:
    """Logarithm of the mix's time, or of its cost, in every draw."""
    factors: dict[str, Array] = {name: np.full(DRAWS, value) for name, value in contestant.factors.items()}
    for name, columns in DRAWN.items():
        for column in columns:
            factors[column] = factors.get(column, np.ones(DRAWS)) * np.exp(drawn[name])
    total = np.zeros(DRAWS)
    for weight, plans, reference in zip(space.weights, contestant.rows, space.reference_seconds, strict=True):
        seconds = np.min([rows.times(factors, DRAWS).seconds for rows in plans], axis=0)
        total += weight * np.log(seconds / reference)
    return total + (np.log(contestant.usd_per_hour) + drawn["price"] if objective == "cost" else 0.0)


FORMATS = ("fp64", "fp32", "tf32", "bf16", "fp16", "fp8", "int8", "fp4", "int4")
DRAWN = {
    "compute": (*(f"peak.{key}" for key in FORMATS), "exponentials"),
    "memory": ("memory",),
    "scale_up": ("scale_up",),
    "scale_out": ("scale_out",),
}


def _worth(column: Array, wins: Mask) -> float:
    """How much surer the better choice becomes once a number is known, over equal shares of its draws."""
    overall = float(wins.mean())
    parts = np.array_split(wins[np.argsort(column, kind="stable")], BINS)
    shares = np.array([part.mean() for part in parts])
    return max(0.0, float(np.maximum(shares, 1 - shares).mean()) - max(overall, 1 - overall))


def _flip(column: Array, logs: Array) -> float | None:
    """The number over what is assumed at which both are equal, by a line through the draws; None beyond three times."""
    slope, height = np.polyfit(column, logs, 1)
    at = -height / slope if slope else np.inf
    return float(np.exp(at)) if abs(at) <= log(3) else None


def _contestant(space: DesignSpace, name: str, points: Mapping[str, DesignPoint]) -> Contestant:
    if name in points:
        return _of_point(space, name, points[name])
    if name not in CHIPS:
        drawn_columns = ", ".join([*points][:6])
        raise InputError(
            Problem(
                path="--versus", given=repr(name)[:60], expected=f"a chip of the catalog, or one of {drawn_columns}"
            )
        )
    return _of_catalog(space, name)


def _of_point(space: DesignSpace, name: str, point: DesignPoint) -> Contestant:
    values = {key: np.array([value]) for key, value in point.choices.items()}
    factors = space.factors(values, np.array([point.power_w]))
    domain = point.choices.get("scaleup.domain")
    rows = []
    for place, workload in enumerate(space.workloads):
        result = [space.rows_that_fit(place, plan, domain, values) for plan in range(len(workload.scenarios))]
        rows.append(tuple(entry for entry in result if entry is not None))
    spreads = {
        name: float(np.hypot(SPREADS[Evidence.ASSUMED if point.choices else Evidence.DATASHEET], REACHED.get(key, 0.0)))
        for name, key in (
            ("compute", "peak"),
            ("memory", "memory"),
            ("scale_up", "scale_up"),
            ("scale_out", "scale_out"),
        )
    }
    return Contestant(
        name=name,
        rows=tuple(rows),
        factors={key: float(column[0]) for key, column in factors.items()},
        usd_per_hour=point.usd_per_hour,
        spreads={**spreads, "price": PRICE},
    )


def _of_catalog(space: DesignSpace, name: str) -> Contestant:
    chip, rows = CHIPS[name], []
    for workload in space.workloads:
        plans = [
            replace(scenario, system=_system_like(scenario.system, chip.id), assumptions=())
            for scenario in workload.scenarios
        ]
        rows.append(tuple(MachineRows(drawn_numbers) for drawn_numbers in plans if space.fits(drawn_numbers)))
        if not rows[-1]:
            raise InputError(
                Problem(
                    path="--versus",
                    given=f"{name}, whose memory no plan of {workload.name} fits",
                    expected="a chip that some plan fits",
                )
            )
    cost = chip_cost(sizes_of(chip), space.tech)
    hour = chip.price.value if chip.price else float(space.tariff.usd_per_hour(cost))
    numbers: dict[str, Quoted | None] = {
        "compute": chip.peak.get("bf16"),
        "memory": chip.hbm.bandwidth,
        "scale_up": chip.scaleup.bandwidth,
        "scale_out": chip.scaleout.bandwidth,
    }
    reached_of = {"compute": "peak"}
    spreads = {
        key: float(
            np.hypot(SPREADS[number.evidence if number else Evidence.ASSUMED], REACHED[reached_of.get(key, key)])
        )
        for key, number in numbers.items()
    }
    price = PRICE if chip.price else 2 * PRICE
    return Contestant(name=name, rows=tuple(rows), factors={}, usd_per_hour=hour, spreads={**spreads, "price": price})


def _system_like(whole: System, chip: str) -> System:
    """As many chips of another kind, in the system that they usually come in."""
    return system_of(resize_name(chip, whole.chips))
