"""Record the ops of a run on the fake device, and judge what a fault or another implementation answers for them.

    recorded(run)                    every op of a run with its arguments and result, on the host
    Replay(calls).answers(alter)     each call that `alter` answers for, with its verdict

Results are judged one by one on the same arguments, so a replay finds what a run with the fault finds, much sooner:
what the contracts allow is computed once for each call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from ridgeline.runtime.bringup import fake_device
from ridgeline.runtime.bringup.arithmetic import RIGHT, OpVerdict, worse
from ridgeline.runtime.bringup.contracts import has_contract, is_view, moves, name_of, outputs_of
from ridgeline.runtime.bringup.fake_device import Alter
from ridgeline.runtime.bringup.judge import (
    CHOICES,
    ELEMENTS,
    Expected,
    NoContractError,
    expect,
    judge,
    level,
    measure,
    unequal,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """One op as the device ran it: arguments as they were before, and the result."""

    op: str
    func: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    result: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What was answered for a call, what the judge says of it, and the exact results, where a contract gives them."""

    call: Recorded
    outputs: list[Any]
    verdict: OpVerdict
    exact: list[Any]


def record_calls(run: Callable[[], Any]) -> list[Recorded]:
    """The ops that a run dispatches on the fake device."""
    calls: list[Recorded] = []

    def note(op: str, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        library, packet, overload = op.split(".")[-3:]
        func = getattr(getattr(getattr(torch.ops, library), packet), overload)
        copies = tree_map(_keep_copy, (args, kwargs, result))
        calls.append(Recorded(op=op, func=func, args=copies[0], kwargs=copies[1], result=copies[2]))

    with fake_device.alter_results(note):
        run()
    return calls


def _keep_copy(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, Tensor) and value.is_contiguous() else _strides_of(value)


def _strides_of(value: Any) -> Any:
    """A copy with the same strides and offset in memory of its own."""
    if not isinstance(value, Tensor):
        return value
    reach = 1 + sum((n - 1) * s for n, s in zip(value.shape, value.stride(), strict=True)) if value.numel() else 0
    storage = torch.zeros(value.storage_offset() + reach, dtype=value.dtype)
    view = storage.as_strided(value.shape, value.stride(), value.storage_offset())
    if 0 not in value.stride():
        return view.copy_(value)
    storage.as_strided((reach,), (1,), value.storage_offset()).copy_(value.as_strided((reach,), (1,)))
    return view


@dataclass(slots=True)
class Replay:
    """Recorded calls with what their contracts allow, computed when first asked for."""

    calls: Sequence[Recorded]
    allowed: dict[int, list[Expected | Tensor | None]] = field(default_factory=dict)

    def answers(self, alter: Alter) -> Iterator[Answer]:
        """Every call that is answered for, judged."""
        for index, call in enumerate(self.calls):
            with torch.no_grad():
                altered_result = alter(call.op, call.args, call.kwargs, tree_map(_keep_copy, call.result))
            if altered_result is None or not (has_contract(call.func) or is_view(call.func)):
                continue
            outputs = _outputs(call, altered_result)
            verdict = self._verdict(index, call, outputs)
            exact = [x.exact if isinstance(x, Expected) else x for x in self.allowed.get(index, ())]
            yield Answer(call=call, outputs=outputs, verdict=verdict, exact=exact)

    def _verdict(self, index: int, call: Recorded, outputs: list[Any]) -> OpVerdict:
        tensors = [x for x in tree_leaves(call.result) if isinstance(x, Tensor)]
        if is_view(call.func):
            worst = RIGHT
            for ours, theirs in zip([x for x in outputs if isinstance(x, Tensor)], tensors, strict=False):
                worst = worse(worst, unequal(ours, theirs))
            return worst
        try:
            large = isinstance(outputs[0], Tensor) and outputs[0].numel() > ELEMENTS
            if large or name_of(call.func) in CHOICES or moves(call.func):
                return judge(call.func, call.args, call.kwargs, outputs, theirs=tensors)
            if index not in self.allowed:
                self.allowed[index] = expect(call.func, call.args, call.kwargs, outputs)
        except NoContractError:
            return RIGHT
        worst = RIGHT
        for output, right in zip(outputs, self.allowed[index], strict=False):
            if isinstance(output, Tensor) and right is not None:
                worst = worse(worst, measure(level(output, right), right))
        return worst


def _outputs(call: Recorded, other: Any) -> list[Any]:
    """The other results; where one is left out, the op's own."""
    outputs = outputs_of(call.func, call.args, call.kwargs, call.result)
    leaves = tree_leaves(other)
    return [new if new is not None else old for new, old in zip(leaves, outputs, strict=False)]
