"""A replica of the rollout engine: it asks the questions of a run, answers them with the weights it has, and judges.

Weights travel as one buffer of bytes with the shapes in front: one copy in, one copy out, whatever the tensors.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

import torch
from torch import Tensor

from ridgeline.core.records import dataclass
from ridgeline.plan.serving_plan import VllmKnobs
from ridgeline.runtime.rl.documents import task_sources, trained_slice
from ridgeline.runtime.rl.paged import CacheShape
from ridgeline.runtime.rl.request import PhaseSpan, RlRunRequest
from ridgeline.runtime.rl.sampler import Decoding, Sampler
from ridgeline.runtime.rl.samples import Prompt, Sample, ScoredSample
from ridgeline.runtime.rl.stopwatch import Stopwatch
from ridgeline.runtime.rl.tasks import STOP, TaskQuestion, longest_texts, text_of, tokens_of
from ridgeline.runtime.rl.trainee import role_blueprint
from ridgeline.runtime.train.assemble import TORCH_DTYPES, Blueprint, assemble
from ridgeline.runtime.train.layout import Layout
from ridgeline.runtime.train.verify import alone_of

CACHE_BYTES = 1 << 30  # of keys and values, where no plan says how many blocks
BARE_SEQUENCES, BARE_TOKENS = 256, 8192  # of a step, likewise


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightBuffer:
    """Whole weights as bytes: names with shapes, in the order of the data."""

    shapes: tuple[tuple[str, tuple[int, ...]], ...]
    data: bytes

    @staticmethod
    def of(weights: Mapping[str, Tensor]) -> WeightBuffer:
        flat = torch.cat([weight.reshape(-1).cpu() for weight in weights.values()])
        shapes = tuple((name, tuple(weight.shape)) for name, weight in weights.items())
        return WeightBuffer(shapes=shapes, data=flat.view(torch.uint8).numpy().tobytes())

    def tensors(self, dtype: torch.dtype) -> dict[str, Tensor]:
        """The weights by name."""
        flat = torch.frombuffer(bytearray(self.data), dtype=dtype)
        sizes = [torch.Size(shape).numel() for _, shape in self.shapes]
        pieces = flat.split(sizes)
        return {name: piece.view(shape) for (name, shape), piece in zip(self.shapes, pieces, strict=True)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Generated:
    """What a replica finished: samples with rewards by the number of their prompt, and what it did when."""

    samples: tuple[ScoredSample, ...]
    spans: tuple[PhaseSpan, ...]


class ReplicaEngine(Protocol):
    """What generates: prompts go in with `add`, `advance` gives the answers that end, within so many steps."""

    def load(self, weights: Mapping[str, Tensor], version: int) -> None:
        """Take new weights; unfinished answers go on with them."""

    def add(self, prompts: Iterable[Prompt]) -> None:
        """Further prompts."""

    def advance(self, steps: int | None = None) -> list[Sample]:
        """The answers that end within so many steps, or all of them."""


class StageSampler(Sampler):
    """The run's own sampler with weights of its own."""

    def load(self, weights: Mapping[str, Tensor], version: int) -> None:
        """Take new weights; unfinished answers go on with them."""
        with torch.no_grad():
            for name, parameter in self.cache.stage.named_parameters():
                parameter.copy_(weights[name])
        self.renew(version)


class SamplerReplica:
    """One replica on one chip, of the actor or of another model that writes."""

    def __init__(self, request: RlRunRequest, device: str, role: str = "actor") -> None:
        self.request, self.watch = request, Stopwatch()
        blueprint = alone_of(role_blueprint(request, role))
        self.dtype = TORCH_DTYPES[blueprint.plan.precision.weights.id]
        self.questions: dict[int, TaskQuestion] = {}
        given = request.scenario.plan.serving.knobs
        self.knobs = given if isinstance(given, VllmKnobs) else VllmKnobs()
        is_vllm = request.options.rollout == "vllm" and role == "actor"
        self.engine: ReplicaEngine = self._vllm(blueprint, device) if is_vllm else self._sampler(blueprint, device)

    def _decoding(self) -> Decoding:
        work = self.request.work
        assert work.learning.task is not None
        prompt, words = longest_texts(work.learning.task, work.learning.level)
        longest = self.request.longest_answer
        return Decoding(
            longest=longest, context=prompt + longest + words, temperature=work.learning.temperature,
            most=self.knobs.max_num_seqs or BARE_SEQUENCES, chunk=self.knobs.max_num_batched_tokens or BARE_TOKENS,
            stop=STOP, seed=self.request.seed,
        )  # fmt: skip

    def _sampler(self, blueprint: Blueprint, device: str) -> StageSampler:
        decoding, model = self._decoding(), blueprint.model
        one_block = CacheShape(blocks=1, block_tokens=self.knobs.block_size)
        block_bytes = 2 * model.layers * model.hidden * self.dtype.itemsize * one_block.block_tokens  # a key each head
        each = one_block.blocks_of(decoding.context)
        blocks = self.knobs.num_gpu_blocks_override or min(each * decoding.most, CACHE_BYTES // block_bytes)
        shape = replace(one_block, blocks=max(each, blocks))
        return StageSampler(assemble(blueprint, Layout(device=device)).stages[0], decoding, shape, self._reply)

    def _vllm(self, blueprint: Blueprint, device: str) -> ReplicaEngine:
        from ridgeline.runtime.rl.vllm_sampler import VllmConnection, VllmSampler

        decoding, dtype = self._decoding(), str(self.dtype).removeprefix("torch.")
        connection = VllmConnection(decoding, self.knobs, device, dtype)
        return VllmSampler(blueprint.model, blueprint.constants, decoding, connection, self._reply)

    def load(self, weights: Mapping[str, Tensor] | WeightBuffer, version: int) -> tuple[PhaseSpan, ...]:
        """Take new weights; unfinished answers go on with them."""
        with self.watch.phase("sync"):
            given = weights.tensors(self.dtype) if isinstance(weights, WeightBuffer) else weights
            self.engine.load(given, version)
        return self.watch.take()

    def generate(self, numbers: Sequence[int], steps: int | None = None) -> Generated:
        """Begin these prompts and go on for so many steps, or until all answers have ended."""
        with self.watch.phase("rollout"):
            self.engine.add([self._ask(number) for number in numbers])
            samples = self.engine.advance(steps)
        with self.watch.phase("reward"):
            scored = tuple(ScoredSample(sample=sample, reward=self._judge(sample)) for sample in samples)
        return Generated(samples=scored, spans=self.watch.take())

    def _ask(self, number: int) -> Prompt:
        question = self._question(number)
        return Prompt(number=number, tokens=tokens_of(question.prompt), samples=self.request.work.data.samples)

    def _question(self, number: int) -> TaskQuestion:
        work = self.request.work
        return task_sources(work)[0].ask((self.request.seed, number), trained_slice(work))

    def _reply(self, prompt: Prompt, answer: Sequence[int]) -> Sequence[int]:
        question = self._question(prompt.number)
        if not question.call:
            return ()
        ended = text_of(answer).split(text_of([STOP]))[:-1]
        first = ended[0]
        said = question.reply([first]) if len(ended) == 1 else ""
        return tokens_of(said)

    def _judge(self, sample: Sample) -> float:
        """The reward of an answer: nothing for one that was cut off."""
        if not sample.complete:
            return 0.0
        turns, text = list[str](), ""
        for token, own in zip(sample.tokens, sample.own, strict=True):
            if own and token == STOP:
                turns.append(text)
                text = ""
            elif own:
                text += text_of([token])
        return self._question(sample.prompt.number).reward(turns)
