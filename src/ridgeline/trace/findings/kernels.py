"""Rules about kernels: far below the roofline, without tensor cores, in chains to be fused, unfused optimizers."""

from __future__ import annotations

import re
from collections.abc import Iterator
from math import ceil

import numpy as np
from numpy.typing import NDArray

from ridgeline.core.units import DECIMAL
from ridgeline.hardware.chip import Chip
from ridgeline.trace.analysis.roofline import OpRate
from ridgeline.trace.classes import COMPUTE
from ridgeline.trace.findings.finding import MOST, Facts, Finding, Gain
from ridgeline.trace.intervals import cover, covered
from ridgeline.trace.timeline import ANNOTATION

FUSIBLE = ("elementwise", "norm", "kernel-copy", "reduction", "rope", "quantize", "random", "softmax", "loss")
PRODUCTS = ("matmul", "convolution")
TOGETHER_NS = 20_000  # kernels this close to each other are one chain
FEW_WASTED = 0.12  # of the cores' time in a last wave or an unfilled one: less is not why a product is slow
TILE = re.compile(r"(?<![\dx])(?:MT)?(\d{2,3})x(\d{2,3})(?:x\d+)?[_x]")
ALIGNED = {"fp32": 4, "tf32": 4, "fp16": 8, "bf16": 8, "fp8": 16, "int8": 16}  # elements of 16 bytes
FP32 = re.compile(r"sgemm|simt_s|scudnn|_S_B_|implicit_convolve_s", re.IGNORECASE)
MATRIX_UNIT = re.compile(r"tf32|s1688|s16816|tensorop", re.IGNORECASE)
BEFORE_TF32 = re.compile(r"volta|turing|maxwell|pascal", re.IGNORECASE)
ANY_FP32 = 2.0  # how much faster the matrix unit is at least, where the chip is not known
FUSED = re.compile(r"multi_tensor|foreach|fused|apex|_opt_", re.IGNORECASE)
MANY = 50  # kernels of an optimizer a step


def slow_products(facts: Facts) -> Iterator[Finding]:
    """Gain: the time of matrix products above what good kernels reach; names the worst shape and what is odd in it."""
    for class_ in PRODUCTS:
        rates = [rate for rate in facts.rates if rate.class_ == class_ and _slow(rate)]
        if not rates:
            continue
        total, roof, gain = _above(facts, (class_,), rates)
        worst = max(rates, key=lambda rate: rate.total_ns - (rate.roof_ns or 0.0))
        odd, action = _odd(facts, worst)
        bound = worst.bound or "compute"
        yield facts.finding(
            f"{class_} at {roof / total:.0%} of the roof of {_name(facts.chip)}; most in {worst.op} "
            f"{operands(worst)} {worst.dtype} at {worst.efficiency:.0%} of the {bound} roof{odd}",
            worst.rows, total, gain, action,
        )  # fmt: skip


def slow_attention(facts: Facts) -> Iterator[Finding]:
    """Gain: the time of attention above what good kernels reach at its head size, softmax counted."""
    rates = [rate for rate in facts.rates if rate.class_ == "attention" and _slow(rate)]
    if not rates:
        return
    total, roof, gain = _above(facts, ("attention",), rates)
    worst = max(rates, key=lambda rate: rate.total_ns - (rate.roof_ns or 0.0))
    names = {facts.line.names[int(code)] for code in np.unique(facts.line.name[facts.of_class("attention")]).tolist()}
    used = next(
        (what for what in ("cudnn", "flash", "fmha", "ck_tile", "triton") if what in " ".join(names).lower()), ""
    )
    other = {"cudnn": "flash-attention", "flash": "cuDNN's"}.get(used, "cuDNN's or flash-attention")
    yield facts.finding(
        f"attention at {roof / total:.0%} of the roof of {_name(facts.chip)}, where good kernels reach "
        f"{worst.reachable:.0%} at this size; most in {worst.op} {operands(worst)}",
        worst.rows, total, gain, f"try another kernel ({other}); wider heads, longer blocks of tokens",
    )  # fmt: skip


