"""Textbook pipelines, drawn by hand for p = 4 and m = 8, and tables broken on purpose."""

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from schedule_laws import dependencies, violations

from ridgeline.core.errors import InputError
from ridgeline.plan.schedules import (
    SCHEDULES,
    Action,
    Costs,
    Overlap,
    Phase,
    ScheduleTable,
    Transport,
    blocked_ranks,
    boundaries,
    build,
    flatten,
    messages,
    peak_in_flight,
    requirement,
    run_in_order,
)
from ridgeline.plan.schedules.table import loop_placement, v_placement


def textbook(name: str) -> ScheduleTable:
    return build(name, stages=4, microbatches=8)


@pytest.mark.parametrize(
    ("name", "rank", "expected"),
    [
        ("gpipe", 3, "F0 F1 F2 F3 F4 F5 F6 F7 B0 B1 B2 B3 B4 B5 B6 B7"),
        ("1f1b", 0, "F0 F1 F2 F3 B0 F4 B1 F5 B2 F6 B3 F7 B4 B5 B6 B7"),
        ("1f1b", 3, "F0 B0 F1 B1 F2 B2 F3 B3 F4 B4 F5 B5 F6 B6 F7 B7"),
        ("zero-bubble-h1", 0, "F0 F1 F2 F3 I0 W0 F4 I1 W1 F5 I2 W2 F6 I3 W3 F7 I4 W4 I5 W5 I6 W6 I7 W7"),
        ("zero-bubble-h1", 3, "F0 I0 F1 I1 F2 I2 F3 I3 W0 F4 I4 W1 F5 I5 W2 F6 I6 W3 F7 I7 W4 W5 W6 W7"),
        (
            "interleaved",
            3,
            (
                "F0@0 F1@0 F2@0 F3@0 F0@1 B0@1 F1@1 B1@1 F2@1 B2@1 F3@1 B3@1 F4@0 B0@0 F5@0 B1@0 F6@0 B2@0 F7@0 B3@0 "
                "F4@1 B4@1 F5@1 B5@1 F6@1 B6@1 F7@1 B7@1 B4@0 B5@0 B6@0 B7@0"
            ),
        ),
        (
            "zbv",
            3,
            (
                "F0@0 F0@1 F1@0 F1@1 F2@0 F2@1 F3@0 F3@1 I0@1 W0@1 "
                "F4@0 I0@0 W0@0 F4@1 I1@1 W1@1 F5@0 I1@0 W1@0 F5@1 I2@1 W2@1 "
                "F6@0 I2@0 W2@0 F6@1 I3@1 W3@1 F7@0 I3@0 W3@0 F7@1 I4@1 W4@1 "
                "I4@0 I5@1 I5@0 I6@1 I6@0 I7@1 I7@0 W4@0 W5@1 W5@0 W6@1 W6@0 W7@1 W7@0"
            ),
        ),
        (
            "dualpipe-v",
            0,
            (
                "F0@0 F1@0 F2@0 F3@0 F4@0 F5@0 F6@0 F0@1 I0@1 W0@1 F1@1 I1@1 W1@1 F2@1 I2@1 W2@1 F3@1 "
                "F7@0&B3@1 F4@1&B0@0 B4@1 F5@1&B1@0 B5@1 F6@1&B2@0 B6@1 F7@1&B3@0 "
                "B7@1 I4@0 W4@0 I5@0 W5@0 I6@0 W6@0 I7@0 W7@0"
            ),
        ),
    ],
)
def test_drawn_rows(name: str, rank: int, expected: str) -> None:
    assert textbook(name).row_text(rank) == expected


@pytest.mark.parametrize(
    ("name", "until_weight", "until_input"),
    [
        ("gpipe", (8, 8, 8, 8), (8, 8, 8, 8)),
        ("1f1b", (4, 3, 2, 1), (4, 3, 2, 1)),
        ("interleaved", (11, 9, 7, 5), (11, 9, 7, 5)),
        ("zero-bubble-h1", (4, 4, 4, 4), (4, 3, 2, 1)),
        ("zbv", (8, 8, 8, 8), (8, 8, 8, 8)),
        ("dualpipe-v", (9, 9, 9, 9), (9, 9, 9, 9)),
    ],
)
def test_held_activations(name: str, until_weight: tuple[int, ...], until_input: tuple[int, ...]) -> None:
    table = textbook(name)
    assert peak_in_flight(table) == until_weight
    assert peak_in_flight(table, released_by=Phase.BACKWARD_INPUT) == until_input


@pytest.mark.parametrize(
    ("name", "bubble", "span_bubble"),
    [
        ("gpipe", 9, 9),
        ("1f1b", 9, 9),
        ("interleaved", 9, 9),
        ("zero-bubble-h1", 3, 3),
        ("zbv", 3, 0),
        ("dualpipe-v", 6, 6),
    ],
)
def test_bubble_when_all_phases_cost_one(name: str, bubble: float, span_bubble: float) -> None:
    run = run_in_order(textbook(name))
    assert run.stuck == ()
    assert (run.bubble, run.span_bubble) == (bubble, span_bubble)


