"""Turn what bring-up found into a sheet, and the sheet into a page of the terminal."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from math import isfinite
from sys import float_info
from typing import Any, cast

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from ridgeline.core.units import format_quantity
from ridgeline.report.cells import DASH, blocks, clean, facts, headed, listed, percent
from ridgeline.report.sheets.bringup import (
    BringUpSheet,
    CheckSheet,
    DeterminismSheet,
    DumpSheet,
    FaultsSheet,
    FingerprintSheet,
    InventorySheet,
    RemarkSheet,
    SpeedSheet,
    WrongOpSheet,
)
from ridgeline.report.sheets.plain import plain
from ridgeline.runtime.bringup.compare import print_changes

SHOWN = 8  # ops of a list on a page
LISTS = {
    "missing": "missing on the device", "fallback": "computed by the host for the device",
    "decomposed": "one kernel on the host, several on the device", "synchronising": "make the host wait",
}  # fmt: skip


def bringup_sheet(found: Any, fault: str | None = None) -> BringUpSheet:
    """One model on one device."""
    return {
        "kind": "bringup",
        "model": found.model,
        "device": found.device,
        "verdict": "right" if found.right else "wrong",
        "findings": [_wrong(finding) for finding in found.findings],
        "ladder": [_check_sheet(check) for check in found.ladder],
        "invariances": [_check_sheet(check) for check in found.invariances],
        "determinism": cast("DeterminismSheet", plain(found.determinism)),
        "not_run": dict(found.not_run),
        "isolated": found.isolated,
        "inventory": inventory_sheet(found),
        "coverage": {"probed": found.probed, "unjudged": dict(found.unjudged), "left_out": list(found.cut)},
        "speed": speed_sheet(found),
        "environment": dict(found.environment),
        "fingerprint": fingerprint_sheet(found),
        "fault": fault,
        "fired": found.fired,
    }


def _wrong(finding: Any) -> WrongOpSheet:
    """A finding whose figures JSON can hold."""
    return cast("WrongOpSheet", {key: _finite(value) for key, value in asdict(finding).items()})


def _check_sheet(check: Any) -> CheckSheet:
    return cast("CheckSheet", {key: _finite(value) for key, value in asdict(check).items()})


def _finite(value: Any) -> Any:
    """Infinities and what is no number at all as the largest number."""
    return value if not isinstance(value, float) or isfinite(value) else float_info.max


def fingerprint_sheet(found: Any) -> FingerprintSheet | None:
    """What is known of the arithmetic unit."""
    known = found.fingerprint
    if known is None:
        return None
    told: dict[str, Any] = {"allowed": list(found.allowed), "judged_by": "profile" if found.stored else "taken"}
    told |= {"notes": list(known.notes(frozenset(found.allowed), found.stored)), "changed": {}}
    if found.stored is not None:
        told |= {"changed": plain(print_changes(asdict(found.stored), asdict(known)))}
    return cast("FingerprintSheet", asdict(known) | told)


def inventory_sheet(found: Any) -> InventorySheet:
    """What the device was asked for, and how it did it."""
    held = found.inventory
    return {
        "ops": dict(sorted(found.ops.items())),
        "signatures": found.signatures,
        "phases": held.phases,
        "rows": plain(held.rows),
        "missing": plain(held.missing),
        "fallback": plain(held.fallback),
        "decomposed": plain(held.decomposed),
        "synchronising": plain(held.synchronising),
        "unsupported": plain(held.unsupported),
        "graph_breaks": plain(held.graph_breaks),
    }


def speed_sheet(found: Any) -> SpeedSheet | None:
    """How fast it was; None where nothing was timed."""
    speed = found.speed
    if speed is None:
        return None
    return {
        "chip": speed.rates.name if speed.rates else None,
        "source": speed.rates.source if speed.rates else "",
        "tokens": list(speed.tokens),
        "dtype": speed.dtype,
        "nothing_s": speed.nothing_s,
        "step_s": speed.step_s,
        "flagged": len(speed.flagged),
        "fallback": [one.op for one in found.inventory.fallback],
        "stretches": plain(speed.stretches),
        "ops": plain(speed.ops),
    }


def faults_sheet(each: list[BringUpSheet]) -> FaultsSheet:
    """All faults of a file; silent are those that never answered."""
    return {
        "kind": "bringup-faults",
        "caught": sum(bool(one["findings"]) for one in each),
        "silent": [str(one["fault"]) for one in each if not one["fired"] and not one["findings"]],
        "faults": each,
    }


def dump_sheet(found: Any) -> DumpSheet:
    """What was found in a dump of msprobe."""
    return {
        "kind": "bringup-msprobe",
        "folder": found.folder,
        "framework": found.framework,
        "tasks": list(found.tasks),
        "dumps": found.dumps,
        "calls": found.calls,
        "verdict": "right" if found.right else "wrong",
        "findings": [_wrong(finding) for finding in found.findings],
        "replayed": found.replayed,
        "by_statistics": found.by_statistics,
        "unjudged": dict(found.unjudged),
        "unreadable": dict(found.unreadable),
    }


def draw_dump(sheet: DumpSheet, console: Console) -> None:
    """The verdict of a dump, its wrong calls, and how many were judged how."""
    wrong = {one["op"] for one in sheet["findings"]}
    told = f"{len(wrong)} API{'s' if len(wrong) > 1 else ''} wrong" if wrong else "every call that was judged is right"
    ways = f"{sheet['replayed']:,} by their contract, {sheet['by_statistics']:,} by their statistics alone"
    lines: list[RenderableType] = [
        Text.assemble(clean(sheet["folder"]), ": ", (told, "bold red" if wrong else "bold green")),
        facts(
            ("dump", f"{sheet['dumps']} of {sheet['framework']}, task {', '.join(sheet['tasks'])}"),
            ("judged", f"{ways}, of {sheet['calls']:,} calls"),
            ("not judged", ", ".join(f"{api} {count}" for api, count in sheet["unjudged"].items())),
        ),
    ]
    refused = [f"{why} ({count})" for why, count in sheet["unreadable"].items()]
    table: list[RenderableType] = [findings_table(sheet["findings"])] if wrong else []
    console.print(blocks(lines, table, listed("tensors that were not used", refused, most=SHOWN)))


def draw_bringup(sheet: BringUpSheet, console: Console) -> None:
    """The verdict, the wrong ops, what was judged, what the device lacks, how fast it is."""
    console.print(
        blocks(
            [_verdict(sheet), _facts(sheet)],
            [findings_table(sheet["findings"])] if sheet["findings"] else [],
            _checks(sheet),
            _arithmetic(sheet["fingerprint"]),
            *(_remarks(sheet["inventory"], name) for name in LISTS),
            _compiler(sheet["inventory"]),
            _speed(sheet["speed"]) if sheet["speed"] else [],
        )
    )


def _verdict(sheet: BringUpSheet) -> Text:
    title = f"{sheet['model']} on {sheet['device']}"
    if sheet["fault"]:
        title += f", {sheet['fault']}" + ("" if sheet["fired"] or sheet["findings"] else " (never answered)")
    wrong = {one["op"] for one in sheet["findings"]}
    told = f"{len(wrong)} op{'s' if len(wrong) > 1 else ''} wrong" if wrong else "every op that was judged is right"
    lacks = len(sheet["inventory"]["missing"])
    rest = (f", {lacks} {'is' if lacks == 1 else 'are'} missing on the device", "bold yellow") if lacks else ""
    return Text.assemble(clean(title), ": ", (told, "bold red" if wrong else "bold green"), rest)


def _facts(sheet: BringUpSheet) -> Table:
    held, seen = sheet["inventory"], sheet["coverage"]
    calls = ", ".join(f"{phase} {count:,}" for phase, count in held["phases"].items())
    formats = "; ".join(f"{name}: cannot {' or '.join(lacks)}" for name, lacks in held["unsupported"].items())
    told = sheet["environment"]
    return facts(
        ("device", ", ".join([told.get("device", ""), *(f"{k} {v}" for k, v in told.items() if k != "device")])),
        ("judged", f"{len(held['ops'])} ops in {held['signatures']} signatures of a training step in fp32 and bf16, "
         f"{seen['probed']} calls of the standing set"),
        ("calls of the model", calls),
        ("left out", ", ".join(seen["left_out"])),
        ("not judged", ", ".join(seen["unjudged"]) and f"for want of a contract: {', '.join(seen['unjudged'])}"),
        ("formats", formats),
    )  # fmt: skip


def findings_table(findings: list[WrongOpSheet]) -> Table:
    """The wrong ops."""
    numbers = ("measured", "limit", "calls")
    table = headed(("wrong op", "format", "phase", "module", "broken", *numbers), right=numbers, overflow="fold")
    for one in findings:
        why = f"{one['statistic']}: {one['message']}" if one["message"] else one["statistic"]
        table.add_row(
            clean(one["op"]), clean(one["dtype"]), clean(one["phase"]), clean(one["module"]), clean(why),
            f"{one['measured']:.3g}", f"{one['limit']:.3g}", str(one["times"]),
        )  # fmt: skip
    return table


def _arithmetic(known: FingerprintSheet | None) -> list[RenderableType]:
    if known is None:
        return []
    told = facts(*fingerprint_facts(known))
    notes = listed("unlike IEEE", known["notes"], style="bold yellow")
    changed = listed("unlike the profile's fingerprint", fingerprint_changes(known), style="bold yellow")
    return [Text("arithmetic", style="bold"), told, *notes, *changed]


def fingerprint_changes(known: FingerprintSheet) -> list[str]:
    """What is not as the chip's profile has it, a line for each figure."""
    return [f"{name}: {before} -> {after}" for name, (before, after) in known["changed"].items()]


