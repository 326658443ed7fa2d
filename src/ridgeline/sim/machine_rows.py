"""Turn one scenario and many machines into what it takes on each of them: lowered once, a row for every machine.

    numbers      what a scenario's time follows from, beside sizes: rates and latencies of chip and links, and the
                 calibrated parameters of software; by name, one row
    scaled       the same in as many rows as factors are given, each number times its factor in that row
    times        seconds of a step (or of a prefill, or of a decode step) by row, with their parts

The lines that price one scenario price the rows, so that a machine priced here takes what `predict` says of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from types import MappingProxyType

import numpy as np

from ridgeline.core.arrays import Array
from ridgeline.core.dtype import PEAKS
from ridgeline.core.errors import InputError, Problem
from ridgeline.core.records import dataclass
from ridgeline.cost import Calibration, ServingCalibration, default_calibration, shipped_serving
from ridgeline.cost.pricing import Machines, MeasuredOps, OpTable, ParameterColumns, SustainedRates
from ridgeline.ir.program import PHASES, Program
from ridgeline.lowering.plan_columns import PlanColumns, plan_columns
from ridgeline.lowering.program import lower
from ridgeline.plan.check import check
from ridgeline.plan.scenario import Scenario, is_training
from ridgeline.plan.workload import Decode, Prefill
from ridgeline.sim.closed_form.stage_mix import scenario_mix
from ridgeline.sim.closed_form.step import step_seconds
from ridgeline.sim.forward_price import forward_rates, forward_seconds, forward_work, serving_values
from ridgeline.sim.phase_prediction import phase_steps

Factors = Mapping[str, Array]
TRAINING_TIMES = ("kernel", "host", "wait", "meet", "fixed")
SERVING_TIMES = ("kernel", "all_reduce", "step", "request", "issue")


@dataclass(frozen=True, slots=True, kw_only=True)
class RowTimes:
    """Seconds by row, and by part of them.

    memory_bound   share of the products' time in which memory limits them
    """

    seconds: Array
    parts: Mapping[str, Array]
    memory_bound: Array


class MachineRows:
    """One scenario, lowered once: what it takes on machines that differ from its own in any of their numbers.

    >>> from ridgeline.plan.scenario_file import read_scenario
    >>> rows = MachineRows(read_scenario("examples/llama3-70b-64xh100.toml"))
    >>> twice = rows.times({"memory": np.array([1.0, 2.0])})
    >>> bool(twice.seconds[1] < twice.seconds[0])
    True
    """

    def __init__(
        self, scenario: Scenario, calibration: Calibration | None = None, serving: ServingCalibration | None = None
    ) -> None:
        reasons = tuple(check(scenario))
        if reasons:
            raise InputError(reasons)
        if not is_training(scenario) and not isinstance(scenario.workload, (Decode, Prefill)):
            expectation = "train, prefill or decode"
            raise InputError(Problem(path="workload.kind", given=scenario.workload.kind, expected=expectation))
        self.scenario = scenario
        self.calibration = calibration or default_calibration()
        self.serving = serving or shipped_serving()
        self.machines = Machines.of([scenario.system])
        self.parameters = ParameterColumns.of(self.calibration, [scenario])

    @cached_property
    def _lowered_program(self) -> tuple[PlanColumns, Program, OpTable, Array]:
        """The scenario's columns and program, the table of one row, and the padded flops of its products."""
        plans = plan_columns([self.scenario])
        program = lower(self.scenario, plans, tensors=False)
        table = OpTable.over(program.sections, 1)
        return plans, program, table, table.padded_flops(self.machines)

    @property
    def formats(self) -> frozenset[str]:
        """Peaks at which something of the scenario is multiplied."""
        if is_training(self.scenario):
            plans, _, table, _ = self._lowered_program
            return frozenset(PEAKS[place] for place in {*table.matmul_peak.tolist(), int(plans.attention[0])})
        precision = self.scenario.plan.precision
        return frozenset((precision.compute.peak, precision.activations.peak, "bf16")) & frozenset(PEAKS)

    @property
    def bound_slack(self) -> float:
        """What times on a better machine are multiplied with to bound those on a worse one from below.

        1 where more of a rate is never slower. A served product counts as bound by memory or by compute, and each has
        a fitted parameter of its own: where it changes sides, its time jumps by their ratio.
        """
        if is_training(self.scenario):
            return 1.0
        values = serving_values(self.scenario, self.serving)
        pairs = (("product_memory", "product_compute"), ("expert_memory", "expert_product"))
        ratios = [values[memory] / values[compute] for memory, compute in pairs]
        return min(min(ratio, 1 / ratio) for ratio in ratios)

    def times(self, factors: Factors, rows: int = 0) -> RowTimes:
        """What the scenario takes where numbers are so many times its machine's; a name of no number is refused."""
        count = rows or max((len(column) for column in factors.values()), default=1)
        machines = self.machines.scaled(factors, count)
        if is_training(self.scenario):
            return self._step_times(machines, factors, count)
        return self._forward_times(machines, factors, count)

    def _step_times(self, machines: Machines, factors: Factors, count: int) -> RowTimes:
        plans, program, _, padded_row = self._lowered_program
        values = {name: np.repeat(column, count) for name, column in self.parameters.values.items()}
        values |= {
            name: values[name] * factors[f"training.{name}"] for name in TRAINING_TIMES if f"training.{name}" in factors
        }
        pace = None if self.parameters.pace is None else np.repeat(self.parameters.pace, count)
        table = OpTable.over(program.sections, count)
        rates = SustainedRates.of(machines, ParameterColumns(values=values, pace=pace), plans=plans)
        measured_ops = MeasuredOps.of(table, machines, [self.scenario], self.calibration.profiles)
        rows = np.repeat(padded_row, count) if "cores" not in factors else None
        prices = rates.price_ops(table, rows, measured_ops)
        sections = rates.sum_sections(table, prices)
        steps = step_seconds(sections, [scenario_mix(self.scenario, program, count)], plans, rates)
        parts = {part.value: np.broadcast_to(column, count) for part, column in steps.parts.items()}
        repeats = np.array(program.stages, dtype=np.float64).sum(0)[table.matmul_slot // (PHASES * count)]
        spent = (prices.matmul_s * repeats).reshape(-1, count)
        of_memory = np.where(prices.matmul_memory_bound.reshape(-1, count), spent, 0.0).sum(0)
        return RowTimes(
            seconds=np.broadcast_to(steps.step_s, count),
            parts=MappingProxyType(parts),
            memory_bound=of_memory / np.maximum(spent.sum(0), 1e-30),
        )

    def _forward_times(self, machines: Machines, factors: Factors, count: int) -> RowTimes:
        """Engine steps of every machine side by side: machine m's step s stands at m steps + s."""
        scenario = self.scenario
        steps, times, _ = phase_steps(scenario)
        many = len(steps)
        machine_of = np.repeat(np.arange(count), many)
        rates = forward_rates(scenario, machines.at(machine_of), self.calibration)
        work = forward_work(scenario, steps.at(np.tile(np.arange(many), count)), self.calibration, rates)
        values = {name: np.full(count * many, value) for name, value in serving_values(scenario, self.serving).items()}
        values |= {
            name: values[name] * factors[f"serving.{name}"][machine_of]
            for name in SERVING_TIMES
            if f"serving.{name}" in factors
        }
        forward_prices = forward_seconds(scenario, work, self.serving, values)
        waits = (forward_prices.interval_s if scenario.plan.mesh.pp > 1 else forward_prices.seconds).reshape(
            count, many
        )
        total = (waits * times)[:, :-1].sum(1) + forward_prices.seconds.reshape(count, many)[:, -1]
        sums = {name: (column.reshape(count, many) * times).sum(1) for name, column in forward_prices.parts.items()}
        parts_sum = np.sum(list(sums.values()), axis=0)
        parts = {name: column * total / parts_sum for name, column in sums.items()}
        spent = np.maximum(forward_prices.parts["matmul"].reshape(count, many) * times, 1e-30)
        share = (forward_prices.memory_bound.reshape(count, many) * spent).sum(1) / spent.sum(1)
        return RowTimes(seconds=total, parts=MappingProxyType(parts), memory_bound=share)
