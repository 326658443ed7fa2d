"""The sheet of `ridgeline predict --json`: one training step, priced."""

from __future__ import annotations

from typing import Literal, NotRequired, TypedDict


class ProblemSheet(TypedDict):
    """One thing wrong with the input.

    path      dotted place inside it, such as plan.tp
    where     file and line, where they are known
    """

    path: str
    given: str
    expected: str
    todo: str
    where: str


class RefusalSheet(TypedDict):
    """The input as it is cannot run, and every reason; exit code 2."""

    possible: Literal[False]
    problems: list[ProblemSheet]


class ImpossibleSheet(RefusalSheet):
    """A scenario that was understood and cannot be predicted."""

    kind: Literal["prediction"]


class IntervalSheet(TypedDict):
    """Seconds between which the measured step is expected.

    coverage   with this probability
    runs       measured runs that say so; `basis` names them
    """

    low: float
    high: float
    coverage: float
    runs: int
    basis: str


class TitleSheet(TypedDict):
    """What is predicted.

    mesh   degrees above 1, by axis
    """

    name: str
    model: str
    system: str
    chips: int
    seq: int
    sequences: int
    microbatches: int
    mesh: dict[str, int]
    shard: str
    recompute: str
    precision: str
    engine: str


class StageSheet(TypedDict):
    """Memory of a pipeline stage.

    in_flight   microbatches whose activations are saved at once, at most
    moment      of the step at which the peak is reached
    """

    stage: int
    peak_bytes: float
    in_flight: int
    moment: str


class StepPartSheet(TypedDict):
    """What a part of the step is, and what limits it: compute, memory, network or host."""

    bound: str
    meaning: str


class AnchorSheet(TypedDict):
    """What the user's own runs did to a prediction (`--anchor`, or a calibration that runs anchored).

    runs         their ids
    factor       step time with them over the one without
    pace         of this factor, what no parameter explains
    narrowed     width of the interval with them over the one without, in logarithms
    parameters   the values of this chip and engine that moved the step most: before and after
    """

    runs: list[str]
    factor: float
    pace: float
    narrowed: float
    parameters: dict[str, list[float]]


class KernelEvidenceSheet(TypedDict):
    """What the prices of a step's kernels rest on, as shares of the step (`--profile`, or the chip's shipped one).

    profile        what was measured, and when
    measured       kernels of the very shape that was timed
    interpolated   kernels between measured ones, or near them
    fitted         kernels that the fitted model prices, wholly or in part
    furthest       doublings from the furthest kernel that the profile prices to the nearest one measured
    """

    profile: str
    measured: float
    interpolated: float
    fitted: float
    furthest: float


class ContendedSheet(TypedDict):
    """A collective of the step in all its groups at once, against one group alone.

    alone_s, together_s   some rounds of it, the mean over seeds of path choice; `factor` is their ratio
    worst_s               together, with the slowest of five seeds
    beside_s              together with the gradient reduction, where the plan overlaps that
    exposed_s, added_s    of its part of the step in closed form, and what contention adds
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
    factor: float
    exposed_s: float
    added_s: float


class NetworkSheet(TypedDict):
    """The step's own collectives simulated on the system's graph, with the plan's placement of ranks.

    step_time_s   the closed form's and what contention adds
    """

    topology: str
    paths: str
    closed_form_s: float
    added_s: float
    step_time_s: float
    collectives: list[ContendedSheet]


class PredictionSheet(TypedDict):
    """A step of training: how long, where the time goes, does it fit, how sure.

    breakdown     seconds by part; they sum to `step_time_s`
    bounds        the same seconds by what limits them
    memory        bytes of the fullest chip at its peak, by kind
    activations   of these the saved activations, by what saved them
    mfu, hfu      model and hardware flops utilization, under `conventions`
    headroom_bytes  capacity less peak; negative where it does not fit
    network         with --network simulated: what contention adds
    anchor          where runs of yours corrected it
    kernels         where a profile of the chip prices kernels
    """

    kind: Literal["prediction"]
    possible: Literal[True]
    scenario: TitleSheet
    step_time_s: float
    tokens_per_s_per_chip: float
    mfu: float
    hfu: float
    model_tflops_per_chip: float
    peak_memory_bytes: float
    memory: dict[str, float]
    breakdown: dict[str, float]
    interval: IntervalSheet
    assumptions: list[str]
    evidence: str
    fits: bool
    headroom_bytes: float
    capacity_bytes: float
    activations: dict[str, float]
    host_bytes: float
    host_capacity_bytes: float | None
    stages: list[StageSheet]
    bounds: dict[str, float]
    parts: dict[str, StepPartSheet]
    conventions: list[str]
    energy_j: float | None
    cost_usd: float | None
    tokens: int
    network: NotRequired[NetworkSheet]
    anchor: NotRequired[AnchorSheet]
    kernels: NotRequired[KernelEvidenceSheet]
