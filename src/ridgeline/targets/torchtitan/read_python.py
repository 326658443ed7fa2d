"""Turn a configuration function of torchtitan 0.3 (`config_registry.py::llama3_405b`) into the options of a job file.

Versions from 0.3 on are configured by Python functions that return a `Trainer.Config`. Their syntax tree is read;
nothing is imported or executed. Understood are calls with keywords, literals, names, functions of the same file that
are called without arguments, and attributes that are set afterwards. What else there is counts as not given.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ridgeline.core.errors import InputError, Problem
from ridgeline.core.files import Table
from ridgeline.targets.option_reader import nested
from ridgeline.targets.target import Files

DEEPEST = 40
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
    "MXFP8LinearConverter": "quantize.linear.mx",
    "MXFP8GroupedExpertsConverter": "quantize.grouped_mm.mx",
}
FAMILIES = ("llama3", "llama4", "qwen3", "deepseek_v3", "gpt_oss")
KEPT = ("training", "parallelism", "compile")


@dataclass(slots=True)
class Made:
    """What a call makes: the name it is called by, its first arguments, its keywords."""

    name: str = ""
    given: tuple[Any, ...] = ()
    parts: dict[str, Any] = field(default_factory=dict)


def is_registry(files: Files) -> bool:
    """Whether a Python file builds configurations of torchtitan's trainer."""
    return any(_python(name) and "torchtitan" in text and "Trainer.Config" in text for name, text in files.items())


def job_of(files: Files) -> Table:
    """The options of a job file that a function means; an `InputError` lists the functions of a file with several."""
    name, text = next((name, text) for name, text in files.items() if _python(name))
    source, _, chosen = name.partition("::")
    functions = _functions(text, source)
    if chosen not in functions and (chosen or len(functions) != 1):
        todo = f"choose one: {source}::{min(functions)}" if functions else ""
        known = ", ".join(sorted(functions)[:40]) or "functions that return Trainer.Config"
        given = chosen or f"{len(functions)} functions"
        raise InputError(Problem(path=source, given=given, expected=known, todo=todo))
    chosen = chosen or next(iter(functions))
    made = _call_function(functions[chosen], functions, 0)
    return Table(data=nested(_options(made, chosen)), source=source)


def _python(name: str) -> bool:
    return name.partition("::")[0].endswith(".py")


def _functions(text: str, source: str) -> dict[str, ast.FunctionDef]:
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as wrong:
        where = f"{source}:{getattr(wrong, 'lineno', None) or 0}"
        raise InputError(Problem(path="", given="no Python", expected="a config registry", where=where)) from None
    found = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef) and node.returns is not None}
    return {name: node for name, node in found.items() if ast.unparse(node.returns or node) == "Trainer.Config"}


def _call_function(node: ast.FunctionDef, functions: Mapping[str, ast.FunctionDef], depth: int) -> Made:
    """What a function returns."""
    scope: dict[str, Any] = {}
    for line in node.body:
        if isinstance(line, ast.Assign):
            value = _value(line.value, scope, functions, depth + 1)
            for target in line.targets:
                _store(target, value, scope)
        elif isinstance(line, ast.Return) and line.value is not None:
            found = _value(line.value, scope, functions, depth + 1)
            return found if isinstance(found, Made) else Made()
    return Made()


def _store(target: ast.expr, value: Any, scope: dict[str, Any]) -> None:
    names = ast.unparse(target).split(".")
    if not all(name.isidentifier() for name in names):
        return
    *above, last = names
    if not above:
        scope[last] = value
        return
    owner = scope.get(above[0])
    for name in above[1:]:
        owner = owner.parts.setdefault(name, Made()) if isinstance(owner, Made) else None
    if isinstance(owner, Made):
        owner.parts[last] = value


def _value(node: ast.expr, scope: dict[str, Any], functions: Mapping[str, ast.FunctionDef], depth: int) -> Any:
    """What an expression is worth: a literal, a list, what a call makes, or its own text."""
    if depth > DEEPEST:
        return Made()
    match node:
        case ast.Constant(value=value):
            return value
        case ast.Name(id=name):
            return scope.get(name, Made(name=name))
        case ast.List(elts=parts) | ast.Tuple(elts=parts):
            return [_value(part, scope, functions, depth + 1) for part in parts]
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as number)):
            return -number
        case ast.Call(func=ast.Name(id=name), args=[], keywords=[]) if name in functions:
            return _call_function(functions[name], functions, depth + 1)
        case ast.Call():
            given = tuple(_value(part, scope, functions, depth + 1) for part in node.args[:4])
            words = {word.arg: _value(word.value, scope, functions, depth + 1) for word in node.keywords if word.arg}
            return Made(name=ast.unparse(node.func)[:80], given=given, parts=words)
        case _:
            return Made(name=ast.unparse(node)[:80])


def _options(made: Made, function: str) -> dict[str, Any]:
    """A configuration in the words of a job file."""
    found: dict[str, Any] = {}
    for section in KEPT:
        parts = made.parts.get(section)
        if isinstance(parts, Made):
            found |= {f"{section}.{key}": value for key, value in parts.parts.items() if not isinstance(value, Made)}
    if found.pop("compile.enable_async_tensor_parallel", False):
        found["parallelism.enable_async_tensor_parallel"] = True
    chosen = made.parts.get("activation_checkpoint", Made(name="SelectiveAC.Config"))
    kind = chosen.name.split(".")[0] if isinstance(chosen, Made) else str(chosen)
    found |= {f"activation_checkpoint.{key}": word for key, word in RECOMPUTE.get(kind, {"mode": kind}).items()}
    found |= _model(made.parts.get("model_spec"), function)
    if isinstance(assets := made.parts.get("hf_assets_path"), str):
        found["model.hf_assets_path"] = assets
    return found


def _model(spec: Any, function: str) -> dict[str, Any]:
    """The family by the function's name, the flavor by what it asks the registry of models for."""
    found: dict[str, Any] = {"model.name": next((name for name in FAMILIES if name in function), function)}
    if not isinstance(spec, Made) or not spec.given:
        return found | {"model.flavor": "unknown"}
    found["model.flavor"] = str(spec.given[0])[:60]
    if spec.parts.get("moe_comm_backend"):
        found["parallelism.expert_parallel_comm_backend"] = spec.parts["moe_comm_backend"]
    names: list[str] = []
    for converter in spec.parts.get("converters") or ():
        if isinstance(converter, Made):
            kind = converter.name.split(".")[0]
            names.append(CONVERTERS.get(kind, kind))
            if kind == "Float8LinearConverter":
                found["quantize.linear.float8.recipe_name"] = converter.parts.get("recipe_name", "rowwise")
    return found | ({"model.converters": names} if names else {})
