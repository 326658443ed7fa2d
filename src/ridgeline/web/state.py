"""Turn the query of a URL into a PageState and back: every state of every page is a URL.

`choices.toml` lists the choices. A query with a key that is no choice, or a value that is too long, is refused; what
is not in it has its default, and a default is not written.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import field, replace
from functools import cache
from pathlib import Path
from types import MappingProxyType
from urllib.parse import parse_qsl, urlencode

from ridgeline.core.errors import InputError, Problem, not_among
from ridgeline.core.records import dataclass

LONGEST_VALUE = 4000  # characters
LONGEST_QUERY = 16_000
TIMES = ("0.25", "0.35", "0.5", "0.7", "0.8", "0.9", "1", "1.1", "1.25", "1.5", "2", "3", "4", "6", "8")
"""Multiples of what a chip has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PageChoice:
    """A choice that a URL may hold; `choices.toml` says what its fields mean."""

    label: str
    group: str
    style: str
    default: str
    options: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    catalog: str = ""
    scale: str = ""
    setting: str = ""
    only: str = ""
    help: str = ""
    free: bool = False

    def offers(self) -> tuple[str, ...]:
        """What is offered, of a catalog its ids."""
        return TIMES if self.scale else _catalog_names(self.catalog) if self.catalog else self.options

    def name_of(self, option: str) -> str:
        """What an offer is called on a page."""
        place = self.offers().index(option)
        name = self.names[place] if place < len(self.names) else option
        return f"× {name}" if self.scale else name


@cache
def page_choices() -> Mapping[str, PageChoice]:
    """Every choice by the key that it has in a URL, in the order of pages."""
    tables = tomllib.loads((Path(__file__).parent / "choices.toml").read_text(encoding="utf-8"))
    list_keys = ("options", "names")
    return MappingProxyType(
        {key: PageChoice(**{**table, **{name: tuple(table.get(name, ())) for name in list_keys}})
         for key, table in tables.items()}
    )  # fmt: skip


@cache
def _catalog_names(catalog: str) -> tuple[str, ...]:
    """Ids of a catalog; engines begin with the usual one, which has no name."""
    from ridgeline.hardware.load import CHIPS, SYSTEMS
    from ridgeline.models.load import MODELS
    from ridgeline.plan.engine import ENGINES
    from ridgeline.targets import TARGETS

    names = {"models": MODELS, "machines": (*CHIPS, *SYSTEMS), "engines": ("", *ENGINES), "targets": TARGETS}
    return tuple(names[catalog])


@dataclass(frozen=True, slots=True, kw_only=True)
class PageState:
    """What is chosen on a page: the choices that differ from their defaults, by key."""

    page: str
    values: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))

    def __getitem__(self, key: str) -> str:
        return self.values.get(key, page_choices()[key].default)

    def amount(self, key: str) -> float:
        """A choice as a number, or an `InputError` that names it."""
        text = self[key].strip()
        try:
            value = float(text)
        except ValueError:
            value = float("nan")
        if not 0 < value < 1e15:
            problem = Problem(path=page_choices()[key].label, given=repr(text[:40]), expected="a number above 0")
            raise InputError(problem)
        return value

    def choose(self, **values: str) -> PageState:
        """The same with other choices; a default is dropped."""
        return replace(self, values=_without_defaults({**self.values, **values}))

    def on_page(self, page: str) -> PageState:
        """The same choices on another page."""
        return replace(self, page=page)

    @property
    def settings(self) -> tuple[str, ...]:
        """Other settings, as `--set` takes them."""
        return tuple(part.strip() for part in self["set"].split(";") if part.strip())

    @property
    def versus(self) -> tuple[PageState, ...]:
        """The states that this one is compared with."""
        return tuple(read_state(self.page, query) for query in self["versus"].split("|") if query)

    @property
    def query(self) -> str:
        """The choices as a URL holds them, in one order.

        >>> PageState(page="predict").choose(tp="4", pp="2", model="llama3-8b").query
        'model=llama3-8b&tp=4'
        """
        return urlencode([(key, self.values[key]) for key in page_choices() if key in self.values])

    @property
    def url(self) -> str:
        """Path and query of this state."""
        return f"/{self.page}{'?' if self.values else ''}{self.query}"


def _without_defaults(values: Mapping[str, str]) -> Mapping[str, str]:
    choices = page_choices()
    return MappingProxyType(
        {key: values[key] for key in choices if key in values and values[key] != choices[key].default}
    )


def read_state(page: str, query: str) -> PageState:
    """The state that a query means.

    >>> read_state("predict", "tp=4&model=llama3-8b").values["model"]
    'llama3-8b'
    >>> read_state("predict", "tpp=4")
    Traceback (most recent call last):
    ridgeline.core.errors.InputError: URL: got 'tpp', expected ...
    """
    if len(query) > LONGEST_QUERY:
        expectation = f"at most {LONGEST_QUERY} characters"
        raise InputError(Problem(path="URL", given=f"{len(query)} characters", expected=expectation))
    pairs = parse_qsl(query, keep_blank_values=True, max_num_fields=100)
    if problems := list(_problems(pairs)):
        raise InputError(problems)
    return PageState(page=page, values=_without_defaults(dict(pairs)))


def _problems(pairs: list[tuple[str, str]]) -> Iterator[Problem]:
    choices = page_choices()
    for key, value in pairs:
        if key not in choices:
            yield not_among("URL", key[:80], choices)
        elif len(value) > LONGEST_VALUE:
            yield Problem(path=key, given=f"{len(value)} characters", expected=f"at most {LONGEST_VALUE}")
        elif value and not choices[key].free and value not in choices[key].offers():
            yield not_among(choices[key].label, value[:80], choices[key].offers())
