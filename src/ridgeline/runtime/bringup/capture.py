"""Watch the ops that reach a device, each with its module and phase, and judge them as they come.

    with Watch(device) as watch: step()
    watch.calls        every op x format x shape x stride, how often, where first
    watch.wrong        those whose result broke the contract of the op

What equals the host's kernel bit for bit is right if that kernel is, which is judged once for each signature.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from ridgeline.runtime.bringup import dispatcher
from ridgeline.runtime.bringup.contracts import has_contract, is_view, outputs_of
from ridgeline.runtime.bringup.guard import Guard, device_of, host_result
from ridgeline.runtime.bringup.journal import Entry
from ridgeline.runtime.bringup.judge import NoContractError, judge
from ridgeline.runtime.bringup.outcome import Verdict, wrong
from ridgeline.runtime.bringup.tensors import equal_bits, floating_dtype, on_device, on_host
from ridgeline.runtime.bringup.variants import collect
from ridgeline.runtime.bringup.views import leaves_inputs, seen_through

Signature = tuple[str, tuple[Any, ...]]
RAISED = Verdict(right=False, statistic="raised", measured=1.0, limit=0.5)
MALFORMED = ("format", "shape")  # results that the rest of the model cannot take


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where an op was called: the module's path, and forward, loss, backward, optimizer or generation."""

    module: str = ""
    phase: str = "forward"


@dataclass(slots=True, kw_only=True)
class Called:
    """One signature: where first and where else, on what type of device, whether the host waits.

    count     calls in as many layers as the model has; captured: those that were seen
    """

    op: str
    described: tuple[Any, ...]
    place: Place
    count: int = 0
    captured: int = 0
    places: set[Place] = field(default_factory=set)
    kind: str = ""
    waits: bool = False

    @property
    def dtype(self) -> str:
        """The format of its first tensor."""
        return next((x[0] for x in self.described if isinstance(x, tuple) and len(x) == 4), "")

    def note(self, place: Place, func: Any, args: Any, kwargs: Any, layers: int = 1) -> None:
        """It came once more, for so many layers; on the device it counts anew, whatever the host did with the same."""
        kind = dispatcher.device_of(args, kwargs)
        if kind != self.kind and self.kind in ("", "cpu"):
            self.kind, self.place, self.places, self.count, self.captured = kind, place, set(), 0, 0
        self.count += layers
        self.captured += 1
        self.places.add(place)
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

    @contextmanager
    def inside(self, path: str) -> Iterator[None]:
        """A module at work whose forward is not called as a whole."""
        self.stack.append(path)
        try:
            yield
        finally:
            self.stack.pop()

    def _enter(self, path: str, _module: nn.Module, _args: Any) -> None:
        self.stack.append(path)

    def _leave(self, _module: nn.Module, _args: Any, _output: Any) -> None:
        self.stack.pop()

    def place(self, args: Any = ()) -> Place:
        """Of the op that is being dispatched with these arguments."""
        if dispatcher.in_backward():
            return Place(module=self.by_sequence.get(dispatcher.backward_number(), ""), phase="backward")
        if self.phase == "optimizer" and not self.stack:
            owners = (self.owners.get(id(x)) for x in tree_leaves(args) if isinstance(x, Tensor))
            self.owner = next((path for path in owners if path is not None), self.owner)
            return Place(module=self.owner, phase=self.phase)
        outside = self.outside if self.phase in ("forward", "loss") else ""
        module = self.stack[-1] if self.stack else outside
        self.by_sequence.setdefault(dispatcher.newest_number(), module)  # whoever has the number first made the node
        return Place(module=module, phase=self.phase)


