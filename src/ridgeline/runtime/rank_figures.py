"""Measure one rank beside its peers: the same work on all of them, round by round, at once or in turns.

Chips work at once, as in a run. Where the device is the host's CPU ranks take turns: they would measure each other.

product      bf16 (fp32 on a CPU) matrix product             copy     device memory, read and written
h2d          pinned host memory to the device                launch   host seconds to enqueue a small kernel
latency      8 KiB one way between two ranks                 link     a large send one way between two ranks
all_reduce   a large all-reduce over all ranks
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import torch
import torch.distributed as dist

from ridgeline.runtime.peers import Report
from ridgeline.runtime.probe.links import collective, ping_pong, time_together
from ridgeline.runtime.probe.timing import Bench, host_seconds

ROUNDS = 7
BLOCK_S, CPU_BLOCK_S, BLOCKS = 0.01, 0.004, 3  # work between two looks at the clock, and how often in a round
SMALL_BYTES = 1 << 13
MOST_TURNS = 15  # turns of the tournament in which ranks meet in pairs
PASSES = 3  # times the tournament is played
DRILL = 3  # times the work is done by a rank that is slowed on purpose


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """How much work: side of the product, bytes of a copy, of a host copy and of a send."""

    side: int
    copy_bytes: int
    host_bytes: int
    link_bytes: int

    @classmethod
    def of(cls, kind: str) -> Sizes:
        """Sizes that fill a chip, or that a few cores finish in milliseconds."""
        if kind == "cpu":
            return cls(side=384, copy_bytes=1 << 24, host_bytes=0, link_bytes=1 << 21)
        return cls(side=4096, copy_bytes=1 << 30, host_bytes=1 << 26, link_bytes=1 << 26)


def own_figures(bench: Bench, sizes: Sizes, drill: bool, ranks: int = 1) -> dict[str, list[float]]:
    """Seconds of each figure of this rank's own chip, per round, the other ranks measuring theirs."""
    figures: dict[str, list[float]] = {}
    for name, call in _calls(bench, sizes):
        work = _slow_down(call) if drill else call
        for _ in range(3):
            work()
        block_s = CPU_BLOCK_S if bench.backend.type == "cpu" else BLOCK_S  # filled by the work as it is without a drill
        inner = max(1, min(200, int(block_s / host_seconds(call, bench.backend, 3))))
        timed = partial(host_seconds, work, bench.backend, inner, wait=name != "launch")
        figures[name] = [_slowest_rank(timed, bench, ranks) for _ in range(ROUNDS)]
    return figures


def _slowest_rank(timed: Callable[[], float], bench: Bench, ranks: int) -> float:
    """One sample when all ranks are there, at once, or one after the other on a CPU: the best of a few blocks, since
    what disturbs a block only ever delays it."""
    seconds = 0.0
    turns_ = range(ranks) if ranks > 1 and bench.backend.type == "cpu" else (None,)
    for rank in turns_:
        if ranks > 1:
            dist.barrier()
        if rank is None or rank == dist.get_rank():
            seconds = min(timed() for _ in range(BLOCKS))
    return seconds


def _calls(bench: Bench, sizes: Sizes) -> Iterator[tuple[str, Callable[[], object]]]:
    device = bench.backend.name
    dtype = torch.float32 if bench.backend.type == "cpu" else torch.bfloat16
    a, b = (torch.randn(sizes.side, sizes.side, device=device, dtype=dtype) for _ in range(2))
    out = torch.empty_like(a)
    yield "product", lambda: torch.mm(a, b, out=out)
    source = torch.randn(sizes.copy_bytes // 4, device=device)
    target = torch.empty_like(source)
    yield "copy", lambda: torch.mul(source, 1.0, out=target)
    small = torch.randn(1024, device=device)
    yield "launch", lambda: small.add_(1.0)
    if sizes.host_bytes:
        host = torch.randint(0, 255, (sizes.host_bytes,), dtype=torch.uint8).pin_memory()
        landed = torch.empty(sizes.host_bytes, dtype=torch.uint8, device=device)
        yield "h2d", lambda: landed.copy_(host, non_blocking=True)


def _slow_down(call: Callable[[], object]) -> Callable[[], object]:
    def slow_call() -> None:
        for _ in range(DRILL):
            call()

    return slow_call


def turns(ranks: int) -> list[list[tuple[int, int]]]:
    """A round-robin tournament: in each turn every rank meets one other, until all have met or the turns are used up.

    >>> turns(4)
    [[(0, 3), (1, 2)], [(0, 2), (1, 3)], [(0, 1), (2, 3)]]
    """
    seats: list[int | None] = [*range(ranks), *([None] if ranks % 2 else [])]
    pairs = []
    for _ in range(min(len(seats) - 1, MOST_TURNS)):
        half = len(seats) // 2
        met = zip(seats[:half], reversed(seats[half:]), strict=True)
        pairs.append(sorted((min(a, b), max(a, b)) for a, b in met if a is not None and b is not None))
        seats = [seats[0], seats[-1], *seats[1:-1]]
    return pairs


def link_figures(bench: Bench, sizes: Sizes, report: Report) -> None:
    """Meet the other ranks in turns, then reduce over all of them; what this rank is the first of is kept."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    met = turns(ranks)
    if bench.backend.type == "cpu":
        met = [[pair] for turn in met for pair in turn]
    for turn in met * PASSES:
        dist.barrier()
        for pair in turn:
            if rank in pair:
                samples = report.pairs.setdefault(pair, {"latency": [], "link": []})
                samples["latency"] += ping_pong(*pair, SMALL_BYTES, bench)
                samples["link"] += ping_pong(*pair, sizes.link_bytes, bench)
    report.pairs = {pair: samples for pair, samples in report.pairs.items() if rank == pair[0]}
    dist.barrier()
    call, _ = collective("all_reduce", sizes.link_bytes, bench)
    report.whole["all_reduce"] = time_together(call, bench)["s"]
