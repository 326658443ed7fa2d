"""Engines' steps by their annotations, and what kernels behind graphs compute: by the capture, by the model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from traces import write

import ridgeline
from ridgeline.core.errors import InputError
from ridgeline.trace.analysis.inference import ServedModel, captures
from ridgeline.trace.analysis.op_kernels import library_op_kernel
from ridgeline.trace.analyze_traces import Analysis, analyze
from ridgeline.trace.read.readers import read_timeline
from ridgeline.trace.timeline import RecordedShape

SHARED = Path(__file__).parents[5] / "shared" / "traces" / "kineto"
BF16, FP8 = "c10::BFloat16", "c10::Float8_e4m3fn"
TINY = ServedModel(
    name="tiny", layers=3, hidden=256, heads=4, kv_heads=2, head_dim=64, vocab=1000, ffn=512, windows=(0,)
)
LAYER = ("Cijk_qkv", "rotary_embedding_kernel", "store_kvcache", "paged_attention", "Cijk_o", "rmsnorm_kernel",
         "Cijk_up", "act_and_mul_kernel", "Cijk_down", "rmsnorm_kernel")  # fmt: skip


def span(cat: str, name: str, pid: int, tid: int, at: float, length: float, **args: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": tid, "ts": at, "dur": length, "args": args}


def replays(*marks: str, gap: float = 1000.0) -> dict[str, Any]:
    """A step for each annotation: one graph launch, three layers of kernels of 10 us, an output product of 20."""
    events = []
    for place, mark in enumerate(marks):
        at, link = 1000 + gap * place, 7 + place
        events.append(span("user_annotation", mark, 9, 1, at, 500))
        events.append(span("cuda_runtime", "hipGraphLaunch", 9, 1, at + 5, 5, correlation=link))
        for index, name in enumerate(LAYER * 3):
            events.append(span("kernel", name, 0, 3, at + 20 + 10 * index, 10, correlation=link, stream=3))
        events.append(span("kernel", "Cijk_head", 0, 3, at + 320, 20, correlation=link, stream=3))
    return {"traceEvents": events}


class TestSteps:
    def test_a_decode_and_a_mixed_step(self, tmp_path: Path) -> None:
        """q k of 4 requests over 100 tokens each is 400; of a prompt of 10 tokens, 10 x 10 less the mask's 45 pairs."""
        found = analyze(write(replays(
            "execute_4_context_0(sq0sk0sqsq0sqsk0)_generation_4(sq4sk400sqsq4sqsk400)",
            "execute_14_context_1(sq10sk10sqsq100sqsk100)_generation_4(sq4sk404sqsq4sqsk404)",
            "execute_context_0(0)_generation_4(4)",
        ), tmp_path / "t.json")).inference  # fmt: skip
        assert found is not None
        assert [(step.kind, step.tokens, step.requests, step.graph) for step in found.steps] == [
            ("decode", 4, 4, True), ("mixed", 14, 5, True), ("decode", 4, 4, True),
        ]  # fmt: skip
        assert (found.steps[0].generation.scores, found.steps[1].context.scores) == (400, 55)
        assert (found.tpot_ns, found.prefill_ns) == (1_000_000, 340_000)
        assert found.graph_hits == 3

    @pytest.mark.parametrize(
        ("mark", "kind", "requests", "tokens"),
        [
            ("step[DECODE bs=32]", "decode", 32, 32),
            ("step[EXTEND bs=4 toks=8192]", "prefill", 4, 8192),
            ("execute_new_2_cached_30", "mixed", 32, 30),
            ("[Executor] _forward_step 12: 0 ctx reqs, 32 gen reqs", "decode", 32, 32),
        ],
    )
    def test_other_engines(self, mark: str, kind: str, requests: int, tokens: int, tmp_path: Path) -> None:
        found = analyze(write(replays(mark), tmp_path / "t.json")).inference
        assert found is not None
        (step,) = found.steps
        assert (step.kind, step.requests, step.tokens) == (kind, requests, tokens)

    def test_no_engine(self, tmp_path: Path) -> None:
        assert analyze(write(replays("forward"), tmp_path / "t.json")).inference is None


def covered(found: Analysis) -> float:
    return sum(rate.total_ns for rate in found.rates) / sum(one.total_ns for one in found.breakdown.names)


