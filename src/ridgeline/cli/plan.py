"""Turn `ridgeline plan` into calls of the library: the best way to train, or with --serve to serve.

0  a plan was found        2  nothing fits, or the input cannot be used
130  stopped by Ctrl-C or SIGTERM; the best so far is printed
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ridgeline import api, run_api
from ridgeline.cli.refuse import STOPPED, UNUSABLE
from ridgeline.cli.streams import note, say
from ridgeline.cli.terminal import answer, command_line, console, print_json, stderr_console
from ridgeline.core.documents import JsonObject
from ridgeline.core.errors import InputError, Problem
from ridgeline.core.files import SUFFIXES, write_text
from ridgeline.core.records import dataclass
from ridgeline.core.waits import signals_to
from ridgeline.targets import SERVE, TRAIN

if TYPE_CHECKING:
    from rich.progress import Progress as Bar

    from ridgeline.plan.scenario import Scenario
    from ridgeline.search import DeploymentAnswer, Progress, Recommendation, SearchTime

SCENARIO = "scenario.toml"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanOut:
    """What is wanted of an answer: a scenario file or with `to` a folder that starts it, a page, a picture."""

    output: Path | None
    html: Path | None
    picture: Path | None
    json: bool
    to: str = ""
    force: bool = False

    @property
    def folder(self) -> Path | None:
        """Where the files of a target go: a name that is not a scenario file's is a folder's, where there is one."""
        is_file = self.output is not None and self.output.suffix.lower() in SUFFIXES
        return self.output if self.to and not is_file else None

    @property
    def file(self) -> Path | None:
        """Where the scenario goes, unless it goes into a folder."""
        return None if self.folder else self.output


To = Annotated[
    str,
    typer.Option(
        "--to",
        metavar="TARGET",
        help=f"Search only plans this target can express: {', '.join(sorted(TRAIN))}; "
        f"with --serve {', '.join(sorted(SERVE))}.",
    ),
]


def plan(
    model: str, on: str = "", seq: int | None = None, global_batch: int | None = None, engine: str = "",
    settings: list[str] | None = None, space: Path | None = None, objective: str = "", tokens: str = "",
    days: float | None = None, chips: str = "", top: int = 5, headroom: str = "", frontier: str = "",
    refine: bool = True, to: To = "", output: Path | None = None, force: bool = False, html: Path | None = None,
    json: bool = False, calibration: Path | None = None, anchor: list[str] | None = None, profile: str | None = None,
    serve: bool = False, requests: Path | None = None, rate: float | None = None, isl: int | None = None,
    osl: int | None = None, ttft: str = "", tpot: str = "", itl: str = "", e2e: str = "",
    percentile: float | None = None, picture: Path | None = None, rl: bool = False, step_time: str = "",
) -> None:  # fmt: skip
    """Find the best way to train, serve or post-train a model on a system, priced, simulated and explained.

    To train: every split of the work, and what would beat the best; with --to only plans that software can express.
    With --serve: replicas, pools and engine settings that keep an objective at the least cost, or serve the most.
    With --rl: chips that train and that generate, every role's split, and whether to go asynchronous.
    """
    from ridgeline.report import refuse_picture
    from ridgeline.search.rl import is_post_training_file

    with _answering(json):
        out = PlanOut(output=output, html=html, json=json, to=to, force=force, picture=picture)
        _writable(out.file, html, picture)
        model = api.named_model(model, output, note)
        refuse_filled(out.folder, force)
        pricing: JsonObject = {"calibration": calibration, "anchor": anchor or (), "profile": profile}
        options: JsonObject = {
            "on": on, "engine": engine, "settings": settings or (), "space": space, "objective": objective,
            "seq": seq, "global_batch": global_batch, "tokens": tokens, "days": days, "chips": chips,
            "headroom": headroom, "frontier": frontier, "requests": requests, "rate": rate, "isl": isl, "osl": osl,
            "ttft": ttft, "tpot": tpot, "itl": itl, "e2e": e2e, "percentile": percentile,
        }  # fmt: skip
        options = {name: value for name, value in options.items() if value not in (None, "")}
        if rl or is_post_training_file(model):
            options |= {"serve": serve or None, "picture": picture}
            _plan_post_training(model, out, options, pricing, step_time=step_time, top=top)
            return
        api.refuse_options("--rl with it", "add --rl", step_time=step_time)
        if serve or api.serves(model):
            refuse_picture(picture, "plan")
            with _watching("deployment", quiet=json) as watch:
                deployment = api.plan(model, serve=True, to=to, watch=watch, **pricing, **options)
            _tell_deployment(deployment, watch, out)
            return
        api.refuse_options("--serve with it", "add --serve", picture=picture)
        with _watching("plan", quiet=json) as watch:
            answer = api.plan(
                model, to=to, watch=watch, all_gains=json or html is not None, top=top, refine=refine,
                on_best=None if json else watch.print_best, **pricing, **options,
            )  # fmt: skip
        _tell(answer, watch, out)


POST_TRAINING = ("on", "engine", "settings", "objective")  # options that --rl takes too


def _plan_post_training(
    model: str, out: PlanOut, options: JsonObject, pricing: JsonObject, *, step_time: str, top: int
) -> None:
    """Print the plan of post-training that a question asks for, and write it as asked."""
    from ridgeline.calibrate.rl_anchor import rl_pricing
    from ridgeline.search.rl import RlRequest, recommend_rl

    todo = "drop it; --set workload.KEY describes the step"
    others = {name: value for name, value in options.items() if name not in POST_TRAINING}
    api.refuse_options("none of it with --rl", todo, **others)
    asked_options: JsonObject = {name: options[name] for name in POST_TRAINING if name in options}
    own = rl_pricing(
        list(pricing["anchor"]), lambda runs: api.calibration_of(pricing["calibration"], runs, pricing["profile"])
    )
    began = time.perf_counter(), time.process_time()
    request = RlRequest.from_options(model, calibration=own.calibration, step_time=step_time, top=top, **asked_options)
    found = recommend_rl(replace(request, parameters=own.parameters))
    found = replace(found, seconds=time.perf_counter() - began[0], cpu_seconds=time.process_time() - began[1])
    if found.best is None and not out.json:
        raise InputError(found.problems)
    lines: list[str] = []
    if out.output is not None and found.best is not None and found.scenario_text is not None:
        lines = _write_plan(out, found.best.scenario, found.scenario_text)
    answer(found, out.json)
    if out.output is not None and not out.json:
        for line in lines or [f"written: {out.output}"]:
            say(line)
    if found.best is None:
        raise typer.Exit(UNUSABLE)


@contextmanager
def _answering(json: bool) -> Iterator[None]:
    """Ctrl-C ends with a line; with --json what cannot be used is told as JSON, too."""
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
        raise typer.Exit(UNUSABLE) from None


# -- training ---------------------------------------------------------------------------------------------------------


def _tell(found: Recommendation, watch: _Watch, out: PlanOut) -> None:
    """Print and write what was found, or say why nothing was."""
    from ridgeline.search import NoPlan

    if found.chosen is None and not found.complete:
        say("ridgeline: stopped before a plan that fits was found", err=True)
        raise typer.Exit(STOPPED)
    report = found.report(watch.took())
    if isinstance(report, NoPlan):
        if not out.json:
            raise InputError(found.problems)
        print_json(report)
        raise typer.Exit(UNUSABLE)
    assert found.reasons is not None
    lines = _write_plan(out, found.reasons.recommended.scenario, found.scenario_text)
    if out.html is not None:
        from ridgeline.report import page

        write_text(out.html, page(report, command_line()))
    which = "the refined plan" if report.recommended.refined else "plan 1"
    lines += [f"written: {path}{what}" for path, what in ((out.file, f", {which}"), (out.html, "")) if path is not None]
    if out.json:
        print_json(report)
    else:
        from ridgeline.report import draw_reasons

        draw_reasons(report, console())
        for line in lines:
            say(line)
    if not report.reasons.complete:
        raise typer.Exit(STOPPED)


# -- serving ----------------------------------------------------------------------------------------------------------


def _tell_deployment(found: DeploymentAnswer, watch: _Watch, out: PlanOut) -> None:
    """Print the deployment that was found, and write it as asked: a scenario, a page, a picture."""
    from ridgeline.report import write_picture

    if found.best is None and not found.complete:
        say("ridgeline: stopped before a deployment was found", err=True)
        raise typer.Exit(STOPPED)
    if found.best is None:
        raise InputError(found.problems)
    report = found.report(replace(watch.took(), explain_seconds=0.0))
    lines = _write_plan(out, found.scenario, found.scenario_text)
    for path in filter(None, (out.html, out.picture)):
        write_picture(report, path, command_line())
    lines += [f"written: {path}" for path in (out.file, out.html, out.picture) if path is not None]
    answer(report, out.json)
    for line in lines if not out.json else ():
        say(line)
    if not found.complete:
        raise typer.Exit(STOPPED)


# -- files ------------------------------------------------------------------------------------------------------------


def _writable(*paths: Path | None) -> None:
    """Make the folders of what will be written, and say at once what cannot be."""
    for path in filter(None, paths):
        _make_folder(path.parent, path)
        if path.is_dir() or not os.access(path.parent, os.W_OK):
            text = "a folder" if path.is_dir() else "a folder that cannot be written"
            raise InputError(Problem(path=str(path), given=text, expected="a file to write", todo="choose another"))


def refuse_filled(folder: Path | None, force: bool) -> None:
    """Say before the search that a folder cannot take the files, or holds some already."""
    if folder is None:
        return
    _make_folder(folder, folder)
    if not os.access(folder, os.W_OK):
        text = "a folder that cannot be written"
        raise InputError(Problem(path=str(folder), given=text, expected="one that can", todo="choose another"))
    if any(folder.iterdir()) and not force:
        text, todo = f"{folder}, which holds files", "choose another, or add --force"
        raise InputError(Problem(path="--output", given=text, expected="an empty folder", todo=todo))


def _make_folder(folder: Path, path: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as wrong:
        text = wrong.strerror or str(wrong)
        raise InputError(Problem(path=str(path), given=text, expected="a folder that can be made")) from None


def _write_plan(out: PlanOut, scenario: Scenario, text: str) -> list[str]:
    """Write the scenario file, or into a folder the scenario and the target's files, with a line for each of these,
    then what they mean and what is left to the user."""
    if out.folder is None:
        if out.output is not None:
            write_text(out.output, text)
        return []
    from ridgeline.cli.export import lost_lines
    from ridgeline.targets import check_lines

    exported = run_api.export(scenario, to=out.to, output=out.folder, allow_misfit=True, force=True)
    write_text(out.folder / SCENARIO, text)
    lines = [f"written: {out.folder / name}" for name in (SCENARIO, *exported.files)]
    return [*lines, *(check_lines(exported.check) if exported.check else ()), *lost_lines(exported)]


# -- progress ---------------------------------------------------------------------------------------------------------


class _Watch:
    """Whoever sits at the terminal: is shown progress, may stop it, and has a clock: wall and CPU seconds."""

    def __init__(self, kind: str, stop: _Stop, bar: Bar | None) -> None:
        self._explains = kind == "plan"
        self._words: Callable[[Progress], str] = self._plan_words if self._explains else _deployment_words
        self._stop, self._bar = stop, bar
        self._begin: dict[str, float] = {}
        self.began = time.perf_counter(), time.process_time()
        self._heard = self.began[0]
        self.explaining: tuple[float, float] | None = None

    def __call__(self, progress: Progress) -> bool:
        if self._explains and progress.phase == "explain" and self.explaining is None:
            self.explaining = time.perf_counter(), time.process_time()
        if self._bar is not None:
            self._bar.update(self._bar.task_ids[0], description=self._words(progress))
        return not self._stop.signal

    def print_best(self, found: Recommendation) -> None:
        """Print the winner and the best plans, above the line of progress."""
        from ridgeline.report import draw_best
        from ridgeline.search import NoPlan

        report = found.report(self.took())
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

    def _plan_words(self, progress: Progress) -> str:
        from ridgeline.core.units import format_quantity

        if progress.phase == "explain":
            return f"plans are priced; now {progress.what} (Ctrl-C prints what there is)"
        start, self._heard = self._begin.setdefault(progress.what, self._heard), time.perf_counter()
        speed = progress.priced / max(1e-3, self._heard - start)
        best = format_quantity(progress.best_s, "s") if progress.best_s < float("inf") else "none fits yet"
        return f"{progress.what}: {progress.priced:,} plans, {speed:,.0f} plans/s, best {best} (Ctrl-C prints it)"


def _deployment_words(progress: Progress) -> str:
    if progress.phase == "explain":
        return f"deployments are simulated; now {progress.what} (Ctrl-C prints what there is)"
    best = f"best so far {progress.best}; " if progress.best else ""
    return f"{progress.what} ({progress.priced} simulations; {best}Ctrl-C prints the best so far)"


@contextmanager
def _watching(kind: str, *, quiet: bool) -> Iterator[_Watch]:
    """A line of progress on a terminal's standard error, unless quiet; the first signal stops the search, the second
    interrupts. While the room of searches loads, any signal ends the program: there is nothing to stop."""
    from ridgeline import search

    assert callable(search.PlanRequest)
    with _stoppable() as stop:
        if quiet or not sys.stderr.isatty():
            yield _Watch(kind, stop, None)
            return
        from rich.progress import Progress, SpinnerColumn, TextColumn

        columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False))
        with Progress(*columns, console=stderr_console(), transient=True) as bar:
            bar.add_task("pricing the parts of the plans", total=None)
            yield _Watch(kind, stop, bar)


@dataclass(slots=True, kw_only=True)
class _Stop:
    """The signal that stopped the search; 0 before one did."""

    signal: int = 0


@contextmanager
def _stoppable() -> Iterator[_Stop]:
    """What the first Ctrl-C or SIGTERM sets; the second one interrupts as usual."""
    stop = _Stop()

    def interrupt(number: int, _: object) -> None:
        if stop.signal:
            raise KeyboardInterrupt
        stop.signal = number

    with signals_to(interrupt):
        yield stop
