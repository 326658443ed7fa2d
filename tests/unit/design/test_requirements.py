"""Requirement lists: every ask has a number, a gain inside its interval, and a way to prove it wrong."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from ridgeline.core.errors import InputError
from ridgeline.design.requirements import idle_memory_usd_per_hour, requirement_report
from ridgeline.design.study import read_study
from ridgeline.report import page, write_picture

STUDY = Path(__file__).parents[3] / "examples" / "design-next-chip.toml"


def test_every_ask_is_quantified_and_can_be_proved_wrong() -> None:
    report = requirement_report(read_study(STUDY))
    assert [team.team for team in report.teams] == ["chip", "network", "framework", "model", "money"]
    for ask in (ask for team in report.teams for ask in team.asks):
        assert ask.ask
        assert ask.evidence
        assert ask.falsify
        assert ask.gain_low <= ask.gain * (1 + 1e-12)
        assert ask.gain <= ask.gain_high * (1 + 1e-12)
    chip = report.team("chip").asks[0]
    assert chip.gain > 1.1


def test_the_same_inputs_have_the_same_hash_and_others_another() -> None:
    first, second = (requirement_report(read_study(STUDY), team="network").inputs_hash for _ in range(2))
    assert first == second
    assert read_study(STUDY, ["objective=time"]).inputs_hash != first


def test_a_team_that_does_not_exist_is_refused() -> None:
    with pytest.raises(InputError, match="--team"):
        requirement_report(read_study(STUDY), team="sales")


def test_pages_are_small_and_fetch_nothing(tmp_path: Path) -> None:
    report = requirement_report(read_study(STUDY))
    text = page(report, "ridgeline report")
    assert len(text) < 2_000_000
    assert "default-src 'none'" in text
    assert "http" not in text.split("</header>")[0].replace("http-equiv", "")
    for name in ("asks.html", "asks.md"):
        write_picture(report, tmp_path / name, "ridgeline report")
        assert (tmp_path / name).stat().st_size > 1000
    with pytest.raises(InputError, match="-o"):
        write_picture(report, tmp_path / "asks.docx", "")


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("chromium"), reason="no chromium on this machine")
def test_a_browser_prints_it(tmp_path: Path) -> None:
    write_picture(requirement_report(read_study(STUDY), team="chip"), tmp_path / "asks.pdf", "")
    assert (tmp_path / "asks.pdf").read_bytes()[:5] == b"%PDF-"


def test_memory_that_a_prefill_leaves_idle_costs_about_what_analysts_say() -> None:
    """Of a chip with 288 GB, prefill specialists are sold on 0.90 USD an hour of memory that prefill does not use."""
    from ridgeline.design.requirements import _study_workload
    from ridgeline.design.space import DesignSpace

    prefill = {
        "model": "llama3-70b", "system": "4xb300-sxm", "workload": {"kind": "prefill", "seq": 8192, "batch": 4},
        "plan": {"tp": 4, "engine": "vllm"},
    }  # fmt: skip
    from ridgeline.design.study import study_of

    space = DesignSpace(study_of({"workload": [{"name": "prompts", "scenario": prefill}]}))
    assert 0.45 <= idle_memory_usd_per_hour(space, _study_workload(space, 0)) <= 1.8
