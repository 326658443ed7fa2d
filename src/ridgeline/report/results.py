"""Which results each verb prints with `--json`, and the JSON schema of them."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from types import MappingProxyType
from typing import cast

from ridgeline.core.schema import Schema, result_schema

RESULTS: Mapping[str, str] = MappingProxyType(
    {
        "predict": "sim.prediction.Prediction sim.phase_prediction.PhasePrediction "
        "serving.serving_prediction.ServingPrediction sim.prediction.Impossible core.errors.Refusal",
        "plan": "search.training.recommendation.PlanReport search.deployment.recommendation.DeploymentReport "
        "search.training.recommendation.NoPlan",
        "analyze": "trace.analyze_traces.Analysis trace.read.kernel_counters.CounterFile "
        "serving.bench_result.BenchReport trace.read.memory_snapshot.MemoryRecord",
        "validate": "calibrate.accuracy.ValidationReport calibrate.next_measurement.NextMeasurements "
        "serving.replay.recording.Replay "
        "calibrate.request_log.LogFit",
        "fit": "calibrate.cross_validate.OwnFit",
        "export": "targets.target.Export",
        "import": "targets.target.Imported",
        "query": "trace.span_query.QueryAnswer",
        "diff": "trace.diff.Diff trace.diff.DiffRuns cost.profile_compare.ProfileDiff runtime.ReportDiff",
        "profile": "cost.profile_compare.ProfileReport",
        "roofline": "sim.roofline.Roofline",
        "collective": "comm.answer.CollectiveTime comm.comparisons.AlgorithmList comm.libraries.choice.LibraryChoice "
        "comm.formats.files.CollectiveFile runtime.CollectiveRun",
        "explain": "calibrate.explain.Explanation calibrate.explain_bench.BenchExplanation serving.why_slow.WhySlow",
        "pack": "runtime.Packed",
        "run": "runtime.RunOutcome runtime.Verification ir.op_comparison.DryRun runtime.SbatchScript",
        "characterize": "runtime.Characterization runtime.StandaloneFile",
        "bringup": "runtime.BringUp runtime.FaultsReport runtime.ImportedDump",
        "preflight": "runtime.Preflight",
    }
)
"""The classes of a verb's results. Where there are several they differ in `kind` or `possible`."""


def results_of(verb: str) -> tuple[type, ...]:
    """The classes of what a verb prints; imported only here, since some rooms are wide."""
    names = (f"ridgeline.{path}".rpartition(".") for path in RESULTS.get(verb, "").split())
    return tuple(cast(type, getattr(import_module(module), name)) for module, _, name in names)


def verb_schema(verb: str) -> Schema:
    """The JSON schema of what a verb prints with `--json`; records inside are definitions of their own.

    >>> verb_schema("query")["$defs"]["QueryAnswer"]["required"]
    ['kind', 'sql', 'columns', 'rows', 'truncated', 'warnings']
    """
    return result_schema(verb, results_of(verb))
