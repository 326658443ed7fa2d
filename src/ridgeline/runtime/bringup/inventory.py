"""What a training step asks of a device, what the device lacks, and how fast each op is beside what is possible.

    inventory_of(watch, device)     every op x format x shape x stride that a watch saw, with its calls
    look_around(session)            the same step on the host beside it, formats, graph breaks
    time_ops(session)               a larger step, every op timed: a sanity check, no verdict

Layers repeat: one of each kind is captured, and counted as often as the model has it. Missing ops raised; ops that fall
back ran on the host (the dispatcher has no kernel for them, or the backend warned); decomposed ones are one kernel on
the host and several on the device; synchronising ones make the host wait.

    slow          under 30 % of the roof, and not for want of work
    impossible    over 100 %: fewer bits than asked for, work left out, or a result that was kept
    launch bound  an op that takes no longer than one that does nothing; runs of such ops are stretches

Each signature is called again and again where it first appears in the step; calls of the step are then counted.
"""

from __future__ import annotations

import re
import statistics
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload

from ridgeline.core.dtype import TORCH_TYPES
from ridgeline.hardware.load import chip
from ridgeline.ir.kernel import PRODUCT_OPERANDS, Kernel, attention_kernel, product_kernel, stream_kernel
from ridgeline.runtime.bringup import devices, fake_device
from ridgeline.runtime.bringup.arithmetic import Args, Kwargs, clone_tensors, dtype_name, tensors_in
from ridgeline.runtime.bringup.capture import Called, Modules, OpPlace, Watch
from ridgeline.runtime.bringup.contracts import is_view
from ridgeline.runtime.bringup.devices import OpMode, environment, likely_chip
from ridgeline.runtime.bringup.findings import (
    Inventory,
    OpSpeed,
    Rates,
    Remark,
    SignatureRow,
    Speed,
    Stretch,
    join_inventories,
    rates_of,
    remarks,
)
from ridgeline.runtime.bringup.guard import host_result
from ridgeline.runtime.bringup.repro import Session
from ridgeline.runtime.bringup.subject import Subject, adamw, stage_subject, subject_of
from ridgeline.runtime.bringup.target import OwnModule, one_of_each

WARNED = re.compile(r"operator '?(?P<op>\w+::\w+(?:\.\w+)?)'?.*?(?:fall(?:s|ing)? ?back|CPU fallback)", re.IGNORECASE)
FORMATS = (
    "float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "int64", "int8",
    "bool",
)  # fmt: skip


class OpRecorder(OpMode):
    """The ops of each module and phase in order, nothing judged."""

    def __init__(self, modules: Modules) -> None:
        super().__init__()
        self.modules = modules
        self.ops: dict[OpPlace, list[str]] = {}

    def see(self, func: OpOverload, args: Args, kwargs: Kwargs) -> object:
        self.ops.setdefault(self.modules.place(args), []).append(str(func))
        return func(*args, **kwargs)


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
    key = None if kind == fake_device.NAME else devices.dispatch_key(kind)
    for call in called:
        if devices.schema_name(call.op) in warned_ops:
            yield _remark(call, "the backend warned that it runs on the host")
        elif key is not None and devices.kernel_of(call.op, key) == "fallback":
            yield _remark(call, f"no kernel at {key}: the backend's fallback")


def _composite(called: Sequence[Called], kind: str) -> Iterator[Remark]:
    """Ops that torch composes of others on the device, and that are one kernel on the host."""
    key = None if kind in ("cpu", fake_device.NAME) else devices.dispatch_key(kind)
    for call in called:
        if key is not None and devices.kernel_of(call.op, key) == "composite" and devices.on_the_host(call.op):
            yield _remark(call, f"no kernel at {key}: torch composes it of others")


def decomposed_ops(rows: Iterable[SignatureRow], host: Mapping[OpPlace, list[str]]) -> tuple[Remark, ...]:
    """Ops that are one kernel in the host's step and several in the device's, at the same module and phase."""
    there: dict[tuple[str, str], dict[str, None]] = {}
    for row in rows:
        there.setdefault((row.module, row.phase), {})[row.op] = None
    remarks_ = []
    for place, ops in host.items():
        ours = there.get((place.module, place.phase), {})
        other_ops = [op for op in ours if op not in ops and not _moves(op)]
        parts_text = "into " + ", ".join(op.removeprefix("aten.").removesuffix(".default") for op in other_ops[:6])
        remarks_ += [
            Remark(op=op, module=place.module, phase=place.phase, calls=ops.count(op), detail=parts_text)
            for op in dict.fromkeys(ops)
            if op not in ours and other_ops and not _moves(op) and _splits(op, other_ops)
        ]
    return remarks(remarks_)


