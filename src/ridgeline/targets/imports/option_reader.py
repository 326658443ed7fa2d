"""Turn a target's file or command line into options that are taken one by one, so that what nobody took is unread.

`--x 4`, `--x=4`, `-x 4`, `--x_y`, switches with `--no-`, aliases and unambiguous beginnings mean what Python's argparse
takes them for. A word that no recorded option explains is kept apart with the names nearest to it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from fnmatch import fnmatchcase
from functools import lru_cache, wraps
from itertools import pairwise
from pathlib import Path
from typing import Any, ParamSpec

from ridgeline.core.documents import JsonMapping, JsonObject
from ridgeline.core.errors import InputError, Problem, not_among
from ridgeline.core.files import SUFFIXES, Table, parse_table
from ridgeline.core.table import BIGGEST, given_text
from ridgeline.models.load import MODELS
from ridgeline.targets.imports.run_files import SCRIPTS
from ridgeline.targets.imports.shell_eval import SHELLS, scripts_among
from ridgeline.targets.options import DocumentedOptions
from ridgeline.targets.target import Files, Unread, written_words

OPEN = ("auto", "null", "none", "")  # words that leave a number to the software
REFERENCE = re.compile(r"\$\{(oc\.env:|oc\.select:)?([\w.]{1,120})(?:,([^{}]{0,120}))?\}")
SWITCHES = {  # as YAML 1.1 and argparse's programs spell them
    **dict.fromkeys(("true", "1", "yes", "on", "1.0"), True),
    **dict.fromkeys(("false", "0", "no", "off", "0.0"), False),
}
MOST_NOTES = 12
STRANGE = "not an option this reader knows"


def flatten(table: JsonMapping, path: str = "") -> Iterator[tuple[str, object]]:
    """Leaves of nested tables by dotted path; lists are leaves.

    >>> dict(flatten({"a": {"b": 1}, "c": [2]}))
    {'a.b': 1, 'c': [2]}
    """
    for key, value in table.items():
        name = f"{path}.{key}" if path else str(key)
        if isinstance(value, Mapping):
            yield from flatten(value, name)
        else:
            yield name, value


def nest_options(options: JsonMapping) -> JsonObject:
    """The opposite of `flatten`.

    >>> nest_options({"a.b": 1, "c": [2]})
    {'a': {'b': 1}, 'c': [2]}
    """
    table: JsonObject = {}
    for name, value in options.items():
        at = table
        *above, last = name.split(".")
        for key in above:
            if not isinstance(at.get(key), dict):  # a value and a table of one name: the table stands
                at[key] = {}
            at = at[key]
        if not isinstance(at.get(last), dict):
            at[last] = value
    return table


def tables(files: Files, *suffixes: str) -> Iterator[Table]:
    """Every file with one of the suffixes, parsed."""
    for name, text in files.items():
        path = Path(name)
        if path.suffix.lower() in (suffixes or SUFFIXES):
            yield _table(path, text)


@lru_cache(maxsize=64)
def _table(path: Path, text: str) -> Table:
    """A file parsed once, however many targets look at it; nobody changes what it holds."""
    return parse_table(path, text)


def table_of(name: str, text: str | None) -> JsonObject | None:
    """What a file beside those of a run holds; None where it is not here or cannot be parsed.

    >>> table_of("a.json", '{"x": 1}'), table_of("a.json", "{"), table_of("a.json", None)
    ({'x': 1}, None, None)
    """
    try:
        return None if text is None else _table(Path(name), text).data
    except InputError:
        return None


Asked = ParamSpec("Asked")


def false_where_unreadable(signs: Callable[Asked, bool]) -> Callable[Asked, bool]:
    """A test of files that does not hold for those that cannot be parsed or followed."""

    @wraps(signs)
    def test(*args: Asked.args, **words: Asked.kwargs) -> bool:
        try:
            return signs(*args, **words)
        except InputError:
            return False

    return test


@false_where_unreadable
def holds(files: Files, wanted: Callable[[JsonObject], bool], *suffixes: str) -> bool:
    """Whether a file of these suffixes is wanted.

    >>> holds({"a.json": '{"x": 1}'}, lambda data: "x" in data, ".json"), holds({"a.json": "{"}, bool, ".json")
    (True, False)
    """
    return any(wanted(table.data) for table in tables(files, *suffixes))


def only(files: Files, wanted: Callable[[JsonObject], bool], expected: str, *suffixes: str) -> Table:
    """The one file of these suffixes that is wanted, or an `InputError` that says how many there are.

    >>> only({"a.json": '{"x": 1}', "b.json": "{}"}, lambda data: "x" in data, "one file with x", ".json").source
    'a.json'
    """
    matches = [table for table in tables(files, *suffixes) if wanted(table.data)]
    if len(matches) != 1:
        given = f"{len(matches)} such files"
        raise InputError(Problem(path="", given=given, expected=expected, todo="name one file"))
    return matches[0]


class OptionReader:
    """The options of one file. `take` and its kin note what was asked for; a bad value is a problem, not a crash."""

    def __init__(self, table: Table) -> None:
        self.table = table
        self.options = dict(flatten(table.data))
        self.taken: set[str] = set()
        self.assumptions: list[str] = []
        self.problems: list[Problem] = []
        self.notes: list[Unread] = []

    def __contains__(self, option: str) -> bool:
        return option in self.options

    def take(self, *names: str, default: Any = None) -> Any:
        """The value of the first of these names that the file holds."""
        for name in names:
            if name in self.options:
                self.taken.add(name)
                return self.options[name]
        return default

    def skip(self, *names: str) -> None:
        """Pass over options that say nothing beside those that were read."""
        self.taken |= set(names) & self.options.keys()

    def count(self, *names: str, default: int | None = None) -> int | None:
        """A whole number of at least 1; "auto", null and a variable left open count as not given."""
        value = self.take(*names)
        if isinstance(value, str) and "$" in value:
            return self.left_open(names[0], value, default)
        if isinstance(value, str) and value.lower() in OPEN:
            self.assumptions.append(f"{names[0]} = {value[:40]}: left to the software")
            return default
        if value is None:
            return default
        number = int(value) if isinstance(value, str) and re.fullmatch(r"-?\d{1,15}", value) else value
        is_whole = isinstance(number, int) or (isinstance(number, float) and number.is_integer())
        if isinstance(number, bool) or not is_whole:
            return self.bad(names[0], value, "a whole number", default)
        if not 1 <= number <= BIGGEST:
            return self.bad(names[0], value, "a whole number of at least 1", default)
        return int(number)

    def left_open(self, option: str, value: str, instead: int | None) -> int | None:
        """Note a value that the files leave to their caller."""
        match = re.search(r"\$\{?(\w+)", value)
        name = match.group(1) if match else ""
        todo = f"say it with --env {name}=..." if name else "say it with --env or --arg"
        if name.isdigit():
            todo = f"it is argument {name} of the script: say the arguments with --arg, in order"
        given, expected_text = f"{value[:60]}, which is left open", "a value that the files state"
        self.problems.append(Problem(path=option, given=given, expected=expected_text, todo=todo))
        return instead

    def size(self, *names: str) -> int | None:
        """A whole number, 0 included; words such as "auto" count as not given."""
        value = self.take(*names)
        if value is None or (type(value) is int and 0 <= value < 2**31):
            return value
        if isinstance(value, str) and "$" in value:
            return self.left_open(names[0], value, None)
        if isinstance(value, str) and value.lower() in OPEN:
            return None
        return self.bad(names[0], value, "a whole number", None)

    def degree(self, *names: str) -> int:
        """A degree; 1 where the file is silent."""
        return self.count(*names, default=1) or 1

    def share(self, *names: str, default: float) -> float:
        """A number between 0 and 1."""
        value = self.take(*names, default=default)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= 1:
            self.bad(names[0], value, "a number between 0 and 1", None)
            return default
        return float(value)

    def number(self, *names: str, default: float | None = None) -> float | None:
        """A number of 0 or more; "auto", null and a variable left open count as not given."""
        value = self.take(*names)
        if isinstance(value, str) and "$" in value:
            self.left_open(names[0], value, None)
            return default
        if value is None or (isinstance(value, str) and value.lower() in OPEN):
            return default
        given = value_of(value) if isinstance(value, str) else value
        if isinstance(given, bool) or not isinstance(given, (int, float)) or not 0 <= given <= BIGGEST:
            self.bad(names[0], value, "a number of 0 or more", None)
            return default
        return float(given)

    def switch(self, *names: str, default: bool = False) -> bool:
        """True or false, 1 or 0, in words too; null and words such as "auto" count as not given.

        Every other value is a problem: `enabled: 3` is neither.
        """
        value = self.take(*names)
        word = str(value).lower()
        if word in SWITCHES:
            return SWITCHES[word]
        if value is not None and not isinstance(value, (list, Mapping)) and word not in OPEN:
            if "$" in word:
                self.left_open(names[0], str(value), None)
            else:
                self.bad(names[0], value, "true or false", None)
        return default

    def word(self, *names: str, among: JsonMapping, default: Any) -> Any:
        """What the option's word means."""
        value = self.take(*names)
        if value is None:
            return default
        key = str(value).lower()
        meaning = {name.lower(): meaning for name, meaning in among.items()}
        if key not in meaning:
            self.problems.append(not_among(names[0], str(value)[:60], among))
            return default
        return meaning[key]

    def bad(self, option: str, value: object, expected: str, instead: int | None) -> int | None:
        """Note a value that cannot be used, and go on with another."""
        self.problems.append(Problem(path=option, given=given_text(value), expected=expected))
        return instead

    def note(self, option: str, value: str, why: str, *, matters: bool = True) -> None:
        """Tell of an option that is read otherwise than its file means it, or not at all."""
        self.notes.append(Unread(option=option, value=value, why=why, matters=matters))

    def unread(self, apart: Mapping[str, str]) -> tuple[Unread, ...]:
        """Every option that was not taken; `apart` says why by pattern, for those that decide nothing here.

        Raises an `InputError` if a value could not be used.
        """
        if self.problems:
            raise InputError([self.table.locate(problem) for problem in self.problems])
        notes = list(self.notes)
        for name in [name for name in self.options if name not in self.taken]:
            why = next((why for pattern, why in apart.items() if fnmatchcase(name, pattern)), STRANGE)
            notes.append(Unread(option=name, value=given_text(self.options[name]), why=why))
        return tuple(notes)


