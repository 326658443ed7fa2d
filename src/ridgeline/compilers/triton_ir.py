"""Turn Triton's TTIR or TTGIR into the op graph of one program of the grid: what it loads, multiplies and stores.

Everything between loads and stores is in registers or shared memory, so a kernel is one fusion whose traffic is its
loads and stores. Loops run as often as their bounds say where these are numbers; `sizes` gives numbers to arguments
(`K`), and `grid` the programs of a launch, which multiply everything.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import prod

from ridgeline.compilers.build_graph import GraphBuilder, OpFigures
from ridgeline.compilers.contractions import contraction_kernel, matmul_dims
from ridgeline.compilers.mlir_functions import Walk, arguments_of, bind_results, entry_of, functions_of
from ridgeline.compilers.mlir_text import ShapedType, Statement, parse_mlir, result_types, shaped_types
from ridgeline.compilers.op_kinds import op_kind
from ridgeline.compilers.program_text import ProgramSource
from ridgeline.ir.op_graph import OpGraph, OpKind

_LOADS = (
    "load",
    "descriptor_load",
    "async_copy_global_to_local",
    "experimental_descriptor_load",
    "async_tma_copy_global_to_local",
)
_STORES = ("store", "descriptor_store", "atomic_rmw", "atomic_cas", "async_tma_copy_local_to_global")
_PRODUCTS = ("dot", "warp_group_dot", "tc_gen5_mma", "dot_scaled")
_QUIET = (
    "return", "reduce.return", "scan.return", "get_program_id", "get_num_programs", "make_range", "splat", "addptr",
    "make_tensor_ptr", "advance", "async_commit_group", "async_wait", "local_dealloc", "assert", "print", "yield",
    "local_alloc", "local_load", "local_store", "memdesc_index", "memdesc_subview", "memdesc_trans", "convert_layout",
    "broadcast", "expand_dims", "reshape", "trans", "int_to_ptr", "ptr_to_int", "bitcast", "make_tensor_descriptor",
    "warp_group_dot_wait", "fence_async_shared", "init_barrier", "inval_barrier", "wait_barrier", "barrier_expect",
    "call", "warp_specialize", "reinterpret_tensor_descriptor",
)  # fmt: skip
_COPIES = (
    "splat",
    "addptr",
    "broadcast",
    "expand_dims",
    "bitcast",
    "advance",
    "convert_layout",
    "make_tensor_descriptor",
    "make_tensor_ptr",
)
_CONSTANT = re.compile(r"^\s*(-?\d{1,18})\s*:")
_LOOP = re.compile(r"(%[\w.$-]+)\s*=\s*(%[\w.$-]+)\s+to\s+(%[\w.$-]+)\s+step\s+(%[\w.$-]+)")
_CARRIED = re.compile(r"(%[\w.$-]+)\s*=\s*(%[\w.$-]+(?:#\d+)?)")
MOST_TRIPS = 10**7
NO_SIZES: Mapping[str, int] = {}


def recognises(source: ProgramSource) -> bool:
    return bool(re.search(r"\btt\.(func|load|store|get_program_id)\b", source.head))


def read(source: ProgramSource, sizes: Mapping[str, int] = NO_SIZES) -> OpGraph:
    """The graph of one program of the kernel's grid, or of `sizes["grid"]` of them."""
    module = parse_mlir(source)
    kind = "Triton TTGIR" if '"ttg.num-warps"' in source.head else "Triton TTIR"
    builder = GraphBuilder(source.path, kind, by="triton")
    functions = functions_of(module)
    kernel = entry_of(functions)
    if kernel is None:
        raise builder.refuse("a module without a kernel", "a tt.func with a body", "dump it again")
    reading = _KernelReading(dict(sizes))
    walk = Walk(module, builder, reading.emit, functions=functions)
    for name, _ in arguments_of(kernel):
        reading.pointers[name] = name.lstrip("%")
        if (size := sizes.get(name.lstrip("%"))) is not None:
            walk.numbers[name] = float(size)
    builder.count = max(sizes.get("grid", 1), 1)
    if "grid" not in sizes:
        builder.note("figures are those of one program of the grid: how many a launch has is not in the text")
    builder.begin_fusion(kernel_name(kernel))
    walk.visit(kernel.regions[0])
    builder.end_fusion()
    return builder.graph()


