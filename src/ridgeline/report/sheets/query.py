"""The sheets of `ridgeline query --json`, and of `ridgeline analyze --json` for a record of memory."""

from __future__ import annotations

from typing import Any, Literal, TypedDict


class QuerySheet(TypedDict):
    """The answer to a question in SQL.

    rows        a list of values a row, in the order of `columns`
    truncated   there were more rows than `--limit`
    warnings    what is doubtful about the trace as it was read
    """

    kind: Literal["query"]
    sql: str
    columns: list[str]
    rows: list[list[Any]]
    truncated: bool
    warnings: list[str]


class HolderSheet(TypedDict):
    """Bytes that were alive at the peak, by stack or category."""

    what: str
    bytes: int
    blocks: int


class DeviceMemorySheet(TypedDict):
    """The allocator of one chip.

    before_bytes       allocated before the history began
    fragmentation      of what is reserved, unused at the end
    out_of_memory      allocations that failed
    """

    device: int
    events: int
    peak_bytes: int
    peak_us: float
    before_bytes: int
    reserved_bytes: int
    active_bytes: int
    fragmentation: float
    out_of_memory: int
    holders: list[HolderSheet]


class MemorySheet(TypedDict):
    """A record of the allocator's history, read without a timeline."""

    kind: Literal["memory"]
    sources: list[str]
    format: str
    warnings: list[str]
    devices: list[DeviceMemorySheet]
