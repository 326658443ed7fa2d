"""A step that torch itself profiled on the CPU: what the reader finds is what torch's own profiler object holds."""

from __future__ import annotations

import os
import re
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")
torch = pytest.importorskip("torch")

from ridgeline.trace import Timeline  # noqa: E402
from ridgeline.trace.analyze_traces import analyze  # noqa: E402
from ridgeline.trace.read.memory_snapshot import read_snapshot  # noqa: E402
from ridgeline.trace.read.readers import read_timeline  # noqa: E402


@pytest.fixture(scope="module")
def profiled(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    """Two training steps of a small network, and the file the profiler wrote."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = torch.nn.Sequential(
        torch.nn.Linear(64, 128), torch.nn.GELU(), torch.nn.LayerNorm(128), torch.nn.Linear(128, 8)
    )
    optimizer = torch.optim.AdamW(model.parameters())
    path = tmp_path_factory.mktemp("profile") / "cpu.json.gz"
    wanted = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], record_shapes=True)
    with wanted as profiler:
        for number in range(2):
            with torch.profiler.record_function(f"step {number}"):
                model(torch.randn(32, 64)).square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()
    profiler.export_chrome_trace(str(path))
    return profiler, path


@pytest.fixture(scope="module")
def line(profiled: tuple[Any, Path]) -> Timeline:
    return read_timeline(profiled[1])


def test_every_op_is_there_with_its_time(profiled: tuple[Any, Path], line: Timeline) -> None:
    held = [
        (event.name(), event.duration_ns())
        for event in profiled[0].profiler.kineto_results.events()
        if event.name().startswith("aten::")
    ]
    rows = np.flatnonzero(line.of_kind("host"))
    length = line.end_ns[rows] - line.start_ns[rows]
    read = [
        (line.names[code], one)
        for code, one in zip(line.name[rows].tolist(), length.tolist(), strict=True)
        if line.names[code].startswith("aten::")
    ]
    assert len(held) > 50
    assert sorted(read) == sorted(held)


def test_steps_and_shapes(line: Timeline) -> None:
    assert set(np.unique(line.step).tolist()) >= {0, 1}
    linear = [code for code, name in enumerate(line.names) if name == "aten::addmm"]
    rows = np.flatnonzero(np.isin(line.name, linear))
    shapes = {line.detail.shapes[code].dims[:3] for code in line.detail.shape.at(rows)}
    assert ((128,), (32, 64), (64, 128)) in shapes


def test_a_trace_without_a_device_says_that_host_ops_count(line: Timeline) -> None:
    found = analyze(line)
    assert "no device" in found.breakdown.policy.statement
    assert {"matmul", "norm"} <= {one.id for one in found.breakdown.classes}


def test_the_recipe_of_the_documentation_records_three_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`docs/how-to/what-limits-my-step.md`, word for word, in a loop that outlasts the recording."""
    text = (Path(__file__).parents[2] / "docs" / "how-to" / "what-limits-my-step.md").read_text(encoding="utf-8")
    recipe = text.split("```text\n", 1)[1].split("```", 1)[0]
    assert "export_chrome_trace" in recipe
    model = torch.nn.Linear(64, 64)
    monkeypatch.chdir(tmp_path)
    loader = [torch.randn(32, 64) for _ in range(16)]  # ends in the middle of what would be the third round
    exec(recipe, {"torch": torch, "loader": loader, "step": lambda batch: model(batch).sum().backward()})
    found = analyze(tmp_path / "rank0.json.gz")
    assert len(found.breakdown.steps) == 3
    assert found.breakdown.total.busy_ns > 0


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An execution trace and both memory timelines of one step, as torch writes them."""
    folder = tmp_path_factory.mktemp("records")
    observer = torch.profiler.ExecutionTraceObserver()
    observer.register_callback(str(folder / "et.json"))
    model = torch.nn.Linear(64, 32)
    optimizer = torch.optim.AdamW(model.parameters())
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], record_shapes=True, profile_memory=True, with_stack=True,
        execution_trace_observer=observer,
    ) as profiler:  # fmt: skip
        for _ in range(2):
            model(torch.randn(16, 64)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    observer.unregister_callback()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        for name in ("m.raw.json.gz", "m.json.gz"):
            profiler.export_memory_timeline(str(folder / name), device="cpu")
    return folder


def test_both_memory_timelines_say_the_same(records: Path) -> None:
    """Every change by itself, and what torch summed up: the same peak, held by the same categories."""
    (raw,), (summed,) = (read_snapshot(records / name) for name in ("m.raw.json.gz", "m.json.gz"))
    assert raw.peak_bytes == summed.peak_bytes > 4 * (64 * 32 + 32) * 3, "weights and two states at least"
    assert raw.holders == summed.holders
    assert raw.active_bytes == summed.active_bytes


def test_an_execution_trace_of_torch(records: Path) -> None:
    found = read_timeline(records / "et.json")
    assert found.about.format == "PyTorch execution trace"
    assert [one for one in found.about.warnings if "unproven" in one] == []
    rows = np.flatnonzero(found.match_names(re.compile("^aten::addmm$")))
    assert len(rows) == 2
    shape = found.detail.shapes[int(found.detail.shape.at(rows)[0])]
    assert shape.dims[:3] == ((32,), (16, 64), (64, 32))
