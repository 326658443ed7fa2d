"""The types of the sheets are what `--json` prints: real answers hold against their schemas; their page is fresh."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from copy import deepcopy
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from traces import Recipe, make, write

from ridgeline.cli.main import main
from ridgeline.core.schema import first_line, key_meanings, reachable_kinds, result_keys
from ridgeline.report.results import RESULTS, results_of, verb_schema

ROOT = Path(__file__).parents[3]
H200 = ROOT / "tests" / "data" / "h200"
EXAMPLE = str(ROOT / "examples" / "llama3-70b-64xh100.toml")
SMALL = str(ROOT / "examples" / "llama3.2-1b-1xh200.toml")
SERVE = str(ROOT / "examples" / "serve-llama3.1-8b-1xh100.toml")
FEW = ("--set", "workload.requests=60")
NEAR = ("llama3-8b", "--on", "8xh100-sxm,16xh100-sxm", "--global-batch", "64", "--set", "plan.pp=1..2")
Run = Callable[..., Any]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    def told(*words: str) -> Any:
        monkeypatch.setattr(sys, "argv", ["ridgeline", *words, "--json"])
        with pytest.raises(SystemExit):
            main()
        return json.loads(capsys.readouterr().out)

    return told


def wrong(verb: str, sheet: Any) -> list[str]:
    return [f"{'.'.join(map(str, one.path))}: {one.message[:200]}"
            for one in Draft202012Validator(verb_schema(verb)).iter_errors(sheet)]  # fmt: skip


@pytest.mark.parametrize(
    ("verb", "words"),
    [
        ("predict", (EXAMPLE,)),
        ("predict", (EXAMPLE, "--set", "plan.offload=optimizer")),
        ("predict", (EXAMPLE, "--set", "plan.tp=3")),
        ("predict", (SERVE, *FEW)),
        ("predict", (SERVE, *FEW, "--set", "model=llama3-70b")),
        ("explain", (SERVE, *FEW)),
        ("validate", ("serving", "--where", "x_workload=roleplay")),
        ("plan", (*NEAR, "--tokens", "1T")),
        ("plan", (EXAMPLE, "--set", "plan.tp=8", "--set", "plan.cp=1")),
        ("plan", ("llama3-70b", "--on", "8xh100-sxm", "--set", "plan.tp=2", "--set", "plan.shard=zero1")),
        ("plan", ("llama3-8b", "--on", "8xh100-sxm", "--set", "plan.tpp=2")),
        ("validate", ("--where", "source=h200")),
        ("validate", ("collectives", "--where", "source=stas")),
        ("export", (EXAMPLE, "--to", "megatron")),
        ("analyze", (str(H200 / "graphs.json.gz"), "--what-if", "matmul x2")),
        ("analyze", (str(H200 / "ncu-raw.csv.gz"),)),
        ("diff", (SMALL, str(H200 / "graphs.json.gz"))),
        ("explain", (SMALL, str(H200 / "graphs.json.gz"), "--force")),
    ],
)
def test_what_is_printed_is_what_the_types_say(run: Run, verb: str, words: tuple[str, ...]) -> None:
    sheet = run(verb, *words)
    assert wrong(verb, sheet) == []


def test_steps_streams_and_ranks_of_a_trace(run: Run, tmp_path: Path) -> None:
    for rank in range(2):
        write(make(Recipe(steps=3, rank=rank, world=2)), tmp_path / f"rank{rank}.json")
    sheet = run("analyze", str(tmp_path))
    assert sheet["steps"]
    assert sheet["streams"]
    assert wrong("analyze", sheet) == []


def test_an_export_read_back(run: Run, tmp_path: Path) -> None:
    sheet = run("export", EXAMPLE, "--to", "megatron", "-o", str(tmp_path))
    assert wrong("export", sheet) == []
    assert wrong("import", run("import", str(tmp_path), "--on", "64xh100-sxm")) == []


def test_a_sheet_that_differs_is_found_out(run: Run) -> None:
    good = run("predict", EXAMPLE)
    for change in (
        lambda sheet: sheet.pop("mfu"),
        lambda sheet: sheet.pop("schema_version"),
        lambda sheet: sheet.update(schema_version=0),
        lambda sheet: sheet["interval"].update(schema_version=1),
        lambda sheet: sheet.update(mfu="0.4"),
        lambda sheet: sheet.update(more=1),
        lambda sheet: sheet["interval"].pop("basis"),
        lambda sheet: sheet["stages"][0].update(stage=0.5),
    ):
        sheet = deepcopy(good)
        change(sheet)
        assert wrong("predict", sheet)


def records() -> list[type]:
    return list(dict.fromkeys(kind for verb in RESULTS for kind in reachable_kinds(results_of(verb))))


def test_every_record_says_what_it_is_and_names_are_used_once() -> None:
    found = records()
    assert len({kind.__name__ for kind in found}) == len(found) > 40
    assert [kind.__name__ for kind in found if not first_line(kind).endswith(".")] == []


def test_meanings_speak_of_keys_that_exist() -> None:
    for kind in records():
        names = {field.name for field in fields(kind)} | set(result_keys(kind))
        assert set(key_meanings(kind)) <= names, kind


def test_the_page_of_the_documentation_is_fresh() -> None:
    command = [sys.executable, "-m", "tools", "docs", "json", "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert (done.returncode, done.stderr) == (0, "")
