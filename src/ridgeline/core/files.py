"""Turn a TOML, JSON or YAML file into a plain table that remembers on which line each key stands.

Input is hostile: size, nesting and what YAML aliases stand for are capped, YAML tags are refused, and a syntax error
becomes an `InputError` with its line. Writing is atomic: a file is either the old one or the new one.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import field, replace
from pathlib import Path

from ridgeline.core.documents import JsonMapping, JsonObject, JsonValue
from ridgeline.core.errors import InputError, Problem
from ridgeline.core.records import dataclass

BIGGEST_FILE = 4 * 1024 * 1024  # bytes; a scenario is a page, a chip is a page
DEEPEST = 32  # nested tables
MOST_YAML_VALUES = 100_000  # of a file, with every alias written out
SUFFIXES = (".toml", ".json", ".yaml", ".yml")
INSIDE = "a path inside the file's own folder"  # what is expected of a path that is written in a file

_HEADER = re.compile(r"^\s*\[{1,2}\s*([^\]]+?)\s*\]{1,2}")
_KEY = re.compile(r"^\s*((?:[\w-]+|\"[^\"]*\"|'[^']*')(?:\s*\.\s*(?:[\w-]+|\"[^\"]*\"|'[^']*'))*)\s*=")
# what PyYAML calls the tokens that begin and end a level
_YAML_OPENS = frozenset(
    {"FlowSequenceStartToken", "FlowMappingStartToken", "BlockSequenceStartToken", "BlockMappingStartToken"}
)
_YAML_CLOSES = frozenset({"FlowSequenceEndToken", "FlowMappingEndToken", "BlockEndToken"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A file's content as nested plain values, with its name and the line of each dotted path."""

    data: JsonObject
    source: str
    lines: Mapping[str, int] = field(default_factory=dict)

    def locate(self, problem: Problem) -> Problem:
        """The problem with `file:line` filled in from the longest known prefix of its path."""
        path = problem.path
        while path:
            if path in self.lines:
                return replace(problem, where=f"{self.source}:{self.lines[path]}")
            path = re.sub(r"(\.[^.\[\]]*|\[\d+\]|[^.\[\]]+)$", "", path)
        return replace(problem, where=self.source)


def read_table(path: Path) -> Table:
    """Read a file by its suffix; anything wrong with it as a file is an `InputError` that says what to do."""
    _known_suffix(path)
    return parse_table(path, read_text(path))


Merge = Callable[[JsonMapping, JsonMapping], JsonObject]


def read_layers(path: Path, merge: Merge) -> Table:
    """The file laid over the file that its `base` names, and that over the next; `base` is an id in the end, or none.

    merge   lays the second table over the first. Lines are those of the named file.
    """
    table = read_table(path)
    data, real_paths = table.data, [Path(os.path.realpath(path))]
    while isinstance(data.get("base"), str) and data["base"].endswith(SUFFIXES):
        below = path_beside(real_paths[-1], data["base"], "base")
        if below in real_paths:
            expected_text = "files whose bases lead to an end"
            raise InputError(table.locate(Problem(path="base", given=repr(data["base"]), expected=expected_text)))
        real_paths.append(below)
        data = merge(read_table(below).data, {key: value for key, value in data.items() if key != "base"})
    return replace(table, data=data)


def path_beside(path: Path, ref: str, key: str) -> Path:
    """The file that `ref` names where it stands in the file at `path`: in the same folder or below, never outside."""
    target = path_within(path.parent, ref)
    if target is None:
        todo = "copy it there"
        raise InputError(Problem(path=key, given=repr(ref), expected=INSIDE, todo=todo, where=path.name))
    return target


def path_within(folder: Path, ref: str) -> Path | None:
    """The path that `ref` means in a file of this folder, links followed; None where it leads out of the folder."""
    root = os.path.realpath(folder)
    target = Path(os.path.realpath(os.path.join(root, ref)))
    return target if target.is_relative_to(root) else None


def parse_table(path: Path, text: str) -> Table:
    """The table in a text that was already read; `path` says its format and names it in messages."""
    _known_suffix(path)
    if path.suffix.lower() == ".toml":
        data, lines = _toml(path, text)
    elif path.suffix.lower() == ".json":
        data, lines = _json(path, text)
    else:
        data, lines = _yaml(path, text)
    if not isinstance(data, dict):
        raise _refuse(path, f"a {type(data).__name__}", "a table of keys", "see docs/how-to/write-a-scenario.md")
    _check_depth(path, data, DEEPEST)
    return Table(data=data, source=path.name, lines=lines)


def _known_suffix(path: Path) -> None:
    if path.suffix.lower() not in SUFFIXES:
        raise _refuse(
            path, f"a {path.suffix or 'nameless'} file", f"one of {', '.join(SUFFIXES)}", "rename or convert it"
        )


