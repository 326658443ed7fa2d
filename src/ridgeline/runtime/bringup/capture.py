"""Watch the ops that reach a device, each with its module and phase, and judge them as they come.

    with Watch(device) as watch: step()
    watch.calls                   every op x format x shape x stride, how often, where first
    watch.wrong                   those whose result broke the contract of the op
    probe(call, device)           what was seen of one call, made twice
    hard_variants(samples)        captured calls as a tail of odd size, in memory with gaps, large, small, with indices
                                  that all meet, and at the ends of their range

What equals the host's kernel bit for bit is right if that kernel is, which is judged once for each signature. Views
show the memory that they name, and arguments that an op does not write stay as they were.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial, reduce

import torch
from torch import Tensor, nn
from torch._ops import OpOverload
from torch.utils._pytree import tree_leaves, tree_map

from ridgeline.runtime.bringup import devices
from ridgeline.runtime.bringup.arithmetic import (
    RIGHT,
    Args,
    HostCall,
    Kwargs,
    OpVerdict,
    Outputs,
    clone_tensors,
    dtype_name,
    error_text,
    tensors_in,
    worse,
    written_names,
    wrong,
)
from ridgeline.runtime.bringup.contracts import has_contract, is_view, name_of, outputs_of
from ridgeline.runtime.bringup.devices import OpMode
from ridgeline.runtime.bringup.fake_device import RidgeTensor, equal_bits, on_device, on_host
from ridgeline.runtime.bringup.guard import Guard, OpEntry, device_of, host_result
from ridgeline.runtime.bringup.judge import NoContractError, is_random, judge, unequal
from ridgeline.runtime.bringup.op_calls import HERE, OpCall, Samples, vary_layout

Signature = tuple[str, tuple[object, ...]]
RAISED = OpVerdict(right=False, statistic="raised", measured=1.0, limit=0.5)
MALFORMED = ("format", "shape")  # results that the rest of the model cannot take


@dataclass(frozen=True, slots=True, kw_only=True)
class OpPlace:
    """Where an op was called: the module's path, and forward, loss, backward, optimizer or generation."""

    module: str = ""
    phase: str = "forward"


@dataclass(slots=True, kw_only=True)
class Called:
    """One signature: where first and where else, on what type of device, whether the host waits.

    count     calls in as many layers as the model has; captured: those that were seen
    """

    op: str
    described: tuple[object, ...]
    place: OpPlace
    count: int = 0
    captured: int = 0
    places: set[OpPlace] = field(default_factory=set)
    kind: str = ""
    waits: bool = False

    @property
    def dtype(self) -> str:
        """The format of its first tensor."""
        return next((x[0] for x in self.described if isinstance(x, tuple) and len(x) == 4), "")

    def note(self, place: OpPlace, func: OpOverload, args: Args, kwargs: Kwargs, layers: int = 1) -> None:
        """It came once more, for so many layers; on the device it counts anew, whatever the host did with the same."""
        kind = devices.device_kind(args, kwargs)
        if kind != self.kind and self.kind in ("", "cpu"):
            self.kind, self.place, self.places, self.count, self.captured = kind, place, set(), 0, 0
        self.count += layers
        self.captured += 1
        self.places.add(place)
        self.waits = self.waits or devices.synchronises(func, args, kwargs)


@dataclass(frozen=True, slots=True, kw_only=True)
class WrongCall:
    """A call whose result broke its contract, with the arguments it had, on the host."""

    op: str
    place: OpPlace
    dtype: str
    verdict: OpVerdict
    args: Args
    kwargs: Kwargs
    message: str = ""

    @classmethod
    def of(cls, entry: OpEntry, verdict: OpVerdict, host: HostCall, dtype: str = "") -> WrongCall:
        """The call that a journal names; `dtype` where its results have another format than its arguments."""
        place = OpPlace(module=entry.module, phase=entry.phase)
        return cls(op=entry.op, place=place, dtype=dtype or entry.dtype, verdict=verdict, args=host[0], kwargs=host[1])


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

    def _enter(self, path: str, _module: nn.Module, _args: object) -> None:
        self.stack.append(path)

    def _leave(self, _module: nn.Module, _args: object, _output: object) -> None:
        self.stack.pop()

    def place(self, args: object = ()) -> OpPlace:
        """Of the op that is being dispatched with these arguments."""
        if devices.in_backward():
            return OpPlace(module=self.by_sequence.get(devices.backward_number(), ""), phase="backward")
        if self.phase == "optimizer" and not self.stack:
            owners = (self.owners.get(id(x)) for x in tree_leaves(args) if isinstance(x, Tensor))
            self.owner = next((path for path in owners if path is not None), self.owner)
            return OpPlace(module=self.owner, phase=self.phase)
        outside = self.outside if self.phase in ("forward", "loss") else ""
        module = self.stack[-1] if self.stack else outside
        self.by_sequence.setdefault(devices.newest_number(), module)  # whoever has the number first made the node
        return OpPlace(module=module, phase=self.phase)


