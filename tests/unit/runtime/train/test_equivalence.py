"""Loss and every gradient under a plan equal those of one process: single axes on two ranks, and more under `slow`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
sys.path.insert(0, str(Path(__file__).parents[3]))

from run_worlds import Case, verified

SCHEDULES = ("gpipe", "1f1b", "interleaved", "zero-bubble-h1", "zbv", "dualpipe-v")

TWO: list[Case] = [
    ("dense", {"dp": 2}),
    ("dense", {"dp": 2, "shard": "zero1", "microbatch": 2}),
    ("dense", {"dp": 2, "shard": "zero2"}),
    ("dense", {"dp": 2, "shard": "zero3", "recompute": "full"}),
    ("dense", {"tp": 2, "recompute": {"kind": "selective", "parts": ["attention", "mlp"]}}),
    ("dense", {"tp": 2, "sequence_parallel": False}),
    ("gpt", {"tp": 2}),
    ("gpt", {"tp": 2, "sequence_parallel": False}),
    ("dense", {"cp": 2}),
    ("window", {"cp": 2}),
    ("dense", {"cp": 2, "cp_kind": "all-to-all"}),
    ("moe", {"tp": 2}),
    ("moe", {"dp": 2, "ep": 2}),
    ("moe", {"tp": 2, "etp": 2}),
    ("moe", {"tp": 2, "ep": 2, "sequence_parallel": False}),
    ("mla", {"tp": 2, "ep": 2}),
    ("mla", {"dp": 2, "ep": 2, "shard": "zero3"}),
    *(("dense", {"pp": 2, "schedule": name}) for name in SCHEDULES),
    ("moe", {"pp": 2, "schedule": "zbv"}),
    ("dense", {"dp": 2, "shard": "zero3", "offload": "activations"}),
    ("dense", {"pp": 2, "offload": "activations", "recompute": {"kind": "selective", "parts": ["activation"]}}),
    ("window", {"pp": 2, "placement": [0, 2], "recompute": {"kind": "full", "layers": 1}}),
    ("mtp", {"dp": 2, "shard": "zero3", "recompute": "full"}),
    ("mtp-tied", {"tp": 2}),
    ("mtp-tied", {"cp": 2}),
    ("mtp", {"pp": 2, "schedule": "1f1b"}),
    ("mtp-tied", {"pp": 2, "schedule": "interleaved"}),
    ("mla-mtp", {"pp": 2, "schedule": "zbv"}),
]

FOUR: list[Case] = [
    ("dense", {"dp": 2, "tp": 2, "shard": "zero3"}),
    ("gpt", {"dp": 2, "tp": 2, "shard": "zero1"}),
    ("dense", {"dp": 4, "shard": "zero3", "shard_degree": 2}),
    ("dense", {"dp": 2, "cp": 2, "shard": "zero2"}),
    ("window", {"tp": 2, "cp": 2}),
    ("dense", {"cp": 4}),
    ("dense", {"tp": 2, "cp": 2, "cp_kind": "all-to-all"}),
    ("moe", {"dp": 2, "tp": 2, "ep": 4, "shard": "zero3"}),
    ("moe", {"dp": 4, "ep": 2, "shard": "zero3"}),
    ("moe", {"dp": 2, "tp": 2, "ep": 2, "etp": 2, "shard": "zero2"}),
    ("mla", {"dp": 2, "tp": 2, "ep": 2}),
    ("moe", {"cp": 2, "tp": 2, "ep": 4}),
    *(("dense", {"pp": 2, "dp": 2, "shard": "zero3", "schedule": name, "sequences": 8}) for name in SCHEDULES),
    *(("dense", {"pp": 2, "tp": 2, "schedule": name}) for name in SCHEDULES),
    ("deep", {"pp": 4, "schedule": "1f1b"}),
    ("deep", {"pp": 4, "schedule": "zero-bubble-h1", "placement": [0, 2, 1, 1]}),
    ("moe", {"pp": 2, "dp": 2, "ep": 2, "schedule": "dualpipe-v", "sequences": 8}),
    ("moe", {"pp": 2, "tp": 2, "schedule": "zbv"}),
    ("mla", {"pp": 2, "tp": 2, "ep": 2, "schedule": "interleaved"}),
    ("mla", {"pp": 2, "cp": 2, "schedule": "zero-bubble-h1"}),
    ("moe", {"pp": 2, "cp": 2, "shard": "zero1"}),
    ("mtp", {"pp": 2, "dp": 2, "shard": "zero3", "schedule": "zero-bubble-h1", "sequences": 8}),
    ("mtp-tied", {"dp": 2, "tp": 2, "shard": "zero1", "sequence_parallel": False}),
    ("mtp-tied", {"pp": 2, "cp": 2, "recompute": "full"}),
    ("mla-mtp", {"pp": 2, "tp": 2, "ep": 2, "schedule": "dualpipe-v"}),
]


def _assert_equal(cases: list[Case], found: list[dict[str, Any]]) -> None:
    wrong = [(case, answer) for case, answer in zip(cases, found, strict=True) if not answer["equal"]]
    assert not wrong, "\n".join(map(str, wrong))
    assert all(answer["worst"][2] == 1e-5 for answer in found)  # fp32


def test_every_axis_and_schedule_on_two_ranks() -> None:
    _assert_equal(TWO, verified(2, TWO))


@pytest.mark.slow
def test_mixes_of_axes_on_four_ranks() -> None:
    _assert_equal(FOUR, verified(4, FOUR))


@pytest.mark.slow
def test_three_axes_on_eight_ranks() -> None:
    cases: list[Case] = [
        ("dense", {"pp": 2, "dp": 2, "tp": 2, "shard": "zero1"}),
        ("moe", {"pp": 2, "dp": 2, "tp": 2, "ep": 2, "schedule": "zbv", "shard": "zero3"}),
        ("mla", {"dp": 2, "cp": 2, "tp": 2, "ep": 4, "shard": "zero3"}),
    ]
    _assert_equal(cases, verified(8, cases))


@pytest.mark.slow
def test_bf16_is_as_near_as_its_rounding() -> None:
    cases: list[Case] = [
        ("dense", {"tp": 2, "precision": "bf16"}),
        ("dense", {"dp": 2, "shard": "zero3", "precision": "bf16"}),
        ("dense", {"cp": 2, "precision": "bf16"}),
        ("mla", {"dp": 2, "ep": 2, "precision": "bf16"}),
        ("dense", {"pp": 2, "schedule": "zbv", "precision": "bf16"}),
    ]
    for case, answer in zip(cases, verified(2, cases), strict=True):
        assert answer["equal"], (case, answer)
        assert answer["worst"][2] > 1e-4


@pytest.mark.slow
def test_a_mistake_is_found_and_the_parameter_nearest_the_loss_named() -> None:
    forgotten = verified(2, [("dense", {"tp": 2})], sabotage="norm")[0]
    assert not forgotten["equal"]
    assert forgotten["diverged"][0] == "norm.weight"
    assert all("norm" in name for name in forgotten["diverged"])  # and nothing that is right
    halved = verified(2, [("dense", {"tp": 2})], sabotage="embedding")[0]
    assert not halved["equal"]
