"""Every rule finds what was put into a small trace, names it, and says no more than it can gain."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from traces import COMPUTE, HOST, NETWORK, Maker, Recipe, make, straggling, write

from ridgeline.trace.analysis.roofline import OpRate
from ridgeline.trace.analyze_traces import Analysis, analyze
from ridgeline.trace.findings.finding import Finding

GEMM, ADD = "nvjet_tst_128x256_64x4_", "vectorized_elementwise_kernel"
BF16 = ["c10::BFloat16"] * 2


class Run:
    """A trace written by hand: kernels at given microseconds, each launched `before` it starts."""

    def __init__(self, chip: str = "NVIDIA H100 80GB HBM3") -> None:
        self.maker = Maker(Recipe(chip=chip))

    def kernel(self, name: str, start: float, length: float, before: float = 4.0, stream: int = COMPUTE) -> Run:
        correlation = self.maker.next()
        self.maker.call("cudaLaunchKernel", start - before, 1.5, correlation)
        self.maker.kernel(name, stream, start, length, correlation)
        return self

    def copy(self, name: str, start: float, length: float) -> Run:
        correlation = self.maker.next()
        self.maker.call("cudaMemcpyAsync", start - 4, 1.5, correlation)
        self.maker.span(
            "gpu_memcpy", name, 0, COMPUTE, start, length, {"device": 0, "stream": 7, "correlation": correlation}
        )
        return self

    def product(self, name: str, start: float, length: float, dims: list[list[int]], types: list[str] = BF16) -> Run:
        self.maker.op("aten::mm", start - 5, name, COMPUTE, start, length, 0, dims=dims, types=types)
        return self

    def host(self, kind: str, name: str, start: float, length: float) -> Run:
        self.maker.span(kind, name, HOST, HOST, start, length)
        return self

    def found(self, folder: Path) -> Analysis:
        return analyze(write(replaced_steps(self.maker), folder / "t.json"))


def replaced_steps(maker: Maker) -> dict[str, object]:
    """The file of a maker's events and nothing else."""
    whole = Maker(replace(maker.recipe, steps=0)).trace()
    return whole | {"traceEvents": [*maker.events, *maker.metadata()]}


def only(found: Analysis, begins: str) -> Finding:
    (one,) = (finding for finding in found.findings if finding.what.startswith(begins))
    return one


def test_a_pause_names_what_the_host_was_in(tmp_path: Path) -> None:
    """100 us, a pause of 5 ms, 100 us: 5000 of 5200 us, all of it in one op."""
    run = Run().kernel(GEMM, 1000, 100).kernel(GEMM, 6100, 100)
    run.host("user_annotation", "ProfilerStep#1", 900, 5400).host("cpu_op", "aten::unflatten_dense_tensors", 1150, 4900)
    pause = only(run.found(tmp_path), "idle, pauses")
    assert "aten::unflatten_dense_tensors" in pause.what
    assert "broadcast_buffers=False" in pause.action
    assert pause.share_of_step == pytest.approx(5000 / 5200)
    assert (pause.evidence[0].name, pause.evidence[0].duration_ns) == (GEMM, 100_000)


def test_a_pause_nobody_explains_asks_for_stacks(tmp_path: Path) -> None:
    pause = only(Run().kernel(GEMM, 1000, 100).kernel(GEMM, 6100, 100).found(tmp_path), "idle, pauses")
    assert "does not show" in pause.what
    assert "with_stack" in pause.action


def test_work_launched_early_in_a_long_gap_is_not_the_hosts_fault(tmp_path: Path) -> None:
    """Launched 2 us after the chip went idle, started 5 ms later: something held it back."""
    found = Run().kernel(GEMM, 1000, 100).kernel(GEMM, 6100, 100, before=4998).found(tmp_path)
    assert [one.cause for one in found.idle] == ["dependency"]


def test_a_wait_names_the_call_and_its_op(tmp_path: Path) -> None:
    run = Run()
    for place in range(3):
        at = 1000 + 300 * place
        run.kernel(GEMM, at, 100).host("cpu_op", "aten::item", at, 180)
        run.host("cpu_op", "aten::_local_scalar_dense", at + 1, 178).maker.call(
            "cudaStreamSynchronize", at + 2, 150, 900 + place
        )
    wait = only(run.kernel(GEMM, 1900, 100).found(tmp_path), "idle, synchronisation")
    assert "cudaStreamSynchronize of aten::item" in wait.what
    assert wait.evidence[0].name == "cudaStreamSynchronize"
    assert wait.share_of_step == pytest.approx(3 * 200 / 1000)


