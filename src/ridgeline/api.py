"""Glue what no floor may join: predictions and plans under a calibration that the user's own runs anchor; traces and
models of the catalog; and what a verb does with each kind of file.

A verb of the command line is the function of its name here: it parses arguments, calls and prints.

    calibration   the prior: a value, a file that `ridgeline fit --with` wrote, or absent for the shipped one
    anchor        runs upon it: see `calibrate.anchor_runs`
    profile       measured kernels: a value, a file, `none`, `aiconfigurator:CHIP`; absent: what ships for the chip

Where a profile reaches, its kernels price ops. Anchors and the calibration move everything else: kernels it does not
reach, traffic, links, overlap, overheads and slack.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Unpack, cast, overload

if TYPE_CHECKING:
    from ridgeline.calibrate.explain import Comparable, Explanation
    from ridgeline.calibrate.explain_rl import RlExplanation
    from ridgeline.calibrate.next_measurement import NextMeasurements
    from ridgeline.calibrate.prediction_diff import PredictionDiff, PredictionDiffs
    from ridgeline.calibrate.request_log import BenchExplanation, LogFit
    from ridgeline.calibrate.validation import Validation
    from ridgeline.comm import CollectiveOptions, CollectiveTime
    from ridgeline.comm.libraries import LibraryChoice
    from ridgeline.comm.simulation import NetworkOptions
    from ridgeline.core.waits import ProgressCallback
    from ridgeline.cost import Calibration, Choice, Profile, ProfileDiff
    from ridgeline.models.spec import ModelSpec
    from ridgeline.plan.scenario import Scenario
    from ridgeline.rl import RlPrediction
    from ridgeline.runtime.bringup import ReportDiff
    from ridgeline.search import DeploymentAnswer, DeploymentOptions, PlanOptions, PlanRequest, Recommendation, Watch
    from ridgeline.serving import ServingPrediction, StepPricing, WhySlow
    from ridgeline.serving.measured import BenchReport, Replay
    from ridgeline.sim.phase_prediction import PhasePrediction
    from ridgeline.sim.prediction import Impossible, Prediction
    from ridgeline.sim.roofline import Roofline
    from ridgeline.trace import (
        Analysis,
        CounterFile,
        Diff,
        DiffRuns,
        MemoryRecord,
        ServedModel,
        Timeline,
    )

NETWORKS = ("closed", "simulated")
Runs = str | Path | Iterable[str | Path]


def calibration_of(
    calibration: Calibration | Path | None = None, anchor: Runs = (), profile: Choice = None
) -> Calibration | None:
    """The calibration that options mean: the prior, its profiles, and runs upon it; None for the shipped one as it is.

    Runs anchor what the profiles leave open: they are predicted with them first.
    """
    from ridgeline.cost import Calibration, default_calibration

    prior = Calibration.read(calibration) if isinstance(calibration, Path) else calibration
    if profile is not None:
        from ridgeline.calibrate.profile_sources import profiles_of

        prior = replace(prior or default_calibration(), profiles=profiles_of(profile))
    runs = _run_names(anchor)
    if not runs:
        return prior
    from ridgeline.calibrate.anchor import anchor_calibration

    return anchor_calibration(prior, runs)


def _run_names(anchor: Runs) -> list[str]:
    return [str(anchor)] if isinstance(anchor, (str, Path)) else [str(run) for run in anchor]


def predict(
    scenario: Scenario,
    calibration: Calibration | Path | None = None,
    *,
    anchor: Runs = (),
    profile: Choice = None,
    causal: bool = True,
    network: str = "closed",
    progress: Callable[[int, int], object] | None = None,
    **conditions: Unpack[NetworkOptions],
) -> Prediction | PhasePrediction | ServingPrediction | RlPrediction | Impossible:
    """The predicted step of a scenario, or what becomes of a serve scenario's requests; or why there is none.

    A training step (`sim.predict_step.predict`), a prefill or a decode step (`sim.phase_prediction.predict_phase`),
    requests under load (`serving.serving_prediction.predict_serving`), a step of post-training (`rl.predict_rl`).

    anchor      measured runs of your own: a CSV of residuals or of runs, a scenario with [measured], or TRACE@SCENARIO
    profile     measured kernels of the chip: a file, `none`, or `aiconfigurator:CHIP`
    causal      whether MFU counts causal attention at half
    network     closed: by formulas; simulated: collectives of a training step also on the system's graph, under
                `conditions` (paths, background, straggler); the answer's `network` says what contention adds
    progress    called with requests finished and requests in all, of requests under load

    >>> from ridgeline.plan.scenario_file import read_scenario
    >>> own = "examples/llama3-8b-8xh100-measured.toml"
    >>> step = predict(read_scenario(own), anchor=own)
    >>> step.anchor.runs, step.anchor.factor > 1
    (('own-llama3-8b-8xh100-measured',), True)
    """
    from ridgeline.core.errors import InputError, Problem, not_among

    if network not in NETWORKS:
        raise InputError(not_among("network", network, NETWORKS))
    if network == "closed" and conditions:
        raise InputError(
            Problem(path="network", given=network, expected="simulated with --paths, --background or --straggler")
        )
    kind = scenario.workload.kind
    if kind == "serve":
        from ridgeline.serving import predict_serving

        return predict_serving(scenario, priced_of(calibration, anchor, profile, scenario), progress=progress)
    if profile is not None:
        from ridgeline.calibrate.profile_sources import refuse_other_chip

        refuse_other_chip(profile, [scenario.system.chip])
    if kind == "rl":
        from ridgeline.calibrate.rl_anchor import predict_at_pace

        return predict_at_pace(scenario, _run_names(anchor), lambda runs: calibration_of(calibration, runs, profile))
    used = calibration_of(calibration, anchor, profile)
    if kind != "train":
        from ridgeline.sim.phase_prediction import predict_phase

        return predict_phase(scenario, used)
    from ridgeline.sim.predict_step import predict as predict_step
    from ridgeline.sim.prediction import Impossible

    step = predict_step(scenario, used, causal=causal)
    if network == "closed" or isinstance(step, Impossible):
        return step
    from ridgeline.sim.network_contention import network_contention

    return replace(step, network=network_contention(step, **conditions))


def scenario_of(
    named: str, *, on: str = "", seq: int | None = None, global_batch: int | None = None, engine: str = "",
    settings: Sequence[str] = (), note: Callable[[str], None] | None = None,
) -> Scenario:  # fmt: skip
    """The scenario in a file; or the one that a model, a system and settings mean, as `search.one_scenario`.

    A model may be `module:function`, a torch module that is captured; `note` hears of it.

    >>> scenario_of("llama3-8b", on="8xh100-sxm", settings=["plan.tp=2"]).plan.mesh.dp
    4
    """
    from ridgeline.core.files import SUFFIXES
    from ridgeline.plan.scenario_file import read_scenario

    named = named_model(named, note=note)
    if named.lower().endswith(SUFFIXES) and not (on or seq or global_batch or engine):
        return read_scenario(named, settings)
    from ridgeline.search import one_scenario

    return one_scenario(named, on=on, seq=seq, global_batch=global_batch, engine=engine, settings=settings)


def named_model(model: str, beside: Path | None = None, note: Callable[[str], None] | None = None) -> str:
    """The model argument of a verb: `module:function` as the model file it was captured into, anything else as it is.

    `beside` is the plan that will name the file: it then stays, next to the plan.
    """
    import atexit
    import shutil
    import tempfile

    if not is_reference(model):
        return model
    name = model.rpartition(":")[2]
    if beside is not None:
        file = beside.with_name(f"{beside.stem}.{name}.toml")
    else:
        folder = Path(tempfile.mkdtemp(prefix="ridgeline-"))
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        file = folder / f"{name}.toml"
    write_model(captured_model(model, note), file)
    return str(file)


def is_reference(model: str) -> bool:
    """Whether it is spelled `module:function` or `file.py:function`."""
    module, colon, function = model.rpartition(":")
    return bool(colon) and function.isidentifier() and bool(module) and not Path(model).exists()


def captured_model(model: str, note: Callable[[str], None] | None = None) -> ModelSpec:
    """The model that `module:function` builds, or a config.json that no reader knows, recorded over one forward."""
    from ridgeline.core.errors import InputError, Problem
    from ridgeline.core.files import read_table
    from ridgeline.models.hf import READERS
    from ridgeline.models.hf.generic import capture_config, captured_module

    if note is not None:
        note(f"capturing {model}")
    if is_reference(model):
        return captured_module(model)
    path = Path(model)
    file = path / "config.json" if path.is_dir() else path
    if not file.is_file():
        expectation = "a config.json, its folder, or module:function"
        raise InputError(Problem(path="MODEL", given=model[:80], expected=expectation))
    return capture_config(dict(read_table(file).data), READERS, id=file.resolve().parent.name)


def write_model(spec: ModelSpec, file: Path) -> None:
    """Write a model file, which every verb takes for a model."""
    from ridgeline.core.encode import toml_text
    from ridgeline.core.files import write_text
    from ridgeline.models.dimensions import dimensions_of

    write_text(file, toml_text(dimensions_of(spec)))


def priced_of(
    calibration: Calibration | Path | None = None, anchor: Runs = (), profile: Choice = None,
    scenario: Scenario | None = None,
) -> StepPricing:  # fmt: skip
    """What engine steps are priced with; a log of measured requests among the anchors gives five numbers instead.

    scenario   whose deployment the log is of, where one is known: its scheduler is that of a log that names none
    """
    from ridgeline.serving import StepPricing
    from ridgeline.serving.measured import is_request_log, read_request_log

    runs = _run_names(anchor)
    logs = [run for run in runs if is_request_log(Path(run))]
    cost = None
    if logs:
        from ridgeline.calibrate.request_log import fit_request_log, served_as

        log = read_request_log(Path(logs[-1]))
        cost = fit_request_log(log if scenario is None else served_as(log, scenario)).cost
    return StepPricing(
        calibration=calibration_of(calibration, [run for run in runs if run not in logs], profile), cost=cost
    )


@overload
def plan(
    model: str, *, serve: Literal[True], to: str = "", watch: Watch | None = None,
    calibration: Calibration | Path | None = None, anchor: Runs = (), profile: Choice = None,
    **options: Unpack[DeploymentOptions],
) -> DeploymentAnswer: ...  # fmt: skip


@overload
def plan(
    model: str, *, serve: Literal[False] = False, to: str = "", watch: Watch | None = None,
    calibration: Calibration | Path | None = None, anchor: Runs = (), profile: Choice = None, all_gains: bool = True,
    on_best: Callable[[Recommendation], None] | None = None, **options: Unpack[PlanOptions],
) -> Recommendation: ...  # fmt: skip


def plan(
    model: str, *, serve: bool = False, to: str = "", watch: Watch | None = None,
    calibration: Calibration | Path | None = None, anchor: Runs = (), profile: Choice = None, all_gains: bool = True,
    on_best: Callable[[Recommendation], None] | None = None, **options: Any,
) -> Recommendation | DeploymentAnswer:  # fmt: skip
    """The best way to train a model, or with `serve` to serve it; options have the names of the command line.

    A scenario file that asks for serving is planned so, with `serve` or without.

    To train: `search.PlanOptions`. To serve: `search.DeploymentOptions`. With `to` only
    plans that this target of an export can be told, so that the files it is given mean the step that was predicted, or
    with `serve` the deployment that was simulated.

    >>> found = plan("llama3-8b", on="2xh100-sxm", serve=True, rate=4, isl=512, osl=64, ttft="1s", tpot="50ms",
    ...     settings=["plan.tp=1", "plan.precision=bf16", "plan.serving.pools=none", "workload.requests=200"])
    >>> found.best.candidate.chips, found.best.met, found.best.prediction.kept["ttft"].found < 1.0
    (1, True, True)
    >>> found.scenario_text.splitlines()[0]  # what -o writes
    '# Found by `ridgeline plan --serve`: 1 chips, 4 requests/s.'
    >>> len(found.frontier) > 1 and found.frontier[0].user_speed > found.frontier[-1].user_speed
    True

    Without a rate and without `requests`, a file of them, it is the most goodput on the chips. Where nothing keeps the
    objective, `best` is None and `problems` say why, with the nearest objective that can be met:

    >>> found = plan("llama3-8b", on="1xh100-sxm", serve=True, rate=4, isl=512, osl=64, tpot="1ms",
    ...     settings=["plan.precision=bf16", "workload.requests=200"])
    >>> found.best is None, [problem.path for problem in found.problems]
    (True, ['objective'])
    """
    from ridgeline.search import DeploymentRequest, PlanRequest, recommend_deployment

    model = named_model(model)
    if serve or serves(model):
        todo = "drop it; --rate, --isl and --osl describe a load"
        refuse_options("none of it with --serve", todo, **{name: options.get(name) for name in TRAINING_OPTIONS})
        question = DeploymentRequest.from_options(model, **options)
        if to:
            from ridgeline.targets import serving_target

            question = replace(question, target=serving_target(to))
        return recommend_deployment(replace(question, priced=priced_of(calibration, anchor, profile)), watch)
    refuse_options("--serve with it", "add --serve", **{name: options.get(name) for name in SERVING_OPTIONS})
    request = PlanRequest.from_options(model, **options)
    if to:
        from ridgeline.targets import training_target

        request = replace(request, target=training_target(to))
    return recommend(
        request, watch, calibration=calibration, anchor=anchor, profile=profile, all_gains=all_gains, on_best=on_best
    )


TRAINING_OPTIONS = ("seq", "global_batch", "days", "tokens", "chips", "headroom", "frontier")
SERVING_OPTIONS = ("requests", "rate", "isl", "osl", "ttft", "tpot", "itl", "e2e")


def serves(model: str) -> bool:
    """Whether a scenario file asks for serving."""
    from ridgeline.core.files import SUFFIXES, read_table

    if not model.lower().endswith(SUFFIXES) or not Path(model).is_file():
        return False
    work = read_table(Path(model)).data.get("workload")
    return isinstance(work, dict) and work.get("kind") == "serve"


def refuse_options(expected: str, todo: str, **options: object) -> None:
    """Refuse options that an answer of this kind has no use for; none is ignored."""
    from ridgeline.core.errors import InputError, Problem

    problems = [
        Problem(path=f"--{name.replace('_', '-')}", given=str(value), expected=expected, todo=todo)
        for name, value in options.items()
        if value not in (None, "")
    ]
    if problems:
        raise InputError(problems)


def recommend(
    request: PlanRequest, watch: Watch | None = None, *, calibration: Calibration | Path | None = None,
    anchor: Runs = (), profile: Choice = None, all_gains: bool = True,
    on_best: Callable[[Recommendation], None] | None = None,
) -> Recommendation:  # fmt: skip
    """Search every case of a request, choose, and explain the choice; see `search.recommendation.recommend`.

    Every plan is priced under the anchored calibration.
    """
    from ridgeline.search import recommend as search

    used = calibration_of(calibration, anchor, profile)
    if profile is not None and request.systems:
        from ridgeline.calibrate.profile_sources import refuse_other_chip
        from ridgeline.hardware.load import system

        refuse_other_chip(profile, [system(name).chip for name in request.systems])
    question = request if used is None else replace(request, calibration=used)
    return search(question, watch, all_gains=all_gains, on_best=on_best)


def roofline(
    model: str, on: str, *, phase: str = "train", seq: int = 4096, batch: int = 1, engine: str = "",
    settings: Sequence[str] = (), calibration: Calibration | Path | None = None, profile: Choice = None,
) -> Roofline:  # fmt: skip
    """Every op of a model on a chip's roofline; see `sim.roofline.roofline`."""

    from ridgeline.sim.roofline import Phase
    from ridgeline.sim.roofline import roofline as draw

    used = calibration_of(calibration, (), profile)
    drawing = draw(
        model, on, phase=cast("Phase", phase), seq=seq, batch=batch, engine=engine, settings=settings, calibration=used
    )
    if profile is not None:
        from ridgeline.calibrate.profile_sources import refuse_other_chip

        refuse_other_chip(profile, [drawing.scenario.system.chip])
    return drawing


