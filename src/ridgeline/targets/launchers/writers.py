"""Turn an export into the same with the launch files of one scheduler: what starts launch.sh on every node."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from importlib import import_module

from ridgeline.core.errors import InputError, Problem, not_among
from ridgeline.plan.scenario import Scenario
from ridgeline.plan.workload import Train
from ridgeline.targets.launchers.launch import ON_NODE, SLURM, JobRequest
from ridgeline.targets.registry import LAUNCHERS
from ridgeline.targets.target import Export, Files

FILES = frozenset(file for file, _ in LAUNCHERS.values()) - {SLURM, ""}  # which say nothing of the plan


def launcher_file(launcher: str, scenario: Scenario, files: Files, job: JobRequest) -> str:
    """The text of the file that a launcher reads."""
    module, _, function = LAUNCHERS[launcher][1].partition(".")
    write: Callable[[Scenario, Files, JobRequest], str]
    write = getattr(import_module(f"ridgeline.targets.launchers.{module}"), function)
    return write(scenario, files, job)


def with_launcher(made: Export, scenario: Scenario, launcher: str, job: JobRequest) -> Export:
    """The export with launch.sh and the file of the launcher, instead of Slurm's plain one."""
    if launcher not in LAUNCHERS:
        raise InputError(not_among("--launcher", launcher, LAUNCHERS))
    if not isinstance(scenario.workload, Train) or ON_NODE not in made.files:
        given_text = f"{launcher} for {made.target}"
        raise InputError(Problem(path="--launcher", given=given_text, expected="a training run with a launch.sh"))
    plain_files = {name: text for name, text in made.files.items() if name != SLURM}
    if launcher == "torchrun":
        return replace(made, files=plain_files)
    needed_names = {name: text for name, text in plain_files.items() if not name.endswith(".md")}
    return replace(
        made, files={**plain_files, LAUNCHERS[launcher][0]: launcher_file(launcher, scenario, needed_names, job)}
    )
