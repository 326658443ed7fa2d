"""Turn a timeline into what it ran on: vendor, framework, engine; and that into advice that fits it.

Advice is a table: a topic, and for each software or vendor the words for it; the most particular entry wins, in the
order engine, framework, vendor, anybody.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from ridgeline.hardware.chip import Chip
from ridgeline.trace.timeline import Timeline

VLLM = re.compile(r"\bvllm::|_C_cache_ops::|gpu_model_runner|vllm/|execute_(new|context)_\d+", re.IGNORECASE)
SGLANG = re.compile(r"\bsgl_kernel\b|sglang|sgl_hip|TpModelWorker|ScheduleBatch", re.IGNORECASE)
ROCM = re.compile(r"^hip[A-Z]|\bCijk_|__amd_rocclr|ck_tile::|MIOpen|rccl", re.MULTILINE)
COMPILED = re.compile(r"Torch-Compiled Region|CompiledFxGraph|torchinductor|^triton_(poi|red|per|tem)_", re.MULTILINE)
JAX = re.compile(r"\bPjitFunction|\bjit_\w+|XlaModule|hlo_module|PjRt", re.IGNORECASE)
ASCEND = re.compile(r"ascend|msprof|cann", re.IGNORECASE)
NO_BF16 = re.compile(r"V100|\bT4\b|RTX 20\d\d|2080|TITAN V|P100|P40|GTX", re.IGNORECASE)
NVIDIA, AMD, HUAWEI = "nvidia", "amd", "huawei"


@dataclass(frozen=True, slots=True, kw_only=True)
class Software:
    """What ran: each field empty where nothing says."""

    vendor: str = ""
    framework: str = ""
    engine: str = ""
    compiled: bool = False
    """Whether torch.compile made some of the kernels."""
    bf16: bool = True
    """Whether the chip's matrix unit takes bf16; TF32 came with it."""

    def says(self, topic: str) -> str:
        """The advice on a topic that fits this software best."""
        words = ADVICE[topic]
        keys = (self.engine, self.framework + "+compiled" * self.compiled, self.framework, self.vendor)
        return next((words[key] for key in keys if key and key in words), words[""])


def software_of(line: Timeline, chip: Chip | None) -> Software:
    """What a timeline was recorded of, by its format, its chips and the names in it."""
    names = "\n".join(name[:200] for name in line.names)
    about = line.about
    recorder = " ".join((about.format, *about.chips))
    vendor = (chip.vendor.lower() if chip else "") or _vendor(recorder, names)
    framework = "pytorch"
    if "xla" in about.format.lower() or "xplane" in about.format.lower() or JAX.search(names):
        framework = "jax"
    elif "mindspore" in about.format.lower() or re.search(r"^Default/\w", names, re.MULTILINE):
        framework = "mindspore"
    engine = "vllm" if VLLM.search(names) else "sglang" if SGLANG.search(names) else ""
    return Software(
        vendor=vendor, framework=framework, engine=engine, compiled=bool(COMPILED.search(names)),
        bf16=not NO_BF16.search(recorder) and not re.search(r"^(volta|turing)_", names, re.MULTILINE),
    )  # fmt: skip


def _vendor(told: str, names: str) -> str:
    if re.search(r"\bAMD|Instinct|MI\d{3}|Radeon", told) or ROCM.search(names):
        return AMD
    if ASCEND.search(told):
        return HUAWEI
    return NVIDIA if re.search(r"NVIDIA|Tesla|GeForce|RTX|\bcuda", told + names, re.IGNORECASE) else ""


