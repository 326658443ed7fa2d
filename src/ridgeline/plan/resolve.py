"""Turn a plan and the engine that runs it into values with nothing left open: every switch, format and overlap, once.

A plan may leave a switch to its engine's habit. Whoever prices, simulates, executes or exports the plan reads the
resolved value, so that what was predicted is what is launched.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from ridgeline.core.dtype import DType
from ridgeline.core.records import dataclass
from ridgeline.ir.fusions import is_joined
from ridgeline.models.spec import LatentAttention, ModelSpec, Moe
from ridgeline.plan.engine import Engine, ExpertLaunch
from ridgeline.plan.plan import NARROW, Precision, Switches
from ridgeline.plan.scenario import Scenario
from ridgeline.plan.workload import Train

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
    plan = scenario.plan
    if plan.switches.sequence_parallel is None and not isinstance(scenario.workload, Train):
        return False
    return plan.sequence_parallel and plan.mesh.tp > 1


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

    def on(word: str) -> bool:
        return switches.overlap.get(word, word in engine.overlaps)

    return Overlaps(
        grad_reduce=on("grad-reduce"),
        param_gather=on("param-gather"),
        tp=on("tp"),
        pp=sends_overlap(switches, engine, schedule),
        cp=on("cp"),
        moe=on("moe"),
        offload=on("offload"),
    )


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
