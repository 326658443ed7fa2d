"""One run from the device string to the profile file: a journal while it goes on, the profile when it ends.

On many ranks each measures its own device, then all of them the links, and rank 0 writes one profile. A profile is JSON
text with one measurement a line, so that two of them can be compared by `diff`; docs/profile.md says what every key
means.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from ridgeline.core.documents import JsonObject
from ridgeline.ir.kernel import OPS
from ridgeline.runtime.probe.case import KernelCase, cases, link_cases, read_case
from ridgeline.runtime.probe.ranks import World
from ridgeline.runtime.probe.supervisor import (
    START_LIMIT_S,
    Child,
    Settings,
    Watch,
    ignore_progress,
    start_child,
    supervise,
)

VERSION = 1


def journal_path(profile: Path) -> Path:
    return profile.with_name(profile.name + ".journal")


class Journal:
    """Rows appended one a line, each on disk before the next is measured."""

    def __init__(self, path: Path, resume: bool) -> None:
        self.path = path
        done_rows = dict(_read_rows(path)) if resume else {}
        self.keys, self.rows = set(done_rows), list(done_rows.values())
        if not resume:
            path.unlink(missing_ok=True)

    def append(self, key: str, row: JsonObject) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"case": key, "row": row}) + "\n")


def _read_rows(path: Path) -> Iterable[tuple[str, JsonObject]]:
    """Cases and rows of a journal; a last line that a crash cut short is left out."""
    if not path.exists():
        return
    with path.open(encoding="utf-8") as file:
        for line in file:
            with contextlib.suppress(json.JSONDecodeError):
                row = json.loads(line)
                if isinstance(row, dict) and isinstance(row.get("row"), dict) and "op" in row["row"]:
                    yield str(row.get("case")), row["row"]


def profile_text(head: JsonObject, rows: Iterable[JsonObject]) -> str:
    """A profile as text: the head, then one row a line, in an order that does not depend on when each was taken."""
    order = {op: place for place, op in enumerate(OPS)}

    def place(row: JsonObject) -> tuple[object, ...]:
        numbers = [value for value in row.values() if isinstance(value, int) and not isinstance(value, bool)]
        names = row["op"], row.get("impl", ""), row.get("dtype", "")
        return (order.get(row["op"], len(OPS)), *names, numbers[:8], json.dumps(row))

    lines = [json.dumps(row, separators=(",", ":")) for row in sorted(rows, key=place)]
    top = [f"  {json.dumps(key)}: {json.dumps(value)}" for key, value in {"ridgeline_profile": VERSION, **head}.items()]
    return "{\n" + ",\n".join(top) + ',\n  "rows": [\n    ' + ",\n    ".join(lines) + "\n  ]\n}\n"


def write_profile(path: Path, head: JsonObject, rows: Iterable[JsonObject]) -> None:
    replace_file(path, profile_text(head, rows).encode())


def replace_file(path: Path, content: bytes) -> None:
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=path.name, suffix=".tmp")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        os.chmod(name, 0o644)
        os.replace(name, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise


def merge_rows(
    heads: Sequence[JsonObject], rows: Sequence[Iterable[JsonObject]]
) -> tuple[JsonObject, list[JsonObject]]:
    """The head and rows of a system's profile, from those of its ranks in order.

    The head is the first rank's, with `ranks`: the node, device and driver of each. Rows that already have a rank, and
    those of links, keep what they have.
    """
    members = []
    for rank, head in enumerate(heads):
        device = head.get("device", {})
        members.append({"rank": rank, "node": head.get("host", {}).get("node", ""), "name": device.get("name", "")})
        members[-1] |= {key: device[key] for key in ("driver", "power_limit_w") if key in device}
    merged_rows = []
    for rank, part in enumerate(rows):
        merged_rows += [row if "rank" in row or "ranks" in row else {**row, "rank": rank} for row in part]
    return {**heads[0], "ranks": members}, merged_rows


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a run brought: the head of the profile, its rows, and how many planned cases the time did not allow.

    is_stopped   whether somebody asked for the end
    """

    head: JsonObject
    rows: tuple[JsonObject, ...]
    left: int
    is_stopped: bool = False

    @property
    def failures(self) -> tuple[JsonObject, ...]:
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
    chosen: Sequence[KernelCase] | None = None,
) -> Outcome:
    """Measure a device and write its profile; `chosen` replaces the grid.

    A run that is stopped writes what it has, and leaves the journal for one that goes on.
    """
    began = time.monotonic()
    journal = Journal(journal_path(output), resume)

    def plan(ready: JsonObject) -> Sequence[KernelCase]:
        extra = [read_case(text) for text in ready["extra"]]
        kind = ready["head"]["device"]["type"]
        return [*extra, *(cases(ready["cache_bytes"], only, kind) if chosen is None else chosen)]

    run = supervise(settings, plan, keep=journal.append, done=journal.keys, watch=watch)
    head = head_of(run.ready, settings, chip, (time.monotonic() - began) / 60)
    outcome = Outcome(head=head, rows=(*journal.rows, *run.rows), left=run.left, is_stopped=run.is_stopped)
    write_profile(output, head, outcome.rows)
    if not run.is_stopped:
        journal.path.unlink(missing_ok=True)
    return outcome


