"""Verbs that act on machines and on files of other software: run, bring a device up, fit, export and import.

`api` has those that predict, plan and explain.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypedDict, Unpack, cast, overload

from ridgeline.core.errors import InputError, Problem
from ridgeline.core.units import parse_quantity
from ridgeline.core.waits import ProgressCallback, StoppableWait, ignore_progress, write_together

if TYPE_CHECKING:
    from ridgeline.calibrate.cross_validate import OwnFit, Refit
    from ridgeline.core.documents import JsonObject
    from ridgeline.cost import Profile
    from ridgeline.cost.library_times import LibraryParameters
    from ridgeline.graph import GraphComparison, GraphReport
    from ridgeline.ir.op_graph import OpGraph
    from ridgeline.ir.rank_ops import DryRun
    from ridgeline.models.spec import ModelSpec
    from ridgeline.plan.scenario import Scenario
    from ridgeline.runtime.bringup import BringUp, FaultsReport, ImportedDump, Rates
    from ridgeline.runtime.rl import RlOutcome, RlStepRow
    from ridgeline.runtime.train import (
        ForwardConstants,
        RunOptions,
        RunOutcome,
        SbatchScript,
        StepRow,
        Verification,
    )
    from ridgeline.sim.prediction import Prediction
    from ridgeline.targets import Export, Imported, Unread
    from ridgeline.web import OpenWorkbench

OWN_ENGINE = "ridgeline"
MOST = 8  # decisions named for one reason
MOST_NAMES = 16  # options on one line


# -- running ----------------------------------------------------------------------------------------------------------


def run(
    scenario: Scenario | Path | str, options: RunOptions | None = None, *, settings: Sequence[str] = (),
    constants: ForwardConstants | None = None,
    tell: Callable[[StepRow], None] | Callable[[RlStepRow], None] | None = None,
    note: Callable[[str], None] | None = None, replan: Callable[[int], Scenario | None] | None = None,
) -> RunOutcome | Verification | RlOutcome | None:  # fmt: skip
    """Train a scenario's model by its plan here, beside what is predicted of it; see `runtime.train.run_scenario.run`.
    One of post-training is run by `runtime.rl.run_post_training`.

    What cannot run here or would not fit in memory is refused before anything starts, with the nearest plan that would.
    An elastic run goes on with the best plan for the ranks that are left, or with what `replan` says.

    options   absent, or without a device: on the torch device of the scenario's chip
    """
    from ridgeline.plan.scenario import Scenario, is_post_training
    from ridgeline.plan.scenario_file import read_scenario
    from ridgeline.runtime.train import RunOptions, RunOutcome
    from ridgeline.runtime.train import run as train

    built = scenario if isinstance(scenario, Scenario) else read_scenario(scenario, settings)
    chosen = options or RunOptions(device="")
    chosen = chosen if chosen.device else replace(chosen, device=torch_device(built))
    if is_post_training(built):
        from ridgeline.runtime.rl import run_post_training

        hear = cast("Callable[[RlStepRow], None]", tell or _keep_silent)
        return run_post_training(built, chosen, constants=constants, tell=hear, note=note or _keep_silent)
    refuse_unfit(built)
    hear_step = cast("Callable[[StepRow], None]", tell or _keep_silent)
    outcome = train(
        built, chosen, constants=constants, tell=hear_step, note=note or _keep_silent,
        replan=replan or partial(plan_for_ranks, built),
    )  # fmt: skip
    expected = expected_step(built) if isinstance(outcome, RunOutcome) else None
    if expected is None or not isinstance(outcome, RunOutcome):
        return outcome
    notes = (*outcome.notes, expected.caution) if expected.caution else outcome.notes
    outcome = replace(outcome, predicted_memory=expected.memory.fullest.bytes_by_kind, notes=notes)
    if not outcome.step_s:
        return outcome
    return replace(outcome, predicted_step_s=expected.step_time_s, predicted_mfu=expected.utilization.mfu)


def write_sbatch(path: Path, scenario: Path | str, options: RunOptions, settings: Sequence[str] = ()) -> SbatchScript:
    """A script for Slurm that runs `ridgeline run` of a scenario's file on its nodes; what cannot run is refused."""
    from ridgeline.core.files import write_text
    from ridgeline.plan.check import check
    from ridgeline.plan.scenario_file import read_scenario
    from ridgeline.runtime.train import SbatchScript, refusals
    from ridgeline.targets import slurm_run

    built = read_scenario(scenario, settings)
    if problems := (*check(built), *refusals(built)):
        raise InputError(problems)
    write_text(path, slurm_run(built, (str(scenario), *_words(options, settings))))
    return SbatchScript(output=path)


