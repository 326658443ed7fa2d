"""Planted traces as real captures look: noise, Python stacks, autograd's thread, causes on one rank or in some steps.

Written and frozen, with what must be named first, before any of them was analysed; the rules had been settled on
`planted` and judged on `planted_held_back`. Kernels take 3 % more or less (seeded), hosts 20 %.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

from planted import Case
from planted_machine import COMPUTE, PRODUCT, Collective, Event, Program, Rank, together
from traces import Pipeline

Traces = list[dict[str, Any]]
A100 = "NVIDIA A100-SXM4-80GB"
FLASH_BACK = "void flash::flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel<Flash_bwd_kernel_traits<128, 64, 128>>(Params)"
FUSED_NORM = "triton_red_fused__to_copy_add_mean_mul_pow_rsqrt_3"
ADAM = (
    "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<FusedOptimizerTensorListMetadata<4>, FusedAdam>"
)
LOADER = (
    "train.py(88): train_epoch", "torch/utils/data/dataloader.py(733): __next__",
    "torch/utils/data/dataloader.py(1482): _next_data", "torch/utils/data/dataloader.py(1444): _get_data",
    "torch/utils/data/dataloader.py(1284): _try_get_data", "multiprocessing/queues.py(103): get",
    "multiprocessing/connection.py(253): poll", "selectors.py(402): select",
)  # fmt: skip


class Noisy(Rank):
    """A rank as it is recorded: no two calls take the same time, backward runs on a thread of its own."""

    def __init__(self, rank: int = 0, world: int = 1, **more: Any) -> None:
        super().__init__(rank, world, **more)
        self.random = random.Random(7919 * rank + 13)
        self.thread, self.slow = 4242, 1.0
        self.one_stream = False

    def span(
        self, cat: str, name: str, start: float, length: float, args: Event | None = None, *, tid: int = 4242
    ) -> None:  # fmt: skip
        super().span(cat, name, start, length, args, tid=self.thread if tid == 4242 else tid)

    def op(self, name: str, kernel: str, us: float, **more: Any) -> float:
        usual = self.host_us
        self.host_us = max(3.2, usual * self.random.uniform(0.85, 1.25))
        end = super().op(name, kernel, us, **more)
        self.host_us = usual
        return end

    def run(self, kernel: str, us: float, correlation: int, **more: Any) -> float:
        return super().run(kernel, us * self.slow * self.random.uniform(0.97, 1.03), correlation, **more)

    @contextmanager
    def stack(self, *functions: str) -> Iterator[None]:
        """Python functions around what follows, the outermost first."""
        with ExitStack() as held:
            for one in functions:
                held.enter_context(self.inside(one, "python_function"))
                self.now += 0.3
            yield

    @contextmanager
    def backward_thread(self) -> Iterator[None]:
        begin = self.now
        self.thread = 4343
        yield
        self.thread = 4242
        self.span("python_function", "torch/_tensor.py(572): backward", begin, self.now - begin)

    def forward(self, tokens: int, width: int) -> None:
        self.each((tokens, width), FUSED_NORM, FUSED_NORM, inputs=2)
        self.mm(tokens, width, 3 * width)
        self.flash(max(1, tokens // 2048), width // 128, min(tokens, 2048))
        self.mm(tokens, width, width)
        self.each((tokens, width), FUSED_NORM, FUSED_NORM, inputs=2)
        self.mm(tokens, width, 4 * width)
        self.each((tokens, 4 * width), "triton_poi_fused_gelu_4", "triton_poi_fused_gelu_4", inputs=1)
        self.mm(tokens, 4 * width, width)

    def backward(self, tokens: int, width: int) -> None:
        for inner, outer in ((4 * width, width), (width, 4 * width), (width, width), (width, 3 * width)):
            with self.inside("autograd::engine::evaluate_function: MmBackward0", "cpu_op"):
                self.mm(tokens, outer, inner)
                self.mm(inner, tokens, outer)
        length = min(tokens, 2048)
        us = 10.0 * max(1, tokens // 2048) * width * length * length / (0.45 * 989e12) * 1e6
        self.op("aten::_scaled_dot_product_flash_attention_backward", FLASH_BACK, us)
        self.each((tokens, width), "triton_red_fused_add_native_layer_norm_backward_7",
                  "triton_red_fused_add_native_layer_norm_backward_7", inputs=3)  # fmt: skip

    def optimizer(self, kernels: int = 4, us: float = 120.0) -> None:
        with self.inside("Optimizer.step#AdamW.step"):
            for _ in range(kernels):
                self.op("aten::_fused_adamw_", ADAM, us)

    def collective(self, one: Collective) -> tuple[int, float]:
        correlation, begin = super().collective(one)
        return correlation, (self.begins(COMPUTE) if self.one_stream else begin)

    def ends(self, one: Collective, correlation: int, begin: float, end: float) -> None:
        super().ends(one, correlation, begin, end)
        if self.one_stream:
            self.events[-1]["tid"] = self.events[-1]["args"]["stream"] = COMPUTE
            self.free[COMPUTE] = end


def alone(program: Callable[[Noisy], None], **more: Any) -> Traces:
    rank = Noisy(**more)
    program(rank)
    return [rank.whole()]


def ranks(world: int, program: Callable[[Noisy], Program]) -> Traces:
    every = [Noisy(one, world) for one in range(world)]
    return together(every, [program(one) for one in every])


def sharded_step(rank: Noisy, layers: int, tokens: int, width: int) -> Program:
    """Forward and backward of a fully sharded model: gathers one layer ahead, reductions behind, both under compute."""
    size = 24.0 * width * width
    ends = [(yield Collective(name="all_gather", size_bytes=size))]
    for _ in range(layers):
        ends.append((yield Collective(name="all_gather", size_bytes=size)))
        rank.joins(ends[-2])
        rank.forward(tokens, width)
    with rank.backward_thread():
        for _ in range(layers):
            rank.backward(tokens, width)
            ends.append((yield Collective(name="reduce_scatter", size_bytes=size)))
    rank.joins(max(ends))
    rank.optimizer()


def starved_rank(mended: bool) -> Traces:
    """The worker processes of rank 5 do not keep up; only Python's stack tells, and all others wait in collectives"""

    def program(rank: Noisy) -> Program:
        for _ in range(4):
            with rank.step():
                with rank.stack(*LOADER):
                    slow = rank.rank == 5 and not mended
                    rank.busy(rank.random.uniform(14_000, 17_000) if slow else rank.random.uniform(40, 90))
                yield from sharded_step(rank, 6, 4096, 2048)
                rank.wait(call="cudaDeviceSynchronize")

    return ranks(8, program)


