"""Turn `ridgeline plan` into calls of the library.

0  a plan was found        2  nothing fits, or the input cannot be used        130  stopped; the best so far is printed
"""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ridgeline.cli.capture import named_model
from ridgeline.cli.export import Force
from ridgeline.cli.plan_export import PlanOut
from ridgeline.cli.refuse import STOPPED, UNUSABLE
from ridgeline.cli.streams import say
from ridgeline.cli.terminal import (
    Anchor,
    CalibrationFile,
    GlobalBatch,
    Json,
    ProfileOption,
    Seq,
    console,
    print_json,
    stderr_console,
)
from ridgeline.targets import SERVE, TRAIN

if TYPE_CHECKING:
    from rich.progress import Progress as Bar
    from rich.progress import TaskID

    from ridgeline.search import PlanReport, PlanRequest, Progress, Recommendation, SearchTime

Model = Annotated[str, typer.Argument(metavar="MODEL", help="A catalog id, a config.json or a scenario file.")]
On = Annotated[str, typer.Option("--on", metavar="SYSTEM[,SYSTEM...]", help="Systems such as 64xh100-sxm.")]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="KEY=VALUE", help="Pin (plan.tp=8), bound (plan.tp=2..8) or set any key; may be repeated."
    ),
]

Objective = Annotated[
    str, typer.Option(help="time, cost, energy, memory or chips; with --serve cost, chips or goodput.")
]
To = Annotated[
    str,
    typer.Option(
        "--to",
        metavar="TARGET",
        help=f"Search only plans this target can express: {', '.join(sorted(TRAIN))}; "
        f"with --serve {', '.join(sorted(SERVE))}.",
    ),
]
Output = Annotated[
    Path | None, typer.Option("-o", "--output", help="Write the plan as a scenario file; with --to a folder to launch.")
]
Picture = Annotated[
    Path | None, typer.Option("--picture", metavar="FILE", help="With --serve: draw the frontier as .png or .svg.")
]


def register(app: typer.Typer) -> None:
    """Give the command line the verb of this module."""
    app.command()(plan)


def plan(
    model: Model,
    on: On = "",
    seq: Seq = None,
    global_batch: GlobalBatch = None,
    engine: Annotated[str, typer.Option(metavar="ID", help="The software that runs the plan.")] = "",
    settings: Settings = None,
    space: Annotated[Path | None, typer.Option(metavar="FILE", help="A TOML file whose [space] pins as --set.")] = None,
    objective: Objective = "",
    tokens: Annotated[str, typer.Option(help="Tokens of the run, such as 2T: asks for days, failures counted.")] = "",
    days: Annotated[float | None, typer.Option(help="Days the run may take; with --tokens the fewest chips.")] = None,
    chips: Annotated[str, typer.Option(help="Sizes to compare, 64..4096 or 64,96,128.")] = "",
    top: Annotated[int, typer.Option(min=1, max=64, help="Plans to list.")] = 5,
    headroom: Annotated[str, typer.Option(help="Share of memory kept free; else as measured peaks ask.")] = "",
    frontier: Annotated[str, typer.Option(help="Two of time, memory, cost, energy, chips.")] = "",
    refine: Annotated[bool, typer.Option(help="Also choose stage boundaries and recompute by stage.")] = True,
    to: To = "",
    output: Output = None,
    force: Force = False,
    html: Annotated[Path | None, typer.Option("--html", metavar="FILE", help="Write the page as HTML.")] = None,
    json: Json = False,
    calibration: CalibrationFile = None,
    anchor: Anchor = None,
    profile: ProfileOption = None,
    serve: Annotated[bool, typer.Option("--serve", help="Size a deployment that serves requests.")] = False,
    requests: Annotated[Path | None, typer.Option(metavar="FILE", help="With --serve: a trace of requests.")] = None,
    rate: Annotated[float | None, typer.Option(help="With --serve: requests a second; none: the most goodput.")] = None,
    isl: Annotated[int | None, typer.Option(min=1, help="With --serve: prompt tokens.")] = None,
    osl: Annotated[int | None, typer.Option(min=1, help="With --serve: output tokens.")] = None,
    ttft: Annotated[str, typer.Option(help="Limit of the time to the first token, such as 500ms.")] = "",
    tpot: Annotated[str, typer.Option(help="Limit of the time per output token, such as 30ms.")] = "",
    itl: Annotated[str, typer.Option(help="Limit of a pause between tokens.")] = "",
    e2e: Annotated[str, typer.Option(help="Limit of the time to the last token.")] = "",
    percentile: Annotated[float | None, typer.Option(help="Of requests that must keep the limits; 99.")] = None,
    picture: Picture = None,
) -> None:
    """Find the best way to train or serve a model on a system, priced, simulated and explained.

    To train: every split of the work, and what would beat the best; with --to only plans that software can express.
    With --serve: replicas, pools and engine settings that keep an objective at the least cost, or serve the most.
    """
    from ridgeline.api import priced_of
    from ridgeline.cli.plan_serve import plan_serve
    from ridgeline.search import PlanRequest

    with _answering(json):
        out = PlanOut(output=output, html=html, json=json, to=to, force=force, picture=picture)
        _writable(None if out.folder else output, html, picture)
        model = named_model(model, beside=output)
        limits = {"ttft": ttft, "tpot": tpot, "itl": itl, "e2e": e2e}
        run = {"tokens": tokens, "chips": chips, "headroom": headroom, "frontier": frontier}
        if serve or _serves(model):
            _refuse_training(seq=seq, global_batch=global_batch, days=days, **run)
            plan_serve(
                model, priced_of(calibration, anchor or (), profile), out, on=on,
                requests=requests, rate=rate, isl=isl, osl=osl, percentile=percentile, engine=engine,
                settings=settings or (), space=space, objective=objective, **limits,
            )  # fmt: skip
            return
        _refuse_serving(requests=requests, rate=rate, isl=isl, osl=osl, picture=picture, **limits)
        request = PlanRequest.from_options(
            model, on=on, seq=seq, global_batch=global_batch, engine=engine, settings=settings or (), space=space,
            objective=objective, days=days, top=top, refine=refine, **run,
        )  # fmt: skip
        _plan_training(request, out, calibration, anchor or (), profile)


