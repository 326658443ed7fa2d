"""Hold what import reads against what the software itself makes of its own configurations, all of them.

    PYTHON tests/real/import_check.py bridge            every recipe of the Megatron-Bridge that PYTHON can import
    PYTHON tests/real/import_check.py torchtitan        every preset (config_registry.py) of its torchtitan
    PYTHON tests/real/import_check.py primus CHECKOUT   every experiment of a checkout of Primus, by its own parser

PYTHON has Ridgeline and the software (tests/targets.py installs both; unpacked wheels and checkouts go onto
PYTHONPATH). The software runs its own functions on a CPU, with stand-ins for what only a GPU or the network has: a
published model is one with the layers, width, experts and vocabulary of the catalog's entry of that name. Compared are
mesh, batch, length, sharding, recompute, format, task and the sizes of the model; a line for each that differs, the
tally as JSON last. The exit code is 1 where one differs.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import io
import json
import logging
import pkgutil
import sys
import types
import typing
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import stubs
from bridge_check import bridge

from ridgeline.core.errors import InputError
from ridgeline.models.load import MODELS, find_name
from ridgeline.models.load import model as load_model
from ridgeline.models.spec import ModelSpec
from ridgeline.targets.api import import_run
from ridgeline.targets.dialects.megatron.names import placement_of
from ridgeline.targets.dialects.megatron.read import PARTS
from ridgeline.targets.target import Imported

Facts = dict[str, Any]  # what a run is, by name; a fact that the software does not tell is not there
SHARDS = {"optim_grads_params": "zero3", "optim_grads": "zero2", "optim": "zero1", "no_shard": "none"}
FORMATS = (("mxfp8", "mxfp8"), ("nvfp4", "nvfp4"), ("fp8", "fp8-e4m3"))
NEW = ("b200", "b300", "vr200")  # chips of compute capability 10, as recipes are named


def experts_of(spec: ModelSpec) -> int | None:
    """The most experts of a layer; None without any."""
    return max((getattr(block.ffn, "experts", 0) for block in spec.blocks), default=0) or None


def read(found: Imported) -> Facts:
    """The facts of what was imported."""
    plan, work = found.settings["plan"], found.settings["workload"]
    recompute, schedule, precision = plan.get("recompute", "none"), plan.get("schedule"), plan["precision"]
    facts: Facts = {axis: plan.get(axis, 1) for axis in ("tp", "pp", "cp", "ep")}
    facts |= {"etp": plan.get("etp", plan.get("tp", 1)), "microbatch": plan["microbatch"], "shard": plan["shard"]}
    facts |= {"global_batch": work.get("global_batch"), "seq": work["seq"], "task": work.get("task", "pretrain")}
    facts["recompute"] = recompute if isinstance(recompute, str) else recompute["kind"]
    facts["recompute_layers"] = recompute.get("layers") if isinstance(recompute, Mapping) else None
    usual = ["attention"] if recompute == "selective" else []
    facts["parts"] = sorted(recompute.get("parts", ())) if isinstance(recompute, Mapping) else usual
    facts["chunks"] = schedule.get("chunks", 1) if isinstance(schedule, Mapping) else 1
    facts["dp"] = plan.get("dp")
    facts["compute"] = precision.get("compute", precision.get("name"))
    facts["optimizer"] = (work.get("optimizer") or {}).get("name", "adamw")
    if "model" in found.settings:
        spec = load_model(found.settings["model"])
        facts |= {"layers": spec.layers, "hidden": spec.hidden, "experts": experts_of(spec)}
        facts["id"] = spec.id.partition(" with ")[0]
        held = plan.get("placement")
        stages = facts["pp"] * facts["chunks"]
        facts["placement"] = held or [spec.layers // stages + (stage < spec.layers % stages) for stage in range(stages)]
    return facts


# Megatron-Bridge


def published(name: str, provider: type[Any]) -> Any:
    """A provider of the size of the catalog's model of that name."""
    known = find_name(name)
    spec = MODELS[known[0]] if known else None
    sizes: dict[str, Any] = {"num_layers": 8, "hidden_size": 1024, "vocab_size": 128_000}
    if spec is not None:
        sizes = {"num_layers": spec.layers, "hidden_size": spec.hidden, "vocab_size": spec.vocab}
        sizes |= {"num_moe_experts": experts_of(spec), "mtp_num_layers": spec.mtp.depth if spec.mtp else None}
    made = provider(num_attention_heads=8, moe_ffn_hidden_size=256, **sizes)
    object.__setattr__(made, "published", known[0] if known else None)
    object.__setattr__(made, "to_text_provider", lambda *_, **__: made)
    return made


