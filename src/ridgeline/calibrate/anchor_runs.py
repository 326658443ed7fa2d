"""Turn what `--anchor` names into measured runs, whatever holds them.

    residuals.csv      as `ridgeline explain -o` writes it
    runs.csv           columns as in `truth/training.csv`
    scenario.toml      with [measured] step_time_s = ..., or tokens_per_s_per_chip = ...
    TRACE@scenario     a trace, or a folder of one for each rank, of a run of the scenario

Bundled runs are left out: the shipped parameters have heard them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from ridgeline.calibrate.explain import explain, scenario_table
from ridgeline.calibrate.folds import is_bundled
from ridgeline.calibrate.frozen import is_frozen
from ridgeline.calibrate.residuals import residual_rows
from ridgeline.calibrate.truth.residual_table import runs_of
from ridgeline.calibrate.truth.rows import Row, read_rows
from ridgeline.core.errors import InputError, Problem, not_among
from ridgeline.core.files import SUFFIXES, read_table
from ridgeline.plan.scenario_file import read_scenario

KEYS = ("step_time_s", "tokens_per_s_per_chip", "notes")
KINDS = "a CSV of residuals or of runs, a scenario with [measured], or TRACE@SCENARIO"
LONGEST = 1e7  # seconds of a step that anybody waited for


def rows_of(text: str) -> tuple[Row, ...]:
    """The measured runs that one `--anchor` names; `InputError` where it names none."""
    path = Path(text)
    if not path.exists() and "@" in text:
        trace, _, scenario = text.rpartition("@")
        return (_traced(Path(trace), Path(scenario)),)
    if text.lower().endswith(".csv"):
        rows = tuple(row for row in read_rows(path) if not is_bundled(row) or is_frozen(row))
        if not rows:
            given, expected = f"{path}: bundled runs alone", "runs of your own"
            raise InputError(Problem(path="--anchor", given=given, expected=expected))
        return rows
    if text.lower().endswith(SUFFIXES):
        return (_stated(path),)
    todo = "`ridgeline explain SCENARIO TRACE -o FILE.csv` writes residuals"
    raise InputError(Problem(path="--anchor", given=repr(text[:80]), expected=KINDS, todo=todo))


def _traced(trace: Path, scenario: Path) -> Row:
    """A trace and its scenario as `ridgeline explain` compares them."""
    if not trace.exists():
        given = f"no file {str(trace)[:80]!r}"
        raise InputError(Problem(path="--anchor", given=given, expected="TRACE@SCENARIO, both there"))
    parts = list(residual_rows(explain(scenario, trace)))
    (run,) = runs_of(parts, str(trace))
    return _row(run["id"], trace.name, run)


def _stated(path: Path) -> Row:
    """A scenario that says what was measured."""
    table = scenario_table(path)
    measured = read_table(path).data.get("measured")
    where = str(path)
    if not isinstance(measured, Mapping):
        todo = "add [measured] with step_time_s = 9.4, or name a trace: TRACE@SCENARIO"
        raise InputError(
            Problem(path="measured", given="nothing", expected="a table [measured]", todo=todo, where=where)
        )
    metric, value = _measured(measured, where)
    scenario = read_scenario(path)
    table.pop("measured", None)
    seconds = value if metric == "step_time_s" else scenario.workload.tokens / (value * scenario.system.chips)
    run = {
        "id": f"own-{path.stem}", "measured_metric": "step_time_s", "measured_value": f"{seconds:.9g}",
        "x_scenario": json.dumps(table, separators=(",", ":")), "x_complete": "full", "x_task": "pretrain",
        "x_trust": "A",
    }  # fmt: skip
    return _row(run["id"], path.name, run)


def _measured(table: Mapping[str, Any], where: str) -> tuple[str, float]:
    """Which metric a [measured] table states, and its value."""
    problems = [not_among(f"measured.{key}", str(key), KEYS, "remove it") for key in table if key not in KEYS]
    stated = [key for key in KEYS[:2] if key in table]
    if len(stated) != 1:
        expected = "one of step_time_s and tokens_per_s_per_chip"
        given = " and ".join(stated) or "neither"
        problems.append(Problem(path="measured", given=given, expected=expected, where=where))
    for key in stated:
        value = table[key]
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < LONGEST:
            expected = "seconds of a step, above 0" if key == "step_time_s" else "tokens/s of one chip, above 0"
            problems.append(Problem(path=f"measured.{key}", given=repr(value)[:40], expected=expected, where=where))
    if problems:
        raise InputError(problems)
    value = float(table[stated[0]])
    assert math.isfinite(value)
    return stated[0], value


def _row(id: str, table: str, cells: Mapping[str, str]) -> Row:
    return Row(id=id, table=table, cells=MappingProxyType(dict(cells)))


def named(rows: Iterable[Row]) -> str:
    """Ids of some runs in a few words."""
    ids = [row.id for row in rows]
    return ", ".join(ids[:3]) + (f" and {len(ids) - 3} more" if len(ids) > 3 else "")
