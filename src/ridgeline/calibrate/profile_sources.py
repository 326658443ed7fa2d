"""Turn what an option names into profiles: a file, `none`, or `aiconfigurator:CHIP`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from ridgeline.calibrate.aiconfigurator import import_profile
from ridgeline.core.errors import InputError, Problem
from ridgeline.cost.profile import Choice, Profile, chosen_profiles, read_profile
from ridgeline.hardware.chip import Chip

TABLES = "aiconfigurator:"


def open_profile(name: str | Path | Profile) -> Profile:
    """One profile: a value, a file, or a chip's tables of the installed `aiconfigurator-core`."""
    if isinstance(name, Profile):
        return name
    text = str(name)
    return import_profile(text.removeprefix(TABLES)) if text.startswith(TABLES) else read_profile(text)


def profiles_of(choice: Choice) -> Mapping[str, Profile]:
    """The profiles that an option means, by chip."""
    if isinstance(choice, str) and choice.startswith(TABLES):
        return chosen_profiles(open_profile(choice))
    return chosen_profiles(choice)


def refuse_other_chip(choice: Choice, chips: Sequence[Chip]) -> None:
    """Say that a profile is of a chip that nothing here runs on, instead of leaving it out in silence."""
    if choice is None or str(choice).strip().lower() == "none":
        return
    own = open_profile(choice)
    if own.chip and own.chip not in {chip.fitted_id for chip in chips}:
        told = " or ".join(dict.fromkeys(chip.fitted_id for chip in chips))
        todo = "take a profile of that chip, or --profile none"
        raise InputError(Problem(path="--profile", given=f"a profile of {own.chip[:40]}", expected=told, todo=todo))
