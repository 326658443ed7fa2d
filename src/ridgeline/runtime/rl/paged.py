"""The forward pass of generation on the trainer's own modules: new tokens of many sequences at once, and a paged cache.

    rows      the new tokens of all sequences, one behind the other: [1, rows, hidden]; a sequence has one in decode and
              many in prefill, and every part of a layer but attention works on rows alone
    write     a row's key and value go to a slot: block x tokens of a block + place in it
    read      attention gathers the blocks of a sequence; what lies behind a row's own place is masked

Sequences with one new row are attended together; the others together too, filled up to the longest of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import accumulate

import torch
from torch import Tensor

from ridgeline.core.records import dataclass
from ridgeline.runtime.train.layer import Rotary, ScoreRule, attend_visible
from ridgeline.runtime.train.stage import Layer, Stage
from ridgeline.runtime.train.weights import local


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheShape:
    """How many blocks a cache has, and the tokens of one."""

    blocks: int
    block_tokens: int

    def blocks_of(self, tokens: int) -> int:
        """Blocks that hold so many tokens.

        >>> CacheShape(blocks=8, block_tokens=16).blocks_of(17)
        2
        """
        return -(-tokens // self.block_tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class NewTokens:
    """Of one sequence: tokens to compute, the place of the first, and the blocks that hold it up to the last."""

    tokens: Sequence[int]
    first: int
    blocks: Sequence[int]


class CacheBlocks:
    """Blocks that are free, and how many sequences read each of the others."""

    def __init__(self, blocks: int) -> None:
        self.free = list(range(blocks - 1, -1, -1))
        self.readers = [0] * blocks

    def take(self) -> int:
        """A block for one reader; there has to be a free one."""
        block = self.free.pop()
        self.readers[block] = 1
        return block

    def share(self, block: int) -> int:
        self.readers[block] += 1
        return block

    def release(self, block: int) -> None:
        self.readers[block] -= 1
        if not self.readers[block]:
            self.free.append(block)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Attended:
    """Sequences that one call of attention takes together.

    rows      of the new tokens, [sequences, queries]; where a sequence has fewer its first row stands in
    own_cells among those, in their order, the ones that are a sequence's own; own_rows: the rows they are
    written   slots that those write to
    slots     of every token that may be read, [sequences, keys]
    visible   which of those a query sees, [sequences, 1, queries, keys]
    """

    rows: Tensor
    own_cells: Tensor
    own_rows: Tensor
    written: Tensor
    slots: Tensor
    visible: Tensor


class PagedCache:
    """Keys and values of every layer by block, and the forward pass that writes and reads them."""

    def __init__(self, stage: Stage, shape: CacheShape, context: int) -> None:
        """`context` is the longest sequence: rotary positions may depend on it."""
        self.stage, self.shape, self.context = stage, shape, context
        self.angles: dict[tuple[int, bool], tuple[Tensor, Tensor]] = {}
        self.layers: list[Layer] = list(stage.layers.values())
        assert stage.embedding is not None
        assert stage.head is not None
        self.embedding, self.head = stage.embedding, stage.head
        self.device = local(stage.head.weight).device
        self.keys: list[Tensor | None] = [None] * len(self.layers)
        self.values: list[Tensor | None] = [None] * len(self.layers)

    def copy_block(self, source: int, target: int) -> None:
        """Give a sequence its own copy of a block that it is about to write and others read."""
        for store in (*self.keys, *self.values):
            if store is not None:
                size = self.shape.block_tokens
                store[target * size : (target + 1) * size] = store[source * size : (source + 1) * size]

    def last_logits(self, news: Sequence[NewTokens]) -> Tensor:
        """The logits behind the last new token of every sequence, [sequences, vocabulary], in 32 bits."""
        with torch.no_grad():
            return self._last_logits(news)

    def _last_logits(self, news: Sequence[NewTokens]) -> Tensor:
        stage = self.stage
        counts = [len(new.tokens) for new in news]
        tokens = torch.tensor([token for new in news for token in new.tokens], device=self.device)
        place_list = [new.first + index for new in news for index in range(len(new.tokens))]
        places = torch.tensor(place_list, device=self.device)
        groups = self._groups(news, counts)
        slots = torch.empty_like(places)
        for group in groups:
            slots[group.own_rows] = group.written
        self.angles.clear()
        x = self.embedding(tokens.unsqueeze(0), places)
        for index, layer in enumerate(self.layers):
            x = layer.attend_by(x, partial(self._mix, index, (places, slots, groups)))
        last = torch.tensor(counts, device=self.device).cumsum(0) - 1
        x = x[:, last]
        return self.head(x if stage.norm is None else stage.norm(x))[0].float()

    def _mix(self, index: int, where: tuple[Tensor, Tensor, list[_Attended]], states: Tensor) -> Tensor:
        """The mixer of a layer: its new keys and values into the cache, its queries over what is there."""
        places, slots, groups = where
        mixer = self.layers[index].mixer
        q, k, v = mixer.heads(states, self._angles(mixer.rotary, places))
        self._write(index, slots, k[0], v[0])
        context = q.new_empty((*q.shape[:-1], v.shape[-1]))
        for group in groups:
            context[0, group.own_rows] = self._attend(index, q[0], group, mixer.rule).flatten(0, 1)[group.own_cells]
        return mixer.merge_heads(context)

    def _angles(self, rotary: Rotary | None, places: Tensor) -> tuple[Tensor, Tensor] | None:
        """Of new tokens, which layers with the same rotary positions share."""
        if rotary is None:
            return None
        key = rotary.width, rotary.local
        if key not in self.angles:
            self.angles[key] = rotary.angles_at(places, self.context)
        return self.angles[key]

    def _write(self, index: int, slots: Tensor, k: Tensor, v: Tensor) -> None:
        for stores, rows in ((self.keys, k), (self.values, v)):
            store = stores[index]
            if store is None:
                size = self.shape.blocks * self.shape.block_tokens
                store = stores[index] = torch.zeros(size, *rows.shape[1:], dtype=rows.dtype, device=rows.device)
            store[slots] = rows

    def _attend(self, index: int, q: Tensor, group: _Attended, rule: ScoreRule) -> Tensor:
        """[sequences, queries, heads, width] of what the queries of a group read."""
        keys, values = self.keys[index], self.values[index]
        assert keys is not None
        assert values is not None
        k, v = (store[group.slots].transpose(1, 2) for store in (keys, values))
        queries = q[group.rows].transpose(1, 2)
        visible = group.visible
        if rule.window:
            order = visible.long().sum(-1, keepdim=True)  # a query's own place, counted from one
            places = torch.arange(visible.shape[-1], device=visible.device)
            visible = visible & (places >= order - rule.window)
        return attend_visible(queries, k, v, visible, rule).transpose(1, 2)

    def _groups(self, news: Sequence[NewTokens], counts: Sequence[int]) -> list[_Attended]:
        begins = [0, *accumulate(counts)]
        single = [index for index, count in enumerate(counts) if count == 1]
        several = [index for index, count in enumerate(counts) if count > 1]
        return [
            self._group([news[index] for index in part], [begins[index] for index in part])
            for part in (single, several)
            if part
        ]

    def _group(self, news: Sequence[NewTokens], begins: Sequence[int]) -> _Attended:
        queries = max(len(new.tokens) for new in news)
        keys = max(new.first + len(new.tokens) for new in news)
        device = self.device
        counts = torch.tensor([len(new.tokens) for new in news], device=device)
        firsts = torch.tensor([new.first for new in news], device=device)
        steps = torch.arange(queries, device=device)
        present = steps < counts[:, None]
        own_cells = present.flatten().nonzero().squeeze(-1)
        rows = torch.tensor(begins, device=device)[:, None] + torch.where(present, steps, 0)
        size = self.shape.block_tokens
        tables = [list(new.blocks[: self.shape.blocks_of(keys)]) for new in news]
        longest = max(len(table) for table in tables)
        blocks = torch.tensor([table + [table[0]] * (longest - len(table)) for table in tables], device=device)
        places = torch.arange(keys, device=device)
        slots = blocks[:, places // size] * size + places % size
        own_places = firsts[:, None] + torch.where(present, steps, 0)
        visible = places <= own_places[:, :, None]
        return _Attended(
            rows=rows, own_cells=own_cells, own_rows=rows.flatten()[own_cells],
            written=slots.gather(1, own_places).flatten()[own_cells],
            slots=slots, visible=visible.unsqueeze(1),
        )  # fmt: skip
