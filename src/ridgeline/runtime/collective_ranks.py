"""One rank of `ridgeline collective run`: carry the algorithm out, check it, time it beside the backend's own.

    python -m ridgeline.runtime.collective_ranks SPEC.json      with RANK and WORLD_SIZE in the environment

A round's chunks from one rank to another travel as one message. What arrives is stored, or added to what is there;
sends of a round leave before anything of the round is written, which `verify` has proven harmless.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from ridgeline.comm import Algorithm
from ridgeline.comm.formats import read_algorithm
from ridgeline.core.documents import JsonMapping, JsonObject
from ridgeline.core.errors import InputError

ELEMENT_BYTES = 4  # float32, whole numbers in it: sums are exact
PERIOD = 7


@dataclass(frozen=True, slots=True, kw_only=True)
class RankTransfer:
    """Chunks that go between this rank and a peer in one round."""

    peer: int
    sends: bool
    adds: bool
    chunks: tuple[int, ...]


def transfers_of(algorithm: Algorithm, rank: int) -> list[list[RankTransfer]]:
    """What a rank does, round by round; rounds in which it does nothing are left out."""
    steps = algorithm.steps
    rounds: dict[int, dict[tuple[int, bool, bool], list[int]]] = defaultdict(lambda: defaultdict(list))
    columns = (steps.round, steps.source, steps.target, steps.chunk, steps.adds)
    for turn, source, target, chunk, adds in zip(*(column.tolist() for column in columns), strict=True):
        if source == rank:
            rounds[turn][target, True, adds].append(chunk)
        if target == rank:
            rounds[turn][source, False, adds].append(chunk)
    by_round = [sorted(chunks_by_peer.items()) for _, chunks_by_peer in sorted(rounds.items())]
    return [
        [
            RankTransfer(peer=peer, sends=sends, adds=adds, chunks=tuple(chunks))
            for (peer, sends, adds), chunks in transfers
        ]
        for transfers in by_round
    ]


def elements_of(algorithm: Algorithm, size_bytes: float) -> int:
    """Elements of a chunk so that the collective's size is about as asked; at least one."""
    share = float(algorithm.contract.shares()[0])
    return max(1, round(size_bytes * share / ELEMENT_BYTES))


def size_of(algorithm: Algorithm, elements: int) -> float:
    """The collective's size M with chunks of so many elements."""
    return elements * ELEMENT_BYTES / float(algorithm.contract.shares()[0])


def first_buffer(algorithm: Algorithm, rank: int, elements: int, device: str) -> Tensor:
    """What a rank begins with, as a tensor (chunks, elements): its contributions where it has any, else zeros."""
    contract = algorithm.contract
    buffer = torch.zeros((contract.chunks, elements), device=device)
    for place in contract.begin_places().tolist():
        owner, chunk = divmod(place, contract.chunks)
        if owner == rank:
            buffer[chunk] = _contribution(owner, chunk, elements, device)
    return buffer


def wrong_chunks(algorithm: Algorithm, rank: int, buffer: Tensor, elements: int) -> list[int]:
    """Chunks that must be whole on this rank at the end, and are not, bit for bit."""
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


def _contribution(rank: int, chunk: int, elements: int, device: torch.device) -> Tensor:
    return (torch.arange(elements, device=device) % PERIOD + (rank + 3 * chunk) % PERIOD).to(torch.float32)


def carry_out(rounds: Sequence[Sequence[RankTransfer]], buffer: Tensor) -> None:
    """Run a rank's transfers on torch.distributed's sends and receives, in place."""
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


BUDGET_S = 0.3  # of one figure
MOST_REPEATS = 50
LEAST_REPEATS = 3
PINGS = 20


def measure(spec: JsonMapping, algorithm: Algorithm, rank: int) -> JsonObject:
    """What this rank and its peers measured: alike on every rank."""
    device = f"cuda:{os.environ.get('LOCAL_RANK', rank)}" if spec["backend"] == "nccl" else "cpu"
    latency, rate = _links(rank, device, [int(size) for size in spec["sizes"]])
    rounds = transfers_of(algorithm, rank)
    rows = []
    for size in spec["sizes"]:
        elements = elements_of(algorithm, size)
        buffer = first_buffer(algorithm, rank, elements, device)
        carry_out(rounds, buffer)
        wrong_by_rank: list[list[int]] = [[]] * algorithm.ranks
        dist.all_gather_object(wrong_by_rank, wrong_chunks(algorithm, rank, buffer, elements))
        own_collective = _library_call(algorithm, elements, device, int(spec["root"]))
        rows.append(
            {
                "size_bytes": size_of(algorithm, elements),
                "wrong": {str(rank_): chunks for rank_, chunks in enumerate(wrong_by_rank) if chunks},
                "seconds": _seconds(lambda work=buffer: carry_out(rounds, work), device),  # type: ignore[misc]
                "own_seconds": _seconds(own_collective, device),
            }
        )
    return {"latency_s": latency, "bytes_per_s": rate, "rows": rows}


