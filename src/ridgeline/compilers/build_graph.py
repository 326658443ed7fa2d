"""Turn the ops a reader meets, one by one, into an op graph: tensors numbered, bytes counted, what is unknown noted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from math import prod
from pathlib import Path

from ridgeline.compilers.element_types import ELEMENT_TYPES, WIDEST
from ridgeline.compilers.op_kinds import op_kind
from ridgeline.compilers.program_text import MOST_OPS, MOST_RESULTS, refuse_program
from ridgeline.core.dtype import DTYPES
from ridgeline.core.records import dataclass
from ridgeline.ir.kernel import Kernel
from ridgeline.ir.op_graph import (
    FREE_KINDS,
    GraphFusion,
    GraphOp,
    GraphTensor,
    OpCollective,
    OpGraph,
    OpKind,
    TensorRole,
    traffic,
)  # fmt: skip

MOST_ELEMENTS = 10**15  # of one tensor: a petabyte is no tensor of a program
MOST_RUNS = 10**9  # runs of an op inside loops
MOST_NOTES = 12
LEAST_WEIGHT = 16  # elements of a constant with different numbers from which it is read as a weight is


@dataclass(frozen=True, slots=True, kw_only=True)
class OpFigures:
    """What a reader knows of an op beyond its operands.

    kernel      the product it is
    flops       of one run
    touched_bytes   bytes it reads of its operands where it reads a part of them only; None: all
    written     bytes it writes where it writes a part of its result only; None: all
    """

    kernel: Kernel | None = None
    flops: float = 0.0
    touched_bytes: float | None = None
    written: float | None = None
    collective: OpCollective | None = None


NO_FIGURES = OpFigures()


class GraphBuilder:
    """A graph while it is read."""

    def __init__(self, path: Path, source: str, by: str = "") -> None:
        self.path, self.source, self.by = path, source, by
        self.tensors: list[GraphTensor] = []
        self.ops: list[GraphOp] = []
        self.unknown_words: Counter[str] = Counter()
        self.wide_types: set[str] = set()
        self._notes: dict[str, None] = {}
        self._fusions: list[tuple[str, list[int]]] = []
        self.constant_results: set[int] = set()  # tensors that cost nothing to read: one number repeated
        self.fusion = -1
        self.count = 1
        self.module = ""

    def tensor(
        self, shape: Sequence[int], dtype: str, *, role: TensorRole = "activation", name: str = "", alias_of: int = -1,
        sharding: str = "",
    ) -> int:  # fmt: skip
        """A tensor of the graph, and its number; a format that nobody knows is counted at the widest."""
        if len(self.tensors) >= MOST_RESULTS:
            raise self.refuse(f"more than {MOST_RESULTS:,} tensors", "a program of a model", "name one function of it")
        if prod(shape) > MOST_ELEMENTS:
            raise self.refuse(f"a tensor of {'x'.join(map(str, shape))[:80]}", f"at most {MOST_ELEMENTS:.0e} elements")
        format_id = ELEMENT_TYPES.get(dtype.strip(), dtype if dtype in ELEMENT_TYPES.values() else "")
        if not format_id:
            self.wide_types.add(dtype[:40])
        number = len(self.tensors)
        self.tensors.append(
            GraphTensor(
                id=number, shape=tuple(shape), dtype=format_id or WIDEST,
                role=role, name=name[:200], alias_of=alias_of, sharding=sharding[:400],
            )
        )  # fmt: skip
        return number

    def op(
        self, name: str, kind: OpKind, inputs: Iterable[int], outputs: Sequence[int], figures: OpFigures = NO_FIGURES
    ) -> int:
        """An op of the graph, which reads and writes each tensor once; views move nothing."""
        if len(self.ops) >= MOST_OPS:
            raise self.refuse(f"more than {MOST_OPS:,} ops", "a program of a model", "name one function of it")
        if kind == "reduction" and not outputs:
            kind = "unknown"
        if figures.kernel is not None and figures.kernel.dtype not in DTYPES:
            self.note(f"products of {figures.kernel.dtype} have no peak on any chip: priced by their bytes alone")
            figures, kind = replace(figures, kernel=None, flops=figures.kernel.flops), "unknown"
        operands = tuple(dict.fromkeys(tensor for tensor in inputs if tensor >= 0))
        free = kind in FREE_KINDS
        read = 0.0 if free else self._read_bytes(operands)
        written = 0.0 if free else traffic(self.tensors[tensor] for tensor in outputs)
        if kind == "unknown":
            self.unknown_words[name] += 1
        number = len(self.ops)
        self.ops.append(
            GraphOp(
                id=number, name=name[:120], kind=kind, inputs=operands, outputs=tuple(outputs),
                module=self.module[:300],
                flops=figures.kernel.flops if figures.kernel is not None else figures.flops,
                bytes_read=read if figures.touched_bytes is None else min(read, figures.touched_bytes),
                bytes_written=written if figures.written is None else min(written, figures.written),
                count=min(self.count, MOST_RUNS), fusion=self.fusion, kernel=figures.kernel,
                collective=figures.collective,
            )
        )  # fmt: skip
        if self.fusion >= 0:
            self._fusions[self.fusion][1].append(number)
        return number

    def _read_bytes(self, operands: Sequence[int]) -> float:
        """Bytes of operands: of a view as much as its memory has, of repeated numbers none."""
        return sum(
            min(self.tensors[tensor].bytes, self.tensors[self.storage(tensor)].bytes)
            for tensor in operands
            if tensor not in self.constant_results
        )

    def storage(self, tensor: int) -> int:
        """The tensor whose memory this one is."""
        while (base := self.tensors[tensor].alias_of) >= 0:
            tensor = base
        return tensor

    def set_role(self, tensor: int, role: TensorRole, name: str = "") -> None:
        """Say what a tensor is for, once it is known."""
        self.tensors[tensor] = replace(self.tensors[tensor], role=role, name=name or self.tensors[tensor].name)

    def set_alias(self, tensor: int, base: int) -> None:
        """Say whose memory a tensor shares; one that was numbered later shares none."""
        if base < tensor:
            self.tensors[tensor] = replace(self.tensors[tensor], alias_of=base)

    def set_sharding(self, tensor: int, sharding: str) -> None:
        """Say how ranks share a tensor."""
        self.tensors[tensor] = replace(self.tensors[tensor], sharding=sharding[:400])

    def word_op(self, dialect: str, word: str, inputs: Iterable[int], outputs: Sequence[int]) -> int:
        """An op by its word alone."""
        return self.op(f"{dialect}.{word}" if dialect else word, op_kind(word), inputs, outputs)

    def begin_fusion(self, name: str) -> None:
        """Ops from here on are one kernel."""
        self._fusions.append((name[:120], []))
        self.fusion = len(self._fusions) - 1

    def end_fusion(self) -> None:
        """Ops from here on are kernels of their own."""
        self.fusion = -1

    def note(self, sentence: str) -> None:
        """A sentence of what was taken for granted, once."""
        self._notes.setdefault(sentence[:300])

    def refuse(self, given: str, expected: str, todo: str = "", line: int = 0) -> Exception:
        """What is wrong with the program."""
        return refuse_program(self.path, given, expected, todo, line)

    def graph(self) -> OpGraph:
        """The graph that was read; fusions without ops are none."""
        ops = self.ops
        fusions: list[GraphFusion] = []
        places: dict[int, int] = {}
        for old, (name, members) in enumerate(self._fusions):
            if members:
                places[old] = len(fusions)
                fusions.append(GraphFusion(id=len(fusions), name=name, ops=tuple(members), by=self.by))
        if any(old != new for old, new in places.items()):
            ops = [replace(op, fusion=places[op.fusion]) if op.fusion >= 0 else op for op in ops]
        return OpGraph(
            name=self.path.name, source=self.source, tensors=tuple(self.tensors), ops=tuple(ops),
            fusions=tuple(fusions), notes=tuple(self._all_notes()),
        )  # fmt: skip

    def _all_notes(self) -> list[str]:
        notes = list(self._notes)
        if self.unknown_words:
            common = ", ".join(f"{word} ({times})" for word, times in self.unknown_words.most_common(8))
            notes.append(
                f"{sum(self.unknown_words.values())} ops are not known and are priced by their bytes alone: {common}"
            )
        if self.wide_types:
            notes.append(f"element types {', '.join(sorted(self.wide_types)[:8])} are counted at 8 bytes")
        return notes[:MOST_NOTES]
