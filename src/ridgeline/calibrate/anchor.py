"""Turn a calibration and measured runs of one user into the calibration of that user: anchored, with uncertainty.

    prior       offsets of the calibration; how far one user's may lie from them: `Components`
    posterior   the conditional mean of offsets and of the effects beside them, given the runs (`cost.anchoring`)

The steps are not linear in offsets, so the slopes are taken again where the last round ended (Gauss-Newton). A run that
contradicts the others, or all that is known, gets more noise: as normal noise whose variance is itself uncertain, a
Student distribution of four degrees of freedom, would have it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

import numpy as np

from ridgeline.calibrate.anchor_runs import rows_of
from ridgeline.calibrate.dataset import Dataset, dataset_of
from ridgeline.core.arrays import Array
from ridgeline.core.errors import InputError, Problem
from ridgeline.cost.anchored import MOST_RUNS, Anchored, AnchorRun, Components, Sensitivity, weighed
from ridgeline.cost.anchoring import OWNERS, before_anchors, covariance, offsets_of
from ridgeline.cost.calibration import PARAMETERS, Calibration
from ridgeline.sim import default_calibration, sensitivities

ROUNDS = 4  # slopes are taken again
FREEDOM = 4.0  # degrees of, of the noise of a run
DOUBTED = 4  # rounds in which runs are doubted
LEAST = 0.02  # of its weight that a run keeps


def anchored(calibration: Calibration | None, runs: str | Iterable[str]) -> Calibration:
    """The calibration that runs anchor, `InputError` where one cannot be used.

    calibration   the prior; absent: the shipped one
    runs          each a table of residuals or of runs, a scenario with [measured], or TRACE@SCENARIO

    >>> from ridgeline.plan.scenario_file import read_scenario
    >>> from ridgeline.sim import predict
    >>> scenario = read_scenario("examples/llama3-8b-8xh100-measured.toml")
    >>> before = predict(scenario)
    >>> after = predict(scenario, anchored(None, "examples/llama3-8b-8xh100-measured.toml"))
    >>> before.step_time_s < after.step_time_s < 11.2                # measured: 11.2 s
    True
    >>> after.interval.high / after.interval.low < before.interval.high / before.interval.low
    True
    """
    given = [runs] if isinstance(runs, str) else list(runs)
    rows = [row for text in given for row in rows_of(text)]
    table = dataset_of(rows, None if calibration is None else calibration.profiles)
    if not table.rows:
        told = "; ".join(f"{one.id}: {one.reason}" for one in table.skipped[:3]) or "no runs"
        raise InputError(Problem(path="--anchor", given=told, expected="at least one run that can be predicted"))
    return anchored_by(default_calibration() if calibration is None else calibration, table)


def anchored_by(prior: Calibration, table: Dataset) -> Calibration:
    """The calibration that the runs of a table anchor; those that anchored the prior before count with them."""
    known = prior.anchored.runs if prior.anchored else ()
    if len(known) + len(table.rows) > MOST_RUNS:
        given = f"{len(known) + len(table.rows)} runs"
        raise InputError(Problem(path="--anchor", given=given, expected=f"at most {MOST_RUNS}", todo="leave some out"))
    start = before_anchors(prior)
    moved: Mapping[str, float] = {}
    runs: tuple[AnchorRun, ...] = ()
    for _ in range(ROUNDS):
        runs = posterior((*known, *_runs(table, start, moved)), prior.components)
        moved = offsets_of(runs, prior.components)
    own = Anchored(components=prior.components, runs=runs, moved=MappingProxyType(dict(sorted(moved.items()))))
    source = f"{start.source}, anchored on {len(runs)} run{'s' if len(runs) > 1 else ''}"
    return replace(_with(start, moved), source=source, anchored=own)


def _with(calibration: Calibration, moved: Mapping[str, float]) -> Calibration:
    offsets = dict(calibration.offsets)
    for name, by in moved.items():
        offsets[name] = offsets.get(name, 0.0) + by
    return replace(calibration, offsets=MappingProxyType(offsets))


def _runs(table: Dataset, start: Calibration, moved: Mapping[str, float]) -> list[AnchorRun]:
    """The runs of a table, their slopes where the offsets have moved to, their gaps as seen from the start."""
    here = _with(start, moved)
    slopes = sensitivities(table.batch, table.scenarios, here)
    before, now = (table.predict(each) for each in (start, here))
    return [
        AnchorRun(
            id=row.id,
            measured_s=float(table.measured_s[index]),
            predicted_s=float(before[index]),
            sensitivity=own,
            gap=float(np.log(table.measured_s[index] / now[index])) + _along(own, moved),
            noise=start.components.noise,
        )
        for index, (row, own) in enumerate(zip(table.rows, slopes, strict=True))
    ]


def _along(own: Sensitivity, moved: Mapping[str, float]) -> float:
    """Change of log(step time) along the slopes, where offsets have moved."""
    total = 0.0
    for name, slope in own.slopes.items():
        item = PARAMETERS[name]
        by = moved.get(name, 0.0)
        for owner, member in zip(OWNERS, own.owners, strict=True):
            if owner in item.per and member:
                by += moved.get(f"{name}/{member}", 0.0)
        total += slope * by
    return total


def posterior(runs: Sequence[AnchorRun], components: Components) -> tuple[AnchorRun, ...]:
    """The runs with the noise and the weight that each has beside the others."""
    own = [run.sensitivity for run in runs]
    gaps = np.array([run.gap for run in runs])
    weight, noise = conditioned(covariance(own, own, components), gaps, components.noise)
    return weighed(runs, weight.tolist(), noise.tolist())


def conditioned(among: Array, gaps: Array, noise: float) -> tuple[Array, Array]:
    """Weights (K + noise^2)^-1 gap of runs, and the noise of each.

    A run's noise grows with how far it lies from what the others say of it, in standard deviations z:

        noise^2 (freedom + z^2) / (freedom + 1)

    >>> weight, own = conditioned(np.full((3, 3), 0.01), np.array([0.1, 0.1, 0.9]), 0.05)
    >>> bool(own[2] > 1.5 * own[0]), float(own[0])
    (True, 0.05)
    """
    variance = np.full(len(gaps), noise**2)
    inverse = np.linalg.inv(among + np.diag(variance))
    for _ in range(DOUBTED if len(gaps) else 0):
        alone = (inverse @ gaps) / np.sqrt(np.diag(inverse))  # leave-one-out residual over its standard deviation
        trust = np.clip((FREEDOM + 1) / (FREEDOM + alone**2), LEAST, 1.0)
        variance = noise**2 / trust
        inverse = np.linalg.inv(among + np.diag(variance))
    return inverse @ gaps, np.sqrt(variance)
