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

from ridgeline.runtime.bringup import dispatcher
from ridgeline.runtime.bringup.contracts import judged, outputs_of
from ridgeline.runtime.bringup.judge import NoContractError, Verdict, judge

Signature = tuple[str, tuple[Any, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where an op was called: the module's path, and forward, loss, backward, optimizer or generate."""

    module: str = ""
    phase: str = "forward"


@dataclass(slots=True, kw_only=True)
class Called:
    """One signature: how often it came, where first and where else, on what type of device, whether the host waits."""

    op: str
    described: tuple[Any, ...]
    place: Place
    count: int = 0
    places: dict[Place, int] = field(default_factory=dict)
    kind: str = ""
    waits: bool = False

    def note(self, place: Place, func: Any, args: Any, kwargs: Any) -> None:
        """It came once more."""
        self.count += 1
        self.places[place] = self.places.get(place, 0) + 1
        self.kind = self.kind or dispatcher.device_of(args, kwargs)
        self.waits = self.waits or dispatcher.synchronises(func, args, kwargs)


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
    """Which module is at work: in the backward by the number of the forward's node, in the optimizer by the parameter.

    outside    the module of an op that no module calls: `loss` once a module is followed
    owners     the module of each parameter, by the parameter's identity; owner: that of the last one seen
    """

    stack: list[str] = field(default_factory=list)
    by_sequence: dict[int, str] = field(default_factory=dict)
    phase: str = "forward"
    outside: str = ""
    owners: dict[int, str] = field(default_factory=dict)
    owner: str = ""

    def follow(self, module: nn.Module, root: str = "") -> Callable[[], None]:
        """Keep the stack through every forward of a module and its parts; call what is returned to stop."""
        handles = []
        self.outside = "loss"
        for name, part in module.named_modules():
            path = ".".join(piece for piece in (root, name) if piece)
            self.owners |= {id(weight): path for weight in part.parameters(recurse=False)}
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

    def place(self, args: Any = ()) -> Place:
        """Of the op that is being dispatched with these arguments."""
        if dispatcher.in_backward():
            return Place(module=self.by_sequence.get(dispatcher.backward_number(), ""), phase="backward")
        if self.phase == "optimizer":
            known = (self.owners.get(id(x)) for x in tree_leaves(args) if isinstance(x, Tensor))
            self.owner = next((path for path in known if path is not None), self.owner)
            return Place(module=self.owner, phase=self.phase)
        module = self.stack[-1] if self.stack else self.outside
        self.by_sequence.setdefault(dispatcher.newest_number(), module)  # whoever has the number first made the node
        return Place(module=module, phase=self.phase)


class Watch(TorchDispatchMode):  # type: ignore[misc]
    """Sees every op below autograd and compares the device's result with the contract's."""

    def __init__(self, modules: Modules | None = None) -> None:
        super().__init__()
        self.modules = modules or Modules()
        self.calls: dict[Signature, Called] = {}
        self.wrong: list[Wrong] = []
        self.unjudged: dict[str, int] = {}
        self.sound: set[Signature] = set()  # signatures whose host kernel kept the contract

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        place = self.modules.place(args)
        signature = (str(func), tuple(_described(x) for x in tree_leaves((args, kwargs))))
        called = self.calls.setdefault(signature, Called(op=signature[0], described=signature[1], place=place))
        called.note(place, func, args, kwargs)
        if not judged(func):
            return func(*args, **kwargs)
        host = tree_map(on_host, (args, kwargs))
        result = func(*args, **kwargs)
        outputs = [on_host(x) for x in outputs_of(func, args, kwargs, result)]
        verdict = self._verdict(func, host, outputs, signature)
        if not verdict.right:
            self.wrong.append(Wrong(
                op=signature[0], place=place, dtype=dtype_of(outputs), verdict=verdict, args=host[0], kwargs=host[1],
            ))  # fmt: skip
        return result

    def _verdict(self, func: Any, host: tuple[Any, Any], outputs: list[Any], signature: Signature) -> Verdict:
        args, kwargs = host
        if signature in self.sound and _equal(outputs, host_outputs(func, args, kwargs)):
            return Verdict(right=True)
        try:
            found = judge(func, args, kwargs, outputs)
        except NoContractError:
            self.unjudged[signature[0]] = self.unjudged.get(signature[0], 0) + 1
            return Verdict(right=True)
        if found.right and signature not in self.sound and _equal(outputs, host_outputs(func, args, kwargs)):
            self.sound.add(signature)
        return found


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
