"""Turn measured kernels into seconds beside what a profile, a library's published figures, or the fit says of them.

    1 profile    the chip's own profile, the same implementation             evidence measured
    2 library    the same library's figures on that chip: published rows and aiconfigurator's, in `cost/profiles`
    3 kin        the same library on another chip of its family
    4 fitted     data-sheet roof times the calibration's sustained shares

A published row is never used for itself: whatever has its chip, library and sizes is left out of what prices it. Own
H200 rows are no library's: they judge the profile, which was taken by `ridgeline characterize` on other days.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from types import MappingProxyType

import numpy as np

from ridgeline.calibrate.truth.rows import TRUTH, WORDS, Row, RowCells, Skipped, Unusable, read_or_skip, read_table
from ridgeline.calibrate.validation import Validation, ValidationCase, quantile_span
from ridgeline.core.dtype import element_bytes
from ridgeline.core.errors import RidgelineError, near
from ridgeline.core.evidence import Evidence
from ridgeline.core.units import BINARY, DECIMAL
from ridgeline.cost import Calibration, Profile, default_calibration, fitting, owners, read_profile
from ridgeline.hardware.load import CHIPS, chip
from ridgeline.ir.kernel import FLASH_PASSES, LEAST_OUTPUT, PRODUCTS, Kernel, product_bytes
from ridgeline.plan.engine import ENGINES

LIBRARY_FOLDER = fitting.SHIPPED_PROFILES / "libraries"
FEWEST_WARM = 24  # products from the cache, below which they say little of others
FEWEST = 3  # rows that make a surface of a library's published figures
STAND_INS: Mapping[str, Sequence[str]] = WORDS["stand_ins"]  # the nearest first
HEADS_FIRST = "_bhsd"  # attention on tensors whose heads lie before tokens, as benchmarks have them and models have not
CASTS, NARROW = ("trtllm",), ("fp8", "nvfp4")  # a library that times the cast of its inputs in these formats too
# which engine's calibration prices a kernel that nobody measured
ENGINE_OF: Mapping[str, str] = MappingProxyType(
    {"flash": "torchtitan", "triton": "llm-foundry", "cudnn": "torch-eager"}
)
UNFUSED = 4.0  # a flash kernel's time over, of attention whose scores go through memory
Key = tuple[str, str, str, str, int]
"""Chip, op, implementation, format, causal: what a surface is of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelPrice:
    """Seconds of one kernel: where they come from, doublings to the nearest measured one, and their evidence."""

    seconds: float
    how: str
    distance: float
    evidence: Evidence


def validate_kernels(rows: Iterable[Row], profiles: Mapping[str, Profile]) -> Validation:
    """The cases of a table of kernels; a published row's own figure is left out of what prices it."""
    priceable: list[PublishedKernel] = []
    skipped_rows: list[Skipped] = []
    for row in rows:
        item = kernel_of(row)
        if isinstance(item, Skipped):
            skipped_rows.append(item)
        elif is_priceable(item):
            priceable.append(item)
        else:
            reason = f"precision: {item.chip} has no published rate for {item.kernel.dtype}, or for its memory"
            skipped_rows.append(Skipped(id=row.id, reason=reason))
    cases = tuple(
        ValidationCase.of(
            item.row, item.kernel.seconds, price.seconds, kernel_interval(item, price), part=item.kernel.op,
            chip=item.chip, engine=item.kernel.impl, cross_validated=price.how.startswith("library"),
            assumptions=(price.how, *item.notes),
        )
        for item, price in zip(priceable, price_kernels(priceable, profiles), strict=True)
    )  # fmt: skip
    return Validation(kind="kernels", cases=cases, skipped=tuple(skipped_rows))


def price_kernels(
    kernels: Sequence[PublishedKernel], profiles: Mapping[str, Profile], calibration: Calibration | None = None
) -> list[KernelPrice]:
    """The price of every kernel: by profiles first, by libraries' figures without its own, by the calibration last."""
    numbers = calibration or default_calibration()
    tables = _Tables(profiles)
    return [_slower(kernel, _price_kernel(kernel, tables, numbers), tables, numbers) for kernel in kernels]


