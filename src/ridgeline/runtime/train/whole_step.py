"""One optimizer step from batch to update: gradients, their norm, AdamW; replayed from a CUDA graph where a plan asks.

A graph is captured behind two steps that run op by op, so that compilers and libraries have settled. Tokens go where
the captured kernels read them, and loss and norm stay where they write them; the host issues one launch a step.

In fp16 the loss is scaled, so that small gradients do not vanish; a step whose gradients overflow moves nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ridgeline.runtime.train.step import Batch, Stepper, gradient_norm
from ridgeline.runtime.train.update import Update

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
        self.graph: Any = None
        self.batch: Batch | None = None
        self.out: tuple[Tensor, Tensor] | None = None
        half = stepper.assembly.blueprint.plan.precision.weights.id == "fp16"
        self.loss_scale = LossScale() if half else None
        self.stepper.scale = FIRST_SCALE if half else 1.0

    def __call__(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Train on a batch."""
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
