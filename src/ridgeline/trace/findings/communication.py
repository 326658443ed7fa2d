"""Rules about collectives, the runtime's copies and ranks: exposed, slow or in small pieces; uneven, late, bubbles."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from ridgeline.core.arrays import Array
from ridgeline.core.units import DECIMAL
from ridgeline.trace.analysis.breakdown import BreakdownRow
from ridgeline.trace.analysis.collectives import CollectiveSize, Straggler, Talk, link_of
from ridgeline.trace.analysis.idle import CAUSES, PAUSE_NS, short
from ridgeline.trace.analysis.what_if import faster, no_launch_gaps, scale_rows
from ridgeline.trace.classes import COMPUTE, COPY
from ridgeline.trace.findings.finding import Facts, Finding, Gain, GapEvidence, advice, advise, count, time_text
from ridgeline.trace.intervals import cover, covered_ns
from ridgeline.trace.timeline import Longs, Rows

SLOW_LINK = 0.4  # of the link: a large collective below has another limit
GOOD_LINK = 0.8  # of the link, what good collectives reach
LARGE = 8e6  # bytes a rank sends before bandwidth is what counts
SMALL, OFTEN = 2e6, 24  # bytes; calls a step and rank
SHORT_NS = 300_000  # a collective of unknown size that is as short is small
BUCKET = 25e6  # bytes, DDP's
ONE_SHOT_NS = 10_000  # what an exchange of few bytes takes inside a node with a kernel made for it


def exposed_communication(facts: Facts) -> Iterator[Finding]:
    """Gain: what of each sort of collective, behind the last arrival, fits under compute without communication yet."""
    talk, line = facts.talk, facts.line
    if talk is None or not len(talk.rows):
        return
    exposed_times = exposed_ns(facts, talk)
    kinds = np.array(talk.kind)
    chips = facts.parts.chips
    room = sum(row.times.compute_ns - row.times.communication_ns + row.times.exposed_communication_ns for row in chips)
    for kind in dict.fromkeys(talk.kind):
        kind_rows = np.flatnonzero(kinds == kind)
        lost, total = int(exposed_times[kind_rows].sum()), int(line.durations_ns(talk.rows[kind_rows]).sum())
        if not facts.worth(lost):
            continue
        fits = min(1.0, room / max(1, lost))
        call_ns = np.maximum(1, line.end_ns[talk.rows[kind_rows]] - talk.arrived[kind_rows])
        kept_share = np.clip(1 - fits * exposed_times[kind_rows] / call_ns, 0.0, 1.0)
        replayed_gain = facts.replay_gain(scale_rows, talk.rows[kind_rows], kept_share)
        order = talk.rows[kind_rows][np.argsort(-exposed_times[kind_rows], kind="stable")]
        same = facts.software.framework == "pytorch" and _beside_compute(facts, talk.rows[kind_rows])
        stream = "; all on the stream that computes, where nothing can hide it" if same else ""
        hide = advise("overlaps", kind, "use a stream of its own")
        is_single = facts.ranks_seen == 1 and line.about.world_size > 1
        single_rank = "; waiting for other ranks is in it: record all of them" if is_single else ""
        yield facts.finding(
            f"exposed communication: {lost / max(1, total):.0%} of {kind} is not under compute "
            f"({count(len(kind_rows), 'call')}){stream}{_rate(facts, kind)}{single_rank}",
            order.tolist(), lost, Gain(min(lost, room), replayed_gain),
            f"overlap it: {'on a stream of its own (async_op=True); ' * same}"
            f"{facts.software.says('overlap').format(own=hide)}",
        )  # fmt: skip


def _beside_compute(facts: Facts, rows: Rows) -> bool:
    """Whether these run on the streams that do most of the compute."""
    tracks, work = facts.line.tracks(), np.flatnonzero(facts.group(COMPUTE))
    busy = np.bincount(tracks[work], weights=facts.line.durations_ns(work), minlength=int(tracks.max()) + 1)
    busiest: dict[int, float] = {}
    for track in np.unique(tracks[work]).tolist():
        process = int(facts.line.process[work[tracks[work] == track][0]])
        busiest[process] = max(busiest.get(process, 0.0), busy[track])
    limit = np.array([busiest.get(int(number), 0.0) for number in facts.line.process[rows]])
    return bool(len(rows) and ((busy[tracks[rows]] >= 0.5 * limit) & (limit > 0)).all())


def exposed_ns(facts: Facts, talk: Talk) -> Longs:
    """Own time of communication behind the last arrival: not under compute, nor under earlier communication."""
    line = facts.line
    exposed_time = np.zeros(len(talk.rows), np.int64)
    compute = facts.group(COMPUTE)
    for process in np.unique(line.process[talk.rows]).tolist():
        of_process = np.flatnonzero(line.process[talk.rows] == process)
        work = np.flatnonzero(compute & (line.process == process))
        start, end = line.start_ns[talk.rows[of_process]], line.end_ns[talk.rows[of_process]]
        before = np.concatenate([[start[0] if len(start) else 0], np.maximum.accumulate(end)[:-1]])
        start = np.minimum(np.maximum(np.maximum(start, before), talk.arrived[of_process]), end)
        exposed_time[of_process] = end - start - covered_ns(cover(line.start_ns[work], line.end_ns[work]), start, end)
    return exposed_time


def _rate(facts: Facts, kind: str) -> str:
    """How fast large collectives of a kind moved, beside the link's bandwidth."""
    large = [size for size in facts.sizes if size.name == kind and size.wire_bytes >= LARGE and size.busbw]
    if not large:
        return ""
    largest = max(large, key=lambda one: one.total_ns)
    link = largest.link_bytes_per_s
    against = f" of {link / DECIMAL['G']:,.0f} GB/s" if link else ""
    return f"; large ones at {(largest.busbw or 0) / DECIMAL['G']:,.0f} GB/s a rank{against}"


