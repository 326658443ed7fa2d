"""Watch the ops that reach a device, each with its module and phase, and judge them as they come.

    with Watch(device) as watch: step()
    watch.calls        every op x format x shape x stride, how often, where first
    watch.wrong        those whose result broke the contract of the op

What equals the host's kernel bit for bit is right if that kernel is, which is judged once for each signature.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from ridgeline.runtime.bringup.arithmetic import PLAIN, Unit
from ridgeline.runtime.bringup.choices import is_random
from ridgeline.runtime.bringup.contracts import is_view, judged, outputs_of
from ridgeline.runtime.bringup.judge import NoContractError, judge, unequal
from ridgeline.runtime.bringup.outcome import RIGHT, Verdict, worse, wrong

FAR = 1 << 16  # elements of an argument that are read back from a device to see whether it was written
KEPT = 2  # wrong calls of an op whose arguments are kept
Signature = tuple[str, tuple[Any, ...]]


class EndedError(Exception):
    """An op raised on the device, and on the host with the same arguments: what follows cannot be run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where an op was called: the module's path, and forward, loss, backward, optimizer or generate."""

    module: str = ""
    phase: str = "forward"


@dataclass(slots=True, kw_only=True)
class Called:
    """One signature: how often it came, and where first."""

    op: str
    described: tuple[Any, ...]
    place: Place
    count: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Wrong:
    """A call whose result broke its contract, with the arguments it had, on the host."""

    op: str
    place: Place
    dtype: str
    verdict: Verdict
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    message: str = ""


@dataclass(slots=True)
class Modules:
    """Which module is at work, also in the backward: its nodes carry the numbers that the forward's ops had."""

    stack: list[str] = field(default_factory=list)
    by_sequence: dict[int, str] = field(default_factory=dict)
    phase: str = "forward"

    def follow(self, module: nn.Module, root: str = "") -> Callable[[], None]:
        """Keep the stack through every forward of a module and its parts; call what is returned to stop."""
        handles = []
        for name, part in module.named_modules():
            path = ".".join(piece for piece in (root, name) if piece)
            handles.append(part.register_forward_pre_hook(partial(self._enter, path)))
            handles.append(part.register_forward_hook(self._leave, always_call=True))

        def stop() -> None:
            for handle in handles:
                handle.remove()

        return stop

    def _enter(self, path: str, _module: nn.Module, _args: Any) -> None:
        self.stack.append(path)

    def _leave(self, _module: nn.Module, _args: Any, _output: Any) -> None:
        self.stack.pop()

    def place(self) -> Place:
        """Of the op that is being dispatched."""
        node = torch._C._current_autograd_node()
        if torch._C._current_graph_task_id() != -1:
            sequence = -1 if node is None else node._sequence_nr()
            return Place(module=self.by_sequence.get(sequence, ""), phase="backward")
        module = self.stack[-1] if self.stack else ""
        made = torch.autograd._get_sequence_nr() - 1  # of the newest node: whoever has the number first made it
        self.by_sequence.setdefault(made, module)
        return Place(module=module, phase=self.phase)


