"""Turn a file into an op graph, whoever wrote it: `ridgeline graph -o`, or a compiler."""

from __future__ import annotations

from pathlib import Path

from ridgeline.compilers import read_program
from ridgeline.core.errors import InputError, Problem
from ridgeline.graph.compare_graphs import GraphComparison
from ridgeline.graph.graph_file import is_graph_file, read_graph
from ridgeline.graph.operators import apply_operators, read_operators
from ridgeline.hardware.chip import Chip
from ridgeline.ir.op_graph import OpGraph


def graph_of_file(path: Path, operators: Path | None = None) -> OpGraph:
    """The graph in a file, with figures for the operators that a TOML file declares; an unknown file is refused."""
    graph = read_graph(path) if is_graph_file(path) else read_program(path)
    return apply_operators(graph, read_operators(operators) if operators is not None else ())


def compare_files(first: Path, second: Path, chip: Chip | None, operators: Path | None = None) -> GraphComparison:
    """Two files of one program beside each other on a chip."""
    if chip is None:
        raise InputError(Problem(path="--on", given="no chip", expected="a chip, on which both are priced"))
    return GraphComparison(first=graph_of_file(first, operators), second=graph_of_file(second, operators), chip=chip)
