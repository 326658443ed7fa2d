"""Turn `ridgeline query` into a call of the library.

0  done        2  the input cannot be used
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ridgeline.cli.spool import plain_files
from ridgeline.cli.terminal import Json, console, print_json
from ridgeline.cli.trace import Unit

OneTrace = Annotated[Path, typer.Argument(metavar="TRACE", help="A trace file, a folder of ranks, or - .")]
Sql = Annotated[str, typer.Argument(metavar="SQL", help="One SELECT over spans and counters.")]


def register(app: typer.Typer) -> None:
    """Give the command line the verb of this module."""
    app.command()(query)


def query(
    trace: OneTrace,
    sql: Sql = "SELECT * FROM spans",
    limit: Annotated[int, typer.Option(metavar="N", help="Most rows of the answer.")] = 10_000,
    seconds: Annotated[float, typer.Option(metavar="S", help="Longest time the query may take.")] = 60.0,
    unit: Unit = None,
    json: Json = False,
) -> None:
    """Ask a trace in SQL: a table `spans` with a row a span, a table `counters`; read-only and bounded."""
    from ridgeline.report.analyze import draw_query
    from ridgeline.trace import query as library

    with plain_files([trace]) as paths:
        answer = library(*paths, sql=sql, limit=limit, seconds=seconds, unit=unit)
    print_json(answer) if json else draw_query(answer, console())
