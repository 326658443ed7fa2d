"""Turn a schedule's name and the pipeline's size into its table, or into the reason why there is none."""

from collections.abc import Callable, Mapping
from difflib import get_close_matches
from types import MappingProxyType
from typing import TYPE_CHECKING, TypeAlias

from ridgeline.core.errors import InputError, Problem, UnknownId
from ridgeline.core.records import dataclass
from ridgeline.plan.schedules.rows import (
    dualpipe_v_rows,
    gpipe_rows,
    interleaved_rows,
    one_f_one_b_rows,
    zbv_rows,
    zero_bubble_h1_rows,
)
from ridgeline.plan.schedules.table import Row, ScheduleTable, loop_placement, v_placement
from ridgeline.plan.schedules.timing import Transport

if TYPE_CHECKING:  # this floor counts; who has columns brings them
    from ridgeline.ir.ops import Num

RowsBuilder: TypeAlias = Callable[[int, int, int], tuple[Row, ...]]
"""(stages, microbatches, chunks) -> rows"""

InFlight: TypeAlias = "Callable[[Num, Num, Num, Num], Num]"
"""(stages, microbatches, chunks, rank) -> chunk activations a rank holds at its worst moment; numbers or columns"""

Objection: TypeAlias = Callable[[int, int], str | None]
"""(stages, microbatches) -> what the schedule holds against them, if anything"""


def _no_objection(stages: int, microbatches: int) -> str | None:  # noqa: ARG001
    return None


def _whole_groups(stages: int, microbatches: int) -> str | None:
    """Megatron's rule. A short last group breaks no law but leaves gaps: the rank turns to its next chunk before the
    group's first microbatch is back from the loop. At p = 4, m = 5, v = 2 the bubble would double."""
    below = microbatches // stages * stages
    if below == microbatches:
        return None
    nearest = f"{below + stages} or {below}" if below else str(stages)
    return f"microbatches ({microbatches}) to be a multiple of stages ({stages}); use {nearest}"


def _filled_twice(stages: int, microbatches: int) -> str | None:
    if microbatches >= 2 * stages:
        return None
    return (
        f"at least 2 microbatches per stage ({2 * stages} for {stages} stages), got {microbatches}; use zbv for fewer"
    )


def _least(one: "Num", other: "Num") -> "Num":
    """The smaller of two, numbers or columns."""
    apart: Num = abs(one - other)  # type: ignore[assignment]
    return (one + other - apart) / 2


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleKind:
    """One entry of the registry: what the schedule is, where it comes from, and what it asks for.

    in_flight        activations a rank holds, each 1/chunks of its stage, at most one of every microbatch and chunk
    v_shaped         chunks go down the ranks and back up; otherwise round and round
    splits_backward  the weight gradient is an action of its own, done when there is time
    pairs            a forward and a backward run as one step, each hiding the other's communication
    looped           a chunk runs p microbatches in a row before the rank turns to the next one
    all_forwards_first   no backward before the last forward: every microbatch's logits are there at once
    """

    id: str
    meaning: str
    source: str
    rows: RowsBuilder
    in_flight: InFlight
    splits_backward: bool = False
    pairs: bool = False
    looped: bool = False
    all_forwards_first: bool = False
    fewest_chunks: int = 1
    most_chunks: int | None = 1
    v_shaped: bool = False
    objection: Objection = _no_objection
    transport: Transport = Transport.BATCHED
    """The plainest transport under which it finishes at every size."""