def collective(
    name: str,
    *,
    on: str = "",
    without: Iterable[str] = (),
    slow: Iterable[str] = (),
    groups: str = "",
    **options: Unpack[CollectiveOptions],
) -> CollectiveTime:
    """How long a collective takes, by which algorithm, and how near the bound that is: see `comm.answer.collective`.

    `seconds` are those of ideal links. `prices` has them beside what the library's tuner expects, what a benchmark
    would measure and what a step pays, each with what it adds.

    >>> found = collective("allreduce", on="8xh100-sxm", size="1 MB").prices
    >>> layers = (found.ideal, found.library, found.benchmark, found.step)
    >>> [round(layer.seconds * 1e6, 1) for layer in layers]
    [5.4, 27.4, 29.6, 167.9]
    """
    from ridgeline.comm import collective as ideal
    from ridgeline.cost.collective_prices import collective_prices
    from ridgeline.hardware.load import system

    broken, slower = tuple(without), tuple(slow)
    answer = ideal(name, on=on, without=broken, slow=slower, groups=groups, **options)
    is_altered = bool(broken or slower or groups)
    return replace(answer, prices=collective_prices(answer, system(on) if on else None, changed=is_altered))


def library_choice(name: str, *, on: str, size: str | float = "1 GB", library: str = "nccl") -> LibraryChoice:
    """What NCCL, RCCL or HCCL would do for a collective over all chips of a system, and what a benchmark would measure.

    >>> found = library_choice("allreduce", on="8xh100-sxm", size="1 MB")
    >>> found.chosen.name, f"{found.chosen.seconds * 1e6:.1f} {found.measured.seconds * 1e6:.1f} us"
    ('ring/LL', '27.4 29.6 us')
    """
    from ridgeline.calibrate.collectives import with_benchmark
    from ridgeline.comm.libraries import library_choice as choose

    return with_benchmark(choose(name, on=on, size=size, library=library))


