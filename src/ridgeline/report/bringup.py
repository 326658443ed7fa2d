"""Draw what bring-up found."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from ridgeline.core.units import format_quantity
from ridgeline.report.cells import DASH, blocks, clean, facts, headed, listed, percent
from ridgeline.runtime.bringup.findings import BringUp, Check, FingerprintReport, OpFinding, SpeedReport
from ridgeline.runtime.bringup.msprobe.imported import ImportedDump
from ridgeline.runtime.bringup.observations import Inventory, OpSpeed, Remark

SHOWN = 8  # ops of a list on a page
LISTS = {
    "missing": "missing on the device", "fallback": "computed by the host for the device",
    "decomposed": "one kernel on the host, several on the device", "synchronising": "make the host wait",
}  # fmt: skip


def draw_dump(found: ImportedDump, console: Console) -> None:
    """The verdict of a dump, its wrong calls, and how many were judged how."""
    wrong = {one.op for one in found.findings}
    told = f"{len(wrong)} API{'s' if len(wrong) > 1 else ''} wrong" if wrong else "every call that was judged is right"
    ways = f"{found.replayed:,} by their contract, {found.by_statistics:,} by their statistics alone"
    lines: list[RenderableType] = [
        Text.assemble(clean(found.folder), ": ", (told, "bold red" if wrong else "bold green")),
        facts(
            ("dump", f"{found.dumps} of {found.framework}, task {', '.join(found.tasks)}"),
            ("judged", f"{ways}, of {found.calls:,} calls"),
            ("not judged", ", ".join(f"{api} {count}" for api, count in found.unjudged.items())),
        ),
    ]
    refused = [f"{why} ({count})" for why, count in found.unreadable.items()]
    table: list[RenderableType] = [findings_table(found.findings)] if wrong else []
    console.print(blocks(lines, table, listed("tensors that were not used", refused, most=SHOWN)))


def draw_bringup(found: BringUp, console: Console) -> None:
    """The verdict, the wrong ops, what was judged, what the device lacks, how fast it is."""
    console.print(
        blocks(
            [_verdict(found), _facts(found)],
            [findings_table(found.findings)] if found.findings else [],
            _checks(found),
            _arithmetic(found.fingerprint_report),
            *(_remarks(found.inventory, name) for name in LISTS),
            _compiler(found.inventory),
            _speed(found.speed_report) if found.speed_report else [],
        )
    )


def _verdict(found: BringUp) -> Text:
    title = f"{found.model} on {found.device}"
    if found.fault:
        title += f", {found.fault}" + ("" if found.fired or found.findings else " (never answered)")
    wrong = {one.op for one in found.findings}
    told = f"{len(wrong)} op{'s' if len(wrong) > 1 else ''} wrong" if wrong else "every op that was judged is right"
    lacks = len(found.inventory.missing)
    rest = (f", {lacks} {'is' if lacks == 1 else 'are'} missing on the device", "bold yellow") if lacks else ""
    return Text.assemble(clean(title), ": ", (told, "bold red" if wrong else "bold green"), rest)


def _facts(found: BringUp) -> Table:
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


def findings_table(findings: Sequence[OpFinding]) -> Table:
    """The wrong ops."""
    numbers = ("measured", "limit", "calls")
    table = headed(("wrong op", "format", "phase", "module", "broken", *numbers), right=numbers, overflow="fold")
    for one in findings:
        why = f"{one.statistic}: {one.message}" if one.message else one.statistic
        table.add_row(
            clean(one.op), clean(one.dtype), clean(one.phase), clean(one.module), clean(why),
            f"{one.printed_measured:.3g}", f"{one.printed_limit:.3g}", str(one.times),
        )  # fmt: skip
    return table


def _arithmetic(known: FingerprintReport | None) -> list[RenderableType]:
    if known is None:
        return []
    told = facts(*fingerprint_facts(known))
    notes = listed("unlike IEEE", known.notes, style="bold yellow")
    changed = listed("unlike the profile's fingerprint", fingerprint_changes(known), style="bold yellow")
    return [Text("arithmetic", style="bold"), told, *notes, *changed]


def fingerprint_changes(known: FingerprintReport) -> list[str]:
    """What is not as the chip's profile has it, a line for each figure."""
    return [f"{name}: {before} -> {after}" for name, (before, after) in known.changed.items()]


