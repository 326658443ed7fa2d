"""Turn options of a run's files that nobody read into how much further its prediction may be off.

    [unread]                             # written by `ridgeline import`; the words are the files' own
    experts = ["--moe-num-experts 64"]
    other = ["--my-flag"]

A decision that was not read is not the usual one: the step may be as much longer or shorter as such decisions make it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from types import MappingProxyType

from ridgeline.core.documents import JsonMapping
from ridgeline.core.errors import Problem, not_among

UnreadOptions = tuple[tuple[str, tuple[str, ...]], ...]  # decision, and the options that may make it
MOST_OPTIONS = 1000
LONGEST_OPTION = 200

LOG_WIDTHS: Mapping[str, float] = MappingProxyType(
    {
        "mesh": math.log(1.3),  # plans of one machine that anybody would start lie within about 30 %
        "batch": math.log(2),  # a step of twice the sequences takes twice as long
        "length": math.log(2),  # and one of twice the tokens
        "precision": math.log(1.6),  # products in 8 bits take half the time of those in 16, the rest takes as long
        "recompute": math.log(4 / 3),  # a forward pass more: 4 passes for 3
        "sharding": math.log(1.15),  # weights gathered for each pass, or states copied from the host
        "experts": math.log(2),  # how many experts a token visits
        "adapters": math.log(1.5),  # without gradients of frozen weights: 2 passes for 3
        "model": math.log(1.5),  # a part of a layer
        "task": math.log(1.5),  # a further forward pass, of a reference or a teacher
        "other": math.log(1.1),  # nothing in its name speaks of the step
    }
)
"""Decision -> by how much a step may differ, in logarithms. Assumed from counts of passes, not measured."""


def unread_options(table: object) -> tuple[UnreadOptions, list[Problem]]:
    """The [unread] table of a scenario, and what is wrong with it.

    >>> unread_options({"experts": ["--moe-num-experts 64"]})
    ((('experts', ('--moe-num-experts 64',)),), [])
    >>> [problem.expected for problem in unread_options({"mesh": "tp"})[1]]
    ['a list of at most 1000 options, each a string']
    """
    if not isinstance(table, Mapping):
        return (), [Problem(path="unread", given=repr(table)[:60], expected="a table: decision = [options]")]
    problems: list[Problem] = []
    options: dict[str, tuple[str, ...]] = {}
    for decision, names in table.items():
        if decision not in LOG_WIDTHS:
            problems.append(not_among(f"unread.{decision}"[:80], str(decision)[:60], LOG_WIDTHS))
        elif not isinstance(names, list) or len(names) > MOST_OPTIONS or not all(isinstance(n, str) for n in names):
            expected = f"a list of at most {MOST_OPTIONS} options, each a string"
            problems.append(Problem(path=f"unread.{decision}", given=repr(names)[:60], expected=expected))
        elif names:
            options[decision] = tuple(name[:LONGEST_OPTION] for name in names)
    return tuple(options.items()), problems


def unread_distance(unread: UnreadOptions) -> tuple[float, str]:
    """How much wider a prediction is, in logarithms, for the decisions that options may make; and which those are.

        width = sqrt(sum over decisions of width squared)

    >>> width, reason = unread_distance((("experts", ("--moe-foo",)), ("other", ("--bar", "--baz"))))
    >>> round(width, 3), reason
    (0.7, 'options that were not read: --moe-foo (experts), --bar, --baz')
    """
    if not unread:
        return 0.0, ""
    width = math.hypot(*(LOG_WIDTHS[decision] for decision, _ in unread))
    parts = (", ".join(names) + (f" ({decision})" if decision != "other" else "") for decision, names in unread)
    return width, f"options that were not read: {', '.join(parts)}"


def unread_table(options: Iterable[tuple[str, str]]) -> JsonMapping:
    """The [unread] table of options with the decision that each may make, in the order of the decisions.

    >>> unread_table([("other", "--b"), ("mesh", "--tp_size 4"), ("other", "--a")])
    {'mesh': ['--tp_size 4'], 'other': ['--b', '--a']}
    """
    listed = list(options)
    by_decision = {decision: [name for of, name in listed if of == decision] for decision in LOG_WIDTHS}
    return {decision: names for decision, names in by_decision.items() if names}
