"""What a run of post-training is asked to do and what it tells: values that travel between processes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field
from statistics import fmean
from typing import Literal, get_args

from ridgeline.core.records import dataclass
from ridgeline.plan.rl_workload import ConstantTokens, LognormalTokens, Rl, TokensFile, UniformTokens
from ridgeline.plan.scenario import Scenario
from ridgeline.runtime.train.request import ForwardConstants, RunOptions, nobody

Phase = Literal[
    "rollout", "reward", "log-probs", "reference", "teacher", "critic", "critic update", "train", "sync", "held out"
]
PHASES: tuple[Phase, ...] = get_args(Phase)
WAIT = "wait"  # seconds of a step in which nobody trains, generates or syncs on the chips that train


@dataclass(frozen=True, slots=True, kw_only=True)
class RlRunRequest:
    """A scenario of post-training and how to run it."""

    scenario: Scenario[Rl]
    options: RunOptions
    constants: ForwardConstants

    @property
    def work(self) -> Rl:
        return self.scenario.workload

    @property
    def rate(self) -> float:
        """The learning rate: the scenario's, or the command line's."""
        return self.work.learning.rate or self.options.rate

    @property
    def seed(self) -> int:
        """Of weights, questions and answers."""
        return self.options.seed or self.work.seed

    @property
    def longest_answer(self) -> int:
        """Tokens at which an answer is cut off."""
        return longest_of(self.work.data.response_tokens)


def longest_of(lengths: ConstantTokens | UniformTokens | LognormalTokens | TokensFile | None) -> int:
    """The most tokens that described lengths allow; 0 where they do not say.

    >>> longest_of(ConstantTokens(tokens=8)), longest_of(LognormalTokens(mean=100))
    (8, 0)
    """
    if isinstance(lengths, ConstantTokens):
        return lengths.tokens
    return 0 if lengths is None else lengths.high or 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Seat:
    """Where a process of a run stands: its rank among those that train, its index among those that generate.

    rank, replica   None: it does not
    chip            of its host, that it takes
    """

    rank: int | None = None
    replica: int | None = None
    chip: int = 0

    @property
    def name(self) -> str:
        """
        >>> Seat(rank=1).name, Seat(replica=0).name, Seat(rank=0, replica=0).name
        ('train 1', 'rollout 0', 'worker 0')
        """
        if self.rank is None:
            return f"rollout {self.replica}"
        return f"train {self.rank}" if self.replica is None else f"worker {self.rank}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseSpan:
    """What a process did from one nanosecond to another, on the clock of its host."""

    phase: Phase
    begin_ns: int
    end_ns: int

    @property
    def seconds(self) -> float:
        return (self.end_ns - self.begin_ns) / 1e9


@dataclass(frozen=True, slots=True, kw_only=True)
class Mismatch:
    """Log-probabilities of the same tokens and weights, of the trainer and of the rollout engine.

    mean, largest   distance in nats, over tokens that the newest weights wrote; None where there are none
    divergence      k3 estimate over all tokens of the step, older weights' among them
    """

    mean: float | None = None
    largest: float | None = None
    divergence: float = 0.0

    JSON = "mean largest divergence"


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleLag:
    """By how many weight versions the samples of a step lag behind the weights they train."""

    mean: float = 0.0
    largest: int = 0

    JSON = "mean largest"


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOutFigure:
    """What the model makes of questions that nothing trains on.

    earlier    they are of data that it was trained on before
    loss       mean of minus the log-probability of the tokens of good answers
    accuracy   share of questions whose likeliest answer is the good one
    chance     of a good answer that is drawn: the mean of their probabilities
    """

    source: str
    earlier: bool
    loss: float
    accuracy: float
    chance: float

    JSON = "*"


@dataclass(frozen=True, slots=True, kw_only=True)
class Learned:
    """What one training rank tells of a step; all ranks tell the same but for spans and memory.

    figures    of the algorithm's own: what a critic foresaw, which of a pair is preferred
    held_out   behind this step, where it was looked at; baseline: before the first
    saved      the newest step behind which there is a checkpoint
    """

    loss: float
    gradient_norm: float
    figures: Mapping[str, float]
    mismatch: Mismatch
    spans: tuple[PhaseSpan, ...]
    memory: int
    rate: float
    held_out: tuple[HeldOutFigure, ...] = ()
    baseline: tuple[HeldOutFigure, ...] = ()
    saved: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RlStepRow:
    """One step as it was measured.

    reward      mean over the samples that were trained on; None where nothing was generated
    complete    share of answers that ended by themselves
    clipped     share of tokens whose ratio was cut off
    rate        learning rate of its optimizer steps
    figures     of the algorithm's own: ppo value_loss, explained_variance, critic_norm; dpo accuracy, margin, chosen;
                distillation agreement
    held_out    by source, where it was looked at behind this step
    sources     documents of each source, in continual training
    lost        samples that a lost worker had not finished, and that were generated again
    seconds     from the end of the step before to the end of this one
    phases      of those, by what the processes did: the mean of a pool
    memory      largest resident set of a process
    """

    step: int
    reward: float | None
    loss: float
    gradient_norm: float
    samples: int
    response_tokens: float
    complete: float
    clipped: float
    mismatch: Mismatch
    staleness: SampleLag
    lost: int
    seconds: float
    phases: Mapping[str, float]
    memory: int
    rate: float = 0.0
    figures: Mapping[str, float] = field(default_factory=dict)
    held_out: tuple[HeldOutFigure, ...] = ()
    sources: Mapping[str, int] = field(default_factory=dict)

    JSON = """
        step reward loss gradient_norm samples response_tokens complete clipped rate figures? held_out? sources?
        mismatch staleness lost seconds tokens_per_s phases memory_bytes=memory
    """

    @property
    def tokens_per_s(self) -> float:
        """Tokens of answers, over the seconds of the step."""
        return self.samples * self.response_tokens / self.seconds if self.seconds else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOutChange:
    """What a run made of one source's held-out questions: as it began, and behind its last look."""

    before: HeldOutFigure
    after: HeldOutFigure

    JSON = """
        source earlier forgotten loss_before=before.loss loss_after=after.loss accuracy_before=before.accuracy
        accuracy_after=after.accuracy chance_before=before.chance chance_after=after.chance
    """

    @property
    def source(self) -> str:
        """Its name."""
        return self.after.source

    @property
    def earlier(self) -> bool:
        """Whether the model was trained on it before."""
        return self.after.earlier

    @property
    def forgotten(self) -> float:
        """Share of questions that are no longer answered, less those that now are."""
        return self.before.accuracy - self.after.accuracy


