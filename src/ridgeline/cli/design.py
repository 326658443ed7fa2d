"""Turn `ridgeline sense`, `design` and `report` into calls of the library: what limits, what the next machine or model
should be, and what to ask of whom.

0  answered        2  the input cannot be used, or nothing meets what was asked
"""

from __future__ import annotations

from pathlib import Path

from ridgeline import design_api
from ridgeline.cli.streams import say
from ridgeline.cli.terminal import answer, check_outputs, command_line, progress_bar
from ridgeline.core.files import write_text


def sense(
    scenario: str, settings: list[str] | None = None, metric: str = "", curve: str = "", html: Path | None = None,
    calibration: Path | None = None, profile: str | None = None, json: bool = False,
) -> None:  # fmt: skip
    """Say what limits a scenario, and by how much: the elasticity of its time or cost to every number of the machine
    and the model, the next regime of each, and what one per cent of it is worth."""
    check_outputs(html)
    result = design_api.sense(
        scenario, metric=metric, curve=curve, settings=settings or (), calibration=calibration, profile=profile
    )
    if html is not None:
        from ridgeline.report import page

        write_text(html, page(result, command_line()))
        say(f"{html}: {len(result.machine) + len(result.model)} elasticities", err=True)
    answer(result, json)


def design(
    study: Path, settings: list[str] | None = None, meet: str = "", versus: str = "", of: str = "",
    processes: int = 1, ray: bool = False, html: Path | None = None, json: bool = False,
) -> None:  # fmt: skip
    """Find the machines, or the models, of a study that no other beats: within budgets, for a mix of workloads, with
    the proof that none was missed; the smallest machine that meets limits; which of two is better, and how sure."""
    check_outputs(html)
    with progress_bar("designing", json=json) as line:
        result = design_api.design(
            study, settings=settings or (), meet=meet, versus=versus, of=of, processes=processes, ray=ray, progress=line
        )
    if html is not None:
        from ridgeline.report import page

        write_text(html, page(result, command_line()))
        say(f"{html}: written", err=True)
    answer(result, json)


def report(
    study: Path, settings: list[str] | None = None, output: list[Path] | None = None, team: str = "", json: bool = False
) -> None:
    """Write what a study asks of the chip, network, framework and model teams, and of who pays: bottleneck, evidence,
    cost today, ask, predicted gain with its interval, and how to prove it wrong. -o takes .html, .md and .pdf."""
    from ridgeline.report import write_picture

    for path in output or ():
        check_outputs(path)
    result = design_api.report(study, settings=settings or (), team=team)
    for path in output or ():
        write_picture(result, path, command_line())
        say(f"{path}: {sum(len(part.asks) for part in result.teams)} asks of {len(result.teams)} teams", err=True)
    answer(result, json)
