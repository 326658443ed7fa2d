"""Tell the sources that no fit, no choice and no table looks at: they are opened once, after everything is settled.

    frozen   a source of `training_more.csv` whose sha256(name), first eight hex digits, mod 5 is 0 or 2

Fitting parameters without a source is not enough: whoever chooses the shape of a model by watching the error of a
left-out source has fitted to it. `ridgeline validate --frozen` opens these and nothing else does. Once opened and
looked into, a source is fitted like any other (`OPENED`): kept out any longer it would serve nobody.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from types import MappingProxyType

from ridgeline.calibrate.truth.rows import Row

TABLE = "training_more.csv"  # of the older tables every source has been watched already
MODULUS, CLASSES = 5, (0, 2)
# when each was opened; docs/LOG.md has what it showed (75 rows, 25.4 % off, 73 % inside the interval)
OPENED: Mapping[str, str] = MappingProxyType(dict.fromkeys(("lumi", "pax", "torchao", "v100", "vocabpp"), "2026-11-15"))


def frozen_name(source: str) -> bool:
    """Whether the rule takes a source of that name.

    >>> [name for name in ("caraml", "jupiter", "pax", "torchao", "v100") if frozen_name(name)]
    ['pax', 'torchao', 'v100']
    """
    return int(hashlib.sha256(source.encode()).hexdigest()[:8], 16) % MODULUS in CLASSES


def is_frozen(row: Row) -> bool:
    """Whether a bundled row belongs to a source that is still frozen."""
    return row.table == TABLE and frozen_name(row.source) and row.source not in OPENED
