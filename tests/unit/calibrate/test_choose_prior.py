"""Nested choice of priors: no row judges a choice that it had a part in."""

from __future__ import annotations

import numpy as np

from ridgeline.calibrate.cross_validate import INNER, OUTER, dealt, nested_choice
from ridgeline.calibrate.fit import OffsetPrior
from ridgeline.core.arrays import Array, Mask

MEMBERS = [name for name, often in zip("abcdefgh", (9, 7, 5, 5, 3, 2, 1, 1), strict=True) for _ in range(often)]
CANDIDATES = {"right": OffsetPrior(), "wrong": OffsetPrior(apart=0.5)}


def test_members_stay_whole_and_folds_are_alike() -> None:
    folds = dealt(MEMBERS, OUTER)
    assert all(len(set(folds[np.array(MEMBERS) == name])) == 1 for name in "abcdefgh")
    assert np.bincount(folds).min() > 0.5 * np.bincount(folds).max()


def test_nothing_of_a_judged_fold_is_seen_before() -> None:
    seen: list[tuple[Mask, OffsetPrior]] = []

    def fitted(kept: Mask, prior: OffsetPrior) -> Array:
        seen.append((kept.copy(), prior))
        return np.where(kept, 0.0, 1.1 if prior.apart == 1.0 else 1.5)  # what was fitted is off by all of it

    measured = np.ones(len(MEMBERS))
    found = nested_choice(MEMBERS, measured, fitted, CANDIDATES)
    assert found.chosen == ("right",) * OUTER
    assert found.predicted_s.tolist() == [1.1] * len(MEMBERS)
    outer, each = dealt(MEMBERS, OUTER), len(CANDIDATES) * INNER + 1
    for fold in range(OUTER):
        for kept, _ in seen[fold * each : (fold + 1) * each]:
            assert not kept[outer == fold].any()
    last = [seen[(fold + 1) * each - 1] for fold in range(OUTER)]
    assert all((kept == (outer != fold)).all() and prior.apart == 1.0 for fold, (kept, prior) in enumerate(last))


def test_the_candidate_that_errs_less_inside_is_taken() -> None:
    def fitted(kept: Mask, prior: OffsetPrior) -> Array:
        return np.full(len(kept), 1.5 if prior.apart == 1.0 else 1.1)

    assert set(nested_choice(MEMBERS, np.ones(len(MEMBERS)), fitted, CANDIDATES).chosen) == {"wrong"}
