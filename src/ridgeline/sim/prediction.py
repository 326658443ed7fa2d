"""What a prediction is: the seconds of a step and where they go, what they rest on, and how sure they are."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

import numpy as np

from ridgeline.core.arrays import Array
from ridgeline.core.documents import JsonObject
from ridgeline.core.errors import MissingNumber, Problem
from ridgeline.core.evidence import Evidence, Quoted, weakest
from ridgeline.core.records import NotebookValue, dataclass
from ridgeline.core.units import HOUR
from ridgeline.cost import Profile, profile_for, shipped_profiles
from ridgeline.cost.pricing import MeasuredOps, OpPrices
from ridgeline.cost.step_part import Bound, StepPart
from ridgeline.hardware.load import rated_power
from ridgeline.hardware.what_if import chip_changes
from ridgeline.plan.plan import plan_table, plan_words
from ridgeline.plan.scenario import Scenario
from ridgeline.plan.workload import Train
from ridgeline.sim.memory.peak import Memory
from ridgeline.sim.prediction_interval import Interval

PART_OF_AXIS = {
    "tp": StepPart.TP, "etp": StepPart.TP, "cp": StepPart.CP, "ep": StepPart.EP, "dp": StepPart.DP,
    "edp": StepPart.DP, "replica": StepPart.DP, "shard": StepPart.SHARD, "pp": StepPart.PP,
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One share of the step: its seconds on the rank that paces the step, and what limits it."""

    name: str
    seconds: float
    bound: Bound
    meaning: str

    JSON = "bound meaning"


