"""Turn a shell script that starts a training run into the commands it would run, without running anything.

Variables, arrays, defaults (`${X:-8}`), whole-number arithmetic and simple conditions are followed; everything else
(command substitution, loops, functions, positional arguments) is left out and named in `notes`.
"""

from __future__ import annotations

import ast
import operator
import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from ridgeline.core.errors import InputError, Problem
from ridgeline.targets.shell_lexer import Token, Word, tokens

MOST_WORDS = 20_000
LONGEST = 1_000_000  # characters of one variable
DEEPEST = 20  # expansions inside expansions
_ASSIGN = re.compile(r"([A-Za-z_]\w*)(\+?)=")
# lengths are bounded so that text made of nothing but openings is still read in linear time
_VARIABLE = re.compile(
    r"\$(?:(\w+|[@*#?])|\{([^{}]{0,2000})\})|\$\(\((.{0,500}?)\)\)|(\$\(.{0,2000}?\)|`[^`]{0,2000}`)", re.DOTALL
)
_BRACED = re.compile(r"(\w+)(?:\[[@*]\])?(?:(:?[-=+])(.*))?", re.DOTALL)
_ARITHMETIC: Mapping[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Div: operator.floordiv,
    ast.Mod: operator.mod,
}
_COMPARE: Mapping[str, Callable[[int, int], bool]] = {
    "-eq": operator.eq,
    "-ne": operator.ne,
    "-gt": operator.gt,
    "-lt": operator.lt,
    "-ge": operator.ge,
    "-le": operator.le,
}
SKIPPED = {"for": "done", "while": "done", "until": "done", "case": "esac"}
DECLARING = frozenset({"export", "declare", "local", "readonly", "typeset"})


