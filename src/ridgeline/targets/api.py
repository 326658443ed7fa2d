"""Turn a Scenario and a target's name into an Export, and a path into what its files say.

The verb that reads is `ridgeline import` on the command line and `import_run` in Python, where `import` is a keyword
and `import_` is too easily read as it; what is imported is the configuration of a run.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from ridgeline.core.errors import InputError, Problem
from ridgeline.core.files import read_text
from ridgeline.hardware.load import system as load_system
from ridgeline.hardware.system import System
from ridgeline.plan.scenario import Scenario
from ridgeline.targets.job_request import job_request
from ridgeline.targets.launch import system_in
from ridgeline.targets.launchers import FILES, launched
from ridgeline.targets.registry import TARGETS, detect
from ridgeline.targets.run_files import BIGGEST_TEXT, Around, RunFiles, top_of
from ridgeline.targets.target import Export, Imported

SUFFIXES = (".sh", ".sbatch", ".slurm", ".toml", ".json", ".yaml", ".yml", ".py")
MOST_FILES = 64


def export(scenario: Scenario, *, to: str, launcher: str | None = None, job: Mapping[str, str] | None = None) -> Export:
    """The scenario as files of the target, with the account of every decision.

    `launcher` names who starts the run on its nodes (`LAUNCHERS`), `job` what it is asked for: time, partition,
    account, image, output.

    >>> import ridgeline
    >>> made = ridgeline.scenario({"model": "llama3-8b", "system": "8xh100-sxm",
    ...     "workload": {"seq": 8192, "global_batch": 64}, "plan": {"tp": 2}})
    >>> export(made, to="megatron").expressed["plan.tp"]
    '--tensor-model-parallel-size'
    """
    made = TARGETS[to].write(scenario)
    asked = job_request(job or {})
    return made if launcher is None else launched(made, scenario, launcher, asked)


def import_run(
    source: Path | str | Mapping[str, str],
    *,
    target: str | None = None,
    system: str | None = None,
    model: str | None = None,
    arguments: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
) -> Imported:
    """What a run's configuration says: a file, a folder of files, or texts by name. Text is parsed, never executed.

    `system` names the machine, which most configurations do not; a folder that Ridgeline wrote does. `model` names the
    model where the configuration leaves it to a script. `arguments` and `environment` are what a script is called with.
    """
    files = read_files(Path(source)) if isinstance(source, (str, Path)) else RunFiles(source, Around())
    files.around.arguments = tuple(arguments)
    files.around.environment = dict(environment or {})
    files.around.model = model
    files.around.chips = load_system(system).chips if system else None
    found = (TARGETS[target] if target else detect(files)).read(files)
    if model is not None:
        found = replace(found, settings={**found.settings, "model": model})
    name = system or system_in(files)
    return found if name is None or "system" in found.settings else on_system(found, name)


def on_system(found: Imported, name: str) -> Imported:
    """What was read, on a machine: the global batch follows where files say what one rank handles."""
    built = load_system(name)
    placed = _with_batch(replace(found, settings={**found.settings, "system": name}), built)
    if found.chips is None or found.chips == built.chips:
        return placed
    note = f"{built.chips} chips, where the files start the run on {found.chips}"
    return replace(placed, assumptions=(note, *placed.assumptions))


def _with_batch(found: Imported, system: System) -> Imported:
    """The global batch of files that only say what one data-parallel rank handles, now that the chips are known."""
    workload, plan = found.settings.get("workload", {}), found.settings.get("plan", {})
    if found.per_rank is None or "global_batch" in workload:
        return found
    inner = [plan.get(axis, 1) for axis in ("tp", "pp", "cp")]
    ranks = plan.get("dp") or max(1, system.chips // (inner[0] * inner[1] * inner[2]))
    batch = ranks * found.per_rank
    note = f"global_batch = {batch}: {found.per_rank} sequences on each of {ranks} data-parallel ranks"
    settings = {**found.settings, "workload": {**workload, "global_batch": batch}}
    return replace(found, settings=settings, assumptions=(*found.assumptions, note))


def read_files(path: Path) -> RunFiles:
    """The configuration files of a folder (not of folders below it), or the one file, by name.

    `recipes.py::name` picks one of several functions in a Python file; the name stays with the file's.
    """
    stem, mark, chosen = str(path).partition("::")
    if mark:
        path = Path(stem)
    if not os.path.isdir(path):  # a name no file system takes is no folder
        folder = Path(os.path.realpath(path)).parent
        text = read_text(path, BIGGEST_TEXT)
        return RunFiles({f"{path.name}{mark}{chosen}": text}, Around(folder=folder, top=top_of(folder)))
    parts = (part for part in path.iterdir() if part.suffix in SUFFIXES and part.is_file())
    named = sorted(part for part in parts if part.name not in FILES)
    if not named or len(named) > MOST_FILES:
        given = f"{len(named)} configuration files" if named else "no configuration file"
        expected = f"1 to {MOST_FILES} files ending in {', '.join(SUFFIXES)}"
        raise InputError(Problem(path="", given=given, expected=expected, todo="name the file itself", where=str(path)))
    folder = Path(os.path.realpath(path))
    texts = {part.name: read_text(part, BIGGEST_TEXT) for part in named}
    return RunFiles(texts, Around(folder=folder, top=top_of(folder)))
