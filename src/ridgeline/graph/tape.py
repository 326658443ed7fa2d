"""Build op graphs from tensor expressions, and their backward by the rules of PyTorch's autograd.

    tape = Tape("gate")
    x = tape.input((4096, 8192))
    y = tape.pointwise("silu", x)
    graph = tape.graph(y)                 forward and backward, op by op as eager PyTorch launches them

A rule says what the backward of an op launches: ops of the graph again, so that one list of prices does for both.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import prod
from types import MappingProxyType
from typing import NamedTuple

from ridgeline.ir.kernel import Kernel, product_kernel
from ridgeline.ir.op_graph import GraphOp, GraphTensor, OpGraph, OpKind, OpPhase, TensorRole, traffic

Shape = tuple[int, ...]
Grads = tuple[int, ...]
"""Gradients of an op's inputs, in their order; -1 where one needs none."""
NO_GRAD = -1
RESULT = "result"  # name of a tensor that whoever called asked for


class TapeOp(NamedTuple):
    """An op that ran, as its rule sees it."""

    rule: str
    inputs: tuple[int, ...]
    output: int
    side_outputs: tuple[int, ...] = ()


class Tape:
    """A graph under construction: tensors, ops, and what the backward has to undo."""

    def __init__(self, name: str, dtype: str = "bf16") -> None:
        self.name, self.dtype = name, dtype
        self.tensors: list[GraphTensor] = []
        self.ops: list[GraphOp] = []
        self.undo: list[TapeOp] = []
        self.phase: OpPhase = "forward"
        self.trained: set[int] = set()

    # -- tensors ------------------------------------------------------------------------------------------------------

    def tensor(self, shape: Shape, dtype: str = "", role: TensorRole = "activation", alias_of: int = -1) -> int:
        """A new tensor in the tape's format, or in the one that is named."""
        number = len(self.tensors)
        self.tensors.append(
            GraphTensor(id=number, shape=shape, dtype=dtype or self.dtype, role=role, alias_of=alias_of)
        )
        return number

    def input(self, shape: Shape, dtype: str = "", *, is_trained: bool = True, role: TensorRole = "input") -> int:
        """A tensor from outside; its gradient is asked for unless it needs none."""
        number = self.tensor(shape, dtype, role)
        if is_trained:
            self.trained.add(number)
        return number

    def shape(self, tensor: int) -> Shape:
        """Its sizes."""
        return self.tensors[tensor].shape

    # -- ops ----------------------------------------------------------------------------------------------------------

    def run(
        self, name: str, kind: OpKind, inputs: Sequence[int], outputs: Sequence[int], *, reads: Sequence[int] = (),
    ) -> int:  # fmt: skip
        """One op; `reads` where it does not read all of its inputs. The first output is the answer."""
        read = traffic(self.tensors[tensor] for tensor in (reads or inputs) if tensor >= 0)
        product = self._product(inputs) if kind == "product" else None
        self.ops.append(
            GraphOp(
                id=len(self.ops), name=f"aten.{name}", kind=kind, inputs=tuple(inputs), outputs=tuple(outputs),
                phase=self.phase, bytes_read=0.0 if kind in ("view", "create") else read,
                bytes_written=0.0 if kind == "view" else traffic(self.tensors[tensor] for tensor in outputs),
                kernel=product, flops=product.flops if product else 0.0,
            )
        )  # fmt: skip
        return outputs[0]

    def _product(self, inputs: Sequence[int]) -> Kernel | None:
        first, right = (self.tensors[tensor] for tensor in inputs[:2])
        return product_kernel(first.shape, right.shape, first.dtype, first.bytes + right.bytes)

    def pointwise(self, name: str, *inputs: int, dtype: str = "", rule: str = "") -> int:
        """An op of one kernel over the broadcast of its inputs."""
        shape = max((self.shape(tensor) for tensor in inputs), key=lambda sizes: (prod(sizes), len(sizes)))
        output = self.tensor(shape, dtype or self.tensors[inputs[0]].dtype)
        self.run(name, "pointwise", inputs, [output])
        return self._note(rule or name, inputs, output)

    def row_reduction(self, name: str, x: int, *, dtype: str = "") -> int:
        """A reduction over the last dim, which stays as 1."""
        output = self.tensor((*self.shape(x)[:-1], 1), dtype or self.tensors[x].dtype)
        self.run(name, "reduction", [x], [output])
        return self._note(name, [x], output)

    def view(self, name: str, x: int, shape: Shape) -> int:
        """Another shape of the same memory."""
        output = self.tensor(shape, self.tensors[x].dtype, alias_of=x)
        self.run(name, "view", [x], [output])
        return self._note(name, [x], output)

    def linear(self, x: int, outputs: int, *, has_bias: bool = False) -> int:
        """A product with a weight of its own."""
        rows, width = self.shape(x)
        weight = self.input((width, outputs), role="weight")
        bias = [self.input((outputs,), role="weight")] if has_bias else []
        output = self.tensor((rows, outputs))
        self.run("addmm" if has_bias else "mm", "product", [x, weight, *bias], [output])
        return self._note("linear", [x, weight, *bias], output)

    def atomic(
        self, name: str, kind: OpKind, inputs: Sequence[int], shape: Shape, *, dtype: str = "",
        side_outputs: Sequence[int] = (),
    ) -> int:  # fmt: skip
        """An op of a library in one kernel, with a rule of its name; `others` are what it writes beside its result."""
        output = self.tensor(shape, dtype)
        self.run(name, kind, inputs, [output, *side_outputs])
        return self._note(name, inputs, output, side_outputs)

    def _note(self, rule: str, inputs: Sequence[int], output: int, side_outputs: Sequence[int] = ()) -> int:
        if self.phase == "forward" and any(tensor in self.trained for tensor in inputs):
            self.undo.append(TapeOp(rule, tuple(inputs), output, tuple(side_outputs)))
            self.trained.add(output)
        return output

    # -- the graph ----------------------------------------------------------------------------------------------------

    def graph(self, *results: int) -> OpGraph:
        """Forward and backward, with the tensors that lie between them."""
        forward_ops = len(self.ops)
        grads: dict[int, int] = {}
        self.phase = "backward"
        for result in results:
            grads[result] = self.input(self.shape(result), self.tensors[result].dtype, is_trained=False)
        for entry in reversed(self.undo):
            grad = grads.get(entry.output, NO_GRAD)
            if grad >= 0:
                for tensor, part in zip(entry.inputs, RULES[entry.rule](self, entry, grad), strict=False):
                    if part >= 0 and tensor in self.trained:
                        grads[tensor] = self.pointwise("add", grads[tensor], part) if tensor in grads else part
        read = {tensor for op in self.ops[forward_ops:] for tensor in op.inputs}
        forward_tensors = {tensor for op in self.ops[:forward_ops] for tensor in op.outputs}
        saved_tensors, ends = read & forward_tensors, set(results)
        tensors = [
            replace(tensor, saved=tensor.id in saved_tensors, name=RESULT if tensor.id in ends else "")
            for tensor in self.tensors
        ]
        return OpGraph(name=self.name, source="table of regions", tensors=tuple(tensors), ops=tuple(self.ops))

    def sum_to(self, grad: int, shape: Shape) -> int:
        """A gradient summed over what was broadcast."""
        own_tensor = self.shape(grad)
        if prod(own_tensor) == prod(shape):
            return grad
        name = "sum" if len(shape) == len(own_tensor) and shape[-1] == 1 else "sum_rows"
        output = self.tensor(shape, self.tensors[grad].dtype)
        return self.run(name, "reduction", [grad], [output])

    def asks(self, tensor: int) -> bool:
        """Whether the gradient of a tensor is asked for."""
        return tensor in self.trained