_KINDS = (
    ScheduleKind(
        id="gpipe",
        meaning="all forwards, then all backwards",
        source="Huang et al., GPipe, 2019, arXiv:1811.06965",
        rows=gpipe_rows,
        in_flight=lambda _p, m, v, r: m * v + 0 * r,
        all_forwards_first=True,
        transport=Transport.ONE_BY_ONE,
    ),
    ScheduleKind(
        id="1f1b",
        meaning="one forward, one backward in turn, so that a rank holds at most p activations",
        source="Narayanan et al., PipeDream, 2019 (arXiv:1806.03377); with a flush: 2021 (arXiv:2006.09503)",
        rows=one_f_one_b_rows,
        in_flight=lambda p, _m, _v, r: p - r,
    ),
    ScheduleKind(
        id="interleaved",
        meaning="1f1b over v chunks per rank: the bubble shrinks by v, messages grow by v",
        source="Narayanan et al., Megatron-LM, 2021, arXiv:2104.04473",
        rows=interleaved_rows,
        in_flight=lambda p, _m, v, r: 2 * (p - r - 1) + (v - 1) * p + 1,
        looped=True,
        fewest_chunks=2,
        most_chunks=None,
        objection=_whole_groups,
        transport=Transport.AHEAD,
    ),
    ScheduleKind(
        id="zero-bubble-h1",
        meaning="1f1b with the backward split and the weight half filling the drain, in the memory of 1f1b",
        source="Qi et al., Zero Bubble Pipeline Parallelism, 2024, arXiv:2401.10241",
        rows=zero_bubble_h1_rows,
        in_flight=lambda p, _m, _v, r: p + 0 * r,
        splits_backward=True,
    ),
    ScheduleKind(
        id="zbv",
        meaning="two chunks in a V with a split backward: no gap when F = I = W, in the memory of 1f1b",
        source="Qi et al., Zero Bubble Pipeline Parallelism, 2024, arXiv:2401.10241, section 6",
        rows=zbv_rows,
        in_flight=lambda p, m, _v, r: _least(2 * p, m + r + 1),
        splits_backward=True,
        fewest_chunks=2,
        most_chunks=2,
        v_shaped=True,
        transport=Transport.AHEAD,
    ),
    ScheduleKind(
        id="dualpipe-v",
        meaning="two chunks in a V, each forward overlapped with a backward to hide their communication",
        source="DeepSeek-AI, DeepSeek-V3 (DualPipe), 2024, arXiv:2412.19437; cut in half: Sea AI Lab, 2025",
        rows=dualpipe_v_rows,
        in_flight=lambda p, _m, _v, r: 2 * p + 1 + 0 * r,
        splits_backward=True,
        pairs=True,
        fewest_chunks=2,
        most_chunks=2,
        v_shaped=True,
        transport=Transport.AHEAD,
        objection=_filled_twice,
    ),
)

SCHEDULES: Mapping[str, ScheduleKind] = MappingProxyType({kind.id: kind for kind in _KINDS})
"""Every schedule by id, read-only."""


def requirement(name: str, stages: int, microbatches: int, chunks: int | None = None) -> str | None:
    """Why this schedule cannot be built at this size, or None if it can. Chunks left out means the fewest allowed.

    >>> requirement("interleaved", 4, 7, 2)
    'interleaved needs microbatches (7) to be a multiple of stages (4); use 8 or 4'
    >>> requirement("interleaved", 4, 8, 2) is None
    True
    """
    kind = SCHEDULES.get(name)
    if kind is None:
        near = get_close_matches(name, SCHEDULES, n=3, cutoff=0.4) or list(SCHEDULES)
        return f"no schedule is called {name!r}; did you mean {' or '.join(near)}?"
    chunks = kind.fewest_chunks if chunks is None else chunks
    for what, value in (("stages", stages), ("microbatches", microbatches), ("chunks", chunks)):
        if value < 1:
            return f"{name} needs {what} to be at least 1, got {value}"
    unmet = _chunk_objection(kind, chunks) or kind.objection(stages, microbatches)
    return f"{name} needs {unmet}" if unmet else None


def _chunk_objection(kind: ScheduleKind, chunks: int) -> str | None:
    largest = kind.most_chunks
    if kind.fewest_chunks <= chunks and (largest is None or chunks <= largest):
        return None
    bound = "exactly" if largest == kind.fewest_chunks else "at least"
    plural = "chunk" if kind.fewest_chunks == 1 else "chunks"
    return f"{bound} {kind.fewest_chunks} {plural} per rank, got {chunks}"


def build(name: str, *, stages: int, microbatches: int, chunks: int | None = None) -> ScheduleTable:
    """The table of a named schedule; an `InputError` with the reason where ``requirement`` gives one.

    >>> table = build("1f1b", stages=4, microbatches=8)
    >>> print(table.row_text(2))
    F0 F1 B0 F2 B1 F3 B2 F4 B3 F5 B4 F6 B5 F7 B6 B7
    """
    if name not in SCHEDULES:
        raise UnknownId("schedule", name, SCHEDULES)
    reason = requirement(name, stages, microbatches, chunks)
    if reason is not None:
        size = f"{stages} stages, {microbatches} microbatches, {chunks or 'its own'} chunks"
        raise InputError(Problem(path=name, given=size, expected=reason.removeprefix(f"{name} needs ")))
    kind = SCHEDULES[name]
    chunks = kind.fewest_chunks if chunks is None else chunks
    return ScheduleTable(
        name=name,
        stages=stages,
        chunks=chunks,
        microbatches=microbatches,
        placement=virtual_stages_by_rank(stages, chunks, name),
        rows=kind.rows(stages, microbatches, chunks),
    )


def virtual_stages_by_rank(stages: int, chunks: int, name: str) -> tuple[tuple[int, ...], ...]:
    """Virtual stages of each pipeline rank, as the schedule places them: in loops, or down and back up.

    >>> virtual_stages_by_rank(2, 2, "interleaved"), virtual_stages_by_rank(2, 2, "zbv")
    (((0, 2), (1, 3)), ((0, 3), (1, 2)))
    """
    kind = SCHEDULES.get(name)
    if kind is not None and kind.v_shaped and chunks == 2:
        return v_placement(stages)
    return loop_placement(stages, chunks)
