"""Turn engine steps of a serving instance into seconds: any number of step compositions in one pass.

    steps -> ops with columns for sizes -> seconds by class on every stage -> serving parameters -> seconds of the step

The same lowering and the same kernel prices as training's forward; what serving adds is in `cost.calibration`.
A step of a pipelined instance passes its stages one after the other; the next step may enter once the slowest is free.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

import numpy as np

from ridgeline.comm.closed_form import Links
from ridgeline.core.arrays import Array, Index, Mask, at
from ridgeline.core.dtype import PEAKS
from ridgeline.core.records import dataclass
from ridgeline.cost import (
    SERVING_PARAMETERS,
    Calibration,
    ServingCalibration,
    default_calibration,
    owners,
    shipped_serving,
)
from ridgeline.cost.pricing import (
    Machines,
    MeasuredOps,
    OpTable,
    ParameterColumns,
    SustainedRates,
    collective_op_seconds,
)
from ridgeline.cost.step_part import Bound
from ridgeline.ir.forward_steps import ForwardSteps, forward_steps
from ridgeline.ir.ops import Attend, Collective, MatMul, Num
from ridgeline.ir.program import PHASES, Section, SectionRole
from ridgeline.lowering.program import ForwardProgram, lower_forward
from ridgeline.lowering.softmax_core import VECTOR_ATTENTION
from ridgeline.plan.resolve import attention_format
from ridgeline.plan.scenario import Scenario
from ridgeline.plan.serving_plan import Speculation
from ridgeline.sim.memory.serving import limits_of

CLASSES = (
    "product_memory", "product_compute", "expert_product", "prefill_attention", "decode_attention", "stream",
    "kernels", "wire", "meetings", "decode_vector", "expert_memory",
)  # fmt: skip
"""Work of a step by what its time answers to: seconds, but for counts of kernels and of ranks that meet, doubled."""
PRODUCTS = (*CLASSES[:3], "expert_memory")
SIDE_BY_SIDE = 6.0  # how sharply the longer of chip and host decides a step that no graph holds
PARTS: Mapping[str, tuple[Bound, str]] = MappingProxyType(
    {
        "matmul": ("memory", "matrix products: weights read, or multiplied"),
        "experts": ("memory", "matrix products of routed experts"),
        "attention": ("compute", "attention of prompts, or a state scan"),
        "kv-cache": ("memory", "attention of decodes: cached keys and values read"),
        "memory": ("memory", "norms, activations, casts, cache writes, sampling"),
        "kernel": ("host", "around kernels, and waiting for the host to issue them"),
        "network": ("network", "tensor- and expert-parallel collectives"),
        "pp": ("network", "sends between pipeline stages"),
        "draft": ("memory", "drafting tokens that the step verifies"),
        "host": ("host", "between steps: scheduling, inputs, outputs"),
    }
)
"""Parts of a step as predictions list them: what bounds each, and what it is."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ForwardSeconds:
    """Priced engine steps.

    seconds      of a step, from its inputs to its tokens
    interval_s   until the next step can begin: the same, or the slowest stage of a pipeline
    parts        seconds by part of `PARTS`; they sum to `seconds`
    memory_bound share of the products' time in which memory limits them
    """

    seconds: Array
    interval_s: Array
    parts: Mapping[str, Array]
    memory_bound: Array


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ForwardWorkload:
    """Nominal work of engine steps, before serving parameters.

    work        by class of `CLASSES`, stage and step
    sends       seconds between two stages, by step
    draft       as `work`, of all drafted tokens of the step; its first axis alone
    graphed     steps that replay a captured graph
    requests    rows of logits' requests, by step
    """

    work: Array
    sends: Array
    draft: Array
    graphed: Mask
    requests: Array


