"""One optimizer step on this rank: microbatches through its stages, gradients made whole, weights updated.

The loss is the mean over all tokens of the global batch: each rank divides its sum by that number, and every reduction
of gradients is a sum.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ridgeline.core.dtype import DType
from ridgeline.plan.schedules import build
from ridgeline.plan.workload import Optimizer
from ridgeline.runtime.train.assemble import TORCH_DTYPES, Assembly
from ridgeline.runtime.train.layout import Layout
from ridgeline.runtime.train.stage import cross_entropy

MOMENTS = ("exp_avg", "exp_avg_sq")
BETAS, EPSILON, DECAY, LARGEST_NORM = (0.9, 0.95), 1e-8, 0.1, 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """This rank's share of a step: its sequences and its part of each, and what follows every token.

    total    tokens of the global batch, over which the loss is a mean
    """

    tokens: Tensor
    targets: Tensor
    total: int


@dataclass(slots=True, kw_only=True)
class Stepper:
    """Runs forward and backward of a batch; the pipeline's runtime is made for the first one."""

    assembly: Assembly
    microbatches: int
    runtime: Any = None
    total: int = field(default=1)

    def gradients(self, batch: Batch) -> Tensor:
        """Leave every parameter with its whole gradient (as its own shard); the loss of the global batch."""
        self.total = batch.total
        loss = self._pipelined(batch) if self.assembly.layout.pp.degree > 1 else self._plain(batch)
        finish_gradients(self.assembly)
        return whole_loss(loss, self.assembly)

    def _loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        return cross_entropy(logits, targets, self.assembly.layout) / self.total

    def _plain(self, batch: Batch) -> Tensor:
        stage = self.assembly.stages[0]
        early = self.assembly.blueprint.plan.sharding.shard in ("zero2", "zero3")
        total = batch.tokens.new_zeros((), dtype=torch.float32)
        pairs = zip(batch.tokens.chunk(self.microbatches), batch.targets.chunk(self.microbatches), strict=True)
        for index, (tokens, targets) in enumerate(pairs):
            last = index + 1 == self.microbatches
            if hasattr(stage, "set_requires_gradient_sync"):
                stage.set_requires_gradient_sync(last or early)
                stage.set_is_last_backward(last)
                stage.set_requires_all_reduce(last)  # replicas of a shard meet once a step
                stage.set_reshard_after_backward(last or self.assembly.blueprint.plan.sharding.shard == "zero3")
            loss = self._loss(stage(tokens), targets)
            loss.backward()
            total = total + loss.detach()
        return total

    def _pipelined(self, batch: Batch) -> Tensor:
        assembly = self.assembly
        if self.runtime is None:
            from ridgeline.runtime.train.pipeline import pipeline

            plan = assembly.blueprint.plan
            sizes = {"stages": plan.mesh.pp, "microbatches": self.microbatches, "chunks": plan.schedule.chunks}
            shape = (batch.tokens.shape[0] // self.microbatches, batch.tokens.shape[1])
            self.runtime = pipeline(assembly, build(plan.schedule.name, **sizes), shape, self._loss)
        first, last = 0 in assembly.stages, assembly.virtual_stages - 1 in assembly.stages
        losses: list[Tensor] = []
        given = (batch.tokens,) if first else ()
        self.runtime.step(*given, target=batch.targets if last else None, losses=losses, return_outputs=False)
        return torch.stack(losses).detach().sum() if last else torch.zeros((), device=assembly.layout.device)


def finish_gradients(assembly: Assembly) -> None:
    """Sum what replicas of a weight saw, where FSDP2 has not; and both ends of a tied embedding."""
    from torch.distributed.tensor import DTensor

    for parameter in assembly.parameters().values():
        gradient = parameter.grad
        if isinstance(gradient, DTensor) and gradient.placements != parameter.placements:
            parameter.grad = gradient.redistribute(placements=parameter.placements)
    _tie(assembly)


def _tie(assembly: Assembly) -> None:
    """Embedding and head in different stages hold one matrix twice: each gets the sum of both gradients."""
    layout, model = assembly.layout, assembly.blueprint.model
    if not model.embedding.tied or assembly.virtual_stages == 1:
        return
    named = assembly.parameters()
    ends = [_shard_of(named[name].grad) for name in ("embedding.weight", "head.weight") if name in named]
    if len(ends) == 1:  # the other end is on the last or first pipeline rank
        _add_from(layout, layout.pp.degree - 1 if 0 in assembly.stages else 0, ends[0])
    elif ends:
        total = ends[0] + ends[1]
        for end in ends:
            end.copy_(total)


def _add_from(layout: Layout, stage: int, gradient: Tensor) -> None:
    """Exchange a gradient with the same rank of another pipeline stage, and add what comes."""
    other = dist.get_global_rank(layout.pp.group, stage)
    received = torch.empty_like(gradient)
    pair = [dist.P2POp(dist.isend, gradient.contiguous(), other), dist.P2POp(dist.irecv, received, other)]
    for work in dist.batch_isend_irecv(pair):
        work.wait()
    gradient.add_(received)


def _shard_of(tensor: Tensor) -> Tensor:
    """This rank's piece of a DTensor, or the tensor itself; shares its memory."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def whole_loss(loss: Tensor, assembly: Assembly) -> Tensor:
    """The loss of the global batch on every rank: summed over data and context ranks, from the last stage."""
    layout = assembly.layout
    for axis in (layout.dp, layout.cp, layout.pp):
        if axis.group is not None:
            dist.all_reduce(loss, group=axis.group)
    return loss


def gradient_norm(assembly: Assembly) -> Tensor:
    """Euclidean norm of all gradients together; a shard that several ranks hold counts once."""
    from torch.distributed.tensor import Replicate

    named = assembly.parameters()
    if assembly.blueprint.model.embedding.tied and assembly.virtual_stages > 1:
        named.pop("head.weight", None)
    total = torch.zeros((), device=assembly.layout.device)
    for parameter in named.values():
        gradient = parameter.grad
        if gradient is None:
            continue
        copies = 1
        if hasattr(gradient, "placements"):
            mesh = gradient.device_mesh
            for place, size in zip(gradient.placements, mesh.shape, strict=True):
                copies *= size if isinstance(place, Replicate) else 1
        total += _shard_of(gradient).float().square().sum() / copies
    if assembly.layout.ranks > 1:
        dist.all_reduce(total)
    return total.sqrt()


class Update:
    """AdamW on this rank's shards, with master copies where the optimizer keeps weights wider than they are stored."""

    def __init__(self, assembly: Assembly, optimizer: Optimizer, rate: float) -> None:
        self.named = assembly.parameters()
        self.shards = {name: _shard_of(held.detach()) for name, held in self.named.items()}
        self.masters = {name: _master(shard, optimizer.master) for name, shard in self.shards.items()}
        decayed = [shard for name, shard in self.masters.items() if shard.dim() > 1]
        rest = [shard for name, shard in self.masters.items() if shard.dim() <= 1]
        groups = [{"params": decayed, "weight_decay": DECAY}, {"params": rest, "weight_decay": 0.0}]
        told: dict[str, Any] = {"lr": rate, "betas": BETAS, "eps": EPSILON, "fused": True}
        self.adam = torch.optim.AdamW([group for group in groups if group["params"]], **told)
        for master in self.masters.values():  # there before the first step, so that a checkpoint has where to go
            steps = torch.zeros((), dtype=torch.float32, device=master.device)
            self.adam.state[master] = {"step": steps, **{which: torch.zeros_like(master) for which in MOMENTS}}

    def step(self, norm: Tensor) -> None:
        """Clip to the largest norm, update, and forget the gradients."""
        scale = (LARGEST_NORM / (norm + 1e-6)).clamp(max=1.0)
        for name, parameter in self.named.items():
            master = self.masters[name]
            if parameter.grad is not None:
                master.grad = _shard_of(parameter.grad).to(master.dtype) * scale.to(master.dtype)
            parameter.grad = None
        self.adam.step()
        for name, master in self.masters.items():
            master.grad = None
            if master is not self.shards[name]:
                self.shards[name].copy_(master)

    def refresh_masters(self) -> None:
        """Master copies as the weights are now."""
        for name, master in self.masters.items():
            if master is not self.shards[name]:
                master.copy_(self.shards[name])

    def moment(self, name: str, which: str) -> Tensor:
        """A moment of a parameter's shard."""
        return self.adam.state[self.masters[name]][which]

    def set_steps(self, steps: int) -> None:
        """How many steps the moments have seen."""
        for master in self.masters.values():
            self.adam.state[master]["step"].fill_(steps)

    def copy_state(self, to: str, source: str) -> None:
        """Weight, master and moments of one parameter as another's."""
        self.shards[to].copy_(self.shards[source])
        self.masters[to].copy_(self.masters[source])
        for which in MOMENTS:
            self.moment(to, which).copy_(self.moment(source, which))


def _master(shard: Tensor, dtype: DType | None) -> Tensor:
    wanted = shard.dtype if dtype is None else TORCH_DTYPES[dtype.id]
    return shard if wanted == shard.dtype else shard.to(wanted)
