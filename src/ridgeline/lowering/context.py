"""What lowering needs of a scenario: which passes apply (one value), and the sizes (numbers, or arrays over plans)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

import numpy as np

from ridgeline.core.records import dataclass
from ridgeline.ir.forward_steps import ForwardSteps
from ridgeline.ir.ops import Collective, CollectiveKind, MatMul, Num, Op, Stream
from ridgeline.models.sizing import EncoderInput
from ridgeline.models.spec import ModelSpec
from ridgeline.plan.engine import Engine
from ridgeline.plan.plan import Precision, Recompute
from ridgeline.plan.resolve import Resolved, resolve
from ridgeline.plan.scenario import Scenario
from ridgeline.plan.workload import Decode, Lora, Train

# kernels that scale rows, against those that scale a whole tensor: what torchao's runs of Llama-3-8B on eight H100
# leave of the gain in products once casts are counted, 0.7 to 0.85
ROW_SCALED = 0.75
SYSTOLIC = "tpu"  # the family of chips whose matrix unit is a systolic array
HOST = "cpu"  # the family of processes without an accelerator


@dataclass(frozen=True, slots=True, kw_only=True)
class Degrees:
    """The sizes a search varies; each an int or an array over plans."""

    tp: Num = 1
    cp: Num = 1
    ep: Num = 1
    etp: Num = 1
    microbatch: Num = 1


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ForwardWork:
    """Engine steps instead of a microbatch: the sizes of ops are columns over them.

    tokens   of a step in linear layers, as far as the captured graph pads them
    dp       attention-data-parallel ranks that step together and share their experts
    """

    steps: ForwardSteps
    tokens: Num
    dp: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class LoweringContext:
    """One structure: everything that decides which ops there are, with the degrees that size them.

    queries, keys   tokens of a sequence that are worked on, and tokens that attention sees: the same when a sequence is
                    trained on or read whole; one query and all keys for a decode step
    backward        whether the ops of the backward pass are wanted, too
    seen, heard     what encoders of images and sound read for one sequence; for one prompt token where engine steps
                    take the place of a microbatch
    towers_frozen   these encoders are not trained; what projects their output is
    source          positions that the encoder reads for one sequence; 0 without one
    systolic        attention runs in blocks on a systolic matrix unit (TPU)
    host            attention is torch's own for CPUs
    document        tokens of one document where several fill a sequence; 0: a sequence is one document
    forward         engine steps of a serving instance, which take the place of a microbatch; None when training
    """

    model: ModelSpec
    engine: Engine
    resolved: Resolved
    degrees: Degrees
    queries: int
    keys: int
    recompute: Recompute = Recompute()
    backward: bool = True
    seen: EncoderInput = EncoderInput()
    heard: EncoderInput = EncoderInput()
    towers_frozen: bool = False
    source: int = 0
    systolic: bool = False
    host: bool = False
    document: int = 0
    causal: bool = True
    lora: Lora | None = None
    forward: ForwardWork | None = None

    @property
    def tokens(self) -> Num:
        """Tokens of a microbatch, or of a step, on one rank, before sequence parallelism."""
        if self.forward is not None:
            return self.forward.tokens
        return self.degrees.microbatch * (self.queries / self.degrees.cp)

    @property
    def split_tokens(self) -> Num:
        """Tokens of a microbatch on one rank where norms and residuals run: split over tp with sequence parallelism.

        Activations that are sharded by width are as many elements: a share of each token instead of some tokens.
        """
        return self.tokens / self.degrees.tp if self.split_activations else self.tokens

    @property
    def sequences(self) -> Num:
        """Sequences of a microbatch, or prompts of a step."""
        return self.degrees.microbatch if self.forward is None else np.maximum(self.forward.steps.prefills, 1.0)

    @property
    def precision(self) -> Precision:
        """Number formats, gradients among them."""
        return self.resolved.precision

    @property
    def sequence_parallel(self) -> bool:
        """Whether norms and residuals are split over tp."""
        return self.resolved.sequence_parallel

    @property
    def width_sharded(self) -> bool:
        """Whether norms and residuals are sharded over tp by width (GSPMD), where tokens are not split."""
        return self.resolved.width_sharded and not self.sequence_parallel

    @property
    def split_activations(self) -> bool:
        """Whether each tensor rank holds its share of what is between layers, by tokens or by width."""
        return self.sequence_parallel or self.resolved.width_sharded

    @property
    def flash(self) -> bool:
        """Whether scores stay inside the attention kernel."""
        return self.resolved.attention == "flash"

    @property
    def fuses(self) -> frozenset[str]:
        """What runs in one kernel, in the words of `plan.engine.FUSIONS`."""
        return self.resolved.fuses

    @property
    def low_precision(self) -> bool:
        """Whether matrix products read cast copies narrower than what is stored."""
        return self.precision.compute.bits < self.precision.activations.bits

    @property
    def gradient_bytes(self) -> float:
        """Bytes that the product of a weight gradient moves for an element of it: the gradient buffer read and written
        where the product adds into it, else what it makes, which `step_ops.accumulate` adds up."""
        if "weight-gradient-accumulation" in self.fuses:
            return 2 * self.resolved.gradients.bytes_per_element
        return self.precision.activations.bytes_per_element

    @property
    def span(self) -> int:
        """Tokens that attention sees at most: all keys, or those of a document where several fill a sequence."""
        return min(self.keys, self.document or self.keys)

    @property
    def frozen(self) -> bool:
        """Whether the base weights are not trained (adapters only)."""
        return self.lora is not None


def lowering_context(scenario: Scenario) -> LoweringContext:
    """The context of one scenario, a batch of one; engine steps of a server have their own (`lower_forward`)."""
    plan, work = scenario.plan, scenario.workload
    train = work if isinstance(work, Train) else None
    return LoweringContext(
        model=scenario.model,
        engine=scenario.engine,
        resolved=resolve(scenario),
        degrees=Degrees(
            tp=plan.mesh.tp,
            cp=plan.mesh.cp,
            ep=plan.mesh.ep,
            etp=plan.mesh.etp,
            microbatch=plan.microbatch,
        ),
        queries=1 if isinstance(work, Decode) else work.seq,
        keys=work.seq,
        recompute=plan.recompute,
        backward=train is not None,
        seen=scenario.seen,
        heard=scenario.heard,
        towers_frozen=train is not None and train.towers == "frozen",
        source=scenario.source,
        systolic=scenario.system.chip.family == SYSTOLIC,
        host=scenario.system.chip.family == HOST,
        document=train.document_tokens if train and train.packed else 0,
        lora=(train.lora or Lora()) if train and train.task == "lora" else None,
    )


def row_alignment(n: Num, k: Num, bits: float) -> Num:
    """Bytes to which rows of n and of k elements are aligned, as far as libraries of products tell them apart.

        16   whole 16-byte loads: 8 elements of 16 bits, 16 of 8
        4    4-byte loads: pairs of 16-bit elements
        2    anything less

    The tokens of a microbatch never stand along a row. A share of a rank that is no whole number is rounded up.

    >>> row_alignment(4096, 50257, 16), row_alignment(4096, 50258, 16), row_alignment(4096, 50264, 16)
    (2.0, 4.0, 16.0)
    >>> row_alignment(np.array([4104.0, 4112.0]), 4096, 8).tolist()
    [4.0, 16.0]
    """
    fast, pairs = 128 / bits, max(32 / bits, 1.0)
    left, right = np.ceil(n), np.ceil(k)
    ragged, unpaired = left % fast + right % fast, left % pairs + right % pairs
    if isinstance(ragged, np.ndarray):
        return np.where(ragged == 0, 16.0, np.where(unpaired == 0, 4.0, 2.0))
    return 16.0 if ragged == 0 else 4.0 if unpaired == 0 else 2.0


def _alignment(ctx: LoweringContext, n: Num, k: Num, bits: float) -> Num:
    """Of a product's rows; compilers pad what is not aligned: torch.compile (`shape_padding`) and XLA
    (`CublasPadForGemms`, and tiles on a TPU)."""
    return 16.0 if ctx.resolved.launch == "xla" or ctx.resolved.compiled else row_alignment(n, k, bits)


def matmul(ctx: LoweringContext, label: str, m: Num, n: Num, k: Num, groups: Num = 1) -> MatMul:
    """A forward product in the plan's compute format."""
    compute = ctx.precision.compute
    return MatMul(
        label=label,
        m=m,
        n=n,
        k=k,
        groups=groups,
        peak=compute.peak,
        in_bytes=compute.bytes_per_element,
        out_bytes=ctx.precision.activations.bytes_per_element,
        alignment=_alignment(ctx, n, k, compute.bits),
        share=ROW_SCALED if ctx.precision.scaling == "row" else 1.0,
        weight_bytes=_weight_bytes(ctx),
    )


