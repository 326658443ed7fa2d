"""Ask a model the questions that nothing trains on: what it has learned of each source, and what it forgets.

The likeliest answer is the good one exactly where, with the good answer before it, every token of it is the likeliest:
one forward pass over good answers says so, and nothing has to be generated.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

from ridgeline.runtime.rl.batches import SampleBatch, collate
from ridgeline.runtime.rl.documents import TaskSource, held_out_documents
from ridgeline.runtime.rl.objectives import target_log_probs
from ridgeline.runtime.rl.request import HeldOutFigure, RlRunRequest
from ridgeline.runtime.rl.trainee import Trainee


class HeldOutQuestions:
    """The slice of every source, and what a model makes of it; every rank takes part."""

    def __init__(self, request: RlRunRequest) -> None:
        self.every = request.work.learning.held_out.every
        self.sources: list[tuple[TaskSource, SampleBatch]] = []
        if self.every:
            pairs = held_out_documents(request.work, request.seed)
            self.sources = [(source, collate(groups)) for source, groups in pairs]

    def is_due(self, done: int, last: int) -> bool:
        """Whether to look behind so many steps."""
        return bool(self.every) and (done % self.every == 0 or done == last)

    def figures(self, trainee: Trainee) -> tuple[HeldOutFigure, ...]:
        """Of every source, of the model as it is."""
        return tuple(self._figure(trainee, *entry) for entry in self.sources)

    def _figure(self, trainee: Trainee, source: TaskSource, batch: SampleBatch) -> HeldOutFigure:
        layout = trainee.layout
        own_rows = torch.arange(len(batch.tokens))[layout.dp.index :: layout.dp.degree]
        sums = torch.zeros(5, dtype=torch.float64)
        with torch.no_grad():
            for rows in trainee.pieces(own_rows, batch.tokens.shape[-1]):
                sums += _sums(trainee.logits(batch.tokens[rows]).cpu(), batch.rows(rows))
        if layout.ranks > 1:
            sums = sums.to(layout.device)
            dist.all_reduce(sums)
        loss, tokens, right, chance, questions = sums.tolist()
        return HeldOutFigure(
            source=source.name, earlier=source.earlier, loss=loss / max(tokens, 1.0),
            accuracy=right / max(questions, 1.0), chance=chance / max(questions, 1.0),
        )  # fmt: skip


def _sums(logits: Tensor, batch: SampleBatch) -> Tensor:
    """Loss, tokens, good answers, their probabilities and questions, summed over some rows."""
    mask = batch.mask.bool()
    log_probs = target_log_probs(logits, batch.tokens) * batch.mask
    is_right = ((logits.argmax(-1) == batch.tokens[:, 1:]) | ~mask).all(-1)
    figures = -log_probs.sum(), mask.sum(), is_right.sum(), log_probs.sum(-1).exp().sum(), torch.tensor(len(mask))
    return torch.stack([figure.double() for figure in figures])
