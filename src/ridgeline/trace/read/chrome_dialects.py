"""Turn the names of processes and threads into what their spans are, for Chrome traces that are not PyTorch's.

XLA: `/device:TPU:0` shows the same work several times over: as ops or streams, which is work, and summed up as steps,
modules and scopes, which become marks. Where the host itself is the device, the ops on its threads are the work.

Ascend: `Ascend Hardware` runs kernels, `CANN` is the runtime, `HCCL` or `Communication` holds collectives of the chip
beside it; the transfers they are made of become marks. MindSpore has the same under other names. Both sum up what
overlaps in a process of its own: a second opinion that must agree to 1 % of the span, or 10 us, else a warning says so.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

import numpy as np

from ridgeline.core.documents import JsonMapping
from ridgeline.trace.classes import COMMUNICATION, COMPUTE, Rules
from ridgeline.trace.intervals import cover, union
from ridgeline.trace.read.chrome_columns import ChromeColumns, Id, Track
from ridgeline.trace.read.join import OVERLAP
from ridgeline.trace.read.timestamps import MISSING
from ridgeline.trace.timeline import (
    ANNOTATION,
    HOST,
    KERNEL,
    MARKER,
    MEMCPY,
    MEMSET,
    PYTHON,
    RUNTIME,
    SYNC,
    Codes,
    Longs,
    Timeline,
)

KINETO, XLA, ASCEND, MINDSPORE = "Kineto JSON", "XLA trace JSON", "Ascend trace_view", "MindSpore timeline"
XLA_LIMIT = 1_000_000  # events: the exporter of XLA's trace JSON keeps no more
DEVICE = re.compile(r"^/device:(\w+):(\d{1,6})")
HOSTS = re.compile(r"^/host:")
OPS = ("XLA Ops", "Tensor Core", "Sparse Core Ops")
ASYNC = "Async XLA Ops"
STEPS = ("Steps", "Sparse Core Steps")
HARDWARE, NETWORKS = "Ascend Hardware", ("HCCL", "Communication", "COMMUNICATION")
TRANSFERS = re.compile(r"^(NOTIFY|EVENT|MEMCPY|REDUCE|SDMA|RDMA|CAPTURE|WRITE_VALUE|PLACE_HOLDER)_", re.IGNORECASE)
SUMMED = re.compile(r"^(op )?overlap analy", re.IGNORECASE)
"""Processes in which a vendor's tool sums up what the others show."""
PARTS = {"ai core op": KERNEL, "ai cpu op": KERNEL, "communication op": KERNEL, "host cpu op": HOST}
COPY_STREAM = re.compile(r"^Stream #\d+\((Memcpy\w*,? ?)+\)$")
OLD_MARKS = re.compile(r"^ProfilerStep#\d|^Optimizer\.(step|zero_grad)#|^enumerate\(DataLoader\)#|^[nrhx]ccl:")
BY_HOST = re.compile(r"^(gloo|mpi|ucc):")
_COLLECTIVE = r"all-?reduce|all-?gather|reduce-?scatter|all-?to-?all|collective|send|recv|ragged"
_RULES: Mapping[str, tuple[tuple[str, re.Pattern[str], str], ...]] = MappingProxyType({
    KINETO: (  # PyTorch before 1.10 calls annotations operators; MTIA calls everything a kernel
        (HOST, OLD_MARKS, ANNOTATION),
        (KERNEL, re.compile(r"^dma_(request|transfer|copy)"), MEMCPY),
        (KERNEL, re.compile(r"^event_(wait|record)$"), SYNC),
    ),
    XLA: (
        (KERNEL, re.compile(r"^(while|conditional|call)([._ ]|$)"), MARKER),
        (KERNEL, re.compile(r"^Memcpy|^Copy(Device|Host)To|^__amd_rocclr_copy|^copyBuffer", re.IGNORECASE), MEMCPY),
        (KERNEL, re.compile(r"^Memset|^Fill(Buffer|Device)|^__amd_rocclr_fill", re.IGNORECASE), MEMSET),
        (HOST, re.compile(r"^\$"), PYTHON),
        (HOST, re.compile(r"^(cuda|cu|hip)[A-Z]\w*( \(|$)"), RUNTIME),
        (HOST, re.compile(r"^step \d{1,9}$"), ANNOTATION),
    ),
    ASCEND: (
        (KERNEL, re.compile(r"^(MEMCPY|SDMA)"), MEMCPY),
        (KERNEL, re.compile(r"^(EVENT|NOTIFY|CAPTURE)_(WAIT|RECORD|RESET)", re.IGNORECASE), SYNC),
        (HOST, re.compile(r"^ProfilerStep#\d"), ANNOTATION),
    ),
    MINDSPORE: (),
})  # fmt: skip
"""By dialect: spans of a kind whose name matches are of another kind."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """What processes and threads of one trace mean; empty for what Kineto's categories say."""

    format: str = KINETO
    kinds: Mapping[Track, str] = field(default_factory=dict)
    """Kind of all spans of a thread, whatever their category."""
    chips: Mapping[Id, Id] = field(default_factory=dict)
    """Process to which the work of a process belongs, where that is another."""
    names: Mapping[Id, str] = field(default_factory=dict)
    """Names of processes."""
    steps: frozenset[Track] = frozenset()
    """Threads whose spans are steps named by their number."""

    def ranks(self, processes: Mapping[str, int]) -> tuple[int, ...]:
        """A rank for each chip where the trace holds several; none where a file is one rank."""
        chips = [name for name in processes if name in self.names.values()]
        if len(chips) < 2:
            return ()
        in_order = sorted(chips, key=lambda name: (int(re.sub(r"\D", "", name)[:9] or 0), name))
        rank = {name: place for place, name in enumerate(in_order)}
        return tuple(rank.get(name, 0) for name in processes)

    def apply_rules(self, kind: Codes, track: Codes, name: Codes, found: ChromeColumns, table: list[str]) -> Codes:
        """The kinds, with what this dialect knows better."""
        if self.kinds:
            codes = [table.index(self.kinds[track]) if track in self.kinds else -9 for track in found.tracks]
            by_track = np.array(codes, np.int32)[track]
            kind = np.where(by_track > -9, by_track, kind)
        names = list(found.names)
        has_device = np.isin(kind, [table.index(work) for work in (KERNEL, MEMCPY, MEMSET)]).any()
        by_host = () if has_device else ((ANNOTATION, BY_HOST, HOST),)  # its collectives are ops as others are
        for old, pattern, new in (*_RULES[self.format], *by_host):
            rows = np.flatnonzero(kind == table.index(old))
            codes_of_pattern = [code for code in np.unique(name[rows]).tolist() if pattern.search(names[code])]
            if codes_of_pattern:
                kind = kind.copy()
                kind[rows[np.isin(name[rows], codes_of_pattern)]] = table.index(new)
        if self.format == ASCEND:
            kind = self._transfers(kind, track, name, found, table)
        if self.format == XLA:
            async_tracks = np.array([found.threads.get(track, "") == ASYNC for track in found.tracks], np.bool_)[track]
            calls = np.array([bool(re.search(_COLLECTIVE, text)) for text in found.names], np.bool_)
            kind = np.where(async_tracks & (kind == table.index(KERNEL)) & ~calls[name], table.index(MEMCPY), kind)
        return kind.astype(np.int32)

    def _transfers(self, kind: Codes, track: Codes, name: Codes, found: ChromeColumns, table: list[str]) -> Codes:
        """The kinds, with the streams that only carry out collectives as marks, where the collectives are there."""
        if not self.chips:
            return kind
        transfer = np.array([bool(TRANSFERS.match(text)) for text in found.names], np.bool_)[name]
        hardware_tracks = np.array(
            [found.processes.get(pid, "").strip() == HARDWARE for pid, _ in found.tracks], np.bool_
        )
        hardware_tracks[np.unique(track[~transfer])] = False
        return np.where(hardware_tracks[track], table.index(MARKER), kind).astype(np.int32)


