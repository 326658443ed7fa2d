"""A fingerprint in the chip's profile: stored when asked, judged by, and held against the one that is taken."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from command import run

torch = pytest.importorskip("torch")

from ridgeline.runtime.bringup.faults import split  # noqa: E402
from ridgeline.runtime.bringup.findings import (  # noqa: E402
    BringUp,
    Fingerprint,
    Products,
    Rough,
)
from ridgeline.runtime.bringup.guard import Guard  # noqa: E402
from ridgeline.runtime.bringup.repro import Session  # noqa: E402
from ridgeline.runtime.bringup.run_parts import run_parts  # noqa: E402
from ridgeline.runtime.bringup.target import target_of  # noqa: E402

PROFILE = {
    "ridgeline_profile": 1, "chip": None, "device": {"name": "x"}, "minutes": 2.5,
    "rows": [{"op": "gemm", "impl": "torch", "dtype": "bf16", "m": 64, "n": 64, "k": 64, "s": 1e-6, "ok": True}],
}  # fmt: skip
CUTS = Products(factor_bits=8, bits=20.1, sums="toward zero", lean=-1e-6)


def printed(device: str, stored: Fingerprint | None) -> Session:
    """A run of which nothing but the fingerprint and the standing unit is wanted."""
    name, personality = split(device)
    found = BringUp(model="qwen3-0.6b", device=device, stored=stored)
    session = Session(
        target=target_of("qwen3-0.6b"), device=name, found=found, guard=Guard(), personality=personality
    )  # fmt: skip
    run_parts(session, only=("fingerprint",))
    return session


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    def taken(_target: Any, device: str, *, stored: Fingerprint | None = None, **_others: Any) -> BringUp:
        return printed(device, stored).found

    monkeypatch.setattr("ridgeline.runtime.bringup.bringup", taken)


@pytest.mark.usefixtures("quick")
def test_stored_when_asked_then_judged_by(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(PROFILE))
    verb = ("bringup", "qwen3-0.6b", "--device", "ridge", "--profile", str(path), "--json")
    code, out, _ = run(capsys, monkeypatch, *verb)
    first = json.loads(out)["fingerprint"]
    assert (code, first["judged_by"], first["changed"]) == (0, "taken", {})
    assert json.loads(path.read_text()) == PROFILE

    code, out, err = run(capsys, monkeypatch, *verb, "--save-fingerprint")
    assert code == 0
    assert "fingerprint is stored" in err
    held = json.loads(path.read_text())
    assert held.pop("fingerprint")["products"] == json.loads(out)["fingerprint"]["products"]
    assert held == PROFILE

    code, out, _ = run(capsys, monkeypatch, *verb)
    again = json.loads(out)["fingerprint"]
    assert (again["judged_by"], again["changed"]) == ("profile", {})
    told, page = (*verb[:3], "ridge:tf32", *verb[4:]), tmp_path / "page.html"
    _, out, _ = run(capsys, monkeypatch, *told, "--html", str(page))
    assert json.loads(out)["fingerprint"]["changed"]["products.fp32.factor_bits"] == ["24", "11"]
    assert "products.fp32.factor_bits: 24 -&gt; 11" in page.read_text()
    _, out, _ = run(capsys, monkeypatch, *told[:-1])
    assert "unlike the profile's fingerprint" in out

    code, _, err = run(capsys, monkeypatch, *verb[:-1], "--save-fingerprint")
    assert code == 2
    assert "has a fingerprint" in err


@pytest.mark.usefixtures("quick")
def test_what_cannot_be_stored_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(PROFILE))
    verb = ("bringup", "qwen3-0.6b", "--device", "ridge", "--save-fingerprint")
    code, _, err = run(capsys, monkeypatch, *verb)
    assert (code, "no --profile" in err) == (2, True)
    code, _, err = run(capsys, monkeypatch, *verb, "--profile", str(path), "--fault", "epsilon")
    assert (code, "a fault" in err) == (2, True)
    path.write_text(json.dumps(PROFILE | {"fingerprint": {"products": 3}}))
    code, _, err = run(capsys, monkeypatch, *verb[:-1], "--profile", str(path))
    assert (code, "fingerprint.products" in err, "Traceback" in err) == (2, True, False)


def test_judgements_go_by_the_stored_one() -> None:
    session = printed("ridge", Fingerprint(products={"bf16": CUTS}))
    assert session.guard.unit.cuts_off
    assert session.found.fingerprint is not None
    assert not session.found.fingerprint.cuts_off
    assert not printed("ridge", None).guard.unit.cuts_off
    taken = Fingerprint(products={"bf16": CUTS})
    assert "contracts of products allow for it" in taken.notes()[0]
    assert "allow" not in taken.notes(stored=session.found.fingerprint)[0]


def test_a_table_and_back() -> None:
    found = Fingerprint(
        products={"bf16": CUTS}, cast="down", denormals={"fp32": "kept"}, fma=False, fp8={"e5m2": "57344"},
        functions={"exp": Rough(ulp=1.0, bias=0.1), "sin": Rough(ulp=float("nan"), bias=0.0)},
    )  # fmt: skip
    table = json.loads(json.dumps(found.as_table(), allow_nan=False))
    assert "sin" not in table["functions"]
    assert Fingerprint.from_table(table).as_table() == table
    assert Fingerprint.from_table({}) == Fingerprint()
