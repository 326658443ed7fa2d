"""The exact useful share against a simulation of single failures, and against what closed forms make of it."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar
from scipy.special import lambertw

from ridgeline.core.errors import InputError
from ridgeline.search.interruptions import Interruptions, Shares, best_interval, failures_per_s, shares, useful_share

PARTS = tuple(field.name for field in fields(Shares))
CHECKPOINTS = 20_000  # simulated for each case
CASES = {
    "mild": Interruptions(mtbf_s=259_200.0, block_s=60.0, detect_s=60.0, restart_s=900.0),
    "mild, written beside": Interruptions(mtbf_s=86_400.0, block_s=2.0, write_s=120.0, detect_s=30.0, restart_s=300.0),
    "16,384 chips": Interruptions(mtbf_s=11_124.0, block_s=0.7, write_s=56.0, detect_s=600.0, restart_s=912.0),
    "100,000 chips": Interruptions(mtbf_s=1_080.0, block_s=34.0, restart_s=600.0),
    "severe": Interruptions(mtbf_s=300.0, block_s=60.0, write_s=40.0, detect_s=30.0, restart_s=200.0),
    "hopeless": Interruptions(mtbf_s=100.0, block_s=30.0, write_s=20.0, detect_s=100.0, restart_s=90.0),
}


def young_interval(what: Interruptions) -> float:
    """Young's interval (1974), for rare failures: sqrt(2 b mtbf)."""
    return float(np.sqrt(2 * what.block_s * what.mtbf_s))


def daly_interval(what: Interruptions) -> float:
    """Daly's interval (2006), three terms of the exact one; from b = 2 mtbf on simply mtbf.

    sqrt(2 b m) (1 + sqrt(b / 2m) / 3 + (b / 2m) / 9) - b        b = block, m = mtbf
    """
    half = float(what.block_s / (2 * what.mtbf_s))
    near = 2 * what.mtbf_s * np.sqrt(half) * (1 + np.sqrt(half) / 3 + half / 9) - what.block_s
    return float(near if half < 1 else what.mtbf_s)


def first_order_share(what: Interruptions, interval_s: float) -> float:
    """The common closed form, which adds losses up as if they never met: half an interval and a restart per failure.

    1 - b / tau - L (tau / 2 + w + d + r)
    """
    gone = interval_s / 2 + what.write_s + what.detect_s + what.restart_s
    return float(1 - what.block_s / interval_s - gone / what.mtbf_s)


@dataclass
class Simulated:
    """One run, failure by failure. Nothing here uses that failures have no memory: they come at absolute times."""

    what: Interruptions
    rng: np.random.Generator
    clock: float = 0.0
    failure_at: float = 0.0
    failures: int = 0
    spent_detecting: float = 0.0
    spent_restarting: float = 0.0

    def passes(self, seconds: float) -> bool:
        """Whether that much time goes by before the next failure; the clock stops at whichever comes first."""
        held = self.clock + seconds < self.failure_at
        self.clock = self.clock + seconds if held else self.failure_at
        return held

    def fail(self) -> None:
        """Detect, restart, and restart again until it holds."""
        while True:
            self.failures += 1
            self.clock += self.what.detect_s
            self.spent_detecting += self.what.detect_s
            self.failure_at = self.clock + self.rng.exponential(self.what.mtbf_s)
            begun = self.clock
            up = self.passes(self.what.restart_s)
            self.spent_restarting += self.clock - begun
            if up:
                return


def simulate(
    what: Interruptions, tau: float, seed: int
) -> tuple[dict[str, float], dict[str, float], tuple[int, float]]:
    """Mean shares, their standard errors, failures and wall time, over `CHECKPOINTS` complete checkpoints."""
    run = Simulated(what=what, rng=np.random.default_rng(seed))
    run.failure_at = run.rng.exponential(what.mtbf_s)
    marks, writing = [], False
    while len(marks) <= CHECKPOINTS:
        # a cycle runs from one completion to the next: the rest of an interval, the blocking, then the writing
        if writing:
            if not run.passes(what.write_s):
                writing = False  # the state being written is gone; so is the work beside it
                run.fail()
                continue
            marks.append((run.clock, run.spent_detecting, run.spent_restarting))
        if run.passes(tau - what.write_s if writing else tau) and run.passes(what.block_s):
            writing = True
        else:
            writing = False
            run.fail()
    walls, detecting, restarting = np.diff(np.array(marks), axis=0).T
    spent = {
        "useful": np.full(CHECKPOINTS, tau),
        "checkpoint": np.full(CHECKPOINTS, what.block_s),
        "detect": detecting,
        "restart": restarting,
    }
    spent["lost"] = walls - sum(spent.values())
    mean = {name: values.sum() / walls.sum() for name, values in spent.items()}
    error = {
        name: float(np.std(values - mean[name] * walls, ddof=1) / walls.mean() / np.sqrt(CHECKPOINTS))
        for name, values in spent.items()
    }
    return mean, error, (run.failures, run.clock)


@pytest.mark.parametrize("factor", [1.0, 2.5], ids=["best interval", "longer interval"])
@pytest.mark.parametrize("name", CASES)
def test_exact_form_is_what_happens(name: str, factor: float) -> None:
    """Every share within three standard errors of the simulation, which are below 1 % of the useful share."""
    what = CASES[name]
    tau = factor * float(best_interval(what))
    exact = shares(what, tau)
    mean, error, (failures, wall) = simulate(what, tau, seed=2024)
    assert error["useful"] < 0.01 * mean["useful"]
    for part in PARTS:
        assert abs(float(getattr(exact, part)) - mean[part]) <= 3 * error[part] + 1e-12, part
    assert failures == pytest.approx(float(failures_per_s(what)) * wall, abs=3 * np.sqrt(failures))