class Offline:
    """Stands in for a model of the network: whatever it is asked to become, it becomes a provider."""

    def __init__(self, name: Any, provider: type[Any]) -> None:
        self.name, self.provider = str(getattr(name, "published", name)), provider
        self.hf_pretrained = types.SimpleNamespace(config=Configuration(name))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *_, **__: published(self.name, self.provider)


class Configuration(types.SimpleNamespace):
    """A configuration of the network: every name is there, and means nothing."""

    def __init__(self, name: Any) -> None:
        super().__init__(published=name)

    def __getattr__(self, name: str) -> None:
        if name.startswith("__"):
            raise AttributeError(name)


def recipes() -> Iterator[tuple[str, Facts | str]]:
    """Every recipe, with what it returns or why it does not."""
    bridge()
    import torch
    import transformers
    from megatron.bridge.models.conversion.auto_bridge import AutoBridge
    from megatron.bridge.models.gpt_provider import GPTModelProvider

    def offline(*given: Any, **words: Any) -> Offline:
        return Offline((*given, *words.values())[0 if not given else len(given) - 1], GPTModelProvider)

    AutoBridge.from_hf_pretrained = AutoBridge.from_hf_config = staticmethod(offline)
    setattr(transformers.AutoConfig, "from_pretrained", lambda name, *_, **__: Configuration(name))  # noqa: B010
    for root in ("megatron.bridge.recipes", "megatron.bridge.perf_recipes"):
        for name, module in modules(root):
            for function in functions(module, name, "_config"):
                new = (10, 0) if any(chip in function.__name__ for chip in NEW) else (9, 0)
                setattr(torch.cuda, "get_device_capability", lambda *_, new=new: new)  # noqa: B010
                yield f"{module.__file__}::{function.__name__}", returned(function, recipe_facts)


def recipe_facts(config: Any, name: str) -> Facts:
    """The facts of a ConfigContainer."""
    model, train, ddp = config.model, config.train, config.ddp
    facts: Facts = {
        "tp": model.tensor_model_parallel_size,
        "pp": model.pipeline_model_parallel_size,
        "cp": model.context_parallel_size,
        "microbatch": train.micro_batch_size,
        "global_batch": train.global_batch_size,
        "recompute": model.recompute_granularity or "none",
    }
    length = getattr(config.dataset, "seq_length", None)
    if length is None or model.seq_length == length:  # Bridge itself refuses two that differ
        facts["seq"] = model.seq_length
    if facts["recompute"] == "selective":
        modules = ["core_attn"] if model.recompute_modules is None else model.recompute_modules
        facts["parts"] = sorted(PARTS[word] for word in modules if word in PARTS)
    elif facts["recompute"] == "full":
        facts["recompute_layers"] = model.recompute_num_layers if model.recompute_method == "block" else None
    if getattr(model, "num_moe_experts", None):
        facts |= {"ep": model.expert_model_parallel_size, "experts": model.num_moe_experts}
        facts["etp"] = model.expert_tensor_parallel_size or model.tensor_model_parallel_size
    facts["shard"] = "zero1" if ddp.use_distributed_optimizer else "none"
    if ddp.use_megatron_fsdp:
        facts["shard"] = SHARDS[ddp.data_parallel_sharding_strategy]
    if not (getattr(model, "hybrid_layer_pattern", None) or getattr(model, "hybrid_override_pattern", None)):
        facts |= {"layers": model.num_layers, "hidden": model.hidden_size}
    tuned = "finetune" if any(word in name for word in ("sft", "finetune")) else "pretrain"
    facts["task"] = "lora" if getattr(config, "peft", None) else tuned
    facts["compute"] = format_of(config.mixed_precision)
    facts["optimizer"] = "muon" if "muon" in str(config.optimizer.optimizer) else "adamw"
    if getattr(model, "published", None):
        facts["id"] = model.published
    return facts | stages_of(model)


