"""Turn the text of a shell script into words and operators, without running anything.

    Word      pieces as written: plain text, 'single', "double" (the last two quoted), each with its text
    str       an operator: newline, ;, (, ), |, &, <, > and their doubles

`$( )` and backquotes are kept as text; whoever expands a word sees that they are there. The text of a here-document is
the word behind its `<<`. The number of a stream before `<` or `>` belongs to the redirection and is no word;
`<WORDS OF THE AUTHOR>` is a gap to fill in, and one word. So is `(( ... ))` where a command begins, and the pattern
behind `=~`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Literal

from ridgeline.core.errors import InputError, Problem
from ridgeline.targets.imports.reading_budget import ReadingBudget

OPERATORS = frozenset("();|&<>\n")
LONG_OPERATORS = ("<<<", "&>>", "<<-", "&&", "||", ";;", "<<", ">>", "&>", ">&", "<&")
BLANK = " \t\r"
LONGEST = 1000  # characters of an arithmetic command
TOKEN_WORK = 4  # of finding a word, for each of its characters
TOKEN_ITEMS = 8  # that a word becomes, with the statement it may be
_DELIMITER = re.compile(r"[ \t]*(['\"\\]?)(\w{0,60})['\"]?")
# `<PATH TO vocab.json>`: a gap that the author leaves, not two redirections
_GAP = re.compile(r"<[A-Za-z](?:[^<>|&;\n`$\"'\\]{0,78}[^<>|&;\s`$\"'\\])?>(?=[\s\"']|$)")
CLOSERS = {"(": ")", "{": "}"}
STREAMS = ("0", "1", "2", "3")
# what a command begins behind
BEGINS = frozenset({"\n", ";", ";;", "&&", "||", "|", "&", "("})
LEADS = frozenset({"if", "elif", "while", "until", "then", "do", "else", "for", "!", "{", "time"})
_PATTERN = re.compile(r"[ \t]*([^\s\"'$`\\]+)(?=[ \t]+(?:\]\]|&&|\|\|))")


@dataclass(frozen=True, slots=True)
class WordPart:
    """A stretch of a word and how it was quoted."""

    text: str
    quote: Literal["plain", "single", "double", "arithmetic"]


@dataclass(frozen=True, slots=True)
class Word:
    """One word of a script, before variables are filled in, and the line that it ends on."""

    parts: tuple[WordPart, ...]
    line: int = field(default=0, compare=False)

    @property
    def bare(self) -> str:
        """The word when all of it is plain text; otherwise nothing, so that a quoted `if` is no keyword."""
        return self.parts[0].text if len(self.parts) == 1 and self.parts[0].quote == "plain" else ""

    @property
    def sums(self) -> str | None:
        """What stands between `((` and `))`; None for another word."""
        return self.parts[0].text if self.parts and self.parts[0].quote == "arithmetic" else None

    @property
    def text(self) -> str:
        """The word without its quotes."""
        return "".join(part.text for part in self.parts)


Token = Word | str


def tokens(text: str, budget: ReadingBudget | None = None) -> Iterator[Token]:
    """The script's tokens in order; an `InputError` names the line of a quote that never ends.

    >>> [token if isinstance(token, str) else token.text for token in tokens("TP=8 # wide\\ncmd $TP \\\\\\n 'a b'")]
    ['TP=8', '\\n', 'cmd', '$TP', 'a b']
    """
    budget = budget or ReadingBudget()
    budget.spend(TOKEN_WORK * len(text))
    at, line, counted_to = 0, 1, 0
    parts: list[WordPart] = []
    after = 0  # where the line behind a here-document begins
    last: Token = "\n"
    while at < len(text):
        char = text[at]
        if char == "\n" and after > at:
            at = after - 1
        piece = _piece(text, at, last if not parts else "") if char != "\n" else None
        if piece is not None:
            part, at = piece
            parts += [part] if part is not None else []
            continue
        if char in BLANK or char in OPERATORS or (char == "#" and not parts):
            budget.spend_items(TOKEN_ITEMS)
            if parts and not (char in "<>" and _word(parts).bare in STREAMS):
                line, counted_to = line + text.count("\n", counted_to, at), at
                last = _word(parts, line)
                yield last
            parts = []
            budget.spend(LONGEST if char == "(" else 0)
            end = _arithmetic(text, at, last) if char == "(" else -1
            if char == "#":
                end = text.find("\n", at)
                at = len(text) if end < 0 else end
            elif end > 0:
                last = Word((WordPart(text[at + 2 : end - 2], "arithmetic"),))
                yield last
                at = end
            elif char in OPERATORS:
                last = sign = next((sign for sign in LONG_OPERATORS if text.startswith(sign, at)), char)
                yield sign
                at += len(sign)
                if sign in ("<<", "<<-"):
                    body, at, after = _here(text, at, max(after, at))
                    yield body
            else:
                at += 1
            continue
        end = at + 1
        while end < len(text) and text[end] not in "\\'\"$`" and text[end] not in BLANK and text[end] not in OPERATORS:
            end += 1
        parts.append(WordPart(text[at:end], "plain"))
        at = end
    if parts:
        yield _word(parts, line + text.count("\n", counted_to))


def _piece(text: str, at: int, last: Token) -> tuple[WordPart | None, int] | None:
    """A piece of a word that begins with a sign of its own, and where the text goes on; None for plain text.

    `last` is the token before the word; empty inside of one.
    """
    char = text[at]
    if char == "\\" and at + 1 < len(text):
        return (WordPart(text[at + 1], "single") if text[at + 1] != "\n" else None), at + 2
    if char in "'\"":
        end = _closing(text, at, char)
        return WordPart(text[at + 1 : end], "single" if char == "'" else "double"), end + 1
    if char in "$`":
        end = _expansion(text, at)
        return WordPart(text[at:end], "plain"), end
    pattern = _PATTERN.match(text, at) if isinstance(last, Word) and last.bare == "=~" else None
    if pattern is not None:
        return WordPart(pattern.group(1), "single"), pattern.end()
    gap = _GAP.match(text, at) if char == "<" else None
    return (WordPart(gap.group(0), "single"), gap.end()) if gap is not None else None


def _arithmetic(text: str, start: int, last: Token) -> int:
    """Where `(( ... ))` ends that begins here, behind a token that a command can follow; -1 where there is none."""
    leads = last in BEGINS if isinstance(last, str) else last.bare in LEADS
    if not leads or not text.startswith("((", start):
        return -1
    inner = closing_at(text, start + 1, "(", LONGEST - 2)
    return inner + 2 if inner > 0 and text.startswith("))", inner) else -1  # others close apart, one inside the other


def closing_at(text: str, start: int, opener: str, window: int) -> int:
    """Where the bracket closes that opens at `start`; -1 when it does not within so many characters."""
    closer, depth = CLOSERS[opener], 0
    for at in range(start, min(len(text), start + window)):
        depth += (text[at] == opener) - (text[at] == closer)
        if depth == 0:
            return at
    return -1


def _here(text: str, at: int, after: int) -> tuple[Word, int, int]:
    """The text of a here-document as a word, where its delimiter ends, and where the line behind it begins."""
    line = text.find("\n", at)
    line = len(text) if line < 0 else line
    mark = _DELIMITER.match(text, at)
    if mark is None or not mark.group(2):
        return Word((WordPart("", "single"),)), at, after
    begins = after if after > line else line + 1
    match = re.compile(rf"^\t*{re.escape(mark.group(2))}[ \t]*$", re.MULTILINE).search(text, begins)
    end, behind = (match.start(), match.end() + 1) if match else (len(text), len(text))
    return Word((WordPart(text[begins:end], "single" if mark.group(1) else "double"),)), mark.end(), behind


def _word(parts: list[WordPart], line: int = 0) -> Word:
    """The word of these parts, neighbours of one quoting joined."""
    groups = groupby(parts, key=lambda part: part.quote)
    return Word(tuple(WordPart("".join(part.text for part in group), quote) for quote, group in groups), line)


def _closing(text: str, start: int, quote: str) -> int:
    """Where the quote that opens at `start` closes."""
    at = start + 1
    while at < len(text):
        if text[at] == quote:
            return at
        if quote == '"' and text.startswith(("$(", "${"), at):  # quotes inside a substitution are its own
            at = _expansion(text, at)
            continue
        back = text.find("`", at + 1, at + LONGEST) if quote == '"' and text[at] == "`" else -1
        if back > 0:
            at = back + 1
            continue
        at += 2 if text[at] == "\\" and quote == '"' else 1
    line = text.count("\n", 0, start) + 1
    raise InputError(Problem(path="", given=f"a {quote} that never closes", expected="a script", where=f"line {line}"))


def _expansion(text: str, start: int) -> int:
    """The end of `$NAME`, `${...}`, `$(...)`, `$((...))` or a backquoted command that begins at `start`."""
    if text[start] == "`":
        end = text.find("`", start + 1)
        return len(text) if end < 0 else end + 1
    if start + 1 < len(text) and text[start + 1] in CLOSERS:
        end = closing_at(text, start + 1, text[start + 1], len(text))
        return len(text) if end < 0 else end + 1
    end = start + 1
    while end < len(text) and (text[end].isalnum() or text[end] == "_"):
        end += 1
    if end == start + 1 and end < len(text) and text[end] in "@*#?!$":
        end += 1
    return end


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

    def input_word(self, *signs: str) -> Word | None:
        """The word behind the first redirection of one of these signs."""
        return next((word for sign, word in self.redirections if sign in signs), None)

    @property
    def line(self) -> int:
        """The line of its first word; 0 where it has none."""
        return next((word.line for word in self.words if isinstance(word, Word)), 0)


@dataclass(frozen=True, slots=True)
class Chain:
    """Statements joined by `&&`, `||` or `|`; the first joint is empty."""

    parts: tuple[tuple[str, Statement], ...]


@dataclass(frozen=True, slots=True)
class If:
    """Conditions with what follows each, and what follows none."""

    arms: tuple[tuple[Block, Block], ...]
    otherwise: Block


@dataclass(frozen=True, slots=True)
class Case:
    """A word, and patterns with what follows each."""

    subject: Word
    arms: tuple[tuple[tuple[Word, ...], Block], ...]


@dataclass(frozen=True, slots=True)
class For:
    """A name that takes the value of one word after another; no words: the script's arguments."""

    name: str
    words: tuple[Token, ...] | None
    body: Block


