"""Design spaces: frontiers that are those of every design priced, certificates that add up, requirements that bind."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import ridgeline
from ridgeline.core.errors import InputError
from ridgeline.design.chip_sketch import sizes_of
from ridgeline.design.frontier import find_frontier, price_box, undominated_places, within_budgets, workers
from ridgeline.design.machines import design_machines
from ridgeline.design.space import DesignSpace
from ridgeline.design.study import read_study
from ridgeline.design.technology import amortized_usd, chip_cost, endpoint_usd, technology
from ridgeline.hardware.load import CHIPS

STUDY = Path(__file__).parents[3] / "examples" / "design-next-chip.toml"
SMALL = [
    'space.compute={from="700 TFLOP/s",to="4 PFLOP/s",points=5}',
    'space.memory.bandwidth={from="2.5 TB/s",to="16 TB/s",points=6}',
    'space.scaleup.bandwidth=["450 GB/s","900 GB/s"]',
]


def test_the_frontier_is_that_of_every_design_priced() -> None:
    space = DesignSpace(read_study(STUDY, SMALL))
    front, count = find_frontier(space), space.study.points
    whole = price_box(space, np.arange(count))
    able = within_budgets(space, space.costs(space.values(np.arange(count)), count))
    best = undominated_places(np.where(able, whole.time, np.inf), np.where(able, whole.cost, np.inf))
    assert np.array_equal(np.sort(best), np.sort(front.places))
    assert front.certificate.complete


@pytest.mark.slow
def test_processes_give_the_same_answer() -> None:
    study = read_study(STUDY, SMALL)
    here = find_frontier(DesignSpace(study))
    there = find_frontier(DesignSpace(study), workers(study, 2, ray=False))
    assert np.array_equal(here.places, there.places)
    assert here.certificate == there.certificate


def test_a_requirement_binds_and_has_slack() -> None:
    answer = design_machines(read_study(STUDY, SMALL), meet="tpot<=12ms,usd_per_mtok<=0.4")
    requirement = answer.requirement
    assert requirement is not None
    assert requirement.feasible
    assert requirement.binds["memory.bandwidth"] == "tpot<=12ms"
    assert [entry.name for entry in requirement.limits if entry.binds] == ["tpot<=12ms"]
    assert all(entry.slack >= 0 for entry in requirement.limits)


def test_what_nothing_meets_is_said() -> None:
    requirement = design_machines(read_study(STUDY, SMALL), meet="tpot<=1us").requirement
    assert requirement is not None
    assert not requirement.feasible
    assert requirement.limits[0].slack < 0


def test_a_contest_says_how_sure_it_is() -> None:
    study = read_study(STUDY, SMALL)
    contest = design_machines(study, versus="h200-sxm,today").contest
    assert contest is not None
    assert 0 <= contest.probability <= 1
    assert contest.ratio_low < contest.ratio < contest.ratio_high
    assert len(contest.decisive) == 3


@pytest.mark.parametrize(
    ("setting", "part"),
    [
        ("space.joy=[1]", "space.joy"),
        ("space.compute={from='1 PFLOP/s',to='2 PFLOP/s',points=0}", "points"),
        ("space.compute=['fast']", "compute"),
        ("budget.joy=1", "budget.joy"),
        ("node=n1", "technology.node"),
        ("objective=joy", "objective"),
        ("workload=1", "workload"),
        ("joy=1", "--set"),
    ],
)
def test_wrong_studies_are_refused(setting: str, part: str) -> None:
    with pytest.raises(InputError, match=part.replace("[", r"\[")):
        design_machines(read_study(STUDY, [setting]))


@pytest.mark.parametrize("limit", ["joy<=1", "tpot<=", "tpot<=-1ms", "ttft>=1s", "joy.tpot<=1s"])
def test_wrong_limits_are_refused(limit: str) -> None:
    with pytest.raises(InputError, match="--meet"):
        design_machines(read_study(STUDY, SMALL), meet=limit)


def test_a_new_chip_of_eight_fields_says_its_rules() -> None:
    fields = (
        'chip={base="h100-sxm",name="next",flops="2 PFLOP/s",memory="192 GB",bandwidth="8 TB/s",'
        'scaleup="900 GB/s",domain=72,scaleout="800 Gbit/s",power="1 kW"}'
    )
    answer = design_machines(read_study(STUDY, [*SMALL, fields]))
    assert {"peak.fp8", "hbm.usable", "price"} <= {row.field for row in answer.derived_fields}
    assert all(row.rule and row.source for row in answer.derived_fields)
    with pytest.raises(InputError, match="eight fields"):
        design_machines(read_study(STUDY, [*SMALL, 'chip={name="next"}']))


def test_dies_are_as_large_as_published() -> None:
    for chip, node, published in (("a100-80-sxm", "n7", 826), ("h100-sxm", "n4", 814)):
        area = float(chip_cost(sizes_of(CHIPS[chip]), technology(node)).area_mm2)
        assert area == pytest.approx(published, rel=0.1)


def test_endpoints_cost_what_deepseek_lists() -> None:
    tech = technology("n4")
    for topology, dollars in ((2, 4390), (3, 7500), ("slim-fly", 4400), ("dragonfly", 5800)):
        assert endpoint_usd(topology, tech) == pytest.approx(dollars, rel=0.05)


def test_amortisation_follows_falling_prices() -> None:
    assert amortized_usd(1.0, 8766) == pytest.approx(1 - 10**-0.14, rel=0.01)


def test_a_design_can_be_asked_for_by_its_verb() -> None:
    answer = ridgeline.design(STUDY, settings=SMALL)
    assert answer.certificate.complete
