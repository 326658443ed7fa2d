"""Which function makes which page."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from types import MappingProxyType

from ridgeline.core.errors import InputError, MissingNumber, Problem
from ridgeline.web.blocks import PageView
from ridgeline.web.scenarios import Shelf
from ridgeline.web.state import PageState

PageFunction = Callable[[PageState, Shelf], PageView]
PAGES: Mapping[str, str] = MappingProxyType({
    "home": "Home", "describe": "Describe", "predict": "Predict", "plan": "Plan", "sense": "Sense",
    "compare": "Compare", "serving": "Serving", "files": "Files", "timeline": "Timeline", "design": "Design",
    "report": "Report", "run": "Run",
})  # fmt: skip
"""Pages by the path of their URL, with their names, in the order of the bar at the top."""


def page_view(state: PageState, shelf: Shelf) -> PageView:
    """The page of a state; what is wrong with it becomes a page that says what to do."""
    from ridgeline.web.views.predict import impossible_view

    view: PageFunction = getattr(import_module(f"ridgeline.web.views.{state.page}"), f"{state.page}_view")
    try:
        return view(state, shelf)
    except InputError as wrong:
        return impossible_view(state, wrong, title="This page cannot be made")
    except MissingNumber as missing:
        from ridgeline.sim.prediction import missing_number_problem

        return impossible_view(state, InputError(missing_number_problem(missing)), title="A number is missing")


def unknown_page(page: str) -> InputError:
    """The refusal of a path that is no page."""
    return InputError(Problem(path="URL", given=repr(page[:40]), expected=f"one of {', '.join(PAGES)}"))