def profile(*names: str | Path | Profile) -> Profile:
    """What was measured of a machine: files of `ridgeline characterize`, or `aiconfigurator:CHIP`; several merge."""
    from ridgeline.calibrate.profile_sources import open_profile
    from ridgeline.cost import merge_profiles

    read = [open_profile(name) for name in names]
    return read[0] if len(read) == 1 else merge_profiles(read)


def analyze(
    *traces: Path | str | Timeline,
    policy: str = "all",
    chip: str | None = None,
    classes: Path | None = None,
    counters: Path | str | None = None,
    unit: str | None = None,
    what_if: Sequence[str] = (),
    model: str | ServedModel | None = None,
    capture: Path | str | None = None,
    progress: ProgressCallback | None = None,
) -> Analysis | BenchReport | CounterFile | MemoryRecord:
    """Analyse traces, see `trace.analyze`; kernels behind graphs are priced by a model's sizes.

    ``model`` is one of the catalog by id, ID:TP, or its sizes; absent, the one that the trace gives away.

    Results of a load generator are a BenchReport, a table of hardware counters alone is a CounterFile, and a record of
    PyTorch's allocator is a MemoryRecord.
    """
    from ridgeline.serving.measured import likely_model, served_model
    from ridgeline.trace import analyze as library

    files = [Path(trace) for trace in traces if isinstance(trace, (str, Path))]
    record = _without_timeline(files) if files and len(files) == len(traces) else None
    if record is not None:
        return record
    sizes = served_model(model) if isinstance(model, str) else model
    return library(
        *traces, policy=policy, chip=chip, classes=classes, counters=counters, unit=unit, what_if=what_if,
        model=likely_model if sizes is None else sizes, capture=capture, progress=progress,
    )  # fmt: skip


