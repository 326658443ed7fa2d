"""Turn a recipe of Megatron-Bridge into the fields of the configuration it returns, by reading its syntax.

The recipe and what it calls inside its checkout are followed by `targets.python_eval`; nothing is executed. What only
the installed software would tell is known here by name: a published model (`AutoBridge.from_hf_pretrained`), a named
mixed-precision recipe, the common configuration, the choice of a dispatcher for experts.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ridgeline.core.errors import InputError, Problem
from ridgeline.models.names import MODELS, find_name
from ridgeline.targets.megatron_bridge.names import COMMON
from ridgeline.targets.python_eval import Interpreter, Stop
from ridgeline.targets.python_values import (
    MISSING,
    Bound,
    Class,
    Function,
    Made,
    Module,
    Outside,
    Unknown,
    is_known,
    shown,
)
from ridgeline.targets.run_files import Around

DEEPEST = 8  # objects inside each other
MOST_FIELDS = 5000
PUBLISHED = "published model "  # how the name of an object made from one begins
HANDED_ON = frozenset({".to_megatron_provider", ".get_model_config", ".to_text_provider", ".finalize"})
AXES = ("tensor_model", "pipeline_model", "context", "expert_model")
OFF = ("use_transformer_engine_op_fuser", "use_te_rng_tracker")  # switches that a provider leaves off
# calls of the software that runs: what they answer at the start of a run on the version that is recorded
ANSWERS = {
    "_supports_cuda_graph_modules": True,
    "dist.is_initialized": False,
    "torch.distributed.is_initialized": False,
    "torch.cuda.is_available": True,
}
FINETUNED = ("sft", "finetune", "peft", "lora", "dora")


@dataclass(frozen=True, slots=True, kw_only=True)
class RecipeFields:
    """Fields by dotted name, what was left out, and the fields whose value only running the recipe would tell."""

    fields: dict[str, Any]
    notes: tuple[str, ...]
    unknown: dict[str, str]
    function: str = ""


def read_recipe(text: str, chosen: str = "", source: str = "", around: Around | None = None) -> RecipeFields:
    """The fields that a recipe sets; an `InputError` lists the recipes of a file that holds several."""
    reading = Interpreter(around=around or Around(), hook=_hook, present=_present)
    try:
        module = reading.load(text, source)
        return _read(reading, module, chosen, source)
    except (Stop, RecursionError):
        given = "a recipe that does too much before it returns"
        raise InputError(Problem(path=source, given=given, expected="a configuration to read")) from None


def _read(reading: Interpreter, module: Module, chosen: str, source: str) -> RecipeFields:
    names = dict.fromkeys((*recipes_in(module), *_handed_on(reading, module)))
    if not names:
        return _config(dict(module.scope), reading, source, "")
    other = isinstance(module.scope.get(chosen), Function)  # one that takes arguments, or that is not its file's own
    if (chosen and chosen not in names and not other) or (not chosen and len(names) > 1):
        known = ", ".join(sorted(names)[:40])
        todo = f"choose one: {source}::{min(names)}"
        raise InputError(Problem(path=source, given=chosen or f"{len(names)} recipes", expected=known, todo=todo))
    name = chosen or next(iter(names))
    function = reading.name(name, {}, module)
    made = reading.follow(function, (), {}) if isinstance(function, Function) else None
    return _config({"return": made}, reading, source, name)


def recipes_in(module: Module) -> Iterator[str]:
    """Names of the functions of a file that return a configuration."""
    functions = {name: one.node for name, one in module.scope.items() if isinstance(one, Function)}
    direct = {name for name, node in functions.items() if isinstance(node, ast.FunctionDef) and _sets(node)}
    for name, node in functions.items():
        stated = isinstance(node, ast.FunctionDef) and node.returns is not None
        says = stated and "ConfigContainer" in ast.unparse(node.returns)  # type: ignore[union-attr,arg-type]
        unstated = not stated and (name in direct or (isinstance(node, ast.FunctionDef) and _calls(node, direct)))
        if (says or unstated) and not name.startswith(("_", "test_", "mock_")) and not _needs(node):
            yield name


def _needs(node: ast.FunctionDef | ast.Lambda) -> bool:
    """Whether a function cannot be called without arguments."""
    return len(node.args.args) + len(node.args.posonlyargs) > len(node.args.defaults)


def _handed_on(reading: Interpreter, module: Module) -> Iterator[str]:
    """Recipes of other files that a file hands on under a name of its own."""
    for name in list(module.scope):
        if name.endswith("_config") and not name.startswith("_"):
            found = reading.name(name, {}, module)
            if isinstance(found, Function) and found.module is not module and not _needs(found.node):
                yield name


def _sets(node: ast.FunctionDef) -> bool:
    """Whether a function sets fields of a configuration and returns it, or builds one."""
    gives = any(isinstance(part, ast.Return) and part.value is not None for part in ast.walk(node))
    for part in ast.walk(node):
        if isinstance(part, ast.Attribute) and isinstance(part.ctx, ast.Store) and gives:
            return True
        if isinstance(part, ast.Call) and ast.unparse(part.func) == "ConfigContainer":
            return True
    return False


def _calls(node: ast.FunctionDef, names: set[str]) -> bool:
    return any(isinstance(part, ast.Call) and ast.unparse(part.func) in names for part in ast.walk(node))


def _hook(name: str, given: tuple[Any, ...], words: dict[str, Any]) -> Any:
    """What calls mean that only the installed software could follow."""
    last = name.rpartition(".")[2]
    first = given[0] if given else None
    if last in ("from_hf_pretrained", "from_hf_config", "from_pretrained") and "." in name:
        ref = given[-1] if given else next(iter(words.values()), None)
        if isinstance(ref, Made) and ref.name.startswith(PUBLISHED):
            return ref
        return Made(name=PUBLISHED + (ref if isinstance(ref, str) else shown(ref)))
    if name in HANDED_ON and isinstance(first, Made):
        return first
    if name.removeprefix("def.") in ANSWERS:
        return ANSWERS[name.removeprefix("def.")]
    if last == "get_mixed_precision_config" and given:
        return first
    if last.endswith("_mixed") and not given:
        return Made(name=last)
    if last == "_pretrain_common" and not name.startswith("def."):
        return common()
    if last == "apply_flex_dispatcher_backend" and isinstance(first, Made):
        backend = given[1] if len(given) > 1 else words.get("moe_flex_dispatcher_backend")
        if isinstance(backend, str):
            first.parts |= {"moe_token_dispatcher_type": "flex", "moe_flex_dispatcher_backend": backend}
        return None
    if name in ("os.path.join", "os.getcwd"):
        return "."
    return MISSING


def _present(made: Made, name: str) -> Any:
    """What a published model's configuration holds before a recipe changes it."""
    if not made.name.startswith(PUBLISHED):
        return MISSING
    found = find_name(made.name.removeprefix(PUBLISHED))
    if found is None:
        return MISSING
    spec = MODELS[found[0]]
    experts = max((getattr(block.ffn, "experts", 0) for block in spec.blocks), default=0)
    ahead = spec.mtp.depth if spec.mtp else None
    known = {"num_layers": spec.layers, "hidden_size": spec.hidden, "num_moe_experts": experts or None}
    known |= {"mtp_num_layers": ahead, "vocab_size": spec.vocab, "cuda_graph_impl": "none"}
    unset = ("virtual_pipeline_model_parallel_size", "pipeline_model_parallel_layout", "recompute_granularity")
    known |= dict.fromkeys((*unset, "expert_tensor_parallel_size", "recompute_modules"))
    known |= dict.fromkeys((f"{axis}_parallel_size" for axis in AXES), 1) | dict.fromkeys(OFF, False)
    return known.get(name, MISSING)


