"""Turn the trials of searches into the Pareto front of cost per million output tokens against tokens/s of a user."""

from __future__ import annotations

from collections.abc import Iterable

from ridgeline.core.records import dataclass
from ridgeline.search.deployment.find_deployment import DeploymentSearch
from ridgeline.search.deployment.shape import Shape, shape_words


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontierPoint:
    """One replica at one rate, simulated on a shortened load, its limit of TTFT kept.

    user_speed   tokens per second of a typical request: 1 / median TPOT
    cost         of a million output tokens in USD; None without a price
    """

    system: str
    shape: Shape
    rate: float
    user_speed: float
    tokens_per_s_per_chip: float
    cost: float | None
    met: bool

    JSON = "system words rate user_tokens_per_s=user_speed tokens_per_s_per_chip cost_per_million_tokens_usd=cost met"

    @property
    def words(self) -> str:
        """The replica in one line."""
        return shape_words(self.shape)


def frontier(searches: Iterable[DeploymentSearch]) -> tuple[FrontierPoint, ...]:
    """No other replica serves a user faster and costs less, or makes more of a chip where a price is not known."""
    points = [point for search in searches for point in _points(search)]

    def dear(point: FrontierPoint) -> float:
        return point.cost if point.cost is not None else 1.0 / point.tokens_per_s_per_chip

    kept: list[FrontierPoint] = []
    least = float("inf")
    for point in sorted(points, key=lambda one: (-one.user_speed, dear(one))):
        if dear(point) < least:
            kept.append(point)
            least = dear(point)
    return tuple(kept)


def _points(search: DeploymentSearch) -> Iterable[FrontierPoint]:
    system = search.scenario.system
    price = system.chip.price.value if system.chip.price else None
    for capacity in search.capacities:
        if capacity.role != "both":
            continue
        for trial in capacity.tried:
            if trial.taken.get("ttft", 0.0) <= 1.0 and trial.user_speed > 0:
                yield FrontierPoint(
                    system=system.name,
                    shape=capacity.shape,
                    rate=trial.rate,
                    user_speed=trial.user_speed,
                    tokens_per_s_per_chip=trial.output_tokens_per_s / trial.chips,
                    cost=trial.cost_per_million_tokens(price),
                    met=trial.met,
                )
