"""Print the largest distance between each formula of Ridgeline and of verl, as JSON: what test_verl_losses.py runs."""

from __future__ import annotations

import json
import sys
from types import SimpleNamespace

import numpy as np
import torch
from verl.trainer.distillation.fsdp.losses import kl_divergence
from verl.trainer.ppo import core_algos
from verl.workers.reward_manager.dapo import DAPORewardManager

from ridgeline.runtime.rl import advantages, losses

AGGREGATIONS = ("token-mean", "seq-mean-token-mean", "seq-mean-token-sum", "seq-mean-token-sum-norm")


def batch(seed: int) -> SimpleNamespace:
    """Twelve responses of up to nine tokens in groups of four, three, four and one, some with words of a tool."""
    generator = torch.Generator().manual_seed(seed)
    rows, tokens = 12, 9
    lengths = torch.randint(2, tokens + 1, (rows,), generator=generator)
    mask = (torch.arange(tokens) < lengths[:, None]).double()
    mask[::3, 1] = 0.0
    rewards = torch.zeros(rows, tokens, dtype=torch.double)
    rewards[torch.arange(rows), lengths - 1] = torch.randn(rows, generator=generator).double()

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator).double()

    groups = torch.tensor([0] * 4 + [1] * 3 + [2] * 4 + [3])
    return SimpleNamespace(
        mask=mask, rewards=rewards, groups=groups, old=normal(rows, tokens) - 2, new=normal(rows, tokens) - 2,
        values=normal(rows, tokens), advantages=normal(rows, tokens) * 2, logits=normal(rows, tokens, 17),
        teacher=normal(rows, tokens, 17), lengths=lengths,
    )  # fmt: skip


def pairs(data: SimpleNamespace) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """Ridgeline's value and verl's, by name."""
    found: dict[str, tuple[torch.Tensor, torch.Tensor]] = {}
    index = data.groups.numpy()
    common = {"response_mask": data.mask}

    def theirs(function: str, **more: object) -> tuple[torch.Tensor, torch.Tensor]:
        return getattr(core_algos, function)(token_level_rewards=data.rewards.clone(), **common, **more)

    found["grpo"] = (
        advantages.grpo(data.rewards, data.mask, data.groups),
        theirs("compute_grpo_outcome_advantage", index=index)[0],
    )
    found["dr-grpo"] = (
        advantages.grpo(data.rewards, data.mask, data.groups, by_deviation=False),
        theirs("compute_grpo_outcome_advantage", index=index, norm_adv_by_std_in_grpo=False)[0],
    )
    found["rloo"] = (
        advantages.rloo(data.rewards, data.mask, data.groups),
        theirs("compute_rloo_outcome_advantage", index=index)[0],
    )
    own = advantages.reinforce_plus_plus(data.rewards, data.mask, gamma=0.97)
    verl = theirs("compute_reinforce_plus_plus_outcome_advantage", config=SimpleNamespace(gamma=0.97))
    found["reinforce++"], found["reinforce++ returns"] = zip(own, verl, strict=True)
    found["reinforce++-baseline"] = (
        advantages.reinforce_plus_plus_baseline(data.rewards, data.mask, data.groups),
        theirs("compute_reinforce_plus_plus_baseline_outcome_advantage", index=index)[0],
    )
    own = advantages.gae(data.rewards, data.values, data.mask, gamma=0.98, lam=0.95)
    verl = theirs("compute_gae_advantage_return", values=data.values, gamma=0.98, lam=0.95)
    found["gae"], found["returns"] = zip(own, verl, strict=True)
    found["penalised"] = (
        advantages.penalised_rewards(data.rewards, data.old, data.new, coefficient=0.1),
        core_algos.compute_rewards(data.rewards, data.old, data.new, 0.1),
    )
    found["overlong"] = (
        advantages.overlong_penalty(data.lengths.double(), longest=9, buffer=4, factor=0.7),
        _dapo_penalties(data.lengths, longest=9, buffer=4, factor=0.7),
    )
    return found | _losses(data)