def common() -> Made:
    """The configuration that published recipes start from."""
    found = Made()
    for name, value in COMMON.items():
        *above, last = name.split(".")
        owner = found
        for part in above:
            owner = owner.parts.setdefault(part, Made())
        owner.parts[last] = value
    return found


def _config(scope: dict[str, Any], reading: Interpreter, source: str, function: str) -> RecipeFields:
    """The configuration among the names: what is returned, or the one called cfg or config."""
    for name in ("return", "cfg", "config"):
        found = scope.get(name)
        if isinstance(found, Made) and found.parts:
            _refuse_unseen(found, source)
            fields: dict[str, Any] = {}
            unknown: dict[str, str] = {}
            notes = tuple(dict.fromkeys((*reading.notes, *_two_lengths(found))))
            _flatten(found, "", (fields, unknown), ())
            return RecipeFields(fields=fields, notes=notes, unknown=unknown, function=function)
    raise InputError(Problem(path="", given="no configuration", expected="a recipe that returns cfg", where=source))


def _two_lengths(config: Made) -> Iterator[str]:
    """Sequences of the data that are not the model's, which Bridge refuses when it starts: what the recipe sets counts,
    else the data's."""
    model, data = config.parts.get("model"), config.parts.get("dataset")
    if not isinstance(model, Made) or not isinstance(data, Made):
        return
    own, other = model.parts.get("seq_length"), data.parts.get("seq_length", data.parts.get("sequence_length"))
    if type(own) is int and type(other) is int and own != other:
        if "seq_length" not in model.assigned:
            model.parts["seq_length"] = other
        yield f"one of two lengths of a sequence, {own} of the model and {other} of the data"


def _refuse_unseen(made: Made, source: str) -> None:
    """An `InputError` where a recipe changes what a function makes that stands in a file which is not here."""
    module, _, name = made.name.rpartition(".")
    if module and not name[:1].isupper():
        given = f"a recipe that builds on {name}" + (f" of {module}" if module else "") + ", which is not here"
        todo = "read it inside its checkout or beside the installed package, where its imports can be followed"
        raise InputError(Problem(path=source, given=given[:200], expected="a recipe with what it imports", todo=todo))


def _flatten(made: Made, path: str, found: tuple[dict[str, Any], dict[str, str]], above: tuple[Made, ...]) -> None:
    """Fields by dotted name; an object inside itself is followed once."""
    fields, unknown = found
    if made.name and path:
        fields[path] = made.name
    for key, value in made.parts.items():
        name = f"{path}.{key}" if path else key
        if isinstance(value, (Function, Class, Module, Bound, dict)):
            continue
        if isinstance(value, Made):
            again = any(value is one for one in (made, *above))
            if not again and len(above) < DEEPEST and len(fields) + len(unknown) < MOST_FIELDS:
                _flatten(value, name, found, (made, *above))
        elif isinstance(value, Unknown) or (isinstance(value, (list, tuple)) and not is_known(value)):
            unknown[name] = shown(value)
        else:
            fields[name] = str(value) if isinstance(value, Outside) else value
