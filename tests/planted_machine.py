"""A small machine that writes Kineto traces: hosts that launch, streams that run in order, collectives that meet.

A rank is a program: a generator that calls methods of its `Rank` and yields each `Collective` it takes part in. Times
follow from dependencies only, so that a trace is one that could have happened:

    launch      begins when the host gets there          a kernel begins when its launch has ended, its stream is free
    wait        the host goes on when a stream is empty  and what it waits for has ended
    collective  begins on each rank when it arrives, moves bytes when the last has come, ends for all together

Kernels take what their operands need on an H100: 72 % of the peak of their format or 80 % of the memory's bandwidth.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from typing import Any

Event = dict[str, Any]
H100 = "NVIDIA H100 80GB HBM3"
PEAK = {"bf16": 989.4e12, "tf32": 494.7e12, "fp32": 66.9e12, "fp16": 989.4e12}
BANDWIDTH, LINK, PCIE, PAGEABLE = 3.35e12, 450e9, 55e9, 9e9  # bytes a second
TYPES = {"bf16": "c10::BFloat16", "fp16": "c10::Half", "fp32": "float", "tf32": "float"}
WIDTH = {"bf16": 2, "fp16": 2, "fp32": 4, "tf32": 4}
COMPUTE, COPIES, NETWORK = 7, 13, 20
HOST_US, CALL_US, DELAY_US, GAP_US = 9.0, 3.0, 2.0, 1.0
PRODUCT = {
    "bf16": "nvjet_tst_128x256_64x4_2x1_v_bz_coopA_NNT",
    "fp32": "sm80_xmma_gemm_f32f32_f32f32_f32_nn_n_tilesize128x128x8_stage3_warpsize2x2x1_ffma_aligna4_alignc4",
    "tf32": "sm80_xmma_gemm_f32f32_tf32f32_f32_nn_n_tilesize128x128x16_stage4_warpsize2x2x1_tensor16x8x8",
}
ELEMENT = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<c10::BFloat16>>(int)"
FLASH = "void flash::flash_fwd_kernel<Flash_fwd_kernel_traits<128, 128, 64, 4, false, cutlass::bfloat16_t>>(Params)"
WORDS = {
    "all_reduce": ("allreduce", "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"),
    "all_gather": ("_allgather_base", "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)"),
    "reduce_scatter": ("_reduce_scatter_base", "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(ncclDevKernelArgs)"),
    "all_to_all": ("all_to_allv", "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"),
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Collective:
    """What a rank asks its group for: so many bytes of the full tensor, on the network's stream."""

    name: str
    size_bytes: float
    rate: float = 0.8 * LINK
    """Bus bandwidth once all are there."""
    latency_us: float = 12.0
    record: bool = True

    def transfer_us(self, ranks: int) -> float:
        wire = self.size_bytes * (ranks - 1) / ranks * (2 if self.name == "all_reduce" else 1)
        return self.latency_us + wire / self.rate * 1e6


Program = Generator[Collective, float, None]


