"""Turn a recommended deployment into a sheet of facts, and the sheet into a page."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Console, RenderableType
from rich.text import Text

from ridgeline.core.units import format_quantity, signed_share
from ridgeline.plan.scenario import serving
from ridgeline.report.cells import DASH, bar, blocks, clean, grid, headed, listed, percent
from ridgeline.report.plot import Axis, Dot, scatter
from ridgeline.report.sheets.deployment import (
    DeploymentPlanSheet,
    DeploymentSheet,
    FrontierPointSheet,
    ReplicaSheet,
)
from ridgeline.search.deployments.candidate import Verified
from ridgeline.search.deployments.recommend import DeploymentAnswer
from ridgeline.search.deployments.shape import DEGREES, precision_words, shape_words
from ridgeline.search.plan_report import SearchTime
from ridgeline.sim.forward_price import PARTS

KNOBS, MOST = 16, 8
GOALS = {"cost": "the cheapest that holds the load", "chips": "the fewest chips that hold the load",
         "goodput": "the most goodput on what there is"}  # fmt: skip


def deployment_sheet(found: DeploymentAnswer, took: SearchTime) -> DeploymentPlanSheet:
    """Everything a recommended deployment says, in base units."""
    assert found.chosen is not None
    assert found.best is not None
    assert found.why is not None
    search = found.chosen.search
    work = serving(search.scenario).workload
    searches = [one.search for one in found.outcomes]
    others = [one for one in search.verified if one is not found.best]
    others += [one.best for one in searches if one is not search and one.best is not None]
    sheet: DeploymentPlanSheet = {
        "kind": "deployment",
        "possible": True,
        "model": search.scenario.model.id,
        "system": search.scenario.system.name,
        "engine": search.scenario.plan.engine,
        "goal": found.goal,
        "requests": len(search.load.requests),
        "asked_rate": search.rate,
        "mean_prompt_tokens": float(search.load.prompts.mean()),
        "mean_output_tokens": float(search.load.outputs.mean()),
        "percentile": work.objective.percentile,
        "deployment": _deployment(found.best),
        "others": [_deployment(one) for one in others],
        "breaks": list(found.why.breaks),
        "in_flight": found.why.in_flight,
        "step_s": dict(found.why.step),
        "knobs": [
            {
                "axis": one.axis, "choice": one.choice, "words": shape_words(one.shape), "rate": one.rate,
                "change": one.change, "breaks": one.breaks,
            }
            for one in found.why.knobs
        ],
        "frontier": [
            {
                "system": one.system, "words": shape_words(one.shape), "rate": one.rate,
                "user_tokens_per_s": one.user_speed, "tokens_per_s_per_chip": one.tokens_per_s_per_chip,
                "cost_per_million_tokens_usd": one.cost, "met": one.met,
            }
            for one in found.frontier
        ],
        "bounded": sum(len(one.bounds) for one in searches),
        "simulated": sum(len(one.capacities) for one in searches),
        "trials": sum(one.bench.trials for one in searches),
        "complete": found.complete,
        "seconds": took.seconds,
        "cpu_seconds": took.cpu_seconds,
        "assumptions": [one for one in found.best.prediction.assumptions if not one.startswith("precision = ")],
    }  # fmt: skip
    if found.request.target is not None:
        sheet["to"] = found.request.target.id
    return sheet


def _deployment(one: Verified) -> DeploymentSheet:
    told, percentile = one.prediction.metrics, one.prediction.scenario.workload.objective.percentile  # type: ignore[union-attr]
    median = told.tpot.percentiles[50.0]
    return {
        "words": one.candidate.words,
        "chips": one.candidate.chips,
        "pools": _pools(one),
        "router": one.prediction.scenario.plan.serving.router,
        "met": one.met,
        "whole": one.whole,
        "rate": one.rate,
        "goodput": one.goodput,
        "objective": [
            {"metric": name, "percentile": percentile, "limit_s": kept.limit, "found_s": kept.found, "met": kept.met}
            for name, kept in one.prediction.kept.items()
        ],
        "output_tokens_per_s": told.output_tokens_per_s,
        "user_tokens_per_s": 1.0 / median if median else 0.0,
        "cost_per_million_tokens_usd": one.prediction.cost_per_million_tokens_usd,
    }


def _pools(one: Verified) -> list[ReplicaSheet]:
    candidate = one.candidate
    return [
        {
            "role": instance.role,
            "replicas": many,
            "chips": held.shape.chips,
            "words": shape_words(held.shape),
            "mesh": {axis: held.shape.choice(axis) for axis in DEGREES if held.shape.choice(axis) > 1},
            "precision": precision_words(held.shape.precision),
            "rate": held.rate,
            "breaks": held.breaks,
            "cache_tokens": instance.memory.tokens,
        }
        for held, many, instance in zip(candidate.capacities, candidate.replicas, one.prediction.instances, strict=True)
    ]


# ---- the page


def draw_deployment(sheet: DeploymentPlanSheet, console: Console) -> None:
    """Print a recommended deployment."""
    console.print(blocks(_headline(sheet), _others(sheet), _why(sheet), _knobs(sheet), _frontier(sheet), _foot(sheet)))


def _headline(sheet: DeploymentPlanSheet) -> Iterator[RenderableType]:
    best = sheet["deployment"]
    yield Text.assemble((f"{sheet['model']} on {sheet['system']}, {sheet['engine']}: {GOALS[sheet['goal']]}", "dim"))
    if "to" in sheet:
        yield Text(f"{sheet['to']} can express all of it", style="dim")
    chips = f"   {best['chips']} chip{'s' * (best['chips'] > 1)}, {best['router']}"
    yield Text.assemble((clean(best["words"]).plain, "bold"), chips)
    cost = best["cost_per_million_tokens_usd"]
    money = f", ${cost:,.2f} per million output tokens" if cost is not None else ""
    yield Text(f"{best['rate']:.3g} requests/s, {best['output_tokens_per_s']:,.0f} output tokens/s, "
               f"{best['user_tokens_per_s']:.0f} tokens/s a user{money}")  # fmt: skip
    for one in best["objective"]:
        word, colour = ("kept", "green") if one["met"] else ("missed", "red")
        said = f"{one['metric'].upper()} p{one['percentile']:g} {format_quantity(one['found_s'], 's', 3)}"
        yield Text.assemble((word, colour), f"  {said}, limit {format_quantity(one['limit_s'], 's', 3)}")


def _others(sheet: DeploymentPlanSheet) -> Iterator[RenderableType]:
    heads = ("chips", "requests/s", "$ / M tokens", "tokens/s user")
    table = headed(("deployment", *heads, "objective"), right=heads)
    for one in (sheet["deployment"], *sheet["others"]):
        cost = one["cost_per_million_tokens_usd"]
        cells = (str(one["chips"]), f"{one['rate']:.3g}", DASH if cost is None else f"{cost:.2f}")
        kept = ("kept" if one["met"] else "missed") + ("" if one["whole"] else ", busiest part")
        table.add_row(clean(one["words"]), *cells, f"{one['user_tokens_per_s']:.0f}", kept)
    yield table


def _why(sheet: DeploymentPlanSheet) -> Iterator[RenderableType]:
    yield Text("what limits it", style="bold")
    for pool in sheet["deployment"]["pools"]:
        role = "replica" if pool["role"] == "both" else f"{pool['role']} replica"
        yield Text(f"a {role} holds {pool['rate']:.3g} requests/s; beyond that {pool['breaks'].upper() or 'nothing'} "
                   f"is missed first; its cache holds {pool['cache_tokens']:,} tokens")  # fmt: skip
    whole = sum(sheet["step_s"].values()) or 1.0
    took = format_quantity(whole, "s", 3)
    yield Text(f"a decode step of the {sheet['in_flight']:.0f} requests in flight takes {took}:")
    table = grid("left", "right", "right", "left", "left")
    for name, seconds in sorted(sheet["step_s"].items(), key=lambda part: -part[1])[:MOST]:
        bound, meaning = PARTS[name]
        colour = {"memory": "green", "compute": "blue", "network": "magenta", "host": "yellow"}[bound]
        share = seconds / whole
        cells = (format_quantity(seconds, "s", 3), percent(share), bar(share, colour))
        table.add_row(name, *cells, Text(meaning, style="dim"))
    yield table


def _knobs(sheet: DeploymentPlanSheet) -> Iterator[RenderableType]:
    if not sheet["knobs"]:
        return
    table = headed(("decided otherwise", "requests/s/chip", "missed first", "the replica"), right=("requests/s/chip",))
    for one in sheet["knobs"][:KNOBS]:
        change = signed_share(one["change"]) if one["rate"] else "none"
        table.add_row(clean(one["choice"]), change, one["breaks"].upper(), Text(one["words"], style="dim"))
    yield Text("what each knob would change, one replica on a shortened load", style="bold")
    yield table


def cost_of(point: FrontierPointSheet) -> float:
    """What a point costs: USD a million tokens, or chip-seconds a thousand tokens where a price is not known."""
    cost = point["cost_per_million_tokens_usd"]
    return cost if cost is not None else 1000.0 / point["tokens_per_s_per_chip"]


def cost_name(sheet: DeploymentPlanSheet) -> str:
    """The name of that axis."""
    priced = all(one["cost_per_million_tokens_usd"] is not None for one in sheet["frontier"])
    return "$ per million output tokens" if priced else "chip-seconds per thousand output tokens"


def _frontier(sheet: DeploymentPlanSheet) -> Iterator[RenderableType]:
    points = sheet["frontier"]
    if len(points) < 2:
        return
    yield Text("frontier: cost against speed of a user (* keeps the objective)", style="bold")
    dots = [Dot(x=one["user_tokens_per_s"], y=cost_of(one), mark="*" if one["met"] else "o") for one in points]
    across = Axis(name="tokens/s of a user", form=lambda value: f"{value:.0f}")
    up = Axis(name=cost_name(sheet), form=lambda value: f"{value:.3g}")
    yield Text("\n".join(scatter(dots, across, up)))
    heads = ("tokens/s user", "cost", "requests/s")
    table = headed(("replica", *heads), right=heads)
    for one in points:
        table.add_row(
            clean(one["words"]), f"{one['user_tokens_per_s']:.0f}", f"{cost_of(one):.3g}", f"{one['rate']:.3g}"
        )
    yield table


def _foot(sheet: DeploymentPlanSheet) -> Iterator[RenderableType]:
    yield Text(
        f"{sheet['bounded']} replicas bounded, {sheet['simulated']} simulated in {sheet['trials']} trials, "
        f"{sheet['cpu_seconds']:.1f} s of CPU; {sheet['requests']:,} requests, "
        f"mean {sheet['mean_prompt_tokens']:.0f} + {sheet['mean_output_tokens']:.0f} tokens",
        style="dim",
    )
    yield from listed("assumed", sheet["assumptions"], most=MOST)
