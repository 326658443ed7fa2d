"""Turn measured serving runs into serving parameters, and say what they are worth on configurations no fit has seen.

Each parameter has a common value and moves for a family of chips and for an engine, as far as runs of these insist:

    minimise   sum over runs  w (log predicted - log measured)^2 / s^2   +   sum over offsets  (offset / prior)^2

s = what a kind of row is expected to scatter, w = 1 / (1 + (residual / 3 s)^2): a row far off counts less and less.
Own measurements are not doubted: w = 1.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from zlib import crc32

import numpy as np

from ridgeline.calibrate.inference import PricedRun, RunColumns, run_columns, run_values
from ridgeline.core.arrays import Array, Index
from ridgeline.cost.calibration import SERVING_PARAMETERS, Owner, ServingCalibration

# what a kind of row scatters beyond what parameters explain: an own machine, a benchmark, a stranger's closed loop
SCATTER: Mapping[str, float] = MappingProxyType({"own": 0.02, "max-load": 0.1, "static": 0.1, "concurrency": 0.25})
FIRST_TOKEN_SCATTER = 0.8  # of a closed loop's first token, which hangs on how a client sends
# how far offsets may move, in logarithms: seconds are known to an order of magnitude, factors to tens of percent
PRIOR: Mapping[str, float] = MappingProxyType({"s": 1.0, "x": 0.3})
OWNED_PRIOR: Mapping[str, float] = MappingProxyType({"s": 0.7, "x": 0.2})
FEWEST = 4  # runs of a family or an engine, below which it keeps the common value
ROUNDS = 25
FOLDS = 10


def fit_serving(runs: Sequence[PricedRun], source: str = "") -> ServingCalibration:
    """The parameters that runs say, by Gauss-Newton with weights taken again in every round."""
    return _fit(run_columns(runs), source)


def _fit(columns: RunColumns, source: str) -> ServingCalibration:
    runs = columns.runs
    names, place, prior = _unknowns(runs)
    measured = np.log([run.item.measured for run in runs])
    scatter, own = np.array([scatter_of(run) for run in runs]), np.array([run.item.kind == "own" for run in runs])
    offsets = np.zeros(len(names))
    best, damping = np.inf, 1e-2
    for _ in range(ROUNDS):
        serving = ServingCalibration(offsets=dict(zip(names, offsets.tolist(), strict=True)))
        figure, slopes = columns.slopes(run_values(runs, serving))
        off = (figure - measured) / scatter
        weight = np.where(own, 1.0, 1 / (1 + (off / 3) ** 2))
        loss = float(np.where(own, off**2, 9 * np.log1p((off / 3) ** 2)).sum() + ((offsets / prior) ** 2).sum())
        if loss < best:
            best, kept, damping = loss, offsets, max(damping / 3, 1e-6)
            jacobian = _jacobian(slopes, place, len(names)) / scatter[:, None]
            normal = jacobian.T @ (weight[:, None] * jacobian) + np.diag(1 / prior**2)
            downhill = jacobian.T @ (weight * off) + offsets / prior**2
        else:
            damping *= 5
        offsets = kept - np.linalg.solve(normal + damping * np.diag(np.diag(normal)), downhill)
    found = {name: round(float(value), 4) for name, value in zip(names, kept, strict=True) if abs(value) >= 5e-5}
    return ServingCalibration(offsets=MappingProxyType(found), source=source)


def scatter_of(run: PricedRun) -> float:
    """What a run of this kind is expected to be off by, whatever the parameters."""
    return FIRST_TOKEN_SCATTER if run.waits and not run.item.static else SCATTER[run.item.kind]


def _unknowns(runs: Sequence[PricedRun]) -> tuple[list[str], Mapping[str, tuple[Index, ...]], Array]:
    """Keys of offsets; for each parameter which of them each run answers to (-1: none); how far each may move."""
    each = [run.owners for run in runs]
    kinds: tuple[Owner, ...] = ("family", "link", "engine")
    owners = {kind: [own.of(kind) for own in each] for kind in kinds}
    many = {kind: Counter(column) for kind, column in owners.items()}
    names: list[str] = []
    prior: list[float] = []
    place: dict[str, tuple[Index, ...]] = {}
    for name, item in SERVING_PARAMETERS.items():
        columns = [np.full(len(runs), len(names))]
        names.append(name)
        prior.append(PRIOR[item.unit])
        for kind in item.per:
            known = {owner: len(names) + k for k, owner in enumerate(o for o, n in many[kind].items() if n >= FEWEST)}
            names += [f"{name}/{owner}" for owner in known]
            prior += [OWNED_PRIOR[item.unit]] * len(known)
            columns.append(np.array([known.get(owner, -1) for owner in owners[kind]]))
        place[name] = tuple(columns)
    return names, place, np.array(prior)


def _jacobian(slopes: Mapping[str, Array], place: Mapping[str, tuple[Index, ...]], many: int) -> Array:
    found = np.zeros((len(next(iter(slopes.values()))), many))
    rows = np.arange(len(found))
    for name, slope in slopes.items():
        for column in place[name]:
            mine = column >= 0
            found[rows[mine], column[mine]] += slope[mine]
    return found


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ServingFit:
    """Parameters from all runs, and predictions of each run by parameters that saw nothing of its configuration."""

    full: ServingCalibration
    folds: tuple[ServingCalibration, ...]
    predicted: Array


def fold_of(group: str) -> int:
    """The fold that a configuration is left out of: the same whatever else a table holds.

    >>> fold_of("h100-sxm/llama3-8b") == fold_of("h100-sxm/llama3-8b"), 0 <= fold_of("x") < FOLDS
    (True, True)
    """
    return crc32(group.encode()) % FOLDS


def cross_validate_serving(runs: Sequence[PricedRun], source: str = "") -> ServingFit:
    """Fit on all runs, and once for each fold on the rest of them."""
    fold = np.array([fold_of(run.item.group) for run in runs])
    predicted = np.zeros(len(runs))
    folds = []
    for place in range(FOLDS):
        rest = [run for run, own in zip(runs, fold, strict=True) if own != place]
        mine = [run for run, own in zip(runs, fold, strict=True) if own == place]
        made = fit_serving(rest, source) if rest else ServingCalibration()
        folds.append(made)
        if mine:
            predicted[fold == place] = run_columns(mine).predicted(run_values(mine, made))
    return ServingFit(full=fit_serving(runs, source), folds=tuple(folds), predicted=predicted)