def reductions_on_the_compute_stream(mended: bool) -> Traces:
    """Gradients are reduced on the stream that computes, so that nothing can hide them"""

    def program(rank: Noisy) -> Program:
        rank.one_stream = not mended
        for _ in range(3):
            with rank.step():
                for _ in range(8):
                    rank.forward(4096, 2048)
                end = 0.0
                with rank.backward_thread():
                    for _ in range(8):
                        rank.backward(4096, 2048)
                        end = yield Collective(name="all_reduce", size_bytes=100e6)
                rank.joins(end)
                rank.optimizer()

    return ranks(4, program)


def batch_of_many_tensors(mended: bool) -> Traces:
    """A batch of 160 tensors goes to the chip one by one from pageable memory"""

    def program(rank: Noisy) -> None:
        for _ in range(5):
            with rank.step():
                with rank.stack("train.py(140): step", "torchrec/datasets/utils.py(88): to"):
                    for _ in range(160):
                        if mended:
                            rank.copy("HtoD (Pinned -> Device)", 400e3, 52e9, stream=13)
                        else:
                            rank.copy("HtoD (Pageable -> Device)", 400e3, 7e9)
                for _ in range(6):
                    rank.forward(4096, 2048)

    return alone(program)


def nonzero_of_every_expert(mended: bool) -> Traces:
    """A loop over experts asks for the rows of each with nonzero, which waits for the chip"""

    def program(rank: Noisy) -> None:
        for _ in range(3):
            with rank.step():
                for _ in range(6):
                    rank.flash(4, 16, 2048)
                    rank.mm(8192, 2048, 64)
                    for _ in range(8):
                        if not mended:
                            with rank.inside("aten::nonzero", "cpu_op"):
                                rank.op("", "void at_cuda_detail::cub::DeviceReduceSingleTileKernel<Policy600>(int)", 4)
                                rank.op("", "void at_cuda_detail::cub::DeviceSelectSweepKernel<Policy>(int)", 6)
                                rank.copy("DtoH (Device -> Pageable)", 8, 50e9, op="")
                                rank.wait(COMPUTE)
                        rank.mm(2048, 2048, 4096)
                        rank.each((2048, 4096), "triton_poi_fused_mul_silu_2", "triton_poi_fused_mul_silu_2", inputs=2)
                        rank.mm(2048, 4096, 2048)

    return alone(program)


