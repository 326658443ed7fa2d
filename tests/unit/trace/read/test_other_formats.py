"""Formats beside PyTorch's and Nsight's, made here from their published schemas, each with a known answer."""

from __future__ import annotations

import contextlib
import io
import json
import pickle
import random
import sqlite3
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from exports import ascend_trace, block, number
from traces import Recipe, known, make, write

from ridgeline.core.errors import InputError
from ridgeline.trace import Timeline
from ridgeline.trace.analysis.breakdown import BusyTimes, breakdown
from ridgeline.trace.read.memory_snapshot import NotPlain, plain, read_snapshot
from ridgeline.trace.read.readers import read_timeline
from ridgeline.trace.span_query import query


def total(line: Timeline) -> BusyTimes:
    return breakdown(line).total


# -- msprof -----------------------------------------------------------------------------------------------------------


def msprof_json(iteration: int, at: float) -> list[dict[str, Any]]:
    """One iteration: the trace of `ascend_trace`, moved in time."""
    events = ascend_trace()
    for event in events:
        if event["ph"] == "X":
            event["ts"] = f"{float(event['ts']) + at:.3f}"
            event["name"] = event["name"].replace("Iteration 5", f"Iteration {iteration}")
    return [one for one in events if not one["name"].startswith("ProfilerStep")]