Rule = Callable[[Tape, TapeOp, int], Grads]


def _mul(tape: Tape, op: TapeOp, grad: int) -> Grads:
    parts = []
    for own_tensor, other_input in (op.inputs, op.inputs[::-1]):
        part = tape.pointwise("mul", grad, other_input) if tape.asks(own_tensor) else NO_GRAD
        parts.append(tape.sum_to(part, tape.shape(own_tensor)) if part >= 0 else part)
    return tuple(parts)


def _add(tape: Tape, op: TapeOp, grad: int) -> Grads:
    return tuple(
        tape.sum_to(grad, tape.shape(own_tensor)) if tape.asks(own_tensor) else NO_GRAD for own_tensor in op.inputs
    )


def _cast(tape: Tape, op: TapeOp, grad: int) -> Grads:
    own_tensor = tape.tensors[op.inputs[0]].dtype
    return (tape.pointwise("_to_copy", grad, dtype=own_tensor) if own_tensor != tape.tensors[grad].dtype else grad,)


def _square(tape: Tape, op: TapeOp, grad: int) -> Grads:
    power = tape.pointwise("pow", op.inputs[0])
    return (tape.pointwise("mul", grad, tape.pointwise("mul", power)),)


def _mean(tape: Tape, op: TapeOp, grad: int) -> Grads:
    whole_grad = tape.view("expand", grad, tape.shape(op.inputs[0]))
    return (tape.pointwise("div", whole_grad),)


