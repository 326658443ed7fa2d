"""The process that touches the device: cases come as lines of JSON, rows go back the same way.

    stdin    {"open": {device, imports, seconds, seed}}, then {"case": {...}} one at a time
    stdout   {"ready": {head, cache_bytes, free_bytes, rates, extra}}, then {"row": {...}} for each case

Whatever a kernel does to this process, its parent lives: it starts another one and goes on with the next case.
"""

from __future__ import annotations

import faulthandler
import gc
import json
import math
import os
import sys
from collections.abc import Callable

import torch

from ridgeline.core.documents import JsonObject
from ridgeline.runtime.probe import registry
from ridgeline.runtime.probe.backend import Backend, describe, open_backend, open_meter
from ridgeline.runtime.probe.case import KernelCase, read_case
from ridgeline.runtime.probe.timing import Bench, host_seconds

POISONED = 3  # exit code after an error that the device does not recover from
CROWDED = 0.5  # share of the memory below which unused buffers are given back
PROBE_SIDE, PROBE_BYTES = 512, 1 << 24


def main() -> int:
    faulthandler.enable()
    tell = open_answers()
    request = json.loads(sys.stdin.readline())["open"]
    try:
        backend = open_backend(request["device"], request["imports"])
    except Exception as wrong:
        tell({"refused": registry.reason(wrong)})
        return 0
    bench = open_bench(backend, request["seconds"], request["seed"])
    ready = {
        "head": describe(backend, bench.meter),
        "cache_bytes": backend.cache_bytes,
        "free_bytes": backend.free_bytes(),
        "timer": "graph" if backend.graph is not None else "events" if backend.event else "host",
        "rates": rates(backend),
        "extra": [case.message() for case in registry.EXTRA],
    }
    tell({"ready": ready})
    gc.freeze()  # what is imported stays: collecting after every case looks at its own tensors only
    for line in sys.stdin:
        row, is_poisoned = run(read_case(json.loads(line)["case"]), bench)
        tell({"row": row, "poisoned": is_poisoned})
        if is_poisoned:
            return POISONED
    return 0


def open_bench(backend: Backend, seconds: float, seed: int) -> Bench:
    torch.manual_seed(seed)
    meter = open_meter(backend.type, backend.module, backend.index)
    return Bench(backend=backend, meter=meter, seconds=seconds or (0.08 if backend.event else 0.15), seed=seed)


def run(case: KernelCase, bench: Bench) -> tuple[JsonObject, bool]:
    """The row of a case, and whether the device is unusable after it."""
    torch.backends.cuda.matmul.allow_tf32 = False
    try:
        row = registry.take(case, bench)
        bench.backend.synchronize()
    except Exception as wrong:
        why = registry.reason(wrong)
        row = {"ok": False, "why": why}
        del wrong
    is_poisoned = not _alive(bench.backend)
    if not is_poisoned:
        gc.collect()
        if bench.backend.free_bytes() < CROWDED * bench.backend.memory_bytes():
            bench.backend.empty_cache()
    return {**case.identity(), **row}, is_poisoned


def _alive(backend: Backend) -> bool:
    """Whether the device still computes and draws random numbers: a capture that broke off may end that."""
    try:
        backend.synchronize()
        return math.isfinite(float(torch.randn(8, device=backend.name).sum()))
    except Exception:
        return False


def rates(backend: Backend) -> dict[str, float]:
    """Rough flops and bytes a second of the device, to leave out what would take too long."""
    side, dtype = (PROBE_SIDE, torch.float32) if backend.event is None else (8 * PROBE_SIDE, torch.bfloat16)
    a = torch.randn(side, side, device=backend.name, dtype=dtype)
    b = torch.randn(PROBE_BYTES // 4, device=backend.name)
    jobs: tuple[tuple[str, Callable[[], object], float], ...] = (
        ("flops", lambda: a @ a, 2.0 * side**3),
        ("bytes", lambda: b.clone(), 2.0 * PROBE_BYTES),
    )
    for _, call, _ in jobs:
        call()
    return {name: work / host_seconds(call, backend, 5) for name, call, work in jobs}


def open_answers() -> Callable[[JsonObject], None]:
    """What tells the parent a line; what libraries print goes to stderr, so that it is not taken for a row."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)

    def tell(value: JsonObject) -> None:
        answers.write(json.dumps(value) + "\n")
        answers.flush()

    return tell


if __name__ == "__main__":
    sys.exit(main())
