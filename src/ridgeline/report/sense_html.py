"""Turn a SensitivityAnswer into a page: the tornado of elasticities, the tables behind it, and the curve."""

from __future__ import annotations

from collections.abc import Sequence

from ridgeline.core.units import format_quantity, signed_number
from ridgeline.design import Elasticity, SaturationCurve, SensitivityAnswer
from ridgeline.report import html
from ridgeline.report.chart import Chart, ChartAxis, ChartDot, Curve, chart_figure
from ridgeline.report.sense import change_words, matters, metric_words, strength_words, value_words, worth_words
from ridgeline.report.skeleton import PageHead, page_document, prediction_evidence, scenario_facts

BAR, HIGH, NAME = 260, 18, 300  # pixels of a bar of elasticity 1, of a line, and of its name
HEAD = ("parameter", "value", "elasticity", "1 % is worth", "changes below", "changes above", "evidence", "source")


def sensitivity_page(answer: SensitivityAnswer, command: str = "") -> str:
    """The page of one scenario's sensitivities."""
    body = "".join(
        (
            html.facts(_facts(answer)),
            tornado([*answer.machine, *answer.model]),
            _section("Machine and software", answer.machine),
            _section("Model and workload", answer.model),
            _curve_figure(answer.curve) if answer.curve else "",
            html.list_items("Notes", (*answer.notes, f"Money: {answer.basis.source}")),
        )
    )
    return page_document(_head(answer, command), body, script=html.page_part("plan.js"))


def _facts(answer: SensitivityAnswer) -> list[tuple[str, str]]:
    first = answer.machine[0]
    return [
        (metric_words(answer), answer.metric),
        (first.parameter, f"limits most: {strength_words(first)}"),
        (f"{answer.rate_sum:.6f}", "sum over all rates less all times; complete at -1"),
    ]


def tornado(entries: Sequence[Elasticity]) -> str:
    """Elasticities as bars to the left (faster) and to the right (slower), the longest first; each side of a kink."""
    shown_rows = sorted((entry for entry in entries if matters(entry)), key=lambda entry: -_extent(entry))[:24]
    if not shown_rows:
        return ""
    unit = BAR / max(_extent(entry) for entry in shown_rows)
    middle, marks = NAME + BAR + 8, []
    for place, entry in enumerate(shown_rows):
        y = 14 + place * HIGH
        marks.append(html.label(entry.parameter, 0, y + 10, faint=False))
        for value, kind in ((entry.below, "in"), (entry.above, "out")):
            wide = max(abs(value) * unit, 0.5)
            x = middle - wide if value < 0 else middle
            top = y if kind == "in" else y + 6
            marks.append(f'<rect class="{kind}" x="{x:.1f}" y="{top:.1f}" width="{wide:.1f}" height="5"/>')
        marks.append(html.label(signed_number(entry.elasticity), middle + BAR + 12, y + 10))
    tall = 20 + len(shown_rows) * HIGH
    marks.append(html.rule(f"M{middle} 6V{tall - 4}"))
    words = "Left: more of it is faster. Right: slower. Upper bar: a little less of it; lower bar: a little more."
    style = html.svg(middle + BAR + 80, tall, marks, "Elasticities of every parameter")
    return f"<figure>{style}<figcaption>{words}</figcaption></figure>"


def _extent(entry: Elasticity) -> float:
    return max(abs(entry.below), abs(entry.above))


def _section(title: str, entries: Sequence[Elasticity]) -> str:
    rows = [
        (
            entry.parameter,
            value_words(entry),
            strength_words(entry),
            worth_words(entry),
            change_words(entry.lower_change),
            change_words(entry.upper_change),
            entry.evidence,
            entry.source,
        )
        for entry in entries
    ]
    return html.section(title, HEAD, rows, text=(0, 4, 5, 6, 7))


def _curve_figure(curve: SaturationCurve) -> str:
    points = [(point.value, point.metric) for point in curve.points]
    today = next(point for point in curve.points if abs(point.factor - 1) < 1e-9)
    chart = Chart(
        across=ChartAxis(name=curve.title, form=lambda value: format_quantity(value, curve.unit, 3)),
        up=ChartAxis(name=curve.metric),
        curves=(Curve(points=points),),
        dots=(
            ChartDot(x=today.value, y=today.metric, note=f"today: {today.metric:.4g}", name="today"),
            ChartDot(
                x=curve.knee_value, y=_at(curve), kind="best", note=f"knee, x {curve.knee_factor:.3g}", name="knee"
            ),
        ),
    )
    words = f"{curve.parameter}: beyond x {curve.knee_factor:.3g} of today {curve.next_limiter} limits."
    return f"<h2>How much before something else limits?</h2>{chart_figure(chart, words)}"


def _at(curve: SaturationCurve) -> float:
    return min(curve.points, key=lambda point: abs(point.factor - curve.knee_factor)).metric


def _head(answer: SensitivityAnswer, command: str) -> PageHead:
    scenario, first = answer.scenario, answer.machine[0]
    return PageHead(
        verb="sense",
        question=f"What limits {scenario.workload.kind} {scenario.model.id} on {scenario.system.name}?",
        answer=f"{answer.metric} is {metric_words(answer)}, most of it {answer.limiter}. One per cent more of "
        f"{first.parameter} changes it by {signed_number(first.above, 2)} %.",
        certainty="Elasticities are exact derivatives of the prediction; how sure the prediction is stands beside its "
        "value. The plan stays as it is: another machine may deserve another plan.",
        subject=(*scenario_facts(scenario), ("Metric", answer.metric)),
        evidence=prediction_evidence(),
        command=command,
    )
