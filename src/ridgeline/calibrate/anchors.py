"""Turn measured kernels and collectives into residuals that hold a fit to them.

    r = log(rate / high) / above   where a calibration promises more than was measured
        log(rate / low) / below    where it promises clearly less: a step loses some of what a bare kernel reaches
        0                          between

Whole steps cannot tell a product that is too slow from traffic that is too fast: they fit as well with both. Kernels
measured by themselves can, and a chip without runs is known by them alone.
"""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

import numpy as np

from ridgeline.core.arrays import Array
from ridgeline.core.units import DECIMAL
from ridgeline.cost.calibration import Owners, owners
from ridgeline.cost.kernels import flash_seconds, padded_flops
from ridgeline.cost.machine import PEAKS, WIDE, Machines, ParameterColumns, machines_of
from ridgeline.cost.price import SustainedRates, sustained_rates
from ridgeline.hardware.load import system
from ridgeline.plan.engine import ENGINES

TRUTH = Path(__file__).parent / "truth"
# read from publications and own runs; derived from aiconfigurator's tables by `python -m tools figures anchors`
SERVING_ANCHORS = TRUTH / "anchors_kernels.toml"
SHIPPED_ANCHORS = (TRUTH / "anchors.toml", SERVING_ANCHORS)
ABOVE, BELOW = 0.03, 0.10  # how far, in logarithms, a rate may lie outside what was measured
Kind = Literal["product", "attention", "memory", "link"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Anchor:
    """One measured rate of one chip: between `low` and `high`, in flops/s, bytes/s, or as a share of its link.

    shape       m, n, k of a product
    direction   of attention
    head_dim    of attention
    engine      whose attention library it is
    rows        where it was measured
    serving     of a serving library, which training libraries may surpass or miss
    """

    kind: Kind
    chip: str
    engine: str
    low: float
    high: float
    rows: str
    precision: str = "bf16"
    shape: tuple[int, int, int] = (8192, 8192, 8192)
    direction: Literal["forward", "backward"] = "forward"
    head_dim: int = 128
    serving: bool = False

    @property
    def owners(self) -> Owners:
        """What its parameters are known by."""
        return owners(system(f"1x{self.chip}").chip, ENGINES[self.engine])


def _read(table: dict[str, Any]) -> Anchor:
    unit = {"product": DECIMAL["T"], "attention": DECIMAL["T"], "memory": DECIMAL["T"], "link": 1.0}[table["kind"]]
    sizes = {"shape": tuple(table["shape"])} if "shape" in table else {}
    own = {"engine": "generic"} | table | sizes | {"low": table["low"] * unit, "high": table["high"] * unit}
    return Anchor(**own)


@cache
def anchors() -> tuple[Anchor, ...]:
    """The anchors that ship with Ridgeline."""
    read = [(path, tomllib.loads(path.read_text(encoding="utf-8"))["anchor"]) for path in SHIPPED_ANCHORS]
    return tuple(_read(table | {"serving": path == SERVING_ANCHORS}) for path, tables in read for table in tables)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Bare:
    """How a kernel is launched that runs by itself: no graph, no compiled program, 16-bit attention."""

    rows: int

    @property
    def graph(self) -> Array:
        return np.zeros(self.rows)

    @property
    def xla(self) -> Array:
        return np.zeros(self.rows)

    @property
    def attention(self) -> Array:
        return np.full(self.rows, float(WIDE))


def promised(known: Sequence[Anchor], parameters: ParameterColumns) -> Array:
    """The rate that parameters promise for each anchor, one entry of every column for each."""
    machines = _machines(tuple(anchor.chip for anchor in known))
    rates = sustained_rates(machines, parameters, plans=_Bare(rows=len(known)))
    return np.array([_rate(anchor, rates, row) for row, anchor in enumerate(known)])


@cache
def _machines(chips: tuple[str, ...]) -> Machines:
    """The chips of anchors, by row: the same in every round of a fit."""
    return machines_of([system(f"8x{chip}") for chip in chips])


@cache
def _useful(shape: tuple[int, int, int], cores: float) -> float:
    """The share of a product's padded flops that it asked for."""
    m, n, k = (np.array([float(side)]) for side in shape)
    return float(2 * m[0] * n[0] * k[0] / padded_flops(m, n, k, np.ones(1), np.array([cores]))[0])


def _rate(anchor: Anchor, rates: SustainedRates, row: int) -> float:
    machines = rates.machines
    match anchor.kind:
        case "product":
            useful = _useful(anchor.shape, float(machines.cores[row]))
            return float(rates.peak[row, PEAKS.index(anchor.precision)]) * useful
        case "attention":
            back = anchor.direction == "backward"
            share = (rates.attention_back if back else rates.attention)[row]
            sizes = (np.array([value]) for value in (1.0, float(anchor.head_dim), float(back)))
            units = (rates.attention_peak[row] * share, machines.exponentials[row] * share)
            return float(1.0 / flash_seconds(*sizes, *(np.array([unit]) for unit in units))[0])
        case "memory":
            return float(rates.memory[row])
        case "link":
            return float(rates.links.scale_up[row] / machines.scale_up[row])


def anchor_residuals(known: Sequence[Anchor], parameters: ParameterColumns) -> Array:
    """How far outside its measured range each promised rate lies, in units of what is tolerated."""
    rate = np.log(promised(known, parameters))
    low, high = (np.log([getattr(anchor, end) for anchor in known]) for end in ("low", "high"))
    outside: Array = np.maximum(rate - high, 0.0) / ABOVE + np.minimum(rate - low, 0.0) / BELOW
    return outside
