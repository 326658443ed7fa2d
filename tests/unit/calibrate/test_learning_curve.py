"""How fast anchoring learns a source: runs are picked fairly, components come from other sources, shrinkage helps."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

from ridgeline.calibrate import learning_curve
from ridgeline.calibrate.learning_curve import (
    ENOUGH,
    PICKS,
    RUNS,
    ComponentSearch,
    Unseen,
    anchored_gaps,
    curve_sheet,
    picks,
)
from ridgeline.cost.anchored import Components


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Components are sought with few picks and on a short ladder."""
    for name, value in {"SOUGHT_PICKS": 3, "LADDER": (0.4, 1.0, 2.5), "NARROWINGS": (0.5, 1.0)}.items():
        monkeypatch.setattr(learning_curve, name, value)


def source(name: str, first: int, gaps: list[float]) -> Unseen:
    """A source whose runs share one effect and nothing else; two runs of every configuration."""
    count = len(gaps)
    alone = np.zeros((count, count))
    return Unseen(
        source=name,
        rows=np.arange(first, first + count),
        ids=tuple(f"{name}-{index}" for index in range(count)),
        groups=tuple(f"{name} {index // 2}" for index in range(count)),
        cells=("e on c",) * count,
        gaps=np.array(gaps),
        parts=(alone, alone, np.ones((count, count)), np.ones((count, count))),
    )


def noise(text: str) -> float:
    """Between -1 and 1, by hash."""
    return int(hashlib.sha256(text.encode()).hexdigest()[:6], 16) / 2**23 - 1


def sources(scatter: float) -> list[Unseen]:
    made = []
    for index, bias in enumerate((0.3, -0.25, 0.2, -0.3, 0.25)):
        gaps = [bias + scatter * noise(f"{index} {run}") for run in range(14)]
        made.append(source(f"s{index}", 14 * index, gaps))
    return made


def spans(half: float) -> tuple[np.ndarray, np.ndarray]:
    return np.full(70, -half), np.full(70, half)


def test_no_configuration_anchors_and_is_scored() -> None:
    own = sources(0.1)[0]
    seen = list(picks(own, "same"))
    assert {pick.runs for pick in seen} == set(RUNS)
    assert len(seen) == 1 + PICKS * (len(RUNS) - 1)
    for pick in seen:
        assert len(pick.gaps) == pick.runs
        assert len(pick.scored) == len(own.ids) - 2 * pick.runs
    again = [pick.scored.tolist() for pick in picks(own, "same")]
    assert again == [pick.scored.tolist() for pick in seen]


def test_a_source_of_few_configurations_has_no_curve() -> None:
    assert not list(picks(source("few", 0, [0.1] * (2 * ENOUGH - 2)), "source"))


def test_a_shared_bias_is_learned_and_scatter_is_not_chased() -> None:
    sheet = curve_sheet(sources(0.08), spans(0.5), np.ones(70, np.bool_))[1]
    means = [point["mape"] for point in sheet["same"]]
    assert means[1] < 0.4 * means[0]
    assert means[-1] < means[1]
    assert all(point["mape"] <= point["naive"] + 1e-3 for point in sheet["same"][1:])
    assert [point["runs"] for point in sheet["same"]] == list(RUNS)


def test_where_there_is_no_bias_anchoring_does_little_harm() -> None:
    flat = [source(f"s{at}", 14 * at, [0.15 * noise(f"{at} {run}") for run in range(14)]) for at in range(5)]
    sheet = curve_sheet(flat, spans(0.3), np.ones(70, np.bool_))[1]
    before, after = sheet["same"][0], sheet["same"][1]
    assert after["mape"] < 1.15 * before["mape"]
    assert after["naive"] > 1.15 * before["mape"]


def test_the_judged_source_has_no_say_in_its_components() -> None:
    given = sources(0.08)
    wild = source("s4", 56, [5.0 * noise(f"wild {run}") for run in range(14)])
    tame, other = ComponentSearch(given, spans(0.5)), ComponentSearch([*given[:4], wild], spans(0.5))
    assert tame.best("s4") == other.best("s4")
    assert tame.best("s0") != other.best("s0")


def test_more_runs_leave_less_variance() -> None:
    own = sources(0.08)[0]
    left = {pick.runs: anchored_gaps(pick, Components())[1].mean() for pick in picks(own, "same")}
    assert left[0] > left[1] > left[2] > left[3] > left[5] > Components().noise ** 2
