"""Turn compiled HLO text into the op graph: each fusion a kernel, loops with their trip counts, collectives with ranks.

After XLA's optimisation an instruction of the entry computation is a kernel: a fusion with the ops inside it, a call of
a library, a collective. Before it (a module that is not scheduled) the same text has no fusions and reads like
StableHLO.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from ridgeline.compilers.build_graph import LEAST_WEIGHT, NO_FIGURES, GraphBuilder, OpFigures
from ridgeline.compilers.contractions import ContractedDims, contraction_kernel, convolution_kernel, matmul_dims
from ridgeline.compilers.hlo_text import ArrayShape, Computation, HloInstruction, HloModule, parse_hlo
from ridgeline.compilers.op_kinds import COLLECTIVE_WORDS, op_kind
from ridgeline.compilers.program_text import ProgramSource
from ridgeline.ir.op_graph import OpCollective, OpGraph, OpKind

DEEPEST_CALLS = 48
MOST_VISITS = 400_000
Value = int | tuple["Value", ...]
NO_VALUE: Value = -1
_SHARDING = re.compile(r"\bsharding=(\{(?:[^{}]|\{[^{}]*\})*\})")
_OP_NAME = re.compile(r'op_name="([^"]*)"')
_WRAPPER = re.compile(r"\(|->|^(while|body|cond|closed_call|checkpoint|remat|jit|pjit)$")  # of a path, not modules
_PIECES = ("dynamic-slice", "gather")
_ANNOTATIONS = (
    "Sharding",
    "SPMDFullToShardShape",
    "SPMDShardToFullShape",
    "AllocateBuffer",
    "annotate_device_placement",
)


def recognises(source: ProgramSource) -> bool:
    return bool(re.search(r"^HloModule\s", source.head, re.MULTILINE))


def read(source: ProgramSource) -> OpGraph:
    """The graph of the module's entry computation."""
    module = parse_hlo(source)
    is_scheduled = "is_scheduled=true" in module.head
    builder = GraphBuilder(source.path, "HLO" if is_scheduled else "HLO before scheduling", by="xla")
    walk = _HloWalk(module, builder)
    walk.enter(module.computations[module.entry], None)
    return builder.graph()