class Watch(TorchDispatchMode):  # type: ignore[misc]
    """Sees every op below autograd and compares the device's result with the contract's."""

    def __init__(
        self, modules: Modules | None = None, *, sound: set[Signature] | None = None, unit: Unit = PLAIN
    ) -> None:
        super().__init__()
        self.modules = modules or Modules()
        self.calls: dict[Signature, Called] = {}
        self.wrong: list[Wrong] = []
        self.unjudged: dict[str, int] = {}
        self.sound: set[Signature] = set() if sound is None else sound  # whose host kernel kept the contract
        self.unit = unit

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        place = self.modules.place()
        signature = (str(func), tuple(_described(x) for x in tree_leaves((args, kwargs))))
        called = self.calls.setdefault(signature, Called(op=signature[0], described=signature[1], place=place))
        called.count += 1
        if is_view(func):
            result = func(*args, **kwargs)
            self._note(signature, place, seen_through(func, args, kwargs, result), args, kwargs, result)
            return result
        if not judged(func):
            return func(*args, **kwargs)
        host = tree_map(on_host, (args, kwargs))
        try:
            result = func(*args, **kwargs)
        except (RuntimeError, NotImplementedError, TypeError, ValueError, IndexError) as error:
            return self._instead(func, (args, kwargs), host, signature, place, error)
        outputs = [on_host(x) for x in outputs_of(func, args, kwargs, result)]
        verdict = self._verdict(func, host, outputs, signature)
        if verdict.right and not untouched(func, args, kwargs, host):
            verdict = wrong("argument", 1.0)
        self._note(signature, place, verdict, *host, outputs)
        return result

    def _note(
        self, signature: Signature, place: Place, verdict: Verdict, args: Any, kwargs: Any, outputs: Any,
        message: str = "",
    ) -> None:  # fmt: skip
        if verdict.right:
            return
        args, kwargs, outputs = tree_map(on_host, (args, kwargs, outputs))
        if sum(one.op == signature[0] for one in self.wrong) >= KEPT:
            args, kwargs = (), {}
        self.wrong.append(Wrong(
            op=signature[0], place=place, dtype=dtype_of(tree_leaves(outputs)), verdict=verdict, args=args,
            kwargs=kwargs, message=message,
        ))  # fmt: skip

    def _instead(
        self, func: Any, given: tuple[Any, Any], host: tuple[Any, Any], signature: Signature, place: Place,
        error: Exception,
    ) -> Any:  # fmt: skip
        """An op that raised where the host's does not is wrong; the run goes on with the host's result."""
        args, kwargs = host
        device = next((x.device for x in tree_leaves(given) if isinstance(x, Tensor)), torch.device("cpu"))
        try:
            own = tree_map(_copied, host)
            result = func(*own[0], **own[1])
        except (RuntimeError, NotImplementedError, TypeError, ValueError, IndexError):
            raise EndedError(str(error)) from error
        message = str(error).partition("\n")[0]
        absent = isinstance(error, NotImplementedError)
        self._note(signature, place, wrong("missing" if absent else "raised", 1.0), args, kwargs, result, message)
        if not func._schema.is_mutable:
            return tree_map(lambda x: x.to(device) if isinstance(x, Tensor) else x, result)
        for old, new in zip(tree_leaves(given), tree_leaves(own), strict=True):
            if isinstance(old, Tensor):
                getattr(old, "raw", old).copy_(new)
        return given[0][0] if func._schema.returns else None

    def _verdict(self, func: Any, host: tuple[Any, Any], outputs: list[Any], signature: Signature) -> Verdict:
        args, kwargs = host
        theirs = None if is_random(func) else host_outputs(func, args, kwargs)
        same = _equal(outputs, theirs)
        if signature in self.sound and same:
            return RIGHT
        try:
            found = judge(func, args, kwargs, outputs, unit=self.unit)
        except NoContractError:
            self.unjudged[signature[0]] = self.unjudged.get(signature[0], 0) + 1
            return RIGHT
        if found.right and same:
            self.sound.add(signature)
        if found.right and theirs and isinstance(theirs[0], Tensor) and theirs[0].dtype != outputs[0].dtype:
            return wrong("format", float(outputs[0].element_size()), float(theirs[0].element_size()))
        return found


def seen_through(func: Any, args: Any, kwargs: Any, result: Any) -> Verdict:
    """A view: the memory of its argument by the sizes, strides and offset that torch gives it, or equal numbers."""
    base = next((x for x in tree_leaves(args) if isinstance(x, Tensor)), None)
    if base is None:
        return RIGHT
    views = [x for x in tree_leaves(result) if isinstance(x, Tensor)]
    try:
        shapes = [x for x in tree_leaves(func(*tree_map(_without_numbers, args), **kwargs)) if isinstance(x, Tensor)]
    except (RuntimeError, NotImplementedError):
        return RIGHT
    if len(views) != len(shapes):
        return wrong("shape", float(len(views)), float(len(shapes)))
    memory = _memory(base)
    if memory and all(_memory(x) == memory and _layout(x) == _layout(y) for x, y in zip(views, shapes, strict=True)):
        return RIGHT
    own = tree_map(on_host, (args, kwargs))
    expected = [x for x in tree_leaves(func(*own[0], **own[1])) if isinstance(x, Tensor)]
    worst = RIGHT
    for ours, theirs in zip(views, expected, strict=True):
        worst = worse(worst, unequal(on_host(ours), theirs))
    return worst


