"""Names as papers, leaderboards and logs spell them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ridgeline.models.load import LONGEST, MODELS, RULES, find_name


@pytest.mark.parametrize(
    ("text", "id"),
    [
        ("llama3-8b", "llama3-8b"),
        ("Llama2-70B (LoRA)", "llama2-70b"),
        ("llama2-70b-99.9", "llama2-70b"),
        ("nvidia/Llama-3.1-8B-Instruct-FP8", "llama3.1-8b"),
        ("meta-llama/Llama-4-Maverick-17B-128E-Instruct-FP8", "llama4-maverick"),
        ("Qwen3-30B-A3B-BF16", "qwen3-30b-a3b"),
        ("DeepSeek-V3 (profile)", "deepseek-v3"),
        ("DeepSeek-V3/R1", "deepseek-v3"),
        ("DeepSeek-R1/V3", "deepseek-r1"),
        ("DeepSeek R1 0528", "deepseek-r1"),
        ("LLaMA 70B", "llama2-70b"),
        ("LLaMA 7B", "llama1-7b"),
        ("Mistral-7B-Instruct-v0.2", "mistral-7b-v0.2"),
        ("Mistral-7B-Instruct-v0.3", "mistral-7b-v0.3"),
        ("nvidia/Nemotron-H-56B-Base-8K", "nemotron-h-56b"),
        ("Phi-3-mini-4k-instruct", "phi3-mini"),
        ("GPT-175.0B", "gpt3-175b"),
        ("google/gemma-3-27b-it", "gemma3-27b"),
    ],
)
def test_decorations(text: str, id: str) -> None:
    assert find_name(text) == (id, {})


@pytest.mark.parametrize(
    "text",
    [
        "Llama3.1-405B truncated to 8 layers (proxy)",
        "llama3.1-405b (truncated to 8 layers)",
        "Llama 3.1 405B truncated to 8 layers",
    ],
)
def test_truncation(text: str) -> None:
    assert find_name(text) == ("llama3.1-405b", {"layers": 8})


@pytest.mark.parametrize(
    "text", ["", " ", "(LoRA)", "LLM (unspecified)", "llama", "b", "-99", "x" * 10_000, "a\nb", "\0"]
)
def test_nothing_is_guessed(text: str) -> None:
    assert find_name(text) is None


def test_a_rule_never_hides_an_entry() -> None:
    for id in MODELS:
        assert find_name(id) == (id, {})
    for alias, id in MODELS.aliases.items():
        assert (find_name(alias) or ("",))[0] == id


def test_every_rule_only_shortens() -> None:
    for rule in RULES:
        for id in MODELS:
            assert len(rule.apply(id)) <= len(id)


@given(st.text(max_size=LONGEST + 20))
def test_any_text_is_answered(text: str) -> None:
    found = find_name(text)
    assert found is None or found[0] in MODELS