def price_forward(
    scenario: Scenario,
    steps: ForwardSteps,
    calibration: Calibration | None = None,
    serving: ServingCalibration | None = None,
) -> ForwardSeconds:
    """Seconds of engine steps of one instance (one attention-data-parallel rank's scheduler), all in one pass.

    The steps' `decode_tokens` follow the plan's speculation where it has one.

    >>> import ridgeline
    >>> from ridgeline.ir.forward_steps import forward_steps
    >>> made = ridgeline.scenario({"model": "llama3-8b", "system": "1xh100-sxm",
    ...     "workload": {"kind": "decode", "context": 1024}, "plan": {"engine": "vllm"}})
    >>> batch = np.array([1.0, 8.0, 64.0])
    >>> found = price_forward(made, forward_steps(decodes=batch, kv_tokens=1024 * batch))
    >>> bool((np.diff(found.seconds) > 0).all()), bool((np.diff(found.seconds / batch) < 0).all())
    (True, True)
    """
    work = forward_work(scenario, steps, calibration or default_calibration())
    return forward_seconds(scenario, work, serving or shipped_serving())


def forward_work(
    scenario: Scenario, steps: ForwardSteps, calibration: Calibration, rates: SustainedRates | None = None
) -> ForwardWorkload:
    """The nominal work of engine steps; `rates` of other chips than the scenario's, one for each step."""
    drafted = scenario.plan.speculation
    if drafted is not None:
        steps = replace(steps, decode_tokens=1.0 + drafted.draft_tokens)
    graph_batch = 0 if scenario.plan.switches.graph == "none" else limits_of(scenario).graph_batch
    program = lower_forward(scenario, steps, graph_batch)
    rates = rates or forward_rates(scenario, Machines.of([scenario.system]), calibration)
    classes = _classes(scenario, program, rates, calibration)
    stages = np.array(program.stages, dtype=np.float64)
    return ForwardWorkload(
        work=np.einsum("ps,csn->cpn", stages, classes),
        sends=_sends(scenario, program, rates),
        draft=_draft(scenario, steps, drafted, (rates, calibration)),
        graphed=program.graphed,
        requests=steps.prefills + steps.decodes,
    )


def forward_rates(scenario: Scenario, machines: Machines, calibration: Calibration) -> SustainedRates:
    """What machines sustain under a scenario's engine when it serves, by row."""
    parameters = ParameterColumns.of(calibration, [scenario])
    attention = np.array([float(PEAKS.index(attention_format(scenario.plan.precision).peak))])
    rates = SustainedRates.bare(machines, parameters, attention)
    return replace(rates, links=replace(rates.links, skew=np.zeros(len(machines.scale_up))))


def _classes(
    scenario: Scenario, program: ForwardProgram, rates: SustainedRates, calibration: Calibration
) -> Array:  # fmt: skip
    """Nominal work by class, section and step."""
    many = len(program.graphed)
    table = OpTable.over(program.sections, many)
    measured = MeasuredOps.of(table, rates.machines, [scenario], calibration.profiles)
    with np.errstate(divide="ignore", invalid="ignore"):
        padded = table.padded_flops(rates.machines, served=True)
        prices = rates.price_ops(table, padded, measured=measured)
    matmul_s = np.where(table.matmuls[3] > 0, prices.matmul_s, 0.0)
    bound, decode = prices.matmul_memory_bound, table.attends[7] > 0
    by_vector = np.repeat(_on_vector_units(program.sections), many)
    experts = np.repeat(_of_experts(program.sections), many)
    none = np.zeros(0)
    exponentials = at(rates.machines.exponentials, table.slot_cell[table.attend_slot])
    links = rates.links.at(table.slot_cell[table.collective_slot])
    made = (
        _sum(table, table.matmul_slot, np.where(bound & ~experts, matmul_s, 0.0)),
        _sum(table, table.matmul_slot, np.where(bound | experts, 0.0, matmul_s)),
        _sum(table, table.matmul_slot, np.where(experts & ~bound, matmul_s, 0.0)),
        _sum(table, table.attend_slot, np.where(decode, 0.0, prices.attend_s)),
        _sum(table, table.attend_slot, np.where(decode, prices.attend_s, 0.0)),
        _sum(table, table.stream_slot, prices.stream_s),
        _sum(table, table.matmul_slot, table.matmuls[7])
        + _sum(table, table.attend_slot, table.attends[5])
        + _sum(table, table.stream_slot, table.streams[1]),
        _sum(table, table.collective_slot, _collectives(table, prices.collective_s, links)),
        _sum(table, table.collective_slot, np.log2(table.collectives[2]) if table.collectives.size else none),
        _sum(table, table.attend_slot, np.where(by_vector, table.attends[0] / 2 / exponentials, 0.0)),
        _sum(table, table.matmul_slot, np.where(experts & bound, matmul_s, 0.0)),
    )
    return np.stack([one.reshape(len(program.sections), many) for one in made])


