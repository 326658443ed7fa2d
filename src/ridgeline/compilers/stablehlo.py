"""Turn StableHLO text (and the `mhlo`, `chlo` and `sdy` ops within it) into the op graph.

What JAX lowers to, and what torch-mlir and PyTorch/XLA write. Loops count their bodies as often as they run where the
condition compares a counter with a constant. Bytecode is read through `jax` where it is installed.
"""

from __future__ import annotations

import re

from ridgeline.compilers.build_graph import LEAST_WEIGHT, GraphBuilder, OpFigures
from ridgeline.compilers.contractions import ContractedDims, contraction_kernel, convolution_kernel, matmul_dims
from ridgeline.compilers.mlir_functions import (
    Walk,
    begin_function,
    bind_results,
    entry_of,
    function_name,
    functions_of,
    sharding_of,
)  # fmt: skip
from ridgeline.compilers.mlir_text import Statement, bracketed_numbers, parse_mlir, shaped_types
from ridgeline.compilers.op_kinds import COLLECTIVE_WORDS, op_kind
from ridgeline.compilers.program_text import ProgramSource
from ridgeline.ir.op_graph import OpCollective, OpGraph

DIALECTS = ("stablehlo", "mhlo", "chlo", "sdy", "shape", "arith", "tensor", "vhlo")
_SPLAT = re.compile(r"dense<(?:[-+\w.]+|\([^()]*\))>")
_NUMBER = re.compile(r"dense<(-?\d{1,18}(?:\.\d*)?(?:[eE][-+]?\d{1,3})?)>")
_GROUPS = re.compile(r"replica_groups\s*=\s*dense<(\[\[.*?\]\]|\d+)>\s*:\s*tensor<(\d+)x(\d+)xi64>")
_INITIAL = re.compile(r"(%[\w.$-]+)\s*=\s*(%[\w.$-]+(?:#\d+)?)")
_LIBRARY_PRODUCTS = ("gemm", "matmul")
_ANNOTATIONS = (
    "Sharding",
    "SPMDFullToShardShape",
    "SPMDShardToFullShape",
    "annotate_device_placement",
    "LayoutConstraint",
)
_PIECES = {"dynamic_slice", "gather", "dynamic_gather", "torch_index_select"}
_UPDATES = {"dynamic_update_slice": 1, "scatter": 2}


def recognises(source: ProgramSource) -> bool:
    return bool(re.search(r"\b(stablehlo|mhlo)\.\w", source.head)) and "HloModule" not in source.head[:400]


def read(source: ProgramSource) -> OpGraph:
    """The graph of the module's main function."""
    module = parse_mlir(source)
    builder = GraphBuilder(source.path, "StableHLO")
    functions = functions_of(module)
    entry = entry_of(functions)
    if entry is None:
        raise builder.refuse("a module without a function", "one that has a body", "name the file itself")
    walk = Walk(module, builder, emit_statement, functions=functions)
    begin_function(walk, entry)
    walk.visit(entry.regions[0])
    return builder.graph()


def emit_statement(walk: Walk, statement: Statement) -> None:
    """One statement as ops of the graph."""
    dialect, _, word = statement.name.rpartition(".")
    if word in ("constant", "const"):
        emit_constant(walk, statement)
    elif word == "while":
        _while(walk, statement)
    elif word in ("if", "case"):
        _branches(walk, statement)
    elif word == "composite":
        _composite(walk, statement)
    elif word == "manual_computation":
        _manual(walk, statement)
    elif word == "custom_call":
        _custom_call(walk, statement)
    elif word in COLLECTIVE_WORDS:
        _collective(walk, statement, word)
    elif word in ("dot_general", "dot", "convolution", "dynamic_conv"):
        _product(walk, statement, word)
    elif dialect == "sdy" and word in ("sharding_constraint", "reshard"):
        _constraint(walk, statement)
    elif dialect == "sdy":
        return
    else:
        _plain(walk, statement, word)


def emit_constant(walk: Walk, statement: Statement) -> None:
    """A constant: many different numbers are a weight, one number repeated costs nothing to read."""
    is_splat = bool(_SPLAT.search(statement.text)) or "dense" not in statement.text
    number = _NUMBER.search(statement.text)
    results = walk.results(statement, role="constant")
    for tensor, name in zip(results, statement.results, strict=False):
        if is_splat:
            walk.builder.constant_results.add(tensor)
        elif walk.builder.tensors[tensor].elements >= LEAST_WEIGHT:
            walk.builder.set_role(tensor, "weight", name.lstrip("%"))
        if number is not None:
            walk.numbers[name] = float(number.group(1))


