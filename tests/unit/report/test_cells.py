"""What terminal pages are made of: one minus sign, bars of eighths, lists and blocks; text of a stranger stays text."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest
from rich.console import Console, RenderableType
from rich.text import Text

from ridgeline.core.units import signed_quantity, signed_share
from ridgeline.report import cells
from ridgeline.report.cells import bar, blocks, clean, facts, grid, header_table, list_lines, signed_time, time

SOURCE = Path(cells.__file__).parents[1]


def drawn(what: RenderableType, width: int = 80) -> list[str]:
    file = io.StringIO()
    Console(file=file, width=width, highlight=False).print(what)
    return [line.rstrip() for line in file.getvalue().splitlines()]


@pytest.mark.parametrize("path", [*SOURCE.glob("report/*.py"), *SOURCE.glob("cli/*.py")], ids=lambda path: path.stem)
def test_signs_are_written_in_one_place(path: Path) -> None:
    """A format with its own plus would bring the hyphen back as a second minus."""
    assert not re.search(r":[<>^]?\d*\+[\d,]*(\.\d+)?[%efg]}", path.read_text(encoding="utf-8"))


@pytest.mark.parametrize("value", [0.0, 1e-9, 0.25, 77.3])
def test_a_difference_and_its_opposite_differ_in_the_sign_alone(value: float) -> None:
    for form in (signed_time, signed_share, lambda one: signed_quantity(one, "s")):
        plus = form(value)
        assert plus[0] == "+"
        assert form(-value)[1:] == plus[1:]
        assert form(-value)[0] == ("−" if value else form(-value)[0])


def test_a_signed_time_is_the_time_with_a_sign() -> None:
    assert signed_time(1234.5) == "+" + time(1234.5)


def test_a_bar_counts_eighths_and_never_leaves_its_room() -> None:
    assert [len(bar(share, "blue", 8).plain) for share in (0, 1e-9, 0.5, 1, 7)] == [0, 1, 4, 8, 8]
    assert bar(1 / 64, "blue", 8).plain == "▏"
    assert bar(-0.5, "blue", 8).plain == bar(0.5, "blue", 8).plain


def test_text_of_a_stranger_is_no_markup_and_moves_no_cursor() -> None:
    hostile = "[bold]a[/bold]\x1b[2J\x07\x9b"
    assert clean(hostile).plain == "[bold]a[/bold][2J"
    for made in (facts(("x", hostile)), header_table(["a"], title=hostile), list_lines("t", [hostile])[1]):
        assert "\x1b" not in "".join(drawn(made))


def test_lists_count_what_they_leave_out() -> None:
    assert list_lines("assumed", []) == []
    shown = [str(line) for line in list_lines("assumed", ["a", "b", "c"], most=2)]
    assert shown == ["assumed", "  - a", "  - b", "  … 1 more with --json"]
    assert len(list_lines("assumed", ["a", "b"], most=2)) == 3


def test_blocks_stand_apart_and_silent_ones_leave_no_gap() -> None:
    assert drawn(blocks([Text("a")], [], [Text("b"), Text("c")], [])) == ["a", "", "b", "c"]


def test_facts_that_say_nothing_are_left_out() -> None:
    assert drawn(facts(("a", "1"), ("b", ""), ("c", None), ("d", 0))) == ["a  1", "d  0"]


def test_numbers_end_at_one_edge() -> None:
    table = grid("left", "right")
    table.add_row("a", "1")
    table.add_row("b", "100")
    assert drawn(table) == ["a    1", "b  100"]
