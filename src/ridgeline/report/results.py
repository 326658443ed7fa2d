"""Which results each verb prints with `--json`, the JSON schema of them, and the terminal page of each result."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from rich.console import Console

    from ridgeline.core.schema import Schema

RESULTS: Mapping[str, str] = MappingProxyType(
    {
        "predict": "sim.prediction.Prediction sim.phase_prediction.PhasePrediction serving.ServingPrediction "
        "sim.prediction.Impossible core.errors.Refusal",
        "plan": "search.training.recommendation.PlanReport search.deployment.recommendation.DeploymentReport "
        "search.training.recommendation.NoPlan",
        "analyze": "trace.analyze_traces.Analysis trace.read.kernel_counters.CounterFile serving.BenchReport "
        "trace.read.memory_snapshot.MemoryRecord",
        "validate": "calibrate.accuracy.ValidationReport calibrate.next_measurement.NextMeasurements "
        "serving.Replay calibrate.request_log.LogFit",
        "fit": "calibrate.cross_validate.OwnFit",
        "export": "targets.target.Export",
        "import": "targets.target.Imported",
        "query": "trace.span_query.QueryAnswer",
        "diff": "trace.diff.Diff trace.diff.DiffRuns cost.profile_compare.ProfileDiff runtime.ReportDiff",
        "profile": "cost.profile_compare.ProfileReport",
        "roofline": "sim.roofline.Roofline",
        "collective": "comm.answer.CollectiveTime comm.comparisons.AlgorithmList comm.libraries.choice.LibraryChoice "
        "comm.formats.files.CollectiveFile runtime.CollectiveRun",
        "explain": "calibrate.explain.Explanation calibrate.explain_bench.BenchExplanation serving.WhySlow",
        "pack": "runtime.Packed",
        "run": "runtime.RunOutcome runtime.Verification ir.rank_ops.DryRun runtime.SbatchScript",
        "characterize": "runtime.Characterization runtime.StandaloneFile",
        "bringup": "runtime.BringUp runtime.FaultsReport runtime.ImportedDump",
        "preflight": "runtime.Preflight",
    }
)
"""The classes of a verb's results. Where there are several they differ in `kind` or `possible`."""
_DRAWINGS = {
    "predict": "Prediction=draw_prediction PhasePrediction=draw_phase",
    "plan": "PlanReport=draw_plan",
    "deployment": "DeploymentReport=draw_deployment",
    "analyze": "Analysis=draw_analysis CounterFile=draw_counters MemoryRecord=draw_memory QueryAnswer=draw_query",
    "diff": "Diff=draw_diff Explanation=draw_explanation",
    "serve": "ServingPrediction=draw_serving WhySlow=draw_why_slow LogFit=draw_request_log BenchReport=draw_bench "
    "BenchExplanation=draw_bench_explanation",
    "validate": "Validation=draw_validation NextMeasurements=draw_next Replay=draw_replay",
    "roofline": "Roofline=draw_roofline ProfileReport=draw_profile ProfileDiff=draw_profile_diff",
    "collective": "CollectiveTime=draw_collective CollectiveFile=draw_verification AlgorithmList=draw_library "
    "CollectiveRun=draw_collective_run LibraryChoice=draw_library_choice",
    "run": "RunOutcome=draw_run Verification=draw_equivalence DryRun=draw_dry Preflight=draw_preflight "
    "Characterization=draw_characterization",
    "bringup": "BringUp=draw_bringup FaultsReport=draw_faults ImportedDump=draw_dump ReportDiff=draw_bringup_diff",
}
PAGES: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        name: (f"ridgeline.report.{module}", function)
        for module, drawings in _DRAWINGS.items()
        for name, function in (drawing.split("=") for drawing in drawings.split())
    }
)
"""Class of a result -> the module and function that draw its terminal page."""


def draw(result: object, console: Console) -> None:
    """Print the page of a result, whatever it is."""
    module, function = PAGES[type(result).__name__]
    getattr(import_module(module), function)(result, console)


def results_of(verb: str) -> tuple[type, ...]:
    """The classes of what a verb prints; imported only here, since some rooms are wide."""
    names = (f"ridgeline.{path}".rpartition(".") for path in RESULTS.get(verb, "").split())
    return tuple(cast(type, getattr(import_module(module), name)) for module, _, name in names)


def verb_schema(verb: str) -> Schema:
    """The JSON schema of what a verb prints with `--json`; records inside are definitions of their own.

    >>> verb_schema("query")["$defs"]["QueryAnswer"]["required"]
    ['kind', 'sql', 'columns', 'rows', 'truncated', 'warnings']
    """
    from ridgeline.core.schema import result_schema

    return result_schema(verb, results_of(verb))
