"""What a fingerprint holds, as values: no torch is needed to read them.

plain_print(fingerprint)    the table that a chip's profile stores
print_of(table)             the fingerprint of such a table, once the profile's reader has checked it
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

CUT_BITS = 14  # below it is no 32-bit accumulator that cuts off, but one of fewer bits


@dataclass(frozen=True, slots=True, kw_only=True)
class Products:
    """Matrix products of one format.

    factor_bits    significant bits of a factor that are multiplied: 24 in fp32, 11 in TF32, 8 in bf16
    bits           of a sum of 4,096 terms that are right: some 20 for a 32-bit accumulator, 8 for one of bf16
    sums           how the accumulator rounds: nearest, toward zero, away from zero
    lean           mean error of such sums, relative
    """

    factor_bits: int
    bits: float
    sums: str
    lean: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Rough:
    """A function in fp32: its largest error in units in the last place, and the mean of all (too large is positive)."""

    ulp: float
    bias: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Fingerprint:
    """An arithmetic unit.

    cast         how fp32 becomes bf16: nearest with ties to even, away, toward zero
    denormals    by format: kept, flushed, read only, made only
    fma          whether addcmul adds its product unrounded; None where it cannot be asked
    fp8          by format: its largest number, and what lies beyond
    """

    products: dict[str, Products] = field(default_factory=dict)
    cast: str = ""
    denormals: dict[str, str] = field(default_factory=dict)
    fma: bool | None = None
    functions: dict[str, Rough] = field(default_factory=dict)
    fp8: dict[str, str] = field(default_factory=dict)

    @property
    def cuts_off(self) -> bool:
        """Whether accumulators of products round toward zero, as tensor cores' do."""
        return any(product.sums == "toward zero" and product.bits >= CUT_BITS for product in self.products.values())

    def notes(self, allowed: frozenset[str] = frozenset(), stored: Fingerprint | None = None) -> tuple[str, ...]:
        """What judgements took from it, or from the one of the chip's profile, and what is unlike IEEE, in words."""
        notes_, wide = [], (stored or self).cuts_off
        for name, product in self.products.items():
            if name == "fp32" and product.factor_bits < 24:
                kept_text = "TF32" if product.factor_bits == 11 else f"{product.factor_bits} bits"
                notes_.append(
                    f"products of fp32 keep {kept_text} of their factors"
                    + (": allowed, and judged so" if "tf32" in allowed else ": --allow tf32 accepts TF32")
                )
            if product.sums == "toward zero":
                wider = wide and product.bits >= CUT_BITS
                notes_.append(
                    f"sums of {name} products are rounded toward zero"
                    + (": contracts of products allow for it" if wider else "")
                )
            elif product.bits < CUT_BITS:
                notes_.append(f"sums of {name} products keep {product.bits:.0f} bits: no 32-bit accumulator")
        if self.cast and self.cast != "nearest, ties to even":
            notes_.append(f"fp32 becomes bf16 by rounding {self.cast}")
        if self.fp8.get("e4m3fn", "448").startswith("240"):
            notes_.append("fp8 e4m3 ends at 240, not 448")
        return tuple(notes_)


def plain_print(found: Fingerprint) -> dict[str, Any]:
    """The table that a profile stores; formats and functions without a finite figure are left out."""
    table = asdict(found)
    for part in ("products", "functions"):
        table[part] = {name: entry for name, entry in table[part].items() if all(map(_finite, entry.values()))}
    return table


def _finite(value: Any) -> bool:
    return not isinstance(value, float) or math.isfinite(value)


def print_of(table: Mapping[str, Any]) -> Fingerprint:
    """A fingerprint from a table that was checked; what it lacks is not known."""
    return Fingerprint(
        products={name: Products(**entry) for name, entry in table.get("products", {}).items()},
        cast=table.get("cast", ""),
        denormals=dict(table.get("denormals", {})),
        fma=table.get("fma"),
        functions={name: Rough(**entry) for name, entry in table.get("functions", {}).items()},
        fp8=dict(table.get("fp8", {})),
    )