@dataclass(frozen=True, slots=True, kw_only=True)
class Utilization:
    """Flops of a step over what the chips could do in its time.

        MFU = model flops / (step * chips * peak)        HFU = executed flops / (step * chips * peak)

    model_flops      of the whole step over all chips, without recompute
    executed_flops   of the same, with everything that runs: recompute, scores a flash backward makes again, padding
    peak_flops_per_s dense, of the format named in `peak`
    """

    model_flops: float
    executed_flops: float
    peak: str
    peak_flops_per_s: float
    mfu: float
    hfu: float
    conventions: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class AnchorEffect:
    """What the user's own runs did to a prediction.

    runs         their ids
    factor       step time with them over the one without
    pace         of this factor, what no parameter explains
    narrowed     width of the interval with them over the one without, in logarithms
    parameters   values of this chip and engine that moved most, before and after, the strongest effect first
    """

    runs: tuple[str, ...]
    factor: float
    pace: float
    narrowed: float
    parameters: Mapping[str, tuple[float, float]]

    def __str__(self) -> str:
        named = ", ".join(self.runs[:3]) + (f" and {len(self.runs) - 3} more" if len(self.runs) > 3 else "")
        moved = ", ".join(f"{name} {old:.3g} -> {new:.3g}" for name, (old, new) in self.parameters.items())
        return (
            f"anchored on {named}: step x {self.factor:.3f}, of which x {self.pace:.3f} beside any parameter"
            f"{moved and f'; {moved}'}; interval {self.narrowed:.0%} as wide"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Bill:
    """Energy and money of one step, None where the catalog has no number for it."""

    energy_j: float | None = None
    cost_usd: float | None = None


def step_bill(scenario: Scenario, seconds: float) -> Bill:
    """Every chip at its rated power, and at its price by the hour, for so long."""
    chip, chips = scenario.system.chip, scenario.system.chips
    power = rated_power(chip)
    return Bill(
        energy_j=power.value * chips * seconds if power else None,
        cost_usd=chip.price.value * chips * seconds / HOUR if chip.price else None,
    )


def step_evidence(scenario: Scenario, *, fitted: bool, also: Iterable[Quoted] = ()) -> Evidence:
    """The weakest of what a step rests on: the rates it uses, the engine's description, the fit."""
    system, compute = scenario.system, scenario.plan.precision.compute
    rates = [system.chip.peak_flops_per_s(compute), system.chip.need("hbm.bandwidth"), *also]
    rates += [tier.need_bandwidth() for tier in system.tiers]
    fit = Evidence.FITTED if fitted else Evidence.ANALYTIC
    return weakest([*(number.evidence for number in rates), scenario.engine.evidence, fit])


def unmeasured_host(scenario: Scenario, profiles: Mapping[str, Profile]) -> str:
    """Why the speeds of a CPU are not those of the one that runs: the profile that comes with Ridgeline is of another.

    Empty for accelerators, for a CPU whose numbers the scenario gives, and with a profile of one's own.
    """
    chip = scenario.system.chip
    if chip.vendor != "host" or chip_changes(chip):
        return ""
    profile = profile_for(profiles, chip.fitted_id)
    if profile is not shipped_profiles().get(chip.fitted_id):
        return ""
    whose = f"those of another one ({profile.title})" if profile is not None else "those of the catalog"
    todo = "`ridgeline characterize --device cpu -o cpu.json` measures it, and --profile cpu.json prices by that"
    return f"nothing measured of this CPU is known: speeds and peak are {whose}; {todo}"


def missing_number_problem(missing: MissingNumber) -> Problem:
    """A number that is absent from the catalog, as a reason."""
    todo = f'set it with --set {missing.path}="… {missing.unit}"'
    given, expected = f"nothing published for {missing.owner}", f"a quantity in {missing.unit}"
    return Problem(path=missing.path, given=given, expected=expected, todo=todo)


@dataclass(frozen=True, slots=True, kw_only=True)
class ContendedCollective:
    """A collective of the step: its group, seconds of some rounds of it in one group alone and in all together.

    worst_s              together, with the seed of path choice that is slowest; `together_s` is the mean over seeds
    beside_s             together with the gradient reduction where that overlaps; else as together
    exposed_s, added_s   of its part of the step in closed form, and what contention adds to that
    """

    label: str
    kind: str
    axis: str
    ranks: int
    stride: int
    groups: int
    alone_s: float
    together_s: float
    worst_s: float
    beside_s: float
    exposed_s: float
    added_s: float

    JSON = "* factor"

    @property
    def factor(self) -> float:
        """Together over alone."""
        return self.together_s / self.alone_s if self.alone_s else 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkContention:
    """What contention adds to a step, collective by collective, the costliest first."""

    topology: str
    paths: str
    collectives: tuple[ContendedCollective, ...]
    closed_form_s: float

    JSON = "topology paths closed_form_s added_s step_time_s collectives"

    @property
    def added_s(self) -> float:
        """Seconds a step, the worst collective of each part counted."""
        worst: dict[StepPart, float] = {}
        for entry in self.collectives:
            worst[PART_OF_AXIS[entry.axis]] = max(worst.get(PART_OF_AXIS[entry.axis], 0.0), entry.added_s)
        return sum(worst.values())

    @property
    def step_time_s(self) -> float:
        """The step with contention."""
        return self.closed_form_s + self.added_s


class StepParts:
    """What a breakdown of a step says in other words."""

    __slots__ = ()
    breakdown: tuple[Part, ...]

    @property
    def seconds_by_part(self) -> dict[str, float]:
        """Seconds by part; they sum to `step_time_s`."""
        return {part.name: part.seconds for part in self.breakdown}

    @property
    def parts(self) -> dict[str, Part]:
        """What each part is, and what limits it: compute, memory, network or host."""
        return {part.name: part for part in self.breakdown}

    @property
    def bounds(self) -> dict[Bound, float]:
        """Seconds by what limits them, the largest first."""
        seconds: dict[Bound, float] = {}
        for part in self.breakdown:
            seconds[part.bound] = seconds.get(part.bound, 0.0) + part.seconds
        return dict(sorted(seconds.items(), key=lambda entry: -entry[1]))


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainTitle:
    """What is predicted.

    mesh   degrees above 1, by axis
    """

    scenario: Scenario

    JSON = """
        name=scenario.name model=scenario.model.id system=scenario.system.name chips=scenario.system.chips
        seq=scenario.workload.seq sequences=scenario.workload.sequences microbatches=scenario.microbatches
        mesh=scenario.plan.mesh.split shard=scenario.plan.sharding.shard recompute
        precision=scenario.plan.precision.compute engine=scenario.plan.engine
    """

    @property
    def recompute(self) -> str:
        """What the backward pass computes again."""
        return str(self.scenario.plan.recompute)


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction(StepParts, NotebookValue):
    """One step of a scenario. The parts of `breakdown` sum to `step_time_s`.

    network   what contention adds, where collectives were simulated; `step_time_s` is without it
    caution   why its speeds are not of this machine: nothing measured of it is known; empty where something is
    """

    scenario: Scenario[Train]
    step_time_s: float
    breakdown: tuple[Part, ...]
    utilization: Utilization
    memory: Memory
    interval: Interval
    bill: Bill
    evidence: Evidence
    assumptions: tuple[str, ...] = ()
    anchor: AnchorEffect | None = None
    kernels: KernelEvidence | None = None
    network: NetworkContention | None = None
    caution: str = ""

    JSON = """
        kind='prediction' possible=true scenario=title step_time_s tokens_per_s_per_chip mfu=utilization.mfu
        hfu=utilization.hfu model_tflops_per_chip=model_flops_per_s_per_chip/T peak_memory_bytes=memory.peak_bytes
        memory=memory.fullest.bytes_by_kind breakdown=seconds_by_part interval assumptions evidence fits
        headroom_bytes=memory.headroom_bytes capacity_bytes=memory.capacity_bytes
        activations=memory.fullest.activations host_bytes=memory.host_bytes
        host_capacity_bytes=memory.known_host_capacity_bytes stages=memory.stages bounds parts
        conventions=utilization.conventions energy_j=bill.energy_j cost_usd=bill.cost_usd
        tokens=scenario.workload.tokens network? anchor? kernels? caution?
    """

    @property
    def plan_table(self) -> JsonObject:
        """The plan as a scenario file has it, defaults left out."""
        return plan_table(self.scenario.plan)

    @property
    def plan_words(self) -> str:
        """The plan in one line."""
        return plan_words(self.scenario.plan)

    @property
    def title(self) -> TrainTitle:
        """What is predicted."""
        return TrainTitle(scenario=self.scenario)

    @property
    def fits(self) -> bool:
        """Whether the fullest chip's peak is within its memory, and what is offloaded within the host's."""
        return self.memory.fits

    @property
    def tokens_per_s_per_chip(self) -> float:
        """Tokens of the global batch, padding apart, over step time and chips."""
        return self.scenario.workload.useful_tokens / (self.step_time_s * self.scenario.system.chips)

    @property
    def model_flops_per_s_per_chip(self) -> float:
        """Model flops, without recompute, of one chip in one second."""
        return self.utilization.model_flops / (self.step_time_s * self.scenario.system.chips)


@dataclass(frozen=True, slots=True, kw_only=True)
class Impossible:
    """A scenario that cannot run, with every reason."""

    scenario: Scenario
    reasons: tuple[Problem, ...]

    JSON = "kind='prediction' possible=false problems=reasons"

    def __str__(self) -> str:
        return "\n".join(map(str, self.reasons))


Answer = TypeVar("Answer")


def unless_impossible(
    scenario: Scenario, reasons: Iterable[Problem], predict: Callable[[], Answer]
) -> Answer | Impossible:
    """What `predict` answers, unless there are reasons against it or a number is missing from the catalog."""
    reasons = tuple(reasons)
    try:
        return Impossible(scenario=scenario, reasons=reasons) if reasons else predict()
    except MissingNumber as missing:
        return Impossible(scenario=scenario, reasons=(missing_number_problem(missing),))


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelEvidence:
    """What a step's kernel prices rest on, as shares of the step's time; the rest of it is no kernel's.

    profile        what was measured, and when
    measured       kernels of the very shape that was timed
    interpolated   kernels between measured ones, or near them
    fitted         kernels that the fitted model prices, wholly or in part
    furthest       doublings from the furthest kernel that a profile prices to the nearest one measured
    """

    profile: str
    measured: float
    interpolated: float
    fitted: float
    furthest: float

    def __str__(self) -> str:
        parts = (
            f"{self.measured:.0%} of the step measured, {self.interpolated:.0%} interpolated, {self.fitted:.0%} fitted"
        )
        return f"kernels: {parts}, by the profile of {self.profile}; furthest {self.furthest:.1f} doublings"


def kernel_evidence(
    ops: OpPrices, measured: MeasuredOps, often: tuple[Array, Array], spent: tuple[float, float], profile: str
) -> KernelEvidence:
    """What the prices of products and attention rest on.

    often   how often each product, and each attention kernel, runs
    spent   shares of the step that products, and attention, take
    """
    kinds = (
        (ops.matmul_s * often[0], measured.matmul_distance, measured.matmul_fitted, spent[0]),
        (ops.attend_s * often[1], measured.attend_distance, measured.attend_fitted, spent[1]),
    )
    shares, furthest = np.zeros(3), 0.0
    for (seconds, distance, fitted, share), same in zip(kinds, measured.timed_themselves, strict=True):
        if not seconds.sum() > 0:
            continue
        part = seconds / seconds.sum() * share
        shares += [part[same].sum(), (part * (1 - fitted))[~same].sum(), (part * fitted)[~same].sum()]
        reached = distance[(fitted < 1) & (seconds > 0)]
        furthest = max(furthest, float(reached.max(initial=0.0)))
    return KernelEvidence(
        profile=profile,
        measured=float(shares[0]),
        interpolated=float(shares[1]),
        fitted=float(shares[2]),
        furthest=furthest,
    )
