"""Judge every call of a dump: by its contract where tensors were dumped, else by what its statistics may be.

    bringup_msprobe(folder)       findings with API, module and phase, and how each call was judged

An API is several ops. Each runs as its contract's program in fp64, with noise where it may round; what one op hands to
the next may be stored in the tensors' format. The exact run and the draws judge the dumped outputs as they judge an
op's: see `judge`. A stranger's name calls nothing that is not in the lists of FUNCTIONS.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.nn import functional
from torch.utils._pytree import tree_leaves, tree_map

from ridgeline.core.waits import ProgressCallback, ignore_progress
from ridgeline.runtime.bringup.arithmetic import (
    RIGHT,
    UNIT,
    Args,
    Draw,
    HostCall,
    Kwargs,
    OpVerdict,
    Outputs,
    clone_tensors,
    tensors_in,
    worse,
)
from ridgeline.runtime.bringup.contracts import contract_of, has_contract, is_view, outputs_of
from ridgeline.runtime.bringup.devices import OpMode
from ridgeline.runtime.bringup.findings import JudgedFindings, OpFinding
from ridgeline.runtime.bringup.judge import DRAWS, judge_output, widen_value
from ridgeline.runtime.bringup.msprobe.dump import ApiCall, Dump, TensorNote, UnreadableError, read_dumps, read_tensor
from ridgeline.runtime.bringup.msprobe.statistics import judge_statistics


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedDump(JudgedFindings):
    """What a folder of msprobe holds.

    replayed         calls that their contract judged; by_statistics: calls of which only figures were judged
    unjudged         APIs that nothing judged, with how often they were called
    unreadable       why tensors were not used, with how often
    """

    folder: str
    framework: str
    tasks: tuple[str, ...]
    dumps: int
    calls: int
    findings: tuple[OpFinding, ...]
    replayed: int
    by_statistics: int
    unjudged: dict[str, int]
    unreadable: dict[str, int]

    JSON = """
        kind='bringup-msprobe' folder framework tasks dumps calls verdict findings replayed by_statistics unjudged
        unreadable
    """


@dataclass(slots=True)
class _Ledger:
    replayed: int = 0
    by_statistics: int = 0
    unjudged: Counter[str] = field(default_factory=Counter)
    unreadable: Counter[str] = field(default_factory=Counter)


def bringup_msprobe(folder: Path, progress: ProgressCallback = ignore_progress) -> ImportedDump:
    """Judge what another machine dumped."""
    dumps = read_dumps(folder)
    ledger = _Ledger()
    wrong: list[tuple[ApiCall, str, OpVerdict]] = []
    for done, dump in enumerate(dumps):
        what = f"{dump.label or folder.name}: {len(dump.calls)} calls of {dump.framework} at level {dump.level}"
        progress(done, len(dumps), what, f"{len(wrong)} wrong" if done else "")
        wrong += _judge(dump, ledger, f"{dump.label}: " if len(dumps) > 1 else "")
    return ImportedDump(
        folder=str(folder), framework=dumps[0].framework, tasks=tuple(dict.fromkeys(dump.task for dump in dumps)),
        dumps=len(dumps), calls=sum(len(dump.calls) for dump in dumps), findings=tuple(_findings(wrong)),
        replayed=ledger.replayed, by_statistics=ledger.by_statistics, unjudged=dict(ledger.unjudged),
        unreadable=dict(ledger.unreadable),
    )  # fmt: skip


def _judge(dump: Dump, ledger: _Ledger, prefix: str) -> Iterator[tuple[ApiCall, str, OpVerdict]]:
    forwards = {(call.api, call.index): call for call in dump.calls if call.phase == "forward"}
    for call in dump.calls:
        verdict = _replay_call(call, forwards.get((call.api, call.index)), ledger)
        if verdict is not None:
            ledger.replayed += 1
        else:
            verdict = judge_statistics(call)
            if verdict is None:
                ledger.unjudged[call.api] += 1
                continue
            ledger.by_statistics += 1
        if not verdict.right:
            yield call, prefix + call.module, verdict


def _replay_call(call: ApiCall, forward: ApiCall | None, ledger: _Ledger) -> OpVerdict | None:
    """The contract's verdict; None where the call cannot be replayed."""
    if forward is None or not replayable(call) or not replayable(forward):
        return None
    try:
        return replay_forward(call) if call.phase == "forward" else replay_backward(call, forward)
    except UnreadableError as error:
        ledger.unreadable[str(error)] += 1
    except (RuntimeError, TypeError, ValueError, IndexError, NotImplementedError, KeyError, AttributeError) as error:
        ledger.unreadable[f"{call.api} does not take what was dumped: {type(error).__name__}"] += 1
    return None


