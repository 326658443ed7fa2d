"""Turn a YAML of NeMo 1 (megatron_gpt_config, or of its launcher) into Megatron's words, and those into settings.

What the file leaves out has NeMo's default. A file for fine-tuning names a checkpoint in place of dimensions: the model
is that of the checkpoint's name, or the caller's.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from math import prod
from typing import Any

from ridgeline.core.errors import InputError, Problem
from ridgeline.targets.megatron.collect import Given
from ridgeline.targets.megatron.read import settings_of
from ridgeline.targets.model_names import named_by
from ridgeline.targets.nemo_words import filled, model_words, tokenizer_words
from ridgeline.targets.option_reader import chips_named, flatten, holds, model_in, only
from ridgeline.targets.run_files import around
from ridgeline.targets.target import Files, Imported

ID = "nemo"
# keys of `model` -> options of Megatron's command line that take the same value
NAMES = {
    "tensor_model_parallel_size": "tensor-model-parallel-size",
    "pipeline_model_parallel_size": "pipeline-model-parallel-size",
    "virtual_pipeline_model_parallel_size": "num-virtual-stages-per-pipeline-rank",
    "context_parallel_size": "context-parallel-size",
    "expert_model_parallel_size": "expert-model-parallel-size",
    "micro_batch_size": "micro-batch-size",
    "global_batch_size": "global-batch-size",
    "encoder_seq_length": "seq-length",
    "rampup_batch_size": "rampup-batch-size",
    "activations_checkpoint_granularity": "recompute-granularity",
    "activations_checkpoint_method": "recompute-method",
    "activations_checkpoint_num_layers": "recompute-num-layers",
    "sequence_parallel": "sequence-parallel",
    "ub_tp_comm_overlap": "tp-comm-overlap",
    "optim.overlap_grad_sync": "overlap-grad-reduce",
    "optim.overlap_param_sync": "overlap-param-gather",
    "moe_grouped_gemm": "moe-grouped-gemm",
    "moe_token_dispatcher_type": "moe-token-dispatcher-type",
    "use_tp_pp_dp_mapping": "use-tp-pp-dp-mapping",
}
SHARDED = ("distributed_fused_adam", "mcore_distributed_optim")
OPTIMIZERS = {"sgd": "sgd"}
FSDP = {"full": "optim_grads_params", "hybrid": "optim_grads_params", "grad": "optim_grads"}
OTHERS = {
    "encoder": "an encoder and a decoder",
    "bert_binary_head": "an encoder",
    "vision": "a vision model",
    "vision_pretraining_type": "a vision model",
    "mm_cfg": "a model that sees images",
    "unet": "a diffusion model",
    "unet_config": "a diffusion model",
    "retro": "retrieval beside a decoder",
    "reward_model_type": "a reward model",
    "dpo": "preference pairs (DPO)",
    "ppo": "reinforcement learning",
}
# words of a run's name that say what it does beside training
NAMED = {
    r"conver(t|sion)": "conversion of checkpoints",
    r"(^|[_/])eval(uation)?([_/]|$)|human_eval_results": "an evaluation",
    r"(^|_)rm(_|$)|reward": "a reward model",
    r"(^|_)m?t5(_|$)": "an encoder and a decoder",
    r"(^|_)distill": "distillation from a teacher",
}
# models whose layers no key of the file spells, by the words that name them
UNSPELLED = ("griffin", "recurrentgemma", "hyena", "mamba", "gemma2", "gemma-2-")
LORA = {"attention_qkv": "qkv", "attention_dense": "out", "mlp_fc1": "up", "mlp_fc2": "down"}
ALL = {"attention": ("qkv", "out"), "mlp": ("up", "gate", "down"), "all": ("qkv", "out", "up", "gate", "down")}


def recognises(files: Files) -> bool:
    """A YAML file of a trainer and a model with a tensor degree and a microbatch."""
    return holds(files, _is_ours, ".yaml", ".yml")


def _is_ours(data: Mapping[str, Any]) -> bool:
    model = data.get("model")
    return (
        isinstance(model, Mapping)
        and isinstance(data.get("trainer"), Mapping)
        and "micro_batch_size" in model
        and "tensor_model_parallel_size" in model
    )


def read(files: Files) -> Imported:
    """What the trainer's YAML says."""
    table = only(files, _is_ours, "one YAML file with a trainer and a model", ".yaml", ".yml")
    said = filled({key.removeprefix("training."): value for key, value in flatten(table.data)})
    said = filled(_plain(said))
    model = {key: said.get(f"model.{key}", value) for key, value in table.data["model"].items()}
    _refuse_other_work(model, said, table.source)
    options = dict(_options(model, said))
    named = around(files).model or model_in(files) or _checkpoint(model, said)
    if named is not None:
        options["model"] = named
    else:
        _refuse_unknown(model, said, table.source)
    options |= {key: value for key, value in said.items() if key.startswith("model.") and _is_left(key, value)}
    world = _world(said, table.source)
    folder = around(files).folder
    path = f"{folder.name if folder else ''}/{table.source}"
    given = Given(options=options, source=table.source, world=world, path=path)
    found = settings_of(given, ID, ID)
    return _tuned(found, model)


