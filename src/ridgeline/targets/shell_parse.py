"""Turn the tokens of a shell script into statements: commands, chains, conditions, choices, loops, functions.

Scripts as people write them are read; what does not fit the grammar (a stray `fi`) is passed over.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from ridgeline.core.errors import InputError, Problem
from ridgeline.targets.shell_lexer import Token, Word, WordPart

DEEPEST = 60  # statements inside statements
REDIRECTIONS = frozenset({">", ">>", "<", "&>", "&>>", ">&", "<&", "<<", "<<-", "<<<"})
ENDS = frozenset({"\n", ";", ";;", "&", "&&", "||", "|", ")"})
_NAME = re.compile(r"[\w:.-]+")
STRAY = frozenset({"then", "do", "done", "fi", "else", "elif", "esac", "}", "in"})


@dataclass(frozen=True, slots=True)
class Command:
    """Words as written, an array's parentheses among them, and where its streams go."""

    words: tuple[Token, ...]
    redirections: tuple[tuple[str, Word], ...] = ()


@dataclass(frozen=True, slots=True)
class Chain:
    """Statements joined by `&&`, `||` or `|`; the first joint is empty."""

    parts: tuple[tuple[str, Statement], ...]


@dataclass(frozen=True, slots=True)
class If:
    """Conditions with what follows each, and what follows none."""

    arms: tuple[tuple[tuple[Statement, ...], tuple[Statement, ...]], ...]
    otherwise: tuple[Statement, ...]


@dataclass(frozen=True, slots=True)
class Case:
    """A word, and patterns with what follows each."""

    subject: Word
    arms: tuple[tuple[tuple[Word, ...], tuple[Statement, ...]], ...]


@dataclass(frozen=True, slots=True)
class For:
    """A name that takes the value of one word after another; no words: the script's arguments."""

    name: str
    words: tuple[Token, ...] | None
    body: tuple[Statement, ...]


@dataclass(frozen=True, slots=True)
class While:
    """A body repeated as long as a condition holds, or until it does."""

    test: tuple[Statement, ...]
    body: tuple[Statement, ...]
    until: bool


@dataclass(frozen=True, slots=True)
class Function:
    """A name for statements."""

    name: str
    body: tuple[Statement, ...]


@dataclass(frozen=True, slots=True)
class Group:
    """Statements in braces or parentheses."""

    body: tuple[Statement, ...]


Statement = Command | Chain | If | Case | For | While | Function | Group


def parse(tokens: Sequence[Token]) -> tuple[Statement, ...]:
    """The statements of a script."""
    reader = _Reader(tokens)
    found: list[Statement] = []
    while reader.at < len(tokens):
        before = reader.at
        found += reader.statements(frozenset(), 0)
        if reader.at == before or reader.word() in STRAY or reader.sign() in (")", ";;"):
            reader.at += 1
    return tuple(found)


