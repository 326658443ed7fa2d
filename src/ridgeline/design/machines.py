"""Turn a study of machines into its answer: the certified frontier, the best, what limits need, and who wins."""

from __future__ import annotations

from collections.abc import Iterator
from types import MappingProxyType

import numpy as np

from ridgeline.core.documents import JsonObject
from ridgeline.core.errors import InputError, Problem
from ridgeline.core.waits import ProgressCallback, ignore_progress
from ridgeline.design.contest import find_contest
from ridgeline.design.design_answer import DesignAnswer, DesignPoint
from ridgeline.design.frontier import FrontierPlaces, PriceRound, find_frontier
from ridgeline.design.points import design_points
from ridgeline.design.requirement import find_requirement, read_limits
from ridgeline.design.space import DesignSpace
from ridgeline.design.study import DesignStudy

MOST_SHOWN = 60  # points of the frontier that are told in full


def design_machines(
    study: DesignStudy,
    *,
    meet: str = "",
    versus: str = "",
    price_round: PriceRound | None = None,
    progress: ProgressCallback = ignore_progress,
) -> DesignAnswer:
    """The machines of a study that no other beats in time and cost, and what else was asked of them."""
    space = DesignSpace(study)
    limits = read_limits(meet, space)
    if not study.axes:
        raise InputError(Problem(path="space", given="nothing", expected="ranges of a machine's numbers"))
    front = find_frontier(space, price_round, progress)
    reference = design_points(space, {}, ["today"])[0]
    shown_rows = _shown_places(front)
    ids = [f"d{place}" for place in front.places[shown_rows].tolist()]
    points = design_points(space, space.values(front.places[shown_rows]), ids) if ids else []
    best = min(points, key=lambda point: _objective(study, point), default=None)
    points_by_name = {"today": reference, **{point.id: point for point in points}}
    if best is not None:
        points_by_name["best"] = best
    contest = find_contest(space, versus.split(","), points_by_name, study.objective) if versus else None
    return DesignAnswer(
        study=study.title,
        objective=study.objective,
        parameters=MappingProxyType(_parameters(space)),
        budgets=study.budgets,
        reference=reference,
        best=best,
        frontier=tuple(points),
        certificate=front.certificate,
        requirement=find_requirement(space, limits) if limits else None,
        contest=contest,
        derived_fields=space.derived_fields,
        notes=tuple(_notes(space, front)),
    )


def _objective(study: DesignStudy, point: DesignPoint) -> float:
    return point.relative_cost if study.objective == "cost" else point.relative_time


def _shown_places(front: FrontierPlaces) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
    """Places on the frontier that are told in full: both ends, and those between evenly."""
    return (
        np.unique(np.linspace(0, len(front.places) - 1, MOST_SHOWN).round().astype(np.int64))
        if len(front.places)
        else np.zeros(0, np.int64)
    )


def _parameters(space: DesignSpace) -> dict[str, JsonObject]:
    return {
        axis.name: {
            "unit": axis.unit,
            "today": space.today[axis.name],
            "from": axis.values[0],
            "to": axis.values[-1],
            "values": len(axis.values),
        }
        for axis in space.study.axes
    }


def _notes(space: DesignSpace, front: FrontierPlaces) -> Iterator[str]:
    if len(front.places) > MOST_SHOWN:
        yield f"{len(front.places)} designs are on the frontier; {MOST_SHOWN} of them are told"
    chip, tariff = space.chip, space.tariff
    yield (
        f"a chip sells at {tariff.margin:.3g} times what it costs to make, so that {chip.id} costs its published hour"
        if chip.price
        else f"no price of {chip.id} is published: {tariff.margin:g} times what it costs to make is assumed"
    )
    yield "what no plan in the study's lists can do is not counted: a plan is best among those of its list"
    names = {axis.name for axis in space.study.axes}
    if "cache.capacity" in names:
        yield "no price of an op depends on the cache: it costs area here and gains nothing"
    if "scaleup.domain" in names:
        yield "a larger scale-up domain costs its links, not its switches' share of a rack"
