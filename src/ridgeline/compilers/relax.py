"""Turn a TVM module in script into the op graph: Relax functions, and the TIR functions that they call.

Before lowering, every `R.op` is an op of its own. After `FuseOps` or `FuseTIR` a primitive function is one fusion, and
a `call_tir` is the blocks of its TIR function.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, field

from ridgeline.compilers.aten_ops import AtenCall, emit_aten
from ridgeline.compilers.build_graph import GraphBuilder
from ridgeline.compilers.mlir_text import ShapedType
from ridgeline.compilers.op_kinds import COLLECTIVE_WORDS, op_kind
from ridgeline.compilers.program_text import ProgramSource
from ridgeline.compilers.script_syntax import (
    decorator_words,
    dotted_name,
    keyword_of,
    parse_script,
    statements_below,
    tensor_types,
    text_of,
)  # fmt: skip
from ridgeline.compilers.tensor_ir import TirFunction, emit_function, read_function
from ridgeline.ir.op_graph import OpGraph

DEEPEST_CALLS = 48
MOST_VISITS = 400_000
Value = int | tuple["Value", ...]
_QUIET = (
    "R.output",
    "R.func_attr",
    "R.shape",
    "R.prim_value",
    "R.str",
    "R.dtype",
    "R.assert_op",
    "R.vm.kill_object",
    "R.memory.kill_tensor",
)
_LIBRARY = ("R.call_dps_packed", "R.call_packed", "R.call_pure_packed", "R.call_inplace_packed", "R.call_tir_inplace")


def recognises(source: ProgramSource) -> bool:
    return bool(re.search(r"@(R\.function|T\.prim_func|I\.ir_module)|from tvm\.script", source.head))


def read(source: ProgramSource) -> OpGraph:
    """The graph of the module's main function."""
    tree = parse_script(source)
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    relax = {node.name: node for node in functions if "R.function" in decorator_words(node)}
    loops = {node.name: node for node in functions if any(word.endswith("prim_func") for word in decorator_words(node))}
    builder = GraphBuilder(source.path, "TVM Relax" if relax else "TVM TIR", by="tvm")
    walk = _RelaxWalk(builder, relax, loops)
    if relax:
        main = relax.get("main") or next(iter(relax.values()))
        walk.enter(main, [walk.parameter(argument) for argument in main.args.args])
    elif loops:
        for name in loops:
            walk.call_loops(name, [], None)
    else:
        raise builder.refuse("a script without a function", "what mod.script() printed", "print the module")
    return builder.graph()


