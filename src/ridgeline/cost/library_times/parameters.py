"""The few numbers that library times are made of: what is believed of each beforehand, and what the fit found.

`ridgeline fit --collectives` writes `parameters.json`: the fit of all bundled rows, and one without each system, with
which that system's rows are validated. A family that was never measured takes the number of all families together.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType

from ridgeline.core.records import dataclass

SHIPPED_LIBRARY_TIMES = Path(__file__).parent / "parameters.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class LibraryPrior:
    """What is believed of a number before any row: its value, and by which factor (as a logarithm) it may be off."""

    value: float
    spread: float
    unit: str
    what: str


def _priors(kind: str) -> Mapping[str, LibraryPrior]:
    rows = json.loads((Path(__file__).parent / "priors.json").read_text(encoding="utf-8"))[kind]
    return MappingProxyType({name: LibraryPrior(**row) for name, row in rows.items()})


# one number for all families, and one for each that was measured, drawn to it by the spread
BY_FAMILY, PRIORS = _priors("by_family"), _priors("all")
MEASURED_FAMILIES = ("ampere", "hopper", "blackwell", "pcie")


def parameter_names() -> tuple[str, ...]:
    """Every number that is fitted: those of all families, of each family, and the rest."""
    families = [f"{name}.{family}" for name in BY_FAMILY for family in MEASURED_FAMILIES]
    return (*BY_FAMILY, *families, *PRIORS)


@dataclass(frozen=True, slots=True, kw_only=True)
class LibraryParameters:
    """The numbers by name, in the units of their priors; and by system those of a fit that has not seen it."""

    values: Mapping[str, float]
    folds: Mapping[str, Mapping[str, float]]


def prior_values() -> dict[str, float]:
    """Every number as it is believed before any row."""
    return {name: (PRIORS.get(name) or BY_FAMILY[name.partition(".")[0]]).value for name in parameter_names()}


@cache
def shipped_parameters() -> LibraryParameters:
    """What comes with Ridgeline."""
    data = json.loads(SHIPPED_LIBRARY_TIMES.read_text(encoding="utf-8"))
    folds = {system: MappingProxyType(values) for system, values in data["without"].items()}
    return LibraryParameters(values=MappingProxyType(data["all"]), folds=MappingProxyType(folds))