def _without_numbers(value: Any) -> Any:
    if not isinstance(value, Tensor):
        return value
    reach = 1 + value.storage_offset() + sum((n - 1) * s for n, s in zip(value.shape, value.stride(), strict=True))
    whole = torch.empty((max(reach, 1),), dtype=value.dtype, device="meta")
    return whole.as_strided(value.shape, value.stride(), value.storage_offset())


def _memory(x: Tensor) -> int:
    try:
        return int(getattr(x, "raw", x).untyped_storage().data_ptr())
    except (RuntimeError, NotImplementedError):
        return 0


def _layout(x: Tensor) -> tuple[Any, ...]:
    return tuple(x.shape), x.stride(), x.storage_offset(), x.dtype


def untouched(func: Any, args: Any, kwargs: Any, host: tuple[Any, Any]) -> bool:
    """Whether an op left alone the arguments that it does not write; what is large and far away is not read again."""
    writes = {a.name for a in func._schema.arguments if a.alias_info is not None and a.alias_info.is_write}
    names = [a.name for a in func._schema.arguments]
    pairs = [*zip(names, args, host[0], strict=False), *((k, v, host[1][k]) for k, v in kwargs.items())]
    for name, ours, before in pairs:
        if name in writes:
            continue
        for now, then in zip(tree_leaves(ours), tree_leaves(before), strict=True):
            if isinstance(now, Tensor) and not _unchanged(now, then):
                return False
    return True


def _unchanged(now: Tensor, then: Tensor) -> bool:
    near = getattr(now, "raw", now if now.device.type == "cpu" else None)
    if near is None and now.numel() > FAR:
        return True
    return _equal([on_host(now) if near is None else near], [then])


def host_outputs(func: Any, args: Any, kwargs: Any) -> list[Any] | None:
    """What the host's kernel gives in the same formats; None where it has none."""
    args, kwargs = tree_map(_copied, (args, kwargs))
    try:
        return outputs_of(func, args, kwargs, func(*args, **kwargs))
    except (RuntimeError, NotImplementedError):
        return None


def on_host(value: Any) -> Any:
    """A copy of a tensor in the host's memory with the same strides; devices become the host."""
    if isinstance(value, torch.device):
        return torch.device("cpu")
    if not isinstance(value, Tensor):
        return value
    raw = getattr(value, "raw", None)  # of the fake device: read past its ops, which may be faulty
    if raw is not None:
        return raw.detach().clone()
    return torch.ops.aten._to_copy.default(value.detach(), device=torch.device("cpu"))  # a copy, even of the host's own


def dtype_of(outputs: list[Any]) -> str:
    """The format of the first tensor, as torch names it."""
    return next((str(x.dtype).removeprefix("torch.") for x in outputs if isinstance(x, Tensor)), "")


def _copied(value: Any) -> Any:
    return value.clone() if isinstance(value, Tensor) else value


def _equal(ours: list[Any], theirs: list[Any] | None) -> bool:
    if theirs is None or len(ours) != len(theirs):
        return False
    pairs = [(a, b) for a, b in zip(ours, theirs, strict=True) if isinstance(a, Tensor)]
    if any(a != b for a, b in zip(ours, theirs, strict=True) if isinstance(a, bool | int | float)):
        return False
    return all(a.shape == b.shape and a.dtype == b.dtype and torch.equal(_bits(a), _bits(b)) for a, b in pairs)


def _bits(x: Tensor) -> Tensor:
    """NaNs compare as what they are."""
    sizes = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    return x.contiguous().view(sizes[x.element_size()]) if x.is_floating_point() else x


def _described(value: Any) -> Any:
    if isinstance(value, Tensor):
        offset = value.storage_offset() if value.layout == torch.strided else 0
        return str(value.dtype).removeprefix("torch."), tuple(value.shape), value.stride(), offset
    return str(value) if isinstance(value, torch.dtype | torch.device | torch.layout | torch.memory_format) else value
