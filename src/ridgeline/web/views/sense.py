"""The page of sensitivities: what one per cent of every parameter is worth, and where something else limits."""

from __future__ import annotations

from collections.abc import Iterator

from ridgeline.design import Elasticity, SaturationCurve, SensitivityAnswer
from ridgeline.report.pieces import Chart, ChartAxis, ChartDot, Curve, chart_svg, prediction_evidence, seconds_axis
from ridgeline.web.blocks import (
    FigureItem,
    FigureRow,
    LinkCell,
    PageBlock,
    PageView,
    PairLine,
    SvgPicture,
    TableCell,
    TextLines,
    TornadoChart,
)
from ridgeline.web.controls import state_controls
from ridgeline.web.figures import ExplainedNumber, FormulaInput, explain_number, given_input, quantity_words
from ridgeline.web.scenarios import Shelf, file_command, scenario_file, state_scenario
from ridgeline.web.state import PageState

MOST_LINES = 14  # of a tornado
STEP = 0.1  # of a parameter, to either side
LEAST = 1e-4  # of an effect that is drawn
METRICS = {"step_time_s": "step", "ttft_s": "TTFT", "tpot_s": "TPOT", "cost_usd": "cost"}


def sense_view(state: PageState, shelf: Shelf) -> PageView:
    """What limits the scenario of a state, and by how much."""
    import ridgeline

    answer = ridgeline.sense(state_scenario(state, shelf), curve=state["curve"])
    first = answer.machine[0]
    name = METRICS.get(answer.metric, answer.metric)
    change = f"{first.elasticity:+.2f} %".replace("-", "−")
    return PageView(
        page="sense", title=f"Which parameter limits {answer.scenario.model.id} on {answer.scenario.system.name}?",
        answer=f"One per cent more {first.title} changes the {name} by {change}. Most of it is {answer.limiter}.",
        certainty="Elasticities are derivatives of the prediction; they are as good as its formulas are.",
        controls=state_controls(state), blocks=(*_blocks(state, answer), scenario_file(state, shelf)),
        command=file_command("sense"), evidence=prediction_evidence(), url=state.url,
    )  # fmt: skip


def _blocks(state: PageState, answer: SensitivityAnswer) -> Iterator[PageBlock]:
    yield FigureRow(items=tuple(_figures(answer)))
    groups = (("machine", "The machine and its software", answer.machine), ("model", "The model", answer.model),
              ("money", "Money", answer.money))  # fmt: skip
    if answer.curve is not None:
        yield _curve_picture(answer.curve, answer)
    for name, title, entries in groups:
        rows = [_line(state, entry, answer) for entry in entries]
        drawn = [row for row in rows if max(abs(row.low.value), abs(row.high.value)) > LEAST]
        if drawn:
            yield TornadoChart(
                name=name, title=title, rows=tuple(drawn[:MOST_LINES]),
                head=("10 % less", "10 % more", "elasticity", "1 %, an hour", "another limit at"),
                caption="Blue: a tenth less of it. Orange: a tenth more. To the right the work takes longer. "
                "A name leads to its curve.",
            )  # fmt: skip
    yield TextLines(title="Notes", lines=answer.notes, is_folded=True)


def _figures(answer: SensitivityAnswer) -> Iterator[FigureItem]:
    unit = "USD" if answer.metric == "cost_usd" else "s"
    inputs = [given_input("limiter", answer.limiter, "the largest part")]
    value = explain_number(answer.value, unit, "as predicted today", inputs, prediction_evidence())
    yield FigureItem(name=METRICS.get(answer.metric, answer.metric), number=value)
    parts = [given_input(entry.title, f"{entry.elasticity:+.4f}", entry.kind) for entry in answer.machine[:6]]
    total = explain_number(
        answer.rate_sum, "", "Σ elasticities of rates − Σ elasticities of times", parts,
        "exactly −1 where the list is complete: every predicted time scales with all rates together",
        text=f"{answer.rate_sum:+.9f}".replace("-", "−"),
    )  # fmt: skip
    yield FigureItem(name="Σ, −1 where nothing is missing", number=total, tone="good")
    if answer.basis.usd_per_hour is not None:
        source = answer.basis.source
        hour = explain_number(answer.basis.usd_per_hour, "USD", "chips × price", (), source)
        yield FigureItem(name="an hour of the system", number=hour)


