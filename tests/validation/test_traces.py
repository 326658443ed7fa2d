"""Real traces give the figures that an independent interval calculation gave, to the last digit it printed.

The traces are not part of the project; where they are absent these tests are skipped.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from ridgeline.trace import Timeline
from ridgeline.trace.analysis.breakdown import breakdown
from ridgeline.trace.analysis.phases import PHASES, by_arrows, layers, phases
from ridgeline.trace.analyze_traces import analyze
from ridgeline.trace.classes import POLICIES, counted_rows
from ridgeline.trace.read.readers import read_timeline
from ridgeline.trace.timeline import Sparse

FOLDER = Path(__file__).parents[3] / "shared" / "traces" / "kineto"
pytestmark = pytest.mark.skipif(not FOLDER.is_dir(), reason=f"no real traces in {FOLDER}")

# microseconds: span, idle, compute, communication, exposed communication; share overlapped
EXPECTED = {
    ("v100_rank1of2", "all"): (1732965, 732352, 620516, 357343, 357343, 0.0),
    ("v100_rank1of2", "linked"): (1732965, 732352, 620516, 357343, 357343, 0.0),
    ("a100_rank3of8_control", "all"): (464594, 76007, 281336, 163535, 87921, 0.4624),
    ("a100_rank3of8_control", "linked"): (464594, 76007, 281336, 163535, 87921, 0.4624),
    ("a100_nccl_rank0of2", "all"): (660551.0, 503050.9, 115655.8, 46876.5, 39559.5, 0.1561),
    ("a100_nccl_rank0of2", "linked"): (660551.0, 503050.9, 115655.8, 46876.5, 39559.5, 0.1561),
    ("a100_rank0of16", "all"): (1231461, 793037, 210998, 187870, 185317, 0.0136),
    ("a100_rank0of16", "linked"): (1229072, 848216, 179676, 163138, 160733, 0.0147),
}


@cache
def timeline(name: str) -> Timeline:
    return read_timeline(FOLDER / f"{name}.json.gz")


@pytest.mark.parametrize(("name", "policy"), EXPECTED)
def test_figures(name: str, policy: str) -> None:
    found = breakdown(timeline(name), policy=policy).total
    times = (found.span_ns, found.idle_ns, found.compute_ns, found.communication_ns, found.exposed_communication_ns)
    *expected, overlap = EXPECTED[name, policy]
    for one, other in zip(times, expected, strict=True):
        room = 0.1 if isinstance(other, float) else 0.0  # given to a tenth of a microsecond, some cut and some rounded
        assert abs(one / 1000 - other) <= room
    assert found.overlap_fraction == pytest.approx(overlap, abs=5e-5)


def test_linked_counts_what_was_counted() -> None:
    found = breakdown(timeline("a100_rank0of16"), policy="linked").policy
    assert (found.counted, found.of) == (6875, 7747)


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.gz")) if FOLDER.is_dir() else [], ids=lambda path: path.name)
def test_every_trace_is_analysed_without_a_doubt(path: Path) -> None:
    line = timeline(path.name.removesuffix(".json.gz"))
    assert line.about.warnings == ()
    for policy in POLICIES:
        found = analyze(line, policy=policy)
        assert sum(one.idle_ns for one in found.idle) == sum(row.times.idle_ns for row in found.breakdown.chips)
        unknown = sum(one.total_ns for one in found.breakdown.unknown)
        assert unknown < 0.01 * found.breakdown.total.busy_ns * len(found.breakdown.chips)


def test_efficiency_of_the_own_h200() -> None:
    """Products of the size that reached 770 to 822 TFLOP/s on this card; the peak is 989."""
    found = analyze(timeline("h200_llama1b_train_eager"))
    assert found.chip is not None
    assert found.chip.id == "h200-sxm"
    largest = found.rates[0]
    assert (largest.op, largest.bound) == ("aten::mm", "compute")
    assert 0.7 < (largest.efficiency or 0) < 0.85


def test_fusing_is_worth_what_compiling_gained() -> None:
    """Compiling this model took the step from 143.4 to 122.2 ms, by fusing; the finding promises that within 3 %."""
    first = analyze(timeline("h200_llama1b_train_eager")).findings[0]
    assert "kernels bound by memory that follow each other" in first.what
    assert first.predicted_gain == pytest.approx(1 - 122.2 / 143.4, abs=0.03)


def test_steps() -> None:
    assert np.unique(timeline("v100_rank1of2").step).tolist() == [-1, 2, 3, 4, 5, 6]
    assert np.unique(
        timeline("h200_llama1b_train_eager").step[timeline("h200_llama1b_train_eager").is_work]
    ).tolist() == [0, 1]


def test_arrows_and_periods_give_the_same_layers() -> None:
    """Two independent ways to the layer of backward work: arrows from forward ops, and the rhythm of the kernels."""
    line = timeline("h200_llama1b_train_eager")
    rows = np.flatnonzero(counted_rows(line))
    phase = phases(line, rows)
    both = layers(line, rows, phase)
    without = replace(line, detail=replace(line.detail, forward=Sparse()))
    by_period = layers(without, rows, phase)
    forward = np.where(phase == PHASES.index("backward"), -1, by_period).astype(np.int32)
    arrowed = by_arrows(line, rows, forward, phase)
    told = (arrowed >= 0) & (phase == PHASES.index("backward"))
    assert int(told.sum()) == 1504
    assert np.array_equal(arrowed[told], by_period[told])
    assert np.array_equal(both, by_period)
