"""The sheet of `ridgeline plan --json`: the best plans of all that were priced, and the reasons for the first."""

from __future__ import annotations

from typing import Any, Literal, NotRequired, TypedDict

from ridgeline.report.sheets.predict import IntervalSheet, ProblemSheet

PlanTable = dict[str, Any]  # a plan as a scenario file has it, defaults left out


class PricedPlanSheet(TypedDict):
    """A plan and its prediction.

    words    the plan in one line
    family   mesh, sharding and recompute alone: plans of one family are of one kind
    why      what the step loses to the best, or what limits it
    """

    plan: PlanTable
    words: str
    family: str
    step_time_s: float
    tokens_per_s_per_chip: float
    mfu: float
    peak_memory_bytes: float
    interval: IntervalSheet
    why: str
    breakdown: dict[str, float]
    cost_usd: float | None
    energy_j: float | None


class SimulatedPlanSheet(PricedPlanSheet):
    """One of the best plans.

    simulated_s   its step run event by event; null where that was not done
    """

    simulated_s: float | None


class RefinedPlanSheet(PricedPlanSheet):
    """A plan with stage boundaries, recompute by stage and offload chosen.

    saves_s   seconds of the first plan's step
    lacking   what the engine cannot be told of it; empty where it can be told all
    """

    saves_s: float
    changes: list[str]
    lacking: str


class HandedPlanSheet(PricedPlanSheet):
    """The plan that is recommended, which `-o` writes.

    refined   whether it is other than the first plan
    of        the plan it was made of
    beyond    what would be faster still, but the engine cannot be told
    """

    refined: bool
    of: str
    saves_s: float
    changes: list[str]
    simulated_s: float | None
    beyond: RefinedPlanSheet | None


class LossSheet(TypedDict):
    """The best plan that decides one thing otherwise.

    axis       what is decided otherwise
    parts      seconds by part of the step, which sum to `loses_s`; `to` says the largest in words
    overlaps   whether the intervals overlap: the order may be the other way round
    """

    axis: list[str]
    choice: str
    loses_s: float
    to: str
    parts: dict[str, float]
    overlaps: bool
    plan: PlanTable
    words: str


class SureSheet(TypedDict):
    """How far the order of the plans can be trusted.

    runner_up    the best plan of another kind
    overlapping  plans of the shortlist, of `of`, whose interval reaches the winner's
    """

    runner_up_loses_s: float | None
    runner_up_overlaps: bool | None
    overlapping: int
    of: int
    basis: str


class ChangeSheet(TypedDict):
    """A change of the question, searched again.

    gain   tokens per second per chip over the winner's, less one
    how    the option that asks for it; empty where it takes another machine
    """

    kind: str
    what: str
    how: str
    gain: float
    step_time_s: float
    tokens_per_s_per_chip: float
    plan: PlanTable
    words: str


class OtherEngineSheet(TypedDict):
    """Another software and the best plan that a coarse search found for it.

    availability   public, or closed: of its owners alone
    gain           tokens per second per chip over the winner's, less one; at least that
    runs           measured runs of it on this family of chips; few: hardly more than a guess
    has            what its plan does that the winner's engine is not known to do, or does not by itself
    overlaps       whether its interval and the winner's overlap: the order may be the other way round
    """

    engine: str
    name: str
    availability: str
    how: str
    gain: float
    step_time_s: float
    tokens_per_s_per_chip: float
    interval: IntervalSheet
    overlaps: bool
    runs: int
    has: list[str]
    plan: PlanTable
    words: str


class UntoldSheet(TypedDict):
    """What a faster plan of the same engine has that the target of `--to` cannot be told.

    untold   the decisions, by path, with the value that the plan has and why it cannot be told
    gain     tokens per second per chip over the winner's, less one
    """

    untold: list[dict[str, str]]
    gain: float
    step_time_s: float
    tokens_per_s_per_chip: float
    plan: PlanTable
    words: str


class PointSheet(TypedDict):
    """A plan of the Pareto front: no other beats it in both of `frontier_axes`."""

    system: str
    chips: int
    step_time_s: float
    peak_memory_bytes: float
    cost_usd: float | None
    energy_j: float | None
    plan: PlanTable
    words: str


