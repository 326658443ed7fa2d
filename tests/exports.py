"""Make small exports with known answers in the formats of other profilers: Nsight Systems, Ascend, Chakra, XLA, ncu."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

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


# -- Chakra -----------------------------------------------------------------------------------------------------------


def varint(value: int) -> bytes:
    """A number as the wire has it."""
    value %= 2**64
    found = bytearray()
    while value > 127:
        found.append(value & 127 | 128)
        value >>= 7
    return bytes([*found, value])


def number(field: int, value: int) -> bytes:
    return varint(field << 3) + varint(value)


def block(field: int, value: bytes) -> bytes:
    return varint(field << 3 | 2) + varint(len(value)) + value


def attribute(name: str, value: int | str | bool) -> bytes:
    """An attribute of a node: a bool, an int64 or a text."""
    body = block(1, name.encode())
    if isinstance(value, bool):
        return block(10, body + number(27, value))
    return block(10, body + (number(9, value) if isinstance(value, int) else block(29, value.encode())))


def node(
    id: int, name: str, type: int, *, after: Iterable[int] = (), start: int = 0, length: int = 0,
    shapes: tuple[str, str] = ("", ""), more: Mapping[str, int | str | bool] | None = None,
) -> bytes:  # fmt: skip
    """A node, without the length in front; zeros are left out, as protobuf does."""
    body = number(1, id) + block(2, name.encode()) + number(3, type)
    deps = b"".join(varint(one) for one in after)
    body += block(5, deps) if deps else b""
    body += number(6, start) if start else b""
    body += number(7, length) if length else b""
    if shapes[0]:
        body += block(8, block(1, b"[]") + block(2, shapes[0].encode()) + block(3, shapes[1].encode()))
    return body + b"".join(attribute(key, value) for key, value in (more or {}).items())


def chakra(*nodes: bytes, version: str = "1.0.1") -> bytes:
    """A whole file."""
    return b"".join(
        varint(len(one)) + one for one in (block(2, block(1, b"schema") + block(29, version.encode())), *nodes)
    )


CHIP: dict[str, int | str | bool] = {"is_cpu_op": False, "tid": 7}
CPU: dict[str, int | str | bool] = {"is_cpu_op": True, "tid": 1}
NODES = (
    node(10, "aten::mm(0)", 4, length=3, shapes=("[[8, 4], [4, 2]]", "['Tensor(float)', 'Tensor(float)']"), more=CPU),
    node(11, "gemm", 4, after=[10], length=20, more=CHIP),
    node(12, "ncclAllReduce", 7, after=[11], length=30, more=CHIP | {"tid": 20, "comm_type": 0, "comm_size": 4096}),
    node(13, "gemm", 4, after=[11], length=25, more=CHIP),
    node(14, "Memcpy DtoH", 4, after=[12, 13, 99], length=5, more=CHIP),
)
"""A product, a reduction beside a second product, and a copy behind both. By hand: 3, 23, 23, 53, that is 58 us."""


# -- Ascend -----------------------------------------------------------------------------------------------------------

AT = 1_700_000_000_000_000  # microseconds since 1970, as Ascend's clocks count


def ascend_trace(device: int = 3, computing: float = 100) -> list[dict[str, Any]]:
    """Two products of 50 us launched by CANN, and an all-reduce of 40 us over the second, its transfers on a plane and,
    as tasks, on a stream of the hardware; the vendor's track says how long the chip was ``computing``."""
    hardware, network, runtime = 800 + device, 900 + device, 77

    def span(pid: int, tid: int, name: str, at: float, length: float, **more: Any) -> dict[str, Any]:
        return {"ph": "X", "name": name, "pid": pid, "tid": tid, "ts": f"{AT + at:.3f}", "dur": length, "args": more}

    def meta(what: str, pid: int, tid: int, **more: str) -> dict[str, Any]:
        return {"ph": "M", "name": what, "pid": pid, "tid": tid, "args": more}

    return [
        *(meta("process_name", pid, 0, name=name) for pid, name in (
            (1, "Python"), (hardware, "Ascend Hardware"), (network, "HCCL"), (runtime, "CANN"),
            (99, "Overlap Analysis"),
        )),
        *(meta("process_labels", pid, 0, labels=name) for pid, name in (
            (1, "CPU"), (hardware, "NPU"), (network, "NPU"), (runtime, "CPU"), (99, "NPU"),
        )),
        meta("thread_name", network, 0, name="Group 0 Communication"),
        meta("thread_name", network, 1, name="Plane 0"),
        {**span(1, 1, "ProfilerStep#5", -20, 200), "cat": "cpu_op"},
        *(span(runtime, 2, "Node@launch", at - 10, 4, connection_id=link) for at, link in ((0, 8), (60, 9))),
        *(span(hardware, 16, "MatMul1", at, 50, connection_id=link) for at, link in ((0, 8), (60, 9))),
        span(hardware, 16, "EVENT_WAIT", 110, 3),
        span(network, 0, "hcom_allReduce__1_0", 80, 40),
        span(network, 1, "Notify_Wait", 82, 10),
        span(hardware, 17, "NOTIFY_WAIT", 82, 10),
        span(hardware, 17, "MEMCPY_ASYNC", 92, 20),
        span(hardware, 9, "Iteration 5", -20, 200),
        meta("thread_name", hardware, 9, name="Step Trace(Model ID:1)"),
        *(span(99, 0, "Computing", at, computing / 2) for at in (0, 60)),
        span(99, 1, "Communication(Not Overlapped)", 110, 10),
    ]  # fmt: skip


