"""Verbs that turn predictions into requirements: what limits a scenario, what the next machine or model should be, and
what to ask of whom.

    sense    Scenario -> SensitivityAnswer
    design   study file -> DesignAnswer of machines, or ArchitectureAnswer of models
    report   study file -> RequirementReport
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ridgeline.api import calibration_of
from ridgeline.core.waits import ProgressCallback, ignore_progress

if TYPE_CHECKING:
    from ridgeline.cost import Calibration, Choice
    from ridgeline.design import ArchitectureAnswer, DesignAnswer, RequirementReport, SensitivityAnswer
    from ridgeline.plan.scenario import Scenario


def sense(
    scenario: Scenario | Path | str, *, metric: str = "", curve: str = "", settings: Sequence[str] = (),
    calibration: Calibration | Path | None = None, profile: Choice = None,
) -> SensitivityAnswer:  # fmt: skip
    """What limits a scenario, and by how much: every elasticity of its time or cost, see `design.sense`.

    metric   cost_usd instead of the time of a step, TTFT of a prefill, TPOT of a decode or of requests
    curve    a parameter whose curve is wanted, e.g. chip.hbm.bandwidth

    >>> answer = sense("examples/llama3-70b-decode-4xh100.toml", curve="chip.hbm.bandwidth")
    >>> answer.machine[0].parameter, answer.curve.next_limiter
    ('chip.hbm.bandwidth', 'network (network)')
    """
    from ridgeline.design import scenario_sensitivity
    from ridgeline.plan.scenario import Scenario
    from ridgeline.plan.scenario_file import read_scenario

    own = scenario if isinstance(scenario, Scenario) else read_scenario(scenario, settings)
    used = calibration_of(calibration, (), profile)
    return scenario_sensitivity(own, metric=metric, curve=curve, calibration=used)


def design(
    study: Path | str, *, settings: Sequence[str] = (), meet: str = "", versus: str = "", of: str = "",
    processes: int = 1, ray: bool = False, progress: ProgressCallback = ignore_progress,
) -> DesignAnswer | ArchitectureAnswer:  # fmt: skip
    """The machines of a study that no other beats, or its models of equal quality."""
    raise NotImplementedError


def report(study: Path | str, *, settings: Sequence[str] = (), team: str = "") -> RequirementReport:
    """What a study asks of each team."""
    raise NotImplementedError
