"""What is installed here, and which verbs would need more."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from command import run

from ridgeline.cli.verbs import VERBS
from ridgeline.runtime import installation as room
from ridgeline.runtime.installation import VERBS_OF_EXTRA, Doctor, _requirements, doctor, is_version_within


@pytest.fixture
def fake_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch is not loaded: its answer is."""
    rows = json.dumps([{"kind": "npu", "name": "910C", "count": 8, "memory_bytes": 64 * 10**9}])
    answer = subprocess.CompletedProcess([], 0, stdout=f"a warning\n{rows}\n", stderr="")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: answer)


@pytest.mark.usefixtures("fake_devices")
def test_packages_extras_devices_and_profiles(tmp_path: Path) -> None:
    (tmp_path / "mine.json").write_text('{\n  "ridgeline_profile": 1,\n')
    (tmp_path / "other.json").write_text("{}")
    found = doctor(tmp_path)
    assert found.healthy
    assert {"numpy", "typer", "rich"} <= {package.name for package in found.packages}
    torch = next(extra for extra in found.extras if extra.name == "torch").packages[0]
    assert (torch.tested, torch.suitable) == ("2.13.0", True)
    assert [(device.kind, device.count) for device in found.devices] == [("npu", 8)]
    assert found.profiles == (str(tmp_path / "mine.json"),)


@pytest.mark.usefixtures("fake_devices")
def test_the_verb_says_what_is_missing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    lines = [("", "numpy", ">=1.26"), ("kernels", "no-such-package", ">=1"), ("torch", "torch", ">=99")]
    monkeypatch.setattr(room, "_requirements", lambda: iter(lines))
    code, out, _ = run(capsys, monkeypatch, "doctor")
    assert code == 0
    assert "works" in out.splitlines()[0]
    assert "missing no-such-package: pip install 'ridgeline[kernels]'" in out
    assert "missing torch" in out
    assert "8 x 910C of 64 GB" in out
    monkeypatch.setattr(room, "_requirements", lambda: iter([("", "numpy", ">=99")]))
    code, out, _ = run(capsys, monkeypatch, "doctor", "--json")
    answer = json.loads(out)
    assert code == 1
    assert (answer["kind"], answer["healthy"], answer["packages"][0]["suitable"]) == ("doctor", False, False)


@pytest.mark.parametrize(
    ("failure", "words"),
    [
        (subprocess.TimeoutExpired([], 1), "no device within"),
        (subprocess.CompletedProcess([], 1, stdout="", stderr="x\nImportError: libcuda.so.1"), "libcuda.so.1"),
        (subprocess.CompletedProcess([], -11, stdout="", stderr=""), "code -11"),
    ],
)
def test_a_torch_that_does_not_load_is_a_line_of_the_answer(
    failure: subprocess.TimeoutExpired | subprocess.CompletedProcess[str], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> subprocess.CompletedProcess[str]:
        if isinstance(failure, Exception):
            raise failure
        return failure

    monkeypatch.setattr(subprocess, "run", fail)
    found: Doctor = doctor()
    assert found.devices == ()
    assert words in found.devices_problem


def test_every_extra_for_users_names_the_verbs_that_need_it() -> None:
    assert {extra for extra, _, _ in _requirements()} - {"", "test"} == set(VERBS_OF_EXTRA)
    for verbs in VERBS_OF_EXTRA.values():
        assert {words.split()[0] for words in verbs.split(", ")} <= set(VERBS)


@pytest.mark.parametrize(
    ("version", "versions", "within"),
    [("2.4", ">=2.4", True), ("2.3.9", ">=2.4", False), ("5.20.1", "<6,>=5.20", True), ("0.29.0", "<0.29", False)],
)
def test_versions_are_compared_by_number(version: str, versions: str, within: bool) -> None:
    assert is_version_within(version, versions) is within


def test_devices_are_asked_for_in_a_process_that_prints_json() -> None:
    compile(room._DEVICES, "devices", "exec")
    assert sys.executable