class Watch(OpMode):
    """Sees every op below autograd and compares the device's result with the contract's.

    missing    ops that the device does not have, with how often they were called; the host computed them
    times      how many layers of the model each layer stands for, by the path of its module: calls are counted for all
    """

    def __init__(
        self, modules: Modules | None = None, guard: Guard | None = None, times: Mapping[str, int] | None = None
    ) -> None:
        super().__init__()
        self.times = times or {}
        self.modules, self.guard = modules or Modules(), guard or Guard()
        self.calls: dict[Signature, Called] = {}
        self.wrong: list[WrongCall] = []
        self.unjudged: Counter[str] = Counter()
        self.missing: Counter[str] = Counter()

    def see(self, func: OpOverload, args: Args, kwargs: Kwargs) -> object:
        place = self.modules.place(args)
        signature = signature_of(func, args, kwargs)
        call = self.calls.setdefault(signature, Called(op=signature[0], described=signature[1], place=place))
        call.note(place, func, args, kwargs, self._layers(place.module))
        entry = entry_of(signature, place, args, kwargs)
        host: HostCall = tree_map(on_host, (args, kwargs)) if has_contract(func) else (args, kwargs)
        ran = self.guard.run(func, args, kwargs, entry)
        if isinstance(ran.error, NotImplementedError):
            self.missing[entry.op] += 1
        elif ran.error is not None:
            raised = WrongCall.of(entry, RAISED, tree_map(on_host, host))
            self.wrong.append(replace(raised, message=error_text(ran.error)))
        if ran.healed or ran.error is not None:
            return ran.result
        if is_view(func):
            verdict = seen_through(func, args, kwargs, ran.result)
            if not verdict.right:
                dtype = dtype_of(tree_leaves(ran.result))
                self.wrong.append(WrongCall.of(entry, verdict, tree_map(on_host, (args, kwargs)), dtype))
        if not has_contract(func):
            return ran.result
        if self.guard.samples is not None:
            collect(self.guard.samples, func, host, place.module, place.phase)
        outputs = self._read(func, args, kwargs, ran.result, entry)
        verdict = self._verdict(func, host, outputs, signature)
        if verdict.right and not leaves_inputs(func, args, kwargs, host):
            verdict = wrong("argument", 1.0)
        if verdict.right:
            return ran.result
        self.wrong.append(WrongCall.of(entry, verdict, host, dtype_of(outputs)))
        if verdict.statistic not in MALFORMED:
            return ran.result
        device = device_of(args, kwargs)
        return host_result(func, *tree_map(lambda x: on_device(x, device), host))  # as they were before the op

    def _layers(self, module: str) -> int:
        """How many layers of the model a call stands for."""
        return next((n for path, n in self.times.items() if module == path or module.startswith(path + ".")), 1)

    def _read(self, func: OpOverload, args: Args, kwargs: Kwargs, result: object, entry: OpEntry) -> Outputs:
        """The outputs on the host; a device that computes later raises here what the op did wrong."""
        self.guard.enter(entry)
        try:
            return [on_host(x) for x in outputs_of(func, args, kwargs, result)]
        except Exception as error:
            self.guard.check_alive(args, kwargs, entry, error)
            raise
        finally:
            self.guard.leave()

    def _verdict(self, func: OpOverload, host: HostCall, outputs: Outputs, signature: Signature) -> OpVerdict:
        theirs = host_outputs(func, *host)
        if not _same_outputs(outputs, theirs):
            return wrong("format", 1.0)
        if signature in self.guard.sound and equal_bits(outputs, theirs):
            return RIGHT
        try:
            verdict = judge(func, *host, outputs, unit=self.guard.unit, theirs=theirs)
        except NoContractError:
            self.unjudged[signature[0]] += 1
            return RIGHT
        if verdict.right and equal_bits(outputs, theirs):
            self.guard.sound.add(signature)
        return verdict


def signature_of(func: OpOverload, args: Args, kwargs: Kwargs) -> Signature:
    """An op with the formats, shapes and strides of its arguments."""
    return str(func), tuple(_describe_value(x) for x in tree_leaves((args, kwargs)))


def entry_of(signature: Signature, place: OpPlace, args: Args, kwargs: Kwargs) -> OpEntry:
    """What a journal says of a call."""
    dtype = next((dtype_name(x) for x in tensors_in((args, kwargs)) if x.is_floating_point()), "")
    return OpEntry(op=signature[0], module=place.module, phase=place.phase, dtype=dtype, signature=repr(signature[1]))


