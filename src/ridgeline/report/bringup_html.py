"""Draw what bring-up found as a page: first what is wrong, then what was judged, the arithmetic, and how fast it is."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from ridgeline.core.units import format_quantity
from ridgeline.report.bringup import (
    LISTS,
    SPEED_HEADS,
    change_lines,
    fingerprint_facts,
    remark,
    shapes_text,
    speed_cells,
)
from ridgeline.report.cells import DASH, percent
from ridgeline.report.html import (
    VerdictCell,
    details,
    escape_text,
    facts,
    label,
    list_items,
    rule,
    section,
    svg,
    table,
)
from ridgeline.report.skeleton import PageHead, page_document
from ridgeline.runtime import bringup

ROWS = 400  # signatures on the page
SHOWN = 40  # timed ops
MOST_NAMED = 4  # wrong ops in the first sentence
NAMES, BAR, RIGHT, LINE = 320, 300, 140, 18  # pixels of the chart of shares: names, a whole share, beyond it, a line
STYLE = (
    ".bar { fill: var(--in); } .slow, .fallback { fill: var(--out); } .impossible { fill: var(--bad); }"
    " .roof { stroke: var(--ink); stroke-dasharray: 4 3; fill: none; }"
)
UNITS: Mapping[str, str] = {
    **dict.fromkeys(("beyond", "far", "bias", "shift", "row", "column", "slope"), "σ"),
    **dict.fromkeys(("power", "typical", "block"), "× expected"),
    **dict.fromkeys(("unequal", "nonfinite", "shape"), "elements"),
    "divergence": "nats",
}
"""What the figures of a statistic count: deviations of right results, times the square that is expected, elements."""
NO_RESULT = ("raised", "died", "hung", "missing", "race", "format")  # statistics of calls without a figure
UNITS_NOTE = (
    "σ: deviations of right results from each other. × expected: mean square error over that of right results. "
    "nats: divergence of next-token distributions."
)


def bringup_page(found: bringup.BringUp, command: str = "") -> str:
    """The whole page; every text of a report is escaped."""
    inventory = found.inventory
    wrong = len({finding.op for finding in found.findings})
    figures = (
        (found.verdict, "verdict"),
        (f"{wrong}", "wrong ops"),
        (f"{len(inventory.missing)}", "missing ops"),
        (f"{len(found.ops)}", "ops of a training step"),
        (f"{found.signatures}", "signatures judged"),
        (f"{found.probed:,}", "calls of the standing set"),
    )
    body = (
        f"{facts(figures)}{_findings(found.findings)}{_check_tables(found)}{_arithmetic_section(found)}"
        f"{''.join(_inventory(inventory))}{_coverage(found)}"
        f"{_speed_section(found.speed_report) if found.speed_report else ''}{_rows(inventory)}"
    )
    head = PageHead(
        verb="bringup",
        question=f"Does {found.device} compute {found.model} right?",
        answer=_answer(found),
        certainty=_certainty(found),
        subject=(
            ("Model", f"{found.model}{', ' + '; '.join(found.cut) if found.cut else ''}"),
            ("Device", ", ".join(f"{key} {value}" for key, value in found.environment.items())),
            ("Fault", found.fault or ""),
        ),
        evidence=_software(found.environment),
        command=command,
    )
    return page_document(head, body, style=STYLE)


def _software(environment: Mapping[str, str]) -> str:
    return f"Judged by contracts in fp64 on the host, torch {environment.get('torch', 'of unknown version')}."


def _answer(found: bringup.BringUp) -> str:
    """What is wrong, in a sentence; and why, where the arithmetic says it."""
    ops = list(dict.fromkeys(_op_name(finding.op) for finding in found.findings))
    notes = found.fingerprint_report.notes if found.fingerprint_report else ()
    lacks = len(found.inventory.missing)
    missing = f" {lacks} op{'s are' if lacks > 1 else ' is'} missing on the device." if lacks else ""
    if not ops:
        return f"✓ Every op that was judged is right.{missing}"
    named = ", ".join(ops[:MOST_NAMED]) + (f" and {len(ops) - MOST_NAMED} more" if len(ops) > MOST_NAMED else "")
    why = f" Its arithmetic says why: {notes[0]}." if notes else ""
    return f"✗ {len(ops)} op{'s are' if len(ops) > 1 else ' is'} wrong: {named}.{why}{missing}"


def _certainty(found: bringup.BringUp) -> str:
    failed = sum(check.verdict == "fail" for check in (*found.ladder, *found.invariances))
    run = sum(check.verdict != "not run" for check in (*found.ladder, *found.invariances))
    unjudged = f"; {len(found.unjudged)} ops have no contract and were not judged" if found.unjudged else ""
    return (
        f"{found.signatures:,} signatures of a training step and {found.probed:,} calls of the standing set judged; "
        f"{failed} of {run} rungs and invariances fail{unjudged}."
    )


def faults_page(found: bringup.FaultsReport, command: str = "") -> str:
    """Every fault of a file, with the first op that was named for it."""
    rows = [
        (fault.fault or "", _fault_verdict(fault),
         _op_name(fault.findings[0].op) if fault.findings else DASH,
         fault.findings[0].module if fault.findings else "", fault.findings[0].phase if fault.findings else "")
        for fault in found.faults
    ]  # fmt: skip
    figures = ((f"{found.caught} of {len(found.faults)}", "faults caught"), (f"{len(found.silent)}", "silent"))
    first = found.faults[0] if found.faults else None
    head = PageHead(
        verb="bringup",
        question="Are the faults of a device found?",
        answer=f"{found.caught} of {len(found.faults)} faults are caught; {len(found.silent)} never answered.",
        certainty="Each fault was loaded alone, and every op that it touched was judged by its contract.",
        subject=(("Model", first.model if first else ""), ("Device", first.device if first else "")),
        evidence=_software(first.environment if first else {}),
        command=command,
    )
    cells = table(("fault", "", "op named first", "module", "phase"), rows, text=range(5))
    return page_document(head, f"{facts(figures)}<h2>Faults</h2>{cells}")


def _fault_verdict(fault: bringup.BringUp) -> VerdictCell:
    if fault.findings:
        return VerdictCell(good=True, word="caught")
    return VerdictCell(good=False, word="missed" if fault.fired else "silent")


def dump_page(found: bringup.ImportedDump, command: str = "") -> str:
    """What was found in a dump of msprobe."""
    figures = (
        (found.verdict, "verdict"), (f"{found.calls:,}", "calls"),
        (f"{found.replayed:,}", "judged by contract"), (f"{found.by_statistics:,}", "judged by statistics"),
    )  # fmt: skip
    rest = [*((api, count) for api, count in found.unjudged.items()), *found.unreadable.items()]
    wrong = {finding.op for finding in found.findings}
    head = PageHead(
        verb="bringup",
        question=f"Are the calls of the dump {found.folder} right?",
        answer=f"✗ {len(wrong)} API{'s are' if len(wrong) > 1 else ' is'} wrong: {', '.join(sorted(wrong)[:4])}."
        if wrong
        else "✓ Every call that was judged is right.",
        certainty=f"{found.replayed:,} of {found.calls:,} calls were judged by their contract and "
        f"{found.by_statistics:,} by their statistics alone.",
        subject=(("Dump", f"{found.dumps} of {found.framework}, task {', '.join(found.tasks)}"),),
        evidence="Judged by contracts in fp64 on the host.",
        command=command,
    )
    return page_document(
        head, f"{facts(figures)}{_findings(found.findings)}{section('Not judged', ('', 'calls'), rest)}"
    )


# -- tables -----------------------------------------------------------------------------------------------------------


def figure_text(statistic: str, value: float) -> str:
    """A measured figure or a limit with what it counts.

    >>> figure_text("power", 116863.2), figure_text("far", 1.96), figure_text("raised", 1.0)
    ('116,863 × expected', '1.96 σ', '–')
    """
    if statistic in NO_RESULT or not statistic:
        return DASH
    unit = UNITS.get(statistic, "")
    number = f"{value:,.0f}" if 1e3 <= value < 1e12 else f"{value:.3g}"
    return f"{number} {unit}".rstrip()


def _findings(findings: Sequence[bringup.OpFinding]) -> str:
    """The wrong ops; an op that is wrong several times is named once."""
    rows, before = [], ""
    for finding in findings:
        name = _op_name(finding.op)
        broken = f"{finding.statistic}: {finding.message}" if finding.message else finding.statistic
        rows.append(
            ("" if name == before else name, finding.dtype, finding.phase, finding.module, broken,
             figure_text(finding.statistic, finding.printed_measured),
             figure_text(finding.statistic, finding.printed_limit), f"{finding.times:,}")
        )  # fmt: skip
        before = name
    heads = ("op", "format", "phase", "module", "broken", "measured", "limit", "calls")
    note = f'<p class="note">{UNITS_NOTE}</p>' if rows else ""
    return section("Wrong ops", heads, rows, text=range(5)) + note


ORDER = ("fail", "pass", "not run")


def _check_tables(found: bringup.BringUp) -> str:
    """Rungs, invariances and repeated runs; what fails first."""
    parts = []
    for name, checks in (("Ladder", found.ladder), ("Invariances", found.invariances)):
        ordered = sorted(checks, key=lambda check: ORDER.index(check.verdict))
        heads = ("", "format", "", "where", "measured", "limit", "ops, or why it was not run")
        parts.append(section(name, heads, list(_check_rows(ordered, found)), text=(0, 1, 2, 3, 6)))
    again = found.determinism
    if again.runs:
        lists = (("reordered", again.reordered), ("races", again.races))
        figures = [f"{word}: {', '.join(ops)}" for word, ops in lists if ops] or ["every op gave the same bits"]
        parts.append(list_items(f"The same step {again.runs} times", figures))
    if found.not_run:
        parts.append(list_items("Not run", (f"{name}: {why}" for name, why in found.not_run.items())))
    return "".join(parts)


def _check_rows(checks: Iterable[bringup.Check], found: bringup.BringUp) -> Iterator[tuple[object, ...]]:
    """Lines of checks; the ops that are wrong anyway are named in the first line alone."""
    wrong = ", ".join(sorted({finding.op for finding in found.findings}))
    before = ""
    for check in checks:
        run = check.verdict != "not run"
        verdict: object = VerdictCell(good=check.verdict == "pass", word=check.verdict) if run else check.verdict
        ops = "the wrong ops above" if check.op and check.op == wrong else _op_names(check.op)
        ops = "″" if ops and ops == before else ops
        before = before if ops == "″" else ops
        figures = (
            (figure_text(check.statistic, check.printed_measured), figure_text(check.statistic, check.printed_limit))
            if run
            else (DASH, DASH)
        )
        yield check.name, check.format, verdict, check.where, *figures, ops or check.reason


def _op_names(ops: str) -> str:
    return ", ".join(_op_name(op) for op in ops.split(", "))


def _arithmetic_section(found: bringup.BringUp) -> str:
    known = found.fingerprint_report
    if known is None:
        return ""
    rows = [pair for pair in fingerprint_facts(known) if pair[1]]
    notes = f"<ul>{_items(known.notes)}</ul>" if known.notes else ""
    changed = change_lines(known.changed)
    unlike = f"<h3>Unlike the profile's fingerprint</h3><ul>{_items(changed)}</ul>" if changed else ""
    return f"<h2>Arithmetic</h2>{table(('', ''), rows, text=(0, 1))}{notes}{unlike}"


def _inventory(inventory: bringup.Inventory) -> Iterator[str]:
    lists: dict[str, list[str]] = {
        title: [remark(note) for note in getattr(inventory, name)] for name, title in LISTS.items()
    }
    lists["graph breaks"] = list(inventory.graph_breaks or ())
    lists["formats"] = [f"{name}: cannot {' or '.join(lacks)}" for name, lacks in inventory.unsupported.items()]
    for title, items in lists.items():
        if items:
            yield list_items(title.capitalize(), items)


def _items(items: Iterable[str]) -> str:
    return "".join(f"<li>{escape_text(item)}</li>" for item in items)


def _coverage(found: bringup.BringUp) -> str:
    inventory = found.inventory
    rows = [
        *((f"calls in {phase}", f"{count:,}") for phase, count in inventory.phases.items()),
        ("left out", ", ".join(found.cut) or DASH),
        ("not judged, for want of a contract", ", ".join(found.unjudged) or DASH),
    ]
    return section("What was judged", ("", ""), rows, text=(0, 1))


# -- speed ------------------------------------------------------------------------------------------------------------


def _speed_section(report: bringup.SpeedReport) -> str:
    speed = report.speed
    beside = f"{speed.rates.name} ({speed.rates.source})" if speed.rates else "no chip"
    size = " x ".join(map(str, speed.tokens))
    about = (
        f"{size} tokens in {speed.dtype}: {format_quantity(speed.step_s, 's', 3)} of ops, beside {beside}. "
        f"An op that does nothing takes {format_quantity(speed.nothing_s, 's', 3)}. No part of the verdict."
    )
    ops = sorted(speed.ops, key=lambda op: not op.flag)[:SHOWN]
    heads = ("op", *SPEED_HEADS, "")
    rows = [(_op_name(op.op), *speed_cells(op), op.bound, op.flag) for op in ops]
    columns = [place for place in range(len(heads)) if place == 0 or any(row[place] not in ("", DASH) for row in rows)]
    cells = table(
        [heads[place] for place in columns],
        [[row[place] for place in columns] for row in rows],
        text=[at for at, place in enumerate(columns) if place in (0, 1, 2, 3, 8, 9)],
    )
    figures = [
        (f"{stretch.begin or 'the model'} to {stretch.end or 'the model'}", stretch.phase, stretch.ops,
         format_quantity(stretch.seconds, "s", 3))
        for stretch in speed.stretches[:20]
    ]  # fmt: skip
    runs = section("Launch-bound stretches", ("where", "phase", "ops", "time"), figures, text=(0, 1))
    return f"<h2>Speed</h2><p>{escape_text(about)}</p>{_shares(speed.ops)}{cells}{runs}"


def _op_name(op: str) -> str:
    """An op without what most have in common.

    >>> _op_name("aten.mm.default"), _op_name("aten.add.Tensor")
    ('mm', 'add.Tensor')
    """
    return op.removeprefix("aten.").removesuffix(".default")


def _shares(ops: Sequence[bringup.OpSpeed]) -> str:
    """Share of the roof of the ops that cost most, as bars."""
    known = [op for op in ops if op.share is not None][:20]
    if not known:
        return ""
    bottom, marks = LINE * len(known), []
    for number, op in enumerate(known):
        y, share = number * LINE, min(op.share or 0.0, 1.3)
        name, wide = f"{_op_name(op.op)} {op.phase}", max(share * BAR, 1)
        marks.append(label(name[:46], NAMES - 8, y + 12, anchor="end", faint=False))
        marks.append(
            f'<rect class="{escape_text(op.flag or "bar")}" x="{NAMES}" y="{y + 2}" width="{wide:.1f}" height="12"/>'
        )
        marks.append(label(f"{percent(op.share)} {op.flag}".strip(), NAMES + wide + 6, y + 12))
    marks.append(rule(f"M{NAMES + BAR} 0V{bottom}", "roof"))
    caption = "Share of the roof of the ops that cost most; the dashed line is all that is possible."
    drawing = svg(NAMES + BAR + RIGHT, bottom + 4, marks, "Share of the roof by op")
    return f"<figure>{drawing}<figcaption>{caption}</figcaption></figure>"


def _rows(inventory: bringup.Inventory) -> str:
    rows = [
        (_op_name(row.op), ", ".join(row.dtypes[:4]), shapes_text(row.shapes, 4), f"{row.phase} {row.module}",
         row.calls, row.model_calls)
        for row in inventory.rows[:ROWS]
    ]  # fmt: skip
    more = len(inventory.rows) - len(rows)
    note = f'<p class="note">{more} more in the JSON.</p>' if more > 0 else ""
    heads = ("op", "formats", "shapes", "first in", "calls", "of the model")
    inside = table(heads, rows, text=(0, 1, 2, 3))
    return details("Signatures", f"{len(inventory.rows)} captured", inside + note)