def fingerprint_facts(known: FingerprintSheet) -> list[tuple[str, str]]:
    """The arithmetic unit in some lines: a name and what is said of it."""
    rows = [
        (
            f"products in {form}",
            f"{one['factor_bits']}-bit factors, {one['bits']:g} right bits of a long sum, sums: {one['sums']}",
        )
        for form, one in known["products"].items()
    ]  # fmt: skip
    rough = (f"{name} {one['ulp']:g} ulp" for name, one in known["functions"].items())
    fused = {True: "fused", False: "rounded before it is added", None: ""}[known["fma"]]
    return [
        *rows, ("functions in fp32", ", ".join(rough)), ("cast to bf16", known["cast"]),
        ("denormals", ", ".join(f"{form} {what}" for form, what in known["denormals"].items())),
        ("multiply-add", fused),
        ("fp8", "; ".join(f"{form} {what}" for form, what in known["fp8"].items())),
        ("allowed", ", ".join(known["allowed"])),
        ("judged by", "the profile's fingerprint" if known["judged_by"] == "profile" else ""),
    ]  # fmt: skip


def _checks(sheet: BringUpSheet) -> list[RenderableType]:
    """Rungs and invariances that fail, a line for those that pass, and what was not run."""
    lines: list[RenderableType] = []
    for name, rows in (("ladder", sheet["ladder"]), ("invariances", sheet["invariances"])):
        failed = [one for one in rows if one["verdict"] == "fail"]
        passed = sum(one["verdict"] == "pass" for one in rows)
        if rows:
            told = f"{passed} pass, {len(failed)} fail, {len(rows) - passed - len(failed)} not run"
            lines.append(Text.assemble((name, "bold"), f"  {told}"))
        lines += listed("", [_check(one) for one in failed])[1:]
    again = sheet["determinism"]
    if again["runs"]:
        parts = (("reordered", again["reordered"]), ("races", again["races"]))
        told = "; ".join(f"{word}: {', '.join(ops)}" for word, ops in parts if ops)
        lines.append(
            Text.assemble(("determinism", "bold"), f"  {again['runs']} runs, ", clean(told or "the same bits"))
        )
    return [*lines, *listed("not run", [f"{name}: {why}" for name, why in sheet["not_run"].items()], most=SHOWN)]


