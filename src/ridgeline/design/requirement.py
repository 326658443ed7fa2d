"""Turn limits into the smallest machine that keeps them: which number binds by which limit, and how much room is left.

    tpot<=20ms,usd_per_mtok<=0.4,pretrain.step_time<=40s

A limit without a workload's name holds for every workload that has the metric. The cheapest design of the grid that
keeps all of them is the start; then each number is made as small as it can be by itself, the dearest first, so that in
the end none can be made smaller alone.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType

import numpy as np

from ridgeline.core.arrays import Array, Mask
from ridgeline.core.errors import InputError, Problem, not_among
from ridgeline.core.records import dataclass
from ridgeline.core.units import parse_quantity
from ridgeline.design.design_answer import LimitSlack, Requirement
from ridgeline.design.frontier import within_budgets
from ridgeline.design.points import METRICS, design_points, usd_per_million
from ridgeline.design.space import DesignCosts, DesignSpace

LIMIT = re.compile(r"\s*(?:([\w-]+)\.)?(tpot|ttft|step_time|usd_per_mtok)\s*<=?\s*([^,]+?)\s*")
NAMES = ("tpot", "ttft", "step_time", "usd_per_mtok")
CHUNK, STEPS = 2048, 24  # designs priced at once; halvings of a number's range
BINDS = 0.02  # room as a share of a limit below which it binds
SMALLER_IS_DEARER = frozenset(("scaleup.latency", "scaleout.latency"))


@dataclass(frozen=True, slots=True, kw_only=True)
class RequirementLimit:
    """One limit: of which workloads (places), of what, and how much, in seconds or dollars."""

    text: str
    places: tuple[int, ...]
    metric: str
    largest: float


def read_limits(text: str, space: DesignSpace) -> tuple[RequirementLimit, ...]:
    """The limits that a text states, or an `InputError`."""
    return tuple(_limit(part, space) for part in text.split(",") if part.strip())


def _limit(part: str, space: DesignSpace) -> RequirementLimit:
    match = LIMIT.fullmatch(part)
    if match is None:
        expectation = (
            f"METRIC<=VALUE with METRIC of {', '.join(NAMES)}, before it a workload and a dot where one is meant"
        )
        raise InputError(Problem(path="--meet", given=repr(part)[:60], expected=expectation))
    workload, metric, value = match.groups()
    names = [entry.name for entry in space.workloads]
    if workload and workload not in names:
        raise InputError(not_among("--meet", workload, names))
    kinds = {place: METRICS[space.scenario(place, 0).workload.kind] for place in range(len(names))}
    places = [
        place
        for place, kind in kinds.items()
        if (not workload or names[place] == workload) and (metric == "usd_per_mtok" or kind == f"{metric}_s")
    ]
    if metric == "usd_per_mtok" and not workload:
        places = [place for place in places if kinds[place] == "tpot_s"] or places
    if not places:
        raise InputError(
            Problem(path="--meet", given=repr(part)[:60], expected="a metric that a workload of the study has")
        )
    largest = _amount(value, metric)
    return RequirementLimit(text=part.strip(), places=tuple(places), metric=metric, largest=largest)


def _amount(value: str, metric: str) -> float:
    try:
        largest = float(value) if metric == "usd_per_mtok" else parse_quantity(value, "s")
    except (InputError, ValueError):
        expectation = "a number of dollars" if metric == "usd_per_mtok" else "a time such as 20ms"
        raise InputError(Problem(path="--meet", given=repr(value)[:40], expected=expectation)) from None
    if not 0 < largest < float("inf"):
        raise InputError(Problem(path="--meet", given=repr(value)[:40], expected="a limit above 0"))
    return largest


def find_requirement(space: DesignSpace, limits: Sequence[RequirementLimit]) -> Requirement:
    """The smallest machine of a study's ranges that keeps all limits and budgets."""
    start = _cheapest(space, limits)
    if start is None:
        nearest = _nearest(space, limits)
        return Requirement(
            feasible=False,
            point=None,
            choices=MappingProxyType({}),
            binds=MappingProxyType({}),
            limits=nearest,
            reason="no design of the study's ranges keeps all limits within its budgets; the slack is of the nearest",
        )
    choices, binds = _shrink(space, limits, start)
    values = {name: np.array([value]) for name, value in choices.items()}
    return Requirement(
        feasible=True,
        point=design_points(space, values, ["required"])[0],
        choices=MappingProxyType(choices),
        binds=MappingProxyType(binds),
        limits=_slacks(space, limits, values),
    )