def _plan_training(
    request: PlanRequest, out: PlanOut, calibration: Path | None, anchor: Sequence[str], profile: str | None
) -> None:
    """Answer the question: what is used to price, what it is for, the search, and what is told and written."""
    from ridgeline.api import calibration_of
    from ridgeline.cli.plan_export import refuse_filled

    if out.to:
        from ridgeline.targets import training_target

        request = replace(request, target=training_target(out.to))
    refuse_filled(out.folder, out.force)
    used = calibration_of(calibration, anchor, profile)
    _refuse_other_chip(profile, request)
    found, took = _recommend_with_bar(request if used is None else replace(request, calibration=used), out)
    _tell(found, took, out)


@contextmanager
def _answering(json: bool) -> Iterator[None]:
    """Ctrl-C ends with a line; with --json what cannot be used is told as JSON, too."""
    from ridgeline.core.errors import InputError

    try:
        yield
    except KeyboardInterrupt:
        say("ridgeline: stopped before there was anything to tell", err=True)
        raise typer.Exit(STOPPED) from None
    except InputError as wrong:
        if not json or not wrong.problems:
            raise
        from ridgeline.search import NoPlan

        print_json(NoPlan(problems=wrong.problems))
        raise typer.Exit(2) from None


def _serves(model: str) -> bool:
    """Whether a scenario file asks for serving."""
    from ridgeline.core.files import SUFFIXES, read_table

    if not model.lower().endswith(SUFFIXES) or not Path(model).is_file():
        return False
    work = read_table(Path(model)).data.get("workload")
    return isinstance(work, dict) and work.get("kind") == "serve"


def _refuse_training(**given: object) -> None:
    """Options of a training run say nothing of a deployment."""
    _refuse_options(given, "none of it with --serve", "drop it; --rate, --isl and --osl describe a load")


def _refuse_serving(**given: object) -> None:
    _refuse_options(given, "--serve with it", "add --serve")


def _refuse_options(given: dict[str, object], expected: str, todo: str) -> None:
    from ridgeline.core.errors import InputError, Problem

    told = {name: value for name, value in given.items() if value not in (None, "")}
    if told:
        raise InputError(
            [
                Problem(path=f"--{name.replace('_', '-')}", given=str(value), expected=expected, todo=todo)
                for name, value in told.items()
            ]
        )


def _refuse_other_chip(profile: str | None, request: PlanRequest) -> None:
    """Say at once that a profile is of a chip that no system here has."""
    if profile is None or not request.systems:
        return
    from ridgeline.calibrate.profile_sources import refuse_other_chip
    from ridgeline.hardware.load import system

    refuse_other_chip(profile, [system(name).chip for name in request.systems])


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


def _recommend_with_bar(request: PlanRequest, out: PlanOut) -> tuple[Recommendation, SearchTime]:
    """The answer of the library, and how long it took; on a terminal the best plans are printed before the reasons.

    A page for people names changes that gain something; files list all that were tried.
    """
    from ridgeline.search import recommend

    with stoppable() as stop, progress_bar() as (bar, task):
        watch = _Watch(stop, bar, task)
        whole = out.json or out.html is not None
        found = recommend(request, watch, all_gains=whole, on_best=None if out.json else watch.print_best)
    return found, watch.took()