def _slower(one: PublishedKernel, price: KernelPrice, tables: _Tables, calibration: Calibration) -> KernelPrice:
    """A compiled kernel of our own tables, which is slower than the one `characterize` compiles for its very shape.

    By as much as the other compiled kernels of the tables are: the geometric mean of measured over priced. They were
    compiled for any number of rows, as an engine that sees many lengths does.
    """
    if one.kernel.impl != "compiled" or not is_own(one.row) or price.how != "profile":
        return price
    other_logs = [
        math.log(peer.kernel.seconds / _price_kernel(peer, tables, calibration).seconds)
        for peer in bundled_kernels()
        if peer.kernel.impl == "compiled" and peer.chip == one.chip and is_own(peer.row)
        and (peer.kernel.op, dict(peer.kernel.dims)) != (one.kernel.op, dict(one.kernel.dims))
    ]  # fmt: skip
    if len(other_logs) < FEWEST:
        return price
    ratio = math.exp(sum(other_logs) / len(other_logs))
    how = f"profile, times {ratio:.2f} by other kernels compiled for any length"
    return replace(price, seconds=price.seconds * ratio, how=how, evidence=Evidence.FITTED)


def _price_kernel(one: PublishedKernel, tables: _Tables, calibration: Calibration) -> KernelPrice:
    kernel = one.kernel
    roof = fitting.kernel_roof(kernel, _sheet(one.chip))
    fitted_s = roof / _share(kernel, one.chip, calibration)
    for how, rows, sheet in tables.candidates(one):
        surface = fitting.Surface.of(rows, sheet)
        if surface is None:
            continue
        row = _as_run(one, rows) if kernel.op == "gemm" else kernel
        ratio, nearest, far = surface.price(row, rows[0].dtype, sheet)
        if far >= 1:
            continue
        seconds = float(np.exp((1 - far) * (np.log(roof) + ratio) + far * np.log(fitted_s)))
        evidence = Evidence.MEASURED if how == "profile" and far == 0 else Evidence.FITTED
        return KernelPrice(seconds=seconds, how=how, distance=nearest, evidence=evidence)
    return KernelPrice(seconds=fitted_s, how="fitted", distance=float("inf"), evidence=Evidence.FITTED)


def _as_run(one: PublishedKernel, rows: Sequence[fitting.Measurement]) -> fitting.Measurement:
    """The kernel with what its benchmark does to it: replays of one graph find small operands in the cache.

    Told only where enough of the rows that price it were measured so.
    """
    kernel, cache_capacity = one.kernel, chip(one.chip).cache.capacity
    m, n, k = (kernel.dims[side] for side in "mnk")
    size = product_bytes((m, n, k), 1, element_bytes(kernel.dtype), LEAST_OUTPUT)
    has_warm_rows = sum(row.figures.get("cold") == 0 for row in rows) >= FEWEST_WARM
    warm = has_warm_rows and is_own(one.row) and cache_capacity is not None and size < cache_capacity.value
    return replace(kernel, figures={"cold": 0.0}) if warm else kernel


class _Tables:
    """Measured rows by what a surface is of."""

    def __init__(self, profiles: Mapping[str, Profile]) -> None:
        self.own: dict[Key, list[fitting.Measurement]] = {}
        for id, profile in profiles.items():
            for row in _without_warm(profile):
                self.own.setdefault(_key(id, row), []).append(row)
        self.library = _library_rows()

    def candidates(self, one: PublishedKernel) -> Iterable[tuple[str, list[fitting.Measurement], fitting.ChipRates]]:
        """Rows that can price a kernel, best first, each with the data sheet they are shares of."""
        family = CHIPS[one.chip].family
        chips = [
            one.chip,
            *tuple(other.id for other in CHIPS.values() if family and other.family == family and other.id != one.chip),
        ]
        impl_name, narrow = one.kernel.impl, one.kernel.dtype in NARROW
        substitutes = [name for name in STAND_INS.get(impl_name, ()) if not (narrow and name in CASTS)]
        impls = (f"{impl_name}{HEADS_FIRST}", impl_name, *substitutes)
        for impl in impls:
            rows = self.own.get(_key(one.chip, one.kernel, impl), [])
            if one.kernel.op == "launch":  # of the same kind of call
                rows = [row for row in rows if row.kernel.words.get("kind", "") in one.row["kernel"]]
            if rows:
                yield "profile", rows, _sheet(one.chip)
        for impl in impls:
            for place, id in enumerate(chips):
                rows = [
                    row
                    for row in self.library.get(_key(id, one.kernel, impl), ())
                    if not (dict(row.dims) == dict(one.kernel.dims) and (id == one.chip or row.impl == one.kernel.impl))
                ]
                if len(rows) >= FEWEST:
                    yield "library" if not place else f"library on {id}", rows, _sheet(id)