def _words(options: RunOptions, settings: Sequence[str]) -> Iterator[str]:
    """The options that are not as they are by default, as a command line gives them."""
    usual = type(options)()
    for item in fields(options):
        value = getattr(options, item.name)
        if value == getattr(usual, item.name) or item.name == "device":
            continue
        yield {"folder": "--output"}.get(item.name, f"--{item.name.replace('_', '-')}")
        if value is not True:
            yield str(value)
    yield from ("--device", options.device) if options.device else ()
    for setting in settings:
        yield from ("--set", setting)


def _keep_silent(_: object) -> None:
    """Nobody is told how far a run is."""


def expected_step(scenario: Scenario) -> Prediction | None:
    """What `predict` says of a training step; None where it cannot run, or a number of the chip is missing."""
    from ridgeline.api import predict
    from ridgeline.core.errors import RidgelineError
    from ridgeline.sim.prediction import Prediction

    try:
        step = predict(scenario)
    except RidgelineError:  # the run goes on without
        return None
    return step if isinstance(step, Prediction) else None


def plan_for_ranks(scenario: Scenario, ranks: int) -> Scenario | None:
    """The best scenario for so many ranks, of those that `run` can execute: what `plan` would say."""
    from ridgeline.runtime.train import refusals
    from ridgeline.search import fit_to

    return fit_to(scenario, ranks, lambda candidate: not refusals(candidate))


def refuse_unfit(scenario: Scenario) -> None:
    """Refuse what cannot run here or would not fit in memory, before anything starts, with the nearest plan that would:
    the fastest one for as many ranks that the engine executes."""
    from ridgeline.core.units import format_quantity
    from ridgeline.plan.check import check
    from ridgeline.runtime.train import describe_plan, refusals

    problems = [*check(scenario), *refusals(scenario)]
    expected = expected_step(scenario) if not problems else None
    if expected is not None and not expected.memory.fits:
        given = f"{format_quantity(expected.memory.peak_bytes, 'B')} at the peak of the fullest rank"
        capacity = format_quantity(expected.memory.capacity_bytes, "B")
        problems = [Problem(path="memory", given=given, expected=f"at most {capacity}")]
    if not problems:
        return
    nearest = plan_for_ranks(scenario, scenario.system.chips) if scenario.workload.kind == "train" else None
    if nearest is not None:
        plan = nearest.plan
        todo = f"use {describe_plan(nearest)}, microbatch {plan.microbatch}, recompute {plan.recompute.kind}"
        given = describe_plan(scenario)
        problems.append(Problem(path="plan", given=given, expected="a plan that runs here", todo=todo))
    raise InputError(problems)


def torch_device(scenario: Scenario) -> str:
    """The torch device of a scenario's chip."""
    return {"host": "cpu", "Huawei": "npu", "Intel": "hpu"}.get(scenario.system.chip.vendor, "cuda")


def dry_run(scenario: Scenario) -> DryRun:
    """One step of a plan traced on this CPU without its ranks, and every op held against what `lowering` expects.

    What runs here is the engine `ridgeline`, whichever the scenario names.
    """
    from ridgeline.ir.rank_ops import DryRun, StageOps, compare_ops
    from ridgeline.lowering.rank_ops import rank_ops
    from ridgeline.plan.engine import ENGINES
    from ridgeline.runtime.train import trace_plan

    own_scenario = replace(scenario, plan=replace(scenario.plan, engine=OWN_ENGINE), engine=ENGINES[OWN_ENGINE])
    traces = trace_plan(own_scenario)
    expected_ops = rank_ops(own_scenario)
    return DryRun(
        ranks=own_scenario.plan.mesh.ranks,
        engine_given=scenario.engine.id,
        stages=tuple(
            StageOps(
                pipeline_ranks=stage.pipeline_ranks, ops=compare_ops(expected_ops[stage.pipeline_ranks[0]], stage.ops)
            )
            for stage in traces
        ),
    )


