"""A step's collectives meet on the graph where the plan puts them."""

from __future__ import annotations

import pytest

from ridgeline.core.errors import InputError
from ridgeline.ir.ops import Axis, Collective
from ridgeline.plan.mesh import Mesh
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
    def groups(mesh: Mesh, axis: Axis, ranks: int, stride: int) -> list[list[int]]:
        op = Collective(label="", kind="all-reduce", axis=axis, payload_bytes=1.0, ranks=ranks, stride=stride)
        return [group.tolist() for group in _groups(op, ranks, mesh)]

    assert groups(Mesh(tp=2, dp=4), "dp", 2, 2) == [[0, 2], [1, 3], [4, 6], [5, 7]]
    whole = groups(Mesh(tp=8, dp=4, pp=2), "dp", 4, 8)
    assert sorted(rank for group in whole for rank in group) == list(range(64))
    far = Mesh(tp=2, dp=2, pp=2, order="tp-cp-ep-pp-dp")
    assert groups(far, "dp", 2, 4) == [[0, 4], [1, 5], [2, 6], [3, 7]]  # stages lie between replicas
    assert groups(far, "pp", 2, 2) == [[0, 2], [1, 3], [4, 6], [5, 7]]


def test_others_on_the_network_lengthen_the_step() -> None:
    closed = predicted()
    quiet, busy = network_contention(closed), network_contention(closed, background=["50%"], straggler=["9:3"])
    assert busy.added_s > quiet.added_s
    assert {one.alone_s for one in busy.collectives} == {one.alone_s for one in quiet.collectives}
    with pytest.raises(InputError, match="straggler"):
        network_contention(closed, straggler=["99:2"])


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
    assert all(one.worst_s >= one.together_s for one in found.collectives)
    assert any(one.worst_s > one.together_s for one in found.collectives)  # collisions are a distribution
    assert found.step_time_s > closed.step_time_s
    assert found.added_s == pytest.approx(found.step_time_s - closed.step_time_s)
