"""Turn what a system, an engine and a user leave open into choices along an axis: degrees, sizes, values as written."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import TypeVar

from ridgeline.hardware.system import System
from ridgeline.models.spec import Moe
from ridgeline.plan.engine import RecomputePart
from ridgeline.plan.resolve import NEARLY_ALL, separate_norms
from ridgeline.plan.scenario import Scenario
from ridgeline.plan.scenario_file import parse_value

WIDEST = 64  # tensor ranks nobody goes beyond
RANGE = re.compile(r"\s*(\d{1,9})\s*\.\.\s*(\d{1,9})\s*")
MOST_CHOICES = 64  # of one key
ChoiceT = TypeVar("ChoiceT")


def powers_of_two(most: int) -> list[int]:
    """1, 2, 4 … up to `most`.

    >>> powers_of_two(12)
    [1, 2, 4, 8]
    """
    return [1 << place for place in range(max(1, most).bit_length())]


def divisors(number: int, most: int) -> list[int]:
    """Divisors of a number up to `most`.

    >>> divisors(12, 6)
    [1, 2, 3, 4, 6]
    """
    return [size for size in range(1, min(number, most) + 1) if number % size == 0]


def neighbours(choices: tuple[int, ...], own: int) -> tuple[int, ...]:
    """A choice with the next smaller and the next larger one.

    >>> neighbours((1, 2, 4, 8), 4), neighbours((1, 2, 4, 8), 1)
    ((2, 4, 8), (1, 2))
    """
    ordered_choices = tuple(sorted(choices))
    at = ordered_choices.index(own) if own in ordered_choices else 0
    return ordered_choices[max(0, at - 1) : at + 2]


def tensor_degrees(system: System) -> tuple[int, ...]:
    """Tensor ranks that are tried: powers of two as far as the closest links go, and what else divides that domain.

    >>> from ridgeline.hardware.load import system
    >>> tensor_degrees(system("64xh100-sxm")), tensor_degrees(system("2xtpu-v4:12x16x16"))[:8]
    ((1, 2, 4, 8), (1, 2, 3, 4, 6, 8, 12, 16))
    """
    domain = closest_chips(system)
    sizes = {*powers_of_two(domain), *(size for size in divisors(domain, WIDEST) if system.chips % size == 0)}
    return tuple(sorted(size for size in sizes if size <= min(WIDEST, domain)))


def closest_chips(system: System) -> int:
    """Chips of the innermost domain; a torus has no such border."""
    return system.tiers[0].chips if system.tiers else 1


def has_experts(scenario: Scenario) -> bool:
    return any(isinstance(block.ffn, Moe) for block in scenario.model.blocks)


def selective_parts(scenario: Scenario) -> tuple[tuple[RecomputePart, ...], ...]:
    """Sets of parts that the engine recomputes together, less what it takes in experts only where there are none.

    Sets with the dense feed-forward part are for models without experts. Norms are recomputed where nearly all stand
    alone: what is priced is the recompute of all. What the plan itself recomputes comes last.
    """
    able, current, experts = scenario.engine.supports, scenario.plan.recompute, has_experts(scenario)
    left_out = () if experts else able.selective_in_experts
    if able.norms_in_products and separate_norms(scenario.model) < NEARLY_ALL:
        left_out = (*left_out, "norm")
    sets = (
        tuple(part for part in parts if part not in left_out)
        for parts in able.selective
        if not (experts and "mlp" in parts)
    )
    plan_parts = (current.parts,) if current.kind == "selective" else ()
    return tuple(dict.fromkeys((*(parts for parts in sets if parts), *plan_parts)))


def distinct_choices(choices: Iterable[ChoiceT]) -> list[ChoiceT]:
    """The choices without repetition; a choice may hold a mapping, so equality decides."""
    distinct: list[ChoiceT] = []
    for choice in choices:
        if choice not in distinct:
            distinct.append(choice)
    return distinct


def listed_values(value: object, *, of_tables: bool = True) -> tuple[object, ...]:
    """One value or several: a list, or words with commas between them; a list of tables may be one value.

    >>> listed_values("2,4"), listed_values([1, 2]), listed_values([{"tp": 2}], of_tables=False)
    ((2, 4), (1, 2), ([{'tp': 2}],))
    """
    if isinstance(value, (list, tuple)):
        return tuple(value) if of_tables or not any(isinstance(part, Mapping) for part in value) else (value,)
    if isinstance(value, str) and "," in value:
        return tuple(parse_value(part) for part in value.split(",") if part.strip())
    return (value,)


def range_bounds(value: object) -> tuple[int, int] | None:
    """The bounds of a range such as `2..8`; None where a value is none."""
    match = RANGE.fullmatch(value) if isinstance(value, str) else None
    return (int(match[1]), int(match[2])) if match else None


def sizes_within(bounds: tuple[int, int], tried: Iterable[int], most: int) -> list[int]:
    """Of the sizes a search would try and powers of two up to `most`, those within bounds, in rising order."""
    low, high = bounds
    return sorted(size for size in {*tried, *powers_of_two(most)} if low <= size <= high)
