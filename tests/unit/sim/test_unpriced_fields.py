"""Every field of a model, a plan and a workload has a fate in the prediction: priced, irrelevant, or an assumption."""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cache
from types import MappingProxyType
from typing import Any, Union, get_args, get_origin, get_type_hints

import pytest

from ridgeline import predict, scenario
from ridgeline.core.dtype import DType, dtype
from ridgeline.models.sizing import Clip, Sizing
from ridgeline.models.spec import (
    Attention,
    CaptureRecord,
    Embedding,
    Head,
    Indexer,
    LatentAttention,
    ModelSpec,
    Moe,
    Norm,
    Numerics,
    RotaryScaling,
    Router,
)
from ridgeline.plan.engine import ENGINES, OVERLAPS
from ridgeline.plan.optimizer import Lora
from ridgeline.plan.plan import Plan
from ridgeline.plan.scenario import Scenario
from ridgeline.plan.workload import Train
from ridgeline.sim.prediction import Prediction

_TAG = "says which type it is; what the type holds is priced"
_SIZES = "says how long a sequence and how large an image is, where a scenario is read; those are priced"
_TOKENS = "tokens of the language model's sequence: checked against seq, which says how many run"
_NUMBER = "a number that kernels compute with, whatever it is; exports write it"
IRRELEVANT: Mapping[str, str] = MappingProxyType(
    {
        **{
            f"{kind.__name__}.{part.name}": _NUMBER
            for kind in (Numerics, RotaryScaling, Router)
            for part in fields(kind)
        },
        "ModelSpec.numerics": _NUMBER,
        "ModelSpec.id": "a name",
        "ModelSpec.name": "a name",
        "ModelSpec.source": "where it was read",
        "ModelSpec.capture": "how it was read; a prediction names it and what it could not tell",
        "CaptureRecord.by": "how it was read; a prediction names it",
        "CaptureRecord.tokens": "how it was read",
        "CaptureRecord.untold": "what could not be told; a prediction names it",
        "Captured.cached": "a training step keeps no key-value cache",
        "Captured.mixes": "decides which degrees a plan may have, not what they cost",
        "Product.label": "a name",
        "Product.weights": "the gradient of either factor is a product of the same size",
        "ModelSpec.context": "how long sequences may be is the model's promise; how long they are is the workload's",
        "Attention.kind": _TAG,
        "LatentAttention.kind": _TAG,
        "Mamba2.kind": _TAG,
        "GatedDeltaNet.kind": _TAG,
        "Recurrence.kind": _TAG,
        "CompressedAttention.kind": _TAG,
        "Mlp.kind": _TAG,
        "Moe.kind": _TAG,
        "Train.kind": _TAG,
        "Encoder.per_second": "how many positions a second of sound has; how many a sequence has is the workload's",
        "Sizing.breaks": _TOKENS,
        "Sizing.marks": _TOKENS,
        "Clip.silence": _TOKENS,
        "Companion.name": "a name; a prediction names it",
        "Companion.params": "it takes no part, which a prediction says",
        "LatentSpace.pixels": _SIZES,
        "LatentSpace.frames": _SIZES,
        "Norm.kind": "bound by memory: a mean less to subtract reads and writes the same elements",
        "Precision.kv": "a training step keeps no key-value cache",
        "Plan.rl": "roles beside the actor: a training step has none",
        "Plan.serving": "knobs of a scheduler and a fleet: a training step serves no requests",
        "Plan.speculation": "a training step drafts nothing; a decode step is priced with it",
        "Speculation.draft_tokens": "a training step drafts nothing",
        "Speculation.acceptance": "a training step drafts nothing",
        "Speculation.draft": "a training step drafts nothing",
    }
)
"""Fields by class and name, with the reason why a training step takes as long and holds as much whatever they say."""
WORK = {"seq": 8192, "global_batch": 64}
BASES: Mapping[str, dict[str, Any]] = {
    "dense": {
        "model": "llama3-8b", "system": "16xh100-sxm", "workload": WORK,
        "plan": {"tp": 2, "pp": 2, "dp": 4, "shard": "zero1"},
    },
    "eager": {
        "model": "llama3-8b", "system": "16xh100-sxm", "workload": WORK,
        "plan": {"tp": 2, "dp": 8, "engine": "torch-eager"},
    },
    "classic": {
        "model": "gpt3-6.7b", "system": "8xh100-sxm", "workload": {"seq": 2048, "global_batch": 64},
        "plan": {"tp": 2, "dp": 4},
    },
    "windowed": {
        "model": "mistral-7b", "system": "8xh100-sxm", "workload": {"seq": 16384, "global_batch": 16},
        "plan": {"tp": 2, "dp": 4},
    },
    "parallel": {
        "model": "gptj-6b", "system": "8xh100-sxm", "workload": {"seq": 2048, "global_batch": 64}, "plan": {"tp": 8},
    },
    "ring": {
        "model": "llama3-8b", "system": "16xh100-sxm", "workload": {"seq": 32768, "global_batch": 16},
        "plan": {"cp": 4, "dp": 4, "shard": "zero1"},
    },
    "full": {
        "model": "llama3-8b", "system": "16xh100-sxm", "workload": WORK,
        "plan": {"tp": 2, "pp": 2, "dp": 4, "recompute": "full"},
    },
    "some": {
        "model": "llama3-8b", "system": "16xh100-sxm", "workload": WORK,
        "plan": {"tp": 2, "pp": 2, "dp": 4, "recompute": {"kind": "full", "layers": 4}},
    },
    "selective": {
        "model": "llama3-8b", "system": "16xh100-sxm", "workload": WORK,
        "plan": {"tp": 2, "pp": 2, "dp": 4, "recompute": {"kind": "selective", "parts": ["norm"]}},
    },
    "offload": {
        "model": "llama3-8b", "system": "16xh100-sxm", "workload": WORK,
        "plan": {"tp": 2, "dp": 8, "shard": "zero1", "offload": {"activations": 0.5, "optimizer": 0.5}},
    },
    "zero3": {
        "model": "llama3-8b", "system": "16xh100-sxm", "workload": WORK, "plan": {"dp": 16, "shard": "zero3"},
    },
    "interleaved": {
        "model": "llama3-8b", "system": "16xh100-sxm", "workload": WORK,
        "plan": {"tp": 2, "pp": 4, "dp": 2, "schedule": {"name": "interleaved", "chunks": 2}},
    },
    "fp8": {
        "model": "llama3-8b", "system": "16xh100-sxm", "workload": WORK, "plan": {"tp": 2, "dp": 8, "precision": "fp8"},
    },
    "moe": {
        "model": "deepseek-v3", "system": "256xh100-sxm", "workload": {"seq": 4096, "global_batch": 1024},
        "plan": {"tp": 2, "pp": 8, "ep": 16, "dp": 16, "shard": "zero1", "moe_dispatch": "deepep"},
    },
    "experts": {
        "model": "qwen3-next-80b-a3b", "system": "64xh100-sxm", "workload": {"seq": 4096, "global_batch": 256},
        "plan": {"tp": 2, "ep": 16, "dp": 32, "shard": "zero1"},
    },
    "sparse": {
        "model": "deepseek-v3.2", "system": "256xh100-sxm", "workload": {"seq": 32768, "global_batch": 256},
        "plan": {"pp": 8, "ep": 32, "dp": 32, "shard": "zero1"},
    },
    "mamba": {
        "model": "nemotron-h-8b", "system": "8xh100-sxm", "workload": {"seq": 4096, "global_batch": 64},
        "plan": {"tp": 2, "dp": 4},
    },
    "scan": {
        "model": {"model_type": "mamba", "hidden_size": 2048, "num_hidden_layers": 8},
        "system": "8xh100-sxm", "workload": {"seq": 4096, "global_batch": 64}, "plan": {"tp": 2, "dp": 4},
    },
    "lightning": {
        "model": {"model_type": "minimax", "num_hidden_layers": 4}, "system": "8xh100-sxm",
        "workload": {"seq": 4096, "global_batch": 64}, "plan": {"tp": 2, "dp": 4},
    },
    "compressed": {
        "model": {"model_type": "deepseek_v4", "num_hidden_layers": 4}, "system": "16xh100-sxm",
        "workload": {"seq": 8192, "global_batch": 64}, "plan": {"tp": 2, "ep": 8, "dp": 8, "shard": "zero1"},
    },
    "vision": {
        "model": "llava-1.5-7b", "system": "8xh100-sxm", "workload": {"seq": 4096, "global_batch": 64, "images": 2},
        "plan": {"tp": 2, "dp": 4},
    },
    "omni": {
        "model": {"model_type": "qwen2_5_omni", "thinker_config": {"vision_config": {"hidden_size": 1280}}},
        "system": "8xh100-sxm", "plan": {"tp": 2, "dp": 4, "shard": "zero1"},
        "workload": {
            "seq": 16384, "global_batch": 64, "images": 1, "videos": 1, "frames": 9, "height": 700, "width": 900,
            "audio_s": 23.77,
        },
    },
    "tiled": {
        "model": "llava-1.5-7b", "system": "8xh100-sxm", "plan": {"tp": 2, "dp": 4},
        "workload": {"seq": 4096, "global_batch": 64, "images": 1, "height": 700, "width": 900},
    },
    "lora": {
        "model": "llama3-8b", "system": "8xh100-sxm", "workload": {**WORK, "task": "lora", "lora": {"rank": 16}},
        "plan": {"tp": 2, "dp": 4},
    },
    "bert": {
        "model": {"model_type": "bert"}, "system": "8xh100-sxm", "workload": {"seq": 512, "global_batch": 64},
        "plan": {"tp": 2, "dp": 4, "microbatch": 8},
    },
    "t5": {
        "model": {"model_type": "t5", "num_layers": 12, "num_heads": 12, "d_model": 768, "d_ff": 3072},
        "system": "8xh100-sxm", "workload": {"seq": 512, "global_batch": 64, "encoder_seq": 1024},
        "plan": {"tp": 2, "dp": 4, "microbatch": 8},
    },
    "flux": {
        "model": {"_class_name": "FluxTransformer2DModel", "num_layers": 4, "num_single_layers": 4},
        "system": "8xh100-sxm", "workload": {"height": 512, "global_batch": 64}, "plan": {"tp": 2, "dp": 4},
    },
    "wan": {
        "model": {"_class_name": "WanTransformer3DModel", "num_layers": 4, "num_attention_heads": 16},
        "system": "8xh100-sxm", "workload": {"height": 256, "frames": 17, "global_batch": 64},
        "plan": {"tp": 2, "dp": 4},
    },
    "whisper": {
        "model": {"model_type": "whisper"}, "system": "8xh100-sxm", "workload": {"seq": 448, "global_batch": 64},
        "plan": {"tp": 2, "dp": 4, "microbatch": 8},
    },
    "grouped": {
        "model": "deepseek-v2", "system": "64xh100-sxm", "workload": {"seq": 4096, "global_batch": 256},
        "plan": {"pp": 4, "ep": 16, "dp": 16, "shard": "zero1", "moe_dispatch": "deepep"},
    },
    "captured": {
        "model": {
            "hidden": 4096, "layers": 16, "vocab": 32000, "mlp": {"hidden": 11008},
            "captured": {
                "products": [{"label": "mix", "inputs": 4096, "outputs": 4096}], "streams": 4096, "kernels": 2,
                "scores": [{"heads": 32, "kv_heads": 32, "head_dim": 128}], "params": 16777216,
            },
        },
        "system": "8xh100-sxm", "workload": {"seq": 2048, "global_batch": 64}, "plan": {"dp": 8},
    },
}  # fmt: skip
BLOCK = "model.blocks.0"
MIXER, FFN = f"{BLOCK}.mixer", f"{BLOCK}.ffn"


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """Another value of a field: in which scenario, and where."""

    base: str
    path: str
    value: Any


