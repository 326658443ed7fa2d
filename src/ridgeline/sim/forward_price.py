"""Turn engine steps of a serving instance into seconds: any number of step compositions in one pass.

    steps -> ops with columns for sizes -> seconds by class on every stage -> serving parameters -> seconds of the step

The same lowering and the same kernel prices as training's forward; what serving adds is in `cost.serving_calibration`.
A step of a pipelined instance passes its stages one after the other; the next step may enter once the slowest is free.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

import numpy as np

from ridgeline.core.arrays import Array, Index, Mask
from ridgeline.cost.calibration import Calibration, default_calibration
from ridgeline.cost.machine import PEAKS, machines_of, parameter_columns
from ridgeline.cost.op_table import PHASES, OpTable, op_table_over
from ridgeline.cost.price import SustainedRates, collective_op_seconds, price_ops, sustained_rates
from ridgeline.cost.profile_prices import measured_kernels, measured_ops
from ridgeline.cost.serving_calibration import ServingCalibration, shipped_serving
from ridgeline.cost.step_part import Bound
from ridgeline.ir.forward_steps import ForwardSteps, forward_steps
from ridgeline.ir.ops import Collective
from ridgeline.ir.program import Section, SectionRole
from ridgeline.lowering.forward import ForwardProgram, lower_forward
from ridgeline.plan.resolve import attention_format
from ridgeline.plan.scenario import Scenario
from ridgeline.plan.serving_settings import Speculation
from ridgeline.sim.memory.serving import limits_of

CLASSES = (
    "product_memory", "product_compute", "prefill_attention", "decode_attention", "stream", "kernels", "wire",
    "meetings",
)  # fmt: skip
"""Work of a step by what its time answers to: seconds, but for counts of kernels and of doublings that meet."""
PARTS: Mapping[str, tuple[Bound, str]] = MappingProxyType(
    {
        "matmul": ("memory", "matrix products: weights read, or multiplied"),
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
    return timed(scenario, work, serving or shipped_serving())


def forward_work(scenario: Scenario, steps: ForwardSteps, calibration: Calibration) -> ForwardWorkload:
    """The nominal work of engine steps."""
    drafted = scenario.plan.speculation
    if drafted is not None:
        steps = replace(steps, decode_tokens=1.0 + drafted.draft_tokens)
    graph_batch = 0 if scenario.plan.switches.graph == "none" else limits_of(scenario).graph_batch
    program = lower_forward(scenario, steps, graph_batch)
    rates = _rates(scenario, calibration)
    classes = _classes(scenario, program, rates, calibration)
    stages = np.array(program.stages, dtype=np.float64)
    return ForwardWorkload(
        work=np.einsum("ps,csn->cpn", stages, classes),
        sends=_sends(scenario, program, rates),
        draft=_draft(scenario, steps, drafted, (rates, calibration)),
        graphed=program.graphed,
        requests=steps.prefills + steps.decodes,
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Launch:
    """How steps reach the chip, for `sustained_rates`."""

    graph: Array
    xla: Array
    attention: Array


def _rates(scenario: Scenario, calibration: Calibration) -> SustainedRates:
    launch = _Launch(
        graph=np.zeros(1),
        xla=np.zeros(1),
        attention=np.array([float(PEAKS.index(attention_format(scenario.plan.precision).peak))]),
    )
    machines, parameters = machines_of([scenario.system]), parameter_columns(calibration, [scenario])
    made = sustained_rates(machines, parameters, plans=launch)
    return replace(made, links=replace(made.links, skew=np.zeros(1)))


def _classes(
    scenario: Scenario, program: ForwardProgram, rates: SustainedRates, calibration: Calibration
) -> Array:  # fmt: skip
    """Nominal work by class, section and step."""
    many = len(program.graphed)
    table = op_table_over(program.sections, many)
    measured = measured_ops(table, rates.machines, measured_kernels([scenario], calibration.profiles))
    with np.errstate(divide="ignore", invalid="ignore"):
        prices = price_ops(table, rates, measured=measured)
    matmul_s = np.where(table.matmuls[3] > 0, prices.matmul_s, 0.0)
    bound, decode = prices.matmul_memory_bound, table.attends[7] > 0
    none = np.zeros(0)
    made = (
        _sum(table, table.matmul_slot, np.where(bound, matmul_s, 0.0)),
        _sum(table, table.matmul_slot, np.where(bound, 0.0, matmul_s)),
        _sum(table, table.attend_slot, np.where(decode, 0.0, prices.attend_s)),
        _sum(table, table.attend_slot, np.where(decode, prices.attend_s, 0.0)),
        _sum(table, table.stream_slot, prices.stream_s),
        _sum(table, table.matmul_slot, table.matmuls[7])
        + _sum(table, table.attend_slot, table.attends[5])
        + _sum(table, table.stream_slot, table.streams[1]),
        _sum(table, table.collective_slot, prices.collective_s),
        _sum(table, table.collective_slot, np.log2(table.collectives[2]) if table.collectives.size else none),
    )
    return np.stack([one.reshape(len(program.sections), many) for one in made])


def _sum(table: OpTable, slots: Index, values: Array) -> Array:
    """Values of ops, summed up by section and step."""
    return np.bincount(slots // PHASES, values, len(table.cell))


def _sends(scenario: Scenario, program: ForwardProgram, rates: SustainedRates) -> Array:
    """Activations of a step from one pipeline stage to the next."""
    mesh = scenario.plan.mesh
    if mesh.pp == 1:
        return np.zeros(len(program.graphed))
    size = scenario.plan.precision.activations.bytes_per_element
    payload = program.ctx.tokens * scenario.model.hidden * size / mesh.tp
    send = Collective(
        label="send", kind="send", axis="pp", payload_bytes=payload, ranks=2, stride=mesh.tp * mesh.dp * mesh.cp
    )
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
    return classes[:, layer].sum(1) * drafts


def _drafting(sections: tuple[Section, ...], last: int) -> list[int]:
    """The sections that draft a token: the prediction block, or the model's last layer and its head."""
    roles = [section.role for section in sections]
    if SectionRole.MTP in roles:
        return [roles.index(SectionRole.MTP)]
    block = next(place for place, one in enumerate(sections) if one.key.block == last)
    return [block, roles.index(SectionRole.HEAD)]