def _splits(op: str, beside: Sequence[str]) -> bool:
    """Whether an op of the host became those of the device: it can be composed, or it is fused attention."""
    if "scaled_dot_product" in op:
        return not any("scaled_dot_product" in op_name for op_name in beside)
    return any(devices.has_kernel(devices.schema_name(op), key) for key in devices.COMPOSITE)


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


def graph_breaks(module: torch.nn.Module, inputs: Args, named: Mapping[str, object]) -> tuple[str, ...] | None:
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


TIMED_TOKENS = {"cpu": (1, 128), fake_device.NAME: (1, 32)}  # the host is slow, and the fake device is the host
TIMED = (4, 2048)
TIMED_FORMAT = "bf16"


@contextmanager
def collect_warnings() -> Iterator[list[str]]:
    """The texts of warnings that are given inside."""
    messages: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            yield messages
        finally:
            messages += [str(warning.message) for warning in caught]


def step_under(mode: OpMode, modules: Modules, subject: Subject) -> None:
    """A training step, forward to optimizer, under a mode that sees its ops."""
    optimizer = adamw(subject)
    with ExitStack() as stack:
        stack.callback(modules.follow(subject.module))
        stack.enter_context(mode)
        modules.phase = "forward"
        outputs = subject.forward()
        modules.phase = "loss"
        loss = subject.loss(outputs)
        loss.backward()
        modules.phase = "optimizer"
        optimizer.step()


def add_inventory(session: Session, watch: Watch, messages: Iterable[str] = ()) -> None:
    """What a watch saw, into the run's inventory."""
    session.found.inventory = join_inventories(session.found.inventory, inventory_of(watch, session.device, messages))


def look_around(session: Session) -> None:
    """What the device does otherwise than the host, and what it cannot do at all."""
    session.tell("what the device lacks")
    inventory = session.found.inventory
    session.found.environment = environment(session.device)
    split = decomposed_ops(inventory.rows, host_ops(session)) if session.device.partition(":")[0] != "cpu" else ()
    absent = [
        Remark(op=op, module="standing set", phase="", calls=times)
        for op, times in session.found.missing.items()
        if all(op != remark.op for remark in inventory.missing)
        and "_for_cpu" not in op  # what only a host is asked for
    ]
    inventory = replace(inventory, missing=(*inventory.missing, *absent))
    inventory = replace(
        inventory, decomposed=remarks((*inventory.decomposed, *split)), unsupported=unsupported_formats(session.device)
    )
    if session.graph_breaks:
        subject = subject_of(session.target, "fp32", "cpu", session.seed)
        inventory = replace(inventory, graph_breaks=graph_breaks(subject.module, subject.inputs, subject.named))
    session.found.inventory = inventory


def host_ops(session: Session) -> Mapping[OpPlace, list[str]]:
    """The ops of the same step on the host, by place."""
    modules = Modules()
    recorder = OpRecorder(modules)
    step_under(recorder, modules, subject_of(session.target, "fp32", "cpu", session.seed))
    return recorder.ops


def time_ops(session: Session) -> None:
    """A step of one layer of each kind, every op timed; a device with a fault is not."""
    if session.fault is not None:
        return
    session.tell("how fast each op is")
    rates = session.rates
    likely = likely_chip(session.device) if rates is None else None
    if likely is not None:
        rates = rates_of(chip(likely))
    tokens = TIMED_TOKENS.get(session.device.partition(":")[0], TIMED)
    if isinstance(session.target, OwnModule):
        subject, tokens = subject_of(session.target, TIMED_FORMAT, session.device, session.seed), (0, 0)
    else:
        small = one_of_each(session.target)
        subject = stage_subject(small, TIMED_FORMAT, session.device, session.seed, tokens=tokens)
    modules = Modules()
    timer = Timer(modules, session.device)
    step_under(timer, modules, subject)
    session.found.speed = speed_of(timer, session.device, rates, tokens, TIMED_FORMAT)


