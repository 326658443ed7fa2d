"""What a microbatch lowers, by algorithm: a loss of the model's logits and of what earlier passes found.

    ppo grpo dapo rloo reinforce++   the clipped surrogate of advantages, + kl x divergence from the reference
    dpo                              pairs side by side: the margin over the reference's
    sft continual                    minus the mean log-probability of what is to be written
    distill-on-policy, -off-policy   divergence between student and teacher over the whole vocabulary

Sums of a microbatch are over totals of its mini-batch on all ranks: those of all microbatches add up to the mini-batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ridgeline.core import records
from ridgeline.plan.rl_workload import Algorithm, Rl
from ridgeline.runtime.rl import advantages, losses
from ridgeline.runtime.rl.batches import SampleBatch

PAIR = 2  # rows of one unit of dpo: the chosen answer and the rejected one
TOKEN_MEANS: frozenset[Algorithm] = frozenset(
    {"dapo", "reinforce++", "ppo", "sft", "continual", "distill-on-policy", "distill-off-policy"}
)
"""Algorithms in which every token counts alike, where nobody says otherwise."""


@records.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Passes:
    """What passes over the samples of a step found before anything is updated, in rows of the batch.

    old, reference   log-probabilities of the targets
    teacher          log-probabilities of the whole vocabulary at every target
    values           of the critic at every target
    gains, returns   advantages, and what the critic is to learn
    """

    old: Tensor | None = None
    reference: Tensor | None = None
    teacher: Tensor | None = None
    values: Tensor | None = None
    gains: Tensor | None = None
    returns: Tensor | None = None

    def rows(self, chosen: Tensor, device: str) -> Passes:
        """The same of some samples, where they are trained on."""
        tensors = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return Passes(**{name: None if part is None else part[chosen].to(device) for name, part in tensors.items()})


@dataclass(slots=True, kw_only=True, eq=False)
class LossPart:
    """Of a microbatch: its part of the loss, and of figures that tell how training goes."""

    loss: Tensor
    figures: Mapping[str, Tensor] = field(default_factory=dict)


@records.dataclass(frozen=True, slots=True, kw_only=True)
class LossSetting:
    """What a loss is of: the workload, the step (the first is 0), and what its sums are over."""

    work: Rl
    step: int
    totals: losses.Totals

    @property
    def average(self) -> losses.Aggregation:
        """How the losses of tokens become one."""
        usual: losses.Aggregation = (
            "token-mean" if self.work.algorithm in TOKEN_MEANS else "seq-mean-token-mean"
        )  # fmt: skip
        return self.work.learning.average or usual


def rows_together(work: Rl) -> int:
    """Rows of a batch that stay side by side."""
    return PAIR if work.algorithm == "dpo" else 1


def microbatch_loss(setting: LossSetting, logits: Tensor, batch: SampleBatch, passes: Passes) -> LossPart:
    """The loss of some rows, whose logits [rows, targets, vocabulary] are given."""
    mask = batch.mask.to(logits.device)
    if setting.work.algorithm.startswith("distill"):
        return _distillation(setting, logits, mask, passes)
    log_probs = target_log_probs(logits, batch.tokens)
    if setting.work.algorithm == "dpo":
        return _preference(setting, log_probs, mask, passes)
    if not setting.work.generates:
        return LossPart(loss=losses.aggregate(-log_probs, mask, setting.average, setting.totals))
    return _policy(setting, log_probs, batch, passes)


def target_log_probs(logits: Tensor, tokens: Tensor) -> Tensor:
    """Of the targets of whole sequences of tokens, from the logits before each."""
    targets = tokens[:, 1:, None].to(logits.device)
    return torch.log_softmax(logits, -1).gather(-1, targets).squeeze(-1)


def _policy(setting: LossSetting, log_probs: Tensor, batch: SampleBatch, passes: Passes) -> LossPart:
    learning, device = setting.work.learning, log_probs.device
    old, gains = passes.old, passes.gains
    assert old is not None
    assert gains is not None
    mask = batch.mask.to(device)
    how, totals = setting.average, setting.totals
    is_older = (batch.versions < setting.step).to(device)
    weights = torch.where(is_older, losses.importance_weights(old, batch.rollout.to(device)), torch.ones_like(old))
    high = learning.clip_high
    if high is None:
        high = 0.28 if setting.work.algorithm == "dapo" else learning.clip_low

    def average(token_losses: Tensor, of: Tensor) -> Tensor:
        return losses.aggregate(token_losses * weights, of, how, totals)

    clipping = losses.Clipping(low=learning.clip_low, high=high)
    outcome = losses.policy_loss(log_probs, old, gains, mask, clipping, average)
    loss = outcome.loss
    if passes.reference is not None:
        distance = losses.divergence(log_probs, passes.reference)
        loss = loss + learning.kl * losses.aggregate(distance, mask, how, totals)
    return LossPart(loss=loss, figures={"clipped": outcome.clipped * (mask.sum() / totals.tokens)})


def _preference(setting: LossSetting, log_probs: Tensor, mask: Tensor, passes: Passes) -> LossPart:
    assert passes.reference is not None
    preference, pairs = setting.work.learning.preference, setting.totals.sequences / PAIR
    sums, reference = ((part * mask).sum(-1) for part in (log_probs, passes.reference))
    gains = sums - reference
    loss = losses.preference_loss(
        sums[::PAIR], sums[1::PAIR], reference[::PAIR], reference[1::PAIR], beta=preference.beta,
        smoothing=preference.smoothing,
    )  # fmt: skip
    margin = (preference.beta * (gains[::PAIR] - gains[1::PAIR])).detach()
    count = len(sums) / PAIR
    figures = {
        "accuracy": (margin > 0).float().sum() / pairs, "margin": margin.sum() / pairs,
        "chosen": (preference.beta * gains[::PAIR]).detach().sum() / pairs,
    }  # fmt: skip
    return LossPart(loss=loss * (count / pairs), figures=figures)


def _distillation(setting: LossSetting, logits: Tensor, mask: Tensor, passes: Passes) -> LossPart:
    assert passes.teacher is not None
    usual = "reverse" if setting.work.generates else "forward"
    match setting.work.learning.teacher.divergence or usual:
        case "forward":
            everything = torch.arange(logits.shape[-1], device=logits.device).expand_as(logits)
            distance = losses.forward_kl(logits, passes.teacher, everything)
        case "reverse":
            distance = losses.reverse_kl(logits, passes.teacher)
        case _:
            distance = losses.generalised_jsd(logits, passes.teacher)
    loss = losses.aggregate(distance, mask, setting.average, setting.totals)
    agrees = (logits.argmax(-1) == passes.teacher.argmax(-1)) * mask
    return LossPart(loss=loss, figures={"agreement": agrees.sum() / setting.totals.tokens})


def value_part(setting: LossSetting, values: Tensor, batch: SampleBatch, passes: Passes) -> LossPart:
    """What the critic of PPO lowers on some rows."""
    assert passes.values is not None
    assert passes.returns is not None
    mask = batch.mask.to(values.device)
    loss = losses.value_loss(
        values, passes.values, passes.returns, mask, clip=setting.work.learning.critic.value_clip,
        totals=setting.totals,
    )  # fmt: skip
    return LossPart(loss=loss)


def with_gains(work: Rl, batch: SampleBatch, passes: Passes) -> Passes:
    """The passes with the advantages of the whole step, and with returns where there is a critic."""
    if not work.generates or work.algorithm == "distill-on-policy":
        return passes
    gains: Tensor
    returns: Tensor | None = None
    match work.algorithm:
        case "ppo":
            assert passes.values is not None
            critic = work.learning.critic
            gains, returns = advantages.gae(
                batch.rewards, passes.values, batch.mask, gamma=critic.discount, lam=critic.trace_decay
            )
        case "rloo":
            gains = advantages.rloo(batch.rewards, batch.mask, batch.groups)
        case "reinforce++" if len(batch.groups.unique()) < len(batch.groups):
            gains = advantages.reinforce_plus_plus_baseline(batch.rewards, batch.mask, batch.groups)
        case "reinforce++":
            gains = advantages.reinforce_plus_plus(batch.rewards, batch.mask)[0]
        case _:
            gains = advantages.grpo(batch.rewards, batch.mask, batch.groups)
    return Passes(
        old=passes.old, reference=passes.reference, teacher=passes.teacher, values=passes.values, gains=gains,
        returns=returns,
    )  # fmt: skip


def explained_variance(batch: SampleBatch, passes: Passes) -> float:
    """Of the returns, the share of their variance that the critic foresaw; 0 where they do not vary."""
    assert passes.values is not None
    assert passes.returns is not None
    inside = batch.mask.bool()
    returns, residuals = passes.returns[inside], (passes.returns - passes.values)[inside]
    variance = float(returns.var()) if len(returns) > 1 else 0.0
    return 1 - float(residuals.var()) / variance if variance > advantages.TINY else 0.0
