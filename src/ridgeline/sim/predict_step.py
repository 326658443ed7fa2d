"""Turn a Scenario into a Prediction: lower it, price it as a batch of one, and say what the answer rests on.

lower -> columns of ops -> seconds by class -> step           the same lines that price a thousand plans
program -> peak memory        flops -> MFU and HFU            residuals of similar runs -> interval
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from ridgeline.core.arrays import Array, Index, Mask
from ridgeline.core.errors import InputError, MissingNumber, Problem
from ridgeline.core.evidence import Evidence, Quoted
from ridgeline.core.records import dataclass
from ridgeline.core.units import DECIMAL, format_gib
from ridgeline.cost import Calibration, profile_for
from ridgeline.cost import default_calibration as default_calibration
from ridgeline.cost.pricing import MeasuredOps, OpEstimate, OpPrices, OpTable, SectionPrices, SustainedRates
from ridgeline.cost.step_part import Bound, StepPart
from ridgeline.hardware.load import WITH_CAPACITY, rated_power
from ridgeline.hardware.what_if import chip_title, what_if_distance
from ridgeline.ir.kernel import product_flops
from ridgeline.ir.program import PHASES, Program
from ridgeline.lowering.plan_columns import PlanColumns, plan_columns
from ridgeline.lowering.program import lower
from ridgeline.models.facts import audio_flops, encoder_flops, image_flops, latent_flops, training_flops_per_token
from ridgeline.plan.check import check
from ridgeline.plan.plan import Offload
from ridgeline.plan.scenario import Scenario, training
from ridgeline.plan.workload import Train
from ridgeline.sim.closed_form.stage_mix import stage_mixes
from ridgeline.sim.closed_form.step import StepTimes, step_seconds
from ridgeline.sim.memory.peak import peak_memory
from ridgeline.sim.prediction import (
    Impossible,
    KernelEvidence,
    Part,
    Prediction,
    Utilization,
    kernel_evidence,
    missing_number_problem,
    step_bill,
    step_evidence,
    unmeasured_host,
)
from ridgeline.sim.prediction_interval import (
    Distance,
    narrow_interval,
    shipped_interval,
    widen_for_unread,
    widen_interval,
)
from ridgeline.sim.step_batch import anchor_effect
from ridgeline.sim.unpriced_fields import slow_paths, unpriced_fields

ABSURD = DECIMAL["E"] * DECIMAL["M"]  # no chip moves or computes this much in a second


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
        return _predict_step(training(scenario), calibration or default_calibration(), causal)
    except MissingNumber as missing:
        return Impossible(scenario=scenario, reasons=(missing_number_problem(missing),))


@dataclass(frozen=True, slots=True, kw_only=True)
class Priced:
    """A scenario on its way to a prediction: its program, the ops of that as a table, their prices, and the step."""

    program: Program
    table: OpTable
    plans: PlanColumns
    rates: SustainedRates
    ops: OpPrices
    measured: MeasuredOps | None
    sections: SectionPrices
    steps: StepTimes


def price(scenario: Scenario, calibration: Calibration) -> Priced:
    """Lower a possible scenario and price it as a batch of one."""
    plans = plan_columns([scenario])
    program = lower(scenario, plans, tensors=False)
    table, rates = OpTable.of([program]), SustainedRates.of_scenario(calibration, scenario, plans)
    measured = MeasuredOps.of(table, rates.machines, [scenario], calibration.profiles)
    ops = rates.price_ops(table, measured=measured)
    sections = rates.sum_sections(table, ops)
    return Priced(
        program=program,
        table=table,
        plans=plans,
        rates=rates,
        ops=ops,
        measured=measured,
        sections=sections,
        steps=step_seconds(sections, stage_mixes([scenario], [program]), plans, rates),
    )


def estimate(scenario: Scenario, calibration: Calibration | None = None) -> tuple[OpEstimate, ...]:
    """Every op that one rank executes for a microbatch, section by section, with its price; `InputError` where none is.

    >>> from ridgeline.plan.scenario_file import read_scenario
    >>> found = estimate(read_scenario("examples/llama3-70b-64xh100.toml"))
    >>> next((one.op.label, one.estimate.bound) for one in found if one.section == "block 0" and one.op.label == "up")
    ('up', 'compute')
    """
    used = calibration or default_calibration()
    reasons = (*check(scenario), *not_predictable(scenario))
    if reasons:
        raise InputError(reasons)
    priced = price(scenario, used)
    rests_on = _evidence(scenario, used.knows(scenario.system.chip, scenario.engine))
    return tuple(priced.ops.estimates(priced.program.sections, rests_on, priced.measured))


def not_predictable(scenario: Scenario) -> Iterator[Problem]:
    """What a possible scenario asks that predictions do not cover."""
    if not isinstance(scenario.workload, Train):
        kind = scenario.workload.kind
        todo = "`ridgeline predict` tells prefill and decode; a timeline, a plan or an estimate is of training"
        yield Problem(path="workload.kind", given=kind, expected="train", todo=todo)
    stored, chip = scenario.plan.precision.activations, scenario.system.chip
    if stored.peak not in chip.peak and not (stored.peak == "bf16" and "fp16" in chip.peak):
        known = ", ".join(chip.peak)
        yield Problem(path="plan.precision.activations", given=stored.id, expected=f"a peak {chip.id} has: {known}")
    if scenario.plan.offload != Offload() and chip.host.bandwidth is None:
        yield missing_number_problem(MissingNumber(f"chip {chip.id}", "chip.host.bandwidth", "GB/s"))
    for path, number, unit in _rates(scenario):
        if number is not None and not 0 < number.value < ABSURD:
            expected = f"a rate above 0 and below {ABSURD:.0e} {unit}"
            yield Problem(path=path, given=f"{number.value:g} {unit}", expected=expected)


def _rates(scenario: Scenario) -> Iterator[tuple[str, Quoted | None, str]]:
    """Every number a step is divided by, with its place in a scenario."""
    chip = scenario.system.chip
    yield "chip.hbm.bandwidth", chip.hbm.bandwidth, "B/s"
    yield "chip.host.bandwidth", chip.host.bandwidth, "B/s"
    for key, peak in chip.peak.items():
        yield f"chip.peak.{key}", peak, "FLOP/s"
    for tier in scenario.system.tiers:
        yield f"system.tier.{tier.name}.bandwidth", tier.bandwidth, "B/s"


def _predict_step(scenario: Scenario[Train], calibration: Calibration, causal: bool) -> Prediction | Impossible:
    chip, engine = scenario.system.chip, scenario.engine
    priced = price(scenario, calibration)
    program, steps = priced.program, priced.steps
    step_s = float(steps.step_s[0])
    if not math.isfinite(step_s) or step_s <= 0:
        return Impossible(scenario=scenario, reasons=non_finite_parts(steps))
    known = calibration.knows(chip, engine)
    precision, seq = scenario.plan.precision.compute.id, scenario.workload.seq
    span = shipped_interval(step_s, chip.fitted_id, engine.fitted_id, chip.family, precision, seq)
    span = widen_interval(span, step_s, Distance(*what_if_distance(chip)))
    span = widen_for_unread(span, step_s, scenario.unread)
    anchor = anchor_effect(scenario, calibration, step_s)
    kernels = _kernels(scenario, priced, calibration)
    notes = (
        *(str(effect) for effect in (anchor, kernels) if effect),
        *scenario.assumptions,
        *unpriced_fields(scenario),
        *slow_paths(scenario, program, float(priced.rates.machines.cores[0])),
        *_assumptions(scenario, calibration, known),
    )
    return Prediction(
        scenario=scenario,
        step_time_s=step_s,
        breakdown=_breakdown(priced),
        utilization=utilization(scenario, priced, step_s, causal),
        memory=peak_memory(scenario, program, priced.plans),
        interval=narrow_interval(span, step_s, anchor.narrowed, len(anchor.runs)) if anchor else span,
        bill=step_bill(scenario, step_s),
        evidence=_evidence(scenario, known),
        assumptions=notes,
        anchor=anchor,
        kernels=kernels,
        caution=unmeasured_host(scenario, calibration.profiles) if anchor is None else "",
    )


def _kernels(scenario: Scenario, priced: Priced, calibration: Calibration) -> KernelEvidence | None:
    """What the profile of the scenario's chip says of its kernels; None without one."""
    profile = profile_for(calibration.profiles, scenario.system.chip.fitted_id)
    if priced.measured is None or profile is None:
        return None
    table, parts = priced.table, priced.steps.parts
    often = (_op_repeats(priced, table.matmul_slot), _op_repeats(priced, table.attend_slot))
    products, attention = (
        float(parts[part][0] / priced.steps.step_s[0]) if part in parts else 0.0
        for part in (StepPart.MATMUL, StepPart.ATTENTION)
    )
    return kernel_evidence(priced.ops, priced.measured, often, (products, attention), profile.title)


