"""Turn `ridgeline plan` into calls of the library.

0  a plan was found        2  nothing fits, or the input cannot be used        130  stopped; the best so far is printed
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ridgeline.cli.terminal import Json, console, print_json, stderr_console

if TYPE_CHECKING:
    from ridgeline.report.plan_sheet import Reasons
    from ridgeline.search.answer import Answer, Watch
    from ridgeline.search.objectives import Outcome
    from ridgeline.search.request import PlanRequest
    from ridgeline.sim.prediction import Prediction

STOPPED = 130  # as shells report an interrupt
Model = Annotated[str, typer.Argument(metavar="MODEL", help="A catalog id, a config.json or a scenario file.")]
On = Annotated[str, typer.Option("--on", metavar="SYSTEM[,SYSTEM...]", help="Systems such as 64xh100-sxm.")]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="KEY=VALUE", help="Pin (plan.tp=8), bound (plan.tp=2..8) or set any key; may be repeated."
    ),
]


def register(app: typer.Typer) -> None:
    """Give the command line the verb of this module."""
    app.command()(plan)


def plan(
    model: Model,
    on: On = "",
    seq: Annotated[int | None, typer.Option(help="Tokens of a sequence; 8192 unless given.")] = None,
    global_batch: Annotated[int | None, typer.Option(help="Sequences of a step; 1024 unless given.")] = None,
    engine: Annotated[str, typer.Option(metavar="ID", help="The software that runs the plan.")] = "",
    settings: Settings = None,
    space: Annotated[Path | None, typer.Option(metavar="FILE", help="A TOML file whose [space] pins as --set.")] = None,
    objective: Annotated[str, typer.Option(help="time, cost, energy, memory or chips.")] = "",
    tokens: Annotated[str, typer.Option(help="Tokens of the run, such as 2T: asks for days, failures counted.")] = "",
    days: Annotated[float | None, typer.Option(help="Days the run may take; with --tokens the fewest chips.")] = None,
    chips: Annotated[str, typer.Option(help="Sizes to compare, 64..4096 or 64,96,128.")] = "",
    top: Annotated[int, typer.Option(min=1, max=64, help="Plans to list.")] = 5,
    headroom: Annotated[str, typer.Option(help="Share of memory kept free.")] = "3%",
    frontier: Annotated[str, typer.Option(help="Two of time, memory, cost, energy, chips.")] = "",
    refine: Annotated[bool, typer.Option(help="Also choose stage boundaries and recompute by stage.")] = True,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="Write the plan as a scenario file.")] = None,
    html: Annotated[Path | None, typer.Option("--html", metavar="FILE", help="Write the page as HTML.")] = None,
    json: Json = False,
) -> None:
    """Find the best way to train a model on a system: every split of the work priced, the best explained."""
    from ridgeline.core.errors import InputError
    from ridgeline.search.objectives import pair

    given = {"seq": seq, "global_batch": global_batch}
    goal = {"objective": objective, "tokens": tokens, "days": days, "chips": chips, "top": top, "headroom": headroom}
    try:
        _writable(output, html)
        axes = pair(frontier) if frontier else None
        ask = _ask(model, on, given, _wish(engine, settings or (), space), goal)
        found = _searched(ask)
        _tell(found, axes, _Out(output=output, html=html, json=json, refine=refine))
    except KeyboardInterrupt:
        typer.echo("ridgeline: stopped before there was anything to tell", err=True)
        raise typer.Exit(STOPPED) from None
    except InputError as wrong:
        if not json or not wrong.problems:
            raise
        from ridgeline.report.plan_sheet import refusal_sheet

        print_json(refusal_sheet(None, wrong.problems))
        raise typer.Exit(2) from None


def _writable(*paths: Path | None) -> None:
    """Make the folders of what will be written, and say at once what cannot be."""
    import os

    from ridgeline.core.errors import InputError, Problem

    for path in paths:
        if path is None:
            continue
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as wrong:
            given = wrong.strerror or str(wrong)
            raise InputError(Problem(path=str(path), given=given, expected="a folder that can be made")) from None
        if path.is_dir() or not os.access(path.parent, os.W_OK):
            given = "a folder" if path.is_dir() else "a folder that cannot be written"
            raise InputError(Problem(path=str(path), given=given, expected="a file to write", todo="choose another"))


def _wish(engine: str, settings: Any, space: Path | None) -> tuple[Any, tuple[str, ...]]:
    """Pins of the space file and of the settings, and the settings that are not about the plan."""
    from ridgeline.core.errors import InputError, Problem, not_among
    from ridgeline.core.files import read_table
    from ridgeline.search.pins import Wanted, joined, settings_table, wanted

    problems: list[Problem] = []
    wish = Wanted()
    if space is not None:
        table = read_table(space)
        body = table.data.get("space")
        problems += [not_among(key, key, ("space",), "remove it") for key in table.data if key != "space"]
        if not isinstance(body, dict):
            problems.append(Problem(path="space", given=str(space), expected="a table [space]", where=str(space)))
            body = {}
        wish = wanted(body, space.name, problems)
    own, rest = settings_table(settings, problems)
    wish = joined(wish, wanted({**own, **({"engine": engine} if engine else {})}, "--set", problems))
    if problems:
        raise InputError(problems)
    return wish, tuple(rest)


def _ask(
    model: str, on: str, given: dict[str, Any], wish: tuple[Any, tuple[str, ...]], goal: dict[str, Any]
) -> PlanRequest:
    from ridgeline.core.errors import InputError, Problem, not_among
    from ridgeline.search.objectives import OBJECTIVES, Goal, tokens_of
    from ridgeline.search.request import PlanRequest, read_request

    table = read_request(model)
    systems = tuple(name.strip() for name in on.split(",") if name.strip())
    if not systems and "system" not in table:
        todo = "for example --on 64xh100-sxm; `ridgeline show systems` lists them"
        raise InputError(Problem(path="--on", given="nothing", expected="a system", todo=todo))
    work = table.get("workload", {})
    more = {key: value for key, value in given.items() if value is not None}
    if more and isinstance(work, dict):
        drop = ("tokens_per_batch",) if "global_batch" in more else ()
        table["workload"] = {**{key: value for key, value in work.items() if key not in drop}, **more}
    wanted_days = goal["days"]
    if wanted_days is not None and not 0 < wanted_days < float("inf"):
        raise InputError(Problem(path="--days", given=f"{wanted_days:g}", expected="a number of days above 0"))
    total = tokens_of(goal["tokens"]) if goal["tokens"] else None
    named = goal["objective"] or ("chips" if wanted_days is not None else "time")
    chosen = next((known for known in OBJECTIVES if known == named), None)
    if chosen is None:
        raise InputError(not_among("--objective", named, OBJECTIVES))
    return PlanRequest(
        table=table,
        systems=systems,
        settings=wish[1],
        wish=wish[0],
        goal=Goal(objective=chosen, tokens=total, days=wanted_days),
        chips=goal["chips"] or None,
        headroom=_share(goal["headroom"]),
        top=goal["top"],
    )


def _share(text: str) -> float:
    """A share as `3%` or `0.03`."""
    from ridgeline.core.errors import InputError, Problem

    bare = text.strip()
    try:
        value = float(bare.removesuffix("%")) / (100 if bare.endswith("%") else 1)
    except ValueError:
        value = -1.0
    if not 0 <= value < 1:
        raise InputError(Problem(path="--headroom", given=repr(text), expected="a share such as 3% or 0.03, below 1"))
    return value


def _searched(ask: PlanRequest) -> Answer:
    from ridgeline.search.answer import answer

    with _watched() as watch:
        return answer(ask, watch)


@contextmanager
def _watched() -> Iterator[Watch]:
    """A line with plans per second on a terminal's standard error, nothing elsewhere."""
    from ridgeline.search.answer import unwatched

    if not sys.stderr.isatty():
        yield unwatched
        return
    import time

    from rich.progress import Progress, SpinnerColumn, TextColumn

    from ridgeline.core.units import format_quantity

    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False))
    with Progress(*columns, console=stderr_console(), transient=True) as bar:
        task = bar.add_task("pricing the parts of the plans", total=None)
        begin: dict[str, float] = {}

        def watch(system: str, priced: int, best_s: float) -> None:
            start = begin.setdefault(system, time.perf_counter())
            speed = priced / max(1e-3, time.perf_counter() - start)
            best = format_quantity(best_s, "s") if best_s < float("inf") else "none fits yet"
            bar.update(task, description=f"{system}: {priced:,} plans, {speed:,.0f} plans/s, best {best}")

        yield watch


