"""Planted traces written after the rules had been settled on those of `planted`: what a judge has not seen."""

from __future__ import annotations

from typing import Any

from planted import STEPS, Case, alone, ranks
from planted_machine import COPIES, ELEMENT, LINK, PAGEABLE, PCIE, Collective, Program, Rank

Traces = list[dict[str, Any]]


def logits_read_back(mended: bool) -> Traces:
    """Logits go to pageable host memory in every step of decoding."""

    def program(rank: Rank) -> None:
        for _ in range(8):
            with rank.step():
                for _ in range(6):
                    rank.layer(2048, 2048)
                if not mended:
                    rank.copy("DtoH (Device -> Pageable)", 65e6, PAGEABLE)
                    rank.wait()

    return alone(program)


def eager_on_amd(mended: bool) -> Traces:
    """Small kernels launched one by one on an MI300X."""
    rank = Rank(chip="AMD Instinct MI300X")
    rank.host_us = 4.0 if mended else 14.0
    product = "Cijk_Ailk_Bljk_BBS_BH_Bias_HAS_SAV_UserArgs_MT64x32x64_MI16x16x1_SN_LDSB1"
    for _ in range(STEPS):
        with rank.step():
            for _ in range(40):
                for us, name in ((4.0, product), (3.0, ELEMENT), (5.0, product), (2.0, ELEMENT)):
                    rank.op("aten::mm" if name == product else "aten::add", name, us)
    for event in rank.events:
        event["name"] = event["name"].replace("cudaLaunchKernel", "hipLaunchKernel")
    return [rank.whole()]


def tensor_parallel_decode(mended: bool) -> Traces:
    """Two all-reduces a layer that every next kernel waits for, replayed from graphs."""

    def program(rank: Rank) -> Program:
        for _ in range(6):
            with rank.step():
                for _ in range(24):
                    rank.host_us = 3.6
                    rank.op("aten::mm", "nvjet_tst_64x16_64x16_1x4_h_bz_splitK_TNT", 14.0)
                    size, slow = 4e5, 6.0 if mended else 60.0
                    rank.joins((yield Collective(name="all_reduce", size_bytes=size, latency_us=slow)))

    return ranks(4, program)


def tokenizer_between_batches(mended: bool) -> Traces:
    """The host turns text into tokens between batches while the chip waits."""

    def program(rank: Rank) -> None:
        for _ in range(5):
            with rank.step():
                rank.busy(100 if mended else 6_000, "transformers/tokenization_utils_fast.py(527): _batch_encode_plus",
                          "python_function")  # fmt: skip
                for _ in range(8):
                    rank.layer(4096, 2048)
                rank.wait()

    return alone(program)


def chains_beside_a_small_loader(mended: bool) -> Traces:
    """Two causes: chains of 25 % and a loader of 6 %; the larger comes first."""

    def program(rank: Rank) -> None:
        for _ in range(STEPS):
            with rank.step():
                with rank.inside("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"):
                    rank.busy(700)
                for _ in range(6):
                    rank.mm(8192, 2048, 8192)
                    if mended:
                        rank.each((8192, 8192), "triton_poi_fused_gelu_0", "triton_poi_fused_gelu_0")
                    else:
                        for op in ("pow", "mul", "add", "tanh", "mul"):
                            kernel = ELEMENT.replace("CUDAFunctor_add", f"{op}_kernel_cuda")
                            rank.each((8192, 8192), f"aten::{op}", kernel, inputs=1)
                    rank.mm(8192, 8192, 2048)
                rank.wait()

    return alone(program)


def fp32_convolutions(mended: bool) -> Traces:
    """Convolutions in fp32 by kernels without the matrix unit."""
    slow = "void implicit_convolve_sgemm<float, float, 1024, 5, 5, 3, 3, 3, 1, false, false, true>(int)"
    fast = "sm80_xmma_fprop_implicit_gemm_tf32f32_tf32f32_f32_nhwckrsc_nhwc_tilesize128x128x16_stage4_tensor16x8x8"

    def program(rank: Rank) -> None:
        for _ in range(STEPS):
            with rank.step():
                for _ in range(10):
                    rank.op("aten::cudnn_convolution", fast if mended else slow, 260.0 if mended else 1700.0)
                    rank.each((64, 256, 56, 56), "aten::relu_", inputs=1, dtype="fp32")

    return alone(program)


def healthy_ranks(mended: bool) -> Traces:
    """Nothing: reductions lie under the compute of the layers before."""

    def program(rank: Rank) -> Program:
        for _ in range(STEPS):
            with rank.step():
                ends = []
                for _ in range(16):
                    rank.layer(8192, 4096)
                    ends.append((yield Collective(name="reduce_scatter", size_bytes=200e6)))
                rank.joins(max(ends))
                rank.each((4096, 4096), "aten::_fused_adamw_", "multi_tensor_apply_kernel<FusedAdamMathFunctor>")

    return ranks(4, program)


def host_memory_over_one_engine(mended: bool) -> Traces:
    """Activations leave and return through pinned copies on a stream of their own, and compute waits for them."""

    def program(rank: Rank) -> None:
        for _ in range(STEPS):
            with rank.step():
                for _ in range(10):
                    rank.layer(4096, 2048)
                    if not mended:
                        end = rank.copy("DtoH (Device -> Pinned)", 80e6, PCIE, stream=COPIES)
                        rank.joins(end)

    return alone(program)


def one_slow_link_of_many(mended: bool) -> Traces:
    """All-gathers and reduce-scatters of a sharded step at 25 GB/s, all ranks on time."""

    def program(rank: Rank) -> Program:
        for _ in range(STEPS):
            with rank.step():
                for _ in range(6):
                    rate = 0.8 * LINK if mended else 25e9
                    rank.joins((yield Collective(name="all_gather", size_bytes=100e6, rate=rate)))
                    rank.layer(4096, 4096)
                    rank.joins((yield Collective(name="reduce_scatter", size_bytes=100e6, rate=rate)))

    return ranks(8, program)


def print_of_a_tensor(mended: bool) -> Traces:
    """A debug print of a tensor in every layer."""

    def program(rank: Rank) -> None:
        for _ in range(STEPS):
            with rank.step():
                for _ in range(12):
                    rank.layer(2048, 2048)
                    if not mended:
                        rank.item()
                        rank.busy(250, "torch/_tensor_str.py(659): _str", "python_function")

    return alone(program)


def _case(make: Any, *expected: str) -> Case:
    return Case(id=make.__name__.replace("_", "-"), cause=make.__doc__.rstrip("."), expected=expected, make=make)


HELD_BACK = {
    one.id: one
    for one in (
        _case(logits_read_back, r"copies device to host.*pageable", "synchronisation.*copy"),
        _case(eager_on_amd, "idle, host"),
        _case(tensor_parallel_decode, "exposed communication.*allreduce", "small allreduce"),
        _case(tokenizer_between_batches, "pauses.*tokenization", "data loading"),
        _case(chains_beside_a_small_loader, "chains"),
        _case(fp32_convolutions, "matrix unit"),
        _case(healthy_ranks),
        _case(host_memory_over_one_engine, "copies device to host.*pinned"),
        _case(one_slow_link_of_many, "slow link"),
        _case(print_of_a_tensor, "synchronisation"),
    )
}
