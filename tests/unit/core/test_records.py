"""Dataclasses of the house behave as standard ones do."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from typing import Any, ClassVar

import pytest

from ridgeline.core.records import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """A link with every kind of field."""

    KINDS: ClassVar[tuple[str, ...]] = ("copper", "optical")
    bandwidth: float
    kind: str = "copper"
    hops: list[int] = dataclasses.field(default_factory=list, hash=False)
    note: str = dataclasses.field(default="", compare=False, repr=False)

    def __post_init__(self) -> None:
        if self.bandwidth < 0:
            raise ValueError("negative")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Standard:
    """The same fields, by the standard decorator."""

    bandwidth: float
    kind: str = "copper"
    hops: list[int] = dataclasses.field(default_factory=list, hash=False)
    note: str = dataclasses.field(default="", compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Pair:
    """Two fields by position."""

    first: int
    second: int = 2


@dataclass(frozen=True, slots=True, eq=False)
class Itself:
    """Equal to nothing but itself."""

    value: int


@dataclass(slots=True)
class Counter:
    """Neither frozen nor compiled late."""

    value: int = 0


def test_equality_hash_and_text_are_the_standard_ones() -> None:
    link, standard = Link(bandwidth=1.0, note="a"), Standard(bandwidth=1.0, note="b")
    assert repr(link) == repr(standard).replace("Standard", "Link")
    assert hash(link) == hash(standard) == hash((1.0, "copper"))
    assert link == Link(bandwidth=1.0, note="other") != Link(bandwidth=2.0)
    assert link != standard
    assert link.__eq__(3) is NotImplemented
    assert Pair(1) == Pair(1, 2) == Pair(first=1)
    assert len({Itself(1), Itself(1)}) == 2


def test_fields_copies_and_pickles() -> None:
    link = Link(bandwidth=3.0, hops=[1])
    assert [field.name for field in dataclasses.fields(Link)] == ["bandwidth", "kind", "hops", "note"]
    assert dataclasses.replace(link, kind="optical").kind == "optical"
    assert dataclasses.asdict(link)["hops"] == [1]
    for twin in (copy.copy(link), copy.deepcopy(link), pickle.loads(pickle.dumps(link))):
        assert twin == link
        assert twin is not link
    assert not hasattr(link, "__dict__")
    assert Link(bandwidth=1.0).hops is not Link(bandwidth=1.0).hops
    match Pair(1):
        case Pair(first, second):
            assert (first, second) == (1, 2)


def test_nothing_is_assigned_and_mistakes_are_named() -> None:
    link: Any = Link(bandwidth=3.0)
    with pytest.raises(dataclasses.FrozenInstanceError, match="cannot assign to field 'kind'"):
        link.kind = "optical"
    with pytest.raises(dataclasses.FrozenInstanceError, match="cannot delete field 'kind'"):
        del link.kind
    anything: Any = Link
    with pytest.raises(TypeError, match=r"Link.__init__\(\) got an unexpected keyword argument 'width'"):
        anything(width=1.0)
    with pytest.raises(TypeError, match="missing 1 required keyword-only argument: 'bandwidth'"):
        anything()
    with pytest.raises(ValueError, match="negative"):
        Link(bandwidth=-1.0)
    counter = Counter()
    counter.value += 1
    assert counter == Counter(1)
