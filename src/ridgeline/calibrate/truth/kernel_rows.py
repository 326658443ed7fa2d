"""Turn a row of measured kernels into what a price needs: the op, its sizes, format, library, chip and seconds.

gemm        MxNxK, or M= N= K=, with groups= Mper= where grouped
attention   b h kv s d, or seqlen= headdim=; FlashMLA's decode and prefills as published
rows        RxC of rmsnorm, add_rmsnorm, swiglu, add, copy, cross_entropy; BabelStream; layers of GPT-3

A rate in TFLOP/s becomes seconds by the flops its source counts: 4 b h s^2 d for attention, half where causal, 2.5
times that backward.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from ridgeline.calibrate.truth.csv_cells import RowCells, Skipped, Unusable
from ridgeline.calibrate.truth.rows import Row
from ridgeline.core.errors import near
from ridgeline.core.units import BINARY, DECIMAL
from ridgeline.cost.fitting import Measurement
from ridgeline.hardware.load import CHIPS
from ridgeline.ir.kernel import Kernel

LONGEST = 1e4  # seconds
LARGEST = 2**40  # of any size
TOKENS, HIDDEN = 16384, 2048  # of FlashAttention's figures: tokens of a batch, width of all heads
FORMATS: Mapping[str, str] = MappingProxyType(
    {
        "bf16": "bf16", "bfloat16": "bf16", "fp16": "fp16", "fp16/bf16": "bf16", "fp8": "fp8", "fp8->bf16": "fp8",
        "nvfp4": "nvfp4", "fp32": "fp32", "tf32": "tf32", "int8": "int8", "object/bf16kv": "bf16", "fp64": "fp64",
        "": "bf16",
    }
)  # fmt: skip
ROW_OPS: Mapping[str, str] = MappingProxyType(
    {
        "rmsnorm": "rmsnorm", "layernorm": "layernorm", "add_rmsnorm": "add_rmsnorm", "swiglu": "swiglu", "add": "add",
        "cross_entropy_fwd": "cross_entropy", "cross_entropy": "cross_entropy", "rope": "rope", "softmax": "softmax",
        "embedding": "embedding",
    }
)  # fmt: skip
# what a row's text says -> why no formula here describes it
ELSEWHERE: tuple[tuple[str, re.Pattern[str], str], ...] = (
    ("unit", re.compile(r"%|^MB$"), "a share or a size, not a time"),
    ("kernel", re.compile(r"AllReduce", re.I), "a collective: `ridgeline validate collectives` predicts those"),
    ("kernel", re.compile(r"Mega MoE"), "a kernel that exchanges tokens among ranks and computes at once"),
    ("kernel", re.compile(r"sparse MLA"), "sparse attention: which keys it reads is not stated"),
    (
        "kernel",
        re.compile(r"\[(huggingface|torch|liger)"),
        "forward and backward of a module; its kernels are not said",
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedKernel:
    """A kernel that somebody timed: what a profile's row says of it, on a chip, with what had to be assumed.

    kernel   as a profile's row; `attention_both` is forward and backward together, `attention_latent` MLA's decode
    """

    row: Row
    chip: str
    kernel: Measurement
    notes: tuple[str, ...]


def kernel_of(row: Row) -> PublishedKernel | Skipped:
    """What a row says, or why nothing can be predicted for it; never raises for what a row holds."""
    cells = RowCells(row=row)
    try:
        return _read(cells)
    except Unusable as wrong:
        return Skipped(id=row.id, reason=str(wrong))


def _read(cells: RowCells) -> PublishedKernel:
    row = cells.row
    for column, pattern, why in ELSEWHERE:
        if pattern.search(row[column]):
            raise Unusable(column, why)
    chip = cells.text("x_chip") or cells.text("accelerator")
    if chip not in CHIPS:
        close = near(chip, list(CHIPS)) if chip else ()
        raise Unusable("x_chip", f"got {chip[:40]!r}, expected {' or '.join(close) or 'a chip of the catalog'}")
    dtype = FORMATS.get(cells.text("precision").lower())
    if dtype is None:
        raise Unusable(
            "precision", f"got {cells.text('precision')[:30]!r}, expected one of {', '.join(filter(None, FORMATS))}"
        )
    op, dims = _sizes(cells)
    if any(not 0 <= size <= LARGEST for size in dims.values()):
        raise Unusable("shape", f"got {row['shape'][:40]!r}, expected sizes up to {LARGEST:,}")
    kernel = Kernel(op=op, impl=_library(row, op), dtype=dtype, dims=MappingProxyType(dims))
    measurement = Measurement(kernel=kernel, seconds=_seconds(cells, kernel))
    return PublishedKernel(row=row, chip=CHIPS[chip].id, kernel=measurement, notes=tuple(cells.notes))


def _seconds(cells: RowCells, kernel: Kernel) -> float:
    value, unit = cells.number("value"), cells.text("unit")
    if value is None:
        raise Unusable("value", "blank")
    scale = {"us": DECIMAL["u"], "ms": DECIMAL["m"], "s": 1.0}
    rates = {"TB/s": DECIMAL["T"], "GB/s": DECIMAL["G"]}
    if unit in scale:
        seconds = value * scale[unit]
    elif unit == "TFLOPS":
        seconds = kernel.flops / (value * DECIMAL["T"])
    elif unit in rates:
        seconds = kernel.bytes / (value * rates[unit])
    else:
        raise Unusable("unit", f"got {unit[:20]!r}, expected us, ms, s, TFLOPS, TB/s or GB/s")
    if not 0 < seconds < LONGEST:
        raise Unusable("value", f"{seconds:.3g} s is not believable")
    return seconds


Sizes = tuple[str, dict[str, int]]
"""The op and its sizes."""


def _sizes(cells: RowCells) -> Sizes:
    name, shape = cells.text("kernel"), cells.text("shape")
    entries = {key.lower(): int(value) for key, value in re.findall(r"([A-Za-z/]+)=(\d{1,15})(?![\d.])", shape)}
    lower = name.lower()
    if lower.startswith(("attn_", "attention", "context attention", "flash attention", "standard attention")):
        return _attention(cells, lower, shape, entries)
    if "mla" in lower or "gqa prefill" in lower:
        return _latent(cells, lower, entries)
    if "gemm" in lower or "matmul" in lower:
        return _product(lower, shape, entries)
    if lower.startswith("babelstream"):
        return _stream(cells, lower)
    if lower.startswith("gpt-3 layer op"):
        return _gpt3(name.rpartition(" ")[2], shape)
    return _row_op(cells, lower, shape)


def _pair(shape: str, count: int) -> tuple[int, ...]:
    match = re.fullmatch(r"\s*" + r"\s*[x×]\s*".join([r"(\d{1,15})"] * count) + r"\s*", shape)
    if not match:
        raise Unusable("shape", f"got {shape[:40]!r}, expected {'x'.join('MNK'[:count] if count > 2 else 'RC')}")
    return tuple(int(size) for size in match.groups())


def _product(lower: str, shape: str, said: dict[str, int]) -> Sizes:
    if "up-proj" in lower:
        return _experts(said)
    if "groups" in said:
        m, n, k, groups = (_need(said, key) for key in ("mper", "n", "k", "groups"))
        return "grouped_gemm", {"groups": groups, "m": m, "n": n, "k": k}
    m, n, k = (said[key] for key in "mnk") if {"m", "n", "k"} <= said.keys() else _pair(shape, 3)
    if not m * n * k:
        raise Unusable("shape", f"got {shape[:40]!r}, expected sides above 0")
    return "gemm", {"m": m, "n": n, "k": k}


def _experts(said: dict[str, int]) -> Sizes:
    """Gate and up projection of the experts of one rank, tokens spread evenly over all of them."""
    experts, gpus, width, inner, tokens = (_need(said, key) for key in ("e", "gpus", "h", "i", "tok/gpu"))
    top = 8
    groups, rows = max(1, experts // max(1, gpus)), max(1, tokens * top * gpus // max(1, experts))
    return "grouped_gemm", {"groups": groups, "m": rows, "n": 2 * inner, "k": width}


def _need(said: Mapping[str, int], key: str) -> int:
    if said.get(key, 0) < 1:
        raise Unusable("shape", f"no {key}= above 0, and it cannot be guessed")
    return said[key]


def _attention(cells: RowCells, lower: str, shape: str, said: dict[str, int]) -> Sizes:
    causal = cells.flag("causal") or False
    match = re.fullmatch(r"b(\d+)h(\d+)kv(\d+)s(\d+)d(\d+)", shape.replace(" ", ""))
    if match:
        batch, heads, kv, length, width = (int(size) for size in match.groups())
    else:
        length, width = _need(said, "seqlen"), _need(said, "headdim")
        batch = said.get("b") or max(1, TOKENS // length)
        heads = said.get("q") or max(1, HIDDEN // width)
        kv = said.get("kv") or heads
    if not batch * heads * kv * length * width:
        raise Unusable("shape", f"got {shape[:40]!r}, expected sizes above 0")
    decode, direction = "decode" in lower, cells.text("direction")
    op = {"attn_fwd": "attention_forward", "attn_bwd": "attention_backward"}.get(lower)
    op = op or {"bwd": "attention_backward", "fwd": "attention_forward"}.get(direction, "attention_both")
    if direction == "unspecified":
        cells.note("forward and backward together: the direction is not stated")
    if decode:
        op, causal = "attention_decode", False
    dims = {"batch": batch, "heads": heads, "kv_heads": kv, "query": 1 if decode else length, "key": length}
    dims |= {"head_dim": width, "causal": int(causal)}
    return op, dims


def _latent(cells: RowCells, lower: str, said: dict[str, int]) -> Sizes:
    """FlashMLA's decode of 128 heads over one latent head of 576; prefills of MLA and of grouped queries."""
    if "decode" in lower:
        batch, length = _need(said, "b"), _need(said, "kv")
        dims = {"batch": batch, "heads": 128, "kv_heads": 1, "query": 1, "key": length, "head_dim": 576, "causal": 0}
        return "attention_latent", dims
    length = _need(said, "seqlen")
    heads, kv, width = (32, 8, 128) if "gqa" in lower else (128, 128, 160)  # 192 for scores and 128 for values
    dims = {"batch": 1, "heads": heads, "kv_heads": kv, "query": length, "key": length, "head_dim": width, "causal": 1}
    cells.note("one sequence: the batch is not stated")
    return "attention_forward", dims