class RunSheet(TypedDict):
    """A whole run, failures counted.

    useful   share of the wall time that trains, between `useful_low` and `useful_high`
    """

    days: float
    cost_usd: float | None
    energy_j: float | None
    useful: float
    useful_low: float
    useful_high: float
    failures_per_day: float
    checkpoint_interval_s: float


class ComparedSheet(TypedDict):
    """A system and its best plan; without the optional keys where nothing fits.

    efficiency   tokens/s/chip over those of the same chip's smallest system that fits
    """

    system: str
    chips: int
    chip: str
    engine: str
    considered: int
    feasible: int
    chosen: bool
    plan: NotRequired[PlanTable]
    words: NotRequired[str]
    step_time_s: NotRequired[float]
    tokens_per_s: NotRequired[float]
    tokens_per_s_per_chip: NotRequired[float]
    mfu: NotRequired[float]
    peak_memory_bytes: NotRequired[float]
    capacity_bytes: NotRequired[float]
    cost_usd: NotRequired[float | None]
    energy_j: NotRequired[float | None]
    tokens: NotRequired[int]
    days: NotRequired[float]
    run: NotRequired[RunSheet]
    efficiency: NotRequired[float]


class GivenPlanSheet(TypedDict):
    """The plan of the scenario that was asked about.

    faster   plans that are faster
    loses_s  seconds to the best; `to` says to which parts
    """

    plan: PlanTable
    words: str
    step_time_s: float
    peak_memory_bytes: float
    fits: bool
    faster: int
    loses_s: float
    to: str


class AskedSheet(TypedDict):
    """What is there only where it was asked for: a whole run with `--tokens`, the place of a scenario's own plan, the
    target of `--to` and what it cannot be told."""

    tokens: NotRequired[float]
    days: NotRequired[float]
    run: NotRequired[RunSheet]
    given: NotRequired[GivenPlanSheet]
    to: NotRequired[str]
    untold: NotRequired[list[UntoldSheet]]


class PlanSheet(AskedSheet):
    """What a search found.

    complete, explained   false where it was stopped before all plans were priced, before all reasons were found
    considered, feasible  plans priced, plans that fit
    headroom              share of memory kept free
    plans, kinds          the best plans; the best of each kind
    refined               the first plans with their stages chosen freely, fastest first
    handed                the plan that is recommended
    next, features        changes worth a try: of the question or the machine, and of what the software does
    tried                 all changes that were searched
    engines               what other engines would gain, the most first; below none
    tokens, days, run     of a whole run, with `--tokens`
    given                 with a scenario that has a plan
    to, untold            with `--to`: the target; faster plans of the engine that it cannot be told, the fastest first
    """

    kind: Literal["plan"]
    possible: Literal[True]
    complete: bool
    objective: str
    model: str
    system: str
    chips: int
    engine: str
    seq: int
    global_batch: int
    considered: int
    feasible: int
    seconds: float
    cpu_seconds: float
    explain_seconds: float
    explained: bool
    capacity_bytes: float
    headroom: float
    plans: list[SimulatedPlanSheet]
    kinds: list[PricedPlanSheet]
    refined: list[RefinedPlanSheet]
    handed: HandedPlanSheet
    bounds: dict[str, float]
    why: list[LossSheet]
    sure: SureSheet
    next: list[ChangeSheet]
    features: list[ChangeSheet]
    tried: list[ChangeSheet]
    engines: list[OtherEngineSheet]
    frontier_axes: list[str]
    frontier: list[PointSheet]
    compared: list[ComparedSheet]
    skipped: list[str]
    assumptions: list[str]


class NoPlanSheet(TypedDict):
    """There is no plan, and why; exit code 2. Without the optional keys where the question itself was wrong."""

    kind: Literal["plan"]
    possible: Literal[False]
    problems: list[ProblemSheet]
    plans: list[SimulatedPlanSheet]
    complete: NotRequired[bool]
    considered: NotRequired[int]
    feasible: NotRequired[int]
    seconds: NotRequired[float]
    cpu_seconds: NotRequired[float]
    compared: NotRequired[list[ComparedSheet]]
    skipped: NotRequired[list[str]]
