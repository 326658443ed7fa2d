"""Rules about what moves: exposed communication and copies, stragglers and load imbalance, pipeline bubbles."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from ridgeline.core.units import DECIMAL
from ridgeline.trace.analysis.breakdown import BreakdownRow
from ridgeline.trace.classes import COMMUNICATION, COMPUTE, COPY
from ridgeline.trace.findings.finding import Facts, Finding, Gain, count
from ridgeline.trace.findings.idle import ACTIONS
from ridgeline.trace.graph.match_collectives import WORD
from ridgeline.trace.intervals import cover, covered, overlap_length

PAGEABLE = re.compile(r"pageable", re.IGNORECASE)
OFTEN = 0.2  # of the time of copies
SLOW_LINK = 0.5  # of the link: a large collective below has another limit
STAGGERED = 0.01  # of the window: stages that begin this close to each other are no pipeline
LARGE = 8e6  # bytes a rank sends before bandwidth is what counts
WIDTHS = {"Byte": 1, "Char": 1, "Half": 2, "BFloat16": 2, "Float": 4, "Int": 4, "Long": 8, "Double": 8}
TWICE = ("allreduce",)  # reduce and gather: every byte crosses twice
OVERLAPS = (
    ("reducescatter", "start reduce-scatters as gradients are ready (FSDP, overlap_grad_reduce)"),
    ("allreduce|reduce", "bucket gradients and start reductions during backward (DDP, overlap_grad_reduce)"),
    ("allgather", "prefetch the gathers of the next layer (FSDP prefetching, overlap_param_gather)"),
    ("alltoall", "overlap expert dispatch with the shared expert or another microbatch; DeepEP"),
    ("send|recv|permute", "interleave or batch the exchanges, on a stream of their own"),
    ("broadcast", "broadcast less often: broadcast_buffers=False where statistics need not agree"),
)


def exposed_communication(facts: Facts) -> Iterator[Finding]:
    """Gain: what of each sort of collective fits under compute that has no communication beside it yet."""
    line = facts.line
    rows = np.flatnonzero(facts.group(COMMUNICATION))
    exposed = _exposed(facts, rows)
    kinds = _kinds(facts, rows)
    room = sum(
        row.times.compute_ns - (row.times.communication_ns - row.times.exposed_communication_ns)
        for row in facts.parts.chips
    )
    for kind in dict.fromkeys(kinds):
        own = np.array([one == kind for one in kinds], np.bool_)
        lost, total = int(exposed[own].sum()), int(line.durations_ns(rows[own]).sum())
        if not facts.worth(lost):
            continue
        replayed = None if facts.gains is None else facts.gains.of_rows("overlap", rows[own])
        advice = next((advice for pattern, advice in OVERLAPS if re.search(pattern, kind)), "use a stream of its own")
        order = rows[own][np.argsort(-exposed[own], kind="stable")]
        yield facts.finding(
            f"exposed communication: {lost / total:.0%} of {kind} is not under compute "
            f"({count(int(own.sum()), 'call')}){_rate(facts, rows[own])}",
            order.tolist(), lost, Gain(min(lost, room), replayed), f"overlap it: {advice}",
        )  # fmt: skip


def _exposed(facts: Facts, rows: NDArray[np.intp]) -> NDArray[np.int64]:
    """Own time of communication: not under compute, nor under communication that began before it."""
    line = facts.line
    found = np.zeros(len(rows), np.int64)
    compute = facts.group(COMPUTE)
    for process in np.unique(line.process[rows]).tolist():
        own = np.flatnonzero(line.process[rows] == process)
        work = np.flatnonzero(compute & (line.process == process))
        start, end = line.start_ns[rows[own]], line.end_ns[rows[own]]
        before = np.concatenate([[start[0] if len(start) else 0], np.maximum.accumulate(end)[:-1]])
        start = np.minimum(np.maximum(start, before), end)
        found[own] = end - start - covered(cover(line.start_ns[work], line.end_ns[work]), start, end)
    return found


def _kinds(facts: Facts, rows: NDArray[np.intp]) -> list[str]:
    """What sort each communication span is: as recorded, else by the word in its name, else its class."""
    line = facts.line
    told = line.detail.collective.at(rows)
    words: dict[int, str] = {}
    for code in np.unique(line.name[rows]).tolist():
        name = line.names[code][:400]
        found = WORD.search(name)
        pair = re.search(r"send_?recv|send|recv|permute", name, re.IGNORECASE)
        words[code] = (pair or found)[0].lower().replace("_", "") if (pair or found) else ""  # type: ignore[index]
    return [
        (line.detail.collectives[place].name.lower().replace("_", "").removesuffix("base") if place >= 0 else "")
        or words[int(line.name[row])]
        or line.classes[int(line.class_[row])]
        for row, place in zip(rows.tolist(), told.tolist(), strict=True)
    ]


def _rate(facts: Facts, rows: NDArray[np.intp]) -> str:
    """How fast large collectives moved, where sizes were recorded, and whether the link could do more.

    busbw = wire bytes / t = payload (R-1)/R / t, twice that for an all-reduce
    """
    line, chip = facts.line, facts.chip
    place = line.detail.collective.at(rows)
    wire = spent = 0.0
    for row, at in zip(rows.tolist(), place.tolist(), strict=True):
        one = line.detail.collectives[at] if at >= 0 else None
        if one is None or one.group_size < 2:
            continue
        name = one.name.lower().replace("_", "")
        payload = max(one.in_elements, one.out_elements) * WIDTHS.get(one.dtype, 0)
        sent = payload * (one.group_size - 1) / one.group_size * (2 if name.startswith(TWICE) else 1)
        if sent >= LARGE:
            wire, spent = wire + sent, spent + float(line.end_ns[row] - line.start_ns[row]) / DECIMAL["G"]
    if not spent:
        return ""
    rate = wire / spent
    link = chip.scaleup.bandwidth if chip is not None and chip.scaleup is not None else None
    against = ""
    if link is not None and rate < SLOW_LINK * link.value:
        told = "waiting for ranks, a slower network, or few channels"
        against = f" of {link.value / DECIMAL['G']:,.0f} GB/s inside a node: {told}"
    return f"; large ones at {rate / DECIMAL['G']:,.0f} GB/s a rank{against}"


def exposed_copies(facts: Facts) -> Iterator[Finding]:
    """Gain: copies under which nothing else runs."""
    line = facts.line
    copies = facts.group(COPY)
    lost = 0
    for process in np.unique(line.process[facts.counted]).tolist():
        own = facts.counted & (line.process == process)
        moving, rest = np.flatnonzero(own & copies), np.flatnonzero(own & ~copies)
        moved = cover(line.start_ns[moving], line.end_ns[moving])
        lost += moved.length - overlap_length(moved, cover(line.start_ns[rest], line.end_ns[rest]))
    rows = np.flatnonzero(copies)
    if not len(rows) or not facts.worth(lost):
        return
    gain = Gain(lost, None if facts.gains is None else facts.gains.of_rows("overlap", rows))
    time = line.durations_ns(rows)
    by: dict[str, int] = {}
    for code, spent in zip(line.name[rows].tolist(), time.tolist(), strict=True):
        by[line.names[code]] = by.get(line.names[code], 0) + spent
    most = max(by, key=lambda name: by[name])
    pageable = sum(spent for name, spent in by.items() if PAGEABLE.search(name)) > OFTEN * int(time.sum())
    yield facts.finding(
        f"copies with nothing beside them; {by[most] / max(1, int(time.sum())):.0%} of the time {most[:60]}",
        facts.longest(rows), lost, gain,
        f"pin_memory=True: some are pageable and block the host; {ACTIONS['copy']}" if pageable else ACTIONS["copy"],
    )  # fmt: skip


def uneven_ranks(facts: Facts) -> Iterator[Finding]:
    """Gain: the slowest chip computing as long as the mean one."""
    chips = facts.parts.chips
    if len(chips) < 2:
        return
    slowest = max(chips, key=lambda row: row.times.compute_ns)
    mean = sum(row.times.compute_ns for row in chips) / len(chips)
    over = slowest.times.compute_ns - mean
    yield facts.finding(
        f"uneven ranks: {slowest.process} computes {over / 1000:,.0f} us longer than the mean of {len(chips)}",
        _longest_of(facts, slowest), over * len(chips), Gain(over * len(chips)),
        "balance the work (tokens, experts, stages); if only one chip is slow, check its clock and neighbours",
    )  # fmt: skip


def _longest_of(facts: Facts, chip: BreakdownRow) -> tuple[int, ...]:
    return facts.longest(np.flatnonzero(facts.group(COMPUTE) & facts.line.rows(chip.process)))


def late_ranks(facts: Facts) -> Iterator[Finding]:
    """Gain: what the others wait for a rank that comes last though it computes no longer than they do."""
    if not facts.ranks.stragglers or len(facts.parts.chips) < 2:
        return
    first = facts.ranks.stragglers[0]
    chips = facts.parts.chips
    mean = sum(row.times.compute_ns for row in chips) / len(chips)
    own = max((row.times.compute_ns for row in chips if row.rank == first.rank), default=0)
    others = len(facts.ranks.stragglers) - 1
    lost = first.caused_ns / max(1, others) * len(chips)
    if own > 1.01 * mean or not first.last:
        return
    parts = [one.rows[one.ranks.index(first.rank)] for one in facts.ranks.arrivals if one.last == first.rank]
    yield facts.finding(
        f"late rank: rank {first.rank} comes last to {first.last:,} of {facts.ranks.collectives:,} collectives, "
        "though it computes no longer than the others",
        parts, lost, Gain(lost), "look at its host: launches, data loading, other programs; at its clock and network",
    )  # fmt: skip


def pipeline_bubble(facts: Facts) -> Iterator[Finding]:
    """Gain: half of the bubble, what twice as many microbatches leave of it. Stages of a pipeline begin one by one."""
    bubbles = facts.ranks.bubbles
    lost = sum(one.bubble_ns for one in bubbles)
    begins = [one.warm_up_ns for one in bubbles]
    if not lost or max(begins) - min(begins) < STAGGERED * bubbles[0].window_ns:
        return
    worst = max(bubbles, key=lambda one: one.bubble_ns)
    share = lost / sum(one.window_ns for one in bubbles)
    stage = next(row for row in facts.parts.chips if row.process == worst.process)
    yield facts.finding(
        f"pipeline bubble: stages have no work {share:.0%} of the time; most on {worst.process} ({worst.share:.0%})",
        _longest_of(facts, stage), lost, Gain(lost / 2),
        "more microbatches, interleaved or zero-bubble schedules, stages of equal work",
    )  # fmt: skip
