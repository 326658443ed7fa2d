"""Analyses find what the generator put in: causes of gaps, rates, findings, classes."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from traces import Recipe, make, straggling, write

from ridgeline.core.errors import InputError
from ridgeline.report.analyze import analysis_sheet
from ridgeline.trace import Span, Timeline
from ridgeline.trace.analysis.op_flops import op_work
from ridgeline.trace.analyze import Analysis, analyze
from ridgeline.trace.classes import built_in, classify, read_rules
from ridgeline.trace.graph.call_stack import parents
from ridgeline.trace.intervals import cover, covered, overlap_length
from ridgeline.trace.side_tables import RecordedShape

KEYS = {
    "span_us", "idle_us", "compute_us", "communication_us", "exposed_communication_us", "overlap_fraction", "policy",
    "classes", "top_ops", "idle_causes", "findings",
}  # fmt: skip

HEADS = ((1, 4, 8, 16),) * 4
IMAGE = ((2, 3, 8, 8), (6, 3, 3, 3), ())
SCALARS = ("",) * 11


def run(recipe: Recipe, folder: Path) -> Analysis:
    return analyze(write(make(recipe), folder / "t.json"))


class TestIdle:
    @pytest.mark.parametrize(
        ("cause", "word"), [("host", "host"), ("sync", "synchronisation"), ("data", "data loading")]
    )
    def test_gaps_have_the_cause_they_were_given(self, cause: str, word: str, tmp_path: Path) -> None:
        recipe = Recipe(cause=cause, gap_us=60.0)
        found = {one.cause: one for one in run(recipe, tmp_path).idle}
        assert found[word].gaps == recipe.steps * recipe.layers - 1
        assert found[word].idle_ns == (recipe.steps * recipe.layers - 1) * 60_000
        assert list(found) == [word]

    def test_causes_add_up_to_idle(self, tmp_path: Path) -> None:
        for recipe in (Recipe(), Recipe(graph=True), Recipe(gap_us=1.0, unlinked=2), Recipe(hidden_us=0.0)):
            found = run(recipe, tmp_path)
            assert sum(one.idle_ns for one in found.idle) == found.breakdown.total.idle_ns

    def test_a_graph_is_not_the_hosts_fault(self, tmp_path: Path) -> None:
        found = {one.cause for one in run(Recipe(graph=True, gap_us=2.0), tmp_path).idle}
        assert found <= {"between kernels", "host"}

    def test_work_that_was_launched_waits_for_communication(self) -> None:
        found = {one.cause for one in run_spans(after="ncclAllReduce")}
        assert found == {"communication"}
        assert {one.cause for one in run_spans(after="gemm")} == {"dependency"}


def run_spans(after: str) -> tuple[object, ...]:
    """A kernel launched at 0 that starts 50 us after another ended."""
    from ridgeline.trace.analysis.idle import gaps_of, idle_causes
    from ridgeline.trace.policy import counted_rows

    spans = [
        Span(process="host", stream="t", name="cudaLaunchKernel", kind="runtime", start_ns=0, duration_ns=1_000),
        Span(process="chip", stream="9", name=after, kind="kernel", start_ns=5_000, duration_ns=20_000),
        Span(process="chip", stream="7", name="gemm", kind="kernel", start_ns=75_000, duration_ns=20_000),
    ]
    line = Timeline.of(spans)
    line = classify(replace(line, launch=np.array([-1, 0, 0], np.int32)))
    return idle_causes(gaps_of(line, built_in(), counted_rows(line)))


class TestLaunches:
    def test_queue_and_delay(self, tmp_path: Path) -> None:
        recipe = Recipe(gap_us=60.0)
        (found,) = run(recipe, tmp_path).launches
        many = recipe.steps * recipe.layers
        assert (found.spans, found.calls, found.unlinked) == (3 * many, 3 * many, 0)
        assert found.call_ns == 1500
        # launched -4.5, -1 and 1.5 us before or after the product starts at 0; the reduction starts at 60, the
        # elementwise kernel at 100: of the three only the last starts with nothing queued behind it
        assert found.empty_queue == pytest.approx(1 / 3)
        assert found.queue_depth == pytest.approx(2 / 3)

    def test_replays(self, tmp_path: Path) -> None:
        recipe = Recipe(graph=True)
        (found,) = run(recipe, tmp_path).launches
        assert (found.graph_replays, found.graph_spans) == (recipe.steps, 3 * recipe.steps * recipe.layers)


class TestRates:
    def test_rate_and_roof_of_the_generated_product(self, tmp_path: Path) -> None:
        recipe = Recipe()
        found = run(recipe, tmp_path)
        assert found.chip is not None
        assert found.chip.id == "h100-sxm"
        (rate,) = (one for one in found.rates if one.op == "aten::mm")
        flops = 2 * 4096 * 4096 * 1024
        assert rate.flops == flops
        assert rate.flops_per_s == pytest.approx(flops / 100e-6)
        assert rate.size_bytes == 2 * (4096 * 1024 * 2 + 4096 * 4096)
        assert rate.bound == "compute"
        assert rate.efficiency == pytest.approx(flops / 989e12 / 100e-6, rel=0.01)

    def test_a_chip_can_be_named(self, tmp_path: Path) -> None:
        path = write(make(Recipe(chip="Something New")), tmp_path / "t.json")
        assert analyze(path).chip is None
        assert analyze(path).rates[0].efficiency is None
        named = analyze(path, chip="mi300x")
        assert named.chip is not None
        assert named.rates[0].efficiency is not None
        with pytest.raises(InputError, match="mi300x"):
            analyze(path, chip="mi300xx")

    @pytest.mark.parametrize(
        ("op", "dims", "concrete", "flops"),
        [
            ("aten::addmm", ((7,), (3, 5), (5, 7)), (), 2 * 3 * 5 * 7),
            ("aten::bmm", ((2, 3, 5), (2, 5, 7)), (), 2 * 2 * 3 * 5 * 7),
            ("aten::linear", ((2, 3, 5), (7, 5)), (), 2 * 6 * 5 * 7),
            ("aten::_scaled_dot_product_flash_attention", HEADS[:3], (*SCALARS[:4], "True"), 2 * 4 * 8 * 8 * 32 / 2),
            ("aten::_scaled_dot_product_flash_attention", HEADS[:3], (*SCALARS[:4], "False"), 2 * 4 * 8 * 8 * 32),
            ("aten::_scaled_dot_product_flash_attention_backward", HEADS, (*SCALARS, "False"), 5 * 4 * 8 * 8 * 32),
            ("aten::convolution", IMAGE, (*SCALARS[:3], "[1, 1]", "[1, 1]", "[1, 1]"), 2 * 2 * 6 * 64 * 27),
            ("aten::convolution", IMAGE, (*SCALARS[:3], "[2, 2]", "[0, 0]", "[1, 1]"), 2 * 2 * 6 * 9 * 27),
        ],
    )  # fmt: skip
    def test_formulas(
        self, op: str, dims: tuple[tuple[int, ...], ...], concrete: tuple[str, ...], flops: float
    ) -> None:
        found = op_work(op, RecordedShape(dims=dims, types=("float",) * len(dims), concrete=concrete))
        assert found is not None
        assert found.flops == flops

    @pytest.mark.parametrize("dims", [(), ((3,),), ((3, 4), (5, 6)), ((3, 4), ((4, 5),))])
    def test_operands_that_do_not_fit_have_no_rate(self, dims: tuple[tuple[int, ...], ...]) -> None:
        assert op_work("aten::mm", RecordedShape(dims=dims, types=("float",) * 2)) is None

    def test_nesting_by_hand(self) -> None:
        times = {"a": (0, 100), "b": (10, 40), "c": (12, 20), "d": (30, 35), "e": (60, 90), "f": (200, 210)}
        spans = [
            Span(process="p", stream="t", name=name, kind="host", start_ns=start, duration_ns=end - start)
            for name, (start, end) in times.items()
        ]
        line = Timeline.of([*spans, replace(spans[1], stream="other")])
        names = [line.names[code] for code in line.name]
        above = parents(line)
        tree = {
            (names[row], line.streams[line.stream[row]]): names[above[row]] if above[row] >= 0 else ""
            for row in range(len(line))
        }
        assert tree == {
            ("a", "t"): "", ("b", "t"): "a", ("c", "t"): "b", ("d", "t"): "b", ("e", "t"): "a", ("f", "t"): "",
            ("b", "other"): "",
        }  # fmt: skip


class TestFindings:
    def test_a_late_host_is_the_first_finding(self, tmp_path: Path) -> None:
        recipe = Recipe(gap_us=100.0, layers=20)
        first = run(recipe, tmp_path).findings[0]
        assert first.what.startswith("idle, host")
        assert first.share_of_step == pytest.approx(100 / recipe.layer_us, rel=0.02)
        assert {span.name for span in first.evidence} == {recipe.names[0]}

    @pytest.mark.parametrize("told", [{}, {"record_shapes": 0}, {"record_shapes": 1, "with_stack": 1}])
    def test_a_profiler_that_slows_the_host_is_named(self, told: dict[str, int], tmp_path: Path) -> None:
        """On an H200 a step of GPT-3 125M took 18.9 ms, and 33.6 with shapes and memory recorded."""
        trace = make(Recipe(gap_us=100.0, layers=20)) | told
        first = analyze(write(trace, tmp_path / "trace.json")).findings[0]
        assert ("recording shapes and stacks slows the host" in first.action) == ("with_stack" in told)

    def test_exposed_communication_is_found_with_its_spans(self, tmp_path: Path) -> None:
        # one launch a step: with a launch a kernel the host would be what holds the next layer back
        recipe = Recipe(gap_us=0.5, hidden_us=10.0, reduce_us=100.0, graph=True, steps=1, layers=50)
        first = run(recipe, tmp_path).findings[0]
        assert first.what.startswith("exposed communication: 90%")
        assert {span.name for span in first.evidence} == {recipe.names[2]}
        # every layer but the last starts when the compute before it ends: 49 x 90.5 us of 50 x 210.5 - 0.5 us
        assert first.predicted_gain == pytest.approx(49 * 90.5 / (50 * 210.5 - 0.5), abs=1e-9)

    def test_a_straggler_is_named(self, tmp_path: Path) -> None:
        for recipe in straggling(4, 40.0, Recipe(gap_us=0.5)):
            write(make(recipe), tmp_path / f"rank{recipe.rank}.json")
        found = analyze(tmp_path)
        (uneven,) = (one for one in found.findings if one.what.startswith("uneven ranks"))
        assert "rank 3" in uneven.what
        assert uneven.share_of_step == pytest.approx(30 / Recipe(gap_us=0.5, matmul_us=140.0).layer_us, rel=0.01)

    def test_findings_are_ranked_and_name_spans(self, tmp_path: Path) -> None:
        found = run(Recipe(gap_us=30.0), tmp_path)
        gains = [one.predicted_gain for one in found.findings]
        assert gains == sorted(gains, reverse=True)
        assert all(one.evidence and one.action for one in found.findings)


class TestClasses:
    @pytest.mark.parametrize(
        ("name", "id"),
        [
            ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL", "nccl"),
            ("void deep_ep::internode_ll::dispatch<true, 3, 7168>", "expert-exchange"),
            ("multimem_all_reduce_kernel", "symmetric-memory"),
            ("nvshmemi_transfer_rma_put", "symmetric-memory"),
            ("void vllm::cross_device_reduce_2stage<nv_bfloat16, 8>", "custom-all-reduce"),
            ("mscclpp::allreduce8", "mscclpp"),
            ("hcom_allReduce__445_0", "hccl"),
            ("nvjet_sm90_tst_128x256_64x4", "matmul"),
            ("Cijk_Alik_Bljk_BBS_BH_MT256x192x64", "matmul"),
            ("void pytorch_flash::flash_fwd_kernel<cutlass::bfloat16_t>", "attention"),
            ("void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<float>", "norm"),
            ("triton_red_fused__fused_rms_norm_0", "norm"),
            ("triton_poi_fused_mul_silu_5", "elementwise"),
            ("triton_poi_fused__unsafe_view_cat_mul_silu_silu_backward_split_view_0", "elementwise"),
            ("void moe_align_block_size_kernel<int>", "moe-routing"),
            ("multi_tensor_apply_kernel<TensorListMetadata<4>, AdamFunctor<float>>", "optimizer"),
            ("cunn_SoftMaxForward<LogSoftMaxForwardEpilogue>", "loss"),
            ("void at::native::vectorized_gather_kernel<16, long>(char*)", "embedding"),
            ("CatArrayBatchedCopy<float>", "kernel-copy"),
            ("void at::native::reduce_kernel<512, 1, sum>", "reduction"),
            ("zxcv_9000", "unknown"),
        ],
    )  # fmt: skip
    def test_names(self, name: str, id: str) -> None:
        span = Span(process="c", stream="s", name=name, kind="kernel", start_ns=0, duration_ns=1)
        line = classify(Timeline.of([span]))
        assert line.classes[line.class_[0]] == id

    def test_streams_count_where_a_class_is_limited_to_them(self, tmp_path: Path) -> None:
        """Of measured work too, whichever stream stands first in the table."""
        path = tmp_path / "own.toml"
        path.write_text('[[class]]\nid = "side"\ngroup = "copy"\nstreams = ["9"]\n')
        spans = [
            Span(process="c", stream=stream, name="gemm", kind="kernel", start_ns=0, duration_ns=1) for stream in "789"
        ]
        line = classify(Timeline.of(spans), read_rules(path))
        assert [line.classes[code] for code in line.class_] == ["matmul", "matmul", "side"]

    def test_a_users_file_comes_first(self, tmp_path: Path) -> None:
        path = tmp_path / "own.toml"
        path.write_text('[[class]]\nid = "ours"\ngroup = "communication"\nnames = ["^zxcv_"]\n')
        trace = make(Recipe(names=("zxcv_1", "vectorized_elementwise", "ncclX")))
        found = analyze(write(trace, tmp_path / "t.json"), classes=path)
        assert found.breakdown.classes[0].id == "ours"
        assert found.breakdown.total.communication_ns > analyze(tmp_path / "t.json").breakdown.total.communication_ns
        assert [one.name for one in analyze(tmp_path / "t.json").breakdown.unknown] == ["zxcv_1"]

    @pytest.mark.parametrize(
        ("text", "says"),
        [
            ('[[class]]\nid = "x"\nnames = ["("]\n', "regular expression"),
            ('[[class]]\nid = "x"\ngroup = "comm"\nnames = ["a"]\n', "communication"),
            ('[[class]]\nid = "x"\n', "no pattern"),
            ("[x]\ny = 1\n", "[[class]]"),
            ('[[class]]\nid = "x"\nname = ["a"]\n', "names"),
        ],
    )
    def test_a_wrong_file_is_explained(self, text: str, says: str, tmp_path: Path) -> None:
        path = tmp_path / "own.toml"
        path.write_text(text)
        with pytest.raises(InputError, match=re.escape(says)):
            read_rules(path)


def test_intervals_against_a_bitmap() -> None:
    random = np.random.default_rng(7)
    for _ in range(200):
        sets = []
        for _ in range(2):
            start = random.integers(0, 60, random.integers(0, 9))
            end = start + random.integers(0, 12, len(start))
            bits = np.zeros(100, bool)
            for one, other in zip(start, end, strict=True):
                bits[one:other] = True
            sets.append((cover(start, end), bits))
        (one, a), (other, b) = sets
        assert one.length == a.sum()
        assert overlap_length(one, other) == (a & b).sum()
        assert covered(one, np.array([10, 20]), np.array([30, 20])).tolist() == [a[10:30].sum(), 0]


def test_the_sheet_has_its_keys_and_is_json(tmp_path: Path) -> None:
    sheet = analysis_sheet(run(Recipe(), tmp_path))
    assert set(sheet) >= KEYS
    assert set(sheet["findings"][0]) == {"what", "evidence", "share_of_step", "predicted_gain", "action"}
    json.dumps(sheet, allow_nan=False)


def test_a_prediction_is_analysed_too() -> None:
    spans = [
        Span(process="stage 0", stream="compute", name="F0", kind="forward", start_ns=0, duration_ns=2_000),
        Span(process="stage 0", stream="tp", name="F0", kind="exposed", start_ns=2_000, duration_ns=1_000),
        Span(process="stage 1", stream="compute", name="F0", kind="forward", start_ns=4_000, duration_ns=2_000),
        Span(process="stage 1", stream="pp", name="F1B0", kind="overlapped", start_ns=6_000, duration_ns=3_000),
        Span(process="stage 1", stream="compute", name="waiting", kind="waiting", start_ns=9_000, duration_ns=1_000),
    ]
    found = {row.process: row.times for row in analyze(Timeline.of(spans, predicted=True)).breakdown.chips}
    assert found["stage 0"].exposed_communication_ns == 1_000
    assert found["stage 1"].compute_ns == 2_000
    assert found["stage 1"].communication_ns == 3_000
