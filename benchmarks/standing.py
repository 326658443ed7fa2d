"""Where the plans of measured runs rank among all plans of their engines, and what the search believes they left.

    python benchmarks/standing.py [--where column=value] [--json]

Takes the headline rows of the bundled measurements, searches the space of each distinct problem once, and writes
docs/plan-standing.json and the table of docs/concepts/plan-standing.md; with --where or --json nothing is written. It
stands here because it is the one place that needs measured rows and the search at once: those two floors do not import
each other, and no user needs this to plan.
"""

from __future__ import annotations

import os

os.environ["OPENBLAS_NUM_THREADS"] = os.environ["OMP_NUM_THREADS"] = "1"

import argparse
import json
import re
import statistics
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from plan_rank import NEAR, PlanRank, plan_ranks, problem_of
from rich.console import Console
from rich.progress import track

from ridgeline.calibrate.truth.row_scenario import to_scenario
from ridgeline.calibrate.truth.rows import BUNDLED, Row, Skipped, headline, read_rows, where
from ridgeline.core.files import write_text
from ridgeline.plan.scenario import Scenario

DOCS = Path(__file__).parent.parent / "docs"
PAGE = DOCS / "concepts" / "plan-standing.md"
DATA = DOCS / "plan-standing.json"
MARKS = re.compile(r"(<!-- standing -->\n).*?(<!-- end -->)", re.DOTALL)
VERDICTS = ("near the top", "within the interval", "beyond the interval")
WORST = 15  # rows told one by one


def rows_of(filters: Sequence[str]) -> list[Row]:
    """Headline rows, or some of them."""
    return [row for row in where(headline(read_rows()), filters) if row.table != BUNDLED[1]]


def found_of(rows: Sequence[Row]) -> tuple[list[tuple[Row, PlanRank]], list[tuple[str, str]]]:
    """Every row with its rank, and rows without one with the reason."""
    problems: dict[str, list[tuple[Row, Scenario]]] = {}
    skipped: list[tuple[str, str]] = []
    for row in rows:
        made = to_scenario(row)
        if isinstance(made, Skipped):
            skipped.append((row.id, made.reason))
        else:
            problems.setdefault(problem_of(made), []).append((row, made))
    found: list[tuple[Row, PlanRank]] = []
    shown = Console(stderr=True)
    for group in track(list(problems.values()), description=f"{len(problems)} problems", console=shown):
        for (row, _), rank in zip(group, plan_ranks([scenario for _, scenario in group]), strict=True):
            if rank is None:
                skipped.append((row.id, "not predicted"))
            else:
                found.append((row, rank))
    return found, skipped


def told(row: Row, rank: PlanRank) -> dict[str, Any]:
    """One row for the JSON file; milliseconds with a decimal."""
    scenario = rank.own.scenario
    return {
        "id": row.id,
        "source": row.source,
        "model": scenario.model.id,
        "system": scenario.system.name,
        "engine": scenario.plan.engine,
        "considered": rank.considered,
        "feasible": rank.feasible,
        "faster": rank.faster,
        "share_faster": round(rank.share, 4),
        "step_ms": round(rank.own.step_time_s * 1e3, 1),
        "best_ms": round(rank.best.step_time_s * 1e3, 1) if rank.best else None,
        "left_ms": {name: round(seconds * 1e3, 1) for name, seconds in rank.gap_by_part if abs(seconds) >= 5e-5},
        "changes": list(rank.changes),
        "notes": list(rank.notes),
        "verdict": rank.verdict,
    }


def counted(lines: Sequence[dict[str, Any]], key: str) -> list[str]:
    """Rows of a table: how many stand where, by source, by engine or all together."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for line in lines:
        groups.setdefault("all" if key == "all" else line[key], []).append(line)
    made = []
    for name in sorted(groups, key=lambda name: (-len(groups[name]), name)):
        own = groups[name]
        stand = [sum(line["verdict"] == verdict for line in own) for verdict in VERDICTS]
        middle = statistics.median(line["share_faster"] for line in own)
        gap = statistics.median(1 - (line["best_ms"] or line["step_ms"]) / line["step_ms"] for line in own)
        cells = (f"{key} {name}" if key != name else name, len(own), *stand, f"{middle:.1%}", f"{gap:.1%}")
        made.append(f"| {' | '.join(map(str, cells))} |")
    return made


def page_of(lines: Sequence[dict[str, Any]], skipped: int) -> str:
    """The tables, as Markdown."""
    head = f"| rows of | n | {' | '.join(VERDICTS)} | feasible plans faster, median | gap to the best, median |"
    table = [head, "|---|---|---|---|---|---|---|"]
    table += [row for key in ("all", "source", "engine") for row in counted(lines, key)]
    beyond = [line for line in lines if line["verdict"] == VERDICTS[2]]
    beyond.sort(key=lambda line: line["best_ms"] / line["step_ms"])
    axes = Counter(change.partition(":")[0] for line in beyond for change in line["changes"])
    often = ", ".join(f"{axis} {count}" for axis, count in axes.most_common())
    worst = ["| row | step, ms | best, ms | faster | left, ms | changed | but |", "|---|---|---|---|---|---|---|"]
    for line in beyond[:WORST]:
        left = ", ".join(f"{name} {ms:,.0f}" for name, ms in list(line["left_ms"].items())[:3] if ms > 0)
        what = f"{line['id']}: {line['model']} on {line['system']}, {line['engine']}"
        cells = (what, f"{line['step_ms']:,.0f}", f"{line['best_ms']:,.0f}", f"{line['share_faster']:.0%}", left)
        worst.append(f"| {' | '.join((*cells, '; '.join(line['changes']), '; '.join(line['notes']) or '–'))} |")
    fits = sum(any("not to fit" in note for note in line["notes"]) for line in lines)
    tail = [f"{len(lines)} rows, {skipped} without a scenario; {fits} ran although predicted not to fit.", ""]
    summary = f"The best plan of the {len(beyond)} rows beyond the interval differs in {often}. The largest gaps:"
    return "\n".join([*tail, *table, "", summary, "", *worst, ""])


def main() -> None:
    parser = argparse.ArgumentParser(description="Where published plans rank among all plans of their engines.")
    parser.add_argument("--where", action="append", default=[], metavar="COLUMN=VALUE")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    found, skipped = found_of(rows_of(asked.where))
    lines = [told(row, rank) for row, rank in found]
    data = {"near": NEAR, "rows": lines, "skipped": [{"id": id, "reason": reason} for id, reason in skipped]}
    text, page = json.dumps(data, indent=1) + "\n", page_of(lines, len(skipped))
    if asked.json:
        print(text)
    else:
        print(page)
    if not asked.json and not asked.where:
        write_text(DATA, text)
        old = PAGE.read_text(encoding="utf-8")
        write_text(PAGE, MARKS.sub(lambda match: match[1] + page + match[2], old))


if __name__ == "__main__":
    main()
