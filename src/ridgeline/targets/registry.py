"""Turn the id of a target into the Target: the one list of targets, which imports a target when it is first asked for.

A target `megatron-bridge` is the package `ridgeline.targets.dialects.megatron_bridge`; adding one is adding its id to
`TRAIN` or `SERVE`. A small one is one module; of a larger one `read` and `write` are modules of their own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # the command line names the targets in its help, which has to come at once
    from ridgeline.targets.target import Files, Target

# the order in which files are tried against `recognises`: a dialect before the software it is a dialect of
TRAIN = (
    "axolotl",
    "llamafactory",
    "accelerate",
    "primus",
    "nxd-training",
    "megatron-bridge",
    "verl",
    "maxtext",
    "mindspeed",
    "megatron",
    "torchtitan-preset",
    "torchtitan",
    "deepspeed",
)
# software that runs a whole step of post-training; verl does that too
POST_TRAIN = ("openrlhf", "slime", "nemo-rl", "areal", "mindspeed-rl", "trl")
SERVE = ("dynamo", "tensorrt-llm", "sglang", "vllm")
IDS = (*SERVE, *TRAIN, *POST_TRAIN)
# dialects that are read and not written, tried before the software they are dialects of, and who writes for it instead
READ_ONLY = {"megatron-deepspeed": "deepspeed", "nemo": "megatron-bridge", "verl-update": "verl"}
# who starts a run on its nodes -> the file it reads and who writes it, below `launchers`
LAUNCHERS = {
    "torchrun": ("", ""),
    "slurm": ("launch.sbatch", "launch.slurm_job"),
    "jobset": ("jobset.yaml", "manifests.jobset"),
    "trainjob": ("trainjob.yaml", "manifests.trainjob"),
    "volcano": ("volcano.yaml", "manifests.volcano"),
    "skypilot": ("skypilot.yaml", "manifests.skypilot"),
    "azureml": ("azureml.yaml", "manifests.azureml"),
    "ray": ("launch_ray.py", "manifests.ray_train"),
}
# those whose own keys tell them first: a trainer's file may hold options that a server has too
FIRST = ("axolotl", "llamafactory", "primus", "nxd-training")
READABLE = tuple(dict.fromkeys((*POST_TRAIN, *FIRST, *SERVE, *READ_ONLY, *TRAIN)))


@cache
def _target(id: str) -> Target:
    """The functions of one dialect's module, or of the modules `read` and `write` of its package."""
    from ridgeline.targets.target import Target, not_written

    name = f"ridgeline.targets.dialects.{id.replace('-', '_')}"
    module = import_module(name)
    parts = hasattr(module, "__path__")
    reader = import_module(f"{name}.read") if parts else module
    if id in READ_ONLY:
        write = not_written(id, READ_ONLY[id])
    else:
        write = (import_module(f"{name}.write") if parts else module).write
    return Target(id=id, write=write, read=reader.read, recognises=reader.recognises)


class _Targets(Mapping[str, "Target"]):
    def __getitem__(self, id: str) -> Target:
        if id not in READABLE:
            from ridgeline.core.errors import InputError, not_among

            raise InputError(not_among("--to", id, IDS))
        return _target(id)

    def __iter__(self) -> Iterator[str]:
        return iter(IDS)

    def __len__(self) -> int:
        return len(IDS)

    def __contains__(self, id: object) -> bool:
        return id in IDS


TARGETS: Mapping[str, Target] = _Targets()


def detect(files: Files) -> Target:
    """The first target that recognises the files, or an `InputError` that lists the targets."""
    from ridgeline.core.errors import InputError, Problem

    for id in READABLE:
        if TARGETS[id].recognises(files):
            return TARGETS[id]
    names = ", ".join(sorted(files)[:5])
    raise InputError(
        Problem(
            path="",
            given=f"{names}, which no target recognises",
            expected=f"files of one of {', '.join(READABLE)}",
            todo="say which with --from TARGET",
        )
    )
