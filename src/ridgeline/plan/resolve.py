"""Turn a plan and the engine that runs it into values with nothing left open, and those into decisions by name.

A plan may leave a switch to its engine's habit. Whoever prices, simulates, executes or exports the plan reads the
resolved value, so that what was predicted is what is launched. `in_effect` says where a decision has any effect at all:
without context ranks nobody exchanges keys. Names of decisions are those of a scenario file below `plan`, for one mesh
or for columns of many; beside them stand facts of the question that a capability may depend on (`model.experts`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Literal, TypeAlias

from ridgeline.core.documents import JsonMapping, JsonObject
from ridgeline.core.dtype import DType
from ridgeline.core.records import dataclass
from ridgeline.ir.fusions import is_joined
from ridgeline.models.spec import Attention, LatentAttention, Mamba2, ModelSpec, Moe, Recurrence
from ridgeline.plan.engine import Engine, ExpertLaunch
from ridgeline.plan.plan import NARROW, Precision, Switches
from ridgeline.plan.scenario import Scenario
from ridgeline.plan.workload import Train, Workload

if TYPE_CHECKING:
    from ridgeline.core.arrays import Array, Index, Mask

OVERLAPPED = ("grad-reduce", "param-gather", "tp", "pp", "cp", "moe", "offload")
# pointwise fusions that a compiler makes: gone where an engine that compiles by habit is told not to
COMPILED = frozenset({"bias-activation", "bias-dropout-add", "rotary", "cross-entropy", "elementwise"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Overlaps:
    """Which communication runs beside compute, as `plan.overlap` names it."""

    grad_reduce: bool
    param_gather: bool
    tp: bool
    pp: bool
    cp: bool
    moe: bool
    offload: bool

    def __getitem__(self, word: str) -> bool:
        """By the word of the plan's vocabulary, `grad-reduce` and so on."""
        return bool(getattr(self, word.replace("-", "_")))


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolved:
    """A plan's switches as they take effect.

    compiled            chains of pointwise ops run as one kernel
    graph, launch       CUDA graphs, and how else work reaches the chip
    launch_blocking     the host waits for every kernel (CUDA_LAUNCH_BLOCKING=1): no kernel runs beside another
    sequence_parallel   norms and dropouts are split over the tensor-parallel ranks too
    width_sharded       the same by width, by the engine's own annotations
    keys_gathered       a ring of keys and values is one all-gather before attention
    precision           number formats, gradients among them
    scaling             what shares a scale in a narrow format; None where nothing is scaled
    fuses               words of `ir.fusions.FUSIONS`
    """

    attention: Literal["flash", "unfused"]
    compiled: bool
    graph: Literal["none", "partial", "full"]
    launch: Literal["eager", "compiled", "graph", "xla"]
    launch_blocking: bool
    sequence_parallel: bool
    width_sharded: bool
    keys_gathered: bool
    cp_kind: Literal["ring", "all-to-all"]
    moe_dispatch: Literal["all-to-all", "deepep", "hybridep"]
    moe_imbalance: float
    expert_launch: ExpertLaunch
    precision: Precision
    fuses: frozenset[str]
    overlap: Overlaps

    @property
    def gradients(self) -> DType:
        """The format in which gradients are accumulated and reduced."""
        assert self.precision.gradients is not None
        return self.precision.gradients

    @property
    def token_dispatch_once(self) -> bool:
        """Whether a token that goes to several experts of one domain is sent there once (DeepEP, HybridEP)."""
        return self.moe_dispatch != "all-to-all"


