"""Spans as a table: what SQL sees is the timeline, and SQL can do nothing but read."""

from __future__ import annotations

import json
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console
from traces import Recipe, known, make, write
from typer.testing import CliRunner

import ridgeline
from ridgeline.cli.main import command_line
from ridgeline.core.errors import InputError
from ridgeline.report.analyze import draw_query
from ridgeline.trace.span_query import QueryAnswer, query


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(make(Recipe()), tmp_path_factory.mktemp("traces") / "t.json")


def test_sums_are_those_of_the_analysis(trace: Path) -> None:
    found = ridgeline.query(
        trace, sql="SELECT group_, sum(duration_us) AS us FROM spans WHERE group_ IS NOT NULL GROUP BY 1"
    )
    assert found.columns == ("group_", "us")
    answer = known(Recipe())
    assert dict(found.rows) == {"compute": answer.compute_us, "communication": answer.communication_us}
    rows = query(
        trace, sql="SELECT op, operands, class, step FROM spans WHERE class = 'matmul' ORDER BY id LIMIT 1"
    ).rows
    assert rows == (("aten::mm", "4096x1024 1024x4096", "matmul", 0),)
    joined = "SELECT count(*) FROM spans k JOIN spans c ON k.launch_id = c.id WHERE c.start_us > k.start_us"
    assert query(trace, sql=joined).rows == ((0,),)


@pytest.mark.parametrize(
    "sql",
    [
        "DROP TABLE spans", "INSERT INTO spans (id) VALUES (1)", "ATTACH '/etc/passwd' AS x", "PRAGMA query_only = OFF",
        "SELECT load_extension('x')", "VACUUM INTO '/tmp/x'", "CREATE TABLE x (y)", "SELECT 1; SELECT 2",
        "SELECT writefile('/tmp/x', 'y')", "SELECT nothing FROM spans", "\x00", "SELECT randomblob(1000000000)",
        "DETACH main", "BEGIN",
    ],
)  # fmt: skip
def test_nothing_but_reading(sql: str, trace: Path) -> None:
    with pytest.raises(InputError, match="spans"):
        query(trace, sql=sql)


def test_large_values_are_not_built(trace: Path) -> None:
    assert query(trace, sql="SELECT printf('%.*c', 1000000000, 'x')").rows == ((None,),)


def test_bounds(trace: Path) -> None:
    endless = "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) SELECT max(x) FROM c"
    with pytest.raises(InputError, match=r"more than 0\.1 s"):
        query(trace, sql=endless, seconds=0.1)
    found = query(trace, limit=3)
    assert (len(found.rows), found.truncated) == (3, True)
    with pytest.raises(InputError, match="rows"):
        query(trace, limit=0)


def test_without_a_question_the_first_spans_are_shown_and_the_rest_counted(tmp_path: Path) -> None:
    trace = str(write(make(Recipe(steps=4, layers=8)), tmp_path / "t.json"))
    spans = len(ridgeline.read_timeline(trace))
    shown = CliRunner().invoke(command_line(), ["query", trace]).stdout
    assert f"50 rows shown, {spans - 50:,} more: --limit N, or --json for all" in shown
    assert "more" not in CliRunner().invoke(command_line(), ["query", trace, "--limit", str(spans)]).stdout
    sheet = json.loads(CliRunner().invoke(command_line(), ["query", trace, "--json"]).stdout)
    assert len(sheet["rows"]) == sheet["total"] == spans


def test_drawing_ends_when_the_time_is_over(trace: Path) -> None:
    rows = tuple((place,) for place in range(3000))
    screen = Console(file=StringIO(), width=80)
    draw_query(QueryAnswer(sql="", columns=("n",), rows=rows, truncated=False, draws_s=0.0), screen)
    printed = screen.file.getvalue()
    assert "500 of 3,000 rows printed in the time that --seconds allows" in printed
    assert "2999" not in printed


def test_the_command(trace: Path) -> None:
    sql = "SELECT count(*) AS n FROM spans WHERE kind = 'kernel'"
    done = CliRunner().invoke(command_line(), ["query", str(trace), sql, "--json"])
    assert json.loads(done.stdout) == {
        "schema_version": 1, "kind": "query", "sql": sql, "columns": ["n"], "rows": [[24]], "truncated": False,
        "warnings": [],
    }  # fmt: skip
    assert "24" in CliRunner().invoke(command_line(), ["query", str(trace), sql]).stdout