class TestMsprof:
    def test_iterations_of_a_folder_are_one_rank(self, tmp_path: Path) -> None:
        """Those that follow each other, of the rank that the folder's facts name; sums agree with the vendor's."""
        timeline = tmp_path / "PROF_1" / "device_2" / "timeline"
        timeline.mkdir(parents=True)
        (timeline.parent / "info.json.2").write_text('{"rank_id": 5}')
        for iteration in (1, 3, 4):
            write(msprof_json(iteration, 1000 * iteration), timeline / f"msprof_2_9_{iteration}.json")
        write([{"ph": "X", "name": "x", "pid": 1, "tid": 1, "ts": 1, "dur": 1}], timeline / "step_trace_2_9_1.json")
        for path in (tmp_path, tmp_path / "PROF_1", timeline):
            line = read_timeline(path)
            found = breakdown(line)
            assert [row.rank for row in found.chips] == [5]
            assert (found.total.compute_ns, found.total.communication_ns) == (200_000, 80_000)
            assert sorted({row.step for row in found.steps}) == [3, 4]
            assert line.about.warnings == ()

    def test_the_database(self, tmp_path: Path) -> None:
        folder = tmp_path / "PROF_1" / "device_0"
        folder.mkdir(parents=True)
        base = sqlite3.connect(tmp_path / "PROF_1" / "msprof_1.db")
        base.executescript("""
            CREATE TABLE STRING_IDS (id INTEGER, value TEXT);
            CREATE TABLE NPU_INFO (id INTEGER, name TEXT);
            CREATE TABLE ENUM_API_TYPE (id INTEGER, name TEXT);
            CREATE TABLE TASK (startNs INTEGER, endNs INTEGER, deviceId INTEGER, connectionId INTEGER,
                globalTaskId INTEGER, globalPid INTEGER, taskType INTEGER, streamId INTEGER, taskId INTEGER);
            CREATE TABLE COMPUTE_TASK_INFO (name INTEGER, globalTaskId INTEGER, taskType INTEGER, opType INTEGER,
                inputShapes INTEGER, inputDataTypes INTEGER);
            CREATE TABLE COMMUNICATION_OP (opName INTEGER, startNs INTEGER, endNs INTEGER, deviceId INTEGER);
            CREATE TABLE COMMUNICATION_TASK_INFO (name INTEGER, globalTaskId INTEGER, opId INTEGER);
            CREATE TABLE CANN_API (startNs INTEGER, endNs INTEGER, type INTEGER, globalTid INTEGER,
                connectionId INTEGER, name INTEGER);
            CREATE TABLE STEP_TIME (id INTEGER, startNs INTEGER, endNs INTEGER);
        """)
        texts = ("AI_CORE", "aclnnMm_MatMul", "MatMulV2", '"64,32;32,16"', "FLOAT16;FLOAT16", "hcom_allReduce_",
                 "NOTIFY_WAIT", "MEMCPY_ASYNC", "Node@launch")  # fmt: skip
        base.executemany("INSERT INTO STRING_IDS VALUES (?, ?)", list(enumerate(texts)))
        base.execute("INSERT INTO NPU_INFO VALUES (0, 'Ascend910B2')")
        base.execute("INSERT INTO ENUM_API_TYPE VALUES (10000, 'node')")
        task = "INSERT INTO TASK VALUES (?, ?, 0, ?, ?, 1, ?, ?, 0)"
        base.executemany(task, [
            (10_000, 60_000, 7, 1, 0, 2), (50_000, 80_000, -1, 2, 6, 3), (95_000, 99_000, -1, 3, 7, 2),
            (99_000, 98_000, -1, 4, 7, 2),
        ])  # fmt: skip
        base.execute("INSERT INTO COMPUTE_TASK_INFO VALUES (1, 1, 0, 2, 3, 4)")
        base.execute("INSERT INTO COMMUNICATION_OP VALUES (5, 50000, 90000, 0)")
        base.execute("INSERT INTO COMMUNICATION_TASK_INFO VALUES (6, 2, 0)")
        base.execute("INSERT INTO CANN_API VALUES (1000, 4000, 10000, 4294967303, 7, 8)")
        base.execute("INSERT INTO STEP_TIME VALUES (4, 0, 100000)")
        base.commit()
        base.close()
        line = read_timeline(tmp_path / "PROF_1")
        times = total(line)
        assert (times.compute_ns, times.communication_ns, times.exposed_communication_ns) == (50_000, 40_000, 30_000)
        assert (times.copy_ns, times.span_ns) == (4_000, 89_000)
        assert line.about.chips == ("Ascend910B2",)
        assert line.detail.shapes[0].dims == ((64, 32), (32, 16))
        product = int(np.flatnonzero(line.of_kind("kernel"))[0])
        assert line.names[line.name[line.launch[product]]] == "Node@launch"
        assert 4 in line.step[line.is_work].tolist()
        assert line.about.dropped == {"spans without a readable time": 1}

    def test_the_summary_of_several_devices(self, tmp_path: Path) -> None:
        path = tmp_path / "op_summary_0.csv"
        path.write_text(
            "Device_id,Model ID,Task ID,Stream ID,Op Name,OP Type,Task Type,Task Start Time(us),Task Duration(us)\n"
            "0,1,1,2,MatMul_1,MatMul,AI_CORE,100.5,50\n1,1,1,2,MatMul_1,MatMul,AI_CORE,100,50\n"
            "1,1,2,3,hcom_allReduce_1,hcom_allReduce_,COMMUNICATION,150,20\n0,1,3,3,N/A,N/A,EVENT_WAIT,10,90\n"
        )
        found = breakdown(read_timeline(path))
        assert [(row.process, row.rank, row.times.busy_ns) for row in found.chips] == [
            ("chip 0", 0, 50_000), ("chip 1", 1, 70_000),
        ]  # fmt: skip


def test_a_mindspore_timeline(tmp_path: Path) -> None:
    def meta(what: str, pid: int, tid: int, **more: str) -> dict[str, Any]:
        return {"ph": "M", "name": what, "pid": pid, "tid": tid, "args": more}

    def span(pid: int, tid: int, name: str, at: float, length: float) -> dict[str, Any]:
        return {"ph": "X", "name": name, "pid": pid, "tid": tid, "ts": at, "dur": length}

    labels = ((0, "AI Core Op"), (9000, "AI CPU Op"), (10000, "Communication Op"), (11000, "Host CPU Op"))
    events = [
        *(meta("process_labels", pid, 0, labels=label) for pid, label in (*labels, (12000, "Op Overlap Analyse"))),
        meta("thread_name", 0, 100000, name="Steps"), meta("thread_name", 12000, 7999, name="Merged Computation Op"),
        meta("thread_name", 12000, 8000, name="Pure Communication Op"),
        span(0, 100000, "1", 0, 100), span(0, 3, "Default/net/conv1-Conv2d/Conv2D-op1", 0, 40),
        span(9000, 1, "Default/net/GetNext-op2", 40, 5), span(10000, 1, "Default/AllReduce-op5", 30, 40),
        span(12000, 7999, "computation_op", 0, 45), span(12000, 8000, "comm", 45, 25),
    ]  # fmt: skip
    line = read_timeline(write(events, tmp_path / "ascend_timeline_display_0.json"))
    found = breakdown(line)
    assert (found.total.compute_ns, found.total.communication_ns) == (45_000, 40_000)
    assert found.total.exposed_communication_ns == 25_000
    assert {row.step for row in found.steps} == {1}
    assert {one.id for one in found.classes} >= {"convolution", "hccl"}
    assert not any("Overlap" in warning for warning in line.about.warnings)


