"""Losses and advantages against numbers worked out by hand; tests/real compares them with verl's."""

from __future__ import annotations

import math

import pytest

pytest.importorskip("torch")

import torch

from ridgeline.runtime.rl import advantages, losses

MASK = torch.tensor([[1.0, 1.0, 1.0], [1.0, 1.0, 0.0], [1.0, 0.0, 0.0]])
REWARDS = torch.tensor([[0.0, 0.0, 1.0], [0.0, 3.0, 0.0], [2.0, 0.0, 0.0]])


def test_a_group_of_two_is_one_deviation_apart_by_root_two() -> None:
    rewards = torch.tensor([[1.0], [3.0], [7.0]])
    found = advantages.grpo(rewards, torch.ones(3, 1), torch.tensor([5, 5, 9]))
    root = math.sqrt(2)  # rewards 1 and 3: mean 2, deviation root 2; alone: the reward itself
    assert found.flatten().tolist() == pytest.approx([-1 / root, 1 / root, 7.0], abs=1e-5)


def test_a_group_without_differences_teaches_nothing() -> None:
    found = advantages.grpo(torch.ones(4, 2), torch.ones(4, 2), torch.zeros(4))
    assert found.abs().max() == 0


def test_padding_has_no_advantage_and_a_reward_reaches_every_token_before_it() -> None:
    found = advantages.rloo(REWARDS, MASK, torch.tensor([0, 0, 0]))
    assert found.tolist() == [[-1.5, -1.5, -1.5], [1.5, 1.5, 0.0], [0.0, 0.0, 0.0]]


def test_returns_are_discounted_over_what_the_policy_wrote_alone() -> None:
    mask = torch.tensor([[1.0, 0.0, 1.0]])
    _, returns = advantages.reinforce_plus_plus(torch.tensor([[0.0, 0.0, 8.0]]), mask, gamma=0.5)
    assert returns.tolist() == [[4.0, 0.0, 8.0]]


def test_gae_with_lambda_one_is_the_return_less_the_value() -> None:
    values = torch.tensor([[0.5, 0.25, 1.0]])
    mask = torch.ones(1, 3)
    found, returns = advantages.gae(torch.tensor([[0.0, 0.0, 2.0]]), values, mask)
    assert returns.tolist() == [[2.0, 2.0, 2.0]]
    plain = torch.tensor([1.5, 1.75, 1.0])
    assert torch.allclose(found[0], (plain - plain.mean()) / plain.std(), atol=1e-5)


def test_gae_by_hand_with_lambda_between() -> None:
    # delta = [0 + 0.9*2 - 1, 3 - 2] = [0.8, 1]; A1 = 1; A0 = 0.8 + 0.9*0.5*1 = 1.25
    _, returns = advantages.gae(
        torch.tensor([[0.0, 3.0]]), torch.tensor([[1.0, 2.0]]), torch.ones(1, 2), gamma=0.9, lam=0.5
    )
    assert returns.tolist()[0] == pytest.approx([2.25, 3.0])


def test_clipping_stops_a_gain_and_never_a_loss() -> None:
    old, mask = torch.zeros(1, 1), torch.ones(1, 1)
    clip = losses.Clipping(low=0.2, high=0.28, dual=3.0)

    def loss(ratio: float, advantage: float) -> float:
        log_probs = torch.tensor([[math.log(ratio)]])
        return float(losses.policy_loss(log_probs, old, torch.tensor([[advantage]]), mask, clip).loss)

    assert loss(2.0, 1.0) == pytest.approx(-1.28)  # clip-higher
    assert loss(0.5, 1.0) == pytest.approx(-0.5)
    assert loss(0.5, -1.0) == pytest.approx(0.8)
    assert loss(2.0, -1.0) == pytest.approx(2.0)
    assert loss(9.0, -1.0) == pytest.approx(3.0)  # dual clip


def test_the_share_of_clipped_tokens_leaves_padding_out() -> None:
    log_probs = torch.tensor([[math.log(2.0), 0.0, math.log(9.0)]])
    mask = torch.tensor([[1.0, 1.0, 0.0]])
    outcome = losses.policy_loss(log_probs, torch.zeros(1, 3), torch.ones(1, 3), mask)
    assert outcome.clipped == pytest.approx(0.5)
    assert outcome.kl == pytest.approx(-math.log(2.0) / 2)


