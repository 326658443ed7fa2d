"""Turn the files of an export into what they mean when they are read again, beside the plan they were made of."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, replace
from typing import TYPE_CHECKING

from ridgeline.core.documents import JsonMapping, JsonObject
from ridgeline.core.errors import InputError
from ridgeline.core.units import format_count
from ridgeline.hardware.system import System
from ridgeline.models.params import count
from ridgeline.models.spec import ModelSpec
from ridgeline.plan.scenario import Scenario, is_post_training
from ridgeline.plan.scenario_file import assemble
from ridgeline.plan.serving_plan import KNOBS
from ridgeline.plan.workload import Serve, Train
from ridgeline.rl import RlPrediction
from ridgeline.targets.decisions import decisions_of, serving_decisions_of
from ridgeline.targets.post_training.decisions import rl_decisions_of
from ridgeline.targets.post_training.meaning import written_scenario
from ridgeline.targets.registry import TARGETS
from ridgeline.targets.target import Export, ExportCheck, ExportDifference, Figures, Imported, Lost

if TYPE_CHECKING:
    from ridgeline.sim.prediction import Prediction

SLOWER = 0.05  # of a step: more than this, or as much less, and the files are refused
ALIKE = 0.01  # of a model's weights: more than this and it is another model
DEPLOYED = "plan.serving."
HABITS = ("plan.engine", "plan.compiled", "plan.overlap.")  # of an engine, which a target has another of
ROUNDED = 1e-3  # of a number that a software takes in whole units
SAME = 0.001  # of a step and of memory: less than this is the same prediction


def with_batch(found: Imported, system: System) -> Imported:
    """The global batch of files that only say what one data-parallel rank handles, now that the chips are known."""
    workload, plan = found.settings.get("workload", {}), found.settings.get("plan", {})
    key = "batch" if workload.get("kind") == "decode" else "global_batch"
    if found.per_rank is None or key in workload:
        return found
    inner = [plan.get(axis, 1) for axis in ("tp", "pp", "cp")]
    ranks = plan.get("dp") or max(1, system.chips // (inner[0] * inner[1] * inner[2]))
    batch = ranks * found.per_rank
    note = f"{key} = {batch}: {found.per_rank} sequences on each of {ranks} data-parallel ranks"
    settings = {**found.settings, "workload": {**workload, key: batch}}
    return replace(found, settings=settings, assumptions=(*found.assumptions, note))


def reread(made: Export, scenario: Scenario) -> ExportCheck:
    """What the files of an export mean when they are read again.

    >>> import ridgeline
    >>> asked = {"model": "llama3-8b", "system": "8xh100-sxm", "workload": {"seq": 8192, "global_batch": 64}}
    >>> plan = ridgeline.scenario({**asked, "plan": {"tp": 2, "shard": "zero1", "recompute": "full"}})
    >>> reread(ridgeline.targets.registry.TARGETS["megatron"].write(plan), plan).verdict
    'same'
    """
    absent = next((lost for lost in _planned_elsewhere(made) if lost.path == "model.hidden"), None)
    if absent is not None:
        return ExportCheck(verdict="unreadable", why=f"they do not hold the model: {absent.why}", causes=(absent,))
    try:
        meant = meaning(made, TARGETS[made.target].read(made.files), scenario)
    except InputError as wrong:
        return ExportCheck(verdict="unreadable", why=_one_line(wrong), causes=_planned_elsewhere(made))
    differs = tuple(_differences(scenario, meant))
    paths = {one.path for one in differs}
    causes = tuple(lost for lost in _planned_elsewhere(made) if lost.path in paths)
    if another_model := _another_model(scenario.model, meant.model):
        return ExportCheck(verdict="unreadable", why=another_model, differs=differs, causes=causes)
    if isinstance(scenario.workload, Serve):
        return ExportCheck(verdict="not-predicted", differs=differs, causes=causes)
    return _judge_predictions(scenario, meant, ExportCheck(verdict="same", differs=differs, causes=causes))


def _another_model(planned: ModelSpec, written: ModelSpec) -> str:
    """How the files hold another model; empty where they hold this one, with or without what sees images or further
    tokens, which runs of text and of one token leave out."""
    sizes = [count(replace(one, vision=None, mtp=None)).total for one in (planned, written)]
    if abs(sizes[1] / sizes[0] - 1) <= ALIKE:
        return ""
    has, wanted_names = format_count(sizes[1]), format_count(sizes[0])
    return f"they hold another model: {has} weights, where {planned.id[:60]} has {wanted_names}"


def _planned_elsewhere(made: Export) -> tuple[Lost, ...]:
    return tuple(lost for lost in made.lost if not lost.yours)


def meaning(made: Export, found: Imported, scenario: Scenario) -> Scenario:
    """The scenario that files mean on the plan's machine; an `InputError` where they mean none that can run."""
    if is_post_training(scenario):
        return written_scenario(found, scenario)
    settings = with_batch(found, scenario.system).settings
    workload = dict(settings.get("workload", {}))
    script = {lost.path for lost in made.lost if lost.yours}
    if isinstance(scenario.workload, Train) and "workload.seq" in script:
        workload["seq"] = scenario.workload.seq
    table: JsonObject = {**settings, "workload": workload, "system": scenario.system}
    parts = (path for path in script if not path.startswith("model.numerics."))  # which costs no step anything
    if "model" not in settings or any(path.startswith("model.") for path in parts):
        table["model"] = scenario.model
    built, problems = assemble(table)
    if built is None:
        raise InputError(problems)
    built = _as_scripted(built, scenario, script)
    if "plan.engine" in made.implied or "plan.engine" in made.expressed:
        built = built.with_engine(scenario.engine)
    return built


