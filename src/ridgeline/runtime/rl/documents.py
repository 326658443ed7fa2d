"""Turn the sources of a run into what is trained on without a rollout: documents, pairs, and the slice held out.

    sft          a question with its good answer; the answer is learned
    continual    the same as one text; all of it is learned
    dpo          a question with a good answer and a wrong one that looks like it, rewards 1 and 0
    warm-up      good answers to questions that the run does not ask, of earlier sources where there are some

Documents of a step are dealt to sources by the mixture of that step: the i-th of n belongs to the source at (i + 1/2)/n
of the cumulated shares, so that a share is met in every step as nearly as n allows.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping

from ridgeline.core.records import dataclass
from ridgeline.plan.rl_learning import TaskName
from ridgeline.plan.rl_mixture import mixture_at
from ridgeline.plan.rl_workload import Rl
from ridgeline.runtime.rl.samples import Prompt, PromptGroup, Sample, ScoredSample
from ridgeline.runtime.rl.tasks import STOP, QuestionSlice, TaskQuestion, make_question, tokens_of

EXAMPLES = 128  # questions of one warm-up step
EXAMPLE_SEED, HELD_OUT_SEED = 1 << 20, 1 << 21  # apart from the questions of the run
EDGE = 1e-9  # of a share, that rounding may take


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSource:
    """A source of a run: the task that its documents are made of."""

    name: str
    task: TaskName
    level: int
    earlier: bool = False

    def ask(self, place: tuple[int, int], part: QuestionSlice) -> TaskQuestion:
        return make_question(self.task, self.level, place, part)


def task_sources(work: Rl) -> tuple[TaskSource, ...]:
    """Sources of a run, in the order of the scenario; one of the task's own name where none are described."""
    learning = work.learning
    if not work.sources:
        assert learning.task is not None
        return (TaskSource(name=learning.task, task=learning.task, level=learning.level),)
    sources = []
    for name, source in work.sources.items():
        task = source.task or learning.task
        assert task is not None
        sources.append(TaskSource(name=name, task=task, level=source.level or learning.level, earlier=source.earlier))
    return tuple(sources)


def trained_slice(work: Rl) -> QuestionSlice:
    """What may be trained on."""
    return "trained" if work.learning.held_out.every else "all"


def step_documents(work: Rl, seed: int, step: int) -> list[PromptGroup]:
    """What a step trains on, the first of which is 0: a group for each document or pair."""
    sources, first = {source.name: source for source in task_sources(work)}, step * work.data.prompts
    groups = []
    for number, name in enumerate(source_names(work, step), first):
        question = sources[name].ask((seed, number), trained_slice(work))
        groups.append(_group(work, question, number, seed))
    return groups


def source_names(work: Rl, step: int) -> list[str]:
    """Of every document of a step the source that it comes from."""
    if not work.sources:
        return [task_sources(work)[0].name] * work.data.prompts
    mixture, prompts = mixture_at(work, step), work.data.prompts
    return [_source_at(mixture, (index + 0.5) / prompts) for index in range(prompts)]


def warm_up_documents(work: Rl, seed: int, step: int) -> list[PromptGroup]:
    """What one supervised step before the run trains on."""
    sources = [source for source in task_sources(work) if source.earlier] or task_sources(work)
    groups = []
    for index in range(EXAMPLES):
        number = step * EXAMPLES + index
        question = sources[index % len(sources)].ask((seed + EXAMPLE_SEED, number), trained_slice(work))
        groups.append(_document_group(question, number, is_text=work.algorithm == "continual"))
    return groups


def held_out_documents(work: Rl, seed: int) -> Iterator[tuple[TaskSource, list[PromptGroup]]]:
    """Of every source questions with good answers that nothing trains on."""
    for source in task_sources(work):
        questions = (source.ask((seed + HELD_OUT_SEED, number), "held out") for number in range(1 << 62))
        chosen: dict[str, TaskQuestion] = {}
        for attempt, question in enumerate(questions):
            chosen.setdefault(question.prompt, question)
            if len(chosen) == work.learning.held_out.questions or attempt > 20 * work.learning.held_out.questions:
                break
        yield source, [_document_group(question, number) for number, question in enumerate(chosen.values())]


def _source_at(mixture: Mapping[str, float], place: float) -> str:
    """The source at a place of the cumulated shares."""
    reached_share = 0.0
    for name, share in mixture.items():
        reached_share += share
        if share and place < reached_share + EDGE:
            return name
    return max(mixture, key=lambda name: mixture[name])


def _group(work: Rl, question: TaskQuestion, number: int, seed: int) -> PromptGroup:
    if work.algorithm != "dpo":
        return _document_group(question, number, is_text=work.algorithm == "continual")
    wrong = question.spoil(random.Random(f"spoil:{seed}:{number}"))
    pair = _document(question, number, 0, count=2), _document(wrong, number, 1, count=2)
    scored_pair = tuple(ScoredSample(sample=sample, reward=1.0 - sample.index) for sample in pair)
    return PromptGroup(number=number, version=0, samples=scored_pair)


def _document_group(question: TaskQuestion, number: int, *, is_text: bool = False) -> PromptGroup:
    sample = _document(question, number, 0, is_text=is_text)
    return PromptGroup(number=number, version=0, samples=(ScoredSample(sample=sample, reward=1.0),))


def _document(
    question: TaskQuestion, number: int, index: int, *, count: int = 1, is_text: bool = False
) -> Sample:  # fmt: skip
    """An answer that nobody generated; as a text everything behind its first character is learned."""
    prompt, tokens, own_flags = tokens_of(question.prompt), list[int](), list[bool]()
    for turn, text in enumerate(question.example):
        tokens += (*tokens_of(text), STOP)
        own_flags += [True] * (len(text) + 1)
        if turn + 1 < len(question.example):
            tokens += tokens_of(question.result)
            own_flags += [False] * len(question.result)
    if is_text:
        tokens, prompt = [*prompt[1:], *tokens], prompt[:1]
        own_flags = [True] * len(tokens)
    return Sample(
        prompt=Prompt(number=number, tokens=prompt, samples=count), index=index, tokens=tuple(tokens),
        own=tuple(own_flags), log_probs=(0.0,) * len(tokens), versions=(0,) * len(tokens), complete=True,
    )  # fmt: skip