def resolve(scenario: Scenario) -> Resolved:
    """What a scenario's plan does under its engine.

    >>> import ridgeline
    >>> made = ridgeline.scenario({"model": "llama3-8b", "system": "8xh100-sxm",
    ...     "workload": {"seq": 8192, "global_batch": 8}, "plan": {"tp": 4, "pp": 2}})
    >>> found = resolve(made)
    >>> found.attention, found.gradients.id, found.sequence_parallel, found.overlap.grad_reduce, found.overlap.pp
    ('flash', 'fp32', True, True, False)
    """
    plan, engine = scenario.plan, scenario.engine
    switches, precision = plan.switches, plan.precision
    is_compiled = compiles(scenario) if switches.compiled is None else switches.compiled
    return Resolved(
        attention=switches.attention or engine.attention,
        compiled=is_compiled,
        graph=switches.graph or ("full" if engine.launch.mode == "graph" else "none"),
        launch=engine.launch.mode,
        launch_blocking=switches.launch_blocking,
        sequence_parallel=splits_tokens(scenario),
        width_sharded=engine.width_sharded,
        keys_gathered=engine.keys_gathered and switches.cp_kind == "ring",
        cp_kind=switches.cp_kind,
        moe_dispatch=switches.moe_dispatch or "all-to-all",
        moe_imbalance=switches.moe_imbalance,
        expert_launch=resolve_expert_launch(switches, engine),
        precision=replace(
            precision, gradients=resolve_gradients(precision, engine), scaling=resolve_scaling(precision)
        ),
        fuses=resolve_fusions(switches, engine, compiled=is_compiled),
        overlap=resolve_overlaps(switches, engine, plan.schedule.name),
    )


def compiles(scenario: Scenario) -> bool:
    """Whether an engine compiles chains of pointwise ops by habit: always, or for chips of some vendors."""
    engine = scenario.engine
    return "elementwise" in engine.fuses or scenario.system.chip.vendor in engine.compiles_for


def splits_tokens(scenario: Scenario) -> bool:
    """Whether norms and residuals are split over tensor ranks: as the plan says, else in training alone."""
    return would_split_tokens(scenario) and scenario.plan.mesh.tp > 1


def would_split_tokens(scenario: Scenario) -> bool:
    """Whether they are wherever there are tensor ranks, of which the plan itself may have one."""
    chosen = scenario.plan.switches.sequence_parallel
    return isinstance(scenario.workload, Train) if chosen is None else chosen


def resolve_gradients(precision: Precision, engine: Engine) -> DType:
    """What gradients are accumulated and reduced in: as the plan says, else as the engine does for that format.

    An engine that keeps them as its weights (gradients = "bf16") keeps those of 32-bit weights in 32 bits.

    >>> from ridgeline.core.dtype import dtype
    >>> from ridgeline.plan.engine import engine
    >>> half = Precision(compute=dtype("fp16"), weights=dtype("fp16"), activations=dtype("fp16"))
    >>> [resolve_gradients(kind, engine("megatron-core")).id for kind in (half, Precision())]
    ['fp16', 'fp32']
    """
    half = engine.fp16_gradients if precision.weights.id == "fp16" else None
    habit = half or engine.gradients
    return precision.gradients or (habit if habit.bits >= precision.weights.bits else precision.weights)


def resolve_scaling(precision: Precision) -> Literal["tensor", "row", "block"] | None:
    """What shares a scale: as the plan says, else blocks where the format has them, else the tensor."""
    if precision.scaling is not None or precision.compute.peak not in NARROW:
        return precision.scaling
    return "block" if precision.compute.block else "tensor"


def attention_format(precision: Precision) -> DType:
    """The format of attention's products: the plan's compute format, or the stored one in a narrow recipe.

    >>> from ridgeline.core.dtype import dtype
    >>> [attention_format(Precision(compute=dtype(name))).id for name in ("fp8", "fp16", "tf32")]
    ['bf16', 'fp16', 'tf32']
    """
    return precision.activations if precision.compute.peak in NARROW else precision.compute


def resolve_fusions(switches: Switches, engine: Engine, *, compiled: bool) -> frozenset[str]:
    """What is fused: the engine's habit, more where it is compiled against that, less where it is not.

    A CUDA graph of the whole iteration has no host that learns expert sizes: experts run in kernels that need none,
    with bias, activation and casts inside the grouped products.
    """
    fuses = frozenset(engine.fuses)
    if switches.graph == "full" and is_joined(engine.fuses, "experts"):
        fuses |= {"expert-epilogue"}
    if compiled:
        return fuses | {"elementwise"}
    return fuses - COMPILED if "elementwise" in fuses else fuses


def resolve_expert_launch(switches: Switches, engine: Engine) -> ExpertLaunch:
    """How products of local experts are launched: the engine's habit, or grouped kernels in a graph of the whole
    iteration, which no host that knows the sizes of experts takes part in.

    >>> from ridgeline.plan.engine import ENGINES
    >>> [resolve_expert_launch(Switches(), ENGINES[id]) for id in ("megatron-core", "torchtitan", "deepspeed")]
    ['multi-stream', 'grouped', 'sequential']
    """
    if switches.graph == "full" or engine.launch.mode == "xla":
        return "grouped"
    return engine.expert_launch or ("grouped" if is_joined(engine.fuses, "experts") else "sequential")