def _key(id: str, row: fitting.Measurement, impl: str = "") -> Key:
    dtype = "bf16" if row.dtype == "fp16" and row.op in FLASH_PASSES else row.dtype
    dtype = "" if row.op in ("copy", "read", "write", "h2d", "d2h", "launch") else dtype
    name = impl or row.impl
    layout = {"torch_nn": "torch", "torch_nt": "torch"}.get(name, name) if row.op == "gemm" else name
    return id, row.op, layout, dtype, int(row.dims.get("causal", 0)) if row.op in FLASH_PASSES else 0


def _without_warm(profile: Profile) -> Iterable[fitting.Measurement]:
    """Rows that ran; of copies in the cache only those smaller than any that was kept out of it."""
    cold = [row.dims.get("bytes", 0) for row in profile.rows if row.ok and row.figures.get("cold") == 1]
    least = min(cold, default=0)
    for row in profile.rows:
        warm = row.figures.get("cold") == 0 and row.op in ("copy", "read", "write")
        if row.ok and not (warm and least and row.dims.get("bytes", 0) >= least):
            yield row


@cache
def _sheet(id: str) -> fitting.ChipRates:
    return fitting.ChipRates.of(chip(id))


@cache
def bundled_kernels() -> tuple[PublishedKernel, ...]:
    """The bundled rows that can be predicted."""
    read = (kernel_of(row) for row in read_table(TRUTH / "kernels.csv", ("kernels",))[1])
    return tuple(item for item in read if not isinstance(item, Skipped))


@cache
def _library_rows() -> Mapping[Key, tuple[fitting.Measurement, ...]]:
    """What libraries published, by what a surface is of: bundled rows but our own, and aiconfigurator's."""
    rows_by_key: dict[Key, list[fitting.Measurement]] = {}
    for kernel_row in bundled_kernels():
        if not is_own(kernel_row.row):
            rows_by_key.setdefault(_key(kernel_row.chip, kernel_row.kernel), []).append(kernel_row.kernel)
    for path in sorted(LIBRARY_FOLDER.glob("*.json")):
        profile = read_profile(path)
        for row in profile.rows:
            if row.ok:
                rows_by_key.setdefault(_key(profile.chip, row), []).append(row)
    return MappingProxyType({key: tuple(rows) for key, rows in rows_by_key.items()})


def is_own(row: Row) -> bool:
    """Whether a row was measured for this project: it judges profiles and prices nothing."""
    return row["source"].startswith("own measurement")


def is_priceable(one: PublishedKernel) -> bool:
    """Whether the catalog has the rates that a kernel's roof needs."""
    try:
        return math.isfinite(fitting.kernel_roof(one.kernel, _sheet(one.chip)))
    except RidgelineError:
        return False


def _share(kernel: fitting.Measurement, id: str, calibration: Calibration) -> float:
    """What the calibration says is sustained of a kernel's roof."""
    owner_names = owners(chip(id), ENGINES[ENGINE_OF.get(kernel.impl, "torch-eager")])
    if kernel.op in PRODUCTS:
        return calibration.owner_value(fitting.product_parameter(kernel.dtype), owner_names)
    if kernel.op in FLASH_PASSES:
        share = calibration.owner_value("attention", owner_names)
        share *= 1.0 if kernel.op == "attention_forward" else calibration.owner_value("attention_back", owner_names)
        return share / (UNFUSED if kernel.impl in ("math", "xformers") else 1.0)
    return calibration.owner_value("memory", owner_names) if kernel.op not in ("h2d", "d2h", "launch") else 0.85


