"""Turn a plan's mesh, context exchange, batch and pipeline into MaxText's options.

MaxText's mesh is data x stage x fsdp x context x tensor x expert, each axis split into a part between slices (dcn) and
one inside (ici). A slice is what a TPU's own network joins; of other chips it is one host, because XLA numbers slices
by host there. Weights are split over fsdp, context and expert; experts take ranks of data parallelism, so

    dp = data * fsdp * expert        shard_degree = fsdp * context * expert
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import gcd, inf, nextafter

from ridgeline.core.errors import InputError, Problem
from ridgeline.hardware.system import System
from ridgeline.models.spec import Attention, LatentAttention, Mlp, ModelSpec
from ridgeline.plan.scenario import Scenario
from ridgeline.plan.workload import Train
from ridgeline.targets.decisions import decisions_of, has_experts
from ridgeline.targets.launch import nodes_of
from ridgeline.targets.ledger import Fixed, Lose, Piece, Say
from ridgeline.targets.maxtext.names import MODELS_NAMED, devices_of
from ridgeline.targets.vendors import vendor_of

OUTERMOST = ("pipeline", "data", "fsdp", "expert", "context", "tensor", "tensor_sequence")


def on_tpu(system: System) -> bool:
    """Whether the chips are TPUs; everything else MaxText calls a gpu."""
    return vendor_of(system).device == "tpu"


def batch(scenario: Scenario) -> Iterator[Piece]:
    """A pipeline cuts its microbatches out of one batch of all chips; without one gradients are accumulated."""
    work, plan = scenario.workload, scenario.plan
    assert isinstance(work, Train)
    yield Say("max_target_length", work.seq, "workload.seq")
    sequences, steps = work.sequences, scenario.microbatches
    if plan.mesh.pp > 1:
        count, sequences, lost = cut(scenario)
        steps = 1
        yield Say("num_pipeline_microbatches", count, "plan.microbatch")
        yield from lost
    devices = scenario.system.chips * devices_of(scenario.system.chip.id)
    each = share(sequences // steps, devices)
    yield Say("per_device_batch_size", each, "workload.global_batch", "plan.microbatch")
    yield Say("gradient_accumulation_steps", steps, "workload.global_batch", "plan.microbatch")


def share(sequences: int, devices: int) -> float:
    """The number that MaxText multiplies by devices and cuts to a whole one, so that it comes to these sequences.

    >>> share(8, 64), int(share(27, 49) * 49), int(27 / 49 * 49)
    (0.125, 27, 26)
    """
    each = sequences / devices
    while int(each * devices) < sequences:
        each = nextafter(each, inf)
    return each


def cut(scenario: Scenario) -> tuple[int, int, list[Lose]]:
    """Microbatches of a pass, a multiple of the stages; the sequences of the step; and what had to change."""
    plan = scenario.plan
    pp, dp, count = plan.mesh.pp, plan.mesh.dp, scenario.microbatches
    held = plan.microbatch * count
    if count % pp == 0:
        return count, held * dp, []
    why = f"the pipeline takes a multiple of its {pp} stages in microbatches"
    fits = [size for size in range(pp, held + 1, pp) if held % size == 0]
    if fits:
        nearest = min(fits, key=lambda size: (abs(size - count), -size))
        return nearest, held * dp, [Lose("plan.microbatch", f"{why}: written with {nearest} of {held // nearest}")]
    more = -(-count // pp) * pp
    sequences = more * plan.microbatch * dp
    return more, sequences, [Lose("workload.global_batch", f"{why}: written with {sequences} sequences")]


def mesh(scenario: Scenario) -> Iterator[Piece]:
    """Every axis, between slices and inside one."""
    plan, axes = scenario.plan, scenario.plan.mesh
    yield from axes_of(scenario)[1]
    paths = {
        "pipeline": ("plan.pp",),
        "data": ("plan.dp", "plan.shard_degree", "plan.shard", "system.chips"),
        "fsdp": ("plan.dp", "plan.shard_degree", "plan.shard", "system.chips"),
        "expert": ("plan.ep", "plan.dp"),
        "context": ("plan.cp",),
        "tensor": ("plan.tp", "plan.sequence_parallel"),
        "tensor_sequence": ("plan.tp", "plan.sequence_parallel"),
    }
    parts = placed(scenario)
    for axis, (between, within) in parts.items():
        yield Say(f"dcn_{axis}_parallelism", between, *paths[axis])
        yield Say(f"ici_{axis}_parallelism", within, *paths[axis])
    if plan.sharding.shard == "zero1":
        yield Say("shard_optimizer_over_data", True, "plan.shard")
    if axes.cp > 1:
        yield from exchange(scenario, parts["context"][0])
    yield Fixed("plan.etp", axes.tp if has_experts(scenario.model) else 1, "the tensor axis splits experts too")
    yield Fixed("plan.moe_dispatch", "all-to-all", "tokens are exchanged with ragged all-to-all")


def placed(scenario: Scenario) -> dict[str, tuple[int, int]]:
    """Every axis as (between slices, inside one), in devices as JAX counts them."""
    degrees, _ = axes_of(scenario)
    axis = second(scenario)
    if axis:
        degrees = {**degrees, axis: degrees[axis] * 2}
    return split(degrees, scenario.system.chips // inside(scenario.system))


def second(scenario: Scenario) -> str:
    """The axis that takes the second device of a chip, where JAX counts two: data's if a microbatch halves."""
    plan = scenario.plan
    if devices_of(scenario.system.chip.id) == 1:
        return ""
    if plan.microbatch % 2:
        return "tensor_sequence" if plan.sequence_parallel else "tensor"
    return "fsdp" if plan.sharding.shard in ("zero2", "zero3") else "data"


