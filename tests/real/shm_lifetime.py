"""More of what each rank does in the tests of the shared-memory backend: what is let go of, refused, and waited for."""

from __future__ import annotations

import gc
import os
import signal
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

MIB = 2**20


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


def exchange(rank: int, ranks: int, times: int) -> None:
    """A megabyte to the next rank and from the one before, and collectives with works of every kind."""
    for _ in range(times):
        sent = dist.isend(torch.ones(MIB // 4), (rank + 1) % ranks)
        dist.recv(torch.empty(MIB // 4), (rank - 1) % ranks)
        sent.wait()
        dist.all_reduce(torch.ones(MIB // 4), async_op=True).get_future().then(lambda _done: None).wait()
        with dist._coalescing_manager(async_ops=True) as several:
            dist.all_reduce(torch.ones(MIB // 4))
            dist.all_reduce(torch.ones(3))
        several.wait()


def released(rank: int, ranks: int, _folder: Path) -> None:
    """Tensors of finished works are freed; a group that was destroyed keeps no file open."""
    exchange(rank, ranks, 20)
    before = resident_bytes()
    exchange(rank, ranks, 100)
    gc.collect()
    assert resident_bytes() - before < 60 * MIB, (resident_bytes() - before) / MIB
    files = len(os.listdir("/proc/self/fd"))
    for _ in range(8):
        group = dist.new_group()
        dist.all_reduce(torch.ones(MIB // 4), group=group)
        sent = dist.isend(torch.ones(4), (rank + 1) % ranks, group=group)
        dist.recv(torch.empty(4), (rank - 1) % ranks, group=group)
        sent.wait()
        dist.destroy_process_group(group)
        del group, sent
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) <= files + 2


def coalesced(rank: int, ranks: int, _folder: Path) -> None:
    """Lists of tensors in one call, with and without waiting; two dtypes are refused before anything is sent."""
    for waits in (True, False):
        into = [[torch.zeros(3), torch.zeros(2)] for _ in range(ranks)]
        own = [torch.full((3,), float(rank)), torch.full((2,), rank + 0.5)]
        future = dist.all_gather_coalesced(into, own, async_op=not waits)
        assert waits or len(future.wait()) == 2 * ranks
        assert [[one[0].item() for one in row] for row in into] == [[other, other + 0.5] for other in range(ranks)]
    mixed = (
        lambda: dist.all_gather_into_tensor(torch.empty(2 * ranks, dtype=torch.int32), torch.empty(2)),
        lambda: dist.reduce_scatter_tensor(torch.empty(2, dtype=torch.float64), torch.empty(4 * ranks)),
    )
    for call in mixed:
        with pytest.raises(RuntimeError, match="one dtype"):
            call()


def round_robin(rank: int, ranks: int, folder: Path) -> None:
    """A rank stops between messages; the others wait for each other, and learn who stopped and not who waits."""
    from shm_ranks import told

    dist.barrier()
    if rank == 0:
        os.kill(os.getpid(), signal.SIGSTOP)

    def ring() -> None:
        own = torch.ones(8)
        dist.send(own, (rank + 1) % ranks)
        for _ in range(ranks):
            dist.recv(own, (rank - 1) % ranks)
            dist.send(own, (rank + 1) % ranks)

    told(folder, rank, ring)


def reads_peers(rank: int, ranks: int, _folder: Path) -> None:
    """Large collectives of few calls each take every way in turn, and all give the same bits."""
    for size in (40_000, 131_073, 700_001):
        inputs = [torch.randn(size, generator=torch.Generator().manual_seed(size + other)) for other in range(ranks)]
        total = inputs[0].clone()
        for one in inputs[1:]:
            total += one
        parts = [torch.arange(ranks * 1000, dtype=torch.float32).repeat(size // 1000) + other for other in range(ranks)]
        for _ in range(14):
            summed, root = inputs[rank].clone(), size % ranks
            dist.all_reduce(summed)
            assert torch.equal(summed, total)
            got = inputs[root].clone() if rank == root else torch.zeros(size)
            dist.broadcast(got, root)
            assert torch.equal(got, inputs[root])
            into = torch.empty(ranks * size)
            dist.all_gather_into_tensor(into, inputs[rank])
            assert torch.equal(into, torch.cat(inputs))
            own = torch.empty(parts[rank].numel() // ranks)
            dist.reduce_scatter_tensor(own, parts[rank])
            assert torch.equal(own, torch.stack(parts).sum(0).chunk(ranks)[rank])
