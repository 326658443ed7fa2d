"""Turn rewards into advantages: what each generated token is to be reinforced by.

Tensors are [sequences, tokens] of the responses alone. `mask` is 1 on tokens that the policy generated and 0 on padding
and on what a tool or user said. A reward stands on the token that ends a response; group ids say which responses answer
the same prompt.
"""

from __future__ import annotations

import torch
from torch import Tensor

EPSILON = 1e-6  # added to the standard deviation of a group
TINY = 1e-8  # added to what may be zero


def masked_mean(values: Tensor, mask: Tensor) -> Tensor:
    """Mean over the tokens that the mask has."""
    return torch.where(mask.bool(), values, 0.0).sum() / (mask.sum() + TINY)


def whiten(values: Tensor, mask: Tensor) -> Tensor:
    """Values less their mean, over their standard deviation, both over the tokens that the mask has.

        (x - mean) / sqrt(variance + 1e-8),  variance with n - 1 in the denominator

    Of a single token there is no deviation: it becomes 0.
    """
    count = mask.sum()
    mean = masked_mean(values, mask)
    if count < 2:
        return values - mean
    variance = masked_mean((values - mean) ** 2, mask) * count / (count - 1)
    return (values - mean) * torch.rsqrt(variance + TINY)


def group_means(scores: Tensor, groups: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Of each response the mean of its group, the sum of squared distances from it, and the group's size."""
    _, place = groups.unique(return_inverse=True)
    sizes = torch.zeros(int(place.max()) + 1, dtype=scores.dtype).index_add(0, place, torch.ones_like(scores))
    means = torch.zeros_like(sizes).index_add(0, place, scores) / sizes
    squares = torch.zeros_like(sizes).index_add(0, place, (scores - means[place]) ** 2)
    return means[place], squares[place], sizes[place]


def grpo(rewards: Tensor, mask: Tensor, groups: Tensor, *, by_deviation: bool = True) -> Tensor:
    """Group-relative advantages (Shao et al., DeepSeekMath, arXiv:2402.03300).

        A_i = (r_i - mean) / (std + 1e-6)      mean, std (n - 1) over the group      A_i = r_i where a group has one

    Without `by_deviation` the numerator alone (Dr. GRPO, arXiv:2503.20783).

    >>> grpo(torch.tensor([[0.0, 1.0], [0.0, 0.0]]), torch.ones(2, 2), torch.tensor([0, 0]), by_deviation=False)
    tensor([[ 0.5000,  0.5000],
            [-0.5000, -0.5000]])
    """
    scores = rewards.sum(-1)
    means, squares, sizes = group_means(scores, groups)
    is_single = sizes == 1
    centred = scores - torch.where(is_single, torch.zeros_like(means), means)
    if by_deviation:
        deviation = torch.where(is_single, torch.ones_like(means), (squares / (sizes - 1).clamp(min=1)).sqrt())
        centred = centred / (deviation + EPSILON)
    return centred.unsqueeze(-1) * mask


def rloo(rewards: Tensor, mask: Tensor, groups: Tensor) -> Tensor:
    """Leave-one-out advantages (Ahmadian et al., arXiv:2402.14740).

        A_i = r_i - mean of the other n - 1 = n / (n - 1) (r_i - mean)      A_i = r_i where a group has one

    >>> gains = rloo(torch.tensor([[1.0], [0.0], [0.0]]), torch.ones(3, 1), torch.tensor([4, 4, 4])).flatten()
    >>> [round(gain, 6) for gain in gains.tolist()]
    [1.0, -0.5, -0.5]
    """
    scores = rewards.sum(-1)
    means, _, sizes = group_means(scores, groups)
    others = sizes / (sizes - 1).clamp(min=1) * (scores - means)
    return torch.where(sizes == 1, scores, others).unsqueeze(-1) * mask


def reinforce_plus_plus(rewards: Tensor, mask: Tensor, *, gamma: float = 1.0) -> tuple[Tensor, Tensor]:
    """Advantages of REINFORCE++ (Hu et al., arXiv:2501.03262), and the returns they are made of.

        G_t = r_t + gamma G_{t+1}          A = G whitened over the batch

    Tokens outside the mask hand on what follows them, undiscounted.
    """
    returns = torch.zeros_like(rewards)
    following = torch.zeros_like(rewards[:, 0])
    for place in reversed(range(rewards.shape[1])):
        here = mask[:, place]
        value = rewards[:, place] + gamma * following
        returns[:, place] = value * here
        following = value * here + following * (1 - here)
    return whiten(returns, mask) * mask, returns


def reinforce_plus_plus_baseline(rewards: Tensor, mask: Tensor, groups: Tensor) -> Tensor:
    """Advantages of REINFORCE++ with the group's mean as baseline: r_i - mean, whitened over the batch."""
    scores = rewards.sum(-1)
    means, _, sizes = group_means(scores, groups)
    centred = scores - torch.where(sizes == 1, torch.zeros_like(means), means)
    return whiten(centred.unsqueeze(-1) * mask, mask) * mask


def gae(
    rewards: Tensor, values: Tensor, mask: Tensor, *, gamma: float = 1.0, lam: float = 1.0
) -> tuple[Tensor, Tensor]:
    """Generalised advantages (Schulman et al., arXiv:1506.02438), whitened, and the returns that a critic learns.

        delta_t = r_t + gamma V_{t+1} - V_t      A_t = delta_t + gamma lam A_{t+1}      return_t = A_t + V_t

    V and A of a token outside the mask are those of the next one inside it.
    """
    advantages = torch.zeros_like(rewards)
    next_value = torch.zeros_like(rewards[:, 0])
    following = torch.zeros_like(next_value)
    for place in reversed(range(rewards.shape[1])):
        here = mask[:, place]
        delta = rewards[:, place] + gamma * next_value - values[:, place]
        next_value = values[:, place] * here + (1 - here) * next_value
        following = (delta + gamma * lam * following) * here + (1 - here) * following
        advantages[:, place] = following
    return whiten(advantages, mask), advantages + values


def overlong_penalty(tokens: Tensor, *, longest: int, buffer: int, factor: float = 1.0) -> Tensor:
    """What DAPO (arXiv:2503.14476) adds to the reward of a response that comes near the length limit.

        min(0, -(tokens - (longest - buffer)) / buffer  factor)

    >>> overlong_penalty(torch.tensor([6, 8, 10]), longest=10, buffer=4).tolist()
    [0.0, -0.5, -1.0]
    """
    return (-(tokens - (longest - buffer)) / buffer * factor).clamp(max=0.0)


def penalised_rewards(rewards: Tensor, log_probs: Tensor, reference: Tensor, *, coefficient: float) -> Tensor:
    """Rewards of every token less `coefficient` times the log-ratio to the reference policy."""
    return rewards - coefficient * (log_probs - reference)
