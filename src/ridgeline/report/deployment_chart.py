"""Turn the frontier of a deployment sheet into a picture: SVG or PNG by itself, or with its table as HTML."""

from __future__ import annotations

from pathlib import Path

from ridgeline.core.files import write_text
from ridgeline.core.units import format_quantity, signed_share
from ridgeline.report.deployment import cost_name, cost_of
from ridgeline.report.html import document, escaped, facts, table
from ridgeline.report.plan_html import SCRIPT, STYLE, Chart, chart
from ridgeline.report.sheets.deployment import DeploymentPlanSheet


def write_page(sheet: DeploymentPlanSheet, path: Path) -> None:
    """The page as HTML, or its chart as SVG where the file is named so."""
    if path.suffix.lower() == ".svg":
        write_text(path, frontier_svg(sheet))
    else:
        write_text(path, page(sheet))


def frontier_svg(sheet: DeploymentPlanSheet) -> str:
    """The frontier as an SVG file of its own."""
    inner = _frontier(sheet)
    begin, end = inner.index("<svg"), inner.index("</svg>") + len("</svg>")
    named = inner[begin:end].replace("<svg", '<svg xmlns="http://www.w3.org/2000/svg"', 1)
    style = "<style>.rule{stroke:#ccc}.dot{fill:#3b78c3}.best{fill:#c0392b}text{font:12px sans-serif;fill:#333}</style>"
    return named.replace(">", f">{style}", 1)


def page(sheet: DeploymentPlanSheet) -> str:
    """The deployment, what limits it, what each knob would change, and the frontier."""
    best = sheet["deployment"]
    cost = best["cost_per_million_tokens_usd"]
    pairs = [
        ("chips", str(best["chips"])),
        ("requests/s", f"{best['rate']:.3g}"),
        ("output tokens/s", f"{best['output_tokens_per_s']:,.0f}"),
        ("tokens/s a user", f"{best['user_tokens_per_s']:.0f}"),
        ("per million tokens", f"${cost:,.2f}" if cost is not None else "no price"),
    ]
    pairs += [
        (f"{one['metric'].upper()} p{one['percentile']:g}, limit {format_quantity(one['limit_s'], 's', 3)}",
         format_quantity(one["found_s"], "s", 3))
        for one in best["objective"]
    ]  # fmt: skip
    title = f"{sheet['model']} on {sheet['system']}"
    body = f"<h1>{escaped(title)}</h1><p class=plan>{escaped(best['words'])}</p>{facts(pairs)}"
    body += _frontier(sheet) + _knobs(sheet)
    return document(title=title, body=body, style=STYLE, script=SCRIPT)


def _frontier(sheet: DeploymentPlanSheet) -> str:
    points = sheet["frontier"]
    if not points:
        return ""
    made = Chart(
        x_name="tokens/s of a user",
        y_name=cost_name(sheet),
        dots=[
            (one["user_tokens_per_s"], cost_of(one), f"{one['words']} at {one['rate']:.3g} requests/s", one["met"])
            for one in points
        ],
    )
    return f"<h2>Frontier</h2>{chart(made, 'Replicas that no other beats in both; red ones keep the objective.')}"


def _knobs(sheet: DeploymentPlanSheet) -> str:
    rows = [
        (one["choice"], signed_share(one["change"]) if one["rate"] else "none", one["breaks"].upper(), one["words"])
        for one in sheet["knobs"]
    ]
    head = ("decided otherwise", "requests/s/chip", "missed first", "the replica")
    return f"<h2>What each knob would change</h2>{table(head, rows, text=(0, 2, 3))}" if rows else ""
