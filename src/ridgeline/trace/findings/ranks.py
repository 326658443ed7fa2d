"""Rules about several ranks: who computes longer, in all or in turn; who comes late though he does not; bubbles."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from ridgeline.trace.analysis.breakdown import BreakdownRow
from ridgeline.trace.analysis.idle import CAUSES, PAUSE_NS, short
from ridgeline.trace.analysis.stragglers import Straggler
from ridgeline.trace.analysis.what_if import faster, no_launch_gaps, scale_rows
from ridgeline.trace.classes import COMPUTE
from ridgeline.trace.findings.finding import Facts, Finding, Gain, GapEvidence

STAGGERED = 0.01  # of the window: stages that begin this close to each other are no pipeline
LONGER = 1.03  # than the others compute: less is no imbalance
UNEVEN = 0.1  # more than the mean between two collectives: less is noise
IN_TURN = 0.5  # of all that is waited for: a rank that causes less is one of several
TOGETHER = 0.9  # of a group's collectives: parts that end together belong to an exchange of all, not to a pipeline


def uneven_ranks(facts: Facts) -> Iterator[Finding]:
    """Gain: the slowest chip computing as long as the mean of the others, by replay.

    Stages of a pipeline all compute as long as the mean then: what one has less another has more.
    """
    chips = facts.parts.chips
    if facts.ranks_seen < 2 or len(chips) < 2:
        return
    slowest = max(chips, key=lambda row: row.times.compute_ns)
    other_compute = [row.times.compute_ns for row in chips if row is not slowest]
    mean = sum(other_compute) / len(other_compute)
    over = slowest.times.compute_ns - mean
    if over <= 0 or slowest.times.compute_ns < LONGER * mean:
        return
    rows = np.flatnonzero(facts.group(COMPUTE) & facts.line.rows(slowest.process))
    factor = slowest.times.compute_ns / max(1.0, mean)
    replayed_gain = _balanced_ns(facts) if facts.ranks.pairs else facts.replayed(faster, rows, factor)
    experts = any(size.name == "alltoall" for size in facts.sizes)
    yield facts.finding(
        f"uneven ranks: rank {slowest.rank} computes {factor - 1:.0%} longer than the others "
        f"({over / 1000:,.0f} us; {len(chips)} chips){_more_of(facts, slowest)}",
        facts.longest(rows), over * len(chips), Gain(over * len(chips), replayed_gain),
        "balance the work (tokens of experts: capacity, placement, auxiliary loss); if one chip is slow: its clock"
        if experts
        else "balance the work (tokens, experts, stages); if only one chip is slow, check its clock and neighbours",
    )  # fmt: skip


def _balanced_ns(facts: Facts) -> int | None:
    line, chips = facts.line, facts.parts.chips
    mean = sum(row.times.compute_ns for row in chips) / len(chips)
    rows = np.flatnonzero(facts.group(COMPUTE))
    share = np.ones(len(line.processes))
    for row in chips:
        share[line.processes.index(row.process)] = mean / max(1, row.times.compute_ns)
    return facts.replayed(scale_rows, rows, share[line.process[rows]])


def moving_imbalance(facts: Facts) -> Iterator[Finding]:
    """Gain: all ranks computing equally long from each collective to the next, by replay; sums are even already."""
    between = facts.ranks.between
    if between is None or facts.ranks_seen < 2 or between.uneven < UNEVEN or between.uneven < 2 * between.even:
        return
    slowest_ns = between.compute_ns.max(axis=1)
    lost = float((slowest_ns - between.compute_ns.mean(axis=1)).sum()) * len(facts.parts.chips)
    if not facts.worth(lost):
        return
    replayed_gain = facts.replayed(scale_rows, between.rows, between.shares)
    last = between.compute_ns.argmax(axis=1)
    worst = between.rows[(between.rank == last[between.at]) & (between.compute_ns.max(axis=1)[between.at] > 0)]
    experts = any(size.name == "alltoall" for size in facts.sizes)
    who = len(np.unique(last[slowest_ns > (1 + UNEVEN) * between.compute_ns.mean(axis=1)]))
    yield facts.finding(
        f"uneven work that moves: from one collective to the next the longest rank computes {between.uneven:.0%} "
        f"longer than the mean, {who} of {between.compute_ns.shape[1]} ranks in turn, though their sums differ by "
        f"{between.even:.0%}",
        facts.longest(worst), lost, Gain(lost, replayed_gain),
        "another rank holds the hot expert in each layer: replicate or place experts by load (EPLB), capacity, "
        "auxiliary loss; links and overlap are not what waits"
        if experts
        else "balance each part between two exchanges, not the sum: sequences of equal length, equal shards",
    )  # fmt: skip


def _more_of(facts: Facts, chip: BreakdownRow) -> str:
    """The class in which a chip spends most more than the others do."""
    line = facts.line
    work = np.flatnonzero(facts.group(COMPUTE))
    process = line.processes[int(line.process[work[0]])] if len(work) else ""
    if not process:
        return ""
    time, on_chip = line.durations_ns(work), line.process[work] == line.processes.index(chip.process)
    total = np.bincount(line.class_[work], weights=np.where(on_chip, time, 0), minlength=len(line.classes))
    elsewhere_ns = np.bincount(line.class_[work], weights=np.where(on_chip, 0, time), minlength=len(line.classes))
    more = total - elsewhere_ns / max(1, len(facts.parts.chips) - 1)
    class_ = int(more.argmax())
    return f", most of it in {line.classes[class_]}" if more[class_] > 0 else ""


def late_ranks(facts: Facts) -> Iterator[Finding]:
    """Gain: what the others wait for a rank that comes last though it computes no longer than they do.

    By replay: its host takes no time. Where no rank causes half of the waiting, `late_in_turn` speaks.
    """
    chips = facts.parts.chips
    if not facts.ranks.stragglers or len(chips) < 2 or facts.ranks_seen < 2 or _in_turn(facts):
        return
    first = facts.ranks.stragglers[0]
    mean = sum(row.times.compute_ns for row in chips) / len(chips)
    compute_ns = max((row.times.compute_ns for row in chips if row.rank == first.rank), default=0)
    other_ranks = len(facts.ranks.stragglers) - 1
    lost = first.caused_ns / max(1, other_ranks) * len(chips)
    if compute_ns > LONGER * mean or not first.last or not facts.worth(lost):
        return
    parts = [
        arrival.rows[arrival.ranks.index(first.rank)] for arrival in facts.ranks.arrivals if arrival.last == first.rank
    ]
    cause, share = _idle_of(facts, first.rank)
    replayed_gain = facts.replayed(no_launch_gaps, (first.rank,))
    gap = facts.gap(np.flatnonzero(facts.line.rank[facts.gaps.ended] == first.rank)) if share > 0 else None
    idle_text = f"; meanwhile its chip idles for {cause}{_doing(gap)}" if share > 0 else ""
    finding = facts.finding(
        f"late rank: rank {first.rank} comes last to {first.last:,} of {facts.ranks.collectives:,} collectives, "
        f"though it computes no longer than the others{idle_text}",
        parts, lost, Gain(lost, replayed_gain),
        facts.software.says("loader") + ", on that rank" if cause == "data loading"
        else "look at its host: launches, data loading, other programs; at its clock and network",
    )  # fmt: skip
    yield replace(finding, gap=gap)


def _doing(gap: GapEvidence | None) -> str:
    """What the host did in a long gap: the innermost of what covers most of it."""
    if gap is None or not gap.host or gap.end_ns - gap.start_ns < PAUSE_NS:
        return ""
    name = short(gap.host[-1].name)
    return f", up to {(gap.end_ns - gap.start_ns) / 1e6:,.1f} ms in {name}"


def _in_turn(facts: Facts) -> list[Straggler]:
    """Ranks that come late one after the other; none where one of them causes most."""
    stragglers = facts.ranks.stragglers
    total = sum(straggler.caused_ns for straggler in stragglers)
    if (
        len(stragglers) < 3
        or stragglers[0].caused_ns >= IN_TURN * total
        or not facts.worth(total / (len(stragglers) - 1))
    ):
        return []
    return [straggler for straggler in stragglers if straggler.caused_ns >= 0.05 * total]


def late_in_turn(facts: Facts) -> Iterator[Finding]:
    """Gain: what the others wait for ranks whose hosts stop at different times, by replay without these hosts."""
    late = _in_turn(facts)
    between = facts.ranks.between
    if len(late) < 2 or (between is not None and between.uneven >= UNEVEN):
        return
    chips, other_ranks = facts.parts.chips, len(facts.ranks.stragglers) - 1
    lost = sum(straggler.caused_ns for straggler in late) / max(1, other_ranks) * len(chips)
    ranks = {straggler.rank for straggler in late}
    silent = [place for place, row in enumerate(facts.gaps.ended.tolist()) if int(facts.line.rank[row]) in ranks]
    longest = max((int(facts.gaps.length[place]) for place in silent), default=0)
    if not facts.worth(lost) or longest < PAUSE_NS:
        return
    parts = [
        arrival.rows[arrival.ranks.index(arrival.last)] for arrival in facts.ranks.arrivals if arrival.last in ranks
    ]
    replayed_gain = facts.replayed(no_launch_gaps, tuple(ranks))
    rank_names = ", ".join(str(straggler.rank) for straggler in late[:6])
    yield facts.finding(
        f"late ranks in turn: ranks {rank_names} come last to {sum(straggler.last for straggler in late):,} of "
        f"{facts.ranks.collectives:,} collectives, one here and one there; their hosts pause for up to "
        f"{longest / 1e6:,.1f} ms and all others wait",
        parts, lost, Gain(lost, replayed_gain),
        "stops that every rank has at another time: collect garbage on all ranks in the same steps (gc.disable, "
        "gc.collect every so many steps), no logging or checkpointing in between, no other programs on the hosts",
    )  # fmt: skip


def _idle_of(facts: Facts, rank: int) -> tuple[str, float]:
    """Why the chips of a rank idle more than those of the others, and for how long."""
    ranks = facts.line.rank[facts.gaps.ended]
    many = max(1, facts.ranks_seen - 1)
    more = {}
    for code, cause in enumerate(CAUSES):
        of_cause = facts.gaps.cause == code
        rank_ns = float(facts.gaps.length[of_cause & (ranks == rank)].sum())
        more[cause] = rank_ns - float(facts.gaps.length[of_cause & (ranks != rank)].sum()) / many
    cause = max(more, key=lambda one: more[one])
    return cause, more[cause]


def pipeline_bubble(facts: Facts) -> Iterator[Finding]:
    """Gain: half of the bubble, what twice as many microbatches leave of it. Stages of a pipeline begin one by one."""
    bubbles = facts.ranks.bubbles
    lost = sum(bubble.bubble_ns for bubble in bubbles)
    begins = [bubble.warm_up_ns for bubble in bubbles]
    if not lost or not facts.ranks.pairs or max(begins) - min(begins) < STAGGERED * bubbles[0].window_ns:
        return
    worst = max(bubbles, key=lambda one: one.bubble_ns)
    share = lost / sum(bubble.window_ns for bubble in bubbles)
    stage = next(row for row in facts.parts.chips if row.process == worst.process)
    rows = np.flatnonzero(facts.group(COMPUTE) & facts.line.rows(stage.process))
    lost_here = share * facts.span_ns
    yield facts.finding(
        f"pipeline bubble: stages have no work {share:.0%} of the time; most on {worst.process} ({worst.share:.0%})",
        facts.longest(rows), lost_here, Gain(lost_here / 2),
        "more microbatches, interleaved or zero-bubble schedules, stages of equal work",
    )  # fmt: skip
