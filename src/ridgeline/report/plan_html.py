"""Turn the sheet of a plan into one HTML file: inline SVG, a few lines of script for pointing, nothing fetched."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ridgeline.core.records import dataclass
from ridgeline.core.units import format_count, format_gib, format_quantity, signed_quantity, signed_share
from ridgeline.report.html import HOUSE, document, dot, escaped, facts, label, rule, svg, table
from ridgeline.report.plan import FORMS, software
from ridgeline.report.scale import Scale
from ridgeline.report.sheets.plan import ComparedSheet, HandedPlanSheet, PlanSheet, RefinedPlanSheet

WIDE, TALL, EDGE, LEFT = 720, 380, 64, 88  # of a chart, in pixels; numbers of up to 14 characters stand at its left
FEW = 8  # different values that are all written at an axis
STYLE = (
    HOUSE
    + """
.plan { font: 600 1.05rem/1.5 ui-monospace, monospace; color: var(--ink); }
.facts { display: grid; grid-template-columns: repeat(auto-fit, minmax(10rem, 1fr)); gap: .6rem 1.4rem; }
.facts b { display: block; font-size: 1.25rem; } .facts span { color: var(--faint); font-size: .85rem; }
svg.limits { display: block; width: 100%; height: 1.1rem; border-radius: .2rem; margin: .4rem 0; }
.compute { fill: #3b78c3; } .memory { fill: #4c9a6a; } .network { fill: #a35bb8; } .host { fill: #c79a2b; }
.dot { fill: var(--in); } .best { fill: var(--out); } .curve { stroke: var(--in); fill: none; stroke-width: 2; }
circle[data-told] { cursor: pointer; outline: none; }
circle[data-told]:hover, circle[data-told]:focus { stroke: var(--ink); stroke-width: 2; }
.told { min-height: 3em; font-family: ui-monospace, monospace; font-size: .85rem; color: var(--ink); }
td { vertical-align: top; } td:not(.text) { white-space: nowrap; }
td.text { white-space: normal; overflow-wrap: anywhere; }
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


def page(sheet: PlanSheet) -> str:
    """The whole page; every piece of text is escaped."""
    what = f"{sheet['model']} on {sheet['system']}"
    body = "".join(
        (
            f"<h1>{escaped(what)}</h1>", _winner(sheet), _limits(sheet), _top(sheet), _why(sheet), _next(sheet),
            _software(sheet), _frontier(sheet), _scaling(sheet), _compared(sheet), _assumed(sheet),
        )
    )  # fmt: skip
    return document(title=f"Ridgeline plan: {what}", body=body, style=STYLE, script=SCRIPT)


def _winner(sheet: PlanSheet) -> str:
    best = sheet["plans"][0]
    span = best["interval"]
    free = 1 - best["peak_memory_bytes"] / sheet["capacity_bytes"]
    low, high = format_quantity(span["low"], "s", 3), format_quantity(span["high"], "s", 3)
    told = [
        (format_quantity(best["step_time_s"], "s"), f"a step; {low} to {high} with {span['coverage']:.0%} probability"),
        (f"{best['tokens_per_s_per_chip']:,.0f}", "tokens/s/chip"),
        (f"{best['mfu']:.1%}", "MFU"),
        (format_gib(best["peak_memory_bytes"]), f"of {format_gib(sheet['capacity_bytes'])}; {free:.0%} free"),
    ]
    if "run" in sheet:
        run = sheet["run"]
        price = "" if run["cost_usd"] is None else f"; {run['cost_usd']:,.0f} USD"
        told.append((f"{run['days']:.1f} days", f"for {format_count(sheet['tokens'])} tokens, failures counted{price}"))
    asked = f"{sheet['global_batch']} × {sheet['seq']} tokens a step, under {sheet['engine']}"
    found = f"{sheet['considered']:,} plans priced, {sheet['feasible']:,} fit"
    stopped = "" if sheet["complete"] else " The search was stopped: this is the best so far."
    return f"<p>{escaped(asked)}. {escaped(found)}.{stopped}</p><p class=plan>{escaped(best['words'])}</p>{facts(told)}"


def _limits(sheet: PlanSheet) -> str:
    """What limits how much of the step, as one bar as wide as the page."""
    total, at, parts = sheet["plans"][0]["step_time_s"], 0.0, []
    for name, seconds in sheet["bounds"].items():
        share, kind = seconds / total, escaped(name)
        place = f'x="{at:.3f}" y="0" width="{share:.3f}" height="1"'
        parts.append(f'<rect class="{kind}" {place}><title>{kind} {share:.0%}</title></rect>')
        at += share
    words = ", ".join(f"{name} {seconds / total:.0%}" for name, seconds in sheet["bounds"].items())
    bar = f'<svg class="limits" viewBox="0 0 1 1" preserveAspectRatio="none" role="img">{"".join(parts)}</svg>'
    return f"{bar}<p>Limited by {escaped(words)}.</p>"


def _top(sheet: PlanSheet) -> str:
    best = sheet["plans"][0]["step_time_s"]
    rows = [
        (plan["words"], format_quantity(plan["step_time_s"], "s"), signed_quantity(plan["step_time_s"] - best, "s"),
         format_gib(plan["peak_memory_bytes"]), f"{plan['mfu']:.1%}")
        for plan in sheet["kinds"]
    ]  # fmt: skip
    told = "The best plan of each kind: another mesh, sharding or recompute."
    cells = table(("plan", "step", "loses", "memory", "MFU"), rows, text=(0,))
    return f"<h2>The best plans</h2><p>{told}</p>{cells}{_refined(sheet)}"


def _refined(sheet: PlanSheet) -> str:
    """What moving layers and recomputing by stage gain."""
    own, beyond = sheet["handed"], sheet["handed"]["beyond"]
    rows: list[tuple[str, HandedPlanSheet | RefinedPlanSheet, str]] = []
    rows += [(own["words"], own, "handed over")] if own["refined"] else []
    rows += [(beyond["words"], beyond, beyond["lacking"])] if beyond else []
    cells = [
        (words, format_quantity(plan["step_time_s"], "s"), format_quantity(plan["saves_s"], "s", 3),
         format_gib(plan["peak_memory_bytes"]), "; ".join(plan["changes"]), note)
        for words, plan, note in rows
    ]  # fmt: skip
    head = ("refined", "step", "saves", "memory", "changes", "")
    return f"<h2>Refined by stage</h2>{table(head, cells, text=(0, 4, 5))}" if cells else ""


def _why(sheet: PlanSheet) -> str:
    rows = [(loss["choice"], signed_quantity(loss["loses_s"], "s"), loss["to"], loss["words"]) for loss in sheet["why"]]
    if not rows:
        return ""
    told = "The best plan that decides one thing otherwise, and the parts of the step it loses to."
    cells = table(("instead", "loses", "to", "that plan"), rows, text=(0, 2, 3))
    return f"<h2>Why this plan</h2><p>{told}</p>{cells}"


def _next(sheet: PlanSheet) -> str:
    rows = [
        (change["what"], signed_share(change["gain"]), change["how"] or "another machine", change["words"])
        for change in sheet["next"]
    ]
    cells = table(("change", "gains", "how", "plan then"), rows, text=(0, 2, 3))
    return f"<h2>What next</h2>{cells}" if rows else ""


def _software(sheet: PlanSheet) -> str:
    rows = software(sheet)
    cells = table(("change", "gains", "how", "plan then"), rows, text=(0, 2, 3))
    return f"<h2>Other engines and features</h2>{cells}" if rows else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Axis:
    """What an axis shows, how its numbers are written, and the values it must hold."""

    name: str
    form: Callable[[float], str]
    values: Sequence[float]

    def across(self) -> Scale:
        return Scale.of(self.values, LEFT, WIDE - EDGE / 2)

    def up(self) -> Scale:
        return Scale.of(self.values, TALL - EDGE, EDGE / 3)


def _axes(x: _Axis, y: _Axis) -> str:
    """Rules, numbers and names of a chart; where few values lie across, each of them has its rule."""
    across, up, few = x.across(), y.up(), sorted(set(x.values))
    marks = []
    for value in few if len(few) <= FEW else across.ticks():
        at = across(value)
        marks.append(rule(f"M{at:.1f} {EDGE / 3:.1f}V{TALL - EDGE}"))
        marks.append(label(x.form(value), at, TALL - EDGE + 16, anchor="middle"))
    for value in up.ticks():
        at = up(value)
        marks.append(rule(f"M{LEFT} {at:.1f}H{WIDE - EDGE / 2}"))
        marks.append(label(y.form(value), LEFT - 6, at + 4, anchor="end"))
    marks.append(label(x.name, WIDE / 2, TALL - 22, anchor="middle", faint=False))
    marks.append(label(y.name, LEFT, 12, faint=False))
    return "".join(marks)


def _dot(x: float, y: float, told: str, kind: str) -> str:
    """A plan that can be pointed at and reached by keys."""
    more = f' tabindex="0" data-told="{escaped(told)}"'
    return dot(x, y, 6 if kind == "best" else 4, kind=kind, told=told, more=more)


def _chart(marks: str, note: str) -> str:
    return (
        f"<figure data-chart>{svg(WIDE, TALL, [marks])}"
        f"<figcaption>{escaped(note)}</figcaption><p class=told>Point at a dot for its plan.</p></figure>"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """Dots of a chart: x, y, what is told of it, and whether it stands out."""

    x_name: str
    y_name: str
    dots: Sequence[tuple[float, float, str, bool]]


def chart(made: Chart, note: str) -> str:
    """A figure of dots that can be pointed at."""
    x = _Axis(name=made.x_name, form=lambda value: f"{value:.3g}", values=[one[0] for one in made.dots])
    y = _Axis(name=made.y_name, form=lambda value: f"{value:.3g}", values=[one[1] for one in made.dots])
    across, up = x.across(), y.up()
    dots = [_dot(across(at), up(high), told, "best" if marked else "dot") for at, high, told, marked in made.dots]
    return _chart(_axes(x, y) + "".join(dots), note)


def _frontier(sheet: PlanSheet) -> str:
    first, second = sheet["frontier_axes"]
    (key_x, name_x, form_x), (key_y, name_y, form_y) = FORMS[first], FORMS[second]
    rows: Sequence[Mapping[str, Any]] = sheet["frontier"]
    if len(rows) < 2:
        return ""
    best: Mapping[str, Any] = {**sheet["plans"][0], "chips": sheet["chips"], "system": sheet["system"]}
    x = _Axis(name=name_x, form=form_x, values=[row[key_x] for row in (*rows, best)])
    y = _Axis(name=name_y, form=form_y, values=[row[key_y] for row in (*rows, best)])
    across, up = x.across(), y.up()

    def told(row: Mapping[str, Any]) -> str:
        return f"{row['words']} on {row['system']}: {form_x(row[key_x])}, {form_y(row[key_y])}"

    dots = [_dot(across(row[key_x]), up(row[key_y]), told(row), "dot") for row in rows]
    dots.append(_dot(across(best[key_x]), up(best[key_y]), "chosen: " + told(best), "best"))
    note = f"{len(rows)} plans that no other beats in both {first} and {second}; the chosen one is marked."
    marks = _axes(x, y) + "".join(dots)
    return f"<h2>Frontier</h2>{_chart(marks, note)}"


def _scaling(sheet: PlanSheet) -> str:
    rows = sorted((row for row in sheet["compared"] if "step_time_s" in row), key=lambda row: row["chips"])
    if len({row["chips"] for row in rows}) < 3:
        return ""
    first = rows[0]
    ideal = [first["tokens_per_s_per_chip"] * row["chips"] for row in rows]
    chips = _Axis(name="chips", form=lambda value: f"{value:,.0f}", values=[row["chips"] for row in rows])
    speed = _Axis(name="tokens/s", form=format_count, values=[row["tokens_per_s"] for row in rows] + ideal)
    across, up = chips.across(), speed.up()

    def path(values: Sequence[float]) -> str:
        return "M" + "L".join(f"{across(x):.1f} {up(y):.1f}" for x, y in zip(chips.values, values, strict=True))

    def told(row: ComparedSheet) -> str:
        days = f", {row['days']:.1f} days" if "days" in row else ""
        rate = f"{row['tokens_per_s']:,.0f} tokens/s, efficiency {row['efficiency']:.0%}"
        return f"{row['system']}: {rate}{days}; {row['words']}"

    dots = [
        _dot(across(row["chips"]), up(row["tokens_per_s"]), told(row), "best" if row["chosen"] else "dot")
        for row in rows
    ]
    note = "Tokens per second of the best plan at each size; dashed: in proportion to the smallest that fits."
    return f"<h2>Scaling</h2>{_chart(_axes(chips, speed) + rule(path(ideal), 'line') + ''.join(dots), note)}"


def _compared(sheet: PlanSheet) -> str:
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
    return f"<h2>Compared</h2>{table(head, rows, text=(0, 1, 2))}"


def _assumed(sheet: PlanSheet) -> str:
    notes = "".join(f"<li>{escaped(note)}</li>" for note in (*sheet["assumptions"], *sheet["skipped"]))
    return f"<h2>Assumed</h2><ul>{notes}</ul>"