def read_text(path: Path, limit: int = BIGGEST_FILE) -> str:
    """The file as text, unless it is absent, a folder, too large or not UTF-8."""
    try:
        if not path.exists():
            raise _refuse(path, "no such file", "a readable file", "check the path")
        if not path.is_file():
            raise _refuse(path, "not a plain file", "a readable file", "name the file itself")
        if path.stat().st_size > limit:
            raise _refuse(path, f"{path.stat().st_size} bytes", f"at most {limit} bytes", "is this the right file?")
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as wrong:
        raise _refuse(path, f"byte {wrong.start} is not UTF-8", "UTF-8 text", "re-save it as UTF-8") from None
    except OSError as wrong:
        raise _refuse(path, wrong.strerror or "unreadable", "a readable file", "check its permissions") from None


FORMULA = ("=", "+", "-", "@", "\t", "\r")  # what a spreadsheet runs when a cell begins with it


def spreadsheet_cell(text: str) -> str:
    """A cell of a CSV that no spreadsheet runs: an apostrophe before what begins as a formula and is no number.

    >>> spreadsheet_cell("=cmd|' /C calc'!A0"), spreadsheet_cell("-0.25"), spreadsheet_cell("a=b")
    ("'=cmd|' /C calc'!A0", '-0.25', 'a=b')
    """
    if not text.startswith(FORMULA):
        return text
    try:
        float(text)
    except ValueError:
        return f"'{text}"
    return text


def write_text(path: Path, text: str) -> None:
    """Replace the file in one step, so that an interrupted write leaves the old content; a pipe is written to."""
    write_bytes(path, text.encode("utf-8"))


def write_bytes(path: Path, data: bytes) -> None:
    """As `write_text`, for a file that is no text."""
    refuse_unwritable(path)
    try:
        if path.exists() and not path.is_file():
            path.write_bytes(data)
        else:
            _replace(Path(os.path.realpath(path)), data)
    except OSError as wrong:
        raise _unwritable(path, wrong.strerror or str(wrong)) from None


def refuse_unwritable(path: Path) -> None:
    """Say at once, before long work, that a file cannot be written there."""
    if os.path.isdir(path):
        raise _refuse(path, "a folder", "a file to write", "name the file itself")
    if not os.path.isdir(path.parent):
        raise _unwritable(path, f"{path.parent}, which is no folder")
    if not os.access(path.parent, os.W_OK) and not os.access(path, os.W_OK):
        raise _unwritable(path, "no permission")


def _unwritable(path: Path, given: str) -> InputError:
    return _refuse(path, given, "a place that can be written", "choose another")


def _replace(path: Path, data: bytes) -> None:
    """Write beside the file, then put the new one in its place with the old one's permissions."""
    temporary = path.with_name(f".{path.name[:200]}.{os.urandom(8).hex()}")
    mode = path.stat().st_mode & 0o777 if path.exists() else None
    try:
        with open(temporary, "xb") as stream:
            stream.write(data)
        if mode is not None:
            temporary.chmod(mode)
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _refuse(path: Path, given: str, expected: str, todo: str, line: int = 0) -> InputError:
    where = f"{path}:{line}" if line else str(path)
    return InputError(Problem(path="", given=given, expected=expected, todo=todo, where=where))


def _toml(path: Path, text: str) -> tuple[object, dict[str, int]]:
    import tomllib

    try:
        return tomllib.loads(text), _toml_lines(text)
    except tomllib.TOMLDecodeError as wrong:
        line = re.search(r"line (\d+)", str(wrong))
        raise _refuse(path, str(wrong), "TOML", "fix the syntax there", int(line.group(1)) if line else 0) from None
    except ValueError as wrong:
        raise _refuse(path, str(wrong).split(";")[0], "plain TOML numbers and dates", "fix it") from None
    except RecursionError:
        raise _refuse(path, "too deeply nested", f"at most {DEEPEST} levels", "flatten it") from None


def _json(path: Path, text: str) -> tuple[object, dict[str, int]]:
    try:
        return finite_json(text), _json_lines(text)
    except json.JSONDecodeError as wrong:
        raise _refuse(path, wrong.msg, "JSON", "fix the syntax there", wrong.lineno) from None
    except (ValueError, RecursionError) as wrong:
        raise _refuse(path, str(wrong) or "too deeply nested", "plain JSON numbers and nesting", "fix it") from None


def finite_json(text: str | bytes) -> JsonValue:
    """The value of a JSON text; a `ValueError` also for NaN and numbers that no float holds, such as 1e400."""
    value: JsonValue = json.loads(text, parse_constant=_finite_number, parse_float=_finite_number)
    return value


def _finite_number(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text[:40]} is not a number")
    return number


