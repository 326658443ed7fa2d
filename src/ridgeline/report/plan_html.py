"""Turn the sheet of a plan into one HTML file: inline SVG, a few lines of script for pointing, nothing fetched."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from html import escape

from ridgeline.core.units import format_count, format_quantity
from ridgeline.report.catalog_sheets import Sheet
from ridgeline.report.plan import FORMS
from ridgeline.report.plan_sheet import signed
from ridgeline.report.predict import gib
from ridgeline.report.validate_html import STYLE as HOUSE

WIDE, TALL, EDGE = 720, 380, 64  # of a chart, in pixels
FEW = 8  # different values that are all written at an axis
SPAN = 4.0  # largest over smallest value from which an axis is logarithmic
STYLE = (
    HOUSE
    + """
.plan { font: 600 1.05rem/1.5 ui-monospace, monospace; color: var(--ink); }
.facts { display: grid; grid-template-columns: repeat(auto-fit, minmax(10rem, 1fr)); gap: .6rem 1.4rem; }
.facts b { display: block; font-size: 1.25rem; } .facts span { color: var(--faint); font-size: .85rem; }
.bar { display: flex; height: 1.1rem; border-radius: .2rem; overflow: hidden; margin: .4rem 0; }
.bar i { display: block; } .compute { background: #3b78c3; } .memory { background: #4c9a6a; }
.network { background: #a35bb8; } .host { background: #c79a2b; }
.dot { fill: var(--in); } .best { fill: var(--out); } .curve { stroke: var(--in); fill: none; stroke-width: 2; }
circle[data-told] { cursor: pointer; outline: none; }
circle[data-told]:hover, circle[data-told]:focus { stroke: var(--ink); stroke-width: 2; }
.told { min-height: 3em; font-family: ui-monospace, monospace; font-size: .85rem; color: var(--ink); }
td { vertical-align: top; } td:not(.text) { white-space: nowrap; }
"""
)
SCRIPT = """
for (const figure of document.querySelectorAll("figure[data-chart]")) {
  const told = figure.querySelector(".told");
  for (const dot of figure.querySelectorAll("circle[data-told]")) {
    const tell = () => { told.textContent = dot.dataset.told; };
    dot.addEventListener("mouseenter", tell);
    dot.addEventListener("focus", tell);
  }
}
"""


def page(sheet: Sheet) -> str:
    """The whole page; every piece of text is escaped."""
    what = f"{sheet['model']} on {sheet['system']}"
    body = "".join(
        (
            f"<h1>{_text(what)}</h1>", _winner(sheet), _limits(sheet), _top(sheet), _why(sheet), _next(sheet),
            _frontier(sheet), _scaling(sheet), _compared(sheet), _assumed(sheet),
        )
    )  # fmt: skip
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1"><link rel="icon" href="data:,">'
        f"<title>Ridgeline plan: {_text(what)}</title><style>{STYLE}</style></head><body>{body}"
        f"<script>{SCRIPT}</script></body></html>\n"
    )


def _text(value: object) -> str:
    """Text of a stranger inside HTML: escaped, without control characters, not endless."""
    return escape("".join(char for char in str(value)[:400] if char.isprintable()))


def _winner(sheet: Sheet) -> str:
    best = sheet["plans"][0]
    span = best["interval"]
    free = 1 - best["peak_memory_bytes"] / sheet["capacity_bytes"]
    low, high = format_quantity(span["low"], "s", 3), format_quantity(span["high"], "s", 3)
    facts = [
        (format_quantity(best["step_time_s"], "s"), f"a step; {low} to {high} with {span['coverage']:.0%} probability"),
        (f"{best['tokens_per_s_per_chip']:,.0f}", "tokens/s/chip"),
        (f"{best['mfu']:.1%}", "MFU"),
        (gib(best["peak_memory_bytes"]), f"of {gib(sheet['capacity_bytes'])}; {free:.0%} free"),
    ]
    if "run" in sheet:
        run = sheet["run"]
        price = "" if run["cost_usd"] is None else f"; {run['cost_usd']:,.0f} USD"
        facts.append(
            (f"{run['days']:.1f} days", f"for {format_count(sheet['tokens'])} tokens, failures counted{price}")
        )
    cells = "".join(f"<div><b>{_text(value)}</b><span>{_text(label)}</span></div>" for value, label in facts)
    asked = f"{sheet['global_batch']} × {sheet['seq']} tokens a step, under {sheet['engine']}"
    found = f"{sheet['considered']:,} plans priced, {sheet['feasible']:,} fit"
    stopped = "" if sheet["complete"] else " The search was stopped: this is the best so far."
    return (
        f"<p>{_text(asked)}. {_text(found)}.{stopped}</p><p class=plan>{_text(best['words'])}</p>"
        f"<div class=facts>{cells}</div>"
    )


def _limits(sheet: Sheet) -> str:
    total = sheet["plans"][0]["step_time_s"]
    bar = "".join(
        f'<i class="{name}" style="width:{seconds / total:.2%}" title="{name} {seconds / total:.0%}"></i>'
        for name, seconds in sheet["bounds"].items()
    )
    words = ", ".join(f"{name} {seconds / total:.0%}" for name, seconds in sheet["bounds"].items())
    return f"<div class=bar>{bar}</div><p>Limited by {words}.</p>"


def _table(head: Sequence[str], rows: Iterable[Sequence[object]], text: Sequence[int]) -> str:
    """An HTML table; the columns in `text` read from the left."""

    def line(cells: Sequence[object], tag: str) -> str:
        made = (
            f"<{tag}{' class=text' if index in text else ''}>{_text(cell)}</{tag}>" for index, cell in enumerate(cells)
        )
        return f"<tr>{''.join(made)}</tr>"

    return f"<figure><table>{line(head, 'th')}{''.join(line(row, 'td') for row in rows)}</table></figure>"


def _top(sheet: Sheet) -> str:
    best = sheet["plans"][0]["step_time_s"]
    rows = [
        (plan["words"], format_quantity(plan["step_time_s"], "s"), signed(plan["step_time_s"] - best),
         gib(plan["peak_memory_bytes"]), f"{plan['mfu']:.1%}")
        for plan in sheet["kinds"]
    ]  # fmt: skip
    told = "The best plan of each kind: another mesh, sharding or recompute."
    table = _table(("plan", "step", "loses", "memory", "MFU"), rows, (0,))
    return f"<h2>The best plans</h2><p>{told}</p>{table}{_refined(sheet)}"


def _refined(sheet: Sheet) -> str:
    """What moving layers and recomputing by stage gain."""
    own, beyond = sheet["handed"], sheet["handed"]["beyond"]
    rows = [(own["words"], own, "handed over")] if own["refined"] else []
    rows += [(beyond["words"], beyond, beyond["lacking"])] if beyond else []
    cells = [
        (words, format_quantity(plan["step_time_s"], "s"), format_quantity(plan["saves_s"], "s", 3),
         gib(plan["peak_memory_bytes"]), "; ".join(plan["changes"]), note)
        for words, plan, note in rows
    ]  # fmt: skip
    head = ("refined", "step", "saves", "memory", "changes", "")
    return f"<h2>Refined by stage</h2>{_table(head, cells, (0, 4, 5))}" if cells else ""


def _why(sheet: Sheet) -> str:
    rows = [(loss["choice"], signed(loss["loses_s"]), loss["to"], loss["words"]) for loss in sheet["why"]]
    if not rows:
        return ""
    told = "The best plan that decides one thing otherwise, and the parts of the step it loses to."
    table = _table(("instead", "loses", "to", "that plan"), rows, (0, 2, 3))
    return f"<h2>Why this plan</h2><p>{told}</p>{table}"


def _next(sheet: Sheet) -> str:
    rows = [
        (change["what"], f"{change['gain']:+.1%}", change["how"] or "another machine", change["words"])
        for change in sheet["next"]
    ]
    table = _table(("change", "gains", "how", "plan then"), rows, (0, 2, 3))
    return f"<h2>What next</h2>{table}" if rows else ""


def _scale(values: Sequence[float], start: float, end: float) -> Callable[[float], float]:
    """Where a value stands between two pixels."""
    low, high = min(values), max(values)
    bent = low > 0 and high / low > SPAN
    first, last = (math.log(low), math.log(high)) if bent else (low, high)

    def place(value: float) -> float:
        at = math.log(value) if bent else value
        return start + (at - first) / (last - first) * (end - start) if last > first else (start + end) / 2

    return place


def _ticks(values: Sequence[float]) -> list[float]:
    """The values themselves where they are few, else five evenly spaced."""
    return sorted(set(values)) if len(set(values)) <= FEW else _even(values)


def _even(values: Sequence[float]) -> list[float]:
    """Five values over the range."""
    low, high = min(values), max(values)
    if high <= low:
        return [low]
    if low > 0 and high / low > SPAN:
        return [low * (high / low) ** (part / 4) for part in range(5)]
    return [low + (high - low) * part / 4 for part in range(5)]


def _axes(xs: Sequence[float], ys: Sequence[float], x: tuple[str, Callable[[float], str]],
          y: tuple[str, Callable[[float], str]]) -> str:  # fmt: skip
    """Rules, numbers and names of a chart."""
    across, up = _scale(xs, EDGE, WIDE - EDGE / 2), _scale(ys, TALL - EDGE, EDGE / 3)
    marks = []
    for value in _ticks(xs):
        at = across(value)
        marks.append(f'<path class="rule" d="M{at:.1f} {EDGE / 3:.1f}V{TALL - EDGE}"/>')
        marks.append(
            f'<text class="faint" x="{at:.1f}" y="{TALL - EDGE + 16}" text-anchor="middle">{x[1](value)}</text>'
        )
    for value in _even(ys):
        at = up(value)
        marks.append(f'<path class="rule" d="M{EDGE} {at:.1f}H{WIDE - EDGE / 2}"/>')
        marks.append(f'<text class="faint" x="{EDGE - 6}" y="{at + 4:.1f}" text-anchor="end">{y[1](value)}</text>')
    marks.append(f'<text x="{WIDE / 2}" y="{TALL - 22}" text-anchor="middle">{_text(x[0])}</text>')
    marks.append(f'<text x="{EDGE}" y="12">{_text(y[0])}</text>')
    return "".join(marks)


def _dot(x: float, y: float, told: str, kind: str) -> str:
    size = 6 if kind == "best" else 4
    return (
        f'<circle class="{kind}" cx="{x:.1f}" cy="{y:.1f}" r="{size}" tabindex="0" data-told="{_text(told)}">'
        f"<title>{_text(told)}</title></circle>"
    )


def _chart(marks: str, note: str) -> str:
    return (
        f'<figure data-chart><svg width="{WIDE}" height="{TALL}" viewBox="0 0 {WIDE} {TALL}" role="img">{marks}</svg>'
        f"<figcaption>{_text(note)}</figcaption><p class=told>Point at a dot for its plan.</p></figure>"
    )


def _frontier(sheet: Sheet) -> str:
    first, second = sheet["frontier_axes"]
    (key_x, name_x, form_x), (key_y, name_y, form_y) = FORMS[first], FORMS[second]
    rows = sheet["frontier"]
    if len(rows) < 2:
        return ""
    best = {**sheet["plans"][0], "chips": sheet["chips"], "system": sheet["system"]}
    xs, ys = [row[key_x] for row in (*rows, best)], [row[key_y] for row in (*rows, best)]
    across, up = _scale(xs, EDGE, WIDE - EDGE / 2), _scale(ys, TALL - EDGE, EDGE / 3)

    def told(row: Sheet) -> str:
        return f"{row['words']} on {row['system']}: {form_x(row[key_x])}, {form_y(row[key_y])}"

    dots = [_dot(across(row[key_x]), up(row[key_y]), told(row), "dot") for row in rows]
    dots.append(_dot(across(best[key_x]), up(best[key_y]), "chosen: " + told(best), "best"))
    note = f"{len(rows)} plans that no other beats in both {first} and {second}; the chosen one is marked."
    marks = _axes(xs, ys, (name_x, form_x), (name_y, form_y)) + "".join(dots)
    return f"<h2>Frontier</h2>{_chart(marks, note)}"


def _scaling(sheet: Sheet) -> str:
    rows = sorted((row for row in sheet["compared"] if "step_time_s" in row), key=lambda row: row["chips"])
    if len({row["chips"] for row in rows}) < 3:
        return ""
    first = rows[0]
    ideal = [first["tokens_per_s_per_chip"] * row["chips"] for row in rows]
    xs, ys = [row["chips"] for row in rows], [row["tokens_per_s"] for row in rows] + ideal
    across, up = _scale(xs, EDGE, WIDE - EDGE / 2), _scale(ys, TALL - EDGE, EDGE / 3)

    def path(values: Sequence[float]) -> str:
        return "M" + "L".join(f"{across(x):.1f} {up(y):.1f}" for x, y in zip(xs, values, strict=True))

    def told(row: Sheet) -> str:
        days = f", {row['days']:.1f} days" if "days" in row else ""
        speed = f"{row['tokens_per_s']:,.0f} tokens/s, efficiency {row['efficiency']:.0%}"
        return f"{row['system']}: {speed}{days}; {row['words']}"

    dots = [
        _dot(across(row["chips"]), up(row["tokens_per_s"]), told(row), "best" if row["chosen"] else "dot")
        for row in rows
    ]
    axes = _axes(xs, ys, ("chips", lambda value: f"{value:,.0f}"), ("tokens/s", format_count))
    curves = f'<path class="line" d="{path(ideal)}"/>'
    note = "Tokens per second of the best plan at each size; dashed: in proportion to the smallest that fits."
    return f"<h2>Scaling</h2>{_chart(axes + curves + ''.join(dots), note)}"


def _compared(sheet: Sheet) -> str:
    if len(sheet["compared"]) < 2:
        return ""
    rows = []
    for row in sheet["compared"]:
        if "step_time_s" not in row:
            rows.append((row["system"], row["engine"], "nothing fits", "", "", "", "", ""))
            continue
        run = row.get("run", {})
        cost = "–" if row["cost_usd"] is None else f"{row['cost_usd']:.3g} USD"
        rows.append(
            (row["system"], row["engine"], row["words"], format_quantity(row["step_time_s"], "s"),
             f"{row['tokens_per_s_per_chip']:,.0f}", f"{row['efficiency']:.0%}", cost,
             f"{run['days']:.1f}" if run else "–")
        )  # fmt: skip
    head = ("system", "engine", "plan", "step", "tokens/s/chip", "efficiency", "a step", "days")
    return f"<h2>Compared</h2>{_table(head, rows, (0, 1, 2))}"


def _assumed(sheet: Sheet) -> str:
    notes = "".join(f"<li>{_text(note)}</li>" for note in (*sheet["assumptions"], *sheet["skipped"]))
    return f"<h2>Assumed</h2><ul>{notes}</ul>"
