"""The slower of host and chip wins, and waiting for every launch costs all of it."""

from __future__ import annotations

import numpy as np
import pytest

from ridgeline.sim.closed_form.stage_times import host_stall


@pytest.mark.parametrize(
    ("running", "issue", "blocking", "stall"),
    [(10.0, 1.0, 0.0, 0.0), (0.0, 0.0, 0.0, 0.0), (1.0, 3.0, 0.0, 2.0), (3.0, 2.0, 1.0, 2.5)],
)
def test_the_longer_wins(running: float, issue: float, blocking: float, stall: float) -> None:
    found = host_stall(np.array([running]), np.array([issue]), np.array([blocking]))
    assert float(found[0]) == pytest.approx(stall, abs=2e-5)


def test_equal_ones_add_a_little() -> None:
    """Two that take as long: (1 + 1)^(1/10) - 1 = 7.2 %."""
    assert float(host_stall(np.ones(1), np.ones(1), np.zeros(1))[0]) == pytest.approx(2**0.1 - 1)
