"""Turn a schedule's table into the laws it breaks, and into what waits for what.

A law may rely on those above it, so checking ends at the first one broken:

    shape        p rows; the placement puts every virtual stage 0 .. p v - 1 on exactly one (rank, chunk)
    membership   a row holds only chunks 0 .. v - 1 and microbatches 0 .. m - 1, and an overlapped pair is one forward
                 with one backward of another (microbatch, chunk)
    once         for each rank, chunk and microbatch: one F, and either one B or one I and one W
    order        in a row, F before the backward of the same chunk and microbatch, and I before W
    progress     executed in order with buffered sends, every rank finishes: F at virtual stage s after F at s - 1,
                 backward at s after backward at s + 1
    rendezvous   the same with nothing buffered, under the given transport; checked although "ahead" implies it

p = stages, v = chunks, m = microbatches.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import TypeAlias

from ridgeline.plan.schedules import (
    Action,
    Overlap,
    Phase,
    ScheduleTable,
    Transport,
    blocked_ranks,
    flatten,
    run_in_order,
)
from ridgeline.plan.schedules.table import Token, makes, needs

RankedAction: TypeAlias = tuple[int, Action]
"""An action with the rank whose row it stands in."""


def producers(table: ScheduleTable) -> Mapping[Token, RankedAction]:
    """Which action, on which rank, makes each value."""
    return {
        token: (rank, action)
        for rank, row in enumerate(table.rows)
        for action in flatten(row)
        if (token := makes(table, rank, action)) is not None
    }


def dependencies(table: ScheduleTable) -> Mapping[RankedAction, tuple[RankedAction, ...]]:
    """For every (rank, action) of the table, the (rank, action) pairs that must end before it starts.

    Row order is not repeated here: an action also waits for the one before it in its row.

    >>> from ridgeline.plan.schedules import build
    >>> graph = dependencies(build("1f1b", stages=2, microbatches=1))
    >>> for (rank, action), earlier in graph.items():
    ...     print(f"rank {rank} {action} after", [f"rank {r} {a}" for r, a in earlier])
    rank 0 F0@0 after []
    rank 0 B0@0 after ['rank 0 F0@0', 'rank 1 B0@0']
    rank 1 F0@0 after ['rank 0 F0@0']
    rank 1 B0@0 after ['rank 1 F0@0']
    """
    made_by = producers(table)
    return {
        (rank, action): tuple(made_by[token] for token in needs(table, rank, action))
        for rank, row in enumerate(table.rows)
        for action in flatten(row)
    }


def violations(table: ScheduleTable, transport: Transport = Transport.AHEAD) -> tuple[str, ...]:
    """What is wrong with a table, in words; empty if nothing is.

    >>> from dataclasses import replace
    >>> from ridgeline.plan.schedules import build
    >>> table = build("1f1b", stages=2, microbatches=2)
    >>> violations(table)
    ()
    >>> violations(replace(table, rows=(table.rows[0], table.rows[1][:-1])))
    ('once: rank 1 has no backward for microbatch 1 on chunk 0',)
    """
    for law in LAWS:
        faults = tuple(f"{law.__name__}: {fault}" for fault in law(table))
        if faults:
            return faults
    return tuple(f"rendezvous: {fault}" for fault in _rendezvous(table, transport))


def shape(table: ScheduleTable) -> Iterator[str]:
    """p rows, p placements of v chunks, and the virtual stages are each held once."""
    if len(table.rows) != table.stages:
        yield f"{len(table.rows)} rows for {table.stages} stages"
    if len(table.placement) != table.stages or any(len(stages) != table.chunks for stages in table.placement):
        yield f"the placement does not give {table.chunks} virtual stages to each of {table.stages} ranks"
    all_stages = sorted(stage for stages in table.placement for stage in stages)
    if all_stages != list(range(table.stages * table.chunks)):
        yield f"virtual stages 0 to {table.stages * table.chunks - 1} must each be placed once, got {all_stages}"


def membership(table: ScheduleTable) -> Iterator[str]:
    """Rows hold only what belongs to the table, and pairs only what can run as one step."""
    for rank, row in enumerate(table.rows):
        for step in row:
            if isinstance(step, Overlap) and not _is_pair(step):
                yield f"rank {rank} overlaps {step}, which is not a forward with the backward of another"
        for action in flatten(row):
            if not (0 <= action.chunk < table.chunks and 0 <= action.microbatch < table.microbatches):
                yield f"rank {rank} runs {action}, which is outside the table"


def _is_pair(step: Overlap) -> bool:
    forward, backward = step.forward, step.backward
    is_separate = (forward.microbatch, forward.chunk) != (backward.microbatch, backward.chunk)
    return forward.phase is Phase.FORWARD and backward.phase in (Phase.BACKWARD, Phase.BACKWARD_INPUT) and is_separate


def once(table: ScheduleTable) -> Iterator[str]:
    """Every forward and every backward happens exactly once."""
    for rank, row in enumerate(table.rows):
        counts = Counter(flatten(row))
        for chunk in range(table.chunks):
            for microbatch in range(table.microbatches):
                f, b, i, w = (counts[Action(phase=p, microbatch=microbatch, chunk=chunk)] for p in Phase)
                where = f"for microbatch {microbatch} on chunk {chunk}"
                if f != 1:
                    yield f"rank {rank} has {f or 'no'} forward {where}"
                if (b, i, w) == (0, 0, 0):
                    yield f"rank {rank} has no backward {where}"
                elif (b, i, w) not in ((1, 0, 0), (0, 1, 1)):
                    yield f"rank {rank} has {b} full, {i} input and {w} weight backwards {where}"


def order(table: ScheduleTable) -> Iterator[str]:
    """A row never uses what it has not yet made."""
    for rank, row in enumerate(table.rows):
        done: set[Action] = set()
        for action in flatten(row):
            if action.phase is not Phase.FORWARD:
                before = Phase.BACKWARD_INPUT if action.phase is Phase.BACKWARD_WEIGHT else Phase.FORWARD
                first = Action(phase=before, microbatch=action.microbatch, chunk=action.chunk)
                if first not in done:
                    yield f"rank {rank} runs {action} before {first}"
            done.add(action)


def progress(table: ScheduleTable) -> Iterator[str]:
    """In-order execution with buffered sends reaches the end of every row."""
    for rank, position, token in run_in_order(table).stuck:
        yield f"rank {rank} waits at {table.rows[rank][position]} for {token}"


def _rendezvous(table: ScheduleTable, transport: Transport) -> Iterator[str]:
    for rank, operation in sorted(blocked_ranks(table, transport).items()):
        yield f"rank {rank} waits for another rank to {operation}"


LAWS = (shape, membership, once, order, progress)
"""The laws that need no transport, in the order in which they rely on each other."""