def _plain(walk: Walk, statement: Statement, word: str) -> None:
    inputs = walk.operands(statement)
    kind = op_kind(word)
    alias = inputs[0] if kind == "view" and inputs else -1
    if word == "broadcast_in_dim" and inputs and inputs[0] in walk.builder.constant_results:
        walk.builder.constant_results.update(walk.results(statement, role="constant"))
        return
    outputs = walk.results(statement, alias_of=alias)
    figures = OpFigures()
    if word in _PIECES and outputs:
        written = sum(walk.builder.tensors[tensor].bytes for tensor in outputs)
        figures = OpFigures(touched_bytes=written + sum(walk.builder.tensors[tensor].bytes for tensor in inputs[1:]))
    elif word in _UPDATES and len(inputs) > _UPDATES[word]:
        update = walk.builder.tensors[inputs[_UPDATES[word]]].bytes
        figures = OpFigures(touched_bytes=update, written=update)
    walk.builder.op(statement.name, kind, inputs, outputs, figures)


def _product(walk: Walk, statement: Statement, word: str) -> None:
    inputs, outputs = walk.operands(statement), walk.results(statement)
    kernel = None
    if len(inputs) >= 2 and outputs:
        left_side, right, result = (walk.builder.tensors[tensor] for tensor in (*inputs[:2], outputs[0]))
        if word in ("convolution", "dynamic_conv"):
            labels = re.search(r"x\[([\w, ]+)\]\s*->", statement.text)
            dims = [part.strip() for part in labels.group(1).split(",")] if labels else []
            groups = re.search(r"feature_group_count\s*=\s*(\d{1,9})", statement.text)
            many = int(groups.group(1)) if groups else 1
            kernel = convolution_kernel(left_side, right, result, dims.index("o") if "o" in dims else -1, many)
        else:
            kernel = contraction_kernel(left_side, right, result, _dims(statement, left_side.shape, right.shape, word))
    if kernel is None:
        walk.builder.note(
            f"the sizes of {statement.name} in line {statement.line} are not understood: no flops counted"
        )
    walk.builder.op(statement.name, "product", inputs, outputs, OpFigures(kernel=kernel))


def _dims(statement: Statement, left_side: tuple[int, ...], right: tuple[int, ...], word: str) -> ContractedDims:
    """Contracted dims, in the short form and in the generic one."""
    short = bracketed_numbers(statement.text, "contracting_dims")
    if len(short) == 2:
        batch = bracketed_numbers(statement.text, "batching_dims")
        batches = batch if len(batch) == 2 else ((), ())
        return ContractedDims(left_dims=short[0], right_dims=short[1], left_batch=batches[0], right_batch=batches[1])
    long = [
        bracketed_numbers(statement.text, f"{side}_{kind}_dimensions")
        for kind in ("contracting", "batching")
        for side in ("lhs", "rhs")
    ]
    if long[0] and long[1]:
        batches = (long[2][0] if long[2] else (), long[3][0] if long[3] else ())
        return ContractedDims(
            left_dims=long[0][0], right_dims=long[1][0], left_batch=batches[0], right_batch=batches[1]
        )
    if word == "dot":
        return ContractedDims(left_dims=(len(left_side) - 1,), right_dims=(0,))
    return (
        ContractedDims(left_dims=(), right_dims=())
        if "dot_general" in statement.name
        else matmul_dims(left_side, right)
    )


def _collective(walk: Walk, statement: Statement, word: str) -> None:
    inputs, outputs = walk.operands(statement), walk.results(statement)
    ranks, groups = _ranks(statement.text)
    collective = OpCollective(kind=COLLECTIVE_WORDS[word], ranks=ranks, groups=groups)
    walk.builder.op(statement.name, "collective", inputs, outputs, OpFigures(collective=collective))


def _ranks(text: str) -> tuple[int, tuple[tuple[int, ...], ...]]:
    """Ranks of a group, and the groups where the text lists them."""
    match = _GROUPS.search(text)
    if match is None:
        pairs = re.search(r"source_target_pairs\s*=\s*dense<[^>]*>\s*:\s*tensor<(\d{1,9})x2xi64>", text)
        return (int(pairs.group(1)) if pairs else 0), ()
    rows = re.findall(r"\[([\d, ]+)\]", match.group(1))
    groups = tuple(tuple(int(rank) for rank in re.findall(r"\d{1,9}", row)) for row in rows[:4096])
    return int(match.group(3)), groups


def _constraint(walk: Walk, statement: Statement) -> None:
    inputs = walk.operands(statement)
    match = re.search(r"(<@[\w.]+,\s*\[[^\]]*\][^>]*>)", statement.text)
    if inputs and match:
        walk.builder.set_sharding(inputs[0], match.group(1))
    bind_results(walk, statement, inputs)


