"""Turn a policy into the rows of a Timeline that count as work: there is no number without one.

    all       every kernel, memcpy and memset
    linked    only those whose launch is in the trace, so that a window has no work from before it began

A trace without any device counts the host ops that ran instead, of each rank those of its busiest process: others, as
the workers of a data loader, are no ranks of their own.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ridgeline.core.arrays import Mask
from ridgeline.core.errors import InputError, not_among
from ridgeline.trace.timeline import HOST, Timeline

ALL, LINKED = POLICIES = ("all", "linked")


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """Which spans a number counts, said beside the number."""

    name: str
    counted: int
    of: int
    statement: str


def counted_rows(line: Timeline, policy: str = ALL) -> Mask:
    """Which rows a policy counts. A trace without any device counts the host ops that ran instead."""
    if policy not in POLICIES:
        raise InputError(not_among("policy", policy, POLICIES))
    work = line.is_work
    if not work.any():
        return _busiest(line)
    return work & (line.launch >= 0) if policy == LINKED and _launches(line) else work


def _busiest(line: Timeline) -> Mask:
    """Host ops of the process of each rank that has most of them, in time."""
    ops = line.of_kind(HOST)
    ranks = np.array(line.tables.ranks or (0,))
    time = np.bincount(line.process[ops], weights=line.durations_ns(np.flatnonzero(ops)), minlength=len(ranks))
    chosen = [
        int(candidates[np.argmax(time[candidates])])
        for candidates in (np.flatnonzero(ranks == rank) for rank in np.unique(ranks))
    ]
    mask: Mask = ops & np.isin(line.process, chosen)
    return mask


def _launches(line: Timeline) -> bool:
    return bool((line.launch >= 0).any())


def policy_of(line: Timeline, name: str) -> Policy:
    """The policy with what it came to on this timeline."""
    rows = counted_rows(line, name)
    all_rows = counted_rows(line, ALL)
    counted_spans, of = int(rows.sum()), int(all_rows.sum())
    if not line.is_work.any():
        text = "no device in the trace: host ops of the busiest process count as the work, nested ones once"
    elif name == LINKED and not _launches(line):
        text = "every span of work: the timeline has no launches to link to"
    elif name == LINKED:
        text = f"kernels, memcpy and memset whose launch is in the trace: {counted_spans:,} of {of:,}"
    else:
        stray = int((all_rows & (line.launch < 0)).sum()) if _launches(line) else 0
        text = f"every kernel, memcpy and memset of the trace: {of:,}" + (
            f", of which {stray:,} were launched outside the trace" if stray else ""
        )
    return Policy(name=name, counted=counted_spans, of=of, statement=f"{text}; all steps and what lies between them")
