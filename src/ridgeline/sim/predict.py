"""Turn a Scenario into a Prediction: lower it, price it as a batch of one, and say what the answer rests on.

lower -> columns of ops -> seconds by class -> step           the same lines that price a thousand plans
program -> peak memory        flops -> MFU and HFU            residuals of similar runs -> interval
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from ridgeline.core.errors import MissingNumber, Problem
from ridgeline.core.evidence import Evidence, Quoted, weakest
from ridgeline.core.units import DECIMAL, parse_quantity
from ridgeline.cost.calibration import SHIPPED, Calibration, shipped
from ridgeline.cost.machine import machines_of, parameter_columns
from ridgeline.cost.op_table import PHASES, OpTable, op_table
from ridgeline.cost.price import SustainedRates, sustained_rates
from ridgeline.ir.program import Program
from ridgeline.lowering.program import lower
from ridgeline.models.facts import training_flops_per_token
from ridgeline.plan.check import check
from ridgeline.plan.scenario import Scenario
from ridgeline.plan.workload import Train
from ridgeline.sim.closed_form.stage_mix import stage_mixes
from ridgeline.sim.closed_form.step import StepTimes, step_seconds
from ridgeline.sim.memory.peak import peak_memory
from ridgeline.sim.plan_columns import PlanColumns, plan_columns
from ridgeline.sim.prediction import Bill, Bound, Impossible, Part, Prediction, Utilization
from ridgeline.sim.prediction_interval import shipped_interval

HOUR = parse_quantity("1 h", "s")
ABSURD = DECIMAL["E"] * DECIMAL["M"]  # no chip moves or computes this much in a second
# part of a step -> what limits it and what it is; matmul and attention are told by their own ops
MEANING: MappingProxyType[str, tuple[Bound, str]] = MappingProxyType(
    {
        "matmul": ("compute", "matrix products, recomputed ones included"),
        "attention": ("compute", "scores, softmax and weighted values, or a state scan"),
        "memory": ("memory", "norms, activations, residuals, casts, loss: bound by memory traffic"),
        "kernel": ("host", "around kernels, and waiting for the host to issue them"),
        "tp": ("network", "exposed tensor-parallel communication"),
        "cp": ("network", "exposed context-parallel exchange"),
        "ep": ("network", "exposed dispatch to experts and back"),
        "pp": ("network", "exposed sends between pipeline stages"),
        "dp": ("network", "exposed gradient reduction and weight gathering"),
        "shard": ("network", "exposed gathering and scattering of sharded weights"),
        "host": ("network", "exposed copies to and from host memory"),
        "bubble": ("compute", "pipeline ranks waiting for each other"),
        "optimizer": ("memory", "updating weights and states"),
        "waiting": ("host", "the slowest node, and what a step costs whatever it does"),
    }
)


def predict(
    scenario: Scenario, calibration: Calibration | None = None, *, causal: bool = True
) -> Prediction | Impossible:
    """The predicted step of a training scenario, or the reasons why there is none.

    calibration   absent: the one that ships with Ridgeline, or the parameters' defaults where none does
    causal        whether MFU counts causal attention at half, as published figures do; False counts all pairs

    >>> from ridgeline.plan.scenario_file import read_scenario
    >>> found = predict(read_scenario("examples/llama3-70b-64xh100.toml"))
    >>> abs(sum(part.seconds for part in found.breakdown) / found.step_time_s - 1) < 1e-9
    True
    """
    reasons = (*check(scenario), *not_predictable(scenario))
    if reasons:
        return Impossible(scenario=scenario, reasons=reasons)
    try:
        return _predicted(scenario, calibration or default_calibration(), causal)
    except MissingNumber as missing:
        return Impossible(scenario=scenario, reasons=(unpublished(missing),))


def unpublished(missing: MissingNumber) -> Problem:
    """A number that is absent from the catalog, as a reason."""
    todo = f'set it with --set {missing.path}="… {missing.unit}"'
    given, expected = f"nothing published for {missing.owner}", f"a quantity in {missing.unit}"
    return Problem(path=missing.path, given=given, expected=expected, todo=todo)


def default_calibration() -> Calibration:
    """The shipped calibration, or the defaults before there is one."""
    return shipped() if SHIPPED.exists() else Calibration(offsets=MappingProxyType({}))


@dataclass(frozen=True, slots=True, kw_only=True)
class Priced:
    """A scenario on its way to a prediction: the program, its columns, the rates that price them, and the step."""

    program: Program
    batch: OpTable
    plans: PlanColumns
    rows: SustainedRates
    steps: StepTimes


def price(scenario: Scenario, calibration: Calibration) -> Priced:
    """Lower a possible scenario and price it as a batch of one."""
    program = lower(scenario)
    batch, lines, plans = op_table([program]), stage_mixes([scenario], [program]), plan_columns([scenario])
    rates = parameter_columns(calibration, [scenario.system.chip.id], [scenario.plan.engine])
    rows = sustained_rates(machines_of([scenario.system]), rates, graph=plans.graph, xla=plans.xla)
    return Priced(program=program, batch=batch, plans=plans, rows=rows, steps=step_seconds(batch, lines, plans, rows))


def not_predictable(scenario: Scenario) -> Iterator[Problem]:
    """What a possible scenario asks that predictions do not cover."""
    if not isinstance(scenario.workload, Train):
        kind = scenario.workload.kind
        yield Problem(path="workload.kind", given=kind, expected="train", todo="serving is not predicted yet")
    stored, chip = scenario.plan.precision.activations, scenario.system.chip
    if stored.peak not in chip.peak and not (stored.peak == "bf16" and "fp16" in chip.peak):
        known = ", ".join(chip.peak)
        yield Problem(path="plan.precision.activations", given=stored.id, expected=f"a peak {chip.id} has: {known}")
    for path, number, unit in _rates(scenario):
        if number is not None and not 0 < number.value < ABSURD:
            expected = f"a rate above 0 and below {ABSURD:.0e} {unit}"
            yield Problem(path=path, given=f"{number.value:g} {unit}", expected=expected)


def _rates(scenario: Scenario) -> Iterator[tuple[str, Quoted | None, str]]:
    """Every number a step is divided by, with its place in a scenario."""
    chip = scenario.system.chip
    yield "chip.hbm.bandwidth", chip.hbm.bandwidth, "B/s"
    for key, peak in chip.peak.items():
        yield f"chip.peak.{key}", peak, "FLOP/s"
    for tier in scenario.system.tiers:
        yield f"system.tier.{tier.name}.bandwidth", tier.bandwidth, "B/s"


def _predicted(scenario: Scenario, calibration: Calibration, causal: bool) -> Prediction | Impossible:
    chip, engine = scenario.system.chip.id, scenario.plan.engine
    priced = price(scenario, calibration)
    program, steps = priced.program, priced.steps
    step_s = float(steps.step_s[0])
    if not math.isfinite(step_s) or step_s <= 0:
        return Impossible(scenario=scenario, reasons=unbelievable(steps))
    known = calibration.knows(chip, engine)
    return Prediction(
        scenario=scenario,
        step_time_s=step_s,
        breakdown=_breakdown(priced),
        utilization=utilization(scenario, priced, step_s, causal),
        memory=peak_memory(scenario, program, priced.plans),
        interval=shipped_interval(step_s, chip, engine),
        bill=_bill(scenario, step_s),
        evidence=_evidence(scenario, known),
        assumptions=(*scenario.assumptions, *_assumed(scenario, calibration, known)),
    )


def unbelievable(steps: StepTimes) -> tuple[Problem, ...]:
    """The parts of a step that are not times, as reasons; empty for a step that can be believed."""
    parts = {name: float(seconds[0]) for name, seconds in steps.parts.items()}
    wrong = {name: value for name, value in parts.items() if not math.isfinite(value) or value < 0}
    todo = "check the sizes and rates of the scenario"
    return tuple(
        Problem(path=f"breakdown.{name}", given=f"{value} s", expected="a time", todo=todo)
        for name, value in wrong.items()
    )


def _breakdown(priced: Priced) -> tuple[Part, ...]:
    """Parts in the order of `MEANING`, those of zero seconds left out."""
    steps, batch, rows = priced.steps, priced.batch, priced.rows
    limits: dict[str, Bound] = {"matmul": _matmul_bound(batch, rows), "attention": _attention_bound(batch, rows)}
    parts = []
    for name in sorted(steps.parts, key=lambda name: list(MEANING).index(name) if name in MEANING else len(MEANING)):
        seconds = float(steps.parts[name][0])
        bound, meaning = MEANING.get(name, ("compute", name))
        if seconds > 0:
            parts.append(Part(name=name, seconds=seconds, bound=limits.get(name, bound), meaning=meaning))
    return tuple(parts)


def _matmul_bound(batch: OpTable, rows: SustainedRates) -> Bound:
    """Memory when moving operands more than doubles the time that the flops take at the sustained rate."""
    m, n, k, groups, size_in, size_out = batch.matmuls[:6]
    flops = 2 * m * n * k * groups / rows.peak[0, batch.matmul_peak]
    moved = ((m * k + k * n) * size_in + m * n * size_out) * groups / rows.memory[0]
    return "memory" if float(np.maximum(moved, flops).sum()) > 2 * float(flops.sum()) else "compute"


def _attention_bound(batch: OpTable, rows: SustainedRates) -> Bound:
    flops, size = batch.attends[:2]
    return "memory" if float(size.sum() / rows.memory[0]) > float(flops.sum() / rows.attention[0]) else "compute"


def executed_flops(priced: Priced, ranks: int, microbatches: int) -> float:
    """Flops that all chips execute in a step: every matrix product and attention, recomputed ones included."""
    batch, often = priced.batch, np.array(priced.program.stages).sum(0)
    m, n, k, groups = batch.matmuls[:4]
    products = float((2 * m * n * k * groups * often[batch.matmul_slot // PHASES]).sum())
    return (products + float((batch.attends[0] * often[batch.attend_slot // PHASES]).sum())) * ranks * microbatches


def utilization(scenario: Scenario, priced: Priced, step_s: float, causal: bool) -> Utilization:
    """MFU and HFU of a step, with the conventions they are counted by."""
    plan, system, work = scenario.plan, scenario.system, scenario.workload
    mesh = plan.mesh
    each = training_flops_per_token(scenario.model, work.seq, causal).total
    notes = ["causal attention counted at half" if causal else "attention counted over all pairs of tokens"]
    if isinstance(work, Train) and work.task == "lora":
        each *= 2 / 3
        notes.append("frozen weights need no weight gradients: two passes counted, not three")
    model_flops = each * work.tokens
    executed = executed_flops(priced, mesh.tp * mesh.cp * mesh.dp, scenario.microbatches)
    peak = system.chip.peak_flops_per_s(plan.precision.compute)
    able = step_s * system.chips * peak.value
    notes += [
        f"peak: dense {plan.precision.compute.peak} of {system.chip.id}",
        "MFU without recompute, optimizer, norms and embedding lookup",
        "HFU with all matrix products and attention that run",
    ]
    return Utilization(
        model_flops=model_flops,
        executed_flops=executed,
        peak=plan.precision.compute.peak,
        peak_flops_per_s=peak.value,
        mfu=model_flops / able,
        hfu=executed / able,
        conventions=tuple(notes),
    )


def _bill(scenario: Scenario, step_s: float) -> Bill:
    """Every chip at its rated power, and at its price by the hour, for the time of the step."""
    chip, chips = scenario.system.chip, scenario.system.chips
    return Bill(
        energy_j=chip.tdp.value * chips * step_s if chip.tdp else None,
        cost_usd=chip.price.value * chips * step_s / HOUR if chip.price else None,
    )


def _evidence(scenario: Scenario, known: tuple[bool, bool]) -> Evidence:
    """The weakest of what the step time rests on: the rates it uses, the engine's description, the calibration."""
    system, compute = scenario.system, scenario.plan.precision.compute
    used = [system.chip.peak_flops_per_s(compute), system.chip.need("hbm.bandwidth")]
    used += [tier.need_bandwidth() for tier in system.tiers]
    fitted = Evidence.FITTED if all(known) else Evidence.ANALYTIC
    return weakest([*(number.evidence for number in used), scenario.engine.evidence, fitted])


def _assumed(scenario: Scenario, calibration: Calibration, known: tuple[bool, bool]) -> Iterator[str]:
    """What stands in for inputs nobody gave."""
    chip, engine = scenario.system.chip, scenario.plan.engine
    if not calibration.offsets:
        yield "no calibration at hand: every rate at its default"
    for took_part, what in zip(known, (f"chip {chip.id}", f"engine {engine}"), strict=True):
        if not took_part:
            yield f"no measured run of {what} took part in the calibration: common values used"
    if chip.hbm.usable is None:
        yield "memory: the data sheet's capacity, since what the driver leaves of it is not known"
    if chip.cores is None:
        yield f"cores of {chip.id} not published: products are not rounded up to whole waves of tiles"
    if chip.tdp:
        yield "energy: every chip draws its rated power throughout; hosts, network and cooling not counted"