class Watch(TorchDispatchMode):  # type: ignore[misc]
    """Sees every op below autograd and compares the device's result with the contract's.

    missing    ops that the device does not have, with how often they were called; the host computed them
    times      how many layers of the model each layer stands for, by the path of its module: calls are counted for all
    """

    def __init__(
        self, modules: Modules | None = None, guard: Guard | None = None, times: Mapping[str, int] | None = None
    ) -> None:
        super().__init__()
        self.times = times or {}
        self.modules = modules or Modules()
        self.guard = guard or Guard()
        self.calls: dict[Signature, Called] = {}
        self.wrong: list[Wrong] = []
        self.unjudged: dict[str, int] = {}
        self.missing: dict[str, int] = {}
        self.sound: set[Signature] = self.guard.sound

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        place = self.modules.place(args)
        signature = signature_of(func, args, kwargs)
        call = self.calls.setdefault(signature, Called(op=signature[0], described=signature[1], place=place))
        call.note(place, func, args, kwargs, self._layers(place.module))
        entry = entry_of(signature, place, args, kwargs)
        host = tree_map(on_host, (args, kwargs)) if has_contract(func) else (args, kwargs)
        ran = self.guard.run(func, args, kwargs, entry)
        if ran.error is not None:
            self._note_raise(ran.error, entry, place, tree_map(on_host, host))
        if is_view(func) and not ran.healed and ran.error is None:
            self._look_through(func, args, kwargs, ran.result, entry, place)
        if not has_contract(func) or ran.healed or ran.error is not None:
            return ran.result
        if self.guard.samples is not None:
            collect(self.guard.samples, func, host, place.module, place.phase)
        outputs = self._read(func, args, kwargs, ran.result, entry)
        verdict = self._verdict(func, host, outputs, signature)
        if verdict.right and not leaves_inputs(func, args, kwargs, host):
            verdict = wrong("argument", 1.0)
        if verdict.right:
            return ran.result
        self.wrong.append(Wrong(
            op=signature[0], place=place, dtype=dtype_of(outputs) or entry.dtype, verdict=verdict, args=host[0],
            kwargs=host[1],
        ))  # fmt: skip
        return ran.result if verdict.statistic not in MALFORMED else host_result(func, *_on(host, args, kwargs))

    def _look_through(self, func: Any, args: Any, kwargs: Any, result: Any, entry: Entry, place: Place) -> None:
        """A view that does not show what it names is wrong."""
        verdict = seen_through(func, args, kwargs, result)
        if not verdict.right:
            host = tree_map(on_host, (args, kwargs))
            dtype = dtype_of(tree_leaves(result)) or entry.dtype
            self.wrong.append(
                Wrong(op=entry.op, place=place, dtype=dtype, verdict=verdict, args=host[0], kwargs=host[1])
            )

    def _layers(self, module: str) -> int:
        """How many layers of the model a call stands for."""
        for path, times in self.times.items():
            if module == path or module.startswith(path + "."):
                return times
        return 1

    def _read(self, func: Any, args: Any, kwargs: Any, result: Any, entry: Entry) -> list[Any]:
        """The outputs on the host; a device that computes later raises here what the op did wrong."""
        self.guard.enter(entry)
        try:
            return [on_host(x) for x in outputs_of(func, args, kwargs, result)]
        except Exception as error:
            self.guard.check_alive(args, kwargs, entry, error)
            raise
        finally:
            self.guard.leave()

    def _note_raise(self, error: BaseException, entry: Entry, place: Place, host: Any) -> None:
        if isinstance(error, NotImplementedError):
            self.missing[entry.op] = self.missing.get(entry.op, 0) + 1
            return
        message = f"{type(error).__name__}: {error}".partition("\n")[0]
        self.wrong.append(Wrong(
            op=entry.op, place=place, dtype=entry.dtype, verdict=RAISED, args=host[0], kwargs=host[1], message=message,
        ))  # fmt: skip

    def _verdict(self, func: Any, host: tuple[Any, Any], outputs: list[Any], signature: Signature) -> Verdict:
        args, kwargs = host
        theirs = host_outputs(func, args, kwargs)
        if not _same_outputs(outputs, theirs):
            return Verdict(right=False, statistic="format", measured=1.0, limit=0.5)
        if signature in self.sound and equal_bits(outputs, theirs):
            return Verdict(right=True)
        try:
            verdict = judge(func, args, kwargs, outputs, unit=self.guard.unit, theirs=theirs)
        except NoContractError:
            self.unjudged[signature[0]] = self.unjudged.get(signature[0], 0) + 1
            return Verdict(right=True)
        if verdict.right and equal_bits(outputs, theirs):
            self.sound.add(signature)
        return verdict


def signature_of(func: Any, args: Any, kwargs: Any) -> Signature:
    """An op with the formats, shapes and strides of its arguments."""
    return str(func), tuple(_describe_value(x) for x in tree_leaves((args, kwargs)))


def entry_of(signature: Signature, place: Place, args: Any, kwargs: Any) -> Entry:
    """What a journal says of a call."""
    dtype = floating_dtype((args, kwargs))
    return Entry(
        op=signature[0], module=place.module, phase=place.phase,
        dtype="" if dtype is None else str(dtype).removeprefix("torch."), signature=repr(signature[1]),
    )  # fmt: skip


def host_outputs(func: Any, args: Any, kwargs: Any) -> list[Any] | None:
    """What the host's kernel gives in the same formats; None where it has none."""
    args, kwargs = tree_map(_copy_value, (args, kwargs))
    try:
        return outputs_of(func, args, kwargs, func(*args, **kwargs))
    except (RuntimeError, NotImplementedError):
        return None


def dtype_of(outputs: list[Any]) -> str:
    """The format of the first tensor, as torch names it."""
    return next((str(x.dtype).removeprefix("torch.") for x in outputs if isinstance(x, Tensor)), "")


def _same_outputs(ours: list[Any], theirs: list[Any] | None) -> bool:
    """Whether the first results are of one form; others (a norm's statistics) differ from device to device."""
    if not theirs or not isinstance(theirs[0], Tensor):
        return True
    first = ours[0] if ours else None
    return isinstance(first, Tensor) and first.shape == theirs[0].shape and first.dtype == theirs[0].dtype


def _on(host: tuple[Any, Any], args: Any, kwargs: Any) -> tuple[Any, Any]:
    """Arguments as they were before the op, on its device."""
    device = device_of(args, kwargs)
    return tree_map(lambda x: on_device(x, device), host)  # type: ignore[no-any-return]


def _copy_value(value: Any) -> Any:
    return value.clone() if isinstance(value, Tensor) else value


def _describe_value(value: Any) -> Any:
    if isinstance(value, Tensor):
        offset = value.storage_offset() if value.layout == torch.strided else 0
        return str(value.dtype).removeprefix("torch."), tuple(value.shape), value.stride(), offset
    if value is None or isinstance(value, bool | int | float | str):
        return value
    is_torch_constant = isinstance(value, torch.dtype | torch.device | torch.layout | torch.memory_format)
    return str(value) if is_torch_constant else type(value).__name__  # a storage would spell every byte