# -- XLA's own protobuf -----------------------------------------------------------------------------------------------


def entry(field: int, key: int, name: str) -> bytes:
    return block(field, number(1, key) + block(2, number(1, key) + block(2, name.encode())))


def event(name: int, offset_ps: int, length_ps: int, *stats: tuple[int, int]) -> bytes:
    told = b"".join(block(4, number(1, stat) + number(3, value)) for stat, value in stats)
    return block(4, number(1, name) + number(2, offset_ps) + number(3, length_ps) + told)


def xplane() -> bytes:
    """A GPU with a product and a copy, launched by calls on a host's thread; a step."""
    names = entry(4, 1, "gemm_fusion.kd") + entry(4, 2, "odd_copy") + entry(5, 7, "correlation_id")
    gpu = block(2, b"/device:GPU:0") + names + block(3, number(1, 17) + block(2, b"Stream #17(Kernel)") + number(3, 500)
        + event(1, 1_000_000, 50_000_900, (7, 3)) + event(1, 51_000_900, 9_000_000, (7, 5)))  # fmt: skip
    gpu += block(
        3, number(1, 18) + block(2, b"Stream #18(MemcpyD2H)") + number(3, 500) + event(2, 80_000_000, 5_000_000)
    )
    calls = entry(4, 1, "hipModuleLaunchKernel") + entry(4, 2, "train") + entry(5, 7, "correlation_id")
    calls += entry(5, 8, "step_num")
    host = block(2, b"/host:CPU") + calls + block(3, number(1, 9) + block(2, b"python") + number(3, 400)
        + event(2, 0, 200_000_000, (8, 6)) + event(1, 90_000_000, 4_000_000, (7, 3)))  # fmt: skip
    return block(1, gpu) + block(1, host) + block(1, block(2, b"Task Environment"))


class TestXplane:
    def test_spans_launches_and_steps(self, tmp_path: Path) -> None:
        (tmp_path / "host.xplane.pb").write_bytes(xplane())
        line = read_timeline(tmp_path / "host.xplane.pb")
        times = total(line)
        assert line.about.format == "XLA xplane"
        assert (times.compute_ns, times.copy_ns, times.span_ns) == (59_000, 5_000, 84_000)
        kernels = np.flatnonzero(line.of_kind("kernel"))
        assert int(line.end_ns[kernels[0]]) == int(line.start_ns[kernels[1]])  # what touches still touches
        assert (line.launch[kernels] >= 0).tolist() == [True, False]
        assert line.classes[line.class_[kernels[0]]] == "matmul"
        assert int(line.step[kernels[0]]) == 6

    def test_a_profilers_folder_is_read_once(self, tmp_path: Path) -> None:
        run = tmp_path / "plugins" / "profile" / "2026"
        run.mkdir(parents=True)
        (run / "host.xplane.pb").write_bytes(xplane())
        write({"traceEvents": []}, run / "host.trace.json.gz")
        assert read_timeline(tmp_path).about.sources == ("host.xplane.pb",)

    def test_a_cut_file_is_kept_as_far_as_it_goes(self, tmp_path: Path) -> None:
        path = tmp_path / "x.xplane.pb"
        path.write_bytes(xplane()[:-40])
        line = read_timeline(path)
        assert (total(line).compute_ns, "cut" in line.about.warnings[0]) == (59_000, True)
        path.write_bytes(xplane()[:60])
        with pytest.raises(InputError, match="without spans"):
            read_timeline(path)


# -- ROCm -------------------------------------------------------------------------------------------------------------


