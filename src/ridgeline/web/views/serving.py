"""The page of requests under load: what users wait for, and how that changes with the rate."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ridgeline.core.errors import InputError
from ridgeline.core.units import format_duration
from ridgeline.report.pieces import Chart, ChartAxis, ChartDot, Curve, chart_svg, prediction_evidence, seconds_axis
from ridgeline.rl import RlPrediction
from ridgeline.serving import ServingPrediction
from ridgeline.web.blocks import (
    CodeText,
    FigureItem,
    FigureRow,
    GridTable,
    LinkCell,
    PageBlock,
    PageView,
    SvgPicture,
    TableCell,
    TaskButton,
    TextLines,
)
from ridgeline.web.controls import state_controls
from ridgeline.web.figures import ExplainedNumber, FormulaInput, explain_number, given_input, quoted_input
from ridgeline.web.jobs import Tell
from ridgeline.web.scenarios import MOST_REQUESTS, Shelf, file_command, scenario_file, state_scenario
from ridgeline.web.state import PageState

LOADS = (0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 2.0, 3.0, 4.0)
"""Rates of a sweep, as multiples of the one that was chosen."""
METRICS = {
    "ttft": ("TTFT", "sent until the first token"),
    "tpot": ("TPOT", "(E2E − TTFT) / (output tokens − 1) of a request"),
    "e2e": ("E2E", "sent until the last token"),
}


def serving_view(state: PageState, shelf: Shelf) -> PageView:
    """Requests under load at the chosen rate, and the button that tries others."""
    import ridgeline

    load_state = asked_load(state)
    prediction = ridgeline.predict(state_scenario(load_state, shelf))
    if isinstance(prediction, ridgeline.Impossible):
        raise InputError(prediction.reasons)
    view = serving_result(load_state, prediction)
    return replace(view, blocks=(*view.blocks, scenario_file(load_state, shelf)))


def asked_load(state: PageState) -> PageState:
    """The state as requests under load: one that asks for something else gets a usual load."""
    if state["kind"] == "serve" or state["file"]:
        return state
    usual = {"kind": "serve", "seq": "1024", "chips": "8", "tp": "8", "pp": "1"}
    return state.choose(**usual)


def serving_result(state: PageState, prediction: object) -> PageView:
    """The page of a simulated deployment, or of a step of post-training."""
    if not isinstance(prediction, ServingPrediction):
        return _other_result(state, prediction)
    metrics, scenario = prediction.metrics, prediction.scenario
    rate = f"{metrics.requests_per_s:.3g} requests/s"
    chips = f"{prediction.run.chips} x {scenario.system.chip.id}"
    return PageView(
        page=state.page,
        title=f"What do users of {scenario.model.id} on {chips} wait for?",
        answer=f"Half get a first token within {format_duration(metrics.ttft.figures['p50'])}, 99 % within "
        f"{format_duration(metrics.ttft.figures['p99'])}; {rate} are answered.",
        certainty=f"{metrics.requests:,} simulated requests; a terminal simulates more of the file below.",
        controls=state_controls(state),
        blocks=tuple(_blocks(prediction)),
        command=file_command("predict"),
        evidence=prediction_evidence(),
        url=state.url,
    )


def _other_result(state: PageState, prediction: object) -> PageView:
    from ridgeline.report.pieces import terminal_text

    kind = "a step of post-training" if isinstance(prediction, RlPrediction) else "this workload"
    text = CodeText(name="report", title="What it says", text=terminal_text(prediction), file="report.txt")
    return PageView(
        page=state.page,
        title=f"How long does {kind} take?",
        answer="The prediction in full is below.",
        controls=state_controls(state),
        blocks=(text,),
        url=state.url,
    )


def _figure(prediction: ServingPrediction, metric: str, percentile: str) -> ExplainedNumber:
    name, formula = METRICS[metric]
    value = getattr(prediction.metrics, metric).figures[percentile]
    return explain_number(
        value,
        "s",
        f"{name}: {formula}; {percentile} over requests, linear",
        load_inputs(prediction),
        _source(prediction),
    )


def load_inputs(prediction: ServingPrediction) -> tuple[FormulaInput, ...]:
    metrics, requests = prediction.metrics, prediction.run.served
    return (
        given_input("requests", f"{metrics.requests:,}"),
        given_input("answered a second", f"{metrics.requests_per_s:.3g}", "simulated"),
        given_input("mean prompt", f"{requests.prompt_tokens.mean():,.0f} tokens"),
        given_input("mean answer", f"{requests.output_tokens.mean():,.0f} tokens"),
    )


def _source(prediction: ServingPrediction) -> str:
    return f"{prediction.metrics.requests:,} requests simulated step by step; {'; '.join(prediction.assumptions[:3])}"


def _blocks(prediction: ServingPrediction) -> Iterator[PageBlock]:
    yield FigureRow(items=(
        FigureItem(name="TTFT p50", number=_figure(prediction, "ttft", "p50")),
        FigureItem(name="TTFT p99", number=_figure(prediction, "ttft", "p99")),
        FigureItem(name="TPOT p50", number=_figure(prediction, "tpot", "p50")),
        FigureItem(name="TPOT p99", number=_figure(prediction, "tpot", "p99")),
        FigureItem(name="output tokens/s a chip", number=_rate(prediction)),
        *(FigureItem(name="a million tokens", number=number) for number in _money(prediction)),
    ))  # fmt: skip
    yield TaskButton(
        task="sweep", label="Try other rates", note=f"{MOST_REQUESTS} requests at each of {len(LOADS)} rates"
    )
    rows: list[tuple[TableCell, ...]] = []
    for metric, (name, meaning) in METRICS.items():
        rows.append((name, *(_figure(prediction, metric, share) for share in ("p50", "p90", "p99")), meaning))
    yield GridTable(name="metrics", title="What users wait for", head=("", "p50", "p90", "p99", "meaning"),
                    rows=tuple(rows), text=("", "meaning"))  # fmt: skip
    yield TextLines(title="Assumed", lines=prediction.assumptions, is_folded=True)


def _rate(prediction: ServingPrediction) -> ExplainedNumber:
    value = prediction.metrics.output_tokens_per_s / prediction.run.chips
    inputs = [
        given_input("chips", f"{prediction.run.chips}", "the deployment"),
        given_input("until the last answer", format_duration(prediction.metrics.duration_s), "simulated"),
    ]
    formula = "output tokens / (time until the last answer × chips)"
    return explain_number(value, "", formula, inputs, _source(prediction), text=f"{value:,.0f}")


def _money(prediction: ServingPrediction) -> Iterator[ExplainedNumber]:
    if prediction.cost_per_million_tokens_usd is None:
        return
    price = prediction.scenario.system.chip.price
    yield explain_number(prediction.cost_per_million_tokens_usd, "USD", "chips × price × time / output tokens × 10⁶",
                          [quoted_input("price", price, "USD/h")], _source(prediction))  # fmt: skip


# -- other rates ------------------------------------------------------------------------------------------------------


def sweep_task(state: PageState, shelf: Shelf, tell: Tell) -> tuple[PageBlock, ...]:
    """The same deployment at other rates: curves of waits, and what each chip gives."""
    import ridgeline

    rate = state.amount("rate")
    points: list[tuple[PageState, float, ServingPrediction]] = []
    for share in LOADS:
        if not tell(f"{rate * share:g} requests a second") and points:
            break
        at = asked_load(state).choose(rate=f"{rate * share:g}")
        prediction = ridgeline.predict(state_scenario(at, shelf))
        if isinstance(prediction, ridgeline.Impossible):
            raise InputError(prediction.reasons)
        if isinstance(prediction, ServingPrediction):
            points.append((at, rate * share, prediction))
    return tuple(_sweep_blocks(points))


def _sweep_blocks(points: list[tuple[PageState, float, ServingPrediction]]) -> Iterator[PageBlock]:
    for metric, (name, meaning) in list(METRICS.items())[:2]:
        curves = [
            [(rate, getattr(prediction.metrics, metric).figures[share]) for _, rate, prediction in points]
            for share in ("p50", "p99")
        ]
        dots = [
            ChartDot(x=rate, y=seconds, note=f"{rate:g} requests/s: {name} {share} {format_duration(seconds)}",
                     kind="best" if share == "p99" else "dot")
            for share, curve in zip(("p50", "p99"), curves, strict=True) for rate, seconds in curve
        ]  # fmt: skip
        drawn = Chart(
            across=ChartAxis(name="requests a second", form="{:g}".format),
            up=seconds_axis(name, max(dot.y for dot in dots)), dots=dots,
            curves=[Curve(points=curves[0]), Curve(points=curves[1], kind="limit")],
            legend=(("dot", "p50"), ("best", "p99")),
        )  # fmt: skip
        yield SvgPicture(name=metric, title=f"{name} against the rate", svg=chart_svg(drawn, meaning), caption=meaning)
    rows: list[tuple[TableCell, ...]] = [
        (
            LinkCell(text=f"{rate:g}/s", href=at.url),
            *(_figure(prediction, metric, share) for metric in ("ttft", "tpot") for share in ("p50", "p99")),
            _rate(prediction),
        )
        for at, rate, prediction in points
    ]
    head = ("rate", "TTFT p50", "TTFT p99", "TPOT p50", "TPOT p99", "tokens/s a chip")
    yield GridTable(name="rates", title="Rate by rate", head=head, rows=tuple(rows), text=("rate",))
