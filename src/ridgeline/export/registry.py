"""Turn the id of a target into the Target: a read-only mapping that imports a target when it is first asked for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import cast

from ridgeline.core.errors import InputError, Problem, not_among
from ridgeline.export.target import Files, Target

# id -> module whose TARGET it is; the order in which files are tried against `recognises`
MODULES = {
    "megatron-bridge": "ridgeline.export.bridge",
    "verl": "ridgeline.export.verl",
    "maxtext": "ridgeline.export.maxtext",
    "mindspeed": "ridgeline.export.mindspeed",
    "megatron": "ridgeline.export.megatron",
    "torchtitan": "ridgeline.export.torchtitan",
    "deepspeed": "ridgeline.export.deepspeed",
}


class _Targets(Mapping[str, Target]):
    def __getitem__(self, id: str) -> Target:
        if id not in MODULES:
            raise InputError(not_among("--to", id, MODULES))
        return cast(Target, import_module(MODULES[id]).TARGET)

    def __iter__(self) -> Iterator[str]:
        return iter(MODULES)

    def __len__(self) -> int:
        return len(MODULES)

    def __contains__(self, id: object) -> bool:
        return id in MODULES


TARGETS: Mapping[str, Target] = _Targets()


def detect(files: Files) -> Target:
    """The first target that recognises the files, or an `InputError` that lists the targets."""
    for target in TARGETS.values():
        if target.recognises(files):
            return target
    names = ", ".join(sorted(files)[:5])
    raise InputError(
        Problem(
            path="",
            given=f"{names}, which no target recognises",
            expected=f"files of one of {', '.join(MODULES)}",
            todo="say which with --from TARGET",
        )
    )
