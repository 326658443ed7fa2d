"""Turn a script that is called with words into what each word is, and documentation beside it into such a call.

A call that documentation shows is taken where the script alone means nothing, and said to be: the first one in a file
of text beside the script, or in the script's own comments, whose words are all plain.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from ridgeline.core.errors import InputError, Problem
from ridgeline.targets.imports.run_files import SCRIPTS, Checkout, RunFiles, checkout_of
from ridgeline.targets.imports.shell_eval import read_script
from ridgeline.targets.imports.shell_expand import display_word
from ridgeline.targets.target import Files

STARTERS = frozenset({"bash", "sh", "zsh", "source", ".", "sbatch", "srun", "exec", "nohup", "sudo", "env"})
TEXTS = (".md", ".rst", ".txt")
MOST_TEXTS = 6
MOST_CHOICES = 8
_NAMED = re.compile(
    r"^[ \t]*(?:export[ \t]+|local[ \t]+)?(\w+)=[\"']?\$\{?(\d{1,2})\b[^\n#]*(?:#[ \t]*([^\n]{1,60}))?", re.M
)
_BLOCK = re.compile(r"^[ \t]*```[^\n`]*\n(.*?)^[ \t]*```", re.M | re.DOTALL)
_PLACEHOLDER = re.compile(r"[<>\[\]{}|$]|\.\.\.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """How a script is called.

    where  the file that shows it; empty for a call that the caller gives
    """

    path: str
    arguments: tuple[str, ...] = ()
    environment: Mapping[str, str]
    where: str = ""

    def __str__(self) -> str:
        return shlex.join(("bash", Path(self.path).name, *self.arguments))


def call_of(source: str) -> Call | None:
    """A command line that starts a script, `TP=2 bash run.sh 7B 8`; None for what is the name of a file.

    >>> call = call_of("TP=2 bash examples/run.sh 7B 8")
    >>> call.path, call.arguments, dict(call.environment)
    ('examples/run.sh', ('7B', '8'), {'TP': '2'})
    >>> call_of("my folder/run.sh") is None
    True
    """
    if " " not in source or os.path.exists(source.partition("::")[0]):
        return None
    try:
        words = shlex.split(source.replace("\\\n", " "))
    except ValueError:
        return None
    environment: dict[str, str] = {}
    for at, word in enumerate(words):
        name, equals, value = word.partition("=")
        if equals and name.isidentifier():
            environment[name] = value
        elif word.endswith(SCRIPTS):
            begins = at and (environment or words[0] in STARTERS)
            if not begins and not os.path.exists(word):
                return None
            return Call(path=word, arguments=tuple(words[at + 1 :]), environment=environment)
        elif word not in STARTERS and not word.startswith("-"):
            return None
    return None


def lacking(files: Files) -> dict[int, str]:
    """The words that a script is not called with and takes no default for: number -> name, values and remark."""
    for name, text in files.items():
        if not name.endswith(SCRIPTS):
            continue
        try:
            numbers = sorted(read_script(text, checkout_of(files)).asked)
        except InputError:
            return {}
        if numbers:
            matches_by_number = {int(match.group(2)): match for match in _NAMED.finditer(text)}
            return {number: _argument_name(text, number, matches_by_number.get(number)) for number in numbers}
    return {}


def _argument_name(text: str, number: int, found: re.Match[str] | None) -> str:
    """A word's name in the script, the values that it is compared with, and the remark beside it."""
    name, remark = (found.group(1), (found.group(3) or "").strip()) if found else ("", "")
    reference = rf"\$\{{?(?:{name or number}|{number})\}}?[\"']?"
    compared_values = re.findall(reference + r"\s*={1,2}\s*[\"']?([\w.+-]{1,30})", text[:200_000])
    for arms in re.findall(rf"\bcase\s+[\"']?{reference}\s+in\b(.{{0,4000}}?)\besac\b", text[:200_000], re.DOTALL):
        compared_values += re.findall(r"(?:^|;;)\s*[\"'(]*([\w.+-]{1,30})[\"']?\)", arms, re.MULTILINE)
    choices = list(dict.fromkeys(compared_values))
    choice_text = ", ".join((*choices[:MOST_CHOICES], *(["..."] if len(choices) > MOST_CHOICES else [])))
    explanation = "; ".join(part for part in (choice_text, remark) if part)
    return f"{name} ({explanation})".strip() if explanation else name


def shown_call(files: Files) -> Call | None:
    """The first call of the script that documentation beside it shows with plain words."""
    script = next((name for name in files if name.endswith(SCRIPTS)), None)
    if script is None:
        return None
    for where, blocks in _documentation(files, script):
        for block in blocks:
            call = _call_in(block, script, checkout_of(files))
            if call is not None:
                return Call(path=script, arguments=call[0], environment=call[1], where=where)
    return None


def _documentation(files: Files, script: str) -> Iterator[tuple[str, list[str]]]:
    """Pieces of text that may show a call: the script's comments, code in text files beside it and one folder above."""
    remarks = re.findall(r"^[ \t]*#+[ \t]*(.*)$", files[script][:20_000], re.M)
    yield "the script's own comment", [line for line in remarks if script in line]
    place = checkout_of(files)
    for folder in (place.folder, place.folder.parent) if place.folder else ():
        for path in sorted(_texts(folder), key=lambda path: (not path.name.lower().startswith("readme"), path.name)):
            text = place.text(path) or ""
            if script in text:
                yield path.name, [block for block in _BLOCK.findall(text) if script in block]


def _texts(folder: Path) -> list[Path]:
    try:
        text_names = sorted(name for name in os.listdir(folder) if name.lower().endswith(TEXTS))
    except OSError:
        return []
    return [folder / name for name in text_names[:MOST_TEXTS]]


def _call_in(block: str, script: str, place: Checkout) -> tuple[tuple[str, ...], dict[str, str]] | None:
    """The words and the environment that a piece of documentation calls the script with."""
    try:
        example = read_script(block[:20_000], Checkout(budget=place.budget))
    except InputError:
        return None
    variables = example.variables
    for command in example.commands:
        at = next((index for index, word in enumerate(command) if word.split("/")[-1] == script), None)
        words = tuple(command[at + 1 :]) if at is not None else ()
        if words and not any(_PLACEHOLDER.search(word) for word in words):
            values = {name: " ".join(parts) for name, parts in variables.items() if name.isidentifier()}
            return words, {name: value for name, value in values.items() if display_word(value) == value}
    return None


def missing_arguments(files: Files, wanted: Mapping[int, str], call: Call | None) -> InputError:
    """What a script has to be called with."""
    script = next(name for name in files if name.endswith(SCRIPTS))
    expected_text = ", ".join(f"{number} {explanation}".strip() for number, explanation in wanted.items())
    arguments = checkout_of(files).arguments
    todo = f"say them in order with --arg WORD, or the whole call: ridgeline import 'bash {script} WORD WORD ...'"
    if call is not None:
        todo += f"; {call.where} shows {str(call)[:300]}"
    return InputError(
        Problem(
            path="arguments",
            given=f"a script that takes words, called with {len(arguments) or 'none'}",
            expected=expected_text[:1500],
            todo=todo,
            where=script,
        )
    )


def with_call(files: RunFiles, call: Call) -> RunFiles:
    """The files, called so."""
    environment = {**call.environment, **files.checkout.environment}
    return RunFiles(files, replace(files.checkout, arguments=call.arguments, environment=environment, texts={}))
