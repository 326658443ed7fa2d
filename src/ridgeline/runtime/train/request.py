"""What a run is asked to do, and what it tells: values that travel between the processes of a host."""

from __future__ import annotations

import copyreg
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from types import MappingProxyType

from ridgeline.core.errors import RidgelineError
from ridgeline.models.spec import ModelSpec, Moe
from ridgeline.plan.scenario import Scenario, training
from ridgeline.plan.workload import Train
from ridgeline.runtime.train.numerics import Numerics, all_blocks, usual_numerics


def _view(mapping: dict[object, object]) -> Mapping[object, object]:
    return MappingProxyType(mapping)


def _pickle_mapping(view: Mapping[object, object]) -> tuple[object, tuple[dict[object, object]]]:
    return _view, (dict(view),)


copyreg.pickle(MappingProxyType, _pickle_mapping)  # type: ignore[arg-type]  # read-only tables of a plan reach the workers


PREDICTED_KINDS = {"temporary": "workspace"}  # what a prediction calls the kinds that a run counts


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How a run goes, apart from what its scenario says.

    device       a torch device string; each rank takes its own index
    data         synthetic, text, a file of tokens (.u16, .u32), or a folder of such files
    rate         learning rate
    folder       where metrics and checkpoints go; empty: nowhere
    every        steps between checkpoints; 0: only when the run ends
    resume       go on from the newest sound checkpoint of the folder
    timeout      seconds a collective may take before the run is given up
    restarts     how often lost workers are started again from the last checkpoint
    elastic      go on with the best plan for the ranks that are left, where some are lost for good
    tensorboard  write the scalars of every step for TensorBoard, beside the metrics
    launcher     who starts the ranks: empty, this process (or torchrun or Slurm, found in the environment); ray
    trace        a folder for a trace of each rank, of two steps behind the first two
    weights      a folder of Hugging Face safetensors to begin from
    save_weights a folder to write them to when the run ends
    """

    steps: int = 10
    device: str = "cpu"
    backend: str = ""
    data: str = "synthetic"
    rate: float = 3e-4
    seed: int = 0
    folder: str = ""
    every: int = 0
    resume: bool = False
    timeout: float = 600.0
    restarts: int = 0
    trace: str = ""
    weights: str = ""
    save_weights: str = ""
    verify: bool = False
    elastic: bool = False
    tensorboard: bool = False
    launcher: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A scenario and how to run it."""

    scenario: Scenario
    options: Options
    numerics: Numerics

    @property
    def ranks(self) -> int:
        """Ranks of the plan."""
        return self.scenario.plan.mesh.ranks

    @property
    def train(self) -> Train:
        """The workload, which `refuse` has seen to be training."""
        return training(self.scenario).workload


def make_request(scenario: Scenario, options: Options, numerics: Numerics | None = None) -> Request:
    """The request with the constants of the model, or the usual ones."""
    return Request(scenario=scenario, options=options, numerics=numerics or usual_numerics(scenario.model))


def has_experts(model: ModelSpec) -> bool:
    """Whether any layer, one that predicts further tokens included, routes tokens to experts."""
    return any(isinstance(block.ffn, Moe) for block in all_blocks(model))


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRow:
    """One optimizer step as it was measured, the slowest rank's time.

    memory       largest so far on any rank: of the accelerator's allocator, or the process's resident set on a CPU
    loss_scale   what the loss was multiplied by on its way back; 1 but in fp16
    held         bytes of tensors by kind at the worst moment, of the fullest rank; of a run's first step alone
    """

    step: int
    loss: float
    gradient_norm: float
    seconds: float
    tokens: int
    memory: int
    loss_scale: float = 1.0
    held: Mapping[str, int] = field(default_factory=dict)

    JSON = "step loss gradient_norm loss_scale seconds tokens_per_s memory_bytes=memory"

    @property
    def tokens_per_s(self) -> float:
        """Of all ranks together."""
        return self.tokens / self.seconds if self.seconds else 0.0


def _nobody(told: object) -> None:
    """Nobody listens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Listener:
    """Who is told how a run goes: every step of it, and a line now and then (a checkpoint that failed, ranks lost)."""

    step: Callable[[StepRow], None] = _nobody
    note: Callable[[str], None] = _nobody


@dataclass(frozen=True, slots=True, kw_only=True)
class RunMemory:
    """Bytes of tensors of one kind on the fullest rank at its worst moment of the first step, and as predicted."""

    kind: str
    bytes: int
    predicted_bytes: float | None = None

    JSON = "* predicted_bytes?"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOutcome:
    """What became of a run.

    stopped      it was interrupted and ended in order
    checkpoint   the last one it wrote
    unsaved      the last one it should have written could not be
    resumed      the step it went on from; 0: the beginning
    startup      seconds from the request to the first step
    restarts     how often workers were started again
    predicted_step_s, predicted_mfu, predicted_memory   as whoever asked for the run predicts them
    """

    rows: tuple[StepRow, ...]
    ranks: int
    device: str
    stopped: bool = False
    checkpoint: str = ""
    unsaved: bool = False
    resumed: int = 0
    startup: float = 0.0
    restarts: int = 0
    notes: tuple[str, ...] = ()
    predicted_step_s: float | None = None
    predicted_mfu: float | None = None
    predicted_memory: Mapping[str, float] = field(default_factory=dict)

    JSON = """
        kind='run' ranks device steps=rows step_s tokens_per_s startup_s=startup resumed restarts stopped checkpoint
        unsaved notes memory? predicted_step_s? predicted_mfu? mfu?
    """

    @property
    def step_s(self) -> float:
        """Median seconds of a step, the first apart."""
        seconds = [row.seconds for row in self.rows[1:] or self.rows]
        return median(seconds) if seconds else 0.0

    @property
    def tokens_per_s(self) -> float:
        """Of all ranks together, at the median step."""
        return self.rows[0].tokens / self.step_s if self.step_s else 0.0

    @property
    def mfu(self) -> float | None:
        """Flops that were predicted over the peak in the measured time; None without a prediction."""
        if self.predicted_step_s is None or self.predicted_mfu is None or not self.step_s:
            return None
        return self.predicted_mfu * self.predicted_step_s / self.step_s

    @property
    def memory(self) -> tuple[RunMemory, ...]:
        """Tensors by kind; empty where nothing was counted."""
        sizes = next((row.held for row in self.rows if row.held), {})
        return tuple(
            RunMemory(kind=kind, bytes=size, predicted_bytes=self.predicted_memory.get(PREDICTED_KINDS.get(kind, kind)))
            for kind, size in sizes.items()
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SbatchScript:
    """The Slurm batch script that was written; nothing was started."""

    output: Path

    JSON = "kind='sbatch' output"


class WorkerLost(RidgelineError):
    """A worker ended before its time: killed, out of memory, in a collective nobody joined, or by a mistake.

    gone    the ranks that were killed or hang; empty where all said what was wrong
    """

    def __init__(self, rank: int, why: str, stack: str = "", gone: tuple[int, ...] = ()) -> None:
        super().__init__(f"rank {rank}: {why}" + (f"\n{stack.rstrip()}" if stack else ""))
        self.rank, self.why, self.stack, self.gone = rank, why, stack, gone
