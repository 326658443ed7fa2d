"""What `plan --serve` does: a deployment that keeps an objective.

0  a deployment was found        2  none keeps the objective, or the input cannot be used        130  stopped
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Unpack

import typer

from ridgeline.cli.plan_export import PlanOut, export_into, refuse_filled
from ridgeline.cli.refuse import STOPPED, UNUSABLE
from ridgeline.cli.streams import say
from ridgeline.cli.terminal import console, print_json

if TYPE_CHECKING:
    import threading

    from rich.progress import Progress as Bar
    from rich.progress import TaskID

    from ridgeline.search import DeploymentAnswer, DeploymentOptions, DeploymentReport, Progress
    from ridgeline.serving.deployment import Priced


class _Watch:
    """Whoever sits at the terminal: is shown what is simulated, and may stop it."""

    def __init__(self, stop: threading.Event, bar: Bar | None, task: TaskID | None) -> None:
        self._stop, self._bar, self._task = stop, bar, task

    def __call__(self, progress: Progress) -> bool:
        if self._bar is not None and self._task is not None:
            said = f"{progress.what} ({progress.priced} simulations; Ctrl-C tells what there is)"
            self._bar.update(self._task, description=said)
        return not self._stop.is_set()


def plan_serve(model: str, priced: Priced, out: PlanOut, **options: Unpack[DeploymentOptions]) -> None:
    """Print the deployment that a question asks for, and write it as asked: a scenario, a page, a picture."""
    from ridgeline.cli.plan import progress_bar, stoppable
    from ridgeline.core.errors import InputError
    from ridgeline.report.deployment import draw_deployment, refuse_picture
    from ridgeline.search import DeploymentRequest, NoPlan, SearchTime, deployment_report, recommend_deployment

    refuse_picture(out.picture)
    request = replace(DeploymentRequest.from_options(model, **options), priced=priced)
    if out.to:
        from ridgeline.targets import serving_target

        request = replace(request, target=serving_target(out.to))
    refuse_filled(out.folder, out.force)
    began, cpu = time.perf_counter(), time.process_time()
    with stoppable() as stop, progress_bar() as (bar, task):
        found = recommend_deployment(request, _Watch(stop, bar, task))
    took = SearchTime(seconds=time.perf_counter() - began, cpu_seconds=time.process_time() - cpu, explain_seconds=0.0)
    if found.best is None and not found.complete:
        say("ridgeline: stopped before a deployment was found", err=True)
        raise typer.Exit(STOPPED)
    if found.best is None:
        if not out.json:
            raise InputError(found.problems)
        print_json(NoPlan(problems=tuple(found.problems)))
        raise typer.Exit(UNUSABLE)
    report = deployment_report(found, took)
    written = _write(found, report, out)
    if out.json:
        print_json(report)
    else:
        draw_deployment(report, console())
        for line in written:
            say(line)
    if not found.complete:
        raise typer.Exit(STOPPED)


def _write(found: DeploymentAnswer, report: DeploymentReport, out: PlanOut) -> list[str]:
    """Write the deployment as a scenario file, or with a target's files, the page, and the frontier's picture."""
    from ridgeline.core.files import write_text

    files: list[str] = []
    if out.folder is not None:
        files = list(export_into(out.folder, found.scenario, found.scenario_text, out.to))
    elif out.output is not None:
        write_text(out.output, found.scenario_text)
    if out.html is not None:
        from ridgeline.report.deployment import write_page

        write_page(report, out.html)
    if out.picture is not None:
        from ridgeline.report.deployment import write_picture

        write_picture(report, out.picture)
    rest = (None if out.folder else out.output, out.html, out.picture)
    return [*files, *(f"written: {path}" for path in rest if path is not None)]
