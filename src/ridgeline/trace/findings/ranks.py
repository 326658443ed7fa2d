"""Rules about several ranks: who computes longer, who comes late though he does not, stages without work."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ridgeline.trace.analysis.breakdown import BreakdownRow
from ridgeline.trace.analysis.idle import CAUSES
from ridgeline.trace.classes import COMPUTE
from ridgeline.trace.findings.finding import Facts, Finding, Gain

STAGGERED = 0.01  # of the window: stages that begin this close to each other are no pipeline
LONGER = 1.03  # than the others compute: less is no imbalance
TOGETHER = 0.9  # of a group's collectives: parts that end together belong to an exchange of all, not to a pipeline


def uneven_ranks(facts: Facts) -> Iterator[Finding]:
    """Gain: the slowest chip computing as long as the mean of the others, by replay."""
    chips = facts.parts.chips
    if facts.ranks_seen < 2 or len(chips) < 2:
        return
    slowest = max(chips, key=lambda row: row.times.compute_ns)
    others = [row.times.compute_ns for row in chips if row is not slowest]
    mean = sum(others) / len(others)
    over = slowest.times.compute_ns - mean
    if over <= 0 or slowest.times.compute_ns < LONGER * mean:
        return
    rows = np.flatnonzero(facts.group(COMPUTE) & facts.line.rows(slowest.process))
    factor = slowest.times.compute_ns / max(1.0, mean)
    replayed = None if facts.gains is None else facts.gains.faster_rows(rows, factor)
    experts = any(one.name == "alltoall" for one in facts.sizes)
    yield facts.finding(
        f"uneven ranks: rank {slowest.rank} computes {factor - 1:.0%} longer than the others "
        f"({over / 1000:,.0f} us; {len(chips)} chips){_more_of(facts, slowest)}",
        facts.longest(rows), over * len(chips), Gain(over * len(chips), replayed),
        "balance the work (tokens of experts: capacity, placement, auxiliary loss); if one chip is slow: its clock"
        if experts
        else "balance the work (tokens, experts, stages); if only one chip is slow, check its clock and neighbours",
    )  # fmt: skip


def _more_of(facts: Facts, chip: BreakdownRow) -> str:
    """The class in which a chip spends most more than the others do."""
    line = facts.line
    work = np.flatnonzero(facts.group(COMPUTE))
    own = line.processes[int(line.process[work[0]])] if len(work) else ""
    if not own:
        return ""
    time, mine = line.durations_ns(work), line.process[work] == line.processes.index(chip.process)
    total = np.bincount(line.class_[work], weights=np.where(mine, time, 0), minlength=len(line.classes))
    rest = np.bincount(line.class_[work], weights=np.where(mine, 0, time), minlength=len(line.classes))
    more = total - rest / max(1, len(facts.parts.chips) - 1)
    class_ = int(more.argmax())
    return f", most of it in {line.classes[class_]}" if more[class_] > 0 else ""


def late_ranks(facts: Facts) -> Iterator[Finding]:
    """Gain: what the others wait for a rank that comes last though it computes no longer than they do.

    By replay: its host takes no time.
    """
    chips = facts.parts.chips
    if not facts.ranks.stragglers or len(chips) < 2 or facts.ranks_seen < 2:
        return
    first = facts.ranks.stragglers[0]
    mean = sum(row.times.compute_ns for row in chips) / len(chips)
    own = max((row.times.compute_ns for row in chips if row.rank == first.rank), default=0)
    others = len(facts.ranks.stragglers) - 1
    lost = first.caused_ns / max(1, others) * len(chips)
    if own > LONGER * mean or not first.last or not facts.worth(lost):
        return
    parts = [one.rows[one.ranks.index(first.rank)] for one in facts.ranks.arrivals if one.last == first.rank]
    cause, share = _idle_of(facts, first.rank)
    replayed = None if facts.gains is None else facts.gains.without_gaps_of(first.rank)
    told = f"; meanwhile its chip idles for {cause}" if share > 0 else ""
    yield facts.finding(
        f"late rank: rank {first.rank} comes last to {first.last:,} of {facts.ranks.collectives:,} collectives, "
        f"though it computes no longer than the others{told}",
        parts, lost, Gain(lost, replayed),
        facts.software.says("loader") + ", on that rank" if cause == "data loading"
        else "look at its host: launches, data loading, other programs; at its clock and network",
    )  # fmt: skip


def _idle_of(facts: Facts, rank: int) -> tuple[str, float]:
    """Why the chips of a rank idle more than those of the others, and for how long."""
    ranks = facts.line.rank[facts.gaps.ended]
    many = max(1, facts.ranks_seen - 1)
    more = {}
    for code, cause in enumerate(CAUSES):
        own = facts.gaps.cause == code
        mine = float(facts.gaps.length[own & (ranks == rank)].sum())
        more[cause] = mine - float(facts.gaps.length[own & (ranks != rank)].sum()) / many
    cause = max(more, key=lambda one: more[one])
    return cause, more[cause]


def pipeline_bubble(facts: Facts) -> Iterator[Finding]:
    """Gain: half of the bubble, what twice as many microbatches leave of it. Stages of a pipeline begin one by one."""
    bubbles = facts.ranks.bubbles
    lost = sum(one.bubble_ns for one in bubbles)
    begins = [one.warm_up_ns for one in bubbles]
    if not lost or not facts.ranks.pairs or max(begins) - min(begins) < STAGGERED * bubbles[0].window_ns:
        return
    worst = max(bubbles, key=lambda one: one.bubble_ns)
    share = lost / sum(one.window_ns for one in bubbles)
    stage = next(row for row in facts.parts.chips if row.process == worst.process)
    rows = np.flatnonzero(facts.group(COMPUTE) & facts.line.rows(stage.process))
    lost_here = share * facts.span_ns
    yield facts.finding(
        f"pipeline bubble: stages have no work {share:.0%} of the time; most on {worst.process} ({worst.share:.0%})",
        facts.longest(rows), lost_here, Gain(lost_here / 2),
        "more microbatches, interleaved or zero-bubble schedules, stages of equal work",
    )  # fmt: skip
