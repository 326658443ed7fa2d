"""What a run is asked to do, the constants of its model, and what it tells: values that travel between processes."""

from __future__ import annotations

import copyreg
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from statistics import median
from types import MappingProxyType
from typing import Any

from ridgeline.core.errors import Problem, RidgelineError
from ridgeline.core.files import read_table
from ridgeline.models.hf.numerics import numerics_from
from ridgeline.models.load import MODELS
from ridgeline.models.numerics import Numerics, Router, numerics_of, unknown_numerics
from ridgeline.models.rotary import USUAL_BASE
from ridgeline.models.spec import Block, ModelSpec, Moe
from ridgeline.plan.plan import Recompute
from ridgeline.plan.scenario import Scenario, training
from ridgeline.plan.workload import Train


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardConstants:
    """What a forward pass multiplies by: the model's Numerics, with a value for each that every pass needs.

    epsilon           added to the mean square (or variance) of a norm
    router            how experts are scored and picked
    mtp_weight        of the losses of multi-token prediction, averaged over depths (DeepSeek-V3: 0.3, later 0.1)
    """

    numerics: Numerics = Numerics()
    epsilon: float = 1e-6
    router: Router = Router(score="softmax", normalized=True)
    mtp_weight: float = 0.3


USUAL_EPSILON = 1e-6
SHARED_MEMORY = "ridge_shm"  # this project's backend for ranks of one host


def all_blocks(model: ModelSpec) -> tuple[Block, ...]:
    """Distinct blocks of the layers, and the one of multi-token prediction."""
    return (*model.blocks, *((model.mtp.block,) if model.mtp else ()))


def forward_constants(model: ModelSpec, numerics: Numerics | None = None) -> ForwardConstants:
    """The constants of a model; of its router, where nobody knows it, a sigmoid if experts are chosen inside groups.

    >>> import ridgeline
    >>> forward_constants(ridgeline.model("llama3.1-8b")).numerics.rotary_base
    500000.0
    """
    numerics = numerics or numerics_of(model)
    has_groups = any(isinstance(block.ffn, Moe) and block.ffn.groups > 1 for block in all_blocks(model))
    usual_router = Router(score="sigmoid" if has_groups else "softmax", bias=has_groups, normalized=True)
    return ForwardConstants(
        numerics=numerics, epsilon=numerics.norm_eps or USUAL_EPSILON, router=numerics.router or usual_router
    )


def assumed_constants(model: ModelSpec, numerics: Numerics | None = None) -> str:
    """What is assumed of a published model whose numerics nobody knows, in one line; empty where nothing is.

    >>> import ridgeline
    >>> assumed_constants(ridgeline.model("llama3-8b")), assumed_constants(ridgeline.model("gpt3-175b"))
    ('', 'assumed of gpt3-175b: norm epsilon 1e-06')
    """
    if model.id not in MODELS:
        return ""  # nobody published it: what is not said is as usual
    described_model = replace(model, numerics=numerics) if numerics else model
    values = {"rotary base": f"{USUAL_BASE:,.0f}", "norm epsilon": f"{USUAL_EPSILON:g}"}
    values["router"] = forward_constants(described_model).router.score
    assumptions = [f"{name} {values[name]}" for name in unknown_numerics(described_model)]
    return f"assumed of {model.id}: {', '.join(assumptions)}" if assumptions else ""


INDEX, SINGLE, CONFIG = "model.safetensors.index.json", "model.safetensors", "config.json"


def folder_problems(folder: Path) -> list[Problem]:
    """Why a folder cannot be loaded from, before anything starts."""
    if (folder / INDEX).is_file() or (folder / SINGLE).is_file():
        return []
    given_text = str(folder) if folder.is_dir() else f"{folder} (no such folder)"
    todo = "name the folder of a Hugging Face model"
    return [Problem(path="--weights", given=given_text, expected=f"a folder with {SINGLE} or {INDEX}", todo=todo)]


def folder_numerics(folder: Path) -> Numerics | None:
    """Those of the config.json beside the weights, where there is one."""
    return numerics_from(read_table(folder / CONFIG).data) if (folder / CONFIG).is_file() else None


MOST_HEADER = 100_000_000  # bytes of names and places at the head of a safetensors file


def stored_names(folder: Path) -> frozenset[str]:
    """Tensors that the files of a folder hold: by its index, or by the head of its one file; empty if neither reads."""
    try:
        if (folder / INDEX).is_file():
            return frozenset(json.loads((folder / INDEX).read_text(encoding="utf-8"))["weight_map"])
        with (folder / SINGLE).open("rb") as stream:
            size = int.from_bytes(stream.read(8), "little")
            return frozenset(json.loads(stream.read(size)) if size <= MOST_HEADER else ())
    except (OSError, ValueError, KeyError, TypeError):
        return frozenset()  # whoever loads the weights says what is wrong with them