# -- bringing a device up ---------------------------------------------------------------------------------------------


class BringUpOptions(TypedDict, total=False):
    """Further options of `runtime.bringup.bringup`."""

    example_inputs: object
    limit_s: float
    only: tuple[str, ...]


def bringup(
    model: object = "", device: str = "cpu", *, faults: Path | str = "", fault: str = "", allow: Sequence[str] = (),
    seed: int = 0, chip: str | None = None, profile: Path | None = None, save_fingerprint: bool = False,
    graph_breaks: bool = False, msprobe: Path | None = None, folder: Path | str | None = "",
    progress: ProgressCallback = ignore_progress, each: Callable[[BringUp], None] | None = None,
    **options: Unpack[BringUpOptions],
) -> BringUp | FaultsReport | ImportedDump:  # fmt: skip
    """Judge every op of a model on a device against fp64 arithmetic; see `runtime.bringup.bringup`.

    faults     a file of faults for the device `ridge`: each is planted in turn, or the one that `fault` names; `each`
               is called with every report
    allow      what the device may do and is not to be a finding, as `--allow` takes it
    chip       whose data sheet says what is possible; or a `profile` of the device, whose fingerprint judges ops too
    save_fingerprint   store what was found of the arithmetic unit in the profile
    msprobe    a folder of dumps to judge instead of a model on a device
    folder     where reproductions of findings go; None: into one of the working directory named after what is tried
    """
    from ridgeline.runtime.bringup import (
        CORPUS,
        FaultsReport,
        Fingerprint,
        allowances,
        bringup_msprobe,
        fault_names,
        folder_of,
        target_of,
    )
    from ridgeline.runtime.bringup import bringup as library

    if msprobe is not None:
        if model != "":
            raise InputError(Problem(path="MODEL", given=repr(model), expected="none beside --msprobe"))
        return bringup_msprobe(msprobe, progress)
    if isinstance(model, str) and not model:
        expectation = "a model to bring up, or --msprobe FOLDER"
        todo = "`ridgeline show models` lists them"
        raise InputError(Problem(path="MODEL", given="none", expected=expectation, todo=todo))
    target, corpus = target_of(model, options.get("example_inputs")), faults or (CORPUS if fault else "")
    stored_profile = _profile_of(profile, save_fingerprint, bool(corpus))
    stored = stored_profile.fingerprint if stored_profile is not None else None
    names = fault_names(Path(corpus), fault) if corpus else [""]
    reports = []
    for name in names:
        report = library(
            model, device, faults=corpus, fault=name, seed=seed, progress=progress, allow=allowances([*allow]),
            folder="" if folder == "" else folder_of(Path(folder) if folder else None, target, device, name),
            stored=Fingerprint.from_table(stored) if stored else None,
            rates=None if corpus else _rates(chip, stored_profile),
            graph_breaks=graph_breaks and not corpus, **options,
        )  # fmt: skip
        report.fault = name or report.fault
        reports.append(report)
        if each is not None:
            each(report)
        if report.is_stopped:
            break
    if corpus and not fault:
        return FaultsReport(faults=tuple(reports))
    first = reports[0]
    if not save_fingerprint or profile is None or first.is_stopped:
        return first
    return _save_fingerprint(first, profile)


def _profile_of(path: Path | None, save: bool, faulted: bool) -> Profile | None:
    """The profile; whatever would keep a fingerprint from being stored in it is refused before the work."""
    from ridgeline.core.files import refuse_unwritable
    from ridgeline.cost import read_profile, refuse_stored

    if save and (path is None or faulted):
        given_text = "no --profile" if path is None else "a fault, whose arithmetic is not the device's"
        todo = "write a profile with `ridgeline characterize -o FILE`, and give it without faults"
        raise InputError(Problem(path="--save-fingerprint", given=given_text, expected="--profile FILE", todo=todo))
    profile = None if path is None else read_profile(path)
    if save and path is not None and profile is not None:
        refuse_stored(profile, path)
        refuse_unwritable(path)
    return profile