def _plain(said: Mapping[str, Any]) -> dict[str, Any]:
    """References of the launcher's files (`${training.model.x}`) as those of the run they become (`${model.x}`)."""
    return {key: value.replace("${training.", "${") if isinstance(value, str) else value for key, value in said.items()}


def _refuse_other_work(model: Mapping[str, Any], said: Mapping[str, Any], source: str) -> None:
    """An `InputError` for files that do not train a decoder: by the keys of their model, or by the run's name."""
    found = [means for key, means in OTHERS.items() if model.get(key) not in (None, False)]
    names = [str(said.get(key) or "").lower()[:200] for key in ("run.name", "name", "run.model_train_name")]
    found += [means for sign, means in NAMED.items() if any(re.search(sign, name) for name in names)]
    if found:
        raise InputError(Problem(path="", given=found[0], expected="training of a decoder", where=source))


def _refuse_unknown(model: Mapping[str, Any], said: Mapping[str, Any], source: str) -> None:
    """An `InputError` where the model is not spelled: neither dimensions nor a checkpoint of a known name."""
    words = f"{said.get('run.name')} {said.get('model.tokenizer.type')} {said.get('name')} {source}".lower()
    own = next((word for word in UNSPELLED if word in words), None)
    if model.get("num_layers") is not None and own is None:
        return
    trained = str(said.get("run.model_train_name") or model.get("restore_from_path") or "nothing")[:80]
    given = f"layers of {own}, which no key spells" if own else f"no dimensions, and {trained} as its checkpoint"
    expected, todo = "dimensions, or the name of a known model", "name the model with --model"
    raise InputError(Problem(path="model", given=given, expected=expected, todo=todo, where=source))


def _checkpoint(model: Mapping[str, Any], said: Mapping[str, Any]) -> str | None:
    """The catalog's model that a checkpoint, or the run that trained it, is named after, where the file spells none."""
    if model.get("num_layers") is not None:
        return None
    paths = [model.get(key) for key in ("restore_from_path", "pretrained_checkpoint", "language_model_path")]
    for path in (*paths, said.get("run.model_train_name")):
        found = named_by(str(path or "").removesuffix(".nemo"))
        if found is not None:
            return found[0]
    return None


