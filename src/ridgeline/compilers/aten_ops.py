"""Turn one op of PyTorch's ATen into an op of the graph: of an exported program, and of torch-mlir's torch dialect."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from types import MappingProxyType

from ridgeline.compilers.build_graph import NO_FIGURES, GraphBuilder, OpFigures
from ridgeline.compilers.contractions import (
    ContractedDims,
    contraction_kernel,
    convolution_kernel,
    einsum_dims,
    matmul_dims,
)  # fmt: skip
from ridgeline.compilers.op_kinds import COLLECTIVE_WORDS, op_kind
from ridgeline.core.records import dataclass
from ridgeline.ir.kernel import PRODUCT_OPERANDS, Kernel, attention_kernel
from ridgeline.ir.op_graph import OpCollective, OpKind

ATTENTIONS = ("scaled_dot_product_attention", "flash_attention", "efficient_attention", "cudnn_attention", "sdpa")
CASTS = ("to", "_to_copy", "type_as", "type")
STRIDED = ("transpose", "permute", "t", "select", "numpy_T", "mT", "swapaxes", "movedim", "diagonal", "adjoint")
IGNORED = ("_assert_tensor_metadata", "sym_size", "_assert_async", "_assert_scalar", "sym_constrain_range_for_size")
_NO_WORDS: Mapping[str, object] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class AtenCall:
    """One call.

    word      the op without its namespace and overload
    inputs    tensors in the order of its arguments
    outputs   tensors that it writes
    words     arguments that are no tensors, by name: `is_causal`, `equation`, `groups`
    """

    word: str
    inputs: Sequence[int]
    outputs: Sequence[int]
    words: Mapping[str, object] = field(default_factory=lambda: _NO_WORDS)
    namespace: str = "aten"


def emit_aten(builder: GraphBuilder, call: AtenCall) -> None:
    """One call as an op of the graph."""
    if call.word in IGNORED:
        return
    name = f"{call.namespace}.{call.word}"
    if call.word in COLLECTIVE_WORDS:
        size = call.words.get("group_size")
        ranks = size if isinstance(size, int) else 0
        figures = OpFigures(collective=OpCollective(kind=COLLECTIVE_WORDS[call.word], ranks=ranks))
        builder.op(name, "collective", call.inputs, call.outputs, figures)
        return
    kernel = product_of_call(builder, call)
    if kernel is not None:
        kind: OpKind = "attention" if kernel.op.startswith("attention") else "product"
        builder.op(name, kind, call.inputs, call.outputs, OpFigures(kernel=kernel))
        return
    kind = call_kind(builder, call)
    if kind == "view" and call.inputs:
        for output in call.outputs:
            builder.set_alias(output, call.inputs[0])
    builder.op(name, kind, call.inputs, call.outputs, _figures(builder, call))


def call_kind(builder: GraphBuilder, call: AtenCall) -> OpKind:
    """The kind of a call; a cast to the format a tensor has, and other strides, are views."""
    if call.word in CASTS and call.inputs and call.outputs:
        same = builder.tensors[call.inputs[0]].dtype == builder.tensors[call.outputs[0]].dtype
        return "view" if same else "pointwise"
    if call.word in STRIDED:
        return "view"
    if call.word in ATTENTIONS:
        return "attention"
    return op_kind(call.word)


def _figures(builder: GraphBuilder, call: AtenCall) -> OpFigures:
    if op_kind(call.word) == "gather" and len(call.inputs) > 1 and call.outputs:
        written = sum(builder.tensors[tensor].bytes for tensor in call.outputs)
        return OpFigures(touched_bytes=written + sum(builder.tensors[tensor].bytes for tensor in call.inputs[1:]))
    return NO_FIGURES


def product_of_call(builder: GraphBuilder, call: AtenCall) -> Kernel | None:
    """The product or attention that a call is; None where it is neither, or its operands do not fit."""
    tensors = [builder.tensors[number] for number in call.inputs]
    if len(tensors) < 2 or not call.outputs:
        return None
    result = builder.tensors[call.outputs[0]]
    if any(word in call.word for word in ATTENTIONS) and "backward" not in call.word:
        return _attention(builder, call)
    if call.word in PRODUCT_OPERANDS or call.word in ("mv", "dot", "_grouped_mm_fallback"):
        first, second = PRODUCT_OPERANDS.get(call.word, (0, 1))
        if len(tensors) <= second:
            return None
        left_side, right = tensors[first], tensors[second]
        return contraction_kernel(left_side, right, result, matmul_dims(left_side.shape, right.shape))
    if call.word == "linear":
        dims = ContractedDims(left_dims=(len(tensors[0].shape) - 1,), right_dims=(len(tensors[1].shape) - 1,))
        return contraction_kernel(tensors[0], tensors[1], result, dims)
    if call.word == "einsum":
        einsum = einsum_dims(str(call.words.get("equation", "")))
        return contraction_kernel(tensors[0], tensors[1], result, einsum) if einsum and len(tensors) == 2 else None
    if call.word.startswith(("conv1d", "conv2d", "conv3d", "convolution")) and "backward" not in call.word:
        groups = call.words.get("groups", 1)
        return convolution_kernel(tensors[0], tensors[1], result, 0, groups if isinstance(groups, int) else 1)
    return None


def _attention(builder: GraphBuilder, call: AtenCall) -> Kernel | None:
    """Attention of [.., heads, queries, width] by keys and values."""
    query, key, value = (builder.tensors[number] for number in (*call.inputs[:3], *call.inputs[-1:])[:3])
    if min(len(query.shape), len(key.shape), len(value.shape)) < 3:
        return None
    heads = 1
    for size in query.shape[:-2]:
        heads *= size
    moved_bytes = sum(builder.tensors[number].bytes for number in (*call.inputs, call.outputs[0]))
    return attention_kernel(
        heads, (query.shape[-2], key.shape[-2]), (query.shape[-1], value.shape[-1]), query.dtype,
        causal=call.words.get("is_causal") is True, backward=False, moved=moved_bytes,
    )  # fmt: skip
