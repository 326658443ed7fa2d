"""Turn an export into the same with the launch files of one scheduler: what starts launch.sh on every node."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from ridgeline.core.errors import InputError, Problem, not_among
from ridgeline.plan.scenario import Scenario
from ridgeline.plan.workload import Train
from ridgeline.targets.job_request import JobRequest
from ridgeline.targets.launch import ON_NODE, SLURM, slurm
from ridgeline.targets.launch_cloud import azureml, ray_train, skypilot
from ridgeline.targets.launch_kubernetes import jobset, trainjob, volcano
from ridgeline.targets.registry import LAUNCHERS
from ridgeline.targets.target import Export, Files

Writer = Callable[[Scenario, Files, JobRequest], str]
# launcher -> the file it reads and who writes it
WRITERS: Mapping[str, tuple[str, Writer]] = {
    "slurm": (SLURM, lambda scenario, _, job: slurm(scenario, "Slurm", job)),
    "jobset": ("jobset.yaml", jobset),
    "trainjob": ("trainjob.yaml", trainjob),
    "volcano": ("volcano.yaml", volcano),
    "skypilot": ("skypilot.yaml", skypilot),
    "azureml": ("azureml.yaml", azureml),
    "ray": ("launch_ray.py", ray_train),
}
FILES = frozenset(name for name, _ in WRITERS.values()) - {SLURM}  # which say nothing of the plan


def launched(made: Export, scenario: Scenario, launcher: str, job: JobRequest) -> Export:
    """The export with launch.sh and the file of the launcher, instead of Slurm's plain one."""
    if launcher not in LAUNCHERS:
        raise InputError(not_among("--launcher", launcher, LAUNCHERS))
    if not isinstance(scenario.workload, Train) or ON_NODE not in made.files:
        given = f"{launcher} for {made.target}"
        raise InputError(Problem(path="--launcher", given=given, expected="a training run with a launch.sh"))
    kept = {name: text for name, text in made.files.items() if name != SLURM}
    if launcher == "torchrun":
        return replace(made, files=kept)
    name, writer = WRITERS[launcher]
    needed = {name: text for name, text in kept.items() if not name.endswith(".md")}
    return replace(made, files={**kept, name: writer(scenario, needed, job)})
