"""Record the documented options of a target from its own source: names, which stand alone, and closed lists of values.

    python -m tools record megatron        CORE            an unpacked megatron-core wheel of 0.17 or newer
    python -m tools record megatron-bridge BRIDGE CORE     unpacked wheels of megatron-bridge and megatron-core
    python -m tools record mindspeed       LLM MINDSPEED   checkouts of MindSpeed-LLM and MindSpeed

    pip download --no-deps megatron-core megatron-bridge --python-version 3.12 --only-binary=:all:

Source is read by its syntax tree; nothing of it is imported or executed. Megatron's parser has options of two kinds:
calls of `add_argument`, and fields of dataclasses that `ArgumentGroupFactory` turns into options (a boolean that is
true by default becomes `--no-NAME` and `--disable-NAME`; `argparse_meta` renames). Writes
src/ridgeline/targets/options/TARGET-vVERSION.toml; what the old list said of the date is replaced.
"""

from __future__ import annotations

import argparse
import ast
import re
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any

from tools.pages import ROOT

OPTIONS = ROOT / "src" / "ridgeline" / "targets" / "options"
ALONE = ("store_true", "store_false", "store_const", "count")
BRIDGE = "megatron.bridge.training.config"
# parts of the ConfigContainer that may be of several classes: the ones a text model uses
CLASSES = {
    "model": (
        ("megatron.bridge.models.mla_provider", "MLAModelProvider"),
        ("megatron.bridge.models.hybrid.hybrid_provider", "HybridModelProvider"),
    ),
    "dataset": ((BRIDGE, "GPTDatasetConfig"),),
    "mixed_precision": (("megatron.bridge.training.mixed_precision", "MixedPrecisionConfig"),),
}


@dataclass(slots=True)
class Found:
    """Options by name."""

    flags: set[str] = field(default_factory=set)
    values: set[str] = field(default_factory=set)
    choices: dict[str, list[str]] = field(default_factory=dict)

    def add(self, names: Sequence[str], *, alone: bool, choices: list[str] | None) -> None:
        """One option under all its names."""
        for name in names:
            (self.flags if alone else self.values).add(name)
            if choices and not alone:
                self.choices[name] = choices


@dataclass(frozen=True, slots=True)
class Field:
    """A field of a dataclass as it is written."""

    name: str
    kind: ast.expr
    default: ast.expr | None
    module: str


class Source:
    """Modules of unpacked packages by dotted name, and the classes that names in them mean."""

    def __init__(self, *folders: Path) -> None:
        self.folders = folders
        self.trees: dict[str, ast.Module] = {}

    def tree(self, module: str) -> ast.Module:
        """The syntax of a module; an empty one where no folder has it."""
        if module not in self.trees:
            stem = module.replace(".", "/")
            paths = [folder / part for folder in self.folders for part in (f"{stem}.py", f"{stem}/__init__.py")]
            path = next((path for path in paths if path.is_file()), None)
            self.trees[module] = ast.parse(path.read_text(encoding="utf-8") if path else "")
        return self.trees[module]

    def is_package(self, module: str) -> bool:
        """Whether a module is a folder, which decides what a leading dot means."""
        return any((folder / module.replace(".", "/") / "__init__.py").is_file() for folder in self.folders)

    def find(self, module: str, name: str, deep: int = 0) -> tuple[ast.ClassDef, str] | None:
        """The class a name means in a module, and the module that defines it."""
        for node in ast.walk(self.tree(module)):
            if isinstance(node, ast.ClassDef) and node.name == name:
                return node, module
        for node in ast.walk(self.tree(module)):
            if isinstance(node, ast.ImportFrom) and deep < 8:
                for alias in node.names:
                    if (alias.asname or alias.name) == name:
                        definition = self.find(self.origin(module, node), alias.name, deep + 1)
                        if definition:
                            return definition
        return None

    def origin(self, module: str, node: ast.ImportFrom) -> str:
        """The module an import names, relative ones resolved."""
        if not node.level:
            return node.module or ""
        parts = module.split(".")
        drop = node.level - self.is_package(module)
        above = parts[: len(parts) - drop]
        return ".".join([*above, *([node.module] if node.module else [])])

    def fields(self, module: str, name: str) -> dict[str, Field]:
        """Fields of a dataclass, those it inherits first."""
        definition = self.find(module, name)
        if definition is None:
            return {}
        node, home = definition
        fields: dict[str, Field] = {}
        for base in reversed(node.bases):
            inner = base.value if isinstance(base, ast.Subscript) else base
            if isinstance(inner, ast.Name):
                fields |= self.fields(home, inner.id)
        for part in node.body:
            if isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name):
                fields[part.target.id] = Field(part.target.id, part.annotation, part.value, home)
        return fields

    def words(self, kind: ast.expr, module: str, *, full: bool = False) -> list[str]:
        """The values an annotation names: of a Literal or an Enum, through Optional, unions and lists."""
        match kind:
            case ast.Subscript(value=ast.Name(id="Literal") | ast.Attribute(attr="Literal"), slice=inner):
                parts = inner.elts if isinstance(inner, ast.Tuple) else [inner]
                return [str(part.value) for part in parts if isinstance(part, ast.Constant)]
            case ast.Subscript(value=ast.Name(id="Optional" | "list" | "List"), slice=inner):
                return self.words(inner, module, full=full)
            case ast.BinOp(left=left, op=ast.BitOr(), right=ast.Constant(value=None)):
                return self.words(left, module, full=full)
            case ast.Name(id=name):
                return [f"{name}.{word}" if full else word for word in self.members(module, name)]
        return []

    def members(self, module: str, name: str) -> list[str]:
        """Names of an Enum's members."""
        definition = self.find(module, name)
        if definition is None or not any("Enum" in ast.unparse(base) for base in definition[0].bases):
            return []
        return [
            target.id
            for part in definition[0].body
            if isinstance(part, ast.Assign)
            for target in part.targets
            if isinstance(target, ast.Name)
        ]


