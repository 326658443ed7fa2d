"""Turn an Explanation into a table of residuals, in the schema of `truth/residual_table.py`."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from ridgeline.calibrate.explain import Explanation
from ridgeline.calibrate.truth.residual_table import COLUMNS
from ridgeline.core.files import write_text
from ridgeline.core.units import DECIMAL

LONGEST_ID = 80


def residual_rows(found: Explanation) -> Iterator[dict[str, str]]:
    """One row a phase and class, in the schema of `COLUMNS`."""
    scenario, sources = found.scenario, found.analysis.timeline.about.sources
    told = json.dumps(found.table, separators=(",", ":")) if found.table else ""
    for part in found.parts:
        yield {
            "run": run_id(sources or (scenario.name,)),
            "model": scenario.model.id,
            "chip": scenario.system.chip.id,
            "chips": str(scenario.system.chips),
            "engine": scenario.plan.engine,
            "phase": part.phase,
            "class": part.class_,
            "predicted_s": f"{part.predicted_ns / DECIMAL['G']:.9f}",
            "measured_s": f"{part.measured_ns / DECIMAL['G']:.9f}",
            "residual": "" if part.residual is None else f"{part.residual:.6f}",
            "share_of_gap": f"{part.share:.6f}",
            "efficiency": "" if part.efficiency is None else f"{part.efficiency:.4f}",
            "bound": part.bound or "",
            "change": part.change,
            "source": " ".join(sources),
            "scenario": told,
        }


def run_id(sources: Sequence[str]) -> str:
    """The id of a run from the names of its trace files; `own-` tells who measured it.

    >>> run_id(["h200 llama1b_eager.json.gz", "rank1.json.gz"])
    'own-h200-llama1b-eager'
    """
    bare = re.sub(r"(\.(json|gz|sqlite|csv|et|pt|trace))+$", "", sources[0]) if sources else ""
    return f"own-{re.sub('[^A-Za-z0-9]+', '-', bare).strip('-').lower() or 'run'}"[:LONGEST_ID]


def write_residuals(found: Explanation, path: Path) -> None:
    """Write the residuals of an explanation as CSV."""
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(residual_rows(found))
    write_text(path, text.getvalue())
