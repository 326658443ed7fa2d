"""Turn scripts and files of post-training into options by name: of a command, of YAML with what it builds on."""

from __future__ import annotations

import posixpath
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import PurePosixPath

from ridgeline.core.documents import JsonMapping, JsonObject
from ridgeline.core.files import Table
from ridgeline.targets.imports.option_reader import (
    OptionReader,
    assignments,
    flatten,
    interpolate_references,
    split_options,
    table_of,
    tables,
    value_of,
)
from ridgeline.targets.imports.run_files import checkout_of
from ridgeline.targets.imports.shell_eval import scripts_among
from ridgeline.targets.target import Files, refusal

DEEPEST = 8  # files that build on each other
PRODUCT = re.compile(r"\$\{(mul|div):\s*(-?\d{1,15})\s*,\s*(-?\d{1,15})\s*\}")
INNER = re.compile(r"\$\{(\.{0,4})([\w.]{1,120})\}")
NESTED = 2  # commands inside words of a command
ABSENT = "files that are not here"
ROUNDS = 6  # references to references


def command_of(files: Files, program: str) -> list[str] | None:
    """The first command with a word that is a program, from that word on; also of what `bash -c` is given."""
    for _, script in scripts_among(files):
        for command in script.commands:
            words = _from_program(command, program)
            if words:
                return words
    return None


def _from_program(command: Sequence[str], program: str, depth: int = 0) -> list[str]:
    """The words of a command from a program on; those of a word that is a command itself.

    >>> _from_program(["bash", "-c", "cd x && python3 -m a.b --n 4"], "a[.]b")
    ['a.b', '--n', '4']
    """
    for at, word in enumerate(command):
        if re.fullmatch(program, word):
            return list(command[at:])
        if depth < NESTED and " " in word and re.search(program, word):
            try:
                inner = _from_program(shlex.split(word.replace("\\\n", " ")), program, depth + 1)
            except ValueError:
                continue
            if inner:
                return inner
    return []


def command_options(files: Files, program: str, *, dashes: bool = False) -> OptionReader:
    """The options behind a program's name: one value as itself, several as a list, none as True."""
    command = command_of(files, program)
    if command is None:
        given = ", ".join(sorted(files)[:5]) or "no file"
        raise refusal(given, f"a script that starts {program.replace(chr(92), '')}")
    found: JsonObject = {}
    for name, words in split_options(command[1:]):
        values = [value_of(word) for word in words if word != "--"]
        plain = name.replace("_", "-") if dashes else name
        found[plain] = True if not values else values[0] if len(values) == 1 else values
    return _reader(found, next(iter(files), ""), command[0])


def _reader(found: JsonMapping, source: str, program: str) -> OptionReader:
    reader = OptionReader(Table(data={}, source=source))
    reader.options = {**found, "program": program}
    return reader


def yaml_options(files: Files, wanted: Iterable[str]) -> OptionReader:
    """The options of the YAML file with one of these tables, above those it builds on, below words of a command."""
    signs = set(wanted)
    for table in tables(files, ".yaml", ".yml"):
        data = composed(dict(table.data), files)
        if signs & set(data):
            return merged(data, files, table.source)
    for name in _named_files(files):
        text = checkout_of(files).named(name)
        data = composed(table_of(PurePosixPath(name).name, text) or {}, files)
        if signs & set(data):
            return merged(data, files, name)
    given = ", ".join(sorted(files)[:5]) or "no file"
    raise refusal(given, f"a YAML file with {' or '.join(sorted(signs))}, or a script that names one beside it")


def merged(data: JsonMapping, files: Files, source: str) -> OptionReader:
    """Options of a table with words of commands above them and references filled in."""
    overrides = {key: value for key, value in assignments(files).items() if "." in key}
    filled = fill_references({**dict(flatten(data)), **overrides}, checkout_of(files).environment)
    reader = OptionReader(Table(data={}, source=source))
    absent = filled.pop(ABSENT, [])
    reader.options = filled
    for name in absent if isinstance(absent, list) else ():
        reader.note("defaults", str(name)[:100], "the file is not here: what it says is not read")
    return reader


