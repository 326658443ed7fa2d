"""Draw the frontier of a deployment: SVG or PNG by itself, or with its table as HTML."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

from ridgeline.core.errors import InputError, Problem
from ridgeline.core.files import write_bytes, write_text
from ridgeline.core.units import format_quantity, signed_share
from ridgeline.report.deployment import cost_name, cost_of
from ridgeline.report.html import document, escaped, facts, table
from ridgeline.report.plan_html import EDGE, LEFT, SCRIPT, STYLE, TALL, WIDE, Chart, chart
from ridgeline.report.raster import Canvas
from ridgeline.report.scale import Scale
from ridgeline.search import DeploymentReport

WRITERS = (".png", ".svg")
PAPER, INK, RULE = (252, 252, 250), (29, 39, 51), (223, 227, 232)
KEPT, MISSED = (192, 57, 43), (59, 120, 195)  # dots of replicas that keep the objective, and of others


def write_picture(report: DeploymentReport, path: Path) -> None:
    """The frontier as PNG or SVG, by the name's ending."""
    if path.suffix.lower() == ".png":
        write_bytes(path, frontier_png(report))
    else:
        write_text(path, frontier_svg(report))


def refuse_picture(path: Path | None) -> None:
    """Say before the work that a name has no ending that is drawn."""
    if path is not None and path.suffix.lower() not in WRITERS:
        expected = f"a name ending in {' or '.join(WRITERS)}"
        raise InputError(Problem(path="--picture", given=path.name[:60], expected=expected))


def frontier_png(report: DeploymentReport) -> bytes:
    """The frontier as a picture: cost upwards, tokens per second of a user across."""
    points = [(one.user_speed, cost_of(one), one.met) for one in report.found.frontier]
    canvas = Canvas(WIDE, TALL, PAPER)
    across = Scale.of([one[0] for one in points] or [1.0], LEFT, WIDE - EDGE / 2)
    up = Scale.of([one[1] for one in points] or [1.0], TALL - EDGE, EDGE / 3)
    for value in across.ticks():
        canvas.line((across(value), EDGE / 3), (across(value), TALL - EDGE), RULE)
        canvas.text(f"{value:.3g}", across(value), TALL - EDGE + 18, INK, "middle")
    for value in up.ticks():
        canvas.line((LEFT, up(value)), (WIDE - EDGE / 2, up(value)), RULE)
        canvas.text(f"{value:.3g}", LEFT - 6, up(value) + 4, INK, "end")
    for before, after in pairwise(points):
        canvas.line((across(before[0]), up(before[1])), (across(after[0]), up(after[1])), RULE, 2.0)
    for speed, cost, met in points:
        canvas.dot(across(speed), up(cost), 6 if met else 4, KEPT if met else MISSED)
    canvas.text(cost_name(report), LEFT, 14, INK)
    canvas.text("tokens/s of a user (red: the objective is kept)", WIDE / 2, TALL - 22, INK, "middle")
    return canvas.png()


def write_page(report: DeploymentReport, path: Path) -> None:
    """The page as HTML, or its chart as SVG where the file is named so."""
    if path.suffix.lower() == ".svg":
        write_text(path, frontier_svg(report))
    else:
        write_text(path, page(report))


def frontier_svg(report: DeploymentReport) -> str:
    """The frontier as an SVG file of its own."""
    inner = _frontier(report)
    begin, end = inner.index("<svg"), inner.index("</svg>") + len("</svg>")
    named = inner[begin:end].replace("<svg", '<svg xmlns="http://www.w3.org/2000/svg"', 1)
    style = "<style>.rule{stroke:#ccc}.dot{fill:#3b78c3}.best{fill:#c0392b}text{font:12px sans-serif;fill:#333}</style>"
    return named.replace(">", f">{style}", 1)


def page(report: DeploymentReport) -> str:
    """The deployment, what limits it, what each knob would change, and the frontier."""
    best = report.best
    cost = best.prediction.cost_per_million_tokens_usd
    pairs = [
        ("chips", str(best.candidate.chips)),
        ("requests/s", f"{best.rate:.3g}"),
        ("output tokens/s", f"{best.prediction.metrics.output_tokens_per_s:,.0f}"),
        ("tokens/s a user", f"{best.user_tokens_per_s:.0f}"),
        ("per million tokens", f"${cost:,.2f}" if cost is not None else "no price"),
    ]
    pairs += [
        (f"{one.metric.upper()} p{one.percentile:g}, limit {format_quantity(one.limit, 's', 3)}",
         format_quantity(one.found, "s", 3))
        for one in best.prediction.limits
    ]  # fmt: skip
    title = f"{report.scenario.model.id} on {report.scenario.system.name}"
    body = f"<h1>{escaped(title)}</h1><p class=plan>{escaped(best.candidate.words)}</p>{facts(pairs)}"
    body += _frontier(report) + _knobs(report)
    return document(title=title, body=body, style=STYLE, script=SCRIPT)


def _frontier(report: DeploymentReport) -> str:
    points = report.found.frontier
    if not points:
        return ""
    made = Chart(
        x_name="tokens/s of a user",
        y_name=cost_name(report),
        dots=[(one.user_speed, cost_of(one), f"{one.words} at {one.rate:.3g} requests/s", one.met) for one in points],
    )
    return f"<h2>Frontier</h2>{chart(made, 'Replicas that no other beats in both; red ones keep the objective.')}"


def _knobs(report: DeploymentReport) -> str:
    rows = [
        (one.choice, signed_share(one.change) if one.rate else "none", one.breaks.upper(), one.words)
        for one in report.why.knobs
    ]
    head = ("decided otherwise", "requests/s/chip", "missed first", "the replica")
    return f"<h2>What each knob would change</h2>{table(head, rows, text=(0, 2, 3))}" if rows else ""
