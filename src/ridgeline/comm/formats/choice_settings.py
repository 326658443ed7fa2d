"""Turn a library's choice into the settings that make it take that choice: NCCL's tuner file, HCCL_ALGO."""

from __future__ import annotations

from pathlib import Path

from ridgeline.comm.formats.hccl_env import hccl_text, read_hccl
from ridgeline.comm.formats.tuner_csv import read_tuner, rules_of, tuner_text
from ridgeline.comm.libraries.choice import LibraryChoice
from ridgeline.core.errors import InputError, Problem
from ridgeline.core.files import write_text

TARGET_OF = {"nccl": "nccl-tuner", "hccl": "hccl"}


def write_choice(found: LibraryChoice, path: Path, target: str = "") -> None:
    """Write the settings, read back first, at once or not at all."""
    write_text(path, choice_text(found, target))


def choice_text(found: LibraryChoice, target: str = "") -> str:
    """The settings as text."""
    usual = TARGET_OF.get(found.library)
    if usual is None or target not in ("", usual):
        expected = " or ".join(f"{name} with --library {library}" for library, name in TARGET_OF.items())
        raise InputError(Problem(path="--to", given=f"{target or 'a file'} of {found.library}", expected=expected))
    if usual == "hccl":
        text = hccl_text(found.chosen.algorithm)
        read_hccl(Path("<hccl>"), text)
        return text
    system = found.system
    whole = system.tiers[0].chips == system.node  # a domain of several hosts: NCCL counts hosts, so leave it open
    nodes = system.chips // system.node if whole else -1
    text = tuner_text(rules_of(found.collective, found.ranges, nodes, system.chips))
    read_tuner(Path("<nccl-tuner>"), text)
    return text
