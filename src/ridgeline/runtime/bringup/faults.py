"""Faults of a device: functions of a file that answer for an op, and whether each fired.

def fault_name(op, args, kwargs, result): ...     `op` as in aten.mm.default; host tensors; None leaves the op alone
MISSING = ["aten.silu.default"]                   ops that the device does not have
FALLBACK = ["aten.topk.default"]                  ops that it leaves to the host, with torch's usual warning
"""

from __future__ import annotations

import runpy
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from ridgeline.core.errors import InputError, Problem, near, not_among
from ridgeline.runtime.bringup.corpus import FAULTS
from ridgeline.runtime.bringup.ridge import Alter, Lacks

PREFIX, MISSING, FALLBACK = "fault_", "MISSING", "FALLBACK"
CORPUS = "corpus"  # stands for the faults that come with Ridgeline


@dataclass(slots=True)
class Fault:
    """A fault with how often it answered."""

    name: str
    alter: Alter
    fired: int = 0

    def __call__(self, op: str, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> Any:
        with torch.no_grad():
            altered_result = self.alter(op, args, kwargs, result)
        self.fired += altered_result is not None
        return altered_result


def read_faults(path: Path) -> Mapping[str, Alter]:
    """The functions `fault_*` of a Python file, by name; the corpus by that word; none where it only lacks kernels."""
    if str(path) == CORPUS:
        return FAULTS
    functions = _run(path)
    faults = {name: value for name, value in functions.items() if name.startswith(PREFIX) and callable(value)}
    if not faults and not any(name in functions for name in (MISSING, FALLBACK)):
        expected_text = f"functions {PREFIX}*(op, args, kwargs, result), or lists {MISSING} and {FALLBACK}"
        raise InputError(Problem(path="--faults", given=f"{path} without any", expected=expected_text))
    return faults


def read_lacks(path: Path) -> Lacks:
    """Ops that a file takes away from the fake device: its lists MISSING and FALLBACK."""
    if str(path) == CORPUS:
        return Lacks()
    functions = _run(path)
    lists = {name: functions.get(name, ()) for name in (MISSING, FALLBACK)}
    for name, ops in lists.items():
        if isinstance(ops, str) or not all(isinstance(op, str) for op in ops):
            expected_text = "a list of ops such as aten.silu.default"
            raise InputError(Problem(path=f"--faults {name}", given=repr(ops)[:80], expected=expected_text))
    return Lacks(missing=frozenset(lists[MISSING]), fallback=frozenset(lists[FALLBACK]))


def _run(path: Path) -> dict[str, Any]:
    try:
        return runpy.run_path(str(path))
    except OSError as error:
        raise InputError(
            Problem(path="--faults", given=str(path), expected="a Python file that can be read")
        ) from error
    except Exception as error:
        given_text = f"{path}: {type(error).__name__}: {error}"
        raise InputError(Problem(path="--faults", given=given_text, expected="a Python file that runs")) from error


def chosen(faults: Mapping[str, Alter], name: str) -> Mapping[str, Alter]:
    """One of them, with or without its prefix, or all."""
    if not name:
        return faults
    for spelling in (name, PREFIX + name, name.removeprefix(PREFIX)):
        if spelling in faults:
            return {spelling: faults[spelling]}
    close = [fault_name for fault_name in sorted(faults) if near(name, fault_name.removeprefix(PREFIX).split("_"))]
    advice = f"did you mean {close[0]!r}?" if close else "a fault of the file, or without a file of the corpus"
    raise InputError(replace(not_among("--fault", name, sorted(faults)), todo=advice))
