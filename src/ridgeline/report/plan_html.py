"""Draw a recommended plan as one HTML file: inline SVG, a few lines of script for pointing, nothing fetched."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ridgeline.core.records import dataclass
from ridgeline.core.units import format_count, format_gib, format_quantity, signed_quantity, signed_share
from ridgeline.report.html import (
    Scale,
    document,
    dot,
    escape_text,
    facts,
    label,
    page_part,
    page_style,
    rule,
    svg,
    table,
)
from ridgeline.report.plan import FORMS, software
from ridgeline.search import ComparedSystem, PlanReport, RecommendedPlan, RefinedPlan, SystemPlan

WIDE, TALL, EDGE, LEFT = 720, 380, 64, 88  # of a chart, in pixels; numbers of up to 14 characters stand at its left
FEW = 8  # different values that are all written at an axis


def plan_page(report: PlanReport) -> str:
    """The whole page; every piece of text is escaped."""
    what = f"{report.scenario.model.id} on {report.scenario.system.name}"
    body = "".join(
        (
            f"<h1>{escape_text(what)}</h1>",
            _winner(report),
            _limits(report),
            _top(report),
            _why(report),
            _next(report),
            _software(report),
            _frontier(report),
            _scaling(report),
            _system_comparison(report),
            _assumption_list(report),
        )
    )
    return document(title=f"Ridgeline plan: {what}", body=body, style=page_style("plan"), script=page_part("plan.js"))


def _winner(report: PlanReport) -> str:
    best, scenario = report.winner, report.scenario
    span, capacity, work = best.interval, report.capacity_bytes, scenario.workload
    free = 1 - best.memory.peak_bytes / capacity
    low, high = format_quantity(span.low, "s", 3), format_quantity(span.high, "s", 3)
    figures = [
        (format_quantity(best.step_time_s, "s"), f"a step; {low} to {high} with {span.coverage:.0%} probability"),
        (f"{best.tokens_per_s_per_chip:,.0f}", "tokens/s/chip"),
        (f"{best.utilization.mfu:.1%}", "MFU"),
        (format_gib(best.memory.peak_bytes), f"of {format_gib(capacity)}; {free:.0%} free"),
    ]
    run = report.run
    if run is not None:
        price = "" if run.cost_usd is None else f"; {run.cost_usd:,.0f} USD"
        tokens = format_count(report.run_tokens or 0.0)
        figures.append((f"{run.days:.1f} days", f"for {tokens} tokens, failures counted{price}"))
    asked = f"{work.sequences} × {work.seq} tokens a step, under {scenario.plan.engine}"
    found = f"{report.found.considered:,} plans priced, {report.found.feasible:,} fit"
    stopped = "" if report.found.complete else " The search was stopped: this is the best so far."
    words = escape_text(best.plan_words)
    return f"<p>{escape_text(asked)}. {escape_text(found)}.{stopped}</p><p class=plan>{words}</p>{facts(figures)}"


def _limits(report: PlanReport) -> str:
    """What limits how much of the step, as one bar as wide as the page."""
    total, at, parts = report.winner.step_time_s, 0.0, []
    for name, seconds in report.winner.bounds.items():
        share, kind = seconds / total, escape_text(name)
        place = f'x="{at:.3f}" y="0" width="{share:.3f}" height="1"'
        parts.append(f'<rect class="{kind}" {place}><title>{kind} {share:.0%}</title></rect>')
        at += share
    words = ", ".join(f"{name} {seconds / total:.0%}" for name, seconds in report.winner.bounds.items())
    bar = f'<svg class="limits" viewBox="0 0 1 1" preserveAspectRatio="none" role="img">{"".join(parts)}</svg>'
    return f"{bar}<p>Limited by {escape_text(words)}.</p>"


def _top(report: PlanReport) -> str:
    rows = [
        (plan.words, format_quantity(plan.prediction.step_time_s, "s"), signed_quantity(plan.lost_s, "s"),
         format_gib(plan.prediction.memory.peak_bytes), f"{plan.prediction.utilization.mfu:.1%}")
        for plan in report.kinds
    ]  # fmt: skip
    sentence = "The best plan of each kind: another mesh, sharding or recompute."
    cells = table(("plan", "step", "loses", "memory", "MFU"), rows, text=(0,))
    return f"<h2>The best plans</h2><p>{sentence}</p>{cells}{_refined_section(report)}"


def _refined_section(report: PlanReport) -> str:
    """What moving layers and recomputing by stage gain."""
    plan, beyond = report.recommended, report.recommended.beyond
    rows: list[tuple[RecommendedPlan | RefinedPlan, str]] = [(plan, "handed over")] if plan.refined else []
    rows += [(beyond, beyond.lacking)] if beyond else []
    cells = [
        (one.words, format_quantity(one.prediction.step_time_s, "s"), format_quantity(one.saves_s, "s", 3),
         format_gib(one.prediction.memory.peak_bytes), "; ".join(one.changes), note)
        for one, note in rows
    ]  # fmt: skip
    head = ("refined", "step", "saves", "memory", "changes", "")
    return f"<h2>Refined by stage</h2>{table(head, cells, text=(0, 4, 5))}" if cells else ""


def _why(report: PlanReport) -> str:
    rows = [
        (loss.choice, signed_quantity(loss.seconds, "s"), loss.to, loss.prediction.plan_words)
        for loss in report.reasons.why.losses
    ]
    if not rows:
        return ""
    sentence = "The best plan that decides one thing otherwise, and the parts of the step it loses to."
    cells = table(("instead", "loses", "to", "that plan"), rows, text=(0, 2, 3))
    return f"<h2>Why this plan</h2><p>{sentence}</p>{cells}"


def _next(report: PlanReport) -> str:
    rows = [
        (change.what, signed_share(change.gain), change.how or "another machine", change.prediction.plan_words)
        for change in report.next
    ]
    cells = table(("change", "gains", "how", "plan then"), rows, text=(0, 2, 3))
    return f"<h2>What next</h2>{cells}" if rows else ""


def _software(report: PlanReport) -> str:
    rows = software(report)
    cells = table(("change", "gains", "how", "plan then"), rows, text=(0, 2, 3))
    return f"<h2>Other engines and features</h2>{cells}" if rows else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Axis:
    """What an axis shows, how its numbers are written, and the values it must hold."""

    name: str
    form: Callable[[float], str]
    values: Sequence[float]

    def across(self) -> Scale:
        return Scale.of(self.values, LEFT, WIDE - EDGE / 2)

    def up(self) -> Scale:
        return Scale.of(self.values, TALL - EDGE, EDGE / 3)


def _axes(x: _Axis, y: _Axis) -> str:
    """Rules, numbers and names of a chart; where few values lie across, each of them has its rule."""
    across, up, few = x.across(), y.up(), sorted(set(x.values))
    marks = []
    for value in few if len(few) <= FEW else across.ticks():
        at = across(value)
        marks.append(rule(f"M{at:.1f} {EDGE / 3:.1f}V{TALL - EDGE}"))
        marks.append(label(x.form(value), at, TALL - EDGE + 16, anchor="middle"))
    for value in up.ticks():
        at = up(value)
        marks.append(rule(f"M{LEFT} {at:.1f}H{WIDE - EDGE / 2}"))
        marks.append(label(y.form(value), LEFT - 6, at + 4, anchor="end"))
    marks.append(label(x.name, WIDE / 2, TALL - 22, anchor="middle", faint=False))
    marks.append(label(y.name, LEFT, 12, faint=False))
    return "".join(marks)


def _dot(x: float, y: float, told: str, kind: str) -> str:
    """A plan that can be pointed at and reached by keys."""
    more = f' tabindex="0" data-told="{escape_text(told)}"'
    return dot(x, y, 6 if kind == "best" else 4, kind=kind, told=told, more=more)


def _chart(marks: str, note: str) -> str:
    return (
        f"<figure data-chart>{svg(WIDE, TALL, [marks])}"
        f"<figcaption>{escape_text(note)}</figcaption><p class=told>Point at a dot for its plan.</p></figure>"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """Dots of a chart: x, y, what is told of it, and whether it stands out."""

    x_name: str
    y_name: str
    dots: Sequence[tuple[float, float, str, bool]]


def chart(made: Chart, note: str) -> str:
    """A figure of dots that can be pointed at."""
    x = _Axis(name=made.x_name, form=lambda value: f"{value:.3g}", values=[dot[0] for dot in made.dots])
    y = _Axis(name=made.y_name, form=lambda value: f"{value:.3g}", values=[dot[1] for dot in made.dots])
    across, up = x.across(), y.up()
    dots = [_dot(across(at), up(high), told, "best" if marked else "dot") for at, high, told, marked in made.dots]
    return _chart(_axes(x, y) + "".join(dots), note)


def _frontier(report: PlanReport) -> str:
    first, second = report.found.frontier_axes
    (name_x, form_x), (name_y, form_y) = FORMS[first], FORMS[second]
    points = report.found.frontier
    if len(points) < 2:
        return ""
    places = [(point.amount(first) or 0.0, point.amount(second) or 0.0) for point in points]
    best = report.winner_amount(first), report.winner_amount(second)
    x = _Axis(name=name_x, form=form_x, values=[place[0] for place in (*places, best)])
    y = _Axis(name=name_y, form=form_y, values=[place[1] for place in (*places, best)])
    across, up = x.across(), y.up()

    def told(words: str, system: str, place: tuple[float, float]) -> str:
        return f"{words} on {system}: {form_x(place[0])}, {form_y(place[1])}"

    dots = [
        _dot(across(place[0]), up(place[1]), told(point.words, point.system, place), "dot")
        for point, place in zip(points, places, strict=True)
    ]
    chosen = told(report.winner.plan_words, report.scenario.system.name, best)
    dots.append(_dot(across(best[0]), up(best[1]), f"chosen: {chosen}", "best"))
    note = f"{len(points)} plans that no other beats in both {first} and {second}; the chosen one is marked."
    return f"<h2>Frontier</h2>{_chart(_axes(x, y) + ''.join(dots), note)}"


def _scaling(report: PlanReport) -> str:
    fitting = [(row, row.plan) for row in report.search.compared if row.plan]
    rows = sorted(fitting, key=lambda pair: pair[1].best.scenario.system.chips)
    sizes = [plan.best.scenario.system.chips for _, plan in rows]
    if len(set(sizes)) < 3:
        return ""
    speeds, first = [plan.tokens_per_s for _, plan in rows], rows[0][1].best.tokens_per_s_per_chip
    ideal = [first * size for size in sizes]
    chips = _Axis(name="chips", form=lambda value: f"{value:,.0f}", values=sizes)
    speed = _Axis(name="tokens/s", form=format_count, values=speeds + ideal)
    across, up = chips.across(), speed.up()

    def path(values: Sequence[float]) -> str:
        return "M" + "L".join(f"{across(x):.1f} {up(y):.1f}" for x, y in zip(sizes, values, strict=True))

    def told(row: ComparedSystem, plan: SystemPlan) -> str:
        days = f", {row.outcome.run.days:.1f} days" if row.outcome.run else ""
        rate = f"{plan.tokens_per_s:,.0f} tokens/s, efficiency {row.efficiency or 0.0:.0%}"
        return f"{row.outcome.scenario.system.name}: {rate}{days}; {plan.best.plan_words}"

    dots = [
        _dot(across(size), up(plan.tokens_per_s), told(row, plan), "best" if row.chosen else "dot")
        for size, (row, plan) in zip(sizes, rows, strict=True)
    ]
    note = "Tokens per second of the best plan at each size; dashed: in proportion to the smallest that fits."
    return f"<h2>Scaling</h2>{_chart(_axes(chips, speed) + rule(path(ideal), 'line') + ''.join(dots), note)}"


def _system_comparison(report: PlanReport) -> str:
    if len(report.search.compared) < 2:
        return ""
    rows = []
    for row in report.search.compared:
        system, engine, best = row.outcome.scenario.system.name, row.outcome.scenario.plan.engine, row.outcome.best
        if best is None:
            rows.append((system, engine, "nothing fits", "", "", "", "", ""))
            continue
        cost = "–" if best.bill.cost_usd is None else f"{best.bill.cost_usd:.3g} USD"
        rows.append(
            (system, engine, best.plan_words, format_quantity(best.step_time_s, "s"),
             f"{best.tokens_per_s_per_chip:,.0f}", f"{row.efficiency or 0.0:.0%}", cost,
             f"{row.outcome.run.days:.1f}" if row.outcome.run else "–")
        )  # fmt: skip
    head = ("system", "engine", "plan", "step", "tokens/s/chip", "efficiency", "a step", "days")
    return f"<h2>Compared</h2>{table(head, rows, text=(0, 1, 2))}"


def _assumption_list(report: PlanReport) -> str:
    notes = "".join(f"<li>{escape_text(note)}</li>" for note in (*report.reasons.assumptions, *report.found.skipped))
    return f"<h2>Assumed</h2><ul>{notes}</ul>"
