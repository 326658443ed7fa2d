"""Two reports of bring-up: what is newly wrong, missing or slower."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from command import run

from ridgeline.core.errors import InputError
from ridgeline.runtime.bringup.compare import diff_reports, is_report, read_report

FINDING = {"op": "aten.mm.default", "module": "head", "phase": "forward", "dtype": "float32", "statistic": "power"}


def report(**changes: Any) -> dict[str, Any]:
    timed = {"op": "aten.mm.default", "dtype": "bfloat16", "shapes": [[4, 4], [4, 4]], "calls": 2, "seconds": 1e-3}
    made = {
        "kind": "bringup", "model": "m", "device": "cuda", "verdict": "right", "findings": [],
        "environment": {"torch": "2.12", "device": "H200"}, "fingerprint": {"mm": {"fp32": {"bits": 24}}},
        "inventory": {"ops": {"aten.mm.default": 3}, "missing": [], "fallback": [{"op": "aten.topk.default"}]},
        "speed": {"ops": [{**timed, "spread": 0.02, "bound": "compute"}]},
    }  # fmt: skip
    return {**made, **changes}


def test_what_changed_is_told() -> None:
    slower = report()["speed"]["ops"][0] | {"seconds": 2e-3}
    after = report(
        verdict="wrong", findings=[FINDING], environment={"torch": "2.13", "device": "H200"},
        fingerprint={"mm": {"fp32": {"bits": 11}}}, speed={"ops": [slower]},
        inventory={"ops": {"aten.bmm.default": 1}, "missing": [{"op": "aten.silu.default"}], "fallback": []},
    )  # fmt: skip
    found = diff_reports(report(), after)
    assert found.worse
    assert found.new == (FINDING,)
    assert found.environment == {"torch": ("2.12", "2.13")}
    assert found.fingerprint == {"mm.fp32.bits": ("24", "11")}
    assert found.lacks["missing"] == ("aten.silu.default",)
    assert found.regained["fallback"] == ("aten.topk.default",)
    assert (found.ops, found.no_longer) == (("aten.bmm.default",), ("aten.mm.default",))
    assert found.step_ratio == pytest.approx(2.0)
    assert [one.ratio for one in found.changed] == [pytest.approx(2.0)]
    back = diff_reports(after, report())
    assert not back.worse
    assert back.gone == (FINDING,)


def test_less_than_its_spread_is_no_change() -> None:
    shaky = report()["speed"]["ops"][0] | {"seconds": 1.3e-3, "spread": 0.5}
    assert diff_reports(report(), report(speed={"ops": [shaky]})).changed == ()


def test_the_verb_and_its_exit_code(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = tmp_path / "a.json", tmp_path / "b.json"
    a.write_text(json.dumps(report()))
    b.write_text(json.dumps(report(verdict="wrong", findings=[FINDING | {"module": "\x1b[31m<b>"}])))
    assert is_report(a)
    code, out, _ = run(capsys, monkeypatch, "diff", str(a), str(b))
    assert code == 1
    assert "newly wrong" in out
    assert "\x1b[31m" not in out
    code, out, _ = run(capsys, monkeypatch, "diff", str(b), str(a), "--json")
    assert code == 0
    assert json.loads(out)["gone"][0]["op"] == "aten.mm.default"


@pytest.mark.parametrize("text", ["", "[]", '{"kind": "bringup"}', '{"kind": "bringup", "findings": 3}', "[" * 99999])
def test_what_is_no_report_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(InputError):
        read_report(tmp_path / "a.json")


def test_a_report_of_a_stranger_breaks_nothing() -> None:
    odd = report(
        findings=["x", {"op": 3}], inventory={"ops": [], "missing": "all"}, fingerprint=[1], environment=None,
        speed={"ops": [{"op": 1, "seconds": float("nan"), "shapes": 3}, {"seconds": -1, "shapes": []}, 7]},
    )  # fmt: skip
    found = diff_reports(odd, report())
    assert found.step_ratio is None
    assert diff_reports(report(), odd).changed == ()
