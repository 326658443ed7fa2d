"""The command line answers what it did when `record.py` was last run: every key, every number to the last digit."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import pytest
from golden.replay import ANSWERS, Case, answer, cases, differences, text_of
from golden.rounding import CLOSE, recorded_here

CASES = cases()
EXACT = recorded_here()
SHOWN = 10  # differences listed
if not EXACT:
    warnings.warn(f"this machine rounds unlike the recorded answers: compared to {CLOSE:g}", stacklevel=1)


@pytest.mark.parametrize(
    "case", [pytest.param(case, id=case.id, marks=[pytest.mark.slow] if case.slow else []) for case in CASES]
)
def test_answer(case: Case, tmp_path: Path) -> None:
    assert case.stored.exists(), f"no answer is stored: python tests/golden/record.py --case {case.id}"
    before = json.loads(case.stored.read_text(encoding="utf-8"))
    after = json.loads(text_of(answer(case, tmp_path)))
    found = list(differences(before, after, close=0.0 if EXACT else CLOSE))
    lines = [*(str(one) for one in found[:SHOWN]), *([f"and {len(found) - SHOWN} more"] if found[SHOWN:] else [])]
    assert not found, "\n".join([f"{len(found)} differences, old -> new:", *lines])


def test_every_stored_answer_has_a_case() -> None:
    assert set(ANSWERS.rglob("*.json")) == {case.stored for case in CASES}


def test_differences_tell_what_equality_would_miss() -> None:
    old = {"a": 1, "b": [1.0, 0.0], "c": "x", "d": True}
    new = {"d": 1, "b": [1.0 + 2**-52, -0.0, 3], "a": 1.0, "e": None}
    told = [one.path for one in differences(old, new)]
    assert told == ["a", "b[0]", "b[1]", "b[2]", "c", "d", "e"]
    assert not list(differences(old, dict(reversed(old.items()))))
    assert [one.path for one in differences(old, new, close=CLOSE)] == ["a", "b[2]", "c", "d", "e"]
