"""Judge a call of which only max, min, mean and norm were dumped: are they what the op can give at all?

    ends     a function that only rises maps the largest input to the largest output: both are known
    linear   means and norms of sums, scaled copies and casts follow from those of the inputs
    bounds   |a b| <= |a| |b| (Cauchy-Schwarz) for products; softmax lies in 0..1 and its rows sum to 1
    finite   finite inputs give finite outputs, but for ops that divide or fill

Allowed is what the outputs' format rounds, and what a mean in 32 bits is off by. This sees gross faults alone: dump
tensors (task "tensor") to have a contract judge them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType

from ridgeline.runtime.bringup.arithmetic import RIGHT, OpVerdict
from ridgeline.runtime.bringup.msprobe.dump import ApiCall, TensorNote

UNITS = {"float64": 2.0**-53, "float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}
SUMMED = 2.0**-20  # how far a mean or a norm in 32 bits may be off, of its scale
UNBOUNDED = frozenset((
    "masked_fill", "masked_fill_", "where", "log", "log2", "log1p", "div", "div_", "true_divide", "reciprocal", "rsqrt",
    "__truediv__", "__rtruediv__", "pow", "__pow__", "exp", "exp2", "expm1", "cat", "clamp", "log_softmax",
))  # fmt: skip

Checks = Iterator[tuple[str, float, float]]  # a statistic, what it is, what it may be


def last(api: str) -> str:
    """`linear` of `Functional.linear`."""
    return api.rpartition(".")[2]


def judge_statistics(call: ApiCall) -> OpVerdict | None:
    """A verdict; None where nothing is known of the op, or of its figures."""
    inputs = [x for x in _notes((call.args, tuple(call.kwargs.values()))) if _floats(x)]
    outputs = [x for x in _notes(call.outputs) if _floats(x)]
    if not outputs or not inputs:
        return None
    name, statistics, worst = last(call.api), 0, RIGHT
    checks = BACKWARD.get(name) if call.phase == "backward" else FORWARD.get(name)
    for statistic, measurement, limit in (
        *_finite(name, inputs, outputs),
        *(checks(call, inputs, outputs) if checks and _has_figures(inputs + outputs) else ()),
    ):
        statistics += 1
        beyond = measurement > limit or math.isnan(measurement)
        if beyond and (worst.right or measurement / limit > worst.measured / worst.limit):
            worst = OpVerdict(right=False, statistic=statistic, measured=measurement, limit=limit)
    return worst if statistics else None


def _notes(value: object) -> list[TensorNote]:
    if isinstance(value, TensorNote):
        return [value]
    return [x for part in value for x in _notes(part)] if isinstance(value, tuple | list) else []


def _floats(note: TensorNote) -> bool:
    return note.dtype in UNITS and note.size > 0 and len(note.figures) == 4


def _has_figures(notes: list[TensorNote]) -> bool:
    """Whether every figure is finite: bounds say nothing otherwise."""
    return all(math.isfinite(value) for note in notes for value in note.figures.values())


def _finite(name: str, inputs: list[TensorNote], outputs: list[TensorNote]) -> Checks:
    if name in UNBOUNDED or not _has_figures(inputs):
        return
    if all(max(abs(note.figures["Max"]), abs(note.figures["Min"])) < 1e15 for note in inputs):
        yield "nonfinite", float(not _has_figures(outputs)), 0.5


def _rms(note: TensorNote) -> float:
    return note.figures["Norm"] / math.sqrt(note.size)


def _peak(note: TensorNote) -> float:
    return max(abs(note.figures["Max"]), abs(note.figures["Min"]))


def _unit(*notes: TensorNote) -> float:
    return max(UNITS[note.dtype] for note in notes)


def _off(got: float, expected: float, allowed: float) -> float:
    """A difference in units of what is allowed."""
    return abs(got - expected) / max(allowed, 1e-37)


def _ends(function: Callable[[float], float], *, falls: bool = False) -> Callable[..., Checks]:
    """Of a function that only rises, or only falls."""

    def check(_call: ApiCall, inputs: list[TensorNote], outputs: list[TensorNote]) -> Checks:
        x, y = inputs[0].figures, outputs[0].figures
        for end, source in (("Max", "Min"), ("Min", "Max")) if falls else (("Max", "Max"), ("Min", "Min")):
            try:
                expected_value = function(x[source])
            except (ValueError, OverflowError, ZeroDivisionError):
                continue
            tolerance = 4 * _unit(outputs[0]) * max(abs(expected_value), 1e-30) + 2.0**-21 * abs(expected_value) + 1e-30
            yield end.lower(), _off(y[end], expected_value, tolerance), 1.0

    return check


def _rises_above(function: Callable[[float], float], least: float) -> Callable[..., Checks]:
    """Of a function that dips below zero and rises ever after: its largest value and the bottom of the dip."""

    def check(_call: ApiCall, inputs: list[TensorNote], outputs: list[TensorNote]) -> Checks:
        x, y, unit = inputs[0].figures, outputs[0].figures, _unit(outputs[0])
        if x["Max"] > 0:
            expected_value = function(x["Max"])
            yield "max", _off(y["Max"], expected_value, (8 * unit + 2.0**-20) * abs(expected_value) + 1e-30), 1.0
        yield "min", -y["Min"], least * (1 + 2 * unit) + 1e-6

    return check


def _softmax(call: ApiCall, _inputs: list[TensorNote], outputs: list[TensorNote]) -> Checks:
    y, unit = outputs[0].figures, _unit(outputs[0])
    dim = next((x for x in (*call.args[1:2], call.kwargs.get("dim")) if isinstance(x, int)), -1)
    shape = outputs[0].shape
    yield "max", y["Max"], 1 + unit
    yield "min", -y["Min"], 1e-30
    if shape and -len(shape) <= dim < len(shape):
        yield "mean", _off(y["Mean"] * shape[dim], 1.0, 4 * unit + SUMMED), 1.0


def _log_softmax(_call: ApiCall, _inputs: list[TensorNote], outputs: list[TensorNote]) -> Checks:
    yield "max", outputs[0].figures["Max"], 1e-6


def _product(_call: ApiCall, inputs: list[TensorNote], outputs: list[TensorNote]) -> Checks:
    """|a b + c| <= |a| |b| + |c|, in the largest element and in the norm."""
    if len(inputs) < 2:
        return
    (a, b), extra, y = inputs[:2], inputs[2:], outputs[0]
    bias = sum(_peak(note) for note in extra)
    spare = 1 + 2 * _unit(y) + SUMMED
    norm_product = a.figures["Norm"] * b.figures["Norm"]
    yield "max", _peak(y), (min(norm_product, a.shape[-1] * _peak(a) * _peak(b)) + bias) * spare + 1e-30
    yield "norm", y.figures["Norm"], (norm_product + bias * math.sqrt(y.size)) * spare + 1e-30


def _sum(sign: float) -> Callable[..., Checks]:
    def check(call: ApiCall, inputs: list[TensorNote], outputs: list[TensorNote]) -> Checks:
        y = outputs[0]
        alpha = call.kwargs.get("alpha", 1)
        factor = sign * (float(alpha) if isinstance(alpha, int | float) else math.nan)
        if len(inputs) == 2 and inputs[0].shape == inputs[1].shape == y.shape and math.isfinite(factor):
            a, b = inputs
            scale = _rms(a) + abs(factor) * _rms(b)
            unit = _unit(y, a, b)
            expected_mean = a.figures["Mean"] + factor * b.figures["Mean"]
            yield "mean", _off(y.figures["Mean"], expected_mean, (2 * unit + SUMMED) * scale), 1.0
            yield "norm", _rms(y), scale * (1 + 2 * unit + SUMMED) + 1e-30

    return check


def _scaled_mean(over: bool) -> Callable[..., Checks]:
    """Times a number, or over it; of two tensors only the bound."""

    def check(call: ApiCall, inputs: list[TensorNote], outputs: list[TensorNote]) -> Checks:
        y, unit = outputs[0], _unit(*inputs, outputs[0])
        numbers = [x for x in call.args if isinstance(x, int | float) and not isinstance(x, bool)]
        if len(inputs) == 1 and len(numbers) == 1 and numbers[0] and math.isfinite(numbers[0]):
            factor = 1 / numbers[0] if over else float(numbers[0])
            scale = abs(factor) * _rms(inputs[0])
            yield "mean", _off(y.figures["Mean"], factor * inputs[0].figures["Mean"], (4 * unit + SUMMED) * scale), 1.0
            yield "norm", _off(_rms(y), scale, (4 * unit + SUMMED) * scale), 1.0
        elif len(inputs) == 2 and not over:
            yield "max", _peak(y), _peak(inputs[0]) * _peak(inputs[1]) * (1 + 2 * unit) + 1e-30

    return check


def _same(_call: ApiCall, inputs: list[TensorNote], outputs: list[TensorNote]) -> Checks:
    """Casts and copies: the numbers are the same but for the format."""
    x, y = inputs[0], outputs[0]
    if x.size != y.size:
        return
    unit = _unit(x, y)
    for key in ("Max", "Min"):
        yield key.lower(), _off(y.figures[key], x.figures[key], (2 * unit) * max(abs(x.figures[key]), 1e-30)), 1.0
    yield "norm", _off(_rms(y), _rms(x), (2 * unit + SUMMED) * _rms(x)), 1.0


def _chosen(_call: ApiCall, inputs: list[TensorNote], outputs: list[TensorNote]) -> Checks:
    """Rows that are picked, or tensors put together: nothing larger comes out than went in."""
    yield "max", outputs[0].figures["Max"] - max(x.figures["Max"] for x in inputs), 1e-30
    yield "min", min(x.figures["Min"] for x in inputs) - outputs[0].figures["Min"], 1e-30


def _norm(_call: ApiCall, inputs: list[TensorNote], outputs: list[TensorNote]) -> Checks:
    """Rows of unit mean square times weights plus a bias."""
    x, y, unit = inputs[0], outputs[0], _unit(outputs[0])
    weight = _peak(inputs[1]) if len(inputs) > 1 else 1.0
    bias = sum(_peak(note) for note in inputs[2:])
    spare = 1 + 4 * unit + SUMMED
    yield "max", _peak(y), (math.sqrt(x.shape[-1]) * weight + bias) * spare
    yield "norm", _rms(y), (weight + bias) * spare


def _loss(_call: ApiCall, _inputs: list[TensorNote], outputs: list[TensorNote]) -> Checks:
    yield "min", -outputs[0].figures["Min"], 1e-6


def _passed_on(_call: ApiCall, inputs: list[TensorNote], outputs: list[TensorNote]) -> Checks:
    """Gradients that an addition hands on as they are."""
    for y in outputs:
        if y.shape == inputs[0].shape:
            scale = (2 * _unit(y, inputs[0]) + SUMMED) * _rms(inputs[0])
            yield "norm", _off(_rms(y), _rms(inputs[0]), scale), 1.0


def _at_most(slope: float) -> Callable[..., Checks]:
    """Gradients of a function whose slope is bounded."""

    def check(_call: ApiCall, inputs: list[TensorNote], outputs: list[TensorNote]) -> Checks:
        if outputs[0].shape == inputs[0].shape:
            spare = 1 + 4 * _unit(outputs[0]) + SUMMED
            yield "max", _peak(outputs[0]), slope * _peak(inputs[0]) * spare + 1e-30
            yield "norm", _rms(outputs[0]), slope * _rms(inputs[0]) * spare + 1e-30

    return check


def _sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x)) if x > -700 else 0.0


_ADD, _SUBTRACT, _MULTIPLY, _DIVIDE = _sum(1.0), _sum(-1.0), _scaled_mean(over=False), _scaled_mean(over=True)
FORWARD: Mapping[str, Callable[..., Checks]] = MappingProxyType(
    {
        "exp": _ends(math.exp), "sqrt": _ends(math.sqrt), "tanh": _ends(math.tanh), "sigmoid": _ends(_sigmoid),
        "log": _ends(math.log), "relu": _ends(lambda x: max(x, 0.0)), "neg": _ends(lambda x: -x, falls=True),
        "__neg__": _ends(lambda x: -x, falls=True), "rsqrt": _ends(lambda x: x**-0.5, falls=True),
        "silu": _rises_above(lambda x: x * _sigmoid(x), 0.27847),
        "gelu": _rises_above(lambda x: 0.5 * x * (1 + math.erf(x / math.sqrt(2))), 0.17005),
        "softmax": _softmax, "log_softmax": _log_softmax, "linear": _product, "matmul": _product,
        "__matmul__": _product, "mm": _product, "bmm": _product, "add": _ADD, "add_": _ADD, "__add__": _ADD,
        "__radd__": _ADD, "__iadd__": _ADD, "sub": _SUBTRACT, "sub_": _SUBTRACT, "__sub__": _SUBTRACT,
        "mul": _MULTIPLY, "mul_": _MULTIPLY, "__mul__": _MULTIPLY, "__rmul__": _MULTIPLY, "__imul__": _MULTIPLY,
        "div": _DIVIDE, "__truediv__": _DIVIDE,
        "true_divide": _DIVIDE, "float": _same, "half": _same, "bfloat16": _same, "to": _same, "contiguous": _same,
        "clone": _same, "embedding": _chosen, "index_select": _chosen, "gather": _chosen, "cat": _chosen,
        "stack": _chosen, "layer_norm": _norm, "rms_norm": _norm, "npu_rms_norm": _norm, "cross_entropy": _loss,
        "nll_loss": lambda *_: iter(()),
    }
)  # fmt: skip
BACKWARD: Mapping[str, Callable[..., Checks]] = MappingProxyType(
    {
        "add": _passed_on, "__add__": _passed_on, "__radd__": _passed_on, "silu": _at_most(1.0999),
        "relu": _at_most(1.0), "gelu": _at_most(1.1290), "tanh": _at_most(1.0), "sigmoid": _at_most(0.25),
    }
)  # fmt: skip