def slow_links(facts: Facts) -> Iterator[Finding]:
    """Gain: large collectives as fast as their bytes at 80 % of the link allow, by replay."""
    large = [size for size in facts.sizes if size.wire_bytes >= LARGE and size.group_size > 1]
    slow = [size for size in large if size.share_of_link is not None and size.share_of_link < SLOW_LINK]
    if not slow or facts.talk is None:
        return
    talk, line = facts.talk, facts.line
    by = {(size.name, size.payload_bytes, size.group_size): size for size in slow}
    keys = zip(talk.kind, talk.payload.tolist(), talk.group.tolist(), strict=True)
    slow_rows = np.array([at for at, key in enumerate(keys) if key in by], np.intp)
    link = max(size.link_bytes_per_s or 0.0 for size in slow)
    rows, call_ns = talk.rows[slow_rows], line.end_ns[talk.rows[slow_rows]] - talk.arrived[slow_rows]
    needed_ns = talk.wire[slow_rows] / (GOOD_LINK * link) * DECIMAL["G"]
    kept_share = np.clip(needed_ns / np.maximum(1, call_ns), 0.0, 1.0)
    saved_ns = float((call_ns * (1 - kept_share)).sum())
    lost = facts.union_ns(rows)
    if not facts.worth(lost):
        return
    replayed_gain = facts.replay_gain(scale_rows, rows, kept_share)
    worst = max(slow, key=lambda one: one.total_ns)
    waits = f"; ranks wait {worst.wait_ns / max(1, worst.total_ns):.0%} of its time for the last to come"
    waits = waits if worst.matched else "; waiting for other ranks may be in it"
    rate, link_rate = (worst.busbw or 0.0) / DECIMAL["G"], link / DECIMAL["G"]
    yield facts.finding(
        f"slow link: {worst.name} of {worst.payload_bytes / DECIMAL['M']:,.0f} MB over {worst.group_size} ranks moves "
        f"{rate:,.0f} GB/s a rank, {rate / link_rate:.0%} of the link's {link_rate:,.0f} GB/s{waits}",
        worst.rows, lost, Gain(saved_ns, replayed_gain),
        _link_advice(worst, facts),
    )  # fmt: skip


def _link_advice(worst: CollectiveSize, facts: Facts) -> str:
    library = {"amd": "RCCL", "huawei": "HCCL"}.get(facts.software.vendor, "NCCL")
    look = (
        f"look at the path it takes ({library}_DEBUG=INFO: NVLink or sockets, channels, algorithm), and at the network"
    )
    if facts.software.vendor == "amd":
        look = "look at the path it takes (NCCL_DEBUG=INFO: xGMI or sockets, channels), and at the network"
    fast = f"{library}'s own test reaches more" if worst.matched else "record all ranks: this one may wait for others"
    return f"{look}; {fast}; send fewer bytes (bf16 gradients, sharding) or fewer, larger messages"


