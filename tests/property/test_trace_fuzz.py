"""Whatever a file holds, reading it ends in a timeline or in an InputError: never in another exception."""

from __future__ import annotations

import gzip
import json
from copy import deepcopy
from typing import Any

import numpy as np
from damage import ODD, SMALL, survives
from hypothesis import given, settings
from hypothesis import strategies as st
from traces import Recipe, make

from ridgeline.trace.analyze_traces import analyze

PACKED = gzip.compress(SMALL, mtime=0)
KEYS = ("ph", "cat", "name", "pid", "tid", "ts", "dur", "args", "id")
ARGS = (
    "correlation", "bytes", "Input Dims", "Input type", "Concrete Inputs", "Collective name", "Group size", "labels",
    "In msg nelems", "name", "Total Allocated", "Device Id",
)  # fmt: skip


@given(st.integers(0, len(SMALL)))
def test_cut_anywhere(at: int) -> None:
    survives(SMALL[:at])


@given(st.integers(0, len(PACKED)))
def test_cut_anywhere_when_packed(at: int) -> None:
    survives(PACKED[:at], "t.json.gz")


@given(st.lists(st.tuples(st.integers(0, len(SMALL) - 1), st.integers(0, 255)), min_size=1, max_size=12))
def test_flipped_bytes(flips: list[tuple[int, int]]) -> None:
    content = bytearray(SMALL)
    for at, byte in flips:
        content[at] = byte
    survives(bytes(content))


@given(st.lists(st.tuples(st.integers(0, len(PACKED) - 1), st.integers(0, 255)), min_size=1, max_size=4))
def test_flipped_bytes_when_packed(flips: list[tuple[int, int]]) -> None:
    content = bytearray(PACKED)
    for at, byte in flips:
        content[at] = byte
    survives(bytes(content), "t.json.gz")


@given(
    st.lists(st.tuples(st.integers(0, 40), st.sampled_from(KEYS + ARGS), st.sampled_from(ODD)), min_size=1, max_size=9)
)
@settings(max_examples=200)
def test_odd_values(changes: list[tuple[int, str, Any]]) -> None:
    trace = make(Recipe(layers=2, steps=1, world=2))
    events = trace["traceEvents"]
    for place, key, value in changes:
        event = events[place % len(events)]
        if key in ARGS and isinstance(event.get("args"), dict):
            event["args"][key] = deepcopy(value)
        else:
            event[key] = deepcopy(value)
    survives(json.dumps(trace).encode())


@given(st.binary(max_size=300))
def test_any_bytes(content: bytes) -> None:
    survives(content)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
        lambda inner: (
            st.lists(inner, max_size=4)
            | st.dictionaries(st.sampled_from([*KEYS, "traceEvents", "x"]), inner, max_size=5)
        ),
        max_leaves=30,
    )
)
def test_any_json(value: Any) -> None:
    survives(json.dumps(value).encode())
    survives(json.dumps({"traceEvents": value, "deviceProperties": value, "distributedInfo": value}).encode())


@given(st.integers(1, 200_000))
@settings(max_examples=15)
def test_deep_nesting(depth: int) -> None:
    survives(b'{"traceEvents": [{"ph": "X", "args": ' + b"[" * depth + b"]" * depth + b"}]}")
    survives(b"[" * depth)


@given(
    st.lists(
        st.tuples(st.integers(0, 10**6), st.integers(0, 10**4), st.sampled_from(["gemm", "ncclX", "odd"])),
        min_size=1,
        max_size=60,
    )
)
def test_parts_fit_together(rows: list[tuple[int, int, str]]) -> None:
    """Laws of every breakdown: busy is between its largest part and their sum; exposed never exceeds communication."""
    events = [
        {"ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": 7 + start % 3, "ts": start, "dur": length}
        for start, length, name in rows
    ]
    line = survives(json.dumps(events).encode())
    assert line is not None
    total = analyze(line).breakdown.total
    parts = (total.compute_ns, total.communication_ns, total.copy_ns)
    assert max(parts) <= total.busy_ns <= sum(parts)
    assert total.busy_ns + total.idle_ns == total.span_ns
    assert 0 <= total.exposed_communication_ns <= total.communication_ns
    assert total.exposed_communication_ns == total.busy_ns - total.compute_ns
    assert np.array_equal(np.sort(line.start_ns), line.start_ns)
