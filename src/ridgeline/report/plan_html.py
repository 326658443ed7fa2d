"""Draw a recommended plan as one HTML file: what was asked, the answer, systems side by side, where the step goes, why.

Several systems are compared before anything is said of the best of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ridgeline.core.units import DECIMAL, format_count, format_duration, format_gib, signed_quantity, signed_share
from ridgeline.hardware.what_if import system_title
from ridgeline.report import html
from ridgeline.report.cells import DASH
from ridgeline.report.chart import Chart, ChartAxis, ChartDot, Curve, bars, chart_figure, memory_axis, seconds_axis
from ridgeline.report.html import Scale
from ridgeline.report.plan import FORMS, software
from ridgeline.report.skeleton import PageHead, interval_words, page_document, prediction_evidence, scenario_facts
from ridgeline.search import ComparedSystem, PlanReport, RecommendedPlan, RefinedPlan, SystemPlan
from ridgeline.sim import Prediction

MOST_NAMED = 4  # systems in a title
BEST = {"time": "fastest", "cost": "at the least cost", "energy": "with the least energy",
        "chips": "on the fewest chips", "memory": "in the least memory"}  # fmt: skip
BOUNDS = {"compute": "compute", "memory": "memory bandwidth", "network": "network", "host": "host and waiting"}
LIMITS_NAMES, LIMITS_WIDE, LIMITS_ROW, LIMITS_RIGHT = 200, 1060, 34, 90  # pixels of the picture of steps


def plan_page(report: PlanReport, command: str = "") -> str:
    """The whole page; every piece of text is escaped."""
    several = len(report.search.compared) > 1
    parts = [_comparison(report), _limits(report), _scaling(report), _winner_title(report)] if several else []
    changes = [
        (change.what, signed_share(change.gain), change.how or "another machine", change.prediction.plan_words)
        for change in report.next
    ]
    head = ("change", "gains", "how", "plan then")
    parts += [
        _figures(report),
        "" if several else _limits(report),
        _breakdown(report.winner),
        _top(report),
        _why(report),
        html.section("What next", head, changes, text=(0, 2, 3)),
        html.section("Other engines and features", head, software(report), text=(0, 2, 3)),
        _frontier(report),
        html.list_items("Assumed", (*report.reasons.assumptions, *report.found.skipped)),
    ]
    return page_document(_head(report, command), "".join(parts), script=html.page_part("plan.js"))


def _head(report: PlanReport, command: str) -> PageHead:
    scenario, best, work = report.scenario, report.winner, report.scenario.workload
    systems = [system_title(row.outcome.scenario.system) for row in report.search.compared]
    machine = " or ".join(systems) if len(systems) > 1 else ""
    subject = [*scenario_facts(scenario, machine=machine, plan="")]
    subject.append(("Workload", f"{work.sequences:,} sequences of {work.seq:,} tokens a step"))
    if report.run_tokens:
        subject.append(("Run", f"{format_count(report.run_tokens)} tokens"))
    counts = f"{report.found.considered:,} plans priced, {report.found.feasible:,} fit"
    subject.append(("Searched", counts + ("" if report.found.complete else "; stopped: this is the best so far")))
    return PageHead(
        verb="plan",
        question=_question(report, systems),
        answer=_answer(report),
        certainty=f"{interval_words(best.interval)} {_overlap_note(report)}".strip(),
        subject=tuple(subject),
        evidence=prediction_evidence(),
        command=command,
    )


def _question(report: PlanReport, systems: Sequence[str]) -> str:
    model, goal = report.scenario.model.id, report.found.request.goal.objective
    if len(systems) == 1:
        return f"How should {model} be trained on {systems[0]}?"
    if len(systems) > MOST_NAMED:
        return f"Which of {len(systems)} systems trains {model} {BEST[goal]}?"
    return f"Which trains {model} {BEST[goal]}: {', '.join(systems[:-1])} or {systems[-1]}?"


def _answer(report: PlanReport) -> str:
    best, scenario = report.winner, report.scenario
    first = f"{system_title(scenario.system)}: " if len(report.search.compared) > 1 else ""
    plan = report.recommended
    words = plan.words if plan.refined else best.plan_words
    step_s = plan.prediction.step_time_s if plan.refined else best.step_time_s
    return (
        f"{first}{words} under {scenario.plan.engine} takes {format_duration(step_s, 4)} a step, "
        f"{best.tokens_per_s_per_chip:,.0f} tokens/s a chip at {best.utilization.mfu:.1%} MFU."
    )


def _overlap_note(report: PlanReport) -> str:
    """Whether the best of several systems is told apart from the others, or the best plan from the next."""
    comparison = report.search.comparison
    if comparison is not None:
        chances = (f"{name} (chance {comparison.chance_better[name]:.0%})" for name in comparison.alike_systems)
        doubts = ", ".join(chances)
        if doubts:
            return f"It cannot be told apart from {doubts}: measure before the order is relied on."
        return f"Each other system has a chance below {(1 - comparison.coverage) / 2:.0%} of being better."
    runner_up, why = report.reasons.why.runner_up, report.reasons.why
    if runner_up is None or not runner_up.overlaps:
        return ""
    return f"{why.doubted} of the next {why.shortlist} plans lie within it: measure to decide between them."


# -- systems side by side ---------------------------------------------------------------------------------------------


def _comparison(report: PlanReport) -> str:
    rows = report.search.compared
    cells = [_system_cells(report, row) for row in rows]
    names = list(cells[0])
    columns = [name for name in names if any(row[name] not in ("", DASH) for row in cells)]
    body = [[row[name] for name in columns] for row in cells]
    text = [columns.index("plan")]
    chosen = [place for place, row in enumerate(rows) if row.chosen]
    note = '<p class="note">Each system with its own best plan; the chosen one is marked ✓.</p>'
    return f"<h2>Compared</h2>{note}{html.table(columns, body, text=text, chosen=chosen)}"


def _system_cells(report: PlanReport, row: ComparedSystem) -> dict[str, str]:
    """A line of the comparison by column; a column that is empty in all lines is left out."""
    scenario = row.outcome.scenario
    sizes = {other.outcome.scenario.system.chips for other in report.search.compared}
    system = f"{'✓ ' if row.chosen else ''}{system_title(scenario.system)}"
    if row.plan is None:
        reason = "nothing fits" if row.outcome.search.swept.considered else "nothing can be laid out"
        names = ("step", "interval, 90 %", "tokens/s/chip", "efficiency", "MFU", "memory", "USD/M tokens", "days")
        return {"system": system, **dict.fromkeys(names, DASH), "plan": f"{reason} under {scenario.plan.engine}"}
    best, run = row.plan.best, row.outcome.run
    million = DECIMAL["M"] / best.scenario.workload.tokens
    memory = f"{format_gib(best.memory.peak_bytes).removesuffix(' GiB')} of {format_gib(best.memory.capacity_bytes)}"
    return {
        "system": system,
        "step": format_duration(best.step_time_s, 4),
        "interval, 90 %": f"{format_duration(best.interval.low)} to {format_duration(best.interval.high)}",
        "tokens/s/chip": f"{best.tokens_per_s_per_chip:,.0f}",
        "efficiency": f"{row.efficiency or 0.0:.0%}" if len(sizes) > 1 else "",
        "MFU": f"{best.utilization.mfu:.1%}",
        "memory": memory,
        "USD/M tokens": DASH if best.bill.cost_usd is None else f"{best.bill.cost_usd * million:.3g}",
        "days": f"{run.days:.1f}" if run and report.run else "",
        "plan": f"{best.plan_words}, under {scenario.plan.engine}",
    }


def _winner_title(report: PlanReport) -> str:
    return f"<h2>The plan on {html.inline_code(system_title(report.scenario.system))}</h2>"


# -- the best plan ----------------------------------------------------------------------------------------------------


def _figures(report: PlanReport) -> str:
    best, capacity = report.winner, report.capacity_bytes
    free = 1 - best.memory.peak_bytes / capacity
    low, high = format_duration(best.interval.low), format_duration(best.interval.high)
    figures = [
        (
            format_duration(best.step_time_s, 4),
            f"a step; {low} to {high} with {best.interval.coverage:.0%} probability",
        ),
        (f"{best.tokens_per_s_per_chip:,.0f}", "tokens/s/chip"),
        (f"{best.utilization.mfu:.1%}", "MFU"),
        (format_gib(best.memory.peak_bytes), f"of {format_gib(capacity)}; {free:.0%} free"),
    ]
    if best.bill.cost_usd is not None:
        figures.append((f"{best.bill.cost_usd:,.3g} USD", "a step"))
    run = report.run
    if run is not None:
        price = "" if run.cost_usd is None else f"; {run.cost_usd:,.0f} USD"
        tokens = format_count(report.run_tokens or 0.0)
        figures.append((f"{run.days:.1f} days", f"for {tokens} tokens, failures counted{price}"))
    return f'<p class="plan">{html.inline_code(best.plan_words)}</p>{html.facts(figures)}'


def _limits(report: PlanReport) -> str:
    """The step of every system as a bar of what limits it, with its interval, all on one axis."""
    rows = [(row, row.plan.best) for row in report.search.compared if row.plan]
    most = max(best.interval.high for _, best in rows)
    axis = seconds_axis("", most)
    end = LIMITS_WIDE - LIMITS_RIGHT
    scale = Scale(low=0.0, high=most, start=LIMITS_NAMES, end=end).with_round_ends(unit=axis.unit)
    bottom = LIMITS_ROW * len(rows)
    marks = []
    for value in scale.ticks(unit=axis.unit):
        marks.append(html.rule(f"M{scale(value):.1f} 0V{bottom}"))
        marks.append(html.label(axis.form(value), scale(value), bottom + 16, anchor="middle"))
    for place, (row, best) in enumerate(rows):
        marks += _limit_bar(row, best, place * LIMITS_ROW, scale)
    drawing = html.svg(LIMITS_WIDE, bottom + 24, marks, "What limits the step")
    present = {name for _, best in rows for name in best.bounds}
    key = "".join(
        f"<span>{_swatch(name)}{html.escape_text(word)}</span>" for name, word in BOUNDS.items() if name in present
    )
    caption = "Seconds of a step by what limits them; the line is the 90 % interval of the whole."
    return (
        f'<h2>What limits the step</h2><p class="key">{key}</p>'
        f"<figure>{drawing}<figcaption>{caption}</figcaption></figure>"
    )


def _swatch(kind: str) -> str:
    return f'<svg class="swatch" viewBox="0 0 1 1" aria-hidden="true"><rect class="{kind}" width="1" height="1"/></svg>'


def _limit_bar(row: ComparedSystem, best: Prediction, top: float, scale: Scale) -> Iterator[str]:
    name = system_title(row.outcome.scenario.system)
    yield html.label(name[:28], LIMITS_NAMES - 10, top + 18, anchor="end", faint=False)
    begin = 0.0
    for bound in BOUNDS:
        seconds = best.bounds.get(bound, 0.0)  # type: ignore[call-overload]
        left, right = scale(begin), scale(begin + seconds)
        title = f"{name}, {BOUNDS[bound]}: {format_duration(seconds)}, {seconds / best.step_time_s:.0%}"
        shape = f'x="{left:.1f}" y="{top + 6}" width="{right - left:.1f}" height="14"'
        yield f'<rect class="{bound}" {shape}><title>{html.escape_text(title)}</title></rect>'
        begin += seconds
    low, high, middle = scale(best.interval.low), scale(best.interval.high), top + 25
    yield html.rule(f"M{low:.1f} {middle}H{high:.1f}M{low:.1f} {middle - 3}v6M{high:.1f} {middle - 3}v6", "whisker")
    yield html.label(format_duration(best.step_time_s, 4), scale.end + 8, top + 18, faint=False)


def _breakdown(best: Prediction) -> str:
    """Where the step goes, part by part."""
    rows = [
        (name, seconds, best.parts[name].bound, f"{best.parts[name].meaning}; limited by {best.parts[name].bound}")
        for name, seconds in best.seconds_by_part.items()
        if seconds > 0
    ]
    return f"<h2>Where the step goes</h2>{bars(rows, best.step_time_s)}"


def _top(report: PlanReport) -> str:
    """The best plans, and what moving layers and recomputing by stage gain."""
    rows = [
        (plan.words, format_duration(plan.prediction.step_time_s, 4),
         f"{format_duration(plan.prediction.interval.low)} to {format_duration(plan.prediction.interval.high)}",
         signed_quantity(plan.lost_s, "s"), format_gib(plan.prediction.memory.peak_bytes),
         f"{plan.prediction.utilization.mfu:.1%}")
        for plan in report.kinds
    ]  # fmt: skip
    plan, beyond = report.recommended, report.recommended.beyond
    better: list[tuple[RecommendedPlan | RefinedPlan, str]] = [(plan, "handed over")] if plan.refined else []
    better += [(beyond, beyond.lacking)] if beyond else []
    cells = [
        (item.words, format_duration(item.prediction.step_time_s, 4), format_duration(item.saves_s),
         format_gib(item.prediction.memory.peak_bytes), "; ".join(item.changes), note)
        for item, note in better
    ]  # fmt: skip
    head = ("refined", "step", "saves", "memory", "changes", "")
    return (
        '<h2>The best plans</h2><p class="note">The best plan of each kind: another mesh, sharding or recompute.</p>'
        + html.table(("plan", "step", "interval, 90 %", "loses", "memory", "MFU"), rows, text=(0,))
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
    return f'<h2>Why this plan</h2><p class="note">{sentence}</p>{cells}'


# -- charts -----------------------------------------------------------------------------------------------------------


def _axis(quantity: str, most: float) -> ChartAxis:
    name, form = FORMS[quantity]
    if quantity == "memory":
        return memory_axis(name)
    return seconds_axis(name, most) if quantity == "time" else ChartAxis(name=name, form=form)


def _frontier(report: PlanReport) -> str:
    drawing = frontier_chart(report)
    return f"<h2>Frontier</h2>{chart_figure(drawing, frontier_caption(report))}" if drawing is not None else ""


def frontier_caption(report: PlanReport) -> str:
    """What the picture of the front shows."""
    first, second = report.found.frontier_axes
    return f"{len(report.found.frontier)} plans that no other beats in both {first} and {second}."


def frontier_chart(report: PlanReport) -> Chart | None:
    """The plans of the Pareto front and the chosen one; None where there is but one."""
    first, second = report.found.frontier_axes
    points = report.found.frontier
    if len(points) < 2:
        return None
    form_x, form_y = FORMS[first][1], FORMS[second][1]
    winner = report.winner_amount(first), report.winner_amount(second)
    dots = []
    for point in points:
        x, y = point.amount(first) or 0.0, point.amount(second) or 0.0
        if (x, y) != winner:
            dots.append(ChartDot(x=x, y=y, note=f"{point.words} on {point.system}: {form_x(x)}, {form_y(y)}"))
    words = f"{report.winner.plan_words} on {system_title(report.scenario.system)}"
    note = f"chosen: {words}: {form_x(winner[0])}, {form_y(winner[1])}"
    dots.append(ChartDot(x=winner[0], y=winner[1], note=note, kind="best", name="chosen"))
    return Chart(
        across=_axis(first, max(dot.x for dot in dots)),
        up=_axis(second, max(dot.y for dot in dots)),
        dots=dots,
        legend=(("best", "chosen plan"), ("dot", "other plans of the front")),
    )


def _scaling(report: PlanReport) -> str:
    fitting = [(row, row.plan) for row in report.search.compared if row.plan]
    rows = sorted(fitting, key=lambda pair: pair[1].best.scenario.system.chips)
    sizes = [plan.best.scenario.system.chips for _, plan in rows]
    if len(set(sizes)) < 3:
        return ""

    def note(row: ComparedSystem, plan: SystemPlan) -> str:
        days = f", {row.outcome.run.days:.1f} days" if row.outcome.run else ""
        rate = f"{plan.tokens_per_s:,.0f} tokens/s, efficiency {row.efficiency or 0.0:.0%}"
        return f"{system_title(row.outcome.scenario.system)}: {rate}{days}; {plan.best.plan_words}"

    first = rows[0][1].best.tokens_per_s_per_chip
    drawing = Chart(
        across=ChartAxis(name="chips", form="{:,.0f}".format),
        up=ChartAxis(name="tokens/s", form=format_count),
        curves=[Curve(points=[(size, first * size) for size in sizes], kind="line")],
        dots=[
            ChartDot(x=size, y=plan.tokens_per_s, note=note(row, plan), kind="best" if row.chosen else "dot",
                name="chosen" if row.chosen else "")
            for size, (row, plan) in zip(sizes, rows, strict=True)
        ],
        legend=(("best", "chosen size"), ("dot", "other sizes")),
        x_ticks=sorted(set(sizes)) if len(set(sizes)) <= MOST_TICKS else (),
    )  # fmt: skip
    caption = "Tokens per second of the best plan at each size; dashed: in proportion to the smallest that fits."
    return f"<h2>Scaling</h2>{chart_figure(drawing, caption)}"


MOST_TICKS = 8  # sizes that are all written at the axis
