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
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from ridgeline.core.errors import InputError, Problem

OPERATORS = frozenset("();|&<>\n")
LONG_OPERATORS = ("<<<", "&>>", "<<-", "&&", "||", ";;", "<<", ">>", "&>", ">&", "<&")
BLANK = " \t\r"
LONGEST = 1000  # characters of an arithmetic command
_DELIMITER = re.compile(r"[ \t]*(['\"\\]?)(\w{0,60})['\"]?")
# `<PATH TO vocab.json>`: a gap that the author leaves, not two redirections
_GAP = re.compile(r"<[A-Za-z](?:[^<>|&;\n`$\"'\\]{0,78}[^<>|&;\s`$\"'\\])?>(?=[\s\"']|$)")
CLOSERS = {"(": ")", "{": "}"}
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
    """One word of a script, before variables are filled in."""

    parts: tuple[WordPart, ...]

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


def tokens(text: str) -> Iterator[Token]:
    """The script's tokens in order; an `InputError` names the line of a quote that never ends.

    >>> [token if isinstance(token, str) else token.text for token in tokens("TP=8 # wide\\ncmd $TP \\\\\\n 'a b'")]
    ['TP=8', '\\n', 'cmd', '$TP', 'a b']
    """
    at = 0
    parts: list[WordPart] = []
    after = 0  # where the line behind a here-document begins
    last: Token = "\n"
    while at < len(text):
        char = text[at]
        if char == "\n" and after > at:
            at = after - 1
        found = _piece(text, at, last if not parts else "") if char != "\n" else None
        if found is not None:
            part, at = found
            parts += [part] if part is not None else []
            continue
        if char in BLANK or char in OPERATORS or (char == "#" and not parts):
            if parts and not (char in "<>" and _is_stream(parts)):
                last = _word(parts)
                yield last
            parts = []
            if char == "#":
                end = text.find("\n", at)
                at = len(text) if end < 0 else end
                continue
            if char in OPERATORS:
                end = _arithmetic(text, at, last) if char == "(" else -1
                if end > 0:
                    last = Word((WordPart(text[at + 2 : end - 2], "arithmetic"),))
                    yield last
                    at = end
                    continue
                sign = next((sign for sign in LONG_OPERATORS if text.startswith(sign, at)), char)
                last = sign
                yield sign
                at += len(sign)
                if sign in ("<<", "<<-"):
                    body, at, after = _here(text, at, max(after, at))
                    yield body
                continue
            at += 1
            continue
        end = at + 1
        while end < len(text) and text[end] not in "\\'\"$`" and text[end] not in BLANK and text[end] not in OPERATORS:
            end += 1
        parts.append(WordPart(text[at:end], "plain"))
        at = end
    if parts:
        yield _word(parts)


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
    depth = 0
    for at in range(start, min(len(text), start + LONGEST)):
        depth += (text[at] == "(") - (text[at] == ")")
        if depth == 0:
            return at + 1 if text[at - 1] == ")" else -1
        if depth == 1 and at > start + 1 and text[at] == ")" and not text.startswith("))", at):
            return -1  # two parentheses that close apart: one inside the other
    return -1


def _is_stream(parts: list[WordPart]) -> bool:
    return len(parts) == 1 and parts[0].quote == "plain" and parts[0].text in ("0", "1", "2", "3")


def _here(text: str, at: int, after: int) -> tuple[Word, int, int]:
    """The text of a here-document as a word, where its delimiter ends, and where the line behind it begins."""
    line = text.find("\n", at)
    line = len(text) if line < 0 else line
    mark = _DELIMITER.match(text, at)
    if mark is None or not mark.group(2):
        return Word((WordPart("", "single"),)), at, after
    begins = after if after > line else line + 1
    found = re.compile(rf"^\t*{re.escape(mark.group(2))}[ \t]*$", re.MULTILINE).search(text, begins)
    end, behind = (found.start(), found.end() + 1) if found else (len(text), len(text))
    quoted = bool(mark.group(1))
    return Word((WordPart(text[begins:end], "single" if quoted else "double"),)), mark.end(), behind


def _word(parts: list[WordPart]) -> Word:
    """The word of these parts, neighbours of one quoting joined."""
    joined: list[WordPart] = []
    for part in parts:
        if joined and joined[-1].quote == part.quote:
            joined[-1] = WordPart(joined[-1].text + part.text, part.quote)
        else:
            joined.append(part)
    return Word(tuple(joined))


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
        opener, closer, depth = text[start + 1], CLOSERS[text[start + 1]], 0
        for at in range(start + 1, len(text)):
            depth += (text[at] == opener) - (text[at] == closer)
            if depth == 0:
                return at + 1
        return len(text)
    end = start + 1
    while end < len(text) and (text[end].isalnum() or text[end] == "_"):
        end += 1
    if end == start + 1 and end < len(text) and text[end] in "@*#?!$":
        end += 1
    return end