def small_collectives(facts: Facts) -> Iterator[Finding]:
    """Gain: small collectives of a kind in buckets of 25 MB: the bytes at the link, one latency a bucket; by replay."""
    talk, line = facts.talk, facts.line
    if talk is None:
        return
    kinds, time = np.array(talk.kind), line.durations_ns(talk.rows)
    for kind in dict.fromkeys(talk.kind):
        small = (kinds == kind) & np.where(talk.payload > 0, talk.payload < SMALL, time < SHORT_NS)
        small_rows = np.flatnonzero(small)
        if (
            kind not in ("allreduce", "reducescatter", "allgather", "broadcast")
            or len(small_rows) < OFTEN * facts.steps
        ):
            continue
        rows = talk.rows[small_rows]
        lost = facts.union_ns(rows)
        if not facts.worth(lost):
            continue
        between_layers = _between_layers(facts, rows)
        kept_share = _at_once(facts, talk, small_rows) if between_layers else _in_buckets(facts, talk, small_rows)
        replayed_gain = facts.replay_gain(scale_rows, rows, np.full(len(rows), kept_share))
        size = float(np.median(talk.payload[small_rows]))
        size_text = f" of {size / 1e3:,.0f} kB" if size else ""
        what = "small collectives between kernels that wait for them" if between_layers else "unbucketed reductions"
        yield facts.finding(
            f"{what}: {len(small_rows) / facts.steps:,.0f} small {kind} a step{size_text}, "
            f"{time_text(float(np.median(time[small_rows])))} each: latency, not bandwidth",
            facts.longest(rows), lost, Gain(lost * (1 - kept_share), replayed_gain),
            "a kernel made for few bytes (one-shot or custom all-reduce, symmetric memory, NVLS), fused with the norm "
            "behind it; fewer ranks in the group"
            if between_layers
            else "put them together: gradient buckets of 25 MB and more (bucket_cap_mb, DDP instead of hooks), "
            "coalesced collectives",
        )  # fmt: skip


def _between_layers(facts: Facts, rows: Rows) -> bool:
    """Whether most of these have compute of their chip between them and the one before: they cannot be one."""
    line, compute = facts.line, facts.group(COMPUTE)
    divided_calls = total = 0
    for process in np.unique(line.process[rows]).tolist():
        process_rows = rows[line.process[rows] == process]
        work = np.sort(line.start_ns[compute & (line.process == process)])
        begun = np.searchsorted(work, line.start_ns[process_rows[1:]]) - np.searchsorted(
            work, line.end_ns[process_rows[:-1]]
        )
        divided_calls, total = divided_calls + int((begun > 0).sum()), total + len(begun)
    return 2 * divided_calls > total


def _at_once(facts: Facts, talk: Talk, own: Rows) -> float:
    """The share of their time that small collectives need as one exchange of a few microseconds."""
    call_ns = facts.line.end_ns[talk.rows[own]] - talk.arrived[own]
    link = link_of(facts.chip, int(talk.group[own].max(initial=0)))
    needed_ns = len(own) * ONE_SHOT_NS + (float(talk.wire[own].sum()) / (0.5 * link) * DECIMAL["G"] if link else 0.0)
    return min(1.0, needed_ns / max(1.0, float(call_ns.sum())))


def _in_buckets(facts: Facts, talk: Talk, own: Rows) -> float:
    call_ns = facts.line.end_ns[talk.rows[own]] - talk.arrived[own]
    latency = float(np.quantile(call_ns, 0.05))
    many = max(1.0, float(talk.payload[own].sum()) / BUCKET, facts.steps)
    link = link_of(facts.chip, int(talk.group[own].max(initial=0)))
    bytes_ns = float(talk.wire[own].sum()) / (0.5 * link) * DECIMAL["G"] if link else 0.0
    bytes_ns = bytes_ns or float((call_ns - latency).clip(min=0).sum())
    return min(1.0, (many * latency + bytes_ns) / max(1.0, float(call_ns.sum())))


PAGEABLE = re.compile(r"pageable", re.IGNORECASE)
DIRECTIONS = (
    ("host to device", re.compile(r"HtoD|Host.?(To|->).?Device|(Pageable|Pinned|Host) -> Device", re.IGNORECASE)),
    ("device to host", re.compile(r"DtoH|Device.?(To|->).?Host|Device -> (Pageable|Pinned|Host)", re.IGNORECASE)),
    ("device to device", re.compile(r"DtoD|PtoP|Device.?(To|->).?Device|Device -> Device|__amd_rocclr_copy", re.I)),
    ("fill", re.compile(r"memset|fill", re.IGNORECASE)),
)
PINNED_RATE = 0.85  # of the link to the host, what pinned copies reach


def exposed_copies(facts: Facts) -> Iterator[Finding]:
    """Gain of each direction: copies that nothing hides, as far as compute could hide them; pageable ones pinned first.

    Copies inside the chip would have to go instead: all of their time. By replay.
    """
    line = facts.line
    copies = np.flatnonzero(facts.group(COPY))
    if not len(copies):
        return
    ways = [next((way for way, names in DIRECTIONS if names.search(name[:200])), "other") for name in line.names]
    way = np.array(ways)[line.name[copies]]
    for name in dict.fromkeys(way.tolist()):
        yield from _of_direction(facts, str(name), copies[way == name])