def slow_traffic(facts: Facts) -> Iterator[Finding]:
    """Gain: the time of kernels bound by memory above 80 % of its rate, all classes together."""
    rates = [
        rate
        for rate in facts.rates
        if rate.class_ not in (*PRODUCTS, "attention") and _slow(rate) and rate.bound == "memory"
    ]
    if not rates:
        return
    classes = tuple(dict.fromkeys(rate.class_ for rate in rates))
    total, roof, gain = _above(facts, classes, rates)
    parts = []
    for class_ in classes:
        own = [rate for rate in rates if rate.class_ == class_]
        spent = sum(rate.total_ns for rate in own)
        if spent >= 0.05 * total:
            parts.append(f"{class_} {sum(rate.roof_ns or 0.0 for rate in own) / spent:.0%}")
    worst = max(rates, key=lambda rate: rate.total_ns - (rate.roof_ns or 0.0))
    yield facts.finding(
        f"kernels bound by memory at {roof / total:.0%} of the memory roof of {_name(facts.chip)} "
        f"({', '.join(parts)}); most in {worst.op} {operands(worst)}",
        worst.rows, total, gain, "compile or fuse them; contiguous layouts, 16-byte loads, fewer broadcasts and casts",
    )  # fmt: skip


def operands(rate: OpRate) -> str:
    """The first two operands, which tell a shape; the others follow from them."""
    return " ".join(rate.operands.split(" ")[:2])


def _slow(rate: OpRate) -> bool:
    return rate.efficiency is not None and rate.efficiency < rate.reachable


def _above(facts: Facts, classes: tuple[str, ...], rates: list[OpRate]) -> tuple[float, float, Gain]:
    """Time of some ops, what the roof allows, and what would go if all were as good as good kernels."""
    total = sum(rate.total_ns for rate in rates)
    roof = sum(rate.roof_ns or 0.0 for rate in rates)
    gain = total - sum((rate.roof_ns or 0.0) / rate.reachable for rate in rates)
    if facts.gains is None:
        return total, roof, Gain(gain)
    whole = sum(one.total_ns for one in facts.parts.classes if one.id in classes) or total
    return total, roof, Gain(gain, facts.gains.faster(classes, whole / max(1.0, whole - gain)))


def _name(chip: Chip | None) -> str:
    return chip.id if chip else "the chip"


