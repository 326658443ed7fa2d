"""Turn an Explanation into a table of residuals, and such a table back into measured Rows that validate and fit read.

One line is one phase and class of one step of one chip; the measured seconds of a run's lines sum to its step, so that
the file is at once a list of what to look at and a measured run. Each line carries the scenario as JSON, with files it
refers to written out: the table can be sent to somebody else and still says what ran.
"""

from __future__ import annotations

import csv
import io
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ridgeline.core.errors import InputError, Problem
from ridgeline.core.files import read_table, write_text
from ridgeline.core.units import DECIMAL
from ridgeline.plan.scenario_file import apply_settings, self_contained

if TYPE_CHECKING:
    from ridgeline.calibrate.explain import Explanation

COLUMNS = (
    "run", "model", "chip", "chips", "engine", "phase", "class", "predicted_s", "measured_s", "residual",
    "share_of_gap", "efficiency", "bound", "change", "source", "scenario",
)  # fmt: skip
"""The schema of a residual file: seconds of one step and chip, residual = predicted / measured - 1 (blank where nothing
was measured), share of the gap with sign, efficiency against the roofline where shapes were recorded; the scenario as
JSON, blank where the explanation was not made from a file."""
NEEDED = ("run", "phase", "class", "measured_s", "scenario")
SAME = {"model_name": "model", "x_chip": "chip", "gpus": "chips", "x_engine": "engine"}  # a training table's: ours
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


def scenario_table(path: Path, settings: Iterable[str] = ()) -> dict[str, Any]:
    """The table of a scenario file with settings applied and the files it names written out.

    >>> scenario_table(Path("examples/llama3.2-1b-1xh200.toml"), ["plan.engine=torch-compile"])["plan"]["engine"]
    'torch-compile'
    """
    table = self_contained(read_table(path).data, path.parent)
    apply_settings(table, settings)
    return table


def runs_of(lines: Iterable[Mapping[str, str]], where: str) -> Iterator[dict[str, str]]:
    """The measured runs of a residual table, as cells of a training table; seconds of a run are the sum of its lines.

    >>> line = {"phase": "forward", "run": "own-a", "scenario": "{}"}
    >>> parts = [line | {"class": "matmul", "measured_s": "0.1"}, line | {"class": "loss", "measured_s": "0.02"}]
    >>> [run] = runs_of(parts, "")
    >>> run["id"], run["measured_metric"], run["measured_value"]
    ('own-a', 'step_time_s', '0.120000000')
    """
    held: dict[tuple[str, str], list[Mapping[str, str]]] = {}
    spent: dict[tuple[str, str], float] = {}
    for number, line in enumerate(lines, 2):
        key = (line["run"] or f"line-{number}", line["scenario"])
        held.setdefault(key, []).append(line)
        spent[key] = spent.get(key, 0.0) + _seconds(line["measured_s"], f"{where}:{number}")
    for (id, scenario), parts in held.items():
        about = {column: parts[0].get(own, "") for column, own in SAME.items()}
        yield about | {
            "id": id, "measured_metric": "step_time_s", "measured_value": f"{spent[id, scenario]:.9f}",
            "x_scenario": scenario or "{}", "x_complete": "full", "x_task": "pretrain", "x_trust": "A",
        }  # fmt: skip


def _seconds(text: str, where: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value) or value < 0:
        expected = "seconds of a step, 0 or more"
        raise InputError(Problem(path="measured_s", given=repr(text[:40]), expected=expected, where=where))
    return value
