"""What is claimed of the closed form's paths holds on random plans; mining reads a path off a run as a hand does."""

from __future__ import annotations

import numpy as np
import pytest

from ridgeline.plan.schedules import SCHEDULES, build
from tools.record import paths as mine_paths


def even(last: float = 1.0, send: float = 0.1, gain: float = 0.0) -> mine_paths.Times:
    stages = np.array([[1.0, 1.0, 1.0], [1.0, 1.0, 1.0], [last, last, last]])
    return mine_paths.Times(stages, send, False, gain)


def test_slopes_are_the_counts_of_the_longest_path() -> None:
    found = mine_paths.slopes(build("1f1b", stages=3, microbatches=4), even(last=1.5))
    # down once, all four microbatches on the last stage, up once: F, I, W of first, inner, last, then sends
    assert found is not None
    assert found.tolist() == [1, 1, 4, 1, 1, 4, 1, 1, 4, 4, 0]


def test_two_paths_of_equal_length_are_not_mixed() -> None:
    assert mine_paths.slopes(build("1f1b", stages=3, microbatches=6), even(send=0.0)) is None


def test_pairs_are_told_from_their_gain() -> None:
    table = build("dualpipe-v", stages=1, microbatches=4)
    found = mine_paths.slopes(table, even(last=1.25, gain=0.2))
    # one rank passes everything: m of each chunk; m - 2 pairs of the first chunk's forward, m - 1 of the last one's
    assert found is not None
    assert found.tolist() == [4, 0, 4, 4, 0, 4, 4, 0, 4, 0, 0, 2, 0, 3, 3, 0, 2]


def test_lines_are_written_as_the_table_has_them() -> None:
    family = (("", "p", "m"), ((1.0, -3.0), (0.0, 2.0), (0.0, 1.0)))
    assert mine_paths.text(family) == "1 -3+2p+m"


def test_claims_are_read_for_every_schedule() -> None:
    assert set(mine_paths.claimed()) == set(SCHEDULES)
    wrong = mine_paths.Checked("1f1b", 0.5, 9.0, 9.0)
    assert len(list(mine_paths.problems(wrong))) == 3


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(SCHEDULES))
def test_no_path_is_longer_than_a_run_and_enough_is_covered(name: str) -> None:
    assert list(mine_paths.problems(mine_paths.check(name, 200))) == []


@pytest.mark.slow
def test_mining_covers_a_schedule_again() -> None:
    lines = mine_paths.mine("1f1b", samples=10, tolerance=0.02)
    assert "- | 1 -2+p m 1 -2+p m 1 -2+p m -2+2p 0" in lines
    assert len(lines) < 12