def optimizer_without_foreach(mended: bool) -> Traces:
    """An optimizer of nine small kernels a parameter, known by Python's stack only"""

    def program(rank: Noisy) -> None:
        rank.host_us = 7.0
        for _ in range(3):
            with rank.step():
                for _ in range(10):
                    rank.forward(4096, 1024)
                with rank.backward_thread():
                    for _ in range(10):
                        rank.backward(4096, 1024)
                inner = (
                    "torch/optim/adamw.py(611): _fused_adamw"
                    if mended
                    else "torch/optim/adamw.py(344): _single_tensor_adamw"
                )
                with rank.stack("train.py(61): step", "torch/optim/optimizer.py(485): wrapper",
                                "torch/optim/adamw.py(220): step", inner):  # fmt: skip
                    if mended:
                        for _ in range(3):
                            rank.op("aten::_fused_adamw_", ADAM, 70.0)
                        continue
                    for parameter in range(160):
                        shape = (1024,) if parameter % 2 else (1024, 1024)
                        for op in ("mul_", "lerp_", "mul_", "addcmul_", "sqrt", "div", "add_", "neg", "addcdiv_"):
                            rank.each(shape, f"aten::{op}", dtype="fp32")

    return alone(program)


def sgemm_on_an_a100(mended: bool) -> Traces:
    """A model in fp32 on an A100: cuBLAS takes its SIMT kernels because TF32 is off"""
    peak = 156e12 if mended else 19.5e12
    name = PRODUCT["tf32"] if mended else "ampere_sgemm_128x128_tn"

    def product(rank: Noisy, m: int, k: int, n: int) -> None:
        us = 2.0 * m * k * n / (0.82 * peak) * 1e6 + 2
        rank.op(
            "aten::addmm",
            name,
            us,
            dims=[[n], [m, k], [k, n], [], []],
            types=["float", "float", "float", "Scalar", "Scalar"],
        )

    def program(rank: Noisy) -> None:
        for _ in range(3):
            with rank.step():
                for _ in range(6):
                    product(rank, 4096, 1024, 4096)
                    rank.each((4096, 4096), "aten::gelu", inputs=1, dtype="fp32")
                    product(rank, 4096, 4096, 1024)
                with rank.backward_thread():
                    for _ in range(6):
                        for shape in ((4096, 1024, 4096), (1024, 4096, 4096), (4096, 4096, 1024), (4096, 4096, 1024)):
                            with rank.inside("autograd::engine::evaluate_function: AddmmBackward0", "cpu_op"):
                                product(rank, *shape)
                        rank.each((4096, 4096), "aten::gelu_backward", dtype="fp32")
                rank.optimizer(us=30.0)

    return alone(program, chip=A100)


def reduced_every_microbatch(mended: bool) -> Traces:
    """Gradients are accumulated over six microbatches and reduced in each: no_sync is missing"""

    def program(rank: Noisy) -> Program:
        for _ in range(2):
            with rank.step():
                end = 0.0
                for micro in range(6):
                    for _ in range(4):
                        rank.forward(2048, 2048)
                    with rank.backward_thread():
                        for _ in range(4):
                            rank.backward(2048, 2048)
                            if micro == 5 or not mended:
                                end = yield Collective(name="all_reduce", size_bytes=400e6)
                    rank.joins(end)
                rank.optimizer()

    return ranks(4, program)


def throttled_chip(mended: bool) -> Traces:
    """From the third step on one chip of eight runs at a lower clock: all its kernels take 40 % longer"""

    def program(rank: Noisy) -> Program:
        for step in range(6):
            with rank.step():
                rank.slow = 1.4 if rank.rank == 3 and step >= 2 and not mended else 1.0
                yield from sharded_step(rank, 5, 4096, 2048)
                rank.wait(call="cudaDeviceSynchronize")

    return ranks(8, program)