def _collectives(table: OpTable, ringed_s: Array, links: Links) -> Array:
    """Collectives of a step: as the library runs them, or for small sums inside a domain the engine's own one-shot
    all-reduce, in which every rank reads what all others hold: (R - 1) payload / link, and one meeting."""
    if not table.collectives.size:
        return ringed_s
    payload, ranks, stride = table.collectives[1:4]
    inside = table.is_all_reduce & (ranks * stride <= links.domain)
    return np.where(inside, np.minimum(ringed_s, (ranks - 1) * payload / links.scale_up), ringed_s)


def _of_experts(sections: tuple[Section, ...]) -> Mask:
    """Which products of sections, in the order of their table, are those of routed experts."""
    labels = [op.label for section in sections for op in section.forward if isinstance(op, MatMul)]
    return np.array([label.startswith("experts") for label in labels], dtype=bool)


def _on_vector_units(sections: tuple[Section, ...]) -> Mask:
    """Which attention kernels of sections, in the order of their table, work through the cache on vector units: a
    cached number and query head takes what an exponential takes there, sixteen flops."""
    labels = [op.label for section in sections for op in section.forward if isinstance(op, Attend)]
    return np.array([label == VECTOR_ATTENTION for label in labels], dtype=bool)


def _sum(table: OpTable, slots: Index, values: Array) -> Array:
    """Values of ops, summed up by section and step."""
    return np.asarray(np.bincount(slots // PHASES, values, len(table.cell)), dtype=np.float64)


def _sends(scenario: Scenario, program: ForwardProgram, rates: SustainedRates) -> Array:
    """Activations of a step from one pipeline stage to the next."""
    mesh = scenario.plan.mesh
    if mesh.pp == 1:
        return np.zeros(len(program.graphed))
    size = scenario.plan.precision.activations.bytes_per_element
    payload = program.ctx.tokens * scenario.model.hidden * size / mesh.tp
    send = Collective(label="send", kind="send", axis="pp", payload_bytes=payload, ranks=2, stride=mesh.stride("pp"))
    return np.broadcast_to(collective_op_seconds([send], rates.links), (len(program.graphed),)).copy()


def _draft(
    scenario: Scenario, steps: ForwardSteps, speculation: Speculation | None, priced: tuple[SustainedRates, Calibration]
) -> Array:
    """Drafting k tokens: k passes of one layer and the head over the decoding requests, one token each."""
    nothing = np.zeros((len(CLASSES), len(steps)))
    if speculation is None or speculation.draft == "ngram":
        return nothing
    once = forward_steps(decodes=np.maximum(steps.decodes, 1e-9), kv_tokens=steps.kv_tokens)
    program = lower_forward(scenario, once)
    classes = _classes(scenario, program, priced[0], priced[1])
    layer = _drafting(program.sections, scenario.model.order[-1])
    drafts = np.where(steps.decodes > 0, float(speculation.draft_tokens), 0.0)
    return np.asarray(classes[:, layer].sum(1) * drafts, dtype=np.float64)


def _drafting(sections: tuple[Section, ...], last: int) -> list[int]:
    """The sections that draft a token: the prediction block, or the model's last layer and its head."""
    roles = [section.role for section in sections]
    if SectionRole.MTP in roles:
        return [roles.index(SectionRole.MTP)]
    block = next(place for place, one in enumerate(sections) if one.key.block == last)
    return [block, roles.index(SectionRole.HEAD)]


def class_seconds(work: Array, graphed: Mask, values: Mapping[str, Num]) -> dict[str, Array]:
    """Seconds by part of nominal work (classes first, whatever stages and steps follow) under parameter values.

    Kernels leave gaps; where no graph holds them the chip waits for the host that issues them. Both run side by side,
    and now one waits, now the other, so that a step takes

        (chip^p + host^p)^(1 / p)        p = `SIDE_BY_SIDE`: the longer of the two, and 12 % more where they are alike
    """
    memory, compute, experts, prefill, decode, streams, kernels, wire, meetings, vector, read = work
    parts = {
        "matmul": memory * values["product_memory"] + compute * values["product_compute"],
        "experts": experts * values["expert_product"] + read * values["expert_memory"],
        "attention": prefill * values["prefill_attention"],
        "kv-cache": np.maximum(decode * values["decode_attention"], vector * values["decode_vector"]),
        "memory": streams,
        "network": wire * values["wire"] + meetings * values["all_reduce"],
    }
    busy = sum(parts.values()) + kernels * values["kernel"]
    stall = np.where(graphed, 0.0, overlap_host(busy, kernels * values["issue"]) - busy)
    return parts | {"kernel": kernels * values["kernel"] + stall}


def overlap_host(chip: Array, host: Array) -> Array:
    """Seconds of a chip and its host side by side.

    >>> overlap_host(np.array([1.0, 1.0, 1.0]), np.array([0.0, 1.0, 3.0])).round(3).tolist()
    [1.0, 1.122, 3.001]
    """
    longer = np.maximum(np.maximum(chip, host), 1e-30)
    share = (chip / longer) ** SIDE_BY_SIDE + (host / longer) ** SIDE_BY_SIDE
    return np.asarray(longer * share ** (1 / SIDE_BY_SIDE), dtype=np.float64)


def host_seconds(requests: Array, values: Mapping[str, Num]) -> Array:
    """Between two steps: what scheduling, inputs and outputs of so many requests take."""
    return np.where(requests > 0, values["step"] + values["request"] * requests, 0.0)


def serving_values(scenario: Scenario, serving: ServingCalibration) -> dict[str, float]:
    """Every serving parameter of a scenario's chips and engine."""
    own = owners(scenario.system.chip, scenario.engine)
    values = {name: serving.owner_value(name, own) for name in SERVING_PARAMETERS}
    return values | {name: values[name] * values["weight_only"] for name in PRODUCTS if is_weight_only(scenario)}


def is_weight_only(scenario: Scenario) -> bool:
    """Whether weights are stored narrower than they are multiplied."""
    precision = scenario.plan.precision
    return precision.weights.bits < precision.compute.bits


def forward_seconds(
    scenario: Scenario, load: ForwardWorkload, serving: ServingCalibration, values: Mapping[str, Num] | None = None
) -> ForwardSeconds:
    """Seconds of steps from their nominal work and the serving parameters; `values` by step take their place."""
    values, stages = values or serving_values(scenario, serving), load.work.shape[1]
    by_stage = class_seconds(load.work, load.graphed, values)
    draft = sum(class_seconds(load.draft, np.ones_like(load.graphed), values).values())
    parts = {name: by_stage[name].sum(0) for name in PARTS if name in by_stage}
    parts |= {"pp": load.sends * (stages - 1), "draft": draft, "host": host_seconds(load.requests, values)}
    total = np.sum(list(parts.values()), axis=0)
    slowest = np.sum(list(by_stage.values()), axis=0).max(0)
    interval = slowest + load.sends * (stages > 1) + parts["draft"] + parts["host"]
    products = np.maximum(load.work[[0, 1, 2, 10]].sum((0, 1)), 1e-30)
    return ForwardSeconds(
        seconds=total,
        interval_s=np.minimum(interval, total),
        parts=MappingProxyType({name: parts[name] for name in PARTS}),
        memory_bound=load.work[[0, 10]].sum((0, 1)) / products,
    )