def _save_fingerprint(report: BringUp, path: Path) -> BringUp:
    """The same, once what was found of the arithmetic unit is stored in the profile; nothing is where nothing was."""
    from ridgeline.cost import save_fingerprint

    if report.fingerprint is not None and report.fingerprint.products:
        save_fingerprint(path, report.fingerprint.as_table())
    return report


def _rates(chip: str | None, profile: Profile | None) -> Rates | None:
    """What is possible, of a profile or of a chip that is named; else the device's name tells."""
    from ridgeline.hardware.load import chip as read_chip
    from ridgeline.runtime.bringup import Rates, rates_of

    if profile is None:
        return rates_of(read_chip(chip)) if chip is not None else None
    file = Path(profile.source).name
    best = {ceiling.name: ceiling.measured for ceiling in profile.ceilings()}
    products = {name.removeprefix("product "): rate for name, rate in best.items() if name.startswith("product ")}
    moved = [best[name] for name in ("copy", "read", "write") if name in best]
    name = profile.chip or str(profile.device.get("name", "")) or file
    return Rates(
        name=name, flops_per_s=products, bytes_per_s=max(moved, default=None), source=f"measured, {file}",
    )  # fmt: skip


# -- fits -------------------------------------------------------------------------------------------------------------


@overload
def fit(
    run: Path | str, /, *runs: Path | str, output: Path | None = None, progress: ProgressCallback | None = None
) -> OwnFit: ...


@overload
def fit(
    *, collectives: Literal[True], write: bool = False, progress: ProgressCallback | None = None
) -> LibraryParameters: ...


@overload
def fit(*, serving: Literal[True], progress: ProgressCallback | None = None) -> JsonObject: ...


@overload
def fit(
    *, quick: bool = False, nested: bool = False, write: bool = False, output: Path | None = None,
    progress: ProgressCallback | None = None,
) -> Refit | JsonObject: ...  # fmt: skip


def fit(
    *runs: Path | str, quick: bool = False, nested: bool = False, collectives: bool = False, serving: bool = False,
    write: bool = False, output: Path | None = None, progress: ProgressCallback | None = None,
) -> OwnFit | Refit | LibraryParameters | JsonObject:  # fmt: skip
    """Parameters from measured runs: yours upon the shipped ones (`fit_with`), or all of them again from bundled rows.

    quick         fewer rounds, and nothing is left out
    nested        only what leaving rows out costs where the priors are chosen inside folds, as a sheet
    collectives   the numbers of what benchmarks of collectives measure instead
    serving       the parameters of serving instead; these are always written
    write         replace the parameters that ship
    output        where the calibration of your runs goes, for `--calibration` of other verbs
    """
    try:
        import_module("scipy.optimize")
    except ModuleNotFoundError as missing:
        lack = Problem(path="fit", given=f"no module {missing.name}", expected="scipy", todo="`pip install scipy`")
        raise InputError(lack) from None
    from ridgeline.calibrate import cross_validate

    wait = StoppableWait(progress or ignore_progress)
    if runs:
        own = cross_validate.fit_with(*runs, progress=wait)
        if output is not None and not wait.stopped:
            cross_validate.write_calibration(own, output)
        return own
    if output is not None:
        raise InputError(Problem(path="-o", given="no --with", expected="--with RUN, whose calibration it gets"))
    if collectives:
        from ridgeline.calibrate.collectives import fit_collectives, write_collectives

        library = fit_collectives(progress=wait)
        if write:
            with write_together():
                write_collectives(library)
        return library
    if serving:
        from ridgeline.calibrate.inference import refit_serving

        return refit_serving(progress=wait)
    if nested:
        return cross_validate.nested_sheet(progress=wait)
    fits = cross_validate.refit(quick=quick, progress=wait)
    if write:
        with write_together():
            cross_validate.write_parameters(fits)
    return fits


# -- files of other software ------------------------------------------------------------------------------------------


