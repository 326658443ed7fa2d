"""Verbs that turn predictions into requirements: what limits a scenario, what the next machine or model should be, and
what to ask of whom.

    sense    Scenario -> SensitivityAnswer         `design.sense`
    design   study file -> DesignAnswer or ArchitectureAnswer
    report   study file -> RequirementReport
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ridgeline.cost import Calibration, Choice
    from ridgeline.design import ArchitectureAnswer, DesignAnswer, RequirementReport, SensitivityAnswer
    from ridgeline.plan.scenario import Scenario


def sense(
    scenario: Scenario | Path | str, *, metric: str = "", curve: str = "", settings: Sequence[str] = (),
    calibration: Calibration | Path | None = None, profile: Choice = None,
) -> SensitivityAnswer:  # fmt: skip
    """What limits a scenario, and by how much: see `design.sense`."""
    raise NotImplementedError