class TestRocm:
    def test_rocpd(self, tmp_path: Path) -> None:
        id = "_0123_abcd"
        base = sqlite3.connect(tmp_path / "7_results.db")
        base.executescript(f"""
            CREATE TABLE "rocpd_string{id}" (id INTEGER, guid TEXT, string TEXT);
            CREATE TABLE "rocpd_info_agent{id}" (id INTEGER, guid TEXT, type TEXT, product_name TEXT);
            CREATE TABLE "rocpd_info_kernel_symbol{id}" (id INTEGER, guid TEXT, kernel_name TEXT, display_name TEXT);
            CREATE TABLE "rocpd_event{id}" (id INTEGER, category_id INTEGER, stack_id INTEGER);
            CREATE TABLE "rocpd_kernel_dispatch{id}" (id INTEGER, agent_id INTEGER, kernel_id INTEGER,
                queue_id INTEGER, stream_id INTEGER, start BIGINT, end BIGINT, event_id INTEGER);
            CREATE TABLE "rocpd_memory_copy{id}" (id INTEGER, start BIGINT, end BIGINT, name_id INTEGER,
                dst_agent_id INTEGER, src_agent_id INTEGER, size INTEGER, stream_id INTEGER, event_id INTEGER);
            CREATE TABLE "rocpd_region{id}" (id INTEGER, pid INTEGER, tid INTEGER, start BIGINT, end BIGINT,
                name_id INTEGER, event_id INTEGER);
            CREATE VIEW rocpd_kernel_dispatch AS SELECT * FROM "rocpd_kernel_dispatch{id}";
            INSERT INTO "rocpd_string{id}" VALUES (1, '', 'hipLaunchKernel'), (2, '', 'MEMORY_COPY_DEVICE_TO_HOST'),
                (3, '', 'step 4'), (4, '', 'MARKER_CORE_API');
            INSERT INTO "rocpd_info_agent{id}" VALUES (1, '', 'CPU', 'EPYC'), (2, '', 'GPU', 'AMD Instinct MI300X');
            INSERT INTO "rocpd_info_kernel_symbol{id}" VALUES (5, '', 'Cijk_Alik.kd', 'Cijk_Alik');
            INSERT INTO "rocpd_event{id}" VALUES (1, 0, 77), (2, 0, 77), (3, 4, 0), (4, 0, 0);
            INSERT INTO "rocpd_kernel_dispatch{id}" VALUES (1, 2, 5, 1, 3, 2000, 9000, 2);
            INSERT INTO "rocpd_memory_copy{id}" VALUES (1, 9500, 9800, 2, 1, 2, 4096, 3, 4);
            INSERT INTO "rocpd_region{id}" VALUES (1, 7, 7, 500, 900, 1, 1), (2, 7, 7, 0, 10000, 3, 3);
        """)
        base.commit()
        base.close()
        line = read_timeline(tmp_path / "7_results.db")
        times = total(line)
        assert (times.compute_ns, times.copy_ns, times.span_ns) == (7_000, 300, 7_800)
        kernel = int(np.flatnonzero(line.of_kind("kernel"))[0])
        assert line.names[line.name[line.launch[kernel]]] == "hipLaunchKernel"
        assert (int(line.step[kernel]), line.classes[line.class_[kernel]]) == (4, "matmul")
        assert line.about.chips == ("AMD Instinct MI300X",)
        assert line.detail.size_bytes.values.tolist() == [4096]

    def test_a_table_of_kernels(self, tmp_path: Path) -> None:
        path = tmp_path / "7_kernel_trace.csv"
        path.write_text(
            '"Kind","Agent_Id","Queue_Id","Stream_Id","Kernel_Name","Correlation_Id","Start_Timestamp","End_Timestamp"\n'
            '"KERNEL_DISPATCH","Agent 4",1,0,"Cijk_Ailk",3,1000,6000\n"KERNEL_DISPATCH","Agent 5",1,0,"rccl",4,1000,x\n'
        )
        line = read_timeline(path)
        assert total(line).compute_ns == 5_000
        assert line.about.dropped == {"rows without a readable time": 1}

    def test_its_json_is_named(self, tmp_path: Path) -> None:
        (tmp_path / "r.json").write_text('{"rocprofiler-sdk-tool": [{}]}')
        with pytest.raises(InputError, match="rocprofv3 --output-format rocpd"):
            read_timeline(tmp_path / "r.json")


