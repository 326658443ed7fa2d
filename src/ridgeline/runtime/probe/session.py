"""One run from the device string to the profile file: plan, supervise, keep a journal, write."""

from __future__ import annotations

import datetime
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ridgeline.runtime.probe.case import Case, read_case
from ridgeline.runtime.probe.grid import cases
from ridgeline.runtime.probe.profile_file import Journal, journal_path, write_profile
from ridgeline.runtime.probe.supervisor import Settings, Watch, ignore_progress, supervise


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a run brought: the head of the profile, its rows, and how many planned cases the time did not allow."""

    head: dict[str, Any]
    rows: tuple[dict[str, Any], ...]
    left: int

    @property
    def failures(self) -> tuple[dict[str, Any], ...]:
        """Rows of what the device lacks, computes wrong or dies of."""
        return tuple(row for row in self.rows if not row.get("ok"))


def measure_device(
    settings: Settings,
    output: Path,
    *,
    resume: bool = False,
    only: Sequence[str] = (),
    chip: str | None = None,
    watch: Watch = ignore_progress,
    chosen: Sequence[Case] | None = None,
) -> Outcome:
    """Measure a device and write its profile; `chosen` replaces the grid."""
    began = time.monotonic()
    journal = Journal(journal_path(output), resume)

    def plan(ready: dict[str, Any]) -> Sequence[Case]:
        extra = [read_case(text) for text in ready["extra"]]
        own_cases = (
            list(chosen) if chosen is not None else cases(ready["cache_bytes"], only, ready["head"]["device"]["type"])
        )
        return [*extra, *own_cases]

    run = supervise(settings, plan, keep=journal.append, done=journal.keys, watch=watch)
    head = head_of(run.ready, settings, chip, (time.monotonic() - began) / 60)
    outcome = Outcome(head=head, rows=(*journal.rows, *run.rows), left=run.left)
    write_profile(output, head, outcome.rows)
    journal.path.unlink(missing_ok=True)
    return outcome


def head_of(ready: dict[str, Any], settings: Settings, chip: str | None, minutes: float) -> dict[str, Any]:
    """The keys of a profile before its rows."""
    head = dict(ready["head"])
    return {
        **head,
        "chip": chip or head["chip"],
        "timer": ready["timer"],
        "cache_bytes": ready["cache_bytes"],
        "taken": datetime.date.today().isoformat(),
        "minutes": round(minutes, 2),
        "seed": settings.seed,
    }
