"""Turn what one data-parallel rank handles in a step into the global batch, once the chips are known."""

from __future__ import annotations

from dataclasses import replace

from ridgeline.hardware.system import System
from ridgeline.targets.target import Imported


def with_batch(found: Imported, system: System) -> Imported:
    """The global batch of files that only say what one data-parallel rank handles, now that the chips are known."""
    workload, plan = found.settings.get("workload", {}), found.settings.get("plan", {})
    key = "batch" if workload.get("kind") == "decode" else "global_batch"
    if found.per_rank is None or key in workload:
        return found
    inner = [plan.get(axis, 1) for axis in ("tp", "pp", "cp")]
    ranks = plan.get("dp") or max(1, system.chips // (inner[0] * inner[1] * inner[2]))
    batch = ranks * found.per_rank
    note = f"{key} = {batch}: {found.per_rank} sequences on each of {ranks} data-parallel ranks"
    settings = {**found.settings, "workload": {**workload, key: batch}}
    return replace(found, settings=settings, assumptions=(*found.assumptions, note))
