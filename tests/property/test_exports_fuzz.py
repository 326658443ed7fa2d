"""Whatever an export of another profiler holds, reading it ends in a timeline, in counters, or in an InputError."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from exports import DETAILS, NODES, RAW, ascend_trace, chakra, details_page, node, nsys, varint, xla_trace
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ridgeline.core.encode import to_json
from ridgeline.core.errors import InputError
from ridgeline.trace.analyze_traces import analyze
from ridgeline.trace.read.kernel_counters import read_counters

QUIET = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@cache
def database() -> bytes:
    with TemporaryDirectory() as folder:
        return nsys(Path(folder) / "a.sqlite", gpus=2, steps=3).read_bytes()


SAMPLES: dict[str, Callable[[], bytes]] = {
    "a.sqlite": database,
    "a.sqlite.gz": lambda: gzip.compress(database(), mtime=0),
    "a.et": lambda: chakra(*NODES),
    "a.et.gz": lambda: gzip.compress(chakra(*NODES), mtime=0),
    "kernel_details.csv": lambda: DETAILS.encode(),
    "trace_view.json": lambda: json.dumps(ascend_trace()).encode(),
    "x.trace.json": lambda: json.dumps(xla_trace()).encode(),
}
COUNTERS: dict[str, Callable[[], bytes]] = {
    "raw.csv": lambda: RAW.encode(),
    "details.csv": lambda: details_page().encode(),
    "kernel_details.csv": lambda: DETAILS.encode(),
}


def survives(content: bytes, name: str, unit: str | None = None) -> None:
    with TemporaryDirectory() as folder:
        path = Path(folder) / name
        path.write_bytes(content)
        try:
            json.dumps(to_json(analyze(path, unit=unit)), allow_nan=False)
        except InputError:
            return


def counts(content: bytes, name: str) -> None:
    with TemporaryDirectory() as folder:
        path = Path(folder) / name
        path.write_bytes(content)
        try:
            read_counters(path)
        except InputError:
            return


def flipped(content: bytes, flips: list[tuple[int, int]]) -> bytes:
    changed = bytearray(content)
    for at, byte in flips:
        changed[at % len(changed)] = byte
    return bytes(changed)


FLIPS = st.lists(st.tuples(st.integers(0, 2**20), st.integers(0, 255)), min_size=1, max_size=20)


@pytest.mark.parametrize("name", SAMPLES)
@QUIET
@given(share=st.floats(0, 1))
def test_cut_anywhere(name: str, share: float) -> None:
    content = SAMPLES[name]()
    survives(content[: int(share * len(content))], name)


@pytest.mark.parametrize("name", SAMPLES)
@QUIET
@given(flips=FLIPS, unit=st.sampled_from([None, "s", "ns"]))
def test_flipped_bytes(name: str, flips: list[tuple[int, int]], unit: str | None) -> None:
    survives(flipped(SAMPLES[name](), flips), name, unit)


@pytest.mark.parametrize("name", COUNTERS)
@QUIET
@given(flips=FLIPS, share=st.floats(0, 1))
def test_counters(name: str, flips: list[tuple[int, int]], share: float) -> None:
    content = flipped(COUNTERS[name](), flips)
    counts(content[: int(share * len(content)) + 1], name)


@QUIET
@given(
    st.lists(
        st.tuples(st.integers(0, 6), st.integers(0, 12), st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1),
                  st.lists(st.integers(0, 6), max_size=4)),
        min_size=1, max_size=12,
    ),
    st.sampled_from([None, "s", "ns"]),
)  # fmt: skip
def test_nodes_of_any_times_and_dependencies(rows: list[tuple[Any, ...]], unit: str | None) -> None:
    nodes = [node(id, "n", kind, after=after, start=start, length=length) for id, kind, start, length, after in rows]
    survives(chakra(*nodes), "a.et", unit)


@QUIET
@given(st.lists(st.one_of(st.integers(0, 2**64), st.binary(max_size=30)), max_size=20))
def test_lengths_that_lie(parts: list[int | bytes]) -> None:
    tail = b"".join(varint(part) if isinstance(part, int) else part for part in parts)
    survives(chakra(*NODES) + tail, "a.et")


VALUES = st.one_of(
    st.none(), st.integers(-(2**63), 2**63 - 1), st.floats(allow_nan=False), st.text(max_size=8), st.binary(max_size=8)
)


@QUIET
@given(st.lists(st.tuples(VALUES, VALUES, VALUES, VALUES, VALUES, VALUES, VALUES), min_size=1, max_size=5))
def test_values_of_any_type_in_a_database(rows: list[tuple[Any, ...]]) -> None:
    import sqlite3

    with TemporaryDirectory() as folder:
        path = nsys(Path(folder) / "a.sqlite", gpus=1, steps=1)
        base = sqlite3.connect(path)
        for row in rows:
            texts = tuple(one.encode("utf-8", "replace") if isinstance(one, str) else one for one in row)
            base.execute("INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (?, ?, ?, ?, ?, ?, ?)", texts)
            base.execute("INSERT INTO NVTX_EVENTS VALUES (?, ?, 59, ?, ?, ?)", texts[:5])
            base.execute("INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (?, ?, ?, ?, ?)", texts[:5])
            base.execute("INSERT INTO TARGET_INFO_GPU VALUES (?, ?, ?)", texts[:3])
        base.commit()
        base.close()
        json.dumps(to_json(analyze(path)), allow_nan=False)
