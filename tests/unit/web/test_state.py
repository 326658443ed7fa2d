"""Every state is a URL: it comes back as it was, and what is no state is refused by name."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("starlette", reason="the workbench needs the extra web")

from ridgeline.core.errors import InputError
from ridgeline.web.state import LONGEST_VALUE, PageState, page_choices, read_state
from ridgeline.web.views.pages import PAGES

WORDS = st.text(max_size=60)


def values_of(key: str) -> st.SearchStrategy[str]:
    """What a choice may be."""
    choice = page_choices()[key]
    offers = st.sampled_from(choice.offers() or (choice.default,))
    return st.one_of(offers, WORDS) if choice.free else offers


STATES = st.builds(
    lambda page, values: PageState(page=page).choose(**values),
    st.sampled_from(sorted(PAGES)),
    st.fixed_dictionaries({}, optional={key: values_of(key) for key in page_choices()}),
)


@settings(max_examples=60)
@given(STATES)
def test_a_state_comes_back_from_its_url(state: PageState) -> None:
    again = read_state(state.page, state.query)
    assert dict(again.values) == dict(state.values)
    assert again.query == state.query
    assert again.url == state.url


@settings(max_examples=40)
@given(STATES, STATES)
def test_states_side_by_side_come_back(first: PageState, second: PageState) -> None:
    others = [state.choose(versus="").on_page("compare") for state in (first, second)]
    whole = PageState(page="compare").choose(versus="|".join(state.query for state in others))
    found = read_state("compare", whole.query).versus
    assert [state.query for state in found] == [state.query for state in others if state.query]


@pytest.mark.parametrize(
    ("query", "word"),
    [
        ("tpp=4", "tpp"),
        ("kind=trian", "trian"),
        ("shard=zero9", "zero9"),
        (f"set={'x' * (LONGEST_VALUE + 1)}", "characters"),
        ("a=1&" * 200, "number of fields"),
    ],
)
def test_what_is_no_state_is_refused_by_name(query: str, word: str) -> None:
    with pytest.raises((InputError, ValueError), match=word):
        read_state("predict", query)


def test_a_default_is_not_written() -> None:
    assert read_state("predict", "tp=8&pp=2&model=llama3-70b").query == ""


def test_every_choice_has_what_a_page_needs() -> None:
    for key, choice in page_choices().items():
        assert choice.label, key
        assert choice.style in ("slider", "select", "text", "hidden"), key
        assert choice.free or choice.default in choice.offers(), key
        assert len(choice.names) <= len(choice.offers()), key
