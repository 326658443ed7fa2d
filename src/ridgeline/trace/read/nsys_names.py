"""Turn the ids an Nsight Systems export was read with into names: of kernels, chips, threads; and chips into ranks."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np

from ridgeline.core.documents import JsonObject
from ridgeline.trace.read.join import TracePart
from ridgeline.trace.read.nsys_tables import BROKEN, NsysExport
from ridgeline.trace.timeline import KERNEL

LONGEST = 4096  # characters of a name
NUMBER = 2**24  # a process's or thread's own number, within its global id
_VERSION = re.compile(r"_v\d{3,6}$")  # of the interface of a runtime call: cudaLaunchKernel_v7000


def name_columns(export: NsysExport) -> TracePart:
    """The part of an export whose rows are all read."""
    chips, processes, ranks, process_codes = _processes(export)
    gpus = _gpus(export)
    names = tuple(gpus.get(device, ("", 0))[0] for _, device in chips)
    properties: JsonObject = _facts(export)
    if any(names):
        properties["deviceProperties"] = [
            {"id": device, "name": gpus[device][0], "totalGlobalMem": gpus[device][1]}
            for _, device in chips
            if device in gpus
        ]
    texts = {"processes": processes, "streams": _streams(export), "names": _texts(export)}
    about = export.about(tuple(name for name in names if name), properties)
    part = export.rows.part(about, texts, ranks=ranks)
    return replace(part, process=process_codes[part.process])


def _processes(export: NsysExport) -> tuple[list[tuple[int, int]], list[str], tuple[int, ...], Any]:
    """Chips in the order of their ranks, all process names, their ranks, and the code of every code so far.

    Codes so far: a chip's place in the order it was met, or -1 less the place of a host process.
    """
    kernels = export.rows.column("kind") == export.rows.kinds[KERNEL]
    process = export.rows.column("process").astype(np.int64)
    busy = {int(code) for code in np.unique(process[kernels])} if kernels.any() else set(range(len(export.chips)))
    met = list(export.chips)
    order = sorted((pid, device) for place, (pid, device) in enumerate(met) if place in busy or not busy)
    order.sort(key=lambda chip: chip[1])
    rank = {chip: place for place, chip in enumerate(order)}
    home = {pid: chip for chip in reversed(order) for pid in (chip[0],)}
    hosts = list(export.hosts)
    shared = len({device for _, device in order}) < len(order)
    labels = _labels(export)
    processes = [f"chip {device}{f' of process {pid // NUMBER % NUMBER}' if shared else ''}" for pid, device in order]
    processes += [f"host {labels.get(pid, pid // NUMBER % NUMBER)}" for pid in hosts]
    ranks = [*range(len(order)), *(rank[home[pid]] if pid in home else 0 for pid in hosts)]
    process_codes = np.zeros(len(met) + len(hosts), np.int32)
    for place, chip in enumerate(met):  # waits are told of a device the process does no work on: its own chip is meant
        own = chip if chip in rank else home.get(chip[0], order[0] if order else chip)
        process_codes[place] = rank.get(own, 0)
    for place in range(len(hosts)):
        process_codes[-1 - place] = len(order) + place
    if not order:  # a file without work: only hosts
        return [], processes, tuple(ranks), process_codes
    return order, _distinct(processes), tuple(ranks), process_codes


def _distinct(names: list[str]) -> list[str]:
    """The names, with a number behind one that was there before."""
    counts: dict[str, int] = {}
    labels = []
    for name in names:
        counts[name] = counts.get(name, 0) + 1
        labels.append(name if counts[name] == 1 else f"{name} ({counts[name]})")
    return labels


def _labels(export: NsysExport) -> dict[int, str]:
    """Host processes by number and program."""
    if not {"globalPid", "name"} <= export.tables.get("PROCESSES", frozenset()):
        return {}
    labels: dict[int, str] = {}
    for pid, name in _pairs(export, "PROCESSES", "globalPid", "name"):
        if pid in export.hosts:
            labels[pid] = f"{pid // NUMBER % NUMBER} {name[:60]}"
    return labels


def _pairs(export: NsysExport, table: str, id: str, text: str) -> Any:
    """A number and a text of every row of a table that has both."""
    try:
        yield from export.base.execute(
            f"SELECT CAST({id} AS INTEGER), substr({text}, 1, {LONGEST}) FROM {table} "
            f"WHERE typeof({text}) = 'text' AND typeof({id}) = 'integer'"
        )
    except BROKEN as wrong:
        export.rows.warnings.append(f"{table} is damaged ({wrong}); some names are missing")


def _texts(export: NsysExport) -> list[str]:
    """The texts behind the codes of names: only those that are used are kept."""
    code_of_id = {key[1]: code for key, code in export.texts.items() if key[0] == "id"}
    texts = [key[1] if key[0] == "text" else f"name {key[1]}" for key in export.texts]
    if {"id", "value"} <= export.tables.get("StringIds", frozenset()):
        for id, text in _pairs(export, "StringIds", "id", "value"):
            if id in code_of_id:
                texts[code_of_id[id]] = _VERSION.sub("", text)
    return texts


def _streams(export: NsysExport) -> list[str]:
    threads = {}
    if {"globalTid", "nameId"} <= export.tables.get("ThreadNames", frozenset()):
        try:
            rows = export.base.execute("SELECT CAST(globalTid AS INTEGER), CAST(nameId AS INTEGER) FROM ThreadNames")
            thread_names = {tid: id for tid, id in rows if ("thread", tid) in export.rows.streams}
        except BROKEN:
            thread_names = {}
        ids = {id: text for id, text in _pairs(export, "StringIds", "id", "value") if id in set(thread_names.values())}
        threads = {tid: ids.get(id, "") for tid, id in thread_names.items()}
    streams = []
    for kind, number in export.rows.streams:
        if kind == "stream":
            streams.append(f"stream {number}" if 0 <= number < 2**32 - 1 else "all streams")
        else:
            streams.append(f"thread {number % NUMBER} {threads.get(number, '')[:60]}".strip())
    return streams


def _gpus(export: NsysExport) -> dict[int, tuple[str, int]]:
    """Name and memory of every device, by its number."""
    have = export.tables.get("TARGET_INFO_GPU", frozenset())
    if not {"id", "name"} <= have:
        return {}
    memory = "CAST(totalMemory AS INTEGER)" if "totalMemory" in have else "0"
    try:
        rows = export.base.execute(
            f"SELECT CAST(id AS INTEGER), substr(name, 1, 100), {memory} FROM TARGET_INFO_GPU "
            "WHERE typeof(name) = 'text' LIMIT 4096"
        ).fetchall()
    except BROKEN:
        return {}
    return {id: (name, size or 0) for id, name, size in rows if id is not None}


def _facts(export: NsysExport) -> JsonObject:
    facts: JsonObject = {}
    if {"name", "value"} <= export.tables.get("META_DATA_EXPORT", frozenset()):
        try:
            rows = export.base.execute(
                "SELECT name, substr(value, 1, 100) FROM META_DATA_EXPORT "
                "WHERE name IN ('EXPORT_PRODUCT_VERSION', 'EXPORT_SCHEMA_VERSION') LIMIT 8"
            )
            facts.update({str(name): str(value) for name, value in rows})
        except BROKEN:
            return facts
    return facts
