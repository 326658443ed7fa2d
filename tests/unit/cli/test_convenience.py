"""What a newcomer types: no file, one side, a pipe, settings in any order, lengths in words, terminals of any width."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from command import run
from traces import Recipe, make, write

EXAMPLE = str(Path(__file__).parents[3] / "examples" / "llama3-70b-64xh100.toml")
Capture = pytest.CaptureFixture[str]
Patch = pytest.MonkeyPatch


def test_predict_needs_no_file(tmp_path: Path, capsys: Capture, monkeypatch: Patch) -> None:
    asked = ("--set", "plan.tp=8", "--set", "plan.shard=zero1", "--seq", "4k", "--global-batch", "64", "--json")
    code, out, _ = run(capsys, monkeypatch, "predict", "llama3-8b", "--on", "16xh100-sxm", *asked)
    sheet = json.loads(out)
    assert (code, sheet["scenario"]["seq"], sheet["scenario"]["sequences"]) == (0, 4096, 64)
    assert {"engine = megatron-core: not given; the default", "dp = 2: the chips that tp, pp and cp leave"} <= set(
        sheet["assumptions"]
    )
    (tmp_path / "run.toml").write_text(
        'model = "llama3-8b"\nsystem = "16xh100-sxm"\nworkload = { seq = 4096, global_batch = 64 }\n'
        'plan = { tp = 8, shard = "zero1" }\n',
        encoding="utf-8",
    )
    again = json.loads(run(capsys, monkeypatch, "predict", str(tmp_path / "run.toml"), "--json")[1])
    assert again["step_time_s"] == sheet["step_time_s"]


def test_predict_assumes_what_plan_assumes(capsys: Capture, monkeypatch: Patch) -> None:
    for chips in ("8xh100-sxm", "8xtpu-v5p"):
        asked = ("llama3-8b", "--on", chips, "--set", "plan.shard=zero3", "--set", "plan.recompute=full")
        found = json.loads(run(capsys, monkeypatch, "predict", *asked, "--json")[1])
        best = json.loads(run(capsys, monkeypatch, "plan", *asked, "--json", "--no-refine")[1])
        assert found["scenario"]["engine"] == best["plans"][0]["plan"].get("engine", "megatron-core")
        assert (found["scenario"]["seq"], found["scenario"]["sequences"]) == (8192, 1024)
        assert set(best["assumptions"]) & set(found["assumptions"]) >= {"global_batch = 1024 sequences: not given"}


def test_predict_without_a_file_tells_everything_at_once(capsys: Capture, monkeypatch: Patch) -> None:
    code, out, _ = run(
        capsys, monkeypatch, "predict", "llama3-8bb", "--on", "8xh100-smx", "--set", "plan.tpp=2", "--json"
    )
    found = {problem["path"]: problem["where"] for problem in json.loads(out)["problems"]}
    assert code == 2
    assert set(found) == {"model", "system", "plan.tpp"}
    assert found["plan.tpp"] == "--set"
    code, _, err = run(capsys, monkeypatch, "predict", "llama3-8b")
    assert (code, err.count("\n")) == (2, 1)
    assert "--on 64xh100-sxm" in err


def test_a_file_takes_another_machine(capsys: Capture, monkeypatch: Patch) -> None:
    sheet = json.loads(run(capsys, monkeypatch, "predict", EXAMPLE, "--on", "64xh200-sxm", "--json")[1])
    assert (sheet["scenario"]["system"], sheet["scenario"]["mesh"]) == ("64xh200-sxm", {"pp": 2, "dp": 4, "tp": 8})


def test_diff_changes_one_side(tmp_path: Path, capsys: Capture, monkeypatch: Patch) -> None:
    code, out, _ = run(capsys, monkeypatch, "diff", EXAMPLE, "--set", "plan.recompute=full", "--json")
    sheet = json.loads(out)
    assert (code, sheet["before"]["label"], sheet["after"]["label"]) == (
        0, "llama3-70b-64xh100.toml", "plan.recompute=full",
    )  # fmt: skip
    assert sheet["difference_s"] > 0
    code, _, err = run(capsys, monkeypatch, "diff", EXAMPLE)
    assert (code, "--set KEY=VALUE" in err) == (2, True)
    trace = write(make(Recipe()), tmp_path / "t.json")
    code, _, err = run(capsys, monkeypatch, "diff", str(trace), "--set", "plan.tp=2")
    assert (code, "one trace alone" in err) == (2, True)


def test_diff_knows_a_scenario_in_json_from_a_trace(tmp_path: Path, capsys: Capture, monkeypatch: Patch) -> None:
    table = {"model": "llama3-8b", "system": "8xh100-sxm", "workload": {"seq": 4096, "global_batch": 8}}
    for name, tp in (("a.json", 1), ("b.json", 2)):
        (tmp_path / name).write_text(json.dumps({**table, "plan": {"tp": tp}}), encoding="utf-8")
    code, out, err = run(capsys, monkeypatch, "diff", str(tmp_path / "a.json"), str(tmp_path / "b.json"), "--json")
    assert code == 0, err
    assert json.loads(out)["kind"] == "prediction diff"
    write(make(Recipe()), tmp_path / "t.json")
    code, out, err = run(capsys, monkeypatch, "diff", str(tmp_path / "a.json"), str(tmp_path / "t.json"), "--json")
    assert [json.loads(out)[side]["predicted"] for side in ("before", "after")] == [True, False], err


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("name", ["-", "/dev/stdin"])
def test_analyze_reads_standard_input(name: str, packed: bool, tmp_path: Path) -> None:
    trace = json.dumps(make(Recipe())).encode()
    done = subprocess.run(
        [sys.executable, "-m", "ridgeline", "analyze", name, "--json"],
        input=gzip.compress(trace) if packed else trace,
        capture_output=True,
    )
    sheet = json.loads(done.stdout)
    assert (sheet["sources"], sheet["chip"]) == (["stdin"], "h100-sxm")


def test_analyze_reads_a_named_pipe(tmp_path: Path, capsys: Capture, monkeypatch: Patch) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=lambda: pipe.write_text(json.dumps(make(Recipe())), encoding="utf-8"), daemon=True)
    writer.start()
    code, out, err = run(capsys, monkeypatch, "analyze", str(pipe), "--json")
    assert code == 0, err
    assert json.loads(out)["sources"] == ["pipe"]


def test_an_empty_pipe_is_told_by_its_name() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "ridgeline", "analyze", "-"], stdin=subprocess.DEVNULL, capture_output=True, text=True
    )
    assert done.returncode == 2
    assert done.stderr.startswith("ridgeline: standard input: got an empty file")


@pytest.mark.parametrize("verb", ["predict", "plan"])
def test_the_order_of_settings_does_not_matter(verb: str, capsys: Capture, monkeypatch: Patch) -> None:
    child, parent = ("--set", "plan.recompute.layers=2"), ("--set", "plan.recompute=full")
    small = ("llama3.2-1b", "--on", "8xh100-sxm", "--set", "plan.pp=2", "--global-batch", "64", "--json")
    more = ("--no-refine", "--top", "1") if verb == "plan" else ()
    found = []
    for settings in ((*child, *parent), (*parent, *child)):
        code, out, err = run(capsys, monkeypatch, verb, *small, *more, *settings)
        assert code == 0, err
        sheet = json.loads(out)
        found.append(sheet["scenario"]["recompute"] if verb == "predict" else sheet["plans"][0]["plan"]["recompute"])
    assert found[0] == found[1]
    assert found[0] in ("full (2 layers of each stage)", {"kind": "full", "layers": 2})


def test_lengths_in_words(capsys: Capture, monkeypatch: Patch) -> None:
    short = json.loads(run(capsys, monkeypatch, "show", "llama3-8b", "--seq", "1M", "--json")[1])[0]
    assert short["seq"] == 1048576
    told = json.loads(run(capsys, monkeypatch, "check", EXAMPLE, "--set", "workload.seq=16k", "--json")[1])
    assert told["scenario"]["workload"]["seq"] == 16384
    code, _, err = run(capsys, monkeypatch, "predict", "llama3-8b", "--on", "8xh100-sxm", "--seq", "1Q")
    assert (code, "128k (131,072)" in err) == (2, True)


@pytest.mark.parametrize("columns", ["60", "100"])
def test_a_pipe_is_as_wide_as_columns_says(columns: str, capsys: Capture, monkeypatch: Patch) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    for words in (("show", "h100-sxm", "tpu-v7x"), ("predict", EXAMPLE), ("check", EXAMPLE)):
        lines = run(capsys, monkeypatch, *words)[1].splitlines()
        assert max(map(len, lines)) <= int(columns), words
    monkeypatch.setenv("COLUMNS", "wide")
    assert max(map(len, run(capsys, monkeypatch, "predict", EXAMPLE)[1].splitlines())) > 100


def test_all_problems_of_a_file_in_one_round(tmp_path: Path, capsys: Capture, monkeypatch: Patch) -> None:
    (tmp_path / "run.toml").write_text(
        'model = "llama3-8bb"\nsystem = "8xh100-smx"\nworkload = { seq = 4096, globalbatch = 8 }\n'
        '[plan]\nschedule = "1b1f"\nengine = "megatrn"\nrecompute = [1]\ntpp = 2\n',
        encoding="utf-8",
    )
    out = run(capsys, monkeypatch, "check", str(tmp_path / "run.toml"), "--json")[1]
    assert {problem["path"] for problem in json.loads(out)["problems"]} == {
        "model", "system", "workload.globalbatch", "workload.global_batch", "plan.schedule.name", "plan.engine",
        "plan.recompute", "plan.tpp",
    }  # fmt: skip


def test_what_can_be_checked_is_checked_when_a_part_is_missing(capsys: Capture, monkeypatch: Patch) -> None:
    out = run(capsys, monkeypatch, "check", EXAMPLE, "--json", "--set", "system=64xh100-smx", "--set", "plan.tp=3")[1]
    assert {problem["path"] for problem in json.loads(out)["problems"]} == {"system", "plan.tp"}
    out = run(capsys, monkeypatch, "check", EXAMPLE, "--json", "--set", "workload.seq=16kk")[1]
    assert [problem["path"] for problem in json.loads(out)["problems"]] == ["workload.seq"]


def test_equal_plans_are_listed_once(capsys: Capture, monkeypatch: Patch) -> None:
    """On one chip sharding changes nothing."""
    asked = ("llama3.2-1b", "--on", "1xh100-sxm", "--global-batch", "4", "--no-refine", "--json")
    sheet = json.loads(run(capsys, monkeypatch, "plan", *asked)[1])
    for listed in (sheet["plans"], sheet["kinds"]):
        told = [(plan["step_time_s"], plan["peak_memory_bytes"]) for plan in listed]
        assert len(told) == len(set(told)) > 2


def test_the_fewest_chips_tell_what_another_batch_would_save(capsys: Capture, monkeypatch: Patch) -> None:
    """48 chips train 8 billion parameters in time if the batch divides by 3, and 1024 does not."""
    asked = ("llama3-8b", "--on", "h100-sxm", "--tokens", "1T", "--no-refine", "--json")
    sheet = json.loads(run(capsys, monkeypatch, "plan", *asked, "--days", "26", "--set", "plan.pp=1")[1])
    (told,) = [note for note in sheet["skipped"] if "would do with a global batch of" in note]
    chips, other = int(told.split()[0]), int(told.split("batch of ")[1].split()[0])
    assert chips % 3 == other % 3 == 0
    assert chips < int(sheet["system"].split("x")[0])
    words = ("--global-batch", str(other), "--chips", str(chips), "--set", "plan.pp=1")
    again = json.loads(run(capsys, monkeypatch, "plan", *asked, *words)[1])
    assert again["run"]["days"] <= 26
    words = ("--days", "26", "--global-batch", str(other), "--set", "plan.pp=1")
    divides = json.loads(run(capsys, monkeypatch, "plan", *asked, *words)[1])
    assert int(divides["system"].split("x")[0]) == chips
