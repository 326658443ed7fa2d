"""Turn a file into an op graph, whoever wrote it: `ridgeline graph -o`, or a compiler."""

from __future__ import annotations

from pathlib import Path

from ridgeline.compilers import read_program
from ridgeline.core.errors import InputError, Problem
from ridgeline.graph.compare_graphs import GraphComparison
from ridgeline.graph.graph_file import is_graph_file, read_graph
from ridgeline.hardware.chip import Chip
from ridgeline.ir.op_graph import OpGraph


def graph_of_file(path: Path) -> OpGraph:
    """The graph in a file; one that nobody knows is refused."""
    return read_graph(path) if is_graph_file(path) else read_program(path)


def compare_files(first: Path, second: Path, chip: Chip | None) -> GraphComparison:
    """Two files of one program beside each other on a chip."""
    if chip is None:
        raise InputError(Problem(path="--on", given="no chip", expected="a chip, on which both are priced"))
    return GraphComparison(first=graph_of_file(first), second=graph_of_file(second), chip=chip)
