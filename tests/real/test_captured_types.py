"""Captured architectures against their readers: parameters equal, flops within 1 %, predicted step within 3 %.

    python -m pytest -m slow tests/real/test_captured_types.py

The default config of every type that has a reader, with the keys of `docs/architectures.toml`, is built by transformers
on the meta device, one forward of it is recorded, and what comes of that is held against what the reader makes of the
same config. Those of `OUTSIDE` are out of the bounds for a reason. Every raw product is summed up as well: what was
recorded must be the reader's flops before any part is recognised.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from ridgeline import predict, scenario
from ridgeline.core.errors import InputError
from ridgeline.models.facts import forward_flops_per_token
from ridgeline.models.hf import READERS, from_config
from ridgeline.models.mixer_parts import mixer_parts
from ridgeline.models.params import count
from ridgeline.plan.scenario import Scenario
from ridgeline.sim.prediction import Prediction
from tools.docs import architectures

pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
TWO_STACKS = "its reader has an encoder with cross attention; transformers' causal class is the decoder alone"
OUTSIDE = {
    **dict.fromkeys(
        ("bart", "blenderbot", "m2m_100", "marian", "mbart", "mt5", "pegasus", "plbart", "t5", "umt5", "whisper"),
        TWO_STACKS,
    ),
    "deepseek_v32": "scores of the indexer's choice are recorded dense",
    "glm_moe_dsa": "scores of the indexer's choice are recorded dense",
    "glm4v_text": "no causal class of its own, and a default that its rotary sections do not fit",
    "gpt_neo": "a mask tells its windows",
    "hunyuan_v1_moe": "its default has one expert, which is no mixture: step 8 % under the reader's",
    "megatron-bert": "attention that runs unfused is taken to be causal",
    **dict.fromkeys(
        ("qwen2_5_vl_text", "qwen2_vl_text", "qwen3_vl_moe_text", "qwen3_vl_text"),
        "the decoder alone has no causal class: built without its output matrix",
    ),
    **dict.fromkeys(("qwen2_5_omni", "qwen3_omni_moe"), "its talker and vocoder count as active"),
    **dict.fromkeys(("ernie4_5_moe", "laguna"), "a correction of the router's scores is counted as active"),
    **dict.fromkeys(("gemma4", "gemma4_text"), "streams of rows beside each layer: step 6 % under the reader's"),
    "gemma3n_text": "streams side by side and rows of each layer: flops 3.5 % under the reader's",
    "deepseek_v4": "keys that are compressed and picked are recorded in part: flops 31 % under the reader's",
    "longcat_flash": "experts that do nothing have matrices in transformers",
    "mpnet": "the dense layer of its head is not recorded: flops 20 % under the reader's",
    "voxtral": "its audio encoder is counted, not apart: step 3.4 % over the reader's",
    "xlstm": "its recurrence is priced op by op: step 46 % over the reader's",
    "zamba2": "its shared layers are priced op by op: step 7 % under the reader's",
    "rwkv": "streams around its channel mix are fused: step 3.6 % under the reader's",
}
SEQ = 4096
PAIRED = ("scores", "state")  # of a reader's flops, what is no product with a weight


@cache
def page() -> Any:
    """The program of the page, which knows the keys that default configs lack."""
    return architectures


def config_of(kind: str) -> dict[str, Any]:
    """A type's default config as transformers saves it."""
    return dict(page().config_of(kind))


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


TYPES = sorted({*READERS} & {*transformers.models.auto.configuration_auto.CONFIG_MAPPING} - {*OUTSIDE})


@pytest.mark.parametrize("kind", TYPES)
def test_a_captured_type_is_what_its_reader_reads(kind: str) -> None:
    from ridgeline.runtime.capture import capture_config

    data = config_of(kind)
    try:
        read = from_config(data)
    except InputError as wrong:
        pytest.skip(f"no reader of the default: {wrong}")
    captured = capture_config(data)
    ours, theirs = count(captured), count(read)
    text = ours.vision == 0 or theirs.vision == 0  # a class of transformers that builds the language model alone
    assert ours.total - ours.vision * text == theirs.total - theirs.vision * text
    assert ours.active - ours.vision * text == theirs.active - theirs.vision * text
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
    ran_once = forward_of(to_config(data), TOKENS, told=True)
    shapes = {name: tuple(weight.shape) for name, weight in ran_once.module.named_parameters()}
    graph = LayerGraph(ran_once.recording, range(len(ran_once.recording.nodes)), shapes)
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
            recurrent = mixer_parts(mixer, spec.hidden).recurrent
            scans += layers * recurrent.flops if recurrent and isinstance(mixer, Mamba2 | Recurrence) else 0
    assert flops == pytest.approx(parts.total - parts.scores - scans, rel=1e-6)