class TestModel:
    def test_sizes_of_the_model(self, tmp_path: Path) -> None:
        path = write(
            replays("execute_4_context_0(sq0sk0sqsq0sqsk0)_generation_4(sq4sk400sqsq4sqsk400)"), tmp_path / "t.json"
        )
        found = analyze(path, model=TINY, chip="mi300x")
        rates = {rate.op: rate for rate in found.rates}
        assert rates["qkv product"].flops == 2 * 4 * 256 * (4 + 2 * 2) * 64
        assert (rates["qkv product"].calls, rates["down product"].calls, rates["output product"].calls) == (3, 3, 1)
        assert rates["attention"].flops == 4 * 400 * 4 * 64
        assert rates["attention"].size_bytes == (4 * 2 * 256 + 400 * 2 * 128) * 2
        assert rates["activation"].size_bytes == 4 * 3 * 512 * 2
        assert rates["gate-up product"].bound == "memory"
        assert covered(found) == 1.0
        assert found.model is TINY

    def test_a_step_that_does_not_fit_has_no_rates(self, tmp_path: Path) -> None:
        path = write(replays("execute_context_0(0)_generation_4(4)"), tmp_path / "t.json")
        other = ServedModel(name="x", layers=4, hidden=256, heads=4, kv_heads=2, head_dim=64, vocab=10, ffn=512)
        assert analyze(path, model=other).rates == ()

    def test_by_id(self) -> None:
        assert ridgeline.served_model("gpt-oss-20b").windows[:2] == (128, 0)
        assert ridgeline.served_model("qwen3-8b:4").keys == 256
        with pytest.raises(InputError, match="ID:TP"):
            ridgeline.served_model("qwen3-8b:x")
        with pytest.raises(InputError, match="plain attention"):
            ridgeline.served_model("deepseek-v3")

    @pytest.mark.skipif(not SHARED.is_dir(), reason="no ../shared/traces beside the checkout")
    def test_real_engines(self) -> None:
        """Nine tenths of the chip's time has a rate; none runs beyond its roof."""
        for name, id in (("vllm_prefilldecode_graph", "gpt-oss-20b"), ("mi300_sglang_qwen3_8b_decode", "qwen3-8b")):
            found = ridgeline.analyze(SHARED / f"{name}.json.gz")
            assert found.model is not None
            assert (found.model.name, found.chip.id if found.chip else "") == (id, "mi300x")
            assert covered(found) > 0.9
            assert max(rate.efficiency or 0.0 for rate in found.rates) < 0.9


class TestCapture:
    def trace(self, tokens: tuple[int, ...] = (8, 16), *, replay: bool = True) -> dict[str, Any]:
        """Captures of a product and a norm for each count of tokens, then a replay of the one for up to 16."""
        events: list[dict[str, Any]] = []
        at = 0.0
        for many in tokens:
            events.append(span("cuda_runtime", "cudaStreamBeginCapture_v10000", 9, 1, at, 1))
            dims, kinds = {"Input Dims": [[many, 64], [64, 32]], "Input type": [BF16, BF16]}, {}
            events.append(span("cpu_op", "aten::mm", 9, 1, at + 2, 10, **dims, **kinds))
            events.append(span("cuda_runtime", "cudaLaunchKernel", 9, 1, at + 4, 2))
            dims = {"Input Dims": [[many, 32], [many, 32], [32], []], "Input type": [BF16, BF16, BF16, "Scalar"]}
            events.append(span("cpu_op", "_C::rms_norm", 9, 1, at + 13, 5, **dims))
            events.append(span("cuda_runtime", "cudaLaunchKernel", 9, 1, at + 14, 2))
            events.append(span("cuda_runtime", "cudaStreamEndCapture_v10000", 9, 1, at + 19, 1))
            at += 30
        if replay:
            mark = "execute_12_context_0(sq0sk0sqsq0sqsk0)_generation_12(sq12sk12sqsq12sqsk12)"
            events.append(span("user_annotation", mark, 9, 1, at, 100))
            events.append(span("cuda_runtime", "cudaGraphLaunch", 9, 1, at + 1, 2, correlation=3))
            for place, name in enumerate(("nvjet", "rms_norm_kernel")):
                events.append(span("kernel", name, 0, 7, at + 10 + 5 * place, 5, correlation=3, stream=7))
        return {"traceEvents": events}

    def test_the_smallest_that_holds_the_step(self, tmp_path: Path) -> None:
        path = write(self.trace(), tmp_path / "t.json")
        assert [one.tokens for one in captures(read_timeline(path))] == [8, 16]
        found = analyze(path)
        rates = {rate.op: (rate.operands, rate.flops, rate.by_model) for rate in found.rates}
        assert rates["aten::mm"] == ("16x64 64x32", 2 * 16 * 64 * 32, True)
        assert rates["_C::rms_norm"][0] == "16x32 16x32 32"
        assert covered(found) == 1.0

    def test_from_another_file(self, tmp_path: Path) -> None:
        capture = write(self.trace(replay=False), tmp_path / "capture.json")
        path = write(self.trace(()), tmp_path / "t.json")
        assert analyze(path).rates == ()
        assert covered(analyze(path, capture=capture)) == 1.0
        (tmp_path / "captures").mkdir()
        for many in (8, 16):  # a file for each, without begin and end
            trace = self.trace((many,), replay=False)
            trace["traceEvents"] = [one for one in trace["traceEvents"] if "Capture" not in one["name"]]
            write(trace, tmp_path / "captures" / f"bs{many}.json")
        found = analyze(path, capture=tmp_path / "captures")
        assert {rate.operands for rate in found.rates} == {"16x64 64x32", "16x32 16x32 32"}


