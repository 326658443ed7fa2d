"""Counters of kernels: both pages of Nsight Compute, and their place in a timeline."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from exports import RAW, details_page
from traces import Recipe, make, write

from ridgeline.core.errors import InputError
from ridgeline.trace.analysis.roofline import function, without_parameters
from ridgeline.trace.analyze_traces import analyze
from ridgeline.trace.read.kernel_counters import read_counters


def test_raw_page(tmp_path: Path) -> None:
    """By hand: gemm runs 16 us, 1/4 of it at 80 % and 3/4 at 40 %, that is 50 %; DRAM 40 and 60, that is 55 %."""
    (tmp_path / "a.csv").write_text(RAW)
    copy, gemm = read_counters(tmp_path / "a.csv")
    assert (gemm.name, gemm.launches, gemm.duration_ns) == ("gemm(float*)", 2, 8_000)
    assert (gemm.compute, gemm.dram) == (pytest.approx(0.5), pytest.approx(0.55))
    assert gemm.bytes_per_s == pytest.approx(1.5e12)
    assert gemm.flops_per_s == pytest.approx(0.5e12)
    assert (gemm.registers, gemm.launch) == (96, "(160, 1, 1) x (128, 1, 1)")
    assert (copy.duration_ns, copy.bytes_per_s, copy.memory) == (1_000_000, None, None)


def test_details_page(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(details_page())
    copy, gemm = read_counters(tmp_path / "a.csv")
    assert (gemm.duration_ns, gemm.compute, gemm.memory, gemm.dram) == (4_000, 0.8, 0.55, 0.4)
    assert (gemm.bytes_per_s, gemm.occupancy) == (2e12, 0.25)
    assert copy.duration_ns == 1_000_000


def test_joined_with_a_trace(tmp_path: Path) -> None:
    names = ("void lib::gemm<4>(float*)", "void copy<(int)4>(char*)", "ncclAllReduce")
    path = write(make(Recipe(names=names, steps=1, layers=3)), tmp_path / "t.json")
    text = RAW.replace('"gemm(float*)"', '"gemm"') + '"3","7","other","","","","","1","1","1","1","1"\n'
    (tmp_path / "a.csv").write_text(text)
    found = analyze(path, counters=tmp_path / "a.csv").measured
    told = {one.counters.name: (one.names, one.spans, one.total_ns) for one in found.kernels}
    assert told == {
        "gemm": (("void lib::gemm<4>(float*)",), 3, 300_000),
        "copy<(int)4>(char*)": (("void copy<(int)4>(char*)",), 3, 60_000),
    }
    assert [one.name for one in found.absent] == ["other"]


def test_names() -> None:
    name = "void at::native::(anonymous namespace)::cat<float, f(int)>(float*, int)"
    assert without_parameters(name) == "at::native::cat<float, f(int)>"
    assert function(name) == "cat"


@pytest.mark.parametrize("text", ["", "hello", '"Kernel Name","Metric Name"\n', "a,b\n1,2\n"])
def test_what_holds_no_counters(text: str, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(text)
    with pytest.raises(InputError, match=r"a\.csv"):
        read_counters(tmp_path / "a.csv")


def run(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "ridgeline.cli.main", "analyze", *words]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_the_command_line(tmp_path: Path) -> None:
    """Alone a file of counters says what it is; with a trace, kernels that are not in it are listed."""
    (tmp_path / "a.csv").write_text(RAW)
    alone = run(str(tmp_path / "a.csv"))
    assert alone.returncode == 0
    assert "Nsight Compute CSV: 3 launches of 2 kernels" in alone.stdout
    assert "1,500 GB/s" in alone.stdout
    trace = write(make(Recipe(names=("gemm", "element", "ncclAllReduce"))), tmp_path / "t.json")
    both = run(str(trace), "--counters", str(tmp_path / "a.csv"), "--json")
    sheet = json.loads(both.stdout)
    assert [one["name"] for one in sheet["kernel_counters"]] == ["gemm(float*)"]
    assert sheet["counters_not_in_trace"] == ["copy<(int)4>(char*)"]
    wrong = run(str(trace), "--counters", str(trace))
    assert (wrong.returncode, "Traceback" in wrong.stderr) == (2, False)
    assert "without counters" in wrong.stderr
    assert run(str(trace), "--unit", "hours").returncode == 2
