"""Turn the text of a recipe into the fields it sets, by reading its syntax tree; nothing is imported or executed.

Understood are literals, names of constants, defaults of parameters, joined and repeated lists, calls whose keywords
become fields, calls of recipes in the same file, and attributes that are set one after another. Branches, loops and
calls for their effect are left out and noted.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from typing import Any

from ridgeline.core.errors import InputError, Problem
from ridgeline.targets.megatron_bridge.names import COMMON

DEEPEST = 50
LONGEST = 20_000
MOST_CALLS = 20  # recipes that recipes may call
SIMPLE = (int, float, str, bool, type(None))


@dataclass(frozen=True, slots=True)
class Unknown:
    """A value that only running the recipe would tell."""

    text: str

    def __str__(self) -> str:
        return self.text


@dataclass(slots=True)
class Thing:
    """An object a recipe builds: what it was built from, and its attributes."""

    made: str = ""
    parts: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Routine:
    """A recipe that another may call: its syntax, the file's constants, and what is shared by all calls."""

    node: ast.FunctionDef
    constants: dict[str, Any]
    notes: list[str]
    calls: list[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class RecipeFields:
    """Fields by dotted name, and what was left out."""

    fields: dict[str, Any]
    notes: tuple[str, ...]


def read_recipe(text: str, chosen: str = "", source: str = "") -> RecipeFields:
    """The fields that a recipe sets; an `InputError` lists the recipes of a file that holds several."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as wrong:
        line = getattr(wrong, "lineno", None) or 0
        raise InputError(Problem(path="", given="no Python", expected="a recipe", where=f"{source}:{line}")) from None
    constants: dict[str, Any] = {}
    notes: list[str] = []
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    recipes = {node.name: node for node in functions if _sets(node)}
    recipes |= {node.name: node for node in functions if _calls(node, set(recipes))}
    _run([node for node in tree.body if not isinstance(node, (ast.FunctionDef, ast.ClassDef))], constants, notes)
    calls: list[str] = []
    constants |= {name: Routine(node, constants, notes, calls) for name, node in recipes.items()}
    if not recipes:
        return _config(constants, notes, source)
    if (chosen and chosen not in recipes) or (not chosen and len(recipes) > 1):
        known = ", ".join(sorted(recipes)[:40])
        todo = f"choose one: {source}::{min(recipes)}"
        raise InputError(Problem(path=source, given=chosen or f"{len(recipes)} recipes", expected=known, todo=todo))
    node = recipes[chosen] if chosen else next(iter(recipes.values()))
    scope = dict(constants) | _defaults(node, constants)
    _run(node.body, scope, notes)
    return _config(scope, notes, source)


def _sets(node: ast.FunctionDef) -> bool:
    """Whether a function sets fields of a configuration, or builds one."""
    for part in ast.walk(node):
        if isinstance(part, ast.Attribute) and isinstance(part.ctx, ast.Store):
            return True
        if isinstance(part, ast.Call) and _dotted(part.func) == "ConfigContainer":
            return True
    return False


def _calls(node: ast.FunctionDef, names: set[str]) -> bool:
    """Whether a function calls one of these."""
    return any(isinstance(part, ast.Call) and _dotted(part.func) in names for part in ast.walk(node))


def _defaults(node: ast.FunctionDef, scope: dict[str, Any]) -> dict[str, Any]:
    """Parameters with their defaults."""
    plain = node.args.args[len(node.args.args) - len(node.args.defaults) :]
    found = {arg.arg: _value(value, scope, 0) for arg, value in zip(plain, node.args.defaults, strict=True)}
    for arg, value in zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True):
        if value is not None:
            found[arg.arg] = _value(value, scope, 0)
    return found


def _run(body: list[ast.stmt], scope: dict[str, Any], notes: list[str]) -> None:
    """Follow assignments in order."""
    for node in body:
        if isinstance(node, ast.Assign):
            value = _value(node.value, scope, 0)
            for target in node.targets:
                _store(target, value, scope)
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            _store(node.target, _value(node.value, scope, 0), scope)
        elif isinstance(node, ast.Return) and node.value is not None:
            scope["return"] = _value(node.value, scope, 0)
        elif isinstance(node, (ast.If, ast.For, ast.While, ast.With, ast.Try)):
            main = isinstance(node, ast.If) and "__name__" in ast.unparse(node.test)
            if not main:
                notes.append(f"line {node.lineno}: {ast.unparse(node).splitlines()[0][:60]}")
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) and "cfg" in ast.unparse(node):
            notes.append(f"line {node.lineno}: {ast.unparse(node).splitlines()[0][:60]}")


def _store(target: ast.expr, value: Any, scope: dict[str, Any]) -> None:
    if isinstance(target, ast.Name):
        scope[target.id] = value
    elif isinstance(target, ast.Attribute):
        owner = _owner(target.value, scope)
        if owner is not None:
            owner.parts[target.attr] = value


def _owner(node: ast.expr, scope: dict[str, Any]) -> Thing | None:
    """The object whose attribute is set; attributes on the way are made as they are needed."""
    if isinstance(node, ast.Name):
        found = scope.setdefault(node.id, Thing())
        return found if isinstance(found, Thing) else None
    if isinstance(node, ast.Attribute):
        above = _owner(node.value, scope)
        if above is None:
            return None
        found = above.parts.get(node.attr)
        if not isinstance(found, Thing):
            found = Thing(made=str(found) if isinstance(found, (str, Unknown)) else "")
            above.parts[node.attr] = found
        return found
    return None


def _value(node: ast.expr, scope: dict[str, Any], depth: int) -> Any:
    """What an expression is worth; an `Unknown` where that cannot be told."""
    if depth > DEEPEST:
        return Unknown("...")
    match node:
        case ast.Constant(value=value) if isinstance(value, SIMPLE):
            return value
        case ast.Name(id=name):
            return scope.get(name, Unknown(name))
        case ast.List(elts=parts) | ast.Tuple(elts=parts):
            return [_value(part, scope, depth + 1) for part in parts]
        case ast.UnaryOp(op=ast.USub(), operand=inner):
            found = _value(inner, scope, depth + 1)
            return -found if type(found) in (int, float) else Unknown(ast.unparse(node)[:80])
        case ast.BinOp(left=left, op=op, right=right):
            return _joined(_value(left, scope, depth + 1), op, _value(right, scope, depth + 1))
        case ast.Call():
            return _call(node, scope, depth)
        case ast.Attribute():
            return Unknown(_dotted(node))
        case _:
            return Unknown(ast.unparse(node)[:80])


def _joined(left: Any, op: ast.operator, right: Any) -> Any:
    """Lists joined or repeated, whole numbers added or multiplied."""
    numbers = type(left) is int and type(right) is int and max(abs(left), abs(right)) < 2**40
    if isinstance(op, ast.Add) and (numbers or (isinstance(left, list) and isinstance(right, list))):
        return left + right
    if isinstance(op, ast.Mult):
        if numbers:
            return left * right
        items, times = (left, right) if isinstance(left, list) else (right, left)
        if isinstance(items, list) and type(times) is int and 0 <= times * len(items) <= LONGEST:
            return items * times
    return Unknown("an expression")


def _call(node: ast.Call, scope: dict[str, Any], depth: int) -> Any:
    """A published model by name; a named format; otherwise an object with the call's keywords as attributes."""
    name = _dotted(node.func)
    last = name.rsplit(".", 1)[-1]
    routine = scope.get(name)
    if isinstance(routine, Routine):
        return _called(routine, node, scope, depth)
    if last == "from_hf_pretrained" and node.args:
        return Thing(made=str(_value(node.args[0], scope, depth + 1)))
    if last == "to_megatron_provider" and isinstance(node.func, ast.Attribute):
        inner = _value(node.func.value, scope, depth + 1)
        return inner if isinstance(inner, Thing) else Thing()
    if last == "get_mixed_precision_config" and node.args:
        return _value(node.args[0], scope, depth + 1)
    if last.endswith("_mixed"):
        return Thing(made=last)
    if last == "_pretrain_common":
        return _common()
    parts = {word.arg: _value(word.value, scope, depth + 1) for word in node.keywords if word.arg}
    return Thing(made="MixedPrecisionConfig" if last == "MixedPrecisionConfig" else "", parts=parts)


def _called(routine: Routine, node: ast.Call, scope: dict[str, Any], depth: int) -> Any:
    """What a recipe of the same file returns, given what it is called with."""
    if len(routine.calls) >= MOST_CALLS:
        return Unknown(routine.node.name)
    routine.calls.append(routine.node.name)
    inner = dict(routine.constants) | _defaults(routine.node, routine.constants)
    names = [arg.arg for arg in routine.node.args.args]
    inner |= {name: _value(arg, scope, depth + 1) for name, arg in zip(names, node.args, strict=False)}
    inner |= {word.arg: _value(word.value, scope, depth + 1) for word in node.keywords if word.arg}
    _run(routine.node.body, inner, routine.notes)
    return inner.get("return", Unknown(routine.node.name))


def _common() -> Thing:
    """The configuration that published recipes start from."""
    found = Thing()
    for name, value in COMMON.items():
        *above, last = name.split(".")
        owner = found
        for part in above:
            owner = owner.parts.setdefault(part, Thing())
        owner.parts[last] = value
    return found


def _dotted(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return f"{_dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else "call"


def _config(scope: dict[str, Any], notes: list[str], source: str) -> RecipeFields:
    """The configuration among the names: what is returned, or the one called cfg or config."""
    for name in ("return", "cfg", "config"):
        found = scope.get(name)
        if isinstance(found, Thing) and found.parts:
            fields: dict[str, Any] = {}
            _flatten(found, "", fields, 0)
            return RecipeFields(fields=fields, notes=tuple(notes))
    raise InputError(Problem(path="", given="no configuration", expected="a recipe that returns cfg", where=source))


def _flatten(thing: Thing, path: str, fields: dict[str, Any], depth: int) -> None:
    if thing.made and path:
        fields[path] = thing.made
    for key, value in thing.parts.items():
        name = f"{path}.{key}" if path else key
        if isinstance(value, Routine):
            continue
        if isinstance(value, Thing) and depth < DEEPEST:
            _flatten(value, name, fields, depth + 1)
        else:
            fields[name] = str(value) if isinstance(value, Unknown) else value
