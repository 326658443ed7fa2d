"""What a step depends on apart from its ops: degrees, batch, sharding, overlap, as columns over scenarios."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from functools import cache

import numpy as np

from ridgeline.core.arrays import Array, Index, Mask, at
from ridgeline.core.records import dataclass
from ridgeline.hardware.chip import PEAK_KEYS
from ridgeline.hardware.topology import Torus
from ridgeline.ir.fusions import is_joined
from ridgeline.ir.ops import Num
from ridgeline.lowering.context import Degrees
from ridgeline.models.spec import LatentAttention
from ridgeline.plan.mesh import DP_LAST
from ridgeline.plan.optimizer import STATES
from ridgeline.plan.resolve import attention_format, resolve, would_split_tokens
from ridgeline.plan.scenario import Scenario
from ridgeline.plan.schedules import SCHEDULES
from ridgeline.plan.workload import Train

NAMES = tuple(SCHEDULES)  # a schedule is its place in this list
SHARDS = ("none", "zero1", "zero2", "zero3")


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanColumns:
    """Columns over scenarios; flags are 0 or 1, sizes in ranks, bytes and counts."""

    microbatches: Array
    pp: Array
    chunks: Array
    schedule: Array  # place in NAMES
    tp: Array
    replicas: Array  # dp x cp: ranks that hold the same dense weights
    edp: Array
    replica_stride: Array  # from one of these to the next; where stages lie between them, on the mean
    expert_stride: Array
    stage_stride: Array
    shard: Array  # 0..3
    shard_degree: Array
    weight_bytes: Array
    gradient_bytes: Array
    accumulate_bytes: Array  # read and written to add a microbatch's gradient of one parameter; 0 where products do
    accumulate_first: Array  # the first microbatch's gradient is added to an empty buffer, too
    optimizer_bytes: Array  # read and written by the optimizer for one parameter
    state_bytes: Array  # of states and master copy for one parameter
    boundary_bytes: Array  # one microbatch's activations between stages
    shared_rows: Array  # parameters of the embedding that the last stage of a pipeline holds, too
    overlap_tp: Array
    beside_tp: Array  # tensor-parallel communication of the backward that can run beside products does
    overlap_grad: Array
    overlap_gather: Array
    overlap_pp: Array
    overlap_moe: Array
    overlap_cp: Array  # keys and values travel round the ring beside attention
    overlap_offload: Array  # copies to the host and back run beside compute
    graph: Array
    xla: Array
    attention: Array  # the peak that attention runs at: place in PEAK_KEYS
    blocking: Array  # every launch is waited for
    offload: Array  # share of kept activations that travels to the host
    offload_optimizer: Array  # share of optimizer states that lives there
    nodes: Array
    reduces_each: Array  # zero2 reduces gradients after every microbatch
    hybrid: Array  # zero1 and zero2 shard over shard_degree ranks
    stage_gathered: Array  # zero3 under a pipeline gathers and reduces once a step

    @property
    def layer_by_layer(self) -> Mask:
        """Whether zero3 gathers the weights of each layer for each of its passes."""
        return np.asarray((self.shard == 3) & ~((self.stage_gathered > 0) & (self.pp > 1)), dtype=bool)

    @property
    def weights_apart(self) -> Mask:
        """Whether weight gradients run apart from input gradients (zero-bubble pipelines)."""
        return facts_of(self.schedule, "splits_backward") & (self.pp > 1)

    def at(self, rows: Index | slice) -> PlanColumns:
        """These rows, in this order; a column of one entry stays as it is."""
        return PlanColumns(**{name: at(getattr(self, name), rows) for name in PlanColumns.__slots__})


def facts_of(schedule: Array, fact: str) -> Mask:
    """A fact of `ScheduleKind` for a column of schedules.

    >>> facts_of(np.array([0.0, 3.0]), "splits_backward").tolist()
    [False, True]
    """
    return np.asarray(_schedule_fact(fact)[schedule.astype(np.int64)])


@cache
def _schedule_fact(fact: str) -> Mask:
    column = np.array([bool(getattr(kind, fact)) for kind in SCHEDULES.values()])
    column.setflags(write=False)
    return column


def plan_columns(scenarios: Sequence[Scenario]) -> PlanColumns:
    """The columns of several scenarios."""
    rows = [_plan_row(scenario) for scenario in scenarios]
    return PlanColumns(
        **{field.name: np.array([row[field.name] for row in rows], dtype=np.float64) for field in fields(PlanColumns)}
    )


def _plan_row(scenario: Scenario) -> dict[str, Num]:
    plan, mesh, work, switches = scenario.plan, scenario.plan.mesh, scenario.workload, resolve(scenario)
    gradients = switches.gradients.bytes_per_element
    weights = plan.precision.weights.bytes_per_element
    optimizer = work.optimizer if isinstance(work, Train) else None
    traffic = 0.0
    if optimizer is not None:
        master = optimizer.master.bytes_per_element if optimizer.master else 0.0
        states = 2 * STATES[optimizer.name] * optimizer.states.bytes_per_element
        clipping = 2 * gradients  # the norm reads every gradient, and clearing writes it
        traffic = states + 2 * master + gradients + weights * (1 if optimizer.master else 2) + clipping
    overlap, free = switches.overlap, not switches.launch_blocking  # a kernel that is waited for runs alone
    inner = scenario.system.tiers[0] if scenario.system.tiers else None
    torus = inner is not None and isinstance(inner.topology, Torus)
    degrees = Degrees(tp=mesh.tp, cp=mesh.cp, ep=mesh.ep, etp=mesh.etp, microbatch=plan.microbatch)
    return degree_columns(scenario, degrees, mesh.pp, mesh.dp) | {
        "chunks": plan.schedule.chunks,
        "schedule": NAMES.index(plan.schedule.name),
        "shard": SHARDS.index(plan.sharding.shard),
        "shard_degree": plan.shard_degree,
        "weight_bytes": weights,
        "gradient_bytes": gradients,
        "accumulate_bytes": 0.0 if is_joined(switches.fuses, "gradient sum") else weights + 2 * gradients,
        "accumulate_first": float(gradients > weights),
        "optimizer_bytes": traffic,
        "state_bytes": optimizer.bytes_per_param if optimizer else 0.0,
        "overlap_tp": float(overlap.tp and free),
        "beside_tp": float((overlap.tp or scenario.engine.exchanges.beside_products) and free),
        "overlap_grad": float(overlap.grad_reduce and free),
        "overlap_gather": float(overlap.param_gather and free),
        "overlap_pp": float(overlap.pp),
        "overlap_moe": float(overlap.moe and free),
        "overlap_cp": float(overlap.cp and free and ring_is_hidden(scenario)),
        "overlap_offload": float(overlap.offload),
        "graph": {"none": 0.0, "partial": 0.5, "full": 1.0}[switches.graph],
        "xla": float(switches.launch == "xla"),
        "attention": PEAK_KEYS.index(attention_format(plan.precision).peak),
        "blocking": float(switches.launch_blocking),
        "offload": plan.offload.activations,
        "offload_optimizer": plan.offload.optimizer,
        "nodes": 1 if torus else max(1, scenario.system.chips // (inner.chips if inner else 1)),
        "reduces_each": float(scenario.engine.exchanges.reduces_each),
        "hybrid": float(scenario.engine.exchanges.hybrid),
        "stage_gathered": float(scenario.engine.exchanges.stage_gathered),
    }


def ring_is_hidden(scenario: Scenario) -> bool:
    """Whether attention can begin before all of a context exchange has arrived: with the keys at hand, round a ring.

    Heads traded for sequence (all-to-all) are needed at once, before attention and behind it, an indexer picks among
    all keys, and some engines gather them: there attention waits, whatever the plan's `overlap.cp` says.
    """
    sparse = any(isinstance(block.mixer, LatentAttention) and block.mixer.indexer for block in scenario.model.blocks)
    at_once = sparse or scenario.engine.keys_gathered
    return scenario.plan.switches.cp_kind == "ring" and not at_once


def degree_columns(scenario: Scenario, degrees: Degrees, pp: Num, dp: Num) -> dict[str, Num]:
    """The columns that follow from degrees: numbers, or arrays over plans."""
    work, d = scenario.workload, degrees
    element_bytes = scenario.plan.precision.activations.bytes_per_element
    local = d.microbatch * work.seq / d.cp
    if shares_boundary(scenario):
        local = local / d.tp  # each tensor rank sends its share, gathered on arrival
    many = work.sequences // (dp * d.microbatch) if isinstance(work, Train) else 1
    dp_last = scenario.plan.mesh.order == DP_LAST
    between = pp if dp_last else 1
    return {
        "microbatches": np.maximum(many, 1),
        "pp": pp,
        "tp": d.tp,
        "replicas": dp * d.cp,
        "edp": d.tp * d.cp * dp // (d.ep * d.etp),
        "replica_stride": d.tp * between,
        "expert_stride": d.ep * d.etp * between,
        "stage_stride": d.tp * d.cp * (1 if dp_last else dp),
        "boundary_bytes": local * scenario.model.hidden * element_bytes,
        "shared_rows": _shared_rows(scenario) / d.tp,
    }


def shares_boundary(scenario: Scenario) -> bool:
    """Whether each tensor rank sends its share of a stage's output, or all of it."""
    return not scenario.engine.exchanges.boundary_whole or would_split_tokens(scenario)


def _shared_rows(scenario: Scenario) -> float:
    """Parameters of an embedding that both ends of a pipeline train: tied to the output head, or read again to predict
    further tokens. A compiled program has one copy for all stages, and adapters leave it as it is."""
    model, work = scenario.model, scenario.workload
    trains_rows = isinstance(work, Train) and work.task != "lora" and scenario.engine.launch.mode != "xla"
    shared = trains_rows and (model.embedding.tied or model.mtp is not None)
    return float(model.vocab * (model.embedding.width or model.hidden)) if shared else 0.0
