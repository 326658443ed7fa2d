"""The process of one rank that talks to its peers: sends, collectives, and products beside them.

Rank 0's parent hands cases in; the store of the process group passes each on, so that all ranks run the same one. Rows
are rank 0's, each the slowest rank's median. When a rank dies its peers' calls fail, all parents start new processes,
and rank 0 goes on with the next case under a new attempt number.
"""

from __future__ import annotations

import datetime
import json
import os
import sys
import time
from collections.abc import Callable

import torch
import torch.distributed as dist

from ridgeline.core.documents import JsonObject
from ridgeline.runtime.probe import machine, registry
from ridgeline.runtime.probe.backend import Backend, open_backend
from ridgeline.runtime.probe.case import KernelCase, read_case
from ridgeline.runtime.probe.child import open_answers, open_bench
from ridgeline.runtime.probe.session import BROKEN
from ridgeline.runtime.probe.timing import Bench, Lacking, host_seconds, summary, summary_row

BACKENDS = {"cuda": "nccl", "cpu": "gloo", "npu": "hccl", "xpu": "xccl", "hpu": "hccl", "mlu": "cncl", "musa": "mccl"}
LIMIT_S, STORE_LIMIT_S = 60.0, 1800.0
RUNS, WARM_UPS, MOST_INNER, RUN_S = 7, 3, 50, 0.05
END = "end"


def main() -> int:
    """Serve one rank until rank 0 says that it is enough."""
    tell = open_answers()
    request = json.loads(sys.stdin.readline())["open"]
    try:
        backend = open_backend(request["device"], request["imports"])
        name, store, attempt = join(backend, request["attempt"], request["group_backend"])
    except Exception as wrong:
        tell({"refused": registry.reason(wrong)})
        return 0
    tell({"ready": {"attempt": attempt, "backend": name}})
    bench = open_bench(backend, request["seconds"], request["seed"])
    if dist.get_rank() == 0:
        _lead(bench, store, tell)
    else:
        _follow(bench, store)
    tell({"profiles": _gather(store, request["profile"])})
    return 0


def join(backend: Backend, attempt: int, name: str) -> tuple[str, dist.Store, int]:
    """Enter the process group: its backend, its store, and the attempt that rank 0 has begun."""
    name = name or BACKENDS.get(backend.type, "gloo")
    store, rank, ranks = next(iter(dist.rendezvous("env://", timeout=datetime.timedelta(seconds=STORE_LIMIT_S))))
    if rank == 0:
        store.set("characterize/attempt", str(attempt))
    else:
        until = time.monotonic() + STORE_LIMIT_S
        while int(store.get("characterize/attempt")) < attempt and time.monotonic() < until:
            time.sleep(0.2)
        attempt = int(store.get("characterize/attempt"))
    prefix_store = dist.PrefixStore(f"characterize/{attempt}", store)
    limit = datetime.timedelta(seconds=LIMIT_S)
    dist.init_process_group(name, store=prefix_store, rank=rank, world_size=ranks, timeout=limit)
    return name, prefix_store, attempt


def _lead(bench: Bench, store: dist.Store, tell: Callable[[JsonObject], None]) -> None:
    for place, line in enumerate(sys.stdin):
        table = json.loads(line).get("case")
        store.set(f"case/{place}", json.dumps(table) if table else END)
        if not table:
            return
        case = read_case(table)
        tell({"row": {**case.identity(), **_take(case, bench)}, "poisoned": False})


def _follow(bench: Bench, store: dist.Store) -> None:
    place = 0
    while True:
        store.wait([f"case/{place}"], datetime.timedelta(seconds=STORE_LIMIT_S))
        text = store.get(f"case/{place}").decode()
        if text == END:
            return
        _take(read_case(json.loads(text)), bench)
        place += 1


def _take(case: KernelCase, bench: Bench) -> JsonObject:
    """Results of a case that all ranks run; what the backend lacks all of them lack."""
    try:
        if case.kernel.op == "overlap":
            call = collective(case["beside"], case["bytes"], bench)[0]
            return machine.overlap(case, bench, call, agree=lambda value: _slowest(value, bench))
        if case.kernel.op == "send_recv":
            return _send_recv(case, bench)
        call, check = collective(case.kernel.op, case["bytes"], bench)
        call()
        bench.backend.synchronize()
        if not check():
            return {"ok": False, "why": "wrong result of the collective"}
        return time_together(call, bench)
    except Exception as wrong:
        why = registry.reason(wrong)
    try:
        dist.barrier()  # go on if all ranks still answer, else end this process, so that a new group can form
    except Exception:
        sys.exit(BROKEN)
    return {"ok": False, "why": why}


