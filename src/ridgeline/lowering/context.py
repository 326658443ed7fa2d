"""What lowering needs of a scenario: which passes apply (one value), and the sizes (numbers, or arrays over plans)."""

from __future__ import annotations

from dataclasses import dataclass, field

from ridgeline.ir.ops import Collective, CollectiveKind, MatMul, Num, Stream
from ridgeline.models.spec import ModelSpec
from ridgeline.plan.engine import Engine
from ridgeline.plan.plan import Precision, Recompute
from ridgeline.plan.scenario import Scenario
from ridgeline.plan.workload import Lora, Train


@dataclass(frozen=True, slots=True, kw_only=True)
class Degrees:
    """The sizes a search varies; each an int or an array over plans."""

    tp: Num = 1
    cp: Num = 1
    ep: Num = 1
    etp: Num = 1
    microbatch: Num = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class LoweringContext:
    """One structure: everything that decides which ops there are, with the degrees that size them."""

    model: ModelSpec
    engine: Engine
    seq: int
    degrees: Degrees
    sequence_parallel: bool
    flash: bool
    recompute: Recompute
    precision: Precision
    ring: bool = True
    once_per_domain: bool = False
    imbalance: float = 1.0
    images: float = 0.0
    causal: bool = True
    lora: Lora | None = None
    fuses: frozenset[str] = field(default_factory=frozenset)

    @property
    def tokens(self) -> Num:
        """Tokens of a microbatch on one rank, before sequence parallelism."""
        return self.degrees.microbatch * (self.seq / self.degrees.cp)

    @property
    def split_tokens(self) -> Num:
        """Tokens of a microbatch on one rank where norms and residuals run: split over tp with sequence parallelism."""
        return self.tokens / self.degrees.tp if self.sequence_parallel else self.tokens

    @property
    def narrow(self) -> bool:
        """Whether matrix products read casted copies narrower than what is stored."""
        return self.precision.compute.bits < self.precision.activations.bits

    @property
    def frozen(self) -> bool:
        """Whether the base weights are not trained (adapters only)."""
        return self.lora is not None


def lowering_context(scenario: Scenario) -> LoweringContext:
    """The shape of one scenario, a batch of one."""
    plan, engine, work = scenario.plan, scenario.engine, scenario.workload
    attention = plan.switches.attention or engine.attention
    lora = (work.lora or Lora()) if isinstance(work, Train) and work.task == "lora" else None
    return LoweringContext(
        model=scenario.model,
        engine=engine,
        seq=work.seq,
        degrees=Degrees(
            tp=plan.mesh.tp,
            cp=plan.mesh.cp,
            ep=plan.mesh.ep,
            etp=plan.mesh.etp,
            microbatch=plan.microbatch,
        ),
        sequence_parallel=plan.sequence_parallel and plan.mesh.tp > 1,
        flash=attention == "flash",
        recompute=plan.recompute,
        precision=plan.precision,
        ring=plan.switches.cp_kind == "ring",
        imbalance=plan.switches.moe_imbalance,
        images=work.images if isinstance(work, Train) else 0.0,
        once_per_domain=plan.switches.moe_dispatch in ("deepep", "hybridep"),
        lora=lora,
        fuses=_fusions(engine, plan.switches.compiled) | _whole(engine, plan.switches.graph),
    )


COMPILED = frozenset({"bias-activation", "bias-dropout-add", "rotary", "cross-entropy", "elementwise"})


def _fusions(engine: Engine, compiled: bool | None) -> frozenset[str]:
    """What is fused: the engine's habit, more where it is compiled against that, less where it is not."""
    fuses = frozenset(engine.fuses)
    if compiled is None:
        return fuses
    return fuses | {"elementwise"} if compiled else fuses - COMPILED if "elementwise" in fuses else fuses


def _whole(engine: Engine, graph: str | None) -> frozenset[str]:
    """A graph of the whole iteration has no host that learns expert sizes: experts run in kernels that need none, with
    bias, activation and casts inside the grouped products."""
    return frozenset({"expert-epilogue"}) if graph == "full" and "grouped-gemm" in engine.fuses else frozenset()


def matmul(ctx: LoweringContext, label: str, m: Num, n: Num, k: Num, groups: Num = 1) -> MatMul:
    """A forward product in the plan's compute format."""
    compute = ctx.precision.compute
    by_row = ctx.precision.scaling == "row"  # kernels that scale rows reach no more than the stored format's rate
    return MatMul(
        label=label,
        m=m,
        n=n,
        k=k,
        groups=groups,
        peak=ctx.precision.activations.peak if by_row else compute.peak,
        in_bytes=compute.bytes_per_element,
        out_bytes=ctx.precision.activations.bytes_per_element,
    )


def plain_matmul(ctx: LoweringContext, label: str, m: Num, n: Num, k: Num) -> MatMul:
    """A product kept in the stored format even in a narrow recipe: router, output head."""
    stored = ctx.precision.activations
    return MatMul(label=label, m=m, n=n, k=k, peak=stored.peak, in_bytes=stored.bytes_per_element, out_bytes=2.0)


def input_gradient(op: MatMul) -> MatMul:
    """dX = dY W^T of a forward product."""
    return MatMul(
        label=f"{op.label} dX", m=op.m, n=op.k, k=op.n, groups=op.groups, peak=op.peak,
        in_bytes=op.in_bytes, out_bytes=op.out_bytes,
    )  # fmt: skip


def weight_gradient(op: MatMul, gradient_bytes: float) -> MatMul:
    """dW = X^T dY of a forward product, added into the gradient buffer."""
    return MatMul(
        label=f"{op.label} dW", m=op.k, n=op.n, k=op.m, groups=op.groups, peak=op.peak,
        in_bytes=op.in_bytes, out_bytes=2 * gradient_bytes,
    )  # fmt: skip


TARGETS = {"qkv": "qkv", "out": "attention out", "up": "up", "gate": "up", "down": "down"}


def adapters(ctx: LoweringContext, products: list[MatMul]) -> tuple[list[MatMul], Num]:
    """Low-rank products beside the targeted ones, forward order, and their parameters; nothing without adapters."""
    if ctx.lora is None:
        return [], 0
    labels = {TARGETS[target] for target in ctx.lora.targets if target in TARGETS}
    made: list[MatMul] = []
    params: Num = 0
    for op in products:
        if op.label in labels:
            rank = ctx.lora.rank
            made.append(plain_matmul(ctx, f"{op.label} adapter in", op.m, rank, op.k))
            made.append(plain_matmul(ctx, f"{op.label} adapter out", op.m, op.n, rank))
            params = params + rank * (op.k + op.n)
    return made, params


def stream(ctx: LoweringContext, label: str, elements: Num, passes: float, kernels: float = 1.0) -> Stream:
    """Memory-bound work that reads and writes `passes` times the elements in the stored format."""
    size = ctx.precision.activations.bytes_per_element
    return Stream(label=label, stream_bytes=elements * passes * size, kernels=kernels)


def tensor_collective(ctx: LoweringContext, label: str, kind: CollectiveKind, elements: Num) -> Collective:
    """Communication of activations over the tensor-parallel ranks."""
    size = ctx.precision.activations.bytes_per_element
    return Collective(label=label, kind=kind, axis="tp", payload_bytes=elements * size, ranks=ctx.degrees.tp)
