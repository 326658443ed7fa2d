"""Generate answers to prompts with continuous batching, and be interrupted for new weights at any step.

A prompt with several samples is computed once: its samples share the blocks it fills and copy the one that is half
full. Each step computes what every running sequence lacks: one token in decode, many behind a prompt, behind words of a
tool, or after an interruption. Where no block is free the youngest sequence gives its blocks back and is computed again
later.

Tokens are drawn by a number that the seed, the sample and the token's place decide, so that the same weights give the
same answer whoever else is in the batch, and a resumed answer goes on as it would have:

    u = mix(seed, sample, place) in [0, 1)        token = the first whose cumulated probability exceeds u
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ridgeline.core import records
from ridgeline.runtime.rl.paged import CacheBlocks, CacheShape, NewTokens, PagedCache
from ridgeline.runtime.rl.samples import Prompt, Sample
from ridgeline.runtime.train.stage import Stage

MIXED = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB  # splitmix64 (Steele et al., 2014)
BITS = 53  # of a number in [0, 1)
LARGEST = 1 << 63


@records.dataclass(frozen=True, slots=True, kw_only=True)
class Decoding:
    """How answers are drawn.

    longest       tokens that the policy may write for one answer
    context       tokens of the longest sequence, prompt and words of tools among them
    temperature   0: always the likeliest token
    most          sequences that run at once
    chunk         tokens of one step, more wait
    """

    longest: int
    context: int
    temperature: float = 1.0
    most: int = 256
    chunk: int = 8192
    stop: int = 0
    seed: int = 0


@records.dataclass(frozen=True, slots=True, kw_only=True)
class SamplerCounts:
    """What a sampler did so far."""

    steps: int = 0
    computed: int = 0
    generated: int = 0
    preempted: int = 0
    interrupted: int = 0


@dataclass(slots=True, kw_only=True, eq=False)
class DraftAnswer:
    """A sequence while it is generated; `computed` of its tokens are in its blocks, the policy wrote `written`."""

    prompt: Prompt
    index: int
    tokens: list[int]
    siblings: int = 0
    computed: int = 0
    blocks: list[int] = field(default_factory=list)
    own: list[bool] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    written: int = 0

    @property
    def answer(self) -> list[int]:
        return self.tokens[len(self.prompt.tokens) :]

    def sample(self, *, complete: bool) -> Sample:
        return Sample(
            prompt=self.prompt, index=self.index, tokens=tuple(self.answer), own=tuple(self.own),
            log_probs=tuple(self.log_probs), versions=tuple(self.versions), complete=complete,
        )  # fmt: skip

    def append(self, tokens: Sequence[int], log_probs: Sequence[float], version: int, *, own: bool) -> None:
        """Further tokens, of the policy or of a tool."""
        self.tokens += tokens
        self.own += [own] * len(tokens)
        self.written += len(tokens) if own else 0
        self.log_probs += log_probs
        self.versions += [version] * len(tokens)


Reply = Callable[[Prompt, Sequence[int]], Sequence[int]]
"""What a tool says to the tokens of an answer whose turn has ended; nothing: the answer is complete."""


def uniform_numbers(seed: int, samples: Tensor, places: Tensor) -> Tensor:
    """Numbers in [0, 1), one for each pair of a sample and a place, in 64 bits.

    >>> first, second = (uniform_numbers(1, torch.tensor([4, 4]), torch.tensor([0, 1])) for _ in range(2))
    >>> bool((first == second).all()), bool(first[0] == first[1])
    (True, False)
    """

    def signed(number: int) -> int:
        return (number + LARGEST) % (2 * LARGEST) - LARGEST

    def shifted(x: Tensor, bits: int) -> Tensor:
        return (x >> bits) & ((1 << (64 - bits)) - 1)

    first, second, third = (signed(number) for number in MIXED)
    x = samples * first + signed(seed * MIXED[1])
    for extra in (places, torch.zeros_like(places)):
        x = (x + extra * second) + first
        x = (x ^ shifted(x, 30)) * second
        x = (x ^ shifted(x, 27)) * third
        x = x ^ shifted(x, 31)
    return shifted(x, 64 - BITS).double() / float(1 << BITS)


def draw_tokens(logits: Tensor, numbers: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """Tokens drawn from [rows, vocabulary] by numbers in [0, 1), and their log-probabilities.

    Log-probabilities are of the distribution that was drawn from; of the likeliest token (temperature 0) those of
    temperature 1.
    """
    log_probs = torch.log_softmax(logits / (temperature or 1.0), -1)
    if temperature == 0:
        tokens = log_probs.argmax(-1)
    else:
        cumulated = log_probs.double().exp().cumsum(-1)
        reach = numbers.to(logits.device) * cumulated[:, -1]
        tokens = torch.searchsorted(cumulated, reach.unsqueeze(-1), right=True).squeeze(-1)
        tokens = tokens.clamp(max=logits.shape[-1] - 1)
    return tokens, log_probs.gather(-1, tokens.unsqueeze(-1)).squeeze(-1)


def write_token(
    draft: DraftAnswer, drawn: tuple[int, float], version: int, decoding: Decoding, reply: Reply | None
) -> Sample | None:
    """Give a sequence the token that was drawn, with its log-probability, and what a tool says to it; the answer where
    it ends with that."""
    token, log_prob = drawn
    draft.append([token], [log_prob], version, own=True)
    is_full = draft.written >= decoding.longest or len(draft.tokens) >= decoding.context
    if token != decoding.stop:
        return draft.sample(complete=False) if is_full else None
    said = list(reply(draft.prompt, draft.answer)) if reply is not None else []
    reply_tokens = said[: decoding.context - len(draft.tokens)]
    draft.append(reply_tokens, [0.0] * len(reply_tokens), version, own=False)
    is_full = is_full or len(draft.tokens) >= decoding.context
    return draft.sample(complete=not reply_tokens) if is_full or not reply_tokens else None


class Sampler:
    """A replica of the rollout engine: prompts go in with `add`, `advance` gives the answers that end."""

    def __init__(self, stage: Stage, decoding: Decoding, shape: CacheShape, reply: Reply | None = None) -> None:
        if shape.blocks < shape.blocks_of(decoding.context):
            raise ValueError(f"{shape.blocks} blocks hold less than one sequence of {decoding.context} tokens")
        self.decoding, self.shape, self.reply = decoding, shape, reply
        self.cache = PagedCache(stage, shape, decoding.context)
        self.pool = CacheBlocks(shape.blocks)
        self.waiting: deque[DraftAnswer] = deque()
        self.running: list[DraftAnswer] = []
        self.version = 0
        self.steps = self.computed = self.generated = self.preempted = self.interrupted = 0

    @property
    def pending(self) -> int:
        """Answers that have been asked for and have not ended."""
        return sum(1 + draft.siblings for draft in (*self.waiting, *self.running))

    @property
    def counts(self) -> SamplerCounts:
        return SamplerCounts(
            steps=self.steps, computed=self.computed, generated=self.generated, preempted=self.preempted,
            interrupted=self.interrupted,
        )  # fmt: skip

    def add(self, prompts: Iterable[Prompt]) -> None:
        for prompt in prompts:
            first = DraftAnswer(prompt=prompt, index=0, tokens=list(prompt.tokens), siblings=prompt.samples - 1)
            self.waiting.append(first)

    def renew(self, version: int) -> None:
        """Go on with other weights: what was computed with the old ones is forgotten, what was written stays."""
        self.version = version
        self.interrupted += len(self.running)
        for draft in reversed(self.running):
            self._suspend(draft)
        self.running.clear()

    def advance(self, steps: int | None = None) -> list[Sample]:
        """The answers that end within so many steps, or all of them."""
        samples: list[Sample] = []
        while (self.running or self.waiting) and (steps is None or steps > 0):
            samples += self._step()
            steps = None if steps is None else steps - 1
        return samples

    def _step(self) -> list[Sample]:
        self._admit()
        batch = self._scheduled()
        news = [self._new_tokens(draft, count) for draft, count in batch]
        logits = self.cache.last_logits(news)
        self.steps += 1
        rows: list[int] = []
        drawn: list[DraftAnswer] = []
        for row, (draft, count) in enumerate(batch):
            draft.computed += count
            self.computed += count
            if draft.computed == len(draft.tokens):
                for sequence in (draft, *self._fork(draft)):
                    rows.append(row)
                    drawn.append(sequence)
        return self._write(drawn, logits[rows]) if drawn else []

    def _write(self, drawn: Sequence[DraftAnswer], logits: Tensor) -> list[Sample]:
        """Give each sequence its next token; the answers that end with it."""
        numbers = uniform_numbers(
            self.decoding.seed,
            torch.tensor([draft.prompt.number * draft.prompt.samples + draft.index for draft in drawn]),
            torch.tensor([len(draft.tokens) for draft in drawn]),
        )
        tokens, log_probs = draw_tokens(logits, numbers, self.decoding.temperature)
        ended: dict[DraftAnswer, Sample] = {}
        for draft, token, log_prob in zip(drawn, tokens.tolist(), log_probs.tolist(), strict=True):
            self.generated += 1
            sample = write_token(draft, (token, log_prob), self.version, self.decoding, self.reply)
            if sample is not None:
                self._release(draft)
                ended[draft] = sample
        if ended:
            self.running = [draft for draft in self.running if draft not in ended]
        return list(ended.values())

    def _admit(self) -> None:
        """Begin what waits, while there is room for its prompt and a block more for each sample."""
        running = sum(1 + draft.siblings for draft in self.running)
        while self.waiting:
            first = self.waiting[0]
            count = 1 + first.siblings
            needed = self.shape.blocks_of(len(first.tokens)) + first.siblings
            if self.running and (running + count > self.decoding.most or needed > len(self.pool.free)):
                return
            self.running.append(self.waiting.popleft())
            running += count

    def _scheduled(self) -> list[tuple[DraftAnswer, int]]:
        """Sequences of this step with the tokens to compute of each; blocks are taken, the youngest make way."""
        room, index = self.decoding.chunk, 0
        batch: list[tuple[DraftAnswer, int]] = []
        while index < len(self.running) and room > 0:
            draft = self.running[index]
            count = min(len(draft.tokens) - draft.computed, room)
            if not self._take_blocks(draft, draft.computed + count):
                continue  # the youngest made way, or this one did
            batch.append((draft, count))
            room -= count
            index += 1
        return batch

    def _take_blocks(self, draft: DraftAnswer, tokens: int) -> bool:
        """Blocks for so many tokens of a sequence, its last one its own; False where somebody had to make way."""
        shared = draft.computed // self.shape.block_tokens
        needs_copy = shared < len(draft.blocks) and self.pool.readers[draft.blocks[shared]] > 1
        lacking = self.shape.blocks_of(tokens) - len(draft.blocks) + needs_copy
        if lacking > len(self.pool.free):
            self.preempted += 1
            self._suspend(self.running.pop())
            return False
        if needs_copy:
            block = self.pool.take()
            self.cache.copy_block(draft.blocks[shared], block)
            self.pool.release(draft.blocks[shared])
            draft.blocks[shared] = block
        while len(draft.blocks) < self.shape.blocks_of(tokens):
            draft.blocks.append(self.pool.take())
        return True

    def _suspend(self, draft: DraftAnswer) -> None:
        """Back to those that wait, before all others, with nothing computed."""
        self._release(draft)
        self.waiting.appendleft(draft)

    def _release(self, draft: DraftAnswer) -> None:
        for block in draft.blocks:
            self.pool.release(block)
        draft.blocks, draft.computed = [], 0

    def _fork(self, draft: DraftAnswer) -> list[DraftAnswer]:
        """The other samples of a prompt that has been computed: they read its blocks."""
        others = [
            DraftAnswer(
                prompt=draft.prompt, index=index, tokens=list(draft.prompt.tokens), computed=draft.computed,
                blocks=[self.pool.share(block) for block in draft.blocks],
            )
            for index in range(1, 1 + draft.siblings)
        ]  # fmt: skip
        draft.siblings = 0
        self.running += others
        return others

    def _new_tokens(self, draft: DraftAnswer, count: int) -> NewTokens:
        tokens = draft.tokens[draft.computed : draft.computed + count]
        return NewTokens(tokens=tokens, first=draft.computed, blocks=tuple(draft.blocks))
