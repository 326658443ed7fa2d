"""Turn a PageHead and the markup of a body into a page: one head and one foot, whichever verb writes it.

head    the question, the answer in one sentence, how sure it is, and what was given: model, machine, plan, command
foot    the version, what the numbers rest on and of when it is, and how to write the page again
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator
from functools import cache

from ridgeline.calibrate.truth.rows import BUNDLED, TRUTH
from ridgeline.core.records import dataclass
from ridgeline.core.units import format_duration
from ridgeline.hardware.what_if import system_title
from ridgeline.plan.plan import plan_words
from ridgeline.plan.scenario import Scenario
from ridgeline.report.html import document, escape_text, inline_code, page_style, printable
from ridgeline.sim.prediction_interval import Interval
from ridgeline.version import __version__

Facts = Iterable[tuple[str, str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class PageHead:
    """What stands at the head and the foot of every page.

    verb        which command writes such a page
    question    the title
    answer      one sentence
    certainty   the interval and what it rests on, or why there is none
    subject     name and value: model, machine, plan, workload
    evidence    where the numbers come from, and of when they are
    command     the command line that writes the page again; empty where a program called the library
    """

    verb: str
    question: str
    answer: str
    certainty: str
    subject: tuple[tuple[str, str], ...]
    evidence: str
    command: str = ""

    @property
    def markup(self) -> str:
        """The head of the page."""
        subject = "".join(
            f"<div><dt>{escape_text(name)}</dt><dd>{inline_code(value)}</dd></div>"
            for name, value in self.subject
            if value
        )
        if self.command:
            subject += f"<div><dt>Command</dt><dd><code>{_command_markup(self.command)}</code></dd></div>"
        return (
            f'<header class="page"><p class="verb">Ridgeline {escape_text(self.verb)}</p>'
            f'<h1 id="title">{inline_code(self.question)}</h1><p class="answer">{inline_code(self.answer)}</p>'
            f'<p class="certainty"><b>How sure</b> {inline_code(self.certainty)}</p><dl class="subject">{subject}</dl>'
            "</header>"
        )

    @property
    def foot(self) -> str:
        """The foot of the page."""
        again = f"To write it again: <code>{_command_markup(self.command)}</code>. " if self.command else ""
        return (
            f'<footer class="page"><p>Ridgeline {__version__}. {inline_code(self.evidence)}</p>'
            f"<p>{again}One file: it fetches nothing and sends nothing.</p></footer>"
        )


COMMAND, WORD = 2000, 36  # characters of a command line, and of a word of it that stays whole


def _command_markup(command: str) -> str:
    """A command line whose options and values do not break in the middle."""
    words = printable(command, COMMAND).split(" ")
    kinds = (' class="id"' if len(word) <= WORD else "" for word in words)
    return " ".join(f"<span{kind}>{escape_text(word)}</span>" for word, kind in zip(words, kinds, strict=True))


def page_document(head: PageHead, body: str, *styles: str, script: str = "", style: str = "") -> str:
    """The file of a page: `styles` are names of `pages/`, `style` and `script` are added as they are."""
    return document(
        title=f"{head.question} | Ridgeline {head.verb}",
        body=f"{head.markup}<main>{body}</main>{head.foot}",
        style=page_style(*styles) + style,
        script=script,
    )


def interval_words(interval: Interval) -> str:
    """How sure a predicted time is, and what says so."""
    low, high = format_duration(interval.low), format_duration(interval.high)
    return f"{low} to {high} with {interval.coverage:.0%} probability. It rests on {interval.basis}."


def scenario_facts(scenario: Scenario, *, machine: str = "", plan: str | None = None) -> Iterator[tuple[str, str]]:
    """Model, machine and plan of a scenario, for the head of its page."""
    system = scenario.system
    yield "Model", scenario.model.id
    yield "Machine", machine or f"{system_title(system)}: {system.chips:,} chip{'s' * (system.chips > 1)}"
    if plan is None:
        plan = plan_words(scenario.plan)
    if plan:
        yield "Plan", f"{plan}, under {scenario.plan.engine}"


def prediction_evidence() -> str:
    """What predictions rest on and of when the newest of it is."""
    return f"Predictions are fitted to measured runs, the newest of {newest_run_year()}; chips are as data sheets say."


@cache
def newest_run_year() -> int:
    """The year of the newest bundled run.

    >>> newest_run_year() >= 2025
    True
    """
    years: list[int] = []
    for name in BUNDLED:
        with (TRUTH / name).open(encoding="utf-8", newline="") as lines:
            years += [int(row["year"]) for row in csv.DictReader(lines) if (row.get("year") or "").isdigit()]
    return max(years)
