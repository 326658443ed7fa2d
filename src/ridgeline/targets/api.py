"""Turn a Scenario and a target's name into an Export, and a path into what its files say.

The verb that reads is `ridgeline import` on the command line and `import_run` in Python, where `import` is a keyword
and `import_` is too easily read as it; what is imported is the configuration of a run.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod
from pathlib import Path

from ridgeline.core.errors import InputError, Problem
from ridgeline.core.files import read_text
from ridgeline.core.waits import ProgressCallback, ignore_progress
from ridgeline.hardware.load import system as load_system
from ridgeline.plan.scenario import Scenario
from ridgeline.plan.unread import unread_table
from ridgeline.targets.imports.foreign_programs import refuse_foreign
from ridgeline.targets.imports.run_files import BIGGEST_TEXT, Checkout, RunFiles, top_of
from ridgeline.targets.imports.shell_arguments import call_of, lacking, missing_arguments, shown_call, with_call
from ridgeline.targets.imports.unread_effects import judge_unread
from ridgeline.targets.launchers.launch import FILES, job_request, system_in, with_launcher
from ridgeline.targets.ledger import annotate_files
from ridgeline.targets.registry import TARGETS, detect
from ridgeline.targets.reread import reread, with_batch
from ridgeline.targets.target import DECODER, ROLLOUT, Export, Imported
from ridgeline.targets.vendors import refuse_other_chips

SUFFIXES = (".sh", ".sbatch", ".slurm", ".toml", ".json", ".yaml", ".yml", ".py")
MOST_FILES = 64


def export(scenario: Scenario, *, to: str, launcher: str | None = None, job: Mapping[str, str] | None = None) -> Export:
    """The scenario as files of the target, with the account of every decision, and what the files mean read again.

    The account stands in the files too: what is lost at their heads, all of it in LEDGER.md. Chips that the target does
    not run on are an `InputError`; files that no longer fit, or are slower, are for the caller to judge by `check`.

    `launcher` names who starts the run on its nodes (`LAUNCHERS`), `job` what it is asked for: time, partition,
    account, image, output.

    >>> import ridgeline
    >>> made = ridgeline.scenario({"model": "llama3-8b", "system": "8xh100-sxm",
    ...     "workload": {"seq": 8192, "global_batch": 64}, "plan": {"tp": 2}})
    >>> export(made, to="megatron").expressed["plan.tp"]
    '--tensor-model-parallel-size'
    """
    target, asked = TARGETS[to], job_request(job or {})
    refuse_other_chips(scenario.system, to)
    export_made = target.write(scenario)
    export_found = annotate_files(replace(export_made, check=reread(export_made, scenario)))
    return export_found if launcher is None else with_launcher(export_found, scenario, launcher, asked)


def import_run(
    source: Path | str | Mapping[str, str],
    *,
    target: str | None = None,
    system: str | None = None,
    model: str | None = None,
    seq: int | None = None,
    arguments: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
    progress: ProgressCallback = ignore_progress,
) -> Imported:
    """What a run's configuration says: a file, a folder of files, or texts by name. Text is parsed, never executed.

    `system` names the machine, which most configurations do not; a folder that Ridgeline wrote does. `model` and `seq`
    name the model and the tokens of a sequence where the configuration leaves them to a script. `arguments` and
    `environment` are what a script is called with; a whole command line, `TP=2 bash run.sh 7B 8`, says both in place of
    the path.
    """
    call = call_of(str(source)) if isinstance(source, (str, Path)) else None
    source = call.path if call is not None else source
    files = read_files(Path(source), progress) if isinstance(source, (str, Path)) else RunFiles(source, Checkout())
    progress(len(files), len(files), "what they mean")
    files.checkout.arguments = (*(call.arguments if call else ()), *arguments)
    files.checkout.environment = {**(call.environment if call else {}), **(environment or {})}
    files.checkout.model = model
    files.checkout.chips, files.checkout.system = load_system(system).chips if system else None, system
    files.checkout.seq = seq
    try:
        imported_run = _read(files, target)
    except InputError as refusal:
        files.checkout.budget.require_rest(*files)
        problems = tuple(_name_files(problem, files) for problem in refusal.problems)
        if problems == refusal.problems:
            raise
        raise InputError(problems) from None
    files.checkout.budget.require_rest(*files)  # where a target passed over the refusal
    if model is not None:
        imported_run = replace(imported_run, settings={**imported_run.settings, "model": model})
    if seq is not None:
        workload = {**imported_run.settings["workload"], "seq": seq}
        imported_run = replace(imported_run, settings={**imported_run.settings, "workload": workload})
    imported_run = _with_unread(judge_unread(imported_run))
    name = system or system_in(files)
    return imported_run if name is None or "system" in imported_run.settings else on_system(imported_run, name)


def _with_unread(found: Imported) -> Imported:
    """The run whose scenario names the options that may change the step, so that its prediction carries the doubt."""
    doubts = unread_table((part.decision, f"{part.option} {part.value}".strip()) for part in found.doubtful)
    return replace(found, settings={**found.settings, "unread": doubts}) if doubts else found


def _read(files: RunFiles, target: str | None) -> Imported:
    """What the files say; a script that means nothing without its words, as documentation beside it calls it."""
    refuse_foreign(files)
    try:
        return (TARGETS[target] if target else detect(files)).read(files)
    except InputError as problem:
        wanted_names = lacking(files)
        if not wanted_names or _other_work(problem):
            raise
        call = shown_call(files) if not files.checkout.arguments else None
        if call is None:
            raise missing_arguments(files, wanted_names, call) from problem
    files_called = with_call(files, call)
    try:
        imported_run = (TARGETS[target] if target else detect(files_called)).read(files_called)
    except InputError as problem:
        if _other_work(problem):
            raise
        raise InputError([*missing_arguments(files, wanted_names, call).problems, *problem.problems]) from problem
    note = f"called as {call.where} shows: {str(call)[:400]}"
    return replace(imported_run, assumptions=(note, *imported_run.assumptions))


def _name_files(problem: Problem, files: RunFiles) -> Problem:
    """A problem with the names of the files, where it says neither an option nor a file."""
    if problem.path or (problem.where and not problem.where.startswith("line ")):
        return problem
    return replace(problem, where=f"{', '.join(files)[:200]} {problem.where}".strip())


def _other_work(problem: InputError) -> bool:
    """Whether a file was refused for what it does, whatever it is called with."""
    return any(one.expected in (DECODER, ROLLOUT) for one in problem.problems)


def on_system(found: Imported, name: str) -> Imported:
    """What was read, on a machine: the global batch follows where files say what one rank handles."""
    built = load_system(name)
    run_on_system = with_batch(replace(found, settings={**found.settings, "system": name}), built)
    axes = {axis: found.settings.get("plan", {}).get(axis, 1) for axis in ("pp", "cp", "tp")}
    split = prod(degree for degree in axes.values() if type(degree) is int)
    if found.chips is not None and found.chips != built.chips:
        run_on_system = run_on_system.with_notes(f"{built.chips} chips, where the files start the run on {found.chips}")
    if built.chips % split:
        degrees = " x ".join(f"{axis} {degree}" for axis, degree in axes.items())
        run_on_system = run_on_system.with_notes(
            f"{name}, whose {built.chips} chips the files' split does not fit: {degrees} takes {split} chips or a"
            f" multiple; say --on {re.sub(r'^[0-9]+x', f'{found.chips or split}x', name)}, for example"
        )
    return run_on_system


def read_files(path: Path, progress: ProgressCallback = ignore_progress) -> RunFiles:
    """The configuration files of a folder (not of folders below it), or the one file, by name.

    `recipes.py::name` picks one of several functions in a Python file; the name stays with the file's.
    """
    stem, mark, chosen = str(path).partition("::")
    if mark:
        path = Path(stem)
    if not os.path.isdir(path):  # a name no file system takes is no folder
        folder = Path(os.path.realpath(path)).parent
        text = read_text(path, BIGGEST_TEXT)
        return RunFiles({f"{path.name}{mark}{chosen}": text}, Checkout(folder=folder, top=top_of(folder)))
    parts = (part for part in path.iterdir() if part.suffix in SUFFIXES and part.is_file())
    paths_named = sorted(part for part in parts if part.name not in FILES)
    if not paths_named or len(paths_named) > MOST_FILES:
        given_text = f"{len(paths_named)} configuration files" if paths_named else "no configuration file"
        expected_text = f"1 to {MOST_FILES} files ending in {', '.join(SUFFIXES)}"
        raise InputError(
            Problem(path="", given=given_text, expected=expected_text, todo="name the file itself", where=str(path))
        )
    folder = Path(os.path.realpath(path))
    texts: dict[str, str] = {}
    for part in paths_named:
        progress(len(texts), len(paths_named), part.name)
        texts[part.name] = read_text(part, BIGGEST_TEXT)
    return RunFiles(texts, Checkout(folder=folder, top=top_of(folder)))
