"""Turn the place a run's files were found in into what they refer to: files beside them, arguments, environment.

A launch script sources another, a recipe imports one, a manifest names its base. Such references are followed inside
the checkout that the file stands in and nowhere else: the nearest folder above it that looks like the top of one. A
home folder is none, whatever lies in it: for a file that stands there, only those beside it are read, no hidden one.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from ridgeline.core.errors import InputError
from ridgeline.core.files import read_text
from ridgeline.targets.imports.reading_budget import ReadingBudget
from ridgeline.targets.target import Files

if TYPE_CHECKING:
    from ridgeline.targets.imports.shell_expand import Script

SCRIPTS = (".sh", ".sbatch", ".slurm")
BIGGEST_TEXT = 1024 * 1024  # bytes of one configuration file
MOST_NEARBY = 200  # files that one configuration may refer to
TOPS = (".git", "pyproject.toml", "setup.py", "setup.cfg", "requirements.txt", "LICENSE")
INSTALLED = ("site-packages", "dist-packages")  # where installed software lies
HIGHEST = 12  # folders above the file
MOST_BESIDE = 1000  # entries of a folder that are looked at for a wheel's own
LOW = 3  # folders above it in which a README alone marks the top
DEEPEST = 8  # folders of a path that a configuration gives
LONGEST = 300  # characters of such a path
FILE_WORK = 200  # of looking whether a file is there
ScriptKey = tuple[str, Path | None, tuple[str, ...], tuple[tuple[str, str], ...]]


@dataclass(slots=True)
class Checkout:
    """What stands around a run's files.

    folder       where the file is; None for texts given by name
    top          the checkout's own folder: nothing outside is read
    arguments    words the script is called with
    environment  variables it is called with
    model        the model the caller names
    seq          the tokens of a sequence the caller names
    chips        how many chips the caller's machine has
    system       that machine's name
    texts        files that were read, so that each is read once
    budget       what following these files may still cost
    scripts      what a script was followed to, or why it was refused, by its text, folder, arguments and environment
    """

    folder: Path | None = None
    top: Path | None = None
    arguments: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    model: str | None = None
    seq: int | None = None
    chips: int | None = None
    system: str | None = None
    texts: dict[Path, str] = field(default_factory=dict)
    budget: ReadingBudget = field(default_factory=ReadingBudget)
    scripts: dict[ScriptKey, Script | InputError] = field(default_factory=dict)

    def text(self, path: Path) -> str | None:
        """The text of a file inside the checkout; None where there is none, or it is outside or too large."""
        if self.top is None:
            return None
        self.budget.spend(FILE_WORK)
        try:
            if not os.path.isfile(path):
                return None
            real = Path(os.path.realpath(path))
            is_outside = not real.is_relative_to(self.top) or (_holds_home(self.top) and not _is_beside(real, self.top))
            if real in self.texts or len(self.texts) >= MOST_NEARBY or is_outside:
                return self.texts.get(real)
            self.texts[real] = read_text(real, BIGGEST_TEXT)
        except (OSError, ValueError, InputError):
            return None
        self.budget.spend_text(len(self.texts[real]))
        return self.texts[real]

    def named(self, name: str) -> str | None:
        """The text of a file by the path that a configuration gives it, of which only the end need be the checkout's.

        `$WORK/jay-z/configs/zero2.json` is looked for beside the file and in every folder above it up to the top, whole
        and then without its first folders.
        """
        plain = [part for part in re.split(r"[/\\]+", name[:LONGEST]) if part not in ("", ".", "..")]
        parts = [part for part in plain if "$" not in part]
        if self.folder is None or self.top is None or not parts or "$" in plain[-1]:
            return None
        above = [parent for parent in (self.folder, *self.folder.parents) if parent.is_relative_to(self.top)][:HIGHEST]
        for start in range(len(parts[-DEEPEST:])):
            for folder in above:
                text = self.text(folder.joinpath(*parts[-DEEPEST:][start:]))
                if text is not None:
                    return text
        return None


class RunFiles(dict[str, str]):
    """Files by name, with what stands around them."""

    checkout: Checkout

    def __init__(self, files: Files, checkout: Checkout) -> None:
        super().__init__(files)
        self.checkout = checkout


def checkout_of(files: Files) -> Checkout:
    """What stands around the files; nothing, for texts that came without a place."""
    return files.checkout if isinstance(files, RunFiles) else Checkout()


def top_of(folder: Path) -> Path:
    """The checkout that a folder is in: the nearest folder above with the marks of one, else the folder itself.

    Where nothing marks one, the highest of the few folders above that has a README does.
    """
    real = Path(os.path.realpath(folder))
    for above in (real, *list(real.parents)[:HIGHEST]):
        is_marked = above.name in INSTALLED or any(os.path.exists(above / mark) for mark in TOPS)
        if len(above.parts) > 2 and not _holds_home(above) and (is_marked or _is_wheel(above)):
            return above
    near_folders = (real, *list(real.parents)[:LOW])
    folders = [above for above in near_folders if len(above.parts) > 2 and not _holds_home(above)]
    described_folders = [above for above in folders if os.path.exists(above / "README.md")]
    if described_folders:
        return described_folders[-1]
    package = real
    while os.path.exists(package / "__init__.py") and len(package.parts) > 3 and not _holds_home(package.parent):
        package = package.parent
    return package


def _holds_home(folder: Path) -> bool:
    """Whether a folder is the caller's home, or above it."""
    return Path(os.path.realpath(os.path.expanduser("~"))).is_relative_to(folder)


def _is_beside(path: Path, folder: Path) -> bool:
    return path.parent == folder and not path.name.startswith(".")


def _is_wheel(folder: Path) -> bool:
    """Whether a wheel was unpacked here: what it says of itself lies beside its packages."""
    try:
        return any(entry.name.endswith(".dist-info") for entry in islice(folder.iterdir(), MOST_BESIDE))
    except OSError:
        return False