def _check(one: CheckSheet) -> str:
    blame = f", {one['op']}" if one["op"] else ""
    where = f" at {one['where']}" if one["where"] else ""
    return (
        f"{one['name']} in {one['format']}{where}{blame}: {one['statistic']} {one['measured']:.3g} > {one['limit']:.3g}"
    )


def _remarks(held: InventorySheet, name: str) -> list[RenderableType]:
    rows = cast("list[RemarkSheet]", held[name])  # type: ignore[literal-required]
    return listed(LISTS[name], [remark(one) for one in rows], most=SHOWN, style="bold yellow")


def remark(one: RemarkSheet) -> str:
    """An op with where it was first, how often it was called, and what is the matter."""
    where = f"{one['phase']} of {one['module']}" if one["module"] else one["phase"]
    told = f": {one['detail']}" if one["detail"] else ""
    return f"{one['op']} ({where}, {one['calls']} call{'s' if one['calls'] != 1 else ''}){told}"


def _compiler(held: InventorySheet) -> list[RenderableType]:
    return listed("graph breaks", held["graph_breaks"] or [], most=SHOWN, style="bold yellow")


def _speed(speed: SpeedSheet) -> Iterator[RenderableType]:
    beside = f"beside {speed['chip']} ({speed['source']})" if speed["chip"] else "no chip to hold it against (--chip)"
    size = " x ".join(map(str, speed["tokens"]))
    yield Text.assemble(
        ("speed", "bold"), f"  {size} tokens in {speed['dtype']}: {format_quantity(speed['step_s'], 's', 3)}, an op "
        f"that does nothing {format_quantity(speed['nothing_s'], 's', 3)}; ", clean(beside),
    )  # fmt: skip
    yield speed_table(speed)
    told = [
        f"{one['ops']} ops in {format_quantity(one['seconds'], 's', 3)}: {one['phase']}, "
        f"{one['begin'] or 'the model'} to {one['end'] or 'the model'}"
        for one in speed["stretches"]
    ]
    yield from listed("launch-bound stretches", told, most=3)


def speed_table(speed: SpeedSheet) -> Table:
    """Flagged ops, or where there is none those that cost most."""
    flagged = [one for one in speed["ops"] if one["flag"]]
    title = "slow or impossible" if flagged else "costliest"
    numbers = ("calls", "each", "at best", "share")
    table = headed((title, "format", "shapes", "where", *numbers, "bound", ""), right=numbers)
    for one in (flagged or speed["ops"])[:SHOWN]:
        shapes = ", ".join("x".join(map(str, shape)) or "1" for shape in one["shapes"][:3])
        table.add_row(
            clean(one["op"]), clean(one["dtype"]), shapes, clean(f"{one['phase']} {one['module']}"), str(one["calls"]),
            format_quantity(one["seconds"], "s", 3),
            DASH if one["roof_s"] is None else format_quantity(one["roof_s"], "s", 3), percent(one["share"]),
            one["bound"] or DASH, Text(one["flag"], style="bold yellow"),
        )  # fmt: skip
    return table
