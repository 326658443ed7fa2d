"""Turn the samples of a step into tensors, and into the mini-batches and microbatches that a rank trains on.

Columns are the targets of a sequence: column t belongs to token t + 1. Tokens of prompts and tools and the padding
behind an answer have no part in a loss: the mask is 0 there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from ridgeline.core.records import dataclass
from ridgeline.runtime.rl.samples import PromptGroup, ScoredSample
from ridgeline.runtime.rl.tasks import STOP


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleBatch:
    """All samples of a step, one a row.

    tokens     [samples, longest]
    mask       [samples, longest - 1]: 1 where the policy wrote the target
    rollout    log-probabilities of the rollout engine, likewise
    versions   of the weights that wrote the target, likewise
    rewards    at the last target that the policy wrote, likewise
    groups     number of the prompt, by row
    """

    tokens: Tensor
    mask: Tensor
    rollout: Tensor
    versions: Tensor
    rewards: Tensor
    groups: Tensor

    def rows(self, chosen: Tensor) -> SampleBatch:
        """The same of some samples."""
        return SampleBatch(
            tokens=self.tokens[chosen], mask=self.mask[chosen], rollout=self.rollout[chosen],
            versions=self.versions[chosen], rewards=self.rewards[chosen], groups=self.groups[chosen],
        )  # fmt: skip


def collate(groups: Sequence[PromptGroup]) -> SampleBatch:
    """The batch of a step, samples of one prompt side by side."""
    scored = [
        scored_sample
        for group in groups
        for scored_sample in sorted(group.samples, key=lambda scored_sample: scored_sample.sample.index)
    ]
    longest = max(
        len(scored_sample.sample.prompt.tokens) + len(scored_sample.sample.tokens) for scored_sample in scored
    )
    shape = len(scored), longest - 1
    tokens = torch.full((len(scored), longest), STOP)
    mask, rollout, rewards = (torch.zeros(shape) for _ in range(3))
    versions = torch.full(shape, -1)
    for row, scored_sample in enumerate(scored):
        sample = scored_sample.sample
        first = len(sample.prompt.tokens)
        place = slice(first - 1, first - 1 + len(sample.tokens))
        tokens[row, : first + len(sample.tokens)] = torch.tensor(sample.prompt.tokens + sample.tokens)
        mask[row, place] = torch.tensor(sample.own, dtype=torch.float32)
        rollout[row, place] = torch.tensor(sample.log_probs)
        versions[row, place] = torch.tensor(sample.versions)
        rewards[row, first - 2 + _last_own(scored_sample)] = scored_sample.reward
    numbers = torch.tensor([group.number for group in groups for _ in group.samples])
    return SampleBatch(tokens=tokens, mask=mask, rollout=rollout, versions=versions, rewards=rewards, groups=numbers)


def _last_own(scored_sample: ScoredSample) -> int:
    """How many tokens of an answer there are up to the last that the policy wrote."""
    own = scored_sample.sample.own
    return max(index for index, is_own in enumerate(own) if is_own) + 1


def shares(samples: int, mini_batches: int, place: tuple[int, int], beside: int = 1) -> Iterator[tuple[Tensor, Tensor]]:
    """Of every mini-batch the rows that rank `place[0]` of `place[1]` trains on, and all of them.

    A rank takes every n-th, so that lengths are mixed; `beside` rows stay together (both of a pair).

    >>> [own.tolist() for own, _ in shares(8, 2, (1, 2))], [own.tolist() for own, _ in shares(8, 2, (1, 2), beside=2)]
    ([[1, 3], [5, 7]], [[2, 3], [6, 7]])
    """
    rank, ranks = place
    for units in torch.arange(samples).view(-1, beside).chunk(mini_batches):
        yield units[rank::ranks].flatten(), units.flatten()


def microbatches(rows: Tensor, most: int, beside: int = 1) -> tuple[Tensor, ...]:
    """Rows cut into pieces of at most so many; `beside` rows stay together."""
    return tuple(rows.split(max(beside, most - most % beside)))