def _odd(facts: Facts, rate: OpRate) -> tuple[str, str]:
    """What of a product's shape keeps it from the roof, in words, and what to do about it."""
    action = "other shapes, another kernel or library (tuned cuBLASLt, CUTLASS), lower precision"
    if rate.bound == "memory" and "bmm" in rate.op:
        return "", "fuse it with its neighbours (attention, pooling), or batch fewer and larger products"
    if rate.bound == "memory":
        return "", "larger batches, so that weights are read once for more rows; or fuse it with its neighbours"
    sizes = _mnk(rate)
    if sizes is None:
        return "", action
    step = ALIGNED.get(rate.dtype, 1)
    crooked = [size for size in sizes if size % step]
    if crooked:
        up = -(-crooked[0] // step) * step
        return (
            f"; {crooked[0]:,} is no multiple of {step}",
            f"pad {crooked[0]:,} to {up:,}: 16-byte rows let the matrix unit load fast",
        )
    kernel = facts.line.names[_kernel(facts, rate)]
    found, cores = TILE.search(kernel), int(facts.chip.cores.value) if facts.chip and facts.chip.cores else 0
    if found is None or not cores or len(re.findall("x", rate.operands)) > 3:
        return "", action
    rows, columns = int(found[1]), int(found[2])
    tiles = min(ceil(sizes[0] / rows) * ceil(sizes[1] / columns), ceil(sizes[0] / columns) * ceil(sizes[1] / rows))
    waves = tiles / cores
    if tiles < cores:
        told = f"; {tiles} tiles of {rows}x{columns} fill {tiles} of {cores} cores"
        return told, "larger batches, smaller tiles or split-K: there are not enough tiles for all cores"
    if 1 - waves / ceil(waves) > FEW_WASTED:
        told = f"; {tiles} tiles of {rows}x{columns} on {cores} cores are {waves:.2f} waves"
        return (
            told,
            f"a size of at most {(ceil(waves) - 1) * cores} tiles, or of nearly {ceil(waves) * cores}; or stream-K",
        )
    return "", action


def _mnk(rate: OpRate) -> tuple[int, int, int] | None:
    """Rows, columns and inner size of a plain product, from its operands as recorded."""
    dims = [[int(size) for size in one.split("x")] for one in rate.operands.split() if one]
    flat = [one for one in dims if len(one) == 2]
    flat = flat[1:] if "addmm" in rate.op and len(flat) > 2 else flat
    if len(flat) < 2 or flat[0][1] not in flat[1]:
        return None
    m, k = flat[0]
    return m, flat[1][1] if flat[1][0] == k else flat[1][0], k


def _kernel(facts: Facts, rate: OpRate) -> int:
    """Code of the kernel's name that an op's longest call launched."""
    line, op = facts.line, rate.rows[0]
    work = np.flatnonzero(facts.counted & (line.launch >= 0))
    call = line.launch[work]
    inside = (line.start_ns[call] >= line.start_ns[op]) & (line.end_ns[call] <= line.end_ns[op])
    own = work[inside & (line.process[call] == line.process[op]) & (line.stream[call] == line.stream[op])]
    return int(line.name[own[np.argmax(line.durations_ns(own))]]) if len(own) else int(line.name[op])


def without_matrix_unit(facts: Facts) -> Iterator[Finding]:
    """Gain: fp32 products at the rate of tf32 (75 % of its peak, or the memory roof); twice as fast without shapes."""
    line = facts.line
    odd = np.array([bool(FP32.search(name) and not MATRIX_UNIT.search(name)) for name in line.names], np.bool_)
    rows = np.flatnonzero(facts.of_class(*PRODUCTS) & odd[line.name])
    lost = int(line.durations_ns(rows).sum())
    if not facts.worth(lost) or (facts.chip is not None and not {"tf32", "bf16", "fp16"} & set(facts.chip.peak)):
        return
    factor = _faster_on_matrix_unit(facts)
    replayed = None if facts.gains is None else facts.gains.faster_rows(rows, factor)
    gain = Gain(lost * (1 - 1 / factor), replayed)
    old = any(BEFORE_TF32.search(line.names[code]) for code in np.unique(line.name[rows]).tolist())
    tf32 = "tf32" in facts.chip.peak if facts.chip else not old
    yield facts.finding(
        f"{len(rows):,} matrix products in fp32 without the matrix unit", facts.longest(rows), lost, gain,
        "torch.set_float32_matmul_precision('high') for TF32, or bf16 autocast"
        if tf32
        else "autocast to fp16 or bf16: this chip's matrix unit takes no fp32",
    )  # fmt: skip


def _faster_on_matrix_unit(facts: Facts) -> float:
    rates = [rate for rate in facts.rates if rate.class_ in PRODUCTS and rate.dtype == "fp32"]
    chip = facts.chip
    peak = (chip.peak.get("tf32") or chip.peak.get("bf16")) if chip else None
    if not rates or peak is None or chip is None or chip.hbm.bandwidth is None:
        return ANY_FP32
    wide, fast = chip.hbm.bandwidth.value, peak.value
    new = sum(max(one.flops / (0.75 * fast), one.size_bytes / (0.8 * wide)) * one.calls for one in rates)
    return max(1.0, sum(one.total_ns for one in rates) / DECIMAL["G"] / new) if new else ANY_FP32


def fusible_chains(facts: Facts) -> Iterator[Finding]:
    """Gain: each chain of kernels bound by memory becomes one launch and takes as long as its longest.

    The share is the chains from first start to last end, gaps inside included: those go as well.
    """
    line = facts.line
    lost = gain = count = 0
    best: list[tuple[int, int]] = []
    members = []
    tracks = line.tracks()
    small = facts.of_class(*FUSIBLE)
    for track in np.unique(tracks[facts.counted]).tolist():
        rows = np.flatnonzero(facts.counted & (tracks == track))
        chain, first, last, longest = _chains(facts, rows, small[rows])
        extent = line.end_ns[rows[last]] - line.start_ns[rows[first]]
        many = last > first
        lost += int(extent[many].sum())
        gain += int((extent - longest)[many].sum())
        count += int(many.sum())
        members.append(rows[many[chain]])
        best += list(zip((extent - longest)[many].tolist(), rows[first[many]].tolist(), strict=True))
    if facts.worth(lost):
        replayed = None if facts.gains is None else facts.gains.of_rows("fuse", np.concatenate(members), longest=True)
        kernels = sum(map(len, members))
        yield facts.finding(
            f"{count:,} chains of {kernels / count:.1f} kernels bound by memory that follow each other",
            [row for _, row in sorted(best, reverse=True)[:MOST]], lost,
            Gain(lost if facts.gains is not None else gain, replayed),
            "fuse them: torch.compile, or fused norms, activations, optimizers and losses",
        )  # fmt: skip


def _chains(
    facts: Facts, rows: NDArray[np.intp], small: NDArray[np.bool_]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Number of the chain of each row of a stream; place of each chain's first and last row, and its longest span."""
    start, end = facts.line.start_ns[rows], facts.line.end_ns[rows]
    joined = small[1:] & small[:-1] & (start[1:] - end[:-1] < TOGETHER_NS)
    chain = np.concatenate([[0], np.cumsum(~joined)])
    count = int(chain[-1]) + 1
    longest = np.zeros(count, np.int64)
    np.maximum.at(longest, chain, end - start)
    first = np.searchsorted(chain, np.arange(count))
    last = np.searchsorted(chain, np.arange(count), side="right") - 1
    return chain, first, last, longest


def unfused_optimizer(facts: Facts) -> Iterator[Finding]:
    """Gain: the kernels of an optimizer step in one launch for each chain, in the time their bytes need."""
    line = facts.line
    inside = [code for code, name in enumerate(line.names) if name.startswith("Optimizer.step#")]
    marks = np.flatnonzero(line.of_kind(ANNOTATION) & np.isin(line.name, inside))
    rows = np.flatnonzero(facts.group(COMPUTE) & (line.launch >= 0))
    if not len(marks) or not len(rows):
        return
    call = line.launch[rows]
    under = covered(cover(line.start_ns[marks], line.end_ns[marks]), line.start_ns[call], line.start_ns[call] + 1) > 0
    fused = np.array([bool(FUSED.search(name)) for name in line.names], np.bool_)
    own = rows[under]
    loose = own[~fused[line.name[own]]]
    if len(loose) < MANY * facts.steps or len(loose) * 2 < len(own):
        return
    lost = int(line.end_ns[own].max() - line.start_ns[own].min()) if facts.steps == 1 else 0
    lost = lost or int(line.durations_ns(own).sum())
    if not facts.worth(lost):
        return
    gain = Gain(lost, None if facts.gains is None else facts.gains.of_rows("fuse", loose))
    yield facts.finding(
        f"the optimizer is {len(loose) / facts.steps:,.0f} kernels a step that nothing fuses",
        facts.longest(loose), lost, gain, "fused=True or foreach=True of the optimizer, or compile its step",
    )  # fmt: skip
