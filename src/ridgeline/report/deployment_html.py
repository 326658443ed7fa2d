"""Draw a recommended deployment as a page, and its frontier as a picture."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from ridgeline.core.files import write_bytes, write_text
from ridgeline.core.units import format_duration, format_gib
from ridgeline.hardware.what_if import system_title
from ridgeline.report import html
from ridgeline.report.cells import DASH
from ridgeline.report.chart import (
    LOOK,
    TALL,
    WIDE,
    Chart,
    ChartAxis,
    ChartDot,
    Curve,
    bars,
    chart_figure,
    chart_marks,
    chart_svg,
)
from ridgeline.report.deployment import GOALS, KNOB_HEADS, cost_name, cost_of, knob_rows
from ridgeline.report.drawing import png_marks, standalone_svg
from ridgeline.report.skeleton import PageHead, page_document, prediction_evidence, scenario_facts
from ridgeline.search import DeploymentReport, FrontierPoint
from ridgeline.sim.forward_price import PARTS


def write_frontier_picture(report: DeploymentReport, path: Path, command: str = "") -> None:
    """The frontier as PNG or SVG, by the name's ending; the whole page under any other name."""
    suffix = path.suffix.lower()
    if suffix == ".png":
        write_bytes(path, frontier_png(report))
    else:
        write_text(path, frontier_svg(report) if suffix == ".svg" else deployment_page(report, command))


def frontier_png(report: DeploymentReport) -> bytes:
    """The frontier as a PNG."""
    return png_marks(chart_marks(frontier_chart(report)), WIDE, TALL, LOOK)


def frontier_svg(report: DeploymentReport) -> str:
    """The frontier as an SVG file of its own."""
    return standalone_svg(chart_svg(frontier_chart(report)), html.picture_style())


def deployment_page(report: DeploymentReport, command: str = "") -> str:
    """What is asked, the deployment with the interval of each limit, what limits it, and what else there is."""
    parts = (
        f'<p class="plan">{html.inline_code(report.best.candidate.words)}</p>',
        html.facts(_figures(report)),
        _limits(report),
        _alternatives(report),
        _step(report),
        _frontier(report),
        html.section("What each knob would change", KNOB_HEADS, knob_rows(report), text=(0, 2, 3)),
        html.list_items("Assumed", report.assumptions),
    )
    return page_document(_head(report, command), "".join(parts), script=html.page_part("plan.js"))


def _head(report: DeploymentReport, command: str) -> PageHead:
    scenario, best = report.scenario, report.best
    load = (
        f"{report.search.load.rate:.3g} requests/s, mean prompt {report.mean_prompt_tokens:,.0f} tokens, "
        f"mean output {report.mean_output_tokens:,.0f}; {report.requests:,} requests"
    )
    limits = ", ".join(
        f"{limit.metric.upper()} p{limit.percentile:g} within {format_duration(limit.limit)}"
        for limit in best.prediction.limits
    )
    machine = system_title(scenario.system)
    cost = best.prediction.cost_per_million_tokens_usd
    money = f" at ${cost:,.2f} per million output tokens" if cost is not None else ""
    kept = ", ".join(
        f"{limit.metric.upper()} p{limit.percentile:g} {format_duration(limit.found)} of {format_duration(limit.limit)}"
        for limit in best.prediction.limits
    )
    chips = best.candidate.chips
    return PageHead(
        verb="plan --serve",
        question=f"How should {scenario.model.id} be served on {machine} at {report.search.load.rate:.3g} requests/s?",
        answer=f"{best.candidate.words} on {chips} chip{'s' * (chips > 1)}, {GOALS[report.found.goal]}{money}"
        + (f": {kept}." if kept else "."),
        certainty=_certainty(report),
        subject=(
            *scenario_facts(scenario, plan=""),
            ("Engine", f"{scenario.plan.engine}, router {best.prediction.scenario.plan.serving.router}"),
            ("Workload", load),
            ("Objective", limits or "none"),
        ),
        evidence=prediction_evidence(),
        command=command,
    )


def _certainty(report: DeploymentReport) -> str:
    promise = report.found.promise
    if promise is None:
        return "No objective was given, so there is no chance of keeping one."
    sentence = f"The objective is kept with a chance of {promise.chance:.0%}"
    if promise.chips is None:
        sentence += f"; no number of these replicas was found that keeps it with {promise.sure:.0%}"
    elif promise.chips != report.best.candidate.chips:
        many = " + ".join(map(str, promise.replicas))
        sentence += f"; {many} replicas ({promise.chips} chips) keep it with {promise.sure:.0%}"
    return f"{sentence}. It rests on {promise.rows:,} measured runs of serving."


def _figures(report: DeploymentReport) -> Iterator[tuple[str, str]]:
    """Values with their names; those of the objective with their limits."""
    best = report.best
    cost = best.prediction.cost_per_million_tokens_usd
    yield str(best.candidate.chips), "chips"
    yield f"{best.rate:.3g}", "requests/s"
    yield f"{best.prediction.metrics.output_tokens_per_s:,.0f}", "output tokens/s"
    yield f"{best.user_tokens_per_s:.0f}", "tokens/s of a user"
    yield (f"${cost:,.2f}", "per million output tokens") if cost is not None else ("no price", "of this chip is known")
    for limit in best.prediction.limits:
        name = f"{limit.metric.upper()} p{limit.percentile:g}"
        yield format_duration(limit.found), f"{name}, limit {format_duration(limit.limit)}"


