"""What lowering needs of a scenario: which passes apply (one value), and the sizes (numbers, or arrays over plans)."""

from __future__ import annotations

import numpy as np

from ridgeline.core.records import dataclass
from ridgeline.ir.forward_steps import ForwardSteps
from ridgeline.ir.fusions import is_joined
from ridgeline.ir.ops import Num
from ridgeline.ir.program import Section, SectionRole
from ridgeline.models.sizing import EncoderInput
from ridgeline.models.spec import Block, ModelSpec
from ridgeline.plan.engine import Engine
from ridgeline.plan.optimizer import Lora
from ridgeline.plan.plan import Precision, Recompute
from ridgeline.plan.resolve import Resolved, resolve
from ridgeline.plan.scenario import Scenario
from ridgeline.plan.workload import Decode, Train

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
    vision_input, audio_input   what encoders of images and sound read for one sequence; for one prompt token where
                    engine steps take the place of a microbatch
    towers_frozen   these encoders are not trained; what projects their output is
    encoder_tokens  positions that the encoder reads for one sequence; 0 without one
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
    vision_input: EncoderInput = EncoderInput()
    audio_input: EncoderInput = EncoderInput()
    towers_frozen: bool = False
    encoder_tokens: int = 0
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
    def element_bytes(self) -> float:
        """Bytes of a stored activation."""
        return self.resolved.precision.activations.bytes_per_element

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

    def joins(self, op: str) -> bool:
        """Whether the software runs an op inside a kernel of its neighbours (`ir.fusions`)."""
        return is_joined(self.resolved.fuses, op)

    @property
    def low_precision(self) -> bool:
        """Whether matrix products read cast copies narrower than what is stored."""
        return self.precision.compute.bits < self.precision.activations.bits

    @property
    def gradient_bytes(self) -> float:
        """Bytes that the product of a weight gradient moves for an element of it: the gradient buffer read and written
        where the product adds into it, else what it makes, which `step_ops.accumulate` adds up."""
        if self.joins("gradient sum"):
            return 2 * self.resolved.gradients.bytes_per_element
        return self.precision.activations.bytes_per_element

    def block_of(self, section: Section) -> Block | None:
        """The model's block that a section was made from; None for the two ends."""
        if section.role is SectionRole.BLOCK:
            return self.model.blocks[section.key.block]
        return self.model.mtp.block if section.role is SectionRole.MTP and self.model.mtp else None

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
            tp=plan.mesh.tp, cp=plan.mesh.cp, ep=plan.mesh.ep, etp=plan.mesh.etp, microbatch=plan.microbatch
        ),
        queries=1 if isinstance(work, Decode) else work.seq,
        keys=work.seq,
        recompute=plan.recompute,
        backward=train is not None,
        vision_input=scenario.vision_input,
        audio_input=scenario.audio_input,
        towers_frozen=train is not None and train.towers == "frozen",
        encoder_tokens=scenario.encoder_tokens,
        systolic=scenario.system.chip.family == SYSTOLIC,
        host=scenario.system.chip.family == HOST,
        document=train.document_tokens if train and train.packed else 0,
        lora=(train.lora or Lora()) if train and train.task == "lora" else None,
    )
