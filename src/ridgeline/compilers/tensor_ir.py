"""Turn a TIR function into ops: each block is one, with its sizes from the axes it is written over.

A block that sums products of two buffers is a product: axes of both and of the result are groups, those of one side m
or n, summed ones k. Other sums are reductions, a block that only loads is a copy, a load at a loaded place a gather.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod

from ridgeline.compilers.build_graph import NO_FIGURES, GraphBuilder, OpFigures
from ridgeline.compilers.contractions import product_of_sizes
from ridgeline.compilers.mlir_text import ShapedType
from ridgeline.compilers.script_syntax import (
    DEEPEST_BLOCK,
    dotted_name,
    keyword_of,
    sizes_of,
    tensor_types,
    text_of,
    whole_number,
)  # fmt: skip
from ridgeline.ir.op_graph import OpKind

BLOCKS = ("block", "sblock")
ALLOCATIONS = ("alloc_buffer", "sblock_alloc_buffer", "decl_buffer")
LOOPS = ("grid", "serial", "parallel", "vectorized", "unroll", "thread_binding", "range")


@dataclass(slots=True)
class TirBlock:
    """One block: its axes with their sizes, which of them are summed, and what it stores.

    stores   what is written, and the expression
    """

    name: str
    sizes: dict[str, int] = field(default_factory=dict)
    summed_axes: set[str] = field(default_factory=set)
    stores: list[tuple[ast.Subscript, ast.expr]] = field(default_factory=list)


@dataclass(slots=True)
class TirFunction:
    """A function: buffers by name, the parameters among them in order, and its blocks.

    handles   the buffer of each parameter that is a bare pointer
    """

    name: str
    parameters: list[str] = field(default_factory=list)
    buffers: dict[str, ShapedType] = field(default_factory=dict)
    blocks: list[TirBlock] = field(default_factory=list)
    handles: dict[str, str] = field(default_factory=dict)


def read_function(function: ast.FunctionDef) -> TirFunction:
    """The buffers and blocks of a function of TIR."""
    result = TirFunction(name=function.name)
    for argument in function.args.args:
        types = tensor_types(argument.annotation)
        result.parameters.append(argument.arg)
        if types:
            result.buffers[argument.arg] = types[0]
    _scan(result, function.body, {}, 0)
    result.parameters = [result.handles.get(name, name) for name in result.parameters]
    return result


def _scan(result: TirFunction, body: list[ast.stmt], loops: Mapping[str, int], depth: int) -> None:
    """Walk statements with the loops around them."""
    if depth > DEEPEST_BLOCK:
        return
    for statement in body:
        if isinstance(statement, ast.For):
            _scan(result, statement.body, {**loops, **_extents(statement)}, depth + 1)
        elif isinstance(statement, ast.With):
            _scan_with(result, statement, loops, depth)
        elif isinstance(statement, ast.If):
            _scan(result, [*statement.body, *statement.orelse], loops, depth + 1)
        elif isinstance(statement, ast.Assign):
            _note_allocation(result, statement)


def _scan_with(result: TirFunction, statement: ast.With, loops: Mapping[str, int], depth: int) -> None:
    """A block, or what stands around some; an initialisation is none."""
    call = statement.items[0].context_expr
    word = dotted_name(call.func).rsplit(".", 1)[-1] if isinstance(call, ast.Call) else ""
    if word in BLOCKS and isinstance(call, ast.Call):
        block = TirBlock(text_of(call.args[0]) if call.args else "block")
        _scan_block(result, block, statement.body, loops, depth + 1)
        if block.stores:
            result.blocks.append(block)
    elif word != "init":
        _scan(result, statement.body, loops, depth + 1)


def _extents(loop: ast.For) -> dict[str, int]:
    """Sizes of loop variables: `for i, j in T.grid(2, 64)`."""
    call = loop.iter
    if not isinstance(call, ast.Call) or dotted_name(call.func).rsplit(".", 1)[-1] not in LOOPS:
        return {}
    names = [part.id for part in ast.walk(loop.target) if isinstance(part, ast.Name)]
    numbers = [number if (number := whole_number(part)) is not None else 1 for part in call.args]
    if len(names) == 1 and len(numbers) > 1:
        return {names[0]: max(numbers[1] - numbers[0], 1)}
    return dict(zip(names, numbers, strict=False))


def _scan_block(
    result: TirFunction, block: TirBlock, body: list[ast.stmt], loops: Mapping[str, int], depth: int
) -> None:
    """The axes and stores of a block; blocks inside it are blocks of their own."""
    if depth > DEEPEST_BLOCK:
        return
    for statement in body:
        if isinstance(statement, ast.Assign):
            if _note_axes(block, statement, loops):
                continue
            if isinstance(statement.targets[0], ast.Subscript):
                block.stores.append((statement.targets[0], statement.value))
            else:
                _note_allocation(result, statement)
        elif isinstance(statement, (ast.For, ast.If)):
            inner = {**loops, **(_extents(statement) if isinstance(statement, ast.For) else {})}
            if any(isinstance(part, ast.With) for part in statement.body):
                _scan(result, [statement], inner, depth + 1)
            else:
                _scan_block(result, block, statement.body, inner, depth + 1)
        elif isinstance(statement, ast.With):
            _scan(result, [statement], loops, depth + 1)


def _note_axes(block: TirBlock, statement: ast.Assign, loops: Mapping[str, int]) -> bool:
    """Whether a statement declares axes of the block, which are then noted."""
    call = statement.value
    if not isinstance(call, ast.Call):
        return False
    word = dotted_name(call.func)
    names = [part.id for part in ast.walk(statement.targets[0]) if isinstance(part, ast.Name)]
    if word.endswith("axis.remap") and len(call.args) == 2 and isinstance(call.args[1], (ast.List, ast.Tuple)):
        kinds = text_of(call.args[0])
        for name, kind, loop in zip(names, kinds, call.args[1].elts, strict=False):
            block.sizes[name] = loops.get(loop.id, 1) if isinstance(loop, ast.Name) else 1
            block.summed_axes |= {name} if kind == "R" else set()
        return True
    if ".axis." in word and names and call.args:
        size = whole_number(call.args[0])
        if isinstance(call.args[0], ast.Tuple):
            bounds = sizes_of(call.args[0]) or (0, 1)
            size = bounds[-1] - bounds[0]
        block.sizes[names[0]] = size if size is not None and size > 0 else 1
        block.summed_axes |= {names[0]} if word.endswith("reduce") else set()
        return True
    return False


def _note_allocation(result: TirFunction, statement: ast.Assign) -> None:
    """A buffer that a function makes, or a parameter's by its handle."""
    call, target = statement.value, statement.targets[0]
    if not isinstance(call, ast.Call) or not isinstance(target, ast.Name):
        return
    word = dotted_name(call.func).rsplit(".", 1)[-1]
    if word == "match_buffer" and call.args and isinstance(call.args[0], ast.Name):
        result.handles[call.args[0].id] = target.id
    elif word not in ALLOCATIONS:
        return
    shape = next((sizes for part in call.args if (sizes := sizes_of(part)) is not None), ())
    dtype = text_of(keyword_of(call, "dtype")) or next(
        (text for part in call.args if (text := text_of(part))), "float32"
    )
    result.buffers[target.id] = ShapedType(shape=shape, element=dtype)


