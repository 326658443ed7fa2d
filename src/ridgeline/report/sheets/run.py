"""The sheets of `ridgeline run --json`."""

from __future__ import annotations

from typing import Literal, NotRequired, TypedDict


class TrainedStepSheet(TypedDict):
    """One optimizer step.

    loss            mean cross-entropy over the tokens of the global batch, in nats
    gradient_norm   Euclidean, before it is clipped
    seconds         of the slowest rank
    loss_scale      what the loss was multiplied by on its way back; 1 but in fp16
    memory_bytes    the most so far on any rank: of the accelerator's allocator; on a CPU the process's resident set
    """

    step: int
    loss: float
    gradient_norm: float
    loss_scale: float
    seconds: float
    tokens_per_s: float
    memory_bytes: int


class TrainedSheet(TypedDict):
    """What became of a run.

    step_s             median of the steps behind the first
    predicted_step_s   what `predict` says of the same scenario, where it says anything
    mfu, predicted_mfu by the prediction's convention: model flops over the peak of the compute format
    startup_s          from the command to the first step
    resumed            the step it went on from; 0: the beginning
    restarts           how often lost workers were started again
    stopped            it was interrupted, and ended in order
    checkpoint         the last one it wrote; empty where none was asked for
    unsaved            the last one it should have written could not be: notes say why
    """

    kind: Literal["run"]
    ranks: int
    device: str
    steps: list[TrainedStepSheet]
    step_s: float
    tokens_per_s: float
    startup_s: float
    predicted_step_s: NotRequired[float]
    mfu: NotRequired[float]
    predicted_mfu: NotRequired[float]
    resumed: int
    restarts: int
    stopped: bool
    checkpoint: str
    unsaved: bool
    notes: list[str]


class SbatchSheet(TypedDict):
    """The Slurm batch script that was written; nothing was started."""

    kind: Literal["sbatch"]
    output: str


class PackSheet(TypedDict):
    """A file of tokens that was written.

    largest   the largest token: a vocabulary must be larger
    """

    kind: Literal["pack"]
    output: str
    documents: int
    tokens: int
    largest: int


class GradientSheet(TypedDict):
    """A parameter's gradient under the plan against one process.

    difference   RMS of the difference over that of the reference, at least a thousandth of all gradients'
    tolerance    1e-5 in fp32; twice what rounding did to the reference in a narrower format
    """

    name: str
    difference: float
    tolerance: float


class EquivalenceSheet(TypedDict):
    """Whether a plan computes what one process computes.

    parameters   how many were compared
    diverged     those beyond their tolerance, the one nearest the loss first
    worst        the largest difference in tolerances
    """

    kind: Literal["equivalence"]
    equal: bool
    loss: float
    reference_loss: float
    loss_difference: float
    parameters: int
    diverged: list[GradientSheet]
    worst: GradientSheet
