"""A chip with numbers of one's own is called so in what every verb prints: no price, a wider interval, its changes."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from ridgeline.cli.main import main

SCENARIO = """
model = "llama3-8b"
system = "8xh100-sxm"
workload = { seq = 8192, global_batch = 64 }
plan = { tp = 2 }
"""
SYSTEM = """
base = "8xh100-sxm"
[chip]
base = "h100-sxm"
scaleup = { bandwidth = "900 GB/s" }
"""
FASTER = ("--set", "chip.hbm.bandwidth=6.7 TB/s")
TWICE = "8xh100-sxm with hbm.bandwidth x 2"
LINKS = "8xh100-sxm with scaleup.bandwidth x 2"


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "run.toml").write_text(SCENARIO, encoding="utf-8")
    (tmp_path / "faster.toml").write_text(SYSTEM, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["ridgeline", *words])
        with pytest.raises(SystemExit) as ended:
            main()
    out = capsys.readouterr()
    assert not ended.value.code, out.err
    return out.out


@pytest.mark.parametrize(
    ("words", "title"),
    [
        (("check", "run.toml", *FASTER), TWICE),
        (("predict", "run.toml", *FASTER), TWICE),
        (("diff", "run.toml", *FASTER), TWICE),
        (("plan", "run.toml", "--set", "plan.tp=2", "--set", "plan.pp=1", *FASTER), TWICE),
        (("roofline", "llama3-8b", "--on", "h100-sxm", *FASTER), "h100-sxm with hbm.bandwidth x 2"),
        (("roofline", "llama3-8b", "--on", "faster.toml"), "h100-sxm with scaleup.bandwidth x 2"),
        (("collective", "allreduce", "--on", "faster.toml", "--size", "1MB"), LINKS),
    ],
)
def test_the_changes_stand_in_the_title(
    words: tuple[str, ...], title: str, files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = printed(capsys, *words)
    assert title in page
    assert "USD" not in page


def test_the_page_of_a_timeline(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    printed(capsys, "timeline", "run.toml", *FASTER, "--html", "step.html")
    head = (files / "step.html").read_text(encoding="utf-8")[:4000]
    assert f"<title>Where does a step of llama3-8b on {TWICE} go?" in head


def test_the_interval_is_wider_and_there_is_no_price(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plain, changed = (json.loads(printed(capsys, "predict", "run.toml", "--json", *more)) for more in ((), FASTER))
    widths = [sheet["interval"]["high"] / sheet["interval"]["low"] for sheet in (plain, changed)]
    assert widths[1] > widths[0]
    assert plain["cost_usd"] is not None
    assert changed["cost_usd"] is None
    assert any("peak: dense bf16 of h100-sxm with hbm.bandwidth x 2" in note for note in changed["conventions"])


def test_a_file_and_a_setting_are_not_mixed(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["ridgeline", "roofline", "llama3-8b", "--on", "faster.toml", *FASTER])
        with pytest.raises(SystemExit) as ended:
            main()
    assert ended.value.code == 2
    assert "write them into that file" in capsys.readouterr().err