SLOW, POSSIBLE = 0.3, 1.0
TRUST = 1.05  # of a roof: clocks of hosts and devices agree no better
LAUNCH, SMALL = 2.0, 10.0  # times an op that does nothing: no longer is launch bound; where the work is next to nothing
ROUNDS, ROUND_S, MOST_CALLS = 3, 4e-3, 50
CACHES = 4.0  # times a cache: larger work comes from memory
VIEWS = frozenset(("aten._unsafe_view.default", "aten._reshape_alias.default", "aten.lift_fresh.default"))
STRETCH = 4  # launch-bound ops in a row that are worth naming
# ops that move rows of a table, not the table; ops that only write
PICKED = frozenset(("embedding", "gather", "index", "index_select", "nll_loss_forward"))
FILLED = frozenset((
    "nll_loss_backward", "zeros_like", "ones_like", "full_like", "zero_", "fill_", "empty_like", "zeros", "ones",
    "full",
))  # fmt: skip


Timed = tuple[str, tuple[object, ...]]  # an op with formats, shapes and strides


class Timer(OpMode):
    """Times each signature where it first appears, and keeps the order of calls."""

    def __init__(self, modules: Modules, device: str) -> None:
        super().__init__()
        self.modules = modules
        self.wait = waiting(device)
        self.rounds = (
            1 if device.partition(":")[0] == fake_device.NAME else ROUNDS
        )  # the fake device's times mean nothing
        self.seen: dict[Timed, tuple[OpSpeed, Kernel]] = {}
        self.order: list[tuple[Timed, OpPlace]] = []

    def see(self, func: OpOverload, args: Args, kwargs: Kwargs) -> object:
        place = self.modules.place(args)
        if is_view(func) or str(func) in VIEWS:
            return func(*args, **kwargs)
        tensors = tensors_in((args, kwargs))
        key = str(func), tuple((x.dtype, tuple(x.shape), x.stride()) for x in tensors)
        if key in self.seen:
            result = func(*args, **kwargs)
        else:
            copies = clone_tensors((args, kwargs)) if func._schema.is_mutable else (args, kwargs)
            try:
                result = func(*args, **kwargs)
            except NotImplementedError:  # missing, as the inventory says: the step goes on without a time
                return host_result(func, args, kwargs)
            seconds, relative_spread = time_call(lambda: func(*copies[0], **copies[1]), self.wait, self.rounds)
            kernel, shapes = call_kernel(func, args, kwargs, result), tuple(tuple(x.shape) for x in tensors)
            self.seen[key] = OpSpeed(
                op=str(func), dtype=_dtype(tensors, result), shapes=shapes, module=place.module, phase=place.phase,
                calls=0, seconds=seconds, spread=relative_spread, flops=float(kernel.flops), bytes=kernel.bytes,
            ), kernel  # fmt: skip
        self.order.append((key, place))
        return result


def waiting(device: str) -> Callable[[], None]:
    """What waits for everything that was enqueued on a device; a host is never ahead."""
    kind = device.partition(":")[0]
    module = None if kind == "cpu" else torch.get_device_module(kind)
    wait = getattr(module, "synchronize", None)
    return wait if wait is not None else lambda: None


def time_call(call: Callable[[], object], wait: Callable[[], None], rounds: int = ROUNDS) -> tuple[float, float]:
    """Seconds of a call, the median of rounds, and the rounds' range over it."""
    call()
    wait()
    once = _elapsed_seconds(call, wait, 1)
    if rounds == 1:
        return once, 0.0
    calls = max(1, min(int(ROUND_S / once), MOST_CALLS))
    timings = [_elapsed_seconds(call, wait, calls) for _ in range(rounds)]
    middle = statistics.median(timings)
    return middle, (max(timings) - min(timings)) / middle


def _elapsed_seconds(call: Callable[[], object], wait: Callable[[], None], calls: int) -> float:
    begin = time.perf_counter()
    for _ in range(calls):
        call()
    wait()
    return max(time.perf_counter() - begin, 1e-7) / calls


def speed_of(timer: Timer, device: str, rates: Rates | None, tokens: tuple[int, int], dtype: str) -> Speed:
    """What a timed step comes to."""
    x = torch.ones(1, device=device)
    with torch.no_grad():
        nothing, _ = time_call(lambda: torch.ops.aten.add.Tensor(x, x), timer.wait)
    calls = Counter(key for key, _ in timer.order)
    op_speeds = {
        key: replace(_judge_speed(speed, kernel, rates, nothing), calls=calls[key])
        for key, (speed, kernel) in timer.seen.items()
    }
    by_time = sorted(op_speeds.values(), key=lambda one: -one.seconds * one.calls)
    return Speed(
        device=device, rates=rates, tokens=tokens, dtype=dtype, nothing_s=nothing, ops=tuple(by_time),
        stretches=tuple(_stretches(timer, op_speeds)),
    )  # fmt: skip


