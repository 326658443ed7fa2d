"""A rank that trains: passes over what was generated or read, advantages, optimizer steps, new weights.

    old          log p of the tokens by the weights at the beginning of the step        online, but not by a teacher
    reference    the same by the weights that the run began with                        kl > 0, dpo
    teacher      log-probabilities of the whole vocabulary                              distillation
    critic       values, of which advantages and returns are made; it is updated before the actor        ppo
    mini-batch   prompts of one optimizer step; ranks take every n-th sample of it, gradients are summed

`objectives` has what is lowered. Every model is a `Trainee`; the reference and the teacher are made again from the seed
and their warm-up whenever a run begins, so that checkpoints hold what is trained alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from ridgeline.core.documents import JsonObject
from ridgeline.core.encode import encode
from ridgeline.core.table import decode
from ridgeline.plan.rl_mixture import rate_factor
from ridgeline.runtime.probe.ranks import World
from ridgeline.runtime.rl import losses
from ridgeline.runtime.rl.advantages import overlong_penalty
from ridgeline.runtime.rl.batches import SampleBatch, collate, shares
from ridgeline.runtime.rl.documents import warm_up_documents
from ridgeline.runtime.rl.held_out import HeldOutQuestions
from ridgeline.runtime.rl.objectives import (
    LossPart,
    LossSetting,
    Passes,
    explained_variance,
    microbatch_loss,
    rows_together,
    target_log_probs,
    value_part,
    with_gains,
)
from ridgeline.runtime.rl.request import HeldOutFigure, Learned, Mismatch, RlRunRequest
from ridgeline.runtime.rl.samples import PromptGroup
from ridgeline.runtime.rl.stopwatch import Stopwatch
from ridgeline.runtime.rl.trainee import StepLoss, Trainee, train_request
from ridgeline.runtime.train.checkpoint import Checkpoints, facts_of
from ridgeline.runtime.train.layout import Layout
from ridgeline.runtime.train.loop import join_ranks, resident_memory
from ridgeline.runtime.train.run_folder import checkpoint_folder, steps

Parts = list[tuple[Tensor, losses.Totals]]
"""Of every mini-batch this rank's rows, and what its sums are over."""


