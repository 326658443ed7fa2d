"""What a calibration remembers of the user's own runs that anchored it, and its way into a file and back.

A run of the user's differs from what was predicted for it by

    log(measured / predicted) = slopes . (own offsets) + shared + same + near + noise

own offsets   parameters of this machine and this software, off those of the fit      (owners, times `APART`)
shared        one effect on everything this user measures                              (shared)
same          one effect on runs of one engine on one chip                             (same)
near          an effect that runs of alike model, length and chips have alike          (near)
noise         what two runs of one source differ by beyond that                        (noise)

Each is normal around zero; the words in brackets are their standard deviations in logarithms (`Components`), estimated
by `ridgeline fit` from how sources that a fit never saw differ from it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from types import MappingProxyType
from typing import ClassVar

from ridgeline.core.documents import JsonObject
from ridgeline.core.errors import InputError, Problem
from ridgeline.core.records import dataclass

FURTHEST = 100.0  # no logarithm, slope or offset of a run is anywhere near
KNOWN_BY = 6  # family, die, chip, kernel, engine, runtime; older files lack the last, or the die, too


@dataclass(frozen=True, slots=True, kw_only=True)
class Components:
    """Variance components of a source no fit has seen: standard deviations in logarithms of a step time.

    owners      of a parameter's offset, as a factor on how far chips and engines may differ (`APART`)
    narrowing   power by which an interval follows the standard deviation: 1 as the components have it, less where runs
                of strangers were found to scatter more
    """

    owners: float = 0.3
    shared: float = 0.02
    same: float = 0.06
    near: float = 0.12
    noise: float = 0.09
    narrowing: float = 0.6


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkShape:
    """What makes two runs alike whatever their plan: logarithms to base 2, and whether experts are there."""

    size: float
    hidden: float
    chips: float
    seq: float
    experts: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Sensitivity:
    """What a step time answers to.

    owners   what its chip and engine are known by: family, die, chip, kernel, engine
    slopes   by parameter: change of log(step time) with the parameter's offset
    """

    owners: tuple[str, ...]
    shape: WorkShape
    slopes: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class AnchorRun:
    """One measured run.

    gap      log(measured / predicted) before anchoring, along its slopes
    noise    standard deviation of its noise; larger for a run that contradicts the others
    weight   what it adds to a prediction, for each unit of covariance with it
    """

    id: str
    measured_s: float
    predicted_s: float
    sensitivity: Sensitivity
    gap: float
    noise: float
    weight: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Anchored:
    """The runs that anchored a calibration, and by how much they moved its offsets."""

    components: Components
    MOST_RUNS: ClassVar = 1000

    runs: tuple[AnchorRun, ...]
    moved: Mapping[str, float]

    def to_table(self) -> JsonObject:
        """As a calibration file holds it."""
        return {
            "components": asdict(self.components),
            "moved": dict(self.moved),
            "runs": [_run_table(run) for run in self.runs],
        }


def _run_table(run: AnchorRun) -> JsonObject:
    sensitivity = run.sensitivity
    sensitivity_table = {
        "owners": list(sensitivity.owners),
        "shape": asdict(sensitivity.shape),
        "slopes": dict(sensitivity.slopes),
    }
    return {name: getattr(run, name) for name in _NUMBERS} | {"id": run.id} | sensitivity_table


_NUMBERS = ("measured_s", "predicted_s", "gap", "noise", "weight")


def components_from(table: object, where: str) -> Components:
    """Components as a file holds them."""
    names = [field.name for field in fields(Components)]
    return Components(**{name: _number(table, name, where, above=0.0) for name in names})


def anchored_from(table: object, where: str) -> Anchored:
    """What `to_table` wrote; `InputError` for anything else."""
    runs = table.get("runs") if isinstance(table, Mapping) else None
    offsets = table.get("moved") if isinstance(table, Mapping) else None
    if not isinstance(table, Mapping) or not isinstance(runs, Sequence) or not isinstance(offsets, Mapping):
        raise _input_error("anchored", "another value", "`components`, `moved` and `runs`", where)
    if len(runs) > Anchored.MOST_RUNS:
        raise _input_error("anchored.runs", f"{len(runs)} runs", f"at most {Anchored.MOST_RUNS}", where)
    return Anchored(
        components=components_from(table.get("components"), where),
        runs=tuple(_run(run, where) for run in runs),
        moved=MappingProxyType({str(name): _number(offsets, name, where) for name in offsets}),
    )


def _run(table: object, where: str) -> AnchorRun:
    if not isinstance(table, Mapping):
        raise _input_error("anchored.runs", "another value", "tables", where)
    owners, slopes, shape = table.get("owners"), table.get("slopes"), table.get("shape")
    if isinstance(owners, list) and len(owners) == KNOWN_BY - 2:
        owners = [owners[0], owners[1], *owners[1:]]  # of before dies were told apart
    if isinstance(owners, list) and len(owners) == KNOWN_BY - 1:
        owners = [*owners, ""]  # of before runtimes were
    has_names = (
        isinstance(owners, Sequence) and len(owners) == KNOWN_BY and all(isinstance(owner, str) for owner in owners)
    )
    if not has_names or not isinstance(owners, Sequence) or not isinstance(slopes, Mapping):
        raise _input_error("anchored.runs", "another table", "`owners`, `shape` and `slopes`", where)
    sides = {name: _number(shape, name, where) for name in ("size", "hidden", "chips", "seq")}
    experts = isinstance(shape, Mapping) and shape.get("experts") is True
    return AnchorRun(
        id=str(table.get("id", ""))[:200],
        measured_s=_number(table, "measured_s", where, below=math.inf, above=0.0),
        predicted_s=_number(table, "predicted_s", where, below=math.inf, above=0.0),
        gap=_number(table, "gap", where),
        noise=_number(table, "noise", where, above=0.0),
        weight=_number(table, "weight", where, below=math.inf),
        sensitivity=Sensitivity(
            owners=tuple(owners),
            shape=WorkShape(**sides, experts=experts),
            slopes=MappingProxyType({str(name): _number(slopes, name, where) for name in slopes}),
        ),
    )


def _number(table: object, name: object, where: str, *, below: float = FURTHEST, above: float = -math.inf) -> float:
    value = table.get(name) if isinstance(table, Mapping) else None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not -below < value < below or value <= above:
        least = " above 0" if above == 0 else ""
        raise _input_error(f"anchored.{str(name)[:40]}", repr(value)[:40], f"a number{least}", where)
    return float(value)


def _input_error(path: str, given: str, expected: str, where: str) -> InputError:
    todo = "write the file again with `ridgeline fit --with RUN -o FILE.json`"
    return InputError(Problem(path=path, given=given, expected=expected, todo=todo, where=where))
