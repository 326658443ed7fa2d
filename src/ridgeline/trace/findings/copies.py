"""Rule about the runtime's copies: direction, pinning, rate, and what could run beside them."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from ridgeline.core.units import DECIMAL
from ridgeline.trace.classes import COPY
from ridgeline.trace.findings.finding import Facts, Finding, Gain, count
from ridgeline.trace.intervals import cover, covered_ns

PAGEABLE = re.compile(r"pageable", re.IGNORECASE)
DIRECTIONS = (
    ("host to device", re.compile(r"HtoD|Host.?(To|->).?Device|(Pageable|Pinned|Host) -> Device", re.IGNORECASE)),
    ("device to host", re.compile(r"DtoH|Device.?(To|->).?Host|Device -> (Pageable|Pinned|Host)", re.IGNORECASE)),
    ("device to device", re.compile(r"DtoD|PtoP|Device.?(To|->).?Device|Device -> Device|__amd_rocclr_copy", re.I)),
    ("fill", re.compile(r"memset|fill", re.IGNORECASE)),
)
PINNED_RATE = 0.85  # of the link to the host, what pinned copies reach
ADVICE = {
    "host to device": "copy the next batch early, non_blocking on a stream of its own (one engine serves a direction), "
    "or move fewer bytes",
    "device to host": "read back rarely, into pinned memory with non_blocking, on a stream of its own",
    "device to device": "avoid them: contiguous(), clone(), cat and reshapes of strided tensors; write into place",
    "fill": "fill less: zero_grad(set_to_none=True), empty instead of zeros",
}


def exposed_copies(facts: Facts) -> Iterator[Finding]:
    """Gain of each direction: copies that nothing hides, as far as compute could hide them; pageable ones pinned first.

    Copies inside the chip would have to go instead: all of their time. By replay.
    """
    line = facts.line
    copies = np.flatnonzero(facts.group(COPY))
    if not len(copies):
        return
    way = np.array([_direction(name) for name in line.names])[line.name[copies]]
    for name in dict.fromkeys(way.tolist()):
        yield from _of_direction(facts, str(name), copies[way == name])


def _direction(name: str) -> str:
    return next((word for word, pattern in DIRECTIONS if pattern.search(name[:200])), "other")


def _of_direction(facts: Facts, way: str, rows: NDArray[np.intp]) -> Iterator[Finding]:
    line = facts.line
    exposed_ns, room = _exposed_copies(facts, rows)
    lost = int(exposed_ns.sum())
    if not facts.worth(lost):
        return
    pageable = line.named(PAGEABLE, rows)
    blocking = float(line.durations_ns(rows[pageable]).sum()) > 0.5 * float(line.durations_ns(rows).sum())
    time = np.maximum(1, line.durations_ns(rows))
    inside = way in ("device to device", "fill")
    needed_ns = _pinned_ns(facts, rows) if blocking else time
    remaining_ns = exposed_ns * np.minimum(1.0, needed_ns / time)  # of it, what would still have to be hidden
    fits = 1.0 if inside else min(1.0, room / max(1.0, float(remaining_ns.sum())))
    kept_share = np.clip(np.minimum(1.0, needed_ns / time) - fits * remaining_ns / time, 0.0, 1.0)
    formula = lost if inside else min(lost, float((time * (1 - kept_share)).sum()))
    replayed_gain = None if facts.gains is None else facts.gains.lasting(rows, kept_share)
    memory = "pageable" if blocking else "pinned" if way in ("host to device", "device to host") else ""
    bound = "" if inside or fits >= 1 else f"; compute could hide {fits:.0%} of them"
    yield facts.finding(
        f"copies {way}{f', {memory} memory' if memory else ''}: {count(len(rows), 'copy').replace('copys', 'copies')} "
        f"with nothing beside them{_rate(facts, rows)}{bound}",
        facts.longest(rows), lost, Gain(formula, replayed_gain),
        (f"pin_memory=True: pageable copies are staged and block the host; {ADVICE[way]}" if blocking
         else ADVICE.get(way, "keep data on the chip")),
    )  # fmt: skip


def _exposed_copies(facts: Facts, rows: NDArray[np.intp]) -> tuple[NDArray[np.int64], float]:
    """Of each copy the time in which nothing else runs on its chip; and compute that has no copy beside it."""
    line = facts.line
    exposed_ns, room = np.zeros(len(rows), np.int64), 0.0
    chosen = np.zeros(len(line), np.bool_)
    chosen[rows] = True
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


def _pinned_ns(facts: Facts, rows: NDArray[np.intp]) -> NDArray[np.float64]:
    """What copies would take from pinned memory over the link to the host; as long as now where it is not known."""
    time = facts.line.durations_ns(rows).astype(np.float64)
    size = facts.line.detail.size_bytes.at(rows, 0).astype(np.float64)
    link = facts.chip.host.bandwidth if facts.chip is not None else None
    rate = PINNED_RATE * link.value if link is not None else 20e9
    return np.where(size > 0, np.minimum(time, 2000 + size / rate * DECIMAL["G"]), time * 0.5)


def _rate(facts: Facts, rows: NDArray[np.intp]) -> str:
    size = facts.line.detail.size_bytes.at(rows, 0)
    time = float(facts.line.durations_ns(rows[size > 0]).sum())
    if time <= 0:
        return ""
    return f", {size.sum() / DECIMAL['M']:,.0f} MB at {size.sum() / time:,.1f} GB/s"
