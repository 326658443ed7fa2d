"""Training steps that torch profiles on the CPU, everything on: steps, modules, arrows, compiled parts, two ranks."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from page import free_port

os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")
torch = pytest.importorskip("torch")

from ridgeline.trace import Timeline  # noqa: E402
from ridgeline.trace.analysis.phases import BACKWARD, FORWARD, OPTIMIZER, layers, phases  # noqa: E402
from ridgeline.trace.analyze_traces import analyze  # noqa: E402
from ridgeline.trace.classes import classify  # noqa: E402
from ridgeline.trace.diff import diff_timelines  # noqa: E402
from ridgeline.trace.read.readers import read_timeline  # noqa: E402

BLOCKS = 3


class Block(torch.nn.Module):  # type: ignore[misc]  # torch is not typed here
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = torch.nn.LayerNorm(32), torch.nn.Linear(32, 64), torch.nn.Linear(64, 32)

    def forward(self, x: Any) -> Any:
        return x + self.down(torch.nn.functional.gelu(self.up(self.norm(x))))


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three steps, of which a schedule records the last two."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = torch.nn.Sequential(*(Block() for _ in range(BLOCKS)))
    optimizer = torch.optim.AdamW(model.parameters())
    folder = tmp_path_factory.mktemp("training")
    written = folder / "steps.json.gz"
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU],
        schedule=torch.profiler.schedule(wait=0, warmup=1, active=2),
        record_shapes=True, profile_memory=True, with_stack=True, with_flops=True, with_modules=True,
        on_trace_ready=lambda one: one.export_chrome_trace(str(written)),
    ) as profiler:  # fmt: skip
        for _ in range(3):
            with torch.profiler.record_function("forward"):
                loss = model(torch.randn(16, 32)).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            profiler.step()
    return written


@pytest.fixture(scope="module")
def line(path: Path) -> Timeline:
    return classify(read_timeline(path))


def named(line: Timeline, text: str) -> np.ndarray:
    """Rows of this name."""
    return np.flatnonzero(np.isin(line.name, [code for code, name in enumerate(line.names) if name == text]))


def test_profiler_steps(line: Timeline) -> None:
    assert np.unique(line.step).tolist() == [-1, 1, 2]
    linear = named(line, "aten::addmm")
    assert np.bincount(line.step[linear]).tolist() == [0, 2 * BLOCKS, 2 * BLOCKS]
    assert line.about.warnings == ()


def test_arrows_tie_backward_nodes_to_forward_ops(path: Path, line: Timeline) -> None:
    """Every arrow of the file is a link, and it joins what it should: linear layers to their gradient."""
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    links = line.detail.forward
    assert len(links) == sum(event.get("ph") == "f" and event.get("cat") == "fwdbwd" for event in events) > 20
    pairs = {
        (line.names[line.name[node]], line.names[line.name[op]])
        for node, op in zip(links.rows.tolist(), links.values.tolist(), strict=True)
    }
    assert {("AddmmBackward0", "aten::addmm"), ("NativeLayerNormBackward0", "aten::native_layer_norm")} <= pairs
    assert {("GeluBackward0", "aten::gelu"), ("MeanBackward0", "aten::mean")} <= pairs


def test_phases_and_layers(line: Timeline) -> None:
    """Products of each block forward, and their two gradients backward, where the modules and arrows say."""
    linear, gradient = named(line, "aten::addmm"), named(line, "aten::mm")
    rows = np.sort(np.concatenate([linear, gradient]))
    phase = phases(line, rows)
    assert set(phase[np.isin(rows, linear)].tolist()) == {FORWARD}
    assert set(phase[np.isin(rows, gradient)].tolist()) == {BACKWARD}
    assert set(phases(line, named(line, "aten::_foreach_add_")).tolist()) <= {OPTIMIZER}
    layer = layers(line, rows, phase)
    for which, count in ((FORWARD, 2), (BACKWARD, 4)):
        own = layer[(phase == which) & (line.step[rows] == 1)].tolist()
        assert sorted(own) == [block for block in range(BLOCKS) for _ in range(count)]


def test_the_whole_analysis(path: Path) -> None:
    found = analyze(path)
    assert found.critical is not None
    assert sum(part.ns for part in found.critical.whole.parts) == found.critical.whole.length_ns
    unknown = {one.name for one in found.breakdown.unknown}
    assert not [name for name in unknown if name.startswith("aten::")], unknown


def test_compiled_regions(tmp_path: Path) -> None:
    """A compiled function against the same eager: the trace is read, its region is there, and a diff adds up."""
    model = Block()
    x = torch.randn(16, 32)
    written = []
    for name, call in (("eager", model), ("compiled", torch.compile(model, backend="aot_eager"))):
        call(x).sum().backward()
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
            call(x).sum().backward()
        written.append(tmp_path / f"{name}.json.gz")
        profiler.export_chrome_trace(str(written[-1]))
    before, line = (classify(read_timeline(path)) for path in written)
    compiled = [name for name in line.names if "Compiled" in name or "Torch-Compiled" in name]
    assert compiled
    found = diff_timelines(before, line)
    assert sum(one.delta_ns for one in found.causes) == pytest.approx(found.delta_ns, abs=1.0)


RANKS = """
import os, sys, torch, torch.distributed as dist
rank = int(sys.argv[1])
os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": sys.argv[3], "RANK": sys.argv[1], "WORLD_SIZE": "2"}
dist.init_process_group("gloo")
torch.set_num_threads(1)
with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], record_shapes=True) as profiler:
    for _ in range(3):
        one = torch.ones(1024)
        dist.all_reduce(one)
        dist.send(one, 1) if rank == 0 else dist.recv(one, 0)
profiler.export_chrome_trace(f"{sys.argv[2]}/rank{rank}.json")
dist.destroy_process_group()
"""


def test_two_ranks_of_gloo(tmp_path: Path) -> None:
    port = str(free_port())
    running = [
        subprocess.Popen([sys.executable, "-c", RANKS, str(rank), str(tmp_path), port], stderr=subprocess.PIPE)
        for rank in (0, 1)
    ]
    for one in running:
        _, said = one.communicate(timeout=240)
        assert one.returncode == 0, said.decode()[-2000:]
    found = analyze(tmp_path)
    line = found.timeline
    assert sorted(set(line.tables.ranks)) == [0, 1]
    assert (line.about.world_size, line.about.warnings) == (2, ())
    assert "collective" in {one.id for one in found.breakdown.classes}
