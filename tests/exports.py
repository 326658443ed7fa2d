"""Make small exports with known answers in the formats of other profilers: Nsight Systems, Ascend, Chakra, XLA, ncu."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from pathlib import Path

THREAD = 2**24
FIRST = 7 * THREAD  # global id of the first process; the second's follows


def nsys(path: Path, *, gpus: int = 2, steps: int = 2, more: Iterable[str] = ()) -> Path:
    """An export of as many processes with a GPU each.

    Every step of a process is a kernel of 100 us, an all-reduce of 40 us of which 10 are under the kernel, and a copy
    of 5 us to the host, 4 kB; steps begin 200 us apart, and correlation ids are the same in every process.
    """
    base = sqlite3.connect(path)
    base.executescript(_SCHEMA)
    strings = ("gemm_kernel", "ncclDevKernel_AllReduce", "cudaLaunchKernel_v7000", "cudaMemcpyAsync_v3020", "main")
    base.executemany("INSERT INTO StringIds VALUES (?, ?)", [(100 + place, one) for place, one in enumerate(strings)])
    for gpu in range(gpus):
        pid = FIRST + gpu * THREAD
        base.execute("INSERT INTO PROCESSES VALUES (?, ?, ?)", (pid, 7 + gpu, f"python{gpu}"))
        base.execute("INSERT INTO ThreadNames VALUES (104, 20, ?)", (pid + 3,))
        base.execute("INSERT INTO TARGET_INFO_GPU VALUES (?, 'NVIDIA H100 80GB HBM3', 85018279936)", (gpu,))
        for step in range(steps):
            _step(base, gpu, pid, step)
    for statement in more:
        base.execute(statement)
    base.commit()
    base.close()
    return path


def _step(base: sqlite3.Connection, gpu: int, pid: int, step: int) -> None:
    at, link = 1_000_000 + step * 200_000 + gpu * 1000, step * 3
    kernel = "INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (?, ?, ?, ?, ?, ?, ?)"
    base.execute(kernel, (at, at + 100_000, gpu, 7, link + 1, pid, 100))
    base.execute(kernel, (at + 90_000, at + 130_000, gpu, 20, link + 2, pid, 101))
    copy = "INSERT INTO CUPTI_ACTIVITY_KIND_MEMCPY VALUES (?, ?, ?, 7, ?, ?, 4096, 2)"
    base.execute(copy, (at + 130_000, at + 135_000, gpu, link + 3, pid))
    wait = "INSERT INTO CUPTI_ACTIVITY_KIND_SYNCHRONIZATION VALUES (?, ?, 0, 4294967295, 0, ?, 3)"
    base.execute(wait, (at + 100_000, at + 135_000, pid))
    call = "INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (?, ?, ?, ?, ?)"
    for place, name in enumerate((102, 102, 103)):
        begin = at - 9000 + place * 3000
        base.execute(call, (begin, begin + 2000, pid + 3, link + 1 + place, name))
    mark = "INSERT INTO NVTX_EVENTS VALUES (?, ?, 59, ?, ?, NULL)"
    base.execute(mark, (at - 10_000, at + 140_000, f"step {step}", pid + 3))
    base.execute(mark, (at - 9500, at - 6500, f"aten::mm, seq = {step}, op_id = {step}", pid + 3))
    base.execute("INSERT INTO NVTX_EVENTS VALUES (?, NULL, 34, 'a mark', ?, NULL)", (at, pid + 3))


_SCHEMA = """
CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT);
CREATE TABLE PROCESSES (globalPid INTEGER, pid INTEGER, name TEXT);
CREATE TABLE ThreadNames (nameId INTEGER, priority INTEGER, globalTid INTEGER);
CREATE TABLE TARGET_INFO_GPU (id INTEGER, name TEXT, totalMemory INTEGER);
CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL
    (start INTEGER, end INTEGER, deviceId INTEGER, streamId INTEGER, correlationId INTEGER, globalPid INTEGER,
     demangledName INTEGER);
CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY
    (start INTEGER, end INTEGER, deviceId INTEGER, streamId INTEGER, correlationId INTEGER, globalPid INTEGER,
     bytes INTEGER, copyKind INTEGER);
CREATE TABLE CUPTI_ACTIVITY_KIND_SYNCHRONIZATION
    (start INTEGER, end INTEGER, deviceId INTEGER, streamId INTEGER, correlationId INTEGER, globalPid INTEGER,
     syncType INTEGER);
CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME
    (start INTEGER, end INTEGER, globalTid INTEGER, correlationId INTEGER, nameId INTEGER);
CREATE TABLE NVTX_EVENTS
    (start INTEGER, end INTEGER, eventType INTEGER, text TEXT, globalTid INTEGER, textId INTEGER);
"""
