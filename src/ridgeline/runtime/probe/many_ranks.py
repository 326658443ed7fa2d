"""One run on many ranks: each measures its own device, then all of them the links, and rank 0 writes one profile."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from ridgeline.runtime.probe.case import Case
from ridgeline.runtime.probe.grid_links import link_cases
from ridgeline.runtime.probe.merge import merge_rows
from ridgeline.runtime.probe.profile_file import write_profile
from ridgeline.runtime.probe.ranks import World
from ridgeline.runtime.probe.session import Outcome, measure_device
from ridgeline.runtime.probe.supervisor import START_LIMIT_S, Child, Settings, Watch, ignore_progress, start_child

LINKS = "ridgeline.runtime.probe.links"
OWN_SHARE = 0.7  # of the minutes that each rank spends on its own device
MOST_ATTEMPTS = 4
BROKEN = 4  # exit code of a rank whose group fell apart
PATIENCE_S = 1800.0


def rank_path(output: Path, rank: int) -> Path:
    """Where a rank's own profile is written: PROFILE.rank3.json."""
    return output.with_name(f"{output.stem}.rank{rank}{output.suffix}")


def measure_ranks(
    settings: Settings,
    output: Path,
    world: World,
    *,
    resume: bool = False,
    only: Sequence[str] = (),
    chip: str | None = None,
    group_backend: str = "",
    watch: Watch = ignore_progress,
) -> Outcome:
    """Measure every rank and the links between them; the outcome is the rank's own, at rank 0 that of all."""
    began = time.monotonic()
    rank_settings = replace(settings, device=world.device(settings.device), minutes=settings.minutes * OWN_SHARE)
    path = rank_path(output, world.rank)
    skip_own = tuple(only) == ("interconnect",)
    found = measure_device(
        rank_settings, path, resume=resume, only=only, chip=chip, watch=watch, chosen=() if skip_own else None
    )
    rows: list[dict[str, Any]] = []
    profiles: list[str] = []
    if not only or "interconnect" in only:
        until = began + settings.minutes * 60
        rows, profiles = _links(rank_settings, world, path, until, group_backend, watch)
    if world.rank != 0:
        return found
    texts = profiles or [file.read_text("utf-8") for file in _rank_files(output, world.ranks)]
    tables = [json.loads(text) for text in texts]
    head, all_rows = merge_rows([_head(table) for table in tables], [table["rows"] for table in tables])
    outcome = Outcome(head=head, rows=(*all_rows, *rows), left=found.left)
    write_profile(output, head, outcome.rows)
    return outcome


def _rank_files(output: Path, ranks: int) -> list[Path]:
    return [path for path in (rank_path(output, rank) for rank in range(ranks)) if path.exists()]


def _head(table: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in table.items() if key not in ("rows", "ridgeline_profile")}


def _links(
    settings: Settings, world: World, path: Path, until: float, group_backend: str, watch: Watch
) -> tuple[list[dict[str, Any]], list[str]]:
    """Rows of the links and every rank's profile as text, at rank 0; nothing at the others."""
    rows: list[dict[str, Any]] = []
    remaining_cases: list[Case] | None = None
    attempt = 1
    while attempt <= MOST_ATTEMPTS:
        child = start_child(LINKS, dict(world.environment))
        request = {**asdict(settings), "attempt": attempt, "group_backend": group_backend, "profile": str(path)}
        child.send({"open": request})
        answer = child.receive(START_LIMIT_S if world.rank == 0 else PATIENCE_S)
        if isinstance(answer, str) or "refused" in answer:
            child.close()
            why = answer if isinstance(answer, str) else answer["refused"]
            return [*rows, {"op": "all_reduce", "impl": "torch", "dtype": "bf16", "ok": False, "why": why}], []
        backend = answer["ready"]["backend"]
        remaining_cases = link_cases(world.ranks, world.nodes, backend) if remaining_cases is None else remaining_cases
        profiles = _lead(child, remaining_cases, rows, until, watch) if world.rank == 0 else _wait(child)
        child.close()
        if profiles is not None:
            return rows, profiles
        attempt = int(answer["ready"]["attempt"]) + 1
    return rows, []


def _lead(child: Child, left: list[Case], rows: list[dict[str, Any]], until: float, watch: Watch) -> list[str] | None:
    """Hand cases to rank 0's child until the time is up; None when it died, its case taken off the list."""
    total = len(left) + len(rows)
    while left and time.monotonic() < until:
        case = left.pop(0)
        watch(len(rows), total, case)
        child.send({"case": case.message()})
        answer = child.receive(case.limit_s + 60)
        if isinstance(answer, str):
            why = "the process group fell apart: a rank died" if answer.endswith(f"code {BROKEN}") else answer
            rows.append({**case.identity(), "ok": False, "why": why})
            return None
        rows.append(answer["row"])
    child.send({"case": None})
    answer = child.receive(PATIENCE_S)
    return [] if isinstance(answer, str) else list(answer["profiles"])


def _wait(child: Child) -> list[str] | None:
    """Wait while a rank follows; None when its process died."""
    answer = child.receive(PATIENCE_S)
    return None if isinstance(answer, str) else []


Reader = Callable[[Path], dict[str, Any]]


def merge_files(paths: Iterable[Path], output: Path, read: Reader) -> Outcome:
    """Rank profiles that were written apart, as one."""
    tables = [read(path) for path in paths]
    head, rows = merge_rows([_head(table) for table in tables], [table["rows"] for table in tables])
    write_profile(output, head, rows)
    return Outcome(head=head, rows=tuple(rows), left=0)
