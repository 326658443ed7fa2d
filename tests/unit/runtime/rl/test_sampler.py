"""The sampler against full recomputation without a cache, with preemption, groups, tools and interruptions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

pytest.importorskip("torch")

import torch

import ridgeline
from ridgeline.models.numerics import Numerics
from ridgeline.runtime.rl.paged import CacheShape
from ridgeline.runtime.rl.sampler import Decoding, Sampler, draw_tokens, uniform_numbers
from ridgeline.runtime.rl.samples import Prompt, Sample
from ridgeline.runtime.train.assemble import assemble
from ridgeline.runtime.train.layout import Layout
from ridgeline.runtime.train.loop import blueprint_of
from ridgeline.runtime.train.request import RunOptions, forward_constants, make_request
from ridgeline.runtime.train.stage import Stage

MODEL: dict[str, Any] = {
    "hidden": 32, "layers": 2, "vocab": 48, "tied": True, "attention": {"heads": 4, "kv_heads": 2},
    "mlp": {"hidden": 64},
}  # fmt: skip
MODELS: dict[str, dict[str, Any]] = {
    "grouped": MODEL,
    "window": {**MODEL, "attention": {"heads": 4, "kv_heads": 2, "window": 5}},
    "experts": {**MODEL, "mlp": None, "moe": {"experts": 4, "topk": 2, "hidden": 32}},
}
MODELS["multiplied"] = {
    **MODELS["window"],
    "numerics": Numerics(
        score_softcap=4.0, logit_softcap=6.0, embedding_scale=2.0, residual_scale=0.5, norms_after=True,
        rotary_share=0.5, rotary_interleaved=True,
    ),
}  # fmt: skip
PROMPTS = [Prompt(number=index, tokens=tuple(range(1 + index, 4 + 3 * index))) for index in range(5)]
STOP = 0


def stage_of(table: dict[str, Any] = MODEL, spread: float = 12.0) -> Stage:
    """A model with weights large enough that its choices differ."""
    numerics = table.get("numerics")
    table = {key: value for key, value in table.items() if value is not None and key != "numerics"}
    scenario = ridgeline.scenario(
        {"model": table, "system": "1xcpu", "workload": {"seq": 64, "global_batch": 1}, "plan": {"precision": "fp32"}}
    )
    constants = forward_constants(scenario.model, numerics)
    stage = assemble(blueprint_of(make_request(scenario, RunOptions(seed=3), constants)), Layout()).stages[0]
    with torch.no_grad():
        for name, parameter in stage.named_parameters():
            if "norm" not in name:
                parameter.mul_(spread)
    return stage


def decoding(**more: Any) -> Decoding:
    return Decoding(**{"longest": 20, "context": 60, "stop": STOP, "temperature": 0.0, **more})


def sampled(stage: Stage, prompts: Sequence[Prompt] = PROMPTS, blocks: int = 64, **more: Any) -> list[Sample]:
    sampler = Sampler(stage, decoding(**more), CacheShape(blocks=blocks, block_tokens=4))
    sampler.add(prompts)
    found = sampler.advance()
    assert len(sampler.pool.free) == blocks
    return sorted(found, key=lambda one: (one.prompt.number, one.index))


def log_probs_of(stage: Stage, tokens: Sequence[int], temperature: float = 1.0) -> torch.Tensor:
    """Of every token but the first, by the trainer's forward pass."""
    line = torch.tensor([list(tokens)])
    with torch.no_grad():
        logits = stage(line)[0].float() / temperature
    return torch.log_softmax(logits, -1)[:-1].gather(-1, line[0, 1:, None]).squeeze(-1)


def greedy(stage: Stage, prompt: Prompt, longest: int = 20) -> tuple[int, ...]:
    """Decoded by reading everything again for each token."""
    tokens = list(prompt.tokens)
    while len(tokens) < len(prompt.tokens) + longest:
        with torch.no_grad():
            tokens.append(int(stage(torch.tensor([tokens]))[0, -1].argmax()))
        if tokens[-1] == STOP:
            break
    return tuple(tokens[len(prompt.tokens) :])


@pytest.mark.parametrize("name", MODELS)
def test_greedy_tokens_are_those_of_full_recomputation(name: str) -> None:
    stage = stage_of(MODELS[name])
    found = sampled(stage)
    assert [one.tokens for one in found] == [greedy(stage, prompt) for prompt in PROMPTS]
    assert len({one.tokens for one in found}) > 1


@pytest.mark.parametrize("name", MODELS)
def test_log_probabilities_are_the_trainers(name: str) -> None:
    stage = stage_of(MODELS[name])
    for one in sampled(stage, temperature=0.7):
        expected = log_probs_of(stage, one.prompt.tokens + one.tokens, 0.7)[len(one.prompt.tokens) - 1 :]
        assert torch.allclose(torch.tensor(one.log_probs), expected, atol=1e-5)


