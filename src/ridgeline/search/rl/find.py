"""Turn a base scenario into the best plans of post-training: every placement with its splits, roles and replicas.

trainers    of every split: the fastest shapes that fit, by the actor's passes alone
replicas    of every split: tensor ranks that hold the longest sample, fastest first
steps       colocated, one step off and asynchronous from these, predicted whole; the engine takes the largest share of
            memory that fits at every moment
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import field, replace

from ridgeline.core.errors import InputError, MissingNumber
from ridgeline.core.records import dataclass
from ridgeline.cost import Calibration
from ridgeline.plan.rl_plan import RlPlacement, RlPlan, RolloutPlan
from ridgeline.plan.rl_workload import Rl
from ridgeline.plan.scenario import Scenario
from ridgeline.rl import RlParameters, RlPrediction, predict_rl, rollout_times, training_pass
from ridgeline.search.rl.space import (
    UTILIZATION,
    TrainerShape,
    rollout_degrees,
    splits,
    stalenesses,
    trainer_shapes,
    with_chips,
    with_utilization,
)

TRAINERS, REPLICAS = 2, 2  # of a split that whole steps are predicted of
FAST, LEAN = 10, 8  # shapes of one split that the others try: the fastest, and those that hold least
NEAR = 1.02  # times the fastest step within which less staleness is preferred


@dataclass(frozen=True, slots=True, kw_only=True)
class RlCandidate:
    """A plan with its predicted step."""

    scenario: Scenario[Rl]
    prediction: RlPrediction

    @property
    def placement(self) -> RlPlacement:
        return self.scenario.plan.rl.placement

    @property
    def seconds(self) -> float:
        return self.prediction.step_time_s


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerTrial:
    """A trainer of one shape: seconds of its passes and of its updates alone, and bytes of its fullest chip."""

    shape: TrainerShape
    seconds: float
    update_s: float
    bytes: float
    fits: bool


@dataclass(slots=True)
class RlSearch:
    """A search under way: what was tried, and what fits."""

    base: Scenario[Rl]
    pins: Mapping[str, object]
    calibration: Calibration | None = None
    parameters: RlParameters | None = None
    trainer_trials: int = 0
    rollout_trials: int = 0
    step_trials: int = 0
    out_of_memory: int = 0
    shapes: list[TrainerShape] = field(default_factory=list)
    trainers: dict[int, list[TrainerTrial]] = field(default_factory=dict)
    replicas: dict[int, list[int]] = field(default_factory=dict)

    def run(self) -> list[RlCandidate]:
        """Candidates that fit, fastest first, without those that training alone makes slower than another of theirs."""
        answer: list[RlCandidate] = []
        fastest: dict[str, float] = {}
        for least, built in self._scenarios():
            placement = built.plan.rl.placement
            if least > NEAR * fastest.get(placement, math.inf):
                continue
            candidate = self.try_step(built)
            if candidate is not None:
                answer.append(candidate)
                fastest[placement] = min(fastest.get(placement, math.inf), candidate.seconds)
        return sorted(answer, key=lambda candidate: candidate.seconds)

    def _placements(self) -> list[RlPlacement]:
        all_entries: tuple[RlPlacement, ...] = ("colocated", "one-step-off", "async")
        if not self.base.workload.generates:
            return ["colocated"]
        if "placement" in self.pins:
            return [candidate for candidate in (*all_entries, "split") if candidate == self.pins["placement"]]
        return [candidate for candidate in all_entries if candidate == "colocated" or self.base.system.chips > 1]

    def _scenarios(self) -> Iterator[tuple[float, Scenario[Rl]]]:
        """Scenarios to predict, with the seconds that training takes of each at least."""
        chips = self.base.system.chips
        for placement in self._placements():
            colocated = placement == "colocated"
            for train in [chips] if colocated else splits(self.base, self.pins):
                for trial in self.best_trainers(train, colocated=colocated)[: TRAINERS if colocated else 1]:
                    for tp in self.best_replicas(chips if colocated else chips - train):
                        for built in self._variants(placement, train, trial.shape, tp):
                            yield trial.update_s, built

    def _variants(self, placement: RlPlacement, train: int, shape: TrainerShape, tp: int) -> Iterator[Scenario[Rl]]:
        rl = replace(
            self.base.plan.rl, placement=placement, train_chips=None if placement == "colocated" else train,
            rollout=self._rollout(tp), staleness=None, partial_rollouts=False,
        )  # fmt: skip
        for staleness in stalenesses(self.pins) if placement == "async" else [None]:
            partial = placement == "async" and self.pins.get("partial_rollouts", True) is not False
            yield with_chips(self.base, shape, train, replace(rl, staleness=staleness, partial_rollouts=partial))

    def _rollout(self, tp: int) -> RolloutPlan:
        rollout = self.base.plan.rl.rollout
        ep = self.pins.get("rollout_ep", rollout.ep)
        return replace(rollout, tp=tp, ep=ep if isinstance(ep, int) else 1, replicas=None)

    def best_trainers(self, chips: int, *, colocated: bool) -> list[TrainerTrial]:
        """The fastest shapes of a trainer over so many chips that fit."""
        if chips not in self.trainers:
            rl = RlPlan(train_chips=None if colocated else chips, pack=self.base.plan.rl.pack)
            rl = rl if colocated else replace(rl, placement="split")
            all_entries = list(trainer_shapes(self.base, chips, self.pins))
            tried_shapes = (
                [candidate for candidate in all_entries if candidate in self.shapes] if self.shapes else all_entries
            )
            trials = self._trials(tried_shapes, chips, rl)
            if not any(trial.fits for trial in trials) and len(tried_shapes) < len(all_entries):
                trials = self._trials(all_entries, chips, rl)
            if not self.shapes:
                lean = sorted(trials, key=lambda trial: trial.bytes)[:LEAN]
                self.shapes = [trial.shape for trial in (*_fastest(trials, FAST), *lean)]
            self.trainers[chips] = _fastest(trials, TRAINERS)
        return self.trainers[chips]

    def _trials(self, shapes: list[TrainerShape], chips: int, rl: RlPlan) -> list[TrainerTrial]:
        """The passes of a trainer in these shapes, where it can run; recompute only where it does not fit without."""
        trials: list[TrainerTrial] = []
        for shape in sorted(shapes, key=lambda shape: shape.recompute == "full"):
            plain = replace(shape, recompute="none")
            if shape.recompute == "full" and any(trial.shape == plain and trial.fits for trial in trials):
                continue
            self.trainer_trials += 1
            try:
                passes = training_pass(with_chips(self.base, shape, chips, rl), self.calibration, self.parameters)
            except (InputError, MissingNumber):
                continue
            memory = passes.step.memory
            trials.append(
                TrainerTrial(
                    shape=shape, seconds=passes.update_s + passes.forward_s, update_s=passes.update_s,
                    bytes=memory.peak_bytes, fits=memory.fits,
                )
            )  # fmt: skip
        return trials

    def best_replicas(self, chips: int) -> list[int]:
        """Tensor ranks of a replica, by the rollout of one step; nothing where none holds a sample."""
        if not self.base.workload.generates:
            return [1]
        if chips not in self.replicas:
            timed_options = []
            for tp in rollout_degrees(self.base, chips, self.pins):
                seconds = self._rollout_seconds(chips, tp)
                if seconds is not None:
                    timed_options.append((seconds, tp))
            self.replicas[chips] = [tp for _, tp in sorted(timed_options)[:REPLICAS]]
        return self.replicas[chips]

    def _rollout_seconds(self, chips: int, tp: int) -> float | None:
        self.rollout_trials += 1
        total = self.base.system.chips
        rl = replace(self.base.plan.rl, rollout=self._rollout(tp))
        if chips < total:
            rl = replace(rl, placement="split", train_chips=total - chips)
        built = with_utilization(replace(self.base, plan=replace(self.base.plan, rl=rl)), UTILIZATION[1])
        try:
            return rollout_times(built, parameters=self.parameters).seconds
        except (InputError, MissingNumber, ValueError):
            return None

    def try_step(self, built: Scenario[Rl]) -> RlCandidate | None:
        """The predicted step with the largest share of memory for the engine that fits; None where none does."""
        shares = (None,) if self.base.plan.serving.knobs else UTILIZATION
        for share in shares:
            self.step_trials += 1
            sized_plan = built if share is None else with_utilization(built, share)
            answer = predict_rl(sized_plan, self.calibration, parameters=self.parameters, draws=1)
            if not isinstance(answer, RlPrediction):
                return None
            if answer.fits:
                return RlCandidate(scenario=sized_plan, prediction=answer)
        self.out_of_memory += 1
        return None


def _fastest(trials: list[TrainerTrial], most: int) -> list[TrainerTrial]:
    """The fastest that fit."""
    return sorted((trial for trial in trials if trial.fits), key=lambda trial: trial.seconds)[:most]


def best_of(candidates: Iterable[RlCandidate]) -> RlCandidate | None:
    """The fastest; of those within two per cent the one whose samples lag least."""
    in_order = sorted(candidates, key=lambda candidate: candidate.seconds)
    if not in_order:
        return None
    near = [candidate for candidate in in_order if candidate.seconds <= NEAR * in_order[0].seconds]
    return min(near, key=lambda candidate: (candidate.prediction.staleness.bound, candidate.seconds))
