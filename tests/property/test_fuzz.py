"""Damaged files and arguments of every kind end with an answer or a refusal; `make fuzz` runs many more."""

from __future__ import annotations

from pathlib import Path

import fuzz
import pytest

INPUTS = 2_000


@pytest.mark.parametrize("kind", fuzz.KINDS)
def test_damaged_input_is_answered_or_refused(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(fuzz.ROOT))
    numbers = [*range(-(-INPUTS // len(fuzz.KINDS))), *fuzz.KNOWN.get(kind, ())]
    assert list(fuzz.faults(kind, numbers)) == []