def _yaml(path: Path, text: str) -> tuple[object, dict[str, int]]:
    import yaml

    lines: dict[str, int] = {}
    try:
        depth = 0
        for token in yaml.scan(text, Loader=yaml.SafeLoader):
            line = token.start_mark.line + 1
            if isinstance(token, yaml.TagToken):
                raise _refuse(path, "a tag", "plain YAML", "write the value out", line)
            kind = type(token).__name__
            depth += (kind in _YAML_OPENS) - (kind in _YAML_CLOSES)
            if depth > DEEPEST + 1:  # before the scanner's time grows with the square of it
                raise _refuse(path, "too deeply nested", f"at most {DEEPEST} levels", "flatten it", line)
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        if node is None:
            return None, lines
        if _count_yaml_values(node, {}) > MOST_YAML_VALUES:
            expected = f"at most {MOST_YAML_VALUES} values with aliases written out"
            raise _refuse(path, "aliases of aliases", expected, "write the values out")
        _yaml_lines(node, "", lines, 0)
        return _write_aliases_out(yaml.safe_load(text)), lines
    except yaml.YAMLError as wrong:
        mark = getattr(wrong, "problem_mark", None)
        problem = getattr(wrong, "problem", None) or str(wrong)
        raise _refuse(path, problem, "YAML", "fix the syntax there", mark.line + 1 if mark else 0) from None
    except ValueError as wrong:
        raise _refuse(path, str(wrong).split(";")[0], "plain YAML numbers and dates", "quote it or fix it") from None
    except RecursionError:
        raise _refuse(path, "too deeply nested", f"at most {DEEPEST} levels", "flatten it") from None


def _count_yaml_values(node: JsonValue, counts: dict[int, int]) -> int:
    """Values below a node of YAML with every alias written out; a `RecursionError` for one that holds itself."""
    if not isinstance(node.value, list):
        return 1
    if counts.get(id(node)) == 0:
        raise RecursionError
    if id(node) not in counts:
        counts[id(node)] = 0
        items = (part for item in node.value for part in (item if isinstance(item, tuple) else (item,)))
        counts[id(node)] = 1 + sum(_count_yaml_values(part, counts) for part in items)
    return counts[id(node)]


def _write_aliases_out(value: JsonValue) -> JsonValue:
    """The value with a table and a list of its own in each place, so that changing one changes no other."""
    if isinstance(value, dict):
        return {key: _write_aliases_out(item) for key, item in value.items()}
    return [_write_aliases_out(item) for item in value] if isinstance(value, list) else value


def _yaml_lines(node: JsonValue, path: str, lines: dict[str, int], depth: int) -> None:
    if depth > DEEPEST:
        return
    if isinstance(node.value, list):
        for index, item in enumerate(node.value):
            key, value = item if isinstance(item, tuple) else (item, item)
            name = f"{path}.{key.value}" if path else str(key.value)
            name = name if isinstance(item, tuple) else f"{path}[{index}]"
            lines[name] = key.start_mark.line + 1
            _yaml_lines(value, name, lines, depth + 1)


def _toml_lines(text: str) -> dict[str, int]:
    """Line of every header and every key that starts a line; keys inside inline tables share their parent's line."""
    lines: dict[str, int] = {}
    arrays: dict[str, int] = {}
    prefix = ""
    for number, line in enumerate(text.splitlines(), 1):
        header = _HEADER.match(line)
        if header and "=" not in line.split("#")[0]:
            prefix = ".".join(part.strip().strip("\"'") for part in header.group(1).split("."))
            if line.lstrip().startswith("[["):
                arrays[prefix] = arrays.get(prefix, -1) + 1
                lines.setdefault(prefix, number)
                prefix = f"{prefix}[{arrays[prefix]}]"
            lines.setdefault(prefix, number)
            continue
        key = _KEY.match(line)
        if key:
            name = ".".join(part.strip().strip("\"'") for part in key.group(1).split("."))
            lines.setdefault(f"{prefix}.{name}" if prefix else name, number)
    return lines


def _json_lines(text: str) -> dict[str, int]:
    """Line of every key: a scan of the tokens, for text that already parsed."""
    lines: dict[str, int] = {}
    stack: list[str | int] = []
    key, line = "", 1
    for token in re.finditer(r'"(?:[^"\\]|\\.)*"(\s*:)?|[{}\[\],\n]', text):
        mark = token.group(0)
        if mark == "\n":
            line += 1
        elif mark in "{[":
            stack.append(key if mark == "{" else 0)
            key = ""
        elif mark in "}]":
            stack.pop()
        elif token.group(1):
            key = json.loads(mark[: -len(token.group(1))])
            parents = [str(part) for part in stack if isinstance(part, str) and part]
            lines.setdefault(".".join([*parents, key]), line)
            line += token.group(1).count("\n")
    return lines


def _check_depth(path: Path, value: object, left: int) -> None:
    if left < 0:
        raise _refuse(path, "too deeply nested", f"at most {DEEPEST} levels", "flatten it")
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    for part in inner:
        _check_depth(path, part, left - 1)


def cache_directory() -> Path:
    """The directory; whoever writes there makes it, for the user alone."""
    chosen_folder = os.environ.get("RIDGELINE_CACHE", "")
    if chosen_folder:
        return Path(chosen_folder)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ridgeline"
