"""Draw the answers of a design study on a terminal: the frontier of machines, what limits need, who wins; or models."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from ridgeline.core.units import format_duration, format_quantity, signed_share
from ridgeline.design import Architecture, ArchitectureAnswer, Contest, DesignAnswer, DesignPoint, Requirement
from ridgeline.report.cells import DASH, blocks, clean, grid, header_table, list_lines

SHOWN = 12  # points or models on a page
COSTS = ("time", "cost", "USD/h", "area", "power")


def draw_design(answer: DesignAnswer, console: Console) -> None:
    """Print the frontier and what else was asked."""
    title = Text.assemble(clean(answer.study), style="bold")
    console.print(
        blocks(
            [title, clean(certificate_words(answer))],
            [_points(answer)],
            [_workloads(answer)],
            [] if answer.requirement is None else list(_requirement(answer.requirement)),
            [] if answer.contest is None else [clean(contest_words(answer.contest))],
            list_lines("derived", [f"{row.field}: {row.rule}" for row in answer.derived_fields]),
            list_lines("notes", answer.notes),
        )
    )


def certificate_words(answer: DesignAnswer) -> str:
    """Why the frontier is whole, in one sentence."""
    proof = answer.certificate
    return (
        f"{proof.points:,} machines: {proof.priced_points:,} priced, {proof.over_budget:,} over budget, "
        f"{proof.bounded_points:,} dropped because a bound shows that none of them can be better; "
        f"{len(answer.frontier)} on the frontier"
    )


def choice_words(name: str, value: float) -> str:
    """A chosen number with its unit."""
    unit = CHOICE_UNITS.get(name.split(".")[0] if name.startswith("compute") else name, "")
    return format_quantity(value, unit, 3) if unit else f"{value:g}"


CHOICE_UNITS = {
    "compute": "FLOP/s",
    "memory.bandwidth": "B/s",
    "memory.capacity": "B",
    "cache.capacity": "B",
    "scaleup.bandwidth": "B/s",
    "scaleup.latency": "s",
    "scaleout.bandwidth": "B/s",
    "scaleout.latency": "s",
    "host.bandwidth": "B/s",
}


def cost_cells(point: DesignPoint) -> tuple[str, ...]:
    """Relative time and cost, dollars, area and power of a point."""
    return (
        f"x {point.relative_time:.3f}",
        f"x {point.relative_cost:.3f}",
        f"{point.usd_per_hour:.2f}",
        f"{point.area_mm2:.0f} mm2",
        format_quantity(point.power_w, "W", 3),
    )


def shown_points(answer: DesignAnswer) -> list[DesignPoint]:
    """The reference, the best, and points of the frontier evenly."""
    step = max(1, len(answer.frontier) // SHOWN)
    best = [] if answer.best is None else [answer.best]
    return [answer.reference, *(point for point in answer.frontier[::step] if point not in best), *best]


def _points(answer: DesignAnswer) -> Table:
    names = list(answer.parameters)
    table = header_table(("machine", *COSTS, *names), right=(*COSTS, *names))
    for point in shown_points(answer):
        mark = "best: " if point is answer.best else ""
        chosen = [
            choice_words(name, point.choices.get(name, float(answer.parameters[name]["today"]))) for name in names
        ]
        table.add_row(f"{mark}{point.id}", *cost_cells(point), *chosen)
    return table


def _workloads(answer: DesignAnswer) -> Table:
    table = header_table(("workload", "machine", "time", "USD/Mtok", "limited by", "plan"), right=("time", "USD/Mtok"))
    for point in filter(None, (answer.reference, answer.best)):
        for work in point.workloads:
            cells = (
                format_duration(work.seconds),
                f"{work.usd_per_million_tokens:.3g}",
                work.limiter,
                clean(work.plan),
            )
            table.add_row(clean(work.workload), point.id, *cells)
    return table


def _requirement(requirement: Requirement) -> Iterator[RenderableType]:
    if not requirement.feasible:
        yield Text(f"no machine of the study keeps the limits: {requirement.reason}", style="bold yellow")
    rows = [
        (name, choice_words(name, value), clean(requirement.binds[name])) for name, value in requirement.choices.items()
    ]
    if rows:
        yield header_table(("smallest requirement", "value", "set by"), rows, right=("value",))
    slacks = [
        (
            clean(entry.name),
            f"{entry.value:.4g} {entry.unit}",
            signed_share(entry.slack),
            "binds" if entry.binds else "",
        )
        for entry in requirement.limits
    ]
    yield header_table(("limit", "value", "slack", ""), slacks, right=("value", "slack"))


def contest_words(contest: Contest) -> str:
    """Who wins, how sure, and what would change it."""
    turn = f"; equal where it is x {contest.flips_at:.2f}" if contest.flips_at is not None else ""
    return (
        f"{contest.first} takes less {contest.objective} than {contest.second} with {contest.probability:.0%} "
        f"probability: x {contest.ratio:.3f} ({contest.ratio_low:.3f} to {contest.ratio_high:.3f}). "
        f"What would change it most: {contest.decisive[0][0]}{turn}. Measure {contest.measurement}."
    )


# -- models -----------------------------------------------------------------------------------------------------------


def draw_architectures(answer: ArchitectureAnswer, console: Console) -> None:
    """Print models of equal predicted quality, and how flat the optimum is."""
    title = Text.assemble(clean(answer.study), style="bold")
    low, high = answer.loss_interval
    law, models = answer.law["id"], len(answer.candidates)
    head = f"loss {answer.target_loss:.4f} by {law} ({low:.3f} to {high:.3f}); {models} models"
    basin = [(name, f"{ends[0]:g} to {ends[1]:g}") for name, ends in answer.basin.ranges.items()]
    refusals = [f"{entry.name}: {entry.reason}" for entry in answer.refusals]
    console.print(
        blocks(
            [title, clean(head)],
            [architecture_table(answer.candidates[:SHOWN])],
            [
                Text(f"flat basin: within {answer.basin.tolerance:g} of the best", style="dim"),
                grid("left", "left", rows=basin),
            ],
            list_lines("refused", refusals, most=6),
            list_lines("notes", answer.notes),
        )
    )


MODEL_HEAD = ("params", "tokens", "loss", "days", "train USD", "TPOT", "USD/Mtok", "memory", "total USD")


def architecture_table(candidates: Sequence[Architecture]) -> Table:
    """Models as lines of a table."""
    table = header_table(("model", *MODEL_HEAD, ""), right=MODEL_HEAD)
    for model in candidates:
        table.add_row(clean(model.name), *architecture_cells(model), "frontier" if model.on_frontier else "")
    return table


def architecture_cells(model: Architecture) -> tuple[str, ...]:
    """Figures of a model."""
    serving = DASH if model.tpot_s is None else format_duration(model.tpot_s)
    price = DASH if model.usd_per_million_tokens is None else f"{model.usd_per_million_tokens:.3g}"
    return (
        f"{model.params / 1e9:.3g} B",
        f"{model.tokens / 1e9:.4g} B",
        f"{model.loss:.4f}",
        f"{model.train_days:.3g}",
        f"{model.train_usd:,.0f}",
        serving,
        price,
        format_quantity(model.memory_bytes, "B", 3),
        f"{model.total_usd:,.0f}",
    )
