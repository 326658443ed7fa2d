"""Draw a recommended plan as one HTML file: inline SVG, a few lines of script for pointing, nothing fetched."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ridgeline.core.records import dataclass
from ridgeline.core.units import format_count, format_gib, format_quantity, signed_quantity, signed_share
from ridgeline.hardware.what_if import system_title
from ridgeline.report import html
from ridgeline.report.plan import FORMS, software
from ridgeline.search import ComparedSystem, PlanReport, RecommendedPlan, RefinedPlan, SystemPlan

WIDE, TALL, EDGE, LEFT = 720, 380, 64, 88  # of a chart, in pixels; numbers of up to 14 characters stand at its left
FEW = 8  # different values that are all written at an axis


def plan_page(report: PlanReport) -> str:
    """The whole page; every piece of text is escaped."""
    what = f"{report.scenario.model.id} on {system_title(report.scenario.system)}"
    changes = [
        (change.what, signed_share(change.gain), change.how or "another machine", change.prediction.plan_words)
        for change in report.next
    ]
    head = ("change", "gains", "how", "plan then")
    body = "".join(
        (
            f"<h1>{html.escape_text(what)}</h1>",
            _winner(report),
            _limits(report),
            _top(report),
            _why(report),
            html.section("What next", head, changes, text=(0, 2, 3)),
            html.section("Other engines and features", head, software(report), text=(0, 2, 3)),
            _frontier(report),
            _scaling(report),
            _system_comparison(report),
            html.list_items("Assumed", (*report.reasons.assumptions, *report.found.skipped)),
        )
    )
    style, script = html.page_style("plan"), html.page_part("plan.js")
    return html.document(title=f"Ridgeline plan: {what}", body=body, style=style, script=script)


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
    asked = html.escape_text(f"{work.sequences} × {work.seq} tokens a step, under {scenario.plan.engine}")
    counts = f"{report.found.considered:,} plans priced, {report.found.feasible:,} fit"
    stopped = "" if report.found.complete else " The search was stopped: this is the best so far."
    words = html.escape_text(best.plan_words)
    return f"<p>{asked}. {counts}.{stopped}</p><p class=plan>{words}</p>{html.facts(figures)}"


def _limits(report: PlanReport) -> str:
    """What limits how much of the step, as one bar as wide as the page."""
    total, at, parts = report.winner.step_time_s, 0.0, []
    for name, seconds in report.winner.bounds.items():
        share, kind = seconds / total, html.escape_text(name)
        place = f'x="{at:.3f}" y="0" width="{share:.3f}" height="1"'
        parts.append(f'<rect class="{kind}" {place}><title>{kind} {share:.0%}</title></rect>')
        at += share
    words = ", ".join(f"{name} {seconds / total:.0%}" for name, seconds in report.winner.bounds.items())
    bar = f'<svg class="limits" viewBox="0 0 1 1" preserveAspectRatio="none" role="img">{"".join(parts)}</svg>'
    return f"{bar}<p>Limited by {html.escape_text(words)}.</p>"


def _top(report: PlanReport) -> str:
    """The best plans, and what moving layers and recomputing by stage gain."""
    rows = [
        (plan.words, format_quantity(plan.prediction.step_time_s, "s"), signed_quantity(plan.lost_s, "s"),
         format_gib(plan.prediction.memory.peak_bytes), f"{plan.prediction.utilization.mfu:.1%}")
        for plan in report.kinds
    ]  # fmt: skip
    plan, beyond = report.recommended, report.recommended.beyond
    better: list[tuple[RecommendedPlan | RefinedPlan, str]] = [(plan, "handed over")] if plan.refined else []
    better += [(beyond, beyond.lacking)] if beyond else []
    cells = [
        (one.words, format_quantity(one.prediction.step_time_s, "s"), format_quantity(one.saves_s, "s", 3),
         format_gib(one.prediction.memory.peak_bytes), "; ".join(one.changes), note)
        for one, note in better
    ]  # fmt: skip
    head = ("refined", "step", "saves", "memory", "changes", "")
    return (
        "<h2>The best plans</h2><p>The best plan of each kind: another mesh, sharding or recompute.</p>"
        + html.table(("plan", "step", "loses", "memory", "MFU"), rows, text=(0,))
        + html.section("Refined by stage", head, cells, text=(0, 4, 5))
    )


def _why(report: PlanReport) -> str:
    rows = [
        (loss.choice, signed_quantity(loss.seconds, "s"), loss.to, loss.prediction.plan_words)
        for loss in report.reasons.why.losses
    ]
    if not rows:
        return ""
    sentence = "The best plan that decides one thing otherwise, and the parts of the step it loses to."
    cells = html.table(("instead", "loses", "to", "that plan"), rows, text=(0, 2, 3))
    return f"<h2>Why this plan</h2><p>{sentence}</p>{cells}"


Form = Callable[[float], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """Dots of a chart: x, y, what is told of it, and whether it stands out; `ideal` is a dashed line, a y for each."""

    x_name: str
    y_name: str
    dots: Sequence[tuple[float, float, str, bool]]
    x_form: Form = "{:.3g}".format
    y_form: Form = "{:.3g}".format
    ideal: Sequence[float] = ()


def chart(made: Chart, note: str) -> str:
    """A figure of dots that can be pointed at and reached by keys; where few values lie across, each has its rule."""
    places, heights = [dot[0] for dot in made.dots], [dot[1] for dot in made.dots]
    across = html.Scale.of(places, LEFT, WIDE - EDGE / 2)
    up = html.Scale.of([*heights, *made.ideal], TALL - EDGE, EDGE / 3)
    few, marks = sorted(set(places)), []
    for value in few if len(few) <= FEW else across.ticks():
        at = across(value)
        marks.append(html.rule(f"M{at:.1f} {EDGE / 3:.1f}V{TALL - EDGE}"))
        marks.append(html.label(made.x_form(value), at, TALL - EDGE + 16, anchor="middle"))
    for value in up.ticks():
        marks.append(html.rule(f"M{LEFT} {up(value):.1f}H{WIDE - EDGE / 2}"))
        marks.append(html.label(made.y_form(value), LEFT - 6, up(value) + 4, anchor="end"))
    marks.append(html.label(made.x_name, WIDE / 2, TALL - 22, anchor="middle", faint=False))
    marks.append(html.label(made.y_name, LEFT, 12, faint=False))
    if made.ideal:
        line = (f"{across(x):.1f} {up(y):.1f}" for x, y in zip(places, made.ideal, strict=True))
        marks.append(html.rule("M" + "L".join(line), "line"))
    for x, y, told, marked in made.dots:
        radius, kind = (6, "best") if marked else (4, "dot")
        more = f' tabindex="0" data-told="{html.escape_text(told)}"'
        marks.append(html.dot(across(x), up(y), radius, kind=kind, told=told, more=more))
    return (
        f"<figure data-chart>{html.svg(WIDE, TALL, marks)}"
        f"<figcaption>{html.escape_text(note)}</figcaption><p class=told>Point at a dot for its plan.</p></figure>"
    )


def _frontier(report: PlanReport) -> str:
    first, second = report.found.frontier_axes
    (name_x, form_x), (name_y, form_y) = FORMS[first], FORMS[second]
    points = report.found.frontier
    if len(points) < 2:
        return ""

    def dot(x: float, y: float, plan: str, *, chosen: bool = False) -> tuple[float, float, str, bool]:
        return x, y, f"{'chosen: ' if chosen else ''}{plan}: {form_x(x)}, {form_y(y)}", chosen

    dots = [
        dot(point.amount(first) or 0.0, point.amount(second) or 0.0, f"{point.words} on {point.system}")
        for point in points
    ]
    winner = f"{report.winner.plan_words} on {system_title(report.scenario.system)}"
    dots.append(dot(report.winner_amount(first), report.winner_amount(second), winner, chosen=True))
    drawing = Chart(x_name=name_x, y_name=name_y, x_form=form_x, y_form=form_y, dots=dots)
    note = f"{len(points)} plans that no other beats in both {first} and {second}; the chosen one is marked."
    return f"<h2>Frontier</h2>{chart(drawing, note)}"


def _scaling(report: PlanReport) -> str:
    fitting = [(row, row.plan) for row in report.search.compared if row.plan]
    rows = sorted(fitting, key=lambda pair: pair[1].best.scenario.system.chips)
    sizes = [plan.best.scenario.system.chips for _, plan in rows]
    if len(set(sizes)) < 3:
        return ""

    def told(row: ComparedSystem, plan: SystemPlan) -> str:
        days = f", {row.outcome.run.days:.1f} days" if row.outcome.run else ""
        rate = f"{plan.tokens_per_s:,.0f} tokens/s, efficiency {row.efficiency or 0.0:.0%}"
        return f"{system_title(row.outcome.scenario.system)}: {rate}{days}; {plan.best.plan_words}"

    first = rows[0][1].best.tokens_per_s_per_chip
    drawing = Chart(
        x_name="chips", y_name="tokens/s", x_form="{:,.0f}".format, y_form=format_count,
        ideal=[first * size for size in sizes],
        dots=[(size, plan.tokens_per_s, told(row, plan), row.chosen)
              for size, (row, plan) in zip(sizes, rows, strict=True)],
    )  # fmt: skip
    note = "Tokens per second of the best plan at each size; dashed: in proportion to the smallest that fits."
    return f"<h2>Scaling</h2>{chart(drawing, note)}"


def _system_comparison(report: PlanReport) -> str:
    if len(report.search.compared) < 2:
        return ""
    rows = []
    for row in report.search.compared:
        system, engine, best = (
            system_title(row.outcome.scenario.system),
            row.outcome.scenario.plan.engine,
            row.outcome.best,
        )
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
    return html.section("Compared", head, rows, text=(0, 1, 2))