def fingerprint_facts(known: FingerprintReport) -> list[tuple[str, str]]:
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


def _checks(found: BringUp) -> list[RenderableType]:
    """Rungs and invariances that fail, a line for those that pass, and what was not run."""
    lines: list[RenderableType] = []
    for name, rows in (("ladder", found.ladder), ("invariances", found.invariances)):
        failed = [one for one in rows if one.verdict == "fail"]
        passed = sum(one.verdict == "pass" for one in rows)
        if rows:
            told = f"{passed} pass, {len(failed)} fail, {len(rows) - passed - len(failed)} not run"
            lines.append(Text.assemble((name, "bold"), f"  {told}"))
        lines += listed("", [_check(one) for one in failed])[1:]
    again = found.determinism
    if again.runs:
        parts = (("reordered", again.reordered), ("races", again.races))
        told = "; ".join(f"{word}: {', '.join(ops)}" for word, ops in parts if ops)
        lines.append(Text.assemble(("determinism", "bold"), f"  {again.runs} runs, ", clean(told or "the same bits")))
    return [*lines, *listed("not run", [f"{name}: {why}" for name, why in found.not_run.items()], most=SHOWN)]


def _check(one: Check) -> str:
    blame = f", {one.op}" if one.op else ""
    where = f" at {one.where}" if one.where else ""
    broken = f"{one.statistic} {one.printed_measured:.3g} > {one.printed_limit:.3g}"
    return f"{one.name} in {one.format}{where}{blame}: {broken}"


def _remarks(inventory: Inventory, name: str) -> list[RenderableType]:
    rows: Sequence[Remark] = getattr(inventory, name)
    return listed(LISTS[name], [remark(one) for one in rows], most=SHOWN, style="bold yellow")


def remark(one: Remark) -> str:
    """An op with where it was first, how often it was called, and what is the matter."""
    where = f"{one.phase} of {one.module}" if one.module else one.phase
    told = f": {one.detail}" if one.detail else ""
    return f"{one.op} ({where}, {one.calls} call{'s' if one.calls != 1 else ''}){told}"


def _compiler(inventory: Inventory) -> list[RenderableType]:
    return listed("graph breaks", inventory.graph_breaks or [], most=SHOWN, style="bold yellow")


def _speed(report: SpeedReport) -> Iterator[RenderableType]:
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
    told = [
        f"{one.ops} ops in {format_quantity(one.seconds, 's', 3)}: {one.phase}, "
        f"{one.begin or 'the model'} to {one.end or 'the model'}"
        for one in speed.stretches
    ]
    yield from listed("launch-bound stretches", told, most=3)


def speed_table(ops: Sequence[OpSpeed]) -> Table:
    """Flagged ops, or where there is none those that cost most."""
    flagged = [one for one in ops if one.flag]
    title = "slow or impossible" if flagged else "costliest"
    numbers = ("calls", "each", "at best", "share")
    table = headed((title, "format", "shapes", "where", *numbers, "bound", ""), right=numbers)
    for one in (flagged or ops)[:SHOWN]:
        shapes = ", ".join("x".join(map(str, shape)) or "1" for shape in one.shapes[:3])
        table.add_row(
            clean(one.op), clean(one.dtype), shapes, clean(f"{one.phase} {one.module}"), str(one.calls),
            format_quantity(one.seconds, "s", 3),
            DASH if one.roof_s is None else format_quantity(one.roof_s, "s", 3), percent(one.share),
            one.bound or DASH, Text(one.flag, style="bold yellow"),
        )  # fmt: skip
    return table
