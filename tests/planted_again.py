"""A second set of frozen traces, written after the rules had been mended with those of `planted_blind`.

Frozen, with what must be named first, before any of them was analysed, and not used to mend rules since.
"""

from __future__ import annotations

from planted import Case
from planted_blind import Noisy, Traces, alone, ranks, sharded_step
from planted_machine import COMPUTE, LINK, NETWORK, PRODUCT, Collective, Program


def cross_entropy_op_by_op(mended: bool) -> Traces:
    """Logits of 128,256 words are cast, normalised and summed by kernels of their own"""
    softmax = "void at::native::(anonymous namespace)::cunn_SoftMaxForward<8, float, float, float>(float*)"

    def program(rank: Noisy) -> None:
        for _ in range(3):
            with rank.step():
                for _ in range(3):
                    rank.forward(4096, 2048)
                rank.mm(4096, 2048, 128256)
                if mended:
                    rank.op("LigerCrossEntropy", "liger_cross_entropy_kernel", 700.0)
                else:
                    rank.each((4096, 128256), "aten::copy_", inputs=1, dtype="fp32")
                    rank.each((4096, 128256), "aten::_log_softmax", softmax, inputs=1, dtype="fp32")
                    rank.each((4096, 128256), "aten::exp", inputs=1, dtype="fp32")
                    rank.each((4096, 128256), "aten::mul", inputs=2, dtype="fp32")
                    rank.each((4096, 128256), "aten::sub", inputs=2, dtype="fp32")
                    rank.each((4096, 128256), "aten::copy_", inputs=1, dtype="fp32")

    return alone(program)


def tensor_parallel_over_pcie(mended: bool) -> Traces:
    """Two all-reduces a layer of a training step go over PCIe at 18 GB/s instead of NVLink"""

    def program(rank: Noisy) -> Program:
        rate = 0.8 * LINK if mended else 18e9
        for _ in range(3):
            with rank.step():
                for _ in range(8):
                    for _ in ("attention", "ffn"):
                        rank.mm(8192, 4096, 4096)
                        rank.mm(8192, 4096, 4096)
                        rank.joins((yield Collective(name="all_reduce", size_bytes=67e6, rate=rate)))

    return ranks(2, program)


def first_convolution(mended: bool) -> Traces:
    """The first convolution of a process makes cuDNN's context: a cudaFree of 1.8 s"""
    conv = "sm80_xmma_fprop_implicit_gemm_bf16bf16_bf16f32_f32_nhwckrsc_nhwc_tilesize256x128x32_stage3_warpsize4x2x1"

    def program(rank: Noisy) -> None:
        rank.each((64, 3, 224, 224))
        if not mended:
            with rank.inside("aten::cudnn_convolution", "cpu_op"):
                rank.call("cudaFree", 1_800_000)
        for _ in range(4):
            with rank.step():
                for _ in range(40):
                    rank.op("aten::cudnn_convolution", conv, 300.0)
                    rank.each((64, 256, 56, 56), "triton_poi_fused_relu_1", "triton_poi_fused_relu_1", inputs=1)

    return alone(program)


def offload_of_activations(mended: bool) -> Traces:
    """Activations of every layer go to pageable host memory and come back in backward"""

    def program(rank: Noisy) -> None:
        for _ in range(3):
            with rank.step():
                for _ in range(6):
                    rank.forward(4096, 2048)
                    if not mended:
                        rank.copy("DtoH (Device -> Pageable)", 33e6, 8e9)
                        rank.wait(COMPUTE)
                with rank.backward_thread():
                    for _ in range(6):
                        if not mended:
                            rank.copy("HtoD (Pageable -> Device)", 33e6, 8e9)
                        rank.backward(4096, 2048)
                rank.optimizer()

    return alone(program)


def checkpoint_on_one_rank(mended: bool) -> Traces:
    """Rank 0 writes a checkpoint in one step of eight; the seven others wait in the next collective"""

    def program(rank: Noisy) -> Program:
        for step in range(8):
            with rank.step():
                yield from sharded_step(rank, 4, 4096, 2048)
                if step == 4 and rank.rank == 0 and not mended:
                    with rank.stack("train.py(210): save", "torch/serialization.py(943): save"):
                        rank.wait(call="cudaDeviceSynchronize")
                        rank.busy(90_000)

    return ranks(8, program)


def decode_of_small_batches(mended: bool) -> Traces:
    """Nothing that software would mend: decoding from graphs reads weights near the memory's bandwidth"""

    def program(rank: Noisy) -> None:
        for _ in range(8):
            with rank.step():
                shared = rank.launch("cudaGraphLaunch")
                for _ in range(28):
                    for k, n in ((4096, 6144), (4096, 4096), (4096, 28672), (14336, 4096)):
                        rank.run("nvjet_tst_64x8_64x16_4x1_v_bz_TNT", k * n * 2 / (0.85 * 3.35e12) * 1e6, shared)
                rank.wait()

    return alone(program)


def reductions_of_every_layer_in_fp32(mended: bool) -> Traces:
    """Gradients are reduced in fp32 behind backward: twice the bytes, and nothing hides them"""

    def program(rank: Noisy) -> Program:
        for _ in range(3):
            with rank.step():
                for _ in range(8):
                    rank.forward(2048, 2048)
                with rank.backward_thread():
                    for _ in range(8):
                        rank.backward(2048, 2048)
                end = 0.0
                for _ in range(8):
                    end = yield Collective(name="all_reduce", size_bytes=100e6 if mended else 200e6)
                rank.joins(end)
                rank.joins(rank.free[NETWORK])
                rank.optimizer()

    return ranks(8, program)


def long_and_short_sequences(mended: bool) -> Traces:
    """Each microbatch another rank has the long sequence: attention over it makes all wait in the reduction"""

    def program(rank: Noisy) -> Program:
        for step in range(3):
            with rank.step():
                for micro in range(8):
                    long = (3 * micro + step) % 4 == rank.rank and not mended
                    for _ in range(2):
                        rank.op("aten::mm", PRODUCT["bf16"], 400.0)
                        rank.op("flash_attn::_flash_attn_forward", "flash_fwd_kernel<128>", 900.0 if long else 250.0)
                    rank.joins((yield Collective(name="reduce_scatter", size_bytes=60e6)))

    return ranks(4, program)


def _case(make: object, *expected: str) -> Case:
    name = getattr(make, "__name__", "")
    return Case(id=name.replace("_", "-"), cause=str(make.__doc__), expected=expected, make=make)  # type: ignore[arg-type]


AGAIN = {
    one.id: one
    for one in (
        _case(cross_entropy_op_by_op, "chains.*bound by memory"),
        _case(tensor_parallel_over_pcie, "slow link|of the link"),
        _case(first_convolution, "start-up|warm-up|first use"),
        _case(offload_of_activations, "copies.*pageable"),
        _case(checkpoint_on_one_rank, r"pauses.*save", r"late ranks?.*\b0\b", r"outlier steps: (4|5)\b"),
        _case(decode_of_small_batches),
        _case(reductions_of_every_layer_in_fp32, "exposed communication.*allreduce"),
        _case(long_and_short_sequences, "(uneven|late|imbalance|skew)"),
    )
}
