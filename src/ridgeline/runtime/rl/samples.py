"""Prompts and the answers to them, as they travel between the processes of a run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ridgeline.core.records import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """A question to generate for. `number` is its place in the run, of which the seeds of its samples are made."""

    number: int
    tokens: tuple[int, ...]
    samples: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One answer.

    tokens      of the answer, words of a tool among them
    own         which of them the policy wrote
    log_probs   that the sampler computed for them; 0 where a tool spoke
    versions    of the weights that wrote them
    complete    it ended by itself, not by the limit
    """

    prompt: Prompt
    index: int
    tokens: tuple[int, ...]
    own: tuple[bool, ...]
    log_probs: tuple[float, ...]
    versions: tuple[int, ...]
    complete: bool

    @property
    def oldest(self) -> int:
        """The first version of the weights that had a part in it."""
        return min(self.versions)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredSample:
    """An answer and its reward."""

    sample: Sample
    reward: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptGroup:
    """The finished samples of one prompt, and the version of the weights it began with."""

    number: int
    version: int
    samples: tuple[ScoredSample, ...]

    @property
    def differs(self) -> bool:
        """Whether its rewards do: otherwise a baseline of the group leaves nothing to learn."""
        return len({scored.reward for scored in self.samples}) > 1


def grouped_samples(samples: Iterable[ScoredSample]) -> list[PromptGroup]:
    """Samples by their prompt, in the order of its number."""
    groups: dict[int, list[ScoredSample]] = {}
    for scored in samples:
        groups.setdefault(scored.sample.prompt.number, []).append(scored)
    return [PromptGroup(number=number, version=0, samples=tuple(groups[number])) for number in sorted(groups)]


def informative_groups(groups: Sequence[PromptGroup], count: int) -> list[PromptGroup]:
    """So many groups of more that were sampled: those whose rewards differ first (DAPO's dynamic sampling)."""
    chosen = sorted(groups, key=lambda group: (not group.differs, group.number))[:count]
    return sorted(chosen, key=lambda group: group.number)
