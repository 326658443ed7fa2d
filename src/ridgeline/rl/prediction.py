"""What becomes of one step of post-training: its phases, who waits, what fits, and what the answer rests on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from ridgeline.core.records import dataclass
from ridgeline.plan.rl_roles import chip_shares
from ridgeline.plan.rl_workload import Rl
from ridgeline.plan.scenario import Scenario
from ridgeline.rl.memory import RlMemory
from ridgeline.rl.mixture import ReplayCost
from ridgeline.rl.rollout import RolloutTimes
from ridgeline.rl.sync_time import WeightSyncTime
from ridgeline.sim import Interval

BoundBy = Literal["rollout", "training", "one after the other"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RlPhase:
    """One phase of a step.

    begin_s      from the start of the step
    exposed_s    of its seconds, those that nothing else of the step hides
    pool         whose chips it runs on
    """

    name: str
    pool: str
    begin_s: float
    seconds: float
    exposed_s: float
    meaning: str

    JSON = "name pool begin_s seconds exposed_s"

    @property
    def end_s(self) -> float:
        return self.begin_s + self.seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolIdle:
    """How much of a step the chips of a pool wait."""

    pool: str
    chips: int
    busy_s: float
    idle_share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Staleness:
    """By how many weight versions the samples of an update lag.

    shares   of samples, by whole versions
    """

    mean: float
    p90: float
    bound: float
    shares: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class DriftPoint:
    """A step at one point of training, where responses lengthen or the mixture of data moves."""

    step: int
    mean_tokens: float
    step_time_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RlTitle:
    """What is predicted."""

    scenario: Scenario[Rl]

    JSON = """
        name=scenario.name model=scenario.model.id system=scenario.system.name chips=scenario.system.chips
        algorithm=scenario.workload.algorithm prompts=scenario.workload.data.prompts
        samples=scenario.workload.data.samples placement=scenario.plan.rl.placement train_chips rollout_chips
        mesh=scenario.plan.mesh.split engine=scenario.plan.engine rollout_engine=scenario.plan.rl.rollout.engine
    """

    @property
    def train_chips(self) -> int:
        """Chips that train."""
        return chip_shares(self.scenario).train

    @property
    def rollout_chips(self) -> int:
        """Chips that generate; the same ones when colocated."""
        return chip_shares(self.scenario).rollout


@dataclass(frozen=True, slots=True, kw_only=True)
class RlPrediction:
    """One step of post-training.

    step_time_s      in the middle of the length distribution (p50), and in a step in ten (p90)
    phases           in the order of the step; when something overlaps, only exposed seconds sum to it
    bound_by         what a step waits for
    tokens           that a step trains on, prompt and answer
    interval         where a measured step is expected
    replay           what earlier data takes of a step, in continual training
    drift            steps over training, where responses lengthen or the mixture of data moves
    """

    scenario: Scenario[Rl]
    step_time_s: float
    step_time_p90_s: float
    phases: tuple[RlPhase, ...]
    bound_by: BoundBy
    idle: tuple[PoolIdle, ...]
    memory: RlMemory
    tokens: float
    answer_tokens: float
    staleness: Staleness
    interval: Interval
    rollout: RolloutTimes | None
    weight_sync: WeightSyncTime | None
    cost_usd: float | None
    replay: ReplayCost | None
    drift: tuple[DriftPoint, ...]
    assumptions: tuple[str, ...]

    JSON = """
        kind='rl' possible=true scenario=title step_time_s step_time_p90_s phases=phase_seconds
        exposed=exposed_seconds bound_by tokens_per_s_per_chip idle fits memory staleness interval tokens answer_tokens
        rollout? weight_sync? cost_per_1000_steps_usd replay? drift? assumptions timeline=phases
    """

    @property
    def title(self) -> RlTitle:
        """What is predicted."""
        return RlTitle(scenario=self.scenario)

    @property
    def fits(self) -> bool:
        """Whether every role fits at every moment."""
        return self.memory.fits

    @property
    def phase_seconds(self) -> dict[str, float]:
        """Seconds of every phase."""
        return {phase.name: phase.seconds for phase in self.phases}

    @property
    def exposed_seconds(self) -> dict[str, float]:
        """Seconds of every phase that nothing hides: they sum to the step."""
        return {phase.name: phase.exposed_s for phase in self.phases}

    @property
    def tokens_per_s_per_chip(self) -> float:
        """Prompt and answer tokens of a step over its time and all chips."""
        return self.tokens / (self.step_time_s * self.scenario.system.chips)

    @property
    def cost_per_1000_steps_usd(self) -> float | None:
        """All chips at their price for a thousand steps; None without one."""
        return None if self.cost_usd is None else self.cost_usd * 1000