def test_few_blocks_and_small_steps_change_nothing_but_the_work() -> None:
    stage = stage_of()
    wide = sampled(stage, temperature=1.0)
    sampler = Sampler(stage, decoding(temperature=1.0, chunk=3), CacheShape(blocks=16, block_tokens=4))
    sampler.add(PROMPTS)
    narrow = sorted(sampler.advance(), key=lambda one: one.prompt.number)
    assert [one.tokens for one in narrow] == [one.tokens for one in wide]
    assert sampler.counts.preempted > 0
    assert sampler.counts.computed > sum(len(one.prompt.tokens + one.tokens) - 1 for one in wide)


def test_a_group_reads_its_prompt_once_and_answers_as_its_members_would_alone() -> None:
    stage = stage_of()
    prompt = Prompt(number=4, tokens=tuple(range(1, 11)), samples=6)
    sampler = Sampler(stage, decoding(temperature=1.0), CacheShape(blocks=64, block_tokens=4))
    sampler.add([prompt])
    found = sorted(sampler.advance(), key=lambda one: one.index)
    assert len({one.tokens for one in found}) > 1
    assert sampler.counts.computed == len(prompt.tokens) + sum(len(one.tokens) - 1 for one in found)
    for one in found:
        expected = log_probs_of(stage, one.prompt.tokens + one.tokens)[len(prompt.tokens) - 1 :]
        assert torch.allclose(torch.tensor(one.log_probs), expected, atol=1e-5)
    assert len(sampler.pool.free) == 64


def test_an_interrupted_answer_goes_on_with_the_new_weights() -> None:
    stage = stage_of()
    sampler = Sampler(stage, decoding(temperature=1.0), CacheShape(blocks=64, block_tokens=4))
    sampler.add([Prompt(number=1, tokens=(1, 2, 3), samples=4)])
    ended = sampler.advance(5)
    again = stage_of(spread=9.0)
    with torch.no_grad():
        for old, new in zip(stage.parameters(), again.parameters(), strict=True):
            old.copy_(new)
    sampler.renew(1)
    later = sampler.advance()
    assert len(ended) + len(later) == 4
    assert sampler.counts.interrupted == len(later) > 0
    for one in later:
        assert one.versions == (0,) * 5 + (1,) * (len(one.tokens) - 5)
        assert one.oldest == 0
        expected = log_probs_of(stage, one.prompt.tokens + one.tokens)[2:]
        assert torch.allclose(torch.tensor(one.log_probs[5:]), expected[5:], atol=1e-5)


def test_an_interruption_without_new_weights_changes_nothing() -> None:
    stage = stage_of()
    whole = sampled(stage, temperature=1.0)
    sampler = Sampler(stage, decoding(temperature=1.0), CacheShape(blocks=64, block_tokens=4))
    sampler.add(PROMPTS)
    found = sampler.advance(3)
    sampler.renew(0)
    found += sampler.advance()
    assert sorted(one.tokens for one in found) == sorted(one.tokens for one in whole)


def test_what_a_tool_says_is_read_and_not_the_policys_own() -> None:
    stage = stage_of()
    turns: list[int] = []

    def reply(prompt: Prompt, answer: Sequence[int]) -> Sequence[int]:
        turns.append(len(answer))
        return (7, 8, 9) if answer.count(STOP) == 1 else ()

    sampler = Sampler(stage, decoding(longest=40, temperature=2.0), CacheShape(blocks=64, block_tokens=4), reply)
    sampler.add([Prompt(number=2, tokens=(5, 6), samples=8)])
    told = [one for one in sampler.advance() if not all(one.own)]
    assert told
    for one in told:
        place = one.tokens.index(STOP) + 1
        assert one.tokens[place : place + 3] == (7, 8, 9)[: len(one.tokens) - place]
        assert one.own.count(False) == 3
        expected = log_probs_of(stage, one.prompt.tokens + one.tokens, 2.0)[1:]
        mask = torch.tensor(one.own)
        assert torch.allclose(torch.tensor(one.log_probs)[mask], expected[mask], atol=1e-5)


def test_tokens_are_drawn_as_often_as_they_are_likely() -> None:
    shares = torch.tensor([0.1, 0.2, 0.7])
    count = 20_000
    numbers = uniform_numbers(5, torch.arange(count), torch.full((count,), 3))
    tokens, log_probs = draw_tokens(shares.log().expand(count, 3), numbers, 1.0)
    found = torch.bincount(tokens, minlength=3) / count
    assert torch.allclose(found, shares, atol=0.01)
    assert torch.allclose(log_probs, shares.log()[tokens])


def test_numbers_of_neighbours_are_independent() -> None:
    grid = uniform_numbers(0, torch.arange(200).repeat_interleave(50), torch.arange(50).repeat(200)).view(200, 50)
    assert 0 <= float(grid.min()) < 0.001
    assert 0.999 < float(grid.max()) < 1
    for first, second in ((grid[1:], grid[:-1]), (grid[:, 1:], grid[:, :-1])):
        both = torch.stack((first.flatten(), second.flatten()))
        assert abs(float(torch.corrcoef(both)[0, 1])) < 0.03


def test_a_cache_that_holds_no_sequence_is_refused() -> None:
    with pytest.raises(ValueError, match="less than one sequence"):
        Sampler(stage_of(), decoding(), CacheShape(blocks=3, block_tokens=4))