@pytest.mark.parametrize(
    ("call", "says", "does"),
    [("cudaMalloc", "allocation", "expandable_segments"), ("cuModuleLoadData", "first use", "warm up"),
     ("cudaGraphInstantiate", "instantiating graphs", "capture once")],
)  # fmt: skip
def test_start_up_says_which(call: str, says: str, does: str, tmp_path: Path) -> None:
    run = Run().kernel(GEMM, 1000, 100).kernel(GEMM, 2100, 100)
    run.maker.call(call, 1110, 900, 77)
    begin = only(run.found(tmp_path), "idle, start-up")
    assert says in begin.what
    assert does in begin.action
    assert begin.evidence[0].name == call


@pytest.mark.parametrize(
    ("kernel", "says"),
    [("ampere_sgemm_128x64_nn", "TF32"), ("cutlass_80_simt_sgemm_128x32", "TF32"),
     ("cutlass_80_tensorop_s1688gemm_tf32", ""), (GEMM, "")],
)  # fmt: skip
def test_fp32_products_without_the_matrix_unit(kernel: str, says: str, tmp_path: Path) -> None:
    """An H100 has tf32: 2 x 4096^3 flops take 370 us at 75 % of it, and 4000 us were spent."""
    run = Run().product(kernel, 1000, 4000, [[4096, 4096], [4096, 4096]], ["float", "float"])
    named = [one for one in run.found(tmp_path).findings if "without the matrix unit" in one.what]
    assert bool(named) == bool(says)
    if named:
        assert says in named[0].action
        assert named[0].predicted_gain == pytest.approx(1 - 2 * 4096**3 / (0.75 * 494.5e12) / 4e-3, abs=0.002)


def test_an_old_chip_has_no_tf32(tmp_path: Path) -> None:
    found = (
        Run(chip="Tesla V100-SXM2-32GB").product("volta_sgemm_128x64_nn", 0, 4000, [[64, 64], [64, 64]]).found(tmp_path)
    )
    action = only(found, "1 matrix products").action
    assert "autocast to fp16" in action
    assert "neither fp32 nor bf16" in action


@pytest.mark.parametrize(
    ("dims", "says", "does"),
    [
        ([[4096, 1001], [1001, 4096]], "1,001 is no multiple of 8", "pad 1,001 to 1,008"),
        ([[1024, 8192], [8192, 1024]], "32 tiles of 128x256 fill 32 of 132 cores", "split-K"),
        ([[34 * 128, 4096], [4096, 1024]], "136 tiles of 128x256 on 132 cores are 1.03 waves", "at most 132 tiles"),
        ([[33 * 128, 4096], [4096, 1024]], "of the compute roof", "another kernel"),
        ([[4096, 64], [64, 4096]], "of the memory roof", "larger batches"),
    ],
)
def test_products_say_what_is_odd_in_their_shape(dims: list[list[int]], says: str, does: str, tmp_path: Path) -> None:
    slow = only(Run().product(GEMM, 1000, 1000, dims).found(tmp_path), "matmul at")
    assert says in slow.what
    assert does in slow.action
    assert slow.evidence[0].name == "aten::mm"


def test_attention_is_held_against_what_its_head_allows() -> None:
    """64 columns: the exponentials take as long as the products, so half of 75 %."""
    rate = OpRate(
        op="a", operands="4x32x2048x64 4x32x2048x64", dtype="bf16", class_="attention", calls=1, total_ns=1, flops=1.0,
        size_bytes=1.0, bound="compute", efficiency=0.3, rows=(),
    )  # fmt: skip
    assert rate.reachable == pytest.approx(0.375)
    assert replace(rate, operands="1x1x1x192").reachable == pytest.approx(0.5625)
    assert replace(rate, class_="matmul").reachable == 0.75
    assert replace(rate, bound="memory").reachable == 0.5


def test_an_optimizer_in_pieces(tmp_path: Path) -> None:
    run = Run().host("user_annotation", "Optimizer.step#AdamW.step", 990, 1000)
    for place in range(60):
        run.kernel(ADD, 1000 + 10 * place, 8)
    loose = only(run.found(tmp_path), "the optimizer is 60 kernels")
    assert "fused=True" in loose.action


def test_a_fused_optimizer_is_no_finding(tmp_path: Path) -> None:
    run = Run().host("user_annotation", "Optimizer.step#AdamW.step", 990, 1000)
    for place in range(60):
        run.kernel("multi_tensor_apply_kernel<FusedAdamMathFunctor>", 1000 + 10 * place, 8)
    assert not any(one.what.startswith("the optimizer") for one in run.found(tmp_path).findings)


