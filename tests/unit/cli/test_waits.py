"""Waits show how far they are on a terminal's standard error, and end by a signal with what was reached."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from ridgeline.cli.terminal import progress_bar
from ridgeline.core.waits import until_stopped, write_together

ROOT = Path(__file__).parents[3]
SMALL = "model = 'tiny'\nsystem = '1xcpu'\n"
LIMIT_S = 120


@dataclass(frozen=True, kw_only=True)
class Ending:
    """How a command line on a terminal ended: code, standard output, what the terminal behind standard error got."""

    code: int
    out: str
    screen: str


def on_terminal(*words: str, cwd: Path, until: str = "", sent: int = signal.SIGTERM, times: int = 1) -> Ending:
    """Run a command with a terminal as standard error; send a signal once the terminal shows a text."""
    reader, writer = pty.openpty()
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "TERM": "xterm", "COLUMNS": "200"}
    process = subprocess.Popen(
        [sys.executable, "-m", "ridgeline", *words], cwd=cwd, env=environment, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=writer, text=True, start_new_session=True,
    )  # fmt: skip
    os.close(writer)
    screen, left, began = "", times if until else 0, time.monotonic()
    try:
        while time.monotonic() - began < LIMIT_S:
            if select.select([reader], [], [], 0.1)[0]:
                try:
                    screen += os.read(reader, 65536).decode("utf-8", "replace")
                except OSError:  # every writer is gone
                    break
            if left and until in screen:
                process.send_signal(sent)
                left -= 1
                time.sleep(0.2)
        out, _ = process.communicate(timeout=LIMIT_S)
    finally:
        process.kill()
        os.close(reader)
    return Ending(code=process.returncode, out=out, screen=screen)


def test_items_until_whoever_waits_asks_to_stop() -> None:
    asked: list[int] = []

    def wait(done: int, total: int, what: str = "", best: str = "") -> bool:
        asked.append(done)
        return done < 3

    assert list(until_stopped(range(9), wait, "numbers")) == [0, 1, 2]
    assert asked == [0, 1, 2, 3]
    assert list(until_stopped(range(9), lambda *_: False, "numbers")) == [0]


@pytest.mark.parametrize("which", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_asks_and_the_second_interrupts(which: int, capsys: pytest.CaptureFixture[str]) -> None:
    before = signal.getsignal(which)

    def count() -> None:
        with progress_bar("counting", stoppable=True, written="a.csv has it") as wait:
            assert wait(1, 5, "sheep", "two black ones")
            signal.raise_signal(which)
            assert not wait(2, 5, "sheep", "two black ones")
            signal.raise_signal(which)

    with pytest.raises(KeyboardInterrupt):
        count()
    told = "ridgeline: stopped while counting 2 of 5, sheep; so far two black ones; a.csv has it\n"
    assert capsys.readouterr().err == told
    assert signal.getsignal(which) is before


def test_a_wait_that_says_nothing_is_interrupted_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(KeyboardInterrupt), progress_bar("counting", stoppable=True):
        signal.raise_signal(signal.SIGTERM)
    assert capsys.readouterr().err == "ridgeline: stopped while counting; nothing was written\n"


def test_nothing_is_said_where_the_answer_is_for_programs(capsys: pytest.CaptureFixture[str]) -> None:
    def count() -> None:
        with progress_bar("counting", json=True) as wait:
            wait(1, 5)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        count()
    assert capsys.readouterr() == ("", "")


def test_files_that_belong_together_are_written_first() -> None:
    written: list[str] = []

    def write() -> None:
        with write_together():
            written.append("first")
            signal.raise_signal(signal.SIGTERM)
            written.append("second")

    with pytest.raises(KeyboardInterrupt):
        write()
    assert written == ["first", "second"]


# -- on a terminal ----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_validate_ends_with_the_rows_until_then(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    ending = on_terminal("validate", "inference", "--html", str(page), cwd=tmp_path, until="rows of inference")
    assert ending.code == 130
    assert "stopped while validating" in ending.screen
    assert "rows" in ending.out
    assert not page.exists()
    shown = on_terminal("validate", "inference", "--json", cwd=tmp_path, until="nothing is shown")
    assert (shown.code, shown.screen) == (0, "")
    assert len(json.loads(shown.out)["cases"]) > 100


@pytest.mark.slow
def test_fit_tells_the_best_fit_so_far_and_writes_nothing(tmp_path: Path) -> None:
    ending = on_terminal("fit", "--quick", cwd=tmp_path, until="off in the fit so far", sent=signal.SIGINT)
    assert ending.code == 130
    assert "% off in the fit; nothing was written" in ending.screen
    assert ending.out == ""


@pytest.mark.slow
def test_characterize_writes_the_rows_until_then_and_goes_on(tmp_path: Path) -> None:
    profile = tmp_path / "mine.json"
    words = ("characterize", "--device", "cpu", "--only", "gemm", "--minutes", "0.5", "-o", str(profile))
    ending = on_terminal(*words, cwd=tmp_path, until="FLOP/s in", sent=signal.SIGINT)
    assert ending.code == 130
    assert "stopped: `--resume` goes on" in ending.out
    rows = json.loads(profile.read_text())["rows"]
    assert rows
    assert all("died" not in str(row.get("why")) for row in rows)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine.json", "mine.json.journal"]
    again = on_terminal(*words, "--resume", "--json", cwd=tmp_path, until="", sent=0)
    assert again.screen == ""
    table = json.loads(again.out)
    assert (again.code, table["stopped"]) == (0, False)
    assert sum(table["rows"].values()) > len(rows)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.json"]


@pytest.mark.slow
def test_bringup_reports_what_was_judged_until_then(tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    words = ("bringup", "llama3.2-1b", "--device", "cpu", "-o", str(report))
    ending = on_terminal(*words, cwd=tmp_path, until="training step")
    assert ending.code == 130
    table = json.loads(report.read_text())
    assert table["not_run"] == {"the rest": "stopped"}
    assert table["fingerprint"]
    left = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
    assert str(tmp_path) not in left


@pytest.mark.slow
def test_import_of_a_folder_is_interrupted_without_a_file(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    os.mkfifo(folder / "pipe")  # no configuration file: it is passed over
    for number in range(40):
        (folder / f"part{number:02}.yaml").write_text("a: 1\n" * 20_000)
    written = tmp_path / "out.toml"
    words = ("import", str(folder), "--on", "8xh100-sxm", "-o", str(written))
    ending = on_terminal(*words, cwd=tmp_path, until="reading")
    assert ending.code == 130, ending
    assert "nothing was written" in ending.screen
    assert not written.exists()
