"""Draw a recommended deployment."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Console, RenderableType
from rich.text import Text

from ridgeline.core.units import format_quantity, signed_share
from ridgeline.report.cells import DASH, bar, blocks, clean, grid, headed, listed, percent
from ridgeline.report.plot import Axis, Dot, scatter
from ridgeline.search import DeploymentReport, FrontierPoint
from ridgeline.sim.forward_price import PARTS

KNOBS, MOST = 16, 8
GOALS = {"cost": "the cheapest that holds the load", "chips": "the fewest chips that hold the load",
         "goodput": "the most goodput on what there is"}  # fmt: skip


# ---- the page


def draw_deployment(report: DeploymentReport, console: Console) -> None:
    """Print a recommended deployment."""
    console.print(
        blocks(_headline(report), _others(report), _why(report), _knobs(report), _frontier(report), _foot(report))
    )


def _headline(report: DeploymentReport) -> Iterator[RenderableType]:
    best = report.best
    scenario = report.scenario
    where = f"{scenario.model.id} on {scenario.system.name}, {scenario.plan.engine}"
    yield Text.assemble((f"{where}: {GOALS[report.found.goal]}", "dim"))
    if report.found.request.target is not None:
        yield Text(f"{report.found.request.target.id} can express all of it", style="dim")
    router = best.prediction.scenario.plan.serving.router
    chips = f"   {best.candidate.chips} chip{'s' * (best.candidate.chips > 1)}, {router}"
    yield Text.assemble((clean(best.candidate.words).plain, "bold"), chips)
    cost = best.prediction.cost_per_million_tokens_usd
    money = f", ${cost:,.2f} per million output tokens" if cost is not None else ""
    yield Text(f"{best.rate:.3g} requests/s, {best.prediction.metrics.output_tokens_per_s:,.0f} output tokens/s, "
               f"{best.user_tokens_per_s:.0f} tokens/s a user{money}")  # fmt: skip
    for one in best.prediction.limits:
        word, colour = ("kept", "green") if one.met else ("missed", "red")
        said = f"{one.metric.upper()} p{one.percentile:g} {format_quantity(one.found, 's', 3)}"
        yield Text.assemble((word, colour), f"  {said}, limit {format_quantity(one.limit, 's', 3)}")


def _others(report: DeploymentReport) -> Iterator[RenderableType]:
    heads = ("chips", "requests/s", "$ / M tokens", "tokens/s user")
    table = headed(("deployment", *heads, "objective"), right=heads)
    for one in (report.best, *report.others):
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
        yield Text(f"a {role} holds {pool.capacity.rate:.3g} requests/s; beyond that {limit} is missed first; "
                   f"its cache holds {pool.instance.memory.tokens:,} tokens")  # fmt: skip
    whole = sum(report.why.step.values()) or 1.0
    took = format_quantity(whole, "s", 3)
    yield Text(f"a decode step of the {report.why.in_flight:.0f} requests in flight takes {took}:")
    table = grid("left", "right", "right", "left", "left")
    for name, seconds in sorted(report.why.step.items(), key=lambda part: -part[1])[:MOST]:
        bound, meaning = PARTS[name]
        colour = {"memory": "green", "compute": "blue", "network": "magenta", "host": "yellow"}[bound]
        share = seconds / whole
        cells = (format_quantity(seconds, "s", 3), percent(share), bar(share, colour))
        table.add_row(name, *cells, Text(meaning, style="dim"))
    yield table


def _knobs(report: DeploymentReport) -> Iterator[RenderableType]:
    if not report.why.knobs:
        return
    table = headed(("decided otherwise", "requests/s/chip", "missed first", "the replica"), right=("requests/s/chip",))
    for one in report.why.knobs[:KNOBS]:
        change = signed_share(one.change) if one.rate else "none"
        table.add_row(clean(one.choice), change, one.breaks.upper(), Text(one.words, style="dim"))
    yield Text("what each knob would change, one replica on a shortened load", style="bold")
    yield table


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
    dots = [Dot(x=one.user_speed, y=cost_of(one), mark="*" if one.met else "o") for one in points]
    across = Axis(name="tokens/s of a user", form=lambda value: f"{value:.0f}")
    up = Axis(name=cost_name(report), form=lambda value: f"{value:.3g}")
    yield Text("\n".join(scatter(dots, across, up)))
    heads = ("tokens/s user", "cost", "requests/s")
    table = headed(("replica", *heads), right=heads)
    for one in points:
        table.add_row(clean(one.words), f"{one.user_speed:.0f}", f"{cost_of(one):.3g}", f"{one.rate:.3g}")
    yield table


def _foot(report: DeploymentReport) -> Iterator[RenderableType]:
    yield Text(
        f"{report.bounded} replicas bounded, {report.simulated} simulated in {report.trials} trials, "
        f"{report.time.cpu_seconds:.1f} s of CPU; {report.requests:,} requests, "
        f"mean {report.mean_prompt_tokens:.0f} + {report.mean_output_tokens:.0f} tokens",
        style="dim",
    )
    yield from listed("assumed", report.assumptions, most=MOST)
