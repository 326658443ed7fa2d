"""Record the documented options of trainers around transformers from their unpacked wheels.

    python -m tools record accelerate   ACCELERATE TRANSFORMERS TRL   unpacked wheels
    python -m tools record llamafactory LLAMAFACTORY TRANSFORMERS
    python -m tools record axolotl      AXOLOTL
    python -m tools record torchtitan-preset TORCHTITAN
    python -m tools record primus       CHECKOUT REVISION
    python -m tools record nxd-training CHECKOUT REVISION

    pip download --no-deps accelerate trl transformers llamafactory axolotl     then unzip each into its own folder

Source is read by its syntax tree, as by tools/record/options.py; nothing of it is imported or executed.
Options have the name of the file of an export that they stand in: `train.`, `accelerate.`.
"""

from __future__ import annotations

import argparse
import ast
import tomllib
from pathlib import Path

import yaml

from ridgeline.targets.imports.option_reader import flatten
from tools.record.options import OPTIONS, Found, Source, literal, release, write_list

NESTED = ("fsdp_config", "deepspeed_config", "parallelism_config", "fp8_config", "dynamo_config", "megatron_lm_config")
PREFIXES = {
    "fsdp_config": ("fsdp_",),
    "parallelism_config": ("parallelism_config_",),
    "deepspeed_config": ("deepspeed_", "zero", "offload_", "gradient_"),
}


def fields(source: Source, module: str, name: str, prefix: str, found: Found) -> None:
    """Every field of a dataclass, with the words that its annotation names."""
    for one in source.fields(module, name).values():
        words = source.words(one.kind, one.module)
        found.add([f"{prefix}{one.name}"], alone=False, choices=words or None)


def values_of(source: Source, module: str, name: str) -> list[str]:
    """The values of an Enum's members."""
    found = source.find(module, name)
    nodes = [part for part in found[0].body if isinstance(part, ast.Assign)] if found else []
    return [str(value) for node in nodes if (value := literal(node.value)) is not None]


def accelerate(folder: Path, transformers: Path, trl: Path) -> tuple[Found, str, str]:
    """Fields of ClusterConfig, the launcher's words for what is inside them, and the trainer's arguments."""
    source, found = Source(folder, transformers, trl), Found()
    for name in ("BaseConfig", "ClusterConfig"):
        fields(source, "accelerate.commands.config.config_args", name, "accelerate.", found)
    for call in ast.walk(source.tree("accelerate.commands.launch")):
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr == "add_argument":
            word = literal(call.args[0]) if call.args else None
            for key, starts in PREFIXES.items():
                if isinstance(word, str) and word.removeprefix("--").startswith(starts):
                    found.values.add(f"accelerate.{key}.{word.removeprefix('--')}")
    kinds = values_of(source, "accelerate.utils.dataclasses", "DistributedType")
    found.choices["accelerate.distributed_type"] = kinds
    for module, name in (
        ("transformers.training_args", "TrainingArguments"),
        ("trl.trainer.base_config", "_BaseConfig"),
        ("trl.trainer.sft_config", "SFTConfig"),
        ("trl.trainer.model_config", "ModelConfig"),
        ("trl.scripts.utils", "ScriptArguments"),
        ("trl.scripts.utils", "DatasetMixtureConfig"),
    ):
        fields(source, module, name, "train.", found)
    found.choices["train.optim"] = values_of(source, "transformers.training_args", "OptimizerNames")
    version = release(folder, "accelerate")
    beside = f"transformers {release(transformers, 'transformers')} and TRL {release(trl, 'trl')}"
    return found, version, f"ClusterConfig and launch of accelerate {version}, arguments of {beside}"


def torchtitan_preset(folder: Path) -> tuple[Found, str, str]:
    """Fields of the parts of a Trainer.Config that a preset states, and parameters of the families' registries."""
    source, found = Source(folder), Found()
    for section, name in (
        ("training", "TrainingConfig"),
        ("parallelism", "ParallelismConfig"),
        ("compile", "CompileConfig"),
    ):
        fields(source, "torchtitan.config.configs", name, f"{section}.", found)
    for family in ("llama3", "qwen3", "deepseek_v3", "gpt_oss"):
        for node in ast.walk(source.tree(f"torchtitan.models.{family}")):
            if isinstance(node, ast.FunctionDef) and node.name == "model_registry":
                found.values |= {f"model_registry.{word.arg}" for word in (*node.args.args, *node.args.kwonlyargs)}
    found.values |= {"model_registry.family", "hf_assets_path", "activation_checkpoint"}
    policies = ast.walk(source.tree("torchtitan.distributed.activation_checkpoint"))
    names = [node.name for node in policies if isinstance(node, ast.ClassDef) and node.name.endswith("AC")]
    found.choices["activation_checkpoint"] = [*names, "None"]
    version = release(folder, "torchtitan")
    return found, version, f"torchtitan/config/configs.py and registries of the torchtitan {version} wheel"


