"""Phase and layer of measured work, by threads, annotations and repetition; a prediction has its own."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from spans import Sketch

from ridgeline.trace import write_chrome
from ridgeline.trace.analysis.phases import mark_phases, phases_at
from ridgeline.trace.read.readers import read_timeline
from ridgeline.trace.timeline import NO_LAYER, PHASES, Span, Timeline


def trained() -> Sketch:
    """A product forward, one backward on an autograd thread, and an optimizer."""
    sketch = Sketch().launched("gemm", 0, 4, 10)
    sketch.add("cpu_op", "autograd::engine::evaluate_function: MmBackward0", (900, 901), 20, 20)
    sketch.call("cudaLaunchKernel", 25, 2, 50, thread=901).kernel("gemm", 30, 10, 50)
    return sketch.add("user_annotation", "Optimizer.step#AdamW.step", (900, 900), 50, 30).launched("adam", 55, 60, 5)


def of_work(line: Timeline) -> list[str]:
    return [PHASES[code] for code in line.phase[line.is_work]]


def test_phases_by_thread_and_annotation(tmp_path: Path) -> None:
    line = trained().kernel("gemm", 90, 5).read(tmp_path)
    assert set(of_work(line)) == {"unknown"}
    marked = mark_phases(line)
    assert of_work(marked) == ["forward", "backward", "optimizer", "other"]
    assert {PHASES[code] for code in marked.phase[~line.is_work]} == {"unknown"}


def test_layers_by_repetition(tmp_path: Path) -> None:
    names = ["embedding"] + ["norm", "gemm", "flash_attention", "gemm"] * 3 + ["loss"]
    sketch = Sketch()
    for place, name in enumerate(names):
        sketch.launched(name, place * 10, place * 10 + 4, 5)
    line = mark_phases(sketch.read(tmp_path))
    assert line.layer[line.is_work].tolist() == [-1] + [0] * 4 + [1] * 4 + [2] * 4 + [-1]


def test_a_module_with_an_absurd_number_is_no_layer(tmp_path: Path) -> None:
    sketch = Sketch()
    for at, number in ((0, 7), (100, 10**8)):
        sketch.add("python_function", f"nn.Module: Block_{number}", (900, 900), at, 50).launched(
            "gemm", at + 5, at + 9, 5
        )
    line = mark_phases(sketch.read(tmp_path))
    assert line.layer[line.is_work].tolist() == [7, NO_LAYER]


def test_what_is_marked_stays(tmp_path: Path) -> None:
    """Also through a file: phases that were found once are read, not looked for again."""
    marked = mark_phases(trained().read(tmp_path))
    assert mark_phases(marked) is marked
    write_chrome(marked, tmp_path / "own.json")
    back = read_timeline(tmp_path / "own.json")
    assert not back.predicted
    assert list(back) == list(marked)
    assert mark_phases(back) is back


def test_a_prediction_is_taken_at_its_word() -> None:
    """Names that look like something else mean nothing."""
    spans = [
        Span(process="stage 0", stream="steps", name="F0", kind="annotation", start_ns=0, duration_ns=5,
             phase="backward"),
        Span(process="stage 0", stream="compute", name="layer 3 matmul", kind="forward", start_ns=0, duration_ns=5,
             phase="backward", layer=8),
    ]  # fmt: skip
    line = Timeline.of(spans, predicted=True)
    assert mark_phases(line) is line
    assert (PHASES[line.phase[1]], line.layer[1]) == ("backward", 8)
    assert [PHASES[code] for code in phases_at(line, 0, np.array([0, 5, 9]))] == ["backward", "backward", "other"]