def test_aggregation_by_hand() -> None:
    token_losses = torch.tensor([[1.0, 2.0, 3.0], [5.0, 7.0, 0.0], [9.0, 0.0, float("nan")]])
    value = {
        how: float(losses.aggregate(token_losses, MASK, how))
        for how in ("token-mean", "seq-mean-token-mean", "seq-mean-token-sum", "seq-mean-token-sum-norm")
    }
    assert value["token-mean"] == pytest.approx(27 / 6)
    assert value["seq-mean-token-mean"] == pytest.approx((2 + 6 + 9) / 3)
    assert value["seq-mean-token-sum"] == pytest.approx(27 / 3)
    assert value["seq-mean-token-sum-norm"] == pytest.approx(27 / 3 / 3)


def test_shares_of_a_batch_add_up_to_the_whole() -> None:
    token_losses = torch.arange(9.0).view(3, 3)
    totals = losses.Totals.of(MASK)
    for how in ("token-mean", "seq-mean-token-mean", "seq-mean-token-sum", "seq-mean-token-sum-norm"):
        parts = [losses.aggregate(token_losses[rows], MASK[rows], how, totals) for rows in (slice(0, 1), slice(1, 3))]
        assert float(sum(parts)) == pytest.approx(float(losses.aggregate(token_losses, MASK, how)))


def test_estimates_of_a_divergence() -> None:
    log_probs, reference = torch.tensor([math.log(0.5)]), torch.tensor([math.log(0.25)])
    expected = {"k1": math.log(2), "abs": math.log(2), "k2": math.log(2) ** 2 / 2, "k3": 0.5 + math.log(2) - 1}
    for kind, value in expected.items():
        assert float(losses.divergence(log_probs, reference, kind)) == pytest.approx(value), kind


def test_k1_and_k3_are_unbiased() -> None:
    p, q = torch.tensor([0.7, 0.2, 0.1]), torch.tensor([0.3, 0.3, 0.4])
    kl = float((p * (p / q).log()).sum())
    for kind in ("k1", "k3"):
        assert float((p * losses.divergence(p.log(), q.log(), kind)).sum()) == pytest.approx(kl, rel=1e-5)


def test_divergences_of_distillation_by_hand() -> None:
    student, teacher = torch.tensor([[0.5, 0.5]]).log(), torch.tensor([[0.9, 0.1]]).log()
    forward = 0.9 * math.log(0.9 / 0.5) + 0.1 * math.log(0.1 / 0.5)
    backward = 0.5 * math.log(0.5 / 0.9) + 0.5 * math.log(0.5 / 0.1)
    tokens = torch.tensor([[0, 1]])
    assert float(losses.forward_kl(student, teacher, tokens)) == pytest.approx(forward, abs=1e-6)
    assert float(losses.reverse_kl(student, teacher)) == pytest.approx(backward, abs=1e-6)
    middle = torch.tensor([0.7, 0.3])
    p, q = teacher.exp()[0], student.exp()[0]
    jsd = 0.5 * float((p * (p / middle).log()).sum() + (q * (q / middle).log()).sum())
    assert float(losses.generalised_jsd(student, teacher)) == pytest.approx(jsd, abs=1e-6)


def test_a_preference_is_learned_from_the_margin_alone() -> None:
    loss = losses.preference_loss(*(torch.tensor([value]) for value in (-1.0, -4.0, -2.0, -3.0)), beta=0.5)
    assert float(loss) == pytest.approx(math.log(1 + math.exp(-1.0)))
    one_more = losses.preference_loss(*(torch.tensor([value]) for value in (9.0, 6.0, -2.0, -3.0)), beta=0.5)
    assert float(one_more) == pytest.approx(float(loss))


def test_a_value_beyond_its_clip_costs_the_larger_distance() -> None:
    loss = losses.value_loss(
        torch.tensor([[2.0]]), torch.zeros(1, 1), torch.tensor([[2.0]]), torch.ones(1, 1), clip=0.5
    )
    assert float(loss) == pytest.approx(0.5 * 1.5**2)


def test_entropy_of_a_uniform_choice_is_its_logarithm() -> None:
    assert float(losses.entropy(torch.zeros(1, 8))) == pytest.approx(math.log(8))


def test_importance_weights_are_cut_off() -> None:
    weights = losses.importance_weights(torch.tensor([0.0, 1.0]), torch.tensor([0.0, -3.0]))
    assert weights.tolist() == [1.0, 2.0]
