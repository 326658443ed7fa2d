"""The first page: an example study that is already answered, and every question that a visitor can ask."""

from __future__ import annotations

import tomllib
from functools import cache
from pathlib import Path

from ridgeline.web.blocks import CardGrid, CardItem, DropZone, PageBlock, PageView
from ridgeline.web.scenarios import Shelf
from ridgeline.web.state import PageState
from ridgeline.web.views.predict import predict_view

EXAMPLE = "An example, already answered: change anything on its page"


@cache
def question_cards() -> tuple[CardItem, ...]:
    """What people ask, each with the state that answers it."""
    tables = tomllib.loads((Path(__file__).parent / "questions.toml").read_text(encoding="utf-8"))["question"]
    return tuple(
        CardItem(
            title=table["title"], text=table["text"], verb=table["page"],
            href=f"/{table['page']}{'?' if table['query'] else ''}{table['query']}",
        )
        for table in tables
    )  # fmt: skip


def home_view(state: PageState, shelf: Shelf) -> PageView:
    """The question cards above the example's headline and breakdown."""
    example = predict_view(state.on_page("predict"), shelf)
    first: tuple[PageBlock, ...] = example.blocks[:3]
    return PageView(
        page="home",
        title="What do you want to know?",
        answer="Ridgeline predicts, plans and explains the training and serving of foundation models: "
        "where model meets machine.",
        blocks=(
            CardGrid(title="", items=question_cards()),
            CardGrid(title=EXAMPLE, items=(CardItem(title=example.title, text=example.answer,
                                                    href=state.on_page("predict").url, verb="predict"),)),
            *first,
            DropZone(title="Or drop a file", note="a profiler's trace, a config.json, a launch script, a scenario or "
                     "the result of a load generator: it stays on this machine"),
        ),
        evidence=example.evidence,
        url=state.url,
    )  # fmt: skip