def test_common_closed_form_is_off_by_two_where_failures_are_frequent() -> None:
    """Losses that are added up overlap; the simulation sides with the exact form."""
    rare, often = CASES["mild"], CASES["100,000 chips"]
    tau = float(young_interval(rare))
    assert float(first_order_share(rare, tau)) == pytest.approx(float(useful_share(rare, tau)), rel=0.001)
    tau = float(young_interval(often))
    mean, error, _ = simulate(often, tau, seed=7)
    assert abs(float(useful_share(often, tau)) - mean["useful"]) < 3 * error["useful"]
    assert mean["useful"] / float(first_order_share(often, tau)) > 2
    worse = CASES["severe"]
    assert float(first_order_share(worse, young_interval(worse))) < 0 < float(shares(worse).useful)


def test_intervals_agree_while_failures_are_rare() -> None:
    """b / mtbf = 2.3e-4: by hand sqrt(2 * 60 * 259200) = 5577; exact is shorter by about b / 3 ... b."""
    what = CASES["mild"]
    assert float(young_interval(what)) == pytest.approx(5577.1, abs=0.1)
    assert float(daly_interval(what)) == pytest.approx(float(best_interval(what)), rel=1e-5)
    assert float(best_interval(what)) == pytest.approx(5577.1 - 2 * 60 / 3, rel=1e-3)


def test_young_and_daly_where_failures_are_frequent() -> None:
    """A checkpoint of a fifth, and of twice, the time between failures."""
    fifth = Interruptions(mtbf_s=300.0, block_s=60.0)
    assert float(young_interval(fifth)) / float(best_interval(fifth)) > 1.2
    assert float(daly_interval(fifth)) / float(best_interval(fifth)) == pytest.approx(1, abs=0.01)
    twice = Interruptions(mtbf_s=300.0, block_s=600.0)
    assert float(young_interval(twice)) / float(best_interval(twice)) > 2
    assert float(daly_interval(twice)) == 300.0


@pytest.mark.parametrize("ratio", [1e-8, 1e-4, 0.01, 0.3, 1.0, 5.0, 50.0, 600.0])
def test_best_interval_is_lambert_w_and_a_maximum(ratio: float) -> None:
    what = Interruptions(mtbf_s=1000.0, block_s=1000.0 * ratio)
    found = float(best_interval(what))
    if ratio >= 1e-4:  # nearer to its branch point the library loses digits
        assert found == pytest.approx(1000.0 * (1 + lambertw(-np.exp(-1 - ratio)).real), rel=1e-9)
    if ratio <= 5:  # beyond, the share is flat to the last digit
        best = minimize_scalar(lambda tau: -float(useful_share(what, tau)), bounds=(found / 50, 1000), method="bounded")
        assert found == pytest.approx(best.x, rel=1e-2)
        assert float(useful_share(what, found)) >= -best.fun * (1 - 1e-12)


def test_share_at_the_best_interval_by_hand() -> None:
    """There 1 - L tau = e^(-L (tau+b)), so that the share is (1 - L tau) e^(-L (r+w)) / (1 + L d)."""
    what = CASES["severe"]
    tau = float(best_interval(what))
    by_hand = (1 - tau / 300) * np.exp(-240 / 300) / (1 + 30 / 300)
    assert float(useful_share(what, tau)) == pytest.approx(by_hand, rel=1e-12)


def test_the_interval_waits_for_a_step_and_for_the_write() -> None:
    free = Interruptions(mtbf_s=1e5, block_s=0.0)
    assert float(best_interval(free)) == pytest.approx(1e-4)
    assert float(useful_share(free, best_interval(free))) == pytest.approx(1.0)
    assert float(best_interval(replace(free, shortest_s=7.0))) == 7.0
    assert float(best_interval(replace(free, write_s=55.0, shortest_s=7.0))) == 55.0


times = st.floats(0.0, 1e7)


@given(mtbf=st.floats(1e-3, 1e9), block=times, write=times, detect=times, restart=times)
def test_laws(mtbf: float, block: float, write: float, detect: float, restart: float) -> None:
    """Shares sum to one and none is negative; rarer failures and cheaper checkpoints are never worse."""
    what = Interruptions(mtbf_s=mtbf, block_s=block, write_s=write, detect_s=detect, restart_s=restart)
    parts = [float(getattr(shares(what), part)) for part in PARTS]
    assert all(part >= 0 for part in parts)
    assert sum(parts) == pytest.approx(1.0, abs=1e-9)
    assert float(shares(replace(what, mtbf_s=2 * mtbf)).useful) >= parts[0] * (1 - 1e-9)
    assert float(shares(replace(what, block_s=block / 2)).useful) >= parts[0] * (1 - 1e-9)
    assert float(shares(replace(what, restart_s=restart / 2)).useful) >= parts[0]


def test_arrays_are_many_single_ones() -> None:
    every = list(CASES.values())
    together = Interruptions(
        **{field.name: np.array([getattr(one, field.name) for one in every]) for field in fields(Interruptions)}
    )
    for part in PARTS:
        assert getattr(shares(together), part) == pytest.approx([getattr(shares(one), part) for one in every])


@pytest.mark.parametrize(("key", "value"), [("mtbf_s", 0.0), ("mtbf_s", float("nan")), ("block_s", -1.0)])
def test_times_that_are_none(key: str, value: float) -> None:
    with pytest.raises(InputError, match=key):
        Interruptions(**({"mtbf_s": 1.0, "block_s": 1.0} | {key: value}))