def _weight_bytes(ctx: LoweringContext) -> float:
    """Bytes of a weight that a product reads, over those of what it multiplies: training casts weights beforehand, an
    engine that serves stores them as they are read."""
    if ctx.forward is None:
        return 1.0
    return ctx.precision.weights.bytes_per_element / ctx.precision.compute.bytes_per_element


def plain_matmul(ctx: LoweringContext, label: str, m: Num, n: Num, k: Num) -> MatMul:
    """A product kept in the stored format even in a narrow recipe: router, output head."""
    stored = ctx.precision.activations
    return MatMul(
        label=label, m=m, n=n, k=k, peak=stored.peak, in_bytes=stored.bytes_per_element, out_bytes=2.0,
        alignment=_alignment(ctx, n, k, stored.bits),
    )  # fmt: skip


def input_gradient(op: MatMul) -> MatMul:
    """dX = dY W^T of a forward product."""
    return replace(op, label=f"{op.label} dX", n=op.k, k=op.n)


def weight_gradient(op: MatMul, gradient_bytes: float) -> MatMul:
    """dW = X^T dY of a forward product, written or added into the gradient buffer."""
    return replace(op, label=f"{op.label} dW", m=op.k, k=op.m, out_bytes=gradient_bytes)


# products an adapter's target names, by label; routed experts get none, and embedding rows are looked up (`ends`)
TARGETS: Mapping[str, frozenset[str]] = MappingProxyType(
    {
        "qkv": frozenset({"qkv", "latent down", "query up", "key-value up", "state in", "delta in"}),
        "out": frozenset({"attention out", "state out", "delta out"}),
        "up": frozenset({"up"}),
        "gate": frozenset({"up"}),
        "down": frozenset({"down"}),
        "router": frozenset({"router"}),
        "head": frozenset({"logits"}),
    }
)