def _named_files(files: Files) -> list[str]:
    """YAML files that commands name."""
    words = (word for _, script in scripts_among(files) for command in script.commands for word in command)
    names = [word.partition("=")[2] or word for word in words if word.endswith((".yaml", ".yml"))]
    return list(dict.fromkeys(names))[:8]


def composed(data: JsonObject, files: Files, folder: str = "", depth: int = 0) -> JsonObject:
    """A table on top of those that its `defaults` names: paths, or groups of files in folders."""
    named = data.get("defaults")
    entries = named if isinstance(named, list) else [named] if isinstance(named, str) else []
    below: JsonObject = {}
    for entry in entries if depth < DEEPEST else []:
        for name in _file_names(entry):
            place, path = checkout_of(files), posixpath.normpath(posixpath.join(folder, name))
            text = place.named(path) or place.named(f"configs/{name}") or files.get(PurePosixPath(name).name)
            inner = table_of(PurePosixPath(name).name, text)
            if inner is not None:
                below = overlay(below, composed(dict(inner), files, posixpath.dirname(path), depth + 1))
            else:
                below = overlay(below, {ABSENT: [*below.get(ABSENT, []), name]})
    return overlay(below, {key: value for key, value in data.items() if key != "defaults"})


def _file_names(entry: object) -> list[str]:
    """Files of one entry of a defaults list.

    >>> _file_names("./base.yaml"), _file_names({"model": ["qwen25_32b"]}), _file_names("_self_")
    (['./base.yaml'], ['model/qwen25_32b.yaml'], [])
    """
    if isinstance(entry, str):
        return [] if entry == "_self_" else [entry if entry.endswith((".yaml", ".yml")) else f"{entry}.yaml"]
    if not isinstance(entry, Mapping):
        return []
    groups = {group: names if isinstance(names, list) else [names] for group, names in entry.items()}
    return [f"{group}/{name}.yaml" for group, names in groups.items() for name in names if isinstance(name, str)]


def overlay(below: JsonMapping, above: JsonMapping) -> JsonObject:
    """Nested tables with others on top.

    >>> overlay({"a": {"b": 1, "c": 2}}, {"a": {"b": 3}})
    {'a': {'b': 3, 'c': 2}}
    """
    merged_table = dict(below)
    for key, value in above.items():
        under = merged_table.get(key)
        nested = isinstance(under, Mapping) and isinstance(value, Mapping)
        merged_table[key] = overlay(under, value) if nested else value  # type: ignore[arg-type]
    return merged_table


def fill_references(options: JsonMapping, environment: Mapping[str, str]) -> JsonObject:
    """Options with references to others, relative ones and products filled in.

    >>> fill_references({"a.b": 4, "a.c": "${.b}", "d": "${mul:${a.b}, 8}", "e": "x${a.b}"}, {})
    {'a.b': 4, 'a.c': 4, 'd': 32, 'e': 'x4'}
    """
    filled = interpolate_references(options, environment)
    for _ in range(ROUNDS):
        for name, value in filled.items():
            if isinstance(value, str) and "${" in value:
                filled[name] = _filled(value, name, filled)
    return filled


def _filled(text: str, name: str, known: JsonMapping) -> object:
    def meant(found: re.Match[str]) -> str:
        dots, key = found.groups()
        above = name.split(".")[: -len(dots)] if dots else []
        value = known.get(".".join((*above, key)))
        plain = isinstance(value, (int, float, str)) and len(str(value)) <= 200
        return str(value) if plain else found.group(0)

    whole = INNER.fullmatch(text)
    if whole is not None and not whole.group(1) and known.get(whole.group(2)) is not None:
        return known[whole.group(2)]
    done = INNER.sub(meant, text)
    product = PRODUCT.fullmatch(done)
    if product is not None:
        kind, left, right = product.group(1), int(product.group(2)), int(product.group(3))
        return left * right if kind == "mul" else left // right if right else done
    return value_of(done) if done != text and "$" not in done else done