# -- PyTorch's other records ------------------------------------------------------------------------------------------


def test_an_execution_trace(tmp_path: Path) -> None:
    def op(id: int, name: str, parent: int, shapes: Any = (), types: Any = ()) -> dict[str, Any]:
        inputs = {"values": [], "shapes": list(shapes), "types": list(types)}
        attrs = [{"name": "tid", "type": "uint64", "value": 1}]
        return {"id": id, "name": name, "ctrl_deps": parent, "inputs": inputs, "attrs": attrs}

    file = {
        "schema": "1.1.1-chakra.0.0.4", "pid": 7, "nodes": [
            op(1, "[pytorch|profiler|execution_trace|process]", 1),
            op(2, "[pytorch|profiler|execution_trace|thread]", 1),
            op(3, "aten::linear", 2), op(4, "aten::t", 3),
            op(5, "aten::addmm", 3, [[8], [4, 2], [2, 8]], ["Tensor(float)"] * 3), op(6, "aten::relu", 2),
        ],
    }  # fmt: skip
    line = read_timeline(write(file, tmp_path / "et.json"))
    found = [(line.names[line.name[row]], int(line.start_ns[row]), int(line.end_ns[row])) for row in range(len(line))]
    assert found == [
        ("aten::linear", 0, 2000), ("aten::t", 0, 1000), ("aten::addmm", 1000, 2000), ("aten::relu", 2000, 3000),
    ]  # fmt: skip
    assert line.detail.shapes[-1].types == ("float",) * 3 or line.detail.shapes[1].types == ("float",) * 3
    assert "no times" in line.about.warnings[0]


class TestMemory:
    def test_who_held_the_peak(self, tmp_path: Path) -> None:
        def act(what: str, address: int, size: int, at: int, line: int = 1) -> dict[str, Any]:
            frames = [{"filename": "torch/nn/modules/linear.py", "line": 1, "name": "forward"},
                      {"filename": "/home/me/train.py", "line": line, "name": "step"}]  # fmt: skip
            return {"action": what, "addr": address, "size": size, "time_us": at, "frames": frames}

        history = [act("alloc", 1, 100, 10), act("alloc", 2, 50, 20, 7), act("free_completed", 1, 100, 30),
                   act("oom", 0, 9, 35), act("alloc", 3, 80, 40, 9)]  # fmt: skip
        segments = [{"device": 0, "total_size": 400, "active_size": 160, "blocks": []}]
        path = tmp_path / "snapshot.pickle"
        path.write_bytes(pickle.dumps({"segments": segments, "device_traces": [history]}))
        (chip,) = read_snapshot(path)
        assert (chip.peak_bytes, chip.peak_us, chip.before_bytes) == (150 + 30, 20, 30)
        assert [(one.what, one.size_bytes) for one in chip.holders] == [
            ("/home/me/train.py:1 step", 100), ("/home/me/train.py:7 step", 50),
        ]  # fmt: skip
        assert (chip.fragmentation, chip.out_of_memory) == (0.6, 1)

    def test_the_profilers_timelines(self, tmp_path: Path) -> None:
        raw = [
            [-1, 1, 1000, 0],
            [2000, 2, 500, 4],
            [3000, 4, -500, 4],
            [4000, 2, 100, 5],
            [5, 3, -100, 5],
            [5, 3, 100, 0],
        ]
        (tmp_path / "m.raw.json").write_text(json.dumps(raw))
        (chip,) = read_snapshot(tmp_path / "m.raw.json")
        assert (chip.peak_bytes, [one.what for one in chip.holders]) == (1500, ["parameters", "activations"])
        assert (chip.peak_us, chip.active_bytes) == (2.0, 1100)
        with pytest.raises(InputError, match="allocator"):
            read_timeline(tmp_path / "m.raw.json")

    def test_a_pickle_runs_nothing(self, tmp_path: Path) -> None:
        class Hostile:
            def __reduce__(self) -> Any:
                return print, ("owned",)

        with pytest.raises(NotPlain, match="GLOBAL"):
            plain(pickle.dumps({"a": Hostile()}))
        (tmp_path / "s.pickle").write_bytes(pickle.dumps(Hostile()))
        with pytest.raises(InputError, match="holds no memory record"):
            read_snapshot(tmp_path / "s.pickle")
        value = {"a": [1, 2.5, None, True, ("x", (), {"y": "z"})], "b": list(range(3000)), "a2": "€" * 300}
        for protocol in (2, 3, 4, 5):
            assert plain(pickle.dumps(value, protocol)) == value


