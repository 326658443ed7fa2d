"""Turn commands of a script that start a trainer into tables: the launcher's options, the Trainer's arguments."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from ridgeline.targets.command_line import value_of
from ridgeline.targets.hf_named import beside
from ridgeline.targets.run_files import around
from ridgeline.targets.shell_eval import read_script
from ridgeline.targets.target import Files

SCRIPTS = (".sh", ".sbatch", ".slurm")
ARGUMENTS = ("per_device_train_batch_size", "num_train_epochs", "model_name_or_path")
STARTS = re.compile(r"accelerate launch|\btrl (sft|dpo|grpo)\b|--per_device_train_batch_size")
LAUNCHERS = ("accelerate", "torchrun", "deepspeed", "python", "python3", "trl", "llamafactory-cli")
STARTERS = ("torch.distributed.", "accelerate.")  # modules that start a program
# part of a program's name -> what it does instead of training a decoder
OTHER_WORK = {
    r"\blm[_-]eval\b|evaluat|\beval\w*\.py": "an evaluation",
    r"run_(glue|squad|ner|swag|mlm|xnli|qa)\w*\.py|text_classification": "training of an encoder for a task",
    r"diffusion|text_to_image|dreambooth|image_classification|speech|wav2vec|whisper": "a model of images or sound",
    r"generat\w*\.py|inference\w*\.py": "generation of text",
    r"open_instruct/(grpo|ppo)\w*\.py": "reinforcement learning in a loop of its own",
    r"reward_model\w*\.py": "training of a reward model",
}
# programs and machines whose words look like the Trainer's and mean other things
OTHER_SOFTWARE = re.compile(
    r"\bXLA_USE_SPMD=1|\bPJRT_DEVICE=TPU|\bNEURON_(CC|RT|FUSE|EXTRACT)_\w+|open_instruct/(olmo_core_\w+|dpo)\.py"
)


def commands(files: Files) -> Iterator[list[str]]:
    """Commands of scripts that start a trainer with arguments of transformers, without what wraps them."""
    for name, text in files.items():
        if name.endswith(SCRIPTS):
            for command in read_script(text, around(files)).commands:
                if STARTS.search(" ".join(command)[:4000]):
                    yield unwrapped(command)


def unwrapped(command: list[str]) -> list[str]:
    """The launcher's own command: behind `--` of a scheduler, and behind `uv run` and its like.

    >>> unwrapped(["uv", "run", "mason.py", "--gpus", "8", "--", "accelerate", "launch", "a.py"])
    ['accelerate', 'launch', 'a.py']
    """
    if "--" in command and any(name in command[command.index("--") :] for name in LAUNCHERS):
        command = command[command.index("--") + 1 :]
    for at, word in enumerate(command[:40]):
        if word.rpartition("/")[2] in LAUNCHERS:
            return command[at:]
    return command


def program(command: list[str]) -> str:
    """A command up to the program it starts, without its options."""
    for at, word in enumerate(command):
        module = at > 0 and command[at - 1] in ("-m", "--module") and not word.startswith(STARTERS)
        if word.endswith(".py") or module:
            return " ".join(part for part in command[: at + 1] if not part.startswith("--"))
    return " ".join(command[:3])


def other_work(files: Files) -> str:
    """What scripts do all of whose programs do something else than training a decoder; empty where one trains."""
    others = [_other(command) for command in commands(files)]
    return others[0] if others and all(others) else ""


def trains(files: Files) -> list[list[str]]:
    """Commands that train a decoder."""
    return [command for command in commands(files) if not _other(command)]


def _other(command: list[str]) -> str:
    words = " ".join([program(command), *(word for word in command[:60] if word.endswith(".py"))])
    return next((why for sign, why in OTHER_WORK.items() if re.search(sign, words)), "")


def by_accelerate(command: list[str]) -> bool:
    """Whether Accelerate's launcher starts it."""
    return command[0].endswith("accelerate") or "accelerate.commands.launch" in command[:8]


def asked_chips(files: Files) -> int | None:
    """Chips that a scheduler is asked for in front of the launcher's command: `--num_nodes 4 --gpus 8 -- ...`."""
    for name, text in files.items():
        if name.endswith(SCRIPTS):
            for command in read_script(text, around(files)).commands:
                wrapper = command[: command.index("--")] if "--" in command else []
                behind, front = words_of(["", *wrapper]) if STARTS.search(" ".join(command)[:4000]) else ({}, {})
                said = front | behind
                each, nodes = said.get("gpus"), said.get("num_nodes", 1)
                if type(each) is int and type(nodes) is int and each * nodes > 0:
                    return each * nodes
    return None


def other_software(files: Files) -> bool:
    """Whether scripts start PyTorch/XLA, Neuron or a trainer of its own, whose batch of a rank means other things."""
    if any(name.endswith(SCRIPTS) and OTHER_SOFTWARE.search(text) for name, text in files.items()):
        return True
    named = (words_of(command)[0].get("fsdp_config") for command in commands(files))
    return any((beside(files, name) or {}).get("xla") is True for name in named)


def words_of(command: list[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Options behind the script's name, and those in front of it (of the launcher)."""
    said: dict[str, Any] = {}
    flags: dict[str, Any] = {}
    into, name = flags, ""
    for word in command[1:]:
        if word.startswith("--"):
            name, equals, value = word[2:].partition("=")
            name = name.replace("-", "_")
            if name in ARGUMENTS:
                into = said
            into[name] = value_of(value) if equals else True
            name = "" if equals else name
        elif name:
            into[name] = value_of(word) if into[name] is True else f"{into[name]},{word}"
            if into is flags:
                name = ""
        elif word.endswith(".py") or word in ("sft", "dpo", "grpo", "train") or word.startswith("trl.scripts"):
            into = said
        elif into is said and word.endswith((".yaml", ".yml")) and "config" not in said:
            said["config"] = word  # a recipe, in front of what changes it
        if into is flags and name in ("m", "module"):
            into, name = said, ""
    return said, flags


def launch_table(flags: Mapping[str, Any]) -> dict[str, Any]:
    """What options of `accelerate launch` say, as its file says it.

    >>> launch_table({"use_deepspeed": True, "zero_stage": 3, "num_processes": 8})
    {'num_processes': 8, 'distributed_type': 'DEEPSPEED', 'deepspeed_config': {'zero_stage': 3}}
    """
    found: dict[str, Any] = {
        key: flags[key] for key in ("num_processes", "num_machines", "mixed_precision") if key in flags
    }
    names = ("zero_stage", "deepspeed_config_file", "offload_optimizer_device", "offload_param_device")
    zero = {key: flags[key] for key in names if key in flags}
    fsdp = {key: value for key, value in flags.items() if key.startswith("fsdp_")}
    if flags.get("use_deepspeed") or zero:
        found |= {"distributed_type": "DEEPSPEED", "deepspeed_config": zero}
    elif flags.get("use_fsdp") or fsdp:
        found |= {"distributed_type": "FSDP", "fsdp_config": fsdp}
    elif flags.get("multi_gpu"):
        found["distributed_type"] = "MULTI_GPU"
    return found
