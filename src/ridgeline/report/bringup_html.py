"""Draw a bring-up as one HTML file: the verdict, wrong ops, what the device lacks, how fast it is."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from ridgeline.core.units import format_quantity
from ridgeline.report.bringup import LISTS, fingerprint_changes, fingerprint_facts, remark
from ridgeline.report.cells import DASH, percent
from ridgeline.report.html import HOUSE, document, escaped, facts, svg, table
from ridgeline.runtime.bringup.findings import BringUp, FaultsReport, OpFinding, SpeedReport
from ridgeline.runtime.bringup.msprobe.imported import ImportedDump
from ridgeline.runtime.bringup.observations import Inventory, OpSpeed

STYLE = (
    HOUSE
    + """
.right { color: #2f8f5b; } .wrong { color: #c8382c; }
.bar { fill: var(--in); } .slow { fill: var(--out); } .impossible { fill: #c8382c; }
"""
)
ROWS = 400  # signatures on the page
SHOWN = 40  # timed ops
BAR = 120  # pixels of a whole share


def bringup_page(found: BringUp) -> str:
    """The whole page; every text of a report is escaped."""
    inventory = found.inventory
    right = found.verdict == "right"
    told = (
        (found.verdict, "verdict"),
        (f"{len({one.op for one in found.findings})}", "wrong ops"),
        (f"{len(inventory.missing)}", "missing ops"),
        (f"{len(found.ops)}", "ops of a training step"),
        (f"{found.signatures}", "signatures judged"),
        (f"{found.probed}", "calls of the standing set"),
    )
    title = f"{found.model} on {found.device}"
    fault = f", {found.fault}" if found.fault else ""
    verdict = "every op that was judged is right" if right else "wrong"
    body = (
        f"<h1>Bring-up of {escaped(title + fault)}: "
        f'<span class="{"right" if right else "wrong"}">{verdict}</span></h1>{facts(told)}'
        f"<p>{escaped(', '.join(f'{key} {value}' for key, value in found.environment.items()))}</p>"
        f"{_findings(found.findings)}{_checks(found)}{_arithmetic(found)}{''.join(_inventory(inventory))}"
        f"{_coverage(found)}{_speed(found.speed_report) if found.speed_report else ''}{_rows(inventory)}"
    )
    return document(title=f"Ridgeline: bring-up of {title}", body=body, style=STYLE)


def faults_page(found: FaultsReport) -> str:
    """Every fault of a file, with the first op that was named for it."""
    rows = [
        (one.fault or "", "caught" if one.findings else "silent" if not one.fired else "missed",
         one.findings[0].op if one.findings else DASH, one.findings[0].module if one.findings else "",
         one.findings[0].phase if one.findings else "")
        for one in found.faults
    ]  # fmt: skip
    told = ((f"{found.caught} of {len(found.faults)}", "faults caught"), (f"{len(found.silent)}", "silent"))
    body = (
        f"<h1>Faults of a device</h1>{facts(told)}{table(('fault', '', 'op', 'module', 'phase'), rows, text=range(5))}"
    )
    return document(title="Ridgeline: faults of a device", body=body, style=STYLE)


def dump_page(found: ImportedDump) -> str:
    """What was found in a dump of msprobe."""
    told = (
        (found.verdict, "verdict"), (f"{found.calls:,}", "calls"),
        (f"{found.replayed:,}", "judged by contract"), (f"{found.by_statistics:,}", "judged by statistics"),
    )  # fmt: skip
    rest = [*((api, count) for api, count in found.unjudged.items()), *found.unreadable.items()]
    more = f"<h2>Not judged</h2>{table(('', 'calls'), rest)}" if rest else ""
    body = f"<h1>A dump of msprobe: {escaped(found.folder)}</h1>{facts(told)}{_findings(found.findings)}{more}"
    return document(title="Ridgeline: a dump of msprobe", body=body, style=STYLE)


def _findings(findings: Sequence[OpFinding]) -> str:
    if not findings:
        return ""
    rows = [
        (one.op, one.dtype, one.phase, one.module,
         f"{one.statistic}: {one.message}" if one.message else one.statistic,
         f"{one.printed_measured:.3g}", f"{one.printed_limit:.3g}", one.times)
        for one in findings
    ]  # fmt: skip
    heads = ("op", "format", "phase", "module", "broken", "measured", "limit", "calls")
    return f"<h2>Wrong ops</h2>{table(heads, rows, text=range(5))}"


def _checks(found: BringUp) -> str:
    """Rungs, invariances and repeated runs; what fails first."""
    parts = []
    for name, checks in (("Ladder", found.ladder), ("Invariances", found.invariances)):
        ordered = sorted(checks, key=lambda one: ("fail", "pass", "not run").index(one.verdict))
        rows = [
            (one.name, one.format, one.verdict, one.where, one.op or one.reason,
             f"{one.printed_measured:.3g}", f"{one.printed_limit:.3g}")
            for one in ordered
        ]  # fmt: skip
        heads = ("", "format", "", "where", "op, or why it was not run", "measured", "limit")
        parts += [f"<h2>{name}</h2>{table(heads, rows, text=(0, 1, 2, 3, 4))}"] if rows else []
    again = found.determinism
    if again.runs:
        lists = (("reordered", again.reordered), ("races", again.races))
        told = [f"{word}: {', '.join(ops)}" for word, ops in lists if ops] or ["every op gave the same bits"]
        parts.append(f"<h2>The same step {again.runs} times</h2><ul>{_items(told)}</ul>")
    if found.not_run:
        parts.append(f"<h2>Not run</h2><ul>{_items(f'{name}: {why}' for name, why in found.not_run.items())}</ul>")
    return "".join(parts)


def _arithmetic(found: BringUp) -> str:
    known = found.fingerprint_report
    if known is None:
        return ""
    rows = [pair for pair in fingerprint_facts(known) if pair[1]]
    notes = f"<ul>{_items(known.notes)}</ul>" if known.notes else ""
    changed = fingerprint_changes(known)
    unlike = f"<h3>Unlike the profile's fingerprint</h3><ul>{_items(changed)}</ul>" if changed else ""
    return f"<h2>Arithmetic</h2>{table(('', ''), rows, text=(0, 1))}{notes}{unlike}"


def _inventory(inventory: Inventory) -> Iterator[str]:
    lists: dict[str, list[str]] = {
        title: [remark(one) for one in getattr(inventory, name)] for name, title in LISTS.items()
    }
    lists["graph breaks"] = list(inventory.graph_breaks or ())
    lists["formats"] = [f"{name}: cannot {' or '.join(lacks)}" for name, lacks in inventory.unsupported.items()]
    for title, items in lists.items():
        if items:
            yield f"<h2>{escaped(title.capitalize())}</h2><ul>{_items(items)}</ul>"


def _items(items: Iterable[str]) -> str:
    return "".join(f"<li>{escaped(item)}</li>" for item in items)


def _coverage(found: BringUp) -> str:
    inventory = found.inventory
    rows = [
        *((f"calls in {phase}", f"{count:,}") for phase, count in inventory.phases.items()),
        ("left out", ", ".join(found.cut) or DASH),
        ("not judged, for want of a contract", ", ".join(found.unjudged) or DASH),
    ]
    return f"<h2>What was judged</h2>{table(('', ''), rows, text=(0, 1))}"


def _speed(report: SpeedReport) -> str:
    speed = report.speed
    beside = f"{speed.rates.name} ({speed.rates.source})" if speed.rates else "no chip"
    size = " x ".join(map(str, speed.tokens))
    about = (
        f"{size} tokens in {speed.dtype}: {format_quantity(speed.step_s, 's', 3)} of ops, beside {beside}. "
        f"An op that does nothing takes {format_quantity(speed.nothing_s, 's', 3)}. No part of the verdict."
    )
    rows = []
    for one in sorted(speed.ops, key=lambda one: not one.flag)[:SHOWN]:
        shapes = ", ".join("x".join(map(str, shape)) or "1" for shape in one.shapes[:3])
        best = DASH if one.roof_s is None else format_quantity(one.roof_s, "s", 3)
        where = f"{one.phase} {one.module}"
        rows.append((
            _named(one.op), one.dtype, shapes, where, one.calls, format_quantity(one.seconds, "s", 3), best,
            percent(one.share), one.bound, one.flag,
        ))  # fmt: skip
    heads = ("op", "format", "shapes", "where", "calls", "each", "at best", "share", "bound", "")
    told = [
        (f"{one.begin or 'the model'} to {one.end or 'the model'}", one.phase, one.ops,
         format_quantity(one.seconds, "s", 3))
        for one in speed.stretches[:20]
    ]  # fmt: skip
    runs = (
        f"<h2>Launch-bound stretches</h2>{table(('where', 'phase', 'ops', 'time'), told, text=(0, 1))}" if told else ""
    )
    chart = _chart(speed.ops)
    return f"<h2>Speed</h2><p>{escaped(about)}</p>{chart}{table(heads, rows, text=(0, 1, 2, 3, 8, 9))}{runs}"


def _named(op: str) -> str:
    """An op without what most have in common."""
    return op.removeprefix("aten.").removesuffix(".default")


def _chart(ops: Sequence[OpSpeed]) -> str:
    """Share of the roof of the ops that cost most, as bars."""
    known = [one for one in ops if one.share is not None][:20]
    if not known:
        return ""
    marks = []
    for number, one in enumerate(known):
        y, share = number * 16, min(one.share or 0.0, 1.5)
        kind = one.flag or "bar"
        name = f"{_named(one.op)} {one.phase} {percent(one.share)}"
        marks.append(
            f'<rect class="{escaped(kind)}" x="0" y="{y}" width="{max(share * 2 * BAR, 1):.1f}" height="12"/>'
            f'<text class="faint" x="{max(share * 2 * BAR, 1) + 6:.1f}" y="{y + 10}">{escaped(name)}</text>'
        )
    marks.append(f'<path class="line" d="M{2 * BAR} 0V{16 * len(known)}"/>')
    caption = "Share of the roof of the ops that cost most; the line is all that is possible."
    return f"<figure>{svg(760, 16 * len(known) + 4, marks)}<figcaption>{caption}</figcaption></figure>"


def _rows(inventory: Inventory) -> str:
    rows = [
        (one.op, ", ".join(one.dtypes[:4]),
         ", ".join("x".join(map(str, shape)) or "1" for shape in one.shapes[:4]),
         f"{one.phase} {one.module}", one.calls, one.model_calls)
        for one in inventory.rows[:ROWS]
    ]  # fmt: skip
    more = len(inventory.rows) - len(rows)
    note = f"<p>{more} more in the JSON.</p>" if more > 0 else ""
    heads = ("op", "formats", "shapes", "first in", "calls", "of the model")
    inside = table(heads, rows, text=(0, 1, 2, 3))
    return f"<h2>Signatures</h2><details><summary>{len(inventory.rows)} captured</summary>{inside}{note}</details>"