def _custom_call(walk: Walk, statement: Statement) -> None:
    """A call of a library: a product where its name says so, an annotation, or unknown work with its bytes."""
    target = function_name(statement)
    inputs = walk.operands(statement)
    if target in _ANNOTATIONS:
        if inputs and (sharding := sharding_of(statement.text)):
            walk.builder.set_sharding(inputs[0], sharding)
        bind_results(walk, statement, inputs)
        return
    outputs = walk.results(statement)
    kernel = None
    if any(word in target.lower() for word in _LIBRARY_PRODUCTS) and len(inputs) >= 2 and outputs:
        tensors = [walk.builder.tensors[tensor] for tensor in (*inputs[:2], outputs[0])]
        kernel = contraction_kernel(tensors[0], tensors[1], tensors[2], matmul_dims(tensors[0].shape, tensors[1].shape))
    kind = "product" if kernel is not None else op_kind(target.rsplit(".", 1)[-1])
    walk.builder.op(f"custom_call @{target}", kind, inputs, outputs, OpFigures(kernel=kernel))


def _composite(walk: Walk, statement: Statement) -> None:
    """A named composition: its decomposition is what is counted."""
    name = re.search(r"decomposition\s*=\s*@([\w.$-]+)", statement.text)
    callee = walk.functions.get(name.group(1)) if name else None
    if callee is None or not callee.regions:
        walk.builder.op(statement.name, "unknown", walk.operands(statement), walk.results(statement))
        return
    bind_results(walk, statement, walk.enter(callee, walk.operands(statement)))


def _manual(walk: Walk, statement: Statement) -> None:
    """A body that every rank runs on its own part: shapes inside are those of one rank."""
    if not statement.regions:
        return
    for name, text in re.findall(r"(%[\w.$-]+)\s*:\s*(tensor<[^%]*)", statement.text):
        for type_ in shaped_types(text)[:1]:
            walk.values[name] = walk.tensor(type_, role="input", name=name.lstrip("%"))
    walk.inside(statement.regions[0], statement.line)
    outputs = walk.results(statement)
    walk.builder.note("shapes inside a manual computation are those of one rank")
    for tensor in outputs:
        walk.builder.constant_results.add(tensor)


def _while(walk: Walk, statement: Statement) -> None:
    """A loop: its body runs as often as the counter says, once where nobody can tell."""
    if len(statement.regions) < 2:
        walk.builder.op(statement.name, "unknown", walk.operands(statement), walk.results(statement))
        return
    initial = _INITIAL.findall(statement.text)
    trips = _trip_count(walk, statement, dict(initial))
    if trips is None:
        walk.builder.note(f"the loop in line {statement.line} is counted once: how often it runs is not a constant")
    loop_values = [walk.values.get(value, -1) for _, value in initial]
    for (name, _), tensor in zip(initial, loop_values, strict=True):
        walk.values[name] = tensor
    outer = walk.builder.count
    walk.builder.count = outer * max(trips if trips is not None else 1, 1)
    return_values = walk.inside(statement.regions[1], statement.line)
    walk.builder.count = outer
    bind_results(walk, statement, return_values or loop_values)


def _trip_count(walk: Walk, statement: Statement, initial: dict[str, str]) -> int | None:
    """(limit - first) / step of the counter that the condition compares with a constant."""
    in_condition, in_body = (_constants(walk, region) for region in statement.regions[:2])
    compare = next((inner for inner in statement.regions[0] if inner.name.endswith(".compare")), None)
    if compare is None or len(compare.operands) < 2 or not re.search(r"\b(LT|LE)\b", compare.text):
        return None
    counter, bound = compare.operands[:2]
    first, limit = walk.numbers.get(initial.get(counter, "")), in_condition.get(bound)
    step = next(
        (
            in_body.get(inner.operands[1])
            for inner in statement.regions[1]
            if inner.name.endswith(".add") and len(inner.operands) == 2 and inner.operands[0] == counter
        ),
        None,
    )
    if first is None or limit is None or not step or step < 0:
        return None
    return max(0, min(int((limit - first) // step) + int("LE" in compare.text), 10**9))


def _constants(walk: Walk, region: list[Statement]) -> dict[str, float]:
    """Constants by name, those of a region and those around it."""
    numbers = dict(walk.numbers)
    for inner in region:
        constant = _NUMBER.search(inner.text) if inner.name.endswith("constant") else None
        if constant and inner.results:
            numbers[inner.results[0]] = float(constant.group(1))
    return numbers


def _branches(walk: Walk, statement: Statement) -> None:
    """Branches: all are counted, because nobody knows which one runs."""
    return_values: list[int] = []
    for region in statement.regions:
        return_values = walk.inside(region, statement.line)
    walk.builder.note(f"every branch of line {statement.line} is counted: which one runs is not known")
    bind_results(walk, statement, return_values)