def host_outputs(func: OpOverload, args: Args, kwargs: Kwargs) -> Outputs | None:
    """What the host's kernel gives in the same formats; None where it has none."""
    args, kwargs = clone_tensors((args, kwargs))
    try:
        return outputs_of(func, args, kwargs, func(*args, **kwargs))
    except (RuntimeError, NotImplementedError):
        return None


def dtype_of(outputs: Outputs) -> str:
    """The format of the first tensor, as torch names it."""
    return next((dtype_name(x) for x in outputs if isinstance(x, Tensor)), "")


def _same_outputs(ours: Outputs, theirs: Outputs | None) -> bool:
    """Whether the first results are of one form; others (a norm's statistics) differ from device to device."""
    if not theirs or not isinstance(theirs[0], Tensor):
        return True
    first = ours[0] if ours else None
    return isinstance(first, Tensor) and first.shape == theirs[0].shape and first.dtype == theirs[0].dtype


def _describe_value(value: object) -> object:
    if isinstance(value, Tensor):
        offset = value.storage_offset() if value.layout == torch.strided else 0
        return dtype_name(value), tuple(value.shape), value.stride(), offset
    if value is None or isinstance(value, bool | int | float | str):
        return value
    is_torch_constant = isinstance(value, torch.dtype | torch.device | torch.layout | torch.memory_format)
    return str(value) if is_torch_constant else type(value).__name__  # a storage would spell every byte


NEAR = 1 << 18  # elements of an argument on the host beyond which every 61st is read
FAR = 1 << 16  # elements of an argument that are read back from a device to see whether it was written


def seen_through(func: OpOverload, args: Args, kwargs: Kwargs, result: object) -> OpVerdict:
    """A view: the memory of its argument by the sizes, strides and offset that torch gives it, or equal numbers."""
    bases, views = tensors_in(args), tensors_in(result)
    if not bases:
        return RIGHT
    try:
        shapes = tensors_in(func(*tree_map(_without_numbers, args), **kwargs))
    except (RuntimeError, NotImplementedError):
        return RIGHT
    if len(views) != len(shapes):
        return wrong("shape", float(len(views)), float(len(shapes)))
    memory = _memory(bases[0])
    if memory and all(_memory(x) == memory and _layout(x) == _layout(y) for x, y in zip(views, shapes, strict=True)):
        return RIGHT
    host_args, host_kwargs = tree_map(on_host, (args, kwargs))
    expected_outputs = tensors_in(func(*host_args, **host_kwargs))
    pairs = zip(views, expected_outputs, strict=True)
    return reduce(worse, (unequal(on_host(ours), theirs) for ours, theirs in pairs), RIGHT)


def _without_numbers(value: object) -> object:
    if not isinstance(value, Tensor):
        return value
    reach = 1 + value.storage_offset() + sum((n - 1) * s for n, s in zip(value.shape, value.stride(), strict=True))
    storage = torch.empty((max(reach, 1),), dtype=value.dtype, device="meta")
    return storage.as_strided(value.shape, value.stride(), value.storage_offset())


def _memory(x: Tensor) -> int:
    try:
        return int((x.raw if isinstance(x, RidgeTensor) else x).untyped_storage().data_ptr())
    except (RuntimeError, NotImplementedError):
        return 0


def _layout(x: Tensor) -> tuple[object, ...]:
    return tuple(x.shape), x.stride(), x.storage_offset(), x.dtype


def leaves_inputs(func: OpOverload, args: Args, kwargs: Kwargs, host: HostCall) -> bool:
    """Whether an op left alone the arguments that it does not write; what is large and far away is not read again."""
    writes = written_names(func)
    names = [a.name for a in func._schema.arguments]
    pairs = [*zip(names, args, host[0], strict=False), *((k, v, host[1][k]) for k, v in kwargs.items())]
    return all(
        _same_bits(now, then)
        for name, ours, before in pairs
        if name not in writes
        for now, then in zip(tree_leaves(ours), tree_leaves(before), strict=True)
        if isinstance(now, Tensor)
    )


def _same_bits(now: Tensor, then: Tensor) -> bool:
    near = now.raw if isinstance(now, RidgeTensor) else now if now.device.type == "cpu" else None
    if near is None and now.numel() > FAR:
        return True
    if near is not None and near.numel() > NEAR:
        near, then = (x.flatten()[::61] if x.is_contiguous() else x[..., ::61] for x in (near, then))
    return equal_bits([on_host(now) if near is None else near], [then])


