"""What a study of designs answers: the machines that no other beats, what each costs, and how sure the order is."""

from __future__ import annotations

from collections.abc import Mapping

from ridgeline.core.documents import JsonObject
from ridgeline.core.records import NotebookValue, dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadResult:
    """What one workload takes on one design, by its best plan.

    seconds       of a training step, of a token (decode), or of a prefill
    plan          which of the workload's plans, in words; index is its place among them
    limiter       the part of the time that is largest, and what bounds it
    """

    workload: str
    metric: str
    seconds: float
    tokens_per_s_per_chip: float
    usd_per_million_tokens: float
    plan: str
    index: int
    limiter: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DesignPoint:
    """One machine: what was chosen, what follows for area, power and price, and what it does.

    choices       value of every parameter that the study varies, in base units
    area_mm2, power_w, price_usd   of one chip; usd_per_hour of one chip with its share of network, host and power
    relative_time weighted geometric mean of the workloads' seconds over the reference design's
    relative_cost the same of dollars for the same work
    """

    id: str
    choices: Mapping[str, float]
    area_mm2: float
    power_w: float
    price_usd: float
    usd_per_hour: float
    relative_time: float
    relative_cost: float
    workloads: tuple[WorkloadResult, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificate:
    """Why nothing better was missed: every point was priced, or dropped by a bound that a priced point beats.

    points       of the space        priced_points one by one
    over_budget  refused by a budget before any price
    bounded_points  dropped in boxes whose best corner (rates at most, costs at least) a priced point beats
    infeasible   no plan fits its memory
    """

    points: int
    priced_points: int
    over_budget: int
    bounded_points: int
    infeasible: int

    JSON = "* complete"

    @property
    def complete(self) -> bool:
        """Whether the counts add up to the space."""
        return self.points == self.priced_points + self.over_budget + self.bounded_points


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitSlack:
    """One limit of `--meet`, or one budget: its value at the answer, and how much room is left, as a share."""

    name: str
    limit: float
    value: float
    unit: str
    slack: float
    binds: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Requirement:
    """The smallest machine that meets limits: no parameter can be made smaller alone without breaking one of them.

    choices   value of every parameter, in base units
    binds     limits that would break first, by parameter
    """

    feasible: bool
    point: DesignPoint | None
    choices: Mapping[str, float]
    binds: Mapping[str, str]
    limits: tuple[LimitSlack, ...]
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contest:
    """Which of two machines is better for the mix, and how sure that is.

    probability    that `first` takes less of the objective than `second`, over draws of uncertain numbers
    ratio          objective of first over second: median, and the 90 % range
    decisive       the uncertain number whose measurement would change the decision most often, with that share
    flips_at       value of it, over what is assumed, at which the two are equal; None within its range
    """

    first: str
    second: str
    objective: str
    probability: float
    ratio: float
    ratio_low: float
    ratio_high: float
    draws: int
    decisive: tuple[tuple[str, float], ...]
    flips_at: float | None
    measurement: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DerivedField:
    """A number of a new chip that nobody gave: its value, unit, and the rule with the source that it follows from."""

    field: str
    value: float
    unit: str
    rule: str
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DesignAnswer(NotebookValue):
    """The frontier of a study's space, certified; what a target needs; which of two machines wins.

    reference   the design that relative numbers are of
    best        the frontier's point of least objective
    derived_fields numbers of the base chip that follow from its eight fields
    """

    study: str
    objective: str
    parameters: Mapping[str, JsonObject]
    budgets: Mapping[str, float]
    reference: DesignPoint
    best: DesignPoint | None
    frontier: tuple[DesignPoint, ...]
    certificate: Certificate
    requirement: Requirement | None = None
    contest: Contest | None = None
    derived_fields: tuple[DerivedField, ...] = ()
    notes: tuple[str, ...] = ()

    JSON = """
        kind='design' study objective parameters budgets certificate reference best frontier requirement? contest?
        derived_fields? notes
    """