ADVICE: Mapping[str, Mapping[str, str]] = {
    "launch": {
        "vllm": "drop --enforce-eager, so that steps replay captured graphs; capture sizes up to your batch",
        "sglang": "leave graphs on (no --disable-cuda-graph), with --cuda-graph-max-bs up to your batch",
        "jax": "one jit around the whole step, command buffers (--xla_gpu_enable_command_buffer), fewer jit boundaries",
        "mindspore": "graph mode with data sinking, so that a step is one launch",
        "pytorch+compiled": "compiled kernels are launched one by one from Python: mode='reduce-overhead' replays "
        "graphs, cpp_wrapper=True takes Python out; otherwise fuse, or make kernels larger",
        "huawei": "graph mode (torchair), TASK_QUEUE_ENABLE=2, cores bound to the process",
        "amd": "replay graphs (torch.compile mode='reduce-overhead', HIP graphs), fuse, or make kernels larger",
        "": "replay graphs (torch.compile mode='reduce-overhead', CUDA graphs), fuse, or make kernels larger",
    },
    "products": {
        "jax": "other shapes, xla_gpu_autotune_level=4, lower precision (bf16, fp8)",
        "amd": "hipBLASLt tuned for these shapes (PYTORCH_TUNABLEOP_ENABLED=1), AITER or CK kernels, lower precision",
        "huawei": "sizes in multiples of 16, NZ layouts, fused operators of torch_npu, lower precision",
        "": "other shapes, another kernel or library (tuned cuBLASLt, CUTLASS), lower precision",
    },
    "attention": {
        "jax": "jax.nn.dot_product_attention(implementation='cudnn'), or a Pallas kernel; wider heads",
        "amd": "try another kernel (AITER's, CK's flash-attention); wider heads, longer blocks of tokens",
        "huawei": "npu_fusion_attention; wider heads, longer blocks of tokens",
        "": "try another kernel ({other}); wider heads, longer blocks of tokens",
    },
    "unfused attention": {
        "jax": "jax.nn.dot_product_attention(implementation='cudnn') instead of einsum, softmax, einsum",
        "amd": "scaled_dot_product_attention, or AITER's or CK's flash-attention: one kernel that keeps scores on chip",
        "huawei": "torch_npu.npu_fusion_attention: one kernel that keeps scores on chip",
        "": "scaled_dot_product_attention (attn_implementation='sdpa' or 'flash_attention_2'): one kernel that keeps "
        "scores on chip",
    },
    "fuse": {
        "vllm": "leave compilation on (-O3), so that norms, activations and quantisation are fused",
        "sglang": "--enable-torch-compile, or the fused kernels of sgl_kernel and AITER",
        "jax": "one jit around them: XLA fuses what lies in one program",
        "pytorch+compiled": "what breaks the graph between them? (TORCH_LOGS=graph_breaks); fused norms and losses",
        "huawei": "fused operators of torch_npu (npu_rms_norm, npu_swiglu), or graph mode",
        "": "fuse them: torch.compile, or fused norms, activations, optimizers and losses",
    },
    "traffic": {
        "jax": "one jit around them: XLA fuses what lies in one program; donated buffers",
        "pytorch+compiled": "contiguous layouts, 16-byte loads, fewer broadcasts and casts; max-autotune",
        "": "compile or fuse them; contiguous layouts, 16-byte loads, fewer broadcasts and casts",
    },
    "overlap": {
        "vllm": "all-reduces fused with the norm behind them (-O3, fuse_allreduce_rms), fewer ranks a tensor and more "
        "replicas; experts: --enable-dbo overlaps two batches",
        "sglang": "all-reduces fused with the norm behind them (--enable-flashinfer-allreduce-fusion), fewer ranks a "
        "tensor and more replicas; experts: --enable-two-batch-overlap",
        "jax": "XLA's latency-hiding scheduler (--xla_gpu_enable_latency_hiding_scheduler=true; TPUs run fused "
        "collectives beside compute), or shardings that need no exchange here",
        "mindspore": "gradients in smaller fused parts (all_reduce_fusion_config, comm_fusion) that start in backward",
        "": "{own}",
    },
    "stacks": {
        "jax": "record Python as well (jax.profiler, python_tracer_level=1) to see what the host did",
        "": "record Python as well (with_stack=True) to see what the host did; often the garbage collector or logging",
    },
    "synchronisation": {
        "vllm": "asynchronous scheduling (--async-scheduling), and sampling on the chip: the host reads tokens back",
        "sglang": "the overlap scheduler (leave it on), and sampling on the chip: the host reads tokens back",
        "jax": "remove what makes the host wait (block_until_ready, float(), np.asarray of an array) or do it rarely",
        "": "remove what makes the host wait (.item(), .cpu(), nonzero, prints) or do it rarely",
    },
    "loader": {
        "jax": "prefetch to the device (grain, tf.data with prefetch), more workers; or prepare the data beforehand",
        "mindspore": "more num_parallel_workers, larger prefetch_size, data sinking",
        "": "more loader workers, prefetching, pinned memory; or prepare the data beforehand",
    },
    "layout": {
        "amd": "model.to(memory_format=torch.channels_last) and PYTORCH_MIOPEN_SUGGEST_NHWC=1: convolutions on NHWC",
        "": "model and inputs .to(memory_format=torch.channels_last): convolutions run on NHWC",
    },
    "compile": {
        "jax": "fixed shapes, so that jit compiles once; a persistent compilation cache",
        "": "warm up; fixed or marked dynamic shapes, so that nothing recompiles",
    },
}  # fmt: skip
