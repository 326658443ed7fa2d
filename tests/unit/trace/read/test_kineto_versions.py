"""Kineto traces of other versions and machines: what older profilers, hosts without a device and MTIA write."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from traces import Recipe, make, write

from ridgeline.core.errors import InputError
from ridgeline.trace.analysis.breakdown import breakdown
from ridgeline.trace.analysis.phases import mark_phases
from ridgeline.trace.analyze_traces import analyze
from ridgeline.trace.read.readers import read_timeline
from ridgeline.trace.timeline import PHASES

SHARED = Path(__file__).parents[5] / "shared" / "traces"
shared = pytest.mark.skipif(not SHARED.is_dir(), reason="no ../shared/traces beside the checkout")


def span(cat: str, name: str, pid: Any, tid: Any, at: float, length: float, **args: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": tid, "ts": at, "dur": length, "args": args}


def launched(link: int, kernel: str, op: str, at: float, length: float, around: str = "", **args: Any) -> list[Any]:
    """A kernel, the call that launched it, the op around the call, and a span around that."""
    outer = [span("user_annotation", around, 9, 1, at - 9, 8, **args)] if around else []
    return [
        *outer, span("cpu_op", op, 9, 1, at - 8, 6),
        span("cuda_runtime", "cudaLaunchKernel", 9, 1, at - 7, 2, correlation=link),
        span("kernel", kernel, 0, 7, at, length, correlation=link, stream=7, device=0),
    ]  # fmt: skip


class TestLaunchedBy:
    """Classes and records come from what launched a kernel."""

    @pytest.mark.parametrize(
        ("kernel", "op", "id"),
        [
            ("igemm_fwd_gtcx_nhwc_bf16", "aten::miopen_convolution", "convolution"),
            ("SubTensorOpWithScalar1d", "aten::miopen_convolution", "convolution"),
            ("mystery_kernel", "aten::batch_norm", "norm"),
            ("void vllm::reshape_and_cache_flash_kernel<bf16>", "_C_cache_ops::reshape_and_cache_flash", "kernel-copy"),
            ("mystery", "aten::addmm", "matmul"),
            ("vectorized_elementwise_kernel<Fill>", "aten::fill_", "kernel-copy"),
            ("mystery", "vllm::unified_attention_with_output", "attention"),
            ("triton_poi_fused_addmm_gelu_view_3", "triton_poi_fused_addmm_gelu_view_3", "elementwise"),
            ("ncclDevKernel_AllReduce", "aten::mm", "nccl"),
            ("fc-dtype_Float", "my::op", "matmul"),
        ],
    )
    def test_class(self, kernel: str, op: str, id: str, tmp_path: Path) -> None:
        line = read_timeline(write({"traceEvents": launched(5, kernel, op, 100, 10)}, tmp_path / "t.json"))
        row = int(np.flatnonzero(line.of_kind("kernel"))[0])
        assert line.classes[line.class_[row]] == id

    def test_an_all_to_all_is_no_pipeline(self, tmp_path: Path) -> None:
        """NCCL runs it as SendRecv; `nccl:all_to_all` around the launch says what it is, and how much it moves."""
        files = []
        for rank in range(4):
            events = []
            for place in range(3):
                at = 1000 + 200 * place + 5 * rank
                shape = {"Input Dims": [[6144]], "Input type": ["float"]}
                events += launched(
                    10 + place,
                    "ncclKernel_SendRecv",
                    "record_param_comms",
                    at,
                    100 - 5 * rank,
                    "nccl:all_to_all",
                    **shape,
                )
                events += launched(20 + place, "volta_sgemm", "aten::mm", at + 110, 20)
            told = {"rank": rank, "world_size": 4, "backend": "nccl"}
            files.append(write({"distributedInfo": told, "traceEvents": events}, tmp_path / f"rank{rank}.json"))
        found = analyze(*files)
        record = found.timeline.detail.collectives[0]
        assert (record.name, record.in_elements, record.dtype, record.group_size) == ("all_to_all", 6144, "Float", 4)
        assert (found.ranks.collectives, found.ranks.pairs, found.ranks.alone, found.ranks.bubbles) == (3, 0, 0, ())
        assert found.ranks.stragglers[0].rank == 3


class TestOld:
    def test_steps_and_backward_of_pytorch_1_8(self, tmp_path: Path) -> None:
        def kernel(link: int, op: str, thread: str, at: float) -> list[Any]:
            return [
                span("Operator", op, 9, thread, at, 8),
                span("Runtime", "cudaLaunchKernel", 9, thread, at + 1, 2, correlation=link),
                span("Kernel", "k", 0, "stream 7", at + 10, 5, correlation=link, stream=7),
            ]  # fmt: skip

        events = [
            span("Operator", "ProfilerStep#5", 9, "1", 0, 100), *kernel(1, "aten::conv2d", "1", 10),
            *kernel(2, "CudnnConvolutionBackward", "2", 40), span("Operator", "ProfilerStep#6", 9, "1", 100, 100),
            *kernel(3, "aten::conv2d", "1", 110),
        ]  # fmt: skip
        line = mark_phases(read_timeline(write({"traceEvents": events}, tmp_path / "t.json")))
        rows = np.flatnonzero(line.of_kind("kernel"))
        assert line.step[rows].tolist() == [5, 5, 6]
        assert [PHASES[code] for code in line.phase[rows]] == ["forward", "backward", "forward"]

    @shared
    def test_the_real_one(self) -> None:
        line = mark_phases(read_timeline(SHARED / "kineto" / "v100_resnet_torch19_worker0.json.gz"))
        assert sorted({row.step for row in breakdown(line).steps}) == [5, 6, 7, 8, 9, 10]
        time = np.bincount(line.phase[line.is_work], weights=line.durations_ns(line.is_work.nonzero()[0]), minlength=5)
        assert time[PHASES.index("backward")] > time[PHASES.index("forward")] > 0


class TestCaptures:
    def events(self, at: float, pid: int = 9) -> list[Any]:
        return [span("kernel", "gemm", 0, 7, at, 10, stream=7), span("cpu_op", "aten::mm", pid, 1, at - 5, 3)]

    def test_two_captures_of_a_worker_are_one_rank(self, tmp_path: Path) -> None:
        for stamp, at in (("1694128201545", 1e6), ("1694128681545", 481e6)):
            write({"traceEvents": self.events(at)}, tmp_path / f"worker0.{stamp}.pt.trace.json")
        line = read_timeline(tmp_path)
        assert line.tables.ranks == (0,) * len(line.processes)
        assert line.about.sources == ("worker0.1694128681545.pt.trace.json",)
        assert "another capture of the rank" in line.about.warnings[0]
        assert "8 minutes" in line.about.warnings[0]

    def test_two_of_the_same_number_at_one_time_are_two_ranks(self, tmp_path: Path) -> None:
        for place in range(2):
            told = {"rank": 0, "world_size": 1}
            write(
                {"distributedInfo": told, "traceEvents": self.events(100 + place, 9 + place)},
                tmp_path / f"{place}.json",
            )
        line = read_timeline(tmp_path)
        assert sorted(set(line.tables.ranks)) == [0, 1]
        assert "both say rank 0" in line.about.warnings[-1]


class TestWithoutDevice:
    def test_gloo_is_communication(self, tmp_path: Path) -> None:
        events = [
            span("cpu_op", "aten::mm", 9, 1, 0, 100), span("cpu_op", "c10d::allreduce_", 9, 1, 100, 5),
            span("user_annotation", "gloo:all_reduce", 9, 2, 102, 200), span("cpu_op", "aten::add", 9, 1, 105, 50),
        ]  # fmt: skip
        found = breakdown(read_timeline(write({"traceEvents": events}, tmp_path / "t.json")))
        assert (found.total.communication_ns, found.total.exposed_communication_ns) == (202_000, 152_000)

    def test_workers_of_a_loader_are_no_ranks(self, tmp_path: Path) -> None:
        events = [span("cpu_op", "aten::mm", 9, 1, 0, 100), span("cpu_op", "aten::stack", 77, 1, 0, 30)]
        found = analyze(write({"traceEvents": events}, tmp_path / "t.json"))
        assert [row.process for row in found.breakdown.chips] == ["rank 0 host 9"]
        assert not any("rank" in one.what for one in found.findings)

    def test_a_process_named_gpu2_is_a_chip(self, tmp_path: Path) -> None:
        events = [
            {"ph": "M", "name": "process_name", "pid": 8, "tid": 0, "args": {"name": "GPU2"}},
            span("", "elementwise_kernel", 8, 0, 10, 5), span("", "hipGetDevicePropertiesR0600", 1, 0, 0, 5),
        ]  # fmt: skip
        found = breakdown(read_timeline(write({"traceEvents": events}, tmp_path / "t.json")))
        assert [(one.id, one.total_ns) for one in found.classes] == [("elementwise", 5000)]


def test_mtia_copies_and_waits(tmp_path: Path) -> None:
    events = [
        span("mtia_ccp_events", "fc-dtype_Float", 0, 1, 0, 50), span("mtia_ccp_events", "dma_request", 0, 2, 20, 60),
        span("mtia_ccp_events", "event_wait", 0, 1, 50, 40),
    ]  # fmt: skip
    found = breakdown(read_timeline(write({"traceEvents": events}, tmp_path / "t.json"))).total
    assert (found.compute_ns, found.copy_ns, found.idle_ns) == (50_000, 60_000, 0)


@shared
def test_the_vendors_figures_of_an_ascend_run() -> None:
    """The reader agrees with the Overlap Analysis of each of the three iterations."""
    for iteration in (1, 2, 3):
        path = SHARED / "ascend" / "PROF_alexnet" / "device_0" / "timeline" / f"msprof_0_2_{iteration}.json"
        told: dict[str, float] = {}
        for event in json.loads(path.read_text()):
            if event.get("pid") == 1003612 and event["ph"] == "X":
                told[event["name"]] = told.get(event["name"], 0) + float(event["dur"])
        line = read_timeline(path)
        found = breakdown(line).total
        assert found.compute_ns / 1000 == pytest.approx(told["Computing"], abs=0.5)
        assert found.communication_ns / 1000 == pytest.approx(told["Communication"], abs=0.5)
        assert found.exposed_communication_ns / 1000 == pytest.approx(told["Communication(Not Overlapped)"], abs=0.5)
        assert found.idle_ns / 1000 == pytest.approx(told["Free"], abs=0.5)
        assert line.about.warnings == ()


@shared
def test_eight_ranks_of_a_recommender() -> None:
    found = analyze(SHARED / "kineto" / "dlrm_8ranks").ranks
    assert (found.collectives, found.unmatched, found.alone, found.bubbles) == (8, 0, 0, ())
    assert found.stragglers[0].rank == 7


def test_files_that_ran_one_after_the_other_are_doubted(tmp_path: Path) -> None:
    """Two captures whose names do not tell it, or a run before and one after a change."""
    for name, start in (("before", 1e6), ("after", 9e8)):
        write(make(Recipe(start_us=start)), tmp_path / f"{name}.json")
    assert "no two overlap in time" in " ".join(read_timeline(tmp_path).about.warnings)
    write(make(Recipe(start_us=9e8 + 100)), tmp_path / "other.json")
    assert read_timeline(tmp_path / "after.json", tmp_path / "other.json").about.warnings == ()


def test_ranks_that_are_missing_are_told(tmp_path: Path) -> None:
    for rank in (0, 3):
        write(make(Recipe(rank=rank, world=8)), tmp_path / f"rank{rank}.json")
    assert [one for one in read_timeline(tmp_path).about.warnings if one.startswith("2 of 8 ranks are here")]
    assert read_timeline(tmp_path / "rank3.json").about.warnings == (), "one rank alone is what most people have"


@pytest.mark.parametrize(
    ("name", "says"),
    [("run_ascend_pt", "analyse"), ("PROF_000001", "msprof --export=on"), ("empty", "a folder without traces")],
)
def test_a_folder_without_traces_says_how_to_have_them(name: str, says: str, tmp_path: Path) -> None:
    (tmp_path / name / "device_0").mkdir(parents=True)
    with pytest.raises(InputError, match=says):
        read_timeline(tmp_path / name)


ODD = {
    "an empty list": b"[]",
    "no list": b'{"traceEvents": null}',
    "one event": b'{"traceEvents": [{"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": 1, "dur": 2}]}',
    "times that are none": b'[{"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": NaN, "dur": 2},'
    b'{"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": 1e300, "dur": 2},'
    b'{"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": "5", "dur": "2"}]',
    "negative durations": b'[{"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": 1, "dur": -2}]',
    "huge threads": b'[{"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": %d, "ts": 1, "dur": 2}]' % 10**30,
    "deep": b'{"traceEvents": [{"ph": "X", "args": ' + b"[" * 5000 + b"]" * 5000 + b"}]}",
    "lists for arguments": b'[{"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "ts": 1, "dur": 2, "args": [1]}]',
    "UTF-16": "[]".encode("utf-16"),
    "a number": b"12",
}


@pytest.mark.parametrize("what", ODD)
def test_odd_files_are_read_or_refused_by_name(what: str, tmp_path: Path) -> None:
    (tmp_path / "odd.json").write_bytes(ODD[what])
    right = {"one event": 1, "times that are none": 1, "huge threads": 1, "lists for arguments": 1}
    if what in right:
        assert int(read_timeline(tmp_path / "odd.json").is_work.sum()) == right[what]
    else:
        with pytest.raises(InputError, match=r"odd\.json"):
            read_timeline(tmp_path / "odd.json")
