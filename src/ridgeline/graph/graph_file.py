"""Turn an op graph into a JSON file and back: what `ridgeline graph -o FILE` writes and every use of a graph reads."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from ridgeline.core.documents import JsonObject
from ridgeline.core.encode import encode
from ridgeline.core.errors import InputError, Problem
from ridgeline.core.files import read_table, write_text
from ridgeline.core.table import decode
from ridgeline.ir.op_graph import OpGraph

FORMAT = "ridgeline op graph 1"
START = 200  # characters of a file in which its format is named


def write_graph(graph: OpGraph, file: Path) -> None:
    """Write a graph, which `read_graph` reads."""
    write_text(file, json.dumps({"format": FORMAT, **encode(graph)}, separators=(",", ":")) + "\n")


def is_graph_file(file: Path) -> bool:
    """Whether a file says that it holds an op graph."""
    if file.suffix != ".json" or not file.is_file():
        return False
    with file.open("rb") as stream:
        return FORMAT.encode() in stream.read(START)


def read_graph(file: Path) -> OpGraph:
    """The graph that a file holds; numbers that point nowhere are refused."""
    table: JsonObject = dict(read_table(file).data)
    if table.pop("format", None) != FORMAT:
        todo = "write one with ridgeline graph MODEL -o FILE.json"
        raise InputError(Problem(path=str(file), given="another JSON file", expected="an op graph", todo=todo))
    graph = decode(OpGraph, table, "graph")
    _refuse_loose_ends(graph, file)
    return graph


def _refuse_loose_ends(graph: OpGraph, file: Path) -> None:
    """Every number in a graph is the place of a tensor, an op or a fusion."""
    sizes = (len(graph.tensors), len(graph.ops))
    places = [
        ("tensors", [tensor.id for tensor in graph.tensors] == list(range(sizes[0]))),
        ("ops", [op.id for op in graph.ops] == list(range(sizes[1]))),
        ("tensors.alias_of", _within((tensor.alias_of for tensor in graph.tensors), sizes[0], least=-1)),
        ("ops.inputs", _within((tensor for op in graph.ops for tensor in op.inputs), sizes[0])),
        ("ops.outputs", _within((tensor for op in graph.ops for tensor in op.outputs), sizes[0])),
        ("ops.fusion", _within((op.fusion for op in graph.ops), len(graph.fusions), least=-1)),
        ("ops.count", all(op.count >= 0 for op in graph.ops)),
        ("fusions", [fusion.id for fusion in graph.fusions] == list(range(len(graph.fusions)))),
        ("fusions.ops", _within((op for fusion in graph.fusions for op in fusion.ops), sizes[1])),
    ]
    problems = [
        Problem(path=f"{file}: {path}", given="numbers out of place", expected="places of tensors, ops and fusions")
        for path, right in places
        if not right
    ]
    if problems:
        raise InputError(problems)


def _within(numbers: Iterable[int], end: int, least: int = 0) -> bool:
    return all(least <= number < end for number in numbers)
