"""Draw what bring-up found."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from ridgeline.core.documents import JsonMapping
from ridgeline.core.units import format_quantity, signed_share
from ridgeline.report.cells import DASH, blocks, clean, facts, header_table, list_lines, percent
from ridgeline.runtime import bringup

SHOWN = 8  # ops of a list on a page
LISTS = {
    "missing": "missing on the device", "fallback": "computed by the host for the device",
    "decomposed": "one kernel on the host, several on the device", "synchronising": "make the host wait",
}  # fmt: skip


def draw_dump(found: bringup.ImportedDump, console: Console) -> None:
    """The verdict of a dump, its wrong calls, and how many were judged how."""
    wrong = {finding.op for finding in found.findings}
    sentence = (
        f"{len(wrong)} API{'s' if len(wrong) > 1 else ''} wrong" if wrong else "every call that was judged is right"
    )
    ways = f"{found.replayed:,} by their contract, {found.by_statistics:,} by their statistics alone"
    lines: list[RenderableType] = [
        Text.assemble(clean(found.folder), ": ", (sentence, "bold red" if wrong else "bold green")),
        facts(
            ("dump", f"{found.dumps} of {found.framework}, task {', '.join(found.tasks)}"),
            ("judged", f"{ways}, of {found.calls:,} calls"),
            ("not judged", ", ".join(f"{api} {count}" for api, count in found.unjudged.items())),
        ),
    ]
    refused = [f"{why} ({count})" for why, count in found.unreadable.items()]
    table: list[RenderableType] = [findings_table(found.findings)] if wrong else []
    console.print(blocks(lines, table, list_lines("tensors that were not used", refused, most=SHOWN)))


def draw_faults(found: bringup.FaultsReport, console: Console) -> None:
    """How many faults were caught."""
    console.print(f"{found.caught} of {len(found.faults)} faults caught")


def draw_bringup(found: bringup.BringUp, console: Console) -> None:
    """The verdict, the wrong ops, what was judged, what the device lacks, how fast it is."""
    console.print(
        blocks(
            [_verdict(found), _facts(found)],
            [findings_table(found.findings)] if found.findings else [],
            _checks(found),
            _arithmetic(found.fingerprint_report),
            *(_remarks(found.inventory, name) for name in LISTS),
            list_lines("graph breaks", found.inventory.graph_breaks or [], most=SHOWN, style="bold yellow"),
            _speed(found.speed_report) if found.speed_report else [],
        )
    )


def _verdict(found: bringup.BringUp) -> Text:
    title = f"{found.model} on {found.device}"
    if found.fault:
        title += f", {found.fault}" + ("" if found.fired or found.findings else " (never answered)")
    wrong = {finding.op for finding in found.findings}
    sentence = f"{len(wrong)} op{'s' if len(wrong) > 1 else ''} wrong" if wrong else "every op that was judged is right"
    lacks = len(found.inventory.missing)
    rest = (f", {lacks} {'is' if lacks == 1 else 'are'} missing on the device", "bold yellow") if lacks else ""
    return Text.assemble(clean(title), ": ", (sentence, "bold red" if wrong else "bold green"), rest)


def _facts(found: bringup.BringUp) -> Table:
    inventory, ops = found.inventory, found.ops
    calls = ", ".join(f"{phase} {count:,}" for phase, count in inventory.phases.items())
    formats = "; ".join(f"{name}: cannot {' or '.join(lacks)}" for name, lacks in inventory.unsupported.items())
    told = found.environment
    return facts(
        ("device", ", ".join([told.get("device", ""), *(f"{k} {v}" for k, v in told.items() if k != "device")])),
        ("judged", f"{len(ops)} ops in {found.signatures} signatures of a training step in fp32 and bf16, "
         f"{found.probed} calls of the standing set"),
        ("calls of the model", calls),
        ("left out", ", ".join(found.cut)),
        ("not judged", ", ".join(found.unjudged) and f"for want of a contract: {', '.join(found.unjudged)}"),
        ("formats", formats),
    )  # fmt: skip


FINDING_HEADS = ("format", "phase", "module", "broken", "measured", "limit", "calls")


def finding_rows(findings: Sequence[bringup.OpFinding]) -> list[tuple[str, ...]]:
    return [
        (finding.op, finding.dtype, finding.phase, finding.module,
         f"{finding.statistic}: {finding.message}" if finding.message else finding.statistic,
         f"{finding.printed_measured:.3g}", f"{finding.printed_limit:.3g}", str(finding.times))
        for finding in findings
    ]  # fmt: skip


def findings_table(findings: Sequence[bringup.OpFinding]) -> Table:
    """The wrong ops."""
    rows = (map(clean, row) for row in finding_rows(findings))
    return header_table(("wrong op", *FINDING_HEADS), rows, right=FINDING_HEADS[-3:], overflow="fold")


def _arithmetic(known: bringup.FingerprintReport | None) -> list[RenderableType]:
    if known is None:
        return []
    told = facts(*fingerprint_facts(known))
    notes = list_lines("unlike IEEE", known.notes, style="bold yellow")
    changed = list_lines("unlike the profile's fingerprint", change_lines(known.changed), style="bold yellow")
    return [Text("arithmetic", style="bold"), told, *notes, *changed]


def fingerprint_facts(known: bringup.FingerprintReport) -> list[tuple[str, str]]:
    """The arithmetic unit in some lines: a name and what is said of it."""
    unit = known.known
    rows = [
        (
            f"products in {form}",
            f"{one.factor_bits}-bit factors, {one.bits:g} right bits of a long sum, sums: {one.sums}",
        )
        for form, one in unit.products.items()
    ]  # fmt: skip
    rough = (f"{name} {one.ulp:g} ulp" for name, one in unit.functions.items())
    fused = {True: "fused", False: "rounded before it is added", None: ""}[unit.fma]
    return [
        *rows, ("functions in fp32", ", ".join(rough)), ("cast to bf16", unit.cast),
        ("denormals", ", ".join(f"{form} {what}" for form, what in unit.denormals.items())),
        ("multiply-add", fused),
        ("fp8", "; ".join(f"{form} {what}" for form, what in unit.fp8.items())),
        ("allowed", ", ".join(known.allowed)),
        ("judged by", "the profile's fingerprint" if known.judged_by == "profile" else ""),
    ]  # fmt: skip


def _checks(found: bringup.BringUp) -> list[RenderableType]:
    """Rungs and invariances that fail, a line for those that pass, and what was not run."""
    lines: list[RenderableType] = []
    for name, rows in (("ladder", found.ladder), ("invariances", found.invariances)):
        failures = [row for row in rows if row.verdict == "fail"]
        passed = sum(row.verdict == "pass" for row in rows)
        if rows:
            sentence = f"{passed} pass, {len(failures)} fail, {len(rows) - passed - len(failures)} not run"
            lines.append(Text.assemble((name, "bold"), f"  {sentence}"))
        lines += list_lines("", [_check(one) for one in failures])[1:]
    again = found.determinism
    if again.runs:
        parts = (("reordered", again.reordered), ("races", again.races))
        sentence = "; ".join(f"{word}: {', '.join(ops)}" for word, ops in parts if ops)
        lines.append(
            Text.assemble(("determinism", "bold"), f"  {again.runs} runs, ", clean(sentence or "the same bits"))
        )
    return [*lines, *list_lines("not run", [f"{name}: {why}" for name, why in found.not_run.items()], most=SHOWN)]


def _check(one: bringup.Check) -> str:
    blame = f", {one.op}" if one.op else ""
    where = f" at {one.where}" if one.where else ""
    broken = f"{one.statistic} {one.printed_measured:.3g} > {one.printed_limit:.3g}"
    return f"{one.name} in {one.format}{where}{blame}: {broken}"


def _remarks(inventory: bringup.Inventory, name: str) -> list[RenderableType]:
    rows: Sequence[bringup.Remark] = getattr(inventory, name)
    return list_lines(LISTS[name], [remark(row) for row in rows], most=SHOWN, style="bold yellow")


def remark(one: bringup.Remark) -> str:
    """An op with where it was first, how often it was called, and what is the matter."""
    where = f"{one.phase} of {one.module}" if one.module else one.phase
    sentence = f": {one.detail}" if one.detail else ""
    return f"{one.op} ({where}, {one.calls} call{'s' if one.calls != 1 else ''}){sentence}"


def _speed(report: bringup.SpeedReport) -> Iterator[RenderableType]:
    speed = report.speed
    beside = (
        f"beside {speed.rates.name} ({speed.rates.source})" if speed.rates else "no chip to hold it against (--chip)"
    )
    size = " x ".join(map(str, speed.tokens))
    yield Text.assemble(
        ("speed", "bold"), f"  {size} tokens in {speed.dtype}: {format_quantity(speed.step_s, 's', 3)}, an op "
        f"that does nothing {format_quantity(speed.nothing_s, 's', 3)}; ", clean(beside),
    )  # fmt: skip
    yield speed_table(speed.ops)
    figures = [
        f"{stretch.ops} ops in {format_quantity(stretch.seconds, 's', 3)}: {stretch.phase}, "
        f"{stretch.begin or 'the model'} to {stretch.end or 'the model'}"
        for stretch in speed.stretches
    ]
    yield from list_lines("launch-bound stretches", figures, most=3)


SPEED_HEADS = ("format", "shapes", "where", "calls", "each", "at best", "share", "bound")


def speed_cells(op: bringup.OpSpeed) -> tuple[str, ...]:
    best = DASH if op.roof_s is None else format_quantity(op.roof_s, "s", 3)
    where = f"{op.phase} {op.module}"
    return (op.dtype, shapes_text(op.shapes), where, str(op.calls), format_quantity(op.seconds, "s", 3), best,
            percent(op.share))  # fmt: skip


def shapes_text(shapes: Sequence[Sequence[int]], most: int = 3) -> str:
    return ", ".join("x".join(map(str, shape)) or "1" for shape in shapes[:most])


def speed_table(ops: Sequence[bringup.OpSpeed]) -> Table:
    """Flagged ops, or where there is none those that cost most."""
    flagged = [op for op in ops if op.flag]
    title = "slow or impossible" if flagged else "costliest"
    rows = (
        (*map(clean, (op.op, *speed_cells(op), op.bound or DASH)), Text(op.flag, style="bold yellow"))
        for op in (flagged or ops)[:SHOWN]
    )
    return header_table((title, *SPEED_HEADS, ""), rows, right=SPEED_HEADS[3:7])


# -- bringup diff -----------------------------------------------------------------------------------------------------


def draw_bringup_diff(diff: bringup.ReportDiff, console: Console) -> None:
    """Print what differs, what is worse first."""
    sides = [f"{model} on {device}" for model, device in zip(diff.models, diff.devices, strict=True)]
    title = sides[0] if sides[0] == sides[1] else "  ->  ".join(sides)
    style = "bold red" if diff.worse else "bold"
    console.print(
        blocks(
            [Text.assemble(clean(title), ": ", clean("  ->  ".join(diff.verdicts)), style=style)],
            list_lines("changed", change_lines(diff.environment)),
            list_lines("newly wrong", [_finding(one) for one in diff.new], style="bold red"),
            list_lines("no longer wrong", [_finding(one) for one in diff.gone], style="bold green"),
            *(list_lines(f"newly {name}", ops, most=SHOWN, style="bold yellow") for name, ops in diff.lacks.items()),
            *(list_lines(f"no longer {name}", ops, most=SHOWN) for name, ops in diff.regained.items()),
            list_lines("fingerprint", change_lines(diff.fingerprint), style="bold yellow"),
            list_lines("ops of B alone", diff.ops, most=SHOWN),
            list_lines("ops of A alone", diff.no_longer, most=SHOWN),
            _bringup_diff_speed(diff),
        )
    )


def change_lines(changes: Mapping[str, tuple[str, str]]) -> list[str]:
    return [f"{name}: {before} -> {after}" for name, (before, after) in changes.items()]


def _finding(finding: JsonMapping) -> str:
    op, dtype, phase, module, statistic = (
        finding.get(key, "") for key in ("op", "dtype", "phase", "module", "statistic")
    )
    return f"{op} {dtype}, {phase} of {module}: {statistic}"


def _bringup_diff_speed(diff: bringup.ReportDiff) -> list[RenderableType]:
    if diff.step_ratio is None:
        return []
    whole = Text(f"all timed ops: {signed_share(diff.step_ratio - 1, unit=' %')}")
    rows = [*diff.slower, *diff.faster][:SHOWN]
    if not rows:
        return [whole]
    right = ("A", "B", "B / A")
    cells = (
        (clean(row.op), clean(row.dtype), shapes_text(row.shapes), format_quantity(row.before_s, "s", 3),
         format_quantity(row.after_s, "s", 3), signed_share(row.ratio - 1, unit=" %"))
        for row in rows
    )  # fmt: skip
    return [whole, header_table(("beyond their spread", "format", "shapes", *right), cells, right=right)]
