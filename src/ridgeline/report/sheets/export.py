"""The sheets of `ridgeline export --json` and `ridgeline import --json`."""

from __future__ import annotations

from typing import Any, TypedDict


class LostSheet(TypedDict):
    """A decision that the target cannot express."""

    path: str
    value: Any
    why: str
    yours: bool


class FiguresSheet(TypedDict):
    """One predicted step."""

    step_time_s: float
    peak_memory_bytes: float
    capacity_bytes: float
    fits: bool


class ExportDifferenceSheet(TypedDict):
    """A decision that means something else when the files are read again."""

    path: str
    planned: Any
    written: Any


class ExportCheckSheet(TypedDict):
    """The files read again and predicted, beside the plan.

    verdict    same, differs, slower (by over 5 %), misfit (no longer fits), unreadable, not-predicted
    refuses    whether nothing is written unless --allow-misfit is given
    planned    the plan's own step; none where it cannot be predicted
    written    the step that the files mean
    change     how much longer the files' step is: 0.05 for 5 %
    why        why there is no prediction of the files
    differs    decisions that came back otherwise
    causes     the lost decisions among these
    """

    verdict: str
    refuses: bool
    planned: FiguresSheet | None
    written: FiguresSheet | None
    change: float | None
    why: str
    differs: list[ExportDifferenceSheet]
    causes: list[LostSheet]


class ExportSheet(TypedDict):
    """A scenario as a target's files, and the fate of every decision.

    files      their text by name
    expressed  by decision, the option that says it
    implied    by decision, why nothing needs to be said
    check      what the files mean when they are read again
    """

    target: str
    version: str
    files: dict[str, str]
    expressed: dict[str, str]
    implied: dict[str, str]
    lost: list[LostSheet]
    check: ExportCheckSheet | None


class UnreadSheet(TypedDict):
    """An option of the files that did not reach the scenario."""

    option: str
    value: str
    why: str
    changes_step: bool


class ImportSheet(TypedDict):
    """A run's configuration as a scenario table."""

    target: str
    scenario: dict[str, Any]
    unread: list[UnreadSheet]
    assumptions: list[str]
    chips: int | None
