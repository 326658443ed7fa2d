"""Turn many scenarios into one table of ops that prices all their steps under any parameters, and into what they answer
to: how log(step time) changes with the offset of each parameter.

slope = (log t(x + h) - log t(x)) / h          t = step time, x = offset of the parameter (`cost.calibration`)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import sqrt
from types import MappingProxyType

import numpy as np

from ridgeline.core.arrays import Array
from ridgeline.core.records import dataclass
from ridgeline.cost import PARAMETERS, Calibration, Owners, Profile, owners
from ridgeline.cost.anchoring import Sensitivity, shape_of, variances
from ridgeline.cost.pricing import Machines, MeasuredOps, OpTable, ParameterColumns, SustainedRates, measured_memory
from ridgeline.lowering.plan_columns import PlanColumns, plan_columns
from ridgeline.lowering.program import lower
from ridgeline.plan.scenario import Scenario
from ridgeline.sim.closed_form.stage_mix import StageMix, stage_mixes
from ridgeline.sim.closed_form.step import StepTimes, step_seconds
from ridgeline.sim.prediction import AnchorEffect


@dataclass(frozen=True, slots=True, kw_only=True)
class StepBatch:
    """Scenarios lowered once; what does not depend on parameters is worked out.

    padded     flops of every product once cut into tiles
    measured   seconds of kernels that a chip's profile reaches
    memory     share of memory's rate by row that a profile's copies reach; nan where none says
    """

    ops: OpTable
    mixes: tuple[StageMix, ...]
    plans: PlanColumns
    machines: Machines
    padded: Array
    measured: MeasuredOps | None = None
    memory: Array | None = None

    @classmethod
    def of(cls, scenarios: Sequence[Scenario], profiles: Mapping[str, Profile]) -> StepBatch:
        """The table of several scenarios, a row each; one that is there several times is lowered once.

        Kernels of chips that have a profile are priced by it.
        """
        distinct = {id(one): one for one in scenarios}
        lowered = {key: lower(scenario, tensors=False) for key, scenario in distinct.items()}
        programs = [lowered[id(scenario)] for scenario in scenarios]
        ops, machines = OpTable.of(programs), Machines.of([scenario.system for scenario in scenarios])
        return cls(
            ops=ops,
            mixes=stage_mixes(scenarios, programs),
            plans=plan_columns(scenarios),
            machines=machines,
            padded=ops.padded_flops(machines),
            measured=MeasuredOps.of(ops, machines, scenarios, profiles),
            memory=measured_memory(scenarios, profiles, np.full(len(scenarios), np.nan)) if profiles else None,
        )

    def steps(self, parameters: ParameterColumns, *, by_part: bool = False) -> StepTimes:
        """Step times of all rows under these parameters; told apart by part where that is asked for."""
        if self.memory is not None:
            share = np.where(np.isnan(self.memory), parameters["memory"], self.memory)
            parameters = replace(parameters, values={**parameters.values, "memory": share})
        rates = SustainedRates.of(self.machines, parameters, plans=self.plans)
        sections = rates.price_sections(self.ops, self.padded, self.measured)
        return step_seconds(sections, self.mixes, self.plans, rates, by_part=by_part)


STEP = 1e-3  # of a numerical derivative, in offsets
TOLD, LEAST = 4, 0.002  # parameters that are told, and the least effect on a step that is


def move_parameter(calibration: Calibration, name: str, by: float) -> Calibration:
    """The calibration with one parameter's offset moved for everything."""
    return replace(calibration, offsets={**calibration.offsets, name: calibration.offsets.get(name, 0.0) + by})


def sensitivities(batch: StepBatch, scenarios: Sequence[Scenario], calibration: Calibration) -> tuple[Sensitivity, ...]:
    """What each of the scenarios that a batch was made of answers to."""
    here = np.log(batch.steps(ParameterColumns.of(calibration, scenarios)).step_s)
    slopes = {
        name: (
            np.log(batch.steps(ParameterColumns.of(move_parameter(calibration, name, STEP), scenarios)).step_s) - here
        )
        / STEP
        for name in PARAMETERS
    }
    return tuple(_sensitivity(scenario, slopes, row) for row, scenario in enumerate(scenarios))


def sensitivity(scenario: Scenario, calibration: Calibration) -> Sensitivity:
    """What one scenario answers to: every parameter moved in a row of its own, so that all are priced at once.

    >>> from ridgeline.cost.calibration import default_calibration
    >>> from ridgeline.plan.scenario_file import read_scenario
    >>> found = sensitivity(read_scenario("examples/llama3-70b-64xh100.toml"), default_calibration())
    >>> found.slopes["matmul_wide"] < -0.05 < 0 <= found.slopes["kernel"]      # faster products, slower launches
    True
    """
    steps = _under(scenario, [calibration, *(move_parameter(calibration, name, STEP) for name in PARAMETERS)])
    change = (np.log(steps[1:]) - np.log(steps[0])) / STEP
    return _sensitivity(scenario, dict(zip(PARAMETERS, change[:, None], strict=True)), 0)


def _under(scenario: Scenario, cases: Sequence[Calibration]) -> Array:
    """Seconds of a step under several calibrations, what no parameter explains left out."""
    columns = [ParameterColumns.of(case, [scenario]) for case in cases]
    values = {name: np.concatenate([column[name] for column in columns]) for name in PARAMETERS}
    return StepBatch.of([scenario] * len(cases), cases[0].profiles).steps(ParameterColumns(values=values)).step_s


def anchor_effect(scenario: Scenario, calibration: Calibration, step_s: float) -> AnchorEffect | None:
    """What the runs that anchored a calibration did to a scenario's step; None where none did."""
    known, pace = calibration.anchored, ParameterColumns.of(calibration, [scenario]).pace
    if known is None or pace is None or not known.runs:
        return None
    own = sensitivity(scenario, calibration)
    start = calibration.before_anchors()
    before, after = variances(known, own)
    return AnchorEffect(
        runs=tuple(run.id for run in known.runs),
        factor=step_s / float(_under(scenario, [start])[0]),
        pace=float(pace[0]),
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
