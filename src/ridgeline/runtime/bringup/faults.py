"""Faults of a device: functions of a file that answer for an op, and whether each fired.

def fault_name(op, args, kwargs, result): ...     `op` as in aten.mm.default; host tensors; None leaves the op alone
"""

from __future__ import annotations

import runpy
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ridgeline.core.errors import InputError, Problem, not_among
from ridgeline.runtime.bringup.corpus import FAULTS
from ridgeline.runtime.bringup.ridge import Alter

PREFIX = "fault_"
CORPUS = "corpus"  # stands for the faults that come with Ridgeline


@dataclass(slots=True)
class Fault:
    """A fault with how often it answered."""

    name: str
    alter: Alter
    fired: int = 0

    def __call__(self, op: str, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> Any:
        with torch.no_grad():
            other = self.alter(op, args, kwargs, result)
        self.fired += other is not None
        return other


def read_faults(path: Path) -> Mapping[str, Alter]:
    """The functions `fault_*` of a Python file, by name; those of the corpus by that word."""
    if str(path) == CORPUS:
        return FAULTS
    try:
        found = runpy.run_path(str(path))
    except OSError as error:
        raise InputError(
            Problem(path="--faults", given=str(path), expected="a Python file that can be read")
        ) from error
    except Exception as error:
        given = f"{path}: {type(error).__name__}: {error}"
        raise InputError(Problem(path="--faults", given=given, expected="a Python file that runs")) from error
    faults = {name: value for name, value in found.items() if name.startswith(PREFIX) and callable(value)}
    if not faults:
        expected = f"functions {PREFIX}*(op, args, kwargs, result)"
        raise InputError(Problem(path="--faults", given=f"{path} without any", expected=expected))
    return faults


def chosen(faults: Mapping[str, Alter], name: str) -> Mapping[str, Alter]:
    """One of them, with or without its prefix, or all."""
    if not name:
        return faults
    for known in (name, PREFIX + name, name.removeprefix(PREFIX)):
        if known in faults:
            return {known: faults[known]}
    raise InputError(not_among("--fault", name, sorted(faults), "a fault of the file, or without a file of the corpus"))
