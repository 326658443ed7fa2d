"""Turn the samples of a step into tensors, and into the mini-batches and microbatches that a rank trains on.

Columns are the targets of a sequence: column t belongs to token t + 1. Tokens of prompts and tools and the padding
behind an answer have no part in a loss: the mask is 0 there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from ridgeline.core.records import dataclass
from ridgeline.plan.rl_workload import Algorithm
from ridgeline.runtime.rl import advantages
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


def examples(pairs: Sequence[tuple[tuple[int, ...], tuple[int, ...], tuple[bool, ...]]]) -> tuple[Tensor, Tensor]:
    """Tokens and mask of good answers: of each the prompt, the answer, and which of it the policy is to write."""
    longest = max(len(prompt) + len(answer) for prompt, answer, _ in pairs)
    tokens, mask = torch.full((len(pairs), longest), STOP), torch.zeros(len(pairs), longest - 1)
    for row, (prompt, answer, own) in enumerate(pairs):
        tokens[row, : len(prompt) + len(answer)] = torch.tensor(prompt + answer)
        mask[row, len(prompt) - 1 : len(prompt) - 1 + len(answer)] = torch.tensor(own, dtype=torch.float32)
    return tokens, mask


def advantages_of(algorithm: Algorithm, batch: SampleBatch) -> Tensor:
    """What each token is reinforced by, over the whole step."""
    match algorithm:
        case "grpo" | "dapo":
            return advantages.grpo(batch.rewards, batch.mask, batch.groups)
        case "rloo":
            return advantages.rloo(batch.rewards, batch.mask, batch.groups)
        case "reinforce++":
            if len(batch.groups.unique()) < len(batch.groups):
                return advantages.reinforce_plus_plus_baseline(batch.rewards, batch.mask, batch.groups)
            return advantages.reinforce_plus_plus(batch.rewards, batch.mask)[0]
        case _:
            raise NotImplementedError(algorithm)


def shares(samples: int, mini_batches: int, place: tuple[int, int]) -> Iterator[Tensor]:
    """Rows of every mini-batch that rank `place[0]` of `place[1]` trains on: every n-th, so that lengths are mixed.

    >>> [rows.tolist() for rows in shares(8, 2, (1, 2))]
    [[1, 3], [5, 7]]
    """
    rank, ranks = place
    for rows in torch.arange(samples).chunk(mini_batches):
        yield rows[rank::ranks]


def microbatches(rows: Tensor, most: int) -> tuple[Tensor, ...]:
    """Rows cut into pieces of at most so many."""
    return tuple(rows.split(most))
