"""Turn a function of a Python configuration file into the object it returns, by reading syntax; nothing is executed.

A small interpreter over the syntax tree: literals, arithmetic, names, attributes, lists and tables, comprehensions,
conditions and loops over known values, functions and classes of the same checkout, `replace` and `deepcopy`, and the
environment as the caller gives it. It knows no files, no modules of the machine and no builtin beyond a short list.
What it cannot tell is an `Unknown` and goes on as one; a branch that hangs on one is not taken but noted, and what it
would have set is unknown. Work, bytes and depth are bounded.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from ridgeline.core.documents import JsonMapping, JsonObject
from ridgeline.core.errors import InputError, Problem
from ridgeline.targets.imports.python_calls import call, format_value
from ridgeline.targets.imports.python_syntax import SyntaxNotes, parse_module
from ridgeline.targets.imports.python_values import (
    LONGEST,
    MISSING,
    Bound,
    Class,
    Comprehension,
    Frame,
    Hook,
    ImportedName,
    Jump,
    Left,
    Made,
    Module,
    Outside,
    PythonFunction,
    Returned,
    Stop,
    Unknown,
    binary,
    bind,
    boolean_value,
    compare,
    items,
    key_of,
    locate_module,
    module_file,
    no_value,
    put,
    truth,
    unary,
    weigh,
)
from ridgeline.targets.imports.reading_budget import ReadingBudget
from ridgeline.targets.imports.run_files import Checkout

STEP_WORK = 40  # of following a statement or an expression
DEEPEST = 60  # calls and expressions inside each other
MOST_MODULES = 80


@dataclass(slots=True)
class Interpreter:
    """One reading: modules seen so far, notes of what was left out.

    hook     what a call by dotted name means, where a target knows better than the code; `MISSING` for anything else
    present  what an attribute of an object is, where nobody set it; `MISSING` for anything else
    """

    checkout: Checkout
    hook: Hook = no_value
    present: Callable[[Made, str], object] = no_value
    notes: list[str] = field(default_factory=list)
    modules: dict[str, Module | None] = field(default_factory=dict)
    main: Module | None = None
    depth: int = 0
    syntax: SyntaxNotes = field(init=False)

    def __post_init__(self) -> None:
        self.syntax = SyntaxNotes(self.budget)

    @property
    def budget(self) -> ReadingBudget:
        """What the reading may still cost."""
        return self.checkout.budget

    # modules

    def load(self, text: str, source: str) -> Module:
        """The module that a text is; an `InputError` where it is no Python."""
        name, package = locate_module(self.checkout, source)
        module = Module(name=name, package=package)
        self.modules[name] = self.main = module
        self._body(module, text, source)
        return module

    def _body(self, module: Module, text: str, source: str) -> None:
        try:
            tree = parse_module(self.budget, text)
        except (SyntaxError, ValueError, RecursionError, MemoryError) as wrong:
            where = f"{source}:{getattr(wrong, 'lineno', None) or 0}"
            raise InputError(Problem(path="", given="no Python", expected="a configuration", where=where)) from None
        for node in tree.body:
            if isinstance(node, ast.Expr):
                continue
            try:
                self.statement(node, Frame(module.scope, module))
            except (Returned, Jump, Left):
                continue

    def module(self, name: str) -> Module | None:
        """A module of the checkout by its dotted name; None where it is from outside."""
        if name in self.modules:
            return self.modules[name]
        self.modules[name] = None
        source = module_file(self.checkout, name) if len(self.modules) < MOST_MODULES else None
        if source is not None:
            path, text = source
            package = name if path.name == "__init__.py" else name.rpartition(".")[0]
            module = self.modules[name] = Module(name=name, package=package)
            before = len(self.notes)
            try:
                self._body(module, text, path.name)
            except InputError:
                self.modules[name] = None
            del self.notes[before:]  # what another file does when it is imported decides nothing here
        return self.modules[name]

    def member(self, module: str, name: str) -> object:
        """What a module defines under a name, or a module below it."""
        self.tick()
        definer = self.module(module)
        if definer is not None and name in definer.scope:
            return self.resolve(definer.scope[name], definer)
        inner = self.module(f"{module}.{name}")
        if inner is not None:
            return inner
        outside = Outside(f"{module}.{name}" if module else name)
        return outside if definer is None else self.star_member(definer, name, outside)

    def star_member(self, module: Module, name: str, otherwise: Outside) -> object:
        """What a module has under a name by `from ... import *`."""
        values = (self.member(star, name) for star in module.scope.get("*", ()))
        return next((value for value in values if not isinstance(value, Outside)), otherwise)

    def resolve(self, value: object, module: Module) -> object:
        """A value, with a name from another file looked up there."""
        if not isinstance(value, ImportedName):
            return value
        if value.module == module.name:
            return Outside(value.name)
        self.tick()
        self.depth += 1
        try:
            if value.name:
                return self.member(value.module, value.name)
            return self.module(value.module) or Outside(value.module)
        finally:
            self.depth -= 1

    # statements

    def tick(self) -> None:
        self.budget.spend(STEP_WORK)
        if self.depth > DEEPEST:
            raise Stop(f"calls and expressions more than {DEEPEST} deep inside each other")

    def unknown(self, node: ast.expr) -> Unknown:
        """What an expression stands for that cannot be told."""
        return Unknown(self.syntax.text(node)[:80])

    def members(self, value: object) -> list[object] | None:
        """What a loop goes over; None where it cannot be told."""
        self.budget.spend_items(len(value) if isinstance(value, (list, tuple, dict)) else 0)
        return items(value)

    def key(self, value: object) -> object:
        """A value as the key of a table; `MISSING` where it is none."""
        weigh(self.budget, value)
        return key_of(value)

    def run(self, body: list[ast.stmt], frame: Frame) -> None:
        for node in body:
            self.statement(node, frame)

    def statement(self, node: ast.stmt, frame: Frame) -> None:
        """Follow one statement."""
        self.tick()
        if frame.module is self.main:
            self.budget.line = node.lineno
        match node:
            case ast.Assign(targets=targets, value=value):
                value_assigned = self.value(value, frame)
                for target in targets:
                    self.store(target, value_assigned, frame)
            case ast.AnnAssign(target=target, value=ast.expr() as value):
                self.store(target, self.value(value, frame), frame)
            case ast.AugAssign(target=target, op=op, value=value):
                before = self.value(target, frame)
                self.store(target, binary(self.budget, op, before, self.value(value, frame)), frame)
            case ast.FunctionDef():
                frame.scope[node.name] = PythonFunction(node, frame.module, frame.scope)
            case ast.ClassDef():
                frame.scope[node.name] = Class(node, frame.module, node.name)
            case ast.Import() | ast.ImportFrom():
                bind(node, frame)
            case ast.Return(value=value):
                raise Returned(None if value is None else self.value(value, frame))
            case ast.Expr(value=ast.Call() as call):
                value_assigned = self.value(call, frame)
                if isinstance(value_assigned, Made) and any(isinstance(part, Made) for part in value_assigned.given):
                    self.notes.append(f"line {node.lineno}: {self.syntax.text(call).splitlines()[0][:80]}")
            case ast.If():
                self._if(node, frame)
            case ast.For():
                self._for(node, frame)
            case ast.With(body=body):
                self.run(body, frame)
            case ast.Try():
                self._try(node, frame)
            case ast.While():
                self._follow_both(node, node.body, frame)
            case ast.Raise():
                raise Left
            case ast.Break() | ast.Continue():
                raise Jump(type(node).__name__)
            case ast.Match():
                self._follow_both(node, [line for case in node.cases for line in case.body], frame)
            case _:
                pass

    def _if(self, node: ast.If, frame: Frame) -> None:
        if any(name in self.syntax.text(node.test)[:80] for name in ("__name__", "TYPE_CHECKING")):
            return
        truth_value = truth(self.value(node.test, frame))
        if truth_value is None:
            self._follow_both(node, [*node.body, *node.orelse], frame)
        else:
            self.run(node.body if truth_value else node.orelse, frame)

    def _follow_both(self, node: ast.stmt, body: list[ast.stmt], frame: Frame) -> None:
        """A branch that cannot be told: what it would set is unknown. One that only refuses is none."""
        text = self.syntax.text(node).splitlines()[0][:80]
        targets = self.syntax.targets_below(node, body)
        self.notes += [] if targets is None else [f"line {node.lineno}: {text}"]
        for part in targets or ():
            self.tick()
            self.store(part, Unknown(f"set below `{text.rstrip(':')}`"), frame)

    def _for(self, node: ast.For, frame: Frame) -> None:
        members = self.members(self.value(node.iter, frame))
        if members is None:
            self._follow_both(node, node.body, frame)
            return
        for member in members:
            self.tick()
            self.store(node.target, member, frame)
            try:
                self.run(node.body, frame)
            except Jump as jump:
                if str(jump) == "Break":
                    break

    def _try(self, node: ast.Try, frame: Frame) -> None:
        try:
            self.run(node.body, frame)
        except Left:
            for handler in node.handlers[:1]:
                self.run(handler.body, frame)
        self.run(node.finalbody, frame)

    def store(self, target: ast.expr, value: object, frame: Frame) -> None:
        """Give a name, an attribute or an item a value."""
        match target:
            case ast.Name(id=name):
                frame.scope[name] = value
            case ast.Attribute(value=above, attr=name):
                owner = self.owner(above, frame)
                if owner is not None:
                    weigh(self.budget, value)
                    owner.parts[name] = value
                    owner.assigned_names.add(name)
            case ast.Subscript(value=above, slice=key):
                weigh(self.budget, value)
                put(self.value(above, frame), self.key(self.value(key, frame)), value)
            case ast.Tuple(elts=parts) | ast.List(elts=parts):
                values = self.members(value) or []
                for index, part in enumerate(parts):
                    is_complete = len(values) == len(parts)
                    self.store(part, values[index] if is_complete else self.unknown(part), frame)
            case _:
                pass

    def owner(self, node: ast.expr, frame: Frame) -> Made | None:
        """The object whose attribute is set; objects on the way are made as they are needed."""
        if isinstance(node, ast.Attribute):
            above = self.owner(node.value, frame)
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
        owner_value = self.value(node, frame)
        if isinstance(owner_value, Made):
            return owner_value
        if isinstance(node, ast.Name) and isinstance(owner_value, (Unknown, Outside)):
            frame.scope[node.id] = new_object = Made()
            return new_object
        return None

    # expressions

    def value(self, node: ast.expr, frame: Frame) -> object:
        """What an expression is worth."""
        self.tick()
        self.depth += 1
        try:
            return self._value(node, frame)
        finally:
            self.depth -= 1

    def _value(self, node: ast.expr, frame: Frame) -> object:
        match node:
            case ast.Constant(value=value):
                return value if isinstance(value, (int, float, str, bool, type(None))) else Unknown(repr(value)[:40])
            case ast.Name(id=name):
                return self.name(name, frame)
            case ast.Attribute(value=above, attr=name):
                return self.attribute(self.value(above, frame), name, node)
            case ast.List(elts=parts) | ast.Tuple(elts=parts) | ast.Set(elts=parts):
                return self._items(parts, frame)
            case ast.Dict():
                return self._table(node, frame)
            case ast.BinOp(left=left, op=op, right=right):
                result = binary(self.budget, op, self.value(left, frame), self.value(right, frame))
                return self.unknown(node) if isinstance(result, Unknown) else result
            case ast.UnaryOp(op=op, operand=inner):
                result = unary(op, self.value(inner, frame))
                return self.unknown(node) if isinstance(result, Unknown) else result
            case ast.BoolOp(op=op, values=parts):
                result = boolean_value(op, (self.value(part, frame) for part in parts))
                return self.unknown(node) if isinstance(result, Unknown) else result
            case ast.Compare():
                return self._compare(node, frame)
            case ast.IfExp(test=test, body=body, orelse=other):
                truth_value = truth(self.value(test, frame))
                return self.unknown(node) if truth_value is None else self.value(body if truth_value else other, frame)
            case ast.Call():
                return self._call(node, frame)
            case ast.Subscript(value=above, slice=key):
                return self._item(node, self.value(above, frame), key, frame)
            case ast.JoinedStr():
                return self._text(node, frame)
            case ast.ListComp() | ast.GeneratorExp() | ast.SetComp() | ast.DictComp():
                return self._comprehension(node, frame)
            case ast.Lambda():
                return PythonFunction(node, frame.module, frame.scope)
            case ast.Starred(value=inner):
                return self.value(inner, frame)
            case _:
                return self.unknown(node)

    def name(self, name: str, frame: Frame) -> object:
        for scope in (frame.scope, frame.module.scope):
            if name in scope:
                return self.resolve(scope[name], frame.module)
        return self.star_member(frame.module, name, Outside(name))

    def attribute(self, owner: object, name: str, node: ast.expr | None = None) -> object:
        """An attribute: set before, a default of the class, what the target knows, else unknown."""
        match owner:
            case Made():
                part = owner.parts.get(name, MISSING)
                part = self.present(owner, name) if part is MISSING else part
                return Bound(owner, name) if part is MISSING else part
            case Module():
                return self.member(owner.name, name)
            case Outside():
                return Outside(f"{owner.name}.{name}")
            case Class():
                return self._in_class(owner, name)
            case str() | dict() | list():
                return Bound(owner, name)
            case _:
                return self.unknown(node) if node is not None else Unknown(name)

    def _in_class(self, owner: Class, name: str) -> object:
        """A class inside a class, a constant of it, or what its base has."""
        self.budget.spend(len(owner.node.body) * 2)
        for node in owner.node.body:
            if isinstance(node, ast.ClassDef) and node.name == name:
                return Class(node, owner.module, f"{owner.name}.{name}")
            if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == name for t in node.targets):
                enum = any("Enum" in self.syntax.text(base) for base in owner.node.bases)
                return Outside(f"{owner.name}.{name}") if enum else self.value(node.value, Frame({}, owner.module))
        return Outside(f"{owner.name}.{name}")

    def _items(self, parts: list[ast.expr], frame: Frame) -> object:
        elements: list[object] = []
        for part in parts:
            value = self.value(part, frame)
            inner = self.members(value) if isinstance(part, ast.Starred) else [value]
            if inner is None:
                return Unknown("a list")
            elements += inner
        self.budget.spend_items(len(elements))
        return elements

    def _table(self, node: ast.Dict, frame: Frame) -> dict[object, object]:
        pairs: dict[object, object] = {}
        for key, part in zip(node.keys, node.values, strict=True):
            value = self.value(part, frame)
            self.budget.spend_items(len(value) if key is None and isinstance(value, dict) else 2)
            if key is None:
                pairs |= value if isinstance(value, dict) else {}
            elif (at := self.key(self.value(key, frame))) is not MISSING:
                pairs[at] = value
        return pairs

    def _compare(self, node: ast.Compare, frame: Frame) -> object:
        left = self.value(node.left, frame)
        for op, part in zip(node.ops, node.comparators, strict=True):
            right = self.value(part, frame)
            truth_value = compare(self.budget, op, left, right)
            if truth_value is not True:
                return self.unknown(node) if truth_value is None else False
            left = right
        return True

    def _item(self, node: ast.expr, owner: object, key: ast.expr, frame: Frame) -> object:
        if isinstance(key, ast.Slice):
            values = [None if end is None else self.value(end, frame) for end in (key.lower, key.upper, key.step)]
            ends = [end for end in values if end is None or isinstance(end, int)]
            if not isinstance(owner, (list, str)) or not all(end is None or type(end) is int for end in values):
                return self.unknown(node)
            self.budget.spend_items(len(owner))
            return owner[slice(*ends)] if ends[2] != 0 else Unknown("a slice")
        at = self.value(key, frame)
        if isinstance(owner, Outside) and owner.name == "os.environ":
            return self.checkout.environment.get(str(at), Unknown(f"environment {at}"))
        if isinstance(owner, dict) and (key_value := self.key(at)) is not MISSING:
            return owner[key_value] if key_value in owner else self.unknown(node)
        if isinstance(owner, (list, str)) and type(at) is int and -len(owner) <= at < len(owner):
            return owner[at]
        return self.unknown(node)

    def _text(self, node: ast.JoinedStr, frame: Frame) -> object:
        """A text with values in it; unknown with a value, or a form of one, that cannot be told."""
        values: list[str] = []
        for part in node.values:
            field_part = part if isinstance(part, ast.FormattedValue) else ast.FormattedValue(part, -1)
            form = "" if field_part.format_spec is None else self.value(field_part.format_spec, frame)
            text = format_value(self.value(field_part.value, frame), field_part.conversion, form)
            if text is None:
                return self.unknown(node)
            self.budget.spend_text(len(text))
            values.append(text)
        return "".join(values) if sum(map(len, values)) <= LONGEST else self.unknown(node)

    def _comprehension(self, node: Comprehension, frame: Frame) -> object:
        self.budget.spend_items(len(frame.scope))
        inner, first = Frame(dict(frame.scope), frame.module), node.generators[0]
        members = self.members(self.value(first.iter, frame))
        if members is None or len(node.generators) > 1:
            return self.unknown(node)
        elements: list[object] = []
        pairs: dict[object, object] = {}
        for member in members:
            self.budget.spend_items(2)
            self.store(first.target, member, inner)
            truth_values = [truth(self.value(test, inner)) for test in first.ifs]
            if None in truth_values:
                return self.unknown(node)
            if not all(truth_values):
                continue
            if isinstance(node, ast.DictComp):
                key, value = self.key(self.value(node.key, inner)), self.value(node.value, inner)
                pairs |= {key: value} if key is not MISSING else {}
            else:
                elements.append(self.value(node.elt, inner))
        return pairs if isinstance(node, ast.DictComp) else elements

    # calls

    def _call(self, node: ast.Call, frame: Frame) -> object:
        positional: list[object] = []
        for part in node.args:
            value = self.value(part, frame)
            weigh(self.budget, value)
            positional += (self.members(value) or []) if isinstance(part, ast.Starred) else [value]
        words: JsonObject = {}
        for word in node.keywords:
            value = self.value(word.value, frame)
            weigh(self.budget, value)
            if word.arg is not None:
                words[word.arg] = value
            elif isinstance(value, dict):
                words |= {key: part for key, part in value.items() if isinstance(key, str)}
        return self.call_value(self.value(node.func, frame), tuple(positional), words, self.syntax.text(node.func)[:80])

    def call_value(self, what: object, given: tuple[object, ...], words: JsonObject, text: str) -> object:
        """What calling something yields."""
        name = text = str(what) if isinstance(what, Outside) else text
        hook_arguments = given
        if isinstance(what, PythonFunction) and isinstance(what.node, ast.FunctionDef):
            name = f"def.{what.node.name}"
        if isinstance(what, Bound):
            name, hook_arguments = f".{what.name}", (what.owner, *given)
        result = self.hook(name, hook_arguments, words)
        result = call(self, what, given, words) if result is MISSING else result
        if result is not MISSING:
            return result
        match what:
            case PythonFunction():
                return self.follow(what, given, words)
            case Class():
                return self.build(what, given, words)
            case Bound(owner=Made(name=owner)) if owner:
                text = f"{owner}.{what.name}"
            case _:
                pass
        return Made(name=text, given=hook_arguments, parts=words)

    def follow(self, what: PythonFunction, given: tuple[object, ...], words: JsonMapping) -> object:
        """What a function of the checkout returns."""
        self.tick()
        node = what.node
        self.budget.spend_items(len(what.scope) if what.scope is not what.module.scope else 0)
        frame = Frame(dict(what.scope) if what.scope is not what.module.scope else {}, what.module)
        frame.scope.update(self.arguments(what, given, words))
        if isinstance(node, ast.Lambda):
            return self.value(node.body, frame)
        if self.syntax.is_generator(node):
            return Unknown(node.name)
        self.depth += 1
        try:
            self.run(node.body, frame)
        except Returned as done:
            return done.args[0]
        except Left:
            return Unknown(f"{node.name}(...), which refuses its arguments")
        finally:
            self.depth -= 1
        return None

    def arguments(self, what: PythonFunction, given: tuple[object, ...], words: JsonMapping) -> JsonObject:
        """The parameters of a function by name: defaults, then what it is called with; the rest is unknown."""
        args, frame = what.node.args, Frame({}, what.module)
        names = [arg.arg for arg in (*args.posonlyargs, *args.args)]
        bound_arguments: JsonObject = {name: Unknown(name) for name in (*names, *(arg.arg for arg in args.kwonlyargs))}
        for name, part in zip(names[len(names) - len(args.defaults) :], args.defaults, strict=True):
            bound_arguments[name] = self.value(part, frame)
        for arg, default in zip(args.kwonlyargs, args.kw_defaults, strict=True):
            if default is not None:
                bound_arguments[arg.arg] = self.value(default, frame)
        bound_arguments |= dict(zip(names, given, strict=False))
        bound_arguments |= {name: value for name, value in words.items() if name in bound_arguments}
        if args.vararg:
            bound_arguments[args.vararg.arg] = list(given[len(names) :])
        if args.kwarg:
            bound_arguments[args.kwarg.arg] = {key: value for key, value in words.items() if key not in bound_arguments}
        return bound_arguments

    def build(self, what: Class, given: tuple[object, ...], words: JsonMapping) -> Made:
        """An object with the defaults of its class and what it was called with."""
        instance = Made(name=what.name, given=given)
        names = list(self._defaults(what, instance, 0))
        instance.parts |= dict(zip(names, given, strict=False))
        instance.parts |= words
        return instance

    def _defaults(self, what: Class, instance: Made, depth: int) -> Iterator[str]:
        """The fields of a class in order, defaults of bases first; sets those that have one."""
        self.tick()
        self.budget.spend_items(len(what.node.body), 2)
        for base in what.node.bases if depth < 8 else ():
            above = self.value(base, Frame({}, what.module))
            if isinstance(above, Class):
                yield from self._defaults(above, instance, depth + 1)
        for node in what.node.body:
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                if node.value is not None:
                    instance.parts[node.target.id] = self._default(node.value, Frame({}, what.module))
                yield node.target.id

    def _default(self, node: ast.expr, frame: Frame) -> object:
        if not (isinstance(node, ast.Call) and self.syntax.text(node.func).rpartition(".")[2] == "field"):
            return self.value(node, frame)
        words = {word.arg: word.value for word in node.keywords}
        if "default" in words:
            return self.value(words["default"], frame)
        if "default_factory" not in words:
            return Unknown("a field")
        factory = self.value(words["default_factory"], frame)
        if str(factory) in ("list", "dict"):
            return [] if str(factory) == "list" else {}
        return self.call_value(factory, (), {}, str(factory))
