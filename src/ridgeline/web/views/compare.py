"""The page that compares: scenarios side by side, number by number, and what each gains upon the first."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from ridgeline.core.errors import InputError, Problem
from ridgeline.core.records import dataclass
from ridgeline.core.units import signed_share
from ridgeline.hardware.what_if import system_title
from ridgeline.plan.plan import plan_words
from ridgeline.report.pieces import prediction_evidence
from ridgeline.sim import Prediction
from ridgeline.sim.phase_prediction import PhasePrediction
from ridgeline.web.blocks import (
    BarLine,
    GridTable,
    LinkCell,
    PageBlock,
    PageView,
    ProblemList,
    StackChart,
    StackLine,
    TableCell,
)
from ridgeline.web.controls import state_controls
from ridgeline.web.explained_step import (
    Step,
    cost_number,
    energy_number,
    interval_number,
    mfu_number,
    part_number,
    speed_number,
    step_number,
)
from ridgeline.web.figures import ExplainedNumber, explain_number, number_input
from ridgeline.web.scenarios import Shelf, state_command, state_scenario
from ridgeline.web.state import PageState
from ridgeline.web.views.predict import headroom_number, reasons_of

MOST = 5  # scenarios side by side


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedState:
    """A state with its prediction, or with the reasons why it has none."""

    name: str
    state: PageState
    step: Step | None
    problems: tuple[Problem, ...] = ()


def compare_view(state: PageState, shelf: Shelf) -> PageView:
    """The state and those it is compared with, a column each."""
    states = (state.choose(versus=""), *state.versus)[:MOST]
    columns = tuple(
        compared_state(chr(ord("A") + place), state_of_column, shelf) for place, state_of_column in enumerate(states)
    )
    predicted_columns = [column for column in columns if column.step is not None]
    blocks: list[PageBlock] = [_scenario_table(state, columns)]
    if predicted_columns:
        blocks += [_figure_table(columns), _time_chart(predicted_columns)]
    for column in columns:
        if column.problems:
            blocks.append(ProblemList(title=f"{column.name} cannot be predicted", items=column.problems))
    return PageView(
        page="compare",
        title="Which of these is better, and where does the difference come from?",
        answer=_answer(predicted_columns),
        controls=state_controls(state),
        blocks=tuple(blocks),
        command=state_command(state),
        evidence=prediction_evidence(),
        url=state.url,
    )


def compared_state(name: str, state: PageState, shelf: Shelf) -> ComparedState:
    import ridgeline

    try:
        step = ridgeline.predict(state_scenario(state, shelf))
    except InputError as wrong:
        return ComparedState(name=name, state=state, step=None, problems=reasons_of(wrong))
    if isinstance(step, ridgeline.Impossible):
        return ComparedState(name=name, state=state, step=None, problems=step.reasons)
    if not isinstance(step, (Prediction, PhasePrediction)):
        problem = Problem(path="workload", given="requests under load", expected="a step", todo="see the page Serving")
        return ComparedState(name=name, state=state, step=None, problems=(problem,))
    return ComparedState(name=name, state=state, step=step)


def _answer(columns: list[ComparedState]) -> str:
    fitting = [(column, column.step) for column in columns if column.step is not None and column.step.fits]
    if len(fitting) < 2:
        return "Change the choices at the side and press “keep as a column”; two scenarios that fit can be compared."
    fastest, best = min(fitting, key=lambda pair: pair[1].step_time_s)
    other_seconds = sorted(step.step_time_s for column, step in fitting if column is not fastest)
    gain = other_seconds[0] / best.step_time_s
    sure = (
        "their intervals overlap" if best.interval.high > other_seconds[0] else "beyond what its interval leaves open"
    )
    return f"{fastest.name} is the fastest that fits, × {gain:.2f} ahead of the next; {sure}."


def _scenario_table(state: PageState, columns: tuple[ComparedState, ...]) -> GridTable:
    """What is compared, and the links that drop, swap and keep a column."""
    rows: list[tuple[TableCell, ...]] = []
    first = columns[0].state
    versus_query = state["versus"]
    for place, column in enumerate(columns):
        scenario = column.step.scenario if column.step is not None else None
        words = (
            (scenario.model.id, system_title(scenario.system), plan_words(scenario.plan) or "one chip")
            if scenario is not None
            else (column.state["model"], f"{column.state['chips']}x{column.state['machine']}", "not possible")
        )
        drop: TableCell = ""
        if place:
            other_queries = "|".join(other.state.query for other in columns[1:] if other is not column)
            drop = LinkCell(text="drop", href=first.choose(versus=other_queries).on_page("compare").url)
        elif len(columns) < MOST:
            more = "|".join(filter(None, (versus_query, first.query or "tp=8")))
            drop = LinkCell(text="keep as a column", href=first.choose(versus=more).on_page("compare").url)
        rows.append((LinkCell(text=column.name, href=column.state.on_page("predict").url), *words, drop))
    return GridTable(
        name="scenarios", title="Scenarios", head=("", "model", "machine", "plan", "columns"), rows=tuple(rows),
        text=("", "model", "machine", "plan", "columns"),
        caption="The choices at the side change A. Every letter leads to its own page.",
    )  # fmt: skip


FIGURES: Mapping[str, Callable[[Step], ExplainedNumber | None]] = MappingProxyType({
    "step": step_number,
    "interval": interval_number,
    "tokens/s a chip": speed_number,
    "tokens/s a user": lambda step: speed_number(step, user=True) if isinstance(step, PhasePrediction) else None,
    "MFU": lambda step: mfu_number(step) if isinstance(step, Prediction) else None,
    "a million tokens": cost_number,
    "energy a step": energy_number,
    "free or missing memory": headroom_number,
})  # fmt: skip
"""Lines of the table of figures."""


def _figure_table(columns: tuple[ComparedState, ...]) -> GridTable:
    rows: list[tuple[TableCell, ...]] = []
    for name, figure in FIGURES.items():
        cells = [figure(column.step) if column.step is not None else None for column in columns]
        if any(cell is not None for cell in cells):
            rows.append((name, *(cell or "–" for cell in cells)))
    rows.append(("fits", *("–" if column.step is None else "yes" if column.step.fits else "no" for column in columns)))
    rows.append(("step against A", *(_against(columns[0], column) for column in columns)))
    return GridTable(
        name="figures", title="Number by number", head=("", *(column.name for column in columns)), rows=tuple(rows)
    )


def _against(first: ComparedState, other: ComparedState) -> TableCell:
    if first.step is None or other.step is None or first is other:
        return "–"
    change = other.step.step_time_s / first.step.step_time_s - 1
    inputs = [number_input("A", step_number(first.step)), number_input(other.name, step_number(other.step))]
    source = "both predictions; negative is faster"
    return explain_number(change, "", "step / step of A − 1", inputs, source, text=signed_share(change))


def _time_chart(columns: list[ComparedState]) -> StackChart:
    """Steps below each other by what limits them."""
    rows = []
    for column in columns:
        step = column.step
        if step is None:
            continue
        parts = tuple(
            BarLine(name=part.name, number=part_number(step, part.name), colour=part.bound, meaning=part.meaning)
            for part in sorted(step.breakdown, key=lambda part: part.bound) if part.seconds > 0
        )  # fmt: skip
        rows.append(StackLine(name=column.name, parts=parts, total=step_number(step)))
    caption = "Blue: compute. Green: memory bandwidth. Violet: network. Ochre: host and waiting."
    return StackChart(name="times", title="Where each step goes", rows=tuple(rows), caption=caption)
