"""Replay an API call whose tensors were dumped: in fp64, with noise where its ops may round, forward and backward.

An API is several ops. Each runs as its contract's program; what one op hands to the next may be stored in the tensors'
format. The exact run and the draws judge the dumped outputs as they judge an op's: see `judge`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from ridgeline.runtime.bringup.arithmetic import UNIT, Draw
from ridgeline.runtime.bringup.contracts import contract_of, has_contract, is_view, outputs_of
from ridgeline.runtime.bringup.judge import DRAWS, judge_output, widen_value
from ridgeline.runtime.bringup.msprobe.dump import ApiCall, TensorNote
from ridgeline.runtime.bringup.msprobe.functions import CASTS, FUNCTIONS
from ridgeline.runtime.bringup.msprobe.tensor_files import UnreadableError, read_tensor
from ridgeline.runtime.bringup.outcome import Verdict

LARGEST = 1 << 22  # elements of a tensor that is replayed
RIGHT = Verdict(right=True)


class Rounding(TorchDispatchMode):  # type: ignore[misc]
    """Every op as its contract's program with one draw; what an op takes from another one may have been stored."""

    def __init__(self, draw: Draw) -> None:
        super().__init__()
        self.draw = draw
        self.made: dict[int, Tensor] = {}  # results of ops, held so that their identities stay theirs

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self.draw.source is not None and not is_view(func) and not func._schema.is_mutable:
            args, kwargs = tree_map(self._taken, (args, kwargs))
        result = func(*args, **kwargs)
        if self.draw.source is not None and has_contract(func) and not func._schema.is_mutable:
            drawn = contract_of(func)(self.draw, func, args, kwargs)
            for old, new in zip(outputs_of(func, args, kwargs, result), drawn, strict=False):
                if isinstance(old, Tensor) and isinstance(new, Tensor) and old.is_floating_point():
                    old.copy_(new.reshape(old.shape))
        self.made |= {id(x): x for x in tree_leaves(result) if isinstance(x, Tensor)}
        return result

    def _taken(self, value: Any) -> Any:
        if isinstance(value, Tensor) and value.is_floating_point() and id(value) in self.made:
            return self.draw.stored(value)
        return value


def replayable(call: ApiCall) -> bool:
    """Whether an API is known and all its tensors are there and small enough."""
    notes = [x for x in tree_leaves((call.args, dict(call.kwargs), call.outputs)) if isinstance(x, TensorNote)]
    is_known = call.api in FUNCTIONS or call.api in CASTS
    return is_known and bool(notes) and all(note.file is not None and 0 <= note.size <= LARGEST for note in notes)


def replay_forward(call: ApiCall) -> Verdict:
    """A forward call against its contract; `UnreadableError` where its tensors cannot be had."""
    args, kwargs, outputs = _load_tensors(call)
    if call.api in CASTS:
        exact = widen_value(args[0])
        return _worst([outputs[0]], [exact], [[exact]] * DRAWS) if outputs else RIGHT
    return _judge_call(call, args, kwargs, outputs, None)


def replay_backward(call: ApiCall, forward: ApiCall) -> Verdict:
    """A backward call against the vector-Jacobian product of its forward."""
    args, kwargs, _ = _load_tensors(forward)
    come, _, went = _load_tensors(call)
    return _judge_call(forward, args, kwargs, went, [x for x in come if isinstance(x, Tensor)])


def _load_tensors(call: ApiCall) -> tuple[tuple[Any, ...], dict[str, Any], list[Any]]:
    """Arguments and outputs with their values."""

    def value(x: Any) -> Any:
        if isinstance(x, TensorNote):
            return read_tensor(x)
        if isinstance(x, str) and x.startswith("torch."):
            return getattr(torch, x.removeprefix("torch."), x)
        return x

    args, kwargs, outputs = tree_map(value, (call.args, dict(call.kwargs), call.outputs))
    return tuple(args), kwargs, list(outputs)


def _judge_call(
    call: ApiCall, args: tuple[Any, ...], kwargs: dict[str, Any], got: list[Any], come: list[Tensor] | None
) -> Verdict:
    """Dumped results against exact ones and draws; of several readings of a dump the one that fits is meant."""
    form = next((x.dtype for x in got if isinstance(x, Tensor) and x.is_floating_point()), torch.float32)
    form = form if form in UNIT else torch.float32
    tensors = [x for x in got if isinstance(x, Tensor)]
    runs = []
    for source in [None, *(torch.Generator().manual_seed(k) for k in range(DRAWS))]:
        wide_inputs = tree_map(
            lambda x: widen_value(x.clone()) if isinstance(x, Tensor) else widen_value(x), (args, kwargs)
        )
        with Rounding(Draw(source=source, format=form)):
            runs.append(_outputs(call, wide_inputs) if come is None else _gradients(call, wide_inputs, come, tensors))
    worst = RIGHT
    for exact, *draws in zip(*runs, strict=True):
        worst = _worst(tensors[: len(exact)], exact, draws)
        if worst.right:
            return worst
    return worst


def _outputs(call: ApiCall, own: Any) -> list[list[Tensor]]:
    y = FUNCTIONS[call.api](*own[0], **own[1])
    return [[x for x in tree_leaves(y) if isinstance(x, Tensor)]]


def _gradients(call: ApiCall, own: Any, come: list[Tensor], got: list[Tensor]) -> list[list[Tensor]]:
    """Gradients as msprobe may mean them: of every input that wants one, or of the last of several ops."""
    notes = [x for x in tree_leaves((call.args, dict(call.kwargs))) if isinstance(x, TensorNote)]
    tensors = [x for x in tree_leaves(own) if isinstance(x, Tensor)]
    leaves = [
        x.requires_grad_() for x, note in zip(tensors, notes, strict=True) if note.wants_grad and x.is_floating_point()
    ]
    y = FUNCTIONS[call.api](*own[0], **own[1])
    y = y[0] if isinstance(y, tuple) else y
    if not leaves or y.grad_fn is None or not come or come[0].shape != y.shape:
        raise UnreadableError("its gradients do not fit its outputs")
    last: list[Any] = []
    y.grad_fn.register_hook(lambda grads, _given: last.extend(grads))
    gradients = torch.autograd.grad(y, leaves, widen_value(come[0]), allow_unused=True)
    shapes = [x.shape for x in got]
    readings = [[x for x in grads if isinstance(x, Tensor)] for grads in (gradients, last)]
    fitting = [reading for reading in readings if [x.shape for x in reading] == shapes]
    if not fitting:
        raise UnreadableError("its gradients are of other inputs")
    return fitting


def _worst(got: list[Any], exact: list[Any], draws: list[list[Any]]) -> Verdict:
    worst = RIGHT
    for index, output in enumerate(got):
        verdict = judge_output(output, exact[index].detach(), [draw[index].detach() for draw in draws])
        if not verdict.right and (worst.right or verdict.measured / verdict.limit > worst.measured / worst.limit):
            worst = verdict
    return worst
