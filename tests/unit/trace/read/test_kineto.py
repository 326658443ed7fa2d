"""Reading Kineto traces: every dialect gives the same columns, every damage a clear word, and no answer moves."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from traces import HOST, ODD, Known, Recipe, known, make, straggling, write

import ridgeline
from ridgeline.core.errors import InputError
from ridgeline.trace import Timeline, write_chrome
from ridgeline.trace.analysis.breakdown import BusyTimes, breakdown
from ridgeline.trace.analyze_traces import analyze
from ridgeline.trace.classes import ALL, LINKED, classify
from ridgeline.trace.read.chrome_events import EventDecoder, JsonStream, Member, mend
from ridgeline.trace.read.readers import read_timeline

EXAMPLE = Path(__file__).parents[4] / "examples" / "llama3-70b-64xh100.toml"
RECIPE = Recipe(matmul_us=100.123, element_us=20.5, gap_us=15.25)


def read(trace: object, folder: Path, name: str = "t.json") -> Timeline:
    return read_timeline(write(trace, folder / name))


def answers(times: BusyTimes) -> Known:
    return Known(
        span_us=times.span_ns / 1000,
        idle_us=times.idle_ns / 1000,
        compute_us=times.compute_ns / 1000,
        communication_us=times.communication_ns / 1000,
        exposed_communication_us=times.exposed_communication_ns / 1000,
    )


def close(one: Known, other: Known) -> bool:
    return all(getattr(one, key) == pytest.approx(getattr(other, key), abs=2e-3) for key in one.__dataclass_fields__)


def each_event(trace: dict[str, Any], change: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    for event in trace["traceEvents"]:
        change(event)
    return trace


def rename(old_new: dict[str, str]) -> Callable[[dict[str, Any]], None]:
    def change(event: dict[str, Any]) -> None:
        if event.get("cat") in old_new:
            event["cat"] = old_new[event["cat"]]

    return change


class TestDialects:
    @pytest.mark.parametrize("name", ["t.json", "t.json.gz", "odd.suffix"])
    def test_answers_of_the_generator(self, name: str, tmp_path: Path) -> None:
        line = read(make(RECIPE), tmp_path, name)
        assert close(answers(breakdown(line).total), known(RECIPE))
        assert line.about.warnings == ()
        assert sorted(set(line.step.tolist())) == [0, 1]

    def test_a_bare_list_of_events(self, tmp_path: Path) -> None:
        line = read(make(RECIPE)["traceEvents"], tmp_path)
        assert close(answers(breakdown(line).total), known(RECIPE))

    def test_pretty_printed_and_members_in_any_order(self, tmp_path: Path) -> None:
        trace = make(RECIPE)
        events = trace.pop("traceEvents")
        path = tmp_path / "t.json"
        path.write_text("\ufeff\n " + json.dumps({"a": [{"b": "},{"}], "traceEvents": events, **trace}, indent=3))
        line = read_timeline(path)
        assert close(answers(breakdown(line).total), known(RECIPE))
        assert line.about.chips == ("NVIDIA H100 80GB HBM3",)

    @pytest.mark.parametrize(
        "words",
        [
            {"kernel": "Kernel", "cuda_runtime": "Runtime", "cpu_op": "Operator"},
            {"kernel": "mtia_ccp_events", "cuda_runtime": "mtia_runtime"},
            {"kernel": "kernel", "cuda_runtime": "privateuse1_runtime"},
            {"cuda_runtime": "cuda_driver"},
        ],
    )
    def test_old_new_and_vendor_categories(self, words: dict[str, str], tmp_path: Path) -> None:
        line = read(each_event(make(RECIPE), rename(words)), tmp_path)
        assert close(answers(breakdown(line, policy=LINKED).total), known(RECIPE))

    def test_a_category_nobody_knows_is_told_by_its_process(self, tmp_path: Path) -> None:
        line = read(each_event(make(RECIPE), rename({"kernel": "npu_task", "cpu_op": "thing"})), tmp_path)
        assert close(answers(breakdown(line).total), known(RECIPE))
        assert len(line.about.warnings) == 2
        assert "as work of a device" in " ".join(line.about.warnings)

    def test_times_as_text_and_since_1970(self, tmp_path: Path) -> None:
        def as_text(event: dict[str, Any]) -> None:
            if "ts" in event:
                event["ts"] = f"{1_704_161_511_000_000 + event['ts']:.3f}"

        def as_number(event: dict[str, Any]) -> None:
            if "ts" in event:
                whole = 1_704_161_511_000_000_000 + round(event["ts"] * 1000)
                event["ts"] = f"@{whole // 1000}.{whole % 1000:03}@"

        recipe = replace(RECIPE, start_us=1000.0)
        wanted = read(make(recipe), tmp_path)
        text = read(each_event(make(recipe), as_text), tmp_path, "text.json")
        raw = json.dumps(each_event(make(recipe), as_number)).replace('"@', "").replace('@"', "")
        (tmp_path / "number.json").write_text(raw)
        number = read_timeline(tmp_path / "number.json")
        assert np.array_equal(number.start_ns, wanted.start_ns)
        assert np.array_equal(number.end_ns, wanted.end_ns)
        # the f-string above goes through a float of 2^50: good to a quarter of a microsecond only
        assert np.abs(text.start_ns - wanted.start_ns).max() <= 250

    def test_nanoseconds_since_1970_are_noticed(self, tmp_path: Path) -> None:
        def change(event: dict[str, Any]) -> None:
            if "ts" in event:
                event["ts"] = 1_704_161_511_000_000_000 + round(event["ts"] * 1000)
            if "dur" in event:
                event["dur"] = round(event["dur"] * 1000)

        line = read(each_event(make(RECIPE), change), tmp_path)
        assert close(answers(breakdown(line).total), known(RECIPE))
        assert "nanoseconds" in line.about.warnings[0]

    def test_seconds_are_doubted(self, tmp_path: Path) -> None:
        def change(event: dict[str, Any]) -> None:
            for key in ("ts", "dur"):
                if key in event:
                    event[key] *= 1e-6

        assert "--unit s" in " ".join(read(each_event(make(Recipe(layers=30)), change), tmp_path).about.warnings)

    def test_begin_and_end_events(self, tmp_path: Path) -> None:
        events: list[dict[str, Any]] = []
        for event in make(RECIPE)["traceEvents"]:
            if event["ph"] == "X" and event["cat"] == "kernel":
                events.append({**event, "ph": "B"})
                events.append({"ph": "E", "pid": event["pid"], "tid": event["tid"], "ts": event["ts"] + event["dur"]})
        line = read(events, tmp_path)
        assert close(answers(breakdown(line).total), known(RECIPE))

    def test_graphs_link_many_kernels_to_one_call(self, tmp_path: Path) -> None:
        line = read(make(replace(RECIPE, graph=True)), tmp_path)
        work = np.flatnonzero(line.is_work)
        assert len(np.unique(line.launch[work])) == RECIPE.steps
        assert {line.names[line.name[row]] for row in np.unique(line.launch[work])} == {"cudaGraphLaunch"}

    def test_unlinked_work_is_counted_or_not_as_asked(self, tmp_path: Path) -> None:
        recipe = replace(RECIPE, unlinked=3)
        line = read(make(recipe), tmp_path)
        found = breakdown(line, policy=ALL)
        assert close(answers(found.total), known(recipe))
        assert "3 were launched outside the trace" in found.policy.statement
        assert close(answers(breakdown(line, policy=LINKED).total), known(RECIPE))

    def test_odd_names_survive(self, tmp_path: Path) -> None:
        trace = make(RECIPE)
        kernels = [event for event in trace["traceEvents"] if event.get("cat") == "kernel"]
        for event, name in zip(kernels, ODD, strict=False):
            event["name"] = name
        assert set(ODD) <= set(read(trace, tmp_path).names)

    def test_a_folder_of_ranks(self, tmp_path: Path) -> None:
        for recipe in straggling(4, 30.0, RECIPE):
            write(make(recipe), tmp_path / "run" / f"worker{9 - recipe.rank}.json.gz")
        line = read_timeline(tmp_path / "run")
        found = breakdown(line)
        assert [row.rank for row in sorted(found.chips, key=lambda row: row.rank)] == [0, 1, 2, 3]
        assert line.about.world_size == 4
        for row, recipe in zip(sorted(found.chips, key=lambda row: row.rank), straggling(4, 30.0, RECIPE), strict=True):
            assert close(answers(row.times), known(recipe))

    def test_a_folder_may_hold_other_files(self, tmp_path: Path) -> None:
        write(make(RECIPE), tmp_path / "a.json")
        write({"model": "llama"}, tmp_path / "config.json")
        line = read_timeline(tmp_path)
        assert close(answers(breakdown(line).total), known(RECIPE))
        assert "config.json" in line.about.warnings[0]
        with pytest.raises(InputError, match="event list"):
            read_timeline(tmp_path / "a.json", tmp_path / "config.json")

    def test_two_files_of_one_rank_are_told_apart(self, tmp_path: Path) -> None:
        one, two = (write(make(replace(RECIPE, world=2)), tmp_path / name) for name in ("a.json", "b.json"))
        line = read_timeline(one, two)
        assert sorted(set(line.tables.ranks)) == [0, 1]
        assert "both say rank 0" in line.about.warnings[0]

    def test_shapes_and_collectives_are_kept(self, tmp_path: Path) -> None:
        line = read(make(replace(RECIPE, world=2)), tmp_path)
        rows = np.flatnonzero([line.names[code] == "aten::mm" for code in line.name])
        codes = line.detail.shape.at(rows)
        assert {line.detail.shapes[code].dims for code in codes} == {((4096, 1024), (1024, 4096))}
        assert [one.in_elements for one in line.detail.collectives] == [4096 * 1024]


class TestDamage:
    """A clear error, or a warning with what was kept."""

    @pytest.mark.parametrize(
        ("content", "says"),
        [
            (b"", "an empty file"),
            (b"   \n", "begins with"),
            (b"hello", "begins with"),
            (b"{}", "without an event list"),
            (b'{"traceEvents": []}', "without spans"),
            (b'{"traceEvents": 7}', "without an event list"),
            (b"[]", "without spans"),
            (b'{"traceEvents": [{"ph": "X", "name', "nothing can be read"),
            (b"\x1f\x8b\x08\x00garbage", "nothing can be read"),
            (b"SQLite format 3\x00", "cannot be read"),
            (b'[{"ph":"X","name":"k","cat":"kernel","ts":1e400,"dur":1,"pid":0,"tid":0}]', "nothing can be read"),
        ],
    )
    def test_what_is_no_trace(self, content: bytes, says: str, tmp_path: Path) -> None:
        path = tmp_path / "bad.json"
        path.write_bytes(content)
        with pytest.raises(InputError, match=r"bad\.json") as wrong:
            read_timeline(path)
        assert says in str(wrong.value)

    def test_absent_files_and_empty_folders(self, tmp_path: Path) -> None:
        with pytest.raises(InputError, match="no such file"):
            read_timeline(tmp_path / "none.json")
        with pytest.raises(InputError, match="without traces"):
            read_timeline(tmp_path)
        with pytest.raises(InputError, match="no file"):
            read_timeline()

    def test_a_truncated_file_keeps_what_came_before(self, tmp_path: Path) -> None:
        text = json.dumps(make(RECIPE))
        path = tmp_path / "cut.json"
        path.write_text(text[: len(text) // 2])
        line = read_timeline(path)
        assert 10 < len(line) < len(read(make(RECIPE), tmp_path))
        assert "ends in the middle" in line.about.warnings[0]

    def test_damaged_gzip_keeps_what_came_before(self, tmp_path: Path) -> None:
        whole = gzip.compress(json.dumps(make(Recipe(layers=400))).encode(), mtime=0)
        path = tmp_path / "cut.json.gz"
        path.write_bytes(whole[: len(whole) // 2])
        assert "gzip data ends early" in read_timeline(path).about.warnings[0]
        path.write_bytes(whole[:5000] + b"\xff" * 400 + whole[5400:])
        assert "gzip data is damaged" in read_timeline(path).about.warnings[0]

    def test_gzip_members_end_to_end(self, tmp_path: Path) -> None:
        text = json.dumps(make(RECIPE)).encode()
        path = tmp_path / "two.json.gz"
        path.write_bytes(gzip.compress(text[:999]) + gzip.compress(text[999:]) + b"\0" * 512)
        assert close(answers(breakdown(read_timeline(path)).total), known(RECIPE))

    def test_a_bomb_is_refused(self, tmp_path: Path) -> None:
        path = tmp_path / "bomb.json.gz"
        path.write_bytes(gzip.compress(b'{"traceEvents": [' + b" " * 200_000_000, 9))
        with pytest.raises(InputError, match="inflate"):
            read_timeline(path)

    def test_what_json_forbids_is_mended(self, tmp_path: Path) -> None:
        trace = make(RECIPE)
        trace["traceEvents"][3]["args"] = {"x": "@nan@"}
        text = json.dumps(trace).replace('"@nan@"', "-inf").replace("vectorized_e", "vec\\torized\te", 1)
        path = tmp_path / "odd.json"
        path.write_text(text.replace("nvjet", "C:\\Windows\\nvjet", 1))
        line = read_timeline(path)
        assert close(answers(breakdown(line).total), known(RECIPE))
        assert "no JSON" in line.about.warnings[0]

    def test_bad_values_cost_their_events_only(self, tmp_path: Path) -> None:
        trace = make(RECIPE)
        bad: list[Any] = [
            {"dur": -5}, {"dur": None}, {"ts": "soon"}, {"ts": 2**63}, {"dur": 10**400}, {"ts": True}, {"ts": [1]},
        ]  # fmt: skip
        base = {"ph": "X", "cat": "kernel", "name": "bad", "pid": 0, "tid": 7, "ts": 1, "dur": 1}
        trace["traceEvents"] += [base | one for one in bad] + [7, None, "x", [1], {}, {"ph": 5}]
        line = read(trace, tmp_path)
        assert "bad" not in {line.names[code] for code in line.name}
        assert close(answers(breakdown(line).total), known(RECIPE))
        assert sum(line.about.dropped[key] for key in line.about.dropped if "span" in key) == len(bad)

    def test_a_lost_brace_costs_few_events(self, tmp_path: Path) -> None:
        text = json.dumps(make(Recipe(layers=50)))
        place = text.index('"ph"', len(text) // 2)
        path = tmp_path / "flip.json"
        path.write_text(text[: place - 1] + " " + text[place:])
        whole = read(make(Recipe(layers=50)), tmp_path)
        assert len(read_timeline(path)) >= len(whole) - 3


class TestStream:
    """Chunks of any size give the same events."""

    @pytest.mark.parametrize("size", [1, 7, 100, 4096])
    def test_chunk_size_does_not_matter(self, size: int) -> None:
        text = json.dumps(
            {
                "before": {"a": [1, {"b": "]}"}]},
                "traceEvents": [{"name": f"{i}", "cat": "},{"} for i in range(50)],
                "n": 3,
            }
        )
        raw = text.encode()
        chunks = iter([raw[at : at + size] for at in range(0, len(raw), size)])
        stream = JsonStream(chunks, EventDecoder())
        items = list(stream)
        events = [event for item in items if not isinstance(item, Member) for event in item]
        assert [event.name for event in events] == [str(i) for i in range(50)]
        assert [(item.key, item.raw) for item in items if isinstance(item, Member)] == [
            ("before", b'{"a": [1, {"b": "]}"}]}'), ("n", b"3"),
        ]  # fmt: skip
        assert stream.fate.closed

    def test_mending_leaves_names_alone(self) -> None:
        assert mend(b'{"name": "nan, inf", "x": NaN}') == b'{"name": "nan, inf", "x": null}'


def test_a_span_costs_a_few_dozen_bytes(tmp_path: Path) -> None:
    line = read(make(RECIPE), tmp_path)
    columns = [getattr(line, name) for name in line.__dataclass_fields__]
    assert sum(column.nbytes for column in columns if isinstance(column, np.ndarray)) == 45 * len(line)


def receivers(line: Timeline) -> dict[int, int]:
    """Rows of sends, and the rank each goes to."""
    sends = line.detail.collective
    return {row: line.detail.collectives[at].to_rank for row, at in zip(sends.rows, sends.values, strict=True)}


class TestOwnFiles:
    def test_a_prediction_comes_back(self, tmp_path: Path) -> None:
        scenario = ridgeline.read_scenario(EXAMPLE, ("workload.global_batch=32",))
        drawn = ridgeline.timeline(scenario)
        assert isinstance(drawn, Timeline)
        write_chrome(drawn, tmp_path / "own.json")
        back = read_timeline(tmp_path / "own.json")
        assert back.about.format == "Ridgeline"
        assert (back.processes, back.tables.ranks) == (drawn.processes, drawn.tables.ranks)
        assert list(back) == list(drawn)
        assert back.predicted
        assert (back.streams, back.kinds) == (drawn.streams, drawn.kinds)
        assert receivers(back) == receivers(drawn)
        assert set(receivers(back).values()) == {0, 1}
        assert back.counters == drawn.counters
        assert breakdown(classify(drawn)) == breakdown(back)

    def test_a_strangers_claims_are_checked(self, tmp_path: Path) -> None:
        event = {"ph": "X", "pid": 1, "tid": 1, "name": "n", "cat": "matmul", "ts": 1, "dur": 1}
        told = ({"phase": "sideways", "layer": -7}, {"phase": 3, "layer": "many"}, {"phase": "forward", "layer": 10**9})
        own = {"predicted": "yes", "ranks": "all", "processes": 7, "streams": [1], "kinds": {"a": 1}}
        events = [event | {"args": args} for args in told]
        (tmp_path / "own.json").write_text(json.dumps({"ridgeline": own, "traceEvents": events}))
        back = read_timeline(tmp_path / "own.json")
        assert not back.predicted
        assert [(span.phase, span.layer) for span in back] == [("unknown", -1), ("unknown", -1), ("forward", -1)]

    def test_a_measured_timeline_comes_back_with_its_launches(self, tmp_path: Path) -> None:
        line = read(make(replace(RECIPE, world=4, rank=2)), tmp_path)
        write_chrome(line, tmp_path / "own.json")
        back = read_timeline(tmp_path / "own.json")
        for column in ("start_ns", "end_ns", "launch", "step", "rank"):
            assert np.array_equal(getattr(back, column), getattr(line, column)), column
        assert [span.name for span in back] == [span.name for span in line]

    def test_ranks_that_were_written_still_meet(self, tmp_path: Path) -> None:
        """A measured timeline stays a measured one: its collectives are matched across ranks."""
        for recipe in straggling(3, 40.0, RECIPE):
            write(make(recipe), tmp_path / "ranks" / f"rank{recipe.rank}.json")
        line = read_timeline(tmp_path / "ranks")
        write_chrome(line, tmp_path / "own.json")
        one, other = analyze(line).ranks, analyze(tmp_path / "own.json").ranks
        assert other.stragglers == one.stragglers
        assert other.collectives == one.collectives > 0


def test_host_processes_are_not_chips(tmp_path: Path) -> None:
    line = read(make(RECIPE), tmp_path)
    assert line.processes == (f"rank 0 host {HOST}", "rank 0 chip 0")
