"""The recorded tour plays within a minute, stands alone, and is found out when a command prints something else."""

from __future__ import annotations

import json
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tools.__main__ import main
from tools.docs import tour


def test_the_recording_is_one_that_asciinema_plays() -> None:
    head, *events = [json.loads(line) for line in tour.CAST.read_text(encoding="utf-8").splitlines()]
    assert (head["version"], head["width"], head["height"]) == (2, tour.COLUMNS, tour.ROWS)
    times = [begin for begin, _, _ in events]
    assert times == sorted(times)
    assert 40 < times[-1] <= tour.MOST_S
    assert {kind for _, kind, _ in events} == {"o"}
    text = re.sub("\x1b\\[[0-9;]*[A-Za-z]", "", "".join(data for _, _, data in events))
    assert all(f"$ {scene.command}\r\n" in text for scene in tour.SCENES)
    assert max(map(len, text.split("\r\n"))) <= tour.COLUMNS


def test_the_picture_stands_alone() -> None:
    text = tour.PICTURE.read_text(encoding="utf-8")
    root = ElementTree.fromstring(text)
    assert not list(root.iter("{http://www.w3.org/2000/svg}script"))
    assert set(re.findall(r"https?://[^\s\"]+", text)) == {"http://www.w3.org/2000/svg"}
    assert len(text) + tour.CAST.stat().st_size < tour.MOST_BYTES
    ends = [float(begin) + float(length) for begin, length in re.findall(r't.begin\+([\d.]+)s" dur="([\d.]+)s"', text)]
    assert max(ends) == pytest.approx(float(re.search(r'dur="([\d.]+)s"', text)[1]), abs=0.02)  # type: ignore[index]


def test_another_answer_is_found_out(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    before = tour.CAST.read_bytes(), tour.PICTURE.read_bytes()
    monkeypatch.setattr(tour, "answer", lambda command, folder: ["\x1b[1mstep\x1b[0m 1 s", "<&>"] * 4)
    assert main(["docs", "tour", "--check"]) == 1
    assert "docs/images/tour.svg is out of date" in capsys.readouterr().out
    assert before == (tour.CAST.read_bytes(), tour.PICTURE.read_bytes())


def test_too_long_a_tour_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tour, "answer", lambda command, folder: ["line"] * 20)
    monkeypatch.setattr(tour, "READ_S", 2.0)
    assert main(["docs", "tour"]) == 1


def test_a_command_prints_on_a_terminal_of_this_width(tmp_path: Path) -> None:
    lines = tour.answer("ridgeline show h100-sxm", tmp_path)
    assert any("\x1b[" in line for line in lines)
    assert max(len("".join(text for text, _ in tour.spans_of(line))) for line in lines) <= tour.COLUMNS
    with pytest.raises(SystemExit, match="expected"):
        tour.answer("ridgeline show h100-smx", tmp_path)
