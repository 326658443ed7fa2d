"""The sheets of `ridgeline export --json` and `ridgeline import --json`."""

from __future__ import annotations

from typing import Any, TypedDict


class LostSheet(TypedDict):
    """A decision that the target cannot express."""

    path: str
    value: Any
    why: str


class ExportSheet(TypedDict):
    """A scenario as a target's files, and the fate of every decision.

    files      their text by name
    expressed  by decision, the option that says it
    implied    by decision, why nothing needs to be said
    """

    target: str
    version: str
    files: dict[str, str]
    expressed: dict[str, str]
    implied: dict[str, str]
    lost: list[LostSheet]


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
