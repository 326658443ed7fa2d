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

# what a hostile script may cost: lengths are bounded so that text made of nothing but openings is read in linear time
MOST_WORDS = 20_000  # of all commands, and of one array
LONGEST = 1_000_000  # characters of one variable
DEEPEST = 20  # expansions inside expansions
_BRACES = 2000  # characters of ${...}, $(...) and backquotes
_SUM = 500  # characters of $((...))
_ASSIGN = re.compile(r"([A-Za-z_]\w*)(\+?)=")
_VARIABLE = re.compile(
    rf"\$(?:(\w+|[@*#?])|\{{([^{{}}]{{0,{_BRACES}}})\}})|\$\(\((.{{0,{_SUM}}}?)\)\)"
    rf"|(\$\(.{{0,{_BRACES}}}?\)|`[^`]{{0,{_BRACES}}}`)",
    re.DOTALL,
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
    _follow(script, list(tokens(text)))
    return script


def _follow(script: Script, stream: list[Token]) -> None:
    """Follow the statements of a script in order, those of a branch only where its condition holds."""
    branches = _Branches(script)
    at = 0
    while at < len(stream):
        end = _statement_end(stream, at)
        words, at = stream[at:end], end + 1
        while (keyword := _keyword(words)) in KEYWORDS:
            words = KEYWORDS[keyword](branches, words)
        if keyword in SKIPPED:
            at = _after(stream, at, SKIPPED[keyword])
            script.notes.append(f"a {keyword} block")
        elif words and branches.live:
            _statement(script, words)


@dataclass(slots=True)
class _Branches:
    """The stack of open `if`s: of each, whether its present branch is taken, and whether that or an earlier one is.

    The methods take a statement that begins with a keyword and leave the words behind it that are a statement too.
    """

    script: Script
    stack: list[tuple[bool, bool]] = field(default_factory=list)

    @property
    def live(self) -> bool:
        """Whether a statement here runs."""
        return all(taken for taken, _ in self.stack)

    def begin(self, words: list[Token]) -> list[Token]:
        holds = self.live and _condition(self.script, words[1:])
        self.stack.append((holds, holds))
        return []

    def otherwise_if(self, words: list[Token]) -> list[Token]:
        if not self.stack:
            return words[1:]
        _, before = self.stack.pop()
        holds = self.live and not before and _condition(self.script, words[1:])
        self.stack.append((holds, before or holds))
        return []

    def otherwise(self, words: list[Token]) -> list[Token]:
        if self.stack:
            _, before = self.stack.pop()
            self.stack.append((not before, True))
        return words[1:]

    def end(self, words: list[Token]) -> list[Token]:
        if self.stack:
            self.stack.pop()
        return words[1:]

    def go_on(self, words: list[Token]) -> list[Token]:
        return words[1:]


KEYWORDS: Mapping[str, Callable[[_Branches, list[Token]], list[Token]]] = {
    "if": _Branches.begin,
    "elif": _Branches.otherwise_if,
    "else": _Branches.otherwise,
    "fi": _Branches.end,
    "then": _Branches.go_on,
    "do": _Branches.go_on,
    "{": _Branches.go_on,
}


def _keyword(words: list[Token]) -> str:
    """The first word of a statement, where it is one that may be a keyword: plain text."""
    return words[0].bare if words and isinstance(words[0], Word) else ""


def _statement_end(stream: list[Token], at: int) -> int:
    """Where the statement that begins here ends, outside parentheses; a condition goes on behind `||` and `&&`."""
    stops = "\n;" if _keyword(stream[at : at + 1]) in ("if", "elif") else "\n;|&"
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
