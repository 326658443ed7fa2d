"""Turn a RequirementReport into one self-contained page: a sentence and a table for each team, and figures."""

from __future__ import annotations

from ridgeline.core.units import format_duration, signed_number
from ridgeline.design import ReportFigure, RequirementReport, TeamReport
from ridgeline.report import html
from ridgeline.report.requirements import HEAD, ask_cells
from ridgeline.report.skeleton import PageHead, page_document, prediction_evidence

BAR, NAME, LINE = 360, 250, 17  # pixels


def requirements_page(report: RequirementReport, command: str = "") -> str:
    """The page of a study's requirement list."""
    figures = "".join(_figure(figure) for figure in report.figures)
    body = "".join(
        (
            *(_team(team) for team in report.teams),
            f"<h2>Where the time goes, and what it answers to</h2>{figures}",
            html.section("Where it comes from", ("what", "which"), [*report.provenance.items()], text=(0, 1)),
            html.list_items("Notes", report.notes),
        )
    )
    asks = [ask for team in report.teams for ask in team.asks]
    head = PageHead(
        verb="report",
        question=report.title,
        answer=report.summary,
        certainty="Each gain has its interval: a changed number may be reached to 0.7 or 1.3 of its change, since "
        "nobody has measured the machine that is asked for. Each line says what would prove it wrong.",
        subject=(
            ("Asks", str(len(asks))),
            ("Teams", ", ".join(team.title for team in report.teams)),
            ("Inputs", report.inputs_hash),
        ),
        evidence=prediction_evidence(),
        command=command,
    )
    return page_document(head, body)


def _team(team: TeamReport) -> str:
    table = html.table(HEAD, [ask_cells(ask) for ask in team.asks], text=(0, 1, 4, 6, 7)) if team.asks else ""
    return f"<h2>{html.escape_text(team.title)}</h2><p><b>{html.inline_code(team.ask)}</b></p>{table}"


def _figure(figure: ReportFigure) -> str:
    if not figure.bars:
        return ""
    longest = max(abs(value) for _, value in figure.bars) or 1.0
    marks = []
    for place, (name, value) in enumerate(figure.bars):
        y = 12 + place * LINE
        kind = "in" if value >= 0 else "out"
        words = format_duration(value) if figure.unit == "s" else signed_number(value)
        marks.append(html.label(name, 0, y + 9, faint=False))
        marks.append(
            f'<rect class="{kind}" x="{NAME}" y="{y}" width="{max(abs(value) / longest * BAR, 0.5):.1f}" height="10"/>'
        )
        marks.append(html.label(words, NAME + BAR + 8, y + 9))
    drawing = html.svg(NAME + BAR + 90, 16 + len(figure.bars) * LINE, marks, figure.title)
    return f"<figure>{drawing}<figcaption>{html.escape_text(figure.title)}</figcaption></figure>"
