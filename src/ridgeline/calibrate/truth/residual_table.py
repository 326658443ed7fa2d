"""The table of residuals that `ridgeline explain -o` writes, and its way back into measured runs.

One line is one phase and class of one step of one chip; the measured seconds of a run's lines sum to its step, so that
the file is at once a list of what to look at and a measured run. Each line carries the scenario as JSON, with files it
refers to written out: the table can be sent to somebody else and still says what ran.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping

from ridgeline.core.errors import InputError, Problem

COLUMNS = (
    "run", "model", "chip", "chips", "engine", "phase", "class", "predicted_s", "measured_s", "residual",
    "share_of_gap", "efficiency", "bound", "change", "source", "scenario",
)  # fmt: skip
"""The schema of a residual file: seconds of one step and chip, residual = predicted / measured - 1 (blank where nothing
was measured), share of the gap with sign, efficiency against the roofline where shapes were recorded; the scenario as
JSON, blank where the explanation was not made from a file."""
NEEDED = ("run", "phase", "class", "measured_s", "scenario")
SAME = {"model_name": "model", "x_chip": "chip", "gpus": "chips", "x_engine": "engine"}  # a training table's: ours


def runs_of(lines: Iterable[Mapping[str, str]], where: str) -> Iterator[dict[str, str]]:
    """The measured runs of a residual table, as cells of a training table; seconds of a run are the sum of its lines.

    >>> line = {"phase": "forward", "run": "own-a", "scenario": "{}"}
    >>> parts = [line | {"class": "matmul", "measured_s": "0.1"}, line | {"class": "loss", "measured_s": "0.02"}]
    >>> [run] = runs_of(parts, "")
    >>> run["id"], run["measured_metric"], run["measured_value"]
    ('own-a', 'step_time_s', '0.120000000')
    """
    parts_of: dict[tuple[str, str], list[Mapping[str, str]]] = {}
    spent: dict[tuple[str, str], float] = {}
    for number, line in enumerate(lines, 2):
        key = (line["run"] or f"line-{number}", line["scenario"])
        parts_of.setdefault(key, []).append(line)
        spent[key] = spent.get(key, 0.0) + _seconds(line["measured_s"], f"{where}:{number}")
    for (id, scenario), parts in parts_of.items():
        about = {column: parts[0].get(part_column, "") for column, part_column in SAME.items()}
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
        expected_text = "seconds of a step, 0 or more"
        raise InputError(Problem(path="measured_s", given=repr(text[:40]), expected=expected_text, where=where))
    return value