def llamafactory(folder: Path, transformers: Path) -> tuple[Found, str, str]:
    """Fields of the classes that its parser joins; Accelerate's file is Accelerate's."""
    source, found = Source(folder, transformers), Found()
    home = "llamafactory.hparams"
    for module, name in (
        ("transformers.training_args", "TrainingArguments"),
        (f"{home}.training_args", "TrainingArguments"),
        (f"{home}.finetuning_args", "FinetuningArguments"),
        (f"{home}.data_args", "DataArguments"),
        (f"{home}.model_args", "ModelArguments"),
    ):
        fields(source, module, name, "train.", found)
    found.choices["train.flash_attn"] = values_of(source, "llamafactory.extras.constants", "AttentionFunction")
    found.values |= {name for name in beside().values if name.startswith("accelerate.")}
    version = release(folder, "llamafactory")
    origin = f"llamafactory/hparams of the llamafactory {version} wheel, with transformers "
    return found, version, origin + release(transformers, "transformers")


def beside() -> Found:
    """The recorded names of Accelerate, which other trainers are started by."""
    (path,) = OPTIONS.glob("accelerate-v*.toml")
    return Found(values=set(tomllib.loads(path.read_text(encoding="utf-8"))["values"]))


def axolotl(folder: Path) -> tuple[Found, str, str]:
    """Fields of the schema of its input, those of the classes it is made of included."""
    source, found = Source(folder), Found()
    fields(source, "axolotl.utils.schemas.config", "AxolotlInputConfig", "train.", found)
    fields(source, "axolotl.utils.schemas.fsdp", "FSDPConfig", "train.fsdp_config.", found)
    version = release(folder, "axolotl")
    return found, version, f"axolotl/utils/schemas of the axolotl {version} wheel"


def primus(checkout: Path, revision: Path) -> tuple[Found, str, str]:
    """Keys of the files that an experiment of the Megatron backend may override."""
    found = Found()
    for folder in ("modules", "models"):
        for path in sorted((checkout / "primus" / "configs" / folder / "megatron").glob("*.yaml")):
            table = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
            found.values |= {f"overrides.{key}" for key in table if key not in ("extends", "includes", "bases")}
    return found, revision.name, f"primus/configs/{{modules,models}}/megatron of AMD-AGI/Primus {revision.name}"


def nxd_training(checkout: Path, revision: Path) -> tuple[Found, str, str]:
    """Keys of the configurations that NxD Training ships, by dotted path."""
    found = Found()
    for path in sorted((checkout / "examples" / "conf").glob("*.yaml")):
        found.values |= {name for name, _ in flatten(yaml.safe_load(path.read_text(encoding="utf-8")) or {})}
    found.choices["precision.type"] = ["bf16SR", "fp32", "autocast", "mixed_precision", "mixed_precisionSR", "manual"]
    found.choices["model_source"] = ["hf", "megatron"]
    return found, revision.name, f"examples/conf of aws-neuron/neuronx-distributed-training {revision.name}"


READERS = {
    "nxd-training": nxd_training,
    "primus": primus,
    "llamafactory": llamafactory,
    "axolotl": axolotl,
    "torchtitan-preset": torchtitan_preset,
    "accelerate": accelerate,
}
TITLES = {
    "nxd-training": "NxD Training",
    "primus": "Primus",
    "llamafactory": "LLaMA-Factory",
    "axolotl": "Axolotl",
    "torchtitan-preset": "torchtitan",
    "accelerate": "HF Accelerate",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folders", nargs="+", type=Path)


def run(arguments: argparse.Namespace) -> int:
    """Write the list of one trainer."""
    write_list(arguments.name, TITLES[arguments.name], READERS[arguments.name](*arguments.folders))
    return 0
