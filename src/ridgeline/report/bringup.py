"""Turn what bring-up found into a sheet, and the sheet into a table."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, cast

from rich.console import Console
from rich.table import Table

from ridgeline.report.cells import clean
from ridgeline.report.sheets.bringup import BringUpSheet, CheckSheet, DeterminismSheet, FaultsSheet, WrongOpSheet


def bringup_sheet(found: Any, fault: str | None = None) -> BringUpSheet:
    """One model on one device."""
    return {
        "kind": "bringup",
        "model": found.model,
        "device": found.device,
        "verdict": "right" if found.right else "wrong",
        "findings": [cast("WrongOpSheet", asdict(finding)) for finding in found.findings],
        "ladder": [cast("CheckSheet", asdict(check)) for check in found.ladder],
        "invariances": [cast("CheckSheet", asdict(check)) for check in found.invariances],
        "determinism": cast("DeterminismSheet", _lists(asdict(found.determinism))),
        "not_run": dict(found.not_run),
        "isolated": found.isolated,
        "inventory": {"ops": dict(sorted(found.ops.items())), "signatures": found.signatures},
        "coverage": {"probed": found.probed, "unjudged": dict(found.unjudged), "left_out": list(found.cut)},
        "fault": fault,
        "fired": found.fired,
    }


def _lists(table: dict[str, Any]) -> dict[str, Any]:
    return {key: list(value) if isinstance(value, tuple) else value for key, value in table.items()}


def faults_sheet(each: list[BringUpSheet]) -> FaultsSheet:
    """All faults of a file; silent are those that never answered."""
    return {
        "kind": "bringup-faults",
        "caught": sum(bool(one["findings"]) for one in each),
        "silent": [str(one["fault"]) for one in each if not one["fired"] and not one["findings"]],
        "faults": each,
    }


def draw_bringup(sheet: BringUpSheet, console: Console) -> None:
    """The verdict, the wrong ops, and what was judged."""
    title = f"{clean(sheet['model'])} on {clean(sheet['device'])}"
    if sheet["fault"]:
        title += f", {clean(sheet['fault'])}" + ("" if sheet["fired"] or sheet["findings"] else " (never answered)")
    if not sheet["findings"]:
        console.print(f"{title}: every op that was judged is right")
    else:
        console.print(_table(sheet, f"{title}: wrong"))
    ops = sheet["inventory"]["ops"]
    if sheet["coverage"]["unjudged"]:
        names = ", ".join(str(clean(op)) for op in sheet["coverage"]["unjudged"])
        console.print(f"not judged, for want of a contract: {names}")
    console.print(
        f"{len(ops)} ops in {sheet['inventory']['signatures']} signatures of a training step in fp32 and bf16, "
        f"{sheet['coverage']['probed']} calls of the standing set; left out: {', '.join(sheet['coverage']['left_out'])}"
    )


def _table(sheet: BringUpSheet, title: str) -> Table:
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    for name in ("op", "format", "phase", "module", "broken", "measured", "limit", "calls"):
        table.add_column(name, justify="right" if name in ("measured", "limit", "calls") else "left")
    for one in sheet["findings"]:
        why = clean(one["message"]) or one["statistic"]
        table.add_row(
            clean(one["op"]), one["dtype"], one["phase"], clean(one["module"]), why, f"{one['measured']:.3g}",
            f"{one['limit']:.3g}", str(one["times"]),
        )  # fmt: skip
    return table
