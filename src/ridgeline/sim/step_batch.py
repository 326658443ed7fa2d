"""Turn many scenarios into one table of ops that prices all their steps under any parameters: what a fit asks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from ridgeline.core.arrays import Array
from ridgeline.core.records import dataclass
from ridgeline.cost import Profile, machines_of, sustained_rates
from ridgeline.cost.pricing import (
    Machines,
    MeasuredOps,
    OpTable,
    ParameterColumns,
    measured_memory,
    measured_ops,
    padded_products,
    price_sections,
    tabulate_ops,
)
from ridgeline.lowering.plan_columns import PlanColumns, plan_columns
from ridgeline.lowering.program import lower
from ridgeline.plan.scenario import Scenario
from ridgeline.sim.closed_form.stage_mix import StageMix, stage_mixes
from ridgeline.sim.closed_form.step import StepTimes, step_seconds


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
        ops, machines = tabulate_ops(programs), machines_of([scenario.system for scenario in scenarios])
        return cls(
            ops=ops,
            mixes=stage_mixes(scenarios, programs),
            plans=plan_columns(scenarios),
            machines=machines,
            padded=padded_products(ops, machines),
            measured=measured_ops(ops, machines, scenarios, profiles),
            memory=measured_memory(scenarios, profiles, np.full(len(scenarios), np.nan)) if profiles else None,
        )

    def steps(self, parameters: ParameterColumns, *, by_part: bool = False) -> StepTimes:
        """Step times of all rows under these parameters; told apart by part where that is asked for."""
        if self.memory is not None:
            share = np.where(np.isnan(self.memory), parameters["memory"], self.memory)
            parameters = replace(parameters, values={**parameters.values, "memory": share})
        rates = sustained_rates(self.machines, parameters, plans=self.plans)
        sections = price_sections(self.ops, rates, self.padded, self.measured)
        return step_seconds(sections, self.mixes, self.plans, rates, by_part=by_part)
