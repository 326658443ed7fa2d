"""What a study asks of other teams: bottleneck, evidence, cost today, ask, gain, and how to prove it wrong."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from ridgeline.core.records import NotebookValue, dataclass

Team = Literal["chip", "network", "framework", "model", "money"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """One line of a requirement list.

    today_s, today_usd_per_hour   what the bottleneck takes of a step (or of a token), and of an hour of the system
    gain, gain_low, gain_high   the metric today over the metric if the ask is met; the interval
    confidence           evidence grade of the number that the gain rests on most
    falsify              the measurement that would prove the line wrong, with the value it would have to show
    formula              how the gain was computed
    """

    workload: str
    bottleneck: str
    evidence: str
    today_s: float
    today_usd_per_hour: float | None
    ask: str
    gain: float
    gain_low: float
    gain_high: float
    confidence: str
    falsify: str
    formula: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TeamReport:
    """What one team is asked: a sentence, and the lines behind it, the largest gain first."""

    team: Team
    title: str
    ask: str
    asks: tuple[Ask, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportFigure:
    """A picture's data: bars by name, in a unit."""

    title: str
    unit: str
    bars: tuple[tuple[str, float], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RequirementReport(NotebookValue):
    """The requirement list of a study for five teams.

    inputs_hash   of the study and everything it read, so that two reports of the same inputs have the same
    """

    study: str
    title: str
    summary: str
    teams: tuple[TeamReport, ...]
    figures: tuple[ReportFigure, ...]
    provenance: Mapping[str, str]
    inputs_hash: str
    notes: tuple[str, ...] = ()

    JSON = "kind='requirements' study title summary teams figures provenance inputs_hash notes"

    def team(self, name: str) -> TeamReport:
        """The report of one team; `KeyError` where there is none."""
        for entry in self.teams:
            if entry.team == name:
                return entry
        raise KeyError(name)