def _dapo_penalties(lengths: torch.Tensor, longest: int, buffer: int, factor: float) -> torch.Tensor:
    """What verl's DAPO reward manager adds to a reward of 0."""
    from verl import DataProto

    tokenizer = SimpleNamespace(decode=lambda *_, **__: "", eos_token="")
    shaping = SimpleNamespace(enable=True, len=buffer, penalty_factor=factor, log=False)
    manager = DAPORewardManager(
        tokenizer, num_examine=0, compute_score=lambda **_: 0.0, max_resp_len=longest, overlong_buffer_cfg=shaping
    )
    rows = len(lengths)
    attention = torch.cat([torch.ones(rows, 1), torch.arange(longest) < lengths[:, None]], 1).long()
    fields = {
        "prompts": torch.zeros(rows, 1, dtype=torch.long),
        "responses": torch.zeros(rows, longest, dtype=torch.long),
        "attention_mask": attention,
    }
    answers = np.array([{"ground_truth": ""}] * rows, dtype=object)
    sources = np.array([""] * rows, dtype=object)
    data = DataProto.from_dict(tensors=fields, non_tensors={"reward_model": answers, "data_source": sources})
    return manager(data).sum(-1).double()


def _losses(data: SimpleNamespace) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    found: dict[str, tuple[torch.Tensor, torch.Tensor]] = {}
    clip = losses.Clipping(low=0.2, high=0.28, dual=3.0)
    config = _actor_config()
    for how in AGGREGATIONS:
        own_probs, verl_probs = (data.new.clone().requires_grad_() for _ in range(2))
        own = losses.policy_loss(
            own_probs, data.old, data.advantages, data.mask, clip,
            lambda token_losses, mask, how=how: losses.aggregate(token_losses, mask, how),
        )  # fmt: skip
        verl, metrics = core_algos.compute_policy_loss_vanilla(
            data.old, verl_probs, data.advantages, data.mask, how, config
        )
        own.loss.backward()
        verl.backward()
        found[f"policy {how}"] = own.loss.detach(), verl.detach()
        found["policy gradient"] = own_probs.grad, verl_probs.grad
        found["clipped"] = own.clipped, torch.tensor(metrics["actor/pg_clipfrac"])
        found["kl"] = own.kl, torch.tensor(metrics["actor/ppo_kl"])
    for kind in ("k1", "abs", "k2", "k3"):
        found[kind] = losses.divergence(data.new, data.old, kind), core_algos.kl_penalty(data.new, data.old, kind)
    value, returns = data.values, data.advantages
    found["value"] = (
        losses.value_loss(data.new, value, returns, data.mask, clip=0.5),
        core_algos.compute_value_loss(data.new, returns, value, data.mask, 0.5)[0],
    )
    found["entropy"] = (
        losses.aggregate(losses.entropy(data.logits.float()), data.mask.float(), "token-mean"),
        core_algos.compute_entropy_loss(data.logits.float(), data.mask.float()),
    )
    teacher, tokens = torch.log_softmax(data.teacher, -1).topk(5)
    student = torch.log_softmax(data.logits, -1).gather(-1, tokens)
    found["forward-kl"] = losses.forward_kl(data.logits, teacher, tokens), kl_divergence(student, teacher)
    return found


def _actor_config() -> SimpleNamespace:
    values = {"clip_ratio": 0.2, "clip_ratio_low": 0.2, "clip_ratio_high": 0.28, "clip_ratio_c": 3.0}
    return SimpleNamespace(**values, get=lambda name, usual=None: values.get(name, usual), global_batch_info={})


def main() -> None:
    distances: dict[str, float] = {}
    for seed in range(20):
        for name, (own, verl) in pairs(batch(seed)).items():
            distance = float((own.double() - verl.double()).abs().max())
            distances[name] = max(distances.get(name, 0.0), distance)
    print(json.dumps(distances))


if __name__ == "__main__":
    sys.exit(main())