def lacks_prediction(folder: Path, model: ModelSpec) -> bool:
    """Whether a model predicts further tokens and the files hold no such layers, as those that transformers writes."""
    behind = f"model.layers.{model.layers}."
    return model.mtp is not None and not any(name.startswith(behind) for name in stored_names(folder))


PARTS = {"attention": "attention", "mixer": "mixer", "mlp": "ffn", "moe": "ffn", "activation": "activation"}
"""What selective recompute names, and the part of a layer that is."""


def recomputed_parts(recompute: Recompute, block: str, *, covered: bool) -> frozenset[str]:
    """Parts of a layer of this block that are computed again; `covered` by the number of layers, or beyond it.

    >>> sorted(recomputed_parts(Recompute(kind="selective", parts=("attention", "moe")), "0", covered=True))
    ['attention', 'ffn']
    >>> recomputed_parts(Recompute(kind="full", layers=0), "0", covered=False)
    frozenset()
    """
    kind = recompute.blocks.get(block, recompute.kind) if covered else recompute.rest
    if kind == "full":
        return frozenset({"layer"})
    return frozenset(PARTS[part] for part in recompute.parts) if kind == "selective" else frozenset()


def _view(mapping: dict[object, object]) -> MappingProxyType[object, object]:
    return MappingProxyType(mapping)


copyreg.pickle(MappingProxyType, lambda view: (_view, (dict(view),)))  # a plan's tables reach the workers


PREDICTED_KINDS = {"temporary": "workspace"}  # what a prediction calls the kinds that a run counts
TRACE_WINDOW = (1, 1, 2)  # steps: before, with the profiler warming up, in the trace


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
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
    rollout      what generates in post-training: empty, the run's own sampler; vllm, an installed vLLM
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
    rollout: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRequest:
    """A scenario and how to run it."""

    scenario: Scenario
    options: RunOptions
    constants: ForwardConstants

    @property
    def ranks(self) -> int:
        """Ranks of the plan."""
        return self.scenario.plan.mesh.ranks

    @property
    def train(self) -> Train:
        """The workload, which `refuse` has seen to be training."""
        return training(self.scenario).workload


def make_request(scenario: Scenario, options: RunOptions, constants: ForwardConstants | None = None) -> RunRequest:
    """The request with the constants of the model, or others."""
    return RunRequest(scenario=scenario, options=options, constants=constants or forward_constants(scenario.model))


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


def nobody(value: object) -> None:
    """Nobody listens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Listener:
    """Who is told how a run goes: every step of it, and a line now and then (a checkpoint that failed, ranks lost)."""

    step: Callable[[StepRow], None] = nobody
    note: Callable[[str], None] = nobody

    @classmethod
    def sending(cls, send: Callable[[str, object], None]) -> Listener:
        """The listener of a rank, which sends what it hears to whoever calls `hear` with it."""
        return cls(step=partial(send, "step"), note=partial(send, "note"))

    def hear(self, kind: str, value: Any) -> None:
        """What a rank sent."""
        (self.step if kind == "step" else self.note)(value)


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """One parameter's gradient against the reference's; both relative to its norm."""

    name: str
    difference: float
    tolerance: float

    @property
    def equal(self) -> bool:
        """Within its tolerance; what is no number is not."""
        return self.difference <= self.tolerance


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """A plan against one process.

    parameters   in the order of the model
    """

    loss: float
    reference_loss: float
    tolerance: float
    parameters: tuple[Compared, ...]

    JSON = "kind='equivalence' equal loss reference_loss loss_difference parameters=compared diverged worst"

    @property
    def compared(self) -> int:
        """How many parameters were compared."""
        return len(self.parameters)

    @property
    def loss_difference(self) -> float:
        """Relative."""
        return abs(self.loss - self.reference_loss) / abs(self.reference_loss)

    @property
    def diverged(self) -> tuple[Compared, ...]:
        """Parameters beyond their tolerance, the one nearest the loss first."""
        return tuple(parameter for parameter in reversed(self.parameters) if not parameter.equal)

    @property
    def worst(self) -> Compared:
        """The largest difference, in tolerances."""
        return max(self.parameters, key=lambda one: one.difference / one.tolerance)

    @property
    def equal(self) -> bool:
        """Whether loss and every gradient are."""
        return not self.diverged and self.loss_difference <= self.tolerance


RunResult = RunOutcome | Verification | None
"""Of a run, of a comparison, and of a rank that does not speak for all."""