def _probes() -> Iterator[tuple[str, Probe]]:
    """A change of every field that can have another value, by class and name."""

    def of(owner: str, base: str, path: str, **values: Any) -> Iterator[tuple[str, Probe]]:
        for name, value in values.items():
            yield f"{owner}.{name}", Probe(base=base, path=f"{path}.{name}".lstrip("."), value=value)

    yield from of("ModelSpec", "dense", "model", id="x", name="x", source="x", context=7, hidden=2048, vocab=64000)
    yield from of("ModelSpec", "dense", "model", order=(0,) * 16, norm=None, embedding=Embedding(positions=8192))
    yield from of("ModelSpec", "dense", "model", blocks=_other_blocks)
    yield from of("ModelSpec", "moe", "model", mtp=None)
    yield from of("ModelSpec", "vision", "model", vision=None)
    yield from of("Block", "dense", BLOCK, mixer=None, ffn=None, norms=4, extra=4096, norm=Norm(bias=True))
    yield from of("Block", "captured", BLOCK, captured=None)
    part, product = f"{BLOCK}.captured", f"{BLOCK}.captured.products.0"
    yield from of("Captured", "captured", part, products=(), scores=(), pair_flops=4e3, scan_flops=1e8, streams=1e5)
    yield from of("Captured", "captured", part, kernels=50.0, params=10**7, saved=9e3, cached=64, mixes=True)
    yield from of("Product", "captured", product, label="x", inputs=512, outputs=512, rows=4.0, groups=2, weights=False)
    yield from of("ModelSpec", "captured", "model", capture=CaptureRecord(by="x", untold=("x",)))
    yield from of("Block", "parallel", BLOCK, parallel=False)
    yield from of("Norm", "dense", f"{BLOCK}.norm", kind="layer", bias=True, weight=False)
    yield from of("Attention", "dense", MIXER, heads=16, kv_heads=4, head_dim=64, v_head_dim=64, positions="none")
    yield from of("Attention", "dense", MIXER, qkv_bias=True, out_bias=True, qk_norm="head", gate=True, sinks=True)
    yield from of("Attention", "dense", MIXER, keys_as_values=True, softcap=True, kv_shared=True)
    yield from of("Block", "dense", BLOCK, beside=Attention(heads=16, kv_heads=4, head_dim=64))
    yield from of("Attention", "windowed", MIXER, window=1024, chunked=True)
    yield from of("LatentAttention", "sparse", MIXER, heads=64, q_rank=768, kv_rank=256, nope_dim=64, rope_dim=32)
    yield from of("LatentAttention", "sparse", MIXER, v_dim=64, bias=True, indexer=None)
    yield from of("Indexer", "sparse", f"{MIXER}.indexer", heads=32, head_dim=64, topk=1024, shared=True)
    yield from of("Mamba2", "mamba", MIXER, heads=64, head_dim=32, state=64, groups=4, conv=2, conv_bias=False)
    yield from of("Mamba2", "mamba", MIXER, proj_bias=True, chunk=256, gated_norm=False)
    yield from of("Recurrence", "scan", MIXER, form="lightning", heads=2048, key_dim=32, value_dim=2, rank=64, conv=2)
    yield from of("Recurrence", "scan", MIXER, conv_bias=False, bias=True, inner_norms=True)
    yield from of("Recurrence", "lightning", "model.blocks.1.mixer", chunk=64)
    far = "model.blocks.1.mixer"
    yield from of("CompressedAttention", "compressed", far, heads=32, head_dim=256, q_rank=512, rate=8)
    yield from of("CompressedAttention", "compressed", MIXER, window=1024)
    yield from of("CompressedAttention", "compressed", far, overlap=False, indexer=None, o_groups=4, o_rank=512)
    yield from of("GatedDeltaNet", "experts", MIXER, key_heads=8, value_heads=16, key_dim=64, value_dim=64, conv=2)
    yield from of("Mlp", "dense", FFN, hidden=8192, gated=False, activation="relu2", bias=True)
    moe = "model.blocks.1.ffn"
    yield from of("Moe", "moe", moe, experts=128, topk=4, hidden=1024, shared_hidden=0, gated=False)
    yield from of("Moe", "moe", moe, activation="relu2", bias=True, router_bias=True, latent=1024, idle=64)
    yield from of("Moe", "grouped", moe, groups=1, group_topk=8)
    yield from of("Moe", "experts", FFN, shared_gate=False)
    yield from of("Embedding", "dense", "model.embedding", positions=8192, width=512, head_bias=True)
    yield from of("Embedding", "dense", "model.embedding", norm=Norm(), softcap=True, further_rows=10**8)
    yield from of("Embedding", "dense", "model.embedding", further_weights=10**8)
    yield from of("Embedding", "eager", "model.embedding", tied=True)
    yield from of("Mtp", "moe", "model.mtp", depth=2, block=_first_block)
    yield from of("Vision", "vision", "model.vision", hidden=512, layers=12, patch=28, image=224, tokens=144)
    yield "Vision.windowed", Probe(base="vision", path="model.vision", value=_windowed)
    yield from of("Vision", "vision", "model.vision", projector_params=10**6, other_params=10**6, block=_vision_block)
    yield from _side_probes(of)
    yield from _media_probes(of)
    yield from _plan_probes(of)
    yield from of("Train", "dense", "workload", seq=4096, global_batch=128, task="lora", packed=False, document=1024)
    yield from of("Train", "dense", "workload", images=1.0, optimizer=replace(Train(**WORK).optimizer, name="lion"))
    yield "Train.tokens_per_batch", Probe(base="dense", path="workload", value=_in_tokens)
    yield from of("Train", "lora", "workload", lora=Lora(rank=64))
    yield from of("Optimizer", "dense", "workload.optimizer", name="muon", states=dtype("bf16"), master=None)
    yield from of("Lora", "lora", "workload.lora", rank=64, targets=("qkv", "out", "down"))


