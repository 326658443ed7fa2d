"""Turn the text of Chrome trace events into small records: only what is read is built, the rest is skipped.

X           a span
B, E        begin and end of a span, matched by process and thread
M           names of processes and threads, labels that say which process is a device
C           a counter; i  an instant, of which allocations of memory are kept as counters
s, t, f     flow arrows, see `flows`
"""

from __future__ import annotations

from decimal import Decimal
from itertools import islice
from typing import Any

import msgspec

from ridgeline.core.documents import JsonObject
from ridgeline.trace.read.timestamps import NANOS, needs_decimals

NOTHING = msgspec.Raw()
SAMPLE = 64  # spans of a batch whose times are looked at to choose the way of reading numbers


class Args(msgspec.Struct, gc=False):
    """The arguments that are read; everything else is skipped without being built."""

    correlation: Any = None
    correlation_id: Any = None
    connection_id: Any = None
    stream: Any = None
    bytes: Any = None
    dims: msgspec.Raw = msgspec.field(name="Input Dims", default=NOTHING)
    types: msgspec.Raw = msgspec.field(name="Input type", default=NOTHING)
    concrete: msgspec.Raw = msgspec.field(name="Concrete Inputs", default=NOTHING)
    collective: Any = msgspec.field(name="Collective name", default=None)
    dtype: Any = None
    in_elements: Any = msgspec.field(name="In msg nelems", default=None)
    out_elements: Any = msgspec.field(name="Out msg nelems", default=None)
    group_size: Any = msgspec.field(name="Group size", default=None)
    group: Any = msgspec.field(name="Process Group Name", default=None)
    ranks: Any = msgspec.field(name="Process Group Ranks", default=None)
    from_rank: Any = msgspec.field(name="Src Rank", default=None)
    to_rank: Any = msgspec.field(name="Dst Rank", default=None)
    hlo_category: Any = None
    hlo_op: Any = None
    device_ordinal: Any = None
    step_num: Any = None
    name: Any = None
    labels: Any = None
    value: Any = None
    allocated: Any = msgspec.field(name="Total Allocated", default=None)
    reserved: Any = msgspec.field(name="Total Reserved", default=None)
    device: Any = msgspec.field(name="Device Id", default=None)
    device_type: Any = msgspec.field(name="Device Type", default=None)


class Event(msgspec.Struct, gc=False):
    """One event, as far as it is read. The types say what profilers write; other types take the slow way."""

    ph: str = ""
    cat: str = ""
    name: str = ""
    pid: int | str = ""
    tid: int | str = ""
    ts: int | float | str | None = None
    dur: int | float | str | None = None
    args: Args | None = None
    id: Any = None


class OwnArgs(Args, gc=False):
    """The arguments of a file that Ridgeline wrote; apart, so that reading others does not pay for it."""

    phase: Any = None
    layer: Any = None


class OwnEvent(Event, gc=False):
    """An event of such a file."""

    args: OwnArgs | None = None


class DecimalEvent(msgspec.Struct, gc=False):
    """The same with times as decimals: for fractions of microseconds since 1970, which no float holds."""

    ph: str = ""
    cat: str = ""
    name: str = ""
    pid: int | str = ""
    tid: int | str = ""
    ts: Decimal | None = None
    dur: Decimal | None = None
    args: Args | None = None
    id: Any = None


class _Loose(msgspec.Struct, gc=False):
    ph: Any = ""
    cat: Any = ""
    name: Any = ""
    pid: Any = ""
    tid: Any = ""
    ts: Any = None
    dur: Any = None
    args: Any = None
    id: Any = None


class _Times(msgspec.Struct, gc=False):
    ts: Decimal | None = None
    dur: Decimal | None = None


_fast = msgspec.json.Decoder(list[Event])
_own_events = msgspec.json.Decoder(list[OwnEvent])
_exact = msgspec.json.Decoder(list[DecimalEvent])
_loose_event = msgspec.json.Decoder(_Loose)
_one_exact = msgspec.json.Decoder(_Times)
_NUMBERS = (int, float, str, Decimal)
FINE = 1e9  # a float beyond this may have lost digits that a unit of seconds needs


class EventDecoder:
    """Decodes batches; once a time is seen that needs decimals, all further batches are read with decimals.

    ``own`` is to be set once a file says that Ridgeline wrote it.
    """

    def __init__(self, nanos: int = 0) -> None:
        self._decimals, self._nanos = False, nanos or NANOS
        self.own = False

    def __call__(self, raw: bytes) -> list[Any]:
        if self._decimals:
            return _exact.decode(raw)
        events: list[Any] = (_own_events if self.own else _fast).decode(raw)
        times = list(islice((event.ts for event in events if event.ts is not None), SAMPLE))
        if needs_decimals(times, self._nanos):
            self._decimals = True
            return _exact.decode(raw)
        return events


def decode_one(raw: bytes) -> Any:
    """An event with whatever types it has; texts are made texts, arguments that are no table are left out."""
    loose = _loose_event.decode(raw)
    if not isinstance(loose.ph, str):
        raise ValueError("not an event")
    if isinstance(loose.ts, float) and abs(loose.ts) > FINE and not loose.ts.is_integer():
        exact = _one_exact.decode(raw)
        loose.ts, loose.dur = exact.ts, exact.dur
    times: JsonObject = {key: _time(getattr(loose, key)) for key in ("ts", "dur")}
    return Event(
        ph=loose.ph,
        cat=_text(loose.cat),
        name=_text(loose.name),
        pid=_text_or_int(loose.pid),
        tid=_text_or_int(loose.tid),
        **times,
        args=_loose_args(loose.args),
        id=loose.id,
    )


def _time(value: Any) -> Any:
    """A time of whatever type can be one; a decimal where a float would have lost digits."""
    return value if isinstance(value, _NUMBERS) else None


def _text(value: Any) -> str:
    return value if isinstance(value, str) else "" if value is None else str(value)[:200]


def _text_or_int(value: Any) -> int | str:
    return value if isinstance(value, int) and not isinstance(value, bool) else _text(value)


def _loose_args(value: Any) -> Args | None:
    if not isinstance(value, dict):
        return None
    try:
        return msgspec.json.decode(msgspec.json.encode(value), type=OwnArgs)
    except (msgspec.MsgspecError, ValueError, RecursionError, OverflowError):
        return None
