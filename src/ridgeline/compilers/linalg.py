"""Turn linalg on tensors into ops of the graph, and IREE's dispatches into its fusions.

A `linalg.generic` says what it does by its maps and its body: a sum of products of two operands is a product, with its
sizes from the maps; other sums are reductions; a body that only yields its input is a copy. A `flow.dispatch` is one
kernel: the ops of its executable are a fusion.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod

from ridgeline.compilers.build_graph import NO_FIGURES, OpFigures
from ridgeline.compilers.contractions import (
    contraction_kernel,
    convolution_kernel,
    matmul_dims,
    product_of_sizes,
)  # fmt: skip
from ridgeline.compilers.mlir_functions import Walk, arguments_of, bind_results, closing_bracket, split_brackets
from ridgeline.compilers.mlir_text import Statement, result_types, shaped_types
from ridgeline.compilers.op_kinds import op_kind
from ridgeline.ir.kernel import Kernel
from ridgeline.ir.op_graph import OpKind

_TRANSPOSED_RIGHT = ("matmul_transpose_b", "batch_matmul_transpose_b")
_TRANSPOSED_LEFT = ("matmul_transpose_a", "batch_matmul_transpose_a")
_PRODUCTS = (
    "matmul", "batch_matmul", "quantized_matmul", "quantized_batch_matmul", "vecmat", "matvec", "dot", "batch_matvec",
    "batch_vecmat", "contract", "batch_reduce_matmul", *_TRANSPOSED_RIGHT, *_TRANSPOSED_LEFT,
)  # fmt: skip
_SUMS = ("arith.addf", "arith.addi", "complex.add")
_TIMES = ("arith.mulf", "arith.muli", "complex.mul")
_MAP = re.compile(r"#[\w.$-]+|affine_map<\(([^()]*)\)\s*->\s*\(([^()]*)\)>")
_NAMED_POINTWISE = ("elementwise", "map", "elemwise_unary", "elemwise_binary")


def emit_linalg(walk: Walk, statement: Statement) -> None:
    """One statement of the linalg dialect."""
    word = statement.name.removeprefix("linalg.")
    inputs = [walk.values[name] for name in values_in(statement.text, "ins") if walk.values.get(name, -1) >= 0]
    if word in ("yield", "index"):
        return
    if word == "fill":
        walk.builder.constant_results.update(walk.results(statement, role="constant"))
        return
    outputs = walk.results(statement)
    if word == "generic" and outputs:
        kind, kernel = generic_work(walk, statement, inputs, outputs[0])
    elif word in _PRODUCTS and len(inputs) >= 2 and outputs:
        kind, kernel = "product", _named_product(walk, statement, word, (inputs[0], inputs[1], outputs[0]))
    elif word.startswith(("conv", "depthwise_conv")) and len(inputs) >= 2 and outputs:
        kind, kernel = "product", _convolution(walk, word, (inputs[0], inputs[1], outputs[0]))
    else:
        kind, kernel = _named_kind(word), None
    if kind == "view" and inputs and outputs:
        walk.builder.set_alias(outputs[0], inputs[0])
    if kind == "product" and kernel is None:
        walk.builder.note(
            f"the sizes of {statement.name} in line {statement.line} are not understood: no flops counted"
        )
    figures = OpFigures(kernel=kernel) if kernel is not None else NO_FIGURES
    if kind == "gather" and outputs:
        figures = OpFigures(touched_bytes=sum(walk.builder.tensors[tensor].bytes for tensor in (*inputs, *outputs)))
    walk.builder.op(_op_name(statement, word), kind, inputs, outputs, figures)


def _op_name(statement: Statement, word: str) -> str:
    """The name of a generic says the arithmetic in its body: `linalg.generic (mulf, addf)`."""
    if word != "generic" or not statement.regions:
        return statement.name
    words = [inner.name.rsplit(".", 1)[-1] for inner in statement.regions[0] if not inner.name.endswith(".yield")]
    return f"linalg.generic ({', '.join(dict.fromkeys(words))})" if words else "linalg.generic (copy)"


def _named_kind(word: str) -> OpKind:
    if word.startswith("pooling"):
        return "reduction"
    if word in _NAMED_POINTWISE:
        return "pointwise"
    return op_kind(word)


def values_in(text: str, key: str) -> list[str]:
    """Values in `ins(...)` or `outs(...)`."""
    start = text.find(f"{key}(")
    if start < 0:
        return []
    return re.findall(r"%[\w.$-]+(?:#\d+)?", text[start : closing_bracket(text, start + len(key))])


def generic_work(walk: Walk, statement: Statement, inputs: Sequence[int], output: int) -> tuple[OpKind, Kernel | None]:
    """What a generic does: its kind, and the product that it is."""
    body = [inner for region in statement.regions for inner in region]
    words = [inner.name for inner in body if not inner.name.endswith(".yield")]
    iterators = re.findall(r'"(parallel|reduction|window)"', statement.text)
    maps = indexing_maps(statement.text, walk.module.aliases)
    if "tensor.extract" in words:
        return "gather", None
    if "reduction" in iterators:
        sums_products = any(word in _SUMS for word in words) and any(word in _TIMES for word in words)
        if sums_products and len(inputs) >= 2 and len(maps) >= 3 and maps[0] != maps[1]:
            kernel = mapped_product(walk, maps, iterators, (inputs[0], inputs[1], output))
            if kernel is not None:
                return "product", kernel
        return "reduction", None
    if not words:
        return "copy", None
    if (
        all(word in ("linalg.index", "arith.index_cast", "arith.constant", "arith.sitofp") for word in words)
        and not inputs
    ):
        return "create", None
    return "pointwise", None


def indexing_maps(text: str, aliases: Mapping[str, str]) -> list[tuple[str, ...]]:
    """Results of the maps of a generic, in the words of its loops: `("d0", "d2")`.

    >>> indexing_maps("indexing_maps = [affine_map<(d0, d1) -> (d0)>, #map]", {"#map": "affine_map<(d0, d1) -> (d1)>"})
    [('d0',), ('d1',)]
    """
    start = text.find("indexing_maps")
    if start < 0:
        return []
    piece = text[start : closing_bracket(text, max(text.find("[", start), 0))]
    maps: list[tuple[str, ...]] = []
    for match in _MAP.finditer(piece):
        written = aliases.get(match.group(0), "") if match.group(0).startswith("#") else match.group(0)
        inner = re.search(r"->\s*\(([^()]*)\)", written)
        maps.append(tuple(part.strip() for part in inner.group(1).split(",") if part.strip()) if inner else ())
    return maps


def mapped_product(
    walk: Walk, maps: Sequence[tuple[str, ...]], iterators: Sequence[str], numbers: tuple[int, int, int]
) -> Kernel | None:
    """The product of a generic: loops of both operands and the result pair up, summed ones are k."""
    tensors = [walk.builder.tensors[number] for number in numbers]
    sizes: dict[str, int] = {}
    for loops, tensor in zip(maps, tensors, strict=False):
        if len(loops) != len(tensor.shape):
            return None
        sizes |= dict(zip(loops, tensor.shape, strict=True))
    summed_axes = {f"d{place}" for place, word in enumerate(iterators) if word == "reduction"}
    left_side, right, result = (set(loops) for loops in (maps[0], maps[1], maps[-1]))
    if not summed_axes <= (left_side & right) or not all(
        re.fullmatch(r"d\d+", loop) for loop in left_side | right | result
    ):
        return None
    groups = prod(sizes[loop] for loop in left_side & right & result)
    m = prod(sizes[loop] for loop in (left_side & result) - right)
    n = prod(sizes[loop] for loop in (right & result) - left_side)
    return product_of_sizes((groups, m, n, prod(sizes[loop] for loop in summed_axes)), tensors)


def _named_product(walk: Walk, statement: Statement, word: str, numbers: tuple[int, int, int]) -> Kernel | None:
    left_side, right, result = (walk.builder.tensors[number] for number in numbers)
    maps = indexing_maps(statement.text, walk.module.aliases)
    if len(maps) >= 3:
        loops = len({loop for loops in maps for loop in loops})
        summed_axes = {loop for loop in maps[0] if loop not in maps[-1]}
        iterators = ["reduction" if f"d{place}" in summed_axes else "parallel" for place in range(loops)]
        return mapped_product(walk, maps, iterators, numbers)
    plain = matmul_dims(left_side.shape, right.shape)
    if word in _TRANSPOSED_RIGHT:
        plain = replace(plain, right_dims=(len(right.shape) - 1,))
    if word in _TRANSPOSED_LEFT:
        plain = replace(plain, left_dims=(len(left_side.shape) - 2,))
    return contraction_kernel(left_side, right, result, plain)


def _convolution(walk: Walk, word: str, numbers: tuple[int, int, int]) -> Kernel | None:
    """Weights are FCHW, or HWCF where the name says so; of a depthwise one each channel is a group of its own."""
    image, weights, result = (walk.builder.tensors[number] for number in numbers)
    if word.startswith("depthwise"):
        window = prod(weights.shape[-2:]) if "chw" in word else prod(weights.shape[:2])
        return product_of_sizes((1, prod(result.shape), 1, window), (image, weights, result))
    return convolution_kernel(
        image, weights, result, 0 if word.endswith(("fchw", "fcw", "fchw_q")) else len(weights.shape) - 1
    )


def emit_tensor(walk: Walk, statement: Statement) -> None:
    """Views and pieces of the tensor dialect."""
    word = statement.name.removeprefix("tensor.")
    if word == "empty":
        walk.builder.constant_results.update(walk.results(statement, role="constant"))
        return
    inputs = walk.operands(statement)
    if word in ("dim", "extract", "rank", "from_elements") or not statement.results:
        return
    kind: OpKind = "copy" if word in ("pad", "insert_slice", "concat", "pack", "unpack") else "view"
    outputs = walk.results(statement, alias_of=inputs[0] if kind == "view" and inputs else -1)
    if kind == "view" and inputs and inputs[0] in walk.builder.constant_results:
        walk.builder.constant_results.update(outputs)
    walk.builder.op(statement.name, kind, inputs, outputs)


def emit_flow(walk: Walk, statement: Statement) -> None:
    """IREE's flow: a dispatch is one kernel, loads and stores bind its operands, barriers and casts move nothing."""
    word = statement.name.rpartition("flow.")[2]
    if statement.name == "flow.dispatch":
        _dispatch(walk, statement)
    elif statement.name.endswith("dispatch.tensor.load"):
        view_of(walk, statement)
    elif statement.name.endswith("dispatch.tensor.store"):
        stored_results = walk.operands(statement)[:1]
        target = re.findall(r"%[\w.$-]+", statement.text)
        if stored_results and len(target) > 1:
            walk.stored_results[target[1]] = stored_results[0]
    elif statement.name == "hal.tensor.import":
        types = shaped_types(statement.text.rpartition("->")[2])
        if types and statement.results:
            name = re.search(r'"([^"]*)"', statement.text)
            tensor = walk.tensor(types[-1], role="input", name=name.group(1) if name else "")
            walk.bind(statement.results[0], tensor)
    elif word in ("tensor.reshape", "tensor.bitcast"):
        view_of(walk, statement)
    elif statement.name in ("util.optimization_barrier", "hal.tensor.export"):
        bind_results(walk, statement, walk.operands(statement))
    elif word.startswith("tensor.") and statement.results:
        walk.builder.op(statement.name, "copy", walk.operands(statement), walk.results(statement))


