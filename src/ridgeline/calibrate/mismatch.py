"""Turn a scenario and the analysis of a trace into reasons why the one cannot be, or may not be, a run of the other.

    contradictions   no kernels, another chip, another number of ranks, other products, faster than the peak allows
    doubts           these too, and: ranks that a trace does not tell, code compiled or not, steps not marked

Products are the flops of matrix products a step by recorded shapes, against those the scenario asks for.
"""

from __future__ import annotations

from collections.abc import Iterator

from ridgeline.core.errors import Problem
from ridgeline.core.units import DECIMAL, format_quantity
from ridgeline.models.facts import training_flops_per_token
from ridgeline.plan.scenario import Scenario
from ridgeline.plan.workload import Train
from ridgeline.trace.analysis.breakdown import Breakdown
from ridgeline.trace.analysis.chip_names import chip_of
from ridgeline.trace.analyze import Analysis

GENERATED = ("triton_poi_", "triton_red_", "triton_per_", "triton_tem_")  # names torch.compile gives its kernels
KNOWN = 0.9  # of the time of matrix products must have shapes before their flops are compared
APART = 0.05  # flops that differ by more may be another workload
OTHER = 1.5  # times as many or as few flops are one
OTHER_RANK = 3.0  # the same of one rank of several: stages differ, and layers may be computed again
BACKWARD_OF_INPUTS = 2 / 3  # of the products: forward, and the gradients that even frozen weights pass on
FORCE = "name the scenario of this run, or add --force to compare them all the same"


def contradictions(built: Scenario, found: Analysis) -> Iterator[Problem]:
    """What rules out that the trace is of the scenario."""
    about = found.timeline.about
    ran_on, world = chip_of(about), about.world_size
    host = built.system.chip.vendor == "host"  # a process without an accelerator: its ops are the work
    if not host and not found.timeline.predicted and not found.timeline.of_kind("kernel").any():
        yield _against("a trace without a kernel", "kernels of a training step on a chip")
        return
    if ran_on is not None and ran_on.id != built.system.chip.id:
        yield _against(f"a trace of {ran_on.id}", f"{built.system.chip.id}, the scenario's chip")
    if world and world != built.system.chips:
        yield _against(f"a trace of {world} ranks", f"{built.system.chips}, the scenario's chips")
    if not isinstance(built.workload, Train):
        return
    flops, chips = _step_flops(built), built.system.chips
    ran = _products(found)
    most = OTHER if chips == 1 and built.plan.recompute.kind == "none" else OTHER_RANK
    if ran is not None and not flops / chips / most < ran < flops / chips * most:
        asked = f"about {format_quantity(flops / chips, 'FLOP', 3)}, as the scenario's model and batch ask for"
        yield _against(f"{format_quantity(ran, 'FLOP', 3)} of matrix products a chip and step", asked)
    peak = built.system.chip.peak_flops_per_s(built.plan.precision.compute).value
    least = flops * BACKWARD_OF_INPUTS / (chips * peak)
    steps = max(1, len(found.breakdown.steps))
    took = found.breakdown.total.span_ns / steps / DECIMAL["G"]
    if took < least:
        expected = f"at least {format_quantity(least, 's', 3)}, which the scenario's products take at the chips' peak"
        yield _against(f"steps of {format_quantity(took, 's', 3)}", expected)


def _against(given: str, expected: str) -> Problem:
    return Problem(path="trace", given=given, expected=expected, todo=FORCE)


def doubts(built: Scenario, found: Analysis) -> Iterator[str]:
    """What makes a comparison of the two unequal, in words; most decisive first."""
    about, chips = found.timeline.about, len(found.breakdown.chips)
    ran_on = chip_of(about)
    if ran_on is not None and ran_on.id != built.system.chip.id:
        yield f"the trace ran on {ran_on.id}, the scenario is about {built.system.chip.id}"
    world = about.world_size or chips
    if world != built.system.chips:
        yield f"the trace says {world} ranks, the scenario has {built.system.chips} chips"
    yield from _other_sizes(built, found)
    if not found.timeline.predicted:
        yield from _other_engine(built.plan.engine, found.breakdown)
    if not found.breakdown.steps:
        yield "the trace marks no steps: all of it counts as one"


def _other_engine(engine: str, parts: Breakdown) -> Iterator[str]:
    made, said = sum(one.spans for one in parts.names if one.name.startswith(GENERATED)), "the scenario says"
    if made and engine == "torch-eager":
        yield f"the trace has {made:,} kernels of torch.compile, {said} {engine}: --set plan.engine=torch-compile"
    if not made and engine == "torch-compile":
        yield f"the trace has no kernel of torch.compile, {said} {engine}: --set plan.engine=torch-eager"


def _other_sizes(built: Scenario, found: Analysis) -> Iterator[str]:
    """Products of a step, by recorded shapes, against 3 x forward of the scenario; one chip, nothing recomputed."""
    if built.system.chips != 1 or built.plan.recompute.kind != "none" or not isinstance(built.workload, Train):
        return
    ran, wanted = _products(found), _step_flops(built)
    if ran is not None and abs(ran / wanted - 1) > APART:
        told = f"{format_quantity(ran, 'FLOP', 3)} of matrix products a step, the scenario asks for"
        yield f"the trace has {told} {format_quantity(wanted, 'FLOP', 3)}: another model or batch"


def _step_flops(built: Scenario) -> float:
    """Matrix products of a step over all chips: 3 x forward, without the scores of attention."""
    asked = training_flops_per_token(built.model, built.workload.seq)
    return (asked.total - asked.scores) * built.workload.tokens


def _products(found: Analysis) -> float | None:
    """Flops of matrix products of a chip in a step, by recorded shapes; None where too few are recorded."""
    rates = [rate for rate in found.rates if rate.class_ == "matmul"]
    time = sum(one.total_ns for one in found.breakdown.classes if one.id == "matmul")
    if not time or sum(rate.total_ns for rate in rates) < KNOWN * time:
        return None
    steps = max(1, len(found.breakdown.steps)) * max(1, len(found.breakdown.chips))
    return sum(rate.flops * rate.calls for rate in rates) / steps
