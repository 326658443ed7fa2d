"""What `timeline`, `explain` and `validate` do with requests under load, and the progress bar of `predict`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from ridgeline.cli.streams import say
from ridgeline.cli.terminal import console, print_json, stderr_console

if TYPE_CHECKING:
    from ridgeline.plan.scenario import Scenario
    from ridgeline.serving.deployment import Priced
    from ridgeline.serving.serving_prediction import ServingPrediction

LONG = 20_000  # requests from which a bar is shown


def explain_serve(scenario: Scenario, *, calibration: Path | None, json: bool) -> None:
    """Print why the slow requests of a scenario are slow."""
    from ridgeline.api import priced_of
    from ridgeline.report.serve import draw_why_slow
    from ridgeline.serving.why_slow import why_slow

    priced = priced_of(calibration)
    why = why_slow(_predict_samples(scenario, priced), priced)
    print_json(why) if json else draw_why_slow(why, console())


def timeline_serve(scenario: Scenario, output: Path | None, html: Path | None, *, json: bool) -> None:
    """Write the page of a scenario's requests over time."""
    from ridgeline.api import priced_of
    from ridgeline.core.errors import InputError, Problem
    from ridgeline.core.files import write_text
    from ridgeline.report.serve_html import serving_page

    if output is not None or html is None:
        raise InputError(Problem(path="-o", given="a serve scenario", expected="--html FILE: requests over time"))
    found = _predict_samples(scenario, priced_of())
    write_text(html, serving_page(found))
    if json:
        print_json({"file": str(html), "requests": found.metrics.requests, "seconds": found.metrics.duration_s})
    else:
        say(f"{html}: {found.metrics.requests:,} requests on {len(found.run.samples)} replica(s)")


def validate_log(path: Path, anchor: Sequence[str], *, json: bool) -> None:
    """Fit, or hold against another log's numbers, a log of measured requests."""
    from ridgeline.calibrate.request_log import apply_request_log, fit_request_log
    from ridgeline.report.serve import draw_request_log
    from ridgeline.serving.load.request_log import read_request_log

    log = read_request_log(path)
    if anchor:
        found = apply_request_log(log, fit_request_log(read_request_log(Path(anchor[-1]))))
    else:
        found = fit_request_log(log)
    print_json(found) if json else draw_request_log(found, console())


def _predict_samples(scenario: Scenario, priced: Priced) -> ServingPrediction:
    from ridgeline.serving.serving_prediction import predict_serving, refuse_impossible

    with request_bar(scenario) as tell:
        return refuse_impossible(predict_serving(scenario, priced, sample=True, progress=tell))


@contextmanager
def request_bar(scenario: Scenario) -> Iterator[Callable[[int, int], None] | None]:
    """A progress bar on standard error, where a scenario is one of many requests."""
    if scenario.workload.kind != "serve":
        yield None
        return
    from rich.progress import Progress

    with Progress(console=stderr_console(), transient=True, disable=not stderr_console().is_terminal) as progress:
        task = progress.add_task(f"{scenario.model.id}: requests", total=None, visible=False)

        def show(done: int, total: int) -> None:
            progress.update(task, completed=done, total=total, visible=total >= LONG)

        yield show
