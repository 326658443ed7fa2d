"""What a run of post-training learns from, and how its loss is shaped. Predictions do not read it.

[workload.learning]
task = "arithmetic"        # arithmetic | rewrite | calculator: made locally, with a reward that checks the answer
level = 1                  # digits of a number, letters of a word beyond three
rate = 2e-3                # learning rate; absent: what the command line says
warm_up = 40               # optimizer steps on examples before the first step of post-training
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Literal

from ridgeline.core.errors import Problem
from ridgeline.core.records import dataclass
from ridgeline.core.table import AtLeast, Count, Doc, Size

TaskName = Literal["arithmetic", "rewrite", "calculator"]
Averaging = Literal["token-mean", "seq-mean-token-sum", "seq-mean-token-mean"]


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

    def problems(self) -> Iterable[Problem]:
        if self.rate is not None and self.rate <= 0:
            yield Problem(path="rate", given=f"{self.rate:g}", expected="above 0")
        if self.temperature <= 0:
            expected = "above 0: answers of a group have to differ"
            yield Problem(path="temperature", given=f"{self.temperature:g}", expected=expected)
        if not 0 < self.clip_low < 1:
            yield Problem(path="clip_low", given=f"{self.clip_low:g}", expected="above 0, below 1")
