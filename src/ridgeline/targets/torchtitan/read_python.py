"""Turn a configuration function of torchtitan (`config_registry.py::llama3_405b`) into the options of a job file.

Versions from 0.3 on are configured by Python functions that return a `Trainer.Config`. They are followed by
`targets.python_eval`: functions, classes and their defaults come from the checkout that the file stands in, so that a
preset means what its own version says. Nothing is imported or executed.
"""

from __future__ import annotations

import ast
from typing import Any

from ridgeline.core.errors import InputError, Problem
from ridgeline.core.files import Table
from ridgeline.targets.option_reader import nested
from ridgeline.targets.python_builtins import copied
from ridgeline.targets.python_eval import Interpreter, Stop
from ridgeline.targets.python_values import MISSING, Function, Made, Module, Outside, Unknown, is_known, shown
from ridgeline.targets.run_files import Around, around
from ridgeline.targets.target import Files

# the class of activation_checkpoint -> its words in a job file
RECOMPUTE = {
    "FullAC": {"mode": "full"},
    "SelectiveAC": {"mode": "selective", "selective_ac_option": "op"},
    "MemoryBudgetAC": {"mode": "memory_budget"},
    "None": {"mode": "none"},
}
CONVERTERS = {
    "Float8LinearConverter": "quantize.linear.float8",
    "Float8GroupedExpertsConverter": "quantize.grouped_mm.float8",
    "NVFP4LinearConverter": "quantize.linear.nvfp4",
    "MXFP8LinearConverter": "quantize.linear.mx",
    "MXFP8GroupedExpertsConverter": "quantize.grouped_mm.mx",
}
FAMILIES = ("llama3", "llama4", "qwen3_5", "qwen3", "deepseek_v3", "gpt_oss", "kimi_k2_7", "kimi_k2")
KEPT = ("training", "parallelism", "compile")


# what a preset has to state: not guessed where only running it would tell
NEEDED = ("training.", "parallelism.")
LEFT = ("steps", "max_norm", "gc_freq", "seed", "deterministic")


def is_registry(files: Files) -> bool:
    """Whether a Python file builds configurations of torchtitan's trainer."""
    return any(_python(name) and "torchtitan" in text and "Trainer.Config" in text for name, text in files.items())


def functions(files: Files) -> list[str]:
    """The functions of a Python file that return a configuration of the trainer."""
    name, text = next((name, text) for name, text in files.items() if _python(name))
    return list(_functions(Interpreter(around=Around()).load(text, name.partition("::")[0])))


def job_of(files: Files) -> tuple[Table, tuple[str, ...]]:
    """The options of a job file that a function means, and what was left out.

    An `InputError` lists the functions of a file with several.
    """
    name, text = next((name, text) for name, text in files.items() if _python(name))
    source, _, chosen = name.partition("::")
    reading = Interpreter(around=around(files), hook=_hook)
    try:
        module = reading.load(text, source)
        found = _functions(module)
        if chosen not in found and (chosen or len(found) != 1):
            todo = f"choose one: {source}::{min(found)}" if found else ""
            known = ", ".join(sorted(found)[:40]) or "functions that return Trainer.Config"
            given = chosen or f"{len(found)} functions"
            raise InputError(Problem(path=source, given=given, expected=known, todo=todo))
        chosen = chosen or next(iter(found))
        made = reading.follow(found[chosen], (), {})
    except (Stop, RecursionError):
        given = "a function that does too much before it returns"
        raise InputError(Problem(path=source, given=given, expected="a configuration to read")) from None
    if not isinstance(made, Made):
        raise InputError(Problem(path=chosen, given=shown(made), expected="a Trainer.Config", where=source))
    folder = around(files).folder
    options = _options(made, chosen, folder.name if folder else "", source)
    notes = list(dict.fromkeys(reading.notes))
    if "graph_trainer" in chosen:
        notes.append("the graph that this trainer captures of a whole step: priced as its kernels, launched one by one")
    return Table(data=nested(options), source=source), tuple(notes)


def _python(name: str) -> bool:
    return name.partition("::")[0].endswith(".py")


def _functions(module: Module) -> dict[str, Function]:
    """Functions that say they return a configuration of a trainer, and need no arguments."""
    found: dict[str, Function] = {}
    for name, one in module.scope.items():
        node = one.node if isinstance(one, Function) else None
        if isinstance(one, Function) and isinstance(node, ast.FunctionDef) and node.returns is not None:
            needs = len(node.args.args) > len(node.args.defaults) or None in node.args.kw_defaults
            if ast.unparse(node.returns).endswith("Trainer.Config") and not needs and not name.startswith("_"):
                found[name] = one
    return found


