"""A model of a run on one rank: the actor, its critic, the reference or the teacher; its modules and its optimizer.

It is what `runtime.train` builds: the same modules, sharding, optimizer and checkpoints. Rows of a batch are cut into
microbatches as the plan says.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ridgeline.models.spec import ModelSpec
from ridgeline.plan.rl_roles import actor_scenario, role_model
from ridgeline.plan.scenario import Scenario
from ridgeline.plan.workload import Train
from ridgeline.runtime.rl.batches import microbatches
from ridgeline.runtime.rl.losses import Totals
from ridgeline.runtime.rl.objectives import LossPart, rows_together
from ridgeline.runtime.rl.request import RlRunRequest
from ridgeline.runtime.train.assemble import Blueprint, assemble
from ridgeline.runtime.train.layout import Layout, full_of
from ridgeline.runtime.train.loop import blueprint_of
from ridgeline.runtime.train.request import RunRequest, forward_constants
from ridgeline.runtime.train.step import finish_gradients, gradient_norm, sync_behind
from ridgeline.runtime.train.update import Update

CRITIC_SEED = 1 << 22  # its first weights are not the actor's


def train_scenario(request: RlRunRequest) -> Scenario[Train]:
    """The actor's training as `runtime.train` builds it."""
    return actor_scenario(request.scenario, seq=max(2, request.work.seq))


def train_request(request: RlRunRequest) -> RunRequest:
    """What `runtime.train` is asked for."""
    options = replace(request.options, seed=request.seed)
    return RunRequest(scenario=train_scenario(request), options=options, constants=request.constants)


def role_blueprint(request: RlRunRequest, role: str) -> Blueprint:
    """What every rank builds of a role: its own model, or the actor's; of a critic with a head of one value.

    Layers are compiled where the plan says so alone: every length of a step's longest sample would be compiled anew.
    """
    blueprint = blueprint_of(train_request(request))
    is_compiled = blueprint.compiled and blueprint.plan.switches.compiled is True  # lengths differ from step to step
    blueprint = replace(blueprint, compiled=is_compiled)
    models = request.work.roles.models
    if role in models and models[role].model:
        model = role_model(request.scenario, role)
        blueprint = replace(
            blueprint, model=model, constants=forward_constants(model), placement=(model.layers,)
        )  # fmt: skip
    if role != "critic":
        return blueprint
    return replace(
        blueprint, model=_untied_model(blueprint.model), values=True, seed=request.seed + CRITIC_SEED
    )  # fmt: skip


def _untied_model(model: ModelSpec) -> ModelSpec:
    return replace(model, embedding=replace(model.embedding, tied=False))


@dataclass(slots=True, kw_only=True, eq=False)
class StepLoss:
    """Of an optimizer step: the loss and figures of this rank's rows, and the norm of all gradients."""

    loss: Tensor
    figures: dict[str, Tensor]
    norm: Tensor


class Trainee:
    """One model on one rank."""

    def __init__(self, request: RlRunRequest, layout: Layout, role: str = "actor") -> None:
        self.request, self.layout = request, layout
        self.assembly = assemble(role_blueprint(request, role), layout)
        rate = request.work.learning.critic.rate if role == "critic" else None
        self.rate = rate or request.rate
        self.update = Update(self.assembly, request.work.updates.optimizer, self.rate)
        self.stage = self.assembly.stages[0]

    def set_rate(self, factor: float) -> None:
        """The learning rate of the next steps, over that of the scenario."""
        self.update.rate = self.rate * factor

    def pieces(self, rows: Tensor, longest: int) -> tuple[Tensor, ...]:
        """Rows cut into microbatches: as the plan says, or as many as its packed tokens hold."""
        plan = self.request.scenario.plan
        most_rows = max(1, plan.rl.pack // longest) if plan.rl.pack else plan.microbatch
        return microbatches(rows, most_rows, rows_together(self.request.work))

    def logits(self, tokens: Tensor) -> Tensor:
        """At every target of these sequences, at the temperature that answers are drawn with."""
        logits: Tensor = self.stage(tokens.to(self.layout.device))[:, :-1].float()
        return logits / self.request.work.learning.temperature

    def values(self, tokens: Tensor) -> Tensor:
        """A critic's at every target: what is to come where it has not been written."""
        values: Tensor = self.stage(tokens.to(self.layout.device))[:, :-1, 0].float()
        return values

    def read(self, tokens: Tensor, parts: Sequence[Tensor], look: Callable[[Tensor], Tensor]) -> Tensor:
        """What a forward pass says of this rank's rows, in rows of the whole batch; 0 elsewhere."""
        all_values: Tensor | None = None
        with torch.no_grad():
            for part in parts:
                for rows in self.pieces(part, tokens.shape[-1]):
                    row_values = look(tokens[rows]).cpu()
                    if all_values is None:
                        all_values = row_values.new_zeros((len(tokens), *row_values.shape[1:]))
                    all_values[rows] = row_values
        assert all_values is not None
        return all_values

    def step(self, pieces: Sequence[tuple[Tensor, Totals]], loss_of: Callable[[Tensor, Totals], LossPart]) -> StepLoss:
        """One optimizer step over microbatches of rows and what they sum to; figures stay on the chip."""
        shard = self.request.scenario.plan.sharding.shard
        loss, figures = torch.zeros((), device=self.layout.device), dict[str, Tensor]()
        for index, (rows, totals) in enumerate(pieces):
            sync_behind(self.stage, shard, last=index + 1 == len(pieces))
            part = loss_of(rows, totals)
            part.loss.backward()
            loss = loss + part.loss.detach()
            for name, figure in part.figures.items():
                figures[name] = figures.get(name, 0.0) + figure
        finish_gradients(self.assembly)
        norm = gradient_norm(self.assembly)
        self.update.step(norm)
        return StepLoss(loss=loss, figures=figures, norm=norm)

    def gather(self) -> dict[str, Tensor]:
        """Whole weights by name, on this rank's device; every rank takes part."""
        with torch.no_grad():
            return {name: full_of(parameter.detach()) for name, parameter in self.assembly.parameters().items()}