def stages_of(model: Any) -> Facts:
    layout = model.pipeline_model_parallel_layout
    if not layout or model.pipeline_model_parallel_size == 1:
        return {}
    held = placement_of(layout) if isinstance(layout, str) else [stage.count("decoder") for stage in layout]
    return {"placement": list(held)}


def format_of(precision: Any) -> str:
    """The format of matrix products that a named precision, or one spelled, means."""
    if not isinstance(precision, str):
        words = (getattr(precision, "fp8", None) and f"fp8 {precision.fp8_recipe}", getattr(precision, "fp4", None))
        precision = f"{words[0] or ''} {'nvfp4' if words[1] else ''}"
    return next((means for word, means in FORMATS if word in precision), "bf16")


# torchtitan


def presets() -> Iterator[tuple[str, Facts | str]]:
    """Every preset, with what it returns or why it does not."""
    names = ("transformers", "einops", "fla", "grain", "vllm", "torchao", "torchft", "monarch", "torchvision", "PIL")
    stubs.Stubs(*names, "aiohttp", "renderers", "cloudpickle", "math_verify", "av").install()
    setattr(stubs._Kind, "__getitem__", lambda cls, _: cls)  # noqa: B010
    import torchtitan.tools.utils as tools

    tools.has_cuda_capability = lambda *_: True
    for name, module in modules("torchtitan", ".config_registry"):
        for function in functions(module, name, ""):
            if "Trainer.Config" in str(inspect.signature(function).return_annotation):
                yield f"{module.__file__}::{function.__name__}", returned(function, preset_facts)