def _limits(report: DeploymentReport) -> str:
    """Every limit with the interval of what it limits."""
    promise = report.found.promise
    spans = {limit.metric: _interval(limit.low_s, limit.high_s) for limit in promise.limits} if promise else {}
    rows = [
        (f"{limit.metric.upper()} p{limit.percentile:g}", format_duration(limit.limit), format_duration(limit.found),
         spans.get(limit.metric, DASH), html.objective_verdict(met=limit.met))
        for limit in report.best.prediction.limits
    ]  # fmt: skip
    return html.section("The objective", ("", "limit", "predicted", "interval, 90 %", ""), rows, text=(4,))


def _interval(low_s: float, high_s: float) -> str:
    return f"{format_duration(low_s)} to {format_duration(high_s)}"


def _alternatives(report: DeploymentReport) -> str:
    rows = []
    for fleet in (report.best, *report.others):
        cost = fleet.prediction.cost_per_million_tokens_usd
        word = ("kept" if fleet.met else "missed") + ("" if fleet.whole else ", busiest part")
        rows.append(
            (fleet.candidate.words, str(fleet.candidate.chips), f"{fleet.rate:.3g}",
             DASH if cost is None else f"{cost:.2f}", f"{fleet.user_tokens_per_s:.0f}",
             html.VerdictCell(good=fleet.met, word=word))
        )  # fmt: skip
    head = ("deployment", "chips", "requests/s", "$ / M tokens", "tokens/s of a user", "objective")
    return f"<h2>Compared</h2>{html.table(head, rows, text=(0, 5), chosen=(0,))}"


def _step(report: DeploymentReport) -> str:
    """What limits a replica, and where a decode step goes."""
    lines = []
    for pool in report.best.pools:
        role = "replica" if pool.instance.role == "both" else f"{pool.instance.role} replica"
        limit = pool.capacity.breaks.upper() or "nothing"
        memory = pool.instance.memory
        lines.append(
            f"A {role} holds {pool.holds:.3g} requests/s; beyond that {limit} is missed first. Its cache holds "
            f"{memory.tokens:,} tokens in {format_gib(memory.kv_bytes)}."
        )
    total = sum(report.why.step.values())
    rows = [
        (name, seconds, PARTS[name][0], PARTS[name][1])
        for name, seconds in sorted(report.why.step.items(), key=lambda part: -part[1])
        if seconds > 0
    ]
    lines.append(f"A decode step of the {report.why.in_flight:.0f} requests in flight takes {format_duration(total)}:")
    words = "".join(f"<p>{html.escape_text(line)}</p>" for line in lines)
    return f"<h2>What limits it</h2>{words}{bars(rows, total)}"


def frontier_chart(report: DeploymentReport) -> Chart:
    """Cost upwards, tokens per second of a user across; what is chosen has its name and a mark of its own."""
    points = report.found.frontier
    best = report.best
    cost = best.prediction.cost_per_million_tokens_usd
    priced = all(point.cost is not None for point in points) and cost is not None
    chips_s = 1000.0 * best.candidate.chips / best.prediction.metrics.output_tokens_per_s
    place = best.user_tokens_per_s, cost if priced and cost is not None else chips_s
    dots = [_dot(point) for point in points]
    note = f"chosen, as a whole fleet: {best.candidate.words} at {best.rate:.3g} requests/s"
    dots.append(ChartDot(x=place[0], y=place[1], note=note, kind="best", name=f"chosen: {best.candidate.chips} chips"))
    return Chart(
        across=ChartAxis(name="tokens/s of a user", form="{:.4g}".format),
        up=ChartAxis(name=cost_name(report), form="{:.3g}".format),
        dots=dots,
        curves=[Curve(points=[(point.user_speed, cost_of(point)) for point in points], kind="line")],
        legend=(("best", "chosen fleet"), ("dot", "keeps the objective"), ("weak", "misses it")),
    )


def _dot(point: FrontierPoint) -> ChartDot:
    verdict_word = "keeps the objective" if point.met else "misses the objective"
    note = f"{point.words} at {point.rate:.3g} requests/s: {point.user_speed:.0f} tokens/s of a user, {verdict_word}"
    return ChartDot(x=point.user_speed, y=cost_of(point), note=note, kind="dot" if point.met else "weak")


def _frontier(report: DeploymentReport) -> str:
    points: Sequence[FrontierPoint] = report.found.frontier
    if not points:
        return ""
    caption = (
        "One replica each: no other is cheaper and faster for a user. The chosen fleet runs at the load asked for."
    )
    rows = [
        (point.words, f"{point.user_speed:.0f}", f"{cost_of(point):.3g}", f"{point.rate:.3g}",
         html.objective_verdict(met=point.met))
        for point in points
    ]  # fmt: skip
    head = ("replica", "tokens/s of a user", cost_name(report), "requests/s", "objective")
    return f"<h2>Frontier</h2>{chart_figure(frontier_chart(report), caption)}{html.table(head, rows, text=(0, 4))}"
