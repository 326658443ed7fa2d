"""Turn a PageState into the choices that a page shows, grouped as people think of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ridgeline.web.blocks import ChoiceControl, ControlGroup
from ridgeline.web.state import PageChoice, PageState, page_choices

SCENARIO = ("model", "kind", "seq", "batch", "rate", "osl", "machine", "chips", "tp", "pp", "cp", "ep", "microbatch",
            "shard", "recompute", "precision", "engine", "x_compute", "x_bandwidth", "x_capacity", "x_scaleup",
            "x_scaleout", "set")  # fmt: skip
"""Choices that make a scenario."""
FOLDED = ("More",)


def state_controls(state: PageState, keys: Iterable[str] = SCENARIO) -> tuple[ControlGroup, ...]:
    """The controls of some choices: those that the kind of work has, with what is chosen among what is offered."""
    groups: dict[str, list[ChoiceControl]] = {}
    choices = page_choices()
    for key in keys:
        if _applies(choices[key], key, state):
            groups.setdefault(choices[key].group, []).append(choice_control(key, state))
    return tuple(
        ControlGroup(title=title, controls=tuple(controls), is_folded=title in FOLDED)
        for title, controls in groups.items()
    )


def _applies(choice: PageChoice, key: str, state: PageState) -> bool:
    if key == "batch" and state["kind"] == "serve":
        return False
    return choice.only in ("", state["kind"])


def choice_control(key: str, state: PageState) -> ChoiceControl:
    """One choice; a value that is not offered is offered then."""
    choice, value = page_choices()[key], state[key]
    options = list(_options(choice))
    if value not in [option for option, _ in options] and choice.style in ("slider", "select"):
        options.append((value, value))
        if choice.style == "slider":
            options.sort(key=lambda option: _as_number(option[0]))
    return ChoiceControl(
        key=key, label=choice.label, style=choice.style, value=value, options=tuple(options), default=choice.default,
        help=choice.help, free=choice.free,
    )  # fmt: skip


def _options(choice: PageChoice) -> Iterator[tuple[str, str]]:
    for option in choice.offers():
        yield option, choice.name_of(option) or option


def _as_number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return float("inf")
