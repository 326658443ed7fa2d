"""Turn predictions into explained numbers: each part of a step, its speeds, its memory and its bill with formulas."""

from __future__ import annotations

from collections.abc import Iterator
from types import MappingProxyType

from ridgeline.core.units import MILLION, format_duration
from ridgeline.hardware.load import rated_power
from ridgeline.plan.scenario import Scenario
from ridgeline.report.pieces import prediction_evidence
from ridgeline.sim import Prediction
from ridgeline.sim.phase_prediction import PhasePrediction
from ridgeline.web.figures import (
    ExplainedNumber,
    FormulaInput,
    explain_number,
    given_input,
    number_input,
    quoted_input,
)

Step = Prediction | PhasePrediction
PART_FORMULA = MappingProxyType({
    "compute": "sum over ops of flops / (peak × efficiency of the shape), or bytes / bandwidth where that is more",
    "memory": "sum over ops of bytes moved / (memory bandwidth × share of it that is reached)",
    "network": "sum over collectives of latency + bytes sent / link bandwidth, less what runs beside compute",
    "host": "launches × time around a kernel, and what the slowest of many nodes costs the others",
})  # fmt: skip
"""How seconds of a bound come about; `docs/concepts/prediction.md` has each with its letters."""
MEMORY_FORMULA = MappingProxyType({
    "weights": "parameters of the fullest rank × bytes of the weight format",
    "gradients": "parameters of the rank × bytes of the gradient format / sharded ranks, where the plan shards them",
    "optimizer": "parameters of the rank × bytes of states and master weights / sharded ranks",
    "activations": "microbatches in flight × what a layer saves for backward, at this recompute",
    "logits": "tokens of the microbatch × vocabulary of the rank × bytes, while the loss is at work",
    "workspace": "temporaries of the largest layer",
    "buffers": "buckets of gradients and gathered weights in flight",
    "overhead": "driver context, communicators, and what a caching allocator loses to fragments",
})  # fmt: skip


def step_source(step: Step) -> str:
    """What the seconds of a step rest on."""
    return f"weakest evidence: {step.evidence.label}. {prediction_evidence()} Interval from {step.interval.basis}."


def chip_inputs(scenario: Scenario, bound: str) -> Iterator[FormulaInput]:
    """Numbers of the catalog that limit ops of a bound."""
    chip, compute = scenario.system.chip, scenario.plan.precision.compute
    if bound in ("compute", "memory"):
        yield quoted_input(f"peak, dense {compute.id}", chip.peak.get(compute.peak), "FLOP/s")
        yield quoted_input("memory bandwidth", chip.hbm.bandwidth, "B/s")
    if bound == "network":
        for tier in scenario.system.tiers:
            yield quoted_input(f"link of tier {tier.name}, one way", tier.bandwidth, "B/s")
    yield given_input("chips", f"{scenario.system.chips:,}", f"system {scenario.system.name}")


def part_number(step: Step, name: str, href: str = "") -> ExplainedNumber:
    """The seconds of one part."""
    part = step.parts[name]
    share = part.seconds / step.step_time_s if step.step_time_s else 0.0
    inputs = [*chip_inputs(step.scenario, part.bound), given_input("share of the step", f"{share:.1%}", "computed")]
    return explain_number(
        part.seconds, "s", f"{part.meaning}: {PART_FORMULA[part.bound]}", inputs, step_source(step), href=href
    )


def step_number(step: Step) -> ExplainedNumber:
    """The seconds of the step."""
    parts = (number_input(part.name, part_number(step, part.name)) for part in step.breakdown)
    return explain_number(step.step_time_s, "s", "sum of the parts on the rank that paces the step", parts,
                          step_source(step))  # fmt: skip


def interval_number(step: Step) -> ExplainedNumber:
    """The interval of a step in words; its value is the upper end."""
    interval = step.interval
    low, high = format_duration(interval.low), format_duration(interval.high)
    return explain_number(
        interval.high, "s", "predicted seconds × how far measured runs were off that the fit had not seen, 5 % to 95 %",
        [number_input("predicted", step_number(step)), given_input("coverage", f"{interval.coverage:.0%}", "stated"),
         given_input("lower end", low, "5 % of runs were faster"), given_input("upper end", high, "5 % were slower")],
        interval.basis, text=f"{low} – {high}",
    )  # fmt: skip