def _findings(wrong: list[tuple[ApiCall, str, OpVerdict]]) -> Iterator[OpFinding]:
    """One for each API, phase and format: where it was first, and how often."""
    first: dict[tuple[str, str, str], tuple[str, OpVerdict]] = {}
    times: Counter[tuple[str, str, str]] = Counter()
    for call, module, verdict in wrong:
        form = next((note.dtype for note in call.outputs if isinstance(note, TensorNote)), "")
        key = call.api, call.phase, form
        first.setdefault(key, (module, verdict))
        times[key] += 1
    for (api, phase, form), (module, verdict) in first.items():
        yield OpFinding(
            op=api, module=module, phase=phase, dtype=form, statistic=verdict.statistic, measured=verdict.measured,
            limit=verdict.limit, times=times[api, phase, form],
        )  # fmt: skip


LARGEST = 1 << 22  # elements of a tensor that is replayed


class Rounding(OpMode):
    """Every op as its contract's program with one draw; what an op takes from another one may have been stored."""

    def __init__(self, draw: Draw) -> None:
        super().__init__()
        self.draw = draw
        self.made: dict[int, Tensor] = {}  # results of ops, held so that their identities stay theirs

    def see(self, func: OpOverload, args: Args, kwargs: Kwargs) -> object:
        if self.draw.source is not None and not is_view(func) and not func._schema.is_mutable:
            args, kwargs = tree_map(self._move_value, (args, kwargs))
        result = func(*args, **kwargs)
        if self.draw.source is not None and has_contract(func) and not func._schema.is_mutable:
            drawn = contract_of(func)(self.draw, func, args, kwargs)
            for old, new in zip(outputs_of(func, args, kwargs, result), drawn, strict=False):
                if isinstance(old, Tensor) and isinstance(new, Tensor) and old.is_floating_point():
                    old.copy_(new.reshape(old.shape))
        self.made |= {id(x): x for x in tree_leaves(result) if isinstance(x, Tensor)}
        return result

    def _move_value(self, value: object) -> object:
        if isinstance(value, Tensor) and value.is_floating_point() and id(value) in self.made:
            return self.draw.store_value(value)
        return value


def replayable(call: ApiCall) -> bool:
    """Whether an API is known and all its tensors are there and small enough."""
    notes = [x for x in tree_leaves((call.args, dict(call.kwargs), call.outputs)) if isinstance(x, TensorNote)]
    is_known = call.api in FUNCTIONS or call.api in CASTS
    return is_known and bool(notes) and all(note.file is not None and 0 <= note.size <= LARGEST for note in notes)


def replay_forward(call: ApiCall) -> OpVerdict:
    """A forward call against its contract; `UnreadableError` where its tensors cannot be had."""
    args, kwargs, outputs = _load_tensors(call)
    if call.api in CASTS:
        exact = widen_value(args[0])
        return _worst([outputs[0]], [exact], [[exact]] * DRAWS) if outputs else RIGHT
    return _judge_call(call, args, kwargs, outputs, None)


def replay_backward(call: ApiCall, forward: ApiCall) -> OpVerdict:
    """A backward call against the vector-Jacobian product of its forward."""
    args, kwargs, _ = _load_tensors(forward)
    come, _, went = _load_tensors(call)
    return _judge_call(forward, args, kwargs, went, [x for x in come if isinstance(x, Tensor)])


def _load_tensors(call: ApiCall) -> tuple[Args, Kwargs, Outputs]:
    """Arguments and outputs with their values."""

    def value(x: object) -> object:
        if isinstance(x, TensorNote):
            return read_tensor(x)
        if isinstance(x, str) and x.startswith("torch."):
            return getattr(torch, x.removeprefix("torch."), x)
        return x

    args, kwargs, outputs = tree_map(value, (call.args, dict(call.kwargs), call.outputs))
    return tuple(args), kwargs, list(outputs)


def _judge_call(call: ApiCall, args: Args, kwargs: Kwargs, got: Outputs, come: list[Tensor] | None) -> OpVerdict:
    """Dumped results against exact ones and draws; of several readings of a dump the one that fits is meant."""
    form = next((x.dtype for x in got if isinstance(x, Tensor) and x.is_floating_point()), torch.float32)
    form = form if form in UNIT else torch.float32
    tensors = [x for x in got if isinstance(x, Tensor)]
    runs = []
    for source in [None, *(torch.Generator().manual_seed(k) for k in range(DRAWS))]:
        wide_inputs = tree_map(widen_value, clone_tensors((args, kwargs)))
        with Rounding(Draw(source=source, format=form)):
            runs.append(_outputs(call, wide_inputs) if come is None else _gradients(call, wide_inputs, come, tensors))
    worst = RIGHT
    for exact, *draws in zip(*runs, strict=True):
        worst = _worst(tensors[: len(exact)], exact, draws)
        if worst.right:
            return worst
    return worst


def _outputs(call: ApiCall, own: HostCall) -> list[list[Tensor]]:
    return [tensors_in(FUNCTIONS[call.api](*own[0], **own[1]))]