def _side_probes(of: Callable[..., Iterator[tuple[str, Probe]]]) -> Iterator[tuple[str, Probe]]:
    """Heads, encoders and what reads them."""
    yield from of("ModelSpec", "dense", "model", head=Head(kind="none"))
    yield "ModelSpec.encoder", Probe(base="whisper", path="model", value=_without_encoder)
    yield from of("Attention", "bert", MIXER, causal=True, key_bias=False)
    yield "Block.cross", Probe(base="t5", path=f"{BLOCK}.cross", value=_narrow_cross)
    yield from of("Head", "bert", "model.head", kind="none", dense=0, extra=10**7)
    yield "Head.outputs", Probe(base="bert", path="model.head", value=Head(kind="tokens", outputs=1000))
    yield from of("Encoder", "t5", "model.encoder", hidden=512, layers=6, block=_wide_encoder_block)
    yield from of("Encoder", "t5", "model.encoder", other_params=10**7, front=10**6)
    yield from of("Encoder", "whisper", "model.encoder", reads="tokens", context=3000, per_second=25)
    yield from of("Train", "t5", "workload", encoder_seq=2048)
    yield from of("Train", "omni", "workload", audio_s=10.0)
    yield from of("Train", "vision", "workload", towers="frozen")
    yield from of("ModelSpec", "flux", "model", latent_space=_other_space)
    yield from of("Block", "flux", BLOCK, streams=1, modulation=3, modulation_width=512)
    space = "model.latent_space"
    yield from of("LatentSpace", "flux", space, inputs=256, per_text=10**8, per_step=10**9, other_params=10**8)
    yield from of("LatentSpace", "wan", space, text=1024, joint=True, pixels=8, frames=8)


