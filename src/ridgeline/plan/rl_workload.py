"""What is asked of post-training: an algorithm, its roles, prompts and samples with their lengths, agents, updates.

A scenario file of it:

    model = "qwen2.5-7b"                                   # the actor
    system = "32xh20-96"

    [workload]
    kind = "rl"
    algorithm = "grpo"          # ppo grpo dapo rloo reinforce++ dpo sft distill-on-policy distill-off-policy continual
    prompts = 512                                          # of one step; pairs for dpo, documents for sft and continual
    samples = 16                                           # answers to each prompt
    prompt_tokens = 512                                    # a number, a file of numbers, or a table with a kind:
    response_tokens = { kind = "lognormal", mean = 6000, sigma = 0.9, high = 28672 }
    drift = { growth = 1.5, steps = 400 }                  # optional: responses lengthen over training
    oversampling = 1.0                                     # prompts sampled for each that is trained on (DAPO's filter)
    mini_batch = 32                                        # prompts of one optimizer step; absent: all
    epochs = 1                                             # passes over the samples of a step
    old_log_probs = "trainer"                              # or rollout, which has them already
    optimizer = "adamw"                                    # as in kind = "train"

    [workload.roles]                                       # roles beside actor and rollout; true: the actor's model
    reference = true
    critic = "qwen2.5-7b"                                  # a model by id or path
    reward_model = { model = "qwen2.5-32b" }
    teacher = "qwen2.5-72b"
    verifier = { latency = "0.5 s", concurrency = 256 }    # a program that checks answers on the hosts

    [workload.agent]                                       # optional: several turns with tools between them
    turns = 4                                              # or a distribution
    tool_latency = { kind = "lognormal", mean = "2 s", sigma = 1.0 }
    tool_tokens = 300                                      # of what the tool says, appended to the context
    waiting = "keep"                                       # or free: a waiting request gives its cache back

    [workload.replay]                                      # optional, for continual training
    share = 0.1
    final_share = 0.05                                     # the mixture moves there linearly over `steps`
    steps = 10000
    warmup_steps = 200                                     # the learning rate is warmed up again to peak
    peak = 0.3                                             # of the first pre-training's learning rate
    decay_steps = 9800                                     # behind the warm-up, by a cosine
    floor = 0.1                                            # of the peak

    [workload.sources.code]                                # optional, for continual training and sft: data by origin
    weight = 0.7                                           # among the new sources
    final_weight = 0.9                                     # it moves there over replay.steps
    document_tokens = 4096                                 # absent: as the workload says
    [workload.sources.web]
    earlier = true                                         # the model was trained on it: replay.share of the documents

`response_tokens` are all tokens that the model writes for a sample, over all turns. Where they run is `plan.rl`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import field
from types import MappingProxyType
from typing import Annotated, Literal

from ridgeline.core.errors import Problem, UnitError
from ridgeline.core.records import dataclass
from ridgeline.core.table import AtLeast, Count, Doc, Flat, QuantityUnit, Size, Via
from ridgeline.core.units import parse_count
from ridgeline.plan.optimizer import Lora, Optimizer, optimizer_table
from ridgeline.plan.quantities import Seconds, Tokens
from ridgeline.plan.rl_learning import Learning, TaskName

Algorithm = Literal[
    "ppo", "grpo", "dapo", "rloo", "reinforce++", "dpo", "sft", "distill-on-policy", "distill-off-policy", "continual"
]
OFFLINE: frozenset[Algorithm] = frozenset({"dpo", "sft", "distill-off-policy", "continual"})
"""Algorithms that train on data that is there: nothing is generated."""
GROUPED: frozenset[Algorithm] = frozenset({"grpo", "dapo", "rloo"})
"""Algorithms whose baseline is the other samples of a prompt."""
NEEDED_ROLES: dict[Algorithm, tuple[str, ...]] = {
    "ppo": ("critic",),
    "dpo": ("reference",),
    "distill-on-policy": ("teacher",),
    "distill-off-policy": ("teacher",),
}
MOST_SAMPLES = 4_000_000  # of one step
MOST_SIGMA = 4.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ConstantTokens:
    """Every sample has as many."""

    kind: Literal["constant"] = "constant"
    tokens: Tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class UniformTokens:
    """Every length between two, equally likely."""

    kind: Literal["uniform"] = "uniform"
    low: Tokens
    high: Tokens

    def problems(self) -> Iterable[Problem]:
        yield from _order_problems("low", self.low, "high", self.high)


@dataclass(frozen=True, slots=True, kw_only=True)
class LognormalTokens:
    """Lognormal lengths, cut at `high`, where generation stops.

    mean    of the lengths as they come out, cut ones among them
    sigma   standard deviation of their logarithm before the cut: 0.5 is narrow, 1 has a long tail
    """

    kind: Literal["lognormal"] = "lognormal"
    mean: Tokens
    sigma: Annotated[float, AtLeast(0)] = 0.8
    low: Tokens = 1
    high: Annotated[Tokens | None, Doc("longest; absent: four standard deviations above the median")] = None

    def problems(self) -> Iterable[Problem]:
        if self.sigma > MOST_SIGMA:
            yield Problem(path="sigma", given=f"{self.sigma:g}", expected=f"at most {MOST_SIGMA:g}")
        if self.high is not None:
            yield from _order_problems("mean", self.mean, "high", self.high)
        yield from _order_problems("low", self.low, "mean", self.mean)


@dataclass(frozen=True, slots=True, kw_only=True)
class TokensFile:
    """Lengths measured: a text file with one on each line, or one column of a CSV."""

    kind: Literal["file"] = "file"
    file: Annotated[str, Doc("path of the file")]
    column: Annotated[str, Doc("column of a CSV; absent: the first")] = ""
    high: Annotated[Tokens | None, Doc("where generation stops; absent: the longest of the file")] = None


Lengths = ConstantTokens | UniformTokens | LognormalTokens | TokensFile


@dataclass(frozen=True, slots=True, kw_only=True)
class ConstantSeconds:
    """Always as long."""

    kind: Literal["constant"] = "constant"
    seconds: Seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class UniformSeconds:
    """Every time between two, equally likely."""

    kind: Literal["uniform"] = "uniform"
    low: Seconds
    high: Seconds

    def problems(self) -> Iterable[Problem]:
        yield from _order_problems("low", self.low, "high", self.high)


@dataclass(frozen=True, slots=True, kw_only=True)
class LognormalSeconds:
    """Lognormal times, cut at `high` (a timeout)."""

    kind: Literal["lognormal"] = "lognormal"
    mean: Seconds
    sigma: Annotated[float, AtLeast(0)] = 1.0
    high: Annotated[float | None, QuantityUnit("s"), AtLeast(0), Doc("timeout; absent: none")] = None

    def problems(self) -> Iterable[Problem]:
        if self.sigma > MOST_SIGMA:
            yield Problem(path="sigma", given=f"{self.sigma:g}", expected=f"at most {MOST_SIGMA:g}")
        if self.mean <= 0:
            yield Problem(path="mean", given=f"{self.mean:g} s", expected="a time above 0", todo='kind = "constant"')
        if self.high is not None:
            yield from _order_problems("mean", self.mean, "high", self.high)


Latency = ConstantSeconds | UniformSeconds | LognormalSeconds


def lengths_table(value: object) -> object:
    """`512` and `"2k"`: as many each time; another text: a file of lengths.

    >>> lengths_table("2k"), lengths_table("lengths.csv")
    ({'kind': 'constant', 'tokens': '2k'}, {'kind': 'file', 'file': 'lengths.csv'})
    """
    if isinstance(value, bool) or not isinstance(value, (int, str)):
        return value
    try:
        number = parse_count(value) if isinstance(value, str) else value
    except UnitError:
        return {"kind": "file", "file": value}
    return {"kind": "constant", "tokens": value if isinstance(value, str) else number}


def latency_table(value: object) -> object:
    """`"2 s"`: always as long."""
    return value if isinstance(value, dict) else {"kind": "constant", "seconds": value}


def _order_problems(name: str, value: float, other: str, limit: float) -> Iterator[Problem]:
    if value > limit:
        yield Problem(path=name, given=f"{value:g}", expected=f"at most {other} ({limit:g})")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRole:
    """A role that runs a model: its own, or the actor's."""

    model: Annotated[str, Doc("catalog id or path; absent: the actor's model")] = ""


