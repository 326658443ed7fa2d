"""Bandwidth by size: copy, read and write on the device, from its cache to its main memory, and copies to the host.

copy        `bytes` are read and as many written, by a kernel (`copy_` in a graph was slower at 1 GiB)
read        a sum over `bytes`
write       a fill of `bytes`
h2d, d2h    `bytes` between host and device, the host's side pinned or pageable
cold        False: the same buffer again and again, so that a small one stays in the cache
"""

from __future__ import annotations

import time
from functools import partial
from typing import Any

import torch

from ridgeline.runtime.probe.case import Case
from ridgeline.runtime.probe.kernel import Bench, Lacking, Prepared, is_cold, measure, sets_for
from ridgeline.runtime.probe.timing import Call, summary, time_calls

SUM_ERROR = 1e-2  # of a sum of normal numbers, over the root of their count


def traffic(case: Case, bench: Bench) -> dict[str, Any]:
    """The row of a copy, read or write on the device."""
    size = case["bytes"] // 4
    per_set = case["bytes"] * (2 if case.kernel.op == "copy" else 1)
    count = sets_for(bench, per_set) if case["cold"] else 1
    sources = [torch.randn(size, device=bench.backend.name) for _ in range(count)]
    calls: list[Call]
    if case.kernel.op == "copy":
        targets = [torch.full_like(source, float("nan")) for source in sources]
        calls = [partial(torch.mul, source, 1.0, out=out) for source, out in zip(sources, targets, strict=True)]
        calls[0]()
        right = bool(torch.equal(sources[0], targets[0]))
    elif case.kernel.op == "read":
        calls = [source.sum for source in sources]
        wanted_sum = float(sources[0].double().sum()) if bench.backend.type != "mps" else float(sources[0].sum())
        right = abs(float(calls[0]()) - wanted_sum) < SUM_ERROR * max(size**0.5, 1.0)
    else:
        calls = [partial(source.fill_, 1.5) for source in sources]
        right = bool((calls[0]() == 1.5).all())
    error = 0.0 if right else float("inf")
    preparation = Prepared(calls=calls, set_bytes=per_set, check=lambda: error, tolerance=0.0)
    row = measure(preparation, bench)
    row.pop("cold", None)
    if case["cold"] and not is_cold(bench, preparation):
        row["ok"], row["why"] = False, "too small to keep out of the cache by taking turns"
    return row


def host_copy(case: Case, bench: Bench) -> dict[str, Any]:
    """The row of a copy between host and device."""
    if bench.backend.type == "cpu":
        raise Lacking("host and device share their memory")
    size, is_pinned = case["bytes"], case["pinned"]
    host = torch.randint(0, 255, (size,), dtype=torch.uint8)
    host = host.pin_memory() if is_pinned else host
    device = torch.randint(0, 255, (size,), dtype=torch.uint8, device=bench.backend.name)
    source, target = (host, device) if case.kernel.op == "h2d" else (device, host)
    target.copy_(source)
    bench.backend.synchronize()
    if not torch.equal(host, device.cpu()):
        return {"ok": False, "error": 1.0, "why": "wrong result: the copy differs from its source"}
    if is_pinned:
        row = time_calls(
            [lambda: target.copy_(source, non_blocking=True)], bench.backend, seconds=bench.seconds, graph=False
        ).row()
        return {**row, "ok": True, "error": 0.0, "cold": True}
    samples: list[float] = []
    until = time.perf_counter() + bench.seconds
    while len(samples) < 5 or (time.perf_counter() < until and len(samples) < 40):
        began = time.perf_counter()
        target.copy_(source)
        bench.backend.synchronize()
        samples.append(time.perf_counter() - began)
    middle, relative_spread = summary(samples)
    copy_row = {"s": float(f"{middle:.5g}"), "spread": round(relative_spread, 4), "runs": len(samples)}
    return {**copy_row, "ok": True, "error": 0.0, "cold": True}