def _media_probes(of: Callable[..., Iterator[tuple[str, Probe]]]) -> Iterator[tuple[str, Probe]]:
    """Encoders of images and sound, and what they read."""
    work, sees, hears = "workload", "model.vision", "model.audio"
    yield from of("Train", "omni", work, height=512, width=512, frames=33, videos=2.0)
    yield "Train.image_tokens", Probe(base="omni", path=work, value=_by_tokens)
    yield from of("Vision", "omni", sees, inputs=588, sizing=Sizing(rule="area", merge=2, most=10**5), video=None)
    yield from of("Sizing", "omni", f"{sees}.sizing", rule="square", merge=4, least=10**6, most=10**5)
    yield from of("Sizing", "omni", f"{sees}.video", frames=4, whole=True)
    yield "Sizing.grids", Probe(base="tiled", path=f"{sees}.sizing", value=Sizing(rule="anyres", grids=((672, 672),)))
    yield from of("Sizing", "tiled", f"{sees}.sizing", breaks=True, marks=3)
    yield from of("ModelSpec", "omni", "model", companions=())
    yield "ModelSpec.audio", Probe(base="omni", path="", value=_deaf)
    yield from of("Companion", "omni", "model.companions.0", name="x", params=7)
    yield from of("Audio", "omni", hears, hidden=640, layers=4, block=_audio_block, front=10**6)
    yield from of("Audio", "omni", hears, projector_params=10**6, other_params=10**8, clip=Clip(padded=30))
    yield from of("Clip", "omni", f"{hears}.clip", rate=50, chunk=51, halvings=2, window=700, padded=30, pool=4)
    yield from of("Clip", "omni", f"{hears}.clip", silence=True)


