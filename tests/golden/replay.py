"""Turn the cases of `cases/*.toml` into the answers of the command line, and two answers into their differences.

A case is a list of commands that are run one after the other in an empty folder of their own, through the entry point
of the command line, with the input files that the case names. Its answer holds exit code, output and complaints of
each command. What depends on the machine or the moment is replaced by a word: seconds a search took, the folder,
Ridgeline's version. Text of several lines becomes a list of lines, so that a difference names one.
"""

from __future__ import annotations

import contextlib
import io
import json
import math
import re
import shlex
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

from golden.inputs import INPUTS

import ridgeline
from ridgeline.cli.main import main

HERE = Path(__file__).parent
CASES, ANSWERS = HERE / "cases", HERE / "answers"
TIMED = {
    "plan": ("seconds", "cpu_seconds", "explain_seconds"),
    "collective": ("synthesis_seconds", "simulation.wall_seconds"),
    "bringup": ("inventory.rows", "speed", "environment"),
}
"""Dotted keys of a verb's answer whose values are measured while it runs, depend on the machine, or fill a file."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """Commands and what they read.

    name      file stem of the answer, below the folder of its verb
    commands  command lines without the program, `--json` included
    files     file name -> a table, which is written as JSON, or text
    inputs    names of generated or stored traces, see `inputs.py`
    slow      whether it takes many seconds: `make test-slow` replays it
    """

    verb: str
    name: str
    commands: tuple[str, ...]
    files: Mapping[str, Any] = field(default_factory=dict)
    inputs: tuple[str, ...] = ()
    slow: bool = False

    @property
    def id(self) -> str:
        return f"{self.verb}/{self.name}"

    @property
    def stored(self) -> Path:
        """Where the answer is kept."""
        return ANSWERS / self.verb / f"{self.name}.json"


def cases() -> tuple[Case, ...]:
    """Every case, in the order of the files."""
    return tuple(
        _case(path.stem, name, table)
        for path in sorted(CASES.glob("*.toml"))
        for name, table in tomllib.loads(path.read_text(encoding="utf-8")).items()
    )


def _case(verb: str, name: str, table: dict[str, Any]) -> Case:
    """A table of a case file -> Case; `scenario` and `options` are short for one command on `run.json`."""
    known = {"scenario", "options", "commands", "files", "inputs", "slow"}
    if unknown := set(table) - known:
        raise ValueError(f"{verb}/{name}: unknown keys {sorted(unknown)}")
    files = dict(table.get("files", {}))
    words = [verb, table.get("options", ""), "--json"]
    if "scenario" in table:
        files["run.json"] = table["scenario"]
        words.insert(1, "run.json")
    alone = " ".join(word for word in words if word)
    return Case(
        verb=verb,
        name=name,
        commands=tuple(table.get("commands", (alone,))),
        files=files,
        inputs=tuple(table.get("inputs", ())),
        slow=table.get("slow", False),
    )


# -- running ----------------------------------------------------------------------------------------------------------


def answer(case: Case, folder: Path) -> list[dict[str, Any]]:
    """What the commands of a case answer in an empty folder."""
    for name, content in case.files.items():
        text = content if isinstance(content, str) else json.dumps(content, indent=1)
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    for name in case.inputs:
        INPUTS[name](folder)
    with contextlib.chdir(folder):
        return [_scrubbed(_ran(command), folder) for command in case.commands]


def _ran(command: str) -> dict[str, Any]:
    """Exit code, output and complaints of one command, timings replaced."""
    words, out, err, code = shlex.split(command), io.StringIO(), io.StringIO(), 0
    with (
        mock.patch("sys.argv", ["ridgeline", *words]),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        try:
            main()
        except SystemExit as ended:
            code = ended.code if isinstance(ended.code, int) else 0
    found: dict[str, Any] = {"command": command, "exit": code}
    if out.getvalue():
        output = json.loads(out.getvalue()) if "--json" in words else out.getvalue()
        for key in TIMED.get(words[0], ()):
            _forget_value(output, key.split("."))
        found["output"] = output
    if err.getvalue():
        found["complaint"] = err.getvalue()
    return found


def _forget_value(output: Any, path: list[str]) -> None:
    """Replace the value at a path of keys by a word, where an answer has one."""
    for key in path[:-1]:
        output = output.get(key) if isinstance(output, dict) else None
    if isinstance(output, dict) and output.get(path[-1]) is not None:
        output[path[-1]] = "TIME"


def _scrubbed(value: Any, folder: Path) -> Any:
    """The same without folder and version in texts; text of several lines as a list of them."""
    if isinstance(value, dict):
        return {_plain(key, folder): _scrubbed(part, folder) for key, part in value.items()}
    if isinstance(value, list):
        return [_scrubbed(part, folder) for part in value]
    if not isinstance(value, str):
        return value
    text = _plain(value, folder)
    return text.split("\n") if "\n" in text else text


def _plain(text: str, folder: Path) -> str:
    for given, word in ((str(folder), "FOLDER"), (f"Ridgeline {ridgeline.__version__}", "Ridgeline VERSION")):
        text = text.replace(given, word)
    return re.sub(r"transformers [\d.]+, torch [\w.+]+", "transformers VERSION, torch VERSION", text)


def text_of(found: Any) -> str:
    """An answer as it is stored: keys in the order produced, floats to the last digit."""
    return json.dumps(found, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


# -- comparing --------------------------------------------------------------------------------------------------------

ABSENT = type("Absent", (), {"__repr__": lambda self: "absent"})()


@dataclass(frozen=True, kw_only=True)
class Difference:
    """A place where two answers differ."""

    path: str
    old: Any
    new: Any

    @property
    def relative(self) -> float | None:
        """Change of a number over what it was, None where either is none."""
        if not all(isinstance(one, (int, float)) and not isinstance(one, bool) for one in (self.old, self.new)):
            return None
        change = abs(self.new - self.old)
        return change / abs(self.old) if self.old else (float("inf") if change else 0.0)

    def __str__(self) -> str:
        relative = "" if self.relative is None else f"  ({self.relative:.3g} relative)"
        return f"{self.path}: {_short(self.old)} -> {_short(self.new)}{relative}"


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 160 else f"{text[:157]}..."


def differences(old: Any, new: Any, *, close: float = 0.0, path: str = "") -> Iterator[Difference]:
    """Every place where two parsed answers differ; 1, 1.0 and true are three values, the order of keys is none.

    close   relative difference of two floats that is none: 0 compares to the last digit
    """
    if isinstance(old, dict) and isinstance(new, dict):
        for key in [*old, *(key for key in new if key not in old)]:
            here = f"{path}.{key}" if path else key
            yield from differences(old.get(key, ABSENT), new.get(key, ABSENT), close=close, path=here)
    elif isinstance(old, list) and isinstance(new, list):
        for place in range(max(len(old), len(new))):
            parts = [side[place] if place < len(side) else ABSENT for side in (old, new)]
            yield from differences(*parts, close=close, path=f"{path}[{place}]")
    elif type(old) is not type(new) or (repr(old) != repr(new) and not _close(old, new, close)):
        yield Difference(path=path, old=old, new=new)


def with_stored_digits(old: Any, new: Any, close: float) -> Any:
    """The new answer, with the stored value of each float that is as good as equal."""
    if isinstance(old, dict) and isinstance(new, dict):
        return {key: with_stored_digits(old.get(key, ABSENT), value, close) for key, value in new.items()}
    if isinstance(old, list) and isinstance(new, list):
        stored = [*old, *([ABSENT] * len(new))]
        return [with_stored_digits(stored[place], value, close) for place, value in enumerate(new)]
    return old if type(old) is type(new) and _close(old, new, close) else new


def _close(old: Any, new: Any, close: float) -> bool:
    """Whether two floats are as good as equal; what is left of a difference of equals is nothing."""
    return close > 0 and isinstance(old, float) and math.isclose(old, new, rel_tol=close, abs_tol=close / 1000)
