"""Turn `ridgeline predict`, `timeline`, `roofline` and `profile` into calls of the library.

0  done        2  the scenario cannot run, or the input cannot be used
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

import typer

import ridgeline
from ridgeline import api
from ridgeline.cli.refuse import UNUSABLE
from ridgeline.cli.streams import note, say
from ridgeline.cli.terminal import ProgressLine, answer, check_outputs, command_line, print_json, progress_bar
from ridgeline.core.errors import InputError, Problem
from ridgeline.core.files import write_text

if TYPE_CHECKING:
    from ridgeline.comm.simulation import NetworkOptions
    from ridgeline.plan.scenario import Scenario

LONG = 20_000  # requests from which a bar is shown


def predict(
    scenario: str, on: str = "", seq: int | None = None, global_batch: int | None = None, engine: str = "",
    settings: list[str] | None = None, json: bool = False, full_attention: bool = False,
    calibration: Path | None = None, anchor: list[str] | None = None, profile: str | None = None,
    network: str = "closed", paths: str = "ecmp", background: list[str] | None = None,
    straggler: list[str] | None = None,
) -> None:  # fmt: skip
    """Predict a step of training, prefill or decode, or requests under load: how long, where time goes, what fits."""
    built = api.scenario_of(
        scenario, on=on, seq=seq, global_batch=global_batch, engine=engine, settings=settings or (),
        note=note,
    )  # fmt: skip
    conditions: NetworkOptions = {}
    if network == "simulated" or paths != "ecmp":
        conditions["paths"] = paths
    if background:
        conditions["background"] = background
    if straggler:
        conditions["straggler"] = straggler
    with request_bar(built, json) as progress:
        prediction = ridgeline.predict(
            built, calibration, anchor=anchor or (), profile=profile, causal=not full_attention, network=network,
            progress=progress, **conditions,
        )  # fmt: skip
    if isinstance(prediction, ridgeline.Impossible) and not json:
        raise InputError(prediction.reasons)
    answer(prediction, json)
    if isinstance(prediction, ridgeline.Impossible):
        raise typer.Exit(UNUSABLE)


def request_bar(scenario: Scenario, json: bool) -> AbstractContextManager[ProgressLine | None]:
    """A progress bar on standard error, where a scenario is one of many requests."""
    if scenario.workload.kind != "serve":
        return nullcontext()
    return progress_bar(f"simulating requests of {scenario.model.id}", LONG, json=json)


def timeline(
    scenario: Path, output: Path | None = None, settings: list[str] | None = None, json: bool = False,
    html: Path | None = None, show: bool = False, once: bool = False,
) -> None:  # fmt: skip
    """Write the predicted step as a trace that Perfetto and chrome://tracing open, a process per pipeline stage."""
    from ridgeline.report import page_files
    from ridgeline.sim.events.simulate import drawn_together
    from ridgeline.trace import write_chrome

    if output is None and (html is None or show):
        raise InputError(Problem(path="-o", given="no file", expected="a trace file to write, or --html FILE"))
    check_outputs(output, html)
    if show:
        page_files()
    built = ridgeline.read_scenario(scenario, settings or ())
    if built.workload.kind in WRITERS:
        WRITERS[built.workload.kind](built, output, html, json=json)
        return
    line = ridgeline.timeline(built)
    if isinstance(line, ridgeline.Impossible):
        raise InputError(line.reasons)
    if html is not None:
        from ridgeline.report import write_trace_page
        from ridgeline.sim import Prediction
        from ridgeline.trace import analyze

        step = ridgeline.predict(built)
        prediction = step if isinstance(step, Prediction) else None
        packed = write_trace_page(analyze(line), html, command=command_line(), prediction=prediction)
        say(f"{html}: {packed.kept:,} spans, {html.stat().st_size / 1e6:.1f} MB", err=True)
    if output is not None:
        write_chrome(line, output)
    if json:
        facts = {"file": str(output or html), "spans": len(line), "stages": len(line.processes)}
        print_json(facts | {"seconds": line.span_s, "layers_together": drawn_together(line)})
    elif output is not None:
        from ridgeline.core.units import format_quantity

        where = f"{len(line):,} spans of {len(line.processes)} stage(s), {format_quantity(line.span_s, 's')}"
        note = "; the layers of a step are drawn as one, there are too many" if drawn_together(line) else ""
        how = "" if show else "; open it at https://ui.perfetto.dev or chrome://tracing, or with --open"
        say(f"{output}: {where}{note}{how}")
    if show and output is not None:
        _show(output, once)