def timed(scenario: Scenario, load: ForwardWorkload, serving: ServingCalibration) -> ForwardSeconds:
    """Seconds of steps from their nominal work and the serving parameters."""
    chip, engine = scenario.system.chip, scenario.engine
    own = {name: serving.value(name, chip, engine) for name in ("kernel", "all_reduce", "step", "request", "issue")}
    pace = np.array([serving.value(name, chip, engine) for name in CLASSES[:4]] + [1.0])
    work, stages = load.work, load.work.shape[1]
    seconds = work[:5] * pace[:, None, None]
    wire = work[6] * serving.value("wire", chip, engine) + work[7] * own["all_reduce"]
    chip_s = seconds.sum(0) + wire
    gaps = work[5] * own["kernel"]
    stall = np.where(load.graphed, 0.0, np.maximum(work[5] * own["issue"] - chip_s - gaps, 0.0))
    draft = (load.draft[:5] * pace[:, None]).sum(0) + load.draft[5] * own["kernel"]
    draft = draft + load.draft[6] * serving.value("wire", chip, engine) + load.draft[7] * own["all_reduce"]
    host = np.where(load.requests > 0, own["step"] + own["request"] * load.requests, 0.0)
    parts = {
        "matmul": (seconds[0] + seconds[1]).sum(0),
        "attention": seconds[2].sum(0),
        "kv-cache": seconds[3].sum(0),
        "memory": seconds[4].sum(0),
        "kernel": (gaps + stall).sum(0),
        "network": wire.sum(0),
        "pp": load.sends * (stages - 1),
        "draft": draft,
        "host": host,
    }
    by_stage = chip_s + gaps + stall
    total = np.sum(list(parts.values()), axis=0)
    slowest = by_stage.max(0) + load.sends * (stages > 1) + draft + host
    products = np.maximum(parts["matmul"], 1e-30)
    return ForwardSeconds(
        seconds=total,
        interval_s=np.minimum(slowest, total),
        parts=MappingProxyType(parts),
        memory_bound=seconds[0].sum(0) / products,
    )
