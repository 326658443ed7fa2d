"""`ridgeline diff` as a gate, over several runs, as a page; ops and shapes across chips."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from traces import Recipe, make, write

import ridgeline
from ridgeline.cli.main import main

FAST = Recipe(gap_us=1.5, graph=True)


def run(*words: str) -> int:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["ridgeline", "diff", *words])
        with pytest.raises(SystemExit) as ended:
            main()
    return int(ended.value.code or 0)


@pytest.fixture
def traces(tmp_path: Path) -> list[str]:
    recipes = {"a": FAST, "same": FAST, "slow": replace(FAST, matmul_us=110.0)}
    return [str(write(make(recipe), tmp_path / f"{name}.json")) for name, recipe in recipes.items()]


def test_a_slower_step_fails_the_gate(traces: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    a, same, slow = traces
    assert run(a, same, "--fail-above", "3%") == 0
    assert run(a, slow, "--fail-above", "50%") == 0
    capsys.readouterr()
    assert run(a, slow, "--fail-above", "3%") == 1
    assert "regression: slow.json is 7.1% slower" in capsys.readouterr().err
    assert run(slow, a, "--fail-above", "0.03") == 0
    assert run(a, slow, "--fail-above", "much") == 2


def test_several_runs_and_a_page(traces: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a, same, slow = traces
    target = tmp_path / "diff.html"
    assert run(a, same, slow, "--json", "--html", str(target), "--fail-above", "3%") == 1
    sheet = json.loads(capsys.readouterr().out)
    assert sheet["kind"] == "diffs"
    assert [round(one["difference_share"], 3) for one in sheet["runs"]] == [0.0, 0.071]
    page = target.read_text(encoding="utf-8")
    assert "slower kernels" in page
    assert "slow.json" in page
    assert "<script" not in page


def test_ops_match_across_chips(tmp_path: Path) -> None:
    other = replace(FAST, graph=False, chip="AMD Instinct MI300X", matmul_us=130.0,
                    names=("Cijk_Ailk_Bljk", "hip_elementwise", "ncclDevKernel_Generic"))  # fmt: skip
    paths = [
        write(make(one), tmp_path / f"{place}.json") for place, one in enumerate((replace(FAST, graph=False), other))
    ]
    found = ridgeline.diff(*paths)
    assert (found.by, found.before.chip_name, found.after.chip_name) == ("op and shape", FAST.chip, other.chip)
    slower = next(one for one in found.causes if one.cause == "slower kernels")
    first = next(item for item in slower.items if item.name.startswith("aten::mm 4096x1024"))
    assert first.delta_ns == pytest.approx(4 * 30_000)
    assert (first.kernels_before, first.kernels_after) == (("nvjet_tst_128x256",), ("Cijk_Ailk_Bljk",))
    assert sum(one.delta_ns for one in found.causes) == pytest.approx(found.delta_ns)