def non_finite_parts(steps: StepTimes) -> tuple[Problem, ...]:
    """The parts of a step that are not times, as reasons; empty for a step that can be believed."""
    parts = {name: float(seconds[0]) for name, seconds in steps.parts.items()}
    wrong = {name: value for name, value in parts.items() if not math.isfinite(value) or value < 0}
    todo = "check the sizes and rates of the scenario"
    return tuple(
        Problem(path=f"breakdown.{name.value}", given=f"{value} s", expected="a time", todo=todo)
        for name, value in wrong.items()
    )


def _breakdown(priced: Priced) -> tuple[Part, ...]:
    """Parts in the order of `StepPart`, those of zero seconds left out."""
    table, ops = priced.table, priced.ops
    limits = {
        StepPart.MATMUL: _bound(ops.matmul_s * _op_repeats(priced, table.matmul_slot), ops.matmul_memory_bound),
        StepPart.ATTENTION: _bound(ops.attend_s * _op_repeats(priced, table.attend_slot), ops.attend_memory_bound),
    }
    seconds = ((part, float(priced.steps.parts[part][0])) for part in StepPart if part in priced.steps.parts)
    return tuple(
        Part(name=part.value, seconds=spent, bound=limits.get(part, part.bound), meaning=part.meaning)
        for part, spent in seconds
        if spent > 0
    )


