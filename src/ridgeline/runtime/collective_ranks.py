"""One rank of `ridgeline collective run`: carry the algorithm out, check it, time it beside the backend's own.

python -m ridgeline.runtime.collective_ranks SPEC.json      with RANK and WORLD_SIZE in the environment
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import threading
import time
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

from ridgeline.comm import Algorithm, read_algorithm
from ridgeline.runtime.collective_steps import (
    ELEMENT_BYTES,
    carry_out,
    elements_of,
    first_buffer,
    size_of,
    transfers_of,
    wrong_chunks,
)

BUDGET_S = 0.3  # of one figure
MOST_REPEATS = 50
LEAST_REPEATS = 3
PINGS = 20


def measure(spec: Mapping[str, Any], algorithm: Algorithm, rank: int) -> dict[str, Any]:
    """What this rank and its peers measured: alike on every rank."""
    import torch.distributed as dist

    device = f"cuda:{os.environ.get('LOCAL_RANK', rank)}" if spec["backend"] == "nccl" else "cpu"
    latency, rate = _links(rank, device, [int(size) for size in spec["sizes"]])
    rounds = transfers_of(algorithm, rank)
    rows = []
    for size in spec["sizes"]:
        elements = elements_of(algorithm, size)
        buffer = first_buffer(algorithm, rank, elements, device)
        carry_out(rounds, buffer)
        wrong_by_rank: list[Any] = [None] * algorithm.ranks
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
        import torch

        torch.cuda.synchronize()


def _slowest(values: list[float], device: str) -> list[float]:
    """Each value as the slowest rank has it."""
    import torch
    import torch.distributed as dist

    tensor = torch.tensor(values, device=device, dtype=torch.float32)
    dist.all_reduce(tensor, dist.ReduceOp.MAX)
    return [float(value) for value in tensor.tolist()]


def _seconds(call: Callable[[], Any], device: str) -> float:
    """Median over repeats of the slowest rank's time, all ranks beginning together."""
    import torch.distributed as dist

    call()
    began = time.perf_counter()
    call()
    _wait_for_device(device)
    once = _slowest([time.perf_counter() - began], device)[0]
    spent = []
    for _ in range(max(LEAST_REPEATS, min(MOST_REPEATS, int(BUDGET_S / max(once, 1e-6))))):
        dist.barrier()
        began = time.perf_counter()
        call()
        _wait_for_device(device)
        spent.append(time.perf_counter() - began)
    return statistics.median(_slowest(spent, device))


def _links(rank: int, device: str, sizes: list[int]) -> tuple[float, float]:
    """Seconds of the smallest message between ranks 0 and 1, one way, and the best rate among the sizes asked for."""
    import torch
    import torch.distributed as dist

    figures = []
    for size in (ELEMENT_BYTES, *sizes):
        tensor = torch.zeros(max(1, size // ELEMENT_BYTES), device=device)
        best = float("inf")
        for _ in range(PINGS if size <= 2**20 else LEAST_REPEATS):
            dist.barrier()
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


def _library_call(algorithm: Algorithm, elements: int, device: str, root: int) -> Callable[[], Any]:
    """The backend's own collective, of the same size."""
    import torch
    import torch.distributed as dist

    ranks = algorithm.ranks
    total = max(1, round(size_of(algorithm, elements) / ELEMENT_BYTES))
    total += -total % ranks
    vector, part = torch.zeros(total, device=device), torch.zeros(total // ranks, device=device)
    other_vector = torch.zeros(total, device=device)
    list_of = list(vector.chunk(ranks))
    calls: dict[str, Callable[[], Any]] = {
        "allreduce": lambda: dist.all_reduce(vector),
        "allgather": lambda: dist.all_gather(list_of, part),
        "reducescatter": lambda: dist.reduce_scatter(part, list_of),
        "broadcast": lambda: dist.broadcast(vector, root),
        "reduce": lambda: dist.reduce(vector, root),
        "alltoall": lambda: dist.all_to_all_single(other_vector, vector),
    }
    return calls[algorithm.contract.collective]


def join_and_measure(spec: Mapping[str, Any], algorithm: Algorithm, rank: int, init_method: str) -> dict[str, Any]:
    """Form the process group, measure, and leave it."""
    import torch
    import torch.distributed as dist

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
    """Run one rank; rank 0 writes what all measured."""
    from ridgeline.core.errors import InputError

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