def resolve_overlaps(switches: Switches, engine: Engine, schedule: str) -> Overlaps:
    """What overlaps: as the plan says, else as the engine does; its pipeline sends only under some schedules.

    >>> from ridgeline.plan.engine import ENGINES
    >>> core = ENGINES["megatron-core"]
    >>> [resolve_overlaps(Switches(), core, name).pp for name in ("1f1b", "gpipe", "interleaved")]
    [False, False, True]
    """
    on = {word.replace("-", "_"): switches.overlap.get(word, word in engine.overlaps) for word in OVERLAPPED}
    return Overlaps(**on | {"pp": sends_overlap(switches, engine, schedule)})


def sends_overlap(switches: Switches, engine: Engine, schedule: str) -> bool:
    """Whether pipeline sends run beside compute under a schedule."""
    habit = "pp" in engine.overlaps and (not engine.sends_beside or schedule in engine.sends_beside)
    return switches.overlap.get("pp", habit) and not switches.launch_blocking


NEARLY_ALL = 0.9


def separate_norms(model: ModelSpec) -> float:
    """The share of the layers' norms that stand alone: 0 for dense attention models, nearly 1 for DeepSeek's.

    >>> from ridgeline.models.load import MODELS
    >>> [round(separate_norms(MODELS[id]), 2) for id in ("llama3-70b", "qwen3-30b-a3b", "deepseek-v3")]
    [0.0, 0.5, 0.98]
    """
    layers = [model.blocks[kind] for kind in model.order]
    lone_norms = sum(isinstance(block.mixer, LatentAttention) + isinstance(block.ffn, Moe) for block in layers)
    return lone_norms / max(1, sum((block.mixer is not None) + (block.ffn is not None) for block in layers))


Sizes: TypeAlias = "int | Array | Index"
Truth: TypeAlias = "bool | Mask"
AXES = ("pp", "dp", "cp", "tp", "ep", "etp")


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanSizes:
    """Degrees of the mesh, sequences of a microbatch and ranks of a shard: of one plan, or columns over many."""

    pp: Sizes
    dp: Sizes
    cp: Sizes
    tp: Sizes
    ep: Sizes
    etp: Sizes
    microbatch: Sizes
    shard_degree: Sizes

    @classmethod
    def of(cls, scenario: Scenario) -> PlanSizes:
        """The sizes of a scenario's own plan."""
        plan, mesh = scenario.plan, scenario.plan.mesh
        degrees: JsonObject = {axis: getattr(mesh, axis) for axis in AXES}
        return cls(**degrees, microbatch=plan.microbatch, shard_degree=plan.shard_degree)


def plan_decisions(scenario: Scenario) -> JsonMapping:
    """The decisions of one plan that take effect.

    >>> import ridgeline
    >>> made = ridgeline.scenario({"model": "llama3-8b", "system": "16xh100-sxm",
    ...     "workload": {"seq": 8192, "global_batch": 64}, "plan": {"tp": 4, "pp": 2}})
    >>> decisions = plan_decisions(made)
    >>> decisions["tp"], decisions["placement"], decisions["overlap.grad-reduce"], "cp_kind" in decisions
    (4, (16, 16), True, False)
    """
    sizes = PlanSizes.of(scenario)
    effect = in_effect(scenario, sizes)
    return {name: value for name, value in plan_values(scenario, sizes).items() if effect.get(name, True)}


