"""Turn a module of any of MLIR's tensor dialects into the op graph, each statement by the dialect it belongs to."""

from __future__ import annotations

import re

from ridgeline.compilers.build_graph import GraphBuilder
from ridgeline.compilers.linalg import emit_flow, emit_linalg, emit_tensor
from ridgeline.compilers.mlir_functions import Walk, begin_function, entry_of, functions_of
from ridgeline.compilers.mlir_text import Statement, parse_mlir, shaped_types
from ridgeline.compilers.program_text import ProgramSource
from ridgeline.compilers.stablehlo import emit_constant, emit_statement
from ridgeline.compilers.tosa import emit_torch, emit_tosa
from ridgeline.ir.op_graph import OpGraph

_DIALECTS = {
    "IREE flow": r"\bflow\.dispatch\b|\biree_tensor_ext\.", "linalg": r"\blinalg\.\w", "TOSA": r"\btosa\.\w",
    "torch dialect": r"\btorch\.aten\.\w",
}  # fmt: skip
_QUIET = ("util.", "flow.executable", "builtin.", "hal.", "module", "ml_program.", "cf.assert", "sdy.", "func.")


def recognises(source: ProgramSource) -> bool:
    return any(re.search(pattern, source.head) for pattern in _DIALECTS.values())


def read(source: ProgramSource) -> OpGraph:
    """The graph of the module's main function."""
    name = next((word for word, pattern in _DIALECTS.items() if re.search(pattern, source.head)), "MLIR")
    module = parse_mlir(source)
    builder = GraphBuilder(source.path, name, by="iree" if name == "IREE flow" else "")
    functions = functions_of(module)
    programs = {key: function for key, function in functions.items() if "!iree_tensor_ext" not in function.text}
    entry = entry_of(programs)
    if entry is None:
        raise builder.refuse("a module without a function", "one that has a body", "name the file itself")
    walk = Walk(module, builder, emit_any, functions=functions)
    begin_function(walk, entry)
    walk.visit(entry.regions[0])
    return builder.graph()


def emit_any(walk: Walk, statement: Statement) -> None:
    """One statement, by its dialect; one of no known dialect is unknown work where it makes a tensor."""
    match statement.name.split(".", 1)[0]:
        case "linalg":
            emit_linalg(walk, statement)
        case "tensor":
            emit_tensor(walk, statement)
        case "tosa":
            emit_tosa(walk, statement)
        case "torch" | "torch_c":
            emit_torch(walk, statement)
        case "flow" | "iree_tensor_ext" | "hal" | "util":
            emit_flow(walk, statement)
        case "stablehlo" | "mhlo" | "chlo" | "sdy":
            emit_statement(walk, statement)
        case "arith" | "math" | "complex":
            _arithmetic(walk, statement)
        case _ if statement.name.startswith(_QUIET) or not shaped_types(statement.text):
            return
        case _:
            walk.builder.op(statement.name, "unknown", walk.operands(statement), walk.results(statement))


def _arithmetic(walk: Walk, statement: Statement) -> None:
    """Arithmetic on tensors is pointwise; on scalars it is nothing."""
    if statement.name == "arith.constant":
        if shaped_types(statement.text):
            emit_constant(walk, statement)
        return
    if shaped_types(statement.text):
        walk.builder.op(statement.name, "pointwise", walk.operands(statement), walk.results(statement))
