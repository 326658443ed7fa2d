"""Draw a recommended deployment."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Console, RenderableType
from rich.text import Text

from ridgeline.core.units import format_quantity, signed_share
from ridgeline.hardware.what_if import system_title
from ridgeline.report.cells import (
    DASH,
    INTERVAL_KEY,
    Dot,
    IntervalBar,
    PlotAxis,
    bar_table,
    blocks,
    clean,
    grid,
    header_table,
    interval_bars,
    list_lines,
    percent,
    scatter,
)
from ridgeline.report.cells import facts as labels
from ridgeline.report.predict import COLOURS
from ridgeline.search import ComparedDeployment, DeploymentReport, FrontierPoint
from ridgeline.sim.forward_price import PARTS

KNOBS, MOST = 16, 8
SURE_ENOUGH = 0.95  # the highest chance that is told
SMALLEST = 5e-4  # change of a rate that a knob is listed for
GOALS = {"cost": "the cheapest that holds the load", "chips": "the fewest chips that hold the load",
         "goodput": "the most goodput on what there is"}  # fmt: skip


# ---- the page


def draw_deployment(report: DeploymentReport, console: Console) -> None:
    """Print a recommended deployment."""
    console.print(
        blocks(
            _comparison(report),
            _headline(report),
            _other_deployments(report),
            _why(report),
            _knobs(report),
            _frontier(report),
            _foot(report),
        )
    )


def _comparison(report: DeploymentReport) -> Iterator[RenderableType]:
    """Several systems beside each other: what each takes, drawn, how sure, and what a missing price would need."""
    rows = report.found.side_by_side
    if not rows:
        return
    yield Text(f"{clean(report.scenario.model.id)}: {GOALS[report.found.goal]}", style="bold")
    heads = ("chips", "requests/s", "$ / M tokens", "J/token", "tokens/s user", "chance", "chips for 90%")
    table = header_table(("system", *heads, "missed first"), right=heads)
    for row in rows:
        table.add_row(*_compared_cells(row), style="bold green" if row.chosen else "")
    yield table
    yield Text("chance: of keeping the objective; J/token: of an output token, at rated power", style="dim")
    yield from _comparison_bars(rows)
    yield from _comparison_lines(rows)


def _compared_cells(row: ComparedDeployment) -> tuple[str, ...]:
    name, best, promise = f"{'* ' * row.chosen}{row.name}", row.best, row.promise
    if best is None:
        return (name, *[DASH] * 7, "none keeps it" if row.search.complete else "not searched to the end")
    cost, energy = best.prediction.cost_per_million_tokens_usd, row.energy_per_output_token_j
    least = "at least " if promise and promise.chance >= SURE_ENOUGH else ""
    return (
        name,
        str(best.candidate.chips),
        f"{best.rate:.3g}",
        DASH if cost is None else f"{cost:.2f}",
        DASH if energy is None else f"{energy:.3g}",
        f"{best.user_tokens_per_s:.0f}",
        f"{least}{promise.chance:.0%}" if promise else DASH,
        str(promise.chips) if promise and promise.chips else DASH,
        best.pools[-1].capacity.breaks.upper(),
    )


def _comparison_bars(rows: Sequence[ComparedDeployment]) -> Iterator[RenderableType]:
    """What the goal minimises, where all systems that have a deployment know it, with the ends of its interval."""
    spans = [(row.name, row.span) for row in rows if row.best is not None]
    bars = [
        (name, IntervalBar(low=span.low, middle=span.middle, high=span.high))
        for name, span in spans
        if span is not None
    ]
    if len(bars) < 2 or len(bars) < len(spans):
        return
    yield Text(f"{rows[0].amount_name} with its 90% interval: {INTERVAL_KEY}", style="dim")
    yield grid("left", "left", rows=((clean(name), line) for name, line in interval_bars(bars)))


def _comparison_lines(rows: Sequence[ComparedDeployment]) -> Iterator[RenderableType]:
    chosen = next((row for row in rows if row.chosen), None)
    rivals = [(row.name, row.chance_better) for row in rows if row.chance_better is not None]
    alike_names = [f"{name} (chance {chance:.0%})" for name, chance in rivals if chance > 1 - SURE_ENOUGH]
    if chosen is not None and rivals:
        sentence = f"statistically it cannot be told apart from {', '.join(alike_names)}: measure to decide"
        clear_lead = f"each other system has a chance below {1 - SURE_ENOUGH:.0%}"
        yield Text(f"{chosen.name} is {chosen.best_words}; {sentence if alike_names else clear_lead}")
        yield Text(f"({chosen.assumption})", style="dim")
    for row in rows:
        if row.price_below is not None:
            words = f"no price of {row.search.scenario.system.chip.id}: below {row.price_below:.2f} USD/h a chip"
            yield Text(f"  - {words} its output tokens would cost least")
    yield from (Text.assemble("  - ", clean(str(item))) for row in rows for item in row.problems)
    yield labels(*((row.name, row.best.candidate.words) for row in rows if row.best is not None))


def _headline(report: DeploymentReport) -> Iterator[RenderableType]:
    best = report.best
    scenario = report.scenario
    where = f"{scenario.model.id} on {system_title(scenario.system)}, {scenario.plan.engine}"
    yield Text.assemble((f"{where}: {GOALS[report.found.goal]}", "dim"))
    if not report.found.complete:
        left_out = (
            f"; not searched: {', '.join(report.found.unsearched_systems)}" if report.found.unsearched_systems else ""
        )
        yield Text(f"stopped before the search was complete: the best so far{left_out}", style="bold yellow")
    if report.found.request.target is not None:
        yield Text(f"{report.found.request.target.id} can express all of it", style="dim")
    router = best.prediction.scenario.plan.serving.router
    chips = f"   {best.candidate.chips} chip{'s' * (best.candidate.chips > 1)}, {router}"
    yield Text.assemble((clean(best.candidate.words).plain, "bold"), chips)
    cost = best.prediction.cost_per_million_tokens_usd
    money = f", ${cost:,.2f} per million output tokens" if cost is not None else ""
    yield Text(f"{best.rate:.3g} requests/s, {best.prediction.metrics.output_tokens_per_s:,.0f} output tokens/s, "
               f"{best.user_tokens_per_s:.0f} tokens/s a user{money}")  # fmt: skip
    formats = report.narrow_formats
    if formats:
        yield Text(f"{formats}: chosen here, what that does to answers is not judged; plan.precision=bf16 pins bf16")
    yield from _promise(report)


def _promise(report: DeploymentReport) -> Iterator[RenderableType]:
    """Every limit with the interval of what it limits, and how sure all of them are kept."""
    promise = report.found.promise
    intervals = {limit.metric: limit for limit in promise.limits} if promise else {}
    for limit in report.best.prediction.limits:
        word, colour = ("kept", "green") if limit.met else ("missed", "red")
        percentile, longest = (format_quantity(seconds, "s", 3) for seconds in (limit.found, limit.limit))
        sentence = f"{limit.metric.upper()} p{limit.percentile:g} {percentile}, limit {longest}"
        if promise is None:
            yield Text.assemble((word, colour), f"  {sentence}   interval not computed")
            continue
        low, high = (
            format_quantity(seconds, "s", 3)
            for seconds in (intervals[limit.metric].low_s, intervals[limit.metric].high_s)
        )
        yield Text.assemble((word, colour), f"  {sentence}   {low} to {high} with {promise.coverage:.0%} probability")
    if promise is None:
        return
    least = "at least " if promise.chance >= SURE_ENOUGH else ""
    chance = f"chance of keeping the objective: {least}{promise.chance:.0%}"
    if promise.chips == report.best.candidate.chips:
        yield Text(chance)
    elif promise.chips is None:
        yield Text(
            f"{chance}; no number of these replicas was found that keeps it with {promise.sure:.0%}: {promise.obstacle}"
        )
    else:
        many = " + ".join(map(str, promise.replicas))
        yield Text(f"{chance}; {many} replicas ({promise.chips} chips) keep it with {promise.sure:.0%}")


def _other_deployments(report: DeploymentReport) -> Iterator[RenderableType]:
    heads = ("chips", "requests/s", "$ / M tokens", "tokens/s user")
    table = header_table(("deployment", *heads, "objective"), right=heads)
    for one in (report.best, *(report.own_others if report.found.side_by_side else report.others)):
        cost = one.prediction.cost_per_million_tokens_usd
        cells = (str(one.candidate.chips), f"{one.rate:.3g}", DASH if cost is None else f"{cost:.2f}")
        kept = ("kept" if one.met else "missed") + ("" if one.whole else ", busiest part")
        table.add_row(clean(one.candidate.words), *cells, f"{one.user_tokens_per_s:.0f}", kept)
    yield table


def _why(report: DeploymentReport) -> Iterator[RenderableType]:
    yield Text("what limits it", style="bold")
    for pool in report.best.pools:
        role = "replica" if pool.instance.role == "both" else f"{pool.instance.role} replica"
        limit = pool.capacity.breaks.upper() or "nothing"
        yield Text(f"a {role} holds {pool.holds:.3g} requests/s; beyond that {limit} is missed first; "
                   f"its cache holds {pool.instance.memory.tokens:,} tokens")  # fmt: skip
    total = sum(report.why.step.values()) or 1.0
    took = format_quantity(total, "s", 3)
    yield Text(f"a decode step of the {report.why.in_flight:.0f} requests in flight takes {took}:")
    parts = sorted(report.why.step.items(), key=lambda part: -part[1])[:MOST]
    yield bar_table(
        (
            (name, format_quantity(seconds, "s", 3), seconds / total, COLOURS[PARTS[name][0]], PARTS[name][1])
            for name, seconds in parts
        ),
        form=percent,
    )


def _knobs(report: DeploymentReport) -> Iterator[RenderableType]:
    rows = [
        (clean(choice), change, breaks, Text(words, style="dim"))
        for choice, change, breaks, words in knob_rows(report)[:KNOBS]
    ]
    if rows:
        yield Text("what each knob would change, one replica on a shortened load", style="bold")
        yield header_table(KNOB_HEADS, rows, right=KNOB_HEADS[1:2])
    if idle := [knob.choice for knob in report.why.knobs if abs(knob.change) < SMALLEST]:
        yield Text(f"no effect: {', '.join(idle)}", style="dim")


KNOB_HEADS = ("decided otherwise", "requests/s/chip", "missed first", "the replica")


def knob_rows(report: DeploymentReport) -> list[tuple[str, str, str, str]]:
    return [
        (knob.choice, signed_share(knob.change) if knob.rate else "none", knob.breaks.upper(), knob.words)
        for knob in report.why.knobs
        if abs(knob.change) >= SMALLEST
    ]


def cost_of(point: FrontierPoint) -> float:
    """What a point costs: USD a million tokens, or chip-seconds a thousand tokens where a price is not known."""
    cost = point.cost
    return cost if cost is not None else 1000.0 / point.tokens_per_s_per_chip


def cost_name(report: DeploymentReport) -> str:
    """The name of that axis."""
    priced = all(one.cost is not None for one in report.found.frontier)
    return "$ per million output tokens" if priced else "chip-seconds per thousand output tokens"


def _frontier(report: DeploymentReport) -> Iterator[RenderableType]:
    points = report.found.frontier
    if len(points) < 2:
        return
    yield Text("frontier: cost against speed of a user (* keeps the objective)", style="bold")
    dots = [Dot(x=point.user_speed, y=cost_of(point), mark="*" if point.met else "o") for point in points]
    across = PlotAxis(name="tokens/s of a user", form=lambda value: f"{value:.0f}")
    up = PlotAxis(name=cost_name(report), form=lambda value: f"{value:.3g}")
    yield Text("\n".join(scatter(dots, across, up)))
    heads = ("tokens/s user", "cost", "requests/s")
    several = len({point.system for point in points}) > 1
    table = header_table(("replica", *heads, *["system"] * several), right=heads)
    for point in points:
        figures = (f"{point.user_speed:.0f}", f"{cost_of(point):.3g}", f"{point.rate:.3g}")
        table.add_row(clean(point.words), *figures, *[clean(point.system)] * several)
    yield table


def _foot(report: DeploymentReport) -> Iterator[RenderableType]:
    yield Text(
        f"{report.bounded} replicas bounded, {report.simulated} simulated in {report.trials} trials, "
        f"{report.time.cpu_seconds:.1f} s of CPU; {report.requests:,} requests, "
        f"mean {report.mean_prompt_tokens:.0f} + {report.mean_output_tokens:.0f} tokens",
        style="dim",
    )
    yield from list_lines("assumed", report.assumptions, most=MOST)
