"""Turn a device into a profile, with the input checked: what `ridgeline characterize` calls."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ridgeline.core.errors import InputError, Problem, not_among
from ridgeline.core.files import read_text, refuse_unwritable
from ridgeline.hardware.load import CHIPS
from ridgeline.runtime.probe.case import Case
from ridgeline.runtime.probe.grid import GROUPS
from ridgeline.runtime.probe.many_ranks import measure_ranks, merge_files
from ridgeline.runtime.probe.profile_file import VERSION
from ridgeline.runtime.probe.ranks import find_world
from ridgeline.runtime.probe.session import Outcome, measure_device
from ridgeline.runtime.probe.supervisor import Refused, Settings

LONGEST_MINUTES = 24 * 60
BIGGEST_PROFILE = 64 << 20  # bytes
Told = Callable[[int, int, str], None]  # cases done, cases planned, the next one in words


@dataclass(frozen=True, slots=True, kw_only=True)
class Characterization:
    """What a run brought.

    path       the profile it wrote
    head       what was measured on: chip, device, host, software
    rows       one table a measurement, as the file holds them
    left       cases that the time box left out
    """

    path: Path
    head: dict[str, Any]
    rows: tuple[dict[str, Any], ...]
    left: int

    @property
    def failures(self) -> tuple[dict[str, Any], ...]:
        """What the device lacks, computes wrong or dies of, each with its `why`."""
        return tuple(row for row in self.rows if not row.get("ok"))


def untold(count: int, total: int, what: str) -> None:
    """Nobody is told how far a run is."""


def characterize(
    device: str = "cuda",
    *,
    minutes: float = 5.0,
    output: Path | str = "profile.json",
    resume: bool = False,
    only: Sequence[str] = (),
    chip: str | None = None,
    imports: Sequence[str] = (),
    backend: str = "",
    seed: int = 0,
    progress: Told = untold,
) -> Characterization:
    """Measure compute, memory, host and links of a torch device, and write the profile.

    device     any torch device string: cuda, cuda:1, cpu, npu, xpu, mps
    minutes    the time box; the most informative shapes come first
    output     the profile; rows are kept in OUTPUT.journal while it runs
    resume     go on with the journal of a run that broke off
    only       some of the groups gemm, grouped, attention, rows, optimizer, memory, host, overlap, sustained and
               interconnect
    chip       catalog id, where the device's name does not tell
    imports    packages that register a device or further ops
    backend    of torch.distributed, under torchrun; the device's own if empty
    """
    path = Path(output)
    _check(minutes, only, chip, path, imports)
    need_torch("characterize")
    settings = Settings(device=device, minutes=minutes, imports=tuple(imports), seed=seed)
    world = find_world()

    def watch(count: int, total: int, case: Case) -> None:
        progress(count, total, f"{case.kernel.op} {case.kernel.impl} {case.kernel.dtype}".strip())

    try:
        if world.ranks > 1:
            found = measure_ranks(
                settings, path, world, resume=resume, only=only, chip=chip, group_backend=backend, watch=watch
            )
        else:
            found = measure_device(settings, path, resume=resume, only=only, chip=chip, watch=watch)
    except Refused as wrong:
        todo = "name a torch device that is here (cpu always is), or its package with --import"
        raise InputError(
            Problem(path="--device", given=f"{device!r}: {wrong}", expected="a device torch can use", todo=todo)
        ) from None
    return _told(path, found)


def merge_profiles(paths: Iterable[Path | str], output: Path | str) -> Characterization:
    """Profiles of several ranks or nodes as one: every row with the rank it was measured on, in the order given."""
    path = Path(output)
    refuse_unwritable(path)
    given = [Path(one) for one in paths]
    if not given:
        raise InputError(Problem(path="--merge", given="no files", expected="profiles of ranks, one a file"))
    return _told(path, merge_files(given, path, read_profile_table))


def read_profile_table(path: Path) -> dict[str, Any]:
    """A profile as a plain table; `InputError` for anything that is none."""
    from ridgeline.core.files import parse_table

    table = parse_table(path.with_suffix(".json"), read_text(path, BIGGEST_PROFILE)).data
    rows = table.get("rows")
    right = isinstance(rows, list) and all(isinstance(row, dict) and isinstance(row.get("op"), str) for row in rows)
    if table.get("ridgeline_profile") != VERSION or not right:
        given = f"ridgeline_profile = {str(table.get('ridgeline_profile'))[:20]}"
        todo = "write one with `ridgeline characterize -o FILE`"
        raise InputError(
            Problem(path="", given=given, expected=f"a profile of version {VERSION}", todo=todo, where=path.name)
        )
    return table


def need_torch(verb: str) -> None:
    """Refuse with advice where torch is not installed."""
    if importlib.util.find_spec("torch") is None:
        todo = "`pip install ridgeline[torch]`, in the build of your accelerator"
        raise InputError(Problem(path=verb, given="no module torch", expected="torch", todo=todo))


def _told(path: Path, found: Outcome) -> Characterization:
    return Characterization(path=path, head=found.head, rows=found.rows, left=found.left)


def _check(minutes: float, only: Sequence[str], chip: str | None, path: Path, imports: Sequence[str]) -> None:
    """Refuse what cannot be right before anything is measured."""
    problems = [not_among("--only", word, GROUPS) for word in only if word not in GROUPS]
    if not (math.isfinite(minutes) and 0 < minutes <= LONGEST_MINUTES):
        expected = f"a number above 0 and up to {LONGEST_MINUTES}"
        problems.append(Problem(path="--minutes", given=f"{minutes:g}", expected=expected))
    wrong = [name for name in imports if not all(part.isidentifier() for part in name.split("."))]
    problems += [Problem(path="--import", given=repr(name), expected="the name of a Python package") for name in wrong]
    if problems:
        raise InputError(problems)
    if chip is not None:
        CHIPS[chip]
    refuse_unwritable(path)