def autotuning_in_the_first_step(mended: bool) -> Traces:
    """The first step that was recorded compiles Triton's kernels and tries their configurations"""
    tune = (
        "train.py(40): step",
        "torch/_dynamo/eval_frame.py(655): _fn",
        "torch/_inductor/output_code.py(460): __call__",
        "torch/_inductor/runtime/triton_heuristics.py(1010): autotune_to_one_config",
    )

    def program(rank: Noisy) -> None:
        for step in range(5):
            with rank.step():
                if step == 0 and not mended:
                    for kernel in (
                        FUSED_NORM,
                        "triton_poi_fused_gelu_4",
                        "triton_red_fused_add_native_layer_norm_backward_7",
                    ):
                        with rank.stack(*tune):
                            for _ in range(4):
                                with rank.stack("triton/compiler/compiler.py(226): compile"):
                                    rank.busy(rank.random.uniform(9_000, 16_000))
                                rank.call("cuModuleLoadData", 240)
                            for _ in range(40):
                                rank.op("", kernel, 22.0)
                            rank.wait(call="cudaDeviceSynchronize")
                for _ in range(8):
                    rank.forward(4096, 2048)
                with rank.backward_thread():
                    for _ in range(8):
                        rank.backward(4096, 2048)
                rank.optimizer()

    return alone(program)


def collector_on_any_rank(mended: bool) -> Traces:
    """Python's garbage collector stops another rank in every step; nothing is recorded while it runs"""
    when = random.Random(3)
    who = [(when.randrange(8), when.randrange(1, 5)) for _ in range(6)]

    def program(rank: Noisy) -> Program:
        for step in range(6):
            with rank.step():
                for layer in range(6):
                    if who[step] == (rank.rank, layer) and not mended:
                        rank.busy(rank.random.uniform(16_000, 22_000))
                    rank.forward(2048, 2048)
                    rank.joins((yield Collective(name="reduce_scatter", size_bytes=30e6)))
                rank.wait()

    return ranks(8, program)


def hot_expert_moves(mended: bool) -> Traces:
    """In every layer another rank holds the expert that most tokens choose: sums are even, every exchange waits"""
    grouped = "void cutlass::device_kernel<cutlass::gemm::kernel::GemmUniversal<GroupProblemShape>>(Params)"

    def program(rank: Noisy) -> Program:
        for _ in range(3):
            with rank.step():
                for layer in range(16):
                    rank.forward(2048, 2048)
                    rank.joins((yield Collective(name="all_to_all", size_bytes=33e6)))
                    hot = (layer * 5 + 3) % 8 == rank.rank and not mended
                    share = 2.6 if hot else 1.0 if mended else 5.4 / 7
                    for _ in ("up", "down"):
                        rank.op("aten::_grouped_mm", grouped, share * 260.0)
                    rank.joins((yield Collective(name="all_to_all", size_bytes=33e6)))

    return ranks(8, program)


def heavy_last_stage(mended: bool) -> Traces:
    """The last stage of a pipeline also computes the output product and the loss: the others wait for it"""
    one = Pipeline(stages=4, microbatches=16, forward_us=300.0, backward_us=600.0, transfer_us=12.0)
    if mended:
        return replace(one, forward_us=1.15 * 300, backward_us=1.15 * 600).traces()
    return replace(one, last=1.6).traces()


def eager_decode_on_four_ranks(mended: bool) -> Traces:
    """Decoding with tensor parallelism and no graphs: hosts launch slower than kernels run, and not in step"""

    def program(rank: Noisy) -> Program:
        rank.host_us = 3.3 if mended else 15.0
        for _ in range(4):
            with rank.step():
                for _ in range(24):
                    rank.op(
                        "sgl_kernel::fused_add_rmsnorm", "void flashinfer::norm::FusedAddRMSNormKernel<8u, bf16>()", 3.0
                    )
                    rank.op("aten::mm", "nvjet_tst_64x8_64x16_4x1_v_bz_TNT", 8.0)
                    rank.op(
                        "sgl_kernel::apply_rope",
                        "void flashinfer::BatchQKApplyRotaryPosIdsCosSinCacheKernel<128>()",
                        2.6,
                    )
                    rank.op(
                        "flashinfer::run", "void flashinfer::BatchDecodeWithPagedKVCacheKernel<DecodeParams>()", 7.0
                    )
                    rank.op("aten::mm", "nvjet_tst_64x8_64x16_4x1_v_bz_TNT", 5.0)
                    rank.joins((yield Collective(name="all_reduce", size_bytes=262144, latency_us=7.0)))
                    rank.op(
                        "sgl_kernel::fused_add_rmsnorm", "void flashinfer::norm::FusedAddRMSNormKernel<8u, bf16>()", 3.0
                    )
                    rank.op("aten::mm", "nvjet_tst_64x8_64x16_4x1_v_bz_TNT", 11.0)
                    rank.op(
                        "sgl_kernel::silu_and_mul", "void flashinfer::activation::act_and_mul_kernel<bf16, silu>()", 2.4
                    )
                    rank.op("aten::mm", "nvjet_tst_64x8_64x16_4x1_v_bz_TNT", 7.0)
                    rank.joins((yield Collective(name="all_reduce", size_bytes=262144, latency_us=7.0)))
                rank.item()

    return ranks(4, program)