def _stream(cells: RowCells, lower: str) -> Sizes:
    size = 256 * int(BINARY["Mi"])
    cells.note("256 MiB arrays, BabelStream's default: their size is not stated")
    passes = {"copy": 2, "mul": 2, "dot": 2, "add": 3, "triad": 3}.get(lower.split()[-1])
    if passes is None:
        raise Unusable("kernel", f"got {lower[:40]!r}, expected copy, mul, add, triad or dot of BabelStream")
    op = "read" if lower.endswith("dot") else "copy"
    return op, {"bytes": size * passes // (1 if op == "read" else 2)}


def _gpt3(part: str, shape: str) -> Sizes:
    """One layer of GPT-3 175B over four chips, eight sequences."""
    decode = "decode" in shape
    tokens = 8 if decode else 8 * 2048
    if part in ("Q_mul_K", "A_mul_V"):
        if decode:
            raise Unusable("shape", "how many keys a decode step reads is not stated")
        n, k = (2048, 128) if part == "Q_mul_K" else (128, 2048)
        return "grouped_gemm", {"groups": 8 * 24, "m": 2048, "n": n, "k": k}
    sides = {"Wo_proj": (12288, 3072), "W1_proj": (12288, 12288), "W2_proj": (12288, 12288), "QKV": (9216, 12288)}
    if part in sides:
        return "gemm", {"m": tokens, "n": sides[part][0], "k": sides[part][1]}
    if part.startswith("LayerNorm") or part == "GeLU":
        return "layernorm" if part != "GeLU" else "softmax", {"rows": tokens, "columns": 12288}
    raise Unusable("kernel", f"got {part[:30]!r}, which is not known")


def _row_op(cells: RowCells, lower: str, shape: str) -> Sizes:
    if lower in ROW_OPS:
        rows, columns = _pair(shape, 2)
        return ROW_OPS[lower], {"rows": max(1, rows), "columns": max(1, columns)}
    if lower == "copy":
        rows, columns = _pair(shape, 2)
        return "copy", {"bytes": max(1, rows * columns * 2)}
    match = re.fullmatch(r"\s*(?:bytes=|parameters=)?(\d{1,15})(?:\s*B)?\s*", shape)
    if match and int(match[1]) > 0:
        size = int(match[1])
        if lower.startswith("adamw"):
            return "adamw", {"parameters": size}
        if lower.startswith(("h2d", "d2h")):
            return lower[:3], {"bytes": size, "pinned": int("page" not in cells.text("library_version"))}
        if lower.startswith("launch"):
            return "launch", {}
    raise Unusable("kernel", f"got {lower[:40]!r} of {shape[:40]!r}, for which no formula is known")


# what a row's kernel and version name -> the implementation of a profile
LIBRARIES: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"torch_flow|trtllm", re.I), "trtllm"),
    (re.compile(r"vllm", re.I), "vllm"),
    (re.compile(r"sglang", re.I), "sglang"),
    (re.compile(r"DeepGEMM", re.I), "deepgemm"),
    (re.compile(r"FlashAttention-3", re.I), "flash-3"),
    (re.compile(r"cudnn", re.I), "cudnn"),
    (re.compile(r"flash2|FlashAttention-2|Flash Attention 2", re.I), "flash"),
    (re.compile(r"xformers", re.I), "xformers"),
    (re.compile(r"triton", re.I), "triton"),
    (re.compile(r"attention (PyTorch|Standard)|Standard Attention", re.I), "math"),
    (re.compile(r"cuBLASLt", re.I), "cublaslt"),
    (re.compile(r"inductor|compile", re.I), "compiled"),
    (re.compile(r"max achievable", re.I), "tuned"),
    (re.compile(r"GPT-3 layer", re.I), "torch-2023"),
    (re.compile(r"fast_accum", re.I), "scaled_mm"),
)


def _library(row: Row, op: str) -> str:
    row_text = f"{row['kernel']} {row['library_version']}"
    library = next((name for pattern, name in LIBRARIES if pattern.search(row_text)), "")
    if library:
        return library
    if op == "adamw":
        return "fused" if "fused" in row_text else "foreach"
    return "infersim" if row.source == "infersim" else "torch"