def _without_timeline(files: Sequence[Path]) -> BenchReport | CounterFile | MemoryRecord | None:
    """What files hold that are no traces: results of a load generator, kernel counters or an allocator's record."""
    from ridgeline.serving.measured import BenchReport, is_bench_result
    from ridgeline.trace import read_untimed

    if all(map(is_bench_result, files)):
        return BenchReport.read(files)
    return read_untimed(files[0]) if len(files) == 1 else None


# -- kinds of files ---------------------------------------------------------------------------------------------------


def validate(
    path: Path | str | None = None, where: Iterable[str] = (), *, frozen: bool = False, profile: Choice = None,
    next_: Path | str | Scenario | None = None, calibration: Calibration | Path | None = None, anchor: Runs = (),
    progress: ProgressCallback | None = None,
) -> Validation | NextMeasurements | LogFit | Replay:  # fmt: skip
    """Hold predictions against what was measured: rows of a table, or the bundled ones; see `calibrate.validate`.

    A log of measured requests is explained by five numbers of a step, its own or those of the last log in `anchor`;
    decisions recorded of an engine are replayed.

    next_   a scenario instead: what to measure next to be surer of it, under `calibration` and `anchor`
    """
    from ridgeline.calibrate.validate import validate as validate_rows
    from ridgeline.core.errors import InputError, Problem
    from ridgeline.core.waits import ignore_progress
    from ridgeline.plan.scenario import Scenario
    from ridgeline.serving.measured import Replay, is_recording, is_request_log, read_request_log

    if next_ is not None:
        from ridgeline.calibrate.next_measurement import next_measurements
        from ridgeline.plan.scenario_file import read_scenario

        if path is not None:
            raise InputError(Problem(path="--next", given=f"a table {path}", expected="a scenario alone"))
        scenario = next_ if isinstance(next_, Scenario) else read_scenario(next_)
        return next_measurements(scenario, calibration_of(calibration, anchor))
    runs = _run_names(anchor)
    if path is not None and is_request_log(Path(path)):
        from ridgeline.calibrate.request_log import apply_request_log, fit_request_log

        log, *fitted_logs = map(read_request_log, map(Path, (path, *runs[-1:])))
        return apply_request_log(log, fit_request_log(fitted_logs[0])) if runs else fit_request_log(log)
    if calibration is not None or runs:
        given_text = "--calibration" if calibration is not None else "--anchor"
        todo = "rows are held against the shipped parameters; `predict --anchor` shows yours"
        raise InputError(Problem(path=given_text, given="no --next", expected="--next SCENARIO", todo=todo))
    if path is not None and is_recording(Path(path)):
        return Replay.of(Path(path))
    return validate_rows(path, where, frozen=frozen, profile=profile, progress=progress or ignore_progress)