def group_of(kernel: Kernel | fitting.Measurement) -> str:
    """What kernels are reported by: product, attention, or memory.

    >>> group_of(Kernel(op="gemm", dims={}))
    'product'
    """
    if kernel.op in PRODUCTS:
        return "product"
    return "attention" if kernel.op.startswith("attention") else "memory"


@cache
def _bundled_log_ratios() -> Mapping[tuple[str, bool], tuple[tuple[str, float], ...]]:
    """By group and whether fitted, id and log(measured / predicted) of bundled kernels."""
    from ridgeline.cost import shipped_profiles

    kernels = bundled_kernels()
    logs_by_group: dict[tuple[str, bool], list[tuple[str, float]]] = {}
    for kernel, price in zip(kernels, price_kernels(kernels, shipped_profiles()), strict=True):
        log = float(np.log(kernel.kernel.seconds / price.seconds))
        logs_by_group.setdefault((group_of(kernel.kernel), price.how == "fitted"), []).append((kernel.row.id, log))
    return MappingProxyType({key: tuple(pairs) for key, pairs in logs_by_group.items()})


def kernel_interval(one: PublishedKernel, price: KernelPrice) -> tuple[float, float]:
    """Where nine of ten measurements lie around a price of 1 s: bundled kernels of that group priced alike, not it."""
    pairs = _bundled_log_ratios().get((group_of(one.kernel), price.how == "fitted"), ())
    logs = [log for id, log in pairs if id != one.row.id]
    if len(logs) < 10:
        return 0.5, 2.0
    return quantile_span(logs)


LONGEST = 1e4  # seconds
LARGEST = 2**40  # of any size
TOKENS, HIDDEN = 16384, 2048  # of FlashAttention's figures: tokens of a batch, width of all heads
FORMATS: Mapping[str, str] = WORDS["kernel_formats"]
ROW_OPS: Mapping[str, str] = WORDS["row_kernels"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedKernel:
    """A kernel that somebody timed: what a profile's row says of it, on a chip, with what had to be assumed.

    kernel   as a profile's row; `attention_both` is forward and backward together, `attention_latent` MLA's decode
    """

    row: Row
    chip: str
    kernel: fitting.Measurement
    notes: tuple[str, ...]


def kernel_of(row: Row) -> PublishedKernel | Skipped:
    """What a row says, or why nothing can be predicted for it.

    gemm        MxNxK, or M= N= K=, with groups= Mper= where grouped
    attention   b h kv s d, or seqlen= headdim=; FlashMLA's decode and prefills as published
    rows        RxC of rmsnorm, add_rmsnorm, swiglu, add, copy, cross_entropy; BabelStream; layers of GPT-3

    A rate in TFLOP/s becomes seconds by the flops its source counts: 4 b h s^2 d for attention, half where causal, 2.5
    times that backward.
    """
    return read_or_skip(row, _read)


def _read(cells: RowCells) -> PublishedKernel:
    row = cells.row
    cells.refuse_elsewhere("kernels_elsewhere")
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
    measurement = fitting.Measurement(kernel=kernel, seconds=_seconds(cells, kernel))
    return PublishedKernel(row=row, chip=CHIPS[chip].id, kernel=measurement, notes=tuple(cells.notes))


def _seconds(cells: RowCells, kernel: Kernel) -> float:
    value, unit = cells.number("value"), cells.text("unit")
    if value is None:
        raise Unusable("value", "blank")
    match unit:
        case "us" | "ms" | "s":
            seconds = value * {"us": DECIMAL["u"], "ms": DECIMAL["m"], "s": 1.0}[unit]
        case "TFLOPS":
            seconds = kernel.flops / (value * DECIMAL["T"])
        case "TB/s" | "GB/s":
            seconds = kernel.bytes / (value * DECIMAL[unit[0]])
        case _:
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


def _library(row: Row, op: str) -> str:
    row_text = f"{row['kernel']} {row['library_version']}"
    library = next((name for pattern, name in WORDS["libraries"] if re.search(pattern, row_text, re.IGNORECASE)), "")
    if library:
        return library
    if op == "adamw":
        return "fused" if "fused" in row_text else "foreach"
    return "infersim" if row.source == "infersim" else "torch"
