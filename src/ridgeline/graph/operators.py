"""Operators that a user declares: from the shapes of tensors to flops, bytes and what the backward needs of them.

    [operator.sink_attention]                     # of a TOML file
    inputs  = { q = ["B", "H", "S", "D"], k = ["B", "K", "S", "D"], v = ["B", "K", "S", "D"] }
    outputs = { o = ["B", "H", "S", "D"] }
    flops   = "2 * B * H * S * (S + 1) * D"       # of a forward, products alone
    saved   = "B * H * S * (D + 2)"               # elements that the backward reads again
    sharding = { tp = "H", dp = "B" }             # which letter each axis of the mesh divides
    like    = "attention"                         # what sets its rate in a model
    kernel  = "mine.py:sink_attention"            # optional: who runs it; named, never loaded here

A letter is a size: it is bound by the shapes that an op of a graph has, or given by name. Bytes are those of all inputs
and outputs once, where no expression says otherwise. Expressions are arithmetic (`core.arithmetic`): nothing is run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field, replace
from math import prod
from pathlib import Path
from typing import Literal, TypeVar

from ridgeline.core.arithmetic import evaluate, names_in
from ridgeline.core.errors import InputError, Problem, not_among
from ridgeline.core.files import read_table
from ridgeline.core.records import dataclass
from ridgeline.core.table import decode
from ridgeline.hardware.chip import Chip
from ridgeline.ir.op_graph import GraphOp, OpGraph, format_bytes

BACKWARD = 2.0  # flops of a backward for one of a forward, where nobody says: both operands of every product
AXES = ("tp", "cp", "dp", "ep")
_Declared = TypeVar("_Declared", bound=Callable[..., object])
Shapes = Mapping[str, tuple[str, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    """A declared operator.

    inputs, outputs   tensors by name, each with a letter for every dim
    flops, bytes, saved   expressions over the letters; saved in elements of the format
    backward_flops   of the backward; twice the forward's where it is empty
    sharding   the letter that an axis of the mesh divides
    like       what sets its rate in a model: flash attention of as many flops, or a scan outside the matrix unit
    kernel     who runs it, as `module:function`
    """

    name: str
    inputs: Shapes
    outputs: Shapes
    flops: str = "0"
    bytes: str = ""
    saved: str = "0"
    backward_flops: str = ""
    dtype: str = "bf16"
    sharding: Mapping[str, str] = field(default_factory=dict)
    like: Literal["attention", "scan"] = "scan"
    kernel: str = ""

    @property
    def letters(self) -> tuple[str, ...]:
        """Its sizes."""
        shapes = (*self.inputs.values(), *self.outputs.values())
        return tuple(dict.fromkeys(letter for shape in shapes for letter in shape))

    def problems(self) -> Iterable[Problem]:
        """What is wrong with it: letters that no shape has, axes that no mesh has."""
        for key in ("flops", "bytes", "saved", "backward_flops"):
            for word in names_in(getattr(self, key)):
                if word not in self.letters:
                    yield not_among(f"operator.{self.name}.{key}", word, self.letters)
        for axis, letter in self.sharding.items():
            if axis not in AXES:
                yield not_among(f"operator.{self.name}.sharding", axis, AXES)
            if letter not in self.letters:
                yield not_among(f"operator.{self.name}.sharding.{axis}", letter, self.letters)


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorWork:
    """What one run of an operator does at given sizes: flops, bytes, bytes saved for the backward."""

    flops: float
    backward_flops: float
    bytes: float
    saved_bytes: float


OPERATORS: dict[str, Operator] = {}
"""Operators that this process declared with the decorator, by name."""


def declare_operator(operator: Operator) -> Callable[[_Declared], _Declared]:
    """A decorator: the function under it runs the operator, and graphs of this process know it."""

    def declare(function: _Declared) -> _Declared:
        refuse_wrong(operator)
        module, name = getattr(function, "__module__", ""), getattr(function, "__qualname__", "")
        OPERATORS[operator.name] = replace(operator, kernel=operator.kernel or f"{module}:{name}")
        return function

    return declare


def refuse_wrong(operator: Operator) -> None:
    """Refuse an operator with all that is wrong with it."""
    if problems := tuple(operator.problems()):
        raise InputError(problems)


def read_operators(path: Path) -> tuple[Operator, ...]:
    """The operators of a TOML file."""
    table = read_table(path)
    rows = table.data.get("operator")
    if not isinstance(rows, dict) or not rows:
        raise InputError(
            Problem(path="operator", given="no operator", expected="[operator.NAME] tables", where=table.source)
        )
    operators = [decode(Operator, {"name": name, **dict(row)}, f"operator.{name}") for name, row in rows.items()]
    for operator in operators:
        refuse_wrong(operator)
    return tuple(operators)


def operator_work(
    operator: Operator, sizes: Mapping[str, float], shards: Mapping[str, int] | None = None
) -> OperatorWork:
    """Flops and bytes of one run on one rank; `shards` are degrees of the mesh's axes.

    >>> gate = Operator(name="gate", inputs={"x": ("T", "W")}, outputs={"y": ("T", "W")}, sharding={"tp": "W"})
    >>> operator_work(gate, {"T": 8, "W": 64}).bytes, operator_work(gate, {"T": 8, "W": 64}, {"tp": 4}).bytes
    (2048.0, 512.0)
    """
    local_sizes = dict(sizes)
    for axis, degree in (shards or {}).items():
        if (letter := operator.sharding.get(axis)) is not None:
            local_sizes[letter] = local_sizes[letter] / degree
    missing = [letter for letter in operator.letters if letter not in local_sizes]
    if missing:
        expected_text = ", ".join(operator.letters)
        raise InputError(Problem(path=f"operator.{operator.name}", given=f"no {missing[0]}", expected=expected_text))
    element = format_bytes(operator.dtype)
    path = f"operator.{operator.name}"
    flops = evaluate(operator.flops, local_sizes, f"{path}.flops")
    shapes: Sequence[tuple[str, ...]] = (*operator.inputs.values(), *operator.outputs.values())
    moved_bytes = sum(prod(local_sizes[letter] for letter in shape) for shape in shapes) * element
    back = operator.backward_flops
    return OperatorWork(
        flops=flops, backward_flops=evaluate(back, local_sizes, f"{path}.backward_flops") if back else BACKWARD * flops,
        bytes=evaluate(operator.bytes, local_sizes, f"{path}.bytes") if operator.bytes else moved_bytes,
        saved_bytes=evaluate(operator.saved, local_sizes, f"{path}.saved") * element,
    )  # fmt: skip


def operator_seconds(operator: Operator, sizes: Mapping[str, float], chip: Chip) -> tuple[float, str]:
    """The least seconds of a forward on a chip, and which roof sets them.

    max(flops / peak, bytes / memory)
    """
    from ridgeline.core.dtype import dtype

    work = operator_work(operator, sizes)
    compute = work.flops / chip.peak_flops_per_s(dtype(operator.dtype)).value
    memory = work.bytes / chip.need("hbm.bandwidth").value
    return (compute, "compute") if compute > memory else (memory, "memory")


def apply_operators(graph: OpGraph, operators: Iterable[Operator]) -> OpGraph:
    """The graph with figures for ops that are declared; an op whose shapes do not fit stays unknown, and is named."""
    table = {**OPERATORS, **{operator.name: operator for operator in operators}}
    notes: list[str] = []
    ops = [_with_figures(graph, op, table, notes) for op in graph.ops]
    return OpGraph(
        name=graph.name, source=graph.source, tensors=graph.tensors, ops=tuple(ops), layers=graph.layers,
        fusions=graph.fusions, notes=(*graph.notes, *dict.fromkeys(notes)),
    )  # fmt: skip


def _with_figures(graph: OpGraph, op: GraphOp, table: Mapping[str, Operator], notes: list[str]) -> GraphOp:
    word = op.name.replace("@", " ").replace("::", ".").replace(" ", ".").rsplit(".", 1)[-1]
    operator = table.get(word)
    if operator is None:
        return op
    sizes = _bind(graph, op, operator)
    if sizes is None:
        notes.append(f"{op.name} has other shapes than operator {operator.name} declares: it stays unknown")
        return op
    work = operator_work(operator, sizes)
    written = sum(graph.tensors[tensor].bytes for tensor in op.outputs)
    notes.append(f"{op.name} is operator {operator.name}, as declared")
    return replace(
        op, kind="custom", flops=work.flops, bytes_written=min(written, work.bytes),
        bytes_read=max(work.bytes - written, 0.0),
    )  # fmt: skip


def _bind(graph: OpGraph, op: GraphOp, operator: Operator) -> dict[str, float] | None:
    """Sizes of the letters by the shapes of an op's tensors; None where they contradict each other."""
    sizes: dict[str, float] = {}
    pairs = [
        *zip(operator.inputs.values(), op.inputs, strict=False),
        *zip(operator.outputs.values(), op.outputs, strict=False),
    ]
    if len(op.inputs) < len(operator.inputs) or len(op.outputs) < len(operator.outputs):
        return None
    for letters, tensor in pairs:
        shape = graph.tensors[tensor].shape
        if len(shape) != len(letters):
            return None
        for letter, size in zip(letters, shape, strict=True):
            if sizes.setdefault(letter, float(size)) != size:
                return None
    return sizes
