"""Turn an analysis into findings: what limits the time, the spans that prove it, what it would gain to change it.

    share of step     time of the finding / span, mean over chips
    predicted gain    part of the span that would go: the timeline replayed with that one thing changed (`whatif`), and
                      not more than the formula each rule states; without a replay, the formula, an upper bound

Rules are small functions in one tuple; one that has nothing to say yields nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from ridgeline.hardware.chip import Chip
from ridgeline.trace.breakdown import Breakdown, Row
from ridgeline.trace.classes import COMMUNICATION, COMPUTE, COPY, Rules
from ridgeline.trace.gains import Gains
from ridgeline.trace.idle import IdleCause
from ridgeline.trace.intervals import cover, overlap_length
from ridgeline.trace.roofline import OpRate
from ridgeline.trace.timeline import Mask, Timeline

LEAST = 0.01  # of the span: less is not worth saying
REPLAY_GAP_NS = 1500  # what remains between kernels of a replayed graph
REACHABLE = {"compute": 0.75, "memory": 0.8}  # of the roof: what good kernels reach
FUSIBLE = ("elementwise", "norm", "kernel-copy", "reduction", "rope", "quantize", "random", "softmax", "loss")
TOGETHER_NS = 20_000  # kernels this close to each other are one chain
MOST = 5  # spans named as evidence


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """One span that proves a finding."""

    row: int
    name: str
    start_ns: int
    duration_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that limits the time."""

    what: str
    evidence: tuple[Evidence, ...]
    share_of_step: float
    predicted_gain: float
    action: str


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Facts:
    """What the rules look at."""

    line: Timeline
    counted: Mask
    rules: Rules
    parts: Breakdown
    idle: tuple[IdleCause, ...]
    rates: tuple[OpRate, ...]
    chip: Chip | None
    gains: Gains | None = None
    """None where the timeline is too large to be replayed for each finding."""

    @property
    def span_ns(self) -> int:
        """Spans of all chips together, so that sums over chips divide by it."""
        return max(1, sum(row.times.span_ns for row in self.parts.chips))

    def finding(self, what: str, rows: tuple[int, ...], lost_ns: float, gain_ns: float, action: str) -> Finding:
        """A finding with its spans looked up and its times made shares."""
        start, end = self.line.start_ns, self.line.end_ns
        spans = tuple(
            Evidence(
                row=row,
                name=self.line.names[int(self.line.name[row])],
                start_ns=int(start[row]),
                duration_ns=int(end[row] - start[row]),
            )
            for row in rows[:MOST]
        )
        span = self.span_ns
        return Finding(
            what=what,
            evidence=spans,
            share_of_step=lost_ns / span,
            predicted_gain=max(0.0, gain_ns / span),
            action=action,
        )


Rule = Callable[[Facts], Iterator[Finding]]


def findings(facts: Facts) -> tuple[Finding, ...]:
    """Everything worth saying, largest gain first."""
    found = [finding for rule in RULES for finding in rule(facts) if finding.share_of_step >= LEAST]
    return tuple(sorted(found, key=lambda finding: -finding.predicted_gain))


IDLE_ACTIONS = {
    "host": "replay graphs (torch.compile mode='reduce-overhead', CUDA graphs), fuse, or make kernels larger",
    "synchronisation": "remove what makes the host wait (.item(), .cpu(), nonzero, prints) or do it rarely",
    "data loading": "more loader workers, prefetching, pinned memory; or prepare the data beforehand",
    "start-up": "warm up before profiling; allocate once and keep",
    "communication": "start the communication earlier, or the work that does not need it first",
    "copy": "pinned memory and non_blocking copies on a stream of their own; keep data on the chip",
    "dependency": "look for waits between streams and for other programs on the chip",
}


def why_idle(facts: Facts) -> Iterator[Finding]:
    """Gain: all of the idle time but 1.5 us a gap, what a replayed graph still leaves."""
    for cause in facts.idle:
        action = IDLE_ACTIONS.get(cause.cause)
        if action is not None:
            gaps = f"{cause.gaps:,} gaps, longest {cause.longest_ns / 1000:,.0f} us"
            what = f"idle, {cause.cause}: {cause.meaning} ({gaps})"
            gain = cause.idle_ns - REPLAY_GAP_NS * cause.gaps
            if cause.cause == "host" and facts.gains is not None:
                gain = min(gain, facts.gains.by("no launch gaps"))
            yield facts.finding(what, cause.rows, cause.idle_ns, gain, action)


def exposed_communication(facts: Facts) -> Iterator[Finding]:
    """Gain: what of it fits under compute that has no communication beside it yet."""
    exposed = sum(row.times.exposed_communication_ns for row in facts.parts.chips)
    room = sum(
        row.times.compute_ns - (row.times.communication_ns - row.times.exposed_communication_ns)
        for row in facts.parts.chips
    )
    total = max(1, sum(row.times.communication_ns for row in facts.parts.chips))
    names = [one for one in facts.parts.names if facts.rules.group_of(one.class_) == COMMUNICATION]
    if exposed and names:
        rows = tuple(row for one in names for row in one.rows)
        gain = min(exposed, room)
        if facts.gains is not None:
            gain = min(gain, facts.gains.by("overlap", COMMUNICATION))
        yield facts.finding(
            f"exposed communication: {exposed / total:.0%} of it is not under compute",
            rows, exposed, gain,
            "overlap it: bucket and start reductions during backward, prefetch gathers, use a stream of its own",
        )  # fmt: skip


