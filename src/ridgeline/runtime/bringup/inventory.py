"""What a training step asks of a device: every op x format x shape x stride with its calls, and what the device lacks.

    inventory_of(watch, device)     of the ops that a watch saw
    decomposed(rows, host)          of the same step on the host
    unsupported(device)             formats that the device cannot hold, add or multiply

Layers repeat: one of each kind is captured, and counted as often as the model has it. Missing ops raised; ops that fall
back ran on the host (the dispatcher has no kernel for them, or the backend warned); decomposed ones are one kernel on
the host and several on the device; synchronising ones make the host wait.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from ridgeline.runtime.bringup import dispatcher, ridge
from ridgeline.runtime.bringup.capture import Called, Modules, Place, Watch
from ridgeline.runtime.bringup.observations import Inventory, Remark, SignatureRow, remarks

WARNED = re.compile(r"operator '?(?P<op>\w+::\w+(?:\.\w+)?)'?.*?(?:fall(?:s|ing)? ?back|CPU fallback)", re.IGNORECASE)
FORMATS = (
    "float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "int64", "int8",
    "bool",
)  # fmt: skip


class Recorder(TorchDispatchMode):  # type: ignore[misc]
    """The ops of each module and phase in order, nothing judged."""

    def __init__(self, modules: Modules) -> None:
        super().__init__()
        self.modules = modules
        self.ops: dict[Place, list[str]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.ops.setdefault(self.modules.place(args), []).append(str(func))
        return func(*args, **(kwargs or {}))


def inventory_of(watch: Watch, device: str, warned: Iterable[str] = ()) -> Inventory:
    """What the step of a watch called; `warned` are messages that the backend gave meanwhile."""
    kind = device.partition(":")[0]
    calls = [call for call in watch.calls.values() if call.kind == kind]
    return Inventory(
        rows=tuple(_row(call) for call in calls),
        missing=remarks(_remark(call) for call in calls if call.op in watch.missing),
        fallback=remarks(_fallbacks([call for call in calls if call.op not in watch.missing], kind, tuple(warned))),
        decomposed=remarks(_composite(calls, kind)),
        synchronising=remarks(_remark(call, _why(call)) for call in calls if call.waits),
    )


def _row(one: Called) -> SignatureRow:
    tensors = [x for x in one.described if isinstance(x, tuple) and len(x) == 4 and isinstance(x[1], tuple)]
    return SignatureRow(
        op=one.op, dtypes=tuple(x[0] for x in tensors), shapes=tuple(x[1] for x in tensors),
        strides=tuple(x[2] for x in tensors), module=one.place.module, phase=one.place.phase, calls=one.captured,
        model_calls=one.count,
    )  # fmt: skip


def _remark(one: Called, detail: str = "") -> Remark:
    return Remark(op=one.op, module=one.place.module, phase=one.place.phase, calls=one.count, detail=detail)


def _why(one: Called) -> str:
    name = one.op.split(".")[1]
    if name in ("_to_copy", "copy_"):
        return "a copy to the host"
    return "a mask becomes indices" if name.startswith(("index", "_index")) else "a number or a shape is read back"


def _fallbacks(called: Sequence[Called], kind: str, warned: Iterable[str]) -> Iterator[Remark]:
    """Ops without a kernel on the device that ran all the same, and those of which the backend said so."""
    warned_ops = {match["op"] for match in map(WARNED.search, warned) if match}
    key = None if kind == ridge.NAME else dispatcher.key_of(kind)
    for call in called:
        if dispatcher.schema_name(call.op) in warned_ops:
            yield _remark(call, "the backend warned that it runs on the host")
        elif key is not None and dispatcher.kernel_of(call.op, key) == "fallback":
            yield _remark(call, f"no kernel at {key}: the backend's fallback")


def _composite(called: Sequence[Called], kind: str) -> Iterator[Remark]:
    """Ops that torch composes of others on the device, and that are one kernel on the host."""
    key = None if kind in ("cpu", ridge.NAME) else dispatcher.key_of(kind)
    for call in called:
        if key is not None and dispatcher.kernel_of(call.op, key) == "composite" and dispatcher.on_the_host(call.op):
            yield _remark(call, f"no kernel at {key}: torch composes it of others")


def decomposed_ops(rows: Iterable[SignatureRow], host: Mapping[Place, list[str]]) -> tuple[Remark, ...]:
    """Ops that are one kernel in the host's step and several in the device's, at the same module and phase."""
    there: dict[tuple[str, str], dict[str, None]] = {}
    for row in rows:
        there.setdefault((row.module, row.phase), {})[row.op] = None
    remarks_ = []
    for place, ops in host.items():
        ours = there.get((place.module, place.phase), {})
        other_ops = [op for op in ours if op not in ops and not _moves(op)]
        remarks_ += [
            Remark(op=op, module=place.module, phase=place.phase, calls=ops.count(op), detail=_into(other_ops))
            for op in dict.fromkeys(ops)
            if op not in ours and other_ops and not _moves(op) and _splits(op, other_ops)
        ]
    return remarks(remarks_)


def _into(ops: Sequence[str]) -> str:
    return "into " + ", ".join(op.removeprefix("aten.").removesuffix(".default") for op in ops[:6])


def _splits(op: str, beside: Sequence[str]) -> bool:
    """Whether an op of the host became those of the device: it can be composed, or it is fused attention."""
    if "scaled_dot_product" in op:
        return not any("scaled_dot_product" in op_name for op_name in beside)
    return any(dispatcher.has_kernel(dispatcher.schema_name(op), key) for key in dispatcher.COMPOSITE)


def _moves(op: str) -> bool:
    """Whether an op only looks at memory in another way."""
    return op.split(".")[1] in ("view", "_unsafe_view", "expand", "t", "transpose", "detach", "alias", "permute")


def unsupported_formats(device: str) -> dict[str, tuple[str, ...]]:
    """What the device cannot do in a format where the host can hold it: hold, add, multiply."""
    formats: dict[str, tuple[str, ...]] = {}
    for name in FORMATS:
        dtype = getattr(torch, name, None)
        if dtype is None:
            continue
        lacks = []
        try:
            x = torch.ones(16, 16).to(dtype).to(device)
        except (RuntimeError, NotImplementedError, TypeError):
            formats[name] = ("hold",)
            continue
        small = dtype.itemsize == 1 and dtype.is_floating_point  # 8-bit formats are multiplied with scales, not added
        actions = () if dtype == torch.bool else (("multiply", _scaled_product),) if small else ACTIONS
        for action, call in actions:
            try:
                call(x, x)
            except (RuntimeError, NotImplementedError, TypeError):
                lacks.append(action)
        if lacks:
            formats[name] = tuple(lacks)
    return formats


def _scaled_product(x: Tensor, y: Tensor) -> Tensor:
    """A product in 8 bits: e5m2 is multiplied by e4m3, as gradients by weights."""
    y = torch.ones(16, 16).to(torch.float8_e4m3fn).to(x.device) if x.dtype == torch.float8_e5m2 else y
    unit_scale = torch.ones(()).to(x.device)
    return torch._scaled_mm(x, y.t(), scale_a=unit_scale, scale_b=unit_scale, out_dtype=torch.bfloat16)


ACTIONS: tuple[tuple[str, Callable[[Tensor, Tensor], Tensor]], ...] = (("add", torch.add), ("multiply", torch.mm))


def graph_breaks(module: torch.nn.Module, inputs: tuple[Any, ...], named: Mapping[str, Any]) -> tuple[str, ...] | None:
    """Where dynamo leaves its graph in a forward, with why; None where dynamo does not work here."""
    try:
        import torch._dynamo as dynamo

        explanation = dynamo.explain(module)(*inputs, **named)
        return tuple(_broken(break_reason) for break_reason in explanation.break_reasons)
    except Exception:  # whatever a compiler says of a machine without one
        return None


def _broken(reason: Any) -> str:
    frame = reason.user_stack[-1] if getattr(reason, "user_stack", None) else None
    where = f"{frame.filename.rpartition('/')[2]}:{frame.lineno}: " if frame is not None else ""
    return where + str(reason.reason).partition("\n")[0][:200]
