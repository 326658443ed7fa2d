"""Turn a CSV of measured runs into Rows, pick some of them, and read their cells.

read_rows()                      everything that ships with Ridgeline
read_rows(path)                  a table of your own in the same schema
read_table(path)                 the same for every kind of table, beside its kind; residuals of `ridgeline explain`
                                 are training runs, one for each run they were taken from
where(rows, ["x_chip=h100-sxm"]) the rows whose column holds one of the values
headline(rows)                   the rows every published figure of Ridgeline is about
"""

from __future__ import annotations

import csv
import math
import re
import tomllib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Literal, TypeVar

from ridgeline.core.documents import JsonMapping
from ridgeline.core.errors import InputError, Problem, RidgelineError, near
from ridgeline.core.files import read_text

TRUTH = Path(__file__).parent
WORDS: JsonMapping = tomllib.loads((TRUTH / "words.toml").read_text(encoding="utf-8"))
BUNDLED = ("training.csv", "training_a100_single_node.csv", "training_more.csv", "training_layouts.csv")
BIGGEST_TABLE = 64 * 1024 * 1024  # bytes
MOST_ROWS = 200_000
LONGEST_CELL = 100_000  # characters

Kind = Literal["training", "inference", "kernels", "collectives", "serving", "rl", "fusion"]
NEEDED: Mapping[Kind, Sequence[str]] = WORDS["needed"]  # the columns without which a table is not of its kind


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
    if kind is None and "training" in kinds and set(columns).issuperset(RESIDUAL_NEEDED):
        parts = [dict(zip(columns, cells, strict=True)) for _, cells in lines]
        runs = runs_of(parts, str(path))
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
            expected_text = _one_of(column, columns, "columns")
            raise InputError(Problem(path="--where", given=repr(column), expected=expected_text))
        accepted_values = {value.strip() for value in values.split(",")}
        sources = {row.source for row in all_rows} if column == "source" else set()
        column_values = {row[column] for row in all_rows} | sources
        for value in sorted(accepted_values - column_values - {""}):
            expected_text = _one_of(value, column_values, f"values of {column}")
            raise InputError(Problem(path=f"--where {column}", given=repr(value), expected=expected_text))
        by_prefix = accepted_values if column == "source" else set()
        selection = tuple(row for row in selection if row[column] in accepted_values or row.source in by_prefix)
    return selection


def _one_of(given: str, known: Iterable[str], what: str) -> str:
    names = sorted(known)
    close = near(given, names)
    return f"one of {', '.join(close)}" if close else f"one of the {len(names)} {what}"


def in_headline(row: Row) -> bool:
    """Everything known, pretraining, read from logs or tables, no known regression; of the first table, since the
    single-node and the later one are reported by themselves."""
    return (
        row["x_complete"] == "full"
        and row["x_task"] == "pretrain"
        and row["x_trust"] in ("A", "B")
        and "KNOWN_REGRESSION" not in row["x_flag"]
        and row.table not in BUNDLED[1:]
    )


def headline(rows: Iterable[Row]) -> tuple[Row, ...]:
    """The rows that published figures are about.

    >>> len(headline(read_rows()))
    436
    """
    return tuple(row for row in rows if in_headline(row))


MOST = 10_000_000  # of anything that has no entry below
YES, NO = ("1", "1.0", "true", "yes", "on"), ("0", "0.0", "false", "no", "off")


@dataclass(frozen=True, slots=True, kw_only=True)
class Skipped:
    """A row that no scenario or no step time can be made from, and why; the reason begins with the column."""

    id: str
    reason: str


class Unusable(Exception):
    """Inside this floor only: a column's content ends the reading of a row. It leaves as a `Skipped`."""

    def __init__(self, column: str, why: str) -> None:
        super().__init__(f"{column}: {why}")