def _gradients(call: ApiCall, own: HostCall, come: list[Tensor], got: list[Tensor]) -> list[list[Tensor]]:
    """Gradients as msprobe may mean them: of every input that wants one, or of the last of several ops."""
    notes = [x for x in tree_leaves((call.args, dict(call.kwargs))) if isinstance(x, TensorNote)]
    tensors = tensors_in(own)
    leaves = [
        x.requires_grad_() for x, note in zip(tensors, notes, strict=True) if note.wants_grad and x.is_floating_point()
    ]
    y = FUNCTIONS[call.api](*own[0], **own[1])
    y = y[0] if isinstance(y, tuple) else y
    if not leaves or y.grad_fn is None or not come or come[0].shape != y.shape:
        raise UnreadableError("its gradients do not fit its outputs")
    last: Outputs = []
    y.grad_fn.register_hook(lambda grads, _given: last.extend(grads))
    gradients = torch.autograd.grad(y, leaves, widen_value(come[0]), allow_unused=True)
    shapes = [x.shape for x in got]
    readings = [[x for x in grads if isinstance(x, Tensor)] for grads in (gradients, last)]
    fitting = [reading for reading in readings if [x.shape for x in reading] == shapes]
    if not fitting:
        raise UnreadableError("its gradients are of other inputs")
    return fitting


def _worst(got: Outputs, exact: Outputs, draws: list[Outputs]) -> OpVerdict:
    worst = RIGHT
    for index, output in enumerate(got):
        worst = worse(worst, judge_output(output, exact[index].detach(), [draw[index].detach() for draw in draws]))
    return worst


Function = Callable[..., Any]  # of torch: whatever a dump names
FUNCTIONAL = (
    "linear", "embedding", "layer_norm", "rms_norm", "softmax", "log_softmax", "silu", "gelu", "relu", "sigmoid",
    "tanh", "softplus", "leaky_relu", "elu", "mish", "cross_entropy", "nll_loss", "mse_loss",
    "scaled_dot_product_attention", "logsigmoid", "hardtanh", "group_norm", "normalize", "glu",
)  # fmt: skip
TORCH = (
    "matmul", "mm", "bmm", "addmm", "baddbmm", "add", "sub", "mul", "div", "true_divide", "exp", "exp2", "expm1", "log",
    "log2", "log1p", "sqrt", "rsqrt", "square", "pow", "sum", "mean", "softmax", "log_softmax", "cat", "stack", "where",
    "outer", "sin", "cos", "sigmoid", "tanh", "relu", "abs", "neg", "cumsum", "gather", "index_select", "clamp", "tril",
    "triu", "masked_fill", "rsub", "reciprocal", "erf", "maximum", "minimum", "amax", "amin", "layer_norm", "rms_norm",
    "einsum", "logsumexp", "scatter_add", "index_add", "embedding", "lerp", "addcmul", "addcdiv", "var", "norm",
)  # fmt: skip
TENSOR = (
    *TORCH[:-1], "norm", "__add__", "__radd__", "__iadd__", "__sub__", "__rsub__", "__isub__", "__mul__", "__rmul__",
    "__imul__", "__truediv__", "__rtruediv__", "__itruediv__", "__matmul__", "__pow__", "__neg__", "add_", "sub_",
    "mul_", "div_", "neg_", "exp_", "sqrt_", "masked_fill_", "clamp_", "silu_", "contiguous", "clone",
)  # fmt: skip
CASTS = frozenset(f"Tensor.{name}" for name in ("float", "half", "bfloat16", "double", "to", "type", "type_as"))


def _rms_norm(x: Tensor, gamma: Tensor, epsilon: float = 1e-6) -> tuple[Tensor, Tensor]:
    """torch_npu.npu_rms_norm: the rows over their root mean square, times gamma, and the reciprocal root."""
    reciprocal = (x.square().mean(-1, keepdim=True) + epsilon).rsqrt()
    return x * reciprocal * gamma, reciprocal


def _swiglu(x: Tensor, dim: int = -1) -> Tensor:
    """torch_npu.npu_swiglu: silu of the first half times the second."""
    gate, up = x.chunk(2, dim)
    return functional.silu(gate) * up


def _rotary(x: Tensor, cosines: Tensor, sines: Tensor, rotary_mode: str = "half") -> Tensor:
    """torch_npu.npu_rotary_mul: x cos + turned(x) sin, halves or neighbours turned."""
    if rotary_mode == "half":
        first, second = x.chunk(2, -1)
        rotated_half = torch.cat((-second, first), -1)
    else:
        rotated_half = torch.stack((-x[..., 1::2], x[..., ::2]), -1).flatten(-2)
    return x * cosines + rotated_half * sines


def _functions_by_name() -> dict[str, Function]:
    functions: dict[str, Function] = {}
    for prefix, owner, names in (
        ("Functional", functional, FUNCTIONAL), ("Torch", torch, TORCH), ("Tensor", Tensor, TENSOR),
    ):  # fmt: skip
        functions |= {f"{prefix}.{name}": getattr(owner, name) for name in names if hasattr(owner, name)}
    functions |= {"NPU.npu_rms_norm": _rms_norm, "NPU.npu_swiglu": _swiglu, "NPU.npu_rotary_mul": _rotary}
    return functions


FUNCTIONS: Mapping[str, Function] = MappingProxyType(_functions_by_name())