class Rank:
    """One host thread and its chip; methods advance the host's clock."""

    def __init__(self, rank: int = 0, world: int = 1, chip: str = H100) -> None:
        self.rank, self.world, self.chip = rank, world, chip
        self.events: list[Event] = []
        self.now = 1_000_000.0
        self.free: dict[int, float] = {}
        self.step_number = 0
        self._correlation = 0
        self.host_us = HOST_US

    # -- what the host does --

    def span(
        self, cat: str, name: str, start: float, length: float, args: Event | None = None, *, tid: int = 4242
    ) -> None:  # fmt: skip
        chip = cat in ("kernel", "gpu_memcpy", "gpu_memset")
        event = {"ph": "X", "cat": cat, "name": name, "pid": self.rank if chip else 4242, "tid": tid}
        self.events.append(event | {"ts": round(start, 3), "dur": round(length, 3), "args": args or {}})

    @contextmanager
    def inside(self, name: str, cat: str = "user_annotation") -> Iterator[None]:
        """An annotation, op or Python function around what follows."""
        begin = self.now
        yield
        self.span(cat, name, begin, self.now - begin)

    @contextmanager
    def step(self) -> Iterator[None]:
        with self.inside(f"ProfilerStep#{self.step_number}"):
            yield
        self.step_number += 1

    def busy(self, us: float, name: str = "", cat: str = "cpu_op") -> None:
        """The host does something that launches nothing."""
        if name:
            self.span(cat, name, self.now, us)
        self.now += us

    def call(self, name: str, us: float = CALL_US) -> None:
        self.span("cuda_runtime", name, self.now, us, {"correlation": self._next()})
        self.now += us

    def wait(self, *streams: int, call: str = "cudaStreamSynchronize") -> None:
        """The host waits until streams are empty; all of them without names."""
        until = max((self.free.get(one, 0.0) for one in streams or self.free), default=0.0)
        self.call(call, max(CALL_US, until - self.now + 3.0))

    def item(self) -> None:
        """A number read back: a small copy and a wait."""
        with self.inside("aten::item", "cpu_op"), self.inside("aten::_local_scalar_dense", "cpu_op"):
            self.copy("DtoH (Device -> Pageable)", 4, PCIE, op="")
            self.wait(COMPUTE)
        self.now += 4.0

    # -- what it launches --

    def op(
        self, name: str, kernel: str, us: float, *, stream: int = COMPUTE, after: float = 0.0, **recorded: Any
    ) -> float:
        """A host op with its launch inside, and the kernel; when it ends."""
        begin = self.now
        args: Event = {"External id": len(self.events) + 1}
        if "dims" in recorded:
            args |= {"Input Dims": recorded["dims"], "Input type": recorded["types"]}
            args |= {"Concrete Inputs": recorded["concrete"]} if "concrete" in recorded else {}
        self.now += self.host_us - CALL_US
        correlation = self.launch()
        self.now += 0.5
        self.span("cpu_op", name, begin, self.now - begin, args)
        return self.run(kernel, us, correlation, stream=stream, after=after, args=recorded.get("args"))

    def launch(self, name: str = "cudaLaunchKernel") -> int:
        correlation = self._next()
        self.span("cuda_runtime", name, self.now, CALL_US, {"correlation": correlation})
        self.now += CALL_US
        return correlation

    def run(
        self, kernel: str, us: float, correlation: int, *, stream: int = COMPUTE, after: float = 0.0,
        args: Event | None = None, cat: str = "kernel",
    ) -> float:  # fmt: skip
        begin = self.begins(stream, after)
        told = {"device": self.rank, "stream": stream, "correlation": correlation, **(args or {})}
        self.span(cat, kernel, begin, us, told, tid=stream)
        self.free[stream] = begin + us
        return begin + us

    def begins(self, stream: int, after: float = 0.0) -> float:
        """When work launched now could begin."""
        return max(self.now + DELAY_US, self.free.get(stream, 0.0) + GAP_US, after)

    def copy(
        self, way: str, size_bytes: float, rate: float, *, stream: int = COMPUTE, op: str = "aten::copy_"
    ) -> float:
        """A copy of the runtime; one of pageable memory holds the host until it has ended."""
        begin = self.now
        correlation = self._next()
        at = self.now
        self.now += CALL_US
        us = 2.0 + size_bytes / rate * 1e6
        end = self.run(
            f"Memcpy {way}", us, correlation, stream=stream, cat="gpu_memcpy",
            args={"bytes": int(size_bytes), "memory bandwidth (GB/s)": size_bytes / us / 1e3},
        )  # fmt: skip
        if way.startswith("HtoD (Pageable") and size_bytes > 65536:
            self.now = max(self.now, end + 2.0)
        self.span("cuda_runtime", "cudaMemcpyAsync", at, self.now - at, {"correlation": correlation})
        if op:
            self.now += 3.0
            self.span("cpu_op", op, begin - 1.0, self.now - begin + 1.0)
        return end

    def joins(self, end: float, stream: int = COMPUTE) -> None:
        """A stream waits for something that ends then."""
        self.call("cudaStreamWaitEvent", 1.5)
        self.free[stream] = max(self.free.get(stream, 0.0), end)

    # -- ops with prices --

    def mm(self, m: int, k: int, n: int, dtype: str = "bf16", *, efficiency: float = 0.72, **more: Any) -> float:
        width = WIDTH[dtype]
        us = (
            max(2.0 * m * n * k / (efficiency * PEAK[dtype]), (m * k + k * n + m * n) * width / (0.8 * BANDWIDTH)) * 1e6
        )
        dims, types = [[m, k], [k, n]], [TYPES[dtype]] * 2
        return self.op("aten::mm", PRODUCT[dtype], us + 1.5, dims=dims, types=types, **more)

    def bmm(self, batch: int, m: int, k: int, n: int) -> float:
        moved = batch * (m * k + k * n + m * n) * 2
        us = max(2.0 * batch * m * n * k / (0.6 * PEAK["bf16"]), moved / (0.8 * BANDWIDTH)) * 1e6
        dims = [[batch, m, k], [batch, k, n]]
        return self.op("aten::bmm", PRODUCT["bf16"], us + 1.5, dims=dims, types=[TYPES["bf16"]] * 2)

    def each(
        self, shape: Sequence[int], op: str = "aten::add", kernel: str = ELEMENT, *, inputs: int = 2,
        dtype: str = "bf16", **more: Any,
    ) -> float:  # fmt: skip
        """Work on each element: inputs read, one output written."""
        us = (inputs + 1) * prod(shape) * WIDTH[dtype] / (0.8 * BANDWIDTH) * 1e6 + 1.2
        dims, types = [list(shape)] * inputs, [TYPES[dtype]] * inputs
        return self.op(op, kernel, us, dims=dims, types=types, **more)

    def flash(self, batch: int, heads: int, length: int, size: int = 128) -> float:
        us = 4.0 * batch * heads * length * length * size / (0.5 * PEAK["bf16"]) * 1e6 + 3
        dims, types = [[batch, heads, length, size]] * 3, [TYPES["bf16"]] * 3
        concrete = ["", "", "", "", "False", "", ""]
        return self.op(
            "aten::_scaled_dot_product_flash_attention", FLASH, us, dims=[*dims, [], [], []],
            types=[*types, "", "Scalar", "Scalar"], concrete=concrete,
        )  # fmt: skip

    def layer(self, tokens: int, width: int, *, dtype: str = "bf16", attention: bool = True) -> None:
        """A block of a transformer, fused where good software fuses."""
        norm = "void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<c10::BFloat16, float>(int)"
        self.each((tokens, width), "aten::native_layer_norm", norm, inputs=1, dtype=dtype)
        self.mm(tokens, width, 3 * width, dtype)
        if attention:
            self.flash(max(1, tokens // 2048), width // 128, min(tokens, 2048))
        self.mm(tokens, width, width, dtype)
        self.each((tokens, width), dtype=dtype)
        self.mm(tokens, width, 4 * width, dtype)
        self.each((tokens, 4 * width), "aten::gelu", inputs=1, dtype=dtype)
        self.mm(tokens, 4 * width, width, dtype)

    # -- files --

    def collective(self, one: Collective) -> tuple[int, float]:
        """Launch this rank's part; its correlation and when it arrives, behind the compute it was called after."""
        begin = self.now
        self.now += self.host_us - CALL_US
        correlation = self.launch("cudaLaunchKernelExC")
        self.now += 1.0
        self.span("cpu_op", f"c10d::{WORDS[one.name][0].strip('_')}_", begin, self.now - begin)
        self.span("user_annotation", f"nccl:{one.name}", begin, self.now - begin)
        return correlation, self.begins(NETWORK, self.free.get(COMPUTE, 0.0) + GAP_US)

    def ends(self, one: Collective, correlation: int, begin: float, end: float) -> None:
        """The kernel of a part, from its arrival to the end that all share."""
        word, kernel = WORDS[one.name]
        args: Event = {"device": self.rank, "stream": NETWORK, "correlation": correlation}
        if one.record:
            elements = int(one.size_bytes / 2)
            inputs = elements // self.world if one.name == "all_gather" else elements
            outputs = elements // self.world if one.name == "reduce_scatter" else elements
            args |= {
                "Collective name": word, "dtype": "BFloat16", "In msg nelems": inputs, "Out msg nelems": outputs,
                "Group size": self.world, "Process Group Name": "0",
                "Process Group Ranks": str(list(range(self.world))),
            }  # fmt: skip
        self.span("kernel", kernel, begin, end - begin, args, tid=NETWORK)
        self.free[NETWORK] = end

    def whole(self) -> Event:
        """The file."""
        told = {"backend": "nccl", "rank": self.rank, "world_size": self.world}
        return {
            "schemaVersion": 1,
            "deviceProperties": [{"id": self.rank, "name": self.chip, "totalGlobalMem": 85018279936}],
            **({"distributedInfo": told} if self.world > 1 else {}),
            "displayTimeUnit": "ms",
            "traceEvents": self.events,
            "traceName": "planted",
        }

    def _next(self) -> int:
        self._correlation += 1
        return self._correlation


def together(ranks: Sequence[Rank], programs: Sequence[Program]) -> list[Event]:
    """Run the programs of all ranks; every collective ends for all when the last has come and the bytes have moved."""
    asked: list[Collective | None] = [next(program, None) for program in programs]
    while any(one is not None for one in asked):
        assert all(one is not None for one in asked), "a rank ended while others wait in a collective"
        parts = [rank.collective(one) for rank, one in zip(ranks, asked, strict=True) if one is not None]
        first = asked[0]
        assert first is not None
        end = max(begin for _, begin in parts) + first.transfer_us(len(ranks))
        for rank, one, (correlation, begin) in zip(ranks, asked, parts, strict=True):
            assert one is not None
            rank.ends(one, correlation, begin, end)
        asked = [_sent(program, end) for program in programs]
    return [rank.whole() for rank in ranks]


def _sent(program: Program, end: float) -> Collective | None:
    try:
        return program.send(end)
    except StopIteration:
        return None