DETAILS = (
    "Step Id,Stream ID,Name,Type,Accelerator Core,Start Time(us),Duration(us),Block Dim,Input Shapes,Input Data Types,"
    "aic_mac_fp16_ratio,aic_cube_fops\n"
    f'5,16,MatMul1,MatMul,AI_CORE,{AT}.4,50,24,"""64,32;32,16;""",FLOAT16;FLOAT16;FLOAT,0.8,1000000\n'
    f'5,16,MatMul1,MatMul,AI_CORE,{AT + 60},50,24,"""64,32;32,16;""",FLOAT16;FLOAT16;FLOAT,0.6,1000000\n'
    f"6,N/A,hcom_allReduce__1_0,hcom_allReduce_,HCCL,{AT + 80},40,0,N/A,N/A,N/A,N/A\n"
)


# -- XLA --------------------------------------------------------------------------------------------------------------


def xla_trace(chips: int = 2) -> dict[str, Any]:
    """A JAX trace of two steps a chip: a loop around a fused product of 70 us and an all-reduce of 20, then 10 idle."""
    events: list[dict[str, Any]] = [
        {"ph": "M", "name": "process_name", "pid": 700, "args": {"name": "/host:CPU"}},
        {"ph": "M", "name": "thread_name", "pid": 700, "tid": 1, "args": {"name": "python"}},
        {"ph": "X", "name": "$train.py:12 step", "pid": 700, "tid": 1, "ts": 0, "dur": 190},
    ]
    for chip in range(chips):
        events.append({"ph": "M", "name": "process_name", "pid": chip + 3, "args": {"name": f"/device:TPU:{chip}"}})
        for tid, thread in enumerate(("Steps", "XLA Modules", "XLA Ops", "Async XLA Ops", "Framework Ops")):
            args = {"name": thread}
            events.append({"ph": "M", "name": "thread_name", "pid": chip + 3, "tid": tid, "args": args})
        for step in (0, 1):
            rows: tuple[tuple[int, str, int, int, str], ...] = (
                (0, f"{step + 4}", 0, 90, ""), (1, "jit_step(123)", 0, 90, ""), (2, "while.1", 0, 90, "while"),
                (2, f"fusion.{step}", 0, 70, "convolution fusion"), (2, "all-reduce.2", 70, 20, "all-reduce"),
                (3, "copy-start.3", 10, 30, "async-start"), (4, "dot_general", 0, 70, ""),
            )  # fmt: skip
            for tid, name, at, length, category in rows:
                args = {"hlo_category": category} if category else {}
                where = {"pid": chip + 3, "tid": tid, "ts": step * 100 + at, "dur": length}
                events.append({"ph": "X", "name": name, **where, "args": args})
    return {"displayTimeUnit": "ns", "metadata": {"highres-ticks": True}, "traceEvents": events}


# -- Nsight Compute ---------------------------------------------------------------------------------------------------

RAW = """==PROF== Connected to process 7
"ID","Process ID","Kernel Name","Block Size","Grid Size","dram__bytes_read.sum","dram__bytes_write.sum",\
"gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed","gpu__time_duration.sum","launch__registers_per_thread",\
"sm__throughput.avg.pct_of_peak_sustained_elapsed","smsp__sass_thread_inst_executed_op_ffma_pred_on.sum"
"","","","","","Mbyte","Mbyte","%","us","register/thread","%","inst"
"0","7","gemm(float*)","(128, 1, 1)","(80, 1, 1)","6","2","40","4","96","80","1,000,000"
"1","7","gemm(float*)","(128, 1, 1)","(160, 1, 1)","12","4","60","12","96","40","3,000,000"
"2","7","copy<(int)4>(char*)","(256, 1, 1)","(9, 1, 1)","n/a","n/a","90","1,000","16","5","0"
==PROF== Disconnected from process 7
""".replace("\\\n", "")
"""gemm: 8 MB in 4 us and 16 MB in 12 us, weighted by time 1.5 TB/s; 2 Mflop in 4 us and 6 in 12, 0.5 TFLOP/s."""


def details_page() -> str:
    """The same metrics of the first launch and of the copy, a row each."""
    columns = ("ID", "Process ID", "Kernel Name", "Block Size", "Grid Size", "Section Name", "Metric Name")
    head = ",".join(f'"{one}"' for one in (*columns, "Metric Unit", "Metric Value"))
    rows = [
        ("0", "gemm(float*)", "Duration", "us", "4"), ("0", "gemm(float*)", "Memory Throughput", "Tbyte/s", "2"),
        ("0", "gemm(float*)", "Memory Throughput", "%", "55"),
        ("0", "gemm(float*)", "Compute (SM) Throughput", "%", "80"),
        ("0", "gemm(float*)", "DRAM Throughput", "%", "40"), ("0", "gemm(float*)", "Achieved Occupancy", "%", "25"),
        ("2", "copy<(int)4>(char*)", "Duration", "ms", "1"),
    ]  # fmt: skip
    lines = [
        f'"{id}","7","{name}","(128, 1, 1)","(80, 1, 1)","GPU Speed Of Light","{metric}","{unit}","{value}"'
        for id, name, metric, unit, value in rows
    ]
    return "\n".join([head, *lines]) + "\n"