def export(
    scenario: Scenario | Path | str, *, to: str, launcher: str | None = None, job: Mapping[str, str] | None = None,
    settings: Sequence[str] = (), output: Path | None = None, allow_misfit: bool = False, force: bool = False,
) -> Export:  # fmt: skip
    """A scenario as files of other software, with the account of every decision; see `targets.export`.

    output         a folder to write them to; nothing is written where `check` refuses them: they no longer fit, are
                   over 5 % slower or faster, or mean no run
    allow_misfit   write them all the same
    force          over files that are there
    """
    from ridgeline.core.files import write_text
    from ridgeline.plan.scenario import Scenario
    from ridgeline.plan.scenario_file import read_scenario
    from ridgeline.targets import export as library

    built = scenario if isinstance(scenario, Scenario) else read_scenario(scenario, settings)
    exported = library(built, to=to, launcher=launcher, job=job)
    if output is None or (exported.check is not None and exported.check.refuses and not allow_misfit):
        return exported
    refuse_existing([output / name for name in exported.files], force)
    try:
        output.mkdir(parents=True, exist_ok=True)
    except OSError as wrong:
        given = wrong.strerror or "not writable"
        problem = Problem(path="--output", given=given, expected="a folder", where=str(output))
        raise InputError(problem) from None
    with write_together():
        for name, text in exported.files.items():
            write_text(output / name, text)
    return exported


def open_workbench(
    *files: Path | str, port: int = 0, allow_launch: bool = False, seconds: float | None = None,
    ready: Callable[[OpenWorkbench], None] | None = None,
) -> OpenWorkbench:  # fmt: skip
    """Serve the workbench to this machine's browser until Ctrl-C, or for so many seconds; what was open.

    files          traces, scenarios, configurations and scripts, each opened on its page
    port           0: one that is free
    allow_launch   whether pages may start runs on this machine
    ready          hears of the address as soon as it answers
    """
    from ridgeline.web import serve_workbench

    with serve_workbench(files, port=port, allow_launch=allow_launch) as (opened, server):
        if ready is not None:
            ready(opened)
        server.join(seconds)
    return opened


def scenario_text(imported: Imported) -> str:
    """The scenario file that a run's configuration means; refused where it names no model or no machine."""
    from ridgeline.core.encode import toml_text

    missing = {
        "model": ("--model", "the model that the script builds", "add --model llama3-8b, for example"),
        "system": ("--on", "the machine that runs it", "add --on 64xh100-sxm, for example"),
    }
    lacks = [parts for key, parts in missing.items() if key not in imported.settings]
    if lacks:
        nothing = f"nothing in the {imported.target} files"
        strange = [
            f"{option.value}, which no model of the catalog is"
            for option in imported.unread
            if option.option == "model"
        ]
        texts = {"--model": strange[0] if strange else nothing, "--on": nothing}
        raise InputError([Problem(path=at, given=texts[at], expected=want, todo=todo) for at, want, todo in lacks])
    return _notes(imported) + toml_text(imported.settings)


def unread_lines(found: Imported) -> Iterator[str]:
    """What was not read: by name and reason what changes the step, by decision what may; the rest by name."""
    changing = [part for part in found.unread if part.effect == "changes"]
    for why, names in _group_options(changing, lambda part: part.why).items():
        yield from _named_lines(f"unread, changes the step ({why})", names)
    open_options = [part for part in found.unread if part.effect == "may change"]
    for decision, names in _group_options(open_options, lambda part: part.decision).items():
        yield from _named_lines(f"unread, may change the step ({decision})", names)
    rest = [_option_words(part) for part in found.unread if not part.changes_step]
    if rest:
        more = f", and {len(rest) - MOST} more (--json lists them)" if len(rest) > MOST else ""
        yield f"unread, changes no step: {', '.join(rest[:MOST])}{more}"


def _named_lines(head: str, names: Sequence[str]) -> Iterator[str]:
    """Every name behind its head, as many to a line as it holds."""
    for first in range(0, len(names), MOST_NAMES):
        yield one_line(f"{head}: {', '.join(names[first : first + MOST_NAMES])}")


def _option_words(part: Unread) -> str:
    return one_line(f"{part.option} {part.value}".strip())