def emit_function(builder: GraphBuilder, function: TirFunction, numbers: dict[str, int]) -> None:
    """Emit the blocks of a function; `numbers` has the tensors of its parameters and gets those of its buffers."""
    for name, type_ in function.buffers.items():
        if name not in numbers:
            if any(size < 0 for size in type_.shape):
                raise builder.refuse(f"buffer {name} of {function.name} with a symbolic size", "sizes that are numbers")
            numbers[name] = builder.tensor(type_.shape, type_.element)
    for block in function.blocks:
        _emit_block(builder, block, numbers)


def _emit_block(builder: GraphBuilder, block: TirBlock, numbers: Mapping[str, int]) -> None:
    targets = list(dict.fromkeys(name for store, _ in block.stores if (name := _buffer(store)) in numbers))
    loads = [load for _, value in block.stores for load in _loads(value) if _buffer(load) in numbers]
    sources = list(dict.fromkeys(name for load in loads if (name := _buffer(load)) not in targets))
    inputs, outputs = [numbers[name] for name in sources], [numbers[name] for name in targets]
    if not outputs:
        return
    kind, figures = _block_work(builder, block, numbers)
    if kind == "gather":
        figures = OpFigures(touched_bytes=sum(builder.tensors[tensor].bytes for tensor in (*inputs[1:], *outputs)))
    builder.op(f"tir.{block.name}", kind, inputs, outputs, figures)


def _block_work(builder: GraphBuilder, block: TirBlock, numbers: Mapping[str, int]) -> tuple[OpKind, OpFigures]:
    """The kind of a block, and the product that it is."""
    store, value = block.stores[-1]
    if block.summed_axes:
        pair = _multiplied_loads(value, _buffer(store))
        if pair is not None and all(_buffer(load) in numbers for load in pair):
            axes = [set(block.sizes) & _names(load) for load in (*pair, store)]
            left_side, right, result = axes
            if block.summed_axes <= left_side & right:
                sizes = (
                    left_side & right & result,
                    left_side & result - right,
                    right & result - left_side,
                    block.summed_axes,
                )
                groups, m, n, k = (prod(block.sizes[name] for name in names) for names in sizes)
                tensors = [builder.tensors[numbers[_buffer(load)]] for load in (*pair, store)]
                return "product", OpFigures(kernel=product_of_sizes((groups, m, n, k), tensors))
        return "reduction", NO_FIGURES
    loads = _loads(value)
    if any(inner is not load and isinstance(inner, ast.Subscript) for load in loads for inner in ast.walk(load.slice)):
        return "gather", NO_FIGURES
    if not loads:
        return "create", NO_FIGURES
    arithmetic = any(isinstance(part, (ast.BinOp, ast.Call, ast.IfExp)) for part in _outside(value))
    return ("pointwise" if arithmetic else "copy"), NO_FIGURES


def _buffer(node: ast.expr) -> str:
    return node.value.id if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name) else ""


def _names(node: ast.AST) -> set[str]:
    return {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}


def _outside(value: ast.expr) -> list[ast.AST]:
    """Parts of an expression that stand outside the indices of its loads."""
    matches: list[ast.AST] = []
    stack: list[ast.AST] = [value]
    while stack:
        part = stack.pop()
        matches.append(part)
        if not isinstance(part, ast.Subscript):
            stack.extend(ast.iter_child_nodes(part))
    return matches


def _loads(value: ast.expr) -> list[ast.Subscript]:
    """Loads of an expression, those inside indices among them."""
    return [part for part in ast.walk(value) if isinstance(part, ast.Subscript) and _buffer(part)]


def _multiplied_loads(value: ast.expr, target: str) -> tuple[ast.Subscript, ast.Subscript] | None:
    """The two loads of `target + left * right`, casts aside."""
    if not isinstance(value, ast.BinOp) or not isinstance(value.op, ast.Add):
        return None
    for part in _outside(value):
        if isinstance(part, ast.BinOp) and isinstance(part.op, ast.Mult):
            sides = [[load for load in _loads(side) if _buffer(load) != target] for side in (part.left, part.right)]
            if len(sides[0]) == len(sides[1]) == 1:
                return sides[0][0], sides[1][0]
    return None