def _model_role(value: object) -> object:
    """`true`: the actor's model; a text: that model; `false`: nobody has the role."""
    if isinstance(value, bool):
        return {} if value else None
    return {"model": value} if isinstance(value, str) else value


OfModel = Annotated[ModelRole | None, Via(_model_role, "boolean")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Verifier:
    """A program that judges answers on the hosts, while others are still generated.

    concurrency   answers judged at once over the whole system
    """

    latency: Annotated[Latency, Via(latency_table)] = ConstantSeconds(seconds=0.0)
    concurrency: Count = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Roles:
    """Who takes part beside the actor and its rollout engine."""

    reference: OfModel = None
    critic: OfModel = None
    reward_model: OfModel = None
    teacher: OfModel = None
    verifier: Verifier | None = None

    @property
    def models(self) -> dict[str, ModelRole]:
        """Roles that run a model, by name."""
        names = ("reference", "critic", "reward_model", "teacher")
        return {name: role for name in names if (role := getattr(self, name)) is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class Agent:
    """Samples of several turns, with a tool or an environment between two of them.

    Later turns read the whole conversation before them: the cache of the shared prefix is used where it is still there.

    waiting   keep: a request that waits for its tool keeps its cache; free: it gives it up and is read again
    """

    turns: Annotated[Lengths, Via(lengths_table)]
    tool_latency: Annotated[Latency, Via(latency_table)] = ConstantSeconds(seconds=0.0)
    tool_tokens: Annotated[Lengths, Via(lengths_table)] = ConstantTokens(tokens=1)
    waiting: Literal["keep", "free"] = "keep"


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """Responses lengthen (or shorten) linearly over training: `growth` times as long after `steps` steps."""

    growth: Annotated[float, AtLeast(0.01)]
    steps: Count


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSource:
    """Documents of one origin.

    weight, final_weight   among the sources that are as new, or as old
    task, level            what a run makes of it; absent: those of [workload.learning]
    """

    weight: Annotated[float, AtLeast(0)] = 1.0
    final_weight: Annotated[float | None, AtLeast(0), Doc("where it moves to over replay.steps; absent: it stays")] = (
        None
    )
    earlier: Annotated[bool, Doc("data that the model was trained on before")] = False
    document_tokens: Annotated[
        Lengths | None, Via(lengths_table), Doc("of a document; absent: the workload's prompt and answer")
    ] = None
    task: Annotated[TaskName | None, Doc("what a run makes it of")] = None
    level: Annotated[Count | None, Doc("how hard that task is")] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DataReplay:
    """Old data among the new, and the learning rate warmed up again and decayed, in continual training."""

    share: Annotated[float, AtLeast(0), Doc("of a step's documents that come from earlier data")] = 0.0
    final_share: Annotated[float | None, AtLeast(0), Doc("where it moves to over `steps`; absent: it stays")] = None
    steps: Count = 1000
    warmup_steps: Size = 0
    peak: Annotated[float, AtLeast(0), Doc("learning rate after warm-up over that of the first training")] = 1.0
    decay_steps: Annotated[Size, Doc("in which it then falls by a cosine; 0: it does not")] = 0
    floor: Annotated[float, AtLeast(0), Doc("learning rate after that over its peak")] = 0.1

    def problems(self) -> Iterable[Problem]:
        for name, share in (("share", self.share), ("final_share", self.final_share)):
            if share is not None and share >= 1:
                yield Problem(path=name, given=f"{share:g}", expected="a share from 0 up to 1")
        if self.floor > 1:
            yield Problem(path="floor", given=f"{self.floor:g}", expected="a share of the peak, from 0 to 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledData:
    """Prompts of one step and what is written for them."""

    prompts: Annotated[Count, Doc("prompts of one step; pairs for dpo, documents for sft and continual training")]
    samples: Annotated[Count, Doc("answers to each prompt")] = 1
    prompt_tokens: Annotated[Lengths, Via(lengths_table)] = ConstantTokens(tokens=512)
    response_tokens: Annotated[Lengths | None, Via(lengths_table)] = None
    drift: Drift | None = None
    oversampling: Annotated[float, AtLeast(1), Doc("prompts sampled for each that is trained on")] = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Updates:
    """How the samples of a step are trained on."""

    mini_batch: Annotated[Count | None, Doc("prompts of one optimizer step; absent: all of the step")] = None
    epochs: Annotated[Count, Doc("passes over the samples of a step")] = 1
    old_log_probs: Annotated[
        Literal["trainer", "rollout"] | None,
        Doc("who computes log-probabilities of the old policy; absent: the trainer, when asynchronous the rollout"),
    ] = None
    optimizer: Annotated[Optimizer, Via(optimizer_table)] = Optimizer()
    lora: Lora | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Rl:
    """One step of post-training. In a file `data` and `updates` stand directly under [workload]."""

    kind: Literal["rl"] = "rl"
    algorithm: Algorithm = "grpo"
    data: Annotated[SampledData, Flat()]
    updates: Annotated[Updates, Flat()] = Updates()
    roles: Roles = Roles()
    agent: Agent | None = None
    replay: DataReplay | None = None
    sources: Annotated[
        Mapping[str, DataSource], Doc("data by origin, for continual training and sft; absent: all documents are alike")
    ] = field(default_factory=lambda: MappingProxyType({}))
    learning: Annotated[Learning, Doc("what a run learns from; predictions do not read it")] = Learning()
    seed: Size = 0

    @property
    def generates(self) -> bool:
        """Whether the actor writes what it is trained on."""
        return self.algorithm not in OFFLINE

    @property
    def answers(self) -> int:
        """Sequences that one step trains on; both of a pair for DPO."""
        return self.data.prompts * (2 if self.algorithm == "dpo" else self.data.samples)

    @property
    def sequences(self) -> int:
        """Sequences that one step trains on."""
        return self.answers

    @property
    def seq(self) -> int:
        """Tokens of a prompt and its answer, as far as the description tells."""
        return _typical(self.data.prompt_tokens) + _typical(self.data.response_tokens)

    @property
    def tokens(self) -> int:
        """Tokens that one step trains on, as far as the description tells."""
        return self.answers * self.seq

    @property
    def mini_batches(self) -> int:
        """Optimizer steps of one pass over the samples."""
        return self.data.prompts // (self.updates.mini_batch or self.data.prompts)

    def problems(self) -> Iterable[Problem]:
        yield from _sampling_problems(self)
        for role in NEEDED_ROLES.get(self.algorithm, ()):
            if role not in self.roles.models:
                todo = f"add {role} = true under [workload.roles], or a model's id"
                expectation = f"a {role}: {self.algorithm} needs it"
                yield Problem(path=f"roles.{role}", given="nothing", expected=expectation, todo=todo)
        mini = self.updates.mini_batch
        if mini is not None and self.data.prompts % mini:
            expectation = f"a divisor of prompts ({self.data.prompts})"
            yield Problem(path="mini_batch", given=str(mini), expected=expectation)
        if self.replay is not None and self.algorithm not in ("continual", "sft"):
            expectation = f"none for {self.algorithm}: replay mixes documents"
            yield Problem(path="replay", given="a table", expected=expectation, todo='set algorithm = "continual"')
        yield from _source_problems(self)


def _typical(lengths: Lengths | None) -> int:
    """The mean of described lengths; what a file holds is not known here."""
    match lengths:
        case ConstantTokens(tokens=tokens):
            return tokens
        case UniformTokens(low=low, high=high):
            return (low + high) // 2
        case LognormalTokens(mean=mean):
            return mean
        case TokensFile(high=high):
            return high or 1
        case None:
            return 0


def _source_problems(work: Rl) -> Iterator[Problem]:
    """What sources, the algorithm and the share of replay ask of each other."""
    if not work.sources:
        return
    if work.algorithm not in ("continual", "sft"):
        expectation = f"none for {work.algorithm}: sources are of documents"
        yield Problem(path="sources", given="a table", expected=expectation, todo='set algorithm = "continual"')
    has_replay = work.replay is not None and max(work.replay.share, work.replay.final_share or 0.0) > 0
    for is_earlier, todo in ((False, "drop earlier from one"), (True, "set earlier = true in one")):
        group = [entry for entry in work.sources.values() if entry.earlier == is_earlier]
        kind = "earlier data" if is_earlier else "new data"
        ends = [(entry.weight, entry.weight if entry.final_weight is None else entry.final_weight) for entry in group]
        is_needed = has_replay or not is_earlier
        if is_needed and not (group and all(sum(end) > 0 for end in zip(*ends, strict=True))):
            expectation = f"a source of {kind} with a weight above 0, first and last"
            yield Problem(path="sources", given=f"{len(group)} of {kind}", expected=expectation, todo=todo)


def _sampling_problems(work: Rl) -> Iterator[Problem]:
    """What an algorithm asks of samples and answers."""
    data, algorithm = work.data, work.algorithm
    if work.answers > MOST_SAMPLES:
        yield Problem(path="prompts", given=f"{work.answers:,} sequences", expected=f"at most {MOST_SAMPLES:,}")
    if data.response_tokens is None and algorithm != "continual":
        yield Problem(path="response_tokens", given="nothing", expected="tokens of an answer, or their distribution")
    if algorithm in GROUPED and data.samples < 2:
        expectation = f"2 or more: the baseline of {algorithm} is the other samples of a prompt"
        yield Problem(path="samples", given=str(data.samples), expected=expectation)
    if work.generates:
        return
    if data.samples > 1:
        expectation = f"1: {algorithm} trains on data that is there"
        yield Problem(path="samples", given=str(data.samples), expected=expectation)
    for name, value in (("agent", work.agent), ("drift", data.drift)):
        if value is not None:
            yield Problem(path=name, given="a table", expected=f"none: {algorithm} generates nothing")
    if data.oversampling > 1:
        expectation = f"1: {algorithm} generates nothing"
        yield Problem(path="oversampling", given=f"{data.oversampling:g}", expected=expectation)
