"""A rank that trains the actor: log-probabilities of what was generated, advantages, optimizer steps, new weights.

    old        log p of the tokens by the weights at the beginning of the step
    loss       policy loss of log p against old, x exp(old - rollout) cut off where older weights wrote the tokens,
               + kl x divergence from the reference
    mini-batch prompts of one optimizer step; ranks take every n-th sample of it, gradients are summed

It is a rank of `runtime.train`: the same modules, sharding, optimizer and checkpoints.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from ridgeline.core.documents import JsonObject
from ridgeline.core.records import dataclass
from ridgeline.plan.rl_roles import actor_scenario
from ridgeline.plan.scenario import Scenario
from ridgeline.plan.workload import Train
from ridgeline.runtime.probe.ranks import World
from ridgeline.runtime.rl import losses
from ridgeline.runtime.rl.advantages import overlong_penalty
from ridgeline.runtime.rl.batches import SampleBatch, advantages_of, collate, examples, microbatches, shares
from ridgeline.runtime.rl.request import Learned, Mismatch, Phase, PhaseSpan, RlRunRequest
from ridgeline.runtime.rl.samples import PromptGroup
from ridgeline.runtime.rl.tasks import STOP, make_question, tokens_of
from ridgeline.runtime.train.assemble import Assembly, assemble
from ridgeline.runtime.train.checkpoint import Checkpoints
from ridgeline.runtime.train.layout import Layout, full_of
from ridgeline.runtime.train.loop import blueprint_of, join_ranks, resident_memory
from ridgeline.runtime.train.request import RunRequest
from ridgeline.runtime.train.run_folder import steps
from ridgeline.runtime.train.step import finish_gradients, gradient_norm, sync_behind
from ridgeline.runtime.train.update import Update

EXAMPLES = 128  # questions of one warm-up step
EXAMPLE_SEED = 1 << 20  # apart from the questions of the run


class Stopwatch:
    """What a process did when."""

    def __init__(self) -> None:
        self.spans: list[PhaseSpan] = []

    @contextmanager
    def phase(self, phase: Phase) -> Iterator[None]:
        begin = time.time_ns()
        try:
            yield
        finally:
            self.spans.append(PhaseSpan(phase=phase, begin_ns=begin, end_ns=time.time_ns()))

    def take(self) -> tuple[PhaseSpan, ...]:
        """The spans since they were last taken."""
        spans, self.spans = tuple(self.spans), []
        return spans


def train_scenario(request: RlRunRequest) -> Scenario[Train]:
    """The actor's training as `runtime.train` builds it."""
    return actor_scenario(request.scenario, seq=max(2, request.work.seq))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Outcome:
    """Of a microbatch or mini-batch: its loss, and the share of clipped tokens times its tokens."""

    loss: Tensor
    clipped: float


