"""Turn arithmetic that a stranger wrote into a number: `4 * B * H * S**2 * D / 2` with sizes by name. Nothing is run.

sum      = product (("+" | "-") product)*
product  = sign (("*" | "/" | "//" | "%") sign)*
sign     = "-" sign | power
power    = atom ("**" sign)?
atom     = number | name | ("min" | "max" | "ceil" | "log2") "(" sum ("," sum)* ")" | "(" sum ")"
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ridgeline.core.errors import InputError, Problem

LONGEST = 400  # characters
DEEPEST = 40  # brackets in each other
MOST_POWER = 64.0
_TOKEN = re.compile(r"\s*(?:(\d+(?:\.\d*)?(?:[eE][-+]?\d{1,3})?)|([A-Za-z_]\w*)|(\*\*|//|[-+*/%(),]))")
FUNCTIONS: Mapping[str, Callable[[Sequence[float]], float]] = {
    "min": min,
    "max": max,
    "ceil": lambda values: float(math.ceil(values[0])),
    "log2": lambda values: math.log2(values[0]),
}


def evaluate(text: str, sizes: Mapping[str, float], path: str = "") -> float:
    """The value of an expression; an `InputError` says where it cannot be read, or which size it lacks.

    >>> evaluate("4 * B * H * S**2 * D / 2", {"B": 1, "H": 8, "S": 512, "D": 64})
    268435456.0
    """
    if len(text) > LONGEST:
        raise _refuse(path, f"{len(text)} characters", f"at most {LONGEST}")
    reading = _ExpressionReading(_tokens(text, path), sizes, path)
    try:
        value = reading.sum(0)
        if reading.place < len(reading.tokens):
            raise _refuse(path, f"{text!r} with {reading.tokens[reading.place]!r} left over", "an expression")
        if not math.isfinite(value):
            raise OverflowError
    except (ZeroDivisionError, OverflowError, ValueError):
        raise _refuse(path, repr(text), "an expression with a finite value at these sizes") from None
    return value


def names_in(text: str) -> tuple[str, ...]:
    """Sizes that an expression names.

    >>> names_in("max(B, 2) * S")
    ('B', 'S')
    """
    words = (match.group(2) for match in _TOKEN.finditer(text[:LONGEST]))
    return tuple(dict.fromkeys(word for word in words if word and word not in FUNCTIONS))


def _tokens(text: str, path: str) -> list[str]:
    tokens: list[str] = []
    at = 0
    while text[at:].strip():
        match = _TOKEN.match(text, at)
        if match is None:
            raise _refuse(path, repr(text[at : at + 20]), "numbers, sizes, + - * / // % **, brackets, " + _NAMES)
        tokens.append(match.group().strip())
        at = match.end()
    return tokens


_NAMES = ", ".join(FUNCTIONS)


@dataclass(slots=True)
class _ExpressionReading:
    """The tokens of one expression, and how far it has been read."""

    tokens: list[str]
    sizes: Mapping[str, float]
    path: str
    place: int = 0

    def next_is(self, *words: str) -> str:
        """The next token where it is one of these, which is then read; empty where it is another."""
        if self.place < len(self.tokens) and self.tokens[self.place] in words:
            self.place += 1
            return self.tokens[self.place - 1]
        return ""

    def sum(self, depth: int) -> float:
        if depth > DEEPEST:
            raise _refuse(self.path, "brackets in brackets", f"at most {DEEPEST} levels")
        value = self.product(depth)
        while sign := self.next_is("+", "-"):
            term = self.product(depth)
            value = value + term if sign == "+" else value - term
        return value

    def product(self, depth: int) -> float:
        value = self.sign(depth)
        while sign := self.next_is("*", "/", "//", "%"):
            factor = self.sign(depth)
            match sign:
                case "*":
                    value *= factor
                case "/":
                    value /= factor
                case "//":
                    value //= factor
                case _:
                    value %= factor
        return value

    def sign(self, depth: int) -> float:
        if self.next_is("-"):
            if depth > DEEPEST:
                raise _refuse(self.path, "signs before signs", f"at most {DEEPEST}")
            return -self.sign(depth + 1)
        return self.power(depth)

    def power(self, depth: int) -> float:
        value = self.atom(depth)
        if self.next_is("**"):
            exponent = self.sign(depth + 1)
            if abs(exponent) > MOST_POWER or value < 0:
                raise OverflowError
            value = float(value) ** exponent
        return value

    def atom(self, depth: int) -> float:
        if self.next_is("("):
            value = self.sum(depth + 1)
            self._close()
            return value
        if self.place >= len(self.tokens):
            raise _refuse(self.path, "an expression that ends too soon", "a number, a size or a bracket")
        word = self.tokens[self.place]
        self.place += 1
        if word[0].isdigit():
            return float(word)
        if word in FUNCTIONS and self.next_is("("):
            values = [self.sum(depth + 1)]
            while self.next_is(","):
                values.append(self.sum(depth + 1))
            self._close()
            return FUNCTIONS[word](values)
        if word not in self.sizes:
            known_sizes = ", ".join(self.sizes) or "none"
            raise _refuse(self.path, repr(word), f"one of the sizes {known_sizes}, or {_NAMES}")
        return float(self.sizes[word])

    def _close(self) -> None:
        if not self.next_is(")"):
            raise _refuse(self.path, "an open bracket", "a closing one")


def _refuse(path: str, given: str, expected: str) -> InputError:
    return InputError(Problem(path=path, given=given, expected=expected))