def literal(node: ast.expr | None) -> Any:
    """A literal's value; None for anything else."""
    try:
        return None if node is None else ast.literal_eval(node)
    except ValueError:
        return None


def is_bool(kind: ast.expr) -> bool:
    """Whether an annotation is bool, perhaps optional."""
    return ast.unparse(kind) in ("bool", "Optional[bool]", "bool | None")


def add_calls(node: ast.AST, source: Source, module: str, found: Found) -> None:
    """Every call of add_argument below a node."""
    for call in ast.walk(node):
        if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute)):
            continue
        names = [literal(word) for word in call.args] if call.func.attr == "add_argument" else []
        long = [name[2:] for name in names if isinstance(name, str) and name.startswith("--")]
        keywords = {word.arg: word.value for word in call.keywords}
        action = keywords.get("action")
        is_two_way = action is not None and "BooleanOptional" in ast.unparse(action)
        long += [f"no-{name}" for name in long] if is_two_way else []
        found.add(
            long,
            alone=is_two_way or literal(action) in ALONE,
            choices=_choices(keywords.get("choices"), source, module),
        )


def _choices(node: ast.expr | None, source: Source, module: str) -> list[str] | None:
    """A closed list: a literal one, or the members of an Enum."""
    if node is None:
        return None
    words = literal(node)
    if isinstance(words, (list, tuple)):
        return [str(word) for word in words if word is not None]
    names = [part.id for part in ast.walk(node) if isinstance(part, ast.Name) and part.id[0].isupper()]
    members = [word for name in names for word in source.members(module, name)]
    extra = [part.value for part in ast.walk(node) if isinstance(part, ast.Constant) and isinstance(part.value, str)]
    return [*members, *extra] or None


def add_fields(fields: dict[str, Field], skip: set[str], source: Source, found: Found) -> None:
    """Fields as the options that Megatron makes of them."""
    for option in fields.values():
        meta = _meta(option.default)
        if option.name in skip or _is_set_later(option):
            continue
        dashed_name = option.name.replace("_", "-")
        default = option.default
        if isinstance(default, ast.Call):  # field(default=...)
            default = next((word.value for word in default.keywords if word.arg == "default"), None)
        truth = is_bool(option.kind)
        plain = (
            [dashed_name] if not truth or literal(default) is False else [f"no-{dashed_name}", f"disable-{dashed_name}"]
        )
        names = [name.lstrip("-") for name in literal(meta.get("arg_names")) or []] or plain
        words = _choices(meta.get("choices"), source, option.module) or source.words(option.kind, option.module)
        action = literal(meta.get("action"))
        found.add(names, alone=truth if action is None else action in ALONE, choices=words or None)


def _meta(default: ast.expr | None) -> dict[str, ast.expr]:
    """What field(metadata={"argparse_meta": {...}}) holds."""
    for node in ast.walk(default) if default is not None else ():
        if isinstance(node, ast.Dict):
            for key, value in zip(node.keys, node.values, strict=True):
                if literal(key) == "argparse_meta" and isinstance(value, ast.Dict):
                    return {str(literal(name)): part for name, part in zip(value.keys, value.values, strict=True)}
    return {}


def _is_set_later(one: Field) -> bool:
    """Whether a field is no parameter of its class."""
    words = one.default.keywords if isinstance(one.default, ast.Call) else []
    return "ClassVar" in ast.unparse(one.kind) or any(
        word.arg == "init" and literal(word.value) is False for word in words
    )


def megatron(core: Path) -> tuple[Found, str, str]:
    """Options of megatron/training/arguments.py."""
    module = "megatron.training.arguments"
    source, names = Source(core), Found()
    tree = source.tree(module)
    lists = {
        target.id: set(literal(node.value) or ())
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.List)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    for call in ast.walk(tree):
        if isinstance(call, ast.Call) and ast.unparse(call.func) == "ArgumentGroupFactory":
            exclusions = next((word.value for word in call.keywords if word.arg == "exclude"), None)
            skip = (
                lists.get(exclusions.id, set()) if isinstance(exclusions, ast.Name) else set(literal(exclusions) or ())
            )
            add_fields(source.fields(module, ast.unparse(call.args[0])), skip, source, names)
    add_calls(tree, source, module, names)
    version = release(core, "megatron_core")
    return names, version, f"megatron/training/arguments.py of the megatron-core {version} wheel"