ALIGNED = ("_grouped_mm", "_scaled_mm", "_scaled_grouped_mm")  # whose operands must be, by their documentation
MOST, CUT = 96, 65  # sizes beyond the first become the second: no multiple of eight


def collect(samples: Samples, func: OpOverload, host: HostCall, module: str, phase: str) -> None:
    """Keep a call if it is the first of its kind."""
    tensors = tensors_in(host)
    key = str(func), tuple((x.dtype, x.dim()) for x in tensors)
    is_fused = "attention" in key[0]  # takes sizes and offsets of its own, and in the backward what the forward gave
    if key in samples or not tensors or is_fused or is_random(func):
        return
    args, kwargs = tree_map(_small, host)
    samples[key] = OpCall(op=func, args=args, kwargs=kwargs, why=module, phase=phase)


def _small(value: object) -> object:
    if isinstance(value, int) and not isinstance(value, bool):
        return CUT if value > MOST else value
    if not isinstance(value, Tensor):
        return value
    part = value[tuple(slice(CUT if size > MOST else size) for size in value.shape)] if value.dim() else value
    part = part.detach().clone()
    return part % CUT if part.dtype == torch.int64 and part.numel() and int(part.max()) >= CUT else part


def hard_variants(samples: Samples) -> Iterator[OpCall]:
    """Every call in every way that changes it."""
    for call in list(samples.values()):
        for why, change in CHANGES.items():
            change = (
                partial(_with_gaps, aligned=True) if change is _with_gaps and name_of(call.op) in ALIGNED else change
            )
            args, kwargs = tree_map(partial(_change_value, change), (call.args, call.kwargs))
            pairs = zip(tensors_in((args, kwargs)), tensors_in((call.args, call.kwargs)), strict=True)
            if why == "small sizes" or any(a.stride() != b.stride() or not torch.equal(a, b) for a, b in pairs):
                yield replace(call, args=args, kwargs=kwargs, why=f"{call.why or call.phase}, {why}")


Change = Callable[[Tensor], Tensor | None]  # None: a tensor that this change leaves as it is


def _change_value(change: Change, value: object) -> object:
    if not isinstance(value, Tensor):
        return value
    other_value = change(value)
    return value.clone() if other_value is None else other_value


def _with_gaps(x: Tensor, *, aligned: bool = False) -> Tensor | None:
    """The same numbers in memory with gaps, beginning inside it; statistics of rows are packed in every kernel.

    aligned    every row begins at a multiple of 16 bytes
    """
    if x.dim() == 0 or x.shape[-1] == 1 or not x.is_floating_point():
        return None
    return vary_layout(x, before=16, width=-(-x.shape[-1] // 16) * 16 + 32) if aligned else vary_layout(x)


def _first_index(x: Tensor) -> Tensor | None:
    """Indices that are all the first."""
    return torch.full_like(x, int(x.flatten()[0])) if _indices(x) else None


def _end_indices(x: Tensor) -> Tensor | None:
    """Indices that are the smallest or the largest."""
    if not _indices(x):
        return None
    return torch.where(torch.arange(x.numel()).reshape(x.shape) % 2 == 1, x.max(), x.min())


def _indices(x: Tensor) -> bool:
    return bool(x.dtype == torch.int64 and x.numel() > 1)


CHANGES: Mapping[str, Change] = {
    "small sizes": lambda _: None,
    "in memory with gaps": _with_gaps,
    "transposed in memory": lambda x: x.mT.contiguous().mT if x.dim() >= 2 and x.is_floating_point() else None,
    "eight times": lambda x: x * 8.0 if x.is_floating_point() else None,
    "a 4096th": lambda x: x * 2.0**-12 if x.is_floating_point() else None,
    "indices that meet": _first_index,
    "indices at their ends": _end_indices,
}
PROBE = "standing set"


def probe(call: OpCall, device: str, guard: Guard | None = None, within: str = f"{PROBE}: ") -> Watch:
    """What was seen of a call: its second run must be right as well."""
    watch = Watch(Modules(phase=call.phase, stack=[f"{within}{call.why}"]), guard)
    try:
        for _ in range(2):
            args, kwargs = tree_map(lambda x: there(x, device), (call.args, call.kwargs))
            with watch:
                call.op(*args, **kwargs)
            if call.optional:
                watch.wrong = [call for call in watch.wrong if call.verdict is not RAISED]
            if watch.wrong or watch.missing:
                break
    except (RuntimeError, NotImplementedError, TypeError, ValueError, IndexError):
        return watch  # the host cannot either, or the device has no such format: not wrong
    return watch


def there(value: object, device: str) -> object:
    """An argument of a call, on the device, with the strides and the offset that it has."""
    return torch.device(device) if value is HERE else on_device(value, device)
