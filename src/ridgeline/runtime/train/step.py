"""One optimizer step on this rank: microbatches through its stages, gradients made whole, AdamW; or a CUDA graph of it.

The loss is the mean over all tokens of the global batch: each rank divides its sum by that number, and every reduction
of gradients is a sum. In fp16 the loss is scaled, so that small gradients do not vanish; a step whose gradients
overflow moves nothing.

A graph is captured behind two steps that run op by op, so that compilers and libraries have settled. Tokens go where
the captured kernels read them, and loss and norm stay where they write them; the host issues one launch a step.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import Tensor

if TYPE_CHECKING:
    from torch.distributed.pipelining import schedules

from ridgeline.plan.schedules import build
from ridgeline.runtime.train.assemble import Assembly
from ridgeline.runtime.train.fused import sum_of_squares
from ridgeline.runtime.train.layout import Layout, shard_of
from ridgeline.runtime.train.stage import Stage, cross_entropy
from ridgeline.runtime.train.update import Update


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """This rank's share of a step: its sequences and its part of each, and what follows every token.

    targets  [batch, tokens]; with multi-token prediction [batch, 1 + depth, tokens]: tokens 1 to 1 + depth further
    total    tokens of the global batch, over which the loss is a mean
    """

    tokens: Tensor
    targets: Tensor
    total: int


@dataclass(slots=True, kw_only=True)
class Stepper:
    """Runs forward and backward of a batch; the pipeline's runtime is made for the first one.

    scale    the loss is multiplied by this on its way back, and gradients are as much larger (loss scaling of fp16)
    """

    assembly: Assembly
    microbatches: int
    runtime: schedules._PipelineScheduleRuntime = None
    total: int = field(default=1)
    scale: float = 1.0

    def gradients(self, batch: Batch) -> Tensor:
        """Leave every parameter with its whole gradient (as its own shard); the loss of the global batch."""
        self.total = batch.total
        loss = self._pipeline_step(batch) if self.assembly.layout.pp.degree > 1 else self._plain(batch)
        finish_gradients(self.assembly)
        for axis in (self.assembly.layout.dp, self.assembly.layout.cp, self.assembly.layout.pp):
            if axis.group is not None:
                dist.all_reduce(loss, group=axis.group)
        return loss / self.scale

    def _loss(self, logits: Tensor | tuple[Tensor, ...], targets: Tensor) -> Tensor:
        """Of a pipeline's last stage: of the model's logits, and those of every depth where it predicts further."""
        blueprint, scale = self.assembly.blueprint, self.scale / self.total
        is_fused = bool({"cross-entropy", "linear-cross-entropy"} & blueprint.fuses)
        if isinstance(logits, Tensor):
            return cross_entropy(logits, targets, self.assembly.layout, scale, fused=is_fused)
        shares = [1.0] + [blueprint.constants.mtp_weight / (len(logits) - 1)] * (len(logits) - 1)
        losses = [
            cross_entropy(depth_logits, targets[:, depth], self.assembly.layout, scale * share, fused=is_fused)
            for depth, (depth_logits, share) in enumerate(zip(logits, shares, strict=True))
        ]
        return torch.stack(losses).sum()

    def _plain(self, batch: Batch) -> Tensor:
        stage = self.assembly.stages[0]
        total = batch.tokens.new_zeros((), dtype=torch.float32)
        pairs = zip(batch.tokens.chunk(self.microbatches), batch.targets.chunk(self.microbatches), strict=True)
        for index, (tokens, targets) in enumerate(pairs):
            sync_behind(stage, self.assembly.blueprint.plan.sharding.shard, last=index + 1 == self.microbatches)
            loss = stage(tokens, targets, self.scale / self.total)
            loss.backward()
            total = total + loss.detach()
        return total

    def _pipeline_step(self, batch: Batch) -> Tensor:
        assembly = self.assembly
        if self.runtime is None:
            from ridgeline.runtime.train.pipeline import pipeline

            plan = assembly.blueprint.plan
            sizes = {"stages": plan.mesh.pp, "microbatches": self.microbatches, "chunks": plan.schedule.chunks}
            shape = (batch.tokens.shape[0] // self.microbatches, batch.tokens.shape[1])
            self.runtime = pipeline(assembly, build(plan.schedule.name, **sizes), shape, self._loss)
        first, last = 0 in assembly.stages, assembly.virtual_stages - 1 in assembly.stages
        losses: list[Tensor] = []
        stage_inputs = (batch.tokens,) if first else ()
        stage_options = {"further": batch.targets} if last and assembly.blueprint.model.mtp else {}
        self.runtime.step(
            *stage_inputs, target=batch.targets if last else None, losses=losses, return_outputs=False, **stage_options
        )
        return torch.stack(losses).detach().sum() if last else torch.zeros((), device=assembly.layout.device)


def sync_behind(stage: Stage, shard: str, *, last: bool) -> None:
    """Say what FSDP2 reduces behind the next backward; `last` of an optimizer step."""
    if hasattr(stage, "set_requires_gradient_sync"):
        stage.set_requires_gradient_sync(last or shard in ("zero2", "zero3"))
        stage.set_is_last_backward(last)
        stage.set_requires_all_reduce(last)  # replicas of a shard meet once a step
        stage.set_reshard_after_backward(last or shard == "zero3")


def finish_gradients(assembly: Assembly) -> None:
    """Sum what replicas of a weight saw, where FSDP2 has not; and both copies of an embedding."""
    from torch.distributed.tensor import DTensor

    for parameter in assembly.parameters().values():
        gradient = parameter.grad
        if isinstance(gradient, DTensor) and gradient.placements != parameter.placements:
            parameter.grad = gradient.redistribute(placements=parameter.placements)
    _tie(assembly)


def _tie(assembly: Assembly) -> None:
    """First and last stage hold one matrix twice (tied, or read again to predict further tokens): each gets the sum of
    both gradients."""
    layout, copy = assembly.layout, assembly.embedding_copy
    if not copy:
        return
    parameters = assembly.parameters()
    ends = [shard_of(parameters[name].grad) for name in ("embedding.weight", copy) if name in parameters]
    if len(ends) == 1:  # the other end is on the last or first pipeline rank
        _add_from(layout, layout.pp.degree - 1 if 0 in assembly.stages else 0, ends[0])
    elif ends:
        total = ends[0] + ends[1]
        for end in ends:
            end.copy_(total)


def _add_from(layout: Layout, stage: int, gradient: Tensor) -> None:
    """Exchange a gradient with the same rank of another pipeline stage, and add what comes."""
    peer = dist.get_global_rank(layout.pp.group, stage)
    peer_gradient = torch.empty_like(gradient)
    pair = [dist.P2POp(dist.isend, gradient.contiguous(), peer), dist.P2POp(dist.irecv, peer_gradient, peer)]
    for work in dist.batch_isend_irecv(pair):
        work.wait()
    gradient.add_(peer_gradient)


def gradient_norm(assembly: Assembly) -> Tensor:
    """Euclidean norm of all gradients together; a shard that several ranks hold counts once."""
    from torch.distributed.tensor import Replicate

    parameters = assembly.parameters()
    parameters.pop(assembly.embedding_copy, None)
    gradients, copies = [], []
    for parameter in parameters.values():
        gradient = parameter.grad
        if gradient is None:
            continue
        gradients.append(shard_of(gradient))
        copies.append(1)
        if hasattr(gradient, "placements"):
            mesh = gradient.device_mesh
            for place, size in zip(gradient.placements, mesh.shape, strict=True):
                copies[-1] *= size if isinstance(place, Replicate) else 1
    total = torch.zeros((), device=assembly.layout.device)
    for shared in set(copies):
        same_copies = [gradient for gradient, many in zip(gradients, copies, strict=True) if many == shared]
        total = total + sum_of_squares(same_copies) / shared
    if assembly.layout.ranks > 1:
        dist.all_reduce(total)
    return total.sqrt()


FIRST_SCALE = 2.0**16  # of a loss in fp16, as torch.amp begins
GOOD = 2000  # steps without overflow
SETTLED = 2  # steps before a graph is captured


@dataclass(slots=True, kw_only=True)
class LossScale:
    """Dynamic loss scaling: halved when a gradient overflows, doubled behind so many steps in which none did."""

    good: int = 0

    def next(self, scale: float, *, finite: bool) -> float:
        """The scale of the next step.

        >>> LossScale().next(8.0, finite=False), LossScale(good=GOOD - 1).next(8.0, finite=True)
        (4.0, 16.0)
        """
        self.good = self.good + 1 if finite else 0
        if not finite:
            return max(1.0, scale / 2)
        if self.good < GOOD:
            return scale
        self.good = 0
        return scale * 2


class WholeStep:
    """What the loop calls with each batch: the loss and the norm of the gradients, on the device."""

    def __init__(self, stepper: Stepper, update: Update, *, graph: bool) -> None:
        self.stepper, self.update, self.wanted = stepper, update, graph
        self.done = 0
        self.graph: torch.cuda.CUDAGraph = None
        self.batch: Batch | None = None
        self.out: tuple[Tensor, Tensor] | None = None
        half = stepper.assembly.blueprint.plan.precision.weights.id == "fp16"
        self.loss_scale = LossScale() if half else None
        self.stepper.scale = FIRST_SCALE if half else 1.0

    def __call__(self, batch: Batch) -> tuple[Tensor, Tensor]:
        self.done += 1
        if not self.wanted:
            return self._issue_step(batch)
        if self.done <= SETTLED:
            return self._on_side_stream(batch)
        if self.graph is None:
            self._capture(batch)
        assert self.batch is not None
        assert self.out is not None
        self.batch.tokens.copy_(batch.tokens)
        self.batch.targets.copy_(batch.targets)
        self.graph.replay()
        return self.out

    def _issue_step(self, batch: Batch) -> tuple[Tensor, Tensor]:
        scale = self.stepper.scale
        loss = self.stepper.gradients(batch)
        norm = gradient_norm(self.stepper.assembly) / scale
        if self.loss_scale is not None:
            finite = bool(norm.isfinite())  # the host waits: fp16 alone needs it
            self.stepper.scale = self.loss_scale.next(scale, finite=finite)
            if not finite:
                self.update.forget()
                return loss, norm
        self.update.step(norm, scale)
        return loss, norm

    def _on_side_stream(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """On a stream of its own, as capturing wants what comes before it."""
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            outcome = self._issue_step(batch)
        torch.cuda.current_stream().wait_stream(stream)
        return outcome

    def _capture(self, batch: Batch) -> None:
        self.batch = replace(batch, tokens=batch.tokens.clone(), targets=batch.targets.clone())
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.out = self._issue_step(self.batch)