def view_of(walk: Walk, statement: Statement) -> None:
    """The first operand in the shape that the statement states: the same tensor, or a view of it."""
    inputs, types = walk.operands(statement)[:1], result_types(statement)[:1]
    if not inputs or not types or walk.builder.tensors[inputs[0]].shape == types[0].shape:
        bind_results(walk, statement, inputs)
        return
    walk.builder.op(statement.name, "view", inputs, walk.results(statement, alias_of=inputs[0]))


def _dispatch(walk: Walk, statement: Statement) -> None:
    """The ops of a dispatch's executable, as one fusion."""
    entry = re.search(r"@([\w.$-]+)::@([\w.$-]+)", statement.text)
    callee = walk.functions.get(entry.group(2)) if entry else None
    start = statement.text.find("(", entry.end() if entry else 0)
    names = [
        part.strip() for part in split_brackets(statement.text[start + 1 : closing_bracket(statement.text, start)])
    ]
    given_values = [walk.values.get(name, -1) for name in names]
    if callee is None or not callee.regions:
        walk.builder.op(
            "flow.dispatch", "unknown", [number for number in given_values if number >= 0], walk.results(statement)
        )
        return
    walk.builder.begin_fusion(entry.group(2) if entry else "dispatch")
    outer, walk.stored_results = walk.stored_results, {}
    walk.enter(callee, given_values)
    written = [walk.stored_results[name] for name, _ in arguments_of(callee) if name in walk.stored_results]
    walk.stored_results = outer
    walk.builder.end_fusion()
    bind_results(walk, statement, written)