def preset_facts(config: Any, _: str) -> Facts:
    """The facts of a Trainer.Config, of version 0.3 or of the names after it."""
    mesh, work, model = config.parallelism, config.training, config.model_spec.model
    pp, copies, split = (
        mesh.pipeline_parallel_degree,
        mesh.data_parallel_replicate_degree,
        mesh.data_parallel_shard_degree,
    )
    seq = getattr(work, "seq_len", None) or work.max_context_length
    tokens = getattr(work, "num_tokens_per_microbatch_per_dp_rank", 0)
    facts: Facts = {
        "tp": mesh.tensor_parallel_degree,
        "pp": pp,
        "cp": mesh.context_parallel_degree,
        "ep": mesh.expert_parallel_degree,
        "dp": None if split == -1 else copies * split,
        "seq": seq,
        "hidden": getattr(model, "dim", None),
        "layers": len(model.layers) if hasattr(model, "layers") else None,
    }
    if pp == 1:
        facts["microbatch"] = max(1, tokens // seq) if tokens else work.local_batch_size
    whole = {"default": "zero3" if pp == 1 else "zero2", "always": "zero3", "never": "zero2"}
    facts["shard"] = whole[mesh.fsdp_reshard_after_forward] if split * mesh.context_parallel_degree != 1 else "none"
    kind = type(config.activation_checkpoint).__qualname__.split(".")[0]
    kinds = {"FullAC": "full", "SelectiveAC": "selective", "MemoryBudgetAC": "selective", "NoneType": "none"}
    facts["recompute"] = kinds[kind]
    return facts


# Primus


def experiments(checkout: Path) -> Iterator[tuple[str, Facts | str]]:
    """Every experiment with Megatron inside, with what Primus's own parser merges."""
    sys.path.insert(0, str(checkout))
    stubs.Stubs("torch", "loguru", "nltk", "wandb").install()
    from primus.core.launcher.parser import PrimusParser
    from primus.core.utils.yaml_utils import nested_namespace_to_dict

    for path in sorted(checkout.rglob("*.yaml")):
        text = path.read_text(errors="ignore")
        if "\nmodules:" in text and "framework: megatron\n" in text:
            try:
                with contextlib.redirect_stdout(io.StringIO()):
                    made = PrimusParser().parse(types.SimpleNamespace(config=str(path)))
                merged = nested_namespace_to_dict(made.get_module_config(made.module_keys[0]))
            except Exception as wrong:
                yield str(path), f"{type(wrong).__name__}: {wrong}"
            else:
                yield str(path), experiment_facts(merged)


def experiment_facts(said: Mapping[str, Any]) -> Facts:
    """The facts of a merged experiment."""
    facts: Facts = {
        "tp": said.get("tensor_model_parallel_size") or 1,
        "pp": said.get("pipeline_model_parallel_size") or 1,
        "cp": said.get("context_parallel_size") or 1,
        "microbatch": said.get("micro_batch_size"),
        "global_batch": said.get("global_batch_size"),
        "seq": said.get("seq_length"),
        "recompute": said.get("recompute_granularity") or "none",
        "shard": "zero1" if said.get("use_distributed_optimizer") else "none",
        "compute": "bf16" if said.get("bf16") else "fp16" if said.get("fp16") else "fp32",
    }
    if said.get("use_torch_fsdp2"):
        facts["shard"] = "zero3"
    if said.get("use_megatron_fsdp") or said.get("use_custom_fsdp"):
        facts["shard"] = SHARDS[str(said.get("data_parallel_sharding_strategy"))]
    if said.get("fp8"):
        facts["compute"] = "mxfp8" if said.get("fp8_recipe") == "mxfp8" else "fp8-e4m3"
    if said.get("fp4"):
        facts["compute"] = "nvfp4"
    if said.get("num_experts"):
        facts |= {"ep": said.get("expert_model_parallel_size") or 1, "experts": said["num_experts"]}
    if said.get("num_layers") and not said.get("is_hybrid_model"):
        facts |= {"layers": said["num_layers"], "hidden": said["hidden_size"]}
    return facts


# all of them


def modules(root: str, ending: str = "") -> Iterator[tuple[str, types.ModuleType]]:
    """The modules below a package that can be imported here."""
    package = importlib.import_module(root)
    found = pkgutil.walk_packages(package.__path__, f"{root}.", onerror=lambda _: None)
    for info in (one for one in found if one.name.endswith(ending)):
        module = None
        with contextlib.suppress(Exception), contextlib.redirect_stdout(io.StringIO()):
            module = importlib.import_module(info.name)
        if module is not None:
            yield info.name, module


def functions(module: types.ModuleType, name: str, ending: str) -> Iterator[Any]:
    """Functions of a module's own that can be called without arguments."""
    for key, one in list(vars(module).items()):
        if inspect.isfunction(one) and one.__module__ == name and key.endswith(ending) and not key.startswith("_"):
            asked = inspect.signature(one).parameters.values()
            if all(part.default is not part.empty or part.kind in (2, 4) for part in asked):
                yield one


def returned(function: Any, facts: Any) -> Facts | str:
    """The facts of what a function returns, or why it returns nothing."""
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            return typing.cast(Facts, facts(function(), function.__name__))
    except Exception as wrong:
        return f"{type(wrong).__name__}: {wrong}"


def main() -> int:
    warnings.simplefilter("ignore")
    kind = sys.argv[1]
    runs = {"bridge": recipes, "torchtitan": presets}[kind]() if kind != "primus" else experiments(Path(sys.argv[2]))
    tally = dict.fromkeys(("same", "differ", "refused", "software fails"), 0)
    for source, truth in runs:
        logging.disable(logging.CRITICAL)
        if isinstance(truth, str):
            tally["software fails"] += 1
            continue
        try:
            ours = read(import_run(source))
        except InputError:
            tally["refused"] += 1
            continue
        wrong = {key: (ours[key], value) for key, value in truth.items() if key in ours and ours[key] != value}
        tally["differ" if wrong else "same"] += 1
        for key, (read_as, means) in wrong.items():
            print(f"{source}: {key} read as {read_as}, is {means}")
    print(json.dumps(tally))
    return int(tally["differ"] > 0)


if __name__ == "__main__":
    sys.exit(main())