def assignments(files: Files) -> JsonObject:
    """The `key=value` arguments of the commands in shell scripts, later ones on top; nothing is executed.

    >>> assignments({"run.sh": "N=8\\npython3 -m train a.b=$N +c=\'x\' d=true"})
    {'a.b': 8, 'c': 'x', 'd': True}
    """
    return {key: value for command_options in assigned_by(files) for key, value in command_options.items()}


def chips_named(name: str) -> int | None:
    """The chips that a file is named after.

    >>> chips_named("llama3-1-405b-768gpus-a3u-fp8.yaml"), chips_named("llama3-8b.yaml")
    (768, None)
    """
    match = re.search(r"(?<![0-9a-z])([1-9]\d{0,4})gpus?(?![a-z])", name.lower())
    return int(match.group(1)) if match else None


def assigned_by(files: Files, wanted: str = "") -> Iterator[JsonObject]:
    """The `key=value` arguments of each command that has some; of those whose words match `wanted` first.

    Those of a command that only starts another script come last: what that script does with them was followed.
    """
    ranked_options: list[tuple[bool, bool, JsonObject]] = []
    for _, script in scripts_among(files):
        for command in script.commands:
            pairs = (re.fullmatch(r"\+{0,2}([A-Za-z_][\w.@]*)=(.*)", word, re.DOTALL) for word in command[1:])
            options = {pair.group(1): _scalar(pair.group(2)) for pair in pairs if pair}
            if options:
                is_wanted = bool(wanted and re.search(wanted, " ".join(command[:12])))
                ranked_options.append((not is_wanted, starts_script(command), options))
    yield from (options for *_, options in sorted(ranked_options, key=lambda ranked: ranked[:2]))


