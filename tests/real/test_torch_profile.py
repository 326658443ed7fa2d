"""A step that torch itself profiled on the CPU: what the reader finds is what torch's own profiler object holds."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")
torch = pytest.importorskip("torch")

from ridgeline.trace import Timeline  # noqa: E402
from ridgeline.trace.analyze import analyze  # noqa: E402
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
