"""Conduct a run of post-training: who generates, who trains, when weights move, and what happens when a worker is lost.

All placements are one loop over what is free to begin:

    a replica that is free    takes newer weights, then prompts that the bound on staleness allows it to begin
    the trainers              take a batch as soon as the queue has one for their weights
    after a step              weights are gathered, and replicas get them at their next stop

    colocated, split    bound 0: every step waits for its own samples, and they for its weights
    one step off        bound 1, whole batches: samples of a step are generated while the one before it is trained on
    async               the plan's bound; replicas stop every few tokens, and interrupt what is unfinished where the
                        plan says so (partial rollouts)

Where nothing is generated there are no replicas, and a batch is what the data has for that step: pairs, documents, or
answers that a teacher wrote before the first one.

A replica that is lost is started again, and its unfinished prompts begin anew. When a training rank is lost all ranks
start again from the newest checkpoint; batches of the steps behind it were not thrown away and are trained again.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, wait
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import TYPE_CHECKING, Any

from ridgeline.plan.rl_roles import chip_shares
from ridgeline.runtime.rl.crew import Answer, Crew, Worker
from ridgeline.runtime.rl.documents import source_names, step_documents
from ridgeline.runtime.rl.request import (
    PHASES,
    WAIT,
    HeldOutChange,
    HeldOutFigure,
    Learned,
    PhaseSpan,
    RlListener,
    RlOutcome,
    RlRunRequest,
    RlStepRow,
    SampleLag,
    Seat,
)
from ridgeline.runtime.rl.sample_queue import SampleQueue
from ridgeline.runtime.rl.samples import PromptGroup, ScoredSample, grouped_samples, informative_groups
from ridgeline.runtime.train.request import WorkerLost

if TYPE_CHECKING:
    from ridgeline.runtime.rl.replica import Generated, WeightBuffer

SLICE = 8  # steps of a replica between two looks at what is new, where others train meanwhile
POLL = 1.0  # seconds in which an interrupt is noticed
TEACHER_ANSWERS = 1024  # questions that a teacher answers before the first step of distill-off-policy


def seats_of(request: RlRunRequest) -> tuple[Seat, ...]:
    """The processes of a run, training ranks first; colocated ones do both."""
    plan, shares = request.scenario.plan.rl, chip_shares(request.scenario)
    ranks = request.scenario.plan.mesh.ranks
    if not request.work.generates:
        return tuple(Seat(rank=rank, chip=rank) for rank in range(ranks))
    if not plan.separate:
        replicas = plan.rollout.replicas or ranks
        return tuple(Seat(rank=rank, replica=rank if rank < replicas else None, chip=rank) for rank in range(ranks))
    replicas = plan.rollout.replicas or shares.rollout
    generating = (Seat(replica=index, chip=ranks + index) for index in range(replicas))
    return (*(Seat(rank=rank, chip=rank) for rank in range(ranks)), *generating)


@dataclass(slots=True, kw_only=True, eq=False)
class _KnownReplica:
    """A replica as the conductor knows it."""

    worker: Worker
    version: int = -1
    prompts: dict[int, list[ScoredSample]] = field(default_factory=dict)
    answer: Answer | None = None
    is_loading: bool = False


@dataclass(slots=True, kw_only=True)
class _Since:
    """What happened since the last step was told."""

    began: float
    spans: list[tuple[Seat, PhaseSpan]] = field(default_factory=list)
    lost: int = 0


class Conductor:
    """One run, in the process that asked for it."""

    def __init__(
        self, request: RlRunRequest, crew: Crew, listener: RlListener, began: float, stop: Callable[[], bool]
    ) -> None:
        """`stop` is asked all the time whether the run should end behind its step."""
        self.request, self.crew, self.listener, self.began, self.stop = request, crew, listener, began, stop
        plan, data = request.scenario.plan.rl, request.work.data
        self.is_colocated = not plan.separate
        bound = {"one-step-off": 1.0, "async": plan.staleness or 0.0}.get(plan.placement, 0.0)
        self.queue = SampleQueue(batch=_oversampled(data.prompts, data.oversampling), bound=bound)
        self.interrupts = plan.partial_rollouts
        self.slice = SLICE if plan.placement == "async" else None
        self.trainers: list[Worker] = []
        self.replicas: list[_KnownReplica] = []
        self.done = self.resumed = self.restarts = 0
        self.weights: WeightBuffer | None = None
        self.learning: list[Answer] = []
        self.batch: list[PromptGroup] = []
        self.is_trained = True
        self.replay: dict[int, list[PromptGroup]] = {}
        self.taught: list[PromptGroup] = []
        self.baseline: tuple[HeldOutFigure, ...] = ()
        self.looked: tuple[HeldOutFigure, ...] = ()
        self.rows: list[RlStepRow] = []
        self.spans: list[tuple[Seat, PhaseSpan]] = []
        self.notes: list[str] = []
        self.startup = 0.0
        self.since = _Since(began=time.monotonic())
        self.is_stopped = False

    def run(self) -> RlOutcome:
        """Until the last step, or an interrupt."""
        seats = seats_of(self.request)
        try:
            self._survive(lambda: self._start(seats))
            self.startup = time.monotonic() - self.began
            self.since = _Since(began=time.monotonic())
            while self.done < self.request.options.steps and not (self.is_stopped and not self.learning):
                self._survive(self._turn)
            checkpoint, unsaved = self._finish()
        finally:
            self._end_all()
            self.crew.close()
        return RlOutcome(
            rows=tuple(self.rows), algorithm=self.request.work.algorithm,
            placement=self.request.scenario.plan.rl.placement, train_ranks=self.request.scenario.plan.mesh.ranks,
            replicas=len(self.replicas), stopped=self.is_stopped, checkpoint=checkpoint, unsaved=unsaved,
            resumed=self.resumed, startup=self.startup, restarts=self.restarts, notes=tuple(self.notes),
            held_out=self._held_out(),
        )  # fmt: skip

    # -- beginning and end --------------------------------------------------------------------------------------------

    def _start(self, seats: Sequence[Seat]) -> None:
        workers = self.crew.start(self.request, tuple(seats))
        self.trainers = [worker for worker in workers if worker.seat.rank is not None]
        self.replicas = [_KnownReplica(worker=worker) for worker in workers if worker.seat.replica is not None]
        answers = [worker.call("begin") for worker in workers]
        done, notes = _all(answers)[0]
        self._note(notes)
        if not self.rows:
            self.resumed, self.queue.begun = done, done * self.queue.batch
        self.done = done
        if self.request.work.algorithm == "distill-off-policy" and not self.taught:
            answers = [worker.call("teach", range(TEACHER_ANSWERS)) for worker in self.trainers]
            self.taught = grouped_samples(_all(answers)[0])
        self._publish()

    def _finish(self) -> tuple[str, bool]:
        found: list[tuple[str, bool]] = _all([worker.call("finish", self.done, True) for worker in self.trainers])
        return found[0]

    def _end_all(self) -> None:
        for worker in {id(worker): worker for worker in self._workers()}.values():
            worker.end()

    def _workers(self) -> list[Worker]:
        return [*self.trainers, *(replica.worker for replica in self.replicas)]

    def _note(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.notes.append(line)
            self.listener.note(line)

    # -- one turn of the loop -----------------------------------------------------------------------------------------

    def _turn(self) -> None:
        """Begin all that may begin, then wait for something to end."""
        self._train()
        for replica in self.replicas:
            self._occupy(replica)
        futures = [*self.learning, *(replica.answer for replica in self.replicas if replica.answer is not None)]
        wait(futures, timeout=POLL, return_when=FIRST_COMPLETED)
        self.is_stopped = self.is_stopped or self.stop()
        for replica in self.replicas:
            if replica.answer is not None and replica.answer.done():
                self._hear(replica)
        if self.learning and all(future.done() for future in self.learning):
            self._end_step()

    def _train(self) -> None:
        if self.learning or self.is_stopped or self.done >= self.request.options.steps:
            return
        groups = self.replay.get(self.done) or self._read() or self.queue.take(self.done)
        if groups is None:
            return
        self.batch, self.is_trained = groups, False
        chosen = informative_groups(groups, self.request.work.data.prompts)
        self.learning = [worker.call("learn", chosen, self.done) for worker in self.trainers]

    def _read(self) -> list[PromptGroup]:
        """What the data has for the next step; nothing where the actor writes its own."""
        work = self.request.work
        if work.generates:
            return []
        if not self.taught:
            return step_documents(work, self.request.seed, self.done)
        first, prompts = self.done * work.data.prompts, work.data.prompts
        return [self.taught[number % len(self.taught)] for number in range(first, first + prompts)]

    def _occupy(self, replica: _KnownReplica) -> None:
        """Give a free replica newer weights, or prompts, or time for those it has."""
        if replica.answer is not None or (self.learning and self.is_colocated):
            return
        if replica.version < self.done and not self.is_colocated and (self.interrupts or not replica.prompts):
            assert self.weights is not None
            replica.answer, replica.is_loading = replica.worker.call("load", self.weights, self.done), True
            replica.version = self.done
            return
        numbers: list[int] = []
        if replica.version == self.done:
            numbers = self.queue.begin(replica.version, self._share() - len(replica.prompts))
        if numbers or replica.prompts:
            replica.prompts |= {number: [] for number in numbers}
            replica.answer = replica.worker.call("generate", numbers, self.slice)

    def _share(self) -> int:
        """Prompts that a replica works on at once."""
        batches = 1 + self.queue.bound if self.interrupts else 1
        return -(-int(self.queue.batch * batches) // max(1, len(self.replicas)))

    def _hear(self, replica: _KnownReplica) -> None:
        assert replica.answer is not None
        future, replica.answer = replica.answer, None
        is_loading, replica.is_loading = replica.is_loading, False
        try:
            answer = future.result()
        except WorkerLost as lost:
            self._replace_replica(replica, lost)
            return
        if is_loading:
            self._measure(replica.worker.seat, answer)
            return
        generated: Generated = answer
        self._measure(replica.worker.seat, generated.spans)
        for scored in generated.samples:
            number = scored.sample.prompt.number
            samples = replica.prompts[number]
            samples.append(scored)
            if len(samples) == self.request.work.data.samples:
                self.queue.finish(number, replica.prompts.pop(number))

    def _end_step(self) -> None:
        futures, self.learning = self.learning, []
        answers: list[tuple[Learned, tuple[str, ...]]] = _all(futures)
        for worker, (learned, notes) in zip(self.trainers, answers, strict=True):
            self._measure(worker.seat, learned.spans)
            self._note(notes)
        first = answers[0][0]
        self.is_trained, self.replay[self.done] = True, self.batch
        for step in [step for step in self.replay if step < first.saved or not self.request.options.every]:
            del self.replay[step]
        self.done += 1
        self._tell(replace(first, memory=max(learned.memory for learned, _ in answers)))
        if self.done < self.request.options.steps:
            self._publish()

    def _publish(self) -> None:
        """New weights for the replicas: at once where they share the trainers' chips."""
        if not self.replicas:
            return
        if self.is_colocated:
            answers = [worker.call("renew", self.done) for worker in self.trainers if worker.seat.replica is not None]
            rest = [worker.call("gather") for worker in self.trainers if worker.seat.replica is None]
            for replica, spans in zip(self.replicas, _all(answers), strict=True):
                replica.version = self.done
                self._measure(replica.worker.seat, spans)
            _all(rest)
            return
        gathered = _all([worker.call("gather") for worker in self.trainers])
        self.weights = gathered[0][0]
        for worker, (_, spans) in zip(self.trainers, gathered, strict=True):
            self._measure(worker.seat, spans)

    # -- what it tells ------------------------------------------------------------------------------------------------

    def _measure(self, seat: Seat, spans: Iterable[PhaseSpan]) -> None:
        for span in spans:
            self.since.spans.append((seat, span))
            self.spans.append((seat, span))

    def _tell(self, learned: Learned) -> None:
        now, since = time.monotonic(), self.since
        scored = [entry for group in self.batch for entry in group.samples]
        generates = self.request.work.generates
        lags = [max(0, self.done - 1 - entry.sample.oldest) if generates else 0 for entry in scored]
        seconds = now - since.began
        figures = {name: value for name, value in learned.figures.items() if name != "clipped"}
        self.baseline, self.looked = learned.baseline, learned.held_out or self.looked
        row = RlStepRow(
            step=self.done, reward=fmean(entry.reward for entry in scored) if generates else None, loss=learned.loss,
            gradient_norm=learned.gradient_norm, samples=len(scored),
            response_tokens=fmean(sum(entry.sample.own) for entry in scored),
            complete=fmean(entry.sample.complete for entry in scored), clipped=learned.figures.get("clipped", 0.0),
            rate=learned.rate, figures=figures, held_out=learned.held_out, sources=self._sources(),
            mismatch=learned.mismatch,
            staleness=SampleLag(mean=fmean(lags), largest=max(lags)), lost=since.lost, seconds=seconds,
            phases=self._phases(seconds), memory=learned.memory,
        )  # fmt: skip
        self.rows.append(row)
        self.since = _Since(began=now)
        self.listener.step(row)

    def _sources(self) -> dict[str, int]:
        """Documents of the step by source, where there are several."""
        work = self.request.work
        return dict(Counter(source_names(work, self.done - 1))) if work.sources else {}

    def _held_out(self) -> tuple[HeldOutChange, ...]:
        """What of held-out questions was learned and forgotten, between the beginning and the last look."""
        return tuple(
            HeldOutChange(before=before, after=after) for before, after in zip(self.baseline, self.looked, strict=False)
        )

    def _phases(self, seconds: float) -> dict[str, float]:
        """Seconds of each phase since the last step: the mean of the processes that have a part in it."""
        phases: dict[str, float] = {}
        for phase in PHASES:
            by_seat: dict[str, float] = {}
            for seat, span in self.since.spans:
                if span.phase == phase:
                    by_seat[seat.name] = by_seat.get(seat.name, 0.0) + span.seconds
            if by_seat:
                phases[phase] = fmean(by_seat.values())
        busy = sum(span.seconds for seat, span in self.since.spans if seat.rank is not None) / len(self.trainers)
        return phases | {WAIT: max(0.0, seconds - busy)}

    # -- workers that are lost ----------------------------------------------------------------------------------------

    def _survive(self, act: Callable[[], None]) -> None:
        """Do something; where a training rank is lost meanwhile, start all of them again, as often as allowed."""
        while True:
            try:
                act()
            except WorkerLost as lost:
                self._count(lost)
                act = self._restart_trainers
            else:
                return

    def _count(self, lost: WorkerLost) -> None:
        self.restarts += 1
        if self.restarts > self.request.options.restarts:
            raise lost
        self._note([f"{str(lost).splitlines()[0]}; started again behind step {self.done}"])

    def _resuming(self) -> RlRunRequest:
        return replace(self.request, options=replace(self.request.options, resume=bool(self.request.options.folder)))

    def _restart_trainers(self) -> None:
        """All training ranks anew, from the newest checkpoint; with them the replicas of the same processes."""
        for worker in self.trainers:
            worker.end()
        self.learning = []
        seats = tuple(worker.seat for worker in self.trainers)
        before = self.done
        workers = self.crew.start(self._resuming(), seats)
        self.trainers = workers
        if self.is_colocated:
            for replica in self.replicas:
                self._forget(replica)
            self.replicas = [_KnownReplica(worker=worker) for worker in workers if worker.seat.replica is not None]
        done, notes = _all([worker.call("begin") for worker in workers])[0]
        self._note(notes)
        self.done = done
        if not self.is_trained:
            self.replay[before] = self.batch
        if any(step not in self.replay for step in range(done, before)):
            self._forget_samples()
        self._publish()

    def _forget_samples(self) -> None:
        """Nothing of what was generated fits the checkpoint: begin with its own prompts."""
        for replica in self.replicas:
            replica.prompts.clear()
        self.queue = SampleQueue(batch=self.queue.batch, bound=self.queue.bound, begun=self.done * self.queue.batch)
        self.replay.clear()

    def _replace_replica(self, replica: _KnownReplica, lost: WorkerLost) -> None:
        """A process in place of one that is lost; its unfinished prompts begin anew."""
        if self.is_colocated:
            raise lost
        self._count(lost)
        replica.worker.end()
        self._forget(replica)
        (worker,) = self.crew.start(self.request, (replica.worker.seat,))
        replica.worker, replica.version = worker, -1
        worker.call("begin")

    def _forget(self, replica: _KnownReplica) -> None:
        self.since.lost += len(replica.prompts) * self.request.work.data.samples
        self.queue.give_back(replica.prompts)
        replica.prompts.clear()
        replica.answer = None


def _all(futures: Sequence[Answer]) -> list[Any]:
    """Every answer; where one is missing the failure that explains the others."""
    wait(futures)
    failures = [wrong for future in futures if (wrong := future.exception()) is not None]
    if failures:
        raise next((wrong for wrong in failures if isinstance(wrong, WorkerLost) and wrong.gone), failures[0])
    return [future.result() for future in futures]


def _oversampled(prompts: int, factor: float) -> int:
    """Prompts that are sampled for so many that are trained on.

    >>> _oversampled(32, 1.5)
    48
    """
    return -(-int(prompts * factor * 1000) // 1000)
