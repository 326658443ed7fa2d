"""Turn a Validation of the bundled rows into the figures Ridgeline is judged by: sets, targets, parameters.

Everything here follows from the shipped files without a fit, so that a table in the documentation can be checked.

Turn a case that is far off into a guess why, from what its prediction consists of and how well its kind is known.

A guess, not a finding: it names where to look first.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import Literal

from ridgeline.calibrate.collective_times import is_large
from ridgeline.calibrate.folds import bundled_rows, takes_part
from ridgeline.calibrate.truth.rows import BUNDLED, is_headline
from ridgeline.calibrate.validate import FittedParameters
from ridgeline.calibrate.validation import Errors, Validation, ValidationCase, errors_of
from ridgeline.core.documents import JsonObject
from ridgeline.cost import PARAMETERS, Calibration, Owners
from ridgeline.plan.engine import default_engine

FEW = 8  # runs of a chip or an engine below which its own parameters are hardly known
# a part of the step -> from which share on it is suspicious, and what it then means
SUSPECTS: Mapping[str, tuple[float, str]] = MappingProxyType(
    {
        "kernel": (0.15, "host-bound small model: launches are"),
        "ep": (0.2, "expert dispatch is"),
        "tp": (0.2, "tensor-parallel communication is"),
        "cp": (0.1, "context-parallel communication is"),
        "shard": (0.15, "gathering sharded weights is"),
        "dp": (0.15, "gradient exchange is"),
        "pp": (0.1, "sends between stages are"),
        "bubble": (0.25, "the pipeline bubble is"),
        "optimizer": (0.15, "the optimizer is"),
        "memory": (0.35, "memory-bound work is"),
        "attention": (0.4, "attention is"),
    }
)


def runs_known(parameters: FittedParameters) -> Counter[str]:
    """How many fitted runs each chip and each engine has."""
    return Counter(name for _, item in parameters.residuals for name in (item.chip, item.engine))


def likely(case: ValidationCase, known: Counter[str], most: int = 2) -> str:
    """The first few reasons that apply, most telling first."""
    reasons = [reason for rule in RULES for reason in rule(case, known)]
    return "; ".join(reasons[:most]) or "nothing unusual about it: mostly matrix products"


def _notes(case: ValidationCase, known: Counter[str]) -> Iterator[str]:  # noqa: ARG001
    if case.row["x_flag"]:
        yield "flagged in the table"
    if case.row["x_launch_blocking"] in ("1", "1.0", "true"):
        yield "every launch was waited for, which is not modelled"
    for note in case.assumptions:
        if re.match(r"recompute\b", note):
            yield "recompute was assumed"
        elif note.startswith("lora"):
            yield "adapter sizes were assumed"
    if case.row["arch"] == "hybrid":
        yield "hybrid model: few such runs in the fit"


def _rare(case: ValidationCase, known: Counter[str]) -> Iterator[str]:
    for name in (case.chip, case.engine):
        if known[name] < FEW:
            yield f"{name} has {'no' if not known[name] else 'few'} measured runs in the fit"


def _shares(case: ValidationCase, known: Counter[str]) -> Iterator[str]:  # noqa: ARG001
    total = sum(case.parts.values()) or 1.0
    shares = {name: case.parts.get(name, 0.0) / total for name in SUSPECTS}
    over = [name for name, share in shares.items() if share >= SUSPECTS[name][0]]
    for name in sorted(over, key=lambda name: -shares[name] / SUSPECTS[name][0]):
        yield f"{SUSPECTS[name][1]} {shares[name]:.0%} of the prediction"


def _trust(case: ValidationCase, known: Counter[str]) -> Iterator[str]:  # noqa: ARG001
    if case.row["x_trust"] == "C":
        yield "read from a chart"
    if case.row["x_trust"] == "B-":
        yield "the plan was joined from a script"


RULES: Sequence[Callable[[ValidationCase, Counter[str]], Iterator[str]]] = (_notes, _rare, _shares, _trust)


ENOUGH = 8  # rows an accelerator needs before its mean says something
Sheet = JsonObject
Measure = Literal["mape", "median_ape", "coverage90"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Aim:
    """A set of rows and the range its figure should lie in."""

    name: str
    measure: Measure
    low: float
    high: float
    holds: Callable[[ValidationCase], bool]


def in_headline(case: ValidationCase) -> bool:
    """Whether a case is one of the rows that headline figures are about."""
    return is_headline(case.row) and case.row.table not in BUNDLED[1:]


def _cites(name: str) -> Callable[[ValidationCase], bool]:
    return lambda case: case.row.source == "misc" and case.row["source"].startswith(name)


AIMS: tuple[Aim, ...] = (
    Aim(name="headline", measure="mape", low=0, high=0.06, holds=in_headline),
    Aim(name="headline", measure="median_ape", low=0, high=0.038, holds=in_headline),
    Aim(name="headline", measure="coverage90", low=0.85, high=0.95, holds=in_headline),
    Aim(name="Megatron SC'21", measure="mape", low=0, high=0.06, holds=_cites("Narayanan")),
    Aim(name="Korthikanti 2022", measure="mape", low=0, high=0.06, holds=_cites("Korthikanti")),
    Aim(name="single node A100", measure="mape", low=0, high=0.07, holds=lambda case: case.row.table == BUNDLED[1]),
    Aim(name="own H200", measure="mape", low=0, high=0.025, holds=lambda case: case.row.source == "h200"),
)


def _arch(*names: str) -> Callable[[ValidationCase], bool]:
    return lambda case: case.row["arch"] in names


@cache
def _fitted_sources() -> frozenset[str]:
    return frozenset(row.source for row in bundled_rows().values() if takes_part(row))


# what a headline does not tell: every set over all rows that are predicted, headline or not
BESIDE: Mapping[str, Callable[[ValidationCase], bool]] = MappingProxyType(
    {
        "headline": in_headline,
        "dense": _arch("dense"),
        "mixture of experts": _arch("moe", "mla_moe"),
        "hybrid": _arch("hybrid"),
        "default engine": lambda case: case.engine == default_engine(None),
        "unseen sources": lambda case: not case.metric and case.row.source not in _fitted_sources(),
        "unflagged": lambda case: bool(case.metric) and not case.row["x_flag"],
    }
)
# of collectives: rows predicted without their system, and those that only their own system tells about, by size
COLLECTIVES_BESIDE: Mapping[str, Callable[[ValidationCase], bool]] = MappingProxyType(
    {
        "left out, above 1 MB": lambda case: case.cross_validated and is_large(case.size or 0.0),
        "left out, to 1 MB": lambda case: case.cross_validated and not is_large(case.size or 0.0),
        "own system, above 1 MB": lambda case: not case.cross_validated and is_large(case.size or 0.0),
        "own system, to 1 MB": lambda case: not case.cross_validated and not is_large(case.size or 0.0),
        "experts": lambda case: case.engine.startswith("deepep"),
    }
)
EACH_CHIP = 0.14  # mean of every accelerator with enough headline rows
Left = Literal["source", "engine", "family"]
# mean where everything of the row's source, engine or family of chips was left out, and how many intervals should hold
LEFT_OUT: Mapping[Left, float] = MappingProxyType({"source": 0.12, "engine": 0.13, "family": 0.12})
COVERED = (0.87, 0.93)
ANCHORED = 0.09  # mean on the rest of a source that was left out, after one run of the same software and machine


def errors_by_set(validation: Validation) -> dict[str, Errors]:
    """All rows, and each set that is some of them: the headline beside what it leaves out."""
    cases = validation.cases
    among = COLLECTIVES_BESIDE if validation.kind == "collectives" else BESIDE
    sets = {name: [case for case in cases if holds(case)] for name, holds in among.items()}
    some = {name: errors_of(set_cases) for name, set_cases in sets.items() if 0 < len(set_cases) < len(cases)}
    return {"all": errors_of(cases), **some}


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidationReport:
    """Predictions of a table's rows against what was measured.

    sets   errors of all rows, and of each set that is some of them
    """

    validation: Validation

    JSON = "*validation sets"

    @property
    def sets(self) -> dict[str, Errors]:
        return errors_by_set(self.validation)


def figures(validation: Validation) -> list[Sheet]:
    """One line per aim: set, rows, measure, target, reached, met."""
    lines = [_line(aim, [case for case in validation.cases if aim.holds(case)]) for aim in AIMS]
    chips: dict[str, list[ValidationCase]] = {}
    for case in validation.cases:
        if in_headline(case):
            chips.setdefault(case.chip, []).append(case)
    for chip in sorted(chips, key=lambda chip: (-len(chips[chip]), chip)):
        if len(chips[chip]) >= ENOUGH:
            aim = Aim(name=chip, measure="mape", low=0, high=EACH_CHIP, holds=in_headline)
            lines.append(_line(aim, chips[chip]))
    return lines


def _line(aim: Aim, cases: Sequence[ValidationCase]) -> Sheet:
    value = getattr(errors_of(cases), aim.measure)
    return line(aim.name, len(cases), aim.measure, (aim.low, aim.high), value)


def _beside_line(name: str, errors: Errors) -> Sheet:
    measures = ("mape", "median_ape", "p90_ape", "bias", "coverage90")
    values = {measure: getattr(errors, measure) for measure in measures}
    return {"set": name, "rows": errors.n, **{key: value and round(value, 4) for key, value in values.items()}}


def line(name: str, rows: int, measure: Measure, target: tuple[float, float], value: float | None) -> Sheet:
    """A figure beside its target.

    >>> line("mine", 3, "mape", (0, 0.07), 0.052)["met"]
    True
    """
    met = value is not None and target[0] <= value <= target[1]
    rounded_value = None if value is None else round(value, 4)
    return {"set": name, "rows": rows, "measure": measure, "target": list(target), "reached": rounded_value, "met": met}


def parameter_sheet(calibration: Calibration, known: Sequence[Owners]) -> list[Sheet]:
    """Every fitted parameter: common value, and the range over the chips and engines that took part."""
    lines = []
    for name, item in PARAMETERS.items():
        values = [calibration.owner_value(name, owner) for owner in dict.fromkeys(known)]
        lines.append(
            {
                "name": name,
                "unit": item.unit,
                "group": item.group,
                "per": ", ".join(item.per),
                "value": _short(item.value(calibration.offsets.get(name, 0.0))),
                "range": [_short(min(values)), _short(max(values))] if item.per and values else [],
                "plausible": [item.low, item.high],
                "meaning": item.meaning,
            }
        )
    return lines


def _short(value: float) -> float:
    """Three figures: more would claim what the rows do not know."""
    return float(f"{value:.3g}")


def accuracy_of(validation: Validation, parameters: FittedParameters) -> Sheet:
    """The part of `docs/accuracy.json` that follows from the shipped files."""
    cases = validation.cases
    fitted_cases = [case for case in cases if takes_part(case.row)]
    return {
        "source": parameters.full.source,
        "rows": len(cases) + len(validation.skipped),
        "predicted": len(cases),
        "fitted": len(fitted_cases),
        "sets": figures(validation),
        "beside": [_beside_line(name, errors) for name, errors in errors_by_set(validation).items()],
        "groups": {
            grouping: {
                name: {"n": item.n, "mape": round(item.mape or 0.0, 4)}
                for name, item in Validation(kind="training", cases=tuple(fitted_cases), skipped=())
                .by(grouping)
                .items()
            }
            for grouping in ("accelerator", "source", "framework", "arch")
        },
        "parameters": parameter_sheet(parameters.full, [case.known_as for case in fitted_cases if case.known_as]),
    }


def differences(old: object, new: object, path: str = "") -> list[str]:
    """Where two sheets differ, by path; numbers may differ in the last figure that is written.

    >>> differences({"a": [1.0, 2]}, {"a": [1.00001, 3]})
    ['a[1]: 2 is now 3']
    """
    if isinstance(old, dict) and isinstance(new, dict):
        keys = dict.fromkeys([*old, *new])
        return [line for key in keys for line in differences(old.get(key), new.get(key), f"{path}.{key}".lstrip("."))]
    if isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        pairs = enumerate(zip(old, new, strict=True))
        return [line for index, (a, b) in pairs for line in differences(a, b, f"{path}[{index}]")]
    if isinstance(old, (int, float)) and isinstance(new, (int, float)) and abs(old - new) <= max(2e-4, 5e-3 * abs(old)):
        return []
    return [] if old == new else [f"{path}: {old} is now {new}"]
