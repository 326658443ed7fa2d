"""A step's collectives meet on the graph where the plan puts them."""

from __future__ import annotations

import numpy as np
import pytest

from ridgeline.plan.scenario_file import read_scenario
from ridgeline.sim.network_contention import _groups, network_contention
from ridgeline.sim.predict_step import predict
from ridgeline.sim.prediction import Prediction

SCENARIO = "examples/llama3-70b-64xh100.toml"


def predicted(*settings: str) -> Prediction:
    found = predict(read_scenario(SCENARIO, settings))
    assert isinstance(found, Prediction)
    return found


def test_groups_are_ranks_a_stride_apart() -> None:
    groups = [group.tolist() for group in _groups(2, 2, 8)]
    assert groups == [[0, 2], [1, 3], [4, 6], [5, 7]]
    assert sorted(np.concatenate(list(_groups(4, 8, 64))).tolist()) == list(range(64))


def test_a_plan_along_rails_meets_nobody() -> None:
    closed = predicted()
    found = network_contention(closed)
    assert {one.axis for one in found.collectives} == {"tp", "dp", "pp"}
    assert all(one.factor == pytest.approx(1.0, abs=1e-3) for one in found.collectives)
    assert found.step_time_s == pytest.approx(closed.step_time_s, rel=1e-3)


def test_paths_that_collide_lengthen_the_step() -> None:
    closed = predicted("plan.tp=2", "plan.dp=16")
    found = network_contention(closed)
    assert max(one.factor for one in found.collectives) > 1.1
    assert found.step_time_s > closed.step_time_s
    assert found.added_s == pytest.approx(found.step_time_s - closed.step_time_s)