def _options(model: Mapping[str, Any], said: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    yield from model_words(model)
    yield from tokenizer_words(model.get("tokenizer"))
    for key, option in NAMES.items():
        value = said.get(f"model.{key}")
        if value is not None and value is not False:
            yield option, value
    lengths = (said.get(f"model.data.{key}") for key in ("seq_length", "train_ds.max_seq_length"))
    length = next((one for one in lengths if type(one) is int), None)
    if "encoder_seq_length" not in model and length is not None:
        yield "seq-length", length
    if said.get("model.overlap_p2p_comm", True) is False:
        yield "no-overlap-p2p-communication", True
    yield from _formats(said)
    yield from _sharding(said)


def _formats(said: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """bf16, fp16 or fp32 of the trainer, and products in fp8."""
    name = str(said.get("trainer.precision", said.get("model.precision", "32"))).removesuffix("-mixed")
    if name in ("bf16", "16", "fp16"):
        yield ("bf16" if name == "bf16" else "fp16"), True
    if name == "bf16":
        narrow = str(said.get("model.optim.grad_sync_dtype", "")) in ("bf16", "torch.bfloat16")
        yield ("grad-reduce-in-bf16" if narrow else "accumulate-allreduce-grads-in-fp32"), True
    if said.get("model.fp8") is True:
        yield "fp8-format", "e4m3" if said.get("model.fp8_e4m3") is True else "hybrid"
        if said.get("model.fp8_params") is True:
            yield "fp8-param-gather", True


def _sharding(said: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """The distributed optimizer is zero1; FSDP by its strategy."""
    name = str(said.get("model.optim.name", "fused_adam"))
    yield "optimizer", OPTIMIZERS.get(name, "adam")
    if said.get("model.fsdp") is True:
        yield "use-distributed-optimizer", True
        yield "use-megatron-fsdp", True
        yield "data-parallel-sharding-strategy", FSDP.get(str(said.get("model.fsdp_sharding_strategy", "full")), "")
    elif name in SHARDED:
        yield "use-distributed-optimizer", True


def _is_left(key: str, value: Any) -> bool:
    """Whether a key of the model is told of apart: what was not translated, and says something."""
    name = key.removeprefix("model.")
    known = name in NAMES or name.split(".")[0] in ("data", "tokenizer", "optim", "nsys_profile", "precision")
    return not known and value not in (None, False) and name not in WORDS


WORDS = frozenset(
    {
        "num_layers", "hidden_size", "ffn_hidden_size", "num_attention_heads", "num_query_groups", "kv_channels",
        "max_position_embeddings", "normalization", "activation", "bias", "share_embeddings_and_output_weights",
        "position_embedding_type", "num_moe_experts", "moe_router_topk", "fp8", "fp8_e4m3", "fp8_hybrid", "fsdp",
        "fsdp_sharding_strategy", "overlap_p2p_comm", "qk_layernorm", "window_size", "override_vocab_size",
        "moe_ffn_hidden_size",
    }
)  # fmt: skip


def _world(said: Mapping[str, Any], source: str) -> int | None:
    """Ranks that the trainer states, where the mesh fits on them; else those that the file is named after."""
    nodes, each = said.get("trainer.num_nodes"), said.get("trainer.devices")
    axes = ("tensor_model", "pipeline_model", "context")
    degrees = [said.get(f"model.{axis}_parallel_size", 1) for axis in axes]
    least = prod(degree for degree in degrees if type(degree) is int)
    if type(nodes) is int and type(each) is int and each > 0 and nodes * each >= max(1, least):
        return nodes * each
    named = chips_named(source)
    return named if named is not None and named >= max(1, least) else None


def _tuned(found: Imported, model: Mapping[str, Any]) -> Imported:
    """Adapters, or all weights of a trained model: what a file for fine-tuning updates."""
    peft = model.get("peft")
    workload: dict[str, Any] = dict(found.settings["workload"])
    scheme = str(peft.get("peft_scheme") or "") if isinstance(peft, Mapping) else ""
    if scheme == "lora" and isinstance(peft, Mapping):
        tuning = peft.get("lora_tuning")
        own: Mapping[str, Any] = tuning if isinstance(tuning, Mapping) else {}
        words = own.get("target_modules")
        names = [str(word) for word in words] if isinstance(words, list) else ["attention_qkv"]
        targets = [part for word in names for part in ALL.get(word, (LORA[word],) if word in LORA else ())]
        rank = own.get("adapter_dim", 32)
        rank = rank if type(rank) is int and rank > 0 else 32
        workload |= {"task": "lora", "lora": {"rank": rank, "targets": list(dict.fromkeys(targets)) or ["qkv"]}}
    elif model.get("restore_from_path") is not None:
        workload["task"] = "finetune"
    notes = found.assumptions
    if scheme not in ("", "none", "lora", "None"):
        notes = (*notes, f"peft_scheme = {scheme[:40]}: read as training of all weights")
    return replace(found, settings={**found.settings, "workload": workload}, assumptions=notes)