def test_overlap_costs_what_it_is_told() -> None:
    table = textbook("dualpipe-v")
    apart, hidden = run_in_order(table), run_in_order(table, Costs(overlapped=2.0))
    assert hidden.makespan < apart.makespan
    pair = next(step for step in table.rows[0] if isinstance(step, Overlap))
    assert Costs().of(pair) == 3.0
    assert Costs(overlapped=2.0).of(pair) == 2.0


def test_an_idle_table_has_no_bubble() -> None:
    empty = ScheduleTable(name="empty", stages=1, chunks=1, microbatches=0, placement=((0,),), rows=((),))
    run = run_in_order(empty)
    assert (run.makespan, run.longest_span, run.bubble_fraction) == (0.0, 0.0, 0.0)
    assert violations(empty) == ()


@pytest.mark.parametrize("placement", [loop_placement(4, 3), v_placement(4)])
def test_location_inverts_virtual_stage(placement: tuple[tuple[int, ...], ...]) -> None:
    table = replace(textbook("gpipe"), placement=placement, chunks=len(placement[0]))
    for rank in range(4):
        for chunk in range(table.chunks):
            assert table.locations()[table.virtual_stage(rank, chunk)] == (rank, chunk)


def test_dependencies_find_split_and_whole_backwards() -> None:
    graph = dependencies(textbook("dualpipe-v"))
    split = Action(phase=Phase.BACKWARD_INPUT, microbatch=7, chunk=1)
    whole, forward = replace(split, phase=Phase.BACKWARD), replace(split, phase=Phase.FORWARD)
    assert graph[1, split] == ((1, forward), (0, whole))
    assert graph[2, split] == ((2, forward), (1, split))
    assert graph[2, replace(split, phase=Phase.BACKWARD_WEIGHT)] == ((2, split),)
    assert graph[3, forward] == ((3, replace(forward, chunk=0)),)


def test_the_turn_of_a_v_sends_nothing() -> None:
    table = textbook("zbv")
    assert {(m.sender, m.receiver) for m in messages(table)} == {(0, 1), (1, 2), (2, 3), (3, 2), (2, 1), (1, 0)}
    assert sum(1 for _ in messages(table)) == 2 * 8 * 2 * 3
    assert sum(1 for _ in messages(textbook("interleaved"))) == 2 * 8 * 7


def test_a_single_stage_never_idles_or_sends() -> None:
    for name in SCHEDULES:
        table = build(name, stages=1, microbatches=3)
        assert violations(table, Transport.ONE_BY_ONE) == ()
        assert run_in_order(table).bubble == 0
        assert not any(operation for rank in boundaries(table) for operation in rank)


@pytest.mark.parametrize("name", SCHEDULES)
def test_registry_names_the_plainest_transport(name: str) -> None:
    table, ladder = textbook(name), list(Transport)
    enough = ladder.index(SCHEDULES[name].transport)
    assert [not blocked_ranks(table, transport) for transport in ladder] == [i >= enough for i in range(len(ladder))]


@pytest.mark.parametrize(
    ("size", "reason"),
    [
        (("interleaved", 4, 7, 2), "interleaved needs microbatches (7) to be a multiple of stages (4); use 8 or 4"),
        (("interleaved", 4, 3, 2), "interleaved needs microbatches (3) to be a multiple of stages (4); use 4"),
        (("interleaved", 4, 8, 1), "interleaved needs at least 2 chunks per rank, got 1"),
        (("zbv", 4, 8, 3), "zbv needs exactly 2 chunks per rank, got 3"),
        (("1f1b", 4, 8, 2), "1f1b needs exactly 1 chunk per rank, got 2"),
        (("gpipe", 0, 8, 1), "gpipe needs stages to be at least 1, got 0"),
        (
            ("dualpipe-v", 4, 7, 2),
            "dualpipe-v needs at least 2 microbatches per stage (8 for 4 stages), got 7; use zbv for fewer",
        ),
        (("dualpipe", 4, 8, 2), "no schedule is called 'dualpipe'; did you mean dualpipe-v or gpipe?"),
    ],
)
def test_reasons(size: tuple[str, int, int, int], reason: str) -> None:
    name, stages, microbatches, chunks = size
    assert requirement(name, stages, microbatches, chunks) == reason
    told = reason.removeprefix(f"{name} needs ") if name in SCHEDULES else "one of dualpipe-v"
    with pytest.raises(InputError, match=re.escape(told)):
        build(name, stages=stages, microbatches=microbatches, chunks=chunks)


def test_registry_is_read_only_and_quotes_its_sources() -> None:
    with pytest.raises(TypeError):
        SCHEDULES["mine"] = SCHEDULES["1f1b"]  # type: ignore[index]
    for name, kind in SCHEDULES.items():
        assert kind.id == name
        assert "arXiv:" in kind.source


def test_a_large_table_is_cheap() -> None:
    """Ranks share the actions that are equal: as many values as one rank has steps."""
    table = build("1f1b", stages=64, microbatches=1024)
    assert len({id(action) for row in table.rows for action in row}) == 2 * 1024