def _bound(seconds: Array, memory_bound: Mask) -> Bound:
    """What limits most of the time in some ops, each as often as it runs."""
    return "memory" if 2 * float(seconds[memory_bound].sum()) > float(seconds.sum()) else "compute"


def _op_repeats(priced: Priced, slots: Index) -> Array:
    """How often ops of these slots run in one microbatch of the whole model."""
    return np.asarray(np.array(priced.program.stages).sum(0)[slots // PHASES], dtype=np.float64)


def executed_flops(priced: Priced, ranks: int, microbatches: int) -> float:
    """Flops that all chips execute in a step: every matrix product and attention, recomputed ones included."""
    table = priced.table
    m, n, k, groups = table.matmuls[:4]
    products = float((product_flops(m, n, k, groups) * _op_repeats(priced, table.matmul_slot)).sum())
    attention = float((table.attends[0] * _op_repeats(priced, table.attend_slot)).sum())
    return (products + attention) * ranks * microbatches


def utilization(scenario: Scenario[Train], priced: Priced, step_s: float, causal: bool) -> Utilization:
    """MFU and HFU of a step, with the conventions they are counted by."""
    plan, system, work = scenario.plan, scenario.system, scenario.workload
    mesh = plan.mesh
    each = training_flops_per_token(scenario.model, work.document_tokens, causal, scenario.encoder_tokens).total
    halved = causal and scenario.model.causal
    notes = ["causal attention counted at half" if halved else "attention counted over all pairs of tokens"]
    if work.document_tokens < work.seq:
        tokens = work.document_tokens
        padded = f"tokens/s and MFU over {tokens} of the {work.seq} tokens of a sequence: the rest is padding"
        notes.append(f"attention counted inside documents of {tokens} tokens" if work.packed else padded)
    if work.task == "lora":
        each *= 2 / 3
        notes.append("frozen weights need no weight gradients: two passes counted, not three")
    model_flops = each * work.useful_tokens
    for told, flops in _towers(scenario):
        passes = 1 if work.towers == "frozen" else 3
        model_flops += passes * work.sequences * flops
        notes.append(f"{told} a sequence, {passes} pass{'es' * (passes > 1)}")
    if scenario.model.latent_space:
        model_flops += 3 * work.sequences * latent_flops(scenario.model, work.seq)
    if scenario.model.encoder:
        model_flops += 3 * work.sequences * encoder_flops(scenario.model, scenario.encoder_tokens)
        notes.append(f"the encoder counted over {scenario.encoder_tokens} positions a sequence")
    executed = executed_flops(priced, mesh.tp * mesh.cp * mesh.dp, scenario.microbatches)
    key, peak = fastest_peak(scenario)
    able = step_s * system.chips * peak.value
    notes += [
        f"peak: dense {key} of {chip_title(system.chip)}",
        "MFU without recompute, optimizer, norms and embedding lookup",
        "HFU with all matrix products and attention that run",
    ]
    return Utilization(
        model_flops=model_flops,
        executed_flops=executed,
        peak=key,
        peak_flops_per_s=peak.value,
        mfu=model_flops / able,
        hfu=executed / able,
        conventions=tuple(notes),
    )


def _towers(scenario: Scenario) -> Iterator[tuple[str, float]]:
    """Encoders of images and sound that run, each with what it reads and its flops of one sequence, forward."""
    seen, heard = scenario.vision_input, scenario.audio_input
    if scenario.model.vision and seen.views:
        yield f"the image encoder counted over {seen.total:,.0f} patches", image_flops(scenario.model, seen)
    if scenario.model.audio and heard.views:
        yield f"the audio encoder counted over {heard.total:,.0f} positions", audio_flops(scenario.model, heard)


def fastest_peak(scenario: Scenario) -> tuple[str, Quoted]:
    """The peak of the compute format, or of the one that activations have where that is faster: none is exceeded."""
    precision, chip = scenario.plan.precision, scenario.system.chip
    found = precision.compute.peak, chip.peak_flops_per_s(precision.compute)
    stored = precision.activations.peak
    return (stored, chip.peak[stored]) if stored in chip.peak and chip.peak[stored].value > found[1].value else found


def _evidence(scenario: Scenario, known: tuple[bool, bool]) -> Evidence:
    """The weakest of what the step time rests on: the rates it uses, the engine's description, the calibration."""
    power = rated_power(scenario.system.chip)
    return step_evidence(scenario, fitted=all(known), also=[power] if power else [])


def _assumptions(scenario: Scenario, calibration: Calibration, known: tuple[bool, bool]) -> Iterator[str]:
    """What stands in for inputs nobody gave."""
    chip, engine = scenario.system.chip, scenario.engine
    if not calibration.offsets:
        yield "no calibration at hand: every rate at its default"
    for took_part, what in zip(known, (f"chip {chip.id}", f"engine {engine.id}"), strict=True):
        if not took_part:
            yield f"no measured run of {what} took part in the calibration: common values used"
    usable, power = chip.hbm.usable, rated_power(chip)
    if usable is None:
        yield "memory: the data sheet's capacity, since what the driver leaves of it is not known"
    elif usable.note == WITH_CAPACITY:
        yield f"memory: {format_gib(usable.value)} usable, {WITH_CAPACITY}"
    if chip.cores is None:
        yield f"cores of {chip.id} not published: products are not rounded up to whole waves of tiles"
    if power is None:
        yield f"rated power of {chip.id} and its family not published: products as if at an H100's flops per joule"
    elif chip.tdp is None:
        yield f"rated power {power.value:g} W: {power.note}"
    if power:
        yield "energy: every chip draws its rated power throughout; hosts, network and cooling not counted"
