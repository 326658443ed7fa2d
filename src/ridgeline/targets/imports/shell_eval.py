"""Turn a shell script that starts a training run into the commands it would run, without running anything.

Variables, arrays, defaults, arithmetic, conditions, choices, loops over known words, functions, the script's own
arguments and environment, files that it sources or writes: followed. A condition that cannot be told does not hold,
what only running would tell is left open, and both are named in `notes`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import chain, islice, takewhile

from ridgeline.core.errors import InputError, Problem
from ridgeline.targets.imports.reading_budget import ReadingBudget
from ridgeline.targets.imports.run_files import SCRIPTS, Checkout, checkout_of
from ridgeline.targets.imports.shell_conditions import (
    ASSIGN,
    FILE_TESTS,
    OURS,
    assigned_in,
    calculate_let,
    compare_words,
    filter_output,
    sbatch_options,
    sequence_output,
)
from ridgeline.targets.imports.shell_expand import (
    MOST_WORDS,
    Script,
    ShellTexts,
    bound_values,
    display_word,
    expand,
    expand_range,
    fill,
    is_open,
    mark,
    parsed_again,
    strip_marks,
    told_by_running,
)
from ridgeline.targets.imports.shell_pattern import matches_pattern
from ridgeline.targets.imports.shell_syntax import (
    Block,
    Case,
    Chain,
    Command,
    For,
    Group,
    If,
    ShellFunction,
    Statement,
    Token,
    While,
    Word,
    WordPart,
    parse,
    tokens,
)
from ridgeline.targets.target import Files

STATEMENT_WORK = 60  # of following a statement
LONGEST_COMMANDS = 2_000_000  # characters of all commands
MOST_TURNS = 200  # of one loop
DEEPEST = 12  # functions, sourced files and quoted commands inside each other
DECLARING = frozenset({"export", "declare", "local", "readonly", "typeset"})
TAKE_SCRIPTS = frozenset({"sbatch", "bash", "sh", "srun"})  # programs whose input is a script
BUILTINS = frozenset({"shift", "set", "source", ".", "eval", "exit", "unset", "true", "false", ":", "let"})
SHELLS = frozenset({"bash", "sh", "/bin/bash", "zsh"})


def read_script(text: str, checkout: Checkout | None = None) -> Script:
    """The script's commands with everything filled in that can be known without running it.

    >>> read_script('TP=${TP:-2}; A=(--tp $TP)\\nif [ $TP -gt 1 ]; then A+=(--sp); fi\\nrun ${A[@]}').commands
    [['run', '--tp', '2', '--sp']]
    """
    place = checkout or Checkout()
    key = (text, place.folder, place.arguments, tuple(place.environment.items()))
    if key not in place.scripts:
        try:
            place.scripts[key] = _follow_script(text, place)
        except InputError as refusal:
            place.scripts[key] = refusal
    script = place.scripts[key]
    if isinstance(script, InputError):
        raise script
    return script


def scripts_among(files: Files) -> Iterator[tuple[str, Script]]:
    """Every shell script among the files with its name, followed."""
    return ((name, read_script(text, checkout_of(files))) for name, text in files.items() if name.endswith(SCRIPTS))


def _follow_script(text: str, place: Checkout) -> Script:
    script = Script(arguments=list(place.arguments), given=place.environment, budget=place.budget)
    for name, value in {**sbatch_options(text), **place.environment}.items():
        script.variables[name] = [value]
    shell = _Shell(script, place, ShellTexts(script, place))
    script.capture = shell.print_output
    with suppress(_Left, _Broke):  # a script ends where it returns
        shell.run(shell.parse(text), 0)
    if script.asked:
        numbers = ", ".join(str(number) for number in sorted(script.asked))
        script.notes.append(f"what words {numbers} of the script's call would say: it is taken as called without")
    return script


class _Left(Exception):
    """`return` was reached."""


class _Broke(Exception):
    """`break` or `continue` was reached."""


class _Untold(Exception):
    """What a command prints cannot be told."""


@dataclass(slots=True)
class _Shell:
    script: Script
    checkout: Checkout
    texts: ShellTexts
    functions: dict[str, Block] = field(default_factory=dict)
    blocks: dict[str, Block] = field(default_factory=dict)  # by the text that they were parsed from
    is_quoted: bool = False  # what is followed is another text than the script, whose lines are not its own
    recorded_sizes: list[int] = field(default_factory=lambda: [0, 0])  # words and characters of the commands so far
    absent_files: list[str] = field(default_factory=list)  # that conditions asked for
    is_test: bool = False  # a condition is followed: what it starts is no run
    level: int = 0  # substitutions inside each other
    output: list[str] | None = None  # of a substitution: what its commands print; what is no plain tool ends it

    def print_output(self, text: str) -> str | None:
        """What plain tools, conditions and the script's own functions in `$(...)` print; None where nobody can tell."""
        if self.level >= DEEPEST:
            return None
        self.budget.spend_items(len(self.script.variables) + len(self.functions))
        copy = replace(self.script, variables=dict(self.script.variables), commands=[], notes=[], texts={}, asked=set())
        texts = ShellTexts(copy, self.checkout)
        inner = replace(self, script=copy, texts=texts, functions=dict(self.functions), output=[], level=self.level + 1)
        copy.capture = inner.print_output
        with suppress(_Left, _Broke):
            try:
                inner.run_text(text, 4)
            except (_Untold, InputError):
                return None
        is_certain = inner.output and not copy.notes and not copy.commands
        return "\n".join(inner.output or ()).rstrip("\n") if is_certain else None

    @property
    def budget(self) -> ReadingBudget:
        """What following the script may still cost; substitutions and other scripts spend the same."""
        return self.script.budget

    def parse(self, text: str) -> Block:
        """The statements of a text, parsed once."""
        if text not in self.blocks:
            self.budget.spend_text(len(text))
            self.blocks[text] = parse(tuple(tokens(text, self.budget)))
        return self.blocks[text]

    def run_text(self, text: str, depth: int) -> bool | None:
        """Follow a text that is not the script's own: sourced, evaluated, substituted, handed to a shell."""
        before, self.is_quoted = self.is_quoted, True
        try:
            return self.run(self.parse(text), depth)
        finally:
            self.is_quoted = before

    def run_pipe(self, chain: Chain, depth: int) -> str:
        """What `a | b | c` of plain tools prints."""
        before, self.output = self.output, []
        self.run_statement(chain.parts[0][1], depth + 1)
        text, self.output = "\n".join(self.output), before
        for joint, statement in chain.parts[1:]:
            words = self.values(statement.words) if isinstance(statement, Command) and joint == "|" else []
            self.budget.spend_text(len(text), 4)
            self.budget.spend_items(len(text) // 2)
            output = filter_output(words, text) if words and not is_open(text) else None
            if output is None:
                raise _Untold
            text = output
        return text

    def run(self, statements: Iterable[Statement], depth: int) -> bool | None:
        """Follow statements; whether the last one succeeds, None where that cannot be told."""
        status: bool | None = True
        for statement in statements:
            self.budget.spend(STATEMENT_WORK)
            if depth > DEEPEST * 4:
                return None
            if isinstance(statement, Command) and not self.is_quoted:
                self.budget.line = statement.line or self.budget.line
            status = self.run_statement(statement, depth)
        return status

    def run_statement(self, statement: Statement, depth: int) -> bool | None:
        match statement:
            case Command():
                return self.command(statement, depth)
            case Chain():
                return self.chain(statement, depth)
            case If():
                return self.conditional(statement, depth)
            case Case():
                return self.choice(statement, depth)
            case For():
                return self.loop(statement, depth)
            case While():
                return self.repeat(statement, depth)
            case ShellFunction(name=name, body=body):
                self.functions[name] = body
                return True
            case Group(body=body):
                return self.run(body, depth + 1)

    def chain(self, chain: Chain, depth: int) -> bool | None:
        """`a && b || c`, from left to right; the text that a pipe of known commands makes is kept."""
        if any(joint == "|" for joint, _ in chain.parts):
            if self.output is not None:
                self.output.append(self.run_pipe(chain, depth))
                return True
            self.texts.pipe(chain)
        status: bool | None = True
        for joint, statement in chain.parts:
            if (joint == "&&" and status is False) or (joint == "||" and status is not False):
                continue
            status = self.run_statement(statement, depth + 1)
        return status

    # conditions

    def conditional(self, statement: If, depth: int) -> bool | None:
        unsure: list[Statement] = []
        for test, body in statement.arms:
            absent_before = len(self.absent_files)
            test_status = self.run_test(test, depth + 1)
            if test_status:
                return self.run(body, depth + 1)
            if test_status is None or len(self.absent_files) > absent_before:
                unsure += body
        status = self.run(statement.otherwise, depth + 1)
        self.leave_open(unsure)
        return status

    def run_test(self, test: Block, depth: int) -> bool | None:
        before, self.is_test = self.is_test, True
        try:
            return self.run(test, depth)
        finally:
            self.is_test = before

    def leave_open(self, skipped: Iterable[Statement]) -> None:
        """Variables that a branch nobody can tell about would set: nobody can tell what they hold either."""
        variables = self.script.variables
        for name in assigned_in(self.budget, skipped):
            if name in self.checkout.environment:
                variables[name] = [self.checkout.environment[name]]
            else:  # one that had a value is not without one: its mark stays where it is used
                variables[name] = [mark(f"{name}()" if variables.get(name) else name)]

    def choice(self, statement: Case, depth: int) -> bool | None:
        subject = "".join(expand(self.script, statement.subject, split=False))
        unsure = told_by_running(subject)
        for patterns, body in statement.arms:
            texts = ["".join(expand(self.script, pattern, split=False)) for pattern in patterns]
            is_match = any(matches_pattern(self.budget, strip_marks(subject), text) for text in texts)
            if is_match or (unsure and OURS & set(texts)):
                if unsure:
                    note = f"which case {display_word(subject)[:40]} is: taken as {' '.join(texts)[:40]}"
                    self.script.notes.append(note)
                return self.run(body, depth + 1)
        return True

    def loop(self, statement: For, depth: int) -> bool | None:
        if not statement.name:
            self.script.notes.append("a for block")
            return None
        words = self.script.arguments if statement.words is None else self.values(statement.words)
        for value in islice(chain.from_iterable(map(expand_range, words)), MOST_TURNS):
            self.script.variables[statement.name] = [value]
            if not self.run_turn(statement.body, depth + 1):
                break
        return True

    def run_turn(self, body: Block, depth: int) -> bool:
        """Follow the body of a loop once; whether the loop goes on."""
        try:
            self.run(body, depth)
        except _Broke as broke:
            return str(broke) != "break"
        return True

    def repeat(self, statement: While, depth: int) -> bool | None:
        for _ in range(MOST_TURNS):
            test_status = self.run_test(statement.test, depth + 1)
            if test_status is None:
                self.script.notes.append("a while block")
                self.leave_open(statement.body)
                return None
            if test_status is statement.until or not self.run_turn(statement.body, depth + 1):
                break
        return True

    # commands

    def values(self, words: Iterable[Token]) -> list[str]:
        return [value for word in words if isinstance(word, Word) for value in expand(self.script, word)]

    def command(self, command: Command, depth: int) -> bool | None:
        words = list(command.words)
        is_negated = _bare(words) == "!"
        words = words[1:] if is_negated else words
        first = _bare(words)
        if first in ("[", "[[", "test"):
            return _negate(self.test(words), is_negated)
        sums = words[0].sums if words and isinstance(words[0], Word) else None
        if sums is not None:
            worth = calculate_let(self.script, sums)
            return None if worth is None else (worth != 0) is not is_negated
        if first in DECLARING:
            words = self.declare(words)
        self.budget.spend(len(self.script.variables) // 4)
        at, before = 0, dict(self.script.variables)
        while at < len(words) and (match := _assignment(words[at])) is not None:
            at = self.assign(words, at, match)
        if [word.text for word in words[at : at + 1] if isinstance(word, Word)] == ["read"]:
            status = self.texts.read(self.values(words[at:]), command)
            self.script.variables["IFS"] = before.get("IFS", [" "])
            return status
        if command.redirections and len(words) > at:
            printed_text = self.texts.text_of(command, None)
            if printed_text is not None:
                self.texts.write(command, printed_text)
                if self.output is not None and first == "cat":
                    self.output.append(printed_text)
                    return True
        filled_words = self.values(words[at:])
        if first == "eval":
            filled_words = ["eval", *(parsed_again(self.script, word) for word in words[1:] if isinstance(word, Word))]
        if not filled_words:
            return True
        status = self.run_words(filled_words, depth)
        self.run_input(filled_words, command, depth)
        if at:  # `TP=2 bash run.sh`: for this command alone
            self.script.variables = before
        return status

    def run_input(self, words: list[str], command: Command, depth: int) -> None:
        """Follow the script that `sbatch` or a shell is given as its input."""
        here = command.input_word("<<", "<<-")
        if here is None or strip_marks(words[0]) not in TAKE_SCRIPTS or depth >= DEEPEST:
            return
        text = "".join(expand(self.script, here, split=False))
        self.script.slurm_variables = self.script.slurm_variables or sbatch_options(text)
        self.run_text(text, depth + 1)

    def declare(self, words: list[Token]) -> list[Token]:
        export = _bare(words) == "export"
        begins = next(  # what stands in an array may begin with a dash too
            (at for at, word in enumerate(words) if at and not (isinstance(word, Word) and word.bare.startswith("-"))),
            len(words),
        )
        names = words[begins:]
        if any(isinstance(word, Word) and word.bare in ("-n", "-nr") for word in words[1:begins]):
            self.alias(names)
            return []
        for word in names:
            name = word.parts[0].text.partition("=")[0] if isinstance(word, Word) and word.parts else ""
            if export and name.isidentifier():
                self.script.exported_names.add(name)
        assigns = any(isinstance(word, Word) and word.parts and ASSIGN.match(word.parts[0].text) for word in names)
        return names if assigns else []

    def alias(self, words: list[Token]) -> None:
        """`local -n NAME=other`: the other's values under this name, those by key included."""
        for word in words:
            text = "".join(expand(self.script, word, split=False)) if isinstance(word, Word) else ""
            name, equals, other = text.partition("=")
            if equals and name.isidentifier():
                variables = self.script.variables
                self.budget.spend_items(len(variables), 4)
                variables |= {
                    name + key[len(other) :]: value for key, value in variables.items() if key.split("[")[0] == other
                }

    def assign(self, words: list[Token], at: int, match: re.Match[str]) -> int:
        """Store `NAME=value`, `NAME[key]=value`, `NAME=( ... )` or either with `+=`; the index after it."""
        word = words[at]
        assert isinstance(word, Word)
        name, key, more = match.group(1), match.group(2), bool(match.group(3))
        if key is not None:
            name = f"{name}[{strip_marks(fill(self.script, key)).strip(chr(34) + chr(39))}]"
        before = self.script.variables.get(name, [])
        self.budget.spend_items(len(before))
        if at + 1 < len(words) and words[at + 1] == "(" and match.end() == len(word.text):
            end = at + 2
            values: list[str] = []
            while end < len(words) and words[end] != ")":
                values += self.element(name, words[end])
                end += 1
            self.budget.spend_items(len(values))
            self.script.variables[name] = bound_values((before if more else []) + values)
            return end + 1
        first = word.parts[0]
        value_word = Word((WordPart(first.text[match.end() :], first.quote), *word.parts[1:]))
        value = " ".join(expand(self.script, value_word, split=False))
        if told_by_running(value) and name in self.checkout.environment:
            value = self.checkout.environment[name]
        self.budget.spend_texts([*before, value] if more else [value])
        self.script.variables[name] = bound_values([" ".join(before) + value] if more else [value])
        return at + 1

    def element(self, name: str, token: Token) -> list[str]:
        """The words that an element of an array becomes; `[key]=value` is kept by its key."""
        if not isinstance(token, Word):
            return []
        keyed_values = re.match(r"\[([^\]]{1,80})\]=", token.text)
        if keyed_values and token.parts[0].quote == "plain":
            value = "".join(expand(self.script, token, split=False)).partition("]=")[2]
            key = strip_marks(fill(self.script, keyed_values.group(1))).strip("\"'")
            self.script.variables[f"{name}[{key}]"] = [value]
            return []
        return expand(self.script, token)

    def run_words(self, words: list[str], depth: int) -> bool | None:
        """A command with its words: one of the shell's own, a function, another script, or a program."""
        name = strip_marks(words[0])
        if name in self.functions and depth < DEEPEST:
            return self.call(self.functions[name], words[1:], depth)
        if name in ("break", "continue"):
            raise _Broke(name)
        if name == "return":
            raise _Left
        if name in BUILTINS:
            return self.run_builtin(name, words, depth)
        if self.output is not None:
            self.budget.spend_text(50 * sum(map(len, words)))
            printed_text = sequence_output(words)
            if printed_text is None:
                raise _Untold
            self.output.append(printed_text)
            return True
        if self.is_test and not any(word.endswith(".py") for word in words):
            self.script.notes.append(f"whether {display_word(' '.join(words))[:60]} succeeds")
            return None
        self.record(words)
        self.run_inner(words, depth)
        return None

    def run_builtin(self, name: str, words: list[str], depth: int) -> bool | None:
        if name == "shift":
            count = int(words[1]) if len(words) > 1 and words[1].isdigit() else 1
            self.script.arguments[: min(count, len(self.script.arguments))] = []
        elif name == "set" and len(words) > 1 and words[1] == "--":
            self.script.arguments = words[2:]
        elif name in ("source", ".") and len(words) > 1 and depth < DEEPEST:
            text = self.texts.nearby(words[1])
            if text is None:
                self.script.notes.append(f"{display_word(words[1])[:60]}, which is sourced and not here")
                return True
            with suppress(_Left):
                return self.run_text(text, depth + 4)
        elif name == "eval" and depth < DEEPEST:
            return self.run_text(" ".join(words[1:]), depth + 4)
        elif name == "let":
            worth = [calculate_let(self.script, word) for word in words[1:]]
            return None if not worth or worth[-1] is None else worth[-1] != 0
        return name != "false"

    def call(self, body: Block, arguments: list[str], depth: int) -> bool | None:
        before = self.script.arguments
        self.script.arguments = arguments
        self.script.inside += 1
        try:
            return self.run(body, depth + 2)
        except _Left:
            return None
        finally:
            self.script.arguments = before
            self.script.inside -= 1

    def run_inner(self, words: list[str], depth: int) -> None:
        """`bash -c "..."` and `bash other.sh ...`: what they start is followed too."""
        if depth >= DEEPEST:
            return
        for word in words:  # a launcher of containers: what it starts is one word
            if word.startswith("--command=") and " " in word:
                self.run_text(word.partition("=")[2], depth + 4)
                return
        for at, word in enumerate(words[:-1]):
            if word not in SHELLS:
                continue
            flags = list(takewhile(lambda flag: flag.startswith("-"), words[at + 1 :]))
            inner_words = words[at + 1 + len(flags) :]
            if any("c" in flag for flag in flags if not flag.startswith("--")) and inner_words:
                self.run_text(inner_words[0], depth + 4)
            elif inner_words and inner_words[0].endswith(SCRIPTS):
                text = self.texts.nearby(inner_words[0])
                if text is not None:
                    self.budget.spend_items(2 * len(self.script.variables))
                    before, is_quoted = dict(self.script.variables), self.is_quoted
                    self.is_quoted = True
                    self.call(self.parse(text), inner_words[1:], depth + 4)
                    self.is_quoted = is_quoted
                    self.script.variables = {**self.script.variables, **before}  # a process of its own
            return

    def record(self, words: list[str]) -> None:
        """Keep a command, what is left open as it was written; an open word alone is nothing unless it is a value."""
        shown_words: list[str] = []
        for word in words:
            stands_alone = is_open(word) and not strip_marks(word)
            if stands_alone and shown_words and not shown_words[-1].startswith("-"):
                continue
            shown_words.append(display_word(word))
        self.budget.spend_items(len(shown_words), 10)
        self.budget.spend_texts(shown_words)
        self.recorded_sizes[0] += len(shown_words)
        self.recorded_sizes[1] += sum(map(len, shown_words))
        if self.recorded_sizes[0] > MOST_WORDS or self.recorded_sizes[1] > LONGEST_COMMANDS:
            expected_text = f"at most {MOST_WORDS:,} words and {LONGEST_COMMANDS:,} characters of all commands"
            todo = "shorten its loops, or import the command that starts the run"
            raise InputError(
                Problem(path="", given="commands that grow without end", expected=expected_text, todo=todo)
            )
        self.script.commands.append(shown_words)

    def test(self, words: list[Token]) -> bool | None:
        """Whether `[ ... ]` or `[[ ... ]]` holds, parts joined by `&&`, `||`, -a and -o from left to right."""
        parts: list[tuple[str, list[Word]]] = [("", [])]
        for token in words[1:]:
            if isinstance(token, str):
                parts += [(token, [])] if token in ("&&", "||") else []
            elif token.bare in ("-a", "-o"):
                parts.append(("&&" if token.bare == "-a" else "||", []))
            elif token.bare not in ("]", "]]"):
                parts[-1][1].append(token)
        status: bool | None = None
        for joint, part in parts:
            if (joint == "&&" and status is False) or (joint == "||" and status is True):
                continue
            status = self.holds(part)
        return status

    def holds(self, words: list[Word]) -> bool | None:
        raw = ["".join(expand(self.script, word, split=False)) for word in words]
        is_negated = bool(raw) and raw[0] == "!"
        raw = raw[1:] if is_negated else raw
        self.budget.spend_texts(raw)
        if len(raw) == 2 and raw[0] in FILE_TESTS:
            if raw[0] in ("-f", "-e", "-s", "-r") and self.texts.nearby(raw[1]) is not None:
                return not is_negated
            self.note_absent(raw[1])
        return _negate(compare_words(self.script, raw), is_negated)

    def note_absent(self, name: str) -> None:
        """Say that a file or folder was taken as absent, once: it may be there where the script runs."""
        shown = display_word(name)[:60]
        if shown not in self.absent_files:
            self.script.notes.append(f"whether {shown} is there: taken as absent")
        self.absent_files.append(shown)


def _bare(words: Sequence[Token]) -> str:
    return words[0].bare if words and isinstance(words[0], Word) else ""


def _negate(status: bool | None, is_negated: bool) -> bool | None:
    return status if status is None else status is not is_negated


def _assignment(token: Token) -> re.Match[str] | None:
    if isinstance(token, Word) and token.parts and token.parts[0].quote == "plain":
        return ASSIGN.match(token.parts[0].text)
    return None
