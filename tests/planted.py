"""Traces with one planted cause each, and the same step with the cause mended: what a judge must name first.

    python tests/planted.py FOLDER        write all of them, CASE-before and CASE-after

The machine that writes them is `planted_machine`; the gain of a fix is known because both runs are made:

    gain = 1 - span of after / span of before

`expected` are words of which the first finding of the trace before must contain one (in what it says, not in advice).
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from planted_machine import COPIES, LINK, NETWORK, PAGEABLE, PCIE, Collective, Program, Rank, together
from traces import Pipeline, write

Maker = Callable[[bool], "list[dict[str, Any]]"]
STEPS = 3


@dataclass(frozen=True, kw_only=True)
class Case:
    """One planted cause."""

    id: str
    cause: str
    expected: tuple[str, ...]
    """Regular expressions; the first finding must match one. Empty: nothing limits the step, nothing may gain much."""
    make: Maker
    """The traces of all ranks, with the cause (False) or mended (True)."""
    fixable: bool = True
    """Whether the mended run is what the advice would make of it."""


CASES: dict[str, Case] = {}


def case(cause: str, *expected: str, fixable: bool = True) -> Callable[[Maker], Maker]:
    def keep(make: Maker) -> Maker:
        id = make.__name__.replace("_", "-")
        CASES[id] = Case(id=id, cause=cause, expected=expected, make=make, fixable=fixable)
        return make

    return keep


def alone(program: Callable[[Rank], None]) -> list[dict[str, Any]]:
    rank = Rank()
    program(rank)
    return [rank.whole()]


def ranks(world: int, program: Callable[[Rank], Program]) -> list[dict[str, Any]]:
    every = [Rank(one, world) for one in range(world)]
    return together(every, [program(one) for one in every])


# -- the host ----------------------------------------------------------------------------------------------------------


@case("the loader prepares each batch while the chip waits", "data loading")
def loader_stall(mended: bool) -> list[dict[str, Any]]:
    def program(rank: Rank) -> None:
        for _ in range(STEPS):
            with rank.step():
                with rank.inside("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"):
                    rank.busy(60 if mended else 14_000)
                for _ in range(8):
                    rank.layer(8192, 2048)
                rank.wait()

    return alone(program)


@case(
    "a loader without annotations: Python decodes images in a function of the data set", "data loading|pauses.*decode"
)
def loader_in_python(mended: bool) -> list[dict[str, Any]]:
    def program(rank: Rank) -> None:
        for _ in range(STEPS):
            with rank.step():
                rank.busy(80 if mended else 9_000, "dataset.py(41): decode_jpeg", "python_function")
                for _ in range(6):
                    rank.layer(8192, 2048)
                rank.wait()

    return alone(program)


@case("a number is read back in every layer", "synchronisation")
def item_in_every_layer(mended: bool) -> list[dict[str, Any]]:
    def program(rank: Rank) -> None:
        for _ in range(STEPS):
            with rank.step():
                for _ in range(24):
                    rank.layer(1024, 2048)
                    if not mended:
                        rank.each((1,), "aten::isfinite", inputs=1)
                        rank.item()

    return alone(program)


@case("the loss is read back and printed every step, and the queue runs empty", "synchronisation")
def logging_item(mended: bool) -> list[dict[str, Any]]:
    def program(rank: Rank) -> None:
        for _ in range(6):
            with rank.step():
                for _ in range(4):
                    rank.layer(4096, 2048)
                if not mended:
                    rank.item()
                    rank.busy(300, "logging/__init__.py(1479): info", "python_function")

    return alone(program)


@case("kernels of a few microseconds: the host launches slower than they run", r"idle, host")
def small_kernels(mended: bool) -> list[dict[str, Any]]:
    def program(rank: Rank) -> None:
        for _ in range(STEPS):
            with rank.step():
                if mended:
                    rank.host_us = 3.5
                for _ in range(24):
                    rank.layer(64, 1024)

    return alone(program)


@case("decoding in vLLM without graphs: --enforce-eager", r"idle, host")
def eager_decode(mended: bool) -> list[dict[str, Any]]:
    attend = "void vllm::paged_attention_v2_kernel<__nv_bfloat16, 128, 16>(float*)"

    def program(rank: Rank) -> None:
        for _ in range(5):
            with rank.step(), rank.inside("execute_new_0_cached_16: gpu_model_runner"):
                shared = rank.launch("cudaGraphLaunch") if mended else 0
                for _ in range(28):
                    work = (
                        ("_C::fused_add_rms_norm", "void vllm::fused_add_rms_norm_kernel<c10::BFloat16>(int)", 3.0),
                        ("aten::mm", "nvjet_tst_64x16_64x16_1x4_h_bz_splitK_TNT", 14.0),
                        ("_C_cache_ops::reshape_and_cache_flash", "vllm::reshape_and_cache_flash_kernel", 2.5),
                        ("vllm::unified_attention_with_output", attend, 9.0),
                        ("aten::mm", "nvjet_tst_64x16_64x16_1x4_h_bz_splitK_TNT", 7.0),
                        ("_C::fused_add_rms_norm", "void vllm::fused_add_rms_norm_kernel<c10::BFloat16>(int)", 3.0),
                        ("aten::mm", "nvjet_tst_64x16_64x16_1x4_h_bz_splitK_TNT", 22.0),
                        ("_C::silu_and_mul", "void vllm::act_and_mul_kernel<c10::BFloat16>(int)", 2.5),
                        ("aten::mm", "nvjet_tst_64x16_64x16_1x4_h_bz_splitK_TNT", 13.0),
                    )
                    for op, kernel, us in work:
                        if mended:
                            rank.run(kernel, us, shared)
                        else:
                            rank.host_us = 16.0
                            rank.op(op, kernel, us)
                rank.item()

    return alone(program)


@case("the collector of garbage stops the host for 25 ms in each step", "pauses")
def garbage_collector(mended: bool) -> list[dict[str, Any]]:
    def program(rank: Rank) -> None:
        for _ in range(STEPS):
            with rank.step():
                for layer in range(12):
                    rank.layer(8192, 2048)
                    if layer == 6 and not mended:
                        rank.wait()
                        rank.busy(25_000, "<built-in function collect> gc", "python_function")

    return alone(program)


@case("a checkpoint is written inside the step", r"pauses.*(save|checkpoint)", "outlier.*(save|checkpoint)")
def checkpoint_write(mended: bool) -> list[dict[str, Any]]:
    def program(rank: Rank) -> None:
        for step in range(6):
            with rank.step():
                for _ in range(10):
                    rank.layer(8192, 2048)
                if step == 3 and not mended:
                    with rank.inside("torch/serialization.py(905): save", "python_function"):
                        for _ in range(8):
                            rank.copy("DtoH (Device -> Pageable)", 40e6, PAGEABLE)
                            rank.wait()
                        rank.busy(160_000)

    return alone(program)


@case("new shapes recompile the model", "compil")
def recompilation(mended: bool) -> list[dict[str, Any]]:
    def program(rank: Rank) -> None:
        for step in range(4):
            with rank.step():
                if step in (1, 2) and not mended:
                    with rank.inside("_compile.compile_inner (dynamo_timed)"):
                        rank.busy(9_000, "OutputGraph.call_user_compiler (dynamo_timed)", "cpu_op")
                        rank.busy(31_000, "compile_fx_inner (dynamo_timed)", "cpu_op")
                for _ in range(10):
                    with rank.inside("Torch-Compiled Region: 0/0", "cpu_op"):
                        rank.layer(8192, 2048)

    return alone(program)


@case("the first step loads code and finds its kernels", "start-up", "warm-up", "first use")
def first_use(mended: bool) -> list[dict[str, Any]]:
    def program(rank: Rank) -> None:
        for step in range(4):
            with rank.step():
                for _ in range(8):
                    if step == 0 and not mended:
                        for _ in range(6):
                            rank.call("cuLibraryLoadData", 900)
                    rank.layer(8192, 2048)
                rank.wait()

    return alone(program)


@case("the allocator gives memory back and asks for it again", "alloc")
def allocator_retries(mended: bool) -> list[dict[str, Any]]:
    def program(rank: Rank) -> None:
        for _ in range(STEPS):
            with rank.step():
                for layer in range(12):
                    if layer % 3 == 0 and not mended:
                        with rank.inside("aten::empty", "cpu_op"):
                            rank.wait(call="cudaDeviceSynchronize")
                            for _ in range(3):
                                rank.call("cudaFree", 700)
                            rank.call("cudaMalloc", 1500)
                    rank.layer(8192, 2048)

    return alone(program)


@case("an optimizer that updates parameter by parameter", "optimizer")
def optimizer_by_parameter(mended: bool) -> list[dict[str, Any]]:
    fused = (
        "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<TensorListMetadata<4>, "
        "FusedAdamMathFunctor<float, 4, false>>(int)"
    )

    def program(rank: Rank) -> None:
        for _ in range(STEPS):
            with rank.step():
                for _ in range(12):
                    rank.layer(2048, 1024)
                with rank.inside("Optimizer.step#AdamW.step"):
                    if mended:
                        for _ in range(4):
                            rank.op("aten::_fused_adamw_", fused, 90.0)
                        continue
                    for _ in range(120):
                        for op in ("mul_", "lerp_", "mul_", "addcmul_", "sqrt", "div_", "add_", "addcdiv_"):
                            rank.each((1024, 1024), f"aten::{op}", dtype="fp32")

    return alone(program)


# -- kernels -----------------------------------------------------------------------------------------------------------


@case("fp32 products without the matrix unit", "matrix unit|TF32")
def fp32_products(mended: bool) -> list[dict[str, Any]]:
    def program(rank: Rank) -> None:
        for _ in range(STEPS):
            with rank.step():
                for _ in range(8):
                    rank.layer(4096, 2048, dtype="tf32" if mended else "fp32", attention=False)

    return alone(program)


@case("scores, softmax and values of attention as kernels of their own", "attention.*(unfused|not fused|kernels)")
def unfused_attention(mended: bool) -> list[dict[str, Any]]:
    softmax = "void (anonymous namespace)::cunn_SoftMaxForward<8, c10::BFloat16, float, c10::BFloat16>(int)"

    def program(rank: Rank) -> None:
        for _ in range(STEPS):
            with rank.step():
                for _ in range(6):
                    rank.mm(8192, 2048, 6144)
                    if mended:
                        rank.flash(2, 16, 4096)
                    else:
                        rank.bmm(32, 4096, 128, 4096)
                        rank.each((2, 16, 4096, 4096), "aten::div", inputs=1)
                        rank.each((2, 16, 4096, 4096), "aten::_softmax", softmax, inputs=1)
                        rank.bmm(32, 4096, 4096, 128)
                    rank.mm(8192, 2048, 2048)
                    rank.mm(8192, 2048, 8192)
                    rank.mm(8192, 8192, 2048)

    return alone(program)


@case("activations, norms and residuals op by op", "chains.*bound by memory")
def elementwise_chains(mended: bool) -> list[dict[str, Any]]:
    def program(rank: Rank) -> None:
        for _ in range(STEPS):
            with rank.step():
                for _ in range(8):
                    rank.mm(8192, 2048, 8192)
                    shape = (8192, 8192)
                    if mended:
                        rank.each(shape, "triton_poi_fused_add_mul_sigmoid_0", "triton_poi_fused_add_mul_sigmoid_0")
                    else:
                        for op in ("mul", "sigmoid", "mul", "add", "mul", "add"):
                            rank.each(shape, f"aten::{op}", inputs=1 if op == "sigmoid" else 2)
                    rank.mm(8192, 8192, 2048)

    return alone(program)


@case("convolutions over NCHW: layouts are changed around each of them", "layout|channels_last|NHWC")
def layout_changes(mended: bool) -> list[dict[str, Any]]:
    conv = "sm90_xmma_fprop_implicit_gemm_f16f16_f16f32_f32_nhwckrsc_nhwc_tilesize128x128x64_warpgroupsize1x1x1_execute"
    there, back = (
        f"void cudnn::ops::{name}Kernel<__half, __half, float, true, false>(int)"
        for name in ("nchwToNhwc", "nhwcToNchw")
    )

    def program(rank: Rank) -> None:
        moved = 64 * 256 * 56 * 56 * 2 * 2 / (0.6 * 3.35e12) * 1e6
        for _ in range(STEPS):
            with rank.step():
                for _ in range(10):
                    dims = [[64, 256, 56, 56], [256, 256, 3, 3], []]
                    concrete = ["", "", "", "[1, 1]", "[1, 1]", "[1, 1]", "False", "[0, 0]", "1"]
                    types = ["c10::Half", "c10::Half", "", "ScalarList", "ScalarList", "ScalarList"]
                    with rank.inside("aten::cudnn_convolution", "cpu_op"):
                        if not mended:
                            rank.op("cudnn", there, moved)
                        rank.op("aten::convolution", conv, 420.0, dims=dims, types=types, concrete=concrete)
                        if not mended:
                            rank.op("cudnn", back, moved)
                    rank.each((64, 256, 56, 56), "aten::relu_", inputs=1, dtype="fp16")

    return alone(program)


@case("an output product over 50,257 columns", "50,257")
def odd_columns(mended: bool) -> list[dict[str, Any]]:
    def program(rank: Rank) -> None:
        for _ in range(STEPS):
            with rank.step():
                for _ in range(4):
                    rank.layer(8192, 2048)
                rank.mm(8192, 2048, 50_304 if mended else 50_257, efficiency=0.72 if mended else 0.16)

    return alone(program)


@case("nothing: a compiled step near its roofs")
def healthy(mended: bool) -> list[dict[str, Any]]:
    def program(rank: Rank) -> None:
        for _ in range(STEPS):
            with rank.step():
                for _ in range(12):
                    rank.layer(8192, 4096)

    return alone(program)


# -- copies ------------------------------------------------------------------------------------------------------------


@case("every batch is copied from pageable memory", "copies.*pageable", "copies.*host to device.*pageable")
def pageable_copies(mended: bool) -> list[dict[str, Any]]:
    def program(rank: Rank) -> None:
        end = 0.0
        for _ in range(STEPS):
            with rank.step():
                if mended:
                    rank.joins(end)
                    end = rank.copy("HtoD (Pinned -> Device)", 60e6, PCIE, stream=COPIES, op="aten::copy_")
                else:
                    rank.copy("HtoD (Pageable -> Device)", 60e6, PAGEABLE)
                for _ in range(6):
                    rank.layer(8192, 2048)

    return alone(program)


@case("weights stream from host memory in pinned copies that take longer than the compute", r"copies.*pinned")
def offloaded_weights(mended: bool) -> list[dict[str, Any]]:
    def program(rank: Rank) -> None:
        for _ in range(STEPS):
            with rank.step():
                for _ in range(8):
                    size = 100e6 if not mended else 50e6
                    end = rank.copy("HtoD (Pinned -> Device)", size, 27e9, stream=COPIES)
                    rank.joins(end)
                    rank.layer(2048, 2048)

    return alone(program)


@case("tensors are copied from device to device by the runtime", r"copies.*device to device")
def device_copies(mended: bool) -> list[dict[str, Any]]:
    def program(rank: Rank) -> None:
        for _ in range(STEPS):
            with rank.step():
                for _ in range(8):
                    if not mended:
                        for _ in range(4):
                            rank.copy("DtoD (Device -> Device)", 500e6, 1.2e12)
                    rank.layer(8192, 2048)

    return alone(program)


# -- several ranks -----------------------------------------------------------------------------------------------------


@case("gradients are reduced when backward has ended", r"exposed communication.*allreduce")
def late_reduction(mended: bool) -> list[dict[str, Any]]:
    def program(rank: Rank) -> Program:
        for _ in range(STEPS):
            with rank.step():
                ends = []
                for _ in range(12):
                    rank.layer(4096, 4096)
                    if mended:
                        ends.append((yield Collective(name="all_reduce", size_bytes=200e6)))
                if not mended:
                    for _ in range(12):
                        end = yield Collective(name="all_reduce", size_bytes=200e6)
                        ends.append(end)
                rank.joins(max(ends))
                rank.each((4096, 4096), "aten::_fused_adamw_", "multi_tensor_apply_kernel<FusedAdamMathFunctor>")

    return ranks(4, program)


@case("every gradient is reduced alone: 120 small all-reduces a step", "unbucketed|small (all-?reduce|collective)")
def unbucketed(mended: bool) -> list[dict[str, Any]]:
    def program(rank: Rank) -> Program:
        for _ in range(STEPS):
            with rank.step():
                for _ in range(8):
                    rank.layer(2048, 2048)
                end = 0.0
                for _ in range(4 if mended else 160):
                    size = 64e6 / (4 if mended else 160)
                    end = yield Collective(name="all_reduce", size_bytes=size, latency_us=28.0)
                rank.joins(end)
                rank.each((2048, 2048), "aten::_fused_adamw_", "multi_tensor_apply_kernel<FusedAdamMathFunctor>")

    return ranks(4, program)


@case("weights are gathered when they are needed, not before", r"exposed communication.*allgather")
def gather_without_prefetch(mended: bool) -> list[dict[str, Any]]:
    def program(rank: Rank) -> Program:
        for _ in range(STEPS):
            with rank.step():
                end = yield Collective(name="all_gather", size_bytes=400e6)
                for _ in range(10):
                    rank.joins(end)
                    if mended:
                        rank.free[7], held = rank.free[7], rank.free[7]
                        begun = rank.free.get(NETWORK, 0.0)
                        rank.free[NETWORK] = max(begun, held - 1e9)
                        end = yield Collective(name="all_gather", size_bytes=400e6)
                        rank.layer(8192, 4096)
                    else:
                        rank.layer(8192, 4096)
                        end = yield Collective(name="all_gather", size_bytes=400e6)

    return ranks(4, program)


@case("one link runs at 30 GB/s: all arrive together and wait for the bytes", r"slow link|of the link")
def slow_link(mended: bool) -> list[dict[str, Any]]:
    def program(rank: Rank) -> Program:
        for _ in range(STEPS):
            with rank.step():
                for _ in range(8):
                    rank.layer(4096, 4096)
                    end = yield Collective(name="all_reduce", size_bytes=67e6, rate=0.8 * LINK if mended else 20e9)
                    rank.joins(end)

    return ranks(4, program)


@case("a chip that computes 35 % slower than the others", r"(uneven|slow|late) ranks?.*\b2\b")
def slow_chip(mended: bool) -> list[dict[str, Any]]:
    def program(rank: Rank) -> Program:
        slow = rank.rank == 2 and not mended
        for _ in range(STEPS):
            with rank.step():
                for _ in range(8):
                    for _ in range(2):
                        rank.mm(4096, 4096, 16384, efficiency=0.72 / 1.35 if slow else 0.72)
                        rank.mm(4096, 16384, 4096, efficiency=0.72 / 1.35 if slow else 0.72)
                    rank.joins((yield Collective(name="all_reduce", size_bytes=67e6)))

    return ranks(4, program)


@case(
    "the loader of one rank is slow; all others wait for it in their reductions",
    r"late rank.*\b1\b",
    r"data loading.*rank 1\b",
)
def slow_loader_of_one_rank(mended: bool) -> list[dict[str, Any]]:
    def program(rank: Rank) -> Program:
        for _ in range(STEPS):
            with rank.step():
                with rank.inside("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"):
                    rank.busy(11_000 if rank.rank == 1 and not mended else 80)
                for _ in range(8):
                    rank.layer(4096, 4096)
                    end = yield Collective(name="all_reduce", size_bytes=67e6)
                    rank.joins(end)
                rank.wait()

    return ranks(4, program)


@case("one rank of experts gets twice the tokens", r"(uneven|slow|late) ranks?.*\b3\b")
def uneven_experts(mended: bool) -> list[dict[str, Any]]:
    grouped = "void cutlass::device_kernel<cutlass::gemm::kernel::GemmUniversal<GroupProblemShape>>(Params)"

    def program(rank: Rank) -> Program:
        tokens = 16384 if rank.rank == 3 and not mended else 8192
        for _ in range(STEPS):
            with rank.step():
                for _ in range(6):
                    rank.layer(4096, 2048)
                    rank.joins((yield Collective(name="all_to_all", size_bytes=33e6, record=False)))
                    for _ in ("up", "down"):
                        rank.op("aten::_grouped_mm", grouped, 2.0 * tokens * 2048 * 8192 / (0.6 * 989e12) * 1e6)
                    rank.joins((yield Collective(name="all_to_all", size_bytes=33e6, record=False)))

    return ranks(4, program)


@case("all-to-alls of a recommender without records, hidden by nothing", r"exposed communication.*all-?to-?all")
def exposed_all_to_all(mended: bool) -> list[dict[str, Any]]:
    def program(rank: Rank) -> Program:
        for _ in range(STEPS):
            with rank.step():
                for _ in range(4):
                    end = yield Collective(name="all_to_all", size_bytes=800e6, record=False)
                    if not mended:
                        rank.joins(end)
                    rank.layer(8192, 2048)
                    if mended:
                        rank.joins(end)

    return ranks(4, program)


@case("a pipeline of four stages with few microbatches", "pipeline bubble")
def pipeline_bubble(mended: bool) -> list[dict[str, Any]]:
    few = Pipeline(stages=4, microbatches=4, forward_us=400.0, backward_us=800.0)
    many = Pipeline(stages=4, microbatches=16, forward_us=100.0, backward_us=200.0, transfer_us=10.0)
    return (many if mended else few).traces()


@case("one step of six takes twice as long: all its kernels are slower", "outlier")
def outlier_step(mended: bool) -> list[dict[str, Any]]:
    def program(rank: Rank) -> None:
        for step in range(6):
            with rank.step():
                slow = step == 4 and not mended
                for _ in range(8):
                    rank.mm(8192, 4096, 4096, efficiency=0.2 if slow else 0.72)
                    rank.mm(8192, 4096, 16384, efficiency=0.2 if slow else 0.72)

    return alone(program)


@case("long prompts run between steps of decoding", "outlier|prefill", fixable=False)
def prefill_between_decodes(mended: bool) -> list[dict[str, Any]]:
    def program(rank: Rank) -> None:
        for step in range(16):
            prompt = step in (5, 11)
            tokens = (512 if mended else 16384) if prompt else 64
            name = f"execute_context_{int(prompt)}({tokens if prompt else 0})_generation_64(64)"
            with rank.step(), rank.inside(name):
                shared = rank.launch("cudaGraphLaunch")
                for _ in range(32):
                    for k, n in ((4096, 6144), (4096, 4096), (4096, 28672), (14336, 4096)):
                        us = max(2.0 * tokens * k * n / (0.7 * 989e12), k * n * 2 / (0.8 * 3.35e12)) * 1e6
                        rank.run("nvjet_tst_128x256_64x4_2x1_v_bz_coopA_NNT", us, shared)
                rank.wait()

    return alone(program)


def traces_of(case: Case, mended: bool) -> list[dict[str, Any]]:
    return case.make(mended)


def write_case(case: Case, folder: Path, mended: bool = False) -> Path:
    """Write one side of a case: a file, or a folder of ranks."""
    name = f"{case.id}-{'after' if mended else 'before'}"
    parts = case.make(mended)
    if len(parts) == 1:
        return write(parts[0], folder / f"{name}.json.gz")
    for place, one in enumerate(parts):
        write(one, folder / name / f"rank{place}.json.gz")
    return folder / name


def main() -> None:
    for one in CASES.values():
        for mended in (False, True):
            print(write_case(one, Path(sys.argv[1]), mended))


if __name__ == "__main__":
    main()