def diff(
    before: Comparable, after: Comparable | list[Path] | tuple[Path, ...] | None = None, *, policy: str = "all",
    classes: Path | None = None, settings: Sequence[str] = (),
) -> Diff | DiffRuns | PredictionDiff | PredictionDiffs | ProfileDiff | ReportDiff:  # fmt: skip
    """Why a step of `after` takes longer than one of `before`, see `calibrate.explain.diff`; several are each compared.

    Scenarios are predicted and compared by class of time, see `calibrate.prediction_diff`; without `after`, a scenario
    with itself as `settings` change it. Two profiles: which kernels differ beyond their spread. Two reports of bringup:
    what is newly wrong or slower.
    """
    from ridgeline.calibrate.explain import diff as diff_steps
    from ridgeline.calibrate.prediction_diff import diff_predictions, is_scenario
    from ridgeline.cost import diff_profiles, is_profile, read_profile
    from ridgeline.runtime.bringup import diff_reports, is_report, read_report
    from ridgeline.trace import DiffRuns

    sides: list[Comparable | None] = list(after) or [None] if isinstance(after, (list, tuple)) else [after]
    if all(map(is_scenario, named := [before, *(side for side in sides if side is not None)])):
        return diff_predictions(before, sides, settings, policy=policy, classes=classes)
    files = [Path(side) for side in named if isinstance(side, (str, Path))]
    if len(files) == 2 == len(named):
        if all(path.is_file() and is_report(path) for path in files):
            return diff_reports(*map(read_report, files))
        if all(map(is_profile, files)):
            return diff_profiles(*map(read_profile, files))
    diffs = [diff_steps(before, side, policy=policy, classes=classes, settings=settings) for side in sides]
    return diffs[0] if len(diffs) == 1 else DiffRuns(runs=tuple(diffs))