def slow_ops(facts: Facts) -> Iterator[Finding]:
    """Gain: the time above 75 % (compute-bound) or 80 % (memory-bound) of the roof, by class."""
    by_class: dict[tuple[str, str], list[OpRate]] = {}
    for rate in facts.rates:
        if rate.efficiency is not None and rate.bound is not None and rate.efficiency < REACHABLE[rate.bound]:
            by_class.setdefault((rate.class_, rate.bound), []).append(rate)
    for (class_, bound), rates in by_class.items():
        total = sum(rate.total_ns for rate in rates)
        roof = sum(rate.roof_ns or 0.0 for rate in rates)
        worst = max(rates, key=lambda rate: rate.total_ns - (rate.roof_ns or 0.0))
        gain = total - roof / REACHABLE[bound]
        if facts.gains is not None:
            whole = next((one.total_ns for one in facts.parts.classes if one.id == class_), total)
            gain = min(gain, facts.gains.faster(class_, whole / max(1.0, whole - gain)))
        yield facts.finding(
            f"{class_} at {roof / total:.0%} of the {bound} roof of {facts.chip.id if facts.chip else 'the chip'}; "
            f"most in {worst.op} {worst.operands[:60]}",
            worst.rows, total, gain,
            "other shapes (multiples of the tile), another kernel or library, lower precision"
            if bound == "compute"
            else "fuse with its neighbours, keep layouts contiguous, larger blocks",
        )  # fmt: skip


def fusible_chains(facts: Facts) -> Iterator[Finding]:
    """Gain: each chain of kernels bound by memory becomes one launch and takes as long as its longest."""
    line = facts.line
    codes = [code for code, id in enumerate(line.classes) if id in FUSIBLE]
    lost = gain = count = 0
    best: list[tuple[int, int]] = []
    tracks = line.process.astype(np.int64) * max(1, len(line.streams)) + line.stream
    for track in np.unique(tracks[facts.counted]).tolist():
        rows = np.flatnonzero(facts.counted & (tracks == track))
        start, end = line.start_ns[rows], line.end_ns[rows]
        small = np.isin(line.class_[rows], codes)
        joined = small[1:] & small[:-1] & (start[1:] - end[:-1] < TOGETHER_NS)
        chain = np.concatenate([[0], np.cumsum(~joined)])
        length = end - start
        longest = np.zeros(int(chain[-1]) + 1 if len(chain) else 0, np.int64)
        total = np.zeros_like(longest)
        np.maximum.at(longest, chain, length)
        np.add.at(total, chain, length)
        sizes = np.bincount(chain, minlength=len(longest))
        long_ = sizes > 1
        lost += int(total[long_].sum())
        gain += int((total - longest)[long_].sum())
        count += int(long_.sum())
        firsts = np.searchsorted(chain, np.flatnonzero(long_))
        best += list(zip((total - longest)[long_].tolist(), rows[firsts].tolist(), strict=True))
    rows_named = tuple(row for _, row in sorted(best, reverse=True)[:MOST])
    if count:
        gain = gain if facts.gains is None else facts.gains.by("fuse", *FUSIBLE, longest=True)
        yield facts.finding(
            f"{count:,} chains of kernels bound by memory that follow each other",
            rows_named, lost, gain, "fuse them: torch.compile, or fused norms, activations, optimizers and losses",
        )  # fmt: skip


def exposed_copies(facts: Facts) -> Iterator[Finding]:
    """Gain: copies under which nothing else runs."""
    line = facts.line
    group = np.array([facts.rules.group_of(id) == COPY for id in line.classes])[line.class_]
    lost = 0
    for process in np.unique(line.process[facts.counted]).tolist():
        own = facts.counted & (line.process == process)
        copies, rest = np.flatnonzero(own & group), np.flatnonzero(own & ~group)
        moved = cover(line.start_ns[copies], line.end_ns[copies])
        lost += moved.length - overlap_length(moved, cover(line.start_ns[rest], line.end_ns[rest]))
    names = [one for one in facts.parts.names if facts.rules.group_of(one.class_) == COPY]
    if names:
        rows = tuple(row for one in names for row in one.rows)
        gain = lost if facts.gains is None else min(lost, facts.gains.by("overlap", COPY))
        yield facts.finding("copies with nothing beside them", rows, lost, gain, IDLE_ACTIONS["copy"])


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
        _longest_of(facts, slowest), over * len(chips), over * len(chips),
        "balance the work (tokens, experts, stages); if only one chip is slow, check its clock and neighbours",
    )  # fmt: skip


def _longest_of(facts: Facts, chip: Row) -> tuple[int, ...]:
    compute = np.array([facts.rules.group_of(id) == COMPUTE for id in facts.line.classes])[facts.line.class_]
    rows = np.flatnonzero(facts.counted & compute & facts.line.rows(chip.process))
    longest = np.argsort(-facts.line.duration_s[rows], kind="stable")[:MOST]
    return tuple(rows[longest].tolist())


def unknown_work(facts: Facts) -> Iterator[Finding]:
    """No gain: the numbers by class are less certain."""
    lost = sum(one.total_ns for one in facts.parts.unknown)
    rows = tuple(one.rows[0] for one in facts.parts.unknown)
    yield facts.finding(
        f"{len(facts.parts.unknown)} kernel names belong to no class and count as compute", rows, lost, 0.0,
        "name them in a TOML file and pass it with --classes",
    )  # fmt: skip


RULES: tuple[Rule, ...] = (
    why_idle,
    exposed_communication,
    slow_ops,
    fusible_chains,
    exposed_copies,
    uneven_ranks,
    unknown_work,
)
"""All rules, in the order they are asked."""
