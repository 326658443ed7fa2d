"""Turn a calibration and measured runs of one user into the calibration of that user: anchored, with uncertainty.

    prior       offsets of the calibration; how far one user's may lie from them: `Components`
    posterior   the conditional mean of offsets and of the effects beside them, given the runs (`cost.anchoring`)

The steps are not linear in offsets, so the slopes are taken again where the last round ended (Gauss-Newton). A run that
contradicts the others, or all that is known, gets more noise: as normal noise whose variance is itself uncertain, a
Student distribution of four degrees of freedom, would have it. What `--anchor` may name:

    residuals.csv      as `ridgeline explain -o` writes it
    runs.csv           columns as in `truth/training.csv`
    scenario.toml      with [measured] step_time_s = ..., or tokens_per_s_per_chip = ...
    TRACE@scenario     a trace, or a folder of one for each rank, of a run of the scenario
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

import numpy as np

from ridgeline.calibrate.explain import Explanation, explain, scenario_table
from ridgeline.calibrate.folds import Dataset, dataset_of, is_bundled, is_frozen
from ridgeline.calibrate.truth.rows import RESIDUAL_COLUMNS, Row, read_rows, runs_of
from ridgeline.core.arrays import Array
from ridgeline.core.documents import JsonMapping
from ridgeline.core.errors import InputError, Problem, not_among
from ridgeline.core.files import SUFFIXES, read_table, spreadsheet_cell, write_text
from ridgeline.core.units import DECIMAL
from ridgeline.cost import PARAMETERS, Calibration
from ridgeline.cost.anchoring import APART, Anchored, AnchorRun, Components, Sensitivity, covariance
from ridgeline.plan.scenario_file import read_scenario
from ridgeline.sim import default_calibration
from ridgeline.sim.batches import sensitivities

KEYS = ("step_time_s", "tokens_per_s_per_chip", "notes")
KINDS = "a CSV of residuals or of runs, a scenario with [measured], or TRACE@SCENARIO"
LONGEST = 1e7  # seconds of a step that anybody waited for


def rows_of(text: str) -> tuple[Row, ...]:
    """The measured runs that one `--anchor` names; `InputError` where it names none."""
    path = Path(text)
    if not path.exists() and "@" in text:
        trace, _, scenario = text.rpartition("@")
        return (_trace_row(Path(trace), Path(scenario)),)
    if text.lower().endswith(".csv"):
        # the shipped parameters have heard bundled runs
        rows = tuple(row for row in read_rows(path) if not is_bundled(row) or is_frozen(row))
        if not rows:
            given_text, expected_text = f"{path}: bundled runs alone", "runs of your own"
            raise InputError(Problem(path="--anchor", given=given_text, expected=expected_text))
        return rows
    if text.lower().endswith(SUFFIXES):
        return (_scenario_row(path),)
    todo = "`ridgeline explain SCENARIO TRACE -o FILE.csv` writes residuals"
    raise InputError(Problem(path="--anchor", given=repr(text[:80]), expected=KINDS, todo=todo))


def _trace_row(trace: Path, scenario: Path) -> Row:
    """A trace and its scenario as `ridgeline explain` compares them."""
    if not trace.exists():
        given_text = f"no file {str(trace)[:80]!r}"
        raise InputError(Problem(path="--anchor", given=given_text, expected="TRACE@SCENARIO, both there"))
    parts = list(residual_rows(explain(scenario, trace)))
    (run,) = runs_of(parts, str(trace))
    return Row(id=run["id"], table=trace.name, cells=MappingProxyType(run))


def _scenario_row(path: Path) -> Row:
    """A training step that says what was measured."""
    table = scenario_table(path)
    metric, value = measured_entry(path)
    scenario = read_scenario(path)
    if scenario.workload.kind != "train":
        given_text, expectation = f"kind = {scenario.workload.kind!r}", 'a measured training step, kind = "train"'
        todo = "predictions and plans of post-training take anchors of post-training, and no others"
        raise InputError(
            Problem(path="workload.kind", given=given_text, expected=expectation, todo=todo, where=str(path))
        )
    table.pop("measured", None)
    seconds = value if metric == "step_time_s" else scenario.workload.tokens / (value * scenario.system.chips)
    run = {
        "id": f"own-{path.stem}", "measured_metric": "step_time_s", "measured_value": f"{seconds:.9g}",
        "x_scenario": json.dumps(table, separators=(",", ":")), "x_complete": "full", "x_task": "pretrain",
        "x_trust": "A",
    }  # fmt: skip
    return Row(id=run["id"], table=path.name, cells=MappingProxyType(run))


def measured_entry(path: Path) -> tuple[str, float]:
    """Which metric the [measured] table of a scenario file states, and its value."""
    measured_table = read_table(path).data.get("measured")
    where = str(path)
    if not isinstance(measured_table, Mapping):
        todo = "add [measured] with step_time_s = 9.4, or name a trace: TRACE@SCENARIO"
        raise InputError(
            Problem(path="measured", given="nothing", expected="a table [measured]", todo=todo, where=where)
        )
    return _measured_entry(measured_table, where)


def _measured_entry(table: JsonMapping, where: str) -> tuple[str, float]:
    """Which metric a [measured] table states, and its value."""
    problems = [not_among(f"measured.{key}", str(key), KEYS, "remove it") for key in table if key not in KEYS]
    keys = [key for key in KEYS[:2] if key in table]
    if len(keys) != 1:
        expected_text = "one of step_time_s and tokens_per_s_per_chip"
        given_text = " and ".join(keys) or "neither"
        problems.append(Problem(path="measured", given=given_text, expected=expected_text, where=where))
    for key in keys:
        value = table[key]
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < LONGEST:
            expected_text = "seconds of a step, above 0" if key == "step_time_s" else "tokens/s of one chip, above 0"
            problems.append(
                Problem(path=f"measured.{key}", given=repr(value)[:40], expected=expected_text, where=where)
            )
    if problems:
        raise InputError(problems)
    return keys[0], float(table[keys[0]])


LONGEST_ID = 80


def residual_rows(found: Explanation) -> Iterator[dict[str, str]]:
    """One row a phase and class, in the schema of `RESIDUAL_COLUMNS`."""
    scenario, sources = found.scenario, found.analysis.timeline.about.sources
    table_text = json.dumps(found.table, separators=(",", ":")) if found.table else ""
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
            "scenario": table_text,
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
    writer = csv.DictWriter(text, RESIDUAL_COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows({key: spreadsheet_cell(cell) for key, cell in row.items()} for row in residual_rows(found))
    write_text(path, text.getvalue())


ROUNDS = 4  # slopes are taken again
FREEDOM = 4.0  # degrees of, of the noise of a run
DOUBTED = 4  # rounds in which runs are doubted
LEAST = 0.02  # of its weight that a run keeps


def anchor_calibration(calibration: Calibration | None, runs: str | Iterable[str]) -> Calibration:
    """The calibration that runs anchor, `InputError` where one cannot be used.

    calibration   the prior; absent: the shipped one
    runs          each a table of residuals or of runs, a scenario with [measured], or TRACE@SCENARIO

    >>> from ridgeline.plan.scenario_file import read_scenario
    >>> from ridgeline.sim import predict
    >>> scenario = read_scenario("examples/llama3-8b-8xh100-measured.toml")
    >>> before = predict(scenario)
    >>> after = predict(scenario, anchor_calibration(None, "examples/llama3-8b-8xh100-measured.toml"))
    >>> before.step_time_s < after.step_time_s < 11.2                # measured: 11.2 s
    True
    >>> after.interval.high / after.interval.low < before.interval.high / before.interval.low
    True
    """
    sources = [runs] if isinstance(runs, str) else list(runs)
    rows = [row for text in sources for row in rows_of(text)]
    table = dataset_of(rows, None if calibration is None else calibration.profiles)
    if not table.rows:
        reasons = "; ".join(f"{skip.id}: {skip.reason}" for skip in table.skipped[:3]) or "no runs"
        raise InputError(Problem(path="--anchor", given=reasons, expected="at least one run that can be predicted"))
    return anchored_by(default_calibration() if calibration is None else calibration, table)


def anchored_by(prior: Calibration, table: Dataset) -> Calibration:
    """The calibration that the runs of a table anchor; those that anchored the prior before count with them."""
    known_runs = prior.anchored.runs if prior.anchored else ()
    if len(known_runs) + len(table.rows) > Anchored.MOST_RUNS:
        given_text = f"{len(known_runs) + len(table.rows)} runs"
        raise InputError(
            Problem(path="--anchor", given=given_text, expected=f"at most {Anchored.MOST_RUNS}", todo="leave some out")
        )
    start = prior.before_anchors()
    offsets: Mapping[str, float] = {}
    runs: tuple[AnchorRun, ...] = ()
    for _ in range(ROUNDS):
        runs = posterior((*known_runs, *_runs(table, start, offsets)), prior.components)
        offsets = offsets_of(runs, prior.components)
    anchors = Anchored(components=prior.components, runs=runs, moved=MappingProxyType(dict(sorted(offsets.items()))))
    source = f"{start.source}, anchored on {len(runs)} run{'s' if len(runs) > 1 else ''}"
    return replace(_with(start, offsets), source=source, anchored=anchors)


def _with(calibration: Calibration, moved: Mapping[str, float]) -> Calibration:
    offsets = dict(calibration.offsets)
    for name, by in moved.items():
        offsets[name] = offsets.get(name, 0.0) + by
    return replace(calibration, offsets=MappingProxyType(offsets))


def _runs(table: Dataset, start: Calibration, moved: Mapping[str, float]) -> list[AnchorRun]:
    """The runs of a table, their slopes where the offsets have moved to, their gaps as seen from the start."""
    here = _with(start, moved)
    slopes = sensitivities(table.batch, table.scenarios, here)
    before, now = (table.predict(calibration) for calibration in (start, here))
    return [
        AnchorRun(
            id=row.id,
            measured_s=float(table.measured_s[index]),
            predicted_s=float(before[index]),
            sensitivity=sensitivity,
            gap=float(np.log(table.measured_s[index] / now[index])) + _along(sensitivity, moved),
            noise=start.components.noise,
        )
        for index, (row, sensitivity) in enumerate(zip(table.rows, slopes, strict=True))
    ]


def offsets_of(runs: Sequence[AnchorRun], components: Components) -> dict[str, float]:
    """What the weights of runs move: the offset of every parameter, common and by owner."""
    offsets: dict[str, float] = {}
    order = list(APART)
    for run in runs:
        sensitivity = run.sensitivity
        for name, slope in sensitivity.slopes.items():
            item = PARAMETERS.get(name)
            if item is None:
                continue
            push = components.owners**2 * slope * run.weight
            offsets[name] = offsets.get(name, 0.0) + push * item.common_spread**2
            for owner in item.per:
                if member := sensitivity.owners[order.index(owner)]:
                    key = f"{name}/{member}"
                    offsets[key] = offsets.get(key, 0.0) + push * APART[owner] ** 2
    return offsets


def _along(own: Sensitivity, moved: Mapping[str, float]) -> float:
    """Change of log(step time) along the slopes, where offsets have moved."""
    total = 0.0
    for name, slope in own.slopes.items():
        item = PARAMETERS[name]
        by = moved.get(name, 0.0)
        for owner, member in zip(APART, own.owners, strict=True):
            if owner in item.per and member:
                by += moved.get(f"{name}/{member}", 0.0)
        total += slope * by
    return total


def posterior(runs: Sequence[AnchorRun], components: Components) -> tuple[AnchorRun, ...]:
    """The runs with the noise and the weight that each has beside the others."""
    sensitivities = [run.sensitivity for run in runs]
    gaps = np.array([run.gap for run in runs])
    weight, noise = condition_on(covariance(sensitivities, sensitivities, components), gaps, components.noise)
    columns = zip(runs, weight.tolist(), noise.tolist(), strict=True)
    return tuple(replace(run, weight=share, noise=spread_s) for run, share, spread_s in columns)


def condition_on(among: Array, gaps: Array, noise: float) -> tuple[Array, Array]:
    """Weights (K + noise^2)^-1 gap of runs, and the noise of each.

    A run's noise grows with how far it lies from what the others say of it, in standard deviations z:

        noise^2 (freedom + z^2) / (freedom + 1)

    >>> weight, own = condition_on(np.full((3, 3), 0.01), np.array([0.1, 0.1, 0.9]), 0.05)
    >>> bool(own[2] > 1.5 * own[0]), float(own[0])
    (True, 0.05)
    """
    variance = np.full(len(gaps), noise**2)
    inverse = np.linalg.inv(among + np.diag(variance))
    for _ in range(DOUBTED if len(gaps) else 0):
        leave_one_out = (inverse @ gaps) / np.sqrt(np.diag(inverse))  # residual over its standard deviation
        trust = np.clip((FREEDOM + 1) / (FREEDOM + leave_one_out**2), LEAST, 1.0)
        variance = noise**2 / trust
        inverse = np.linalg.inv(among + np.diag(variance))
    return inverse @ gaps, np.sqrt(variance)
