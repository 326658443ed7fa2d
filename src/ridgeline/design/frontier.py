"""Turn a DesignSpace into its frontier of time and cost, and the proof that nothing better was missed.

    box      designs side by side in the grid        bound = least seconds of any plan at the best value of each of its
                                                     columns, times its least dollars an hour

More of a rate is never slower and less of a latency never either (a property that tests assert; where a served product
changes from memory to compute its fitted parameter changes, which `bound_slack` allows for), so no design of a box is
below the bound. A box goes unpriced only where a design that was priced is no worse than the bound in both. Boxes
are taken in rounds of a fixed number: a round is priced side by side on any number of processes or Ray workers, and the
answer is the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from ridgeline.core.arrays import Array, Index, Mask
from ridgeline.core.errors import InputError, Problem
from ridgeline.core.records import dataclass
from ridgeline.core.waits import ProgressCallback, ignore_progress
from ridgeline.design.design_answer import Certificate
from ridgeline.design.space import LARGER_IS_SLOWER, DesignCosts, DesignSpace
from ridgeline.design.study import DesignStudy

LEAF = 1024  # designs of a box that is priced rather than split
ROUND = 32  # boxes that are priced before the frontier is looked at again
PriceRound = Callable[[Sequence[Index]], list["PricedBox"]]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PricedBox:
    """Designs of a box that are within budgets: their places, relative time and relative cost (infinite: none fits)."""

    places: Index
    time: Array
    cost: Array


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FrontierPlaces:
    """Places of designs that no other beats in time and cost, by rising time; how the space was covered."""

    places: Index
    time: Array
    cost: Array
    certificate: Certificate


def undominated_places(time: Array, cost: Array) -> Index:
    """Places of points that no other beats in both, by rising time; of equal ones the first.

    >>> undominated_places(np.array([1.0, 2.0, 2.0, 3.0]), np.array([5.0, 4.0, 4.5, 4.0])).tolist()
    [0, 1]
    """
    order = np.lexsort((np.arange(len(time)), cost, time))
    order = order[np.isfinite(time[order])]
    if not len(order):
        return order
    least = np.minimum.accumulate(cost[order])
    first = np.concatenate([[True], cost[order][1:] < least[:-1]])
    return np.asarray(order[first])


def price_box(space: DesignSpace, places: Index) -> PricedBox:
    """Designs by place: relative time and cost of each."""
    values = space.values(places)
    costs = space.costs(values, len(places))
    priced_count = space.price(values, costs)
    time = space.relative(priced_count.seconds)
    hour = costs.usd_per_hour / float(space.costs({}, 1).usd_per_hour[0])
    return PricedBox(places=places, time=time, cost=time * hour)


def within_budgets(space: DesignSpace, costs: DesignCosts) -> Mask:
    """Which designs keep every budget of the study."""
    columns = {
        "area": costs.area_mm2,
        "power": costs.power_w,
        "price": costs.price_usd,
        "usd_per_hour": costs.usd_per_hour,
    }
    within_limits = np.ones(len(costs.area_mm2), dtype=bool)
    for name, limit in space.study.budgets.items():
        within_limits &= columns[name] <= limit
    return within_limits


def find_frontier(
    space: DesignSpace, price_round: PriceRound | None = None, progress: ProgressCallback = ignore_progress
) -> FrontierPlaces:
    """The certified frontier of a space."""
    how = price_round or (lambda boxes: [price_box(space, box) for box in boxes])
    count = space.study.points
    places = np.arange(count)
    costs = space.costs(space.values(places), count)
    within_limits = within_budgets(space, costs)
    boxes = [box for box in _leaves(space.study) if within_limits[box].any()]
    bounds = _box_bounds(space, boxes, costs, within_limits) if boxes else (np.zeros(0), np.zeros(0))
    order = np.argsort(bounds[0] * bounds[1], kind="stable")
    best_points = PricedBox(places=np.zeros(0, np.int64), time=np.zeros(0), cost=np.zeros(0))
    priced_count = bounded_count = infeasible = 0
    total = int(within_limits.sum())
    for start in range(0, len(order), ROUND):
        places_of = [boxes[place][within_limits[boxes[place]]] for place in order[start : start + ROUND].tolist()]
        low_time, low_cost = (bound[order[start : start + ROUND]] for bound in bounds)
        is_beaten = [
            bool(((best_points.time <= time) & (best_points.cost <= cost)).any())
            for time, cost in zip(low_time, low_cost, strict=True)
        ]
        todo = [own_places for own_places, is_lost in zip(places_of, is_beaten, strict=True) if not is_lost]
        bounded_count += sum(map(len, places_of)) - sum(map(len, todo))
        for box in how(todo) if todo else []:
            priced_count += len(box.places)
            infeasible += int(np.isinf(box.time).sum())
            best_points = _merge_boxes(best_points, box)
        best = f"{float(best_points.cost.min()):.3f} of today's cost" if len(best_points.cost) else ""
        if progress(priced_count + bounded_count, total, "designs", best) is False:
            raise InputError(Problem(path="", given="stopped", expected="the whole space, to certify a frontier"))
    certificate = Certificate(
        points=count, priced_points=priced_count, over_budget=count - total, bounded_points=bounded_count,
        infeasible=infeasible,
    )  # fmt: skip
    best_time, best_cost = best_points.time, best_points.cost
    return FrontierPlaces(places=best_points.places, time=best_time, cost=best_cost, certificate=certificate)


def _merge_boxes(one: PricedBox, other: PricedBox) -> PricedBox:
    """The points of both that none beats; of equal ones that with the smaller place, whatever came first."""
    places = np.concatenate([one.places, other.places])
    order = np.argsort(places, kind="stable")
    time, cost = (np.concatenate(pair)[order] for pair in ((one.time, other.time), (one.cost, other.cost)))
    best = undominated_places(time, cost)
    return PricedBox(places=places[order][best], time=time[best], cost=cost[best])


def _leaves(study: DesignStudy) -> Iterator[Index]:
    """Boxes of at most `LEAF` designs that cover the grid: axes are halved in turn, the longest first."""
    shape = [len(axis.values) for axis in study.axes]
    todo = [tuple((0, size) for size in shape)]
    while todo:
        box = todo.pop()
        sizes = [end - start for start, end in box]
        if int(np.prod(sizes, dtype=np.int64)) <= LEAF:
            ranges = [np.arange(start, end) for start, end in box]
            yield (
                np.ravel_multi_index(np.meshgrid(*ranges, indexing="ij"), shape).ravel()
                if shape
                else np.zeros(1, np.int64)
            )
            continue
        at = int(np.argmax(sizes))
        start, end = box[at]
        middle = (start + end) // 2
        todo.append((*box[:at], (middle, end), *box[at + 1 :]))
        todo.append((*box[:at], (start, middle), *box[at + 1 :]))


def _box_bounds(
    space: DesignSpace, boxes: Sequence[Index], costs: DesignCosts, within_limits: Mask
) -> tuple[Array, Array]:
    """Relative time and cost that no design of each box is below."""
    owner = np.repeat(np.arange(len(boxes)), [len(box) for box in boxes])
    all_places = np.concatenate(boxes)
    inside = within_limits[all_places]
    owner, all_places = owner[inside], all_places[inside]
    values = space.values(all_places)
    factors = space.factors(values, costs.power_w[all_places])
    starts = np.flatnonzero(np.concatenate([[True], owner[1:] != owner[:-1]]))
    best = {name: _best(name, column, starts) for name, column in factors.items()}
    capacity = values.get("memory.capacity")
    share = np.full(len(boxes), 1.0)
    if capacity is not None:
        share = np.maximum.reduceat(capacity, starts) / space.today["memory.capacity"]
    column = values.get("scaleup.domain")
    domains: list[float | None] = [None] if column is None else [float(value) for value in np.unique(column)]
    time = space.relative(space.bound(best, share, domains))
    hour = np.minimum.reduceat(costs.usd_per_hour[all_places], starts) / float(space.costs({}, 1).usd_per_hour[0])
    return time, time * hour


def _best(name: str, column: Array, starts: Index) -> Array:
    """The value of a column that is never slower than any of a box's."""
    lower = name in LARGER_IS_SLOWER or name.startswith("density")
    return np.minimum.reduceat(column, starts) if lower else np.maximum.reduceat(column, starts)


