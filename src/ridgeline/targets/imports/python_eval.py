"""Turn a function of a Python configuration file into the object it returns, by reading syntax; nothing is executed.

A small interpreter over the syntax tree: literals, arithmetic, names, attributes, lists and tables, comprehensions,
conditions and loops over known values, functions and classes of the same checkout, `replace` and `deepcopy`, and the
environment as the caller gives it. It knows no files, no modules of the machine and no builtin beyond a short list.
What it cannot tell is an `Unknown` and goes on as one; a branch that hangs on one is not taken, what it would have
set is unknown, and both are noted. Steps, depth and sizes are bounded.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ridgeline.core.documents import JsonMapping, JsonObject
from ridgeline.core.errors import InputError, Problem
from ridgeline.targets.imports import python_builtins as builtin
from ridgeline.targets.imports import python_expressions as expressions
from ridgeline.targets.imports import python_values as files
from ridgeline.targets.imports.python_values import (
    MISSING,
    Bound,
    Class,
    Function,
    Imported,
    Made,
    Module,
    Outside,
    Unknown,
    arguments,
    build,
    key_of,
)
from ridgeline.targets.imports.run_files import Checkout

MOST_STEPS = 400_000
DEEPEST = 60  # calls and expressions inside each other
MOST_MODULES = 80


class Stop(Exception):
    """The budget of a reading is spent."""


class Returned(Exception):
    """A `return` was reached."""

    def __init__(self, value: Any) -> None:
        self.value = value


class Jump(Exception):
    """`break` or `continue`."""


class Left(Exception):
    """`raise` was reached: the code refuses what it was given."""


Hook = Callable[[str, tuple[Any, ...], JsonObject], Any]


def _nothing(*_: Any) -> Any:
    return MISSING


@dataclass(slots=True)
class Interpreter:
    """One reading: modules seen so far, steps spent, notes of what was left out.

    hook     what a call by dotted name means, where a target knows better than the code; `MISSING` for anything else
    present  what an attribute of an object is, where nobody set it; `MISSING` for anything else
    """

    checkout: Checkout
    hook: Hook = _nothing
    present: Callable[[Made, str], Any] = _nothing
    notes: list[str] = field(default_factory=list)
    modules: dict[str, Module | None] = field(default_factory=dict)
    steps: int = 0
    depth: int = 0

    # modules

    def load(self, text: str, source: str) -> Module:
        """The module that a text is; an `InputError` where it is no Python."""
        name, package = files.place(self.checkout, source)
        module = Module(name=name, package=package)
        self.modules[name] = module
        self._body(module, text, source)
        return module

    def _body(self, module: Module, text: str, source: str) -> None:
        try:
            tree = files.parse_module(text)
        except (SyntaxError, ValueError, RecursionError, MemoryError) as wrong:
            where = f"{source}:{getattr(wrong, 'lineno', None) or 0}"
            raise InputError(Problem(path="", given="no Python", expected="a configuration", where=where)) from None
        for node in tree.body:
            if isinstance(node, ast.Expr):
                continue
            try:
                self.statement(node, module.scope, module)
            except (Returned, Jump, Left):
                continue

    def module(self, name: str) -> Module | None:
        """A module of the checkout by its dotted name; None where it is from outside."""
        if name in self.modules:
            return self.modules[name]
        self.modules[name] = None
        module_file = files.module_file(self.checkout, name) if len(self.modules) < MOST_MODULES else None
        if module_file is not None:
            path, text = module_file
            package = name if path.name == "__init__.py" else name.rpartition(".")[0]
            module = self.modules[name] = Module(name=name, package=package)
            before = len(self.notes)
            try:
                self._body(module, text, path.name)
            except InputError:
                self.modules[name] = None
            del self.notes[before:]  # what another file does when it is imported decides nothing here
        return self.modules[name]

    def member(self, module: str, name: str) -> Any:
        """What a module defines under a name, or a module below it."""
        module_found = self.module(module)
        if module_found is not None and name in module_found.scope:
            return self.resolved(module_found.scope[name], module_found)
        inner = self.module(f"{module}.{name}")
        if inner is not None:
            return inner
        if module_found is not None:
            for star in module_found.scope.get("*", ()):
                value = self.member(star, name)
                if not isinstance(value, Outside):
                    return value
        return Outside(f"{module}.{name}" if module else name)

    def resolved(self, value: Any, module: Module) -> Any:
        """A value, with a name from another file looked up there."""
        if not isinstance(value, Imported):
            return value
        if value.module == module.name:
            return Outside(value.name)
        self.tick()
        self.depth += 1
        try:
            return (
                self.member(value.module, value.name)
                if value.name
                else self.module(value.module) or Outside(value.module)
            )
        finally:
            self.depth -= 1

    # statements

    def tick(self) -> None:
        self.steps += 1
        if self.steps > MOST_STEPS or self.depth > DEEPEST:
            raise Stop

    def run(self, body: list[ast.stmt], scope: JsonObject, module: Module) -> None:
        for node in body:
            self.statement(node, scope, module)

    def statement(self, node: ast.stmt, scope: JsonObject, module: Module) -> None:
        """Follow one statement."""
        self.tick()
        match node:
            case ast.Assign(targets=targets, value=value):
                value_assigned = self.value(value, scope, module)
                for target in targets:
                    self.store(target, value_assigned, scope, module)
            case ast.AnnAssign(target=target, value=ast.expr() as value):
                self.store(target, self.value(value, scope, module), scope, module)
            case ast.AugAssign(target=target, op=op, value=value):
                before = self.value(files.load_expression(target), scope, module)
                self.store(target, builtin.binary(op, before, self.value(value, scope, module)), scope, module)
            case ast.FunctionDef():
                scope[node.name] = Function(node, module, scope)
            case ast.ClassDef():
                scope[node.name] = Class(node, module, node.name)
            case ast.Import() | ast.ImportFrom():
                files.bind(node, scope, module)
            case ast.Return(value=value):
                raise Returned(None if value is None else self.value(value, scope, module))
            case ast.Expr(value=ast.Call() as call):
                value_assigned = self.value(call, scope, module)
                if isinstance(value_assigned, Made) and any(isinstance(part, Made) for part in value_assigned.given):
                    self.notes.append(f"line {node.lineno}: {ast.unparse(call).splitlines()[0][:80]}")
            case ast.If():
                self._if(node, scope, module)
            case ast.For():
                self._for(node, scope, module)
            case ast.With(body=body):
                self.run(body, scope, module)
            case ast.Try(body=body):
                self._try(node, scope, module)
            case ast.While():
                self._follow_both(node, node.body, scope, module)
            case ast.Raise():
                raise Left
            case ast.Break() | ast.Continue():
                raise Jump(type(node).__name__)
            case ast.Match():
                self._follow_both(node, [line for case in node.cases for line in case.body], scope, module)
            case _:
                pass

    def _if(self, node: ast.If, scope: JsonObject, module: Module) -> None:
        if "__name__" in ast.dump(node.test)[:200] or "TYPE_CHECKING" in ast.unparse(node.test)[:80]:
            return
        truth_value = builtin.truth(self.value(node.test, scope, module))
        if truth_value is None:
            self._follow_both(node, [*node.body, *node.orelse], scope, module)
        else:
            self.run(node.body if truth_value else node.orelse, scope, module)

    def _follow_both(self, node: ast.stmt, body: list[ast.stmt], scope: JsonObject, module: Module) -> None:
        """A branch that cannot be told: what it would set is unknown. One that only refuses is none."""
        if all(isinstance(line, (ast.Raise, ast.Pass, ast.Assert)) or files.says(line) for line in body):
            return
        text = ast.unparse(node).splitlines()[0][:80]
        self.notes.append(f"line {node.lineno}: {text}")
        for line in body:
            for part in ast.walk(line):
                if isinstance(part, (ast.Name, ast.Attribute)) and isinstance(part.ctx, ast.Store):
                    self.store(part, Unknown(f"set below `{text.rstrip(':')}`"), scope, module)

    def _for(self, node: ast.For, scope: JsonObject, module: Module) -> None:
        items = builtin.items(self.value(node.iter, scope, module))
        if items is None:
            self._follow_both(node, node.body, scope, module)
            return
        for item in items:
            self.tick()
            self.store(node.target, item, scope, module)
            try:
                self.run(node.body, scope, module)
            except Jump as jump:
                if str(jump) == "Break":
                    break

    def _try(self, node: ast.Try, scope: JsonObject, module: Module) -> None:
        try:
            self.run(node.body, scope, module)
        except Left:
            for handler in node.handlers[:1]:
                self.run(handler.body, scope, module)
        self.run(node.finalbody, scope, module)

    def store(self, target: ast.expr, value: Any, scope: JsonObject, module: Module) -> None:
        """Give a name, an attribute or an item a value."""
        match target:
            case ast.Name(id=name):
                scope[name] = value
            case ast.Attribute(value=above, attr=name):
                owner = self.owner(above, scope, module)
                if owner is not None:
                    owner.parts[name] = value
                    owner.assigned_names.add(name)
            case ast.Subscript(value=above, slice=key):
                container, at = self.value(above, scope, module), key_of(self.value(key, scope, module))
                if at is not MISSING and (
                    isinstance(container, dict) or (isinstance(container, list) and type(at) is int)
                ):
                    builtin.put(container, at, value)
            case ast.Tuple(elts=parts) | ast.List(elts=parts):
                values = builtin.items(value)
                for index, part in enumerate(parts):
                    covers_all = values is not None and len(values) == len(parts)
                    self.store(
                        part, values[index] if covers_all and values else Unknown(ast.unparse(part)), scope, module
                    )
            case _:
                pass

    def owner(self, node: ast.expr, scope: JsonObject, module: Module) -> Made | None:
        """The object whose attribute is set; objects on the way are made as they are needed."""
        if isinstance(node, ast.Attribute):
            above = self.owner(node.value, scope, module)
            if above is None:
                return None
            attribute_value = above.parts.get(node.attr, MISSING)
            if attribute_value is MISSING or attribute_value is None:
                attribute_value = self.present(above, node.attr)
            if isinstance(attribute_value, Made):
                return attribute_value
            below = Made(name=str(attribute_value) if isinstance(attribute_value, (str, Unknown, Outside)) else "")
            above.parts[node.attr] = below
            return below
        owner_value = self.value(node, scope, module)
        if isinstance(owner_value, Made):
            return owner_value
        if isinstance(node, ast.Name) and isinstance(owner_value, (Unknown, Outside)):
            new_object = Made()
            scope[node.id] = new_object
            return new_object
        return None

    # expressions

    def value(self, node: ast.expr, scope: JsonObject, module: Module) -> Any:
        """What an expression is worth."""
        self.tick()
        self.depth += 1
        try:
            return self._value(node, scope, module)
        finally:
            self.depth -= 1

    def _value(self, node: ast.expr, scope: JsonObject, module: Module) -> Any:
        match node:
            case ast.Constant(value=value):
                return value if isinstance(value, (int, float, str, bool, type(None))) else Unknown(repr(value)[:40])
            case ast.Name(id=name):
                return self.name(name, scope, module)
            case ast.Attribute(value=above, attr=name):
                return self.attribute(self.value(above, scope, module), name, node)
            case ast.List(elts=parts) | ast.Tuple(elts=parts) | ast.Set(elts=parts):
                return self._items(parts, scope, module)
            case ast.Dict():
                return self._table(node, scope, module)
            case ast.BinOp(left=left, op=op, right=right):
                result = builtin.binary(op, self.value(left, scope, module), self.value(right, scope, module))
                return Unknown(ast.unparse(node)[:80]) if isinstance(result, Unknown) else result
            case ast.UnaryOp(op=op, operand=inner):
                return builtin.unary(op, self.value(inner, scope, module), node)
            case ast.BoolOp(op=op, values=parts):
                return builtin.boolean_value(op, (self.value(part, scope, module) for part in parts), node)
            case ast.Compare():
                return expressions.compare_values(self, node, scope, module)
            case ast.IfExp(test=test, body=body, orelse=other):
                truth_value = builtin.truth(self.value(test, scope, module))
                return (
                    Unknown(ast.unparse(node)[:80])
                    if truth_value is None
                    else self.value(body if truth_value else other, scope, module)
                )
            case ast.Call():
                return self._call(node, scope, module)
            case ast.Subscript(value=above, slice=key):
                return expressions.item(self, node, self.value(above, scope, module), key, scope, module)
            case ast.JoinedStr(values=parts):
                return expressions.text(self, node, parts, scope, module)
            case ast.ListComp() | ast.GeneratorExp() | ast.SetComp() | ast.DictComp():
                return expressions.comprehension(self, node, scope, module)
            case ast.Lambda():
                return Function(node, module, scope)
            case ast.Starred(value=inner):
                return self.value(inner, scope, module)
            case _:
                return Unknown(ast.unparse(node)[:80])

    def name(self, name: str, scope: JsonObject, module: Module) -> Any:
        for layers_held in (scope, module.scope):
            if name in layers_held:
                return self.resolved(layers_held[name], module)
        for star in module.scope.get("*", ()):
            member_value = self.member(star, name)
            if not isinstance(member_value, Outside):
                return member_value
        return Outside(name)

    def attribute(self, owner: Any, name: str, node: ast.expr | None = None) -> Any:
        """An attribute: set before, a default of the class, what the target knows, else unknown."""
        if isinstance(owner, Made):
            part = owner.parts.get(name, MISSING)
            part = self.present(owner, name) if part is MISSING else part
            return Bound(owner, name) if part is MISSING else part
        if isinstance(owner, Module):
            return self.member(owner.name, name)
        if isinstance(owner, Outside):
            return Outside(f"{owner.name}.{name}")
        if isinstance(owner, Class):
            return self._in_class(owner, name)
        if isinstance(owner, (str, dict, list)):
            return Bound(owner, name)
        return Unknown(ast.unparse(node)[:80] if node is not None else name)

    def _in_class(self, owner: Class, name: str) -> Any:
        """A class inside a class, a constant of it, or what its base has."""
        for node in owner.node.body:
            if isinstance(node, ast.ClassDef) and node.name == name:
                return Class(node, owner.module, f"{owner.name}.{name}")
            if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == name for t in node.targets):
                enum = any("Enum" in ast.unparse(base) for base in owner.node.bases)
                return Outside(f"{owner.name}.{name}") if enum else self.value(node.value, {}, owner.module)
        return Outside(f"{owner.name}.{name}")

    def _items(self, parts: list[ast.expr], scope: JsonObject, module: Module) -> Any:
        elements: list[Any] = []
        for part in parts:
            value = self.value(part, scope, module)
            if isinstance(part, ast.Starred):
                inner = builtin.items(value)
                if inner is None:
                    return Unknown("a list")
                elements += inner
            else:
                elements.append(value)
        return elements

    def _table(self, node: ast.Dict, scope: JsonObject, module: Module) -> Any:
        pairs: dict[Any, Any] = {}
        for key, part in zip(node.keys, node.values, strict=True):
            value = self.value(part, scope, module)
            if key is None:
                pairs |= value if isinstance(value, dict) else {}
                continue
            at = key_of(self.value(key, scope, module))
            if at is not MISSING:
                pairs[at] = value
        return pairs

    # calls

    def _call(self, node: ast.Call, scope: JsonObject, module: Module) -> Any:
        positional: list[Any] = []
        for part in node.args:
            value = self.value(part, scope, module)
            positional += (builtin.items(value) or []) if isinstance(part, ast.Starred) else [value]
        words: JsonObject = {}
        for word in node.keywords:
            value = self.value(word.value, scope, module)
            if word.arg is not None:
                words[word.arg] = value
            elif isinstance(value, dict):
                words |= {key: part for key, part in value.items() if isinstance(key, str)}
        return self.call_value(
            self.value(node.func, scope, module), tuple(positional), words, ast.unparse(node.func)[:80]
        )

    def call_value(self, what: Any, given: tuple[Any, ...], words: JsonObject, text: str) -> Any:
        """What calling something yields."""
        name, sees_images = str(what) if isinstance(what, Outside) else text, given
        if isinstance(what, Function) and isinstance(what.node, ast.FunctionDef):
            name = f"def.{what.node.name}"
        if isinstance(what, Bound):
            name, sees_images = f".{what.name}", (what.owner, *given)
        result = self.hook(name, sees_images, words)
        if result is not MISSING:
            return result
        result = builtin.call(self, what, given, words)
        if result is not MISSING:
            return result
        if isinstance(what, Function):
            return self.follow(what, given, words)
        if isinstance(what, Class):
            return self.build(what, given, words)
        if isinstance(what, Bound):
            owner = what.owner.name if isinstance(what.owner, Made) else ""
            return Made(name=f"{owner}.{what.name}" if owner else text, given=(what.owner, *given), parts=words)
        return Made(name=str(what) if isinstance(what, Outside) else text, given=given, parts=words)

    def follow(self, what: Function, given: tuple[Any, ...], words: JsonMapping) -> Any:
        """What a function of the checkout returns."""
        self.tick()
        node = what.node
        scope = dict(what.scope) if what.scope is not what.module.scope else {}
        scope |= arguments(self, node.args, (given, words), what)
        if isinstance(node, ast.Lambda):
            return self.value(node.body, scope, what.module)
        if any(isinstance(part, (ast.Yield, ast.YieldFrom)) for part in ast.walk(node)):
            return Unknown(node.name)
        self.depth += 1
        try:
            self.run(node.body, scope, what.module)
        except Returned as done:
            return done.value
        except Left:
            return Unknown(f"{node.name}(...), which refuses its arguments")
        finally:
            self.depth -= 1
        return None

    def build(self, what: Class, given: tuple[Any, ...], words: JsonMapping) -> Made:
        """An object with the defaults of its class and what it was called with."""
        return build(self, what, given, words)
