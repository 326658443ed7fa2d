"""Turn what a user writes about the plan into the choices of a deployment search, and into the plan's fixed keys.

plan.tp=2,4   plan.pp=1   plan.ep=8                     degrees of a replica: one, several, or a range 2..8
plan.serving.data_parallel_size=1..8                    attention ranks of a replica
plan.serving.replicas=4                                 replicas in all
plan.serving.pools=none  |  prefill+decode              only aggregated, or only disaggregated
plan.precision=bf16,fp8   plan.precision.kv=fp8         formats; a narrow name means products and weights
plan.speculation.draft_tokens=1,3                       speculation, with draft and acceptance
plan.serving.vllm.max_num_seqs=64,256                   batch limit; token budget and prefix cache likewise

The same keys stand in a file under [space]. Any other key of the plan takes one value and is kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import product
from typing import Any

from ridgeline.core.documents import JsonMapping, JsonObject
from ridgeline.core.errors import Problem
from ridgeline.core.table import decode_into
from ridgeline.plan.plan import Plan
from ridgeline.plan.serving_plan import SEARCHED_KNOBS
from ridgeline.search.deployment.space import DeploymentSpace
from ridgeline.search.pins import MOST_CHOICES, listed_values, range_bounds
from ridgeline.search.space import powers_of_two

Pinned = Mapping[str, tuple[Any, ...]]
"""Dotted key under [plan] -> its values."""
COUNTS = {"tp": "tp", "pp": "pp", "ep": "ep", "serving.data_parallel_size": "dp", "serving.replicas": "replicas"}
SPLITS = {"none": ("aggregated",), "prefill+decode": ("disaggregated",)}
TABLES = ("precision", "speculation")


def pinned_table(table: JsonMapping, prefix: str = "") -> dict[str, tuple[Any, ...]]:
    """The keys of a [space] or [plan] table, dotted, with their values.

    >>> pinned_table({"tp": "2,4", "serving": {"vllm": {"max_num_seqs": [64, 256]}}})
    {'tp': (2, 4), 'serving.vllm.max_num_seqs': (64, 256)}
    """
    found: dict[str, tuple[Any, ...]] = {}
    for key, value in table.items():
        if isinstance(value, Mapping):
            found |= pinned_table(value, f"{prefix}{key}.")
        else:
            found[f"{prefix}{key}"] = listed_values(value, of_tables=False)
    return found


def searched_keys(pins: Pinned) -> tuple[JsonObject, dict[str, tuple[Any, ...]]]:
    """Fixed keys of the plan as a table, and the pins of searched axes."""
    knobs = {f"serving.{engine}.{name}" for engine, names in SEARCHED_KNOBS.items() for name in names.values()}
    fixed: JsonObject = {}
    remainder: dict[str, tuple[Any, ...]] = {}
    for key, values in pins.items():
        if key in (*COUNTS, "serving.pools", *TABLES) or key.split(".")[0] in TABLES or key in knobs:
            remainder[key] = values
            continue
        at = fixed
        *above, last = key.split(".")
        for name in above:
            at = at.setdefault(name, {})
        at[last] = values[0] if len(values) == 1 else list(values)
    return fixed, remainder


def pinned_space(space: DeploymentSpace, pins: Pinned, problems: list[Problem]) -> DeploymentSpace:
    """The space with its pinned axes; what cannot be read is told."""
    changed: JsonObject = {}
    for key, axis in COUNTS.items():
        if key in pins:
            changed[axis] = tuple(_counts(key, pins[key], space.of(axis), problems))
    for names in SEARCHED_KNOBS.values():
        for axis, name in names.items():
            for key in (f"serving.{engine}.{name}" for engine in SEARCHED_KNOBS):
                if key in pins:
                    changed[axis] = pins[key] if axis != "prefix" else _prefix_choices(key, pins[key])
    if "serving.pools" in pins:
        (value, *_) = pins["serving.pools"]
        if value not in SPLITS:
            problems.append(_wrong("serving.pools", value, " or ".join(SPLITS)))
        changed["split"] = SPLITS.get(value, space.split)
    for table in TABLES:
        current = {key: values for key, values in pins.items() if key.split(".")[0] == table}
        if current:
            changed[table] = tuple(_tables(table, current, problems))
    for key, values in pins.items():
        if len(values) > MOST_CHOICES:
            problems.append(_wrong(key, f"{len(values)} choices", f"at most {MOST_CHOICES}"))
    return replace(space, **changed)


def _prefix_choices(key: str, values: Iterable[Any]) -> tuple[bool, ...]:
    return tuple(not value if key.endswith("disable_radix_cache") else bool(value) for value in values)


def _counts(key: str, values: Iterable[Any], tried: Iterable[int], problems: list[Problem]) -> Iterable[int]:
    sizes: list[int] = []
    for value in values:
        if bounds := range_bounds(value):
            low, high = bounds
            sizes += sorted(size for size in {*powers_of_two(high), *tried} if low <= size <= high)
        elif isinstance(value, int) and not isinstance(value, bool) and value > 0:
            sizes.append(value)
        else:
            problems.append(_wrong(key, value, "a whole number above 0, several, or a range such as 2..8"))
    return dict.fromkeys(sizes)


def _tables(table: str, pins: Pinned, problems: list[Problem]) -> Iterable[Any]:
    """Every combination of a table's keys, decoded as a scenario file's."""
    for values in product(*pins.values()):
        body: JsonObject = {}
        for key, value in zip(pins, values, strict=True):
            part = key.partition(".")[2]
            if part:
                body[part] = value
            elif table == "precision":
                body |= {"name": value, **({} if value in ("bf16", "fp16", "fp32", "tf32") else {"weights": value})}
            elif value in ("none", False):
                body = {"none": True}
            else:
                body["draft"] = value
        if body == {"none": True}:
            yield None
            continue
        candidate_value = decode_into(Plan, {table: body}, "plan", problems)
        if candidate_value is not None:
            yield getattr(candidate_value, table)


def _wrong(key: str, given: object, expected: str) -> Problem:
    return Problem(path=f"plan.{key}", given=repr(given), expected=expected, where="--set")