def split_options(words: Iterable[str]) -> Iterator[tuple[str, list[str]]]:
    """Options of a command without their dashes, each with the words up to the next.

    >>> list(split_options(["run", "--a", "1", "2", "--b=3", "--c"]))
    [('a', ['1', '2']), ('b', ['3']), ('c', [])]
    """
    name, values = "", list[str]()
    for word in words:
        if word.startswith("--") and len(word) > 2:
            if name:
                yield name, values
            name, equals, value = word[2:].partition("=")
            values = [value] if equals else []
        else:
            values.append(word)
    if name:
        yield name, values


def starts_script(command: Sequence[str]) -> bool:
    """Whether a command starts another script with a shell.

    >>> starts_script(["exec", "bash", "./other.sh", "a.b=1"]), starts_script(["python3", "main.py", "a.b=1"])
    (True, False)
    """
    return any(word in SHELLS and script.endswith(SCRIPTS) for word, script in pairwise(command[:5]))


def interpolate_references(options: JsonMapping, environment: Mapping[str, str]) -> JsonObject:
    """Options with OmegaConf's references filled in: another option, one with a default, the environment.

    >>> interpolate_references({"a": "${b.c}", "b.c": 4, "d": "${oc.env:N,8}", "e": "${oc.select:x.y,null}"}, {})
    {'a': 4, 'b.c': 4, 'd': 8, 'e': None}
    """
    options_filled = dict(options)
    for _ in range(4):  # references to references
        for name, value in options_filled.items():
            reference = REFERENCE.fullmatch(value) if isinstance(value, str) else None
            if reference is None:
                continue
            kind, key, default = reference.groups()
            target = environment.get(key) if kind == "oc.env:" else options_filled.get(key)
            if target is not None:
                options_filled[name] = _scalar(target) if isinstance(target, str) else target
            elif default is not None:
                options_filled[name] = _scalar(default.strip())
    return options_filled


def left_out(files: Files) -> list[str]:
    """What was left out of shell scripts because only running them would tell, as assumptions."""
    notes = dict.fromkeys(note for _, script in scripts_among(files) for note in script.notes)
    return [f"left out: {note}" for note in notes][:MOST_NOTES]


