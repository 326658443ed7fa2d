"""Chrome traces of other makers: Ascend with its table of kernels, XLA with its threads; folders of ranks."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from exports import AT, DETAILS, ascend_trace, xla_trace
from traces import write

from ridgeline.core.errors import InputError
from ridgeline.trace.analysis.breakdown import breakdown
from ridgeline.trace.analyze_traces import analyze
from ridgeline.trace.read.readers import read_timeline


class TestAscend:
    def test_collectives_are_on_the_chip_beside_them(self, tmp_path: Path) -> None:
        """100 us of products in 120; 40 of all-reduce of which 30 under the second product; 10 idle between."""
        line = read_timeline(write(ascend_trace(), tmp_path / "trace_view.json.gz"))
        found = breakdown(line)
        assert [row.process for row in found.chips] == ["rank 0 chip 803"]
        times = found.total
        assert (times.span_ns, times.idle_ns, times.compute_ns) == (120_000, 10_000, 100_000)
        assert (times.communication_ns, times.exposed_communication_ns) == (40_000, 10_000)
        assert {one.id for one in found.classes} == {"matmul", "hccl"}
        assert line.about.kept == {"kernel": 3, "runtime": 2, "annotation": 1, "marker": 4, "sync": 1}
        assert line.about.warnings == ()
        assert line.about.origin_ns == (AT - 20) * 1000

    def test_the_vendors_own_sums_are_a_second_opinion(self, tmp_path: Path) -> None:
        line = read_timeline(write(ascend_trace(computing=50), tmp_path / "trace_view.json"))
        (doubt,) = line.about.warnings
        assert doubt == "rank 0: the vendor's Overlap Analysis in the file says computing 50.0 us, here 100.0"

    def test_launches_and_steps(self, tmp_path: Path) -> None:
        line = read_timeline(write(ascend_trace(), tmp_path / "trace_view.json"))
        products = np.flatnonzero(line.of_kind("kernel") & (line.launch >= 0))
        assert (line.start_ns[products] - line.start_ns[line.launch[products]]).tolist() == [10_000, 10_000]
        assert set(line.step[products].tolist()) == {5}

    def test_the_table_alone(self, tmp_path: Path) -> None:
        (tmp_path / "kernel_details.csv").write_text(DETAILS)
        line = read_timeline(tmp_path / "kernel_details.csv")
        times = breakdown(line).total
        assert (times.compute_ns, times.communication_ns, times.exposed_communication_ns) == (100_000, 40_000, 10_000)
        assert np.unique(line.step[line.is_work]).tolist() == [5, 6]
        assert set(line.streams) == {"stream 16", "HCCL", "steps"}
        assert line.detail.shapes[0].dims == ((64, 32), (32, 16), ())

    def test_both_are_one_trace_with_shapes_and_counters(self, tmp_path: Path) -> None:
        write(ascend_trace(), tmp_path / "trace_view.json")
        (tmp_path / "kernel_details.csv").write_text(DETAILS)
        (tmp_path / "communication.json").write_text("{}")
        for given in ([tmp_path], [tmp_path / "kernel_details.csv", tmp_path / "trace_view.json"]):
            found = analyze(*given)
            line = found.timeline
            assert line.about.warnings == ()
            assert line.about.kept["kernel"] == 3
            products = np.flatnonzero([line.names[code] == "MatMul1" for code in line.name.tolist()])
            codes = line.detail.shape.at(products)
            assert [line.detail.shapes[code].dims[0] for code in codes] == [(64, 32), (64, 32)]
            (measured,) = found.measured.kernels
            assert measured.counters.compute == pytest.approx(0.7)
            assert measured.counters.flops_per_s == pytest.approx(1e6 / 50e-6)
            assert measured.total_ns == 100_000

    def test_a_table_of_another_run_is_left_out(self, tmp_path: Path) -> None:
        write(ascend_trace(), tmp_path / "trace_view.json")
        (tmp_path / "kernel_details.csv").write_text(DETAILS.replace(str(AT)[:6], "160000"))
        warnings = read_timeline(tmp_path).about.warnings
        assert any("none of its 3 kernels" in one for one in warnings)

    def test_a_folder_of_ranks(self, tmp_path: Path) -> None:
        for rank in (2, 5):
            run = tmp_path / f"host_{rank}_ascend_pt"
            write(ascend_trace(), run / "ASCEND_PROFILER_OUTPUT" / "trace_view.json")
            (run / f"profiler_info_{rank}.json").write_text("{}")
        line = read_timeline(tmp_path)
        assert [row.rank for row in breakdown(line).chips] == [2, 5]
        assert all("ascend_pt" in one for one in line.about.sources)

    def test_odd_tables(self, tmp_path: Path) -> None:
        path = tmp_path / "kernel_details.csv"
        path.write_text(DETAILS.split("\n", 1)[0] + "\n")
        with pytest.raises(InputError, match="without kernels"):
            read_timeline(path)
        path.write_text(DETAILS + "5,1,x,y,AI_CORE,N/A,nan,1,,,,\n5,1,x,y,AI_CORE,-5,1e999,1,,,,\n1,2\n")
        line = read_timeline(path)
        assert line.about.dropped == {"kernels without a readable time": 2}
        path.write_bytes(gzip.compress(DETAILS.encode() * 50)[:-30])
        assert any("gzip" in one for one in read_timeline(path).about.warnings)


class TestXla:
    def test_ops_are_work_and_the_rest_is_marks(self, tmp_path: Path) -> None:
        """Per chip: 140 of products and 40 of all-reduce in 190; the loop around them is no work of its own."""
        line = read_timeline(write(xla_trace(), tmp_path / "host.trace.json.gz"))
        found = breakdown(line)
        assert [(row.process, row.rank) for row in found.chips] == [("chip 0", 0), ("chip 1", 1)]
        for row in found.chips:
            times = row.times
            assert (times.span_ns, times.idle_ns, times.compute_ns) == (190_000, 10_000, 140_000)
            assert (times.communication_ns, times.copy_ns) == (40_000, 60_000)
        assert {one.id for one in found.classes} == {"matmul", "collective", "memcpy"}
        assert line.about.format == "XLA trace JSON"
        assert line.about.kept["python"] == 1
        assert line.about.warnings == ()

    def test_steps_of_the_steps_thread(self, tmp_path: Path) -> None:
        line = read_timeline(write(xla_trace(), tmp_path / "t.json"))
        assert np.unique(line.step[line.is_work]).tolist() == [4, 5]

    def test_streams_of_a_gpu_are_the_work(self, tmp_path: Path) -> None:
        trace = xla_trace(chips=1)
        text = json.dumps(trace).replace("/device:TPU:", "/device:GPU:")
        trace = json.loads(text)
        trace["traceEvents"] += [
            {"ph": "M", "name": "thread_name", "pid": 3, "tid": 9, "args": {"name": "Stream #9(Compute,MemcpyD2D)"}},
            {
                "ph": "X",
                "name": "cuLaunchKernel",
                "pid": 700,
                "tid": 1,
                "ts": 1,
                "dur": 2,
                "args": {"correlation_id": 4},
            },
            {"ph": "X", "name": "gemm", "pid": 3, "tid": 9, "ts": 5, "dur": 60, "args": {"correlation_id": 4}},
            {"ph": "X", "name": "MemcpyD2D", "pid": 3, "tid": 9, "ts": 70, "dur": 6},
        ]
        line = read_timeline(write(trace, tmp_path / "t.json"))
        times = breakdown(line).total
        assert (times.compute_ns, times.copy_ns, times.communication_ns) == (60_000, 6_000, 0)
        assert int((line.launch >= 0).sum()) == 1


class TestXlaOnItsHost:
    def events(self) -> list[dict[str, Any]]:
        """Two steps of one host that is two devices: an op each, 10 us apart."""
        names = {"process_name": "/host:CPU", "thread_name": "tf_XLAEigen/1"}
        made: list[dict[str, Any]] = [
            {"ph": "M", "pid": 7, "tid": 1, "name": key, "args": {"name": name}} for key, name in names.items()
        ]
        for step in (0, 1):
            at = 100.0 * step
            made.append(
                {"ph": "X", "pid": 7, "tid": 2, "name": "train", "ts": at, "dur": 90, "args": {"step_num": str(step)}}
            )
            for device in (0, 1):
                args = {"hlo_op": "dot.3", "hlo_module": "jit_step", "device_ordinal": str(device)}
                made.append(
                    {"ph": "X", "pid": 7, "tid": 1, "name": "dot.3", "ts": at + 10 * device, "dur": 5, "args": args}
                )
        return [*made, {"ph": "X", "pid": 7, "tid": 2, "name": "$builtins len", "ts": 1, "dur": 1}, {}]

    def test_its_ops_are_work(self, tmp_path: Path) -> None:
        line = read_timeline(write({"traceEvents": self.events()}, tmp_path / "t.json"))
        work = np.flatnonzero(line.is_work)
        assert [line.processes[code] for code in line.process[work].tolist()] == ["chip 0", "chip 1"] * 2
        assert line.step[work].tolist() == [0, 0, 1, 1]
        assert [line.kinds[code] for code in line.kind.tolist() if line.kinds[code] != "kernel"].count("python") == 1
        assert (line.about.format, line.about.warnings, line.about.dropped) == ("XLA trace JSON", (), {})

    def test_where_there_is_a_device_its_host_runs_no_ops(self, tmp_path: Path) -> None:
        device = {"ph": "M", "pid": 9, "name": "process_name", "args": {"name": "/device:TPU:0"}}
        ops = {"ph": "M", "pid": 9, "tid": 1, "name": "thread_name", "args": {"name": "XLA Ops"}}
        span = {"ph": "X", "pid": 9, "tid": 1, "name": "fusion.1", "ts": 0, "dur": 3}
        line = read_timeline(write({"traceEvents": [device, ops, *self.events(), span]}, tmp_path / "t.json"))
        assert [line.names[code] for code in line.name[line.is_work].tolist()] == ["fusion.1"]

    def test_a_folder_of_the_profiler(self, tmp_path: Path) -> None:
        """The same trace twice is one; two runs are refused by name."""
        for name in ("perfetto_trace.json.gz", "vm.trace.json.gz"):
            write({"traceEvents": self.events()}, tmp_path / "plugins" / "profile" / "2026_01_02" / name)
        assert read_timeline(tmp_path).about.sources == ("vm.trace.json.gz",)
        write({"traceEvents": self.events()}, tmp_path / "plugins" / "profile" / "2026_01_03" / "vm.trace.json.gz")
        with pytest.raises(InputError, match="2026_01_02, 2026_01_03"):
            read_timeline(tmp_path)
