"""What a metric answers to: elasticities of every parameter of machine, software and model, and curves.

    elasticity = d ln metric / d ln parameter        -0.4: one per cent more of it makes the metric 0.4 per cent less

A rate (bytes/s, FLOP/s) and a time (latency, launch) say together how fast a machine is: where all rates are multiplied
and all times divided by the same number, every predicted time is divided by it, so that over the complete list

    sum of elasticities of rates - sum of elasticities of times = -1
"""

from __future__ import annotations

from typing import Literal

from ridgeline.core.records import NotebookValue, dataclass
from ridgeline.plan.scenario import Scenario

Kind = Literal["rate", "time", "size", "price"]
Group = Literal["chip", "network", "software", "model", "money"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RegimeChange:
    """Where an elasticity changes: the nearest value of a parameter from which something else limits.

    factor        the parameter's value there over today's
    value         the value, in the parameter's unit
    elasticity    beyond it
    limiter       what takes most of the metric beyond it, by part and bound
    """

    factor: float
    value: float
    elasticity: float
    limiter: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Elasticity:
    """What one parameter does to the metric.

    parameter     its place, as `--set` takes it where it can be set
    title         in words
    kind          rate: more is faster; time: less is faster; size: of the model; price: of an hour
    group         chip, network, software, model or money
    unit, value   what it is today
    below, above  elasticity for a little less and a little more of it; they differ at a kink
    kink          whether they differ by more than a thousandth
    step          relative change over which they were taken: of sizes the next size that the plan allows
    usd_per_hour_per_percent   what one per cent more of it saves of an hour's cost, the work being the same
    usd_per_unit_per_percent   the same for one step, or a million tokens where the metric is of tokens
    lower_change, upper_change  the nearest regime changes; None within the range searched
    evidence, source   of the value
    """

    parameter: str
    title: str
    kind: Kind
    group: Group
    unit: str
    value: float
    below: float
    above: float
    step: float = 0.0
    usd_per_hour_per_percent: float | None = None
    usd_per_unit_per_percent: float | None = None
    lower_change: RegimeChange | None = None
    upper_change: RegimeChange | None = None
    evidence: str = ""
    source: str = ""

    JSON = """
        parameter title kind group unit value elasticity elasticity_below=below elasticity_above=above kink
        relative_step=step usd_per_hour_per_percent usd_per_unit_per_percent lower_change upper_change evidence source
    """

    @property
    def elasticity(self) -> float:
        """Mean of both sides: the central difference."""
        return (self.below + self.above) / 2

    @property
    def kink(self) -> bool:
        """Whether the two sides differ."""
        return abs(self.below - self.above) > 1e-3


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterPoint:
    """One value of a parameter and the metric there; `factor` is the value over today's."""

    factor: float
    value: float
    metric: float
    elasticity: float
    limiter: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SaturationCurve:
    """How the metric answers to more and less of one parameter, until something else limits.

    knee_factor    value over today's beyond which another one per cent gives less than half of what the steepest does
    gain_at_knee   metric today over the metric there
    floor          the metric where the parameter is unlimited
    next_limiter   what takes most of the metric beyond the knee
    """

    parameter: str
    title: str
    unit: str
    metric: str
    knee_factor: float
    knee_value: float
    gain_at_knee: float
    floor: float
    next_limiter: str
    points: tuple[ParameterPoint, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class MoneyBasis:
    """What money was counted with: an hour of the whole system, and the work that an hour does."""

    usd_per_hour: float | None
    unit: str
    usd_per_unit: float | None
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SensitivityAnswer(NotebookValue):
    """What limits a scenario, and by how much: every elasticity of one metric, the strongest first.

    metric           step_time_s, ttft_s, tpot_s or cost_usd; `value` today, in seconds or dollars
    low, high        interval of the value, where the prediction has one
    rate_sum         sum of the elasticities of rates minus that of times: -1 where the list is complete
    machine, model, money   elasticities by what they are of
    curve            the curve of one parameter, where one was asked for
    """

    scenario: Scenario
    metric: str
    unit: str
    value: float
    low: float | None
    high: float | None
    limiter: str
    rate_sum: float
    machine: tuple[Elasticity, ...]
    model: tuple[Elasticity, ...]
    money: tuple[Elasticity, ...]
    basis: MoneyBasis
    curve: SaturationCurve | None = None
    notes: tuple[str, ...] = ()

    JSON = """
        kind='sensitivity' scenario=scenario_title metric unit value low high limiter rate_sum rate_sum_expected machine
        model money basis curve? notes
    """

    @property
    def rate_sum_expected(self) -> float:
        """What the sum is where every rate and time is in the list."""
        return -1.0

    @property
    def scenario_title(self) -> dict[str, str]:
        """Name, model, machine, workload and engine."""
        scenario = self.scenario
        return {
            "name": scenario.name,
            "model": scenario.model.id,
            "system": scenario.system.name,
            "workload": scenario.workload.kind,
            "engine": scenario.plan.engine,
        }

    def of(self, parameter: str) -> Elasticity:
        """The elasticity of one parameter; `KeyError` where it is not in the list."""
        for entry in (*self.machine, *self.model, *self.money):
            if entry.parameter == parameter:
                return entry
        raise KeyError(parameter)