def embedding_by_index_put(mended: bool) -> Traces:
    """The gradient of an embedding is summed by index_put, whose kernel works far below the memory's bandwidth"""
    slow = "void at::native::(anonymous namespace)::indexing_backward_kernel_stride_1<c10::BFloat16, long>(long const*)"

    def program(rank: Noisy) -> None:
        for _ in range(3):
            with rank.step():
                for _ in range(6):
                    rank.forward(8192, 2048)
                with rank.backward_thread():
                    for _ in range(6):
                        rank.backward(8192, 2048)
                    dims, types = (
                        [[50304, 2048], [], [8192, 2048], []],
                        ["c10::BFloat16", "", "c10::BFloat16", "Scalar"],
                    )
                    rank.op("aten::index_put_", slow, 60.0 if mended else 13_000.0, dims=dims, types=types)
                rank.optimizer()

    return alone(program)


def healthy_sharded(mended: bool) -> Traces:
    """Nothing: eight ranks, gathers and reductions under compute, hosts ahead"""

    def program(rank: Noisy) -> Program:
        for _ in range(3):
            with rank.step():
                yield from sharded_step(rank, 8, 8192, 4096)

    return ranks(8, program)


def fragmented_memory(mended: bool) -> Traces:
    """In two steps of six no segment fits: the allocator frees all it holds and asks again, inside backward"""

    def program(rank: Noisy) -> None:
        for step in range(6):
            with rank.step():
                for _ in range(6):
                    rank.forward(4096, 2048)
                with rank.backward_thread():
                    for layer in range(6):
                        if step in (1, 4) and layer in (1, 3) and not mended:
                            with rank.inside("aten::empty_strided", "cpu_op"):
                                rank.call("cudaMalloc", 60)
                                rank.wait(call="cudaDeviceSynchronize")
                                for _ in range(40):
                                    rank.call("cudaFree", rank.random.uniform(120, 260))
                                rank.call("cudaMalloc", 1200)
                        rank.backward(4096, 2048)
                rank.optimizer()

    return alone(program)


def _case(make: Callable[[bool], Traces], *expected: str) -> Case:
    return Case(id=make.__name__.replace("_", "-"), cause=str(make.__doc__), expected=expected, make=make)


def _all(cases: Sequence[Case]) -> dict[str, Case]:
    return {one.id: one for one in cases}


BLIND = _all(
    (
        _case(starved_rank, r"late rank.*\b5\b", r"data loading.*rank 5\b", r"pauses.*rank 5\b"),
        _case(reductions_on_the_compute_stream, "exposed communication.*allreduce"),
        _case(batch_of_many_tensors, "copies host to device, pageable"),
        _case(nonzero_of_every_expert, "synchronisation"),
        _case(optimizer_without_foreach, "optimizer"),
        _case(sgemm_on_an_a100, "matrix unit|TF32"),
        _case(reduced_every_microbatch, "exposed communication.*allreduce"),
        _case(throttled_chip, r"(uneven|slow|late) ranks?.*\b3\b"),
        _case(autotuning_in_the_first_step, "start-up|warm-up|compil|first use|autotun", r"outlier steps: 0\b"),
        _case(collector_on_any_rank, "pauses", "late ranks?"),
        _case(hot_expert_moves, r"(uneven|late|imbalance|skew)"),
        _case(heavy_last_stage, r"(uneven|slow|late|bottleneck).*\b3\b"),
        _case(eager_decode_on_four_ranks, "idle, host"),
        _case(embedding_by_index_put, "index|embedding|scatter"),
        _case(healthy_sharded),
        _case(fragmented_memory, "alloc"),
    )
)