def _judge_speed(speed: OpSpeed, kernel: Kernel, rates: Rates | None, nothing: float) -> OpSpeed:
    best = seconds_at_best(kernel, rates) if rates is not None else None
    roof, bound = best if best is not None else (None, "")
    share = None if roof is None else roof / speed.seconds
    fits_cache = rates is not None and kernel.bytes < CACHES * rates.cache_bytes
    hard = bound == "compute" or not fits_cache  # a cache may beat memory's roof
    small = roof is not None and roof < nothing  # the work is less than the way to it
    if speed.seconds <= (SMALL if small else LAUNCH) * nothing:
        bound = "launch"
    elif bound == "memory" and fits_cache:
        bound = "cache"
    flag = ""
    if share is not None and share > POSSIBLE * TRUST and hard:
        flag = "impossible"
    elif share is not None and share < SLOW and bound != "launch":
        flag = "slow"
    return replace(speed, bound=bound, roof_s=roof, share=share, flag=flag)


def _stretches(timer: Timer, made: Mapping[Timed, OpSpeed]) -> Iterator[Stretch]:
    """Runs of launch-bound ops of one phase, the longest time first."""
    stretches: list[Stretch] = []
    run: list[tuple[Timed, OpPlace]] = []

    def close() -> None:
        if len(run) >= STRETCH:
            seconds = sum(made[key].seconds for key, _ in run)
            first, last = run[0][1], run[-1][1]
            stretches.append(
                Stretch(begin=first.module, end=last.module, phase=first.phase, ops=len(run), seconds=seconds)
            )
        run.clear()

    for key, place in timer.order:
        if made[key].bound != "launch" or (run and run[-1][1].phase != place.phase):
            close()
        if made[key].bound == "launch":
            run.append((key, place))
    close()
    yield from sorted(stretches, key=lambda one: -one.seconds)


def _dtype(tensors: list[Tensor], result: object) -> str:
    return next((dtype_name(x) for x in [*tensors, *tensors_in(result)] if x.is_floating_point()), "")


def call_kernel(func: OpOverload, args: Args, kwargs: Kwargs, result: object) -> Kernel:
    """The kernel of one call; tensors that are both argument and result count twice, as they are read and written."""
    name = str(func._schema.name).removeprefix("aten::").partition(".")[0]
    inputs = tensors_in((args, kwargs))
    written = sum(_bytes(x) for x in tensors_in(result))
    traffic_bytes = sum(_bytes(x) for x in inputs) + written
    if name in PICKED:  # rows, not the table
        traffic_bytes = 2 * written
    elif name in FILLED:
        traffic_bytes = written
    first = next((x for x in inputs if x.is_floating_point()), inputs[0] if inputs else None)
    dtype = TORCH_TYPES.get("" if first is None else dtype_name(first), ("", 0))[0]
    if dtype == "fp32" and torch.get_float32_matmul_precision() != "highest":
        dtype = "tf32"
    return _matrix_kernel(name, args, kwargs, (dtype, float(traffic_bytes))) or stream_kernel(
        float(traffic_bytes), dtype
    )


def _bytes(x: Tensor) -> int:
    """Memory that is touched: an expanded dim is read once."""
    touched_bytes = int(x.element_size())
    for size, stride in zip(x.shape, x.stride(), strict=True):
        touched_bytes *= int(size) if stride else 1
    return touched_bytes


def _matrix_kernel(name: str, args: Args, kwargs: Kwargs, traffic: tuple[str, float]) -> Kernel | None:
    """A product or an attention by the shapes of its operands; None for every other op. traffic = format, bytes."""
    if name in PRODUCT_OPERANDS:
        a, b = (args[at] for at in PRODUCT_OPERANDS[name])
        return product_kernel(a.shape, b.shape, *traffic)
    if "scaled_dot_product" not in name or "math" in name:
        return None
    backward = name.endswith("backward")
    q, k, v = args[1:4] if backward else args[:3]
    causal = bool(kwargs.get("is_causal", any(a is True for a in args)))
    lengths, widths = (q.shape[-2], k.shape[-2]), (q.shape[-1], v.shape[-1])
    dtype, traffic_bytes = traffic
    return attention_kernel(
        q.shape[0] * q.shape[1], lengths, widths, dtype, causal=causal, backward=backward, moved=traffic_bytes
    )


def seconds_at_best(kernel: Kernel, rates: Rates) -> tuple[float, str] | None:
    """The roof and what it is: compute or memory; None where the rates do not say."""
    return kernel.roof(rates.flops_per_s.get(kernel.dtype), rates.bytes_per_s)
