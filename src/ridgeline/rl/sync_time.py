"""Turn a model, two pools and a method into the seconds that new weights take to reach the rollout engines.

seconds = max(gather, wire, load, convert) + software x tensors or buckets

gather   trainer ranks put the shards of their weights together
wire     weights travel to the chips that generate: all of them to each, or its own shard alone (direct);
         colocated they are there already
load     engines copy them into place
convert  tensors of buckets and files are put into the engine's layout one by one, while others are on their way
"""

from __future__ import annotations

import math

from ridgeline.core.records import dataclass
from ridgeline.hardware.system import System
from ridgeline.models.params import count
from ridgeline.models.parts import ffn_parts
from ridgeline.models.spec import ModelSpec, Moe
from ridgeline.plan.rl_plan import RlPlan, SyncMethod
from ridgeline.plan.rl_roles import chip_shares
from ridgeline.plan.rl_workload import Rl
from ridgeline.plan.scenario import Scenario
from ridgeline.rl.parameters import RlParameters

SHARDED: frozenset[SyncMethod] = frozenset({"direct"})
"""Methods by which a chip receives its own shard alone."""
CONVERTED: frozenset[SyncMethod] = frozenset({"bucket", "checkpoint-engine", "file"})
"""Methods by which tensors are converted beside the wire; where they go one by one their software counts all."""
STORAGE_BYTES_PER_S = 2e9  # of a node's share of a file system: assumed
LOAD_PASSES = 3.0  # a copy reads and writes memory, and casts or transposes on the way
MIXER_TENSORS, NORM_TENSORS, MLP_TENSORS, END_TENSORS = 4, 2, 3, 3


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightSyncTime:
    """One weight sync in seconds.

    pieces   tensors or buckets, each of which software handles once
    """

    method: SyncMethod
    seconds: float
    gather_s: float
    wire_s: float
    load_s: float
    convert_s: float
    software_s: float
    bytes: float
    pieces: int


def weight_tensors(model: ModelSpec) -> int:
    """Tensors of a model as its checkpoint has them: every expert has its own.

    >>> from ridgeline.models.load import model
    >>> weight_tensors(model("llama3-8b")), weight_tensors(model("qwen3-30b-a3b")) > 18_000
    (291, True)
    """
    tensors = END_TENSORS - (1 if model.embedding.tied else 0)
    for index in model.order:
        block = model.blocks[index]
        tensors += MIXER_TENSORS * len(block.mixers) + NORM_TENSORS
        if isinstance(block.ffn, Moe):
            tensors += 1 + block.ffn.experts * MLP_TENSORS + (MLP_TENSORS if block.ffn.shared_hidden else 0)
        elif block.ffn is not None:
            tensors += MLP_TENSORS if ffn_parts(block.ffn, model.hidden) else 0
    return tensors


def weight_sync(scenario: Scenario[Rl], parameters: RlParameters) -> WeightSyncTime:
    """One sync of a scenario's actor into its rollout engines."""
    plan, rl = scenario.plan, scenario.plan.rl
    shares, method = chip_shares(scenario), rl.weight_sync.method
    weights = count(scenario.model).total
    size = weights * plan.precision.weights.bytes_per_element  # as the trainer has them: engines quantise what arrives
    held_ranks = plan.mesh.tp * plan.mesh.pp * (plan.shard_degree if plan.sharding.shard == "zero3" else 1)
    gather = (
        size * (1 - 1 / held_ranks) / _bytes_per_s(scenario.system, min(held_ranks, shares.train))
        if held_ranks > 1
        else 0.0
    )
    received_bytes = size / (rl.rollout.tp * rl.rollout.pp) if method in SHARDED else size
    gather = gather * received_bytes / size
    wire = received_bytes / _bytes_per_s(scenario.system, shares.total) if rl.separate else 0.0
    if method == "file":
        nodes = max(scenario.system.chips // scenario.system.node, 1)
        wire = size / (STORAGE_BYTES_PER_S * nodes) + size / STORAGE_BYTES_PER_S
    memory = scenario.system.chip.need("hbm.bandwidth").value
    load = LOAD_PASSES * size / (rl.rollout.tp * rl.rollout.pp) / memory
    convert = weight_tensors(scenario.model) * parameters.convert_s if method in CONVERTED else 0.0
    pieces = _pieces(rl, scenario.model, size)
    software = pieces * (parameters.tensor_s if method == "tensor" else parameters.bucket_s)
    return WeightSyncTime(
        method=method, seconds=max(gather, wire, load, convert) + software, gather_s=gather, wire_s=wire, load_s=load,
        convert_s=convert, software_s=software, bytes=size, pieces=pieces,
    )  # fmt: skip


def _pieces(rl: RlPlan, model: ModelSpec, size: float) -> int:
    """What software handles one by one: tensors, or buckets of them."""
    if rl.weight_sync.method == "tensor":
        return weight_tensors(model)
    if rl.weight_sync.method in ("direct", "file"):
        return 1
    return max(math.ceil(size / rl.weight_sync.bucket), 1)


def _bytes_per_s(system: System, chips: int) -> float:
    """One direction of a chip's links at the level that joins so many."""
    tier = next((tier for tier in system.tiers if tier.chips >= chips), system.tiers[-1] if system.tiers else None)
    return tier.need_bandwidth().value if tier else system.chip.need("hbm.bandwidth").value


def host_copy_seconds(system: System, size: float) -> float:
    """Seconds that a chip takes to send or fetch so many bytes of its own over its host's link; 0 where unknown."""
    rate = system.chip.host.bandwidth
    return size / rate.value if rate else 0.0
