"""The radix tree: what is matched, split, held and evicted; and the order of a queue that goes by it."""

from __future__ import annotations

import random

import pytest

from ridgeline.serving.engine.sglang import order_queue
from ridgeline.serving.engine.sglang_prefill import RadixCache, Runs, SglangSettings, common, cut, length
from ridgeline.serving.engine.step import RequestState
from ridgeline.serving.request import Piece, Request


def text(*pieces: tuple[int, int]) -> Runs:
    return tuple((seed, 0, tokens) for seed, tokens in pieces)


def tokens(runs: Runs) -> list[tuple[int, int]]:
    return [(seed, start + at) for seed, start, count in runs for at in range(count)]


@pytest.mark.parametrize("seed", range(20))
def test_runs_are_their_tokens(seed: int) -> None:
    dice = random.Random(seed)
    one, two = (text(*((dice.randrange(2), dice.randrange(1, 5)) for _ in range(4))) for _ in range(2))
    at = dice.randrange(length(one) + 1)
    head, rest = cut(one, at)
    assert tokens(head) == tokens(one)[:at]
    assert tokens(rest) == tokens(one)[at:]
    pairs = zip(tokens(one), tokens(two), strict=False)
    alike = next((place for place, (a, b) in enumerate(pairs) if a != b), min(length(one), length(two)))
    assert common(one, two) == alike


def test_a_match_inside_an_edge_splits_it() -> None:
    tree = RadixCache()
    tree.insert(text((1, 100)))
    matched, node = tree.match(text((1, 60), (2, 5)))
    assert (matched, node.tokens, tree.evictable) == (60, 60, 100)
    assert tree.insert(text((1, 60), (2, 5)))[0] == 60
    assert tree.evictable == 105


def test_pages_round_down() -> None:
    tree = RadixCache(16)
    assert tree.insert(text((1, 40)))[1].tokens == 32
    assert tree.match(text((1, 31)))[0] == 16


def test_the_least_recently_used_leaf_goes_first_and_locked_ones_stay() -> None:
    tree = RadixCache()
    for seed in (1, 2, 3):
        tree.insert(text((seed, 10)))
    tree.match(text((1, 10)))
    tree.lock(tree.match(text((2, 10)))[1])
    assert tree.evictable == 20
    assert tree.evict(1) == 10
    assert tree.match(text((3, 10)))[0] == 0
    assert tree.evict(100) == 10  # 1 is left, 2 is held
    assert tree.match(text((2, 10)))[0] == 10


def test_a_parent_goes_after_its_children() -> None:
    tree = RadixCache()
    tree.insert(text((1, 10), (2, 5)))
    tree.insert(text((1, 10), (3, 5)))
    assert tree.evict(6) == 10
    assert tree.match(text((1, 10)))[0] == 10
    assert tree.evict(1) == 10


def test_lpm_lets_one_of_many_sharers_go_first() -> None:
    tree = RadixCache()
    tree.insert(text((9, 50)))
    prompts = [[(5, 40), (1, 9)], [(5, 40), (2, 9)], [(9, 50), (3, 9)], [(7, 20)]]
    waiting = [
        RequestState(
            Request(
                id=str(number), arrival_s=0.0, output_tokens=1, max_new_tokens=1,
                prompt=tuple(Piece(seed=seed, tokens=count) for seed, count in pieces),
            ),
            number,
        )
        for number, pieces in enumerate(prompts)
    ]  # fmt: skip
    settings = SglangSettings(max_total_tokens=1000, schedule_policy="lpm")
    order_queue(waiting, settings, tree, lambda state, count: cut(text(*prompts[state.arrival]), count)[0])
    assert [state.request.id for state in waiting] == ["2", "0", "3", "1"]