class _Watch:
    """Whoever sits at the terminal: is shown progress, may stop it, and has a clock: wall and CPU seconds."""

    def __init__(self, stop: threading.Event, bar: Bar | None, task: TaskID | None) -> None:
        self._stop, self._bar, self._task = stop, bar, task
        self._begin: dict[str, float] = {}
        self.began = time.perf_counter(), time.process_time()
        self.explaining: tuple[float, float] | None = None

    def __call__(self, progress: Progress) -> bool:
        if progress.phase == "explain" and self.explaining is None:
            self.explaining = time.perf_counter(), time.process_time()
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, description=self._words(progress))
        return not self._stop.is_set()

    def print_best(self, found: Recommendation) -> None:
        """Print the winner and the best plans, above the line of progress."""
        from ridgeline.report.plan import draw_best
        from ridgeline.search import NoPlan, plan_report

        report = plan_report(found, self.took())
        if isinstance(report, NoPlan):
            return
        if self._bar is not None:
            self._bar.stop()
        draw_best(report, console())
        sys.stdout.flush()
        if self._bar is not None:
            self._bar.start()

    def took(self) -> SearchTime:
        """Wall and CPU seconds of the search, and wall seconds of the reasons so far."""
        from ridgeline.search import SearchTime

        wall, cpu = self.explaining or (time.perf_counter(), time.process_time())
        return SearchTime(
            seconds=wall - self.began[0],
            cpu_seconds=cpu - self.began[1],
            explain_seconds=time.perf_counter() - wall,
        )

    def _words(self, progress: Progress) -> str:
        from ridgeline.core.units import format_quantity

        if progress.phase == "explain":
            return f"plans are priced; now {progress.what} (Ctrl-C tells what there is)"
        start = self._begin.setdefault(progress.what, time.perf_counter())
        speed = progress.priced / max(1e-3, time.perf_counter() - start)
        best = format_quantity(progress.best_s, "s") if progress.best_s < float("inf") else "none fits yet"
        return f"{progress.what}: {progress.priced:,} plans, {speed:,.0f} plans/s, best {best}"


@contextmanager
def stoppable() -> Iterator[threading.Event]:
    """An event that the first Ctrl-C sets; the second one interrupts as usual."""
    stop = threading.Event()
    if threading.current_thread() is not threading.main_thread():  # only the main thread may catch signals
        yield stop
        return

    def asked(*_: object) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()

    before = signal.signal(signal.SIGINT, asked)
    try:
        yield stop
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def progress_bar() -> Iterator[tuple[Bar | None, TaskID | None]]:
    """A line on a terminal's standard error, nothing elsewhere."""
    if not sys.stderr.isatty():
        yield None, None
        return
    from rich.progress import Progress, SpinnerColumn, TextColumn

    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False))
    with Progress(*columns, console=stderr_console(), transient=True) as bar:
        yield bar, bar.add_task("pricing the parts of the plans", total=None)


def _tell(found: Recommendation, took: SearchTime, out: PlanOut) -> None:
    """Print and write what was found, or say why nothing was."""
    from ridgeline.core.errors import InputError
    from ridgeline.search import NoPlan, plan_report

    if found.chosen is None and not found.complete:
        say("ridgeline: stopped before a plan that fits was found", err=True)
        raise typer.Exit(STOPPED)
    report = plan_report(found, took)
    if isinstance(report, NoPlan):
        if not out.json:
            raise InputError(found.problems)
        print_json(report)
        raise typer.Exit(UNUSABLE)
    written = _write(found, report, out)
    if out.json:
        print_json(report)
    else:
        from ridgeline.report.plan import draw_reasons

        draw_reasons(report, console())
        for line in written:
            say(line)
    if not report.reasons.complete:
        raise typer.Exit(STOPPED)


def _write(found: Recommendation, report: PlanReport, out: PlanOut) -> list[str]:
    """Write the recommended plan as a scenario file, or with a target's files, and the page; a line for each."""
    from ridgeline.core.files import write_text

    files: list[str] = []
    if out.folder is not None:
        from ridgeline.cli.plan_export import export_into

        assert found.reasons is not None
        chosen = found.reasons.recommended.scenario
        files = list(export_into(out.folder, chosen, found.scenario_text, out.to))
    elif out.output is not None:
        write_text(out.output, found.scenario_text)
    if out.html is not None:
        from ridgeline.report.plan_html import page

        write_text(out.html, page(report))
    which = "the refined plan" if report.recommended.refined else "plan 1"
    named = ((None if out.folder else out.output, f", {which}"), (out.html, ""))
    lines = [f"written: {path}{what}" for path, what in named if path is not None]
    return [*files, *lines]