def _line(state: PageState, entry: Elasticity, answer: SensitivityAnswer) -> PairLine:
    low = (1 - STEP) ** entry.below - 1
    high = (1 + STEP) ** entry.above - 1
    mean = explain_number(entry.elasticity, "", "d ln metric / d ln parameter, mean of both sides", _inputs(entry),
                          _source(entry, answer), text=f"{entry.elasticity:+.3f}".replace("-", "−"))  # fmt: skip
    cells: tuple[TableCell, ...] = (mean, _money(entry, answer), _limit_words(entry))
    return PairLine(
        name=LinkCell(text=entry.title, href=state.choose(curve=entry.parameter).url),
        low=_effect(entry, low, answer),
        high=_effect(entry, high, answer),
        cells=cells,
        meaning=f"{entry.parameter} = {quantity_words(entry.value, entry.unit)}",
    )


def _inputs(entry: Elasticity) -> tuple[FormulaInput, ...]:
    return (
        given_input("today", quantity_words(entry.value, entry.unit), entry.source or entry.evidence or "the plan"),
        given_input("elasticity for less", f"{entry.below:+.4f}", "derivative of the prediction"),
        given_input("elasticity for more", f"{entry.above:+.4f}", "derivative of the prediction"),
    )


def _source(entry: Elasticity, answer: SensitivityAnswer) -> str:
    return f"{entry.evidence or 'computed'}: {entry.source or entry.parameter}; metric {answer.metric}"


def _effect(entry: Elasticity, change: float, answer: SensitivityAnswer) -> ExplainedNumber:
    formula = "(parameter / today) ^ elasticity − 1, to first order"
    text = f"{change * 100:+.2f} %".replace("-", "−")
    return explain_number(change, "", formula, _inputs(entry), _source(entry, answer), text=text)


def _money(entry: Elasticity, answer: SensitivityAnswer) -> TableCell:
    worth = entry.usd_per_hour_per_percent
    if worth is None:
        return "no price"
    formula = "1 % × elasticity × cost of the same work in an hour of the system"
    return explain_number(
        worth, "USD", formula, _inputs(entry), answer.basis.source, text=f"{worth:+.3g} $".replace("-", "−")
    )


def _limit_words(entry: Elasticity) -> str:
    changes = [change for change in (entry.lower_change, entry.upper_change) if change is not None]
    return ", ".join(f"× {change.factor:.3g}" for change in changes) or "–"


def _curve_picture(curve: SaturationCurve, answer: SensitivityAnswer) -> SvgPicture:
    """The metric against the parameter, with today and the knee."""
    points = [(point.factor, point.metric) for point in curve.points]
    dots = [
        ChartDot(x=point.factor, y=point.metric, kind="weak",
                 note=f"× {point.factor:.3g} ({quantity_words(point.value, curve.unit)}): "
                 f"{quantity_words(point.metric, 's')}, limited by {point.limiter}")
        for point in curve.points
    ]  # fmt: skip
    dots.append(ChartDot(x=1.0, y=answer.value, note="today", kind="best", name="today"))
    drawn = Chart(
        across=ChartAxis(name=f"{curve.title}, times today's", form="{:.3g}".format),
        up=seconds_axis(METRICS.get(curve.metric, curve.metric), max(y for _, y in points)),
        dots=dots, curves=[Curve(points=points)],
    )  # fmt: skip
    caption = (
        f"Beyond × {curve.knee_factor:.3g} ({quantity_words(curve.knee_value, curve.unit)}) another one per cent gives "
        f"less than half of what it gives at best: then {curve.next_limiter} limits."
    )
    return SvgPicture(name="curve", title=f"How much {curve.title} before something else limits?",
                      svg=chart_svg(drawn, curve.title), caption=caption)  # fmt: skip
