"""Sends and receives of a pipeline of four stages, whose span, bubbles and critical path are known."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from spans import Sketch
from traces import Pipeline, write

from ridgeline.core.encode import to_json
from ridgeline.trace import Timeline
from ridgeline.trace.analysis.critical_path import critical_path
from ridgeline.trace.analysis.what_if import GraphChange, Question, chosen_rows, faster
from ridgeline.trace.analyze_traces import Analysis, analyze
from ridgeline.trace.classes import built_in, classify, counted_rows
from ridgeline.trace.graph.dependency_graph import deviation_ns, graph_of, replay
from ridgeline.trace.graph.match_collectives import match_collectives
from ridgeline.trace.read.readers import read_timeline

FOUR = Pipeline()
F, B, C, M, P = FOUR.forward_us, FOUR.backward_us, FOUR.transfer_us, FOUR.microbatches, FOUR.stages


def folder(recipe: Pipeline, where: Path) -> Path:
    for rank, trace in enumerate(recipe.traces()):
        write(trace, where / f"rank{rank}.json")
    return where


def read(recipe: Pipeline, where: Path) -> Timeline:
    return classify(read_timeline(folder(recipe, where)))


def analysed(recipe: Pipeline, where: Path) -> Analysis:
    return analyze(folder(recipe, where))


class TestPairs:
    @pytest.mark.parametrize("named", [True, False], ids=["by name", "by group of two"])
    def test_every_send_meets_its_receive(self, named: bool, tmp_path: Path) -> None:
        line = read(replace(FOUR, named=named), tmp_path)
        found = match_collectives(line, built_in(), counted_rows(line))
        assert (len(found.pairs), found.alone, len(found)) == (2 * (P - 1) * M, 0, 0)
        for one in found.pairs:
            send, receive = one.rows
            assert (int(line.rank[send]), int(line.rank[receive])) == one.ranks
            assert line.end_ns[send] == line.end_ns[receive]

    def test_without_a_name_and_in_a_large_group_they_stay_alone(self, tmp_path: Path) -> None:
        for rank in range(3):
            sketch = Sketch(rank=rank, world=3)
            sketch.launched("ncclDevKernel_SendRecv", -4, 0, 10, **{"Process Group Ranks": "[0, 1, 2]"}).write(tmp_path)
        line = classify(read_timeline(tmp_path))
        found = match_collectives(line, built_in(), counted_rows(line))
        assert (len(found.pairs), found.alone) == (0, 3)

    def test_sizes_that_differ_are_no_pair(self, tmp_path: Path) -> None:
        for rank, name, word, size in ((0, "send", "Dst Rank", 10), (1, "recv", "Src Rank", 20)):
            record = {"Collective name": name, word: 1 - rank, "In msg nelems": size, "Out msg nelems": size}
            Sketch(rank=rank, world=2).launched("ncclSendRecv", -4, 0, 10, **record).write(tmp_path)
        line = classify(read_timeline(tmp_path))
        assert match_collectives(line, built_in(), counted_rows(line)).alone == 2

    def test_a_longer_recording_is_matched_where_its_rhythm_fits(self, tmp_path: Path) -> None:
        """Rank 0 shows a send more at the beginning: sends end at 10, 30, 70, 150, receives at 30, 70, 150."""
        for rank, name, word, ends in (
            (0, "send", "Dst Rank", (10, 30, 70, 150)),
            (1, "recv", "Src Rank", (30, 70, 150)),
        ):
            sketch = Sketch(rank=rank, world=2)
            for end in ends:
                sketch.launched("ncclSendRecv", end - 12, end - 8, 8, **{"Collective name": name, word: 1 - rank})
            sketch.write(tmp_path)
        line = classify(read_timeline(tmp_path))
        found = match_collectives(line, built_in(), counted_rows(line))
        assert [one.sequence for one in found.pairs] == [1, 2, 3]
        assert all(line.end_ns[one.rows[0]] == line.end_ns[one.rows[1]] for one in found.pairs)
        assert found.alone == 1


class TestPath:
    def test_it_crosses_every_stage(self, tmp_path: Path) -> None:
        """The whole span is (m + p - 1) forwards and backwards and 2 (p - 1) transfers, in one chain."""
        line = read(FOUR, tmp_path)
        graph = graph_of(line, built_in())
        assert deviation_ns(graph) == 0
        found = critical_path(graph)
        assert found is not None
        assert {part.id: part.ns for part in found.whole.parts} == {
            "matmul": (M + P - 1) * (F + B) * 1000, "nccl": 2 * (P - 1) * C * 1000,
        }  # fmt: skip
        assert found.whole.length_ns == FOUR.span_us * 1000
        on_it = {one.id: one.ns / 1000 for one in found.whole.streams if one.id.endswith("stream 7")}
        assert on_it == {
            "rank 0 chip 0 stream 7": F + M * B, "rank 1 chip 1 stream 7": F + B, "rank 2 chip 2 stream 7": F + B,
            "rank 3 chip 3 stream 7": M * F + B,
        }  # fmt: skip

    def test_what_ifs_go_through_the_sends(self, tmp_path: Path) -> None:
        graph = graph_of(read(FOUR, tmp_path), built_in())

        def span(factor: float, *classes: str) -> float:
            """From the first start to the last end of all ranks, these classes faster."""
            change = GraphChange.none(graph)
            for one in classes:
                rows = chosen_rows(graph, built_in(), Question(text="", form="faster", what=(one,)))
                change = faster(change, rows, factor)
            after = replay(change.graph, change.lag, change.delay)
            work = graph.points.work
            return float(after[graph.points.end(work)].max() - after[graph.points.start(work)].min()) / 1000

        assert span(2, "matmul") == replace(FOUR, forward_us=F / 2, backward_us=B / 2).span_us
        assert span(2, "nccl") == replace(FOUR, transfer_us=C / 2).span_us


class TestBubble:
    def test_it_is_known_and_says_for_whom(self, tmp_path: Path) -> None:
        found = analysed(FOUR, tmp_path)
        assert [one.bubble_ns for one in found.ranks.bubbles] == [round((FOUR.span_us - M * (F + B)) * 1000)] * P
        for stage, one in enumerate(found.ranks.bubbles):
            waits = {wait.rank: (wait.waiting_ns, wait.transfer_ns) for wait in one.waits}
            expected = {}
            if stage:
                expected[stage - 1] = ((stage * (F + C) - C) * 1000, C * 1000)
            if stage < P - 1:
                expected[stage + 1] = (((P - 1 - stage) * (F + B + 2 * C) - C) * 1000, C * 1000)
            assert waits == expected
            assert (one.cool_down_ns, one.other_ns) == (stage * (B + C) * 1000, 0)

    def test_the_sheet_has_it(self, tmp_path: Path) -> None:
        sheet = to_json(analysed(FOUR, tmp_path))
        assert sheet["collectives"]["sends_matched"] == 2 * (P - 1) * M
        assert sheet["pipeline"][1]["waits"][0] == {"rank": 2, "waiting_us": 2 * (F + B + 2 * C) - C, "transfer_us": C}


def test_clocks_that_only_sends_connect(tmp_path: Path) -> None:
    """Each rank's clock is 10 ms behind the one before: receives end before their sends, which no pipeline can do."""
    line = read(replace(FOUR, ahead_us=-10_000.0), tmp_path)
    found = match_collectives(line, built_in(), counted_rows(line))
    assert found.shift == {0: 0, 1: -10_000_000, 2: -20_000_000, 3: -30_000_000}
    graph = graph_of(line, built_in())
    assert int(graph.at[: len(graph.points.at)].max() - graph.at[graph.points.start(graph.points.work)].min()) == (
        FOUR.span_us * 1000
    )
    assert deviation_ns(graph) == 0
