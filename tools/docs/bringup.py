"""Write the reports of real machines into `concepts/bringup.md`, from `docs/bringup/*.json`.

    python -m tools docs bringup                          rewrite the page
    python -m tools docs bringup --check                  fail when the page is old, or a finding is not explained
    python -m tools docs bringup --store NAME REPORT      store what the page needs of a report (`ridgeline bringup -o`)

NAME says the machine and the mode: `cpu`, `h200-eager`, `h200-compiled`, `h200-fp8`.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ridgeline.core.files import write_text
from ridgeline.core.units import format_quantity
from ridgeline.runtime.bringup import read_report
from tools.pages import DOCS, replace_block, write_or_check

STORE, PAGE = DOCS / "bringup", DOCS / "concepts" / "bringup.md"
TIMED = 12  # ops of a report that are kept
# why a finding of a machine is as it is: the device, the op, what it does
EXPLAINED = (
    (
        "cpu",
        "aten.native_layer_norm_backward",
        "the host's kernel adds the gradients of weight and bias over rows in the tensors' 16 bits",
    ),
    (
        "cpu",
        "aten.rsqrt",
        "elements at the end of a row that fill no vector take the root in 16 bits, those before it in 32",
    ),
    (
        "cpu",
        "aten.sum",
        "with several threads, each one's sum is rounded to the tensor's 16 bits before they are added",
    ),
)


def store(name: str, path: Path) -> None:
    """Keep what the page shows; signatures one by one, and paths of the machine, are left out."""
    report = read_report(path)
    inventory = report["inventory"]
    inventory["rows"] = []
    for finding in report["findings"]:
        finding["repro"] = ""
    speed = report.get("speed")
    if speed:
        flagged_ops = [row for row in speed["ops"] if row["flag"]]
        speed["ops"] = [*flagged_ops, *(row for row in speed["ops"] if not row["flag"])][:TIMED]
        speed["stretches"] = speed["stretches"][:3]
    STORE.mkdir(exist_ok=True)
    write_text(STORE / f"{name}.json", json.dumps(report, indent=1, allow_nan=False) + "\n")


def explanation(report: dict[str, Any], op: str) -> str:
    """Why an op is found on a device; empty where nobody knows."""
    kind = report["device"].partition(":")[0]
    return next((why for device, name, why in EXPLAINED if device == kind and op.startswith(name)), "")


def summary(reports: dict[str, dict[str, Any]]) -> Iterator[str]:
    """A line for each report."""
    yield "| report | device | torch | model | verdict | ops | signatures | standing calls | rungs, invariances |"
    yield "|---|---|---|---|---|---|---|---|---|"
    for name, report in reports.items():
        inventory, environment = report["inventory"], report["environment"]
        checks = [*report.get("ladder", []), *report.get("invariances", [])]
        passes = f"{sum(check['verdict'] == 'pass' for check in checks)} of {len(checks)} pass" if checks else "–"
        ops = {finding["op"] for finding in report["findings"]}
        verdict = f"{len(ops)} op{'s' if len(ops) > 1 else ''} wrong" if ops else "right"
        yield (
            f"| {name} | {environment.get('device', '')} | {environment.get('torch', '')} | {report['model']} "
            f"| {verdict} "
            f"| {len(inventory['ops'])} | {inventory['signatures']} | {report['coverage']['probed']} | {passes} |"
        )


def details(name: str, one: dict[str, Any]) -> Iterator[str]:
    """What a report says beyond its line."""
    yield f"\n### {name}\n"
    yield f"`ridgeline bringup {one['model']} --device {one['device']}`: " + ", ".join(
        f"{key} {value}" for key, value in one["environment"].items() if key != "device"
    )
    if one["findings"]:
        yield "\n| wrong op | format | phase | first at | statistic | measured | limit | why |"
        yield "|---|---|---|---|---|---|---|---|"
        for finding in one["findings"]:
            why = explanation(one, finding["op"]) or "**not explained**"
            yield (
                f"| `{finding['op']}` | {finding['dtype']} | {finding['phase']} | {finding['module']} "
                f"| {finding['statistic']} | {finding['measured']:.3g} | {finding['limit']:.3g} | {why} |"
            )
    inventory = one["inventory"]
    lists = {
        word: inventory[word] for word in ("missing", "fallback", "decomposed", "synchronising") if inventory[word]
    }
    for word, rows in lists.items():
        yield f"\n{word.capitalize()}: " + ", ".join(f"`{row['op']}`" for row in rows) + "."
    if inventory["unsupported"]:
        lacks = (f"{form} ({', '.join(what)})" for form, what in inventory["unsupported"].items())
        yield "\nFormats that it cannot hold, add or multiply: " + ", ".join(lacks) + "."
    yield from speeds(one.get("speed"))


def speeds(speed: dict[str, Any] | None) -> Iterator[str]:
    """The ops that are flagged, or cost most."""
    if not speed:
        return
    size = " x ".join(map(str, speed["tokens"]))
    reference = f", beside {speed['chip']} ({speed['source']})" if speed["chip"] else ""
    yield f"\nSpeed of {size} tokens in {speed['dtype']}{reference}; {speed['flagged']} signatures are flagged:\n"
    yield "| op | shapes | phase | each | at best | share | |\n|---|---|---|---|---|---|---|"
    for row in speed["ops"][:6]:
        shapes = ", ".join("x".join(map(str, shape)) or "1" for shape in row["shapes"][:2])
        best = "–" if row["roof_s"] is None else format_quantity(row["roof_s"], "s", 3)
        share = "–" if row["share"] is None else f"{row['share']:.0%}"
        seconds = format_quantity(row["seconds"], "s", 3)
        remark = row["flag"] or row["bound"]
        yield f"| `{row['op']}` | {shapes} | {row['phase']} | {seconds} | {best} | {share} | {remark} |"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--store", nargs=2, metavar=("NAME", "REPORT"))


def run(arguments: argparse.Namespace) -> int:
    """Store a report where one is given, then write or check the page."""
    if arguments.store:
        store(arguments.store[0], Path(arguments.store[1]))
    reports = {path.stem: read_report(path) for path in sorted(STORE.glob("*.json"))}
    body = "\n".join([*summary(reports), *(line for name, report in reports.items() for line in details(name, report))])
    new = replace_block(PAGE.read_text(encoding="utf-8"), "reports", body, "/reports")
    if arguments.check and "**not explained**" in new:
        print("docs/concepts/bringup.md: a finding has no line in EXPLAINED of tools/docs/bringup.py")
        return 1
    return write_or_check(PAGE, new, check=arguments.check, command="docs bringup")
