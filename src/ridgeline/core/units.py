"""Turn unit strings into SI base numbers and back; the only place where powers of ten and two live.

Inside Ridgeline every number is in base units: bytes, FLOPs, seconds, bytes per second, watts. At the edge it is a
string with a unit, and the unit is checked: "400 Gbit/s" asked for as "B/s" is 50e9, asked for as "B" is an error.
"""

from __future__ import annotations

import math
import re
from types import MappingProxyType

from ridgeline.core.errors import Problem, UnitError

DECIMAL = MappingProxyType(
    {"n": 1e-9, "u": 1e-6, "µ": 1e-6, "m": 1e-3, "": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18}
)
MINUTE = 60.0  # seconds
HOUR = 60 * MINUTE
DAY = 24 * HOUR
YEAR = 365 * DAY
MILLION = 1e6  # tokens that serving is priced by
BINARY = MappingProxyType({"Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40, "Pi": 2.0**50})

# unit symbol -> (dimension, factor to the dimension's base unit)
_UNITS: MappingProxyType[str, tuple[str, float]] = MappingProxyType(
    {
        "B": ("B", 1.0),
        "bit": ("B", 1 / 8),
        "B/s": ("B/s", 1.0),
        "bit/s": ("B/s", 1 / 8),
        "FLOP": ("FLOP", 1.0),
        "FLOP/s": ("FLOP/s", 1.0),
        "OP/s": ("FLOP/s", 1.0),
        "s": ("s", 1.0),
        "min": ("s", 60.0),
        "h": ("s", 3600.0),
        "d": ("s", 86400.0),
        "W": ("W", 1.0),
        "J": ("J", 1.0),
        "Hz": ("Hz", 1.0),
        "USD/h": ("USD/h", 1.0),
        "token": ("token", 1.0),
    }
)
# units that take no prefix: "5 mmin" or "3 Mh" is a typo, not a quantity
_BARE = frozenset({"min", "h", "d", "USD/h"})
_EXAMPLES = MappingProxyType(
    {
        "B": "80 GB",
        "B/s": "3.35 TB/s",
        "FLOP": "1 PFLOP",
        "FLOP/s": "989 TFLOP/s",
        "s": "5 us",
        "W": "700 W",
        "J": "1 kJ",
        "Hz": "1.98 GHz",
        "USD/h": "2.5 USD/h",
        "token": "4 Mtoken",
    }
)
_QUANTITY = re.compile(r"\s*([-+]?(?:\d[\d_]*\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)\s*([^\s\d].*?)?\s*", re.ASCII)

_COUNT = re.compile(r"\s*([-+]?\d[\d_]*(?:\.\d+)?)\s*([kKM]?)\s*", re.ASCII)


def parse_quantity(text: str, unit: str) -> float:
    """The number of base units in a string such as "3.35 TB/s"; `unit` names the base unit expected.

    >>> parse_quantity("400 Gbit/s", "B/s")
    50000000000.0
    >>> parse_quantity("80 GiB", "B") == 80 * 2**30
    True
    >>> parse_quantity("80 GB", "B/s")
    Traceback (most recent call last):
    ridgeline.core.errors.UnitError: got '80 GB', expected a quantity in B/s such as "3.35 TB/s"
    """
    match = _QUANTITY.fullmatch(text) if isinstance(text, str) and len(text) < 64 else None
    scale = _scale(match.group(2) or "", unit) if match else None
    if match is None or scale is None:
        raise UnitError(_wrong(text, unit))
    value = float(match.group(1)) * scale
    if not math.isfinite(value) or value < 0:
        raise UnitError(_wrong(text, unit))
    return value


def parse_count(text: str) -> int:
    """A whole number as lengths and batches are spoken of: k and M are powers of two.

    >>> parse_count("8192"), parse_count("128k"), parse_count("1M"), parse_count("1.5k"), parse_count("131_072")
    (8192, 131072, 1048576, 1536, 131072)
    >>> parse_count("long")
    Traceback (most recent call last):
    ridgeline.core.errors.UnitError: got 'long', expected a whole number such as 8192, 128k (131,072) or 1M (1,048,576)
    """
    match = _COUNT.fullmatch(text) if len(text) < 24 else None
    value = float(match.group(1)) * BINARY.get(f"{match.group(2).upper()}i", 1.0) if match else math.nan
    if not value.is_integer():
        expected_text = "a whole number such as 8192, 128k (131,072) or 1M (1,048,576)"
        raise UnitError(Problem(path="", given=repr(text), expected=expected_text))
    return int(value)


def format_quantity(value: float, unit: str, digits: int = 4) -> str:
    """A short human string of a base-unit number, in powers of ten: the inverse of `parse_quantity` up to rounding.

    >>> format_quantity(3.35e12, "B/s"), format_quantity(0.00125, "s"), format_quantity(0, "B")
    ('3.35 TB/s', '1.25 ms', '0 B')
    """
    if unit in _BARE or value == 0 or not math.isfinite(value):
        return f"{value:.{digits}g} {unit}"
    prefixes = ("n", "u", "m", "") if unit == "s" else ("", "k", "M", "G", "T", "P", "E")
    best = prefixes[0]
    for prefix in prefixes:
        if abs(value) >= DECIMAL[prefix] * (1 - 10.0**-digits / 2):
            best = prefix
    return f"{value / DECIMAL[best]:.{digits}g} {best}{unit}"


def format_duration(seconds: float, digits: int = 3) -> str:
    """Seconds as people say them: from two minutes on in minutes, hours or days.

    >>> format_duration(17.68), format_duration(0.00034), format_duration(1800), format_duration(864000)
    ('17.7 s', '340 us', '30 min', '10 d')
    """
    for name, size in (("d", DAY), ("h", HOUR), ("min", MINUTE)):
        if abs(seconds) >= 2 * size:
            count = seconds / size
            return f"{count:,.0f} {name}" if abs(count) >= 10**digits else f"{count:.{digits}g} {name}"
    return format_quantity(seconds, "s", digits)


def signed_quantity(value: float, unit: str, digits: int = 3) -> str:
    """A difference with its sign, a plus for nothing; the minus is the one of print, as wide as the plus.

    >>> signed_quantity(0.25, "s"), signed_quantity(-2, "s"), signed_quantity(0, "s")
    ('+250 ms', '−2 s', '+0 s')
    """
    return ("−" if value < 0 else "+") + format_quantity(abs(value), unit, digits)


def signed_share(share: float, digits: int = 1, unit: str = "%") -> str:
    """A relative difference in hundredths with its sign.

    >>> signed_share(0.0345), signed_share(-0.25, 0, " %")
    ('+3.5%', '−25 %')
    """
    return f"{share * 100:+.{digits}f}{unit}".replace("-", "−")


def signed_number(value: float, digits: int = 3) -> str:
    """A number with its sign, the minus of print.

    >>> signed_number(0.25), signed_number(-1.5, 1)
    ('+0.250', '−1.5')
    """
    return f"{value:+.{digits}f}".replace("-", "−")


def format_gib(size_bytes: float) -> str:
    """Bytes in GiB, as drivers and profilers show memory.

    >>> format_gib(80 * 2**30)
    '80.0 GiB'
    """
    return f"{size_bytes / BINARY['Gi']:.1f} GiB"


def format_count(value: float, digits: int = 3) -> str:
    """A count with a short-scale letter, as parameter counts are spoken of.

    >>> format_count(8030261248), format_count(671e9), format_count(512)
    ('8.03 B', '671 B', '512')
    """
    for letter, power in (("T", "T"), ("B", "G"), ("M", "M"), ("k", "k")):
        if abs(value) >= DECIMAL[power]:
            return f"{value / DECIMAL[power]:.{digits}g} {letter}"
    return f"{value:.{digits + 1}g}"


def _scale(symbol: str, unit: str) -> float | None:
    """Factor from the written symbol to the base unit, or None when it is not of that dimension."""
    for size in (0, 1, 2):
        prefix, base_unit = symbol[:size], symbol[size:]
        dimension = _UNITS.get(base_unit)
        if dimension is None or dimension[0] != unit or (prefix and base_unit in _BARE):
            continue
        factor = DECIMAL.get(prefix) or BINARY.get(prefix)
        if factor is not None:
            return factor * dimension[1]
    return None


def quantity_in(unit: str) -> str:
    """What is expected where a quantity stands, with an example."""
    return f'a quantity in {unit} such as "{_EXAMPLES.get(unit, unit)}"'


def _wrong(text: object, unit: str) -> Problem:
    return Problem(path="", given=repr(text), expected=quantity_in(unit))