def bridge(folder: Path, core: Path) -> tuple[Found, str, str]:
    """Fields of the ConfigContainer by dotted name."""
    source, names = Source(folder, core), Found()
    for part in source.fields(BRIDGE, "ConfigContainer").values():
        names.values.add(part.name)
        class_names = [node.id for node in ast.walk(part.kind) if isinstance(node, ast.Name)]
        classes = CLASSES[part.name] if part.name in CLASSES else [(part.module, name) for name in class_names]
        for module, name in classes:
            for option in source.fields(module, name).values():
                if not option.name.startswith("_"):
                    words = source.words(option.kind, option.module, full=True)
                    known_choices = names.choices.get(f"{part.name}.{option.name}", []) if len(classes) > 1 else []
                    words = list(dict.fromkeys((*known_choices, *words))) if words else []
                    names.add([f"{part.name}.{option.name}"], alone=False, choices=words or None)
    names.values |= {f"dataset.{name}" for name in _parameters(source, BRIDGE, "GPTDatasetConfig")}
    version, core_version = release(folder, "megatron_bridge"), release(core, "megatron_core")
    return names, version, f"megatron/bridge/training/config.py of the megatron-bridge {version} wheel, classes of " \
        f"megatron-core {core_version}"  # fmt: skip


def _parameters(source: Source, module: str, name: str) -> Iterator[str]:
    """Named parameters of a class's own __init__."""
    found = source.find(module, name)
    for node in found[0].body if found else ():
        if isinstance(node, ast.FunctionDef) and node.name == "__init__":
            yield from (arg.arg for arg in (*node.args.args, *node.args.kwonlyargs) if arg.arg != "self")


def release(folder: Path, package: str) -> str:
    """The version of an unpacked wheel."""
    (info,) = folder.glob(f"{package}-*.dist-info")
    return info.name.removeprefix(f"{package}-").removesuffix(".dist-info")


def mindspeed(llm: Path, base: Path) -> tuple[Found, str, str]:
    """Every add_argument of both checkouts; Megatron's own options are those of the release they patch."""
    found = Found()
    for folder in (llm / "mindspeed_llm", base / "mindspeed"):
        for path in sorted(folder.rglob("*.py")):
            add_calls(ast.parse(path.read_text(encoding="utf-8")), Source(folder.parent), "", found)
    head = (llm / ".git" / "HEAD").read_text(encoding="utf-8").strip() if (llm / ".git").exists() else "unknown"
    return found, head[:12], "add_argument in mindspeed_llm and mindspeed"


def text(target: str, found: Found, version: str, origin: str) -> str:
    """The list as TOML."""
    note = f'target = "{target}"\nversion = "{version}"\nsource = "{origin}, recorded {date.today()}"\n'
    lists = "".join(
        f"\n{name} = [\n{_wrapped(sorted(words))}]\n"
        for name, words in (("flags", found.flags), ("values", found.values))
    )
    chosen = "".join(f"{_key(name)} = [{_quoted(words)}]\n" for name, words in sorted(found.choices.items()))
    return f"# Names only, gathered by python -m tools record.\n{note}{lists}\n[choices]\n{chosen}"


def _wrapped(words: list[str]) -> str:
    joined = " ".join(f'"{word}",' for word in words)
    lines = textwrap.wrap(joined, width=116, break_long_words=False, break_on_hyphens=False)
    return "".join(f"    {line}\n" for line in lines)


def _quoted(words: list[str]) -> str:
    return ", ".join(f'"{word}"' for word in dict.fromkeys(words))


def _key(name: str) -> str:
    return name if re.fullmatch(r"[\w-]+", name) else f'"{name}"'


READERS = {"megatron": megatron, "megatron-bridge": bridge, "mindspeed": mindspeed}
TITLES = {"megatron": "Megatron-LM", "megatron-bridge": "Megatron-Bridge", "mindspeed": "MindSpeed-LLM"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folders", nargs="+", type=Path)


def run(arguments: argparse.Namespace) -> int:
    """Write the list of one target."""
    write_list(arguments.name, TITLES[arguments.name], READERS[arguments.name](*arguments.folders))
    return 0


def write_list(target: str, title: str, recorded: tuple[Found, str, str]) -> None:
    """Replace the recorded list of a target."""
    found, version, origin = recorded
    for old in OPTIONS.glob(f"{target}-v*.toml"):
        old.unlink()
    path = OPTIONS / f"{target}-v{version}.toml"
    path.write_text(text(title, found, version, origin), encoding="utf-8")
    print(f"{path.name}: {len(found.flags)} flags, {len(found.values)} values, {len(found.choices)} closed lists")