@dataclass(slots=True)
class Script:
    """What was learnt of a script: values of variables, exported names, commands as words, and what was left out."""

    variables: dict[str, list[str]] = field(default_factory=dict)
    exported: set[str] = field(default_factory=set)
    commands: list[list[str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def environment(self) -> dict[str, str]:
        """Exported variables and their values."""
        return {name: " ".join(self.variables.get(name, [])) for name in self.exported}


def read_script(text: str) -> Script:
    """The script's commands with everything filled in that can be known without running it.

    >>> read_script('TP=${TP:-2}; A=(--tp $TP)\\nif [ $TP -gt 1 ]; then A+=(--sp); fi\\nrun ${A[@]}').commands
    [['run', '--tp', '2', '--sp']]
    """
    script = Script()
    _block(script, list(tokens(text)), True)
    return script


def _block(script: Script, stream: list[Token], taken: bool) -> None:
    """Follow statements; `taken` says whether the branch they stand in is."""
    branches: list[tuple[bool, bool]] = []  # (this branch, any earlier one) of every open `if`
    at = 0
    while at < len(stream):
        head = stream[at]
        asked = isinstance(head, Word) and head.bare in ("if", "elif")
        end = _statement_end(stream, at, "\n;" if asked else "\n;|&")
        words = stream[at:end]
        at = end + 1
        while words and isinstance(words[0], Word) and words[0].bare in ("then", "do", "{", "else", "elif", "fi", "if"):
            keyword = words[0].bare
            live = taken and all(here for here, _ in branches[: -1 if keyword in ("else", "elif", "fi") else None])
            if keyword == "if":
                holds = live and _condition(script, words[1:])
                branches.append((holds, holds))
                words = []
            elif keyword == "elif" and branches:
                before = branches[-1][1]
                holds = live and not before and _condition(script, words[1:])
                branches[-1] = (holds, before or holds)
                words = []
            elif keyword == "else" and branches:
                branches[-1] = (not branches[-1][1], True)
                words = words[1:]
            elif keyword == "fi" and branches:
                branches.pop()
                words = words[1:]
            else:
                words = words[1:]
        if words and isinstance(words[0], Word) and words[0].bare in SKIPPED:
            at = _after(stream, at, SKIPPED[words[0].bare])
            script.notes.append(f"a {words[0].bare} block")
        elif words and taken and all(here for here, _ in branches):
            _statement(script, words)


def _statement_end(stream: list[Token], at: int, stops: str) -> int:
    """Where a statement ends: at one of the operators, outside parentheses."""
    depth = 0
    while at < len(stream):
        token = stream[at]
        depth += (token == "(") - (token == ")")
        if isinstance(token, str) and depth <= 0 and token in stops:
            return at
        at += 1
    return at


def _after(stream: list[Token], at: int, closer: str) -> int:
    depth = 1
    openers = {word for word, end in SKIPPED.items() if end == closer}
    while at < len(stream) and depth:
        token = stream[at]
        word = token.bare if isinstance(token, Word) else ""
        depth += (word in openers) - (word == closer)
        at += 1
    return at


def _statement(script: Script, words: list[Token]) -> None:
    """An assignment, a declaration, or a command."""
    plain = [word for word in words if isinstance(word, Word)]
    if plain and plain[0].bare in DECLARING:
        for declared in plain[1:]:
            name = declared.parts[0].text.partition("=")[0]
            if plain[0].bare == "export" and name.isidentifier():
                script.exported.add(name)
        words = words[words.index(plain[0]) + 1 :]
        if not any(isinstance(word, Word) and _ASSIGN.match(word.parts[0].text) for word in words):
            return
    at = 0
    while at < len(words):
        word = words[at]
        found = _ASSIGN.match(word.parts[0].text) if isinstance(word, Word) and word.parts[0].quote == "plain" else None
        if found is None:
            break
        at = _assign(script, words, at, found)
    filled = [value for word in words[at:] if isinstance(word, Word) for value in expand(script, word)]
    if filled and sum(map(len, script.commands)) + len(filled) <= MOST_WORDS:
        script.commands.append(filled)


def _assign(script: Script, words: list[Token], at: int, found: re.Match[str]) -> int:
    """Store `NAME=value`, `NAME=( ... )` or either with `+=`; the index after it."""
    word = words[at]
    assert isinstance(word, Word)
    name, more = found.group(1), bool(found.group(2))
    before = script.variables.get(name, [])
    if at + 1 < len(words) and words[at + 1] == "(" and found.end() == len(word.text):
        end = at + 2
        values: list[str] = []
        while end < len(words) and words[end] != ")":
            inner = words[end]
            values += expand(script, inner) if isinstance(inner, Word) else []
            end += 1
        script.variables[name] = _bounded((before if more else []) + values)
        return end + 1
    first = word.parts[0]
    rest = Word((type(first)(first.text[found.end() :], first.quote), *word.parts[1:]))
    value = " ".join(expand(script, rest, split=False))
    script.variables[name] = _bounded([" ".join(before) + value] if more else [value])
    return at + 1


def _bounded(values: list[str]) -> list[str]:
    """The values, unless a script that doubles a variable again and again has made them too long."""
    if len(values) > MOST_WORDS or sum(map(len, values)) > LONGEST:
        expected = f"at most {LONGEST} characters in a variable"
        raise InputError(Problem(path="", given="a variable that grows without end", expected=expected))
    return values


def expand(script: Script, word: Word, split: bool = True, depth: int = 0) -> list[str]:
    """The words a word becomes: variables filled in, unquoted ones split at blanks."""
    if depth > DEEPEST:
        return []
    if word.text in ("$@", "$*", "${@}"):  # the script's own arguments: none are known
        return []
    whole = re.fullmatch(r"\$\{(\w+)\[[@*]\]\}", word.text)
    if whole and split:  # an array, each element a word, split again when unquoted
        values = script.variables.get(whole.group(1), [])
        return values if word.parts[0].quote == "double" else [piece for value in values for piece in _split(value)]
    pieces = [""]
    for part in word.parts:
        if part.quote == "single":
            pieces[-1] += part.text
            continue
        text = part.text.replace("\\\n", " ") if part.quote == "double" else part.text
        filled = _fill(script, text, depth)
        if part.quote == "double" or not split or filled == text:
            pieces[-1] += filled
        else:
            inner = _split(filled)
            pieces[-1] += inner[0] if inner else ""
            pieces += inner[1:]
    keep = any(part.quote != "plain" for part in word.parts)
    return pieces if keep or not split else [piece for piece in pieces if piece]


def _split(text: str) -> list[str]:
    """Blank-separated words, quotes inside a value taken as quotes (scripts rely on `eval` for that, or err)."""
    try:
        return shlex.split(text)
    except ValueError:
        return text.split()


def _fill(script: Script, text: str, depth: int) -> str:
    """The text with variables, arithmetic and defaults filled in; what cannot be known becomes nothing."""

    def value(match: re.Match[str]) -> str:
        name, braced, sum_, command = match.groups()
        if command is not None:
            script.notes.append(f"the output of {command[:60]}")
            return ""
        if sum_ is not None:
            return _sum(_fill(script, sum_, depth + 1), script)
        found = _BRACED.fullmatch(braced if braced is not None else name)
        if found is None:
            script.notes.append(f"${{{braced}}}")
            return ""
        known = script.variables.get(found.group(1))
        how, other = found.group(2) or "", found.group(3) or ""
        unset = known is None or (how.startswith(":") and not "".join(known))
        if how.endswith("+"):
            return "" if unset else _fill(script, other, depth + 1)
        if unset:
            return _fill(script, other.strip("\"'"), depth + 1) if how else ""
        return " ".join(known or [])

    return text if depth > DEEPEST else _VARIABLE.sub(value, text)


def _sum(text: str, script: Script) -> str:
    """Whole-number arithmetic; bare names are variables."""
    filled = re.sub(r"[A-Za-z_]\w*", lambda name: " ".join(script.variables.get(name.group(0), ["0"])), text)
    try:
        return str(_evaluate(ast.parse(filled.strip(), mode="eval").body))
    except (SyntaxError, ValueError, ZeroDivisionError, RecursionError, MemoryError):
        script.notes.append(f"the value of {text[:60]}")
        return ""


def _evaluate(node: ast.expr) -> int:
    if isinstance(node, ast.Constant) and type(node.value) is int and abs(node.value) < 2**53:
        return node.value
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_evaluate(node.operand)
    if isinstance(node, ast.BinOp) and type(node.op) in _ARITHMETIC:
        return _ARITHMETIC[type(node.op)](_evaluate(node.left), _evaluate(node.right))
    raise ValueError("not whole-number arithmetic")


def _condition(script: Script, words: list[Token]) -> bool:
    """Whether tests joined by `||` and `&&` hold, taken from left to right as the shell does."""
    held = None
    start = 0
    joint = "|"
    for at in range(len(words) + 1):
        if at < len(words) and words[at] not in ("|", "&"):
            continue
        if at > start:
            if held is None or (joint == "|" and not held) or (joint == "&" and held):
                held = _test(script, words[start:at])
            joint = str(words[at]) if at < len(words) else joint
        start = at + 1
    return bool(held)


def _test(script: Script, words: list[Token]) -> bool:
    """Whether `[ ... ]` or `[[ ... ]]` holds; one that cannot be told does not, and is noted."""
    plain = [word for word in words if isinstance(word, Word)]
    filled = ["".join(expand(script, word, split=False)) for word in plain]
    if not filled or filled[0] not in ("[", "[[", "test"):
        script.notes.append(f"whether {' '.join(filled)[:60]} succeeds")
        return False
    test = [word for word in filled[1:] if word not in ("]", "]]")]
    negated = bool(test) and test[0] == "!"
    test = test[1:] if negated else test
    match test:
        case ["-z", value]:
            held = not value
        case ["-n", value] | [value]:
            held = bool(value)
        case [left, "=" | "==", right]:
            held = left == right
        case [left, "!=", right]:
            held = left != right
        case [left, how, right] if how in _COMPARE and left.lstrip("-").isdigit() and right.lstrip("-").isdigit():
            held = _COMPARE[how](int(left), int(right))
        case _:
            script.notes.append(f"whether {' '.join(test)[:60]} holds")
            return False
    return held != negated
