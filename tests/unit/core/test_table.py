"""Decoding collects every problem, and the schema says the same as the decoder."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ridgeline.core.dtype import DType, dtype
from ridgeline.core.errors import InputError, Problem
from ridgeline.core.evidence import Evidence, Quoted
from ridgeline.core.schema import table_schema
from ridgeline.core.table import AtLeast, Count, Flat, QuantityUnit, QuotedBytesPerS, Via, decode, keys


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    wide: Count
    high: Count = 1

    def problems(self) -> Iterable[Problem]:
        if self.wide < self.high:
            yield Problem(path="high", given=str(self.high), expected="at most wide")


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    kind: Literal["round"] = "round"
    radius: Annotated[float, AtLeast(0)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Square:
    kind: Literal["square"] = "square"
    side: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Thing:
    name: str
    part: Annotated[Part, Flat()]
    other: Annotated[
        Part | None, Via(lambda value: {"wide": value} if isinstance(value, int) else value, "integer")
    ] = None
    shape: Round | Square | None = None
    rate: QuotedBytesPerS | None = None
    wait: Annotated[float, QuantityUnit("s")] = 0.0
    format: DType = dtype("bf16")
    rates: Mapping[str, float] = field(default_factory=dict)
    tags: tuple[str, ...] = ()
    on: bool = True


def problems(value: Any) -> list[str]:
    with pytest.raises(InputError) as caught:
        decode(Thing, value)
    return [problem.path for problem in caught.value.problems]


def test_everything_decodes() -> None:
    table = {
        "name": "x", "wide": 4, "high": 2, "other": 7, "shape": {"kind": "square", "side": 2},
        "rate": {"value": "3 GB/s", "evidence": "measured", "source": "me",
                 "conflicts": [{"value": "2 GB/s", "source": "you"}]},
        "wait": "5 ms", "format": "fp8", "rates": {"a": 1.5}, "tags": ["p", "q"], "on": False,
    }  # fmt: skip
    thing = decode(Thing, table)
    assert thing.part == Part(wide=4, high=2)
    assert thing.other == Part(wide=7)
    assert thing.shape == Square(side=2.0)
    assert isinstance(thing.rate, Quoted)
    assert (thing.rate.value, thing.rate.evidence, thing.rate.conflicts[0].value) == (3e9, Evidence.MEASURED, 2e9)
    assert (thing.wait, thing.format.id, thing.rates["a"], thing.tags, thing.on) == (
        0.005,
        "fp8-e4m3",
        1.5,
        ("p", "q"),
        False,
    )


def test_a_bare_quantity_is_the_users_assumption() -> None:
    rate = decode(Thing, {"name": "x", "wide": 1, "rate": "8 TB/s"}).rate
    assert rate == Quoted(value=8e12, evidence=Evidence.ASSUMED, source="given")


def test_all_problems_at_once() -> None:
    found = problems(
        {"nam": "x", "wide": 0, "shape": {"kind": "rund"}, "rate": "3 GB", "wait": 5, "on": 1, "tags": "p"}
    )
    assert found == ["nam", "name", "wide", "shape.kind", "rate", "wait", "tags", "on"]


@pytest.mark.parametrize(
    ("table", "path"),
    [
        ({"wide": 1.5}, "wide"),
        ({"wide": True}, "wide"),
        ({"wide": float("nan")}, "wide"),
        ({"wide": 2**60}, "wide"),
        ({"wide": 1, "high": 2}, "high"),
        ({"wide": 1, "other": {"wide": 1, "high": 9}}, "other.high"),
        ({"wide": 1, "shape": {"radius": 1}}, "shape.kind"),
        ({"wide": 1, "shape": {"kind": "round", "radius": -1}}, "shape.radius"),
        ({"wide": 1, "rate": {"value": "1 GB/s", "evidence": "rumour"}}, "rate.evidence"),
        ({"wide": 1, "rate": {"valu": "1 GB/s"}}, "rate.valu"),
        ({"wide": 1, "rates": {"a": "x"}}, "rates.a"),
        ({"wide": 1, "format": "fp9"}, "format"),
        ({"wide": 1, "tags": [1]}, "tags[0]"),
    ],
)
def test_each_problem_names_its_path(table: dict[str, Any], path: str) -> None:
    assert path in problems({"name": "x", **table})


def test_unknown_key_suggests() -> None:
    with pytest.raises(InputError, match="did you mean 'wide'"):
        decode(Thing, {"name": "x", "wid": 1})


def test_keys_are_flattened() -> None:
    assert keys(Thing)[:4] == ("name", "wide", "high", "other")
    assert set(table_schema(Thing)["properties"]) == set(keys(Thing))
    assert table_schema(Thing)["required"] == ["name", "wide"]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from([*keys(Thing), "kind", "value", "q"]), inner, max_size=6)
    ),
    max_leaves=12,
)


@given(JSON)
def test_nothing_but_input_errors(value: Any) -> None:
    try:
        decode(Thing, value)
    except InputError as wrong:
        assert wrong.problems  # noqa: PT017
