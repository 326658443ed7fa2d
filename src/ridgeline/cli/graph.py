"""Turn `ridgeline graph` into a call of the library.

0  done        2  the model cannot be built, or its step cannot be recorded
"""

from __future__ import annotations

from pathlib import Path

import ridgeline
from ridgeline.cli.streams import say
from ridgeline.cli.terminal import answer, check_outputs, command_line
from ridgeline.core.errors import InputError, Problem
from ridgeline.core.files import write_text

WRITTEN = (".json", ".dot", ".html")


def graph(
    model: str, on: str = "", seq: int = 4096, batch: int = 1, compare: str = "", budget: str = "",
    operators: Path | None = None,
    output: Path | None = None, json: bool = False,
) -> None:  # fmt: skip
    """Record a training step op by op, without weights: what is fused now, what could be, and what it would gain."""
    from ridgeline.graph import GraphComparison, dot_text, write_graph

    if output is not None and output.suffix not in WRITTEN:
        raise InputError(Problem(path="-o", given=str(output), expected=" or ".join(f"FILE{end}" for end in WRITTEN)))
    check_outputs(output)
    report = ridgeline.graph(
        model, on=on, seq=seq, batch=batch, compare=compare, budget=budget, operators=operators
    )  # fmt: skip
    if output is not None:
        if output.suffix == ".html":
            from ridgeline.report import page

            write_text(output, page(report, command_line()))
        elif isinstance(report, GraphComparison):
            raise InputError(Problem(path="-o", given=str(output), expected="FILE.html, the page of two graphs"))
        elif output.suffix == ".json":
            write_graph(report.graph, output)
        else:
            write_text(output, dot_text(report.graph))
        say(f"wrote {output}", err=True)
    answer(report, json)