def _of_direction(facts: Facts, way: str, rows: Rows) -> Iterator[Finding]:
    line = facts.line
    exposed_ns, room = _exposed_copies(facts, rows)
    lost = int(exposed_ns.sum())
    if not facts.worth(lost):
        return
    pageable = line.match_names(PAGEABLE, rows)
    blocking = float(line.durations_ns(rows[pageable]).sum()) > 0.5 * float(line.durations_ns(rows).sum())
    time = np.maximum(1, line.durations_ns(rows))
    inside = way in ("device to device", "fill")
    needed_ns = _pinned_ns(facts, rows) if blocking else time
    remaining_ns = exposed_ns * np.minimum(1.0, needed_ns / time)  # of it, what would still have to be hidden
    fits = 1.0 if inside else min(1.0, room / max(1.0, float(remaining_ns.sum())))
    kept_share = np.clip(np.minimum(1.0, needed_ns / time) - fits * remaining_ns / time, 0.0, 1.0)
    formula = lost if inside else min(lost, float((time * (1 - kept_share)).sum()))
    replayed_gain = facts.replay_gain(scale_rows, rows, kept_share)
    memory = "pageable" if blocking else "pinned" if way in ("host to device", "device to host") else ""
    bound = "" if inside or fits >= 1 else f"; compute could hide {fits:.0%} of them"
    yield facts.finding(
        f"copies {way}{f', {memory} memory' if memory else ''}: {count(len(rows), 'copy').replace('copys', 'copies')} "
        f"with nothing beside them{_copy_rate(facts, rows)}{bound}",
        facts.longest(rows), lost, Gain(formula, replayed_gain),
        (f"pin_memory=True: pageable copies are staged and block the host; {advice()['copies'][way]}" if blocking
         else advice()["copies"].get(way, "keep data on the chip")),
    )  # fmt: skip


def _exposed_copies(facts: Facts, rows: Rows) -> tuple[Longs, float]:
    """Of each copy the time in which nothing else runs on its chip; and compute that has no copy beside it."""
    line = facts.line
    exposed_ns, room = np.zeros(len(rows), np.int64), 0.0
    chosen = line.mask(rows)
    for process in np.unique(line.process[rows]).tolist():
        of_process = np.flatnonzero(line.process[rows] == process)
        other_rows = np.flatnonzero(facts.counted & (line.process == process) & ~chosen)
        other_work = cover(line.start_ns[other_rows], line.end_ns[other_rows])
        start, end = line.start_ns[rows[of_process]], line.end_ns[rows[of_process]]
        before = np.concatenate([[start[0]], np.maximum.accumulate(end)[:-1]])
        begin = np.minimum(np.maximum(start, before), end)
        exposed_ns[of_process] = end - begin - covered_ns(other_work, begin, end)
        copy_cover = cover(start, end)
        room += other_work.length - float(covered_ns(copy_cover, other_work.start, other_work.end).sum())
    return exposed_ns, room


def _pinned_ns(facts: Facts, rows: Rows) -> Array:
    """What copies would take from pinned memory over the link to the host; as long as now where it is not known."""
    time = facts.line.durations_ns(rows).astype(np.float64)
    size = facts.line.detail.size_bytes.at(rows, 0).astype(np.float64)
    link = facts.chip.host.bandwidth if facts.chip is not None else None
    rate = PINNED_RATE * link.value if link is not None else 20e9
    return np.where(size > 0, np.minimum(time, 2000 + size / rate * DECIMAL["G"]), time * 0.5)


def _copy_rate(facts: Facts, rows: Rows) -> str:
    size = facts.line.detail.size_bytes.at(rows, 0)
    time = float(facts.line.durations_ns(rows[size > 0]).sum())
    if time <= 0:
        return ""
    return f", {size.sum() / DECIMAL['M']:,.0f} MB at {size.sum() / time:,.1f} GB/s"


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
    replayed_gain = _balanced_ns(facts) if facts.ranks.pairs else facts.replay_gain(faster, rows, factor)
    experts = any(size.name == "alltoall" for size in facts.sizes)
    yield facts.finding(
        f"uneven ranks: rank {slowest.rank} computes {factor - 1:.0%} longer than the others "
        f"({time_text(over)}; {len(chips)} chips){_more_of(facts, slowest)}",
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
    return facts.replay_gain(scale_rows, rows, share[line.process[rows]])


def moving_imbalance(facts: Facts) -> Iterator[Finding]:
    """Gain: all ranks computing equally long from each collective to the next, by replay; sums are even already."""
    between = facts.ranks.between
    if between is None or facts.ranks_seen < 2 or between.uneven < UNEVEN or between.uneven < 2 * between.even:
        return
    slowest_ns = between.compute_ns.max(axis=1)
    lost = float((slowest_ns - between.compute_ns.mean(axis=1)).sum()) * len(facts.parts.chips)
    if not facts.worth(lost):
        return
    replayed_gain = facts.replay_gain(scale_rows, between.rows, between.shares)
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
    replayed_gain = facts.replay_gain(no_launch_gaps, (first.rank,))
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
    replayed_gain = facts.replay_gain(no_launch_gaps, tuple(ranks))
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