def _deaf(spec: Scenario) -> Any:
    return replace(spec, model=replace(spec.model, audio=None), workload=replace(spec.workload, audio_s=None))


def _by_tokens(spec: Scenario) -> Any:
    return replace(spec.workload, image_tokens=99, height=None, width=None)


def _audio_block(spec: Scenario) -> Any:
    assert spec.model.audio is not None
    return replace(spec.model.audio.block, norms=4)


def _other_space(spec: Scenario) -> Any:
    space = spec.model.latent_space
    assert space is not None
    return replace(space, inputs=4 * space.inputs)


def _without_encoder(spec: Scenario) -> Any:
    blocks = tuple(replace(block, cross=None) for block in spec.model.blocks)
    return replace(spec.model, encoder=None, blocks=blocks)


def _narrow_cross(spec: Scenario) -> Any:
    cross = spec.model.blocks[0].cross
    assert cross is not None
    return replace(cross, heads=6, kv_heads=6)


def _wide_encoder_block(spec: Scenario) -> Any:
    encoder = spec.model.encoder
    assert encoder is not None
    return replace(encoder.block, norms=4)


def _plan_probes(of: Callable[..., Iterator[tuple[str, Probe]]]) -> Iterator[tuple[str, Probe]]:
    yield from of("Plan", "dense", "plan", mesh=_more_tensor_ranks, microbatch=2, placement=(17, 15))
    yield "Plan.engine", Probe(base="dense", path="", value=_other_engine)
    for name in ("schedule", "sharding", "recompute", "offload", "precision", "switches"):
        values = getattr(_base("selective" if name == "recompute" else "interleaved").plan, name)
        others = {"offload": _base("offload"), "precision": _base("fp8"), "sharding": _base("dense")}
        made = getattr(others[name].plan, name) if name in others else values
        base = "dense" if name != "sharding" else "zero3"
        if name == "switches":
            made = replace(_base("dense").plan.switches, attention="unfused")
        if name == "schedule":
            base, made = "interleaved", replace(values, name="gpipe", chunks=1)
        yield f"Plan.{name}", Probe(base=base, path=f"plan.{name}", value=made)
    for axis, value in (("pp", 1), ("dp", 8), ("cp", 2), ("tp", 4)):
        yield f"Mesh.{axis}", Probe(base="dense", path="plan.mesh", value=_mesh(axis, value))
    yield from of("Mesh", "moe", "plan.mesh", ep=32, etp=2)
    yield from of("Mesh", "dense", "plan.mesh", order="tp-cp-ep-pp-dp")
    yield "Schedule.name", Probe(base="dense", path="plan.schedule.name", value="gpipe")
    yield "Schedule.chunks", Probe(base="interleaved", path="plan.schedule.chunks", value=4)
    yield from of("Sharding", "zero3", "plan.sharding", shard="zero1", shard_degree=8)
    yield from of("Recompute", "full", "plan.recompute", kind="none", layers=4, blocks={"0": "none"})
    yield "Recompute.parts", Probe(base="selective", path="plan.recompute.parts", value=("attention",))
    yield "Recompute.rest", Probe(base="some", path="plan.recompute.rest", value="selective")
    yield from of("Offload", "offload", "plan.offload", activations=0.9, optimizer=0.9)
    yield from of("Precision", "dense", "plan.precision", compute=dtype("fp8"), weights=dtype("fp32"), kv=dtype("fp8"))
    yield from of("Precision", "dense", "plan.precision", activations=dtype("fp32"), gradients=dtype("bf16"))
    yield "Precision.scaling", Probe(base="fp8", path="plan.precision.scaling", value="row")
    yield from of("Switches", "dense", "plan.switches", sequence_parallel=False, attention="unfused", graph="full")
    yield from of("Switches", "dense", "plan.switches", launch_blocking=True, overlap={"grad-reduce": False})
    yield from of("Switches", "eager", "plan.switches", compiled=True)
    yield "Switches.cp_kind", Probe(base="ring", path="plan.switches.cp_kind", value="all-to-all")
    yield from of("Switches", "moe", "plan.switches", moe_dispatch="all-to-all", moe_imbalance=1.5)
    on = {"tp": ("dense", True), "cp": ("ring", False), "moe": ("moe", True), "offload": ("offload", False)}
    on |= {"pp": ("interleaved", False), "grad-reduce": ("dense", False), "param-gather": ("dense", False)}
    for word, (base, value) in on.items():
        yield f"overlap.{word}", Probe(base=base, path="plan.switches.overlap", value={word: value})


