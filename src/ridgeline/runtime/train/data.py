"""What is trained on: random tokens, a text, or memory-mapped files of tokens; dealt to ranks by step alone.

Sequence i of step s is sequence s x batch + i of the stream, whatever the mesh: every plan sees the same data, and a
resumed run goes on where it stopped. A rank takes the rows of its data-parallel index and the columns of its context
rank.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

import ridgeline
from ridgeline.core.errors import InputError, Problem
from ridgeline.models.spec import ModelSpec
from ridgeline.runtime.train.layout import Layout
from ridgeline.runtime.train.step import Batch
from ridgeline.runtime.train.token_files import open_tokens

TEXT = "text"
SYNTHETIC = "synthetic"
BYTES = 256  # tokens of a text: its bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSource:
    """Where sequences come from: `read(index, length, further)` gives sequence `index` with one token more than is fed,
    and so many that follow it."""

    name: str
    read: Callable[..., Tensor]


def open_source(name: str, vocab: int, seed: int) -> BatchSource:
    """`synthetic`, `text` (bytes of Ridgeline's own source), or files of 16- or 32-bit integers (.u16, .u32)."""
    if name == SYNTHETIC:
        return BatchSource(
            name=name,
            read=lambda index, length, further=0: torch.randint(
                vocab, (length + further,), generator=_generator(index, seed)
            ),
        )
    if name == TEXT:
        if vocab < BYTES:
            todo = "use --set model.vocab=256"
            raise InputError(Problem(path="model.vocab", given=str(vocab), expected="256 or more: bytes", todo=todo))
        files = sorted(Path(ridgeline.__file__).parent.rglob("*.py"))
        stream = torch.frombuffer(bytearray(b"".join(path.read_bytes() for path in files)), dtype=torch.uint8)
        return BatchSource(
            name=name, read=lambda index, length, further=0: _shuffled_window(stream, index, (length, further), seed)
        )
    tokens = open_tokens(Path(name))
    return BatchSource(name=name, read=lambda *place: _check_tokens(torch.from_numpy(tokens.read(*place)), vocab, name))


def _generator(index: int, seed: int) -> torch.Generator:
    return torch.Generator().manual_seed((seed << 32) + index)


def _shuffled_window(stream: Tensor, index: int, lengths: tuple[int, int], seed: int) -> Tensor:
    """A window of a short text that begins anywhere."""
    total_length = sum(lengths)
    start = int(torch.randint(max(1, len(stream) - lengths[0]), (1,), generator=_generator(index, seed)))
    window = stream[start : start + total_length]
    return window.repeat(-(-total_length // len(window)))[:total_length].long()


def _check_tokens(sequence: Tensor, vocab: int, name: str) -> Tensor:
    if int(sequence.max()) >= vocab:
        given_text = f"token {int(sequence.max())}"
        raise InputError(
            Problem(path="--data", given=given_text, expected=(f"below the vocabulary ({vocab})"), where=name)
        )
    return sequence


def further_tokens(model: ModelSpec) -> int:
    """Tokens behind the last target that a step reads: one for every depth of multi-token prediction."""
    return model.mtp.depth if model.mtp else 0


def batch_of(source: BatchSource, step: int, sequences: int, seq: int, layout: Layout, further: int = 0) -> Batch:
    """This rank's share of a step; with `further` tokens every place has a target at every depth."""
    rows = sequences // layout.dp.degree
    first = step * sequences + layout.dp.index * rows
    whole = torch.stack([source.read(index, seq + 1, further) for index in range(first, first + rows)])
    spans = layout.positions(seq // layout.cp.degree)
    tokens, *targets = (
        torch.cat([whole[:, begin + ahead : end + ahead] for begin, end in spans], 1).to(layout.device)
        for ahead in range(further + 2)
    )
    return Batch(tokens=tokens, targets=torch.stack(targets, 1) if further else targets[0], total=sequences * seq)
