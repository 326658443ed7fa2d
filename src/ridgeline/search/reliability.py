"""Turn published runs into how often a chip stops a job, how long recovery takes and how fast checkpoints are written.

    chip mtbf = chips * period / interruptions        job mtbf = chip mtbf / chips of the job

A job stops when any of its chips does, or what hangs on it: host, cable, software. Runs count different things:
`faults` are unexpected stops, `all` adds planned and manual ones, `nodes` are machines that failed whether or not a job
ran there. One cluster's jobs of 1024 chips end 3.7 times as often as its node failures explain. So the figure of a
family is the geometric mean of its runs, and the spread is part of the answer. The rate is taken as steady; machines in
their first weeks, and machines nobody screened, fail more often.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Annotated, Literal

import numpy as np

from ridgeline.core.evidence import Dissent, Evidence, Quoted
from ridgeline.core.records import dataclass
from ridgeline.core.table import AtLeast, Count, QuantityUnit, QuotedBytesPerS, QuotedCount, QuotedSeconds, decode
from ridgeline.core.units import parse_quantity
from ridgeline.ir.ops import Num

SHIPPED = Path(__file__).parent / "reliability.toml"
DAY = parse_quantity("1 d", "s")
ENOUGH = 3  # runs of a family from which its own spread is believed


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One published run or rate: in `period` seconds, `chips` chips saw that many interruptions."""

    id: str
    family: str
    chips: Count
    period: Annotated[float, QuantityUnit("s")]
    interruptions: Annotated[float, AtLeast(0)]
    counts: Literal["faults", "all", "nodes"]
    evidence: Evidence
    source: str
    pooled: bool = False
    note: str = ""

    @property
    def chip_mtbf_s(self) -> float:
        """Chip-seconds per interruption."""
        return self.chips * self.period / self.interruptions


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovery:
    """From a failure to running again: `schedule` holds at `chips` chips and below, and grows with every doubling."""

    chips: Count
    detect: QuotedSeconds
    schedule: QuotedSeconds
    per_doubling: QuotedSeconds

    def schedule_s(self, chips: Num) -> Num:
        """Seconds until machines are there.

        >>> [round(float(published_figures().recovery["requeue"].schedule_s(chips))) for chips in (64, 2048, 16384)]
        [454, 454, 768]
        """
        doublings = np.log2(np.maximum(np.asarray(chips, dtype=np.float64) / self.chips, 1.0))
        return self.schedule.value + self.per_doubling.value * doublings


@dataclass(frozen=True, slots=True, kw_only=True)
class Saving:
    """Checkpoints: bytes/s a node and the whole storage take, the share that blocks, a load over a save in time."""

    node: QuotedBytesPerS
    system: QuotedBytesPerS
    blocking: QuotedCount
    load_per_save: QuotedCount


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """All of the evidence."""

    run: tuple[Run, ...]
    recovery: Mapping[str, Recovery]
    checkpoint: Saving


@dataclass(frozen=True, slots=True, kw_only=True)
class ChipMtbf:
    """Mean chip-seconds between interruptions, with the shortest and longest that published runs show."""

    figure: Quoted
    low_s: float
    high_s: float


@cache
def published_figures() -> Published:
    """The evidence that ships with Ridgeline."""
    with SHIPPED.open("rb") as stream:
        return decode(Published, tomllib.load(stream))


def chip_mtbf(family: str) -> ChipMtbf:
    """How long a chip of a family goes without stopping its job; of all families where none of its runs is published.

    >>> hopper = chip_mtbf("hopper")
    >>> [round(seconds / DAY) for seconds in (hopper.figure.value, hopper.low_s, hopper.high_s)]
    [2411, 937, 5574]
    >>> chip_mtbf("cdna3").figure.evidence.label
    'assumed'
    """
    runs = published_figures().run
    catalog_entry = [run for run in runs if family and run.family == family]
    pooled = [run for run in catalog_entry if run.pooled]
    share_of_all = catalog_entry if len(catalog_entry) >= ENOUGH else runs
    if not pooled:
        pooled = [run for run in runs if run.pooled and run.evidence > Evidence.ASSUMED]
    value = _geometric_mean([run.chip_mtbf_s for run in pooled])
    names = ", ".join(run.id for run in pooled)
    grade = min(Evidence.ANALYTIC, *(run.evidence for run in pooled)) if catalog_entry else Evidence.ASSUMED
    whose = f"of {family}" if catalog_entry else f"of all families: none published for {family or 'this chip'}"
    many = f"geometric mean of {len(pooled)} runs" if len(pooled) > 1 else "one run"
    note = f"{many} {whose}"
    alternatives = tuple(
        Dissent(value=run.chip_mtbf_s, source=run.source, note=f"{run.id}, {run.counts}") for run in catalog_entry
    )
    seen = [run.chip_mtbf_s for run in share_of_all]
    figure = Quoted(value=value, evidence=grade, source=names, note=note, conflicts=alternatives)
    return ChipMtbf(figure=figure, low_s=min(seen), high_s=max(seen))


def _geometric_mean(values: Sequence[float]) -> float:
    """Runs differ by factors, not by amounts, and far more than their counts explain: each has one vote."""
    return math.exp(sum(map(math.log, values)) / len(values))