def _group_options(parts: Sequence[Unread], key: Callable[[Unread], str]) -> dict[str, list[str]]:
    """What was not read, gathered by why or by what it decides."""
    groups: dict[str, list[str]] = {}
    for part in parts:
        groups.setdefault(one_line(key(part)), []).append(_option_words(part))
    return groups


def refuse_existing(paths: Sequence[Path], force: bool) -> None:
    """Refuse to write over files, unless that is wanted."""
    there = [path for path in paths if os.path.exists(path)]
    if there and not force:
        expectation = "files that do not exist yet"
        todo = "choose another place, or add --force"
        raise InputError(
            [Problem(path="--output", given=f"{path}, which exists", expected=expectation, todo=todo) for path in there]
        )


def _notes(found: Imported) -> str:
    """The scenario file's head: where it came from, what was assumed and what did not reach it."""
    lines = [f"Read by Ridgeline from files of {found.target}."]
    lines += [f"assumed: {note}" for note in found.assumptions]
    lines += list(unread_lines(found))
    return "".join(f"# {one_line(line)}\n" for line in lines)


def one_line(text: str) -> str:
    """A text of a stranger's file on one line."""
    return "".join(char if char.isprintable() else " " for char in text)[:2000]


def graph(
    model: str, *, on: str = "", seq: int = 4096, batch: int = 1, compare: str = "", budget: str = "",
    operators: Path | None = None,
) -> GraphReport | GraphComparison:  # fmt: skip
    """The op graph of a training step of a model: held against lowering, and with its fusible regions priced on a chip.

    model    a catalog id, whose module is the one that `run` trains; a config.json, whose module transformers builds;
             `module:function`, a torch module of your own; a file that `ridgeline graph -o FILE.json` wrote; or what a
             compiler wrote: StableHLO, HLO, TVM script, MLIR, Triton IR, PTX, a program of torch.export
    on       a chip or a system, whose chip it is
    budget   memory for the activations of all layers, such as "40 GB": what to save, and what to compute again
    compare  a second file of the same program: what one compiler fused and the other did not, and what that costs
    operators   a TOML file of operators of your own, by whose names ops of a file are known
    """
    from ridgeline.graph import GraphReport, check_lowering, compare_files, graph_of_file
    from ridgeline.hardware.load import system

    sheet = None
    if on:
        sheet = system(on if "x" in on.partition("-")[0] or Path(on).is_file() else f"1x{on}").chip
    most_bytes = parse_quantity(budget, "B") if budget else None
    if budget and sheet is None:
        raise InputError(Problem(path="--budget", given=budget, expected="--on CHIP with it: seconds are of a chip"))
    if compare:
        return compare_files(Path(model), Path(compare), sheet, operators)
    if Path(model).is_file() and Path(model).name != "config.json":
        return GraphReport(graph=graph_of_file(Path(model), operators), chip=sheet, budget=most_bytes)
    step_graph, spec = recorded_graph(model, seq=seq, batch=batch)
    check = check_lowering(step_graph, spec, seq=seq, batch=batch) if spec is not None else None
    sizes = {"seq": seq, "batch": batch}
    return GraphReport(graph=step_graph, sizes=sizes, check=check, chip=sheet, budget=most_bytes)


def recorded_graph(model: str, *, seq: int, batch: int) -> tuple[OpGraph, ModelSpec | None]:
    """A graph that torch records, beside the description of the same model where there is one."""
    from ridgeline.api import is_reference
    from ridgeline.models.load import model as model_of
    from ridgeline.runtime import need_torch

    need_torch("graph")
    from ridgeline.runtime.capture import graph_of_config, graph_of_model, graph_of_reference

    if is_reference(model):
        return graph_of_reference(model), None
    path = Path(model)
    file = path / "config.json" if path.is_dir() else path
    if file.name == "config.json" and file.is_file():
        from ridgeline.core.files import read_table

        spec = model_of(str(file))
        return graph_of_config(dict(read_table(file).data), seq=seq, batch=batch, name=spec.id), spec
    spec = model_of(model)
    return graph_of_model(spec, seq=seq, batch=batch), spec
