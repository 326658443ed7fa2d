"""What a run of post-training learns from, and how its loss is shaped. Predictions do not read it.

[workload.learning]
task = "arithmetic"        # arithmetic | rewrite | calculator: made locally, with a reward that checks the answer
level = 1                  # digits of a number, letters of a word beyond three
rate = 2e-3                # learning rate; absent: what the command line says
warm_up = 40               # optimizer steps on examples before the first step of post-training

[workload.learning.held_out]       # questions that nothing trains on, asked of the model every so many steps
every = 10
questions = 256

[workload.learning.critic]         # ppo
rate = 2e-3
value_clip = 0.5
[workload.learning.preference]     # dpo
beta = 0.1
[workload.learning.teacher]        # distill-on-policy, distill-off-policy
divergence = "reverse"             # forward | reverse | jsd
warm_up = 300
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Literal

from ridgeline.core.errors import Problem
from ridgeline.core.records import dataclass
from ridgeline.core.table import AtLeast, Count, Doc, Size

TaskName = Literal["arithmetic", "rewrite", "calculator"]
Averaging = Literal["token-mean", "seq-mean-token-sum", "seq-mean-token-mean"]
TeacherDivergence = Literal["forward", "reverse", "jsd"]


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOutSlice:
    """Questions that no step trains on, of every source of data: what tells learning from forgetting."""

    every: Annotated[Size, Doc("steps between two looks; 0: nothing is held out")] = 0
    questions: Annotated[Count, Doc("of every source")] = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class CriticLearning:
    """How the critic of PPO learns, and what it does to advantages."""

    rate: Annotated[float | None, AtLeast(0), Doc("learning rate; absent: the actor's")] = None
    value_clip: Annotated[float, AtLeast(0), Doc("how far a value may move in a step and still count")] = 0.5
    discount: Annotated[float, AtLeast(0), Doc("gamma of generalised advantages")] = 1.0
    trace_decay: Annotated[float, AtLeast(0), Doc("lambda of generalised advantages")] = 1.0

    def problems(self) -> Iterable[Problem]:
        for name in ("discount", "trace_decay"):
            if getattr(self, name) > 1:
                yield Problem(path=name, given=f"{getattr(self, name):g}", expected="from 0 to 1")
        for name in ("rate", "value_clip"):
            if getattr(self, name) == 0:
                yield Problem(path=name, given="0", expected="above 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class PreferenceLearning:
    """How DPO weighs a pair."""

    beta: Annotated[float, AtLeast(0), Doc("how strongly the reference holds the policy")] = 0.1
    smoothing: Annotated[float, AtLeast(0), Doc("share of pairs that are thought to be the wrong way round")] = 0.0

    def problems(self) -> Iterable[Problem]:
        if self.beta <= 0:
            yield Problem(path="beta", given=f"{self.beta:g}", expected="above 0")
        if self.smoothing >= 0.5:
            yield Problem(path="smoothing", given=f"{self.smoothing:g}", expected="from 0 up to 0.5")


@dataclass(frozen=True, slots=True, kw_only=True)
class TeacherLearning:
    """What a student takes from its teacher.

    divergence   forward: KL(teacher, student), the student covers what the teacher says; reverse: KL(student, teacher),
                 it says only what the teacher would; jsd: between both
    """

    divergence: Annotated[TeacherDivergence | None, Doc("absent: reverse on policy, forward off policy")] = None
    warm_up: Annotated[Size, Doc("optimizer steps on examples that make the teacher")] = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Learning:
    """The task of a run and the shape of its loss.

    clip_high   absent: clip_low, and 0.28 for dapo
    average     absent: token-mean for dapo and reinforce++, seq-mean-token-mean for the others
    overlong    dapo: of the longest answer so many tokens in which the reward falls by up to 1
    """

    task: Annotated[TaskName | None, Doc("what is learned; a run needs it")] = None
    level: Annotated[Count, Doc("how hard the task is")] = 1
    rate: Annotated[float | None, AtLeast(0), Doc("learning rate; absent: what the command line says")] = None
    temperature: Annotated[float, AtLeast(0), Doc("of the distribution that answers are drawn from")] = 1.0
    clip_low: Annotated[float, AtLeast(0)] = 0.2
    clip_high: Annotated[float | None, AtLeast(0)] = None
    average: Annotated[Averaging | None, Doc("how the losses of tokens become one")] = None
    kl: Annotated[float, AtLeast(0), Doc("times the divergence from the reference, in the loss")] = 0.0
    overlong: Annotated[Size, Doc("tokens before the limit in which the reward falls; 0: it does not")] = 0
    warm_up: Annotated[Size, Doc("optimizer steps on examples before post-training begins")] = 0
    held_out: HeldOutSlice = HeldOutSlice()
    critic: CriticLearning = CriticLearning()
    preference: PreferenceLearning = PreferenceLearning()
    teacher: TeacherLearning = TeacherLearning()

    def problems(self) -> Iterable[Problem]:
        if self.rate is not None and self.rate <= 0:
            yield Problem(path="rate", given=f"{self.rate:g}", expected="above 0")
        if self.temperature <= 0:
            expected = "above 0: answers of a group have to differ"
            yield Problem(path="temperature", given=f"{self.temperature:g}", expected=expected)
        if not 0 < self.clip_low < 1:
            yield Problem(path="clip_low", given=f"{self.clip_low:g}", expected="above 0, below 1")
