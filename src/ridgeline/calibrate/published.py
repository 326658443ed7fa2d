"""Turn the list of published runs into scenarios beside what their authors measured.

    published.toml   which runs: rows of the truth tables by id, with what a row leaves blank and its source settles
    published.csv    rows that no fitted table has; they take part in no fit

A run whose row took part in the fit is predicted by the fold that left its configuration out. Unlike a row of a truth
table, a run is what its authors tell of it: where that is more than the row's cells, the scenario has more.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from types import MappingProxyType
from typing import Any

import numpy as np

from ridgeline.calibrate.dataset import Dataset
from ridgeline.calibrate.folds import bundled, shipped_folds
from ridgeline.calibrate.truth.csv_cells import Skipped
from ridgeline.calibrate.truth.row_scenario import to_scenario
from ridgeline.calibrate.truth.row_step_time import measured_step_s
from ridgeline.calibrate.truth.rows import TRUTH, Row, read_rows
from ridgeline.core.errors import InputError, Problem, near
from ridgeline.core.table import decode
from ridgeline.cost.profile import Profile, shipped_profiles
from ridgeline.plan.check import check
from ridgeline.plan.plan import Plan
from ridgeline.plan.plan_table import plan_table
from ridgeline.plan.scenario import Scenario
from ridgeline.sim import StepBatch

LIST, ROWS = TRUTH / "published.toml", TRUTH / "published.csv"
NO_PLAN: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedRun:
    """One run as its authors tell of it.

    row      its cells, what `published.toml` settles among them
    plan     decisions that no column holds, as a scenario's [plan]
    why      where that is known from
    """

    row: Row
    plan: Mapping[str, Any] = field(default_factory=lambda: NO_PLAN)
    why: str = ""

    @property
    def fitted(self) -> bool:
        """Whether its configuration took part in the fit."""
        return self.row.id in bundled() and shipped_folds().without(self.row.group) is not None

    @property
    def scenario(self) -> Scenario | Skipped:
        """What was run, assumptions and all; or why that cannot be said."""
        made = to_scenario(self.row)
        if isinstance(made, Skipped) or not self.plan:
            return made
        plan = decode(Plan, {**plan_table(made.plan), "engine": made.plan.engine, **self.plan}, "plan")
        settled = {"schedule": "vpp = ", "recompute": "recompute = "}
        told = tuple(settled[key] for key in self.plan if key in settled)
        left = (note for note in made.assumptions if not note.startswith((*told, "placement: ")))
        changed = replace(made, plan=plan, assumptions=(*(f"{key}: {self.why}" for key in self.plan), *left))
        wrong = check(changed)
        return Skipped(id=self.row.id, reason=str(wrong[0])) if wrong else changed


@cache
def published_runs() -> tuple[PublishedRun, ...]:
    """Every published run, in the order of the list.

    >>> [run.row.id for run in published_runs()][:2], published_runs()[0].fitted
    (['sc21-0001', 'sc21-0002'], False)
    """
    rows = {**bundled(), **{row.id: row for row in read_rows(ROWS)}}
    listed = tomllib.loads(LIST.read_text(encoding="utf-8"))["run"]
    return tuple(_run(entry, rows) for entry in listed)


def _run(entry: Mapping[str, Any], rows: Mapping[str, Row]) -> PublishedRun:
    id = str(entry["row"])
    if id not in rows:
        close = ", ".join(near(id, rows)) or "a row of a truth table"
        raise InputError(Problem(path="run.row", given=repr(id), expected=close, where=LIST.name))
    row = rows[id]
    cells = MappingProxyType({**row.cells, **entry.get("cells", {})})
    return PublishedRun(
        row=replace(row, cells=cells), plan=MappingProxyType(entry.get("plan", {})), why=entry.get("why", "")
    )


def published_table(
    runs: Sequence[PublishedRun], profiles: Mapping[str, Profile] | None = None
) -> tuple[Dataset, list[bool]]:
    """Runs as a table to predict, and whether each took part in the fit."""
    kept: list[tuple[PublishedRun, Scenario, float]] = []
    skipped: list[Skipped] = []
    for run in runs:
        scenario = run.scenario
        measured = scenario if isinstance(scenario, Skipped) else measured_step_s(run.row, scenario)
        if isinstance(scenario, Skipped) or isinstance(measured, Skipped):
            skipped += [one for one in (scenario, measured) if isinstance(one, Skipped)][:1]
        else:
            kept.append((run, scenario, measured))
    scenarios = tuple(scenario for _, scenario, _ in kept)
    table = Dataset(
        rows=tuple(run.row for run, _, _ in kept),
        scenarios=scenarios,
        measured_s=np.array([measured for _, _, measured in kept]),
        batch=StepBatch.of(scenarios, shipped_profiles() if profiles is None else profiles),
        skipped=tuple(skipped),
    )
    return table, [run.fitted for run, _, _ in kept]