@dataclass(frozen=True, slots=True, kw_only=True)
class _Out:
    """What is wanted of the answer."""

    output: Path | None
    html: Path | None
    json: bool
    refine: bool


def _tell(found: Answer, axes: tuple[str, str] | None, out: _Out) -> None:
    """Print and write what was found, or say why nothing was."""
    from ridgeline.report.plan import draw_plan
    from ridgeline.report.plan_sheet import plan_sheet, usual_axes

    if found.chosen is None:
        _refuse(found, json=out.json)
        return
    reasons = _explained(found, found.chosen, refine=out.refine)
    sheet = plan_sheet(found, found.chosen, reasons, axes or usual_axes(found))
    if out.json:
        print_json(sheet)
    else:
        draw_plan(sheet, console())
    made = reasons.recommended
    _write(found, made.prediction if made else reasons.plans[0], sheet, out)
    if not found.complete or not sheet["explained"]:
        raise typer.Exit(STOPPED)


def _refuse(found: Answer, *, json: bool) -> None:
    from ridgeline.core.errors import InputError
    from ridgeline.report.plan_sheet import refusal_sheet
    from ridgeline.search.answer import refusal

    if not found.complete:
        typer.echo("ridgeline: stopped before a plan that fits was found", err=True)
        raise typer.Exit(STOPPED)
    problems = refusal(found)
    if not json:
        raise InputError(problems)
    print_json(refusal_sheet(found, problems))
    raise typer.Exit(2)