def axes_of(scenario: Scenario) -> tuple[dict[str, int], list[Lose]]:
    """The degree of every axis, and what could not be kept."""
    plan, axes = scenario.plan, scenario.plan.mesh
    shard, lost = plan.sharding.shard, []
    ep = axes.ep
    if axes.dp % ep:
        lost.append(Lose("plan.ep", "experts take ranks of data parallelism only"))
        ep = gcd(axes.dp, ep)
    fsdp = 1
    if shard in ("zero2", "zero3"):
        fsdp, rest = divmod(plan.shard_degree, axes.cp * ep)
        if rest or not fsdp or (axes.dp // ep) % fsdp:
            lost.append(Lose("plan.shard_degree", "a shard is split over whole context and expert groups"))
            fsdp = axes.dp // ep
    if shard == "zero2":
        lost.append(Lose("plan.shard", "gradients are sharded with the weights: written as zero3"))
    if shard in ("none", "zero1") and axes.cp * ep > 1:
        lost.append(Lose("plan.shard", "weights are split over context and expert ranks in any case"))
    if shard == "zero1" and plan.shard_degree != axes.dp:
        lost.append(Lose("plan.shard_degree", "the optimizer is split over all of the data axis"))
    sequence = "tensor_sequence" if plan.sequence_parallel else "tensor"
    degrees = {"pipeline": axes.pp, "data": axes.dp // ep // fsdp, "fsdp": fsdp, "expert": ep, "context": axes.cp}
    return degrees | {"tensor": 1, "tensor_sequence": 1} | {sequence: axes.tp}, lost


def inside(system: System) -> int:
    """Chips of one slice: a TPU's own network, or one host of other chips."""
    if on_tpu(system):
        size = system.tiers[0].chips if system.tiers else system.chips
        return size if system.chips % size == 0 else system.chips
    return nodes_of(system)[1]


def split(degrees: Mapping[str, int], slices: int) -> dict[str, tuple[int, int]]:
    """Each axis as (between slices, inside one); outer axes go between slices first.

    >>> split({"pipeline": 2, "data": 4, "fsdp": 8}, 4)
    {'pipeline': (2, 1), 'data': (2, 2), 'fsdp': (1, 8)}
    """
    parts: dict[str, tuple[int, int]] = {}
    for axis in OUTERMOST:
        degree = degrees.get(axis)
        if degree is not None:
            between = gcd(degree, slices)
            slices //= between
            parts[axis] = (between, degree // between)
    return parts


def exchange(scenario: Scenario, between: int) -> Iterator[Piece]:
    """How context ranks exchange keys. GPUs pass them around a ring; on TPUs some models must gather them at once."""
    kind = scenario.plan.switches.cp_kind
    if not on_tpu(scenario.system):
        yield Say("context_parallel_strategy", "ring", "plan.cp_kind")
        if kind != "ring":
            yield Lose("plan.cp_kind", "heads are exchanged for sequence on TPUs only: written as a ring")
        return
    why = _no_ring(scenario) if kind == "ring" else _no_ulysses(scenario, between)
    if why:
        yield Say("context_parallel_strategy", "all_gather")
        yield Lose("plan.cp_kind", f"{why}: keys are gathered at once")
        return
    yield Say("context_parallel_strategy", "ring" if kind == "ring" else "ulysses", "plan.cp_kind")
    yield Say("use_tokamax_splash", True)
    if kind != "ring":
        yield Say("context_parallel_load_balance", False)


def _no_ring(scenario: Scenario) -> str:
    work, cp = scenario.workload, scenario.plan.mesh.cp
    assert isinstance(work, Train)
    latent = any(isinstance(block.mixer, LatentAttention) for block in scenario.model.blocks)
    if cp % 2 or work.seq % (cp * cp):
        return f"a ring takes an even number of ranks, and sequences that {cp} squared divides"
    if scenario.model.mtp or (latent and work.packed):
        return "a ring takes no prediction of further tokens and no latent attention over packed documents"
    return _not_plain(scenario, LatentAttention)


def _no_ulysses(scenario: Scenario, between: int) -> str:
    cp = scenario.plan.mesh.cp
    mixers = [block.mixer for block in scenario.model.blocks if isinstance(block.mixer, Attention)]
    if between > 1:
        return "heads are exchanged inside a slice only"
    if any(mixer.heads % cp or mixer.kv_heads % cp for mixer in mixers):
        return f"{cp} ranks do not divide the heads"
    return _not_plain(scenario)


def _not_plain(scenario: Scenario, *also: type) -> str:
    """What an exchange by TPU kernels does not take: windows, sinks, other mixers, attention that is not fused."""
    if decisions_of(scenario)["plan.attention"] != "flash":
        return "the exchange is part of the fused kernel"
    for block in scenario.model.blocks:
        mixer = block.mixer
        if isinstance(mixer, Attention) and (mixer.window or mixer.sinks):
            return "windows and sinks are not exchanged"
        if not isinstance(mixer, (Attention, *also)):
            return "this kind of attention is not exchanged"
    return ""


def pipeline(scenario: Scenario) -> Iterator[Piece]:
    """Equal stages, repeated in a circle for virtual ones; layers that do not divide stay outside."""
    plan, held = scenario.plan, scenario.placement
    pp, chunks = plan.mesh.pp, plan.schedule.chunks
    if pp == 1:
        return
    layers = piped(scenario.model)
    if layers < pp:
        raise InputError(Problem(path="plan.pp", given=str(pp), expected=f"at most {layers}, a layer for each stage"))
    if layers < pp * chunks:
        chunks = 1
        yield Lose("plan.schedule.chunks", f"{layers} layers are too few: written without repeats")
    each = layers // (pp * chunks)
    inner = each * pp * chunks
    yield Say("num_layers_per_pipeline_stage", each, "plan.placement", "plan.schedule.chunks")
    yield Say("num_pipeline_repeats", chunks, "plan.schedule.chunks")
    yield Say("pipeline_parallel_layers", inner, "plan.placement")
    if held != (each,) * (pp * chunks):
        outside = scenario.model.layers - inner
        why = f"stages hold equally many layers: written with {each} in each"
        yield Lose("plan.placement", why + (f", and {outside} before or after the pipeline" if outside else ""))
    why = "a scan over stages and its derivative: all forwards, then all backwards, in the memory that takes"
    yield Fixed("plan.schedule.name", "gpipe", why)


def piped(model: ModelSpec) -> int:
    """The layers a pipeline may hold: DeepSeek's dense ones come before it."""
    if not MODELS_NAMED.get(model.id, "").startswith(("deepseek", "kimi")):
        return model.layers
    return sum(not isinstance(model.blocks[index].ffn, Mlp) for index in model.order)
