"""Profiles of several ranks as one, and a run of two ranks on gloo."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from ridgeline.runtime.probe.case import COLLECTIVES, link_cases
from ridgeline.runtime.probe.session import merge_rows, rank_path


def test_every_rank_keeps_its_rows() -> None:
    heads = [
        {"chip": "h200-sxm", "host": {"node": f"n{rank}"}, "device": {"name": "H200", "driver": "1"}} for rank in (0, 1)
    ]
    rows = [[{"op": "copy", "s": 1.0}, {"op": "all_reduce", "ranks": 2, "s": 3.0}], [{"op": "copy", "s": 2.0}]]
    head, every = merge_rows(heads, rows)
    assert head["chip"] == "h200-sxm"
    assert head["ranks"] == [
        {"rank": 0, "node": "n0", "name": "H200", "driver": "1"},
        {"rank": 1, "node": "n1", "name": "H200", "driver": "1"},
    ]
    assert [row.get("rank") for row in every] == [0, None, 1]


def test_a_ranks_own_profile_stands_beside_the_whole() -> None:
    assert rank_path(Path("out/node.json"), 3) == Path("out/node.rank3.json")


@pytest.mark.parametrize(("ranks", "nodes", "spans"), [(2, 1, {1}), (16, 2, {1, 2}), (4, 4, {2})])
def test_sends_go_where_there_are_links(ranks: int, nodes: int, spans: set[int]) -> None:
    made = link_cases(ranks, nodes, "nccl")
    sends = [case for case in made if case.kernel.op == "send_recv"]
    assert {case["nodes"] for case in sends} == spans
    assert {case["ranks"] for case in sends} == {2}
    assert {case.kernel.op for case in made} == {"send_recv", "overlap", *COLLECTIVES}
    assert len({case.key() for case in made}) == len(made)


@pytest.mark.slow
def test_two_ranks_and_their_links_on_gloo(torchrun: Callable[..., str], tmp_path: Path) -> None:
    asked = ("--device", "cpu", "--minutes", "0.4", "--only", "host,interconnect", "-o", "node.json")
    torchrun("characterize", *asked)
    table = json.loads((tmp_path / "node.json").read_text())
    assert [one["rank"] for one in table["ranks"]] == [0, 1]
    good = [row for row in table["rows"] if row["ok"]]
    assert {row["rank"] for row in good if row["op"] == "launch"} == {0, 1}
    links = [row for row in good if row.get("backend") == "gloo"]
    assert {row["op"] for row in links} == {"send_recv", *COLLECTIVES}
    assert (tmp_path / "node.rank1.json").exists()
