"""Turn measured peaks into the share of memory that a plan must leave free: how far short predicted peaks fell.

    shortfall = allocated when measured / allocated as predicted - 1            headroom = s / (1 + s)

Where peaks of an engine were measured on a chip's family, s is the shortfall that nine of ten new runs stay below: the
ceil(0.9 (n + 1))-th of n measured ones, as conformal prediction has it. Elsewhere it is the largest of them, and how
many runs stay below is not known.

`python benchmarks/headroom.py` writes the file from runs that had no part in the memory model.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from ridgeline.core.records import dataclass
from ridgeline.plan.scenario import Scenario

SHIPPED_SHORTFALLS = Path(__file__).parent / "shortfalls.json"
COVERAGE = 0.9


@dataclass(frozen=True, slots=True, kw_only=True)
class Shortfall:
    """By how much a measured peak exceeds the predicted one, and what it ran on."""

    family: str
    engine: str
    share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Headroom:
    """The share of memory to leave free, and what says so."""

    share: float
    origin: str


def headroom(family: str, engine: str, runs: Sequence[Shortfall]) -> Headroom:
    """What runs of an engine on a family of chips ask for; what all ask for where those were never measured.

    >>> runs = [Shortfall(family="hopper", engine="torch-eager", share=number / 100) for number in range(9)]
    >>> round(headroom("hopper", "torch-eager", runs).share, 3), headroom("hopper", "nemo", runs[:2]).origin
    (0.074, 'the largest shortfall of 2 measured peaks, none of nemo on hopper')
    """
    known = {(run.family, run.engine) for run in runs}
    highest = sorted(run.share for run in runs)
    if not runs:
        return Headroom(share=0.0, origin="no measured peak at hand")
    if (family, engine) in known:
        place = min(math.ceil(COVERAGE * (len(runs) + 1)), len(runs))
        share, told = highest[place - 1], f"{place} of {len(runs)} measured peaks fell short by less"
    else:
        share = highest[-1]
        told = f"the largest shortfall of {len(runs)} measured peaks, none of {engine} on {family or 'such a chip'}"
    return Headroom(share=max(0.0, share / (1 + share)), origin=told)


@cache
def shipped_shortfalls() -> tuple[Shortfall, ...]:
    """The measured peaks that come with Ridgeline."""
    rows = json.loads(SHIPPED_SHORTFALLS.read_text(encoding="utf-8"))["rows"]
    return tuple(Shortfall(family=row["family"], engine=row["engine"], share=row["shortfall"]) for row in rows)


def scenario_headroom(scenario: Scenario) -> Headroom:
    """The headroom of a scenario's chip under its engine, from the measured peaks that come with Ridgeline."""
    return headroom(scenario.system.chip.family, scenario.engine.fitted_id, shipped_shortfalls())
