"""Runs of algorithms that compare no samples of a group: what each lowers, improves and resumes; data and mixtures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import torch

import ridgeline
from ridgeline.core.errors import InputError
from ridgeline.plan.rl_workload import Rl
from ridgeline.runtime.rl import RlOutcome
from ridgeline.runtime.rl.batches import collate
from ridgeline.runtime.rl.documents import held_out_documents, source_names, step_documents, warm_up_documents
from ridgeline.runtime.rl.losses import Totals
from ridgeline.runtime.rl.objectives import LossSetting, Passes, microbatch_loss, value_part, with_gains
from ridgeline.runtime.rl.run_rl import run_post_training
from ridgeline.runtime.rl.tasks import text_of
from ridgeline.runtime.train.request import RunOptions

TINY: dict[str, Any] = {
    "model": {"hidden": 32, "layers": 1, "vocab": 48, "tied": True, "attention": {"heads": 4}, "mlp": {"hidden": 64}},
    "system": "1xcpu",
    "workload": {
        "kind": "rl", "prompts": 16, "prompt_tokens": 4, "response_tokens": 5, "mini_batch": 8,
        "learning": {
            "task": "rewrite", "rate": 4e-3, "warm_up": 40, "held_out": {"every": 8, "questions": 40},
            "teacher": {"warm_up": 70},
        },
    },
    "plan": {"precision": "fp32", "microbatch": 64, "engine": "ridgeline"},
}  # fmt: skip
ALGORITHMS: dict[str, tuple[str, ...]] = {
    "ppo": ("workload.roles.critic=true", "workload.samples=4", "workload.epochs=2"),
    "dpo": ("workload.roles.reference=true", "workload.learning.rate=1e-3"),
    "sft": (),
    "distill-on-policy": ("workload.roles.teacher=true", "workload.samples=2"),
    "distill-off-policy": ("workload.roles.teacher=true",),
    "continual": ('workload.sources={old={earlier=true}, new={task="arithmetic"}}',
                  "workload.replay={share=0.25, warmup_steps=2, decay_steps=6}"),
}  # fmt: skip


def tiny(algorithm: str, *settings: str, system: str = "1xcpu") -> Any:
    table = json.loads(json.dumps(TINY)) | {"system": system}
    table["workload"]["algorithm"] = algorithm
    usual = () if any("sources" in setting for setting in settings) else ALGORITHMS[algorithm]
    return ridgeline.scenario(table, (*usual, *settings))


def run(scenario: Any, **options: Any) -> RlOutcome:
    return run_post_training(scenario, RunOptions(**{"steps": 8, **options}))


def figures(outcome: RlOutcome) -> list[tuple[object, ...]]:
    return [(row.step, row.reward, row.loss, row.gradient_norm, dict(row.figures)) for row in outcome.rows]


SHORT = ("workload.learning.warm_up=3", "workload.learning.teacher.warm_up=3", "workload.learning.held_out.every=2")


def test_ppo_raises_the_reward_with_a_critic_that_takes_its_own_time() -> None:
    settings = ("workload.samples=16", "workload.epochs=1", "plan.microbatch=128", "workload.learning.warm_up=80")
    found = run(tiny("ppo", *settings, "workload.learning.rate=3e-3"), steps=12)
    assert found.last_reward > found.first_reward + 0.03
    assert set(found.rows[0].figures) == {"value_loss", "explained_variance", "critic_norm"}
    assert {"rollout", "critic", "critic update", "train"} <= set(found.rows[0].phases)
    assert all((row.mismatch.largest or 0.0) < 1e-5 for row in found.rows)
    assert found.rows[-1].figures["explained_variance"] > found.rows[0].figures["explained_variance"]


def test_dpo_prefers_what_was_chosen() -> None:
    found = run(tiny("dpo"))
    assert found.last_loss < found.first_loss < 0.7
    assert found.rows[-1].figures["accuracy"] > 0.7
    assert found.rows[-1].figures["margin"] > 0.1
    assert set(found.rows[0].phases) == {"reference", "train", "wait"}
    assert found.replicas == 0
    assert found.rows[0].reward is None


@pytest.mark.parametrize("algorithm", ["sft", "distill-on-policy", "distill-off-policy"])
def test_imitation_lowers_its_loss_and_the_held_out_one(algorithm: str) -> None:
    found = run(tiny(algorithm))
    (change,) = found.held_out
    assert found.last_loss < found.first_loss
    assert change.after.chance > change.before.chance
    assert ("teacher" in found.rows[0].phases) == algorithm.startswith("distill")


def test_replay_is_a_share_of_every_step_and_the_rate_is_warmed_up_again() -> None:
    settings = "workload.learning.warm_up=60", "workload.learning.rate=8e-3"
    found = run(tiny("continual", *settings))
    assert [dict(row.sources) for row in found.rows] == [{"old": 4, "new": 12}] * 8
    rates = [row.rate / 8e-3 for row in found.rows]
    assert rates[:3] == pytest.approx([0.5, 1.0, 1.0])
    assert rates == [*rates[:2], *sorted(rates[2:], reverse=True)]
    assert [(change.source, change.earlier) for change in found.held_out] == [("old", True), ("new", False)]
    without = run(tiny("continual", *settings, "workload.replay.share=0"))
    assert without.held_out[0].after.loss > 1.5 * found.held_out[0].after.loss
    assert without.held_out[1].after.loss < without.held_out[1].before.loss


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_resumed_run_is_bit_for_bit_the_whole_one(algorithm: str, tmp_path: Path) -> None:
    options = {"folder": str(tmp_path / "run"), "every": 1}
    whole = run(tiny(algorithm, *SHORT), steps=4)
    first = run(tiny(algorithm, *SHORT), steps=2, **options)
    again = run(tiny(algorithm, *SHORT), steps=4, resume=True, **options)
    assert again.resumed == 2
    assert figures(first) + figures(again) == figures(whole)
    assert again.held_out == whole.held_out


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("shard", ["none", "zero3"])
def test_two_ranks_learn_what_one_learns(algorithm: str, shard: str) -> None:
    alone = run(tiny(algorithm, *SHORT), steps=2)
    found = run(tiny(algorithm, *SHORT, f"plan.shard={shard}", "plan.dp=2", system="2xcpu"), steps=2)
    assert [row.loss for row in found.rows] == pytest.approx([row.loss for row in alone.rows], abs=1e-4)
    for name, value in found.rows[0].figures.items():
        assert value == pytest.approx(alone.rows[0].figures[name], abs=1e-4), name


# -- data -------------------------------------------------------------------------------------------------------------


def work_of(algorithm: str, *settings: str) -> Rl:
    work = tiny(algorithm, *settings).workload
    assert isinstance(work, Rl)
    return work


def test_a_pair_is_a_good_answer_and_a_wrong_one_that_looks_like_it() -> None:
    for group in step_documents(work_of("dpo", "workload.learning.task=rewrite"), 0, 0):
        chosen, rejected = (scored.sample for scored in group.samples)
        assert [scored.reward for scored in group.samples] == [1.0, 0.0]
        assert chosen.prompt == rejected.prompt
        assert chosen.tokens != rejected.tokens
        assert sorted(chosen.tokens) == sorted(rejected.tokens)


def test_nothing_that_is_held_out_is_trained_on() -> None:
    work = work_of("continual")
    held_out = {group.samples[0].sample.prompt.tokens for _, groups in held_out_documents(work, 0) for group in groups}
    texts = {text_of(prompt) for prompt in held_out}
    reads = step_documents, warm_up_documents
    groups = [group for read in reads for step in range(20) for group in read(work, 0, step)]
    documents = [scored.sample for group in groups for scored in group.samples]
    trained = {text_of(sample.prompt.tokens + sample.tokens) for sample in documents}
    assert texts
    assert not [text for text in texts if any(document.startswith(text) for document in trained)]


def test_sources_drift_from_one_weight_to_another() -> None:
    settings = (
        'workload.sources={a={weight=3, final_weight=1}, b={weight=1, final_weight=3}, old={earlier=true}}',
        "workload.replay={share=0.5, final_share=0, steps=8}",
    )  # fmt: skip
    work = work_of("continual", *settings)
    first, middle, last = ({name: source_names(work, step).count(name) for name in work.sources} for step in (0, 4, 8))
    assert first == {"a": 6, "b": 2, "old": 8}
    assert middle == {"a": 6, "b": 6, "old": 4}
    assert last == {"a": 4, "b": 12, "old": 0}


@pytest.mark.parametrize(
    ("algorithm", "setting", "path"),
    [
        ("sft", "workload.sources={a={earlier=true}}", "workload.sources"),
        ("continual", "workload.sources={a={weight=0}}", "workload.sources"),
        ("dpo", "workload.sources={a={}}", "workload.sources"),
        ("continual", "workload.replay={share=0.2, floor=2}", "workload.replay.floor"),
        ("ppo", "workload.learning.critic.trace_decay=1.5", "workload.learning.critic.trace_decay"),
        ("dpo", "workload.learning.preference.smoothing=0.5", "workload.learning.preference.smoothing"),
    ],
)  # fmt: skip
def test_a_mixture_that_makes_no_sense_is_refused_by_name(algorithm: str, setting: str, path: str) -> None:
    with pytest.raises(InputError) as caught:
        run(tiny(algorithm, setting))
    assert path in [problem.path for problem in caught.value.problems], caught.value


# -- what is lowered --------------------------------------------------------------------------------------------------


def setting_of(algorithm: str, mask: torch.Tensor, *settings: str) -> LossSetting:
    return LossSetting(work=work_of(algorithm, *settings), step=0, totals=Totals.of(mask))


def test_a_pair_whose_policy_is_the_reference_costs_log_two() -> None:
    batch = collate(step_documents(work_of("dpo"), 0, 0))
    logits = torch.zeros(*batch.mask.shape, 48)
    reference = torch.full(batch.mask.shape, -torch.log(torch.tensor(48.0)).item())
    part = microbatch_loss(setting_of("dpo", batch.mask), logits, batch, Passes(reference=reference))
    assert float(part.loss) == pytest.approx(0.693147, abs=1e-5)
    assert float(part.figures["margin"]) == pytest.approx(0.0, abs=1e-6)


@pytest.mark.parametrize("divergence", ["forward", "reverse", "jsd"])
def test_a_student_that_is_its_teacher_has_nothing_to_learn(divergence: str) -> None:
    batch = collate(step_documents(work_of("sft"), 0, 0))
    logits = torch.randn(*batch.mask.shape, 48, generator=torch.Generator().manual_seed(1))
    setting = setting_of("distill-off-policy", batch.mask, f"workload.learning.teacher.divergence={divergence}")
    same = microbatch_loss(setting, logits, batch, Passes(teacher=logits.log_softmax(-1)))
    other = microbatch_loss(setting, logits, batch, Passes(teacher=logits.flip(-1).log_softmax(-1)))
    assert float(same.loss) == pytest.approx(0.0, abs=1e-5)
    assert float(same.figures["agreement"]) == pytest.approx(1.0)
    assert float(other.loss) > 0.1


def test_a_critic_learns_the_return_and_no_further_than_its_clip() -> None:
    work = work_of("ppo")
    batch = collate(step_documents(work, 0, 0)[:1])  # one answer of four tokens that is worth 1
    values = torch.zeros(batch.mask.shape)
    passes = with_gains(work, batch, Passes(values=values))
    assert passes.returns is not None
    assert passes.returns[batch.mask.bool()].tolist() == [1.0] * 4  # three letters and the stop
    near = value_part(setting_of("ppo", batch.mask), values, batch, passes)
    far = value_part(setting_of("ppo", batch.mask), values + 1.0, batch, passes)
    assert float(near.loss) == pytest.approx(0.5)
    assert float(far.loss) == pytest.approx(0.125)  # (0 + 0.5 - 1)^2 / 2: the value cut off counts
