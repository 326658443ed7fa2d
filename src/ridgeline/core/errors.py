"""Turn what went wrong into one tree of exceptions, each saying what was given, expected and what to do.

    RidgelineError
    |-- InputError            something the user wrote; carries every Problem found, not only the first
    |   |-- UnknownId         no catalog entry of that name; lists near matches
    |   `-- UnitError         a quantity without a unit, or with the wrong one
    `-- MissingNumber         a catalog number that nobody published is needed now

The command line prints an `InputError` or a `MissingNumber` without a traceback and exits with code 2.
"""

from __future__ import annotations

from collections.abc import Iterable

from ridgeline.core.records import dataclass


class RidgelineError(Exception):
    """Root of everything Ridgeline raises on purpose."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One thing wrong with an input: a value, never an exception, so that all of them can be reported at once.

    path      dotted place inside the input, `plan.tp`; empty when it concerns the whole input
    given     what was found there
    expected  what would have been accepted
    todo      what to do about it
    where     `file:line` once the reader of a file has looked it up
    """

    path: str
    given: str
    expected: str
    todo: str = ""
    where: str = ""

    def __str__(self) -> str:
        place = " ".join(part for part in (self.where, self.path) if part)
        todo = f"; {self.todo}" if self.todo else ""
        return f"{place + ': ' if place else ''}got {self.given}, expected {self.expected}{todo}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """An input that cannot be used as it is, and every reason; exit code 2."""

    problems: tuple[Problem, ...]

    JSON = "possible=false problems"


class InputError(RidgelineError):
    """The input cannot be used as it is; `problems` holds every reason."""

    def __init__(self, problems: Iterable[Problem] | Problem | str) -> None:
        if isinstance(problems, str):
            self.problems: tuple[Problem, ...] = ()
            super().__init__(problems)
            return
        self.problems = (problems,) if isinstance(problems, Problem) else tuple(problems)
        super().__init__("\n".join(str(problem) for problem in self.problems))


class UnknownId(InputError, KeyError):
    """A name that no catalog knows; a `KeyError` too, so that a catalog is an ordinary mapping."""

    __str__ = Exception.__str__  # KeyError's own would quote the message

    def __init__(self, kind: str, given: str, known: Iterable[str], todo: str = "") -> None:
        known = sorted(set(known))
        close = near(given, known)
        expected_text = f"one of {', '.join(close)}" if close else f"one of the {len(known)} known {kind}s"
        super().__init__(
            Problem(
                path=kind,
                given=repr(given),
                expected=expected_text,
                todo=todo or f"`ridgeline show {kind}s` lists them all",
            )
        )


class UnitError(InputError):
    """A quantity that does not carry the unit its place asks for."""


class MissingNumber(RidgelineError):
    """A number the catalog leaves absent because no source publishes it."""

    def __init__(self, owner: str, path: str, unit: str) -> None:
        self.owner, self.path, self.unit = owner, path, unit
        example = f' "… {unit}"' if unit else " …"
        super().__init__(f"{owner} has no published {path}; set it with --set {path}={example.strip()}")


def not_among(path: str, word: str, known: Iterable[str], todo: str = "") -> Problem:
    """The problem of a word outside a closed list: names the list and the nearest member.

    >>> str(not_among("plan.tpp", "tpp", ("tp", "pp")))
    "plan.tpp: got 'tpp', expected one of tp, pp; did you mean 'tp'?"
    """
    names = [str(name) for name in known]
    close = near(word, names, 1)
    advice = f"did you mean {close[0]!r}?" if close else todo
    return Problem(path=path, given=repr(word), expected="one of " + ", ".join(names), todo=advice)


def near(given: str, known: Iterable[str], limit: int = 4) -> list[str]:
    """Known names close to the given one, closest first; a name that contains it counts as close.

    >>> near("h100", ["a100-80-sxm", "h100-sxm", "h100-pcie"])
    ['h100-sxm', 'h100-pcie']
    >>> near("lama3-8b", ["llama3-8b", "gpt2"])
    ['llama3-8b']
    """
    import difflib  # pays only when something is already wrong

    names = list(known)
    lower = given.lower()
    inside = [name for name in names if len(lower) > 2 and lower in name.lower()]
    close = difflib.get_close_matches(lower, names, n=limit, cutoff=0.6)
    candidates = dict.fromkeys([*close, *sorted(inside, key=len)])
    return list(candidates)[:limit]