class Learner:
    """One rank of a run's training."""

    def __init__(self, request: RlRunRequest, world: World, note: Callable[[str], None]) -> None:
        self.request, self.watch = request, Stopwatch()
        self.open_groups = ExitStack()
        self.layout: Layout = self.open_groups.enter_context(join_ranks(train_request(request), world))
        self.actor = Trainee(request, self.layout)
        self.critic = Trainee(request, self.layout, "critic") if request.work.algorithm == "ppo" else None
        self.reference: Trainee | None = None
        self.teacher: Trainee | None = None
        folder = request.options.folder
        beside_models = {} if self.critic is None else {"critic": (self.critic.assembly, self.critic.update)}
        parts = self.actor.assembly, self.actor.update, note, beside_models
        self.checkpoints = Checkpoints(Path(folder), *parts) if folder else None
        self.held_out = HeldOutQuestions(request)
        self.baseline: tuple[HeldOutFigure, ...] = ()

    @property
    def facts(self) -> JsonObject:
        """What a resumed run has to have alike, so that the same questions follow."""
        learning = self.request.work.learning
        return {"seed": self.request.seed, "task": learning.task, "level": learning.level}

    def begin(self) -> tuple[int, tuple[str, ...]]:
        """Resume or warm up: the step that is behind, and what of older checkpoints was passed over."""
        done, notes, work = 0, list[str](), self.request.work
        if self.checkpoints and self.request.options.resume:
            done, notes = self.checkpoints.load(self.facts)
            updates = done * work.mini_batches * work.updates.epochs
            self.actor.update.set_steps(work.learning.warm_up + updates)
            if self.critic is not None:
                self.critic.update.set_steps(updates)
        if not done:
            self._imitate(self.actor, work.learning.warm_up)
        if work.learning.kl > 0 or work.algorithm == "dpo":
            self.reference = Trainee(self.request, self.layout)
            self._imitate(self.reference, work.learning.warm_up)
        if work.algorithm.startswith("distill"):
            self.teacher = Trainee(self.request, self.layout, "teacher")
            self._imitate(self.teacher, work.learning.teacher.warm_up)
        self.baseline = self._baseline(done)
        return done, tuple(notes)

    def _baseline(self, done: int) -> tuple[HeldOutFigure, ...]:
        """What the model made of held-out questions before the first step of the run."""
        if not done or self.checkpoints is None:
            return self.held_out.figures(self.actor)
        stored_rows = facts_of(checkpoint_folder(self.checkpoints.folder, done)).get("baseline", [])
        return tuple(decode(HeldOutFigure, row) for row in stored_rows)

    # -- a step -------------------------------------------------------------------------------------------------------

    def learn(self, groups: Sequence[PromptGroup], step: int) -> Learned:
        """Train on the groups of a step, the first of which is 0; writes the checkpoint that is due."""
        work, batch = self.request.work, self._shaped(collate(groups))
        factor = rate_factor(work.replay, step)
        place = self.layout.dp.index, self.layout.dp.degree
        pairs = [*shares(len(batch.tokens), work.mini_batches, place, rows_together(work))]
        parts = [(own, losses.Totals.of(batch.mask[all_rows])) for own, all_rows in pairs]
        passes = with_gains(work, batch, self._passes(batch, [own for own, _ in parts]))
        figures: dict[str, float] = {}
        if self.critic is not None:
            figures = self._teach_critic(self.critic, batch, passes, (parts, step))
        with self.watch.phase("train"):
            self.actor.set_rate(factor)
            loss_steps = self._update(self.actor, (batch, parts), partial(self._actor_part, (batch, passes, step)))
        loss, actor_figures = self._sums(loss_steps)
        mismatch = self._mismatch(batch, passes.old, torch.cat([own for own, _ in parts]), step)
        held_out = self._look(step + 1)
        saved = self._save(step + 1)
        return Learned(
            loss=loss, gradient_norm=float(loss_steps[-1].norm), figures=figures | actor_figures, mismatch=mismatch,
            spans=self.watch.take(), memory=resident_memory(self.layout.device), rate=self.actor.update.rate,
            held_out=held_out, baseline=self.baseline, saved=saved,
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

    def _passes(self, batch: SampleBatch, parts: Sequence[Tensor]) -> Passes:
        """Forward passes over this rank's rows before anything is updated."""

        def targets(trainee: Trainee) -> Tensor:
            return trainee.read(batch.tokens, parts, lambda tokens: target_log_probs(trainee.logits(tokens), tokens))

        old = reference = teacher = values = None
        if self.request.work.generates:
            with self.watch.phase("log-probs"):
                old = targets(self.actor)
        if self.reference is not None:
            with self.watch.phase("reference"):
                reference = targets(self.reference)
        if self.teacher is not None:
            with self.watch.phase("teacher"):
                look = self.teacher.logits
                teacher = self.teacher.read(batch.tokens, parts, lambda tokens: look(tokens).log_softmax(-1))
        if self.critic is not None:
            with self.watch.phase("critic"):
                values = self._shared(self.critic.read(batch.tokens, parts, self.critic.values))
        return Passes(old=old, reference=reference, teacher=teacher, values=values)

    def _shared(self, values: Tensor) -> Tensor:
        """Rows of all ranks, of which each has its own and zeros: advantages are made of the whole step."""
        if self.layout.ranks == 1:
            return values
        all_values = values.to(self.layout.device)
        dist.all_reduce(all_values)
        return all_values.cpu()

    def _teach_critic(
        self, critic: Trainee, batch: SampleBatch, passes: Passes, when: tuple[Parts, int]
    ) -> dict[str, float]:
        parts, step = when

        def part(own: Tensor, totals: losses.Totals) -> LossPart:
            rows, setting = batch.rows(own), LossSetting(work=self.request.work, step=step, totals=totals)
            return value_part(setting, critic.values(rows.tokens), rows, passes.rows(own, self.layout.device))

        with self.watch.phase("critic update"):
            loss_steps = self._update(critic, (batch, parts), part)
        loss, _ = self._sums(loss_steps)
        return {
            "value_loss": loss, "explained_variance": explained_variance(batch, passes),
            "critic_norm": float(loss_steps[-1].norm),
        }  # fmt: skip

    def _actor_part(
        self, known: tuple[SampleBatch, Passes, int], own: Tensor, totals: losses.Totals
    ) -> LossPart:  # fmt: skip
        batch, passes, step = known
        rows, setting = batch.rows(own), LossSetting(work=self.request.work, step=step, totals=totals)
        return microbatch_loss(setting, self.actor.logits(rows.tokens), rows, passes.rows(own, self.layout.device))

    def _update(
        self, trainee: Trainee, what: tuple[SampleBatch, Parts], part_of: Callable[[Tensor, losses.Totals], LossPart]
    ) -> list[StepLoss]:
        """Every optimizer step of a step of post-training."""
        loss_steps = []
        batch, parts = what
        for _ in range(self.request.work.updates.epochs):
            for rows, totals in parts:
                pieces = trainee.pieces(rows, batch.tokens.shape[-1])
                loss_steps.append(trainee.step([(piece, totals) for piece in pieces], part_of))
        return loss_steps

    def _sums(self, loss_steps: Sequence[StepLoss]) -> tuple[float, dict[str, float]]:
        """Loss and figures of all ranks, the mean over optimizer steps."""
        names = sorted(loss_steps[0].figures)
        rows = [torch.stack([step.loss, *(step.figures[name].float() for name in names)]) for step in loss_steps]
        total = torch.stack(rows).double().mean(0)
        if self.layout.ranks > 1:
            dist.all_reduce(total)
        loss, *figures = total.tolist()
        return loss, dict(zip(names, figures, strict=True))

    def _mismatch(self, batch: SampleBatch, old: Tensor | None, rows: Tensor, step: int) -> Mismatch:
        """Of all ranks' rows; nothing where nothing was generated."""
        if old is None:
            return Mismatch()
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

    def _look(self, done: int) -> tuple[HeldOutFigure, ...]:
        if not self.held_out.is_due(done, self.request.options.steps):
            return ()
        with self.watch.phase("held out"):
            return self.held_out.figures(self.actor)

    # -- examples -----------------------------------------------------------------------------------------------------

    def _imitate(self, trainee: Trainee, updates: int) -> None:
        """Supervised optimizer steps on good answers to questions that the run does not ask."""
        for step in range(updates):
            batch = collate(warm_up_documents(self.request.work, self.request.seed, step))
            rows = torch.arange(len(batch.tokens))[self.layout.dp.index :: self.layout.dp.degree]

            def part(own: Tensor, totals: losses.Totals, batch: SampleBatch = batch) -> LossPart:
                tokens, mask = batch.tokens[own], batch.mask[own].to(self.layout.device)
                log_probs = target_log_probs(trainee.logits(tokens), tokens)
                return LossPart(loss=losses.aggregate(-log_probs, mask, "token-mean", totals))

            trainee.step([(rows, losses.Totals.of(batch.mask))], part)

    def teach(self) -> dict[str, Tensor]:
        """Whole weights of the teacher; every rank takes part."""
        assert self.teacher is not None
        return self.teacher.gather()

    # -- weights and checkpoints --------------------------------------------------------------------------------------

    def gather(self) -> dict[str, Tensor]:
        """Whole weights of the actor by name, on this rank's device; every rank takes part."""
        return self.actor.gather()

    def _save(self, done: int) -> int:
        """Write the checkpoint that is due behind so many steps; the newest step that has one."""
        options, checkpoints = self.request.options, self.checkpoints
        if checkpoints is None:
            return 0
        checkpoints.look()
        if (options.every and done % options.every == 0) or done == options.steps:
            checkpoints.save(done, self._saved_facts())
        return next(iter(steps(checkpoints.folder)), 0)

    def _saved_facts(self) -> JsonObject:
        return self.facts | ({"baseline": [encode(figure) for figure in self.baseline]} if self.baseline else {})

    def finish(self, step: int, *, save: bool) -> tuple[str, bool]:
        """End in order behind a step: the last checkpoint, and whether the last one could not be written."""
        if self.checkpoints is not None:
            if (
                save
                and not (self.checkpoints.folder / f"step-{step:08d}").exists()
                and self.checkpoints.pending is None
            ):
                self.checkpoints.save(step, self._saved_facts())
            self.checkpoints.finish()
        self.open_groups.close()
        return (self.checkpoints.last, self.checkpoints.unsaved) if self.checkpoints else ("", False)
