"""The first page: an example study that is already answered, and every question that a visitor can ask."""

from __future__ import annotations

import tomllib
from functools import cache
from pathlib import Path

from ridgeline.web.blocks import CardGrid, CardItem, DropZone, PageView
from ridgeline.web.scenarios import Shelf
from ridgeline.web.state import PageState
from ridgeline.web.views.predict import predict_view


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
    """The example's headline, the questions, and where the example's time and memory go."""
    example = predict_view(state.on_page("predict"), shelf)
    figures, *charts = example.blocks[:3]
    about = f"An example, already answered: {example.answer} Change anything on its page."
    card = CardItem(title=example.title, text=about, href=state.on_page("predict").url, verb="predict")
    return PageView(
        page="home",
        title="What do you want to know?",
        answer="Ridgeline predicts, plans and explains the training and serving of foundation models: "
        "where model meets machine.",
        blocks=(
            CardGrid(title="", items=(card,)),
            figures,
            CardGrid(title="Ask something else", items=question_cards()),
            *charts,
            DropZone(title="Or drop a file", note="a profiler's trace, a config.json, a launch script, a scenario or "
                     "the result of a load generator: it stays on this machine"),
        ),
        evidence=example.evidence,
        url=state.url,
    )  # fmt: skip
