"""Turn scenarios into what their steps answer to: how log(step time) changes with the offset of each parameter.

slope = (log t(x + h) - log t(x)) / h          t = step time, x = offset of the parameter (`cost.calibration`)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import sqrt
from types import MappingProxyType

import numpy as np

from ridgeline.core.arrays import Array
from ridgeline.cost import PARAMETERS, Calibration, Owners, before_anchors, owners, parameter_columns
from ridgeline.cost.pricing import ParameterColumns, Sensitivity, pace_of, shape_of, variances
from ridgeline.plan.scenario import Scenario
from ridgeline.sim.prediction import AnchorEffect
from ridgeline.sim.step_batch import StepBatch

STEP = 1e-3  # of a numerical derivative, in offsets
TOLD, LEAST = 4, 0.002  # parameters that are told, and the least effect on a step that is


def move_parameter(calibration: Calibration, name: str, by: float) -> Calibration:
    """The calibration with one parameter's offset moved for everything."""
    return replace(calibration, offsets={**calibration.offsets, name: calibration.offsets.get(name, 0.0) + by})


def sensitivities(batch: StepBatch, scenarios: Sequence[Scenario], calibration: Calibration) -> tuple[Sensitivity, ...]:
    """What each of the scenarios that a batch was made of answers to."""
    here = np.log(batch.steps(parameter_columns(calibration, scenarios)).step_s)
    slopes = {
        name: (np.log(batch.steps(parameter_columns(move_parameter(calibration, name, STEP), scenarios)).step_s) - here)
        / STEP
        for name in PARAMETERS
    }
    return tuple(_sensitivity(scenario, slopes, row) for row, scenario in enumerate(scenarios))


def sensitivity(scenario: Scenario, calibration: Calibration) -> Sensitivity:
    """What one scenario answers to: every parameter moved in a row of its own, so that all are priced at once.

    >>> from ridgeline.cost.calibration import shipped_calibration
    >>> from ridgeline.plan.scenario_file import read_scenario
    >>> found = sensitivity(read_scenario("examples/llama3-70b-64xh100.toml"), shipped_calibration())
    >>> found.slopes["matmul_wide"] < -0.05 < 0 <= found.slopes["kernel"]      # faster products, slower launches
    True
    """
    steps = _under(scenario, [calibration, *(move_parameter(calibration, name, STEP) for name in PARAMETERS)])
    change = (np.log(steps[1:]) - np.log(steps[0])) / STEP
    return _sensitivity(scenario, dict(zip(PARAMETERS, change[:, None], strict=True)), 0)


def _under(scenario: Scenario, cases: Sequence[Calibration]) -> Array:
    """Seconds of a step under several calibrations, what no parameter explains left out."""
    columns = [parameter_columns(case, [scenario]) for case in cases]
    values = {name: np.concatenate([column[name] for column in columns]) for name in PARAMETERS}
    return StepBatch.of([scenario] * len(cases), cases[0].profiles).steps(ParameterColumns(values=values)).step_s


def anchor_effect(scenario: Scenario, calibration: Calibration, step_s: float) -> AnchorEffect | None:
    """What the runs that anchored a calibration did to a scenario's step; None where none did."""
    known = calibration.anchored
    if known is None or not known.runs:
        return None
    own = sensitivity(scenario, calibration)
    start = before_anchors(calibration)
    before, after = variances(known, own)
    return AnchorEffect(
        runs=tuple(run.id for run in known.runs),
        factor=step_s / float(_under(scenario, [start])[0]),
        pace=pace_of(calibration, scenario),
        narrowed=sqrt(after / before) ** known.components.narrowing,
        parameters=MappingProxyType(_values(scenario, (start, calibration), own.slopes)),
    )


def _values(
    scenario: Scenario, sides: tuple[Calibration, Calibration], slopes: Mapping[str, float]
) -> dict[str, tuple[float, float]]:
    """Parameters whose move changed the step most, before and after."""
    chip, engine = scenario.system.chip, scenario.engine
    values = {name: tuple(side.value(name, chip, engine) for side in sides) for name in PARAMETERS}
    effect = {name: abs(slopes[name] * _parameter_change(sides, owners(chip, engine), name)) for name in PARAMETERS}
    most = sorted((name for name in effect if effect[name] >= LEAST), key=lambda name: -effect[name])
    return {name: (values[name][0], values[name][1]) for name in most[:TOLD]}


def _parameter_change(sides: tuple[Calibration, Calibration], own: Owners, name: str) -> float:
    """By how much the offset that a chip and an engine have of a parameter differs between two calibrations."""
    keys = [name, *(f"{name}/{own.of(owner)}" for owner in PARAMETERS[name].per if own.of(owner))]
    return sum(sides[1].offsets.get(key, 0.0) - sides[0].offsets.get(key, 0.0) for key in keys)


def _sensitivity(scenario: Scenario, slopes: dict[str, Array], row: int) -> Sensitivity:
    return Sensitivity(
        owners=owners(scenario.system.chip, scenario.engine).of_training,
        shape=shape_of(scenario),
        slopes=MappingProxyType({name: float(column[row]) for name, column in slopes.items()}),
    )