def _as_scripted(built: Scenario, scenario: Scenario, script: set[str]) -> Scenario:
    names = {(path.split(".")[0], path.split(".")[1]) for path in script if not path.startswith(DEPLOYED)}
    for owner in ("plan", "workload"):
        built_part, planned = getattr(built, owner), getattr(scenario, owner)
        known = {field.name for field in fields(built_part)}
        values: JsonObject = {name: getattr(planned, name) for at, name in names if at == owner and name in known}
        changes: JsonObject = {owner: replace(built_part, **values)}
        built = replace(built, **changes)
    fleet = {path.removeprefix(DEPLOYED).partition(".")[0] for path in script if path.startswith(DEPLOYED)}
    if fleet:
        field_names = {"knobs" if name in KNOBS.kinds else name for name in fleet}
        fleet_values: JsonObject = {name: getattr(scenario.plan.serving, name) for name in field_names}
        built = replace(built, plan=replace(built.plan, serving=replace(built.plan.serving, **fleet_values)))
    if len(built.plan.placement) not in (0, built.plan.virtual_stages):  # of stages that the files do not have
        built = replace(built, plan=replace(built.plan, placement=()))
    return built


def decisions_by_kind(scenario: Scenario) -> JsonMapping:
    """Every decision of a training run, a deployment or a step of post-training, by path."""
    if is_post_training(scenario):
        return rl_decisions_of(scenario)
    return decisions_of(scenario) if isinstance(scenario.workload, Train) else serving_decisions_of(scenario)


def _differences(scenario: Scenario, meant: Scenario) -> Iterator[ExportDifference]:
    """Decisions that came back otherwise; parts that a model has nowhere else are absent there."""
    before, after = decisions_by_kind(scenario), decisions_by_kind(meant)
    for path in dict.fromkeys((*before, *after)):
        planned_value, written = before.get(path), after.get(path)
        if planned_value != written and not _is_same(path, before, after):
            yield ExportDifference(path=path, planned=planned_value, written=written)


def _is_same(path: str, before: JsonMapping, after: JsonMapping) -> bool:
    """Whether two values mean the same to a step: what a model was made for, and numbers that are equal as numbers."""
    if path == "model.context" or path.startswith("model.numerics."):
        return True
    numbers = [value for value in (before.get(path), after.get(path)) if isinstance(value, float)]
    if len(numbers) == 2 and abs(numbers[1] - numbers[0]) <= ROUNDED * abs(numbers[0]):
        return True
    listed = [value for value in (before.get(path), after.get(path)) if isinstance(value, (list, tuple))]
    return len(listed) == 2 and tuple(listed[0]) == tuple(listed[1])


def _judge_predictions(scenario: Scenario, meant: Scenario, check: ExportCheck) -> ExportCheck:
    from ridgeline.rl import predict_rl  # heavy
    from ridgeline.sim.predict_step import predict
    from ridgeline.sim.prediction import Impossible

    predicts = predict_rl if is_post_training(scenario) else predict
    planned_value, written = predicts(scenario), predicts(meant)
    if isinstance(planned_value, Impossible):
        return replace(check, verdict="not-predicted", why=_one_line(InputError(planned_value.reasons)))
    before = _figures(planned_value)
    if isinstance(written, Impossible):
        return replace(check, verdict="unreadable", planned=before, why=_one_line(InputError(written.reasons)))
    after = _figures(written)
    check = replace(check, planned=before, written=after)
    change = check.change or 0.0
    if before.fits and not after.fits:
        return replace(check, verdict="misfit")
    if change > SLOWER:
        return replace(check, verdict="slower")
    other_run = any(not _is_habit(difference) for difference in check.differs)
    if change < -SLOWER and other_run:  # they leave out work that the plan counts, or split it in another way
        return replace(check, verdict="faster")
    grown = abs(after.peak_memory_bytes / before.peak_memory_bytes - 1) if before.peak_memory_bytes else 0.0
    return replace(check, verdict="same" if abs(change) <= SAME and grown <= SAME else "differs")


def _is_habit(difference: ExportDifference) -> bool:
    """Whether another engine does this by itself, or an option that the plan leaves open has a default there."""
    if difference.planned is None and difference.path.startswith(DEPLOYED):
        return True
    return difference.path.startswith(HABITS)


def _figures(found: Prediction | RlPrediction) -> Figures:
    seconds = found.step_time_s
    if isinstance(found, RlPrediction):
        tightest = found.memory.tightest
        sizes = (tightest.total_bytes, tightest.capacity_bytes)
    else:
        sizes = (found.memory.peak_bytes, found.memory.capacity_bytes)
    return Figures(step_time_s=seconds, peak_memory_bytes=sizes[0], capacity_bytes=sizes[1], fits=found.fits)


def _one_line(wrong: InputError) -> str:
    message = [f"{one.path}: got {one.given}, expected {one.expected}" for one in wrong.problems] or [str(wrong)]
    return "".join(char if char.isprintable() else " " for char in "; ".join(message[:3]))[:400]
