"""A right algorithm is proven right, and a dropped, doubled, misdirected or early step is always caught."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from ridgeline.comm.algorithm import (
    COPY,
    REDUCE,
    Algorithm,
    Steps,
    merge_steps,
    reduce_then_gather,
    reversed_algorithm,
    steps_of,
)
from ridgeline.comm.contract import contract
from ridgeline.comm.library.algorithms import (
    PATTERNS,
    allgather_over,
    alltoallv,
    bruck_alltoall,
    double_tree,
    forwarded_dispatch,
    in_switch_allreduce,
    moe_dispatch,
    pairwise,
    ring_allgather,
    split_rail_allgather,
    tree_allreduce,
    unequal_allreduce,
)
from ridgeline.comm.verify import _Replay, is_proved, verify_algorithm

RIGHT = {
    "ring allreduce": reduce_then_gather(ring_allgather(6)),
    "ring allgather": ring_allgather(7),
    "nhr reducescatter": reversed_algorithm(allgather_over(np.arange(6), "nhr")),
    "double tree": tree_allreduce(double_tree(9), 3, "double-tree"),
    "split-rail": reduce_then_gather(split_rail_allgather(8, 4)),
    "unequal groups": unequal_allreduce((2, 3)),
    "in-switch": in_switch_allreduce(4, 4, 3),
    "all-to-all": bruck_alltoall(5),
    "all-pairs allreduce": reduce_then_gather(allgather_over(np.arange(5), "all-pairs")),
    "forwarded combine": reversed_algorithm(
        forwarded_dispatch(np.array([[0, 3], [5, 2], [4, 5], [0, 5], [2, 7], [1, 4], [6, 7], [0, 1]]), 8, 1, 4)
    ),
    "combine": reversed_algorithm(moe_dispatch(np.array([[0, 3], [1, 2], [4, 5], [0, 5], [2, 3], [1, 4]]), 3, 2)),
}

MINGLED = ("double tree", "in-switch")  # one chunk is copied while another is still added


def with_steps(algorithm: Algorithm, steps: Steps) -> Algorithm:
    return replace(algorithm, steps=steps)


@pytest.mark.parametrize("name", RIGHT)
def test_right_ones_pass(name: str) -> None:
    found = verify_algorithm(RIGHT[name])
    assert found.ok, found.problems
    assert found.steps == len(RIGHT[name].steps)


@pytest.mark.parametrize("name", RIGHT)
def test_proofs_by_shape_and_by_replay_agree(name: str) -> None:
    """What the shape of the steps proves, the replay finds right too, for right ones and for broken ones."""
    right = RIGHT[name]
    assert is_proved(right) or name in MINGLED
    assert _Replay(right).problems() == []
    random, steps = np.random.default_rng(len(name)), right.steps
    limits = {"source": right.nodes, "target": right.nodes, "chunk": right.contract.chunks, "op": 2}
    for column in (*limits, "round"):
        for _ in range(40):
            values = getattr(steps, column).copy()
            values[random.integers(len(values))] = random.integers(limits.get(column, right.rounds))
            moved = replace(steps, **{column: values})
            broken = steps_of(moved.round, moved.source, moved.target, moved.chunk, moved.op)
            if (broken.source != broken.target).all() and is_proved(with_steps(right, broken)):
                assert _Replay(with_steps(right, broken)).problems() == []


def test_a_contribution_that_begins_twice_is_not_proved() -> None:
    gather = ring_allgather(4)
    assert gather.contract.begins is not None
    twice = np.concatenate([gather.contract.begins, gather.contract.begins[:1]])
    assert not is_proved(replace(gather, contract=replace(gather.contract, begins=twice)))


@pytest.mark.parametrize("name", RIGHT)
def test_every_dropped_step_is_caught(name: str) -> None:
    steps = RIGHT[name].steps
    for row in range(len(steps)):
        kept = steps.take(np.delete(np.arange(len(steps)), row))
        assert not verify_algorithm(with_steps(RIGHT[name], kept)).ok, f"step {row}"


@pytest.mark.parametrize("name", RIGHT)
def test_every_doubled_reduction_is_caught(name: str) -> None:
    steps = RIGHT[name].steps
    for row in np.flatnonzero(steps.op == REDUCE):
        twice = steps.take(np.insert(np.arange(len(steps)), row, row))
        assert not verify_algorithm(with_steps(RIGHT[name], twice)).ok, f"step {row}"


@pytest.mark.parametrize("name", RIGHT)
def test_every_doubled_copy_in_its_round_is_a_race(name: str) -> None:
    steps = RIGHT[name].steps
    for row in np.flatnonzero(steps.op == COPY):
        twice = steps.take(np.insert(np.arange(len(steps)), row, row))
        found = verify_algorithm(with_steps(RIGHT[name], twice))
        assert not found.ok
        assert "round" in found.problems[0].path


@pytest.mark.parametrize("name", RIGHT)
def test_every_exchange_of_dependent_steps_is_caught(name: str) -> None:
    """A step that sends what an earlier one brought changes places with it."""
    steps = RIGHT[name].steps
    tried = 0
    for early in range(len(steps)):
        later = np.flatnonzero(
            (steps.source == steps.target[early])
            & (steps.chunk == steps.chunk[early])
            & (steps.round > steps.round[early])
        )
        for late in later[:1]:
            rounds = steps.round.copy()
            rounds[[early, late]] = rounds[[late, early]]
            swapped = steps_of(rounds, steps.source, steps.target, steps.chunk, steps.op, steps.channel)
            assert not verify_algorithm(with_steps(RIGHT[name], swapped)).ok, (early, late)
            tried += 1
    assert tried or name in ("combine",)


@pytest.mark.parametrize("name", RIGHT)
def test_a_copy_for_a_sum_is_caught(name: str) -> None:
    steps = RIGHT[name].steps
    if not RIGHT[name].contract.reduces:
        return
    for row in np.flatnonzero(steps.op == REDUCE):
        ops = steps.op.copy()
        ops[row] = COPY
        found = verify_algorithm(with_steps(RIGHT[name], replace(steps, op=ops)))
        first = np.flatnonzero((steps.target == steps.target[row]) & (steps.chunk == steps.chunk[row]))[0]
        place = steps.target[row] * RIGHT[name].contract.chunks + steps.chunk[row]
        onto_nothing = row == first and place not in RIGHT[name].contract.begin_places()  # a switch, a combined token
        assert not found.ok or onto_nothing, row


def test_a_wrong_output_names_its_rank_and_what_is_missing() -> None:
    steps = RIGHT["ring allreduce"].steps
    found = verify_algorithm(with_steps(RIGHT["ring allreduce"], steps.take(np.arange(1, len(steps)))))
    assert "rank" in found.problems[0].path
    assert "without that of rank" in found.problems[0].given


def test_nonsense_is_refused_before_it_is_replayed() -> None:
    right = ring_allgather(4)
    for name, value in (("source", 99), ("target", -1), ("chunk", 4), ("op", 7), ("round", -3)):
        column = getattr(right.steps, name).copy()
        column[0] = value
        found = verify_algorithm(with_steps(right, replace(right.steps, **{name: column})))
        assert not found.ok
    own = replace(right.steps, target=right.steps.source)
    assert "itself" in verify_algorithm(with_steps(right, own)).problems[0].given


def test_reading_what_is_being_written_is_a_race() -> None:
    steps = steps_of(*(np.array(one) for one in ([0, 0], [0, 1], [1, 0], [0, 0])), REDUCE)
    made = Algorithm(name="exchange", contract=contract("allreduce", 2, 1), nodes=2, steps=steps)
    assert "while another step" in verify_algorithm(made).problems[0].given


def test_large_sparse_exchanges_number_only_what_occurs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ridgeline.comm.verify.DENSE", 10)
    monkeypatch.setattr("ridgeline.comm.timing.DENSE", 10)
    for one in (pairwise(6), reduce_then_gather(ring_allgather(5))):
        assert verify_algorithm(one).ok
        assert not verify_algorithm(with_steps(one, one.steps.take(np.arange(1, len(one.steps))))).ok


@pytest.mark.parametrize("n", [2, 3, 6, 8, 16, 21])
@pytest.mark.parametrize("pattern", PATTERNS)
def test_patterns_at_many_sizes(pattern: str, n: int) -> None:
    if pattern in ("halving-doubling", "swing") and n & (n - 1):
        with pytest.raises(ValueError, match="power of two"):
            PATTERNS[pattern](n)
        return
    order = np.random.default_rng(n).permutation(n)
    gather = allgather_over(order, pattern, 2)
    for one in (gather, reversed_algorithm(gather), reduce_then_gather(gather)):
        assert verify_algorithm(one).ok


def test_unequal_all_to_all_sends_nothing_where_there_is_nothing() -> None:
    sizes = np.array([[1.0, 0, 3], [0, 0, 1], [2, 2, 0]])
    made = alltoallv(sizes)
    assert verify_algorithm(made).ok
    assert len(made.steps) == 4
    assert not verify_algorithm(with_steps(made, merge_steps([made.steps.take(np.arange(3))]))).ok
