"""`ridgeline predict` and `ridgeline timeline`: what they print, write and refuse."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command import run

EXAMPLES = Path(__file__).parents[3] / "examples"
EXAMPLE = str(EXAMPLES / "llama3-70b-64xh100.toml")


def test_page(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    code, out, err = run(capsys, monkeypatch, "predict", EXAMPLE)
    assert (code, err) == (0, "")
    for text in (
        "llama3-70b on 64xh100-sxm",
        "step ",
        "MFU",
        "limited by",
        "GiB of",
        "evidence",
        "90% probability",
        "█",
    ):
        assert text in out, text


def test_json(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    code, out, _ = run(capsys, monkeypatch, "predict", EXAMPLE, "--json", "--set", "plan.recompute=full")
    sheet = json.loads(out)
    assert (code, sheet["possible"], sheet["scenario"]["recompute"]) == (0, True, "full")
    assert sum(sheet["breakdown"].values()) == pytest.approx(sheet["step_time_s"], rel=1e-9)
    full = json.loads(run(capsys, monkeypatch, "predict", EXAMPLE, "--json", "--full-attention")[1])
    half = json.loads(run(capsys, monkeypatch, "predict", EXAMPLE, "--json")[1])
    assert full["mfu"] > half["mfu"]
    assert full["step_time_s"] == half["step_time_s"]


def test_what_does_not_fit_says_by_how_much(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    code, out, _ = run(capsys, monkeypatch, "predict", EXAMPLE, "--set", "plan.microbatch=16")
    assert code == 0
    assert out.startswith("does not fit: ")
    assert "GiB too much" in out.splitlines()[0]
    assert "USD" not in "".join(out.splitlines()[:6])


def test_a_phase_that_does_not_fit_says_so_first_and_prices_nothing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    decode = str(EXAMPLES / "llama3-70b-decode-4xh100.toml")
    wide = ("plan.precision.weights=bf16", "plan.tp=1", "plan.dp=4")
    _, out, _ = run(capsys, monkeypatch, "predict", decode, *(part for one in wide for part in ("--set", one)))
    assert out.startswith("does not fit: ")
    assert "USD per million" not in out
    assert "USD/M" not in out
    assert "weights stay bf16 though products are fp8-e4m3" in out
    _, out, _ = run(capsys, monkeypatch, "predict", decode, "--set", "workload.batch=100000")
    assert out.startswith("does not fit: the cache holds")
    assert "100,000" not in out.split("USD/M", 1)[1]


@pytest.mark.parametrize(
    ("setting", "field"),
    [
        ("plan.tp=3", "plan.tp"),
        ("plan.tp=-1", "plan.tp"),
        ("workload.seq=nan", "workload.seq"),
        ("chip.hbm.bandwidth=-1 TB/s", "chip.hbm.bandwidth"),
        ("chip.hbm.bandwidth=0 TB/s", "chip.hbm.bandwidth"),
        ("workload.kind=prefill", "workload"),
    ],
)
@pytest.mark.parametrize("verb", ["predict", "timeline"])
def test_refusals_name_the_field(
    verb: str,
    setting: str,
    field: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    more = ["-o", str(tmp_path / "trace.json")] if verb == "timeline" else []
    code, _, err = run(capsys, monkeypatch, verb, EXAMPLE, "--set", setting, *more)
    assert code == 2
    assert field in err
    assert "Traceback" not in err
    assert not list(tmp_path.iterdir())


def test_refusal_as_json(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    code, out, _ = run(capsys, monkeypatch, "predict", EXAMPLE, "--json", "--set", "plan.tp=3")
    answer = json.loads(out)
    assert (code, answer["possible"]) == (2, False)
    assert "plan.tp" in {problem["path"] for problem in answer["problems"]}


def test_timeline_file(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "trace.json"
    code, out, _ = run(capsys, monkeypatch, "timeline", EXAMPLE, "-o", str(target), "--set", "workload.global_batch=16")
    assert code == 0
    assert str(target) in out
    events = json.loads(target.read_text())["traceEvents"]
    names = {event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert names == {"stage 0", "stage 1"}
    assert any(event["ph"] == "C" and event["name"] == "memory" for event in events)