@dataclass(frozen=True, slots=True)
class While:
    """A body repeated as long as a condition holds, or until it does."""

    test: Block
    body: Block
    until: bool


@dataclass(frozen=True, slots=True)
class ShellFunction:
    """A name for statements."""

    name: str
    body: Block


@dataclass(frozen=True, slots=True)
class Group:
    """Statements in braces or parentheses."""

    body: Block


Statement = Command | Chain | If | Case | For | While | ShellFunction | Group
Block = tuple[Statement, ...]


def parse(tokens: Sequence[Token]) -> Block:
    """The statements of a script."""
    reader = _Reader(tokens)
    statements: list[Statement] = []
    while reader.at < len(tokens):
        before = reader.at
        statements += reader.statements(frozenset(), 0)
        if reader.at == before or reader.word() in STRAY or reader.sign() in (")", ";;"):
            reader.at += 1
    return tuple(statements)


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

    def accept(self, *words: str) -> bool:
        """Whether one of these words comes next, which is then passed over."""
        is_next = self.word() in words
        self.at += is_next
        return is_next

    def blank(self) -> None:
        while self.at < len(self.tokens) and self.sign() in ("\n", ";", "&"):
            self.at += 1

    def statements(self, stops: frozenset[str], depth: int) -> Block:
        """Statements up to a keyword that ends them, a closing sign, or the end."""
        if depth > DEEPEST:
            expected_text = f"at most {DEEPEST} levels"
            raise InputError(Problem(path="", given="statements nested without end", expected=expected_text))
        block: list[Statement] = []
        while True:
            self.blank()
            word = self.word()
            if self.at >= len(self.tokens) or self.sign() in (")", ";;") or word in stops or word in STRAY:
                return tuple(block)
            before = self.at
            block.append(self.chain(depth))
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
        if self.accept("while", "until"):
            test = self.statements(frozenset({"do"}), depth + 1)
            return While(test, self.body(depth), word == "until")
        if word == "{" or self.sign() == "(":
            return self.group(depth)
        if word == "function" or (_NAME.fullmatch(word) and self.sign(1) == "(" and self.sign(2) == ")"):
            return self.function(depth)
        return self.command()

    def body(self, depth: int) -> Block:
        """`do ... done`."""
        self.accept("do")
        body = self.statements(frozenset({"done"}), depth + 1)
        self.accept("done")
        self.read_redirections()
        return body

    def conditional(self, depth: int) -> If:
        arms: list[tuple[Block, Block]] = []
        otherwise: Block = ()
        while self.accept("if", "elif"):
            test = self.statements(frozenset({"then"}), depth + 1)
            self.accept("then")
            arms.append((test, self.statements(frozenset({"elif", "else", "fi"}), depth + 1)))
            if self.accept("else"):
                otherwise = self.statements(frozenset({"fi"}), depth + 1)
            if self.accept("fi"):
                break
        self.read_redirections()
        return If(tuple(arms), otherwise)

    def choice(self, depth: int) -> Case:
        self.at += 1
        subject = self.peek()
        self.at += 1
        self.blank()
        self.accept("in")
        arms: list[tuple[tuple[Word, ...], Block]] = []
        while self.at < len(self.tokens):
            self.blank()
            if self.accept("esac"):
                break
            patterns: list[Word] = []
            while self.at < len(self.tokens) and self.sign() not in (")", "\n"):
                token = self.peek()
                patterns += [token] if isinstance(token, Word) else []
                self.at += 1
            self.at += 1
            arms.append((tuple(patterns), self.statements(frozenset({"esac"}), depth + 1)))
            if self.sign() in (";;", ")"):
                self.at += 1
        self.read_redirections()
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
        if self.accept("in"):
            words = []
            while self.at < len(self.tokens) and self.sign() not in ("\n", ";"):
                words.append(self.peek())
                self.at += 1
        self.blank()
        return For(name, None if words is None else tuple(words), self.body(depth))

    def group(self, depth: int) -> Group:
        round_ = self.sign() == "("
        self.at += 1
        body = self.statements(frozenset({"}"}), depth + 1)
        if (round_ and self.sign() == ")") or self.word() == "}":
            self.at += 1
        self.read_redirections()
        return Group(body)

    def function(self, depth: int) -> ShellFunction:
        self.accept("function")
        name = self.word()
        self.at += 1
        while self.at < len(self.tokens) and self.sign() in ("(", ")", "\n"):
            self.at += 1
        if depth > DEEPEST:
            return ShellFunction(name, ())
        body = self.statement(depth + 1)
        return ShellFunction(name, body.body if isinstance(body, Group) else (body,))

    def read_redirections(self) -> None:
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