def mfu_number(step: Prediction, *, executed: bool = False) -> ExplainedNumber:
    """Model flops utilisation, or that of everything executed."""
    used, scenario = step.utilization, step.scenario
    flops = used.executed_flops if executed else used.model_flops
    return explain_number(
        used.hfu if executed else used.mfu, "share", "flops of the step / (step time × chips × peak)",
        [given_input("executed flops" if executed else "model flops", f"{flops:.4g}", "; ".join(used.conventions)),
         number_input("step time", step_number(step)),
         given_input("chips", f"{scenario.system.chips:,}", f"system {scenario.system.name}"),
         quoted_input(f"peak, dense {used.peak}", scenario.system.chip.peak.get(used.peak), "FLOP/s")],
        step_source(step),
    )  # fmt: skip


def speed_number(step: Step, *, user: bool = False) -> ExplainedNumber:
    """Tokens a second of a chip, or of one user."""
    tokens = float(step.scenario.workload.useful_tokens) if isinstance(step, Prediction) else step.tokens
    is_user = user and isinstance(step, PhasePrediction)
    over = step.scenario.workload.sequences if is_user else step.scenario.system.chips
    inputs = [
        given_input("tokens of a step", f"{tokens:,.0f}"),
        number_input("step time", step_number(step)),
        given_input("sequences" if is_user else "chips", f"{over:,}", "the workload" if is_user else "the system"),
    ]
    value = tokens / step.step_time_s / over
    formula = f"tokens / step time / {'sequences' if is_user else 'chips'}"
    return explain_number(value, "", formula, inputs, step_source(step), text=f"{value:,.0f}")


def cost_number(step: Step) -> ExplainedNumber | None:
    """Dollars of a million tokens at the chips' price; None without a price."""
    chip, scenario = step.scenario.system.chip, step.scenario
    if chip.price is None or step.bill.cost_usd is None:
        return None
    tokens = scenario.workload.tokens if isinstance(step, Prediction) else step.tokens
    return explain_number(
        step.bill.cost_usd * MILLION / tokens, "USD", "chips × price × step time / tokens × 10⁶",
        [given_input("chips", f"{scenario.system.chips:,}", f"system {scenario.system.name}"),
         quoted_input("price", chip.price, "USD/h"), number_input("step time", step_number(step)),
         given_input("tokens of a step", f"{tokens:,.0f}")],
        "rented at this price by the hour; network, storage and idle time are not counted",
    )  # fmt: skip


def energy_number(step: Step) -> ExplainedNumber | None:
    """Joules of a step at rated power; None where the family has none."""
    power = rated_power(step.scenario.system.chip)
    if power is None or step.bill.energy_j is None:
        return None
    return explain_number(
        step.bill.energy_j, "J", "chips × rated power × step time",
        [given_input("chips", f"{step.scenario.system.chips:,}", f"system {step.scenario.system.name}"),
         quoted_input("rated power", power, "W"), number_input("step time", step_number(step))],
        "every chip at its rated power throughout; hosts, network and cooling are not counted",
    )  # fmt: skip


def capacity_number(step: Step) -> ExplainedNumber:
    """Bytes of a chip that a plan may fill."""
    chip = step.scenario.system.chip
    capacity = step.memory.capacity_bytes if isinstance(step, Prediction) else step.memory.capacity
    return explain_number(
        capacity, "GiB", "usable memory of a chip: what the driver reports, else the data sheet's capacity",
        [quoted_input("capacity", chip.hbm.capacity, "B"), quoted_input("usable", chip.hbm.usable, "B")],
        f"catalog of {chip.id}",
    )  # fmt: skip


def memory_number(kind: str, size: float, where: str) -> ExplainedNumber:
    """Bytes of one kind on one rank."""
    formula = MEMORY_FORMULA.get(kind, f"{kind} of the fullest chip")
    source = "computed from the model's tensors and their placement; docs/concepts/prediction.md"
    return explain_number(size, "GiB", formula, [given_input("where", where, "the plan")], source)