def _explained(found: Answer, chosen: Outcome, *, refine: bool) -> Reasons:
    """The reasons; after an interrupt those that take no time."""
    from ridgeline.report.plan_sheet import reasons_of

    try:
        with _busy("the best plan is found; simulating, refining and trying changes (Ctrl-C tells it now)"):
            return reasons_of(found, chosen, refine=refine)
    except KeyboardInterrupt:
        return reasons_of(found, chosen, further=False)


@contextmanager
def _busy(what: str) -> Iterator[None]:
    """A line on a terminal's standard error while something takes its time."""
    if not sys.stderr.isatty():
        yield
        return
    with stderr_console().status(what):
        yield


def _write(found: Answer, made: Prediction, sheet: Any, out: _Out) -> None:
    """The plan that is handed over as a scenario file, and the page, where they are wanted."""
    from ridgeline.core.files import write_text

    if out.output is not None:
        from ridgeline.search.request import scenario_file

        note = f"Found by `ridgeline plan`: {found.considered:,} plans priced, predicted step {made.step_time_s:.4g} s."
        write_text(out.output, scenario_file(found.case.table, made.scenario.plan, note))
    if out.html is not None:
        from ridgeline.report.plan_html import page

        write_text(out.html, page(sheet))
    which = "the refined plan" if sheet["handed"]["refined"] else "plan 1"
    for path, what in ((out.output, f", {which}"), (out.html, "")):
        if path is not None and not out.json:
            typer.echo(f"written: {path}{what}")
