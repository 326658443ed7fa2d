"""Ridgeline: where model meets machine.

    describe -> predict -> plan -> run -> observe -> explain -> calibrate

The names below are loaded when first used, so that importing Ridgeline costs nothing.

    chip, system, model, engine, schedule      one entry by id, name, file or table
    CHIPS, SYSTEMS, MODELS, ENGINES, SCHEDULES everything the catalogs hold
    scenario, read_scenario                    a table or a file -> Scenario
    check                                      Scenario -> the reasons why it cannot run
    show                                       names -> sheets of facts, as `ridgeline show --json` prints them
    schema                                     the JSON schema of scenario files
    predict                                    Scenario -> Prediction, ServingPrediction of requests under load, or
                                               Impossible with its reasons
    why_slow                                   ServingPrediction -> WhySlow: why its slow requests are slow, what helps
    estimate                                   Scenario -> every op of a rank with seconds, bound and evidence
    roofline                                   model, chip -> Roofline: every op under the chip's roofs
    profile                                    files of measured kernels -> Profile, several nodes as one
    read_profile                               a file of `ridgeline characterize` -> Profile
    timeline                                   Scenario -> Timeline of one predicted step
    plan                                       model, options -> Recommendation; with serve=True DeploymentAnswer: what
                                               `ridgeline plan` prints and writes
    recommend                                  PlanRequest -> Recommendation: the same for a question that is a value
    find_plan                                  Scenario -> Search: the best plans of its space
    validate                                   measured runs -> Validation: each beside its prediction
    fit                                        measured runs -> Refit: parameters, and what they are worth
    export                                     Scenario -> Export: a target's files, and what it cannot express
    import_run                                 a run's configuration -> Imported: settings that `scenario` takes
    read_timeline                              trace files -> Timeline, whatever wrote them
    served_model                               model, TP -> ServedModel: the sizes that `analyze` prices graphs by
    analyze                                    traces -> Analysis: where the time went, under a stated policy
    query                                      traces, SQL -> QueryAnswer: their spans as a table
    diff                                       two traces or scenarios -> Diff: causes that sum to the difference
    explain                                    Scenario, trace -> Explanation: what accounts for the gap
    characterize                               a torch device -> Characterization: its profile, measured and written
    preflight                                  ranks of torchrun -> Preflight: slow chips, slow links, wrong settings
    pack                                       documents -> Packed: a file of tokens that a run reads
    run                                        Scenario -> RunOutcome: trained here by its plan; or its Verification
    capture                                    torch module, example inputs -> ModelSpec: one forward, recorded
    bringup                                    ModelSpec, device -> BringUp: every op of it there, judged against fp64
    dry_run                                    Scenario -> DryRun: its step traced without its ranks, op by op
    anchored                                   your measured runs -> Calibration: yours, that `predict` takes
    next_measurements                          Scenario -> what to measure to be surer of it, the best first
    collective                                 name, system or topology -> CollectiveTime: algorithm, time, bound
    library_choice                             name, system -> LibraryChoice: what NCCL, RCCL or HCCL would do, and why
    collective_run                             name, ranks, backend -> CollectiveRun: an algorithm as it ran
    fit_with                                   your measured runs -> OwnFit: that calibration, and what it is worth
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ridgeline.version import __version__ as __version__

if TYPE_CHECKING:  # the same names for type checkers, which do not run `__getattr__`; a test compares both
    from ridgeline.api import analyze as analyze
    from ridgeline.api import dry_run as dry_run
    from ridgeline.api import plan as plan
    from ridgeline.api import predict as predict
    from ridgeline.api import profile as profile
    from ridgeline.api import recommend as recommend
    from ridgeline.api import roofline as roofline
    from ridgeline.calibrate.anchor import anchored as anchored
    from ridgeline.calibrate.compare import diff as diff
    from ridgeline.calibrate.cross_validate import refit
    from ridgeline.calibrate.explain import explain as explain
    from ridgeline.calibrate.fit_with import fit_with as fit_with
    from ridgeline.calibrate.next_measurement import next_measurements as next_measurements
    from ridgeline.calibrate.validate import validate as validate
    from ridgeline.comm.answer import collective as collective
    from ridgeline.comm.libraries.choice import library_choice as library_choice
    from ridgeline.cost.profile import Profile as Profile
    from ridgeline.cost.profile import read_profile as read_profile
    from ridgeline.hardware.load import CHIPS as CHIPS
    from ridgeline.hardware.load import SYSTEMS as SYSTEMS
    from ridgeline.hardware.load import chip as chip
    from ridgeline.hardware.load import system as system
    from ridgeline.models.load import MODELS as MODELS
    from ridgeline.models.load import model as model
    from ridgeline.plan.check import check as check
    from ridgeline.plan.engine import ENGINES as ENGINES
    from ridgeline.plan.engine import engine as engine
    from ridgeline.plan.plan import Plan as Plan
    from ridgeline.plan.scenario import Scenario as Scenario
    from ridgeline.plan.scenario_file import read_scenario as read_scenario
    from ridgeline.plan.scenario_file import scenario as scenario
    from ridgeline.plan.scenario_file import schema as schema
    from ridgeline.plan.schedules import SCHEDULES as SCHEDULES
    from ridgeline.plan.schedules import build
    from ridgeline.report.show import show as show
    from ridgeline.runtime.bringup.supervise import bringup as bringup
    from ridgeline.runtime.capture import capture as capture
    from ridgeline.runtime.collective_run import collective_run as collective_run
    from ridgeline.runtime.measure import characterize as characterize
    from ridgeline.runtime.preflight import preflight as preflight
    from ridgeline.runtime.train.run_scenario import run as run
    from ridgeline.runtime.train.token_files import pack as pack
    from ridgeline.search.find_plan import find_plan as find_plan
    from ridgeline.search.request import PlanRequest as PlanRequest
    from ridgeline.serving.served_model import served_model as served_model
    from ridgeline.serving.serving_prediction import ServingPrediction as ServingPrediction
    from ridgeline.serving.why_slow import why_slow as why_slow
    from ridgeline.sim.events.simulate import timeline as timeline
    from ridgeline.sim.predict_step import estimate as estimate
    from ridgeline.sim.prediction import Impossible as Impossible
    from ridgeline.sim.prediction import Prediction as Prediction
    from ridgeline.targets.api import export as export
    from ridgeline.targets.api import import_run as import_run
    from ridgeline.trace.read.readers import read_timeline as read_timeline
    from ridgeline.trace.span_query import query as query

    schedule = build
    fit = refit

# the public names and where each is found; what it is called there stands after a colon where that differs
_HOMES = {
    "CHIPS": "ridgeline.hardware.load",
    "SYSTEMS": "ridgeline.hardware.load",
    "chip": "ridgeline.hardware.load",
    "system": "ridgeline.hardware.load",
    "MODELS": "ridgeline.models.load",
    "model": "ridgeline.models.load",
    "check": "ridgeline.plan.check",
    "ENGINES": "ridgeline.plan.engine",
    "engine": "ridgeline.plan.engine",
    "Plan": "ridgeline.plan.plan",
    "Scenario": "ridgeline.plan.scenario",
    "read_scenario": "ridgeline.plan.scenario_file",
    "scenario": "ridgeline.plan.scenario_file",
    "schema": "ridgeline.plan.scenario_file",
    "SCHEDULES": "ridgeline.plan.schedules",
    "schedule": "ridgeline.plan.schedules:build",
    "show": "ridgeline.report.show",
    "timeline": "ridgeline.sim.events.simulate",
    "plan": "ridgeline.api",
    "predict": "ridgeline.api",
    "profile": "ridgeline.api",
    "dry_run": "ridgeline.api",
    "roofline": "ridgeline.api",
    "read_profile": "ridgeline.cost.profile",
    "Profile": "ridgeline.cost.profile",
    "estimate": "ridgeline.sim.predict_step",
    "find_plan": "ridgeline.search.find_plan",
    "recommend": "ridgeline.api",
    "PlanRequest": "ridgeline.search.request",
    "Impossible": "ridgeline.sim.prediction",
    "Prediction": "ridgeline.sim.prediction",
    "ServingPrediction": "ridgeline.serving.serving_prediction",
    "why_slow": "ridgeline.serving.why_slow",
    "validate": "ridgeline.calibrate.validate",
    "fit": "ridgeline.calibrate.cross_validate:refit",
    "diff": "ridgeline.calibrate.compare",
    "explain": "ridgeline.calibrate.explain",
    "fit_with": "ridgeline.calibrate.fit_with",
    "next_measurements": "ridgeline.calibrate.next_measurement",
    "anchored": "ridgeline.calibrate.anchor",
    "export": "ridgeline.targets.api",
    "import_run": "ridgeline.targets.api",
    "collective": "ridgeline.comm.answer",
    "library_choice": "ridgeline.comm.libraries.choice",
    "collective_run": "ridgeline.runtime.collective_run",
    "characterize": "ridgeline.runtime.measure",
    "preflight": "ridgeline.runtime.preflight",
    "run": "ridgeline.runtime.train.run_scenario",
    "bringup": "ridgeline.runtime.bringup.supervise",
    "capture": "ridgeline.runtime.capture",
    "pack": "ridgeline.runtime.train.token_files",
    "analyze": "ridgeline.api",
    "read_timeline": "ridgeline.trace.read.readers",
    "query": "ridgeline.trace.span_query",
    "served_model": "ridgeline.serving.served_model",
}

__all__ = sorted([*_HOMES, "__version__"])


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'ridgeline' has no attribute {name!r}")
    home, _, there = _HOMES[name].partition(":")
    return getattr(import_module(home), there or name)


def __dir__() -> list[str]:
    return sorted(__all__)
