"""Losses of post-training, as functions of log-probabilities that the policy gave tokens. Each is one scalar to lower.

Tensors are [sequences, tokens] of the responses; `mask` is 1 on tokens that the policy generated. Ranks that share a
batch give `Totals` of all of it, so that their losses add up to the loss of one process.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

from ridgeline.core.records import dataclass
from ridgeline.runtime.rl.advantages import TINY, masked_mean

LOG_RATIO = 20.0  # beyond it a ratio of probabilities is cut off
MOST_KL = 10.0  # of one token, as k3 estimates it
Aggregation = Literal["token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"]
Divergence = Literal["k1", "abs", "k2", "k3"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """What a loss is divided by: generated tokens and responses of the batch, over all ranks."""

    tokens: float
    sequences: float

    @staticmethod
    def of(mask: Tensor) -> Totals:
        """Of a batch that one process has; a response without a generated token does not count."""
        return Totals(tokens=float(mask.sum()), sequences=float((mask.sum(-1) > 0).sum()))


@dataclass(frozen=True, slots=True, kw_only=True)
class Clipping:
    """How far a ratio of probabilities counts: 1 - low to 1 + high, and at most `dual` where the advantage is negative.

    DAPO's clip-higher has low 0.2 and high 0.28; dual clipping is of arXiv:1912.09729.
    """

    low: float = 0.2
    high: float = 0.2
    dual: float = 3.0


USUAL_CLIPPING = Clipping()


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyLoss:
    """The loss, and what tells whether the step was too large.

    clipped   share of tokens whose ratio was cut off
    kl        mean of old less new log-probabilities
    """

    loss: Tensor
    clipped: Tensor
    kl: Tensor


def aggregate(losses: Tensor, mask: Tensor, how: Aggregation, totals: Totals | None = None) -> Tensor:
    """One loss of the tokens' losses l.

        token-mean                sum l / tokens                            DAPO: every token counts alike
        seq-mean-token-mean       mean over responses of their mean l       GRPO: every response counts alike
        seq-mean-token-sum        mean over responses of their sum
        seq-mean-token-sum-norm   the same over the longest possible response   Dr. GRPO

    >>> losses, mask = torch.tensor([[1.0, 3.0], [4.0, 9.0]]), torch.tensor([[1.0, 1.0], [1.0, 0.0]])
    >>> [float(aggregate(losses, mask, how)) for how in ("token-mean", "seq-mean-token-mean", "seq-mean-token-sum")]
    [2.6666667461395264, 3.0, 4.0]
    """
    totals = totals or Totals.of(mask)
    losses = torch.where(mask.bool(), losses, torch.zeros_like(losses))
    if how == "token-mean":
        return losses.sum() / totals.tokens
    sums = losses.sum(-1)
    if how == "seq-mean-token-mean":
        sums = sums / (mask.sum(-1) + TINY)
    elif how == "seq-mean-token-sum-norm":
        sums = sums / mask.shape[-1]
    return sums.sum() / totals.sequences


def policy_loss(
    log_probs: Tensor, old: Tensor, advantages: Tensor, mask: Tensor,
    clipping: Clipping = USUAL_CLIPPING, average: Callable[[Tensor, Tensor], Tensor] | None = None,
) -> PolicyLoss:  # fmt: skip
    """The clipped surrogate of PPO (arXiv:1707.06347) that GRPO, DAPO, RLOO and REINFORCE++ lower too.

        r = exp(log p - log p_old)
        l = max(-A r, -A clip(r, 1 - low, 1 + high))         and at most -A dual where A < 0

    average   of tokens' losses and their mask the one that is lowered; absent: the mean over tokens
    """
    log_ratio = (log_probs - old).clamp(-LOG_RATIO, LOG_RATIO)
    ratio = log_ratio.exp()
    plain = -advantages * ratio
    cut = -advantages * ratio.clamp(1 - clipping.low, 1 + clipping.high)
    worse = torch.maximum(plain, cut)
    losses = torch.where(advantages < 0, torch.minimum(-advantages * clipping.dual, worse), worse)
    loss = aggregate(losses, mask, "token-mean") if average is None else average(losses, mask)
    clipped = masked_mean((cut > plain).float(), mask)
    return PolicyLoss(loss=loss, clipped=clipped, kl=masked_mean(-log_ratio.detach(), mask))


def divergence(log_probs: Tensor, reference: Tensor, kind: Divergence = "k3") -> Tensor:
    """Estimates of KL(policy, reference) from one sampled token each (Schulman, Approximating KL divergence, 2020).

    d = log p - log p_ref      k1 = d      abs = |d|      k2 = d^2 / 2      k3 = exp(-d) + d - 1
    """
    distance = log_probs - reference
    match kind:
        case "k1":
            return distance
        case "abs":
            return distance.abs()
        case "k2":
            return distance.square() / 2
        case "k3":
            back = (-distance).clamp(-LOG_RATIO, LOG_RATIO)
            return (back.exp() - back - 1).clamp(-MOST_KL, MOST_KL)


def value_loss(
    values: Tensor, old: Tensor, returns: Tensor, mask: Tensor, *, clip: float = 0.5,
    how: Aggregation = "token-mean", totals: Totals | None = None,
) -> Tensor:  # fmt: skip
    """A critic's loss: half of the larger squared distance to the return, of its value and of the value cut off
    `clip` away from the old one."""
    cut = values.clamp(old - clip, old + clip)
    losses = torch.maximum((values - returns) ** 2, (cut - returns) ** 2)
    return aggregate(losses, mask, how, totals) / 2


def entropy(logits: Tensor) -> Tensor:
    """Entropy of the distribution over the vocabulary at each token, in nats."""
    log_probs = functional.log_softmax(logits.float(), -1)
    return -(log_probs.exp() * log_probs).sum(-1)


def importance_weights(old: Tensor, rollout: Tensor, *, most: float = 2.0) -> Tensor:
    """Weights that correct for a rollout that computed other log-probabilities than the trainer, cut off at `most`."""
    return (old - rollout).clamp(-LOG_RATIO, LOG_RATIO).exp().clamp(max=most)


def preference_loss(
    chosen: Tensor, rejected: Tensor, chosen_reference: Tensor, rejected_reference: Tensor, *, beta: float = 0.1,
    smoothing: float = 0.0,
) -> Tensor:  # fmt: skip
    """Direct preference optimisation (Rafailov et al., arXiv:2305.18290) of summed log-probabilities, one a pair.

        h = beta ((log p - log p_ref) of the chosen - the same of the rejected)
        loss = mean of -(1 - smoothing) log sigmoid(h) - smoothing log sigmoid(-h)

    >>> zero = torch.zeros(1)
    >>> round(float(preference_loss(zero, zero, zero, zero)), 6)
    0.693147
    """
    margin = beta * ((chosen - chosen_reference) - (rejected - rejected_reference))
    return -((1 - smoothing) * functional.logsigmoid(margin) + smoothing * functional.logsigmoid(-margin)).mean()


def forward_kl(student_logits: Tensor, teacher_log_probs: Tensor, teacher_tokens: Tensor) -> Tensor:
    """Distillation on the teacher's k likeliest tokens: sum over them of p (log p - log q), p of the teacher."""
    student = functional.log_softmax(student_logits.float(), -1).gather(-1, teacher_tokens)
    teacher = teacher_log_probs.float()
    return (teacher.exp() * (teacher - student)).sum(-1)


def reverse_kl(student_logits: Tensor, teacher_logits: Tensor) -> Tensor:
    """Distillation on what the student writes: sum over the vocabulary of q (log q - log p), q of the student."""
    student, teacher = (functional.log_softmax(logits.float(), -1) for logits in (student_logits, teacher_logits))
    return (student.exp() * (student - teacher)).sum(-1)


def generalised_jsd(student_logits: Tensor, teacher_logits: Tensor, *, beta: float = 0.5) -> Tensor:
    """The divergence between both ways (Agarwal et al., GKD, arXiv:2306.13649).

    m = beta p + (1 - beta) q          beta KL(p, m) + (1 - beta) KL(q, m)        p teacher, q student
    """
    student, teacher = (functional.log_softmax(logits.float(), -1) for logits in (student_logits, teacher_logits))
    mixture = (beta * teacher.exp() + (1 - beta) * student.exp()).log()
    to_teacher = (teacher.exp() * (teacher - mixture)).sum(-1)
    to_student = (student.exp() * (student - mixture)).sum(-1)
    return beta * to_teacher + (1 - beta) * to_student
