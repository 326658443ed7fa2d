"""Turn a CSV of measured runs into Rows, and pick some of them.

read_rows()                      everything that ships with Ridgeline
read_rows(path)                  a table of your own in the same schema
read_table(path)                 the same for every kind of table, beside its kind; residuals of `ridgeline explain`
                                 are training runs, one for each run they were taken from
where(rows, ["x_chip=h100-sxm"]) the rows whose column holds one of the values
headline(rows)                   the rows every published figure of Ridgeline is about
"""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Literal

from ridgeline.calibrate.truth import residual_table
from ridgeline.core.errors import InputError, Problem, near
from ridgeline.core.files import read_text

TRUTH = Path(__file__).parent
BUNDLED = ("training.csv", "training_a100_single_node.csv", "training_more.csv")
COLLECTIVES = "collectives.csv"
BIGGEST_TABLE = 64 * 1024 * 1024  # bytes
MOST_ROWS = 200_000
LONGEST_CELL = 100_000  # characters

Kind = Literal["training", "inference", "kernels", "collectives", "serving"]
# the columns without which a table is not of its kind; every other column may be absent, which reads as blank
NEEDED: Mapping[Kind, tuple[str, ...]] = MappingProxyType(
    {
        "training": ("id", "model_name", "gpus", "seq_len", "global_batch", "measured_metric", "measured_value"),
        "inference": ("id", "accelerator", "model", "isl", "osl", "metric", "value"),
        "kernels": ("id", "accelerator", "kernel", "shape", "metric", "value", "unit"),
        "collectives": ("id", "system", "ranks", "collective", "size_bytes"),
        "serving": ("id", "x_chip", "x_model", "x_rate", "x_isl", "x_osl"),
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One measured run: its cells as text, blank where nobody knows.

    table   the file it was read from
    source  who published it: the id up to its first dash
    """

    id: str
    table: str
    cells: Mapping[str, str]

    @property
    def source(self) -> str:
        """The id up to its first dash: `mbridge`, `mlperf`, `tpu`, ..."""
        return self.id.partition("-")[0]

    @property
    def group(self) -> str:
        """Rows of one group share a configuration: never fit on one and validate on another of the same group."""
        return self.cells.get("x_config_group", "") or self.id

    @property
    def chip(self) -> str:
        """The chip's catalog id where the table states it, otherwise the accelerator as written."""
        return self.cells.get("x_chip", "") or self.cells.get("accelerator", "")

    def __getitem__(self, column: str) -> str:
        """The cell as text; blank for a column the table lacks."""
        return self.cells.get(column, "")


def kind_of(columns: Iterable[str]) -> Kind | None:
    """Which table has these columns; None when no kind has all it needs.

    >>> kind_of(["id", "system", "ranks", "nodes", "collective", "size_bytes", "busbw_GBps"])
    'collectives'
    """
    names = set(columns)
    return next((kind for kind, required_columns in NEEDED.items() if names.issuperset(required_columns)), None)


def read_rows(path: Path | str | None = None) -> tuple[Row, ...]:
    """The rows of a training table, or of the tables that ship with Ridgeline; `InputError` for any other file."""
    if path is None:
        return tuple(row for name in BUNDLED for row in read_rows(TRUTH / name))
    return read_table(path, ("training",))[1]


def read_table(path: Path | str, kinds: tuple[Kind, ...] = tuple(NEEDED)) -> tuple[Kind, tuple[Row, ...]]:
    """The rows of a table and its kind, told by its columns; `InputError` for a table of no such kind."""
    path = Path(path)
    columns, lines = _read_csv(path)
    kind = kind_of(columns)
    if kind is None and "training" in kinds and set(columns).issuperset(residual_table.NEEDED):
        parts = [dict(zip(columns, cells, strict=True)) for _, cells in lines]
        runs = residual_table.runs_of(parts, str(path))
        return "training", tuple(Row(id=run["id"], table=path.name, cells=MappingProxyType(run)) for run in runs)
    if kind is None or kind not in kinds:
        missing = [column for column in NEEDED[kinds[0]] if column not in columns]
        given_text = f"a table of {kind}" if kind else f"a table without {', '.join(missing)}"
        kinds_text = " or ".join("training runs" if kind_name == "training" else kind_name for kind_name in kinds)
        todo = "see docs/concepts/truth.md for the columns"
        raise _refuse(path, given_text, f"a table of {kinds_text}", todo)
    place = columns.index("id")
    return kind, tuple(
        Row(
            id=cells[place] or f"line-{line}",
            table=path.name,
            cells=MappingProxyType(dict(zip(columns, cells, strict=True))),
        )
        for line, cells in lines
    )


def _read_csv(path: Path) -> tuple[list[str], list[tuple[int, list[str]]]]:
    """Column names, and the cells of every line that is not empty, without blanks around them."""
    text = read_text(path, BIGGEST_TABLE).removeprefix("\ufeff")
    if "\0" in text:
        raise _refuse(path, "a binary file", "CSV text", "export the table as CSV")
    reader = csv.reader(text.splitlines(keepends=True), strict=True)
    lines: list[tuple[int, list[str]]] = []
    try:
        columns = [name.strip() for name in next(reader, [])]
        for cells in reader:
            if any(len(cell) > LONGEST_CELL for cell in cells):
                raise _refuse(path, "a very long cell", f"at most {LONGEST_CELL} characters", "", reader.line_num)
            if cells and len(cells) != len(columns):
                given_text, expected_text = f"{len(cells)} cells", f"one for each of the {len(columns)} columns"
                raise _refuse(path, given_text, expected_text, "quote cells that hold commas", reader.line_num)
            if any(cells):
                lines.append((reader.line_num, [cell.strip() for cell in cells]))
            if len(lines) > MOST_ROWS:
                raise _refuse(path, "more rows", f"at most {MOST_ROWS} rows", "split the table")
    except csv.Error as wrong:
        raise _refuse(path, str(wrong), "CSV", "fix the quotes there", reader.line_num) from None
    twice = [name for name, times in Counter(columns).items() if times > 1]
    if twice:
        raise _refuse(path, f"column {twice[0]!r} twice", "columns of different names", "rename one")
    return columns, lines


def _refuse(path: Path, given: str, expected: str, todo: str, line: int = 0) -> InputError:
    where = f"{path}:{line}" if line else str(path)
    return InputError(Problem(path="", given=given, expected=expected, todo=todo, where=where))


def where(rows: Iterable[Row], filters: Iterable[str]) -> tuple[Row, ...]:
    """The rows that pass every `column=value[,value]`; `column=` asks for blank, `source=` takes the id's prefix too.

    >>> rows = read_rows()
    >>> len(where(rows, ["source=h200", "recompute=none,full"]))
    7
    """
    selection = all_rows = tuple(rows)
    columns = {column for row in all_rows for column in row.cells}
    for text in filters:
        column, equals, values = text.partition("=")
        column = column.strip()
        if not equals or not column:
            raise InputError(Problem(path="--where", given=repr(text), expected="column=value[,value]"))
        if all_rows and column not in columns:
            close = near(column, sorted(columns))
            expected_text = f"one of {', '.join(close)}" if close else f"one of the {len(columns)} columns"
            raise InputError(Problem(path="--where", given=repr(column), expected=expected_text))
        accepted_values = {value.strip() for value in values.split(",")}
        column_values = {row[column] for row in all_rows} | (
            {row.source for row in all_rows} if column == "source" else set()
        )
        for value in sorted(accepted_values - column_values - {""}):
            close = near(value, sorted(column_values))
            expected_text = (
                f"one of {', '.join(close)}" if close else f"one of the {len(column_values)} values of {column}"
            )
            raise InputError(Problem(path=f"--where {column}", given=repr(value), expected=expected_text))
        selection = tuple(
            row
            for row in selection
            if row[column] in accepted_values or (column == "source" and row.source in accepted_values)
        )
    return selection


def is_headline(row: Row) -> bool:
    """Everything known, pretraining, read from logs or tables, and not flagged as a known regression."""
    return (
        row["x_complete"] == "full"
        and row["x_task"] == "pretrain"
        and row["x_trust"] in ("A", "B")
        and "KNOWN_REGRESSION" not in row["x_flag"]
    )


def headline(rows: Iterable[Row]) -> tuple[Row, ...]:
    """The rows that published figures are about; the single-node and the later table are reported by themselves.

    >>> len(headline(read_rows()))
    436
    """
    return tuple(row for row in rows if is_headline(row) and row.table not in BUNDLED[1:])