def collective(op: str, size: int, bench: Bench) -> tuple[Callable[[], object], Callable[[], bool]]:
    """A collective over `size` bytes of bf16, payload as nccl-tests counts it, and the check of its result."""
    ranks, rank = dist.get_world_size(), dist.get_rank()
    count = max(1, size // 2 // ranks) * ranks
    options = {"device": bench.backend.name, "dtype": torch.bfloat16}
    vector, part = torch.full((count,), rank + 1.0, **options), torch.full((count // ranks,), rank + 1.0, **options)
    total = ranks * (ranks + 1) / 2
    shares = torch.arange(1, ranks + 1, **options).repeat_interleave(count // ranks)
    if op == "all_reduce":
        fresh = vector.clone()
        return lambda: dist.all_reduce(vector), lambda: bool((fresh.fill_(total) == vector).all())
    if op == "all_gather":
        gather = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)
        return lambda: gather(vector, part), lambda: bool(torch.equal(vector, shares))
    if op == "reduce_scatter":
        scatter = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)
        return lambda: scatter(part, vector), lambda: bool((part == total).all())
    if op == "all_to_all":
        out = torch.empty_like(vector)
        return lambda: dist.all_to_all_single(out, vector), lambda: bool(torch.equal(out, shares))
    if op == "broadcast":
        return lambda: dist.broadcast(vector, 0), lambda: bool((vector == 1.0).all())
    raise Lacking(f"no collective {op!r}")


def time_together(call: Callable[[], object], bench: Bench) -> JsonObject:
    """Seconds of a call that every rank makes equally often; the slowest rank's median counts."""
    for _ in range(WARM_UPS):
        call()
    once = _slowest(host_seconds(call, bench.backend), bench)
    inner = max(1, min(MOST_INNER, int(RUN_S / once)))
    samples = []
    for _ in range(RUNS):
        dist.barrier()
        samples.append(host_seconds(call, bench.backend, inner))
    return {**summary_row(samples), "s": float(f"{_slowest(summary(samples)[0], bench):.5g}")}


def _slowest(value: float, bench: Bench) -> float:
    seconds = torch.tensor([value], device=bench.backend.name, dtype=torch.float32)
    dist.all_reduce(seconds, op=dist.ReduceOp.MAX)
    return float(seconds[0])


def _send_recv(case: KernelCase, bench: Bench) -> JsonObject:
    """Half a round trip between rank 0 and a peer: the next rank, or the first of the next node."""
    peer = 1 if case["nodes"] == 1 else int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    samples = ping_pong(0, peer, case["bytes"], bench) if dist.get_rank() in (0, peer) else [0.0]
    dist.barrier()
    return {**summary_row(samples), "runs": RUNS}


def ping_pong(first: int, second: int, size: int, bench: Bench) -> list[float]:
    """Samples of seconds one way between two ranks, measured by both of them."""
    rank = dist.get_rank()
    x = torch.randint(0, 255, (size,), dtype=torch.uint8, device=bench.backend.name)

    def round_trip() -> None:
        if rank == first:
            dist.send(x, second)
            dist.recv(x, second)
        else:
            dist.recv(x, first)
            dist.send(x, first)

    return [host_seconds(round_trip, bench.backend, 3) / 2 for _ in range(RUNS + 1)][1:]


def _gather(store: dist.Store, path: str) -> list[str]:
    """Every rank's own profile as text, at rank 0; through the store, so that no disk need be shared."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    with open(path, encoding="utf-8") as file:
        store.set(f"profile/{rank}", file.read())
    profiles = [store.get(f"profile/{peer}").decode() for peer in range(ranks)] if rank == 0 else []
    store.set(f"read/{rank}", "1")
    store.wait(["read/0"], datetime.timedelta(seconds=STORE_LIMIT_S))
    return profiles


if __name__ == "__main__":
    sys.exit(main())
