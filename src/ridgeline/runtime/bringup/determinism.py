"""The same step again and again: whether ops give the same bits, and if not whether by another order or by a race.

An op whose arguments are the same bits as in the first run and whose result is not is judged by its contract: within it
sums were taken in another order, which is reported; beyond it the op reads what is not yet, or no longer, there.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from ridgeline.runtime.bringup.capture import Modules, Place, Wrong, dtype_of, entry_of, signature_of
from ridgeline.runtime.bringup.contracts import has_contract, outputs_of
from ridgeline.runtime.bringup.findings import Determinism
from ridgeline.runtime.bringup.guard import Guard
from ridgeline.runtime.bringup.judge import NoContractError, judge
from ridgeline.runtime.bringup.rig import rig_of
from ridgeline.runtime.bringup.session import Session
from ridgeline.runtime.bringup.stepper import adamw
from ridgeline.runtime.bringup.tensors import equal_bits, on_host

RUNS = 3

Kept = tuple[str, list[Any], list[Any]]  # an op, its arguments and its results, on the host


class Repeat(TorchDispatchMode):  # type: ignore[misc]
    """Keeps what every op of a first run was given and gave, and holds later runs against it."""

    def __init__(self, guard: Guard) -> None:
        super().__init__()
        self.guard, self.modules = guard, Modules()
        self.first: list[Kept] = []
        self.number, self.recording = 0, True
        self.reordered: set[str] = set()
        self.races: list[Wrong] = []

    def again(self) -> None:
        """The next run begins."""
        self.number, self.recording = 0, False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        place = self.modules.place()
        entry = entry_of(signature_of(func, args, kwargs), place, args, kwargs)
        if not has_contract(func):
            return self.guard.run(func, args, kwargs, entry).result
        host = tree_map(on_host, (args, kwargs))
        ran = self.guard.run(func, args, kwargs, entry)
        outputs = [on_host(x) for x in outputs_of(func, args, kwargs, ran.result)]
        inputs = [x for x in tree_leaves(host) if isinstance(x, Tensor)]
        if self.recording:
            self.first.append((str(func), inputs, outputs))
        elif self.number < len(self.first):
            self._compare(func, place, host, inputs, outputs)
        self.number += 1
        return ran.result

    def _compare(self, func: Any, place: Place, host: Any, given: list[Any], outputs: list[Any]) -> None:
        op, before, first = self.first[self.number]
        if op != str(func) or not equal_bits(given, before) or equal_bits(outputs, first):
            return
        for result in (outputs, first):
            try:
                verdict = judge(func, host[0], host[1], result, unit=self.guard.unit)
            except NoContractError:
                continue
            if not verdict.right:
                message = f"{verdict.statistic}: other bits than in the first run, and beyond its contract"
                self.races.append(Wrong(
                    op=op, place=place, dtype=dtype_of(outputs), verdict=replace(verdict, statistic="race"),
                    args=host[0], kwargs=host[1], message=message,
                ))  # fmt: skip
                return
        self.reordered.add(op)


def repeat_runs(session: Session) -> Determinism:
    """Steps of the small model in bf16 and fp32, each some times."""
    determinism = Determinism(runs=RUNS)
    for format in ("fp32", "bf16"):
        rig = rig_of(session, format)
        if isinstance(rig, str):
            return Determinism(reason=rig, same=False)
        mode = Repeat(session.guard)
        for run in range(RUNS):
            subject = rig.build(session.device)
            optimizer = adamw(subject)
            torch.manual_seed(0)
            if run:
                mode.again()
            stop = mode.modules.follow(subject.module)
            with mode:
                mode.modules.phase = "forward"
                subject.loss(subject.forward()).backward()
                mode.modules.phase = "optimizer"
                optimizer.step()
            stop()
        session.note(mode.races)
        races = {race.op for race in mode.races}
        determinism = replace(
            determinism, same=determinism.same and not races and not mode.reordered,
            reordered=tuple(sorted({*determinism.reordered, *mode.reordered} - races)),
            races=tuple(sorted({*determinism.races, *races})),
        )  # fmt: skip
    return determinism
