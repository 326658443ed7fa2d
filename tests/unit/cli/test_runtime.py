"""`ridgeline characterize` and `ridgeline preflight`: answers, refusals, and machines without torch."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import jsonschema
import pytest
from command import run

from ridgeline.report.results import verb_schema

pytest.importorskip("torch")


def test_a_short_run_on_this_cpu(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = tmp_path / "cpu.json"
    arguments = ("--device", "cpu", "--minutes", "0.5", "--only", "host", "--chip", "h100-sxm", "-o", str(path))
    code, out, err = run(capsys, monkeypatch, "characterize", *arguments, "--json")
    assert (code, err) == (0, "")
    sheet = json.loads(out)
    jsonschema.validate(sheet, verb_schema("characterize"))
    assert sheet["output"] == str(path)
    assert sheet["chip"] == "h100-sxm"
    assert sheet["rows"]["launch"] >= 5
    assert {one["op"] for one in sheet["failures"]} == {"launch", "graph"}
    assert [one["what"] for one in sheet["ceilings"]] == ["launch kernel"]
    whole = tmp_path / "both.json"
    merge = ("characterize", "--merge", str(path), "--merge", str(path), "-o", str(whole))
    code, out, _ = run(capsys, monkeypatch, *merge)
    assert code == 0
    assert str(whole) in out
    table = json.loads(whole.read_text())
    assert [one["rank"] for one in table["ranks"]] == [0, 1]
    assert {row["rank"] for row in table["rows"]} == {0, 1}


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--only", "gem"), "--only: got 'gem', expected one of gemm, grouped"),
        (("--only", "host,gem"), "did you mean 'gemm'?"),
        (("--minutes", "-1"), "--minutes: got -1, expected a number above 0 and up to 1440"),
        (("--minutes", "nan"), "--minutes: got nan"),
        (("--chip", "h100-smx"), "h100-sxm"),
        (("--import", "os; print(1)"), "--import: got 'os; print(1)', expected the name of a Python package"),
        (("-o", "nowhere/profile.json"), "nowhere"),
        (("--merge", "absent.json"), "no such file"),
        (("--device", "abacus"), "'abacus'"),
    ],
)
def test_wrong_input_is_refused_with_advice(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    arguments: tuple[str, ...],
    told: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, err = run(capsys, monkeypatch, "characterize", *arguments)
    assert (code, out) == (2, "")
    assert told in err
    assert list(tmp_path.iterdir()) == []


def test_what_is_no_profile_is_not_merged(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for text in ("{}", '{"ridgeline_profile": 9, "rows": []}', '{"ridgeline_profile": 1, "rows": [3]}', "[1]", "{"):
        (tmp_path / "x.json").write_text(text)
        where = ("--merge", str(tmp_path / "x.json"), "-o", str(tmp_path / "y.json"))
        code, _, err = run(capsys, monkeypatch, "characterize", *where)
        assert code == 2
        assert "expected" in err
        assert not (tmp_path / "y.json").exists()


@pytest.mark.parametrize("verb", ["characterize", "preflight"])
def test_without_torch_there_is_a_message(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, verb: str
) -> None:
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name == "torch" else real(name, *rest))
    monkeypatch.chdir(tmp_path)
    code, _, err = run(capsys, monkeypatch, verb, "--device", "cpu")
    assert code == 2
    assert "got no module torch, expected torch; `pip install ridgeline[torch]`" in err


def test_the_standalone_file_is_written(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    code, out, _ = run(capsys, monkeypatch, "characterize", "--standalone", str(tmp_path / "c.pyz"))
    assert (code, "python c.pyz --device cuda" in out) == (0, True)
    assert (tmp_path / "c.pyz").read_bytes().startswith(b"#!/usr/bin/env python3\nPK")


def test_one_rank_is_compared_with_a_reference(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("RANK", "WORLD_SIZE", "SLURM_PROCID"):
        monkeypatch.delenv(name, raising=False)
    rows = [{"op": "launch", "impl": "torch", "dtype": "", "kind": "kernel", "s": 1e-12, "ok": True}]
    (tmp_path / "p.json").write_text(json.dumps({"ridgeline_profile": 1, "device": {"type": "cpu"}, "rows": rows}))
    arguments = ("preflight", "--device", "cpu", "--reference", str(tmp_path / "p.json"))
    code, out, _ = run(capsys, monkeypatch, *arguments, "--json")
    assert code == 1
    sheet = json.loads(out)
    jsonschema.validate(sheet, verb_schema("preflight"))
    assert [(one["kind"], one["what"]) for one in sheet["outliers"]] == [("reference", "launch")]
    code, out, _ = run(capsys, monkeypatch, *arguments)
    assert code == 1
    assert "on the reference (1e-12 s)" in " ".join(out.split()) or "slow chip" in out