class _Reader:
    def __init__(self, tokens: Sequence[Token]) -> None:
        self.tokens = tokens
        self.at = 0

    def peek(self, ahead: int = 0) -> Token:
        return self.tokens[self.at + ahead] if self.at + ahead < len(self.tokens) else "\n"

    def sign(self, ahead: int = 0) -> str:
        token = self.peek(ahead)
        return token if isinstance(token, str) else ""

    def word(self) -> str:
        token = self.peek()
        return token.bare if isinstance(token, Word) else ""

    def blank(self) -> None:
        while self.at < len(self.tokens) and self.sign() in ("\n", ";", "&"):
            self.at += 1

    def statements(self, stops: frozenset[str], depth: int) -> tuple[Statement, ...]:
        """Statements up to a keyword that ends them, a closing sign, or the end."""
        if depth > DEEPEST:
            given = "statements nested without end"
            raise InputError(Problem(path="", given=given, expected=f"at most {DEEPEST} levels"))
        found: list[Statement] = []
        while True:
            self.blank()
            word = self.word()
            if self.at >= len(self.tokens) or self.sign() in (")", ";;") or word in stops or word in STRAY:
                return tuple(found)
            before = self.at
            found.append(self.chain(depth))
            if self.at == before:
                self.at += 1

    def chain(self, depth: int) -> Statement:
        parts: list[tuple[str, Statement]] = [("", self.statement(depth))]
        while self.sign() in ("&&", "||", "|"):
            joint = self.sign()
            self.at += 1
            while self.at < len(self.tokens) and self.sign() == "\n":
                self.at += 1
            if self.at >= len(self.tokens) or self.sign() in (")", ";;"):
                break
            parts.append((joint, self.statement(depth)))
        return parts[0][1] if len(parts) == 1 else Chain(tuple(parts))

    def statement(self, depth: int) -> Statement:
        word = self.word()
        if word == "!" and isinstance(self.peek(1), Word):
            return self.command()
        if word == "if":
            return self.conditional(depth)
        if word == "case":
            return self.choice(depth)
        if word in ("for", "select"):
            return self.loop(depth)
        if word in ("while", "until"):
            self.at += 1
            test = self.statements(frozenset({"do"}), depth + 1)
            return While(test, self.body(depth), word == "until")
        if word == "{" or self.sign() == "(":
            return self.group(depth)
        if word == "function" or (_NAME.fullmatch(word) and self.sign(1) == "(" and self.sign(2) == ")"):
            return self.function(depth)
        return self.command()

    def body(self, depth: int) -> tuple[Statement, ...]:
        """`do ... done`."""
        if self.word() == "do":
            self.at += 1
        found = self.statements(frozenset({"done"}), depth + 1)
        if self.word() == "done":
            self.at += 1
        self.rest()
        return found

    def conditional(self, depth: int) -> If:
        arms: list[tuple[tuple[Statement, ...], tuple[Statement, ...]]] = []
        otherwise: tuple[Statement, ...] = ()
        while self.word() in ("if", "elif"):
            self.at += 1
            test = self.statements(frozenset({"then"}), depth + 1)
            if self.word() == "then":
                self.at += 1
            arms.append((test, self.statements(frozenset({"elif", "else", "fi"}), depth + 1)))
            if self.word() == "else":
                self.at += 1
                otherwise = self.statements(frozenset({"fi"}), depth + 1)
            if self.word() == "fi":
                self.at += 1
                break
        self.rest()
        return If(tuple(arms), otherwise)

    def choice(self, depth: int) -> Case:
        self.at += 1
        subject = self.peek()
        self.at += 1
        self.blank()
        if self.word() == "in":
            self.at += 1
        arms: list[tuple[tuple[Word, ...], tuple[Statement, ...]]] = []
        while self.at < len(self.tokens):
            self.blank()
            if self.word() == "esac":
                self.at += 1
                break
            before = self.at
            patterns: list[Word] = []
            while self.at < len(self.tokens) and self.sign() not in (")", "\n"):
                token = self.peek()
                patterns += [token] if isinstance(token, Word) else []
                self.at += 1
            self.at += 1
            arms.append((tuple(patterns), self.statements(frozenset({"esac"}), depth + 1)))
            if self.sign() in (";;", ")"):
                self.at += 1
            if self.at == before:
                self.at += 1
        self.rest()
        return Case(subject if isinstance(subject, Word) else Word(()), tuple(arms))

    def loop(self, depth: int) -> Statement:
        self.at += 1
        name = self.word()
        head = self.peek()
        counts = head.text.split(";") if isinstance(head, Word) and head.sums is not None else []
        if len(counts) == 3:  # for (( i = 0; i < n; i++ ))
            self.at += 1
            self.blank()
            first, test, step = (Command((Word((WordPart(part, "arithmetic"),)),)) for part in counts)
            return Group((first, While((test,), (*self.body(depth), step), False)))
        if not name:  # never followed
            while self.at < len(self.tokens) and self.word() != "do":
                self.at += 1
            return For("", (), self.body(depth))
        self.at += 1
        self.blank()
        words: list[Token] | None = None
        if self.word() == "in":
            self.at += 1
            words = []
            while self.at < len(self.tokens) and self.sign() not in ("\n", ";"):
                words.append(self.peek())
                self.at += 1
        self.blank()
        return For(name, None if words is None else tuple(words), self.body(depth))

    def group(self, depth: int) -> Group:
        round_ = self.sign() == "("
        self.at += 1
        found = self.statements(frozenset({"}"}), depth + 1)
        if (round_ and self.sign() == ")") or self.word() == "}":
            self.at += 1
        self.rest()
        return Group(found)

    def function(self, depth: int) -> Function:
        if self.word() == "function":
            self.at += 1
        name = self.word()
        self.at += 1
        while self.at < len(self.tokens) and self.sign() in ("(", ")", "\n"):
            self.at += 1
        if depth > DEEPEST:
            return Function(name, ())
        found = self.statement(depth + 1)
        return Function(name, found.body if isinstance(found, Group) else (found,))

    def rest(self) -> None:
        """Redirections behind a compound statement."""
        while self.sign() in REDIRECTIONS:
            self.at += 2

    def command(self) -> Command:
        words: list[Token] = []
        streams: list[tuple[str, Word]] = []
        inside = self.word() == "[["
        depth = 0
        while self.at < len(self.tokens):
            token = self.peek()
            if isinstance(token, str):
                if depth == 0 and token in REDIRECTIONS and not inside:
                    target = self.peek(1)
                    streams += [(token, target)] if isinstance(target, Word) else []
                    self.at += 2 if isinstance(target, Word) else 1
                    continue
                if depth == 0 and token in ENDS and not (inside and token in ("&&", "||", "|", ")", "(")):
                    break
                depth += (token == "(") - (token == ")") if not inside else 0
            elif inside and token.bare == "]]":
                words.append(token)
                self.at += 1
                break
            words.append(token)
            self.at += 1
        return Command(tuple(words), tuple(streams))