def plan_values(scenario: Scenario, sizes: PlanSizes) -> JsonObject:
    """Every decision of the plan by name, whether or not it takes effect."""
    plan, recompute, decisions = scenario.plan, scenario.plan.recompute, resolve(scenario)
    sequence_parallel, precision = plan.switches.sequence_parallel, decisions.precision
    return {
        "engine": plan.engine,
        **{axis: getattr(sizes, axis) for axis in AXES},
        "microbatch": sizes.microbatch,
        "order": plan.mesh.order,
        "schedule.name": plan.schedule.name,
        "schedule.chunks": plan.schedule.chunks,
        "placement": scenario.placement,
        "shard": plan.sharding.shard,
        "shard_degree": sizes.shard_degree,
        "recompute.kind": recompute.kind,
        "recompute.parts": tuple(sorted(recompute.parts)),
        "recompute.layers": recompute.layers,
        "recompute.rest": recompute.rest,
        "recompute.blocks": dict(recompute.blocks),
        "offload.activations": plan.offload.activations,
        "offload.optimizer": plan.offload.optimizer,
        **{f"precision.{name}": getattr(precision, name).id for name in ("compute", "weights", "activations")},
        "precision.gradients": decisions.gradients.id,
        "precision.kv": precision.kv.id,
        "precision.scaling": precision.scaling,
        "attention": decisions.attention,
        "graph": decisions.graph,
        "compiled": decisions.compiled,
        "launch_blocking": decisions.launch_blocking,
        "sequence_parallel": (sizes.tp > 1) if sequence_parallel is None else sequence_parallel,
        "cp_kind": decisions.cp_kind,
        "moe_dispatch": decisions.moe_dispatch,
        "moe_imbalance": decisions.moe_imbalance,
        **{f"overlap.{word}": decisions.overlap[word] for word in OVERLAPPED},
    }


def in_effect(scenario: Scenario, sizes: PlanSizes) -> dict[str, Truth]:
    """Whether a decision has an effect, of those that may have none.

    Sends of plain 1f1b and a context exchange by all-to-all count only where the plan itself says something of them: an
    engine that overlaps what it can does not thereby promise these.
    """
    plan, recompute, overlap = scenario.plan, scenario.plan.recompute, scenario.plan.switches.overlap
    has_stages, has_shards = sizes.pp > 1, plan.sharding.shard != "none"
    experts = has_experts(scenario.model)
    return {
        "order": has_stages & (sizes.dp > 1),
        **dict.fromkeys(("schedule.name", "schedule.chunks", "placement"), has_stages),
        "shard_degree": has_shards,
        "recompute.parts": recompute.kind == "selective",
        "recompute.layers": recompute.kind != "none",
        "recompute.rest": recompute.kind != "none" and recompute.layers is not None,
        "recompute.blocks": bool(recompute.blocks),
        "precision.scaling": plan.precision.compute.peak in NARROW,
        "sequence_parallel": sizes.tp > 1,
        "cp_kind": sizes.cp > 1,
        "moe_dispatch": experts,
        "moe_imbalance": experts,
        "overlap.grad-reduce": sizes.dp * sizes.cp > 1,
        "overlap.param-gather": (sizes.shard_degree > 1) & has_shards,
        "overlap.tp": sizes.tp > 1,
        "overlap.pp": has_stages & (plan.schedule.name != "1f1b" or "pp" in overlap),
        "overlap.cp": (sizes.cp > 1) & (plan.switches.cp_kind == "ring" or "cp" in overlap),
        "overlap.moe": sizes.ep > 1,
        "overlap.offload": plan.offload.activations > 0 or plan.offload.optimizer > 0,
    }


def question_facts(scenario: Scenario, sizes: PlanSizes) -> JsonObject:
    """What a capability may depend on beside decisions: the model, the chips, and sums of sizes.

    replicas       data-parallel times context ranks, which hold the same weights
    microbatches   that each data-parallel rank runs in a step
    even           all virtual stages hold as many layers
    first_gap      layers before the first place where a stage is shorter than the longest; all layers where none is
    dense_first    layers before the first with experts; 0 without any
    recomputes_by  which layers recompute: all, so many of each stage (number), or as many as each stage says (stages)
    patterned      layers are state spaces or single parts, which some software spells as a pattern
    """
    model, placement, work = scenario.model, scenario.placement, scenario.workload
    mixers, layers = [block.mixer for block in model.blocks], scenario.plan.recompute.layers
    sequences = getattr(work, "sequences", 1)
    gaps = [stage * max(placement) + layers for stage, layers in enumerate(placement) if layers < max(placement)]
    sparse = [isinstance(model.blocks[index].ffn, Moe) for index in model.order]
    return {
        "replicas": sizes.dp * sizes.cp,
        "ranks": sizes.pp * sizes.dp * sizes.cp * sizes.tp,
        "microbatches": sequences // (sizes.dp * sizes.microbatch),
        "even": len(set(placement)) == 1,
        "first_gap": min(gaps, default=model.layers),
        "whole_layers": (plan_share := scenario.plan.offload.activations) < 1 and plan_share * model.layers % 1 == 0,
        "recomputes_by": "all" if layers is None else "number" if isinstance(layers, int) else "stages",
        "seq": work.seq,
        **_training_facts(work),
        "chip.vendor": scenario.system.chip.vendor,
        "chip.id": scenario.system.chip.id,
        "model.experts": has_experts(model),
        "model.dense_first": sparse.index(True) if any(sparse) else 0,
        "model.layers": model.layers,
        "model.kv_heads": min((mixer.kv_heads for mixer in mixers if isinstance(mixer, Attention)), default=0),
        "model.heads": min((mixer.heads for mixer in mixers if isinstance(mixer, Attention)), default=0),
        "model.tied": model.embedding.tied,
        "model.mtp": model.mtp.depth if model.mtp else 0,
        "model.latent": any(isinstance(mixer, LatentAttention) for mixer in mixers),
        "model.windows": any(isinstance(mixer, Attention) and bool(mixer.window or mixer.sinks) for mixer in mixers),
        "model.patterned": is_patterned(model),
        "model.expert_bias": any(isinstance(block.ffn, Moe) and block.ffn.bias for block in model.blocks),
    }