def _wait_for_device(device: str) -> None:
    if device != "cpu":
        torch.cuda.synchronize()


def _wait_for_ranks(device: str) -> None:
    """Return when every rank has come here. A group of nccl alone has no barrier in torch 2.11: it sums one number."""
    if device == "cpu":
        dist.barrier()
    else:
        dist.all_reduce(torch.zeros(1, device=device))
        torch.cuda.synchronize()


def _slowest(values: list[float], device: str) -> list[float]:
    tensor = torch.tensor(values, device=device, dtype=torch.float32)
    dist.all_reduce(tensor, dist.ReduceOp.MAX)
    return [float(value) for value in tensor.tolist()]


def _seconds(call: Callable[[], object], device: str) -> float:
    """Median over repeats of the slowest rank's time, all ranks beginning together."""
    call()
    began = time.perf_counter()
    call()
    _wait_for_device(device)
    once = _slowest([time.perf_counter() - began], device)[0]
    spent = []
    for _ in range(max(LEAST_REPEATS, min(MOST_REPEATS, int(BUDGET_S / max(once, 1e-6))))):
        _wait_for_ranks(device)
        began = time.perf_counter()
        call()
        _wait_for_device(device)
        spent.append(time.perf_counter() - began)
    return statistics.median(_slowest(spent, device))


def _links(rank: int, device: str, sizes: list[int]) -> tuple[float, float]:
    """Seconds of the smallest message between ranks 0 and 1, one way, and the best rate among the sizes asked for."""
    figures = []
    for size in (ELEMENT_BYTES, *sizes):
        tensor = torch.zeros(max(1, size // ELEMENT_BYTES), device=device)
        best = float("inf")
        for _ in range(PINGS if size <= 2**20 else LEAST_REPEATS):
            _wait_for_ranks(device)
            began = time.perf_counter()
            if rank == 0:
                dist.send(tensor, 1)
                dist.recv(tensor, 1)
            elif rank == 1:
                dist.recv(tensor, 0)
                dist.send(tensor, 0)
            _wait_for_device(device)
            if rank == 0:
                best = min(best, (time.perf_counter() - began) / 2)
        figures.append(best if rank == 0 else 0.0)
    seconds = _slowest(figures, device)
    rates = [size / second for size, second in zip(sizes, seconds[1:], strict=True)]
    return seconds[0], max(rates)


def _library_call(algorithm: Algorithm, elements: int, device: str, root: int) -> Callable[[], object]:
    ranks = algorithm.ranks
    total = max(1, round(size_of(algorithm, elements) / ELEMENT_BYTES))
    total += -total % ranks
    vector, part = torch.zeros(total, device=device), torch.zeros(total // ranks, device=device)
    other_vector = torch.zeros(total, device=device)
    list_of = list(vector.chunk(ranks))
    calls: dict[str, Callable[[], object]] = {
        "allreduce": lambda: dist.all_reduce(vector),
        "allgather": lambda: dist.all_gather(list_of, part),
        "reducescatter": lambda: dist.reduce_scatter(part, list_of),
        "broadcast": lambda: dist.broadcast(vector, root),
        "reduce": lambda: dist.reduce(vector, root),
        "alltoall": lambda: dist.all_to_all_single(other_vector, vector),
    }
    return calls[algorithm.contract.collective]


def join_and_measure(spec: JsonMapping, algorithm: Algorithm, rank: int, init_method: str) -> JsonObject:
    torch.set_num_threads(1)
    if spec["backend"] == "ridge_shm":
        from ridgeline.runtime.shm import register

        register()
    if spec["backend"] == "nccl":
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", rank)))
    limit = timedelta(seconds=float(spec["timeout_s"]))
    dist.init_process_group(
        spec["backend"], init_method=init_method, rank=rank, world_size=algorithm.ranks, timeout=limit
    )
    try:
        return measure(spec, algorithm, rank)
    finally:
        dist.destroy_process_group()


def _follow_parent() -> None:
    """End with the process that started this one, however that ended."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def main() -> int:
    _follow_parent()
    path = Path(sys.argv[1])
    spec = json.loads(path.read_text(encoding="utf-8"))
    rank = int(os.environ["RANK"])
    try:
        answer = join_and_measure(
            spec, read_algorithm(path.parent / "algorithm.json"), rank, f"file://{path.parent}/store"
        )
    except (RuntimeError, ValueError, InputError) as wrong:
        sys.stderr.write(f"{wrong}\n")
        return 1
    if rank == 0:
        (path.parent / "found.json").write_text(json.dumps(answer), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
