"""Captured architectures against their readers: parameters equal, flops within 1 %, predicted step within 3 %.

    python -m pytest -m slow tests/real/test_captured_types.py

Each type's default config is built by transformers on the meta device, one forward of it is recorded, and what comes of
that is held against what the reader makes of the same config. Every raw product is summed up as well: what was recorded
must be the reader's flops before any part is recognised.
"""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from ridgeline import predict, scenario
from ridgeline.core.errors import InputError
from ridgeline.models.facts import forward_flops_per_token
from ridgeline.models.hf import from_config
from ridgeline.models.params import count
from ridgeline.models.recurrent import recurrent_parts
from ridgeline.plan.scenario import Scenario
from ridgeline.sim.prediction import Prediction

pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.slow

TYPES = (
    "afmoe", "apertus", "arcee", "bamba", "biogpt", "bitnet", "bloom", "codegen", "cohere", "cohere2", "cohere2_moe",
    "cwm", "deepseek_v3", "ernie4_5", "ernie4_5_moe", "exaone4", "exaone_moe", "falcon", "flex_olmo", "gemma", "gemma2",
    "gemma3_text", "glm", "glm4", "gpt2", "gpt_bigcode", "gpt_neox", "gpt_oss", "gptj", "granite", "granitemoe",
    "granitemoehybrid", "helium", "llama", "llama4_text", "mamba2", "minicpm3", "mistral", "mixtral", "mpt",
    "nemotron_h", "olmo", "olmo2", "olmo3", "olmoe", "opt", "persimmon", "phi", "phi3", "phimoe", "qwen2", "qwen2_moe",
    "qwen3", "qwen3_moe", "qwen3_next", "seed_oss", "smollm3", "stablelm", "starcoder2", "xglm",
)  # fmt: skip
SEQ = 4096
PAIRED = ("scores", "state")  # of a reader's flops, what is no product with a weight


def config_of(kind: str) -> dict[str, Any]:
    """A type's default config as transformers saves it."""
    made = transformers.models.auto.configuration_auto.CONFIG_MAPPING[kind]()
    return json.loads(made.to_json_string(use_diff=False)) | {"model_type": kind}


@cache
def base() -> Scenario:
    """Sharded data parallel, which takes any model."""
    plan = {"dp": 64, "shard": "zero3", "recompute": "full"}
    work = {"seq": SEQ, "global_batch": 64}
    return scenario({"model": "llama3-8b", "system": "64xh100-sxm", "workload": work, "plan": plan})


def step_s(model: Any) -> float:
    """Seconds of a predicted step."""
    found = predict(replace(base(), model=model))
    assert isinstance(found, Prediction)
    return found.step_time_s


@pytest.mark.parametrize("kind", TYPES)
def test_a_captured_type_is_what_its_reader_reads(kind: str) -> None:
    from ridgeline.runtime.capture import capture_config

    data = config_of(kind)
    read, captured = from_config(data), capture_config(data)
    assert count(captured).total == count(read).total
    assert count(captured).active == count(read).active
    flops = [forward_flops_per_token(model, SEQ).total for model in (captured, read)]
    assert flops[0] == pytest.approx(flops[1], rel=0.01)
    assert step_s(captured) == pytest.approx(step_s(read), rel=0.03)


@pytest.mark.parametrize("kind", ["llama", "gemma2", "deepseek_v3", "mixtral", "gpt_oss", "cohere", "qwen3_moe"])
def test_the_products_that_ran_are_the_readers_flops(kind: str) -> None:
    from ridgeline.runtime.capture import TOKENS
    from ridgeline.runtime.capture.graph import LayerGraph
    from ridgeline.runtime.capture.transformers_models import config_of as to_config
    from ridgeline.runtime.capture.transformers_models import forward_of

    data = config_of(kind)
    module, recording = forward_of(to_config(data), TOKENS, told=True)
    shapes = {name: tuple(weight.shape) for name, weight in module.named_parameters()}
    graph = LayerGraph(recording, range(len(recording.nodes)), shapes)
    ran = sum(one.flops for one in graph.products if one.weight) / TOKENS
    parts = forward_flops_per_token(from_config(data), SEQ)
    assert ran == pytest.approx(parts.total - sum(getattr(parts, name) for name in PAIRED), rel=0.01)


RECURRENT = (
    "deepseek_v4", "falcon_h1", "gemma3n_text", "gemma4_text", "jamba", "kimi_linear", "lfm2", "mamba", "minimax",
    "mistral4", "rwkv", "xlstm",
)  # fmt: skip


@pytest.mark.parametrize("kind", RECURRENT)
def test_products_of_recurrent_and_compressed_types_are_the_readers_to_the_last_one(kind: str) -> None:
    from ridgeline.models.spec import Mamba2, Recurrence
    from ridgeline.runtime.capture import TOKENS
    from ridgeline.runtime.capture.graph import LayerGraph
    from ridgeline.runtime.capture.transformers_models import config_of as to_config
    from ridgeline.runtime.capture.transformers_models import forward_of

    data = config_of(kind)
    config = to_config(data)
    try:
        ran = forward_of(config, TOKENS, told=True)
    except InputError:
        ran = forward_of(config, TOKENS, told=False)
    shapes = {name: tuple(weight.shape) for name, weight in ran.module.named_parameters()}
    graph = LayerGraph(ran.recording, range(len(ran.recording.nodes)), shapes)
    flops = sum(one.flops for one in graph.products if one.weight and not one.depthwise) / TOKENS
    spec = from_config(data)
    parts = forward_flops_per_token(spec, TOKENS)
    scans = 0.0
    for block, layers in spec.counts():
        for mixer in block.mixers:
            if isinstance(mixer, Recurrence):
                scans += layers * recurrent_parts(mixer, spec.hidden).scan_flops
            elif isinstance(mixer, Mamba2):
                mixed = mixer.inner + 2 * mixer.groups * mixer.state
                scans += layers * (5.0 * mixer.inner * mixer.state + 2 * mixer.conv * mixed)
    assert flops == pytest.approx(parts.total - parts.scores - scans, rel=1e-6)