def dialect_of(found: ChromeColumns) -> Dialect:
    """The dialect of a trace, by the names of its processes."""
    names = {pid: name.strip() for pid, name in found.processes.items()}
    if any(DEVICE.match(name) or HOSTS.match(name) for name in names.values()):
        return _xla(found, names)
    if any(name == HARDWARE or name == NETWORKS[0] for name in names.values()):
        return _ascend(found, names)
    parts = {pid: (found.labels.get(pid) or name).strip().lower() for pid, name in {**found.labels, **names}.items()}
    if "ai core op" in parts.values() or sum(part in PARTS or bool(SUMMED.match(part)) for part in parts.values()) > 1:
        return _mindspore(found, parts)
    return Dialect()


def _xla(found: ChromeColumns, names: Mapping[Id, str]) -> Dialect:
    devices = {pid: device for pid, name in names.items() if (device := DEVICE.match(name)) and device[1] != "CUSTOM"}
    streams = {pid for (pid, _), thread in found.threads.items() if thread.startswith("Stream #")}
    kinds: dict[Track, str] = {}
    for pid, tid in found.tracks:
        thread = found.threads.get((pid, tid), "").strip()
        if pid in devices:
            ops = thread.startswith("Stream #") if pid in streams else thread in (*OPS, ASYNC)
            ops = ops or devices[pid][1] == "CPU"
            copies = bool(COPY_STREAM.match(thread))
            kinds[pid, tid] = MEMCPY if copies else KERNEL if ops else MARKER
        else:
            kinds[pid, tid] = MARKER if DEVICE.match(names.get(pid, "")) else HOST
    first: dict[str, Id] = {}
    chips = {pid: first.setdefault(device[0], pid) for pid, device in devices.items()}
    return Dialect(
        format=XLA,
        kinds=kinds,
        chips={pid: chip for pid, chip in chips.items() if pid != chip},
        names={pid: f"chip {device[2]}" for pid, device in devices.items() if chips[pid] == pid},
        steps=frozenset(track for track in found.tracks if found.threads.get(track, "").strip() in STEPS),
    )


