"""The sheets: plain nested facts that `--json` prints and pages draw. Their types are the contract with programs.

    predict    PredictionSheet, ImpossibleSheet, RefusalSheet        diff       DiffSheet
    plan       PlanSheet, NoPlanSheet                                explain    ExplanationSheet
    analyze    AnalysisSheet, CountersSheet, BenchSheet, MemorySheet validate   ValidationSheet, NextSheet, ReplaySheet
    export     ExportSheet                                           fit        FitWithSheet, with --with
    import     ImportSheet                                           query      QuerySheet

Numbers are in base units unless a key's name carries another: `_s` seconds, `_us` microseconds, `_bytes`, shares of 1.
Keys are added; a key that is there keeps its name and its meaning. The sheets of catalog entries (`show`) are open
tables, since they follow the fields of what they show.
"""

from __future__ import annotations

from typing import Any

Sheet = dict[str, Any]  # one without a type of its own
