"""Account for the gap between a predicted step of post-training and a run of it, phase by phase and pool by pool.

    step       from the end of one training phase to the end of the next, on the chips that train
    measured   mean seconds of a phase on those chips; what is left of a step is waiting
    gap        of a phase measured less predicted; the gaps of all phases sum to that of the step

Where rollout has chips of its own the trainers' waiting is what of generation nothing hides, and is held against that
part of the prediction. The first step of a run is left out: it builds what the others use.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ridgeline.core.errors import InputError, Problem
from ridgeline.core.records import dataclass
from ridgeline.plan.rl_workload import Rl
from ridgeline.plan.scenario import Scenario
from ridgeline.rl import RlPrediction, predict_rl
from ridgeline.trace import Timeline, read_timeline

NANO = 1e-9
TRAIN, ROLLOUT, WAIT, HELD_OUT = "train", "rollout", "wait", "held out"
PREDICTED = {
    "generate": (ROLLOUT,), "log-probabilities": ("log-probs",), "reference": ("reference",), "teacher": ("teacher",),
    "critic": ("critic",), "critic update": ("critic update",), "update": (TRAIN,), "weight sync": ("sync",),
    "switch": (), "verify": ("reward",), HELD_OUT: (HELD_OUT,), "other": (WAIT,),
}  # fmt: skip
"""Phase of a prediction -> phases of a run that it stands for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RlPhaseGap:
    """Seconds of one phase of a step on the chips that train, and of what else they do not hide."""

    phase: str
    predicted_s: float
    measured_s: float

    JSON = "phase predicted_s measured_s gap_s"

    @property
    def gap_s(self) -> float:
        return self.measured_s - self.predicted_s


@dataclass(frozen=True, slots=True, kw_only=True)
class RlPoolGap:
    """Seconds of a step in which the processes of a pool work, the mean of them."""

    pool: str
    processes: int
    predicted_s: float
    measured_s: float

    JSON = "*"


@dataclass(frozen=True, slots=True, kw_only=True)
class RlExplanation:
    """Why a step of post-training takes longer (or shorter) than predicted.

    steps   of the run that were measured
    """

    name: str
    steps: int
    predicted_s: float
    measured_s: float
    phases: tuple[RlPhaseGap, ...]
    pools: tuple[RlPoolGap, ...]

    JSON = "kind='rl_explanation' name steps predicted_s measured_s residual phases pools"

    @property
    def residual(self) -> float:
        """Predicted over measured, less one."""
        return self.predicted_s / self.measured_s - 1


def explain_rl(scenario: Scenario[Rl], path: Path) -> RlExplanation:
    """Compare the prediction of a scenario with the `timeline.json` that a run of it wrote."""
    prediction = predict_rl(scenario)
    if not isinstance(prediction, RlPrediction):
        raise InputError(prediction.reasons)
    timeline = read_timeline(path)
    trainers, window, steps = _window(timeline, path)
    measured_s = (window[1] - window[0]) * NANO / steps
    names = {name for phases in PREDICTED.values() for name in phases} - {WAIT}
    train = {name: _seconds(timeline, trainers, name, window) / steps for name in names}
    train[WAIT] = measured_s - sum(train.values())
    is_separate = scenario.plan.rl.separate
    expected = prediction.exposed_seconds
    rows = []
    for phase, parts in PREDICTED.items():
        own = ((WAIT,) if phase == "generate" else () if phase == "other" else parts) if is_separate else parts
        row = RlPhaseGap(
            phase=phase, predicted_s=expected.get(phase, 0.0), measured_s=sum((train[part] for part in own), 0.0)
        )
        if row.predicted_s or row.measured_s:
            rows.append(row)
    return RlExplanation(
        name=scenario.name, steps=steps, predicted_s=prediction.step_time_s, measured_s=measured_s,
        phases=tuple(rows), pools=tuple(_pools(timeline, prediction, (window, steps))),
    )  # fmt: skip


def _window(timeline: Timeline, path: Path) -> tuple[list[str], tuple[int, int], int]:
    """Processes that train, from the end of their first step to that of their last, and the steps between."""
    trained = _rows(timeline, TRAIN)
    if not len(trained):
        expected = f"phases of a run of post-training, with {TRAIN!r} among them"
        todo = "give the timeline.json that `ridgeline run FILE -o FOLDER` wrote"
        raise InputError(Problem(path="TRACE", given=str(path), expected=expected, todo=todo))
    names = [timeline.processes[code] for code in sorted(set(timeline.process[trained].tolist()))]
    first = trained[timeline.process[trained] == timeline.process[trained].min()]
    ends = np.sort(timeline.end_ns[first])
    if len(ends) < 2:
        raise InputError(Problem(path="TRACE", given="one step", expected="two or more: the first is left out"))
    return names, (int(ends[0]), int(ends[-1])), len(ends) - 1


def _rows(timeline: Timeline, name: str) -> np.ndarray:
    code = timeline.names.index(name) if name in timeline.names else -1
    return np.flatnonzero(timeline.name == code)


def _seconds(timeline: Timeline, processes: list[str], name: str, window: tuple[int, int]) -> float:
    """Seconds of a phase inside a window, the mean of these processes."""
    rows = _rows(timeline, name)
    codes = [timeline.processes.index(process) for process in processes]
    rows = rows[np.isin(timeline.process[rows], codes)]
    inside = np.minimum(timeline.end_ns[rows], window[1]) - np.maximum(timeline.start_ns[rows], window[0])
    return float(np.maximum(inside, 0).sum()) * NANO / max(1, len(processes))


def _pools(timeline: Timeline, prediction: RlPrediction, when: tuple[tuple[int, int], int]) -> list[RlPoolGap]:
    window, steps = when
    gaps = []
    for pool in prediction.idle:
        members = [name for name in timeline.processes if pool.pool in ("all", _pool_of(name))]
        busy = sum(_seconds(timeline, members, name, window) for name in timeline.names)
        if members:
            seconds = {"predicted_s": pool.busy_s, "measured_s": busy / steps}
            gaps.append(RlPoolGap(pool=pool.pool, processes=len(members), **seconds))
    return gaps


def _pool_of(process: str) -> str:
    """The pool of a process of a run, by its name.

    >>> _pool_of("worker 3"), _pool_of("rollout 0")
    ('all', 'rollout')
    """
    kind = process.partition(" ")[0]
    return "all" if kind == "worker" else kind
