"""Draw a RequirementReport on a terminal, and write it as HTML, Markdown or PDF."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from ridgeline.core.errors import InputError, Problem
from ridgeline.core.files import write_bytes, write_text
from ridgeline.core.units import format_duration
from ridgeline.design import Ask, RequirementReport, TeamReport
from ridgeline.report.cells import DASH, blocks, clean, header_table, list_lines

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome", "microsoft-edge", "firefox")
PRINT_S = 120  # seconds that a browser gets
HEAD = ("bottleneck", "evidence", "today", "USD/h", "ask", "gain", "confidence", "how to falsify")


def draw_requirements(report: RequirementReport, console: Console) -> None:
    """Print every team's asks."""
    title = Text.assemble(clean(report.title), style="bold")
    console.print(
        blocks(
            [title, clean(report.summary)],
            *_team_blocks(report),
            list_lines("notes", report.notes),
            [Text(f"inputs {report.inputs_hash}", style="dim")],
        )
    )


def _team_blocks(report: RequirementReport) -> Iterator[tuple[RenderableType, ...]]:
    for team in report.teams:
        yield _heading(team), _asks(team)


def _heading(team: TeamReport) -> Text:
    return Text.assemble((f"{team.title}: ", "bold"), clean(team.ask))


def _asks(team: TeamReport) -> Table:
    table = header_table(("workload", "bottleneck", "today", "gain", "ask"), right=("today", "gain"))
    for ask in team.asks:
        table.add_row(
            clean(ask.workload), clean(ask.bottleneck), format_duration(ask.today_s), gain_words(ask), clean(ask.ask)
        )
    return table


def gain_words(ask: Ask) -> str:
    """A gain with its interval."""
    return f"x {ask.gain:.2f} ({ask.gain_low:.2f} to {ask.gain_high:.2f})"


def ask_cells(ask: Ask) -> tuple[str, ...]:
    """The cells of an ask, in the order of `HEAD`."""
    hour = DASH if ask.today_usd_per_hour is None else f"{ask.today_usd_per_hour:.2f}"
    bottleneck = f"{ask.workload}: {ask.bottleneck}"
    return (
        bottleneck,
        ask.evidence,
        format_duration(ask.today_s),
        hour,
        ask.ask,
        gain_words(ask),
        ask.confidence,
        ask.falsify,
    )


def requirements_markdown(report: RequirementReport, command: str = "") -> str:
    """The report as Markdown."""
    return "\n".join(_markdown_lines(report, command)) + "\n"


def _markdown_lines(report: RequirementReport, command: str) -> Iterator[str]:
    yield from (f"# {_plain(report.title)}", "", _plain(report.summary), "")
    for team in report.teams:
        yield from (f"## {team.title}", "", f"**{_plain(team.ask)}**", "")
        if team.asks:
            yield f"| {' | '.join(HEAD)} |"
            yield "|" + "---|" * len(HEAD)
        for ask in team.asks:
            yield f"| {' | '.join(_plain(cell) for cell in ask_cells(ask))} |"
        yield ""
    yield from ("## Where it comes from", "")
    yield from (f"- {_plain(name)}: {_plain(value)}" for name, value in report.provenance.items())
    yield from (f"- {_plain(note)}" for note in report.notes)
    if command:
        yield f"- to write it again: `{command}`"


def _plain(text: str) -> str:
    """Text of a stranger in a cell of Markdown."""
    return (
        "".join(char for char in text if char.isprintable()).replace("|", "\\|").replace("<", "&lt;").replace("`", "'")
    )


def write_requirements(report: RequirementReport, path: Path, command: str = "") -> None:
    """Write the report as its suffix says: .html, .md, or .pdf by a browser of this machine."""
    from ridgeline.report.requirements_html import requirements_page

    suffix = path.suffix.lower()
    if suffix in (".html", ".htm"):
        write_text(path, requirements_page(report, command))
    elif suffix == ".md":
        write_text(path, requirements_markdown(report, command))
    elif suffix == ".pdf":
        write_bytes(path, _print_pdf(requirements_page(report, command)))
    else:
        raise InputError(Problem(path="-o", given=repr(path.name)[:60], expected="a file ending in .html, .md or .pdf"))


def _print_pdf(page: str) -> bytes:
    """The PDF that a browser without a window prints of a page."""
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    todo = "write .html and print it from a browser, or install chromium"
    if browser is None or "firefox" in browser:
        raise InputError(Problem(path="-o", given="no Chromium on this machine", expected="one that prints", todo=todo))
    with tempfile.TemporaryDirectory(prefix="ridgeline-") as folder:
        source, target = Path(folder) / "report.html", Path(folder) / "report.pdf"
        source.write_text(page, encoding="utf-8")
        options = ["--headless", "--disable-gpu", "--no-sandbox", "--no-pdf-header-footer", f"--print-to-pdf={target}"]
        try:
            subprocess.run(
                [browser, *options, f"--user-data-dir={folder}", source.as_uri()],
                capture_output=True,
                timeout=PRINT_S,
                check=True,
            )
            return target.read_bytes()
        except (OSError, subprocess.SubprocessError) as wrong:
            given_text = f"{Path(browser).name} did not print ({type(wrong).__name__})"
            raise InputError(Problem(path="-o", given=given_text, expected="a PDF", todo=todo)) from None