def adapters(ctx: LoweringContext, products: list[MatMul]) -> tuple[list[MatMul], Num]:
    """Low-rank products beside the targeted ones, forward order, and their parameters; nothing without adapters."""
    if ctx.lora is None:
        return [], 0
    labels = {label for target in ctx.lora.targets for label in TARGETS.get(target, ())}
    made: list[MatMul] = []
    params: Num = 0
    for op in products:
        if op.label in labels:
            rank = ctx.lora.rank
            made.append(plain_matmul(ctx, f"{op.label} adapter in", op.m, rank, op.k))
            made.append(plain_matmul(ctx, f"{op.label} adapter out", op.m, op.n, rank))
            params = params + rank * (op.k + op.n)
    return made, params


def stream(ctx: LoweringContext, label: str, elements: Num, passes: float, kernels: Num = 1.0) -> Stream:
    """Memory-bound work that reads and writes `passes` times the elements in the stored format."""
    size = ctx.precision.activations.bytes_per_element
    return Stream(label=label, stream_bytes=elements * passes * size, kernels=kernels)


def bias_gradients(ctx: LoweringContext, products: Sequence[MatMul]) -> list[Op]:
    """Summing the gradients that arrive at biased products over tokens: each is read once more.

    XLA sums where it makes the gradient, and a cast to a narrow format does too (Transformer Engine). TorchInductor
    does not gain by it: biases cost a compiled GPT-1.3B on an H200 4.2 ms a step, of the 3.8 that such reads take.
    """
    if ctx.frozen or ctx.low_precision or ctx.resolved.launch == "xla":
        return []
    return [stream(ctx, f"{op.label} bias dW", op.m * op.n * op.groups, 1.0) for op in products]


def tensor_collective(ctx: LoweringContext, label: str, kind: CollectiveKind, elements: Num) -> Collective:
    """Communication of activations over the tensor-parallel ranks."""
    size = ctx.precision.activations.bytes_per_element
    return Collective(label=label, kind=kind, axis="tp", payload_bytes=elements * size, ranks=ctx.degrees.tp)