def _write_requests(scenario: Scenario, output: Path | None, html: Path | None, *, json: bool) -> None:
    """Write the page of a scenario's requests over time."""
    from ridgeline.report import page
    from ridgeline.search import served_intervals
    from ridgeline.serving import predict_serving, refuse_impossible

    if output is not None or html is None:
        raise InputError(Problem(path="-o", given="a serve scenario", expected="--html FILE: requests over time"))
    with request_bar(scenario, json) as tell:
        prediction = refuse_impossible(predict_serving(scenario, api.priced_of(), sample=True, progress=tell))
    write_text(html, page(prediction, command_line(), served_intervals(prediction)))
    metrics = prediction.metrics
    if json:
        print_json({"file": str(html), "requests": metrics.requests, "seconds": metrics.duration_s})
    else:
        say(f"{html}: {metrics.requests:,} requests on {len(prediction.run.samples)} replica(s)")


def _write_post_training(scenario: Scenario, output: Path | None, html: Path | None, *, json: bool) -> None:
    """Write the phases of a step of post-training as a trace, and its page."""
    from ridgeline.report import page
    from ridgeline.rl import RlPrediction, rl_timeline
    from ridgeline.trace import write_chrome

    prediction = ridgeline.predict(scenario)
    if not isinstance(prediction, RlPrediction):
        raise InputError(prediction.reasons if isinstance(prediction, ridgeline.Impossible) else ())
    if html is not None:
        write_text(html, page(prediction))
    line = rl_timeline(prediction)
    if output is not None:
        write_chrome(line, output)
    if json:
        print_json({"file": str(output or html), "spans": len(line), "seconds": line.span_s})
    else:
        say(f"{output or html}: {len(line)} spans, three steps of {prediction.step_time_s:.1f} s")


WRITERS: Mapping[str, Callable[..., None]] = MappingProxyType({"serve": _write_requests, "rl": _write_post_training})
"""Who writes the timeline of a workload that is no training step."""


def _show(trace: Path, once: bool) -> None:
    """Serve a trace until it has been looked at, or until Ctrl-C."""
    import os
    import threading
    import webbrowser

    from ridgeline.report import serve_trace

    has_screen = bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
    with serve_trace(trace) as served:
        say(f"{served.url} shows it on this machine; Ctrl-C ends", err=True)
        if sys.platform in ("darwin", "win32") or has_screen:  # else a browser would take over the terminal
            webbrowser.open(served.url)
        try:
            if once:
                served.wait()
            else:
                threading.Event().wait()
        except KeyboardInterrupt:
            say("", err=True)


def roofline(
    model: str,
    on: str,
    phase: str = "train",
    seq: int = 4096,
    batch: int = 1,
    engine: str = "",
    settings: list[str] | None = None,
    profile: str | None = None,
    calibration: Path | None = None,
    output: Path | None = None,
    json: bool = False,
) -> None:
    """Put every op of a model on a chip's roofline: what limits it, how near its roof it is, where the ridges are."""
    check_outputs(output)
    drawing = ridgeline.roofline(
        model, on, phase=phase, seq=seq, batch=batch, engine=engine, settings=settings or (), calibration=calibration,
        profile=profile,
    )  # fmt: skip
    if output is not None:
        from ridgeline.report import write_picture

        write_picture(drawing, output, command_line())
        say(f"{output}: {len(drawing.ops)} ops", err=True)
    answer(drawing, json)


def profile(names: list[str], output: Path | None = None, json: bool = False) -> None:
    """Show what was measured of a machine: ceilings against the data sheet, slow chips; import and merge profiles."""
    check_outputs(output)
    merged = ridgeline.profile(*names)
    if output is not None:
        write_text(output, merged.text())
        say(f"{output}: {len(merged.rows)} measurements", err=True)
    answer(ridgeline.profile_report(merged), json)
