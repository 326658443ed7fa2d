"""Faults and personalities of the fake device: functions that answer for an op, of a file or of the corpus.

    def fault_name(op, args, kwargs, result): ...   `op` as in aten.mm.default; host tensors; None leaves the op alone
    MISSING = ["aten.silu.default"]                 ops that the device does not have
    FALLBACK = ["aten.topk.default"]                ops that it leaves to the host, with torch's usual warning

FAULTS are the built-in ones by name (`matrix_faults`, `element_faults`). Personalities are other arithmetic:

    ridge:tf32           products of fp32 keep eleven bits of their factors
    ridge:truncation     sums, products and casts are stored in bf16 by cutting off
    ridge:bf16-sums      products of bf16 keep their running sum in bf16
    ridge:fnuz           fp8 e4m3 ends at 240
    ridge:atomics        rows that meet are added in another order every time: right, and not the same twice
"""

# ruff: noqa: ARG001  (functions of one form: what an op was given)
from __future__ import annotations

import runpy
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from ridgeline.core.errors import InputError, Problem, near, not_among
from ridgeline.runtime.bringup.arithmetic import Args, Kwargs
from ridgeline.runtime.bringup.fake_device import NAME, Alter, Lacks, added_in, cut, packet, partial_products
from ridgeline.runtime.bringup.faults import element_faults, matrix_faults
from ridgeline.runtime.bringup.faults.element_faults import fault_fp8_of_240
from ridgeline.runtime.bringup.faults.matrix_faults import fault_tf32_products
from ridgeline.runtime.bringup.judge import widen_value

PREFIX, MISSING, FALLBACK = "fault_", "MISSING", "FALLBACK"
CLOSE = 3  # names that a misspelt one is told
CORPUS = "corpus"  # stands for the faults that come with Ridgeline


@dataclass(slots=True)
class Fault:
    """A fault with how often it answered."""

    name: str
    alter: Alter
    fired: int = 0

    def __call__(self, op: str, args: Args, kwargs: Kwargs, result: Tensor) -> Tensor | None:
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


def _run(path: Path) -> Kwargs:
    try:
        return runpy.run_path(str(path))
    except OSError as error:
        raise InputError(
            Problem(path="--faults", given=str(path), expected="a Python file that can be read")
        ) from error
    except Exception as error:
        given_text = f"{path}: {type(error).__name__}: {error}"
        raise InputError(Problem(path="--faults", given=given_text, expected="a Python file that runs")) from error


def choose_faults(faults: Mapping[str, Alter], name: str) -> Mapping[str, Alter]:
    """One of them, with or without its prefix, or all."""
    if not name:
        return faults
    for spelling in (name, PREFIX + name, name.removeprefix(PREFIX)):
        if spelling in faults:
            return {spelling: faults[spelling]}
    plain_name = name.removeprefix(PREFIX)
    parts = {fault_name: fault_name.removeprefix(PREFIX).split("_") for fault_name in sorted(faults)}
    close = [fault_name for fault_name, words in parts.items() if near(plain_name, words)]
    close.sort(
        key=lambda fault_name: (parts[fault_name][0] != plain_name, len(parts[fault_name]))
    )  # the plainest first
    if not close:
        todo = "a fault of the file, or without a file of the corpus"
        raise InputError(replace(not_among("--fault", name, sorted(faults)), todo=todo))
    advice = " or ".join(repr(fault_name) for fault_name in close[:CLOSE])
    expected = f"one of the {len(faults)} faults"
    raise InputError(Problem(path="--fault", given=repr(name), expected=expected, todo=f"did you mean {advice}?"))


STORED = frozenset(("mm", "bmm", "addmm", "add", "sub", "mul", "div", "silu", "gelu", "_to_copy", "mul_", "add_"))
_calls = [0]


def truncation(op: str, args: Args, kwargs: Kwargs, result: Tensor) -> Tensor | None:
    """Computed wide, stored by cutting off."""
    if packet(op) not in STORED or not isinstance(result, Tensor) or result.dtype != torch.bfloat16:
        return None
    library, name, overload = op.split(".")
    func = getattr(getattr(getattr(torch.ops, library), name), overload)
    wide = tree_map(widen_value, (args, kwargs))
    return cut(func(*wide[0], **wide[1]), torch.bfloat16)


def bf16_sums(op: str, args: Args, kwargs: Kwargs, result: Tensor) -> Tensor | None:
    """A step for every sixteen terms."""
    if packet(op) not in ("mm", "bmm") or result.dtype != torch.bfloat16 or not result.numel():
        return None
    return added_in(partial_products(args[0], args[1], -(-args[0].shape[-1] // 16)), torch.bfloat16)


def atomics(op: str, args: Args, kwargs: Kwargs, result: Tensor) -> Tensor | None:
    """Another order every time."""
    if packet(op) not in ("embedding_dense_backward", "index_add", "index_add_"):
        return None
    _calls[0] += 1
    source = torch.Generator().manual_seed(_calls[0])
    if packet(op) != "embedding_dense_backward":
        x, dim, where, rows = args[:4]
        turn = torch.randperm(len(where), generator=source)
        return x.float().index_add(dim, where[turn], rows.float().index_select(dim, turn)).to(result.dtype)
    g, where = args[0].reshape(-1, result.shape[-1]), args[1].flatten()
    keep = (where != args[3]).nonzero().flatten()
    keep = keep[torch.randperm(len(keep), generator=source)]
    return torch.zeros(result.shape).index_add(0, where[keep], g[keep].float()).to(result.dtype)


PERSONALITIES: Mapping[str, Alter] = MappingProxyType({
    "tf32": fault_tf32_products, "truncation": truncation, "bf16-sums": bf16_sums, "fnuz": fault_fp8_of_240,
    "atomics": atomics,
})  # fmt: skip


def split(device: str) -> tuple[str, str]:
    """`ridge` and `tf32` of `ridge:tf32`; other devices as they are."""
    kind, _, name = device.partition(":")
    if kind != NAME or not name or name.isdigit():
        return device, ""
    if name not in PERSONALITIES:
        raise InputError(not_among("--device", name, sorted(PERSONALITIES), f"a personality of {NAME}"))
    return kind, name


FAULTS: Mapping[str, Alter] = MappingProxyType({
    name.removeprefix(PREFIX): value
    for module in (matrix_faults, element_faults) for name, value in vars(module).items() if name.startswith(PREFIX)
})  # fmt: skip