@dataclass(frozen=True, slots=True, kw_only=True)
class RowCells:
    """A row being read, with the assumptions made on the way."""

    row: Row
    notes: list[str] = field(default_factory=list)

    def text(self, column: str) -> str:
        """The cell as written."""
        return self.row[column]

    def note(self, assumption: str) -> None:
        """Remember what had to be assumed."""
        self.notes.append(assumption)

    def refuse_elsewhere(self, list_name: str) -> None:
        """Raise for a row that a list of `words.toml` says no formula here describes."""
        for column, pattern, why in WORDS[list_name]:
            if re.search(pattern, self.row[column]):
                raise Unusable(column, why)

    def number(self, column: str) -> float | None:
        """A finite number above zero; None for a blank cell."""
        text = self.row[column].replace(",", "")
        if not text:
            return None
        try:
            value = float(text)
        except ValueError:
            raise Unusable(column, f"got {self._short(column)}, expected a number") from None
        if not math.isfinite(value) or value <= 0:
            raise Unusable(column, f"got {self._short(column)}, expected a number above 0")
        return value

    def size(self, column: str) -> int | None:
        """A whole number from 0; None for a blank cell."""
        if self.row[column] in NO:
            return 0
        value = self.number(column)
        largest = WORDS["largest"].get(column, MOST)
        if value is None:
            return None
        if value != int(value) or value > largest:
            raise Unusable(column, f"got {self._short(column)}, expected a whole number up to {largest:,}")
        return int(value)

    def count(self, column: str) -> int | None:
        """A whole number from 1; None for a blank cell."""
        value = self.size(column)
        if value == 0:
            raise Unusable(column, "got 0, expected at least 1")
        return value

    def need(self, column: str) -> int:
        """A whole number from 1 that cannot be assumed."""
        value = self.count(column)
        if value is None:
            raise Unusable(column, "blank, and it cannot be guessed; fill the column in")
        return value

    def assume(self, column: str, default: int) -> int:
        """A whole number from 1; a blank is noted and becomes the default."""
        value = self.count(column)
        if value is None:
            self.note(f"{column} = {default}: blank in the table")
            return default
        return value

    def flag(self, column: str) -> bool | None:
        """Yes or no; None for a blank cell."""
        text = self.row[column].lower()
        if text in YES or text in NO:
            return text in YES
        if text:
            raise Unusable(column, f"got {self._short(column)}, expected 1 or 0")
        return None

    def word(self, column: str, known: Mapping[str, str]) -> str | None:
        """The word that the cell means by `known`; None for a blank cell."""
        text = self.row[column].lower()
        if not text:
            return None
        if text not in known:
            raise Unusable(column, f"got {self._short(column)}, expected one of {', '.join(known)}")
        return known[text]

    def hint(self, column: str, known: Mapping[str, str]) -> str | None:
        """As `word`; a word nobody knows is noted and read as blank."""
        text = self.row[column].lower()
        if text and text not in known:
            self.note(f"{column} = {text[:40]!r} is not known; read as blank")
        return known.get(text)

    def _short(self, column: str) -> str:
        return repr(self.row[column][:40])


Reading = TypeVar("Reading")


def read_or_skip(row: Row, read: Callable[[RowCells], Reading]) -> Reading | Skipped:
    """What a reader makes of a row, or why it cannot; never raises for what a row holds."""
    try:
        return read(RowCells(row=row))
    except Unusable as wrong:
        return Skipped(id=row.id, reason=str(wrong))
    except RidgelineError as wrong:
        return Skipped(id=row.id, reason=str(wrong).splitlines()[0])


RESIDUAL_COLUMNS = (
    "run", "model", "chip", "chips", "engine", "phase", "class", "predicted_s", "measured_s", "residual",
    "share_of_gap", "efficiency", "bound", "change", "source", "scenario",
)  # fmt: skip
"""The schema of a residual file: seconds of one step and chip, residual = predicted / measured - 1 (blank where nothing
was measured), share of the gap with sign, efficiency against the roofline where shapes were recorded; the scenario as
JSON, blank where the explanation was not made from a file."""
RESIDUAL_NEEDED = ("run", "phase", "class", "measured_s", "scenario")
TRAINING_COLUMNS = {
    "model_name": "model",
    "x_chip": "chip",
    "gpus": "chips",
    "x_engine": "engine",
}  # a training table's: ours


def runs_of(lines: Iterable[Mapping[str, str]], where: str) -> Iterator[dict[str, str]]:
    """The measured runs of a residual table, as cells of a training table; seconds of a run are the sum of its lines.

    >>> line = {"phase": "forward", "run": "own-a", "scenario": "{}"}
    >>> parts = [line | {"class": "matmul", "measured_s": "0.1"}, line | {"class": "loss", "measured_s": "0.02"}]
    >>> [run] = runs_of(parts, "")
    >>> run["id"], run["measured_metric"], run["measured_value"]
    ('own-a', 'step_time_s', '0.120000000')
    """
    parts_of: dict[tuple[str, str], list[Mapping[str, str]]] = {}
    spent: dict[tuple[str, str], float] = {}
    for number, line in enumerate(lines, 2):
        key = (line["run"] or f"line-{number}", line["scenario"])
        parts_of.setdefault(key, []).append(line)
        spent[key] = spent.get(key, 0.0) + _step_seconds(line["measured_s"], f"{where}:{number}")
    for (id, scenario), parts in parts_of.items():
        about = {column: parts[0].get(part_column, "") for column, part_column in TRAINING_COLUMNS.items()}
        yield about | {
            "id": id, "measured_metric": "step_time_s", "measured_value": f"{spent[id, scenario]:.9f}",
            "x_scenario": scenario or "{}", "x_complete": "full", "x_task": "pretrain", "x_trust": "A",
        }  # fmt: skip


def _step_seconds(text: str, where: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value) or value < 0:
        expected_text = "seconds of a step, 0 or more"
        raise InputError(Problem(path="measured_s", given=repr(text[:40]), expected=expected_text, where=where))
    return value
