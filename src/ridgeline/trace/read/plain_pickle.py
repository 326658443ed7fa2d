"""Turn a pickle of plain data into that data, by an interpreter of its own that cannot run code.

`pickle.load` runs whatever a file asks for. The files read here (PyTorch's memory snapshots) hold dicts, lists, tuples,
texts, numbers and truths, so only the instructions that build those are known; the first other one ends the reading.
The bytes are taken apart by the standard library's disassembler, which executes nothing.
"""

from __future__ import annotations

import pickletools
from collections.abc import Callable, Mapping
from typing import Any

MOST_VALUES = 200_000_000  # instructions
MAGIC = (b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05")


class NotPlain(Exception):
    """The file asks for more than plain data, or is damaged."""


class _Mark:
    """Where a group of values begins on the stack."""


_MARK = _Mark()
_LITERALS = frozenset({
    "BININT", "BININT1", "BININT2", "INT", "LONG", "LONG1", "LONG4", "BINFLOAT", "FLOAT", "SHORT_BINUNICODE",
    "BINUNICODE", "BINUNICODE8", "UNICODE", "SHORT_BINBYTES", "BINBYTES", "SHORT_BINSTRING", "BINSTRING",
})  # fmt: skip
_EMPTY: Mapping[str, Callable[[], Any]] = {"EMPTY_DICT": dict, "EMPTY_LIST": list, "EMPTY_TUPLE": tuple}
_FIXED = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_PASSED = frozenset({"PROTO", "FRAME"})


def plain(data: bytes) -> Any:
    """The value a pickle holds; `NotPlain` where it is more than data.

    >>> import pickle
    >>> plain(pickle.dumps({"a": [1, (2.5, None)], "b": "text"}))
    {'a': [1, (2.5, None)], 'b': 'text'}
    """
    machine = _Machine()
    try:
        for count, (code, argument, _) in enumerate(pickletools.genops(data)):
            if code.name == "STOP":
                return machine.stack[-1]
            if count > MOST_VALUES:
                raise NotPlain("too many values")
            machine.step(code.name, argument)
    except (ValueError, IndexError, KeyError, TypeError, OverflowError, MemoryError, RecursionError) as wrong:
        raise NotPlain(str(wrong)[:200]) from None
    raise NotPlain("the pickle does not end")


class _Machine:
    """The stack and the memory that the instructions of plain data need."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}

    def step(self, name: str, argument: Any) -> None:
        stack = self.stack
        if name in _PASSED:
            return
        if name in _LITERALS:
            stack.append(argument)
        elif name in _EMPTY:
            stack.append(_EMPTY[name]())
        elif name in _FIXED:
            stack.append(_FIXED[name])
        elif name == "MARK":
            stack.append(_MARK)
        elif name in ("MEMOIZE", "BINPUT", "LONG_BINPUT", "PUT"):
            self.memo[len(self.memo) if name == "MEMOIZE" else int(argument)] = stack[-1]
        elif name in ("BINGET", "LONG_BINGET", "GET"):
            stack.append(self.memo[int(argument)])
        elif name in _TUPLES:
            entries = [stack.pop() for _ in range(_TUPLES[name])][::-1]
            stack.append(tuple(entries))
        else:
            self._group(name)

    def _group(self, name: str) -> None:
        """Instructions that take what stands behind a mark, or one or two values."""
        stack = self.stack
        if name in ("APPEND", "SETITEM"):
            values = [stack.pop()] if name == "APPEND" else [stack.pop(), stack.pop()][::-1]
        elif name in ("APPENDS", "SETITEMS", "TUPLE", "LIST", "DICT"):
            values = []
            while (entry := stack.pop()) is not _MARK:
                values.append(entry)
            values.reverse()
        else:
            raise NotPlain(f"it asks for {name}, which plain data does not need")
        if name in ("TUPLE", "LIST"):
            stack.append(tuple(values) if name == "TUPLE" else values)
        elif name == "DICT":
            stack.append(dict(zip(values[::2], values[1::2], strict=True)))
        elif name.startswith("APPEND"):
            _list(stack[-1]).extend(values)
        else:
            _dict(stack[-1]).update(zip(values[::2], values[1::2], strict=True))


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise NotPlain("it appends to what is no list")
    return value


def _dict(value: Any) -> dict[Any, Any]:
    if not isinstance(value, dict):
        raise NotPlain("it sets items of what is no dict")
    return value