def _rows(table: ScheduleTable, change: Callable[[list[list[Any]]], None]) -> ScheduleTable:
    rows = [list(row) for row in table.rows]
    change(rows)
    return replace(table, rows=tuple(map(tuple, rows)))


def _swap(rows: list[list[Any]], rank: int, i: int, j: int) -> None:
    rows[rank][i], rows[rank][j] = rows[rank][j], rows[rank][i]


F0, F1, B0 = (Action(phase=Phase(letter), microbatch=i) for letter, i in (("F", 0), ("F", 1), ("B", 0)))
SMALL = build("1f1b", stages=2, microbatches=2)
BROKEN = {
    "shape: 1 rows": replace(SMALL, rows=SMALL.rows[:1]),
    "shape: the placement does not give": replace(SMALL, placement=((0,), (1, 2))),
    "shape: virtual stages 0 to 1 must each be placed once": replace(SMALL, placement=((0,), (0,))),
    "membership: rank 0 runs F0@1, which is outside": _rows(SMALL, lambda rows: rows[0].append(replace(F0, chunk=1))),
    "membership: rank 0 overlaps F0@0&B0@0": _rows(
        SMALL, lambda rows: rows[0].append(Overlap(forward=F0, backward=B0))
    ),
    "once: rank 1 has no forward for microbatch 0": _rows(SMALL, lambda rows: rows[1].pop(0)),
    "once: rank 1 has 2 forward for microbatch 0": _rows(SMALL, lambda rows: rows[1].append(F0)),
    "once: rank 0 has no backward": _rows(SMALL, lambda rows: rows[0].pop()),
    "once: rank 0 has 1 full, 1 input and 0 weight": _rows(
        SMALL, lambda rows: rows[0].append(replace(B0, phase=Phase.BACKWARD_INPUT))
    ),
    "order: rank 1 runs B0@0 before F0@0": _rows(SMALL, lambda rows: _swap(rows, 1, 0, 1)),
    "order: rank 0 runs W0@0 before I0@0": _rows(
        build("zero-bubble-h1", stages=2, microbatches=2), lambda rows: _swap(rows, 0, 2, 3)
    ),
    # Rank 1 wants microbatch 1 first, rank 0 will not send it before microbatch 0 came back.
    "progress: rank 0 waits at B0@0 for gradient of microbatch 0 from virtual stage 1": replace(
        SMALL,
        rows=((F0, B0, F1, replace(B0, microbatch=1)), (F1, F0, B0, replace(B0, microbatch=1))),
    ),
}


@pytest.mark.parametrize("fault", BROKEN)
def test_every_law_can_be_broken(fault: str) -> None:
    assert violations(BROKEN[fault])[0].startswith(fault)


def test_batching_is_not_enough_for_interleaved() -> None:
    faults = violations(textbook("interleaved"), Transport.BATCHED)
    assert faults
    assert all(fault.startswith("rendezvous: ") for fault in faults)


def test_a_stuck_table_is_blocked_when_posted_ahead_too() -> None:
    assert set(
        blocked_ranks(BROKEN[("progress: rank 0 waits at B0@0 for gradient of microbatch 0 from virtual stage 1")])
    ) == {
        0,
        1,
    }


def _torch_row(name: str, stages: int, rank: int, microbatches: int, chunks: int) -> list[str]:
    """The row torch.distributed.pipelining computes for itself, in our notation. No process group is needed for it."""
    schedules = pytest.importorskip("torch.distributed.pipelining.schedules")
    kinds = {"interleaved": "Interleaved1F1B", "zbv": "ZBVZeroBubble", "dualpipe-v": "DualPipeV"}
    kind = schedules.get_schedule_class(kinds[name])
    theirs = kind.__new__(kind)
    rounds = max(1, microbatches // stages)
    known = {
        "pp_group_size": stages,
        "_n_microbatches": microbatches,
        "n_local_stages": chunks,
        "num_stages": stages * chunks,
        "number_of_rounds": rounds,
        "microbatches_per_round": microbatches // rounds,
    }
    for attribute, value in known.items():
        setattr(theirs, attribute, value)
    chunk_of = {
        stage: chunk
        for chunk, stage in enumerate(build(name, stages=stages, microbatches=microbatches).placement[rank])
    }
    actions = [a for a in theirs._calculate_single_rank_operations(rank) if a is not None]
    return [
        f"{part.computation_type.value}{part.microbatch_index}@{chunk_of[part.stage_index]}"
        for action in actions
        for part in (action.sub_actions or (action,))
    ]


@pytest.mark.parametrize("name", ["interleaved", "zbv", "dualpipe-v"])
@pytest.mark.parametrize("rank", range(4))
def test_rows_agree_with_torch(name: str, rank: int) -> None:
    ours = [str(action) for action in flatten(textbook(name).rows[rank])]
    theirs = _torch_row(name, 4, rank, 8, 2)
    if name == "zbv":  # torch empties one chunk's weight backwards before the other's; we go by age
        assert sorted(ours) == sorted(theirs)
        ours, theirs = ([word[0] if word[0] == "W" else word for word in row] for row in (ours, theirs))
    assert ours == theirs
