"""Turn TOSA, and torch-mlir's torch dialect, into ops of the graph."""

from __future__ import annotations

import re

from ridgeline.compilers.aten_ops import AtenCall, emit_aten
from ridgeline.compilers.build_graph import NO_FIGURES, OpFigures
from ridgeline.compilers.contractions import (
    ContractedDims,
    contraction_kernel,
    convolution_kernel,
    matmul_dims,
    product_of_sizes,
)  # fmt: skip
from ridgeline.compilers.mlir_functions import Walk
from ridgeline.compilers.mlir_text import Statement
from ridgeline.compilers.op_kinds import op_kind
from ridgeline.compilers.stablehlo import emit_constant
from ridgeline.ir.kernel import Kernel


def emit_tosa(walk: Walk, statement: Statement) -> None:
    """One statement of TOSA; shapes and multipliers beside the tensors are no operands worth counting."""
    word = statement.name.removeprefix("tosa.")
    if word in ("const_shape", "yield"):
        return
    if word == "const":
        emit_constant(walk, statement)
        return
    inputs, outputs = walk.operands(statement), walk.results(statement)
    kernel = _product(walk, word, inputs, outputs)
    kind = "product" if kernel is not None else op_kind(word)
    if kind == "view" and inputs and outputs:
        walk.builder.set_alias(outputs[0], inputs[0])
    walk.builder.op(statement.name, kind, inputs, outputs, OpFigures(kernel=kernel) if kernel else NO_FIGURES)


def _product(walk: Walk, word: str, inputs: list[int], outputs: list[int]) -> Kernel | None:
    if len(inputs) < 2 or not outputs:
        return None
    left_side, right, result = (walk.builder.tensors[number] for number in (*inputs[:2], outputs[0]))
    match word:
        case "matmul":
            return contraction_kernel(left_side, right, result, matmul_dims(left_side.shape, right.shape))
        case "fully_connected":
            dims = ContractedDims(left_dims=(len(left_side.shape) - 1,), right_dims=(len(right.shape) - 1,))
            return contraction_kernel(left_side, right, result, dims)
        case "conv2d" | "conv3d":
            return convolution_kernel(left_side, right, result, 0)
        case "depthwise_conv2d":
            window = right.shape[0] * right.shape[1] if len(right.shape) == 4 else 1
            elements = result.elements
            return product_of_sizes((1, elements, 1, window), (left_side, right, result))
        case _:
            return None


def emit_torch(walk: Walk, statement: Statement) -> None:
    """One statement of the torch dialect: a call of ATen, or a literal."""
    parts = statement.name.split(".")
    if statement.name == "torch.vtensor.literal":
        emit_constant(walk, statement)
        return
    if statement.name in (
        "torch.copy.to_vtensor",
        "torch.copy.to_tensor",
        "torch_c.to_builtin_tensor",
        "torch_c.from_builtin_tensor",
    ):
        inputs = walk.operands(statement)
        walk.builder.op(statement.name, "view", inputs, walk.results(statement, alias_of=inputs[0] if inputs else -1))
        return
    if len(parts) < 3 or parts[1] in ("constant", "prim") or parts[2] in ("ListConstruct",):
        return
    inputs, outputs = walk.operands(statement), walk.results(statement)
    words = {"is_causal": True} if re.search(r"%true", statement.text) and "attention" in parts[2] else {}
    emit_aten(walk.builder, AtenCall(word=parts[2], inputs=inputs, outputs=outputs, words=words, namespace="aten"))
