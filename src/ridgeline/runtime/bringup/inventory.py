"""What a training step asks of a device: every op x format x shape x stride with its calls, and what the device lacks.

    inventory_of(watches, device, repeats=..., host=..., warned=...)

Layers repeat: one of each kind is captured and counted as often as the model has it. Missing ops raised; ops that fall
back ran on the host (the dispatcher has no kernel for them, or the backend warned); decomposed ones are one kernel on
the host and several on the device; synchronising ones make the host wait.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from ridgeline.models.spec import ModelSpec
from ridgeline.runtime.bringup import dispatcher, ridge
from ridgeline.runtime.bringup.capture import Called, Modules, Place, Watch

WARNED = re.compile(r"operator '?(?P<op>\w+::\w+(?:\.\w+)?)'?.*?(?:fall(?:s|ing)? ?back|CPU fallback)", re.IGNORECASE)
FORMATS = (
    "float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "int64", "int8",
    "bool",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class SignatureRow:
    """One op with the formats, shapes and strides of its tensors.

    module, phase   where it was called first
    calls           in the captured steps; model_calls: in as many layers as the model has
    """

    op: str
    dtypes: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    strides: tuple[tuple[int, ...], ...]
    module: str
    phase: str
    calls: int
    model_calls: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Remark:
    """An op that the device runs otherwise than by a kernel of its own; `detail` says how."""

    op: str
    module: str
    phase: str
    calls: int
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Inventory:
    """All of it.

    unsupported    formats with what the device cannot do in them: hold, add, multiply
    graph_breaks   places where a compiler would leave its graph, with why; None where nobody looked
    """

    rows: tuple[SignatureRow, ...] = ()
    missing: tuple[Remark, ...] = ()
    fallback: tuple[Remark, ...] = ()
    decomposed: tuple[Remark, ...] = ()
    synchronising: tuple[Remark, ...] = ()
    unsupported: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    graph_breaks: tuple[str, ...] | None = None

    @property
    def phases(self) -> dict[str, int]:
        """Calls of the whole model by phase; the loss apart from the forward that it belongs to."""
        found: dict[str, int] = {}
        for row in self.rows:
            phase = "loss" if row.module == "loss" and row.phase == "forward" else row.phase
            found[phase] = found.get(phase, 0) + row.model_calls
        return found


def repeats_of(model: ModelSpec) -> dict[str, int]:
    """How often the model has each layer that is captured, by its path."""
    kinds = list(dict.fromkeys(model.order))
    return {f"layers.{index}": model.order.count(kind) for index, kind in enumerate(kinds)}


def times(module: str, repeats: Mapping[str, int]) -> int:
    """How often the model has the module of a captured one.

    >>> times("layers.0.mixer.query", {"layers.0": 16}), times("head", {"layers.0": 16})
    (16, 1)
    """
    return repeats.get(".".join(module.split(".")[:2]), 1)


class Recorder(TorchDispatchMode):  # type: ignore[misc]
    """The ops of each module and phase in order, nothing judged."""

    def __init__(self, modules: Modules) -> None:
        super().__init__()
        self.modules = modules
        self.ops: dict[Place, list[str]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.ops.setdefault(self.modules.place(args), []).append(str(func))
        return func(*args, **(kwargs or {}))


def inventory_of(
    watches: Sequence[Watch], device: str, *, repeats: Mapping[str, int], host: Mapping[Place, list[str]] | None = None,
    warned: Iterable[str] = (), absent: Iterable[tuple[str, Place]] = (),
) -> Inventory:  # fmt: skip
    """What the steps of some watches called.

    host     ops of the same step on the host by place, where it was run there; warned: messages of the backend
    absent   ops of the standing set that the device lacks
    """
    kind = device.partition(":")[0]
    called = [one for watch in watches for one in watch.calls.values() if one.kind == kind]
    lacking = {op for watch in watches for op in getattr(watch, "missing", ())}
    missing = [(one.op, one.place, one.count, "") for one in called if one.op in lacking]
    missing += [(op, place, 1, "of the standing set") for op, place in absent]
    return Inventory(
        rows=tuple(_row(one, repeats) for one in called),
        missing=_remarks(missing),
        fallback=_fallbacks(called, kind, tuple(warned), lacking),
        decomposed=_decomposed(called, kind, host or {}),
        synchronising=_remarks((one.op, one.place, one.count, _why(one)) for one in called if one.waits),
        unsupported=unsupported(device),
    )


def _row(one: Called, repeats: Mapping[str, int]) -> SignatureRow:
    tensors = [x for x in one.described if isinstance(x, tuple) and len(x) == 4 and isinstance(x[1], tuple)]
    return SignatureRow(
        op=one.op, dtypes=tuple(x[0] for x in tensors), shapes=tuple(x[1] for x in tensors),
        strides=tuple(x[2] for x in tensors), module=one.place.module, phase=one.place.phase, calls=one.count,
        model_calls=sum(count * times(place.module, repeats) for place, count in one.places.items()),
    )  # fmt: skip


def _remarks(found: Iterable[tuple[str, Place, int, str]]) -> tuple[Remark, ...]:
    """One for each op: where it was first, and how often in all."""
    first: dict[str, tuple[Place, str]] = {}
    counts: dict[str, int] = {}
    for op, place, count, detail in found:
        first.setdefault(op, (place, detail))
        counts[op] = counts.get(op, 0) + count
    return tuple(
        Remark(op=op, module=place.module, phase=place.phase, calls=counts[op], detail=detail)
        for op, (place, detail) in first.items()
    )


def _why(one: Called) -> str:
    name = one.op.split(".")[1]
    if name in ("_to_copy", "copy_"):
        return "a copy to the host"
    return "a mask becomes indices" if name.startswith(("index", "_index")) else "a number or a shape is read back"


def _fallbacks(called: Sequence[Called], kind: str, warned: Iterable[str], lacking: set[str]) -> tuple[Remark, ...]:
    """Ops without a kernel on the device that ran all the same, and those of which the backend said so."""
    said = {found["op"] for found in map(WARNED.search, warned) if found}
    key = None if kind == ridge.NAME else dispatcher.key_of(kind)
    found = []
    for one in called:
        if one.op in lacking:
            continue
        if dispatcher.schema_name(one.op) in said:
            found.append((one.op, one.place, one.count, "the backend warned that it runs on the host"))
        elif key is not None and dispatcher.kernel_of(one.op, key) == "fallback":
            found.append((one.op, one.place, one.count, f"no kernel at {key}: the backend's fallback"))
    return _remarks(found)


def _decomposed(called: Sequence[Called], kind: str, host: Mapping[Place, list[str]]) -> tuple[Remark, ...]:
    """Ops that are one kernel on the host, and several of the device."""
    there: dict[Place, dict[str, None]] = {}
    for one in called:
        for place in one.places:
            there.setdefault(place, {})[one.op] = None
    found = []
    for place, ops in host.items():
        ours = there.get(place)
        if ours is None:
            continue
        beside = [op for op in ours if op not in ops and not _moves(op)]
        found += [
            (op, place, ops.count(op), "into " + ", ".join(beside[:6]))
            for op in dict.fromkeys(ops)
            if op not in ours and beside and _splits(op, beside)
        ]
    key = None if kind in ("cpu", ridge.NAME) else dispatcher.key_of(kind)
    found += [
        (one.op, one.place, one.count, f"no kernel at {key}: torch composes it of others")
        for one in called
        if key is not None and dispatcher.kernel_of(one.op, key) == "composite" and dispatcher.on_the_host(one.op)
    ]
    return _remarks(found)


def _splits(op: str, beside: Sequence[str]) -> bool:
    """Whether an op of the host became those of the device: it can be composed, or it is fused attention."""
    if "scaled_dot_product" in op:
        return not any("scaled_dot_product" in other for other in beside)
    return any(dispatcher.has_kernel(dispatcher.schema_name(op), key) for key in dispatcher.COMPOSITE)


def _moves(op: str) -> bool:
    """Whether an op only looks at memory in another way."""
    return op.split(".")[1] in ("view", "_unsafe_view", "expand", "t", "transpose", "detach", "alias", "permute")


def unsupported(device: str) -> dict[str, tuple[str, ...]]:
    """What the device cannot do in a format where the host can hold it: hold, add, multiply."""
    found: dict[str, tuple[str, ...]] = {}
    for name in FORMATS:
        dtype = getattr(torch, name, None)
        if dtype is None:
            continue
        lacks = []
        try:
            x = torch.ones(16, 16).to(dtype).to(device)
        except (RuntimeError, NotImplementedError, TypeError):
            found[name] = ("hold",)
            continue
        small = dtype.itemsize == 1 and dtype.is_floating_point  # 8-bit formats are multiplied with scales, not added
        for action, call in (("add", lambda x: x + x), ("multiply", lambda x: x @ x)):
            try:
                if not (dtype == torch.bool or small):
                    call(x)
            except (RuntimeError, NotImplementedError, TypeError):
                lacks.append(action)
        if lacks:
            found[name] = tuple(lacks)
    return found


def graph_breaks(module: torch.nn.Module, inputs: tuple[Any, ...]) -> tuple[str, ...] | None:
    """Where dynamo leaves its graph in a forward, with why; None where dynamo does not work here."""
    try:
        import torch._dynamo as dynamo

        told = dynamo.explain(module)(*inputs)
        return tuple(_broken(one) for one in told.break_reasons)
    except Exception:  # whatever a compiler says of a machine without one
        return None


def _broken(reason: Any) -> str:
    frame = reason.user_stack[-1] if getattr(reason, "user_stack", None) else None
    where = f"{frame.filename.rpartition('/')[2]}:{frame.lineno}: " if frame is not None else ""
    return where + str(reason.reason).partition("\n")[0][:200]
