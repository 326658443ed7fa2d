"""Turn the sheet of a bring-up into one HTML file: the verdict, wrong ops, what the device lacks, how fast it is."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from ridgeline.core.units import format_quantity
from ridgeline.report.bringup import LISTS, fingerprint_changes, fingerprint_facts, remark
from ridgeline.report.cells import DASH, percent
from ridgeline.report.html import HOUSE, document, escaped, facts, svg, table
from ridgeline.report.sheets.bringup import (
    BringUpSheet,
    DumpSheet,
    FaultsSheet,
    InventorySheet,
    SpeedSheet,
    WrongOpSheet,
)

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
# parts of a report that have tables of their own
TOLD = frozenset(BringUpSheet.__annotations__)


def bringup_page(sheet: BringUpSheet) -> str:
    """The whole page; every text of a report is escaped."""
    held, seen = sheet["inventory"], sheet["coverage"]
    right = sheet["verdict"] == "right"
    told = (
        (sheet["verdict"], "verdict"),
        (f"{len({one['op'] for one in sheet['findings']})}", "wrong ops"),
        (f"{len(held['missing'])}", "missing ops"),
        (f"{len(held['ops'])}", "ops of a training step"),
        (f"{held['signatures']}", "signatures judged"),
        (f"{seen['probed']}", "calls of the standing set"),
    )
    title = f"{sheet['model']} on {sheet['device']}"
    fault = f", {sheet['fault']}" if sheet["fault"] else ""
    verdict = "every op that was judged is right" if right else "wrong"
    body = (
        f"<h1>Bring-up of {escaped(title + fault)}: "
        f'<span class="{"right" if right else "wrong"}">{verdict}</span></h1>{facts(told)}'
        f"<p>{escaped(', '.join(f'{key} {value}' for key, value in sheet['environment'].items()))}</p>"
        f"{_findings(sheet['findings'])}{_checks(sheet)}{_arithmetic(sheet)}{_further(sheet)}{''.join(_inventory(held))}"
        f"{_coverage(sheet)}{_speed(sheet['speed']) if sheet['speed'] else ''}{_rows(held)}"
    )
    return document(title=f"Ridgeline: bring-up of {title}", body=body, style=STYLE)


def faults_page(sheet: FaultsSheet) -> str:
    """Every fault of a file, with the first op that was named for it."""
    rows = [
        (one["fault"] or "", "caught" if one["findings"] else "silent" if not one["fired"] else "missed",
         one["findings"][0]["op"] if one["findings"] else DASH, one["findings"][0]["module"] if one["findings"] else "",
         one["findings"][0]["phase"] if one["findings"] else "")
        for one in sheet["faults"]
    ]  # fmt: skip
    told = ((f"{sheet['caught']} of {len(sheet['faults'])}", "faults caught"), (f"{len(sheet['silent'])}", "silent"))
    body = (
        f"<h1>Faults of a device</h1>{facts(told)}{table(('fault', '', 'op', 'module', 'phase'), rows, text=range(5))}"
    )
    return document(title="Ridgeline: faults of a device", body=body, style=STYLE)


def dump_page(sheet: DumpSheet) -> str:
    """What was found in a dump of msprobe."""
    told = (
        (sheet["verdict"], "verdict"), (f"{sheet['calls']:,}", "calls"),
        (f"{sheet['replayed']:,}", "judged by contract"), (f"{sheet['by_statistics']:,}", "judged by statistics"),
    )  # fmt: skip
    rest = [*((api, count) for api, count in sheet["unjudged"].items()), *sheet["unreadable"].items()]
    more = f"<h2>Not judged</h2>{table(('', 'calls'), rest)}" if rest else ""
    body = f"<h1>A dump of msprobe: {escaped(sheet['folder'])}</h1>{facts(told)}{_findings(sheet['findings'])}{more}"
    return document(title="Ridgeline: a dump of msprobe", body=body, style=STYLE)


def _findings(findings: list[WrongOpSheet]) -> str:
    if not findings:
        return ""
    rows = [
        (one["op"], one["dtype"], one["phase"], one["module"],
         f"{one['statistic']}: {one['message']}" if one["message"] else one["statistic"],
         f"{one['measured']:.3g}", f"{one['limit']:.3g}", one["times"])
        for one in findings
    ]  # fmt: skip
    heads = ("op", "format", "phase", "module", "broken", "measured", "limit", "calls")
    return f"<h2>Wrong ops</h2>{table(heads, rows, text=range(5))}"


def _checks(sheet: BringUpSheet) -> str:
    """Rungs, invariances and repeated runs; what fails first."""
    parts = []
    for name, checks in (("Ladder", sheet["ladder"]), ("Invariances", sheet["invariances"])):
        ordered = sorted(checks, key=lambda one: ("fail", "pass", "not run").index(one["verdict"]))
        rows = [
            (one["name"], one["format"], one["verdict"], one["where"], one["op"] or one["reason"],
             f"{one['measured']:.3g}", f"{one['limit']:.3g}")
            for one in ordered
        ]  # fmt: skip
        heads = ("", "format", "", "where", "op, or why it was not run", "measured", "limit")
        parts += [f"<h2>{name}</h2>{table(heads, rows, text=(0, 1, 2, 3, 4))}"] if rows else []
    again = sheet["determinism"]
    if again["runs"]:
        lists = (("reordered", again["reordered"]), ("races", again["races"]))
        told = [f"{word}: {', '.join(ops)}" for word, ops in lists if ops] or ["every op gave the same bits"]
        parts.append(f"<h2>The same step {again['runs']} times</h2><ul>{_items(told)}</ul>")
    if sheet["not_run"]:
        parts.append(f"<h2>Not run</h2><ul>{_items(f'{name}: {why}' for name, why in sheet['not_run'].items())}</ul>")
    return "".join(parts)


def _arithmetic(sheet: BringUpSheet) -> str:
    known = sheet["fingerprint"]
    if known is None:
        return ""
    rows = [pair for pair in fingerprint_facts(known) if pair[1]]
    notes = f"<ul>{_items(known['notes'])}</ul>" if known["notes"] else ""
    changed = fingerprint_changes(known)
    unlike = f"<h3>Unlike the profile's fingerprint</h3><ul>{_items(changed)}</ul>" if changed else ""
    return f"<h2>Arithmetic</h2>{table(('', ''), rows, text=(0, 1))}{notes}{unlike}"


def _further(sheet: BringUpSheet) -> str:
    """Parts of a report that this page knows nothing of."""
    return "".join(
        f"<h2>{escaped(key.replace('_', ' ').capitalize())}</h2>{_any(value)}"
        for key, value in sheet.items()
        if key not in TOLD and value not in (None, [], {}, "")
    )


def _any(value: Any) -> str:
    if isinstance(value, list) and value and all(isinstance(one, Mapping) for one in value):
        heads = list(dict.fromkeys(key for one in value for key in one))
        return table(heads, [[_short(one.get(head, "")) for head in heads] for one in value], text=range(len(heads)))
    if isinstance(value, Mapping):
        return table(("", ""), [(key, _short(part)) for key, part in value.items()], text=(0, 1))
    return f"<p>{escaped(_short(value))}</p>"


def _short(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return value if isinstance(value, str) else json.dumps(value)


def _inventory(held: InventorySheet) -> Iterator[str]:
    lists: dict[str, list[str]] = {
        title: [remark(one) for one in held[name]]  # type: ignore[literal-required]
        for name, title in LISTS.items()
    }
    lists["graph breaks"] = held["graph_breaks"] or []
    lists["formats"] = [f"{name}: cannot {' or '.join(lacks)}" for name, lacks in held["unsupported"].items()]
    for title, items in lists.items():
        if items:
            yield f"<h2>{escaped(title.capitalize())}</h2><ul>{_items(items)}</ul>"


def _items(items: Iterable[str]) -> str:
    return "".join(f"<li>{escaped(item)}</li>" for item in items)


def _coverage(sheet: BringUpSheet) -> str:
    held, seen = sheet["inventory"], sheet["coverage"]
    rows = [
        *((f"calls in {phase}", f"{count:,}") for phase, count in held["phases"].items()),
        ("left out", ", ".join(seen["left_out"]) or DASH),
        ("not judged, for want of a contract", ", ".join(seen["unjudged"]) or DASH),
    ]
    return f"<h2>What was judged</h2>{table(('', ''), rows, text=(0, 1))}"


def _speed(speed: SpeedSheet) -> str:
    beside = f"{speed['chip']} ({speed['source']})" if speed["chip"] else "no chip"
    size = " x ".join(map(str, speed["tokens"]))
    about = (
        f"{size} tokens in {speed['dtype']}: {format_quantity(speed['step_s'], 's', 3)} of ops, beside {beside}. "
        f"An op that does nothing takes {format_quantity(speed['nothing_s'], 's', 3)}. No part of the verdict."
    )
    rows = []
    for one in sorted(speed["ops"], key=lambda one: not one["flag"])[:SHOWN]:
        shapes = ", ".join("x".join(map(str, shape)) or "1" for shape in one["shapes"][:3])
        best = DASH if one["roof_s"] is None else format_quantity(one["roof_s"], "s", 3)
        where = f"{one['phase']} {one['module']}"
        rows.append((
            _named(one["op"]), one["dtype"], shapes, where, one["calls"], format_quantity(one["seconds"], "s", 3), best,
            percent(one["share"]), one["bound"], one["flag"],
        ))  # fmt: skip
    heads = ("op", "format", "shapes", "where", "calls", "each", "at best", "share", "bound", "")
    told = [
        (f"{one['begin'] or 'the model'} to {one['end'] or 'the model'}", one["phase"], one["ops"],
         format_quantity(one["seconds"], "s", 3))
        for one in speed["stretches"][:20]
    ]  # fmt: skip
    runs = (
        f"<h2>Launch-bound stretches</h2>{table(('where', 'phase', 'ops', 'time'), told, text=(0, 1))}" if told else ""
    )
    chart = _chart(speed)
    return f"<h2>Speed</h2><p>{escaped(about)}</p>{chart}{table(heads, rows, text=(0, 1, 2, 3, 8, 9))}{runs}"


def _named(op: str) -> str:
    """An op without what most have in common."""
    return op.removeprefix("aten.").removesuffix(".default")


def _chart(speed: SpeedSheet) -> str:
    """Share of the roof of the ops that cost most, as bars."""
    known = [one for one in speed["ops"] if one["share"] is not None][:20]
    if not known:
        return ""
    marks = []
    for number, one in enumerate(known):
        y, share = number * 16, min(one["share"] or 0.0, 1.5)
        kind = one["flag"] or "bar"
        name = f"{_named(one['op'])} {one['phase']} {percent(one['share'])}"
        marks.append(
            f'<rect class="{escaped(kind)}" x="0" y="{y}" width="{max(share * 2 * BAR, 1):.1f}" height="12"/>'
            f'<text class="faint" x="{max(share * 2 * BAR, 1) + 6:.1f}" y="{y + 10}">{escaped(name)}</text>'
        )
    marks.append(f'<path class="line" d="M{2 * BAR} 0V{16 * len(known)}"/>')
    caption = "Share of the roof of the ops that cost most; the line is all that is possible."
    return f"<figure>{svg(760, 16 * len(known) + 4, marks)}<figcaption>{caption}</figcaption></figure>"


def _rows(held: InventorySheet) -> str:
    rows = [
        (one["op"], ", ".join(one["dtypes"][:4]),
         ", ".join("x".join(map(str, shape)) or "1" for shape in one["shapes"][:4]),
         f"{one['phase']} {one['module']}", one["calls"], one["model_calls"])
        for one in held["rows"][:ROWS]
    ]  # fmt: skip
    more = len(held["rows"]) - len(rows)
    note = f"<p>{more} more in the JSON.</p>" if more > 0 else ""
    heads = ("op", "formats", "shapes", "first in", "calls", "of the model")
    inside = table(heads, rows, text=(0, 1, 2, 3))
    return f"<h2>Signatures</h2><details><summary>{len(held['rows'])} captured</summary>{inside}{note}</details>"