def _rsqrt(tape: Tape, op: TapeOp, grad: int) -> Grads:
    return (tape.pointwise("mul", tape.pointwise("mul", grad), tape.pointwise("pow", op.output)),)


def _through(name: str, reads_output: bool = False) -> Rule:
    """A backward in one kernel that reads the gradient and what the forward read, or wrote."""

    def rule(tape: Tape, op: TapeOp, grad: int) -> Grads:
        return (tape.pointwise(name, grad, op.output if reads_output else op.inputs[0]),)

    return rule


def _same(_tape: Tape, _op: TapeOp, grad: int) -> Grads:
    return (grad,)


def _scale_grad(tape: Tape, _op: TapeOp, grad: int) -> Grads:
    return (tape.pointwise("mul", grad),)


def _reshape_grad(tape: Tape, op: TapeOp, grad: int) -> Grads:
    return (tape.view("view", grad, tape.shape(op.inputs[0])),)


def _negate_grad(tape: Tape, _op: TapeOp, grad: int) -> Grads:
    return (tape.pointwise("neg", grad),)


def _slice(tape: Tape, op: TapeOp, grad: int) -> Grads:
    """Zeros of the whole, into which the gradient of the part is copied."""
    whole_grad = tape.tensor(tape.shape(op.inputs[0]), tape.tensors[grad].dtype)
    tape.run("zeros", "create", [], [whole_grad])
    tape.run(
        "copy_slice", "copy", [grad], [tape.tensor(tape.shape(grad), tape.tensors[grad].dtype, alias_of=whole_grad)]
    )
    return (whole_grad,)


def _cat(tape: Tape, op: TapeOp, grad: int) -> Grads:
    return tuple(tape.view("slice", grad, tape.shape(part)) for part in op.inputs)


def _linear(tape: Tape, op: TapeOp, grad: int) -> Grads:
    x, weight, *bias = op.inputs
    turned_pair = [tape.view("t", tensor, tape.shape(tensor)[::-1]) for tensor in (weight, x)]
    parts = [NO_GRAD, NO_GRAD]
    for place, (first, right, own_tensor) in enumerate(((grad, turned_pair[0], x), (turned_pair[1], grad, weight))):
        if tape.asks(own_tensor):
            parts[place] = tape.tensor(tape.shape(own_tensor), tape.tensors[own_tensor].dtype)
            tape.run("mm", "product", [first, right], [parts[place]])
    return (*parts, *(tape.sum_to(grad, tape.shape(own_tensor)) for own_tensor in bias))