def head_of(ready: JsonObject, settings: Settings, chip: str | None, minutes: float) -> JsonObject:
    head = {**ready["head"], "chip": chip or ready["head"]["chip"]}
    head |= {"timer": ready["timer"], "cache_bytes": ready["cache_bytes"], "taken": datetime.date.today().isoformat()}
    return head | {"minutes": round(minutes, 2), "seed": settings.seed}


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
    if world.ranks == 1:
        return measure_device(settings, output, resume=resume, only=only, chip=chip, watch=watch)
    began = time.monotonic()
    rank_settings = replace(settings, device=world.device(settings.device), minutes=settings.minutes * OWN_SHARE)
    path = rank_path(output, world.rank)
    skip_own = tuple(only) == ("interconnect",)
    outcome = measure_device(
        rank_settings, path, resume=resume, only=only, chip=chip, watch=watch, chosen=() if skip_own else None
    )
    rows: list[JsonObject] = []
    profiles: list[str] = []
    if not outcome.is_stopped and (not only or "interconnect" in only):
        until = began + settings.minutes * 60
        rows, profiles = _links(rank_settings, world, path, until, group_backend, watch)
    if world.rank != 0:
        return outcome
    paths = (rank_path(output, rank) for rank in range(world.ranks))
    texts = profiles or [path.read_text("utf-8") for path in paths if path.exists()]
    merged = _write_merged([json.loads(text) for text in texts], output, rows, outcome.left)
    return replace(merged, is_stopped=outcome.is_stopped)


def _write_merged(tables: Sequence[JsonObject], output: Path, rows: Iterable[JsonObject], left: int) -> Outcome:
    """One profile of the ranks' own, and rows of the links between them."""
    heads = [{key: table[key] for key in table if key not in ("rows", "ridgeline_profile")} for table in tables]
    head, all_rows = merge_rows(heads, [table["rows"] for table in tables])
    outcome = Outcome(head=head, rows=(*all_rows, *rows), left=left)
    write_profile(output, head, outcome.rows)
    return outcome


def _links(
    settings: Settings, world: World, path: Path, until: float, group_backend: str, watch: Watch
) -> tuple[list[JsonObject], list[str]]:
    """Rows of the links and every rank's profile as text, at rank 0; nothing at the others."""
    rows: list[JsonObject] = []
    remaining_cases: list[KernelCase] | None = None
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
        if world.rank == 0:
            profiles = _lead(child, remaining_cases, rows, until, watch)
        else:
            profiles = None if isinstance(child.receive(PATIENCE_S), str) else []
        child.close()
        if profiles is not None:
            return rows, profiles
        attempt = int(answer["ready"]["attempt"]) + 1
    return rows, []


def _lead(child: Child, left: list[KernelCase], rows: list[JsonObject], until: float, watch: Watch) -> list[str] | None:
    """Hand cases to rank 0's child until the time is up; None when it died, its case taken off the list."""
    total = len(left) + len(rows)
    while left and time.monotonic() < until:
        case = left.pop(0)
        if watch(len(rows), total, case, rows) is False:
            break
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


def merge_files(paths: Iterable[Path], output: Path, read: Callable[[Path], JsonObject]) -> Outcome:
    """Rank profiles that were written apart, as one."""
    return _write_merged([read(path) for path in paths], output, (), 0)
