"""Turn a chip and a number format into the share of its data sheet that good kernels reach.

`reachable.toml` holds the best rate anybody measured on each chip, as a share of its peak: of the profiles that
`ridgeline characterize` brings and of the kernels table of the calibration (written by
`python -m tools docs reachable`). Shapes of real steps are seldom the best ones:

    reachable = 0.92 best measured        without a measurement: 75 % of the compute roof, 80 % of the memory roof

>>> round(reachable("mi300x", "bf16", "compute"), 3), reachable("no-such-chip", "bf16", "compute")
(0.473, 0.75)
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path

TABLE = Path(__file__).parent / "reachable.toml"
ASSUMED = {"compute": 0.75, "memory": 0.8}  # of the roof: what good kernels reach
USUAL = 0.92  # of the best shape
SAME = {"fp16": "bf16", "bf16": "fp16"}  # one unit, one rate


@cache
def _shares() -> Mapping[str, Mapping[str, float]]:
    return {id: entry["share"] for id, entry in tomllib.loads(TABLE.read_text(encoding="utf-8"))["chip"].items()}


def reachable(chip: str | None, dtype: str, bound: str) -> float:
    """Efficiency good kernels reach on a chip (its id) in a format, where this bounds them."""
    shares = _shares().get(chip or "", {})
    best = shares.get("memory") if bound == "memory" else shares.get(dtype, shares.get(SAME.get(dtype, ""), None))
    return ASSUMED[bound] if best is None else USUAL * best
