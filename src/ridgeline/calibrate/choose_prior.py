"""Turn candidate strengths of priors into what choosing among them is worth: nested cross-validation.

    outer fold   some sources (engines, families of chips) with all their rows: judged, and seen by nothing before
    inner folds  of the members that remain: each candidate is fitted without one and judged on it; the best is chosen
    figure       the error on the outer fold of the chosen candidate, fitted on all that remains

A choice made with left-out rows in view flatters the error on these very rows. Here no row judges a choice that it had
a part in.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from ridgeline.calibrate.accuracy import LEFT_OUT, Left, Sheet, line
from ridgeline.calibrate.cross_validate import PLURAL, ROUNDS, Progress, headline_of, members_of, silent
from ridgeline.calibrate.dataset import Dataset, dataset_of
from ridgeline.calibrate.fit import SHIPPED_PRIOR, Prior, fit
from ridgeline.calibrate.folds import takes_part
from ridgeline.calibrate.frozen import is_frozen
from ridgeline.calibrate.truth.rows import read_rows
from ridgeline.core.arrays import Array, Index, Mask

CANDIDATES: Mapping[str, Prior] = MappingProxyType(
    {
        "as shipped": SHIPPED_PRIOR,
        "serving libraries held to strictly": Prior(serving=1.0),
        "chips and engines closer together": Prior(apart=0.6),
        "large sources count less": Prior(source=0.25),
    }
)
OUTER, INNER = 4, 2
Fit = Callable[[Mask, Prior], Array]  # rows to fit, how strongly held -> seconds of every row


@dataclass(frozen=True, slots=True, kw_only=True)
class Nested:
    """Seconds of every row by a fit that saw nothing of its outer fold, and the candidate chosen for each fold."""

    predicted_s: Array
    chosen: tuple[str, ...]


def dealt(members: Sequence[str], folds: int) -> Index:
    """The fold of every row: members with all their rows, the largest first, dealt in turn and back.

    >>> dealt(["a"] * 5 + ["b"] * 3 + ["c"] * 2 + ["d"], 2).tolist()
    [0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 0]
    """
    often = Counter(members)
    order = sorted(often, key=lambda member: (-often[member], member))
    turn = [*range(folds), *reversed(range(folds))]
    place = {member: turn[at % len(turn)] for at, member in enumerate(order)}
    return np.array([place[member] for member in members], dtype=np.int64)


def nested_choice(
    members: Sequence[str], measured_s: Array, fitted: Fit, candidates: Mapping[str, Prior] = CANDIDATES
) -> Nested:
    """The choice made again for every outer fold, by inner folds of what it leaves."""
    outer, predicted, chosen = dealt(members, OUTER), np.zeros(len(members)), []
    for fold in range(OUTER):
        judged = outer == fold
        if not judged.any():
            continue
        rest = np.flatnonzero(~judged)
        inner = dealt([members[int(row)] for row in rest], INNER)
        best = min(candidates, key=lambda name: _error(candidates[name], rest, inner, measured_s, fitted))
        chosen.append(best)
        predicted[judged] = fitted(~judged, candidates[best])[judged]
    return Nested(predicted_s=predicted, chosen=tuple(chosen))


def _error(prior: Prior, rest: Index, inner: Index, measured_s: Array, fitted: Fit) -> float:
    """Mean absolute error of a candidate on inner folds, each by a fit without it and without the outer one."""
    off: list[float] = []
    for fold in range(INNER):
        judged = rest[inner == fold]
        if len(judged):
            kept = np.zeros(len(measured_s), dtype=np.bool_)
            kept[rest[inner != fold]] = True
            off += (np.abs(fitted(kept, prior)[judged] / measured_s[judged] - 1)).tolist()
    return float(np.mean(off))


def nested_sheet(table: Dataset | None = None, progress: Progress = silent) -> Sheet:
    """What leaving sources, engines and families out costs where the priors are chosen inside folds."""
    rows = [row for row in read_rows() if takes_part(row) and not is_frozen(row)]
    data = dataset_of(rows) if table is None else table
    total, done, sheet = 3 * OUTER * (INNER * len(CANDIDATES) + 1), 0, {}
    best = headline_of(data)

    def fitted(kept: Mask, prior: Prior) -> Array:
        nonlocal done
        progress("priors chosen inside folds", done, total)
        done += 1
        layout, offsets = fit(data, kept, prior=prior, rounds=ROUNDS)
        return data.steps(layout.rates(offsets)).step_s

    lefts: tuple[Left, ...] = ("source", "engine", "family")
    for what in lefts:
        found = nested_choice(members_of(data, what), data.measured_s, fitted)
        off = np.abs(found.predicted_s / data.measured_s - 1)
        name = f"each fold of {PLURAL[what]} left out, priors chosen inside"
        sheet[PLURAL[what]] = {
            "figure": line(name, int(best.sum()), "mape", (0, LEFT_OUT[what]), float(off[best].mean())),
            "all": line(f"{name}, all rows", len(off), "mape", (0, LEFT_OUT[what]), float(off.mean())),
            "chosen": list(found.chosen),
        }
    return {"candidates": list(CANDIDATES), "outer": OUTER, "inner": INNER, **sheet}
