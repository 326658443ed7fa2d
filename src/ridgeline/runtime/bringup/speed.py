"""Time every op of a training step on the device and hold it against what is possible: a sanity check, no verdict.

    slow          under 30 % of the roof, and not for want of work
    impossible    over 100 %: fewer bits than asked for, work left out, or a result that was kept
    launch bound  an op that takes no longer than one that does nothing; runs of such ops are stretches

Each signature is called again and again where it first appears in the step; calls of the step are then counted.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from ridgeline.core.dtype import TORCH_TYPES
from ridgeline.ir.kernel import PRODUCT_OPERANDS, Kernel, attention_kernel, product_kernel, stream_kernel
from ridgeline.runtime.bringup import ridge
from ridgeline.runtime.bringup.capture import Modules, Place
from ridgeline.runtime.bringup.contracts import is_view
from ridgeline.runtime.bringup.guard import host_result
from ridgeline.runtime.bringup.observations import OpSpeed, Rates, Speed, Stretch

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


@dataclass(slots=True)
class _Seen:
    func: Any
    place: Place
    dtype: str
    shapes: tuple[tuple[int, ...], ...]
    kernel: Kernel
    seconds: float
    spread: float
    calls: int = 0


class Timer(TorchDispatchMode):  # type: ignore[misc]
    """Times each signature where it first appears, and keeps the order of calls."""

    def __init__(self, modules: Modules, device: str) -> None:
        super().__init__()
        self.modules = modules
        self.wait = waiting(device)
        self.rounds = 1 if device.partition(":")[0] == ridge.NAME else ROUNDS  # the fake device's times mean nothing
        self.seen: dict[Any, _Seen] = {}
        self.order: list[tuple[Any, Place]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        place = self.modules.place(args)
        if is_view(func) or str(func) in VIEWS:
            return func(*args, **kwargs)
        tensors = [x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
        key = str(func), tuple((x.dtype, tuple(x.shape), x.stride()) for x in tensors)
        if key in self.seen:
            result = func(*args, **kwargs)
        else:
            copies = tree_map(_copy_value, (args, kwargs)) if func._schema.is_mutable else (args, kwargs)
            try:
                result = func(*args, **kwargs)
            except NotImplementedError:  # missing, as the inventory says: the step goes on without a time
                return host_result(func, args, kwargs)
            seconds, relative_spread = time_call(lambda: func(*copies[0], **copies[1]), self.wait, self.rounds)
            self.seen[key] = _Seen(
                func=func, place=place, dtype=_dtype(tensors, result), shapes=tuple(tuple(x.shape) for x in tensors),
                kernel=call_kernel(func, args, kwargs, result), seconds=seconds, spread=relative_spread,
            )  # fmt: skip
        self.seen[key].calls += 1
        self.order.append((key, place))
        return result


def waiting(device: str) -> Callable[[], None]:
    """What waits for everything that was enqueued on a device; a host is never ahead."""
    kind = device.partition(":")[0]
    module = None if kind == "cpu" else torch.get_device_module(kind)
    wait = getattr(module, "synchronize", None)
    return wait if wait is not None else lambda: None


def time_call(call: Callable[[], Any], wait: Callable[[], None], rounds: int = ROUNDS) -> tuple[float, float]:
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


def _elapsed_seconds(call: Callable[[], Any], wait: Callable[[], None], calls: int) -> float:
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
    op_speeds = {key: _op_speed(observation, rates, nothing) for key, observation in timer.seen.items()}
    by_time = sorted(op_speeds.values(), key=lambda one: -one.seconds * one.calls)
    return Speed(
        device=device, rates=rates, tokens=tokens, dtype=dtype, nothing_s=nothing, ops=tuple(by_time),
        stretches=tuple(_stretches(timer, op_speeds)),
    )  # fmt: skip


def _op_speed(one: _Seen, rates: Rates | None, nothing: float) -> OpSpeed:
    best = seconds_at_best(one.kernel, rates) if rates is not None else None
    roof, bound = best if best is not None else (None, "")
    share = None if roof is None else roof / one.seconds
    fits_cache = rates is not None and one.kernel.bytes < CACHES * rates.cache_bytes
    hard = bound == "compute" or not fits_cache  # a cache may beat memory's roof
    small = roof is not None and roof < nothing  # the work is less than the way to it
    if one.seconds <= (SMALL if small else LAUNCH) * nothing:
        bound = "launch"
    elif bound == "memory" and fits_cache:
        bound = "cache"
    flag = ""
    if share is not None and share > POSSIBLE * TRUST and hard:
        flag = "impossible"
    elif share is not None and share < SLOW and bound != "launch":
        flag = "slow"
    return OpSpeed(
        op=str(one.func), dtype=one.dtype, shapes=one.shapes, module=one.place.module, phase=one.place.phase,
        calls=one.calls, seconds=one.seconds, spread=one.spread, flops=float(one.kernel.flops), bytes=one.kernel.bytes,
        bound=bound, roof_s=roof, share=share, flag=flag,
    )  # fmt: skip


def _stretches(timer: Timer, made: Mapping[Any, OpSpeed]) -> Iterator[Stretch]:
    """Runs of launch-bound ops of one phase, the longest time first."""
    stretches: list[Stretch] = []
    run: list[tuple[Any, Place]] = []

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


def _dtype(tensors: list[Tensor], result: Any) -> str:
    floats = [x for x in [*tensors, *tree_leaves(result)] if isinstance(x, Tensor) and x.is_floating_point()]
    return str(floats[0].dtype).removeprefix("torch.") if floats else ""


def _copy_value(value: Any) -> Any:
    return value.clone() if isinstance(value, Tensor) else value


def call_kernel(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> Kernel:
    """The kernel of one call; tensors that are both argument and result count twice, as they are read and written."""
    name = str(func._schema.name).removeprefix("aten::").partition(".")[0]
    inputs = [x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
    traffic_bytes = sum(_bytes(x) for x in inputs) + sum(
        _bytes(x) for x in tree_leaves(result) if isinstance(x, Tensor)
    )
    written = sum(_bytes(x) for x in tree_leaves(result) if isinstance(x, Tensor))
    if name in PICKED:  # rows, not the table
        traffic_bytes = 2 * written
    elif name in FILLED:
        traffic_bytes = written
    first = next((x for x in inputs if x.is_floating_point()), inputs[0] if inputs else None)
    form = "" if first is None else str(first.dtype).removeprefix("torch.")
    dtype = TORCH_TYPES.get(form, ("", 0))[0]
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


def _matrix_kernel(
    name: str, args: tuple[Any, ...], kwargs: dict[str, Any], traffic: tuple[str, float]
) -> Kernel | None:
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