def _ascend(found: ChromeColumns, names: Mapping[Id, str]) -> Dialect:
    hardware = {pid for pid, name in names.items() if name == HARDWARE}
    network = {pid for pid, name in names.items() if name in NETWORKS}
    kinds: dict[Track, str] = {}
    for pid, tid in found.tracks:
        thread = found.threads.get((pid, tid), "").strip()
        if pid in hardware:
            kinds[pid, tid] = MARKER if thread.startswith("Step Trace") else KERNEL
        elif pid in network:
            kinds[pid, tid] = MARKER if thread.startswith("Plane") else KERNEL
        elif names.get(pid) == "CANN":
            kinds[pid, tid] = RUNTIME
    return Dialect(format=ASCEND, kinds=kinds, chips=_chips_of_network(found, network, hardware))


def _chips_of_network(found: ChromeColumns, network: set[Id], hardware: set[Id]) -> dict[Id, Id]:
    chips = {}
    for pid in network:
        same_label = [
            candidate for candidate in hardware if found.labels.get(candidate) == found.labels.get(pid)
        ] or list(hardware)
        if len(same_label) == 1:
            chips[pid] = same_label[0]
    return chips


def _mindspore(found: ChromeColumns, parts: Mapping[Id, str]) -> Dialect:
    kinds: dict[Track, str] = {}
    steps = set()
    for pid, tid in found.tracks:
        thread = found.threads.get((pid, tid), "").strip().lower()
        kind = PARTS.get(parts.get(pid, ""))
        if kind is None:
            continue
        sums = thread in ("steps", "step", "ops") or thread.startswith("scope")
        kinds[pid, tid] = MARKER if sums and kind == KERNEL and thread != "ops" else kind
        if thread in ("steps", "step"):
            steps.add((pid, tid))
    cores = [pid for pid, part in parts.items() if part == "ai core op"]
    kernel_pids = [
        pid for pid, part in parts.items() if part in PARTS and part != "ai core op" and PARTS[part] == KERNEL
    ]
    chips = dict.fromkeys(kernel_pids, cores[0]) if len(cores) == 1 else {}
    return Dialect(format=MINDSPORE, kinds=kinds, chips=chips, steps=frozenset(steps))


COMPUTING, TALKING, EXPOSED, FREE = "computing", "communication", "communication not overlapped", "free"
WORDS = {
    "computing": COMPUTING, "merged computation op": COMPUTING, "communication": TALKING,
    "merged communication op": TALKING, "communication(not overlapped)": EXPOSED, "pure communication op": EXPOSED,
    "free": FREE, "free time": FREE,
}  # fmt: skip
SHARE, LEAST_NS = 0.01, 10_000


def overlap_told(found: ChromeColumns, track: Codes, name: Codes, duration: Longs) -> Mapping[str, int]:
    """Nanoseconds by part, of the spans that sum up; those of other processes among these are passed over."""
    tracks, names = list(found.tracks), list(found.names)
    sums: dict[str, int] = {}
    for place in np.unique(track).tolist():
        pid, tid = tracks[place]
        if not any(SUMMED.match(text.get(pid, "")) for text in (found.processes, found.labels)):
            continue
        on_track = (track == place) & (duration != MISSING)
        thread = WORDS.get(found.threads.get((pid, tid), "").strip().lower())
        for code in np.unique(name[on_track]).tolist():
            part = WORDS.get(names[code].strip().lower()) or thread
            if part is not None:
                sums[part] = sums.get(part, 0) + int(duration[on_track & (name == code)].sum())
    return sums


def overlap_doubts(line: Timeline, rules: Rules) -> Sequence[str]:
    """What to say about every rank whose sums differ from those of its vendor's tool."""
    overlap = line.about.properties.get(OVERLAP)
    return list(_doubts(line, rules, overlap)) if isinstance(overlap, Mapping) else []


def _doubts(line: Timeline, rules: Rules, told: JsonMapping) -> Iterator[str]:
    groups = np.array([rules.group_of(id) for id in line.classes])[line.class_]
    for rank, theirs in told.items():
        rows = line.is_work & (line.rank == int(rank))
        if not rows.any():
            continue
        parts = {
            group: cover(line.start_ns[rows & (groups == group)], line.end_ns[rows & (groups == group)])
            for group in (COMPUTE, COMMUNICATION)
        }
        busy = union(parts[COMPUTE], parts[COMMUNICATION])
        ours = {
            COMPUTING: parts[COMPUTE].length, TALKING: parts[COMMUNICATION].length,
            EXPOSED: busy.length - parts[COMPUTE].length,
        }  # fmt: skip
        allowed_ns = max(LEAST_NS, SHARE * (busy.last - busy.first))
        differ = [
            f"{part} {theirs[part] / 1000:,.1f} us, here {ours[part] / 1000:,.1f}"
            for part in ours
            if part in theirs and abs(ours[part] - theirs[part]) > allowed_ns
        ]
        if differ:
            yield f"rank {rank}: the vendor's Overlap Analysis in the file says {'; '.join(differ)}"
