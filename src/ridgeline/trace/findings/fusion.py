"""Rules about kernels that should be one: unfused attention, layout changes, chains bound by memory, optimizers."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from ridgeline.core.units import DECIMAL
from ridgeline.trace.analysis.fused_chains import further_passes, reduction_passes
from ridgeline.trace.analysis.op_kernels import op_kernel
from ridgeline.trace.analysis.reachable import reachable
from ridgeline.trace.analysis.roofline import SOFTMAX
from ridgeline.trace.call_stack import launching_ops
from ridgeline.trace.findings.finding import MOST, Facts, Finding, Gain

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
    replayed_gain = None if facts.gains is None else facts.gains.lasting(patterns.attention, kept_share)
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
    """How long fused kernels need for the products of unfused attention."""
    line, rows, chip = facts.line, facts.patterns.products, facts.chip
    attention_ns = float(line.durations_ns(rows).sum())
    op = launching_ops(line, rows)
    shape = line.detail.shape.at(np.maximum(op, 0))
    flops, width, dtype = 0.0, HEAD, ""
    for op_row, code in {
        (int(o), int(c)) for o, c in zip(op.tolist(), shape.tolist(), strict=True) if o >= 0 and c >= 0
    }:
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
    replayed_gain = None if facts.gains is None else facts.gains.lasting(rows, np.zeros(len(rows)))
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
    claimed_rows = facts.patterns.claimed(line)
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
        replayed_gain = None if facts.gains is None else facts.gains.in_passes(np.concatenate(members))
        kernels = sum(map(len, members))
        yield facts.finding(
            f"{count:,} chains of {kernels / count:.1f} kernels bound by memory that follow each other",
            [row for _, row in sorted(best, reverse=True)[:MOST]], lost,
            Gain(lost if facts.gains is not None else gain, replayed_gain),
            facts.software.says("fuse"),
        )  # fmt: skip


def _chains(
    facts: Facts, rows: NDArray[np.intp], small: NDArray[np.bool_]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
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
    again = reduction_passes(facts.line, rows, end - start)
    return chain, first, last, longest + further_passes(chain, again, count)


def _repeated_kernels(facts: Facts, rows: NDArray[np.intp]) -> NDArray[np.bool_]:
    """Which rows of a stream stand between two of the same name and about the same length."""
    line = facts.line
    op = launching_ops(line, rows, facts.above)
    name = line.name[rows].astype(np.int64) * (len(line.names) + 1) + np.where(
        op >= 0, line.name[np.maximum(op, 0)], -1
    )
    time = np.maximum(1, line.durations_ns(rows))
    same = (name[1:] == name[:-1]) & (np.abs(time[1:] - time[:-1]) * 10 <= np.minimum(time[1:], time[:-1]))
    repeats = np.zeros(len(rows), np.bool_)
    repeats[1:-1] = same[1:] & same[:-1]
    if len(same):
        repeats[0], repeats[-1] = (
            bool(len(same) > 1 and same[0] and same[1]),
            bool(len(same) > 1 and same[-1] and same[-2]),
        )
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
    gain = Gain(lost - kept_ns, None if facts.gains is None else facts.gains.fused_to(rows, ONE_PASS))
    idle = int(facts.gaps.length[np.isin(facts.gaps.ended, rows)].sum()) / lost
    slow = f"; {min(1.0, idle):.0%} of its time the chip waits for the next launch" if idle > LAUNCH_BOUND else ""
    yield facts.finding(
        f"the optimizer is {len(rows) / facts.steps:,.0f} kernels a step that nothing fuses: "
        f"each op on each tensor is a launch{slow}",
        facts.longest(rows), lost, gain, "fused=True (or foreach=True) of the optimizer, or compile its step",
    )  # fmt: skip
