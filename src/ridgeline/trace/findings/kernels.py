"""Rules about kernels: far below what good ones reach, without the matrix unit, or several that should be one."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from math import ceil

import numpy as np

from ridgeline.core.arrays import Mask
from ridgeline.core.units import DECIMAL
from ridgeline.hardware.chip import Chip
from ridgeline.trace.analysis.inference import FOUR
from ridgeline.trace.analysis.op_kernels import op_kernel
from ridgeline.trace.analysis.phases import ops_of
from ridgeline.trace.analysis.roofline import SOFTMAX, OpRate, reachable
from ridgeline.trace.analysis.what_if import (
    faster,
    further_passes,
    fuse_chains,
    reduction_passes,
    scale_rows,
    unknown_sizes,
)
from ridgeline.trace.classes import launching_ops, parents
from ridgeline.trace.findings.finding import MOST, Facts, Finding, Gain
from ridgeline.trace.timeline import Longs, Rows

PRODUCTS = ("matmul", "convolution")
FEW_WASTED = 0.12  # of the cores' time in a last wave or an unfilled one: less is not why a product is slow
TILE = re.compile(r"(?<![\dx])(?:MT)?(\d{2,3})x(\d{2,3})(?:x\d+)?[_x]")
ALIGNED = {"fp32": 4, "tf32": 4, "fp16": 8, "bf16": 8, "fp8": 16, "int8": 16}  # elements of 16 bytes
FP32 = re.compile(r"sgemm|simt_s|scudnn|_S_B_|implicit_convolve_s|ffma|f32f32_f32f32_f32|fp32_fp32", re.IGNORECASE)
LOOPS = re.compile(r"^triton_red_")  # reads its rows once for each reduction: operands are not its traffic
MATRIX_UNIT = re.compile(r"tf32|s1688|s16816|tensorop", re.IGNORECASE)
ADDS_ROWS = re.compile(r"index_put|index_add|embedding\w*_backward")
ADDED = (
    "rows with the same number are added one behind the other: F.embedding instead of table[numbers], index_add_ "
    "instead of index_put_(accumulate=True), no deterministic algorithms where they are not needed"
)
ANY_FP32 = 2.0  # how much faster the matrix unit is at least, where the chip is not known


def slow_products(facts: Facts) -> Iterator[Finding]:
    """Gain: the time of matrix products above what good kernels reach; names the worst shape and what is odd in it."""
    for class_ in PRODUCTS:
        slow = [rate for rate in _unclaimed_rates(facts) if rate.class_ == class_ and _slow(rate)]
        rates = [rate for rate in slow if not _unpacks(facts, rate)]
        if not rates:
            continue
        total, roof, gain = _above(facts, (class_,), rates)
        worst = _worst(rates)
        odd, action = _odd(facts, worst)
        bound = worst.bound or "compute"
        yield facts.finding(
            f"{class_} at {roof / total:.0%} of the roof of {_name(facts.chip)}; most in {worst.op} "
            f"{operands(worst)} {worst.dtype} at {worst.efficiency:.0%} of the {bound} roof{odd}{_by(facts, rates)}",
            worst.rows, total, gain, action,
        )  # fmt: skip


def unpacked_weights(facts: Facts) -> Iterator[Finding]:
    """No gain: products that unpack weights of four bits, beside what plain ones reach.

    They compute in 16 bits, so the roof is that of plain products; nobody measured how near unpacking lets them come.
    """
    slow = [rate for rate in _unclaimed_rates(facts) if rate.class_ in PRODUCTS and _slow(rate)]
    rates = [rate for rate in slow if _unpacks(facts, rate)]
    if not rates:
        return
    total, roof = sum(rate.total_ns for rate in rates), sum(rate.roof_ns or 0.0 for rate in rates)
    worst = _worst(rates)
    yield facts.finding(
        f"products that unpack weights of four bits at {roof / total:.0%} of the {worst.dtype} roof of "
        f"{_name(facts.chip)}, where plain ones reach {worst.reachable:.0%}; most in {worst.op} {operands(worst)}"
        f"{_by(facts, rates)}",
        worst.rows, total, Gain(0.0),
        "no gain is promised: what such kernels can reach here is not measured; compare others of the engine's, or "
        "weights of 8 or 16 bits where steps hold many tokens",
    )  # fmt: skip


def _unpacks(facts: Facts, rate: OpRate) -> bool:
    if rate.dtype not in ("bf16", "fp16") or not facts.worth(rate.total_ns):
        return False
    return any(FOUR.search(name[:200]) for name in (rate.op, facts.line.names[_kernel(facts, rate)]))


def _by(facts: Facts, rates: Sequence[OpRate]) -> str:
    """Whose sizes tell the work, where operands do not and nobody named the model."""
    by_guess = facts.guessed and any(rate.by_model for rate in rates)
    return f"; sizes of {facts.guessed}, which the trace gives away" if by_guess else ""


def slow_attention(facts: Facts) -> Iterator[Finding]:
    """Gain: the time of attention above what good kernels reach at its head size, softmax counted."""
    rates = [rate for rate in facts.rates if rate.class_ == "attention" and _slow(rate)]
    if not rates:
        return
    total, roof, gain = _above(facts, ("attention",), rates)
    worst = _worst(rates)
    names = {facts.line.names[int(code)] for code in np.unique(facts.line.name[facts.of_class("attention")]).tolist()}
    names_text = " ".join(names).lower()
    used = next((what for what in ("cudnn", "flash", "fmha", "ck_tile", "triton") if what in names_text), "")
    alternative = {"cudnn": "flash-attention", "flash": "cuDNN's"}.get(used, "cuDNN's or flash-attention")
    yield facts.finding(
        f"attention at {roof / total:.0%} of the roof of {_name(facts.chip)}, where good kernels reach "
        f"{worst.reachable:.0%} at this size; most in {worst.op} {operands(worst)}{_by(facts, rates)}",
        worst.rows, total, gain, facts.software.says("attention").format(other=alternative),
    )  # fmt: skip


def slow_traffic(facts: Facts) -> Iterator[Finding]:
    """Gain: the time of kernels bound by memory above 80 % of its rate, all classes together.

    Reductions that torch.compile generated in loops are left out: neither their passes nor their flops are recorded.
    """
    slow = [rate for rate in _unclaimed_rates(facts) if _slow(rate) and rate.bound == "memory"]
    rates = [rate for rate in slow if rate.class_ not in (*PRODUCTS, "attention") and not LOOPS.search(rate.op)]
    if not rates:
        return
    classes = tuple(dict.fromkeys(rate.class_ for rate in rates))
    total, roof, gain = _above(facts, classes, rates)
    parts = []
    for class_ in classes:
        class_rates = [rate for rate in rates if rate.class_ == class_]
        spent = sum(rate.total_ns for rate in class_rates)
        if spent >= 0.05 * total:
            parts.append(f"{class_} {sum(rate.roof_ns or 0.0 for rate in class_rates) / spent:.0%}")
    worst = _worst(rates)
    yield facts.finding(
        f"kernels bound by memory at {roof / total:.0%} of the memory roof of {_name(facts.chip)} "
        f"({', '.join(parts)}); most in {worst.op} {operands(worst)}{_by(facts, rates)}",
        worst.rows, total, gain, ADDED if ADDS_ROWS.search(worst.op) else facts.software.says("traffic"),
    )  # fmt: skip


def _unclaimed_rates(facts: Facts) -> list[OpRate]:
    """Rates that no pattern explains, and that are not of products which belong on the matrix unit."""
    claimed_rows = np.flatnonzero(facts.patterns.claimed_rows(facts.line))
    ops = ops_of(facts.line, np.concatenate([claimed_rows, _fp32_rows(facts)]))
    return [rate for rate in facts.rates if rate.rows[0] not in ops]


def operands(rate: OpRate) -> str:
    """The first two operands, which tell a shape; the others follow from them."""
    return " ".join(rate.operands.split(" ")[:2])


def _worst(rates: Sequence[OpRate]) -> OpRate:
    return max(rates, key=lambda rate: rate.total_ns - (rate.roof_ns or 0.0))


def _slow(rate: OpRate) -> bool:
    return rate.efficiency is not None and rate.efficiency < rate.reachable


def _above(facts: Facts, classes: tuple[str, ...], rates: list[OpRate]) -> tuple[float, float, Gain]:
    """Time of some ops, what the roof allows, and what would go if all were as good as good kernels."""
    total = sum(rate.total_ns for rate in rates)
    roof = sum(rate.roof_ns or 0.0 for rate in rates)
    gain = total - sum((rate.roof_ns or 0.0) / rate.reachable for rate in rates)
    class_ns = sum(row.total_ns for row in facts.parts.classes if row.id in classes) or total
    work = np.flatnonzero(facts.of_class(*classes))
    return total, roof, Gain(gain, facts.replay_gain(faster, work, class_ns / max(1.0, class_ns - gain)))


def _name(chip: Chip | None) -> str:
    return chip.id if chip else "the chip"


def _odd(facts: Facts, rate: OpRate) -> tuple[str, str]:
    """What of a product's shape keeps it from the roof, in words, and what to do about it."""
    action = facts.software.says("products")
    sizes = _mnk(rate)
    step = ALIGNED.get(rate.dtype, 1)
    if rate.bound == "memory" and "bmm" in rate.op:
        return "", "fuse it with its neighbours (attention, pooling), or batch fewer and larger products"
    if rate.bound == "memory" and not (sizes and any(size % step for size in sizes)):
        return "", "larger batches, so that weights are read once for more rows; or fuse it with its neighbours"
    if sizes is None:
        return "", action
    crooked = [size for size in sizes if size % step]
    if crooked:
        up = -(-crooked[0] // step) * step
        return (
            f"; {crooked[0]:,} is no multiple of {step}",
            f"pad {crooked[0]:,} to {up:,}: 16-byte rows let the matrix unit load fast",
        )
    kernel = facts.line.names[_kernel(facts, rate)]
    tile, cores = TILE.search(kernel), int(facts.chip.cores.value) if facts.chip and facts.chip.cores else 0
    if tile is None or not cores or len(re.findall("x", rate.operands)) > 3:
        return "", action
    rows, columns = int(tile[1]), int(tile[2])
    tiles = min(ceil(sizes[0] / rows) * ceil(sizes[1] / columns), ceil(sizes[0] / columns) * ceil(sizes[1] / rows))
    waves = tiles / cores
    if tiles < cores:
        tile_text = f"; {tiles} tiles of {rows}x{columns} fill {tiles} of {cores} cores"
        return tile_text, "larger batches, smaller tiles or split-K: there are not enough tiles for all cores"
    if 1 - waves / ceil(waves) > FEW_WASTED:
        tile_text = f"; {tiles} tiles of {rows}x{columns} on {cores} cores are {waves:.2f} waves"
        return (
            tile_text,
            f"a size of at most {(ceil(waves) - 1) * cores} tiles, or of nearly {ceil(waves) * cores}; or stream-K",
        )
    return "", action


def _mnk(rate: OpRate) -> tuple[int, int, int] | None:
    dims = [[int(size) for size in operand.split("x")] for operand in rate.operands.split() if operand]
    flat = [dim for dim in dims if len(dim) == 2]
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
    kernels = work[inside & (line.process[call] == line.process[op]) & (line.stream[call] == line.stream[op])]
    return int(line.name[kernels[np.argmax(line.durations_ns(kernels))]]) if len(kernels) else int(line.name[op])


def _fp32_rows(facts: Facts) -> Rows:
    """Products in fp32 by kernels that do not use the matrix unit, on chips that have one for them."""
    line, chip = facts.line, facts.chip
    if chip is not None and not {"tf32", "bf16", "fp16"} & set(chip.peak):
        return np.zeros(0, np.intp)
    odd = np.array(
        [bool(FP32.search(name[:400]) and not MATRIX_UNIT.search(name[:400])) for name in line.names], np.bool_
    )
    return np.flatnonzero(facts.of_class(*PRODUCTS) & odd[line.name]) if len(odd) else np.zeros(0, np.intp)


def without_matrix_unit(facts: Facts) -> Iterator[Finding]:
    """Gain: fp32 products at the rate good kernels reach in TF32 (or the memory roof); twice as fast without shapes."""
    rows = _fp32_rows(facts)
    lost = facts.union_ns(rows)
    if not facts.worth(lost):
        return
    factor = _faster_on_matrix_unit(facts)
    replayed_gain = facts.replay_gain(faster, rows, factor)
    gain = Gain(lost * (1 - 1 / factor), replayed_gain)
    software = facts.software
    if software.vendor == "amd":
        action = "bf16 autocast, or HIPBLASLT_ALLOW_TF32=1 with torch.set_float32_matmul_precision('high')"
    elif not software.bf16:
        action = "autocast to fp16 with gradient scaling: this chip's matrix unit takes neither fp32 nor bf16"
    else:
        action = (
            "torch.set_float32_matmul_precision('high') for TF32 (convolutions: cudnn.allow_tf32), or bf16 autocast: "
            "one line"
        )
    yield facts.finding(
        f"{len(rows):,} matrix products in fp32 without the matrix unit", facts.longest(rows), lost, gain, action
    )


def _faster_on_matrix_unit(facts: Facts) -> float:
    rates = [rate for rate in facts.rates if rate.class_ in PRODUCTS and rate.dtype == "fp32"]
    chip = facts.chip
    peak = (chip.peak.get("tf32") or chip.peak.get("bf16")) if chip else None
    if not rates or peak is None or chip is None or chip.hbm.bandwidth is None:
        return ANY_FP32
    wide, fast = chip.hbm.bandwidth.value, peak.value
    good, stream = reachable(chip.id, "tf32", "compute"), reachable(chip.id, "tf32", "memory")
    new = sum(max(rate.flops / (good * fast), rate.size_bytes / (stream * wide)) * rate.calls for rate in rates)
    return max(1.0, sum(rate.total_ns for rate in rates) / DECIMAL["G"] / new) if new else ANY_FP32


FUSIBLE = ("elementwise", "norm", "kernel-copy", "reduction", "rope", "quantize", "random", "softmax", "loss")
TOGETHER_NS = 20_000  # kernels this close to each other are one chain
LAUNCH_BOUND = 0.3  # of a phase: idle from which on launches are what it waits for
HEAD = 128  # size of a head where shapes do not say it
ONE_PASS = 0.3  # Adam reads four and writes three numbers a weight; op by op it moves about 24


def unfused_attention(facts: Facts) -> Iterator[Finding]:
    """Gain: scores stay on the chip: the products' flops at the rate of fused attention, or the products alone."""
    patterns = facts.patterns
    if not len(patterns.attention):
        return
    lost = facts.union_ns(patterns.attention)
    if not facts.worth(lost):
        return
    line = facts.line
    total = float(line.durations_ns(patterns.attention).sum())
    fused_ns = min(total, _fused_ns(facts))
    kept_share = np.full(len(patterns.attention), fused_ns / max(1.0, total))
    replayed_gain = facts.replay_gain(scale_rows, patterns.attention, kept_share)
    odd = _odd_scores(facts)
    yield facts.finding(
        f"attention of {len(patterns.attention) / max(1, patterns.blocks):.0f} kernels each, unfused: products, "
        "softmax and "
        f"masks move every score through memory ({patterns.blocks:,} times){odd}",
        facts.longest(patterns.attention),
        lost,
        Gain(total - fused_ns, replayed_gain),
        facts.software.says("unfused attention"),
    )


def _fused_ns(facts: Facts) -> float:
    line, rows, chip = facts.line, facts.patterns.products, facts.chip
    attention_ns = float(line.durations_ns(rows).sum())
    op = launching_ops(line, rows)
    shape = line.detail.shape.at(np.maximum(op, 0))
    flops, width, dtype = 0.0, HEAD, ""
    for op_row, code in {pair for pair in zip(op.tolist(), shape.tolist(), strict=True) if min(pair) >= 0}:
        work = op_kernel(line.names[int(line.name[op_row])], line.detail.shapes[code])
        if work is not None:
            flops, dtype = flops + work.flops, work.dtype
            sizes = [dims for dims in line.detail.shapes[code].dims if len(dims) > 2 and not isinstance(dims[0], tuple)]
            width = min([HEAD, *(min(dims[-2:]) for dims in sizes)])
    peak = chip.peak.get(dtype) if chip is not None else None
    if not flops or peak is None or chip is None:
        return attention_ns
    return flops / (peak.value * reachable(chip.id, dtype, "compute") * width / (width + SOFTMAX)) * DECIMAL["G"]


def _odd_scores(facts: Facts) -> str:
    """A number of tokens that no wide load fits, where shapes say it."""
    line, rows = facts.line, facts.patterns.products
    op = launching_ops(line, rows)
    for code in np.unique(line.detail.shape.at(op[op >= 0])).tolist():
        sizes = [size for dims in (line.detail.shapes[code].dims if code >= 0 else ()) for size in dims[-2:]]
        odd = [size for size in sizes if isinstance(size, int) and size > 64 and size % 8]
        if odd:
            return f"; {odd[0]:,} is no multiple of 8"
    return ""


def layout_changes(facts: Facts) -> Iterator[Finding]:
    """Gain: kernels that change layouts around convolutions go, by replay."""
    rows = facts.patterns.layouts
    lost = facts.union_ns(rows)
    if not facts.worth(lost):
        return
    replayed_gain = facts.replay_gain(scale_rows, rows, np.zeros(len(rows)))
    yield facts.finding(
        f"layout changes around convolutions: {len(rows):,} kernels turn NCHW into NHWC and back",
        facts.longest(rows), lost, Gain(lost, replayed_gain), facts.software.says("layout"),
    )  # fmt: skip


def fusible_chains(facts: Facts) -> Iterator[Finding]:
    """Gain: each chain of kernels bound by memory becomes one launch and takes as long as its longest; a second
    reduction in a chain, and each one more, makes it go over its rows again (`reduction_passes`).

    The share is the chains from first start to last end, gaps inside included: those go as well. The same kernel with
    the same operands again and again works on one tensor after the other: fusing such a row moves no byte less.
    """
    line = facts.line
    lost = gain = count = 0
    claimed_rows = facts.patterns.claimed_rows(line)
    best: list[tuple[int, int]] = []
    members = []
    tracks = line.tracks()
    small = facts.of_class(*FUSIBLE) & ~claimed_rows
    for track in np.unique(tracks[facts.counted]).tolist():
        rows = np.flatnonzero(facts.counted & (tracks == track))
        chain, first, last, longest = _chains(facts, rows, small[rows] & ~_repeated_kernels(facts, rows))
        extent = line.end_ns[rows[last]] - line.start_ns[rows[first]]
        many = last > first
        lost += int(extent[many].sum())
        gain += int((extent - longest)[many].sum())
        count += int(many.sum())
        members.append(rows[many[chain]])
        best += list(zip((extent - longest)[many].tolist(), rows[first[many]].tolist(), strict=True))
    if facts.worth(lost):
        chains = np.concatenate(members)
        replayed_gain = facts.replay_gain(fuse_chains, chains, True, unknown_sizes, reduction_passes)
        kernels = sum(map(len, members))
        yield facts.finding(
            f"{count:,} chains of {kernels / count:.1f} kernels bound by memory that follow each other",
            [row for _, row in sorted(best, reverse=True)[:MOST]], lost,
            Gain(lost if replayed_gain is not None else gain, replayed_gain),
            facts.software.says("fuse"),
        )  # fmt: skip


def _chains(facts: Facts, rows: Rows, small: Mask) -> tuple[Longs, Longs, Longs, Longs]:
    """Number of the chain of each row of a stream; place of each chain's first and last row, and its time as one."""
    start, end = facts.line.start_ns[rows], facts.line.end_ns[rows]
    step = facts.line.step[rows]
    adjacent = small[1:] & small[:-1] & (start[1:] - end[:-1] < TOGETHER_NS) & (step[1:] == step[:-1])
    chain = np.concatenate([[0], np.cumsum(~adjacent)])
    count = int(chain[-1]) + 1
    longest = np.zeros(count, np.int64)
    np.maximum.at(longest, chain, end - start)
    first = np.searchsorted(chain, np.arange(count))
    last = np.searchsorted(chain, np.arange(count), side="right") - 1
    repeats = reduction_passes(facts.line, rows, end - start)
    return chain, first, last, longest + further_passes(chain, repeats, count)


def _repeated_kernels(facts: Facts, rows: Rows) -> Mask:
    line = facts.line
    op = launching_ops(line, rows, parents(line))
    name = line.name[rows].astype(np.int64) * (len(line.names) + 1) + np.where(
        op >= 0, line.name[np.maximum(op, 0)], -1
    )
    time = np.maximum(1, line.durations_ns(rows))
    same = (name[1:] == name[:-1]) & (np.abs(time[1:] - time[:-1]) * 10 <= np.minimum(time[1:], time[:-1]))
    repeats = np.zeros(len(rows), np.bool_)
    repeats[1:-1] = same[1:] & same[:-1]
    if len(same) > 1:
        repeats[0], repeats[-1] = same[0] and same[1], same[-1] and same[-2]
    return repeats


def unfused_optimizer(facts: Facts) -> Iterator[Finding]:
    """Gain: the kernels of an optimizer step in few launches, in the time one pass over weights and states takes."""
    rows = facts.patterns.optimizer
    if not len(rows):
        return
    line = facts.line
    lost = 0
    for process in np.unique(line.process[rows]).tolist():
        for step in np.unique(line.step[rows]).tolist():
            step_rows = rows[(line.process[rows] == process) & (line.step[rows] == step)]
            if len(step_rows):
                lost += int(line.end_ns[step_rows].max() - line.start_ns[step_rows].min())
    lost = min(lost, facts.span_ns)
    if not facts.worth(lost):
        return
    kept_ns = float(line.durations_ns(rows).sum()) * ONE_PASS

    def pass_ns(chain_rows: Rows) -> Longs:
        return np.maximum(1, (line.durations_ns(chain_rows) * ONE_PASS).astype(np.int64))

    gain = Gain(lost - kept_ns, facts.replay_gain(fuse_chains, rows, False, pass_ns))
    idle = int(facts.gaps.length[np.isin(facts.gaps.ended, rows)].sum()) / lost
    slow = f"; {min(1.0, idle):.0%} of its time the chip waits for the next launch" if idle > LAUNCH_BOUND else ""
    yield facts.finding(
        f"the optimizer is {len(rows) / facts.steps:,.0f} kernels a step that nothing fuses: "
        f"each op on each tensor is a launch{slow}",
        facts.longest(rows), lost, gain, "fused=True (or foreach=True) of the optimizer, or compile its step",
    )  # fmt: skip
