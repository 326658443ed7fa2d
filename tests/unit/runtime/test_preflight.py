"""Slow chips, slow links and wrong settings are found, and sound systems are left alone."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from itertools import combinations
from pathlib import Path

import pytest

from ridgeline.core.errors import InputError
from ridgeline.runtime.peers import PeerLimit, deviation, outliers, slow_links
from ridgeline.runtime.probe.ranks import World, find_world
from ridgeline.runtime.rank_check import Report, figures_of, judge, preflight, problems, warnings
from ridgeline.runtime.rank_figures import turns

pytest.importorskip("torch")
ROOT = Path(__file__).parents[3]
LIMIT = PeerLimit(gap=0.05)


def drawn(ranks: int, noise: float, seed: int, slow: dict[int, float] | None = None) -> dict[str, list[float]]:
    """Rounds of ranks that differ by chance, some of them slower; every round has a disturbance that all share."""
    draw = random.Random(seed)
    shared = [1 + abs(draw.gauss(0, 0.2)) for _ in range(7)]
    return {
        f"rank {rank}": [(slow or {}).get(rank, 1.0) * each * (1 + draw.gauss(0, noise)) for each in shared]
        for rank in range(ranks)
    }


@pytest.mark.parametrize("ranks", [2, 3, 8, 64])
@pytest.mark.parametrize("noise", [0.002, 0.02])
def test_a_slow_chip_is_named_and_no_other(ranks: int, noise: float) -> None:
    for seed in range(20):
        found = outliers("product", drawn(ranks, noise, seed, {1: 1.25}), LIMIT)
        assert [one.member for one in found] == ["rank 1"]
        assert 0.15 < found[0].gap < 0.35
        assert found[0].score > 4


@pytest.mark.parametrize("noise", [0.0, 0.005, 0.02, 0.1])
def test_sound_ranks_raise_no_alarm(noise: float) -> None:
    alarms = [outliers("product", drawn(ranks, noise, seed), LIMIT) for seed in range(40) for ranks in (2, 4, 16)]
    assert sum(map(bool, alarms)) <= 1


def test_a_gap_that_does_not_matter_is_no_alarm_however_sure() -> None:
    assert outliers("product", drawn(16, 0.0005, 1, {3: 1.02}), LIMIT) == []


def test_a_rank_that_was_slow_once_is_no_alarm() -> None:
    rounds = drawn(8, 0.005, 1)
    rounds["rank 3"][2] *= 5
    assert outliers("product", rounds, LIMIT) == []


def test_two_slow_chips_of_eight_are_both_named() -> None:
    found = outliers("copy", drawn(8, 0.005, 3, {2: 1.3, 5: 1.5}), LIMIT)
    assert [one.member for one in found] == ["rank 5", "rank 2"]


def test_deviation_is_not_moved_by_an_outlier() -> None:
    assert deviation([1.0, 1.1, 0.9, 1.0, 100.0]) == pytest.approx(deviation([1.0, 1.1, 0.9, 1.0, 2.0]))
    assert deviation([1.0]) == 0.0


def links(ranks: int, slow: dict[tuple[int, int], float]) -> dict[tuple[int, int], list[float]]:
    draw = random.Random(ranks)
    return {
        pair: [slow.get(pair, 1.0) * (1 + abs(draw.gauss(0, 0.02))) for _ in range(9)]
        for pair in combinations(range(ranks), 2)
    }


def test_a_slow_link_is_named_apart_from_a_rank_all_of_whose_links_are_slow() -> None:
    limit = PeerLimit(gap=0.2)
    whole, single = slow_links("link", links(8, {(2, 5): 3.0}), limit)
    assert ([one.member for one in single], whole) == (["rank 2 and rank 5"], [])
    whole, single = slow_links("link", links(8, {pair: 2.0 for pair in combinations(range(8), 2) if 3 in pair}), limit)
    assert ([one.member for one in whole], single) == (["rank 3"], [])
    assert slow_links("link", links(8, {}), limit) == ([], [])
    late = links(8, {})
    late[0, 1][3:] = [50.0] * 6  # disturbed for a while, and sound at its best
    assert slow_links("link", late, limit) == ([], [])


@pytest.mark.parametrize("ranks", [2, 3, 4, 7, 8, 16])
def test_every_rank_meets_every_other_once(ranks: int) -> None:
    met = turns(ranks)
    assert sorted(pair for turn in met for pair in turn) == sorted(combinations(range(ranks), 2))
    for turn in met:
        seats = [rank for pair in turn for rank in pair]
        assert len(seats) == len(set(seats))


def report(rank: int, **settings: str) -> Report:
    common = {"software torch": "2.13.0", "env NCCL_ALGO": "Ring", "env OMP_NUM_THREADS": "1", "host ranks": "4"}
    rounds = {"product": [1.0 + 0.001 * rank] * 7}
    own = {name.replace("__", " "): value for name, value in settings.items()}
    return Report(host=f"node{rank // 2}", type="cuda", device="NVIDIA H200", settings={**common, **own}, rounds=rounds)


def test_settings_that_differ_or_slow_are_named() -> None:
    every = [report(rank).settings for rank in range(4)]
    hosts = ["a", "a", "b", "b"]
    assert problems(every, hosts) == []
    every[3]["env NCCL_ALGO"] = "Tree"
    every[1]["software driver"] = "550"
    every[2]["env CUDA_VISIBLE_DEVICES"] = "2"  # may differ
    found = {one.what: one for one in problems(every, hosts)}
    assert set(found) == {"NCCL_ALGO", "driver"}
    assert (found["NCCL_ALGO"].who, found["NCCL_ALGO"].value, found["NCCL_ALGO"].expected) == (
        "rank 3 (b)",
        "Tree",
        "Ring",
    )
    assert (found["driver"].who, found["driver"].expected) == ("rank 1 (a)", "unset")


def test_settings_that_slow_every_rank_are_named_too() -> None:
    every = [{**report(rank).settings, "env CUDA_LAUNCH_BLOCKING": "1"} for rank in range(2)]
    for one in every:
        one |= {"device power_limit_w": "400.0", "device power_default_w": "700.0"}
    found = problems(every, ["a", "a"])
    assert [(one.who, one.what, one.value) for one in found] == [
        ("every rank", "CUDA_LAUNCH_BLOCKING", "1"),
        ("every rank", "power limit in W", "400.0"),
    ]


def test_warnings_do_not_stop_a_run() -> None:
    every = [{"device ecc": "False", "host ranks": "8", "host cores a rank may use": "4"}]
    told = warnings(every, ["a"])
    assert len(told) == 3
    found = judge([report(rank, device__ecc="False") for rank in range(4)], 2, {}, 1.0)
    assert found.warnings
    assert found.ok


def test_a_reference_is_handed_in_as_values() -> None:
    reports = [report(rank) for rank in range(4)]
    found = judge(reports, 2, {"product": 0.8}, 1.0)
    assert not found.ok
    assert [one.member for one in found.behind] == [f"rank {rank} (node{rank // 2})" for rank in range(4)]
    assert found.behind[0].gap == pytest.approx(0.25)
    assert judge(reports, 2, {"product": 0.99}, 1.0).ok


def test_a_profiles_rows_give_the_reference() -> None:
    rows = [
        {"op": "gemm", "impl": "torch", "dtype": "bf16", "m": 4096, "n": 4096, "k": 4096, "s": 2e-4, "ok": True},
        {"op": "copy", "bytes": 1 << 30, "cold": True, "s": 5e-4, "ok": True, "rank": 0},
        {"op": "copy", "bytes": 1 << 30, "cold": True, "s": 7e-4, "ok": True, "rank": 1},
        {"op": "h2d", "bytes": 1 << 26, "pinned": True, "ok": False, "why": "x"},
    ]
    assert figures_of({"device": {"type": "cuda"}, "rows": rows}) == {"product": 2e-4, "copy": pytest.approx(6e-4)}


def test_worlds_of_torchrun_and_slurm(monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_world({}) == World()
    torchrun = {"RANK": "9", "WORLD_SIZE": "16", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "8"}
    assert (find_world(torchrun).nodes, find_world(torchrun).device("cuda")) == (2, "cuda:1")
    monkeypatch.setenv("PATH", "")  # no scontrol
    slurm = {
        "SLURM_PROCID": "5",
        "SLURM_LOCALID": "1",
        "SLURM_STEP_NUM_TASKS": "8",
        "SLURM_STEP_TASKS_PER_NODE": "4(x2)",
    }
    found = find_world({**slurm, "SLURM_STEP_NODELIST": "gpu[07-08]", "SLURM_JOB_ID": "4242"})
    assert (found.rank, found.ranks, found.nodes) == (5, 8, 2)
    assert dict(found.environment)["MASTER_ADDR"] == "gpu07"
    assert dict(found.environment)["MASTER_PORT"] == "29742"
    assert found.device("npu:0") == "npu:0"


def test_a_drill_needs_the_rank_it_names() -> None:
    with pytest.raises(InputError, match="--drill: got 3, expected a rank from 0 to 0"):
        preflight("cpu", drill=3)


def torchrun(*arguments: str) -> tuple[int, str]:
    """Exit code and standard output of four ranks on this host."""
    own = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "4"]
    command += ["-m", "ridgeline", "preflight", "--device", "cpu", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env=own, timeout=120)
    return done.returncode, done.stdout


def test_a_rank_that_is_slowed_on_purpose_is_found_on_gloo() -> None:
    code, out = torchrun("--drill", "2", "--json")
    sheet = json.loads(out)
    assert code == 1
    assert (sheet["ok"], sheet["ranks"], sheet["nodes"]) == (False, 4, 1)
    chips = [one for one in sheet["outliers"] if one["kind"] == "chip"]
    assert {one["who"].split(" (")[0] for one in chips} == {"rank 2"}
    assert "product" in {one["what"] for one in chips}
    assert all(one["gap"] > 0.5 and one["score"] > 4 for one in chips)
    assert {one["name"] for one in sheet["figures"]} == {"product", "copy", "launch", "latency", "link", "all_reduce"}


@pytest.mark.slow
def test_sound_ranks_pass_on_gloo() -> None:
    code, out = torchrun()
    assert "slow chip" not in out
    assert code == 0, out
    assert "nothing wrong" in out