@dataclass(slots=True)
class _RelaxWalk:
    """One walk from the main function through what it calls."""

    builder: GraphBuilder
    relax: dict[str, ast.FunctionDef]
    loops: dict[str, ast.FunctionDef]
    values: dict[str, Value] = field(default_factory=dict)
    known_loops: dict[str, TirFunction] = field(default_factory=dict)
    depth: int = 0
    visits: int = 0

    def parameter(self, argument: ast.arg) -> Value:
        """A tensor for a parameter of the program."""
        numbers = [self.tensor(type_, argument.arg) for type_ in tensor_types(argument.annotation)]
        return numbers[0] if len(numbers) == 1 else tuple(numbers)

    def tensor(self, type_: ShapedType, name: str = "") -> int:
        if any(size < 0 for size in type_.shape):
            given_values = f"a tensor{' ' + name if name else ''} with a symbolic size"
            raise self.builder.refuse(
                given_values, "sizes that are numbers", "bind them with relax.transform.BindSymbolicVars"
            )
        return self.builder.tensor(type_.shape, type_.element, role="input" if name else "activation", name=name)

    def enter(self, function: ast.FunctionDef, given_values: list[Value]) -> Value:
        """Emit a function's body with these arguments, and return what it returns."""
        if self.depth >= DEEPEST_CALLS:
            raise self.builder.refuse("functions that call each other", f"at most {DEEPEST_CALLS} levels")
        outer, self.values = self.values, {}
        self.depth += 1
        try:
            names = [argument.arg for argument in function.args.args]
            self.values |= dict(zip(names, given_values, strict=False))
            return_values: Value = ()
            for statement in statements_below(function.body):
                self.visits += 1
                if self.visits > MOST_VISITS:
                    raise self.builder.refuse("functions that are called again and again", "one program of a model")
                if isinstance(statement, ast.Return) and statement.value is not None:
                    return_values = self.value(statement.value, None)
                else:
                    self._assign(statement)
            return return_values
        finally:
            self.values = outer
            self.depth -= 1

    def _assign(self, statement: ast.stmt) -> None:
        """Bind a name to what its expression is."""
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name) and statement.value:
            self.values[statement.target.id] = self.value(statement.value, statement.annotation)
        elif isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
            self.values[statement.targets[0].id] = self.value(statement.value, None)
        elif isinstance(statement, ast.If):
            self.builder.note(f"both branches of line {statement.lineno} are counted: which one runs is not known")

    def value(self, node: ast.expr, annotation: ast.expr | None, depth: int = 0) -> Value:
        """The tensors of an expression; of a call those that it writes."""
        if depth > DEEPEST_CALLS:
            return ()
        if isinstance(node, ast.Name):
            return self.values.get(node.id, ())
        if isinstance(node, (ast.Tuple, ast.List)):
            return tuple(self.value(part, None, depth + 1) for part in node.elts[:100_000])
        if isinstance(node, ast.Subscript):
            return self._element(node, depth)
        if isinstance(node, ast.Call):
            return self._call(node, annotation, depth)
        return ()

    def _element(self, node: ast.Subscript, depth: int) -> Value:
        """A part of a tuple; a constant of the module's metadata is a number that nothing reads."""
        whole_value = self.value(node.value, None, depth + 1)
        place = node.slice.value if isinstance(node.slice, ast.Constant) else None
        if isinstance(whole_value, tuple) and isinstance(place, int) and 0 <= place < len(whole_value):
            return whole_value[place]
        return ()

    def _call(self, node: ast.Call, annotation: ast.expr | None, depth: int) -> Value:
        word = dotted_name(node.func)
        if word in _QUIET:
            return ()
        if word == "R.const":
            number = self.builder.tensor(
                (), text_of(node.args[1]) if len(node.args) > 1 else "float32", role="constant"
            )
            self.builder.constant_results.add(number)
            return number
        if word in ("R.tuple", "R.match_cast", "R.stop_lift_params", "R.builtin.stop_lift_params"):
            parts = tuple(self.value(part, None, depth + 1) for part in node.args)
            return parts if word == "R.tuple" else (parts[0] if parts else ())
        if word in ("R.call_tir", *_LIBRARY):
            return self._call_below(node, word, depth)
        name = word.rsplit(".", 1)[-1]
        if not word.startswith("R.") and name in self.relax:
            return self._call_relax(name, [self.value(part, None, depth + 1) for part in node.args])
        return self._operator(node, word, annotation, depth)

    def _call_relax(self, name: str, given_values: list[Value]) -> Value:
        """A function of the module; a primitive one is one kernel."""
        function = self.relax[name]
        primitive = any(
            isinstance(part, ast.Constant) and part.value in ("Primitive", "Composite", "Codegen")
            for statement in function.body[:3]
            for part in ast.walk(statement)
        )
        begins = primitive and self.builder.fusion < 0
        if begins:
            self.builder.begin_fusion(name)
        return_values = self.enter(function, given_values)
        if begins:
            self.builder.end_fusion()
        return return_values

    def _call_below(self, node: ast.Call, word: str, depth: int) -> Value:
        """A call of a TIR function, whose blocks are emitted, or of a library, which is unknown but for its bytes."""
        given_values = self.value(node.args[1], None, depth + 1) if len(node.args) > 1 else ()
        inputs: list[Value] = list(given_values) if isinstance(given_values, tuple) else [given_values]
        types = tensor_types(keyword_of(node, "out_ty", "out_sinfo", "sinfo_args"))
        types = types or [type_ for part in node.args[2:] for type_ in tensor_types(part)]
        outputs = [self.tensor(type_) for type_ in types]
        name = dotted_name(node.args[0]).rsplit(".", 1)[-1] if node.args else ""
        if word in ("R.call_tir", "R.call_tir_inplace") and name in self.loops:
            self.call_loops(name, [*inputs, *outputs], name)
        else:
            label = name or (text_of(node.args[0]) if node.args else "")
            self.builder.op(f"call {label}", op_kind(label), numbers_of(inputs), outputs)
        return outputs[0] if len(outputs) == 1 else tuple(outputs)

    def call_loops(self, name: str, given_values: list[Value], fusion: str | None) -> None:
        """The blocks of a TIR function, as one kernel."""
        function = self.known_loops.setdefault(name, read_function(self.loops[name]))
        numbers = {
            parameter: value
            for parameter, value in zip(function.parameters, given_values, strict=False)
            if isinstance(value, int) and value >= 0
        }
        begins = self.builder.fusion < 0
        if begins:
            self.builder.begin_fusion(fusion or name)
        emit_function(self.builder, function, numbers)
        if begins:
            self.builder.end_fusion()

    def _operator(self, node: ast.Call, word: str, annotation: ast.expr | None, depth: int) -> Value:
        """An operator of Relax, whose result the annotation states."""
        parts = [self.value(part, None, depth + 1) for part in (*node.args, *(key.value for key in node.keywords))]
        inputs = numbers_of(parts)
        outputs = [self.tensor(type_) for type_ in tensor_types(annotation)]
        name = word.rsplit(".", 1)[-1]
        if not outputs:
            if inputs:
                self.builder.note(f"the result of {word[:60]} has no type: it is left out")
            return ()
        words: dict[str, object] = (
            {"equation": text_of(node.args[1]) if len(node.args) > 1 else ""} if name == "einsum" else {}
        )
        if name in COLLECTIVE_WORDS or word.startswith("R.ccl."):
            words = {}
        if "attention" in name:
            words = {"is_causal": bool(text_of(keyword_of(node, "causal_mask")))}
            name = "flash_attention"
        emit_aten(self.builder, AtenCall(word=name, inputs=inputs, outputs=outputs, words=words, namespace="relax"))
        return outputs[0] if len(outputs) == 1 else tuple(outputs)


def numbers_of(values: list[Value]) -> list[int]:
    """Tensors of values, those of tuples in order."""
    stack, numbers = list(reversed(values)), []
    while stack:
        part = stack.pop()
        if isinstance(part, tuple):
            stack.extend(reversed(part))
        elif part >= 0:
            numbers.append(part)
    return numbers