@pytest.mark.parametrize(
    ("op", "dims", "types", "flops", "size"),
    [
        ("_C::cutlass_scaled_mm", ((8, 32), (8, 64), (64, 32), (8,)), (BF16, FP8, FP8, "float"),
         2 * 8 * 64 * 32, 8 * 64 + 64 * 32 + 8 * 32 * 2),
        ("sgl_kernel::fp8_scaled_mm", ((8, 64), (64, 32), (8,)), (FP8, FP8, "float"), 2 * 8 * 64 * 32,
         8 * 64 + 64 * 32 + 8 * 32 * 2),
        ("vllm::outplace_fused_experts", ((4, 16), (8, 64, 16), (8, 16, 32), (4, 2), (4, 2)),
         (BF16, BF16, BF16, "float", "int"), 2 * 4 * 2 * (64 * 16 + 16 * 32),
         8 * (64 * 16 + 16 * 32) * 2 + 4 * 16 * 2 * 3),
        ("aiter::fmha_v3_fwd", ((2, 10, 4, 64),) * 3, (BF16,) * 3, 2 * 2 * 4 * 10 * 10 * 128, 4 * 2 * 10 * 4 * 64 * 2),
        ("flash_attn::_flash_attn_varlen_forward", ((20, 4, 64), (20, 2, 64), (20, 2, 64), (3,), (3,)),
         (BF16, BF16, BF16, "int", "int"), 2 * 4 * 20 * 10 * 128, (20 * 4 * 64 * 2 + 2 * 20 * 2 * 64) * 2),
        ("triton_poi_fused_add_gelu_3", ((8, 16), (8, 16), (8, 16)), (BF16,) * 3, 0, 3 * 8 * 16 * 2),
        ("_C::fused_add_rms_norm", ((8, 16), (8, 16), (16,)), (BF16,) * 3, 0, 2 * (2 * 8 * 16 + 16) * 2),
        ("_C_cache_ops::reshape_and_cache_flash", ((8, 2, 16), (8, 2, 16), (99, 32, 2, 16)), (BF16,) * 3, 0,
         2 * 2 * 8 * 32 * 2),
    ],
)  # fmt: skip
def test_ops_of_engines(op: str, dims: Any, types: Any, flops: float, size: float) -> None:
    found = library_op_kernel(op, RecordedShape(dims=dims, types=types))
    assert found is not None
    assert (found.flops, found.bytes) == (flops, size)


@pytest.mark.parametrize("op", ["my::op", "vllm::moe_forward", "_C::cutlass_scaled_mm"])
def test_what_is_not_known_has_no_price(op: str) -> None:
    assert library_op_kernel(op, RecordedShape(dims=((7,), ()), types=(BF16, "Scalar"))) is None