def excess(
    space: DesignSpace, limits: Sequence[RequirementLimit], values: Mapping[str, Array]
) -> tuple[Array, DesignCosts]:
    """Every limit's value over what it allows, limits by designs: 1 or less is kept."""
    count = len(next(iter(values.values()))) if values else 1
    costs = space.costs(values, count)
    seconds = space.price(values, costs).seconds
    rows = []
    for limit in limits:
        worst = np.zeros(count)
        for place in limit.places:
            amounts = seconds[place]
            if limit.metric == "usd_per_mtok":
                amounts = amounts * usd_per_million(1.0, space.scenario(place, 0), 1.0) * costs.usd_per_hour
            worst = np.maximum(worst, amounts)
        rows.append(worst / limit.largest)
    return np.array(rows), costs


def _cheapest(space: DesignSpace, limits: Sequence[RequirementLimit]) -> dict[str, float] | None:
    for values in _by_price(space):
        over, _ = excess(space, limits, values)
        within_limits = np.flatnonzero((over <= 1).all(0))
        if len(within_limits):
            return {name: float(column[within_limits[0]]) for name, column in values.items()}
    return None


def _by_price(space: DesignSpace) -> list[dict[str, Array]]:
    """Designs within budgets, the cheapest first, in chunks."""
    count = space.study.points
    places = np.arange(count)
    costs = space.costs(space.values(places), count)
    within_limits: Mask = within_budgets(space, costs)
    order = places[within_limits][np.argsort(costs.usd_per_hour[within_limits], kind="stable")]
    return [space.values(order[start : start + CHUNK]) for start in range(0, len(order), CHUNK)]


def _nearest(space: DesignSpace, limits: Sequence[RequirementLimit]) -> tuple[LimitSlack, ...]:
    best: tuple[float, dict[str, Array]] | None = None
    for values in _by_price(space):
        worst = excess(space, limits, values)[0].max(0)
        place = int(worst.argmin())
        if best is None or worst[place] < best[0]:
            best = float(worst[place]), {name: column[[place]] for name, column in values.items()}
    return () if best is None else _slacks(space, limits, best[1])


def _shrink(
    space: DesignSpace, limits: Sequence[RequirementLimit], start: dict[str, float]
) -> tuple[dict[str, float], dict[str, str]]:
    """Every number as small as it can be by itself, and the limit that then breaks first."""
    choices, binds = dict(start), {}
    for axis in sorted(space.study.axes, key=lambda axis: (axis.name in SMALLER_IS_DEARER, axis.name)):
        ends = (axis.values[0], axis.values[-1])
        small, name = (ends[1], axis.name) if axis.name in SMALLER_IS_DEARER else (ends[0], axis.name)
        if axis.name == "scaleup.domain":
            trial = np.array([value for value in axis.values if value <= choices[name]])
        else:
            trial = np.geomspace(small, choices[name], STEPS * 8)
        over, costs = excess(space, limits, {**_columns(choices, len(trial)), name: trial})
        within_limits = (over <= 1).all(0) & within_budgets(space, costs)
        within_limits[-1] = True
        place = len(trial) - int(np.argmin(within_limits[::-1])) if not within_limits.all() else 0
        choices[name] = float(trial[place])
        worst = over[:, place - 1] if place else None
        binds[name] = "the range's end" if worst is None else limits[int(worst.argmax())].text
    return choices, binds


def _columns(choices: Mapping[str, float], count: int) -> dict[str, Array]:
    return {name: np.full(count, value) for name, value in choices.items()}


def _slacks(
    space: DesignSpace, limits: Sequence[RequirementLimit], values: Mapping[str, Array]
) -> tuple[LimitSlack, ...]:
    over, costs = excess(space, limits, values)
    rows = [
        (limit.text, limit.largest, float(limit.largest * share), "USD" if limit.metric == "usd_per_mtok" else "s")
        for limit, share in zip(limits, over[:, 0], strict=True)
    ]
    spent = {
        "area": costs.area_mm2,
        "power": costs.power_w,
        "price": costs.price_usd,
        "usd_per_hour": costs.usd_per_hour,
    }
    units = {"area": "mm2", "power": "W", "price": "USD", "usd_per_hour": "USD/h"}
    rows += [
        (f"budget.{name}", largest, float(spent[name][0]), units[name]) for name, largest in space.study.budgets.items()
    ]
    return tuple(
        LimitSlack(
            name=name,
            limit=largest,
            value=value,
            unit=unit,
            slack=1 - value / largest,
            binds=1 - value / largest < BINDS,
        )
        for name, largest, value, unit in rows
    )
