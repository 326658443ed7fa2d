"""Turn the steps of an algorithm into what one rank sends and receives, round by round, and carry it out on torch.

A round's chunks from one rank to another travel as one message. What arrives is stored, or added to what is there;
sends of a round leave before anything of the round is written, which `verify` has proven harmless.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ridgeline.comm import REDUCE, Algorithm

ELEMENT_BYTES = 4  # float32, whole numbers in it: sums are exact
PERIOD = 7


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    """Chunks that go between this rank and a peer in one round."""

    peer: int
    sends: bool
    adds: bool
    chunks: tuple[int, ...]


def transfers_of(algorithm: Algorithm, rank: int) -> list[list[Transfer]]:
    """What a rank does, round by round; rounds in which it does nothing are left out."""
    steps = algorithm.steps
    rounds: dict[int, dict[tuple[int, bool, bool], list[int]]] = defaultdict(lambda: defaultdict(list))
    columns = (steps.round, steps.source, steps.target, steps.chunk, steps.op)
    for turn, source, target, chunk, op in zip(*(column.tolist() for column in columns), strict=True):
        if source == rank:
            rounds[turn][target, True, op == REDUCE].append(chunk)
        if target == rank:
            rounds[turn][source, False, op == REDUCE].append(chunk)
    return [
        [
            Transfer(peer=peer, sends=sends, adds=adds, chunks=tuple(chunks))
            for (peer, sends, adds), chunks in sorted(rounds[turn].items())
        ]
        for turn in sorted(rounds)
    ]


def elements_of(algorithm: Algorithm, size_bytes: float) -> int:
    """Elements of a chunk so that the collective's size is about as asked; at least one."""
    share = float(algorithm.contract.shares()[0])
    return max(1, round(size_bytes * share / ELEMENT_BYTES))


def size_of(algorithm: Algorithm, elements: int) -> float:
    """The collective's size M with chunks of so many elements."""
    return elements * ELEMENT_BYTES / float(algorithm.contract.shares()[0])


def first_buffer(algorithm: Algorithm, rank: int, elements: int, device: str) -> Any:
    """What a rank begins with, as a tensor (chunks, elements): its contributions where it has any, else zeros."""
    import torch

    contract = algorithm.contract
    buffer = torch.zeros((contract.chunks, elements), device=device)
    for place in contract.begin_places().tolist():
        owner, chunk = divmod(place, contract.chunks)
        if owner == rank:
            buffer[chunk] = _contribution(owner, chunk, elements, device)
    return buffer


def wrong_chunks(algorithm: Algorithm, rank: int, buffer: Any, elements: int) -> list[int]:
    """Chunks that must be whole on this rank at the end, and are not, bit for bit."""
    import torch

    contract = algorithm.contract
    owners: dict[int, list[int]] = defaultdict(list)
    for place in contract.begin_places().tolist():
        owners[place % contract.chunks].append(place // contract.chunks)
    wrong = []
    for place in contract.end_places().tolist():
        holder, chunk = divmod(place, contract.chunks)
        if holder != rank:
            continue
        expected_sum = sum(_contribution(owner, chunk, elements, buffer.device) for owner in owners[chunk])
        if not torch.equal(buffer[chunk], expected_sum):
            wrong.append(chunk)
    return wrong


def _contribution(rank: int, chunk: int, elements: int, device: Any) -> Any:
    import torch

    return (torch.arange(elements, device=device) % PERIOD + (rank + 3 * chunk) % PERIOD).to(torch.float32)


def carry_out(rounds: Sequence[Sequence[Transfer]], buffer: Any) -> None:
    """Run a rank's transfers on torch.distributed's sends and receives, in place."""
    import torch
    import torch.distributed as dist

    for transfers in rounds:
        requests, arrivals = [], []
        for transfer in transfers:
            first, last = transfer.chunks[0], transfer.chunks[-1]
            dense = transfer.chunks == tuple(range(first, last + 1))
            part = buffer[first : last + 1] if dense else None
            if transfer.sends:
                tensor = part if part is not None else buffer[list(transfer.chunks)]
                requests.append(dist.P2POp(dist.isend, tensor, transfer.peer))
                continue
            direct = part is not None and not transfer.adds
            into = part if direct else torch.empty((len(transfer.chunks), buffer.shape[1]), device=buffer.device)
            requests.append(dist.P2POp(dist.irecv, into, transfer.peer))
            if not direct:
                arrivals.append((transfer, into))
        for work in dist.batch_isend_irecv(requests):
            work.wait()
        for transfer, into in arrivals:
            where = list(transfer.chunks)
            buffer[where] = buffer[where] + into if transfer.adds else into
