"""`ridgeline analyze` from the command line: pages, JSON, and refusals without a traceback."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from traces import ODD, Recipe, known, make, write

SCENARIO = "examples/llama3.2-1b-1xh200.toml"


def run(*words: str, verb: str = "analyze") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "ridgeline.cli.main", verb, *words]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_json_holds_the_answers(tmp_path: Path) -> None:
    recipe = Recipe()
    done = run(str(write(make(recipe), tmp_path / "t.json.gz")), "--policy", "linked", "--json")
    assert done.returncode == 0
    sheet = json.loads(done.stdout)
    assert sheet["policy"] == "linked"
    assert sheet["idle_us"] == pytest.approx(known(recipe).idle_us)
    assert sheet["exposed_communication_us"] == pytest.approx(known(recipe).exposed_communication_us)
    assert sheet["chip"] == "h100-sxm"


def test_the_page_names_what_costs_most_and_no_control_characters(tmp_path: Path) -> None:
    trace = make(Recipe(gap_us=100.0))
    kernels = [event for event in trace["traceEvents"] if event.get("cat") == "kernel"]
    for event, name in zip(kernels, ODD, strict=False):
        event["name"] = name
    done = run(str(write(trace, tmp_path / "t.json")))
    assert done.returncode == 0
    assert "1. " in done.stdout
    assert "idle, host" in done.stdout
    assert "\x1b" not in done.stdout
    assert "\x07" not in done.stdout


@pytest.mark.parametrize(
    ("content", "words", "says"),
    [
        ("", [], "empty file"),
        ('{"a": 1}', [], "without an event list"),
        (None, [], "no such file"),
        (json.dumps(make(Recipe())), ["--policy", "some"], "all, linked"),
        (json.dumps(make(Recipe())), ["--chip", "h1000"], "chip"),
        (json.dumps(make(Recipe())), ["--classes", "none.toml"], "none.toml"),
    ],
)
def test_refusals(content: str | None, words: list[str], says: str, tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    if content is not None:
        path.write_text(content)
    done = run(str(path), *words)
    assert done.returncode == 2
    assert says in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("verb", "words", "says"),
    [
        ("diff", ["TRACE", "none.json"], "no such file"),
        ("diff", ["TRACE", "TRACE", "--set", "plan.tp=2"], "a scenario among A and B"),
        ("diff", [SCENARIO, SCENARIO, "--set", "plan.tp=3"], "a divisor of attention heads"),
        ("diff", ["TRACE", "TRACE", "--policy", "some"], "all, linked"),
        ("explain", [SCENARIO, "none.json"], "no such file"),
        ("explain", ["TRACE", "TRACE"], "model: got nothing"),
        ("explain", [SCENARIO, "TRACE", "--calibration", "none.json"], "no such file"),
        ("explain", [SCENARIO, "TRACE", "-o", "no-folder/r.csv"], "folder"),
        ("fit", ["--with", "none.csv"], "no such file"),
        ("fit", ["--with", "TRACE", "-o", "no-folder/c.json"], "which is no folder"),
        ("predict", [SCENARIO, "--calibration", "TRACE"], "expected a calibration"),
    ],
)
def test_refusals_of_the_other_verbs(verb: str, words: list[str], says: str, tmp_path: Path) -> None:
    trace = write(make(Recipe()), tmp_path / "t.json")
    done = run(*(str(trace) if word == "TRACE" else word for word in words), verb=verb)
    assert done.returncode == 2
    assert says in done.stderr
    assert "Traceback" not in done.stderr