def _scalar(text: str) -> bool | int | float | str | None:
    """A word of a command line as the plain value it spells."""
    if len(text) > 1 and text[0] == text[-1] and text[0] in "\"'":  # quotes for the program's own parser
        return text[1:-1]
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    if text.lower() in ("null", "none", ""):
        return None
    if re.fullmatch(r"-?\d{1,18}", text):
        return int(text)
    if re.fullmatch(r"-?\d{0,18}\.\d{0,18}(e-?\d{1,3})?|-?\d{1,18}\.?e-?\d{1,3}", text, re.IGNORECASE) and text != ".":
        return float(text)
    return text


def model_in(files: Files) -> str | None:
    """The catalog model that a file written by Ridgeline names at its top."""
    return next((id for id in written_words(files, r"^\W{0,4}model: ([\w.:-]{1,128})\s*$") if id in MODELS), None)


def pick(settings: JsonMapping) -> JsonObject:
    """Settings without the keys that are absent."""
    return {key: value for key, value in settings.items() if value is not None}


NUMBER = re.compile(r"[+-]?(\d{1,18}|\d{0,18}\.\d{0,18})(e[+-]?\d{1,3})?", re.IGNORECASE)


@dataclass(slots=True)
class Arguments:
    """Options by name: one value as itself, several as a list, a switch as True or False; words that are none."""

    options: JsonObject = field(default_factory=dict)
    words: list[str] = field(default_factory=list)
    strange: list[Unread] = field(default_factory=list)


def read_arguments(words: Iterable[str], *known: DocumentedOptions) -> Arguments:
    """Every option of the words, by the lists of the programs that share them.

    >>> from ridgeline.targets.options import options
    >>> found = read_arguments(["m", "-tp", "2", "--no-enable-prefix-caching", "--block_size=32"], options("vllm"))
    >>> found.words, found.options
    (['m'], {'tensor-parallel-size': 2, 'enable-prefix-caching': False, 'block-size': 32})
    """
    arguments = Arguments()
    flags = {name for option_list in known for name in option_list.flags}
    takes_value = {name for option_list in known for name in option_list.values}
    values: list[Any] | None = arguments.words
    for word in words:
        if not _is_option(word):
            if values is not None:
                values.append(value_of(word))
            continue
        text, equals, value = word.lstrip("-").partition("=")
        name = _option_name(text, known)
        if name is None:
            arguments.strange.append(_strange_option(word, text, known))
            values = []
        elif name.startswith("no-") and name[3:] in flags:
            arguments.options[name[3:]] = False
            values = None
            continue
        elif name in flags and name not in takes_value:
            arguments.options[name] = True
            values = None
            continue
        else:
            values = arguments.options[name] = []
        if equals and values is not None:
            values.append(value_of(value))
    for name, value_list in arguments.options.items():
        if isinstance(value_list, list):
            arguments.options[name] = value_list[0] if len(value_list) == 1 else value_list or True
    arguments.words = [str(word) for word in arguments.words]
    return arguments


def _is_option(word: str) -> bool:
    return len(word) > 1 and word.startswith("-") and NUMBER.fullmatch(word) is None


def _option_name(text: str, known: Iterable[DocumentedOptions]) -> str | None:
    """The documented name that a text means; what stands behind a dot is part of a value that is an object."""
    stem, dot, inner = text.replace("_", "-").partition(".")
    for option_list in known:
        full = option_list.aliases.get(stem, stem)
        if full in option_list.values or full in option_list.flags:
            return full + dot + inner
    names = (name for option_list in known for name in (*option_list.values, *option_list.flags))
    starts = {name for name in names if name.startswith(stem)} if len(stem) > 1 else set()
    meanings = {option_list.aliases.get(name, name) for name in starts for option_list in known}
    return next(iter(meanings)) if len(meanings) == 1 else None


def _strange_option(word: str, text: str, known: Iterable[DocumentedOptions]) -> Unread:
    names = sorted({name for option_list in known for name in (*option_list.values, *option_list.flags)})
    near = get_close_matches(text.replace("_", "-"), names, n=3, cutoff=0.6)
    titles = " or ".join(option_list.title for option_list in known)
    hint = f"; near: {', '.join(f'--{name}' for name in near)}" if near else ""
    return Unread(option=given_text(word)[1:-1], value="", why=f"no option of {titles}{hint}")


def value_of(word: str) -> int | float | str:
    """A word as the plain value it spells.

    >>> value_of("8"), value_of("0.9"), value_of("fp8"), value_of("nan")
    (8, 0.9, 'fp8', 'nan')
    """
    if NUMBER.fullmatch(word) is None or not any(char.isdigit() for char in word):
        return word
    return int(word) if word.lstrip("+-").isdigit() else float(word)
