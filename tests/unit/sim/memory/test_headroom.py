"""Headroom: what measured peaks ask for, and what is said where nobody measured."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from ridgeline.plan.scenario_file import scenario
from ridgeline.search.training.plan_search import find_plan
from ridgeline.sim.memory.peak import Shortfall, headroom, scenario_headroom, shipped_shortfalls

ROOT = Path(__file__).parents[4]
TABLE = {"model": "llama3-8b", "system": "8xh200-sxm", "workload": {"seq": 4096, "global_batch": 64}}


def runs(*shares: float) -> list[Shortfall]:
    return [Shortfall(family="hopper", engine="torch-eager", share=share) for share in shares]


def test_nine_of_ten_new_runs_stay_below() -> None:
    ten = runs(*(number / 100 for number in range(20)))
    found = headroom("hopper", "torch-eager", ten)
    assert found.share == pytest.approx(0.18 / 1.18)  # the 19th of 20: ceil(0.9 x 21)
    assert found.origin == "19 of 20 measured peaks fell short by less"


def test_a_peak_that_falls_short_by_that_share_just_fits() -> None:
    free = headroom("hopper", "torch-eager", runs(0.25)).share
    assert (1 - free) * 1.25 == pytest.approx(1.0)


def test_an_engine_or_a_family_nobody_measured_gets_the_largest() -> None:
    some = runs(0.01, 0.02, 0.3)
    for family, engine in (("hopper", "nemo"), ("ampere", "torch-eager"), ("", "torch-eager")):
        found = headroom(family, engine, some)
        assert found.share == pytest.approx(0.3 / 1.3)
        assert f"none of {engine} on" in found.origin


def test_peaks_that_were_all_too_high_ask_for_nothing() -> None:
    assert headroom("hopper", "torch-eager", runs(-0.2, -0.1)).share == 0
    assert headroom("hopper", "torch-eager", []).share == 0


def test_what_ships_covers_nine_of_ten_of_its_own_rows() -> None:
    rows = shipped_shortfalls()
    known = headroom("hopper", "torch-eager", rows).share
    assert len(rows) >= 20
    assert sum(row.share <= known / (1 - known) + 1e-12 for row in rows) >= 0.9 * len(rows)
    assert known < headroom("hopper", "megatron-core", rows).share < 0.15


def test_what_ships_is_what_the_memory_model_says_today() -> None:
    done = subprocess.run(
        [sys.executable, "benchmarks/headroom.py", "--check"], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_search_takes_it_unless_told() -> None:
    made = scenario({**TABLE, "plan": {"engine": "torch-eager"}})
    assert find_plan(made, most=1).headroom == scenario_headroom(made).share
    assert find_plan(made, most=1, headroom=0.0).headroom == 0.0