@dataclass(frozen=True, slots=True, kw_only=True)
class RlOutcome:
    """What became of a run of post-training.

    held_out     by source, what was learned and forgotten
    timeline     the file of its phases
    checkpoint, stopped, resumed, restarts, startup, unsaved   as of any run
    """

    rows: tuple[RlStepRow, ...]
    algorithm: str
    placement: str
    train_ranks: int
    replicas: int
    stopped: bool = False
    checkpoint: str = ""
    unsaved: bool = False
    resumed: int = 0
    startup: float = 0.0
    restarts: int = 0
    notes: tuple[str, ...] = ()
    timeline: str = ""
    held_out: tuple[HeldOutChange, ...] = ()

    JSON = """
        kind='rl_run' algorithm placement train_ranks replicas steps=rows first_reward last_reward first_loss last_loss
        held_out? step_s startup_s=startup resumed restarts stopped checkpoint unsaved timeline notes
    """

    @property
    def first_reward(self) -> float:
        """Of the first step; 0 where nothing was generated."""
        return (self.rows[0].reward or 0.0) if self.rows else 0.0

    @property
    def last_reward(self) -> float:
        """Mean of the last five steps."""
        return fmean(row.reward or 0.0 for row in self.rows[-5:]) if self.rows else 0.0

    @property
    def first_loss(self) -> float:
        """Of the first step."""
        return self.rows[0].loss if self.rows else 0.0

    @property
    def last_loss(self) -> float:
        """Mean of the last five steps."""
        return fmean(row.loss for row in self.rows[-5:]) if self.rows else 0.0

    @property
    def step_s(self) -> float:
        """Median seconds of a step, the first apart."""
        seconds = sorted(row.seconds for row in self.rows[1:] or self.rows)
        return seconds[len(seconds) // 2] if seconds else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RlListener:
    """Who is told how a run goes: every step of it, and a line now and then."""

    step: Callable[[RlStepRow], None] = nobody
    note: Callable[[str], None] = nobody
