"""Run a subject on its device under guard, and keep what each part of it gave: its trace, on the host.

traced(subject)                        outputs of layers, logits, loss, gradients
with Light(guard) as light: ...        every op written down before it runs; from op `heal_from` on the host computes
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from ridgeline.runtime.bringup.capture import Modules, Place, entry_of, signature_of
from ridgeline.runtime.bringup.contracts import has_contract, is_view
from ridgeline.runtime.bringup.guard import Guard, host_result
from ridgeline.runtime.bringup.subject import Subject
from ridgeline.runtime.bringup.tensors import on_host

Seen = tuple[Any, Place, Any]  # an op, where, its arguments on the host


class Light(TorchDispatchMode):  # type: ignore[misc]
    """Ops under guard, counted; nothing is judged.

    heal_from   the host computes this op and all after it; None: none
    keep        the number of the op whose arguments are kept in `seen`
    raised      ops that raised, with their errors: the host stood in for them
    """

    def __init__(
        self, guard: Guard, modules: Modules | None = None, *, heal_from: int | None = None, keep: int = -1
    ) -> None:
        super().__init__()
        self.guard, self.modules = guard, modules or Modules()
        self.heal_from, self.keep, self.count = heal_from, keep, 0
        self.seen: Seen | None = None
        self.raised: list[tuple[Any, Place, Any, BaseException]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        number, self.count = self.count, self.count + 1
        place = self.modules.place()
        if number == self.keep:
            self.seen = func, place, tree_map(on_host, (args, kwargs))
        if self.heal_from is not None and number >= self.heal_from and heals(func):
            return host_result(func, args, kwargs)
        ran = self.guard.run(func, args, kwargs, entry_of(signature_of(func, args, kwargs), place, args, kwargs))
        if ran.error is not None and not isinstance(ran.error, NotImplementedError):
            self.raised.append((func, place, tree_map(on_host, (args, kwargs)), ran.error))
        return ran.result


def heals(func: Any) -> bool:
    """Whether the host can stand in for an op: not for memory that is only made or handed on."""
    return has_contract(func) and not is_view(func) and func._schema.name.startswith("aten::")


def trace_values(subject: Subject, *, backward: bool = True, paths: tuple[str, ...] = ()) -> dict[str, Tensor]:
    """Outputs of the named modules, of the whole, the loss and every parameter's gradient."""
    values: dict[str, Tensor] = {}
    handles = [
        module.register_forward_hook(_keeper(values, path))
        for path, module in subject.module.named_modules()
        if path in paths
    ]
    try:
        outputs = subject.forward()
        logits = first_tensor(outputs)
        if logits is not None:
            values["output"] = on_host(logits)
        if backward:
            loss = subject.loss(outputs)
            values["loss"] = on_host(loss)
            loss.backward()
    finally:
        for handle in handles:
            handle.remove()
    for name, parameter in subject.module.named_parameters():
        if parameter.grad is not None:
            values[f"gradient of {name}"] = on_host(parameter.grad)
            parameter.grad = None
    return values


def first_tensor(outputs: Any) -> Tensor | None:
    """The first floating tensor among a module's outputs: logits, as a rule."""
    logits = getattr(outputs, "logits", None)
    if isinstance(logits, Tensor):
        return logits
    values = outputs.to_tuple() if hasattr(outputs, "to_tuple") else outputs
    return next((x for x in tree_leaves(values) if isinstance(x, Tensor) and x.is_floating_point()), None)


def _keeper(found: dict[str, Tensor], path: str) -> Callable[[nn.Module, Any, Any], None]:
    def keep(_module: nn.Module, _inputs: Any, output: Any) -> None:
        value = first_tensor(output)
        if value is not None:
            found[path] = on_host(value)

    return keep


def train_steps(
    subject: Subject, steps: int, optimizer: torch.optim.Optimizer | None = None,
    mode: AbstractContextManager[Any] | None = None, modules: Modules | None = None,
) -> list[Tensor]:  # fmt: skip
    """Losses of so many steps of AdamW; forward and backward in a mode; modules are told the phase."""
    optimizer = optimizer or adamw(subject)
    modules = modules or Modules()
    losses = []
    for _ in range(steps):
        modules.phase = "forward"
        with mode or nullcontext():
            loss = subject.loss(subject.forward())
            loss.backward()
        modules.phase = "optimizer"
        optimizer.step()
        optimizer.zero_grad()
        losses.append(on_host(loss))
    return losses


def adamw(subject: Subject) -> torch.optim.Optimizer:
    """AdamW, parameter by parameter."""
    return torch.optim.AdamW(subject.module.parameters(), lr=1e-3, foreach=False)
