"""Record the options that software of post-training documents, from its own source: names only.

    python -m tools record openrlhf     CHECKOUT    calls of add_argument in openrlhf/cli
    python -m tools record slime        CHECKOUT    calls of add_argument in slime/utils and slime/backends
    python -m tools record nemo-rl      CHECKOUT    keys of the files in examples/configs
    python -m tools record areal        CHECKOUT    fields of the dataclasses of areal/api/cli_args.py
    python -m tools record trl          PACKAGES    fields of GRPOConfig and of the classes that it builds on
    python -m tools record mindspeed-rl CHECKOUT    attributes in mindspeed_rl/config_cls, keys of configs
    python -m tools record verl-rl      PACKAGES    keys of verl's configurations of asynchronous training

Source is read by its syntax tree and as YAML; nothing of it is imported or executed. The version is that of the project
file, a commit where it has none. Writes src/ridgeline/targets/options/TARGET-vVERSION.toml.
"""

from __future__ import annotations

import argparse
import ast
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import yaml

from ridgeline.targets.imports.option_reader import flatten
from ridgeline.targets.options import options
from tools.record.options import OPTIONS, Found, Source, add_calls, text

DEEPEST = 4  # tables of dataclasses inside each other


def _calls(*folders: Path) -> Found:
    found = Found()
    for folder in folders:
        for path in sorted(folder.rglob("*.py")):
            add_calls(ast.parse(path.read_text(encoding="utf-8")), Source(folder.parent), "", found)
    return found


def openrlhf(folder: Path) -> tuple[Found, str]:
    """Options of every program; those of an optimizer are made for each role that has one."""
    found = _calls(folder / "openrlhf" / "cli")
    program = (folder / "openrlhf" / "cli" / "train_ppo_ray.py").read_text(encoding="utf-8")
    of_each_role = re.findall(r"--\{prefix\}\.([\w.]+)\"", program)
    found.values |= {f"{role}.{name}" for role in ("actor", "critic") for name in of_each_role}
    return found, "openrlhf/cli"


def slime(folder: Path) -> tuple[Found, str]:
    """Options beside Megatron's; those of SGLang are SGLang's own with a word in front."""
    found = _calls(folder / "slime" / "utils", folder / "slime" / "backends", folder / "slime" / "ray")
    return found, "add_argument in slime/utils, slime/backends and slime/ray"


def nemo_rl(folder: Path) -> tuple[Found, str]:
    """Keys of the examples, which state every option of their programs."""
    found = Found()
    for path in sorted((folder / "examples" / "configs").rglob("*.yaml")):
        found.values |= set(_keys(path))
    return found, "examples/configs"


def areal(folder: Path) -> tuple[Found, str]:
    """Fields of the programs' configurations by dotted name."""
    source, found = Source(folder), Found()
    module = "areal.api.cli_args"
    for name in ("GRPOConfig", "PPOConfig", "SFTConfig", "RWConfig"):
        found.values |= set(_fields(source, module, name))
    return found, "areal/api/cli_args.py"


def _fields(source: Source, module: str, name: str, above: str = "", depth: int = 0) -> Iterator[str]:
    for part in source.fields(module, name).values():
        yield above + part.name
        if depth < DEEPEST:
            kinds = [node.id for node in ast.walk(part.kind) if isinstance(node, ast.Name) and node.id[0].isupper()]
            for kind in kinds:
                yield from _fields(source, module, kind, f"{above}{part.name}.", depth + 1)


def trl(folder: Path) -> tuple[Found, str]:
    """Fields of the arguments of `trl grpo` and `trl dpo`, of the model and of the script."""
    source, found = Source(folder), Found()
    for module, name in (
        ("trl.trainer.grpo_config", "GRPOConfig"), ("trl.trainer.dpo_config", "DPOConfig"),
        ("trl.trainer.model_config", "ModelConfig"), ("trl.scripts.utils", "ScriptArguments"),
        ("trl.scripts.grpo", "GRPOScriptArguments"), ("transformers.training_args", "TrainingArguments"),
    ):  # fmt: skip
        found.values |= set(source.fields(module, name))
    return found, "GRPOConfig, DPOConfig, ModelConfig and ScriptArguments"


def mindspeed_rl(folder: Path) -> tuple[Found, str]:
    """Attributes of the sections' classes; the model's are Megatron's and stand in the examples."""
    found, classes = Found(), folder / "mindspeed_rl" / "config_cls"
    sections = {
        "rl_config": ("rl_config",), "generate_config": ("generate_config",),
        "megatron_config": ("megatron_training", "actor_config", "ref_config", "critic_config", "reward_config"),
    }  # fmt: skip
    for file, names in sections.items():
        words = re.findall(
            r"^\s+self\.(\w+)\s*(?::[^=\n]+)?=", (classes / f"{file}.py").read_text(encoding="utf-8"), re.M
        )
        found.values |= {f"{name}.{word}" for name in names for word in words}
    for path in sorted((folder / "configs").glob("*.yaml")):
        found.values |= set(_keys(path))
    return found, "mindspeed_rl/config_cls and configs"


def verl_rl(folder: Path) -> tuple[Found, str]:
    """Keys that roles, engines and asynchronous training add to those of the actor's own list."""
    found = Found()
    for path in sorted((folder / "verl" / "experimental").glob("*/config/*.yaml")):
        found.values |= set(_keys(path))
    for path in sorted((folder / "verl" / "trainer" / "config").glob("_generated_ppo_*trainer.yaml")):
        found.values |= set(_keys(path))
    found.values = {name for name in found.values if "_target_" not in name and "profiler" not in name}
    return Found(values=found.values - options("verl").values), "verl/trainer/config and verl/experimental"


def _keys(path: Path) -> Iterator[str]:
    data = yaml.safe_load(path.read_text(encoding="utf-8"))
    if isinstance(data, Mapping):
        yield from (name for name, _ in flatten(data) if not name.startswith(("defaults", "hydra.")))


READERS: Mapping[str, tuple[str, Callable[[Path], tuple[Found, str]]]] = {
    "openrlhf": ("OpenRLHF", openrlhf), "slime": ("slime", slime), "nemo-rl": ("NeMo-RL", nemo_rl),
    "areal": ("AReaL", areal), "trl": ("TRL", trl), "mindspeed-rl": ("MindSpeed-RL", mindspeed_rl),
    "verl-rl": ("verl", verl_rl),
}  # fmt: skip


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Where the software lies, and which version of it that is."""
    parser.add_argument("folder", type=Path, help="a checkout, or a folder of packages")
    parser.add_argument("--version", required=True, help="of the software there")


def run(given: argparse.Namespace) -> int:
    """Record one list."""
    title, read = READERS[given.name]
    found, origin = read(given.folder)
    found.values = {word for word in found.values if re.fullmatch(r"[\w./-]{1,120}", word)}
    path = OPTIONS / f"{given.name}-v{given.version}.toml"
    path.write_text(text(title, found, given.version, origin), encoding="utf-8")
    print(f"{path.name}: {len(found.flags)} flags, {len(found.values)} with a value")
    return 0
