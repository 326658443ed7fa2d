"""Turn a number into one that a page can open: its words, its formula, what went in, and who says so."""

from __future__ import annotations

from collections.abc import Iterable

from ridgeline.core.evidence import Quoted
from ridgeline.core.records import dataclass
from ridgeline.core.units import DECIMAL, format_duration, format_gib, format_quantity
from ridgeline.hardware.load import sources


@dataclass(frozen=True, slots=True, kw_only=True)
class FormulaInput:
    """What goes into a formula: its letter or name, its value in words, and where that is from."""

    name: str
    text: str
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainedNumber:
    """A number of a page, in base units, as people read it, and what opens when it is clicked.

    href   the page that shows what is behind it; empty where the formula is all
    """

    value: float
    text: str
    formula: str
    inputs: tuple[FormulaInput, ...]
    source: str
    href: str = ""

    JSON = "value text formula inputs source href?"


def given_input(name: str, text: object, source: str = "chosen on this page") -> FormulaInput:
    """An input that somebody chose."""
    return FormulaInput(name=name, text=str(text), source=source)


def quoted_source(number: Quoted) -> str:
    """Who says a number of the catalog, how good it is, and what else is noted.

    >>> from ridgeline.hardware.load import chip
    >>> quoted_source(chip("h100-sxm").need("hbm.bandwidth"))[:9]
    'datasheet'
    """
    text = sources().get(number.source, number.source)
    note = f"; {number.note}" if number.note else ""
    dissents = "".join(f"; {dissent.source} says {dissent.value:g}" for dissent in number.conflicts)
    return f"{number.evidence.label}: {text}{note}{dissents}"


def quoted_input(name: str, number: Quoted | None, unit: str) -> FormulaInput:
    """An input of the catalog."""
    if number is None:
        return FormulaInput(name=name, text="not published", source="nobody states it; it is not guessed")
    return FormulaInput(name=name, text=quantity_words(number.value, unit), source=quoted_source(number))


def quoted_number(name: str, number: Quoted, unit: str) -> ExplainedNumber:
    """A number of the catalog: quoted, not computed."""
    return ExplainedNumber(
        value=number.value, text=quantity_words(number.value, unit), formula=f"{name}, as quoted",
        inputs=(quoted_input(name, number, unit),), source=quoted_source(number),
    )  # fmt: skip


def quantity_words(value: float, unit: str) -> str:
    """A value of a unit as people read it; a plain count with separators.

    >>> quantity_words(3.35e12, "B/s"), quantity_words(132.0, ""), quantity_words(0.3806, "share")
    ('3.35 TB/s', '132', '38.1 %')
    """
    if unit == "":
        if value >= DECIMAL["M"]:
            return format_quantity(value, "", 4)
        return f"{value:,.0f}" if value == round(value) or value >= DECIMAL["k"] else f"{value:,.4g}"
    if unit == "share":
        return f"{value * 100:.1f} %"
    if unit == "times":
        return f"× {value:.3g}"
    if unit == "USD":
        return f"${value:,.2f}" if value >= 1 else f"${value:.3g}"
    if unit == "USD/h":
        return f"${value:,.2f}/h"
    if unit == "GiB":
        return format_gib(value)
    if unit == "s":
        return format_duration(value)
    return format_quantity(value, unit, 4)


def explain_number(
    value: float,
    unit: str,
    formula: str,
    inputs: Iterable[FormulaInput],
    source: str,
    *,
    text: str = "",
    href: str = "",
) -> ExplainedNumber:
    """A computed number with what it rests on."""
    return ExplainedNumber(
        value=float(value), text=text or quantity_words(value, unit), formula=formula, inputs=tuple(inputs),
        source=source, href=href,
    )  # fmt: skip


def number_input(name: str, number: ExplainedNumber) -> FormulaInput:
    """An explained number as an input of another."""
    return FormulaInput(name=name, text=number.text, source=number.formula)