def workers(study: DesignStudy, processes: int, ray: bool) -> PriceRound | None:
    """Who prices a round: this process (None), other processes, or a Ray cluster."""
    if ray:
        return _ray_round(study)
    return _process_round(study, processes) if processes > 1 else None


SPACES: dict[str, DesignSpace] = {}


def price_in_worker(study: DesignStudy, box: Index) -> PricedBox:
    """A box, priced in a process that keeps the space of its study."""
    key = study.inputs_hash
    if key not in SPACES:
        SPACES.clear()
        SPACES[key] = DesignSpace(study)
    return price_box(SPACES[key], box)


def _process_round(study: DesignStudy, processes: int) -> PriceRound:
    from concurrent.futures import ProcessPoolExecutor
    from multiprocessing import get_context

    pool = ProcessPoolExecutor(processes, mp_context=get_context("spawn"))

    def price(boxes: Sequence[Index]) -> list[PricedBox]:
        return list(pool.map(price_in_worker, [study] * len(boxes), boxes))

    return price


def _ray_round(study: DesignStudy) -> PriceRound:
    try:
        import ray
    except ModuleNotFoundError:
        todo = "pip install 'ridgeline[ray]', or drop --ray"
        raise InputError(Problem(path="--ray", given="no ray in this environment", expected="ray", todo=todo)) from None
    if not ray.is_initialized():
        ray.init(include_dashboard=False, log_to_driver=False, configure_logging=False)
    task = ray.remote(price_in_worker)
    shared = ray.put(study)

    def price(boxes: Sequence[Index]) -> list[PricedBox]:
        return list(ray.get([task.remote(shared, box) for box in boxes]))

    return price