@dataclass(slots=True)
class _HloWalk:
    """One walk from the entry computation through what it calls."""

    module: HloModule
    builder: GraphBuilder
    values: dict[str, Value] = field(default_factory=dict)
    depth: int = 0
    visits: int = 0

    def enter(self, computation: Computation, given_values: Sequence[Value] | None) -> Value:
        """Emit a computation with these arguments (None: the program's own); what its root is."""
        if self.depth >= DEEPEST_CALLS:
            raise self.builder.refuse("computations that call each other", f"at most {DEEPEST_CALLS} levels")
        outer, self.values = self.values, {}
        self.depth += 1
        try:
            for instruction in computation.instructions:
                self.visits += 1
                if self.visits > MOST_VISITS:
                    raise self.builder.refuse("computations that are called again and again", "one program of a model")
                self.values[instruction.name] = self._emit(instruction, given_values)
            root = computation.root
            return self.values.get(root.name, NO_VALUE) if root else NO_VALUE
        finally:
            self.values = outer
            self.depth -= 1

    def tensors(self, instruction: HloInstruction) -> list[int]:
        """Tensors of its operands, those of tuples among them."""
        return [number for name in instruction.operands for number in flat(self.values.get(name, NO_VALUE))]

    def results(self, instruction: HloInstruction, alias_of: int = -1) -> list[int]:
        """A tensor for each array of its shape."""
        sharding = _SHARDING.search(instruction.attributes)
        words = sharding.group(1) if sharding else ""
        return [self.tensor(shape, alias_of=alias_of, sharding=words) for shape in instruction.arrays]

    def tensor(self, shape: ArrayShape, *, alias_of: int = -1, sharding: str = "", name: str = "") -> int:
        return self.builder.tensor(
            shape.dims,
            shape.element,
            alias_of=alias_of,
            sharding=sharding,
            name=name,
            role="input" if name else "activation",
        )

    def callee(self, instruction: HloInstruction, *keys: str) -> Computation | None:
        return next(
            (matches for key in keys if (matches := self.module.computations.get(instruction.called_computation(key)))),
            None,
        )

    def _emit(self, instruction: HloInstruction, given_values: Sequence[Value] | None) -> Value:
        """One instruction, and the value it stands for."""
        opcode = instruction.opcode
        self.builder.module = module_path(instruction.attributes)
        match opcode:
            case "parameter":
                return self._parameter(instruction, given_values)
            case "constant":
                return self._constant(instruction)
            case "tuple":
                return tuple(self.values.get(name, NO_VALUE) for name in instruction.operands)
            case "get-tuple-element":
                return self._element(instruction)
            case "fusion" | "call" | "async-start":
                return self._call(instruction)
            case "while":
                return self._while(instruction)
            case "conditional":
                return self._conditional(instruction)
            case "custom-call":
                return self._custom_call(instruction)
            case "dot" | "convolution":
                return self._product(instruction)
            case _ if opcode.endswith("-done") or opcode in ("async-update", "optimization-barrier"):
                return self._finish(instruction)
            case _ if opcode.removesuffix("-start").replace("-", "_") in COLLECTIVE_WORDS:
                return self._collective(instruction)
            case _:
                return self._plain(instruction)

    def _parameter(self, instruction: HloInstruction, given_values: Sequence[Value] | None) -> Value:
        place = int(instruction.argument) if instruction.argument.isdecimal() and len(instruction.argument) < 7 else 0
        if given_values is not None:
            return given_values[place] if place < len(given_values) else NO_VALUE
        sharding = _SHARDING.search(instruction.attributes)
        words = sharding.group(1) if sharding else ""
        name = _OP_NAME.search(instruction.attributes)
        label = name.group(1) if name else instruction.name
        return pack(instruction, [self.tensor(shape, sharding=words, name=label) for shape in instruction.arrays])

    def _constant(self, instruction: HloInstruction) -> Value:
        numbers = [self.builder.tensor(shape.dims, shape.element, role="constant") for shape in instruction.arrays]
        for number in numbers:
            elements = self.builder.tensors[number].elements
            if elements == 1:
                self.builder.constant_results.add(number)
            elif elements >= LEAST_WEIGHT:
                self.builder.set_role(number, "weight", instruction.name)
        return pack(instruction, numbers)

    def _element(self, instruction: HloInstruction) -> Value:
        place = re.search(r"\bindex=(\d{1,6})", instruction.attributes)
        whole_value = self.values.get(instruction.operands[0], NO_VALUE) if instruction.operands else NO_VALUE
        at = int(place.group(1)) if place else 0
        return whole_value[at] if isinstance(whole_value, tuple) and at < len(whole_value) else NO_VALUE

    def _call(self, instruction: HloInstruction) -> Value:
        """A fusion is one kernel; a call is written out."""
        callee = self.callee(instruction, "calls", "to_apply", "called_computation")
        if callee is None:
            return self._unknown(instruction)
        given_values = [self.values.get(name, NO_VALUE) for name in instruction.operands]
        begins = instruction.opcode == "fusion" and self.builder.fusion < 0
        if begins:
            self.builder.begin_fusion(instruction.name)
        return_values = self.enter(callee, given_values)
        if begins:
            self.builder.end_fusion()
        return return_values

    def _while(self, instruction: HloInstruction) -> Value:
        body = self.callee(instruction, "body")
        if body is None or not instruction.operands:
            return self._unknown(instruction)
        loop_values = self.values.get(instruction.operands[0], NO_VALUE)
        trips = self._trips(instruction)
        outer = self.builder.count
        self.builder.count = outer * max(trips, 1)
        return_values = self.enter(body, [loop_values])
        self.builder.count = outer
        return return_values if return_values != NO_VALUE else loop_values

    def _trips(self, instruction: HloInstruction) -> int:
        """What the compiler knows of a loop; else the one constant that its condition compares with; else 1."""
        known_values = re.search(r'"known_trip_count":\{"n":"?(\d{1,9})', instruction.attributes)
        if known_values:
            return int(known_values.group(1))
        condition = self.callee(instruction, "condition")
        numbers = [
            int(part.argument)
            for part in (condition.instructions if condition else ())
            if part.opcode == "constant" and part.argument.isdecimal() and len(part.argument) < 10
        ]
        if len(numbers) == 1:
            self.builder.note(f"{instruction.name} is taken to run {numbers[0]} times, the bound of its condition")
            return numbers[0]
        self.builder.note(f"{instruction.name} is counted once: how often it runs is not a constant")
        return 1

    def _conditional(self, instruction: HloInstruction) -> Value:
        names = re.search(r"branch_computations=\{([^}]*)\}", instruction.attributes)
        words = [word.strip().lstrip("%") for word in names.group(1).split(",")] if names else []
        words += [
            name for key in ("true_computation", "false_computation") if (name := instruction.called_computation(key))
        ]
        return_values: Value = NO_VALUE
        for place, word in enumerate(words[:1000]):
            if (branch := self.module.computations.get(word)) is not None:
                operand = instruction.operands[place + 1 : place + 2]
                return_values = self.enter(branch, [self.values.get(name, NO_VALUE) for name in operand])
        self.builder.note(f"every branch of {instruction.name} is counted: which one runs is not known")
        return return_values

    def _custom_call(self, instruction: HloInstruction) -> Value:
        match = re.search(r'custom_call_target="([^"]*)"', instruction.attributes)
        target = match.group(1) if match else ""
        if target in _ANNOTATIONS:
            return self.values.get(instruction.operands[0], NO_VALUE) if instruction.operands else NO_VALUE
        inputs, outputs = self.tensors(instruction), self.results(instruction)
        kernel, name = None, f"custom-call {target}"
        if any(word in target.lower() for word in ("gemm", "matmul", "dot")) and len(inputs) >= 2 and outputs:
            left_side, right, result = (self.builder.tensors[number] for number in (*inputs[:2], outputs[0]))
            kernel = contraction_kernel(
                left_side, right, result, library_dims(instruction.attributes, left_side.shape, right.shape)
            )
        kind: OpKind = "product" if kernel is not None else op_kind(target.lower())
        self.builder.op(name, kind, inputs, outputs, OpFigures(kernel=kernel))
        return pack(instruction, outputs)

    def _product(self, instruction: HloInstruction) -> Value:
        inputs, outputs = self.tensors(instruction), self.results(instruction)
        kernel = None
        if len(inputs) >= 2 and outputs:
            left_side, right, result = (self.builder.tensors[number] for number in (*inputs[:2], outputs[0]))
            if instruction.opcode == "dot":
                dims = ContractedDims(
                    left_dims=instruction.numbers("lhs_contracting_dims"),
                    right_dims=instruction.numbers("rhs_contracting_dims"),
                    left_batch=instruction.numbers("lhs_batch_dims"), right_batch=instruction.numbers("rhs_batch_dims"),
                )  # fmt: skip
                kernel = contraction_kernel(left_side, right, result, dims)
            else:
                labels = re.search(r"dim_labels=\w+_(\w+)->", instruction.attributes)
                groups = re.search(r"feature_group_count=(\d{1,9})", instruction.attributes)
                place = labels.group(1).find("o") if labels else -1
                kernel = convolution_kernel(left_side, right, result, place, int(groups.group(1)) if groups else 1)
        if kernel is None:
            self.builder.note(f"the sizes of {instruction.name} are not understood: no flops counted")
        self.builder.op(f"hlo.{instruction.opcode}", "product", inputs, outputs, OpFigures(kernel=kernel))
        return pack(instruction, outputs)

    def _collective(self, instruction: HloInstruction) -> Value:
        word = instruction.opcode.removesuffix("-start")
        inputs, outputs = self.tensors(instruction), self.results(instruction)
        if instruction.opcode.endswith("-start") and len(outputs) > 1:
            outputs = outputs[len(outputs) // 2 :][: max(len(inputs), 1)]
        ranks, groups = rank_groups(instruction.attributes)
        collective = OpCollective(kind=COLLECTIVE_WORDS[word.replace("-", "_")], ranks=ranks, groups=groups)
        self.builder.op(f"hlo.{word}", "collective", inputs, outputs, OpFigures(collective=collective))
        return outputs[0] if len(outputs) == 1 else tuple(outputs)

    def _finish(self, instruction: HloInstruction) -> Value:
        return self.values.get(instruction.operands[0], NO_VALUE) if instruction.operands else NO_VALUE

    def _unknown(self, instruction: HloInstruction) -> Value:
        outputs = self.results(instruction)
        self.builder.op(f"hlo.{instruction.opcode}", "unknown", self.tensors(instruction), outputs)
        return pack(instruction, outputs)

    def _plain(self, instruction: HloInstruction) -> Value:
        """Everything else by its opcode; a broadcast outside a fusion is a kernel, a reshape moves nothing."""
        opcode = instruction.opcode
        inputs = self.tensors(instruction)
        kind: OpKind = op_kind(opcode.removesuffix("-start").replace("-", "_"))
        if opcode == "broadcast" and self.builder.fusion < 0:
            kind = "copy"
        in_place = opcode == "dynamic-update-slice"
        alias = inputs[0] if inputs and (kind == "view" or in_place) else -1
        outputs = self.results(instruction, alias_of=alias)
        if kind == "view" and alias in self.builder.constant_results:
            self.builder.constant_results.update(outputs)
        figures = NO_FIGURES
        if opcode in _PIECES and outputs:
            written = sum(self.builder.tensors[number].bytes for number in outputs)
            figures = OpFigures(
                touched_bytes=written + sum(self.builder.tensors[number].bytes for number in inputs[1:])
            )
        elif opcode in ("dynamic-update-slice", "scatter") and len(inputs) > 1:
            update = self.builder.tensors[inputs[1 if in_place else -1]].bytes
            figures = OpFigures(touched_bytes=update, written=update)
        self.builder.op(f"hlo.{opcode}", kind, inputs, outputs, figures)
        return pack(instruction, outputs)


def flat(value: Value) -> list[int]:
    """Tensors of a value, without recursion."""
    stack, numbers = [value], []
    while stack:
        part = stack.pop()
        if isinstance(part, tuple):
            stack.extend(reversed(part))
        elif part >= 0:
            numbers.append(part)
    return numbers


def pack(instruction: HloInstruction, numbers: Sequence[int]) -> Value:
    """The value of an instruction with these tensors: a tuple where its shape is one."""
    if isinstance(instruction.shape, ArrayShape):
        return numbers[0] if numbers else NO_VALUE
    return tuple(numbers)


def module_path(attributes: str) -> str:
    """The path of what the user wrote, without wrappers of compilation and without the op.

    >>> module_path('metadata={op_name="jit(step)/jit(main)/layers_0/attention/dot_general"}')
    'layers_0.attention'
    """
    match = _OP_NAME.search(attributes)
    if match is None:
        return ""
    return ".".join(part for part in match.group(1)[:400].split("/")[:-1] if not _WRAPPER.search(part))


def rank_groups(attributes: str) -> tuple[int, tuple[tuple[int, ...], ...]]:
    """Ranks of a group and the groups, in the listed form and in the short one.

    >>> rank_groups("replica_groups={{0,1},{2,3}}"), rank_groups("replica_groups=[2,4]<=[8]")[0]
    ((2, ((0, 1), (2, 3))), 4)
    """
    listed_groups = re.search(r"replica_groups=\{((?:\{[\d,\s]*\},?\s*)+)\}", attributes)
    if listed_groups:
        groups = tuple(
            tuple(int(rank) for rank in re.findall(r"\d{1,9}", group))
            for group in re.findall(r"\{([\d,\s]*)\}", listed_groups.group(1))[:4096]
        )
        return max(map(len, groups), default=0), groups
    short = re.search(r"replica_groups=\[(\d{1,9}),(\d{1,9})\]<=", attributes)
    if short:
        return int(short.group(2)), ()
    pairs = re.search(r"source_target_pairs=\{((?:\{\d+,\d+\},?\s*)+)\}", attributes)
    return (pairs.group(1).count("{"), ()) if pairs else (0, ())


def library_dims(attributes: str, left_side: tuple[int, ...], right: tuple[int, ...]) -> ContractedDims:
    """Contracted dims of a library's product, from its configuration, else as frameworks write products."""
    start = attributes.find('"dot_dimension_numbers":')
    if start < 0:
        return matmul_dims(left_side, right)
    try:
        table, _ = json.JSONDecoder().raw_decode(attributes[start + len('"dot_dimension_numbers":') :].lstrip())
        names = (
            "lhs_contracting_dimensions",
            "rhs_contracting_dimensions",
            "lhs_batch_dimensions",
            "rhs_batch_dimensions",
        )
        dims = [tuple(int(str(dim)[:9]) for dim in table.get(name, ())) for name in names]
    except (ValueError, TypeError, AttributeError, RecursionError):
        return matmul_dims(left_side, right)
    return ContractedDims(left_dims=dims[0], right_dims=dims[1], left_batch=dims[2], right_batch=dims[3])