def test_pageable_copies_are_told(tmp_path: Path) -> None:
    run = Run().kernel(GEMM, 1000, 100).copy("Memcpy HtoD (Pageable -> Device)", 1100, 100).kernel(GEMM, 1200, 100)
    copies = only(run.found(tmp_path), "copies host to device, pageable memory")
    assert "pin_memory=True" in copies.action
    assert copies.share_of_step == pytest.approx(1 / 3)


def test_exposed_communication_by_kind(tmp_path: Path) -> None:
    """An all-gather of 100 us half under a product, an all-to-all of 50 us under nothing; 250 us in all."""
    run = Run().kernel(GEMM, 1000, 100).kernel("ncclDevKernel_AllGather_RING_LL", 1050, 100, stream=NETWORK)
    run.kernel("ncclDevKernel_AllToAll", 1150, 50, stream=NETWORK).kernel(GEMM, 1200, 50)
    found = [one for one in run.found(tmp_path).findings if one.what.startswith("exposed communication")]
    shares = {one.what.split(" of ")[1].split(" ")[0]: one.share_of_step for one in found}
    assert shares == {"allgather": pytest.approx(50 / 250), "alltoall": pytest.approx(50 / 250)}
    assert {one.evidence[0].name for one in found} == {"ncclDevKernel_AllGather_RING_LL", "ncclDevKernel_AllToAll"}


def test_large_collectives_tell_their_rate(tmp_path: Path) -> None:
    """4096 x 1024 elements of 2 bytes, two ranks: 2 x 8.39 MB / 2 = 8.39 MB in 80 us are 105 of 450 GB/s."""
    found = analyze(write(make(Recipe(world=2, hidden_us=0.0)), tmp_path / "t.json"))
    assert "large ones at 105 GB/s a rank of 450 GB/s" in only(found, "exposed communication").what


def test_a_rank_that_is_late_without_computing_longer(tmp_path: Path) -> None:
    """The last rank begins its reductions 40 us after the others, computes as long, and all end together."""
    usual = Recipe(world=3, gap_us=0.5, hidden_us=60.0, reduce_us=120.0)
    late = replace(usual, rank=2, hidden_us=20.0, reduce_us=80.0)
    for recipe in (usual, replace(usual, rank=1), late):
        write(make(recipe), tmp_path / "ranks" / f"rank{recipe.rank}.json")
    one = only(analyze(tmp_path / "ranks"), "late rank: rank 2")
    assert one.share_of_step == pytest.approx(40 / usual.layer_us, rel=0.01)


def test_what_is_hidden_behind_the_host_says_so(tmp_path: Path) -> None:
    found = analyze(write(make(Recipe(gap_us=200.0, layers=12)), tmp_path / "t.json"))
    exposed = only(found, "exposed communication")
    assert exposed.predicted_gain < 0.01
    assert "alone this gains little" in exposed.action


RECIPES = (
    Recipe(), Recipe(gap_us=90.0), Recipe(graph=True, gap_us=0.5), Recipe(cause="sync", gap_us=60.0),
    Recipe(cause="data", gap_us=400.0), Recipe(unlinked=5), Recipe(reduce_us=0.0, hidden_us=0.0),
)  # fmt: skip


@pytest.mark.parametrize("recipe", RECIPES)
def test_no_gain_is_larger_than_what_it_removes(recipe: Recipe, tmp_path: Path) -> None:
    for one in analyze(write(make(recipe), tmp_path / "t.json")).findings:
        assert 0 <= one.predicted_gain <= one.share_of_step + 1e-12
        assert one.evidence
        assert one.action


def test_ranks_together_keep_that_rule(tmp_path: Path) -> None:
    for recipe in straggling(4, 40.0, Recipe(gap_us=0.5)):
        write(make(recipe), tmp_path / f"rank{recipe.rank}.json")
    for one in analyze(tmp_path).findings:
        assert 0 <= one.predicted_gain <= one.share_of_step + 1e-12


def test_the_same_kernel_again_and_again_is_no_chain(tmp_path: Path) -> None:
    """Ten equal additions work on ten tensors: as one kernel they would move as many bytes."""
    run = Run()
    for place in range(10):
        run.kernel(ADD, 1000 + 101 * place, 100)
    assert not any("chains" in one.what for one in run.found(tmp_path).findings)