# -- archives and what cannot be read ---------------------------------------------------------------------------------


def test_an_archive_of_ranks(tmp_path: Path) -> None:
    path = tmp_path / "ranks.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for rank in range(2):
            file = write(make(Recipe(rank=rank, world=2)), tmp_path / f"rank{rank}.json.gz")
            archive.write(file, f"../../run/rank{rank}.json.gz")
        archive.writestr("run/readme.txt", "no trace")
    line = read_timeline(path)
    assert sorted(set(line.tables.ranks)) == [0, 1]
    assert total(line).idle_ns == known(Recipe()).idle_us * 1000
    bomb = io.BytesIO()
    with zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("bomb.json", b"[" + b" " * 80_000_000)
    (tmp_path / "bomb.zip").write_bytes(bomb.getvalue())
    with pytest.raises(InputError, match="grows beyond"):
        read_timeline(tmp_path / "bomb.zip")


@pytest.mark.parametrize(
    ("name", "begins", "says"),
    [
        ("a.nsys-rep", b"\x00\x01junk", "nsys export --type sqlite"),
        ("a.pftrace", b"\x0a\x05abcde", "Perfetto"),
        ("a.json.zst", b"\x28\xb5\x2f\xfd123", "Zstandard"),
        ("a.json", b"version https://git-lfs.github.com/spec/v1", "Git LFS"),
        ("a.pkl", pickle.dumps([1]), "allocator"),
    ],
)
def test_what_cannot_be_read_is_named(name: str, begins: bytes, says: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(begins)
    with pytest.raises(InputError, match=says):
        read_timeline(tmp_path / name)


def test_damaged_files_are_read_or_refused(tmp_path: Path) -> None:
    """Whatever a byte is changed to: a timeline, or a message."""
    chance, seeds = random.Random(7), {"x.xplane.pb": xplane(), "a.json": json.dumps(msprof_json(1, 1000)).encode()}
    for _ in range(60):
        for name, seed in seeds.items():
            data = bytearray(seed)
            for _ in range(chance.choice((1, 3, 20))):
                data[chance.randrange(len(data))] = chance.randrange(256)
            (tmp_path / name).write_bytes(data[: chance.randrange(len(data) // 2, len(data) + 1)])
            with contextlib.suppress(InputError):
                assert len(read_timeline(tmp_path / name))


@pytest.mark.parametrize("name", ["op_summary.csv", "kernel_details.csv"])
def test_what_no_profiler_wrote_for_us_is_told(name: str, tmp_path: Path) -> None:
    """Of a reader built from a schema alone the answer says so; of one that files went through it does not."""
    columns = {
        "op_summary.csv": "Task Start Time(us),Task Duration(us)",
        "kernel_details.csv": "Start Time(us),Duration(us)",
    }
    (tmp_path / name).write_text(f"Op Name,Task Type,{columns[name]}\nMatMul,AI_CORE,10,5\n")
    told = read_timeline(tmp_path / name).about.warnings
    assert [one.startswith("unproven reader: msprof summary") for one in told] == ([True] if "op" in name else [])
    answer = query(tmp_path / name, sql="SELECT count(*) FROM spans")
    assert answer.warnings == told


def test_mtia_is_unproven(tmp_path: Path) -> None:
    span = {"ph": "X", "pid": 0, "tid": 1, "ts": 0, "dur": 50}
    file = {
        "traceEvents": [span | {"cat": "mtia_ccp_events", "name": "fc"}, span | {"cat": "cpu_op", "name": "aten::mm"}]
    }
    about = read_timeline(write(file, tmp_path / "m.json")).about
    assert about.format == "Kineto JSON of MTIA"
    assert about.warnings[-1].startswith("unproven reader: Kineto JSON of MTIA")