def _training_facts(work: Workload) -> JsonObject:
    """What of a training run formats depend on: adapters, and what the optimizer keeps."""
    if not isinstance(work, Train):
        return {}
    master = work.optimizer.master.id if work.optimizer.master else "none"
    return {
        "workload.task": work.task,
        "workload.lora": work.lora is not None,
        "workload.optimizer": work.optimizer.name,
        "optimizer.states": work.optimizer.states.id,
        "optimizer.master": master,
    }


def serving_values(scenario: Scenario) -> JsonObject:
    """Decisions of a deployment by name: how one replica is split, its formats, drafts, and whether there are pools.

    dp   data-parallel ranks that step together; of a deployment in pools those of the first
    """
    plan, serving, mesh = scenario.plan, scenario.plan.serving, scenario.plan.mesh
    pool = serving.pools[0] if serving.pools else None
    switches, drafts, precision = plan.switches, plan.speculation, plan.precision
    tp, pp, ep = (getattr(pool, axis, None) or getattr(mesh, axis) for axis in ("tp", "pp", "ep"))
    dp = pool.dp if pool else serving.data_parallel_size
    return {
        "engine": plan.engine,
        "tp": tp,
        "pp": pp,
        "ep": ep,
        "dp": dp,
        "etp": mesh.etp,
        "ranks": tp * dp,
        "pools": len(serving.pools),
        **{f"precision.{name}": getattr(precision, name).id for name in ("compute", "weights", "activations", "kv")},
        "precision.scaling": precision.scaling,
        "attention": switches.attention,
        "graph": switches.graph,
        "compiled": switches.compiled,
        "moe_dispatch": switches.moe_dispatch,
        "speculation.draft": drafts.draft if drafts else None,
        "model.experts": has_experts(scenario.model),
    }


def serving_effects(scenario: Scenario) -> dict[str, Truth]:
    """Whether a decision of a deployment is one: what a plan leaves open is left to the engine."""
    plan, experts = scenario.plan, has_experts(scenario.model)
    switches, precision = plan.switches, plan.precision
    other_ranks = plan.mesh.tp * plan.serving.data_parallel_size // plan.mesh.ep
    return {
        "ep": experts and not plan.serving.pools,
        "etp": experts and not plan.serving.pools and plan.mesh.etp not in (1, other_ranks),
        "precision.scaling": precision.scaling is not None and precision.compute.peak in NARROW,
        **{name: getattr(switches, name) is not None for name in ("attention", "graph", "compiled")},
        "moe_dispatch": switches.moe_dispatch is not None and plan.mesh.ep > 1,
        "speculation.draft": plan.speculation is not None,
    }


def has_experts(model: ModelSpec) -> bool:
    """Whether any layer is a mixture of experts."""
    return any(isinstance(block.ffn, Moe) for block in model.blocks)


def is_patterned(model: ModelSpec) -> bool:
    """Whether some layers are state spaces, single parts, or two mixers side by side."""
    return any(
        isinstance(block.mixer, (Mamba2, Recurrence))
        or not block.mixer
        or not block.ffn
        or block.captured is not None
        or block.beside is not None
        for block in model.blocks
    )