class Learner:
    """One rank of the actor's training."""

    def __init__(self, request: RlRunRequest, world: World, note: Callable[[str], None]) -> None:
        self.request, self.watch = request, Stopwatch()
        built = RunRequest(scenario=train_scenario(request), options=request.options, constants=request.constants)
        built = replace(built, options=replace(built.options, seed=request.seed))
        self.open_groups = ExitStack()
        self.layout: Layout = self.open_groups.enter_context(join_ranks(built, world))
        self.blueprint = blueprint_of(built)
        self.assembly, self.update = self._fresh()
        folder = request.options.folder
        checkpoint_parts = Path(folder), self.assembly, self.update, note
        self.checkpoints = Checkpoints(*checkpoint_parts) if folder else None
        self.reference: Assembly | None = None

    @property
    def facts(self) -> JsonObject:
        """What a resumed run has to have alike, so that the same questions follow."""
        learning = self.request.work.learning
        return {"seed": self.request.seed, "task": learning.task, "level": learning.level}

    def _fresh(self) -> tuple[Assembly, Update]:
        assembly = assemble(self.blueprint, self.layout)
        return assembly, Update(assembly, self.request.work.updates.optimizer, self.request.rate)

    def begin(self) -> tuple[int, tuple[str, ...]]:
        """Resume or warm up: the step that is behind, and what of older checkpoints was passed over.

        The reference is what the run began with: it is made again, from the seed and the warm-up.
        """
        done, notes = 0, list[str]()
        if self.checkpoints and self.request.options.resume:
            done, notes = self.checkpoints.load(self.facts)
            work = self.request.work
            self.update.set_steps(work.learning.warm_up + done * work.mini_batches * work.updates.epochs)
        if not done:
            self._warm_up(self.assembly, self.update)
        if self.request.work.learning.kl > 0:
            self.reference, update = self._fresh()
            self._warm_up(self.reference, update)
        return done, tuple(notes)

    # -- a step -------------------------------------------------------------------------------------------------------

    def learn(self, groups: Sequence[PromptGroup], step: int) -> Learned:
        """Train on the groups of a step, the first of which is 0; writes the checkpoint that is due."""
        work, batch = self.request.work, self._shaped(collate(groups))
        device = self.layout.device
        place = self.layout.dp.index, self.layout.dp.degree
        parts = list(shares(len(batch.tokens), work.mini_batches, place))
        with self.watch.phase("log-probs"):
            old = self._log_probs(self.assembly, batch, parts)
        reference = None
        if self.reference is not None:
            with self.watch.phase("reference"):
                reference = self._log_probs(self.reference, batch, parts)
        with self.watch.phase("train"):
            gains = advantages_of(work.algorithm, batch)
            outcomes, norm = [], torch.zeros(())
            for _ in range(work.updates.epochs):
                for rows, whole in zip(parts, torch.arange(len(batch.tokens)).chunk(work.mini_batches), strict=True):
                    totals = losses.Totals.of(batch.mask[whole])
                    outcome, norm = self._optimizer_step(
                        batch, rows, (old, reference, gains), (totals, step)
                    )  # fmt: skip
                    outcomes.append(outcome)
        mismatch = self._mismatch(batch, old, torch.cat(parts), step)
        loss = sum(float(outcome.loss) for outcome in outcomes) / len(outcomes)
        clipped = sum(outcome.clipped for outcome in outcomes) / len(outcomes)
        loss, clipped = self._sums(loss, clipped)
        saved = self._save(step + 1)
        return Learned(
            loss=loss, gradient_norm=float(norm), clipped=clipped, mismatch=mismatch, spans=self.watch.take(),
            memory=resident_memory(device), saved=saved,
        )  # fmt: skip

    def _shaped(self, batch: SampleBatch) -> SampleBatch:
        """The batch with what DAPO takes from answers near the limit."""
        buffer = self.request.work.learning.overlong
        if not buffer:
            return batch
        lengths = batch.mask.sum(-1)
        penalty = overlong_penalty(lengths, longest=self.request.longest_answer, buffer=buffer)
        places = (batch.mask * torch.arange(1, batch.mask.shape[-1] + 1)).argmax(-1)
        rewards = batch.rewards.clone()
        rewards[torch.arange(len(rewards)), places] += penalty
        return replace(batch, rewards=rewards)

    def _rows_at_once(self, longest: int) -> int:
        """Samples of a microbatch: as the plan says, or as many as its packed tokens hold."""
        plan = self.request.scenario.plan
        return max(1, plan.rl.pack // longest) if plan.rl.pack else plan.microbatch

    def _log_probs(self, assembly: Assembly, batch: SampleBatch, parts: Sequence[Tensor]) -> Tensor:
        """Of the targets of this rank's rows, in rows of the whole batch; 0 elsewhere."""
        found = torch.zeros_like(batch.mask)
        stage = assembly.stages[0]
        with torch.no_grad():
            for part in parts:
                for rows in microbatches(part, self._rows_at_once(batch.tokens.shape[-1])):
                    found[rows] = self._forward(stage, batch.tokens[rows]).cpu()
        return found

    def _forward(self, stage: torch.nn.Module, tokens: Tensor) -> Tensor:
        tokens = tokens.to(self.layout.device)
        logits = stage(tokens)[:, :-1].float() / self.request.work.learning.temperature
        return torch.log_softmax(logits, -1).gather(-1, tokens[:, 1:, None]).squeeze(-1)

    def _optimizer_step(
        self, batch: SampleBatch, rows: Tensor, known: tuple[Tensor, Tensor | None, Tensor],
        what: tuple[losses.Totals, int],
    ) -> tuple[_Outcome, Tensor]:  # fmt: skip
        totals, step = what
        stage, plan = self.assembly.stages[0], self.request.scenario.plan
        pieces = microbatches(rows, self._rows_at_once(batch.tokens.shape[-1]))
        loss, clipped = torch.zeros(()), 0.0
        for index, piece in enumerate(pieces):
            sync_behind(stage, plan.sharding.shard, last=index + 1 == len(pieces))
            log_probs = self._forward(stage, batch.tokens[piece])
            part, cut = self._loss(
                log_probs, batch.rows(piece), [_rows(tensor, piece) for tensor in known], (totals, step)
            )
            part.backward()
            loss += part.detach().cpu()
            clipped += cut * float(batch.mask[piece].sum()) / totals.tokens
        finish_gradients(self.assembly)
        norm = gradient_norm(self.assembly)
        self.update.step(norm)
        return _Outcome(loss=loss, clipped=clipped), norm

    def _loss(
        self, log_probs: Tensor, batch: SampleBatch, known: Sequence[Tensor | None], what: tuple[losses.Totals, int]
    ) -> tuple[Tensor, float]:
        totals, step = what
        learning, algorithm = self.request.work.learning, self.request.work.algorithm
        device = log_probs.device
        old, reference, gains = (None if tensor is None else tensor.to(device) for tensor in known)
        assert old is not None
        assert gains is not None
        mask = batch.mask.to(device)
        usual: losses.Aggregation = "token-mean" if algorithm in ("dapo", "reinforce++") else "seq-mean-token-mean"
        how = learning.average or usual
        is_older = (batch.versions < step).to(device)
        weights = torch.where(is_older, losses.importance_weights(old, batch.rollout.to(device)), torch.ones_like(old))
        high = learning.clip_high if learning.clip_high is not None else 0.28 if algorithm == "dapo" else None
        clipping = losses.Clipping(low=learning.clip_low, high=learning.clip_low if high is None else high)

        def average(token_losses: Tensor, of: Tensor) -> Tensor:
            return losses.aggregate(token_losses * weights, of, how, totals)

        outcome = losses.policy_loss(log_probs, old, gains, mask, clipping, average)
        loss = outcome.loss
        if reference is not None:
            loss = loss + learning.kl * losses.aggregate(losses.divergence(log_probs, reference), mask, how, totals)
        return loss, outcome.clipped

    def _mismatch(self, batch: SampleBatch, old: Tensor, rows: Tensor, step: int) -> Mismatch:
        """Of all ranks' rows."""
        mask = batch.mask[rows].bool()
        distance = (old - batch.rollout)[rows].abs()
        newest = mask & (batch.versions[rows] == step)
        k3 = losses.divergence(batch.rollout, old)[rows]
        sums = torch.tensor(
            [float(distance[newest].sum()), float(newest.sum()), float(k3[mask].sum()), float(mask.sum())],
            dtype=torch.float64,
        )
        largest = torch.tensor([float(distance[newest].max()) if newest.any() else 0.0], dtype=torch.float64)
        if self.layout.ranks > 1:
            sums, largest = sums.to(self.layout.device), largest.to(self.layout.device)
            dist.all_reduce(sums)
            dist.all_reduce(largest, op=dist.ReduceOp.MAX)
        total, count, divergence, tokens = sums.tolist()
        return Mismatch(
            mean=total / count if count else None, largest=float(largest) if count else None,
            divergence=divergence / max(tokens, 1.0),
        )  # fmt: skip

    def _sums(self, *values: float) -> tuple[float, ...]:
        """The same of all ranks together."""
        if self.layout.ranks == 1:
            return values
        total = torch.tensor(values, dtype=torch.float64, device=self.layout.device)
        dist.all_reduce(total)
        return tuple(total.tolist())

    # -- examples -----------------------------------------------------------------------------------------------------

    def _warm_up(self, assembly: Assembly, update: Update) -> None:
        for step in range(self.request.work.learning.warm_up):
            self._imitate(assembly, update, step)

    def _imitate(self, assembly: Assembly, update: Update, step: int) -> None:
        """One supervised optimizer step on good answers to questions that the run does not ask."""
        learning = self.request.work.learning
        assert learning.task is not None
        pairs = []
        for index in range(EXAMPLES):
            place = self.request.seed + EXAMPLE_SEED, step * EXAMPLES + index
            question = make_question(learning.task, learning.level, place)
            answer, own = list[int](), list[bool]()
            for turn, text in enumerate(question.example):
                answer += (*tokens_of(text), STOP)
                own += [True] * (len(text) + 1)
                if turn + 1 < len(question.example):
                    answer += tokens_of(question.result)
                    own += [False] * len(question.result)
            pairs.append((tokens_of(question.prompt), tuple(answer), tuple(own)))
        tokens, mask = examples(pairs)
        rows = torch.arange(len(tokens))[self.layout.dp.index :: self.layout.dp.degree]
        stage = assembly.stages[0]
        sync_behind(stage, self.request.scenario.plan.sharding.shard, last=True)
        losses.aggregate(
            -self._forward(stage, tokens[rows]), mask[rows].to(self.layout.device), "token-mean", losses.Totals.of(mask)
        ).backward()
        finish_gradients(assembly)
        update.step(gradient_norm(assembly))

    # -- weights and checkpoints --------------------------------------------------------------------------------------

    def gather(self) -> dict[str, Tensor]:
        """Whole weights by name, on this rank's device; every rank takes part."""
        with torch.no_grad():
            return {name: full_of(parameter.detach()) for name, parameter in self.assembly.parameters().items()}

    def _save(self, done: int) -> int:
        """Write the checkpoint that is due behind so many steps; the newest step that has one."""
        options, checkpoints = self.request.options, self.checkpoints
        if checkpoints is None:
            return 0
        checkpoints.look()
        if (options.every and done % options.every == 0) or done == options.steps:
            checkpoints.save(done, self.facts)
        return next(iter(steps(checkpoints.folder)), 0)

    def finish(self, step: int, *, save: bool) -> tuple[str, bool]:
        """End in order behind a step: the last checkpoint, and whether the last one could not be written."""
        if self.checkpoints is not None:
            if (
                save
                and not (self.checkpoints.folder / f"step-{step:08d}").exists()
                and self.checkpoints.pending is None
            ):
                self.checkpoints.save(step, self.facts)
            self.checkpoints.finish()
        self.open_groups.close()
        return (self.checkpoints.last, self.checkpoints.unsaved) if self.checkpoints else ("", False)


def _rows(tensor: Tensor | None, rows: Tensor) -> Tensor | None:
    return None if tensor is None else tensor[rows]