def _norm(tape: Tape, op: TapeOp, grad: int) -> Grads:
    """Gradients of a norm that a library runs in one kernel: of its input by rows, of its weights over all rows."""
    x, *weights = op.inputs
    grad_x = tape.tensor(tape.shape(x))
    tape.run("norm_backward", "norm", [grad, x, *weights[:1], *op.side_outputs], [grad_x])
    grad_weights = [tape.tensor(tape.shape(weight)) for weight in weights]
    if grad_weights:
        tape.run("norm_backward_weights", "reduction", [grad, x, *op.side_outputs], grad_weights)
    return (grad_x, *grad_weights)


def _softmax(tape: Tape, op: TapeOp, grad: int) -> Grads:
    output = tape.tensor(tape.shape(op.inputs[0]), tape.tensors[op.output].dtype)
    return (tape.run("_softmax_backward_data", "softmax", [grad, op.output], [output]),)


def _log_softmax(tape: Tape, op: TapeOp, grad: int) -> Grads:
    output = tape.tensor(tape.shape(op.inputs[0]), tape.tensors[op.output].dtype)
    return (tape.run("_log_softmax_backward_data", "softmax", [grad, op.output], [output]),)


def _loss(tape: Tape, op: TapeOp, _grad: int) -> Grads:
    scores, targets = op.inputs
    whole_grad = tape.tensor(tape.shape(scores), tape.tensors[scores].dtype)
    tape.run("zeros", "create", [], [whole_grad])
    rows = tape.tensor((tape.shape(scores)[0],), tape.tensors[scores].dtype, alias_of=whole_grad)
    tape.run("nll_loss_backward", "scatter", [targets], [rows])
    return (whole_grad,)


def _dropout(tape: Tape, op: TapeOp, grad: int) -> Grads:
    return (tape.pointwise("native_dropout_backward", grad, op.side_outputs[0]),)


def _lookup(tape: Tape, op: TapeOp, grad: int) -> Grads:
    """Rows are added back to where they came from."""
    source, places = op.inputs
    whole_grad = tape.tensor(tape.shape(source), tape.tensors[grad].dtype)
    tape.run("zeros", "create", [], [whole_grad])
    return (tape.run("index_add", "scatter", [grad, places], [whole_grad], reads=[grad, places]),)


def _pick(tape: Tape, op: TapeOp, grad: int) -> Grads:
    whole_grad = tape.tensor(tape.shape(op.inputs[0]), tape.tensors[grad].dtype)
    tape.run("zeros", "create", [], [whole_grad])
    tape.run("scatter", "scatter", [grad], [tape.tensor(tape.shape(grad), alias_of=whole_grad)])
    return (whole_grad,)


def _row_sum(tape: Tape, op: TapeOp, grad: int) -> Grads:
    return (tape.view("expand", grad, tape.shape(op.inputs[0])),)


RULES: Mapping[str, Rule] = MappingProxyType(
    {
        "mul": _mul, "add": _add, "_to_copy": _cast, "pow": _square, "mean": _mean, "rsqrt": _rsqrt,
        "silu": _through("silu_backward"), "gelu": _through("gelu_backward"), "relu": _through("threshold_backward"),
        "sigmoid": _through("sigmoid_backward", True), "tanh": _through("tanh_backward", True),
        "shift": _same, "scale": _scale_grad, "view": _reshape_grad, "neg": _negate_grad, "slice": _slice, "cat": _cat,
        "linear": _linear, "native_layer_norm": _norm, "_fused_rms_norm": _norm, "_softmax": _softmax,
        "_log_softmax": _log_softmax, "nll_loss_forward": _loss, "native_dropout": _dropout, "index": _lookup,
        "topk": _pick, "sum": _row_sum, "div": _mul,
    }
)  # fmt: skip
"""What the backward of each op launches."""
