"""Ops that kill, hang or raise are findings with a reproduction, and the run goes on."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from ridgeline.runtime.bringup import supervise  # noqa: E402
from ridgeline.runtime.bringup.guard import OpEntry, OpJournal  # noqa: E402
from ridgeline.runtime.bringup.repro import read_safetensors, write_safetensors  # noqa: E402

MODULE = """
import os, time
import torch


class Small(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = torch.nn.Linear(24, 32), torch.nn.Linear(32, 8)

    def forward(self, x):
        return self.second(torch.tanh(self.first(x)))


def small():
    return Small(), torch.randn(6, 24)


def fault_dies(op, args, kwargs, result):
    if op == "aten.tanh.default" and result.shape == (6, 32):
        os.abort()


def fault_leaves(op, args, kwargs, result):
    if op == "aten.tanh.default" and result.shape == (6, 32):
        os._exit(0)


def fault_hangs(op, args, kwargs, result):
    if op == "aten.tanh.default" and result.shape == (6, 32) and result.dtype == torch.float32:
        time.sleep(600)


def fault_raises(op, args, kwargs, result):
    if op == "aten.tanh.default" and result.shape == (6, 32):
        raise ValueError("no luck")


def fault_doubles(op, args, kwargs, result):
    if op == "aten.tanh.default" and result.shape == (6, 32):
        return result * 2
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "own.py"
    path.write_text(MODULE, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("fault", "statistic"),
    [("dies", "died"), ("leaves", "died"), ("hangs", "hung"), ("raises", "raised"), ("doubles", "")],
)
def test_an_op_that_fails_is_a_finding(file: Path, tmp_path: Path, fault: str, statistic: str) -> None:
    found = supervise.bringup(
        f"{file}:small", "ridge", faults=file, fault=fault, folder=tmp_path / "out", limit_s=1.0, only=("steps",)
    )
    assert found.isolated
    ours = [one for one in found.findings if one.dtype == "float32"]
    assert [(one.op, one.module, one.phase) for one in ours] == [("aten.tanh.default", "model", "forward")]
    assert ours[0].statistic == statistic or not statistic
    assert found.ops["aten.mm.default"] > 0, "the run went on into the backward"
    script = Path(ours[0].repro)
    assert script.is_file()
    recipe = json.loads((script.parent / "recipe.json").read_text(encoding="utf-8"))
    assert recipe["op"] == "aten.tanh.default"
    if fault == "dies":
        for options, code in (((), 1), (("--device", "cpu"), 0), (("--reference",), 0)):
            assert subprocess.run([sys.executable, str(script), *options], check=False).returncode == code


def test_the_journal_tells_another_process_what_runs(tmp_path: Path) -> None:
    ours = OpJournal(tmp_path / "journal", create=True)
    theirs = OpJournal(tmp_path / "journal")
    assert not theirs.read().running
    entry = OpEntry(op="aten.mm.default", module="layers.0", phase="forward", dtype="float32", signature="x" * 100)
    ours.begin(entry)
    seen = theirs.read()
    assert seen.running
    assert seen.entry == entry
    ours.end()
    assert not theirs.read().running
    ours.begin(OpEntry(op="aten.cat.default", signature="x" * 1_000_000))
    assert theirs.read().entry.op == "aten.cat.default"


def test_an_op_that_begins_while_the_journal_is_read_does_not_hang(tmp_path: Path) -> None:
    ours = OpJournal(tmp_path / "journal", create=True)
    beginning = (
        "import sys; from pathlib import Path; from ridgeline.runtime.bringup.guard import OpEntry, OpJournal\n"
        "ours, entry = OpJournal(Path(sys.argv[1])), OpEntry(op='aten.mm.default')\n"
        "while True: ours.begin(entry); ours.end()"
    )
    writer = subprocess.Popen([sys.executable, "-c", beginning, str(tmp_path / "journal")])
    try:
        while not ours.read().running:
            assert writer.poll() is None
        seen = [one for _ in range(50_000) if (one := ours.read()).running]
    finally:
        writer.kill()
        writer.wait()
    assert {one.entry.op for one in seen} <= {"aten.mm.default"}
    assert all(one.running_s < 60 for one in seen)


def test_safetensors_come_back_as_they_went(tmp_path: Path) -> None:
    safetensors = pytest.importorskip("safetensors.torch")
    given = {
        "a": torch.randn(3, 5),
        "b": torch.randn(4).bfloat16(),
        "c": torch.arange(6),
        "d": torch.tensor([True, False]),
        "e": torch.zeros(0),
    }
    write_safetensors(tmp_path / "x.safetensors", given)
    theirs = safetensors.load_file(tmp_path / "x.safetensors")
    ours = read_safetensors(tmp_path / "x.safetensors")
    for name, value in given.items():
        assert torch.equal(theirs[name], value)
        assert torch.equal(ours[name], value)
