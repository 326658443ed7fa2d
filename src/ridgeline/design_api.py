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

    own_scenario = scenario if isinstance(scenario, Scenario) else read_scenario(scenario, settings)
    used = calibration_of(calibration, (), profile)
    return scenario_sensitivity(own_scenario, metric=metric, curve=curve, calibration=used)


def design(
    study: Path | str, *, settings: Sequence[str] = (), meet: str = "", versus: str = "", of: str = "",
    processes: int = 1, ray: bool = False, progress: ProgressCallback = ignore_progress,
) -> DesignAnswer | ArchitectureAnswer:  # fmt: skip
    """The machines of a study that no other beats in time and cost, or its models of equal predicted quality.

    meet        limits whose smallest machine is wanted: "tpot<=20ms,usd_per_mtok<=0.4"
    versus      two machines, "A,B", of which the better is wanted: points of the frontier, today, chips of the catalog
    of          machines or models, where a study has both
    processes   that price boxes of the space; with `ray` the workers of a Ray cluster do, with the same answer

    >>> answer = design("examples/design-next-chip.toml", settings=["space.compute=['1 PFLOP/s', '2 PFLOP/s']"])
    >>> answer.certificate.complete, answer.best.relative_cost < 1
    (True, True)
    """
    from ridgeline.core.errors import InputError, not_among
    from ridgeline.design import design_machines, design_workers, read_study, search_architectures

    if of not in ("", "machines", "models"):
        raise InputError(not_among("--of", of, ("machines", "models")))
    read = read_study(study, settings)
    if of == "models" or (not of and not read.axes and read.architectures is not None):
        return search_architectures(read, progress=progress)
    price_round = design_workers(read, processes, ray)
    return design_machines(read, meet=meet, versus=versus, price_round=price_round, progress=progress)


def report(study: Path | str, *, settings: Sequence[str] = (), team: str = "") -> RequirementReport:
    """What a study asks of the chip, network, framework and model teams, and of who pays.

    >>> found = report("examples/design-next-chip.toml", team="network")
    >>> found.teams[0].asks[0].gain > 1
    True
    """
    from ridgeline.design import read_study, requirement_report

    return requirement_report(read_study(study, settings), team=team)