def _other_blocks(spec: Scenario) -> Any:
    block = spec.model.blocks[0]
    return (replace(block, norms=4),)


def _first_block(spec: Scenario) -> Any:
    return spec.model.blocks[0]


def _vision_block(spec: Scenario) -> Any:
    vision = spec.model.vision
    assert vision is not None
    return replace(vision.block, norms=4)


def _windowed(spec: Scenario) -> Any:
    """Half of the layers inside a window, which says nothing where no layer stays inside it."""
    vision = spec.model.vision
    assert vision is not None
    assert isinstance(vision.block.mixer, Attention)
    inside = replace(vision.block, mixer=replace(vision.block.mixer, window=64))
    return replace(vision, block=inside, windowed=vision.layers // 2)


def _other_engine(spec: Scenario) -> Any:
    return spec.with_engine(ENGINES["nemo"])


def _in_tokens(spec: Scenario) -> Any:
    return Train(seq=8192, tokens_per_batch=128 * 8192)


def _more_tensor_ranks(spec: Scenario) -> Any:
    return replace(spec.plan.mesh, tp=4, dp=2)


def _mesh(axis: str, value: int) -> Callable[[Scenario], Any]:
    """Another degree; data-parallel ranks take what is left, or tensor ranks where they are the ones changed."""

    def made(spec: Scenario) -> Any:
        mesh = replace(spec.plan.mesh, **{axis: value})
        other = "tp" if axis == "dp" else "dp"
        left = spec.system.chips // (mesh.ranks // getattr(mesh, other))
        return replace(mesh, **{other: left})

    return made


@cache
def _base(name: str) -> Scenario:
    return scenario(BASES[name])


@cache
def _predicted(name: str) -> Prediction:
    made = predict(_base(name))
    assert isinstance(made, Prediction), f"{name}: {made}"
    return made


def changed(value: Any, path: list[str], new: Any) -> Any:
    """The same frozen value with another one at a path; a number picks an entry of a tuple."""
    if not path:
        return new
    first, rest = path[0], path[1:]
    if isinstance(value, tuple):
        index = int(first)
        return (*value[:index], changed(value[index], rest, new), *value[index + 1 :])
    return replace(value, **{first: changed(getattr(value, first), rest, new)})


def outcome(made: Prediction) -> tuple[float, ...]:
    """Time, memory of every stage, and what is on the host."""
    memory = made.memory
    return (made.step_time_s, memory.host_bytes, *(stage.peak_bytes for stage in memory.stages))


PROBES = dict(_probes())


def nested(kind: Any) -> Iterator[type]:
    """Dataclasses that a type mentions, itself and those inside its fields included; formats are values, not tables."""
    if get_origin(kind) in (Union, types.UnionType, tuple) or get_args(kind):
        for part in get_args(kind):
            yield from nested(part)
    elif isinstance(kind, type) and is_dataclass(kind) and not issubclass(kind, DType):
        yield kind
        for hint in get_type_hints(kind).values():
            yield from nested(hint)


SERVING = {kind.__name__ for kind in nested(get_type_hints(Plan)["serving"])}  # what only requests ask about
POST_TRAINING = {"RlPlan", "RolloutPlan", "RolePlan", "WeightSync"}  # what only roles ask about
OWNERS = {
    kind.__name__: kind
    for root in (ModelSpec, Plan, Train)
    for kind in nested(root)
    if kind.__name__ not in SERVING | POST_TRAINING
}
FIELDS = sorted(f"{name}.{field.name}" for name, kind in OWNERS.items() for field in fields(kind))


def test_every_part_of_a_model_a_plan_and_a_workload_is_walked() -> None:
    assert {"Attention", "LatentAttention", "Indexer", "Mamba2", "GatedDeltaNet", "Mlp", "Moe", "Norm"} <= set(OWNERS)
    assert {"Mesh", "Schedule", "Sharding", "Recompute", "Offload", "Precision", "Switches"} <= set(OWNERS)
    assert {"Optimizer", "Lora", "Vision", "Audio", "Sizing", "Clip", "Mtp", "Embedding", "Block"} <= set(OWNERS)


@pytest.mark.parametrize("name", [*FIELDS, *(f"overlap.{word}" for word in OVERLAPS)])
def test_every_field_has_a_fate(name: str) -> None:
    probe = PROBES.get(name)
    if probe is None:
        assert name in IRRELEVANT, f"{name} is new: price it, or give it a reason in IRRELEVANT, and a probe here"
        return
    spec, before = _base(probe.base), _predicted(probe.base)
    value = probe.value(spec) if callable(probe.value) else probe.value
    after = predict(changed(spec, probe.path.split(".") if probe.path else [], value))
    assert isinstance(after, Prediction), f"the probe of {name} is impossible: {after}"
    if name in IRRELEVANT:
        assert outcome(after) == pytest.approx(outcome(before), rel=1e-12), (
            f"{name} is called irrelevant and changes the prediction"
        )
    elif outcome(after) == outcome(before):
        said = set(after.assumptions) ^ set(before.assumptions)
        word = name.split(".")[1]
        assert any(word in line for line in said), f"{name} changes nothing, and nothing is said of it"


def test_nothing_is_called_irrelevant_that_does_not_exist() -> None:
    assert set(IRRELEVANT) <= set(FIELDS)
    assert all(len(reason) > 5 for reason in IRRELEVANT.values())


def test_a_new_field_without_a_fate_is_found() -> None:
    @dataclass(frozen=True, slots=True, kw_only=True)
    class Longer(Moe):
        jitter: float = 0.0

    names = {f"Moe.{field.name}" for field in fields(Longer)}
    assert [name for name in names if name not in PROBES and name not in IRRELEVANT] == ["Moe.jitter"]


@pytest.mark.parametrize("kind", [Attention, LatentAttention, Indexer])
def test_probes_differ_from_what_is_there(kind: type) -> None:
    for name, probe in PROBES.items():
        if name.split(".")[0] != kind.__name__ or callable(probe.value):
            continue
        there: Any = _base(probe.base)
        for step in probe.path.split("."):
            there = there[int(step)] if isinstance(there, tuple) else getattr(there, step)
        assert there != probe.value, name
