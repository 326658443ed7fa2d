"""The page of requirements: bottleneck, evidence, cost today, the ask, its gain, and how to prove it wrong, by team."""

from __future__ import annotations

from collections.abc import Iterator

from ridgeline.design import Ask, RequirementReport, TeamReport
from ridgeline.web.blocks import CodeText, GridTable, PageBlock, PageView, TableCell, TaskButton, TextLines
from ridgeline.web.controls import state_controls
from ridgeline.web.figures import ExplainedNumber, explain_number, given_input
from ridgeline.web.jobs import Tell
from ridgeline.web.scenarios import Shelf, file_of
from ridgeline.web.state import PageState
from ridgeline.web.studies import is_study_file, study_file
from ridgeline.web.views.design import ASKED


def report_view(state: PageState, shelf: Shelf) -> PageView:
    """The button that writes the requirement list of a study."""
    path = file_of(state, shelf)
    is_file = path is not None and is_study_file(path)
    name = path.name if path is not None and is_file else "study.json"
    return PageView(
        page="report",
        title="What do we ask of the chip, network, framework and model teams?",
        answer="Each line says what it costs today, what to ask for, what that gains, and what would prove it wrong.",
        controls=() if is_file else state_controls(state, ASKED),
        blocks=(
            TaskButton(
                task="report",
                label="Write the list",
                automatic=True,
                note="The study is that of the page Design: the scenario of this page, or a study file.",
            ),
        ),
        command=f"ridgeline report {name} -o asks.html",
        url=state.url,
    )


def report_task(state: PageState, shelf: Shelf, tell: Tell) -> tuple[PageBlock, ...]:
    """The requirement list of a state's study, team by team."""
    import ridgeline

    tell("pricing what each team could change")
    with study_file(state, shelf) as study:
        answer = ridgeline.report(study)
    return tuple(report_blocks(answer))


def report_blocks(answer: RequirementReport) -> Iterator[PageBlock]:
    """The tables of all teams, and what they rest on."""
    from ridgeline.report.pieces import terminal_text

    yield TextLines(title=answer.title, lines=(answer.summary,))
    for team in answer.teams:
        yield _team_table(team, answer)
    yield CodeText(name="report", title="In full", text=terminal_text(answer), file="report.txt")
    origins = tuple(f"{name}: {source}" for name, source in answer.provenance.items())
    yield TextLines(title="What it rests on", lines=(*origins, f"inputs {answer.inputs_hash}"), is_folded=True)
    yield TextLines(title="Notes", lines=answer.notes, is_folded=True)


def _team_table(team: TeamReport, answer: RequirementReport) -> GridTable:
    head = ("bottleneck", "today", "$ an hour", "ask", "gains", "sure", "proved wrong by")
    rows: list[tuple[TableCell, ...]] = []
    for ask in team.asks:
        money: TableCell = "–"
        if ask.today_usd_per_hour is not None:
            money = _number(ask, ask.today_usd_per_hour, "USD", answer)
        gain = _number(ask, ask.gain, "times", answer, f"× {ask.gain:.2f} ({ask.gain_low:.2f} – {ask.gain_high:.2f})")
        seconds = _number(ask, ask.today_s, "s", answer)
        rows.append((f"{ask.bottleneck} ({ask.workload})", seconds, money, ask.ask, gain, ask.confidence, ask.falsify))
    return GridTable(
        name=team.team, title=f"{team.title}: {team.ask}", head=head, rows=tuple(rows),
        text=("bottleneck", "ask", "sure", "proved wrong by"),
    )  # fmt: skip


def _number(ask: Ask, value: float, unit: str, answer: RequirementReport, text: str = "") -> ExplainedNumber:
    inputs = [
        given_input("evidence", ask.evidence, "the prediction"),
        given_input("workload", ask.workload, answer.study),
    ]
    return explain_number(value, unit, ask.formula, inputs, f"{ask.confidence}; {ask.evidence}", text=text)
