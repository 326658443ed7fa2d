"""What a drawn step shows: layers in order, what is hidden beside compute and what compute waits for, and how many."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ridgeline.cost.calibration import Calibration
from ridgeline.plan.scenario_file import read_scenario, scenario
from ridgeline.sim.events import simulate as drawing
from ridgeline.sim.events.event_loop import Slowdown
from ridgeline.sim.events.simulate import Simulated, drawn_together, simulate, timeline
from ridgeline.sim.events.stream_work import FORWARD, INPUT, RECOMPUTE, WEIGHT
from ridgeline.trace.timeline import NO_LAYER, Span, Timeline

EXAMPLE = Path(__file__).parents[4] / "examples" / "llama3-70b-64xh100.toml"
DEFAULTS = Calibration(offsets={})


def drawn(*settings: str, **how: object) -> Timeline:
    found = timeline(read_scenario(EXAMPLE, ["workload.global_batch=16", *settings]), DEFAULTS, **how)  # type: ignore[arg-type]
    assert isinstance(found, Timeline)
    return found


def small(**plan: object) -> Timeline:
    table = {
        "model": "llama3-8b",
        "system": "16xh100-sxm",
        "workload": {"seq": 4096, "global_batch": 16},
        "plan": {"tp": 2, "engine": "megatron-core", "microbatch": 1} | plan,
    }
    found = timeline(scenario(table), DEFAULTS)
    assert isinstance(found, Timeline)
    return found


def on(line: Timeline, stream: str, process: str = "stage 0") -> list[Span]:
    return [span for span in line if span.stream == stream and span.process == process]


def test_layers_run_in_order_and_backwards_in_reverse() -> None:
    line = small()
    first, back = (span for span in on(line, "steps")[:2])
    products = [span for span in on(line, "compute") if span.name.endswith("matmul")]
    forward = [span.name for span in products if span.start_ns < first.end_ns]
    assert forward == [*(f"layer {index} matmul" for index in range(32)), "head matmul"]
    within = [span.name for span in products if back.start_ns <= span.start_ns < back.end_ns]
    assert list(dict.fromkeys(within)) == ["head matmul", *(f"layer {index} matmul" for index in range(31, -1, -1))]


def test_streams_do_not_overlap_themselves_and_steps_hold_their_layers() -> None:
    for line in (drawn(), small(shard="zero3"), small(offload={"activations": 0.5})):
        for process in line.processes:
            for stream in line.streams:
                rows = line.rows(process, stream)
                assert (line.start_ns[rows][1:] >= line.end_ns[rows][:-1]).all(), stream
            inside = line.busy_ns(process, "steps")
            assert line.busy_ns(process, "compute") < inside * 1.2


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "zero-bubble-h1", "dualpipe-v"])
def test_whole_nanoseconds_neither_overlap_nor_leave_gaps(schedule: str) -> None:
    chunks = 2 if schedule == "dualpipe-v" else 1
    line = drawn("plan.pp=4", "plan.dp=2", f"plan.schedule.name={schedule}", f"plan.schedule.chunks={chunks}")
    for process in line.processes:
        steps = line.rows(process, "steps")
        inside = line.rows(process) & (line.stream != line.streams.index("dp"))
        inside &= line.of_kind("matmul", "attention", "memory", "per-kernel", "exposed")
        begin, end = line.start_ns[inside], line.end_ns[inside]
        at = np.searchsorted(line.start_ns[steps], begin, side="right") - 1
        assert (end <= line.end_ns[steps][at]).all(), "nothing of a step lies outside it"
        assert (begin[1:] >= end[:-1]).all()
        same = at[1:] == at[:-1]
        assert (begin[1:][same] == end[:-1][same]).all(), "work and what it waits for fill a step"
        for stream in line.streams:
            rows = line.rows(process, stream)
            assert (line.start_ns[rows][1:] >= line.end_ns[rows][:-1]).all(), stream


def test_the_simulator_says_phase_layer_and_receiver() -> None:
    line = drawn()
    assert line.predicted
    spans = list(line)
    for span in spans:
        named = span.name.split()
        assert span.layer == (int(named[1]) if named[0] == "layer" else NO_LAYER), span
        if span.stream in ("steps", "pp"):
            assert span.phase == ("forward" if span.name.startswith("F") else "backward"), span
        elif span.stream == "dp":
            assert span.phase == ("optimizer" if "weights" in span.name else "backward"), span
    assert {span.phase for span in spans if span.name == "optimizer"} == {"optimizer"}
    assert {span.phase for span in spans if span.name == "waiting"} == {"other"}
    sends = line.detail.collective
    assert [spans[row].kind for row in sends.rows] == ["send"] * sum(span.kind == "send" for span in spans)
    for row, at in zip(sends.rows, sends.values, strict=True):
        assert spans[row].name.endswith(f"to stage {line.detail.collectives[at].to_rank}")


def test_both_halves_of_an_overlapped_step_have_their_phase() -> None:
    line = drawn("plan.pp=4", "plan.dp=2", "plan.schedule.name=dualpipe-v", "plan.schedule.chunks=2")
    both = next(span for span in on(line, "steps") if "&" in span.name)
    inside = [span for span in on(line, "compute") if both.start_ns <= span.start_ns < both.end_ns]
    phases = [span.phase for span in inside]
    assert phases == sorted(phases, reverse=phases[0] == "forward")
    assert set(phases) == {"forward", "backward"}


def test_exposed_time_is_what_compute_waits() -> None:
    line = small()
    step = on(line, "steps")[0]
    compute = sum(span.duration_ns for span in on(line, "compute") if span.start_ns < step.end_ns)
    exposed = sum(span.duration_ns for span in on(line, "tp") if span.start_ns < step.end_ns and span.kind == "exposed")
    assert compute + exposed == step.duration_ns


def test_hidden_gathers_are_drawn_beside_compute() -> None:
    line = small(shard="zero3")
    kinds = {span.kind for span in on(line, "shard")}
    assert kinds == {"exposed", "overlapped"}
    hidden = next(span for span in on(line, "shard") if span.kind == "overlapped")
    beside = [span for span in on(line, "compute") if span.start_ns < hidden.end_ns and span.end_ns > hidden.start_ns]
    assert beside


def test_copies_to_the_host_have_a_stream() -> None:
    assert on(small(offload={"activations": 0.5}), "host")
    assert not on(small(), "host")


def test_gradients_are_drawn_while_the_last_are_made() -> None:
    line = drawn()
    last = on(line, "steps")[-1]
    hidden = [span for span in on(line, "dp") if span.kind == "overlapped" and "gradients" in span.name]
    assert hidden
    assert all(span.start_ns < last.end_ns for span in hidden)
    rest = next(span for span in on(line, "dp") if span.kind == "exposed" and span.name == "gradients")
    assert rest.start_ns >= last.end_ns


def test_too_many_spans_draw_layers_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = drawn()
    assert not drawn_together(whole)
    monkeypatch.setattr(drawing, "MOST", len(whole) // 2)
    together = drawn()
    assert drawn_together(together)
    assert len(together) < len(whole) // 2
    assert together.span_s == pytest.approx(whole.span_s)
    for process in whole.processes:
        for stream in ("steps", "compute", "tp"):
            assert together.busy_ns(process, stream) == pytest.approx(whole.busy_ns(process, stream), rel=1e-6), stream


def test_far_too_many_draw_classes_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = drawn()
    monkeypatch.setattr(drawing, "MOST", 1)
    least = drawn()
    assert drawn_together(least)
    assert len(on(least, "compute")) == len(on(least, "steps")) + 2  # the optimizer and waiting
    assert least.span_s == pytest.approx(whole.span_s)


def test_a_straggler_is_drawn_longer() -> None:
    even, late = drawn(), drawn(slow=Slowdown(ranks={1: 2.0}))
    assert on(late, "steps", "stage 1")[0].duration_ns == pytest.approx(2 * on(even, "steps", "stage 1")[0].duration_ns)


def test_memory_rises_with_forwards_and_ends_with_the_gradients() -> None:
    line = drawn()
    for counter in line.counters:
        assert counter.values[0] < counter.peak
        assert np.all(np.diff(counter.times_ns) >= 0)
        assert counter.values[-1] <= counter.peak


def test_cost_grows_with_distinct_sections_not_with_layers() -> None:
    found = simulate(read_scenario(EXAMPLE), DEFAULTS)
    assert isinstance(found, Simulated)
    assert len(found.workload.passes) == 3  # embedding, head, one kind of layer
    assert {FORWARD, INPUT, WEIGHT, RECOMPUTE} == set(range(len(found.workload.passes[0])))