def kernel_name(kernel: Statement) -> str:
    match = re.search(r"@([\w.$]+)", kernel.text)
    return match.group(1) if match else "kernel"


@dataclass(slots=True)
class _KernelReading:
    """What is known of a kernel's values: which argument a pointer comes from."""

    sizes: dict[str, int]
    pointers: dict[str, str] = field(default_factory=dict)

    def emit(self, walk: Walk, statement: Statement) -> None:
        """One statement as an op, where it does work."""
        dialect, _, word = statement.name.rpartition(".")
        if statement.name in ("scf.for", "scf.while"):
            self._loop(walk, statement)
        elif statement.name == "scf.if":
            for region in statement.regions:
                bind_results(walk, statement, walk.inside(region, statement.line))
            walk.builder.note(f"every branch of line {statement.line} is counted: which one runs is not known")
        elif statement.name == "arith.constant":
            self._constant(walk, statement)
        elif word in _LOADS:
            self._load(walk, statement)
        elif word in _STORES:
            self._store(walk, statement)
        elif word in _PRODUCTS:
            self._product(walk, statement)
        elif word in _QUIET or dialect == "gpu":
            self._follow(walk, statement, word)
        else:
            self._plain(walk, statement, dialect, word)

    def _constant(self, walk: Walk, statement: Statement) -> None:
        number = _CONSTANT.match(statement.text)
        if number and statement.results:
            walk.numbers[statement.results[0]] = float(number.group(1))
        if shaped_types(statement.text):
            walk.builder.constant_results.update(walk.results(statement, role="constant"))

    def _follow(self, walk: Walk, statement: Statement, word: str) -> None:
        """Values that only point, or are the same in another layout."""
        operands = statement.operands
        if word in _COPIES and operands:
            source = next((self.pointers[name] for name in operands if name in self.pointers), "")
            for name in statement.results:
                if source:
                    self.pointers[name] = source
        inputs = walk.operands(statement)
        if inputs and statement.results:
            bind_results(walk, statement, inputs[:1])
        elif statement.results and shaped_types(statement.text) and word in ("make_range", "splat"):
            walk.builder.constant_results.update(
                walk.builder.tensor(type_.shape, pointee(type_.element), role="constant")
                for type_ in result_types(statement)[:1]
            )

    def _memory(self, walk: Walk, statement: Statement, type_: ShapedType) -> int:
        """The tile of memory that a load or a store goes to."""
        name = next((self.pointers[value] for value in statement.operands if value in self.pointers), "")
        return walk.builder.tensor(type_.shape, pointee(type_.element), role="input", name=name)

    def _load(self, walk: Walk, statement: Statement) -> None:
        types = shaped_types(statement.text.rpartition(":")[2]) or [ShapedType(shape=(), element="f32")]
        asynchronous = "async" in statement.name
        tile = next((type_ for type_ in types if "ptr" in type_.element), types[-1 if not asynchronous else 0])
        memory = self._memory(walk, statement, tile)
        register = walk.builder.tensor(tile.shape, pointee(tile.element))
        walk.builder.op(statement.name, "copy", [memory], [register], OpFigures(written=0.0))
        for name in statement.results:
            walk.bind(name, register)

    def _store(self, walk: Walk, statement: Statement) -> None:
        types = shaped_types(statement.text.rpartition(":")[2]) or [ShapedType(shape=(), element="f32")]
        tile = next((type_ for type_ in types if "ptr" in type_.element), types[-1])
        memory = self._memory(walk, statement, tile)
        walk.builder.set_role(memory, "activation")
        kind: OpKind = "scatter" if "atomic" in statement.name else "copy"
        walk.builder.op(statement.name, kind, walk.operands(statement)[-1:], [memory], OpFigures(touched_bytes=0.0))

    def _product(self, walk: Walk, statement: Statement) -> None:
        """A product of tiles, whose shapes the types state."""
        types = shaped_types(statement.text)
        inputs = walk.operands(statement)
        outputs = walk.results(statement)
        kernel = None
        if len(types) >= 3:
            left_side, right, result = (
                walk.builder.tensors[walk.builder.tensor(type_.shape, type_.element)]
                for type_ in (*types[:2], types[-1])
            )
            kernel = contraction_kernel(left_side, right, result, matmul_dims(left_side.shape, right.shape))
        walk.builder.op(
            statement.name, "product", inputs, outputs, OpFigures(kernel=kernel, touched_bytes=0.0, written=0.0)
        )

    def _plain(self, walk: Walk, statement: Statement, dialect: str, word: str) -> None:
        """Arithmetic in registers: of tensors it is an op without traffic, of scalars nothing."""
        if not shaped_types(statement.text) and not statement.regions:
            self._scalar(walk, statement, word)
            return
        kind: OpKind = "reduction" if word in ("reduce", "scan") else "sort" if word == "histogram" else op_kind(word)
        if dialect in ("arith", "math") and kind == "unknown":
            kind = "pointwise"
        outputs = [walk.tensor(type_) for type_ in result_types(statement) if prod(type_.shape) > 0]
        if kind == "reduction" and not outputs:
            outputs = [walk.builder.tensor((), "f32") for _ in statement.results]  # of a whole row: one number
        for name, number in zip(statement.results, outputs, strict=False):
            walk.bind(name, number)
        walk.builder.op(
            statement.name, kind, walk.operands(statement), outputs, OpFigures(touched_bytes=0.0, written=0.0)
        )

    def _scalar(self, walk: Walk, statement: Statement, word: str) -> None:
        """Arithmetic of whole numbers that bounds of loops are made of."""
        if not statement.results:
            return
        known_values = [walk.numbers.get(name) for name in statement.operands]
        if len(known_values) == 2 and None not in known_values:
            left_side, right = (int(number) for number in known_values if number is not None)
            rule = _WHOLE.get(word)
            value = rule(left_side, right) if rule is not None else None
            if value is not None and abs(value) < 2**63:
                walk.numbers[statement.results[0]] = float(value)

    def _loop(self, walk: Walk, statement: Statement) -> None:
        """A loop, as often as its bounds say; once where they are not numbers."""
        bounds = _LOOP.search(statement.text)
        trips = 1
        numbers = [walk.numbers.get(name) for name in bounds.groups()[1:]] if bounds else []
        if bounds and None not in numbers and numbers[2]:
            first, last, step = (float(number or 0) for number in numbers)
            trips = max(0, min(int(-(-(last - first) // step)), MOST_TRIPS))
        else:
            todo = f", such as {bounds.group(3)[1:]}" if bounds else ""
            walk.builder.note(f"the loop in line {statement.line} is counted once: its bounds are arguments{todo}")
        loop_values = _CARRIED.findall(statement.text.partition("iter_args")[2])
        for inner, outer in loop_values:
            walk.values[inner] = walk.values.get(outer, -1)
            if outer in self.pointers:
                self.pointers[inner] = self.pointers[outer]
        outside = walk.builder.count
        walk.builder.count = outside * max(trips, 1)
        return_values = walk.inside(statement.regions[-1], statement.line) if statement.regions else []
        walk.builder.count = outside
        bind_results(walk, statement, return_values)


_WHOLE: Mapping[str, Callable[[int, int], int | None]] = {
    "addi": lambda left_side, right: left_side + right,
    "subi": lambda left_side, right: left_side - right,
    "muli": lambda left_side, right: left_side * right,
    "divsi": lambda left_side, right: left_side // right if right > 0 else None,
    "ceildivsi": lambda left_side, right: -(-left_side // right) if right > 0 else None,
    "minsi": min,
    "maxsi": max,
}


def pointee(element: str) -> str:
    """The element type that a pointer points to.

    >>> pointee("!tt.ptr<bf16>"), pointee("f32")
    ('bf16', 'f32')
    """
    match = re.match(r"!tt\.ptr<([\w]+)", element)
    return match.group(1) if match else element