def explain(
    scenario: Scenario | Path | str, *traces: Path | str | Timeline, policy: str = "all", classes: Path | None = None,
    settings: Sequence[str] = (), calibration: Calibration | Path | None = None, profile: Choice = None,
    anchor: Path | None = None, force: bool = False, progress: Callable[[int, int], object] | None = None,
) -> Explanation | BenchExplanation | RlExplanation | WhySlow:  # fmt: skip
    """What accounts for the gap between a scenario and a trace of it; see `calibrate.explain.explain`, and
    `calibrate.explain_rl` of post-training.

    Results of a load generator are explained load by load (`calibrate.request_log.explain_bench`), anchored on one more
    result. Without a trace, requests under load explain themselves: why the slow ones are slow.
    """
    from ridgeline.calibrate.explain import explain as explain_trace
    from ridgeline.core.errors import InputError, Problem
    from ridgeline.plan.scenario import Scenario, is_post_training
    from ridgeline.plan.scenario_file import read_scenario
    from ridgeline.serving import predict_serving, refuse_impossible, why_slow
    from ridgeline.serving.measured import is_bench_result, read_bench_runs

    files = [Path(trace) for trace in traces if isinstance(trace, (str, Path))]
    is_bench = bool(files) and len(files) == len(traces) and all(map(is_bench_result, files))
    built = scenario if isinstance(scenario, Scenario) else read_scenario(scenario, settings)
    if files and is_post_training(built):
        from ridgeline.calibrate.explain_rl import explain_rl

        if len(traces) > 1:
            given_text = f"{len(traces)} traces"
            raise InputError(Problem(path="TRACE", given=given_text, expected="the timeline.json of one run"))
        return explain_rl(built, files[0])
    if traces and not is_bench:
        from ridgeline.calibrate.profile_sources import own_profile

        return explain_trace(
            scenario, *traces, policy=policy, classes=classes, settings=settings, force=force,
            calibration=calibration_of(calibration, (), profile), profile=own_profile(profile),
        )  # fmt: skip
    if is_bench:
        from ridgeline.calibrate.request_log import explain_bench

        runs = [run for file in files for run in read_bench_runs(file)]
        anchor_run = read_bench_runs(anchor)[0] if anchor is not None else None
        return explain_bench(built, runs, priced_of(calibration, (), profile), anchor_run)
    if built.workload.kind != "serve":
        without = f"no trace of a {built.workload.kind} scenario"
        raise InputError(Problem(path="TRACE", given=without, expected="a trace to compare it with"))
    step_price = priced_of(calibration)
    return why_slow(refuse_impossible(predict_serving(built, step_price, sample=True, progress=progress)), step_price)