def _hook(name: str, given: tuple[Any, ...], words: dict[str, Any]) -> Any:
    """A model of the registry stays a name; vocabularies and datasets decide nothing here."""
    last = name.rpartition(".")[2]
    if last.endswith("model_registry"):
        return Made(name="model_registry", given=given, parts=words)
    if last == "to_graph_trainer_config" and given and isinstance(given[0], Made):
        made: Made = copied(given[0])
        made.parts.pop("compile", None)
        if made.parts.get("activation_checkpoint") is not None:
            made.parts["activation_checkpoint"] = Made(name="SelectiveAC.Config")
        return made
    if last in ("decoder_vocab_size", "default_adamw") or last.endswith("DataLoader"):
        return Made(name=last, given=given, parts=words)
    return MISSING


def _options(made: Made, function: str, folder: str, source: str) -> dict[str, Any]:
    """A configuration in the words of a job file."""
    found: dict[str, Any] = {}
    wrong: list[Problem] = []
    for section in KEPT:
        parts = made.parts.get(section)
        for key, value in parts.parts.items() if isinstance(parts, Made) else ():
            name = f"{section}.{key}"
            if isinstance(value, Unknown) and name.startswith(NEEDED) and key not in LEFT:
                wrong.append(
                    Problem(path=name, given=str(value)[:80], expected="a value that the file states", where=source)
                )
            elif is_known(value) and not isinstance(value, Made):
                found[name] = value
    if wrong:
        raise InputError(wrong)
    if found.pop("compile.enable_async_tensor_parallel", False):
        found["parallelism.enable_async_tensor_parallel"] = True
    chosen = made.parts.get("activation_checkpoint", Made(name="SelectiveAC.Config"))
    kind = chosen.name.split(".")[-2 if "." in chosen.name else 0] if isinstance(chosen, Made) else str(chosen)
    found |= {f"activation_checkpoint.{key}": word for key, word in RECOMPUTE.get(kind, {"mode": kind}).items()}
    found |= _optimizer(made.parts.get("optimizer"))
    found |= _model(made.parts.get("model_spec"), function, folder)
    if isinstance(assets := made.parts.get("hf_assets_path"), str):
        found["model.hf_assets_path"] = assets
    return found


def _optimizer(optimizer: Any) -> dict[str, Any]:
    """Its name; of several groups of weights, Muon's, which takes the matrices."""
    parts = optimizer.parts if isinstance(optimizer, Made) else {}
    if isinstance(parts.get("name"), str):
        return {"optimizer.name": parts["name"]}
    groups = parts.get("param_groups")
    made = [group for group in groups if isinstance(group, Made)] if isinstance(groups, list) else []
    named = [group.parts.get("optimizer_name") for group in made]
    if any(isinstance(name, str) and "muon" in name.lower() for name in named):
        return {"optimizer.name": "Muon"}
    return {}


def _model(spec: Any, function: str, folder: str) -> dict[str, Any]:
    """The family by the file's folder or the function's name, the flavor by what the registry is asked for."""
    family = next((name for name in FAMILIES if folder == name), None)
    family = family or next((name for name in FAMILIES if name in function), function)
    found: dict[str, Any] = {"model.name": family}
    if not isinstance(spec, Made) or spec.name != "model_registry":
        return found | {"model.flavor": "unknown"}
    first = spec.given[0] if spec.given else spec.parts.get("flavor", "unknown")
    found["model.flavor"] = str(first)[:60] if isinstance(first, str) else "unknown"
    if isinstance(spec.parts.get("moe_comm_backend"), str):
        found["parallelism.expert_parallel_comm_backend"] = spec.parts["moe_comm_backend"]
    if type(spec.parts.get("num_mtp_layers")) is int and spec.parts["num_mtp_layers"]:
        found["model.num_mtp_layers"] = spec.parts["num_mtp_layers"]
    names: list[str] = []
    converters = spec.parts.get("converters")
    for converter in converters if isinstance(converters, list) else ():
        if isinstance(converter, (Made, Outside)):
            kind = converter.name.removesuffix(".Config").split(".")[-1]
            if kind == "LoRAConverter" and isinstance(converter, Made):
                found |= _adapters(converter)
                continue
            names.append(CONVERTERS.get(kind, kind))
            if kind == "Float8LinearConverter" and isinstance(converter, Made):
                recipe = converter.parts.get("recipe_name", "rowwise")
                found["quantize.linear.float8.recipe_name"] = recipe if isinstance(recipe, str) else "rowwise"
    return found | ({"model.converters": names} if names else {})


def _adapters(converter: Made) -> dict[str, Any]:
    """Adapters as the options of a job file would say them."""
    rank, modules = converter.parts.get("rank"), converter.parts.get("target_modules")
    found: dict[str, Any] = {"lora.rank": rank if type(rank) is int else 8}
    return found | ({"lora.target_modules": [str(name) for name in modules]} if isinstance(modules, list) else {})
